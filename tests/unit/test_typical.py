"""The typical week: what it errs by where the truth is known, holidays, changes for good, and the
files of the verb."""

import csv
import json

import msgspec
import numpy as np
import pytest

from benchmarks.made_up_city import MadeUpCity
from benchmarks.typical import Known, published, weekdays
from tests.verbs import run_verb
from udp_stream.base.errors import UsageError
from udp_stream.release.record import Release, Smoothed
from udp_stream.release.typical import Week, class_of

DAYS, BEFORE = 9, 6


@pytest.fixture(scope="module")
def city():
    """A city whose busiest street is slower from the seventh weekday on."""
    return MadeUpCity(2)


@pytest.fixture(scope="module")
def few():
    """The first ones, in which nothing has changed."""
    return list(published(MadeUpCity(2, buses=100), weekdays(3)))


@pytest.fixture(scope="module")
def days(city):
    city.changed = {busiest(city): (weekdays(BEFORE + 1)[-1], 0.65)}
    return list(published(city, weekdays(DAYS)))


def busiest(city):
    return int(np.nansum(Known(city, truth_days=1).pings, axis=1).argmax())


@pytest.mark.long
def test_a_week_errs_far_less_than_a_day_and_its_intervals_hold_the_truth(city, days):
    usual = MadeUpCity(2)
    found = Known(usual, truth_days=20).score(days[:BEFORE])
    assert found.typical < 0.6 and found.typical < 1.02 * found.bare
    assert 0.9 <= found.held_large <= 0.99 and not found.changed


@pytest.mark.long
def test_a_street_that_changes_for_good_is_told_in_three_days(city, days):
    (street,) = city.changed
    changed = Known(MadeUpCity(2), truth_days=1).score(days).changed
    assert street in changed and changed[street] >= days[BEFORE][0][0].hat.slot_start[:10]


def rows_of(days, holidays=()):
    week = Week()
    for releases, estimates in days:
        for record in (*releases, *estimates):
            week.add(record)
    return list(week.rows(holidays))


def test_the_order_of_records_changes_nothing_and_no_release_is_a_guess(few):
    rows = rows_of(few[:2])
    assert rows_of(few[1::-1]) == rows
    assert {row.day for row in rows} == {"weekday"} and {row.days for row in rows} == {0, 1, 2}
    wide = {
        most: [row.high_kmh - row.low_kmh for row in rows if (row.days == 0) == most]
        for most in (True, False)
    }
    assert sum(wide[True]) / len(wide[True]) > sum(wide[False]) / len(wide[False])
    assert all(0 <= row.low_kmh <= row.value_kmh <= row.high_kmh for row in rows)


def test_a_holiday_counts_as_a_sunday(few):
    first = few[0][0][0].hat.slot_start[:10]
    rows = rows_of(few[:3], [first])
    assert {row.day for row in rows} == {"weekday", "sunday"}
    assert max(row.days for row in rows if row.day == "sunday") == 1
    assert class_of("2024-01-07") == "sunday"


def test_the_verb_writes_the_same_rows_in_each_form(few, tmp_path):
    releases, estimates = few[0]
    (tmp_path / "r.ndjson").write_bytes(b"".join(Release.encode(one) + b"\n" for one in releases))
    (tmp_path / "e.ndjson").write_bytes(b"".join(Smoothed.encode(one) + b"\n" for one in estimates))
    files = str(tmp_path / "r.ndjson"), str(tmp_path / "e.ndjson")
    for form in ("ndjson", "csv", "geojson", "parquet"):
        assert run_verb(["typical", *files, "--out", f"week.{form}"], cwd=tmp_path).returncode == 0
    rows = [json.loads(msgspec.json.encode(row)) for row in rows_of(few[:1])]
    assert [
        json.loads(line) for line in (tmp_path / "week.ndjson").read_text().splitlines()
    ] == rows
    with (tmp_path / "week.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [(one["cell"], int(one["hour"]), float(one["value_kmh"])) for one in table] == [
        (row["cell"], row["hour"], row["value_kmh"]) for row in rows
    ]
    assert list(table[0]) == [
        *["cell", "place", "day", "hour", "value_kmh", "low_kmh", "high_kmh", "days", "changed"]
    ]
    features = json.loads((tmp_path / "week.geojson").read_text())["features"]
    assert len(features) == len(rows) and features[0]["geometry"]["type"] == "Polygon"
    assert (tmp_path / "week.parquet").read_bytes()[:4] == b"PAR1"
    refused = run_verb(["typical", files[1], "--out", "week.csv"], cwd=tmp_path)
    assert refused.returncode == UsageError.exit_status and b"expected releases" in refused.stderr
