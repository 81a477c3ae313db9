"""Terms around a forecast: what each HAT of a slot is asked, where its mean is taken around what is forecast for it.

**Price.** Its largest mover pays a twelfth of a plate's budget for a mean, others their share of that. A few precise
releases tell more than many noisy ones: the forecast carries what they tell to the other HATs.

**Pace.** Most of the budget may be spent at once, as early releases serve the whole day. The rest is let out over the
period, slot by slot, so that some is left for the evening; no visit needs to be foretold. The ledger holds a plate to
it (`Terms.allowance_nano`). A HAT that may cost more than all of the rest is not held to it: there are at most four of
them in a budget, and a pace would only leave the last one unspent. A rolling budget has no start to pace it from.

**Order.** HATs are charged in the order of what they tell for what they cost: the variance that the release takes from
the HAT's estimate, times its pings, over the sum of its charges. HATs whose mean would tell little are withheld as
uninformative, without a charge, unless other statistics are asked for, too. Where an automatic epsilon would be less
than the least that says anything, all HATs are withheld.

It reads counts, budgets, settings, and the forecast, which follows from counts and earlier releases.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, hypot, sqrt
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from udp_stream.forecast.model import CITY_MEAN, CITY_SD, SlotForecast
from udp_stream.mechanisms.accuracy import spread
from udp_stream.mechanisms.ball_width import ball_widths
from udp_stream.mechanisms.clip_width import ClipWidth, clip_width, clip_widths
from udp_stream.mechanisms.forecast_clip import NAME, ForecastClipPlan
from udp_stream.mechanisms.means import MeanPlan
from udp_stream.mechanisms.noise import Cost, expected_noise
from udp_stream.mechanisms.speed_spread import mean_variance, plate_variance
from udp_stream.mechanisms.statistic import StatisticPlan
from udp_stream.mechanisms.statistic_terms import AroundForecast, StatisticTerms
from udp_stream.planning.allowances import EPSILON_NANO_MAX, least_nano
from udp_stream.planning.hat_plan import HatPlans, SlotInPeriod
from udp_stream.planning.policy import Policy
from udp_stream.planning.terms import HatForecast, Terms, terms_of
from udp_stream.units import QUANTA_PER_KMH
from udp_stream.windows.tables import SlotCounts

PRICES_PER_BUDGET = 12
"""How many means a plate's budget of the period buys that it moves the most."""

HEAD_START = 80
"""Percent of the budget that a plate may have spent at the very start of the period; the rest is let out evenly."""

PLATES_MIN = 3
"""A mean around a forecast of fewer plates tells less than its counts do."""

TOLD_MIN = 0.3
"""The least share of the forecast's variance that a release has to take away. From 0.3 to 0.5 the error is the same; at
0.1 budgets go to releases that are nearly all noise (docs/measurements.md)."""

ADMITTED_MIN = 0.5
"""The least share of a HAT's plates that have to be able to pay: a mean of few of them is worth less than it costs."""

SHARED = 0.7
"""The share of a plate's HATs of the slot, of those with enough plates, that it is likely to be charged for."""

_NORMAL = 1.2533
"""The standard deviation of a normal variable, in expected sizes."""


