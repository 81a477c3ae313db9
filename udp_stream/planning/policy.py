"""Budgets of a deployment: periods and their names, allowances, a joint budget of speeds and
positions, `Policy`, calendars.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import ROUND_CEILING, Decimal
from fractions import Fraction
from functools import cached_property, lru_cache
from hashlib import blake2b
from math import ceil, floor, inf, isfinite
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from udp_stream.base.arrays import Floats, Integers
from udp_stream.base.units import (
    NANO,
    QUANTA_PER_KMH,
    amount_text,
    duration_name,
    parse_duration,
    plain,
)
from udp_stream.ledger.filters import Loss
from udp_stream.ledger.port import Ledger
from udp_stream.ledger.rules import ROLLING, span_name, span_of
from udp_stream.mechanisms.base import Branching, Cap, Levels, PublicSettings, Range, RequestedBins
from udp_stream.mechanisms.noise import MEASURES, Measure
from udp_stream.planning.promise import ACCOUNTINGS, NEIGHBOURS, Accounting, NeighbourRelation
from udp_stream.windows.grid import Grid
from udp_stream.windows.tables import SlotGrid

# Budget periods: a balance belongs to a period's name, such as `1d from 2024-01-08T00:00:00+05:30`.
# Other zones, lengths and measures have other names (of rho they end in ` in rho`), hence other
# balances.
#
# Privacy: the unit is a plate with all its pings in a period. By releases charged to the period it
# loses at most the period's budget; by releases charged to a period that overlaps it, the
# overlapping period's budget too (basic composition).
#
# 1. A period lasts from its start to the next multiple of its length on the wall clock, at the
#    offset of its start. `lifetime`, and a name that cannot be read, is all of time.
# 2. Where a zone sets its clock forward, a period is shorter than that, and would overlap the next
#    one. Two periods of equal length that follow each other on the wall clock, at offsets that
#    differ by at most an hour, count as periods of the same calendar, which do not overlap. A
#    change to a zone that is up to an hour further east looks the same. Periods of positions
#    (`positions 1d from ...`) hold the costs of standing queries, by distance. They never overlap
#    periods of speeds: the losses are stated side by side, or added by `OneBudget`. Periods of
#    whole plates ("add-remove") end in ` of whole plates`: they overlap all others, positions among
#    them.
# 3. Spans of a rolling budget are a balance, window by window: they do not overlap. Any other
#    period overlaps a span if some window touches both. A stretch of time allows a budget for each
#    window's length in it.

CLOCK_CHANGE_S = 3600
DAY_S = 86_400

POSITIONS = "positions "
"""The prefix of periods of positions, whose balances are per kilometre, or per square kilometre."""


class Period(NamedTuple):
    """A budget period: Unix seconds from `start` to before `end`, both infinite where the name
    tells no time; `offset` from UTC.

    `window` is the length of the windows of a rolling budget, in seconds, 0 in a calendar.

    >>> Period("a", 0.0, 10.0).overlaps(Period("b", 9.0, 20.0)), Period("a", 0.0, 10.0).end
    (True, 10.0)
    >>> Period("a", 0.0, 10.0, window=5.0).overlaps(Period("b", 14.0, 20.0))
    True
    """

    name: str
    start: float = -inf
    end: float = inf
    offset: float = 0.0
    window: float = 0.0

    def overlaps(self, other: Period) -> bool:
        """Whether they share time or a window, and are not of the same calendar or rolling
        budget."""
        hides_all = ending_of(self.name) or ending_of(other.name)
        if is_of_positions(self.name) != is_of_positions(other.name) and not hides_all:
            return False
        both = min(self.end, other.end) - max(self.start, other.start)
        window = max(self.window, other.window)
        if window:
            is_one = self.window == other.window and length_of(self.name) == length_of(other.name)
            return both + window > 0 and not is_one
        return both > 0 and self.name != other.name and not self._is_followed(other, both)

    def _is_followed(self, other: Period, both: float) -> bool:
        change = abs(self.offset - other.offset)
        lengths = [length_of(one.name) for one in (self, other)]
        walls = sorted((one.start + one.offset, one.end + one.offset) for one in (self, other))
        shifted = both <= change <= CLOCK_CHANGE_S and both < min(
            self.end - self.start, other.end - other.start
        )
        return lengths[0] == lengths[1] and walls[0][1] <= walls[1][0] and shifted


@lru_cache(maxsize=2**16)
def period_of(name: str) -> Period:
    """The times of a period."""
    if (span := span_of(name)) is not None:
        return Period(name, span.start, span.end, window=span.seconds)
    text = without_measure(name)
    length, _, start = (
        text.removesuffix(ending_of(name)).removeprefix(POSITIONS).partition(" from ")
    )
    try:
        begins = datetime.fromisoformat(start)
        seconds = parse_duration(length)
    except ValueError:
        return Period(name)
    offset = begins.utcoffset()
    if offset is None:
        return Period(name)
    # Where the clock skips a period's first hour, it begins later and ends where it would have.
    into = (begins.hour * 3600 + begins.minute * 60 + begins.second) % min(seconds, DAY_S)
    return Period(
        name, begins.timestamp(), begins.timestamp() + seconds - into, offset.total_seconds()
    )


def overlapping(period: str, known: Iterable[str]) -> tuple[str, ...]:
    """The known periods that overlap this period, sorted."""
    ours = period_of(period)
    return tuple(sorted(name for name in set(known) if ours.overlaps(period_of(name))))


def overlaps_of(names: Iterable[str]) -> dict[str, set[str]]:
    """The periods that overlap each period, by name."""
    found: dict[str, set[str]] = {name: set() for name in names}
    going: list[Period] = []
    periods = sorted(map(period_of, found), key=lambda one: (one.start, one.name))
    window = max((one.window for one in periods), default=0)
    for period in periods:
        going = [one for one in going if one.end + window > period.start]
        for other in going:
            if period.overlaps(other):
                found[period.name].add(other.name)
                found[other.name].add(period.name)
        going.append(period)
    return found


YEAR_DAYS = 365


def year_nano(length: str, nano: int) -> int:
    """The budgets of all periods of this length that any 365 whole days touch, of rolling windows
    as many as cover them: amounts of a measure add up. A length that cannot be read counts once.

    >>> [year_nano(length, 1) for length in ("12h", "1d", "30d", "rolling 30d", "lifetime")]
    [730, 365, 14, 13, 1]
    """
    try:
        seconds = parse_duration(length.removeprefix(ROLLING))
    except ValueError:
        return nano
    year = YEAR_DAYS * DAY_S
    if seconds <= DAY_S or length.startswith(ROLLING):
        return nano * ceil(year / seconds)
    return nano * (ceil((year - DAY_S) / seconds) + 1)


def day_nano(length: str, nano: int) -> int:
    """An even day's part of the budget of a period of several days; else the budget.

    >>> day_nano("30d", 300), day_nano("12h", 300), day_nano("rolling 30d", 300)
    (10, 300, 300)
    """
    try:
        days = int(parse_duration(length) // DAY_S)
    except ValueError:
        return nano
    return nano // max(1, days)


def over_time(measure: str, length: str, nano: int, delta: float) -> dict[str, float]:
    """Epsilons of an even day and of a year, where a period has several days; else nothing."""
    day = day_nano(length, nano)
    if day == nano:
        return {}
    implied = MEASURES[measure].implied_epsilon
    return {
        "day_epsilon": implied(day, delta),
        "year_epsilon": implied(year_nano(length, nano), delta),
    }


def name_in(measure: str, name: str) -> str:
    """The period's name with its measure."""
    return name + MEASURES[measure].ending


