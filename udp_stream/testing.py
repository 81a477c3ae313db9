"""For tests and `reproduce` only: bits from a seed, and ledgers that fail. Nothing here may run in a deployment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from udp_stream.ledger.port import Bits, Ledger


def seeded_bits(seed: int | str) -> Bits:
    """Bits that follow from the seed alone: reproducible, and therefore not private."""
    digest = blake2b(str(seed).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest))).bytes


class SeededEntropy:
    """Every release's bits follow from the seed and its id, whatever else is released beside it, in any process."""

    def __init__(self, seed: int | str) -> None:
        """Take the seed."""
        self._seed = seed

    def streams(self, release_ids: Sequence[str]) -> Iterator[tuple[slice, Bits]]:
        """One run per release."""
        for i, release_id in enumerate(release_ids):
            yield slice(i, i + 1), seeded_bits(f"{self._seed}/{release_id}")


class Died(Exception):
    """The process ended here."""


class DyingLedger:
    """A ledger whose process dies before its n-th call, counted from 0, or just after it, before the answer arrives.

    `calls` has the names of the calls that were made. Without a number it never dies.

    >>> from udp_stream.ledger.memory import MemoryLedger
    >>> ledger = DyingLedger(MemoryLedger(), dies_at=1)
    >>> ledger.recorded(["hat"])
    [None]
    >>> ledger.periods()
    Traceback (most recent call last):
        ...
    udp_stream.testing.Died: before periods
    >>> ledger.calls
    ['recorded']
    """

    def __init__(self, ledger: Ledger, dies_at: int | None = None, *, answered: bool = False) -> None:
        """With `answered` the ledger has done what the last call asks for."""
        self.calls: list[str] = []
        self._ledger = ledger
        self._dies_at = dies_at
        self._answered = answered

    def __getattr__(self, name: str) -> Any:
        """The ledger's call of this name, watched."""
        call = getattr(self._ledger, name)

        def watched(*arguments: Any) -> Any:
            is_last = len(self.calls) == self._dies_at
            if is_last and not self._answered:
                raise Died(f"before {name}")
            answer = call(*arguments)
            self.calls.append(name)
            if is_last:
                raise Died(f"after {name}")
            return answer

        return watched


class RivalledLedger:
    """A ledger that lets a rival in before its n-th call: whatever the rival does, it does in between."""

    def __init__(self, ledger: Ledger, call: int, rival: Callable[[], object]) -> None:
        """The rival works on the same ledger, by itself."""
        self._left = call
        self._ledger = ledger
        self._rival = rival

    def __getattr__(self, name: str) -> Any:
        """The ledger's call of this name, after the rival if it is the n-th."""
        call = getattr(self._ledger, name)

        def rivalled(*arguments: Any) -> Any:
            self._left -= 1
            if self._left == -1:
                self._rival()
            return call(*arguments)

        return rivalled
