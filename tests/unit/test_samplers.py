"""Each sampler draws exactly what it says, from the same bits the same on every machine."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy import stats

from udp_stream.mechanisms import samplers
from udp_stream.mechanisms.noise import DIVISOR_MAX, SCALE_MAX
from udp_stream.mechanisms.samplers import (
    discrete_gaussian,
    discrete_laplace,
    discrete_radial_laplace,
    radial_scale_max,
)
from udp_stream.testing import seeded_bits


class Sampler(NamedTuple):
    """Draws as vectors; how likely a vector is by its length over the scale, but for a factor; the
    exact distribution is held at these scales t/s; the largest t; the law of lengths at large ones."""

    draw: Callable[..., Any]
    dimensions: int
    weight: Callable[[Any], Any]
    scales: tuple[tuple[int, int], ...]
    largest: int
    law: tuple[Any, ...]


def on_a_line(draw):
    return lambda bits, t, s=1: draw(bits, np.asarray(t), s)[:, None]


def radial(dimensions):
    def draw(bits, t, s=1):
        return discrete_radial_laplace(bits, np.asarray(t), s, dimensions)

    return draw


def falling(length):
    return np.exp(-length)


def normal(length):
    return np.exp(-(length**2) / 2)


SAMPLERS = {
    "laplace": Sampler(
        on_a_line(discrete_laplace), 1, falling,
        ((1, 1), (3, 2), (1, 3), (8, 1), (100, 7), (4096, 1000)), SCALE_MAX, ("expon",),
    ),
    "gaussian": Sampler(
        on_a_line(discrete_gaussian), 1, normal,
        ((1, 1), (3, 2), (1, 3), (2, 5), (8, 1), (100, 7), (4096, 1000), (77_777, 65_536)), SCALE_MAX, ("halfnorm",),
    ),
    "radial 1": Sampler(radial(1), 1, falling, ((2, 1),), radial_scale_max(1), ("gamma", (1,))),
    "radial 2": Sampler(
        radial(2), 2, falling, ((1, 1), (3, 2), (1, 3), (7, 1)), radial_scale_max(2), ("gamma", (2,))
    ),
    "radial 3": Sampler(radial(3), 3, falling, ((3, 1),), radial_scale_max(3), ("gamma", (3,))),
    "radial 6": Sampler(radial(6), 6, falling, (), radial_scale_max(6), ("gamma", (6,))),
}  # fmt: skip
MANY_T = np.tile([1, 3, 2**25, 999_983, 65_537, 2**20], 300)
MANY_S = np.tile([1, 2, 1, 1, 65_536, 7], 300)


def distribution(sampler, scale):
    """Probabilities of all lattice vectors that are not too long, and the longest's entries."""
    reach = int({1: 34, 2: 24, 3: 14}[sampler.dimensions] * scale) + 9
    axes = np.meshgrid(
        *[np.arange(-reach, reach + 1)] * sampler.dimensions, indexing="ij", sparse=True
    )
    weight = sampler.weight(np.sqrt(sum(axis.astype(float) ** 2 for axis in axes)) / scale)
    return weight / weight.sum(), reach


def chi_square_p(sampler, vectors, scale):
    expected, reach = distribution(sampler, scale)
    expected = expected * len(vectors)
    inside = (np.abs(vectors) <= reach).all(axis=1)
    observed = np.zeros(expected.shape)
    np.add.at(observed, tuple(vectors[inside].T + reach), 1)
    big = expected >= 5
    seen = np.append(observed[big], len(vectors) - observed[big].sum())
    due = np.append(expected[big], expected[~big].sum())
    some = due > 1e-9
    assert not seen[~some].any()
    return float(stats.chisquare(seen[some], due[some] * seen.sum() / due[some].sum()).pvalue)


