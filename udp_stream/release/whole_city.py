"""The road of a question to the whole city: charge, draw, record, as for a HAT, once a slot. No reader waits for it.

A question (`CityQuestion`) is a parameter of the road: `ReleaseContext.city`. Without one nothing here costs anything.
It is asked where plans follow from releases (`Policy.forecasts`), as the planner then waits for a slot to be released.

1. The planner charges those who can pay (`charge_city`), before the slot's HATs. Whoever cannot takes no part.
2. Sums of whole numbers over all rows are measured with the plates' norms (`balls.py`): on Kafka each shard sends the
   planner its part of them. Such sums have no order, so they are those of the whole slot.
3. Noise is drawn once, and recorded (`record_city`), before any HAT of the slot is: on Kafka shards wait for it. So
   whoever finds the slot's records finds this one, too.

What is asked follows from what is public, and the ledger remembers a digest of it. If another plan was charged, as by
another version, nothing is drawn: what that charge allows is not known any more.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b
from math import ceil
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from udp_stream.ledger.port import Admission, Bits, Entropy, Ledger
from udp_stream.planning.policy import Policy
from udp_stream.planning.slot_plan import CityPlan, SlotPlan, row_digests
from udp_stream.release.once import draw_once
from udp_stream.release.record import city_id
from udp_stream.windows.tables import SlotCounts, SlotValues

ADMITTED_MIN = 0.5
"""The least share of the plates that have to be able to pay."""


class CityAsked(NamedTuple):
    """The plan if all plates of the slot can pay, and what each of them is charged, by its number, nano-units.

    >>> asked = CityAsked(CityPlan(np.array([4, 4, 8]), plates=2, about=b""), charges=np.array([5, 3]))
    >>> asked.plan.plates
    2
    """

    plan: CityPlan
    charges: NDArray[np.int64]


class CityQuestion(Protocol):
    """What is asked of all plates of a slot together: sums of whole numbers over rows, to which noise is added.

    A row is a plate in a HAT. A plate's charge pays for whatever its rows can move the sums by, given its weights.

    >>> class Nothing:
    ...     def ask(self, counts: SlotCounts, policy: Policy) -> CityAsked | None:
    ...         return None
    ...
    ...     def sums(self, counts: SlotCounts, values: SlotValues, plan: CityPlan) -> tuple[int, ...]:
    ...         return ()
    ...
    ...     def answer(self, sums: tuple[int, ...], plan: CityPlan, bits: Bits) -> bytes:
    ...         return b""
    >>> question: CityQuestion = Nothing()
    """

    def ask(self, counts: SlotCounts, policy: Policy) -> CityAsked | None:
        """What is asked in this slot, by counts and whatever else is public; None where nothing is."""
        ...

    def sums(self, counts: SlotCounts, values: SlotValues, plan: CityPlan) -> tuple[int, ...]:
        """The sums over these rows, by the plan's weights of them; rows of weight 0 count nothing. Secret."""
        ...

    def answer(self, sums: tuple[int, ...], plan: CityPlan, bits: Bits) -> bytes:
        """The record: what the sums of the whole slot say with noise."""
        ...


def charge_city(
    asked: CityAsked | None, counts: SlotCounts, period: str, policy: Policy, ledger: Ledger
) -> CityPlan | None:
    """Charge the plates that can pay: the plan with the others' weights 0. None if too few can, or nothing is asked.

    >>> from udp_stream.ledger.memory import MemoryLedger
    >>> from udp_stream.testing import a_context, two_hats
    >>> charge_city(None, two_hats()[0], "1d", a_context().policy, MemoryLedger()) is None
    True
    """
    if asked is None:
        return None
    members = np.unique(counts.plate)
    least, terms = ceil(ADMITTED_MIN * members.size), _terms(asked, counts)
    admission = Admission(city_id(counts.start_ms, counts.end_ms), members, asked.charges[members], least, terms)
    (verdict,) = ledger.admit(period, policy.budget_nano, counts.plates, [admission])
    if verdict.terms != terms or not verdict.admitted.any():
        return None
    admitted = members[verdict.admitted]
    weights = np.where(np.isin(counts.plate, admitted), asked.plan.weights, 0)
    return replace(asked.plan, weights=weights, plates=admitted.size)


def slot_sums(question: CityQuestion | None, counts: SlotCounts, values: SlotValues, plan: SlotPlan) -> tuple[int, ...]:
    """The sums over the HATs of a slot, or of a shard's part of it, that the plan knows with these rows. Secret.

    Empty where the plan asks nothing, or where the settings have no question by now.

    >>> from udp_stream.testing import two_hats
    >>> counts, values = two_hats()
    >>> slot_sums(None, counts, values, SlotPlan.empty(counts))
    ()
    """
    if plan.city is None or question is None:
        return ()
    weights = np.zeros(counts.count.size, dtype=np.int64)
    for hat, at in enumerate(plan.find_all(counts.cells, row_digests(counts))):
        if at is not None:
            weights[counts.rows(hat)] = plan.city.weights[plan.hat_rows[at] : plan.hat_rows[at + 1]]
    return question.sums(counts, values, replace(plan.city, weights=weights))


def record_city(
    question: CityQuestion | None, sums: tuple[int, ...], plan: SlotPlan, entropy: Entropy, ledger: Ledger
) -> None:
    """Draw the answer to what the plan asks of the city, and record it, if none is recorded yet.

    `sums` are those of the whole slot; empty if a part of it was measured by somebody who does not ask. Nothing happens
    then, nor where the plan asks nothing.

    >>> from udp_stream.ledger.memory import MemoryLedger
    >>> from udp_stream.testing import SeededEntropy, two_hats
    >>> ledger = MemoryLedger()
    >>> record_city(None, (), SlotPlan.empty(two_hats()[0]), SeededEntropy(1), ledger)
    >>> ledger.progress().recorded
    0
    """
    if (city := plan.city) is None or question is None or not sums:
        return
    name = city_id(plan.start_ms, plan.end_ms)

    def draw(_: object) -> list[bytes]:
        ((_, bits),) = entropy.streams([name])
        return [question.answer(sums, city, bits)]

    draw_once(ledger, [name], draw)
    ledger.published([name])  # no reader waits for it


def _terms(asked: CityAsked, counts: SlotCounts) -> bytes:
    """A digest of all that the sums and their noise follow from, beside speeds."""
    hashed = blake2b(asked.plan.about, digest_size=16)
    for column in (asked.plan.weights, counts.plate, counts.hat_rows, counts.count, asked.charges):
        # Little-endian, so that the digest is the same on every machine.
        hashed.update(np.ascontiguousarray(column, "<i8").tobytes())
    hashed.update(counts.cells.astype("<u8").tobytes() + b"".join(counts.plates))
    return hashed.hexdigest().encode()
