"""A rehearsal: the likely errors of a feed's releases, from its counts alone.

Speeds are invented on the feed's own counts and released by the real road on a ledger that is
forgotten; then the error is measured. No speed of the feed is read, so nothing is charged. Invented
speeds follow the model of forecasts with more scatter, and other constants, fitted to the recorded
feeds together (`docs/measurements.md`).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil, exp, inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from udp_stream.base.arrays import Floats
from udp_stream.base.units import QUANTA_PER_KMH
from udp_stream.forecast.model import PER_HAT, SlotPrior, prior_of
from udp_stream.forecast.usual_week import kind_of_day
from udp_stream.ledger.port import Ledger
from udp_stream.mechanisms.widths import at_speed
from udp_stream.release.charge import ReleaseContext
from udp_stream.release.events import SlotRow
from udp_stream.release.promise import promise_of, release_slot
from udp_stream.release.record import Release, hat_ids
from udp_stream.windows.grid import Grid
from udp_stream.windows.tables import SlotCounts, SlotValues

CITY_MEAN = 19.0
CITY_SLOPE = 20.0
"""Values of invented cities, km/h: mean speed, and slope of counts (`forecast/model.py`)."""

CITY_OFF = 2.5
SLOPE_OFF = 4.0
"""How far the cities of a pair are below and above these. Recorded feeds have means of 17 to 21
km/h; slopes of 17 to 24 km/h at H3 7 and 8 (once 13), up to 34 at H3 6."""

FEATURE_SD = 1.1
"""Standard deviation of the slope of a HAT's standardised feature, km/h."""

CELL_SD = 1.8
"""Deviation of a cell from the line on counts, in km/h at 17 km/h and H3 7."""

HAT_SD = 12.0
MOVE = 0.1
MOVE_HATS = 100
"""The same of each HAT of a cell, for each unit by which counts of the cell's HATs differ: days whose
counts are regular have regular speeds. Counts of so many HATs more differ by `MOVE`, as is usual."""

FINER = 1.2
"""The same is so many times as large in cells of the next finer resolution of H3."""

PLATE_SD = 4.0
PING_SD = 14.0
"""How far a plate's mean of m pings differs from its HAT's: sqrt(PLATE_SD^2 + PING_SD^2 / m) km/h
at 17 km/h, so 15 for one ping and 6 for ten, as measured on recorded days. It is skewed (gamma):
few plates are much faster."""

WITHIN_SD = 10.0
"""Standard deviation of the pings of a plate in a HAT, km/h."""

SLOWEST = 3.0
FASTEST_FACTOR = 2.0
"""The least invented mean, in km/h; and the largest growth of scatter with speed."""

RUSH = 0.35
RUSH_OFF = 0.12
RUSH_HOURS = ((7.8, 1.2), (18.3, 1.4))
"""The part by which a workday's rush hours slow invented cities, and by how much more or less those
of a pair; each rush hour's middle and width, in hours."""

PAIRS_MIN = 2
PAIRS_MAX = 8
HATS_OF_PAIRS = 1000
"""Pairs of invented cities whose errors are averaged: as many as have so many HATs, within limits."""


class RehearsalResult(NamedTuple):
    """Likely errors of a feed's HATs, in km/h, weighed by pings over all HATs, withheld ones too.

    `constant` is the error of the best single number for all HATs, and `counts` that of the best
    line in log(samples / plates). `served` is the share of pings in HATs with a mean, or
    with noised sums. `by_slot`, by start, is how slots went on average; empty where
    charges are secret.

    >>> RehearsalResult(error=2.0, constant=4.0, counts=3.0, served=0.6).over_guess.__round__(2)
    0.67
    """

    error: float
    constant: float
    counts: float
    served: float
    by_slot: Mapping[int, SlotRow] = {}

    @property
    def over_guess(self) -> float:
        guess = min(self.constant, self.counts)
        return self.error / guess if guess > 0 else inf


