"""How far plates may be from their forecasts before they are clipped: for each HAT the width that
errs least.

First the model's public constants of how far speeds scatter around forecasts, in km/h, measured on
Austin's buses of 2015 to 2017 at H3 7 and an hour. If they are wrong for a city, releases err more,
and protect as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from math import erfc, exp, factorial, gamma, pi, sqrt
from typing import Final, NamedTuple

import numpy as np

from udp_stream.base.arrays import Floats, Integers
from udp_stream.mechanisms.noise import Cost, noise_of, normal_below

BETWEEN_PLATES = 4.0
"""Standard deviation of a plate's mean speed in a HAT around its forecast, however many pings it
sends there."""

PER_PING = 18.0
"""Further deviation of a single ping; the mean of n pings has 1 / sqrt(n) of it."""

HAT_VARIANCE = 1.0
"""Variance of a HAT's mean that neither cell nor counts explain, whatever its size."""

SAMPLED = 0.7
"""How much of the plates' scatter reaches the HAT's mean: they share a street, and some of it is
forecast."""

MEASURED_AT = 17.0
SLOWEST = 12.0
"""The mean speed in km/h at which the above hold: deviations grow in proportion to it, from
`SLOWEST` on."""


def at_speed(kmh: Floats) -> Floats:
    """Factor of the deviations above in HATs of such a speed, elementwise."""
    return np.maximum(kmh, SLOWEST) / MEASURED_AT


def plate_variance(pings: Integers) -> Floats:
    """Variance of the mean of that many pings of a plate in a HAT around its forecast, in
    km2/h2."""
    return BETWEEN_PLATES**2 + PER_PING**2 / pings


def mean_variance(pings: Integers, hat: Integers, hats: int) -> Floats:
    """Variance of each HAT's mean of pings around its cell's forecast; `hat` is each row's HAT."""
    total = np.bincount(hat, weights=pings, minlength=hats)
    squares = np.bincount(hat, weights=pings**2 * plate_variance(pings), minlength=hats)
    variance: Floats = HAT_VARIANCE + SAMPLED * squares / np.maximum(total, 1) ** 2
    return variance


# The width of a clip HAT by HAT: ours (docs/mechanisms/forecast.md). In standard deviations of a
# plate's mean around its forecast, let the HAT be off its forecast by d, normal with deviation q,
# and a plate by d + z. A clip at +-k turns that into clip(d + z, -k, k). Of it
#
#     c(d) = E_z clip(d + z, -k, k)        is what a mean over many plates sees,
#     gain = E c(d) d / q^2 = P(|d + z| < k)        the share of d that passes on average,
#     misfit^2 = (E c(d)^2 - gain^2 q^2) / gain^2        what no gain can undo, as a variance of d.
#
# A narrow clip needs little noise, has a small gain and a large misfit: it serves HATs of few
# plates. Widths and gains follow from counts, the forecast's deviation and the cost, all public,
# and are recorded before anything is drawn.

