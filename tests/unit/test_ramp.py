"""Savings of standing queries (*Adaptive Privacy Budgeting*, Algorithm 3): handed on, never more
than there is."""

from fractions import Fraction

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.failing import Died, DyingLedger, a_ramp
from udp_stream.base.errors import ConfigError
from udp_stream.ledger.ids import QUERY, ROUND, id_of, kind_of
from udp_stream.ledger.port import Admission
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.queries.standing import QUARTERS
from udp_stream.release.query_pipeline import QueryContext, QuerySet, record_moment
from udp_stream.release.record import QueryResult
from udp_stream.settings import load
from udp_stream.settings import queries as query_sections
from udp_stream.testing import a_context, a_moment, a_query, a_query_context
from udp_stream.windows.positions import Moment

HOUR_MS = 3_600_000


def as_printed(left, number, queries, budget):
    """Lines 3 and 4 of Algorithm 3, exactly; its gamma is 1 for one query."""
    gamma = Fraction(3, 4) + (
        Fraction(number - 1, queries - 1) / 4 if queries > 1 else Fraction(1, 4)
    )
    return gamma * (left - Fraction(queries - number + 1, queries) * budget) + Fraction(
        budget, queries
    )


@given(
    st.integers(1, 48), st.integers(10**3, 10**13), st.randoms(use_true_random=False), st.booleans()
)
def test_one_query_is_given_what_the_algorithm_prints_in_quarters_of_a_part(
    queries, even, dice, is_absent_first
):
    query = msgspec.structs.replace(
        a_query(), every_s=900, budget_nano=even, period_budget_nano=queries * even
    )
    query, charged = msgspec.structs.replace(query, ramp=((900, even),)), 0
    for number in range(1, queries + 1):
        quarters = query.handed_on(np.array([charged]), number * 900_000)
        (given_,) = query.budgets(1, quarters).tolist()
        printed = as_printed(queries * even - charged, number, queries, queries * even)
        assert even <= given_ <= printed < given_ + Fraction(even, QUARTERS) + 1
        spent = Fraction(dice.choice((0, 1, dice.random())))
        charged += 0 if is_absent_first and number == 1 else int(spent * given_)
    assert charged <= queries * even


def schedules():
    """Queries that are asked every 10 to 120 minutes, of a budget that they share evenly as
    settings do."""
    return st.tuples(
        st.lists(st.sampled_from([600, 900, 1800, 3600, 7200]), min_size=1, max_size=5),
        st.integers(1, 9),
    )


