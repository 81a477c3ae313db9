"""The `[kafka]` section of the configuration: where the brokers are, and how workers share the work."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

Option: TypeAlias = str | int | float | bool
"""A value of a client's table: it goes to the client as it is."""


class KafkaSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """For the deployment on Kafka; the embedded runtime does not read it.

    `partitions` are those of the pings topic, `shards` those of the shuffle topic; one plan is made for all shards.
    `replication` 0 leaves it to the broker. A silent partition gets a tick record after `idle_timeout`. With
    `transactions` a slot's releases are published strictly once, for readers of committed records.

    `client` goes to the Kafka clients as it is: TLS, login and timeouts, by the names of kafka-python. A secret is in a
    file: `sasl_plain_password_file` (`secret_files.py`).
    """

    bootstrap: str = "localhost:9092"
    client: dict[str, Option] = {}
    prefix: str = ""
    group: str = "udp-stream"
    partitions: Annotated[int, msgspec.Meta(ge=1, le=256)] = 8
    shards: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
    replication: Annotated[int, msgspec.Meta(ge=0, le=9)] = 0
    retention: str = "7d"
    idle_timeout: str = "1m"
    transactions: bool = True

    @property
    def protocol(self) -> str:
        """What the brokers' listener asks for, by Kafka's name.

        >>> KafkaSection(client={"security_protocol": "SASL_SSL"}).protocol, KafkaSection().protocol
        ('SASL_SSL', 'PLAINTEXT')
        """
        return str(self.client.get("security_protocol", "PLAINTEXT"))