def is_of_positions(name: str) -> bool:
    """Whether a period's balances are of positions, not of speeds."""
    return name.startswith(POSITIONS)


def length_of(name: str) -> str:
    """The length of a period, with the ending of its neighbours and its measure."""
    length, is_bounded, _ = name.partition(" from ")
    return length + (ending_of(name) + measure_of(name).ending if is_bounded else "")


def ending_of(name: str) -> str:
    """The ending of a period's name that tells its neighbour relation, without the measure; ""
    under "swap-values"."""
    text = without_measure(name)
    return next(
        (one.ending for one in NEIGHBOURS.values() if one.ending and text.endswith(one.ending)), ""
    )


def measure_of(name: str) -> Measure:
    """The measure of a period's losses."""
    return max(
        (one for one in MEASURES.values() if name.endswith(one.ending)),
        key=lambda one: len(one.ending),
    )


def without_measure(name: str) -> str:
    """The name of a period, or its length, without the measure."""
    return name.removesuffix(measure_of(name).ending)


def loss_in(name: str, nano: int) -> Loss:
    """An amount of a period's balances."""
    return measure_of(name).loss(nano)


def most_in(budgets: Mapping[str, int], period: str, others: Iterable[str]) -> Loss:
    """The most that a plate can lose by its pings in this period, or in any window of it, with
    overlapping periods."""
    # `others` may name the period itself: its budget counts once.
    names = [name for name in dict.fromkeys((period, *others)) if name in budgets]
    spans: dict[str, list[Period]] = {}
    for one in map(period_of, names):
        if one.window:
            spans.setdefault(length_of(one.name), []).append(one)
    ours = period_of(period)
    most = sum(
        (loss_in(name, budgets[name]) for name in names if not period_of(name).window), Loss()
    )
    for account in spans.values():
        touched = max(one.end for one in account) - min(one.start for one in account)
        windows = max(
            1, ceil(min(ours.window or ours.end - ours.start, touched) / account[0].window)
        )
        most += loss_in(account[0].name, windows * max(budgets[one.name] for one in account))
    return most


