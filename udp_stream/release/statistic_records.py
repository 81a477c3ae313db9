"""Plans and estimates as the fields of a release record: quanta become km/h, and values are rounded after the noise."""

from __future__ import annotations

from collections.abc import Callable
from math import hypot, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from udp_stream.ledger.conversion import epsilon_of
from udp_stream.mechanisms.accuracy import NOBODY, accuracy_of
from udp_stream.mechanisms.cdf import CdfPlan
from udp_stream.mechanisms.forecast_clip import NAME, ForecastClipPlan
from udp_stream.mechanisms.means import MeanPlan
from udp_stream.mechanisms.noise import Cost
from udp_stream.mechanisms.noise.base import interval95
from udp_stream.mechanisms.statistics import NoisyMean, NoisyVariance
from udp_stream.mechanisms.variance import VariancePlan, bias_among
from udp_stream.planning.hat_plan import HatPlan
from udp_stream.planning.policy import Policy
from udp_stream.planning.terms import Terms
from udp_stream.release.estimate import HatEstimate
from udp_stream.release.record import Cdf, Forecast, Mean, Privacy, Variance
from udp_stream.units import NANO, QUANTA_PER_KMH


def mean_record(
    plan: MeanPlan,
    noisy: float,
    scale: float,
    left_out: NDArray[np.int64] = NOBODY,
    projected_to: tuple[int, int] | None = None,
) -> Mean:
    """A noisy mean, its scale and its private interval (quanta) as a record; `left_out` counts the other plates.

    >>> from udp_stream.testing import a_plan
    >>> mean = mean_record(a_plan().mean, noisy=-4096.0, scale=2 * 4096.0)  # quanta; no mean is below 0
    >>> mean.value_kmh, mean.scale_kmh, mean.bias_bound_kmh
    (0.0, 2.0, 0.0)
    """
    others = int(left_out.sum()) if left_out.size else 0
    bias = plan.bias_bound + plan.range.width * others / (plan.counts.total + others)
    error, low, high = accuracy_of(plan, noisy, scale, left_out, projected_to)
    return Mean(
        value_kmh=round(plan.released(noisy) / QUANTA_PER_KMH, 3),
        mechanism=plan.mechanism,
        grouping=plan.grouping,
        epsilon=epsilon_stated(plan.cost),
        scale_kmh=round(scale / QUANTA_PER_KMH, 4),
        expected_abs_error_kmh=round(error / QUANTA_PER_KMH, 4),
        interval95_kmh=(round(low / QUANTA_PER_KMH, 3), round(high / QUANTA_PER_KMH, 3)),
        # Means lie in [0, U], so none is off by more than U.
        bias_bound_kmh=round(min(bias, plan.range.width) / QUANTA_PER_KMH, 4),
    )


def around_record(plan: ForecastClipPlan, noisy: float, scale: float, left_out: NDArray[np.int64] = NOBODY) -> Mean:
    """A noisy mean around a forecast, and its noise's expected size (quanta), as a record.

    >>> from udp_stream.mechanisms.forecast_clip import Around, plan_around
    >>> from udp_stream.mechanisms.grouping import SamplesPerPlate
    >>> from udp_stream.mechanisms.noise import pure
    >>> from udp_stream.mechanisms.range import Range
    >>> counts, around = SamplesPerPlate(np.array([36, 4])), Around(18 * 4096, np.array([17 * 4096, 22 * 4096]))
    >>> plan = plan_around(counts, around, pure(NANO), Range(0, 65 * 4096))
    >>> mean = around_record(plan, noisy=-4096.0, scale=2 * 4096.0)  # quanta; no mean is below 0
    >>> mean.value_kmh, mean.scale_kmh, mean.mechanism
    (0.0, 2.0, 'forecast-clip')
    """
    others, width = int(left_out.sum()), plan.range.width
    spread = hypot(plan.spread * sqrt(1 + others / plan.counts.total), plan.hidden)
    low, high = interval95(plan.noise, noisy - plan.range.low, scale, spread, width)
    return Mean(
        value_kmh=round(plan.range.clip(noisy) / QUANTA_PER_KMH, 3),
        mechanism=plan.choice.mechanism,
        grouping=None,
        epsilon=epsilon_stated(plan.cost),
        scale_kmh=round(scale / QUANTA_PER_KMH, 4),
        expected_abs_error_kmh=round(plan.noise.error(scale, spread) / QUANTA_PER_KMH, 4),
        interval95_kmh=(round(low / QUANTA_PER_KMH, 3), round(high / QUANTA_PER_KMH, 3)),
        bias_bound_kmh=round(width / QUANTA_PER_KMH, 4),
    )


