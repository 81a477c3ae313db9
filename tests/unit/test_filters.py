"""Privacy filters: equation 10 of Adaptive Privacy Budgeting to the last nano-unit, and its limit in a ledger."""

import math
from decimal import Decimal, localcontext
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.checks import ask
from tests.forms import long_but, long_rows
from udp_stream.ledger import filters
from udp_stream.ledger import filters as conversion
from udp_stream.ledger.filters import Filter, metric_epsilon_nano, metric_rho_nano, rho_nano_of
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.units import NANO

PROMISES = [(10.0, 1e-6, 1), (1.0, 1e-6, 1), (0.1, 1e-9, 1), (0.01, 1e-6, 1000), (2.0, 1e-3, 25), (5.0, 0.3, 1)]
"""Epsilon per unit of distance, delta, reach."""

EACH = long_rows([PROMISES[3], PROMISES[5]], PROMISES)


def on_a_grid(rho, delta, reach):
    """Equation 10 by trying many s."""
    s = 1 + np.geomspace(1e-6, 2 / delta - 2 - 1e-9, 10**5)
    g = s / (s - 1) * 2 * np.sqrt(np.log(2 / ((s + 1) * delta)))
    return np.maximum(g * math.sqrt(rho), s * reach * rho).min()


@pytest.mark.parametrize(("epsilon", "delta", "reach"), EACH)
def test_equation_10_is_what_a_fine_grid_finds(epsilon, delta, reach):
    limit = metric_rho_nano(round(epsilon * NANO), delta, reach)
    for rho_nano in (limit, limit // 3 + 1, 5 * limit + 7):
        found, gridded = metric_epsilon_nano(rho_nano, delta, reach) / NANO, on_a_grid(rho_nano / NANO, delta, reach)
        assert found - 1.5 / NANO <= gridded <= found * (1 + 1e-3)


@pytest.mark.parametrize(("epsilon", "delta", "reach"), EACH)
def test_the_limit_is_the_last_sum_that_keeps_the_promise(epsilon, delta, reach):
    limit = metric_rho_nano(round(epsilon * NANO), delta, reach)
    assert limit > 100
    assert (
        metric_epsilon_nano(limit, delta, reach) <= round(epsilon * NANO) < metric_epsilon_nano(limit + 1, delta, reach)
    )


@pytest.mark.parametrize(("epsilon", "delta", "reach"), EACH)
def test_gaussian_noise_of_that_rho_keeps_the_promise_at_every_distance_up_to_the_reach(epsilon, delta, reach):
    """Exactly: noise of cost rho per unit squared at distance d has mu = d sqrt(2 rho), and its delta is known."""
    rho, below = metric_rho_nano(round(epsilon * NANO), delta, reach) / NANO, NormalDist().cdf
    for distance in np.linspace(0.02, 1, 50) * reach:
        mu, loss = distance * math.sqrt(2 * rho), epsilon * distance
        exact = below(mu / 2 - loss / mu) - math.exp(loss) * below(-mu / 2 - loss / mu)
        assert exact <= delta
    mu, loss = reach * math.sqrt(2 * 9 * rho), epsilon * reach  # nine times as much would not
    assert below(mu / 2 - loss / mu) - math.exp(loss) * below(-mu / 2 - loss / mu) > delta


@pytest.mark.parametrize("examples", long_but([2], [2, 8]))
def test_it_is_between_the_closed_form_and_the_exact_conversion(examples):
    """At reach 1 the three promise the same: Corollary 4.2's closed form allows least, the exact conversion most."""

    @given(st.floats(0.01, 20), st.floats(1e-9, 1e-3))
    @settings(max_examples=examples, deadline=None)
    def check(epsilon, delta):
        nano = round(epsilon * NANO)
        closed = (math.sqrt(math.log(1 / delta) + epsilon) - math.sqrt(math.log(1 / delta))) ** 2
        assert closed * NANO * (1 - 1e-9) <= metric_rho_nano(nano, delta, 1) <= rho_nano_of(nano, delta)

    check()


def test_what_the_process_sets_for_decimals_changes_nothing():
    """Results are rounded by our own contexts: no operator rounds to the caller's digits."""
    asked = [(metric_epsilon_nano, 1463324569, 1e-6, 1), (metric_rho_nano, 10 * NANO, 1e-6, 1000)]
    asked.append((conversion.delta_of, 1463324569, 9876543210))
    expected = [function(*given) for function, *given in asked]
    with localcontext() as context:
        context.prec = 5
        assert [function(*given) for function, *given in asked] == expected


def test_more_is_added_than_rounding_can_take(monkeypatch):
    """An epsilon and a delta hold a margin, which must not be rounded away itself."""
    monkeypatch.setattr(conversion, "_SHOWN", conversion._DIGITS)
    asked = [(filters._metric_epsilon, 1463324569, 1e-6, 1), (conversion.delta_of, 1463324569, 9876543210)]
    with_margin = [function(*given) for function, *given in asked]
    for module in (filters, conversion):
        monkeypatch.setattr(module, "_ERROR", Decimal(0))
    assert all(function(*given) < more for (function, *given), more in zip(asked, with_margin, strict=True))


def test_distances_scale():
    """A metre or a thousandth of a kilometre: rho is per unit squared."""
    by_metre, by_km = (
        metric_epsilon_nano(10**6, 1e-6, Decimal("0.5")),
        metric_epsilon_nano(10**12, 1e-6, Decimal("0.0005")),
    )
    assert abs(1000 * by_metre - by_km) <= 1000


@pytest.mark.parametrize(
    ("delta", "reach", "rho_nano"), [(0.0, 1, 5), (1.0, 1, 5), (1e-6, 0, 5), (1e-6, Decimal("inf"), 5), (1e-6, 1, -1)]
)
def test_what_is_no_promise_is_refused(delta, reach, rho_nano):
    with pytest.raises(ValueError, match="expected 0 < delta < 1"):
        metric_epsilon_nano(rho_nano, delta, reach)


FILTERS = [
    Filter.pure(NANO),
    Filter.concentrated(NANO // 2),
    Filter.approximate(NANO, 1e-6),
    Filter.metric(NANO, 1e-6, 3),
]


@given(st.data(), st.sampled_from(FILTERS))
@settings(max_examples=100, deadline=None)
def test_whoever_chooses_charges_by_all_that_happened_never_gets_a_ledger_above_the_limit(data, budget):
    """The ledger agrees with the filter charge by charge; what is refused closes no account."""
    ledger, charged = MemoryLedger(), 0
    for number in range(data.draw(st.integers(1, 12))):
        left = budget.left_nano(charged)
        charge = data.draw(st.one_of(st.integers(1, 2 * budget.limit_nano), st.sampled_from([left, left + 1]))) or 1
        (verdict,) = ledger.admit("lifetime", budget.limit_nano, [b"plate"], [ask(f"hat {number}", [charge])])
        assert bool(verdict.charged[0]) is budget.admits(charged, charge)
        charged += int(verdict.charged[0])
        assert charged <= budget.limit_nano and ledger.charged_by_period(b"plate") == (
            {"lifetime": charged} if charged else {}
        )
    refused, left = budget.limit_nano - charged + 1, budget.left_nano(charged)
    (verdict,) = ledger.admit("lifetime", budget.limit_nano, [b"plate"], [ask("too much", [refused])])
    assert not verdict.charged[0]
    if left:
        (verdict,) = ledger.admit("lifetime", budget.limit_nano, [b"plate"], [ask("what is left", [left])])
        assert verdict.charged[0] == left
