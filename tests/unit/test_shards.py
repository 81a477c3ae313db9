"""Chunks and barriers: cut and merged in any order, twice, lost and resumed, a slot comes out once
and whole."""

import random
from collections import defaultdict
from dataclasses import replace
from itertools import count
from operator import itemgetter

import numpy as np
import pytest

from streams.protocol import NOT_YET, BarrierCheckpoint, SlotBarrier
from streams.wire import (
    PingChunk,
    PingsEnd,
    cut_pings,
    decode_message,
    encode_message,
    merge_pings,
)
from udp_stream.base.errors import DependencyUnavailable, PrivacyRefused, UdpStreamError
from udp_stream.windows.tables import PINGS_MAX, SlotPings, require_countable, tabulate

HOUR = 3_600_000
first = itemgetter(0)


def some_slot(seed, start=0, size=200):
    dice = np.random.default_rng(seed)
    plates = tuple(f"plate{i:011}".encode() for i in range(20))
    return SlotPings(
        start, start + HOUR, plates, dice.integers(0, 20, size).astype(np.uint32),
        dice.integers(0, HOUR, size).astype(np.uint32), dice.integers(1, 9, size).astype(np.uint64) << np.uint64(30),
        dice.integers(0, 1000, size).astype(np.int32),
    )  # fmt: skip


def table(slot):
    counts, values = tabulate(slot)
    rows = zip(np.repeat(np.arange(counts.cells.size), np.diff(counts.hat_rows)).tolist(), counts.plate.tolist(),
               counts.count.tolist(), strict=True)  # fmt: skip
    return (
        counts.cells.tolist(),
        [(h, counts.plates[p], c) for h, p, c in rows],
        values.speed.tolist(),
        counts.repeats,
    )


def pings_of(sources, start=None, accept_loss=False):
    """What a shard reads."""
    return SlotBarrier(PingChunk, PingsEnd, sources, start, accept_loss)


def collected(shard, start):
    return table(merge_pings(shard.collect(start)))


def chunks_of(slot, source=0, shards=1, rows_max=30):
    return [
        decode_message(encode_message(chunk)) for chunk in cut_pings(slot, source, shards, rows_max)
    ]


def test_cut_and_merged_it_is_the_same_slot():
    chunks = [p for p in chunks_of(some_slot(1)) if isinstance(p, PingChunk)]
    assert len(chunks) == 7
    random.Random(1).shuffle(chunks)
    assert table(merge_pings(chunks)) == table(some_slot(1))


def two_sources(plates=2, seconds=30):
    """Pings of one HAT that come by two source partitions, each within a limit of `plates *
    seconds` a slot."""
    for source in range(2):
        names = tuple(b"%d%07d" % (source, plate) for plate in range(plates))
        plate, time = np.divmod(np.arange(plates * seconds), seconds)
        cell = np.full(plate.size, 0x87608C4D2FFFFFF, np.uint64)
        yield SlotPings(HOUR, 2 * HOUR, names, plate.astype(np.uint32), time.astype(np.uint32), cell,
                        np.zeros(plate.size, np.int32))  # fmt: skip


@pytest.mark.parametrize("partial", [0, 1])
def test_a_slot_of_which_one_source_read_a_part_is_partial(partial):
    slots = [replace(some_slot(source), partial=source == partial) for source in range(2)]
    sent = [one for source, slot in enumerate(slots) for one in chunks_of(slot, source)]
    assert merge_pings([one for one in sent if isinstance(one, PingChunk)]).partial


TABLES = "udp_stream.windows.tables"


