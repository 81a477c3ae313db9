"""Sensitivity, individual sensitivity and worst-case bias of the variance, by brute force over all
small cases.

Speeds in {0, 1, U} (U = 5 quanta), up to three plates of up to three samples; and for every split
of up to 14 samples all numbers of samples at 0 and U, where the extremes lie (proved in the module,
confirmed by random interior data).
"""

import itertools
from fractions import Fraction

import numpy as np
import pytest

from tests.forms import long_but
from udp_stream.mechanisms.base import Range, SamplesPerPlate
from udp_stream.mechanisms.noise import SCALE_MAX, lattice_of, pure
from udp_stream.mechanisms.variance import plan_variance, plate_sensitivity, variance_query
from udp_stream.units import NANO

U = 5
SPEEDS = (0, 1, U)
COUNTS = [
    c for users in (1, 2, 3) for c in itertools.product((1, 2, 3), repeat=users) if sum(c) <= 7
]


def datasets(total):
    return np.array(list(itertools.product(SPEEDS, repeat=total)))


def plans(counts, epsilon_nano=NANO, max_speed=U):
    hat = SamplesPerPlate(np.array(counts))
    return [
        plan_variance(hat, pure(epsilon_nano), Range(0, max_speed), cap)
        for cap in range(1, hat.largest + 1)
    ]


def ranges(counts, results):
    table = results.reshape((len(SPEEDS),) * sum(counts))
    widest, start = [], 0
    for count in counts:
        axes = tuple(range(start, start + count))
        widest.append(int((table.max(axis=axes) - table.min(axis=axes)).max()))
        start += count
    return widest


@pytest.mark.parametrize("counts", long_but([c for c in COUNTS if sum(c) <= 5], COUNTS), ids=str)
def test_every_plate_moves_the_statistic_by_exactly_its_sensitivity(counts):
    data = datasets(sum(counts))
    for plan in plans(counts):
        statistic = np.array([variance_query(plan, row).statistic for row in data])
        widest = ranges(counts, statistic)
        assert widest == plate_sensitivity(plan).tolist()
        assert plan.sensitivity == max(1, *widest) == variance_query(plan, data[0]).sensitivity


@pytest.mark.parametrize("counts", long_but([c for c in COUNTS if sum(c) <= 5], COUNTS), ids=str)
def test_the_bias_reaches_its_bound_and_never_exceeds_it(counts):
    data = datasets(sum(counts))
    for plan in plans(counts):
        clipped = np.array([variance_query(plan, row).statistic for row in data]) / plan.divisor
        assert np.abs(clipped - data.var(axis=1)).max() == pytest.approx(plan.bias_bound, abs=1e-12)


@pytest.mark.parametrize("counts", long_but([c for c in COUNTS if sum(c) <= 5], COUNTS), ids=str)
def test_the_statistic_is_the_variance_of_the_kept_samples_times_their_number_squared(counts):
    data = datasets(sum(counts))[::7]
    starts = np.cumsum(counts) - counts
    for plan in plans(counts):
        kept = np.concatenate(
            [s + np.arange(min(c, plan.cap)) for s, c in zip(starts, counts, strict=True)]
        )
        for row in data:
            pairs = sum((int(a) - int(b)) ** 2 for a, b in itertools.combinations(row[kept], 2))
            assert variance_query(plan, row).statistic == pairs
            assert pairs / plan.divisor == pytest.approx(row[kept].var())


def theory_sensitivity(g, G):
    """THEORY 5 times G^2, in units of U^2."""
    if 2 * g < G:
        return Fraction(g * (G - g))
    return Fraction(G * G, 4) if G % 2 == 0 else Fraction(G * G, 4) * (1 - Fraction(1, G * G))


@pytest.mark.parametrize("G", range(1, 15))
def test_the_sensitivity_in_every_case_of_parity_and_majority(G):
    """0/U data: a plate with g samples, k of them at U; c of the other G - g at U: T = U^2 (k +
    c)(G - k - c)."""
    for g in range(1, G + 1):
        moves = [
            abs((k + c) * (G - k - c) - (i + c) * (G - i - c))
            for c in range(G - g + 1)
            for k, i in itertools.product(range(g + 1), repeat=2)
        ]
        plan = plan_variance(
            SamplesPerPlate(np.array([g] + [1] * (G - g))), pure(NANO), Range(0, 7), g
        )
        assert max(moves) * 49 == plate_sensitivity(plan)[0]
        assert plan.sensitivity == max(1, 49 * theory_sensitivity(g, G))


def theory_bias(G, M):
    """THEORY 5, in units of U^2."""
    if G == M:
        return Fraction(0)
    if M <= 2 * G:
        return Fraction(G * (M - G), M * M)
    return Fraction(1, 4) if M % 2 == 0 else Fraction(1, 4) * (1 - Fraction(1, M * M))


def slides_bias(G, M):
    if G == M:
        return Fraction(0)
    if M > 2 * G:
        return Fraction(G * (M - G), M * M)
    return Fraction(1, 4) if M % 2 == 0 else Fraction(1, 4) * (1 - Fraction(1, M * M))


def brute_bias(G, M):
    """0/U data: a of the G kept samples at U, b of the dropped."""
    return max(
        abs(Fraction((a + b) * (M - a - b), M * M) - Fraction(a * (G - a), G * G))
        for a in range(G + 1)
        for b in range(M - G + 1)
    )


@pytest.mark.parametrize("M", range(1, 15))
def test_the_bias_in_every_case_of_parity_and_majority(M):
    for G in range(1, M + 1):
        plan = plan_variance(
            SamplesPerPlate(np.array([M - G + 1] + [1] * (G - 1))), pure(NANO), Range(0, 7), 1
        )
        assert plan.kept == G
        assert brute_bias(G, M) == theory_bias(G, M)
        assert plan.bias_bound == pytest.approx(float(49 * theory_bias(G, M)))


