"""Speeds by movement: which pings have one, how fast they are, and that nothing else of the log
changes them."""

import math
from dataclasses import replace

import h3
import numpy as np
import pytest

from udp_stream.pings.decode import PingRules
from udp_stream.settings import load
from udp_stream.windows.clocks import Frame
from udp_stream.windows.grid import HEXAGONS, Hexagons
from udp_stream.windows.movement import km_between, places_of, with_speeds
from udp_stream.windows.slots import Windows
from udp_stream.windows.tables import SlotPings, tabulate

HOUR = 3_600_000
RULES = PingRules(max_kmh=65, reject_above_kmh=200)


def haversine_km(lat, lon, other_lat, other_lon):
    """Written anew: along the great circle of a sphere of 6,371.0088 km."""
    one, other = math.radians(lat), math.radians(other_lat)
    half = math.sin((other - one) / 2) ** 2
    half += math.cos(one) * math.cos(other) * math.sin(math.radians(other_lon - lon) / 2) ** 2
    return 2 * 6371.0088 * math.asin(math.sqrt(half))


def slot_of(rows, resolution=7):
    """A slot of rows (plate, seconds, lat, lon), and their places."""
    plates = sorted({row[0] for row in rows})
    lat, lon = (np.array([row[at] for row in rows], float) for at in (2, 3))
    plate = np.array([plates.index(row[0]) for row in rows], np.uint32)
    time = np.array([1000 * row[1] for row in rows], np.uint32)
    pings = SlotPings(0, HOUR, tuple(name.encode() for name in plates), plate, time, Hexagons(resolution).cells_of(lat, lon),
                      np.zeros(len(rows), np.int32))  # fmt: skip
    return pings, places_of(lat), places_of(lon)


