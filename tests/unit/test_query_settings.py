"""Standing queries in the configuration: what a stranger gets wrong is named, with the rule and the
query."""

from fractions import Fraction
from math import ceil

import pytest

from udp_stream.errors import ConfigError
from udp_stream.settings import load

BUDGET = "[queries]\nrho = 100.0\ncenter = [-97.74, 30.27]\n"
THRESHOLD = """[[query]]
name = "full"
kind = "threshold"
every = "15m"
share = 0.2
box = [-97.76, 30.28, -97.72, 30.31]
"""
SHARED = "[budget]\naccounting = 'pure'\n[queries]\nshare = 0.2\nunit_m = 500\ncenter = [-97.74, 30.27]\n"
BOX = "box = [-97.76, 30.28, -97.72, 30.31]"
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


def test_a_change_of_anything_that_is_asked_changes_the_fingerprint(tmp_path):
    texts = [BUDGET + RANGE, BUDGET.replace("100", "101") + RANGE, BUDGET + "age = '9m'\n" + RANGE,
             BUDGET + RANGE.replace("30.31", "30.32")]  # fmt: skip
    found = {loaded(tmp_path, text).standing_queries[0].fingerprint() for text in texts}
    assert len(found) == len(texts)


def test_the_plane_is_around_the_box_of_pings_unless_told(tmp_path):
    text = "[queries]\nrho = 1.0\n[pings]\nbox = [-98.0, 30.0, -97.0, 31.0]\n" + RANGE
    assert loaded(tmp_path, text).standing_queries[0].center == (-97.5, 30.5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (RANGE, "expected a budget"),
        (BUDGET + "epsilon = 1.0\n" + RANGE, "got rho and epsilon"),
        ("[queries]\nrho = 1.0\n" + RANGE, r"queries\.center:"),
        (BUDGET + "radius = 3\n" + RANGE, r"unknown key queries\.radius"),
        (BUDGET + RANGE + "poligon = []\n", r"key query\.poligon of north"),
        (BUDGET + RANGE + RANGE, "query.name:"),
        (BUDGET + RANGE.replace("north", "North Gate"), "query.name:"),
        (BUDGET + RANGE.replace("range", "count"),
         r"query\.kind of north"),
        (BUDGET + RANGE.replace("15m", "7m"), r"query\.every of north"),
        (BUDGET + "period = '10m'\n" + RANGE, r"query\.every of north"),
        (BUDGET + "period = 'rolling 1d'\n" + RANGE,
         r"queries\.period"),
        (BUDGET + "age = '0s'\n" + RANGE, r"queries\.age:"),
        (BUDGET + RANGE + "place = [0, 0]\n", r"query\.place of north"),
        (BUDGET + RANGE.replace("box", "#"), r"query\.box of north"),
        (BUDGET + RANGE.replace("-97.76", "-97.72"), r"query\.box of north"),
        (BUDGET + NEAREST.replace("[-97.74, 30.27]", "[30.27, -77.74]"),
         r"query\.place of stop"),
        (BUDGET + DENSITY.replace("30.27", "39.27"), r"query\.place of square"),
        (BUDGET + RANGE.replace(BOX, "box = [-108, 30.28, -97.72, 30.31]"),
         r"query\.box of north"),
        (BUDGET + RANGE.replace(BOX, "cells = ['8742d98b6ffffff']"),
         r"query\.cells of north"),
        (BUDGET + RANGE.replace(BOX,
                                "polygon = [[-97.74, 30.27], [-97.74, 30.28], [-97.74, 30.29]]"),
         r"query\.polygon of north"),
        (BUDGET + RANGE.replace(BOX, "cells = ['8742d98b6ffffff', '8642d98b7ffffff']"),
         r"query\.cells of north"),
        (BUDGET + "share = 0.2\nunit_m = 500\n" + RANGE, "expected a budget"),
        (SHARED.replace("unit_m", "# unit_m") + RANGE, "queries.unit_m:"),
        (BUDGET + "unit_m = 500\n" + RANGE, "queries.unit_m:.*500"),
        (
            SHARED.replace("500", "0.001") + RANGE,
            "queries.unit_m:.*0.00201",
        ),
        (
            SHARED.replace("500", "0.1").replace("pure", "approximate") + RANGE,
            "queries.unit_m:.*0.558",
        ),
        (SHARED + "period = '7d'\n" + RANGE, "queries.period:"),
        (SHARED.replace("pure'", "pure'\nperiod = 'rolling 1d'") + RANGE, "queries.period:"),
        (SHARED + RANGE + "budget = 5\n", r"query\.budget of north"),
        (BUDGET + NEAREST.replace("k = 3", "k = 0"), r"query\.k of stop"),
        (BUDGET + RANGE + "budget = 101\n", r"query\.budget of north"),
        (BUDGET + "period = 'lifetime'\n" + RANGE, r"query\.budget of north"),
        (BUDGET.replace("100.0", "1e-4") + RANGE,
         r"query\.budget of north"),
        (BUDGET + RANGE + "budget = 1e-6\n",
         "enough for 64 rounds"),
        (SHARED.replace("0.2", "0.0002") + RANGE, r"raise queries\.share"),
        (BUDGET + THRESHOLD.replace("share", "#"),
         r"query\.share of full"),
        (BUDGET + THRESHOLD.replace("0.2", "20"), r"query\.share of full"),
        (BUDGET + RANGE + "share = 0.2\n", r"query\.share of north"),
        (BUDGET + THRESHOLD + "k = 3\n", r"query\.k of full"),
        (BUDGET + THRESHOLD.replace("threshold", "treshold"),
         r"query\.kind of full"),
        (BUDGET + RANGE.replace("[[query]]", "[query]"), r"expected tables \[\[query\]\]"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_rule(tmp_path, text, said):
    with pytest.raises(ConfigError, match=said):
        loaded(tmp_path, text)


def test_budgets_of_queries_can_be_set_beside_the_file(tmp_path):
    settings = loaded(
        tmp_path, BUDGET + RANGE, ("queries.rho=50",), {"UDP_STREAM_QUERIES__PERIOD": "7d"}
    )
    assert settings.position_periods.promise == "rho 50 per square km, per 7d"


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
