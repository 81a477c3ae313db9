"""Promises of `admit`: who is charged, once and within the budget, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from udp_stream.ledger.checks.expecting import CheckFailed, ask, balances_of, charged_by, expect, plates_of
from udp_stream.ledger.port import Admission, LedgerFactory
from udp_stream.ledger.rules import AMOUNT_LIMIT


def check_admit_charges_once(open_ledger: LedgerFactory) -> None:
    """A HAT charges its members what it asks, in its period, and a balance says how much in how many charges.

    >>> from udp_stream.testing import in_memory
    >>> check_admit_charges_once(in_memory())
    """
    plates = plates_of("once", 3)
    with open_ledger() as ledger:
        verdicts = ledger.admit("once", 10, plates, [ask("once/1", [3, 4], [2, 0]), ask("once/2", [5], [2])])
        expect(charged_by(verdicts), [[3, 4], [5]], "admit charges what was asked")
        expect([verdict.admitted.tolist() for verdict in verdicts], [[True, True], [True]], "charged means admitted")
        balance = ledger.balances("once", plates)
        expect(balance.charged.tolist(), [4, 0, 8], "balances are what was charged")
        expect(balance.charges.tolist(), [1, 0, 2], "one charge per plate and HAT")
        expect(balances_of(ledger, "once/other", plates), [0, 0, 0], "a period has its own budget")
        expect(ledger.charged_by_period(plates[2]), {"once": 8}, "charged_by_period tells what a plate was charged")
        expect(ledger.charged_by_period(b"once/none"), {}, "a plate that was never charged has no period")


def check_repeat_is_remembered(open_ledger: LedgerFactory) -> None:
    """A repeat returns the first verdict and terms, whatever it asks; it charges nothing and admits no other plate.

    >>> from udp_stream.testing import in_memory
    >>> check_repeat_is_remembered(in_memory())
    """
    plates = plates_of("repeat", 4)
    with open_ledger() as ledger:
        ledger.admit("repeat", 10, plates, [ask("repeat/0", [8], [1])])
        first = ask("repeat/1", [3, 3], [0, 1], terms=b"first")
        expect(
            charged_by(ledger.admit("repeat", 10, plates, [first])),
            [[3, 0]],
            "admit halts a member without enough budget",
        )
        before = balances_of(ledger, "repeat", plates)
        again = ask("repeat/1", [1, 1, 1], [2, 1, 0], min_admitted=2, terms=b"second")
        for asked, charged in ((first, [3, 0]), (again, [0, 0, 3])):
            for period, budget in (("repeat", 10), ("repeat/other", 1000)):
                (verdict,) = ledger.admit(period, budget, plates, [asked])
                expect(verdict.charged.tolist(), charged, "a repeat returns the remembered amounts")
                expect(verdict.terms, b"first", "a repeat returns the remembered terms")
        twins = [ask("repeat/2", [1], [3], terms=b"first"), ask("repeat/2", [2, 2], [3, 2], terms=b"second")]
        verdicts = ledger.admit("repeat", 10, plates, twins)
        expect(charged_by(verdicts), [[1], [1, 0]], "a repeat within one call is a repeat")
        expect(
            [verdict.terms for verdict in verdicts], [b"first", b"first"], "the first terms are kept within one call"
        )
        expect(balances_of(ledger, "repeat", plates), [*before[:3], 1], "a repeat charges and refunds nothing")
        expect(balances_of(ledger, "repeat/other", plates), [0] * 4, "a repeat charges nothing in another period")


def check_never_over_budget(open_ledger: LedgerFactory) -> None:
    """A plate is charged to its last nano-unit and no further, for large amounts too; a lower budget admits none.

    >>> from udp_stream.testing import in_memory
    >>> check_never_over_budget(in_memory())
    """
    plates = plates_of("over", 2)
    top = AMOUNT_LIMIT - 1
    with open_ledger() as ledger:
        for period, budget in (("over/nano", 10 * 10**9), ("over/top", top), ("over/one", 1)):
            asked = [ask(f"{period}/{i}", [amount], [0]) for i, amount in enumerate((budget, 1, budget))]
            expect(charged_by(ledger.admit(period, budget, plates, asked)), [[budget], [0], [0]], f"budget of {budget}")
            expect(charged_by(ledger.admit(period, budget, plates, [ask(f"{period}/3", [1], [0])])), [[0]], "later too")
            expect(balances_of(ledger, period, plates), [budget, 0], "no balance over its budget")
        asked = [ask("over/all-1", [7, 2]), ask("over/all-2", [4, 9]), ask("over/all-3", [3, 8])]
        verdicts = ledger.admit("over/all", 10, plates, asked)
        expect(charged_by(verdicts), [[7, 2], [0, 0], [3, 8]], "all of an amount or none of it, in the order given")
        expect(charged_by(ledger.admit("over/all", 5, plates, [ask("over/all-4", [1, 1])])), [[0, 0]], "a lower budget")
        expect(charged_by(ledger.admit("over/zero", 0, plates, [ask("over/zero", [1])])), [[0]], "a budget of nothing")


def check_allowances(open_ledger: LedgerFactory) -> None:
    """A member whose allowance a charge would exceed is halted, whatever the budget; the budget holds beside it.

    >>> from udp_stream.testing import in_memory
    >>> check_allowances(in_memory())
    """
    plates = plates_of("allowances", 3)
    with open_ledger() as ledger:
        ledger.admit("allowances", 10, plates, [ask("allowances/0", [2, 2, 2], [0, 1, 2])])
        tight = replace(ask("allowances/1", [3, 3, 3], [0, 1, 2]), allowances=np.array([4, 5, 2**52]))
        over = replace(ask("allowances/2", [5, 6, 5], [0, 1, 2]), allowances=np.array([2**52, 2**52, 2**52]))
        expect(charged_by(ledger.admit("allowances", 10, plates, [tight])), [[0, 3, 3]], "an allowance holds")
        expect(charged_by(ledger.admit("allowances", 10, plates, [over])), [[5, 0, 5]], "the budget holds beside it")
        few = replace(ask("allowances/3", [1, 1], [0, 1], min_admitted=2), allowances=np.array([8, 5]))
        expect(charged_by(ledger.admit("allowances", 10, plates, [few])), [[0, 0]], "halted members are not admitted")
        expect(balances_of(ledger, "allowances", plates), [7, 5, 10], "balances are what was charged")


def check_min_admitted_charges_nobody(open_ledger: LedgerFactory) -> None:
    """With fewer plates than `min_admitted` none is charged, and that too is remembered.

    >>> from udp_stream.testing import in_memory
    >>> check_min_admitted_charges_nobody(in_memory())
    """
    plates = plates_of("few", 3)
    with open_ledger() as ledger:
        ledger.admit("few", 10, plates, [ask("few/0", [9, 9], [0, 1])])
        asked = ask("few/1", [2, 2, 2], min_admitted=2, terms=b"terms")
        for _ in range(2):
            (verdict,) = ledger.admit("few", 10, plates, [asked])
            expect(verdict.charged.tolist(), [0, 0, 0], "no member is charged if too few have enough budget")
            expect(verdict.terms, b"terms", "the terms of a withheld HAT are remembered")
        (verdict,) = ledger.admit("few", 1000, plates, [ask("few/1", [1], [2])])
        expect(verdict.charged.tolist(), [0], "a withheld HAT stays withheld")
        expect(balances_of(ledger, "few", plates), [9, 9, 0], "a withheld HAT charges nothing")
        (verdict,) = ledger.admit("few", 10, plates, [ask("few/5", [1], [2], min_admitted=2)])
        expect(verdict.charged.tolist(), [0], "a HAT of fewer plates than `min_admitted` charges none of them")
        empty = [
            ask("few/2", [], terms=b"none"),
            ask("few/3", [], min_admitted=1),
            ask("few/4", [1, 1], min_admitted=2),
        ]
        expect(
            charged_by(ledger.admit("few", 10, plates, empty)),
            [[], [], [1, 1]],
            "HATs without members, and just enough",
        )
        expect(ledger.record([("few/1", b"w"), ("few/2", b"n")]), [b"w", b"n"], "withheld HATs can be recorded")


def check_malformed_is_refused(open_ledger: LedgerFactory) -> None:
    """A call that makes no sense is a ValueError, and neither charges nor remembers anything.

    >>> from udp_stream.testing import in_memory
    >>> check_malformed_is_refused(in_memory())
    """
    plates = plates_of("bad", 2)
    good, pair = ask("bad/good", [1]), ask("bad/pair", [1, 1])
    calls: list[tuple[str, int, Sequence[bytes], Admission]] = [
        ("a charge of nothing", 10, plates, ask("bad/zero", [1, 0])),
        ("a refund", 10, plates, ask("bad/negative", [-1])),
        ("an amount that not every store can hold", 10, plates, ask("bad/huge", [AMOUNT_LIMIT])),
        ("a member outside", 10, plates, ask("bad/outside", [1], [2])),
        ("a member before the first", 10, plates, ask("bad/before", [1], [-1])),
        ("a member twice", 10, plates, ask("bad/twice", [1, 1], [1, 1])),
        ("more charges than members", 10, plates, ask("bad/uneven", [1, 1], [0])),
        ("a charge that is no integer", 10, plates, replace(pair, charges=np.array([1.5, 1.0]))),
        ("fewer allowances than members", 10, plates, replace(pair, allowances=np.array([9]))),
        ("an allowance below nothing", 10, plates, replace(pair, allowances=np.array([9, -1]))),
        ("fewer plates than none", 10, plates, ask("bad/few", [1], min_admitted=-1)),
        ("plates of two lengths", 10, [plates[0], b"bad/long-one"], ask("bad/long", [1, 1])),
        ("a plate without a name", 10, [b""], ask("bad/nameless", [1])),
        ("a plate twice", 10, [plates[0], plates[0]], ask("bad/plate", [1, 1])),
        ("a budget below nothing", -1, plates, ask("bad/budget", [1])),
        ("a budget that not every store can hold", AMOUNT_LIMIT, plates, ask("bad/budget", [1])),
    ]
    with open_ledger() as ledger:
        for name, budget, known, bad in calls:
            try:
                ledger.admit("bad", budget, known, [good, bad])
            except ValueError:
                expect(balances_of(ledger, "bad", plates), [0, 0], f"{name} charges no plate")
            else:
                raise CheckFailed(f"{name}: expected ValueError, got an answer")
        expect([e.release_id for e in ledger.entries() if e.release_id.startswith("bad/")], [], "nothing is remembered")
