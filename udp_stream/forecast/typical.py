"""The typical week: the usual mean speed of each cell and hour, by class of day, from what was
released.

The model, in km/h, for a HAT of cell c, hour h and day d of a class:

    T = usual(c, h) + gamma . (counts of the day beside the usual) + city(d) + street(c, d) + own +
    rest usual(c, h) = city(h) + beta . counts(c, h) + cell(c) + course(c, h)

A release says T with its noise, as its clip lets it through (`anomalies.passed`): independent of
all others given T, as its forecast is only where it was clipped. Estimates share releases, so they
are not observations: only the guess by counts is read from them. What cells share (city(h), beta,
gamma, city(d)) and each cell's hours are a joint normal distribution, an arrow: given what is
shared, cells are independent. Variances, and how clips let speeds through, are found in turn.

A street may change for good. Where the days from some day on differ from those before by far more
than days differ, earlier days tell the course of the cell, and no longer its level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Final, Literal, NamedTuple

import numpy as np

from udp_stream.arrays import Floats, Integers
from udp_stream.forecast.anomalies import ReleaseClip, passed
from udp_stream.forecast.arrow import on_one_thread

DayClass = Literal["weekday", "saturday", "sunday"]
CLASSES: Final[tuple[DayClass, ...]] = ("weekday", "saturday", "sunday")
HOURS: Final = 24

GUESS_SD = 1.5
CELL_SD = 3.0
COURSE_SD = 0.8
COURSE_HOURS = 4.0
OWN_SD = 0.3
"""Km/h at 20 km/h: how far a slope of counts is from 0, a cell from what counts say, its course
over the day (which has a correlation that falls by e in so many hours), and an hour from its
neighbours."""

OF_CLIPS: Final = 0.025
"""Deviation that all releases share, as plates' speeds are skewed and clips are narrow: recorded
days 1 %, made-up cities 2 %."""

RUSH_SD: Final = 0.5
"""Deviation of the part by which a street feels rush hours more or less."""

OF_CLASS_SD: Final = 0.6
"""The same of a Saturday's or Sunday's cell from a weekday's, as a part of the above."""

CITY_DAY_SD = 1.0
STREET_DAY_SD = 1.2
HAT_DAY_SD = 1.5
"""Km/h at 20 km/h, at first: how far a day moves the city, a street, and a HAT; the first two are
learnt."""

LEVEL_SD: Final = 6.0
"""Deviation of the prior of the city, km/h: its mean, and how its hours differ (half of it)."""

ROUNDS: Final = 6
CHANGED: Final = 4.5
"""Standard deviations between the days before and after a change. Of 100 cells in 20 days none is
so by chance."""

CHANGE_DAYS: Final = 3
"""Days that have to agree on a change: works of a day are no change for good."""

TOGETHER: Final = 1e4
"""How surely the effects of days have the sum 0."""

EARLIER_SD: Final = 15.0
"""Deviation of the earlier days of a cell that has changed, km/h."""

LEAST_SLOPE: Final = 0.15
"""A clip lets through at least so much of a small difference, or the release says next to nothing."""

AT_KMH = 20.0
SLOWEST_KMH = 6.0
STEP_KMH = 2.0
TAIL: Final = 1.96


class ReleaseColumns(NamedTuple):
    """Releases: cell, day and hour as numbers, `value` with the variances of its noise, of the
    HAT's rest, and of its forecast, how it was clipped, and `counts`: by how much its features
    differ from those of its cell and hour. Days are in the order of time."""

    cell: Integers
    day: Integers
    hour: Integers
    value: Floats
    noise: Floats
    unexplained: Floats
    forecast: Floats
    clipped: Sequence[ReleaseClip]
    counts: Floats


