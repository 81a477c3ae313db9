"""Budgets on a ledger that would add up: refused before anything is charged (status 5).

**Budget periods that overlap.** Periods of another zone, length or measure are other balances: by its pings in the
overlap a plate could lose the budget of each of them.

**One budget for speeds and positions** (`queries.share`). Each kind has a fixed part, so neither looks at the other's
charges. That holds as long as all charges of a period were made under these parts. A ledger notes the one budget of a
period, once it is known to hold. A run then asks whether the plates at hand are within both parts. Where they are not,
or nothing was noted, or the note says otherwise, it reads the budgets that everything was admitted under. A run without
a share asks the same of a period that has a note.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from udp_stream.errors import PrivacyRefused
from udp_stream.ledger.budgets import largest_budgets
from udp_stream.ledger.port import Ledger
from udp_stream.planning.one_budget import NOTE, OneBudget, note_of, noted, of_same_time, time_of
from udp_stream.planning.periods import Loss, measure_of, of_positions, period_of
from udp_stream.units import duration_name

NAMED_MAX = 3
"""Periods named in a refusal; one that overlaps a lifetime may overlap thousands."""


class Sharing(Protocol):
    """Budget periods of one kind of data: the one budget that they share, if any, and which sums are within it.

    >>> class Apart:
    ...     one_budget, within = None, set()
    >>> periods: Sharing = Apart()
    >>> periods.one_budget is None
    True
    """

    @property
    def one_budget(self) -> OneBudget | None:
        """None where speeds and positions have budgets of their own."""
        ...

    @property
    def within(self) -> set[tuple[str, ...]]:
        """The sums that need not be made again."""
        ...


def require_no_overlap(period: str, others: Sequence[str], settings: str) -> None:
    """PrivacyRefused if there are others: periods that overlap this one, and in which plates were charged.

    `settings` are those that the names of periods follow from. Ask before charging, and again before drawing: of two
    runs that begin at once, at least one sees the other.

    >>> require_no_overlap("1d from 2022-01-01T00:00:00+00:00", ["1d from 2022-01-01T00:00:00+05:30"], "hat.timezone")
    ... # doctest: +ELLIPSIS
    Traceback (most recent call last):
    udp_stream.errors.PrivacyRefused: the budget period ... overlaps 1d from 2022-01-01T00:00:00+05:30, in which ...
    """
    if not others:
        return
    window = max(period_of(name).window for name in (period, *others))
    length = duration_name(round(window)) if window else ""
    overlaps = f"shares windows of {length} with" if window else "overlaps"
    end = f"{length} after the end" if window else "the end"
    raise PrivacyRefused(
        f"the budget period {period} {overlaps} {_named(others)}, in which plates were charged on this ledger. Each "
        f"period has a budget of its own: where they overlap, a plate could lose the sum. Set {settings} as they were, "
        f"or release only from {end} of the other period on. Else use another ledger; its budgets add to this one's"
    )


def require_one_budget(
    period: str, budget_nano: int, plates: Sequence[bytes], known: Collection[str], terms: Sharing, ledger: Ledger
) -> None:
    """PrivacyRefused if plates could lose more than the one budget, by speeds and positions together.

    `known` are the ledger's periods of both kinds, `budget_nano` what this period is charged under. Ask before
    charging, and again before drawing: of two runs that begin at once, at least one sees the other.

    >>> from decimal import Decimal
    >>> from udp_stream.ledger.checks import ask
    >>> from udp_stream.ledger.memory import MemoryLedger
    >>> from udp_stream.testing import a_context
    >>> calendar, ledger = a_context().calendar, MemoryLedger()
    >>> calendar.one_budget = OneBudget("pure", 10 * 10**9, 2 * 10**9, Decimal(500))
    >>> _ = ledger.admit("positions lifetime", 4000 * 10**9, [b"plate"], [ask("hat", [7])])
    >>> require_one_budget("lifetime", 8 * 10**9, [b"plate"], ledger.periods(), calendar, ledger)
    ... # doctest: +ELLIPSIS
    Traceback (most recent call last):
    udp_stream.errors.PrivacyRefused: the budget period lifetime ... could lose epsilon 2008, not epsilon 10. Set ...
    """
    names, one = of_same_time(period, known), terms.one_budget
    if one is not None:
        remembered = noted(ledger.meta()).get(time_of(period))
        if names and (remembered != one or _is_over(one, names, plates, ledger)):
            _require_sum(one, period, budget_nano, names, terms, ledger)
        # After the check: later runs trust the note, and then read no budgets.
        if remembered is None:
            ledger.note(f"{NOTE}{time_of(period)}", note_of(one))
    elif any(of_positions(name) != of_positions(period) for name in names):
        for time, promised in noted(ledger.meta()).items():
            if of_same_time(period, [time]):
                _require_sum(promised, period, budget_nano, names, terms, ledger)


def _is_over(one: OneBudget, names: Collection[str], plates: Sequence[bytes], ledger: Ledger) -> bool:
    """Whether one of these plates was charged more, of speeds or of positions, than the part that these have."""
    for is_positions in (False, True):
        some = [name for name in names if of_positions(name) == is_positions]
        # The largest charges may be of different plates: at worst budgets are read for nothing.
        most = sum(int(ledger.balances(name, plates).charged.max(initial=0)) for name in some)
        others = any(measure_of(name) != one.measure for name in some)
        # Any of the names will do: amounts of one kind and measure convert alike.
        if most and (others or one.nano_of(some[0], most) > one.part_nano(some[0])):
            return True
    return False


def _require_sum(
    one: OneBudget, period: str, budget_nano: int, names: Sequence[str], terms: Sharing, ledger: Ledger
) -> None:
    """By the largest budget of each period."""
    key = period, note_of(one), *names
    if key in terms.within:
        return
    budgets = largest_budgets(ledger, (period, *names))
    budgets[period] = max(budget_nano, budgets.get(period, 0))
    in_all = one.most_in(budgets, period)
    if not in_all.within(one.whole):
        raise PrivacyRefused(_refusal(one, period, names, in_all))
    terms.within.add(key)


def _refusal(one: OneBudget, period: str, names: Sequence[str], in_all: Loss) -> str:
    return (
        f"the budget period {period} has one budget for speeds and positions, where {one.said}, and plates were "
        f"charged under other budgets in {_named(names)} on this ledger: by both together a plate could lose "
        f"{in_all}, not {one.whole}. Set [budget], queries.share and queries.unit_m as they were, or release only from "
        "the end of the period on. Else use another ledger; its budgets add to this one's"
    )


def _named(periods: Sequence[str]) -> str:
    more = f" and {len(periods) - NAMED_MAX} more" if len(periods) > NAMED_MAX else ""
    return ", ".join(periods[:NAMED_MAX]) + more
