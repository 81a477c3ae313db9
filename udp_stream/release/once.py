"""The road below every release, whatever it is of: charge, then draw, then record, each of them once per id.

It knows ids, plates, charges, terms and payloads as bytes. What is released, and how noise for it is drawn, is its
caller's: HATs (`charge.py`, `draw.py`), and whatever else gets an id of a kind of its own (`record.kind_of`).

1. `charge_once`. The ledger keeps the first verdict and the first terms of an id. Where it remembers other terms (a
   retry, a race), the caller asks again on those, so that what is drawn is what was charged.
2. `draw_once`. The ledger keeps the first payload of an id. What is recorded is looked up, the rest is drawn, and a
   second draw is dropped unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from udp_stream.errors import PrivacyRefused
from udp_stream.ledger.port import Admission, Ledger


@dataclass(frozen=True, slots=True)
class Charged:
    """What an id was charged: nano-epsilon of each member of its admission, 0 for those without enough budget.

    >>> asked = Admission("hat", np.array([0, 1]), np.array([4, 4]), 0, b"")
    >>> Charged(asked, np.array([4, 0])).charged > 0  # who takes part
    array([ True, False])
    """

    admission: Admission
    charged: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Drawn:
    """The payload of each id as the ledger holds it, and the ids that this call has recorded.

    >>> Drawn(payloads=(b"17", b"before"), made=frozenset({"query:stop:7"})).payloads[0]
    b'17'
    """

    payloads: tuple[bytes, ...]
    made: frozenset[str]


def charge_once(
    ledger: Ledger,
    period: str,
    budget_nano: int,
    plates: Sequence[bytes],
    admissions: Sequence[Admission],
    on_terms: Callable[[int, bytes], Admission],
) -> list[Charged]:
    """Charge each admission, in this order, or learn what it was charged before.

    `on_terms(i, terms)` gives admission i as it is on the terms that the ledger remembers; they must be its terms then.

    >>> from udp_stream.ledger.memory import MemoryLedger
    >>> ask = lambda terms: Admission("query:stop:7", np.array([0]), np.array([len(terms)]), 0, terms)
    >>> ledger, plates = MemoryLedger(), [b"plate"]
    >>> for terms in (b"long", b"longer"):
    ...     (found,) = charge_once(ledger, "May", 10, plates, [ask(terms)], lambda _, remembered: ask(remembered))
    ...     found.admission.terms, found.charged.tolist()
    (b'long', [4])
    (b'long', [4])
    """
    verdicts = ledger.admit(period, budget_nano, plates, admissions) if admissions else []
    found = [Charged(one, verdict.charged) for one, verdict in zip(admissions, verdicts, strict=True)]
    others = [i for i, verdict in enumerate(verdicts) if verdict.terms != admissions[i].terms]
    again = [on_terms(i, verdicts[i].terms) for i in others]
    # A ledger keeps the first terms for ever, so asking once more is enough.
    verdicts = ledger.admit(period, budget_nano, plates, again) if again else []
    for i, one, verdict in zip(others, again, verdicts, strict=True):
        if verdict.terms != one.terms:
            raise PrivacyRefused(f"the ledger remembers other terms of {one.release_id} each time it is asked")
        found[i] = Charged(one, verdict.charged)
    return found


def draw_once(ledger: Ledger, release_ids: Sequence[str], draw: Callable[[Sequence[int]], Sequence[bytes]]) -> Drawn:
    """The payload of each id: what is recorded, else what `draw` makes of it now.

    `draw` is given the positions of the ids that are not recorded, and returns their payloads; not called for none. The
    ledger raises PrivacyRefused for an id that was never charged.

    >>> from udp_stream.ledger.memory import MemoryLedger
    >>> ledger = MemoryLedger()
    >>> _ = ledger.admit("May", 10, [b"plate"], [Admission("query:stop:7", np.array([0]), np.array([4]), 0, b"")])
    >>> draw_once(ledger, ["query:stop:7"], lambda todo: [b"17"])
    Drawn(payloads=(b'17',), made=frozenset({'query:stop:7'}))
    >>> draw_once(ledger, ["query:stop:7"], lambda todo: [b"18"])
    Drawn(payloads=(b'17',), made=frozenset())
    """
    known = ledger.recorded(release_ids)
    payloads = {i: payload for i, payload in enumerate(known) if payload is not None}
    todo = [i for i in range(len(release_ids)) if i not in payloads]
    if not todo:
        return Drawn(tuple(payloads[i] for i in range(len(release_ids))), frozenset())
    drawn = draw(todo)
    kept = ledger.record([(release_ids[i], payload) for i, payload in zip(todo, drawn, strict=True)])
    payloads |= zip(todo, kept, strict=True)
    made = (release_ids[i] for i, ours, first in zip(todo, drawn, kept, strict=True) if ours == first)
    return Drawn(tuple(payloads[i] for i in range(len(release_ids))), frozenset(made))