@dataclass(frozen=True, slots=True)
class TypicalSpeeds:
    """Typical speeds by cell and hour, km/h: the usual mean speed, its standard deviation, and the
    days on which it was released. `changed` has the day from which on a cell is another, -1 for
    none; `before` is by how much it was faster until then.

    >>> TypicalSpeeds(*[np.zeros((1, 24))] * 3, changed=np.array([-1]), before=np.zeros(1)).low.shape
    (1, 24)
    """

    mean: Floats
    deviation: Floats
    days: Floats
    changed: Integers
    before: Floats

    @property
    def low(self) -> Floats:
        return np.maximum(self.mean - TAIL * self.deviation, 0.0)

    @property
    def high(self) -> Floats:
        return self.mean + TAIL * self.deviation


@dataclass
class _Spreads:
    """Standard deviations of days that are learnt, and factors on the variances of cells and of
    single HATs."""

    day: float = CITY_DAY_SD
    street: float = STREET_DAY_SD
    cells: float = 1.0
    own: float = 1.0


class _Cell(NamedTuple):
    """A cell given what all share. `rows` are its releases: the inverse of their covariance is
    diag(`weight`) less what each of `days` shares; `shared` and `states` are their designs. `prior`
    and `covariance` are of its states: its hours, and what earlier days were off."""

    rows: Integers
    weight: Floats
    days: Floats
    shared: Floats
    states: Floats
    prior: Floats
    covariance: Floats

    def weighed(self, columns: Floats) -> Floats:
        """The inverse covariance times these."""
        return np.asarray((self.weight * columns.T).T - self.days @ (self.days.T @ columns))


@on_one_thread
def usual_week(
    seen: ReleaseColumns,
    counts: Floats,
    days: int,
    max_kmh: float,
    before: TypicalSpeeds | None = None,
) -> TypicalSpeeds:
    """The usual speeds of a class of `days` days. `counts` has the features of each cell and hour
    without a release: (cells, hours, features), standardised. `before` is the usual week of another
    class to begin from."""
    week = _Week(seen, counts, days, max_kmh, before)
    changed = np.full(counts.shape[0], -1)
    for turn in range(ROUNDS):
        week.solve(changed)
        if turn == ROUNDS // 2:
            changed = week.changes()
    found = np.zeros(week.mean.shape)
    np.add.at(found, (seen.cell, seen.hour), seen.day >= changed[seen.cell])
    # The days that there were are a sample of all days: what moved the whole city on them is left
    # in their mean.
    many = max(1, np.unique(seen.day).size)
    of_days = (week.spreads.day * _speed(week.mean)) ** 2 / many
    deviation = np.sqrt(week.variance + of_days + (OF_CLIPS * week.mean) ** 2)
    return TypicalSpeeds(np.clip(week.mean, 0.0, max_kmh), deviation, found, changed, week.offset)


def _speed(kmh: Floats) -> Floats:
    """Factor of standard deviations at such a speed, elementwise."""
    return np.asarray(np.maximum(kmh, SLOWEST_KMH) / AT_KMH)


def _beside(seen: ReleaseColumns, changed: Integers) -> Floats:
    """Counts less the usual counts; for cells that have changed, less those before or after the
    change."""
    counts = seen.counts.copy()
    for cell in np.flatnonzero(changed >= 0).tolist():
        for rows in ((seen.day < changed[cell]), (seen.day >= changed[cell])):
            here = rows & (seen.cell == cell)
            counts[here] -= counts[here].mean(axis=0)
    return counts


