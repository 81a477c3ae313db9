"""Budget periods by their names: when they are, which of them overlap, and what their budgets sum to.

A balance belongs to a period's name, such as `1d from 2024-01-08T00:00:00+05:30`. Periods of another zone or length
have other names, hence other balances. So have periods whose losses are counted in the rho of concentrated differential
privacy: their names end in ` in rho`. A plate whose pings lie in several of them can lose the sum of their budgets.

Privacy: the unit is one plate with all its pings in a period. To releases that were charged to the period it loses at
most the period's budget; to those charged to a period that overlaps it, that one's budget too (basic composition). A
period that does not overlap it holds none of these pings.

A name tells the start, with its offset from UTC, and the length on the wall clock, but not the zone. So:

1. A period lasts from its start to the next multiple of its length on the wall clock, at the offset of its start.
   `lifetime`, and a name that cannot be read, is all of time.
   A span of a rolling budget (`ledger/rolling.py`) tells both its ends, and its window's length.
2. Where a zone sets its clock forward, a period is shorter than that, and would overlap the next one. Two periods of
   one length that follow each other on the wall clock, at offsets that differ by at most an hour, count as periods of
   one calendar, which do not overlap. A change to a zone that is up to an hour further east looks the same.
   Periods of positions (`positions 1d from ...`) hold what standing queries cost, by distance. They and periods of
   speeds never overlap: their losses are of two kinds, stated side by side. `periods.py` adds them where they share
   one.
3. Spans of one rolling budget are one balance, window by window: they do not overlap. Any other period overlaps a span
   if some window touches both. What its windows allow in a stretch of time is a budget for each length in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from math import ceil, floor, inf, isfinite

import msgspec
import numpy as np

from udp_stream.ledger.rolling import span_of
from udp_stream.mechanisms.noise import Measure
from udp_stream.units import NANO, parse_duration
from udp_stream.windows.tables import SlotGrid

CLOCK_CHANGE_S = 3600
DAY_S = 86_400

IN_RHO = " in rho"
"""What the name of a period ends in whose balances are nano-rho."""

POSITIONS = "positions "
"""What the name of a period begins with whose balances are for positions: per kilometre, or per square kilometre."""


@dataclass(frozen=True, order=True, slots=True)
class Loss:
    """The most that a plate can lose: an epsilon and, beside it, a rho; nano-units of each.

    >>> together = Loss(10 * NANO) + Loss(rho_nano=NANO)
    >>> str(together), together.within(Loss(20 * NANO)), Loss(5).within(Loss(5))
    ('epsilon 10 and rho 1', False, True)
    """

    epsilon_nano: int = 0
    rho_nano: int = 0

    def __add__(self, other: Loss) -> Loss:
        """Losses add up, each in its own measure."""
        return Loss(self.epsilon_nano + other.epsilon_nano, self.rho_nano + other.rho_nano)

    def within(self, other: Loss) -> bool:
        """Whether it is at most the other, by either measure."""
        return self.epsilon_nano <= other.epsilon_nano and self.rho_nano <= other.rho_nano

    def __str__(self) -> str:
        """What is not 0 of it."""
        parts = [f"rho {amount_text(self.rho_nano)}"] if self.rho_nano else []
        if self.epsilon_nano or not parts:
            parts.insert(0, f"epsilon {amount_text(self.epsilon_nano)}")
        return " and ".join(parts)


@dataclass(frozen=True, slots=True)
class Period:
    """Unix seconds from `start` to before `end`, both infinite where the name tells no time; `offset` from UTC.

    `window` is the length of the windows of a rolling budget, in seconds, 0 in a calendar.

    >>> Period("one", 0.0, 10.0).overlaps(Period("two", 9.0, 20.0)), Period("one", 0.0, 10.0).end
    (True, 10.0)
    >>> Period("one", 0.0, 10.0, window=5.0).overlaps(Period("two", 14.0, 20.0))
    True
    """

    name: str
    start: float = -inf
    end: float = inf
    offset: float = 0.0
    window: float = 0.0

    def overlaps(self, other: Period) -> bool:
        """Whether some time lies in both, or in one window with both, and they are not of one calendar or rolling
        budget; a period does not overlap itself."""
        if is_of_positions(self.name) != is_of_positions(other.name):
            return False
        both = min(self.end, other.end) - max(self.start, other.start)
        window = max(self.window, other.window)
        if window:
            is_one = self.window == other.window and length_of(self.name) == length_of(other.name)
            return both + window > 0 and not is_one
        return both > 0 and self.name != other.name and not self._is_followed(other, both)

    def _is_followed(self, other: Period, both: float) -> bool:
        """Whether one follows the other on a wall clock that was set forward between them."""
        change = abs(self.offset - other.offset)
        lengths = [length_of(one.name) for one in (self, other)]
        walls = sorted((one.start + one.offset, one.end + one.offset) for one in (self, other))
        shifted = both <= change <= CLOCK_CHANGE_S and both < min(self.end - self.start, other.end - other.start)
        return lengths[0] == lengths[1] and walls[0][1] <= walls[1][0] and shifted


@lru_cache(maxsize=2**16)
def period_of(name: str) -> Period:
    """When a period is."""
    if (span := span_of(name)) is not None:
        return Period(name, span.start, span.end, window=span.seconds)
    length, _, start = name.removesuffix(IN_RHO).removeprefix(POSITIONS).partition(" from ")
    try:
        begins, seconds = datetime.fromisoformat(start), parse_duration(length)
    except ValueError:
        return Period(name)
    offset = begins.utcoffset()
    if offset is None:
        return Period(name)
    # Where the clock skips a period's first hour, it begins later and ends where it would have.
    into = (begins.hour * 3600 + begins.minute * 60 + begins.second) % min(seconds, DAY_S)
    return Period(name, begins.timestamp(), begins.timestamp() + seconds - into, offset.total_seconds())


def overlapping(period: str, known: Iterable[str]) -> tuple[str, ...]:
    """The known periods that overlap this one, sorted."""
    ours = period_of(period)
    return tuple(sorted(name for name in set(known) if ours.overlaps(period_of(name))))


def overlaps_of(names: Iterable[str]) -> dict[str, set[str]]:
    """Of each period, those that overlap it; as much work as there are such pairs."""
    found: dict[str, set[str]] = {name: set() for name in names}
    going: list[Period] = []
    periods = sorted(map(period_of, found), key=lambda one: (one.start, one.name))
    window = max((one.window for one in periods), default=0)
    for period in periods:
        # The largest window of all: at worst a pair is compared for nothing.
        going = [one for one in going if one.end + window > period.start]
        for other in going:
            if period.overlaps(other):
                found[period.name].add(other.name)
                found[other.name].add(period.name)
        going.append(period)
    return found


def name_in(measure: Measure, name: str) -> str:
    """The name of the period in which losses of this measure are counted."""
    return name + IN_RHO if measure == "zcdp" else name


def is_of_positions(name: str) -> bool:
    """Whether what is counted in a period is of positions, not of speeds."""
    return name.startswith(POSITIONS)


def length_of(name: str) -> str:
    """The length of a period, with its measure."""
    length, is_bounded, _ = name.partition(" from ")
    return length + (IN_RHO if is_bounded and name.endswith(IN_RHO) else "")


def measure_of(name: str) -> Measure:
    """In what losses of this period are counted."""
    return "zcdp" if name.endswith(IN_RHO) else "pure"


def loss_in(name: str, nano: int) -> Loss:
    """An amount of a period's balances."""
    return Loss(rho_nano=nano) if measure_of(name) == "zcdp" else Loss(nano)


