"""Slots by the wall's time in the log: no plate decides whether another's pings count, or when a
slot closes."""

import random
from dataclasses import replace
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from streams.protocol import SlotBarrier
from streams.wire import (
    CountChunk,
    CountsEnd,
    PingChunk,
    PingsEnd,
    SendRefused,
    SourceProtocol,
    cut_counts,
    cut_pings,
    decode_message,
    encode_message,
    merge_counts,
    merge_pings,
)
from tests.forms import long_but, soaked
from tests.unit.test_reading import HOUR, RULES, START, outcome, ping, record, take
from udp_stream.pings.decode import PingRules, Reason
from udp_stream.windows.clocks import SLOTS_MAX, Frame, SpanClock, SteadyClock
from udp_stream.windows.grid import Hexagons
from udp_stream.windows.slots import SourceCheckpoint, SourceReader, Windows
from udp_stream.windows.tables import SlotGrid, tabulate

MINUTE = 60_000
WALL = replace(RULES, windows=replace(RULES.windows, in_processing_time=True))
MINUTES = replace(WALL, grid=SlotGrid(60, ZoneInfo("UTC")))


def reader(rules=WALL, checkpoint=None):
    return SourceReader(rules, checkpoint or SourceCheckpoint(0))


def tick(offset, minute):
    return record(offset, minute, b"", tick=True)


