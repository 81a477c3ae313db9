"""Intervals of smoothed estimates: what they hold of a fleet's day, how they grow, and that nothing follows them."""

import numpy as np
import pytest

from benchmarks.forecast_days import changed, day_of_fleet, run
from tests.forms import long_but
from udp_stream.release import forecaster as intervals
from udp_stream.release.forecaster import NEIGHBOURS_DWELL, ends, of_few_pings, plates_differ
from udp_stream.trial.fleet import Fleet

MAX_KMH = 65.0


@pytest.fixture(scope="module")
def day():
    return day_of_fleet("a fleet", Fleet(buses=150).columns())


@pytest.fixture(scope="module")
def estimated(day):
    return run([day], 0)[0]


def held(day, seeds, **constants):
    """Shares over runs that differ in their noise; HATs of one run err together, as they share a filter."""
    with changed(intervals, **constants):
        runs = [run([day], seed)[0] for seed in range(seeds)]
    return np.mean([(one.low <= day.truth) & (day.truth <= one.high) for one in runs], axis=0)


@pytest.mark.parametrize("seeds", long_but([4], [4, 8]))
def test_they_hold_95_percent_of_a_fleet_that_pings_twelve_times_as_often_as_the_days_they_were_fitted_on(day, seeds):
    shares = held(day, seeds)
    assert shares.size > 900 and 0.93 <= shares.mean() <= 0.97
    for least, most in ((1, 2), (3, 5), (6, 9), (10, 29), (30, 10**9)):
        here = (least <= day.plates) & (day.plates <= most)
        assert shares[here].mean() > 0.88 and here.sum() > 50


def test_released_means_lie_in_their_own_intervals_too(day, estimated):
    inside = (estimated.mean_low <= day.truth) & (day.truth <= estimated.mean_high)
    assert 0.92 <= inside[estimated.measured].mean() <= 0.97 and estimated.measured.sum() > 50


@pytest.mark.parametrize(
    ("constants", "least", "most", "seeds"),
    [
        pytest.param({"TAIL": 0.7 * intervals.TAIL}, 0.85, 0.91, 4, marks=pytest.mark.long),
        pytest.param({"TAIL": 1.3 * intervals.TAIL}, 0.97, 1.0, 4, marks=pytest.mark.long),
        pytest.param({"PLATES_DIFFER": 0.0}, 0.75, 0.9, 4, marks=pytest.mark.long),
        ({"PLATES_DIFFER": 0.0}, 0.75, 0.9, 2),
    ],
    ids=["narrower", "wider", "plates alike", "plates alike, twice"],
)
def test_other_constants_would_not(day, constants, least, most, seeds):
    assert least < held(day, seeds, **constants).mean() < most


def test_values_lie_in_them_and_they_in_what_a_speed_can_be(day, estimated):
    assert (estimated.low >= 0).all() and (estimated.high <= MAX_KMH).all()
    assert (estimated.low <= estimated.value).all() and (estimated.value <= estimated.high).all()
    assert estimated.low.min() == 0 and (estimated.low < estimated.high).all()


def test_values_and_expected_errors_do_not_follow_the_intervals(day, estimated):
    with changed(intervals, TAIL=3.0, PLATES_DIFFER=7.0, OPEN_ROADS=1.0, FEW_PINGS=0.9):
        other = run([day], 0)[0]
    assert (other.value == estimated.value).all() and (other.expected == estimated.expected).all()
    assert (other.mean_low == estimated.mean_low)[estimated.measured].all()
    assert (other.high != estimated.high).mean() > 0.9


def test_a_guess_by_counts_is_said_to_err_by_what_its_estimate_tells(day, estimated):
    """Not by what was open before the releases: by its distance from the estimate, and by that one's own error."""
    apart = np.abs(estimated.guess - estimated.value)
    assert (estimated.guess_expected >= np.maximum(apart, estimated.expected) - 0.01).all()
    assert (estimated.guess_expected <= apart + estimated.expected + 0.01).all() and (apart > 5).any()
    errs = [(estimated.expected, estimated.value), (estimated.guess_expected, estimated.guess)]
    ratios = [
        np.average(said, weights=day.pings) / np.average(abs(value - day.truth), weights=day.pings)
        for said, value in errs
    ]
    assert ratios[1] == pytest.approx(ratios[0], abs=0.1), ratios


def width(mean=20.0, variance=9.0, neighbours=0.0):
    features = np.zeros((1, 6))
    features[0, NEIGHBOURS_DWELL] = neighbours
    low, high = ends(np.array([mean]), np.array([variance]), features)
    return mean - low.item(), high.item() - mean


def test_more_plates_and_a_release_of_its_own_make_them_narrower():
    gains = np.linspace(0, 1, 5)
    assert (np.diff(plates_differ(np.arange(1, 50), np.zeros(49))) < 0).all()
    assert (np.diff(plates_differ(np.full(5, 3), gains)) < 0).all()
    assert plates_differ(np.array([0]), np.zeros(1)) == plates_differ(np.array([1]), np.zeros(1))


def test_hats_of_few_pings_get_narrower_ones():
    found = np.sqrt(of_few_pings(np.full(4, 9.0), np.array([1, 2, 5, 1000])))
    assert found[:2].tolist() == pytest.approx([0.7 * 3, 0.85 * 3]) and (np.diff(found) > 0).all()
    assert found[-1] == pytest.approx(3, rel=0.001)


def test_variance_and_speed_make_them_wider_on_both_sides():
    by_variance = np.array([width(variance=variance) for variance in (0.5, 3.0, 40.0, 300.0)])
    by_speed = np.array([width(mean=mean) for mean in (13.0, 20.0, 40.0, 60.0)])
    assert (np.diff(by_variance, axis=0) > 0).all() and (np.diff(by_speed, axis=0) > 0).all()
    assert width(mean=1.0) == pytest.approx(width(mean=10.0))  # slow streets are not known better than slow ones


def test_only_the_upper_end_is_farther_off_where_neighbours_are_crossed_quickly_and_nothing_is_nearer_elsewhere():
    below = [width(neighbours=deviations)[0] for deviations in (-4.0, -1.0, 0.0, 2.0)]
    above = [width(neighbours=deviations)[1] for deviations in (-4.0, -1.0, 0.0, 2.0)]
    assert below == [below[0]] * 4
    assert above[0] > above[1] > above[2] == above[3] == pytest.approx(below[2])
