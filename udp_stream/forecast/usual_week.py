"""The usual week of a city: what all earlier days tell of a day to come.

A cell has a level, a smooth course over the day and another level on weekends; a day and an hour
are off by something, too. The city has the same, and slopes on features of cells. Kept are decayed
sums of releases, a number of days each; from these the usual week is found anew each night,
exactly. So it follows from releases and their days alone, and no error of an earlier night stays.
It is the prior of the day's filter. The model is ours (docs/mechanisms/forecast.md).
"""

from __future__ import annotations

import datetime as dt
import zlib
from collections.abc import Callable, Sequence
from math import inf, log
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from udp_stream.base.arrays import Floats, Integers
from udp_stream.forecast.traffic import (
    SCATTER,
    TRAFFIC,
    TRAFFIC_PRIOR,
    kernel,
    log_share,
    moved,
    normed_logs,
    told,
)

KINDS: Final = 2
"""Kinds of days: workdays (0), and weekends (1)."""

HOURS: Final = 24
DECAY = 0.985
LATE_DECAY = 0.6
"""Part of sums that a day leaves: half in 46 days; and of those of the last days, in which a change
shows."""

HARMONICS = 4
COURSE_HOURS = 2.5
"""A course over the day has so many periods; hours this far apart differ."""

AT_KMH = 20.0
SCALES = (0.4, 2.0)
"""Days and hours move speeds in proportion to them, within these factors, as at this speed."""


def kind_of_day(date: dt.date) -> int:
    """The number of a date's kind.

    >>> kind_of_day(dt.date(2024, 1, 8)), kind_of_day(dt.date(2024, 1, 7))
    (0, 1)
    """
    return int(date.weekday() >= 5)


def course(hour: float) -> Floats:
    """Functions of the hour of the day, of which a smooth course is made; squares sum to 1."""
    periods = np.arange(1, HARMONICS + 1)
    sizes = np.exp(-((2 * np.pi * periods * COURSE_HOURS / HOURS) ** 2) / 4)
    at = 2 * np.pi * periods * hour / HOURS
    found = np.concatenate([sizes * np.cos(at), sizes * np.sin(at)])
    return np.asarray(found / np.sqrt((sizes**2).sum()))


class Spreads(NamedTuple):
    """Standard deviations in km/h: of cells' levels, courses, weekends, days and hours; the same of
    the city, with its mean and the slopes of its features. `keep` is what an hour leaves of an
    hour's deviations: of cells, and of the city. `correlation` is that of the mean and the first
    slope."""

    level: float
    course: float
    weekend: float
    day: float
    hour: float
    mean: tuple[float, float]
    slopes: tuple[tuple[float, float], ...]
    city_course: float
    city_weekend: float
    city_weekend_course: float
    city_day: float
    city_hour: float
    keep: tuple[float, float]
    correlation: float = 0.0

    def beliefs(self, cells: int) -> Arrow:
        """Beliefs before the first release."""
        periods = 2 * HARMONICS
        own = [self.level, *[self.course] * periods, self.weekend, self.day, self.hour]
        shared = [
            *(sd for _, sd in (self.mean, *self.slopes)), *[self.city_course] * periods,
            self.city_weekend, *[self.city_weekend_course] * periods, self.city_day, self.city_hour,
        ]  # fmt: skip
        mean = np.zeros(len(shared))
        mean[: 1 + len(self.slopes)] = [at for at, _ in (self.mean, *self.slopes)]
        covariance = np.diag(np.square(shared))
        covariance[0, 1] = covariance[1, 0] = self.correlation * shared[0] * shared[1]
        found = Arrow(mean, covariance, np.array(own))
        found.grow(cells)
        return found

    def pass_hours(self, beliefs: Arrow, hours: float) -> None:
        """Forget in part whatever moves by the hour."""
        of_cells, of_city = (keep**hours for keep in self.keep)
        beliefs.renew_cells(-1, of_cells, self.hour**2)
        beliefs.renew_global(-1, of_city, self.city_hour**2)

    def renew(self, beliefs: Arrow, which: int, days: Floats | float, city_days: float) -> None:
        """Forget a deviation (-2: the day's, -1: the hour's): that of so many days' mean is next."""
        own = (self.day, self.hour)[which]
        city = (self.city_day, self.city_hour)[which]
        beliefs.renew_cells(which, 0.0, own**2 / days)
        beliefs.renew_global(which, 0.0, city**2 / city_days)


def design(at: Floats, kind: int, features: Floats, scale: Floats) -> Design:
    """Design of cells at such a place in the course of a kind of day; `features` is of shape
    (cells, features), `scale` the size of what a day and an hour are off by."""
    many = len(features)
    one = np.ones((many, 1))
    here = np.tile(at, (many, 1))
    weekend = kind * one
    moves = np.tile(scale[:, None], (1, 2))
    return Design(
        np.hstack([one, here, weekend, moves]),
        np.hstack([one, features, here, weekend, kind * here, moves]),
    )


