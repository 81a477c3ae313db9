"""Radial Laplace noise has exactly the distribution it says, from the same bits the same on every
machine."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from udp_stream.mechanisms import samplers as radial
from udp_stream.mechanisms.samplers import discrete_radial_laplace
from udp_stream.testing import seeded_bits


@pytest.mark.parametrize("vector", [(3, 4), (1, 0), (7, 7), (0, 0), (10**8, 3)])
def test_integers_decide_every_first_word_as_the_exponential_says(vector):
    t, s = 5, 2
    wide = radial._root_ceiling(2 * t * t)
    length, absolute = math.hypot(*vector), sum(vector)
    kept = math.exp(-s * (length / t - absolute / wide)) * 2**16
    near = {0, 65_535, *range(max(0, int(kept) - 2), min(65_536, int(kept) + 3))}
    for word in near - {int(kept)}:
        decided = radial._decided(
            lambda size: pytest.fail("no bits are due"), word, list(vector), t, wide, s
        )
        assert decided == (word < kept)


def test_a_word_that_straddles_takes_more_bits_with_the_right_probability():
    t, s, vector = 5, 2, [3, 4]
    wide = radial._root_ceiling(2 * t * t)
    kept = Fraction(math.exp(-s * (5 / t - 7 / wide))) * 2**16
    yes = sum(radial._decided(seeded_bits(i), int(kept), vector, t, wide, s) for i in range(1500))
    assert stats.binomtest(yes, 1500, float(kept - int(kept))).pvalue > 1e-6


@pytest.mark.parametrize(
    ("t", "s", "dimensions", "rule"),
    [
        (1, 1, 0, "expected 1 to 16 dimensions"),
        (1, 1, 17, "expected 1 to 16 dimensions"),
    ],
)
def test_what_is_out_of_range_is_refused_with_the_rule(t, s, dimensions, rule):
    with pytest.raises(ValueError, match=rule):
        discrete_radial_laplace(seeded_bits(0), np.array([t]), s, dimensions)


def test_odds_of_two_positions_are_within_what_their_distance_allows():
    """Exactly, over a grid of outputs: the sum over all outputs is the same for both."""
    for x, other in (((0, 0), (3, 4)), ((0, 0), (1, 0)), ((2, -1), (-5, 9))):
        grid = np.stack(np.meshgrid(np.arange(-60, 61), np.arange(-60, 61)), axis=-1)
        odds = np.linalg.norm(grid - other, axis=-1) - np.linalg.norm(grid - x, axis=-1)
        assert odds.max() == pytest.approx(math.dist(x, other))
