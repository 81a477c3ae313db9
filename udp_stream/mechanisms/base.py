"""Types that all mechanisms share: samples per plate, the range of speeds, terms, protocols."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from udp_stream.base.arrays import Flags, Floats, Integers
from udp_stream.base.units import QUANTA_PER_KMH
from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.noise import MEASURES, Cost, Lattice, Noise, require_measure
from udp_stream.mechanisms.widths import USUAL, ClipWidth

# Pseudo-users: the samples of a HAT grouped into arrays, from counts alone (arXiv 2401.15906,
# Section III-A).
#
# The papers' *user* is a plate. With a cap m, plate l gives its first min(m_l, m) samples. BestFit
# packs whole plates into arrays of length m, so that a plate touches a single array; WrapAround
# pours the plates in turn and keeps the full arrays, so that a plate touches at most two. Plates
# are taken by non-increasing counts, ties as they came.


class SamplesPerPlate:
    """How many samples each plate has in a HAT, and what follows from that.

    `by_plate` holds positive integers in the plates' canonical order. Public under swap-values.

    >>> counts = SamplesPerPlate(np.array([5, 2, 9]))
    >>> counts.plates, counts.total, counts.largest, counts.median, counts.kept(4)
    (3, 16, 9, 5, 10)
    """

    def __init__(self, by_plate: Integers) -> None:
        """Raise ValueError unless there is a plate and each has a sample."""
        if by_plate.size == 0 or by_plate.min() < 1:
            raise ValueError("expected at least one plate, each with at least one sample")
        self.by_plate = by_plate
        self.plates = int(by_plate.size)
        self.total = int(by_plate.sum())
        self.largest = int(by_plate.max())

    @cached_property
    def order(self) -> Integers:
        """Plates by non-increasing count, ties as they came."""
        return (-self.by_plate).argsort(kind="stable")

    @cached_property
    def descending(self) -> Integers:
        return self.by_plate.take(self.order)

    @cached_property
    def median(self) -> int:
        """The largest value that at least half of the plates reach: the papers' med, exactly
        ceil(L/2) of them."""
        return int(self.descending[(self.plates + 1) // 2 - 1])

    def kept(self, cap: int) -> int:
        """How many samples remain when every plate gives at most `cap`."""
        return int(np.minimum(self.by_plate, cap).sum())

    @cached_property
    def kept_at_every_count(self) -> Integers:
        ascending = self.descending[::-1]
        below = ascending.cumsum() - ascending
        return (below + ascending * np.arange(self.plates, 0, -1))[::-1]

    def errors_at_every_count(self, noise: float) -> Floats:
        """Worst-case errors E(m) = 1 - G/M + m noise / G, m each entry of `descending`, where caps
        leave G of the M samples.

        The worst case of what is dropped, plus noise whose expected size is m `noise` (arXiv
        2405.06261).
        """
        kept = self.kept_at_every_count
        return 1 - kept / self.total + self.descending * noise / kept

    def worst_case_cap(self, noise: float) -> int:
        """m^(eps): the count of least E(m), the largest of equal counts (slides, equation 1; arXiv
        2401.15906).

        `noise` is the expected size of noise for a sensitivity of 1. E is concave between two
        counts.
        """
        return int(self.descending[int(self.errors_at_every_count(noise).argmin())])

    @cached_property
    def place_of_sample(self) -> NDArray[np.int32]:
        """How many of its plate's samples come before each sample of the HAT, plate by plate, shape
        (samples,)."""
        # 32 bits hold it: a HAT has at most 2**28 samples (`slot_tables.PINGS_MAX`).
        starts = (np.cumsum(self.by_plate) - self.by_plate).astype(np.int32)
        return np.arange(self.total, dtype=np.int32) - np.repeat(starts, self.by_plate)


@dataclass(frozen=True, slots=True)
class Arrays:
    """A grouping: plate l goes whole into array `of_plate[l]`; array i holds `filled[i]` samples.

    >>> best_fit(SamplesPerPlate(np.array([3, 2, 1])), cap=3).filled.tolist()  # the second array holds two plates
    [3, 3]
    """

    cap: int
    of_plate: Integers
    filled: Integers

    @property
    def count(self) -> int:
        """The number of non-empty arrays, the papers' K-bar."""
        return int(self.filled.size)


