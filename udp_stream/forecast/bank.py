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

PLATES_APART = 8.0
"""Km/h, how far the mean of a plate over its HATs of a slot is from what is forecast of it."""

USUAL_SPREAD = 0.8
"""Of plates around their forecasts, in deviations and at most 3 each: the mean of Austin's days."""

SPREADS_DIFFER = 0.3
"""How far cities' spreads lie apart, as a share."""

WIDER = 0.7, 3.0
"""The least and the most that a spread makes of an interval."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """Of HATs, in km/h: mean speeds and their variances, without what no forecast can know of the HAT (its rest).

    `slope` turns relative speeds of the prior into km/h. `skew` is what a narrow clip adds to what it observes.
    `wider`: how much farther plates scatter than is usual, as far as the city was asked.

    >>> nothing_released = FilterBank().guess(SlotPrior(np.zeros(0), np.array([0.5]), np.zeros((1, 6))))
    >>> nothing_released.mean.tolist(), nothing_released.slope  # 18 + 12.6 * 0.5
    ([24.3], 12.6)
    """

    mean: Floats
    variance: Floats
    slope: float
    skew: float
    wider: float = 1.0


@dataclass(frozen=True, slots=True)
class Told:
    """What the plates of a slot told of the whole city: its mean speed in km/h, with its variance, and their spread.

    `cells` are those of the mean, `share` what each counts in it; `spread` is in deviations of a plate's mean.

    >>> cells, share = np.array([7], np.uint64), np.ones(1)
    >>> Told(cells, share, mean=18.5, variance=9.0, spread=0.8, spread_variance=0.1, plates=90).plates
    90
    """

    cells: NDArray[np.uint64]
    share: Floats
    mean: float
    variance: float
    spread: float
    spread_variance: float
    plates: int


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
        self._spread = np.zeros(3)  # sums over what was told: plates, plates * spread, plates^2 * its variance
        self.precision = 0.0
        """Of the city's mean as it was told, in 1 / (km/h)^2."""

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
        return Predicted(mean, weights @ (variances + (means - mean) ** 2), slope, skew, self._wider())

    def _wider(self) -> float:
        """The spread that was told over the usual one, drawn to 1 by its noise."""
        plates, spread, variance = self._spread.tolist()
        if not plates:
            return 1.0
        noise = variance / (plates * USUAL_SPREAD) ** 2
        told = SPREADS_DIFFER**2 / (SPREADS_DIFFER**2 + noise) * (spread / (plates * USUAL_SPREAD) - 1)
        return min(max(1 + told, WIDER[0]), WIDER[1])

    def learn(self, seen: Observed) -> None:
        """Condition every filter on the releases of a slot, together."""
        new = [cell for cell in seen.cells.tolist() if cell not in self._at]
        self._at |= zip(new, range(len(self._at), len(self._at) + len(new)), strict=True)
        at, design = self._numbers(seen.cells), design_of(seen.prior.by_hat, seen.prior.features, seen.is_clipped)
        for number, one in enumerate(self._filters):
            one.grow(len(new))
            self._log_weights[number] += one.update(at, design, seen.value, seen.variance)

    def learn_city(self, told: Told, prior: SlotPrior) -> None:
        """Condition what HATs share on what plates told of the whole city; `prior` is that of its cells."""
        at = self._numbers(told.cells)
        design = design_of(prior.by_hat, prior.features, np.zeros(told.cells.size, dtype=bool))
        variance = told.variance + PLATES_APART**2 / told.plates
        for number, one in enumerate(self._filters):
            self._log_weights[number] += one.update_globals(at, design, told.share, told.mean, variance)
        self._spread += told.plates, told.plates * told.spread, told.plates**2 * told.spread_variance
        self.precision += 1 / told.variance

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
