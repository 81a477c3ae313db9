"""Windows: the log's clock, lateness, closing once, bounds; and what a closed slot is made of."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.__main__ import held_bytes
from udp_stream.pings.decode import Pings, Reason
from udp_stream.windows.clocks import AgreementClock, Frame, WindowRules
from udp_stream.windows.slots import Windows
from udp_stream.windows.tables import SlotPings, tabulate

HOUR = 3_600_000
RULES = WindowRules(grace_ms=120_000, ahead_ms=24 * HOUR)


def pings_of(rows):
    """(plate, time in minutes, cell, speed) rows as columns."""
    plates = tuple(dict.fromkeys(str(plate) for plate, *_ in rows))
    n = len(rows)
    return Pings(
        plates=plates,
        plate=np.array([plates.index(str(row[0])) for row in rows], dtype=np.uint32),
        time_ms=np.array([round(row[1] * 60_000) for row in rows], dtype=np.int64),
        lat=np.zeros(n),
        lon=np.zeros(n),
        speed=np.array([row[3] if len(row) > 3 else 7 for row in rows], dtype=np.int32),
        message=np.arange(n, dtype=np.int32),
        position=np.full(n, -1, dtype=np.int32),
    )


def frame_of(rows):
    pings = pings_of(rows)
    start = pings.time_ms // HOUR * HOUR
    cells = np.array([row[2] if len(row) > 2 else 1 for row in rows], dtype=np.uint64)
    return Frame(pings, cells, start, start + HOUR)


def windows(**rules):
    return Windows(WindowRules(grace_ms=120_000, ahead_ms=24 * HOUR, **rules), str.encode)


def everybody(minute):
    return [(plate, minute) for plate in "abcd"]


def test_a_slot_closes_once_when_several_plates_have_passed_its_end_and_grace():
    w = windows()
    assert w.push(frame_of(everybody(10) + everybody(59))) == ([], [])
    assert w.push(frame_of(everybody(61.9)))[0] == []
    closed, refused = w.push(frame_of(everybody(62)))
    assert [(slot.start_ms, slot.plate.size) for slot in closed] == [(0, 8)] and refused == []
    assert w.push(frame_of(everybody(63)))[0] == []


def test_a_ping_for_a_closed_slot_is_late_and_says_by_how_much():
    w = windows()
    w.push(frame_of(everybody(10)))
    w.push(frame_of(everybody(70)))
    closed, refused = w.push(frame_of([("a", 59.5), ("a", 70.5)]))
    assert closed == []
    assert [(r.row, r.reason, r.lag_ms) for r in refused] == [
        (0, Reason.LATE, round(10.5 * 60_000))
    ]


def test_a_late_ping_within_grace_still_counts():
    w = windows()
    w.push(frame_of(everybody(61.5)))
    assert w.push(frame_of([("a", 59.5)])) == ([], [])
    assert [slot.plate.size for slot in w.flush()] == [1, 4]


def test_lateness_is_judged_by_the_clock_before_the_frame():
    """All of a frame is heard together: what closes a slot does not make its own neighbours late."""
    w = windows()
    w.push(frame_of(everybody(5)))
    closed, refused = w.push(frame_of([*everybody(90), ("a", 30)]))
    assert refused == [] and [slot.plate.size for slot in closed] == [5]


def test_one_ping_from_the_future_moves_nothing():
    w = windows()
    w.push(frame_of(everybody(10)))
    closed, refused = w.push(frame_of([("z", 44 * 365 * 24 * 60), *everybody(20)]))
    assert closed == [] and [(r.row, r.reason) for r in refused] == [(0, Reason.TIME_IN_FUTURE)]
    assert w.push(frame_of(everybody(30))) == ([], [])


def test_wrong_times_of_several_plates_one_after_another_do_not_add_up_to_agreement():
    w = windows()
    w.push(frame_of(everybody(10)))
    for i, plate in enumerate("abcd"):
        closed, refused = w.push(
            frame_of([(plate, 300), *((other, 12 + i) for other in "abcd" if other != plate)])
        )
        assert (closed, refused) == ([], [])


def test_a_fleet_that_comes_back_after_days_of_silence_is_heard():
    w = windows()
    w.push(frame_of(everybody(10)))
    closed, refused = w.push(frame_of(everybody(10 * 24 * 60)))
    assert len(closed) == 1 and refused == []


DAY = 24 * 60


def through_days(w, days, size, others=()):
    """Two of five plates go on pinging for some days, from 8 to 18; how many pings were refused,
    and why."""
    rows = [(plate, day * DAY + minute) for day in range(days) for minute in range(480, 1080, 2)
            for plate in ("abcde" if day == 0 else "ab")]  # fmt: skip
    refused = [
        one
        for at in range(0, len(rows), size)
        for one in w.push(frame_of([*others, *rows[at : at + size]]))[1]
    ]
    return len(refused), {one.reason for one in refused}


@pytest.mark.parametrize("size", [50, 400, 4096, 10**5])
def test_plates_that_have_left_for_good_are_not_waited_for(size):
    """Two are less than a quorum of five: what they ping from the third day on is not from the
    future for that."""
    w = windows()
    assert through_days(w, 9, size) == (0, set())
    assert w.watermark_ms > 6 * DAY * 60_000


def test_one_plate_decades_ahead_is_refused_also_while_a_fleet_shrinks():
    w = windows()
    refused, reasons = through_days(w, 9, 400, others=[("z", 1e7)])
    assert refused == 16 and reasons == {Reason.TIME_IN_FUTURE}


def test_two_clocks_that_run_days_ahead_within_few_of_a_frame_s_pings_are_refused():
    """Step by step two plates come as far as they like: of a frame's pings one in twenty has to
    come along."""
    w = windows()
    rows = [(plate, 600 + i / 10) for i in range(500) for plate in "abcde"]
    ahead = [(plate, 600 + step * 1400) for step in range(1, 10) for plate in "yz"]
    _, refused = w.push(frame_of([*rows, *ahead]))
    assert w.watermark_ms < 651 * 60_000
    assert [one.reason for one in refused] == [Reason.TIME_IN_FUTURE] * 16


def test_in_a_large_fleet_a_few_broken_clocks_are_not_agreement():
    """Eight of 1,715 buses decades ahead, as in one recorded snapshot of Delhi: they are refused,
    nobody is late."""
    good = [(f"p{i}", 10 + i % 3) for i in range(1707)]
    bad = [(f"q{i}", 1e7 + i) for i in range(8)]
    w = windows()
    for rows in (bad + good, good + bad, [(plate, minute + 5) for plate, minute in good]):
        _, refused = w.push(frame_of(rows))
        assert {r.reason for r in refused} <= {Reason.TIME_IN_FUTURE}
    assert sum(slot.plate.size for slot in w.flush()) == 3 * 1707


def test_the_clock_never_goes_back():
    clock = AgreementClock(RULES)
    clock.advance(pings_of([("a", 50), ("b", 50), ("c", 50)]))
    clock.advance(pings_of([("a", 10), ("d", 10)]))
    assert clock.watermark_ms == 50 * 60_000


def test_a_full_slot_refuses_with_a_reason_and_loses_nothing():
    w = windows(pings_per_slot_max=5)
    _, refused = w.push(frame_of(everybody(10) + everybody(11)))
    assert [(r.row, r.reason) for r in refused] == [(row, Reason.SLOT_FULL) for row in (5, 6, 7)]
    assert [slot.plate.size for slot in w.flush()] == [5]


def test_memory_stays_within_24_bytes_per_open_ping():
    w = windows()
    rng = np.random.default_rng(0)
    for _ in range(60):
        w.push(
            frame_of([(f"p{i}", float(m), 1, 5) for i, m in enumerate(rng.uniform(0, 59, 1000))])
        )
    assert w.open_pings == 60_000
    assert held_bytes(w) / w.open_pings <= 24


# --- what a closed slot holds -------------------------------------------------------------------------------------

row = st.tuples(
    st.sampled_from("abc"), st.integers(0, 3), st.sampled_from([5, 9]), st.integers(0, 3)
)


def slot_of(rows):
    plates = tuple(dict.fromkeys(plate.encode() for plate, *_ in rows))
    code = [plates.index(plate.encode()) for plate, *_ in rows]
    return SlotPings(
        0, HOUR, plates, np.array(code, np.uint32), np.array([r[1] for r in rows], np.uint32),
        np.array([r[2] for r in rows], np.uint64), np.array([r[3] for r in rows], np.int32),
    )  # fmt: skip


def naive(rows):
    """One ping per (plate, time), of the lowest cell, then the lowest speed; then by cell, plate,
    time."""
    first = {}
    for plate, time, cell, speed in rows:
        key = (plate, time)
        first[key] = min(first.get(key, (cell, speed)), (cell, speed))
    return sorted((cell, plate, time, speed) for (plate, time), (cell, speed) in first.items())


@given(st.lists(row, min_size=1, max_size=30), st.randoms())
def test_tables_equal_a_naive_reference_in_any_order_of_arrival(rows, random):
    shuffled = list(rows)
    random.shuffle(shuffled)
    counts, values = tabulate(slot_of(shuffled))
    found = []
    for hat in range(counts.cells.size):
        for r in range(counts.rows(hat).start, counts.rows(hat).stop):
            plate = counts.plates[counts.plate[r]].decode()
            found += [
                (int(counts.cells[hat]), plate, s)
                for s in values.samples_of(slice(r, r + 1)).tolist()
            ]
            assert values.samples_of(slice(r, r + 1)).size == counts.count[r] > 0
    assert found == [(cell, plate, speed) for cell, plate, _, speed in naive(rows)]
    assert counts.repeats == len(rows) - len(found)
    assert list(counts.plates) == sorted(counts.plates)


@given(st.lists(row, min_size=1, max_size=30), st.data())
def test_counts_never_depend_on_a_speed(rows, data):
    """Swap one plate's speeds for others: everything on the public side stays as it is."""
    plate = data.draw(st.sampled_from(sorted({r[0] for r in rows})))
    other = [(p, t, c, data.draw(st.integers(0, 3)) if p == plate else s) for p, t, c, s in rows]
    one, two = tabulate(slot_of(rows))[0], tabulate(slot_of(other))[0]
    for name in ("cells", "hat_rows", "plate", "count"):
        assert np.array_equal(getattr(one, name), getattr(two, name))
    assert (one.plates, one.repeats) == (two.plates, two.repeats)


def test_pings_of_slots_that_the_ledger_has_archived_are_late_from_the_first_on():
    w = windows(archived_ms=2 * HOUR)
    closed, refused = w.push(frame_of([*everybody(119), *everybody(120)]))
    assert closed == [] and w.open_slots == {2 * HOUR}
    assert {(one.row, one.reason, one.lag_ms) for one in refused} == {
        (row, Reason.LATE, 180_000) for row in range(4)
    }
    assert [slot.start_ms for slot in w.push(frame_of(everybody(182)))[0]] == [2 * HOUR]
