"""Speeds as counts predict them: features of a slot, for each plate in a HAT and for each HAT.

Pings come at regular times, so a plate's pings in a HAT are its time there, and time is way /
speed. Features of the time are ratios of counts, or their logarithms: feeds of 10 s and of 120 s
look alike. The unit R is the upper quartile of the plates' pings in the slot. Features of the way
say which neighbouring HATs the plate is in, and how these lie to each other. Neither a position nor
an hour is a feature: with them a model learns cells by heart.

Everything here is a function of `SlotCounts`, which are public under swap-values.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from udp_stream.base.arrays import Floats, Integers
from udp_stream.forecast.anomalies import (
    FASTER,
    NOT_CLIPPED,
    NOTHING,
    ORDINARY,
    PROBABILITY_MAX,
    SLOWER,
    Carryover,
    PosteriorMixture,
    ReleaseClip,
    log_likelihoods,
    measured,
    mixed,
)
from udp_stream.forecast.usual_week import (
    HAT_FEATURES,
    HATS_SPREADS,
    HOURS,
    Arrow,
    Design,
    HatWeek,
    MeanOver,
    course,
    design,
    kind_of_day,
    on_one_thread,
    packed,
    scale_of,
    unpack,
)
from udp_stream.mechanisms.widths import mean_variance
from udp_stream.windows.grid import Grid
from udp_stream.windows.tables import DAY_MS, SlotCounts

PER_ROW = 12
PER_HAT = 6
"""Features of a plate in a HAT, and of a HAT."""


@dataclass(frozen=True, slots=True)
class SlotFeatures:
    """A line for each row of `SlotCounts` (a plate in a HAT), and a line for each HAT.

    `by_row`, with m pings of the plate in the HAT, tot in the slot, in K HATs; M pings and n plates
    in the HAT: 0 log(m/R), 1 m/tot, 2 log(K R/tot), 3 how many neighbouring HATs the plate visited,
    4 log(M/(n R)), 5 log n, 6 the neighbours' log(M/(n R)), 7 log of the largest other plate's
    pings over R, 8 log of the plate's mean pings in its other HATs over R, 9 to 11 how many pairs
    of those neighbours of 3 lie 60, 120 and 180 degrees apart.

    `by_hat`: 0 log(M/(n R)), then the means over the HAT's pings of 2, 1 and 3 above, 4 the
    neighbours' log(M/(n R)), 5 log n.

    >>> SlotFeatures(by_row=np.zeros((2, PER_ROW)), by_hat=np.zeros((1, PER_HAT))).by_row.shape
    (2, 12)
    """

    by_row: Floats
    by_hat: Floats


def features_of(counts: SlotCounts, grid: Grid) -> SlotFeatures:
    """The features of a slot: arrays of (rows, 12) and (HATs, 6)."""
    if not counts.plate.size:
        return SlotFeatures(np.zeros((0, PER_ROW)), np.zeros((0, PER_HAT)))
    hats = counts.cells.size
    plates = len(counts.plates)
    hat = _hat_of_row(counts)
    plate = counts.plate
    pings = counts.count.astype(np.float64)
    total = np.bincount(plate, weights=pings, minlength=plates)
    visits = np.bincount(plate, minlength=plates).astype(np.float64)
    usual = float(np.percentile(total[total > 0], 75))
    in_hat = np.bincount(hat, weights=pings, minlength=hats).astype(np.float64)
    in_hat_plates = np.diff(counts.hat_rows).astype(np.float64)
    neighbours = grid.around(counts.cells)
    dwell, around = _dwell(in_hat, in_hat_plates, neighbours, usual)
    own = np.log(pings / usual)
    elsewhere = total[plate] - pings
    visited = _visited_around(counts, hat, neighbours)
    others = np.maximum(visits[plate] - 1, 1)
    by_row = np.column_stack(
        [
            own,
            pings / total[plate],
            np.log(visits[plate] * usual / total[plate]),
            visited.sum(axis=1),
            dwell[hat],
            np.log(in_hat_plates)[hat],
            around[hat],
            _largest_other(counts, hat, pings, usual),
            np.where(elsewhere > 0, np.log(np.maximum(elsewhere, 1) / others / usual), own),
            _pairs_apart(visited),
        ]
    )
    means = [
        np.bincount(hat, weights=pings * by_row[:, at], minlength=hats) / in_hat for at in (2, 1, 3)
    ]
    return SlotFeatures(by_row, np.column_stack([dwell, *means, around, np.log(in_hat_plates)]))


def _hat_of_row(counts: SlotCounts) -> NDArray[np.int64]:
    return np.repeat(np.arange(counts.cells.size), np.diff(counts.hat_rows))


def _dwell(
    in_hat: Floats, plates: Floats, neighbours: NDArray[np.int64], usual: float
) -> tuple[Floats, Floats]:
    """Logarithm of pings per plate over R, of each HAT and of its neighbours together; its own
    where it has none."""
    there = neighbours >= 0
    pings = np.where(there, in_hat[neighbours], 0).sum(axis=1)
    visitors = np.where(there, plates[neighbours], 0).sum(axis=1)
    own = np.log(in_hat / (plates * usual))
    return own, np.where(
        pings > 0, np.log(np.maximum(pings, 1) / (np.maximum(visitors, 1) * usual)), own
    )


def _visited_around(
    counts: SlotCounts, hat: NDArray[np.int64], neighbours: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Whether the row's plate is in each of the HAT's six neighbours, in the order around the HAT,
    shape (rows, 6)."""
    many = len(counts.plates)
    # Rows come in this order: next to nothing to sort.
    known = np.sort(hat * many + counts.plate, kind="stable")
    near = neighbours[hat]
    # -1 finds nothing: no known number is negative.
    wanted = np.where(near >= 0, near * many + counts.plate[:, None], -1)
    at = np.minimum(np.searchsorted(known, wanted), known.size - 1)
    return np.asarray(known[at] == wanted)