def forecast_record(terms: Terms, plan: HatPlan | None, estimate: HatEstimate | None) -> Forecast | None:
    """What was forecast of the HAT, and what was measured around it; None where nothing was forecast.

    >>> from udp_stream.planning.terms import HatForecast
    >>> withheld = Terms(withheld="uninformative", forecast=HatForecast(18.0, 5.0, 3.0, 7 * (0.0,)))
    >>> record = forecast_record(withheld, None, None)
    >>> record.value_kmh, record.measured_kmh, forecast_record(Terms(), None, None)
    (18.0, None, None)
    """
    forecast = terms.forecast
    if forecast is None:
        return None
    measured = deviation = None
    if plan is not None and plan.around is not None and estimate is not None:
        noisy = estimate.values[NAME]
        if isinstance(noisy, NoisyMean):
            measured = round(noisy.value / QUANTA_PER_KMH, 3)
            deviation = round(hypot(plan.around.noise_deviation, plan.around.spread) / QUANTA_PER_KMH, 3)
    return Forecast(forecast.value, forecast.deviation, forecast.rest, forecast.prior, measured, deviation)


def variance_record(plan: VariancePlan, value: float, scale: float, left_out: NDArray[np.int64] = NOBODY) -> Variance:
    """A variance and its noise scale (quanta^2) as a record; `left_out` are the counts of the HAT's other plates.

    >>> from udp_stream.testing import a_plan
    >>> variance_record(a_plan().variance, value=100.0 * 4096**2, scale=9.0 * 4096**2).value_kmh2
    100.0
    """
    among_all = bias_among(plan.counts.total + int(left_out.sum()), plan.kept, plan.range)
    value_kmh2, scale_kmh2, bias = (q / QUANTA_PER_KMH**2 for q in (value, scale, among_all))
    return Variance(
        value_kmh2=round(value_kmh2, 3),
        mechanism="clipped-variance",
        epsilon=epsilon_stated(plan.cost),
        scale_kmh2=round(scale_kmh2, 4),
        expected_abs_error_kmh2=round(scale_kmh2, 4),
        bias_bound_kmh2=round(bias, 4),
    )


def cdf_record(plan: CdfPlan, values: list[float]) -> Cdf:
    """A CDF's values at its edges as a record.

    >>> from udp_stream.testing import a_plan
    >>> cdf_record(a_plan().cdf, [0.0, 0.25, 0.5, 1.0]).edges_kmh
    (0.0, 20.0, 40.0, 65.0)
    """
    return Cdf(
        edges_kmh=plan.bins.edges_kmh,
        values=tuple(round(value, 6) for value in values),
        epsilon=epsilon_stated(plan.cost),
        branching=plan.tree.branching,
        budgets=tuple(budget / NANO for budget in plan.budgets_nano),
        expected_rms_error=round(plan.rms_error, 4),
    )


class StatisticRecords(NamedTuple):
    """The records of a HAT's statistics, in the fields that a release has for them; None for what was not asked.

    >>> StatisticRecords()
    StatisticRecords(mean=None, variance=None, cdf=None)
    """

    mean: Mean | None = None
    variance: Variance | None = None
    cdf: Cdf | None = None


