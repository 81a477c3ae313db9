"""News: a HAT's mean is as forecast or, with probability `HAPPENS`, off by far more: an accident, a
flood, a free road.

So the forecast is a mixture of two normal distributions, and so is the posterior after a release. A
clip lets only a part of a large difference through (`widths.response`), so the posterior is taken
on a grid of speeds. All of it is post-processing of releases and counts. The model is ours
(docs/mechanisms/forecast.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import cache, cached_property
from typing import Final, NamedTuple

import numpy as np

from udp_stream.base.arrays import Floats, Integers
from udp_stream.base.units import KMH_PER_UNIT, factor_in_words
from udp_stream.mechanisms.noise import normal_below
from udp_stream.mechanisms.widths import response

HAPPENS = 0.15
"""The share of HATs with news: it trades the error of ordinary days for that of others
(docs/measurements.md)."""

HAPPENED_SD = 10.0
AT_KMH = 20.0
SLOWEST_KMH = 10.0
"""The standard deviation of news, in km/h, where 20 are forecast; in proportion to forecasts of 10
km/h or more."""

GOES_ON = 0.5
GOES_ON_BY = 0.6
"""The parts of a cell's probability of news, and of its difference, that are left an hour later."""

SPREAD_POWER = 0.7
SPREAD_SLOWEST_KMH = 5.0
"""Where all is slower than forecast, plates differ by less: by this power of the ratio of speeds."""

PROBABILITY_MAX = 0.999
"""Largest probability of news, where a weight is divided by its complement."""

STEP_KMH = 1.0
"""Step of the grid of means: they have a standard deviation of at least 1, so sums of normal
densities are exact to 1e-8."""

LOW = 0.025
LOW_UNSEEN = 0.01
HIGH = 0.975
"""Shares below the ends of an interval; below the lower end, where a release does not tell whether
there are news: streets at two fifths of their speed then lie in it."""

USUAL_DEVIATIONS = 1.96
"""Deviations within which 95 % of a normal variable lies."""

QUANTILE_STEPS = 20
"""Halvings of a range of at most 16 deviations and the distance of two means: a quantile is right
to 0.001 km/h."""

NORMAL_MAX = 8
NORMAL_STEPS = 100
"""The normal distribution function is tabulated up to 8 deviations, 100 values for each."""

NEGLIGIBLE = 1e-300
"""Density that is added, so that a release that neither case explains does not divide by 0."""


class Carryover(NamedTuple):
    """A cell's last slot: the probability that its news goes on, and by how much it was off, in
    km/h.

    >>> Carryover(0.5, -10.0).later(hours=1.0)
    Carryover(probability=0.25, off=-6.0)
    """

    probability: float
    off: float

    def later(self, hours: float) -> Carryover:
        """The same after so many hours."""
        return Carryover(self.probability * GOES_ON**hours, self.off * GOES_ON_BY**hours)


NOTHING = Carryover(0.0, 0.0)


class ReleaseClip(NamedTuple):
    """A release's clip: centre, half width (0: none), HATs that share it, gain, a plate's deviation
    in km/h.

    >>> ReleaseClip(centre=20.0, half_width=0.75, hats=5, gain=0.6, scatter=8.0).hats
    5
    """

    centre: float
    half_width: float
    hats: int
    gain: float
    scatter: float


NOT_CLIPPED = ReleaseClip(0.0, 0.0, 1, 1.0, 1.0)


