"""How far plates may be from their forecasts before they are clipped: for each HAT the width that errs least.

Ours (docs/mechanisms/forecast.md). In standard deviations of a plate's mean around its forecast, let the HAT be off its
forecast by d, normal with deviation q, and a plate by d + z. A clip at +-k turns that into clip(d + z, -k, k). Of it

    c(d) = E_z clip(d + z, -k, k)        is what a mean over many plates sees,
    gain = E c(d) d / q^2 = P(|d + z| < k)        the share of d that passes on average,
    misfit^2 = (E c(d)^2 - gain^2 q^2) / gain^2        what no gain can undo, as a variance of d.

A narrow clip needs little noise, has a small gain and a large misfit. So it serves HATs of few plates; in a large HAT,
whose noise is small, and where forecasts are far off, a wide one errs less. Widths and gains follow from counts, the
forecast's deviation and the cost, all public, and are recorded before anything is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from math import exp, pi, sqrt
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from udp_stream.mechanisms.noise import Cost, noise_of
from udp_stream.mechanisms.noise.base import normal_below
from udp_stream.mechanisms.speed_spread import plate_variance

Floats = NDArray[np.float64]

HALF_WIDTHS: Final = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
"""Of a plate's interval, in standard deviations of its mean around the forecast."""

PEAKED: Final = 0.5
"""Speeds are more peaked around a forecast than a normal variable: this share of plates is taken as double exponential,
the others as normal. Only the gain follows it; the misfit is that of normal plates."""

UNEVEN: Final = 0.5
"""HATs differ in their gain. This share of what a clip holds back on average counts as error."""

DEVIATION_MAX: Final = 6.0
"""Km/h that a forecast's deviation counts as at most. Before a city's first releases it is 8 and more, wide enough for
any city; forecasts of a real one are off by less, and a clip for such a deviation costs more noise than it saves."""

_STEPS, _OFF_MAX = 16, 4
"""The table has q from 0 to 4 in sixteenths."""

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(40)

_FINE = 2**20
"""A sensitivity so large that noise in integers is as fine as real noise."""


class ClipWidth(NamedTuple):
    """A plate's half width in standard deviations of its mean, and the share of a HAT's difference that passes.

    `hidden` is the standard deviation, in km/h, of what the clip hides of the HAT though its gain is undone. `ball`:
    the plate's HATs of the slot share one clip (`ball.py`), and the half width is this HAT's part in it.

    >>> ClipWidth(half_width=0.5, gain=0.45).gain
    0.45
    """

    half_width: float
    gain: float
    hidden: float = 0.0
    ball: bool = False


USUAL: Final = ClipWidth(0.5, 0.45)
"""Where nothing is known of the forecast; measured on Austin's days."""


def clip_width(by_plate: NDArray[np.int64], deviation_kmh: float, cost: Cost) -> ClipWidth:
    """The width for a HAT of plates with these counts, at this cost; `deviation_kmh` is that of its forecast."""
    return clip_widths(by_plate, np.zeros(1, dtype=np.int64), np.array([deviation_kmh]), cost)[0]


def clip_widths(pings: NDArray[np.int64], first: NDArray[np.int64], off_kmh: Floats, cost: Cost) -> list[ClipWidth]:
    """The widths of HATs whose plates stand one HAT after the other; `first` is each HAT's first, `off_kmh` the
    deviation of its forecast.
    """
    deviation = np.minimum(off_kmh, DEVIATION_MAX)
    scatter, noise = scales_of(pings, first, cost)
    table = _passed()
    at = np.rint(np.minimum(deviation / scatter, _OFF_MAX) * _STEPS).astype(np.int64)
    hidden = (scatter**2)[:, None] * table.misfit[at] + (deviation**2)[:, None] * table.uneven[at]
    return least_wrong(HALF_WIDTHS, table.gain[at], (noise**2)[:, None] * table.noise[at], hidden, ball=False)


def least_wrong(
    half_widths: Sequence[float], gains: Floats, noise: Floats, hidden: Floats, ball: bool
) -> list[ClipWidth]:
    """HAT by HAT (lines) the width (columns) where noise and what is hidden, squares both, have the least sum."""
    best = (noise + hidden).argmin(axis=1)
    chosen = np.arange(best.size), best
    found = zip(best.tolist(), gains[chosen].tolist(), np.sqrt(hidden[chosen]).tolist(), strict=True)
    return [ClipWidth(half_widths[at], round(gain, 3), round(off, 3), ball) for at, gain, off in found]


def scales_of(pings: NDArray[np.int64], first: NDArray[np.int64], cost: Cost) -> tuple[Floats, Floats]:
    """In km/h, HAT by HAT: the deviation of plates around the HAT, and that of noise where the half width is one such
    deviation.
    """
    sharp = 1 / np.sqrt(plate_variance(pings))
    weight = np.add.reduceat(sharp * sharp, first)  # plates weigh by how precisely their samples tell the HAT's mean
    scatter: Floats = np.add.reduceat(sharp, first) / weight
    return scatter, 2 * np.maximum.reduceat(sharp, first) / weight * _noise_deviation(cost)


@lru_cache(maxsize=64)
def _noise_deviation(cost: Cost) -> float:
    """Of noise for a sensitivity of one."""
    noise = noise_of(cost)
    over, under = noise.unit_scale(cost)
    return sqrt(noise.expected_square(_FINE * over / under)) / _FINE


class _Passed(NamedTuple):
    """By q, then by half width: gains, and what each part of the error's square is multiplied with."""

    gain: Floats
    noise: Floats
    misfit: Floats
    uneven: Floats


@cache
def _passed() -> _Passed:
    offs = np.arange(_OFF_MAX * _STEPS + 1) / _STEPS
    gain, misfit = np.moveaxis(np.array([[passed_at(width, off) for width in HALF_WIDTHS] for off in offs]), 2, 0)
    return _Passed(gain, (np.array(HALF_WIDTHS) / gain) ** 2, misfit**2, (UNEVEN * (1 - gain)) ** 2)


def passed_at(half_width: float, off: float) -> tuple[float, float]:
    """Gain and misfit of one width where HATs are off by that many standard deviations of plates."""
    width = half_width / sqrt(1 + off * off)  # in deviations of d + z
    normal, peaked = 2 * normal_below(width) - 1, 1 - exp(-sqrt(2) * width)
    gain = (1 - PEAKED) * normal + PEAKED * peaked
    seen = _integral(off * _NODES + half_width) - _integral(off * _NODES - half_width) - half_width
    square = float(_WEIGHTS @ seen**2 / _WEIGHTS.sum())
    return gain, sqrt(max(square - (normal * off) ** 2, 0.0)) / gain


def _integral(upto: Floats) -> Floats:
    """Of the normal distribution function, from minus infinity: E clip(d + z, -k, k) is that at d + k less that at
    d - k, less k."""
    below = np.array([normal_below(one) for one in upto.tolist()])
    density = np.array([exp(-one * one / 2) for one in upto.tolist()])
    integral: Floats = upto * below + density / sqrt(2 * pi)
    return integral
