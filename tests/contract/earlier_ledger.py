"""A ledger of an earlier version, 6ac96c84, in both stores: charged, recorded, withdrawn from and
archived. It has to be read, charged and continued as it was."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from udp_stream.ledgers.sqlite import APPLICATION_ID

MADE: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
PLATES = [letter * 16 for letter in (b"A", b"B", b"C", b"D")]


def put_in_sqlite(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("\n".join(MADE["sqlite"]))
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def put_in_redis(client: Any, prefix: str) -> None:
    for name, (kind, value) in MADE["redis"].items():
        key = f"{prefix}:{name}".encode("latin-1")
        if kind == "string":
            client.set(key, value.encode("latin-1"))
        elif kind == "hash":
            fields = {one.encode("latin-1"): text.encode("latin-1") for one, text in value.items()}
            client.hset(key, mapping=fields)
        elif kind == "list":
            client.rpush(key, *value)
        elif kind == "set":
            client.sadd(key, *value)
        else:
            client.zadd(key, dict(value))
