"""`sample-scaling` and `user-scaling`: ten times the samples per user, or the users (arXiv 2401.15906, Figure 2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from udp_stream.experiments.base import (
    DataSet,
    Experiment,
    Figure,
    Hat,
    Integers,
    Job,
    Outcome,
    Setup,
    Table,
    Verdict,
    slug,
)
from udp_stream.experiments.mean_errors import CLIPPING, OURS, PUBLISHED, Errors, MeanRow, Series, points
from udp_stream.experiments.synthetic import LAMBDA, gaussian_hat, itms_like, samples_scaled, users_scaled
from udp_stream.mechanisms.grouping import SamplesPerPlate, wrap_around_count
from udp_stream.mechanisms.means._projected import levy_cap, means_of_arrays
from udp_stream.mechanisms.means.levy import GAMMA, concentration_radius
from udp_stream.mechanisms.range import Range
from udp_stream.units import QUANTA_PER_KMH

SOURCE = "2401.15906, Section IV-C"
BASELINE, (AVERAGING, LEVY, FIXED, DEPENDENT) = PUBLISHED[0], CLIPPING
AVERAGING_LEVYS = Series("array-averaging", levys_cap=True)

SERIES = {"samples": (*PUBLISHED, *OURS), "users": (BASELINE, AVERAGING_LEVYS, *CLIPPING, *OURS)}
"""Under user scaling the papers give Array-Averaging Levy's cap; its own is shown too."""

SCALED: dict[str, Callable[[Integers], Integers]] = {"samples": samples_scaled, "users": users_scaled}


def pairs(setup: Setup, what: str) -> list[tuple[DataSet, DataSet]]:
    """Each HAT (the papers' likeness, each feed's busiest) drawn anew as it is, and scaled."""
    return [_pair(setup, data, what) for data in (itms_like(setup.rng("itms-like")), *setup.data)]


def _pair(setup: Setup, data: DataSet, what: str) -> tuple[DataSet, DataSet]:
    hat = data.busiest
    shape = hat.mean / QUANTA_PER_KMH, float(hat.samples.std()) / QUANTA_PER_KMH, data.range
    name = f"{data.name}, drawn" if data.recorded else data.name

    def drawn(counts: Integers, label: str) -> DataSet:
        rng = setup.rng(f"{what}/{data.name}/{label}")
        hat = gaussian_hat(counts, *shape, rng)
        city_mean = data.constant if data.recorded else None
        return DataSet(f"{name}{label}", False, data.range, (hat,), city_mean=city_mean)

    counts = hat.counts.by_plate
    return drawn(counts, ""), drawn(SCALED[what](counts), f", {what} x{LAMBDA}")


def _jobs(setup: Setup, what: str) -> list[Job]:
    sets = [data for pair in pairs(setup, what) for data in pair]
    return [job for data in sets for job in points(setup, data, "the HAT", data.hats, SERIES[what])]


def _conclude(setup: Setup, rows: Sequence[MeanRow], what: str) -> Outcome:
    figures, verdicts = [], []
    judge = _sample_verdicts if what == "samples" else _user_verdicts
    for base, scaled in pairs(setup, what):
        before, after = Errors(rows, base.name, "the HAT"), Errors(rows, scaled.name, "the HAT")
        panels = before.panel("as it is", SERIES[what]), after.panel(f"{what} x{LAMBDA}", SERIES[what])
        figures.append(Figure(f"{what[:-1]}-scaling-{slug(base.name)}", _title(base, scaled), panels))
        verdicts += [*judge(base, scaled, before, after), _number_to_beat(after, what)]
    return Outcome((Table(f"{what[:-1]}-scaling", tuple(rows)),), tuple(figures), tuple(verdicts))


def _title(base: DataSet, scaled: DataSet) -> str:
    sizes = [f"{data.hats[0].counts.plates:,} plates, {data.hats[0].counts.total:,} samples" for data in (base, scaled)]
    return f"{base.name}: {sizes[0]}; scaled: {sizes[1]}"


def _best_of(scaled: DataSet, after: Errors, best: Series, others: Sequence[Series], source: str, why: str) -> Verdict:
    failed = [f"{one.name} at epsilon {_list(at)}" for one in others if (at := after.not_below(best, one))]
    return Verdict(
        f"{scaled.name}: {best.name} performs better than all other algorithms",
        source,
        not failed,
        f"at epsilon 1: {after.said((best, *others))} km/h"
        + (f"; no worse than it: {'; '.join(failed)}" if failed else ""),
        why,
    )


