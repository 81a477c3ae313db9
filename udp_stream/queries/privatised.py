"""The noise of a round: what of a position gets noise, its scale by the charge, and the error of
weighted averages.

Noise is drawn in lattice *steps*. A value that moves by at most `sensitivity` steps for each unit
of distance gets, at a charge of epsilon (rho) per unit (squared), radial Laplace noise of b = moves
/ epsilon, or Gaussian noise of sigma = moves / sqrt(2 rho) in every coordinate (*Adaptive Privacy
Budgeting*, Liang and Yi, Lemma 3.4), with scales rounded up. Both are discrete and exact
(`mechanisms/noise`).

**Averages.** Noisy values v_j of a plate are averaged with weights 1/b_j^2, or 1/sigma_j^2: W is
their sum, over the rounds that the plate was in. `*_radius` bound the length of the average's
noise, with probability 1 - beta.

*Gaussian.* Real Gaussian noise averages to deviation 1/sqrt(W), and has length at most lambda(d,
beta) / sqrt(W) (Lemma 6.1, Fact 6.2). A discrete Gaussian's moment generating function is at most
that of a real Gaussian: complete the square, as in docs/mechanisms/gaussian.md. So for d = 1 the
bound holds as it is, it being Chernoff's. For d > 1: f the joint density of all rounds' noise
without its factor, C the unit cube around a joint lattice point z. By Jensen's inequality f(z) <=
e^(d W / 24) times the mean of f over C, and N >= sigma sqrt(2 pi) by Poisson's formula. In C the
average differs by at most sqrt(d)/2 from that at z. So

    P(length > r) <= e^(d W / 24) P(real noise > r - sqrt(d)/2),

and the radius is sqrt(d)/2 + lambda(d, beta e^(-d W / 24)) / sqrt(W).

*Laplace.* In the same way, by |z + u| <= |z| + sqrt(d)/2 in place of Jensen's inequality, the
discrete noise is as likely as real noise but for sqrt(d)/2 and a factor e^(sqrt(d) sum_j 1/b_j),
sum_j 1/b_j <= sqrt(J W). The length of a real vector is b times a Gamma(d) variable. For several,
<e, noise> has the moment generating function (1 - l^2 b^2)^(-(d+1)/2) in every direction e;
averaged over the directions of the sphere the left side is I_d(l length): cosh x, the Bessel
function I_0(x) >= e^x / sqrt(2 pi x) for x >= 1, sinh x / x for d = 1, 2, 3. With a_j = 1 / (b_j
W), their largest a, l = k / a for a k < 1 and S = sum (a_j / a)^2 = W min b^2, Markov's inequality
and convexity of -log(1 - k^2 y) in y = (a_j/a)^2 <= 1 give

    P(length > r) <= (1 - k^2)^(-S (d+1) / 2) / I_d(k r / a),

for any k; the best of a few is taken.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from math import inf, log, pi, sqrt
from typing import NamedTuple, Self

import numpy as np

from udp_stream.base.arrays import Floats, Integers
from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.noise import MEASURES, Cost, noise_of
from udp_stream.mechanisms.samplers import (
    DIVISOR_MAX,
    SCALE_MAX,
    discrete_gaussian,
    discrete_radial_laplace,
    radial_scale_max,
)

_SLOPES = 1 - 2.0 ** np.arange(-1, -9, -0.5)
"""Values of k that are tried: from 0.5, for the average of many rounds, up to 0.996, for few."""

_ROOTS = 12
"""Steps of a fixed point that falls towards its root: each of them bounds it."""

Draw = Callable[[str, Bits, Integers, Integers, int], Integers]


class Average(NamedTuple):
    """Each plate's average: W, in steps^-2; the largest 1/b_j of its rounds, in steps^-1; J, their
    number."""

    precision: Floats
    sharpest: Floats
    rounds: Integers | int


class RadialGaussian:
    """Gaussian noise in every coordinate. `unit_variance` is that of a coordinate at scale 1."""

    unit_variance = 1.0
    dimensions_max = inf

    def scale_max(self, dimensions: int) -> int:  # noqa: ARG002
        return SCALE_MAX

    def draw(self, bits: Bits, t: Integers, s: Integers, dimensions: int) -> Integers:
        """Noise of scales t/s, shape (rows, dimensions)."""
        return discrete_gaussian(bits, np.repeat(t, dimensions), np.repeat(s, dimensions)).reshape(
            -1, dimensions
        )

    def radius(self, of: Average, dimensions: int, beta: float) -> Floats:
        """How far averages are off at most, in steps, with probability 1 - beta each."""
        slack, half_cube = (
            (0.0, 0.0)
            if dimensions == 1
            else (dimensions * of.precision / 24, sqrt(dimensions) / 2)
        )
        return np.asarray(
            gaussian_length(dimensions, np.asarray(log(beta) - slack)) / np.sqrt(of.precision)
            + half_cube
        )


class RadialLaplace(RadialGaussian):
    """Radial Laplace noise, in up to three dimensions."""

    unit_variance = 2.0
    dimensions_max = 3

    def scale_max(self, dimensions: int) -> int:
        return radial_scale_max(dimensions)

    def draw(self, bits: Bits, t: Integers, s: Integers, dimensions: int) -> Integers:
        return discrete_radial_laplace(bits, t, s, dimensions)

    def radius(self, of: Average, dimensions: int, beta: float) -> Floats:
        log_beta = log(beta) - np.sqrt(dimensions * of.rounds * of.precision)
        rounds = of.precision / of.sharpest**2
        powers = ((k, rounds * (dimensions + 1) / 2 * log(1 - k * k)) for k in _SLOPES)
        tails = [_sphere_root(dimensions, -log_beta - power) / k for k, power in powers]
        # 1 / (b W) times r: a = 1 / (min b W)
        average = np.min(tails, axis=0) * of.sharpest / of.precision
        single = _gamma_root(dimensions, -log_beta) / of.sharpest
        return np.asarray(np.where(of.rounds == 1, single, average) + sqrt(dimensions) / 2)


_RADIAL: dict[int, RadialGaussian] = {1: RadialLaplace(), 2: RadialGaussian()}
"""Radial noises by the power of a family of noise."""


def radial_of(measure: str) -> RadialGaussian:
    """The noise of a measure."""
    return _RADIAL[MEASURES[measure].noise.power]


def draw_radial(measure: str, bits: Bits, t: Integers, s: Integers, dimensions: int) -> Integers:
    """Noise of scales t/s of the measure's family, shape (rows, dimensions)."""
    return radial_of(measure).draw(bits, t, s, dimensions)


