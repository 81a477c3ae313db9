"""How the ledger lies in Redis, in bytes: as `packing.py` tells, each admission behind a head."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from udp_stream.ledger.packing import Decision, amounts
from udp_stream.ledger.port import Admission, Balance, Entry
from udp_stream.ledger.rules import AMOUNT_LIMIT

_HEAD = struct.Struct("<qIII")  # budget, bytes of the period, bytes of the terms, members
_BALANCE = struct.Struct("<qq")  # charged, charges


class Remembered(NamedTuple):
    """An admission as Redis keeps it: head, period, terms, amounts charged, plates."""

    period: str
    budget: int
    decision: Decision


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

    >>> from udp_stream.ledger.packing import amounts_of
    >>> hat = Admission("hat", np.array([0]), np.array([7]), min_admitted=0, terms=b"terms")
    >>> remembered(head_of("May", 10, hat) + amounts_of(hat.charges) + b"plate")
    Remembered(period='May', budget=10, decision=Decision(plates=b'plate', charged=array([7]), terms=b'terms'))
    """
    budget, period_size, terms_size, members = _HEAD.unpack_from(blob)
    terms_start = _HEAD.size + period_size
    charged_start = terms_start + terms_size
    plates_start = charged_start + 8 * members
    charged = amounts(blob[charged_start:plates_start])
    decision = Decision(blob[plates_start:], charged, blob[terms_start:charged_start])
    return Remembered(decoded(blob[_HEAD.size : terms_start]), budget, decision)


def together(batch: Sequence[Admission], place: NDArray[np.int64], plates: int) -> tuple[bytes, bytes, bytes]:
    """Of HATs together: what they ask of each plate, and how many they are; and their least allowance, or nothing.

    `place` says of each member, HAT by HAT, which of the plates it is.

    >>> hats = [Admission(id_, np.array([0, 1]), np.array([3, 4]), 0, b"") for id_ in ("first", "second")]
    >>> asked, often, least = together(hats, np.array([0, 1, 1, 2]), 3)
    >>> np.frombuffer(asked, "<i8").tolist(), np.frombuffer(often, "<u4").tolist(), least
    ([3, 7, 4], [1, 2, 1], b'')
    """
    # Doubles add exactly below 2**53, where all budgets lie, and from there on stay above.
    asked = np.minimum(np.bincount(place, np.concatenate([one.charges for one in batch]), plates), AMOUNT_LIMIT)
    often = np.bincount(place, minlength=plates)
    allowances = [one.allowances.min() for one in batch if one.allowances is not None and one.allowances.size]
    least = str(min(allowances)).encode() if allowances else b""
    return asked.astype("<i8").tobytes(), often.astype("<u4").tobytes(), least


def entry_of(release_id: str, blob: bytes, payload: bytes | None, waiting: bool) -> Entry:
    """A remembered admission and what became of it."""
    period, budget, decision = remembered(blob)
    published = payload is not None and not waiting
    return Entry(release_id, period, budget, tuple(decision.names()), decision.charged, payload, published)


def balance(values: Iterable[bytes | None]) -> Balance:
    """The sums of plates' charges; None is a plate that was never charged."""
    table = amounts(b"".join(value or bytes(_BALANCE.size) for value in values)).reshape(-1, 2)
    return Balance(charged=table[:, 0].copy(), charges=table[:, 1].copy())


def spent_and_charges(value: bytes) -> tuple[int, int]:
    """One plate's balance."""
    charged, charges = _BALANCE.unpack(value)
    return charged, charges
