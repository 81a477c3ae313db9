"""Noised sums that hide a whole plate: what vectors are, random vectors, noise by its distribution,
and what thousands of days tell. All neighbours of tiny cities are in `test_sensitivity.py`."""

import math
import random
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from scipy import stats

from tests.forms import changed, soaked
from tests.privacy.sensitivity import MORNING, VISITS, U, rows_of
from tests.privacy.test_add_remove_black_box import DELTA, RUNS, epsilon_proven
from tests.privacy.test_concentrated_records import rho_seen
from udp_stream.base.errors import PrivacyRefused
from udp_stream.base.units import NANO
from udp_stream.ledger.filters import epsilon_of
from udp_stream.ledger.rules import AMOUNT_LIMIT
from udp_stream.mechanisms import add_remove
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
from udp_stream.mechanisms.samplers import SCALE_MAX
from udp_stream.testing import seeded_bits

KMH = 4096
FULL, SIGMA = 12, 40 * KMH
CELLS = 2
CITY, OF_CITY = CELLS, GAIN // 3
MODES = pytest.mark.parametrize("plates", [False, True], ids=["weights", "plates"])
ASKED = {
    "day": {},
    "plates": {"plates": True},
    "city and bins": {"city": OF_CITY, "spread": GAIN // 2, "max_speed": U},
}
BINS = city_bins(U)


def test_entries_are_the_weighted_distance_from_the_forecast_and_the_weight_at_any_size():
    rng, rows = random.Random(1), []
    for plate in range(4000):
        full = rng.choice([1, 2, 7, 30, 115, 3600, 86_400, 2**32])
        pings = rng.choice([1, 2, 3, full, full // 2 + 1, rng.randint(1, 2 * full), 2**28])
        speed = rng.choice([0, pings * 1000 * KMH, rng.randint(0, pings * 1000 * KMH)])
        rows.append(
            (plate, full, pings, speed, rng.choice([0, 1000 * KMH, rng.randint(0, 70 * KMH)]))
        )
    for plates in (False, True):
        for plate, full, pings, speed, forecast in rows:
            query = PlateQuery(np.array([forecast]), full, SIGMA, plates)
            made = entries(PlateRows(*np.array([[plate], [0], [pings], [speed]])), query)
            share = min(Fraction(pings, full), Fraction(1, 2)) * 5
            off = min(max(Fraction(speed, pings) - forecast, -60 * KMH), 60 * KMH)
            assert abs(int(made.residual[0]) - share * off) < share + 1
            assert (
                made.weight[0] == 5 * KMH if plates else int(made.weight[0]) == 5 * KMH * share // 1
            )
            assert abs(made.residual[0]) <= 150 * KMH and 0 <= made.weight[0] <= 12.5 * KMH


def random_vectors(rng, plates):
    """Of plates in 0 to 6 cells: entries from 1 quantum up to the largest there are."""
    plate = np.repeat(np.arange(plates), rng.integers(0, 7, plates))
    largest = 2 ** rng.integers(0, 21, plate.size) * 150 * KMH >> 20
    at = rng.permutation(plate.size)
    residual = rng.integers(-largest, largest + 1)
    residual[::5] = np.where(rng.random(residual[::5].size) < 0.5, 150 * KMH, -150 * KMH)
    weight = rng.integers(0, 12.5 * KMH + 1, plate.size)
    return Entries(plate[at], np.arange(plate.size)[at] % 6, residual[at], weight[at])


def random_charges(rng, costs):
    """Nothing, a nano, about what the vector costs, tiny parts of it, and more."""
    parts = 10.0 ** -rng.integers(0, 12, costs.size)
    near = np.maximum(costs + rng.integers(-1, 2, costs.size), 0)
    some = (costs * rng.random(costs.size) * parts).astype(np.int64)
    choices = np.stack(
        [
            np.zeros_like(costs),
            np.ones_like(costs),
            near,
            some,
            some,
            costs,
            np.full_like(costs, AMOUNT_LIMIT - 1),
        ]
    )
    return choices[rng.integers(0, len(choices), costs.size), np.arange(costs.size)]


def sums_of_squares(vectors, plates):
    total = [0] * plates
    for plate, residual, weight in zip(
        vectors.plate.tolist(), vectors.residual.tolist(), vectors.weight.tolist(), strict=True
    ):
        total[plate] += residual * residual + weight * weight
    return total


@MODES
@pytest.mark.parametrize("rounds", [4, *soaked([100])])
def test_what_is_left_of_random_vectors_costs_at_most_the_charge_and_nearly_that(rounds, plates):
    """Each round has 20,000 plates; the charge may be that of other pings, as on a retry."""
    exact = 0
    for number in range(rounds):
        rng, many = np.random.default_rng(number), 20_000
        sigma = int([1, 40 * KMH, SCALE_MAX, rng.integers(1, SCALE_MAX)][number % 4])
        query, vectors = (
            PlateQuery(np.zeros(6, np.int64), FULL, sigma, plates),
            random_vectors(rng, many),
        )
        costs = vectors.charges(many, query)
        for has, cost in zip(sums_of_squares(vectors, many), costs.tolist(), strict=True):
            assert cost == min(math.ceil(Fraction(has * NANO, 2 * sigma * sigma)), AMOUNT_LIMIT - 1)
        charged = random_charges(rng, costs)
        kept = shortened(vectors, charged, query)
        pays_all = charged >= costs
        left = sums_of_squares(kept, many)
        for has, charge in zip(left, charged.tolist(), strict=True):
            assert has * NANO <= charge * 2 * sigma * sigma
            exact += has * NANO > charge * 2 * sigma * sigma * Fraction(99, 100)
        whole = pays_all[vectors.plate] & (costs < AMOUNT_LIMIT - 1)[vectors.plate]
        for after, before in zip(kept[2:], vectors[2:], strict=True):
            assert np.array_equal(after[whole], before[whole])
            assert (np.abs(after) <= np.abs(before)).all() and (after * before >= 0).all()
            assert not after[charged[vectors.plate] == 0].any()
        if not plates:  # one factor for the whole vector, and a quantum lost at most
            room = np.floor(charged * 2.0 * sigma**2 / NANO)
            factor = np.sqrt(np.minimum(1, room / np.maximum(sums_of_squares(vectors, many), 1)))
            for after, before in zip(kept[2:], vectors[2:], strict=True):
                assert (
                    np.abs(after) >= np.abs(before) * factor[vectors.plate] * (1 - 1e-8) - 1.001
                ).all()
    assert exact > rounds * 100


def test_numbers_of_plates_are_kept_before_residuals():
    query = PlateQuery(np.zeros(2, np.int64), FULL, SIGMA, plates=True)
    vectors = Entries(
        *np.array([[0, 0, 1, 1], [0, 1, 0, 1], [90 * KMH, -9 * KMH, KMH, KMH], [5 * KMH] * 4])
    )
    of_counts = 2 * 25 * KMH**2 * NANO / (2 * SIGMA**2)
    kept = shortened(
        vectors, np.array([math.ceil(of_counts * 1.5), math.floor(of_counts / 4)]), query
    )
    assert kept.weight.tolist()[:2] == [5 * KMH] * 2 and 0 < kept.residual[0] < 90 * KMH
    assert kept.weight[2] == pytest.approx(2.5 * KMH, rel=0.001)
    assert np.abs(kept.residual[2:]).max() <= 200  # what rounding the counts left over


def test_a_plate_may_spend_a_share_of_what_is_left_rounded_down():
    rng = random.Random(2)
    left = [0, 1, 2, 7, NANO, AMOUNT_LIMIT - 1, *(rng.randrange(AMOUNT_LIMIT) for _ in range(500))]
    for slots, active in product((1, 2, 3, 7, 24, 8760), (1, 2, 12, 84)):
        share = min(Fraction(1), Fraction(3, 2) / min(slots, active))
        assert allowances(np.array(left), slots, active).tolist() == [
            math.floor(one * share) for one in left
        ]
    assert allowances(np.array([-5]), 3, 12).tolist() == [0]  # a ledger that was set back
    with pytest.raises(ValueError, match="slot"):
        allowances(np.array([5]), 0, 12)


@pytest.mark.parametrize(
    ("rows", "more", "words"),
    [
        (([0, 0], [1, 1], [1, 1], [0, 0]), {}, "one row"),
        (([0], [2], [1], [0]), {}, "2 cells"),
        (([0], [-1], [1], [0]), {}, "2 cells"),
        (([0], [0], [0], [0]), {}, "pings"),
        (([0], [0], [1], [-1]), {}, "speeds"),
        (([-1], [0], [1], [0]), {}, "numbered"),
        (([0], [0], [1], [0]), {"full": 0}, "full"),
        (([0], [0], [1], [0]), {"sigma": SCALE_MAX + 1}, "sigma"),
        (([0], [0], [1], [0]), {"forecast": np.array([-1, 0])}, "forecasts"),
    ],
)
def test_rows_and_queries_that_break_a_rule_are_refused(rows, more, words):
    query = changed(PlateQuery(np.array([0, 0]), FULL, SIGMA), **more)
    with pytest.raises(ValueError, match=words):
        entries(PlateRows(*np.array(rows)), query)


def test_a_vector_that_costs_more_than_its_charge_never_leaves(planted):
    query = PlateQuery(np.zeros(1, np.int64), FULL, SIGMA)
    vectors = Entries(*np.array([[0], [0], [90 * KMH], [5 * KMH]]))
    planted(add_remove, _scaled=lambda values, factors: values)
    with pytest.raises(PrivacyRefused, match="charged"):
        shortened(vectors, vectors.charges(1, query) - 1, query)
    assert shortened(vectors, vectors.charges(1, query), query) == vectors


@MODES
@pytest.mark.parametrize("sigma", [401, 104_401, SCALE_MAX])
def test_the_noise_that_is_drawn_is_that_which_plates_pay_for_in_exact_arithmetic(
    sigma, plates, monkeypatch
):
    """No distribution test tells a scale that is half a percent off; the squares over what is
    handed to the sampler do: one quantum less would cost a plate more than its charge."""
    drawn, dice = [], np.random.default_rng(sigma)
    sampler = add_remove.discrete_gaussian
    monkeypatch.setattr(
        add_remove,
        "discrete_gaussian",
        lambda bits, t: drawn.extend(t.tolist()) or sampler(bits, t),
    )
    query = PlateQuery(np.full(3, 18 * KMH), FULL, sigma, plates)
    vectors = entries(
        PlateRows(*np.array([(0, cell, 9, 9 * 60 * KMH) for cell in range(3)]).T), query
    )
    (whole,) = vectors.charges(1, query).tolist()
    for charge in (whole, *dice.integers(0, whole, 20).tolist()):
        kept = shortened(vectors, np.array([charge]), query)
        noised(kept, 3, query, seeded_bits(sigma))
        squares = sum(value**2 for value in (*kept.residual.tolist(), *kept.weight.tolist()))
        (scale,) = {Fraction(t) for t in drawn[-6:]}
        assert squares * NANO / (2 * scale**2) <= charge
        assert charge < whole or squares * NANO / (2 * (scale * 995 / 1000) ** 2) > charge
    assert len(drawn) == 6 * 21 and set(drawn) == {sigma}


def test_the_city_s_entries_are_the_sums_of_a_plate_times_the_gain_cut_at_a_slot():
    query = PlateQuery(np.array([20, 18]) * KMH, FULL, SIGMA, city=OF_CITY)
    for visit in VISITS:
        vectors = entries(rows_of([visit]), query)
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


def test_the_time_at_each_speed_is_a_plate_s_share_of_the_slot_by_the_shares_of_its_pings():
    rng, spread = np.random.default_rng(3), GAIN // 5
    for full in (1, 7, FULL, 360, 2**32):
        query = PlateQuery(np.zeros(4, np.int64), full, SIGMA, spread=spread, max_speed=U)
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


@pytest.mark.parametrize("sigma", [500 * KMH, SCALE_MAX])
@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_noise_of_every_entry_has_the_stated_scale_and_30_percent_off_is_noticed(asked, sigma):
    """Of residuals and weights, of cells with plates and without, of the city and of its bins."""
    cells, draws = 300, 20
    query = PlateQuery(np.full(cells, 18 * KMH), FULL, sigma, **asked)
    visits = [[(cell, 5, 65) for cell in range(cells // 2)]] * 20
    vectors = entries(rows_of(visits), query)
    if not asked:
        vectors = of_day(vectors, cells)
    exact = np.zeros((2, query.columns), np.int64)
    np.add.at(exact[0], vectors.cell, vectors.residual)
    np.add.at(exact[1], vectors.cell, vectors.weight)
    bits = seeded_bits(f"{sigma} {len(asked)}")
    off = np.array([noised(vectors, query.columns, query, bits) for _ in range(draws)]) - exact
    parts = [off[:, 0], off[:, 1], off[:, :, : cells // 2], off[:, :, cells // 2 :]]
    if query.columns > cells:
        bits = seeded_bits("behind the cells")
        more = [noised(vectors, query.columns, query, bits) - exact for _ in range(300)]
        parts.append(np.array(more)[:, :, cells:])
    for part in parts:
        right, narrow, wide = (
            stats.kstest(part.ravel() / (share * sigma), "norm").pvalue for share in (1, 0.7, 1.3)
        )
        assert right > 1e-6 > max(narrow, wide)
    pairs = [(off[:, 0], off[:, 1]), (off[..., 1:], off[..., :-1]), (off[1:], off[:-1])]
    alike = [np.corrcoef(one.ravel(), other.ravel())[0, 1] for one, other in pairs]
    assert np.abs(alike).max() < 5 / math.sqrt(cells * draws)


DAY = ((0, 12, 60), (1, 4, 50)), ((0, 9, 12),), ((1, 12, 44), (0, 3, 7))
"""By slot, the cells of the audited plate: cell, pings and km/h. It is alone: what others
give is the same with and without it."""


def days(present, seed, asked, charge_share=1.0, noise_share=1.0):
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
        rows = rows_of([visits])
        query = PlateQuery(np.array([18, 18]) * KMH, FULL, 130 * KMH, **asked)
        draw(entries(rows, query), query, slot)
        of_slots.append(entries(rows, PlateQuery(MORNING[slot], FULL, 1)))
    if "city" not in asked:
        return np.concatenate(out, axis=1), charges
    vectors = of_day(Entries(*map(np.concatenate, zip(*of_slots, strict=True))), CELLS)
    draw(vectors, PlateQuery(np.zeros(CELLS, np.int64), FULL, 260 * KMH), "day")
    return np.concatenate(out, axis=1), charges


DAYS = pytest.mark.parametrize(
    "asked", [ASKED["plates"], ASKED["city and bins"]], ids=["plates", "city, day"]
)


@DAYS
def test_days_with_and_without_a_plate_tell_no_more_than_it_was_charged_and_nearly_that(asked):
    (present, charged), (away, _) = (days(there, f"{there}", asked) for there in (True, False))
    assert 0.2 < charged / NANO < 2.5
    assert 0.5 * charged / NANO < rho_seen(present, away) <= charged / NANO
    half = RUNS // 2  # in which the line is found, and thresholds on it
    line = present[:half].mean(axis=0) - away[:half].mean(axis=0)
    farthest = np.abs(line).argmax()
    for delta in (DELTA, 0.01, 0.1):
        most = epsilon_of(charged, delta)
        assert 0.25 * most < epsilon_proven(present @ line, away @ line, delta) <= most
        # Noise without tails shows where a plate moves most, at these deltas alone.
        assert epsilon_proven(present[:, farthest], away[:, farthest], delta) <= most


@DAYS
@pytest.mark.parametrize("fault", [{"charge_share": 2.0}, {"noise_share": 0.7}])
def test_the_same_audit_of_days_finds_a_charge_of_half_and_noise_that_is_too_small(asked, fault):
    (present, charged), (away, _) = (
        days(there, f"{there}", asked, **fault) for there in (True, False)
    )
    assert rho_seen(present, away) > charged / NANO