class AveragePrior(NamedTuple):
    """`by_hat` and `features` of `SlotPrior`, on average over a feed's pings: an invented city's
    mean is that of pings. `hat_sd` is the deviation of a HAT from its cell. `by_slot` has each
    slot's own, by start, and how much it is in a rush hour, from 0 to 1.

    >>> from udp_stream.testing import a_context, two_hats
    >>> AveragePrior.from_counts([two_hats()[0]], a_context()).features.shape
    (6,)
    """

    by_hat: float
    features: Floats
    hat_sd: float
    by_slot: Mapping[int, tuple[SlotPrior, float]]

    @classmethod
    def from_counts(cls, slots: Sequence[SlotCounts], context: ReleaseContext) -> AveragePrior:
        zone = context.calendar.slots.zone
        by_slot = {
            counts.start_ms: (prior_of(counts, context.policy.grid), _rush(counts, zone))
            for counts in slots
        }
        pings = np.concatenate([_of_hats(counts.count, counts) for counts in slots])
        by_hat = np.concatenate([prior.by_hat for prior, _ in by_slot.values()])
        features = np.concatenate([prior.features for prior, _ in by_slot.values()])
        _, cell = np.unique(np.concatenate([counts.cells for counts in slots]), return_inverse=True)
        of_cell = np.bincount(cell, by_hat * pings) / np.bincount(cell, pings)
        moved = pings.size * np.average((by_hat - of_cell[cell]) ** 2, weights=pings)
        hats = pings.size - of_cell.size + MOVE_HATS
        return cls(
            float(np.average(by_hat, weights=pings)),
            np.average(features, weights=pings, axis=0),
            HAT_SD * float(np.sqrt((moved + MOVE_HATS * MOVE**2) / hats)),
            by_slot,
        )


def _rush(counts: SlotCounts, zone: dt.tzinfo) -> float:
    """How much a slot is in a rush hour, from 0 to 1."""
    middle = dt.datetime.fromtimestamp((counts.start_ms + counts.end_ms) / 2000, zone)
    if kind_of_day(middle.date()):
        return 0.0
    hour = middle.hour + middle.minute / 60
    return sum(exp(-(((hour - at) / width) ** 2)) for at, width in RUSH_HOURS)


class RehearsedCity:
    """An invented city. The same seed and slots, in their order, give the same speeds; means of
    plates do not depend on whether pings are asked for.

    >>> from udp_stream.testing import a_context, two_hats
    >>> from udp_stream.windows.grid import HEXAGONS
    >>> counts, _ = two_hats()
    >>> usual = AveragePrior.from_counts([counts], a_context())
    >>> one, again = (RehearsedCity(0, usual, HEXAGONS).speeds(counts, max_speed=65 * QUANTA_PER_KMH) for _ in range(2))
    >>> bool((one.speed == again.speed).all()), one.starts.tolist()
    (True, [0, 1, 3, 5, 6, 7])
    """

    def __init__(self, number: int, usual: AveragePrior, grid: Grid) -> None:
        self._grid = grid
        self._usual = usual
        self._rng = np.random.default_rng(number)
        self._rng_of_pings = self._rng.spawn(1)[0]
        sign = 2 * (number % 2) - 1
        self._mean = CITY_MEAN + sign * CITY_OFF
        self._slope = CITY_SLOPE - sign * SLOPE_OFF
        self._rush = RUSH + sign * RUSH_OFF
        self._features = self._rng.normal(0, FEATURE_SD, PER_HAT)
        self._cells: dict[int, float] = {}

    def means(self, counts: SlotCounts) -> Floats:
        """Each row's, in km/h."""
        prior, rush = self._usual.by_slot[counts.start_ms]
        hat = np.repeat(np.arange(counts.cells.size), np.diff(counts.hat_rows))
        here = [
            self._cells.setdefault(cell, self._rng.normal(0, CELL_SD))
            for cell in counts.cells.tolist()
        ]
        even = self._grid.reach**-0.5
        finer = FINER ** (self._grid.fineness - 7) * even
        usual = self._usual
        told = (
            self._slope * (prior.by_hat - usual.by_hat)
            + (prior.features - usual.features) @ self._features * even
        )
        mean = self._mean + told
        of_hats = self._rng.normal(0, even * usual.hat_sd, counts.cells.size)
        own = finer * np.array(here) + of_hats
        by_hat = (1 - self._rush * rush) * np.maximum(mean + _scatter(mean) * own, SLOWEST)
        by_plate = np.maximum(
            by_hat[hat] + self._slope * (prior.by_row - prior.by_hat[hat]), SLOWEST
        )
        deviation = _scatter(by_hat)[hat] * np.sqrt(PLATE_SD**2 + PING_SD**2 / counts.count)
        return np.maximum(_gamma(self._rng, by_plate, deviation), 1.0)

    def speeds(self, counts: SlotCounts, max_speed: int) -> SlotValues:
        mean = self.means(counts)
        starts = np.append(0, np.cumsum(counts.count))
        pings = _gamma(self._rng_of_pings, np.repeat(mean, counts.count), WITHIN_SD)
        off = mean * counts.count / np.maximum(np.add.reduceat(pings, starts[:-1]), 1e-9)
        quanta = np.rint(pings * np.repeat(off, counts.count) * QUANTA_PER_KMH)
        return SlotValues(np.clip(quanta, 0, max_speed).astype(np.int64), starts)


