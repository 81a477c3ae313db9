"""The pipeline of a closed slot, and the promises that fill in its steps: a `Promise` for each
neighbour relation.

`release_slot` is the page to read first: the order of its steps is the guarantee. The embedded
runtime takes them all at once. On Kafka a single planner charges for many shards (`Promise.plan`),
and each shard draws and publishes its own cells (`Promise.record`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from udp_stream.ledger.port import Ledger, LedgerView
from udp_stream.planning.policy import Policy
from udp_stream.planning.slot import PlannedSlot, SlotPlan
from udp_stream.release.add_remove import (
    SumsSlot,
    plan_sums,
    record_add_remove_slot,
    with_sums_forecaster,
)
from udp_stream.release.charge import ReleaseContext, budget_left, plan_slot, with_forecaster
from udp_stream.release.pipeline import (
    RecordedSlot,
    hour_norms,
    record_city,
    record_hour,
    record_slot,
    slot_factors,
    slot_sums,
)
from udp_stream.windows.tables import SlotCounts, SlotValues

Factors = Mapping[bytes, int] | None
"""Those of plates' clips, where plates share any."""


@dataclass(frozen=True)
class Promise:
    """The steps of a slot under a neighbour relation. Its words, and whether counts are public, are
    in the `NeighbourRelation` of the same name.

    `learns`: whether a slot follows from records of earlier slots, which are then released in
    order. `with_forecaster` gives a context a new forecaster, and plans around its forecasts where
    the policy asks for them. A forecaster must see every slot in its order: a worker that takes
    over needs a new one. `plan` charges the whole slot before any speed is looked at, as far as
    charges follow from public counts; first, unless it is told not to, a question to the city, once
    whose answer is recorded the slot is planned again. `record` draws and records a slot, or a
    shard's part of it, as far as that is not done yet; charges that the plan has not made come
    before the draw. `keep`, where a promise sums a day at its end, keeps what is needed of a
    released slot.

    >>> from udp_stream.testing import a_context
    >>> policy = a_context().policy
    >>> promise_of(policy) is PROMISES["swap-values"], PROMISES["add-remove"].learns(policy)
    (True, True)
    """

    learns: Callable[[Policy], bool]
    with_forecaster: Callable[[ReleaseContext], ReleaseContext]
    plan: Callable[[SlotCounts, ReleaseContext, Ledger, bool], SlotPlan]
    record: Callable[[PlannedSlot, SlotValues, ReleaseContext, Ledger, Factors], RecordedSlot]
    keep: Callable[[SlotCounts, SlotValues, ReleaseContext, Ledger], object] | None = None

    def budget_left(
        self,
        counts: SlotCounts,
        context: ReleaseContext,
        ledger: Ledger,
        seen: LedgerView | None = None,
    ) -> float | None:
        """The share of the period's budget that is left of the slot's plates, on average; None
        where charges are secret. `seen` is the ledger after the slot's charges, if at hand."""
        if not context.policy.relation.public_counts:
            return None
        if seen is None:
            period = context.calendar.slot_in_period(counts.start_ms).period
            seen = ledger.view(period, counts.plates, ())
        return budget_left(counts, seen.balance, context.policy)


PROMISES: dict[str, Promise] = {
    "swap-values": Promise(
        learns=lambda policy: policy.forecasts,
        with_forecaster=with_forecaster,
        plan=plan_slot,
        record=record_slot,
    ),
    "add-remove": Promise(
        learns=lambda _: True,
        with_forecaster=with_sums_forecaster,
        plan=lambda counts, context, ledger, _asks: plan_sums(counts, context, ledger),
        record=lambda slot, values, context, ledger, _factors: record_add_remove_slot(
            slot.counts, values, context, ledger
        ),
        keep=lambda counts, values, context, ledger: SumsSlot(
            counts, values, context, ledger
        ).kept_for_day(),
    ),
}
"""By the value of a policy's `neighbours`."""


def promise_of(policy: Policy) -> Promise:
    """The promise that a policy makes."""
    return PROMISES[policy.neighbours]


def release_slot(
    counts: SlotCounts,
    values: SlotValues,
    context: ReleaseContext,
    ledger: Ledger,
    publish: Callable[[RecordedSlot], None],
) -> RecordedSlot:
    """Release every HAT of a closed slot: `publish` has handed them to their readers when it
    returns."""
    # counts: plates, cells, samples per plate and cell; public. values: their speeds; secret.
    #
    # CHARGE. Terms of each HAT, and what the ledger charged each of its rows. No speed was looked
    # at. A promise whose charges follow from secret counts charges as it records.
    promise = promise_of(context.policy)
    plan = promise.plan(counts, context, ledger, True)
    slot = PlannedSlot(counts, plan, context.policy)
    # THE CITY'S HOUR. Where the plan is a question alone, HATs are planned around its answer.
    if plan.is_question:
        record_hour(context, hour_norms(slot, values), plan, ledger)
        plan = promise.plan(counts, context, ledger, False)
        slot = PlannedSlot(counts, plan, context.policy)
    # What is measured over the whole slot before a HAT is drawn, where anything is: a noisy answer
    # for the city, which is recorded; and how far each plate's speeds are scaled into the clip that
    # its HATs share.
    record_city(context, slot_sums(context, slot, values), plan, ledger)
    factors = slot_factors(slot, values, context, ledger)
    # DRAW, RECORD, MARK. The bytes of each HAT's only release, as the ledger holds them.
    recorded = promise.record(slot, values, context, ledger, factors)
    # PUBLISH. Readers have these bytes.
    publish(recorded)
    # INFORM. The ledger knows that they have them: no restart publishes them again.
    recorded.published(ledger)
    return recorded
