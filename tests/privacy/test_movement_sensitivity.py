"""Speeds by movement: where one plate was inside its cells changes its own speeds, and nothing else."""

import h3
import numpy as np
import pytest

from tests.unit.test_movement import HOUR, RULES, values_of
from udp_stream.windows.movement import places_of, with_speeds
from udp_stream.windows.tables import SlotPings, cells_of

RESOLUTION = 7
CELLS = sorted(h3.grid_disk("871f53c93ffffff", 8))


def place_in(dice, cell):
    """Somewhere in a cell, its corners rather often."""
    corner = dice.choice(np.array(h3.cell_to_boundary(cell)))
    share = dice.choice([0.01, dice.uniform(0, 1), 0.99])
    return tuple(share * np.array(h3.cell_to_latlng(cell)) + (1 - share) * corner)


def case(dice, plates=4):
    """Times and cells of a slot: public. Close and far, near and out of reach, twice at one time."""
    rows = []
    for plate in range(plates):
        seconds = np.cumsum(dice.choice([0, 1, 5, 20, 300, 301], int(dice.integers(1, 12))))
        cell = int(dice.integers(len(CELLS)))
        for second in seconds.tolist():
            cell = cell if dice.random() < 0.5 else int(dice.integers(len(CELLS)))
            rows.append((plate, second, CELLS[cell]))
    return rows


def slot(rows, places):
    lat, lon = np.array(places).T
    cell = np.array([int(row[2], 16) for row in rows], np.uint64)
    assert (cells_of(lat, lon, RESOLUTION) == cell).all()
    plate, time = np.array([row[0] for row in rows], np.uint32), np.array([1000 * row[1] for row in rows], np.uint32)
    names = tuple(b"%d" % number for number in range(max(plate) + 1))
    pings = SlotPings(0, HOUR, names, plate, time, cell, np.zeros(len(rows), np.int32))
    return with_speeds(pings, places_of(lat), places_of(lon), RULES)


@pytest.mark.parametrize("seed", range(40))
def test_one_plates_positions_within_its_cells_move_no_count_and_no_other_plate(seed):
    dice = np.random.default_rng(seed)
    moved = 0
    for _ in range(25):
        rows = case(dice)
        places = [place_in(dice, row[2]) for row in rows]
        whose = int(dice.integers(4))
        others = [place_in(dice, row[2]) if row[0] == whose else place for row, place in zip(rows, places, strict=True)]
        one, other = slot(rows, places), slot(rows, others)
        left, right = values_of(one), values_of(other)
        assert {key: len(speeds) for key, speeds in left.items()} == {key: len(some) for key, some in right.items()}
        assert (one.repeats, one.unpaired) == (other.repeats, other.unpaired)
        differ = {key for key in left if left[key] != right[key]}
        assert {plate for _, plate in differ} <= {b"%d" % whose}
        assert all(0 <= speed <= RULES.max_quanta for speeds in (*left.values(), *right.values()) for speed in speeds)
        moved += len(differ)
    assert moved, "the plate's own speeds follow from its positions"


def test_refusing_fast_pairs_by_their_positions_would_change_counts():
    """Why speeds above the limit are clamped within reach: by positions, the same cells and times give other counts."""
    dice, changed = np.random.default_rng(1), 0
    limit = RULES.reject_above_kmh
    for _ in range(200):
        rows = [(0, 0, CELLS[0]), (0, 5, CELLS[0])]
        fast = []
        for _ in range(2):
            (lat, lon), (other_lat, other_lon) = (place_in(dice, row[2]) for row in rows)
            km = h3.great_circle_distance((lat, lon), (other_lat, other_lon))
            fast.append(km * 3600 / 5 > limit)
        changed += fast[0] != fast[1]
    assert changed > 20