class _Week:
    """The fit, round by round."""

    def __init__(
        self,
        seen: ReleaseColumns,
        counts: Floats,
        days: int,
        max_kmh: float,
        before: TypicalSpeeds | None,
    ) -> None:
        cells = counts.shape[0]
        self._seen = seen
        self._before = before
        self.spreads = _Spreads()
        self._grid = np.arange(0.0, max_kmh + STEP_KMH, STEP_KMH)
        self._passed = (
            passed(self._grid, seen.forecast, seen.clipped) if seen.value.size else np.zeros((0, 1))
        )
        self._centre = np.array([clip.centre for clip in seen.clipped])
        level = (
            float(np.average(seen.value, weights=1 / (seen.noise + seen.unexplained)))
            if seen.value.size
            else AT_KMH
        )
        self._base = np.full((cells, HOURS), level) if before is None else before.mean
        self._counts = counts if before is None else np.zeros((cells, HOURS, 0))
        self.mean = self._base.copy()
        self.variance = np.full((cells, HOURS), CELL_SD**2)
        self.offset = np.zeros(cells)
        self._slope = np.zeros(seen.counts.shape[1])
        self._day = np.zeros(days)
        self._street = np.zeros((cells, days))
        order = np.argsort(seen.cell, kind="stable")
        self._rows = np.split(order, np.searchsorted(seen.cell[order], np.arange(1, cells)))
        self._changed = np.full(cells, -1)

    def solve(self, changed: Integers) -> None:
        """Condition on all releases, linear around what is likely so far; then learn how far days
        and cells differ."""
        if (changed != self._changed).any():
            self._seen = self._seen._replace(counts=_beside(self._seen, changed))
        self._changed = changed
        seen = self._seen
        self._speeds = _speed(self.mean[seen.cell, seen.hour])
        self._value, self._noise = self._observed()
        self._off = self._value - self._base[seen.cell, seen.hour]
        cells = [self._cell(cell) for cell in range(self.mean.shape[0])]
        information = self._before_releases()
        score = np.zeros(HOURS + self._features + self._day.size)
        for cell in cells:
            weighed = cell.weighed(cell.shared)
            off = self._off[cell.rows]
            through = cell.states.T @ weighed
            information += cell.shared.T @ weighed - through.T @ cell.covariance @ through
            score += weighed.T @ off - through.T @ (
                cell.covariance @ (cell.states.T @ cell.weighed(off))
            )
        covariance = np.asarray(np.linalg.inv(information), dtype=np.float64)
        found = covariance @ score
        of_days = slice(HOURS + self._features, None)
        self._slope = found[HOURS + self._counts.shape[2] : of_days.start]
        self._day = found[of_days]
        squares = float(np.sum(self._day**2 + np.diag(covariance)[of_days])) + 2 * CITY_DAY_SD**2
        self.spreads.day = sqrt(squares / (self._day.size + 1))
        moved = [
            self._of_cell(cell, of_cell, found, covariance) for cell, of_cell in enumerate(cells)
        ]
        self.spreads.cells = float(np.clip(np.mean(moved), 0.5, 4.0))
        self._learn_days()

    @property
    def _features(self) -> int:
        return int(self._counts.shape[2] + self._slope.size)

    def _observed(self) -> tuple[Floats, Floats]:
        """Each release as a normal observation of its HAT: linear over a range around the likely
        speed."""
        seen = self._seen
        likely = self.mean[seen.cell, seen.hour] + self._moved()
        low, middle, high = (
            np.clip(likely + sign * CELL_SD, 1.0, self._grid[-1]) for sign in (-1, 0, 1)
        )
        slope = np.clip(
            (self._read(high) - self._read(low)) / np.maximum(high - low, STEP_KMH),
            LEAST_SLOPE,
            1.5,
        )
        # Noise follows the forecast's speed. By it slow days would weigh more.
        usual = (_speed(self.mean[seen.cell, seen.hour]) / _speed(self._centre)) ** 2
        return middle + (seen.value - self._read(middle)) / slope, seen.noise * usual

    def _moved(self) -> Floats:
        """Known deviation of each release's day, km/h."""
        seen = self._seen
        earlier = np.where(seen.day < self._changed[seen.cell], self.offset[seen.cell], 0.0)
        by_day = (
            self._day[seen.day] * _speed(self.mean[seen.cell, seen.hour])
            + seen.counts @ self._slope
        )
        return np.asarray(earlier + by_day + self._street[seen.cell, seen.day])

    def _read(self, kmh: Floats) -> Floats:
        if not kmh.size:
            return kmh
        place = np.clip(kmh / STEP_KMH, 0, self._grid.size - 1.001)
        left = place.astype(np.int64)
        rows = np.arange(kmh.size)
        part = place - left
        return np.asarray(
            (1 - part) * self._passed[rows, left] + part * self._passed[rows, left + 1]
        )

    def _own(self) -> Floats:
        """The variance of each HAT around its street's day."""
        return np.asarray(
            self.spreads.own * ((HAT_DAY_SD * self._speeds) ** 2 + self._seen.unexplained)
        )

    def _cell(self, cell: int) -> _Cell:
        rows = self._rows[cell]
        seen = self._seen
        day = seen.day[rows]
        hour = seen.hour[rows]
        weight = 1 / (self._noise + self._own())[rows]
        street = (self.spreads.street * self._speeds[rows]) ** 2
        together = (
            street / (1 + street * np.bincount(day, weight, self._day.size)[day])
            if rows.size
            else street
        )
        is_day = (day[:, None] == np.arange(self._day.size)).astype(np.float64)
        # (diag(v) + s 1 1')^-1 of each day, by Sherman and Morrison: hours of a day share what
        # happens in the street.
        days = is_day * (weight * np.sqrt(together))[:, None]
        states = np.zeros((rows.size, HOURS + 1))
        states[np.arange(rows.size), hour] = 1.0
        states[:, HOURS] = day < self._changed[cell]
        prior = self._prior(cell)
        of_counts = np.hstack([self._counts[cell][hour], seen.counts[rows]])
        shared = np.hstack([np.eye(HOURS)[hour], of_counts, is_day * self._speeds[rows][:, None]])
        of_cell = _Cell(rows, weight, days, shared, states, prior, prior)
        information = np.linalg.inv(prior) + states.T @ of_cell.weighed(states)
        return of_cell._replace(covariance=np.asarray(np.linalg.inv(information), dtype=np.float64))

    def _prior(self, cell: int) -> Floats:
        """The covariance of a cell's states before its releases."""
        near = np.exp(-np.abs(np.subtract.outer(np.arange(HOURS), np.arange(HOURS))) / COURSE_HOURS)
        hours = CELL_SD**2 + COURSE_SD**2 * near + OWN_SD**2 * np.eye(HOURS)
        hours = self.spreads.cells * hours * float(_speed(self._base[cell].mean())) ** 2
        rush = self.mean.mean(axis=0) - self.mean.mean()
        hours += RUSH_SD**2 * np.outer(rush, rush)
        if self._before is not None:
            hours = OF_CLASS_SD**2 * hours + np.diag(self._before.deviation[cell] ** 2)
        prior = np.zeros((HOURS + 1, HOURS + 1))
        prior[:HOURS, :HOURS] = hours
        prior[HOURS, HOURS] = EARLIER_SD**2
        return prior

    def _before_releases(self) -> Floats:
        """The inverse covariance of what cells share, before any release."""
        near = np.exp(-np.abs(np.subtract.outer(np.arange(HOURS), np.arange(HOURS))) / COURSE_HOURS)
        city = np.linalg.inv(LEVEL_SD**2 * (1 + near / 4))
        rest = (
            np.append(np.full(self._features, GUESS_SD), np.full(self._day.size, self.spreads.day))
            ** -2.0
        )
        found = np.diag(np.append(np.zeros(HOURS), rest))
        found[:HOURS, :HOURS] = city
        # Days are what they are beside their mean: else they would explain how cells differ.
        found[-self._day.size :, -self._day.size :] += TOGETHER
        return found

    def _of_cell(self, cell: int, of_cell: _Cell, found: Floats, covariance: Floats) -> float:
        """Keep the cell's hours; gives how far they are from what is shared, over what was
        expected."""
        to_states = of_cell.covariance @ of_cell.weighed(of_cell.states).T
        states = to_states @ (self._off[of_cell.rows] - of_cell.shared @ found)
        own = np.zeros((HOURS, found.size))
        own[:, :HOURS] = np.eye(HOURS)
        own[:, HOURS : HOURS + self._counts.shape[2]] = self._counts[cell]
        self.mean[cell] = self._base[cell] + own @ found + states[:HOURS]
        self.offset[cell] = states[HOURS] if self._changed[cell] >= 0 else 0.0
        apart = own - (to_states @ of_cell.shared)[:HOURS]
        hours = of_cell.covariance[:HOURS, :HOURS]
        self.variance[cell] = np.diag(hours) + np.einsum("ij,jk,ik->i", apart, covariance, apart)
        inverse = np.linalg.inv(of_cell.prior[:HOURS, :HOURS])
        return (
            self.spreads.cells
            * float(states[:HOURS] @ inverse @ states[:HOURS] + np.trace(inverse @ hours))
            / HOURS
        )

    def _learn_days(self) -> None:
        seen = self._seen
        own = self._own()
        if not seen.value.size:
            return
        at = seen.cell * self._day.size + seen.day
        earlier = np.where(seen.day < self._changed[seen.cell], self.offset[seen.cell], 0.0)
        left = (
            self._value
            - self.mean[seen.cell, seen.hour]
            - earlier
            - self._day[seen.day] * self._speeds
        )
        left -= seen.counts @ self._slope
        weight = 1 / (self._noise + own)
        speeds = self._speeds
        known, sums = (
            np.bincount(at, column, self._street.size) for column in (weight, weight * left)
        )
        usual = np.bincount(at, speeds, self._street.size) / np.maximum(
            np.bincount(at, minlength=self._street.size), 1
        )
        street = (self.spreads.street * np.maximum(usual, 0.1)) ** 2
        mean = street * sums / (1 + street * known)
        variance = street / (1 + street * known)
        self._known, self._left, self._street = known, left, mean.reshape(self._street.shape)
        is_seen = known > 0
        self.spreads.street = sqrt(
            float(np.mean((mean**2 + variance)[is_seen] / usual[is_seen] ** 2))
        )
        rest = left - mean[at]
        part = own / (own + self._noise)
        ratio = ((part * rest) ** 2 + part * (self._noise + part * variance[at])) / own
        self.spreads.own *= float(np.clip(np.mean(ratio), 0.3, 3.0))

    def changes(self) -> Integers:
        """Day from which on each cell is another, -1 for none, shape (cells,)."""
        days = self._day.size
        known = self._known.reshape(-1, days)
        # A street that changes has other counts, too: they must not explain it.
        left = (self._left + self._seen.counts @ self._slope) / (self._noise + self._own())
        sums = np.bincount(self._seen.cell * days + self._seen.day, left, known.size)
        street = (self.spreads.street * _speed(self.mean.mean(axis=1))) ** 2
        weight = known / (1 + street[:, None] * known)
        off = np.divide(sums.reshape(known.shape), known, out=np.zeros_like(known), where=known > 0)
        found = np.full(known.shape[0], -1)
        most = np.full(known.shape[0], CHANGED)
        for day in range(2, days):
            sides = slice(0, day), slice(day, None)
            early, late = (weight[:, side].sum(axis=1) for side in sides)
            of_early, of_late = ((weight * off)[:, side].sum(axis=1) for side in sides)
            many = (known[:, day:] > 0).sum(axis=1)
            with np.errstate(divide="ignore", invalid="ignore"):
                apart = np.abs(of_late / late - of_early / early) / np.sqrt(1 / early + 1 / late)
            is_more = (many >= CHANGE_DAYS) & (early > 0) & (np.nan_to_num(apart) > most)
            found = np.where(is_more, day, found)
            most = np.where(is_more, apart, most)
        return found
