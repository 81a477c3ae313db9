"""`savings-range`, `savings-kde`, `savings-knn`: one query by elimination, beside its baseline.

*Adaptive Privacy Budgeting* (Liang and Yi), Section 7.1, Figures 3 to 5, and 8, in kind: on the positions of recorded
feeds, and for the nearest also on clusters in 784 dimensions, as many as their images have. BM asks everyone once, for
the whole budget; PM eliminates, with c4, c64 and log-c10. Method 0 has noise on positions ("point"), method 1 on
distances; range counts by noisy distances are counted twice, against Appendix B's shifted threshold and against 0. Of
each: the error and the share of the budget that is left, mean and 25th and 75th percentile over moments and places; and
the bias, the mean error with its sign.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from udp_stream.experiments.base import Experiment, Integers, Job, Setup
from udp_stream.experiments.positions import Positions
from udp_stream.experiments.prepared_noise import PreparedNoise
from udp_stream.experiments.savings_rows import (
    HOWS,
    RHOS,
    SPLITS,
    UNSHIFTED,
    BesideRow,
    Kind,
    Noisy,
    Once,
    SavingsRow,
    beside,
    beside_baseline,
    row_of,
)
from udp_stream.experiments.savings_verdicts import conclude
from udp_stream.mechanisms.noise.base import Cost, concentrated
from udp_stream.queries.density import Density
from udp_stream.queries.nearest import Nearest
from udp_stream.queries.plane import rho_per_square_metre
from udp_stream.queries.range_count import RangeCount
from udp_stream.queries.regions import Rectangle, positions_inside
from udp_stream.queries.terms import How, Terms
from udp_stream.units import NANO

DIMENSIONS, CLUSTERS, POINTS = 784, 10, 400
IMAGES_MOST = 50
"""Repetitions, the fewest that the paper has of any query: noise on positions is 784 draws a point."""

IMAGE_RHOS = RHOS
"""Per squared step of a pixel's value."""

DRAWN_AT_ONCE = 30_000
"""Coordinates of noise of one scale."""


def count_once(
    where: Integers, place: tuple[float, float], width: float, terms: Terms, noisy: Noisy
) -> dict[str, Once]:
    """How far a square's count is off, relative to the truth or to 1 if that is 0; of distances by both thresholds.

    >>> where, cost = np.array([[0, 0], [90_000, 0]]), rho_per_square_metre(1e-2)  # sixteenths of a metre
    >>> from udp_stream.testing import seeded_bits
    >>> noisy = seeded_bits(1), PreparedNoise(100)
    >>> [count_once(where, (east, 0.0), 1000.0, terms_for(cost, 2, "point", "BM"), noisy) for east in (0.0, 2500.0)]
    [{'point': (0.0, 0.0)}, {'point': (0.0, 0.0)}]
    """
    region = Rectangle(*place, width, width)
    query, truth = RangeCount(region), positions_inside(region, where)
    pie = query.elimination(terms)
    state = pie.run(where, *noisy)
    ways = {terms.how: query} | ({UNSHIFTED: RangeCount(region, shifted=False)} if terms.how == "distance" else {})
    saved = terms.saved(state)
    off = {way: one.answer(terms, pie, state).value - truth for way, one in ways.items()}
    return {way: (one / max(1, truth), saved) for way, one in off.items()}


def density_once(
    where: Integers, place: tuple[float, float], bandwidth: float, terms: Terms, noisy: Noisy
) -> dict[str, Once]:
    """How far a density is off."""
    query = Density(*place, bandwidth)
    pie = query.elimination(terms)
    state = pie.run(where, *noisy)
    return {terms.how: (query.answer(terms, pie, state).value - query.truth(where), terms.saved(state))}


def nearest_once(query: Nearest, where: Integers, terms: Terms, noisy: Noisy) -> dict[str, Once]:
    """The nearest, and how much farther away they are together than the true ones, relative to these."""
    pie, distance = query.elimination(terms), query.distance(where.astype(np.float64))
    state, truth = pie.run(where, *noisy), float(distance[query.truth(where)].sum())
    found = float(distance[query.answer(terms, pie, state).plates].sum())
    return {terms.how: (found / truth - 1 if truth else 0.0, terms.saved(state))}


def stop_once(where: Integers, place: tuple[float, float], k: float, terms: Terms, noisy: Noisy) -> dict[str, Once]:
    """The k nearest to a place in the plane."""
    return nearest_once(Nearest.to_stop(int(k), *place), where, terms, noisy)


RANGE = Kind("savings-range", "width, m", (1000.0, 2000.0, 4000.0), count_once, "Fig. 3", 504, is_shifted=True)
KDE = Kind("savings-kde", "bandwidth, m", (250.0, 500.0, 1000.0), density_once, "Fig. 4", 300, better="point")
KNN = Kind("savings-knn", "k", (1.0, 5.0, 20.0), stop_once, "Fig. 5", 300)


def terms_for(cost: Cost, plates: int, how: How, split: str) -> Terms:
    """The terms of a method: the baseline's, or those of elimination.

    >>> terms_for(concentrated(10**9), 3, "point", "BM").eliminates
    False
    """
    terms = Terms.alike(cost, plates, how, SPLITS[split])
    return terms.baseline() if split == "BM" else terms


def _jobs(kind: Kind, setup: Setup) -> list[Job]:
    found: list[Job] = []
    for feed in setup.positions:
        for value in kind.values:
            found += [partial(_rows, kind, setup, feed, value, rho) for rho in kind.rhos]
    if kind is KNN:
        found += [partial(_image_rows, setup, value, rho) for value in KNN.values for rho in IMAGE_RHOS]
    return found


def _rows(kind: Kind, setup: Setup, feed: Positions, value: float, rho: float) -> list[SavingsRow | BesideRow]:
    """Every split and method on the same moments and places."""
    times, rng = min(setup.repetitions, kind.most), setup.rng(f"{kind.name}/{feed.name}")
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


def _experiment(kind: Kind, about: str) -> Experiment:
    return Experiment(kind.name, about, partial(_jobs, kind), partial(conclude, kind))


SAVINGS_RANGE = _experiment(RANGE, "what range counts by elimination leave of a budget")
SAVINGS_KDE = _experiment(KDE, "what densities by elimination leave of a budget")
SAVINGS_KNN = _experiment(KNN, "what the nearest by elimination leave of a budget")
