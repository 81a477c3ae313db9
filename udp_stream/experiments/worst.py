"""`worst-case`: E(m), its best m, and the limits of epsilon of the slides, beside the optimum with a public fill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from udp_stream.experiments.base import (
    Curve,
    DataSet,
    Experiment,
    Figure,
    Job,
    Outcome,
    Panel,
    Setup,
    Table,
    Verdict,
    slug,
)
from udp_stream.experiments.means import BUSIEST, choices, data_sets, falls
from udp_stream.mechanisms.base import Range, SamplesPerPlate
from udp_stream.mechanisms.means import Baseline, Optimal
from udp_stream.mechanisms.noise import pure
from udp_stream.planning.suppression import epsilon_limits
from udp_stream.units import NANO, QUANTA_PER_KMH

SWEEP = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0)
"""Epsilons: the best m moves below 1 only."""

DRAWN = (0.02, 0.1, 0.5, 2.0)
"""Epsilons whose E(m) is drawn."""

SOURCE = "slides, properties of m(epsilon)"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstRow:
    """The least worst-case error of one HAT, or of several, weighed by pings; the baseline guess is always U/2."""

    data: str
    hats: str
    epsilon: float
    best_m: int
    worst_error_kmh: float
    baseline_worst_kmh: float
    optimal_m: int
    optimal_worst_kmh: float
    constant_worst_kmh: float
    share_of_pings: float
    hat_count: int


@dataclass(frozen=True, slots=True)
class CurveRow:
    """E(m) at one count m of the busiest HAT."""

    data: str
    epsilon: float
    m: int
    worst_error_kmh: float
    constant_worst_kmh: float
    share_of_pings: float


@dataclass(frozen=True, slots=True)
class Worst:
    """What counts alone say of one HAT at one epsilon, as shares of U: the papers' rule and the optimum with a fill."""

    best_m: int
    error: float
    baseline: float
    optimal_m: int
    optimal: float


def worst_of(counts: SamplesPerPlate, epsilon: float, range: Range) -> Worst:
    """Least E(m) at its largest best m, and its two neighbours."""
    nano = round(epsilon * NANO)
    errors = counts.errors_at_every_count(NANO / nano)
    at = int(np.argmin(errors))
    optimal = Optimal().plan(counts, pure(nano), range, "best-fit")
    baseline = Baseline().plan(counts, pure(nano), range, "best-fit").error_bound
    return Worst(
        int(counts.descending[at]),
        float(errors[at]),
        baseline / range.width,
        optimal.cap,
        optimal.error_bound / range.width,
    )


def jobs(setup: Setup) -> list[Job]:
    """Each epsilon on the busiest HAT and, of feeds, on all HATs with enough plates; E(m) at some."""
    work: list[Job] = []
    for data in data_sets(setup):
        work += [partial(_rows, setup, data, epsilon) for epsilon in SWEEP]
        work += [partial(_curve_rows, data, epsilon) for epsilon in DRAWN]
    return work


def _rows(setup: Setup, data: DataSet, epsilon: float) -> list[WorstRow]:
    return [
        worst_row(data.name, label, [hat.counts for hat in hats], data.range, epsilon, data.share(hats))
        for label, hats in choices(setup, data)
    ]


def worst_row(
    data: str, label: str, hats: Sequence[SamplesPerPlate], range: Range, epsilon: float, share: float
) -> WorstRow:
    """One row from HATs' counts, U in quanta; the caps are those of the median HAT."""
    found = [worst_of(counts, epsilon, range) for counts in hats]
    weights = [counts.total for counts in hats]
    most = range.width / QUANTA_PER_KMH
    worst, baseline, optimal = (
        float(np.average(errors, weights=weights)) * most
        for errors in zip(*((one.error, one.baseline, one.optimal) for one in found), strict=True)
    )
    return WorstRow(
        data=data,
        hats=label,
        epsilon=epsilon,
        best_m=int(np.median([one.best_m for one in found])),
        worst_error_kmh=worst,
        baseline_worst_kmh=baseline,
        optimal_m=int(np.median([one.optimal_m for one in found])),
        optimal_worst_kmh=optimal,
        constant_worst_kmh=most / 2,
        share_of_pings=share,
        hat_count=len(hats),
    )


def _curve_rows(data: DataSet, epsilon: float) -> list[CurveRow]:
    return curve_rows(data.name, data.busiest.counts, data.range, epsilon, data.share([data.busiest]))


