"""Noised sums that hide a whole plate: brute force on tiny cities, random vectors, and what
thousands of slots tell.

Earlier outputs reach a later slot by its forecasts alone. So "all paths" are all sequences of
forecasts.
"""

import math
import random
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from scipy import stats

from tests.forms import changed, soaked
from tests.privacy.test_concentrated_records import rho_seen
from udp_stream.errors import PrivacyRefused
from udp_stream.ledger.filters import epsilon_of
from udp_stream.ledger.rules import AMOUNT_LIMIT
from udp_stream.mechanisms import add_remove
from udp_stream.mechanisms.add_remove import (
    Entries,
    PlateQuery,
    PlateRows,
    allowances,
    entries,
    noised,
    shortened,
)
from udp_stream.mechanisms.samplers import SCALE_MAX
from udp_stream.testing import seeded_bits
from udp_stream.units import NANO

KMH = 4096
FULL, SIGMA, SLOTS, ACTIVE = 12, 40 * KMH, 3, 2
MODES = pytest.mark.parametrize("plates", [False, True], ids=["weights", "plates"])
ENOUGH = 90 * NANO
BUDGETS = 0, 1, NANO // 50, 2 * NANO, ENOUGH
FORECASTS = (0, 65), (20, 18), (65, 0)
PATHS = list(product(FORECASTS, repeat=SLOTS))
VISITS = (
    (), ((0, 1, 0),), ((0, 5, 65),), ((1, 2**28, 1000),), ((0, 3, 18), (1, 9, 33)), ((1, 1, 19),),
)  # fmt: skip
"""What a plate may do in a slot: cell, pings, mean speed in km/h. Two cells; a plate may be away."""


@dataclass(frozen=True)
class Slot:
    """By name of plate its cells with both entries, what it was charged, and whether it was asked
    for less than it costs; and the noised sums."""

    vectors: dict
    charged: dict
    cut: dict
    out: np.ndarray


def rows_of(city, slot):
    rows = [(number, cell, pings, pings * kmh * KMH) for number, name in enumerate(sorted(city))
            for cell, pings, kmh in city[name][slot]]  # fmt: skip
    return PlateRows(*np.array(rows, np.int64).reshape(-1, 4).T)


def play(city, path, budget, plates):
    """The slots of a period. Equal bits give equal noise, whatever the sums are."""
    names, told = sorted(city), []
    left = np.full(len(names), budget)
    for slot, forecast in enumerate(path):
        query = PlateQuery(np.array(forecast) * KMH, FULL, SIGMA, plates)
        vectors = entries(rows_of(city, slot), query)
        asked = vectors.charges(len(names), query)
        charged = np.minimum(asked, allowances(left, SLOTS - slot, ACTIVE))
        kept = shortened(vectors, charged, query)
        left = left - charged
        assert left.min(initial=0) >= 0
        of_plate = {name: {} for name in names}
        for number, cell, *both in zip(*(column.tolist() for column in kept), strict=True):
            of_plate[names[number]][cell] = both
        cut = dict(zip(names, (charged < asked).tolist(), strict=True))
        out = noised(kept, len(forecast), query, seeded_bits(slot))
        told.append(Slot(of_plate, dict(zip(names, charged.tolist(), strict=True)), cut, out))
    return told


def squares(vector):
    return sum(value * value for both in vector.values() for value in both)


def rho_nano(vector, sigma=SIGMA):
    return Fraction(squares(vector) * NANO, 2 * sigma * sigma)


@MODES
@pytest.mark.parametrize("budget", BUDGETS)
def test_no_history_of_a_plate_costs_more_than_its_charges_nor_these_more_than_its_budget_on_any_path(
    budget, plates
):
    city = {str(number): history for number, history in enumerate(product(VISITS, repeat=SLOTS))}
    most, kept_whole, were_cut = Fraction(), 0, 0
    for path in PATHS:
        told = play(city, path, budget, plates)
        for name in city:
            costs = [rho_nano(slot.vectors[name]) for slot in told]
            for cost, slot in zip(costs, told, strict=True):
                assert cost <= slot.charged[name]
                were_cut += slot.cut[name]
                kept_whole += not slot.cut[name] and cost > slot.charged[name] - 1 and cost > 0
            assert sum(slot.charged[name] for slot in told) <= budget
            most = max(most, sum(costs))
    assert most <= budget and (budget != 2 * NANO or most > Fraction(99, 100) * budget)
    assert were_cut > 100 or budget == ENOUGH
    assert kept_whole > 100 or budget < NANO


