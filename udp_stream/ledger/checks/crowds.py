"""Promises in numbers: many HATs at once, large slots, a hundred writers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from udp_stream.errors import PrivacyRefused
from udp_stream.ledger.checks.expecting import CheckFailed, ask, balances_of, charged_by, expect, expect_sums, plates_of
from udp_stream.ledger.checks.rolling import HOUR_S, hour, worst_window
from udp_stream.ledger.port import LedgerFactory
from udp_stream.ledger.rolling import span_of

WRITERS = 100
START_TIMEOUT_S = 60.0
LARGE_HAT, LARGE_SLOT = 100_000, 25_000
SHARED_IDS = tuple(f"race/{i}" for i in range(4))
RACE_BUDGET = 100


def check_many_at_once(open_ledger: LedgerFactory) -> None:
    """A call of more HATs, plates and payloads than any store takes in one statement answers like small ones.

    >>> from udp_stream.testing import in_memory
    >>> check_many_at_once(in_memory())
    """
    plates, ids = plates_of("many", 1203), [f"many/{i}" for i in range(1203)]
    asked = [ask(name, [4, 7], [i, (i + 1) % len(ids)]) for i, name in enumerate(ids)]
    with open_ledger() as ledger:
        verdicts = charged_by(ledger.admit("many", 10, plates, asked[:700]))
        expect(verdicts, [[4, 7]] + [[0, 7]] * 699, "the first of a chain is charged both, the others what is left")
        expect(
            charged_by(ledger.admit("many", 10, plates, asked[::-1]))[-700:], verdicts[::-1], "a big repeat, reversed"
        )
        payloads = [name.encode() for name in ids]
        expect(ledger.record(list(zip(ids, payloads, strict=True))), payloads, "as many payloads as ids")
        expect(ledger.recorded(ids[::-1]), payloads[::-1], "as many payloads as ids, in the order asked")
        expect([p for name, p in ledger.unpublished() if name in set(ids)], payloads, "as many unpublished")
        ledger.published(ids)
        expect_sums(ledger)


def check_large_slots(open_ledger: LedgerFactory) -> None:
    """A call takes a crowd in one HAT, and as many HATs as a broken receiver sees cells; its payloads all or none.

    >>> from udp_stream.testing import in_memory
    >>> check_large_slots(in_memory())
    """
    crowd, names = plates_of("large", LARGE_HAT), [f"large/{i}" for i in range(LARGE_SLOT)]
    charges = [4] * (LARGE_HAT - 1) + [11]
    hats = [ask(names[0], charges, min_admitted=LARGE_HAT - 1), *(ask(name, []) for name in names[1:])]
    releases = [(name, name.encode() * 20) for name in names]
    with open_ledger() as ledger:
        for _ in range(2):
            verdicts = ledger.admit("large", 10, crowd, hats)
            expect(
                verdicts[0].charged.tolist() == [*charges[:-1], 0], True, "each of a crowd is charged once, or halted"
            )
            expect(sum(verdict.charged.size for verdict in verdicts[1:]), 0, "HATs without members")
        balance = ledger.balances("large", crowd)
        expect(balance.charges.tolist() == [1] * (LARGE_HAT - 1) + [0], True, "the balance of each plate")
        try:
            ledger.record([*releases, ("large/never", b"")])
        except PrivacyRefused:
            expect(ledger.recorded(names) == [None] * LARGE_SLOT, True, "a refused call records nothing, however large")
        else:
            raise CheckFailed("a large record without one admission: expected PrivacyRefused, got an answer")
        payloads = [payload for _, payload in releases]
        expect(ledger.record(releases) == payloads, True, "as many payloads as ids")
        expect(ledger.record([(name, b"later") for name in names]) == payloads, True, "the first payloads are kept")
        waiting = [one for one in ledger.unpublished() if one[0].startswith("large/")]
        expect(waiting == releases, True, "oldest first")
        ledger.published(names)
        expect([name for name, _ in ledger.unpublished() if name.startswith("large/")], [], "published, all of them")


def check_concurrent_writers(open_ledger: LedgerFactory) -> None:
    """A hundred writers on few plates and the same ids: one verdict and payload per id, no balance over its budget.

    >>> from udp_stream.testing import in_memory
    >>> check_concurrent_writers(in_memory())
    """
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
        expect((len(names), len(set(names))), (2 * WRITERS + len(SHARED_IDS),) * 2, "every admission once")
        sums = balances_of(ledger, "race", plates)
        expect([amount <= RACE_BUDGET for amount in sums], [True] * len(plates), f"no balance over its budget ({sums})")
        expect_sums(ledger)


def check_rolling_crowd(open_ledger: LedgerFactory) -> None:
    """A hundred writers on the spans of a rolling budget, new ones among them, in any order: no window over it.

    >>> from udp_stream.testing import in_memory
    >>> check_rolling_crowd(in_memory())
    """
    plates, start = plates_of("rolling/race", 3), threading.Barrier(WRITERS)
    seconds = 4 * HOUR_S

    def write(writer: int) -> None:
        order = sorted(range(12), key=lambda number: (number * 7 + writer * 5) % 12)
        start.wait(START_TIMEOUT_S)
        with open_ledger() as ledger:
            for number in order[:3]:
                name = f"rolling/race/{writer}/{number}"
                ledger.admit(hour("4h", number), RACE_BUDGET, plates, [ask(name, [30 + writer % 7] * 3)])

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, range(WRITERS)))
    with open_ledger() as ledger:
        for plate in plates:
            found = ledger.charged_by_period(plate)
            spans = {span: span_of(span) for span in found}
            charged = {(int(at.start), int(at.end)): found[span] for span, at in spans.items() if at is not None}
            most = worst_window(charged, seconds)
            expect(60 < most <= RACE_BUDGET, True, f"the worst window is used, and not over its budget ({most})")
        expect_sums(ledger)


def _race(open_ledger: LedgerFactory, writer: int, plates: list[bytes]) -> dict[str, object]:
    """What one writer saw, by name: it asks for ids of its own and for the shared ones, and opens the ledger twice."""
    turn = writer % len(plates)
    turned = plates[turn:] + plates[:turn]  # everyone names the plates in another order
    shared = [ask(name, [3 + writer % 4] * 5, terms=b"%d" % writer) for name in SHARED_IDS]
    seen: dict[str, object] = {}
    with open_ledger() as ledger:
        ledger.admit("race", RACE_BUDGET, turned, [ask(f"race/own/{writer}/0", [3] * 5)])
        for name, verdict in zip(SHARED_IDS, ledger.admit("race", RACE_BUDGET, turned, shared), strict=True):
            charged = dict(zip(turned, verdict.charged.tolist(), strict=True))
            seen[f"verdict of {name}"] = (sorted(charged.items()), verdict.terms)
        payloads = ledger.record([(name, b"%d" % writer) for name in SHARED_IDS])
    seen |= {f"payload of {name}": payload for name, payload in zip(SHARED_IDS, payloads, strict=True)}
    with open_ledger() as ledger:
        ledger.admit("race", RACE_BUDGET, turned, [ask(f"race/own/{writer}/1", [4, 4], [1, 3])])
        expect(ledger.recorded(SHARED_IDS), payloads, "what a writer saw is what is recorded")
    return seen
