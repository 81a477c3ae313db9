"""Experiments on queries: `savings-range`, `savings-kde`, `savings-knn`; below, `multi-query` and `threshold`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from udp_stream.experiments.base import (
    Crowd,
    Experiment,
    Figure,
    Job,
    Outcome,
    Panel,
    Positions,
    Setup,
    Table,
    Verdict,
    curve,
    drawn_crowd,
    slug,
)
from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.noise import Cost, Integers, concentrated
from udp_stream.queries.elimination import Budgeting, How, Split
from udp_stream.queries.kinds import Density, Nearest, RangeCount, Threshold
from udp_stream.queries.plane import Rectangle, positions_inside, rho_per_square_metre
from udp_stream.queries.privatised import Draw, draw_radial
from udp_stream.units import NANO

# Noise that is drawn ahead, for experiments that draw a little of it very often.
#
# A call of the exact samplers takes about as long for twenty values as for a thousand. So many values of a scale are
# drawn at once and handed out one after another. They are as independent as if they were drawn one by one, and each is
# handed out once.

Key = tuple[str, int, int, int]


class PreparedNoise:
    """`draw_radial` from a store; where plates have several scales, or one call asks for much, by itself.

    It belongs to one stream of bits: what it hands out was drawn from those of the call that filled the store.

    >>> from udp_stream.testing import seeded_bits
    >>> noise, bits, scale = PreparedNoise(100), seeded_bits(1), (np.full(3, 10), np.full(3, 1))
    >>> first, second = (noise("zcdp", bits, *scale, dimensions=2) for _ in range(2))
    >>> first.shape, bool((first == second).all())
    ((3, 2), False)
    """

    def __init__(self, values: int) -> None:
        """How many coordinates are drawn at once."""
        self._values = values
        self._ready: dict[Key, Integers] = {}

    def __call__(self, measure: str, bits: Bits, t: Integers, s: Integers, dimensions: int) -> Integers:
        """A row for each scale t/s."""
        rows = self._values // dimensions
        if t.size == 0 or 4 * t.size > rows or np.ptp(t) or np.ptp(s):
            return draw_radial(measure, bits, t, s, dimensions)
        key = measure, int(t[0]), int(s[0]), dimensions
        ready = self._ready.get(key)
        if ready is None or len(ready) < t.size:
            ready = draw_radial(measure, bits, np.full(rows, t[0]), np.full(rows, s[0]), dimensions)
        self._ready[key] = ready[t.size :]
        return ready[: t.size]


# What `savings-range`, `savings-kde` and `savings-knn` share: queries, budgets, splits, and a row of their table.

PAPER = "Adaptive Privacy Budgeting"
SOURCE = f"{PAPER}, Section 7.1"
RHOS = (1e-5, 1e-4, 1e-3)
"""Per square metre."""

RHO_SMALL = 1e-6
"""Where noise is 707 m: what the paper says of small budgets is tried here, too, with range counts."""

SPLITS = {"BM": Split.even(1), "c4": Split.even(4), "c64": Split.even(64), "log-c10": Split.doubling(10)}
HOWS: tuple[How, ...] = ("point", "distance")
UNSHIFTED = "distance, threshold 0"
"""The same noisy distances, counted against 0 instead of the shifted threshold."""

SURE = 3.0
"""Standard errors beyond which a difference is no chance."""

Once = tuple[float, float]
"""How far an answer is off, with its sign, and the share of the budget that is left. An error is without the sign."""

Noisy = tuple[Bits, Draw]
"""Bits, and how noise is drawn from them."""

Ask = Callable[[Integers, tuple[float, float], float, Budgeting, Noisy], Mapping[str, Once]]
"""A query at a place, with its parameter: for each way to count what was drawn once."""


@dataclass(frozen=True, slots=True)
class SavingsRow:
    """One query, parameter, budget, method and split, over its repetitions. `bias` is the mean error with its sign.

    >>> row = row_of("town", "savings-knn", 5.0, 1e-4, "point", "c4", [(-0.1, 0.5), (0.3, 0.7)])
    >>> row.repetitions, row.error_mean, round(row.error_spread, 3), round(row.bias, 3), row.saved_mean
    (2, 0.2, 0.071, 0.1, 0.6)
    """

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
    bias: float = 0.0
    bias_spread: float = 0.0


def row_of(
    data: str, query: str, parameter: float, rho: float, how: str, split: str, runs: Sequence[Once]
) -> SavingsRow:
    """The row of these runs; a spread is the standard deviation of a mean."""
    off, saved = np.array(runs).T
    errors, root = np.abs(off), np.sqrt(off.size)
    of_errors = errors.mean(), *np.quantile(errors, (0.25, 0.75)), errors.std() / root
    of_savings = saved.mean(), *np.quantile(saved, (0.25, 0.75))
    found = map(float, (*of_errors, *of_savings, off.mean(), off.std() / root))
    return SavingsRow(data, query, parameter, rho, how, split, len(runs), *found)


@dataclass(frozen=True, slots=True)
class BesideRow:
    """Two ways on the same moments and places: their errors, and by how much the first errs less, pair by pair.

    `spread` is the standard deviation of that mean difference; `first_saved` the share of the budget that the first
    leaves.

    >>> asked, point, distance = ("town", "savings-kde", 500.0, 1e-4, "BM"), [(0.1, 0.0)], [(0.3, 0.0)]
    >>> beside(asked, ("point", point), ("distance", distance)).is_less
    True
    """

    data: str
    query: str
    parameter: float
    rho: float
    split: str
    first: str
    second: str
    repetitions: int
    first_error: float
    second_error: float
    less_by: float
    spread: float
    first_saved: float = 0.0

    @property
    def is_less(self) -> bool:
        """The first errs less, by more than chance."""
        return self.less_by > SURE * self.spread

    @property
    def is_more(self) -> bool:
        """It errs more."""
        return self.less_by < -SURE * self.spread


Asked = tuple[str, str, float, float, str]
"""Data, query, parameter, rho and split."""


def beside(asked: Asked, first: tuple[str, Sequence[Once]], second: tuple[str, Sequence[Once]]) -> BesideRow:
    """The row of the runs of two ways, by their names."""
    ours, theirs = (np.array([abs(off) for off, _ in runs]) for _, runs in (first, second))
    less = theirs - ours
    spread, errors = float(less.std() / np.sqrt(less.size)), (float(ours.mean()), float(theirs.mean()))
    saved = float(np.mean([share for _, share in first[1]]))
    return BesideRow(*asked, first[0], second[0], less.size, *errors, float(less.mean()), spread, saved)


def beside_baseline(asked: Asked, how: str, ours: Sequence[Once], theirs: Sequence[Once]) -> BesideRow:
    """Elimination beside its baseline, with the same noise."""
    return beside(asked, (f"PM, {how}", ours), (f"BM, {how}", theirs))


@dataclass(frozen=True)
class Kind:
    """A query with the parameter that it is tried with, and the figure it is of; `most` repetitions are the paper's.

    >>> Kind("savings-knn", "k", (1.0,), lambda *asked: {}, "Fig. 5", 300).rhos
    (1e-05, 0.0001, 0.001)
    """

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
        """The method that the paper says errs more: on distances, or on positions."""
        return "point" if self.better == "distance" else "distance"

    @property
    def rhos(self) -> tuple[float, ...]:
        """The budgets that it is tried with."""
        return (RHO_SMALL, *RHOS) if self.is_shifted else RHOS


# Figures and verdicts of `savings-range`, `savings-kde` and `savings-knn`, from their rows alone.
#
# Errors of two methods differ where their mean difference is more than three standard errors. Of two ways that answered
# the same questions, differences are taken pair by pair.

QUARTER = 0.25
"""Remark 6: bounds of elimination are no wider than the baseline's where this share of the plates leaves. We select by
the share of the budget that is saved, which is stricter: a plate saves less than all of its budget."""


def conclude(kind: Kind, setup: Setup, found: Sequence[SavingsRow | BesideRow]) -> Outcome:
    """Tables of errors and of pairs, a figure for each feed (for range counts Figure 8, too), and the verdicts."""
    del setup
    rows = [row for row in found if isinstance(row, SavingsRow)]
    pairs = [row for row in found if isinstance(row, BesideRow)]
    figures, verdicts = list[Figure](), list[Verdict]()
    for data in dict.fromkeys(row.data for row in rows):
        of_data = [row for row in rows if row.data == data and row.privatisation != UNSHIFTED]
        ours = [row for row in pairs if row.data == data]
        panels = [_panel(of_data, value, what) for what in ("error_mean", "saved_mean") for value in kind.values]
        title = f"{kind.name}, {data}: {kind.parameter} {', '.join(f'{value:g}' for value in kind.values)}"
        figures.append(Figure(f"{kind.name}-{slug(data)}", title, tuple(panels)))
        verdicts += _judged(kind, data, of_data)
        verdicts.append(no_worse(ours, f"{SOURCE}, Remark 6", data))
        verdicts.append(beats(kind, [row for row in ours if row.second != UNSHIFTED], data))
        if kind.better == "point":
            verdicts.append(biases(of_data, f"{SOURCE}, {kind.figure}", data))
        if some := [row for row in ours if row.second == UNSHIFTED]:
            title = f"range counts, {data}: the shifted threshold beside 0, {kind.parameter}"
            both = tuple(_shift_panel(some, value) for value in kind.values)
            figures.append(Figure(f"shifted-threshold-{slug(data)}", title, both))
            verdicts += shift_verdicts(some, data)
    tables = [Table(kind.name, tuple(rows)), Table(f"{kind.name}-pairs", tuple(pairs))] if rows else []
    return Outcome(tuple(tables), tuple(figures), tuple(verdicts))


def error_and_saved(
    rows: Sequence[SavingsRow], title: str, what: str, of: Sequence[tuple[str, Mapping[str, object]]], error: str
) -> Panel:
    """A line over rho for each of these ways that has rows: their errors, or what they save (BM saves nothing)."""
    curves = []
    for name, given in of:
        some = [row for row in rows if all(getattr(row, key) == value for key, value in given.items())]
        if some and (what == "error_mean" or given["split"] != "BM"):
            curves.append(curve(name, some, "rho", what))
    label = error if what == "error_mean" else "share of the budget left"
    return Panel(title, "rho", label, tuple(curves), log_x=True)


def _panel(rows: Sequence[SavingsRow], value: float, what: str) -> Panel:
    of = [
        (f"{split}, {how}", {"parameter": value, "privatisation": how, "split": split})
        for how in HOWS
        for split in SPLITS
    ]
    return error_and_saved(rows, f"{value:g}", what, of, "mean error")


def _shift_panel(rows: Sequence[BesideRow], value: float) -> Panel:
    curves = []
    for split in SPLITS:
        some = [row for row in rows if (row.parameter, row.split) == (value, split)]
        curves.append(curve(f"{split}, shifted", some, "rho", "first_error"))
        curves.append(curve(f"{split}, 0", some, "rho", "second_error"))
    return Panel(f"{value:g}", "rho", "mean error", tuple(curves), log_x=True)


def _judged(kind: Kind, data: str, rows: Sequence[SavingsRow]) -> list[Verdict]:
    source = f"{SOURCE}, {kind.figure}"
    return [_larger_c(rows, source, data), _grows(rows, source, data), _by_parameter(kind, rows, source, data)]


def _mean(rows: Sequence[SavingsRow], what: str, **given: object) -> float:
    some = [getattr(row, what) for row in rows if all(getattr(row, key) == value for key, value in given.items())]
    return float(np.mean(some))


def _larger_c(rows: Sequence[SavingsRow], source: str, data: str) -> Verdict:
    saved = {split: _mean(rows, "saved_mean", split=split, privatisation="distance") for split in list(SPLITS)[1:]}
    seen = ", ".join(f"{split} {share:.2f}" for split, share in saved.items())
    agrees = saved["c64"] > saved["c4"]
    why = "at the smallest budgets no round decides anything, and nothing is saved by any split"
    return Verdict("more rounds save more", source, agrees, f"{data}, noise on distances: {seen}", why)


def _grows(rows: Sequence[SavingsRow], source: str, data: str) -> Verdict:
    rhos = sorted({row.rho for row in rows})
    saved = [_mean(rows, "saved_mean", split="c64", rho=rho) for rho in rhos]
    agrees = all(a <= b + 0.02 for a, b in pairwise(saved)) and saved[-1] > saved[0]
    seen = ", ".join(f"{rho:g}: {share:.2f}" for rho, share in zip(rhos, saved, strict=True))
    return Verdict("savings grow with rho", source, agrees, f"{data}, c64: {seen}")


def no_worse(pairs: Sequence[BesideRow], source: str, data: str) -> Verdict:
    """Remark 6: elimination beside its baseline, pair by pair, where it lets go of a quarter."""
    found = [row for row in pairs if row.second.startswith("BM, ")]
    some = [row for row in found if row.first_saved >= QUARTER]
    worse = [
        f"{row.split} {row.second.removeprefix('BM, ')} {row.parameter:g} at rho {row.rho:g}"
        for row in some
        if row.is_more
    ]
    why = "radii for one plate in all rounds cost more than the baseline's single one where few plates leave early"
    selected = (
        f"{len(some) - len(worse)} of {len(some)}, which are {len(some) / max(1, len(found)):.0%} of all {len(found)}"
    )
    seen = f"{data}: {selected}" + (f"; worse: {', '.join(worse[:4])}" if worse else "")
    return Verdict("PM errs no more than BM where a quarter of the budget is saved", source, not worse, seen, why)


def biases(rows: Sequence[SavingsRow], source: str, data: str) -> Verdict:
    """Figure 4's reason: the bias of the baseline's densities with noise on positions, and on distances."""
    point, distance = ([r for r in rows if (r.split, r.privatisation) == ("BM", how)] for how in HOWS)
    means = [float(np.mean([row.bias for row in some])) for some in (point, distance)]
    (p_low, p_high), (d_low, d_high) = (
        [sum(sign * row.bias > SURE * row.bias_spread for row in some) for sign in (-1, 1)]
        for some in (point, distance)
    )
    agrees = p_low > 0 and d_high > 0 and not (p_high or d_low) and abs(means[0]) < abs(means[1])
    seen = f"positions {means[0]:.3g}, beyond chance {p_low} below 0 and {p_high} above; "
    seen += f"distances {means[1]:.3g}, {d_low} below and {d_high} above; of {len(point)} each"
    why = "noise that is narrower than the kernel moves plates near the place out of it more than others into it"
    statement = "noise on positions biases densities downwards, noise on distances upwards and more"
    return Verdict(statement, source, agrees, f"{data}, BM: {seen}", why)


def _by_parameter(kind: Kind, rows: Sequence[SavingsRow], source: str, data: str) -> Verdict:
    saved = [_mean(rows, "saved_mean", split="c64", parameter=value) for value in kind.values]
    spread = max(saved) - min(saved)
    seen = f"{data}, c64: {', '.join(f'{v:g}: {s:.2f}' for v, s in zip(kind.values, saved, strict=True))}"
    if kind.is_shifted:
        return Verdict("savings are alike over widths", source, spread < 0.1, seen)
    return Verdict(f"savings depend on the {kind.parameter}, less of it saves more", source, saved[0] > saved[-1], seen)


def beats(kind: Kind, pairs: Sequence[BesideRow], data: str) -> Verdict:
    """Whether the baseline errs less one way than the other where they differ by more than chance; of range counts,
    for the smallest budget.
    """
    some = [row for row in pairs if row.split == "BM"]
    if kind.is_shifted:  # theirs is about small budgets
        some = [row for row in some if row.rho == min(one.rho for one in some)]
    less, more = sum(row.is_less for row in some), sum(row.is_more for row in some)
    means = [float(np.mean([getattr(row, error) for row in some])) for error in _BOTH]
    seen = f"{data}, BM: beyond chance in {less} of {len(some)} rows, the other in {more}; "
    why = "it depends on the parameter and the budget" if more else "the differences are no more than chance may make"
    statement = f"noise on {'positions' if kind.better == 'point' else 'distances'} errs less"
    of_both = f"means {means[0]:.3g} against {means[1]:.3g}"
    return Verdict(statement, f"{SOURCE}, {kind.figure}", less > 0 and not more, seen + of_both, why)


def shift_verdicts(pairs: Sequence[BesideRow], data: str) -> list[Verdict]:
    """Figure 8: the gain of the shifted threshold over 0 at the smallest budget, and whether it harms any."""
    source, rhos = f"{PAPER}, Appendix B, Fig. 8", sorted({row.rho for row in pairs})
    small = [row for row in pairs if row.rho == rhos[0]]
    less = sum(row.is_less for row in small)
    harmed = [f"{row.split} {row.parameter:g} at rho {row.rho:g}" for row in pairs if row.is_more]
    means = [
        (rho, [float(np.mean([getattr(row, error) for row in pairs if row.rho == rho])) for error in _BOTH])
        for rho in rhos
    ]
    seen = ", ".join(f"{rho:g}: {shifted:.3g} against {zero:.3g}" for rho, (shifted, zero) in means)
    return [
        Verdict(
            "a shifted threshold errs less than 0 where the budget is small", source, 2 * less > len(small),
            f"{data}, rho {rhos[0]:g}: beyond chance in {less} of {len(small)} rows; means {seen}",
            "where the region is much wider than the noise, as many plates are taken in as left out by either",
        ),
        Verdict(
            "a shifted threshold errs no more than 0 at any budget", source, not harmed,
            f"{data}: {len(pairs) - len(harmed)} of {len(pairs)} rows"
            + (f"; worse: {', '.join(harmed[:4])}" if harmed else ""),
            "it is made for plates that are spread evenly around the edge, and places near a plate are not",
        ),
    ]  # fmt: skip


_BOTH = "first_error", "second_error"


# `savings-range`, `savings-kde`, `savings-knn`: one query by elimination, beside its baseline.
#
# *Adaptive Privacy Budgeting* (Liang and Yi), Section 7.1, Figures 3 to 5, and 8, in kind: on the positions of recorded
# feeds, for counts and densities also on as many drawn points as theirs, and for the nearest on clusters in 784
# dimensions, as many as their images have. BM asks everyone once,
# for the whole budget; PM eliminates, with c4, c64 and log-c10. Method 0 has noise on positions ("point"), method 1 on
# distances; range counts by noisy distances are counted twice, against Appendix B's shifted threshold and against 0. Of
# each: the error and the share of the budget that is left, mean and 25th and 75th percentile over moments and places;
# and the bias, the mean error with its sign.

DIMENSIONS, CLUSTERS, POINTS = 784, 10, 400
IMAGES_MOST = 50
"""Repetitions, the fewest that the paper has of any query: noise on positions is 784 draws a point."""

IMAGE_RHOS = RHOS
"""Per squared step of a pixel's value."""