@MODES
@pytest.mark.parametrize("seed", range(3))
def test_neighbours_differ_by_the_vector_of_the_plate_alone_on_every_path(seed, plates):
    rng = random.Random(seed)
    city = {name: [rng.choice(VISITS) for _ in range(SLOTS)] for name in "ABCD"}
    moved = 0
    for path in PATHS:
        first = play(city, path, 2 * NANO, plates)
        for plate in city:
            others = {name: history for name, history in city.items() if name != plate}
            for one, two in zip(first, play(others, path, 2 * NANO, plates), strict=True):
                for name in others:  # entries, hence factors, and charges of other plates
                    assert (
                        one.vectors[name] == two.vectors[name]
                        and one.charged[name] == two.charged[name]
                    )
                own = np.zeros((2, 2), np.int64)
                for cell, both in one.vectors[plate].items():
                    own[:, cell] = both
                assert np.array_equal(one.out - two.out, own)
                assert Fraction(int((own**2).sum()) * NANO, 2 * SIGMA**2) <= one.charged[plate]
                moved += own.any()
    assert moved > 100


@MODES
def test_two_plates_in_place_of_each_other_differ_by_at_most_four_budgets_and_some_by_more_than_three(
    plates,
):
    city = {str(number): history for number, history in enumerate(product(VISITS, repeat=SLOTS))}
    apart = Fraction()
    for path in PATHS:
        told = play(city, path, NANO, plates)
        sent = np.zeros((len(city), SLOTS, 2, 2), np.int64)
        for (number, name), (at, slot) in product(enumerate(city), enumerate(told)):
            for cell, both in slot.vectors[name].items():
                sent[number, at, :, cell] = both
        sent = sent.reshape(len(city), -1)
        most = max(int(((sent - one) ** 2).sum(axis=1).max()) for one in sent)
        apart = max(apart, Fraction(most, 2 * SIGMA**2))
    assert 3 < apart <= 4 if not plates else 2 < apart <= 4


@MODES
def test_a_retry_with_other_pings_gives_no_more_than_was_charged_at_first(plates):
    query, were_cut = PlateQuery(np.array([20, 18]) * KMH, FULL, SIGMA, plates), 0
    for budget, first, second in product(BUDGETS, VISITS, VISITS):
        before, after = (entries(rows_of({"A": [visit]}, 0), query) for visit in (first, second))
        charged = np.minimum(before.charges(1, query), budget)
        kept = shortened(after, charged, query)
        assert sums_of_squares(kept, 1)[0] * NANO <= int(charged[0]) * 2 * SIGMA**2
        were_cut += 0 < kept.charges(1, query)[0] < after.charges(1, query)[0]
    assert were_cut > 10


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
@pytest.mark.parametrize("rounds", [10, *soaked([100])])
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


