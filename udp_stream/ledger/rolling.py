"""Rolling budgets: no stretch of a given length, wherever it begins, may cost a plate more than its budget.

A balance of a calendar's period is one number. A rolling budget has balances of short *spans* of time, such as an hour,
each named by the window's length and by when it begins and ends:

    rolling 1d from 2024-01-08T06:00:00+05:30 to 2024-01-08T07:00:00+05:30

A charge belongs to one span, which holds all the pings that it is for. It is admitted if in every *window*, that is
every stretch of the length, what was charged in the spans that the window touches stays within the budget.

1. Two spans are touched by one window if from the end of the earlier to the start of the later it is less than the
   length. So a window of a day touches up to 25 whole hours. A span is counted whole, where a window touches it at all.
2. Slide a window later, until the first of its spans is about to leave. It has lost none, and may have won some. So of
   all windows those have to be looked at that end so: one for each span at most, and one in all where slots are
   charged in their order.
3. All charges of a call belong to one span, and every window that is looked at touches it. So each plate has one number
   for the call: the most that it was charged *elsewhere*, in the other spans of any one window. With it, a charge is
   decided as in a calendar's period. Spans on both sides count, as slots may be charged out of order.
4. What is looked at is bounded: the spans within a length before and after, however long the history.

Names of one window length and unit (what stands behind the end) are one account, whatever their zone, and however
their spans lie to each other. They are ordered by their text, which is local time. So the text of a name that is at
most so far away lies between two others (`names_around`), with a day on either side for the zones.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from udp_stream.ledger.port import Balance, Ledger
from udp_stream.units import parse_duration

ROLLING = "rolling "
"""What the names of rolling budgets begin with."""

_NAME = re.compile(rf"{ROLLING}([^ ]+) from ([^ ]+) to ([^ ]+)( .*)?")
_DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Span:
    """Unix seconds from `start` to before `end`, of the account of windows of this length; `unit` is what is behind.

    >>> span_of("rolling 1d from 1970-01-01T06:00:00+00:00 to 1970-01-01T07:00:00+00:00")
    Span(length='1d', unit='', start=21600.0, end=25200.0)
    """

    length: str
    unit: str
    start: float
    end: float

    @property
    def seconds(self) -> float:
        """Of the window."""
        return parse_duration(self.length)

    def shares_window(self, other: Span) -> bool:
        """Whether some window touches both, of one account."""
        is_one_account = (self.length, self.unit) == (other.length, other.unit)
        return is_one_account and max(self.start, other.start) - min(self.end, other.end) < self.seconds


def span_name(length: str, start: str, end: str) -> str:
    """The name of a span from and to these times, ISO-8601 with offsets.

    >>> span_name("1d", "2024-01-08T06:00:00+05:30", "2024-01-08T07:00:00+05:30")
    'rolling 1d from 2024-01-08T06:00:00+05:30 to 2024-01-08T07:00:00+05:30'
    """
    return f"{ROLLING}{length} from {start} to {end}"


@lru_cache(maxsize=2**16)
def span_of(name: str) -> Span | None:
    """The span of this name; None for the name of any other period.

    >>> span_of("1d from 2024-01-08T00:00:00+05:30") is None, span_of("lifetime") is None
    (True, True)
    """
    if (match := _NAME.fullmatch(name)) is None:
        return None
    try:
        start, end = (datetime.fromisoformat(text) for text in match.group(2, 3))
        seconds = parse_duration(match[1])
    except ValueError:
        return None
    if start.tzinfo is None or end.tzinfo is None or not start < end or not 0 < seconds < float("inf"):
        return None
    return Span(match[1], match[4] or "", start.timestamp(), end.timestamp())


def names_around(name: str) -> tuple[str, str] | None:
    """Two names between which, by their text, all are that share a window with this span; None if it is no span.

    A span is at most as long as its window, and a day more where clocks are changed.
    """
    if (span := span_of(name)) is None:
        return None
    # Names tell where spans start: one that ends within reach may start its own length earlier.
    back, ahead = span.start - 2 * (span.seconds + _DAY_S), span.end + span.seconds + _DAY_S
    prefix = account_prefix(span)
    return prefix + _text(back), prefix + _text(ahead)


def account_prefix(span: Span) -> str:
    """What the names of spans with windows of this length begin with."""
    return f"{ROLLING}{span.length} from "


def _text(seconds: float) -> str:
    """In universal time, without its offset; the first or the last time that has a text, if it is beyond."""
    try:
        return (datetime(1970, 1, 1) + timedelta(seconds=seconds)).isoformat(timespec="seconds")
    except OverflowError:
        return (datetime.min if seconds < 0 else datetime.max).isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True)
class Windows:
    """The spans that share a window with one, without itself, and which of them each window has: windows x spans.

    >>> edges = [f"2024-01-08T{hour:02}:00:00Z" for hour in range(7)]
    >>> hours = [span_name("2h", *ends) for ends in zip(edges, edges[1:])]
    >>> windows = windows_around(hours[2], hours)
    >>> [hours.index(name) for name in windows.others], windows.inside.astype(int).tolist()
    ([0, 1, 3, 4], [[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]])
    >>> windows.most(np.array([[1], [2], [3], [4]]))  # charged in each of the four, by one plate
    array([7])
    """

    others: tuple[str, ...]
    inside: NDArray[np.bool_]

    def most(self, amounts: NDArray[np.int64]) -> NDArray[np.int64]:
        """The most of each plate in any one window, of the amounts (spans x plates) in the other spans."""
        if not self.others:
            return np.zeros(amounts.shape[1], np.int64)
        most: NDArray[np.int64] = np.max(self.inside.astype(np.int64) @ amounts, axis=0)
        return most


def windows_around(name: str, known: Iterable[str]) -> Windows:
    """The windows that touch this span, by what they touch of the known ones; none for a period of another kind.

    >>> early, late = (f"rolling 1d from 2024-01-0{day}T06:00:00Z to 2024-01-0{day}T07:00:00Z" for day in (8, 9))
    >>> windows_around(late, [early, late]).others == (early,), windows_around("lifetime", [early]).others
    (True, ())
    """
    ours = span_of(name)
    if ours is None:
        return Windows((), np.zeros((1, 0), bool))
    found = ((other, span_of(other)) for other in known if other != name)
    spans = sorted(
        ((other, span) for other, span in found if span is not None and ours.shares_window(span)),
        key=lambda one: (one[1].start, one[0]),
    )
    starts, ends = (np.array([getattr(span, side) for _, span in spans], np.float64) for side in ("start", "end"))
    # Of each window the moment at which the first of its spans is about to leave: that span's end.
    leaving = np.unique(np.append(ends[(ends <= ours.end) & (ends + ours.seconds > ours.start)], ours.end))[:, None]
    inside = (ends >= leaving) & (starts < leaving + ours.seconds)
    return Windows(tuple(other for other, _ in spans), _largest(inside))


def _largest(sets: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The rows that are part of no other; of equal ones the first. One, where all other spans are earlier."""
    lacking = sets.astype(np.int64) @ ~sets.T  # of each row, how much of it another lacks
    is_part, number = lacking == 0, np.arange(len(sets))
    is_equal = is_part & is_part.T
    redundant = (is_part & ~is_equal) | (is_equal & (number[:, None] > number))
    kept: NDArray[np.bool_] = sets[~redundant.any(axis=1)]
    return kept