def together(budgets: Mapping[str, int]) -> dict[str, Loss]:
    """The most that a plate can lose by its pings in each period: its budget and those of
    overlapping periods."""
    return {name: most_in(budgets, name, others) for name, others in overlaps_of(budgets).items()}


# A joint budget for a plate's speeds and positions (*Adaptive Privacy Budgeting*, Liang and Yi,
# Section 5).
#
# A plate is a point of a product of spaces; two points are as far apart as their farthest
# components. Theorem 5.1 and Corollary 5.1: a mechanism on a component costs the same in the
# product, by unit of distance (squared for a rho). So charges of components add up in a single
# filter. Remark 4: data that change, as positions do, are new components. A unit of distance is a
# swapped speed, or positions `unit_m` metres apart. Two inputs are told apart by at most e^(B d), d
# the largest distance in those units.

NOTE = "one budget: "
"""The prefix of a ledger's note that both kinds had a joint budget in the period."""


def component_charge_nano(cost_nano: int, measure: str, unit: Fraction) -> int:
    """The cost of a mechanism on a component in a budget over all, rounded up (Theorem 5.1,
    Corollary 5.1).

    `cost_nano` is per unit of the component's own metric, squared for a rho; `unit` is the distance
    of a unit there.
    """
    return ceil(cost_nano * unit ** MEASURES[measure].noise.power)


class OneBudget(msgspec.Struct, frozen=True):
    """The whole of a budget, the part of it that positions have, nano-units of a measure; and its
    unit in metres.

    >>> joint = OneBudget("pure", 10 * 10**9, 2 * 10**9, Decimal(500))
    >>> joint.nano_of("positions lifetime", 4 * 10**9), joint.part_nano("lifetime"), joint.by_distance_nano
    (2000000000, 8000000000, 4000000000)
    >>> str(joint.whole), joint.said
    ('epsilon 10', '500 m count as much as a speed does')
    """

    measure: str
    whole_nano: int
    positions_nano: int
    unit_m: Decimal

    @property
    def whole(self) -> Loss:
        return MEASURES[self.measure].loss(self.whole_nano)

    @property
    def said(self) -> str:
        return f"{self.unit_m.normalize():f} m count as much as a speed does"

    @property
    def by_distance_nano(self) -> int:
        """The positions' part by kilometre, squared for a rho; rounded down."""
        return floor(self.positions_nano / self._unit_km ** MEASURES[self.measure].noise.power)

    @property
    def _unit_km(self) -> Fraction:
        return Fraction(self.unit_m) / 1000

    def part_nano(self, name: str) -> int:
        return (
            self.positions_nano if is_of_positions(name) else self.whole_nano - self.positions_nano
        )

    def nano_of(self, name: str, nano: int) -> int:
        """An amount of this period's balances in the joint budget, rounded up."""
        if not is_of_positions(name):
            return nano
        return component_charge_nano(nano, measure_of(name).name, self._unit_km)

    def most_in(self, budgets: Mapping[str, int], period: str) -> Loss:
        """The most of both kinds by pings in a period, under these budgets and both parts."""
        amounts = {name: self.nano_of(name, nano) for name, nano in budgets.items()}
        time = name_in(self.measure, without_measure(time_of(period)))
        for name in (time, f"{POSITIONS}{time}"):
            amounts[name] = max(self.part_nano(name), amounts.get(name, 0))
        return most_in(amounts, period, amounts)