@MODES
@pytest.mark.parametrize("sigma", [500 * KMH, SCALE_MAX])
def test_noise_of_every_entry_has_the_stated_scale_and_30_percent_off_is_noticed(sigma, plates):
    cells = 6000
    query = PlateQuery(np.full(cells, 18 * KMH), FULL, sigma, plates)
    rows = PlateRows(
        *np.array(
            [(number, cell, 5, 5 * 65 * KMH) for number in range(20) for cell in range(cells // 2)]
        ).T
    )
    vectors = entries(rows, query)
    off = noised(vectors, cells, query, seeded_bits(sigma))
    for number, values in enumerate((vectors.residual, vectors.weight)):
        off[number] -= np.bincount(vectors.cell, values, cells).astype(np.int64)
    parts = (
        off[0],
        off[1],
        off[:, : cells // 2].ravel(),
        off[:, cells // 2 :].ravel(),
    )  # with plates, without
    for part in parts:
        assert stats.kstest(part / sigma, "norm").pvalue > 1e-6
        assert (
            stats.kstest(part / (0.7 * sigma), "norm").pvalue
            < 1e-6
            > stats.kstest(part / (1.3 * sigma), "norm").pvalue
        )
    assert (
        abs(np.corrcoef(off)[0, 1])
        < 5 / math.sqrt(cells)
        > abs(np.corrcoef(off[:, 1:].ravel(), off[:, :-1].ravel())[0, 1])
    )


# One slot, thousands of times: each run has cells and plates of its own in one large domain.

RUNS, CELLS = 12_000, 3
DAY = (0, 0, 20, 60), (0, 1, 8, 50), (1, 0, 9, 12), (1, 2, 30, 25), (2, 1, 3, 7)
"""Plate, cell, pings and km/h. The first plate is the audited one."""


def slots(present, plates, seed, charge_share=1.0, noise_share=1.0):
    """Noised sums of each run, one row each, and what the audited plate was charged in nano-rho:
    half of its cost."""
    rows = np.array(
        [
            (plate, cell, pings, pings * kmh * KMH)
            for plate, cell, pings, kmh in DAY
            if present or plate
        ]
    )
    step = np.arange(RUNS)[:, None, None] * np.array([3, CELLS, 0, 0])
    sigma = 50 * KMH
    query = PlateQuery(np.full(CELLS * RUNS, 18 * KMH), 30, sigma, plates)
    vectors = entries(PlateRows(*(rows + step).reshape(-1, 4).T), query)
    charged = vectors.charges(3 * RUNS, query)
    charged[::3] //= 2
    kept = shortened(vectors, np.round(charged * charge_share).astype(np.int64), query)
    out = noised(
        kept, CELLS * RUNS, changed(query, sigma=round(sigma * noise_share)), seeded_bits(seed)
    )
    return out.reshape(2, RUNS, CELLS).transpose(1, 0, 2).reshape(RUNS, -1).astype(float), int(
        charged[0]
    )


def epsilon_seen(first, second, delta):
    """The largest epsilon that runs prove at 99.9 %: half of them find the line, the others count
    threshold events."""
    half = RUNS // 2
    line = first[:half].mean(axis=0) - second[:half].mean(axis=0)
    first, second = first[half:] @ line, second[half:] @ line
    sure, worst = 0.001 / 80, 0.0
    for threshold in np.quantile(np.concatenate((first, second)), np.linspace(0.02, 0.98, 20)):
        for more, less in (
            (first > threshold, second > threshold),
            (second <= threshold, first <= threshold),
        ):
            low = stats.beta.ppf(sure, more.sum(), (~more).sum() + 1)
            high = stats.beta.ppf(1 - sure, less.sum() + 1, (~less).sum())
            worst = max(worst, math.log(max(low - delta, 1e-300) / high))
    return worst


@MODES
def test_slots_with_and_without_a_plate_tell_no_more_than_it_was_charged_and_nearly_that(plates):
    (present, charged), (away, _) = (
        slots(is_there, plates, f"{is_there}") for is_there in (True, False)
    )
    assert 0.6 < charged / NANO < 2.5
    assert 0.5 * charged / NANO < rho_seen(present, away) <= charged / NANO
    for delta in (1e-6, 0.01, 0.1):
        assert (
            0.25 * epsilon_of(charged, delta)
            < epsilon_seen(present, away, delta)
            <= epsilon_of(charged, delta)
        )


@MODES
@pytest.mark.parametrize(
    "fault", [{"charge_share": 2.0}, {"noise_share": 0.7}], ids=["k q for k^2 q", "narrow noise"]
)
def test_the_same_audit_finds_a_charge_of_half_and_noise_that_is_too_small(plates, fault):
    (present, charged), (away, _) = (
        slots(is_there, plates, f"{is_there}", **fault) for is_there in (True, False)
    )
    assert rho_seen(present, away) > charged / NANO