def scale_of(sensitivity: int, cost: Cost, dimensions: int) -> tuple[int, int]:
    """The scale t/s, in steps, for a value that a unit of distance moves by `sensitivity` steps;
    rounded up.

    Raises ValueError for a cost that is too small for its noise to be drawn.
    """
    over, under = noise_of(cost).unit_scale(cost)
    most = radial_of(cost.measure).scale_max(dimensions)
    # The largest divisor first: rounding up adds the least there.
    for shift in range(DIVISOR_MAX.bit_length() - 1, -1, -1):
        t = -((-sensitivity * over << shift) // under)
        if t <= most:
            return t, 1 << shift
    raise ValueError(
        f"expected charges of at least {least_nano(sensitivity, cost.measure, dimensions)} nano-"
        f"{MEASURES[cost.measure].unit} per round, got one of {cost.nano}: take fewer rounds"
    )


def least_nano(sensitivity: int, measure: str, dimensions: int) -> int:
    """The least charge for which noise can be drawn, in nano-units."""
    most = radial_of(measure).scale_max(dimensions)

    def drawable(nano: int) -> bool:
        over, under = MEASURES[measure].noise.unit_scale(Cost(measure, nano))
        return -(-sensitivity * over // under) <= most

    high = 1
    while not drawable(high):
        high *= 2
    return bisect_left(range(high), True, lo=high // 2 + 1, key=drawable)


def gaussian_length(dimensions: int, log_beta: Floats) -> Floats:
    """Bound lambda(d, beta) of Lemma 6.1 on the length of a standard normal vector, with
    probability 1 - beta."""
    away = -log_beta
    if dimensions <= 2:
        return np.asarray(np.sqrt(2 * (away + (log(2) if dimensions == 1 else 0.0))))
    return np.asarray(np.sqrt(dimensions + 2 * np.sqrt(dimensions * away) + 2 * away))


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
    return _root(lambda x: away + np.log1p(x if dimensions == 2 else x + x * x / 2), away)


def _root(falling: Callable[[Floats], Floats], away: Floats) -> Floats:
    x = np.asarray(2 * away + 8)
    for _ in range(_ROOTS):
        x = np.maximum(1.0, falling(x))
    return x


# Each is a *valid triple* (M, g, h) for a 1-Lipschitz function phi (*Adaptive Privacy Budgeting*,
# Definition 5): M adds noise to a value, g estimates phi from the noisy values of several rounds, h
# bounds the estimate's error with probability 1 - beta: `PointNoise` is that of Corollary 6.1,
# `DistanceNoise` of Corollary 6.2.
#
# **Exactness.** Positions are on a lattice (`plane.py`), and so is their noise: the guarantee is
# exact. A distance is a real number. It is computed in floating point, rounded to a lattice 2^-k as
# fine as the positions', and its noise is made for a distance that moves by 2^k + 5/4 fine steps
# for each step of the position. *Proof that this covers rounding.* Two different positions are D >=
# 1 steps apart, their phi at most D, computed values of phi at most D + 2^-(k+2), for each is off
# by less than 2^-(k+3) (by less than 2^-20, `plane.py`; k <= 10). Rounded, the values differ by at
# most 2^k D + 1/4 + 1 <= (2^k + 5/4) D fine steps. QED. k is as large as the sampler's scales
# allow, up to 10: the noise is then 0.12 % larger than a real number's would be, 0.5 % at k = 8,
# and never more than 8 %.

Phi = Callable[[Floats], Floats]
"""A 1-Lipschitz function of positions, shape (positions, dimensions); both in lattice steps."""

FINE_BITS_MAX = 10
_FINE_BITS_MIN = 4


@dataclass(frozen=True)
class PointNoise:
    """The position itself gets noise, in up to three dimensions under epsilon, in any number under
    rho.

    >>> kind = PointNoise("pure", lambda positions: np.hypot(*positions.T), dimensions=2, steps_per_unit=16_000)
    >>> kind.estimate(np.array([[3.0, 4.0]])).tolist()
    [5.0]
    """

    measure: str
    phi: Phi
    dimensions: int
    steps_per_unit: int

    def __post_init__(self) -> None:
        most = radial_of(self.measure).dimensions_max
        if self.dimensions > most:
            raise ValueError(
                f"expected positions of up to {most} dimensions under epsilon, got {self.dimensions}: take rho"
            )

    @property
    def sensitivity(self) -> int:
        return self.steps_per_unit

    def values(self, positions: Integers) -> Integers:
        return positions

    def estimate(self, averages: Floats) -> Floats:
        return self.phi(averages)

    def radius(self, of: Average, beta: float) -> Floats:
        # Phi moves at most as far as the position.
        return radial_of(self.measure).radius(of, self.dimensions, beta)


@dataclass(frozen=True)
class DistanceNoise:
    """Phi of the position gets noise, on a lattice 2^-fine_bits as fine.

    >>> kind = DistanceNoise("zcdp", lambda positions: np.hypot(*positions.T), steps_per_unit=16_000, fine_bits=10)
    >>> kind.values(np.array([[3, 4], [1, 1]])).tolist(), kind.sensitivity
    ([[5120], [1448]], 16404000)
    """

    measure: str
    phi: Phi
    steps_per_unit: int
    fine_bits: int
    dimensions: int = 1

    @classmethod
    def finest(cls, phi: Phi, steps_per_unit: int, least: Cost) -> Self:
        """Noise on the finest lattice that the noise of a round with the least charge can be drawn
        on.

        Raises ValueError if there is none.
        """
        for fine_bits in range(FINE_BITS_MAX, _FINE_BITS_MIN - 1, -1):
            kind = cls(least.measure, phi, steps_per_unit, fine_bits)
            try:
                scale_of(kind.sensitivity, least, 1)
            except ValueError:
                if fine_bits == _FINE_BITS_MIN:
                    raise
            else:
                break
        return kind

    @property
    def sensitivity(self) -> int:
        # 2^k + 5/4 for each of the position's steps, rounded up
        return (self.steps_per_unit << self.fine_bits) + -(-5 * self.steps_per_unit // 4)

    def values(self, positions: Integers) -> Integers:
        exact = self.phi(positions.astype(np.float64)) * 2.0**self.fine_bits
        return np.rint(exact).astype(np.int64)[:, None]

    def estimate(self, averages: Floats) -> Floats:
        return averages[:, 0] / 2.0**self.fine_bits

    def radius(self, of: Average, beta: float) -> Floats:
        # Beside the noise's, half a step of rounding.
        return (radial_of(self.measure).radius(of, 1, beta) + 0.5) / 2.0**self.fine_bits

    def deviation(self, of: Average) -> Floats:
        """The standard deviation of averages, in lattice steps of positions."""
        variance = radial_of(self.measure).unit_variance / of.precision
        return np.asarray(np.sqrt(variance) / 2.0**self.fine_bits)


@dataclass(frozen=True)
class SummedNoise(DistanceNoise):
    """The sum of phi over all positions gets noise: the central model, with a single holder of all
    positions.

    A plate that moves changes a single term of the sum's `terms`, by as much as it changes its own
    value under `DistanceNoise`: terms are rounded separately, and their sum is exact. So noise for
    the sum is as large as noise for a plate.

    >>> kind = SummedNoise("zcdp", lambda positions: np.hypot(*positions.T), 16_000, fine_bits=10, terms=2)
    >>> kind.values(np.array([[3, 4], [1, 1]])).tolist(), kind.sensitivity
    ([[6568]], 16404000)
    """

    terms: int = 1

    def values(self, positions: Integers) -> Integers:
        total: Integers = super().values(positions).sum(axis=0, keepdims=True)
        return total[: min(1, positions.shape[0])]

    def radius(self, of: Average, beta: float) -> Floats:
        # Beside the noise's, half a step of rounding for each term.
        return (radial_of(self.measure).radius(of, 1, beta) + self.terms / 2) / 2.0**self.fine_bits


Privatised = PointNoise | DistanceNoise
"""A way to ask. `values` (in steps) get noise; their average gives an `estimate` of phi, in lattice
steps of positions, and its `radius`. A value moves by at most `sensitivity` steps for each unit of
distance."""