def _pairs_apart(visited: NDArray[np.bool_]) -> Floats:
    """How many pairs of the visited neighbours lie 1, 2 and 3 places apart around the HAT: (rows,
    3).

    The plate's way through the HAT is longer between neighbours that face each other.
    """
    return np.asarray(_pairs_of_all()[np.packbits(visited, axis=1, bitorder="little")[:, 0]])


@cache
def _pairs_of_all() -> Floats:
    """Pairs in each of the 64 sets of neighbours, by the number whose bits are the set, shape (64,
    3)."""
    visited = np.unpackbits(np.arange(64, dtype=np.uint8)[:, None], axis=1, bitorder="little")[
        :, :6
    ].astype(bool)
    pairs = [(visited & np.roll(visited, places, axis=1)).sum(axis=1) for places in (1, 2, 3)]
    pairs[2] //= 2  # each was found from both of its ends
    return np.column_stack(pairs).astype(np.float64)


def _largest_other(
    counts: SlotCounts, hat: NDArray[np.int64], pings: Floats, usual: float
) -> Floats:
    """Logarithm of the most pings of any other plate in the HAT, over R; the plate's own where it
    is alone."""
    order = np.lexsort((pings, hat))
    last = counts.hat_rows[1:] - 1
    largest = pings[order[last]]
    second = np.where(np.diff(counts.hat_rows) > 1, pings[order[np.maximum(last - 1, 0)]], largest)
    is_largest = np.zeros(pings.size, dtype=bool)
    is_largest[order[last]] = True
    return np.asarray(np.log(np.where(is_largest, second[hat], largest[hat]) / usual))


# The counts prior: relative speeds from counts alone, by shipped coefficients.
#
# A ridge regression of (mean speed of a plate in a HAT) / (mean speed of the city) - 1 on the
# features above and four products, each standardised and clipped to +-4. It was trained on public,
# licensed days by `python -m benchmarks.train_prior`, for each of three H3 resolutions, as the size
# of a HAT decides how long a bus stays. How far the city's slope differs from the trained one is
# learnt from releases.

PRODUCTS = (2, 4, 6, 8)
"""The features that log(m/R) is multiplied with: what a long stay means depends on how the plate
drives elsewhere."""