def curve_rows(data: str, counts: SamplesPerPlate, range: Range, epsilon: float, share: float) -> list[CurveRow]:
    """E(m) at each count, ascending."""
    most = range.width / QUANTA_PER_KMH
    errors = counts.errors_at_every_count(NANO / round(epsilon * NANO)) * most
    by_count = dict(zip(counts.descending.tolist(), errors.tolist(), strict=True))
    return [CurveRow(data, epsilon, m, error, most / 2, share) for m, error in sorted(by_count.items())]


def conclude(setup: Setup, rows: Sequence[WorstRow | CurveRow]) -> Outcome:
    """Figures like the slides', and their properties tried."""
    points = [row for row in rows if isinstance(row, WorstRow)]
    curves = [row for row in rows if isinstance(row, CurveRow)]
    figures, verdicts = [], []
    for data in data_sets(setup):
        here = [row for row in points if (row.data, row.hats) == (data.name, BUSIEST)]
        everywhere = [row for row in points if row.data == data.name and row.hats != BUSIEST]
        counts = data.busiest.counts
        panels = [
            e_of_m([row for row in curves if row.data == data.name]),
            best_m(counts, here),
            least_errors(here[0].hats, here),
        ]
        if everywhere:
            share = f"{everywhere[0].share_of_pings:.0%} of pings"
            panels.append(least_errors(f"{everywhere[0].hats} ({share})", everywhere))
        title = f"{data.name}; busiest HAT: {counts.plates} plates, {counts.total:,} samples"
        figures.append(Figure(f"worst-case-{slug(data.name)}", title, tuple(panels)))
        verdicts += [
            *property_verdicts(data.name, counts),
            *(_improvement(some) for some in (here, everywhere) if some),
        ]
    tables = Table("worst-case", tuple(points)), Table("worst-case-of-m", tuple(curves))
    return Outcome(tables, tuple(figures), tuple(verdicts))


def e_of_m(rows: Sequence[CurveRow]) -> Panel:
    """E(m), a curve for each epsilon, with its least value marked, and the baseline guess across."""
    curves, least = [], []
    for epsilon in sorted({row.epsilon for row in rows}):
        points = [(float(row.m), row.worst_error_kmh) for row in rows if row.epsilon == epsilon]
        curves.append(_through(f"epsilon {epsilon:.3g}", points))
        least.append(min(points, key=lambda point: point[1]))
    curves.append(_through("best m", least, "marks"))
    ends = float(min(row.m for row in rows)), float(max(row.m for row in rows))
    curves.append(Curve("baseline guess (U/2)", ends, (rows[0].constant_worst_kmh,) * 2, "guess"))
    return Panel("E(m)", "cap m, samples", "worst-case error, km/h", tuple(curves), log_x=True, log_y=True)


def _through(name: str, points: Sequence[tuple[float, float]], kind: Literal["curve", "marks"] = "curve") -> Curve:
    return Curve(name, tuple(x for x, _ in points), tuple(y for _, y in points), kind)


def best_m(counts: SamplesPerPlate, rows: Sequence[WorstRow]) -> Panel:
    """The best caps over epsilon, with the exact limits beyond which they stay."""
    least, most = epsilon_limits(counts)
    epsilons = tuple(row.epsilon for row in rows)
    curves = [
        Curve("papers' rule", epsilons, tuple(float(row.best_m) for row in rows)),
        Curve("public fill", epsilons, tuple(float(row.optimal_m) for row in rows)),
    ]
    if np.isfinite(least) and least > 0:
        ends = float(counts.descending[-1]), float(counts.largest)
        curves.append(Curve("eps_min, eps_max (exact)", (least, most), ends, "marks"))
    return Panel("best cap", "epsilon per mean", "cap m, samples", tuple(curves), log_x=True, log_y=True)


def least_errors(title: str, rows: Sequence[WorstRow]) -> Panel:
    """The least worst-case error over epsilon: no cap, the papers' rule, a public fill, the baseline guess."""
    epsilons = tuple(row.epsilon for row in rows)
    curves = [
        Curve(name, epsilons, tuple(getattr(row, field) for row in rows))
        for name, field in (
            ("baseline", "baseline_worst_kmh"),
            ("papers' rule", "worst_error_kmh"),
            ("public fill", "optimal_worst_kmh"),
        )
    ]
    curves.append(Curve("baseline guess (U/2)", epsilons, tuple(row.constant_worst_kmh for row in rows), "guess"))
    return Panel(title, "epsilon per mean", "least worst-case error, km/h", tuple(curves), log_x=True, log_y=True)


