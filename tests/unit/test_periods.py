"""Budget periods by their names: which of them overlap, and what they sum to."""

import datetime as dt
import random
from itertools import combinations, product
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from tests.forms import PURE_ENV, long_rows
from udp_stream.ledger.port import Admission
from udp_stream.ledger.rules import largest_budgets
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.ledgers.statement import statement
from udp_stream.planning.policy import Loss, overlapping, overlaps_of, together, year_nano
from udp_stream.settings import load

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
KOLKATA = [f"1d from 2024-01-{day:02}T00:00:00+05:30" for day in range(7, 12)]
UTC = [f"1d from 2024-01-{day:02}T00:00:00+00:00" for day in range(7, 12)]
MONDAY, MONDAY_UTC = KOLKATA[1], UTC[1]


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        (MONDAY, MONDAY, False),
        (MONDAY, KOLKATA[2], False),
        (MONDAY, MONDAY_UTC, True),
        (MONDAY, UTC[0], True),  # its evening is Kolkata's Monday
        (MONDAY, UTC[2], False),
        (MONDAY, "lifetime", True),
        (MONDAY, "a name of another kind", True),
        (MONDAY, "1d from 2024-01-08T00:00:00", True),  # nobody can tell when
        (MONDAY, "7d from 2024-01-07T00:00:00+05:30", True),
        (
            MONDAY,
            "7d from 2024-01-09T00:00:00+05:30",
            False,
        ),  # another length, from a period's end on
        (
            MONDAY,
            "1d from 2024-01-08T18:30:00+00:00",
            False,
        ),  # another zone, from a period's end on
        (MONDAY, "6h from 2024-01-08T18:00:00+05:30", True),
        (MONDAY, "6h from 2024-01-09T00:00:00+05:30", False),
        (
            "1h from 2024-01-08T10:00:00+05:30",
            "1h from 2024-01-08T11:00:00+06:30",
            True,
        ),  # the same hour
        ("1h from 2024-01-08T10:00:00+05:30", "1h from 2024-01-08T11:00:00+05:30", False),
        (
            "1d from 2024-01-08T00:00:00-06:00",
            "1d from 2024-01-08T00:00:00-05:00",
            True,
        ),  # one hour apart, the same day
        (
            "1d from 2024-01-08T00:00:00-06:00",
            "1d from 2024-01-09T00:00:00-04:00",
            True,
        ),  # no clock changes by two
        (
            "1d from 2024-01-08T00:00:00+00:00",
            "1d from 2024-01-09T04:00:00+05:00",
            True,
        ),  # one hour shared
    ],
)
def test_periods_overlap_where_some_time_lies_in_both(one, other, overlap):
    assert (
        overlapping(one, [other]) == overlapping(one, [other, one]) == ((other,) if overlap else ())
    )
    assert overlapping(other, [one]) == ((one,) if overlap else ())


ZONES = "America/Chicago", "Australia/Lord_Howe", "Asia/Beirut", "America/Sao_Paulo"
HOURS_BETWEEN = {"1h": 1, "2h": 1, "6h": 2, "1d": 6, "7d": 24}
FEW = [*product(("1d", "7d"), ZONES), ("6h", "America/Chicago"), ("2h", "Australia/Lord_Howe")]


@pytest.mark.parametrize(("length", "zone"), long_rows(FEW, product(HOURS_BETWEEN, ZONES)))
def test_periods_of_one_calendar_never_overlap_also_where_clocks_change(length, zone):
    """A year's periods, each of them met, also one that a clock makes shorter."""
    flags = f"hat.timezone={zone}", f"budget.period={length}", "hat.slot=1h"
    calendar = load(None, flags, PURE_ENV).calendar
    begin = int(dt.datetime(2018, 1, 1, tzinfo=ZoneInfo(zone)).timestamp()) * 1000
    hours = range(0, 8784, HOURS_BETWEEN[length])
    names = list(
        dict.fromkeys(calendar.slot_in_period(begin + hour * 3_600_000).period for hour in hours)
    )
    assert len(names) > 50 and not any(overlaps_of(names).values())


