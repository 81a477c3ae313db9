"""Budget periods by their names: when they are, which of them overlap, and what their budgets sum to.

A balance belongs to a period's name, such as `1d from 2024-01-08T00:00:00+05:30`. Periods of another zone or length
have other names, hence other balances. A plate whose pings lie in several of them can lose the sum of their budgets.

Privacy: the unit is one plate with all its pings in a period. To releases that were charged to the period it loses at
most the period's budget; to those charged to a period that overlaps it, that one's budget too (basic composition). A
period that does not overlap it holds none of these pings.

A name tells the start, with its offset from UTC, and the length on the wall clock, but not the zone. So:

1. A period lasts from its start to the next multiple of its length on the wall clock, at the offset of its start.
   `lifetime`, and a name that cannot be read, is all of time.
2. Where a zone sets its clock forward, a period is shorter than that, and would overlap the next one. Two periods of
   one length that follow each other on the wall clock, at offsets that differ by at most an hour, count as periods of
   one calendar, which do not overlap. A change to a zone that is up to an hour further east looks the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from math import inf

from udp_stream.units import NANO, nano_allowance, parse_duration

CLOCK_CHANGE_S = 3600
DAY_S = 86_400

_WORDS = re.compile(r"epsilon ([0-9]{1,9}(?:\.[0-9]{1,9})?) in all")


@dataclass(frozen=True, slots=True)
class Period:
    """Unix seconds from `start` to before `end`, both infinite where the name tells no time; `offset` from UTC.

    >>> Period("one", 0.0, 10.0).overlaps(Period("two", 9.0, 20.0)), Period("one", 0.0, 10.0).end
    (True, 10.0)
    """

    name: str
    start: float = -inf
    end: float = inf
    offset: float = 0.0

    def overlaps(self, other: Period) -> bool:
        """Whether some time lies in both, and they are not of one calendar; a period does not overlap itself."""
        both = min(self.end, other.end) - max(self.start, other.start)
        return both > 0 and self.name != other.name and not self._is_followed(other, both)

    def _is_followed(self, other: Period, both: float) -> bool:
        """Whether one follows the other on a wall clock that was set forward between them."""
        change = abs(self.offset - other.offset)
        lengths = [one.name.partition(" from ")[0] for one in (self, other)]
        walls = sorted((one.start + one.offset, one.end + one.offset) for one in (self, other))
        shifted = both <= change <= CLOCK_CHANGE_S and both < min(self.end - self.start, other.end - other.start)
        return lengths[0] == lengths[1] and walls[0][1] <= walls[1][0] and shifted


@lru_cache(maxsize=2**16)
def period_of(name: str) -> Period:
    """When a period is.

    >>> period_of("1d from 1970-01-02T00:00:00+05:30")
    Period(name='1d from 1970-01-02T00:00:00+05:30', start=66600.0, end=153000.0, offset=19800.0)
    >>> period_of("lifetime")
    Period(name='lifetime', start=-inf, end=inf, offset=0.0)
    """
    length, _, start = name.partition(" from ")
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
    for period in sorted(map(period_of, found), key=lambda one: (one.start, one.name)):
        going = [one for one in going if one.end > period.start]
        for other in going:
            if period.overlaps(other):
                found[period.name].add(other.name)
                found[other.name].add(period.name)
        going.append(period)
    return found


def together(budgets: Mapping[str, int]) -> dict[str, int]:
    """Each period's budget with those of the periods that overlap it: what a plate can lose by its pings in it.

    >>> together({"1d from 2024-01-08T00:00:00+05:30": 10, "1d from 2024-01-08T00:00:00+00:00": 7})
    {'1d from 2024-01-08T00:00:00+05:30': 17, '1d from 2024-01-08T00:00:00+00:00': 17}
    """
    overlaps = overlaps_of(budgets)
    return {name: nano + sum(budgets[other] for other in overlaps[name]) for name, nano in budgets.items()}


def epsilon_text(nano: int) -> str:
    """Nano-epsilon in epsilon, exactly.

    >>> epsilon_text(20_000_000_000), epsilon_text(10_500_000_001)
    ('20', '10.500000001')
    """
    text = f"{Decimal(nano) / NANO:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def overlap_words(nano: int) -> str:
    """The words that accept such a sum.

    >>> overlap_words(20_000_000_000)
    'epsilon 20 in all'
    """
    return f"epsilon {epsilon_text(nano)} in all"


def accepted_nano(words: str) -> int:
    """The sum that words accept, 0 for none; ValueError with the rule for others.

    >>> accepted_nano("epsilon 20 in all"), accepted_nano("")
    (20000000000, 0)
    """
    if not words:
        return 0
    if (match := _WORDS.fullmatch(words.strip())) is None:
        raise ValueError(f"expected the words of the refusal, such as {overlap_words(20 * NANO)!r}, got {words!r}")
    return nano_allowance(Decimal(match[1]))
