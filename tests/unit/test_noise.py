"""The samplers draw exactly what they say: bit by bit where that can be enumerated, by distribution
tests elsewhere."""

import itertools
import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lab.means import tail_bound
from udp_stream.base.units import NANO
from udp_stream.mechanisms import samplers as laplace
from udp_stream.mechanisms import samplers as uniform
from udp_stream.mechanisms.noise import (
    SCALE_MAX,
    DiscreteLaplace,
    choice_weights,
    concentrated,
    exponential_choices,
    exponential_weights,
    lattice_of,
    pure,
)
from udp_stream.mechanisms.samplers import discrete_laplace, randbelow
from udp_stream.testing import seeded_bits


@pytest.mark.parametrize("bound", [3, 5, 1001, 2**26 - 5, 2**31 - 1])
def test_of_32_bit_words_just_the_surplus_is_drawn_again(bound):
    """2**32 mod bound words are one too many; which ones, their product with the bound says in its
    lower half."""
    surplus, inverse = 2**32 % bound, pow(bound, -1, 2**32)
    for lows in (
        [surplus],
        [surplus + 1],
        [bound - 1],
        [0, surplus - 1, surplus],
        [surplus - 1, 0, 1, bound],
    ):
        words = [low * inverse % 2**32 for low in lows]  # whose products have these lower halves
        for other in (
            b"",
            (2**31).to_bytes(4, "little"),
        ):  # also where another word beside it is fine at once
            first, rest = (
                words[0].to_bytes(4, "little") + other,
                [one.to_bytes(4, "little") for one in words[1:]],
            )
            stream = iter([first, *rest])
            bits = lambda n, stream=stream: next(stream) if n else b""  # noqa: E731
            drawn = uniform.uniform_below(bits, np.full(1 + len(other) // 4, bound))
            taken = next(i for i, low in enumerate(lows) if low >= surplus)
            assert (drawn[0], len(list(stream))) == (
                words[taken] * bound >> 32,
                len(lows) - 1 - taken,
            )


@pytest.mark.parametrize(
    ("most", "nano"), [(3, 10**9), (2**28 * 2**27, 999 * NANO), (2**53 - 1, 2**40 + 1)]
)
def test_a_plate_is_charged_its_share_rounded_up_also_where_64_bits_do_not_hold_the_product(
    most, nano
):
    """A product that wraps around would charge next to nothing."""
    moves = [0, 1, most // 3, most - 1, most]
    charges = DiscreteLaplace().charges(np.array(moves), most, pure(nano))
    assert charges.dtype == np.int64
    assert charges.tolist() == [math.ceil(Fraction(nano * move, most)) for move in moves]


@pytest.mark.parametrize(("failing", "expected"), [(3, True), (4, False), (5, True), (6, False)])
def test_trials_beyond_those_on_arrays_go_on_as_they_began(failing, expected, monkeypatch, limits):
    """One draw in 10**13 gets there: trial k has odds p / (q k), and the first to fail decides by
    its k."""
    asked = []

    def resolve(_, p, q):
        asked.append((p, q))
        return len(asked) + 2 < failing

    limits(laplace, _TRIALS=2)
    monkeypatch.setattr(laplace, "bernoulli", lambda _, p, q: np.ones(p.size, bool))
    monkeypatch.setattr(laplace, "resolve_bernoulli", resolve)
    assert laplace._bernoulli_exp_minus(seeded_bits(1), np.array([3]), np.array([7])).tolist() == [
        expected
    ]
    assert asked == [(3, 7 * k) for k in range(3, failing + 1)]


@pytest.mark.parametrize(
    ("p", "q"), [(0, 1), (1, 3), (5, 7), (2**26 - 1, 2**26), (999_999, 15 * 2**26), (12345, 65536)]
)
def test_bernoulli_decides_every_16_bit_word_as_arithmetic_says(p, q, monkeypatch):
    """Over all words: those wholly below p/q say yes, those wholly above say no, the one that
    straddles asks on."""
    words = np.arange(65536, dtype="<u2").tobytes()
    asked = []

    def resolve(bits, numerator, denominator):
        asked.append(Fraction(numerator, denominator))
        return False

    monkeypatch.setattr(uniform, "resolve_bernoulli", resolve)
    decided = uniform.bernoulli(lambda n: words[:n], np.full(65536, p), np.full(65536, q))
    rest = Fraction(p, q) * 65536 - int(decided.sum())
    assert int(decided.sum()) == p * 65536 // q
    assert asked == ([rest] if rest else [])


def test_the_rare_tie_is_resolved_with_the_right_probability():
    yes = sum(uniform.resolve_bernoulli(seeded_bits(i), 3, 7) for i in range(4000))
    assert stats.binomtest(yes, 4000, 3 / 7).pvalue > 1e-6
    assert stats.binomtest(yes, 4000, 0.7 * 3 / 7).pvalue < 1e-6


@pytest.mark.parametrize("digits", [1, 2, 3])
def test_thresholds_of_the_geometric_part_are_exact(digits):
    with localcontext() as context:
        context.prec = 80
        exact = [int(Decimal(-k).exp() * 2 ** (32 * digits)) for k in range(1, 65)]
    assert list(laplace._exp_thresholds(digits)) == exact


def test_a_geometric_word_on_a_threshold_takes_more_bits():
    """The word floor(2^32/e) is undecided between 0 and 1: both happen, in the ratio that further
    digits say."""
    word = laplace._exp_thresholds(1)[0]
    values = [laplace._resolve_geometric(seeded_bits(i), word) for i in range(2000)]
    share = Fraction(laplace._exp_thresholds(3)[0] - word * 2**64, 2**64)
    assert set(values) == {0, 1}
    assert stats.binomtest(sum(values), 2000, float(share)).pvalue > 1e-6


def test_geometric_part_matches_its_distribution_beyond_the_first_word():
    values = laplace._geometric_of_e(seeded_bits(3), 200_000)
    observed = [(values >= k).mean() for k in range(1, 6)]
    assert observed == pytest.approx([math.exp(-k) for k in range(1, 6)], rel=0.06)


@pytest.mark.parametrize("bound", [1, 2, 3, 7, 10, 255, 256, 257])
def test_randbelow_is_uniform(bound):
    bits = seeded_bits(bound)
    draws = [randbelow(bits, bound) for _ in range(20 * bound + 200)]
    assert set(draws) <= set(range(bound))
    if bound > 1:
        assert stats.chisquare(np.bincount(draws, minlength=bound)).pvalue > 1e-6


@pytest.mark.parametrize("epsilon_nano", [10**6, 125_000_000, 10**9, 7 * 10**9])
def test_exponential_weights_never_differ_by_more_than_epsilon_allows(epsilon_nano):
    table = exponential_weights(epsilon_nano, largest=10**6)
    with localcontext() as context:
        context.prec = 60
        limit = (Decimal(epsilon_nano) / (2 * 10**9)).exp()
        for dearer, cheaper in itertools.pairwise(reversed(table)):
            assert cheaper >= dearer
            assert Decimal(cheaper) / Decimal(dearer) <= limit
        first = Decimal(table[0]) / Decimal(table[1])
        assert first == pytest.approx(limit, rel=Decimal("1e-12"))  # and no smaller than it need be


def test_there_are_no_more_weights_than_costs_can_be():
    """At the smallest epsilons a table for any cost has 100,000 entries, and every HAT has its own
    epsilon."""
    assert len(exponential_weights(10**5, largest=40)) == 41
    assert len(exponential_weights(10**9, largest=10**6)) == 71


def test_exponential_choice_follows_its_weights_and_the_test_has_power():
    costs, sizes, epsilon = [4, 1, 0, 2, 6], [3, 1, 2, 0, 5], 1.5
    bits = seeded_bits("choice")
    chosen = np.bincount(
        exponential_choices(bits, costs, sizes, 6, 1, pure(int(epsilon * 1e9)), draws=20_000),
        minlength=5,
    )

    def p_value(eps):
        weights = np.array(sizes) * np.exp(-eps * np.array(costs) / 2)
        expected = weights / weights.sum() * chosen.sum()
        return stats.chisquare(chosen[expected > 0], expected[expected > 0]).pvalue

    assert chosen[3] == 0
    assert p_value(epsilon) > 1e-6
    assert p_value(0.7 * epsilon) < 1e-6
    assert p_value(1.3 * epsilon) < 1e-6


def test_large_costs_are_told_apart_however_far_the_least_is_from_nothing():
    """300 arrays in five bins: at epsilon 1 all costs above 140 would weigh the same, counted from
    nothing."""
    chosen = exponential_choices(
        seeded_bits(3), [299, 161, 139, 300, 300], [1] * 5, 300, 1, pure(NANO), draws=2000
    )
    assert np.bincount(chosen, minlength=5)[2] > 0.99 * 2000
    far = exponential_choices(
        seeded_bits(3), [500_000, 500_001], [1, 0], 10**6, 1, pure(1000 * NANO), draws=5
    )
    assert far == [0] * 5


@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from([0.05, 0.5, 3.0, 40.0]))
def test_choices_between_neighbours_cost_no_more_than_epsilon(data, epsilon):
    """Exact probabilities, with costs on both sides of the table's end; each cost moves by at most
    one."""
    costs = data.draw(
        st.lists(st.sampled_from([0, 1, 2, 3, 17, 18, 34, 35, 36, 70, 400]), min_size=1, max_size=6)
    )
    moved = [max(0, cost + data.draw(st.integers(-1, 1))) for cost in costs]
    table = exponential_weights(round(epsilon * NANO), largest=10**6)

    def probabilities(costs):
        weights = choice_weights(costs, [1] * len(costs), table)
        return [Fraction(weight, sum(weights)) for weight in weights]

    limit = Fraction(math.exp(epsilon)) * (1 + Fraction(1, 10**12))
    for one, other in zip(probabilities(costs), probabilities(moved), strict=True):
        assert one <= limit * other and other <= limit * one


def test_no_candidate_is_an_error():
    with pytest.raises(ValueError, match="expected bound >= 1"):
        exponential_choices(seeded_bits(0), [0], [0], 0, 1, pure(10**9), draws=1)


@pytest.mark.parametrize("sensitivity", [1, 7, 4096, 266_240, 266_240 * 5_000, 2**55])
@pytest.mark.parametrize("epsilon_nano", [10**6, 333_333_333, 10**9, 5 * 10**10])
def test_lattice_scale_covers_the_sensitivity_with_rounding(sensitivity, epsilon_nano):
    """t lattice steps are at least (most steps two neighbours can differ by) / eps, and hardly more
    than needed."""
    lattice = lattice_of(sensitivity, pure(epsilon_nano))
    step = 1 << lattice.shift
    most = max(
        abs(lattice.project(base + sensitivity) - lattice.project(base)) for base in _bases(step)
    )
    assert Fraction(lattice.t) >= Fraction(most * 10**9, epsilon_nano)
    assert lattice.t <= SCALE_MAX
    exact = sensitivity * 1e9 / epsilon_nano
    assert lattice.scale <= exact * (1 + step / sensitivity) + step
    assert lattice.shift == 0 or lattice.t > SCALE_MAX / 4  # no coarser than it has to be
    for base in _bases(step):  # rounding is to the nearest
        assert abs(lattice.project(base) * step - base) <= step / 2


def _bases(step):
    return [0, 1, step // 2, step - 1, step, 3 * step + step // 3, 12_345_678]


def test_an_epsilon_too_small_for_any_noise_is_refused():
    with pytest.raises(ValueError, match="expected a cost"):
        lattice_of(1, pure(1))
    with pytest.raises(ValueError, match="expected sensitivity"):
        lattice_of(0, pure(10**9))


@given(
    st.integers(1, 2**40),
    st.integers(10**6, 10 * NANO),
    st.sampled_from([0.9, 0.5, 0.05, 1e-3, 1e-9]),
)
def test_noise_exceeds_its_tail_bound_with_the_probability_that_it_says_and_a_lower_one_more_often(
    sensitivity, epsilon_nano, delta
):
    """By the distribution itself: P(|X| >= k) = 2 q^k / (1 + q). Rounding has half a step of the
    bound."""
    lattice = lattice_of(sensitivity, pure(epsilon_nano))
    steps = tail_bound(sensitivity, pure(epsilon_nano), delta) / (1 << lattice.shift) - 0.5

    def beyond(bound):
        k, q = max(0, math.floor(bound) + 1), math.exp(-1 / lattice.t)
        return 2 * q**k / (1 + q) if k else 1.0

    assert beyond(steps) <= delta * (1 + 1e-6)
    assert beyond(steps - 2.5) > delta * (1 - 1e-6) or steps < 2.5
    of_laplace = sensitivity * math.log(1 / delta) * NANO / epsilon_nano
    assert of_laplace <= tail_bound(sensitivity, pure(epsilon_nano), delta)


@pytest.mark.parametrize(
    ("cost", "delta"), [(pure(NANO), 0.0), (pure(NANO), 1.0), (concentrated(NANO), 0.1)]
)
def test_a_tail_bound_is_of_an_epsilon_and_a_probability(cost, delta):
    with pytest.raises(ValueError, match="0 < delta < 1"):
        tail_bound(1, cost, delta)


def test_precision_probe_finds_nothing():
    """Haney et al.'s probe: values of M(0) that M(1) could not produce certify the input. Here
    there are none.

    Scale 1 km/h on the lattice of 1/4096: every output of either is a multiple of 1/4096 and any
    multiple can occur, so the share of small outputs off the lattice of 2^-53 is 0 for both, where
    float noise shows 69 % against 0 %.
    """
    draws = discrete_laplace(seeded_bits("probe"), np.full(400_000, 4096))
    outputs = {base: (base * 4096 + draws) / 4096 for base in (0, 1)}
    small = {base: values[np.abs(values) < 0.5] for base, values in outputs.items()}
    certifying = {
        base: float(np.mean(np.fmod(values, 2.0**-53) != 0)) for base, values in small.items()
    }
    assert certifying == {0: 0.0, 1: 0.0}
    reachable = set(range(-1000, 1001))
    steps = {
        base: set((values * 4096).astype(int).tolist()) & reachable
        for base, values in small.items()
    }
    assert steps[0] == reachable and steps[1] == reachable


def test_the_probe_would_find_floating_point_noise():
    rng = np.random.default_rng(0)
    certifying = {}
    for base in (0.0, 1.0):
        values = base + rng.laplace(0, 1.0, 100_000)
        small = values[np.abs(values) < 0.5]
        certifying[base] = float(np.mean(np.fmod(small, 2.0**-53) != 0))
    assert certifying[0.0] > 0.5 and certifying[1.0] == 0.0
