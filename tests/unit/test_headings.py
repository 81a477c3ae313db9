"""Headings: by a plate's own pings alone, whatever their order; and cells by heading as a grid."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.test_movement import HOUR, RULES, slot_of
from udp_stream.pings.decode import Pings
from udp_stream.settings import load
from udp_stream.windows.clocks import Frame
from udp_stream.windows.grid import HEXAGONS, Hexagons
from udp_stream.windows.headings import MOVED_KM, NAMES, SHIFT, Headings, by_movement
from udp_stream.windows.slots import Windows
from udp_stream.windows.tables import SlotPings, tabulate

M = 1 / 111_195  # of a degree


def headings_of(rows, many=2):
    """(plate, seconds) to a heading."""
    found = by_movement(*slot_of(rows), None, Headings(HEXAGONS, many))
    return {
        (found.plates[plate].decode(), second): NAMES[many][(cell >> SHIFT) - 1]
        for plate, second, cell in zip(
            found.plate.tolist(), (found.time // 1000).tolist(), found.cell.tolist(), strict=True
        )
    }


def course(before, after, many):
    north = after[2] - before[2]
    east = (after[3] - before[3]) * math.cos(math.radians((after[2] + before[2]) / 2))
    turn = math.degrees(math.atan2(east, north))
    return NAMES[many][int((turn + 45) // (360 / many)) % many], math.hypot(north, east) * 111.195


def plainly(rows, many):
    """Written anew, ping by ping."""
    found = {}
    for plate in {row[0] for row in rows}:
        own = sorted(row for row in rows if row[0] == plate)
        own = [row for at, row in enumerate(own) if not at or row[1] > own[at - 1][1]]
        last, waiting = None, []
        for at, row in enumerate(own):
            old = [one for one in own[:at] if 5 <= row[1] - one[1] <= 300][-1:]
            new = [one for one in own[at:] if one[1] - row[1] >= 5][:1]
            way = (old[0], row) if old else None
            if not old and new and new[0][1] - row[1] <= 300:
                way = (row, new[0])
            if way is not None:
                name, km = course(*way, many)
                last = name if km >= MOVED_KM else last
            waiting.append(row[1])
            if last is not None:
                found |= {(plate, second): last for second in waiting}
                waiting = []
    return found


def walk(dice, plates=4):
    rows = []
    for plate in range(plates):
        lat, lon, second = 52.2 + dice.uniform(0, 0.1), 21.0 + dice.uniform(0, 0.1), 0
        for _ in range(int(dice.integers(1, 25))):
            second += int(dice.choice([2, 7, 20, 300, 301]))
            step = dice.choice([0, 15, 25, 400]) * M
            angle = dice.uniform(0, 2 * math.pi)
            lat, lon = lat + step * math.cos(angle), lon + step * math.sin(angle) / 0.61
            rows.append((f"P{plate}", second, lat, lon))
    return rows


@pytest.mark.parametrize("many", NAMES)
def test_a_ping_has_the_course_of_its_plate_s_last_movement(many):
    seen = set()
    for seed in range(150):
        dice = np.random.default_rng(seed)
        rows = walk(dice)
        expected = plainly(rows, many)
        assert headings_of([rows[at] for at in dice.permutation(len(rows))], many) == expected
        seen |= set(expected.values())
        others = [row for row in rows if row[0] != "P0"]
        assert headings_of(others, many) == {
            key: name for key, name in expected.items() if key[0] != "P0"
        }
    assert seen == {*NAMES[many]}


def test_a_plate_that_stands_keeps_its_heading_and_one_that_never_moved_has_none():
    north = [("A", 20 * at, 52.2 + 100 * M * min(at, 3), 21.0) for at in range(9)]
    stands_first = [("B", 20 * at, 52.2 - 100 * M * max(0, at - 5), 21.0) for at in range(9)]
    parked = [("C", 20 * at, 52.2 + 5 * M * (at % 2), 21.0) for at in range(9)]
    found = headings_of([*north, *stands_first, *parked], 4)
    assert {key[0]: name for key, name in found.items()} == {"A": "N", "B": "S"} and len(
        found
    ) == 18
    slot = by_movement(*slot_of([*north, *parked]), None, Headings(HEXAGONS, 2))
    assert slot.unpaired == 9 and slot.repeats == 0
    with_speeds = by_movement(*slot_of([*north, *parked]), RULES, Headings(HEXAGONS, 2))
    assert with_speeds.unpaired == 9 and with_speeds.speed.max() > 0


def test_speeds_change_no_heading_and_no_count():
    for seed in range(30):
        dice = np.random.default_rng(seed)
        rows = walk(dice)
        for at in dice.integers(0, len(rows), 5):  # one time, the same place or another
            plate, second, lat, lon = rows[at]
            rows.append((plate, second, lat + dice.choice([0, 0.05]), lon))
        pings, lat, lon = slot_of(rows)
        counts = []
        for _ in range(3):
            order = dice.permutation(len(rows))
            speed = dice.integers(0, 65 * 4096, len(rows)).astype(np.int32)
            columns = {name: getattr(pings, name)[order] for name in ("plate", "time", "cell")}
            some = replace(pings, speed=speed, **columns)
            of, _ = tabulate(by_movement(some, lat[order], lon[order], None, Headings(HEXAGONS, 2)))  # fmt: skip
            counts.append((of.cells.tolist(), of.plate.tolist(), of.count.tolist(), of.repeats))
        assert counts[0] == counts[1] == counts[2] and counts[0][3] == 5


@pytest.mark.parametrize("flags", [(), ("speed.from=movement",)])
def test_frames_cut_anywhere_close_the_same_slot(flags):
    settings = load(None, ("hat.headings=4", "hat.timezone=UTC", *flags), {})
    rows = walk(np.random.default_rng(3))
    pings, lat, lon = slot_of(rows)
    whole = by_movement(
        replace(pings, speed=np.arange(len(rows), dtype=np.int32)), lat, lon, settings.movement_rules, settings.grid
    )  # fmt: skip
    for size in (1, 7, 1000):
        windows = Windows(settings.window_rules, lambda plate: plate.encode())
        for start in range(0, len(rows), size):
            here = slice(start, start + size)
            number = np.arange(len(rows))[here]
            frame = Pings(
                tuple(name.decode() for name in pings.plates), pings.plate[here], pings.time[here].astype(np.int64),
                lat[here] * 1e-7, lon[here] * 1e-7, number, number, number,
            )  # fmt: skip
            base = np.zeros(number.size, np.int64)
            windows.push(Frame(frame, pings.cell[here], base, base + HOUR))
        (closed,) = windows.flush()
        one, other = (tabulate(slot) for slot in (closed, whole))
        assert [part.tolist() for part in (one[0].cells, one[0].count)] == [
            part.tolist() for part in (other[0].cells, other[0].count)
        ]
        assert flags or one[1].speed.tolist() == other[1].speed.tolist()


def test_cells_by_heading_are_a_grid():
    grid, plain = Headings(Hexagons(8), 4), Hexagons(8)
    lat, lon = np.array([52.2, 52.21, 52.4]), np.array([21.0, 21.01, 21.4])
    whole = np.unique(plain.cells_of(lat, lon))
    assert (np.unique(grid.cells_of(lat, lon)) == whole).all()
    cells = grid.split(whole)
    assert cells.size == 4 * whole.size and (np.diff(cells.astype(np.int64)) > 0).all()
    for cell in cells.tolist():
        assert grid.cell_of(grid.id_of(cell)) == cell and grid.whole_of(cell) in whole
        assert grid.id_of(cell).endswith(f"-{grid.fields_of(cell)['heading'].lower()}")
        assert grid.center_of(cell) == plain.center_of(grid.whole_of(cell))
        assert {grid.id_of(other)[-2:] for other in grid.beside(cell)} == {grid.id_of(cell)[-2:]}
    ring = np.array(sorted({*whole.tolist(), *plain.beside(int(whole[0]))}), np.uint64)
    around = plain.around(ring)
    each = np.vstack([np.where(around < 0, -1, around + at * ring.size) for at in range(4)])
    assert (grid.around(grid.split(ring)) == each).all()
    assert grid == Headings(Hexagons(8), 4) != Headings(Hexagons(8), 2) and grid != plain
    assert load(None, ("hat.headings=4",), {}).policy.fingerprint() not in {
        load(None, (f"hat.headings={many}",), {}).policy.fingerprint() for many in (1, 2)
    }
    with pytest.raises(ValueError, match="H3 cell"):
        grid.cell_of("8742d98b6ffffff-ne")


@pytest.mark.parametrize("many", NAMES)
def test_outlines_of_headings_lie_apart_within_their_cell(many):
    from shapely.geometry import Polygon

    grid = Headings(Hexagons(7), many)
    (whole,) = Hexagons(7).cells_of(np.array([52.2]), np.array([21.0]))
    cell = Polygon(grid.rings_of(int(whole))[0])
    parts = [Polygon(*grid.drawn_of(one)) for one in grid.split(np.array([whole])).tolist()]
    assert sum(part.area for part in parts) == pytest.approx(cell.area, rel=1e-3)
    assert all(part.area > cell.area / many / 2 for part in parts)
    pairs = [(one, other) for at, one in enumerate(parts) for other in parts[:at]]
    assert all(one.intersection(other).area < 1e-3 * cell.area for one, other in pairs)


def test_slots_without_pings_have_no_headings():
    empty = SlotPings(0, HOUR, (), *(np.empty(0, kind) for kind in ("u4", "u4", "u8", "i4")))
    none = np.empty(0, np.int32)
    assert by_movement(empty, none, none, None, Headings(HEXAGONS, 2)) is empty
