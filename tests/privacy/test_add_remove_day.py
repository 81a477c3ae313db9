"""Sums over the city, of its time at each speed, and over a day, which hide a whole plate beside those of cells and slots:
brute force on tiny cities, noise by its distribution, and what thousands of days tell."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from scipy import stats

from tests.forms import changed
from tests.privacy.test_add_remove import (
    ACTIVE,
    BUDGETS,
    ENOUGH,
    FULL,
    KMH,
    PATHS,
    SIGMA,
    SLOTS,
    VISITS,
    rho_nano,
    rho_seen,
    rows_of,
)
from udp_stream.ledger.filters import epsilon_of
from udp_stream.mechanisms.add_remove import (
    CLIP,
    DAY_MOST,
    GAIN,
    SLOT_WEIGHT,
    SPREAD,
    WEIGHT,
    Entries,
    PlateQuery,
    PlateRows,
    allowances,
    entries,
    merged,
    noised,
    of_day,
    shortened,
)
from udp_stream.mechanisms.cdf import city_bins
from udp_stream.testing import seeded_bits
from udp_stream.units import NANO

CELLS, CITY = 2, 2
DAY_SIGMA = 90 * KMH
OF_CITY = GAIN // 3
MAX_SPEED = 65 * KMH
ASKED = {"city": OF_CITY, "spread": GAIN // 2, "max_speed": MAX_SPEED}
BINS = city_bins(MAX_SPEED)
MORNING = np.array([[20, 18], [10, 30], [25, 22]]) * KMH


def in_bins(rows):
    """The rows, each with all its pings at its mean speed."""
    bins = np.zeros((rows.plate.size, BINS.count), np.int64)
    bins[np.arange(rows.plate.size), BINS.bin_of(rows.speed // rows.pings)] = rows.pings
    return changed(rows, bins=bins)


def play(city, path, budget):
    """Slots with the entries of the city and of its bins of speed, then the day. Of each draw: vectors by plate, charges, whether
    plates were asked for less than they cost, the noised sums."""
    names, told, day = sorted(city), [], []
    left = np.full(len(names), budget)

    def draw(vectors, query, most, bits):
        asked = vectors.charges(len(names), query)
        charged = np.maximum(np.minimum(asked, most), 0)
        kept = shortened(vectors, charged, query)
        by_plate = {name: {} for name in names}
        for number, cell, *both in zip(*(column.tolist() for column in kept), strict=True):
            by_plate[names[number]][cell] = both
        charges = dict(zip(names, charged.tolist(), strict=True))
        out = noised(kept, query.columns, query, seeded_bits(bits))
        told.append((by_plate, charges, (charged < asked).sum(), out, query.sigma))
        return charged

    for slot, forecast in enumerate(path):
        query = PlateQuery(np.array(forecast) * KMH, FULL, SIGMA, **ASKED)
        most = allowances(left - budget // 4, SLOTS - slot, ACTIVE)
        rows = in_bins(rows_of(city, slot))
        left = left - draw(entries(rows, query), query, most, slot)
        day.append(entries(rows, PlateQuery(MORNING[slot], FULL, 1)))
    of_slots = Entries(*map(np.concatenate, zip(*day, strict=True)))
    query = PlateQuery(np.zeros(CELLS, np.int64), FULL, DAY_SIGMA)
    left = left - draw(of_day(of_slots, CELLS), query, left, "day")
    assert left.min(initial=0) >= 0
    return told


@pytest.mark.parametrize("budget", BUDGETS)
def test_no_day_of_a_plate_costs_more_than_its_charges_nor_these_more_than_its_budget(budget):
    city = {str(number): history for number, history in enumerate(product(VISITS, repeat=SLOTS))}
    most, were_cut, of_day_alone = Fraction(), 0, Fraction()
    for path in PATHS:
        told = play(city, path, budget)
        were_cut += sum(int(cut) for _, _, cut, _, _ in told)
        for name in city:
            costs = [rho_nano(vectors[name], sigma) for vectors, _, _, _, sigma in told]
            charges = [charged[name] for _, charged, _, _, _ in told]
            assert all(cost <= charge for cost, charge in zip(costs, charges, strict=True))
            assert sum(charges) <= budget
            most, of_day_alone = max(most, sum(costs)), max(of_day_alone, costs[-1])
    assert most <= budget and (budget != 2 * NANO or most > Fraction(99, 100) * budget)
    assert (were_cut > 100 or budget == ENOUGH) and (of_day_alone > 0 or budget < NANO)


def test_neighbours_differ_by_the_vectors_of_the_plate_alone():
    city = {name: [VISITS[(i + 2 * slot) % len(VISITS)] for slot in range(SLOTS)]
            for i, name in enumerate("ABCDE")}  # fmt: skip
    moved = [0, 0, 0]
    for path in PATHS:
        first = play(city, path, 2 * NANO)
        for plate in city:
            others = {name: history for name, history in city.items() if name != plate}
            for one, two in zip(first, play(others, path, 2 * NANO), strict=True):
                for name in others:
                    assert one[0][name] == two[0][name] and one[1][name] == two[1][name]
                own = np.zeros_like(one[3])
                for cell, both in one[0][plate].items():
                    own[:, cell] = both
                assert np.array_equal(one[3] - two[3], own)
                moved[own.shape[1] == CELLS] += own[:, CELLS:].any() or own[:, -1].any()
                moved[2] += own[:, CITY + 1 :].any()
    assert min(moved) > 100


def test_the_city_s_entries_are_the_sums_of_a_plate_times_the_gain_cut_at_a_slot():
    query = PlateQuery(np.array([20, 18]) * KMH, FULL, SIGMA, city=OF_CITY)
    for visit in VISITS:
        vectors = entries(rows_of({"A": [visit]}, 0), query)
        of_city = vectors.cell == CITY
        assert of_city.sum() == bool(visit)
        if not visit:
            continue
        residual, weight = (
            int(column[~of_city].sum()) for column in (vectors.residual, vectors.weight)
        )
        assert vectors.residual[of_city] == int(Fraction(residual * OF_CITY, GAIN))
        assert vectors.weight[of_city] == weight * OF_CITY // (2 * GAIN)
    many = PlateRows(*np.array([(0, cell, FULL, FULL * 200 * KMH) for cell in range(50)]).T)
    flood = entries(many, PlateQuery(np.zeros(50, np.int64), FULL, SIGMA, city=GAIN))
    assert flood.residual[-1] == CLIP * SLOT_WEIGHT
    assert flood.weight[-1] == WEIGHT * SLOT_WEIGHT // 2
    for wrong in ({"city": -1}, {"city": GAIN + 1}, {"city": 1, "plates": True}):
        with pytest.raises(ValueError, match="gain"):
            changed(query, **wrong).require_valid()


def test_a_day_s_entries_are_the_sums_over_its_slots_in_any_order_and_bounded():
    rng = np.random.default_rng(5)
    rows = np.stack([rng.integers(0, 3, 60), rng.integers(0, 4, 60),
                     rng.integers(-9999, 9999, 60), rng.integers(0, 9999, 60)])  # fmt: skip
    whole = of_day(Entries(*rows), 4)
    expected = {}
    for plate, cell, residual, weight in rows.T.tolist():
        both = expected.setdefault((plate, cell), [0, 0])
        both[0] += residual
        both[1] += weight
    found = {(p, c): [r, w] for p, c, r, w in zip(*map(np.ndarray.tolist, whole), strict=True)}
    assert found == {key: [r, w * 4 // 5] for key, (r, w) in expected.items()}
    in_parts = merged(
        Entries(*np.concatenate([merged(Entries(*half), 4) for half in (rows[:, 30:], rows[:, :30])], 1)), 4
    )  # fmt: skip
    assert all(map(np.array_equal, of_day(in_parts, 4), whole))
    large = of_day(Entries(*np.array([[0], [0], [-(2**40)], [2**40]])), 1)
    assert (large.residual, large.weight) == (-DAY_MOST, DAY_MOST)
    many = Entries(np.zeros(2**18, np.int64), np.arange(2**18), *np.full((2, 2**18), DAY_MOST))
    query = PlateQuery(np.zeros(2**18, np.int64), FULL, 1000 * KMH)
    (charge,) = many.charges(1, query).tolist()  # squares that do not fit into 64 bits
    assert charge >= min(2**53 - 1, Fraction(2**19 * DAY_MOST**2 * NANO, 2 * query.sigma**2))
    assert rho_nano({0: (1, 0)}, 1) > 0


def test_the_time_at_each_speed_is_a_plate_s_share_of_the_slot_by_the_shares_of_its_pings():
    rng, spread = np.random.default_rng(3), GAIN // 5
    for full in (1, 7, FULL, 360, 2**32):
        query = PlateQuery(np.zeros(4, np.int64), full, SIGMA, spread=spread, max_speed=MAX_SPEED)
        bins = rng.integers(0, rng.choice([2, full + 1, 2**24]), (12, BINS.count))
        bins[:, 0] += 1
        plate, cell = np.divmod(np.arange(12), 4)
        rows = PlateRows(plate, cell, bins.sum(axis=1), np.zeros(12, np.int64), bins)
        vectors = entries(rows, query)
        there = vectors.cell >= 4
        assert set(vectors.cell[there].tolist()) <= set(range(4, 10))
        for one in range(3):
            own = there & (vectors.plate == one)
            found = np.zeros((6, 2), np.int64)
            found[vectors.cell[own] - 4] = np.stack([vectors.residual, vectors.weight], 1)[own]
            of_plate = bins[plate == one].sum(axis=0).tolist()
            pings = sum(of_plate)
            share = min(Fraction(pings, full), Fraction(1, 2)) * Fraction(SPREAD * spread, GAIN)
            for entry, many in zip(found.ravel().tolist(), of_plate, strict=True):
                assert 0 <= share * many / pings - entry < 3
            assert found.sum() <= SPREAD // 2
    with pytest.raises(ValueError, match="bins"):
        entries(changed(rows, bins=None), query)
    with pytest.raises(ValueError, match="bins"):
        entries(changed(rows, bins=bins[:, 1:]), query)
    for wrong in ({"spread": -1}, {"spread": GAIN + 1}, {"plates": True}):
        with pytest.raises(ValueError, match="gain"):
            changed(query, **wrong).require_valid()


@pytest.mark.parametrize("asked", [{}, ASKED], ids=["day", "city"])
def test_noise_of_city_and_day_has_the_stated_scale_and_30_percent_off_is_noticed(asked):
    sigma, draws = 300 * KMH, 3000
    query = PlateQuery(np.array([18, 18]) * KMH, FULL, sigma, **asked)
    rows = PlateRows(*np.array([(0, 0, 5, 5 * 65 * KMH), (1, 1, 9, 9 * 3 * KMH)]).T)
    vectors = entries(in_bins(rows), query)
    if not asked:
        vectors = of_day(vectors, CELLS)
    bits = seeded_bits(f"noise {len(asked)}")
    off = np.array([noised(vectors, query.columns, query, bits) for _ in range(draws)])
    for number, values in enumerate((vectors.residual, vectors.weight)):
        off[:, number] -= np.bincount(vectors.cell, values, query.columns).astype(np.int64)
    for part in (off[:, 0, CELLS - 1 :], off[:, 0, -1], off[:, 1, -1], off):
        accepted, narrow, wide = (
            stats.kstest(part.ravel() / (share * sigma), "norm").pvalue for share in (1, 0.7, 1.3)
        )
        assert accepted > 1e-6 and max(narrow, wide) < 1e-6


RUNS = 12_000
DAY = ((0, 0, 12, 60), (0, 1, 4, 50)), ((0, 0, 9, 12),), ((0, 1, 12, 44), (0, 0, 3, 7))
"""By slot, the cells of the audited plate: plate, cell, pings and km/h. It is alone: what others
give is the same with and without it."""


def days(present, seed, charge_share=1.0, noise_share=1.0):
    """All noised sums of each run's day, in units of their noise, a row each; and what the plate was
    charged: half of what each vector costs."""
    out, charges, of_slots = [], 0, []

    def draw(vectors, query, number):
        nonlocal charges
        charged = vectors.charges(1, query) // 2
        charges += int(charged[0])
        kept = shortened(vectors, np.round(charged * charge_share).astype(np.int64), query)
        sums = np.zeros((2, query.columns), np.int64)
        if present:
            np.add.at(sums[0], kept.cell, kept.residual)
            np.add.at(sums[1], kept.cell, kept.weight)
        everywhere = PlateQuery(
            np.zeros(RUNS * query.columns, np.int64), FULL, round(query.sigma * noise_share)
        )
        nobody = Entries(*np.zeros((4, 0), np.int64))
        noise = noised(nobody, everywhere.columns, everywhere, seeded_bits(f"{seed} {number}"))
        runs = noise.reshape(2, RUNS, query.columns) + sums[:, None]
        out.append(runs.transpose(1, 0, 2).reshape(RUNS, -1) / query.sigma)

    for slot, visits in enumerate(DAY):
        rows = PlateRows(*np.array([(p, c, n, n * kmh * KMH) for p, c, n, kmh in visits]).T)
        query = PlateQuery(np.array([18, 18]) * KMH, FULL, 130 * KMH, **ASKED)
        draw(entries(in_bins(rows), query), query, slot)
        of_slots.append(entries(rows, PlateQuery(MORNING[slot], FULL, 1)))
    vectors = of_day(Entries(*map(np.concatenate, zip(*of_slots, strict=True))), CELLS)
    draw(vectors, PlateQuery(np.zeros(CELLS, np.int64), FULL, 260 * KMH), "day")
    return np.concatenate(out, axis=1), charges


def test_days_with_and_without_a_plate_tell_no_more_than_it_was_charged_and_nearly_that():
    (present, charged), (away, _) = (days(is_there, f"{is_there}") for is_there in (True, False))
    assert 0.2 < charged / NANO < 2.5
    assert 0.5 * charged / NANO < rho_seen(present, away) <= charged / NANO
    assert epsilon_of(charged, 1e-6) > 0


@pytest.mark.parametrize("fault", [{"charge_share": 2.0}, {"noise_share": 0.7}])
def test_the_same_audit_of_days_finds_a_charge_of_half_and_noise_that_is_too_small(fault):
    (present, charged), (away, _) = (
        days(is_there, f"{is_there}", **fault) for is_there in (True, False)
    )
    assert rho_seen(present, away) > charged / NANO