def _list(epsilons: Sequence[float]) -> str:
    return ", ".join(f"{epsilon:g}" for epsilon in epsilons)


def _levy(data: DataSet) -> tuple[int, int, float, float]:
    """Levy's cap, its number of full arrays, its radius tau and U, both in km/h."""
    plan = LEVY.plan(data.hats[0].counts, 1.0, data.range)
    tau = concentration_radius(plan) / QUANTA_PER_KMH
    return plan.cap, wrap_around_count(plan.counts, plan.cap), tau, data.range.width / QUANTA_PER_KMH


def _sample_verdicts(base: DataSet, scaled: DataSet, before: Errors, after: Errors) -> list[Verdict]:
    cap, arrays, tau, most = _levy(base)
    scaled_cap, scaled_arrays, scaled_tau, _ = _levy(scaled)
    others = [one for one in PUBLISHED if one is not LEVY]
    scales = {one.name: after.of(one)[0].noise_kmh / before.of(one)[0].noise_kmh for one in (BASELINE, AVERAGING)}
    return [
        _best_of(
            scaled,
            after,
            LEVY,
            others,
            f"{SOURCE}, Figure 2a",
            f"its interval is 3 tau = {3 * scaled_tau:.1f} km/h of U = {most:g}, and half of epsilon is left for the "
            f"noise: {6 * scaled_tau / most:.2f} times Array-Averaging's where both have as many arrays; and the bin "
            f"of the median is chosen at half of epsilon among only {scaled_arrays} arrays",
        ),
        Verdict(
            f"{scaled.name}: the noise of Baseline and Array-Averaging is what it was",
            f"{SOURCE}; Proposition IV.1 of the early version",
            all(math.isclose(ratio, 1.0, rel_tol=1e-9) for ratio in scales.values()),
            ", ".join(f"{name} x{ratio:.4f}" for name, ratio in scales.items()),
        ),
        Verdict(
            f"{scaled.name}: Levy's sensitivity 3 tau / K falls by sqrt({LAMBDA}) = {LAMBDA**0.5:.3f}",
            f"{SOURCE}; Proposition IV.1 of the early version",
            math.isclose((tau / arrays) / (scaled_tau / scaled_arrays), LAMBDA**0.5, rel_tol=1e-3),
            f"by {tau / arrays / scaled_tau * scaled_arrays:.4f}, 3 tau from {3 * tau:.1f} to {3 * scaled_tau:.1f} km/h"
            + (
                f" (cut off at U = {most:g}: its noise falls by {min(3 * tau, most) / min(3 * scaled_tau, most):.2f})"
                if 3 * tau > most
                else ""
            ),
        ),
        Verdict(
            f"{scaled.name}: equation (1) is solved by {LAMBDA} times the cap, with as many arrays",
            SOURCE,
            (scaled_cap, scaled_arrays) == (LAMBDA * cap, arrays),
            f"cap {cap} and {arrays} arrays before, {scaled_cap} and {scaled_arrays} after",
        ),
    ]


def _user_verdicts(base: DataSet, scaled: DataSet, before: Errors, after: Errors) -> list[Verdict]:  # noqa: ARG001
    cap, arrays, tau, most = _levy(base)
    scaled_cap, scaled_arrays, scaled_tau, _ = _levy(scaled)
    others = (BASELINE, AVERAGING_LEVYS, LEVY, DEPENDENT)
    log_ratio = math.sqrt(math.log(2 * scaled_arrays / GAMMA) / math.log(2 * arrays / GAMMA))
    spread = _spread_of_means(scaled.hats[0], scaled.range)
    return [
        _best_of(
            scaled,
            after,
            FIXED,
            others,
            f"{SOURCE}, Figure 2b",
            f"each end, at a quarter of epsilon, is off by ranks of the order of 8 / epsilon, not small beside 0.1 K = "
            f"{scaled_arrays / 10:.0f}: the interval is misplaced (the exact one spans {spread:.1f} of {most:g} km/h)",
        ),
        _second_best(scaled, after),
        Verdict(
            f"{scaled.name}: the same cap solves equation (1), with {LAMBDA} times as many arrays",
            "2401.15906, early version, Lemma IV.2",
            scaled_cap == cap and LAMBDA * arrays <= scaled_arrays < LAMBDA * (arrays + 1),
            f"cap {cap} and {arrays} arrays before, {scaled_cap} and {scaled_arrays} after",
        ),
        Verdict(
            f"{scaled.name}: Levy's interval grows with the logarithm of the number of users",
            SOURCE,
            math.isclose(scaled_tau / tau, log_ratio, rel_tol=1e-3) and log_ratio > 1,
            f"3 tau from {3 * tau:.1f} to {3 * scaled_tau:.1f} km/h, of U = {most:g}",
        ),
        _exact_quantiles(scaled, min(3 * scaled_tau, most), most),
    ]


