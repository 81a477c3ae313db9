"""What *Adaptive Privacy Budgeting* (Liang and Yi) states of elimination, by simulation, at its
stated probabilities.

A statement that fails with probability at most beta is run many times. It is rejected if it fails
so often that one in a million would by chance; and noise that is larger than the terms say makes it
fail, so the test can see.
"""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from scipy import stats

from udp_stream.mechanisms.noise import concentrated, pure
from udp_stream.queries import elimination
from udp_stream.queries.elimination import (
    ABOVE,
    BELOW,
    EVERYONE,
    BandRule,
    QueryBudget,
    Round,
    Split,
    undecided,
)
from udp_stream.queries.kinds import Density, Nearest, RangeCount
from udp_stream.queries.plane import Rectangle, positions_inside, rho_per_square_metre
from udp_stream.queries.privatised import draw_radial
from udp_stream.testing import seeded_bits

SPLITS = {"c4": Split.even(4), "c64": Split.even(64), "log-c10": Split.doubling(10)}


def with_splits(few, many):
    """Each split with what makes few runs and what makes many; a run of 64 rounds takes as long as
    a hundred of c4."""
    marks = {"c4": (), "log-c10": pytest.mark.long, "c64": pytest.mark.soak}
    return [
        *(pytest.param(split, *one, marks=marks[split]) for split in SPLITS for one in few),
        *(pytest.param(split, *one, marks=pytest.mark.soak) for split in SPLITS for one in many),
    ]


RHO = rho_per_square_metre(1e-4)
"""Deviation 71 m, of a plate's whole budget."""

SQUARE = Rectangle(0, 0, 2000, 2000)
METHODS = ("point", "distance")
MOSTLY_DISTANCE = ["distance", pytest.param("point", marks=pytest.mark.soak)]


class Pool:
    """Exact noise, drawn for many runs at once: twenty draws take as long as a thousand."""

    def __init__(self, size):
        self.size, self.ready = size, {}

    def __call__(self, measure, bits, t, s, dimensions):
        if t.size * 4 > self.size or np.unique(t).size > 1:
            return draw_radial(measure, bits, t, s, dimensions)
        key = measure, int(t[0]), int(s[0]), dimensions
        if len(self.ready.get(key, ())) < t.size:
            full = np.full(self.size, t[0]), np.full(self.size, s[0])
            self.ready[key] = draw_radial(measure, bits, *full, dimensions)
        taken, self.ready[key] = np.split(self.ready[key], [t.size])
        return taken


@pytest.fixture(autouse=True)
def pool(monkeypatch):
    monkeypatch.setattr(elimination, "draw_radial", Pool(4000))


def louder(pie, positions, found, factor):
    true = pie.privatised.values(positions[found.plates])
    return Round(found.plates, true + np.rint((found.values - true) * factor).astype(np.int64))


def ran(pie, positions, seed, factor=1.0):
    states, bits = [pie.begin()], seeded_bits(seed)
    while (due := pie.due(states[-1])) is not None:
        found = pie.draw(states[-1], due.plates, positions[due.plates], bits)
        states.append(pie.advance(states[-1], louder(pie, positions, found, factor)))
    return states


def may_fail(failures, runs, beta):
    """Whether so many failures are no proof that the probability is above beta."""
    return stats.binom.sf(failures - 1, runs, beta) > 1e-6


# Valid triples: Corollaries 6.1 and 6.2, with Lemma 6.1 and Fact 6.2


@pytest.mark.parametrize("how", METHODS)
@pytest.mark.parametrize("cost", [RHO, pure(10**11)], ids=["rho", "epsilon"])
@pytest.mark.parametrize("split", [Split.even(4), Split.doubling(4)], ids=["even", "doubling"])
def test_estimates_are_off_by_more_than_their_radius_with_probability_beta(how, cost, split):
    n = 10_000
    where = np.tile([[18_000, 500]], (n, 1))
    pie = QueryBudget.alike(cost, n, how, split).elimination(SQUARE.signed_distance, EVERYONE)
    phi = SQUARE.signed_distance(where.astype(float))
    for state in ran(pie, where, f"triple/{how}/{split.rounds}")[1:]:
        off = np.abs(pie.estimate(state, np.arange(n)) - phi)
        for beta in (0.3, 0.05, 0.001):
            radius = pie.radius(state, np.arange(n), beta)
            assert may_fail((off > radius).sum(), n, beta)
            least = (
                0.9 if state.rounds == 1 and how == "distance" and cost is not RHO else 0.4
            )  # 0.9: all but tight
            assert beta != 0.05 or not may_fail((off > least * radius).sum(), n, beta)


