"""`variance`: errors of the variance, and the slides' theorems on it tried against brute force (arXiv 2405.06261)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import partial

import numpy as np

from udp_stream.experiments.data import DataSet, HatSamples, Setup, choices, data_sets
from udp_stream.experiments.findings import Experiment, Figure, Finding, Job, Outcome, ResultRow, where
from udp_stream.experiments.means import EPSILONS, buffered, mean_error, over_epsilon, weights_of
from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.base import Range, SamplesPerPlate
from udp_stream.mechanisms.noise import Floats, Integers, lattice_of, pure
from udp_stream.mechanisms.variance import VariancePlan, plan_variance, variance_query, variance_value
from udp_stream.units import NANO, QUANTA_PER_KMH

RULES = ("all samples", "best cap")
"""The slides' canonical Laplace mechanism, and the cap of least worst-case error."""

SAMPLES_TRIED = 24
"""Brute force goes over all numbers of samples up to this, kept and dropped, at 0 or U each."""


class VarianceRow(ResultRow):
    """One point: the error of the variance over the given HATs, weighed by pings, beside the baseline guess's."""


def repeated_variances(plan: VariancePlan, samples: Integers, draws: int, bits: Bits) -> Floats:
    """That many independent estimates of the variance, in quanta^2."""
    query = variance_query(plan, samples)
    lattice = lattice_of(query.sensitivity, plan.cost)
    base = lattice.project(query.statistic)
    noise = plan.noise.draw(bits, np.full(draws, lattice.t)).tolist()
    return np.array([variance_value(plan, (base + one) << lattice.shift) for one in noise])


def jobs(setup: Setup) -> list[Job]:
    """Each rule and epsilon, on the busiest HAT and, of feeds, on all HATs with enough plates."""
    return [
        partial(_point, setup, data, label, hats, rule, epsilon)
        for data in data_sets(setup)
        for label, hats in choices(setup, data)
        for rule in RULES
        for epsilon in EPSILONS
    ]


def _plan(rule: str, counts: SamplesPerPlate, epsilon: float, range: Range) -> VariancePlan:
    asked = counts, pure(round(epsilon * NANO)), range
    return plan_variance(*asked) if rule == "best cap" else plan_variance(*asked, counts.largest)


