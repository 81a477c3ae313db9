"""Every order of two sources' positions, commits, crashes and takeovers of a shard that answers:
each moment once.

The broker is a model: a log, a committed checkpoint and what readers have. Sources may begin again
at any message, an owner may be replaced at any step, and a moment's first record stands. What is
read is read at once: a reader that lags is one that was taken over, or that has not committed.
"""

import copy
import random
from dataclasses import dataclass, field, replace

import pytest
from msgspec import structs

from udp_stream.shuffle.protocol import AnswerShard, SendMessages, ShardCheckpoint, ShardProtocol
from udp_stream.shuffle.wire import PositionsEnd, cut_moment, merge_moment
from udp_stream.testing import a_moment

QUARTER = 900_000
FIRST = a_moment().time_ms


def sent_by(source):
    """What a source sends of two moments: its own half of the plates; the second moment has none of
    source 1."""
    whole, rows = a_moment(), slice(4 * source, 4 * source + 4)
    columns = {name: getattr(whole, name)[rows] for name in ("plates", "lat", "lon", "seen_ms")}
    found = [*cut_moment(replace(whole, **columns), source, 0)]
    if source == 0:
        later = {**columns, "seen_ms": columns["seen_ms"] + QUARTER}
        found += cut_moment(replace(whole, time_ms=FIRST + QUARTER, **later), source, 0)
    return [*found, PositionsEnd(source, 0, FIRST + QUARTER)]


SENT = [sent_by(0), sent_by(1)]


@dataclass
class State:
    """`sent`: of each source, how many messages its present life has sent; `lives` are those that
    it may begin anew."""

    sent: list = field(default_factory=lambda: [0, 0])
    lives: int = 1
    log: list = field(default_factory=list)
    owner: int = 0
    takeovers: int = 2
    protocol: ShardProtocol = field(default_factory=lambda: taken_over(ShardCheckpoint.at(0)))
    committed: ShardCheckpoint = field(default_factory=lambda: ShardCheckpoint.at(0))
    published: list = field(default_factory=list)
    ledger: dict = field(default_factory=dict)

    def key(self):
        """Two states with one key go on alike."""
        known = repr(self.committed), repr(self.protocol.checkpoint()), repr(self.protocol._step)
        return (tuple(self.sent), self.lives, tuple(self.log), self.owner, self.takeovers, known,
                tuple(self.published), tuple(self.ledger.items()))  # fmt: skip


def taken_over(start):
    return ShardProtocol(1, shards=2, sources=2, start=start, asks=True)


def follows(state):
    for source in range(2):
        if state.sent[source] < len(SENT[source]):
            yield changed(state, send, source)
        if state.lives and state.sent[source]:
            yield changed(state, begin_anew, source)
    step = state.protocol._step or copy.deepcopy(state.protocol).next()
    if isinstance(step, AnswerShard):
        for how_far in ("dies recorded", "dies published", "whole"):
            if how_far == "whole" or state.takeovers:
                yield changed(state, answer, how_far)
    elif step is not None:
        yield changed(state, quietly)
    if state.takeovers:
        yield changed(state, take_over)
    if state.protocol.may_commit and state.committed != state.protocol.checkpoint():
        yield changed(state, commit)


def changed(state, do, *arguments):
    after = copy.deepcopy(state, {id(one): one for pair in SENT for one in pair})
    do(after, *arguments)
    return after


def send(state, source):
    state.log.append((source, state.sent[source]))
    state.sent[source] += 1
    read(state)


def begin_anew(state, source):
    state.sent[source], state.lives = 0, state.lives - 1


def read(state):
    for offset, (source, number) in enumerate(
        state.log[state.protocol.next_offset :], state.protocol.next_offset
    ):
        state.protocol.add(offset, SENT[source][number])


def quietly(state):
    step = state.protocol.next()
    assert isinstance(step, SendMessages) or step is None
    if step is not None:
        state.protocol.sent(step)


def commit(state):
    state.committed = state.protocol.checkpoint()


def take_over(state):
    state.owner, state.takeovers = state.owner + 1, state.takeovers - 1
    state.protocol = taken_over(state.committed)
    read(state)


def answer(state, how_far):
    """The road itself may be killed anywhere: `tests/contract/queries.py`. Here its first record
    wins, as there."""
    step = state.protocol.next()
    moment = merge_moment(step.chunks)
    assert len(moment.plates) == (8 if step.time_ms == FIRST else 4), (
        "a moment without some source's plates"
    )
    recorded = state.ledger.setdefault(step.time_ms, state.owner)
    if how_far == "dies recorded":
        take_over(state)
        return
    state.committed = state.protocol.answering(step)
    state.published.append((step.time_ms, recorded))
    if how_far == "dies published":
        take_over(state)
        return
    state.protocol.answered(step)


def check(state, after):
    times = [time_ms for time_ms, _ in state.published]
    assert times == [FIRST, FIRST + QUARTER][: len(times)], "a moment twice, or before its turn"
    assert all(state.ledger[time_ms] == owner for time_ms, owner in state.published)
    assert after or len(times) == 2, "a moment that nobody answers any more"


@pytest.mark.parametrize("seed", range(40))
def test_in_some_orders_each_moment_is_answered_once_whole_and_in_turn(seed):
    dice, state = random.Random(seed), State()
    while after := list(follows(state)):
        check(state, after)
        state = dice.choice(after)
    check(state, after)


@pytest.mark.parametrize("committed", range(6))
def test_moments_that_a_source_sent_for_other_queries_are_skipped_also_after_a_takeover(committed):
    ours = [replace_asked(message) for message in sent_by(0)]
    third = replace(a_moment(), time_ms=FIRST + 2 * QUARTER)
    others = PositionsEnd(1, 0, FIRST + QUARTER, asked="others")
    whole = [message for source in (0, 1) for message in cut_moment(third, source, 0, "ours")]
    log = [others, *ours, *whole]
    protocol = asking_ours(ShardCheckpoint.at(0))
    for offset, message in enumerate(log[:committed]):
        protocol.add(offset, message)
    protocol = asking_ours(protocol.checkpoint())
    for offset, message in enumerate(log):
        protocol.add(offset, message)
    times = []
    while (step := protocol.next()) is not None:
        if isinstance(step, SendMessages):
            protocol.sent(step)
        else:
            times.append(step.time_ms)
            protocol.answering(step)
            protocol.answered(step)
    assert times == [FIRST + 2 * QUARTER]


def asking_ours(start):
    return ShardProtocol(1, shards=2, sources=2, start=start, asks=True, asked="ours")


def replace_asked(message):
    return structs.replace(message, asked="ours") if isinstance(message, PositionsEnd) else message


@pytest.mark.parametrize(
    ("lives", "takeovers"),
    [
        pytest.param(0, 1, marks=pytest.mark.long),
        *[pytest.param(*n, marks=pytest.mark.soak) for n in ((1, 0), (0, 2))],
    ],
)
@pytest.mark.timeout(1800)
def test_in_every_order_each_moment_is_answered_once_whole_and_in_turn(lives, takeovers):
    seen, todo, ends = set(), [State(lives=lives, takeovers=takeovers)], 0
    while todo:
        state = todo.pop()
        if (key := hash(state.key())) not in seen:
            seen.add(key)
            after = list(follows(state))
            check(state, after)
            todo += after
            ends += not after
    print(f"{len(seen):,} states, {ends} ends")
    assert len(seen) > 1000 and ends