def scale_of(kmh: Floats) -> Floats:
    """Size of what a day and an hour are off by, at such speeds."""
    return np.asarray(np.clip(kmh / AT_KMH, *SCALES))


BLOCKS: Final = ((0, 6), (6, 8), (8, 10), (10, 13), (13, 16), (16, 18), (18, 20), (20, 24))
"""Hours of the day whose sums are kept together, where a cell's hour tells little."""

OF_DAYS = 0.8
OF_HOURS = 1.2
LASTING = 0.3
"""Distance of a cell's mean of a day, and of a block of hours, from the usual, km/h: of a single
day; and of as many as there may be."""

CHANGED = 3.5
CHANGE_DAYS = 1.4
DAY_APART = 1.2
OF_CHANGED = 0.1
"""A cell has changed for good if the levels of its last days and of those before lie so many
deviations apart; there are so many late days, and a level's variance for each is as large. Earlier
days then count so much less."""

SUMS_SPREADS: Final = Spreads(
    level=7.0, course=1.5, weekend=1.0, day=0.6, hour=0.9,
    mean=(18.0, 5.0), slopes=((-4.0, 2.0), (0.0, 1.0)),
    city_course=4.0, city_weekend=2.0, city_weekend_course=1.5, city_day=0.5, city_hour=0.7,
    keep=(0.6, 0.6),
)  # fmt: skip

SUMS_FIRST_DAY: Final = SUMS_SPREADS._replace(city_course=2.0)
"""Before any day is over sums tell little of an hour: the city's hours are held together."""

CITY_APART = 0.3
CITY_MORE = 20.0
CITY_LEAST = 30.0
CITY_OFF = 6.0
CITY_DAY = 0.6
CITY_REST = 0.1
CITY_NOW = 0.3
CITY_CELLS = 6.0
"""The traffic of the city is off by such a part of the cells' sum, and by so much more; too little
tells nothing. Variances of its speed in km2/h2: for each unit of that, of a day's hour, and of what
days do not make less; of today's hour, and of each cell in it."""

LEAST_PRECISION = 1e-12


class NoisedMeans(NamedTuple):
    """Means that sums over days tell: the mean of noised residual sums, of the forecasts that these
    were taken around and of noised traffic, variances of both noises, and the number of days."""

    residual: Floats
    forecast: Floats
    traffic: Floats
    noise: Floats
    traffic_noise: Floats
    days: Floats


class NoisedTotals:
    """Decayed sums of noised sums, of any shape: what is kept, in float32, and what today adds.

    >>> totals = NoisedTotals(1)
    >>> totals.add(0, (8.0, 20.0, 4.0), noise=np.array([9.0, 1.0]))
    >>> totals.fold(DECAY)
    >>> means_of(totals.kept).residual.round(3).tolist(), means_of(totals.kept).noise.round(3).tolist()
    ([8.0], [9.0])
    """

    def __init__(self, *shape: int) -> None:
        self.kept = np.zeros((6, *shape), dtype=np.float32)
        self._today = np.zeros((6, *shape))

    def add(
        self, at: Any, seen: Sequence[Floats | float], noise: Floats, days: float = 1.0
    ) -> None:
        """Residual, forecast and traffic, of a part `at` of the shape; `noise` has the variances of
        the first and of the last."""
        residual, forecast, traffic = seen
        weight, of_traffic = (1 / noise).tolist()
        added = (
            weight * residual, weight * forecast, weight, of_traffic * traffic, of_traffic, days
        )  # fmt: skip
        for total, one in zip(self._today, added, strict=True):
            total[at] += one

    def fold(self, decay: float) -> None:
        """The day is over."""
        self.kept = (decay * self.kept + self._today).astype(np.float32)
        self._today[:] = 0.0


def means_of(totals: NDArray[np.float32]) -> NoisedMeans:
    """The means of totals, whose first axis is of the six sums."""
    residual, forecast, precision, traffic, of_traffic, days = totals.astype(np.float64)
    precision = np.maximum(precision, LEAST_PRECISION)
    of_traffic = np.maximum(of_traffic, LEAST_PRECISION)
    return NoisedMeans(
        residual / precision, forecast / precision, traffic / of_traffic,
        1 / precision, 1 / of_traffic, days,
    )  # fmt: skip


ROUNDS = 3
SERVICE_MAX = 4.0
SERVICE_MIN = 0.02
OF_SERVICE = 2.8
"""Traffic of an hour over a cell's usual traffic: rounds of its fit, bounds, and a weight that
holds it near 1."""

OWN_HOURS = 0.1
UNLIKE_DAY = 0.15
"""A cell's traffic of some hours is off by such a part; and so many cells have another day than the
city's, of which the deviations are these."""

