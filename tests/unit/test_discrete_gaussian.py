"""The discrete Gaussian sampler draws exactly what it says, from the same bits the same on every
machine."""

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from udp_stream.mechanisms import samplers as sampler
from udp_stream.mechanisms.noise import DIVISOR_MAX, SCALE_MAX
from udp_stream.mechanisms.samplers import below_exp_minus, discrete_gaussian, exp_minus_floor
from udp_stream.testing import seeded_bits

SCALES = [
    (1, 1),
    (3, 2),
    (1, 3),
    (2, 5),
    (8, 1),
    (100, 7),
    (4096, 1000),
    (77_777, 65_536),
    (40 * 65_536, 65_536),
]


def test_next_to_no_noise_is_drawn_too():
    assert not discrete_gaussian(seeded_bits(1), np.full(1000, 1), DIVISOR_MAX).any()


def test_a_scale_that_is_half_a_percent_off_is_noticed():
    """Of 500,000 draws the deviation is known to a tenth of a percent."""
    sigma, draws = 104_401, 500_000
    deviation = discrete_gaussian(seeded_bits(8), np.full(draws, sigma)).std() / sigma
    assert abs(deviation - 1) < 4.5 / math.sqrt(2 * draws) < 0.005


def exactly_kept(t, s, size):
    """exp(-g) to 60 digits, by the definition."""
    scale = max(1, (2 * t + s) // (2 * s))
    square = Fraction(t * t, s * s)
    g = (size - square / scale) ** 2 / (2 * square)
    with localcontext() as context:
        context.prec = 60
        return (-Decimal(g.numerator) / Decimal(g.denominator)).exp()


@pytest.mark.parametrize(
    ("t", "s"),
    [*SCALES, (SCALE_MAX, 1), (SCALE_MAX, DIVISOR_MAX), (1, DIVISOR_MAX), (2**26 - 1, 3)],
)
def test_the_filter_is_off_by_less_than_its_proof_says(t, s):
    candidates = sampler._Candidates(np.array([t]), np.array([s]))
    sigma = t / s
    sizes = np.unique(
        np.abs(np.random.default_rng(t).normal(sigma, 2 * sigma + 1, 300)).astype(np.int64)
    )
    for size in [*sizes.tolist(), int(9 * sigma), 2**40, 2**52]:
        off = np.array([size]) - candidates.centre
        found = sampler._exp_minus(np.minimum(off * off / candidates.doubled, 40))
        assert (
            abs(Decimal(float(found[0])) - exactly_kept(t, s, size)) < Decimal(sampler.MARGIN) / 16
        )


def test_the_table_and_series_are_off_by_less_than_their_proof_says():
    g = np.append(
        np.random.default_rng(2).uniform(0, 40, 3000), [0.0, 1 / 64, 40.0, np.nextafter(1 / 64, 0)]
    )
    with localcontext() as context:
        context.prec = 50
        off = [
            abs(Decimal(a) - (-Decimal(b)).exp())
            for a, b in zip(sampler._exp_minus(g).tolist(), g.tolist(), strict=True)
        ]
    assert max(off) < Decimal(2) ** -45


@pytest.mark.parametrize(
    ("t", "s", "size"), [(1, 1, 0), (3, 2, 1), (8, 1, 20), (2**26, 1, 10**8), (65_537, 65_536, 3)]
)
def test_every_first_word_is_decided_as_arithmetic_says(t, s, size, monkeypatch):
    """Over all of them: those wholly below exp(-g) are kept, those above are not, the one that
    straddles asks on."""
    every = np.arange(65_536, dtype="<u2").tobytes()
    asked = []

    def further(count):
        asked.append(count)
        return bytes([255]) * count

    candidates = sampler._Candidates(np.full(65_536, t), np.full(65_536, s))
    first = [every]
    kept = candidates.kept(
        lambda n: first.pop() if first else further(n), np.arange(65_536), np.full(65_536, size)
    )
    assert int(kept.sum()) == int(exactly_kept(t, s, size) * 65_536)
    assert asked == [2]


def test_a_candidate_at_the_peak_is_always_kept_and_takes_no_more_bits():
    candidates = sampler._Candidates(np.array([4]), np.array([1]))
    top = candidates.kept(
        lambda n: b"\xff" * n, np.array([0]), np.array([4])
    )  # |Y| = sigma^2 / T = 4, so g = 0
    assert top.tolist() == [True]


def test_sizes_that_doubles_do_not_hold_are_left_to_integers():
    candidates = sampler._Candidates(np.array([SCALE_MAX]), np.array([1]))
    kept = candidates.kept(seeded_bits(1), np.array([0, 0]), np.array([2**53 + 1, 2**62]))
    assert kept.tolist() == [False, False]


@pytest.mark.parametrize("width", [16, 32, 64, 200])
@pytest.mark.parametrize(
    "g", [Fraction(1, 2**40), Fraction(1, 3), Fraction(7), Fraction(11_111, 1000), Fraction(39)]
)
def test_exponentials_are_floored_exactly(g, width):
    with localcontext() as context:
        context.prec = 120
        exact = (-Decimal(g.numerator) / Decimal(g.denominator)).exp() * Decimal(2) ** width
    assert exp_minus_floor(g.numerator, g.denominator, width) == int(exact)


@pytest.mark.parametrize("guard", [0, 3, 8, 40])
@pytest.mark.parametrize(
    "g", [Fraction(0), Fraction(1, 97), Fraction(1), Fraction(7, 2), Fraction(12), Fraction(39)]
)
def test_bounds_of_exponentials_hold_with_few_bits_too(g, guard):
    low, high = sampler._exp_bounds(g.numerator, g.denominator, guard)
    with localcontext() as context:
        context.prec = 60
        exact = (Decimal(g.numerator) / Decimal(g.denominator)).exp() * 2**guard
    assert low <= exact < high


def test_a_tie_takes_more_bits_and_is_resolved_with_the_right_probability():
    """exp(-1) lies within the 16-bit word 24109: what of it is below is told by further bits."""
    word = exp_minus_floor(1, 1, 16)
    share = Fraction(exp_minus_floor(1, 1, 64) - word * 2**48, 2**48)
    yes = sum(below_exp_minus(seeded_bits(i), word, 1, 1) for i in range(4000))
    assert stats.binomtest(yes, 4000, float(share)).pvalue > 1e-6
    for decided in (word - 1, word + 1):
        assert below_exp_minus(lambda size: pytest.fail("no bits are due"), decided, 1, 1) == (
            decided < word
        )


def test_the_next_words_tie_takes_a_third():
    first, second = divmod(exp_minus_floor(1, 1, 32), 2**16)
    third = exp_minus_floor(1, 1, 48) % 2**16
    for last, below in ((third - 1, True), (third + 1, False)):
        more = [word.to_bytes(2, "little") for word in (last, second)]
        assert (
            below_exp_minus(lambda size, more=more: more.pop(), first, 1, 1) == below and not more
        )
