"""One budget over components of different kinds: Theorem 5.1 and Corollary 5.1 by looking at every
pair of inputs."""

import itertools
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.checks import ask
from udp_stream.base.units import NANO
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.planning.policy import OneBudget, component_charge_nano

ORDERS = np.geomspace(1.001, 100, 12)[:, None]


def max_divergence(p, q):
    return math.log((p / q).max())


def concentrated(p, q):
    """The least rho: sup over orders of the Renyi divergence by its order."""
    moments = (p * np.exp((ORDERS - 1) * np.log(p / q))).sum(axis=1)
    return float((np.log(moments) / ((ORDERS - 1) * ORDERS)[:, 0]).max())


def cost(mechanism, distance, reach, measure):
    """Of a finite mechanism, with a row for each input: the most per unit of distance, or squared,
    up to the reach."""
    pairs = [
        pair
        for pair in itertools.permutations(range(len(mechanism)), 2)
        if 0 < distance(*pair) <= reach
    ]
    if measure == "pure":
        return max(max_divergence(mechanism[a], mechanism[b]) / distance(a, b) for a, b in pairs)
    return max(concentrated(mechanism[a], mechanism[b]) / distance(a, b) ** 2 for a, b in pairs)


def random_mechanism(rng, inputs, outputs=4):
    return rng.dirichlet(np.ones(outputs) * 3, inputs) + 1e-3


def normal(mechanism):
    return mechanism / mechanism.sum(axis=1, keepdims=True)


def spaces(rng):
    """Places on a line in metres, a value that is swapped or not, and points of a plane: metrics of
    their own."""
    line, plane = np.cumsum(rng.integers(100, 900, 4)), rng.integers(0, 1000, (3, 2))
    return (
        (4, lambda a, b: abs(int(line[a] - line[b]))),
        (3, lambda a, b: int(a != b)),
        (3, lambda a, b: float(np.hypot(*(plane[a] - plane[b])))),
    )


UNITS = (500, 1, 250)


@pytest.mark.parametrize("measure", ["pure", "zcdp"])
@pytest.mark.parametrize("reach", [1.5, math.inf])
@pytest.mark.parametrize("seed", range(2))
def test_what_reads_one_component_costs_in_the_product_what_it_costs_there(seed, reach, measure):
    """Theorem 5.1 and Corollary 5.1: every pair of the 36 points of the product, and of its
    components alone."""
    rng = np.random.default_rng(seed)
    parts = spaces(rng)
    points = list(itertools.product(*(range(size) for size, _ in parts)))

    def apart(x, y):
        scaled = (
            metric(a, b) / unit
            for a, b, (_, metric), unit in zip(points[x], points[y], parts, UNITS, strict=True)
        )
        return max(scaled)

    for which, (size, metric) in enumerate(parts):
        alone = normal(random_mechanism(rng, size))
        of_product = alone[[point[which] for point in points]]
        if not any(
            0 < metric(a, b) / UNITS[which] <= reach
            for a, b in itertools.permutations(range(size), 2)
        ):
            continue
        own = cost(alone, metric, reach * UNITS[which], measure)  # per unit of its own metric
        in_product = cost(of_product, apart, reach, measure)
        assert in_product == pytest.approx(
            own * UNITS[which] ** (1 if measure == "pure" else 2), rel=1e-9
        )
        charge = (
            component_charge_nano(math.ceil(own * NANO), measure, Fraction(UNITS[which])) / NANO
        )
        assert in_product <= charge * (1 + 1e-12)
        assert charge <= in_product + UNITS[which] ** 2 / NANO * 1.01


def test_a_charge_in_another_unit_is_rounded_up_to_a_nano():
    third = Fraction(1, 3)
    assert [component_charge_nano(nano, "pure", third) for nano in (0, 1, 3, 4)] == [0, 1, 1, 2]
    assert [component_charge_nano(nano, "zcdp", third) for nano in (0, 1, 9, 10)] == [0, 1, 1, 2]


@pytest.mark.parametrize("seed", range(3))
def test_the_sum_of_the_charges_bounds_what_both_tell_together(seed):
    """Of mechanisms on two components; with the unit left out of a charge it would not."""
    rng = np.random.default_rng(seed)
    parts = spaces(rng)[:2]
    points = list(itertools.product(range(4), range(3)))
    first, second = (normal(random_mechanism(rng, size)) for size, _ in parts)
    both = np.array([np.outer(first[a], second[b]).ravel() for a, b in points])

    def apart(x, y):
        (a, b), (c, d) = points[x], points[y]
        return max(parts[0][1](a, c) / UNITS[0], parts[1][1](b, d) / UNITS[1])

    costs = [
        math.ceil(cost(one, metric, math.inf, "pure") * NANO)
        for one, (_, metric) in zip((first, second), parts, strict=True)
    ]
    charges = [
        component_charge_nano(own, "pure", Fraction(unit))
        for own, unit in zip(costs, UNITS, strict=False)
    ]
    together = cost(both, apart, math.inf, "pure")
    assert together <= sum(charges) / NANO * (1 + 1e-12)
    assert together > (costs[0] + charges[1]) / NANO


@pytest.mark.parametrize("measure", ["pure", "zcdp"])
@given(whole=st.integers(1000, 10**12), part=st.integers(1, 999), unit=st.integers(1, 10**6))
def test_what_positions_may_cost_by_distance_is_within_their_part_and_nearly_all_of_it(
    measure, whole, part, unit
):
    one = OneBudget(measure, whole, whole * part // 1000, Decimal(unit) / 10)
    name = "positions lifetime" + " in rho" * (measure == "zcdp")
    assert one.nano_of(name, one.by_distance_nano) <= one.part_nano(name)
    assert one.nano_of(name, one.by_distance_nano + 1) >= one.part_nano(name)
    assert one.part_nano(name) + one.part_nano("lifetime") == whole


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3 * 10**6)), max_size=15))
def test_a_ledger_keeps_one_account_of_them_all(asked):
    one, ledger, spent = (
        OneBudget("zcdp", NANO // 100, NANO // 200, Decimal(3000)),
        MemoryLedger(),
        0,
    )
    for number, (is_positions, nano) in enumerate(asked):
        charge = one.nano_of(
            "positions lifetime in rho" if is_positions else "lifetime in rho", nano
        )
        assert charge == nano * (9 if is_positions else 1)
        (verdict,) = ledger.admit(
            "lifetime in rho", one.whole_nano, [b"plate"], [ask(f"{number}", [charge])]
        )
        assert bool(verdict.charged[0]) is (spent + charge <= one.whole_nano)
        spent += int(verdict.charged[0])
    assert (
        ledger.balances("lifetime in rho", [b"plate"]).charged.tolist() == [spent]
        and spent <= one.whole_nano
    )
