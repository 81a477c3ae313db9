"""Iterative elimination: splits, charges, decisions, and runs that are a function of their recorded
rounds."""

from dataclasses import replace
from fractions import Fraction
from functools import reduce
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from udp_stream.mechanisms.noise import SCALE_MAX, Cost, concentrated
from udp_stream.queries.elimination import (
    ABOVE,
    BELOW,
    EVERYONE,
    IN,
    REFUSED,
    BandRule,
    NearestRule,
    QueryBudget,
    Round,
    Split,
    Tariff,
)
from udp_stream.queries.plane import QUANTA_PER_KM, Rectangle, rho_per_square_metre
from udp_stream.queries.privatised import DistanceNoise, least_nano, scale_of
from udp_stream.testing import seeded_bits

REGION = Rectangle(0, 0, 2000, 2000)
RHO = rho_per_square_metre(1e-4)


@given(st.integers(1, 10**15), st.lists(st.integers(1, 2**20), min_size=1, max_size=40))
def test_parts_add_up_to_the_budget_and_are_within_a_nano_of_their_share(budget, shape):
    parts = Split(tuple(shape)).parts(budget)
    assert sum(parts) == budget and len(parts) == len(shape)
    assert all(
        abs(part - Fraction(budget * one, sum(shape))) < 1
        for part, one in zip(parts, shape, strict=True)
    )
    some = [budget, 1, 2**53 - 1]
    assert Split(tuple(shape)).parts_of_each(np.array(some)).tolist() == [
        Split(tuple(shape)).parts(b) for b in some
    ]


@given(
    st.sampled_from(["pure", "zcdp"]), st.integers(0, 10**12), st.sampled_from([1, 16_000, 16_404_000]),
    st.integers(1, 3),
)  # fmt: skip
def test_scales_are_at_least_what_the_charge_asks_for_and_hardly_more(
    measure, above, moves, dimensions
):
    least = least_nano(moves, measure, dimensions)
    cost = Cost(measure, least + above)
    t, s = scale_of(moves, cost, dimensions)
    amount, scale = Fraction(cost.nano, 10**9), Fraction(t, s)
    enough = scale * amount >= moves if measure == "pure" else 2 * amount * scale**2 >= moves**2
    tight = scale - Fraction(1, s) - scale / 2**40
    less = (
        tight * amount < moves
        if measure == "pure"
        else tight < 0 or 2 * amount * tight**2 < moves**2
    )
    assert enough and less and t <= SCALE_MAX and s & (s - 1) == 0
    if least > 1:
        with pytest.raises(ValueError, match=f"at least {least} nano"):
            scale_of(moves, Cost(measure, least - 1), dimensions)


def test_plates_of_different_budgets_have_each_their_own_parts():
    budgets = np.array([7, 10**3, 7, 10**12]) * 10**3
    tariff = Tariff("zcdp", Split.doubling(3), budgets, 16_000, 2)
    for j in range(3):
        parts = tariff.parts(j, np.arange(4))
        expected = [Split.doubling(3).parts(budget)[j] for budget in budgets.tolist()]
        assert parts.charge.tolist() == expected
        assert [(t, s) for t, s in zip(parts.t.tolist(), parts.s.tolist(), strict=True)] == [
            scale_of(16_000, concentrated(nano), 2) for nano in expected
        ]


@pytest.mark.parametrize("fine_bits", [4, 7, 10])
@given(st.tuples(*[st.integers(-(10**6), 10**6)] * 4))
def test_a_rounded_distance_moves_no_farther_than_its_noise_is_made_for(fine_bits, places):
    """By 2^k + 5/4 fine steps for each of the position's: what makes the guarantee exact for noise
    on distances."""
    kind = DistanceNoise("zcdp", REGION.signed_distance, steps_per_unit=4, fine_bits=fine_bits)
    first, second = np.array([places[:2]]), np.array([places[2:]])
    square = int(((first - second) ** 2).sum())
    moved = abs(int(kind.values(first)[0, 0] - kind.values(second)[0, 0]))
    assert (
        16 * moved**2 <= kind.sensitivity**2 * square and kind.sensitivity == 4 * 2**fine_bits + 5
    )


@pytest.mark.parametrize("fine_bits", [4, 10])
def test_so_it_is_for_neighbouring_positions_everywhere_around_a_corner(fine_bits):
    kind = DistanceNoise("pure", REGION.signed_distance, steps_per_unit=4, fine_bits=fine_bits)
    grid = np.stack(
        np.meshgrid(np.arange(15_950, 16_050), np.arange(15_950, 16_050), indexing="ij"), -1
    )
    values = kind.values(grid.reshape(-1, 2)).reshape(100, 100)
    for dx, dy in ((1, 0), (0, 1), (1, 1), (1, -1), (2, 1)):
        here = values[: 100 - dx, max(0, -dy) : 100 - max(0, dy)]
        there = values[dx:, max(0, dy) : 100 + min(0, dy)]
        assert 4 * np.abs(here - there).max() <= kind.sensitivity * (dx * dx + dy * dy) ** 0.5


