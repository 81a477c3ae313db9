"""How far a mean is likely to be off: its noise, and what grouping and projection are likely to bias it by.

All formulas count speeds from the low end of their range, [0, U] being what is left of it.

**Reference speeds.** What grouping, capping and filling do to a mean depends on the speeds, which no plan may look at.
So they are taken to be what one expects who knows nothing but U: as widely scattered as speeds spread evenly over
[0, U], which have the variance U^2/12; half of it between plates, half within; and a HAT's mean anywhere in [0, U]
alike. Nothing here is estimated from a feed; `docs/measurements.md` has what comes of it on the recorded ones.

**Spread.** An estimate weighs sample j by w_j, the sample mean by 1/M. Let the weights of plate l, of m_l samples, add
up to A_l. The variance of the difference of the two is

    U^2/24 (sum_l (A_l - m_l/M)^2 + sum_j (w_j - 1/M)^2).

If all weights add up to 1 - d only, the rest being a public fill c, the estimate without noise is (1 - d) t + d c for
the sample mean t, and a spread of the variance above with 1 - d for both 1s; its difference to t, for t anywhere in
[0, U] alike, has d^2 ((c - U/2)^2 + U^2/12) more.

Samples that a mean leaves out, because their plates cannot pay or are suppressed, are among these with w_j = 0.

**Error.** Noise of expected size b and a spread s together have an expected size of about hypot(b, s): exact for s = 0,
to second order for small s, 7 % too much for s = b. Released means lie in [0, U], which spares what lies beyond; over
true means anywhere in [0, U] alike, a size x turns into x (1 - x/U (1 - exp(-U/x))).

**Interval.** That of noise and spread in [0, U] (`interval95`). A public fill is taken off before: the
interval is that of (x - d c) / (1 - d) for the noisy mean x, noise and the spread around (1 - d) t + d c divided
likewise; what is released is inside, or made an end.

**Projection** to a private interval [a, b], which is as public as the mean: let the K array means scatter around the
true mean t like normal variables X. A HAT with the mean t can scatter the less the nearer t is to an end: reference
speeds then have the variance t (U - t) / 3, as spread evenly they have U^2/12 (both are beta distributions of the same
concentration), and s and v below shrink with it. Between no variance and the one that this gives to an array nobody can
tell, so half of it is taken: v. A projected mean then is g(t) = E clip(X, a, b) and a spread, whose variance is

    (Var clip(X) - p^2 v) / K + p^2 s^2,    p = P(a < X < b) = Cov(X, clip(X)) / v  (Stein's lemma):

what clipping adds once the mean of the K is known, and what the mean of the K is off by, as far as clipping lets it
through. The interval of the mean holds the truths t for which g(t) lies in the interval of g, as above with [a, b] for
[0, U], a test of each turned round: far beyond a or b, where g hardly moves, all or none. The expected error is the
mean of |released - t| over t in [0, U], weighed by how likely each makes the noisy mean.
"""

from __future__ import annotations

from math import erf, expm1, hypot, pi, sqrt
from typing import NamedTuple

import numpy as np

from udp_stream.mechanisms.means.base import Integers, MeanPlan
from udp_stream.mechanisms.noise.base import Floats
from udp_stream.mechanisms.noise.interval import interval95

VARIANCE = 1 / 12
"""Of the reference speeds, as a share of U^2."""

BETWEEN = 1 / 2
"""The share of it that lies between plates; the rest is within them."""

SCATTER = 1 / 2
"""Of an array mean's variance at reference speeds, the share that projected array means are taken to have."""

TRUTHS = 256
"""Steps of [0, U] in which the ends of a projected mean's interval are found, rounded outwards."""

_LEAST_SHAPE = 1e-4
"""At the ends of [0, U] nothing scatters; to divide by its standard deviation it scatters by a hundredth."""

NOBODY = np.empty(0, dtype=np.int64)


class Accuracy(NamedTuple):
    """What a released mean can be off by, in quanta: expected absolute error, and ends of the 95 % interval."""

    expected_abs_error: float
    low: float
    high: float


def accuracy_of(
    plan: MeanPlan,
    noisy: float,
    noise: float,
    left_out: Integers = NOBODY,
    projected_to: tuple[int, int] | None = None,
) -> Accuracy:
    """Of a noisy mean with noise of this expected size (above 0), and the private interval if there was one.

    Everything in quanta. What is released is the noisy mean put into the range. The true mean is that of the plan's
    plates and of those left out, which have these counts.
    """
    off, filled = _scattered(plan, left_out)
    if projected_to is not None:
        return _projected(plan, noisy, noise, off, projected_to)
    at, width = plan.range.low, plan.range.width
    error, own = expected_abs_error(noise, _with_fill(plan, off, filled), width), 1 - filled
    if own == 0:
        return Accuracy(error, float(at), float(plan.range.high))
    unfilled = (noisy - at - filled * plan.fill) / own
    low, high = interval95(plan.noise, unfilled, noise / own, off / own, width)
    value = plan.released(noisy)
    return Accuracy(error, min(value, at + low), max(value, at + high))