CROWDS = (9740, 200_000)
"""Drawn points: as many as their taxis and their collisions."""

CROWD_POINTS, CROWD_LEAST = 500_000, 10
"""Points in all repetitions together, and the fewest repetitions."""

DRAWN_AT_ONCE = 30_000
"""Coordinates of noise of one scale."""


def count_once(
    where: Integers, place: tuple[float, float], width: float, terms: Budgeting, noisy: Noisy
) -> dict[str, Once]:
    """How far a square's count is off, relative to the truth or to 1 if that is 0; of distances by both thresholds."""
    region = Rectangle(*place, width, width)
    query, truth = RangeCount(region), positions_inside(region, where)
    pie = query.elimination(terms)
    state = pie.run(where, *noisy)
    ways = {terms.how: query} | ({UNSHIFTED: RangeCount(region, shifted=False)} if terms.how == "distance" else {})
    saved = terms.saved(state)
    off = {way: one.answer(terms, pie, state).value - truth for way, one in ways.items()}
    return {way: (one / max(1, truth), saved) for way, one in off.items()}


def density_once(
    where: Integers, place: tuple[float, float], bandwidth: float, terms: Budgeting, noisy: Noisy
) -> dict[str, Once]:
    """How far a density is off."""
    query = Density(*place, bandwidth)
    pie = query.elimination(terms)
    state = pie.run(where, *noisy)
    return {terms.how: (query.answer(terms, pie, state).value - query.truth(where), terms.saved(state))}


