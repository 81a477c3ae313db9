"""What was released before: public, so plans and forecasts may follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from udp_stream.ledger.port import Ledger
from udp_stream.release.record import Release, decode, kind_of, release_id, slot_of
from udp_stream.windows.tables import cell_name


class History(Protocol):
    """What was released before: public, so a plan may follow from it.

    >>> class Nothing:
    ...     def releases(self, start_ms: int, end_ms: int, cells: Sequence[int]) -> list[Release | None]:
    ...         return [None] * len(cells)
    ...
    ...     def slots_since(self, start_ms: int) -> dict[tuple[int, int], list[int]]:
    ...         return {}
    >>> history: History = Nothing()
    >>> history.releases(0, 3_600_000, [0x87608C4D2FFFFFF])
    [None]
    """

    def releases(self, start_ms: int, end_ms: int, cells: Sequence[int]) -> list[Release | None]:
        """The records of these cells in the slot of these ends; None where there is none."""
        ...

    def slots_since(self, start_ms: int) -> dict[tuple[int, int], list[int]]:
        """The cells that were charged for in each slot that starts at this time or later, by the slot's ends."""
        ...


SLACK_MS = 86_400_000
"""How much later than a slot an earlier one may have been charged for: a day."""


class LedgerHistory:
    """The releases that a ledger holds.

    >>> from udp_stream.ledger.memory import MemoryLedger
    >>> LedgerHistory(MemoryLedger()).releases(0, 3_600_000, [0x87608C4D2FFFFFF])
    [None]
    """

    def __init__(self, ledger: Ledger) -> None:
        """Nothing is asked yet."""
        self._ledger = ledger

    def releases(self, start_ms: int, end_ms: int, cells: Sequence[int]) -> list[Release | None]:
        """What is recorded for these cells in that slot."""
        payloads = self._ledger.recorded([release_id(cell_name(cell), start_ms, end_ms) for cell in cells])
        return [None if payload is None else decode(payload) for payload in payloads]

    def slots_since(self, start_ms: int) -> dict[tuple[int, int], list[int]]:
        """From the newest charge back, until slots are a day older than asked for. Ids of no HAT are passed over.

        >>> import numpy as np
        >>> from udp_stream.ledger.memory import MemoryLedger
        >>> from udp_stream.ledger.port import Admission
        >>> ledger, ids = MemoryLedger(), ["87608c4d2ffffff-3600-3600", "87608c4d2ffffff-7200-3600", "query:city"]
        >>> nobody = np.array([], np.int64)
        >>> _ = ledger.admit("1d", 1, [], [Admission(id_, nobody, nobody, 0, b"") for id_ in ids])
        >>> [slot for slot in LedgerHistory(ledger).slots_since(7_200_000)]
        [(7200000, 10800000)]
        """
        slots: dict[tuple[int, int], list[int]] = {}
        for id_ in self._ledger.newest():
            if kind_of(id_) != "hat":
                continue
            try:
                start, end = (1000 * seconds for seconds in slot_of(id_))
            except ValueError:
                continue
            if start < start_ms - SLACK_MS:
                break
            if start >= start_ms:
                slots.setdefault((start, end), []).append(int(id_.partition("-")[0], 16))
        return slots
