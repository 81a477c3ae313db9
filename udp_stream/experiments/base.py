"""What all experiments share: data sets, tables, figures as data, and verdicts on what the papers state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from udp_stream.experiments.positions import Positions
from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.grouping import SamplesPerPlate
from udp_stream.mechanisms.range import Range
from udp_stream.planning.worst_case import Occupancy
from udp_stream.units import QUANTA_PER_KMH

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
    likeness are given the feed's, in quanta. Data without a city have U/2. `positions`: where a feed's plates were.
    """

    name: str
    recorded: bool
    range: Range
    hats: tuple[Hat, ...]
    busiest_slot: Occupancy | None = None
    city_mean: float | None = None
    positions: Positions | None = None

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
    """A name that can be a file's.

    >>> slug("austin-2015.ndjson, samples x10")
    'austin-2015-ndjson-samples-x10'
    """
    words = "".join(c if c.isalnum() else " " for c in name).split()
    return "-".join(words)