def of_same_time(period: str, known: Iterable[str]) -> tuple[str, ...]:
    """The known periods of either kind that share time with this period, itself among them,
    sorted."""
    ours = time_of(period)
    times = {name: time_of(name) for name in known}
    shared = {ours, *overlapping(ours, times.values())}
    return tuple(sorted(name for name, time in times.items() if time in shared))


def time_of(period: str) -> str:
    """The name of a period without the kind of data."""
    return period.removeprefix(POSITIONS)


def noted(meta: Mapping[str, str]) -> dict[str, OneBudget]:
    """The joint budgets that a ledger remembers, by the period's time."""
    notes = sorted((name, text) for name, text in meta.items() if name.startswith(NOTE))
    return {
        name.removeprefix(NOTE): msgspec.json.decode(text, type=OneBudget) for name, text in notes
    }


def note_of(one: OneBudget) -> str:
    """The text of the note."""
    return msgspec.json.encode(one).decode()


@dataclass(frozen=True)
class PositionPeriods:
    """Periods of positions of equal length in a zone, or a single period for a lifetime; and each
    plate's budget in nano-units.

    A moment belongs to the period of the time before it: midnight's answer is of the day that ends.

    >>> from datetime import UTC
    >>> periods = PositionPeriods("zcdp", 100 * 10**9, "1d", SlotGrid(86_400, UTC))
    >>> [periods.name_at(moment) for moment in (86_400_000, 86_400_001)]
    ['positions 1d from 1970-01-01T00:00:00+00:00 in rho', 'positions 1d from 1970-01-02T00:00:00+00:00 in rho']
    >>> periods.promise
    'rho 100 per square km, per 1d'
    """

    measure: str
    budget_nano: int
    length: str
    grid: SlotGrid | None
    one_budget: OneBudget | None = None
    whole: str = ""

    @property
    def promise(self) -> str:
        amount = amount_by_distance(self.measure, self.budget_nano)
        own = f"{amount}, per {self.length}"
        return (
            own
            if self.one_budget is None
            else f"{own}; with its speeds {self.whole}, where {self.one_budget.said}"
        )

    @property
    def kind(self) -> str:
        return (
            "a share of its one budget"
            if self.one_budget
            else "a budget of its own, apart from that of speeds"
        )

    def name_at(self, moment_ms: int) -> str:
        if self.grid is None:
            return name_in(self.measure, f"{POSITIONS}lifetime")
        return name_in(
            self.measure, f"{POSITIONS}{self.length} from {self.grid.iso(self.start_of(moment_ms))}"
        )

    def start_of(self, moment_ms: int) -> int:
        """The start of the period of a moment, Unix ms; 0 of a lifetime."""
        return 0 if self.grid is None else self.grid.start_of(moment_ms - 1)

    def overlapping(self, period: str, known: Sequence[str]) -> tuple[str, ...]:
        # A millisecond later: the moment at a period's very start belongs to the period before.
        return _not_ours(overlapping(period, known), lambda start_ms: self.name_at(start_ms + 1))


def _not_ours(names: Iterable[str], named: Callable[[int], str]) -> tuple[str, ...]:
    """Periods without the name that a calendar gives at their start."""
    starts = ((name, period_of(name).start) for name in names)
    return tuple(
        name for name, start in starts if not isfinite(start) or named(round(start * 1000)) != name
    )


def amount_by_distance(measure: str, nano: int) -> str:
    """An amount of a plate's positions, with its distance."""
    return f"{MEASURES[measure].unit} {amount_text(nano)} per {MEASURES[measure].distance}"


Schedule = Literal["spread", "uniform"]

