"""The topics of a deployment as data, and the one place that makes them.

Settings that anything relies on are set on the topic itself, never left to a broker's defaults: the pings carry the
broker's append times, because they are half of the clock; releases are kept for ever, because there is one of each.

Readers of `release`, `latest`, `smoothed` and `queries` need `isolation.level=read_committed` to have each record once
and no slot or moment in part. It is librdkafka's default; that of Java, aiokafka and kafka-python is
`read_uncommitted`, which also sees what a worker wrote before it died, and then its repeat, of the same bytes. Nothing
else is written in transactions: chunks and refused pings come at least once, under ids.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from streams.connections import client_options, require_reachable, unreachable
from udp_stream.adapters.kafka_section import KafkaSection
from udp_stream.adapters.text import counted
from udp_stream.errors import ConfigError, DependencyUnavailable, needs
from udp_stream.units import parse_duration

BOOTSTRAP_MS = 5_000

KNOWN_S, AGAIN_S = 30.0, 0.1
"""How long new topics are waited for, and how often the broker is asked."""

INVALID_REPLICATION_FACTOR = 38
"""The number of the broker's answer, in Kafka's protocol."""

PARTITIONS, SETTINGS = "partitions", "settings"
"""What of a topic may differ, beside its settings by their names; all of them where the broker does not tell them."""

UNTOLD = "the broker does not tell its settings: its user needs the right DescribeConfigs on it"
"""Of a topic."""


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic: its name, how many partitions, and the settings that must hold."""

    name: str
    partitions: int
    settings: Mapping[str, str] = field(hash=False)


class Topics(NamedTuple):
    """All topics of a deployment."""

    pings: Topic
    parts: Topic
    release: Topic
    latest: Topic
    smoothed: Topic
    queries: Topic
    rejected: Topic
    deployment: Topic


def topics_of(kafka: KafkaSection) -> Topics:
    """The topics under the configured prefix.

    Pings, chunks (`parts`) and rejected pings are raw data about plates: kept as short as replays allow, all protected.

    >>> topics_of(KafkaSection(prefix="surat.")).pings.name
    'surat.bus.pings.v1'
    """
    raw = {"cleanup.policy": "delete", "retention.ms": str(round(parse_duration(kafka.retention) * 1000))}
    for_ever = {"cleanup.policy": "delete", "retention.ms": "-1"}

    def topic(name: str, partitions: int, settings: Mapping[str, str]) -> Topic:
        return Topic(f"{kafka.prefix}bus.{name}.v1", partitions, settings)

    return Topics(
        pings=topic("pings", kafka.partitions, {**raw, "message.timestamp.type": "LogAppendTime"}),
        parts=topic("parts", kafka.shards, raw),
        release=topic("speed.release", kafka.partitions, for_ever),
        latest=topic("speed.latest", kafka.partitions, {"cleanup.policy": "compact"}),
        smoothed=topic("speed.smoothed", kafka.partitions, for_ever),
        queries=topic("queries", kafka.partitions, for_ever),
        rejected=topic("pings.rejected", kafka.partitions, raw),
        deployment=topic("deployment", 1, for_ever),
    )


def create_topics(kafka: KafkaSection) -> list[str]:
    """Make what is missing and change nothing that is there; a sentence for each topic says what was found.

    The broker lists all of them when this returns, so the next client finds them. Raises DependencyUnavailable if no
    broker answers or it refuses, ConfigError for more copies than there are brokers.
    """
    wanted = topics_of(kafka)
    with admin(kafka) as client:
        there = set(client.list_topics())
        missing = [topic for topic in wanted if topic.name not in there]
        if missing:
            _make(missing, client, kafka)
            _wait_for({topic.name for topic in missing}, client)
        made = [f"{topic.name}: created, {counted(topic.partitions, 'partition')}" for topic in missing]
        found = [topic for topic in wanted if topic.name in there]
        return made + [f"{topic.name}: {_told(_differences(client, topic))}" for topic in found]


def _make(topics: Sequence[Topic], client: Any, kafka: KafkaSection) -> None:
    """ConfigError if there are not as many brokers as copies."""
    try:
        client.create_topics({topic.name: _options(topic, kafka) for topic in topics})
    except Exception as error:  # the client has a class for each number of an answer
        if getattr(error, "errno", None) != INVALID_REPLICATION_FACTOR:
            raise
        got = kafka.replication or "0, and default.replication.factor of the brokers is more"
        raise ConfigError(f"kafka.replication: expected at most the number of brokers, got {got}") from error