def rehearse(
    slots: Sequence[SlotCounts],
    context: ReleaseContext,
    new_ledger: Callable[[], Ledger],
    sample: Sequence[SlotCounts] | None = None,
    stepwise: Callable[[Sequence[int]], Iterable[int]] = iter,
) -> RehearsalResult:
    """The likely errors of these slots, or of a sample of them, in their order; each invented city
    has a ledger of its own. Of a sample half of the cities are released; guesses, which
    need no release, are of all slots.

    `context` is for this rehearsal only, and its bits are not those of a deployment. `stepwise`
    iterates over the cities' numbers. Raises what a
    release would: ConfigError for a budget that is too small, PrivacyRefused for a HAT that is too
    large.
    """
    grid = context.policy.grid
    usual = AveragePrior.from_counts(slots, context)
    hats = sum(counts.cells.size for counts in slots)
    pairs = min(PAIRS_MAX, max(PAIRS_MIN, ceil(HATS_OF_PAIRS / max(1, hats))))
    released = range(2 * pairs if sample is None else pairs // 2 * 2)
    found = [
        _of_city(RehearsedCity(number, usual, grid), sample or slots, context, new_ledger())
        for number in stepwise(released)
    ]
    error, constant, counts, served = np.mean([errors for errors, _ in found], axis=0).tolist()
    if sample is not None:
        cities = (RehearsedCity(number, usual, grid) for number in range(2 * pairs))
        guesses = [_guessed(city, slots, context.policy.max_speed) for city in cities]
        constant, counts = np.mean(guesses, axis=0).tolist()
    by_slot = {
        start: _averaged([rows[start] for _, rows in found if start in rows])
        for start in found[0][1]
    }
    return RehearsalResult(error, constant, counts, served, by_slot)


def _averaged(rows: Sequence[SlotRow]) -> SlotRow:
    """How a slot went on average over the cities."""
    left = [row.left for row in rows if row.left is not None]
    measured, pings, error = np.mean([(row.measured, row.pings, row.error) for row in rows], axis=0)
    return replace(
        rows[0],
        measured=round(measured),
        pings=round(pings),
        error=float(error),
        left=float(np.mean(left)) if left else None,
    )


def _guessed(
    city: RehearsedCity, slots: Iterable[SlotCounts], max_speed: int
) -> tuple[float, float]:
    """The errors of both guesses. They follow from means of plates: no ping is invented."""
    most = max_speed / QUANTA_PER_KMH
    means = [(counts, np.minimum(city.means(counts), most)) for counts in slots]
    truth, pings, plates = np.concatenate(
        [_truth(counts, mean * counts.count) for counts, mean in means], axis=1
    )
    off, line_off = (
        float(np.average(np.abs(guess - truth), weights=pings))
        for guess in _guesses(truth, pings, plates)
    )
    return off, line_off


def _guesses(truth: Floats, pings: Floats, plates: Floats) -> tuple[Floats, Floats]:
    """The best constant for each HAT, and the best line on counts."""
    return np.full(truth.size, np.average(truth, weights=pings)), line_on_counts(
        truth, pings, plates
    )


def _of_hats(of_rows: NDArray[Any], counts: SlotCounts) -> NDArray[Any]:
    """The sum over each HAT's rows."""
    return np.asarray(np.add.reduceat(of_rows, counts.hat_rows[:-1]))


def _truth(counts: SlotCounts, sums: Floats) -> Floats:
    """Rows: true means, pings, plates of each HAT. `sums` are of each row's speeds, in km/h."""
    pings = _of_hats(counts.count, counts)
    return np.array([_of_hats(sums, counts) / pings, pings, np.diff(counts.hat_rows)])


def _of_city(
    city: RehearsedCity, slots: Iterable[SlotCounts], context: ReleaseContext, ledger: Ledger
) -> tuple[tuple[float, float, float, float], dict[int, SlotRow]]:
    """Error, the constant's, that of a line on counts, and the share served; how each slot went."""
    # New for each city: cities tell nothing of each other.
    promise = promise_of(context.policy)
    context = promise.with_forecaster(context)
    hats = []
    by_slot = dict[int, SlotRow]()
    for counts in slots:
        hats.append(
            _released(counts, city.speeds(counts, context.policy.max_speed), context, ledger)
        )
        left = promise.budget_left(counts, context, ledger)
        if left is None:
            continue
        truth, pings, _, value, measured = hats[-1]
        off = float(np.nansum(np.abs(value - truth) * pings))
        by_slot[counts.start_ms] = SlotRow(
            int(np.unique(counts.plate).size), truth.size, int(measured.sum()), left,
            int(pings[~np.isnan(value)].sum()), off,
        )  # fmt: skip
    truth, pings, plates, value, measured = np.concatenate(hats, axis=1)
    constant, line = _guesses(truth, pings, plates)
    guesses = np.where(np.isnan(value), constant, value), constant, line
    off, constant_off, line_off = (
        float(np.average(np.abs(guess - truth), weights=pings)) for guess in guesses
    )
    return (off, constant_off, line_off, float(np.average(measured, weights=pings))), by_slot


def _released(
    counts: SlotCounts, values: SlotValues, context: ReleaseContext, ledger: Ledger
) -> Floats:
    """Rows: true means, pings, plates, estimates (NaN: none), whether a mean (or the noised sums)
    was released."""
    payloads = release_slot(counts, values, context, ledger, lambda _: None).payloads
    cells = [*map(context.policy.grid.id_of, counts.cells.tolist())]
    ids = hat_ids(counts.cells.tolist(), counts.slot, context.policy.grid)
    records = {
        cell: Release.decode(payloads[id_])
        for cell, id_ in zip(cells, ids, strict=True)
        if id_ in payloads
    }
    kmh = {cell: one.mean.value_kmh for cell, one in records.items() if one.mean is not None}
    measured = kmh.keys() | {cell for cell, one in records.items() if one.noised is not None}
    if promise_of(context.policy).learns(context.policy):
        kmh = {one.hat.cell: one.value_kmh for one in context.smoothed(counts.slot, ledger)}
    value = np.array([kmh.get(cell, np.nan) for cell in cells])
    truth = _truth(counts, np.add.reduceat(values.speed, values.starts[:-1]) / QUANTA_PER_KMH)
    return np.vstack([truth, value, [cell in measured for cell in cells]])


def line_on_counts(truth: Floats, pings: Floats, plates: Floats) -> Floats:
    """Constant + counts, an oracle: the line in log(samples / plates) that fits the truth best, by
    pings."""
    design = np.column_stack([np.ones(truth.size), np.log(pings / plates)])
    root = np.sqrt(pings)
    line, *_ = np.linalg.lstsq(design * root[:, None], truth * root, rcond=None)
    return np.asarray(design @ line)


def _scatter(kmh: Floats) -> Floats:
    return np.minimum(at_speed(kmh), FASTEST_FACTOR)


def _gamma(rng: np.random.Generator, mean: Floats, deviation: Floats | float) -> Floats:
    return rng.gamma((mean / deviation) ** 2, deviation**2 / mean)