def _point(
    setup: Setup, data: DataSet, label: str, hats: Sequence[HatSamples], rule: str, epsilon: float
) -> list[VarianceRow]:
    bits = buffered(setup.bits(f"variance/{data.name}/{label}/{rule}/{epsilon}"))
    draws, weights, unit = -(-setup.repetitions // len(hats)), weights_of(hats), QUANTA_PER_KMH**2
    plans, truths = [_plan(rule, hat.counts, epsilon, data.range) for hat in hats], [hat.samples.var() for hat in hats]
    found = [repeated_variances(plan, hat.samples, draws, bits) for plan, hat in zip(plans, hats, strict=True)]
    error, spread = mean_error(weights, found, truths)
    return [
        VarianceRow(
            data=data.name,
            hats=label,
            rule=rule,
            epsilon=epsilon,
            error_kmh2=error / unit,
            standard_error_kmh2=spread / unit,
            constant_kmh2=float(weights @ np.abs(_constant(data) - np.array(truths))) / unit,
            constant="city-wide mean of HATs' variances" if data.recorded else "U^2/8",
            share_of_pings=data.share(hats),
            noise_kmh2=float(weights @ [plan.noise_bound for plan in plans]) / unit,
            bias_bound_kmh2=float(weights @ [plan.bias_bound for plan in plans]) / unit,
            hat_count=len(hats),
            repetitions=draws * len(hats),
        )
    ]


def _constant(data: DataSet) -> float:
    """The middle of [0, U^2/4] where nothing is known; else the mean variance of the HATs, weighed by samples."""
    if not data.recorded:
        return data.range.width**2 / 8
    return float(weights_of(data.hats) @ [float(hat.samples.var()) for hat in data.hats])


def conclude(setup: Setup, rows: Sequence[VarianceRow]) -> Outcome:
    """A figure for each data set; the theorems beside brute force."""
    figures, findings = [], [*theorem_findings()]
    for data in data_sets(setup):
        panels = []
        for label, _ in choices(setup, data):
            here = where(rows, data=data.name, hats=label)
            of = [(rule, where(here, rule=rule)) for rule in RULES]
            title = f"{label} ({here[0].share_of_pings:.0%} of pings)"
            panels.append(over_epsilon(title, "variance", "(km/h)\u00b2", of, "error_kmh2", "constant_kmh2"))
            findings += _findings(data, label, here)
        figures.append(Figure(f"variance-{data.name}", f"{data.name}: variance of speeds", panels))
    return Outcome({"variance": rows}, figures, findings)


def _findings(data: DataSet, label: str, rows: Sequence[VarianceRow]) -> Iterator[Finding]:
    both = list(zip(*(where(rows, rule=rule) for rule in RULES), strict=True))
    worse = any(
        capped.error_kmh2 - whole.error_kmh2 > 3 * math.hypot(whole.standard_error_kmh2, capped.standard_error_kmh2)
        for whole, capped in both
    )
    at_one = whole, capped = where(rows, epsilon=1.0)
    bounds, best = [row.noise_kmh2 + row.bias_bound_kmh2 for row in at_one], min(row.error_kmh2 for row in at_one)
    yield Finding("variance-cap", not worse, data=data, label=label, whole=whole, capped=capped, bounds=bounds)
    yield Finding("guess-variance", best < rows[0].constant_kmh2, data=data, label=label, best=best, row=rows[0])


def spread(ones: int, samples: int) -> Fraction:
    """The variance, in units of U^2, of samples of which `ones` are at U and the others at 0."""
    share = Fraction(ones, samples)
    return share * (1 - share)


def largest_bias(total: int, kept: int) -> Fraction:
    """Brute force over all data at 0 or U: the most by which the kept samples' variance is off that of all."""
    dropped = total - kept
    return max(abs(spread(a, kept) - spread(a + b, total)) for a in range(kept + 1) for b in range(dropped + 1))


def largest_move(kept: int, given: int) -> Fraction:
    """Brute force over all data at 0 or U: how far a plate with `given` of the kept samples can move their variance."""
    reached = [[spread(y + x, kept) for x in range(given + 1)] for y in range(kept - given + 1)]
    return max(max(row) - min(row) for row in reached)


def printed_half(samples: int) -> Fraction:
    """The slides' largest variance, with half of the samples at U or as near to that as can be, in units of U^2."""
    return Fraction(1, 4) if samples % 2 == 0 else Fraction(1, 4) * (1 - Fraction(1, samples**2))


def printed_move(kept: int, given: int) -> Fraction:
    """The slides' sensitivity for the plate that gives most, in units of U^2."""
    return Fraction(given * (kept - given), kept**2) if kept > 2 * given else printed_half(kept)


def printed_bias(total: int, kept: int, exchanged: bool = False) -> Fraction:
    """The slides' worst-case clipping error, as printed or with its two cases exchanged, in units of U^2."""
    if kept == total:
        return Fraction(0)
    if (total > 2 * kept) is not exchanged:
        return Fraction(kept * (total - kept), total**2)
    return printed_half(total)


def theorem_findings() -> Iterator[Finding]:
    """The printed theorems beside brute force."""
    cases = [(total, part) for total in range(1, SAMPLES_TRIED + 1) for part in range(1, total + 1)]
    moves = sum(printed_move(*case) == largest_move(*case) for case in cases)
    yield Finding("variance-sensitivity", moves == len(cases), equal=moves, cases=len(cases))
    biases = {case: largest_bias(*case) for case in cases}
    printed, swapped = (
        sum(printed_bias(*case, exchanged=which) == bias for case, bias in biases.items()) for which in (False, True)
    )
    yield Finding("variance-bias", printed == len(cases), equal=printed, cases=len(cases), exchanged=swapped)
    users = 10
    item = largest_move(users, 1)
    yield Finding("variance-item-level", item == Fraction(users - 1, users), users=users, item=item)


EXPERIMENT = Experiment("variance", "errors of the variance, and the theorems on it", jobs, conclude)