CLIP = 4.0
HAT_CLIP = 3.0
"""Standard deviations beyond which a feature tells nothing more: of rows, and of HATs, whose slopes
are learnt from few releases."""


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Coefficients of the ridge: a centre, a scale and a slope for each column of `expanded`;
    centre and scale of HATs' features.

    >>> SHIPPED[7].slope.shape, SHIPPED[7].hat_scale.shape
    ((16,), (6,))
    """

    centre: Floats
    scale: Floats
    slope: Floats
    hat_centre: Floats
    hat_scale: Floats


# fmt: off
SHIPPED = {fineness: Coefficients(*map(np.array, columns)) for fineness, columns in {
    6: ((-1.0777, 0.42273, 1.1676, 1.7135, -1.185, 3.6333, -1.1944, -0.26748, -1.346, 0.56093, 0.22986, 0.13564,
        -1.3923, 1.3274, 1.295, 1.4226), (0.61991, 0.22272, 0.37681, 0.79387, 0.22942, 0.91946, 0.13756, 0.37551,
        0.51982, 0.70595, 0.45385, 0.34413, 1.0599, 0.94459, 0.77526, 0.97001), (0.035141, 0.017029, -0.13875, 0.16181,
        -0.031569, -0.049867, 0.014571, 0.0067092, -0.0077013, -0.13161, 0.047775, 0.058897, -0.047993, 0.03702,
        0.11425, 0.078553), (-1.4845, 1.2336, 0.37249, 1.7132, -1.2539, 2.0601), (0.55185, 0.26724, 0.15902, 0.52577,
        0.23907, 1.3107)),
    7: ((-1.7139, 0.23628, 1.8273, 1.9289, -1.8204, 2.8052, -1.9036, -1.0526, -1.9152, 0.49711, 0.45208, 0.28812,
        -3.2707, 3.264, 3.2653, 3.3146), (0.66821, 0.16506, 0.37362, 0.82644, 0.37517, 0.99515, 0.21701, 0.59123,
        0.3966, 0.78437, 0.62988, 0.48916, 1.632, 1.7246, 1.345, 1.5271), (-0.011208, -0.043273, -0.11875, 0.11018,
        -0.065567, -0.10696, 0.067704, -0.033178, 0.014987, -0.12211, 0.035233, 0.065148, -0.082481, -0.03814, 0.10295,
        0.10287), (-2.091, 1.8826, 0.19685, 2.0468, -1.9314, 1.5041), (0.54831, 0.29127, 0.12141, 0.63352, 0.32924,
        1.1112)),
    8: ((-2.371, 0.13269, 2.4987, 1.5779, -2.4527, 2.0767, -2.6037, -1.9659, -2.5507, 0.35, 0.3464, 0.24682, -6.0766,
        6.1123, 6.2209, 6.117), (0.72629, 0.1248, 0.38363, 0.9872, 0.53235, 1.0232, 0.37377, 0.76448, 0.37727, 0.68258,
        0.58966, 0.449, 2.3871, 2.7899, 2.2651, 2.2934), (-0.10987, -0.11934, -0.18588, -0.14744, -0.19434, -0.16093,
        -0.0022964, 0.0050041, -0.028867, -0.013878, 0.056176, 0.078842, -0.075112, -0.05467, 0.0042884, 0.070875),
        (-2.6956, 2.5104, 0.098995, 1.4806, -2.5837, 0.99911), (0.5276, 0.32955, 0.080624, 0.87022, 0.42688, 0.90184)),
}.items()}
# fmt: on
"""Coefficients by fineness of the grid, as `python -m benchmarks.train_prior` prints them.
Trained on CapMetrics (MIT licence), Austin, 2015-06-07, 2016-03-22, 2016-11-24, 2016-11-25 and
2017-03-21."""


@dataclass(frozen=True, slots=True)
class SlotPrior:
    """Relative speeds: of each row, and of each HAT (the mean over its pings); and the HATs'
    standardised features.

    A forecast reads `by_hat` and `features`; a release carries them.

    >>> nothing_read = SlotPrior(by_row=np.zeros(2), by_hat=np.zeros(1), features=np.zeros((1, PER_HAT)))
    >>> nothing_read.by_hat.tolist()
    [0.0]
    """

    by_row: Floats
    by_hat: Floats
    features: Floats


def prior_of(counts: SlotCounts, grid: Grid, trained: Coefficients | None = None) -> SlotPrior:
    """The prior of a slot: shapes (rows,), (HATs,) and (HATs, 6), rounded as records carry them.

    Without coefficients it takes those that are shipped for the size nearest to the cells'.
    """
    rows = counts.plate.size
    hats = counts.cells.size
    if not rows:
        return SlotPrior(np.zeros(rows), np.zeros(hats), np.zeros((hats, PER_HAT)))
    features = features_of(counts, grid)
    trained = trained or SHIPPED[min(SHIPPED, key=lambda known: abs(known - grid.fineness))]
    by_hat = np.clip(
        (features.by_hat - trained.hat_centre) / trained.hat_scale, -HAT_CLIP, HAT_CLIP
    )
    by_row = relative_speeds(features, trained)
    hat = _hat_of_row(counts)
    mean = np.bincount(hat, weights=counts.count * by_row, minlength=hats) / np.bincount(
        hat, weights=counts.count
    )
    return SlotPrior(by_row, _rounded(mean), _rounded(by_hat))


@on_one_thread
def relative_speeds(features: SlotFeatures, trained: Coefficients) -> Floats:
    """The ridge's prediction of each row: its mean speed over the city's, less 1."""
    standard = expanded(features.by_row)
    standard -= trained.centre  # in place: a large slot has millions of these
    standard /= trained.scale
    np.clip(standard, -CLIP, CLIP, out=standard)
    return np.asarray(standard @ trained.slope)


def expanded(by_row: Floats) -> Floats:
    """The features and their products with the first, column by column."""
    return np.column_stack([by_row, *(by_row[:, 0] * by_row[:, at] for at in PRODUCTS)])


def _rounded(values: Floats) -> Floats:
    """Values to four decimals: a record carries these, and a forecast that is rebuilt from records
    must be the same."""
    # + 0.0 turns -0.0 into 0.0: they are equal, but a record would write them differently.
    return np.round(values, 4) + 0.0


@dataclass(frozen=True, slots=True)
class HatPredictions:
    """Predictions of HATs, km/h: mean speeds and their variances, without the unexplained variance
    of a HAT.

    `slope` turns relative speeds of the prior into km/h. `skew` is what a narrow clip adds to what
    it observes.

    >>> nothing_released = FilterBank(HatWeek()).guess(SlotPrior(np.zeros(0), np.array([0.5]), np.zeros((1, 6))))
    >>> nothing_released.mean.tolist(), nothing_released.slope  # 18 + 12.6 * 0.5
    ([24.3], 12.6)
    """

    mean: Floats
    variance: Floats
    slope: float
    skew: float


@dataclass(frozen=True, slots=True)
class ReleasedHats:
    """Releases of a slot: distinct cells, noisy values, variances of their noise and of each HAT's
    rest, and how each was clipped; speeds in km/h. The slot is `hours` long.

    >>> seen = ReleasedHats.of_one(7, value=22.5, noise=4.0)
    >>> bank = FilterBank(HatWeek())
    >>> posterior = bank.learn(seen, max_kmh=65.0)
    >>> bank.cells, bool(18 < posterior.mean[0] < 22.5)
    ([7], True)
    """

    cells: NDArray[np.uint64]
    prior: SlotPrior
    value: Floats
    noise: Floats
    unexplained: Floats
    clipped: Sequence[ReleaseClip]
    hours: float = 1.0

    @property
    def is_clipped(self) -> NDArray[np.bool_]:
        """Where a narrow clip observed it, which skew moves."""
        return np.array([clip.half_width > 0 for clip in self.clipped], dtype=bool)

    @staticmethod
    def of_one(cell: int, value: float, noise: float) -> ReleasedHats:
        """A single HAT of unknown counts, without a clip."""
        no_counts = SlotPrior(np.zeros(0), np.zeros(1), np.zeros((1, PER_HAT)))
        return ReleasedHats(
            np.array([cell], np.uint64),
            no_counts,
            value=np.array([value]),
            noise=np.array([noise]),
            unexplained=np.ones(1),
            clipped=[NOT_CLIPPED],
        )


class CityTold(NamedTuple):
    """How far a slot's city is off its forecast, by an answer before its HATs: the offset in km/h,
    its variance and that of an offset of none, and its loadings on the globals of `FilterBank`.

    >>> bank, told = FilterBank(HatWeek()), CityTold(-6.0, 1.0, 1.0, np.eye(28)[0])
    >>> bank.passed(1.0, told).guess(SlotPrior(np.zeros(0), np.zeros(1), np.zeros((1, 6)))).mean.round(1).tolist()
    [12.2]
    """

    offset_kmh: float
    variance: float
    usual_variance: float
    loadings: Floats


class DayHour(NamedTuple):
    """A kind of day (`forecast/usual_week.py`), and an hour of it: the middle of a slot.

    >>> DayHour.of(dt.date(2024, 1, 7), 8.5)
    DayHour(kind=1, hour=8.5)
    """

    kind: int
    hour: float

    @classmethod
    def of(cls, day: dt.date, hour: float) -> DayHour:
        return cls(kind_of_day(day), hour)


NOON = 12.0
AT_NOON = DayHour(0, NOON)


class FilterBank:
    """Beliefs of a day, which begin with a usual week. The state follows from releases and their
    order alone.

    >>> no_counts = SlotPrior(np.zeros(0), np.zeros(1), np.zeros((1, 6)))
    >>> bank, cell = FilterBank(HatWeek()), np.array([7], np.uint64)
    >>> _ = bank.learn(ReleasedHats.of_one(7, value=30.0, noise=1.0), max_kmh=65.0)
    >>> bool(18 < bank.predict(cell + 1, no_counts).mean[0] < bank.predict(cell, no_counts).mean[0] < 30)
    True
    """

    def __init__(self, week: HatWeek) -> None:
        self._beliefs = week.beliefs()
        self._morning = None if week.is_new else deepcopy(self._beliefs)
        self._untold: Arrow | None = None
        self._at = dict(week.numbers)
        self._carried: dict[int, Carryover] = {}

    @property
    def cells(self) -> list[int]:
        """The cells that were observed, in that order."""
        return list(self._at)

    def predict(
        self, cells: NDArray[np.uint64], prior: SlotPrior, when: DayHour = AT_NOON
    ) -> HatPredictions:
        """The forecast of these HATs as usual."""
        return self._predicted(self._numbers(cells), prior, when)

    def guess(self, prior: SlotPrior, when: DayHour = AT_NOON) -> HatPredictions:
        """The forecast of HATs from their counts and the city alone."""
        return self._predicted(np.full(prior.by_hat.size, -1), prior, when)

    def usual(
        self, cells: NDArray[np.uint64], prior: SlotPrior, when: DayHour
    ) -> tuple[Floats, Floats] | None:
        """Mean and variance of these HATs by earlier days alone; on a first day, if the city was
        told of the last slot, by the day but its last hours; else None."""
        beliefs = self._untold if self._morning is None else self._morning
        if beliefs is None:
            return None
        at = self._numbers(cells)
        return beliefs.predict(np.where(at < beliefs.cells, at, -1), design_of(prior, when))

    def passed(self, hours: float, told: CityTold | None = None) -> FilterBank:
        """The beliefs so many hours later, and told this of the city; these stay."""
        found = copy(self)
        found._beliefs = deepcopy(self._beliefs)
        HATS_SPREADS.pass_hours(found._beliefs, hours)
        if told is not None:
            found._beliefs.observe_mean(
                told.loadings, told.offset_kmh, told.variance, told.usual_variance
            )
        return found

    def mean_over(
        self, cells: NDArray[np.uint64], prior: SlotPrior, when: DayHour, share: Floats
    ) -> MeanOver:
        """The mean over these HATs, weighed by `share`."""
        return self._beliefs.mean_over(share, self._numbers(cells), design_of(prior, when))

    def carried(self, cells: NDArray[np.uint64]) -> list[Carryover]:
        """Carry-over of the last slot's news in these cells."""
        return [self._carried.get(cell, NOTHING) for cell in cells.tolist()]

    def _predicted(self, at: Integers, prior: SlotPrior, when: DayHour) -> HatPredictions:
        found = self._beliefs.predict(at, design_of(prior, when))
        return HatPredictions(*found, *self._beliefs.mean[[SLOPE, SKEW]].tolist())

    def learn(
        self,
        seen: ReleasedHats,
        max_kmh: float,
        when: DayHour = AT_NOON,
        told: CityTold | None = None,
    ) -> PosteriorMixture:
        """Condition on the releases of a slot, together; gives what they leave of their HATs.
        Before them the city was told.

        A release's variance is divided by the probability that its HAT is as usual: an incident
        does not spoil what is known of the cell.
        """
        carried = self.carried(seen.cells)
        passed = self.passed(seen.hours, told)._beliefs
        self._untold = None
        if told is not None:
            self._untold = self.passed(HOURS)._beliefs
            self._beliefs = passed
        before = self.predict(seen.cells, seen.prior, when)

        def posterior(mean: Floats, variance: Floats, skew: float) -> PosteriorMixture:
            value = seen.value - skew * seen.is_clipped
            return measured(
                mean, variance + seen.unexplained, carried, value, seen.noise, seen.clipped, max_kmh
            )

        anomaly = posterior(before.mean, before.variance, before.skew).anomaly
        taken = (seen.noise + seen.unexplained) / (1 - np.minimum(anomaly, PROBABILITY_MAX))
        self._beliefs = passed
        self._update(seen, taken, when)
        after = self.predict(seen.cells, seen.prior, when)
        # The HAT's own release is taken out of its forecast again: the mixture weighs it.
        precision = 1 / after.variance - 1 / taken
        without = (
            after.mean / after.variance - (seen.value - after.skew * seen.is_clipped) / taken
        ) / precision
        is_known = precision > 1 / before.variance
        mean = np.where(is_known, without, before.mean)
        variance = np.where(is_known, 1 / precision, before.variance)
        found = posterior(mean, variance, after.skew)
        anomalies = zip(
            seen.cells.tolist(),
            found.anomaly.tolist(),
            (found.anomaly_mean - mean).tolist(),
            strict=True,
        )
        self._carried = {
            cell: Carryover(probability, off).later(seen.hours)
            for cell, probability, off in anomalies
        }
        return found

    def _update(self, seen: ReleasedHats, variance: Floats, when: DayHour) -> None:
        new = [cell for cell in seen.cells.tolist() if cell not in self._at]
        self._at |= zip(new, range(len(self._at), len(self._at) + len(new)), strict=True)
        self._beliefs.grow(len(new))
        columns = design_of(seen.prior, when, seen.is_clipped)
        self._beliefs.update(self._numbers(seen.cells), columns, seen.value, variance)

    def _numbers(self, cells: NDArray[np.uint64]) -> NDArray[np.int64]:
        return np.array([self._at.get(cell, -1) for cell in cells.tolist()], dtype=np.int64)


