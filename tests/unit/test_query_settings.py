"""Standing queries in the configuration: what a stranger gets wrong is named, with the rule and the query."""

from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest

from udp_stream.adapters.ledgers.statement import statement
from udp_stream.adapters.settings import load
from udp_stream.cli.charged_plate import lines_of_plate
from udp_stream.cli.plan_of_queries import facts_of_queries, print_queries
from udp_stream.errors import ConfigError
from udp_stream.ledger.components import SharedBudget
from udp_stream.ledger.filters import Filter, metric_epsilon_nano
from udp_stream.ledger.memory import MemoryLedger
from udp_stream.planning.periods import amount_text
from udp_stream.queries.elimination import Everyone
from udp_stream.queries.plane import QUANTA_PER_METRE
from udp_stream.release.query_road import answer_moment
from udp_stream.testing import a_moment, a_query_context, seeded_bits
from udp_stream.units import NANO

FINGERPRINTS = ["46e5163a189e86d7", "1d74f826da118ed8", "4430f1e15e4bbe18", "d9e8f7db388dac14"]
BUDGET = "[queries]\nrho = 100.0\ncenter = [-97.74, 30.27]\n"
THRESHOLD = """[[query]]
name = "full"
kind = "threshold"
every = "15m"
share = 0.2
box = [-97.76, 30.28, -97.72, 30.31]
"""
SHARED = "[queries]\nshare = 0.2\nunit_m = 500\ncenter = [-97.74, 30.27]\n"
BOX = "box = [-97.76, 30.28, -97.72, 30.31]"
RANGE = '[[query]]\nname = "north"\nkind = "range"\nevery = "15m"\nbox = [-97.76, 30.28, -97.72, 30.31]\n'
NEAREST = '[[query]]\nname = "stop"\nkind = "nearest"\nevery = "1h"\nplace = [-97.74, 30.27]\nk = 3\n'
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
    texts = [BUDGET + RANGE, BUDGET + RANGE + "beta = 0.1\n", BUDGET + RANGE + "rounds = 8\n",
             BUDGET.replace("100", "101") + RANGE, BUDGET + "age = '9m'\n" + RANGE,
             BUDGET + RANGE.replace("30.31", "30.32")]  # fmt: skip
    found = {loaded(tmp_path, text).standing_queries[0].fingerprint() for text in texts}
    assert len(found) == len(texts)


def test_fingerprints_are_those_of_before_for_what_is_not_set(tmp_path):
    """A moment that an earlier version began is gone on with: values in force are part of what it remembers."""
    queries = loaded(tmp_path, BUDGET + RANGE + NEAREST.replace("k = 3\n", "") + DENSITY + THRESHOLD).standing_queries
    assert [(one.k, one.bandwidth_m) for one in queries] == [(1, 500.0)] * 4 and queries[3].edge_m == 500.0
    found = [one.fingerprint() for one in queries]
    assert found == FINGERPRINTS