def _projected(plan: MeanPlan, noisy: float, noise: float, off: float, interval: tuple[int, int]) -> Accuracy:
    """By what each truth would have given; `off` is the spread before projection."""
    at, width = plan.range.low, plan.range.width
    a, b = interval[0] - at, interval[1] - at
    value, noisy = plan.released(noisy) - at, noisy - at
    truths = np.linspace(0, width, TRUTHS + 1)
    less = np.sqrt(np.maximum(_LEAST_SHAPE, 4 * truths * (width - truths) / width**2))
    scatter = less * sqrt(SCATTER * array_variance(plan))
    centre, around = _clipped(truths, (a, b), scatter, int(plan.divisor), less * off)
    low_end = plan.noise.low_end
    low, high = a + low_end(noisy - a, noise, around, b - a), b - low_end(b - noisy, noise, around, b - a)
    ruled_out_by = np.maximum(low - centre, centre - high)
    left = np.flatnonzero(ruled_out_by <= max(0.0, ruled_out_by.min()))
    ends = truths[max(0, left[0] - 1)], truths[min(TRUTHS, left[-1] + 1)]
    size = np.hypot(noise, around)
    log_likelihood = -np.abs(noisy - centre) / size - np.log(size)
    likely = np.exp(log_likelihood - log_likelihood.max())  # with next to no noise, all would else be 0
    error = float(np.abs(value - truths) @ likely / likely.sum())
    return Accuracy(error, at + min(value, float(ends[0])), at + max(value, float(ends[1])))


def _clipped(
    truths: Floats, interval: tuple[int, int], scatter: Floats, arrays: int, off: Floats
) -> tuple[Floats, Floats]:
    """Where a projected mean lies for each truth, and its spread; by the moments of a clipped normal variable."""
    ends = (np.array(interval)[:, None] - truths) / scatter
    (a, b), (below_a, below_b) = ends, (1 + _erf(ends / sqrt(2))) / 2
    density_a, density_b = np.exp(-(ends**2) / 2) / sqrt(2 * pi)
    inside = below_b - below_a
    mean = a * below_a + (density_a - density_b) + b * (1 - below_b)
    square = a * a * below_a + inside + a * density_a - b * density_b + b * b * (1 - below_b)
    clipping = np.maximum(0.0, square - mean * mean - inside * inside) * scatter**2
    return truths + scatter * mean, np.sqrt(clipping / arrays + (inside * off) ** 2)


_erf = np.vectorize(erf, otypes=[float])


def spread(plan: MeanPlan, left_out: Integers = NOBODY) -> float:
    """Standard deviation of (estimate without noise - sample mean) at the reference speeds, in quanta.

    The sample mean is that of the plan's plates and of those left out, which have these counts. Before any projection.
    """
    return _with_fill(plan, *_scattered(plan, left_out))


def _with_fill(plan: MeanPlan, scattered: float, filled: float) -> float:
    return hypot(scattered, filled * hypot(plan.fill - plan.range.width / 2, plan.range.width / sqrt(12)))


def _scattered(plan: MeanPlan, left_out: Integers) -> tuple[float, float]:
    """The spread around (1 - d) t + d c, where t is the true mean; and d, the share of the public fill c."""
    counts, given = plan.counts, plan.given
    if not (left_out.size or plan.bias_bound):
        return 0.0, 0.0
    weight: Floats | float = 1 / plan.divisor
    if plan.arrays is not None:
        weight = weight / plan.arrays.filled.take(plan.arrays.of_plate)
    elif plan.moves is None:
        weight = weight / plan.cap
    of_plate = weight * given
    own = float(of_plate.sum())
    even = own / (counts.total + int(left_out.sum()))
    between = of_plate - even * counts.by_plate
    squares = float((between * between).sum()) + even**2 * float((left_out * left_out).sum())
    within = float((weight * of_plate).sum()) - even * own
    scattered = VARIANCE * (BETWEEN * squares + (1 - BETWEEN) * within)
    return plan.range.width * sqrt(max(0.0, scattered)), max(0.0, 1 - own)


def expected_abs_error(noise: float, spread: float, width: int) -> float:
    """Expected |released mean - sample mean| for noise of this expected size (above 0); all in quanta.

    >>> round(expected_abs_error(3.0, 4.0, 1000), 2), round(expected_abs_error(1e9, 0.0, 1000))
    (4.97, 500)
    """
    size = hypot(noise, spread)
    return size * (1 + size / width * expm1(-width / size))


def array_variance(plan: MeanPlan) -> float:
    """Of an array's mean at the reference speeds, mean over the plan's arrays, in quanta^2.

    Plates with the shares q_l of an array of w samples give it the variance U^2/24 (sum_l q_l^2 + 1/w).
    """
    if plan.arrays is not None:
        filled = plan.arrays.filled
        shares = plan.given / filled.take(plan.arrays.of_plate)
        squares, alone = float((shares * shares).sum()) / filled.size, float((1 / filled).mean())
    else:
        arrays, poured = int(plan.divisor), np.cumsum(plan.given[plan.counts.order])
        cuts = np.union1d(poured, plan.cap * np.arange(arrays + 1))
        shares = np.diff(cuts) / plan.cap
        squares, alone = float((shares * shares).sum()) / arrays, 1 / plan.cap
    return plan.range.width**2 * VARIANCE * (BETWEEN * squares + (1 - BETWEEN) * alone)