LIKE_CITY_SD = 0.5
UNLIKE_CITY_SD = 1.5
NO_TRAFFIC = 1e-3
UNLIKELY = 1e-9
LIKE_CITY = (1 - UNLIKE_DAY) * kernel(LIKE_CITY_SD) + UNLIKE_DAY * kernel(UNLIKE_CITY_SD)
OF_KINDS = (5, 2)
"""Days of a week of either kind."""


def packed(sums: Sequence[NDArray[Any]]) -> bytes:
    """Sums as they are kept, one array after the other.

    >>> kept = np.array([0.5, 3.0], np.float32)
    >>> again = np.zeros_like(kept)
    >>> unpack(packed([kept]), [again])
    >>> again.tolist()
    [0.5, 3.0]
    """
    return zlib.compress(b"".join(kept.astype("<f4").tobytes() for kept in sums))


def unpack(data: bytes, sums: Sequence[NDArray[Any]]) -> None:
    """Undo `packed`, in place; ValueError, with all as it was, for sums of another size, or damaged
    ones."""
    try:
        values = np.frombuffer(zlib.decompress(data), "<f4")
    except zlib.error as error:
        raise ValueError("expected packed sums, got other bytes") from error
    ends = np.cumsum([kept.size for kept in sums])
    if values.size != ends[-1]:
        raise ValueError(f"expected {ends[-1]} numbers, got {values.size}")
    for kept, part in zip(sums, np.split(values, ends[:-1]), strict=True):
        kept[...] = part.reshape(kept.shape)