def most_elsewhere(windows: Windows, charged: Callable[[str], NDArray[np.int64]], plates: int) -> NDArray[np.int64]:
    """The most of each plate in the other spans of any one window; `charged` tells a span's balances of the plates."""
    amounts = [charged(other) for other in windows.others]
    return windows.most(np.array(amounts, np.int64).reshape(len(amounts), plates))


class RollingSums:
    """What plates were charged in spans, charge after charge: the most in any window. For reading entries through.

    >>> edges = [f"2024-01-08T{hour:02}:00:00Z" for hour in range(5)]
    >>> hours = [span_name("2h", *ends) for ends in zip(edges, edges[1:])]
    >>> sums = RollingSums()
    >>> [sums.charge(hour, [b"plate"], [3]) for hour in (hours[0], hours[3], hours[1], hours[2])]
    [[3], [3], [6], [9]]
    """

    def __init__(self) -> None:
        """Nothing was charged."""
        self._by_plate: dict[bytes, dict[str, int]] = defaultdict(dict)
        self._names: list[str] = []
        self._known: set[str] = set()
        self._windows: tuple[str, Windows] | None = None

    def charge(self, period: str, plates: Sequence[bytes], amounts: Sequence[int]) -> list[int]:
        """Add what each plate was charged in the span: its most in any window that touches it, this included."""
        windows = self._around(period)
        balances = [self._by_plate[plate] for plate in plates]
        for balance, amount in zip(balances, amounts, strict=True):
            balance[period] = balance.get(period, 0) + amount
        # Python's integers: a ledger that was tampered with may hold any amounts.
        table = np.array([[balance.get(other, 0) for balance in balances] for other in windows.others], dtype=object)
        if not windows.others or not plates:
            return [balance[period] for balance in balances]
        elsewhere = np.max(windows.inside.astype(object) @ table, axis=0)
        return [balance[period] + most for balance, most in zip(balances, elsewhere, strict=True)]

    def _around(self, period: str) -> Windows:
        if period not in self._known:
            self._known.add(period)
            insort(self._names, period)
        if self._windows is None or self._windows[0] != period:
            self._windows = period, windows_around(period, self._near(period))
        return self._windows[1]

    def _near(self, period: str) -> list[str]:
        bounds = names_around(period)
        return [] if bounds is None else between(self._names, *bounds)


