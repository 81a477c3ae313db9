"""Rolling budgets: which windows touch a span, whatever the zones, the changes of clocks and the
lengths of spans."""

from datetime import UTC, datetime, timedelta, timezone

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.checks import worst_window
from udp_stream.ledger.port import Entry
from udp_stream.ledger.rules import (
    RollingSums,
    misfits,
    span_name,
    span_of,
    windows_around,
)

BEGIN = datetime(2024, 3, 31, tzinfo=UTC)
LENGTH_S = 7200
ZONES = [
    UTC,
    timezone(timedelta(hours=5, minutes=30)),
    timezone(timedelta(hours=-11)),
    timezone(timedelta(hours=14)),
]
SPANS = st.tuples(st.integers(0, 20), st.integers(1, 5), st.sampled_from(ZONES))


def name(start_s, end_s, zone=UTC, length="2h"):
    ends = (BEGIN + timedelta(seconds=one) for one in (start_s, end_s))
    return span_name(length, *(end.astimezone(zone).isoformat() for end in ends))


def in_quarters(span):
    start, quarters, zone = span
    return start * 900, (start + quarters) * 900, zone


@given(st.lists(st.tuples(SPANS, st.integers(1, 9)), min_size=1, max_size=12))
@settings(max_examples=200, deadline=None)
def test_sums_of_entries_end_at_the_worst_window(charges):
    sums, most = RollingSums(), 0
    by_name, bounds = {}, {}
    for span, amount in charges:
        label = name(*in_quarters(span))
        most = max(most, *sums.charge(label, [b"plate"], [amount]))
        by_name[label] = by_name.get(label, 0) + amount
        bounds[label] = in_quarters(span)[:2]
    by_time = {}
    for label, amount in by_name.items():
        by_time[bounds[label]] = by_time.get(bounds[label], 0) + amount
    assert most == worst_window(by_time, LENGTH_S)


def test_what_a_window_is_over_its_budget_by_is_found_in_its_entries():
    """As `ledger verify` finds it: each span is within the budget, the two of one window are not."""
    first, late = name(0, 3600), name(3600, 7200)
    apart = name(360_000, 363_600)
    entries = [
        Entry(hat, span, 10, (b"p",), np.array([amount]), payload=None, published=False)
        for hat, span, amount in (
            ("one", first, 6),
            ("far", apart, 10),
            ("two", late, 4),
            ("over", late, 1),
        )
    ]
    balances = [(first, b"p", 6, 1), (late, b"p", 5, 2), (apart, b"p", 10, 1)]
    (misfit,) = misfits(entries, balances)
    assert misfit.startswith("over:") and "budget 10" in misfit


def test_a_charge_below_nothing_is_found_in_its_entry():
    """It would hide another charge: the sum of both is a balance within the budget."""
    entries = [
        Entry(hat, "May", 10, (b"p",), np.array([amount]), payload=None, published=False)
        for hat, amount in (("back", -8), ("more", 9), ("nothing", 0), ("full", 9))
    ]
    (misfit,) = misfits(entries, [("May", b"p", 10, 3)])
    assert misfit.startswith("back:") and "-8" in misfit


def test_spans_of_a_day_whose_clock_is_changed_are_as_long_as_they_are():
    berlin = span_of("rolling 1d from 2024-03-31T00:00:00+01:00 to 2024-03-31T06:00:00+02:00")
    assert berlin.end - berlin.start == 5 * 3600


def test_in_order_there_is_one_window():
    """So a charge costs as much as it has spans, not their square."""
    hours = [name(at * 3600, (at + 1) * 3600, length="1d") for at in range(49)]
    windows = windows_around(hours[30], hours[:31])
    assert windows.others == tuple(hours[6:30]) and windows.inside.tolist() == [[True] * 24]
    assert windows_around(hours[24], hours).inside.shape == (25, 48)
