"""Data drawn as the papers say (arXiv 2401.15906, Section IV-C): Gaussian speeds clipped to [0, U], scaled counts."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from udp_stream.experiments.base import DataSet, Hat, Integers
from udp_stream.mechanisms.grouping import SamplesPerPlate
from udp_stream.mechanisms.range import Range
from udp_stream.planning.worst_case import Occupancy
from udp_stream.units import QUANTA_PER_KMH

ITMS_TOTAL, ITMS_LARGEST, ITMS_MEDIAN = 17_166, 417, 46
"""Published of the papers' HAT: samples in all, of the largest user, of the median user; U = 65 km/h."""

ITMS_MEAN_KMH, ITMS_SD_KMH = 20.66769, 15.0
"""The mean is published. The standard deviation is not: 15 km/h is that of the Surat feed at hand (14.8)."""

ITMS_USERS, ITMS_SPREAD = 249, 0.92
"""Not published: fitted. A lognormal about the median with these has the published total and K = 160 arrays."""

ITMS_MAX_KMH = 65

LAMBDA = 10
"""The papers' scaling factor."""


def itms_counts() -> Integers:
    """Counts with all that is published of the papers' HAT: total, largest, median, and K = 160 at their cap.

    >>> counts = itms_counts()
    >>> int(counts.sum()), int(counts.max()), SamplesPerPlate(counts).median
    (17166, 417, 46)
    """
    normal = NormalDist()
    spread = np.exp([ITMS_SPREAD * normal.inv_cdf((i + 0.5) / ITMS_USERS) for i in range(ITMS_USERS)])
    counts = np.clip(np.round(ITMS_MEDIAN * spread), 1, ITMS_LARGEST).astype(np.int64)
    missing = ITMS_TOTAL - int(counts.sum())
    below_largest = np.flatnonzero(counts < ITMS_LARGEST)[::-1]
    counts[below_largest[:missing]] += 1
    return counts


def gaussian_hat(counts: Integers, mean_kmh: float, sd_kmh: float, range: Range, rng: np.random.Generator) -> Hat:
    """Independent speeds for these counts, normal and clipped to [0, U] (quanta)."""
    speeds = rng.normal(mean_kmh * QUANTA_PER_KMH, sd_kmh * QUANTA_PER_KMH, int(counts.sum()))
    return Hat(SamplesPerPlate(counts), np.clip(np.round(speeds), range.low, range.high).astype(np.int64))


def itms_like(rng: np.random.Generator) -> DataSet:
    """The papers' HAT in its likeness, as their own data are not public."""
    range = Range(0, ITMS_MAX_KMH * QUANTA_PER_KMH)
    hat = gaussian_hat(itms_counts(), ITMS_MEAN_KMH, ITMS_SD_KMH, range, rng)
    return DataSet("ITMS-like", False, range, (hat,))


def samples_scaled(counts: Integers) -> Integers:
    """Every user with lambda times the samples."""
    return counts * LAMBDA


def users_scaled(counts: Integers) -> Integers:
    """Every user lambda times over."""
    return np.repeat(counts, LAMBDA)


HEAVY_HATS = 12
"""The slides' synthetic city: a loss of 12 epsilon before, from a single heavy hitter."""


def heavy_hitter_city(rng: np.random.Generator) -> Occupancy:
    """One plate in all twelve HATs, each other one in one to three; HATs of 8 to 60 plates, geometric counts.

    What the slides do not give is ours: the sizes of HATs, the counts, and that others visit up to three.
    """
    rows: set[tuple[int, int]] = {(hat, 0) for hat in range(HEAVY_HATS)}
    plate = 1
    for hat, size in enumerate(np.linspace(8, 60, HEAVY_HATS).astype(int).tolist()):
        for _ in range(size):
            others = rng.choice(HEAVY_HATS, int(rng.integers(0, 3)), replace=False).tolist()
            rows.update((place, plate) for place in {hat, *others})
            plate += 1
    hats, plates = np.array(sorted(rows)).T  # a set has no order, and searchsorted needs one
    return Occupancy(
        np.searchsorted(hats, np.arange(HEAVY_HATS + 1)), plates, 1 + rng.geometric(1 / 20, hats.size), plate
    )