@settings(max_examples=60)
@given(schedules(), st.randoms(use_true_random=False))
def test_no_plate_is_ever_charged_more_than_the_even_parts_so_far_whatever_it_spends(
    schedule, dice
):
    """In any order of the queries of a moment, whoever is absent when, and in a period of 23 or 25
    hours, too."""
    every, exponent = schedule
    budget, plates = 10 ** (exponent + 6), 6
    evens = [budget * one // 86_400 // len(every) for one in every]
    ramp = tuple(sorted(zip(every, evens, strict=True)))
    queries = [
        msgspec.structs.replace(
            a_query(), every_s=one, budget_nano=even, period_budget_nano=budget, ramp=ramp
        )
        for one, even in zip(every, evens, strict=True)
    ]
    hours = dice.choice((23, 24, 24, 25))
    charged, gave_all = np.zeros(plates, np.int64), dice.random() < 0.3
    for time_s in range(300, hours * 3600 + 1, 300):
        if not (due := [query for query in queries if time_s % query.every_s == 0]):
            continue
        dice.shuffle(due)
        for query in due:
            most = query.budgets(plates, query.handed_on(charged, time_s * 1000))
            assert (most >= query.budget_nano).all()
            spent = np.array(
                [
                    int(one * (1.0 if gave_all else dice.choice((0.0, 0.1, 0.9, 1.0))))
                    for one in most
                ]
            )
            # the ledger's rule: in the 25th hour even parts are more than there is
            charged += np.where(charged + spent <= budget, spent, 0)
        parts = sum(even * (time_s // one) for one, even in zip(every, evens, strict=True))
        assert (charged <= min(parts, budget)).all()


CITY = """
[queries]
rho = {rho}
schedule = "{schedule}"
age = "1h"
center = [0, 0]
[[query]]
name = "middle"
kind = "range"
every = "1h"
box = [-0.009, -0.009, 0.009, 0.009]
[[query]]
name = "stop"
kind = "nearest"
every = "2h"
place = [0.01, 0.0]
k = 2
[[query]]
name = "full"
kind = "threshold"
every = "4h"
box = [-0.03, -0.03, 0.03, 0.03]
share = 0.4
"""


@pytest.fixture
def few_rounds(limits):
    limits(query_sections, ROUNDS={"zcdp": 4, "pure": 4})


def loaded(folder, schedule, rho=600, text=CITY, flags=()):
    path = folder / "city.toml"
    path.write_text(text.format(schedule=schedule, rho=rho))
    return load(path, ("hat.timezone=UTC", *flags), {})


def a_day(settings_, ledger, plates=12):
    """Every hour of a day some of the plates are somewhere; the answers by their ids."""
    queries = QuerySet(
        settings_.standing_queries,
        settings_.zone,
        QueryContext(settings_.position_periods, a_context()),
    )
    start, rng, told = 19_000 * 24 * HOUR_MS, np.random.default_rng(4), {}
    names = tuple(f"hash {i:02}".encode() for i in range(plates))
    for hour in range(1, 25):
        there = np.flatnonzero(rng.random(plates) < 0.8)
        lat, lon = rng.normal(0, 0.03, (2, there.size))
        moment = Moment(start + hour * HOUR_MS, tuple(names[i] for i in there), lat, lon)
        found = queries.record(moment, ledger)
        told |= {one.release_id: QueryResult.decode(one.payload) for one in found.answers}
    return told


def test_over_a_day_savings_go_to_later_moments_and_no_plate_is_charged_beyond_its_budget(
    tmp_path, few_rounds
):
    """Each admission is within what Algorithm 3 gives by the charges before it, summed from the
    entries by hand."""
    ledger, evenly = MemoryLedger(), MemoryLedger()
    ramped, even = loaded(tmp_path, "ramp"), loaded(tmp_path, "even")
    told, plain = a_day(ramped, ledger), a_day(even, evenly)
    assert ledger.verify() == [] and told.keys() == plain.keys() and len(told) == 24 + 12 + 6
    queries = {query.name: query for query in ramped.standing_queries}
    budget, charged, start = 600 * 10**9, {}, 19_000 * 24 * HOUR_MS
    of_answer, before = {}, {}
    for entry in ledger.entries():
        if kind_of(entry.release_id) != "round":
            continue
        _, name, seconds, number = entry.release_id.split(":")
        if number == "1":
            before[name, seconds] = dict(charged)
        for plate, nano in zip(entry.plates, entry.charged.tolist(), strict=True):
            charged[plate] = charged.get(plate, 0) + nano
            key = (name, seconds, plate)
            of_answer[key] = of_answer.get(key, 0) + nano
    assert 0 < max(charged.values()) <= budget
    given = {}
    for (name, seconds, plate), nano in of_answer.items():
        query, gone_ms = queries[name], int(seconds) * 1000 - start
        quarters = query.handed_on(np.array([before[name, seconds].get(plate, 0)]), gone_ms)
        (most,) = query.budgets(1, quarters).tolist()
        assert nano <= most
        given[name, seconds] = max(given.get((name, seconds), 0), most)
    for (name, seconds), most in given.items():
        privacy = told[id_of(QUERY, int(seconds) * 1000, key=name)].privacy
        assert privacy.charged <= privacy.moment <= most / 1e9 + 1e-9 or name == "middle"
    evens = {name: query.budget_nano for name, query in queries.items()}
    assert all(one.privacy.moment == evens[one.query.name] / 1e9 for one in plain.values())
    assert all(one.privacy.moment >= evens[one.query.name] / 1e9 for one in told.values())
    late = [
        one
        for id_, one in told.items()
        if one.query.name == "middle" and one.query.moment > "2022-01-08T12"
    ]
    assert min(one.privacy.moment for one in late) > 2 * evens["middle"] / 1e9
    assert sum(charged.values()) > 1.2 * sum(int(one.charged.sum()) for one in evenly.entries())


@pytest.mark.parametrize("schedule", ["even", "ramp"])
def test_a_moment_without_plates_takes_the_same_road(tmp_path, few_rounds, schedule):
    """Of each kind: nobody is charged, and the amount is the even part."""
    loaded_, ledger = loaded(tmp_path, schedule), MemoryLedger()
    queries = QuerySet(
        loaded_.standing_queries, loaded_.zone, QueryContext(loaded_.position_periods, a_context())
    )
    nobody = Moment(19_000 * 24 * HOUR_MS + 4 * HOUR_MS, (), np.zeros(0), np.zeros(0))
    found = [QueryResult.decode(one.payload) for one in queries.record(nobody, ledger).answers]
    evens = {query.name: query.budget_nano / 1e9 for query in loaded_.standing_queries}
    assert {one.query.name: one.privacy.moment for one in found} == evens
    assert (
        [one.plates.asked for one in found] == [one.privacy.charged for one in found] == [0, 0, 0]
    )
    assert ledger.verify() == []


def test_what_was_handed_on_first_stands_for_all_rounds_whatever_is_charged_meanwhile():
    """A run dies before it draws. Others then charge the plates all that they have saved; the next
    run goes on."""
    ledger, query, moment, context = MemoryLedger(), a_ramp(), a_moment(), a_query_context()
    calls = DyingLedger(MemoryLedger())
    record_moment([query], moment, context, calls)
    with pytest.raises(Died):
        record_moment([query], moment, context, DyingLedger(ledger, calls.calls.index("record")))
    quarters = query.handed_on(np.zeros(1, np.int64), 4 * HOUR_MS + HOUR_MS // 2)
    (given_,) = query.budgets(1, quarters).tolist()
    (period,) = ledger.periods()
    everyone, all_saved = np.arange(len(moment.plates)), np.full(len(moment.plates), 60 * 10**9)
    other = Admission(
        id_of(ROUND, moment.time_ms, key="other", number=1), everyone, all_saved, 0, b""
    )
    ledger.admit(period, query.period_budget_nano, moment.plates, [other])
    (answer,) = record_moment([query], moment, a_query_context(2), ledger).answers
    found = QueryResult.decode(answer.payload)
    assert (
        found.privacy.moment == found.privacy.charged == given_ / 1e9 > 10 * query.budget_nano / 1e9
    )
    assert found.plates.rounds == query.rounds and ledger.verify() == []
    assert ledger.balances(period, moment.plates).charged.max() == given_ + 60 * 10**9


def test_the_schedule_is_of_what_is_asked_and_needs_even_parts(tmp_path):
    ramped, even = (
        loaded(tmp_path, "ramp").standing_queries,
        loaded(tmp_path, "even").standing_queries,
    )
    assert [query.budget_nano for query in ramped] == [query.budget_nano for query in even]
    assert not {query.fingerprint() for query in ramped} & {query.fingerprint() for query in even}
    for text, said in (
        (CITY.replace("k = 2", "k = 2\nbudget = 3.0"), "query.budget of stop: expected .auto."),
        (CITY.replace('"{schedule}"', '"ramps"'), "queries.schedule: expected one of even, ramp"),
    ):
        with pytest.raises(ConfigError, match=said):
            _ = loaded(tmp_path, "ramp", text=text).standing_queries
