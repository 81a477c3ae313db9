"""The promises of `port.py` as checks of a `LedgerFactory`; ids are named after checks: all may run
on one ledger."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np

from udp_stream.errors import PrivacyRefused
from udp_stream.ledger.port import Admission, Balance, Ledger, LedgerView, Verdict
from udp_stream.ledger.rules import (
    AMOUNT_LIMIT,
    budget_balances,
    compared_ranges,
    misfits,
    span_name,
    span_of,
    windows_around,
)

LedgerFactory = Callable[[], AbstractContextManager[Ledger]]
"""Opens the same ledger anew: to play several writers and restarts."""


class CheckFailed(Exception):
    """A ledger broke a promise; the message says which, with what was expected and what came."""


def expect(actual: object, expected: object, promise: str) -> None:
    """Raise CheckFailed unless the two are equal; a real check, since `-O` removes asserts."""
    if actual != expected:
        raise CheckFailed(f"{promise}: expected {expected!r}, got {actual!r}")


def ask(
    release_id: str, charges: Sequence[int], members: Sequence[int] | None = None, min_admitted: int = 0,
    terms: bytes = b"",
) -> Admission:  # fmt: skip
    """An admission of the first plates of a call, or of the members given."""
    chosen = range(len(charges)) if members is None else members
    return Admission(
        release_id, np.array(chosen, np.int64), np.array(charges, np.int64), min_admitted, terms
    )


def plates_of(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix}/{i:06d}".encode() for i in range(count)]


def charged_by(verdicts: Iterable[Verdict]) -> list[list[int]]:
    return [verdict.charged.tolist() for verdict in verdicts]


def balances_of(ledger: Ledger, period: str, plates: Sequence[bytes]) -> list[int]:
    return [int(amount) for amount in ledger.balances(period, plates).charged]


def expect_sums(ledger: Ledger) -> None:
    """CheckFailed unless each balance of the whole ledger is the sum of its entries, and none is
    over its budget."""
    plates: dict[str, set[bytes]] = defaultdict(set)
    entries = list(ledger.entries())
    for entry in entries:
        plates[entry.period].update(entry.plates)
    claimed: list[tuple[str, bytes, int, int]] = []
    for period, members in plates.items():
        known = sorted(members)
        balance = ledger.balances(period, known)
        claimed += zip(
            [period] * len(known),
            known,
            balance.charged.tolist(),
            balance.charges.tolist(),
            strict=True,
        )
    for sentence in misfits(entries, claimed):
        raise CheckFailed(f"balances are the sums of the entries: {sentence}")
    expect(len({entry.release_id for entry in entries}), len(entries), "one entry per release id")
    for period, plate, charged, _ in claimed[:: 1 + len(claimed) // 1000]:  # each is a call
        expect(
            ledger.charged_by_period(plate).get(period, 0),
            charged,
            "charged_by_period and balances agree",
        )


# Promises of `admit`: who is charged, once and within the budget, and what is refused.


def check_admit_charges_once(open_ledger: LedgerFactory) -> None:
    plates = plates_of("once", 3)
    with open_ledger() as ledger:
        verdicts = ledger.admit(
            "once", 10, plates, [ask("once/1", [3, 4], [2, 0]), ask("once/2", [5], [2])]
        )
        expect(charged_by(verdicts), [[3, 4], [5]], "admit charges what was asked")
        expect(
            [verdict.admitted.tolist() for verdict in verdicts],
            [[True, True], [True]],
            "charged means admitted",
        )
        balance = ledger.balances("once", plates)
        expect(balance.charged.tolist(), [4, 0, 8], "balances are what was charged")
        expect(balance.charges.tolist(), [1, 0, 2], "one charge per plate and HAT")
        expect(balances_of(ledger, "once/other", plates), [0, 0, 0], "a period has its own budget")
        expect(
            ledger.charged_by_period(plates[2]),
            {"once": 8},
            "charged_by_period tells what a plate was charged",
        )
        expect(
            ledger.charged_by_period(b"once/none"),
            {},
            "a plate that was never charged has no period",
        )


def check_repeat_is_remembered(open_ledger: LedgerFactory) -> None:
    plates = plates_of("repeat", 4)
    with open_ledger() as ledger:
        ledger.admit("repeat", 10, plates, [ask("repeat/0", [8], [1])])
        first = ask("repeat/1", [3, 3], [0, 1], terms=b"first")
        expect(
            charged_by(ledger.admit("repeat", 10, plates, [first])),
            [[3, 0]],
            "a member without enough budget is halted",
        )
        before = balances_of(ledger, "repeat", plates)
        again = ask("repeat/1", [1, 1, 1], [2, 1, 0], min_admitted=2, terms=b"second")
        for asked, charged in ((first, [3, 0]), (again, [0, 0, 3])):
            for period, budget in (("repeat", 10), ("repeat/other", 1000)):
                (verdict,) = ledger.admit(period, budget, plates, [asked])
                expect(verdict.charged.tolist(), charged, "a repeat returns the remembered amounts")
                expect(verdict.terms, b"first", "a repeat returns the remembered terms")
        twins = [
            ask("repeat/2", [1], [3], terms=b"first"),
            ask("repeat/2", [2, 2], [3, 2], terms=b"second"),
        ]
        verdicts = ledger.admit("repeat", 10, plates, twins)
        expect(charged_by(verdicts), [[1], [1, 0]], "a repeat within one call is a repeat")
        expect(
            [verdict.terms for verdict in verdicts],
            [b"first", b"first"],
            "the first terms are kept in a call",
        )
        expect(
            balances_of(ledger, "repeat", plates),
            [*before[:3], 1],
            "a repeat charges and refunds nothing",
        )
        expect(
            balances_of(ledger, "repeat/other", plates),
            [0] * 4,
            "a repeat charges nothing in another period",
        )


def check_never_over_budget(open_ledger: LedgerFactory) -> None:
    plates = plates_of("over", 2)
    top = AMOUNT_LIMIT - 1
    with open_ledger() as ledger:
        for period, budget in (("over/nano", 10 * 10**9), ("over/top", top), ("over/one", 1)):
            asked = [
                ask(f"{period}/{i}", [amount], [0]) for i, amount in enumerate((budget, 1, budget))
            ]
            expect(
                charged_by(ledger.admit(period, budget, plates, asked)),
                [[budget], [0], [0]],
                f"budget of {budget}",
            )
            expect(
                charged_by(ledger.admit(period, budget, plates, [ask(f"{period}/3", [1], [0])])),
                [[0]],
                "later too",
            )
            expect(balances_of(ledger, period, plates), [budget, 0], "no balance over its budget")
        asked = [ask("over/all-1", [7, 2]), ask("over/all-2", [4, 9]), ask("over/all-3", [3, 8])]
        verdicts = ledger.admit("over/all", 10, plates, asked)
        expect(
            charged_by(verdicts),
            [[7, 2], [0, 0], [3, 8]],
            "all of an amount or none of it, in the order given",
        )
        expect(
            charged_by(ledger.admit("over/all", 5, plates, [ask("over/all-4", [1, 1])])),
            [[0, 0]],
            "a lower budget",
        )
        expect(
            charged_by(ledger.admit("over/zero", 0, plates, [ask("over/zero", [1])])),
            [[0]],
            "a budget of nothing",
        )


def check_allowances(open_ledger: LedgerFactory) -> None:
    plates = plates_of("allowances", 3)
    with open_ledger() as ledger:
        ledger.admit("allowances", 10, plates, [ask("allowances/0", [2, 2, 2], [0, 1, 2])])
        tight = replace(
            ask("allowances/1", [3, 3, 3], [0, 1, 2]), allowances=np.array([4, 5, 2**52])
        )
        over = replace(
            ask("allowances/2", [5, 6, 5], [0, 1, 2]), allowances=np.array([2**52, 2**52, 2**52])
        )
        expect(
            charged_by(ledger.admit("allowances", 10, plates, [tight])),
            [[0, 3, 3]],
            "an allowance holds",
        )
        expect(
            charged_by(ledger.admit("allowances", 10, plates, [over])),
            [[5, 0, 5]],
            "the budget holds beside it",
        )
        few = replace(
            ask("allowances/3", [1, 1], [0, 1], min_admitted=2), allowances=np.array([8, 5])
        )
        expect(
            charged_by(ledger.admit("allowances", 10, plates, [few])),
            [[0, 0]],
            "halted members are not admitted",
        )
        expect(
            balances_of(ledger, "allowances", plates), [7, 5, 10], "balances are what was charged"
        )


def check_min_admitted_charges_nobody(open_ledger: LedgerFactory) -> None:
    plates = plates_of("few", 3)
    with open_ledger() as ledger:
        ledger.admit("few", 10, plates, [ask("few/0", [9, 9], [0, 1])])
        asked = ask("few/1", [2, 2, 2], min_admitted=2, terms=b"terms")
        for _ in range(2):
            (verdict,) = ledger.admit("few", 10, plates, [asked])
            expect(
                verdict.charged.tolist(),
                [0, 0, 0],
                "no member is charged if too few have enough budget",
            )
            expect(verdict.terms, b"terms", "the terms of a withheld HAT are remembered")
        (verdict,) = ledger.admit("few", 1000, plates, [ask("few/1", [1], [2])])
        expect(verdict.charged.tolist(), [0], "a withheld HAT stays withheld")
        expect(balances_of(ledger, "few", plates), [9, 9, 0], "a withheld HAT charges nothing")
        (verdict,) = ledger.admit("few", 10, plates, [ask("few/5", [1], [2], min_admitted=2)])
        expect(
            verdict.charged.tolist(),
            [0],
            "a HAT of fewer plates than `min_admitted` charges none of them",
        )
        empty = [
            ask("few/2", [], terms=b"none"), ask("few/3", [], min_admitted=1), ask("few/4", [1, 1], min_admitted=2),
        ]  # fmt: skip
        expect(
            charged_by(ledger.admit("few", 10, plates, empty)),
            [[], [], [1, 1]],
            "HATs without members, and just enough",
        )
        expect(
            ledger.record([("few/1", b"w"), ("few/2", b"n")]),
            [b"w", b"n"],
            "withheld HATs can be recorded",
        )


def check_malformed_is_refused(open_ledger: LedgerFactory) -> None:
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
        expect(
            [e.release_id for e in ledger.entries() if e.release_id.startswith("bad/")],
            [],
            "nothing is remembered",
        )


# Promises of `record` and `published`: the first payload stands, and waits until it is published.


def check_first_record_stands(open_ledger: LedgerFactory) -> None:
    with open_ledger() as ledger:
        ledger.admit("first", 1, [], [ask(f"first/{i}", []) for i in range(3)])
        expect(ledger.recorded(["first/0", "first/9"]), [None, None], "nothing is recorded yet")
        odd = bytes(range(256))
        expect(
            ledger.record([("first/1", odd), ("first/0", b"")]),
            [odd, b""],
            "record returns the payload kept",
        )
        later = [("first/0", b"x"), ("first/2", b"two"), ("first/1", b"x"), ("first/2", b"x")]
        expect(
            ledger.record(later), [b"", b"two", odd, b"two"], "the first payload of an id is kept"
        )
        expect(
            ledger.recorded(["first/1", "first/2"]),
            [odd, b"two"],
            "`recorded` returns what was recorded first",
        )
        expect(ledger.record([]), [], "nothing to record")


def check_record_needs_admission(open_ledger: LedgerFactory) -> None:
    with open_ledger() as ledger:
        ledger.admit("need", 1, [], [ask("need/0", [])])
        try:
            answer = ledger.record([("need/0", b"admitted"), ("need/1", b"never admitted")])
        except PrivacyRefused:
            expect(
                ledger.recorded(["need/0", "need/1"]),
                [None, None],
                "a refused call records nothing",
            )
        else:
            raise CheckFailed(
                f"record without an admission: expected PrivacyRefused, got {answer!r}"
            )


def check_unpublished_then_published(open_ledger: LedgerFactory) -> None:
    ids = [f"wait/{i}" for i in (2, 0, 1)]

    def waiting(ledger: Ledger) -> list[tuple[str, bytes]]:
        return [
            (name, payload) for name, payload in ledger.unpublished() if name.startswith("wait/")
        ]

    with open_ledger() as ledger:
        ledger.admit("wait", 1, [], [ask(name, []) for name in sorted(ids)])
        expect(waiting(ledger), [], "an admission alone is nothing to publish")
        ledger.published(ids)
        for name in ids:
            ledger.record([(name, name.encode())])
        expect(
            waiting(ledger),
            [(name, name.encode()) for name in ids],
            "unpublished payloads, oldest first",
        )
        ledger.published([ids[0], "wait/unknown"])
        ledger.published([ids[0]])
        ledger.record([(ids[0], b"again")])
        expect([name for name, _ in waiting(ledger)], ids[1:], "published once is published")
        for name, _ in ledger.unpublished():
            ledger.published([name])
        expect(waiting(ledger), [], "what is published waits no more")
        found = {entry.release_id: entry for entry in ledger.entries()}
        expect(
            [found[name].published for name in ids], [True] * 3, "entries tell what is published"
        )


# Charges and records in turn, as a table of calls and answers.

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
"""Operation and arguments -> expected answer, then why. The budget is 10; ids and plates are single
characters."""


def check_table(open_ledger: LedgerFactory) -> None:
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
            return [
                str(amount)
                for amount in ledger.admit("table", 10, plates, [asked])[0].charged.tolist()
            ]
        case "balance":
            return [
                str(amount)
                for amount in balances_of(ledger, "table", [name.encode() for name in ids])
            ]
        case "record":
            try:
                return [
                    p.decode()
                    for p in ledger.record(
                        [(f"table/{key}", value.encode()) for key, value in pairs]
                    )
                ]
            except PrivacyRefused:
                return ["refused"]
        case "recorded":
            return [
                "-" if payload is None else payload.decode() for payload in ledger.recorded(ids)
            ]
        case _:
            ledger.published(ids)
            return []


# Promises over time: what was returned survives, entries rebuild balances, notes and progress are
# kept.


def check_balances_equal_entries(open_ledger: LedgerFactory) -> None:
    plates = plates_of("sums", 7)
    rng = np.random.default_rng(7)  # decides what is asked, no noise
    names: set[str] = set()
    with open_ledger() as ledger:
        for step in range(40):
            asked = []
            for _ in range(rng.integers(1, 4)):
                members = rng.permutation(7)[: rng.integers(0, 8)].tolist()
                charges = rng.integers(1, 30, len(members)).tolist()
                asked.append(
                    ask(f"sums/{rng.integers(0, 50)}", charges, members, int(rng.integers(0, 4)))
                )
            ledger.admit(f"sums/{step % 2}", 100, plates, asked)
            names.update(one.release_id for one in asked)
        expect_sums(ledger)
        found = sorted(
            entry.release_id for entry in ledger.entries() if entry.release_id.startswith("sums/")
        )
        expect(found, sorted(names), "every admission has its entry")


def check_survives_reopen(open_ledger: LedgerFactory) -> None:
    plates = plates_of("reopen", 2)
    asked = ask("reopen/1", [3, 11], terms=b"first")
    # As of a slot whose plates share clips: eight bytes for each of 64,000 plates, and nobody is
    # charged.
    long = ask("reopen/2", [], terms=bytes(range(256)) * 2000)
    with open_ledger() as ledger:
        ledger.admit("reopen", 10, plates, [asked, long])
    with open_ledger() as ledger:
        (verdict,) = ledger.admit("reopen", 10, (), [ask("reopen/2", [], terms=b"second")])
        expect(
            verdict.terms == long.terms, True, "terms of any bytes and of half a megabyte survive"
        )
        (verdict,) = ledger.admit(
            "reopen", 1000, plates, [ask("reopen/1", [1, 1], terms=b"second")]
        )
        expect((verdict.charged.tolist(), verdict.terms), ([3, 0], b"first"), "a verdict survives")
        expect(balances_of(ledger, "reopen", plates), [3, 0], "a charge survives")
        ledger.record([("reopen/1", b"payload")])
    with open_ledger() as ledger:
        expect(ledger.record([("reopen/1", b"other")]), [b"payload"], "a payload survives")
        expect(
            ("reopen/1", b"payload") in list(ledger.unpublished()),
            True,
            "what was not published survives",
        )
        ledger.published(["reopen/1"])
    with open_ledger() as ledger:
        expect("reopen/1" in dict(ledger.unpublished()), False, "what was published survives")
        (entry,) = (entry for entry in ledger.entries() if entry.release_id == "reopen/1")
        kept = (
            entry.period,
            entry.budget,
            entry.plates,
            entry.charged.tolist(),
            entry.payload,
            entry.published,
        )
        expect(kept, ("reopen", 10, tuple(plates), [3, 0], b"payload", True), "an entry survives")


def check_newest(open_ledger: LedgerFactory) -> None:
    plates, ids = plates_of("newest", 1), [f"newest/{i}" for i in range(1203)]
    with open_ledger() as ledger:
        before = list(ledger.newest())
        ledger.admit("newest", 10, plates, [ask(name, [4]) for name in ids[:700]])
        ledger.admit(
            "newest", 10, plates, [ask(ids[0], [4]), *(ask(name, []) for name in ids[700:])]
        )
        ledger.record([(ids[1], b"payload")])
    with open_ledger() as ledger:
        ledger.admit("newest", 10, plates, [ask(ids[2], [4])])
        expect(
            list(ledger.newest()) == [*reversed(ids), *before],
            True,
            "every admission once, newest first",
        )
        entries = [entry.release_id for entry in ledger.entries()]
        expect(list(ledger.newest()) == entries[::-1], True, "the entries, the other way round")
        reading = ledger.newest()
        seen = [next(reading)]
        ledger.admit("newest", 10, plates, [ask("newest/late", [])])
        seen += [name for name in reading if name != "newest/late"]
        expect(
            seen == [*reversed(ids), *before],
            True,
            "what is admitted meanwhile hides nothing, repeats nothing",
        )


def _view_of(
    ledger: Ledger, period: str, plates: Sequence[bytes], ids: Sequence[str]
) -> LedgerView:
    """`Ledger.view` by other calls."""
    periods = [name for ends in compared_ranges(period) for name in ledger.periods(*ends)]
    ours = ledger.balances(period, plates)
    windows = windows_around(period, periods)
    others = [ledger.balances(name, plates) for name in windows.others]
    charged = windows.most(np.array([one.charged for one in others]).reshape(-1, len(plates)))
    charges = windows.most(np.array([one.charges for one in others]).reshape(-1, len(plates)))
    balance = Balance(ours.charged + charged, ours.charges + charges)
    return LedgerView(
        tuple(ledger.recorded(ids)), ledger.meta(), periods, balance, ledger.progress()
    )


def check_view(open_ledger: LedgerFactory) -> None:
    """A view is what the calls say one by one, of periods of each kind, however much is asked."""
    plates = plates_of("view", 1100)
    ids = [f"view/{number}" for number in range(1100)]
    hours = [hour("4h", number) for number in range(6)]
    with open_ledger() as ledger:
        for period in ("view", "views", *hours, f"{hours[2]} in rho"):
            charges = [3] * len(plates)
            ledger.admit(period, 100, plates, [ask(f"view/of/{period}", charges)])
        ledger.admit("view", 100, plates, [ask(name, []) for name in ids])
        ledger.record([(name, name.encode()) for name in ids[::2]])
        ledger.note("view", "is noted")
        for period in ("view", "never charged", hours[3], hour("4h", 9)):
            found = ledger.view(period, plates, ids)
            expected = _view_of(ledger, period, plates, ids)
            expect(found.payloads, expected.payloads, "payloads of a view")
            expect(found.payloads[0], ids[0].encode(), "the first payload of a view")
            expect(found.meta, expected.meta, "facts of a view")
            expect(found.meta["view"], "is noted", "a fact of a view")
            expect(found.progress, expected.progress, "how far a ledger is in a view")
            expect(found.periods, expected.periods, "periods of a view")
            for balances in ("charged", "charges"):
                of_view = getattr(found.balance, balances).tolist()
                expect(of_view, getattr(expected.balance, balances).tolist(), "balances of a view")
        expect(ledger.view("view", plates[:1], ()).balance.charged.tolist(), [3], "a period's own")
        in_window = ledger.view(hours[3], plates[:1], ()).balance.charged.tolist()
        expect(in_window, [15], "the most in any window of a view")
        short = ledger.view("", (), ids[:2])
        expect(short.payloads, (ids[0].encode(), None), "the payloads without a period")
        expect(short.progress, ledger.progress(), "the progress without a period")


def check_notes_and_progress(open_ledger: LedgerFactory) -> None:
    """The first text of a note is kept; progress counts HATs and payloads; periods are those with a
    charge."""
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
        expect(
            (meta["noted"], meta["ledger_id"]),
            ("first", name),
            "a note and the ledger's id survive",
        )
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


# Promises of an archive: what is closed stays decided, and what is dropped is gone without a trace
# but its number.

CELL = "8742d98b6ffffff"


def check_archive(open_ledger: LedgerFactory) -> None:
    """Periods can be dropped once their times are closed, for ever."""
    _drop(open_ledger)
    _closed_times(open_ledger)


def _closed_times(open_ledger: LedgerFactory) -> None:
    """Nothing new is admitted or recorded of a time that is closed, in any process; what stands is
    answered. Ids that tell no time stay open."""
    plates, start = plates_of("closed", 2), -2_000_000_000  # before the times of all other checks
    first, second, third, later = (f"{CELL}-{start + 3600 * hour}-3600" for hour in range(4))
    moments = [
        f"query:closed 1:{start + 7200}",
        f"round:closed:{start + 7200}:2",
        f"clips:{start}-3600",
    ]
    with open_ledger() as ledger:
        ledger.admit("closed", 10, plates, [ask(first, [3, 3]), ask(second, [1])])
        ledger.record([(first, b"stands")])
        expect(ledger.close_before(start + 7200), start + 7200, "the time that is closed")
        expect(
            ledger.close_before(start + 3600), start + 7200, "a time that is closed stays closed"
        )
    with open_ledger() as ledger:
        for name in (f"{CELL}-{start}-1800", *moments):
            expect_refused(
                lambda name=name: ledger.admit("other", 10, plates, [ask(name, [1])]), "no new HAT"
            )
        expect_refused(lambda: ledger.admit("closed", 10, plates, [ask(third, [1]), ask(f"{CELL}-{start}-60", [1])]),
                       "no new HAT beside one of an open time")  # fmt: skip
        expect(
            charged_by(ledger.admit("closed", 10, plates, [ask(first, [3, 3])])),
            [[3, 3]],
            "a verdict stands",
        )
        expect_refused(lambda: ledger.record([(second, b"drawn late")]), "no new record")
        expect(ledger.record([(first, b"again")]), [b"stands"], "a record stands")
        ledger.admit("withdrawn", 0, [], [ask(f"withdrawn:{first}", [])])
        expect(
            ledger.record([(f"withdrawn:{first}", b"wrong")]),
            [b"wrong"],
            "what is archived can be withdrawn",
        )
        expect(charged_by(ledger.admit("closed", 10, plates, [ask(third, [2]), ask("closed/any", [1])])), [[2], [1]],
               "times that are open go on")  # fmt: skip
        expect(ledger.record([(third, b"third")]), [b"third"], "times that are open go on")
        expect_sums(ledger)
        expect(later not in list(ledger.newest()), True, "an id that nobody asked for")


def _drop(open_ledger: LedgerFactory) -> None:
    """What is dropped is gone, with its balances; counts never go back, and all else stands. Open
    times are refused."""
    plates, start = plates_of("drop", 2), -3_000_000_000
    ids = [f"{CELL}-{start + 3600 * hour}-3600" for hour in range(4)]
    span = span_name("1h", "1874-12-06T18:40:00+00:00", "1874-12-06T19:40:00+00:00")
    with open_ledger() as ledger:
        ledger.admit("drop/stays", 10, plates, [ask(ids[2], [5])])
        ledger.admit("drop/goes", 10, plates, [ask(ids[0], [3, 4]), ask(ids[1], [1])])
        ledger.admit(span, 10, plates, [ask(ids[3], [1])])
        ledger.record([(ids[2], b"stays"), (ids[0], b"goes"), (ids[3], b"goes, too")])
        ledger.published(ids[2:3])
        before = ledger.progress()
        for name in ("drop/any", ids[0]):
            try:
                ledger.drop("drop/goes", [name])
            except ValueError:
                continue
            raise CheckFailed(
                f"an id of an open time is not dropped: expected ValueError for {name}, got none"
            )
        ledger.close_before(start + 4 * 3600)
        ledger.drop("drop/goes", ids[:2])
        ledger.drop("drop/goes", ids[:2])  # again, as after a crash
        ledger.drop(span, ids[3:])
    with open_ledger() as ledger:
        expect(
            ledger.recorded([ids[0], ids[2], ids[3]]),
            [None, b"stays", None],
            "records that were dropped are gone",
        )
        expect(
            {"drop/goes", span} & set(ledger.periods()), set(), "periods that were dropped are gone"
        )
        expect(
            balances_of(ledger, "drop/goes", plates), [0, 0], "balances that were dropped are gone"
        )
        expect(balances_of(ledger, "drop/stays", plates), [5, 0], "other balances stay")
        expect(
            [name for name in ledger.newest() if name in ids],
            [ids[2]],
            "entries that were dropped are gone",
        )
        expect(
            {name for name, _ in ledger.unpublished()} & set(ids),
            set(),
            "nothing of it waits for its reader",
        )
        after = ledger.progress()
        expect(
            (after.admitted, after.recorded),
            (before.admitted, before.recorded),
            "counts never go back",
        )
        expect_refused(
            lambda: ledger.admit("drop/goes", 10, plates, [ask(ids[0], [1])]),
            "nothing of it is drawn anew",
        )
        ledger.admit("drop/more", 10, plates, [ask("drop/more", [1])])
        ledger.record([("drop/more", b"more")])
        after = ledger.progress()
        expect(
            (after.admitted, after.recorded),
            (before.admitted + 1, before.recorded + 1),
            "counts go on",
        )
        expect_sums(ledger)
        expect([one for one in ledger.verify() if "drop" in one], [], "what is left adds up")


def expect_refused(call: Callable[[], object], promise: str) -> None:
    """CheckFailed unless the call raises PrivacyRefused."""
    try:
        found = call()
    except PrivacyRefused:
        return
    raise CheckFailed(f"{promise}: expected PrivacyRefused, got {found!r}")


# Promises of rolling budgets: whatever is charged, in whatever order, no window is ever over its
# budget.

HOUR_S = 3600
BUDGET = 10


def hour(length: str, number: int, hours: int = 1) -> str:
    """The span of `hours` hours that begins `number` hours after 2024-01-08."""
    begin = datetime(2024, 1, 8, tzinfo=UTC).timestamp()
    ends = (
        datetime.fromtimestamp(begin + at * HOUR_S, UTC).isoformat()
        for at in (number, number + hours)
    )
    return span_name(length, *ends)


def worst_window(charged: dict[tuple[int, int], int], length_s: int) -> int:
    """The most in any window, of what was charged in spans (from, to, in seconds): each window is
    looked at.

    >>> worst_window({(0, 3600): 3, (3600, 7200): 4, (7200, 10800): 5}, 3600)
    9
    """
    moments = {edge for start, end in charged for edge in (start - length_s, start, end)}
    begins = {at + step for at in moments for step in (-1, 0, 1)}
    sums = (
        sum(
            amount
            for (start, end), amount in charged.items()
            if start < begin + length_s and begin < end
        )
        for begin in begins
    )
    return max(sums, default=0)


def check_rolling_table(open_ledger: LedgerFactory) -> None:
    """A charge is admitted if it fits into every window that touches its span: 3 h touch up to 4
    spans of 1 h."""
    plates = plates_of("rolling/table", 2)

    def admit(
        ledger: Ledger, span: str, name: str, amounts: Sequence[int], least: int = 0
    ) -> list[int]:
        asked = ask(f"rolling/table/{name}", amounts, min_admitted=least)
        return charged_by(ledger.admit(span, BUDGET, plates, [asked]))[0]

    with open_ledger() as ledger:
        expect(admit(ledger, hour("3h", 0), "0", [4, 6]), [4, 6], "an empty window")
        expect(
            admit(ledger, hour("3h", 3), "3", [6, 5]),
            [6, 0],
            "a window touches its first and its last span",
        )
        expect(admit(ledger, hour("3h", 3), "3", [1, 1]), [6, 0], "a repeat")
        expect(admit(ledger, hour("3h", 1), "1", [1, 4]), [0, 4], "a slot that is charged late")
        expect(
            admit(ledger, hour("3h", 4), "4", [4, 7], 2),
            [0, 0],
            "too few have enough left in their windows",
        )
        expect(
            admit(ledger, hour("3h", 4), "4b", [4, 6]),
            [4, 6],
            "what has left the window is free again",
        )
        expect(admit(ledger, hour("3h", 2), "2", [1, 1]), [0, 0], "windows behind the span count")
        expect(admit(ledger, hour("3h", 8), "8", [10, 10]), [10, 10], "a window of its own")
        expect(
            admit(ledger, hour("2h", 1), "2h", [10, 10]),
            [10, 10],
            "another length is another budget",
        )
        expect(
            admit(ledger, hour("3h", 1) + " in rho", "rho", [10, 10]),
            [10, 10],
            "so is another unit",
        )
        near = span_name(
            "3h", "2024-01-08T11:30:00+05:30", "2024-01-08T11:45:00+05:30"
        )  # 06:00 of the others
        expect(
            admit(ledger, near, "zone", [1, 1]),
            [0, 0],
            "zones and lengths of spans make no difference",
        )
        tight = replace(ask("rolling/table/12", [3, 3]), allowances=np.array([12, 13]))
        expect(
            charged_by(ledger.admit(hour("3h", 11), 20, plates, [tight])),
            [[0, 3]],
            "allowances of the window",
        )
        expect(balances_of(ledger, hour("3h", 4), plates), [4, 6], "a balance is of its span alone")
        expect(
            budget_balances(ledger, hour("3h", 2), plates).charged.tolist(),
            [10, 10],
            "charged in a window",
        )
    with open_ledger() as ledger:
        spans = [
            name
            for name in ledger.periods()
            if name.startswith("rolling 3h") and not name.endswith("rho")
        ]
        expect(
            spans,
            [hour("3h", number) for number in (0, 1, 3, 4, 8, 11)],
            "spans that were charged are periods",
        )
        both = [spans[1], f"{spans[1]} in rho", spans[2]]
        expect(ledger.periods(spans[1], spans[2]), both, "periods between two names, both included")
        expect_sums(ledger)
        expect(
            [one for one in ledger.verify() if "rolling/table" in one],
            [],
            "verify has nothing to say",
        )


def check_rolling_windows(open_ledger: LedgerFactory) -> None:
    rng = np.random.default_rng(11)  # decides what is asked, no noise
    plates, seconds = plates_of("rolling/any", 3), 5 * HOUR_S
    charged: list[dict[tuple[int, int], int]] = [{} for _ in plates]
    halted = 0
    with open_ledger() as ledger:
        for step in range(150):
            number, hours = int(rng.integers(0, 30)), int(rng.choice([1, 1, 1, 2, 5]))
            span, amounts = (
                (number * HOUR_S, (number + hours) * HOUR_S),
                rng.integers(1, 6, len(plates)).tolist(),
            )
            asked = ask(f"rolling/any/{step}", amounts)
            (found,) = charged_by(ledger.admit(hour("5h", number, hours), BUDGET, plates, [asked]))
            for of_plate, amount, got in zip(charged, amounts, found, strict=True):
                after = of_plate | {span: of_plate.get(span, 0) + amount}
                fits = worst_window(after, seconds) <= BUDGET
                expect(
                    got,
                    amount if fits else 0,
                    f"step {step}: charged if every window allows it, and else not",
                )
                of_plate.update({span: after[span]} if fits else {})
                halted += not fits
        expect(150 < halted < 430, True, f"some are charged and some are not (halted: {halted})")
        expect_sums(ledger)
        expect(
            [one for one in ledger.verify() if "rolling/any" in one],
            [],
            "verify has nothing to say",
        )


# Promises in numbers: many HATs at once, large slots, a hundred writers.

WRITERS = 100
START_TIMEOUT_S = 60.0
LARGE_HAT, LARGE_SLOT = 100_000, 25_000
SHARED_IDS = tuple(f"race/{i}" for i in range(4))
RACE_BUDGET = 100


def check_many_at_once(open_ledger: LedgerFactory) -> None:
    plates, ids = plates_of("many", 1203), [f"many/{i}" for i in range(1203)]
    asked = [ask(name, [4, 7], [i, (i + 1) % len(ids)]) for i, name in enumerate(ids)]
    with open_ledger() as ledger:
        verdicts = charged_by(ledger.admit("many", 10, plates, asked[:700]))
        expect(
            verdicts,
            [[4, 7]] + [[0, 7]] * 699,
            "the first of a chain is charged both, the others what is left",
        )
        expect(
            charged_by(ledger.admit("many", 10, plates, asked[::-1]))[-700:],
            verdicts[::-1],
            "a big one, reversed",
        )
        payloads = [name.encode() for name in ids]
        expect(
            ledger.record(list(zip(ids, payloads, strict=True))),
            payloads,
            "as many payloads as ids",
        )
        expect(
            ledger.recorded(ids[::-1]),
            payloads[::-1],
            "as many payloads as ids, in the order asked",
        )
        expect(
            [p for name, p in ledger.unpublished() if name in set(ids)],
            payloads,
            "as many unpublished",
        )
        ledger.published(ids)
        expect_sums(ledger)


def check_large_slots(open_ledger: LedgerFactory) -> None:
    """A call takes a crowd in one HAT, and as many HATs as a broken receiver sees cells; its
    payloads all or none."""
    crowd, names = plates_of("large", LARGE_HAT), [f"large/{i}" for i in range(LARGE_SLOT)]
    charges = [4] * (LARGE_HAT - 1) + [11]
    hats = [
        ask(names[0], charges, min_admitted=LARGE_HAT - 1),
        *(ask(name, []) for name in names[1:]),
    ]
    releases = [(name, name.encode() * 20) for name in names]
    with open_ledger() as ledger:
        for _ in range(2):
            verdicts = ledger.admit("large", 10, crowd, hats)
            expect(
                verdicts[0].charged.tolist() == [*charges[:-1], 0],
                True,
                "a crowd is charged once, or halted",
            )
            expect(sum(verdict.charged.size for verdict in verdicts[1:]), 0, "HATs without members")
        balance = ledger.balances("large", crowd)
        expect(
            balance.charges.tolist() == [1] * (LARGE_HAT - 1) + [0],
            True,
            "the balance of each plate",
        )
        try:
            ledger.record([*releases, ("large/never", b"")])
        except PrivacyRefused:
            expect(
                ledger.recorded(names) == [None] * LARGE_SLOT,
                True,
                "a refused call records nothing, however large",
            )
        else:
            raise CheckFailed(
                "a large record without one admission: expected PrivacyRefused, got an answer"
            )
        payloads = [payload for _, payload in releases]
        expect(ledger.record(releases) == payloads, True, "as many payloads as ids")
        expect(
            ledger.record([(name, b"later") for name in names]) == payloads,
            True,
            "the first payloads are kept",
        )
        waiting = [one for one in ledger.unpublished() if one[0].startswith("large/")]
        expect(waiting == releases, True, "oldest first")
        ledger.published(names)
        expect(
            [name for name, _ in ledger.unpublished() if name.startswith("large/")],
            [],
            "published, all of them",
        )


def check_concurrent_writers(open_ledger: LedgerFactory) -> None:
    """A hundred writers on few plates and the same ids: one verdict and payload per id, no balance
    over its budget."""
    plates = plates_of("race", 5)
    start = threading.Barrier(WRITERS)

    def write(writer: int) -> dict[str, object]:
        start.wait(START_TIMEOUT_S)
        return _race(open_ledger, writer, plates)

    with ThreadPoolExecutor(WRITERS) as pool:
        answers = list(pool.map(write, range(WRITERS)))
    for seen in answers:
        for name, answer in seen.items():
            expect(answer, answers[0][name], f"all writers see the same {name}")
    with open_ledger() as ledger:
        kept = [answers[0][f"payload of {name}"] for name in SHARED_IDS]
        expect(ledger.recorded(SHARED_IDS), kept, "what all writers saw is what is recorded")
        names = [name for name in ledger.newest() if name.startswith("race/")]
        expect(
            (len(names), len(set(names))),
            (2 * WRITERS + len(SHARED_IDS),) * 2,
            "every admission once",
        )
        sums = balances_of(ledger, "race", plates)
        expect(
            [amount <= RACE_BUDGET for amount in sums],
            [True] * len(plates),
            f"no balance over its budget ({sums})",
        )
        expect_sums(ledger)


def check_rolling_crowd(open_ledger: LedgerFactory) -> None:
    plates, start = plates_of("rolling/race", 3), threading.Barrier(WRITERS)
    seconds = 4 * HOUR_S

    def write(writer: int) -> None:
        order = sorted(range(12), key=lambda number: (number * 7 + writer * 5) % 12)
        start.wait(START_TIMEOUT_S)
        with open_ledger() as ledger:
            for number in order[:3]:
                name = f"rolling/race/{writer}/{number}"
                ledger.admit(
                    hour("4h", number), RACE_BUDGET, plates, [ask(name, [30 + writer % 7] * 3)]
                )

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, range(WRITERS)))
    with open_ledger() as ledger:
        for plate in plates:
            found = ledger.charged_by_period(plate)
            spans = {span: span_of(span) for span in found}
            charged = {
                (int(at.start), int(at.end)): found[span]
                for span, at in spans.items()
                if at is not None
            }
            most = worst_window(charged, seconds)
            expect(
                60 < most <= RACE_BUDGET,
                True,
                f"the worst window is used, and not over its budget ({most})",
            )
        expect_sums(ledger)


def _race(open_ledger: LedgerFactory, writer: int, plates: list[bytes]) -> dict[str, object]:
    """What one writer saw, by name: it asks for ids of its own and for the shared ones, and opens
    the ledger twice."""
    turn = writer % len(plates)
    turned = plates[turn:] + plates[:turn]  # everyone names the plates in another order
    shared = [ask(name, [3 + writer % 4] * 5, terms=b"%d" % writer) for name in SHARED_IDS]
    seen: dict[str, object] = {}
    with open_ledger() as ledger:
        ledger.admit("race", RACE_BUDGET, turned, [ask(f"race/own/{writer}/0", [3] * 5)])
        for name, verdict in zip(
            SHARED_IDS, ledger.admit("race", RACE_BUDGET, turned, shared), strict=True
        ):
            charged = dict(zip(turned, verdict.charged.tolist(), strict=True))
            seen[f"verdict of {name}"] = (sorted(charged.items()), verdict.terms)
        payloads = ledger.record([(name, b"%d" % writer) for name in SHARED_IDS])
    seen |= {
        f"payload of {name}": payload for name, payload in zip(SHARED_IDS, payloads, strict=True)
    }
    with open_ledger() as ledger:
        ledger.admit("race", RACE_BUDGET, turned, [ask(f"race/own/{writer}/1", [4, 4], [1, 3])])
        expect(ledger.recorded(SHARED_IDS), payloads, "what a writer saw is what is recorded")
    return seen


ALL_LEDGER_CHECKS: tuple[Callable[[LedgerFactory], None], ...] = (
    check_admit_charges_once, check_repeat_is_remembered, check_never_over_budget, check_allowances,
    check_min_admitted_charges_nobody, check_first_record_stands, check_record_needs_admission,
    check_unpublished_then_published, check_malformed_is_refused, check_table, check_balances_equal_entries,
    check_newest, check_view, check_many_at_once, check_large_slots, check_survives_reopen, check_notes_and_progress,
    check_rolling_table, check_rolling_windows, check_rolling_crowd, check_concurrent_writers, check_archive,
)  # fmt: skip
"""Every promise; run each on every store."""

IN_CROWDS = (check_many_at_once, check_large_slots, check_rolling_crowd, check_concurrent_writers)
"""Promises in numbers; each takes a while."""