def speeds_of(rows, rules=RULES, resolution=7):
    """(plate, seconds) to km/h."""
    found = with_speeds(*slot_of(rows, resolution), rules, HEXAGONS)
    keys = zip(found.plate.tolist(), (found.time // 1000).tolist(), strict=True)
    return {(found.plates[plate].decode(), second): kmh for (plate, second), kmh in
            zip(keys, (found.speed / 4096).tolist(), strict=True)}  # fmt: skip


def going(plate, seconds, kmh, lat=52.2, lon=21.0):
    """North, at an even speed."""
    degree_km = haversine_km(52, 21, 53, 21)
    return [(plate, second, lat + kmh * second / 3600 / degree_km, lon) for second in seconds]


@pytest.mark.parametrize(
    ("seconds", "with_speed"),
    [
        ([0, 20, 40], [0, 20, 40]),  # the first takes the next pair
        ([0, 4], []),  # too near
        ([0, 5, 305], [0, 5, 305]),  # just near enough, just far enough
        ([0, 301], []),  # too far
        ([0, 20, 400, 420], [0, 20, 400, 420]),  # behind a gap it begins anew
        ([0, 400, 420], [400, 420]),
        ([7], []),
        (
            [0, 1, 2, 3, 4, 5, 6],
            [0, 1, 5, 6],
        ),  # each second: 2, 3 and 4 have none 5 s off on either side
        (range(20), range(20)),
    ],
)
def test_times_alone_say_which_pings_have_a_speed(seconds, with_speed):
    for kmh in (0, 36, 180):
        found = speeds_of(going("A", seconds, kmh))
        assert sorted(second for _, second in found) == list(with_speed)
        assert list(found.values()) == pytest.approx([min(kmh, 65)] * len(found), abs=0.02)
    pings = with_speeds(*slot_of(going("A", seconds, 36)), RULES, HEXAGONS)
    assert pings.unpaired == len(list(seconds)) - len(list(with_speed)) and pings.repeats == 0


def test_distances_are_those_of_the_great_circle():
    dice = np.random.default_rng(3)
    lat, lon = dice.uniform(-70, 70, 5000), dice.uniform(-180, 180, 5000)
    km = dice.uniform(0.001, 25, 5000)
    turn = dice.uniform(0, 2 * np.pi, 5000)
    other_lat = lat + km * np.sin(turn) / 111.2
    other_lon = (lon + km * np.cos(turn) / 111.2 / np.cos(np.radians(lat)) + 180) % 360 - 180
    ours = km_between(places_of(lat), places_of(lon), places_of(other_lat), places_of(other_lon))
    theirs = np.array(
        [haversine_km(*one) for one in zip(lat, lon, other_lat, other_lon, strict=True)]
    )
    assert (np.abs(ours - theirs) < 1e-5 + 1e-5 * theirs).all(), (
        "a centimetre, and a hundred-thousandth"
    )


def test_what_cells_tell_to_be_too_fast_is_left_out_and_the_rest_is_clamped():
    far, near = (
        ("A", 20, 53.2, 21.0),
        ("A", 20, 52.21, 21.0),
    )  # 111 km, 1.1 km: 200 km/h are 1.1 km in 20 s
    assert speeds_of([("A", 0, 52.2, 21.0), far]) == {}
    assert speeds_of([("A", 0, 52.2, 21.0), near]) == {("A", 0): 65.0, ("A", 20): 65.0}
    here = h3.cell_to_latlng("871f53c93ffffff")
    ends = sorted(h3.cell_to_boundary("871f53c93ffffff"))
    inner = [
        tuple(0.98 * a + 0.02 * b for a, b in zip(end, here, strict=True))
        for end in (ends[0], ends[-1])
    ]
    across = [("A", 5 * at, *place) for at, place in enumerate(inner)]
    assert haversine_km(*inner[0], *inner[1]) * 3600 / 5 > 1000, (
        "as fast as no bus, within one cell"
    )
    assert set(speeds_of(across).values()) == {65.0}


def test_a_plate_and_time_counts_once_whichever_came_first():
    rows = [*going("A", [0, 20, 40], 36), ("A", 20, 52.3, 21.3), ("A", 20, 52.3, 21.2)]
    expected = with_speeds(*slot_of(rows), RULES, HEXAGONS)
    assert expected.repeats == 2 and expected.time.tolist() == sorted(set(expected.time.tolist()))
    for seed in range(20):
        order = np.random.default_rng(seed).permutation(len(rows))
        again = with_speeds(*slot_of([rows[at] for at in order]), RULES, HEXAGONS)
        assert again.speed.tolist() == expected.speed.tolist() and again.repeats == 2


def fleet(seed, plates=30):
    """Rows of plates that wander, some with gaps, some twice."""
    dice = np.random.default_rng(seed)
    rows = []
    for plate in range(plates):
        seconds = np.cumsum(dice.choice([1, 4, 5, 10, 30, 299, 301], 40))
        lat = 52.2 + np.cumsum(dice.normal(0, 0.002, 40))
        lon = 21.0 + np.cumsum(dice.normal(0, 0.002, 40))
        rows += [(f"P{plate}", int(s), float(a), float(o)) for s, a, o in zip(seconds, lat, lon, strict=True)
                 if s < 3600]  # fmt: skip
    return rows


def values_of(pings):
    """The samples of each (cell, plate)."""
    counts, values = tabulate(pings)
    return {
        (int(counts.cells[hat]), counts.plates[counts.plate[row]]): values.samples_of(
            slice(row, row + 1)
        ).tolist()
        for hat, rows in enumerate(counts.each_rows())
        for row in range(rows.start, rows.stop)
    }


def test_a_plates_speeds_are_the_same_bytes_whoever_else_is_there():
    """In any order, with any other plates, in any part of the arrays: also to the last bit."""
    rows = fleet(5)
    whole = values_of(with_speeds(*slot_of(rows), RULES, HEXAGONS))
    for seed in range(30):
        dice = np.random.default_rng(seed)
        some = set(
            dice.choice(
                [f"P{plate}" for plate in range(30)], dice.integers(1, 30), replace=False
            ).tolist()
        )
        part = [rows[at] for at in dice.permutation(len(rows)) if rows[at][0] in some]
        found = values_of(with_speeds(*slot_of(part), RULES, HEXAGONS))
        assert found == {key: one for key, one in whole.items() if key[1].decode() in some}


def test_windows_close_slots_with_speeds_by_movement_however_the_log_is_cut():
    settings = load(None, ["speed.from=movement", "hat.timezone=UTC"], {})
    rows = sorted(fleet(8), key=lambda row: row[1])
    expected = values_of(with_speeds(*slot_of(rows), settings.movement_rules, HEXAGONS))
    line = '{{"license_plate":"{}","observationDateTime":"2024-01-02T00:{:02}:{:02}Z",'
    line += '"location":{{"coordinates":[{},{}]}}}}'
    messages = [
        line.format(plate, s // 60, s % 60, lon, lat).encode() for plate, s, lat, lon in rows
    ]
    rules = replace(settings.window_rules, grace_ms=HOUR)
    for size in (len(rows), 97):
        windows = Windows(rules, str.encode)
        for at in range(0, len(messages), size):
            pings, refusals = settings.decoder.decode(messages[at : at + size])
            assert not refusals, "a ping without a speed is one"
            start, end = settings.calendar.slots.place(pings.time_ms)
            cells = Hexagons(7).cells_of(pings.lat, pings.lon)
            assert windows.push(Frame(pings, cells, start, end)) == ([], [])
        (closed,) = windows.flush()
        assert values_of(closed) == expected
