"""`savings-range`, `savings-kde`, `savings-knn`: one query by elimination, beside its baseline.

*Adaptive Privacy Budgeting* (Liang and Yi), Section 7.1, Figures 3 to 5, in kind: on the positions of recorded feeds,
and for the nearest also on clusters in 784 dimensions, as many as their images have. BM asks everyone once, for the
whole budget; PM eliminates, with c4, c64 and log-c10. Method 0 has noise on positions ("point"), method 1 on distances.
Of each: the error and the share of the budget that is left, mean and 25th and 75th percentile over moments and places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from udp_stream.experiments.base import Curve, Experiment, Figure, Integers, Job, Outcome, Panel, Setup, Table, Verdict
from udp_stream.experiments.positions import Positions
from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.noise.base import Cost, concentrated
from udp_stream.queries.density import Density
from udp_stream.queries.nearest import Nearest
from udp_stream.queries.plane import rho_per_square_metre
from udp_stream.queries.range_count import RangeCount
from udp_stream.queries.regions import Rectangle, positions_inside
from udp_stream.queries.splits import Split
from udp_stream.queries.terms import How, Terms
from udp_stream.units import NANO

SOURCE = "Adaptive Privacy Budgeting, Section 7.1"
RHOS = (1e-5, 1e-4, 1e-3)
"""Per square metre."""

SPLITS = {"BM": Split.even(1), "c4": Split.even(4), "c64": Split.even(64), "log-c10": Split.doubling(10)}
HOWS: tuple[How, ...] = ("point", "distance")

Once = tuple[float, float]
"""An error, and the share of the budget that is left."""

DIMENSIONS, CLUSTERS, POINTS = 784, 10, 400
IMAGES_MOST = 20
"""Repetitions: noise on positions is 784 draws a point."""

IMAGE_RHOS = (1e-5, 1e-4, 1e-3)
"""Per squared step of a pixel's value."""


@dataclass(frozen=True, slots=True)
class SavingsRow:
    """One query, parameter, budget, method and split, over its repetitions."""

    data: str
    query: str
    parameter: float
    rho: float
    privatisation: str
    split: str
    repetitions: int
    error_mean: float
    error_25: float
    error_75: float
    error_spread: float
    saved_mean: float
    saved_25: float
    saved_75: float


def row_of(
    data: str, query: str, parameter: float, rho: float, how: str, split: str, runs: Sequence[Once]
) -> SavingsRow:
    """The row of these runs; the spread is the mean error's standard deviation."""
    errors, saved = np.array(runs).T
    spread = float(errors.std() / np.sqrt(errors.size))
    quartiles = [*np.quantile(errors, (0.25, 0.75)), spread, saved.mean(), *np.quantile(saved, (0.25, 0.75))]
    return SavingsRow(data, query, parameter, rho, how, split, len(runs), float(errors.mean()), *map(float, quartiles))


def count_once(where: Integers, place: tuple[float, float], width: float, terms: Terms, bits: Bits) -> Once:
    """A square's count, and its error relative to the truth."""
    query = RangeCount(Rectangle(*place, width, width))
    pie, truth = query.elimination(terms), max(1, positions_inside(query.region, where))
    state = pie.run(where, bits)
    return abs(query.answer(terms, pie, state).value - truth) / truth, terms.saved(state)


def density_once(where: Integers, place: tuple[float, float], bandwidth: float, terms: Terms, bits: Bits) -> Once:
    """A density, and its absolute error."""
    query = Density(*place, bandwidth)
    pie = query.elimination(terms)
    state = pie.run(where, bits)
    return abs(query.answer(terms, pie, state).value - query.truth(where)), terms.saved(state)


def nearest_once(query: Nearest, where: Integers, terms: Terms, bits: Bits) -> Once:
    """The nearest, and how much farther away they are together than the true ones, relative to these."""
    pie, distance = query.elimination(terms), query.distance(where.astype(np.float64))
    state, truth = pie.run(where, bits), float(distance[query.truth(where)].sum())
    found = float(distance[query.answer(terms, pie, state).plates].sum())
    return found / truth - 1 if truth else 0.0, terms.saved(state)


def stop_once(where: Integers, place: tuple[float, float], k: float, terms: Terms, bits: Bits) -> Once:
    """The k nearest to a place in the plane."""
    return nearest_once(Nearest.to_stop(int(k), *place), where, terms, bits)


@dataclass(frozen=True)
class Kind:
    """A query with the parameter that it is tried with, and the figure it is of; `most` repetitions are the paper's."""

    name: str
    parameter: str
    values: tuple[float, ...]
    once: Callable[[Integers, tuple[float, float], float, Terms, Bits], Once]
    figure: str
    most: int


