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
   speeds never overlap: their losses are of two kinds, stated side by side. `one_budget.py` adds them where they share
   one.
3. Spans of one rolling budget are one balance, window by window: they do not overlap. Any other period overlaps a span
   if some window touches both. What its windows allow in a stretch of time is a budget for each length in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from math import ceil, inf

from udp_stream.ledger.rolling import span_of
from udp_stream.mechanisms.noise import Measure
from udp_stream.units import NANO, parse_duration

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
        if of_positions(self.name) != of_positions(other.name):
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
    """When a period is.

    >>> period_of("1d from 1970-01-02T00:00:00+05:30")
    Period(name='1d from 1970-01-02T00:00:00+05:30', start=66600.0, end=153000.0, offset=19800.0, window=0.0)
    >>> period_of("lifetime")
    Period(name='lifetime', start=-inf, end=inf, offset=0.0, window=0.0)
    """
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
    """The known periods that overlap this one, sorted.

    >>> monday = "1d from 2024-01-08T00:00:00+05:30"
    >>> overlapping(monday, [monday, "1d from 2024-01-08T00:00:00+00:00", "1d from 2024-01-09T00:00:00+05:30"])
    ('1d from 2024-01-08T00:00:00+00:00',)
    >>> overlapping(monday, ["7d from 2024-01-07T00:00:00+05:30", "1d from 2024-01-09T00:00:00+00:00", "lifetime"])
    ('7d from 2024-01-07T00:00:00+05:30', 'lifetime')
    """
    ours = period_of(period)
    return tuple(sorted(name for name in set(known) if ours.overlaps(period_of(name))))


def overlaps_of(names: Iterable[str]) -> dict[str, set[str]]:
    """Of each period, those that overlap it; as much work as there are such pairs.

    >>> overlaps_of(["1d from 2024-01-08T00:00:00+00:00", "lifetime", "1d from 2024-01-09T00:00:00+00:00"])["lifetime"]
    ... # doctest: +ELLIPSIS
    {'1d from 2024-01-0...', '1d from 2024-01-0...'}
    """
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
    """The name of the period in which losses of this measure are counted.

    >>> name_in("pure", "lifetime"), name_in("zcdp", "lifetime")
    ('lifetime', 'lifetime in rho')
    """
    return name + IN_RHO if measure == "zcdp" else name


def of_positions(name: str) -> bool:
    """Whether what is counted in a period is of positions, not of speeds.

    >>> of_positions("positions 1d from 2024-01-08T00:00:00+05:30 in rho"), of_positions("lifetime")
    (True, False)
    >>> overlapping("positions lifetime", ["lifetime", "positions 1d from 2024-01-08T00:00:00+05:30"])
    ('positions 1d from 2024-01-08T00:00:00+05:30',)
    """
    return name.startswith(POSITIONS)


def length_of(name: str) -> str:
    """The length of a period, with its measure.

    >>> length_of("1d from 2024-05-01T00:00:00+05:30"), length_of("1d from 2024-05-01T00:00:00+05:30 in rho")
    ('1d', '1d in rho')
    >>> length_of("rolling 1d from 2024-01-08T06:00:00+05:30 to 2024-01-08T07:00:00+05:30")
    'rolling 1d'
    """
    length, is_bounded, _ = name.partition(" from ")
    return length + (IN_RHO if is_bounded and name.endswith(IN_RHO) else "")


def measure_of(name: str) -> Measure:
    """In what losses of this period are counted.

    >>> measure_of("lifetime"), measure_of("lifetime in rho")
    ('pure', 'zcdp')
    """
    return "zcdp" if name.endswith(IN_RHO) else "pure"


def loss_in(name: str, nano: int) -> Loss:
    """An amount of a period's balances.

    >>> str(loss_in("lifetime", 10 * NANO)), str(loss_in("lifetime in rho", NANO))
    ('epsilon 10', 'rho 1')
    """
    return Loss(rho_nano=nano) if measure_of(name) == "zcdp" else Loss(nano)


def sum_of(budgets: Mapping[str, int], names: Iterable[str]) -> Loss:
    """The sum of the budgets of these periods.

    >>> str(sum_of({"May": 3 * NANO, "May in rho": NANO}, ["May", "May in rho"]))
    'epsilon 3 and rho 1'
    """
    return sum((loss_in(name, budgets[name]) for name in names), Loss())


def most_in(budgets: Mapping[str, int], period: str, others: Iterable[str]) -> Loss:
    """The most that a plate can lose by its pings in this period, or in one of its windows, with others that overlap.

    A rolling budget counts once for each of its windows that it takes to cover that time, or its spans. A name that
    tells no time stands for all of it.

    >>> day = "1d from 2024-01-08T00:00:00+05:30"
    >>> hours = [f"rolling 1d from 2024-01-08T{h:02}:00:00+05:30 to 2024-01-08T{h + 1:02}:00:00+05:30" for h in (6, 9)]
    >>> budgets = {day: 10 * NANO, hours[0]: 2 * NANO, hours[1]: 2 * NANO}
    >>> str(most_in(budgets, day, hours)), str(most_in(budgets, hours[0], [day]))
    ('epsilon 12', 'epsilon 12')
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
    """Each period's budget with those of the periods that overlap it: what a plate can lose by its pings in it.

    >>> sums = together({"1d from 2024-01-08T00:00:00+05:30": 10 * NANO, "1d from 2024-01-08T00:00:00+00:00": NANO})
    >>> [str(loss) for loss in sums.values()]
    ['epsilon 11', 'epsilon 11']
    """
    return {name: most_in(budgets, name, others) for name, others in overlaps_of(budgets).items()}


def amount_text(nano: int) -> str:
    """Nano-units in units, exactly.

    >>> amount_text(20_000_000_000), amount_text(10_500_000_001)
    ('20', '10.500000001')
    """
    text = f"{Decimal(nano) / NANO:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
