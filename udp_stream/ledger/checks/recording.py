"""Promises of `record` and `published`: the first payload stands, and waits until it is published."""

from __future__ import annotations

from udp_stream.errors import PrivacyRefused
from udp_stream.ledger.checks.expecting import CheckFailed, ask, expect
from udp_stream.ledger.port import Ledger, LedgerFactory


def check_first_record_stands(open_ledger: LedgerFactory) -> None:
    """The first payload of an id is kept for ever, byte for byte; every later one is answered with it.

    >>> from udp_stream.testing import in_memory
    >>> check_first_record_stands(in_memory())
    """
    with open_ledger() as ledger:
        ledger.admit("first", 1, [], [ask(f"first/{i}", []) for i in range(3)])
        expect(ledger.recorded(["first/0", "first/9"]), [None, None], "nothing is recorded yet")
        odd = bytes(range(256))
        expect(ledger.record([("first/1", odd), ("first/0", b"")]), [odd, b""], "record returns the payload kept")
        later = [("first/0", b"x"), ("first/2", b"two"), ("first/1", b"x"), ("first/2", b"x")]
        expect(ledger.record(later), [b"", b"two", odd, b"two"], "the first payload of an id is kept")
        expect(ledger.recorded(["first/1", "first/2"]), [odd, b"two"], "`recorded` returns what was recorded first")
        expect(ledger.record([]), [], "nothing to record")


def check_record_needs_admission(open_ledger: LedgerFactory) -> None:
    """What was never charged is never recorded, nor is anything else of that call.

    >>> from udp_stream.testing import in_memory
    >>> check_record_needs_admission(in_memory())
    """
    with open_ledger() as ledger:
        ledger.admit("need", 1, [], [ask("need/0", [])])
        try:
            answer = ledger.record([("need/0", b"admitted"), ("need/1", b"never admitted")])
        except PrivacyRefused:
            expect(ledger.recorded(["need/0", "need/1"]), [None, None], "a refused call records nothing")
        else:
            raise CheckFailed(f"record without an admission: expected PrivacyRefused, got {answer!r}")


def check_unpublished_then_published(open_ledger: LedgerFactory) -> None:
    """Recorded payloads wait, oldest first, until they are marked as published after that, also while the list is read.

    >>> from udp_stream.testing import in_memory
    >>> check_unpublished_then_published(in_memory())
    """
    ids = [f"wait/{i}" for i in (2, 0, 1)]

    def waiting(ledger: Ledger) -> list[tuple[str, bytes]]:
        return [(name, payload) for name, payload in ledger.unpublished() if name.startswith("wait/")]

    with open_ledger() as ledger:
        ledger.admit("wait", 1, [], [ask(name, []) for name in sorted(ids)])
        expect(waiting(ledger), [], "an admission alone is nothing to publish")
        ledger.published(ids)
        for name in ids:
            ledger.record([(name, name.encode())])
        expect(waiting(ledger), [(name, name.encode()) for name in ids], "unpublished payloads, oldest first")
        ledger.published([ids[0], "wait/unknown"])
        ledger.published([ids[0]])
        ledger.record([(ids[0], b"again")])
        expect([name for name, _ in waiting(ledger)], ids[1:], "published once is published")
        for name, _ in ledger.unpublished():
            ledger.published([name])
        expect(waiting(ledger), [], "what is published waits no more")
        found = {entry.release_id: entry for entry in ledger.entries()}
        expect([found[name].published for name in ids], [True] * 3, "entries tell what is published")
