"""The interval of a mean that noise, and a normal spread, moved: a truth in [0, U] is missed with probability 0.05.

It is made from the noisy mean x, before x is put into [0, U]: how far beyond it x lies is as public. A truth t is held
if x is among the likeliest 95 % of what noise makes of t, by the ratio of its likelihood to that under the truth that
is likeliest given x (Feldman and Cousins, arXiv physics/9711021): the nearer to t the better, all that lies beyond an
end being as near as the end; among these, again the nearer to t. With Laplace noise of expected size b alone, r1 = b ln
10, r2 = b ln 20 and t below U/2 that is

    x <= t + r1                        where t <= r1: all that lies below 0, and 0.05 above,
    -y <= x <= 2 t                     where r1 <= t <= r2, y being what leaves 0.05 in both tails together,
    t - r2 <= x <= t + r2              where r2 <= t.

Above U/2 all is mirrored. (U/2 itself is held by either half's rule, so missed less often if r2 exceeds it.) No
interval is empty, whatever x is. With a spread s, r1 and r2 are hypot(b ln 10, 1.645 s) and hypot(b ln 20, 1.96 s).
"""

from __future__ import annotations

from math import exp, hypot, log, log2

import numpy as np

from udp_stream.mechanisms.noise.base import Floats, Noise


def interval95(family: Noise, noisy: float, size: float, spread: float, width: int) -> tuple[float, float]:
    """The means in [0, width] that a noisy one does not rule out at 95 %; what is released of it is among them.

    Whatever the truth is, it is missed with probability 0.05 (the middle itself with less, where noise is large).

    >>> from udp_stream.mechanisms.noise.laplace import DiscreteLaplace
    >>> [round(end, 1) for end in interval95(DiscreteLaplace(), 50.0, 1.0, 0.0, 100)]
    [47.0, 53.0]
    >>> [round(end, 1) for end in interval95(DiscreteLaplace(), 4.0, 1.0, 0.0, 100)]
    [1.7, 7.0]
    >>> [round(end, 1) for end in interval95(DiscreteLaplace(), -1.0, 1.0, 0.0, 100)]
    [0.0, 2.6]
    """
    # noise is symmetric, so the upper end is the lower one of the value mirrored
    low, beyond = family.low_end(noisy, size, spread, width), family.low_end(width - noisy, size, spread, width)
    return float(low), width - float(beyond)


def laplace_low_end(noisy: Floats | float, size: float, spread: Floats | float, width: int) -> Floats:
    """The lower end of `interval95` for Laplace noise, of each value or for each spread.

    >>> laplace_low_end(np.array([50.0, 4.0]), size=1.0, spread=0.0, width=100).round(1).tolist()
    [47.0, 1.7]
    """
    if isinstance(noisy, float) and isinstance(spread, float):
        return np.asarray(_low_end(noisy, size, spread, width))
    two_sided = np.hypot(size * log(20), 1.96 * spread)
    one_sided = np.hypot(size * log(10), 1.645 * spread)
    # the least truth in the lower half that is held, if one is; and in the upper half
    below = np.maximum(0.0, np.maximum(noisy - two_sided, np.minimum(noisy - one_sided, noisy / 2)))
    tail = np.log2(1 + np.exp(np.minimum(0.0, width - noisy) / np.hypot(size, spread)))
    above = np.minimum(noisy, width) - (one_sided + (two_sided - one_sided) * tail)
    low: Floats = np.where(below <= width / 2, below, np.maximum(width / 2, above))
    return low


def _low_end(noisy: float, size: float, spread: float, width: int) -> float:
    """The same of one value, line by line: arrays of one take ten times as long, and every HAT asks for two ends."""
    two_sided, one_sided = hypot(size * log(20), 1.96 * spread), hypot(size * log(10), 1.645 * spread)
    below = max(0.0, noisy - two_sided, min(noisy - one_sided, noisy / 2))
    if below <= width / 2:
        return below
    tail = log2(1 + exp(min(0.0, width - noisy) / hypot(size, spread)))
    return max(width / 2, min(noisy, width) - (one_sided + (two_sided - one_sided) * tail))
