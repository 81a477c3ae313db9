"""What ours is measured by: guesses that read no budget, oracles that read the truth. Estimates of
a day's HATs."""

import copy

import numpy as np
from numpy.typing import NDArray

from benchmarks.forecast_days import Day
from udp_stream.forecast.anomalies import NOT_CLIPPED
from udp_stream.forecast.model import Coefficients, FilterBank, ReleasedHats, SlotPrior, prior_of
from udp_stream.forecast.usual_week import HatWeek
from udp_stream.mechanisms.widths import mean_variance
from udp_stream.release.rehearsal import line_on_counts

Floats = NDArray[np.float64]

FOLDS = 10
"""Of the HATs of a slot, each left out in turn."""

AS_TRUE = 0.1
"""km2/h2, the noise of a truth: a little, as speeds are taken on a grid."""


def constant_and_counts(day: Day) -> Floats:
    """An oracle's line in log(samples / plates): the intercept and slope that fit this very day
    best, by pings."""
    return line_on_counts(day.truth, day.pings, day.plates.astype(np.float64))


def without_noise(day: Day, prior: Coefficients) -> Floats:
    """The model's forecast of each HAT from the true means of all others: no noise, no clip, no
    budget; no bound."""
    bank = FilterBank(HatWeek())
    estimate = []
    first = 0
    grid = day.feed.policy().grid
    for counts, _ in day.slots:
        slot = prior_of(counts, grid, prior)
        hats = counts.cells.size
        truth = day.truth[first : first + hats]
        rest = mean_variance(
            counts.count, np.repeat(np.arange(hats), np.diff(counts.hat_rows)), hats
        )
        fold = np.random.default_rng(first).permutation(hats) % FOLDS
        said = np.zeros(hats)
        for out in range(min(FOLDS, hats)):
            others = copy.deepcopy(bank)
            here = fold == out
            _learn(others, counts.cells, slot, truth, rest, ~here)
            said[here] = others.predict(counts.cells[here], _of(slot, here)).mean
        _learn(bank, counts.cells, slot, truth, rest, np.ones(hats, dtype=bool))
        estimate.append(said)
        first += hats
    return np.clip(np.concatenate(estimate), 0.0, None)


def _learn(
    bank: FilterBank, cells: NDArray[np.uint64], prior: SlotPrior, truth: Floats, rest: Floats,
    chosen: NDArray[np.bool_],
) -> None:  # fmt: skip
    if chosen.any():
        noise = np.full(int(chosen.sum()), AS_TRUE)
        not_clipped = [NOT_CLIPPED] * int(chosen.sum())
        seen = ReleasedHats(
            cells[chosen], _of(prior, chosen), truth[chosen], noise, rest[chosen], not_clipped
        )
        bank.learn(seen, float(truth.max()) + 1)


def _of(prior: SlotPrior, chosen: NDArray[np.bool_]) -> SlotPrior:
    return SlotPrior(np.zeros(0), prior.by_hat[chosen], prior.features[chosen])
