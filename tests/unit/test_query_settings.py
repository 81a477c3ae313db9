"""Standing queries in the configuration: what a stranger gets wrong is named, with the rule and the
query."""

from fractions import Fraction
from math import ceil

import pytest

from udp_stream.settings import load

BUDGET = "[queries]\nrho = 100.0\ncenter = [-97.74, 30.27]\n"
SHARED = "[budget]\naccounting = 'pure'\n[queries]\nshare = 0.2\nunit_m = 500\ncenter = [-97.74, 30.27]\n"
RANGE = '[[query]]\nname = "north"\nkind = "range"\nevery = "15m"\nbox = [-97.76, 30.28, -97.72, 30.31]\n'
NEAREST = (
    '[[query]]\nname = "stop"\nkind = "nearest"\nevery = "1h"\nplace = [-97.74, 30.27]\nk = 3\n'
)
DENSITY = '[[query]]\nname = "square"\nkind = "density"\nevery = "30m"\nplace = [-97.74, 30.27]\n'


def loaded(tmp_path, text, flags=(), environment=None):
    path = tmp_path / "city.toml"
    path.write_text(text)
    return load(path, flags, environment or {})


def test_three_queries_share_the_budget_of_a_period_evenly(tmp_path):
    settings = loaded(tmp_path, BUDGET + RANGE + NEAREST + DENSITY)
    queries = settings.standing_queries
    assert [(query.name, query.kind, query.privatisation) for query in queries] == [
        ("north", "range", "distance"), ("stop", "nearest", "distance"), ("square", "density", "point"),
    ]  # fmt: skip
    most = sum(query.budget_nano * (86_400 // query.every_s) for query in queries)
    assert 100 * 10**9 - 200 < most <= 100 * 10**9
    assert settings.position_periods.promise == "rho 100 per square km, per 1d"


def test_queries_leave_the_policy_of_speeds_as_it_is(tmp_path):
    with_queries = loaded(tmp_path, BUDGET + RANGE).policy
    assert with_queries.fingerprint() == load(None, (), {}).policy.fingerprint()


def test_the_plane_is_around_the_box_of_pings_unless_told(tmp_path):
    text = "[queries]\nrho = 1.0\n[pings]\nbox = [-98.0, 30.0, -97.0, 31.0]\n" + RANGE
    assert loaded(tmp_path, text).standing_queries[0].center == (-97.5, 30.5)


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ("accounting = 'pure'", "epsilon 4 per km"),
        ('accounting = "zcdp"\nrho = 1.5', "rho 1.2 per square km"),
        ('accounting = "approximate"', "rho 1.2314230"),
    ],
)
def test_one_budget_is_cut_into_shares_whose_charges_never_sum_to_more(tmp_path, budget, said):
    """Theorem 5.1: what positions may cost in all, by their unit of distance, and what speeds may,
    are the budget."""
    settings = loaded(tmp_path, SHARED.replace("accounting = 'pure'", budget) + RANGE)
    alone, policy, periods = settings.budget.nano, settings.policy, settings.position_periods
    assert periods.promise.startswith(said) and periods.measure == policy.measure
    positions = ceil(periods.budget_nano * Fraction(1, 2) ** (1 if policy.measure == "pure" else 2))
    assert alone * 0.2 - 1 <= positions <= alone * 0.2
    assert alone - 1 <= policy.budget_nano + positions <= alone
    assert all(
        query.period_budget_nano == periods.budget_nano for query in settings.standing_queries
    )
    assert {(one.every_s, one.age_s) for one in settings.standing_queries} == {(900, 600)}
