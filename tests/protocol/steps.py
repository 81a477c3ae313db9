"""The steps of a partition that others may see: what it sends, calls of the ledger, publishing.
Each is done once."""

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.forms import changed
from tests.protocol.explore import Planted, World, freeze
from tests.protocol.parts import Part, Parts
from udp_stream.planning.slot import PlannedSlot
from udp_stream.release.charge import plan_slot
from udp_stream.release.pipeline import record_slot
from udp_stream.shuffle.protocol import (
    LearnSlot,
    PlanSlot,
    ReleaseSlot,
    ShardCheckpoint,
    ShardProtocol,
)
from udp_stream.shuffle.wire import merge_counts

SOUND = Planted()


class Move(NamedTuple):
    """A step of a partition: what it is then, the book then, and what it appends to which log."""

    part: int
    book: int | None = None
    log: int | None = None
    messages: tuple[int, ...] = ()


class Steps:
    """What each partition may do, by its number and that of the book: the ledger and what is
    published."""

    def __init__(
        self, slots: int = 2, reads: int = 2, once: bool = True, planted: Planted = SOUND, is_reduced: bool = True,
        follows: bool = False, sources: int = 2,
    ) -> None:  # fmt: skip
        """A source reads all in one batch, and sends slots at once or in two. `follows`: plans
        follow from releases."""
        self.world = World(
            once,
            whole_batches=False,
            planted=planted,
            slots=slots,
            reads=reads,
            follows=follows,
            sources=sources,
        )
        self.parts = Parts(self.world, is_merged=is_reduced)
        self.is_reduced = is_reduced
        self.fence_wraps = 1 if planted.ignores_fences else planted.fence_wraps
        self.is_next_last = False
        self._lists: dict[str, list[Any]] = {"book": [], "late": [], "outcomes": []}
        self._numbers: dict[Any, int] = {}
        self.memo: dict[Any, Any] = {}

    def _number(self, kind: str, value: Any) -> int:
        key = kind, value
        if key not in self._numbers:
            self._numbers[key] = len(self._lists[kind])
            self._lists[kind].append(value)
        return self._numbers[key]

    def _cached(self, key: Any, work: Callable[[], Any]) -> Any:
        if key not in self.memo:
            self.memo[key] = work()
        return self.memo[key]

    def moves(self, i: int, number: int, book: int) -> tuple[Move, ...]:
        key: tuple[Any, ...] = ("moves", i, number)
        found = self.memo.get(key, self)
        if found is self:
            found = self.memo[key] = self._moves(i, number)
        if found is None:
            key = "act", i, number, book
            found = self.memo.get(key)
            if found is None:
                found = self.memo[key] = (self._act(i, number, book),)
        return found

    def _moves(self, i: int, number: int) -> tuple[Move, ...] | None:
        """None if it is the ledger's turn."""
        parts, part = self.parts, self.parts.parts[number]
        if parts.step(part) is None:
            return ()
        if sends := parts.sends(i, part):
            return tuple(
                Move(parts.number(i, parts.delivered(i, part, log)), None, log, messages)
                for log, messages in sends.items()
            )
        return None if part.is_busy else (Move(parts.number(i, parts.begun(part))),)

    def _act(self, i: int, number: int, book: int) -> Move:
        part, (ledger, published) = self.parts.parts[number], self._lists["book"][book]
        step = self.parts.step(part)
        if isinstance(step, PlanSlot):
            after, ledger = self._planned(part, ledger)
        elif isinstance(step, LearnSlot):
            self.world.require_recorded(ledger, step.end_ms)
            published = self.world._published(published, (self.world.learnt(step.start),))
            after = self._learnt(part)
        elif part.stage == 0:
            ledger, _ = self._recorded(part.local, ledger)
            return Move(
                self.parts.number(i, changed(part, stage=1)),
                self._number("book", (ledger, published)),
            )
        else:
            if part.stage == 1:
                published = self.world._published(published, self._recorded(part.local, ledger)[1])
            book = self._number("book", (ledger, published))
            if (
                part.stage == 1 and not self.world.once
            ):  # readers have it, and the commit has not come
                return Move(self.parts.number(i, changed(part, stage=2)), book)
            after = self._published(part)
        after = self.parts.settled(i, self.parts.with_commit(after))
        return Move(self.parts.number(i, after), self._number("book", (ledger, published)))

    def _planned(self, part: Part, ledger: int) -> tuple[Part, int]:
        def work() -> tuple[Any, Any, int]:
            step = self.world.locals.fresh(part.local).next()
            if self.world.follows:
                self.world.require_recorded(ledger, step.start)
            counts = merge_counts(step.chunks)
            plan, after = self._again(
                ledger, lambda context, port: plan_slot(counts, context, port)
            )
            return counts, plan, after

        counts, plan, after = self._cached(("plan", part.local, ledger), work)

        def do(protocol: ShardProtocol) -> None:
            step = protocol.next()
            assert isinstance(step, PlanSlot)
            protocol.planned(step.start, counts, plan)
            protocol.next()

        return self.parts.local(part, ("planned", freeze(plan, {})), do), after

    def _recorded(self, local: int, ledger: int) -> tuple[int, tuple[tuple[str, int], ...]]:
        def work() -> tuple[int, tuple[tuple[str, int], ...]]:
            step = self.world.locals.fresh(local).next()
            recorded, after = self._again(
                ledger,
                lambda context, port: record_slot(
                    PlannedSlot(step.counts, step.plan, context.policy), step.values, context, port
                ),
            )
            made = recorded.payloads.items()
            return after, tuple((id_, self.world.payloads.number(payload)) for id_, payload in made)

        return self._cached(("record", local, ledger), work)

    def _again(self, ledger: int, work: Callable[[Any, Any], Any]) -> tuple[Any, int]:
        """A repeat has other random bits and another policy than the first time, and must come to
        the first result."""
        for context in self.world.contexts[:2]:
            port = self.world.ledgers.fresh(ledger)
            before = len(port._admissions), len(port._recorded)
            found = work(context, port)
            if before != (len(port._admissions), len(port._recorded)):
                break
        port._recorded.sort()  # which shard was first is asked by nobody
        return found, self.world.ledgers.number(port)

    def _published(self, part: Part) -> Part:
        def do(protocol: ShardProtocol) -> ShardCheckpoint:
            step = protocol.next()
            assert isinstance(step, ReleaseSlot)
            to = protocol.recorded(step.start)
            protocol.published(step.start)
            return to

        return self._committed(part, do)

    def _learnt(self, part: Part) -> Part:
        def do(protocol: ShardProtocol) -> ShardCheckpoint:
            step = protocol.next()
            assert isinstance(step, LearnSlot)
            to = protocol.publishing(step)
            protocol.learnt(step)
            return to

        return self._committed(part, do)

    def _committed(self, part: Part, do: Callable[[ShardProtocol], ShardCheckpoint]) -> Part:
        def work() -> tuple[int, int]:
            protocol = self.world.locals.fresh(part.local)
            to = do(protocol)
            protocol.next()
            return self.world.locals.number(
                protocol, self.parts._without
            ), self.world.checkpoints.number(to)

        local, to = self._cached(("published", part.local), work)
        return changed(part, local=local, stage=0, commits=() if self.parts.is_last else (to,))
