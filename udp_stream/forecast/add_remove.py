"""A day's map from noised sums alone: speeds of every cell of a public domain, under add-remove
neighbours.

A slot has two noised sums of each cell: of weighed residuals around the forecast, and of traffic.
The traffic has a filter of its own (`forecast/traffic.py`); its logarithm is a feature of the cell.
Speeds have the filter of `forecast/usual_week.py`, which begins each day with what earlier days told.
Everything here is a function of noised sums and settings. The model is ours
(docs/mechanisms/forecast.md).
"""

from __future__ import annotations

import datetime as dt
from copy import deepcopy
from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

import numpy as np

from udp_stream.base.arrays import Cells, Floats
from udp_stream.forecast.anomalies import (
    GOES_ON,
    GOES_ON_BY,
    PROBABILITY_MAX,
    PosteriorMixture,
    happened_variance,
)
from udp_stream.forecast.model import EDGE_KMH
from udp_stream.forecast.traffic import TrafficFilter, TrafficPosterior
from udp_stream.forecast.usual_week import (
    CITY_CELLS,
    CITY_NOW,
    HOURS,
    SUMS_SPREADS,
    Arrow,
    Design,
    NoisedMeans,
    SumsWeek,
    course,
    design,
    features_of,
    kind_of_day,
    on_one_thread,
    scale_of,
    unpack,
    update_city,
)

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
"""Weight of the traffic of an hour ago, on a first day."""

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
    """Estimates of a slot, a number for each cell of the domain: speeds in km/h, the probability
    that the cell is not as usual by earlier days (on a first day, by the day), and the traffic in
    bus-hours (or in plates), each with its 95 % interval. `guess` is the speed that traffic alone
    predicts for a cell; `constant` is the city's mean, weighed by traffic.

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
    news: Floats
    expected_abs_error: Floats
    traffic: Floats
    traffic_low: Floats
    traffic_high: Floats
    guess: Floats
    constant: float


class _Rules(NamedTuple):
    """Parameters that give the noised sums their meaning: the share of a plate's residuals that is
    in the first, variance of the speed of a unit of traffic in km2/h2, bus-hours (or plates) of a
    unit."""

    cells: int
    gain: float
    apart: float
    unit: float
    max_kmh: float


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


class AddRemoveMemory:
    """Forecasts and estimates of the domain's cells, slot by slot, in order; `day` is always the
    local date on which the slot starts, `hours` are those of the day gone then.

    A day begins with what earlier days have told (`forecast/usual_week.py`), so all follows from
    noised sums. `sigma_kmh` is the usual deviation of the noise of both sums; `full` the pings of a
    whole slot; with `plates` the second sum counts plates.

    >>> memory = AddRemoveMemory(np.arange(2, dtype=np.uint64), 1.0, full=120, slot_hours=1.0, max_kmh=65.0)
    >>> monday, seen = dt.date(2024, 1, 8), np.array([[0.0, 400.0], [0.0, 100.0]])  # 20 km/h above, 4 bus-hours
    >>> _ = memory.learn(monday, 7.0, seen, memory.forecast(monday, 7.0))
    >>> [bool(memory.forecast(monday + dt.timedelta(days), 8.0)[1] > 24) for days in (0, 1, 2)]
    [True, True, True]
    """

    _speeds: Arrow
    _usual: Arrow | None
    _traffic: TrafficFilter
    _features: Floats
    _scale: Floats
    _morning: Floats
    _sum: Floats
    _anomaly: Floats
    _off: Floats
    _amount: Floats
    _around: Floats
    _last: float

    def __init__(
        self, cells: Cells, sigma_kmh: float, full: int, slot_hours: float, max_kmh: float,
        plates: bool = False,
    ) -> None:  # fmt: skip
        apart = BETWEEN_PLATES + PER_PING / (STAY * full)
        given = min(1.0, sqrt(GIVEN_VARIANCE / (WEIGHT_KMH**2 + apart + FORECAST_VARIANCE)))
        self._sigma_kmh = sigma_kmh
        self._rules = _Rules(
            cells.size,
            gain=PLATES_GAIN if plates else 1.0,
            apart=PLATES_APART * apart if plates else apart,
            unit=1.0 if plates else STAY * slot_hours / given,
            max_kmh=max_kmh,
        )
        self._slot_hours = slot_hours
        self.week = SumsWeek(cells.size, self._rules.apart)
        self._at = np.arange(cells.size)
        self._day = self._begun = dt.date.min

    def begin(self, day: dt.date, sums: bytes) -> None:
        """Begin a day with packed sums of the usual week; ValueError for others."""
        unpack(sums, self.week.sums)
        self._day = day

    @on_one_thread
    def forecast(self, day: dt.date, hours: float) -> Floats:
        """Speeds of the cells before a slot, in km/h, in the order of cells."""
        gone = self._turn_to(day, hours)
        usual, _ = self._speeds.predict(self._at, self._design(hours))
        return self._clipped(usual + self._moved(gone))

    def _clipped(self, kmh: Floats) -> Floats:
        edge = min(EDGE_KMH, self._rules.max_kmh / 4)
        return np.asarray(np.clip(kmh, edge, self._rules.max_kmh - edge).round(DIGITS))

    @on_one_thread
    def learn(
        self, day: dt.date, hours: float, noised_kmh: Floats, forecast_kmh: Floats,
        sigma_kmh: float | None = None,
    ) -> AddRemoveEstimates:  # fmt: skip
        """A slot's noised sums, of shape (2, cells), in km/h, taken around this forecast; gives its
        estimates. `sigma_kmh` is the deviation of their noise, if it is another."""
        rules = self._rules
        gone = self._turn_to(day, hours)
        self._last = hours
        self.remember(day, hours, noised_kmh, forecast_kmh, sigma_kmh)
        of_noise = (sigma_kmh or self._sigma_kmh) ** 2
        self._traffic.variance = of_noise / WEIGHT_KMH**2
        moved = self._moved(gone)
        if gone:
            SUMS_SPREADS.pass_hours(self._speeds, gone)
        amounts = noised_kmh[1] / WEIGHT_KMH
        usual = None if self.week.is_new else self.week.traffic(*self._hours(day, hours))
        traffic = self._traffic.learn(amounts, gone, usual)
        self._amount = traffic.mean
        self._around = forecast_kmh
        if self.week.is_new:
            self._sum = self._sum * REMEMBERED**gone + traffic.mean
            self._features = features_of(self._sum)
        columns = self._design(hours)
        mean, variance = before = self._speeds.predict(self._at, columns)
        self._scale = scale_of(mean)
        unexplained = UNEXPLAINED + rules.apart / np.maximum(traffic.mean, 1.0)
        spread = variance + unexplained + SLACK
        carried = self._anomaly * GOES_ON**gone
        residual, noise = traffic.residual(
            noised_kmh[0] / rules.gain, of_noise / rules.gain**2, spread
        )
        value = forecast_kmh + residual
        seen = _CellObservations(value, noise, unexplained, np.maximum(HAPPENS, carried), moved)
        taken = (noise + unexplained) / (
            1 - np.minimum(seen.posterior(mean, variance).anomaly, PROBABILITY_MAX)
        )
        at = np.flatnonzero(np.isfinite(taken))
        if at.size:
            self._speeds.update(at, columns.of(at), seen.value[at], taken[at])
        after = self._speeds.predict(self._at, columns)
        # The HAT's own residual is taken out of its forecast again: the mixture weighs it.
        precision = 1 / after[1] - 1 / taken
        known = (precision > 1 / before[1]) | np.isinf(taken)
        own = np.where(np.isinf(taken), 0.0, seen.value / taken)
        mean = np.where(known, (after[0] / after[1] - own) / precision, before[0])
        found = seen.posterior(mean, np.where(known, 1 / precision, before[1]))
        self._anomaly = found.anomaly
        self._off = found.anomaly_mean - mean
        return self._estimates(columns, found, unexplained, traffic)

    def remember(
        self, day: dt.date, hours: float, noised_kmh: Floats, forecast_kmh: Floats,
        sigma_kmh: float | None = None,
    ) -> None:  # fmt: skip
        """A slot, for the days that follow only: the usual week has its sums from tomorrow on."""
        self._pass_nights(day)
        rules = self._rules
        scales = np.array([[rules.gain], [WEIGHT_KMH]])
        noise = (sigma_kmh or self._sigma_kmh) ** 2 / scales[:, 0] ** 2
        kind = kind_of_day(day)
        hour = min(int(hours), HOURS - 1)
        self.week.add(kind, hour, noised_kmh / scales, forecast_kmh, noise, self._slot_hours)

    @on_one_thread
    def morning(self, day: dt.date) -> Floats:
        """Forecasts of each hour of a day from earlier days alone, km/h, shape (24, cells): what the
        residuals of a whole day are taken around."""
        self._turn_to(day, 0.0)
        return self._morning

    def over_service(self, day: dt.date) -> Floats:
        """The mean of a morning's forecasts over the day's hours of service, km/h."""
        return self.week.over_service(kind_of_day(day), self.morning(day))

    def is_first(self, day: dt.date) -> bool:
        """Whether no earlier day was learnt."""
        self._pass_nights(day)
        return self.week.is_new

    def learn_day(
        self, day: dt.date, noised_kmh: Floats, noise: Floats, forecast_kmh: Floats
    ) -> None:
        """Noised sums of the whole day, of shape (2, cells), around the forecasts of its morning,
        whose mean is `forecast_kmh`: weighed residuals, and weights, in units of `STAY` of a slot;
        `noise` has both variances."""
        self._pass_nights(day)
        self.week.add_day(kind_of_day(day), noised_kmh, forecast_kmh, noise)

    def remember_city(self, day: dt.date, hours: float, noised_kmh: Floats, noise: Floats) -> None:
        """As `learn_city`, for the days that follow only."""
        kind, hour, _ = self._hours(day, hours)
        self.week.add_city(kind, hour, noised_kmh.tolist(), noise, self._slot_hours)

    @on_one_thread
    def learn_city(self, day: dt.date, hours: float, noised_kmh: Floats, noise: Floats) -> None:
        """Noised sums of a slot over all cells, of shape (2,), around its forecasts; after `learn` of
        the slot. Units are those of `learn_day`."""
        self.remember_city(day, hours, noised_kmh, noise)
        zero = np.zeros(())
        seen = NoisedMeans(noised_kmh[0], zero, noised_kmh[1], noise[0], noise[1], zero + 1)
        share = self._amount / self._amount.sum()
        rest = CITY_NOW + CITY_CELLS * float(share @ share)
        update_city(self._speeds, self._design(hours), self._amount, self._around, seen, rest)

    def _turn_to(self, day: dt.date, hours: float) -> float:
        """The hours since the slot before; 0 for the first slot of a day."""
        self._pass_nights(day)
        if self._begun < self._day:
            self._begin()
        return 0.0 if np.isinf(self._last) else max(hours - self._last, self._slot_hours)

    def _pass_nights(self, day: dt.date) -> None:
        if day > self._day:
            if self._day > dt.date.min:
                self.week.night(self._day)
            self._day = day

    def _begin(self) -> None:
        cells = self._rules.cells
        self._begun = self._day
        self._last = -np.inf
        self._speeds = self.week.beliefs()
        self._usual = None if self.week.is_new else deepcopy(self._speeds)
        self._features = self.week.features
        self._traffic = TrafficFilter(cells, self._sigma_kmh**2 / WEIGHT_KMH**2)
        self._sum = self._anomaly = self._off = self._amount = self._around = np.zeros(cells)
        self._scale = np.ones(cells)
        hours = (self._speeds.predict(self._at, self._design(float(hour))) for hour in range(HOURS))
        self._morning = np.array([self._clipped(kmh) for kmh, _ in hours])

    def _design(self, hours: float) -> Design:
        at = course(hours + self._slot_hours / 2)
        return design(at, kind_of_day(self._day), self._features, self._scale)

    def _hours(self, day: dt.date, hours: float) -> tuple[int, int, int]:
        hour = min(int(hours), HOURS - 1)
        return kind_of_day(day), hour, hour + 1

    def _moved(self, hours: float) -> Floats:
        """Rest of the last slot's anomalies after `hours`, km/h, shape (cells,)."""
        left = self._anomaly * self._off * GOES_ON_BY**hours
        return np.where(self._anomaly > CARRIED_FROM * HAPPENS, left, 0.0)

    def _estimates(
        self,
        columns: Design,
        found: PosteriorMixture,
        unexplained: Floats,
        traffic: TrafficPosterior,
    ) -> AddRemoveEstimates:
        rules = self._rules
        unit = self._rules.unit
        deviations = np.sqrt(np.array([found.usual_variance, found.anomaly_variance]))
        value = found.quantile(0.5, deviations)
        low, high = found.ends(deviations)
        high = value + (1 + OPEN_ROADS * np.maximum(1 - FEW_FROM / unexplained, 0.0)) * (
            high - value
        )
        news = found.anomaly
        if self._usual is not None:
            usual, variance = self._usual.predict(self._at, columns)
            news = found.outside(usual, variance + unexplained)
        number = traffic.mean
        (least, most) = traffic.interval95(GIVEN_SD)
        guess, _ = self._speeds.predict(np.full(rules.cells, -1), columns)
        value, low, high, guess = (
            np.clip(kmh, 0.0, rules.max_kmh) for kmh in (value, low, high, guess)
        )
        return AddRemoveEstimates(
            value, low, high, news, ERROR_PER_SD * np.sqrt(found.variance),
            unit * number, unit * least, unit * most,
            guess, float((number * value).sum() / number.sum()),
        )  # fmt: skip