def _wait_for(names: set[str], client: Any) -> None:
    """Until the broker lists them: its controller has made them, and it hears of that a moment later."""
    deadline = time.monotonic() + KNOWN_S
    while unknown := names - set(client.list_topics()):
        if time.monotonic() > deadline:
            raise DependencyUnavailable(f"Kafka has made topics and does not list them: {', '.join(sorted(unknown))}")
        time.sleep(AGAIN_S)


def differences(kafka: KafkaSection) -> list[str]:
    """A sentence for each existing topic that differs from what is wanted; none if all is well.

    Raises ConfigError for what no worker can run on: a topic that is missing, pings without the broker's times, or
    with times that it does not tell, or another number of shards.
    """
    wanted = topics_of(kafka)
    with admin(kafka) as client:
        there = set(client.list_topics())
        for topic in wanted:
            if topic.name not in there:
                raise ConfigError(f"topic {topic.name} is missing: run `udp-stream topics create`")
        wrong = {topic.name: _differences(client, topic) for topic in wanted}
    pings, parts = wrong[wanted.pings.name], wrong[wanted.parts.name]
    fatal = [pings[what] for what in ("message.timestamp.type", SETTINGS) if what in pings]
    if PARTITIONS in parts:
        fatal.append(parts[PARTITIONS])
    if fatal:
        raise ConfigError(f"topics of {kafka.bootstrap}: {'; '.join(fatal)}")
    return [f"{name}: {'; '.join(texts.values())}" for name, texts in wrong.items() if texts]


def partitions_of(kafka: KafkaSection, topic: str) -> int:
    """How many partitions a topic has. DependencyUnavailable if no broker answers or has such a topic.

    Readers and writers ask here first: some brokers make a topic when a client asks for it, and this question does not.
    """
    with admin(kafka) as client:
        if topic not in client.list_topics():
            raise DependencyUnavailable(f"topic {topic} is missing: run `udp-stream topics create`")
        (description,) = client.describe_topics([topic])
        return len(description["partitions"])


def _told(wrong: Mapping[str, str]) -> str:
    return f"exists, differs: {'; '.join(wrong.values())}" if wrong else "exists as wanted"


def _options(topic: Topic, kafka: KafkaSection) -> dict[str, Any]:
    replication = {"replication_factor": kafka.replication} if kafka.replication else {}
    return {"num_partitions": topic.partitions, "configs": dict(topic.settings), **replication}


def _differences(client: Any, topic: Topic) -> dict[str, str]:
    """What of an existing topic is not as wanted (its partitions, its settings or one of them), with a sentence."""
    (description,) = client.describe_topics([topic.name])
    partitions, wrong = len(description["partitions"]), {}
    if partitions != topic.partitions:
        wrong[PARTITIONS] = f"{counted(partitions, 'partition')}, wanted {topic.partitions}"
    settings = _settings(client, topic.name)
    if not settings:
        return wrong | {SETTINGS: UNTOLD}
    return wrong | {
        key: f"{key} is {settings.get(key)}, wanted {value}"
        for key, value in topic.settings.items()
        if settings.get(key) != value
    }


def _settings(client: Any, name: str) -> dict[str, str]:
    """All settings of a topic; none where the broker does not tell them. The client keeps the error to itself."""
    from kafka.admin import ConfigResource, ConfigResourceType

    asked = client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)], config_filter="all")
    return {key: str(entry["value"]) for key, entry in asked["topic"][name].items()}


@contextmanager
def admin(kafka: KafkaSection) -> Iterator[Any]:
    """An administrator's client. Raises DependencyUnavailable, with what to install or start."""
    with needs("Kafka client", "kafka"):
        from kafka import KafkaAdminClient
        from kafka.errors import KafkaError
    require_reachable(kafka)
    client = None
    try:
        client = KafkaAdminClient(**client_options(kafka), bootstrap_timeout_ms=BOOTSTRAP_MS)
        yield client
    except KafkaError as error:
        raise unreachable(kafka, error) from error
    finally:
        if client is not None:
            client.close()