@dataclass(frozen=True)
class PosteriorMixture:
    """HAT by HAT: the probability of news, and mean and variance of the HAT's mean speed without
    news and with it. Properties are of the mixture.

    >>> hat = PosteriorMixture(np.array([0.25]), np.array([20.0]), np.array([4.0]), np.array([8.0]), np.array([9.0]))
    >>> hat.mean.tolist(), hat.variance.tolist(), hat.median.round(2).tolist()
    ([17.0], [32.25], [19.14])
    """

    anomaly: Floats
    usual_mean: Floats
    usual_variance: Floats
    anomaly_mean: Floats
    anomaly_variance: Floats

    @property
    def mean(self) -> Floats:
        return (1 - self.anomaly) * self.usual_mean + self.anomaly * self.anomaly_mean

    @property
    def variance(self) -> Floats:
        within = (1 - self.anomaly) * self.usual_variance + self.anomaly * self.anomaly_variance
        return (
            within + self.anomaly * (1 - self.anomaly) * (self.anomaly_mean - self.usual_mean) ** 2
        )

    @cached_property
    def median(self) -> Floats:
        """Median of each HAT, km/h: no other value has a smaller expected distance."""
        return self.quantile(0.5, np.sqrt(np.array([self.usual_variance, self.anomaly_variance])))

    def ends(self, deviations: Floats) -> tuple[Floats, Floats]:
        """Both ends of 95 % intervals, km/h, with such deviations (`quantile`)."""
        unseen = np.minimum(self.anomaly / HAPPENS, 1.0)
        low = self.quantile(LOW - (LOW - LOW_UNSEEN) * unseen, deviations)
        return low, self.quantile(HIGH, deviations)

    def quantile(self, share: Floats | float, deviations: Floats) -> Floats:
        """Quantile of each HAT, km/h, with these standard deviations without news and with it,
        shape (2, HATs)."""
        means = np.array([self.usual_mean, self.anomaly_mean])
        weights = np.array([1 - self.anomaly, self.anomaly])
        low = (means - 8 * deviations).min(axis=0)
        high = (means + 8 * deviations).max(axis=0)
        for _ in range(QUANTILE_STEPS):
            at = (low + high) / 2
            is_low = (weights * _normal_below((at - means) / deviations)).sum(axis=0) < share
            low = np.where(is_low, at, low)
            high = np.where(is_low, high, at)
        return np.asarray((low + high) / 2)

    def outside(self, usual: Floats, variance: Floats) -> Floats:
        """Probability of each HAT that its mean lies outside of 95 % of what is usual: a normal
        variable of this mean, km/h, and this variance, km2/h2."""
        off = USUAL_DEVIATIONS * np.sqrt(variance)
        means = np.array([self.usual_mean, self.anomaly_mean])
        deviations = np.sqrt([self.usual_variance, self.anomaly_variance])
        inside = _normal_below((usual + off - means) / deviations)
        inside -= _normal_below((usual - off - means) / deviations)
        return np.asarray(1 - (np.array([1 - self.anomaly, self.anomaly]) * inside).sum(axis=0))

    def with_some(self, at: Integers, other: PosteriorMixture) -> PosteriorMixture:
        """The same, with these HATs taken from `other`."""
        columns = [column.copy() for column in astuple(self)]
        for column, of_other in zip(columns, astuple(other), strict=True):
            column[at] = of_other
        return PosteriorMixture(*columns)


def happened_variance(kmh: Floats) -> Floats:
    """Variance that news adds to HATs of such a forecast, km2/h2, elementwise."""
    return np.asarray((HAPPENED_SD * np.maximum(kmh, SLOWEST_KMH) / AT_KMH) ** 2)


def mixed(mean: Floats, variance: Floats, carried: Sequence[Carryover]) -> tuple[Floats, Floats]:
    """Mean and variance of the mixture of normal forecasts with what may have happened."""
    goes_on, off = _columns(carried)
    anomaly = HAPPENS * (1 - goes_on) + goes_on
    moved = goes_on * off
    return mean + moved, variance + anomaly * happened_variance(mean) + goes_on * off**2 - moved**2


def unmeasured(
    mean: Floats, variance: Floats, carried: Sequence[Carryover], max_kmh: float
) -> PosteriorMixture:
    """Posterior of HATs without a release: their forecasts with the unexplained variance."""
    return _posterior(mean, variance, carried, np.ones((mean.size, 1)), max_kmh)