def best_caps(counts: SamplesPerPlate, epsilon: float) -> list[int]:
    """All best m among *all* caps 1..m_max (up to rounding), from the formula itself."""
    caps = np.arange(1, counts.largest + 1)
    up_to = np.cumsum(np.bincount(counts.by_plate))
    kept = np.cumsum(counts.plates - up_to[:-1])
    errors = 1 - kept / counts.total + caps / (epsilon * kept)
    smallest = int(counts.descending[-1])
    errors[: smallest - 1] = np.inf  # the papers' m lies in [m_min, m_max]
    return (np.flatnonzero(errors <= errors.min() * (1 + 1e-12)) + 1).tolist()


def printed_limits(counts: SamplesPerPlate) -> tuple[float, float]:
    """eps_min and eps_max as the slides print them."""
    smallest = float(counts.descending[-1])
    return smallest / (counts.plates * counts.total), (counts.total / (counts.plates * smallest)) ** 2


def property_verdicts(name: str, counts: SamplesPerPlate) -> list[Verdict]:
    """The three properties of the slides, each tried over all caps; the limits as printed and exact."""
    grid = np.geomspace(1e-4, 10, 400).tolist()
    best = [best_caps(counts, epsilon) for epsilon in grid]
    values = set(counts.by_plate.tolist())
    least, most = int(counts.descending[-1]), counts.largest
    printed_min, printed_max = printed_limits(counts)
    exact_min, exact_max = epsilon_limits(counts)
    below = best_caps(counts, printed_min)
    above = best_caps(counts, printed_max)
    return [
        Verdict(
            f"{name}: a best m is one of the counts",
            SOURCE,
            all(values & set(caps) for caps in best),
            f"at each of {len(grid)} epsilons from {grid[0]:g} to {grid[-1]:g}, over all {counts.largest} caps",
        ),
        Verdict(
            f"{name}: the best m is non-decreasing in epsilon",
            SOURCE,
            falls([-max(caps) for caps in best]),
            f"from {max(best[0])} to {max(best[-1])} over the same epsilons",
        ),
        Verdict(
            f"{name}: m_min is best up to eps_min, and m_max from eps_max on",
            SOURCE,
            least in below and most in above,
            f"holds at eps_min = {printed_min:.3g} and eps_max = {printed_max:.3g}, as printed; the exact limits are "
            f"{exact_min:.3g} and {exact_max:.3g}",
        ),
        Verdict(
            f"{name}: these limits say when capping helps",
            SOURCE,
            printed_min >= 0.5 * exact_min and printed_max <= 2 * exact_max,
            f"eps_min {exact_min / printed_min:.3g} times too small, eps_max {printed_max / exact_max:.3g} too big",
            "they are sufficient, not necessary: from epsilon 1 on capping never lowers the worst case",
        )
        if exact_max > 0
        else Verdict(
            f"{name}: these limits say when capping helps", SOURCE, False, "all counts are equal: nothing to cap"
        ),
    ]


def _improvement(rows: Sequence[WorstRow]) -> Verdict:
    ratios = {row.epsilon: row.optimal_worst_kmh / row.worst_error_kmh for row in rows}
    held = [row for row in rows if row.optimal_worst_kmh <= row.constant_worst_kmh]
    asked = {epsilon: f"{ratios[epsilon]:.2f} at {epsilon:g}" for epsilon in (0.1, 0.5, 1.0, 2.0)}
    return Verdict(
        f"{rows[0].data}, {rows[0].hats}: the optimum with a public fill has the lower worst-case error",
        "ours, beside 2405.06261's E(m); docs/mechanisms/optimal.md",
        all(ratio <= 1 + 1e-9 for ratio in ratios.values()),
        f"times that of the papers' rule, by epsilon: {', '.join(asked.values())}; share of pings "
        f"{rows[0].share_of_pings:.0%}; the baseline guess U/2 has {rows[0].constant_worst_kmh:g} km/h, "
        + (
            f"which the fill beats from epsilon {held[0].epsilon:g}"
            if held
            else "which it does not beat up to epsilon 2"
        ),
    )


EXPERIMENT = Experiment("worst-case", "E(m), the best cap, and the optimum with a public fill", jobs, conclude)
