"""The deployment as brokers know it, for every process but a worker: connections, topics, group,
outputs, ledger.

Tools outside of a worker use kafka-python.

* Settings that anything relies on are set on the topic, never left to a broker's defaults: the
  pings carry the broker's append times, because they are half of the clock; releases are kept for
  ever, because each exists once.
* A worker's client id says its name and its settings, so that others see whether they agree. A
  commit stays at the oldest ping of an open slot: what is not committed is more than what is not
  read.

Readers of `release`, `latest`, `smoothed` and `queries` need `isolation.level=read_committed` to
have each record once and no slot or moment in part. It is librdkafka's default; that of Java,
aiokafka and kafka-python is `read_uncommitted`, which also sees what a worker wrote before it died,
and then its repeat, of the same bytes. Nothing else is written in transactions: chunks and refused
pings come at least once, under ids.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from udp_stream.base.errors import ConfigError, DependencyUnavailable, PrivacyRefused, needs
from udp_stream.base.files import tls_context, with_secrets
from udp_stream.base.logs import BROKER, counted
from udp_stream.base.units import parse_duration
from udp_stream.ledger.port import Mark
from udp_stream.release.events import PublishedRelease, ReleaseReader
from udp_stream.release.query_pipeline import query_digest
from udp_stream.settings import Settings
from udp_stream.settings.rules import MECHANISMS
from udp_stream.settings.sections import KafkaSection

_OF_CONSUMERS = "metadata_max_age_ms", "connections_max_idle_ms"

RIGHTS = {29: "a topic", 30: "the group", 31: "the cluster", 53: "a transactional id"}
"""Objects of a missing right, by the error number in Kafka's protocol."""

SAID_MAX = 300
"""Characters of what a broker says that are shown."""

_SAID = re.compile(r"""error_message=(?:'([^']+)'|"([^"]+)")""")


def client_options(kafka: KafkaSection) -> dict[str, Any]:
    """Options that both client libraries take under the same names. ConfigError for a file that
    cannot be used."""
    options: dict[str, Any] = {
        "bootstrap_servers": kafka.bootstrap,
        "security_protocol": kafka.protocol,
    }
    options |= with_secrets("kafka", kafka.client)
    ca_file = options.pop("ssl_cafile", "")
    certificate_file = options.pop("ssl_certfile", "")
    key_file = options.pop("ssl_keyfile", "")
    if kafka.protocol.endswith("SSL"):
        options["ssl_context"] = tls_context("kafka", ca_file, certificate_file, key_file)
    if kafka.protocol.startswith("SASL"):
        options.setdefault("sasl_mechanism", MECHANISMS[0])
    return options


def security_options(kafka: KafkaSection) -> dict[str, Any]:
    """The options about TLS and passwords."""
    options = client_options(kafka).items()
    return {name: value for name, value in options if name.startswith(("security", "ssl", "sasl"))}


def faust_credentials(kafka: KafkaSection) -> Any:
    """TLS and passwords for Faust; None where brokers ask for nothing."""
    import faust

    options = security_options(kafka)
    context = options.get("ssl_context")
    if kafka.protocol.startswith("SASL"):
        return faust.SASLCredentials(
            username=options["sasl_plain_username"],
            password=options["sasl_plain_password"],
            ssl_context=context,
            mechanism=options["sasl_mechanism"],
        )
    return faust.SSLCredentials(context) if context else None


def faust_options(kafka: KafkaSection) -> dict[str, Any]:
    """Timeouts of `[kafka.client]` for Faust's consumer, which has no name for the pause between
    two attempts.

    >>> faust_options(KafkaSection(client={"request_timeout_ms": 20_000}))
    {'broker_request_timeout': 20.0}
    """
    client = kafka.client
    found = {f"consumer_{name}": client[name] for name in _OF_CONSUMERS if name in client}
    if "request_timeout_ms" in client:
        found["broker_request_timeout"] = float(client["request_timeout_ms"]) / 1000
    return found


