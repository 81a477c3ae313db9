"""Promises over time: what was returned survives, entries rebuild balances, notes and progress are kept."""

from __future__ import annotations

import numpy as np

from udp_stream.ledger.checks.expecting import ask, balances_of, expect, expect_sums, plates_of
from udp_stream.ledger.port import LedgerFactory


def check_balances_equal_entries(open_ledger: LedgerFactory) -> None:
    """The entries rebuild every balance, whatever was admitted, halted, withheld or repeated.

    >>> from udp_stream.testing import in_memory
    >>> check_balances_equal_entries(in_memory())
    """
    plates = plates_of("sums", 7)
    rng = np.random.default_rng(7)  # decides what is asked, no noise
    names: set[str] = set()
    with open_ledger() as ledger:
        for step in range(40):
            asked = []
            for _ in range(rng.integers(1, 4)):
                members = rng.permutation(7)[: rng.integers(0, 8)].tolist()
                charges = rng.integers(1, 30, len(members)).tolist()
                asked.append(ask(f"sums/{rng.integers(0, 50)}", charges, members, int(rng.integers(0, 4))))
            ledger.admit(f"sums/{step % 2}", 100, plates, asked)
            names.update(one.release_id for one in asked)
        expect_sums(ledger)
        found = sorted(entry.release_id for entry in ledger.entries() if entry.release_id.startswith("sums/"))
        expect(found, sorted(names), "every admission has its entry")


def check_survives_reopen(open_ledger: LedgerFactory) -> None:
    """What a call returned is there when the ledger is opened again.

    >>> from udp_stream.testing import in_memory
    >>> check_survives_reopen(in_memory())
    """
    plates = plates_of("reopen", 2)
    asked = ask("reopen/1", [3, 11], terms=b"first")
    # As of a slot whose plates share clips: eight bytes for each of 64,000 plates, and nobody is charged.
    long = ask("reopen/2", [], terms=bytes(range(256)) * 2000)
    with open_ledger() as ledger:
        ledger.admit("reopen", 10, plates, [asked, long])
    with open_ledger() as ledger:
        (verdict,) = ledger.admit("reopen", 10, (), [ask("reopen/2", [], terms=b"second")])
        expect(verdict.terms == long.terms, True, "terms of any bytes and of half a megabyte survive")
        (verdict,) = ledger.admit("reopen", 1000, plates, [ask("reopen/1", [1, 1], terms=b"second")])
        expect((verdict.charged.tolist(), verdict.terms), ([3, 0], b"first"), "a verdict survives")
        expect(balances_of(ledger, "reopen", plates), [3, 0], "a charge survives")
        ledger.record([("reopen/1", b"payload")])
    with open_ledger() as ledger:
        expect(ledger.record([("reopen/1", b"other")]), [b"payload"], "a payload survives")
        expect(("reopen/1", b"payload") in list(ledger.unpublished()), True, "what was not published survives")
        ledger.published(["reopen/1"])
    with open_ledger() as ledger:
        expect("reopen/1" in dict(ledger.unpublished()), False, "what was published survives")
        (entry,) = (entry for entry in ledger.entries() if entry.release_id == "reopen/1")
        kept = (entry.period, entry.budget, entry.plates, entry.charged.tolist(), entry.payload, entry.published)
        expect(kept, ("reopen", 10, tuple(plates), [3, 0], b"payload", True), "an entry survives")


def check_newest(open_ledger: LedgerFactory) -> None:
    """Every admission comes once, the newest first: repeats move nothing, and neither do records and reopening.

    A reader misses nothing that was there, whatever is admitted meanwhile.

    >>> from udp_stream.testing import in_memory
    >>> check_newest(in_memory())
    """
    plates, ids = plates_of("newest", 1), [f"newest/{i}" for i in range(1203)]
    with open_ledger() as ledger:
        before = list(ledger.newest())
        ledger.admit("newest", 10, plates, [ask(name, [4]) for name in ids[:700]])
        ledger.admit("newest", 10, plates, [ask(ids[0], [4]), *(ask(name, []) for name in ids[700:])])
        ledger.record([(ids[1], b"payload")])
    with open_ledger() as ledger:
        ledger.admit("newest", 10, plates, [ask(ids[2], [4])])
        expect(list(ledger.newest()) == [*reversed(ids), *before], True, "every admission once, newest first")
        entries = [entry.release_id for entry in ledger.entries()]
        expect(list(ledger.newest()) == entries[::-1], True, "the entries, the other way round")
        reading = ledger.newest()
        seen = [next(reading)]
        ledger.admit("newest", 10, plates, [ask("newest/late", [])])
        seen += [name for name in reading if name != "newest/late"]
        expect(seen == [*reversed(ids), *before], True, "what is admitted meanwhile hides nothing, repeats nothing")


def check_notes_and_progress(open_ledger: LedgerFactory) -> None:
    """The first text of a note is kept; progress counts HATs and payloads, and knows the newest HAT; periods are those
    in which some plate was charged.

    >>> from udp_stream.testing import in_memory
    >>> check_notes_and_progress(in_memory())
    """
    plates = plates_of("noted", 1)
    with open_ledger() as ledger:
        name = ledger.meta()["ledger_id"]
        expect(ledger.note("noted", "first"), "first", "a note is kept")
        expect(ledger.note("noted", "second"), "first", "the first note is kept")
        before = ledger.progress()
        ledger.admit("noted", 10, plates, [ask("noted/1", [3]), ask("noted/2", [9])])
        ledger.admit("noted/nobody", 1, plates, [ask("noted/3", [2])])
        ledger.record([("noted/1", b"payload"), ("noted/1", b"again")])
    with open_ledger() as ledger:
        after, meta = ledger.progress(), ledger.meta()
        expect((meta["noted"], meta["ledger_id"]), ("first", name), "a note and the ledger's id survive")
        expect(
            after.admitted - before.admitted,
            3,
            "HATs admitted are counted once each, also where no plate had enough budget",
        )
        expect(after.recorded - before.recorded, 1, "payloads that are kept are counted")
        expect(after.newest, "noted/3", "the newest admission is known")
        expect(before.oldest in (None, after.oldest), True, "the oldest admission stays")
        found = [period for period in ledger.periods() if period.startswith("noted")]
        expect(found, ["noted"], "periods are those in which some plate was charged")
