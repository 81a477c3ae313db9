"""Conversions between measures never round in our favour, and an independent accountant agrees with
them."""

import math
from bisect import bisect_left
from decimal import Decimal, localcontext

import dp_accounting
import numpy as np
import pytest
from dp_accounting import rdp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tests.forms import long_but
from udp_stream.base.units import NANO
from udp_stream.ledger.filters import (
    NANO_MAX,
    delta_of,
    epsilon_of,
    epsilon_of_both,
    rho_nano_of,
    rho_nano_of_pure,
)

PROMISES = [(0.1, 1e-5), (1.0, 1e-6), (2.0, 1e-9), (10.0, 1e-6), (30.0, 1e-4), (10.0, 0.01)]
SLOW = (30.0, 1e-4), (10.0, 0.01)
"""The accountant takes longest with these."""

ORDERS = list(1 + np.geomspace(1e-3, 1e5, 10_000))


def epsilon_nano_of(rho_nano, delta):
    """The least epsilon, in nano-units, that rho-zCDP implies together with this delta."""
    allowed = Decimal(str(delta))
    amounts = range(NANO_MAX + 1)
    return bisect_left(amounts, True, key=lambda nano: delta_of(rho_nano, nano) <= allowed)


def bound(alpha, rho, epsilon):
    """The conversion as it is printed, to 40 digits, at one alpha."""
    with localcontext() as context:
        context.prec = 60
        a = Decimal(alpha)
        exponent = (a - 1) * (a * Decimal(rho) - Decimal(epsilon))
        return min(exponent, Decimal(10**5)).exp() / (a - 1) * ((1 - 1 / a).ln() * a).exp()


def test_the_median_days_promise_allows_what_was_measured_with():
    assert rho_nano_of(10 * NANO, 1e-6) / NANO == pytest.approx(1.539, abs=5e-4)
    assert (
        rho_nano_of(10 * NANO, "1e-6")
        == rho_nano_of(10 * NANO, Decimal("0.000001"))
        == rho_nano_of(10 * NANO, 1e-6)
    )


@pytest.mark.parametrize(("epsilon", "delta"), PROMISES)
def test_rho_is_the_largest_that_keeps_the_promise(epsilon, delta):
    """Some alpha proves the promise; a nano-rho more, and none on a fine grid around the best does."""
    nano = round(epsilon * NANO)
    rho_nano = rho_nano_of(nano, delta)
    best = (nano / rho_nano + 1) / 2
    alphas = [1 + (best - 1) * factor for factor in np.geomspace(0.8, 1.25, 4001)]
    log_deltas = [_log_bound(alpha, rho_nano / NANO, epsilon) for alpha in alphas]
    at = alphas[int(np.argmin(log_deltas))]
    finer = [at * factor for factor in np.linspace(0.9999, 1.0001, 201)]
    epsilon, delta = Decimal(str(epsilon)), Decimal(str(delta))
    assert min(bound(alpha, Decimal(rho_nano) / NANO, epsilon) for alpha in finer) <= delta
    assert min(bound(alpha, Decimal(rho_nano + 1) / NANO, epsilon) for alpha in finer) > delta


def _log_bound(alpha, rho, epsilon):
    return (
        (alpha - 1) * (alpha * rho - epsilon) - math.log(alpha - 1) + alpha * math.log1p(-1 / alpha)
    )


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 50 * NANO), st.integers(0, 50 * NANO), st.floats(1.0001, 1e4))
def test_no_alpha_gives_a_smaller_delta_than_was_found(rho_nano, epsilon_nano, alpha):
    """And the one found holds: it is the printed bound at some alpha, rounded up."""
    found = delta_of(rho_nano, epsilon_nano)
    rho, epsilon = Decimal(rho_nano) / NANO, Decimal(epsilon_nano) / NANO
    assert 0 < found <= 1
    floor = Decimal("1e-434")
    assert found <= max(floor, bound(alpha, rho, epsilon)) * (1 + Decimal("1e-15"))


@pytest.mark.parametrize(("epsilon", "delta"), PROMISES)
def test_delta_is_the_least_of_all_alphas_rounded_up(epsilon, delta):
    rho_nano = rho_nano_of(round(epsilon * NANO), delta)
    rho, epsilon = Decimal(rho_nano) / NANO, Decimal(str(epsilon))
    low, high = Decimal("1e-9"), Decimal(10**9)  # around alpha - 1
    with localcontext() as context:
        context.prec = 60
        for _ in range(160):
            beyond = (low * high).sqrt()
            slope = (1 + 2 * beyond) * rho - epsilon - (1 + 1 / beyond).ln()
            low, high = (beyond, high) if slope < 0 else (low, beyond)
        least = bound(1 + low, rho, epsilon)
        found = delta_of(rho_nano, round(epsilon * NANO))
        assert least <= found <= least * (1 + Decimal("1e-15"))


@pytest.mark.parametrize("examples", long_but([15], [15, 60]))
def test_there_and_back_never_gains(examples):
    @settings(max_examples=examples, deadline=None)
    @given(st.integers(1, 40 * NANO), st.sampled_from([1e-12, 1e-6, 1e-3, 0.3]))
    def check(nano, delta):
        rho_nano = rho_nano_of(nano, delta)
        assert delta_of(rho_nano, nano) <= Decimal(str(delta)) < delta_of(rho_nano + 1, nano)
        if rho_nano:
            assert epsilon_nano_of(rho_nano, delta) <= nano < epsilon_nano_of(rho_nano + 1, delta)
        epsilon_nano = epsilon_nano_of(nano, delta)
        assert delta_of(nano, epsilon_nano) <= Decimal(str(delta))
        assert epsilon_nano == 0 or delta_of(nano, epsilon_nano - 1) > Decimal(str(delta))

    check()


