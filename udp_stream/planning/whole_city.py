"""What the plates of a slot are asked of the whole city, and when: a mean and a spread (`mechanisms/city_sums.py`).

Asked as long as the answers of today and yesterday have not told the city's mean well enough, in slots with so many
plates that the answer is worth its price. It reads counts, budgets, settings, the forecast, and how precise earlier
answers were.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from udp_stream.forecast.slot import SlotForecast
from udp_stream.mechanisms.city_sums import CityCosts, CityRows, costs_of, weights_of, without
from udp_stream.mechanisms.noise import Cost
from udp_stream.mechanisms.statistic_terms import STEPS_PER_KMH
from udp_stream.planning.policy import Policy
from udp_stream.planning.slot_plan import CityPlan
from udp_stream.units import QUANTA_PER_KMH
from udp_stream.windows.slot_tables import SlotCounts

MEAN_PART, SPREAD_PART = 20, 10
"""Thousandths of a plate's budget that the mean and the spread of a slot cost."""

NOISE_MAX_KMH = 6.0
"""A noisier answer is worth less than its price."""

TOLD_KMH = 1.0
"""How well answers are to tell the city's mean: when all of them together are this precise, nothing more is asked."""


class CityAsked(NamedTuple):
    """Row by row what is asked if all can pay, what it costs, what each plate is charged, and HAT by HAT the forecast.

    >>> rows = CityRows(*np.array([[36, 4], [2**20 // 36, 2**20 // 4], [17 * 4096, 22 * 4096]]))
    >>> costs = CityCosts(Cost("pure", 20), Cost("pure", 10), 2**36, 2**30, 2**18)
    >>> table = dict(hat_rows=np.array([0, 2]), plate=np.array([0, 1]), count=np.array([36, 4]), repeats=0)
    >>> counts = SlotCounts(0, 3_600_000, (b"a", b"b"), np.array([7], np.uint64), **table)
    >>> plan = CityAsked(rows, costs, np.array([30, 30]), np.array([18.0])).among(np.array([0]), counts)
    >>> plan.rows.weights.tolist(), plan.plates, plan.forecast_kmh
    ([29127, 0], 1, 18.0)
    """

    rows: CityRows
    costs: CityCosts
    charges: NDArray[np.int64]
    forecasts: NDArray[np.float64]

    def among(self, admitted: NDArray[np.int64], counts: SlotCounts) -> CityPlan:
        """The plan for the plates that were charged, by their numbers, at least one."""
        rows = without(self.rows, np.isin(counts.plate, admitted))
        weights = rows.weights * rows.samples
        forecast = float(np.repeat(self.forecasts, np.diff(counts.hat_rows)) @ weights / weights.sum())
        return CityPlan(rows, self.costs, admitted.size, round(forecast, 3))


def ask_city(counts: SlotCounts, forecast: SlotForecast, precision: float, policy: Policy) -> CityAsked | None:
    """What is asked of the city in this slot; None where that is nothing.

    `precision` is what earlier answers told of the city's mean, in 1 / (km/h)^2.

    >>> import datetime as dt
    >>> import msgspec
    >>> from udp_stream.forecast.memory import Memory
    >>> from udp_stream.forecast.slot import forecast_slot
    >>> from udp_stream.testing import a_context, two_hats
    >>> (counts, _), policy = two_hats(), msgspec.structs.replace(a_context().policy, asks_city=True)
    >>> forecast = forecast_slot(counts, Memory(), dt.date(2022, 1, 1), max_kmh=65.0)
    >>> ask_city(counts, forecast, 0.0, policy) is None  # five plates would tell nothing
    True
    """
    if not policy.in_cities or not counts.count.size or precision >= TOLD_KMH**-2:
        return None
    steps = np.rint(forecast.plates * STEPS_PER_KMH).astype(np.int64)
    rows = CityRows(counts.count, weights_of(counts.count, counts.plate), steps * (QUANTA_PER_KMH // STEPS_PER_KMH))
    mean, spread = (Cost(policy.measure, policy.budget_nano * part // 1000) for part in (MEAN_PART, SPREAD_PART))
    costs, charges = costs_of(rows, counts.plate, mean, spread, policy.max_speed)
    if costs.deviations(np.unique(counts.plate).size)[0] > NOISE_MAX_KMH:
        return None
    return CityAsked(rows, costs, charges, forecast.mean)
