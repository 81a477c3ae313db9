"""`savings-range`, `savings-kde`, `savings-knn`, `multi-query`, `threshold`: budgets of queries by elimination.

*Adaptive Privacy Budgeting* (Liang and Yi), Section 7 and its appendices, in kind. BM asks everyone once, for the whole
budget; PM eliminates, with c4, c64 and log-c10. Errors of two methods differ where their mean difference is more than
three standard errors. Of two ways that answered the same questions, differences are taken pair by pair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product
from typing import Any, TypeAlias

import numpy as np

from lab.data import (
    Experiment,
    Figure,
    Finding,
    Job,
    Outcome,
    Panel,
    PointCloud,
    ResultRow,
    Setup,
    Trajectories,
    curve,
    drawn_points,
    of_kind,
    where,
)
from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.noise import Cost, Floats, Integers, concentrated
from udp_stream.queries.elimination import Budgeting, How, Split
from udp_stream.queries.kinds import Density, Nearest, RangeCount, Threshold
from udp_stream.queries.plane import Rectangle, positions_inside, rho_per_square_metre
from udp_stream.queries.privatised import Draw, draw_radial
from udp_stream.units import NANO


class PreparedNoise:
    """`draw_radial` from a store; where plates have several scales, or one call asks for much, by itself.

    The exact samplers take about as long for a thousand values as for twenty: many are drawn at once. A store is of one
    stream of bits.

    >>> from udp_stream.testing import seeded_bits
    >>> noise, bits, scale = PreparedNoise(100), seeded_bits(1), (np.full(3, 10), np.full(3, 1))
    >>> first, second = (noise("zcdp", bits, *scale, dimensions=2) for _ in range(2))
    >>> first.shape, bool((first == second).all())
    ((3, 2), False)
    """

    def __init__(self, values: int) -> None:
        self._values = values
        self._ready: dict[tuple[str, int, int, int], Integers] = {}

    def __call__(self, measure: str, bits: Bits, t: Integers, s: Integers, dimensions: int) -> Integers:
        rows = self._values // dimensions
        if t.size == 0 or 4 * t.size > rows or np.ptp(t) or np.ptp(s):
            return draw_radial(measure, bits, t, s, dimensions)
        key = measure, int(t[0]), int(s[0]), dimensions
        ready = self._ready.get(key)
        if ready is None or len(ready) < t.size:
            ready = draw_radial(measure, bits, np.full(rows, t[0]), np.full(rows, s[0]), dimensions)
        self._ready[key] = ready[t.size :]
        return ready[: t.size]


# Method 0 has noise on positions ("point"), method 1 on distances. Range counts by noisy distances are counted twice:
# against Appendix B's shifted threshold and against 0.

RHOS, RHO_SMALL = (1e-5, 1e-4, 1e-3), 1e-6
"""Per square metre; of images, per squared step of a pixel's value. Small: the paper's for range counts (707 m)."""

SPLITS = {"BM": Split.even(1), "c4": Split.even(4), "c64": Split.even(64), "log-c10": Split.doubling(10)}
HOWS: tuple[How, ...] = ("point", "distance")
UNSHIFTED, SURE = "distance, threshold 0", 3.0
"""The same noisy distances, counted against 0 instead of the shifted threshold. Standard errors."""

Attempt: TypeAlias = tuple[float, float]
"""The signed error of an answer, and the share of the budget that is left."""

Randomness: TypeAlias = tuple[Bits, Draw]

Ask = Callable[[Integers, Any, float, Budgeting, Randomness], Mapping[str, Attempt]]
"""A query of these positions, about a place, with its parameter: for each way to count what was drawn once."""


@dataclass(frozen=True)
class Trial:
    """A query, its parameter, and the paper's figure; `most` repetitions are the paper's."""

    name: str
    parameter: str
    values: tuple[float, ...]
    ask: Ask
    figure: str
    most: int
    better: How = "distance"
    is_shifted: bool = False

    @property
    def worse(self) -> How:
        return "point" if self.better == "distance" else "distance"

    @property
    def rhos(self) -> tuple[float, ...]:
        return (RHO_SMALL, *RHOS) if self.is_shifted else RHOS


class SavingsRow(ResultRow):
    """One query, parameter, budget, method and split. `bias` is the mean signed error, a spread that of a mean."""


class PairRow(ResultRow):
    """Two ways on the same moments and places: their errors, and by how much the first errs less, pair by pair, with
    the spread of that mean. `first_saved`: the share of the budget that the first leaves."""

    @property
    def is_less(self) -> bool:
        return bool(self.less_by > SURE * self.spread)

    @property
    def is_more(self) -> bool:
        return bool(self.less_by < -SURE * self.spread)


def row_of(columns: Mapping[str, Any], how: str, split: str, runs: Sequence[Attempt]) -> SavingsRow:
    """The row of these runs; `columns` are its first columns."""
    off, saved = np.array(runs).T
    errors, root = np.abs(off), np.sqrt(off.size)
    of_errors = {**_quartiles("error", errors), "error_spread": float(errors.std() / root)}
    of_biases = {"bias": float(off.mean()), "bias_spread": float(off.std() / root)}
    found = {**of_errors, **_quartiles("saved", saved), **of_biases}
    return SavingsRow(**columns, privatisation=how, split=split, repetitions=len(runs), **found)


def _quartiles(name: str, values: Floats) -> dict[str, float]:
    low, high = np.quantile(values, (0.25, 0.75))
    return {f"{name}_mean": float(values.mean()), f"{name}_25": float(low), f"{name}_75": float(high)}


Way: TypeAlias = tuple[str, Sequence[Attempt]]


def pair_of(columns: Mapping[str, Any], split: str, first: Way, second: Way) -> PairRow:
    """The row of the runs of two ways; `columns` are its first columns."""
    ours, theirs = (np.array([abs(off) for off, _ in runs]) for _, runs in (first, second))
    less, saved = theirs - ours, float(np.mean([share for _, share in first[1]]))
    errors = {"first_error": float(ours.mean()), "second_error": float(theirs.mean())}
    gain = {"less_by": float(less.mean()), "spread": float(less.std() / np.sqrt(less.size)), "first_saved": saved}
    return PairRow(**columns, split=split, first=first[0], second=second[0], repetitions=less.size, **errors, **gain)


def _try(
    trial: Trial,
    columns: Mapping[str, Any],
    questions: Sequence[tuple[Integers, Any]],
    cost: Cost,
    randomness: Mapping[tuple[str, How], Randomness],
) -> list[SavingsRow | PairRow]:
    """Every split and method that has a randomness, on the same questions: positions, and a place. Rows of each way
    and of pairs: PM beside BM with the same noise, the two kinds of noise, the two thresholds."""
    rows, baselines = list[SavingsRow | PairRow](), dict[str, list[Attempt]]()
    for split in SPLITS:
        runs = dict[str, list[Attempt]]()
        for how in (how for how in HOWS if (split, how) in randomness):
            for points, place in questions:
                terms = terms_for(cost, len(points), how, split)
                answers = trial.ask(points, place, columns["parameter"], terms, randomness[split, how])
                for way, answered in answers.items():
                    runs.setdefault(way, []).append(answered)
        baselines = baselines or runs
        rows += [row_of(columns, way, split, some) for way, some in runs.items()]
        for way, some in runs.items() if split != "BM" else ():
            if way != UNSHIFTED:
                rows.append(pair_of(columns, split, (f"PM, {way}", some), (f"BM, {way}", baselines[way])))
        for first, second in ((trial.better, trial.worse), ("distance", UNSHIFTED)):
            if first in runs and second in runs:
                rows.append(pair_of(columns, split, (first, runs[first]), (second, runs[second])))
    return rows


def terms_for(cost: Cost, plates: int, how: How, split: str) -> Budgeting:
    """The baseline's, or those of elimination."""
    terms = Budgeting.alike(cost, plates, how, SPLITS[split])
    return terms.baseline() if split == "BM" else terms


