"""What a round's charge buys: the noise's scale, and how far a weighted average of noisy values may be off.

Noise is drawn in lattice *steps*. A value that moves by at most `moves` steps for each unit of distance gets, at a
charge of epsilon (rho) per unit (squared), radial Laplace noise of b = moves / epsilon, or Gaussian noise of sigma =
moves / sqrt(2 rho) in every coordinate (*Adaptive Privacy Budgeting*, Liang and Yi, Lemma 3.4), with scales rounded up.
Both are discrete and exact (`mechanisms/noise`).

**Averages.** Noisy values v_j of one plate are averaged with weights 1/b_j^2, or 1/sigma_j^2: W is their sum, over the
rounds that the plate was in. `*_radius` bound the length of what noise adds to the average, with probability 1 - beta.

*Gaussian.* Real Gaussian noise averages to deviation 1/sqrt(W), and has length at most lambda(d, beta) / sqrt(W)
(Lemma 6.1, Fact 6.2). A discrete Gaussian's moment generating function is at most a real one's: complete the square,
as in docs/mechanisms/gaussian.md. So for d = 1 the bound holds as it is, it being Chernoff's. For d > 1: f the joint
density of all rounds' noise without its factor, C the unit cube around a joint lattice point z. By Jensen's inequality
f(z) <= e^(d W / 24) times the mean of f over C, and N >= sigma sqrt(2 pi) by Poisson's formula. In C the average
differs by at most sqrt(d)/2 from that at z. So

    P(length > r) <= e^(d W / 24) P(real noise > r - sqrt(d)/2),

and the radius is sqrt(d)/2 + lambda(d, beta e^(-d W / 24)) / sqrt(W).

*Laplace.* In the same way, by |z + u| <= |z| + sqrt(d)/2 in place of Jensen's inequality, the discrete noise is as
likely as real noise but for sqrt(d)/2 and a factor e^(sqrt(d) sum_j 1/b_j), sum_j 1/b_j <= sqrt(J W). The length of one
real vector is b times a Gamma(d) variable. For several, <e, noise> has the moment generating function (1 - l^2
b^2)^(-(d+1)/2) in every direction e; averaged over the directions of the sphere the left side is I_d(l length): cosh x,
the Bessel function I_0(x) >= e^x / sqrt(2 pi x) for x >= 1, sinh x / x for d = 1, 2, 3. With a_j = 1 / (b_j W), their
largest a, l = k / a for a k < 1 and S = sum (a_j / a)^2 = W min b^2, Markov's inequality and convexity of -log(1 - k^2
y) in y = (a_j/a)^2 <= 1 give

    P(length > r) <= (1 - k^2)^(-S (d+1) / 2) / I_d(k r / a),

for any k; the best of a few is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log, pi, sqrt
from typing import NamedTuple

import numpy as np

from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.noise.base import DIVISOR_MAX, SCALE_MAX, Cost, Floats, Integers, Measure
from udp_stream.mechanisms.noise.families import noise_of
from udp_stream.mechanisms.noise.samplers import discrete_gaussian, discrete_radial_laplace, radial_scale_max

_SLOPES = 1 - 2.0 ** np.arange(-1, -9, -0.5)
"""k: from 0.5, for the average of many rounds, up to 0.996, for few."""

LAPLACE_DIMENSIONS_MAX = 3
"""Of Laplace noise that is averaged."""

_ROOTS = 12
"""Steps of a fixed point that falls towards its root: each of them bounds it."""


class Average(NamedTuple):
    """Of each plate's average: W, in steps^-2; the largest 1/b_j of its rounds, in steps^-1; how many rounds, J.

    >>> Average(np.array([0.25]), np.array([0.5]), 1).rounds
    1
    """

    precision: Floats
    sharpest: Floats
    rounds: Integers | int


def scale_of(moves: int, cost: Cost, dimensions: int) -> tuple[int, int]:
    """The scale t/s, in steps, for a value that a unit of distance moves by `moves` steps; rounded up.

    >>> from udp_stream.mechanisms.noise.base import concentrated, pure
    >>> t, s = scale_of(16_000, pure(10 * 10**9), dimensions=2)  # 10 per km: 100 m are 1600 sixteenths of a metre
    >>> t / s, scale_of(16_000, concentrated(10**9), 2)
    (1600.0, (46340951, 4096))

    Raises ValueError for a cost that is too small for its noise to be drawn.
    """
    over, under = noise_of(cost).unit_scale(cost)
    # The largest divisor first: rounding up adds the least there.
    for shift in range(DIVISOR_MAX.bit_length() - 1, -1, -1):
        t = -((-moves * over << shift) // under)
        if t <= _scale_max(cost.measure, dimensions):
            return t, 1 << shift
    raise ValueError(
        f"expected charges of at least {least_nano(moves, cost.measure, dimensions)} nano-"
        f"{'epsilon' if cost.measure == 'pure' else 'rho'} per round, got one of {cost.nano}: take fewer rounds"
    )


def least_nano(moves: int, measure: Measure, dimensions: int) -> int:
    """The least charge for which noise can be drawn, in nano-units.

    >>> least_nano(16_000, "zcdp", 1), least_nano(16_000, "pure", 2)
    (29, 476838)
    """
    most = _scale_max(measure, dimensions)

    def drawable(nano: int) -> bool:
        over, under = noise_of(Cost(measure, nano)).unit_scale(Cost(measure, nano))
        return -(-moves * over // under) <= most

    high = 1
    while not drawable(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if drawable(middle) else (middle, high)
    return high


def _scale_max(measure: Measure, dimensions: int) -> int:
    return radial_scale_max(dimensions) if measure == "pure" else SCALE_MAX


Draw = Callable[[Measure, Bits, Integers, Integers, int], Integers]
"""As `draw_radial`."""


def draw_radial(measure: Measure, bits: Bits, t: Integers, s: Integers, dimensions: int) -> Integers:
    """Noise of scales t/s, one row each: radial Laplace, or Gaussian in every coordinate.

    >>> import os
    >>> draw_radial("zcdp", os.urandom, np.full(5, 100), np.full(5, 1), dimensions=2).shape
    (5, 2)
    """
    if measure == "pure":
        return discrete_radial_laplace(bits, t, s, dimensions)
    return discrete_gaussian(bits, np.repeat(t, dimensions), np.repeat(s, dimensions)).reshape(-1, dimensions)


def gaussian_length(dimensions: int, log_beta: Floats) -> Floats:
    """lambda(d, beta) of Lemma 6.1: how long a standard normal vector is at most, with probability 1 - beta.

    >>> gaussian_length(2, np.log(np.array([0.05]))).round(3).tolist()
    [2.448]
    """
    away = -log_beta
    if dimensions == 1:
        return np.asarray(np.sqrt(2 * (away + log(2))))
    if dimensions == 2:
        return np.asarray(np.sqrt(2 * away))
    return np.asarray(np.sqrt(dimensions + 2 * np.sqrt(dimensions * away) + 2 * away))


def gaussian_radius(of: Average, dimensions: int, beta: float) -> Floats:
    """How far averages with Gaussian noise are off at most, in steps, with probability 1 - beta each.

    >>> gaussian_radius(Average(np.array([1e-4]), np.array([0.01]), 1), 1, 0.05).round(1).tolist()
    [271.6]
    """
    if dimensions == 1:
        radius: Floats = gaussian_length(1, np.array(log(beta))) / np.sqrt(of.precision)
        return radius
    log_beta = log(beta) - dimensions * of.precision / 24
    length: Floats = gaussian_length(dimensions, log_beta) / np.sqrt(of.precision)
    return length + sqrt(dimensions) / 2


def laplace_radius(of: Average, dimensions: int, beta: float) -> Floats:
    """The same with radial Laplace noise, in up to three dimensions.

    >>> laplace_radius(Average(np.array([1e-4]), np.array([0.01]), 1), 1, 0.05).round(1).tolist()
    [301.1]
    """
    log_beta = log(beta) - np.sqrt(dimensions * of.rounds * of.precision)
    rounds = of.precision / of.sharpest**2
    tails = [_sphere_root(dimensions, -log_beta - rounds * (dimensions + 1) / 2 * log(1 - k * k)) / k for k in _SLOPES]
    # 1 / (b W) times r: a = 1 / (min b W)
    average = np.min(tails, axis=0) * of.sharpest / of.precision
    one = _gamma_root(dimensions, -log_beta) / of.sharpest
    radius: Floats = np.where(of.rounds == 1, one, average) + sqrt(dimensions) / 2
    return radius


def _sphere_root(dimensions: int, away: Floats) -> Floats:
    """An x with log I_d(x) >= away."""
    if dimensions == 1:
        return np.asarray(away + log(2))
    if dimensions == 2:
        return _root(lambda x: away + np.log(2 * pi * x) / 2, away)
    # log(sinh x / x) >= x - log(2 x) + log(1 - e^-2) for x >= 1
    return _root(lambda x: away + np.log(2 * x) + 0.146, away)


def _gamma_root(dimensions: int, away: Floats) -> Floats:
    """An x beyond which a Gamma(d) variable lies with probability e^-away at most."""
    if dimensions == 1:
        return away
    if dimensions == 2:
        return _root(lambda x: away + np.log1p(x), away)
    return _root(lambda x: away + np.log1p(x + x * x / 2), away)


def _root(falling: Callable[[Floats], Floats], away: Floats) -> Floats:
    x = np.asarray(2 * away + 8)
    for _ in range(_ROOTS):
        x = np.maximum(1.0, falling(x))
    return x


def radius_of(measure: Measure, of: Average, dimensions: int, beta: float) -> Floats:
    """How far averages are off at most, in steps, with probability 1 - beta each.

    >>> average = Average(np.array([1e-4]), np.array([0.01]), 1)
    >>> [radius_of(measure, average, 2, 0.05).round(1).tolist() for measure in ("pure", "zcdp")]
    [[476.8], [245.5]]
    """
    return laplace_radius(of, dimensions, beta) if measure == "pure" else gaussian_radius(of, dimensions, beta)
