"""Budgets that were promised in a ledger's periods, from its entries."""

from __future__ import annotations

from collections.abc import Collection

from udp_stream.ledger.port import Ledger


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