def terms_around(
    counts: SlotCounts, forecast: SlotForecast, in_period: SlotInPeriod, policy: Policy, plans: HatPlans
) -> list[Terms]:
    """The terms of every HAT of a slot around its forecast; `plans` are the slot's.

    >>> import datetime as dt
    >>> from udp_stream.forecast.model import Memory
    >>> from udp_stream.forecast.model import forecast_slot
    >>> from udp_stream.testing import a_context, two_hats
    >>> (counts, _), context = two_hats(), a_context()
    >>> policy, in_period = context.policy, context.calendar.slot_in_period(counts.start_ms)
    >>> forecast = forecast_slot(counts, Memory(), dt.date(2022, 1, 1), max_kmh=65.0)
    >>> terms = terms_around(counts, forecast, in_period, policy, HatPlans(policy.public))
    >>> [(one.withheld, [asked.statistic for asked in one.statistics]) for one in terms]
    [('', ['forecast-clip', 'cdf']), ('few_plates', [])]
    >>> terms[0].allowance_nano / policy.budget_nano  # of 10: eight at once, and 5/24 of the rest after five hours
    0.8416666666
    """
    cost, paced = price_nano(policy), _paced_nano(in_period, policy)
    forecasts = _hat_forecasts(forecast)
    is_enough = np.diff(counts.hat_rows) >= policy.min_plates
    if is_too_little(policy):
        pairs = zip(is_enough.tolist(), forecasts, strict=True)
        return [Terms(withheld="budget" if large else "few_plates", forecast=of_hat) for large, of_hat in pairs]
    widths = _widths(counts, forecasts, Cost(policy.measure, cost), policy)
    enough = np.flatnonzero(is_enough).tolist()
    rows = counts.each_rows()
    by_plate = [counts.count[rows[hat]] for hat in enough]
    arounds = [AroundForecast.of(float(forecast.mean[hat]), forecast.plates[rows[hat]], widths[hat]) for hat in enough]
    means = dict(zip(enough, _means(by_plate, arounds, cost, policy, plans), strict=True))
    is_only_mean, terms, worth = policy.variance_nano == policy.cdf_nano == 0, [], np.zeros(counts.cells.size)
    for hat, foretold in enumerate(forecasts):
        if hat not in means:
            terms.append(Terms(withheld="few_plates", forecast=foretold))
            continue
        mean, here = means[hat], counts.count[rows[hat]]
        told = foretold.deviation**2 / (foretold.deviation**2 + mean.variance)
        if is_only_mean and (here.size < PLATES_MIN or told < TOLD_MIN):
            terms.append(Terms(withheld="uninformative", forecast=foretold))
            continue
        worth[hat] = told * foretold.deviation**2 * int(here.sum()) / int(mean.plan.charges.sum())
        least = ceil(ADMITTED_MIN * here.size)
        asked = _asked(mean.asked, foretold, policy)
        allowance = paced if asked.charge_nano <= policy.budget_nano - _at_once_nano(policy) else 0
        terms.append(msgspec.structs.replace(asked, admitted_min=least, allowance_nano=allowance))
    # Twice, for the place of each HAT in the order; stable, so that equal ones have the same order everywhere.
    turns = np.argsort(np.argsort(-worth, kind="stable")).tolist()
    return [msgspec.structs.replace(one, turn=turn) for one, turn in zip(terms, turns, strict=True)]


def terms_of_typical(by_plate: NDArray[np.int64], policy: Policy, plans: HatPlans) -> Terms:
    """The terms of a HAT of plates with these counts, each forecast to drive like a bus in any city.

    >>> from udp_stream.adapters.settings import Settings
    >>> policy = Settings().policy
    >>> terms = terms_of_typical(np.array([60, 20, 20]), policy, HatPlans(policy.public))
    >>> terms.statistics[0].statistic, terms.charge_nano
    ('forecast-clip', 833333333)
    """
    typical = min(CITY_MEAN, policy.range.high / QUANTA_PER_KMH / 2)
    rest = float(mean_variance(by_plate, np.zeros_like(by_plate), 1)[0])
    cost = price_nano(policy)
    width = clip_width(by_plate, sqrt(CITY_SD**2 + rest), Cost(policy.measure, cost))
    around = AroundForecast.of(typical, np.full(by_plate.size, typical), width)
    (mean,) = _means([by_plate], [around], cost, policy, plans)
    return _asked(mean.asked, None, policy)


def _widths(counts: SlotCounts, forecasts: Sequence[HatForecast], cost: Cost, policy: Policy) -> list[ClipWidth]:
    """How widely each HAT's plates are clipped."""
    rows, off_kmh = (counts.count, counts.hat_rows[:-1]), np.array([one.deviation for one in forecasts])
    if policy.in_balls:
        return ball_widths(*rows, off_kmh, cost, _hats_shared(counts, policy))
    return clip_widths(*rows, off_kmh, cost)


def _hats_shared(counts: SlotCounts, policy: Policy) -> NDArray[np.float64]:
    """Of each HAT: among how many HATs its plates are likely to share a clip, on average by their weights."""
    sizes, sharp = np.diff(counts.hat_rows), 1 / plate_variance(counts.count)
    # From counts alone, before it is known which HATs are withheld: hence `SHARED`, the share that is measured.
    is_asked = np.repeat(sizes >= max(PLATES_MIN, policy.min_plates), sizes)
    hats = np.bincount(counts.plate, weights=is_asked, minlength=len(counts.plates))[counts.plate]
    first = counts.hat_rows[:-1]
    found: NDArray[np.float64] = SHARED * np.add.reduceat(sharp * hats, first) / np.add.reduceat(sharp, first)
    return found


