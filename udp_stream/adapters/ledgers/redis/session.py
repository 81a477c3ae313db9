"""Session: the commands and scripts of one caller on one ledger: the keys, the fence, and what a refusal means.

Keys, all behind one prefix with a hash tag:

    PREFIX:meta              hash    ledger_id, schema, made, key_fingerprint, admitted, epoch:SHARD, notes by name
    PREFIX:balance:PERIOD    hash    plate -> charged, charges: two little endian integers of 8 bytes
    PREFIX:periods           set     every period with a balance, but for
    PREFIX:spans             zset    every span of a rolling budget with a balance, sorted by name
    PREFIX:admission:ID      string  a remembered admission, as `packing.py` tells
    PREFIX:order             list    the ids admitted, oldest first
    PREFIX:release:ID        string  the first payload recorded
    PREFIX:unpublished       zset    ids recorded and not published, by their number
    PREFIX:recorded          string  how many were recorded: the last one's number
    PREFIX:beat              string  counts what was sent to be waited for, with `replicas`
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from udp_stream.adapters.ledgers.ledger_id import gone
from udp_stream.adapters.ledgers.redis.connection import Command, Connection
from udp_stream.adapters.ledgers.redis.packing import decoded, encoded
from udp_stream.errors import ConfigError, DependencyUnavailable, Fenced, PrivacyRefused

SCHEMA_VERSION = "1"
CHUNK = 5000  # commands in one round trip

_PREFIX = re.compile(r"[^{}\s]*\{[^{}\s]+\}[^{}\s]*")


class Fence(NamedTuple):
    """The caller: the owner of a shard since it took this epoch (`take_epoch`)."""

    shard: str
    epoch: int


def require_prefix(prefix: str) -> str:
    """The prefix, if all keys behind it lie in one hash slot; ConfigError if not.

    >>> require_prefix("city:{udp}")
    'city:{udp}'
    """
    if _PREFIX.fullmatch(prefix) is None:
        raise ConfigError(f"ledger prefix: expected one hash tag in braces, as in {{udp}}, got {prefix!r}")
    return prefix


@dataclass(frozen=True)
class Session:
    """One caller of one ledger. Every call may raise DependencyUnavailable."""

    connection: Connection
    prefix: str
    ledger_id: str
    fence: Fence | None = None

    def key(self, *names: str) -> bytes:
        """The key of that name, behind the prefix."""
        return encoded(":".join((self.prefix, *names)))

    def script(self, name: str, keys: Sequence[bytes], *arguments: bytes | str | int, fenced: bool = True) -> Command:
        """Runs the script on this ledger, and while the fence is not stale."""
        shard, epoch = (self.fence.shard, self.fence.epoch) if self.fence and fenced else ("", "")
        keys = (self.key("meta"), *keys)
        return (
            "EVALSHA",
            self.connection.scripts[name].sha,
            len(keys),
            *keys,
            self.ledger_id,
            shard,
            epoch,
            *arguments,
        )

    def exchange(self, *commands: Command) -> list[Any]:
        """A reply to each command."""
        replies: list[Any] = []
        for start in range(0, len(commands), CHUNK):
            replies += self.connection.exchange(commands[start : start + CHUNK])
        return replies

    def run(self, *scripts: Command) -> list[list[Any]]:
        """The replies of scripts, none of which is a refusal; those are raised. "moved" asks for another try."""
        replies = self.exchange(*scripts)
        for reply in replies:
            if reply[0] not in (b"ok", b"moved"):
                self.refuse(reply)
        return replies

    def refuse(self, reply: Sequence[Any]) -> NoReturn:
        """Raise what a script's refusal means."""
        name = self.connection.name()
        match reply[0].decode(), self.fence:
            case "gone", _:
                raise gone(name, self.ledger_id)
            case "stale", Fence(shard, epoch) if int(reply[1]) > epoch:
                raise Fenced(
                    f"expected to hold {shard} since epoch {epoch}, got the later epoch {int(reply[1])}: "
                    "another worker has taken it over, and this one stops"
                )
            case "stale", Fence(shard, epoch):
                sentence = f"expected epoch {epoch} of {shard}, got {int(reply[1])}: the ledger has lost writes"
                raise PrivacyRefused(f"{sentence} (in a failover?). Restore it")
            case "lost", _:
                raise PrivacyRefused(
                    f"the balances of {decoded(reply[1])} are gone from the ledger at {name}: restore it"
                )
            case answer, _:
                raise DependencyUnavailable(f"expected an answer of our script, got {answer!r}")
