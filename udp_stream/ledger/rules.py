"""The ledger's rules as pure functions: what a call must satisfy, which plates it charges, whether balances add up, and
how an admission lies in bytes. Every store uses these, so that stores cannot differ in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from udp_stream.ledger.port import Admission, Balance, Entry, Verdict
from udp_stream.ledger.rolling import RollingSums, span_of

AMOUNT_LIMIT = 2**53
"""Amounts lie below it: integers that every store and language on the way (Lua, JSON) holds exactly."""


def require_valid(budget: int, plates: Sequence[bytes], admissions: Sequence[Admission]) -> None:
    """Raise ValueError, naming the rule, unless a call to `Ledger.admit` makes sense; nothing is charged then.

    Plates are distinct (else one plate would have two balances) and of one length; members index them and are distinct
    within a HAT (one charge per plate and HAT); charges and the budget are nano-units below `AMOUNT_LIMIT`.

    >>> twice = Admission("hat", np.array([0, 0]), np.array([1, 1]), min_admitted=0, terms=b"")
    >>> require_valid(10, [b"plate"], [twice])
    Traceback (most recent call last):
    ValueError: expected distinct members in each admission, got a repeated one in 'hat'
    """
    if not 0 <= budget < AMOUNT_LIMIT:
        raise ValueError(f"expected 0 <= budget < 2**53 nano-units, got {budget}")
    if len(set(plates)) != len(plates):
        raise ValueError("expected distinct plates in a call, got a repeated one")
    if len(lengths := {len(plate) for plate in plates}) > 1 or 0 in lengths:
        raise ValueError(f"expected plates of one length, at least 1 byte, got lengths {sorted(lengths)}")
    for admission in admissions:
        _require_shape(admission)
    if admissions:
        _require_values(len(plates), admissions)


def decide(
    charged: NDArray[np.int64],
    charges: NDArray[np.int64],
    budget: int,
    min_admitted: int,
    allowances: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """Nano-units charged to each member (0: HALT), from their balances; none if fewer than `min_admitted` have enough.

    >>> decide(np.array([0, 8]), np.array([3, 3]), budget=10, min_admitted=1)
    array([3, 0])
    >>> decide(np.array([0, 8]), np.array([3, 3]), budget=10, min_admitted=2)
    array([0, 0])
    >>> decide(np.array([0, 0]), np.array([3, 3]), budget=10, min_admitted=1, allowances=np.array([2, 20]))
    array([0, 3])
    """
    # Each is below 2**53, so the sum fits in 64 bits.
    after = charged + charges
    affordable = after <= budget
    if allowances is not None:
        affordable &= after <= allowances
    if np.count_nonzero(affordable) < min_admitted:
        return np.zeros_like(charges)
    return charges * affordable


def decide_in_turn(balance: Balance, budget: int, admissions: Sequence[Admission]) -> list[NDArray[np.int64]]:
    """What each of these HATs charges its members, one HAT after the other; none was asked about before.

    `balance` has the plates of the call, which members index. It is brought up to date.

    >>> balance = Balance(np.array([0, 8]), np.array([0, 2]))
    >>> hats = [Admission(id_, np.array([0, 1]), np.array([3, 2]), 1, b"") for id_ in ("first", "second")]
    >>> [charged.tolist() for charged in decide_in_turn(balance, 10, hats)]
    [[3, 2], [3, 0]]
    >>> balance
    Balance(charged=array([ 6, 10]), charges=array([2, 3]))
    """
    decided = []
    for one in admissions:
        before = balance.charged[one.members]
        decided.append(decide(before, one.charges, budget, one.min_admitted, one.allowances))
        balance.charged[one.members] = before + decided[-1]
    if admissions:
        payers = np.concatenate([one.members for one in admissions])[np.concatenate(decided) > 0]
        balance.charges[:] += np.bincount(payers, minlength=balance.charges.size)
    return decided


def misfits(entries: Iterable[Entry], balances: Iterable[tuple[str, bytes, int, int]]) -> Iterator[str]:
    """A sentence for each charge over its budget, and for each balance that is not the sum of its charges.

    In a span of a rolling budget a charge is over it where the sum in some window is.

    `entries` come oldest first; `balances` are (period, plate, charged, charges), each plate and period once.

    >>> entry = Entry("hat", "2024-05-01", 10, (b"p",), np.array([4]), payload=None, published=False)
    >>> list(misfits([entry], [("2024-05-01", b"p", 4, 1)]))
    []
    >>> list(misfits([entry], [("2024-05-01", b"p", 3, 1)]))
    ['plate 70 in 2024-05-01: expected 4 charged in 1 entries, got 3 in 1']
    """
    sums: dict[tuple[str, bytes], tuple[int, int]] = {}
    rolling = RollingSums()
    for entry in entries:
        amounts = entry.charged.tolist()
        in_window = rolling.charge(entry.period, entry.plates, amounts) if span_of(entry.period) else ()
        for plate, amount, most in zip_longest(entry.plates, amounts, in_window):
            charged, charges = sums.get((entry.period, plate), (0, 0))
            after = charged + amount if most is None else most
            if amount < 0 or (amount > 0 and after > entry.budget):
                yield f"{entry.release_id}: charging {amount} puts plate {plate.hex()} over its budget {entry.budget}"
            if amount:
                sums[entry.period, plate] = (charged + amount, charges + 1)
    claimed = {(period, plate): (charged, charges) for period, plate, charged, charges in balances}
    for key in {**sums, **claimed}:
        expected, got = sums.get(key, (0, 0)), claimed.get(key, (0, 0))
        if expected != got:
            sentence = f"expected {expected[0]} charged in {expected[1]} entries, got {got[0]} in {got[1]}"
            yield f"plate {key[1].hex()} in {key[0]}: {sentence}"


def _require_shape(admission: Admission) -> None:
    name, members, charges = admission.release_id, admission.members, admission.charges
    if members.dtype != np.int64 or charges.dtype != np.int64:
        raise ValueError(f"expected int64 members and charges, got {members.dtype} and {charges.dtype} in {name!r}")
    if members.ndim != 1 or members.shape != charges.shape:
        raise ValueError(f"expected one charge per member, got shapes {members.shape}, {charges.shape} in {name!r}")
    if admission.allowances is not None and (
        admission.allowances.dtype != np.int64 or admission.allowances.shape != members.shape
    ):
        raise ValueError(f"expected an int64 allowance per member, got {admission.allowances.shape} in {name!r}")
    if admission.min_admitted < 0:
        raise ValueError(f"expected min_admitted >= 0, got {admission.min_admitted} in {name!r}")


def _require_values(plates: int, admissions: Sequence[Admission]) -> None:
    """All admissions at once; the first that breaks a rule is named."""
    members = np.concatenate([admission.members for admission in admissions])
    charges = np.concatenate([admission.charges for admission in admissions])
    owners = np.repeat(np.arange(len(admissions)), [admission.members.size for admission in admissions])

    def refuse(rule: str, broken: NDArray[np.bool_], owners: NDArray[np.int64]) -> None:
        if broken.any():
            raise ValueError(f"expected {rule} in {admissions[owners[np.argmax(broken)]].release_id!r}")

    refuse(f"0 <= member < {plates}, got one outside", (members < 0) | (members >= plates), owners)
    allowances = np.concatenate([one.charges if one.allowances is None else one.allowances for one in admissions])
    refuse(
        "0 <= allowance < 2**53 nano-units, got one outside", (allowances < 0) | (allowances >= AMOUNT_LIMIT), owners
    )
    refuse("0 < charge < 2**53 nano-units, got one outside", (charges <= 0) | (charges >= AMOUNT_LIMIT), owners)
    # One integer for each admission and member: two that are equal lie side by side once sorted.
    # Members are known to be inside by now: no two pairs share an integer.
    pairs = np.sort(owners * max(plates, 1) + members)
    refuse("distinct members in each admission, got a repeated one", pairs[1:] == pairs[:-1], pairs // max(plates, 1))


# An admission in bytes: amounts little endian in 8 bytes each, plates one after the other.


class Decision(NamedTuple):
    """What was decided of a HAT: its plates, packed; what each was charged (0: HALT); its terms.

    >>> Decision(b"onetwo", np.array([4, 0]), b"terms").names()
    [b'one', b'two']
    """

    plates: bytes
    charged: NDArray[np.int64]
    terms: bytes

    def names(self) -> list[bytes]:
        """The plates."""
        return cut(self.plates, self.charged.size)

    def recalled(self, plates: bytes, members: int) -> Verdict:
        """The verdict on the plates asked about: 0 for one that the first call did not name. The caller's own."""
        if plates == self.plates and members == self.charged.size:
            return Verdict(self.charged.copy(), self.terms)
        charged = dict(zip(self.names(), self.charged.tolist(), strict=True))
        return Verdict(np.array([charged.get(plate, 0) for plate in cut(plates, members)], np.int64), self.terms)


def column(plates: Sequence[bytes]) -> NDArray[np.void]:
    """Plates of one length as an array: `column(plates)[members].tobytes()` are the members', packed."""
    return np.frombuffer(b"".join(plates), dtype=f"V{len(plates[0]) if plates else 1}")


def cut(plates: bytes, count: int) -> list[bytes]:
    """`count` plates of one length out of their bytes."""
    # A HAT may have no members: then there is nothing to divide by.
    width = len(plates) // max(count, 1)
    return [plates[i * width : (i + 1) * width] for i in range(count)]


def amounts(blob: bytes) -> NDArray[np.int64]:
    """Integers out of their bytes; the caller's own."""
    return np.frombuffer(blob, "<i8").astype(np.int64)


def amounts_of(values: NDArray[np.int64]) -> bytes:
    """Undo `amounts`."""
    return values.astype("<i8").tobytes()
