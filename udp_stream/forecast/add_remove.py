"""A day's map from noised sums alone: speeds of every cell of a public domain, under add-remove
neighbours.

A slot has two noised sums of each cell: of weighed residuals around the forecast, and of traffic.
The traffic has a filter of its own (`forecast/traffic.py`); its logarithm is a feature of the cell.
In km/h:

    speed = city + slope * log(relative traffic) + cell + rest

which is the filter of `forecast/model.py` with two globals. Everything here is a function of noised
sums and settings. The model is ours (docs/mechanisms/forecast.md).
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from udp_stream.forecast.anomalies import (
    GOES_ON,
    GOES_ON_BY,
    PROBABILITY_MAX,
    PosteriorMixture,
    happened_variance,
)
from udp_stream.forecast.model import CITY_MEAN, CITY_SD, DAYS, EDGE_KMH, Arrow, on_one_thread
from udp_stream.forecast.traffic import TrafficFilter, TrafficPosterior
from udp_stream.mechanisms.noise import Floats

TRAFFIC_SLOPE = -4.0
TRAFFIC_SLOPE_SD = 1.5
CELL_SD = 8.0
"""Km/h for each e-fold of traffic, as buses are slow where they are many; and by which cells differ
beside that."""

UNEXPLAINED = 2.0
BETWEEN_PLATES = 16.0
PER_PING = 324.0
"""Variances in km2/h2 of a HAT's mean, whatever its traffic; and, over its traffic, between plates
and of a ping."""

STAY = 0.2
WEIGHT_KMH = 5.0
"""A unit of weight is this share of a slot, a usual stay; it counts so many km/h in the second
vector, as a plate."""

PLATES_GAIN = 0.9
PLATES_APART = 2.0
"""Where traffic is counted in plates, which stay and pay unlike: the share of residuals that is in
a sum, and how much larger the variance between plates is."""

SLACK = 50.0
"""km2/h2 that a residual may be off by beside its forecast's variance: an unusual day is read, too."""

REMEMBERED = 0.8
BUSY_SHARE = 0.9
SHARE_MORE = 0.07
LOG_SHARE = (-2.7, 1.5)
"""Weight of the traffic of an hour ago. Cells are relative to those with nine tenths of all
traffic; little is added before the logarithm, which is cut, as that of an empty cell is noise."""

HAPPENS = 0.12
CARRIED_FROM = 1.5
ODDS_MAX = 50.0
"""The share of HATs with news; how much likelier news must be to move the next forecast; its
largest log-odds."""

FEW_FROM = 20.0
OPEN_ROADS = 0.8
"""A larger rest (km2/h2) is that of few plates. Some drive on open roads: the upper end is up to so
much farther."""

ERROR_PER_SD = 0.6
"""The expected error over the outlook's deviation: 0.8 for a normal variable, less as its tails are
for few HATs."""

GIVEN_VARIANCE = 38.0
FORECAST_VARIANCE = 20.0
GIVEN_SD = 0.35
"""A plate that cannot pay shortens its weights, too. A usual plate gives this share of its traffic:
the root of the first over its entries' mean square, in which a forecast errs by the second
(km2/h2). Plates differ by the third."""

DIGITS = 3
"""Decimal digits of forecasts in km/h: workers whose sums differ in the last bit have the same."""


@dataclass(frozen=True, slots=True)
class AddRemoveEstimates:
    """Estimates of a slot, a number for each cell of the domain: speeds in km/h, the probability of
    news, and the traffic in bus-hours (or in plates), each with its 95 % interval. `guess` is the
    speed that traffic alone predicts for a cell; `constant` is the city's mean, weighed by traffic.

    >>> memory = AddRemoveMemory(np.arange(2, dtype=np.uint64), 1.0, full=120, slot_hours=1.0, max_kmh=65.0)
    >>> day = dt.date(2024, 1, 8)
    >>> forecast = memory.forecast(day, 7.0)
    >>> found = memory.learn(day, 7.0, np.array([[0.0, 40.0], [0.0, 50.0]]), forecast)
    >>> bool(found.low[1] < found.value[1] < found.high[1]), bool(found.traffic[1] > found.traffic[0])
    (True, True)
    """

    value: Floats
    low: Floats
    high: Floats
    anomaly: Floats
    expected_abs_error: Floats
    traffic: Floats
    traffic_low: Floats
    traffic_high: Floats
    guess: Floats
    constant: float


class _Rules(NamedTuple):
    """Parameters that give the noised sums their meaning: variance of the first sum's noise in
    km2/h2, the share of a plate's residuals that is in it, variance of the speed of a unit of
    traffic in km2/h2, bus-hours (or plates) of a unit."""

    cells: int
    noise: float
    gain: float
    apart: float
    unit: float
    max_kmh: float