def test_the_finest_lattice_that_the_smallest_part_allows_is_taken():
    for nano in (29 * 16**2 + 40_000, 10**6, 10**9):
        kind = DistanceNoise.finest(REGION.signed_distance, QUANTA_PER_KM, concentrated(nano))
        t, _ = scale_of(kind.sensitivity, concentrated(nano), 1)
        assert t <= SCALE_MAX
        finer = replace(kind, fine_bits=kind.fine_bits + 1)
        if kind.fine_bits < 10:
            with pytest.raises(ValueError, match="at least"):
                scale_of(finer.sensitivity, concentrated(nano), 1)
    with pytest.raises(ValueError, match="nano-rho per round"):
        DistanceNoise.finest(REGION.signed_distance, QUANTA_PER_KM, concentrated(100))


def pie_of(kind="distance", rule=None, n=40, split=None, measure="zcdp", nano=RHO.nano, **more):
    terms = QueryBudget(measure, np.full(n, nano, np.int64), kind, split or Split.even(4))
    return replace(terms.elimination(REGION.signed_distance, rule or BandRule(0, 0)), **more)


def positions(n=40, seed=1):
    return np.random.default_rng(seed).integers(-40_000, 40_000, (n, 2))


@pytest.mark.parametrize("kind", ["point", "distance"])
@pytest.mark.parametrize("measure", ["pure", "zcdp"])
@pytest.mark.parametrize(
    "rule", [BandRule(0, 0), BandRule(-inf, 30_000), NearestRule(3), EVERYONE], ids=str
)
def test_a_run_is_a_function_of_its_recorded_rounds(kind, measure, rule):
    pie, where, bits = pie_of(kind, rule, measure=measure, nano=10**11), positions(), seeded_bits(3)
    state, rounds, states = pie.begin(), [], []
    while (due := pie.due(state)) is not None:
        found = pie.draw(state, due.plates, where[due.plates], bits)
        rounds.append(
            Round(np.array(found.plates.tolist()), np.array(found.values.tolist()))
        )  # as read from a record
        state = pie.advance(state, found)
        states.append(state)
    for count, expected in enumerate(states, 1):
        again = reduce(pie.advance, rounds[:count], pie.begin())
        for name in ("status", "weighed", "precision", "sharpest", "asked", "charged"):
            assert np.array_equal(getattr(again, name), getattr(expected, name)), name
        assert (again.rounds, again.survivors) == (count, expected.survivors)


def test_a_plate_is_charged_for_the_rounds_that_it_was_in_and_no_other():
    pie, where, bits = pie_of(n=200), positions(200), seeded_bits(4)
    state, owed = pie.begin(), np.zeros(200, np.int64)
    while (due := pie.due(state)) is not None:
        assert np.array_equal(due.plates, np.flatnonzero(state.status == IN))
        owed[due.plates] += due.charges
        state = pie.advance(state, pie.draw(state, due.plates, where[due.plates], bits))
    assert np.array_equal(state.charged, owed) and (state.charged <= RHO.nano).all()
    assert len(set(state.charged.tolist())) == 4  # some left after every round
    assert (state.charged[state.status == IN] == RHO.nano).all()


def test_plates_that_are_not_admitted_leave_and_stay_undecided():
    pie, where, bits = (
        pie_of(n=30),
        np.tile([[16_000, 0]], (30, 1)),
        seeded_bits(5),
    )  # on the edge: none is decided
    state = pie.begin()
    state = pie.advance(state, pie.draw(state, np.arange(30), where, bits))
    late = np.arange(10, 30)
    state = pie.advance(state, pie.draw(state, late, where[late], bits))
    assert (state.status[:10] == REFUSED).all() and state.unknown == 0
    assert np.isin(np.arange(10), state.undecided).all()
    assert (state.charged[:10] == RHO.nano // 4).all() and (
        state.charged[10:] == RHO.nano // 2
    ).all()
    assert not np.isin(np.arange(10), pie.due(state).plates).any()
    nobody = pie.advance(pie.begin(), Round(np.array([], np.int64), np.empty((0, 1), np.int64)))
    assert nobody.unknown == 30 and pie.due(nobody) is None and nobody.charged.sum() == 0


