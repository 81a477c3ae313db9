"""`savings-range`, `savings-kde`, `savings-knn`, `multi-query`, `threshold`: budgets of queries by
elimination.

*Adaptive Privacy Budgeting* (Liang and Yi), Section 7 and its appendices, in kind. BM asks everyone
once, for the whole budget; PM eliminates, with c4, c64 and log-c10. Errors of two methods differ
where their mean difference is more than three standard errors. Of two ways that answered the same
questions, differences are taken pair by pair.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from lab.data import PointCloud, Setup, Trajectories, drawn_points
from lab.results import (
    Curve,
    Figure,
    Finding,
    Findings,
    Found,
    Panel,
    Points,
    Results,
    Row,
    Rows,
    Tables,
    about,
    but,
)
from udp_stream.base.arrays import Floats, Integers
from udp_stream.base.units import NANO
from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.noise import Cost, concentrated
from udp_stream.queries.elimination import (
    BELOW,
    IN,
    BandRule,
    Elimination,
    How,
    QueryBudget,
    Split,
    State,
    undecided,
)
from udp_stream.queries.kinds import Density, Nearest, RangeCount
from udp_stream.queries.plane import Rectangle, positions_inside, rho_per_square_metre
from udp_stream.queries.privatised import Draw, draw_radial


class PreparedNoise:
    """`draw_radial` from a store; where plates have several scales, or a call asks for much, by
    itself.

    The exact samplers take about as long for a thousand values as for twenty: many are drawn at
    once. A store is of a single stream of bits.

    >>> from udp_stream.testing import seeded_bits
    >>> noise, bits, scale = PreparedNoise(100), seeded_bits(1), (np.full(3, 10), np.full(3, 1))
    >>> first, second = (noise("zcdp", bits, *scale, dimensions=2) for _ in range(2))
    >>> first.shape, bool((first == second).all())
    ((3, 2), False)
    """

    def __init__(self, values: int) -> None:
        self._values = values
        self._ready = dict[tuple[str, int, int, int], Integers]()

    def __call__(
        self, measure: str, bits: Bits, t: Integers, s: Integers, dimensions: int
    ) -> Integers:
        rows = self._values // dimensions
        if t.size == 0 or 4 * t.size > rows or np.ptp(t) or np.ptp(s):
            return draw_radial(measure, bits, t, s, dimensions)
        key = measure, int(t[0]), int(s[0]), dimensions
        ready = self._ready.get(key)
        if ready is None or len(ready) < t.size:
            ready = draw_radial(measure, bits, np.full(rows, t[0]), np.full(rows, s[0]), dimensions)
        self._ready[key] = ready[t.size :]
        return ready[: t.size]


# Method 0 has noise on positions ("point"), method 1 on distances. Range counts by noisy distances
# are counted twice: against Appendix B's shifted threshold and against 0.

RHOS = (1e-5, 1e-4, 1e-3)
RHO_SMALL = 1e-6
"""Rho per square metre; of images, per squared step of a pixel's value. Small: the paper's for
range counts (707 m)."""

SPLITS = {
    "BM": Split.even(1),
    "c4": Split.even(4),
    "c64": Split.even(64),
    "log-c10": Split.doubling(10),
}
HOWS: tuple[How, ...] = ("point", "distance")
UNSHIFTED = "distance, threshold 0"
SURE = 3.0
"""The same noisy distances, counted against 0 instead of the shifted threshold. Standard errors."""

Attempt: TypeAlias = tuple[float, float]
"""The signed error of an answer, and the share of the budget that is left."""

Randomness: TypeAlias = Mapping[tuple[str, str], tuple[Bits, Draw]]
"""Sources of randomness by split and way of asking."""

Errors: TypeAlias = Sequence[Callable[[QueryBudget, Elimination, State], float]]
Ask = Callable[[Integers, Any, float], tuple[Any, Errors]]
"""A query of these positions, about a place, with its parameter; and the signed error of its
answer; of the answer by the other threshold, too."""


class Trial(NamedTuple):
    """A query, its parameter, and the paper's figure; `most` repetitions are the paper's. `ways` of
    asking, by name."""

    name: str
    parameter: str
    values: tuple[float, ...]
    ask: Ask
    figure: str
    most: int
    better: How = "distance"
    is_shifted: bool = False
    ways: tuple[tuple[str, How], ...] = (("point", "point"), ("distance", "distance"))


def row_of(columns: Mapping[str, Any], how: str, split: str, runs: Sequence[Attempt]) -> Row:
    """A row for a query, parameter, budget, method and split. `bias` is the mean signed error, a
    spread that of a mean."""
    off, saved = np.array(runs).T
    error = abs(off)
    root = np.sqrt(off.size)
    quarters = {
        name: {
            f"{name}_mean": some.mean(),
            f"{name}_25": np.quantile(some, 0.25),
            f"{name}_75": np.quantile(some, 0.75),
        }
        for name, some in (("error", error), ("saved", saved))
    }
    return Row(
        **columns, privatisation=how, split=split, repetitions=off.size, **quarters["error"],
        error_spread=error.std() / root, **quarters["saved"], bias=off.mean(), bias_spread=off.std() / root,
    )  # fmt: skip


Way: TypeAlias = tuple[str, Sequence[Attempt]]


def pair_of(columns: Mapping[str, Any], split: str, first: Way, second: Way) -> Row:
    """Two ways on the same moments and places: their errors, and by how much the first errs less,
    pair by pair, with the spread of that mean. `first_saved`: the share of the budget that the
    first leaves."""
    (ours, saved), (theirs, _) = (abs(np.array(runs)).T for _, runs in (first, second))
    less = theirs - ours
    return Row(
        "-pairs", **columns, split=split, first=first[0], second=second[0], repetitions=less.size,
        first_error=ours.mean(), second_error=theirs.mean(), less_by=less.mean(),
        spread=less.std() / np.sqrt(less.size), first_saved=saved.mean(),
    )  # fmt: skip


def beyond(
    rows: Sequence[Row], sign: int, value: str = "less_by", spread: str = "spread"
) -> list[Row]:
    """The rows whose value is below 0 (-1), or above (1), by more than chance may make."""
    return [row for row in rows if sign * getattr(row, value) > SURE * getattr(row, spread)]


def _try(
    trial: Trial,
    columns: Mapping[str, Any],
    questions: Sequence[tuple[Integers, Any]],
    cost: Cost,
    randomness: Randomness,
) -> Found:
    """Every split and way that has a randomness, on the same questions: positions, and a place.
    Rows of each way and of pairs: PM beside BM with the same noise, the two kinds of noise, the two
    thresholds."""
    baselines = dict[str, list[Attempt]]()
    for split in SPLITS:
        runs = defaultdict[str, list[Attempt]](list)
        for name, how in trial.ways:
            for points, place in questions if (split, name) in randomness else ():
                query, errors = trial.ask(points, place, columns["parameter"])
                terms = QueryBudget.alike(cost, len(points), how, SPLITS[split])
                terms = terms.baseline() if split == "BM" else terms
                pie = query.elimination(terms)
                state = pie.run(points, *randomness[split, name])
                for way, error in zip(
                    (name, UNSHIFTED) if how == "distance" else (name,), errors, strict=False
                ):
                    runs[way].append((error(terms, pie, state), terms.saved(state)))
        baselines = baselines or runs
        for way, some in runs.items():
            yield row_of(columns, way, split, some)
            if split != "BM" and way != UNSHIFTED:
                yield pair_of(columns, split, (f"PM, {way}", some), (f"BM, {way}", baselines[way]))
        worse = HOWS[trial.better == "point"]
        for first, second in ((trial.better, worse), ("distance", UNSHIFTED)):
            if first in runs and second in runs:
                yield pair_of(columns, split, (first, runs[first]), (second, runs[second]))


QUARTER = 0.25
"""Share of plates of Remark 6: bounds are no wider than the baseline's if this share of the plates
leaves. We select by the share of the budget that is saved, which is stricter."""


def no_worse(pairs: Rows, section: str) -> Finding:
    """Finding on Remark 6: elimination beside its baseline, pair by pair, where it lets go of a
    quarter."""
    found = [row for row in pairs if row.second.startswith("BM, ")]
    some = [row for row in found if row.first_saved >= QUARTER]
    name = "{0.split} {1} {0.parameter:g} at rho {0.rho:g}"
    worse = [name.format(row, row.second.removeprefix("BM, ")) for row in beyond(some, -1)]
    counts = {"held": len(some) - len(worse), "selected": len(some), "pairs": len(found)}
    share = len(some) / max(1, len(found))
    return Finding(
        "no-worse",
        not worse,
        section=section,
        share=share,
        but=but("; worse: ", worse[:4], ", "),
        **counts,
    )


def error_and_saved(
    rows: Rows, titles: Mapping[float, str], names: str, error: str
) -> Iterator[Panel]:
    """Panels with, for each parameter, a line over rho for each method that has rows: their errors,
    then what they save (BM saves nothing)."""
    for column, label in (("error_mean", error), ("saved_mean", "share of the budget left")):
        for value, title in titles.items():
            curves = list[Curve]()
            for how, split in product((*HOWS, "count"), SPLITS):
                some = rows.where(parameter=value, privatisation=how, split=split)
                if some and (column == "error_mean" or split != "BM"):
                    curves.append(some.curve(names.format(split, how), "rho", column))
            yield Panel(title, "rho", label, curves, "x")


# `savings-range`, `savings-kde`, `savings-knn` (Section 7.1, Figures 3 to 5, and 8): on recorded
# positions, counts and densities also on as many drawn points as theirs, the nearest on clusters in
# 784 dimensions, as their images have.

DIMENSIONS = 784
CLUSTERS = 10
POINTS = 400
DRAWN_AT_ONCE = 30_000
IMAGES_MOST = 50  # repetitions, the fewest of the paper: noise on positions is 784 draws a point
POINTS_THEIRS = 60_000
K_TWICE = 5.0  # once; by noise on positions BM, and PM (c4) for this k: seven minutes of a core
CROWDS = (9740, 200_000)  # as many as their taxis and their collisions
CROWD_POINTS = 500_000
CROWD_LEAST = 10  # points in all repetitions together, and the fewest repetitions


def ask_count(
    points: Integers, place: tuple[float, float], width: float
) -> tuple[RangeCount, Errors]:
    """A square's count: off relative to the truth (at least 1); of distances by both thresholds."""
    region = Rectangle(*place, width, width)
    truth = positions_inside(region, points)
    shifted = RangeCount(region)
    other = RangeCount(region, shifted=False)
    return shifted, [
        lambda *state: (shifted.answer(*state).value - truth) / max(1, truth),
        lambda *state: (other.answer(*state).value - truth) / max(1, truth),
    ]


