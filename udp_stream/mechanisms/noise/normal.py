"""The interval of a mean that normal noise moved: `interval.py` for a normal distribution of known deviation.

The ratio of likelihoods of x under a truth t in [0, U] and under the truth that is likeliest given x, which is x put
into [0, U], is exp(-q / 2). With the deviation as unit, d = |x - t|, and e = the distance from t to the end of [0, U]
on the side of x,

    q = d^2  where d <= e,      q = e (2 d - e)  where x lies beyond the end,

which grows with d. So what is as likely as x or likelier, by that ratio, reaches from t by d on the side of x, and on
the other side, where the end is e' away, by

    d' = sqrt(q)  where q <= e'^2,      d' = (q / e' + e') / 2  else (everything, for e' = 0).

A truth is held if that has probability P(Z <= d) - P(Z < -d') <= 0.95. On its way from 0 to the lower of x and U the
truth's probability falls, from P(Z <= x) to at most 1/2 (docs/mechanisms/gaussian.md has the proof), so there is one
lowest truth that is held, and no interval is empty.
"""

from __future__ import annotations

from math import erf, sqrt

import numpy as np

from udp_stream.mechanisms.noise.base import Floats

LEVEL = 0.95

_TWO_SIDED = 1.9599639845400545
"""P(|Z| <= this) = 0.95, rounded up."""

_ONE_SIDED = 1.6448536269514715
"""P(Z <= this) = 0.95, rounded down."""

_STEPS_MAX = 60
"""Halvings after which a double has no digit left to gain; some ten steps do."""

_NEAR = 1e-7
"""Deviations: how narrowly an end is found. It is rounded outwards."""


def normal_below(z: float) -> float:
    """P(Z <= z) of a standard normal variable.

    >>> round(normal_below(1.96), 4)
    0.975
    """
    return (1 + erf(z / sqrt(2))) / 2


def normal_low_end(noisy: Floats | float, deviation: Floats | float, width: int) -> Floats:
    """The lower end of the 95 % interval of truths in [0, width], of each value or for each deviation, above 0.

    >>> normal_low_end(np.array([50.0, 2.0]), deviation=1.0, width=100).round(2).tolist()
    [48.04, 0.35]
    """
    x, unit = np.broadcast_arrays(np.asarray(noisy, dtype=np.float64), np.asarray(deviation, dtype=np.float64))
    pairs = zip(x.ravel().tolist(), unit.ravel().tolist(), strict=True)
    ends = [_low_end(one / by, width / by) * by for one, by in pairs]
    return np.array(ends).reshape(x.shape)


def _low_end(x: float, width: float) -> float:
    """The same for one value, in deviations."""
    if x <= _ONE_SIDED:
        return 0.0
    high = min(x, width)
    low = high - _TWO_SIDED
    if x <= width and low >= _TWO_SIDED:  # no end of [0, U] is near
        return low
    # all truths below are ruled out: d and d' are at least 1.96 for them
    low = max(0.0, low)
    at_low = (_probability(x, width, low) if low else normal_below(x)) - LEVEL
    at_high = min(0.0, normal_below(x - width) - 0.5) - LEVEL
    was_low = True
    # false position, by the Illinois rule: `low` is ruled out, `high` is held
    for _ in range(_STEPS_MAX):
        if high - low <= _NEAR:
            break
        at = low + (high - low) * at_low / (at_low - at_high)
        # a hair past the root that it foresees, so that both ends close in on it
        at = min(max(at, low + _NEAR / 2), high - _NEAR / 2)
        excess = _probability(x, width, at) - LEVEL
        if excess > 0:
            low, at_low, at_high = at, excess, at_high / (2 if was_low else 1)
        else:
            high, at_high, at_low = at, excess, at_low / (1 if was_low else 2)
        was_low = excess > 0
    return low  # the end that is ruled out: the interval is never too short


def _probability(x: float, width: float, truth: float) -> float:
    """Of what is as likely as x or likelier, under a truth in (0, width) below x."""
    away, end, other = x - truth, width - truth, truth
    q = away * away if away <= end else end * (2 * away - end)
    reach = sqrt(q) if q <= other * other else (q / other + other) / 2
    return normal_below(away) + normal_below(reach) - 1