def test_sources_that_are_each_within_the_limit_are_counted_together(limits):
    """The limit on pings holds in each source partition: a HAT that has more is refused by cell,
    slot, number and rule, and with status 5."""
    merged = merge_pings([chunk for source, slot in enumerate(two_sources()) for chunk in chunks_of(slot, source)
                    if isinstance(chunk, PingChunk)])  # fmt: skip
    limits(TABLES, PINGS_MAX=120)
    assert tabulate(merged)[0].count.sum() == 120
    limits(TABLES, PINGS_MAX=119)
    with pytest.raises(PrivacyRefused) as refused:
        tabulate(merged)
    assert str(refused.value) == (
        "HAT 87608c4d2ffffff of the slot from 1970-01-01T01:00:00+00:00: expected at most 119 samples, got 120"
    )
    assert refused.value.exit_status == 5


def test_the_limit_is_of_a_hat_and_repeats_are_no_samples(limits):
    slot = some_slot(1)
    counts, _ = tabulate(
        merge_pings([p for p in chunks_of(slot) + chunks_of(slot, 1) if isinstance(p, PingChunk)])
    )
    most = max(counts.count[counts.rows(hat)].sum() for hat in range(counts.cells.size))
    assert counts.repeats >= 200 and most < counts.count.sum()
    limits(TABLES, PINGS_MAX=int(most))
    assert tabulate(slot)[0].count.tolist() == counts.count.tolist()
    limits(TABLES, PINGS_MAX=int(most) - 1)
    with pytest.raises(PrivacyRefused, match=f"expected at most {most - 1} samples, got {most}"):
        tabulate(slot)


@pytest.mark.parametrize("plates", [1, 3])
def test_more_than_two_to_the_28_samples_of_a_hat_are_refused_unless_told_otherwise(plates):
    """From the counts alone: that many pings need not be made."""
    counts, _ = tabulate(next(two_sources(plates)))
    few = np.zeros(plates, np.int64)
    few[0] = PINGS_MAX
    require_countable(replace(counts, count=few))
    few[-1] += 1
    with pytest.raises(PrivacyRefused, match=f"expected at most {2**28} samples, got {2**28 + 1}"):
        require_countable(replace(counts, count=few))


def test_a_full_chunk_stays_below_the_broker_s_usual_limit():
    size = 24_000
    plates = tuple(i.to_bytes(16) for i in range(size))
    slot = SlotPings(0, HOUR, plates, np.arange(size, dtype=np.uint32), np.full(size, HOUR, np.uint32),
                     np.full(size, 2**63, np.uint64), np.full(size, 2**30, np.int32))  # fmt: skip
    (chunk, _) = cut_pings(slot, 0, 1)
    assert len(encode_message(chunk)) < 1_000_000


def test_a_slot_is_due_when_every_source_has_closed_it():
    shard, offset = pings_of(2), count()
    for message in chunks_of(some_slot(1), source=0):
        shard.add(next(offset), message)
    assert shard.due() == []
    shard.add(next(offset), PingsEnd(1, 0, 5 * HOUR))
    assert shard.due() == [0]
    assert collected(shard, 0) == table(some_slot(1))
    assert shard.due() == [] and shard.checkpoint() == BarrierCheckpoint(0, (NOT_YET, NOT_YET))
    shard.done(0)
    assert shard.checkpoint() == BarrierCheckpoint(next(offset), (HOUR, 5 * HOUR), HOUR)


def test_a_chunk_that_never_came_stops_the_shard():
    shard = pings_of(1)
    for offset, message in enumerate(chunks_of(some_slot(1))[1:], start=1):
        shard.add(offset, message)
    with pytest.raises(UdpStreamError, match="missing"):
        shard.collect(0)


LOST = r"missing; .* how many: \{0: 7\}\. `udp-stream worker --accept-loss` continues without them"


