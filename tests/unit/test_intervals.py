"""Intervals of smoothed estimates: what they hold of a fleet's day, how they grow, and that nothing
follows them."""

from datetime import datetime
from functools import cache
from math import exp, sqrt

import numpy as np
import pytest

from benchmarks.forecast_days import changed, day_of_fleet, run
from tests.forms import soaked
from udp_stream.forecast import anomalies
from udp_stream.forecast.anomalies import PosteriorMixture
from udp_stream.release import forecaster as intervals
from udp_stream.release.forecaster import OPEN_ROADS, ends, plates_differ
from udp_stream.sources.fleet import IST, Fleet

MAX_KMH = 65.0


@pytest.fixture(scope="module")
def day():
    return day_of_fleet("a fleet", Fleet(buses=150).columns())


@pytest.fixture(scope="module")
def ran(day):
    return cache(lambda seed: run([day], seed)[0])


@pytest.fixture(scope="module")
def estimated(ran):
    return ran(0)


def held(day, seeds, **constants):
    """Shares over runs that differ in their noise; HATs of one run err together, as they share a
    filter. Lower ends are not wider where no release tells of incidents."""
    with changed(intervals, **constants), changed(anomalies, LOW_UNSEEN=anomalies.LOW):
        return held_in(day, [run([day], seed)[0] for seed in range(seeds)])


def held_in(day, runs):
    return np.mean([(one.low <= day.truth) & (day.truth <= one.high) for one in runs], axis=0)


@pytest.mark.parametrize("seeds", [1, *soaked([8])])
def test_they_hold_95_percent_of_a_fleet_that_pings_twelve_times_as_often_as_the_days_of_the_fit(
    day, ran, seeds
):
    shares = held_in(day, map(ran, range(seeds)))
    assert shares.size > 900 and 0.93 <= shares.mean() <= 0.995
    for least, most in ((1, 2), (3, 5), (6, 9), (10, 29), (30, 10**9)):
        here = (least <= day.plates) & (day.plates <= most)
        assert shares[here].mean() > 0.92 and here.sum() > 50


@pytest.mark.long
def test_many_plates_make_no_interval_narrower_than_what_clips_hide_of_them():
    rush = Fleet(buses=1000, start=datetime(2024, 1, 8, 8, tzinfo=IST), hours=4)
    day = day_of_fleet("a thousand", rush.columns())
    large = day.plates >= 30
    assert held(day, 2)[large].mean() > 0.93 and large.sum() > 150
    assert held(day, 2, PLATES_ALIKE=0.0)[large].mean() < 0.82


def test_released_means_lie_in_their_own_intervals_too(day, estimated):
    inside = (estimated.mean_low <= day.truth) & (day.truth <= estimated.mean_high)
    assert 0.92 <= inside[estimated.measured].mean() <= 0.97 and estimated.measured.sum() > 50


@pytest.mark.parametrize(
    ("constants", "least", "most", "seeds", "plates"),
    [
        pytest.param({"TAIL": 0.7 * intervals.TAIL}, 0.85, 0.925, 4, 10**9, marks=pytest.mark.long),
        pytest.param({"TAIL": 1.3 * intervals.TAIL}, 0.985, 1.0, 4, 10**9, marks=pytest.mark.soak),
        pytest.param({"PLATES_DIFFER": 0.0}, 0.75, 0.88, 4, 2, marks=pytest.mark.soak),
        ({"PLATES_DIFFER": 0.0}, 0.75, 0.88, 1, 2),
    ],
    ids=["narrower", "wider", "plates alike", "plates alike, once"],
)
def test_other_constants_would_not(day, constants, least, most, seeds, plates):
    """Of HATs of at most so many plates."""
    assert least < held(day, seeds, **constants)[day.plates <= plates].mean() < most


def test_values_lie_in_them_and_they_in_what_a_speed_can_be(day, estimated):
    assert (estimated.low >= 0).all() and (estimated.high <= MAX_KMH).all()
    assert (estimated.low <= estimated.value).all() and (estimated.value <= estimated.high).all()
    assert estimated.low.min() == 0 and (estimated.low < estimated.high).all()


def test_more_plates_and_a_release_of_its_own_make_them_narrower():
    gains = np.linspace(0, 1, 5)
    assert (np.diff(plates_differ(np.arange(1, 50), np.zeros(49))) < 0).all()
    assert (np.diff(plates_differ(np.full(5, 3), gains)) < 0).all()
    assert plates_differ(np.array([0]), np.zeros(1)) == plates_differ(np.array([1]), np.zeros(1))


def test_news_widens_an_interval_the_less_the_more_of_it_a_release_tells():
    """Where 20 km/h are forecast news has a variance of 100; by hand, of what a release leaves of it."""

    def above_and_below(left, neighbours_dwell=0.0):
        columns = (1 - 1e-9, 20.0, 1e-6, 20.0, left)
        posterior = PosteriorMixture(*(np.array([one]) for one in columns))
        features = np.full((1, 6), neighbours_dwell)
        (low,), (high,) = ends(posterior, np.zeros(1), np.array([10**9]), features)
        return high - 20, 20 - low

    for all_of_it, quarter in zip(above_and_below(100.0), above_and_below(25.0), strict=True):
        assert all_of_it / quarter == pytest.approx(sqrt(100 * 3 / (25 * 1.5)), rel=0.01)
    for left, told in ((100.0, 1.0), (25.0, 0.25)):
        farther = above_and_below(left, -2.0)[0] / above_and_below(left)[0]
        assert farther == pytest.approx(exp(OPEN_ROADS * 2 * told), rel=0.01)
