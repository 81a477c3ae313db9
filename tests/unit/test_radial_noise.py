"""Radial Laplace noise has exactly the distribution it says, from the same bits the same on every
machine."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from udp_stream.mechanisms import samplers as radial
from udp_stream.mechanisms.samplers import discrete_radial_laplace, radial_scale_max
from udp_stream.testing import seeded_bits

SCALES = [(1, 1, 2), (3, 2, 2), (1, 3, 2), (7, 1, 2), (3, 1, 3), (2, 1, 1)]


def distribution(scale, dimensions):
    """Probabilities of all lattice vectors that are not too long, and these vectors' places in the
    grid."""
    reach = int({1: 30, 2: 24, 3: 14}[dimensions] * scale) + 3
    axes = np.meshgrid(*[np.arange(-reach, reach + 1)] * dimensions, indexing="ij", sparse=True)
    weight = np.exp(-np.sqrt(sum(axis.astype(float) ** 2 for axis in axes)) / scale)
    return weight / weight.sum(), reach


def chi_square_p(vectors, scale):
    expected, reach = distribution(scale, vectors.shape[1])
    expected = expected * len(vectors)
    inside = (np.abs(vectors) <= reach).all(axis=1)
    observed = np.zeros(expected.shape)
    np.add.at(observed, tuple(vectors[inside].T + reach), 1)
    big = expected >= 10
    seen = np.append(observed[big], len(vectors) - observed[big].sum())
    due = np.append(expected[big], expected[~big].sum())
    return float(stats.chisquare(seen[due > 0], due[due > 0] * seen.sum() / due.sum()).pvalue)


@pytest.mark.parametrize(("t", "s", "dimensions"), SCALES)
def test_it_has_its_exact_distribution_and_the_test_has_power(t, s, dimensions):
    draws = discrete_radial_laplace(
        seeded_bits(f"radial/{t}/{s}"), np.full(25_000, t), s, dimensions
    )
    assert chi_square_p(draws, t / s) > 1e-6
    for factor in (7, 13):  # the same test rejects a scale that is 30 % off
        wrong = discrete_radial_laplace(
            seeded_bits("off"), np.full(25_000, t * factor), s * 10, dimensions
        )
        assert chi_square_p(wrong, t / s) < 1e-6


@pytest.mark.parametrize("dimensions", [1, 2, 3, 6])
def test_at_large_scales_lengths_are_gamma_variables_and_directions_are_even(dimensions):
    t = radial_scale_max(dimensions)
    draws = discrete_radial_laplace(seeded_bits(5), np.full(10_000, t), 1, dimensions) / t
    length = np.linalg.norm(draws, axis=1)
    assert stats.kstest(length, "gamma", (dimensions,)).pvalue > 1e-4
    assert stats.kstest(length / 0.7, "gamma", (dimensions,)).pvalue < 1e-6
    if dimensions == 2:
        assert stats.kstest(np.arctan2(*draws.T) / (2 * math.pi) + 0.5, "uniform").pvalue > 1e-4
    else:
        assert abs((draws / length[:, None]).mean(axis=0)).max() < 5 / math.sqrt(10_000)


def test_every_row_has_its_own_scale():
    draws = discrete_radial_laplace(
        seeded_bits(6), np.tile([10, 500, 3], 20_000), np.tile([1, 1, 2], 20_000), 2
    )
    lengths = np.hypot(*draws.T).reshape(-1, 3).mean(axis=0)
    fine, reach = distribution(1.5, 2)
    x = np.arange(-reach, reach + 1)
    exact = (fine * np.hypot(*np.meshgrid(x, x))).sum()
    assert lengths == pytest.approx([20, 1000, exact], rel=0.02)


def test_more_than_one_chunk_is_no_other_distribution(limits):
    limits(radial, _CHUNK=5000)
    draws = discrete_radial_laplace(seeded_bits(7), np.full(12_003, 4), 1, 2)
    assert draws.shape == (12_003, 2) and chi_square_p(draws, 4.0) > 1e-6


class Counted:
    """Seeded bits, and how many bytes were taken."""

    def __init__(self, seed):
        self.bits, self.taken = seeded_bits(seed), 0

    def __call__(self, size):
        self.taken += size
        return self.bits(size)


MANY = np.tile([1, 3, 2**25, 999_983, 65_537, 2**20], 200), np.tile([1, 2, 1, 1, 65_536, 7], 200)


def test_what_the_filter_decides_integers_decide_alike(monkeypatch, limits):
    filtered, exact = Counted(11), Counted(11)
    draws = discrete_radial_laplace(filtered, *MANY, 2)
    asked, decide = [], radial._decided
    limits(radial, MARGIN=2.0)
    monkeypatch.setattr(radial, "_decided", lambda *of: asked.append(1) or decide(*of))
    assert np.array_equal(discrete_radial_laplace(exact, *MANY, 2), draws)
    assert exact.taken == filtered.taken and len(asked) > len(draws)


def test_another_machines_rounding_changes_neither_draws_nor_what_bits_they_take(planted):
    ours, theirs = Counted(12), Counted(12)
    draws = discrete_radial_laplace(ours, *MANY, 2)
    exp_minus, dice = radial._exp_minus, np.random.default_rng(1)
    planted(
        radial, _exp_minus=lambda g: exp_minus(g) + radial.MARGIN * dice.uniform(-0.9, 0.9, g.size)
    )
    assert (
        np.array_equal(discrete_radial_laplace(theirs, *MANY, 2), draws)
        and theirs.taken == ours.taken
    )


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
        (0, 1, 2, "expected 1 <= t"),
        (2**25 + 1, 1, 2, "expected 1 <= t"),
        (1, 0, 2, "1 <= s"),
        (1, 2**17, 2, "1 <= s"),
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