class SumsWeek:
    """The usual week from noised sums of cells: `apart` is the variance between the plates of a
    unit of traffic, in km2/h2.

    >>> week = SumsWeek(cells=2, apart=40.0)
    >>> for hour in range(7, 19):
    ...     week.add(0, hour, np.array([[0.0, 40.0], [0.0, 10.0]]), np.full(2, 18.0), np.array([4.0, 1.0]), 1.0)
    >>> week.night(dt.date(2024, 1, 8))
    >>> beliefs = week.beliefs()
    >>> at = design(course(8.0), 0, week.features, np.ones(2))
    >>> beliefs.predict(np.arange(2), at)[0].round().tolist()
    [21.0, 22.0]
    """

    def __init__(self, cells: int, apart: float) -> None:
        self._cells = cells
        self._apart = apart
        self.totals = NoisedTotals(cells, KINDS, HOURS)
        self.late = NoisedTotals(cells, KINDS)
        self.days = NoisedTotals(cells, KINDS)
        self.city = NoisedTotals(KINDS, HOURS)
        self.features = np.zeros((cells, 2))
        self.service = np.ones((KINDS, HOURS))
        self._sizes = np.tile(TRAFFIC_PRIOR, (cells, 1))
        self.changed = np.zeros(cells, dtype=np.int64)

    @property
    def sums(self) -> list[NDArray[Any]]:
        """All that is kept of days that are over: the rest follows from it."""
        kept = [totals.kept for totals in (self.totals, self.late, self.days, self.city)]
        return [*kept, self.changed]

    @property
    def is_new(self) -> bool:
        """Whether no day is over yet."""
        return not self.totals.kept[5].any()

    def add(
        self, kind: int, hour: int, sums: Floats, forecast: Floats, noise: Floats, days: float
    ) -> None:
        """A slot's noised sums, of residuals around the forecast and of traffic, shape (2, cells);
        the slot is such a part of its hour's day."""
        everything = slice(None)
        seen = sums[0], forecast, sums[1]
        self.totals.add((everything, kind, hour), seen, noise, days)
        self.late.add((everything, kind), seen, noise, days / HOURS)

    def add_day(self, kind: int, sums: Floats, forecast: Floats, noise: Floats) -> None:
        """A day's noised sums of cells: residuals of all hours, each around its own forecast, and
        traffic. `forecast` is the mean over the hours of service (`over_service`)."""
        seen = sums[0], forecast, sums[1]
        self.days.add((slice(None), kind), seen, noise)

    def add_city(
        self, kind: int, hour: int, sums: Sequence[float], noise: Floats, days: float
    ) -> None:
        """A slot's noised sums over all cells, around the forecasts that `add` has of it."""
        seen = sums[0], 0.0, sums[1]
        self.city.add((kind, hour), seen, noise, days)

    def over_service(self, kind: int, by_hour: Floats) -> Floats:
        """Means over the hours of such a day's service, of columns by hour, shape (24, cells)."""
        service = self.service[kind] + SERVICE_MIN
        return np.asarray(service @ by_hour / service.sum())

    def night(self, date: dt.date) -> None:
        """Such a day is over: its sums are of the usual week from now on."""
        for totals in (self.totals, self.days, self.city):
            totals.fold(DECAY)
        self.late.fold(LATE_DECAY)
        self._follow_changes(kind_of_day(date), date)

    def beliefs(self) -> Arrow:
        """The prior of a day's filter, found anew from the sums; `features`, `service` and
        `traffic` are those of the days that are over."""
        self._fit_traffic()
        spreads = SUMS_FIRST_DAY if self.is_new else SUMS_SPREADS
        found = spreads.beliefs(self._cells)
        kinds = [kind for kind in range(KINDS) if self.totals.kept[5, :, kind].any()]
        usual = sum(OF_KINDS[kind] * (self.traffic(kind, 0, HOURS) @ TRAFFIC) for kind in kinds)
        if kinds:
            self.features = features_of(np.asarray(usual))
        for kind in kinds:
            self._observe_days(found, kind)
        for kind in kinds:
            for start, end in BLOCKS:
                self._observe_hours(found, kind, start, end)
            for hour in range(HOURS):
                self._observe_city(found, kind, hour)
        return found

    def traffic(self, kind: int, start: int, end: int) -> Floats:
        """Probabilities of a cell's mean traffic in these hours of such a day, shape (cells,
        grid)."""
        hours = self.totals.kept[:, :, kind, start:end].sum(axis=2)
        seen = means_of(hours)
        service = float(self.service[kind, start:end].mean())
        prior = moved(self._sizes @ LIKE_CITY, log(service)) + UNLIKELY
        variance = seen.traffic_noise[:, None] + (OWN_HOURS * TRAFFIC) ** 2
        off = TRAFFIC - seen.traffic[:, None]
        return normed_logs(np.log(prior) - 0.5 * (off**2 / variance + np.log(variance)))

    def expected_traffic(self, kind: int, hour: int) -> Floats:
        """Traffic of each cell in an hour of such a day."""
        return np.asarray(self.traffic(kind, hour, hour + 1) @ TRAFFIC)

    def _fit_traffic(self) -> None:
        """A cell's size from all hours, the course of service from all cells."""
        seen = means_of(self.totals.kept)
        there = seen.days > 0
        scatter = SCATTER * np.maximum(seen.traffic, 0.1) / np.maximum(seen.days, 0.1)
        precision = np.where(there, 1 / (seen.traffic_noise + scatter), 0.0)
        number = precision * seen.traffic
        service = np.ones((KINDS, HOURS))
        for _ in range(ROUNDS):
            total = (number * service).sum(axis=(1, 2))
            squares = (precision * service**2).sum(axis=(1, 2))
            off = TRAFFIC - (total / np.maximum(squares, LEAST_PRECISION))[:, None]
            self._sizes = normed_logs(np.log(TRAFFIC_PRIOR) - 0.5 * squares[:, None] * off**2)
            mean, square = (self._sizes @ TRAFFIC**power for power in (1, 2))
            service = (np.einsum("ckh,c->kh", number, mean) + OF_SERVICE) / (
                np.einsum("ckh,c->kh", precision, square) + OF_SERVICE
            )
            service = np.clip(service, SERVICE_MIN, SERVICE_MAX)
            service /= max(float(service[0].mean()), SERVICE_MIN)
        self.service = service

    def _observe_days(self, beliefs: Arrow, kind: int) -> None:
        """Condition on the sums of whole days."""
        seen = means_of(self.days.kept[:, :, kind])
        traffic = self.traffic(kind, 0, HOURS)
        hours = float(self.service[kind].sum())
        number = hours * TRAFFIC
        off = number - seen.traffic[:, None]
        logs = np.log(traffic + UNLIKELY) - 0.5 * off**2 / seen.traffic_noise[:, None]
        self._observe(
            beliefs, kind, (0, HOURS), seen, seen.days, OF_DAYS, normed_logs(logs), number
        )

    def _observe_hours(self, beliefs: Arrow, kind: int, start: int, end: int) -> None:
        """Condition on the sums of a block of hours."""
        seen = means_of(self.totals.kept[:, :, kind, start:end].sum(axis=2))
        days = seen.days / (end - start)
        traffic = self.traffic(kind, start, end)
        self._observe(beliefs, kind, (start, end), seen, days, OF_HOURS, traffic, TRAFFIC)

    def _observe(
        self, beliefs: Arrow, kind: int, hours: tuple[int, int], seen: NoisedMeans, days: Floats,
        of_day: float, traffic: Floats, number: Floats,
    ) -> None:  # fmt: skip
        if not days.any():
            return
        columns = self._design_of(kind, *hours)
        many = np.maximum(days, 0.5)
        plates = self._apart / np.maximum(traffic @ TRAFFIC * (hours[1] - hours[0]), 1)
        extra = (of_day**2 + plates) / many + LASTING**2
        cells = np.arange(self._cells)
        mean, variance = beliefs.predict(cells, columns)
        value, noise = told(
            traffic, number, np.zeros(1), seen.residual, seen.noise, seen.forecast - mean,
            variance + extra,
        )  # fmt: skip
        at = np.flatnonzero(np.isfinite(noise))
        if at.size:
            beliefs.update(at, columns.of(at), (mean + value)[at], (noise + extra)[at])

    def _observe_city(self, beliefs: Arrow, kind: int, hour: int) -> None:
        """Condition on the sums over all cells in an hour."""
        seen = means_of(self.city.kept[:, kind, hour])
        if seen.days:
            forecast = means_of(self.totals.kept[:, :, kind, hour]).forecast
            here = self.traffic(kind, hour, hour + 1) @ TRAFFIC
            columns = self._design_of(kind, hour, hour + 1)
            rest = CITY_DAY / max(float(seen.days), 0.5) + CITY_REST
            update_city(beliefs, columns, here, forecast, seen, rest)

    def _design_of(self, kind: int, start: int, end: int) -> Design:
        """Design of the mean over these hours of service."""
        courses = np.zeros((HOURS, 2 * HARMONICS))
        courses[start:end] = [course(hour + 0.5) for hour in range(start, end)]
        service = np.zeros(HOURS)
        service[start:end] = self.service[kind, start:end] + SERVICE_MIN
        at = service @ courses / service.sum()
        return design(at, kind, self.features, np.zeros(self._cells))

    def _follow_changes(self, kind: int, date: dt.date) -> None:
        """Earlier days of a cell that has changed for good tell the course of its day alone: their
        level becomes that of the last days."""
        before = means_of(self.totals.kept[:, :, kind].sum(axis=2))
        late = means_of(self.late.kept[:, :, kind])
        traffic = np.maximum(before.traffic, NO_TRAFFIC)
        off = late.forecast - before.forecast + (late.residual - before.residual) / traffic
        spread = late.noise / traffic**2 + DAY_APART / np.maximum(late.days, 0.5)
        changed = np.flatnonzero(
            (np.abs(off) > CHANGED * np.sqrt(spread))
            & (late.days > CHANGE_DAYS)
            & (before.days > 1.3 * HOURS * late.days)
            & (traffic > 3 * np.sqrt(before.traffic_noise))
        )
        self.changed[changed] = date.toordinal()
        kept = self.totals.kept
        kept[1, changed] += kept[2, changed] * off[changed, None, None].astype(np.float32)
        kept[:3, changed] *= OF_CHANGED
        kept[5, changed] *= OF_CHANGED