# Clients try a refused connection again until their time is over, and hide the reason. So we
# connect ourselves, before a verb and after a failure.

CONNECT_S = 2.0
PROBE_S = 5.0
"""Timeout in seconds of an address: to connect and log in, and of an answer, which a busy broker
gives late."""

PROBE_CLOSE_S = 0.2


async def why_not(kafka: KafkaSection) -> str:
    """Reason, in words without secrets, why no broker can be talked to; "" if any can."""
    options = security_options(kafka)
    addresses = [address.strip() for address in kafka.bootstrap.split(",")]
    reasons = await asyncio.gather(*(_why_not(address, options) for address in addresses))
    if not all(reasons):
        return ""
    pairs = zip(addresses, reasons, strict=True)
    return "; ".join(
        f"{address} {reason}" if len(addresses) > 1 else f"it {reason}" for address, reason in pairs
    )


async def _why_not(address: str, options: dict[str, Any]) -> str:
    host, _, port = address.rpartition(":")
    if not (host and port.isdigit()):
        return "is no HOST:PORT"
    from aiokafka.conn import AIOKafkaConnection
    from aiokafka.errors import KafkaError
    from aiokafka.protocol.metadata import MetadataRequest

    connection = AIOKafkaConnection(
        host.strip("[]"), int(port), request_timeout_ms=round(PROBE_S * 1000), **options
    )
    try:
        await asyncio.wait_for(connection.connect(), CONNECT_S)
        await asyncio.wait_for(connection.send(MetadataRequest([])), PROBE_S)
    except (KafkaError, OSError, TimeoutError, ValueError) as error:
        return _words(error, options)
    finally:
        with suppress(TimeoutError):  # of a topic that never was there
            await asyncio.wait_for(connection.close(), PROBE_CLOSE_S)
    return ""


def _words(error: Exception, options: dict[str, Any]) -> str:
    from aiokafka.errors import (
        IllegalSaslStateError,
        SaslAuthenticationFailed,
        UnsupportedSaslMechanismError,
    )

    protocol = options["security_protocol"]
    tls = protocol.endswith("SSL")
    match error:
        # The order counts: a certificate's error is an SSLError and a ValueError, too.
        case ssl.SSLCertVerificationError() if error.verify_code in (62, 64):
            return "shows a certificate of another host: kafka.bootstrap needs a name that is in it"
        case ssl.SSLCertVerificationError():
            said = error.verify_message or "verification failed"
            return f"shows a certificate that is not trusted ({said}): kafka.client.ssl_cafile names who is"
        case SaslAuthenticationFailed():
            return "does not accept the user and password of kafka.client"
        case UnsupportedSaslMechanismError():
            return (
                f"does not offer {options['sasl_mechanism']}, which is kafka.client.sasl_mechanism"
            )
        case IllegalSaslStateError():
            return (
                'asks for no password: kafka.client.security_protocol is to be "SSL" or "PLAINTEXT"'
            )
        case ssl.SSLError():
            return "does not speak TLS on this port, or not with us: kafka.client.security_protocol says that it does"
        case ConnectionRefusedError():
            return "refuses connections: is the broker running, and is this its port?"
        case TimeoutError():
            return "does not answer within seconds"
        case ValueError():
            return "answers a login as no broker does"
    if isinstance(error, OSError) and not isinstance(error, ConnectionError) and not tls:
        return f"cannot be reached ({error.strerror or type(error).__name__})"
    if tls:
        return "ends the connection: does it speak TLS on this port, and does it want kafka.client.ssl_certfile?"
    asked = f"kafka.client.security_protocol is {protocol}"
    return f"ends the connection: does it want TLS or a password on this port? {asked}"


ANSWER_S = 1.0
"""How long a broker that may be starting is given before a verb: a client would try for longer, and
log each try."""


