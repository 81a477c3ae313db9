"""Privacy filters: a ledger keeps a sum of charges within its limit, whoever chooses them; and the
limits' margins."""

import math
from decimal import Decimal, localcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.checks import ask
from udp_stream.base.units import NANO
from udp_stream.ledger import filters
from udp_stream.ledger.filters import delta_of, epsilon_of, epsilon_within, rho_nano_of
from udp_stream.ledgers.sqlite import MemoryLedger


def test_what_the_process_sets_for_decimals_changes_nothing():
    """Results are rounded by our own contexts: no operator rounds to the caller's digits."""
    asked = [(delta_of, 1463324569, 9876543210), (rho_nano_of, 10 * NANO, 1e-6)]
    expected = [function(*given) for function, *given in asked]
    with localcontext() as context:
        context.prec = 5
        assert [function(*given) for function, *given in asked] == expected


def test_more_is_added_than_rounding_can_take(limits):
    limits(filters, _SHOWN=filters._DIGITS)
    with_margin = delta_of(1463324569, 9876543210)
    limits(filters, _ERROR=Decimal(0))
    assert delta_of(1463324569, 9876543210) < with_margin


@pytest.mark.parametrize("limit", [NANO, NANO // 2, rho_nano_of(NANO, 1e-6)])
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_whoever_chooses_charges_by_all_that_happened_never_gets_a_ledger_above_the_limit(
    data, limit
):
    """Charge by charge the sum says what is admitted; what is refused closes no account."""
    ledger, charged = MemoryLedger(), 0
    for number in range(data.draw(st.integers(1, 12))):
        left = limit - charged
        charge = (
            data.draw(st.one_of(st.integers(1, 2 * limit), st.sampled_from([left, left + 1]))) or 1
        )
        (verdict,) = ledger.admit("lifetime", limit, [b"plate"], [ask(f"hat {number}", [charge])])
        assert bool(verdict.charged[0]) is (charged + charge <= limit)
        charged += int(verdict.charged[0])
        assert charged <= limit and ledger.charged_by_period(b"plate") == (
            {"lifetime": charged} if charged else {}
        )
    (verdict,) = ledger.admit(
        "lifetime", limit, [b"plate"], [ask("too much", [limit - charged + 1])]
    )
    assert not verdict.charged[0]
    if charged < limit:
        (verdict,) = ledger.admit(
            "lifetime", limit, [b"plate"], [ask("what is left", [limit - charged])]
        )
        assert verdict.charged[0] == limit - charged


@pytest.mark.parametrize(
    ("rho", "delta", "most"),
    [(1, 1e-6, 1), (0.01, 1e-6, 1), (40, 1e-9, 0.3), (2, 1e-3, 25), (0.5, 0.4, 1)],
)
def test_equation_10_is_the_least_over_its_s_and_lies_between_the_exact_conversion_and_corollary_4_2(
    rho, delta, most
):
    def at(s):
        return max(
            2 * s / (s - 1) * math.sqrt(rho * math.log(2 / ((s + 1) * delta))), s * most * rho
        )

    found = epsilon_within(round(rho * NANO), delta, most)
    limit = min(2 / delta - 1, 1e7)
    tried = [at(1 + (limit - 1) * (i / 40_000) ** 6) for i in range(400, 40_000)]
    assert found <= min(tried) * (1 + 1e-9) + 1e-6 and found >= min(tried) * (1 - 1e-3)
    assert (
        found <= (rho * most + 2 * math.sqrt(rho * math.log(1 / delta))) * (1 + 1e-6) or delta > 0.1
    )
    # What inputs d apart are told apart by, per unit of distance: nowhere is more implied than what
    # is exact.
    exact = max(
        epsilon_of(round(rho * d * d * NANO), delta) / d
        for d in (most * i / 50 for i in range(1, 51))
    )
    assert exact <= found


def test_figures_of_equation_10():
    assert round(epsilon_within(NANO, 1e-6, 1.0), 3) == 8.017 and epsilon_within(0, 1e-6, 1.0) == 0
    with pytest.raises(ValueError, match="finite"):
        epsilon_within(NANO, 1e-6, math.inf)