HALF_WIDTHS: Final = (0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
"""Half widths of a plate's interval, in deviations of its mean around the forecast; narrower
intervals hide unusual days."""

PEAKED: Final = 0.5
"""Share of plates that is taken as double exponential around the forecast, the others as normal;
for the gain only."""

UNEVEN: Final = 0.5
"""Share of what a clip holds back on average that counts as error, as HATs differ in their gain."""

DEVIATION_MAX: Final = 6.0
"""Km/h that a forecast's deviation counts as at most: a wider clip costs more noise than it saves."""

_STEPS = 16
_OFF_MAX = 4
"""The table has q from 0 to 4 in sixteenths."""

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(40)

_FINE = 2**20
"""A sensitivity so large that noise in integers is as fine as real noise."""


class ClipWidth(NamedTuple):
    """A plate's half width in standard deviations of its mean, and the share of a HAT's difference
    that passes.

    `hidden` is the standard deviation, in km/h, that the clip hides of the HAT though its gain is
    undone. `ball`: the plate's HATs of the slot share a clip (`around.py`), about `hats` of them,
    and the half width is this HAT's part in it.

    >>> ClipWidth(half_width=0.5, gain=0.45).gain
    0.45
    """

    half_width: float
    gain: float
    hidden: float = 0.0
    ball: bool = False
    hats: int = 1


USUAL: Final = ClipWidth(0.5, 0.45)
"""Where nothing is known of the forecast; measured on Austin's days."""


def clip_width(by_plate: Integers, deviation_kmh: float, cost: Cost) -> ClipWidth:
    """The width for a HAT of plates with these counts, at this cost; `deviation_kmh` is that of its
    forecast."""
    return clip_widths(by_plate, np.zeros(1, dtype=np.int64), np.array([deviation_kmh]), [cost])[0]


def clip_widths(
    pings: Integers,
    first: Integers,
    off_kmh: Floats,
    costs: Sequence[Cost],
    hats: Floats | None = None,
) -> list[ClipWidth]:
    """Choose the width of each HAT's clip: the squares of noise and of what is hidden have the
    least sum.

    Args:
        pings: Pings of each plate in a HAT, HAT by HAT, shape (rows,).
        first: The first row of each HAT, shape (HATs,).
        off_kmh: Standard deviation of each HAT's forecast, km/h, shape (HATs,).
        costs: What each HAT's mean may cost.
        hats: Likely number of HATs among which plates share a clip, shape (HATs,); None where each
            HAT has a clip of its own.

    Returns:
        A width for each HAT.
    """
    deviation = np.minimum(off_kmh, DEVIATION_MAX)
    steps = _STEPS if hats is None else _STEPS_JOINT
    scatter, noise = scales_of(pings, first, costs)
    at = np.rint(np.minimum(deviation / scatter, _OFF_MAX) * steps).astype(np.int64)
    shared = np.ones(at.size) if hats is None else hats
    many = np.array(HATS)[np.abs(np.array(HATS) - shared[:, None]).argmin(axis=1)]
    gain, misfit = np.empty((2, at.size, len(HALF_WIDTHS)))
    for hats_of_plate in np.unique(many).tolist():
        here = many == hats_of_plate
        gain[here], misfit[here] = _passed(hats_of_plate, steps)[:, at[here]]
    hidden = (scatter**2)[:, None] * misfit**2 + (deviation**2)[:, None] * (
        UNEVEN * (1 - gain)
    ) ** 2
    noise_square = (noise[:, None] * np.array(HALF_WIDTHS) / gain) ** 2
    best = (noise_square + hidden).argmin(axis=1)
    chosen = np.arange(best.size), best
    found = zip(
        best.tolist(),
        gain[chosen].tolist(),
        np.sqrt(hidden[chosen]).tolist(),
        many.tolist(),
        strict=True,
    )
    return [
        ClipWidth(HALF_WIDTHS[i], round(g, 3), round(off, 3), hats is not None, k)
        for i, g, off, k in found
    ]


def scales_of(pings: Integers, first: Integers, costs: Sequence[Cost]) -> tuple[Floats, Floats]:
    """Deviation of plates around each HAT, and that of noise for such a half width, both in km/h,
    shape (HATs,)."""
    sharp = 1 / np.sqrt(plate_variance(pings))
    # Plates weigh by how precisely their samples tell the HAT's mean.
    weight = np.add.reduceat(sharp * sharp, first)
    scatter: Floats = np.add.reduceat(sharp, first) / weight
    return scatter, 2 * np.maximum.reduceat(sharp, first) / weight * np.array(
        [_noise_deviation(cost) for cost in costs]
    )


@lru_cache(maxsize=64)
def _noise_deviation(cost: Cost) -> float:
    """Deviation of noise for a sensitivity of 1."""
    noise = noise_of(cost)
    over, under = noise.unit_scale(cost)
    return sqrt(noise.expected_square(_FINE * over / under)) / _FINE


@cache
def _passed(hats: int, steps: int) -> Floats:
    """Gains and misfits, shape (q in `steps` per standard deviation, half widths)."""
    offs = np.arange(_OFF_MAX * steps + 1) / steps
    return np.moveaxis(
        np.array([[shared_at(width, off, hats) for width in HALF_WIDTHS] for off in offs]), 2, 0
    )


def passed_at(half_width: float, off: float) -> tuple[float, float]:
    """Gain and misfit of a width where HATs are off by that many standard deviations of plates."""
    width = half_width / sqrt(1 + off * off)  # in deviations of d + z
    normal = 2 * normal_below(width) - 1
    peaked = 1 - exp(-sqrt(2) * width)
    gain = (1 - PEAKED) * normal + PEAKED * peaked
    seen = _integral(off * _NODES + half_width) - _integral(off * _NODES - half_width) - half_width
    square = float(_WEIGHTS @ seen**2 / _WEIGHTS.sum())
    return gain, sqrt(max(square - (normal * off) ** 2, 0.0)) / gain


def _integral(upto: Floats) -> Floats:
    """Integral of the normal distribution function: E clip(d + z, -k, k) is that at d + k less that
    at d - k, less k."""
    below = np.array([normal_below(z) for z in upto.tolist()])
    density = np.array([exp(-z * z / 2) for z in upto.tolist()])
    integral: Floats = upto * below + density / sqrt(2 * pi)
    return integral


# The width where all HATs of a plate share a clip: ours (docs/mechanisms/forecast.md). Of K HATs
# that a plate visits, its differences d + z are scaled down together where their length exceeds k
# sqrt(K) standard deviations (`around.py`). For normal differences of deviation t = sqrt(1 + q^2),
# with r their length over t and c = k / t,
#
#     gain = P(r < c sqrt(K)) + (1 - 1/K) c sqrt(K) E[1 / r; r > c sqrt(K)],
#
# in closed form for chi variables (`_normal_gain`). The other K - 1 differences make the clip of a
# HAT smooth: k can be larger, and the noise smaller over the gain. The misfit is that of normal
# plates, by quadrature. Of peaked plates as much passes as of normal plates, or as of peaked plates
# in a single HAT, if that is more.

HATS: Final = (1, 2, 3, 5, 9, 13)
"""Numbers of HATs of a plate for which gains are tabulated: the nearest is taken."""

_STEPS_JOINT = 4
"""The table has q from 0 to 4 in quarters."""

_OWN, _OWN_WEIGHTS = np.polynomial.hermite_e.hermegauss(24)
_OTHERS, _OTHERS_WEIGHTS = np.polynomial.laguerre.laggauss(24)


def shared_at(half_width: float, off: float, hats: int) -> tuple[float, float]:
    """Gain and misfit of a width where HATs are off by that many standard deviations of plates."""
    if hats == 1:
        return passed_at(half_width, off)
    width = half_width / sqrt(1 + off * off)
    normal = _normal_gain(width, hats)
    peaked_alone = 1 - exp(-sqrt(2) * width)
    gain = (1 - PEAKED) * normal + PEAKED * max(normal, peaked_alone)
    return gain, _misfit(half_width, off, hats) / gain


def _normal_gain(width: float, hats: int) -> float:
    """Gain of K normal variables of deviation 1, scaled down together to the length c sqrt(K)."""
    length = width * sqrt(hats)
    inside = 1 - _beyond(length * length, hats)
    if hats == 1:
        return inside
    inverse = (
        gamma((hats - 1) / 2) / (sqrt(2) * gamma(hats / 2)) * _beyond(length * length, hats - 1)
    )
    return inside + (1 - 1 / hats) * length * inverse


def _beyond(square: float, degrees: int) -> float:
    """P(X > square) for a chi-squared variable, by its recurrence in two degrees of freedom."""
    half = square / 2
    known, total = (1, erfc(sqrt(half))) if degrees % 2 else (2, exp(-half))
    while known < degrees:
        total += half ** (known / 2) * exp(-half) / gamma(known / 2 + 1)
        known += 2
    return total


def _misfit(half_width: float, off: float, hats: int) -> float:
    """The part of a HAT's clip that is not proportional to its difference, as a deviation before
    the gain is undone."""
    if off == 0:
        return 0.0
    squares, weights = _others(hats)
    squares = squares * (1 + off * off)
    limit = half_width * sqrt(hats)
    own = (off * _OWN[:, None] + _OWN)[:, :, None]
    clipped = own * np.minimum(1.0, limit / np.sqrt(own**2 + squares))
    seen = clipped @ weights @ _OWN_WEIGHTS / _OWN_WEIGHTS.sum()
    slope = float(_OWN_WEIGHTS @ (seen * _OWN) / _OWN_WEIGHTS.sum())
    return sqrt(max(0.0, float(_OWN_WEIGHTS @ seen**2 / _OWN_WEIGHTS.sum()) - slope**2))


def _others(hats: int) -> tuple[Floats, Floats]:
    """Sums of squares of the other HATs' differences, a chi-squared variable of K - 1 degrees, with
    their weights."""
    if hats == 2:
        return _OWN**2, _OWN_WEIGHTS / sqrt(2 * pi)
    power = (hats - 1) // 2 - 1  # K is odd: twice a gamma variable of an integer shape
    return 2 * _OTHERS, _OTHERS_WEIGHTS * _OTHERS**power / factorial(power)


# What a clip lets through of a HAT that is off by any amount, for estimates
# (`forecast/anomalies.py`). Lengths are in standard deviations of plates around their HAT, as
# forecast.

_RESPONSE_STEPS = 8
_RESPONSE_MAX = 24
"""Largest tabulated difference: from 0 to 24 standard deviations, in eighths; beyond them a clip
lets nothing more through."""

_SPREADS = np.array([0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0])
"""Standard deviations of plates that are tabulated, as multiples of the forecast deviation."""

_OTHERS_MAX = 2.0


def response(
    half_width: Floats, hats: Integers, off: Floats, spread: Floats, others: Floats
) -> Floats:
    """Move of a mean over plates, before its gain is undone, where its HAT is off by `off`, shape
    (HATs,).

    `off` and `spread` (the deviation of plates there, as a multiple of the forecast deviation) have
    a line for each HAT; the others are numbers. The other HATs that share a HAT's clip are off by a
    standard deviation of `others`.
    """
    rounded = np.rint(np.minimum(others, _OTHERS_MAX) * 2) / 2
    kinds, which = np.unique(
        np.column_stack([half_width, hats, rounded]), axis=0, return_inverse=True
    )
    tables = np.array([_response(width, int(many), apart) for width, many, apart in kinds.tolist()])
    table = which.reshape(-1, 1)
    row = np.interp(spread, _SPREADS, np.arange(_SPREADS.size))
    column = np.minimum(np.abs(off) * _RESPONSE_STEPS, tables.shape[2] - 1.001)
    above = np.minimum(row.astype(np.int64), _SPREADS.size - 2)
    left = column.astype(np.int64)
    down = row - above
    right = column - left
    seen = (1 - down) * (
        (1 - right) * tables[table, above, left] + right * tables[table, above, left + 1]
    )
    seen += down * (
        (1 - right) * tables[table, above + 1, left] + right * tables[table, above + 1, left + 1]
    )
    signed: Floats = np.sign(off) * seen
    return signed


@cache
def _response(half_width: float, hats: int, others: float) -> Floats:
    """Table of responses by spread (lines) and `off` (columns)."""
    off = np.arange(_RESPONSE_MAX * _RESPONSE_STEPS + 1) / _RESPONSE_STEPS
    return np.array(
        [_response_at(half_width, hats, others, off, spread) for spread in _SPREADS.tolist()]
    )


def _response_at(half_width: float, hats: int, others: float, off: Floats, spread: float) -> Floats:
    up = (off + half_width) / spread
    down = (off - half_width) / spread
    peaked = spread * (_peaked_integral(up) - _peaked_integral(down)) - half_width
    if hats == 1:
        normal = spread * (_integral(up) - _integral(down)) - half_width
    else:
        squares, weights = _others(hats)
        own = (off[:, None] + spread * _OWN)[:, :, None]
        limit = half_width * sqrt(hats)
        # In place: a table is too large to be made anew at each step.
        clipped = own**2 + squares * (1 + others * others)
        np.sqrt(clipped, out=clipped)
        np.divide(limit, clipped, out=clipped)
        np.minimum(1.0, clipped, out=clipped)
        clipped *= own
        normal = clipped @ weights @ _OWN_WEIGHTS / _OWN_WEIGHTS.sum()
        peaked = np.maximum(normal, peaked)
    return (1 - PEAKED) * normal + PEAKED * peaked


def _peaked_integral(upto: Floats) -> Floats:
    """Integral like `_integral`, of the double exponential distribution of deviation 1."""
    return np.maximum(upto, 0.0) + np.exp(-sqrt(2) * np.abs(upto)) / (2 * sqrt(2))
