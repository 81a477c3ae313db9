"""Privacy filters: a ledger keeps a sum of charges within its limit, whoever chooses them; and the limits' margins."""

from decimal import Decimal, localcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.checks import ask
from udp_stream.ledger import filters
from udp_stream.ledger.filters import delta_of, rho_nano_of
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.units import NANO


def test_what_the_process_sets_for_decimals_changes_nothing():
    """Results are rounded by our own contexts: no operator rounds to the caller's digits."""
    asked = [(delta_of, 1463324569, 9876543210), (rho_nano_of, 10 * NANO, 1e-6)]
    expected = [function(*given) for function, *given in asked]
    with localcontext() as context:
        context.prec = 5
        assert [function(*given) for function, *given in asked] == expected


def test_more_is_added_than_rounding_can_take(monkeypatch):
    monkeypatch.setattr(filters, "_SHOWN", filters._DIGITS)
    with_margin = delta_of(1463324569, 9876543210)
    monkeypatch.setattr(filters, "_ERROR", Decimal(0))
    assert delta_of(1463324569, 9876543210) < with_margin


@pytest.mark.parametrize("limit", [NANO, NANO // 2, rho_nano_of(NANO, 1e-6)])
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_whoever_chooses_charges_by_all_that_happened_never_gets_a_ledger_above_the_limit(data, limit):
    """Charge by charge the sum says what is admitted; what is refused closes no account."""
    ledger, charged = MemoryLedger(), 0
    for number in range(data.draw(st.integers(1, 12))):
        left = limit - charged
        charge = data.draw(st.one_of(st.integers(1, 2 * limit), st.sampled_from([left, left + 1]))) or 1
        (verdict,) = ledger.admit("lifetime", limit, [b"plate"], [ask(f"hat {number}", [charge])])
        assert bool(verdict.charged[0]) is (charged + charge <= limit)
        charged += int(verdict.charged[0])
        assert charged <= limit and ledger.charged_by_period(b"plate") == ({"lifetime": charged} if charged else {})
    (verdict,) = ledger.admit("lifetime", limit, [b"plate"], [ask("too much", [limit - charged + 1])])
    assert not verdict.charged[0]
    if charged < limit:
        (verdict,) = ledger.admit("lifetime", limit, [b"plate"], [ask("what is left", [limit - charged])])
        assert verdict.charged[0] == limit - charged
