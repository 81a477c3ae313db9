"""Which noise makes a cost true: the families, by the measure that they keep to."""

from __future__ import annotations

from udp_stream.mechanisms.noise.base import Cost, Measure, Noise
from udp_stream.mechanisms.noise.gaussian import DiscreteGaussian
from udp_stream.mechanisms.noise.laplace import DiscreteLaplace

FAMILIES: dict[Measure, Noise] = {"pure": DiscreteLaplace(), "zcdp": DiscreteGaussian()}
"""By the measure of the cost."""


def noise_of(cost: Cost) -> Noise:
    """The family that a cost is paid to.

    >>> from udp_stream.mechanisms.noise.base import concentrated, pure
    >>> noise_of(pure(10**9)).name, noise_of(concentrated(10**9)).name
    ('discrete-laplace', 'discrete-gaussian')
    """
    return FAMILIES[cost.measure]


def expected_noise(sensitivity: int, cost: Cost) -> float:
    """The expected size of the noise that a statistic of this sensitivity gets, before its scale is rounded up.

    >>> from udp_stream.mechanisms.noise.base import pure
    >>> expected_noise(3, pure(500_000_000))
    6.0
    """
    noise = noise_of(cost)
    over, under = noise.unit_scale(cost)
    return noise.expected_abs(sensitivity * over / under)


def expected_noise_of_counts(cost: Cost) -> float:
    """The same for counts in which a plate moves one sample; for m samples, m times as much.

    >>> from udp_stream.mechanisms.noise.base import pure
    >>> expected_noise_of_counts(pure(500_000_000))  # a sample leaves one count and enters another
    4.0
    """
    noise = noise_of(cost)
    over, under = noise.counts_unit_scale(cost)
    return noise.expected_abs(over / under)