@pytest.mark.parametrize("others", ["none", "before", "behind"])
def test_chunks_of_which_not_one_came_stop_the_shard_too(others):
    """Whatever else there is of the slot: it would be released without them, or not at all."""
    (*_, end), others_all = chunks_of(some_slot(1)), chunks_of(some_slot(2), source=1)
    runs = {
        "none": ([end], [PingsEnd(1, 0, HOUR)]),
        "before": (others_all, [end]),
        "behind": ([end], others_all),
    }
    shard = in_one_log(pings_of(2), *runs[others])
    assert shard.due() == [0] and shard.checkpoint().offset <= shard.next_offset - 2
    with pytest.raises(DependencyUnavailable, match=LOST):
        shard.collect(0)
    accepts = in_one_log(pings_of(2, accept_loss=True), *runs[others])
    if others == "none":
        assert accepts.due() == [] and accepts.checkpoint().offset == accepts.next_offset
    else:
        assert collected(accepts, 0) == table(some_slot(2))


def test_a_reader_that_resumes_before_the_marker_finds_the_chunks_missing_again():
    (*_, end), others = chunks_of(some_slot(1)), chunks_of(some_slot(2), source=1)
    shard = in_one_log(pings_of(2), [None] * 7, [end])
    resumed = pings_of(2, shard.checkpoint())
    for offset, message in enumerate([None] * 7 + [end, *others]):
        resumed.add(offset, message)
    with pytest.raises(DependencyUnavailable, match=LOST):
        resumed.collect(0)


def test_a_marker_that_comes_again_is_not_missed_its_chunks():
    """Nor one of a slot that was done before the checkpoint."""
    messages = chunks_of(some_slot(1))
    shard = in_one_log(pings_of(1), messages)
    shard.collect(0)
    shard.done(0)
    shard.add(len(messages), messages[-1])
    resumed = pings_of(1, BarrierCheckpoint(0, (NOT_YET,), HOUR))
    resumed.add(3, messages[-1])
    assert shard.due() == resumed.due() == [] and resumed.checkpoint().offset == 4


def in_one_log(shard, *runs):
    for offset, message in enumerate(message for run in runs for message in run):
        shard.add(offset, message)
    return shard


def fewer(slot, size):
    return replace(
        slot, **{name: getattr(slot, name)[:size] for name in ("plate", "time", "cell", "speed")}
    )


def test_chunks_of_a_cut_that_was_never_closed_count_for_nothing():
    """A worker died within a slot, and the next one reads fewer pings: a box was set, or the log
    was cut off."""
    left, whole = chunks_of(some_slot(1))[:3], chunks_of(fewer(some_slot(1), 40))
    assert [len([one for one in some if isinstance(one, PingChunk)]) for some in (left, whole)] == [
        3,
        2,
    ]
    shard = in_one_log(pings_of(1), left, whole)
    assert shard.due() == [0] and collected(shard, 0) == table(fewer(some_slot(1), 40))


def test_of_two_cuts_that_were_closed_the_first_counts():
    one, other = some_slot(1), fewer(some_slot(1), 40)
    shard = in_one_log(pings_of(2), chunks_of(one), chunks_of(other), [PingsEnd(1, 0, HOUR)])
    assert collected(shard, 0) == table(one)
    shard = in_one_log(
        pings_of(2), chunks_of(other), chunks_of(one), [PingsEnd(1, 0, HOUR)], chunks_of(one)
    )
    assert collected(shard, 0) == table(other)


def test_a_source_that_begins_again_earlier_opens_no_slot_that_it_has_closed():
    one, other = some_slot(1, HOUR), fewer(some_slot(1, HOUR), 40)
    shard = in_one_log(
        pings_of(2), chunks_of(some_slot(3)), chunks_of(one), chunks_of(some_slot(3))
    )
    shard.add(shard.next_offset, PingsEnd(1, 0, 2 * HOUR))
    assert shard.due() == [0, HOUR]  # what it closes again holds up nothing
    read = shard.next_offset
    in_one_log(shard, chunks_of(some_slot(3)))  # read again from the beginning
    assert shard.next_offset == read
    in_one_log(shard, [None] * shard.next_offset, chunks_of(other))
    assert collected(shard, HOUR) == table(one)


