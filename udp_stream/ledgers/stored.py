"""The part of the promises of `port.py` that is the same over every store: who is charged, to which
key a ledger is bound, its high-water mark.

**The charging rule** is here (`rules.decide_in_order`), and a store has none of it. A store keeps
charges *if what they were decided from still holds*, at once and all or none (`_commit`); else it
answers with what it has instead, and the call is decided again. So a call over Redis is one round
trip, as nothing has to be asked before: the first decision is made as if no plate had been charged
and no HAT were known.

That is sound because balances only grow. A decision stands as long as everybody who pays can still
pay: `Charges.room` is what a plate may have been charged before. Whoever was halted stays halted.
So writers who charge the same plates at the same time do not disturb each other while there is
budget left for both. A decision is made again only if

* an id of the call is remembered by now; each try has fewer unknown ids;
* charges of others have used up the room of a plate. A plate's budget is used up once;
* a rolling budget: others have charged our plates in another span of a window, or a new one. Of
  these the store compares all that the decision was made from.

Each of these is the progress of another writer, and ids and budgets are finite: however many
writers there are, a call ends.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from udp_stream.errors import DependencyUnavailable, PrivacyRefused
from udp_stream.ledger.port import Admission, Balance, Ledger, LedgerView, Mark, Verdict
from udp_stream.ledger.rules import (
    Decision,
    column,
    decide_in_order,
    names_around,
    require_valid,
    span_of,
    view_of,
    windows_around,
)
from udp_stream.ledgers.keys import compare, raise_mark

TRIES_MAX = 1000
"""Decisions of a call while others charge its plates; each of them has used up a plate's budget, or
has charged in another span."""


class NearSpans(NamedTuple):
    """Other spans of a rolling budget as they were found: their names, the `others` among them that
    share a window with ours, these spans' balances (others x plates x 2), the most that each plate
    was charged in any one window, and how many HATs had been admitted before this was read. Empty
    in a calendar's period."""

    listed: Sequence[str]
    others: Sequence[str]
    balances: NDArray[np.int64]
    most: NDArray[np.int64]
    admitted: int


class ChargedCall(NamedTuple):
    """HATs to be remembered, and the plates that pay for them: what each pays, in how many charges,
    and the largest balance of the period under which this was decided.

    `near` has the balances of these plates alone.
    """

    period: str
    budget: int
    decided: dict[str, Decision]
    plates: list[bytes]
    asked: NDArray[np.int64]
    times: NDArray[np.int64]
    room: NDArray[np.int64]
    near: NearSpans


class Conflict(NamedTuple):
    """The state that a store has otherwise: HATs of the call that are known, or balances of the
    plates that pay; neither where spans have changed."""

    known: dict[str, Decision]
    balances: NDArray[np.int64] | None = None


