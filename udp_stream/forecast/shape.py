"""Distributions of speeds: the city's shape by its answers, and each HAT's, tilted to its mean.

It reads the city's answers (`release/city.py`), smoothed means and counts: post-processing,
which costs no budget. Measured in docs/mechanisms/shapes.md.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from math import hypot, log, sqrt
from typing import NamedTuple

import numpy as np

from udp_stream.base.arrays import Floats, Integers
from udp_stream.forecast.model import DAYS
from udp_stream.forecast.usual_week import on_one_thread

# The city: shares of speeds in the bins of its tree. They are those of some shape of an untrained
# family (some buses stand, some crawl, the speeds of the others are a Weibull variable), plus a
# normal rest. Each answer weighs the shapes by their likelihood, and conditions each rest. An
# answer errs by its noise, by the scatter of plates, and by its slot's difference from the day:
# much at night, when few plates are out.

STANDING = 0.02, 0.08, 0.16, 0.24, 0.32, 0.4, 0.48
"""Shares of exact zeros in the family."""

CRAWLING = (0.02, 0.08, 0.2)
CRAWL_KMH = 1.5
"""Shares of standing buses whose position jitters, and the mean of their exponential speed."""

MOVING_KMH = (12.0, 16.0, 20.0, 25.0, 31.0, 38.0)
WEIBULL = (1.2, 1.6, 2.0, 2.6, 3.2)
"""Scales and exponents of the others' speeds."""

UNEXPLAINED = 0.03
"""Standard deviation of a city's CDF around the family's at a half."""

DRIFT = 0.02
"""The same of a day's CDF around that of the day before."""

SLOT_PLATES = 7.0
SLOT_APART = 0.03
"""Difference of days: for n plates a slot's CDF differs from the day's at a half by 3.5 / n and by
0.03, beside the scatter of plates."""

SLOTS_APART_DAYS = 6
"""Days apart that differ like two slots of a day: mornings are not like noon."""

DEVIATION_MIN = 0.05
"""Deviation of the city's CDF at every edge from which on no query is asked."""

PLATES_MIN = 75.0
"""Least plates of full weight that make a city: night buses differ from all others. Plates in a
single HAT all slot long do not count: they may be parked."""

NOISE_MAX = 2.0
"""The largest error of an answer, over the uncertainty."""


class Answer(NamedTuple):
    """A slot's answer: noisy shares of the bins, the variance of that noise, and how many plates
    took part.

    >>> Answer(np.array([0.4, 0.6]), variance=0.01, plates=90.0).plates
    90.0
    """

    shares: Floats
    variance: float
    plates: float


class CityShape(NamedTuple):
    """Shares of speeds up to each of `edges_kmh`: shapes with their log weights, and the covariance
    of their rest.

    >>> city = family((0.0, 10.0, 65.0))
    >>> city.mean.round(2).tolist(), bool(city.deviations.max() > DEVIATION_MIN)
    ([0.24, 0.25, 0.5], True)
    """

    edges_kmh: tuple[float, ...]
    shapes: Floats
    log_weights: Floats
    unexplained: Floats

    @property
    def weights(self) -> Floats:
        """How likely each shape is."""
        likely = np.exp(self.log_weights - self.log_weights.max())
        return np.asarray(likely / likely.sum())

    @property
    def mean(self) -> Floats:
        """Expected shares, projected: none below 0, and 1 in all."""
        return projected(self.weights @ self.shapes)

    @property
    def deviations(self) -> Floats:
        """Standard deviations of the CDF at each edge."""
        off = self.shapes - self.weights @ self.shapes
        return _of_cdf(self.unexplained + (self.weights * off.T) @ off)

    @on_one_thread
    def after(self, answer: Answer) -> CityShape:
        """The shape conditioned on an answer."""
        off = answer.shares - self.shapes
        inverse = np.linalg.inv(self.unexplained + self._error_of(answer.variance, answer.plates))
        fits = -0.5 * np.sum(off @ inverse * off, axis=1)
        gain = self.unexplained @ inverse
        return CityShape(
            self.edges_kmh,
            self.shapes + off @ gain.T,
            self.log_weights + fits,
            self.unexplained - gain @ self.unexplained,
        )

    def drifted(self, days: int) -> CityShape:
        """The shape after so many days."""
        return self._replace(
            unexplained=self.unexplained + 4 * days * DRIFT**2 * _scatter(self.mean)
        )

    @on_one_thread
    def is_informative(self, variance: float, plates: float) -> bool:
        """Whether an answer with this noise, of so many plates, tells enough."""
        uncertain = self.deviations
        if plates < PLATES_MIN or uncertain.max() <= DEVIATION_MIN:
            return False
        error = _of_cdf(self._error_of(variance, plates))[:-1]
        return bool(np.mean(error**2) < NOISE_MAX**2 * np.mean(uncertain[:-1] ** 2))

    def _error_of(self, variance: float, plates: float) -> Floats:
        """Covariance of an answer's error."""
        error: Floats = variance * np.eye(self.unexplained.shape[0])
        return error + (1 / plates + (SLOT_PLATES / plates) ** 2 + 4 * SLOT_APART**2) * _scatter(
            self.mean
        )


