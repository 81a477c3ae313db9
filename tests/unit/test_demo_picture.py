"""The demo's picture: true means are the fleet's, labels stand where cells lie, and errors are what they say."""

import re
from datetime import datetime

import msgspec
import numpy as np
import pytest

from udp_stream.cli.demo_picture import busiest_slot, picture, true_means
from udp_stream.entropy import OsEntropy
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.runtime.embedded import Embedded
from udp_stream.settings import load
from udp_stream.trial.fleet import IST, Fleet
from udp_stream.windows.tables import cell_name, cells_of

FLEET = Fleet(buses=120, start=datetime(2024, 1, 8, 8, tzinfo=IST), hours=2)
SETTINGS = load(None, ["release.min_plates=3"], {})


@pytest.fixture(scope="module")
def slot():
    """The records of the fleet's busiest hour."""
    releases = []
    runtime = Embedded(SETTINGS, MemoryLedger(), OsEntropy(), lambda plate: plate.encode()[:16].ljust(16), "test",
                       releases.extend)  # fmt: skip
    runtime.run(FLEET.messages())
    return busiest_slot([release.record for release in releases])


@pytest.fixture(scope="module")
def truth(slot):
    return true_means(FLEET, slot[0].hat.slot_start, SETTINGS.calendar.slots, 7)


def test_the_truth_is_the_mean_of_what_the_buses_did_in_that_slot(slot, truth):
    columns, start = FLEET.columns(), datetime.fromisoformat(slot[0].hat.slot_start).timestamp() * 1000
    here = (columns.time_ms >= start) & (columns.time_ms < start + 3_600_000)
    cells = np.array([cell_name(int(cell)) for cell in cells_of(columns.lat, columns.lon, 7)])
    assert set(truth.kmh) == set(cells[here]) and truth.guess_kmh == pytest.approx(columns.speed_kmh[here].mean())
    for cell, kmh in truth.kmh.items():
        ours = here & (cells == cell)
        assert kmh == pytest.approx(columns.speed_kmh[ours].mean()) and truth.pings[cell] == ours.sum()


def test_counts_that_are_kept_back_are_not_shown_as_none(slot, truth):
    hidden = [msgspec.structs.replace(record, counts=None) for record in slot]
    shown = picture(hidden, truth, 65).partition("the busiest cells")[2].splitlines()[1:-2]
    assert "plate" not in "".join(shown)
    busy = sorted(truth.pings, key=lambda cell: -truth.pings[cell])[: len(shown)]
    assert sorted(row.split()[0] for row in shown) == sorted(busy)


def test_the_errors_are_those_of_the_released_means(slot, truth):
    text = picture(slot, truth, 65)
    found = re.search(r"(\d+) released means err by ([\d.]+) km/h; .* of ([\d.]+), by ([\d.]+) km/h", text)
    released = [record for record in slot if record.mean]
    pings = np.array([truth.pings[record.hat.cell] for record in released])
    true = np.array([truth.kmh[record.hat.cell] for record in released])
    ours = np.abs(np.array([record.mean.value_kmh for record in released]) - true)
    expected = (
        np.average(ours, weights=pings),
        truth.guess_kmh,
        np.average(abs(truth.guess_kmh - true), weights=pings),
    )
    assert int(found[1]) == len(released) and [float(one) for one in found.groups()[1:]] == pytest.approx(
        expected, abs=0.06
    )
    assert "The fleet is synthetic" in text