def ask_density(
    points: Integers, place: tuple[float, float], bandwidth: float
) -> tuple[Density, Errors]:
    """A density."""
    query = Density(*place, bandwidth)
    return query, [lambda *state: query.answer(*state).value - query.truth(points)]


def ask_nearest(points: Integers, place: tuple[float, ...], k: float) -> tuple[Nearest, Errors]:
    """The k nearest to a place in the plane, or to an image: how much farther away they are
    together than the true nearest, relative to these."""
    query = (
        Nearest.to_stop(int(k), *place)
        if len(place) == 2
        else Nearest(int(k), place, steps_per_unit=1000)
    )
    distance = query.distance(points.astype(np.float64))
    truth = float(distance[query.truth(points)].sum())
    return query, [
        lambda *state: distance[query.answer(*state).plates].sum() / truth - 1 if truth else 0.0
    ]


RANGE = Trial(
    "savings-range", "width, m", (1000.0, 2000.0, 4000.0), ask_count, "Fig. 3", 504, is_shifted=True
)
KDE = Trial(
    "savings-kde",
    "bandwidth, m",
    (250.0, 500.0, 1000.0),
    ask_density,
    "Fig. 4",
    300,
    better="point",
)
KNN = Trial("savings-knn", "k", (1.0, 5.0, 20.0), ask_nearest, "Fig. 5", 300)


