"""The public range of a value: samples are clipped to it, and its width bounds what one plate can change.

A range is fixed before anything is seen that it is to protect: from configuration, or from what has been
released. Means and variances see samples only through `above_low`. So their sensitivity follows from the width,
whatever comes in, and moving samples and range together moves nothing but the value that is released. (A CDF
counts samples in bins: its edges are its range, and its sensitivity does not depend on them.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Range:
    """The integers low..high, in quanta; ValueError unless low < high.

    >>> Range(0, 65 * 4096).width
    266240
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        """Check the rule above."""
        if not self.low < self.high:
            raise ValueError(f"expected a range with low < high, got {self.low} and {self.high}")

    @property
    def width(self) -> int:
        """How far a value can move: the papers' U."""
        return self.high - self.low

    def clip(self, value: float) -> float:
        """A released value put into the range."""
        return min(max(value, float(self.low)), float(self.high))

    def above_low(self, samples: NDArray[Any]) -> NDArray[Any]:
        """Samples put into the range and counted from its low end: integers in 0..width."""
        counted = samples - self.low if self.low else samples
        above: NDArray[Any] = np.minimum(np.maximum(counted, 0), self.width)  # half of what np.clip takes
        return above
