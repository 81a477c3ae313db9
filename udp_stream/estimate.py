"""Estimates: plans, samples and bits to noisy values. The only place where speeds meet noise.

Everything released is an integer vector plus discrete Laplace noise, so the noise of all HATs of a slot is drawn in one
call, and what follows it is post-processing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from udp_stream.cdfs.mechanism import CdfPlan, cdf_values_of_many, node_counts
from udp_stream.means import MECHANISMS, MeanPlan
from udp_stream.noise import Lattice, discrete_laplace, laplace_lattice
from udp_stream.plan import HatPlan
from udp_stream.ports import Bits

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class HatEstimate:
    """What came out for one HAT: the mean and its noise scale in quanta, and the CDF's values at its edges."""

    mean: float | None
    mean_scale: float
    cdf: list[float] | None


@dataclass(frozen=True, slots=True)
class _Query:
    """Integers that await noise of scale t/s each, and where the mean's lattice lies."""

    integers: Integers
    t: Integers
    s: Integers
    lattice: Lattice | None


def estimate_hats(plans: Sequence[HatPlan], samples: Sequence[Integers], bits: Bits) -> list[HatEstimate]:
    """One estimate per plan; `samples[i]` are its admitted plates' speeds in quanta, in the order of its counts."""
    queries = [_query(plan, speeds, bits) for plan, speeds in zip(plans, samples, strict=True)]
    if not queries:
        return []
    noise = discrete_laplace(
        bits, np.concatenate([query.t for query in queries]), np.concatenate([query.s for query in queries])
    )
    noisy = np.concatenate([query.integers for query in queries]) + noise
    parts = np.split(noisy, np.cumsum([query.integers.size for query in queries])[:-1])
    cdfs = _cdfs(plans, parts)
    return [
        _estimate(plan, query, part, cdf) for plan, query, part, cdf in zip(plans, queries, parts, cdfs, strict=True)
    ]


def _query(plan: HatPlan, samples: Integers, bits: Bits) -> _Query:
    integers, t, s, lattice = [], [], [], None
    if plan.mean is not None:
        asked = MECHANISMS[plan.mean.mechanism].query(plan.mean, samples, bits)
        lattice = laplace_lattice(asked.sensitivity, plan.mean.noise_epsilon_nano)
        integers.append(np.array([lattice.project(asked.statistic)]))
        t.append(np.array([lattice.t]))
        s.append(np.array([1]))
    if plan.cdf is not None:
        integers.append(node_counts(plan.cdf, samples))
        t.append(plan.cdf.t)
        s.append(plan.cdf.s)
    return _Query(np.concatenate(integers), np.concatenate(t), np.concatenate(s), lattice)


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
    if plan.mean is None or query.lattice is None:
        return HatEstimate(None, 0.0, cdf)
    mean = (int(noisy[0]) << query.lattice.shift) / plan.mean.divisor
    return HatEstimate(_within(mean, plan.mean), query.lattice.scale / plan.mean.divisor, cdf)


def _within(mean: float, plan: MeanPlan) -> float:
    return min(max(mean, 0.0), float(plan.max_speed))
