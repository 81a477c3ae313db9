"""What checks are made of: what is asked of a ledger, what came back, and what is expected."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from udp_stream.ledger.port import Admission, Ledger, Verdict
from udp_stream.ledger.rules import misfits


class CheckFailed(Exception):
    """A ledger broke a promise; the message says which, with what was expected and what came.

    >>> try:
    ...     expect(7, 8, "charges at most the budget")
    ... except CheckFailed as broken:
    ...     print(broken)
    charges at most the budget: expected 8, got 7
    """


def expect(actual: object, expected: object, promise: str) -> None:
    """Raise CheckFailed unless the two are equal; a real check, since `-O` removes asserts.

    >>> expect(2, 1, "charges once")
    Traceback (most recent call last):
    udp_stream.ledger.checks.expecting.CheckFailed: charges once: expected 1, got 2
    """
    if actual != expected:
        raise CheckFailed(f"{promise}: expected {expected!r}, got {actual!r}")


def ask(
    release_id: str,
    charges: Sequence[int],
    members: Sequence[int] | None = None,
    min_admitted: int = 0,
    terms: bytes = b"",
) -> Admission:
    """An admission of the first plates of a call, or of the members given.

    >>> ask("hat", [3, 4], members=[2, 0]).members
    array([2, 0])
    """
    chosen = range(len(charges)) if members is None else members
    return Admission(release_id, np.array(chosen, np.int64), np.array(charges, np.int64), min_admitted, terms)


def plates_of(prefix: str, count: int) -> list[bytes]:
    """As many plates as asked for, named after the check.

    >>> plates_of("once", 2)
    [b'once/000000', b'once/000001']
    """
    return [f"{prefix}/{i:06d}".encode() for i in range(count)]


def charged_by(verdicts: Iterable[Verdict]) -> list[list[int]]:
    """What each verdict charged, member by member.

    >>> from udp_stream.ledger.memory import MemoryLedger
    >>> charged_by(MemoryLedger().admit("May", 10, [b"a", b"b"], [ask("hat", [3, 11])]))
    [[3, 0]]
    """
    return [verdict.charged.tolist() for verdict in verdicts]


def balances_of(ledger: Ledger, period: str, plates: Sequence[bytes]) -> list[int]:
    """The sum of each plate's charges in the period.

    >>> from udp_stream.ledger.memory import MemoryLedger
    >>> ledger = MemoryLedger()
    >>> _ = ledger.admit("May", 10, [b"a", b"b"], [ask("hat", [3, 11])])
    >>> balances_of(ledger, "May", [b"a", b"b"])
    [3, 0]
    """
    return [int(amount) for amount in ledger.balances(period, plates).charged]


def expect_sums(ledger: Ledger) -> None:
    """CheckFailed unless each balance of the whole ledger is the sum of its entries, and none is over its budget.

    >>> from udp_stream.ledger.memory import MemoryLedger
    >>> ledger = MemoryLedger()
    >>> _ = ledger.admit("May", 10, [b"a", b"b"], [ask("hat", [3, 4])])
    >>> expect_sums(ledger)
    """
    plates: dict[str, set[bytes]] = defaultdict(set)
    entries = list(ledger.entries())
    for entry in entries:
        plates[entry.period].update(entry.plates)
    claimed: list[tuple[str, bytes, int, int]] = []
    for period, members in plates.items():
        known = sorted(members)
        balance = ledger.balances(period, known)
        claimed += zip([period] * len(known), known, balance.charged.tolist(), balance.charges.tolist(), strict=True)
    for sentence in misfits(entries, claimed):
        raise CheckFailed(f"balances are the sums of the entries: {sentence}")
    expect(len({entry.release_id for entry in entries}), len(entries), "one entry per release id")
    for period, plate, charged, _ in claimed[:: 1 + len(claimed) // 1000]:  # each is a call
        expect(ledger.charged_by_period(plate).get(period, 0), charged, "charged_by_period and balances agree")
