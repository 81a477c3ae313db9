"""A feed without speeds on Kafka: with one partition and with four, and where workers die, what one
machine says."""

import signal

import pytest

from tests.forms import soaked
from tests.integration.deployment import SECONDS_MAX, agree, found_city, worker
from tests.runtime.harness import fleet_log, without_speeds

MOVING = '[speed]\nfrom = "movement"\n'


@pytest.mark.parametrize("partitions", [*soaked([1]), 4])
def test_the_same_bytes_with_any_number_of_partitions_and_after_kills(
    tmp_path, kafka_bootstrap, partitions
):
    messages = list(without_speeds(fleet_log(clean=True)))
    here = found_city(tmp_path, kafka_bootstrap, messages, MOVING, partitions=partitions, shards=2)
    here.feed()
    with agree(here) as (_, expected):
        for point in ("written", "committed"):
            with worker(here, stop=f"SIGKILL@{point}@1") as process:
                assert process.wait(SECONDS_MAX) == -signal.SIGKILL, point
        with worker(here, "last") as last, worker(here, "other"):
            here.wait_for(expected, last)
