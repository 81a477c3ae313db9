"""Moments of a source partition: the same, however fetches cut its log and wherever its reader is
killed."""

import random
from dataclasses import replace
from datetime import UTC

import pytest
from msgspec import structs

from streams.protocol import (
    AnswerShard,
    BarrierCheckpoint,
    SendMessages,
    ShardCheckpoint,
    ShardProtocol,
)
from streams.wire import (
    PingChunk,
    PositionChunk,
    PositionsEnd,
    SendChunks,
    SendRefused,
    SourceProtocol,
    cut_moment,
    encode_message,
    merge_moment,
)
from tests.forms import changed, long_but, soaked
from tests.unit.test_reading import HOUR, RULES, START, a_log, ping, record, take
from udp_stream.testing import a_moment
from udp_stream.windows.positions import MomentRules
from udp_stream.windows.slots import SourceCheckpoint, SourceReader
from udp_stream.windows.tables import SlotGrid

MINUTE = 60_000


def rules_of(*everies, age):
    return replace(
        RULES,
        moments=MomentRules(tuple(SlotGrid(60 * every, UTC) for every in everies), age * MINUTE),
    )


def told(read):
    return [
        (m.time_ms, m.plates, m.seen_ms.tolist(), m.lat.tolist(), m.lon.tolist())
        for m in read.moments
    ]


def placed_log(seed):
    """Each ping elsewhere, so that a moment shows which one it was made of."""
    return [
        changed(one, value=one.value.replace(b"72.8", b"72.%03d" % i))
        for i, one in enumerate(a_log(seed))
    ]


GRIDS = [(10, 10), (15, 40), (15, 2), (120, 200)]
"""Every so many minutes, positions at most so many minutes old."""


@pytest.mark.parametrize(("every", "age"), GRIDS)
@pytest.mark.parametrize("seed", [*long_but([1], range(1, 5)), *soaked(range(5, 12))])
def test_killed_anywhere_it_goes_on_from_its_checkpoint_as_if_nothing_had_been(seed, every, age):
    log, rules = placed_log(seed), rules_of(every, 30, age=age)
    whole = told(take(SourceReader(rules, SourceCheckpoint(0)), log))
    assert len(whole) > 5
    dice = random.Random(f"kill {seed}")
    found, reader, at = [], SourceReader(rules, SourceCheckpoint(0)), 0
    while at < len(log):
        size = dice.randint(1, 20)
        through = reader.moments_ms
        new = told(take(reader, log[at : at + size]))
        assert all(through is None or time_ms > through for time_ms, *_ in new)
        assert all(time_ms <= reader.moments_ms for time_ms, *_ in new)
        found += new
        at += size
        checkpoint = reader.checkpoint()
        if dice.random() < 0.3:
            reader = SourceReader(rules, checkpoint)
            assert reader.moments_ms == through or reader.moments_ms >= (through or 0)
            at = next((i for i, r in enumerate(log) if r.offset >= checkpoint.offset), len(log))
            at = max(0, at - dice.randint(0, 2))
    assert found == whole


@pytest.mark.parametrize(("every", "age"), GRIDS)
def test_however_fetches_cut_the_log_moments_hold_what_a_search_through_the_log_finds(every, age):
    """Lateness is judged in the log's order: a ping behind the one that makes a moment due is not
    in it."""
    log, rules = placed_log(7), rules_of(every, age=age)
    whole = told(take(SourceReader(rules, SourceCheckpoint(0)), log))
    assert whole == searched(log, every * MINUTE, age * MINUTE)
    for fetch in (1, 7, 30):
        reader = SourceReader(rules, SourceCheckpoint(0))
        assert [
            one
            for at in range(0, len(log), fetch)
            for one in told(take(reader, log[at : at + fetch]))
        ] == whole


