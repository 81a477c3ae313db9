"""`[ledger]`: where balances are kept, and how a Redis is reached."""

from __future__ import annotations

from typing import Annotated

import msgspec

from udp_stream.adapters.kafka_section import Option
from udp_stream.errors import ConfigError

SQLITE = "sqlite:"

DEFAULT_LEDGER = "sqlite:udp-stream.ledger"
"""In the current folder: a first run needs no service and no setting."""


class LedgerSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where balances are kept; the key of the plates' hashes is beside it unless told otherwise.

    `client` goes to the Redis client as it is: user, TLS and timeouts, by the names of redis-py. The password is in a
    file: `password_file`.

    `url` is empty where no ledger was named. One run on one machine then takes `DEFAULT_LEDGER`; workers share a
    ledger, so they take none that was not named.
    """

    url: str = ""
    key_file: str = ""
    client: dict[str, Option] = {}
    replicas: Annotated[int, msgspec.Meta(ge=0, le=9)] = 0

    @property
    def place(self) -> str:
        """The ledger that was named, or the default one."""
        return self.url or DEFAULT_LEDGER

    def require_named(self) -> None:
        """ConfigError if no ledger was named: for commands that share one with others."""
        if not self.url:
            raise ConfigError(
                "ledger.url: expected the one ledger that all workers of the deployment share, got none: name it with "
                "--ledger redis://HOST:PORT/DB, or with --ledger sqlite:FILE where all workers run on this machine"
            )


def is_file(url: str) -> bool:
    """Whether a ledger's URL names a file: `sqlite:FILE`, or just the file."""
    return url.startswith(SQLITE) or "://" not in url
