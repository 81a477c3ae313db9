"""What a worker says while a real broker is away, and that nothing is lost: the broker is killed, and started again."""

import signal
import time

import pytest

from tests.integration.deployment import agree, found_city, log_of, worker
from tests.integration.test_once import is_stopped, until
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
    said = (tmp_path / "one.err").read_text()
    lines = [text for _, text in log_of(said)]
    slots = {release.decode(payload).hat.slot_start for payload in expected.values()}
    assert sum(" HATs, " in text and " released, " in text for text in lines) == len(slots)
    assert sum("a Kafka broker does not answer; the worker tries again" in text for text in lines) == 1
    assert len(lines) < 40 and "Traceback" not in said and "GJ05" not in said