SLOPE = 1
SKEW = HAT_FEATURES
"""Places of the slope of the counts' prior, and of a narrow clip's skew, among the globals."""


def design_of(
    prior: SlotPrior, when: DayHour, is_clipped: NDArray[np.bool_] | None = None
) -> Design:
    """The design of HATs; `is_clipped` where a narrow clip observes."""
    features = columns_of(prior, is_clipped)
    scale = scale_of(CITY_MEAN * (1 + prior.by_hat))
    return design(course(when.hour), when.kind, features, scale)


def columns_of(prior: SlotPrior, is_clipped: NDArray[np.bool_] | None = None) -> Floats:
    """Features of HATs, shape (HATs, 8)."""
    clipped = np.zeros(prior.by_hat.size) if is_clipped is None else is_clipped
    return np.column_stack([prior.by_hat, prior.features, clipped])


DAYS = 2
"""How many local days traffic, the city's shape and the evidence of units are remembered, the slot's
own day included."""

LIKE_YESTERDAY = 0.5
"""The part of the pace that follows yesterday's traffic. The rest follows the clock, as yesterday
may be a holiday, or recorded in part."""

LATE_START_H = 3.0
"""Hours (slots, where these are longer) over which a day that begins late lets out what was not
spent before. At 3, unlike 2 and 4, the second slot of 16 days from 06:00 has at least 0.6 of the
first slot's releases, at no cost."""


