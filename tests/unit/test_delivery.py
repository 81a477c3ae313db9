"""Releases to sinks and back from readers: every sink gets the same bytes."""

import asyncio
import io
import random
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from faust.types import TP

from tests.runtime.harness import CONFIG, embedded, fleet_log, frames_of
from tests.unit.test_processors import TOPICS, Worker, filled
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.release.facts import PublishedRelease, SlotRecorded, Summary, fan_out, releases_of
from udp_stream.runtime.embedded import Embedded, record_writer
from udp_stream.settings import load
from udp_stream.testing import SeededEntropy


class Map:
    """A toy sink: the latest mean of each cell, by what the record says."""

    def __init__(self):
        self.means, self.slots = {}, 0

    def add(self, releases):
        self.slots += 1
        for one in releases:
            self.means[one.record.release_id] = one.record.mean and one.record.mean.value_kmh


def runtime(*sinks, ledger=None):
    return Embedded(
        load(None, CONFIG, {}),
        MemoryLedger() if ledger is None else ledger,
        SeededEntropy(1),
        lambda plate: plate.encode().ljust(32),
        "test",
        fan_out(*sinks),
    )


def test_a_toy_sink_beside_the_file_gets_every_slot():
    out, city = io.BytesIO(), Map()
    summary = runtime(record_writer(out), city.add).run(frames_of(fleet_log(hours=0.6)))
    lines = out.getvalue().splitlines()
    assert lines
    assert city.slots == summary.slots > 1
    records = [release.record for release in releases_of(io.BytesIO(out.getvalue()))]
    assert city.means == {one.release_id: one.mean and one.mean.value_kmh for one in records}
    assert any(city.means.values()) and sum(summary.hats.values()) == len(lines)


def test_sinks_behind_one_that_fails_get_the_slot_on_the_next_run_with_the_same_bytes():
    ledger, before, behind = MemoryLedger(), io.BytesIO(), io.BytesIO()

    def full(_releases):
        raise OSError("disk full")

    failing = runtime(record_writer(before), full, record_writer(behind), ledger=ledger)
    with pytest.raises(OSError, match="disk full"):
        failing.run(frames_of(fleet_log(hours=0.6)))
    assert failing.summary.unwritten and failing.summary.slots == 1 and behind.getvalue() == b""
    again = runtime(record_writer(behind), ledger=ledger)
    again.run(frames_of(fleet_log(hours=0.6)))
    assert before.getvalue() and behind.getvalue().startswith(before.getvalue())
    assert again.summary.made == behind.getvalue().count(b"\n") - before.getvalue().count(b"\n")


def test_on_kafka_the_summary_counts_what_was_published():
    broker = filled()

    async def run(thread):
        summary = Summary()
        await Worker(broker, MemoryLedger(), thread, observers=[summary.observe]).run(random.Random(0))
        return summary

    with ThreadPoolExecutor(1) as thread:
        summary = asyncio.run(run(thread))
    published = [one.value for one in broker.logs[TP(TOPICS.release.name, 0)]]
    assert summary.hats.total() == len(published) > 0 and summary.slots > 1


def test_the_summary_counts_a_slot_without_hats_too():
    summary = Summary()
    summary.observe(SlotRecorded(0, 0, 0))
    assert summary.slots == 1 and summary.hats.total() == 0


def test_a_file_read_back_gives_its_lines_and_their_records(tmp_path):
    with (tmp_path / "out").open("wb") as out, embedded(tmp_path / "ledger", out) as run:
        run.run(frames_of(fleet_log(hours=0.6)))
    with (tmp_path / "out").open("rb") as file:
        found = list(releases_of(file))
    lines = (tmp_path / "out").read_bytes().splitlines()
    assert [one.payload for one in found] == lines
    assert [one.record.schema for one in found] == ["udp-stream/release/1"] * len(lines)


def test_a_line_cut_short_is_no_release_and_one_of_another_kind_says_so_when_it_is_looked_at():
    (whole,) = releases_of([b'{"schema": "another"}\n', b'{"schema": "udp-str'])
    assert whole.payload == b'{"schema": "another"}'
    with pytest.raises(msgspec.ValidationError):
        _ = whole.record
    with pytest.raises(msgspec.DecodeError):
        _ = PublishedRelease(b"junk").record
