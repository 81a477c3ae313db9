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
    between,
    misfits,
    names_around,
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


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(SPANS, st.integers(1, 9)), max_size=12), SPANS)
def test_the_most_elsewhere_is_that_of_every_window_that_touches_the_span(charges, ours):
    """Spans of any lengths, that overlap and leave gaps, in any zones; against all windows, second
    by second."""
    start, end, zone = in_quarters(ours)
    charged = {name(*in_quarters(span)): amount for span, amount in charges}
    bounds = {name(*in_quarters(span)): in_quarters(span)[:2] for span, _ in charges}
    charged.pop(name(start, end, zone), None)
    windows = windows_around(name(start, end, zone), charged)
    amounts = [charged[other] for other in windows.others]
    got = windows.most(np.array(amounts, np.int64).reshape(-1, 1))[0]
    edges = {
        edge - shift for pair in bounds.values() for edge in pair for shift in (0, LENGTH_S)
    } | {
        start,
        end,
        start - LENGTH_S,
    }
    begins = [
        at + step for at in edges for step in (-1, 0, 1) if start - LENGTH_S < at + step < end
    ]
    touched = [
        sum(
            amount
            for other, amount in charged.items()
            if bounds[other][0] < at + LENGTH_S and at < bounds[other][1]
        )
        for at in begins
    ]
    assert got == max(touched, default=0)


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


@given(SPANS, SPANS)
def test_every_span_that_shares_a_window_has_its_name_between_the_two(one, other):
    ours, theirs = name(*in_quarters(one)), name(*in_quarters(other))
    if span_of(ours).shares_window(span_of(theirs)):
        assert between([theirs], *names_around(ours)) == [theirs]


def test_spans_of_a_day_whose_clock_is_changed_are_as_long_as_they_are():
    berlin = span_of("rolling 1d from 2024-03-31T00:00:00+01:00 to 2024-03-31T06:00:00+02:00")
    assert berlin.end - berlin.start == 5 * 3600


def test_in_order_there_is_one_window():
    """So a charge costs as much as it has spans, not their square."""
    hours = [name(at * 3600, (at + 1) * 3600, length="1d") for at in range(49)]
    windows = windows_around(hours[30], hours[:31])
    assert windows.others == tuple(hours[6:30]) and windows.inside.tolist() == [[True] * 24]
    assert windows_around(hours[24], hours).inside.shape == (25, 48)


def test_units_and_lengths_are_accounts_of_their_own():
    hours = [name(0, 3600), name(0, 3600) + " in rho", name(0, 3600, length="3h"), name(3600, 7200)]
    assert windows_around(hours[0], hours).others == (hours[3],)
    assert windows_around(hours[1], hours).others == ()