def sum_of(budgets: Mapping[str, int], names: Iterable[str]) -> Loss:
    """The sum of the budgets of these periods."""
    return sum((loss_in(name, budgets[name]) for name in names), Loss())


def most_in(budgets: Mapping[str, int], period: str, others: Iterable[str]) -> Loss:
    """The most that a plate can lose by its pings in this period, or in one of its windows, with others that overlap.

    A rolling budget counts once for each of its windows that it takes to cover that time, or its spans. A name that
    tells no time stands for all of it.
    """
    # `others` may name the period itself, whose budget counts once.
    names = [name for name in dict.fromkeys((period, *others)) if name in budgets]
    spans: dict[str, list[Period]] = {}
    for one in map(period_of, names):
        if one.window:
            spans.setdefault(length_of(one.name), []).append(one)
    ours = period_of(period)
    most = sum_of(budgets, (name for name in names if not period_of(name).window))
    for account in spans.values():
        touched = max(one.end for one in account) - min(one.start for one in account)
        windows = max(1, ceil(min(ours.window or ours.end - ours.start, touched) / account[0].window))
        most += loss_in(account[0].name, windows * max(budgets[one.name] for one in account))
    return most


def together(budgets: Mapping[str, int]) -> dict[str, Loss]:
    """Each period's budget with those of the periods that overlap it: what a plate can lose by its pings in it."""
    return {name: most_in(budgets, name, others) for name, others in overlaps_of(budgets).items()}


