"""Random bits from the operating system: the only source that a deployment uses."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from udp_stream.ledger.port import Bits


class OsEntropy:
    """Bits from the kernel's generator, all releases of a slot in one run."""

    def streams(self, release_ids: Sequence[str]) -> Iterator[tuple[slice, Bits]]:
        """One run for everything."""
        yield slice(0, len(release_ids)), os.urandom
