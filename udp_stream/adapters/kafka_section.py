"""The `[kafka]` section of the configuration: where the brokers are, and how workers share the work."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Security = Literal["plaintext", "tls", "sasl", "sasl-tls"]


class KafkaSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """For the deployment on Kafka; the embedded runtime does not read it.

    `partitions` are those of the pings topic, `shards` those of the shuffle topic; one plan is made for all shards.
    `replication` 0 leaves it to the broker. A silent partition gets a tick record after `idle_timeout`. With
    `transactions` a slot's releases are published strictly once, for readers of committed records.

    `security` is what the brokers' listener asks for. Passwords and keys are in files (`secret_files.py`).
    """

    bootstrap: str = "localhost:9092"
    security: Security = "plaintext"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    username: str = ""
    password_file: str = ""
    ca_file: str = ""
    certificate_file: str = ""
    certificate_key_file: str = ""
    prefix: str = ""
    group: str = "udp-stream"
    partitions: Annotated[int, msgspec.Meta(ge=1, le=256)] = 8
    shards: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
    replication: Annotated[int, msgspec.Meta(ge=0, le=9)] = 0
    retention: str = "7d"
    idle_timeout: str = "1m"
    transactions: bool = True

    @property
    def has_tls(self) -> bool:
        """Whether connections are encrypted, and the brokers' certificates checked."""
        return self.security in ("tls", "sasl-tls")

    @property
    def has_sasl(self) -> bool:
        """Whether brokers are shown a username and a password."""
        return self.security in ("sasl", "sasl-tls")
