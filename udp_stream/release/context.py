"""What every slot of a deployment is released with: settings, calendar, bits, a planner; and the planner's history."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from udp_stream.ledger.port import Balance, Entropy, Ledger
from udp_stream.planning.calendar import BudgetCalendar
from udp_stream.planning.hat_plan import HatPlans, SlotInPeriod
from udp_stream.planning.policy import Policy
from udp_stream.planning.slot_terms import terms_from_counts
from udp_stream.planning.terms import Terms
from udp_stream.release.record import Release, decode, release_id
from udp_stream.windows.grid import cell_name
from udp_stream.windows.slot_tables import SlotCounts


class History(Protocol):
    """What was released before: public, so a plan may follow from it."""

    def releases(self, start_ms: int, end_ms: int, cells: Sequence[int]) -> list[Release | None]:
        """The records of these cells in the slot of these ends; None where there is none."""
        ...


class LedgerHistory:
    """The releases that a ledger holds.

    >>> from udp_stream.ledger.memory import MemoryLedger
    >>> LedgerHistory(MemoryLedger()).releases(0, 3_600_000, [0x87608C4D2FFFFFF])
    [None]
    """

    def __init__(self, ledger: Ledger) -> None:
        """Nothing is asked yet."""
        self._ledger = ledger

    def releases(self, start_ms: int, end_ms: int, cells: Sequence[int]) -> list[Release | None]:
        """What is recorded for these cells in that slot."""
        payloads = self._ledger.recorded([release_id(cell_name(cell), start_ms, end_ms) for cell in cells])
        return [None if payload is None else decode(payload) for payload in payloads]


Planner = Callable[[SlotCounts, Balance, SlotInPeriod, Policy, History, HatPlans], Sequence[Terms]]
"""Decides the terms of every HAT of a slot, from counts, balances and earlier releases. Two planners, or one that is
asked twice, may answer differently; the ledger keeps the terms that came first. What it plans on the way is not planned
again."""


def from_counts(
    counts: SlotCounts,
    balance: Balance,
    in_period: SlotInPeriod,
    policy: Policy,
    history: History,
    plans: HatPlans,
) -> Sequence[Terms]:
    """The planner that reads no history.

    >>> from udp_stream.ledger.memory import MemoryLedger
    >>> from udp_stream.testing import a_context, two_hats
    >>> (counts, _), context, ledger = two_hats(), a_context(), MemoryLedger()
    >>> balance, in_period = ledger.balances("1d", counts.plates), context.calendar.slot_in_period(counts.start_ms)
    >>> public = LedgerHistory(ledger), HatPlans(context.policy.public)
    >>> terms = from_counts(counts, balance, in_period, context.policy, *public)
    >>> [(one.withheld, one.mean_nano) for one in terms]
    [('', 500000000), ('few_plates', 0)]
    """
    del history
    return terms_from_counts(counts, balance, in_period, policy, plans)


def _nothing() -> None:
    """What is to be done before the first charge, if nothing is."""


@dataclass(frozen=True, slots=True)
class ReleaseContext:
    """What every slot of a deployment needs: settings, calendar, bits, the software's name for records, a planner.

    `caveats` and `trial` go into every record: facts about the ledger that it was made on. `before_charge` is called
    each time before plates are charged.

    >>> from udp_stream.testing import SeededEntropy, a_context
    >>> given = a_context()
    >>> context = ReleaseContext(given.policy, given.calendar, SeededEntropy(7), "udp-stream 1.0", trial=True)
    >>> context.planner is from_counts, context.caveats
    (True, ())
    """

    policy: Policy
    calendar: BudgetCalendar
    entropy: Entropy
    software: str
    planner: Planner = from_counts
    caveats: tuple[str, ...] = ()
    trial: bool = False
    before_charge: Callable[[], None] = _nothing
