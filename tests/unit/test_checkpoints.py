"""What is committed with an offset fits into what brokers take, and comes back as it was."""

import random

import pytest

from streams.processors import decode_checkpoint, encode_checkpoint
from streams.protocol import NOT_YET, BarrierCheckpoint, ShardCheckpoint
from udp_stream.ledger.port import Mark

START, HOUR = 1_704_067_200_000, 3_600_000
MARK = Mark("a" * 32, 0, 10**6, 10**6, "87608c4d2ffffff-1704673800-3600", b"x" * 16)


@pytest.mark.parametrize("hours", [2, 1000])
def test_256_sources_and_shards_of_any_age_fit_into_the_metadata_of_a_commit(hours):
    """Each source is somewhere else; its moments are at most an hour ahead of its slots, as one
    clock moves both."""
    dice = random.Random(1)
    slots, counts = ([START + dice.randrange(hours) * HOUR for _ in range(256)] for _ in range(2))
    moments = tuple(ms + dice.randrange(4) * HOUR // 4 for ms in slots)
    whole = ShardCheckpoint(
        BarrierCheckpoint(10**9, tuple(slots), START),
        BarrierCheckpoint(10**9 + 5, tuple(counts)),
        BarrierCheckpoint(10**9 + 9, moments, START + HOUR),
    )
    written = encode_checkpoint(whole, "b" * 32 + "." + "c" * 32, MARK)
    assert len(written) <= 4096
    assert decode_checkpoint(written, whole.offset) == (whole, "b" * 32 + "." + "c" * 32, MARK)


@pytest.mark.parametrize(
    "moments", [None, BarrierCheckpoint(7), BarrierCheckpoint(7, (NOT_YET, START, START), HOUR)]
)
def test_sources_that_have_sent_nothing_yet_come_back_as_such(moments):
    whole = ShardCheckpoint(BarrierCheckpoint(9, (START, NOT_YET)), None, moments)
    assert decode_checkpoint(encode_checkpoint(whole, "", None), whole.offset).checkpoint == whole


PARTS = (
    BarrierCheckpoint(6, (START,), START),
    BarrierCheckpoint(7, (START,), START),
    BarrierCheckpoint(9, (START,), START),
    BarrierCheckpoint(2, (START,), START),
)
"""Of the shard, the planner, moments, and the day."""


@pytest.mark.parametrize(("parts", "read_to"), [(1, 6), (2, 7), (3, 9), (4, 9)])
def test_all_is_read_up_to_where_the_furthest_part_resumes(parts, read_to):
    """A log that ends before has lost what was read of it. The day's slots are read again."""
    assert ShardCheckpoint(*PARTS[:parts]).read_to == read_to


def test_every_part_is_read_again_from_an_earlier_offset_and_what_is_done_stays_done():
    again = ShardCheckpoint(*PARTS).with_offset(1)
    parts = (again.shard, again.planner, again.moments, again.day)
    assert parts == (BarrierCheckpoint(1, (START,), START),) * 4


def test_every_part_goes_back_where_the_clock_of_the_log_was_ahead():
    back = ShardCheckpoint(*PARTS).back_to(START - 1)
    parts = (back.shard, back.planner, back.moments, back.day)
    assert parts == tuple(BarrierCheckpoint(one.offset, (NOT_YET,)) for one in PARTS)