def nearest_once(query: Nearest, where: Integers, terms: Budgeting, noisy: Noisy) -> dict[str, Once]:
    """The nearest, and how much farther away they are together than the true ones, relative to these."""
    pie, distance = query.elimination(terms), query.distance(where.astype(np.float64))
    state, truth = pie.run(where, *noisy), float(distance[query.truth(where)].sum())
    found = float(distance[query.answer(terms, pie, state).plates].sum())
    return {terms.how: (found / truth - 1 if truth else 0.0, terms.saved(state))}


def stop_once(where: Integers, place: tuple[float, float], k: float, terms: Budgeting, noisy: Noisy) -> dict[str, Once]:
    """The k nearest to a place in the plane."""
    return nearest_once(Nearest.to_stop(int(k), *place), where, terms, noisy)


RANGE = Kind("savings-range", "width, m", (1000.0, 2000.0, 4000.0), count_once, "Fig. 3", 504, is_shifted=True)
KDE = Kind("savings-kde", "bandwidth, m", (250.0, 500.0, 1000.0), density_once, "Fig. 4", 300, better="point")
KNN = Kind("savings-knn", "k", (1.0, 5.0, 20.0), stop_once, "Fig. 5", 300)


def terms_for(cost: Cost, plates: int, how: How, split: str) -> Budgeting:
    """The terms of a method: the baseline's, or those of elimination."""
    terms = Budgeting.alike(cost, plates, how, SPLITS[split])
    return terms.baseline() if split == "BM" else terms