def amount_text(nano: int) -> str:
    """Nano-units in units, exactly."""
    text = f"{Decimal(nano) / NANO:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


# One budget for a plate's speeds and positions: what it counts them in, and what charges of both come to in it.
#
# *Adaptive Privacy Budgeting* (Liang and Yi), Section 5. All that is known of a plate is a point of a product of
# spaces, and two points are as far apart as the components in which they are farthest. Theorem 5.1, Corollary 5.1: what
# reads one component alone costs the same in the product as it does in its component, by unit of distance (squared for
# a rho). So charges may be computed where they belong, and add up in one filter. Remark 4: data that change, as
# positions do, are new components of the same kind, with one unit for ever.
#
# A *unit* of distance has to mean the same in all of them: a speed counts as one where it is swapped, positions where
# they are `unit_m` metres apart. So an epsilon per kilometre counts times the unit in kilometres, and a rho per square
# kilometre times its square. Two inputs are told apart by at most e^(B d), d the largest distance in those units.

NOTE = "one budget: "
"""Before the name of a period, in the note by which a ledger remembers that both kinds had one budget in it."""


def component_charge_nano(cost_nano: int, measure: Measure, unit: Fraction) -> int:
    """What a mechanism on one component costs of a budget over all of them, rounded up (Theorem 5.1, Corollary 5.1).

    `cost_nano` is per unit of the component's own metric, squared for a rho; `unit` is how far there is one apart.

    >>> component_charge_nano(2_000_000, "pure", Fraction(500)), component_charge_nano(4_000, "zcdp", Fraction(500))
    (1000000000, 1000000000)
    """
    return ceil(cost_nano * unit ** (1 if measure == "pure" else 2))


class OneBudget(msgspec.Struct, frozen=True):
    """The whole of a budget, the part of it that positions have, nano-units of one measure; and its unit in metres.

    >>> one = OneBudget("pure", 10 * 10**9, 2 * 10**9, Decimal(500))
    >>> one.nano_of("positions lifetime", 4 * 10**9), one.part_nano("lifetime"), one.by_distance_nano
    (2000000000, 8000000000, 4000000000)
    >>> str(one.whole), one.said
    ('epsilon 10', '500 m count as much as a speed does')
    """

    measure: Measure
    whole_nano: int
    positions_nano: int
    unit_m: Decimal

    @property
    def whole(self) -> Loss:
        """What a plate can lose of both kinds together."""
        return Loss(self.whole_nano) if self.measure == "pure" else Loss(rho_nano=self.whole_nano)

    @property
    def said(self) -> str:
        """In which unit both kinds are counted."""
        return f"{self.unit_m.normalize():f} m count as much as a speed does"

    @property
    def by_distance_nano(self) -> int:
        """The most that positions may cost by kilometre, squared for a rho: rounded down, so within their part."""
        return floor(self.positions_nano / self._unit_km ** (1 if self.measure == "pure" else 2))

    @property
    def _unit_km(self) -> Fraction:
        return Fraction(self.unit_m) / 1000

    def part_nano(self, name: str) -> int:
        """What the kind of this period has of the whole."""
        return self.positions_nano if is_of_positions(name) else self.whole_nano - self.positions_nano

    def nano_of(self, name: str, nano: int) -> int:
        """What an amount of this period's balances counts, rounded up."""
        return component_charge_nano(nano, measure_of(name), self._unit_km) if is_of_positions(name) else nano

    def most_in(self, budgets: Mapping[str, int], period: str) -> Loss:
        """The most that a plate can lose of both kinds by its pings in a period: under these budgets of periods that
        share time with it, and the parts that both kinds have.
        """
        amounts = {name: self.nano_of(name, nano) for name, nano in budgets.items()}
        time = name_in(self.measure, time_of(period).removesuffix(IN_RHO))
        for name in (time, f"{POSITIONS}{time}"):
            amounts[name] = max(self.part_nano(name), amounts.get(name, 0))
        return most_in(amounts, period, amounts)