def _second_best(scaled: DataSet, after: Errors) -> Verdict:
    others = (BASELINE, LEVY, DEPENDENT)
    failed = [one.name for one in others if after.not_below(AVERAGING_LEVYS, one)]
    return Verdict(
        f"{scaled.name}: Array-Averaging (with Levy's cap) performs second-best",
        "2401.15906, early version, Figure 4",
        not failed,
        f"at epsilon 1: {after.said((FIXED, AVERAGING_LEVYS, *others))} km/h"
        + (f"; not always above it: {', '.join(failed)}" if failed else ""),
        "the interval of the others was found narrow enough to make good for the half of epsilon that it costs",
    )


def _spread_of_means(hat: Hat, range: Range) -> float:
    """Between the exact 0.1 and 0.9 quantiles of the array means, in km/h."""
    plan = FIXED.plan(hat.counts, 1.0, range)
    low, high = np.quantile(means_of_arrays(plan, hat.samples), (0.1, 0.9)) / QUANTA_PER_KMH
    return float(high - low)


def _exact_quantiles(scaled: DataSet, levy_kmh: float, most: float) -> Verdict:
    """Proposition IV.2: with exact quantiles, Array-Averaging draws the least noise but for FixedQuantile."""
    hat = scaled.hats[0]
    means = np.sort(means_of_arrays(FIXED.plan(SamplesPerPlate(hat.counts.by_plate), 1.0, scaled.range), hat.samples))
    rank = 2  # ceil(2 / eps) at epsilon 1
    dependent = float(means[-rank] - means[rank - 1]) / QUANTA_PER_KMH
    least = min(2 * levy_kmh, 2 * dependent)
    return Verdict(
        f"{scaled.name}: with exact quantiles, Array-Averaging's noise is below Levy's and eps-DependentQuantile's",
        "slides; 2401.15906, early version, Proposition IV.2 (for lambda large enough)",
        most < least,
        f"at epsilon 1, times K: {most:g} against {2 * levy_kmh:.1f} and {2 * dependent:.1f} km/h",
        f"it would take intervals wider than U/2 = {most / 2:g} km/h; means of up to {levy_cap(hat.counts)} samples "
        f"spread over {dependent:.1f} km/h only, and lambda = {LAMBDA} is not large enough for outliers beyond",
    )


def _number_to_beat(after: Errors, what: str) -> Verdict:
    return Verdict(
        f"{after.rows[0].data}: at epsilon 1 every mechanism of the papers beats the baseline guess",
        "not stated by them; the baseline guess",
        all(after.at(one) < after.rows[0].constant_kmh for one in PUBLISHED),
        after.beside_the_constant(SERIES[what]),
        "scaled up, but not far enough for every mechanism's noise to fall below that",
    )


def sample_jobs(setup: Setup) -> list[Job]:
    """Ten times the samples per user."""
    return _jobs(setup, "samples")


def sample_conclude(setup: Setup, rows: Sequence[MeanRow]) -> Outcome:
    """Levy is stated to be best."""
    return _conclude(setup, rows, "samples")


def user_jobs(setup: Setup) -> list[Job]:
    """Ten times the users."""
    return _jobs(setup, "users")


def user_conclude(setup: Setup, rows: Sequence[MeanRow]) -> Outcome:
    """FixedQuantile is stated to be best."""
    return _conclude(setup, rows, "users")


SAMPLE_SCALING = Experiment(
    "sample-scaling", "ten times the samples of every plate, Gaussian speeds", sample_jobs, sample_conclude
)
USER_SCALING = Experiment("user-scaling", "ten times the plates, Gaussian speeds", user_jobs, user_conclude)