@pytest.mark.parametrize(
    ("dimensions", "cost"),
    [(d, concentrated(10**6)) for d in (1, 2, 3, 20)] + [(d, pure(10**7)) for d in (1, 2, 3)],
    ids=lambda value: getattr(value, "measure", value),
)
def test_noise_is_longer_than_its_radius_with_probability_beta_in_d_dimensions(dimensions, cost):
    n = 6000
    query = Nearest(1, (0.0,) * dimensions, steps_per_unit=1)
    terms = QueryBudget.alike(cost, n, "point", Split.even(3))
    pie = replace(query.elimination(terms), rule=EVERYONE)
    for state in ran(pie, np.zeros((n, dimensions), np.int64), dimensions)[1:]:
        length = pie.estimate(state, np.arange(n))
        for beta in (0.3, 0.05):
            radius = pie.radius(state, np.arange(n), beta)
            assert may_fail((length > radius).sum(), n, beta)
            least = 0.9 if (dimensions, cost.measure) == (2, "zcdp") else 0.35
            assert not may_fail((length > least * radius).sum(), n, beta)


# Lemma 5.2 and Corollary 6.3: rounds decide rightly. `test_louder_noise.py` has the others


def wrongly_decided(pie, positions, factor, seed):
    phi = SQUARE.signed_distance(positions.astype(float))
    status = ran(pie, positions, seed, factor)[-1].status
    return bool((phi[status == BELOW] >= 0).any() or (phi[status == ABOVE] <= 0).any())


def near_the_edge(n, seed):
    rng = np.random.default_rng(seed)
    return np.column_stack((16_000 + rng.normal(0, 1500, n), rng.uniform(-8000, 8000, n))).astype(
        np.int64
    )


def a_crowd_far_out(n, seed):
    """Five plates at the edge, and a crowd so far from it that only some hundredths stay for a
    second round."""
    crowd = np.column_stack(
        (np.full(n, 16_000 + 21_000), np.random.default_rng(seed).uniform(-8000, 8000, n))
    )
    return np.concatenate((near_the_edge(5, seed), crowd)).astype(np.int64)


@pytest.mark.parametrize("how", METHODS)
@pytest.mark.parametrize(
    ("split", "place", "n", "runs"),
    with_splits(
        [(near_the_edge, 6, 40), (a_crowd_far_out, 300, 12)],
        [(near_the_edge, 6, 600), (a_crowd_far_out, 3000, 100)],
    ),
)
def test_lemma_5_2_all_plates_that_leave_are_where_it_says(how, split, place, n, runs):
    beta0 = 0.2
    where = place(n, 1)
    terms = QueryBudget.alike(RHO, len(where), how, SPLITS[split])
    pie = replace(terms.elimination(SQUARE.signed_distance, BandRule(0.0, 0.0)), beta0=beta0)
    assert may_fail(sum(wrongly_decided(pie, where, 1.0, i) for i in range(runs)), runs, beta0)
    few = min(runs, 60)
    assert not may_fail(sum(wrongly_decided(pie, where, 6.0, i) for i in range(few)), few, beta0)


# Answers: Corollaries 6.3 to 6.5. `test_louder_noise.py` has their bounds


