"""For tests and `reproduce` only: bits from a seed. Nothing here may run in a deployment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b

import numpy as np

from udp_stream.ledger.port import Bits


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