class _City:
    """Beliefs about speeds and traffic, from the slots of a day or two; `hours` since the last slot
    of the day."""

    def __init__(self, rules: _Rules) -> None:
        self._rules = rules
        self._at = np.arange(rules.cells)
        mean = np.array([CITY_MEAN, TRAFFIC_SLOPE])
        covariance = np.diag([CITY_SD**2, TRAFFIC_SLOPE_SD**2])
        self._speeds = Arrow(mean, covariance, CELL_SD)
        self._speeds.grow(rules.cells)
        self._traffic = TrafficFilter(rules.cells, rules.noise / WEIGHT_KMH**2)
        self._sum = self._log_share = np.zeros(rules.cells)
        self._anomaly = self._off = np.zeros(rules.cells)

    def next_day(self) -> None:
        """A night has passed, and with it the news."""
        self._speeds.next_day()
        self._traffic.next_day()
        self._anomaly = self._off = np.zeros(self._rules.cells)

    def forecast(self, hours: float) -> Floats:
        """Forecast speed of each cell, km/h, shape (cells,)."""
        return self._predict()[0] + self._moved(hours)

    def _predict(self) -> tuple[Floats, Floats]:
        return self._speeds.predict(self._at, _design(self._log_share))

    def _moved(self, hours: float) -> Floats:
        """Rest of the last slot's anomalies after `hours`, km/h, shape (cells,)."""
        left = self._anomaly * self._off * GOES_ON_BY**hours
        return np.where(self._anomaly > CARRIED_FROM * HAPPENS, left, 0.0)

    def learn(self, noised: Floats, forecast: Floats, hours: float) -> AddRemoveEstimates:
        """The two sums of each cell, and the forecast that residuals were taken around."""
        rules = self._rules
        moved = self._moved(hours)
        self._speeds.pass_hours(hours)
        traffic = self._traffic.learn(noised[1] / WEIGHT_KMH, hours)
        self._follow(traffic.mean, hours)
        mean, variance = before = self._predict()
        unexplained = UNEXPLAINED + rules.apart / np.maximum(traffic.mean, 1.0)
        spread = variance + unexplained + SLACK
        carried = self._anomaly * GOES_ON**hours
        residual, noise = traffic.residual(
            noised[0] / rules.gain, rules.noise / rules.gain**2, spread
        )
        seen = _CellObservations(
            forecast + residual, noise, unexplained, np.maximum(HAPPENS, carried), moved
        )
        taken = (noise + unexplained) / (
            1 - np.minimum(seen.posterior(mean, variance).anomaly, PROBABILITY_MAX)
        )
        at = np.flatnonzero(np.isfinite(taken))
        if at.size:
            self._speeds.update(at, _design(self._log_share[at]), seen.value[at], taken[at])
        after = self._predict()
        # The HAT's own residual is taken out of its forecast again: the mixture weighs it.
        precision = 1 / after[1] - 1 / taken
        known = (precision > 1 / before[1]) | np.isinf(taken)
        own = np.where(np.isinf(taken), 0.0, seen.value / taken)
        mean = np.where(known, (after[0] / after[1] - own) / precision, before[0])
        found = seen.posterior(mean, np.where(known, 1 / precision, before[1]))
        self._anomaly = found.anomaly
        self._off = found.anomaly_mean - mean
        return self._estimates(found, unexplained, traffic)

    def _follow(self, number: Floats, hours: float) -> None:
        """Update each cell's share of all traffic so far."""
        self._sum = self._sum * REMEMBERED**hours + number
        top = np.sort(self._sum)[::-1]
        busy = 1 + int(np.searchsorted(np.cumsum(top), BUSY_SHARE * top.sum()))
        self._log_share = np.clip(np.log(self._sum / top[:busy].mean() + SHARE_MORE), *LOG_SHARE)

    def _estimates(
        self, found: PosteriorMixture, unexplained: Floats, traffic: TrafficPosterior
    ) -> AddRemoveEstimates:
        rules = self._rules
        unit = self._rules.unit
        deviations = np.sqrt(np.array([found.usual_variance, found.anomaly_variance]))
        value, low, high = (found.quantile(share, deviations) for share in (0.5, 0.025, 0.975))
        high = value + (1 + OPEN_ROADS * np.maximum(1 - FEW_FROM / unexplained, 0.0)) * (
            high - value
        )
        number = traffic.mean
        (least, most) = traffic.interval95(GIVEN_SD)
        guess = _design(self._log_share) @ self._speeds.mean
        value, low, high, guess = (
            np.clip(kmh, 0.0, rules.max_kmh) for kmh in (value, low, high, guess)
        )
        return AddRemoveEstimates(
            value, low, high, found.anomaly, ERROR_PER_SD * np.sqrt(found.variance),
            unit * number, unit * least, unit * most,
            guess, float((number * value).sum() / number.sum()),
        )  # fmt: skip