def best_fit(counts: SamplesPerPlate, cap: int) -> Arrays:
    """Put every plate whole into the fullest array with room for it, lowest index on ties; O(L log
    L).

    Source: arXiv 2401.15906, Section III-A 2. Arrays wait in heaps by their free room.
    """
    sizes = np.minimum(counts.descending, cap)
    smallest = int(sizes[-1])
    # The first plates leave no room that another could use: each has an array of its own.
    alone = int((-sizes).searchsorted(smallest - cap - 1, side="right"))
    of_sorted = list(range(alone))
    filled = sizes[:alone].tolist()
    rooms: list[int] = []
    waiting: dict[int, list[int]] = {}
    for size in sizes[alone:].tolist():
        at = bisect_left(rooms, size)
        if at == len(rooms):
            array = len(filled)
            room = cap
            filled.append(0)
        else:
            room = rooms[at]
            heap = waiting[room]
            array = heappop(heap)
            if not heap:
                del rooms[at], waiting[room]
        of_sorted.append(array)
        filled[array] += size
        room -= size
        if room >= smallest:
            if room not in waiting:
                waiting[room] = []
                insort(rooms, room)
            heappush(waiting[room], array)
    of_plate = np.empty(counts.plates, dtype=np.int64)
    of_plate[counts.order] = of_sorted
    return Arrays(cap, of_plate, np.array(filled, dtype=np.int64))


def wrap_around_count(counts: SamplesPerPlate, cap: int) -> int:
    """Number K of full arrays under WrapAround: floor(sum min(m_l, cap) / cap)."""
    return counts.kept(cap) // cap


def wrap_around_positions(counts: SamplesPerPlate, cap: int) -> Integers:
    """Samples that fill the K arrays, in order: indices into the HAT's samples (plate by plate), K
    * cap of them.

    Array i holds the positions i * cap to (i + 1) * cap of the result. Source: arXiv 2401.15906,
    Section III-A 1.
    """
    starts = np.cumsum(counts.by_plate) - counts.by_plate
    sizes = np.minimum(counts.descending, cap)
    used = wrap_around_count(counts, cap) * cap
    first = np.repeat(starts.take(counts.order) - (np.cumsum(sizes) - sizes), sizes)[:used]
    return first + np.arange(used)


def wrap_around_given(counts: SamplesPerPlate, cap: int) -> Integers:
    """How many of each plate's samples are among those K * cap: always its first samples, as
    pouring stops once."""
    sizes = np.minimum(counts.descending, cap)
    poured_before = np.cumsum(sizes) - sizes
    given = np.empty(counts.plates, dtype=np.int64)
    given[counts.order] = np.clip(wrap_around_count(counts, cap) * cap - poured_before, 0, sizes)
    return given


def first_samples(counts: SamplesPerPlate, given: Integers | int) -> Flags:
    """Mask of the HAT's samples (plate by plate) that are among their plate's first `given[plate]`,
    or first `given`."""
    most = given if isinstance(given, int) else np.repeat(given, counts.by_plate)
    return counts.place_of_sample < most


# The public range of a value: samples are clipped to it, and its width bounds what a plate can
# change.
#
# A range is fixed before anything is seen that it is to protect: from configuration, or from what
# has been released. Means and variances see samples only through `above_low`, so their sensitivity
# follows from the width, whatever comes in. (A CDF counts samples in bins: its edges are its range,
# and its sensitivity does not depend on them.)


@dataclass(frozen=True, slots=True)
class Range:
    """The integers low..high, in quanta; ValueError unless low < high.

    >>> Range(0, 65 * 4096).width
    266240
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"expected a range with low < high, got {self.low} and {self.high}")

    @property
    def width(self) -> int:
        """How far a value can move: the papers' U."""
        return self.high - self.low

    def clip(self, value: float) -> float:
        return min(max(value, float(self.low)), float(self.high))

    def above_low(self, samples: NDArray[Any]) -> NDArray[Any]:
        """Samples put into the range and counted from its low end: integers in 0..width."""
        counted = samples - self.low if self.low else samples
        # Half of what np.clip takes.
        above: NDArray[Any] = np.minimum(np.maximum(counted, 0), self.width)
        return above


Grouping = Literal["best-fit", "wrap-around"]

CompareAt = Literal["epsilon", "charge"]

