"""Each plate's latest position at a moment: beside a search through all pings, whole, in pieces,
and in any order."""

from datetime import UTC
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from udp_stream.pings.decode import Pings
from udp_stream.windows.positions import LatestPositions
from udp_stream.windows.tables import SlotGrid

MINUTE = 60_000
AGE, EVERY, GRACE = 20 * MINUTE, 15 * 60, 2 * MINUTE


def latest(age_ms=AGE, grace_ms=GRACE, every=EVERY, zone=UTC):
    return LatestPositions(SlotGrid(every, zone), age_ms, grace_ms, str.encode)


def pings_of(rows):
    """Rows of plate, time in ms, latitude, longitude."""
    plates = tuple(dict.fromkeys(row[0] for row in rows))
    none = np.zeros(len(rows))
    columns = (np.array([row[i] for row in rows]) for i in (1, 2, 3))
    plate = np.array([plates.index(row[0]) for row in rows], np.uint32)
    return Pings(plates, plate, *columns, none, none, none)


def told(moments):
    return {
        m.time_ms: dict(
            zip(m.plates, zip(m.lat.tolist(), m.lon.tolist(), strict=True), strict=True)
        )
        for m in moments
    }


def fed(positions, rows, watermarks=None, size=7):
    found = []
    for i in range(0, len(rows), size):
        part = rows[i : i + size]
        newest = max(row[1] for row in rows[: i + size])
        found += positions.push(
            pings_of(part), np.arange(len(part)), newest if watermarks is None else watermarks
        )
    return found + positions.flush()


def a_log(seed, n=400, plates=9, minutes=150, lag=0):
    rng = np.random.default_rng(seed)
    times = np.sort(rng.integers(0, minutes * MINUTE, n)) - rng.integers(0, lag + 1, n)
    times = np.where(
        rng.random(n) < 0.2, times // (5 * MINUTE) * 5 * MINUTE, times
    )  # some of them at boundaries
    places = rng.integers(0, 9, (2, n)).astype(float).tolist()
    names = [f"plate{p}" for p in rng.integers(0, plates, n)]
    return list(zip(names, np.maximum(times, 0).tolist(), *places, strict=True))


def searched(rows, age=AGE):
    """What every moment holds, by looking at every ping: of several of one plate and time the first
    in the log."""
    moments = {}
    for moment in range(EVERY * 1000, max(row[1] for row in rows) + EVERY * 1000 + 1, EVERY * 1000):
        held = {}
        for plate, time, lat, lon in rows:
            if moment - age <= time < moment and time > held.get(plate.encode(), (-1, 0, 0))[0]:
                held[plate.encode()] = time, lat, lon
        if held:
            moments[moment] = {plate: (lat, lon) for plate, (_, lat, lon) in sorted(held.items())}
    return moments


@pytest.mark.parametrize("age", [MINUTE, 10 * MINUTE, 40 * MINUTE])
@pytest.mark.parametrize("seed", range(4))
def test_a_moment_holds_each_plates_latest_position_within_the_age(seed, age):
    rows = a_log(seed)
    assert told(fed(latest(age), rows)) == searched(rows, age)


def test_how_the_log_is_cut_changes_nothing_and_neither_does_the_order_within_the_grace():
    rows = a_log(9, lag=MINUTE)
    expected = searched(rows)
    for size in (1, 13, 400):
        assert told(fed(latest(), rows, size=size)) == expected
    shuffled = [rows[i] for i in np.random.default_rng(1).permutation(len(rows))]
    assert told(fed(latest(), shuffled, watermarks=0, size=400)) == searched(shuffled)
    once = list({row[:2]: row for row in rows}.values())  # no plate twice at one time
    shuffled = [once[i] for i in np.random.default_rng(1).permutation(len(once))]
    assert told(fed(latest(), shuffled, watermarks=0, size=400)) == searched(once)


def test_which_ping_of_one_plate_and_time_counts_follows_from_no_position():
    first, second = ("A", MINUTE, 30.27, -97.70), ("A", MINUTE, 30.269999, -97.80)
    for north in (0.0, 2e-6, 1.0, -1.0):
        moved = (*second[:2], second[2] + north, second[3])
        for log in ([first, moved], [first, moved, first, moved], [first, first, moved]):
            for size in (1, 2, 7):
                assert told(fed(latest(), log, size=size)) == {15 * MINUTE: {b"A": (30.27, -97.70)}}
                assert told(fed(latest(), log[::-1], size=size))[15 * MINUTE][b"A"] == log[-1][2:]


@pytest.mark.parametrize("every_minutes", [5, 15, 60])
@pytest.mark.parametrize("age_minutes", [1, 10, 20, 90])
def test_no_moment_has_a_position_that_is_older_than_the_age(every_minutes, age_minutes):
    positions, found = latest(age_minutes * MINUTE, every=60 * every_minutes), []
    rows = [
        ("A", 7 * MINUTE, 1.0, 1.0),
        *[("B", minute * MINUTE, 2.0, 2.0) for minute in range(240)],
    ]
    for row in sorted(rows, key=lambda row: row[1]):
        found += positions.push(pings_of([row]), np.array([0]), row[1])
    for moment in [*found, *positions.flush()]:
        assert (moment.seen_ms >= moment.time_ms - age_minutes * MINUTE).all()
        is_young = 7 * MINUTE < moment.time_ms <= (7 + age_minutes) * MINUTE
        assert (b"A" in moment.plates) == is_young


def test_what_comes_after_the_grace_is_not_in_its_moment_but_may_be_in_the_next():
    positions = latest()
    first = positions.push(pings_of([("A", 14 * MINUTE, 1.0, 1.0)]), np.array([0]), 14 * MINUTE)
    (moment,) = positions.push(pings_of([("A", 17 * MINUTE, 2.0, 2.0)]), np.array([0]), 17 * MINUTE)
    assert first == [] and told([moment]) == {15 * MINUTE: {b"A": (1.0, 1.0)}}
    late = positions.push(pings_of([("B", 14 * MINUTE, 3.0, 3.0)]), np.array([0]), 17 * MINUTE)
    assert late == []  # the moment has been: it is not told twice
    assert told(positions.flush()) == {30 * MINUTE: {b"A": (2.0, 2.0), b"B": (3.0, 3.0)}}


def test_moments_follow_the_wall_clock_of_the_zone():
    """Kolkata's quarters are UTC's; its hours lie half an hour beside them."""
    positions = latest(every=3600, zone=ZoneInfo("Asia/Kolkata"))
    positions.push(pings_of([("A", 10 * MINUTE, 1.0, 1.0)]), np.array([0]), 10 * MINUTE)
    assert [moment.time_ms for moment in positions.flush()] == [30 * MINUTE]


def test_plates_that_are_gone_are_forgotten(limits):
    limits("udp_stream.windows.positions", _NAMES_SPARE=2)
    rows = [(f"plate{i}", i * MINUTE, 1.0, float(i)) for i in range(200)]
    positions = latest()
    assert told(fed(positions, rows)) == searched(rows)
    assert len(positions._codes) < 60


def test_repeats_are_dropped_while_they_wait_and_nothing_else(limits):
    limits("udp_stream.windows.positions", _ROWS_MIN=10)
    rows = a_log(3)
    positions = latest()
    assert told(fed(positions, rows, size=5)) == searched(rows)
    assert positions._rows.size <= 9 * 2