QUARTER = 0.25
"""Remark 6: bounds are no wider than the baseline's if this share of the plates leaves. We select by the share of the
budget that is saved, which is stricter."""


def no_worse(pairs: Sequence[PairRow], section: str, data: str) -> Finding:
    """Remark 6: elimination beside its baseline, pair by pair, where it lets go of a quarter."""
    found = [row for row in pairs if row.second.startswith("BM, ")]
    some = [row for row in found if row.first_saved >= QUARTER]
    more, name = [row for row in some if row.is_more], "{0.split} {1} {0.parameter:g} at rho {0.rho:g}"
    worse = [name.format(row, row.second.removeprefix("BM, ")) for row in more]
    counts = {"held": len(some) - len(worse), "selected": len(some), "pairs": len(found)}
    of = {"data": data, "section": section, "share": len(some) / max(1, len(found))}
    return Finding("no-worse", not worse, **of, but=Finding.but("; worse: ", worse[:4], ", "), **counts)


def error_and_saved(
    rows: Sequence[SavingsRow], title: str, what: str, of: Sequence[tuple[str, Mapping[str, object]]], error: str
) -> Panel:
    """A line over rho for each of these ways that has rows: their errors, or what they save (BM saves nothing)."""
    of_rows = [(name, where(rows, **given)) for name, given in of if what == "error_mean" or given["split"] != "BM"]
    curves = [curve(name, some, "rho", what) for name, some in of_rows if some]
    return Panel(title, "rho", error if what == "error_mean" else "share of the budget left", curves, log_x=True)