def measured(
    mean: Floats, variance: Floats, carried: Sequence[Carryover], value: Floats, noise: Floats,
    clipped: Sequence[ReleaseClip], max_kmh: float,
) -> PosteriorMixture:  # fmt: skip
    """Posterior of HATs with a release each: its value, the variance of its noise, and how it was
    clipped."""
    distance = (value[:, None] - passed(_grid(max_kmh), variance, clipped)) ** 2 / (
        2 * noise[:, None]
    )
    likelihood = np.exp(distance.min(axis=1, keepdims=True) - distance)
    return _posterior(mean, variance, carried, likelihood, max_kmh)


def log_likelihoods(
    factors: Sequence[float], mean: Floats, variance: Floats, value: Floats, noise: Floats,
    clipped: Sequence[ReleaseClip], max_kmh: float,
) -> Floats:  # fmt: skip
    """Log-likelihood of all releases of a slot for each of `factors`, if every HAT's speeds are
    that many times its forecast, and HATs have news independently."""
    grid = _grid(max_kmh)
    distance = (value[:, None] - passed(grid, variance, clipped)) ** 2 / (2 * noise[:, None])
    seen = np.exp(distance.min(axis=1, keepdims=True) - distance)
    found = []
    for factor in factors:
        kmh = np.minimum(factor * mean, max_kmh)
        own = np.maximum(factor**2 * variance, STEP_KMH**2)
        usual = _density(grid, kmh, own)
        anomaly = _density(grid, kmh, own + happened_variance(kmh))
        usual_seen, anomaly_seen = (
            (density * seen).sum(axis=1) / density.sum(axis=1) for density in (usual, anomaly)
        )
        found.append(np.log((1 - HAPPENS) * usual_seen + HAPPENS * anomaly_seen).sum())
    return np.array(found)


def _posterior(
    mean: Floats, variance: Floats, carried: Sequence[Carryover], seen: Floats, max_kmh: float
) -> PosteriorMixture:
    """Posterior of HATs; `seen` is the likelihood of each HAT's release at each speed of the
    grid."""
    grid = _grid(max_kmh)
    (goes_on, off) = _columns(carried)
    wide = variance + happened_variance(mean)
    usual = _density(grid, mean, variance) * seen
    anomaly = HAPPENS * (1 - goes_on)[:, None] * _density(grid, mean, wide)
    anomaly = (anomaly + goes_on[:, None] * _density(grid, mean + off, wide)) * seen
    of_anomaly = anomaly.sum(axis=1)
    of_usual = (1 - HAPPENS) * (1 - goes_on) * usual.sum(axis=1)
    return PosteriorMixture(
        of_anomaly / (of_anomaly + of_usual), *_moments(grid, usual), *_moments(grid, anomaly)
    )


def _columns(carried: Sequence[Carryover]) -> tuple[Floats, Floats]:
    columns = np.array(carried, dtype=np.float64).reshape(-1, 2)
    return columns[:, 0], columns[:, 1]


def _grid(max_kmh: float) -> Floats:
    step = min(STEP_KMH, max_kmh / 16)
    return np.arange(step / 2, max_kmh, step)


def _density(grid: Floats, mean: Floats, variance: Floats) -> Floats:
    found: Floats = (
        np.exp(-((grid - mean[:, None]) ** 2) / (2 * variance[:, None]))
        / np.sqrt(variance)[:, None]
    )
    return found + NEGLIGIBLE


def _moments(grid: Floats, weights: Floats) -> tuple[Floats, Floats]:
    total = weights.sum(axis=1)
    mean = (weights * grid).sum(
        axis=1
    ) / total  # no product of matrices: its last bits follow the number of cores
    variance = (weights * (grid - mean[:, None]) ** 2).sum(axis=1) / total
    # At least that of the mass within a step.
    return mean, np.maximum(variance, (grid[1] - grid[0]) ** 2 / 12)


