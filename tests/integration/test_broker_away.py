"""What a worker says while a real broker is away, and that nothing is lost: the broker is killed,
and started again."""

import asyncio
import signal
import time
from types import SimpleNamespace

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.structs import OffsetAndMetadata
from faust.types import TP

from lab.process import free_ports
from streams.kafka import CommittedOffset, Offsets
from streams.topics import group_of
from tests.forked import forked_to_log
from tests.integration.deployment import agree, found_city, log_of, worker
from tests.integration.test_once import is_stopped, until
from tests.prometheus import health, healthy_once
from tests.runtime.harness import fleet_log
from udp_stream.release import record as release

AWAY_S = 20


@pytest.mark.long
def test_a_broker_that_is_away_costs_a_few_lines_and_nothing_else(tmp_path, kafka_server):
    here = found_city(tmp_path, kafka_server.bootstrap, fleet_log(clean=True))
    here.feed()
    with agree(here) as (stack, expected):
        one = stack.enter_context(worker(here, stop="SIGSTOP@with offsets@2"))
        until(lambda: is_stopped(one))
        kafka_server.kill()
        one.send_signal(signal.SIGCONT)
        time.sleep(AWAY_S)
        assert one.poll() is None
        kafka_server.restart()
        here.wait_for(expected, one)
        until(lambda: (tmp_path / "one.err").read_text().count("Kafka answers again") == 1)
    said = (tmp_path / "one.err").read_text()
    lines = [text for _, text in log_of(said)]
    slots = {release.Release.decode(payload).hat.slot_start for payload in expected.values()}
    assert sum(" HATs, " in text and " released, " in text for text in lines) == len(slots)
    assert sum("a Kafka broker does not answer" in text for text in lines) == 1
    assert not [text for text in lines if text.startswith(("aiokafka", "faust", "kafka.", "mode"))]
    assert len(lines) < 40 and "Traceback" not in said and "GJ05" not in said


@pytest.mark.long
def test_what_was_committed_is_known_or_waited_for_while_a_broker_starts(kafka_server):
    here, last = TopicPartition("pings", 0), OffsetAndMetadata(1, "last")

    async def asked_all_the_time(consumer):
        async def call_thread(what, *arguments):
            return await what(*arguments)

        thread = SimpleNamespace(_consumer=consumer, call_thread=call_thread)
        offsets = Offsets(SimpleNamespace(consumer=SimpleNamespace(_thread=thread)))
        for _ in range(3):
            kafka_server.kill()
            started = asyncio.get_running_loop().run_in_executor(None, kafka_server.restart)
            answers = 0
            while not started.done() or answers < 100:
                assert await offsets.committed([TP(*here)]) == {
                    TP(*here): CommittedOffset(1, "last")
                }
                answers += started.done()

    async def run():
        servers = kafka_server.bootstrap
        async with AIOKafkaConsumer(
            bootstrap_servers=servers, group_id="g", enable_auto_commit=False
        ) as consumer:
            consumer.assign([here])
            for _ in range(1000):  # to be read again at each start, which takes a moment
                await consumer.commit({here: OffsetAndMetadata(0, "n" * 4000)})
            await consumer.commit({here: last})
            await asked_all_the_time(consumer)

    asyncio.run(run())


@pytest.mark.long
def test_a_feed_says_that_the_broker_went_and_that_it_is_back(tmp_path, kafka_server):
    here = found_city(tmp_path, kafka_server.bootstrap, [])
    process = forked_to_log(
        "tests.forked",
        ["feed", "--config", here.config, "--fleet", "20"],
        tmp_path / "log",
        tmp_path,
    )
    said = lambda text: (tmp_path / "log").read_text().count(text)  # noqa: E731
    try:
        until(lambda: any(one.end for one in group_of(here.settings.kafka).partitions))
        kafka_server.kill()
        until(lambda: said("a Kafka broker does not answer"))
        kafka_server.restart()
        until(lambda: said("Kafka answers again"))
        assert process.poll() is None and said("a Kafka broker does not answer") == 1
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.long
def test_a_worker_is_ready_while_the_broker_answers(tmp_path, kafka_server):
    here, (port,) = (
        found_city(tmp_path, kafka_server.bootstrap, fleet_log(clean=True)),
        free_ports(1),
    )
    words = ["worker", "--config", here.config, "--metrics", f"127.0.0.1:{port}"]
    process = forked_to_log("tests.forked", words, tmp_path / "log", tmp_path)
    try:
        healthy_once(port, "/readyz", 200, process)
        kafka_server.kill()
        healthy_once(port, "/readyz", 503, process)
        assert health(port, "/healthz") == (200, "ok\n")  # to start it again would help nobody
        kafka_server.restart()
        healthy_once(port, "/readyz", 200, process)
    finally:
        process.terminate()
        assert process.wait(20) == 0, (tmp_path / "log").read_text()[-2000:]
