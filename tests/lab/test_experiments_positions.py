"""Experiments on queries: rows follow from the seed, baselines save nothing, findings follow from
the rows."""

import dataclasses

import numpy as np
import pytest

from lab.data import DataSet, Images, Setup, Trajectories
from lab.experiments import ON_POSITIONS
from lab.queries import allowance
from tests.forms import long_but, soaked
from tests.lab.test_experiments import rows_of as all_rows_of
from udp_stream.base.errors import UsageError
from udp_stream.mechanisms.base import Range
from udp_stream.testing import seeded_bits


def a_feed(plates=30, seed=1):
    """Plates that move about for five hours, a position every five minutes."""
    rng = np.random.default_rng(seed)
    times = np.arange(0, 5 * 3_600_000, 300_000)
    where = rng.integers(-60_000, 60_000, (plates, 1, 2)) + rng.integers(
        -4000, 4000, (plates, times.size, 2)
    )
    plate = np.repeat(np.arange(plates), times.size)
    return Trajectories("town", plate, np.tile(times, plates), where.reshape(-1, 2))


def setup_of(seed=1, repetitions=2):
    data = DataSet("town", True, Range(0, 65 * 4096), (), positions=a_feed())
    return Setup((data,), repetitions, 3, seed, lambda name: seeded_bits(f"{seed}/{name}"))


@pytest.fixture(autouse=True)
def _little_noise_at_once(limits):
    limits("lab.queries", DRAWN_AT_ONCE=1000)


def rows_of(name, setup, jobs=3):
    return all_rows_of(ON_POSITIONS[name], setup, jobs)


LONG = "multi-query", "savings-knn"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=pytest.mark.soak
            if name in LONG
            else ()
            if name == "threshold"
            else pytest.mark.long,
        )
        for name in ON_POSITIONS
    ],
)
def test_rows_follow_from_the_seed(name):
    jobs, repetitions = 1, 8 if name == "threshold" else 2
    first, again, other = (rows_of(name, setup_of(seed, repetitions), jobs) for seed in (1, 1, 2))
    assert first == again != other and len(first) >= 2


@pytest.mark.parametrize(
    "name",
    [
        *long_but(["threshold"], ["savings-range", "savings-kde", "threshold"]),
        *soaked(["savings-knn"]),
    ],
)
def test_a_baseline_saves_nothing_and_elimination_something(name):
    rows = [row for row in rows_of(name, setup_of(repetitions=2), 2) if not row.beside]
    assert all(row.saved_mean == 0 for row in rows if row.split == "BM")
    assert max(row.saved_mean for row in rows) > (0.2 if name != "threshold" else 0.02)
    assert all(
        row.error_25 <= row.error_75 and 0 <= row.saved_25 <= row.saved_75 <= 1 for row in rows
    )


def test_counts_and_densities_are_also_asked_of_drawn_points_without_any_feed(limits):
    limits("lab.queries", CROWDS=(60,))
    setup = dataclasses.replace(setup_of(repetitions=1), data=())
    outcome = ON_POSITIONS["savings-kde"].run(setup)
    of_ways = outcome.tables["savings-kde"]
    assert {row.data for row in of_ways} == {"drawn, 60 points"} and len(of_ways) == 9 * 8
    assert {row.split for row in of_ways if row.saved_mean == 0} == {"BM"}
    agree = {one.claim for one in outcome.findings if one.agrees}
    assert {"more-rounds", "savings-grow", "savings-fall"} <= agree


def test_savings_are_handed_on_and_never_more_than_there_is():
    left = 100.0
    for query in range(1, 9):
        amount = allowance(left, query, 8, 100.0)
        assert 100 / 8 <= amount <= left + 1e-9
        left -= amount * (0.3 if query < 8 else 1.0)
    assert 0 <= left < 1e-9


def test_many_queries_on_one_budget_are_set_beside_even_parts_and_handed_on_ones(limits):
    limits("lab.queries", QUERIES=(2, 3), QUERIES_THEIRS=3)
    outcome = ON_POSITIONS["multi-query"].run(setup_of(repetitions=1))
    rows, pairs = outcome.tables["multi-query"], outcome.tables["multi-query-pairs"]
    errors = {(r.parameter, r.rho, r.privatisation, r.split): r.error_mean for r in rows}
    for pair in pairs:
        base, _, how = pair.second.partition(", ")
        of_both = (errors[pair.parameter, pair.rho, how, method] for method in (base, pair.first))
        assert [pair.second_error, pair.first_error] == list(of_both)
        assert pair.less_by == pytest.approx(pair.second_error - pair.first_error)
    assert pairs
    assert [finding.values["base"] for finding in outcome.findings] == ["BM"] * 3 + [
        "BM handed on"
    ] * 3


def test_positions_are_the_latest_that_are_fresh():
    feed = a_feed()
    for moment in (1, 300_001, 3_600_000, 30_000_000):
        plates, where = feed.at(moment)
        for plate, place in zip(plates, where, strict=True):
            own = np.flatnonzero((feed.plate == plate) & (feed.time_ms < moment))
            assert (
                feed.time_ms[own[-1]] >= moment - 900_000 and (feed.where[own[-1]] == place).all()
            )
        assert plates.size == (30 if moment < 30_000_000 else 0)
    with pytest.raises(UsageError, match="which at least 10 plates"):
        dataclasses.replace(feed, plate=feed.plate * 0).moments(3, np.random.default_rng(1))


def test_the_papers_sizes_are_asked_for_and_a_users_own_data_taken(limits):
    """60,000 images and 9,740 taxis, here of fewer; images of a user in place of drawn clusters."""
    few = {"POINTS_THEIRS": 40, "CROWDS": (40,), "MULTI_FULL": 1, "QUERIES": (7,), "POINTS": 20}
    limits("lab.queries", DIMENSIONS=16, QUERIES_THEIRS=7, **few)
    full = dataclasses.replace(setup_of(repetitions=3), data=(), full=True)
    knn = [row for row in rows_of("savings-knn", full, None) if not row.beside]
    assert {row.repetitions for row in knn} == {1} and {row.data for row in knn} == {
        "clusters in 784 dimensions"
    }
    asked = {(row.parameter, row.split) for row in knn if row.privatisation == "point"}
    assert asked == {(k, "BM") for k in (1.0, 5.0, 20.0)} | {(5.0, "c4")}
    multi = [row for row in rows_of("multi-query", full, None) if not row.beside]
    assert {(row.data, row.repetitions) for row in multi} == {("drawn, 40 points", 1)}
    pixels = np.random.default_rng(3).integers(0, 256, (40, 16)).astype(np.uint8)
    own = dataclasses.replace(
        setup_of(repetitions=1), data=(), images=Images("digits", pixels[:30], pixels[30:])
    )
    assert {row.data for row in rows_of("savings-knn", own, 2)} == {"digits"}