# `savings-range`, `savings-kde`, `savings-knn` (Section 7.1, Figures 3 to 5, and 8): on recorded positions, counts and
# densities also on as many drawn points as theirs, the nearest on clusters in 784 dimensions, as their images have.

DIMENSIONS, CLUSTERS, POINTS, DRAWN_AT_ONCE = 784, 10, 400, 30_000
IMAGES_MOST = 50  # repetitions, the fewest of the paper: noise on positions is 784 draws a point
POINTS_THEIRS, K_TWICE = 60_000, 5.0  # once; by noise on positions BM, and PM (c4) for this k: seven minutes of a core
CROWDS = (9740, 200_000)  # as many as their taxis and their collisions
CROWD_POINTS, CROWD_LEAST = 500_000, 10  # points in all repetitions together, and the fewest repetitions


def count_once(
    points: Integers, place: tuple[float, float], width: float, terms: Budgeting, drawn: Randomness
) -> dict[str, Attempt]:
    """How far a square's count is off, relative to the truth (at least 1); of distances by both thresholds."""
    region = Rectangle(*place, width, width)
    query, truth = RangeCount(region), positions_inside(region, points)
    pie = query.elimination(terms)
    state = pie.run(points, *drawn)
    ways = {terms.how: query} | ({UNSHIFTED: RangeCount(region, shifted=False)} if terms.how == "distance" else {})
    off = {way: one.answer(terms, pie, state).value - truth for way, one in ways.items()}
    return {way: (one / max(1, truth), terms.saved(state)) for way, one in off.items()}


def density_once(
    points: Integers, place: tuple[float, float], bandwidth: float, terms: Budgeting, drawn: Randomness
) -> dict[str, Attempt]:
    """How far a density is off."""
    query = Density(*place, bandwidth)
    pie = query.elimination(terms)
    state = pie.run(points, *drawn)
    return {terms.how: (query.answer(terms, pie, state).value - query.truth(points), terms.saved(state))}


def nearest_once(query: Nearest, points: Integers, terms: Budgeting, drawn: Randomness) -> dict[str, Attempt]:
    """The nearest, and how much farther away they are together than the true ones, relative to these."""
    pie, distance = query.elimination(terms), query.distance(points.astype(np.float64))
    state, truth = pie.run(points, *drawn), float(distance[query.truth(points)].sum())
    found = float(distance[query.answer(terms, pie, state).plates].sum())
    return {terms.how: (found / truth - 1 if truth else 0.0, terms.saved(state))}


def stop_once(points: Integers, place: tuple[float, float], k: float, *more: Any) -> dict[str, Attempt]:
    """The k nearest to a place in the plane."""
    return nearest_once(Nearest.to_stop(int(k), *place), points, *more)


def image_once(points: Integers, image: tuple[float, ...], k: float, *more: Any) -> dict[str, Attempt]:
    """The k images nearest to an image."""
    return nearest_once(Nearest(int(k), image, steps_per_unit=1000), points, *more)


RANGE = Trial("savings-range", "width, m", (1000.0, 2000.0, 4000.0), count_once, "Fig. 3", 504, is_shifted=True)
KDE = Trial("savings-kde", "bandwidth, m", (250.0, 500.0, 1000.0), density_once, "Fig. 4", 300, better="point")
KNN = Trial("savings-knn", "k", (1.0, 5.0, 20.0), stop_once, "Fig. 5", 300)
IMAGES = replace(KNN, ask=image_once)


