"""The city's tree: how far a plate can move it, by brute force; what it is charged; how its noise
is distributed."""

from itertools import product
from math import isclose, sqrt

import msgspec
import numpy as np
import pytest
from scipy import stats

from udp_stream.mechanisms.noise import Cost, counts_scale
from udp_stream.planning.slot import CityPlan
from udp_stream.release.city import (
    FULL_PINGS,
    WHOLE,
    CityRecord,
    CityTree,
    ShapeQuestion,
    city_sums,
    sample_weights,
)
from udp_stream.testing import seeded_bits
from udp_stream.units import NANO

PURE, RHO = Cost("pure", NANO // 2), Cost("zcdp", NANO // 20)
KMH = 4096
U = 7 * KMH
ROWS = np.array([2, 1, 3]), np.array([0, 1, 0])
"""Samples, and plates: the first has two in one HAT and three in another, the second has one."""


def sums_of(tree, speed, count, weights):
    return city_sums(tree, np.array(speed), np.append(0, np.cumsum(count)), weights)


def test_no_speeds_of_a_plate_move_the_sums_by_more_than_its_weight_and_some_by_all_of_it():
    count, plate = ROWS
    weights = sample_weights(count, plate)
    moves = np.bincount(plate, weights=weights * count).astype(int)
    tree = CityTree(PURE, int(moves.max()), U)
    of_sample = np.repeat(plate, count)
    rest = np.array([KMH, 0, 4 * KMH, 5 * KMH, 2 * KMH, KMH // 2])
    for who in (0, 1):
        mine = np.flatnonzero(of_sample == who)
        found = set()
        for speeds in product((0, KMH // 2, 3 * KMH, U), repeat=mine.size):
            all_speeds = rest.copy()
            all_speeds[mine] = speeds
            found.add(tuple(sums_of(tree, all_speeds, count, weights).tolist()))
        apart = np.array([[np.subtract(a, b) for a in found] for b in found])
        assert np.abs(apart).sum(axis=2).max() == 2 * moves[who]
        assert (apart**2).sum(axis=2).max() == 2 * moves[who] ** 2
        assert not apart.sum(axis=2).any()  # the total is public


def test_a_plate_counts_by_ten_samples_at_most_whatever_it_sends():
    count, plate = np.array([1, 9, 40, 400, 5]), np.array([0, 1, 2, 3, 1])
    of_plate = np.bincount(plate, weights=sample_weights(count, plate) * count)
    assert of_plate.max() <= WHOLE
    assert of_plate / WHOLE == pytest.approx([1 / FULL_PINGS, 1, 1, 1], rel=0.01)


@pytest.mark.parametrize("cost", [PURE, RHO])
def test_each_plate_is_charged_what_the_noise_lets_it_lose(cost):
    """In closed form: pure, its move in l1 over the scale; in rho, half the square of its move in
    l2 over sigma."""
    weights = np.array([WHOLE, WHOLE - 3, WHOLE // 2, 1, 0])
    tree = CityTree(cost, WHOLE, U)
    t, s = counts_scale(WHOLE, cost)
    lost = 2 * weights * s / t if cost.measure == "pure" else (sqrt(2) * weights * s / t) ** 2 / 2
    charges = tree.charges(weights)
    assert (lost * NANO <= charges).all() and charges.max() <= cost.nano and charges[-1] == 0
    assert charges == pytest.approx(lost * NANO, rel=1e-4, abs=1.0)


@pytest.mark.parametrize(("cost", "name"), [(PURE, "laplace"), (RHO, "norm")])
def test_noise_of_an_answer_has_the_stated_scale_and_30_percent_off_is_noticed(cost, name):
    tree = CityTree(cost, WHOLE, U)
    sums = tuple((np.arange(tree.bins.count) * 5 * WHOLE).tolist())
    plan, question, bits = (
        CityPlan(*np.zeros((2, 0), np.int64), 100, msgspec.json.encode(tree)),
        ShapeQuestion(),
        seeded_bits(4),
    )
    records = [CityRecord.of_ledger("city", question.answer(sums, plan, bits)) for _ in range(400)]
    truth = np.array(sums) / sum(sums)
    off = np.array([record.shares - truth for record in records]).ravel()
    scale = records[0].deviation / (sqrt(2) if name == "laplace" else 1)
    assert isclose(records[0].deviation, sqrt(tree.noise_variance) / sum(sums), abs_tol=1e-6)
    assert stats.kstest(off / scale, name).pvalue > 1e-6
    assert (
        stats.kstest(off / (0.7 * scale), name).pvalue
        < 1e-6
        > stats.kstest(off / (1.3 * scale), name).pvalue
    )
    for record in records:
        assert (
            list(record.cdf) == sorted(record.cdf)
            and record.cdf[-1] == 1.0
            and record.cdf[0] >= 0.0
        )
        assert record.plates == 100 and record.edges_kmh == tree.bins.edges_kmh[1:]