def test_only_plates_that_are_asked_can_be_drawn_or_recorded():
    pie, state = pie_of(n=5), pie_of(n=5).begin()
    for plates in ([0, 0], [7], [-1]):
        with pytest.raises(ValueError, match="plates that round 1 asks"):
            pie.draw(state, np.array(plates), np.zeros((len(plates), 2), np.int64), seeded_bits(1))
    with pytest.raises(ValueError, match="expected 2 positions of 1"):
        pie.draw(state, np.array([0, 1]), np.zeros((3, 2), np.int64), seeded_bits(1))
    done = pie.run(positions(5), seeded_bits(1))
    with pytest.raises(ValueError, match="each once"):
        pie.advance(done, Round(np.array([0]), np.array([[0]])))


def by_the_book(pie, rounds):
    """Algorithms 4 and 5 as printed (with Algorithm 4's S1 below), by loops over single plates."""
    n, c = pie.plates, pie.split.rounds
    alive, status, given = set(range(n)), dict.fromkeys(range(n), IN), {i: [] for i in range(n)}
    for j, found in enumerate(rounds):
        width, middle = {}, {}
        for i, value in zip(found.plates.tolist(), found.values.tolist(), strict=True):
            charge = pie.split.parts(int(pie.budgets_nano[i]))[j]
            t, s = scale_of(
                pie.privatised.sensitivity,
                Cost(pie.privatised.measure, charge),
                pie.privatised.dimensions,
            )
            given[i].append((value, t / s))
            weights = [scale**-2 for _, scale in given[i]]
            fine = 2.0 ** getattr(pie.privatised, "fine_bits", 0)
            average = [sum(w * v[k] for w, (v, _) in zip(weights, given[i], strict=True)) / sum(weights)
                       for k in range(pie.privatised.dimensions)]  # fmt: skip
            dimensions = pie.privatised.dimensions
            beta = pie.beta0 / (c * len(alive))
            if dimensions == 1:
                middle[i] = average[0] / fine
                width[i] = (np.sqrt(2 * np.log(2 / beta) / sum(weights)) + 0.5) / fine
            else:
                middle[i] = float(pie.privatised.phi(np.array([average]))[0])
                width[i] = (
                    np.sqrt(2 * np.log(np.exp(2 * sum(weights) / 24) / beta) / sum(weights))
                    + 2**0.5 / 2
                )
        if isinstance(pie.rule, BandRule):
            for i in list(alive):
                if middle[i] < pie.rule.low - width[i]:
                    status[i] = BELOW
                elif middle[i] > pie.rule.high + width[i]:
                    status[i] = ABOVE
        else:
            kth = sorted(middle[i] + width[i] for i in alive)[pie.rule.k - 1]
            for i in alive:
                if middle[i] - width[i] > kth:
                    status[i] = ABOVE
        alive = {i for i in alive if status[i] == IN}
    return [status[i] for i in range(n)]


@pytest.mark.parametrize("kind", ["point", "distance"])
@pytest.mark.parametrize(
    "rule",
    [BandRule(0, 0), BandRule(-5000.0, 9000.0), BandRule(-inf, 20_000.0), NearestRule(3)],
    ids=str,
)
@pytest.mark.parametrize("split", [Split.even(4), Split.doubling(5)], ids=["even", "doubling"])
def test_decisions_are_those_of_the_algorithms(kind, rule, split):
    for seed in range(3):
        pie, where = pie_of(kind, rule, split=split, nano=4 * RHO.nano), positions(seed=seed)
        state, rounds = pie.begin(), []
        while (due := pie.due(state)) is not None:
            rounds.append(
                pie.draw(state, due.plates, where[due.plates], seeded_bits(f"{seed}/{len(rounds)}"))
            )
            state = pie.advance(state, rounds[-1])
        assert state.status.tolist() == by_the_book(pie, rounds)
        assert (state.status != IN).any()


def test_recorded_decisions_stand_where_another_machine_would_decide_otherwise():
    """A run goes on with the plates that its record says are in: the same are charged, and nobody
    else is asked."""
    pie, where, bits = pie_of(n=40), positions(), seeded_bits(6)
    state = pie.begin()
    first = pie.settled(state, pie.draw(state, pie.due(state).plates, where, bits))
    assert first.decided is not None and np.array_equal(
        first.decided, pie.advance(state, first).status
    )
    otherwise = first.decided.copy()
    stays, leaves = np.flatnonzero(first.decided != IN)[0], np.flatnonzero(first.decided == IN)[0]
    otherwise[[stays, leaves]] = IN, BELOW
    after = pie.advance(state, replace(first, decided=otherwise))
    due = pie.due(after)
    assert (
        stays in due.plates and leaves not in due.plates and np.array_equal(after.status, otherwise)
    )
    second = pie.settled(after, pie.draw(after, due.plates, where[due.plates], bits))
    again = reduce(pie.advance, [replace(first, decided=otherwise), second], pie.begin())
    assert np.array_equal(again.status, pie.advance(after, second).status)
