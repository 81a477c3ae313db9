"""The one overridden method of Faust: what it relies on is still there, and it hands over batches
in order, once."""

import asyncio
import inspect
from types import SimpleNamespace

import faust
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from faust.transport.consumer import Consumer, ConsumerThread, Fetcher
from faust.transport.drivers.aiokafka import Consumer as Driver
from faust.types import TP

from streams.consumer import BatchConsumer, BatchMessage

HERE = TP("pings", 0)


def records(*offsets, tp=HERE):
    return [
        SimpleNamespace(topic=tp.topic, partition=tp.partition, offset=offset, timestamp=1000 * offset,
                        timestamp_type=1, value=b"%d" % offset, headers=())
        for offset in offsets
    ]  # fmt: skip


class Flag:
    def __init__(self):
        self.up = False

    def is_set(self):
        return self.up


class Fake(BatchConsumer):
    """The consumer with its world replaced: fetches are scripted, what is handed over is kept."""

    consumer_stopped_errors = ()

    def __init__(self, *fetches):
        self.app = SimpleNamespace(consumer_generation_id=1, should_stop=False)
        self.transport = SimpleNamespace(app=self.app)
        self.flow_active, self.suspend_flow = True, asyncio.Event()
        self._read_offset, self._buffered_partitions = {}, set()
        self._stopped = Flag()
        self._crashed = Flag()
        self.fetches, self.active = list(fetches), None
        self.handed, self.seeks = [], 0

    async def _wait_next_records(self, timeout):  # noqa: ARG002
        fetch = self.fetches.pop(0)
        if not self.fetches:
            self._stopped.up = True
        return (fetch() if callable(fetch) else fetch), self.active

    @property
    def should_stop(self):
        return False

    async def sleep(self, n=0):  # noqa: ARG002
        await asyncio.sleep(0)

    async def wait_first(self, callback, suspended, **_):
        suspended.close()
        await callback

    async def callback(self, message):
        assert isinstance(message, BatchMessage)
        self.handed.append((message.tp, message.offset, [one.offset for one in message.records]))

    async def perform_seek(self):
        self.seeks += 1


def drained(consumer):
    asyncio.run(consumer._drain_messages(SimpleNamespace(_stopped=Flag())))
    return consumer.handed


def test_a_fetch_is_one_event_for_each_partition():
    other = TP("pings", 1)
    consumer = Fake({HERE: records(3, 4, 9), other: records(7, tp=other)}, {})
    assert drained(consumer) == [(HERE, 9, [3, 4, 9]), (other, 7, [7])]
    assert consumer._read_offset == {HERE: 10, other: 8}


def test_what_was_read_before_is_not_handed_over_again():
    consumer = Fake({HERE: records(3, 4)}, {HERE: records(3, 4)}, {HERE: records(4, 5)}, {})
    assert drained(consumer) == [(HERE, 4, [3, 4]), (HERE, 5, [5])]


def test_partitions_that_are_paused_are_left_alone():
    consumer = Fake({HERE: records(1)}, {})
    consumer.active = set()
    assert drained(consumer) == [] and consumer.seeks == 1


def test_a_fetch_during_a_rebalance_is_dropped_and_read_again_from_the_commit():
    def suspended():
        consumer.flow_active = False
        return {HERE: records(1)}

    consumer = Fake(suspended, {})
    assert drained(consumer) == [] and consumer.seeks >= 1 and consumer._read_offset == {}


def test_after_a_rebalance_a_log_without_a_commit_or_with_one_at_0_is_read_from_its_beginning():
    """The client seeks to commits above 0 alone, and what was fetched meanwhile has been dropped."""

    class Seeking(Fake):
        perform_seek = BatchConsumer.perform_seek
        sought = ()

        async def seek_to_committed(self):
            return {TP("pings", 0): 7, TP("pings", 1): 0, TP("pings", 2): None}

        def assignment(self):
            return {TP("pings", partition) for partition in range(3)}

    class Thread:
        async def seek_to_beginning(self, *partitions):
            consumer.sought = partitions

    consumer = Seeking()
    consumer._thread = Thread()
    consumer._committed_offset, consumer._read_offset = {}, dict.fromkeys(consumer.assignment(), 9)
    asyncio.run(consumer.perform_seek())
    assert sorted(consumer.sought) == [TopicPartition("pings", 1), TopicPartition("pings", 2)]
    assert consumer._read_offset[TP("pings", 0)] == 7
    assert "if offset and offset > 0" in inspect.getsource(AIOKafkaConsumer.seek_to_committed)
    assert inspect.iscoroutinefunction(ConsumerThread.seek_to_beginning)


@pytest.mark.parametrize("what", ["generation", "flow"])
def test_a_fetch_that_a_rebalance_overtook_is_dropped_and_read_again(what):
    """It may be a fetch of the new assignment: without a seek, its records would never be read."""

    def rebalanced():
        if what == "generation":
            consumer.app.consumer_generation_id = 2
        else:  # a static member that joins again is in the same generation
            consumer._stops += 1
        return {HERE: records(1)}

    consumer = Fake(rebalanced, {HERE: records(1, 2)}, {})
    assert drained(consumer) == [(HERE, 2, [1, 2])] and consumer.seeks == 1


def test_a_batch_that_a_rebalance_overtook_on_its_way_counts_as_unread():
    async def overtaken(callback, suspended, **_):
        suspended.close()
        callback.close()
        consumer._stops += 1

    consumer = Fake({HERE: records(1)}, {})
    consumer.wait_first = overtaken
    assert drained(consumer) == [] and consumer.seeks == 1 and consumer._read_offset == {}


def test_an_error_is_let_out():
    def broken():
        raise OSError

    with pytest.raises(OSError):
        drained(Fake(broken, {}))


def test_faust_still_has_what_is_overridden_and_relied_on():
    assert list(inspect.signature(Driver._drain_messages).parameters) == ["self", "fetcher"]
    assert "consumer._drain_messages(self)" in inspect.getsource(Fetcher)
    assert list(inspect.signature(Consumer._wait_next_records).parameters) == ["self", "timeout"]
    for name in (
        "perform_seek",
        "stop_flow",
        "verify_event_path",
        "_wait_next_records",
        "wait_first",
        "consumer_stopped_errors",
    ):
        assert hasattr(BatchConsumer, name)
    assert faust.__version__.startswith("0.15.")
