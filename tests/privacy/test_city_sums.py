"""The two sums over a city keep their guarantee whatever was forecast: brute force, distributions, whole days.

A plate moves each sum by at most what its rows may span, over all of its HATs together. What it loses, rounding to the
noise's lattice included, is at most what it is charged.
"""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from tests.forms import long_but
from tests.privacy import test_concentrated_audit as in_rho
from tests.privacy import test_forecast_audit as pure_audit
from tests.privacy.test_forecast_audit import busiest as busiest  # a fixture
from udp_stream.mechanisms import city_sums as mechanism
from udp_stream.mechanisms.city_sums import (
    CityRows,
    answer_of,
    city_queries,
    city_sums,
    costs_of,
    mean_moves,
    spread_moves,
    weights_of,
    without,
)
from udp_stream.mechanisms.noise import Lattice, concentrated, lattice_of, noise_of, pure
from udp_stream.planning import whole_city
from udp_stream.release.estimate import noisy_integers
from udp_stream.release.record import CITY, kind_of
from udp_stream.testing import seeded_bits
from udp_stream.units import NANO

U = 65 * 4096
SLOTS = [
    # samples of each row, and its plate
    ((1,), (0,)),
    ((3, 1), (0, 0)),
    ((2, 2, 1), (0, 1, 0)),
    ((1, 5, 2, 1), (0, 1, 1, 2)),
]
SPEEDS = (0, 9 * 4096 + 7, 40 * 4096, U)
COSTS = [(pure(200_000_000), pure(100_000_000)), (concentrated(30_000_000), concentrated(15_000_000))]


def rows_of(samples, plate, centres):
    samples, plate = np.array(samples), np.array(plate)
    return CityRows(samples, weights_of(samples, plate), np.array(centres)), plate


def all_sums(rows, means):
    """Both sums for each line of `means`: of each row, the mean of its samples."""
    return np.array([city_sums(rows, np.array(one) * rows.samples, U) for one in means])


def spans(rows, plate, centres_of_others, speeds=SPEEDS):
    """By plate: how far apart both sums get, over all speeds of its rows, the others' being fixed."""
    found = []
    for one in range(plate.max() + 1):
        mine = np.flatnonzero(plate == one)
        lines = []
        for choice in itertools.product(speeds, repeat=mine.size):
            line = centres_of_others.copy()
            line[mine] = choice
            lines.append(line)
        found.append(all_sums(rows, lines))
    return found


