"""A process that charges and records against another: each id is asked for by both, and a plate
cannot pay for all. Writes what it was answered: `[charged, payload]` by id, in JSON."""

import json
import sys

from tests.contract.checks import ask
from udp_stream.ledgers.redis import open_redis_ledger
from udp_stream.ledgers.sqlite import open_sqlite_ledger

PLATES, BUDGET, CHARGE = [b"x", b"y"], 60, 3


def main(place: str, period: str, ours: str, hats: int) -> None:
    opened = open_redis_ledger if "://" in place else open_sqlite_ledger
    answers = {}
    with opened(place) as ledger:
        print("ready", flush=True)
        sys.stdin.readline()
        for number in sorted(range(hats), reverse=ours == "other"):
            name = f"hat-{number}"
            (verdict,) = ledger.admit(
                period, BUDGET, PLATES, [ask(name, [CHARGE] * 2, terms=ours.encode())]
            )
            (payload,) = ledger.record([(name, f"{name} by {ours}".encode())])
            answers[name] = [verdict.charged.tolist(), verdict.terms.decode(), payload.decode()]
    print(json.dumps(answers), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]))
