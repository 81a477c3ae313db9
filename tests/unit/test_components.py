"""One budget over components of different kinds: Theorem 5.1 and Corollary 5.1 by looking at every pair of inputs."""

import itertools
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.checks import ask
from udp_stream.ledger.filters import (
    Filter,
    SharedBudget,
    component_charge_nano,
    delta_of,
    product_distance,
    rho_nano_of,
)
from udp_stream.ledger.memory import MemoryLedger
from udp_stream.units import NANO

ORDERS = np.geomspace(1.001, 100, 12)[:, None]


def max_divergence(p, q):
    return math.log((p / q).max())


def concentrated(p, q):
    """The least rho: sup over orders of the Renyi divergence by its order."""
    moments = (p * np.exp((ORDERS - 1) * np.log(p / q))).sum(axis=1)
    return float((np.log(moments) / ((ORDERS - 1) * ORDERS)[:, 0]).max())


def cost(mechanism, distance, reach, measure):
    """Of a finite mechanism, with a row for each input: the most per unit of distance, or squared, up to the reach."""
    pairs = [pair for pair in itertools.permutations(range(len(mechanism)), 2) if 0 < distance(*pair) <= reach]
    if measure == "epsilon":
        return max(max_divergence(mechanism[a], mechanism[b]) / distance(a, b) for a, b in pairs)
    return max(concentrated(mechanism[a], mechanism[b]) / distance(a, b) ** 2 for a, b in pairs)


def random_mechanism(rng, inputs, outputs=4):
    return rng.dirichlet(np.ones(outputs) * 3, inputs) + 1e-3


def normal(mechanism):
    return mechanism / mechanism.sum(axis=1, keepdims=True)


def spaces(rng):
    """Places on a line in metres, a value that is swapped or not, and points of a plane: metrics of their own."""
    line, plane = np.cumsum(rng.integers(100, 900, 4)), rng.integers(0, 1000, (3, 2))
    return (
        (4, lambda a, b: abs(int(line[a] - line[b]))),
        (3, lambda a, b: int(a != b)),
        (3, lambda a, b: float(np.hypot(*(plane[a] - plane[b])))),
    )


UNITS = (500, 1, 250)


@pytest.mark.parametrize("measure", ["epsilon", "rho"])
@pytest.mark.parametrize("reach", [1.5, math.inf])
@pytest.mark.parametrize("seed", range(2))
def test_what_reads_one_component_costs_in_the_product_what_it_costs_there(seed, reach, measure):
    """Theorem 5.1 and Corollary 5.1: every pair of the 36 points of the product, and of its components alone."""
    rng = np.random.default_rng(seed)
    parts = spaces(rng)
    points = list(itertools.product(*(range(size) for size, _ in parts)))

    def apart(x, y):
        scaled = (
            metric(a, b) / unit for a, b, (_, metric), unit in zip(points[x], points[y], parts, UNITS, strict=True)
        )
        return max(scaled)

    for which, (size, metric) in enumerate(parts):
        alone = normal(random_mechanism(rng, size))
        of_product = alone[[point[which] for point in points]]
        if not any(0 < metric(a, b) / UNITS[which] <= reach for a, b in itertools.permutations(range(size), 2)):
            continue
        own = cost(alone, metric, reach * UNITS[which], measure)  # per unit of its own metric
        in_product = cost(of_product, apart, reach, measure)
        assert in_product == pytest.approx(own * UNITS[which] ** (1 if measure == "epsilon" else 2), rel=1e-9)
        charge = component_charge_nano(math.ceil(own * NANO), measure, UNITS[which], measure) / NANO
        assert in_product <= charge * (1 + 1e-12)
        assert charge <= in_product + UNITS[which] ** 2 / NANO * 1.01


@pytest.mark.parametrize("seed", range(3))
def test_the_sum_of_the_charges_bounds_what_both_tell_together(seed):
    """Of mechanisms on two components; with the unit left out of a charge it would not."""
    rng = np.random.default_rng(seed)
    parts = spaces(rng)[:2]
    points = list(itertools.product(range(4), range(3)))
    first, second = (normal(random_mechanism(rng, size)) for size, _ in parts)
    both = np.array([np.outer(first[a], second[b]).ravel() for a, b in points])

    def apart(x, y):
        return float(
            product_distance(
                {"place": parts[0][1](points[x][0], points[y][0]), "speed": parts[1][1](points[x][1], points[y][1])},
                {"place": 500, "speed": 1},
            )
        )

    budget = SharedBudget(Filter.pure(10 * NANO)).knowing("place", 500).knowing("speed", 1)
    costs = [
        math.ceil(cost(one, metric, math.inf, "epsilon") * NANO)
        for one, (_, metric) in zip((first, second), parts, strict=True)
    ]
    charges = [budget.charge_nano(kind, own, "epsilon") for kind, own in zip(("place", "speed"), costs, strict=True)]
    together = cost(both, apart, math.inf, "epsilon")
    assert together <= sum(charges) / NANO * (1 + 1e-12)
    assert together > (costs[0] + charges[1]) / NANO