def test_corollaries_6_3_6_4_and_6_5_where_all_is_decided_the_answer_is_right():
    where = np.concatenate(
        (np.tile([[0, 0]], (5, 1)), np.tile([[80_000, 0]], (40, 1)), np.tile([[0, 9000]], (3, 1)))
    )
    where[45:, 1] += np.arange(3) * 50
    for how in METHODS:
        terms = replace(QueryBudget.alike(rho_per_square_metre(1e-2), 48, how), beta=0.3)
        count, density, nearest = (
            RangeCount(SQUARE),
            Density(50_000, 0, 300),
            Nearest.to_stop(5, 0, 0),
        )
        right = 0
        for i in range(20):
            states = [
                ran(query.elimination(terms), where, i)[-1] for query in (count, density, nearest)
            ]
            assert (
                states[0].still_in.size == 0
                and states[1].still_in.size == 0
                and states[2].still_in.size == 5
            )
            answers = [query.answer(terms, query.elimination(terms), state)
                       for query, state in zip((count, density, nearest), states, strict=True)]  # fmt: skip
            right += answers[0].value == 8 and sorted(answers[2].plates.tolist()) == [0, 1, 2, 3, 4]
            assert (
                answers[1].value == 0
                and answers[2].excess_m == 0.0
                and density.truth(where) <= np.exp(-18)
            )
        assert may_fail(20 - right, 20, 0.15)


# Section 7: PM beside BM, savings, many queries


def a_city(n, seed=1):
    rng = np.random.default_rng(seed)
    centres = np.array([[0, 0], [6000, 2000], [-4000, 7000]])[rng.integers(0, 3, n)]
    return np.rint((centres + rng.normal(0, 3500, (n, 2))) * 16).astype(np.int64)


def counted(terms, positions, seed, width=2000.0, reach=4000):
    rng = np.random.default_rng(seed)
    query = RangeCount(Rectangle(*rng.uniform(-reach, reach, 2), width, width))
    pie = query.elimination(terms)
    state = ran(pie, positions, seed)[-1]
    truth = positions_inside(query.region, positions)
    return (
        abs(query.answer(terms, pie, state).value - truth) / max(1, truth),
        terms.saved(state),
        state,
    )


@pytest.mark.parametrize("how", MOSTLY_DISTANCE)
@pytest.mark.parametrize("runs", [12, pytest.param(60, marks=pytest.mark.soak)])
def test_elimination_errs_no_more_than_its_baseline_where_a_quarter_leaves(how, runs):
    """Remark 6 and Figure 3: the same errors, within what chance allows, and most of the budget is
    left."""
    city = a_city(800)
    for split in SPLITS.values():
        terms = QueryBudget.alike(RHO, 800, how, split)
        mine = np.array([counted(terms, city, i)[:2] for i in range(runs)])
        theirs = np.array([counted(terms.baseline(), city, i)[0] for i in range(runs)])
        off = mine[:, 0] - theirs
        assert off.mean() <= 3 * off.std() / np.sqrt(runs) + 1e-9
        assert mine[:, 1].mean() > 0.6


@pytest.mark.parametrize("how", MOSTLY_DISTANCE)
def test_savings_grow_with_rho_and_with_the_number_of_rounds_and_hardly_depend_on_the_width(how):
    city = a_city(400)

    def saved(rho, split, width=2000.0):
        terms = QueryBudget.alike(rho_per_square_metre(rho), 400, how, SPLITS[split])
        return np.mean([counted(terms, city, i, width)[1] for i in range(3)])

    by_rho = [saved(rho, "c64") for rho in (1e-6, 1e-5, 1e-4, 1e-3)]
    assert by_rho == sorted(by_rho) and by_rho[0] > 0.05 and by_rho[-1] > 0.9
    assert saved(1e-4, "c64") > saved(1e-4, "c4") + 0.1
    widths = [saved(1e-4, "c64", width) for width in (1000.0, 2000.0, 4000.0)]
    assert max(widths) - min(widths) < 0.1


def ramped(budget, left, m, asked):
    """Their Algorithm 3: what each plate may spend on the next of m queries, `asked` of which are
    done."""
    gamma = 0.75 + 0.25 * asked / (m - 1) if m > 1 else 1.0
    return np.floor(gamma * (left - (m - asked) / m * budget) + budget / m).astype(np.int64)


