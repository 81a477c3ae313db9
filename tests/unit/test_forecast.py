"""Forecasts: features by their definitions, and a memory that follows from releases."""

import datetime as dt
import math
from dataclasses import replace
from itertools import combinations

import h3.api.basic_int as h3
import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from udp_stream.forecast.anomalies import NOT_CLIPPED, NOTHING, ReleaseClip
from udp_stream.forecast.model import (
    PER_HAT,
    CityTold,
    Memory,
    ReleasedHats,
    SlotPrior,
    features_of,
    prior_of,
)
from udp_stream.mechanisms.widths import HALF_WIDTHS
from udp_stream.windows.grid import HEXAGONS
from udp_stream.windows.tables import SlotCounts

HERE, ELSEWHERE = (h3.latlng_to_cell(*place, 7) for place in ((21.17, 72.83), (52.2, 21.0)))
MONDAY = dt.date(2024, 1, 8)
MAX_KMH = 65.0


def disk(centre, radius=3):
    """Cells around a centre, by their place in the grid: the same places around another one lie
    alike."""
    origin = h3.cell_to_local_ij(centre, centre)
    places = [(i, j) for i in range(-radius, radius + 1) for j in range(-radius, radius + 1)]
    return {(i, j): h3.local_ij_to_cell(centre, origin[0] + i, origin[1] + j) for i, j in places}


def visits_of(seed, plates=12, hats=15):
    """Pings by (plate, place), of plates that are in some places of a disk."""
    rng = np.random.default_rng(seed)
    places = [tuple(place) for place in rng.permutation(list(disk(HERE)))[:hats].tolist()]
    every = [(plate, place) for plate in range(plates) for place in places if rng.random() < 0.35]
    return {visit: int(rng.integers(1, 60)) for visit in every}


def counts_of(visits, centre=HERE, names=None, start_ms=0):
    """The counts of these visits, tabulated; and the row of each visit, the HAT of each place."""
    cells, names = disk(centre), names or {plate: plate for plate, _ in visits}
    rows = sorted(((cells[place], names[plate]), count) for (plate, place), count in visits.items())
    hat_cells = sorted({cell for (cell, _), _ in rows})
    starts = [sum(cell < hat for (cell, _), _ in rows) for hat in hat_cells]
    order = sorted(set(names.values()))
    row_of = {key: at for at, (key, _) in enumerate(rows)}
    counts = SlotCounts(
        start_ms, start_ms + 3_600_000, tuple(b"%08d" % name for name in order), np.array(hat_cells, np.uint64),
        np.array([*starts, len(rows)]), np.array([order.index(name) for (_, name), _ in rows]),
        np.array([count for _, count in rows]), 0,
    )  # fmt: skip
    at_row = {(plate, place): row_of[cells[place], names[plate]] for plate, place in visits}
    return counts, at_row, {place: hat_cells.index(cells[place]) for _, place in visits}


def by_definition(visits):
    """The features in plain words, one visit and one HAT at a time."""
    places, plates = {place for _, place in visits}, {plate for plate, _ in visits}
    of_plate = {p: {place: m for (q, place), m in visits.items() if q == p} for p in plates}
    of_hat = {h: {q: m for (q, place), m in visits.items() if place == h} for h in places}
    usual = float(np.percentile([sum(of.values()) for of in of_plate.values()], 75))
    cells = disk(HERE)
    beside = {h: [k for k in places if h3.are_neighbor_cells(cells[h], cells[k])] for h in places}
    dwell = {h: math.log(sum(of.values()) / len(of) / usual) for h, of in of_hat.items()}

    def around(h):
        pings = sum(sum(of_hat[k].values()) for k in beside[h])
        return (
            math.log(pings / sum(len(of_hat[k]) for k in beside[h]) / usual) if pings else dwell[h]
        )

    rows = {}
    for (p, h), m in visits.items():
        others = [count for q, count in of_hat[h].items() if q != p]
        elsewhere = [count for k, count in of_plate[p].items() if k != h]
        total = sum(of_plate[p].values())
        rows[p, h] = [
            math.log(m / usual), m / total, math.log(len(of_plate[p]) * usual / total),
            sum(k in of_plate[p] for k in beside[h]), dwell[h], math.log(len(of_hat[h])), around(h),
            math.log(max(others, default=m) / usual),
            math.log(sum(elsewhere) / len(elsewhere) / usual) if elsewhere else math.log(m / usual),
            *pairs_apart(cells[h], [cells[k] for k in beside[h] if k in of_plate[p]]),
        ]  # fmt: skip
    mean = lambda h, at: (  # noqa: E731
        sum(m * rows[p, h][at] for p, m in of_hat[h].items()) / sum(of_hat[h].values())
    )
    hats = {
        h: [dwell[h], mean(h, 2), mean(h, 1), mean(h, 3), around(h), math.log(len(of_hat[h]))]
        for h in places
    }
    return rows, hats


