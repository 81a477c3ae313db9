"""Every order of what two workers can do, with up to three faults: states that cannot be told apart
are visited once.

Four partitions (`parts.py`), the ledger, what is published, and messages that are late. A shard
reads what there is while it is not busy. What it sends arrives log by log, in every order. Ledger,
publishing and commits are steps.

A *fault* takes a pair of partitions (source and shard), or both pairs of one worker. What was being
sent is *late*: of each log all, the first message or nothing arrives, at any time: a crash with
requests in flight, or a rebalance.

Reductions on top of those of `parts.py`; `test_whole.py` holds the reduced exploration to one
without any of it:

1. *Pings or counts that change nothing, change nothing later either*: closing times never go back,
   what is held stays. Late ones are dropped, and one to be sent is sent first: a fault before it
   leaves no more than a fault after it. Plans are exempt: the last of two counts. So is what a
   shard has released: who resumes later has not heard it.
2. *Without a fault to come, ledger and publishing come first*: only a fault of its own partition
   could tell when. Where plans follow from releases, recording is exempt: whether it came before a
   slot is planned or learnt can be told.
3. *Which checkpoint was the last one committed* is chosen when a fault needs it.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from tests.forms import changed
from tests.protocol.explore import State
from tests.protocol.steps import Move, Steps

Late = tuple[Any, ...]
"""("send", log, messages), or what only a broken fence lets through: ("act", partition, number,
takeovers since)."""


class Everything(NamedTuple):
    """A state: numbers of the four partitions, of the book (ledger and what is published) and of
    what is late."""

    source0: int
    source1: int
    shard0: int
    shard1: int
    book: int
    late: int
    is_one_worker: bool


class Explored(NamedTuple):
    """States visited, with so many faults to come, from the most on; and what was published in the
    end, each way."""

    states: tuple[int, ...]
    ends: frozenset[tuple[tuple[str, bytes], ...]]


class Whole(Steps):
    """All that may follow, with the product's own protocols."""

    def begin(self, is_last: bool) -> Everything:
        self.parts.is_last = False
        numbers = [self.parts.number(i, self.parts.first(i)) for i in range(4)]
        if is_last:
            numbers = [self._as_last(i, number) for i, number in enumerate(numbers)]
        book = self._number("book", (self.world.ledgers.number(self.world._new_ledger()), ()))
        return Everything(*numbers, book, self._number("late", ()), False)

    # --- states ---

    def successors(self, state: Everything) -> tuple[list[Everything], list[Everything]]:
        """What may follow without a fault: by what partitions do, and by late messages, which need
        not come."""
        found = []
        for i in range(4):
            for move in self.moves(i, state[i], state.book):
                after = self._after(state, i, move)
                if self.is_reduced and self._comes_first(state, i, move, after):
                    return [after], []
                found.append(after)
        return found, list(self._late(state))

    def _after(self, state: Everything, i: int, move: Move) -> Everything:
        after: list[Any] = list(state)
        after[i] = move.part
        if move.book is not None:
            after[4] = move.book
        if move.log is not None:
            after[move.log + 2] = self.parts.appended(
                move.log + 2, after[move.log + 2], move.messages
            )
        return self._normal(after)

    def _comes_first(self, state: Everything, i: int, move: Move, after: Everything) -> bool:
        """Reductions 1 and 2."""
        if move.log is None:
            return move.book is not None and self.parts.is_last and not self._is_waited_for(move)
        if self.parts.may_matter_later(move.messages):
            return False
        before = move.part if move.log + 2 == i else state[move.log + 2]
        return after[move.log + 2] == before

    def _is_waited_for(self, move: Move) -> bool:
        """Where plans follow from releases, it can be told whether a release was recorded before
        something else."""
        return self.world.follows and self.parts.parts[move.part].stage == 1

    def _normal(self, after: list[Any]) -> Everything:
        """Without late messages that change nothing."""
        if self.is_reduced and self._lists["late"][after[5]]:
            key = "normal", after[5], after[2], after[3]
            kept = self.memo.get(key)
            if kept is None:
                kept = self.memo[key] = self._kept(after)
            after[5] = kept
        return Everything._make(after)

    def _kept(self, after: list[Any]) -> int:
        return self._number("late", tuple(
            one for one in self._lists["late"][after[5]] if one[0] == "act" or self.parts.may_matter_later(one[2])
            or self.parts.appended(one[1] + 2, after[one[1] + 2], one[2]) != after[one[1] + 2]
        ))  # fmt: skip

    def _late(self, state: Everything) -> Iterator[Everything]:
        for (kind, at, *what), rest, number in self._cached(
            ("each", state.late), lambda: self._each(state.late)
        ):
            if kind == "act":
                yield from self._late_act(state, rest, at, *what)
                continue
            (messages,) = what
            for some in {messages, messages[:1]}:
                after: list[Any] = list(state)
                after[5] = number
                after[at + 2] = self.parts.appended(at + 2, after[at + 2], some)
                yield self._normal(after)

    def _each(self, late: int) -> list[tuple[Late, tuple[Late, ...], int]]:
        items: tuple[Late, ...] = self._lists["late"][late]
        rests = [(*items[:k], *items[k + 1 :]) for k in range(len(items))]
        return [
            (one, rest, self._number("late", rest)) for one, rest in zip(items, rests, strict=True)
        ]

    def _late_act(
        self, state: Everything, rest: tuple[Late, ...], i: int, number: int, takeovers: int
    ) -> Iterator[Everything]:
        """An old owner whose fence is that of the latest one."""
        if takeovers % self.fence_wraps:
            return
        move = self.moves(i, number, state.book)[0]
        if move.book is not None and self.parts.parts[move.part].stage:
            rest = tuple(sorted((*rest, ("act", i, move.part, takeovers))))
        if move.book is not None:
            yield changed(state, book=move.book, late=self._number("late", rest))

    # --- faults ---

    def hits(self, state: Everything) -> Iterator[tuple[Any, ...]]:
        """What a fault leaves, before it is told which checkpoint was the last: two pairs, book,
        late, workers."""
        lost = [self._outcomes(k, state[k], state[k + 2]) for k in (0, 1)]
        kept = [(self._kept_as(k, state[k]), self._kept_as(k + 2, state[k + 2])) for k in (0, 1)]
        book, late, is_one = state[4:]
        is_one_after = not is_one and not self.is_next_last
        yield lost[0], kept[1], book, self._taken(late, (0, 2)), is_one_after
        yield kept[0], lost[1], book, self._taken(late, (1, 3)), is_one_after
        if is_one:
            yield lost[0], lost[1], book, self._taken(late, (0, 1, 2, 3)), not self.is_next_last

    def after_fault(self, hit: tuple[Any, ...]) -> Iterator[Everything]:
        first, second, book, late, is_one = hit
        of = [
            self._lists["outcomes"][one] if isinstance(one, int) else [(*one, ())]
            for one in (first, second)
        ]
        self.parts.is_last = self.is_next_last
        for a, c, some in of[0]:
            for b, d, more in of[1]:
                yield self._normal([a, b, c, d, book, self._with_late(late, some, more), is_one])
        self.parts.is_last = False

    def _with_late(self, late: int, *more: tuple[Late, ...]) -> int:
        def work() -> int:
            return self._number(
                "late", tuple(sorted(itertools.chain(self._lists["late"][late], *more)))
            )

        return self._cached(("with late", late, more), work)

    def _kept_as(self, i: int, number: int) -> int:
        return self._as_last(i, number) if self.is_next_last else number

    def _as_last(self, i: int, number: int) -> int:
        def work() -> int:
            self.parts.is_last = True
            found = self.parts.number(i, self.parts.last(i, self.parts.parts[number]))
            self.parts.is_last = False
            return found

        return self._cached(("last", i, number), work)

    def _taken(self, late: int, partitions: tuple[int, ...]) -> int:
        def grown(one: Late) -> Late:
            if one[0] == "send":
                return one
            return "act", one[1], self._kept_as(one[1], one[2]), one[3] + (one[1] in partitions)

        key = "taken", late, partitions, self.is_next_last
        return self._cached(
            key, lambda: self._number("late", tuple(sorted(map(grown, self._lists["late"][late]))))
        )

    def _outcomes(self, k: int, source: int, shard: int) -> int:
        """All that losing a pair may leave: new owners' partitions, and what is late."""

        def work() -> int:
            pair = self._resumed(k, source), self._resumed(k + 2, shard)
            return self._number(
                "outcomes", frozenset((f, g, x + y) for f, x in pair[0] for g, y in pair[1])
            )

        return self._cached(("outcomes", k, source, shard, self.is_next_last), work)

    def _resumed(self, i: int, number: int) -> set[tuple[int, tuple[Late, ...]]]:
        parts, part = self.parts, self.parts.parts[number]
        late: tuple[Late, ...] = tuple(("send", *one) for one in parts.sends(i, part).items())
        if self.fence_wraps and part.is_busy and not late:
            late = (("act", i, self._kept_as(i, number), 1),)
        parts.is_last = self.is_next_last
        found = {parts.number(i, parts.resumed(i, commit, part.log)) for commit in part.commits}
        parts.is_last = False
        return {(one, late) for one in found}

    # --- the exploration ---

    def explore(
        self, faults: int, log_message: Callable[[str], object] = lambda _: None
    ) -> Explored:
        todo: Iterable[Everything] = {self.begin(is_last=not faults)}
        states, ends = [], set()
        for left in range(faults, -1, -1):
            self.parts.is_last, self.is_next_last = left == 0, left == 1
            seen = self._visit(set(todo), ends)
            states.append(len(seen))
            log_message(
                f"{left} faults to come: {len(seen):,} states, {len(self.parts.parts):,} of one partition"
            )
            hits = {hit for state in seen for hit in self.hits(state)} if left else set()
            del seen
            todo = {after for hit in hits for after in self.after_fault(hit)}
        return Explored(tuple(states), frozenset(map(self._end, ends)))

    def _visit(self, seen: set[Everything], ends: set[int]) -> set[Everything]:
        todo = list(seen)
        while todo:
            state = todo.pop()
            live, late = self.successors(state)
            if not live:
                self._require_done(state.book)
                ends.add(state.book)
            for after in (*live, *late):
                if after not in seen:
                    seen.add(after)
                    todo.append(after)
        return seen

    def _require_done(self, book: int) -> None:
        ledger, published = self._lists["book"][book]
        done = State((), ((), ()), (), ledger, published, (0, 1), (), 0)
        self._cached(("done", book), lambda: self.world.require_done(done))

    def _end(self, book: int) -> tuple[tuple[str, bytes], ...]:
        published = self._lists["book"][book][1]
        return tuple((name, self.world.payloads.objects[payload]) for name, payload, _ in published)
