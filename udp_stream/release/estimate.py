"""Estimates: plans, samples and bits to noisy values. The only place where speeds meet noise.

Everything released is an integer vector plus noise of one family, so the noise of all HATs of a slot is drawn in one
call, and what follows it is post-processing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.cdfs.mechanism import CdfPlan, cdf_values_of_many, node_counts
from udp_stream.mechanisms.means import MECHANISMS
from udp_stream.mechanisms.noise import Lattice, Noise, lattice_of
from udp_stream.mechanisms.variance import variance_query, variance_value
from udp_stream.planning.hat_plan import HatPlan

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class HatEstimate:
    """What came out for one HAT: mean and variance with their noise scales, in quanta, and the CDF at its edges.

    The mean is the noisy one, which may lie beyond [0, U]: how far tells what it does not rule out. The scale of what
    was not asked for is 0. Some means are projected to a private interval.
    """

    mean: float | None
    mean_scale: float
    projected_to: tuple[int, int] | None
    variance: float | None
    variance_scale: float
    cdf: list[float] | None


@dataclass(frozen=True, slots=True)
class _Query:
    """Integers that await noise of scale t/s each: mean, variance, nodes; and the lattices of the first two."""

    integers: Integers
    t: Integers
    s: Integers
    mean: Lattice | None
    projected_to: tuple[int, int] | None
    variance: Lattice | None


def estimate_hats(plans: Sequence[HatPlan], samples: Sequence[Integers], bits: Bits) -> list[HatEstimate]:
    """One estimate per plan; `samples[i]` are its admitted plates' speeds in quanta, in the order of its counts."""
    queries = [_query(plan, speeds, bits) for plan, speeds in zip(plans, samples, strict=True)]
    if not queries:
        return []
    t, s = np.concatenate([query.t for query in queries]), np.concatenate([query.s for query in queries])
    noise = _family(plans).draw(bits, t, s)
    noisy = np.concatenate([query.integers for query in queries]) + noise
    parts = np.split(noisy, np.cumsum([query.integers.size for query in queries])[:-1])
    cdfs = _cdfs(plans, parts)
    return [
        _estimate(plan, query, part, cdf) for plan, query, part, cdf in zip(plans, queries, parts, cdfs, strict=True)
    ]


def _family(plans: Sequence[HatPlan]) -> Noise:
    """The one family of all plans: a ledger keeps one measure, hence so do the plans of a slot."""
    families = {one.noise for plan in plans for one in (plan.mean, plan.variance, plan.cdf) if one is not None}
    if len(families) != 1:
        raise ValueError(f"expected plans with noise of one family, got {sorted(one.name for one in families)}")
    return families.pop()


def _query(plan: HatPlan, samples: Integers, bits: Bits) -> _Query:
    first, lattices, mean, projected_to, variance = [], [], None, None, None
    if plan.mean is not None:
        asked = MECHANISMS[plan.mean.mechanism].query(plan.mean, samples, bits)
        mean = lattice_of(asked.sensitivity, plan.mean.noise_cost)
        projected_to = asked.projected_to
        first.append(mean.project(asked.statistic))
        lattices.append(mean.t)
    if plan.variance is not None:
        asked = variance_query(plan.variance, samples)
        variance = lattice_of(asked.sensitivity, plan.variance.cost)
        first.append(variance.project(asked.statistic))
        lattices.append(variance.t)
    integers, t, s = np.array(first, np.int64), np.array(lattices, np.int64), np.ones(len(first), np.int64)
    if plan.cdf is not None:
        integers = np.concatenate((integers, node_counts(plan.cdf, samples)))
        t, s = np.concatenate((t, plan.cdf.t)), np.concatenate((s, plan.cdf.s))
    return _Query(integers, t, s, mean, projected_to, variance)


def _cdfs(plans: Sequence[HatPlan], parts: Sequence[Integers]) -> list[list[float] | None]:
    """The CDFs' values, computed together for all HATs with the same bins."""
    values: list[list[float] | None] = [None] * len(plans)
    for alike in _alike([plan.cdf for plan in plans]):
        cdf_plans = [cdf for i in alike if (cdf := plans[i].cdf) is not None]
        rows = np.stack([parts[i][-cdf_plans[0].tree.nodes :] for i in alike])
        for i, row in zip(alike, cdf_values_of_many(cdf_plans, rows), strict=True):
            values[i] = row
    return values


def _alike(cdfs: Sequence[CdfPlan | None]) -> Iterator[list[int]]:
    groups: dict[tuple[float, ...], list[int]] = {}
    for i, cdf in enumerate(cdfs):
        if cdf is not None:
            groups.setdefault(cdf.bins.edges_kmh, []).append(i)
    yield from groups.values()


def _estimate(plan: HatPlan, query: _Query, noisy: Integers, cdf: list[float] | None) -> HatEstimate:
    mean = variance = None
    mean_scale = variance_scale = 0.0
    if plan.mean is not None and query.mean is not None:
        mean = plan.mean.value(int(noisy[0]) << query.mean.shift)
        mean_scale = plan.mean.noise.expected_abs(query.mean.scale) / plan.mean.divisor
    if plan.variance is not None and query.variance is not None:
        at = 0 if mean is None else 1
        variance = variance_value(plan.variance, int(noisy[at]) << query.variance.shift)
        variance_scale = plan.variance.noise.expected_abs(query.variance.scale) / plan.variance.divisor
    return HatEstimate(mean, mean_scale, query.projected_to, variance, variance_scale, cdf)
