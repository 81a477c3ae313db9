"""How the ledger lies in Redis, in bytes: integers little endian in 8 bytes each, plates one after the other."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from udp_stream.ports import Admission, Balance, Entry, Verdict

_HEAD = struct.Struct("<qIII")  # budget, bytes of the period, bytes of the terms, members
_BALANCE = struct.Struct("<qq")  # spent, charges


class Remembered(NamedTuple):
    """An admission as Redis keeps it: head, period, terms, amounts charged (0: HALT), plates."""

    period: str
    budget: int
    terms: bytes
    charged: NDArray[np.int64]
    plates: bytes


def encoded(text: str) -> bytes:
    """Any string's bytes, so that ids and periods that differ are different keys."""
    return text.encode("utf-8", "surrogatepass")


def decoded(name: bytes) -> str:
    """Undo `encoded`."""
    return name.decode("utf-8", "surrogatepass")


def head_of(period: str, budget: int, one: Admission) -> bytes:
    """What is remembered of an admission before its amounts and plates."""
    name = encoded(period)
    return _HEAD.pack(budget, len(name), len(one.terms), one.members.size) + name + one.terms


def remembered(blob: bytes) -> Remembered:
    """Read an admission.

    >>> hat = Admission("hat", np.array([0]), np.array([7]), min_admitted=0, terms=b"terms")
    >>> remembered(head_of("May", 10, hat) + amounts_of(hat.charges) + b"plate")
    Remembered(period='May', budget=10, terms=b'terms', charged=array([7]), plates=b'plate')
    """
    budget, period_size, terms_size, members = _HEAD.unpack_from(blob)
    terms_start = _HEAD.size + period_size
    charged_start = terms_start + terms_size
    plates_start = charged_start + 8 * members
    return Remembered(
        period=decoded(blob[_HEAD.size : terms_start]),
        budget=budget,
        terms=blob[terms_start:charged_start],
        charged=amounts(blob[charged_start:plates_start]),
        plates=blob[plates_start:],
    )


def recalled(known: Remembered, plates: bytes, members: int) -> Verdict:
    """What was remembered for the plates asked about; 0 for one that the first call did not name."""
    if plates == known.plates and members == known.charged.size:
        return Verdict(known.charged, known.terms)
    charged = dict(zip(cut(known.plates, known.charged.size), known.charged.tolist(), strict=True))
    return Verdict(np.array([charged.get(plate, 0) for plate in cut(plates, members)], np.int64), known.terms)


def entry_of(release_id: str, blob: bytes, payload: bytes | None, waiting: bool) -> Entry:
    """A remembered admission and what became of it."""
    one = remembered(blob)
    plates = tuple(cut(one.plates, one.charged.size))
    published = payload is not None and not waiting
    return Entry(release_id, one.period, one.budget, plates, one.charged, payload, published)


def balance(values: Iterable[bytes | None]) -> Balance:
    """What plates have spent; None is a plate that was never charged."""
    table = amounts(b"".join(value or bytes(_BALANCE.size) for value in values)).reshape(-1, 2)
    return Balance(spent=table[:, 0].copy(), charges=table[:, 1].copy())


def spent_and_charges(value: bytes) -> tuple[int, int]:
    """One plate's balance."""
    spent, charges = _BALANCE.unpack(value)
    return spent, charges


def amounts(blob: bytes) -> NDArray[np.int64]:
    """Integers out of their bytes; the caller's own."""
    return np.frombuffer(blob, "<i8").astype(np.int64)


def amounts_of(values: NDArray[np.int64]) -> bytes:
    """Undo `amounts`."""
    return values.astype("<i8").tobytes()


def cut(plates: bytes, count: int) -> list[bytes]:
    """So many plates of one length."""
    width = len(plates) // max(count, 1)
    return [plates[i * width : (i + 1) * width] for i in range(count)]