def _scatter(shares: Floats) -> Floats:
    """Covariance of the bin of a single ping, shape (bins, bins)."""
    return np.diag(shares) - np.outer(shares, shares)


def _of_cdf(covariance: Floats) -> Floats:
    """Standard deviations of cumulative sums."""
    variances = np.diag(np.cumsum(np.cumsum(covariance, axis=0), axis=1))
    return np.asarray(np.sqrt(np.maximum(variances, 0.0)))


def projected(shares: Floats) -> Floats:
    """The nearest shares, none of them below 0, that are 1 in all (Duchi and others, ICML 2008)."""
    descending = np.sort(shares)[::-1]
    excess = (np.cumsum(descending) - 1) / np.arange(1, shares.size + 1)
    return np.asarray(np.maximum(shares - excess[descending > excess][-1], 0.0))


@lru_cache(maxsize=16)
@on_one_thread
def family(edges_kmh: tuple[float, ...]) -> CityShape:
    """The untrained family over bins with these right edges."""
    edges = np.array(edges_kmh)
    crawl = 1 - np.exp(-edges / CRAWL_KMH)
    found = []
    for standing, crawling, scale, power in product(STANDING, CRAWLING, MOVING_KMH, WEIBULL):
        moving = 1 - np.exp(-((edges / scale) ** power))
        cdf = standing + crawling * crawl + (1 - standing - crawling) * moving / moving[-1]
        cdf[-1] = 1.0
        found.append(np.diff(cdf, prepend=0.0))
    shapes = np.array(found)
    return CityShape(
        edges_kmh, shapes, np.zeros(len(found)), 4 * UNEXPLAINED**2 * _scatter(shapes.mean(axis=0))
    )


class CityMemory:
    """The city's answers, for as many days as forecasts remember.

    >>> memory, day = CityMemory((0.0, 10.0, 65.0)), dt.date(2024, 1, 8)
    >>> memory.told(day) is None, memory.asked(day)
    (True, 0)
    >>> memory.learn(day, Answer(np.array([0.3, 0.3, 0.4]), variance=1e-4, plates=200.0))
    >>> memory.told(day).mean.round(1).tolist(), memory.told(day + dt.timedelta(days=DAYS)) is None
    ([0.3, 0.3, 0.4], True)
    """

    def __init__(self, edges_kmh: tuple[float, ...]) -> None:
        self._edges = edges_kmh
        self._answers: list[tuple[dt.date, Answer]] = []
        self._known: tuple[dt.date, CityShape] | None = None

    def learn(self, day: dt.date, answer: Answer) -> None:
        """An answer of a slot of that day; answers of other bins, as of another U, are ignored."""
        if answer.shares.size == len(self._edges):
            self._answers.append((day, answer))
            self._known = None

    def asked(self, day: dt.date) -> int:
        """How often that day was answered."""
        return sum(then == day for then, _ in self._answers)

    def plates(self, day: dt.date) -> float:
        """The most that answered that day; 0 if nobody was asked."""
        return max((answer.plates for then, answer in self._answers if then == day), default=0.0)

    def told(self, day: dt.date) -> CityShape | None:
        """The shape as it is known that day; None if nobody was asked."""
        self._answers = [answer for answer in self._answers if (day - answer[0]).days < DAYS]
        return self.shape(day) if self._answers else None

    def shape(self, day: dt.date) -> CityShape:
        """The same, or the family."""
        if self._known is None or self._known[0] != day:
            found = family(self._edges)
            last = None
            for then, answer in self._answers:
                if (day - then).days < DAYS:
                    later = 0 if last is None else SLOTS_APART_DAYS + (then - last).days
                    found = found.drifted(later).after(answer)
                    last = then
            self._known = day, found if last is None else found.drifted(max(0, (day - last).days))
        return self._known[1]


