"""Commits: asked again after a lost connection, and only by whom the partitions still belong to.
Read only from a broker that knows them."""

import asyncio
from functools import partial
from types import SimpleNamespace

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import GroupLoadInProgressError, KafkaError, UnknownMemberIdError
from faust.types import TP

from streams import kafka as offsets
from streams.kafka import CommittedOffset, Offsets
from udp_stream.base.errors import ConfigError

HERE = TP("parts", 1)


class Coordinator:
    """It answers as it is told to; the group may be formed anew before it does."""

    def __init__(self, answers, formed_anew, generation):
        self.generation = generation
        self._commit_lock = asyncio.Lock()
        self.answers, self.formed_anew, self.taken, self.asked = list(answers), formed_anew, {}, 0

    async def ensure_coordinator_known(self):
        pass

    async def _do_commit_offsets(self, _assignment, noted):
        self.asked += 1
        answer = self.answers.pop(0)
        if self.formed_anew:
            self.generation += 1
        if answer is not None:
            raise answer
        self.taken |= noted


def commit(answers, *, formed_anew=False, assigned=(HERE,), generation=7):
    """What becomes of a commit, and what the coordinator has seen."""

    async def call_thread(what, *arguments):
        return await what(*arguments)

    async def run():
        coordinator = Coordinator(answers, formed_anew, generation)
        assignment = SimpleNamespace(tps=frozenset(TopicPartition(*tp) for tp in assigned))
        subscription = SimpleNamespace(subscription=SimpleNamespace(assignment=assignment))
        consumer = SimpleNamespace(_coordinator=coordinator, _subscription=subscription)
        thread = SimpleNamespace(_consumer=consumer, call_thread=call_thread)
        app = SimpleNamespace(consumer=SimpleNamespace(_thread=thread))
        return await Offsets(app).commit({HERE: CommittedOffset(5, "note")}), coordinator

    return asyncio.run(run())


@pytest.fixture(autouse=True)
def at_once(limits):
    limits(offsets, AGAIN_S=0)


def test_a_commit_that_got_lost_is_sent_again():
    committed, coordinator = commit([GroupLoadInProgressError(), GroupLoadInProgressError(), None])
    assert committed and coordinator.taken == {TopicPartition(*HERE): (5, "note")}


def test_a_commit_of_the_generation_before_is_not_sent_again():
    committed, coordinator = commit([GroupLoadInProgressError(), None], formed_anew=True)
    assert not committed and coordinator.taken == {} and coordinator.asked == 1


def test_a_commit_of_somebody_else_s_partition_is_dropped():
    assert commit([UnknownMemberIdError()])[0] is False
    committed, coordinator = commit([None], assigned=())
    assert not committed and coordinator.asked == 0


def test_who_was_put_out_of_the_group_commits_nothing():
    """Paused past its session: while it has not joined again, a group without members would take
    it."""
    committed, coordinator = commit([None], generation=-1)
    assert not committed and coordinator.asked == 0


class Knowing:
    """It answers a question for commits as it is told to: an error beside the partitions, and what
    it says of each."""

    group_id = "group"

    def __init__(self, answers):
        self.answers, self.dead = list(answers), 0

    async def ensure_coordinator_known(self):
        pass

    def coordinator_dead(self):
        self.dead += 1

    async def _send_req(self, _request):
        code, partitions = self.answers.pop(0)
        return SimpleNamespace(
            error_code=code, topics=[("parts", partitions)] if partitions else []
        )


def committed(*answers):
    """What is found, and the coordinator that was asked."""

    async def call_thread(what, *arguments):
        return await what(*arguments)

    coordinator = Knowing(answers)
    thread = SimpleNamespace(
        _consumer=SimpleNamespace(_coordinator=coordinator), call_thread=call_thread
    )
    app = SimpleNamespace(consumer=SimpleNamespace(_thread=thread))
    return asyncio.run(Offsets(app).committed([HERE])), coordinator


LOADING, NOT_COORDINATOR, UNKNOWN_TOPIC, NOT_ALLOWED = 14, 16, 3, 30


@pytest.mark.parametrize(
    "error", [(LOADING, []), (NOT_COORDINATOR, []), (0, [(1, -1, "", UNKNOWN_TOPIC)])]
)
def test_a_broker_that_does_not_know_yet_is_asked_again_and_not_taken_at_its_word(error):
    """It has just started: the error stands beside an empty list of partitions, and nothing is
    known of any."""
    found, coordinator = committed(error, error, (0, [(1, 5, "note", 0)]))
    assert found == {HERE: CommittedOffset(5, "note")}
    assert coordinator.dead == (2 if error[0] == NOT_COORDINATOR else 0)


@pytest.mark.parametrize("answer", [(0, []), (0, [(2, 5, "note", 0)]), (NOT_ALLOWED, [])])
def test_an_answer_without_the_partition_is_an_error_and_never_nothing(answer):
    with pytest.raises(KafkaError):
        committed(answer)


@pytest.mark.parametrize(
    ("there", "before", "wanted"), [(2, 4, "4 partitions"), (None, 0, "1 partition"), (0, 2, "2 ")]
)
def test_a_topic_with_fewer_partitions_than_it_had_stops_the_worker_in_words(there, before, wanted):
    """It was deleted, or made anew; slots would wait for ever for partitions that are gone."""

    def partitions_for_topic(_topic):
        return None if there is None else set(range(there))

    async def call_thread(update):
        await update()

    client = SimpleNamespace(force_metadata_update=partial(asyncio.sleep, 0))
    consumer = SimpleNamespace(partitions_for_topic=partitions_for_topic, _client=client)
    thread = SimpleNamespace(_consumer=consumer, call_thread=call_thread)
    offsets_of = Offsets(SimpleNamespace(consumer=SimpleNamespace(_thread=thread)))
    with pytest.raises(
        ConfigError,
        match=rf"^pings: expected at least {wanted}.*, got {there or 0}: .*topics create",
    ):
        asyncio.run(offsets_of.partitions("pings", before))
    there = 4
    assert asyncio.run(offsets_of.partitions("pings", before)) == 4
