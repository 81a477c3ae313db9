"""The table `cdf` of `make accuracy`: sup-errors of CDFs, over those of two oracles that cost no
budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.forecast_days import Day, Run
from udp_stream.base.units import QUANTA_PER_KMH
from udp_stream.release.record import Smoothed

Floats = NDArray[np.float64]

PLATES = 20, 10


@dataclass(frozen=True, slots=True)
class DayShapes:
    """The true CDFs of a day's HATs at whole km/h, and the oracles'."""

    kmh: Floats
    truth: Floats
    city: Floats
    dwell: Floats

    @classmethod
    def of(cls, day: Day, max_kmh: int) -> DayShapes:
        kmh = np.arange(max_kmh + 1.0)
        speeds = [np.minimum(values.speed / QUANTA_PER_KMH, max_kmh) for _, values in day.slots]
        truth = np.array(
            [
                below(speed[start:end], kmh)
                for (counts, values), speed in zip(day.slots, speeds, strict=True)
                for start, end in zip(*(values.starts[counts.hat_rows][which] for which in (slice(-1), slice(1, None))),
                                      strict=True)
            ]
        )  # fmt: skip
        design = np.vander(np.log(day.pings / day.plates), 3)
        large = day.plates >= min(PLATES)
        fitted = design @ np.linalg.lstsq(design[large], truth[large], rcond=None)[0]
        return cls(kmh, truth, below(np.concatenate(speeds), kmh), fitted)


def below(speed: Floats, kmh: Floats) -> Floats:
    shares: Floats = np.searchsorted(np.sort(speed), kmh, side="right") / speed.size
    return shares


def figures(day: Day, shapes: DayShapes, runs: Sequence[Run]) -> str:
    """Of HATs with a CDF: errors over both oracles', share told, what bands hold, expected over
    actual sup-error."""
    told = [np.array([one.cdf is not None for one in run.smoothed]) for run in runs]
    if not all(some.any() for some in told):
        return "the city is not told"
    found = [_of_run(shapes, run.smoothed, some) for run, some in zip(runs, told, strict=True)]
    plates = [day.plates[some] for some in told]
    said = []
    held = []
    for least in (*PLATES, 1):
        means = [
            one[:, many >= least].mean(axis=1) for one, many in zip(found, plates, strict=True)
        ]
        ours, city, dwell, bands, quantiles, expected = np.array(means).T
        said.append(f"{np.mean(ours / city):.3f}/{np.mean(ours / dwell):.3f}")
        held.append(bands.mean())
    return (
        f"{'  '.join(said[:-1])}  told {np.mean([some.mean() for some in told]):.2f}  bands hold {held[-1]:.3f}"
        f" ({held[0]:.3f})  quantiles {quantiles.mean():.3f}  expected/actual {np.mean(expected / ours):.2f}"
    )


def _of_run(shapes: DayShapes, estimates: Sequence[Smoothed], told: NDArray[np.bool_]) -> Floats:
    """A column for each HAT with a CDF: sup-errors of ours, city and dwell; held by bands, and
    quantiles; expected."""
    columns = []
    for one, truth, dwell in zip(estimates, shapes.truth, shapes.dwell, strict=True):
        if (cdf := one.cdf) is None:
            continue
        at_edges = np.interp(cdf.edges_kmh, shapes.kmh, truth)[:-1]
        low, high = np.array(cdf.band)[:, :-1]
        # Truths are known at whole km/h: the quantile is up to one below.
        held = [
            low_kmh <= (upto := shapes.kmh[np.argmax(truth >= float(share))])
            and upto - 1 <= high_kmh
            for share, (low_kmh, high_kmh) in (one.quantiles_interval95_kmh or {}).items()
        ]
        guesses = np.interp(shapes.kmh, cdf.edges_kmh, cdf.values), shapes.city, dwell
        columns.append(
            (
                *(abs(guess - truth).max() for guess in guesses),
                np.mean((low - 1e-4 <= at_edges) & (at_edges <= high + 1e-4)),
                np.mean(held),
                one.expected_sup_error or 0.0,
            )
        )
    if len(columns) != told.sum():
        raise ValueError("expected a CDF of each HAT that was told")
    return np.array(columns).T
