"""Charges and records in turn, as a table of calls and answers."""

from __future__ import annotations

from udp_stream.errors import PrivacyRefused
from udp_stream.ledger.checks.expecting import ask, balances_of, expect
from udp_stream.ledger.port import Ledger, LedgerFactory

TABLE = """
admit    1 A=6 B=6      -> 6 6
admit    1 A=6 B=6      -> 6 6      a repeat charges nothing
balance  A B C          -> 6 6 0
admit    2 A=5 B=4 C=1  -> 0 4 1    A has too little left, B just enough
admit    2 A=1 C=9      -> 0 1      a repeat never admits whom the first call halted
admit    3 B=1          -> 0
admit    4 A=4 B=1 min2 -> 0 0      too few
admit    5 A=4 C=1 min2 -> 4 1      just enough
admit    4 A=1          -> 0        a withheld HAT stays withheld
balance  A B C          -> 10 10 2
recorded 1 9            -> - -
record   1=x 2=y        -> x y
record   2=z 4=w        -> y w
record   9=v            -> refused
record   5=u 9=v        -> refused
recorded 1 2 4 5 9      -> x y w - -
publish  1 4 9          ->
recorded 1 2 4          -> x y w
admit    2 A=1          -> 0        recorded and published change no verdict
balance  A B C          -> 10 10 2
"""
"""Operation and arguments -> expected answer, then why. The budget is 10; ids and plates are single characters."""


def check_table(open_ledger: LedgerFactory) -> None:
    """Each line of `TABLE` holds, on a ledger opened anew for each.

    >>> from udp_stream.testing import in_memory
    >>> check_table(in_memory())
    """
    for line in TABLE.strip().splitlines():
        asked, _, answer = line.partition("->")
        with open_ledger() as ledger:
            got = _play(ledger, *asked.split())
        expected = answer.partition("  ")[0].split()  # two spaces before the reason
        expect(got, expected, f"table, {line.strip()!r}")


def _play(ledger: Ledger, operation: str, *words: str) -> list[str]:
    pairs = [(key, value) for key, mark, value in (word.partition("=") for word in words) if mark]
    ids = [f"table/{word}" for word in words]
    match operation:
        case "admit":
            least = sum(int(word[3:]) for word in words if word.startswith("min"))
            plates = [b"table/" + key.encode() for key, _ in pairs]
            asked = ask(f"table/{words[0]}", [int(value) for _, value in pairs], min_admitted=least)
            return [str(amount) for amount in ledger.admit("table", 10, plates, [asked])[0].charged.tolist()]
        case "balance":
            return [str(amount) for amount in balances_of(ledger, "table", [name.encode() for name in ids])]
        case "record":
            try:
                return [p.decode() for p in ledger.record([(f"table/{key}", value.encode()) for key, value in pairs])]
            except PrivacyRefused:
                return ["refused"]
        case "recorded":
            return ["-" if payload is None else payload.decode() for payload in ledger.recorded(ids)]
        case _:
            ledger.published(ids)
            return []