def require_reachable(kafka: KafkaSection) -> None:
    """Raise DependencyUnavailable, with the reason, if no broker talks to us. Not within a running
    loop.

    Where passwords or TLS are asked for it is tried once: a wrong password that is tried again may
    lock a user out.
    """
    with needs("Kafka client", "kafka"):
        import aiokafka as _  # noqa: F401 - `why_not` asks with it
    deadline = time.monotonic() + ANSWER_S
    while reason := asyncio.run(why_not(kafka)):
        if kafka.protocol != "PLAINTEXT" or time.monotonic() > deadline - AGAIN_S:
            raise DependencyUnavailable(f"Kafka at {kafka.bootstrap}: {reason}")
        time.sleep(AGAIN_S)


def unreachable(kafka: KafkaSection, error: BaseException) -> DependencyUnavailable:
    """Error to raise for this error of a client, outside of a running loop."""
    return asyncio.run(unreachable_in_loop(kafka, error))


async def unreachable_in_loop(kafka: KafkaSection, error: BaseException) -> DependencyUnavailable:
    """The error of `unreachable`, within a running loop."""
    found = await why_not(kafka)
    return DependencyUnavailable(f"Kafka at {kafka.bootstrap}: {found or refusal(error)}")


def refusal(error: BaseException) -> str:
    """Refusal of a broker that can be talked to, in words: a client's error may quote its whole
    request and answer.

    >>> refusal(RuntimeError("Request 'CreateTopicsRequest(...)' failed with response 'CreateTopicsResponse(topics=["
    ...     "CreatableTopicResult(name='pings', error_code=44, error_message='at least 3 copies')])'."))
    'it refuses: at least 3 copies (RuntimeError)'
    """
    name = type(error).__name__
    number = getattr(error, "errno", None)
    if number in RIGHTS:
        return f"it does not give us the rights on {RIGHTS[number]} ({name}): its user needs them"
    said = dict.fromkeys(one or other for one, other in _SAID.findall(str(error)))
    if said:
        return f"it refuses: {_cut('; '.join(said))} ({name})"
    return _cut(str(error) or name)


def _cut(text: str) -> str:
    return text if len(text) <= SAID_MAX else f"{text[:SAID_MAX]}..."


BOOTSTRAP_MS = 5_000

KNOWN_S = 30.0
AGAIN_S = 0.1
"""How long new topics are waited for, and how often the broker is asked."""

INVALID_REPLICATION_FACTOR = 38
"""The number of the broker's answer, in Kafka's protocol."""

PARTITIONS = "partitions"
SETTINGS = "settings"
"""Keys of a topic's differences, beside the names of its settings; SETTINGS where the broker tells
none."""

SETTINGS_HIDDEN = (
    "the broker does not tell its settings: its user needs the right DescribeConfigs on it"
)


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic: its name, how many partitions, and the settings that must hold."""

    name: str
    partitions: int
    settings: Mapping[str, str] = field(hash=False)


class Topics(NamedTuple):
    """All topics of a deployment, in the order of the table in `topics_of`."""

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

    Pings, chunks (`parts`) and rejected pings are raw data about plates: kept as short as replays
    allow, all protected.
    """
    raw = {
        "cleanup.policy": "delete",
        "retention.ms": str(round(parse_duration(kafka.retention) * 1000)),
    }
    for_ever = {"cleanup.policy": "delete", "retention.ms": "-1"}

    table = {
        "pings": (kafka.partitions, {**raw, "message.timestamp.type": "LogAppendTime"}),
        "parts": (kafka.shards, raw),
        "speed.release": (kafka.partitions, for_ever),
        "speed.latest": (kafka.partitions, {"cleanup.policy": "compact"}),
        "speed.smoothed": (kafka.partitions, for_ever),
        "queries": (kafka.partitions, for_ever),
        "pings.rejected": (kafka.partitions, raw),
        "deployment": (1, for_ever),
    }
    return Topics(
        *[Topic(f"{kafka.prefix}bus.{name}.v1", *wanted) for name, wanted in table.items()]
    )


