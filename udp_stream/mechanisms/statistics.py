"""The statistics that HATs can be asked for: means, variance and CDF, by the names that terms use.

Each joins its mechanisms, which state their sensitivity and cost, to what `statistic.py` says all share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.accuracy import plan_automatic
from udp_stream.mechanisms.around import (
    FORECAST_CLIP,
    Around,
    ForecastClipPlan,
    around_for_admitted,
    clipped_sum,
    plans_around,
    shrunk_sum,
)
from udp_stream.mechanisms.cdf import CDF_MECHANISMS, TREE, CdfPlan
from udp_stream.mechanisms.grouping import SamplesPerPlate
from udp_stream.mechanisms.means import MECHANISMS, MeanPlan
from udp_stream.mechanisms.noise import lattice_of
from udp_stream.mechanisms.statistic import Integers, PublicSettings, Query, Statistic, StatisticTerms
from udp_stream.mechanisms.variance import (
    VariancePlan,
    plan_variance,
    plan_variance_with_cap,
    variance_for_admitted,
    variance_query,
    variance_value,
)
from udp_stream.units import QUANTA_PER_KMH


@dataclass(frozen=True, slots=True)
class NoisyMean:
    """A mean with its noise's expected size, in quanta, and the private interval that it was projected to, if it was.

    The value may lie beyond the range: how far tells what it does not rule out.

    >>> NoisyMean(-0.5, scale=2.0, projected_to=None).value
    -0.5
    """

    value: float
    scale: float
    projected_to: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class NoisyVariance:
    """A variance within [0, U^2/4], with its noise's expected size; in quanta^2.

    >>> NoisyVariance(4.0, scale=2.0).scale
    2.0
    """

    value: float
    scale: float


class MeanStatistic:
    """By the mechanism that was chosen or is configured, or for "auto" the one of least expected error.

    >>> from udp_stream.mechanisms.statistic import Range
    >>> counts, public = SamplesPerPlate(np.array([2, 1])), PublicSettings(Range(0, 65 * 4096), bins=4)
    >>> statistic = MeanStatistic()
    >>> plan = statistic.plan(counts, StatisticTerms(statistic.name, 10**9), public)
    >>> query = statistic.query(plan, np.array([10, 20, 30]) * 4096, bits=bytes)
    >>> plan.mechanism, query.integers.tolist()
    ('optimal', [296960])
    """

    name = "mean"

    def plan(self, counts: SamplesPerPlate, asked: StatisticTerms, public: PublicSettings) -> MeanPlan:
        """`auto` searches among mechanisms and caps, each mechanism for its cap."""
        terms, choice = (asked.cost, public.range, asked.grouping), asked.choice
        if choice is not None:
            return MECHANISMS[choice.mechanism].plan_with_cap(counts, *terms, choice.cap_among(counts))
        if asked.mechanism == "auto":
            return plan_automatic(counts, *terms, asked.compare_at)
        return MECHANISMS[asked.mechanism].plan(counts, *terms)

    def at(self, plan: MeanPlan, asked: StatisticTerms, public: PublicSettings) -> MeanPlan:
        """Which mechanism is best, and its cap, may depend on epsilon; at equal charge the best one does not."""
        if asked.mechanism == "auto" and asked.compare_at == "epsilon":
            return self.plan(plan.counts, asked, public)
        return MECHANISMS[plan.mechanism].at(plan, asked.cost)

    def subset(self, plan: MeanPlan, admitted: NDArray[np.bool_]) -> MeanPlan:
        """As its mechanism has it."""
        return MECHANISMS[plan.mechanism].subset(plan, admitted)

    def query(self, plan: MeanPlan, samples: Integers, bits: Bits) -> Query:
        """One integer; bits pay for the private interval of mechanisms that project."""
        asked = MECHANISMS[plan.mechanism].query(plan, samples, bits)
        lattice = lattice_of(asked.sensitivity, plan.noise_cost)
        return Query.of_one(asked.statistic, lattice, asked.projected_to)

    def values(self, plans: Sequence[MeanPlan], queries: Sequence[Query], noisy: Sequence[Integers]) -> list[NoisyMean]:
        """Sums become means."""
        return [
            NoisyMean(
                plan.value(query.noisy_value(one)),
                plan.noise.expected_abs(query.scale) / plan.divisor,
                query.projected_to,
            )
            for plan, query, one in zip(plans, queries, noisy, strict=True)
        ]


class ForecastClipStatistic:
    """The mean around a forecast, which its terms carry.

    >>> from udp_stream.mechanisms.statistic import Range
    >>> counts, public = SamplesPerPlate(np.array([2, 1])), PublicSettings(Range(0, 65 * 4096), bins=4)
    >>> from udp_stream.mechanisms.statistic import AroundForecast
    >>> asked = StatisticTerms("forecast-clip", 10**9, around=AroundForecast.of(18.0, np.array([17.0, 19.0])))
    >>> statistic = ForecastClipStatistic()
    >>> plan = statistic.plan(counts, asked, public)
    >>> query = statistic.query(plan, np.array([10, 20, 30]) * 4096, bits=bytes)
    >>> query.t.tolist(), bool(query.integers[0] > 0)
    ([53432083], True)
    """

    name = FORECAST_CLIP

    def plan(self, counts: SamplesPerPlate, asked: StatisticTerms, public: PublicSettings) -> ForecastClipPlan:
        """Nothing is searched; ValueError where the terms have no forecast for each plate."""
        return self.plan_each([counts], [asked], public)[0]

    def plan_each(
        self, counts: Sequence[SamplesPerPlate], asked: Sequence[StatisticTerms], public: PublicSettings
    ) -> list[ForecastClipPlan]:
        """Of many HATs at once, at one cost; ValueError where they have several."""
        if len({(one.measure, one.epsilon_nano) for one in asked}) > 1:
            raise ValueError("expected one cost for all HATs")
        return plans_around(counts, [_around(one) for one in asked], asked[0].cost, public.range) if asked else []

    def at(self, plan: ForecastClipPlan, asked: StatisticTerms, public: PublicSettings) -> ForecastClipPlan:  # noqa: ARG002
        """Weights do not depend on epsilon; the width is part of the terms."""
        return replace(plan, cost=asked.cost)

    def subset(self, plan: ForecastClipPlan, admitted: NDArray[np.bool_]) -> ForecastClipPlan:
        """Around the same forecast."""
        return around_for_admitted(plan, admitted)

    def query(self, plan: ForecastClipPlan, samples: Integers, bits: Bits) -> Query:  # noqa: ARG002
        """One integer."""
        return Query.of_one(clipped_sum(plan, samples), lattice_of(plan.sensitivity, plan.cost))

    def query_in_ball(self, plan: ForecastClipPlan, samples: Integers, factors: Integers) -> Query:
        """The same where each plate's HATs share one clip: with the plates' factors."""
        return Query.of_one(shrunk_sum(plan, samples, factors), lattice_of(plan.sensitivity, plan.cost))

    def values(
        self, plans: Sequence[ForecastClipPlan], queries: Sequence[Query], noisy: Sequence[Integers]
    ) -> list[NoisyMean]:
        """Forecast and what was observed around it."""
        return [
            NoisyMean(plan.value(query.noisy_value(one)), plan.noise.expected_abs(query.scale) / plan.divisor, None)
            for plan, query, one in zip(plans, queries, noisy, strict=True)
        ]


class VarianceStatistic:
    """By the clipped variance.

    >>> from udp_stream.mechanisms.statistic import Range
    >>> counts, public = SamplesPerPlate(np.array([2, 1])), PublicSettings(Range(0, 65 * 4096), bins=4)
    >>> statistic = VarianceStatistic()
    >>> plan = statistic.plan(counts, StatisticTerms(statistic.name, 10**9), public)
    >>> query = statistic.query(plan, np.array([10, 20, 30]) * 4096, bits=bytes)
    >>> plan.cap, query.integers.tolist()
    (2, [2457600])
    """

    name = "variance"

    def plan(self, counts: SamplesPerPlate, asked: StatisticTerms, public: PublicSettings) -> VariancePlan:
        """The search is for the cap."""
        if asked.choice is None:
            return plan_variance(counts, asked.cost, public.range)
        return plan_variance_with_cap(counts, asked.cost, public.range, asked.choice.cap_among(counts))

    def at(self, plan: VariancePlan, asked: StatisticTerms, public: PublicSettings) -> VariancePlan:
        """The cap is another one."""
        return self.plan(plan.counts, asked, public)

    def subset(self, plan: VariancePlan, admitted: NDArray[np.bool_]) -> VariancePlan:
        """The same cap."""
        return variance_for_admitted(plan, admitted)

    def query(self, plan: VariancePlan, samples: Integers, bits: Bits) -> Query:  # noqa: ARG002
        """One integer."""
        asked = variance_query(plan, samples)
        return Query.of_one(asked.statistic, lattice_of(asked.sensitivity, plan.cost))

    def values(
        self, plans: Sequence[VariancePlan], queries: Sequence[Query], noisy: Sequence[Integers]
    ) -> list[NoisyVariance]:
        """Clamped."""
        return [
            NoisyVariance(
                variance_value(plan, query.noisy_value(one)), plan.noise.expected_abs(query.scale) / plan.divisor
            )
            for plan, query, one in zip(plans, queries, noisy, strict=True)
        ]


class CdfStatistic:
    """By the mechanism that was chosen; "auto" is the best tree.

    >>> from udp_stream.mechanisms.statistic import Range
    >>> counts, public = SamplesPerPlate(np.array([2, 1])), PublicSettings(Range(0, 65 * 4096), bins=4)
    >>> statistic = CdfStatistic()
    >>> plan = statistic.plan(counts, StatisticTerms(statistic.name, 10**9), public)
    >>> query = statistic.query(plan, np.array([10, 20, 30]) * 4096, bits=bytes)
    >>> statistic.values([plan], [query], [query.integers])
    [[0.0, 0.5, 1.0, 1.0, 1.0]]
    """

    name = "cdf"

    def plan(self, counts: SamplesPerPlate, asked: StatisticTerms, public: PublicSettings) -> CdfPlan:
        """The search is for cap and bins."""
        configured = TREE if asked.mechanism == "auto" else asked.mechanism
        mechanism = CDF_MECHANISMS[configured if asked.choice is None else asked.choice.mechanism]
        max_kmh = public.range.high / QUANTA_PER_KMH
        return mechanism.plan(counts, asked.cost, max_kmh, public.bins, asked.choice)

    def at(self, plan: CdfPlan, asked: StatisticTerms, public: PublicSettings) -> CdfPlan:
        """Cap and bins are others."""
        return self.plan(plan.counts, asked, public)

    def subset(self, plan: CdfPlan, admitted: NDArray[np.bool_]) -> CdfPlan:
        """As its mechanism has it."""
        return CDF_MECHANISMS[plan.choice.mechanism].subset(plan, admitted)

    def query(self, plan: CdfPlan, samples: Integers, bits: Bits) -> Query:  # noqa: ARG002
        """An integer for each node."""
        return Query(CDF_MECHANISMS[plan.choice.mechanism].node_counts(plan, samples), plan.t, plan.s)

    def values(
        self,
        plans: Sequence[CdfPlan],
        queries: Sequence[Query],  # noqa: ARG002
        noisy: Sequence[Integers],
    ) -> list[list[float]]:
        """Computed together for all HATs with the same bins, which is an order of magnitude quicker than one by one."""
        values: list[list[float]] = [[] for _ in plans]
        for alike in _alike(plans):
            mechanism, rows = CDF_MECHANISMS[plans[alike[0]].choice.mechanism], np.stack([noisy[i] for i in alike])
            for i, row in zip(alike, mechanism.values([plans[i] for i in alike], rows), strict=True):
                values[i] = row
        return values


def _around(asked: StatisticTerms) -> Around:
    if asked.around is None:
        raise ValueError("expected terms with a forecast")
    return Around(asked.around.hat_quanta, asked.around.plates_quanta, asked.around.width)


def _alike(plans: Sequence[CdfPlan]) -> Iterator[list[int]]:
    """The numbers of plans with the same mechanism and bins."""
    groups: dict[tuple[str, tuple[float, ...]], list[int]] = {}
    for i, plan in enumerate(plans):
        groups.setdefault((plan.choice.mechanism, plan.bins.edges_kmh), []).append(i)
    yield from groups.values()


AROUND = ForecastClipStatistic()

STATISTICS: dict[str, Statistic[Any, Any]] = {
    statistic.name: statistic for statistic in (MeanStatistic(), AROUND, VarianceStatistic(), CdfStatistic())
}
"""By their names, in the order of their noise. `Any`: a statistic is handed back the plans that it made."""
