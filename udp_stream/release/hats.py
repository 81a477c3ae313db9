"""One HAT on its way through a release: the type that both halves of the road hand on.

A HAT has three forms. `Terms` are stored: the ledger keeps them with the verdict. A `HatPlan` is computed from terms
and counts, and follows from them again. A `HatInFlight` has both, what was charged, and what is recorded. Its states
are those of `lifecycle.HAT_LIFE`. Each step gives a new value, and none of them leads back. A `SlotPlan` has the terms
and charges of all HATs of a slot as columns, to travel.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from udp_stream.ledger.port import Admission
from udp_stream.lifecycle import HAT_LIFE, HatState, advance
from udp_stream.planning.plan import HatPlan, Terms
from udp_stream.release.record import Status, release_id
from udp_stream.windows.tables import SlotCounts, cell_name

_WITHHELD: dict[str, Status] = {
    "few_plates": "withheld_few_plates",
    "uninformative": "withheld_uninformative",
    "unplanned": "withheld_unplanned",
}

NO_ROWS = np.array([], dtype=np.int64)


class HatInFlight(msgspec.Struct, frozen=True, eq=False):
    """HAT `number` of a slot: its id, how far it has come, and what was decided.

    `rows` are its rows in `SlotCounts`. `charged` has nano-epsilon for each of them: 0 for those that are left out, by
    suppression or for lack of budget. `plan` is for the rows that are offered while the HAT is new, and for
    those that are admitted once it is charged; None where nothing is to be drawn. `payload` is what the ledger holds.

    >>> from udp_stream.testing import two_hats
    >>> new = hats_of(two_hats()[0])[1]
    >>> withheld = new.withheld(Terms(withheld="few_plates"))
    >>> withheld.status, withheld.charge_nano, withheld.recorded(b"record").published().state.value
    ('withheld_few_plates', 0, 'published')
    >>> new.published()  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    udp_stream.errors.UdpStreamError: expected one of [...] for what is new, got 'published'
    """

    number: int
    release_id: str
    cell: str
    rows: slice
    terms: Terms
    charged: NDArray[np.int64]
    state: HatState = HatState.NEW
    plan: HatPlan | None = None
    payload: bytes | None = None

    @property
    def admitted(self) -> NDArray[np.bool_]:
        """Which of its rows contribute."""
        return self.charged > 0

    @property
    def charge_nano(self) -> int:
        """The most that one of its plates was charged: for what is released, if anything is."""
        return 0 if self.plan is None else int(self.charged.max())

    @property
    def status(self) -> Status:
        """What its record says of it."""
        if self.plan is not None:
            return "released"
        return _WITHHELD.get(self.terms.withheld, "withheld_budget")

    def with_price(self, terms: Terms, plan: HatPlan | None) -> HatInFlight:
        """Still new: these terms, and the plan for the rows that they offer, if they offer any."""
        return replace(self, terms=terms, plan=plan)

    def admission(self, counts: SlotCounts, min_plates: int, written: bytes | None = None) -> Admission:
        """Each offered plate's own charge; of a HAT that is withheld, none. `written` are its terms as remembered."""
        terms = msgspec.json.encode(self.terms) if written is None else written
        if self.plan is None:
            return Admission(self.release_id, NO_ROWS, NO_ROWS, min_plates, terms)
        least = max(min_plates, self.terms.admitted_min)
        offered = self.terms.select_offered(counts.plate[self.rows])
        allowed = np.full(offered.size, self.terms.allowance_nano) if self.terms.allowance_nano else None
        return Admission(self.release_id, offered, self.plan.charges, least, terms, allowed)

    def with_charges(self, charged: NDArray[np.int64]) -> HatInFlight:
        """What the ledger charged each offered row."""
        rows = self.charged if self.plan is None else self.terms.restore_rows(charged, self.charged.size)
        return replace(self, state=self._after("charged" if rows.any() else "withheld"), charged=rows)

    def charged_by_plan(self, terms: Terms, charged: NDArray[np.int64], plan: HatPlan) -> HatInFlight:
        """Charged, as the slot's plan says: each row's charge, and the plan for the charged rows."""
        return replace(self, state=self._after("charged"), terms=terms, charged=charged, plan=plan)

    def withheld(self, terms: Terms, charged: NDArray[np.int64] | None = None) -> HatInFlight:
        """Nothing is drawn for it, whatever some of its rows were charged."""
        rows = self.charged if charged is None else charged
        return replace(self, state=self._after("withheld"), terms=terms, charged=rows, plan=None)

    def recorded(self, payload: bytes) -> HatInFlight:
        """What the ledger holds from now on: ours, or an earlier one."""
        return replace(self, state=self._after("recorded"), payload=payload)

    def published(self) -> HatInFlight:
        """Readers have it."""
        return replace(self, state=self._after("published"))

    def _after(self, event: str) -> HatState:
        return advance(HAT_LIFE, self.state, event)


def hats_of(counts: SlotCounts) -> list[HatInFlight]:
    """The HATs of a slot, new, by cell."""
    names, nothing, unasked = map(cell_name, counts.cells.tolist()), np.zeros_like(counts.count), Terms()
    return [
        HatInFlight(number, release_id(name, counts.start_ms, counts.end_ms), name, rows, unasked, nothing[rows])
        for number, (name, rows) in enumerate(zip(names, counts.each_rows(), strict=True))
    ]


def ids_of(hats: Sequence[HatInFlight]) -> list[str]:
    """Their release ids."""
    return [hat.release_id for hat in hats]