def pairs_apart(cell, visited):
    """Pairs of these neighbours of a cell that lie 60, 120 and 180 degrees apart, by the bearings
    of their centres."""
    middle = np.array(h3.cell_to_latlng(cell))
    north, east = (np.array([h3.cell_to_latlng(one) for one in visited]).reshape(-1, 2) - middle).T
    bearings = np.degrees(np.arctan2(east * math.cos(math.radians(middle[0])), north))
    angles = [
        abs((one - other + 180) % 360 - 180) for one, other in combinations(bearings.tolist(), 2)
    ]
    return [sum(round(angle / 60) == places for angle in angles) for places in (1, 2, 3)]


@pytest.mark.parametrize("seed", range(8))
def test_features_are_what_they_are_said_to_be(seed):
    visits = visits_of(seed, plates=1 + 2 * seed, hats=2 + 3 * seed)
    counts, at_row, at_hat = counts_of(visits)
    found, (rows, hats) = features_of(counts, HEXAGONS), by_definition(visits)
    for visit, expected in rows.items():
        assert found.by_row[at_row[visit]].tolist() == pytest.approx(expected, abs=1e-9)
    for place, expected in hats.items():
        assert found.by_hat[at_hat[place]].tolist() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_features_and_priors_know_neither_the_place_nor_the_hour_nor_a_name(seed):
    visits = visits_of(seed)
    names = dict(enumerate(np.random.default_rng(seed).permutation(12).tolist()))
    one, one_row, one_hat = counts_of(visits)
    other, other_row, other_hat = counts_of(visits, ELSEWHERE, names, start_ms=5 * 3_600_000)
    rows = [other_row[visit] for visit in sorted(visits, key=one_row.__getitem__)]
    hats = [other_hat[place] for place in sorted(one_hat, key=one_hat.__getitem__)]
    assert rows != sorted(rows) and hats != sorted(hats)
    before, after = features_of(one, HEXAGONS), features_of(other, HEXAGONS)
    assert np.allclose(before.by_row, after.by_row[rows], atol=1e-12)
    assert np.allclose(before.by_hat, after.by_hat[hats], atol=1e-12)
    before, after = prior_of(one, HEXAGONS), prior_of(other, HEXAGONS)
    assert np.allclose(before.by_row, after.by_row[rows], atol=1e-12)
    assert np.allclose(before.by_hat, after.by_hat[hats], atol=1.1e-4)  # rounded to 1e-4
    assert np.allclose(before.features, after.features[hats], atol=1.1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_a_feed_that_pings_twelve_times_as_often_has_the_same_features(seed):
    counts, _, _ = counts_of(visits_of(seed))
    often = replace(counts, count=counts.count * 12)
    before, after = features_of(counts, HEXAGONS), features_of(often, HEXAGONS)
    assert np.allclose(before.by_row, after.by_row, atol=1e-9)
    assert np.allclose(before.by_hat, after.by_hat, atol=1e-9)
    assert not np.allclose(
        before.by_row,
        features_of(replace(counts, count=counts.count + 12), HEXAGONS).by_row,
        atol=1e-3,
    )


def observed(seed, cells=20, order=None, prior_sd=0.3):
    rng = np.random.default_rng(seed)
    prior = SlotPrior(np.zeros(0), rng.normal(0, prior_sd, cells), rng.normal(size=(cells, 6)))
    value, noise, unexplained = (
        rng.normal(18, 5, cells),
        rng.uniform(0.5, 25, cells),
        rng.uniform(0.5, 25, cells),
    )
    clips = np.where(rng.random(cells) < 0.8, rng.choice(HALF_WIDTHS, cells), 0.0)
    order = np.arange(cells) if order is None else order
    clipped = [
        ReleaseClip(18.0, width, 1, 0.7, 8.0) if width else NOT_CLIPPED
        for width in clips[order].tolist()
    ]
    prior = SlotPrior(prior.by_row, prior.by_hat[order], prior.features[order])
    return ReleasedHats(
        1000 + order.astype(np.uint64),
        prior,
        value[order],
        noise[order],
        unexplained[order],
        clipped,
    )


def test_forecasts_of_a_large_city_are_the_same_bits_on_one_core_and_on_several():
    said = []
    for threads in (1, None):  # None: as many as BLAS would take here
        with threadpool_limits(threads, user_api="blas"):
            memory, seen = Memory(), observed(1, cells=10_000)
            memory.learn(MONDAY, seen, MAX_KMH)
            found = memory.predict(MONDAY, seen.cells, seen.prior)
            said.append((found.mean.tobytes(), found.variance.tobytes(), found.slope, found.skew))
    assert said[0] == said[1]


def forecast(memory, day, asked=None):
    asked = asked or observed(9)
    return memory.predict(day, asked.cells, asked.prior).mean.tobytes()


def day_after(days):
    return MONDAY + dt.timedelta(days)


def learnt(*slots):
    memory = Memory()
    for day, seed in slots:
        memory.learn(day_after(day), observed(seed), MAX_KMH)
    return memory


def test_earlier_days_count_and_their_news_does_not():
    nothing = forecast(Memory(), MONDAY)
    assert forecast(learnt((0, 0)), day_after(9)) != nothing
    assert forecast(learnt((0, 0), (1, 1)), day_after(2)) != forecast(learnt((1, 1)), day_after(2))
    asked = observed(9)
    carried = learnt((0, 0), (0, 1)).carried(MONDAY, asked.cells)
    assert max(one.probability for one in carried) > 0.05
    assert set(learnt((0, 0), (0, 1)).carried(day_after(1), asked.cells)) == {NOTHING}
    assert set(learnt((0, 0)).carried(MONDAY, asked.cells + np.uint64(5000))) == {NOTHING}


def test_a_memory_follows_from_releases_whether_they_were_estimated_or_not():
    early, late = Memory(), Memory()
    for day in range(5):
        for seed, hour in enumerate((7.5, 8.5, 17.5)):
            seen = observed(
                10 * day + seed, order=np.random.default_rng(seed + day).permutation(20)[:15]
            )
            early.learn(day_after(day), seen, MAX_KMH, hour)
            if day < 3:
                late.remember(day_after(day), seen, hour)
            else:
                late.learn(day_after(day), seen, MAX_KMH, hour)
    assert forecast(early, day_after(4)) == forecast(late, day_after(4))
    assert forecast(early, day_after(5)) == forecast(late, day_after(5))


def test_releases_that_agree_with_their_counts_turn_the_slope_and_those_that_disagree_turn_it_around():
    slopes = []
    for sign in (1, -1):
        memory = Memory()
        for seed in range(12):
            seen = observed(seed, prior_sd=0.5)
            value, noise = 18 + sign * 12 * seen.prior.by_hat, np.full(20, 3.0)
            memory.learn(
                MONDAY, replace(seen, value=value, noise=noise, unexplained=np.ones(20)), MAX_KMH
            )
        slopes.append(memory.predict(MONDAY, np.zeros(1, np.uint64), observed(9, 1).prior).slope)
    assert slopes[0] == pytest.approx(12, abs=1.5) and slopes[1] == pytest.approx(-12, abs=1.5)


@pytest.mark.parametrize("is_told", [False, True])
def test_a_city_that_slows_down_is_news_on_a_first_day_though_it_was_told(is_told):
    """Not by what was told of this very slot, which makes it expected."""
    cells = np.arange(1, 31, dtype=np.uint64)
    prior = SlotPrior(np.zeros(0), np.zeros(30), np.zeros((30, PER_HAT)))

    def released(kmh):
        return ReleasedHats(
            cells, prior, np.full(30, kmh), np.full(30, 0.5), np.full(30, 0.5), [NOT_CLIPPED] * 30
        )

    day, memory = dt.date(2024, 1, 8), Memory()
    for hour in range(7, 12):
        memory.learn(day, released(20.0), 65.0, hour + 0.5)
    over = memory.mean_over(day, cells, prior, 12.5, 1.0, np.full(30, 1 / 30))
    told = CityTold(-10.0, 1.0, 1.0, over.loadings) if is_told else None
    expected = memory.predict(day, cells, prior, 12.5, 1.0, told).mean
    assert (np.abs(expected - (10.0 if is_told else 20.0)) < 2.0).all()
    found = memory.learn(day, released(10.0), 65.0, 12.5, told)
    assert (memory.news(day, cells, prior, 12.5, found, np.full(30, 0.5)) > 0.5).all()
    if is_told:  # and it is none that it is as before, an hour later
        after = memory.predict(day, cells, prior, 13.5, 1.0).mean.mean()
        told = told._replace(offset_kmh=20.0 - float(after))
        found = memory.learn(day, released(20.0), 65.0, 13.5, told)
        assert (memory.news(day, cells, prior, 13.5, found, np.full(30, 0.5)) < 0.5).all()
