"""Open a ledger in Redis: only one that would not forget what it answered, and that has not forgotten.

**Durability.** Opening refuses a server that would forget what it has answered: it needs `appendonly yes`, `appendfsync
always`, `no-appendfsync-on-rewrite no` and `maxmemory-policy noeviction`, in a cluster on every master. With these a
killed server comes back with every answer it gave. A *failover* is another matter: replication does not wait, and a
promoted replica may lack the last charges. So opening refuses a server that has replicas, connected or in the cluster's
slots, unless it is opened with `replicas=1` or more (`ledger.replicas`): then nothing is answered before that many
replicas have it (WAIT). What no opening can see is a replica that joins later. Also set `min-replicas-to-write 1`, so
that a master that is cut off stops by itself, and give replicas the same settings as masters: they are not checked. An
owner whose epoch the promoted replica never received is stopped.

**A wiped ledger** would give every plate its budget again. Each ledger has an id, kept in Redis and, with `id_file`,
beside the plate key. Opening refuses a Redis that has no ledger or another one where the file knows one; every script
refuses if the id is gone, so that a FLUSHALL stops releases at once; and no script charges a period whose balances are
gone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

from udp_stream.adapters.ledgers.ledger_id import known_ledger
from udp_stream.adapters.ledgers.redis.connection import OPENING_PAUSES_S, connection_to
from udp_stream.adapters.ledgers.redis.durability import find_or_make, require_durable, require_replicas
from udp_stream.adapters.ledgers.redis.ledger import RedisLedger
from udp_stream.adapters.ledgers.redis.packing import decoded
from udp_stream.adapters.ledgers.redis.scripts import load_scripts
from udp_stream.adapters.ledgers.redis.session import Session, require_prefix
from udp_stream.ledger.past import VOLATILE

DEFAULT_PREFIX = "{udp}"


def open_redis_ledger(
    url: str,
    *,
    prefix: str = DEFAULT_PREFIX,
    id_file: str | os.PathLike[str] | None = None,
    allow_volatile: bool = False,
    replicas: int = 0,
    client: Mapping[str, Any] | None = None,
) -> RedisLedger:
    """Open the ledger at `url`, or make it if there is none; use it as a context manager.

    `url` is redis://, rediss:// or unix://, or redis+cluster:// of any node. `id_file` says which ledger it was,
    and its high-water mark, so that one that is wiped or older is noticed (`ledger_id.adopt` makes it). `replicas` is
    how many of them must have a write before it is answered. `client` has further options of the client.

    Raises ConfigError for another URL or a prefix without a hash tag, DependencyUnavailable if Redis cannot be reached,
    and PrivacyRefused if it would forget, or has forgotten. With `allow_volatile` a server that would forget is used
    all the same, with a warning, and the ledger notes it for ever.
    """
    connection = connection_to(url, require_prefix(prefix), load_scripts(), replicas, client)
    known = known_ledger(id_file)
    try:
        # First: no ledger is made on a server that would forget it.
        durable = require_durable(connection, replicas, allow_volatile)
        ledger_id = find_or_make(connection, prefix, known)
        ledger = RedisLedger(Session(connection, prefix, ledger_id), id_file)
        if not durable:
            ledger.note(VOLATILE, datetime.now(UTC).strftime("%Y-%m-%d"))
    except BaseException:
        connection.close()
        raise
    return ledger


def ledger_at(url: str, prefix: str = DEFAULT_PREFIX, client: Mapping[str, Any] | None = None) -> str | None:
    """The id of the ledger that is there, empty if it has lost its marks, None if nothing of a ledger is there.

    Nothing is made. DependencyUnavailable if Redis cannot be reached.
    """
    with closing(connection_to(url, require_prefix(prefix), {}, client=client)) as connection:
        keys = [f"{prefix}:{name}" for name in ("meta", "order", "periods", "recorded", "spans")]
        found, ledger_id = connection.exchange([("EXISTS", *keys), ("HGET", keys[0], "ledger_id")], OPENING_PAUSES_S)
    return decoded(ledger_id or b"") if found else None


def inspect_redis(url: str, replicas: int = 0, client: Mapping[str, Any] | None = None) -> None:
    """Ask every server that writes whether it would forget; nothing is made. Raises as `open_redis_ledger`."""
    with closing(connection_to(url, DEFAULT_PREFIX, {}, client=client)) as connection:
        require_durable(connection, replicas)
        if replicas:
            require_replicas(connection, replicas)