def test_the_plane_is_around_the_box_of_pings_unless_told(tmp_path):
    text = "[queries]\nrho = 1.0\n[pings]\nbox = [-98.0, 30.0, -97.0, 31.0]\n" + RANGE
    assert loaded(tmp_path, text).standing_queries[0].center == (-97.5, 30.5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (RANGE, "queries: expected a budget for positions: one of .*rho.*epsilon.*share.*, got none"),
        (BUDGET + "epsilon = 1.0\n" + RANGE, "queries: expected .* got rho and epsilon"),
        ("[queries]\nrho = 1.0\n" + RANGE, r"queries\.center: expected \[longitude, latitude\].* got neither"),
        (BUDGET.replace("30.27", "97") + RANGE, r"queries\.center: expected .* got \[-97.74, 97"),
        (BUDGET + "radius = 3\n" + RANGE, r"unknown key queries\.radius; did you mean"),
        (BUDGET + RANGE + "poligon = []\n", r"unknown key query\.poligon of north; did you mean query\.polygon\?"),
        (BUDGET + RANGE + RANGE, "query.name: expected another name for each query, got 'north' twice"),
        (BUDGET + RANGE.replace("north", "North Gate"), "query.name: expected lower-case letters, digits and -"),
        (BUDGET + RANGE.replace("north", "a:b"), "query.name: expected lower-case letters, digits and -"),
        (BUDGET + RANGE.replace('name = "north"\n', ""), "query number 1: .*missing required field `name`"),
        (BUDGET + RANGE.replace("range", "count"),
         "query.kind of north: expected one of range, density, nearest, threshold, got"),
        (BUDGET + RANGE.replace("15m", "7m"), "query.every of north: expected .* divides a day, got '7m'"),
        (BUDGET + RANGE.replace("15m", "soon"), "query.every of north: expected a number and"),
        (BUDGET + "period = '10m'\n" + RANGE, r"query.every of north: expected .* divides queries\.period \(10m\)"),
        (BUDGET + "period = 'x'\n" + RANGE, r"queries\.period: expected a number and"),
        (BUDGET + "period = 'rolling 1d'\n" + RANGE,
         r"^queries\.period: expected a duration or lifetime, as only budget\.period may be rolling, got 'roll"),
        (BUDGET + "age = '0s'\n" + RANGE, r"queries\.age: expected 1s to 31d, got 0s"),
        (BUDGET + RANGE + "place = [0, 0]\n", "query.place of north: expected none for a range"),
        (BUDGET + RANGE + "cells = ['8742d98b6ffffff']\n", "query.box of north: expected one of box, polygon"),
        (BUDGET + RANGE.replace("box", "#"), "query.box of north: expected one of box, polygon and cells .* got none"),
        (BUDGET + RANGE.replace("-97.76", "-97.72"), "query.box of north: expected .west, south, east, north."),
        (BUDGET + RANGE.replace(BOX, "polygon = [[-97, 30], [-97, 31]]"),
         "query.polygon of north: expected loops of at least three corners"),
        (BUDGET + NEAREST.replace("[-97.74, 30.27]", "[30.27, -77.74]"),
         r"query\.place of stop: expected places within 8 degrees of the centre .*30.27., got longitude 30.27, lat"),
        (BUDGET + DENSITY.replace("30.27", "39.27"), r"query\.place of square: expected places within 8 degrees"),
        (BUDGET + RANGE.replace(BOX, "box = [30.28, -77.76, 30.31, -77.72]"),
         r"query\.box of north: expected places within 8 degrees .*, got longitude 30"),
        (BUDGET + RANGE.replace(BOX, "box = [-108, 30.28, -97.72, 30.31]"),
         r"query\.box of north: expected places within 8 degrees .*, got longitude -108"),
        (BUDGET + RANGE.replace(BOX, "polygon = [[-97.74, 30.27], [-97.7, 30.28], [-97.74, 38.29]]"),
         r"query\.polygon of north: expected places within 8 degrees .*, latitude 38.29"),
        (BUDGET + RANGE.replace(BOX, "cells = ['8742d98b6ffffff']"),
         r"query\.cells of north: expected places within 8 degrees .*, got longitude 72"),
        (BUDGET + RANGE.replace(BOX,
                                "polygon = [[-97.74, 30.27], [-97.74, 30.28], [-97.74, 30.29]]"),
         "query.polygon of north: expected corners that enclose an area of at least 1 square metre, got"),
        (BUDGET + RANGE.replace(BOX, "cells = ['8742d98b6ffffff', 'x']"),
         "query.cells of north: expected H3 cells as 15 hexadecimal digits, got 'x'"),
        (BUDGET + RANGE.replace(BOX, "cells = []"),
         "query.cells of north: expected"),
        (BUDGET + RANGE.replace(BOX, "cells = ['8742d98b6ffffff', '8642d98b7ffffff']"),
         "query.cells of north: expected H3 cells"),
        (BUDGET + "share = 0.2\nunit_m = 500\n" + RANGE, "queries: expected a budget .*got rho and share"),
        (SHARED.replace("unit_m", "# unit_m") + RANGE, "queries.unit_m: expected how many metres .*got none"),
        (BUDGET + "unit_m = 500\n" + RANGE, "queries.unit_m: expected how many metres .*got 500"),
        (
            SHARED.replace("500", "0.001") + RANGE,
            "queries.unit_m: expected at least 0.00201: below, positions have more than 1,000,000 per km, got 0.001",
        ),
        (
            SHARED.replace("500", "0.1") + "[budget]\naccounting = 'approximate'\n" + RANGE,
            "queries.unit_m: expected at least 0.558: below, positions have more than .* per square km, got 0.1",
        ),
        (SHARED.replace("500", "100_001") + RANGE, "queries.unit_m: expected a number of at most 100000"),
        (SHARED.replace("0.2", "1.0") + RANGE, "queries.share: expected a number below 1, got 1"),
        (SHARED + "period = '7d'\n" + RANGE, r"queries.period: expected that of budget.period \(1d\).*got 7d"),
        (SHARED + "[budget]\nperiod = 'rolling 1d'\n" + RANGE, "queries.period: expected that of budget.period"),
        (SHARED + RANGE + "budget = 5\n", r"query.budget of north: expected at most the budget of a period \(4\)"),
        (BUDGET + NEAREST.replace("place", "#"), "query.place of stop: expected .longitude, latitude. for nearest"),
        (BUDGET + NEAREST.replace("30.27", "130.27"), "query.place of stop: expected .longitude, latitude. on earth"),
        (BUDGET + NEAREST.replace("k = 3", "k = 0"), "query.k of stop: expected a whole number of at least 1, got 0"),
        (BUDGET + DENSITY + "bandwidth_m = 0\n", "query.bandwidth_m of square: expected"),
        (BUDGET + RANGE + 'split = "doubling"\n', "query.rounds of north: expected at most 40 rounds"),
        (BUDGET + RANGE + "budget = 101\n", r"query.budget of north: expected at most the budget of a period \(100\)"),
        (BUDGET + "period = 'lifetime'\n" + RANGE, "query.budget of north: expected an amount .*lifetime"),
        (BUDGET.replace("100.0", "1e-8") + RANGE, "query.budget of north: expected enough .*per square km"),
        (BUDGET.replace("100.0", "1e-4") + RANGE,
         "query.budget of north: expected enough for 64 rounds, .*: raise queries.rho, ask less often, or in fewer"),
        (BUDGET + RANGE + "budget = 1e-6\n",
         r"enough for 64 rounds, got 1e-06 \(rho per square km\) for a moment: raise it, or ask in fewer rounds$"),
        (BUDGET.replace("100.0", "1e-8") + RANGE + "rounds = 1\n",
         r"enough for 1 round, got 0 \(rho per square km\) for a moment: raise queries.rho, or ask less often$"),
        (SHARED + RANGE, "expected enough for 64 rounds, got 0.0416667 .epsilon per km. for a moment: raise "
         "queries.share, lower queries.unit_m, ask less often, or in fewer rounds"),
        (BUDGET + THRESHOLD.replace("share", "#"),
         "query.share of full: expected a number above 0 and below 1 .* got none"),
        (BUDGET + THRESHOLD.replace("0.2", "0.0"), "query.share of full: expected a number above 0, got 0"),
        (BUDGET + THRESHOLD.replace("0.2", "20"), "query.share of full: expected a number below 1, got 20"),
        (BUDGET + RANGE + "share = 0.2\n", "query.share of north: expected none where kind is range, got 0.2"),
        (BUDGET + THRESHOLD + "edge_m = 0\n", "query.edge_m of full: expected a number of at least 1, got 0"),
        (BUDGET.replace("rho", "epsilon") + "reach_m = 2000\n" + RANGE + "rounds = 2\n",
         "queries.reach_m: expected none where positions are counted in epsilon, .* got 2000"),
        (SHARED + "reach_m = 2000\n" + RANGE + "rounds = 2\n", "queries.reach_m: expected none where .* in epsilon"),
        (BUDGET + "reach_m = 0\n" + RANGE, "queries.reach_m: expected a number above 0, got 0"),
        (BUDGET + "delta = 1e-6\n" + RANGE, "queries.delta: expected none without queries.reach_m"),
        (BUDGET + RANGE + "k = 3\n", "query.k of north: expected none where kind is range, got 3"),
        (BUDGET + DENSITY + "k = 1\n", "query.k of square: expected none where kind is density, got 1"),
        (BUDGET + THRESHOLD + "k = 3\n", "query.k of full: expected none where kind is threshold, got 3"),
        (BUDGET + RANGE + "bandwidth_m = 500\n", "query.bandwidth_m of north: expected none where kind is range"),
        (BUDGET + NEAREST + "bandwidth_m = 9\n", "query.bandwidth_m of stop: expected none where kind is nearest"),
        (BUDGET + THRESHOLD + "bandwidth_m = 9\n", "query.bandwidth_m of full: expected none where kind is thresh"),
        (BUDGET + RANGE + "edge_m = 200\n", "query.edge_m of north: expected none where kind is range, got 200"),
        (BUDGET + THRESHOLD + 'privatisation = "point"\n',
         "query.privatisation of full: expected auto or distance .*got point"),
        (BUDGET + THRESHOLD.replace("box", "#"),
         "query.box of full: expected one of box, polygon and cells for a threshold"),
        (BUDGET + THRESHOLD + "place = [0, 0]\n", "query.place of full: expected none for a threshold"),
        (BUDGET + THRESHOLD.replace("threshold", "treshold"),
         "query.kind of full: expected one of .*threshold, got .treshold"),
        (BUDGET.replace("100.0", "1e-4") + THRESHOLD,
         "query.budget of full: expected enough for 64 rounds, got"),
        (BUDGET + RANGE.replace("[[query]]", "[query]"), r"query: expected tables \[\[query\]\]"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_rule(tmp_path, text, said):
    with pytest.raises(ConfigError, match=said):
        loaded(tmp_path, text)


@pytest.mark.parametrize("split", ["even", "doubling"])
@pytest.mark.parametrize("how", ["point", "distance"])
@pytest.mark.parametrize("amount", ["rho = 100.0", "epsilon = 60.0"])
def test_the_noise_that_plan_tells_is_that_of_estimates(tmp_path, amount, how, split):
    more = f'privatisation = "{how}"\nsplit = "{split}"\nrounds = 3\nbudget = 20\n'
    text = BUDGET.replace("rho = 100.0", amount) + DENSITY.replace("place", f"{more}place")
    (query,) = loaded(tmp_path, text).standing_queries
    asked = query.asked(plates=4000)
    pie, noise = replace(asked.pie, rule=Everyone()), np.zeros(4000)
    where = np.tile(asked.plane.quanta(np.array([30.27]), np.array([-97.64])), (4000, 1))
    state = pie.run(where, seeded_bits(f"{amount}{how}{split}"))
    if how == "point":
        noise = state.weighed[:, 0] / state.precision - where[:, 0]
    else:
        noise = pie.estimate(state, np.arange(4000)) - asked.query.distance(where)
    assert noise.std() / QUANTA_PER_METRE == pytest.approx(asked.deviation_m, rel=0.08)


def test_a_rho_is_told_as_an_epsilon_up_to_the_reach_and_never_less_than_equation_10_says(tmp_path, capsys):
    """By `plan`, `ledger show` and `ledger export`; the same answers either way."""
    told = loaded(tmp_path, BUDGET + "reach_m = 2000\ndelta = 1e-5\n" + RANGE)
    alone = loaded(tmp_path, BUDGET + RANGE)
    assert told.standing_queries == alone.standing_queries
    budget = metric_epsilon_nano(100 * NANO, 1e-5, 2)
    said = f"epsilon {amount_text(budget)} per km with delta 1e-05 for places up to 2000 m apart"
    assert told.position_periods.promise == f"rho 100 per square km ({said}), per 1d"
    ledger, moment = MemoryLedger(), a_moment()
    context = replace(a_query_context(), periods=told.position_periods)
    (query,) = told.standing_queries
    answer_moment([query], moment, context, ledger, lambda _: None)
    (period,) = ledger.periods()
    most = int(ledger.balances(period, moment.plates).charged.max())
    (of,) = statement(told, ledger)["positions"]["periods"]
    assert of["epsilon_per_km_max_over_plates"] == metric_epsilon_nano(most, 1e-5, 2) / NANO > 0
    assert (of["epsilon_per_km_guaranteed"], of["delta"], of["reach_m"]) == (budget / NANO, 1e-5, 2000)
    assert "epsilon_per_km_guaranteed" not in statement(alone, ledger)["positions"]["periods"][0]
    spent = ledger.charged_by_period(moment.plates[0])[period]
    (line,) = lines_of_plate(ledger, moment.plates[0], told)
    assert f"\tepsilon {amount_text(metric_epsilon_nano(spent, 1e-5, 2))} per km with delta 1e-05 for" in line.text
    assert line.facts["epsilon_per_km_charged"] == metric_epsilon_nano(spent, 1e-5, 2) / NANO
    print_queries(told)
    of_moment = metric_epsilon_nano(query.budget_nano, 1e-5, 2)
    assert amount_text(of_moment) in capsys.readouterr().out
    assert facts_of_queries(told)[0]["epsilon_per_km_budget"] == of_moment / NANO


@pytest.mark.parametrize("how", ["flag", "variable"])
def test_flags_and_variables_cannot_name_one_of_several_queries(tmp_path, how):
    flags, variables = (("query.k=3",), {}) if how == "flag" else ((), {"UDP_STREAM_QUERY__K": "3"})
    with pytest.raises(ConfigError, match=r"query.k: expected in the configuration file, in one of its tables"):
        loaded(tmp_path, BUDGET + NEAREST, flags, variables)


def test_budgets_of_queries_can_be_set_beside_the_file(tmp_path):
    settings = loaded(tmp_path, BUDGET + RANGE, ("queries.rho=50",), {"UDP_STREAM_QUERIES__PERIOD": "7d"})
    assert settings.position_periods.promise == "rho 50 per square km, per 7d"


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ("", "epsilon 4 per km, per 1d; with its speeds epsilon 10, where 500 m count as much as a speed does"),
        ('accounting = "zcdp"\nrho = 1.5', "rho 1.2 per square km, per 1d; with its speeds rho 1.5 (epsilon"),
        ('accounting = "approximate"', "rho 1.2314230"),
    ],
)
def test_one_budget_is_cut_into_shares_whose_charges_never_sum_to_more(tmp_path, budget, said):
    """Theorem 5.1: what positions may cost in all, by their unit of distance, and what speeds may, are the budget."""
    settings = loaded(tmp_path, SHARED + f"[budget]\n{budget}\n" + RANGE + "rounds = 2\n")
    alone, policy, periods = settings.budget.nano, settings.policy, settings.position_periods
    assert periods.promise.startswith(said) and periods.measure == policy.measure
    counted = "epsilon" if policy.measure == "pure" else "rho"
    shared = SharedBudget(Filter(counted, alone)).knowing("speeds", 1).knowing("positions", Decimal("0.5"))
    positions = shared.charge_nano("positions", periods.budget_nano, counted)
    assert alone * 0.2 - 1 <= positions <= alone * 0.2
    assert shared.filter.admits(positions, policy.budget_nano) and policy.budget_nano + positions >= alone - 1
    assert all(query.period_budget_nano == periods.budget_nano for query in settings.standing_queries)