FIXED_NANO_MIN = 1000
"""A configured epsilon's smallest parts (0.04 for a level of a CDF's tree) exceed
`noise.DRAWABLE_NANO_MIN`, and an eighth, a private quantile's, is above 0: noise can be drawn at
any counts and U."""

EPSILON_NANO_MAX = 1000 * NANO
"""Most epsilon of a statistic of a HAT: with 2**28 samples, the most that a slot may hold, a
variance on its noise's lattice is at most 2**26 * 2**27 * 1000, which fits in 63 bits with room for
the noise (`noise.lattice_of`, `variance`)."""


def hat_epsilon(shares: Integers) -> int:
    """The epsilon for all plates of a HAT: the lower quartile of their shares."""
    return int(np.sort(shares)[shares.size // 4])


class PeriodSoFar(NamedTuple):
    """Nano-units and HATs that each plate was charged so far (where budgets roll, the most in any
    window), HATs now.

    >>> PeriodSoFar(np.array([40]), np.array([4]), np.array([2]), slots_gone=2, slots_left=3).visits.tolist()
    [8.0]
    """

    charged: Integers
    charges: Integers
    now: Integers
    slots_gone: int
    slots_left: int
    rolls: bool = False

    @property
    def visits(self) -> Floats:
        """Likely HATs from this slot on, at the pace of this slot, or of the period so far if that
        was faster; >= 1."""
        pace = np.maximum(self.now, self.charges / max(1, self.slots_gone))
        return np.asarray(np.maximum(1.0, self.now + pace * self.slots_left))


def shares_of(schedule: Schedule, budget_nano: int, at: PeriodSoFar) -> Integers:
    """Each plate's allowance for each of its HATs in this slot, in nano-units; never more than it
    has left.

    "spread": the rest over the likely visits. "uniform", and of a rolling budget both: an even part
    for every HAT.
    """
    left = np.maximum(0, budget_nano - at.charged)
    if schedule == "spread" and not at.rolls:
        return np.floor(left / at.visits).astype(np.int64)
    even = budget_nano / (at.visits if at.rolls else at.charges + at.visits)
    return np.clip(np.floor(even).astype(np.int64), 0, left)


Mean = Literal[
    "auto",
    "baseline",
    "array-averaging",
    "levy",
    "fixed-quantile",
    "eps-quantile",
    "optimal",
    "forecast-clip",
]
Grouping = Literal["best-fit", "wrap-around"]
Suppression = Literal["off", "chop-user"]
CountsReleased = Literal["all", "none"]
RequestedCdf = Literal["auto", "tree", "smoothed", "off"]
SpeedFrom = Literal["field", "movement"]

_FIRST = "mean", "variance", "cdf"
"""The first statistics: fingerprints and notes have their prices also where these are 0."""


class Policy(msgspec.Struct, frozen=True, dict=True):
    """A deployment's promise and its computation. Amounts are nano-units; None means "auto"; speeds
    are in quanta.

    Budget and prices are in the measure of `accounting`, a key of `ACCOUNTINGS`; `delta` converts a
    rho. `slot_seconds` and `period_seconds` are wall-clock lengths in `timezone` (`period_seconds`
    None: a lifetime); of a rolling period that of its windows, on any clock. `prices` are by
    statistic; a missing statistic is not asked for. `hats_max`: suppression leaves a plate in so
    many HATs of a slot (0: CHOP-USER decides). `source`: fields of a ping, by keys of `[source]`.
    Of "add-remove" alone: the digest of its `domain`, `interval_ms` of pings, whether `plates` are
    asked.

    >>> from udp_stream.settings import Settings
    >>> policy = Settings().policy
    >>> policy.neighbours, policy.public.bins, len(policy.fingerprint())
    ('swap-values', 'auto', 16)
    """

    grid: Grid
    slot_seconds: int
    timezone: str
    grace_ms: int
    max_speed: int
    unit: str
    reject_above_kmh: float
    box: tuple[float, float, float, float] | None
    budget_nano: int
    period: str
    period_seconds: int | None
    mean: Mean
    grouping: Grouping
    prices: dict[str, int | None]
    bins: RequestedBins
    min_plates: int
    neighbours: str = "swap-values"
    accounting: str = "pure"
    delta: float = 1e-6
    suppression: Suppression = "off"
    hats_max: int = 0
    counts_released: CountsReleased = "all"
    schedule: Schedule = "spread"
    cdf: RequestedCdf = "auto"
    source: tuple[tuple[str, str], ...] = ()
    branching: Branching = "auto"
    cap: Cap = "median"
    speed_from: SpeedFrom = "field"
    domain: str = ""
    interval_ms: int = 0
    plates: bool = False
    levels: Levels = "best"

    @cached_property
    def relation(self) -> NeighbourRelation:
        return NEIGHBOURS[self.neighbours]

    @cached_property
    def shows_counts(self) -> bool:
        return self.relation.public_counts and self.counts_released == "all"

    @cached_property
    def accounted(self) -> Accounting:
        return ACCOUNTINGS[self.accounting]

    @cached_property
    def measure(self) -> str:
        return self.accounted.measure.name

    @cached_property
    def rolls(self) -> bool:
        return self.period.startswith(ROLLING)

    @cached_property
    def days(self) -> int:
        """Parts of equal budget that a calendar's period is paced by: its days, or slots that are
        longer; 1 of a period that rolls or has no end."""
        if self.rolls or self.period_seconds is None:
            return 1
        return max(1, self.period_seconds // max(DAY_S, self.slot_seconds))

    @cached_property
    def day_nano(self) -> int:
        """The budget of an even day, rounded down."""
        return self.budget_nano // self.days

    @cached_property
    def named_period(self) -> str:
        """The length as names of periods have it, without the measure."""
        return self.period + self.relation.ending

    @cached_property
    def amount(self) -> str:
        return self.accounted.in_words(self.budget_nano, self.delta)

    @cached_property
    def promise(self) -> str:
        return f"{self.amount} per {self.period}"

    @cached_property
    def mean_nano(self) -> int | None:
        return self.prices.get("mean", 0)

    @cached_property
    def cdf_nano(self) -> int | None:
        return self.prices.get("cdf", 0)

    @cached_property
    def stated_prices(self) -> dict[str, int | None]:
        return dict.fromkeys(_FIRST, 0) | {
            name: nano for name, nano in self.prices.items() if nano != 0
        }

    @cached_property
    def automatic(self) -> int:
        """How many statistics share an allowance. Automatic trees cost a mean's price on top."""
        return list(self.prices.values()).count(None) - self.has_automatic_trees

    @cached_property
    def forecasts(self) -> bool:
        """Whether means may be taken around forecasts."""
        asked = self.mean == "forecast-clip" or (self.mean == "auto" and self.suppression == "off")
        return asked and self.mean_nano != 0

    @cached_property
    def shapes(self) -> bool:
        """Whether the city is asked for its CDF, for those of smoothed estimates."""
        return self.cdf in ("auto", "smoothed") and self.forecasts

    @cached_property
    def has_automatic_trees(self) -> bool:
        """Whether HATs may have a CDF of their own, at the mean's price."""
        return self.shapes and self.cdf_nano is None

    @cached_property
    def is_only_mean(self) -> bool:
        """Whether HATs are asked for nothing but their means, automatic trees aside."""
        asked = {name for name, nano in self.prices.items() if nano != 0} - {"mean"}
        return not asked or (asked == {"cdf"} and self.has_automatic_trees)

    @cached_property
    def has_joint_clips(self) -> bool:
        """Whether a plate's HATs of a slot share a clip."""
        return self.forecasts and self.accounted.measure.noise.power == 2

    @cached_property
    def public(self) -> PublicSettings:
        return PublicSettings(self.range, self.bins, self.branching, self.cap, self.levels)

    @cached_property
    def range(self) -> Range:
        return Range(0, self.max_speed)

    def fingerprint(self) -> str:
        """The same for equal policies, 16 hexadecimal digits; settings without effect are left out."""
        settings = msgspec.structs.asdict(self) | self.grid.policy_keys
        del settings["prices"], settings["grid"]
        settings |= {f"{name}_nano": nano for name, nano in self.stated_prices.items()}
        has_effect = {
            "counts_released": self.counts_released != "all",
            "delta": self.accounted.has_delta,
            "schedule": self.schedule != "spread",
            "cdf": self.shapes,
            "source": bool(self.source),
            "branching": self.branching != "auto",
            "cap": self.cap != "median",
            "levels": self.levels != "best",
            "speed_from": self.speed_from != "field",
            "domain": bool(self.domain),
            "interval_ms": self.interval_ms > 0,
            "plates": self.plates,
        }
        settings = {name: value for name, value in settings.items() if has_effect.get(name, True)}
        return blake2b(msgspec.json.encode(settings, order="sorted"), digest_size=8).hexdigest()


POLICY_NOTE = "policy:"
"""The prefix, before a fingerprint, of a ledger's note of a policy's keys and values. Older ledgers
have none."""


def written(policy: Policy) -> dict[str, str]:
    """Configuration keys of the policy with their values as a user writes them, and
    `neighbours`."""
    price_text = policy.accounted.measure.price_text
    prices = {
        name: "auto" if nano is None else price_text(nano)
        for name, nano in policy.stated_prices.items()
    }
    accounting = policy.accounted
    delta = {"budget.delta": f"{policy.delta:g}"} if policy.accounted.has_delta else {}
    period = policy.period
    if policy.period_seconds is not None:
        period = f"{ROLLING if policy.rolls else ''}{duration_name(policy.period_seconds)}"
    return {
        **{f"hat.{key}": str(value) for key, value in policy.grid.policy_keys.items()},
        "hat.slot": duration_name(policy.slot_seconds),
        "hat.timezone": policy.timezone,
        "hat.grace": _duration(policy.grace_ms),
        "speed.max_kmh": _kmh(policy.max_speed),
        "speed.unit": policy.unit,
        "speed.reject_above_kmh": plain(policy.reject_above_kmh),
        "speed.from": policy.speed_from,
        "pings.box": "none" if policy.box is None else _list(policy.box),
        accounting.key: accounting.promised(policy.budget_nano, policy.delta),
        **delta,
        "budget.period": period,
        "budget.accounting": policy.accounting,
        "release.mean": policy.mean,
        "release.grouping": policy.grouping,
        "release.cap": policy.cap,
        "release.mean_epsilon": prices.pop("mean"),
        "release.variance_epsilon": prices.pop("variance"),
        "release.cdf": policy.cdf,
        "release.cdf_epsilon": prices.pop("cdf"),
        "release.bins": _list(policy.bins) if isinstance(policy.bins, tuple) else str(policy.bins),
        "release.branching": _list(policy.branching)
        if isinstance(policy.branching, tuple)
        else policy.branching,
        "release.levels": policy.levels,
        "release.min_plates": plain(policy.min_plates),
        "release.suppression": policy.suppression,
        "release.hats_max": plain(policy.hats_max),
        "release.counts": policy.counts_released,
        "budget.schedule": policy.schedule,
        "neighbours": policy.neighbours,
        **{f"release.{name}_epsilon": epsilon for name, epsilon in prices.items()},
        **{f"source.{key}": value for key, value in policy.source},
        **({"hat.domain": policy.domain} if policy.domain else {}),
        **({"pings.interval": _duration(policy.interval_ms)} if policy.interval_ms else {}),
        **({"release.plates": "true"} if policy.plates else {}),
    }


def note_policy(ledger: Ledger, policy: Policy) -> None:
    """Note the policy's keys and values in the ledger, as a fingerprint cannot be read back; the
    first note stands."""
    ledger.note(
        f"{POLICY_NOTE}{policy.fingerprint()}", msgspec.json.encode(written(policy)).decode()
    )


def _duration(ms: int) -> str:
    return duration_name(ms // 1000) if ms and not ms % 1000 else f"{plain(Decimal(ms) / 1000)}s"


def _kmh(quanta: int) -> str:
    """The shortest number of km/h that is rounded down to these quanta."""
    exact = Decimal(quanta) / QUANTA_PER_KMH
    rounded = (exact.quantize(Decimal(1).scaleb(-digits), ROUND_CEILING) for digits in range(12))
    return plain(next(kmh for kmh in rounded if int(float(kmh) * QUANTA_PER_KMH) == quanta))


def _list(numbers: Sequence[Any]) -> str:
    return f"[{', '.join(plain(number) for number in numbers)}]"


SPANS_PER_WINDOW = 24
"""Balances of a rolling budget's window: a span counts up to a 24th of the window too long."""


@dataclass(frozen=True, slots=True)
class SlotInPeriod:
    """A slot's budget period: its name, and whole slots before and after this slot in it.

    Where budgets roll, the name is that of the slot's span, and the slots share a window with this
    slot. `day` is the number of the slot's day in the period; `before` and `after` are the whole
    slots of the other days (`Policy.days`).

    >>> SlotInPeriod("1d from 2024-01-08T00:00:00+05:30", slots_gone=6, slots_left=17).slots_left
    17
    """

    period: str
    slots_gone: int
    slots_left: int
    rolls: bool = False
    day: int = 0
    before: int = 0
    after: int = 0

    @property
    def of_day(self) -> tuple[int, int]:
        """Whole slots before and after this slot in its day."""
        return self.slots_gone - self.before, self.slots_left - self.after


def span_seconds(window_seconds: int, slot_seconds: int) -> int:
    """The length of a rolling budget's balance: whole slots, which divide a day or are whole days."""
    least = max(slot_seconds, ceil(window_seconds / SPANS_PER_WINDOW))
    if least <= DAY_S:
        some = range(slot_seconds * ceil(least / slot_seconds), DAY_S + 1, slot_seconds)
        return next(seconds for seconds in some if DAY_S % seconds == 0)
    whole = max(slot_seconds, DAY_S)
    return whole * ceil(least / whole)


class BudgetCalendar:
    """Slots and budget periods of a policy in its zone.

    >>> from udp_stream.settings import Settings
    >>> calendar = Settings().calendar
    >>> noon = calendar.slot_in_period(1_704_715_200_000)
    >>> noon.period, noon.slots_gone + noon.slots_left + 1
    ('1d from 2024-01-08T00:00:00+05:30 in rho', 24)
    """

    def __init__(
        self,
        policy: Policy,
        slots: SlotGrid,
        periods: SlotGrid | None,
        one_budget: OneBudget | None = None,
    ) -> None:
        """`periods` is None where the budget is for a lifetime; of a rolling budget they are its
        spans."""
        self.slots = slots
        self.one_budget = one_budget
        self._policy = policy
        self._periods = periods
        self._days = SlotGrid(max(DAY_S, policy.slot_seconds), slots.zone)

    def slot_in_period(self, start_ms: int) -> SlotInPeriod:
        """The slot's period, and its place in it: rounded, as clock changes make days longer and
        shorter."""
        measure = self._policy.measure
        if self._periods is None:
            return SlotInPeriod(name_in(measure, "lifetime"), 0, 0)
        if self._policy.rolls:
            return self._in_windows(start_ms, self._periods)
        first, last = (int(ends[0]) for ends in self._periods.place(np.array([start_ms])))
        slot_ms = self._policy.slot_seconds * 1000
        gone = round((start_ms - first) / slot_ms)
        left = max(0, round((last - start_ms) / slot_ms) - 1)
        name = (
            f"{self._policy.period} from {self._periods.iso(first)}{self._policy.relation.ending}"
        )
        whole = SlotInPeriod(name_in(measure, name), gone, left)
        if self._policy.days == 1:
            return whole
        start, end = (int(ends[0]) for ends in self._days.place(np.array([start_ms])))
        return replace(
            whole,
            day=round((start - first) / (self._days.seconds * 1000)),
            before=round((start - first) / slot_ms),
            after=max(0, round((last - end) / slot_ms)),
        )

    def _in_windows(self, start_ms: int, spans: SlotGrid) -> SlotInPeriod:
        policy = self._policy
        ends = spans.place(np.array([start_ms]))
        first, last = (spans.iso(int(end[0])) for end in ends)
        length = duration_name(policy.period_seconds or 0)
        within = (
            ceil((policy.period_seconds or 0) / spans.seconds)
            * spans.seconds
            // policy.slot_seconds
        )
        return SlotInPeriod(
            name_in(policy.measure, span_name(length, first, last)), within, within, rolls=True
        )

    def overlapping(self, period: str, known: Sequence[str]) -> tuple[str, ...]:
        return _not_ours(
            overlapping(period, known), lambda start_ms: self.slot_in_period(start_ms).period
        )
