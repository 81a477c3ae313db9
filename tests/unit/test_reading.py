"""A reader of a source partition: killed anywhere and started from its checkpoint, it closes the
same slots."""

import random
from dataclasses import replace
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from streams.wire import cut_pings, encode_message
from tests.forms import long_but, soaked
from udp_stream.pings.decode import PingDecoder, PingRules, Reason
from udp_stream.pings.json import JSON
from udp_stream.windows.clocks import LogPlaces, WindowRules
from udp_stream.windows.slots import ReadingRules, SourceCheckpoint, SourceReader
from udp_stream.windows.tables import SlotGrid

HOUR = 3_600_000
RULES = ReadingRules(
    PingDecoder(PingRules(max_kmh=65, reject_above_kmh=200), JSON),
    WindowRules(grace_ms=120_000),
    SlotGrid(3600, ZoneInfo("UTC")),
    str.encode,
)
START = 1_704_067_200_000


def ping(plate, minute, speed=20):
    hour, minute = divmod(minute, 60)
    return (
        b'{"license_plate": "%s", "observationDateTime": "2024-01-01T%02d:%02d:00Z", "speed": %d, "location": '
        b'{"type": "Point", "coordinates": [72.8, 21.1]}}' % (plate.encode(), hour, minute, speed)
    )


class Record(NamedTuple):
    offset: int
    append_ms: int
    value: bytes
    tick: bool


def record(offset, minute, value, tick=False):
    return Record(offset, START + minute * 60_000, value, tick)


def take(reader, records):
    offset, append_ms, values, tick = zip(*records, strict=True)
    return reader.read(values, LogPlaces(np.array(offset), np.array(append_ms), np.array(tick)))


def a_log(seed, size=300):
    """Pings in rough order, some late, from the future or broken, and now and then a tick; offsets
    have gaps."""
    dice = random.Random(seed)
    offset, log = 0, []
    for i in range(size):
        offset += dice.choice([1, 1, 1, 2])
        now = i * 3
        what = dice.random()
        if what < 0.03:
            log.append(record(offset, now, b"", tick=True))
        elif what < 0.06:
            log.append(record(offset, now, b"not json"))
        else:
            behind = dice.choice([0, 1, 2, 30, 90, -5])
            log.append(record(offset, now, ping(dice.choice("abc"), max(0, now - behind))))
    return log


def outcome(taken):
    """All that a slot says, row by row: what is cut out of it later depends on the order."""
    slots = [
        (
            s.start_ms,
            s.end_ms,
            s.partial,
            s.plates,
            *(column.tolist() for column in (s.plate, s.time, s.cell, s.speed)),
        )
        for s in taken.closed
    ]
    return slots, [(r.offset, r.refusal.reason, r.original) for r in taken.refused]


@pytest.mark.parametrize("seed", range(8))
def test_killed_anywhere_it_goes_on_from_its_checkpoint_as_if_nothing_had_been(seed):
    log = a_log(seed)
    whole = outcome(take(SourceReader(RULES, SourceCheckpoint(0)), log))
    assert whole[0] and {Reason.LATE, Reason.TIME_IN_FUTURE, Reason.NOT_JSON} <= {
        reason for _, reason, _ in whole[1]
    }
    dice = random.Random(f"kill {seed}")
    slots, refused = [], []
    checkpoint, reader, at = SourceCheckpoint(0), SourceReader(RULES, SourceCheckpoint(0)), 0
    while at < len(log):
        size = dice.randint(1, 40)
        taken = outcome(take(reader, log[at : at + size]))
        slots += taken[0]
        refused += taken[1]
        at += size
        checkpoint = reader.checkpoint()
        if (
            dice.random() < 0.3
        ):  # dies; another goes on, from the checkpoint or, as Faust does, a little before
            reader = SourceReader(RULES, checkpoint)
            at = next((i for i, r in enumerate(log) if r.offset >= checkpoint.offset), len(log))
            at = max(0, at - dice.randint(0, 2))
    assert (slots, refused) == whole


def crowded_log(seed, size=400):
    """Buses that ping in ever another order, some twice (elsewhere, or with another speed), some
    late."""
    dice, log = random.Random(seed), []
    while len(log) < size:
        now = len(log) // 5
        for plate in dice.sample("abcdefgh", 5):
            behind = dice.choice([0, 0, 0, 1, 70])
            for _ in range(dice.choice([1, 1, 2])):
                message = ping(plate, max(0, now - behind)).replace(
                    b"20,", b"%d," % dice.choice([20, 30])
                )
                message = message.replace(b"72.8", dice.choice([b"72.7", b"72.8"]))
                log.append(record(len(log), now, message))
    return [*log, record(len(log), size, ping("a", size))]


