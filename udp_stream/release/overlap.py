"""Budget periods that overlap: refused before a slot is charged, until a person accepts the sum in words.

Periods of another zone or length are other balances: by its pings in the overlap a plate could lose the budget of each
of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from udp_stream.errors import PrivacyRefused
from udp_stream.ledger.budgets import largest_budgets, periods_to_compare
from udp_stream.ledger.port import Ledger
from udp_stream.planning.calendar import BudgetCalendar
from udp_stream.planning.periods import NOTHING, Loss, loss_in, most_in, overlap_words, period_of
from udp_stream.release.one_budget import NAMED_MAX, require_one_budget
from udp_stream.units import duration_name


def require_no_overlap(
    period: str, budget_nano: int, calendar: BudgetCalendar, ledger: Ledger, plates: Sequence[bytes] = ()
) -> None:
    """PrivacyRefused if plates were charged in periods that overlap this one, unless the sum was accepted.

    Also where these plates have one budget for speeds and positions, and could lose more than that (`one_budget.py`).

    What was accepted once is not summed again for the same periods.

    >>> from udp_stream.ledger.checks import ask
    >>> from udp_stream.ledger.memory import MemoryLedger
    >>> from udp_stream.testing import a_context
    >>> calendar, ledger, budget = a_context().calendar, MemoryLedger(), 10 * 10**9
    >>> _ = ledger.admit("1d from 2022-01-01T00:00:00+05:30", budget, [b"plate"], [ask("hat", [1])])
    >>> require_no_overlap("1d from 2022-01-01T00:00:00+00:00", budget, calendar, ledger)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    udp_stream.errors.PrivacyRefused: the budget period ... a plate could lose epsilon 20, not epsilon 10. Set ...
    >>> calendar.accepted_loss = Loss(2 * budget)
    >>> require_no_overlap("1d from 2022-01-01T00:00:00+00:00", budget, calendar, ledger)
    """
    known = periods_to_compare(ledger, period)
    require_one_budget(period, budget_nano, plates, known, calendar, ledger)
    others = calendar.overlapping(period, known)
    if not others or (period, *others) in calendar.accepted:
        return
    budgets = largest_budgets(ledger, (period, *others))
    # Ours may not be charged yet, or may have been charged under a larger budget before.
    budgets[period] = max(budget_nano, budgets.get(period, 0))
    in_all = most_in(budgets, period, others)
    if not in_all.within(calendar.accepted_loss):
        raise PrivacyRefused(_refusal(period, others, in_all, loss_in(period, budget_nano), calendar.accepted_loss))
    calendar.accepted.add((period, *others))


def _refusal(period: str, others: Sequence[str], in_all: Loss, ours: Loss, accepted_loss: Loss) -> str:
    """What would hold, and the words that accept it."""
    named = ", ".join(others[:NAMED_MAX]) + (f" and {len(others) - NAMED_MAX} more" if len(others) > NAMED_MAX else "")
    window = max(period_of(name).window for name in (period, *others))
    length = duration_name(round(window)) if window else ""
    overlaps = f"shares windows of {length} with" if window else "overlaps"
    end = f"{length} after the end" if window else "the end"
    accepted = f" (accepted so far: {overlap_words(accepted_loss)})" if accepted_loss != NOTHING else ""
    return (
        f"the budget period {period} {overlaps} {named}, in which plates were charged on this ledger. Each period has "
        f"a budget of its own: where they overlap, a plate could lose {in_all}, not {ours}{accepted}. "
        f"Set hat.timezone, budget.period and budget.accounting as they were, or release only from {end} of the other "
        f'period on; or accept the sum: --accept-overlap "{overlap_words(in_all)}" '
        "(budget.accept_overlap)"
    )
