"""A ledger of an earlier version, 6ac96c84, in both stores: charged, recorded, withdrawn from and
archived. It has to be read, charged and continued as it was."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.contract.checks import ask, balances_of
from udp_stream.errors import PrivacyRefused
from udp_stream.ledger.port import Ledger
from udp_stream.ledgers.sqlite import APPLICATION_ID

MADE: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
DAY = "1d from 2024-01-09T00:00:00+00:00 to 2024-01-10T00:00:00+00:00"
HOURS = [
    f"rolling 3h from 2024-01-09T{n:02}:00:00+00:00 to 2024-01-09T{n + 1:02}:00:00+00:00"
    for n in range(4)
]
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


def check_earlier_ledger(ledger: Ledger) -> None:
    held = MADE["held"]
    assert [_plain(entry) for entry in ledger.entries()] == held["entries"]
    assert [[name, payload.decode()] for name, payload in ledger.unpublished()] == held[
        "unpublished"
    ]
    assert ledger.periods() == held["periods"]
    assert ledger.verify() == []
    found = ledger.progress()
    assert [found.admitted, found.recorded, found.oldest, found.newest] == held["progress"]
    charged = {plate.decode(): ledger.charged_by_period(plate) for plate in PLATES}
    assert charged == held["charged"]
    with pytest.raises(PrivacyRefused):
        ledger.bind("another key")
    # A repeat is remembered, budgets and windows go on, and what was closed stays closed.
    first = held["entries"][0]
    name, terms = first[0], first[7]
    again, more = ledger.admit(DAY, 10, PLATES, [ask(name, [9, 9, 9, 9]), ask("day", [5, 2, 6, 6])])
    assert (again.charged.tolist(), again.terms.decode()) == ([4, 4, 0, 0], terms)
    assert more.charged.tolist() == [5, 0, 0, 6]
    assert balances_of(ledger, DAY, PLATES) == [9, 9, 5, 6]
    ahead = ledger.admit(HOURS[3], 10, PLATES, [ask("ahead", [2, 2])])
    late = ledger.admit(HOURS[1], 10, PLATES, [ask("late", [1, 1])])
    assert (ahead[0].charged.tolist(), late[0].charged.tolist()) == ([2, 0], [0, 1])
    assert ledger.record([(name, b"later"), ("day", b"day")]) == [b"first", b"day"]
    with pytest.raises(PrivacyRefused):
        ledger.admit(DAY, 10, PLATES, [ask("000000000000009-1704672000-3600", [1])])
    assert ledger.verify() == []


def _plain(entry: Any) -> list[Any]:
    plates, charged = [plate.decode() for plate in entry.plates], entry.charged.tolist()
    payload = None if entry.payload is None else entry.payload.decode()
    return [entry.release_id, entry.period, entry.budget, plates, charged, payload, entry.published,
            entry.terms.decode()]  # fmt: skip