class StoredLedger(Ledger):
    """A `port.Ledger` over a store, which a subclass is: its own calls, and those that begin with
    an underscore here. `place` is where it is, for people."""

    place: object

    def __init__(self, id_file: str | os.PathLike[str] | None = None) -> None:
        self._id_file = id_file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _balances(self, periods: Sequence[str], plates: Sequence[bytes]) -> NDArray[np.int64]:
        """Amounts and numbers of charges: periods x plates x 2."""

    @abstractmethod
    def _commit(self, call: ChargedCall) -> Conflict | None:
        """Charge and remember all of it, durably, if it still holds.

        It holds if no HAT of it is known, no plate was charged more than its room, and the near
        spans are the same. PrivacyRefused if a HAT is of a time that is closed.
        """

    def _writing(self) -> AbstractContextManager[object]:
        """Around reading and committing, where a store has locks."""
        return nullcontext()

    def _batches(
        self, _period: str, admissions: Sequence[Admission]
    ) -> Sequence[Sequence[Admission]]:
        """HATs of a period, cut into what the store takes at once."""
        return [admissions]

    def bind(self, fingerprint: str) -> None:
        if (bound := self.note("key_fingerprint", fingerprint)) != fingerprint:
            raise PrivacyRefused(
                f"expected the plate key {bound} that the ledger at {self.place} was bound to, got {fingerprint}: "
                "restore the key file"
            )

    def mark(self, release_id: str) -> Mark:
        return raise_mark(self, self._id_file, self.place, release_id)

    def compare(self, mark: Mark | None = None) -> None:
        compare(self, self._id_file, self.place, mark)

    def view(self, period: str, plates: Sequence[bytes], release_ids: Sequence[str]) -> LedgerView:
        return view_of(self, period, plates, release_ids)

    def balances(self, period: str, plates: Sequence[bytes]) -> Balance:
        (table,) = self._balances([period], plates)
        return Balance(charged=table[:, 0].copy(), charges=table[:, 1].copy())

    def charged_by_period(self, plate: bytes) -> dict[str, int]:
        periods = self.periods()
        sums = self._balances(periods, [plate])[:, 0, 0].tolist()
        return {period: amount for period, amount in zip(periods, sums, strict=True) if amount}

    def admit(
        self, period: str, budget: int, plates: Sequence[bytes], admissions: Sequence[Admission]
    ) -> list[Verdict]:
        """Charge the plates of each HAT, in the order given, or return what was decided before.

        ValueError, charging no plate, if a rule of `require_valid` is broken. PrivacyRefused if a
        HAT is of a time that is closed; where a store takes a call in several batches, those before
        are kept.
        """
        require_valid(budget, plates, admissions)
        packed = column(plates)
        known: dict[str, Decision] = {}
        batches = self._batches(period, admissions)
        for batch in batches:
            if len(batches) == 1:
                self._admit(period, budget, plates, batch, known)
            else:
                self._admit(period, budget, *_narrowed(plates, batch), known)
        return [
            known[one.release_id].recalled(packed[one.members].tobytes(), one.members.size)
            for one in admissions
        ]

    def _admit(
        self,
        period: str,
        budget: int,
        plates: Sequence[bytes],
        batch: Sequence[Admission],
        known: dict[str, Decision],
    ) -> None:
        """Add the decision of each HAT to those known."""
        packed = column(plates)
        balances = np.zeros(len(plates), np.int64)
        with self._writing():
            for _ in range(TRIES_MAX):
                fresh: dict[str, Admission] = {}
                for one in batch:
                    if one.release_id not in known:
                        fresh.setdefault(one.release_id, one)
                if not fresh:
                    return
                near = self._near(period, plates)
                charges = decide_in_order(balances + near.most, budget, list(fresh.values()))
                decided = {
                    one.release_id: Decision(packed[one.members].tobytes(), charged, one.terms)
                    for one, charged in zip(fresh.values(), charges.charged, strict=True)
                }
                paying = np.flatnonzero(charges.times)
                conflict = self._commit(
                    ChargedCall(
                        period,
                        budget,
                        decided,
                        [plates[i] for i in paying.tolist()],
                        charges.asked[paying],
                        charges.times[paying],
                        (charges.room - near.most)[paying],
                        near._replace(balances=near.balances[:, paying]),
                    )
                )
                if conflict is None:
                    known |= decided
                    return
                known |= conflict.known
                if conflict.balances is not None:
                    balances[paying] = np.maximum(balances[paying], conflict.balances)
        raise DependencyUnavailable(
            f"the ledger at {self.place}: others have charged the plates of {period} again and again, {TRIES_MAX} "
            "times: start again"
        )

    def _near(self, period: str, plates: Sequence[bytes]) -> NearSpans:
        bounds = names_around(period)
        admitted = self.progress().admitted if bounds else 0
        found = self.periods(*bounds) if bounds else []
        listed = [name for name in found if name != period and span_of(name)]
        windows = windows_around(period, listed)
        balances = self._balances(windows.others, plates)
        most = windows.most(balances[:, :, 0])
        return NearSpans(listed, windows.others, balances, most, admitted)


def _narrowed(
    plates: Sequence[bytes], batch: Sequence[Admission]
) -> tuple[list[bytes], list[Admission]]:
    """The plates of some HATs alone, and these HATs by them."""
    members = np.concatenate([one.members for one in batch])
    named, places = np.unique(members, return_inverse=True)
    starts = np.cumsum([one.members.size for one in batch])[:-1]
    return [plates[i] for i in named.tolist()], [
        replace(one, members=place)
        for one, place in zip(batch, np.split(places, starts), strict=True)
    ]