def features_of(traffic: Floats) -> Floats:
    """The logarithm of cells' traffic relative to busy cells, and its square, shape (cells, 2)."""
    share = log_share(traffic)
    return np.column_stack([share, (share + 0.5) ** 2 - 1])


def update_city(
    beliefs: Arrow,
    columns: Design,
    traffic: Floats,
    forecast: Floats,
    seen: NoisedMeans,
    rest: float,
) -> None:
    """Condition on sums over all cells, in which residuals were taken around this forecast; cells
    have such traffic, and `rest` is the variance of the city's speed beside its noise."""
    spread = (CITY_APART * traffic.sum() + CITY_MORE) ** 2
    precision = 1 / spread + 1 / float(seen.traffic_noise)
    number = float((traffic.sum() / spread + seen.traffic / seen.traffic_noise) / precision)
    if number < CITY_LEAST:
        return
    share = traffic / traffic.sum()
    value = float(share @ forecast + seen.residual / number)
    noise = (float(seen.noise) + CITY_OFF / precision) / number**2
    over = beliefs.mean_over(share, np.arange(beliefs.cells), columns)
    beliefs.observe_mean(over.loadings, value - over.mean, noise + rest + over.own)


HAT_FEATURES: Final = 8
"""Numbers that releases carry of a HAT: the prior of its counts, six features, and whether a narrow
clip observes it."""

HATS_SPREADS: Final = Spreads(
    level=2.5, course=1.0, weekend=1.0, day=0.6, hour=0.6,
    mean=(18.0, 5.0), slopes=((12.6, 6.0), *[(0.0, 0.8)] * 6, (0.0, 1.0)),
    city_course=1.0, city_weekend=1.0, city_weekend_course=0.7, city_day=1.0, city_hour=0.4,
    keep=(0.6, 0.6), correlation=0.5,
)  # fmt: skip

FIRST_DAY: Final = HATS_SPREADS._replace(level=2.0, city_day=0.3)
"""Before any day is over little is told of much: what a city may differ by is held together."""

CITY_COURSES: Final = (1.0, 2.0, 4.0)
LIKELIER = 1.5
"""Deviations of the city's course over the day that there may be: each is taken if the sums are
likelier by it, by such a logarithm, than by the one before. Rush hours slow some cities by half, and
others hardly."""

HAT_DAYS_APART = 0.6


