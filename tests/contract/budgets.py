"""An adversary's sequences of charges on any store, compared with a model that looks at every
window."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.contract.checks import HOUR_S, ask, hour
from udp_stream.ledger.filters import rho_nano_of
from udp_stream.ledger.rules import budget_balances, span_of
from udp_stream.units import NANO

POSITIONS = "positions 1d from 2024-01-08T00:00:00+05:30 in rho"
DAY = "1d from 2024-01-08T00:00:00+05:30"
WINDOW_S = 3 * HOUR_S
SPANS = [hour("3h", number) for number in range(9)]
LIMITS = {
    DAY: 10 * NANO,
    f"{DAY} in rho": rho_nano_of(10 * NANO, 1e-6),
    POSITIONS: 3 * NANO // 2,
    **dict.fromkeys(SPANS, 10 * NANO),
    **dict.fromkeys((f"{span} in rho" for span in SPANS[:4]), NANO // 2),
}
PLATES = [b"one", b"two"]
PERIODS = st.sampled_from([DAY, f"{DAY} in rho", POSITIONS, *LIMITS])
AMOUNTS = st.sampled_from(["left", "more", "one", "half", "all", "some"])


def amount_of(kind, left, limit, some=3 * NANO):
    """What an adversary asks for, who knows what is left."""
    known = {
        "left": left,
        "more": left + 1,
        "one": 1,
        "half": left // 2,
        "all": limit,
        "some": some,
    }
    return max(1, known[kind])


class Model:
    """Every charge ever made, by period and plate; a window's sum is that of all charges in spans
    that it touches."""

    def __init__(self):
        self.charges = []

    def charged(self, period, plate):
        ours = span_of(period)
        mine = [(name, nano) for name, who, nano in self.charges if who == plate]
        if ours is None:
            return sum(nano for name, nano in mine if name == period)
        near = [
            (span_of(name), nano)
            for name, nano in mine
            if span_of(name) and span_of(name).unit == ours.unit
        ]
        begins = (
            np.arange(ours.start - WINDOW_S, ours.end, HOUR_S) + HOUR_S / 2
        )  # all spans are whole hours
        return max(
            sum(nano for span, nano in near if span.start < at + WINDOW_S and at < span.end)
            for at in begins
        )


class Adversary(RuleBasedStateMachine):
    """Subclasses say how a ledger is opened: `opened()`."""

    writers = 8

    def __init__(self):
        super().__init__()
        self.model, self.asked, self.step = Model(), {}, 0

    def opened(self):
        raise NotImplementedError

    def admit(self, ledger, period, name, amounts, budget, least=0):
        (verdict,) = ledger.admit(period, budget, PLATES, [ask(name, amounts, min_admitted=least)])
        return verdict.charged.tolist()

    @rule(
        period=PERIODS,
        kinds=st.tuples(AMOUNTS, AMOUNTS),
        least=st.integers(0, 2),
        part=st.sampled_from([1, 1, 2]),
    )
    def charge(self, period, kinds, least, part):
        """Admitted, and charged, if and only if the promise holds with it; sometimes under half of
        the budget."""
        self.step += 1
        limit = LIMITS[period] // part
        with self.opened() as ledger:
            spent = budget_balances(ledger, period, PLATES).charged.tolist()
            assert spent == [self.model.charged(period, plate) for plate in PLATES], "the odometer"
            lefts = [max(0, limit - one) for one in spent]
            amounts = [
                amount_of(kind, left, limit) for kind, left in zip(kinds, lefts, strict=True)
            ]
            found = self.admit(ledger, period, f"{self.step}", amounts, limit, least)
            fitting = [
                amount if amount <= left else 0 for amount, left in zip(amounts, lefts, strict=True)
            ]
            assert found == (fitting if np.count_nonzero(fitting) >= least else [0, 0])
            self.keep(period, f"{self.step}", found)
            # A refused charge does not close the account: what fits is admitted at once (Remark 2).
            lefts = [left - nano for left, nano in zip(lefts, found, strict=True)]
            refused = [nano == 0 and left > 0 for nano, left in zip(found, lefts, strict=True)]
            if any(refused):
                smaller = [
                    left if one else limit + 1 for one, left in zip(refused, lefts, strict=True)
                ]
                found = self.admit(ledger, period, f"{self.step}/smaller", smaller, limit)
                assert found == [
                    left if one else 0 for one, left in zip(refused, lefts, strict=True)
                ]
                self.keep(period, f"{self.step}/smaller", found)

    def keep(self, period, name, found):
        self.asked[name] = found
        self.model.charges += [
            (period, plate, nano) for plate, nano in zip(PLATES, found, strict=True) if nano
        ]

    @precondition(lambda self: self.asked)
    @rule(period=PERIODS, which=st.integers(0, 10**6))
    def repeat(self, period, which):
        name = sorted(self.asked)[which % len(self.asked)]
        with self.opened() as ledger:
            assert self.admit(ledger, period, name, [1, 1], LIMITS[period]) == self.asked[name]

    @rule(period=PERIODS, kind=AMOUNTS, seed=st.integers(0, 99))
    def crowd(self, period, kind, seed):
        self.step += 1
        near = [
            other
            for other in LIMITS
            if span_of(other) and span_of(period) and other[-3:] == period[-3:]
        ]
        start = threading.Barrier(self.writers)

        def write(writer):
            choose = random.Random(f"{seed} {writer}")
            where = choose.choice([period, *near])
            limit = LIMITS[where]
            with self.opened() as ledger:
                start.wait(60)
                left = limit - int(budget_balances(ledger, where, PLATES[:1]).charged[0])
                amounts = [amount_of(kind, max(0, left), limit, choose.randrange(NANO)), limit // 7]
                return where, self.admit(ledger, where, f"{self.step}/{writer}", amounts, limit)

        with ThreadPoolExecutor(self.writers) as pool:
            answers = list(pool.map(write, range(self.writers)))
        for writer, (where, found) in enumerate(answers):
            self.keep(where, f"{self.step}/{writer}", found)

    @invariant()
    def no_budget_is_exceeded(self):
        for period, limit in LIMITS.items():
            assert all(self.model.charged(period, plate) <= limit for plate in PLATES), period

    def teardown(self):
        with self.opened() as ledger:
            assert ledger.verify() == []
            for plate in PLATES:
                mine = {period for period, who, _ in self.model.charges if who == plate}
                sums = {
                    period: sum(
                        nano
                        for name, who, nano in self.model.charges
                        if (name, who) == (period, plate)
                    )
                    for period in mine
                }
                assert ledger.charged_by_period(plate) == sums, (
                    "what was answered is what is remembered"
                )


def greedy_crowd(open_ledger, writers=100):
    kinds = [DAY, f"{DAY} in rho", SPANS[1], SPANS[4], SPANS[2]]
    start = threading.Barrier(writers)

    def write(writer):
        with open_ledger() as ledger:
            start.wait(60)
            for turn, period in enumerate((kinds[writer % 5 :] + kinds[: writer % 5])[:2]):
                limit = LIMITS[period]
                spent = budget_balances(ledger, period, PLATES).charged.tolist()
                amounts = [
                    max(1, (limit - one) // (1 + (writer + turn) % 3) + writer % 2) for one in spent
                ]
                ledger.admit(period, limit, PLATES, [ask(f"{writer}/{turn}", amounts)])

    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(write, range(writers)))
    model = Model()
    with open_ledger() as ledger:
        for plate in PLATES:
            model.charges += [
                (period, plate, nano) for period, nano in ledger.charged_by_period(plate).items()
            ]
        for period in kinds:
            limit = LIMITS[period]
            for plate in PLATES:
                assert limit * 9 // 10 < model.charged(period, plate) <= limit
            asked = [
                limit + 1 - one for one in budget_balances(ledger, period, PLATES).charged.tolist()
            ]
            (verdict,) = ledger.admit(period, limit, PLATES, [ask(f"one more {period}", asked)])
            assert not verdict.charged.any()
        assert ledger.verify() == []
