"""Every table of `make accuracy`, over three small days of a synthetic fleet: it runs to its end,
and is of figures."""

import gzip
import re
from dataclasses import replace
from datetime import datetime

import numpy as np
import pytest

from benchmarks import accuracy, add_remove
from benchmarks.forecast_days import changed, run
from udp_stream.sources.fleet import CENTRE, IST, Fleet, Imperfections

DAYS = "austin-capmetro-2015-06-07", *accuracy.TWO_DAYS


def rush_hour(buses, day=8, **changes):
    now = replace(
        Imperfections(), far_future=0.0
    )  # a day on the ledger of the day before must come after it
    return Fleet(
        buses=buses,
        start=datetime(2024, 1, day, 8, tzinfo=IST),
        hours=1,
        imperfections=now,
        **changes,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("days")
    for seed, name in enumerate(DAYS):
        fleet = rush_hour(40, day=8 + seed, seed=seed, ping_seconds=60)
        messages = [message for some in fleet.messages() for message in some]
        (found / f"{name}.ndjson.gz").write_bytes(gzip.compress(b"\n".join(messages)))
    return found


def lines_of(table, folder, capsys, monkeypatch, registered):
    asked = ["accuracy", str(folder), "--resolutions", "7", "--seeds", "2", "--tables", table]
    monkeypatch.setattr("sys.argv", asked)
    # Where the fleet drives.
    registered(add_remove.DOMAINS, "austin", (CENTRE[1], CENTRE[0], 20.0))
    small = {
        "MECHANISMS": ("levy",),
        "EPSILONS": (1.0, 10.0),
        "DISTANCE_BUSES": 40,
        "JITTER_BUSES": 40,
    }
    small["PRESENCE"] = accuracy.PRESENCE[::2]
    with changed(accuracy, Fleet=rush_hour, **small):
        accuracy.main()
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("table", "lines"),
    [
        ("accuracy", 1 + 2 * len(DAYS) + 1),
        pytest.param("intervals", 1 + len(DAYS) + 2, marks=pytest.mark.long),
        pytest.param("hours", 1 + len(DAYS), marks=pytest.mark.long),
        pytest.param("cdf", 1 + 2 * (len(DAYS) + 2), marks=pytest.mark.long),
        ("distance", 3),
        pytest.param("incidents", 1 + len(DAYS) + 3, marks=pytest.mark.long),
        pytest.param("presence", 1 + 2 * (len(DAYS) + 1) + 6, marks=pytest.mark.soak),
    ],
)
def test_a_table_runs_to_its_end_and_is_of_figures(
    folder, capsys, monkeypatch, registered, table, lines
):
    found = lines_of(table, folder, capsys, monkeypatch, registered)
    assert len(found) == lines
    assert all(re.search(r"\d\.\d{2}", line) for line in found[1:]) and "nan" not in "".join(found)


def test_a_run_reads_the_prior_that_it_is_given(folder):
    feeds = accuracy.Feeds(folder)
    day, prior = feeds.day(DAYS[0], 7), feeds.prior(DAYS[1][:20], 7)
    trained, shipped = (run([day], 0, one)[0] for one in (prior, None))
    assert not np.array_equal(trained.guess, shipped.guess)
