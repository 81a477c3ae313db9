"""How far a mean is likely to be off: its noise, and what its grouping is likely to bias it by. Counts only.

**Reference speeds.** What grouping, capping and filling do to a mean depends on the speeds, which no plan may look at.
So they are taken to be what one expects who knows nothing but U: as widely scattered as speeds spread evenly over
[0, U], which have the variance U^2/12; half of it between plates, half within; and a HAT's mean anywhere in [0, U]
alike. Nothing here is estimated from a feed; `docs/measurements.md` has what comes of it on the recorded ones.

**Spread.** An estimate weighs sample j by w_j, the sample mean by 1/M. Let the weights of plate l, of m_l samples, add
up to A_l. The variance of the difference of the two is

    U^2/24 (sum_l (A_l - m_l/M)^2 + sum_j (w_j - 1/M)^2),

and if all weights add up to 1 - d, the rest being a public fill c, d^2 ((c - U/2)^2 + U^2/12) more.

Samples that a mean leaves out, because their plates cannot pay or are suppressed, are among these with w_j = 0.

**Error.** Noise of expected size b and a spread s together have an expected size of about hypot(b, s): exact for s = 0,
to second order for small s, 7 % too much for s = b. Released means lie in [0, U], which spares what lies beyond; over
true means anywhere in [0, U] alike, a size x turns into x (1 - x/U (1 - exp(-U/x))).

**Interval.** P(|Lap(b)| > b ln 20) = 0.05; the reaches of noise and spread are put together in the same way.
"""

from __future__ import annotations

from math import expm1, hypot, log, sqrt

import numpy as np
from numpy.typing import NDArray

from udp_stream.means.base import Integers, MeanPlan

VARIANCE = 1 / 12
"""Of the reference speeds, as a share of U^2."""

BETWEEN = 1 / 2
"""The share of it that lies between plates; the rest is within them."""


NOBODY = np.empty(0, dtype=np.int64)


def spread(plan: MeanPlan, left_out: Integers = NOBODY) -> float:
    """Standard deviation of (estimate without noise - sample mean) at the reference speeds, in quanta.

    The sample mean is that of the plan's plates and of those left out, which have these counts. What the mechanisms
    that project do to their own samples is not in it: counts say nothing about an interval that speeds choose.
    """
    counts, given, divisor = plan.counts, plan.given, plan.divisor
    if plan.moves is None:
        given, divisor = counts.by_user, counts.total
    if not left_out.size and (plan.moves is None or not plan.bias_bound):
        return 0.0
    weight: NDArray[np.float64] | float = 1 / divisor
    if plan.arrays is not None and plan.moves is not None:
        weight = weight / plan.arrays.filled.take(plan.arrays.of_user)
    of_plate = weight * given
    even = 1 / (counts.total + int(left_out.sum()))
    between = of_plate - even * counts.by_user
    squares = float((between * between).sum()) + even**2 * float((left_out * left_out).sum())
    weights = float(of_plate.sum())
    within = float((weight * of_plate).sum()) - 2 * even * weights + even
    missing, largest = 1 - weights, plan.max_speed
    scattered = largest**2 * VARIANCE * (BETWEEN * squares + (1 - BETWEEN) * within)
    return sqrt(scattered + missing**2 * ((plan.fill - largest / 2) ** 2 + largest**2 / 12))


def expected_abs_error(noise: float, spread: float, max_speed: int) -> float:
    """Expected |released mean - sample mean| for noise of this expected size (above 0); all in quanta.

    >>> round(expected_abs_error(3.0, 4.0, 1000), 2), round(expected_abs_error(1e9, 0.0, 1000))
    (4.97, 500)
    """
    size = hypot(noise, spread)
    return size * (1 + size / max_speed * expm1(-max_speed / size))


def interval95(value: float, noise: float, spread: float, max_speed: int) -> tuple[float, float]:
    """The means that a released one (in [0, U], like them) does not rule out at 95 %; `value` is among them.

    Whatever the truth is, it is missed with probability 0.05 (less where the interval reaches all of [0, U]). A truth
    so near to an end that a symmetric miss on that side would lie beyond it can be missed on the other side alone,
    where it may then be missed with all of the 0.05: so the interval reaches less far on the side of a near end.

    >>> [round(end, 1) for end in interval95(50.0, 1.0, 0.0, 100)]
    [47.0, 53.0]
    >>> [round(end, 1) for end in interval95(4.0, 1.0, 0.0, 100)]
    [1.7, 7.0]
    """
    two_sided = hypot(noise * log(20), spread * 1.96)
    one_sided = hypot(noise * log(10), spread * 1.645)
    near = min(two_sided, max_speed / 2)

    def low_end(value: float) -> float:
        return max(0.0, value - one_sided) if value - one_sided <= near else max(near, value - two_sided)

    return low_end(value), max_speed - low_end(max_speed - value)
