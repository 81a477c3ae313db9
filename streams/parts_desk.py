"""The desk of the parts: a shard for each of our partitions, and for partition 0 the planner of all shards.

What follows from a log of parts, slot by slot in order of time:

* A slot that all sources have closed is counted, and its counts go to the planner, on partition 0; with them, or
  alone, goes up to when the shard has counted everything.
* A slot that all shards have counted is planned and charged, once, and each shard is sent its part of the plan, on its
  own partition.
* A slot whose plan has come is released.

Each step is taken by all replicas before the frontier lets go of what it followed from, and repeats of it change
nothing, so dying anywhere does it again with the same outcome. A shard's frontier holds on to the parts of a slot until
it is released, and the plan lies behind them; the planner's holds on to the counts until every plan is sent. Partition
0 has both. A slot's releases are published, and with them or after them the frontier lets go of its parts
(`publishing.py`); then the ledger is told. Whoever dies before that leaves it to the next holder. Frontiers are moved
one commit after the other: one that arrived late would take back what was published meanwhile.

The planner charges under the fence of partition 0, shards record under their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar, runtime_checkable

from faust.types import TP

from streams.binding import Binding, mark_header, mark_in, require_same
from streams.driver import drive
from streams.headers import release_headers
from streams.notes import PartsNote, decode_note, encode_note
from streams.offsets import Committed, Offsets
from streams.outlet import Message, Outlet
from streams.publishing import AtLeastOnce, Publisher, PublisherOf, settle
from streams.topics import Topics
from udp_stream.adapters.embedded import Summary
from udp_stream.errors import DependencyUnavailable, Fenced
from udp_stream.ledger.port import Ledger, Mark
from udp_stream.planning.slot_plan import SlotPlan, cut_plan
from udp_stream.release.record import decode
from udp_stream.release.road import Office, Payloads, Publish, plan_slot, release_planned
from udp_stream.shuffle.barrier import Gathering
from udp_stream.shuffle.count_chunks import Tallied, Tally, cut_counts, merge_counts
from udp_stream.shuffle.ping_chunks import shard_of
from udp_stream.shuffle.shard import Shard, counts_of_shards
from udp_stream.shuffle.wire import Message as PartsMessage
from udp_stream.shuffle.wire import decode_message, encode_message
from udp_stream.windows.slot_tables import SlotCounts, SlotValues, tabulate

PLANNER = 0
"""The partition of parts whose holder plans for all shards."""

T = TypeVar("T")


@runtime_checkable
class Fencing(Protocol):
    """A ledger that lets only the latest holder of a shard charge and record."""

    def take_epoch(self, shard: str) -> int:
        """The next epoch; holders of earlier ones are refused from now on."""
        ...

    def fenced(self, fence: Any) -> Ledger:
        """The same ledger for the holder of (shard, epoch)."""
        ...


@dataclass(slots=True)
class _Place:
    """A partition at the desk. `tables` are the slots that are counted and wait for their plans.

    `safe` is False while the planner has not been told what the frontier takes for told, or readers what it takes for
    published."""

    partition: int
    shard: Shard
    planner: Gathering[Tally] | None
    ledger: Ledger
    publisher: Publisher
    told_ms: int
    tables: dict[int, tuple[SlotCounts, SlotValues]] = field(default_factory=dict)
    safe: bool = True
    noted: PartsNote | None = None

    def take(self, offset: int, message: PartsMessage) -> None:
        self.shard.take(offset, message)
        if self.planner is not None:
            self.planner.take(offset, message)

    def note(self) -> PartsNote:
        return PartsNote(self.shard.frontier(), None if self.planner is None else self.planner.frontier())


class PartsDesk:
    """What this worker does with the partitions of parts that it has."""

    def __init__(
        self,
        office: Office,
        topics: Topics,
        offsets: Offsets,
        outlet: Outlet,
        ledger: Ledger,
        binding: Binding,
        thread: ThreadPoolExecutor,
        accept_loss: bool = False,
        publisher_of: PublisherOf | None = None,
    ) -> None:
        """An empty desk. The ledger is called in `thread` alone. Without `publisher_of`, at least once."""
        self._binding = binding
        self._mark: Mark | None = None
        self._office = office
        self._topics = topics
        self._offsets = offsets
        self._outlet = outlet
        self._ledger = ledger
        self._thread = thread
        self._accept_loss = accept_loss
        self._publisher_of = self._at_least_once if publisher_of is None else publisher_of
        self._places: dict[int, _Place] = {}
        self._made: SlotPlan | None = None
        self._clears = 0
        self._closing: set[asyncio.Future[None]] = set()
        self._committing = asyncio.Lock()
        self.summary = Summary()

    def clear(self) -> None:
        """The partitions are no longer ours: forget everything at once."""
        self._clears += 1
        for place in self._places.values():
            self._let_go(place.publisher)
        self._places = {}

    async def close(self) -> None:
        """Let go of all partitions, and of what publishes for them."""
        self.clear()
        await asyncio.gather(*self._closing)

    def next_offsets(self) -> dict[TP, int]:
        """Up to where each of our partitions is read."""
        name = self._topics.parts.name
        return {TP(name, partition): place.shard.next_offset for partition, place in self._places.items()}

    async def assign(self, tps: set[TP]) -> None:
        """These partitions are ours: fence off whoever had them, and only then read from where to go on."""
        self.clear()
        clears = self._clears
        publishers = dict(zip(tps, await asyncio.gather(*map(self._publisher_of, tps)), strict=True))
        places: dict[int, _Place] = {}
        try:
            places = await self._taken_over(publishers)
        finally:
            if places and clears == self._clears:
                self._places = places
            else:  # it failed, or they were revoked again meanwhile
                for publisher in publishers.values():
                    self._let_go(publisher)

    async def _taken_over(self, publishers: Mapping[TP, Publisher]) -> dict[int, _Place]:
        tps, shards = set(publishers), self._topics.parts.partitions
        committed, first = await self._offsets.committed(tps), await self._offsets.first(tps)
        places = {}
        for tp, publisher in publishers.items():
            note = await self._noted(tp, committed[tp], first[tp])
            place = self._place(tp, note, await self._fenced(tp), publisher)
            done_ms = place.note().shard.done_ms
            await self._aside(lambda tp=tp, done_ms=done_ms: settle(self._ledger, tp.partition, shards, done_ms))  # type: ignore[misc]
            places[tp.partition] = place
        return places

    def _let_go(self, publisher: Publisher) -> None:
        closing = asyncio.ensure_future(publisher.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _at_least_once(self, _tp: TP) -> Publisher:
        return AtLeastOnce(self._outlet, self._offsets)

    async def _noted(self, tp: TP, committed: Committed, first: int) -> PartsNote:
        """The frontiers to go on from. PrivacyRefused if whoever noted them works on another ledger, or if ours has not
        come as far as theirs had."""
        if committed.offset < 0:
            return PartsNote.at(first)
        noted = decode_note(committed.metadata, committed.offset)
        if noted.binding is not None:
            self._binding.require(noted.binding, f"the worker that last committed {tp.topic}[{tp.partition}]")
        if noted.mark is not None:
            await self._aside(lambda: self._ledger.compare(noted.mark))
            self._know(noted.mark)
        if first > committed.offset and not self._accept_loss:
            raise DependencyUnavailable(
                f"{tp.topic}[{tp.partition}] begins at offset {first}, but is still needed from {committed.offset} "
                "on: parts were deleted before they were released. `udp-stream worker --accept-loss` goes on "
                "without them"
            )
        return noted.frontiers

    def _know(self, mark: Mark | None) -> None:
        """Another worker has seen the ledger come as far as this."""
        if mark is not None and (self._mark is None or mark.at_least(self._mark)):
            self._mark = mark

    def _place(self, tp: TP, note: PartsNote, ledger: Ledger, publisher: Publisher) -> _Place:
        shard = Shard(self._offsets.partitions(self._topics.pings.name), note.shard, self._accept_loss)
        planner = None
        if tp.partition == PLANNER:
            planner = counts_of_shards(self._topics.parts.partitions, note.planner, self._accept_loss)
        return _Place(tp.partition, shard, planner, ledger, publisher, shard.through_ms)

    async def _fenced(self, tp: TP) -> Ledger:
        if not isinstance(self._ledger, Fencing):
            return self._ledger
        from udp_stream.adapters.ledgers.redis.ledger import Fence

        ledger, name = self._ledger, f"{tp.topic}/{tp.partition}"
        epoch = await self._aside(lambda: ledger.take_epoch(name))
        return ledger.fenced(Fence(name, epoch))

    async def take(self, records: Sequence[Any]) -> None:
        """A batch of one partition: take it in, do what is due, move the frontier."""
        place = self._places.get(records[0].partition)
        if place is None:
            return
        place.safe = False
        for one in records:
            require_same(self._binding, one.headers, f"the writer of {one.topic}[{one.partition}] at {one.offset}")
            self._know(mark_in(one.headers))
            place.take(one.offset, decode_message(one.value))
        try:
            done = [await self._tell(place), await self._plan(place), await self._release(place)]
        except Fenced:
            await self._lost(place)
            return  # whoever has it now does the same
        if any(done):
            await self.commit()

    async def _lost(self, place: _Place) -> None:
        """Another worker holds this shard, though the group may not have told us yet: leave it, and ask to be told."""
        if self._ours(place):
            self._let_go(self._places.pop(place.partition).publisher)
            await self._offsets.rejoin()

    def _ours(self, place: _Place) -> bool:
        return self._places.get(place.partition) is place

    async def _tell(self, place: _Place) -> bool:
        """Count what is closed, and tell the planner, also where that is nothing."""
        messages: list[Tally | Tallied] = []
        for start in place.shard.due():
            table = await self._aside(lambda start=start: tabulate(place.shard.gather(start)))  # type: ignore[misc]
            place.tables[start] = table
            self.summary.repeats += table[0].repeats
            if place.shard.plan(start) is None:
                messages += cut_counts(table[0], place.partition)
        through = place.shard.through_ms
        if through > place.told_ms:
            messages.append(Tallied(place.partition, through))
        await self._send(PLANNER, messages)
        place.told_ms, place.safe = through, True
        return bool(messages)

    async def _plan(self, place: _Place) -> bool:
        """Plan the slots that all shards have counted; send each shard its part."""
        planner = place.planner
        due = [] if planner is None else planner.due()
        for start in due:
            if planner is None or not self._ours(place):
                break
            tallies = planner.gather(start)
            counts = await self._aside(lambda tallies=tallies: merge_counts(tallies))  # type: ignore[misc]
            plan = await drive(plan_slot(counts, self._office), place.ledger, _publish_no_plan, self._thread)
            # A plan that was charged on an older copy of the ledger must not outlive it in the log.
            await self._aside(lambda: place.ledger.compare(self._mark))
            await self._hand_out(counts, plan)
            planner.done(start)
            self._made = plan
        return bool(due)

    async def _hand_out(self, counts: SlotCounts, plan: SlotPlan) -> None:
        """To each shard that has counted something, its part of the plan, be it without HATs."""
        shards = self._topics.parts.partitions
        of_plan, concerned = shard_of(plan.cells, shards), set(shard_of(counts.cells, shards).tolist())
        for shard in sorted(concerned):
            await self._send(shard, list(cut_plan(plan.only(of_plan == shard), shard)))

    async def _release(self, place: _Place) -> bool:
        """Release the slots that are planned, oldest first."""
        released = False
        for start, (counts, values) in sorted(place.tables.items()):
            plan = place.shard.plan(start)
            if plan is None or not self._ours(place):
                break
            if self._made is not None:  # our own planner has worked out most of it
                plan = plan.reusing(self._made)
            flow = release_planned(counts, values, plan, self._office)
            payloads = await drive(flow, place.ledger, partial(self._publish, place, start), self._thread)
            self.summary.take(payloads)
            released = True
        return released

    async def _publish(self, place: _Place, start: int, publish: Publish) -> None:
        """Publish a slot, with the frontier that lets go of it, once no other commit is under way."""
        async with self._committing:
            if not self._ours(place):
                raise Fenced("a rebalance has taken the shard")
            place.safe = False  # until it is published, this frontier is nobody else's to commit
            place.shard.released(start)
            del place.tables[start]
            to = place.note()
            self._know(publish.mark)
            await place.publisher.publish(self._messages(publish.releases), self._commits({place.partition: to}))
            place.noted, place.safe = to, True

    async def _send(self, partition: int, messages: Sequence[PartsMessage]) -> None:
        name = self._topics.parts.name
        headers = [self._binding.header, *mark_header(self._mark)]
        await self._outlet.write(
            Message(name, encode_message(one), headers=headers, partition=partition) for one in messages
        )

    async def _aside(self, work: Callable[[], T]) -> T:
        """Something that takes a while, in the ledger's thread, where it holds up nothing but the ledger."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _messages(self, payloads: Payloads) -> list[Message]:
        """Each record to those who want all, and to those who want the latest of each cell."""
        source = f"udp-stream/{self._topics.release.name}"
        headed = [(cell.encode(), payload, release_headers(decode(payload), source)) for _, cell, payload in payloads]
        return [
            Message(topic, payload, key=cell, headers=headers)
            for topic in (self._topics.release.name, self._topics.latest.name)
            for cell, payload, headers in headed
        ]

    async def commit(self) -> None:
        """Note the frontiers that have moved, where the planner knows all that they take for told.

        To the end, though nobody may wait for it any more: until it has arrived nothing else may move a frontier.
        """
        await asyncio.shield(self._commit())

    async def _commit(self) -> None:
        async with self._committing:
            moved = {partition: (place, place.note()) for partition, place in self._places.items() if place.safe}
            moved = {partition: (place, to) for partition, (place, to) in moved.items() if to != place.noted}
            if moved and await self._offsets.commit(self._commits({p: to for p, (_, to) in moved.items()})):
                for place, to in moved.values():
                    place.noted = to

    def _commits(self, notes: Mapping[int, PartsNote]) -> dict[TP, Committed]:
        name = self._topics.parts.name
        return {
            TP(name, partition): Committed(to.offset, encode_note(to, self._binding.text, self._mark))
            for partition, to in notes.items()
        }


async def _publish_no_plan(_publish: Publish) -> None:
    raise AssertionError("planning publishes nothing")
