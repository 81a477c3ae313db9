"""The counts prior: relative speeds from counts alone, by shipped coefficients.

A ridge regression of (mean speed of a plate in a HAT) / (mean speed of the city) - 1 on the features of
`features.py` and four products, each standardised and clipped to +-4. `coefficients.py` was trained on public,
licensed days by `python -m benchmarks.train_prior`, for each of three H3 resolutions: how long a bus stays in a HAT
depends on how large it is. How far the city's slope differs from the trained one is learnt from releases (`bank.py`),
so that a feed in which counts tell less, or the opposite, is not misread for long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from udp_stream.forecast.coefficients import BY_RESOLUTION
from udp_stream.forecast.features import PER_HAT, SlotFeatures, features_of
from udp_stream.forecast.one_thread import on_one_thread
from udp_stream.windows.grid import resolution_of
from udp_stream.windows.slot_tables import SlotCounts

Floats = NDArray[np.float64]

CountsRead = Literal["plates", "published", "off"]
"""What of the counts the prior reads: those of each plate in each HAT, those of HATs that records publish, or none."""

PRODUCTS = (2, 4, 6, 8)
"""The features that log(m/R) is multiplied with: what a long stay means depends on how the plate drives elsewhere."""

CLIP = 4.0
"""Standard deviations beyond which a feature tells nothing more."""

HAT_CLIP = 3.0
"""The same for the features of HATs, whose slopes are learnt from few releases."""

READ_FROM_PUBLISHED = (0, 4, 5)
"""The features of HATs that follow from their numbers of plates and samples alone, but for R."""


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Of the ridge: a centre, a scale and a slope for each column of `expanded`; centre and scale of HATs' features.

    >>> SHIPPED[7].slope.shape, SHIPPED[7].hat_scale.shape
    ((16,), (6,))
    """

    centre: Floats
    scale: Floats
    slope: Floats
    hat_centre: Floats
    hat_scale: Floats


SHIPPED = {
    resolution: Coefficients(**{name: np.array(column) for name, column in columns.items()})
    for resolution, columns in BY_RESOLUTION.items()
}
"""By H3 resolution; trained on Austin's licensed days."""


def shipped_for(resolution: int) -> Coefficients:
    """The shipped coefficients of the trained resolution that is nearest.

    >>> shipped_for(9) is SHIPPED[8], shipped_for(5) is SHIPPED[6]
    (True, True)
    """
    return SHIPPED[min(SHIPPED, key=lambda trained: abs(trained - resolution))]


@dataclass(frozen=True, slots=True)
class SlotPrior:
    """Relative speeds: of each row, and of each HAT (the mean over its pings); and the HATs' standardised features.

    `by_hat` and `features` are what a forecast reads of the HAT: a release carries them.

    >>> nothing_read = SlotPrior(by_row=np.zeros(2), by_hat=np.zeros(1), features=np.zeros((1, PER_HAT)))
    >>> nothing_read.by_hat.tolist()
    [0.0]
    """

    by_row: Floats
    by_hat: Floats
    features: Floats


def prior_of(counts: SlotCounts, read: CountsRead = "plates", trained: Coefficients | None = None) -> SlotPrior:
    """The prior of a slot: shapes (rows,), (HATs,) and (HATs, 6), rounded as records carry them.

    Without coefficients it takes those that are shipped for the resolution of the slot's cells.

    >>> rows = dict(hat_rows=np.array([0, 2]), plate=np.array([0, 1]), count=np.array([30, 10]), repeats=0)
    >>> counts = SlotCounts(0, 3_600_000, (b"a", b"b"), np.array([609162003746914303], np.uint64), **rows)
    >>> prior = prior_of(counts)
    >>> prior.by_row.shape, prior.by_hat.shape, prior.features.shape
    ((2,), (1,), (1, 6))
    >>> prior_of(counts, "off").by_hat.tolist()
    [0.0]
    """
    rows, hats = counts.plate.size, counts.cells.size
    if read == "off" or not rows:
        return SlotPrior(np.zeros(rows), np.zeros(hats), np.zeros((hats, PER_HAT)))
    features, trained = features_of(counts), trained or shipped_for(resolution_of(int(counts.cells[0])))
    by_hat = np.clip((features.by_hat - trained.hat_centre) / trained.hat_scale, -HAT_CLIP, HAT_CLIP)
    if read == "published":
        published = np.zeros_like(by_hat)
        published[:, READ_FROM_PUBLISHED] = by_hat[:, READ_FROM_PUBLISHED]
        return SlotPrior(np.zeros(rows), np.zeros(hats), _rounded(published))
    by_row = relative_speeds(features, trained)
    hat = np.repeat(np.arange(hats), np.diff(counts.hat_rows))
    mean = np.bincount(hat, weights=counts.count * by_row, minlength=hats) / np.bincount(hat, weights=counts.count)
    return SlotPrior(by_row, _rounded(mean), _rounded(by_hat))


@on_one_thread
def relative_speeds(features: SlotFeatures, trained: Coefficients) -> Floats:
    """The ridge's prediction of each row: its mean speed over the city's, less 1.

    >>> usual = Coefficients(np.zeros(16), np.ones(16), np.full(16, 0.1), np.zeros(6), np.ones(6))
    >>> far_out = SlotFeatures(by_row=np.array([[9.0] + 11 * [0.0]]), by_hat=np.zeros((1, 6)))
    >>> relative_speeds(far_out, usual).tolist()  # 9 standard deviations count as 4
    [0.4]
    """
    standard = expanded(features.by_row)
    standard -= trained.centre  # in place: a large slot has millions of these
    standard /= trained.scale
    np.clip(standard, -CLIP, CLIP, out=standard)
    speeds: Floats = standard @ trained.slope
    return speeds


def expanded(by_row: Floats) -> Floats:
    """The features and their products with the first, column by column.

    >>> expanded(np.array([[2.0, 1.0, 3.0, 0.0, 5.0, 0.0, 0.0, 0.0, 7.0, 0.0, 0.0, 0.0]]))[:, 12:].tolist()
    [[6.0, 10.0, 0.0, 14.0]]
    """
    return np.column_stack([by_row, *(by_row[:, 0] * by_row[:, at] for at in PRODUCTS)])


def _rounded(values: Floats) -> Floats:
    """To four decimals: a record carries these, and a forecast that is rebuilt from records must be the same."""
    # + 0.0 turns -0.0 into 0.0: they are equal, but a record would write them differently.
    return np.round(values, 4) + 0.0