def _jobs(trial: Trial, setup: Setup) -> list[Job]:
    crowds = setup.still or tuple(drawn_points(points, setup.rng(f"crowd/{points}")) for points in CROWDS)
    clouds = () if trial is KNN else crowds
    feeds = product((*setup.positions, *clouds), trial.values, trial.rhos)
    images = product(KNN.values, RHOS) if trial is KNN else ()
    return [
        *(partial(_rows, trial, setup, feed, value, rho) for feed, value, rho in feeds),
        *(partial(_image_rows, setup, k, rho) for k, rho in images),
    ]


def _rows(trial: Trial, setup: Setup, feed: Trajectories, value: float, rho: float) -> list[SavingsRow | PairRow]:
    times, rng = min(setup.repetitions, trial.most), setup.rng(f"{trial.name}/{feed.name}")
    if isinstance(feed, PointCloud):
        times = min(times, max(CROWD_LEAST, CROWD_POINTS // feed.plate.size))
    moments = (feed.at(moment)[1] for moment in feed.moments(times, rng))
    questions = [(points, feed.place_near_a_plate(points, rng)) for points in moments]
    columns = {"data": feed.name, "query": trial.name, "parameter": value, "rho": rho}
    randomness = _randomness(setup, f"{trial.name}/{feed.name}/{value}/{rho}", product(SPLITS, HOWS))
    return _try(trial, columns, questions, rho_per_square_metre(rho), randomness)


def _randomness(setup: Setup, name: str, ways: Iterable[tuple[str, How]]) -> dict[tuple[str, How], Randomness]:
    return {(split, how): (setup.bits(f"{name}/{how}/{split}"), PreparedNoise(DRAWN_AT_ONCE)) for split, how in ways}


def _image_rows(setup: Setup, k: float, rho: float) -> list[SavingsRow | PairRow]:
    """Of a user's images, or of clusters of points with values from 0 to 255 in 784 dimensions; c64 and log-c10 with
    distances only."""
    rng, images = setup.rng(f"images/{k}"), setup.images
    size = POINTS_THEIRS if setup.full else POINTS
    times = 1 if setup.full else min(setup.repetitions, IMAGES_MOST)
    centres = rng.uniform(60, 195, (CLUSTERS, DIMENSIONS))

    def drawn() -> tuple[Integers, tuple[float, ...]]:
        if images is not None:
            of = rng.choice(len(images.searched), min(size, len(images.searched)), replace=False)
            asked = images.asked[int(rng.integers(len(images.asked)))]
            return images.searched[of].astype(np.int64), tuple(map(float, asked))
        values = centres[rng.integers(0, CLUSTERS, size + 1)] + rng.normal(0, 45, (size + 1, DIMENSIONS))
        points = np.clip(np.rint(values), 0, 255).astype(np.int64)
        return points[1:], tuple(map(float, points[0]))

    questions = [drawn() for _ in range(times)]
    name = "clusters in 784 dimensions" if images is None else images.name
    columns = {"data": name, "query": IMAGES.name, "parameter": k, "rho": rho}
    of_points = ("BM", "c4") if k == K_TWICE or not setup.full else ("BM",)
    ways = [(split, how) for split, how in product(SPLITS, HOWS) if how == "distance" or split in of_points]
    randomness = _randomness(setup, f"images/{k}/{rho}", ways)
    return _try(IMAGES, columns, questions, concentrated(round(rho * 10**6 * NANO)), randomness)


def _savings_conclude(trial: Trial, setup: Setup, found: Sequence[ResultRow]) -> Outcome:
    del setup
    rows, pairs = of_kind(SavingsRow, found), of_kind(PairRow, found)
    figures, findings = list[Figure](), list[Finding]()
    for data in dict.fromkeys(row.data for row in rows):
        of_data = [row for row in where(rows, data=data) if row.privatisation != UNSHIFTED]
        of_both, shifted = where(pairs, data=data), where(pairs, data=data, second=UNSHIFTED)
        others = [row for row in of_both if row.second != UNSHIFTED]
        panels = [_panel(of_data, value, what) for what in ("error_mean", "saved_mean") for value in trial.values]
        title = f"{trial.name}, {data}: {trial.parameter} {', '.join(f'{value:g}' for value in trial.values)}"
        figures.append(Figure(f"{trial.name}-{data}", title, panels))
        findings += [*_on_savings(trial, data, of_data), no_worse(others, "Section 7.1, Remark 6", data)]
        findings.append(errs_less(trial, others, data))
        if trial.better == "point":
            findings.append(_biases(trial, of_data, data))
        if shifted:
            title = f"range counts, {data}: the shifted threshold beside 0, {trial.parameter}"
            panels = [_shift_panel(shifted, value) for value in trial.values]
            figures.append(Figure(f"shifted-threshold-{data}", title, panels))
            findings += _on_shifts(shifted, data)
    return Outcome({trial.name: rows, f"{trial.name}-pairs": pairs} if rows else {}, figures, findings)


def _panel(rows: Sequence[SavingsRow], value: float, what: str) -> Panel:
    ways = product(HOWS, SPLITS)
    of = [(f"{split}, {how}", {"parameter": value, "privatisation": how, "split": split}) for how, split in ways]
    return error_and_saved(rows, f"{value:g}", what, of, "mean error")


def _shift_panel(rows: Sequence[PairRow], value: float) -> Panel:
    curves = []
    for split in SPLITS:
        some = where(rows, parameter=value, split=split)
        curves.append(curve(f"{split}, shifted", some, "rho", "first_error"))
        curves.append(curve(f"{split}, 0", some, "rho", "second_error"))
    return Panel(f"{value:g}", "rho", "mean error", curves, log_x=True)


def _mean(rows: Sequence[ResultRow], column: str, **given: object) -> float:
    return float(np.mean([getattr(row, column) for row in where(rows, **given)]))


def _by_key(shares: Mapping[Any, float]) -> str:
    return ", ".join(f"{key if isinstance(key, str) else f'{key:g}:'} {share:.2f}" for key, share in shares.items())


def _on_savings(trial: Trial, data: str, rows: Sequence[SavingsRow]) -> Iterator[Finding]:
    of = {"data": data, "figure": trial.figure}
    by_split = {one: _mean(rows, "saved_mean", split=one, privatisation="distance") for one in SPLITS if one != "BM"}
    yield Finding("more-rounds", by_split["c64"] > by_split["c4"], saved=_by_key(by_split), **of)
    c64 = where(rows, split="c64")
    by_rho = {rho: _mean(c64, "saved_mean", rho=rho) for rho in sorted({row.rho for row in rows})}
    saved = list(by_rho.values())
    agrees = all(a <= b + 0.02 for a, b in pairwise(saved)) and saved[-1] > saved[0]
    yield Finding("savings-grow", agrees, saved=_by_key(by_rho), **of)
    by_value = {value: _mean(c64, "saved_mean", parameter=value) for value in trial.values}
    saved = list(by_value.values())
    if trial.is_shifted:
        yield Finding("savings-alike", max(saved) - min(saved) < 0.1, saved=_by_key(by_value), **of)
    else:
        of["parameter"] = trial.parameter
        yield Finding("savings-fall", saved[0] > saved[-1], saved=_by_key(by_value), **of)


def errs_less(trial: Trial, pairs: Sequence[PairRow], data: str) -> Finding:
    """Whether the baseline errs less one way than the other, where they differ by more than chance."""
    some = where(pairs, split="BM")
    if trial.is_shifted:  # the paper's claim is about small budgets
        some = where(some, rho=min(row.rho for row in some))
    less, more = sum(row.is_less for row in some), sum(row.is_more for row in some)
    counts = {"less": less, "more": more, "rows": len(some), "means": [_mean(some, error) for error in _BOTH]}
    reasons = "the differences are no more than chance may make", "it depends on the parameter and the budget"
    reason = reasons[more > 0]
    better = "positions" if trial.better == "point" else "distances"
    of = {"data": data, "figure": trial.figure, "better": better, "reason": reason}
    return Finding("errs-less", less > 0 and not more, **of, **counts)


_BOTH = "first_error", "second_error"


def _biases(trial: Trial, rows: Sequence[SavingsRow], data: str) -> Finding:
    found = []
    for how in HOWS:
        some = where(rows, split="BM", privatisation=how)
        below, above = (sum(sign * row.bias > SURE * row.bias_spread for row in some) for sign in (-1, 1))
        found.append(ResultRow(mean=_mean(some, "bias"), below=below, above=above, rows=len(some)))
    point, distance = found
    agrees = point.below and distance.above and not (point.above or distance.below)
    agrees = agrees and abs(point.mean) < abs(distance.mean)
    return Finding("biases", agrees, data=data, figure=trial.figure, point=point, distance=distance)


def _on_shifts(pairs: Sequence[PairRow], data: str) -> Iterator[Finding]:
    rhos = sorted({row.rho for row in pairs})
    small = where(pairs, rho=rhos[0])
    less = sum(row.is_less for row in small)
    means = ((rho, *(_mean(pairs, error, rho=rho) for error in _BOTH)) for rho in rhos)
    said = ", ".join(f"{rho:g}: {shifted:.3g} against {zero:.3g}" for rho, shifted, zero in means)
    counts = {"less": less, "rows": len(small)}
    yield Finding("shifted-less", 2 * less > len(small), data=data, rho=rhos[0], means=said, **counts)
    worse = [f"{row.split} {row.parameter:g} at rho {row.rho:g}" for row in pairs if row.is_more]
    counts = {"held": len(pairs) - len(worse), "rows": len(pairs)}
    yield Finding("shifted-harms", not worse, data=data, but=Finding.but("; worse: ", worse[:4], ", "), **counts)


# `multi-query` (Section 7.2, Figure 6): m range counts at m moments of a recorded feed, 3 km wide. BM gives each B/m.
# PM eliminates (log-c10), and hands savings on by Algorithm 3. A plate that is absent saves, too: "BM handed on" hands
# on without eliminating, so that the gains of absence and of elimination can be told apart.

RAMP_FROM = 0.75
"""Of Algorithm 3: the share of its savings that a plate may spend at first."""

WIDTH, QUERIES, BUDGETS = 3000.0, (7, 14, 28, 56), (1e-5, 1e-4, 1e-3)
QUERIES_THEIRS, BUDGET_THEIRS = 56, 1e-4  # 7 x 8 queries, and 1e-4 per square metre
BM, HANDED_ON, PM = "BM", "BM handed on", "PM"
MULTI_MOST, SPLIT = 50, "log-c10"
MULTI_FULL = 5  # repetitions of 9,740 points: nine minutes of a core


def allowance(left: float, query: int, queries: int, budget: float) -> float:
    """Algorithm 3's amount for the query of this number, from 1, for a plate with so much left."""
    ramp = 1.0 if queries == 1 else RAMP_FROM + (1 - RAMP_FROM) * (query - 1) / (queries - 1)
    return ramp * (left - (queries - query + 1) / queries * budget) + budget / queries


def _multi_jobs(setup: Setup) -> list[Job]:
    settings = [(m, BUDGET_THEIRS) for m in QUERIES] + [(QUERIES_THEIRS, B) for B in BUDGETS if B != BUDGET_THEIRS]
    feeds: Sequence[Trajectories] = setup.positions
    if setup.full and not setup.moving:
        feeds = (drawn_points(CROWDS[0], setup.rng("multi/crowd")),)
    cases = product(feeds, settings, HOWS)
    return [partial(_multi_rows, setup, feed, m, B, how) for feed, (m, B), how in cases]


def _multi_rows(setup: Setup, feed: Trajectories, queries: int, budget: float, how: How) -> list[SavingsRow | PairRow]:
    """In a row, the parameter is the number of queries, rho the budget of all, split the method; an error is the mean
    over a repetition's queries."""
    rng, runs = setup.rng(f"multi/{feed.name}/{queries}"), {method: list[Attempt]() for method in (BM, HANDED_ON, PM)}
    for i in range(min(setup.repetitions, MULTI_FULL if setup.full else MULTI_MOST)):
        moments = [feed.at(moment) for moment in sorted(feed.moments(queries, rng))]
        day = [(plates, points, feed.place_near_a_plate(points, rng)) for plates, points in moments]
        for method, found in runs.items():
            bits = setup.bits(f"multi/{feed.name}/{queries}/{budget}/{how}/{method}/{i}")
            found.append(_a_day(day, rho_per_square_metre(budget), how, method, bits))
    columns = {"data": feed.name, "query": "multi-query", "parameter": float(queries), "rho": budget}
    pairs = [pair_of(columns, SPLIT, (PM, runs[PM]), (f"{base}, {how}", runs[base])) for base in (BM, HANDED_ON)]
    return [*(row_of(columns, how, method, found) for method, found in runs.items()), *pairs]


def _a_day(
    day: Sequence[tuple[Integers, Integers, tuple[float, float]]], cost: Cost, how: How, method: str, bits: Bits
) -> Attempt:
    """The mean error over these queries (plates, positions, a square's middle), and the share of budgets left."""
    seen = np.unique(np.concatenate([plates for plates, _, _ in day]))
    left, errors, m = np.full(seen.size, float(cost.nano)), [], len(day)
    for number, (plates, points, place) in enumerate(day, 1):
        at = np.searchsorted(seen, plates)
        even = np.full(plates.size, cost.nano / m)
        amounts = even if method == BM else np.array([allowance(one, number, m, cost.nano) for one in left[at]])
        budgets = np.maximum(np.minimum(amounts, left[at]), 1.0).astype(np.int64)
        terms = Budgeting("zcdp", budgets, how, SPLITS[SPLIT])
        terms = terms if method == PM else terms.baseline()
        query = RangeCount(Rectangle(*place, WIDTH, WIDTH))
        pie, truth = query.elimination(terms), positions_inside(query.region, points)
        state = pie.run(points, bits)
        errors.append(abs(query.answer(terms, pie, state).value - truth) / max(1, truth))
        left[at] -= state.charged
    return float(np.mean(errors)), float(left.mean() / cost.nano)


def _multi_conclude(setup: Setup, found: Sequence[ResultRow]) -> Outcome:
    del setup
    rows, pairs = of_kind(SavingsRow, found), of_kind(PairRow, found)
    figures, findings = [], list[Finding]()
    for data in dict.fromkeys(row.data for row in rows):
        some, ours = where(rows, data=data), where(pairs, data=data)
        panels = (
            _multi_panel("number of queries", "parameter", where(some, rho=BUDGET_THEIRS)),
            _multi_panel("budget", "rho", where(some, parameter=QUERIES_THEIRS)),
        )
        title = f"{data}: mean error of m range counts, {WIDTH:g} m wide"
        figures.append(Figure(f"multi-query-{data}", title, panels))
        # the claims of Figure 6, then the same of elimination alone
        findings += [*_on_gains(ours, data, BM, ""), *_on_gains(ours, data, HANDED_ON, ", by elimination alone")]
    return Outcome({"multi-query": rows, "multi-query-pairs": pairs} if rows else {}, figures, findings)


def _multi_panel(title: str, column: str, rows: Sequence[SavingsRow]) -> Panel:
    rows = sorted(rows, key=lambda row: float(getattr(row, column)))
    curves = [
        curve(f"{method}, {how}", where(rows, privatisation=how, split=method), column, "error_mean")
        for how in HOWS
        for method in (BM, HANDED_ON, PM)
    ]
    return Panel(title, title, "mean relative error", curves, log_x=True)


@dataclass(frozen=True, slots=True)
class Gain:
    """How much less PM errs than a base, mean over both kinds of noise; three standard errors; share of its error."""

    less_by: float
    margin: float
    share: float

    def __str__(self) -> str:
        return f"{self.less_by:.3f} ± {self.margin:.3f} ({self.share:.0%})"


def _gain(pairs: Sequence[PairRow], queries: int, budget: float, base: str) -> Gain:
    some = [row for row in where(pairs, parameter=queries, rho=budget) if row.second.rpartition(", ")[0] == base]
    less, spread, error = (_mean(some, column) for column in ("less_by", "spread", "second_error"))
    return Gain(less, SURE * spread, less / error if error else 0.0)


def _on_gains(pairs: Sequence[PairRow], data: str, base: str, alone: str) -> Iterator[Finding]:
    by_m = {m: _gain(pairs, m, BUDGET_THEIRS, base) for m in QUERIES}
    by_budget = {B: _gain(pairs, QUERIES_THEIRS, B, base) for B in BUDGETS}
    of = {"data": data, "base": base, "alone": alone}
    gains = ", ".join(f"{gain} at m = {m:g}" for m, gain in by_m.items())
    agrees = all(gain.less_by > gain.margin for gain in by_m.values())
    yield Finding("handed-on", agrees, gains=gains, reason=_why_no_less(by_m), **of)
    agrees = _grow([(gain.less_by, gain.margin) for gain in by_m.values()])
    yield Finding("gap-over-queries", agrees, gains=gains, **of)
    shares = [(g.share, g.margin * g.share / g.less_by if g.less_by else 1.0) for g in by_budget.values()]
    gains = ", ".join(f"{gain} at {budget:g}" for budget, gain in by_budget.items())
    yield Finding("gain-over-budgets", _grow(shares), gains=gains, **of)


def _why_no_less(by_m: Mapping[int, Gain]) -> str:
    reasons: dict[str, Callable[[Gain], bool]] = {
        "rounds of elimination cost more accuracy than savings buy": lambda gain: gain.less_by < -gain.margin,
        "the difference is no more than chance may make": lambda gain: abs(gain.less_by) <= gain.margin,
    }
    found = {why: ", ".join(str(m) for m, gain in by_m.items() if holds(gain)) for why, holds in reasons.items()}
    return "; ".join(f"at m = {some} {why}" for why, some in found.items() if some)


def _grow(gains: Sequence[tuple[float, float]]) -> bool:
    first, *_, last = gains
    return last[0] - first[0] > float(np.hypot(first[1], last[1]))


# `threshold` (Appendix C, Figure 9): is a count below q N, for counts about 5.5 % of N = 10000.

PEOPLE, SHARE = 10_000, 0.055
"""Households, and how many of them have the property: 10,000 dollars a year or less, about as in the 2023 census."""

COUNTS = "counts about 5.5 %"
COUNT_RHOS = (1e-5, 1e-4, 1e-3, 1e-2)


def below_once(points: Integers, place: None, share: float, terms: Budgeting, drawn: Randomness) -> dict[str, Attempt]:
    """Whether a count is found below a share of the households and is not, or the other way round."""
    del place
    query = Threshold(share, PEOPLE)
    pie = query.elimination(terms)
    state = pie.run(points, *drawn)
    is_below, _ = query.answer(terms, pie, state)
    return {"count": (float(is_below) - float(points[0, 0] < query.limit), terms.saved(state))}


THRESHOLD = Trial("threshold", "q", (0.03, 0.05, 0.06, 0.1), below_once, "Fig. 9", 500)


def _threshold_jobs(setup: Setup) -> list[Job]:
    return [partial(_threshold_rows, setup, share, rho) for share, rho in product(THRESHOLD.values, COUNT_RHOS)]


def _threshold_rows(setup: Setup, share: float, rho: float) -> list[SavingsRow | PairRow]:
    counts = setup.rng(f"threshold/{share}").binomial(PEOPLE, SHARE, min(setup.repetitions, THRESHOLD.most)).tolist()
    columns = {"data": COUNTS, "query": THRESHOLD.name, "parameter": share, "rho": rho}
    questions = [(np.array([[count]]), None) for count in counts]
    randomness = {
        (split, HOWS[0]): (setup.bits(f"threshold/{share}/{rho}/{split}"), PreparedNoise(len(counts)))
        for split in SPLITS
    }
    return _try(THRESHOLD, columns, questions, concentrated(round(rho * NANO)), randomness)


def _threshold_conclude(setup: Setup, found: Sequence[ResultRow]) -> Outcome:
    del setup
    rows, pairs = of_kind(SavingsRow, found), of_kind(PairRow, found)
    of = {q: [(split, {"parameter": q, "split": split}) for split in SPLITS] for q in THRESHOLD.values}
    panels = [
        error_and_saved(rows, f"q = {q:g}", what, ways, "share of wrong answers")
        for what in ("error_mean", "saved_mean")
        for q, ways in of.items()
    ]
    saved = {rho: _mean(rows, "saved_mean", rho=rho, split="c64") for rho in COUNT_RHOS}
    first, *_, last = saved.values()
    findings = (
        no_worse(pairs, "Fig. 9", COUNTS),
        Finding("threshold-saves", last > max(0.5, first), saved=_by_key(saved)),
    )
    figure = Figure("threshold", f"is a count of {PEOPLE:,} below q of them: wrong answers, budget left", panels)
    return Outcome({"threshold": rows, "threshold-pairs": pairs}, [figure], findings)


_LEFT = "by elimination leaves of a budget"
EXPERIMENTS = (
    *(
        Experiment(trial.name, f"what {what} {_LEFT}", partial(_jobs, trial), partial(_savings_conclude, trial))
        for trial, what in ((RANGE, "a range count"), (KDE, "a density"), (KNN, "a query of the nearest"))
    ),
    Experiment("multi-query", "what savings buy over many queries, by Algorithm 3", _multi_jobs, _multi_conclude),
    Experiment("threshold", f"what a threshold query {_LEFT}", _threshold_jobs, _threshold_conclude),
)