# Under add-remove the city's time in each bin has a noised sum in every slot of every day. Earlier
# days make a usual shape, from which a day differs by `DAY_APART`, unless all is new, as after a
# change of the feed: then the family stands in its place. The day's own sums weigh both.

SPREAD_DECAY = 0.985
"""Weight of yesterday's sums, in those of earlier days."""

DAY_APART = 0.05
NEW = 0.2
"""Standard deviation of a day's CDF around the usual at a half; how likely a day is unlike it."""

TOLD_DEVIATION = 0.16
"""The city is told where its CDF is known up to this deviation at every edge."""

TIME_DEVIATIONS = 3.0
"""Sums tell a shape where all of their time is so many deviations of its noise."""


class SpreadMemory:
    """The city's shape from noised sums of its time in each bin, in slots of a plate, slot by slot.

    >>> memory, day = SpreadMemory((0.0, 10.0, 65.0)), dt.date(2024, 1, 8)
    >>> memory.learn(day, np.array([60.0, 60.0, 80.0]), noise=1.0)
    >>> memory.told(day).mean.round(1).tolist(), memory.told(day + dt.timedelta(1)) is None
    ([0.3, 0.3, 0.4], False)
    """

    def __init__(self, edges_kmh: tuple[float, ...]) -> None:
        self._edges = edges_kmh
        self._day = dt.date.min
        self._before = self._today = np.zeros(len(edges_kmh)), 0.0

    def kept(self, day: dt.date) -> tuple[float, ...]:
        """The sums of the days before one, and the variance of their noise."""
        self._turn_to(day)
        sums, noise = self._before
        return *sums.tolist(), float(noise)

    def begin(self, day: dt.date, kept: Sequence[float]) -> None:
        """Begin a day with what `kept` gave; those of other bins are ignored."""
        if len(kept) == len(self._edges) + 1:
            self._day = day
            self._before = np.array(kept[:-1]), kept[-1]

    def learn(self, day: dt.date, slots: Floats, noise: float) -> None:
        """A slot's sums, with the variance of their noise; those of other bins, as of another U, are
        ignored."""
        if slots.size != len(self._edges):
            return
        self._turn_to(day)
        sums, variance = self._today
        self._today = sums + slots, variance + noise

    @on_one_thread
    def told(self, day: dt.date) -> CityShape | None:
        """The shape as it is known that day; None where it is not known well enough."""
        self._turn_to(day)
        city = family(self._edges)
        usual = city
        if before := _answer_of(*self._before):
            known = city.after(before).mean
            many = np.full(len(city.shapes), log(NEW / len(city.shapes)))
            usual = CityShape(
                self._edges,
                np.vstack([known, city.shapes]),
                np.append(log(1 - NEW), many),
                4 * DAY_APART**2 * _scatter(known),
            )
        today = _answer_of(*self._today)
        found = usual.after(today) if today else usual
        return found if found.deviations.max() <= TOLD_DEVIATION else None

    def _turn_to(self, day: dt.date) -> None:
        if day > self._day:
            kept = SPREAD_DECAY ** min((day - self._day).days, 10**4)
            (before, noise), (today, more) = self._before, self._today
            self._before = kept * (before + today), kept**2 * (noise + more)
            self._today = np.zeros(len(self._edges)), 0.0
            self._day = day


