"""The append clock: the log's time from event and append times, message by message, however it is
cut into fetches."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from udp_stream.pings.decode import Pings, Reason
from udp_stream.windows.clocks import NEVER, AppendClock, Frame, LogPlaces, WindowRules
from udp_stream.windows.slots import Windows

MINUTE = 60_000
HOUR = 60 * MINUTE
RULES = WindowRules(grace_ms=2 * MINUTE, skew_ms=30_000, disorder_ms=MINUTE)


def frame_of(messages, first=0):
    """Messages as (append minute, [ping minutes]) or (append minute, None) for a tick; slots of an
    hour."""
    rows = [(m, minute) for m, (_, pings) in enumerate(messages) for minute in pings or ()]
    n = len(rows)
    time_ms = np.array([round(minute * MINUTE) for _, minute in rows], dtype=np.int64)
    pings = Pings(
        ("a",) if n else (), np.zeros(n, np.uint32), time_ms, np.zeros(n), np.zeros(n), np.zeros(n, np.int32),
        np.array([m for m, _ in rows], np.int32), np.full(n, -1, np.int32),
    )  # fmt: skip
    places = LogPlaces(
        np.arange(first, first + len(messages)),
        np.array([round(append * MINUTE) for append, _ in messages], dtype=np.int64),
        np.array([pings is None for _, pings in messages], dtype=bool),
    )
    start = time_ms // HOUR * HOUR
    return Frame(pings, np.ones(n, np.uint64), start, start + HOUR, places)


def clocked(*messages):
    clock = AppendClock(RULES)
    clock.observe(frame_of(messages))
    return clock.watermark_ms


def test_it_is_the_newest_event_time_less_the_disorder_and_never_goes_back():
    assert clocked((10, [9.5]), (10, [8])) == round(8.5 * MINUTE)


def test_a_ping_further_ahead_of_its_append_time_than_clocks_may_differ_moves_nothing():
    clock = AppendClock(RULES)
    observed = clock.observe(frame_of([(10, [9]), (10, [10.5]), (10, [10.51, 1e6])]))
    assert observed.ahead.tolist() == [False, False, True, True]
    assert clock.watermark_ms == round(9.5 * MINUTE)


def test_a_tick_counts_like_a_ping_of_its_append_time():
    assert clocked((10, [9.5]), (70, None)) == 69 * MINUTE
    assert clocked((70, None), (71, [9.5])) == 69 * MINUTE


def test_before_the_first_accepted_ping_there_is_no_time():
    assert clocked() is None and clocked((1, [2])) is None


def test_pings_of_one_message_are_heard_together():
    observed = AppendClock(RULES).observe(frame_of([(300, [299, 1]), (300, [2])]))
    assert observed.watermark_before_ms.tolist() == [NEVER, NEVER, 298 * MINUTE]


def test_it_needs_append_times():
    frame = frame_of([(1, [1])])
    with pytest.raises(ValueError, match="append times"):
        AppendClock(RULES).observe(Frame(frame.pings, frame.cell, frame.slot_start, frame.slot_end))


message = st.tuples(
    st.integers(0, 400), st.none() | st.lists(st.integers(0, 420), max_size=4)
)  # appended at random: worse than any broker


def history(messages, cuts):
    """Every closed slot with its pings, and every refusal by offset, for a log cut into fetches at
    `cuts`."""
    windows = Windows(RULES, str.encode, AppendClock(RULES))
    closed, refused = [], []
    edges = [0, *sorted(cuts), len(messages)]
    for first, last in pairwise(edges):
        frame = frame_of(messages[first:last], first)
        slots, reasons = windows.push(frame)
        closed += [(slot.start_ms, slot.time.tolist()) for slot in slots]
        refused += [
            (int(frame.places.offset[frame.pings.message[r.row]]), r.reason, r.lag_ms)
            for r in reasons
        ]
    return (
        closed,
        sorted(refused),
        [(slot.start_ms, slot.time.tolist()) for slot in windows.flush()],
    )


@given(st.lists(message, max_size=25), st.data())
def test_how_fetches_cut_the_log_changes_nothing(messages, data):
    cuts = data.draw(st.lists(st.integers(0, len(messages)), max_size=6))
    assert history(messages, cuts) == history(messages, range(len(messages)))


def test_a_ping_after_its_slot_closed_is_late_within_one_fetch_too():
    closed, refused, _ = history([(10, [5]), (70, [64]), (70, [6])], [])
    assert closed == [(0, [5 * MINUTE])]
    assert refused == [(2, Reason.LATE, 57 * MINUTE)]