class _CellObservations(NamedTuple):
    """A slot's observations of cells: value and variance of its noise (inf: none), variance of the
    HAT's rest; and beforehand: probability of news, and by how much it would go on being off."""

    value: Floats
    noise: Floats
    unexplained: Floats
    anomaly: Floats
    moved: Floats

    def posterior(self, mean: Floats, variance: Floats) -> PosteriorMixture:
        """Posterior of HATs with such forecasts, km/h and km2/h2."""
        is_seen = np.isfinite(self.noise)
        noise = np.where(is_seen, self.noise, 0.0)
        usual = variance + self.unexplained
        logs = []
        cases = []
        for centre, spread in ((mean, usual), (mean + self.moved, usual + happened_variance(mean))):
            both = spread + noise
            off = np.where(is_seen, self.value - centre, 0.0)
            gain = np.where(is_seen, spread / both, 0.0)
            logs.append(-0.5 * (off**2 / both + np.log(both)))
            cases += [centre + gain * off, spread * (1 - gain)]
        odds = np.where(is_seen, np.exp(np.clip(logs[1] - logs[0], -ODDS_MAX, ODDS_MAX)), 1.0)
        return PosteriorMixture(
            self.anomaly * odds / (self.anomaly * odds + 1 - self.anomaly), *cases
        )


def _design(log_share: Floats) -> Floats:
    return np.column_stack([np.ones(log_share.size), log_share])


class AddRemoveMemory:
    """Forecasts and estimates of the domain's cells, slot by slot, in order; `day` is always the
    local date on which the slot starts, `hours` are those of the day gone then.

    It remembers the slot's day and the day before, so it follows from their noised sums.
    `sigma_kmh` is the deviation of the noise of both sums; `full` the pings of a whole slot; with
    `plates` the second sum counts plates.

    >>> memory = AddRemoveMemory(np.arange(2, dtype=np.uint64), 1.0, full=120, slot_hours=1.0, max_kmh=65.0)
    >>> monday, seen = dt.date(2024, 1, 8), np.array([[0.0, 400.0], [0.0, 100.0]])  # 20 km/h above, 4 bus-hours
    >>> _ = memory.learn(monday, 7.0, seen, memory.forecast(monday, 7.0))
    >>> [bool(memory.forecast(monday + dt.timedelta(days), 8.0)[1] > 24) for days in (0, 1, 2)]
    [True, True, False]
    """

    def __init__(
        self, cells: NDArray[np.uint64], sigma_kmh: float, full: int, slot_hours: float, max_kmh: float,
        plates: bool = False,
    ) -> None:  # fmt: skip
        apart = BETWEEN_PLATES + PER_PING / (STAY * full)
        given = min(1.0, sqrt(GIVEN_VARIANCE / (WEIGHT_KMH**2 + apart + FORECAST_VARIANCE)))
        self._rules = _Rules(
            cells.size,
            sigma_kmh**2,
            gain=PLATES_GAIN if plates else 1.0,
            apart=PLATES_APART * apart if plates else apart,
            unit=1.0 if plates else STAY * slot_hours / given,
            max_kmh=max_kmh,
        )
        self._slot_hours = slot_hours
        self._older = _City(self._rules)
        self._younger = _City(self._rules)
        self._day = dt.date.min
        self._last = -np.inf

    @on_one_thread
    def forecast(self, day: dt.date, hours: float) -> Floats:
        """Speeds of the cells before a slot, in km/h, in the order of cells."""
        gone = self._turn_to(day, hours)
        edge = min(EDGE_KMH, self._rules.max_kmh / 4)
        return np.asarray(
            np.clip(self._older.forecast(gone), edge, self._rules.max_kmh - edge).round(DIGITS)
        )

    @on_one_thread
    def learn(
        self, day: dt.date, hours: float, noised_kmh: Floats, forecast_kmh: Floats
    ) -> AddRemoveEstimates:
        """A slot's noised sums, of shape (2, cells), in km/h, taken around this forecast; gives its
        estimates."""
        gone = self._turn_to(day, hours)
        self._last = hours
        # The younger judges the news by itself: nothing in it may follow from yesterday.
        self._younger.learn(noised_kmh, forecast_kmh, gone)
        return self._older.learn(noised_kmh, forecast_kmh, gone)

    def _turn_to(self, day: dt.date, hours: float) -> float:
        """The hours since the slot before; 0 for the first slot of a day."""
        if day > self._day:
            if (day - self._day).days < DAYS:
                self._older = self._younger
                self._older.next_day()
            else:
                self._older = _City(self._rules)
            self._younger = _City(self._rules)
            self._day = day
            self._last = -np.inf
        return 0.0 if np.isinf(self._last) else max(hours - self._last, self._slot_hours)
