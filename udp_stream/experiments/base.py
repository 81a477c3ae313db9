"""Recorded positions for experiments on queries: where each plate of a feed was last, at any moment of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from udp_stream.errors import UsageError
from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.base import Range, SamplesPerPlate
from udp_stream.planning.suppression import Occupancy
from udp_stream.units import QUANTA_PER_KMH

FRESH_MS = 900_000
"""An older position does not count: a quarter of an hour."""

PLATES_MIN = 10
"""A moment with fewer plates is not drawn."""


@dataclass(frozen=True)
class Positions:
    """Every accepted ping of a feed: its plate by number, its time, and its place in the city's plane, lattice steps.

    >>> feed = Positions("city", np.array([0, 1, 0]), np.array([1, 2, 9]), np.array([[0, 0], [5, 5], [7, 7]]))
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
        """`count` moments, drawn by their pings, at which there are plates enough. UsageError if there are none."""
        found: list[int] = []
        for moment in rng.choice(self.time_ms, 20 * count + 100).tolist():
            if len(found) == count:
                break
            if self.at(moment)[0].size >= PLATES_MIN:
                found.append(moment)
        if len(found) < count:
            minutes = FRESH_MS // 60_000
            raise UsageError(
                f"{self.name}: expected moments before which at least {PLATES_MIN} plates pinged within {minutes} "
                "minutes, and the feed has too few"
            )
        return found

    def place_near_a_plate(self, where: Integers, rng: np.random.Generator) -> tuple[float, float]:
        """Metres east and north: a plate's, and up to a kilometre from it each way."""
        east, north = rng.choice(where) / 16 + rng.uniform(-1000, 1000, 2)
        return float(east), float(north)


@dataclass(frozen=True)
class Crowd(Positions):
    """Points that stay where they are: they are all there at every moment.

    >>> crowd = drawn_crowd(100, np.random.default_rng(1))
    >>> crowd.name, crowd.at(5)[1].shape, crowd.moments(2, np.random.default_rng(1))
    ('drawn, 100 points', (100, 2), [0, 0])
    """

    def at(self, moment_ms: int) -> tuple[Integers, Integers]:  # noqa: ARG002
        """All of them."""
        return self.plate, self.where

    def moments(self, count: int, rng: np.random.Generator) -> list[int]:  # noqa: ARG002
        """Any moment will do."""
        return [0] * count


def drawn_crowd(points: int, rng: np.random.Generator) -> Crowd:
    """Points in twenty clusters with a deviation of 3 km, which lie anywhere in a square of 40 km: a city's sizes."""
    centres = rng.uniform(-20_000, 20_000, (20, 2))
    where = centres[rng.integers(0, len(centres), points)] + rng.normal(0, 3000, (points, 2))
    none = np.zeros(points, np.int64)
    return Crowd(f"drawn, {points:,} points", np.arange(points), none, np.rint(16 * where).astype(np.int64))


# What all experiments share: data sets, tables, figures as data, and verdicts on what the papers state.

Integers = NDArray[np.int64]

EPSILONS = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)
"""The papers' range: from 0.5 to 2."""


@dataclass(frozen=True, slots=True)
class Hat:
    """One HAT: its counts by plate, and its speeds in quanta, plate by plate in the order of the counts."""

    counts: SamplesPerPlate
    samples: Integers

    @property
    def mean(self) -> float:
        """The truth, in quanta."""
        return float(self.samples.mean())


@dataclass(frozen=True)
class DataSet:
    """HATs with their speeds, the public range of a speed, and who was where in the busiest slot.

    `recorded`: of real pings; then the baseline guess (`constant`) is their city-wide mean. Data drawn in a feed's
    likeness are given the feed's, in quanta. Data without a city have U/2. `positions`: where a feed's plates were;
    `whole`: who was where in all of its HATs.
    """

    name: str
    recorded: bool
    range: Range
    hats: tuple[Hat, ...]
    busiest_slot: Occupancy | None = None
    city_mean: float | None = None
    positions: Positions | None = None
    whole: Occupancy | None = None

    @cached_property
    def total(self) -> int:
        """All samples."""
        return sum(hat.counts.total for hat in self.hats)

    @cached_property
    def constant(self) -> float:
        """The baseline guess of every HAT's mean, in quanta."""
        if self.recorded:
            return sum(float(hat.samples.sum()) for hat in self.hats) / self.total
        return self.range.low + self.range.width / 2 if self.city_mean is None else self.city_mean

    @property
    def constant_is(self) -> str:
        """In words."""
        if self.recorded:
            return "city-wide mean"
        return "U/2" if self.city_mean is None else "the feed's city-wide mean"

    @cached_property
    def busiest(self) -> Hat:
        """The HAT with most samples, the first of them on ties."""
        return max(self.hats, key=lambda hat: hat.counts.total)

    def of_at_least(self, plates: int) -> tuple[Hat, ...]:
        """The HATs with at least this many plates."""
        return tuple(hat for hat in self.hats if hat.counts.plates >= plates)

    def share(self, hats: Sequence[Hat]) -> float:
        """The share of all samples that lie in these HATs."""
        return sum(hat.counts.total for hat in hats) / self.total

    def constant_error_kmh(self, hats: Sequence[Hat]) -> float:
        """How far the baseline guess is off the means of these HATs, weighed by samples."""
        errors = [abs(hat.mean - self.constant) for hat in hats]
        return float(np.average(errors, weights=[hat.counts.total for hat in hats])) / QUANTA_PER_KMH


