"""Kafka by TLS and passwords: a whole stream through every client of ours, and what is said when
one is refused."""

import asyncio
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from uuid import uuid4

import pytest

from streams.feed import Feed, Pace
from streams.kafka import Producer, TransactionalPublisher, read_topic
from streams.topics import create_topics, read_releases, topics_of
from tests.integration.deployment import CONFIG, DEFAULTS, City, agree, log_of, worker
from tests.runtime.harness import fleet_log
from tests.secured import PASSWORD, USER, secured_kafka
from tests.verbs import run_verb
from udp_stream.base.errors import DependencyUnavailable
from udp_stream.settings.sections import KafkaSection

BOUND_S = 20.0
WRONG = "tr0ub4dor&3-is-wrong"


@pytest.fixture(scope="module")
def secured():
    with secured_kafka() as (running, made):
        yield running, made


def section(secured, listener, **keys):
    running, made = secured
    prefix = keys.pop("prefix", "")
    keys = {
        key: str(made.folder / value) if key.endswith("file") else value
        for key, value in keys.items()
    }
    return KafkaSection(
        bootstrap=running.addresses.get(listener, running.bootstrap), prefix=prefix, client=keys
    )


SASL = {"security_protocol": "SASL_SSL", "sasl_plain_username": USER, "sasl_plain_password_file": "password",
        "ssl_cafile": "ca.crt"}  # fmt: skip
TLS = {"security_protocol": "SSL", "ssl_cafile": "ca.crt"}


@pytest.mark.long
def test_a_whole_stream_over_tls_with_a_password(secured, tmp_path):
    here = secured_city(secured, tmp_path, "SCRAM-SHA-512")
    here.feed()
    with agree(here) as (stack, expected):
        here.wait_for(expected, stack.enter_context(worker(here)))
    assert {release.payload for release in read_releases(here.settings.kafka)} == set(
        expected.values()
    )
    for verb in (["doctor"], ["topics", "create"], ["releases"]):
        done = run_verb([*verb, "--config", here.config], cwd=tmp_path)
        said = (done.stdout + done.stderr).decode()
        assert done.returncode == 0 and "FAIL" not in said and PASSWORD not in said, said
    for log in tmp_path.glob("*.err"):
        assert PASSWORD not in log.read_text() and {
            level for level, _ in log_of(log.read_text())
        } == {"info"}


@pytest.mark.parametrize(
    "mechanism", ["PLAIN", pytest.param("SCRAM-SHA-256", marks=pytest.mark.soak)]
)
def test_each_library_logs_in_by_each_mechanism(secured, tmp_path, mechanism):
    here = secured_city(secured, tmp_path, mechanism)
    here.feed(here.messages[:50])
    assert len(here.read(here.topics.pings)) == 50
    assert list(read_releases(here.settings.kafka)) == []
    asyncio.run(produce_once(here))


def secured_city(secured, folder, mechanism):
    config, running = folder / "city.toml", secured[0]
    given = {
        "name": f"s{uuid4().hex[:8]}",
        "ledger": f"sqlite:{folder}/stream.ledger",
        "folder": folder,
    }
    text = CONFIG.format(**{**DEFAULTS, **given, "bootstrap": running.addresses["SASLTLS"]})
    client = section(secured, "SASLTLS", **SASL, sasl_mechanism=mechanism).client
    config.write_text(
        text
        + "[kafka.client]\n"
        + "".join(f'{name} = "{value}"\n' for name, value in client.items())
    )
    made = City(folder, fleet_log(clean=True), config)
    assert len(create_topics(made.settings.kafka)) == 8
    return made


async def produce_once(here):
    from faust.types import TP

    from streams.kafka import CommittedOffset, OutgoingRecord

    kafka, shard = here.settings.kafka, TP(here.topics.parts.name, 0)
    async with Producer(kafka) as producer:
        await producer.write([OutgoingRecord(here.topics.rejected.name, b"plain")])
    once = await TransactionalPublisher.begin(kafka, shard)
    await once.publish(
        [OutgoingRecord(here.topics.rejected.name, b"once")], {shard: CommittedOffset(1, "")}
    )
    await once.close()
    found = await asyncio.to_thread(read_topic, kafka, here.topics.rejected)
    assert {record.value for record in found} == {b"plain", b"once"}