def test_the_slides_print_the_two_cases_of_the_bias_the_other_way_round():
    """They agree only where nothing, or exactly half (give or take the odd one), is dropped."""
    assert (slides_bias(3, 4), brute_bias(3, 4)) == (Fraction(1, 4), Fraction(3, 16))  # too large
    assert (slides_bias(1, 4), brute_bias(1, 4)) == (
        Fraction(3, 16),
        Fraction(1, 4),
    )  # too small: not a bound at all
    wrong = [
        (G, M)
        for M in range(1, 15)
        for G in range(1, M + 1)
        if slides_bias(G, M) != brute_bias(G, M)
    ]
    assert all(G < M and abs(2 * G - M) > 1 for G, M in wrong) and len(wrong) > 60


def test_item_level_sensitivity_is_the_case_of_one_sample_per_plate():
    """U^2 (L - 1) / L^2; the slides' remark prints L for L^2."""
    for L in range(3, 12):
        plan = plan_variance(
            SamplesPerPlate(np.ones(L, dtype=np.int64)), pure(NANO), Range(0, U), 1
        )
        assert Fraction(plan.sensitivity, plan.divisor) == Fraction(U * U * (L - 1), L * L)


def test_random_interior_data_stay_within_both_bounds():
    rng = np.random.default_rng(0)
    for _ in range(300):
        counts = rng.integers(1, 6, rng.integers(1, 5))
        plan = plan_variance(
            SamplesPerPlate(counts),
            pure(NANO),
            Range(0, 1000),
            int(rng.integers(1, counts.max() + 1)),
        )
        data = rng.integers(0, 1001, (40, counts.sum()))
        plate = int(rng.integers(counts.size))
        own = np.repeat(np.arange(counts.size), counts) == plate
        data[1:, ~own] = data[0, ~own]  # neighbours of the first
        statistic = [variance_query(plan, row).statistic for row in data]
        assert max(statistic) - min(statistic) <= plate_sensitivity(plan)[plate] <= plan.sensitivity
        assert max(
            abs(t / plan.divisor - row.var()) for t, row in zip(statistic, data, strict=True)
        ) <= (plan.bias_bound + 1e-6)


@pytest.mark.parametrize(
    ("counts", "epsilon_nano"), [((3, 2, 1), NANO), ((3, 3, 1), 10**8), ((2, 1), 3 * 10**9)]
)
def test_each_plate_is_charged_what_its_rounded_statistic_can_move(counts, epsilon_nano):
    speed = 10**6
    data = datasets(sum(counts)) * (speed // U)
    for plan in plans(counts, epsilon_nano, speed):
        lattice = lattice_of(plan.sensitivity, pure(epsilon_nano))
        assert lattice.shift > 0 or plan.kept == 1
        rounded = np.array([lattice.project(variance_query(plan, row).statistic) for row in data])
        for steps, charge in zip(ranges(counts, rounded), plan.charges.tolist(), strict=True):
            assert Fraction(steps * NANO, lattice.t) <= charge <= epsilon_nano


def test_the_largest_giver_is_charged_all_and_the_others_their_share():
    plan = plan_variance(
        SamplesPerPlate(np.array([8, 4, 4, 4, 2, 2])), pure(NANO), Range(0, 65 * 4096), 8
    )
    shares = plan.charges / NANO
    assert shares.tolist() == pytest.approx(
        [1, 80 / 128, 80 / 128, 80 / 128, 44 / 128, 44 / 128], abs=1e-6
    )
    assert shares.max() <= 1


@pytest.mark.parametrize("epsilon_nano", [10**6, 333_333_333, NANO, 5 * 10**10])
@pytest.mark.parametrize("bits", range(53, 130, 7))
def test_noise_can_be_drawn_for_sensitivities_beyond_63_bits(bits, epsilon_nano):
    sensitivity = 2**bits + 12_345
    lattice = lattice_of(sensitivity, pure(epsilon_nano))
    step = 1 << lattice.shift
    bases = [0, 1, step // 2 - 1, step // 2, step - 1, 3 * step + step // 3]
    most = max(lattice.project(base + sensitivity) - lattice.project(base) for base in bases)
    assert Fraction(most * NANO, epsilon_nano) <= lattice.t <= SCALE_MAX
    assert lattice.t > SCALE_MAX / 4  # no coarser than it has to be
    assert all(abs(lattice.project(base) * step - base) * 2 <= step for base in bases)


@pytest.mark.parametrize("users", [100, 1000, 50_000])
def test_large_hats_are_exact(users):
    """G^2 U^2 beyond 63 bits: the statistic equals Python's own integers, and so does the
    sensitivity."""
    speed = 65 * 4096
    rng = np.random.default_rng(users)
    counts = rng.integers(1, 40, users)
    plan = plan_variance(SamplesPerPlate(counts), pure(NANO // 2), Range(0, speed))
    samples = rng.choice([0, speed, speed - 1, 12_345], counts.sum())
    starts = np.cumsum(counts) - counts
    kept = [
        x
        for s, c in zip(starts, counts, strict=True)
        for x in samples[s : s + min(int(c), plan.cap)].tolist()
    ]
    query = variance_query(plan, samples)
    assert query.statistic == len(kept) * sum(x * x for x in kept) - sum(kept) ** 2
    assert query.sensitivity == speed**2 * plan.cap * (plan.kept - plan.cap)
    assert max(plate_sensitivity(plan)) == query.sensitivity