@pytest.mark.parametrize("pings_max", [1000, 70])
@pytest.mark.parametrize("seed", [*long_but(range(2), range(4)), *soaked(range(4, 8))])
def test_parts_are_the_same_however_fetches_cut_the_log(seed, pings_max):
    log = crowded_log(seed)
    rules = replace(RULES, windows=replace(RULES.windows, pings_per_slot_max=pings_max))

    def chunks_of(fetch):
        reader = SourceReader(rules, SourceCheckpoint(0))
        taken = [take(reader, log[at : at + fetch]) for at in range(0, len(log), fetch)]
        messages = [
            one
            for some in taken
            for slot in some.closed
            for one in cut_pings(slot, 0, 2, rows_max=40)
        ]
        return [encode_message(one) for one in messages]

    whole = chunks_of(len(log))
    assert len(whole) > 6
    assert all(chunks_of(fetch) == whole for fetch in (1, 7, 30, 150))


def test_the_checkpoint_is_the_oldest_ping_in_an_open_slot():
    reader = SourceReader(RULES, SourceCheckpoint(0))
    take(reader, [record(5, 50, ping("a", 50)), record(6, 61, ping("b", 61))])
    gaps = ((START - 24 * HOUR, START + 50 * 60_000),)  # of the slot that is open
    assert reader.checkpoint() == SourceCheckpoint(5, START + 60 * 60_000, 7, gaps=gaps)
    assert [s.start_ms for s in take(reader, [record(7, 64, ping("a", 64))]).closed] == [START]
    assert reader.checkpoint() == SourceCheckpoint(6, START + 63 * 60_000, 8)


@pytest.mark.parametrize("first", [10, 29, 33, 50])
@pytest.mark.parametrize(
    ("old", "speed"),
    [
        (0, lambda at: 0),
        (0, lambda at: 20 * (at % 9 == 0)),
        (0, lambda at: 20 * (at < 270)),
        (9, lambda at: 20),
    ],
)
def test_a_slot_is_partial_if_less_than_half_of_it_was_read_whatever_the_speeds(first, old, speed):
    """Nor do a few old positions decide. A verdict from speeds would cost each plate something, and
    is charged to none. Buses may stand for an hour."""
    pings = [record(at, first, ping("abc"[at % 3], at * first // 9)) for at in range(old)]
    pings += [
        record(old + at, first + at // 9, ping("abcdefghi"[at % 9], first + at // 9, speed(at)))
        for at in range(9 * (60 - first))
    ]
    reader = SourceReader(RULES, SourceCheckpoint(0))
    slots = take(reader, [*pings, record(9999, 130, b"", tick=True)]).closed
    assert [(slot.start_ms, slot.partial) for slot in slots] == [(START, first > 30)]


def test_a_recording_that_is_sent_later_is_whole_from_where_it_begins():
    """It is as it is, and so is what a queue has held meanwhile: nobody reads more of it by
    beginning earlier."""
    log = [record(at, 5000, ping("a", 40 + at)) for at in range(20)] + [
        record(30, 5000, b"", tick=True)
    ]
    assert [
        slot.partial for slot in take(SourceReader(RULES, SourceCheckpoint(0)), log).closed
    ] == [False]
    reader = SourceReader(RULES, SourceCheckpoint(0, START))
    reader.not_read((START, START + HOUR))
    held = [record(at, 60, ping("a", at)) for at in range(60)] + [record(70, 130, b"", tick=True)]
    assert [slot.partial for slot in take(reader, held).closed] == [False]


def test_a_tick_closes_what_is_open_and_then_nothing_holds_the_checkpoint():
    reader = SourceReader(RULES, SourceCheckpoint(0))
    assert reader.through_ms is None and reader.tick_would_close(START)
    take(reader, [record(0, 50, ping("a", 50))])
    assert reader.through_ms == START
    assert not reader.tick_would_close(START + 62 * 60_000)
    assert reader.tick_would_close(START + 63 * 60_000)
    taken = take(reader, [record(1, 63, b"", tick=True)])
    assert [s.start_ms for s in taken.closed] == [START] and taken.refused == []
    assert reader.through_ms == START + HOUR
    assert reader.checkpoint().offset == 2
