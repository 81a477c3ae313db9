"""The demo's picture: true means are the fleet's, labels stand where cells lie, and errors are what they say."""

import re
from datetime import datetime

import msgspec
import numpy as np
import pytest

from udp_stream.cli.demo_picture import TrueMeans, busiest_slot, map_of, picture, true_means
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


def test_a_night_without_a_bus_does_not_end_the_truth_of_a_day():
    """A day of another zone has the buses' night in its middle."""
    grid = load(None, ["hat.slot=1d", "hat.timezone=America/Chicago"], {}).calendar.slots
    fleet = Fleet(buses=15, start=datetime(2024, 1, 8, 22, tzinfo=IST), hours=9)
    assert not all(chunk.time_ms.size for chunk in fleet.chunks())
    truth, columns = true_means(fleet, "2024-01-08T00:00:00-06:00", grid, 7), fleet.columns()
    assert columns.time_ms[-1] - columns.time_ms[0] > 7 * 3_600_000
    assert sum(truth.pings.values()) == columns.time_ms.size
    assert truth.guess_kmh == pytest.approx(columns.speed_kmh.mean())


def test_a_slot_that_ends_on_another_day_says_so(slot, truth):
    ends = {
        one: msgspec.structs.replace(slot[0].hat, slot_end=one)
        for one in ("2024-01-08T10:00:00", "2024-01-09T00:00:00")
    }
    heads = [
        picture([msgspec.structs.replace(slot[0], hat=hat)], truth, 65).partition(": ")[0] for hat in ends.values()
    ]
    assert [head.partition(" to ")[2] for head in heads] == ["10:00:00", "2024-01-09T00:00:00"]


def test_every_cell_has_its_label_where_it_lies(slot):
    """None covers another, a cell further north is never below, and of one row a cell further east is further right."""
    numbered = TrueMeans({record.hat.cell: float(10 + number) for number, record in enumerate(slot)}, {}, 0.0)
    places = {}
    for row, line in enumerate(map_of(slot, numbered)):
        for label in re.finditer(r"(\d+|--)/(\d\d)", line):
            record = slot[int(label[2]) - 10]
            assert label[1] == (f"{record.mean.value_kmh:.0f}" if record.mean else "--")
            places[record.hat.center] = row, label.start(2)
    assert 20 < len(places) == len(slot) < 90
    rows = [row for _, (row, _) in sorted(places.items(), key=lambda place: -place[0][1])]
    assert rows == sorted(rows) and rows[0] == 0 and len(set(rows)) > 10
    for row in set(rows):
        columns = [column for (_, (at, column)) in sorted(places.items()) if at == row]
        assert columns == sorted(columns)


def test_a_map_that_is_larger_than_a_page_is_left_out(slot, truth):
    assert map_of(slot * 10, truth) == []
    far = msgspec.structs.replace(slot[0], hat=msgspec.structs.replace(slot[0].hat, center=(0.0, 50.0)))
    assert map_of([*slot, far], truth) == []
    assert "private / true mean speed by cell" in picture([*slot, far], truth, 65)


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


def test_bars_have_the_three_marks_at_their_speeds(slot, truth):
    (row,) = [line for line in picture(slot, truth, 65).splitlines() if line.startswith(slot_cell(slot))]
    bar = row[row.index("|") + 1 : row.rindex("|")]
    record = next(record for record in slot if record.hat.cell == slot_cell(slot))
    assert bar[round(record.mean.value_kmh * 52 / 65)] == "●"
    guess = round(truth.guess_kmh * 52 / 65)
    assert bar[guess] in "┊○●" and f"true {truth.kmh[record.hat.cell]:.1f}" in row


def slot_cell(slot):
    """The busiest cell."""
    return max(slot, key=lambda record: record.plates if record.mean else 0).hat.cell


def test_nothing_released_is_said():
    assert busiest_slot([]) == [] and picture([], TrueMeans({}, {}, 0.0), 65) == "nothing was released"
