"""Sensitivity and bias of the variance in every case of parity and majority, and of large HATs. All
small cities are in `test_sensitivity.py`."""

import itertools
from fractions import Fraction

import numpy as np
import pytest

from udp_stream.base.units import NANO
from udp_stream.mechanisms.base import Range, SamplesPerPlate
from udp_stream.mechanisms.noise import SCALE_MAX, lattice_of, pure
from udp_stream.mechanisms.variance import plan_variance, plate_sensitivity, variance_query


@pytest.mark.parametrize("total", range(1, 15))
def test_sensitivity_and_bias_in_every_case_of_parity_and_majority(total):
    """Speeds of 0 and U, where the extremes lie: T = U^2 k (G - k) of G samples, k of them at U; some of
    one plate's may move, or be dropped."""
    for own in range(1, total + 1):
        others = [1] * (total - own)
        hat = SamplesPerPlate(np.array([own, *others]))
        moves = [
            abs((k + c) * (total - k - c) - (i + c) * (total - i - c))
            for c in range(total - own + 1)
            for k, i in itertools.product(range(own + 1), repeat=2)
        ]
        plan = plan_variance(hat, pure(NANO), Range(0, 7), own)
        assert max(moves) * 49 == plate_sensitivity(plan)[0]
        assert max(moves) * 49 <= plan.sensitivity
        kept = total - own + 1
        biases = [
            abs((a + b) * (total - a - b) / total**2 - a * (kept - a) / kept**2)
            for a in range(kept + 1)
            for b in range(own)
        ]
        capped = plan_variance(hat, pure(NANO), Range(0, 7), 1)
        assert capped.kept == kept and capped.bias_bound == pytest.approx(49 * max(biases))


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
