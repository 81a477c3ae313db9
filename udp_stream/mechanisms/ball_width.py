"""How far plates may be from their forecasts where all HATs of a plate share one clip: the width that errs least.

Ours (docs/mechanisms/forecast.md). `clip_width.py` has the same for a clip HAT by HAT, and the letters. Of K HATs that
a plate visits, its differences d + z are scaled down together where their length exceeds k sqrt(K) standard deviations
(`ball.py`). For normal differences of deviation t = sqrt(1 + q^2), with r their length over t and c = k / t,

    gain = P(r < c sqrt(K)) + (1 - 1/K) c sqrt(K) E[1 / r; r > c sqrt(K)],

in closed form for chi variables (`_normal_gain`). The other K - 1 differences make the clip of one HAT smooth: more of
d passes, and less of it bends, so that k can be larger and the noise smaller over the gain. The misfit is that of
normal plates, by quadrature. Of peaked plates as much passes as of normal ones, or as of peaked ones in one HAT, if
that is more.
"""

from __future__ import annotations

from functools import cache
from math import erfc, exp, factorial, gamma, pi, sqrt
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from udp_stream.mechanisms.clip_width import (
    DEVIATION_MAX,
    HALF_WIDTHS,
    PEAKED,
    UNEVEN,
    ClipWidth,
    least_wrong,
    passed_at,
    scales_of,
)
from udp_stream.mechanisms.noise import Cost

Floats = NDArray[np.float64]

BALL_WIDTHS: Final = (0.25, 0.35, *HALF_WIDTHS)
"""Of a plate in one of its HATs, in standard deviations of its mean around the forecast."""

HATS: Final = (1, 2, 3, 5, 9, 13)
"""Numbers of HATs of a plate for which gains are tabulated: the nearest is taken."""

_STEPS, _OFF_MAX = 4, 4
"""The table has q from 0 to 4 in quarters."""

_OWN, _OWN_WEIGHTS = np.polynomial.hermite_e.hermegauss(24)
_OTHERS, _OTHERS_WEIGHTS = np.polynomial.laguerre.laggauss(24)


def ball_widths(
    pings: NDArray[np.int64], first: NDArray[np.int64], off_kmh: Floats, cost: Cost, hats: Floats
) -> list[ClipWidth]:
    """The width for each of these HATs, whose plates stand one HAT after the other, as `clip_widths` has them; each
    plate shares its clip among about `hats` HATs.
    """
    deviation = np.minimum(off_kmh, DEVIATION_MAX)
    scatter, noise = scales_of(pings, first, cost)
    at = np.rint(np.minimum(deviation / scatter, _OFF_MAX) * _STEPS).astype(np.int64)
    nearest = np.abs(np.array(HATS) - hats[:, None]).argmin(axis=1)
    gain, misfit = np.empty((2, at.size, len(BALL_WIDTHS)))
    for one in np.unique(nearest).tolist():
        table, here = _passed(HATS[one]), nearest == one
        gain[here], misfit[here] = table.gain[at[here]], table.misfit[at[here]]
    hidden = (scatter**2)[:, None] * misfit**2 + (deviation**2)[:, None] * (UNEVEN * (1 - gain)) ** 2
    return least_wrong(BALL_WIDTHS, gain, (noise[:, None] * np.array(BALL_WIDTHS) / gain) ** 2, hidden, ball=True)


class _Passed(NamedTuple):
    """By q, then by half width."""

    gain: Floats
    misfit: Floats


@cache
def _passed(hats: int) -> _Passed:
    offs = np.arange(_OFF_MAX * _STEPS + 1) / _STEPS
    table = np.array([[shared_at(width, off, hats) for width in BALL_WIDTHS] for off in offs])
    gain, misfit = np.moveaxis(table, 2, 0)
    return _Passed(gain, misfit)


def shared_at(half_width: float, off: float, hats: int) -> tuple[float, float]:
    """Gain and misfit of one width where HATs are off by that many standard deviations of plates."""
    if hats == 1:
        return passed_at(half_width, off)
    width = half_width / sqrt(1 + off * off)
    normal, peaked_alone = _normal_gain(width, hats), 1 - exp(-sqrt(2) * width)
    gain = (1 - PEAKED) * normal + PEAKED * max(normal, peaked_alone)
    return gain, _misfit(half_width, off, hats) / gain


def _normal_gain(width: float, hats: int) -> float:
    """Of K normal variables of deviation one, scaled down together to the length c sqrt(K)."""
    length = width * sqrt(hats)
    inside = 1 - _beyond(length * length, hats)
    if hats == 1:
        return inside
    inverse = gamma((hats - 1) / 2) / (sqrt(2) * gamma(hats / 2)) * _beyond(length * length, hats - 1)
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
    """What of a HAT's clip is not proportional to its difference, as a deviation before the gain is undone."""
    if off == 0:
        return 0.0
    squares, weights = _others(hats)
    squares, limit = squares * (1 + off * off), half_width * sqrt(hats)
    own = (off * _OWN[:, None] + _OWN)[:, :, None]
    clipped = own * np.minimum(1.0, limit / np.sqrt(own**2 + squares))
    seen = clipped @ weights @ _OWN_WEIGHTS / _OWN_WEIGHTS.sum()
    slope = float(_OWN_WEIGHTS @ (seen * _OWN) / _OWN_WEIGHTS.sum())
    return sqrt(max(0.0, float(_OWN_WEIGHTS @ seen**2 / _OWN_WEIGHTS.sum()) - slope**2))


def _others(hats: int) -> tuple[Floats, Floats]:
    """Sums of squares of the other HATs' differences, a chi-squared variable of K - 1 degrees, with their weights."""
    if hats == 2:
        return _OWN**2, _OWN_WEIGHTS / sqrt(2 * pi)
    power = (hats - 1) // 2 - 1  # K is odd: twice a gamma variable of an integer shape
    return 2 * _OTHERS, _OTHERS_WEIGHTS * _OTHERS**power / factorial(power)
