"""Data of experiments: HATs with speeds, recorded or drawn as the papers say, and plates' positions
over time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from statistics import NormalDist
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from udp_stream.base.arrays import Floats, Integers
from udp_stream.base.errors import UsageError
from udp_stream.base.units import QUANTA_PER_KMH
from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.base import Range, SamplesPerPlate
from udp_stream.planning.suppression import Occupancy

FRESH_MS = 900_000
PLATES_MIN = 10


@dataclass(frozen=True)
class Trajectories:
    """Every accepted ping of a feed: its plate by number, its time, and its place in the city's
    plane, lattice steps.

    >>> feed = Trajectories("city", np.array([0, 1, 0]), np.array([1, 2, 9]), np.array([[0, 0], [5, 5], [7, 7]]))
    >>> plates, where = feed.at(10)
    >>> plates.tolist(), where.tolist()
    ([0, 1], [[7, 7], [5, 5]])
    """

    name: str
    plate: Integers
    time_ms: Integers
    where: Integers

    def at(self, moment_ms: int) -> tuple[Integers, Integers]:
        """The plates with a fresh position before a moment, ascending, and where they were last."""
        fresh = np.flatnonzero((self.time_ms < moment_ms) & (self.time_ms >= moment_ms - FRESH_MS))
        latest = fresh[np.argsort(self.time_ms[fresh], kind="stable")][::-1]
        plates, first = np.unique(self.plate[latest], return_index=True)
        return plates, self.where[latest[first]]

    def moments(self, count: int, rng: np.random.Generator) -> list[int]:
        """Draw `count` moments, by their pings, at which there are plates enough. UsageError if
        there are none."""
        drawn = rng.choice(self.time_ms, 20 * count + 100).tolist()
        enough = (moment for moment in drawn if self.at(moment)[0].size >= PLATES_MIN)
        found = list(islice(enough, count))
        if len(found) < count:
            raise UsageError(
                f"{self.name}: expected moments before which at least {PLATES_MIN} plates pinged within "
                f"{FRESH_MS // 60_000} minutes, and the feed has too few"
            )
        return found

    def place_near_a_plate(self, where: Integers, rng: np.random.Generator) -> tuple[float, float]:
        east, north = rng.choice(where) / 16 + rng.uniform(-1000, 1000, 2)
        return float(east), float(north)


class PointCloud(Trajectories):
    """Points that never move.

    >>> cloud = drawn_points(100, np.random.default_rng(1))
    >>> cloud.name, cloud.at(5)[1].shape, cloud.moments(2, np.random.default_rng(1))
    ('drawn, 100 points', (100, 2), [0, 0])
    """

    def at(self, moment_ms: int) -> tuple[Integers, Integers]:  # noqa: ARG002
        return self.plate, self.where

    def moments(self, count: int, rng: np.random.Generator) -> list[int]:  # noqa: ARG002
        return [0] * count


def drawn_points(points: int, rng: np.random.Generator) -> PointCloud:
    """Points in twenty clusters with a deviation of 3 km, which lie anywhere in a square of 40 km:
    a city's sizes."""
    centres = rng.uniform(-20_000, 20_000, (20, 2))
    where = centres[rng.integers(0, len(centres), points)] + rng.normal(0, 3000, (points, 2))
    times = np.zeros(points, np.int64)
    return PointCloud(
        f"drawn, {points:,} points", np.arange(points), times, np.rint(16 * where).astype(np.int64)
    )


class HatSamples(NamedTuple):
    """A HAT: its counts by plate, and its speeds in quanta, plate by plate in the order of the
    counts."""

    counts: SamplesPerPlate
    samples: Integers

    @property
    def mean(self) -> float:
        return float(self.samples.mean())


Hats: TypeAlias = Sequence[HatSamples]


@dataclass(frozen=True)
class DataSet:
    """HATs with their speeds, the range of a speed, and who was where: in the busiest slot, and in
    all (`whole`). The baseline guess (`constant`, quanta) is the city-wide mean of recorded pings,
    or of the feed in whose likeness data were drawn (`city_mean`), else U/2."""

    name: str
    recorded: bool
    range: Range
    hats: tuple[HatSamples, ...]
    busiest_slot: Occupancy | None = None
    city_mean: float | None = None
    positions: Trajectories | None = None
    whole: Occupancy | None = None

    @property
    def max_kmh(self) -> float:
        return self.range.width / QUANTA_PER_KMH

    @cached_property
    def total(self) -> int:
        return sum(hat.counts.total for hat in self.hats)

    @cached_property
    def constant(self) -> float:
        if self.recorded:
            return sum(float(hat.samples.sum()) for hat in self.hats) / self.total
        return self.range.low + self.range.width / 2 if self.city_mean is None else self.city_mean

    @property
    def constant_is(self) -> str:
        if self.recorded:
            return "city-wide mean"
        return "U/2" if self.city_mean is None else "the feed's city-wide mean"

    @cached_property
    def busiest(self) -> HatSamples:
        return max(self.hats, key=lambda hat: hat.counts.total)

    def share(self, hats: Hats) -> float:
        return sum(hat.counts.total for hat in hats) / self.total