class HatWeek:
    """The usual week from releases of HATs, whose counts are public: each tells its speed with a
    known variance, beside what its features tell.

    >>> week = HatWeek()
    >>> for hour in range(7, 19):
    ...     week.add(0, hour, np.array([5, 9]), np.array([18.0, 24.0]), np.ones(2), np.zeros((2, HAT_FEATURES)))
    >>> week.night(dt.date(2024, 1, 8))
    >>> at = design(course(8.0), 0, np.zeros((2, HAT_FEATURES)), np.ones(2))
    >>> week.beliefs().predict(np.arange(2), at)[0].round().tolist()
    [18.0, 24.0]
    """

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.kept = np.zeros((3 + HAT_FEATURES, 0, KINDS, HOURS), dtype=np.float32)
        self.late = np.zeros((3, 0, KINDS, HOURS), dtype=np.float32)
        self._today = np.zeros((3 + HAT_FEATURES, 0, KINDS, HOURS))
        self.changed = np.zeros(0, dtype=np.int64)

    @property
    def seen(self) -> list[int]:
        """The cells that were seen on a day that is over; those that are new today are the last."""
        return list(self.numbers)[: int(self.kept[2].any(axis=(1, 2)).sum())]

    def sums(self, cells: int) -> list[NDArray[Any]]:
        """All that is kept of days that are over, of the first cells."""
        return [self.kept[:, :cells], self.late[:, :cells], self.changed[:cells]]

    def numbers_of(self, cells: NDArray[Any]) -> Integers:
        """Numbers of cells, which are new at first."""
        for cell in cells.tolist():
            self.numbers.setdefault(cell, len(self.numbers))
        more = len(self.numbers) - self.changed.size
        if more:
            self.kept, self.late, self._today = (
                np.concatenate([one, np.zeros((len(one), more, KINDS, HOURS), one.dtype)], axis=1)
                for one in (self.kept, self.late, self._today)
            )
            self.changed = np.append(self.changed, np.zeros(more, dtype=np.int64))
        return np.array([self.numbers[cell] for cell in cells.tolist()], dtype=np.int64)

    def add(
        self, kind: int, hour: int, cells: NDArray[Any], value: Floats, variance: Floats,
        features: Floats, days: float = 1.0,
    ) -> None:  # fmt: skip
        """Releases of a slot, of distinct cells, of such a part of an hour."""
        at = self.numbers_of(cells)
        weight = 1 / variance
        columns = [weight, weight * value, np.full(at.size, days), *(weight * features.T)]
        self._today[:, at, kind, hour] += np.array(columns)

    def night(self, date: dt.date) -> None:
        """Such a day is over."""
        self.kept = (DECAY * self.kept + self._today).astype(np.float32)
        self.late = (LATE_DECAY * self.late + self._today[:3]).astype(np.float32)
        self._today[:] = 0.0
        self._follow_changes(kind_of_day(date), date)

    @property
    def is_new(self) -> bool:
        """Whether no day is over yet."""
        return not self.kept[2].any()

    def beliefs(self) -> Arrow:
        """The prior of a day's filter, found anew from the sums."""
        if self.is_new:
            return FIRST_DAY.beliefs(len(self.numbers))
        found, best = self._fitted(HATS_SPREADS)
        for course_sd in CITY_COURSES[1:]:
            other, likelihood = self._fitted(HATS_SPREADS._replace(city_course=course_sd))
            if likelihood < best + LIKELIER:
                break
            found, best = other, likelihood
        return found

    def _fitted(self, spreads: Spreads) -> tuple[Arrow, float]:
        """The sums' posterior from these spreads, and the logarithm of their likelihood."""
        found = spreads.beliefs(len(self.numbers))
        likelihood = 0.0
        for kind in range(KINDS):
            sums = self.kept[:, :, kind].astype(np.float64)
            days = sums[2].max(axis=1, initial=0.0)
            if not days.any():
                continue
            spreads.renew(found, -2, np.maximum(days, 0.5), max(float(days.max()), 0.5))
            for hour in range(HOURS):
                precision, total, here = sums[:3, :, hour]
                at = np.flatnonzero(precision > 0)
                if not at.size:
                    continue
                spreads.renew(found, -1, np.maximum(here, 0.5), max(float(here.max()), 0.5))
                value = total[at] / precision[at]
                features = (sums[3:, at, hour] / precision[at]).T
                columns = design(course(hour + 0.5), kind, features, np.ones(at.size))
                likelihood += found.update(at, columns, value, 1 / precision[at] + LASTING**2)
        spreads.renew(found, -2, 1.0, 1.0)
        spreads.renew(found, -1, 1.0, 1.0)
        return found, likelihood

    def _follow_changes(self, kind: int, date: dt.date) -> None:
        """As `SumsWeek` does; levels are compared hour by hour."""
        late, before = self.late[:, :, kind], self.kept[:, :, kind]
        weight = late[0].sum(axis=1) + LEAST_PRECISION
        apart = late[1] - late[0] * before[1] / np.maximum(before[0], LEAST_PRECISION)
        off = apart.sum(axis=1) / weight
        days = late[2].max(axis=1, initial=0.0)
        spread = 1 / weight + HAT_DAYS_APART / np.maximum(days, 0.5)
        changed = np.flatnonzero(
            (np.abs(off) > CHANGED * np.sqrt(spread))
            & (days > CHANGE_DAYS)
            & (before[2].max(axis=1, initial=0.0) > 1.3 * days)
        )
        self.changed[changed] = date.toordinal()
        self.kept[1, changed] += self.kept[0, changed] * off[changed, None, None]
        self.kept[:, changed] *= OF_CHANGED