def create_topics(kafka: KafkaSection) -> list[str]:
    """Make what is missing and change nothing that is there; a sentence for each topic says what
    was found.

    The broker lists all of them when this returns, so the next client finds them. Raises
    DependencyUnavailable if no broker answers or it refuses, ConfigError for more copies than there
    are brokers.
    """
    wanted = topics_of(kafka)
    with admin(kafka) as client:
        there = set(client.list_topics())
        missing = [topic for topic in wanted if topic.name not in there]
        if missing:
            _make(missing, client, kafka)
            names = {topic.name for topic in missing}
            deadline = time.monotonic() + KNOWN_S
            while unknown := names - set(client.list_topics()):
                if time.monotonic() > deadline:
                    raise DependencyUnavailable(
                        f"Kafka has made topics and does not list them: {', '.join(sorted(unknown))}"
                    )
                time.sleep(AGAIN_S)
        made = [
            f"{topic.name}: created, {counted(topic.partitions, 'partition')}" for topic in missing
        ]
        found = [topic for topic in wanted if topic.name in there]
        for topic in found:
            wrong = "; ".join(_differences(client, topic).values())
            made.append(
                f"{topic.name}: {f'exists, differs: {wrong}' if wrong else 'exists as wanted'}"
            )
        return made


def _make(topics: Sequence[Topic], client: Any, kafka: KafkaSection) -> None:
    copies = {"replication_factor": kafka.replication} if kafka.replication else {}
    options = {
        topic.name: {"num_partitions": topic.partitions, "configs": dict(topic.settings), **copies}
        for topic in topics
    }
    try:
        client.create_topics(options)
    except Exception as error:  # the client has a class for each number of an answer
        if getattr(error, "errno", None) != INVALID_REPLICATION_FACTOR:
            raise
        got = kafka.replication or "0, and default.replication.factor of the brokers is more"
        raise ConfigError(
            f"kafka.replication: expected at most the number of brokers, got {got}"
        ) from error


def differences(kafka: KafkaSection) -> list[str]:
    """A sentence for each existing topic that differs from what is wanted; none if all is well.

    Raises ConfigError for what no worker can run on: a topic that is missing, pings without the
    broker's times, or with times that it does not tell, pings on more partitions, or another number
    of shards.
    """
    wanted = topics_of(kafka)
    with admin(kafka) as client:
        there = set(client.list_topics())
        for topic in wanted:
            if topic.name not in there:
                raise ConfigError(f"topic {topic.name} is missing: run `udp-stream topics create`")
        wrong = {topic.name: _differences(client, topic) for topic in wanted}
        found = len(client.describe_topics([wanted.pings.name])[0]["partitions"])
    pings = wrong[wanted.pings.name]
    parts = wrong[wanted.parts.name]
    fatal = [pings[what] for what in ("message.timestamp.type", SETTINGS) if what in pings]
    if PARTITIONS in parts:
        fatal.append(parts[PARTITIONS])
    if found > wanted.pings.partitions:
        fatal.append(raised(wanted.pings.name, found, wanted.pings.partitions))
    if fatal:
        raise ConfigError(f"topics of {kafka.bootstrap}: {'; '.join(fatal)}")
    return [f"{name}: {'; '.join(texts.values())}" for name, texts in wrong.items() if texts]


def raised(topic: str, found: int, wanted: int) -> str:
    """Message about pings on more partitions than there may be."""
    return (
        f"{topic}: {counted(found, 'partition')}, expected {wanted} as before: a plate would come by two partitions. "
        "Leave kafka.partitions as it was; the way out is in docs/operations.md (Raised partitions)"
    )


