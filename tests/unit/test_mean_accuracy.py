"""What records say of how far a mean may be off: spread, intervals and expected errors, against
simulated speeds."""

from itertools import product

import numpy as np
import pytest
from msgspec.structs import replace

from tests.forms import long_but, long_rows, soaked_rows
from udp_stream.base.units import NANO
from udp_stream.mechanisms.base import NoisyValue, Range, SamplesPerPlate
from udp_stream.mechanisms.means import MECHANISMS
from udp_stream.mechanisms.noise import DiscreteLaplace, interval95, pure
from udp_stream.mechanisms.statistics import STATISTICS, TRUTHS, accuracy_of, spread
from udp_stream.testing import seeded_bits

U = 65 * 4096


def unclipped(plan):
    """The same statistic over a range that no reference speed leaves: formulas are about speeds
    before clipping."""
    far = 10 * U
    return replace(plan, range=Range(-far, U + far), fill=plan.fill and plan.fill + far)


@pytest.mark.parametrize("name", ["array-averaging", "optimal"])
@pytest.mark.parametrize("grouping", ["best-fit", "wrap-around"])
def test_the_spread_is_that_of_reference_speeds(name, grouping):
    """U^2/12 around a mean anywhere in [0, U], half of it between plates; a spread 30 % off would
    be noticed."""
    counts = np.array([30, 12, 7, 6, 4, 3, 3, 1])
    plan = MECHANISMS[name].plan(SamplesPerPlate(counts), pure(NANO // 2), Range(0, U), grouping)
    rng, part, runs = np.random.default_rng(1), U / 24**0.5, 4000
    means = rng.uniform(0, U, (runs, 1))
    scatter = part * np.repeat(rng.standard_normal((runs, counts.size)), counts, axis=1)
    scatter += part * rng.standard_normal(scatter.shape)
    speeds = means + scatter - scatter.mean(axis=1, keepdims=True)
    wide = unclipped(plan)
    asked = [MECHANISMS[name].query(wide, row, None).statistic for row in speeds.astype(int)]
    bias = [
        wide.value(statistic) - row.mean() for statistic, row in zip(asked, speeds, strict=True)
    ]
    assert np.std(bias) == pytest.approx(spread(plan), rel=0.06)


@pytest.mark.parametrize("name", ["baseline", "array-averaging", "optimal", "levy"])
def test_the_spread_counts_those_who_are_left_out(name):
    counts, out = np.array([12, 7]), np.array([30, 4, 1])
    plan = MECHANISMS[name].plan(SamplesPerPlate(counts), pure(NANO // 2), Range(0, U), "best-fit")
    rng, part, runs = np.random.default_rng(1), U / 24**0.5, 4000
    everybody = np.append(counts, out)
    scatter = part * np.repeat(rng.standard_normal((runs, 5)), everybody, axis=1)
    scatter += part * rng.standard_normal(scatter.shape)
    speeds = rng.uniform(0, U, (runs, 1)) + scatter - scatter.mean(axis=1, keepdims=True)
    kept = speeds[:, : counts.sum()]
    if name == "levy":  # what the spread says is before projection
        estimates = kept.mean(axis=1)
    else:
        wide = unclipped(plan)
        asked = [MECHANISMS[name].query(wide, row, None).statistic for row in kept.astype(int)]
        estimates = np.array([wide.value(statistic) for statistic in asked])
    assert np.std(estimates - speeds.mean(axis=1)) == pytest.approx(spread(plan, out), rel=0.06)
    assert spread(plan, out) > spread(plan)


ROWS = [
    *product(
        ["levy", "fixed-quantile", "eps-quantile"],
        ["best-fit", "wrap-around"],
        [1.0, 4.0],
        [1.0, 0.5, 0.25],
    )
]
SHORT = [
    ("levy", "best-fit", 4.0, 0.25),
    ("fixed-quantile", "wrap-around", 1.0, 0.25),
    ("eps-quantile", "best-fit", 1.0, 0.25),
]
SCATTERED = [
    ("best-fit", 1.0, 0.25),
    ("best-fit", 4.0, 0.25),
    ("wrap-around", 1.0, 0.25),
    ("wrap-around", 4.0, 1.0),
]
PLATES = [30, 12, 12, 9, 9, 8, 7, 7, 6, 6, 6, 5, 5, 5, 4, 4, 4, 3, 3, 3, 2, 2, 1, 1]


def reference_speeds(rng, means, part=1.0):
    """One row per mean of a HAT: U^2/12 of variance, half of it between plates; a part of that
    standard deviation."""
    between = np.repeat(rng.standard_normal((means.size, len(PLATES))), PLATES, axis=1)
    scatter = between + rng.standard_normal((means.size, sum(PLATES)))
    return (means[:, None] + part * U / 24**0.5 * scatter).astype(int)


@pytest.mark.parametrize(
    ("name", "grouping", "epsilon", "part"),
    [
        *long_rows(SHORT, [row for row in ROWS if row[1:] in SCATTERED]),
        *soaked_rows(row for row in ROWS if row[1:] not in SCATTERED),
    ],
)
def test_intervals_of_projected_means_hold_the_truth_however_speeds_scatter(
    name, grouping, epsilon, part
):
    """By all of the reference or part of it. The stated error is no less than the one that is made.

    It is more, as it takes truths anywhere for alike, though the interval that was found tells more
    of them.
    """
    plan = MECHANISMS[name].plan(
        SamplesPerPlate(np.array(PLATES)), pure(round(epsilon * NANO)), Range(0, U), grouping
    )
    rng, bits, rows = np.random.default_rng(4), seeded_bits(4), []
    for speeds in reference_speeds(rng, rng.uniform(0, U, 400), part).clip(0, U):
        query, truth = MECHANISMS[name].query(plan, speeds, bits), speeds.mean()
        noise = query.sensitivity * NANO / plan.noise_cost.nano / plan.divisor
        noisy = query.statistic / plan.divisor + rng.laplace(0, noise)
        value = float(np.clip(noisy, 0, U))
        stated, low, high = accuracy_of(plan, noisy, noise, projected_to=query.projected_to)
        assert 0 <= low <= value <= high <= U
        rows.append((low <= truth <= high, abs(value - truth), stated))
    held, error, stated = np.mean(rows, axis=0)
    assert 0.92 <= held <= 0.99
    assert 0.85 * error <= stated <= 3.5 * error


@pytest.mark.parametrize(("noisy", "noise"), [(0.02, 1 / 400), (0.02, 1 / 40), (0.1, 1 / 400)])
def test_the_stated_error_of_a_projected_mean_is_that_over_the_truths_that_may_have_made_it(
    noisy, noise
):
    """Speeds scatter less near the ends of [0, U]: so truths that are there are likelier to have
    made a mean there."""
    plan = MECHANISMS["levy"].plan(
        SamplesPerPlate(np.array(PLATES)), pure(4 * NANO), Range(0, U), "best-fit"
    )
    rng = np.random.default_rng(7)
    truth = rng.uniform(0, U, 400_000)
    off = spread(plan) * np.sqrt(4 * truth * (U - truth)) / U
    made = truth + off * rng.standard_normal(truth.size) + rng.laplace(0, noise * U, truth.size)
    error = np.abs(made - truth)[np.abs(made - noisy * U) < U / 500].mean()
    assert (
        error
        < accuracy_of(plan, noisy * U, noise * U, projected_to=(0, U)).expected_abs_error
        < 1.3 * error
    )


@pytest.mark.parametrize("name", long_but(["levy"], ["levy", "fixed-quantile"]))
def test_much_noise_makes_no_interval_of_a_projected_mean_too_sure_of_itself_or_too_wide(name):
    plan = MECHANISMS[name].plan(
        SamplesPerPlate(np.array(PLATES)), pure(NANO // 4), Range(0, U), "wrap-around"
    )
    rng, bits, held = np.random.default_rng(8), seeded_bits(8), []
    for speeds in reference_speeds(rng, rng.uniform(0.1 * U, 0.9 * U, 1500), 0.5).clip(0, U):
        query = MECHANISMS[name].query(plan, speeds, bits)
        noise = query.sensitivity * NANO / plan.noise_cost.nano / plan.divisor
        noisy = query.statistic / plan.divisor + rng.laplace(0, noise)
        _, low, high = accuracy_of(plan, noisy, noise, projected_to=query.projected_to)
        held.append(low <= speeds.mean() <= high)
    assert 0.935 <= np.mean(held) <= 0.965


def test_where_projection_does_nothing_the_interval_is_that_of_noise_and_spread_in_steps_rounded_outwards():
    """[0, U] around a mean in its middle, many arrays: clipping moves nothing."""
    plan = MECHANISMS["levy"].plan(
        SamplesPerPlate(np.full(400, 100)), pure(NANO), Range(0, U), "best-fit"
    )
    noise, step = U / 40, U / TRUTHS
    exact = interval95(DiscreteLaplace(), 0.47 * U, noise, 0.0, U)
    error, low, high = accuracy_of(plan, 0.47 * U, noise, projected_to=(0, U))
    assert exact[0] - 2 * step <= low <= exact[0] and exact[1] <= high <= exact[1] + 2 * step
    assert step < U / 200 and error == pytest.approx(noise, rel=0.05)


@pytest.mark.parametrize("name", ["baseline", "array-averaging", "optimal", "levy"])
def test_a_record_is_less_sure_of_a_mean_whose_plates_are_not_all_there(name):
    plan = MECHANISMS[name].plan(
        SamplesPerPlate(np.array(PLATES)), pure(NANO), Range(0, U), "best-fit"
    )
    projected = (U // 4, 3 * U // 4) if name == "levy" else None
    whole, part = (
        STATISTICS["mean"].record(
            plan, NoisyValue(U / 2, U / 100, projected), np.array(out, dtype=np.int64)
        )
        for out in ([], [50, 40, 30])
    )
    assert part.expected_abs_error_kmh > 1.1 * whole.expected_abs_error_kmh
    assert (
        part.interval95_kmh[0] < whole.interval95_kmh[0]
        and part.interval95_kmh[1] > whole.interval95_kmh[1]
    )
    if projected is not None:
        bare = STATISTICS["mean"].record(plan, NoisyValue(U / 2, U / 100))
        assert whole.interval95_kmh != bare.interval95_kmh


@pytest.mark.parametrize("noise", [0.5, 2.0, 6.0, 15.0, 40.0, 300.0])
@pytest.mark.parametrize("truth", [0.0, 2.0, 5.0, 10.0, 20.0, 32.4, 50.0, 63.0, 65.0])
def test_an_interval_misses_any_truth_with_probability_one_in_twenty(truth, noise):
    p = (np.arange(2000) + 0.5) / 2000
    laplace = np.where(p < 0.5, np.log(2 * p), -np.log(2 * (1 - p))) * noise
    noisy = truth + laplace
    low, high = np.array(
        [interval95(DiscreteLaplace(), value, noise, 0.0, 65) for value in noisy.tolist()]
    ).T
    assert np.mean((low <= truth) & (truth <= high)) == pytest.approx(0.95, abs=0.0011)
    released = noisy.clip(0, 65)
    assert np.all((low >= 0) & (low <= released) & (released <= high) & (high <= 65) & (low < high))
