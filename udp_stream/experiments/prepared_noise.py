"""Noise that is drawn ahead, for experiments that draw a little of it very often.

A call of the exact samplers takes about as long for twenty values as for a thousand. So many values of a scale are
drawn at once and handed out one after another. They are as independent as if they were drawn one by one, and each is
handed out once.
"""

from __future__ import annotations

import numpy as np

from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.noise.base import Integers, Measure
from udp_stream.queries.radial import draw_radial

Key = tuple[Measure, int, int, int]


class PreparedNoise:
    """`draw_radial` from a store; where plates have several scales, or one call asks for much, by itself.

    It belongs to one stream of bits: what it hands out was drawn from those of the call that filled the store.

    >>> from udp_stream.testing import seeded_bits
    >>> noise, bits, scale = PreparedNoise(100), seeded_bits(1), (np.full(3, 10), np.full(3, 1))
    >>> first, second = (noise("zcdp", bits, *scale, dimensions=2) for _ in range(2))
    >>> first.shape, bool((first == second).all())
    ((3, 2), False)
    """

    def __init__(self, values: int) -> None:
        """How many coordinates are drawn at once."""
        self._values = values
        self._ready: dict[Key, Integers] = {}

    def __call__(self, measure: Measure, bits: Bits, t: Integers, s: Integers, dimensions: int) -> Integers:
        """A row for each scale t/s."""
        rows = self._values // dimensions
        if t.size == 0 or 4 * t.size > rows or np.ptp(t) or np.ptp(s):
            return draw_radial(measure, bits, t, s, dimensions)
        key = measure, int(t[0]), int(s[0]), dimensions
        ready = self._ready.get(key)
        if ready is None or len(ready) < t.size:
            ready = draw_radial(measure, bits, np.full(rows, t[0]), np.full(rows, s[0]), dimensions)
        self._ready[key] = ready[t.size :]
        return ready[: t.size]
