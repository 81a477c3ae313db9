"""One plan's estimate drawn many times over the same speeds: what `estimate` does once, for all repetitions at once.

The deterministic part (array means, costs of private choices) is computed once; every private choice and every noise
draw is made anew for each repetition. Repetitions charge nothing because nothing here is released.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from udp_stream.experiments.base import Integers
from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.means import MECHANISMS, MeanPlan
from udp_stream.mechanisms.means._projected import Projected, means_of_arrays, projected_queries
from udp_stream.mechanisms.noise import lattice_of
from udp_stream.mechanisms.variance import VariancePlan, variance_query, variance_value

Floats = NDArray[np.float64]


def repeated_means_of(plans: Sequence[MeanPlan], samples: Sequence[Integers], draws: int, bits: Bits) -> list[Floats]:
    """That many independent estimates of each HAT's mean, in quanta within the range; samples are in quanta.

    The noise of all HATs is drawn in one call.
    """
    queries = [_on_lattice(plan, speeds, draws, bits) for plan, speeds in zip(plans, samples, strict=True)]
    steps, t, shift = (np.concatenate(columns) for columns in zip(*queries, strict=True))
    noisy = (steps + plans[0].noise.draw(bits, t) << shift).astype(np.float64).reshape(len(plans), draws)
    return [_released(plan, row) for plan, row in zip(plans, noisy, strict=True)]


def _released(plan: MeanPlan, noisy: Floats) -> Floats:
    return np.clip(plan.range.low + noisy / plan.divisor, float(plan.range.low), float(plan.range.high))


def _on_lattice(plan: MeanPlan, samples: Integers, draws: int, bits: Bits) -> tuple[Integers, Integers, Integers]:
    """For each draw: its statistic in steps of its lattice, the noise's scale t there, and the steps' shift."""
    mechanism = MECHANISMS[plan.mechanism]
    if isinstance(mechanism, Projected):
        means = means_of_arrays(plan, samples)
        sums, sensitivities = projected_queries(plan, means, *mechanism.intervals(plan, means, bits, draws))
    else:
        query = mechanism.query(plan, samples, bits)
        sums, sensitivities = np.full(draws, query.statistic), np.full(draws, query.sensitivity)
    distinct, which = np.unique(sensitivities, return_inverse=True)
    lattices = [lattice_of(int(sensitivity), plan.noise_cost) for sensitivity in distinct]
    t, shift = np.array([(one.t, one.shift) for one in lattices], dtype=np.int64)[which].T
    half = np.where(shift > 0, 1 << np.maximum(shift - 1, 0), 0)
    return sums + half >> shift, t, shift


def buffered(bits: Bits, block: int = 1 << 16) -> Bits:
    """The same source read in large pieces: many small draws are quicker."""
    held, at = b"", 0

    def take(count: int) -> bytes:
        nonlocal held, at
        if at + count > len(held):
            held, at = held[at:] + bits(max(block, count)), 0
        at += count
        return held[at - count : at]

    return take


def repeated_variances(plan: VariancePlan, samples: Integers, draws: int, bits: Bits) -> Floats:
    """That many independent estimates of the variance, in quanta^2."""
    query = variance_query(plan, samples)
    lattice = lattice_of(query.sensitivity, plan.cost)
    base = lattice.project(query.statistic)
    noise = plan.noise.draw(bits, np.full(draws, lattice.t)).tolist()
    return np.array([variance_value(plan, (base + one) << lattice.shift) for one in noise])


def error_of(found: Floats, truth: float) -> tuple[float, float]:
    """Mean absolute error, and its standard error (0 for a single draw)."""
    errors = np.abs(found - truth)
    spread = float(errors.std(ddof=1)) / errors.size**0.5 if errors.size > 1 else 0.0
    return float(errors.mean()), spread