def partitions_of(kafka: KafkaSection, topic: str) -> int:
    """How many partitions a topic has. DependencyUnavailable if no broker answers or has such a
    topic.

    Readers and writers ask here first: some brokers make a topic when a client asks for it, and
    this question does not.
    """
    with admin(kafka) as client:
        if topic not in client.list_topics():
            raise DependencyUnavailable(f"topic {topic} is missing: run `udp-stream topics create`")
        (description,) = client.describe_topics([topic])
        return len(description["partitions"])


def _differences(client: Any, topic: Topic) -> dict[str, str]:
    (description,) = client.describe_topics([topic.name])
    partitions = len(description["partitions"])
    wrong = {}
    if partitions != topic.partitions:
        wrong[PARTITIONS] = f"{counted(partitions, 'partition')}, wanted {topic.partitions}"
    settings = _settings(client, topic.name)
    if not settings:
        return wrong | {SETTINGS: SETTINGS_HIDDEN}
    return wrong | {
        key: f"{key} is {settings.get(key)}, wanted {value}"
        for key, value in topic.settings.items()
        if settings.get(key) != value
    }


def _settings(client: Any, name: str) -> dict[str, str]:
    """All settings of a topic; none where the broker does not tell them."""
    from kafka.admin import ConfigResource, ConfigResourceType

    asked = client.describe_configs(
        [ConfigResource(ConfigResourceType.TOPIC, name)], config_filter="all"
    )
    return {key: str(entry["value"]) for key, entry in asked["topic"][name].items()}


@contextmanager
def admin(kafka: KafkaSection) -> Iterator[Any]:
    """An administrator's client. Raises DependencyUnavailable, with what to install or start."""
    require_reachable(kafka)
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError

    client = None
    try:
        client = KafkaAdminClient(**client_options(kafka), bootstrap_timeout_ms=BOOTSTRAP_MS)
        yield client
    except KafkaError as error:
        raise unreachable(kafka, error) from error
    finally:
        if client is not None:
            client.close()


COORDINATOR_S = 10.0
"""A new cluster appoints its groups' coordinators on the first request for a coordinator."""

OTHER_QUERIES = (
    "asks other standing queries than this worker. All workers of a deployment need the same [queries], [[query]] and "
    "hat.timezone: stop all of them, give them one configuration, and start them again"
)


class Rules(NamedTuple):
    """Rules on which all workers of a deployment have to agree: the policy's fingerprint, and the
    digest of the standing queries."""

    policy: str
    asked: str

    @classmethod
    def of(cls, settings: Settings) -> Rules:
        return cls(
            settings.policy.fingerprint(), query_digest(settings.standing_queries, settings.zone)
        )

    def __str__(self) -> str:
        """The rules as `status` shows them.

        >>> str(Rules("5eed", "")), str(Rules("5eed", "cafe"))
        ('policy 5eed', 'policy 5eed, queries cafe')
        """
        return f"policy {self.policy}" + (f", queries {self.asked}" if self.asked else "")


class Member(NamedTuple):
    """A worker in the group; `rules` is None for a client id of another version, `partitions` name
    topic and number."""

    name: str
    rules: Rules | None
    partitions: tuple[tuple[str, int], ...] = ()


class GroupPartition(NamedTuple):
    """Where a partition begins and ends, and from where on its next worker reads; None: from its
    beginning.

    `topic` is the topic's name without prefix.

    >>> GroupPartition("bus.pings.v1", 0, first=100, end=1200, committed=900).behind
    300
    """

    topic: str
    partition: int
    first: int
    end: int
    committed: int | None

    @property
    def behind(self) -> int:
        """The number of messages that a worker would read: unread messages, and those of open
        slots."""
        return max(0, self.end - (self.first if self.committed is None else self.committed))


class Group(NamedTuple):
    """The partitions of pings and of chunks, in order, and the members by name."""

    partitions: tuple[GroupPartition, ...]
    members: tuple[Member, ...]

    @property
    def unread(self) -> list[GroupPartition]:
        held = {place for member in self.members for place in member.partitions}
        return [partition for partition in self.partitions if partition[:2] not in held]