# Normal beliefs about a city, in O(cells): an arrow.
#
# All cells share the *globals*. Given these, cells are independent; each has a few states of its own.
# So the covariance is an arrow. It is kept as the globals' mean and covariance and, for each cell,
# its states given the globals: `intercept + coupling . globals`, with a covariance of their own.
# Updates are exact (a Kalman filter's).

# Linear algebra on a single thread. The matrices of a slot are long and narrow: more threads hardly
# make them faster, but spin for a tenth of a second after each product, on cores that the ledger's
# server needs. And the last bit of a long sum would depend on the number of cores: forecasts of two
# workers would differ by it.

Work = TypeVar("Work", bound=Callable[..., object])

_BLAS = ThreadpoolController()


def on_one_thread(work: Work) -> Work:
    """Wrap `work`; BLAS has a single thread in the whole process while it runs."""
    limited: Work = _BLAS.wrap(limits=1, user_api="blas")(work)
    return limited


class Design(NamedTuple):
    """Columns of observations: on the cells' own states, and on the globals; a line for each.

    >>> Design(own=np.ones((5, 1)), shared=np.ones((5, 2))).of(np.array([0, 3])).shared.shape
    (2, 2)
    """

    own: Floats
    shared: Floats

    def of(self, rows: NDArray[Any]) -> Design:
        return Design(self.own[rows], self.shared[rows])