def _mean(plan: MeanPlan, noisy: NoisyMean, left_out: NDArray[np.int64]) -> Mean:
    return mean_record(plan, noisy.value, noisy.scale, left_out, noisy.projected_to)


def _around(plan: ForecastClipPlan, noisy: NoisyMean, left_out: NDArray[np.int64]) -> Mean:
    return around_record(plan, noisy.value, noisy.scale, left_out)


def _variance(plan: VariancePlan, noisy: NoisyVariance, left_out: NDArray[np.int64]) -> Variance:
    return variance_record(plan, noisy.value, noisy.scale, left_out)


def _cdf(plan: CdfPlan, values: list[float], left_out: NDArray[np.int64]) -> Cdf:  # noqa: ARG001
    return cdf_record(plan, values)


_RECORDS: dict[str, tuple[str, Callable[[Any, Any, NDArray[np.int64]], Mean | Variance | Cdf]]] = {
    "mean": ("mean", _mean),
    NAME: ("mean", _around),
    "variance": ("variance", _variance),
    "cdf": ("cdf", _cdf),
}
"""By statistic: the field of a release, and what fills it. `Any`: each is handed the plan and the value that its own
statistic made."""


def statistics(
    plan: HatPlan | None, estimate: HatEstimate | None, left_out: NDArray[np.int64] = NOBODY
) -> StatisticRecords:
    """The records of what was estimated; nothing for a withheld HAT. `left_out` are the counts of plates not in it.

    >>> from udp_stream.testing import a_plan
    >>> found = statistics(a_plan(), HatEstimate({"mean": NoisyMean(4096.0, scale=4096.0, projected_to=None)}))
    >>> found.mean.value_kmh, found.variance, found.cdf
    (1.0, None, None)
    """
    if plan is None or estimate is None:
        return StatisticRecords()
    found: dict[str, Any] = {
        field: record(plan.statistics[name], estimate.values[name], left_out)
        for name, (field, record) in _RECORDS.items()
        if name in estimate.values
    }
    return StatisticRecords(**found)


def privacy_record(policy: Policy, terms: Terms, charge_nano: int, caveats: tuple[str, ...] = ()) -> Privacy:
    """The most that the release cost an admitted plate (0 if withheld), under the promise that it was charged under.

    >>> from udp_stream.testing import a_context
    >>> policy = a_context().policy
    >>> cost = privacy_record(policy, Terms().within(policy), charge_nano=750_000_000)
    >>> cost.epsilon, cost.period_epsilon, cost.period
    (0.75, 10.0, '1d')
    """
    if terms.measure != "pure":
        return _concentrated(policy, terms, charge_nano, caveats)
    return Privacy(
        unit="license_plate",
        neighbours=policy.neighbours,
        epsilon=charge_nano / NANO,
        accounting="pure",
        period=terms.period,
        period_epsilon=terms.budget_nano / NANO,
        caveats=caveats,
    )


def _concentrated(policy: Policy, terms: Terms, charge_nano: int, caveats: tuple[str, ...]) -> Privacy:
    return Privacy(
        unit="license_plate",
        neighbours=policy.neighbours,
        epsilon=epsilon_of(charge_nano, policy.delta),
        accounting="zcdp" if policy.accounting == "zcdp" else "approximate",
        period=terms.period,
        period_epsilon=epsilon_of(terms.budget_nano, policy.delta),
        caveats=caveats,
        rho=charge_nano / NANO,
        period_rho=terms.budget_nano / NANO,
        delta=policy.delta,
        holds_for="slot" if terms.in_ball and charge_nano else "record",
    )


def epsilon_stated(cost: Cost) -> float:
    """The epsilon of a statistic: of a rho, the one of pure noise that costs as much, as configurations have it.

    >>> from udp_stream.mechanisms.noise import concentrated, pure
    >>> epsilon_stated(pure(500_000_000)), epsilon_stated(concentrated(125_000_000))
    (0.5, 0.5)
    """
    return cost.nano / NANO if cost.measure == "pure" else round(sqrt(2 * cost.nano / NANO), 9)