@pytest.mark.parametrize(("epsilon", "delta"), PROMISES)
def test_an_independent_accountant_agrees(epsilon, delta):
    """Its Renyi orders are a grid, so it may be a little above ours, never below."""
    rho_nano = rho_nano_of(round(epsilon * NANO), delta)
    for event in (dp_accounting.ZCDpEvent(rho_nano / NANO), _gaussian(rho_nano)):
        accountant = rdp.RdpAccountant(orders=ORDERS)
        accountant.compose(event)
        theirs, ours = accountant.get_epsilon(delta), epsilon_nano_of(rho_nano, delta) / NANO
        assert ours * (1 - 1e-8) - 1e-8 <= theirs <= ours * (1 + 1e-5)


def _gaussian(rho_nano):
    return dp_accounting.GaussianDpEvent(math.sqrt(NANO / (2 * rho_nano)))


@pytest.mark.parametrize(
    ("epsilon", "delta", "parts"),
    [
        *(
            pytest.param(*one, 24, marks=pytest.mark.long if one in SLOW else ())
            for one in PROMISES
        ),
        *(pytest.param(*one, 1, marks=pytest.mark.soak) for one in PROMISES),
    ],
)
def test_composed_gaussian_mechanisms_are_within_what_their_rhos_promise(epsilon, delta, parts):
    """Exactly (Balle and Wang, arXiv 1805.06530, Theorem 8), and by the accountant's privacy loss
    distributions."""
    whole = rho_nano_of(round(epsilon * NANO), delta)
    rho_nano = whole // parts
    mu = math.sqrt(2 * rho_nano * parts / NANO)
    exact = stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(
        -mu / 2 - epsilon / mu
    )
    assert exact <= delta
    assert (
        0.05 * delta < exact
    )  # nor far below: the conversion loses less than it did by the closed form
    accountant = dp_accounting.pld.PLDAccountant()
    accountant.compose(_gaussian(rho_nano), parts)
    assert accountant.get_delta(epsilon) <= delta


@pytest.mark.parametrize("examples", long_but([15], [15, 60]))
def test_what_records_say_is_never_less_than_the_exact_epsilon_and_at_most_two_millionths_more(
    examples,
):
    @given(st.integers(1, 100 * NANO), st.floats(1e-12, 1e-3))
    @settings(max_examples=examples, deadline=None)
    def check(rho_nano, delta):
        exact = epsilon_nano_of(rho_nano, delta) / NANO
        assert exact <= epsilon_of(rho_nano, delta) <= exact + 2e-6

    check()


def test_a_pure_epsilon_costs_half_its_square_rounded_up():
    assert [rho_nano_of_pure(nano) for nano in (0, 1, 10**5, 3 * NANO, 44_722)] == [
        0,
        1,
        5,
        4_500_000_000,
        2,
    ]
    assert rho_nano_of_pure(44_721) == 1  # 0.99998 of a nano-rho


def test_nothing_lost_is_delta_zero_and_everything_lost_is_one():
    assert delta_of(0, 0) == 0 and delta_of(NANO_MAX, 0) == 1
    assert delta_of(1, NANO_MAX) > 0
    assert rho_nano_of(0, 1e-6) == 0
    assert epsilon_nano_of(0, 1e-6) == 0 and epsilon_nano_of(1, 0.5) == 0


@pytest.mark.parametrize("delta", [0, 1, -0.1, 1.5, "nan"])
def test_a_delta_that_is_none_is_refused(delta):
    with pytest.raises(ValueError, match="expected 0 < delta < 1"):
        rho_nano_of(NANO, delta)


def test_amounts_that_are_none_are_refused():
    for call in (
        lambda: delta_of(-1, 0),
        lambda: delta_of(0, NANO_MAX + 1),
        lambda: rho_nano_of_pure(-1),
    ):
        with pytest.raises(ValueError, match="expected 0 <= "):
            call()


@pytest.mark.parametrize("examples", long_but([15], [15, 60]))
def test_of_charges_of_both_kinds_the_lesser_of_two_epsilons_that_hold_is_stated(examples):
    @given(
        st.integers(1, 20 * NANO), st.integers(1, 20 * NANO), st.sampled_from([1e-9, 1e-6, 1e-3])
    )
    @settings(max_examples=examples, deadline=None)
    def check(epsilon_nano, rho_nano, delta):
        stated = epsilon_of_both(epsilon_nano, rho_nano, delta)
        in_rho = rho_nano + rho_nano_of_pure(epsilon_nano)
        beside, together = (
            epsilon_nano + epsilon_nano_of(rho_nano, delta),
            epsilon_nano_of(in_rho, delta),
        )
        assert min(beside, together) / NANO <= stated <= min(beside, together) / NANO + 3e-6

    check()


def test_one_kind_alone_is_what_it_was():
    assert epsilon_of_both(3 * NANO, 0, 1e-6) == 3.0 and epsilon_of_both(
        0, NANO, 1e-6
    ) == epsilon_of(NANO, 1e-6)
    assert epsilon_of_both(10**15, NANO, 1e-6) == pytest.approx(10**6 + epsilon_of(NANO, 1e-6)), (
        "too large"
    )


def test_both_kinds_together_by_dp_accounting():
    accountant = rdp.RdpAccountant()
    accountant.compose(dp_accounting.LaplaceDpEvent(1 / 0.1), 3)
    accountant.compose(dp_accounting.GaussianDpEvent(1 / math.sqrt(2 * 0.5)))
    assert accountant.get_epsilon(1e-6) <= epsilon_of_both(3 * NANO // 10, NANO // 2, 1e-6) + 0.01