class Memory:
    """Forecasts of slots in their order; `day` is always the local date on which the slot starts,
    `hour` the hour of the day in the middle of it.

    A day begins with what releases of earlier days have told (`forecast/usual_week.py`).

    >>> no_counts = SlotPrior(np.zeros(0), np.zeros(1), np.zeros((1, 6)))
    >>> monday, cell, memory = dt.date(2024, 1, 8), np.array([7], np.uint64), Memory()
    >>> _ = memory.learn(monday, ReleasedHats.of_one(7, value=30.0, noise=1.0), max_kmh=65.0)
    >>> forecasts = [memory.predict(monday + dt.timedelta(days), cell, no_counts).mean[0] for days in (0, 1, 2)]
    >>> [bool(forecast > 18) for forecast in forecasts]
    [True, True, True]
    """

    def __init__(self) -> None:
        self._day = self._begun = dt.date.min
        self.week = HatWeek()
        self._bank = FilterBank(self.week)
        self._traffic: dict[dt.date, list[tuple[float, int]]] = {}

    @classmethod
    def of(cls, day: dt.date, cells: Sequence[int], sums: bytes) -> Memory:
        """The memory that a day begins with, of what `kept` gave; ValueError for other sums."""
        memory = cls()
        memory.week.numbers_of(np.array(cells, np.uint64))
        unpack(sums, memory.week.sums(len(cells)))
        memory._day = day
        return memory

    def kept(self, day: dt.date) -> tuple[list[int], bytes]:
        """The cells that were seen before a day, and what is kept of them."""
        self._pass_nights(day)
        cells = self.week.seen
        return cells, packed(self.week.sums(len(cells)))

    @on_one_thread
    def predict(
        self,
        day: dt.date,
        cells: NDArray[np.uint64],
        prior: SlotPrior,
        hour: float = NOON,
        passed: float = 0.0,
        told: CityTold | None = None,
    ) -> HatPredictions:
        """The forecast of HATs in a slot of that day; by the beliefs when so many hours are passed
        and the city was told this, if any are."""
        self._turn_to(day)
        bank = self._bank.passed(passed, told) if passed else self._bank
        return bank.predict(cells, prior, DayHour.of(day, hour))

    @on_one_thread
    def mean_over(
        self, day: dt.date, cells: NDArray[np.uint64], prior: SlotPrior, hour: float, hours: float,
        share: Floats,
    ) -> MeanOver:  # fmt: skip
        """The mean over HATs of a slot of so many hours, weighed by `share`."""
        self._turn_to(day)
        return self._bank.passed(hours).mean_over(cells, prior, DayHour.of(day, hour), share)

    @on_one_thread
    def guess(self, day: dt.date, prior: SlotPrior, hour: float = NOON) -> HatPredictions:
        """The forecast from counts and the city alone."""
        self._turn_to(day)
        return self._bank.guess(prior, DayHour.of(day, hour))

    @on_one_thread
    def news(
        self, day: dt.date, cells: NDArray[np.uint64], prior: SlotPrior, hour: float,
        found: PosteriorMixture, unexplained: Floats,
    ) -> Floats:  # fmt: skip
        """Probability of each HAT that it is not as usual: by the usual week and the HAT's rest; on
        a first day, by the day."""
        self._turn_to(day)
        usual = self._bank.usual(cells, prior, DayHour.of(day, hour))
        return found.anomaly if usual is None else found.outside(usual[0], usual[1] + unexplained)

    @on_one_thread
    def learn(
        self,
        day: dt.date,
        seen: ReleasedHats,
        max_kmh: float,
        hour: float = NOON,
        told: CityTold | None = None,
    ) -> PosteriorMixture:
        """Learn the slot's releases; gives what they leave of their HATs."""
        self._turn_to(day)
        self.remember(day, seen, hour)
        return self._bank.learn(seen, max_kmh, DayHour.of(day, hour), told)

    def remember(self, day: dt.date, seen: ReleasedHats, hour: float = NOON) -> None:
        """Learn the slot's releases for the days that follow only."""
        self._pass_nights(day)
        when = DayHour.of(day, hour)
        self.week.add(
            when.kind, min(int(hour), HOURS - 1), seen.cells, seen.value, seen.noise + seen.unexplained,
            columns_of(seen.prior, seen.is_clipped), min(seen.hours, 1.0),
        )  # fmt: skip

    def carried(self, day: dt.date, cells: NDArray[np.uint64]) -> list[Carryover]:
        """Carry-over of the last slot's news in these cells."""
        self._turn_to(day)
        return self._bank.carried(cells)

    def count(self, day: dt.date, part_of_day: float, pings: int) -> None:
        """The pings of a slot that ends when such a part of the day is over; once for each slot."""
        self._turn_to(day)
        self._traffic.setdefault(day, []).append((part_of_day, pings))

    def ahead(self, day: dt.date, part_of_day: float, part_of_slot: float) -> float:
        """How far the pace is ahead of the clock when a slot ends, as a part of a day's budget, if
        traffic comes as yesterday. On a first day it is behind: what nobody spent before its first
        slot is let out over hours."""
        self._turn_to(day)
        slots, today = (self._traffic.get(day - dt.timedelta(days=back), []) for back in (1, 0))
        if not slots:
            first = max(0.0, min([part_of_day, *(end for end, _ in today)]) - part_of_slot)
            let_out = (part_of_day - first) / (LATE_START_H * max(1 / 24, part_of_slot))
            return -first * max(0.0, 1 - let_out)
        in_all, over = (
            sum(pings for end, pings in slots if end <= most) for most in (1.0, part_of_day)
        )
        return LIKE_YESTERDAY * (over / in_all - part_of_day) if in_all else 0.0

    def cells(self, day: dt.date) -> list[int]:
        """The observed cells that are remembered on that day."""
        self._turn_to(day)
        return self._bank.cells

    @on_one_thread
    def _turn_to(self, day: dt.date) -> None:
        self._pass_nights(day)
        if self._begun < self._day:
            self._begun = self._day
            self._bank = FilterBank(self.week)

    def _pass_nights(self, day: dt.date) -> None:
        if day <= self._day:  # slots may close a little out of order around midnight
            return
        if self._day > dt.date.min:
            self.week.night(self._day)
        self._day = day
        self._traffic = {
            known: slots for known, slots in self._traffic.items() if (day - known).days < DAYS
        }