def error_of_many(m, adaptive, seed, plates=600):
    """The mean relative error of m counts under one budget, and the mean share a plate may spend on
    each."""
    left, errors, allowed = np.full(plates, RHO.nano, np.int64), [], []
    for asked in range(m):
        city = a_city(plates, 1000 * seed + asked) // 4
        budgets = ramped(RHO.nano, left, m, asked) if adaptive else np.full(plates, RHO.nano // m)
        # few distinct budgets, so that each is worked out once for many plates
        budgets = np.minimum(left, budgets) // 10**8 * 10**8
        allowed.append(budgets.mean() / (RHO.nano / m))
        terms = QueryBudget("zcdp", budgets, "distance", Split.even(16))
        error, _, state = counted(
            terms if adaptive else terms.baseline(), city, 1000 * seed + asked, 1000.0, reach=1000
        )
        errors.append(error)
        left = left - state.charged
        assert (left >= 0).all()
    return np.mean(errors), np.mean(allowed)


def test_savings_that_are_handed_on_allow_each_query_more_than_an_even_part():
    """Algorithm 3: the baseline may spend B / m on each."""
    allowed = {m: error_of_many(m, True, seed=1)[1] for m in (1, 2, 6)}
    assert allowed[1] == 1.0 and 1.1 < allowed[2] < allowed[6] and allowed[6] > 1.4


@pytest.mark.soak
def test_savings_that_are_handed_on_lower_the_error_of_many_queries_the_more_the_more_there_are():
    """Figure 6: the baseline's error grows with m, elimination's less."""
    gain = {}
    for m in (2, 14, 56):
        found = np.array(
            [
                [error_of_many(m, adaptive, seed)[0] for adaptive in (True, False)]
                for seed in range(12)
            ]
        )
        off = found[:, 1] - found[:, 0]
        gain[m] = off.mean()
        assert off.mean() > -3 * off.std() / np.sqrt(12)
        assert m < 56 or off.mean() > 3 * off.std() / np.sqrt(12)
    assert gain[56] > gain[14] > gain[2]


def test_distances_beat_points_for_neighbours_and_points_beat_distances_for_densities():
    """Figures 4 and 5, in 64 dimensions and in the plane."""
    rng = np.random.default_rng(6)
    cloud = rng.integers(0, 256, (10, 64))[rng.integers(0, 10, 300)] + rng.integers(
        -60, 61, (300, 64)
    )
    near = Nearest(10, tuple(cloud[7].astype(float)), steps_per_unit=1)
    errors, biases = {}, {}
    city = a_city(600)
    density = Density(0, 0, 400)
    for how in METHODS:
        terms = QueryBudget.alike(concentrated(10_000), 300, how).baseline()
        pie = near.elimination(terms)
        distance = near.distance(cloud.astype(float))
        found = [near.answer(terms, pie, ran(pie, cloud, i)[-1]).plates for i in range(10)]
        errors[how] = (
            np.mean([distance[one].sum() for one in found]) / np.sort(distance)[:10].sum() - 1
        )
        terms = QueryBudget.alike(rho_per_square_metre(3e-6), 600, how).baseline()
        pie = density.elimination(terms)
        values = [density.answer(terms, pie, ran(pie, city, i)[-1]).value for i in range(15)]
        biases[how] = np.mean(values) - density.truth(city)
    assert errors["distance"] < 0.7 * errors["point"]
    assert abs(biases["point"]) < 0.7 * biases["distance"]


def test_densities_of_wider_kernels_save_less_and_so_do_more_neighbours():
    """Their Figures 4 and 5: savings depend on b and on k."""
    city = a_city(600)
    terms = QueryBudget.alike(RHO, 600)

    def saved(query):
        return np.mean([terms.saved(ran(query.elimination(terms), city, i)[-1]) for i in range(2)])

    by_width = [saved(Density(0, 0, width)) for width in (100, 1600)]
    by_k = [saved(Nearest.to_stop(k, 0, 0)) for k in (5, 200)]
    assert by_width == sorted(by_width, reverse=True) and by_k == sorted(by_k, reverse=True)
    assert by_width[0] - by_width[-1] > 0.3 and by_k[0] - by_k[-1] > 0.1


def test_what_is_left_undecided_is_told_from_what_is_decided():
    terms = QueryBudget.alike(RHO, 3)
    pie = terms.elimination(SQUARE.signed_distance, BandRule(-inf, 0.0))
    state = ran(pie, np.array([[0, 0], [16_000, 0], [900_000, 0]]), 1)[-1]
    left = undecided(pie, state, terms.beta1)
    assert 2 not in left.plates and 0 in left.plates and (left.low < left.high).all()