def passed(grid: Floats, variance: Floats, clipped: Sequence[ReleaseClip]) -> Floats:
    """The mean of each release at each speed of the grid."""
    centre, half_width, hats, gain, scatter = (
        np.array(clipped, dtype=np.float64).reshape(-1, 5).T[:, :, None]
    )
    expected = np.tile(grid, (len(clipped), 1))
    at = np.flatnonzero(half_width)
    if at.size:
        spread = np.maximum(grid, SPREAD_SLOWEST_KMH) / np.maximum(centre[at], SPREAD_SLOWEST_KMH)
        others = np.sqrt(variance[at]) / scatter[at, 0]
        off = (grid - centre[at]) / scatter[at]
        passed = response(
            half_width[at, 0], hats[at, 0].astype(np.int64), off, spread**SPREAD_POWER, others
        )
        expected[at] = centre[at] + scatter[at] * passed / gain[at]
    return expected


@cache
def _normal_table() -> Floats:
    at = np.arange(-NORMAL_MAX * NORMAL_STEPS, NORMAL_MAX * NORMAL_STEPS + 1) / NORMAL_STEPS
    return np.array([normal_below(z) for z in at.tolist()])


def _normal_below(at: Floats) -> Floats:
    place = (np.clip(at, -NORMAL_MAX, NORMAL_MAX - 0.01) + NORMAL_MAX) * NORMAL_STEPS
    left = place.astype(np.int64)
    table = _normal_table()
    part = place - left
    return np.asarray((1 - part) * table[left] + part * table[left + 1])


# Whether the releases of a slot are of speeds in another unit: off by a factor that no weather
# has, all of them.
#
# Post-processing of releases and forecasts, so it costs nothing (docs/operations.md, "A unit in
# doubt"). Clips saturate, and parked buses stay at 0 in any unit. So a factor is what the clips show
# of it, which is nearer to 1: of a unit that makes speeds 3.6 times as large, 1.5 to 2.5.

ORDINARY: Final = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25)
"""Ratios of a city's speeds to their forecasts that any day may have, storms and empty roads
included."""

SLOWER = (0.25, 1 / 3.6, 0.35)
FASTER = (1.5, 1.7, 2.0, 3.0)
"""Speeds of m/s in place of km/h, and of km/h in place of m/s, as clips show them."""

ENOUGH: Final = 13.1
"""Evidence that a verdict takes: the log of how much likelier another unit has made the releases.
By chance it is reached in n slots with a probability of at most 2 n exp(-13.1), where noise is as
recorded (Ville's inequality): in a day below 1e-4."""

OF_A_SLOT: Final = ENOUGH / 2
"""Most evidence that a slot counts for: an hour's storm or strike, however strange, is no
verdict."""


class Evidence(NamedTuple):
    """Log-likelihood ratios for a unit that makes speeds slower, and for a unit that makes them
    faster.

    >>> Evidence(5.0, 0.0).more((9.0, -1.0)), Evidence(7.0, 0.0).more((9.0, -1.0)).is_enough
    (Evidence(slower=11.55, faster=0.0), True)
    """

    slower: float = 0.0
    faster: float = 0.0

    def more(self, of_slot: tuple[float, float]) -> Evidence:
        """Evidence with that of the next slot; never below 0, as a unit may change at any time
        (CUSUM)."""
        return Evidence(
            *(max(0.0, old + min(new, OF_A_SLOT)) for old, new in zip(self, of_slot, strict=True))
        )

    @property
    def is_any(self) -> bool:
        return max(self) > 0

    @property
    def is_enough(self) -> bool:
        return max(self) >= ENOUGH


def likely_unit(evidence: Evidence, configured: str) -> str:
    """The other unit in words: by name where it is the only unit that no ordinary day explains.

    >>> likely_unit(Evidence(slower=20.0), "kmh"), likely_unit(Evidence(faster=20.0), "mph")
    ("'mps'", "'kmh'")
    >>> likely_unit(Evidence(faster=20.0), "mps")
    'another unit, by a factor of about 0.4'
    """
    factors = {unit: KMH_PER_UNIT[configured] / kmh for unit, kmh in KMH_PER_UNIT.items()}
    if evidence.faster > evidence.slower:
        fits = [unit for unit, factor in factors.items() if factor > max(ORDINARY)]
    else:
        fits = [unit for unit, factor in factors.items() if factor < min(ORDINARY)]
    return repr(fits[0]) if len(fits) == 1 else factor_in_words(fits, configured)
