"""What the budgets of periods that overlap sum to, from a ledger's entries: for the summary of a run, `show`, `doctor`.

The entries are read only where names of periods overlap, which the ledger lists without them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from itertools import pairwise
from math import inf

from udp_stream.ledger.budgets import largest_budgets, periods_to_compare
from udp_stream.ledger.port import Ledger
from udp_stream.planning.one_budget import OneBudget, noted, of_same_time, time_of
from udp_stream.planning.periods import most_in, overlapping, overlaps_of, period_of, together
from udp_stream.release.facts import OneBudgetExceeded, PeriodsOverlap

NAMED_MAX = 3


@dataclass(frozen=True, slots=True)
class Days:
    """Days in a row, `first` to `last`, and the periods that overlap in them; None where they are all of time."""

    first: date | None
    last: date | None
    periods: tuple[str, ...]

    def __str__(self) -> str:
        """`2024-01-08`, or `2024-01-08 to 2024-01-10`, or `every day`."""
        if self.first is None or self.last is None:
            return "every day"
        return f"{self.first}" if self.first == self.last else f"{self.first} to {self.last}"


def overlap_of(ledger: Ledger, period: str) -> PeriodsOverlap | None:
    """What this period sums to with those that overlap it; None if none does, or it has no charge."""
    known = periods_to_compare(ledger, period)
    others = overlapping(period, known)
    if not others or period not in known:
        return None
    budgets = largest_budgets(ledger, (period, *others))
    return PeriodsOverlap(period, others, most_in(budgets, period, others))


def one_budget_of(ledger: Ledger, period: str) -> OneBudget | None:
    """The one budget of speeds and positions that a ledger notes for this period, if any."""
    return noted(ledger.meta()).get(time_of(period))


def exceeding(ledger: Ledger, period: str, one: OneBudget) -> OneBudgetExceeded | None:
    """What speeds and positions can come to in this period, where that is more than their one budget."""
    names = of_same_time(period, periods_to_compare(ledger, period))
    in_all = one.most_in(largest_budgets(ledger, names), period)
    return None if in_all.within(one.whole) else OneBudgetExceeded(period, one.whole, in_all)


def overlaps_on(ledger: Ledger) -> list[PeriodsOverlap]:
    """Each period of the ledger that overlaps others, by the sum, largest first."""
    others = {name: found for name, found in overlaps_of(ledger.periods()).items() if found}
    if not others:
        return []
    sums = together(largest_budgets(ledger, others))
    overlaps = [PeriodsOverlap(name, tuple(sorted(others[name])), sums[name]) for name in others]
    return sorted(overlaps, key=lambda one: (-one.in_all.epsilon_nano, -one.in_all.rho_nano, one.period))


def said(overlaps: Collection[PeriodsOverlap]) -> str:
    """The largest sum in a sentence, and in which periods it holds."""
    worst = max(overlaps, key=lambda one: one.in_all)
    others = ", ".join(worst.others[:NAMED_MAX])
    more = f" and {len(worst.others) - NAMED_MAX} more" if len(worst.others) > NAMED_MAX else ""
    return (
        f"budget periods overlap on this ledger, and their budgets add up: by its pings in {worst.period} a plate can "
        f"lose {worst.in_all}, with {others}{more}"
    )


def days_of(periods: Collection[str], zone: tzinfo) -> list[Days]:
    """The days in the zone in which some of these periods overlap, in order, days of the same periods taken together.

    First what overlaps every day, if anything does.

    >>> kolkata, utc = "1d from 2024-01-08T00:00:00+05:30", "1d from 2024-01-08T00:00:00+00:00"
    >>> [str(days) for days in days_of([kolkata, utc, "1d from 2024-01-09T00:00:00+05:30"], UTC)]
    ['2024-01-08']
    """
    pairs = {tuple(sorted((name, other))) for name, others in overlaps_of(periods).items() for other in others}
    stretches: list[tuple[float, float, tuple[str, ...]]] = []
    for pair in pairs:
        one, other = map(period_of, pair)
        # Periods that only share a window overlap in the time between them.
        start, end = sorted((max(one.start, other.start), min(one.end, other.end)))
        stretches.append((start, end, pair))
    everywhere = {name for start, _, pair in stretches if start == -inf for name in pair}
    bounded = [stretch for stretch in stretches if stretch[0] > -inf]
    always = [Days(None, None, tuple(sorted(everywhere)))] if everywhere else []
    return always + _in_a_row(bounded, everywhere, zone)


def _in_a_row(stretches: list[tuple[float, float, tuple[str, ...]]], everywhere: set[str], zone: tzinfo) -> list[Days]:
    """By the days on which the set of periods changes: a stretch may be a hundred years long."""
    # The end is not part of it: without the second less, midnight would count as one more day.
    spans = [(_day(start, zone), _day(max(start, end - 1), zone), pair) for start, end, pair in stretches]
    cuts = sorted({first for first, _, _ in spans} | {last + timedelta(1) for _, last, _ in spans})
    found: list[Days] = []
    for first, after in pairwise(cuts):
        names = everywhere.union(*(pair for start, end, pair in spans if start <= first <= end))
        if names == everywhere:
            continue
        periods, last = tuple(sorted(names)), after - timedelta(1)
        if found and found[-1].periods == periods and found[-1].last == first - timedelta(1):
            first = found.pop().first or first
        found.append(Days(first, last, periods))
    return found


def _day(seconds: float, zone: tzinfo) -> date:
    return datetime.fromtimestamp(seconds, UTC).astimezone(zone).date()
