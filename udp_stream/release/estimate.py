"""Estimates: plans, samples and bits to noisy values. The only place where speeds meet noise.

Everything released is an integer vector plus noise of one family, so the noise of all HATs of a slot is drawn in one
call, and what follows it is post-processing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec
import numpy as np

from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.around import ForecastClipPlan
from udp_stream.mechanisms.noise import Noise
from udp_stream.mechanisms.statistic import Integers, Query, StatisticPlan
from udp_stream.mechanisms.statistics import AROUND, STATISTICS, NoisyMean, NoisyVariance
from udp_stream.planning.plan import HatPlan


@dataclass(frozen=True, slots=True)
class HatEstimate:
    """What came out for one HAT: for each statistic that was asked for, what `Statistic.values` made of it.

    >>> only_mean = HatEstimate({"mean": NoisyMean(4096.0, scale=512.0, projected_to=None)})
    >>> only_mean.mean, only_mean.variance, only_mean.cdf
    (4096.0, None, None)
    """

    values: Mapping[str, object]

    @property
    def noisy_mean(self) -> NoisyMean | None:
        """The mean, if it was asked for."""
        value = self.values.get("mean")
        return value if isinstance(value, NoisyMean) else None

    @property
    def mean(self) -> float | None:
        """The mean in quanta, which may lie beyond the range."""
        return None if self.noisy_mean is None else self.noisy_mean.value

    @property
    def noisy_variance(self) -> NoisyVariance | None:
        """The variance, if it was asked for."""
        value = self.values.get("variance")
        return value if isinstance(value, NoisyVariance) else None

    @property
    def variance(self) -> float | None:
        """The variance in quanta^2."""
        return None if self.noisy_variance is None else self.noisy_variance.value

    @property
    def cdf(self) -> list[float] | None:
        """The CDF at its edges, if it was asked for."""
        value = self.values.get("cdf")
        return value if isinstance(value, list) else None


class _Asked(msgspec.Struct, frozen=True, eq=False):
    """A statistic of the HAT at this place in a slot, and its query."""

    place: int
    statistic: str
    query: Query


def estimate_hats(
    plans: Sequence[HatPlan],
    samples: Sequence[Integers],
    bits: Bits,
    factors: Sequence[Integers | None] | None = None,
) -> list[HatEstimate]:
    """One estimate per plan; `samples[i]` are its admitted plates' speeds in quanta, in the order of its counts.

    `factors[i]` are those of its admitted plates' clips, where each shares one among HATs (`mechanisms/around.py`);
    ValueError if such a plan has none.
    """
    asked = [
        _Asked(place, name, _query(name, of_statistic, speeds, shrink, bits))
        for place, (plan, speeds, shrink) in enumerate(zip(plans, samples, factors or [None] * len(plans), strict=True))
        for name, of_statistic in plan.statistics.items()
    ]
    values: list[dict[str, object]] = [{} for _ in plans]
    # Where nothing is asked there is no family of noise, and `_family` would refuse.
    noisy = noisy_integers([one.query for one in asked], _family(plans), bits) if asked else []
    for name, statistic in STATISTICS.items():  # all HATs of a statistic at once: CDFs are the quicker for it
        of_hats = [(one, integers) for one, integers in zip(asked, noisy, strict=True) if one.statistic == name]
        found = statistic.values(
            [plans[one.place].statistics[name] for one, _ in of_hats],
            [one.query for one, _ in of_hats],
            [integers for _, integers in of_hats],
        )
        for (one, _), value in zip(of_hats, found, strict=True):
            values[one.place][name] = value
    return [HatEstimate(one) for one in values]


def _query(name: str, plan: StatisticPlan, samples: Integers, factors: Integers | None, bits: Bits) -> Query:
    if isinstance(plan, ForecastClipPlan) and plan.around.width.ball and factors is not None:
        return AROUND.query_in_ball(plan, samples, factors)
    return STATISTICS[name].query(plan, samples, bits)


def _family(plans: Sequence[HatPlan]) -> Noise:
    """The one family of all plans: a ledger keeps one measure, hence so do the plans of a slot."""
    families = {of_statistic.noise for plan in plans for of_statistic in plan.statistics.values()}
    if len(families) != 1:
        raise ValueError(f"expected plans with noise of one family, got {sorted(one.name for one in families)}")
    return families.pop()


def noisy_integers(queries: Sequence[Query], family: Noise, bits: Bits) -> list[Integers]:
    """The integers of every query with their noise, which is drawn in one call."""
    t, s = np.concatenate([query.t for query in queries]), np.concatenate([query.s for query in queries])
    noisy = np.concatenate([query.integers for query in queries]) + family.draw(bits, t, s)
    ends = np.cumsum([0, *(query.integers.size for query in queries)]).tolist()
    return [noisy[start:end] for start, end in pairwise(ends)]