@pytest.mark.parametrize(
    ("name", "t", "s"), [(name, *scale) for name, one in SAMPLERS.items() for scale in one.scales]
)
def test_it_has_its_exact_distribution_and_the_test_has_power(name, t, s):
    sampler = SAMPLERS[name]
    runs = 25_000 if name.startswith("radial") else 60_000
    draws = sampler.draw(seeded_bits(f"{name}/{t}/{s}"), np.full(runs, t), s)
    assert chi_square_p(sampler, draws, t / s) > 1e-6
    for tenths in (7, 13):  # the same test rejects a scale that is 30 % off
        over, under = (t * tenths, s * 10) if s * 10 <= DIVISOR_MAX else (t * tenths // 10, s)
        wrong = sampler.draw(seeded_bits(f"off/{t}/{s}"), np.full(runs, over), under)
        assert chi_square_p(sampler, wrong, t / s) < 1e-6


@pytest.mark.parametrize("name", SAMPLERS)
def test_at_large_scales_lengths_have_their_law_and_directions_are_even(name):
    sampler = SAMPLERS[name]
    runs = 10_000 if name.startswith("radial") else 50_000
    draws = sampler.draw(seeded_bits(5), np.full(runs, sampler.largest)) / sampler.largest
    lengths = np.linalg.norm(draws, axis=1)
    assert stats.kstest(lengths, *sampler.law).pvalue > 1e-6
    assert stats.kstest(lengths / 0.7, *sampler.law).pvalue < 1e-6
    assert np.abs((draws / lengths[:, None]).mean(axis=0)).max() < 5 / math.sqrt(lengths.size)
    if sampler.dimensions == 2:
        turn = np.arctan2(*draws.T) / (2 * math.pi) + 0.5
        assert stats.kstest(turn, "uniform").pvalue > 1e-4


@pytest.mark.parametrize("name", ["laplace", "gaussian", "radial 2"])
def test_every_draw_has_its_own_scale(name):
    sampler, scales = SAMPLERS[name], [(1, 1), (10, 1), (3, 2), (40, 1)]
    t, s = np.tile(scales, (20_000, 1)).T
    draws = sampler.draw(seeded_bits(6), t, s)
    lengths = np.linalg.norm(draws, axis=1).reshape(-1, len(scales)).mean(axis=0)
    for found, (over, under) in zip(lengths.tolist(), scales, strict=True):
        exact, reach = distribution(sampler, over / under)
        axes = np.meshgrid(*[np.arange(-reach, reach + 1)] * sampler.dimensions, sparse=True)
        assert found == pytest.approx((exact * np.sqrt(sum(x * x for x in axes))).sum(), rel=0.03)


@pytest.mark.parametrize("name", ["laplace", "gaussian", "radial 2"])
def test_more_than_one_chunk_is_no_other_distribution(name, limits):
    limits(samplers, _CHUNK=5000, _RADIAL_CHUNK=5000)
    sampler = SAMPLERS[name]
    draws = sampler.draw(seeded_bits(7), np.full(30_003, 4))
    assert len(draws) == 30_003 and chi_square_p(sampler, draws, 4.0) > 1e-6


@pytest.mark.parametrize("name", ["laplace", "gaussian", "radial 2"])
def test_a_scale_out_of_range_is_refused_with_the_rule(name):
    sampler = SAMPLERS[name]
    for t, s in ((0, 1), (sampler.largest + 1, 1), (1, 0), (1, DIVISOR_MAX + 1)):
        if name != "laplace" or s <= DIVISOR_MAX:
            with pytest.raises(ValueError, match="expected 1 <= t"):
                sampler.draw(seeded_bits(0), np.array([t]), s)


class Counted:
    """Seeded bits, and how many bytes were taken."""

    def __init__(self):
        self.bits, self.taken = seeded_bits(11), 0

    def __call__(self, size):
        self.taken += size
        return self.bits(size)


@pytest.mark.parametrize("name", ["gaussian", "radial 2"])
def test_what_the_filter_decides_integers_decide_alike(name, monkeypatch, limits):
    """With a margin beyond all numbers nothing is left to the filter: the same draws, from the same
    bits."""
    draw, filtered, exact = SAMPLERS[name].draw, Counted(), Counted()
    draws = draw(filtered, MANY_T, MANY_S)
    asked = []
    for decide in ("below_exp_minus", "_decided"):
        honest = getattr(samplers, decide)
        monkeypatch.setattr(
            samplers, decide, lambda *of, honest=honest: asked.append(1) or honest(*of)
        )
    limits(samplers, MARGIN=2.0)
    assert np.array_equal(draw(exact, MANY_T, MANY_S), draws)
    assert exact.taken == filtered.taken and len(asked) > len(draws)


@pytest.mark.parametrize("name", ["gaussian", "radial 2"])
def test_another_machines_rounding_changes_neither_draws_nor_what_bits_they_take(name, planted):
    draw, ours, theirs = SAMPLERS[name].draw, Counted(), Counted()
    draws = draw(ours, MANY_T, MANY_S)
    exp_minus, dice = samplers._exp_minus, np.random.default_rng(1)
    planted(
        samplers,
        _exp_minus=lambda g: exp_minus(g) + samplers.MARGIN * dice.uniform(-0.9, 0.9, g.size),
    )
    assert np.array_equal(draw(theirs, MANY_T, MANY_S), draws) and theirs.taken == ours.taken
