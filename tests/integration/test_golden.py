"""The golden outputs on real services: a Redis ledger, and Kafka with one shard and with three."""

import pytest

from tests.forms import long_rows, soaked, soaked_rows
from tests.golden.outputs import (
    IN_RHO,
    ON_KAFKA,
    QUERIES,
    SEED,
    Run,
    asked,
    known,
    of_embedded,
    of_queries,
    remembered,
    told,
    told_results,
    write_key,
)  # fmt: skip
from tests.integration.deployment import worker
from tests.runtime.harness import fleet_log
from udp_stream.release.record import Release


@pytest.mark.parametrize("name", ["all statistics", IN_RHO])
def test_on_a_redis_ledger(redis_server, tmp_path, name):
    assert told(of_embedded(tmp_path, redis_server.url, name)) == known()[name]


@pytest.mark.parametrize("name", ["rho", pytest.param("epsilon", marks=pytest.mark.soak)])
def test_answers_on_a_redis_ledger(redis_server, tmp_path, name):
    assert told_results(of_queries(tmp_path, name, redis_server.url)) == known(QUERIES)[name]


@pytest.mark.parametrize(
    ("name", "accounting", "shards"),
    [
        (IN_RHO, "approximate", 3),
        *long_rows([], [(ON_KAFKA, "pure", 3)]),
        *soaked_rows([(ON_KAFKA, "pure", 1)]),
    ],
)
def test_on_kafka(city, name, accounting, shards):
    here = city(fleet_log(clean=True), shards=shards, accounting=accounting)
    write_key(here.folder)
    here.feed()
    expected = sum(known()[name]["statuses"].values())
    with worker(here, seed=SEED) as process:
        here.wait_for_number(here.topics.release, expected, process)
    records = sorted(
        here.releases().values(),
        key=lambda one: (Release.decode(one).hat.slot_start, Release.decode(one).hat.cell),
    )
    with here.ledger() as (ledger, _):
        assert told(Run(records, remembered(ledger))) == known()[name]


@pytest.mark.parametrize("shards", [*soaked([1]), 3])
def test_answers_on_kafka(city, shards):
    here = city(fleet_log(clean=True), asked(ON_KAFKA), shards=shards)
    write_key(here.folder)
    here.feed()
    expected = known(QUERIES)[ON_KAFKA]
    with worker(here, seed=SEED) as process:
        here.wait_for_number(
            here.topics.release, sum(known()[ON_KAFKA]["statuses"].values()), process
        )
        here.wait_for_number(here.topics.queries, sum(expected["results"].values()), process)
    with here.ledger() as (ledger, _):
        assert told_results(Run(list(here.answers().values()), remembered(ledger))) == expected