def client_id(instance: str | None, rules: Rules) -> str:
    """Client id of a worker; without a configured name, it goes by its machine and process.

    >>> member_of(client_id("worker-1", Rules("5eed", "cafe")))
    Member(name='worker-1', rules=Rules(policy='5eed', asked='cafe'), partitions=())
    """
    return "/".join([instance or f"{socket.gethostname()}-{os.getpid()}", *rules])


def member_of(client: str, partitions: Iterable[tuple[str, int]] = ()) -> Member:
    """Undo `client_id`.

    >>> member_of("another client")
    Member(name='another client', rules=None, partitions=())
    """
    name, *rules = client.rsplit("/", 2)
    known = Rules(rules[0], rules[1]) if len(rules) == 2 else None
    return Member(name, known, tuple(partitions))


def group_of(kafka: KafkaSection) -> Group:
    """The group of the deployment's workers. DependencyUnavailable if no broker answers,
    ConfigError if a topic is missing."""
    with needs("Kafka client", "kafka"):
        from kafka import TopicPartition
        from kafka.admin import OffsetSpec
    topics = topics_of(kafka)
    names = [topics.pings.name, topics.parts.name]
    with admin(kafka) as client:
        there = set(client.list_topics())
        missing = [topic.name for topic in topics if topic.name not in there]
        if missing:
            raise ConfigError(f"topic {missing[0]} is missing: run `udp-stream topics create`")
        asked = [
            TopicPartition(description["name"], partition["partition_index"])
            for description in client.describe_topics(names)
            for partition in description["partitions"]
        ]
        firsts = client.list_partition_offsets(dict.fromkeys(asked, OffsetSpec.EARLIEST))
        ends = client.list_partition_offsets(dict.fromkeys(asked, OffsetSpec.LATEST))
        commits = _coordinated(lambda: client.list_group_offsets({kafka.group: asked}))[kafka.group]
        members = _members(client, kafka)
    found = []
    for tp in sorted(asked, key=lambda tp: (names.index(tp.topic), tp.partition)):
        topic = tp.topic.removeprefix(kafka.prefix)
        committed = commits[tp].offset
        found.append(
            GroupPartition(
                topic,
                tp.partition,
                firsts[tp].offset,
                ends[tp].offset,
                None if committed < 0 else committed,
            )
        )
    return Group(tuple(found), members)


def require_rights(kafka: KafkaSection) -> None:
    """Raise DependencyUnavailable if the user has no rights on the group: its workers would wait for ever
    to be taken in.

    Other errors of the group may pass: workers wait for that.
    """
    from kafka import TopicPartition

    with admin(kafka) as client:
        try:
            client.list_group_offsets(
                {kafka.group: [TopicPartition(topics_of(kafka).pings.name, 0)]}
            )
        except Exception as error:  # the client has a class for each number of an answer
            if getattr(error, "errno", None) in RIGHTS:
                raise


def require_same_queries(settings: Settings, instance: str | None) -> None:
    """Raise ConfigError if a worker in the group, under another name, asks other standing queries.

    A source sends the moments of its own queries alone, so its plates would be missing in others'
    answers. Two workers that start at once do not see each other here: messages and commits name
    their queries, and stop either of them.
    """
    ours = Rules.of(settings)
    with admin(settings.kafka) as client:
        members = _members(client, settings.kafka)
    for member in members:
        if (
            member.name != instance
            and member.rules is not None
            and member.rules.asked != ours.asked
        ):
            raise ConfigError(
                f"the worker {member.name} {OTHER_QUERIES}. (One that was killed counts for seconds.)"
            )