def test_a_slot_of_which_only_chunks_are_left_that_count_for_nothing_is_no_slot():
    shard = in_one_log(
        pings_of(2), chunks_of(some_slot(1))[:2], [PingsEnd(0, 0, HOUR), PingsEnd(1, 0, HOUR)]
    )
    assert shard.due() == [] and shard.checkpoint().offset == shard.next_offset
    assert shard.checkpoint() == BarrierCheckpoint(4, (HOUR, HOUR))
    in_one_log(
        shard, [], [None] * 4, chunks_of(some_slot(1))
    )  # its source has closed it without them
    assert shard.due() == [] and shard.checkpoint().offset == shard.next_offset


@pytest.mark.parametrize("message", [PingsEnd(2, 0, HOUR), chunks_of(some_slot(1), source=2)[0]])
def test_a_source_more_than_it_knows_stops_the_shard(message):
    with pytest.raises(UdpStreamError, match="expected senders 0 to 1"):
        pings_of(2).add(0, message)


def test_fewer_sources_than_a_checkpoint_knows_stop_the_shard():
    with pytest.raises(UdpStreamError, match="expected at least 2 senders, got 1"):
        pings_of(1, BarrierCheckpoint(0, (HOUR, HOUR)))


def test_what_is_skipped_is_done_but_for_the_slot_whose_outcome_is_under_way():
    shard = SlotBarrier(PingChunk, PingsEnd, 1, skips=lambda marker: not marker.chunks)
    in_one_log(shard, chunks_of(some_slot(1)), chunks_of(some_slot(2, HOUR)))
    shard.collect(0)
    shard.add(shard.next_offset, PingsEnd(0, 0, 2 * HOUR))
    assert shard.due() == [] and shard.holds(0) and not shard.holds(HOUR)
    assert shard.checkpoint(done=0).done_ms == 2 * HOUR
    shard.done(0)
    assert shard.clear_ms == shard.checkpoint().done_ms == 2 * HOUR


def slots_sent(seed, sources=3, slots=4):
    """What sources send, and the tables that it says: slot after slot, each source at its own pace.
    Now and then a worker dies within a slot, or behind it, or is slow to leave; the next reads the
    same, or under other settings something else, or nothing."""
    dice = random.Random(seed)
    sending, said = [], defaultdict(list)
    for source in range(sources):
        sent = []
        for slot in range(slots):
            one, other = (some_slot(s + seed * 100 + source * 10 + slot, slot * HOUR, dice.choice([20, 200]))
                          for s in (0, 10**6))  # fmt: skip
            messages, others = chunks_of(one, source), chunks_of(other, source)
            for begun in (messages, others):
                sent += begun[: dice.randint(0, len(begun) - 1)] if dice.random() < 0.4 else []
            if dice.random() < 0.2:
                sent += [
                    PingsEnd(source, 0, (slot + 1) * HOUR),
                    *(others if dice.random() < 0.3 else []),
                ]
                continue
            said[slot * HOUR] += [one for one in messages if isinstance(one, PingChunk)]
            interrupted = sorted(
                [*enumerate(messages), *enumerate(others[:-1], start=dice.randint(0, 5))], key=first
            )
            sent += dice.choice(
                [messages, messages * 2, messages + others, [one for _, one in interrupted]]
            )
        sending.append(sent)
    log = []
    while any(sending):
        log.append(dice.choice([sent for sent in sending if sent]).pop(0))
    return log, [(start, table(merge_pings(chunks))) for start, chunks in sorted(said.items())]


@pytest.mark.parametrize("seed", range(40))
def test_of_each_source_a_slot_holds_what_was_closed_first_and_nothing_else(seed):
    log, tables = slots_sent(seed)
    assert list(run(log)) == tables


def run(log):
    """What is collected of a log that is read to its end."""
    shard = pings_of(3)
    for offset, message in enumerate(log):
        shard.add(offset, message)
        for start in shard.due():
            yield start, collected(shard, start)
            shard.done(start)
    assert shard.through_ms != NOT_YET
