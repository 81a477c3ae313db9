"""The road from a closed slot to published releases. Its order is the guarantee.

1. *Charge* (`charge.py`). It sees the counts of the whole slot, and no speed: price every HAT, then charge its plates.
2. *Draw* (`draw.py`). What the whole city is asked is drawn and recorded first (`whole_city.py`). Where plates share a
   clip among their HATs, the ledger remembers their lengths, and they are scaled into it (`balls.py`). Draw noise for
   the plates that were charged, then record. The ledger keeps the first record of a HAT; a second draw is dropped
   unseen.
3. *Publish* what the ledger holds, once its high-water mark is raised; then inform the ledger.

A crash between any two steps loses nothing and repeats nothing: the ledger remembers terms, verdicts and records, so
that the next run comes to the same bytes.

The embedded runtime takes the whole road at once, here. On Kafka one planner charges for many shards, and each shard
draws and publishes its own cells (`streams/shard_processor.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from udp_stream.ledger.port import Ledger
from udp_stream.release.balls import slot_factors
from udp_stream.release.charge import plan_slot
from udp_stream.release.context import ReleaseContext
from udp_stream.release.draw import RecordedSlot, record_slot
from udp_stream.release.whole_city import record_city, slot_sums
from udp_stream.windows.tables import SlotCounts, SlotValues


def release_slot(
    counts: SlotCounts,
    values: SlotValues,
    context: ReleaseContext,
    ledger: Ledger,
    publish: Callable[[RecordedSlot], None],
) -> RecordedSlot:
    """Release every HAT of a closed slot: `publish` has handed them to their readers when it returns.

    >>> from udp_stream.ledger.memory import MemoryLedger
    >>> from udp_stream.testing import a_context, two_hats
    >>> ledger = MemoryLedger()
    >>> slot = release_slot(*two_hats(), a_context(), ledger, publish=lambda slot: print(len(slot.payloads), "out"))
    2 out
    >>> [hat.status for hat in slot.hats], list(ledger.unpublished())
    (['released', 'withheld_few_plates'], [])
    """
    plan = plan_slot(counts, context, ledger)
    record_city(context.city, slot_sums(context.city, counts, values, plan), plan, context.entropy, ledger)
    factors = slot_factors(counts, values, plan, context, ledger)
    recorded = record_slot(counts, values, plan, context, ledger, factors)
    publish(recorded)
    return recorded.published(ledger)
