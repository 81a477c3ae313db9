"""The consumer group as the brokers know it, asked from outside: its members, and how far it has committed.

A worker's client id says its name and its settings, so that others see whether they agree without a word from it.
What the group has not committed is more than what it has not read: a commit stays at the oldest ping of an open slot.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from streams.connections import RIGHTS
from streams.topics import admin, topics_of
from udp_stream.adapters.kafka_section import KafkaSection
from udp_stream.adapters.settings import Settings
from udp_stream.errors import ConfigError
from udp_stream.release.query_road import asked_digest

COORDINATOR_S = 10.0
"""A new cluster appoints its groups' coordinators when it is first asked for one."""

OTHER_QUERIES = (
    "asks other standing queries than this worker. All workers of a deployment need the same [queries], [[query]] and "
    "hat.timezone: stop all of them, give them one configuration, and start them again"
)


class Rules(NamedTuple):
    """What all workers of a deployment need alike: the policy's fingerprint, and the digest of the standing queries."""

    policy: str
    asked: str

    @classmethod
    def of(cls, settings: Settings) -> Rules:
        """Of a configuration."""
        return cls(settings.policy.fingerprint(), asked_digest(settings.standing_queries, settings.zone))

    def __str__(self) -> str:
        """As `status` shows them.

        >>> str(Rules("5eed", "")), str(Rules("5eed", "cafe"))
        ('policy 5eed', 'policy 5eed, queries cafe')
        """
        return f"policy {self.policy}" + (f", queries {self.asked}" if self.asked else "")


class Member(NamedTuple):
    """A worker that is in the group. `rules` is None for a client id that is not of this version.

    `partitions` are those that it reads: topic, without prefix, and number.
    """

    name: str
    rules: Rules | None
    partitions: tuple[tuple[str, int], ...] = ()


class GroupPartition(NamedTuple):
    """A partition: where it begins and ends, and from where on a worker that takes it over reads; None if nothing is
    committed, which is from its beginning on.

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
        """The number of messages from there on: unread ones, and those of open slots."""
        return max(0, self.end - (self.first if self.committed is None else self.committed))


class Group(NamedTuple):
    """The partitions of pings and of chunks, in order, and the members by name."""

    partitions: tuple[GroupPartition, ...]
    members: tuple[Member, ...]

    @property
    def unread(self) -> list[GroupPartition]:
        """The partitions that no member reads."""
        held = {place for member in self.members for place in member.partitions}
        return [one for one in self.partitions if one[:2] not in held]


def client_id(instance: str | None, rules: Rules) -> str:
    """Of a worker; without a name for ever, it goes by its machine and process.

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
    return Member(name, Rules(*rules) if len(rules) == 2 else None, tuple(partitions))


def group_of(kafka: KafkaSection) -> Group:
    """The group of the deployment's workers. DependencyUnavailable if no broker answers, ConfigError if a topic is
    missing."""
    from kafka import TopicPartition
    from kafka.admin import OffsetSpec

    topics = topics_of(kafka)
    names = [topics.pings.name, topics.parts.name]
    with admin(kafka) as client:
        there = set(client.list_topics())
        if missing := [topic.name for topic in topics if topic.name not in there]:
            raise ConfigError(f"topic {missing[0]} is missing: run `udp-stream topics create`")
        asked = [
            TopicPartition(description["name"], partition["partition_index"])
            for description in client.describe_topics(names)
            for partition in description["partitions"]
        ]
        firsts = client.list_partition_offsets(dict.fromkeys(asked, OffsetSpec.EARLIEST))
        ends = client.list_partition_offsets(dict.fromkeys(asked, OffsetSpec.LATEST))
        commits = _commits(client, kafka.group, asked)
        members = _members(client, kafka)
    found = []
    for tp in sorted(asked, key=lambda tp: (names.index(tp.topic), tp.partition)):
        topic, offsets = tp.topic.removeprefix(kafka.prefix), (firsts[tp].offset, ends[tp].offset)
        found.append(GroupPartition(topic, tp.partition, *offsets, _known(commits[tp].offset)))
    return Group(tuple(found), members)


def require_rights(kafka: KafkaSection) -> None:
    """DependencyUnavailable if the user has no rights on the group: its workers would wait for ever to be taken in, as
    their client says nothing. What else is wrong with the group may pass, and they do wait for that."""
    from kafka import TopicPartition

    with admin(kafka) as client:
        try:
            client.list_group_offsets({kafka.group: [TopicPartition(topics_of(kafka).pings.name, 0)]})
        except Exception as error:  # the client has a class for each number of an answer
            if getattr(error, "errno", None) in RIGHTS:
                raise


def require_asked_alike(settings: Settings, instance: str | None) -> None:
    """ConfigError if a worker in the group, other than the one of our name, asks other standing queries.

    A source sends the moments of its own queries alone, so one with other queries would leave its plates out of the
    answers. Two workers that start at once do not see each other here; the messages of their shards and their commits
    say what they ask, and stop one of them.
    """
    ours = Rules.of(settings)
    with admin(settings.kafka) as client:
        members = _members(client, settings.kafka)
    for member in members:
        if member.name != instance and member.rules is not None and member.rules.asked != ours.asked:
            raise ConfigError(f"the worker {member.name} {OTHER_QUERIES}. (One that was killed counts for seconds.)")


def _members(client: Any, kafka: KafkaSection) -> tuple[Member, ...]:
    found = []
    for member in _coordinated(lambda: client.describe_groups([kafka.group]))[kafka.group]["members"]:
        assignment = member["member_assignment"]
        topics = assignment["assigned_partitions"] if assignment else []
        places = [(one["topic"].removeprefix(kafka.prefix), number) for one in topics for number in one["partitions"]]
        found.append(member_of(member["client_id"], sorted(places)))
    return tuple(sorted(found, key=lambda member: member.name))


def _commits(client: Any, group: str, asked: list[Any]) -> Any:
    return _coordinated(lambda: client.list_group_offsets({group: asked}))[group]


def _coordinated(ask: Callable[[], Any]) -> Any:
    """The coordinator's answer. A broker that has never had a group takes some seconds until it has a coordinator."""
    from kafka.errors import CoordinatorNotAvailableError

    deadline = time.monotonic() + COORDINATOR_S
    while True:
        try:
            return ask()
        except CoordinatorNotAvailableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _known(offset: int) -> int | None:
    return None if offset < 0 else offset