RANGE = Kind("savings-range", "width, m", (1000.0, 2000.0, 4000.0), count_once, "Fig. 3", 504)
KDE = Kind("savings-kde", "bandwidth, m", (250.0, 500.0, 1000.0), density_once, "Fig. 4", 300)
KNN = Kind("savings-knn", "k", (1.0, 5.0, 20.0), stop_once, "Fig. 5", 300)


def terms_for(cost: Cost, plates: int, how: How, split: str) -> Terms:
    """The terms of a method: the baseline's, or those of elimination."""
    terms = Terms.alike(cost, plates, how, SPLITS[split])
    return terms.baseline() if split == "BM" else terms


def _jobs(kind: Kind, setup: Setup) -> list[Job]:
    found: list[Job] = []
    for feed in setup.positions:
        for value in kind.values:
            for rho in RHOS:
                found += [partial(_rows, kind, setup, feed, value, rho, how) for how in HOWS]
    if kind is KNN:
        found += [partial(_image_rows, setup, value, rho) for value in KNN.values for rho in IMAGE_RHOS]
    return found


def _rows(kind: Kind, setup: Setup, feed: Positions, value: float, rho: float, how: How) -> list[SavingsRow]:
    """Every split on the same moments and places."""
    times, rng = min(setup.repetitions, kind.most), setup.rng(f"{kind.name}/{feed.name}")
    asked = []
    for moment in feed.moments(times, rng):
        where = feed.at(moment)[1]
        asked.append((where, feed.place_near_a_plate(where, rng)))
    rows = []
    for split in SPLITS:
        bits, runs = setup.bits(f"{kind.name}/{feed.name}/{value}/{rho}/{how}/{split}"), []
        for where, place in asked:
            terms = terms_for(rho_per_square_metre(rho), len(where), how, split)
            runs.append(kind.once(where, place, value, terms, bits))
        rows.append(row_of(feed.name, kind.name, value, rho, how, split, runs))
    return rows


def _image_rows(setup: Setup, k: float, rho: float) -> list[SavingsRow]:
    """On clusters of points with values from 0 to 255 in 784 dimensions; c64 and log-c10 with distances only, as noise
    on positions is as many draws as there are dimensions."""
    rng, rows = setup.rng(f"images/{k}"), list[SavingsRow]()
    centres = rng.uniform(60, 195, (CLUSTERS, DIMENSIONS))
    drawn: list[Integers] = []
    for _ in range(min(setup.repetitions, IMAGES_MOST)):
        points = centres[rng.integers(0, CLUSTERS, POINTS + 1)] + rng.normal(0, 45, (POINTS + 1, DIMENSIONS))
        drawn.append(np.clip(np.rint(points), 0, 255).astype(np.int64))
    for how in HOWS:
        for split in SPLITS if how == "distance" else ("BM", "c4"):
            bits, runs = setup.bits(f"images/{k}/{rho}/{how}/{split}"), list[Once]()
            for one in drawn:
                query = Nearest(int(k), tuple(map(float, one[0])), steps_per_unit=1000)
                terms = terms_for(concentrated(round(rho * 10**6 * NANO)), POINTS, how, split)
                runs.append(nearest_once(query, one[1:], terms, bits))
            rows.append(row_of("clusters in 784 dimensions", KNN.name, k, rho, how, split, runs))
    return rows


def _conclude(kind: Kind, setup: Setup, rows: Sequence[SavingsRow]) -> Outcome:
    del setup
    figures = []
    for data in dict.fromkeys(row.data for row in rows):
        of_data = [row for row in rows if row.data == data]
        panels = [_panel(of_data, value, what) for what in ("error_mean", "saved_mean") for value in kind.values]
        name = f"{kind.name}-{''.join(c if c.isalnum() else '-' for c in data)}"
        title = f"{kind.name}, {data}: {kind.parameter} {', '.join(f'{value:g}' for value in kind.values)}"
        figures.append(Figure(name, title, tuple(panels)))
    verdicts = [verdict for data in dict.fromkeys(row.data for row in rows) for verdict in _judged(kind, data, rows)]
    return Outcome((Table(kind.name, tuple(rows)),) if rows else (), tuple(figures), tuple(verdicts))


def _panel(rows: Sequence[SavingsRow], value: float, what: str) -> Panel:
    curves = []
    for how in HOWS:
        for split in SPLITS if what == "error_mean" else list(SPLITS)[1:]:
            some = [row for row in rows if (row.parameter, row.privatisation, row.split) == (value, how, split)]
            if some:
                xs, ys = tuple(row.rho for row in some), tuple(float(getattr(row, what)) for row in some)
                curves.append(Curve(f"{split}, {how}", xs, ys))
    label = "mean error" if what == "error_mean" else "share of the budget left"
    return Panel(f"{value:g}", "rho", label, tuple(curves), log_x=True)