def savings_points(trial: Trial, setup: Setup) -> Points:
    """Feeds and clouds of points; None for images."""
    crowds = setup.still or tuple(
        drawn_points(points, setup.rng(f"crowd/{points}")) for points in CROWDS
    )
    rhos = (RHO_SMALL, *RHOS) if trial.is_shifted else RHOS
    yield from product((*setup.positions, *(() if trial is KNN else crowds)), trial.values, rhos)
    if trial is KNN:
        yield from product([None], trial.values, RHOS)


def savings_rows(
    trial: Trial, setup: Setup, feed: Trajectories | None, value: float, rho: float
) -> Found:
    """Rows of savings; c64 and log-c10 of images with distances only."""
    ways: Iterable[tuple[str, How]] = product(SPLITS, HOWS)
    if feed is None:
        name, questions = _images(setup, value)
        stream = f"images/{value}/{rho}"
        cost = concentrated(round(rho * 10**6 * NANO))
        of_points = ("BM", "c4") if value == K_TWICE or not setup.full else ("BM",)
        ways = ((split, how) for split, how in ways if how == "distance" or split in of_points)
    else:
        name = feed.name
        cost = rho_per_square_metre(rho)
        times = min(setup.repetitions, trial.most)
        rng = setup.rng(f"{trial.name}/{name}")
        if isinstance(feed, PointCloud):
            times = min(times, max(CROWD_LEAST, CROWD_POINTS // feed.plate.size))
        positions = [feed.at(moment)[1] for moment in feed.moments(times, rng)]
        questions = [(points, feed.place_near_a_plate(points, rng)) for points in positions]
        stream = f"{trial.name}/{name}/{value}/{rho}"
    columns = {"data": name, "query": trial.name, "parameter": value, "rho": rho}
    randomness: Randomness = {
        (split, how): (setup.bits(f"{stream}/{how}/{split}"), PreparedNoise(DRAWN_AT_ONCE))
        for split, how in ways
    }
    return _try(trial, columns, questions, cost, randomness)


def _images(setup: Setup, k: float) -> tuple[str, list[tuple[Integers, tuple[float, ...]]]]:
    """A user's images, or clusters of points with values from 0 to 255 in 784 dimensions: their
    name, and sets to search, each with an image to ask about."""
    rng = setup.rng(f"images/{k}")
    images = setup.images
    size = POINTS_THEIRS if setup.full else POINTS
    centres = rng.uniform(60, 195, (CLUSTERS, DIMENSIONS))
    questions = []
    for _ in range(1 if setup.full else min(setup.repetitions, IMAGES_MOST)):
        if images is None:
            values = centres[rng.integers(0, CLUSTERS, size + 1)] + rng.normal(
                0, 45, (size + 1, DIMENSIONS)
            )
            pixels = np.clip(np.rint(values), 0, 255).astype(np.int64)
            points = pixels[1:]
            asked = pixels[0]
        else:
            chosen = rng.choice(
                len(images.searched), min(size, len(images.searched)), replace=False
            )
            points = images.searched[chosen].astype(np.int64)
            asked = images.asked[int(rng.integers(len(images.asked)))]
        questions.append((points, tuple(map(float, asked))))
    return "clusters in 784 dimensions" if images is None else images.name, questions


def savings_conclude(trial: Trial, _setup: Setup, tables: Tables) -> Results:
    """Savings of elimination on each data set, whether it errs less, and where noise is better."""
    for data, rows in tables[""].by("data").items():
        both = tables["-pairs"].where(data=data)
        shifted = both.where(second=UNSHIFTED)
        pairs = Rows(row for row in both if row.second != UNSHIFTED)
        titles = {value: f"{value:g}" for value in trial.values}
        panels = list(error_and_saved(rows, titles, "{}, {}", "mean error"))
        figure = f"{trial.name}-{data}"
        yield Figure(
            figure, f"{trial.name}, {data}: {trial.parameter} {', '.join(titles.values())}", panels
        )
        findings = [
            *_on_savings(trial, rows),
            no_worse(pairs, "Section 7.1, Remark 6"),
            errs_less(trial, pairs),
        ]
        if trial.better == "point":
            findings.append(_biases(rows))
        if shifted:
            yield _shifted_figure(trial, shifted, data)
            findings += _on_shifts(shifted)
        yield from about(findings, data=data, figure=trial.figure)


def _on_savings(trial: Trial, rows: Rows) -> Findings:
    saved, said = _saved(rows.where(privatisation="distance"), "split")
    yield Finding("more-rounds", saved[1] > saved[0], saved=said)
    c64 = Rows(row for row in rows.where(split="c64") if row.privatisation != UNSHIFTED)
    saved, said = _saved(c64, "rho")
    yield Finding(
        "savings-grow", (np.diff(saved) >= -0.02).all() and saved[-1] > saved[0], saved=said
    )
    saved, said = _saved(c64, "parameter")
    if trial.is_shifted:
        yield Finding("savings-alike", max(saved) - min(saved) < 0.1, saved=said)
    else:
        yield Finding("savings-fall", saved[0] > saved[-1], saved=said, parameter=trial.parameter)


def _saved(rows: Rows, column: str) -> tuple[list[float], str]:
    """Average savings by a column's values, but for BM, and the words for them."""
    saved = {key: some.mean("saved_mean") for key, some in rows.by(column).items() if key != "BM"}
    names = (key if isinstance(key, str) else f"{key:g}:" for key in saved)
    return list(saved.values()), ", ".join(
        f"{name} {of:.2f}" for name, of in zip(names, saved.values(), strict=True)
    )


_BOTH = "first_error", "second_error"


def errs_less(trial: Trial, pairs: Rows) -> Finding:
    """Whether the baseline errs less by the first method than by the second, where they differ by
    more than chance."""
    some = pairs.where(split="BM")
    if trial.is_shifted:  # the paper's claim is about small budgets
        some = some.where(rho=min(row.rho for row in some))
    less, more = (len(beyond(some, sign)) for sign in (1, -1))
    means = [some.mean(error) for error in _BOTH]
    reason = (
        "it depends on the parameter and the budget"
        if more
        else "the differences are no more than chance may make"
    )
    better = {"point": "positions", "distance": "distances"}[trial.better]
    counts = {"less": less, "more": more, "rows": len(some)}
    return Finding(
        "errs-less", less and not more, better=better, reason=reason, means=means, **counts
    )


def _biases(rows: Rows) -> Finding:
    found = []
    for how in HOWS:
        some = rows.where(split="BM", privatisation=how)
        below, above = (len(beyond(some, sign, "bias", "bias_spread")) for sign in (-1, 1))
        found.append(Row(mean=some.mean("bias"), below=below, above=above, rows=len(some)))
    point, distance = found
    agrees = point.below and distance.above and not (point.above or distance.below)
    agrees = agrees and abs(point.mean) < abs(distance.mean)
    return Finding("biases", agrees, point=point, distance=distance)


def _shifted_figure(trial: Trial, pairs: Rows, data: str) -> Figure:
    panels = []
    for value, rows in pairs.by("parameter").items():
        curves = [
            some.curve(f"{split}, {threshold}", "rho", error)
            for split, some in rows.by("split").items()
            for threshold, error in zip(("shifted", "0"), _BOTH, strict=True)
        ]
        panels.append(Panel(f"{value:g}", "rho", "mean error", curves, "x"))
    title = f"range counts, {data}: the shifted threshold beside 0, {trial.parameter}"
    return Figure(f"shifted-threshold-{data}", title, panels)


def _on_shifts(pairs: Rows) -> Findings:
    by_rho = pairs.by("rho")
    rho, small = next(iter(by_rho.items()))
    less = len(beyond(small, 1))
    means = ((rho, *map(some.mean, _BOTH)) for rho, some in by_rho.items())
    said = ", ".join(f"{rho:g}: {shifted:.3g} against {zero:.3g}" for rho, shifted, zero in means)
    yield Finding(
        "shifted-less", 2 * less > len(small), rho=rho, means=said, less=less, rows=len(small)
    )
    worse = [f"{row.split} {row.parameter:g} at rho {row.rho:g}" for row in beyond(pairs, -1)]
    counts = {"held": len(pairs) - len(worse), "rows": len(pairs)}
    yield Finding("shifted-harms", not worse, but=but("; worse: ", worse[:4], ", "), **counts)


# `multi-query` (Section 7.2, Figure 6): m range counts at m moments of a recorded feed, 3 km wide.
# BM gives each B/m. PM eliminates (log-c10), and hands savings on by Algorithm 3. A plate that is
# absent saves, too: "BM handed on" hands on without eliminating, so that the gains of absence and
# of elimination can be told apart.

RAMP_FROM = 0.75
"""Share in Algorithm 3 of its savings that a plate may spend at first."""

WIDTH = 3000.0
QUERIES = (7, 14, 28, 56)
BUDGETS = (1e-5, 1e-4, 1e-3)
QUERIES_THEIRS = 56
BUDGET_THEIRS = 1e-4  # 7 x 8 queries, and 1e-4 per square metre
BM, HANDED_ON, PM = METHODS = "BM", "BM handed on", "PM"
MULTI_MOST = 50
SPLIT = "log-c10"
MULTI_FULL = 5  # repetitions of 9,740 points: nine minutes of a core


def allowance(left: Floats, query: int, queries: int, budget: float) -> Floats:
    """Algorithm 3's amount for the query of this number, from 1, for plates with so much left."""
    ramp = 1.0 if queries == 1 else RAMP_FROM + (1 - RAMP_FROM) * (query - 1) / (queries - 1)
    return ramp * (left - (queries - query + 1) / queries * budget) + budget / queries


def multi_points(setup: Setup) -> Points:
    """Numbers of queries on the paper's budget, then other budgets for its number, by both kinds of
    noise."""
    settings = [(m, BUDGET_THEIRS) for m in QUERIES] + [
        (QUERIES_THEIRS, B) for B in BUDGETS if B != BUDGET_THEIRS
    ]
    feeds: Sequence[Trajectories] = setup.positions
    if setup.full and not setup.moving:
        feeds = [drawn_points(CROWDS[0], setup.rng("multi/crowd"))]
    return product(feeds, settings, HOWS)


def multi_rows(setup: Setup, feed: Trajectories, setting: tuple[int, float], how: How) -> Found:
    """Rows of many queries: the parameter is the number of queries, rho the budget of all, split
    the method; an error is the mean over a repetition's queries."""
    queries, budget = setting
    rng = setup.rng(f"multi/{feed.name}/{queries}")
    runs = {method: list[Attempt]() for method in METHODS}
    for i in range(min(setup.repetitions, MULTI_FULL if setup.full else MULTI_MOST)):
        moments = [feed.at(moment) for moment in sorted(feed.moments(queries, rng))]
        day = [(plates, points, feed.place_near_a_plate(points, rng)) for plates, points in moments]
        for method, found in runs.items():
            bits = setup.bits(f"multi/{feed.name}/{queries}/{budget}/{how}/{method}/{i}")
            found.append(a_day(day, rho_per_square_metre(budget), how, method, bits))
    columns = {
        "data": feed.name,
        "query": "multi-query",
        "parameter": float(queries),
        "rho": budget,
    }
    for method, found in runs.items():
        yield row_of(columns, how, method, found)
    for base in (BM, HANDED_ON):
        yield pair_of(columns, SPLIT, (PM, runs[PM]), (f"{base}, {how}", runs[base]))


def a_day(
    day: Sequence[tuple[Integers, Integers, tuple[float, float]]],
    cost: Cost,
    how: How,
    method: str,
    bits: Bits,
) -> Attempt:
    """The mean error over these queries (plates, positions, a square's middle), and the share of
    budgets left."""
    seen = np.unique(np.concatenate([plates for plates, _, _ in day]))
    left = np.full(seen.size, float(cost.nano))
    errors = []
    for number, (plates, points, place) in enumerate(day, 1):
        at = np.searchsorted(seen, plates)
        amounts = (
            allowance(left[at], number, len(day), cost.nano)
            if method != BM
            else cost.nano / len(day)
        )
        budgets = np.maximum(np.minimum(amounts, left[at]), 1.0).astype(np.int64)
        terms = QueryBudget("zcdp", budgets, how, SPLITS[SPLIT])
        terms = terms if method == PM else terms.baseline()
        query = RangeCount(Rectangle(*place, WIDTH, WIDTH))
        pie = query.elimination(terms)
        truth = positions_inside(query.region, points)
        state = pie.run(points, bits)
        errors.append(abs(query.answer(terms, pie, state).value - truth) / max(1, truth))
        left[at] -= state.charged
    return float(np.mean(errors)), float(left.mean() / cost.nano)


def multi_conclude(_setup: Setup, tables: Tables) -> Results:
    """The claims of Figure 6, then the same of elimination alone."""
    for data, rows in tables[""].by("data").items():
        pairs = tables["-pairs"].where(data=data)
        panels = (
            _multi_panel("number of queries", "parameter", rows.where(rho=BUDGET_THEIRS)),
            _multi_panel("budget", "rho", rows.where(parameter=QUERIES_THEIRS)),
        )
        yield Figure(
            f"multi-query-{data}", f"{data}: mean error of m range counts, {WIDTH:g} m wide", panels
        )
        for base, alone in ((BM, ""), (HANDED_ON, ", by elimination alone")):
            yield from about(_on_gains(pairs, base), data=data, base=base, alone=alone)


def _multi_panel(title: str, column: str, rows: Rows) -> Panel:
    rows = Rows(sorted(rows, key=lambda row: float(getattr(row, column))))
    curves = [
        rows.where(privatisation=how, split=method).curve(f"{method}, {how}", column, "error_mean")
        for how, method in product(HOWS, METHODS)
    ]
    return Panel(title, title, "mean relative error", curves, "x")


def _gains(pairs: Rows, base: str, settings: Mapping[str, tuple[int, float]]) -> tuple[Floats, str]:
    """How much less PM errs than a base for each number of queries and budget, mean over both kinds
    of noise; three standard errors; both as shares of its error; shape (4, settings). And the words
    for it."""
    found = []
    for queries, budget in settings.values():
        of_queries = pairs.where(parameter=queries, rho=budget)
        some = Rows(row for row in of_queries if row.second.rpartition(", ")[0] == base)
        less = some.mean("less_by")
        margin = SURE * some.mean("spread")
        error = some.mean("second_error")
        found.append((less, margin, *((less / error, margin / error) if error else (0.0, 1.0))))
    words = zip(found, settings, strict=True)
    said = [
        f"{less:.3f} ± {margin:.3f} ({share:.0%}) at {name}"
        for (less, margin, share, _), name in words
    ]
    return np.array(found).T, ", ".join(said)


def _on_gains(pairs: Rows, base: str) -> Findings:
    (less, margin, *_), gains = _gains(
        pairs, base, {f"m = {m:g}": (m, BUDGET_THEIRS) for m in QUERIES}
    )
    reasons = {
        "rounds of elimination cost more accuracy than savings buy": less < -margin,
        "the difference is no more than chance may make": abs(less) <= margin,
    }
    found = {why: ", ".join(map(str, np.array(QUERIES)[holds])) for why, holds in reasons.items()}
    reason = "; ".join(f"at m = {some} {why}" for why, some in found.items() if some)
    yield Finding("handed-on", (less > margin).all(), gains=gains, reason=reason)
    yield Finding("gap-over-queries", _grow(less, margin), gains=gains)
    of_budgets = {f"{B:g}": (QUERIES_THEIRS, B) for B in BUDGETS}
    (_, _, shares, margins), gains = _gains(pairs, base, of_budgets)
    yield Finding("gain-over-budgets", _grow(shares, margins), gains=gains)


def _grow(gains: Floats, margins: Floats) -> bool:
    return bool(gains[-1] - gains[0] > np.hypot(margins[0], margins[-1]))


# `threshold` (Appendix C, Figure 9): is a count below q N, for counts about 5.5 % of N = 10000.

PEOPLE = 10_000
SHARE = 0.055
"""Households, and how many of them have the property: 10,000 dollars a year or less, about as in
the 2023 census."""

COUNTS = "counts about 5.5 %"
COUNT_RHOS = (1e-5, 1e-4, 1e-3, 1e-2)


@dataclass(frozen=True)
class Threshold:
    """Query whether a count of N people is below q N, in the central model (Appendix C, Algorithm
    9, which prints *above* for Yes).

    The count is phi, and the only "position" of the run (`how` "point"); it moves by at most 1 with
    each person. Its holder is the only "plate". Rounds end when it is surely above or below q N.
    With `QueryBudget.baseline` it is BM1.

    >>> import os
    >>> query, budgeting = Threshold(share=0.3, people=10_000), QueryBudget("zcdp", np.array([10**7]), "point")
    >>> pie = query.elimination(budgeting)
    >>> state = pie.run(np.array([[1200]]), os.urandom)
    >>> query.answer(budgeting, pie, state), int(state.charged[0])  # the first round of 64: 10^7 / 64
    ((True, True), 156250)
    """

    share: float
    people: int

    @property
    def limit(self) -> float:
        return self.share * self.people

    def elimination(self, budgeting: QueryBudget) -> Elimination:
        return budgeting.elimination(
            np.ravel, BandRule(self.limit, self.limit), dimensions=1, steps_per_unit=1
        )

    def answer(self, budgeting: QueryBudget, pie: Elimination, state: State) -> tuple[bool, bool]:
        """Whether the count is below q N, by a round's side or the average of all; and whether that
        is sure."""
        if state.status[0] != IN:
            return bool(state.status[0] == BELOW), True
        left = undecided(pie, state, budgeting.beta1)
        estimate = float(left.estimate[0])
        radius = float(left.radius[0])
        return estimate < self.limit, abs(estimate - self.limit) > radius


def ask_below(points: Integers, _place: None, share: float) -> tuple[Threshold, Errors]:
    """Whether a count is found below a share of the households and is not, or the other way round."""
    query = Threshold(share, PEOPLE)
    return query, [
        lambda *state: float(query.answer(*state)[0]) - float(points[0, 0] < query.limit)
    ]


THRESHOLD = Trial(
    "threshold", "q", (0.03, 0.05, 0.06, 0.1), ask_below, "Fig. 9", 500, ways=(("count", "point"),)
)


def threshold_rows(setup: Setup, share: float, rho: float) -> Found:
    """Drawn counts of households, each a single position."""
    counts = (
        setup.rng(f"threshold/{share}")
        .binomial(PEOPLE, SHARE, min(setup.repetitions, THRESHOLD.most))
        .tolist()
    )
    columns = {"data": COUNTS, "query": THRESHOLD.name, "parameter": share, "rho": rho}
    questions = [(np.array([[count]]), None) for count in counts]
    randomness = {
        (split, "count"): (
            setup.bits(f"threshold/{share}/{rho}/{split}"),
            PreparedNoise(len(counts)),
        )
        for split in SPLITS
    }
    return _try(THRESHOLD, columns, questions, concentrated(round(rho * NANO)), randomness)


def threshold_conclude(_setup: Setup, tables: Tables) -> Results:
    """Wrong answers, and what is left of the budget, by q."""
    rows = tables[""]
    panels = list(
        error_and_saved(
            rows, {q: f"q = {q:g}" for q in THRESHOLD.values}, "{}", "share of wrong answers"
        )
    )
    yield Figure(
        "threshold", f"is a count of {PEOPLE:,} below q of them: wrong answers, budget left", panels
    )
    yield from about([no_worse(tables["-pairs"], "Fig. 9")], data=COUNTS)
    saved, said = _saved(rows.where(split="c64"), "rho")
    yield Finding("threshold-saves", saved[-1] > max(0.5, saved[0]), saved=said)
