"""The entries of plates on the day that is under way, for its noised sums at the day's end. Secret.

They follow from pings and earlier outputs, plate by plate. A run that begins during a day without
them has the rest of it: its sums are of fewer slots, residuals as weights.
"""

from __future__ import annotations

from typing import Self

import msgspec
import numpy as np

from udp_stream.mechanisms.add_remove import Entries, merged


class PlateEntries(msgspec.Struct, frozen=True):
    """A row for each plate and cell, with the sums over the slots so far, of which the starts are
    kept. `day` is Unix ms from and to; `of` tells what the numbers of cells mean.

    `columns` has plate, cell, residual and weight, each of 8 bytes, little-endian.

    >>> kept = PlateEntries(day=(0, 86_400_000), of="5eed")
    >>> vectors = Entries(*np.array([[0], [1], [5], [2]]))
    >>> for hour in (0, 1, 1):  # a slot that comes again changes nothing
    ...     kept = kept.with_slot(hour, (b"plate",), vectors, cells=2)
    >>> kept.vectors.residual, kept.slots
    (array([10]), (0, 1))
    """

    day: tuple[int, int] = (0, 0)
    of: str = ""
    slots: tuple[int, ...] = ()
    plates: tuple[bytes, ...] = ()
    columns: bytes = b""

    @property
    def vectors(self) -> Entries:
        return Entries(*np.frombuffer(self.columns, "<i8").astype(np.int64).reshape(4, -1))

    def with_slot(
        self, start_ms: int, plates: tuple[bytes, ...], vectors: Entries, cells: int
    ) -> Self:
        if start_ms in self.slots:
            return self
        numbers = {plate: number for number, plate in enumerate(self.plates)}
        own = np.array([numbers.setdefault(plate, len(numbers)) for plate in plates], np.int64)
        there = vectors._replace(plate=own[vectors.plate])
        both = zip(self.vectors, there, strict=True)
        columns = merged(Entries(*map(np.concatenate, both)), cells)
        return msgspec.structs.replace(
            self,
            slots=(*self.slots, start_ms),
            plates=tuple(numbers),
            columns=np.stack(columns).astype("<i8").tobytes(),
        )


class PlateDay:
    """Holder of the entries of a run's day. `before` are those that a run ended with."""

    def __init__(self, before: PlateEntries | None = None) -> None:
        self.kept = before or PlateEntries()

    def add(
        self,
        day: tuple[int, int],
        of: str,
        start_ms: int,
        plates: tuple[bytes, ...],
        vectors: Entries,
        cells: int,
    ) -> None:
        """Add a slot; a day that has begun takes the place of an earlier one."""
        if (self.kept.day, self.kept.of) != (day, of):
            if day < self.kept.day:
                return
            self.kept = PlateEntries(day, of)
        self.kept = self.kept.with_slot(start_ms, plates, vectors, cells)

    def needed_from(self, released_ms: int) -> int:
        """Start of the first slot, Unix ms, whose entries a new holder would lack, once slots up to
        `released_ms` are released."""
        day = self.kept.day
        return min(self.kept.slots) if day[1] > released_ms else released_ms