@dataclass(frozen=True, slots=True)
class Setup:
    """What an experiment is run on. `bits(name)` gives a stream of bits that follows from the name alone."""

    data: tuple[DataSet, ...]
    repetitions: int
    min_plates: int
    seed: int
    bits: Callable[[str], Bits]

    @property
    def positions(self) -> tuple[Positions, ...]:
        """Those of the feeds."""
        return tuple(data.positions for data in self.data if data.positions is not None)

    def rng(self, name: str) -> np.random.Generator:
        """For drawing data (never noise); follows from the seed and the name."""
        return np.random.default_rng([self.seed, *name.encode()])


NOT_STATED = "not stated by them; the baseline guess"
"""Where a verdict beside the baseline guess is from."""

Row = Any
"""A frozen dataclass; its fields are the columns of its table."""

Job = Callable[[], Sequence[Row]]


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a panel. A `guess` is the baseline guess; `marks` are points without a line."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    kind: Literal["curve", "guess", "marks"] = "curve"


def curve(name: str, rows: Sequence[Row], x: str, y: str, kind: Literal["curve", "guess"] = "curve") -> Curve:
    """The line of two columns."""
    xs, ys = (tuple(float(getattr(row, column)) for row in rows) for column in (x, y))
    return Curve(name, xs, ys, kind)


@dataclass(frozen=True, slots=True)
class Panel:
    """Axes with their units, and curves. Logarithmic only where every value is positive."""

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """Panels side by side, one file each of PNG and SVG."""

    name: str
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of one kind, one file of CSV."""

    name: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is stated, where, whether our numbers agree, and what they are; `why` when they do not, or with care."""

    statement: str
    source: str
    agrees: bool
    seen: str
    why: str = ""

    def __str__(self) -> str:
        """In words."""
        head = "AGREES " if self.agrees else "DIFFERS"
        why = f" Why: {self.why}" if self.why and not self.agrees else ""
        return f"{head} {self.statement} ({self.source}). Seen: {self.seen}.{why}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an experiment found."""

    tables: tuple[Table, ...]
    figures: tuple[Figure, ...]
    verdicts: tuple[Verdict, ...]


@dataclass(frozen=True, slots=True)
class Experiment:
    """A named experiment: work in pieces, then what follows from all rows."""

    name: str
    about: str
    jobs: Callable[[Setup], list[Job]]
    conclude: Callable[[Setup, Sequence[Row]], Outcome]


def slug(name: str) -> str:
    """A name that can be a file's."""
    words = "".join(c if c.isalnum() else " " for c in name).split()
    return "-".join(words)


# Data drawn as the papers say (arXiv 2401.15906, Section IV-C): Gaussian speeds clipped to [0, U], scaled counts.

ITMS_TOTAL, ITMS_LARGEST, ITMS_MEDIAN = 17_166, 417, 46
"""Published of the papers' HAT: samples in all, of the largest user, of the median user; U = 65 km/h."""

ITMS_MEAN_KMH, ITMS_SD_KMH = 20.66769, 15.0
"""The mean is published. The standard deviation is not: 15 km/h is that of the Surat feed at hand (14.8)."""

ITMS_USERS, ITMS_SPREAD = 249, 0.92
"""Not published: fitted. A lognormal about the median with these has the published total and K = 160 arrays."""

ITMS_MAX_KMH = 65

LAMBDA = 10
"""The papers' scaling factor."""


def itms_counts() -> Integers:
    """Counts with all that is published of the papers' HAT: total, largest, median, and K = 160 at their cap."""
    normal = NormalDist()
    spread = np.exp([ITMS_SPREAD * normal.inv_cdf((i + 0.5) / ITMS_USERS) for i in range(ITMS_USERS)])
    counts = np.clip(np.round(ITMS_MEDIAN * spread), 1, ITMS_LARGEST).astype(np.int64)
    missing = ITMS_TOTAL - int(counts.sum())
    below_largest = np.flatnonzero(counts < ITMS_LARGEST)[::-1]
    counts[below_largest[:missing]] += 1
    return counts


def gaussian_hat(counts: Integers, mean_kmh: float, sd_kmh: float, range: Range, rng: np.random.Generator) -> Hat:
    """Independent speeds for these counts, normal and clipped to [0, U] (quanta)."""
    speeds = rng.normal(mean_kmh * QUANTA_PER_KMH, sd_kmh * QUANTA_PER_KMH, int(counts.sum()))
    return Hat(SamplesPerPlate(counts), np.clip(np.round(speeds), range.low, range.high).astype(np.int64))


def itms_like(rng: np.random.Generator) -> DataSet:
    """The papers' HAT in its likeness, as their own data are not public."""
    range = Range(0, ITMS_MAX_KMH * QUANTA_PER_KMH)
    hat = gaussian_hat(itms_counts(), ITMS_MEAN_KMH, ITMS_SD_KMH, range, rng)
    return DataSet("ITMS-like", False, range, (hat,))


HEAVY_HATS = 12
"""The slides' synthetic city: a loss of 12 epsilon before, from a single heavy hitter."""


def heavy_hitter_city(rng: np.random.Generator) -> Occupancy:
    """One plate in all twelve HATs, each other one in one to three; HATs of 8 to 60 plates, geometric counts.

    What the slides do not give is ours: the sizes of HATs, the counts, and that others visit up to three.
    """
    rows: set[tuple[int, int]] = {(hat, 0) for hat in range(HEAVY_HATS)}
    plate = 1
    for hat, size in enumerate(np.linspace(8, 60, HEAVY_HATS).astype(int).tolist()):
        for _ in range(size):
            others = rng.choice(HEAVY_HATS, int(rng.integers(0, 3)), replace=False).tolist()
            rows.update((place, plate) for place in {hat, *others})
            plate += 1
    hats, plates = np.array(sorted(rows)).T  # a set has no order, and searchsorted needs one
    return Occupancy(
        np.searchsorted(hats, np.arange(HEAVY_HATS + 1)), plates, 1 + rng.geometric(1 / 20, hats.size), plate
    )