def starts(taken):
    return [(slot.start_ms - START) // HOUR for slot in taken.closed]


def messy_log(seed, size=500):
    """Pings of three plates, many of them absurd, and ticks; both may jump a day."""
    dice, log, now = random.Random(seed), [], 0
    for offset in range(size):
        now += dice.choice([0, 1, 1, 2, 30]) if dice.random() < 0.99 else 3000
        what, plate = dice.random(), dice.choice("aabc")
        if what < 0.1:
            log.append((None, tick(offset, now - dice.choice([0, 0, 0, 5]))))
        elif what < 0.15:
            log.append((plate, record(offset, now, b"not json")))
        elif what < 0.2:
            log.append(
                (
                    plate,
                    record(
                        offset,
                        now,
                        ping(plate, now).replace(b"2024-", b"2%03d-" % dice.randint(0, 90)),
                    ),
                )
            )
        else:
            behind = dice.choice([0, 0, 1, 2, 30, 90, -5, -0.4])
            log.append((plate, record(offset, now, _ping(plate, max(0, now - behind)))))
    return [*log, (None, tick(size, now + 500))]


def _ping(plate, minute):
    days, minute = divmod(int(minute), 24 * 60)
    return ping(plate, minute).replace(
        b"2024-01-01", b"2024-%02d-%02d" % (1 + days // 28, 1 + days % 28)
    )


def by_plate(taken):
    """What each slot holds of each plate, in order."""
    found = {}
    for slot in taken.closed:
        for number, plate in enumerate(slot.plates):
            mine = slot.plate == number
            found.setdefault(plate, []).append(
                (slot.start_ms, slot.time[mine].tolist(), slot.cell[mine].tolist())
            )
    return found


@pytest.mark.parametrize("seed", [*long_but(range(4), range(12)), *soaked(range(12, 40))])
@pytest.mark.parametrize("gone", ["a", "b", "abc"])
def test_without_a_plate_the_same_slots_close_and_hold_the_same_of_all_others(seed, gone):
    log = messy_log(seed)
    whole = take(reader(), [one for _, one in log])
    rest = take(reader(), [one for plate, one in log if plate is None or plate not in gone])
    assert [(one.start_ms, one.end_ms) for one in rest.closed] == [
        (one.start_ms, one.end_ms) for one in whole.closed
    ]
    held = by_plate(whole)
    assert len(held) == 3 and len(whole.closed) > 20
    assert by_plate(rest) == {
        plate: pings for plate, pings in held.items() if plate.decode() not in gone
    }
    assert all(one.partial is False for one in whole.closed)


@pytest.mark.parametrize("seed", [*long_but(range(4), range(12)), *soaked(range(12, 40))])
def test_killed_anywhere_and_cut_anywhere_the_same_slots_close(seed):
    log = [one for _, one in messy_log(seed)]
    whole = outcome(take(reader(), log))
    assert {Reason.LATE, Reason.TIME_IN_FUTURE, Reason.NOT_JSON} <= {
        reason for _, reason, _ in whole[1]
    }
    dice, found, at, now = random.Random(f"kill {seed}"), ([], []), 0, reader()
    while at < len(log):
        size = dice.randint(1, 40)
        slots, refused = outcome(take(now, log[at : at + size]))
        found[0].extend(slots)
        found[1].extend(refused)
        at += size
        if dice.random() < 0.3:
            now = reader(checkpoint=now.checkpoint())
            at = now.next_offset
    assert found == whole


def test_the_first_slot_is_the_first_to_begin_after_the_first_tick():
    """Pings of slots before it, and all pings before it, are late; a tick on the boundary begins
    with the slot."""
    log = [
        record(0, 59, ping("a", 59)),
        tick(1, 59.9),
        record(2, 59.95, ping("a", 59)),
        record(3, 60, ping("b", 60)),
    ]
    taken = take(now := reader(), [*log, tick(4, 122)])
    assert starts(taken) == [1] and taken.closed[0].plates == (b"b",)
    assert [(one.offset, one.refusal.reason) for one in taken.refused] == [
        (0, Reason.LATE),
        (2, Reason.LATE),
    ]
    assert all(one.refusal.lag_ms > 0 for one in taken.refused)
    assert now.through_ms == START + 2 * HOUR and now.checkpoint() == SourceCheckpoint(
        5, START + 122 * MINUTE, 5
    )
    assert starts(take(reader(), [tick(0, 60), tick(1, 122)])) == [1]
    assert starts(take(reader(), [tick(0, 60.001), tick(1, 182)])) == [2]


@pytest.mark.parametrize(("minute", "fits"), [(121.999, True), (122, False), (300, False)])
def test_a_ping_is_late_by_its_own_append_time_and_by_ticks_before_it(minute, fits):
    """Neither another's append time, hours ahead, nor another's ping, moves what is late."""
    log = [
        tick(0, 0),
        record(1, 110, ping("b", 110)),
        record(2, 240, ping("c", 240)),
        record(3, minute, ping("a", 119)),
    ]
    taken = take(reader(), [*log, tick(4, 122)])
    assert starts(taken) == [0, 1] and taken.closed[1].plates == ((b"b", b"a") if fits else (b"b",))
    late = take(reader(), [tick(0, 0), tick(1, 122), record(2, 121, ping("a", 119))])
    assert [one.refusal.reason for one in late.refused] == [Reason.LATE] and late.refused[
        0
    ].refusal.lag_ms == 3 * MINUTE


def test_pings_move_no_clock_and_an_empty_log_closes_its_slots():
    now = reader()
    assert now.tick_would_close(START)
    take(now, [tick(0, 0)])
    assert starts(take(now, [record(at, 60 * at, ping("a", 60 * at)) for at in range(1, 20)])) == []
    assert (now.watermark_ms, now.clock_ms) == (START + 2 * MINUTE, START)
    assert not now.tick_would_close(START + HOUR + 2 * MINUTE - 1) and now.tick_would_close(
        START + HOUR + 2 * MINUTE
    )
    closed = take(reader(), [tick(0, 0), tick(1, 200)]).closed
    assert [tabulate(slot)[0].cells.size for slot in closed] == [0, 0, 0]


def test_a_log_is_ahead_only_if_its_ticks_were():
    """Its first slot begins up to a slot after the first tick: that is no clock that is wrong."""
    take(now := reader(), [tick(0, 1)])
    assert now.through_ms == START + HOUR and now.clock_ms == START + MINUTE
    assert now.ahead_ms(START + MINUTE) == 0 and now.ahead_ms(START + 59 * MINUTE) == 0
    take(now, [tick(1, 24 * 60)])
    assert now.ahead_ms(START + HOUR + MINUTE) == 21 * HOUR


def test_a_jump_closes_the_first_slots_and_drops_what_lies_behind_them():
    log = [
        tick(0, 0),
        *(record(60 * at, 60 * at, _ping("a", 60 * at)) for at in range(1, 60)),
        tick(9000, 60 * 100),
    ]
    taken = take(now := reader(), log)
    assert (
        starts(taken) == list(range(SLOTS_MAX))
        and [len(slot.plates) for slot in taken.closed] == [0] + [1] * 47
    )
    assert now.open_slots == frozenset() and now.through_ms == START + 99 * HOUR
    assert starts(take(now, [tick(9001, 60 * 101 + 3)])) == [99, 100]


def test_slots_that_the_ledger_has_archived_are_passed_over():
    rules = replace(WALL, windows=replace(WALL.windows, archived_ms=START + 24 * HOUR))
    log = [record(1, 30, ping("a", 30)), tick(2, 60 * 26)]
    assert starts(take(reader(rules, SourceCheckpoint(0, START)), log)) == [24]


@pytest.mark.parametrize("cut", [1, 7, 1000])
def test_a_plate_has_a_ping_a_second_and_takes_no_room_from_others(cut):
    flood = [record(at, 1, ping("ab"[at % 100 == 99], 1)) for at in range(1, 500)]
    log, now = [tick(0, 0), *flood, tick(500, 4)], reader(MINUTES)
    taken = [take(now, log[at : at + cut]) for at in range(0, len(log), cut)]
    (slot,) = [slot for some in taken for slot in some.closed if slot.plates]
    assert np.bincount(slot.plate).tolist() == [60, 5]
    refused = [one for some in taken for one in some.refused]
    assert {one.refusal.reason for one in refused} == {Reason.SLOT_FULL} and len(
        refused
    ) == 499 - 5 - 60
    assert min(one.offset for one in refused) == 61


def test_every_slot_closes_on_days_of_23_and_25_hours():
    for day, hours in (("2024-03-31", 23), ("2024-10-27", 25)):
        grid = SlotGrid(3600, ZoneInfo("Europe/Berlin"))
        begins = (
            int(np.datetime64(f"{day}T00:00", "ms").astype(int)) - (1 if hours == 23 else 2) * HOUR
        )
        minute = (begins - START) / MINUTE
        taken = take(
            reader(replace(WALL, grid=grid)), [tick(0, minute), tick(1, minute + 60 * hours + 2)]
        )
        assert len(taken.closed) == hours
        assert all(
            one.end_ms == other.start_ms
            for one, other in zip(taken.closed, taken.closed[1:], strict=False)
        )


@pytest.mark.parametrize("movement", [None, PingRules(max_kmh=65, reject_above_kmh=200)])
def test_a_span_of_a_recording_closes_at_its_end_in_order_and_nothing_is_late(movement):
    rules = replace(WALL.windows, movement=movement)
    windows = Windows(
        rules, str.encode, SpanClock(WALL.grid.between(START + HOUR, START + 4 * HOUR, 99))
    )
    minutes = [150, 61, 60, 59, 240, 239, 61.5, 10_000]
    for minute in minutes:
        decoded, _ = WALL.decoder.decode([_ping("a", minute)])
        placed = WALL.grid.place(decoded.time_ms)
        closed, refused = windows.push(
            Frame(decoded, Hexagons(7).cells_of(decoded.lat, decoded.lon), *placed)
        )
        inside = 60 <= minute < 240
        assert closed == [] and [one.reason for one in refused] == [Reason.TIME_OUT_OF_RANGE] * (
            not inside
        )
    slots = windows.flush()
    assert [(slot.start_ms - START) // HOUR for slot in slots] == [1, 2, 3]
    assert movement or [slot.time.size for slot in slots] == [3, 1, 1]


def test_a_clock_that_may_not_hear_goes_by_wall_and_monotonic_time_alone():
    now = {"wall": 7000.0, "steady": 10.0}
    clock = SteadyClock(lambda: now["wall"], lambda: now["steady"], 60.0, hears=False)
    clock.hear(np.array([1_000, 2_000]))
    assert clock.tick_s() == 7000.0
    now.update(wall=7900.0, steady=910.0)
    assert clock.tick_s() == 7900.0  # pings as old as the first would have held it up
    now.update(wall=9000.0, steady=911.0)
    clock.hear(np.array([9_000_000]))
    assert clock.tick_s() == 7901.0 and not clock.has_lasted(2000.0)  # pings speak for no jump
    now.update(wall=9600.0, steady=1511.0)
    assert clock.tick_s() == 9600.0


@pytest.mark.parametrize("rules", [WALL, RULES])
def test_refusals_that_are_on_their_way_hold_up_no_tick(rules):
    protocol = SourceProtocol(0, 1, reader(rules))
    take(protocol, [tick(0, 0)])
    protocol.done(protocol.next())
    take(protocol, [record(1, 1, b"not json")])
    assert isinstance(protocol.next(), SendRefused)
    assert protocol.wants_tick(START + 5 * HOUR) == (rules is WALL)
    protocol.ticked()
    assert not protocol.wants_tick(START + 5 * HOUR)
    take(protocol, [tick(2, 2)])
    assert protocol.wants_tick(START + 5 * HOUR) == (rules is WALL)


def test_an_empty_slot_travels_and_is_held_until_every_source_has_closed_it():
    (full,) = take(reader(), [tick(0, 0), record(1, 5, ping("a", 5)), tick(2, 62)]).closed
    (empty,) = take(reader(), [tick(0, 0), tick(2, 62)]).closed
    for closed, plates in (([empty, empty], 0), ([empty, full], 1), ([full, empty], 1)):
        barrier, offset = SlotBarrier(PingChunk, PingsEnd, senders=2), 0
        for source, slot in enumerate(closed):
            assert barrier.due() == []
            for one in cut_pings(slot, source, 1, least=1):
                barrier.add(offset, decode_message(encode_message(one)))
                offset += 1
        assert barrier.due() == [START]
        pings = merge_pings(barrier.collect(START))
        counts, values = tabulate(pings)
        assert len(pings.plates) == counts.cells.size == values.speed.size == plates
        *chunks, end = cut_counts(counts, 0)
        assert (
            isinstance(end, CountsEnd)
            and end.chunks == len(chunks) == 1
            and isinstance(chunks[0], CountChunk)
        )
        merged = merge_counts(chunks)
        assert (merged.cells.tolist(), merged.count.tolist()) == (
            counts.cells.tolist(),
            counts.count.tolist(),
        )
        assert (merged.start_ms, merged.hat_rows.tolist()) == (START, counts.hat_rows.tolist())
