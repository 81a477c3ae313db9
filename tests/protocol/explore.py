"""Every order of what two workers can do over two source partitions, two shards and two slots, with
faults in between.

Protocols (`shuffle/`), counting, planning, drawing and ledger are the product's; only the broker is
a model: logs, committed offsets, and who owns what. Each local state is kept once and each local
step done once, so a state of the whole is a tuple of small numbers, and all can be visited.

A worker *crashes*: any part of what it was sending has arrived, and the other resumes from what was
committed. A *rebalance* hands a pair of partitions over; the old owner completes what it has begun.
Commits happen or do not. What only one partition can see is done at once: no other order could be
told from it. Messages to a log come in any order.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import itertools
import pickle
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import FunctionType
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tests.contract.dictionary_ledger import DictionaryLedger
from tests.forms import changed
from udp_stream.ledger.ids import Id, kind_of
from udp_stream.pings.decode import PingDecoder
from udp_stream.pings.json import JSON
from udp_stream.planning.slot import PlannedSlot
from udp_stream.release.charge import ReleaseContext, plan_slot
from udp_stream.release.pipeline import (
    factors_once,
    record_city,
    record_slot,
    slot_norms,
    slot_sums,
)
from udp_stream.release.record import Release
from udp_stream.settings import Settings, load
from udp_stream.shuffle.protocol import (
    CountSlot,
    MeasureNorms,
    PlanSlot,
    QueryCity,
    RecordNorms,
    ReleaseSlot,
    ShardCheckpoint,
    ShardProtocol,
)
from udp_stream.shuffle.wire import SourceProtocol, decode_message, encode_message, merge_counts
from udp_stream.testing import SeededEntropy
from udp_stream.windows.clocks import LogPlaces
from udp_stream.windows.slots import ReadingRules, SourceCheckpoint, SourceReader
from udp_stream.windows.tables import SlotCounts, SlotValues, tabulate

FLAGS = ("hat.slot=1h", "hat.timezone=UTC", "hat.grace=0s", "release.min_plates=2",
         "release.cdf_epsilon=0", "budget.epsilon=10", "budget.accounting=pure", "release.mean=baseline")  # fmt: skip
START = 1_704_067_200_000
HOUR = 3_600_000
LONGITUDES = (72.8, 72.9)
"""Of two cells, one for each shard."""

SOURCES, SHARDS = (0, 1), (2, 3)
"""Actors: two source partitions, then two shards, of which the first has the planner. Pairs are (0,
2) and (1, 3)."""


class Violation(AssertionError):
    """Something that must never be."""


class Actor(NamedTuple):
    """A partition in the hands of a worker: its local state, and how far its step is carried out."""

    local: int
    delivered: tuple[int, ...] = ()
    is_recorded: bool = False


class State(NamedTuple):
    """All there is. `commits` has, for each partition, every checkpoint that may be the last one
    committed."""

    actors: tuple[Actor, ...]
    logs: tuple[tuple[int, ...], tuple[int, ...]]
    commits: tuple[tuple[int, ...], ...]
    ledger: int
    published: tuple[tuple[str, int, int], ...]
    owners: tuple[int, int]
    zombies: tuple[tuple[int, Actor], ...]
    faults: int


@dataclass(frozen=True)
class Planted:
    """Faults of the protocol that the exploration must find; `fence_wraps`, of `whole.py`: fences
    begin anew."""

    commits_too_early: bool = False
    forgets_plans: bool = False
    ignores_fences: bool = False
    fence_wraps: int = 0


SENDS = frozenset({"SendChunks", "SendMessages"})
LEDGERS = frozenset({"PlanSlot", "QueryCity", "RecordNorms", "ReleaseSlot"})

LEARNT = "learnt "
"""Before the start of a slot: its estimates, among what is published."""

OFFSETS = frozenset({"_next", "checkpoint"})
"""What a barrier remembers of places in its log: without a fault to come, nobody reads there again."""


PLAIN = frozenset({type(None), bool, int, str, bytes, float})

Frozen = Mapping[int, Any]
"""What objects were frozen to before, by their ids: those that all copies share."""


def freeze(value: Any, before: Frozen, without: frozenset[str] = frozenset()) -> Any:
    """A hashable value that is equal for objects which are equal in all that they hold, some names
    left out."""
    kind = type(value)
    if kind in PLAIN:
        return value
    if id(value) in before:
        return before[id(value)]
    if isinstance(value, list | tuple):
        return _frozen_each(value, before, without)
    if isinstance(value, dict):
        return tuple(
            sorted([(freeze(k, before), freeze(v, before, without)) for k, v in value.items()])
        )
    if (names := fields_of(kind)) is not None:
        kept = [getattr(value, name) for name in names if name not in without]
        return kind.__name__, _frozen_each(kept, before, without)
    return _freeze_other(value, before, without)


def _frozen_each(values: Iterable[Any], before: Frozen, without: frozenset[str]) -> tuple[Any, ...]:
    return tuple([one if type(one) in PLAIN else freeze(one, before, without) for one in values])


@functools.cache
def fields_of(kind: type) -> tuple[str, ...] | None:
    """Of a struct or a dataclass; None for other types."""
    if dataclasses.is_dataclass(kind):
        return tuple(one.name for one in dataclasses.fields(kind))
    return kind.__struct_fields__ if issubclass(kind, msgspec.Struct) else None


def _freeze_other(value: Any, before: Frozen, without: frozenset[str]) -> Any:
    if isinstance(value, int | str | Enum):
        return value
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.tobytes()
    if isinstance(value, set | frozenset):
        return tuple(sorted(freeze(one, before, without) for one in value))
    if callable(value):
        return "function"
    kept = [held for name, held in vars(value).items() if name not in without]
    return type(value).__name__, _frozen_each(kept, before, without)


def _apart(value: Any) -> Any:
    """Of a shard with a planner: how much further on the one is than the other."""
    planner = getattr(value, "_planner", None)
    return (
        True
        if planner is None
        else ("apart", planner.counts.next_offset - value._pings.next_offset)
    )


@functools.cache
def is_unchanging(kind: type) -> bool:
    """Of what nobody changes there is one object, in all copies: functions, messages, a slot's
    tables."""
    if kind in (FunctionType, SlotCounts, SlotValues):
        return True
    return issubclass(kind, msgspec.Struct) and kind.__struct_config__.frozen


class _Writer(pickle.Pickler):
    """What all copies share is written as its place among `kept`."""

    kept: Kept

    def persistent_id(self, value: Any) -> int | None:
        if id(value) not in self.kept.places and is_unchanging(type(value)):
            self.kept.place(value, freeze(value, self.kept.before))
        return self.kept.places.get(id(value))


@dataclass
class Kept:
    """Objects by number, each of them once. The `shared` are the same in all copies, whatever they
    hold."""

    shared: tuple[Any, ...] = ()
    objects: list[Any] = field(default_factory=list)
    numbers: dict[Any, int] = field(default_factory=dict)
    placed: list[Any] = field(default_factory=list)
    places: dict[int, int] = field(default_factory=dict)
    before: dict[int, Any] = field(default_factory=dict)
    written: dict[int, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for one in self.shared:
            self.place(one, "shared")

    def place(self, value: Any, frozen: Any) -> None:
        """From now on all copies have this very object. Its columns are closed: whoever writes to
        them is found."""
        for column in (getattr(value, name) for name in fields_of(type(value)) or ()):
            if isinstance(column, np.ndarray):
                column.flags.writeable = False
        self.places[id(value)], self.before[id(value)] = len(self.placed), frozen
        self.placed.append(value)

    def number(self, value: Any, without: frozenset[str] = frozenset()) -> int:
        key = bool(without) and _apart(value), freeze(value, self.before, without)
        if key not in self.numbers:
            self.numbers[key] = len(self.objects)
            self.objects.append(value)
        return self.numbers[key]

    def fresh(self, number: int) -> Any:
        """A copy to work on. To read what was written once is many times as quick as a deep copy."""
        if number not in self.written:
            writer = _Writer(content := io.BytesIO(), pickle.HIGHEST_PROTOCOL)
            writer.kept = self
            writer.dump(self.objects[number])
            self.written[number] = content.getvalue()
        reader = pickle.Unpickler(io.BytesIO(self.written[number]))
        reader.persistent_load = self.placed.__getitem__
        return reader.load()


class World:
    """What may follow on a state, with the product's own protocols."""

    def __init__(
        self, once: bool = True, whole_batches: bool = True, planted: Planted = Planted(), slots: int = 2,
        reads: int = 2, follows: bool | None = None, sources: int = 2,
    ) -> None:  # fmt: skip
        """`once`: releases and checkpoint are one transaction. `whole_batches`: all is read before
        what is due."""
        self.once, self.whole_batches, self.planted = once, whole_batches, planted
        self.slots, self.reads, self.sources = slots, reads, sources
        self.follows = self.follows if follows is None else follows
        settings = load(None, self.flags, {})
        self.contexts = [self.context(settings, seed) for seed in range(4)]
        rules = ReadingRules(
            PingDecoder(settings.ping_rules, JSON),
            dataclasses.replace(settings.window_rules, disorder_ms=0),
            settings.calendar.slots,
            lambda plate: plate.encode(),
        )
        self.rules = rules
        self.locals = Kept((rules, rules.windows))
        self.lock = threading.RLock()
        self.ledgers = Kept((self.lock,))
        self.checkpoints, self.messages, self.payloads = Kept(), Kept(), Kept()
        self.memo: dict[Any, Any] = {}
        self.known: dict[int, tuple[Any, int, Any]] = {}
        self.batches = [self._batches(source) for source in range(2)]

    flags = FLAGS
    follows = False
    """Whether plans follow from releases: each slot is planned and learnt once all planned before
    is released."""
    speeds = 20, 21
    """Of the plates of the two sources."""

    def context(self, settings: Settings, seed: int) -> ReleaseContext:
        """What a worker releases with after so many faults: other bits and another policy each
        time."""
        policy = load(None, (*self.flags, f"release.mean_epsilon={1 + seed / 10}"), {}).policy
        return ReleaseContext(policy, settings.calendar, SeededEntropy(seed), "explored")

    def _batches(self, source: int) -> list[tuple[list[bytes], LogPlaces]]:
        """Two pings a slot, each closes the one before; a tick closes the last. `reads` of 1: all
        is read at once."""
        if source >= self.sources:
            return []
        messages, times, plates = [], [], range(source, 2, self.sources)
        for slot, (minute, longitude), plate in itertools.product(
            range(self.slots), enumerate(LONGITUDES), plates
        ):
            at = b"2024-01-01T%02d:%02d:00Z" % (slot, minute)
            messages.append(
                b'{"license_plate": "%c", "observationDateTime": "%s", "speed": %d, "location": {"type": "Point", '
                b'"coordinates": [%.2f, 21.1]}}' % (b"ab"[plate], at, self.speeds[plate], longitude)
            )
            times.append(START + slot * HOUR + minute * 60_000 + 1)
        times.append(START + self.slots * HOUR + 1)
        if self.reads > 1:
            tick = [b""], _places(len(messages), times[-1:], tick=True)
            return [(messages, _places(0, times[:-1], tick=False)), tick]
        is_tick = np.array([False] * len(messages) + [True])
        return [
            ([*messages, b""], LogPlaces(np.arange(len(times)), np.array(times, np.int64), is_tick))
        ]

    def begin(self, faults: int) -> State:
        actors = tuple(Actor(self._resumed(i, -1)) for i in range(4))
        state = State(
            actors,
            ((), ()),
            ((-1,),) * 4,
            self.ledgers.number(self._new_ledger()),
            (),
            (0, 1),
            (),
            faults,
        )
        return state if faults else self._last(state)

    def _new_ledger(self) -> DictionaryLedger:
        ledger = Forgetful() if self.planted.forgets_plans else DictionaryLedger()
        ledger._lock, ledger._meta = self.lock, {"ledger_id": "explored"}
        return ledger

    def _resumed(self, actor: int, commit: int) -> int:
        return self._cached(
            ("resumed", actor, commit), lambda: self.locals.number(self._taken_up(actor, commit))
        )

    def _taken_up(self, actor: int, commit: int) -> Any:
        if actor in SOURCES:
            start = SourceCheckpoint(0) if commit < 0 else self.checkpoints.objects[commit]
            return SourceProtocol(actor, 2, SourceReader(self.rules, start))
        start = ShardCheckpoint.at(0) if commit < 0 else self.checkpoints.objects[commit]
        return ShardProtocol(actor - 2, 2, self.sources, start, follows=self.follows)

    # --- one actor ---

    def kind(self, i: int, actor: Actor, state: State) -> str:
        """What it would do next. A zombie reads no more."""
        step, next_offset, batch = self._about(i, actor.local)
        if (step is None or self.whole_batches) and actor == state.actors[i]:
            unread = (
                batch
                if i in SOURCES
                else (next_offset if state.faults else 0) < len(state.logs[i - 2])
            )
            if unread:
                return "read"
        return "idle" if step is None else type(step).__name__

    def _about(self, i: int, local: int) -> tuple[Any, int, Any]:
        """Of a local state, which is asked again and again: its step, the next offset, and a
        source's next batch."""
        if (found := self.known.get(local)) is None:
            protocol = self.locals.objects[local]
            at = protocol.reader.next_offset if i in SOURCES else protocol.next_offset
            rest = (
                [one for one in self.batches[i] if one[1].offset[-1] >= at] if i in SOURCES else []
            )
            found = self.known[local] = protocol.next(), at, rest[0] if rest else None
        return found

    def _cached(self, key: Any, work: Callable[[], Any]) -> Any:
        if key not in self.memo:
            self.memo[key] = work()
        return self.memo[key]

    def _unread(self, i: int, actor: Actor, state: State) -> Any:
        """What there is to be read, by one that would read."""
        _, next_offset, batch = self._about(i, actor.local)
        if i in SOURCES:
            return batch
        return next_offset, state.logs[i - 2][next_offset if state.faults else 0]

    def _local(self, actor: Actor, event: Any, do: Callable[[Any], object]) -> Actor:
        """The actor after something happened to it."""

        def work() -> int:
            protocol = self.locals.fresh(actor.local)
            do(protocol)
            protocol.next()
            return self.locals.number(protocol, self.without)

        return Actor(self._cached((actor.local, event), work))

    def read(self, i: int, actor: Actor, state: State) -> Actor:
        unread = self._unread(i, actor, state)
        if i in SOURCES:
            return self._local(actor, "read", lambda protocol: protocol.read(*unread))
        offset, message = unread
        content = decode_message(self.messages.objects[message])
        return self._local(
            actor, ("add", offset, message), lambda protocol: protocol.add(offset, content)
        )

    def count(self, actor: Actor) -> Actor:
        def do(protocol: ShardProtocol) -> None:
            step = protocol.next()
            assert isinstance(step, CountSlot)
            protocol.counted(step.start, *tabulate(step.pings))

        return self._local(actor, "count", do)

    def measure(self, actor: Actor) -> Actor:
        def do(protocol: ShardProtocol) -> None:
            step = protocol.next()
            assert isinstance(step, MeasureNorms)
            context = self.contexts[0]
            slot = PlannedSlot(step.counts, step.plan, context.policy)
            protocol.measured(
                step,
                slot_norms(slot, step.values),
                slot_sums(context.question, slot, step.values),
            )

        return self._local(actor, "measure", do)

    def sends(self, i: int, actor: Actor) -> dict[int, tuple[int, ...]]:
        def work() -> dict[int, tuple[int, ...]]:
            step = self.locals.fresh(actor.local).next()
            pairs = [(m.shard, m) for m in step.messages] if i in SOURCES else step.messages
            found: dict[int, list[int]] = {}
            for log, message in pairs:
                found.setdefault(log, []).append(self.messages.number(encode_message(message)))
            return {log: tuple(messages) for log, messages in found.items()}

        whole = self._cached(("sends", actor.local), work)
        return {log: messages for log, messages in whole.items() if log not in actor.delivered}

    def delivered(self, i: int, actor: Actor, log: int) -> Actor:
        if len(self.sends(i, actor)) > 1:
            return changed(actor, delivered=tuple(sorted((*actor.delivered, log))))
        if i in SOURCES:
            return self._local(actor, "sent", lambda protocol: protocol.done(protocol.next()))
        return self._local(actor, "sent", lambda protocol: protocol.sent(protocol.next()))

    def plan(self, actor: Actor, state: State, fault: int) -> tuple[Actor, int]:
        def work() -> tuple[Actor, int]:
            ledger = self.ledgers.fresh(state.ledger)
            step = self.locals.fresh(actor.local).next()
            assert isinstance(step, PlanSlot)
            counts = merge_counts(step.chunks)
            plan = plan_slot(counts, self.contexts[fault], ledger)
            after = self._local(actor, ("planned", freeze(plan, {})),
                                lambda protocol: protocol.planned(step.start, counts, plan))  # fmt: skip
            return after, self.ledgers.number(ledger)

        return self._cached(("plan", actor.local, state.ledger, fault), work)

    def ask_city(self, actor: Actor, state: State, fault: int) -> tuple[Actor, int]:
        def work() -> tuple[Actor, int]:
            ledger = self.ledgers.fresh(state.ledger)
            step = self.locals.fresh(actor.local).next()
            assert isinstance(step, QueryCity)
            context = self.contexts[fault]
            record_city(context.question, step.sums, step.plan, context.entropy, ledger)
            after = self._local(actor, "city asked", lambda protocol: protocol.city_queried())
            return after, self.ledgers.number(ledger)

        return self._cached(("ask city", actor.local, state.ledger, fault), work)

    def remember(self, actor: Actor, state: State, fault: int) -> tuple[Actor, int]:
        """The norms of the plates that share clips are remembered."""

        def work() -> tuple[Actor, int]:
            ledger = self.ledgers.fresh(state.ledger)
            step = self.locals.fresh(actor.local).next()
            assert isinstance(step, RecordNorms)
            slot = step.start, step.end_ms
            factors = factors_once(step.norms, step.expected, slot, self.contexts[fault], ledger)
            after = self._local(actor, ("remembered", freeze(factors, {})),
                                lambda protocol: protocol.remembered(factors))  # fmt: skip
            return after, self.ledgers.number(ledger)

        return self._cached(("remember", actor.local, state.ledger, fault), work)

    def record(
        self, actor: Actor, state: State, fault: int
    ) -> tuple[int, tuple[tuple[str, int], ...]]:
        def work() -> tuple[int, tuple[tuple[str, int], ...]]:
            ledger = self.ledgers.fresh(state.ledger)
            step = self.locals.fresh(actor.local).next()
            assert isinstance(step, ReleaseSlot)
            context = self.contexts[fault]
            slot = PlannedSlot(step.counts, step.plan, context.policy)
            recorded = record_slot(slot, step.values, context, ledger, step.factors)
            named = tuple(
                (id_, self.payloads.number(payload)) for id_, payload in recorded.payloads.items()
            )
            return self.ledgers.number(ledger), named

        return self._cached(("record", actor.local, state.ledger, fault), work)

    def publish(self, actor: Actor) -> tuple[Actor, int]:
        found: list[ShardCheckpoint] = []

        def do(protocol: ShardProtocol) -> None:
            start = protocol.next().start
            found.append(protocol.recorded(start))
            protocol.published(start)

        def work() -> tuple[Actor, int]:
            after = self._local(actor, "published", do)
            return after, self.checkpoints.number(found[0])

        return self._cached(("publish", actor.local), work)

    def commit(self, actor: Actor) -> int | None:
        def work() -> int | None:
            protocol = self.locals.objects[actor.local]
            step = protocol.next()
            if self.planted.commits_too_early and isinstance(step, ReleaseSlot):
                return self.checkpoints.number(protocol._checkpoint(released=step.start))
            if not protocol.may_commit and not self.planted.commits_too_early:
                return None
            return self.checkpoints.number(protocol.checkpoint())

        return self._cached(("commit", actor.local), work)

    # --- all of them ---

    def successors(self, state: State) -> Iterator[State]:
        self.without = frozenset() if state.faults else OFFSETS
        kinds = [self.kind(i, actor, state) for i, actor in enumerate(state.actors)]
        fault = self.faults_max - state.faults
        for i, kind in enumerate(kinds):  # seen by nobody else: first, and in one order
            if kind in ("read", "CountSlot", "MeasureNorms", "SendRefused"):
                yield self._alone(i, state, kind)
                return
        if not (state.zombies and self.planted.ignores_fences):
            for i, kind in enumerate(kinds):  # seen by the worker's own faults alone
                if kind in LEDGERS:
                    yield from self._with_ledger(state, i, state.actors[i], kind, fault)
                    yield from self._faults(state, state.owners[i % 2])
                    return
        for i, kind in enumerate(kinds):
            if kind in SENDS:
                yield from self._sent(state, i)
            elif kind in LEDGERS:
                yield from self._with_ledger(state, i, state.actors[i], kind, fault)
        yield from self._zombies(state, fault)
        for worker in sorted(set(state.owners)):
            yield from self._faults(state, worker)

    faults_max = 0
    is_calm = False
    """No fault comes now, though one may come later."""

    without: frozenset[str] = frozenset()

    def _with(self, state: State, i: int, actor: Actor) -> State:
        after = changed(state, actors=(*state.actors[:i], actor, *state.actors[i + 1 :]))
        to = self.commit(actor) if state.faults and not actor.is_recorded else None
        if to is None or to in state.commits[i]:
            return after
        return self._committed(after, i, (*state.commits[i], to))

    def _alone(self, i: int, state: State, kind: str) -> State:
        actor = state.actors[i]
        if kind == "CountSlot":
            return self._with(state, i, self.count(actor))
        if kind == "MeasureNorms":
            return self._with(state, i, self.measure(actor))
        after = self._with(
            state,
            i,
            changed(
                self.read(i, actor, state), delivered=actor.delivered, is_recorded=actor.is_recorded
            ),
        )
        return after if state.faults or i in SOURCES else self._without_first(after, i - 2)

    def _without_first(self, state: State, log: int) -> State:
        """Read, and by nobody ever again."""
        logs = list(state.logs)
        logs[log] = logs[log][1:]
        return changed(state, logs=(logs[0], logs[1]))

    def _committed(self, state: State, i: int, to: tuple[int, ...]) -> State:
        if not state.faults:
            return state
        return changed(
            state, commits=(*state.commits[:i], tuple(sorted(to)), *state.commits[i + 1 :])
        )

    def _append(self, state: State, log: int, messages: tuple[int, ...]) -> State:
        logs = list(state.logs)
        logs[log] += messages
        return changed(state, logs=(logs[0], logs[1]))

    def _sent(self, state: State, i: int) -> Iterator[State]:
        """What goes to different logs arrives in any order; with a fault to come at once, as a
        fault cuts it anyhow."""
        logs = list(self.sends(i, state.actors[i]))
        for one in [logs] if self.faults_max else [[log] for log in logs]:
            after = state
            for log in one:
                arrived = self._append(after, log, self.sends(i, after.actors[i])[log])
                after = self._with(arrived, i, self.delivered(i, after.actors[i], log))
            yield after

    def _with_ledger(
        self, state: State, i: int, actor: Actor, kind: str, fault: int
    ) -> Iterator[State]:
        of_planner = {
            "PlanSlot": self.plan,
            "QueryCity": self.ask_city,
            "RecordNorms": self.remember,
        }
        if kind in of_planner:
            after, ledger = of_planner[kind](actor, state, fault)
            yield changed(self._with(state, i, after), ledger=ledger)
        elif not actor.is_recorded:
            ledger, _ = self.record(actor, state, fault)
            yield changed(self._with(state, i, changed(actor, is_recorded=True)), ledger=ledger)
        else:
            _, payloads = self.record(
                actor, state, fault
            )  # recorded: whoever asks is told the same
            published = self._published(state.published, payloads)
            after, to = self.publish(actor)
            done = changed(self._committed(state, i, (to,)), published=published)
            yield self._with(done, i, after)
            if not self.once and state.faults:  # readers have it, and the commit does not come
                yield from self._faults(changed(state, published=published), state.owners[i % 2])

    def _published(
        self, before: tuple[tuple[str, int, int], ...], payloads: tuple[tuple[str, int], ...]
    ) -> tuple[tuple[str, int, int], ...]:
        found = {name: (payload, times) for name, payload, times in before}
        for name, payload in payloads:
            known, times = found.get(name, (payload, 0))
            if known != payload:
                raise Violation(f"{name} was published as two payloads")
            if times and self.once:
                raise Violation(f"{name} was published twice")
            found[name] = payload, 1
        return tuple(sorted((name, *rest) for name, rest in found.items()))

    def _zombies(self, state: State, fault: int) -> Iterator[State]:
        """An owner that does not know that it is none: what it was sending arrives late. The fence
        refuses the rest."""
        for at, (i, zombie) in enumerate(state.zombies):
            rest = changed(state, zombies=(*state.zombies[:at], *state.zombies[at + 1 :]))
            kind = self.kind(i, zombie, state)
            if kind in SENDS:
                yield self._append_all(rest, self.sends(i, zombie))
            else:
                yield from self._zombie_ledger(rest, i, zombie, kind, fault)

    def _zombie_ledger(
        self, state: State, i: int, zombie: Actor, kind: str, fault: int
    ) -> Iterator[State]:
        """As its owner would; what it commits counts, and nobody refuses it."""
        for after in self._with_ledger(self._with(state, i, zombie), i, zombie, kind, fault):
            yield changed(
                self._with(after, i, state.actors[i]),
                zombies=(*after.zombies, (i, after.actors[i])),
            )

    def _faults(self, state: State, worker: int) -> Iterator[State]:
        if not state.faults or self.is_calm:
            return
        mine = [pair for pair in (0, 1) if state.owners[pair] == worker]
        for arrived in self._arrived(state, [i for pair in mine for i in (pair, pair + 2)]):
            yield from self._taken_over(arrived, mine, 1 - worker, zombies=())
        for pair in mine:
            i = pair, pair + 2
            zombies = tuple((one, state.actors[one]) for one in i if self._lives_on(one, state))
            if zombies:
                yield from self._taken_over(
                    state, [pair], 1 - worker, zombies=(*state.zombies, *zombies)
                )

    def _lives_on(self, i: int, state: State) -> bool:
        """Whether what its owner has begun may still be seen by others."""
        kind = self.kind(i, state.actors[i], state)
        return kind in SENDS or (self.planted.ignores_fences and kind in LEDGERS)

    def _arrived(self, state: State, dead: list[int]) -> Iterator[State]:
        """Any part of what they were sending: of each log nothing, the first message, or all; not
        all of all."""
        states = [state]
        for i in dead:
            if self.kind(i, state.actors[i], state) in SENDS:
                sends = self.sends(i, state.actors[i])
                parts = [
                    [(), messages[:1], messages][: 1 + len(messages)] for messages in sends.values()
                ]
                states = [
                    self._append_all(one, dict(zip(sends, some, strict=True)))
                    for one in states
                    for some in itertools.product(*parts)
                    if list(some) != list(sends.values())
                ]
        yield from states

    def _append_all(self, state: State, messages: dict[int, tuple[int, ...]]) -> State:
        for log, some in messages.items():
            state = self._append(state, log, some)
        return state

    def _taken_over(
        self, state: State, pairs: list[int], worker: int, zombies: tuple[Any, ...]
    ) -> Iterator[State]:
        """The other worker resumes from any checkpoint that may have been committed."""
        mine = [i for pair in pairs for i in (pair, pair + 2)]
        owners = tuple(worker if pair in pairs else state.owners[pair] for pair in (0, 1))
        for commits in itertools.product(*(state.commits[i] for i in mine)):
            actors, committed = list(state.actors), list(state.commits)
            for i, commit in zip(mine, commits, strict=True):
                actors[i], committed[i] = Actor(self._resumed(i, commit)), (commit,)
            yield self._fewer_faults(
                changed(state,
                    actors=tuple(actors), commits=tuple(committed), owners=owners, zombies=zombies,
                    faults=state.faults - 1,
                )
            )  # fmt: skip

    def _fewer_faults(self, after: State) -> State:
        return after if after.faults else self._last(after)

    def _last(self, state: State) -> State:
        """No fault is to come: nobody reads again what was read, so places in logs mean nothing any
        more."""

        def placeless(actor: Actor) -> Actor:
            work = functools.partial(self.locals.number, self.locals.objects[actor.local], OFFSETS)
            return changed(actor, local=self._cached(("placeless", actor.local), work))

        ends = [self.locals.objects[state.actors[i].local].next_offset for i in SHARDS]
        return changed(
            state,
            actors=tuple(map(placeless, state.actors)),
            zombies=tuple((i, placeless(zombie)) for i, zombie in state.zombies),
            logs=(state.logs[0][ends[0] :], state.logs[1][ends[1] :]),
            commits=((-1,),) * 4,
        )

    def require_recorded(self, ledger: int, before: int) -> None:
        """What a forecaster would read: all that was admitted of slots that begin before."""
        for entry in self.ledgers.objects[ledger].entries():
            is_hat = kind_of(entry.release_id) == "hat"
            if is_hat and Id.of(entry.release_id).slot[0] * 1000 < before and entry.payload is None:
                raise Violation(
                    f"{entry.release_id} is not recorded, and what follows on it begins"
                )

    def learnt(self, start: int) -> tuple[str, int]:
        return f"{LEARNT}{start}", self.payloads.number(b"estimates")

    def require_done(self, state: State) -> None:
        """Every HAT is published, every plate charged once, for what was drawn; each slot learnt if
        plans follow."""
        ledger: DictionaryLedger = self.ledgers.objects[state.ledger]
        released = [
            (name, payload) for name, payload, _ in state.published if not name.startswith(LEARNT)
        ]
        if (learnt := len(state.published) - len(released)) != self.follows * self.slots:
            raise Violation(
                f"expected {self.follows * self.slots} slots to be learnt, got {learnt}"
            )
        published = {
            name: Release.decode(self.payloads.objects[payload]) for name, payload in released
        }
        if len(published) != 2 * self.slots:
            raise Violation(
                f"expected {2 * self.slots} HATs to be published, got {sorted(published)}"
            )
        if ledger.verify():
            raise Violation(ledger.verify()[0])
        for entry in ledger.entries():
            record = published[entry.release_id]
            if record.status != "released" or set(entry.charged.tolist()) != {
                round(record.privacy.epsilon * 1e9)
            }:
                raise Violation(
                    f"{entry.release_id} was charged {entry.charged.tolist()} and says {record.privacy}"
                )
            if len(entry.plates) != 2:
                raise Violation(f"{entry.release_id} has {len(entry.plates)} plates")


