"""A child that writes to a ledger until it is killed: `[what, id, answer]` in JSON after each call,
repeats too."""

import itertools
import json
import random
from collections.abc import Iterator
from typing import NoReturn

import numpy as np

from udp_stream.ledger.port import Admission
from udp_stream.ledgers.sqlite import SqliteLedger, open_sqlite_ledger

PERIOD, BUDGET = "crash", 2000
PLATES = [f"crash/{i}".encode() for i in range(8)]


def admission(release_id: str, seed: str) -> Admission:
    choose = random.Random(seed)
    members = choose.sample(range(len(PLATES)), choose.randint(0, len(PLATES)))
    charges = [choose.randint(1, 9) for _ in members]
    least = choose.randint(0, 2)
    return Admission(
        release_id, np.array(members, np.int64), np.array(charges, np.int64), least, seed.encode()
    )


def everybody(release_id: str) -> Admission:
    """Asks what is remembered for all plates, once the id is known."""
    return Admission(
        release_id, np.arange(len(PLATES)), np.ones(len(PLATES), np.int64), 0, b"later"
    )


def answers(ledger: SqliteLedger, run: str, step: int) -> Iterator[tuple[str, str, object]]:
    choose = random.Random(f"{run}/{step}")
    ids = [f"{run}/{step}/{i}" for i in range(choose.randint(1, 3))]
    ledger.admit(PERIOD, BUDGET, PLATES, [admission(name, f"{name}/{step}") for name in ids])
    ids.append(choose.choice(ids) if step == 0 else f"{run}/{choose.randrange(step)}/0")
    for name, verdict in zip(
        ids, ledger.admit(PERIOD, BUDGET, PLATES, list(map(everybody, ids))), strict=True
    ):
        yield "verdict", name, [verdict.charged.tolist(), verdict.terms.decode()]
    payloads = ledger.record([(name, f"{name} recorded at {step}".encode()) for name in ids])
    for name, payload in zip(ids, payloads, strict=True):
        yield "payload", name, payload.decode()
    if choose.random() < 0.5:
        ledger.published(ids)
        yield from (("published", name, True) for name in ids)


def main(path: str, run: str) -> NoReturn:
    print(json.dumps(["started", run, None]), flush=True)
    step = itertools.count()
    while True:
        with open_sqlite_ledger(path) as ledger:
            for _ in range(5):
                for answer in answers(ledger, run, next(step)):
                    print(json.dumps(answer), flush=True)
