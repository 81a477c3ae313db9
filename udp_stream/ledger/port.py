"""Promises: what the core asks of the world. `tests/contract/machine.py` holds every ledger to them.

**The ledger** is the only state besides open windows. Its promises:

1. `admit` is atomic and idempotent per release id. The first call decides, for each plate, CONT
   (admitted) or HALT by what is left of its budget in the period, and charges the admitted plates
   at once, all or none of a plate's amount. If fewer than `min_admitted` plates have enough left,
   none is admitted or charged. A repeat returns the remembered verdict and terms, charges nothing,
   and never admits a plate that the first call did not.
2. No balance ever exceeds its budget, whatever runs at the same time; a charge is never refunded.
   In a span of a rolling budget (`rules.py`, by its name) what must not exceed it is the sum of
   balances in any window.
3. `record` keeps the first payload of a release id for ever and returns it. An id that was never
   admitted cannot be recorded (`PrivacyRefused`): charge before you draw.
4. What a call has returned survives the death of the process and of the machine (synced to disk).
5. The balance of a plate is the sum of its remembered charges: `entries`, in the order in which
   they were charged, can rebuild it, and `verify` does.
6. A repeat gets the first verdict, also if it asks in another period or under another budget. Twice
   the same id in a single call counts as a repeat. A call to `record` that is refused for an id
   that was never admitted keeps none of its payloads. `published` ignores ids that have no payload.
7. A ledger is bound to the key of its plates' hashes: under another key every plate would look new.
   Like every fact about a ledger, the first one noted is kept for ever.
8. A call takes what a slot may hold: any number of HATs and payloads, and in one HAT 20 million
   plates.
9. What is archived stays decided: from `close_before` on nothing new is admitted or recorded under
   an id of that time or earlier (`rules.end_of`), in any process (`PrivacyRefused`), but for
   withdrawals. Only such entries can be dropped, with the balances of their period, which is over.
10. A ledger that went back in time is noticed: `mark` is called before anything is published, and
    what the mark says is
   kept apart from the ledger, where there is a place for it.

Plates appear here only as keyed hashes (`bytes`), distinct and of equal length within a call;
amounts and budgets stay below 2**53 nano-units. A call that breaks these rules raises ValueError
and charges no plate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec

from udp_stream.base.arrays import NO_INTEGERS, Flags, Integers

LAST_NAME = "\U0010ffff"
"""Behind the name of every period."""

Bits = Callable[[int], bytes]
"""A source of random bits: `bits(n)` gives n fresh, independent, uniform bytes."""


class Entropy(Protocol):
    """Hands out bits for the releases of a slot.

    >>> class System:
    ...     def streams(self, release_ids: Sequence[str]) -> Iterator[tuple[slice, Bits]]:
    ...         yield slice(len(release_ids)), os.urandom
    >>> import os
    >>> [(run, len(bits(8))) for run, bits in System().streams(["a", "b"])]
    [(slice(None, 2, None), 8)]
    """

    def streams(self, release_ids: Sequence[str]) -> Iterator[tuple[slice, Bits]]:
        """Cut the releases into consecutive runs, each with the bits for its noise; seeded ones
        have a run for each release."""
        ...


@dataclass(frozen=True, slots=True)
class Admission:
    """A HAT asks to charge its plates.

    `members` index the `plates` of the call; `charges` are nano-units, each positive.
    `terms` is what the planner fixed before it knew the balances (the epsilons); it is remembered
    with the verdict, the first wins. `allowances`, where they are given, are the most that each
    member may have been charged, this admission included. The call's budget holds beside them.

    >>> from udp_stream.ledgers.sqlite import MemoryLedger
    >>> import numpy as np
    >>> hat = Admission("hat", members=np.array([2, 0]), charges=np.array([3, 4]), min_admitted=1, terms=b"")
    >>> MemoryLedger().admit("May", 3, [b"a", b"b", b"c"], [hat])[0].charged
    array([3, 0])
    """

    release_id: str
    members: Integers
    charges: Integers
    min_admitted: int
    terms: bytes
    allowances: Integers | None = None

    @classmethod
    def of_nobody(cls, release_id: str, terms: bytes = b"", min_admitted: int = 0) -> Admission:
        """An id that charges nobody is admitted too: a ledger records nothing else."""
        return cls(release_id, NO_INTEGERS, NO_INTEGERS, min_admitted, terms)


class Verdict(NamedTuple):
    """The decision of the ledger for a HAT, which it remembers: `charged[i]` nano-units of member
    i, 0 where HALT.

    >>> import numpy as np
    >>> Verdict(charged=np.array([3, 0]), terms=b"").admitted
    array([ True, False])
    """

    charged: Integers
    terms: bytes

    @property
    def admitted(self) -> Flags:
        return self.charged > 0


class Balance(NamedTuple):
    """Charges of plates in a period: nano-units, and in how many charges (a HAT has one).

    >>> from udp_stream.ledgers.sqlite import MemoryLedger
    >>> MemoryLedger().balances("May", [b"plate"])
    Balance(charged=array([0]), charges=array([0]))
    """

    charged: Integers
    charges: Integers


@dataclass(frozen=True, slots=True)
class LedgerView:
    """The content of a ledger, read anew: the payload of each release asked for, what it knows of
    itself, the charged periods that may overlap one, what plates were charged of its budget, and how
    far it has come.

    >>> from udp_stream.ledgers.sqlite import MemoryLedger
    >>> MemoryLedger().view("May", [b"plate"], ["hat"]).payloads
    (None,)
    """

    payloads: tuple[bytes | None, ...]
    meta: Mapping[str, str]
    periods: list[str]
    balance: Balance
    progress: Progress


@dataclass(frozen=True, slots=True)
class Entry:
    """A remembered admission: who was charged what, for which release, in which period, under
    which budget.

    >>> import numpy as np
    >>> entry = Entry("hat", "May", 10, (b"a", b"b"), np.array([4, 0]), payload=None, published=False)
    >>> dict(zip(entry.plates, entry.charged.tolist()))
    {b'a': 4, b'b': 0}
    """

    release_id: str
    period: str
    budget: int
    plates: tuple[bytes, ...]
    charged: Integers
    payload: bytes | None
    published: bool
    terms: bytes = b""


class Progress(NamedTuple):
    """How far a ledger has come: HATs ever admitted, payloads recorded; ids of the oldest and
    newest admission.

    >>> from udp_stream.ledgers.sqlite import MemoryLedger
    >>> MemoryLedger().progress()
    Progress(admitted=0, recorded=0, oldest=None, newest=None)
    """

    admitted: int
    recorded: int
    oldest: str | None
    newest: str | None


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """How far a ledger had come when something was last published from it: see `rules.py`.

    `digest` is that of the record of `release_id`, if one is named. `era` counts what was accepted
    as forgotten.

    >>> before = Mark("5eed", era=0, admitted=8, recorded=6)
    >>> Mark("5eed", era=0, admitted=7, recorded=6).at_least(before)
    False
    >>> Mark("5eed", era=1, admitted=0, recorded=0).at_least(before)
    True
    """

    ledger_id: str
    era: int
    admitted: int
    recorded: int
    release_id: str = ""
    digest: bytes = b""

    def at_least(self, other: Mark) -> bool:
        if self.era != other.era:
            return self.era > other.era
        return self.admitted >= other.admitted and self.recorded >= other.recorded


class Ledger(Protocol):
    """The promises of this file, as calls. A call is one round trip, or few, however many HATs it
    carries.

    >>> from udp_stream.ledgers.sqlite import MemoryLedger
    >>> class Counting(MemoryLedger):
    ...     calls = 0
    ...
    ...     def record(self, releases: Sequence[tuple[str, bytes]]) -> list[bytes]:
    ...         self.calls += 1
    ...         return super().record(releases)
    >>> ledger: Ledger = Counting()
    >>> ledger.record([]), ledger.calls, ledger.verify()
    ([], 1, [])
    """

    def recorded(self, release_ids: Sequence[str]) -> list[bytes | None]:
        """The recorded payload of each id, or None."""
        ...

    def view(self, period: str, plates: Sequence[bytes], release_ids: Sequence[str]) -> LedgerView:
        """All that a slot's release has to know, in a single request: `recorded`, `meta`, `progress`,
        `periods`, and the balances of whole windows; of the period "" neither of the last two. Its
        parts may be of different moments of the call."""
        ...

    def balances(self, period: str, plates: Sequence[bytes]) -> Balance:
        """The sum of each plate's charges in this period alone; `rules.budget_balances` looks at
        whole windows."""
        ...

    def admit(
        self, period: str, budget: int, plates: Sequence[bytes], admissions: Sequence[Admission]
    ) -> list[Verdict]:
        """Charge the plates of each HAT, in the order given, or return what was decided before
        (promises 1, 2)."""
        ...

    def record(self, releases: Sequence[tuple[str, bytes]]) -> list[bytes]:
        """Record payloads; return what is recorded under each id: its first payload (promise 3)."""
        ...

    def published(self, release_ids: Sequence[str]) -> None:
        """Remember that these payloads have reached their readers."""
        ...

    def unpublished(self) -> Iterator[tuple[str, bytes]]:
        """Recorded payloads never marked as published, oldest first; they may be published while
        iterating."""
        ...

    def charged_by_period(self, plate: bytes) -> dict[str, int]:
        """Nano-units that the plate was charged, by period."""
        ...

    def entries(self) -> Iterator[Entry]:
        """Every admission ever made, oldest first; those made while iterating may be among them."""
        ...

    def newest(self) -> Iterator[str]:
        """The id of every admission, newest first."""
        ...

    def verify(self) -> list[str]:
        """Recompute every balance from the entries: a sentence for each contradiction, none if all
        is well."""
        ...

    def bind(self, fingerprint: str) -> None:
        """Remember the fingerprint of the plates' key at first use; raises PrivacyRefused if it is
        another."""
        ...

    def note(self, name: str, text: str) -> str:
        """Remember a fact about the ledger, by its name, for ever; returns the first text kept
        under the name."""
        ...

    def meta(self) -> dict[str, str]:
        """Facts of the ledger about itself: `schema`, `ledger_id`, `made`, `key_fingerprint` once
        bound, and notes."""
        ...

    def progress(self) -> Progress:
        """How far it has come, at a single moment."""
        ...

    def mark(self, release_id: str) -> Mark:
        """Raise the mark that is kept apart from the ledger, on disk when this returns.
        `release_id` is about to be published. PrivacyRefused if the ledger is behind the mark."""
        ...

    def compare(self, mark: Mark | None = None) -> None:
        """Raise PrivacyRefused if the ledger is behind the mark that is kept, or behind this one
        (promise 10)."""
        ...

    def close_before(self, end_s: int) -> int:
        """Nothing new of this time (Unix seconds) or earlier from now on; returns the latest such
        time ever given."""
        ...

    def drop(self, period: str, release_ids: Sequence[str]) -> None:
        """Take away all that there is of a period that is over: these entries, their records, and
        its balances.

        They are kept elsewhere. Interrupted, it is to be called again. ValueError if an id is of a
        time that is open.
        """
        ...

    def periods(self, first: str = "", last: str = LAST_NAME) -> list[str]:
        """Every period in which some plate was charged, sorted; of names from the first to the
        last, both included."""
        ...
