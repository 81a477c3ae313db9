"""What every slot of a deployment is released with: settings, calendar, bits, a planner; and the planner's history."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

from udp_stream.ledger.port import Balance, Entropy, Ledger
from udp_stream.planning.around import terms_around
from udp_stream.planning.calendar import BudgetCalendar
from udp_stream.planning.hat_plan import HatPlans, SlotInPeriod
from udp_stream.planning.policy import Policy
from udp_stream.planning.slot_terms import terms_from_counts
from udp_stream.planning.terms import Terms
from udp_stream.release.forecaster import Forecaster, Slot
from udp_stream.release.history import History, LedgerHistory
from udp_stream.release.smoothed import Smoothed
from udp_stream.release.whole_city import CityQuestion
from udp_stream.windows.tables import SlotCounts

Balances = Callable[[], Balance]
"""What the slot's plates were charged in the budget period so far. The ledger is read when it is called: a planner that
does not need it spares the ledger a read of every plate, in a rolling budget one for each of its windows."""

Planner = Callable[[SlotCounts, Balances, SlotInPeriod, Policy, History, HatPlans], Sequence[Terms]]
"""Decides the terms of every HAT of a slot, from counts, balances and earlier releases. Two planners, or one that is
asked twice, may answer differently; the ledger keeps the terms that came first. What it plans on the way is not planned
again."""


def from_counts(
    counts: SlotCounts,
    balances: Balances,
    in_period: SlotInPeriod,
    policy: Policy,
    history: History,
    plans: HatPlans,
) -> Sequence[Terms]:
    """The planner that reads no history.

    >>> from udp_stream.ledger.memory import MemoryLedger
    >>> from udp_stream.release.history import LedgerHistory
    >>> from udp_stream.testing import a_context, two_hats
    >>> (counts, _), context, ledger = two_hats(), a_context(), MemoryLedger()
    >>> balances, in_period = lambda: ledger.balances("1d", counts.plates), context.calendar.slot_in_period(0)
    >>> public = LedgerHistory(ledger), HatPlans(context.policy.public)
    >>> terms = from_counts(counts, balances, in_period, context.policy, *public)
    >>> [(one.withheld, one.mean_nano) for one in terms]
    [('', 500000000), ('few_plates', 0)]
    """
    del history
    return terms_from_counts(counts, balances(), in_period, policy, plans)


def around_forecasts(forecaster: Forecaster) -> Planner:
    """The planner that takes means around what this forecaster says.

    >>> from udp_stream.ledger.memory import MemoryLedger
    >>> from udp_stream.release.history import LedgerHistory
    >>> from udp_stream.testing import a_context, two_hats
    >>> (counts, _), context, ledger = two_hats(), a_context(), MemoryLedger()
    >>> planner = around_forecasts(Forecaster(context.calendar.slots, context.policy.max_speed, "udp-stream 1.0"))
    >>> balances, in_period = lambda: ledger.balances("1d", counts.plates), context.calendar.slot_in_period(0)
    >>> public = LedgerHistory(ledger), HatPlans(context.policy.public)
    >>> [one.forecast.value for one in planner(counts, balances, in_period, context.policy, *public)]
    [13.291, 17.352]
    """

    def planner(
        counts: SlotCounts,
        balances: Balances,
        in_period: SlotInPeriod,
        policy: Policy,
        history: History,
        plans: HatPlans,
    ) -> Sequence[Terms]:
        del balances
        return terms_around(counts, forecaster.forecast(counts, history), in_period, policy, plans)

    return planner


def _nothing() -> None:
    """What is to be done before the first charge, if nothing is."""


def unkeyed(text: str) -> bytes:
    """A hash that anyone can compute: for ledgers that end with the process.

    >>> len(unkeyed("what is secret"))
    16
    """
    return blake2b(text.encode(), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class ReleaseContext:
    """What every slot of a deployment needs: settings, calendar, bits, the software's name for records, a planner.

    `caveats` and `trial` go into every record: facts about the ledger that it was made on. `before_charge` is called
    each time before plates are charged. `forecaster` is shown every slot, if there is one. `keyed` hashes with the
    plates' key what a ledger has to recognise and no reader of it may guess. `city` is what slots are asked as a whole,
    if anything.

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
    forecaster: Forecaster | None = None
    keyed: Callable[[str], bytes] = unkeyed
    city: CityQuestion | None = None

    def smoothed(self, slot: Slot, ledger: Ledger) -> list[Smoothed]:
        """The smoothed estimates of a slot, all of which is recorded; once for each slot. None without a forecaster."""
        return [] if self.forecaster is None else self.forecaster.smoothed(slot, LedgerHistory(ledger))


def with_forecaster(context: ReleaseContext) -> ReleaseContext:
    """The same with a forecaster that has learnt nothing yet, and with plans around its forecasts where the policy asks
    for them.

    A forecaster must see every slot in its order: a worker that takes over the planning needs one of its own.

    >>> from udp_stream.testing import a_context
    >>> given = a_context()
    >>> made = with_forecaster(given)
    >>> given.forecaster is None, made.forecaster is None, made.planner is from_counts
    (True, False, True)
    """
    policy = context.policy
    forecaster = Forecaster(context.calendar.slots, policy.max_speed, context.software)
    planner = around_forecasts(forecaster) if policy.forecasts else context.planner
    return replace(context, forecaster=forecaster, planner=planner)
