"""How stores keep an admission in bytes: amounts little endian in 8 bytes each, plates one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from udp_stream.ledger.port import Verdict


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
        """The verdict on the plates asked about: 0 for one that the first call did not name. The caller's own.

        >>> decision = Decision(b"onetwo", np.array([4, 0]), b"terms")
        >>> decision.recalled(b"newone", 2)
        Verdict(charged=array([0, 4]), terms=b'terms')
        """
        if plates == self.plates and members == self.charged.size:
            return Verdict(self.charged.copy(), self.terms)
        charged = dict(zip(self.names(), self.charged.tolist(), strict=True))
        return Verdict(np.array([charged.get(plate, 0) for plate in cut(plates, members)], np.int64), self.terms)


def column(plates: Sequence[bytes]) -> NDArray[np.void]:
    """Plates of one length as an array: `column(plates)[members].tobytes()` are the members', packed.

    >>> column([b"one", b"two"])[np.array([1, 0])].tobytes()
    b'twoone'
    """
    return np.frombuffer(b"".join(plates), dtype=f"V{len(plates[0]) if plates else 1}")


def cut(plates: bytes, count: int) -> list[bytes]:
    """`count` plates of one length out of their bytes.

    >>> cut(b"onetwo", 2)
    [b'one', b'two']
    """
    # A HAT may have no members: then there is nothing to divide by.
    width = len(plates) // max(count, 1)
    return [plates[i * width : (i + 1) * width] for i in range(count)]


def amounts(blob: bytes) -> NDArray[np.int64]:
    """Integers out of their bytes; the caller's own.

    >>> amounts(amounts_of(np.array([4, 0])))
    array([4, 0])
    """
    return np.frombuffer(blob, "<i8").astype(np.int64)


def amounts_of(values: NDArray[np.int64]) -> bytes:
    """Undo `amounts`.

    >>> len(amounts_of(np.array([4, 0])))
    16
    """
    return values.astype("<i8").tobytes()