def searched(log, every_ms, age_ms):
    """Record by record: the watermark by hand, each plate's latest by looking at all pings accepted
    so far; of several of one time it is the first."""
    watermark, accepted, through, found = None, [], None, []
    for one in log:
        row = seen(one)
        if row is not None:
            time_ms, plate, lon = row
            late = watermark is not None and (time_ms // HOUR + 1) * HOUR + 2 * MINUTE <= watermark
            if time_ms <= one.append_ms + 30_000:
                if not late:
                    accepted.append((plate, time_ms, lon, through))
                watermark = max(watermark or 0, time_ms - MINUTE)
        if one.tick:
            watermark = max(watermark or 0, one.append_ms - MINUTE)
        if watermark is None:
            continue
        until = (watermark - 2 * MINUTE) // every_ms * every_ms
        first = min((time_ms for _, time_ms, *_ in accepted), default=until) // every_ms * every_ms
        for moment in range(first if through is None else through + every_ms, until + 1, every_ms):
            held = {}
            for plate, time_ms, lon, _ in accepted:
                if moment - age_ms <= time_ms < moment and time_ms > held.get(plate, (0, 0.0))[0]:
                    held[plate] = time_ms, lon
            if held:
                plates = sorted(held)
                rows = [held[plate] for plate in plates]
                times, lons = [list(column) for column in zip(*rows, strict=True)]
                found.append((moment, tuple(plates), times, [21.1] * len(plates), lons))
        through = until
    return found


def seen(one):
    if not one.value.startswith(b"{"):
        return None
    text = one.value.decode()
    plate, clock = text.split('"')[3], text.split("2024-01-01T")[1][:8]
    hours, minutes, _ = map(int, clock.split(":"))
    return (
        START + hours * HOUR + minutes * MINUTE,
        plate.encode(),
        float(text.split("[")[1].split(",")[0]),
    )


def test_the_checkpoint_is_held_back_by_the_latest_position_of_a_plate_and_no_longer():
    reader = SourceReader(rules_of(15, age=10), SourceCheckpoint(0))
    take(
        reader, [record(5, 52, ping("a", 52)), record(6, 64, ping("b", 64))]
    )  # the slot before 1:00 is closed
    assert (
        reader.checkpoint().offset == 6 and reader.checkpoint().positions_ms is None
    )  # 0:52 is too old for 1:15
    reader = SourceReader(rules_of(5, age=10), SourceCheckpoint(0))
    take(reader, [record(5, 57, ping("a", 57)), record(6, 64, ping("b", 64))])
    assert reader.checkpoint() == SourceCheckpoint(5, START + 63 * MINUTE, 7, -(2**63))
    (moment,) = take(reader, [record(7, 68, ping("b", 68))]).moments
    assert moment.time_ms == START + 65 * MINUTE and moment.plates == (b"a", b"b")


def sent_of(log, meanwhile=None):
    """What a source sends and rejects of a log; it reads on while a step of this kind is carried
    out."""
    protocol = SourceProtocol(0, 1, SourceReader(rules_of(15, age=10), SourceCheckpoint(0)))
    batches = [log[at : at + 25] for at in range(0, len(log), 25)]
    refused, chunks = [], []
    while batches or protocol.next() is not None:
        step = protocol.next()
        if batches and type(step) in (meanwhile, type(None)):
            take(protocol, batches.pop(0))
        if isinstance(step, SendRefused):
            refused += [one.original for one in step.refused]
        elif step is not None:
            chunks += [one for one in step.messages if isinstance(one, PingChunk | PositionChunk)]
        if step is not None:
            protocol.done(step)
    return refused, sorted(chunks, key=encode_message)


@pytest.mark.parametrize("kind", [SendRefused, SendChunks])
def test_what_a_source_reads_while_it_sends_is_sent_next(kind):
    log = placed_log(1)
    sent = sent_of(log)
    assert sent_of(log, meanwhile=kind) == sent
    assert all(sent)


def test_a_tick_is_wanted_for_a_moment_too():
    reader = SourceReader(rules_of(15, age=10), SourceCheckpoint(0))
    take(reader, [record(0, 5, ping("a", 5))])
    assert not reader.tick_would_close(START + 17 * MINUTE) and reader.tick_would_close(
        START + 18 * MINUTE
    )
    assert [m.time_ms for m in take(reader, [record(1, 18, b"", tick=True)]).moments] == [
        START + 15 * MINUTE
    ]


@pytest.mark.parametrize(("every", "age"), GRIDS)
def test_no_moment_of_an_archived_time_is_told_nor_made_of_its_pings(every, age):
    """Of a log that is read anew: those that follow are those that there were, but for its pings."""
    log, rules = placed_log(7), rules_of(every, age=age)
    whole = told(take(SourceReader(rules, SourceCheckpoint(0)), log))
    archived_ms = START + HOUR
    reader = SourceReader(
        replace(rules, windows=replace(rules.windows, archived_ms=archived_ms)), SourceCheckpoint(0)
    )
    found = told(take(reader, log))
    assert all(time_ms > archived_ms for time_ms, *_ in found) and found
    far = archived_ms + age * MINUTE
    assert [one for one in found if one[0] > far] == [one for one in whole if one[0] > far]


QUARTER = 900_000
FIRST = a_moment().time_ms


def sent_by(source):
    """What a source sends of two moments: its own half of the plates; the second moment has none of
    source 1."""
    whole, rows = a_moment(), slice(4 * source, 4 * source + 4)
    columns = {name: getattr(whole, name)[rows] for name in ("plates", "lat", "lon", "seen_ms")}
    found = [*cut_moment(replace(whole, **columns), source, 0)]
    if source == 0:
        later = {**columns, "seen_ms": columns["seen_ms"] + QUARTER}
        found += cut_moment(replace(whole, time_ms=FIRST + QUARTER, **later), source, 0)
    return [*found, PositionsEnd(source, 0, FIRST + QUARTER)]


@pytest.mark.parametrize("committed", range(6))
def test_moments_that_a_source_sent_for_other_queries_are_skipped_also_after_a_takeover(committed):
    ours = [replace_asked(message) for message in sent_by(0)]
    third = replace(a_moment(), time_ms=FIRST + 2 * QUARTER)
    others = PositionsEnd(1, 0, FIRST + QUARTER, asked="others")
    whole = [message for source in (0, 1) for message in cut_moment(third, source, 0, "ours")]
    log = [others, *ours, *whole]
    protocol = asking_ours(ShardCheckpoint.at(0))
    for offset, message in enumerate(log[:committed]):
        protocol.add(offset, message)
    protocol = asking_ours(protocol.checkpoint())
    for offset, message in enumerate(log):
        protocol.add(offset, message)
    times = []
    while (step := protocol.next()) is not None:
        if isinstance(step, SendMessages):
            protocol.sent(step)
        else:
            times.append(step.time_ms)
            protocol.answering(step)
            protocol.answered(step)
    assert times == [FIRST + 2 * QUARTER]


@pytest.mark.parametrize("first", [0, 1])
def test_of_two_positions_of_one_time_that_of_the_lowest_source_counts(first):
    """Whichever comes first: else an answer would not follow from what the sources sent."""
    moment = a_moment()
    elsewhere = replace(moment, lon=moment.lon + 1)
    sent = [[*cut_moment(moment, 2, 0)], [*cut_moment(elsewhere, 5, 0)]]
    log = sent[first] + sent[1 - first]
    found = merge_moment([one for one in log if isinstance(one, PositionChunk)])
    assert found.plates == moment.plates
    assert found.lon.tolist() == moment.lon.tolist()


def test_a_moment_that_was_skipped_stays_skipped_whoever_else_skips_less():
    """It lacks the positions of a source that sent them for other queries."""
    second = replace(a_moment(), time_ms=FIRST + QUARTER)
    log = [
        PositionsEnd(0, 0, FIRST + QUARTER, asked="others"),
        PositionsEnd(1, 0, FIRST, asked="others"),
        *cut_moment(second, 1, 0, "ours"),
    ]
    protocol = asking_ours(ShardCheckpoint.at(0))
    for offset, message in enumerate(log):
        protocol.add(offset, message)
    assert not isinstance(protocol.next(), AnswerShard)
    assert protocol.answered_ms == FIRST + QUARTER


def test_who_begins_to_ask_does_not_miss_what_was_sent_before():
    """A checkpoint without moments may lie behind the positions of one, and before their end."""
    chunk, end = cut_moment(a_moment(), 0, 0, "ours")
    protocol = asking_ours(ShardCheckpoint(BarrierCheckpoint(1)))
    log = [chunk, end, PositionsEnd(1, 0, FIRST, asked="ours")]
    for offset, message in enumerate(log):
        protocol.add(offset, message)
    sending = protocol.next()
    assert sending is None or isinstance(sending, SendMessages)
    assert protocol.checkpoint().offset == len(log)


def asking_ours(start):
    return ShardProtocol(1, shards=2, sources=2, start=start, asks=True, asked="ours")


def replace_asked(message):
    return structs.replace(message, asked="ours") if isinstance(message, PositionsEnd) else message
