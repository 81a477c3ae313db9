"""Four filters with different hyperparameters, weighed by how well they foretold the releases."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from udp_stream.forecast.arrow import ArrowFilter, design_of
from udp_stream.forecast.prior import SlotPrior

Floats = NDArray[np.float64]

CELL_SDS = 1.5, 3.5
"""How far cells may differ from what their counts say, in km/h: one value for alike, one for different cells."""

SLOPE_SDS = 0.5, 1.5
"""How far the slopes of the features may be from 0, in km/h for a standard deviation of the feature."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """Of HATs, in km/h: mean speeds and their variances, without what no forecast can know of the HAT (its rest).

    `slope` turns relative speeds of the prior into km/h. `skew` is what a narrow clip adds to what it observes.

    >>> nothing_released = FilterBank().guess(SlotPrior(np.zeros(0), np.array([0.5]), np.zeros((1, 6))))
    >>> nothing_released.mean.tolist(), nothing_released.slope  # 18 + 12.6 * 0.5
    ([24.3], 12.6)
    """

    mean: Floats
    variance: Floats
    slope: float
    skew: float


@dataclass(frozen=True, slots=True)
class Observed:
    """What releases tell of HATs of one slot: distinct cells, noisy values and their variances, in km/h.

    `is_clipped` where a narrow clip observed it, which skew moves.

    >>> no_counts = SlotPrior(np.zeros(0), np.zeros(1), np.zeros((1, 6)))
    >>> seen = Observed(np.array([7], np.uint64), no_counts, np.array([22.5]), np.array([4.0]), np.array([True]))
    >>> bank = FilterBank()
    >>> bank.learn(seen)
    >>> bank.cells
    [7]
    """

    cells: NDArray[np.uint64]
    prior: SlotPrior
    value: Floats
    variance: Floats
    is_clipped: NDArray[np.bool_]


class FilterBank:
    """What has been learnt of a city. Deterministic in what it is shown, and in the order.

    >>> no_counts = SlotPrior(np.zeros(0), np.zeros(1), np.zeros((1, 6)))
    >>> bank, cell = FilterBank(), np.array([7], np.uint64)
    >>> bank.learn(Observed(cell, no_counts, np.array([30.0]), np.array([1.0]), np.array([True])))
    >>> bool(18 < bank.predict(cell + 1, no_counts).mean[0] < bank.predict(cell, no_counts).mean[0] < 30)
    True
    """

    def __init__(self) -> None:
        """Before any release."""
        self._filters = [ArrowFilter(cell_sd, slope_sd) for cell_sd, slope_sd in product(CELL_SDS, SLOPE_SDS)]
        self._log_weights = np.zeros(len(self._filters))
        self._at: dict[int, int] = {}

    @property
    def cells(self) -> list[int]:
        """The cells that were observed, in that order."""
        return list(self._at)

    def predict(self, cells: NDArray[np.uint64], prior: SlotPrior) -> Predicted:
        """The forecast of these HATs; the variance counts that the filters differ."""
        return self._predicted(self._numbers(cells), prior)

    def guess(self, prior: SlotPrior) -> Predicted:
        """What is to be said of HATs from their counts and the city alone: the same for cells never seen."""
        return self._predicted(np.full(prior.by_hat.size, -1), prior)

    def _predicted(self, at: NDArray[np.int64], prior: SlotPrior) -> Predicted:
        design = design_of(prior.by_hat, prior.features, np.zeros(prior.by_hat.size, dtype=bool))
        weights = self._weights()
        predicted = [one.predict(at, design) for one in self._filters]
        means, variances = np.array([mean for mean, _ in predicted]), np.array([each for _, each in predicted])
        mean = weights @ means
        slope, skew = (float(weights @ [one.mean[which] for one in self._filters]) for which in (1, -1))
        return Predicted(mean, weights @ (variances + (means - mean) ** 2), slope, skew)

    def learn(self, seen: Observed) -> None:
        """Condition every filter on the releases of a slot, together."""
        new = [cell for cell in seen.cells.tolist() if cell not in self._at]
        self._at |= zip(new, range(len(self._at), len(self._at) + len(new)), strict=True)
        at, design = self._numbers(seen.cells), design_of(seen.prior.by_hat, seen.prior.features, seen.is_clipped)
        for number, one in enumerate(self._filters):
            one.grow(len(new))
            self._log_weights[number] += one.update(at, design, seen.value, seen.variance)

    def next_day(self) -> None:
        """A night has passed."""
        for one in self._filters:
            one.next_day()

    def _weights(self) -> Floats:
        # Less the largest: else all of them could become 0 after many slots.
        raw = np.exp(self._log_weights - self._log_weights.max())
        weights: Floats = raw / raw.sum()
        return weights

    def _numbers(self, cells: NDArray[np.uint64]) -> NDArray[np.int64]:
        return np.array([self._at.get(cell, -1) for cell in cells.tolist()], dtype=np.int64)