CITY_MEAN = 18.0
CITY_SD = 5.0
"""The mean speed of a city before its first release, km/h: buses in traffic."""

EDGE_KMH = 1.0
"""Least distance of a plate's forecast from 0 and U: a clip needs room on both sides."""


@dataclass(frozen=True, slots=True)
class SlotForecast:
    """Forecast of a slot's HATs, km/h: mean speed, variance as usual without the HAT's rest, the
    rest's variance, and the standard deviation with possible news. It follows from public data
    alone.

    `plates` has the mean speed of each row of the slot's counts; `ahead` is `Memory.ahead` at the
    slot's end.

    >>> nothing_read, columns = SlotPrior(np.zeros(2), np.zeros(1), np.zeros((1, 6))), np.array([[18.0], [25.0], [9.0]])
    >>> slot = SlotForecast(nothing_read, *columns, np.array([17.0, 19.0]), deviation=np.array([7.0]))
    >>> float(np.sqrt(slot.variance + slot.unexplained)[0]).__round__(2)  # how far the HAT's mean may be off, as usual
    5.83
    """

    prior: SlotPrior
    mean: Floats
    variance: Floats
    unexplained: Floats
    plates: Floats
    deviation: Floats
    ahead: float = 0.0


def forecast_slot(
    counts: SlotCounts,
    grid: Grid,
    memory: Memory,
    day: dt.date,
    part_of_day: float,
    max_kmh: float,
    hour: float = NOON,
    passed: float = 0.0,
    told: CityTold | None = None,
) -> SlotForecast:
    """Forecast a slot from its counts and earlier releases. It reads no speed.

    Args:
        counts: The counts of the slot.
        grid: The grid of its cells.
        memory: What earlier releases have taught.
        day: The local date on which the slot starts.
        part_of_day: The part of the day that is over when the slot ends, in 0..1.
        max_kmh: U.
        hour: The hour of the day in the middle of the slot.
        passed: The hours of the slot, where the city is asked or told before it.
        told: What it was told then.

    Returns:
        Mean speeds and variances of the slot's HATs, and mean speeds of their plates, km/h.
    """
    prior = prior_of(counts, grid)
    hats = counts.cells.size
    hat = _hat_of_row(counts)
    part_of_slot = (counts.end_ms - counts.start_ms) / DAY_MS
    predicted = memory.predict(day, counts.cells, prior, hour, passed, told)
    unexplained = mean_variance(counts.count, hat, hats)
    usual = np.clip(predicted.mean, 0.0, max_kmh)
    mean, variance = mixed(
        usual, predicted.variance + unexplained, memory.carried(day, counts.cells)
    )
    mean = np.clip(mean, 0.0, max_kmh)
    plates = mean[hat] + predicted.slope * (prior.by_row - prior.by_hat[hat])
    # A quarter at most: where U is small, the edges would else meet.
    edge = min(EDGE_KMH, max_kmh / 4)
    return SlotForecast(
        prior,
        mean,
        predicted.variance,
        unexplained,
        np.clip(plates, edge, max_kmh - edge),
        np.sqrt(variance),
        memory.ahead(day, part_of_day, part_of_slot),
    )