def _answer_of(sums: Floats, noise: float) -> Answer | None:
    """The shares that noised sums tell, of as many plates as their slots."""
    whole = float(sums.sum())
    if whole <= TIME_DEVIATIONS * sqrt(noise * sums.size):
        return None
    return Answer(sums / whole, noise / whole**2, whole)


# A HAT: of all distributions with its mean the nearest to a base in Kullback-Leibler: p(v) exp(t
# v), t by bisection. Speeds are spread evenly over each km/h, and over each bin of the city.
#
# The base is the city, corrected for tilting: the tilted HATs of a slot mix to a distribution wider
# than the city. A HAT of many plates takes the city divided by that mixture, a HAT of few plates
# the city alone. That takes 0.02 to 0.03 off errors. Its CDF errs by its mean's error, the city's
# uncertainty, and the HAT's own difference: less with many plates. Constants fixed on Austin's
# days.

SHARE_MIN = 2e-4
"""The least share of a km/h, so that each mean has a tilt."""

TILT_MAX = 4.0
HALVINGS = 27

PLATES_HALF_CORRECTED = 10
"""A HAT of so many plates has half of the correction. Chosen from 0, 10, 20, 40."""

PLATES_APART = 0.2
HATS_APART = 0.025
"""Variance of a HAT's CDF around the tilted CDF, over F (1 - F): of a single plate, and of many
plates."""

DEVIATIONS = 1.8
"""Half width of a band of 95 %, in deviations: below a normal variable's, as plates of most HATs
differ less."""

SUP_PER_DEVIATION = 1.25
"""Expected sup-error over the largest standard deviation at any speed."""


SCATTERED = 0.19
SLOPE = 0.015
"""Typical F (1 - F), and change of a CDF for a km/h of its mean: those of a city's edges."""


def tilted_error(plates: int, deviation_kmh: float) -> float:
    """The likely error of a tilted CDF at an edge, in shares, where the mean errs by so much."""
    return hypot(
        sqrt(SCATTERED * (PLATES_APART / plates + HATS_APART)), SLOPE * deviation_kmh, DEVIATION_MIN
    )


class HatShapes(NamedTuple):
    """CDFs of HATs, a row each, at `kmh`, and both ends of their bands; `sup` is the expected
    sup-error of each CDF.

    >>> city = family((0.0, 10.0, 65.0))
    >>> found = hat_shapes(city, mean=np.array([5.0, 20.0]), deviation=np.array([2.0, 2.0]), plates=np.array([9, 40]))
    >>> found.at([10.0])[:, 0, 0].round(2).tolist(), found.cdf[:, -1].tolist(), bool(found.sup[1] < found.sup[0])
    ([0.86, 0.49], [1.0, 1.0], True)
    """

    kmh: Floats
    cdf: Floats
    low: Floats
    high: Floats
    sup: Floats

    def at(self, edges_kmh: Sequence[float]) -> Floats:
        """CDF of each HAT at each of these speeds, and both ends of its band, each of shape (HATs,
        edges)."""
        curves = np.stack([self.cdf, self.low, self.high], axis=-1)
        at = np.clip(np.searchsorted(self.kmh, edges_kmh), 1, self.kmh.size - 1)
        part = (np.array(edges_kmh) - self.kmh[at - 1]) / (self.kmh[at] - self.kmh[at - 1])
        return np.asarray(curves[:, at - 1] + part[:, None] * (curves[:, at] - curves[:, at - 1]))

    def quantiles(self, share: float) -> Floats:
        """Quantile of each HAT, and both ends of its interval, km/h, shape (3, HATs)."""
        return np.column_stack(
            [_crossings(curve, share, self.kmh) for curve in (self.cdf, self.high, self.low)]
        )