def _judged(kind: Kind, data: str, rows: Sequence[SavingsRow]) -> list[Verdict]:
    some = [row for row in rows if row.data == data]
    source = f"{SOURCE}, {kind.figure}"
    found = [_larger_c(some, source, data), _grows(some, source, data), no_worse(some, f"{SOURCE}, Remark 6", data)]
    found.append(_by_parameter(kind, some, source, data))
    if kind is not RANGE:
        better, worse = ("point", "distance") if kind is KDE else ("distance", "point")
        found.append(_beats(some, better, worse, source, data))
    else:
        least = [row for row in some if row.rho == min(RHOS)]
        found.append(_beats(least, "distance", "point", source, f"{data}, rho {min(RHOS):g}"))
    return found


def _mean(rows: Sequence[SavingsRow], what: str, **given: object) -> float:
    some = [getattr(row, what) for row in rows if all(getattr(row, key) == value for key, value in given.items())]
    return float(np.mean(some))


def _larger_c(rows: Sequence[SavingsRow], source: str, data: str) -> Verdict:
    saved = {split: _mean(rows, "saved_mean", split=split, privatisation="distance") for split in list(SPLITS)[1:]}
    seen = ", ".join(f"{split} {share:.2f}" for split, share in saved.items())
    agrees = saved["c64"] > saved["c4"]
    return Verdict("more rounds save more", source, agrees, f"{data}, noise on distances: {seen}")


def _grows(rows: Sequence[SavingsRow], source: str, data: str) -> Verdict:
    rhos = sorted({row.rho for row in rows})
    saved = [_mean(rows, "saved_mean", split="c64", rho=rho) for rho in rhos]
    agrees = all(a <= b + 0.02 for a, b in pairwise(saved)) and saved[-1] > saved[0]
    seen = ", ".join(f"{rho:g}: {share:.2f}" for rho, share in zip(rhos, saved, strict=True))
    return Verdict("savings grow with rho", source, agrees, f"{data}, c64: {seen}")


def no_worse(rows: Sequence[SavingsRow], source: str, data: str) -> Verdict:
    """Remark 6: the errors of elimination where it lets go of a quarter, beside the baseline's."""
    bases = {(row.parameter, row.rho, row.privatisation): row for row in rows if row.split == "BM"}
    worse, compared = [], 0
    for row in rows:
        if row.split == "BM" or row.saved_mean < 0.25:
            continue
        base, compared = bases[row.parameter, row.rho, row.privatisation], compared + 1
        margin = 3 * float(np.hypot(row.error_spread, base.error_spread)) + 1e-3
        if row.error_mean > base.error_mean + margin:
            worse.append(f"{row.split} {row.privatisation} {row.parameter:g} at rho {row.rho:g}")
    why = "radii for one plate in all rounds cost more than the baseline's single one where few plates leave early"
    seen = f"{data}: {compared - len(worse)} of {compared}" + (f"; worse: {', '.join(worse[:4])}" if worse else "")
    return Verdict("PM errs no more than BM where a quarter is saved", source, not worse, seen, why)


def _by_parameter(kind: Kind, rows: Sequence[SavingsRow], source: str, data: str) -> Verdict:
    saved = [_mean(rows, "saved_mean", split="c64", parameter=value) for value in kind.values]
    spread = max(saved) - min(saved)
    seen = f"{data}, c64: {', '.join(f'{v:g}: {s:.2f}' for v, s in zip(kind.values, saved, strict=True))}"
    if kind is RANGE:
        return Verdict("savings are alike over widths", source, spread < 0.1, seen)
    return Verdict(f"savings depend on the {kind.parameter}, less of it saves more", source, saved[0] > saved[-1], seen)


def _beats(rows: Sequence[SavingsRow], better: str, worse: str, source: str, data: str) -> Verdict:
    base = [row for row in rows if row.split == "BM"]
    errors = [_mean(base, "error_mean", privatisation=how) for how in (better, worse)]
    statement = f"noise on {'positions' if better == 'point' else 'distances'} errs less"
    seen = f"{data}, BM: {errors[0]:.3g} against {errors[1]:.3g}"
    why = "a difference below the spread in the table is chance, and falls with repetitions"
    return Verdict(statement, source, errors[0] <= errors[1], seen, why)


def _experiment(kind: Kind, about: str) -> Experiment:
    return Experiment(kind.name, about, partial(_jobs, kind), partial(_conclude, kind))


SAVINGS_RANGE = _experiment(RANGE, "what range counts by elimination leave of a budget")
SAVINGS_KDE = _experiment(KDE, "what densities by elimination leave of a budget")
SAVINGS_KNN = _experiment(KNN, "what the nearest by elimination leave of a budget")
