"""Recorded positions for experiments on queries: where each plate of a feed was last, at any moment of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from udp_stream.errors import UsageError
from udp_stream.mechanisms.noise.base import Integers

FRESH_MS = 900_000
"""An older position does not count: a quarter of an hour."""

PLATES_MIN = 10
"""A moment with fewer plates is not drawn."""


@dataclass(frozen=True)
class Positions:
    """Every accepted ping of a feed: its plate by number, its time, and its place in the city's plane, lattice steps.

    >>> feed = Positions("city", np.array([0, 1, 0]), np.array([1, 2, 9]), np.array([[0, 0], [5, 5], [7, 7]]))
    >>> plates, where = feed.at(10)
    >>> plates.tolist(), where.tolist()
    ([0, 1], [[7, 7], [5, 5]])
    """

    name: str
    plate: Integers
    time_ms: Integers
    where: Integers

    def at(self, moment_ms: int) -> tuple[Integers, Integers]:
        """The plates with a fresh position before a moment, ascending, and where they were last."""
        fresh = np.flatnonzero((self.time_ms < moment_ms) & (self.time_ms >= moment_ms - FRESH_MS))
        latest = fresh[np.argsort(self.time_ms[fresh], kind="stable")][::-1]
        plates, first = np.unique(self.plate[latest], return_index=True)
        return plates, self.where[latest[first]]

    def moments(self, count: int, rng: np.random.Generator) -> list[int]:
        """`count` moments, drawn by their pings, at which there are plates enough. UsageError if there are none."""
        found: list[int] = []
        for moment in rng.choice(self.time_ms, 20 * count + 100).tolist():
            if len(found) == count:
                break
            if self.at(moment)[0].size >= PLATES_MIN:
                found.append(moment)
        if len(found) < count:
            minutes = FRESH_MS // 60_000
            raise UsageError(
                f"{self.name}: expected moments before which at least {PLATES_MIN} plates pinged within {minutes} "
                "minutes, and the feed has too few"
            )
        return found

    def place_near_a_plate(self, where: Integers, rng: np.random.Generator) -> tuple[float, float]:
        """Metres east and north: a plate's, and up to a kilometre from it each way."""
        east, north = rng.choice(where) / 16 + rng.uniform(-1000, 1000, 2)
        return float(east), float(north)