@pytest.mark.parametrize(("samples", "plate"), SLOTS)
@pytest.mark.parametrize("where", ["low", "high", "random", "random again"])
def test_no_plate_moves_a_sum_by_more_than_its_move_nor_loses_more_than_its_charge(samples, plate, where):
    rng = np.random.default_rng(len(where) + len(samples))
    centres = {"low": 0, "high": U}.get(where)
    centres = rng.integers(0, U // 64 + 1, len(samples)) * 64 if centres is None else np.full(len(samples), centres)
    rows, of = rows_of(samples, plate, centres)
    for mean, spread in COSTS:
        costs, charges = costs_of(rows, of, mean, spread, U)
        moves = [np.bincount(of, weights=one).astype(int) for one in (mean_moves(rows, U), spread_moves(rows))]
        lattices, measure = costs.lattices, mean.measure
        for one, sums in enumerate(spans(rows, of, rng.integers(0, U + 1, len(samples)))):
            loss = Fraction(0)
            for which, lattice in enumerate(lattices):
                most = int(np.ptp(sums[:, which]))
                assert most <= moves[which][one]
                projected = [lattice.project(int(value)) for value in sums[:, which]]
                share = Fraction(max(projected) - min(projected), lattice.t)
                loss += share if measure == "pure" else share**2 / 2
            assert loss <= Fraction(int(charges[one]), NANO)
        assert 0.9 * (mean.nano + spread.nano) < charges.max() <= mean.nano + spread.nano  # who moves most pays for it


def test_a_plate_reaches_its_move_of_the_mean_where_speeds_may_be_that_far_from_the_forecast():
    rows, _ = rows_of((2, 3), (0, 0), (30 * 4096, 32 * 4096))
    sums = all_sums(rows, [(0, 0), (U, U)])
    assert np.ptp(sums[:, 0]) == mean_moves(rows, U).sum() and mean_moves(rows, U).sum() == 60 * 4096 * 5 * (2**20 // 5)


def test_speeds_beyond_the_range_that_was_planned_are_the_caller_s_and_others_move_nothing():
    rows, _ = rows_of((2, 2), (0, 1), (20 * 4096, 20 * 4096))
    alone = without(rows, np.array([True, False]))
    one, other = (city_sums(alone, np.array([50, second]) * 4096, U) for second in (0, 130))
    assert one == other != city_sums(rows, np.array([50, 130]) * 4096, U)


def test_sums_of_parts_add_up_to_those_of_the_slot():
    rng = np.random.default_rng(4)
    samples, plate = rng.integers(1, 90, 300), rng.integers(0, 40, 300)
    rows = CityRows(samples, weights_of(samples, plate), rng.integers(0, U, 300))
    sums, part = rng.integers(0, U + 1, 300) * samples, rng.integers(0, 3, 300)
    parts = [city_sums(rows.part(part == one), sums[part == one], U) for one in range(3)]
    assert tuple(np.sum(parts, axis=0)) == city_sums(rows, sums, U)


@pytest.mark.parametrize("factor", [1.0, 0.7])
@pytest.mark.parametrize(("mean", "spread"), COSTS)
def test_the_noise_has_the_scale_that_it_says_and_another_one_is_noticed(mean, spread, factor):
    samples, plate = np.full(60, 5), np.arange(60)
    rows = CityRows(samples, weights_of(samples, plate), np.full(60, 30 * 4096))
    costs, _ = costs_of(rows, plate, mean, spread, U)
    exact = city_sums(rows, samples * 25 * 4096, U)
    queries = city_queries(exact, costs)
    runs, family = 3000, noise_of(mean)
    noisy = noisy_integers([query for _ in range(runs) for query in queries], family, seeded_bits(7))
    found = [answer_of(queries, noisy[2 * run : 2 * run + 2], plates=60) for run in range(runs)]
    means = np.array([one.mean_kmh for one in found]) + 5.0
    spreads = np.array([one.spread for one in found]) - 5.0 / np.sqrt(16 + 324 / 5)
    for values, deviation in zip((means, spreads), costs.deviations(60), strict=True):
        scale = deviation * factor
        law = stats.laplace(scale=scale / 2**0.5) if mean.measure == "pure" else stats.norm(scale=scale)
        is_right = stats.kstest(values, law.cdf).pvalue > 1e-4
        assert is_right == (factor == 1.0)


CITY_FLAGS = (*pure_audit.MEAN, "forecast.city=on")
RHO_FLAGS = (*CITY_FLAGS, "budget.accounting=approximate")


@pytest.fixture
def asks_few(monkeypatch):
    """Fifty buses are enough to be asked, in every slot."""
    monkeypatch.setattr(whole_city, "NOISE_MAX_KMH", 40.0)
    monkeypatch.setattr(whole_city, "TOLD_KMH", 0.1)


def was_asked(run):
    return sum(kind_of(one[0]) == CITY for call in run.ledger.calls for one in call[3])


@pytest.mark.parametrize("seed", long_but([0], range(3)))
def test_what_a_plate_loses_of_a_day_stays_under_its_ledger(monkeypatch, asks_few, busiest, seed):
    one = pure_audit.audited(monkeypatch, busiest[0], seed, CITY_FLAGS)
    assert was_asked(one.first) >= 5
    assert abs(one.seen) <= one.most * (1 + 1e-9) and 0.7 * one.charged < one.most <= one.charged <= 10 * NANO


def test_so_it_does_in_rho(monkeypatch, asks_few, busiest):
    one = in_rho.audited(monkeypatch, busiest[0], 1, RHO_FLAGS)
    assert was_asked(one.first) >= 5 and 0.05 < one.rho <= one.charged <= in_rho.BUDGET / NANO


def test_noise_that_is_too_small_and_a_charge_that_forgets_a_sum_are_caught(monkeypatch, asks_few, busiest):
    def narrow(sensitivity, cost):
        honest = lattice_of(sensitivity, cost)
        return Lattice(honest.t // 30, honest.shift)

    def cheaper(*given):
        costs, charges = costs_of(*given)
        return costs, np.maximum(1, charges // 30)

    for where, name, wrong in ((mechanism, "lattice_of", narrow), (whole_city, "costs_of", cheaper)):
        with monkeypatch.context() as patched:
            patched.setattr(where, name, wrong)
            one = pure_audit.audited(monkeypatch, busiest[0], 1, CITY_FLAGS)
        assert one.most > one.charged