STEPS_PER_KMH = 64
"""Forecasts are kept in steps of 1/64 km/h, two bytes each: far finer than they are right."""


class Choice(msgspec.Struct, frozen=True, omit_defaults=True):
    """The mechanism that was chosen, and the most samples that a plate gives; of a CDF its bins
    too.

    `bins` is a number of equal bins, next to a bin of exact zeros if `zeros_apart`; 0 where edges
    are configured.

    >>> Choice("tree", cap=9, bins=65, zeros_apart=True).bins
    65
    """

    mechanism: str
    cap: int
    bins: int = 0
    zeros_apart: bool = False

    def cap_among(self, counts: SamplesPerPlate) -> int:
        """The cap for these counts. If the largest has become smaller, each plate gives all its
        samples."""
        return max(1, min(self.cap, counts.largest))


class ForecastClipTerms(msgspec.Struct, frozen=True, omit_defaults=True):
    """Forecasts that a mean is clipped around: the forecast of the HAT and of each plate that is
    offered, in steps of 1/64 km/h.

    `plates` has two bytes for each, little-endian; `half_width`, `gain`, `hidden`, `ball` and
    `hats` are a `ClipWidth`. It is made from public values, and kept with the terms.

    >>> ForecastClipTerms.of(18.0, np.array([17.5, 20.0])).plates_quanta.tolist()
    [71680, 81920]
    """

    hat: int
    plates: bytes
    half_width: float = USUAL.half_width
    gain: float = USUAL.gain
    hidden: float = USUAL.hidden
    ball: bool = False
    hats: int = 1

    @staticmethod
    def of(hat_kmh: float, plates_kmh: Floats, width: ClipWidth = USUAL) -> ForecastClipTerms:
        """Terms of these speeds, rounded to steps; speeds are in [0, 1023] km/h."""
        steps = np.rint(plates_kmh * STEPS_PER_KMH).astype("<u2")
        return ForecastClipTerms(round(hat_kmh * STEPS_PER_KMH), steps.tobytes(), *width)

    @property
    def hat_quanta(self) -> int:
        return self.hat * (QUANTA_PER_KMH // STEPS_PER_KMH)

    @property
    def width(self) -> ClipWidth:
        return ClipWidth(self.half_width, self.gain, self.hidden, self.ball, self.hats)

    @property
    def plates_count(self) -> int:
        return len(self.plates) // 2

    @property
    def plates_quanta(self) -> Integers:
        return np.frombuffer(self.plates, "<u2").astype(np.int64) * (
            QUANTA_PER_KMH // STEPS_PER_KMH
        )


class StatisticTerms(msgspec.Struct, frozen=True, omit_defaults=True):
    """Cost that a statistic may have, how it is to be taken, and the choice that followed.

    `epsilon_nano` are nano-units of `measure`. `mechanism` may be "auto"; `compare_at` is what
    "auto" holds equal between mechanisms. Without a `choice` a plan has to search for it.

    >>> StatisticTerms("mean", 10**9, choice=Choice("baseline", 12)).at(2 * 10**9)
    StatisticTerms(statistic='mean', epsilon_nano=2000000000, mechanism='auto', grouping='best-fit', \
compare_at='epsilon', measure='pure', choice=None, around=None)
    """

    statistic: str
    epsilon_nano: int
    mechanism: str = "auto"
    grouping: Grouping = "best-fit"
    compare_at: CompareAt = "epsilon"
    measure: str = "pure"
    choice: Choice | None = None
    around: ForecastClipTerms | None = None

    def __post_init__(self) -> None:
        require_measure(self.measure)

    @property
    def cost(self) -> Cost:
        return Cost(self.measure, self.epsilon_nano)

    def at(self, epsilon_nano: int) -> StatisticTerms:
        """The same at another epsilon. What is best there is another question: the choice is open
        again."""
        return msgspec.structs.replace(self, epsilon_nano=epsilon_nano, choice=None)

    def chosen(self, choice: Choice) -> StatisticTerms:
        return self if self.choice is not None else msgspec.structs.replace(self, choice=choice)


# What the statistics of a HAT share. Privacy unit: license plate. Neighbours: swap-values. A
# statistic is a vector of integers, each with noise of a scale that is fixed by its plan, or by a
# private choice that the plan has paid for. Plans come from counts, settings and cost. Whatever is
# computed from the noisy integers is post-processing. Every mechanism must pass tests in
# `tests/privacy/`: brute force of its sensitivity, a distribution test, an audit.

RequestedBins = Literal["auto"] | int | tuple[float, ...]
"""Bins of a CDF, as configured: "auto", a number of equal bins, or edges in km/h."""

Branching = Literal["auto"] | tuple[int, ...]
"""Branching of a CDF's tree, from the root down; "auto" is that of least error."""

Levels = Literal["best", "even"]
"""Levels of a configured tree: budgets of least error, or the paper's plain estimate at even
budgets."""

Cap = Literal["median", "worst-case"]
"""Cap of Array-Averaging: the median count, or the cap of least worst-case error."""


class PublicSettings(NamedTuple):
    """Public settings of statistics: the range of speeds, in quanta, the bins and the tree of CDFs,
    and Array-Averaging's cap.

    >>> PublicSettings(Range(0, 65 * 4096)).bins
    'auto'
    """

    range: Range
    bins: RequestedBins = "auto"
    branching: Branching = "auto"
    cap: Cap = "median"
    levels: Levels = "best"


class StatisticPlan(Protocol):
    """How a statistic of a HAT will be taken, from counts and settings only.

    >>> from udp_stream.mechanisms.variance import plan_variance
    >>> counts = SamplesPerPlate(np.array([2, 1]))
    >>> plan: StatisticPlan = plan_variance(counts, Cost("pure", 10**9), Range(0, 10))
    >>> plan.choice.mechanism, plan.charges.tolist()
    ('clipped-variance', [1000000000, 1000000000])
    """

    @property
    def counts(self) -> SamplesPerPlate:
        """Counts of the plates that it is for."""

    @property
    def choice(self) -> Choice:
        """The mechanism's choice: with counts and terms it makes the same plan again."""

    @property
    def noise(self) -> Noise:
        """The family that its noise is of."""

    @property
    def charges(self) -> Integers:
        """Loss of each plate, nano-units rounded up, in the order of the counts, shape
        (plates,)."""


_ONE = np.ones(1, dtype=np.int64)
_ONE.flags.writeable = False  # all queries of single integers share it


class Query(msgspec.Struct, frozen=True, eq=False):
    """The exact integers of a statistic, and the scale t/s of the noise that each is to get.

    `lattice` is that to which a single integer was rounded; `projected_to` the private interval [a,
    b] in quanta that was paid for on the way, if any.

    >>> Query(integers=np.array([13, 4]), t=np.array([8, 8]), s=np.array([1, 1])).projected_to is None
    True
    """

    integers: Integers
    t: Integers
    s: Integers
    lattice: Lattice | None = None
    projected_to: tuple[int, int] | None = None

    @staticmethod
    def of_one(
        statistic: int, lattice: Lattice, projected_to: tuple[int, int] | None = None
    ) -> Query:
        """A single integer, rounded to the lattice of its noise."""
        return Query(
            np.array([lattice.project(statistic)]),
            np.array([lattice.t]),
            _ONE,
            lattice,
            projected_to,
        )

    @property
    def scale(self) -> float:
        """The noise's scale in the statistic's own unit; ValueError for a vector."""
        return self._lattice.scale

    def noisy_value(self, noisy: Integers) -> int:
        """A single noisy integer, back in the statistic's own unit; ValueError for a vector."""
        return int(noisy[0]) << self._lattice.shift

    @property
    def _lattice(self) -> Lattice:
        if self.lattice is None:
            raise ValueError("expected the query of a single integer, got that of a vector")
        return self.lattice


def noisy_integers(queries: Sequence[Query], family: Noise, bits: Bits) -> list[Integers]:
    """The integers of every query with their noise, which a single call draws."""
    t = np.concatenate([query.t for query in queries])
    s = np.concatenate([query.s for query in queries])
    noisy = np.concatenate([query.integers for query in queries]) + family.draw(bits, t, s)
    ends = np.cumsum([0, *(query.integers.size for query in queries)]).tolist()
    return [noisy[start:end] for start, end in pairwise(ends)]


class NoisyValue(NamedTuple):
    """A value with its noise's expected size, and the private interval [a, b] that it was projected
    to, if it was.

    A mean may lie beyond the range.

    >>> NoisyValue(-0.5, scale=2.0).value
    -0.5
    """

    value: float
    scale: float
    projected_to: tuple[int, int] | None = None


P = TypeVar("P", bound=StatisticPlan)
V = TypeVar("V")


class Statistic(ABC, Generic[P, V]):
    """A statistic that HATs can have, and all that the rest of the software knows of it.

    `P` is its plan, `V` its value from noisy integers. `of` is its own name, unless it is another
    way to take a statistic: then it has the price, and fills the field of a record, of the
    statistic that `of` names. `plural` is its name in sentences. `epsilon` is its cost where
    settings have no key `release.NAME_epsilon`: "auto" is the mean's price. `degree` is the power
    of speed that it is in; 0 where suppression compares no worst cases of it.

    >>> from udp_stream.mechanisms.statistics import MeanStatistic
    >>> class Named(MeanStatistic):
    ...     name = "mean again"
    >>> counts, asked = SamplesPerPlate(np.array([2, 1])), StatisticTerms("mean again", 10**9)
    >>> Named().plan(counts, asked, PublicSettings(Range(0, 65 * 4096))).charges.max() <= 10**9
    np.True_
    """

    name: ClassVar[str]
    of: ClassVar[str]
    plural: ClassVar[str]
    epsilon: float | Literal["auto"] = 0.0
    degree: ClassVar[int] = 0

    @abstractmethod
    def plan(self, counts: SamplesPerPlate, asked: StatisticTerms, public: PublicSettings) -> P:
        """Plan the statistic of a HAT, from counts and settings alone.

        Args:
            counts: Samples of each plate.
            asked: The terms: cost, mechanism and, where it was made before, the choice. Without a
                choice the best for these counts is taken.
            public: Range, bins and the other public settings.

        Returns:
            The plan, which has each plate's charge.

        Raises:
            ValueError: For terms that the counts do not allow.
        """

    def at(self, plan: P, asked: StatisticTerms, public: PublicSettings) -> P:
        """The plan that `plan` gives for the same plates at another epsilon; neither terms have a
        choice."""
        return self.plan(plan.counts, asked, public)

    @abstractmethod
    def subset(self, plan: P, admitted: Flags) -> P:
        """The plan for those of its plates that the ledger admitted, each within its charge."""

    @abstractmethod
    def query(self, plan: P, samples: Integers, bits: Bits) -> Query:
        """The integers of the samples (plate by plate, in the order of the counts); bits pay for
        private choices."""

    def values(
        self, plans: Sequence[P], queries: Sequence[Query], noisy: Sequence[Integers]
    ) -> Sequence[V]:
        """Released values of many HATs, each from its noisy integers alone: post-processing.

        The implementation here serves statistics of a single integer, whose plans have a `divisor`
        and make a `value` of it.

        Args:
            plans: A plan for each HAT.
            queries: What each plan asked of the samples.
            noisy: The integers of each query with their noise.

        Returns:
            A value for each HAT, in the order of the plans.
        """
        rows: Iterable[tuple[Any, Query, Integers]] = zip(plans, queries, noisy, strict=True)
        found: list[Any] = []
        for plan, query, integers in rows:
            size = plan.noise.expected_abs(query.scale) / plan.divisor
            found.append(
                NoisyValue(plan.value(query.noisy_value(integers)), size, query.projected_to)
            )
        return found

    @abstractmethod
    def record(self, plan: P, value: V, left_out: Integers) -> msgspec.Struct:
        """Fields of a release record, rounded after the noise; `left_out`: counts of plates outside
        it."""

    def worst_case(self, plan: P, samples: int) -> float:  # noqa: ARG002
        """The most that it can be off, bias and expected noise, of a HAT of so many samples: in
        quanta**degree."""
        return 0.0

    def columns(self, plan: P, bits: Bits) -> list[tuple[str, str]]:  # noqa: ARG002
        """Columns of `udp-stream plan`: headings and cells. `bits` are for errors that take a
        simulation."""
        return []

    def why(self, plan: P, asked: StatisticTerms) -> str:  # noqa: ARG002
        return ""


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a record. The text below a field describes it in the record's JSON Schema."""


NonNegative = Annotated[float, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


def epsilon_stated(cost: Cost) -> float:
    """The epsilon of a statistic: of a rho, that of pure noise that costs as much, as
    configurations have it."""
    return MEASURES[cost.measure].epsilon_of_price(cost.nano)