class Forgetful(DictionaryLedger):
    """A planted fault: what was decided on is forgotten, so that a repeat is decided anew."""

    def admit(self, period: str, budget: int, plates: Any, admissions: Any) -> Any:
        for one in admissions:
            held = self._admissions.get(one.release_id)
            if held is not None and held.payload is None:
                del self._admissions[one.release_id]
        return super().admit(period, budget, plates, admissions)


def _places(first: int, times: list[int], tick: bool) -> LogPlaces:
    count = len(times)
    return LogPlaces(
        np.arange(first, first + count), np.array(times, np.int64), np.full(count, tick)
    )


def walk(world: World, faults: int, dice: random.Random) -> int:
    """One random way through, to its end; how many faults it had."""
    world.faults_max = faults
    state, todo = world.begin(faults), []
    while True:
        world.is_calm = dice.random() < 0.9
        if not (todo := list(world.successors(state))):
            world.is_calm = True
            if not (todo := list(world.successors(state))):
                world.require_done(state)
                return faults - state.faults
        state = dice.choice(todo)


@dataclass(frozen=True)
class Explored:
    states: int
    ends: int


def explore(world: World, faults: int, states_max: int = 10**9) -> Explored:
    """Visit every state; Violation for the first that must not be. RuntimeError beyond
    `states_max`."""
    world.faults_max = faults
    first = world.begin(faults)
    seen, todo, ends = {first}, [first], 0
    while todo:
        state = todo.pop()
        is_end = True
        for after in world.successors(
            state
        ):  # a fault need not come, and neither need a zombie's messages
            is_end = is_end and (
                after.faults < state.faults or len(after.zombies) < len(state.zombies)
            )
            if after not in seen:
                seen.add(after)
                todo.append(after)
        if is_end:
            world.require_done(state)
            ends += 1
        if len(seen) > states_max:
            raise RuntimeError(f"more than {states_max} states")
    return Explored(len(seen), ends)
