"""A fleet that reports by distance: counts tell the opposite of what the prior takes them for."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.forecast_days import Day, Run, day_of_fleet, run
from udp_stream.trial.fleet import Fleet, FleetColumns, by_distance

METRES = 200.0
SEEDS = 2


@pytest.fixture(scope="module")
def dense() -> FleetColumns:
    return Fleet(buses=60, hours=8, ping_seconds=1).columns()


@pytest.fixture(scope="module")
def day(dense: FleetColumns) -> Day:
    return day_of_fleet("by distance", by_distance(dense, METRES))


@pytest.fixture(scope="module")
def runs(day: Day) -> list[Run]:
    return [run([day], seed)[0] for seed in range(SEEDS)]


def test_a_bus_pings_each_time_it_has_driven_so_far(dense: FleetColumns) -> None:
    sparse = by_distance(dense, METRES)
    bus = np.flatnonzero(dense.plate == 7)
    seconds = np.diff(dense.time_ms[bus], prepend=dense.time_ms[bus][0]) / 1000
    driven = float((dense.speed_kmh[bus] / 3.6 * seconds).sum())
    assert np.count_nonzero(sparse.plate == 7) == 1 + int(driven / METRES)
    assert np.all(np.diff(sparse.time_ms) >= 0)
    moving = sparse.speed_kmh[np.flatnonzero(np.isin(sparse.plate, np.unique(sparse.plate)))]
    assert np.mean(moving == 0) < 0.02  # a bus that stands drives no metre


def test_after_the_first_slots_the_error_is_not_above_the_constant(day: Day, runs: list[Run]) -> None:
    starts = np.array([counts.start_ms for counts, _ in day.slots])
    slot = np.repeat(np.arange(starts.size), [counts.cells.size for counts, _ in day.slots])
    late = slot >= 2
    off = np.mean([(day.pings * np.abs(one.value - day.truth))[late].sum() for one in runs])
    assert off <= 1.03 * (day.pings * np.abs(day.constant - day.truth))[late].sum()


def test_intervals_hold_what_they_promise_where_counts_mislead(day: Day, runs: list[Run]) -> None:
    held = np.mean([(one.low <= day.truth) & (day.truth <= one.high) for one in runs])
    assert held >= 0.93
    expected = np.mean([np.average(one.expected, weights=day.pings) for one in runs])
    actual = np.mean([np.average(np.abs(one.value - day.truth), weights=day.pings) for one in runs])
    assert expected >= 0.85 * actual
