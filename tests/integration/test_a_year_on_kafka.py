"""What a year brings to workers on a real Kafka and Redis: raised partitions, lost pings, Redis
away, old pings."""

import json
import signal
import time

import pytest
from kafka import TopicPartition

from lab.process import free_ports
from lab.services import command
from streams.topics import admin, create_topics, group_of
from tests.forked import forked_to_log
from tests.forms import long_but
from tests.integration.deployment import agree, log_of, worker
from tests.integration.test_once import is_stopped, until
from tests.prometheus import health
from tests.runtime.harness import fleet_log
from tests.verbs import run_verb
from udp_stream.base.errors import ConfigError, DataLoss


def started(city, *flags, instance="other"):
    arguments = ["worker", "--config", city.config, "--instance", instance, *flags]
    return forked_to_log("tests.forked", arguments, city.folder / f"{instance}.err", city.folder)


def said(city, instance="one"):
    return log_of((city.folder / f"{instance}.err").read_text())


def ended(process):
    try:
        return process.wait(30)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def late_in_status(city):
    done = run_verb(["status", "--json", "--config", city.config], cwd=city.folder)
    return json.loads(done.stdout)["late"]


def test_raised_partitions_are_said_by_who_runs_refused_by_who_starts_and_have_a_way_out(
    city, redis_server
):
    here = city(fleet_log(clean=True), ledger=redis_server.url)
    pings, parts, group = here.topics.pings.name, here.topics.parts.name, here.settings.kafka.group
    here.feed()
    with agree(here) as (stack, expected):
        one = stack.enter_context(worker(here, "one"))
        here.wait_for(expected, one)
        with admin(here.settings.kafka) as client:
            client.create_partitions({pings: 6})
        until(
            lambda: (
                [
                    level
                    for level, text in said(here)
                    if f"{pings}: 6 partitions, expected 4" in text
                ]
                == ["error"]
            )
        )
        refused = started(here, instance="two")
        assert ended(refused) == ConfigError.exit_status and one.poll() is None
        assert "way out" in (here.folder / "two.err").read_text()
        # Neither with the number raised in the configuration.
        assert (
            ended(started(here, "--set", "kafka.partitions=6", instance="three"))
            == ConfigError.exit_status
        )
    (port,) = free_ports(1)
    held = started(here, "--hold", "--metrics", f"127.0.0.1:{port}", instance="four")
    until(
        lambda: (
            (here.folder / "four.err").exists()
            and "Held until it is" in (here.folder / "four.err").read_text()
        )
    )
    assert health(port, "/healthz") == (200, "ok\n") and health(port, "/readyz")[0] == 503
    held.send_signal(signal.SIGTERM)
    assert ended(held) == ConfigError.exit_status
    with admin(here.settings.kafka) as client:
        client.delete_topics([pings, parts])
        until(lambda: not {pings, parts} & set(client.list_topics()))
        client.delete_groups([group])
    assert sum("created" in line for line in create_topics(here.settings.kafka)) == 2
    with worker(here, "one"):
        pass


def members_of(city):
    return {member.name: member for member in group_of(city.settings.kafka).members}


def partitions_of(city):
    return group_of(city.settings.kafka).partitions


@pytest.mark.parametrize("topic", long_but(["pings"], ["pings", "parts"]))
def test_workers_go_on_with_partitions_that_were_raised_and_lose_nothing(topic, city, redis_server):
    here = city(fleet_log(clean=True), ledger=redis_server.url, shards=2)
    name, before = getattr(here.topics, topic).name, getattr(here.topics, topic).partitions
    config = here.config.read_text()
    here.feed()
    with agree(here) as (stack, expected):
        # The first to come leads the group: it alone looks for new partitions, here each second.
        here.config.write_text(
            config.replace("transactions", "client.metadata_max_age_ms = 1000\ntransactions")
        )
        one = stack.enter_context(worker(here, "one"))
        until(lambda: members_of(here).keys() == {"one"})
        here.config.write_text(config)
        two = stack.enter_context(worker(here, "two"))
        until(lambda: members_of(here).keys() == {"one", "two"})
        with admin(here.settings.kafka) as client:
            client.create_partitions({name: before + 1})
        until(
            lambda: (
                before
                in {at for m in members_of(here).values() for of, at in m.partitions if of in name}
            )
        )
        here.wait_for(expected, one, two)
        # New partitions of pings have ticks: without they would hold up all slots from now on.
        until(
            lambda: all(
                one.end and not one.behind for one in partitions_of(here) if topic == "pings"
            )
        )
        assert one.poll() is None and two.poll() is None


def test_pings_that_were_deleted_before_they_were_read_have_a_status_of_their_own(
    city, redis_server
):
    here = city(fleet_log(clean=True), ledger=redis_server.url)
    here.feed()
    with worker(here, "one") as one:
        expected, _ = here.embedded()
        here.wait_for(expected, one)
    here.feed(here.messages[-50:])
    with admin(here.settings.kafka) as client:
        client.delete_records(
            {TopicPartition(here.topics.pings.name, number): -1 for number in range(4)}
        )
    assert ended(started(here)) == DataLoss.exit_status


def test_a_redis_that_is_full_as_workers_start_is_waited_for(city, redis_server):
    """Where the ledger is to be made, and where it is there. Who is told to stop stops at once."""
    here = city(fleet_log(clean=True), ledger=redis_server.url)
    here.feed()

    def waiting(number, status):
        command(redis_server.port, "CONFIG", "SET", "maxmemory", "1")
        name = f"stopped-{number}"
        stopped = started(here, instance=name)
        until(
            lambda: (
                stopped.poll() is not None
                or any("maxmemory" in text for _, text in said(here, name))
            )
        )
        assert stopped.poll() is None
        before_s = time.monotonic()
        stopped.send_signal(number)
        assert ended(stopped) == status and time.monotonic() - before_s < 8
        assert sum("maxmemory" in text for _, text in said(here, name)) == 1

    waiting(signal.SIGTERM, 0)
    with agree(here) as (stack, expected):
        one = stack.enter_context(worker(here, "one"))
        until(lambda: any("maxmemory" in text for _, text in said(here)))
        command(redis_server.port, "CONFIG", "SET", "maxmemory", "0")
        here.wait_for(expected, one)
    waiting(signal.SIGINT, 130)


@pytest.mark.parametrize(
    "dies", [True, pytest.param(False, marks=pytest.mark.long)], ids=["killed", "full"]
)
def test_a_redis_that_is_away_or_full_is_waited_for_and_old_pings_are_said(
    dies, city, redis_server
):
    gone = "the ledger does not answer" if dies else "maxmemory"
    here = city(fleet_log(clean=True), ledger=redis_server.url)
    here.feed()
    with agree(here) as (stack, expected):
        one = stack.enter_context(worker(here, "one", stop="SIGSTOP@recorded@2"))
        until(lambda: is_stopped(one))
        if dies:
            redis_server.kill()
        else:
            command(redis_server.port, "CONFIG", "SET", "maxmemory", "1")
        one.send_signal(signal.SIGCONT)
        until(lambda: any(gone in text for _, text in said(here)))
        time.sleep(8)  # more than the client's own pauses
        assert one.poll() is None
        if dies:
            redis_server.restart()
        else:
            command(redis_server.port, "CONFIG", "SET", "maxmemory", "0")
        here.wait_for(expected, one)
        assert sum(gone in text for _, text in said(here)) == 1
        assert sum("the ledger answers again" in text for _, text in said(here)) == 1
        here.feed(here.messages[:200])
        until(lambda: (late_in_status(here) or {"pings": 0})["pings"] > 0)