def _members(client: Any, kafka: KafkaSection) -> tuple[Member, ...]:
    found = []
    for member in _coordinated(lambda: client.describe_groups([kafka.group]))[kafka.group][
        "members"
    ]:
        assignment = member["member_assignment"]
        topics = assignment["assigned_partitions"] if assignment else []
        places = [
            (topic["topic"].removeprefix(kafka.prefix), number)
            for topic in topics
            for number in topic["partitions"]
        ]
        found.append(member_of(member["client_id"], sorted(places)))
    return tuple(sorted(found, key=lambda member: member.name))


def _coordinated(ask: Callable[[], Any]) -> Any:
    """The coordinator's answer. A broker that has never had a group takes some seconds until it has
    a coordinator."""
    from kafka.errors import CoordinatorLoadInProgressError, CoordinatorNotAvailableError

    deadline = time.monotonic() + COORDINATOR_S
    while True:
        try:
            return ask()
        except (CoordinatorNotAvailableError, CoordinatorLoadInProgressError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


POLL_MS = 500


def read_releases(kafka: KafkaSection, follow: bool = False) -> ReleaseReader:
    """Read every release, in order within a cell; all that are there now, or with `follow` also all
    that come.

    Each record once with `kafka.transactions`. Without, a record that was published twice comes
    twice, with the same bytes and release id. Raises DependencyUnavailable if no broker answers or
    the topic is missing.
    """
    yield from (
        PublishedRelease(value) for value in _values(kafka, topics_of(kafka).release.name, follow)
    )


def read_answers(kafka: KafkaSection, follow: bool = False) -> Iterator[bytes]:
    """Read every result of a standing query, in order within a query and a budget period; otherwise
    as `read_releases`."""
    return _values(kafka, topics_of(kafka).queries.name, follow)


def read_estimates(kafka: KafkaSection, follow: bool = False) -> Iterator[bytes]:
    """Read every smoothed estimate, in order within a cell; otherwise as `read_releases`."""
    return _values(kafka, topics_of(kafka).smoothed.name, follow)


def read_published(kafka: KafkaSection, since_ms: int) -> Iterator[tuple[str, list[bytes], bool]]:
    """Releases and smoothed estimates that were published from then on (Unix milliseconds), and
    what comes, without end: a topic, some of its values, and whether all that was there at first
    has been read. Raises as `read_releases`.
    """
    topics = topics_of(kafka)
    with _reader(kafka, [topics.release.name, topics.smoothed.name]) as (consumer, partitions):
        found = consumer.offsets_for_times(dict.fromkeys(partitions, since_ms))
        ends = consumer.end_offsets(partitions)
        for partition in partitions:
            consumer.seek(
                partition, found[partition].offset if found.get(partition) else ends[partition]
            )
        while True:
            for partition, records in consumer.poll(timeout_ms=POLL_MS).items():
                BROKER.back()
                yield partition.topic, [record.value for record in records if record.value], False
            yield (
                "",
                [],
                all(consumer.position(partition) >= ends[partition] for partition in partitions),
            )


def _values(kafka: KafkaSection, topic: str, follow: bool) -> Iterator[bytes]:
    with _reader(kafka, [topic]) as (consumer, partitions):
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)
        # By position, not by a count of records: the ends of transactions take offsets, too.
        while follow or any(
            consumer.position(partition) < ends[partition] for partition in partitions
        ):
            for records in consumer.poll(timeout_ms=POLL_MS).values():
                BROKER.back()
                yield from (record.value for record in records)


@contextmanager
def _reader(kafka: KafkaSection, topics: Sequence[str]) -> Iterator[tuple[Any, list[Any]]]:
    with needs("Kafka client", "kafka"):
        from kafka import KafkaConsumer, TopicPartition
        from kafka.errors import KafkaError
    partitions = [
        TopicPartition(topic, number)
        for topic in topics
        for number in range(partitions_of(kafka, topic))
    ]
    try:
        with closing(
            KafkaConsumer(
                **client_options(kafka),
                bootstrap_timeout_ms=BOOTSTRAP_MS,
                enable_auto_commit=False,
                isolation_level="read_committed",
            )
        ) as consumer:
            consumer.assign(partitions)
            yield consumer, partitions
    except KafkaError as error:
        raise unreachable(kafka, error) from error


