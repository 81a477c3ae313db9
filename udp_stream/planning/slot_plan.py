"""The plan of a slot: for each HAT its terms, and what the ledger charged each of its plates.

It is made once for all shards (`road.plan_slot`) and read by each shard for its own HATs. It names no plate and holds
no speed: rows are in the canonical order of `SlotCounts`. A digest of their plates and numbers of samples tells a shard
whether its rows are the same. A HAT whose digest differs is not admitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from udp_stream.planning.hat_plan import HatPlan
from udp_stream.planning.terms import Terms
from udp_stream.windows.tables import SlotCounts

DIGEST_BYTES = 8
"""Of the plates in a HAT, and of a plan. Against mistakes, not attackers: who can write plans can write charges."""


@dataclass(frozen=True, slots=True)
class CityPlan:
    """What is asked of the whole city in a slot (`release/whole_city.py`): row by row what it weighs in the sums.

    0 weigh rows of plates that take no part; `plates` take part in all. `about` is the question's own: what its sums
    and their noise follow from beside the weights.

    >>> CityPlan(np.array([26214, 0]), plates=1, about=b"").for_rows(np.array([True, False])).weights.tolist()
    [26214]
    """

    weights: NDArray[np.int64]
    plates: int
    about: bytes

    def for_rows(self, rows: NDArray[np.bool_]) -> CityPlan:
        """The plan of some of the rows."""
        return replace(self, weights=self.weights[rows])


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """HAT h is `cells[h]` (ascending); `charged` has its rows at `hat_rows[h]` to `hat_rows[h + 1]`, in nano-epsilon.

    0 was charged to rows that were suppressed or could not pay. `priced`, where it is at hand, are the plans for the
    rows that were offered, which charges came from; they follow from counts and terms, and do not travel. `city` is
    what is asked of the whole city, if anything.

    >>> rows = dict(hat_rows=np.array([0, 1]), plate=np.array([0]), count=np.array([4]), repeats=0)
    >>> counts = SlotCounts(0, 3_600_000, (b"a",), np.array([7], np.uint64), **rows)
    >>> columns = counts.cells, counts.hat_rows, tuple(row_digests(counts)), (Terms(),), np.array([5])
    >>> plan = SlotPlan(0, 3_600_000, *columns)
    >>> plan.find(7, plan.digests[0]), plan.find(7, b"other row"), plan.charged_rows(0).tolist()
    (0, None, [5])
    """

    start_ms: int
    end_ms: int
    cells: NDArray[np.uint64]
    hat_rows: NDArray[np.int64]
    digests: tuple[bytes, ...]
    terms: tuple[Terms, ...]
    charged: NDArray[np.int64]
    priced: tuple[HatPlan | None, ...] | None = None
    city: CityPlan | None = None

    @property
    def is_measured(self) -> bool:
        """Whether something of all plates' speeds has to be known before any of its HATs is drawn."""
        return self.in_balls or self.city is not None

    @property
    def in_balls(self) -> bool:
        """Whether any of its HATs is released with factors of the plates' clips (`mechanisms/ball.py`)."""
        return any(one.in_ball for one in self.terms)

    @classmethod
    def empty(cls, counts: SlotCounts) -> SlotPlan:
        """A plan without HATs for the slot of these counts."""
        none = np.empty(0, dtype=np.int64)
        return cls(counts.start_ms, counts.end_ms, none.astype(np.uint64), np.zeros(1, np.int64), (), (), none, ())

    def find(self, cell: int, digest: bytes) -> int | None:
        """The number of a cell's HAT, if it is known and has these rows."""
        return self.find_all(np.array([cell], dtype=np.uint64), [digest])[0]

    def find_all(self, cells: NDArray[np.uint64], digests: Sequence[bytes]) -> list[int | None]:
        """As `find`, for many HATs at once."""
        places = np.searchsorted(self.cells, cells)
        # A cell beyond the last one has a place behind the end, which must not be read.
        there = places < self.cells.size
        there[there] = self.cells[places[there]] == cells[there]
        return [
            at if is_there and self.digests[at] == digest else None
            for at, is_there, digest in zip(places.tolist(), there.tolist(), digests, strict=True)
        ]

    def charged_rows(self, hat: int) -> NDArray[np.int64]:
        """What each row of a HAT was charged."""
        return self.charged[self.hat_rows[hat] : self.hat_rows[hat + 1]]

    def hats_in_balls(self, counts: SlotCounts) -> dict[bytes, int]:
        """In how many of its HATs each plate was charged that share the plate's clip; `counts` of HATs that it knows.

        HATs that it does not know with these rows do not count.
        """
        hats: dict[bytes, int] = {}
        for hat, at in enumerate(self.find_all(counts.cells, row_digests(counts))):
            if at is not None and self.terms[at].in_ball:
                for plate in counts.plate[counts.rows(hat)][self.charged_rows(at) > 0].tolist():
                    hats[counts.plates[plate]] = hats.get(counts.plates[plate], 0) + 1
        return hats

    def with_priced(self, made: SlotPlan) -> SlotPlan:
        """The same plan, with the priced HATs of `made` wherever both plans agree on a HAT."""
        if made.priced is None:
            return self
        found = made.find_all(self.cells, self.digests)
        priced = tuple(
            made.priced[at] if at is not None and made.terms[at] == terms else None
            for at, terms in zip(found, self.terms, strict=True)
        )
        return replace(self, priced=priced)

    def for_hats(self, hats: NDArray[np.bool_]) -> SlotPlan:
        """The plan of some of its HATs only."""
        sizes, chosen = np.diff(self.hat_rows), np.flatnonzero(hats).tolist()
        return replace(
            self,
            cells=self.cells[hats],
            hat_rows=np.append(0, np.cumsum(sizes[hats])),
            digests=tuple(self.digests[hat] for hat in chosen),
            terms=tuple(self.terms[hat] for hat in chosen),
            charged=self.charged[np.repeat(hats, sizes)],
            priced=None if self.priced is None else tuple(self.priced[hat] for hat in chosen),
            city=None if self.city is None else self.city.for_rows(np.repeat(hats, sizes)),
        )


def row_digests(counts: SlotCounts) -> list[bytes]:
    """For each HAT, a digest of its rows: plates (keyed hashes of one length) and their numbers of samples.

    >>> rows = dict(hat_rows=np.array([0, 1, 2]), plate=np.array([0, 0]), count=np.array([4, 4]), repeats=0)
    >>> one, other = row_digests(SlotCounts(0, 3_600_000, (b"a",), np.array([7, 8], np.uint64), **rows))
    >>> len(one), one == other
    (8, True)
    """
    width = len(counts.plates[0]) if counts.plates else 1
    plates = np.frombuffer(b"".join(counts.plates), dtype=f"V{width}")[counts.plate].tobytes()
    samples = counts.count.astype("<i8").tobytes()
    ends = counts.hat_rows.tolist()
    return [
        blake2b(plates[a * width : b * width] + samples[a * 8 : b * 8], digest_size=DIGEST_BYTES).digest()
        for a, b in pairwise(ends)
    ]