@on_one_thread
def hat_shapes(city: CityShape, mean: Floats, deviation: Floats, plates: Integers) -> HatShapes:
    """CDFs of all HATs of a slot, by means and their deviations (km/h) and plates; 0 plates for a
    cell without pings."""
    high = city.edges_kmh[-1]
    kmh = np.unique(np.append(np.arange(np.floor(high) + 1), high))
    middles = np.append(0.0, (kmh[1:] + kmh[:-1]) / 2)
    cumulative = np.interp(kmh, city.edges_kmh, np.cumsum(city.mean))
    log_share = np.log(np.maximum(np.diff(cumulative, prepend=0.0), SHARE_MIN))
    base = log_share + np.outer(
        plates / (plates + PLATES_HALF_CORRECTED),
        _correction(log_share, middles, mean, deviation, plates),
    )
    tilted = _tilted(base, middles, mean)
    cdf = np.minimum(np.cumsum(tilted, axis=1), 1.0)
    cdf[:, -1] = 1.0
    own = tilted @ middles
    # By how much the CDF falls for a km/h of the mean: Cov(V <= v, V) / Var(V) of the tilted
    # distribution.
    variance = np.maximum(tilted @ middles**2 - own**2, 1e-3)
    slope = (cdf * own[:, None] - np.cumsum(tilted * middles, axis=1)) / variance[:, None]
    apart = PLATES_APART / np.maximum(plates, 1) + HATS_APART
    spread = np.sqrt(
        (slope * deviation[:, None]) ** 2
        + np.interp(kmh, city.edges_kmh, city.deviations) ** 2
        + cdf * (1 - cdf) * apart[:, None]
    )
    # A CDF rises: a lower bound holds for all higher speeds too, an upper bound for all lower
    # speeds.
    low = np.maximum.accumulate(np.maximum(cdf - DEVIATIONS * spread, 0.0), axis=1)
    upper = np.minimum(cdf + DEVIATIONS * spread, 1.0)
    upper = np.minimum.accumulate(upper[:, ::-1], axis=1)[:, ::-1]
    low[:, -1] = 1.0
    return HatShapes(
        kmh, cdf, low, upper, np.minimum(SUP_PER_DEVIATION * spread[:, :-1].max(axis=1), 1.0)
    )


def _correction(
    log_share: Floats, middles: Floats, mean: Floats, deviation: Floats, plates: Integers
) -> Floats:
    """Logarithm of city / mixture of the slot's tilted HATs, weighed by plates."""
    here = plates > 0
    if not here.any():
        return np.zeros(middles.size)
    ends = (np.clip(mean[here] + sign * deviation[here], 0.0, middles[-1]) for sign in (-1, 1))
    mixture = sum(plates[here] @ _tilted(log_share, middles, end) for end in ends) / (
        2 * plates.sum()
    )
    return np.asarray(log_share - np.log(mixture))


def _tilted(log_share: Floats, middles: Floats, mean: Floats) -> Floats:
    """Shares in each row with the row's mean, or the nearest that tilts reach; from shares of all,
    or of each row."""
    low = np.full(mean.size, -TILT_MAX)
    high = np.full(mean.size, TILT_MAX)
    shares = np.empty((mean.size, middles.size))
    for _ in range(HALVINGS):
        tilt = (low + high) / 2
        logs = log_share + tilt[:, None] * middles
        np.exp(logs - logs.max(axis=1, keepdims=True), out=shares)
        shares /= shares.sum(axis=1, keepdims=True)
        is_low = shares @ middles < mean
        low = np.where(is_low, tilt, low)
        high = np.where(is_low, high, tilt)
    return shares


def _crossings(curves: Floats, share: float, kmh: Floats) -> Floats:
    """Where each curve reaches the share: 0 if exact zeros do."""
    at = np.minimum(np.sum(curves < share, axis=1), kmh.size - 1)
    before = np.maximum(at - 1, 0)
    rows = np.arange(at.size)
    below = curves[rows, before]
    above = curves[rows, at]
    part = np.clip((share - below) / np.maximum(above - below, 1e-12), 0.0, 1.0)
    return np.asarray(np.where(at == 0, 0.0, kmh[before] + part * (kmh[at] - kmh[before])))