# Which ledger and which key a deployment works on: the same for all of its workers and for ever
#
# Two ledgers are two budgets for every plate, and two keys make every plate two. So there are three
# checks:
#
# * **Registration.** Before a worker joins the group, it looks at the deployment's topic. Where
#   that is empty it writes what it works on, and looks again. The first registration in the log is
#   the deployment's, for ever.
# * **Messages** between workers name their writer's ledger and key; those between shards and the
#   planner also carry the highest mark of the ledger that the writer knows (`ledger/rules.py`).
# * **Commits** have the same in their metadata, for the next worker of the partition.
#
# Messages and commits hold where the registration is lost, as in a topic made anew: a worker that
# could charge a slot a second time, under another ledger, first reads either.

HEADER = "udp-stream-ledger"
MARK = "udp-stream-mark"


@dataclass(frozen=True)
class LedgerIdentity:
    """The id of the ledger, and the fingerprint of the plates' key: 32 hexadecimal digits each."""

    ledger_id: str
    key: str

    @classmethod
    def of(cls, meta: Mapping[str, str]) -> LedgerIdentity:
        return cls(meta["ledger_id"], meta["key_fingerprint"])

    @classmethod
    def read(cls, text: str) -> LedgerIdentity:
        """Undo `text`; raises ValueError for anything else."""
        ledger_id, dot, key = text.partition(".")
        if not (dot and ledger_id and key):
            raise ValueError(f"expected LEDGER.KEY, got {text!r}")
        return cls(ledger_id, key)

    @cached_property
    def text(self) -> str:
        return f"{self.ledger_id}.{self.key}"

    @cached_property
    def header(self) -> tuple[str, bytes]:
        return HEADER, self.text.encode()

    def require(self, theirs: str | None, where: str) -> None:
        """Raise PrivacyRefused unless `theirs` is the same; None: it says nothing."""
        if theirs == self.text:
            return
        raise PrivacyRefused(f"{where} {self._difference(theirs)}. {ADVICE}")

    def require_in(self, headers: Sequence[tuple[str, bytes]], where: str) -> None:
        """The same, of the headers of a message."""
        theirs = next((value for name, value in headers if name == HEADER), None)
        if theirs != self.header[1]:
            self.require(None if theirs is None else theirs.decode(errors="replace"), where)

    def _difference(self, theirs: str | None) -> str:
        try:
            other = LedgerIdentity.read(theirs or "")
        except ValueError:
            return "does not name its ledger: another version of udp-stream wrote it"
        if other.ledger_id != self.ledger_id:
            return f"works on the ledger {other.ledger_id}, and this worker on {self.ledger_id}"
        return f"works with the plates' key {other.key}, and this worker with {self.key}"


ADVICE = (
    "All workers of a deployment need one ledger and one key file: two ledgers are two budgets for every plate. Give "
    "this worker the others' ledger.url and a copy of their key file"
)


def mark_header(mark: Mark | None) -> list[tuple[str, bytes]]:
    """The mark in the headers of a message, if known."""
    return [] if mark is None else [(MARK, msgspec.json.encode(mark))]


def mark_in(headers: Sequence[tuple[str, bytes]]) -> Mark | None:
    """The mark in a message's headers; a mark that cannot be read is none."""
    for name, value in headers:
        if name == MARK:
            try:
                return msgspec.json.decode(value, type=Mark)
            except msgspec.DecodeError:
                return None
    return None


def other_version(what: str) -> ConfigError:
    """The error for a message or commit that this version cannot read; nothing of it is quoted."""
    return ConfigError(
        f"{what} is none that this version of udp-stream reads: another version, or another program, has written it. "
        "All workers of a deployment need one version. After an upgrade: let the old version release every slot first, "
        "as docs/operations.md says (Upgrading)"
    )