def _jobs(kind: Kind, setup: Setup) -> list[Job]:
    found: list[Job] = []
    crowds = () if kind is KNN else tuple(drawn_crowd(points, setup.rng(f"crowd/{points}")) for points in CROWDS)
    for feed in (*setup.positions, *crowds):
        for value in kind.values:
            found += [partial(_rows, kind, setup, feed, value, rho) for rho in kind.rhos]
    if kind is KNN:
        found += [partial(_image_rows, setup, value, rho) for value in KNN.values for rho in IMAGE_RHOS]
    return found


def _rows(kind: Kind, setup: Setup, feed: Positions, value: float, rho: float) -> list[SavingsRow | BesideRow]:
    """Every split and method on the same moments and places."""
    times, rng = min(setup.repetitions, kind.most), setup.rng(f"{kind.name}/{feed.name}")
    if isinstance(feed, Crowd):
        times = min(times, max(CROWD_LEAST, CROWD_POINTS // feed.plate.size))
    asked = []
    for moment in feed.moments(times, rng):
        where = feed.at(moment)[1]
        asked.append((where, feed.place_near_a_plate(where, rng)))
    rows, bases = list[SavingsRow | BesideRow](), dict[str, list[Once]]()
    for split in SPLITS:
        ways = dict[str, list[Once]]()
        for how in HOWS:
            bits = setup.bits(f"{kind.name}/{feed.name}/{value}/{rho}/{how}/{split}")
            noise, cost = PreparedNoise(DRAWN_AT_ONCE), rho_per_square_metre(rho)
            for where, place in asked:
                once = kind.ask(where, place, value, terms_for(cost, len(where), how, split), (bits, noise))
                for way, found in once.items():
                    ways.setdefault(way, []).append(found)
        bases = bases or ways
        rows += _rows_of_ways((feed.name, kind.name, value, rho), split, ways, bases, kind)
    return rows


def _rows_of_ways(
    of: tuple[str, str, float, float], split: str, ways: dict[str, list[Once]], bases: dict[str, list[Once]], kind: Kind
) -> Iterator[SavingsRow | BesideRow]:
    """A row for each way, and one for each pair that the paper compares; `bases` are the ways of BM."""
    yield from (row_of(*of, way, split, runs) for way, runs in ways.items())
    for how in HOWS if split != "BM" else ():
        if how in ways:
            yield beside_baseline((*of, split), how, ways[how], bases[how])
    for first, second in ((kind.better, kind.worse), ("distance", UNSHIFTED)):
        if first in ways and second in ways:
            yield beside((*of, split), (first, ways[first]), (second, ways[second]))


def _image_rows(setup: Setup, k: float, rho: float) -> list[SavingsRow | BesideRow]:
    """On clusters of points with values from 0 to 255 in 784 dimensions; c64 and log-c10 with distances only, as noise
    on positions is as many draws as there are dimensions."""
    rng, rows, bases = setup.rng(f"images/{k}"), list[SavingsRow | BesideRow](), dict[str, list[Once]]()
    centres = rng.uniform(60, 195, (CLUSTERS, DIMENSIONS))
    drawn: list[Integers] = []
    for _ in range(min(setup.repetitions, IMAGES_MOST)):
        points = centres[rng.integers(0, CLUSTERS, POINTS + 1)] + rng.normal(0, 45, (POINTS + 1, DIMENSIONS))
        drawn.append(np.clip(np.rint(points), 0, 255).astype(np.int64))
    for split in SPLITS:
        ways = dict[str, list[Once]]()
        for how in HOWS if split in ("BM", "c4") else ("distance",):
            noisy = setup.bits(f"images/{k}/{rho}/{how}/{split}"), PreparedNoise(DRAWN_AT_ONCE)
            for one in drawn:
                query = Nearest(int(k), tuple(map(float, one[0])), steps_per_unit=1000)
                terms = terms_for(concentrated(round(rho * 10**6 * NANO)), POINTS, how, split)
                ways.setdefault(how, []).append(nearest_once(query, one[1:], terms, noisy)[how])
        bases = bases or ways
        rows += _rows_of_ways(("clusters in 784 dimensions", KNN.name, k, rho), split, ways, bases, KNN)
    return rows


# `multi-query` and `threshold`: savings handed on over many queries, and a count beside a share.
#
# *Adaptive Privacy Budgeting* (Liang and Yi), Section 7.2 (Figure 6) and Appendix C (Figure 9), in kind. Figure 6: m
# range counts at m moments of a recorded feed, 3 km wide. BM gives each B/m. PM eliminates (log-c10), and hands on by
# their Algorithm 3 what plates did not spend. A plate that is absent from a moment does not spend, either, so "BM
# handed on" hands on without eliminating: what it gains is absence's, and what PM gains on top is elimination's. Figure
# 9: is a count below q N, for counts about 5.5 % of N = 10000.

AtMoment = tuple[Integers, Integers, tuple[float, float]]
"""Plates, where they are, and the middle of the square."""

RAMP_FROM = 0.75
"""Of Algorithm 3: the share of its savings that a plate may spend at first."""

WIDTH = 3000.0
QUERIES = (7, 14, 28, 56)
BUDGETS = (1e-5, 1e-4, 1e-3)
QUERIES_THEIRS, BUDGET_THEIRS = 56, 1e-4
"""7 x 8 queries, and 1e-4 per square metre."""

BM, HANDED_ON, PM = "BM", "BM handed on", "PM"
"""Even parts; Algorithm 3 without elimination; and with it."""

MULTI_MOST, THRESHOLD_MOST = 50, 500
SPLIT = "log-c10"

PEOPLE, SHARE = 10_000, 0.055
"""Households, and how many of them have the property: 10,000 dollars a year or less, about as in the 2023 census."""

COUNTS = "counts about 5.5 %"
LIMITS = (0.03, 0.05, 0.06, 0.1)
COUNT_RHOS = (1e-5, 1e-4, 1e-3, 1e-2)


def allowance(left: float, query: int, queries: int, budget: float) -> float:
    """Algorithm 3's amount for the query of this number, from 1, for a plate with so much left."""
    ramp = 1.0 if queries == 1 else RAMP_FROM + (1 - RAMP_FROM) * (query - 1) / (queries - 1)
    return ramp * (left - (queries - query + 1) / queries * budget) + budget / queries


def _multi_jobs(setup: Setup) -> list[Job]:
    settings = [(m, BUDGET_THEIRS) for m in QUERIES] + [(QUERIES_THEIRS, B) for B in BUDGETS if B != BUDGET_THEIRS]
    hows: tuple[How, ...] = ("point", "distance")
    return [
        partial(_multi_rows, setup, feed, m, B, how) for feed in setup.positions for m, B in settings for how in hows
    ]


def _multi_rows(setup: Setup, feed: Positions, queries: int, budget: float, how: How) -> list[SavingsRow | BesideRow]:
    """The parameter of a row is the number of queries, its rho the budget of all of them, its split the method; its
    errors are each the mean over a repetition's queries. PM is set beside both others."""
    times, rng = min(setup.repetitions, MULTI_MOST), setup.rng(f"multi/{feed.name}/{queries}")
    runs: dict[str, list[Once]] = {BM: [], HANDED_ON: [], PM: []}
    for i in range(times):
        asked = [(moment, *feed.at(moment)) for moment in sorted(feed.moments(queries, rng))]
        places = [feed.place_near_a_plate(where, rng) for _, _, where in asked]
        for method, found in runs.items():
            day = [(plates, where, place) for (_, plates, where), place in zip(asked, places, strict=True)]
            bits = setup.bits(f"multi/{feed.name}/{queries}/{budget}/{how}/{method}/{i}")
            found.append(_a_day(day, rho_per_square_metre(budget), how, method, bits))
    of = feed.name, "multi-query", float(queries), budget
    rows: list[SavingsRow | BesideRow] = [row_of(*of, how, method, found) for method, found in runs.items()]
    return rows + [beside((*of, SPLIT), (PM, runs[PM]), (f"{base}, {how}", runs[base])) for base in (BM, HANDED_ON)]


def _a_day(day: Sequence[AtMoment], cost: Cost, how: How, method: str, bits: Bits) -> Once:
    """The mean error over these queries, and the share of all plates' budgets that is left after them."""
    seen = np.unique(np.concatenate([plates for plates, _, _ in day]))
    left, errors, m = np.full(seen.size, float(cost.nano)), [], len(day)
    for number, (plates, where, place) in enumerate(day, 1):
        at = np.searchsorted(seen, plates)
        even = np.full(plates.size, cost.nano / m)
        amounts = even if method == BM else np.array([allowance(one, number, m, cost.nano) for one in left[at]])
        budgets = np.maximum(np.minimum(amounts, left[at]), 1.0).astype(np.int64)
        terms = Budgeting("zcdp", budgets, how, SPLITS[SPLIT])
        terms = terms if method == PM else terms.baseline()
        query = RangeCount(Rectangle(*place, WIDTH, WIDTH))
        pie, truth = query.elimination(terms), positions_inside(query.region, where)
        state = pie.run(where, bits)
        errors.append(abs(query.answer(terms, pie, state).value - truth) / max(1, truth))
        left[at] -= state.charged
    return float(np.mean(errors)), float(left.mean() / cost.nano)


def _multi_conclude(setup: Setup, found: Sequence[SavingsRow | BesideRow]) -> Outcome:
    del setup
    rows = [row for row in found if isinstance(row, SavingsRow)]
    pairs = [row for row in found if isinstance(row, BesideRow)]
    figures, verdicts = [], []
    for data in dict.fromkeys(row.data for row in rows):
        some = [row for row in rows if row.data == data]
        panels = (
            _multi_panel("number of queries", "parameter", [row for row in some if row.rho == BUDGET_THEIRS]),
            _multi_panel("budget", "rho", [row for row in some if row.parameter == QUERIES_THEIRS]),
        )
        title = f"{data}: mean error of m range counts, {WIDTH:g} m wide"
        figures.append(Figure(f"multi-query-{slug(data)}", title, panels))
        verdicts += multi_verdicts([row for row in pairs if row.data == data], data)
    tables = [Table("multi-query", tuple(rows)), Table("multi-query-pairs", tuple(pairs))] if rows else []
    return Outcome(tuple(tables), tuple(figures), tuple(verdicts))


def _multi_panel(title: str, of: str, rows: Sequence[SavingsRow]) -> Panel:
    curves = []
    for how in ("point", "distance"):
        for method in (BM, HANDED_ON, PM):
            some = [row for row in rows if (row.privatisation, row.split) == (how, method)]
            some.sort(key=lambda row: float(getattr(row, of)))
            curves.append(curve(f"{method}, {how}", some, of, "error_mean"))
    return Panel(title, title, "mean relative error", tuple(curves), log_x=True)


@dataclass(frozen=True, slots=True)
class _Gain:
    """How much less PM errs than a base, mean over both kinds of noise; three standard errors; share of its error."""

    less_by: float
    margin: float
    share: float

    def __str__(self) -> str:
        return f"{self.less_by:.3f} ± {self.margin:.3f} ({self.share:.0%})"


def _gain(pairs: Sequence[BesideRow], queries: int, budget: float, base: str) -> _Gain:
    seconds = [f"{base}, {how}" for how in HOWS]
    some = [row for row in pairs if (row.parameter, row.rho) == (queries, budget) and row.second in seconds]
    means = (float(np.mean([getattr(row, name) for row in some])) for name in ("less_by", "spread", "second_error"))
    less, spread, error = means
    return _Gain(less, SURE * spread, less / error if error else 0.0)


def multi_verdicts(pairs: Sequence[BesideRow], data: str) -> list[Verdict]:
    """What Figure 6 says, where differences are beyond three standard errors; then the same of elimination alone."""
    return [*_beside(pairs, data, BM, ""), *_beside(pairs, data, HANDED_ON, ", by elimination alone")]


def _beside(pairs: Sequence[BesideRow], data: str, base: str, alone: str) -> Iterator[Verdict]:
    """Of PM beside this base."""
    by_m = {m: _gain(pairs, m, BUDGET_THEIRS, base) for m in QUERIES}
    by_budget = {B: _gain(pairs, QUERIES_THEIRS, B, base) for B in BUDGETS}
    source = f"{PAPER}, Fig. 6"
    yield Verdict(
        f"handed-on savings lower the error of m queries{alone}", source,
        all(gain.less_by > gain.margin for gain in by_m.values()), f"{data}: {_less_by(by_m, 'm = ', base)}",
        _why_no_less(by_m),
    )  # fmt: skip
    yield Verdict(
        f"the more queries, the larger the gap{alone}", source,
        _gain_grows([(gain.less_by, gain.margin) for gain in by_m.values()]),
        f"{data}: {_less_by(by_m, 'm = ', base)}", "the difference is no more than chance may make",
    )  # fmt: skip
    yield Verdict(
        f"the larger the budget, the larger the gain{alone}", source,
        _gain_grows([(g.share, g.margin * g.share / g.less_by if g.less_by else 1.0) for g in by_budget.values()]),
        f"{data}: {_less_by(by_budget, '', base)}",
        "where the budget is large, both err by little, and what is left of it is chance",
    )  # fmt: skip


def _why_no_less(by_m: Mapping[int, _Gain]) -> str:
    """Where PM errs more, and where it may be chance that it does not."""
    more = [str(m) for m, gain in by_m.items() if gain.less_by < -gain.margin]
    unsure = [str(m) for m, gain in by_m.items() if abs(gain.less_by) <= gain.margin]
    reasons = [
        f"at m = {', '.join(more)} rounds of elimination cost more accuracy than savings buy" if more else "",
        f"at m = {', '.join(unsure)} the difference is no more than chance may make" if unsure else "",
    ]
    return "; ".join(filter(None, reasons))


def _gain_grows(gains: Sequence[tuple[float, float]]) -> bool:
    """Whether the last gain is larger than the first by more than chance; each with its margin."""
    first, *_, last = gains
    return last[0] - first[0] > float(np.hypot(first[1], last[1]))


def _less_by(gains: Mapping[int, _Gain] | Mapping[float, _Gain], name: str, base: str) -> str:
    said = ", ".join(f"{gain} at {name}{key:g}" for key, gain in gains.items())
    return f"less by {said} (three standard errors; of the error of {base})"


def _threshold_jobs(setup: Setup) -> list[Job]:
    return [partial(_threshold_rows, setup, share, rho) for share in LIMITS for rho in COUNT_RHOS]


def _threshold_rows(setup: Setup, share: float, rho: float) -> list[SavingsRow | BesideRow]:
    rng = setup.rng(f"threshold/{share}")
    counts = rng.binomial(PEOPLE, SHARE, min(setup.repetitions, THRESHOLD_MOST)).tolist()
    query = Threshold(share, PEOPLE)
    asked, rows, base = (COUNTS, "threshold", share, rho), list[SavingsRow | BesideRow](), list[Once]()
    for split, shape in SPLITS.items():
        bits, noise, runs = setup.bits(f"threshold/{share}/{rho}/{split}"), PreparedNoise(len(counts)), list[Once]()
        terms = Budgeting.alike(concentrated(round(rho * NANO)), 1, "point", shape)
        terms = terms.baseline() if split == "BM" else terms
        for count in counts:
            pie = query.elimination(terms)
            state = pie.run(np.array([[count]]), bits, noise)
            is_below, _ = query.answer(terms, pie, state)
            runs.append((float(is_below) - float(count < query.limit), terms.saved(state)))
        rows.append(row_of(*asked, "count", split, runs))
        base = base or runs
        if split != "BM":
            rows.append(beside_baseline((*asked, split), "count", runs, base))
    return rows


def _threshold_conclude(setup: Setup, found: Sequence[SavingsRow | BesideRow]) -> Outcome:
    del setup
    rows = [row for row in found if isinstance(row, SavingsRow)]
    pairs = [row for row in found if isinstance(row, BesideRow)]
    panels = [_threshold_panel(rows, q, what) for what in ("error_mean", "saved_mean") for q in LIMITS]
    saved = {rho: [r.saved_mean for r in rows if r.rho == rho and r.split == "c64"] for rho in COUNT_RHOS}
    means = [float(np.mean(one)) for one in saved.values()]
    source = f"{PAPER}, Fig. 9"
    verdicts = (
        no_worse(pairs, source, COUNTS),
        Verdict(
            "savings are large where rho is large enough", source, means[-1] > 0.5 and means[-1] > means[0],
            f"c64: {', '.join(f'{rho:g}: {share:.2f}' for rho, share in zip(COUNT_RHOS, means, strict=True))}",
        ),
    )  # fmt: skip
    figure = Figure("threshold", f"is a count of {PEOPLE:,} below q of them: wrong answers, budget left", tuple(panels))
    return Outcome((Table("threshold", tuple(rows)), Table("threshold-pairs", tuple(pairs))), (figure,), verdicts)


def _threshold_panel(rows: Sequence[SavingsRow], share: float, what: str) -> Panel:
    of = [(split, {"parameter": share, "split": split}) for split in SPLITS]
    return error_and_saved(rows, f"q = {share:g}", what, of, "share of wrong answers")


EXPERIMENTS = (
    *(
        Experiment(
            one.name, f"what {what} by elimination leave of a budget", partial(_jobs, one), partial(conclude, one)
        )
        for one, what in ((RANGE, "range counts"), (KDE, "densities"), (KNN, "the nearest"))
    ),
    Experiment("multi-query", "what savings buy over many queries, by Algorithm 3", _multi_jobs, _multi_conclude),
    Experiment(
        *("threshold", "what a threshold query by elimination leaves of a budget"),
        *(_threshold_jobs, _threshold_conclude),
    ),
)