class Images(NamedTuple):
    """Vectors of values from 0 to 255 with a name: those to search, and those to ask about, a row
    each.

    >>> Images("two", np.zeros((2, 784), np.uint8), np.zeros((1, 784), np.uint8)).searched.shape
    (2, 784)
    """

    name: str
    searched: NDArray[np.uint8]
    asked: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Setup:
    """Data and settings that an experiment is run on. `bits(name)`: a stream of bits that follows
    from the name alone.

    `moving`, `still` and `images` are a user's copies of the papers' data. `full`: numbers of
    points are the papers', and repetitions few enough for ten minutes of a core.
    """

    data: tuple[DataSet, ...]
    repetitions: int
    min_plates: int
    seed: int
    bits: Callable[[str], Bits]
    moving: tuple[Trajectories, ...] = ()
    still: tuple[Trajectories, ...] = ()
    images: Images | None = None
    full: bool = False

    @property
    def positions(self) -> tuple[Trajectories, ...]:
        return (*(data.positions for data in self.data if data.positions is not None), *self.moving)

    def rng(self, name: str) -> np.random.Generator:
        """Generator for drawing data (never noise); it follows from the seed and the name."""
        return np.random.default_rng([self.seed, *name.encode()])


# arXiv 2401.15906, Section IV-C: Gaussian speeds clipped to [0, U], scaled counts.

ITMS_TOTAL = 17_166
ITMS_LARGEST = 417
ITMS_MEDIAN = 46
"""Published figures of the papers' HAT: samples in all, of the largest user, of the median user; U
= 65 km/h."""

ITMS_MEAN_KMH = 20.66769
ITMS_SD_KMH = 15.0
"""The mean is published. The standard deviation is not: 15 km/h is that of the Surat feed at hand
(14.8)."""

ITMS_USERS = 249
ITMS_SPREAD = 0.92
"""Fitted figures, not published. A lognormal about the median with these has the published total
and K = 160 arrays."""

ITMS_MAX_KMH = 65


def itms_counts() -> Integers:
    """Counts with all that is published of the papers' HAT: total, largest, median, and K = 160 at
    their cap."""
    normal = NormalDist()
    spread = np.exp(
        [ITMS_SPREAD * normal.inv_cdf((i + 0.5) / ITMS_USERS) for i in range(ITMS_USERS)]
    )
    counts = np.clip(np.round(ITMS_MEDIAN * spread), 1, ITMS_LARGEST).astype(np.int64)
    missing = ITMS_TOTAL - int(counts.sum())
    below_largest = np.flatnonzero(counts < ITMS_LARGEST)[::-1]
    counts[below_largest[:missing]] += 1
    return counts


def gaussian_hat(
    counts: Integers, mean_kmh: float, sd_kmh: float, range: Range, rng: np.random.Generator
) -> HatSamples:
    """Independent speeds for these counts, normal and clipped to [0, U] (quanta)."""
    speeds = rng.normal(mean_kmh * QUANTA_PER_KMH, sd_kmh * QUANTA_PER_KMH, int(counts.sum()))
    return HatSamples(
        SamplesPerPlate(counts), np.clip(np.round(speeds), range.low, range.high).astype(np.int64)
    )


def itms_like(rng: np.random.Generator) -> DataSet:
    """The papers' HAT in its likeness, as their own data are not public."""
    range = Range(0, ITMS_MAX_KMH * QUANTA_PER_KMH)
    hat = gaussian_hat(itms_counts(), ITMS_MEAN_KMH, ITMS_SD_KMH, range, rng)
    return DataSet("ITMS-like", False, range, (hat,))


def data_sets(setup: Setup) -> list[DataSet]:
    """The papers' HAT in its likeness, then the feeds."""
    return [itms_like(setup.rng("itms-like")), *setup.data]


BUSIEST = "busiest HAT"


def cases(setup: Setup) -> Iterator[tuple[DataSet, str, Hats]]:
    """Each data set with each choice of its HATs."""
    return ((data, *choice) for data in data_sets(setup) for choice in choices(setup, data))


def choices(setup: Setup, data: DataSet) -> list[tuple[str, Hats]]:
    """The busiest HAT and, of feeds, all HATs with enough plates: their label and the HATs."""
    enough = [hat for hat in data.hats if data.recorded and hat.counts.plates >= setup.min_plates]
    return [(BUSIEST, [data.busiest]), *([(all_hats(setup), enough)] if enough else [])]


def all_hats(setup: Setup) -> str:
    """The label of every HAT with enough plates."""
    return f"HATs of >= {setup.min_plates} plates"


def weights_of(hats: Hats) -> Floats:
    """Each HAT's share of their samples."""
    totals = np.array([hat.counts.total for hat in hats], dtype=np.float64)
    return totals / float(totals.sum())
