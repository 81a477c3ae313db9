"""Runs under "swap-values", recorded and played again with another plate's speeds.

Neighbours differ in the speeds of one plate. Runs of the second get the noisy integers of the first,
so all that may depend on outputs is the same, byte for byte. What is left is the exact loss: how
likely each integer was for either, in closed form.
"""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest

from tests.failing import Died
from udp_stream.base.units import NANO
from udp_stream.ledger.ids import CITY, CITY_HOUR, Id, kind_of
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.mechanisms.base import Query
from udp_stream.release import city
from udp_stream.release import pipeline as estimate
from udp_stream.testing import SeededEntropy


class Named(SeededEntropy):
    drawing: ClassVar[str] = ""

    def streams(self, release_ids):
        for run, bits in super().streams(release_ids):
            (Named.drawing,) = release_ids[run]
            yield run, bits


class Watched:
    """A ledger, with the bytes of all that it was asked to charge, call by call, without the norms;
    and which run has recorded each id. A process dies once it has recorded so many HATs of a call."""

    def __init__(self):
        self.kept, self.calls = MemoryLedger(), []
        self.by, self.run, self.dies_at = {}, 0, None

    def __getattr__(self, name):
        return getattr(self.kept, name)

    def admit(self, period, budget, plates, admissions):
        asked = [
            (one.release_id, one.members.tobytes(), one.charges.tobytes(), one.min_admitted, one.terms,
             None if one.allowances is None else one.allowances.tobytes())
            for one in admissions if kind_of(one.release_id) in ("hat", CITY, CITY_HOUR)
        ]  # fmt: skip
        assert len(asked) == len(admissions) or not any(one.members.size for one in admissions)
        if asked:
            self.calls.append((period, budget, tuple(plates), asked))
        return self.kept.admit(period, budget, plates, admissions)

    def record(self, releases):
        is_mortal = kind_of(releases[0][0]) == "hat" and self.dies_at is not None
        some = releases[: self.dies_at] if is_mortal else releases
        for id_, _ in some:
            self.by.setdefault(id_, self.run)
        kept = self.kept.record(some)
        if is_mortal:
            raise Died
        return kept

    def asked_in(self, start_s):
        return [one for call in self.calls for one in call[3] if Id.of(one[0]).start == start_s]

    def slots(self):
        return sorted({Id.of(one[0]).start for call in self.calls for one in call[3]})


@dataclass
class Played:
    """All runs on one ledger: of each run and release the queries and what was made of them; and
    what was published."""

    ledger: Watched = field(default_factory=Watched)
    queries: dict[tuple[int, str], list[Query]] = field(default_factory=dict)
    noisy: dict[tuple[int, str], list[Any]] = field(default_factory=dict)
    payloads: list[bytes] = field(default_factory=list)


def played(
    runs,
    go,
    given=None,
    steer=None,
):
    """`go(run, this)` for each of the runs, until its end or its death. `given` noisy integers replace
    its own, `steer` changes drawn noise."""
    this, real = Played(), estimate.noisy_integers

    def noisy(queries, family, bits):
        at = this.ledger.run, Named.drawing
        drawn = real(queries, family, bits) if given is None else given.noisy[at]
        if steer is not None:
            exact = [one.integers for one in queries]
            drawn = [one + steer(out - one) for one, out in zip(exact, drawn, strict=True)]
        this.queries[at], this.noisy[at] = queries, drawn
        return drawn

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimate, "noisy_integers", noisy)
        patch.setattr(city, "noisy_integers", noisy)
        for number, run in enumerate(runs):
            this.ledger.run, this.ledger.dies_at = number, getattr(run, "dies_at", None)
            try:
                go(run, this)
            except Died:
                continue
    return this


@dataclass(frozen=True)
class Audit:
    """In the measure's nano-units: what the records tell, what those on this history may tell, and
    what the plate was charged.

    In rho the first is normal about the second, with twice that as its variance, release by
    release: those of a day add up, also where later scales follow from earlier outputs.
    """

    seen: float
    most: float
    charged: int
    first: Played

    @property
    def off(self):
        """In rho, what they tell in deviations from what they may."""
        return (self.seen - self.most) / math.sqrt(2 * self.most * NANO)


def audited(first, second, plate, kind=None):
    """The loss of what is recorded, or of records of a kind alone, beside the charges of the plate
    with this hash."""
    assert first.ledger.by == second.ledger.by and list(first.queries) == list(second.queries)
    in_rho = first.ledger.calls[0][0].endswith(" in rho")
    seen = most = 0.0
    for id_, run in first.ledger.by.items():
        if kind not in (None, kind_of(id_)):
            continue
        at = run, id_
        for a, b, out in zip(
            first.queries.get(at, ()),
            second.queries.get(at, ()),
            first.noisy.get(at, ()),
            strict=True,
        ):
            assert a.t.tolist() == b.t.tolist() and a.s.tolist() == b.s.tolist()
            moved, near, far = (
                np.abs(one) * a.s / a.t
                for one in (a.integers - b.integers, out - a.integers, out - b.integers)
            )
            most += float((moved**2 / 2).sum() if in_rho else moved.sum())
            seen += float(((far**2 - near**2) / 2).sum() if in_rho else (far - near).sum())
    charges = [_charged(one.ledger, plate, kind) for one in (first, second)]
    assert charges[0] == charges[1]
    return Audit(seen * NANO, most * NANO, charges[0], first)


def _charged(ledger, plate, kind):
    if kind is None:
        return sum(ledger.charged_by_period(plate).values())
    entries = [one for one in ledger.entries() if kind_of(one.release_id) == kind]
    return sum(
        nano
        for entry in entries
        for one, nano in zip(entry.plates, entry.charged.tolist(), strict=True)
        if one == plate
    )