def between(names: Sequence[str], first: str, last: str) -> list[str]:
    """Those of sorted names that are neither before the first nor behind the last."""
    return list(names[bisect_left(names, first) : bisect_right(names, last)])


# Budgets that were promised in a ledger's periods, from its entries, and what plates have spent of one.


def largest_budgets(ledger: Ledger, periods: Collection[str]) -> dict[str, int]:
    """The largest budget that anything was admitted under in each of these periods; reads every entry."""
    found: dict[str, int] = {}
    wanted = set(periods)
    for entry in ledger.entries():
        if entry.period in wanted:
            found[entry.period] = max(entry.budget, found.get(entry.period, 0))
    return found


def periods_to_compare(ledger: Ledger, period: str) -> list[str]:
    """The ledger's periods that may overlap this one: of a rolling budget's own spans those near by alone.

    >>> from udp_stream.ledgers.sqlite import MemoryLedger
    >>> from udp_stream.ledger.port import Admission
    >>> from udp_stream.ledger.rolling import span_name
    >>> days = [(f"{year}-01-01T00:00:00Z", f"{year}-01-02T00:00:00Z") for year in (2024, 2026)]
    >>> ledger, years = MemoryLedger(), [span_name("1d", *ends) for ends in days]
    >>> for name in ("May", *years):
    ...     _ = ledger.admit(name, 10, [b"plate"], [Admission(name, np.array([0]), np.array([3]), 0, b"")])
    >>> periods_to_compare(ledger, years[0]) == ["May", years[0]], len(periods_to_compare(ledger, "May"))
    (True, 3)
    """
    span, bounds = span_of(period), names_around(period)
    if span is None or bounds is None:
        return ledger.periods()
    prefix = account_prefix(span)
    # `~` sorts behind every date: other accounts come whole, our own only between the bounds.
    return [*ledger.periods("", prefix), *ledger.periods(*bounds), *ledger.periods(f"{prefix}~")]


def budget_balances(ledger: Ledger, period: str, plates: Sequence[bytes]) -> Balance:
    """What the plates were charged of a budget: in the period or, in a span of a rolling one, in any window.

    Of a rolling budget both are the most in a window that touches the span: of charged nano-units, and of charges.
    Others may charge meanwhile; `admit` looks for itself.

    >>> from udp_stream.ledgers.sqlite import MemoryLedger
    >>> from udp_stream.ledger.port import Admission
    >>> from udp_stream.ledger.rolling import span_name
    >>> ledger, hours = MemoryLedger(), [f"2024-01-08T{hour:02}:00:00+05:30" for hour in range(6, 10)]
    >>> spans = [span_name("2h", *ends) for ends in zip(hours, hours[1:])]
    >>> for span in spans:
    ...     _ = ledger.admit(span, 10, [b"plate"], [Admission(span, np.array([0]), np.array([3]), 0, b"")])
    >>> budget_balances(ledger, spans[0], [b"plate"]), ledger.balances(spans[0], [b"plate"])
    (Balance(charged=array([9]), charges=array([3])), Balance(charged=array([3]), charges=array([1])))
    """
    balance = ledger.balances(period, plates)
    if (bounds := names_around(period)) is None:
        return balance
    windows = windows_around(period, ledger.periods(*bounds))
    others = {other: ledger.balances(other, plates) for other in windows.others}
    charged = most_elsewhere(windows, lambda other: others[other].charged, len(plates))
    charges = most_elsewhere(windows, lambda other: others[other].charges, len(plates))
    return Balance(np.add(balance.charged, charged), np.add(balance.charges, charges))