class Arrow:
    """Normal globals with this mean and covariance, and cells whose states have these standard
    deviations beside them.

    Cells are numbered by the caller, from 0.

    >>> arrow = Arrow(mean=np.array([18.0]), covariance=np.array([[25.0]]), own_sd=np.array([2.0]))
    >>> arrow.grow(1)
    >>> at, design = np.array([0]), Design(np.ones((1, 1)), np.ones((1, 1)))
    >>> before = arrow.predict(at, design)
    >>> _ = arrow.update(at, design, np.array([24.0]), np.array([29.0]))
    >>> after = arrow.predict(at, design)
    >>> before[0].tolist(), before[1].tolist(), after[0].round(3).tolist(), after[1].round(3).tolist()
    ([18.0], [29.0], [21.0], [14.5])
    """

    def __init__(self, mean: Floats, covariance: Floats, own_sd: Floats) -> None:
        self._first = np.diag(own_sd**2)
        self.mean = mean
        self._covariance: NDArray[Any] = covariance
        self._intercept = np.zeros((0, own_sd.size))
        self._coupling = np.zeros((0, own_sd.size, mean.size))
        self._variance = np.zeros((0, own_sd.size, own_sd.size))

    @property
    def cells(self) -> int:
        return len(self._intercept)

    def grow(self, more: int) -> None:
        """Add cells of which nothing is known."""
        states, globals_ = self._coupling.shape[1:]
        self._intercept = np.concatenate([self._intercept, np.zeros((more, states))])
        self._coupling = np.concatenate([self._coupling, np.zeros((more, states, globals_))])
        self._variance = np.concatenate([self._variance, np.tile(self._first, (more, 1, 1))])

    def predict(self, at: Integers, design: Design) -> tuple[Floats, Floats]:
        """Mean and variance of what is observed, without its rest, at cells (-1: never seen)."""
        given = self._given_globals(at, design)
        spread = np.einsum("ij,ij->i", given.border @ self._covariance, given.border)
        return given.intercept + given.border @ self.mean, given.variance + spread

    def update(self, at: Integers, design: Design, value: Floats, variance: Floats) -> float:
        """Condition on observations with noise of these variances, of distinct cells; gives the log
        of the values' likelihood."""
        given = self._given_globals(at, design)
        weight = 1 / (given.variance + variance)
        off = value - given.intercept - given.border @ self.mean
        weighed = given.border * weight[:, None]
        before = np.linalg.inv(self._covariance)
        precision = before + weighed.T @ given.border
        self._covariance = _symmetric(np.linalg.inv(precision))
        moved = self._covariance @ (weighed.T @ off)
        self.mean = self.mean + moved
        gain = given.covariance * weight[:, None]
        self._intercept[at] += gain * (value - given.intercept)[:, None]
        self._coupling[at] -= gain[:, :, None] * given.border[:, None, :]
        self._variance[at] -= gain[:, :, None] * given.covariance[:, None, :]
        misfit = float(off @ (off * weight) - moved @ precision @ moved)
        determinant = (
            np.linalg.slogdet(precision)[1] - np.linalg.slogdet(before)[1] - np.log(weight).sum()
        )
        return -0.5 * (misfit + float(determinant))

    def mean_over(self, share: Floats, at: Integers, design: Design) -> MeanOver:
        """The mean of what is observed at these cells, weighed by `share`."""
        given = self._given_globals(at, design)
        loadings = share @ given.border
        mean = float(share @ given.intercept) + float(loadings @ self.mean)
        return MeanOver(mean, loadings, float(share**2 @ given.variance))

    def observe_mean(
        self, loadings: Floats, off: float, variance: float, usual_variance: float = inf
    ) -> None:
        """Condition the globals on a mean with these loadings, which is so far off; what its cells
        are off by on their own is within `variance`. Where it is a surprise, by the variance of an
        offset of none, the last global takes what the others do not explain."""
        known = float(loadings @ self._covariance @ loadings)
        spread = known + variance
        if off**2 > max(spread, SURPRISE**2 * (usual_variance + known)):
            self._covariance[-1, -1] += (off**2 - spread) / loadings[-1] ** 2
            spread = off**2
        through = self._covariance @ loadings
        self.mean = self.mean + through * (off / spread)
        self._covariance = _symmetric(self._covariance - np.outer(through, through) / spread)

    def renew_cells(self, state: int, keep: float, variance: Floats | float) -> None:
        """Let a state of each cell decay to this part; so much comes anew that its variance tends
        to `variance`."""
        self._intercept[:, state] *= keep
        self._coupling[:, state] *= keep
        self._variance[:, state] *= keep
        self._variance[:, :, state] *= keep
        self._variance[:, state, state] += (1 - keep**2) * variance

    def renew_global(self, which: int, keep: float, variance: float) -> None:
        """The same of a global. What cells owe to the old global becomes their own."""
        others = np.arange(self.mean.size) != which % self.mean.size
        shared = self._covariance[others, which]
        slope = np.linalg.solve(self._covariance[np.ix_(others, others)], shared)
        own = float(self._covariance[which, which])
        coupled = self._coupling[:, :, which].copy()
        self._intercept += coupled * float(self.mean[which] - slope @ self.mean[others])
        self._coupling[:, :, others] += coupled[:, :, None] * slope
        rest = max(own - float(slope @ shared), 0.0)
        self._variance += coupled[:, :, None] * coupled[:, None, :] * rest
        self._coupling[:, :, which] = 0.0
        self._covariance[which] = 0.0
        self._covariance[:, which] = 0.0
        self._covariance[which, which] = keep**2 * own + (1 - keep**2) * variance
        self.mean[which] *= keep

    def _given_globals(self, at: Integers, design: Design) -> _GivenGlobals:
        known = at >= 0
        own = design.own
        if not known.any():
            covariance = own @ self._first
            return _GivenGlobals(
                np.zeros(at.size), design.shared, (covariance * own).sum(axis=1), covariance
            )
        parts = self._intercept, self._coupling, self._variance
        intercept, coupling, variance = (part[at] for part in parts)
        intercept[~known] = 0.0
        coupling[~known] = 0.0
        variance[~known] = self._first
        covariance = np.einsum("ij,ijk->ik", own, variance)
        return _GivenGlobals(
            (own * intercept).sum(axis=1),
            design.shared + np.einsum("ij,ijk->ik", own, coupling),
            (covariance * own).sum(axis=1),
            covariance,
        )


SURPRISE = 2.5
"""Deviations of a mean over cells from which it is a surprise."""


class MeanOver(NamedTuple):
    """A mean over cells: its forecast, its loadings on the globals, and the variance of what cells
    add on their own.

    >>> arrow = Arrow(mean=np.array([18.0]), covariance=np.array([[25.0]]), own_sd=np.array([2.0]))
    >>> of_two = arrow.mean_over(np.full(2, 0.5), np.full(2, -1), Design(np.ones((2, 1)), np.ones((2, 1))))
    >>> of_two.mean, of_two.loadings.tolist(), of_two.own
    (18.0, [1.0], 2.0)
    """

    mean: float
    loadings: Floats
    own: float


class _GivenGlobals(NamedTuple):
    """The observation, given the globals: intercept, slopes on them, variance; and its covariance
    with the cell's states."""

    intercept: Floats
    border: Floats
    variance: Floats
    covariance: Floats


def _symmetric(matrix: NDArray[Any]) -> Floats:
    return np.asarray((matrix + matrix.T) / 2)