def test_a_calendar_knows_its_own_periods_whatever_their_names_say():
    """Troll Station sets its clock forward by two hours, which names alone cannot tell from two
    zones."""
    calendar = load(None, ("hat.timezone=Antarctica/Troll", "hat.slot=1h"), PURE_ENV).calendar
    before, after = "1d from 2024-03-31T00:00:00+00:00", "1d from 2024-04-01T00:00:00+02:00"
    assert overlapping(before, [after]) == (after,)
    assert calendar.overlapping(before, [after]) == calendar.overlapping(after, [before]) == ()
    assert calendar.overlapping(after, [before, MONDAY, "lifetime"]) == ("lifetime",)


def test_all_overlaps_are_those_of_each_pair():
    choose = random.Random(4)
    for _ in range(200):
        names = {"lifetime"} if choose.random() < 0.3 else set()
        for _ in range(choose.randrange(12)):
            length, offset = (
                choose.choice(["1d", "2d", "6h"]),
                choose.choice(["+05:30", "+00:00", "-06:00"]),
            )
            hour = choose.choice([0, 6, 12, 18]) if length == "6h" else 0
            names.add(f"{length} from 2024-01-{choose.randint(7, 12):02}T{hour:02}:00:00{offset}")
        found = overlaps_of(names)
        pairs = [
            (one, other)
            for one, other in combinations(sorted(names), 2)
            if overlapping(one, [other])
        ]
        assert sorted((a, b) for a, others in found.items() for b in others if a < b) == pairs
        budgets = {name: 10 ** choose.randrange(5) for name in names}
        sums = together(budgets)
        for name in names:
            assert sums[name] == Loss(
                budgets[name] + sum(budgets[other] for other in overlapping(name, names))
            )


def charge(ledger, period, epsilon, number=0):
    hat = Admission(f"{period} {number}", np.array([0]), np.array([10**9]), 1, b"{}")
    ledger.admit(period, epsilon * 10**9, [b"a"], [hat])


def test_what_a_ledger_sums_to_is_what_its_statement_says():
    ledger = MemoryLedger()
    for number, (period, epsilon) in enumerate(
        [(MONDAY, 10), (MONDAY, 12), (MONDAY_UTC, 10), (KOLKATA[4], 30)]
    ):
        charge(ledger, period, epsilon, number)
    assert largest_budgets(ledger, [MONDAY]) == {MONDAY: 12 * 10**9}
    stated = statement(load(None, (), PURE_ENV), ledger)["privacy"]["privacy_loss"]["periods"]
    sums = {one["period"]: one["epsilon_guaranteed_with_overlapping"] for one in stated}
    assert sums == {MONDAY: 22.0, MONDAY_UTC: 22.0, KOLKATA[4]: 30.0}


@pytest.mark.parametrize("days", [1, 2, 7, 30, 90, 365, 400])
def test_a_year_adds_up_all_periods_that_any_365_days_touch(days):
    grid = load(None, (f"budget.period={days}d", "hat.timezone=UTC"), PURE_ENV).calendar
    midnights = range(0, 2 * 400 * DAY_MS, DAY_MS)
    numbers = [grid.slot_in_period(at).period for at in midnights]
    touched = max(len(set(numbers[at : at + 365])) for at in range(400))
    assert year_nano(f"{days}d", 10) == 10 * touched


@pytest.mark.parametrize("zone", ["America/Chicago", "Asia/Beirut", "Asia/Kolkata"])
@pytest.mark.parametrize("days", [7, 30])
def test_the_days_of_a_period_are_its_calendars_days_also_where_the_clock_changes(zone, days):
    """Of each hour of a year: its place in its day is that under a budget of a day."""
    longer, day = (
        load(
            None, (f"budget.period={length}", f"hat.timezone={zone}", "hat.slot=1h"), PURE_ENV
        ).calendar
        for length in (f"{days}d", "1d")
    )
    start = int(dt.datetime(2024, 1, 1, tzinfo=ZoneInfo(zone)).timestamp() * 1000)
    found = {}
    for at in range(start, start + 366 * DAY_MS, 5 * HOUR_MS):
        place, own = longer.slot_in_period(at), day.slot_in_period(at)
        assert place.of_day == (own.slots_gone, own.slots_left)
        found.setdefault(place.period, {}).setdefault(place.day, set()).add(own.period)
    assert all(len(one) == 1 for of_days in found.values() for one in of_days.values())
    assert {len(of_days) for of_days in found.values()} - {days} <= {*range(1, days)}
    assert max(max(of_days) for of_days in found.values()) == days - 1