def of_same_time(period: str, known: Iterable[str]) -> tuple[str, ...]:
    """The known periods of either kind that share time with this one, itself among them, sorted."""
    ours, times = time_of(period), {name: time_of(name) for name in known}
    shared = {ours, *overlapping(ours, times.values())}
    return tuple(sorted(name for name, time in times.items() if time in shared))


def time_of(period: str) -> str:
    """The name of a period without the kind of data that is counted in it."""
    return period.removeprefix(POSITIONS)


def noted(meta: Mapping[str, str]) -> dict[str, OneBudget]:
    """The one budget of each period for which a ledger remembers one, by the name of its time."""
    notes = sorted((name, text) for name, text in meta.items() if name.startswith(NOTE))
    return {name.removeprefix(NOTE): msgspec.json.decode(text, type=OneBudget) for name, text in notes}


def note_of(one: OneBudget) -> str:
    """The text of the note."""
    return msgspec.json.encode(one).decode()


# The budget periods of standing queries: what a plate may lose of its positions, apart from what it may of its speeds.
#
# A moment belongs to the period that the stretch of time before it lies in: midnight's answer is of the day that ends.


@dataclass(frozen=True)
class PositionPeriods:
    """Periods of one length in a zone, or one for a lifetime; and each plate's budget for one, in nano-units.

    Where it is a part of one budget, `whole` says that in words.

    >>> from datetime import UTC
    >>> periods = PositionPeriods("zcdp", 100 * 10**9, "1d", SlotGrid(86_400, UTC))
    >>> [periods.name_at(moment) for moment in (86_400_000, 86_400_001)]
    ['positions 1d from 1970-01-01T00:00:00+00:00 in rho', 'positions 1d from 1970-01-02T00:00:00+00:00 in rho']
    >>> periods.promise
    'rho 100 per square km, per 1d'
    """

    measure: Measure
    budget_nano: int
    length: str
    grid: SlotGrid | None
    one_budget: OneBudget | None = None
    whole: str = ""

    @property
    def promise(self) -> str:
        """What a plate's positions are promised, in words; and what with its speeds, if both have one budget."""
        amount = amount_by_distance(self.measure, self.budget_nano)
        own = f"{amount}, per {self.length}"
        return own if self.one_budget is None else f"{own}; with its speeds {self.whole}, where {self.one_budget.said}"

    @property
    def kind(self) -> str:
        """What this budget is to that of speeds, in words."""
        return "a share of its one budget" if self.one_budget else "a budget of its own, apart from that of speeds"

    def name_at(self, moment_ms: int) -> str:
        """The name of the period of a moment, Unix ms."""
        if self.grid is None:
            return name_in(self.measure, f"{POSITIONS}lifetime")
        return name_in(self.measure, f"{POSITIONS}{self.length} from {self.grid.iso(self.start_of(moment_ms))}")

    def start_of(self, moment_ms: int) -> int:
        """The start of the period of a moment, Unix ms; 0 of a lifetime."""
        return 0 if self.grid is None else int(self.grid.place(np.array([moment_ms - 1]))[0][0])

    def overlapping(self, period: str, known: Sequence[str]) -> tuple[str, ...]:
        """The known periods of positions that overlap this one of ours, and are not ours themselves."""
        return tuple(name for name in overlapping(period, known) if not self._is_ours(name))

    def _is_ours(self, name: str) -> bool:
        start = period_of(name).start
        # One ms later: the moment at a period's very start belongs to the period before.
        return isfinite(start) and self.name_at(round(start * 1000) + 1) == name


def amount_by_distance(measure: Measure, nano: int) -> str:
    """An amount of a plate's positions, with the distance that it is for."""
    return f"epsilon {amount_text(nano)} per km" if measure == "pure" else f"rho {amount_text(nano)} per square km"