def test_a_pure_mechanism_is_charged_half_its_square_per_unit_squared():
    """Geo-indistinguishable noise on a line: what it costs in rho, by the divergences themselves."""
    places, epsilon = np.arange(-4000, 4001, 50), 0.001  # per metre
    weights = np.exp(-epsilon * np.abs(places[None, :] - np.array([0, 200, 500])[:, None]))
    mechanism = weights / weights.sum(axis=1, keepdims=True)

    def metric(a, b):
        return abs((0, 200, 500)[a] - (0, 200, 500)[b])

    charge = component_charge_nano(round(1.02 * epsilon * NANO), "epsilon", 500, "rho") / NANO  # the line has ends
    assert cost(mechanism, metric, math.inf, "rho") * 500**2 <= charge <= 0.14


def test_gaussian_noise_of_positions_and_of_speeds_share_one_promise():
    """Of (epsilon 2, delta 1e-6): half in rho to positions within 500 m, half to speeds."""
    budget = SharedBudget(Filter.approximate(2 * NANO, 1e-6)).knowing("positions", 500).knowing("speeds", 1)
    half = budget.filter.limit_nano // 2
    sigma_m = 500 / math.sqrt(2 * half / NANO)
    charge = budget.charge_nano("positions", math.ceil(NANO / (2 * sigma_m**2)), "rho")
    assert charge == pytest.approx(half, abs=500**2)  # the cost is rounded up in nano-rho per square metre
    assert budget.charge_nano("speeds", half, "rho") == half
    assert delta_of(2 * half, 2 * NANO) <= Decimal("1e-6") < delta_of(rho_nano_of(2 * NANO, 1e-6) + 1, 2 * NANO)


def test_a_kind_is_known_when_it_is_first_asked_about_and_keeps_its_unit():
    """Remark 4."""
    speeds = SharedBudget(Filter.concentrated(NANO)).knowing("speeds", 1)
    with pytest.raises(ValueError, match="expected a kind of data"):
        speeds.charge_nano("positions", 1, "rho")
    both = speeds.knowing("positions", Decimal("0.5"))
    assert both.knowing("positions", Decimal("0.50")) is both and speeds.units == (("speeds", 1),)
    with pytest.raises(ValueError, match="1 that speeds had when"):
        both.knowing("speeds", 2)
    assert both.distance({"speeds": 1, "positions": Decimal("0.75")}) == Fraction(3, 2)
    assert both.charge_nano("positions", 5, "rho") == 2  # 1.25, rounded up


@pytest.mark.parametrize("unit", [0, -1, Decimal("NaN"), Decimal("Infinity")])
def test_what_is_no_unit_is_refused(unit):
    with pytest.raises(ValueError, match="unit of positions"):
        SharedBudget(Filter.pure(1)).knowing("positions", unit)


def test_a_rho_is_no_epsilon_and_a_cost_is_none_below_nothing():
    with pytest.raises(ValueError, match="expected a cost in epsilon"):
        SharedBudget(Filter.pure(NANO)).knowing("speeds", 1).charge_nano("speeds", 1, "rho")
    with pytest.raises(ValueError, match="expected cost_nano >= 0"):
        component_charge_nano(-1, "rho", 1, "rho")
    with pytest.raises(ValueError, match="distance of at least 0"):
        product_distance({"speeds": -1}, {"speeds": 1})


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["speeds", "positions"]), st.integers(1, 3 * 10**6)), max_size=15))
def test_a_ledger_keeps_one_account_of_them_all(asked):
    budget = SharedBudget(Filter.concentrated(NANO // 100)).knowing("speeds", 1).knowing("positions", 3)
    ledger, limit, spent = MemoryLedger(), budget.filter.limit_nano, 0
    for number, (kind, nano) in enumerate(asked):
        charge = budget.charge_nano(kind, nano, "rho")
        (verdict,) = ledger.admit("lifetime in rho", limit, [b"plate"], [ask(f"{kind} {number}", [charge])])
        assert bool(verdict.charged[0]) is budget.filter.admits(spent, charge)
        spent += int(verdict.charged[0])
    assert ledger.balances("lifetime in rho", [b"plate"]).charged.tolist() == [spent] and spent <= limit