def test_a_certificate_of_ours_is_shown_to_a_broker_that_asks_for_one(secured):
    kafka = section(
        secured,
        "MUTUAL",
        **TLS,
        ssl_certfile="client.crt",
        ssl_keyfile="client.key",
        prefix="mutual.",
    )
    assert len(create_topics(kafka)) == 8
    with Feed(kafka, topics_of(kafka).pings.name, 1, Pace()) as feed:
        feed.send([b"no ping"])
    assert [record.value for record in read_topic(kafka, topics_of(kafka).pings)] == [b"no ping"]


WRONGLY = {**SASL, "sasl_plain_password_file": "wrong"}
OVER_PLAINTEXT = {"security_protocol": "SASL_PLAINTEXT", "ssl_cafile": ""}
REFUSALS = {
    "wrong password": ("SASLTLS", WRONGLY, "does not accept the user"),
    "wrong password, PLAIN": ("SASLTLS", {**WRONGLY, "sasl_mechanism": "PLAIN"}, "does not accept the user"),
    "nobody known": ("SASLTLS", {**SASL, "sasl_plain_username": "stranger"}, "does not accept the user"),
    "wrong authority": ("TLS", {**TLS, "ssl_cafile": "other.crt"}, "a certificate that is not trusted"),
    "the system's authorities": ("TLS", {"security_protocol": "SSL"}, "a certificate that is not trusted"),
    "another host": ("ELSEWHERE", TLS, "a certificate of another host"),
    "plaintext to TLS": ("TLS", {}, "does it want TLS or a password on this port"),
    "plaintext to SASL": ("SASL", {}, "does it want TLS or a password on this port"),
    "TLS to plaintext": ("", TLS, "ends the connection: does it speak TLS"),
    "SASL to plaintext": ("", {**SASL, **OVER_PLAINTEXT}, "asks for no password"),
    "no certificate of ours": ("MUTUAL", TLS, "does it want kafka.client.ssl_certfile"),
    "no password over TLS": ("SASLTLS", TLS, "ends the connection"),
}  # fmt: skip


def asked(kafka):
    """What kafka-python's clients say, all of which ask the administrator's first, and what
    aiokafka's."""

    async def producer():
        async with Producer(kafka):
            pass

    asks = (lambda: create_topics(kafka), lambda: asyncio.run(producer()))
    said, began = [], time.monotonic()
    for ask in asks:
        with pytest.raises(DependencyUnavailable) as raised:
            ask()
        said.append(str(raised.value))
    return said, time.monotonic() - began


def test_every_client_that_is_refused_says_why_in_bounded_time_and_without_a_secret(secured):
    kafkas = {}
    for name, (listener, keys, _) in REFUSALS.items():
        given = {key: value for key, value in keys.items() if value}
        kafkas[name] = section(secured, listener, **given)
    with ThreadPoolExecutor(len(kafkas)) as threads:
        found = dict(zip(kafkas, threads.map(asked, kafkas.values()), strict=True))
    for name, (said, seconds) in found.items():
        assert all(REFUSALS[name][2] in one for one in said), (name, said)
        assert all(one.startswith(f"Kafka at {kafkas[name].bootstrap}") for one in said)
        assert seconds < BOUND_S
        assert not [one for one, secret in product(said, (PASSWORD, WRONG)) if secret in one]


def _is_connected(address):
    port = f":{int(address.rpartition(':')[2]):04X}"
    found = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(remote.endswith(port) and state == "01" for _, _, remote, state, *_ in found)


def _until(holds):
    deadline = time.monotonic() + BOUND_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_what_other_users_can_see_of_a_process_holds_no_secret(secured, tmp_path):
    here = secured_city(secured, tmp_path, "SCRAM-SHA-256")
    here.feed([b"no ping"])
    command = [
        sys.executable,
        "-m",
        "udp_stream",
        "releases",
        "--follow",
        "--config",
        str(here.config),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as following:
        _until(lambda: _is_connected(secured[0].addresses["SASLTLS"]))
        seen = b"".join(
            Path(f"/proc/{following.pid}/{name}").read_bytes() for name in ("cmdline", "environ")
        )
        following.terminate()
        _, said = following.communicate(timeout=20)
    assert b"--follow" in seen and PASSWORD.encode() not in seen + said