class _Mean(NamedTuple):
    """How a HAT's mean is to be taken, and the variance of what it is likely to be off by, in km2/h2."""

    asked: StatisticTerms
    plan: StatisticPlan
    variance: float


def _means(
    by_plate: Sequence[NDArray[np.int64]],
    arounds: Sequence[AroundForecast],
    cost_nano: int,
    policy: Policy,
    plans: HatPlans,
) -> list[_Mean]:
    """Of each HAT around its forecast; under "auto" by another mechanism, where one is tried and errs less at the same
    epsilon."""
    asked = [StatisticTerms(NAME, cost_nano, NAME, measure=policy.measure, around=around) for around in arounds]
    each = zip(by_plate, asked, plans.around_forecasts(by_plate, asked), strict=True)
    return [_mean(*one, policy, plans) for one in each]


def _mean(
    by_plate: NDArray[np.int64], asked: StatisticTerms, plan: ForecastClipPlan, policy: Policy, plans: HatPlans
) -> _Mean:
    error = hypot(plan.noise_deviation, plan.spread)
    # A rule of thumb that saves the second plan in most HATs. One plate with far more samples than all others makes
    # Baseline's noise large, and a mechanism that caps it is then not tried: at U = 30 km/h it may err half as much,
    # from U = 65 on next to never less.
    least = expected_noise(policy.range.width * plan.counts.largest, asked.cost) / (2 * plan.counts.total)
    if policy.mean == "auto" and least < error:
        other = StatisticTerms("mean", asked.epsilon_nano, "auto", policy.grouping, "epsilon", policy.measure)
        mean = plans.of_statistic(by_plate, other)
        if isinstance(mean, MeanPlan) and (off := _NORMAL * hypot(mean.noise_bound, spread(mean))) < error:
            return _Mean(other, mean, (off / QUANTA_PER_KMH) ** 2)
    return _Mean(asked, plan, (error / QUANTA_PER_KMH) ** 2)


def price_nano(policy: Policy) -> int:
    """What the largest mover pays for a mean.

    >>> from udp_stream.adapters.settings import Settings
    >>> price_nano(Settings().policy)
    833333333
    """
    if policy.mean_nano is not None:
        return policy.mean_nano
    automatic = (policy.mean_nano, policy.cdf_nano).count(None)
    return min(policy.budget_nano // (PRICES_PER_BUDGET * automatic), EPSILON_NANO_MAX)


def is_too_little(policy: Policy) -> bool:
    """Whether an automatic epsilon of this budget is too small for any HAT.

    >>> from udp_stream.adapters.settings import load
    >>> [is_too_little(load(None, [f"budget.epsilon={budget}"], {}).policy) for budget in (0.011, 0.012)]
    [True, False]
    """
    return policy.mean_nano is None and price_nano(policy) < least_nano(policy.measure)


def _at_once_nano(policy: Policy) -> int:
    """The most that a plate may be charged at the very start of a period."""
    return policy.budget_nano * HEAD_START // 100


def _paced_nano(in_period: SlotInPeriod, policy: Policy) -> int:
    """The most that a plate may have been charged by the end of this slot."""
    if in_period.rolls:
        return policy.budget_nano
    gone, all_slots = in_period.slots_gone + 1, in_period.slots_gone + 1 + in_period.slots_left
    at_once = _at_once_nano(policy)
    return at_once + (policy.budget_nano - at_once) * gone // all_slots


def _hat_forecasts(forecast: SlotForecast) -> list[HatForecast]:
    """What is recorded of each HAT's."""
    deviation, rest = np.sqrt(forecast.variance + forecast.rest).tolist(), np.sqrt(forecast.rest).tolist()
    priors = zip(forecast.prior.by_hat.tolist(), forecast.prior.features.tolist(), strict=True)
    return [
        HatForecast(round(mean, 3), round(off, 3), round(own, 3), (by_hat, *features))
        for mean, off, own, (by_hat, features) in zip(forecast.mean.tolist(), deviation, rest, priors, strict=True)
    ]


def _asked(mean: StatisticTerms, forecast: HatForecast | None, policy: Policy) -> Terms:
    """The mean, and the other statistics that are configured: an automatic CDF costs what the mean does."""
    cdf_nano = mean.epsilon_nano if policy.cdf_nano is None else policy.cdf_nano
    others = terms_of(policy, 0, policy.variance_nano, cdf_nano)
    return msgspec.structs.replace(others, statistics=(mean, *others.statistics), forecast=forecast)
