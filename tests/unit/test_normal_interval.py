"""The interval of a mean under Gaussian noise misses each truth in [0, U] with probability 0.05,
and never more."""

import math

import numpy as np
import pytest
from scipy import stats

from udp_stream.mechanisms.noise import DiscreteGaussian, interval95

SIZE = math.sqrt(2 / math.pi)
"""Of noise with deviation one."""


def interval(x, width, size=SIZE, spread=0.0):
    return interval95(DiscreteGaussian(), x, size, spread, width)


def last_held(truth, width):
    """The largest x, in deviations, whose interval holds the truth: intervals move up with x."""
    low, high = truth, truth + 40 + 20 * width
    assert interval(low, width)[0] <= truth
    if interval(high, width)[0] <= truth:
        return math.inf
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if interval(middle, width)[0] <= truth else (low, middle)
    return low


@pytest.mark.parametrize("width", [1e-3, 0.1, 1.0, 2.5, 3.9, 4.5, 10.0, 1e3, 1e6])
def test_every_truth_is_missed_with_probability_5_percent_and_never_more(width):
    """By exact integration: x between the two ends at which the truth enters and leaves the
    interval."""
    shares = [0, 1e-3, 0.01, 0.1, 0.25, 0.4, 0.5, 0.7, 0.9, 0.999, 1]
    for truth in {width * share for share in shares} | {
        min(one, width) for one in (0.3, 1.0, 1.7, 2.0, 3.0, 4.0)
    }:
        above = last_held(truth, width) - truth
        below = last_held(width - truth, width) - (width - truth)  # by symmetry
        held = stats.norm.cdf(above) - stats.norm.cdf(-below)
        assert held > 0.95 - 1e-9, (width, truth)
        assert held < 0.95 + 1e-6 + 1e-7 / width, (width, truth)


@pytest.mark.parametrize("width", [0.01, 1.0, 3.0, 5.0, 100.0])
def test_no_interval_is_empty_or_beyond_the_range_and_ends_move_up_with_the_value(width):
    found = [interval(x, width) for x in np.linspace(-30 - width, 30 + 2 * width, 400).tolist()]
    assert all(0 <= low < high <= width for low, high in found)
    lows, highs = np.array(found).T
    assert (np.diff(lows) >= -1e-6).all() and (np.diff(highs) >= -1e-6).all()
    x = np.linspace(0, width, 50)
    assert all(
        low <= one <= high
        for one, (low, high) in ((one, interval(one, width)) for one in x.tolist())
    )


def test_ends_are_those_of_feldman_and_cousins():
    """Their Table X: 95 % intervals of a mean that is not negative, for a measured x0 in
    deviations."""
    table = {
        -3.0: (0, 0.42),
        -1.0: (0, 1.10),
        0.0: (0, 1.96),
        1.0: (0, 2.96),
        2.0: (0.35, 3.96),
        3.0: (1.14, 4.96),
    }
    for x, ends in table.items():
        assert interval(x, 10**6) == pytest.approx(ends, abs=0.01)