# The evidence that a slot's releases are of another unit (`anomalies.py`).

KNOWN_VARIANCE = 9.0
"""Largest variance of the best known HAT, km2/h2, at which the city's usual speed counts as known;
else nothing is said."""


def evidence_of(usual: HatPredictions, seen: ReleasedHats, max_kmh: float) -> tuple[float, float]:
    """How much likelier slower and faster units make a slot's releases than any ordinary factor
    does, as logarithms."""
    if not seen.value.size or usual.variance.min() > KNOWN_VARIANCE:
        return 0.0, 0.0
    factors = (*ORDINARY, *SLOWER, *FASTER)
    mean = np.clip(usual.mean, 1.0, max_kmh)
    value = seen.value - usual.skew * seen.is_clipped
    variance = usual.variance + seen.unexplained
    logs = log_likelihoods(factors, mean, variance, value, seen.noise, seen.clipped, max_kmh)
    ends = np.cumsum([len(ORDINARY), len(SLOWER)])
    ordinary, slower, faster = np.split(logs, ends)
    return _mean_likelihood(slower) - float(ordinary.max()), _mean_likelihood(faster) - float(
        ordinary.max()
    )


def _mean_likelihood(logs: Floats) -> float:
    largest = logs.max()
    return float(largest + np.log(np.exp(logs - largest).mean()))
