"""Budgets that were promised in a ledger's periods, from its entries, and what plates have spent of one."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from udp_stream.ledger.port import Balance, Ledger
from udp_stream.ledger.rolling import account_prefix, most_elsewhere, names_around, span_of, windows_around


def largest_budgets(ledger: Ledger, periods: Collection[str]) -> dict[str, int]:
    """The largest budget that anything was admitted under in each of these periods; reads every entry.

    >>> import numpy as np
    >>> from udp_stream.ledger.memory import MemoryLedger
    >>> from udp_stream.ledger.port import Admission
    >>> ledger = MemoryLedger()
    >>> hats = [Admission(name, np.array([0]), np.array([4]), 0, b"") for name in ("first", "second")]
    >>> for hat, budget in zip(hats, (10, 12)):
    ...     _ = ledger.admit("May", budget, [b"plate"], [hat])
    >>> largest_budgets(ledger, ["May", "June"])
    {'May': 12}
    """
    found: dict[str, int] = {}
    wanted = set(periods)
    for entry in ledger.entries():
        if entry.period in wanted:
            found[entry.period] = max(entry.budget, found.get(entry.period, 0))
    return found


def periods_to_compare(ledger: Ledger, period: str) -> list[str]:
    """The ledger's periods that may overlap this one: of a rolling budget's own spans those near by alone.

    >>> from udp_stream.ledger.checks import ask
    >>> from udp_stream.ledger.memory import MemoryLedger
    >>> from udp_stream.ledger.rolling import span_name
    >>> days = [(f"{year}-01-01T00:00:00Z", f"{year}-01-02T00:00:00Z") for year in (2024, 2026)]
    >>> ledger, years = MemoryLedger(), [span_name("1d", *ends) for ends in days]
    >>> for name in ("May", *years):
    ...     _ = ledger.admit(name, 10, [b"plate"], [ask(name, [3])])
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

    >>> from udp_stream.ledger.checks import ask
    >>> from udp_stream.ledger.memory import MemoryLedger
    >>> from udp_stream.ledger.rolling import span_name
    >>> ledger, hours = MemoryLedger(), [f"2024-01-08T{hour:02}:00:00+05:30" for hour in range(6, 10)]
    >>> spans = [span_name("2h", *ends) for ends in zip(hours, hours[1:])]
    >>> for span in spans:
    ...     _ = ledger.admit(span, 10, [b"plate"], [ask(span, [3])])
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
