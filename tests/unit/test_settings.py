"""Configuration: file, environment, flags; errors that name the key, the value and the rule."""

import re

import pytest

from udp_stream.base.errors import ConfigError
from udp_stream.settings import Settings, load


def test_a_flag_or_variable_of_several_lines_is_not_read_by_its_first():
    """Two settings in one flag were the first of them alone."""
    with pytest.raises(ConfigError, match=r"budget\.epsilon:"):
        load(None, ("budget.epsilon=5\nbudget.rho=3",), {})
    assert load(None, (), {"UDP_STREAM_BUDGET__EPSILON": "5\n"}).budget.epsilon == 5
    assert load(None, ("release.bins=[\n0,\n9, 65]",), {}).release.bins == (0, 9, 65)


def test_a_day_is_promised_with_a_delta_unless_told_otherwise():
    budget, policy = Settings().budget, Settings().policy
    assert (budget.promised, budget.delta, policy.measure) == (10.0, 1e-6, "zcdp")
    assert policy.budget_nano == 1_539_278_763  # the largest rho that implies (10, 1e-6)


def test_budgets_round_down_and_charges_up():
    policy = load(
        None,
        [
            "budget.accounting=pure",
            "budget.epsilon=1.0000000019",
            "release.mean_epsilon=0.1000000001",
        ],
        {},
    ).policy
    assert (policy.budget_nano, policy.mean_nano) == (1_000_000_001, 100_000_001)


def test_the_spelling_of_a_period_makes_no_new_budget():
    names = {
        load(None, [f"budget.period={text}"], {}).calendar.slot_in_period(0).period
        for text in ("1d", "24h", "1440m")
    }
    assert len(names) == 1


def test_periods_are_cut_on_the_local_calendar():
    calendar = load(None, ["hat.timezone=America/Chicago", "hat.slot=1h"], {}).calendar
    noon = (
        1_478_455_200_000  # 2016-11-06T12:00-06:00, after the night on which the clock was set back
    )
    moment = calendar.slot_in_period(noon)
    assert moment.period == "1d from 2016-11-06T00:00:00-05:00 in rho"
    assert (moment.slots_gone, moment.slots_left) == (13, 11)


@pytest.mark.parametrize(
    ("accounting", "key", "epsilon"),
    [("pure", "epsilon", 1.23456444), ("zcdp", "rho", 1.2345678), ("zcdp", "rho", 1.76)],
)
def test_the_least_budget_that_a_refusal_names_is_taken(accounting, key, epsilon):
    """In six digits it could be less than the charge, and the budget more than it is."""
    flags = (
        f"budget.accounting={accounting}",
        f"release.mean_epsilon={epsilon}",
        "release.cdf_epsilon=0",
    )
    with pytest.raises(ConfigError, match="at least the charge of one HAT") as caught:
        load(None, (*flags, f"budget.{key}=0.12345678"), {})
    least = re.search(r"\((?:rho )?([0-9.]+)\), got (?:rho )?0.12345678$", str(caught.value))[1]
    assert load(None, (*flags, f"budget.{key}={least}"), {}).policy.budget_nano >= float(
        least
    ) * 1e9 * (1 - 1e-12)
