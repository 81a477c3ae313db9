"""Noise: what a cost buys, exactly drawn. `base` is the seam, `samplers` the draws, `families` what a cost buys."""

from udp_stream.mechanisms.noise.base import SCALE_MAX, Cost, Integers, Measure, Noise, concentrated, pure
from udp_stream.mechanisms.noise.families import (
    FAMILIES,
    Lattice,
    charges_of,
    cost_within,
    counts_scale,
    expected_noise,
    expected_noise_of_counts,
    lattice_of,
    noise_of,
)

__all__ = [
    "FAMILIES",
    "SCALE_MAX",
    "Cost",
    "Integers",
    "Lattice",
    "Measure",
    "Noise",
    "charges_of",
    "concentrated",
    "cost_within",
    "counts_scale",
    "expected_noise",
    "expected_noise_of_counts",
    "lattice_of",
    "noise_of",
    "pure",
]
