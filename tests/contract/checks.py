"""Promises of `port.py` in numbers, and calls that break its rules; any ledger is held to them. What a ledger answers
in whatever order is for `machine.py`."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from udp_stream.base.errors import PrivacyRefused
from udp_stream.ledger.port import Admission, Ledger
from udp_stream.ledger.rules import AMOUNT_LIMIT, span_name, span_of

LedgerFactory = Callable[[], AbstractContextManager[Ledger]]
"""Opens the same ledger anew: to play several writers and restarts."""

HOUR_S = 3600


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


def hour(length: str, number: int) -> str:
    """The span of the hour that begins `number` hours after 2024-01-08."""
    begin = datetime(2024, 1, 8, tzinfo=UTC).timestamp()
    ends = (
        datetime.fromtimestamp(begin + at * HOUR_S, UTC).isoformat() for at in (number, number + 1)
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
            with pytest.raises(ValueError, match="expected"):
                ledger.admit("bad", budget, known, [good, bad])
            assert ledger.balances("bad", plates).charged.tolist() == [0, 0], name
        assert not [one for one in ledger.newest() if one.startswith("bad/")]
        with pytest.raises(ValueError, match="times that are closed"):
            ledger.drop("bad", ["bad/any"])


WRITERS = 100
START_TIMEOUT_S = 60.0
LARGE_HAT, LARGE_SLOT = 100_000, 25_000
SHARED_IDS = tuple(f"race/{i}" for i in range(4))
RACE_BUDGET = 100


def check_many_at_once(open_ledger: LedgerFactory) -> None:
    """As many HATs, plates and payloads as take several pages of a store, and terms of half a megabyte."""
    plates, ids = plates_of("many", 1203), [f"many/{i}" for i in range(1203)]
    asked = [ask(name, [4, 7], [i, (i + 1) % len(ids)]) for i, name in enumerate(ids)]
    asked[0] = replace(asked[0], terms=bytes(range(256)) * 2000)
    with open_ledger() as ledger:
        found = ledger.admit("many", 10, plates, asked[:700])
        verdicts = [one.charged.tolist() for one in found]
        assert verdicts == [[4, 7]] + [[0, 7]] * 699
        reversed_ = ledger.admit("many", 10, plates, asked[::-1])
        assert [one.charged.tolist() for one in reversed_][-700:] == verdicts[::-1]
        assert reversed_[-1].terms == found[0].terms == asked[0].terms
        payloads = [name.encode() for name in ids]
        assert ledger.record(list(zip(ids, payloads, strict=True))) == payloads
        view = ledger.view("many", plates, ids[::-1])
        assert list(view.payloads) == ledger.recorded(ids[::-1]) == payloads[::-1]
        assert view.balance.charged.tolist() == ledger.balances("many", plates).charged.tolist()
        assert view.balance.charged.tolist() == [4] + [7] * 700 + [4] * 502
        assert [p for name, p in ledger.unpublished() if name in {*ids}] == payloads
        ledger.published(ids)
        entries = [one.release_id for one in ledger.entries()]
        assert sorted(entries) == sorted(ids) and list(ledger.newest()) == entries[::-1]
        reading = ledger.newest()
        seen = [next(reading)]
        ledger.admit(
            "many", 10, plates, [ask("many/late", [])]
        )  # it hides nothing, and repeats nothing
        assert [*seen, *(name for name in reading if name != "many/late")] == entries[::-1]
        assert ledger.verify() == []


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
    payloads = [payload for _, payload in releases]
    with open_ledger() as ledger:
        for _ in range(2):
            first, *others = ledger.admit("large", 10, crowd, hats)
            assert first.charged.tolist() == [*charges[:-1], 0]
            assert not any(one.charged.size for one in others)
        assert ledger.balances("large", crowd).charges.tolist() == [1] * (LARGE_HAT - 1) + [0]
        with pytest.raises(PrivacyRefused):
            ledger.record([*releases, ("large/never", b"")])
        assert ledger.recorded(names) == [None] * LARGE_SLOT, "a refused call records nothing"
        assert ledger.record(releases) == payloads
        assert ledger.record([(name, b"later") for name in names]) == payloads
        assert [one for one in ledger.unpublished() if one[0].startswith("large/")] == releases
        ledger.published(names)
        assert not [name for name, _ in ledger.unpublished() if name.startswith("large/")]


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
    assert all(seen == answers[0] for seen in answers)
    with open_ledger() as ledger:
        assert ledger.recorded(SHARED_IDS) == [
            answers[0][f"payload of {name}"] for name in SHARED_IDS
        ]
        names = [name for name in ledger.newest() if name.startswith("race/")]
        assert len(names) == len(set(names)) == 2 * WRITERS + len(SHARED_IDS)
        assert ledger.balances("race", plates).charged.max() <= RACE_BUDGET
        assert ledger.verify() == []


def _race(open_ledger: LedgerFactory, writer: int, plates: list[bytes]) -> dict[str, object]:
    """What one writer saw, by name: it asks for ids of its own and for the shared ones, and opens
    the ledger twice."""
    turn = writer % len(plates)
    turned = plates[turn:] + plates[:turn]  # everyone names the plates in another order
    shared = [ask(name, [3 + writer % 4] * 5, terms=b"%d" % writer) for name in SHARED_IDS]
    seen: dict[str, object] = {}
    with open_ledger() as ledger:
        ledger.admit("race", RACE_BUDGET, turned, [ask(f"race/own/{writer}/0", [3] * 5)])
        verdicts = ledger.admit("race", RACE_BUDGET, turned, shared)
        for name, verdict in zip(SHARED_IDS, verdicts, strict=True):
            charged = dict(zip(turned, verdict.charged.tolist(), strict=True))
            seen[f"verdict of {name}"] = (sorted(charged.items()), verdict.terms)
        payloads = ledger.record([(name, b"%d" % writer) for name in SHARED_IDS])
    for name, payload in zip(SHARED_IDS, payloads, strict=True):
        seen[f"payload of {name}"] = payload
    with open_ledger() as ledger:
        ledger.admit("race", RACE_BUDGET, turned, [ask(f"race/own/{writer}/1", [4, 4], [1, 3])])
        assert ledger.recorded(SHARED_IDS) == payloads
    return seen


def check_rolling_crowd(open_ledger: LedgerFactory) -> None:
    plates, start = plates_of("rolling/race", 3), threading.Barrier(WRITERS)

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
            assert 60 < worst_window(charged, 4 * HOUR_S) <= RACE_BUDGET, (
                "used, and not over its budget"
            )
        assert ledger.verify() == []


ALL_LEDGER_CHECKS: tuple[Callable[[LedgerFactory], None], ...] = (
    check_malformed_is_refused, check_many_at_once, check_large_slots, check_rolling_crowd, check_concurrent_writers,
)  # fmt: skip
"""Run each on every store."""

IN_CROWDS = (check_large_slots, check_rolling_crowd, check_concurrent_writers)
"""Each takes a while."""
