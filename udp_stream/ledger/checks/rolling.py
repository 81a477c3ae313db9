"""Promises of rolling budgets: whatever is charged, in whatever order, no window is ever over its budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np

from udp_stream.ledger.budgets import budget_balances
from udp_stream.ledger.checks.expecting import ask, balances_of, charged_by, expect, expect_sums, plates_of
from udp_stream.ledger.port import Ledger, LedgerFactory
from udp_stream.ledger.rolling import span_name

HOUR_S = 3600
BUDGET = 10


def hour(length: str, number: int, hours: int = 1) -> str:
    """The span of `hours` hours that begins `number` hours after 2024-01-08.

    >>> hour("1d", 6)
    'rolling 1d from 2024-01-08T06:00:00+00:00 to 2024-01-08T07:00:00+00:00'
    """
    begin = datetime(2024, 1, 8, tzinfo=UTC).timestamp()
    ends = (datetime.fromtimestamp(begin + at * HOUR_S, UTC).isoformat() for at in (number, number + hours))
    return span_name(length, *ends)


def worst_window(charged: dict[tuple[int, int], int], length_s: int) -> int:
    """The most in any window, of what was charged in spans (from, to, in seconds): each window is looked at.

    >>> worst_window({(0, 3600): 3, (3600, 7200): 4, (7200, 10800): 5}, 3600)
    9
    """
    moments = {edge for start, end in charged for edge in (start - length_s, start, end)}
    begins = {at + step for at in moments for step in (-1, 0, 1)}
    sums = (
        sum(amount for (start, end), amount in charged.items() if start < begin + length_s and begin < end)
        for begin in begins
    )
    return max(sums, default=0)


def check_rolling_table(open_ledger: LedgerFactory) -> None:
    """A charge is admitted if it fits into every window that touches its span, before and behind; others do not count.

    Windows of three hours touch up to four spans of an hour.

    >>> from udp_stream.testing import in_memory
    >>> check_rolling_table(in_memory())
    """
    plates = plates_of("rolling/table", 2)

    def admit(ledger: Ledger, span: str, name: str, amounts: Sequence[int], least: int = 0) -> list[int]:
        asked = ask(f"rolling/table/{name}", amounts, min_admitted=least)
        return charged_by(ledger.admit(span, BUDGET, plates, [asked]))[0]

    with open_ledger() as ledger:
        expect(admit(ledger, hour("3h", 0), "0", [4, 6]), [4, 6], "an empty window")
        expect(admit(ledger, hour("3h", 3), "3", [6, 5]), [6, 0], "a window touches its first and its last span")
        expect(admit(ledger, hour("3h", 3), "3", [1, 1]), [6, 0], "a repeat")
        expect(admit(ledger, hour("3h", 1), "1", [1, 4]), [0, 4], "a slot that is charged late")
        expect(admit(ledger, hour("3h", 4), "4", [4, 7], 2), [0, 0], "too few have enough left in their windows")
        expect(admit(ledger, hour("3h", 4), "4b", [4, 6]), [4, 6], "what has left the window is free again")
        expect(admit(ledger, hour("3h", 2), "2", [1, 1]), [0, 0], "windows behind the span count")
        expect(admit(ledger, hour("3h", 8), "8", [10, 10]), [10, 10], "a window of its own")
        expect(admit(ledger, hour("2h", 1), "2h", [10, 10]), [10, 10], "another length is another budget")
        expect(admit(ledger, hour("3h", 1) + " in rho", "rho", [10, 10]), [10, 10], "so is another unit")
        near = span_name("3h", "2024-01-08T11:30:00+05:30", "2024-01-08T11:45:00+05:30")  # 06:00 of the others
        expect(admit(ledger, near, "zone", [1, 1]), [0, 0], "zones and lengths of spans make no difference")
        tight = replace(ask("rolling/table/12", [3, 3]), allowances=np.array([12, 13]))
        expect(
            charged_by(ledger.admit(hour("3h", 11), 20, plates, [tight])), [[0, 3]], "allowances are of the window, too"
        )
        expect(balances_of(ledger, hour("3h", 4), plates), [4, 6], "a balance is of its span alone")
        expect(
            budget_balances(ledger, hour("3h", 2), plates).charged.tolist(), [10, 10], "what was charged in a window"
        )
    with open_ledger() as ledger:
        spans = [name for name in ledger.periods() if name.startswith("rolling 3h") and not name.endswith("rho")]
        expect(spans, [hour("3h", number) for number in (0, 1, 3, 4, 8, 11)], "spans that were charged are periods")
        both = [spans[1], f"{spans[1]} in rho", spans[2]]
        expect(ledger.periods(spans[1], spans[2]), both, "periods between two names, both included")
        expect_sums(ledger)
        expect([one for one in ledger.verify() if "rolling/table" in one], [], "verify has nothing to say")


def check_rolling_windows(open_ledger: LedgerFactory) -> None:
    """After charges in spans of any lengths, in any order, no window is over the budget; all that fits is charged.

    >>> from udp_stream.testing import in_memory
    >>> check_rolling_windows(in_memory())
    """
    rng = np.random.default_rng(11)  # decides what is asked, no noise
    plates, seconds = plates_of("rolling/any", 3), 5 * HOUR_S
    charged: list[dict[tuple[int, int], int]] = [{} for _ in plates]
    halted = 0
    with open_ledger() as ledger:
        for step in range(150):
            number, hours = int(rng.integers(0, 30)), int(rng.choice([1, 1, 1, 2, 5]))
            span, amounts = (number * HOUR_S, (number + hours) * HOUR_S), rng.integers(1, 6, len(plates)).tolist()
            asked = ask(f"rolling/any/{step}", amounts)
            (found,) = charged_by(ledger.admit(hour("5h", number, hours), BUDGET, plates, [asked]))
            for of_plate, amount, got in zip(charged, amounts, found, strict=True):
                after = of_plate | {span: of_plate.get(span, 0) + amount}
                fits = worst_window(after, seconds) <= BUDGET
                expect(got, amount if fits else 0, f"step {step}: charged if every window allows it, and else not")
                of_plate.update({span: after[span]} if fits else {})
                halted += not fits
        expect(150 < halted < 430, True, f"some are charged and some are not (halted: {halted})")
        expect_sums(ledger)
        expect([one for one in ledger.verify() if "rolling/any" in one], [], "verify has nothing to say")
