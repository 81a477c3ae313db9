"""Mean absolute errors of the mean mechanisms over epsilon: what the three experiments on means measure and compare."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from udp_stream.experiments.base import EPSILONS, Curve, DataSet, Hat, Job, Panel, Setup
from udp_stream.experiments.repeated import buffered, error_of, repeated_means_of
from udp_stream.mechanisms.grouping import SamplesPerPlate
from udp_stream.mechanisms.means import MECHANISMS, ArrayAveraging, MeanPlan
from udp_stream.mechanisms.means._projected import levy_cap
from udp_stream.mechanisms.means.base import Grouping
from udp_stream.mechanisms.noise import pure
from udp_stream.mechanisms.range import Range
from udp_stream.units import NANO, QUANTA_PER_KMH


@dataclass(frozen=True, slots=True)
class Series:
    """A mechanism under a grouping; `levys_cap` gives Array-Averaging the cap that Levy would take."""

    mechanism: str
    grouping: Grouping = "best-fit"
    levys_cap: bool = False

    @property
    def name(self) -> str:
        """As in tables and legends."""
        wrapped = ", wrap-around" if self.grouping == "wrap-around" else ""
        return self.mechanism + wrapped + (", Levy's cap" if self.levys_cap else "")

    def plan(self, counts: SamplesPerPlate, epsilon: float, range: Range) -> MeanPlan:
        """The mechanism's own plan for these counts."""
        asked = counts, pure(round(epsilon * NANO)), range, self.grouping
        if self.levys_cap:
            return ArrayAveraging().plan_with_cap(*asked, levy_cap(counts))
        return MECHANISMS[self.mechanism].plan(*asked)


CLIPPING = tuple(Series(name) for name in ("array-averaging", "levy", "fixed-quantile", "eps-quantile"))
"""The papers' mechanisms beside Baseline."""

PUBLISHED = (Series("baseline"), *CLIPPING)

OURS = (Series("optimal"),)

WRAPPED = tuple(Series(one.mechanism, "wrap-around") for one in CLIPPING)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanRow:
    """One point: the error over the given HATs, weighed by their pings, beside the baseline guess's over the same.

    `noise_kmh` is the expected absolute noise that counts alone can state (for projected means: at the whole of U).
    """

    data: str
    hats: str
    series: str
    epsilon: float
    error_kmh: float
    standard_error_kmh: float
    constant_kmh: float
    constant: str
    share_of_pings: float
    noise_kmh: float
    hat_count: int
    plates: int
    samples: int
    repetitions: int


def points(setup: Setup, data: DataSet, label: str, hats: Sequence[Hat], series: Iterable[Series]) -> Iterator[Job]:
    """A piece of work for each mechanism and epsilon."""
    for one in series:
        for epsilon in EPSILONS:
            yield partial(_point, setup, data, label, hats, one, epsilon)


def _point(
    setup: Setup, data: DataSet, label: str, hats: Sequence[Hat], series: Series, epsilon: float
) -> list[MeanRow]:
    """Repetitions are shared out over the HATs: at least that many draws in all."""
    bits = buffered(setup.bits(f"{data.name}/{label}/{series.name}/{epsilon}"))
    draws = -(-setup.repetitions // len(hats))
    plans = [series.plan(hat.counts, epsilon, data.range) for hat in hats]
    found = repeated_means_of(plans, [hat.samples for hat in hats], draws, bits)
    errors = [error_of(values, hat.mean) for values, hat in zip(found, hats, strict=True)]
    weights = np.array([hat.counts.total for hat in hats]) / sum(hat.counts.total for hat in hats)
    error, spread = np.array(errors).T / QUANTA_PER_KMH
    return [
        MeanRow(
            data=data.name,
            hats=label,
            series=series.name,
            epsilon=epsilon,
            error_kmh=float(weights @ error),
            standard_error_kmh=float(np.sqrt(weights**2 @ spread**2)),
            constant_kmh=data.constant_error_kmh(hats),
            constant=data.constant_is,
            share_of_pings=data.share(hats),
            noise_kmh=float(weights @ np.array([plan.noise_bound for plan in plans])) / QUANTA_PER_KMH,
            hat_count=len(hats),
            plates=sum(hat.counts.plates for hat in hats),
            samples=sum(hat.counts.total for hat in hats),
            repetitions=draws * len(hats),
        )
    ]


class Errors:
    """The rows of one data set and choice of HATs, by series."""

    def __init__(self, rows: Sequence[MeanRow], data: str, hats: str) -> None:
        """Pick them out."""
        self.rows = [row for row in rows if (row.data, row.hats) == (data, hats)]

    def of(self, series: Series) -> list[MeanRow]:
        """One series, by epsilon."""
        return sorted((row for row in self.rows if row.series == series.name), key=lambda row: row.epsilon)

    def error(self, series: Series) -> np.ndarray:
        """Its errors, by epsilon, in km/h."""
        return np.array([row.error_kmh for row in self.of(series)])

    def at(self, series: Series, epsilon: float = 1.0) -> float:
        """Its error at one epsilon."""
        return next(row.error_kmh for row in self.of(series) if row.epsilon == epsilon)

    def not_below(self, lower: Series, upper: Series) -> list[float]:
        """The epsilons at which `lower` does not err less than `upper`."""
        pairs = zip(self.of(lower), self.of(upper), strict=True)
        return [one.epsilon for one, other in pairs if one.error_kmh >= other.error_kmh]

    def said(self, series: Iterable[Series], epsilon: float = 1.0) -> str:
        """'levy 0.91, baseline 1.58': least first."""
        found = sorted((self.at(one, epsilon), one.name) for one in series)
        return ", ".join(f"{name} {error:.3g}" for error, name in found)

    def panel(self, title: str, series: Iterable[Series]) -> Panel:
        """Error over epsilon, with the baseline guess across."""
        curves = [Curve(one.name, EPSILONS, tuple(row.error_kmh for row in self.of(one))) for one in series]
        constant = (self.rows[0].constant_kmh,) * 2
        curves.append(
            Curve(f"baseline guess ({self.rows[0].constant})", (EPSILONS[0], EPSILONS[-1]), constant, "guess")
        )
        log = all(y > 0 for curve in curves for y in curve.y)
        return Panel(title, "epsilon per mean", "mean absolute error, km/h", tuple(curves), log_y=log)

    def beside_the_constant(self, series: Iterable[Series]) -> str:
        """Which mechanism beats the baseline guess, and from which epsilon on."""
        constant = self.rows[0].constant_kmh
        better: list[str] = []
        never: list[str] = []
        for one in series:
            won = [row.error_kmh < constant for row in self.of(one)]
            since = next((row.epsilon for i, row in enumerate(self.of(one)) if all(won[i:])), None)
            (never if since is None else better).append(one.name if since is None else f"{one.name} from {since:g}")
        said = f"the baseline guess ({self.rows[0].constant}) errs by {constant:.2f} km/h; "
        said += f"share of pings served {self.rows[0].share_of_pings:.0%}; "
        said += f"better than it, by epsilon: {', '.join(better) or 'none'}"
        return said + (f"; not up to {EPSILONS[-1]:g}: {', '.join(never)}" if never else "")


def falls(values: Sequence[float]) -> bool:
    """Whether no value is above the one before."""
    return all(later <= earlier for earlier, later in pairwise(values))
