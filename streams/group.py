"""The consumer group as the brokers know it, asked from outside: how far it has committed, and how many members it has.

What the group has not committed is more than what it has not read: a commit stays at the oldest ping of an open slot.
"""

from __future__ import annotations

import time
from typing import Any

from streams.connections import RIGHTS
from streams.topics import admin, topics_of
from udp_stream.adapters.kafka_section import KafkaSection
from udp_stream.errors import ConfigError
from udp_stream.release.worker_health import Group, GroupPartition

COORDINATOR_S = 10.0
"""A new cluster appoints its groups' coordinators when it is first asked for one."""


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
        members = len(client.describe_groups([kafka.group])[kafka.group]["members"])
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


def _commits(client: Any, group: str, asked: list[Any]) -> Any:
    from kafka.errors import CoordinatorNotAvailableError

    deadline = time.monotonic() + COORDINATOR_S
    while True:
        try:
            return client.list_group_offsets({group: asked})[group]
        except CoordinatorNotAvailableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _known(offset: int) -> int | None:
    return None if offset < 0 else offset
