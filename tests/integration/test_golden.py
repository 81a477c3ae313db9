"""The golden outputs on real services: a Redis ledger, and Kafka with one shard and with three."""

import pytest

from tests.golden.outputs import ON_KAFKA, SEED, known, of_embedded, told, write_key
from tests.integration.deployment import worker
from tests.runtime.harness import fleet_log
from udp_stream.release.record import decode


def test_on_a_redis_ledger(redis_server, tmp_path):
    assert of_embedded(tmp_path, redis_server.url, "all statistics") == known()["all statistics"]


@pytest.mark.parametrize("shards", [1, 3])
def test_on_kafka(city, shards):
    here = city(fleet_log(clean=True), shards=shards)
    write_key(here.folder)
    here.feed()
    expected = sum(number for name, number in known()[ON_KAFKA].items() if name != "digest")
    with worker(here, seed=SEED) as process:
        here.wait_for_records(expected, process)
    records = sorted(here.releases().values(), key=lambda one: (decode(one).hat.slot_start, decode(one).hat.cell))
    assert told(records) == known()[ON_KAFKA]
