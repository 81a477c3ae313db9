"""One partition in the hands of a worker: what it does by itself, and which of its states cannot be
told apart.

Two partitions have one number, which `whole.py` sees, if nothing that follows can tell them apart.

**Told apart by what readers see, not by the log.** A log is kept as what a reader holds that
resumes at any checkpoint that may be committed, now or later: `SlotBarrier` reads in order, hence
logs that give each reader the same give the same after every further message. `test_whole.py`
checks it. Where plans follow from releases, a reader resumes at the first of its two checkpoints,
and what shards say of their releases is kept beside what the reader holds.

**Unread messages are kept as what the reader would hold had it read them.** Messages may be added
between any two steps, and a step does not look at what was added behind it. The same check covers
this.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.forms import changed
from tests.protocol.explore import HOUR, OFFSETS, SOURCES, START, Actor, World, freeze
from udp_stream.shuffle import protocol as shard_protocol
from udp_stream.shuffle import wire as source_protocol
from udp_stream.shuffle.protocol import (
    NOT_YET,
    BarrierCheckpoint,
    CountSlot,
    ReleaseSlot,
    ShardCheckpoint,
    ShardProtocol,
    SlotBarrier,
)
from udp_stream.shuffle.wire import (
    CountChunk,
    CountsEnd,
    PlanChunk,
    ReleaseMarker,
    SourceProtocol,
    decode_message,
)
from udp_stream.windows.slots import SourceCheckpoint, SourceReader
from udp_stream.windows.tables import tabulate

DONE = (NOT_YET, START + HOUR, START + 2 * HOUR)
"""All values that the time may have up to which slots are done."""

Point = tuple[int, tuple[int, ...]]
"""Where a reader may resume: an offset, and what each sender has closed by then."""


class Part(NamedTuple):
    """A partition in the hands of a worker.

    `log` is what was appended to it, without a fault to come only what is unread. `is_busy` from
    the moment steps are asked for until none is due; nothing is read meanwhile. `delivered` are the
    logs that have its messages already, `stage` is 1 once its release is recorded and 2 once it is
    published. `commits` are the checkpoints that may be the last one committed: whether a plain
    commit has come is told only by the fault that follows.
    """

    local: int
    log: tuple[int, ...] = ()
    is_busy: bool = False
    delivered: tuple[int, ...] = ()
    stage: int = 0
    commits: tuple[int, ...] = ()


class Parts:
    """Partitions by number, and their own steps. `is_last`: no fault is to come, so nobody reads
    again."""

    def __init__(self, world: World, is_merged: bool = True) -> None:
        """Without `is_merged`, only partitions that are equal in all that they hold have one
        number."""
        self.world, self.is_merged, self.is_last = world, is_merged, False
        self.parts: list[Part] = []
        self._numbers: dict[Any, int] = {}
        self._bares: dict[Any, int] = {}
        self.memo: dict[Any, Any] = {}

    def _cached(self, key: Any, work: Callable[[], Any]) -> Any:
        if key not in self.memo:
            self.memo[key] = work()
        return self.memo[key]

    # --- which can be told apart ---

    def number(self, i: int, part: Part) -> int:
        return self._cached(("number", i, self.is_last, part), lambda: self._numbered(i, part))

    def _numbered(self, i: int, part: Part) -> int:
        key = self.is_last, self.key(i, part) if self.is_merged else (i, part)
        if key not in self._numbers:
            self._numbers[key] = len(self.parts)
            self.parts.append(part)
        return self._numbers[key]

    def key(self, i: int, part: Part) -> Any:
        """Equal for partitions that nothing can tell apart."""
        if i in SOURCES:
            return i, part
        caught_up, own = self._added(part).local, part[2:5]
        if self.is_last:
            return i, part.local, caught_up, own
        protocol = self.world.locals.objects[caught_up]
        commits: list[ShardCheckpoint] = [
            self.world.checkpoints.objects[one] for one in part.commits
        ]
        held, runs, refs = self._view(
            shard_at, part.log, protocol._pings, [one.shard for one in commits]
        )
        seen: Any = (held, runs)
        if protocol._planner is not None:
            barrier = protocol._planner.counts
            held, runs, more = self._view(
                counts_at, part.log, barrier, [one.planner for one in commits]
            )
            seen, refs = (seen, held, runs), tuple(zip(refs, more, strict=True))
        return i, self._bare(part.local), self._bare(caught_up), own, seen, frozenset(refs)

    def _bare(self, local: int) -> int:
        def work() -> int:
            frozen = freeze(self.world.locals.objects[local], self.world.locals.before, OFFSETS)
            return self._bares.setdefault(frozen, len(self._bares))

        return self._cached(("bare", local), work)

    def _view(
        self, reader: Any, log: tuple[int, ...], barrier: SlotBarrier[Any], commits: list[Any]
    ) -> tuple[Any, Any, tuple[Any, ...]]:
        """Of one barrier: where its slots are held from, what readers hold from there, and what may
        be committed."""
        held = [
            (start, self._point(reader, log, one.checkpoint))
            for start, one in sorted(barrier._held.items())
        ]
        committed = [(self._point(reader, log, one), one.done_ms) for one in commits]
        todo = committed + [
            (point, done) for _, point in held for done in DONE if done >= barrier._done_ms
        ]
        runs: dict[tuple[Point, int], Any] = {}
        while todo:
            if (seed := todo.pop()) in runs:
                continue
            (offset, through), done = seed
            frozen, slots = self._run(reader, log[offset:], through, done)
            at = [
                (start, self._point(reader, log, BarrierCheckpoint(offset + o, t)))
                for start, o, t in slots
            ]
            todo += [(point, later) for _, point in at for later in DONE if later >= done]
            runs[seed] = frozen, at
        rank = {point: k for k, point in enumerate(sorted({point for point, _ in runs}))}
        named = tuple(
            (
                rank[point],
                point[1],
                done,
                runs[point, done][0],
                tuple((s, rank[p]) for s, p in runs[point, done][1]),
            )
            for point, done in sorted(runs)
        )
        return (
            tuple((s, rank[p]) for s, p in held),
            named,
            tuple((rank[p], done) for p, done in committed),
        )

    def _point(self, reader: Any, log: tuple[int, ...], at: BarrierCheckpoint) -> Point:
        """Behind the messages that change nothing for whoever resumes here."""
        through = at.through_ms + (NOT_YET,) * (self._senders(reader) - len(at.through_ms))
        return at.offset + self._skipped(reader, log[at.offset :], through), through

    def _senders(self, reader: Any) -> int:
        return self.world.sources if reader is shard_at else 2

    def _skipped(self, reader: Any, tail: tuple[int, ...], through: tuple[int, ...]) -> int:
        def work() -> int:
            for n in range(len(tail)):
                some = tail[: n + 1]
                if any(
                    self._run(reader, some, through, d) != self._run(reader, (), through, d)
                    for d in DONE
                ):
                    return n
            return len(tail)

        return self._cached(("skipped", reader, tail, through), work)

    def _run(self, reader: Any, tail: tuple[int, ...], through: tuple[int, ...], done: int) -> Any:
        """What a reader holds that resumes before these messages, and from where it holds it."""

        def work() -> Any:
            start = BarrierCheckpoint(0, through, done)
            one = reader(self._senders(reader), start)
            for offset, message in enumerate(tail):
                one.add(offset, self._message(message))
            barrier, plans = (one._pings, one._plans) if reader is shard_at else (one, {})
            held = sorted(barrier._held.items())
            slots = [
                (s, h.end_ms, sorted(h.chunks), sorted(h.missing.items()), h.collected)
                for s, h in held
            ]
            planned = [
                (s, sorted((n, d) for d, some in of._sets.items() for n in some))
                for s, of in sorted(plans.items())
            ]
            released = self._released(tail) if self.world.follows else ()
            frozen = freeze(
                (barrier._through, barrier._done_ms, slots, planned, released),
                self.world.locals.before,
            )
            return frozen, tuple((s, h.checkpoint.offset, h.checkpoint.through_ms) for s, h in held)

        return self._cached(("run", reader, tail, through, done), work)

    def _released(self, tail: tuple[int, ...]) -> tuple[int, ...]:
        """What each shard has released, as far as these messages say."""
        said = [one for one in map(self._message, tail) if isinstance(one, ReleaseMarker)]
        return tuple(
            max([NOT_YET, *(one.through_ms for one in said if one.shard == shard)])
            for shard in (0, 1)
        )

    def may_matter_later(self, messages: tuple[int, ...]) -> bool:
        """Whether a plan is among them, or what a shard has released: if it changes nothing now, it
        may yet."""
        key = "may matter", messages
        found = self.memo.get(key)
        if found is None:
            found = self.memo[key] = any(
                isinstance(self._message(one), PlanChunk | ReleaseMarker) for one in messages
            )
        return found

    def _message(self, number: int) -> Any:
        return self._cached(
            ("message", number), lambda: decode_message(self.world.messages.objects[number])
        )

    # --- its own steps ---

    def first(self, i: int) -> Part:
        start = SourceCheckpoint(0) if i in SOURCES else ShardCheckpoint.at(0)
        return self.resumed(i, self.world.checkpoints.number(start), ())

    def resumed(self, i: int, commit: int, log: tuple[int, ...]) -> Part:
        start = self.world.checkpoints.objects[commit]
        if i in SOURCES:
            protocol: Any = SourceProtocol(i, 2, SourceReader(self.world.rules, start))
        else:
            protocol = ShardProtocol(
                i - 2, 2, self.world.sources, start, follows=self.world.follows
            )
        local = self.world.locals.number(protocol, self._without)
        if self.is_last:
            return self.settled(i, Part(local, () if i in SOURCES else log[protocol.next_offset :]))
        return self.settled(i, Part(local, log, commits=(commit,)))

    def last(self, i: int, part: Part) -> Part:
        protocol = self.world.locals.objects[part.local]
        unread = () if i in SOURCES else part.log[protocol.next_offset :]
        return changed(
            part, local=self.world.locals.number(protocol, OFFSETS), log=unread, commits=()
        )

    @property
    def _without(self) -> frozenset[str]:
        return OFFSETS if self.is_last else frozenset()

    def local(self, part: Part, event: Any, do: Callable[[Any], object]) -> Part:
        def work() -> int:
            protocol = self.world.locals.fresh(part.local)
            do(protocol)
            return self.world.locals.number(protocol, self._without)

        return changed(part, local=self._cached(("local", part.local, event), work))

    def step(self, part: Part) -> Any:
        """What it does next, or would begin with."""
        return self._cached(
            ("step", part.local), lambda: self.world.locals.fresh(part.local).next()
        )

    def with_commit(self, part: Part) -> Part:
        to = (
            None
            if self.is_last or part.stage
            else self._cached(("to", part.local), lambda: self._to(part))
        )
        return part if to is None else changed(part, commits=tuple(sorted({*part.commits, to})))

    def _to(self, part: Part) -> int | None:
        protocol, step, too_early = (
            self.world.locals.fresh(part.local),
            self.step(part),
            self.world.planted,
        )
        if too_early.commits_too_early and isinstance(step, ReleaseSlot):
            return self.world.checkpoints.number(protocol._checkpoint(released=step.start))
        is_safe = protocol.may_commit or too_early.commits_too_early
        return self.world.checkpoints.number(protocol.checkpoint()) if is_safe else None

    def settled(self, i: int, part: Part) -> Part:
        return self._settled_source(i, part) if i in SOURCES else self._settled_shard(part)

    def _settled_source(self, i: int, part: Part) -> Part:
        while True:
            part = self.with_commit(part)
            offset = self.world.locals.objects[part.local].reader.next_offset
            unread = [one for one in self.world.batches[i] if one[1].offset[-1] >= offset]
            if self.step(part) is not None or not unread:
                return part
            part = self.local(part, "read", lambda protocol, batch=unread[0]: protocol.read(*batch))

    def _settled_shard(self, part: Part) -> Part:
        """A busy one counts what is to be counted; one that is not adds all that was appended."""
        while part.is_busy:
            if isinstance(self.step(part), CountSlot):
                part = self.local(part, "count", _count)
            elif self.step(part) is None:
                part = changed(part, is_busy=False)
            else:
                return self.with_commit(part)
        return self.with_commit(self._added(part))

    def begun(self, part: Part) -> Part:
        """The batch is over: its steps are asked for."""
        return self._settled_shard(changed(self.local(part, "begin", _next), is_busy=True))

    def _added(self, part: Part) -> Part:
        at = self.world.locals.objects[part.local].next_offset
        unread = part.log if self.is_last else part.log[at:]

        def do(protocol: ShardProtocol) -> None:
            for offset, message in enumerate(unread, at):
                protocol.add(offset, self._message(message))

        if unread:
            part = self.local(part, ("add", at, unread), do)
        return changed(part, log=()) if self.is_last else part

    def appended(self, i: int, number: int, messages: tuple[int, ...]) -> int:
        key = "all appended", number, messages
        found = self.memo.get(key)
        if found is None:
            found = self.memo[key] = self._all_appended(i, number, messages)
        return found

    def _all_appended(self, i: int, number: int, messages: tuple[int, ...]) -> int:
        for message in messages:
            number = self._cached(
                ("appended", number, message),
                lambda: self._appended(i, number, message),  # noqa: B023
            )
        return self._cached(
            ("settled", number), lambda: self.number(i, self._settled_shard(self.parts[number]))
        )

    def _appended(self, i: int, number: int, message: int) -> int:
        part = self.parts[number]
        return self.number(i, changed(part, log=(*part.log, message)))

    def sends(self, i: int, part: Part) -> dict[int, tuple[int, ...]]:
        """By log, the messages of its step that are not sent yet; none if it is at something else."""
        is_sending = isinstance(
            self.step(part), source_protocol.SendChunks | shard_protocol.SendMessages
        )
        if not is_sending or not (part.is_busy or i in SOURCES):
            return {}
        return self.world.sends(i, Actor(part.local, part.delivered))

    def delivered(self, i: int, part: Part, log: int) -> Part:
        if len(self.sends(i, part)) > 1:
            return changed(part, delivered=tuple(sorted((*part.delivered, log))))
        part = self.local(part, "sent", _done if i in SOURCES else _sent)
        return self.settled(i, changed(part, delivered=()))


def shard_at(sources: int, start: BarrierCheckpoint) -> ShardProtocol:
    return ShardProtocol(1, 2, sources, ShardCheckpoint(start))


def counts_at(shards: int, start: BarrierCheckpoint) -> SlotBarrier[CountChunk]:
    return SlotBarrier(CountChunk, CountsEnd, shards, start)


def _next(protocol: ShardProtocol) -> None:
    protocol.next()


def _done(protocol: SourceProtocol) -> None:
    step = protocol.next()
    assert step is not None
    protocol.done(step)


def _sent(protocol: ShardProtocol) -> None:
    step = protocol.next()
    assert isinstance(step, shard_protocol.SendMessages)
    protocol.sent(step)
    protocol.next()


def _count(protocol: ShardProtocol) -> None:
    step = protocol.next()
    assert isinstance(step, CountSlot)
    protocol.counted(step.start, *tabulate(step.pings))
    protocol.next()
