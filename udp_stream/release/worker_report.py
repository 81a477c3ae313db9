"""What a worker, or a live run, says of itself every few seconds: a report, for operators only.

A report holds counts, times, offsets and public settings. It never holds a plate, a speed, a position or a cell: `hats`
says how many cells a slot has, not which. The counts are exact, without noise, and a deployment with
`release.counts = "none"` does not publish them: keep reports from readers of releases.

On Kafka a report is the latest record of its worker on `bus.workers.v1`; a live run keeps it in its journal's folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

SCHEMA = "udp-stream/worker/1"

SLOTS_MAX = 48
"""Slots that one report lists: two days of hours. A clock that is days ahead opens more; then the oldest are listed."""

Runtime = Literal["worker", "run"]


class OpenSlotReport(msgspec.Struct, frozen=True):
    """A slot that is open here: its pings, repeats included, and its HATs so far.

    >>> OpenSlotReport("2024-01-08T09:00:00+05:30", "2024-01-08T10:00:00+05:30", pings=840, hats=2).hats
    2
    """

    slot_start: str
    slot_end: str
    pings: int
    hats: int


class ClosingSlotReport(msgspec.Struct, frozen=True):
    """A slot that is closed and not out yet: how far it is (`lifecycle.SlotState`), and since when the worker has it.

    >>> ClosingSlotReport("2024-01-08T09:00:00+05:30", state="counted", seconds=0.4).state
    'counted'
    """

    slot_start: str
    state: str
    seconds: float


class PartitionReport(msgspec.Struct, frozen=True):
    """A partition that the worker holds: the next offset that it reads, and how many messages it has not read yet.

    `topic` is the topic's name without prefix. `unread` is None if the broker did not say where the partition ends.

    >>> PartitionReport("bus.pings.v1", 0, next_offset=1200, unread=3).unread
    3
    """

    topic: str
    partition: int
    next_offset: int
    unread: int | None


class LastRelease(msgspec.Struct, frozen=True):
    """The slot that readers got last from this worker, its HATs by status, and when the last of them was out.

    >>> LastRelease("2024-01-08T09:00:00+05:30", {"released": 2}, "2024-01-08T10:02:01+05:30").hats
    {'released': 2}
    """

    slot_start: str
    hats: Mapping[str, int]
    out_at: str


class About(msgspec.Struct, frozen=True):
    """What does not change in a worker's life. `settings` are the keys behind the digest `policy`; `rules` are further
    keys that all workers of a deployment need alike. `is_named`: `instance` is a name for ever (`--instance`).

    >>> About("one", True, "worker", "udp-stream 0.1.0", "udp-stream", "5eed", "cafe", {}, {}, "now", 10.0).instance
    'one'
    """

    instance: str
    is_named: bool
    runtime: Runtime
    software: str
    group: str
    ledger_id: str
    policy: str
    settings: Mapping[str, str]
    rules: Mapping[str, str]
    started_at: str
    every_seconds: float


class Work(msgspec.Struct, frozen=True):
    """What does change. `pings` (accepted) and `refused` (by reason) are those of the last `window_seconds`.

    `stuck_seconds` is 0 unless there was work to do and none was done for long. `ended` is an exit status: the worker
    has ended with it. `open_pings` counts all open slots, `open_slots` lists at most `SLOTS_MAX`. `next_close_by`: what
    has to show `next_close`: the clock on the wall, or the times of pings that are far behind it.

    >>> Work("2024-01-08T09:00:00+05:30", "2024-01-08T10:02:00+05:30").partitions
    ()
    """

    reported_at: str
    next_close: str
    partitions: tuple[PartitionReport, ...] = ()
    open_slots: tuple[OpenSlotReport, ...] = ()
    open_pings: int = 0
    closing: tuple[ClosingSlotReport, ...] = ()
    last_release: LastRelease | None = None
    newest_ping: str | None = None
    pings: int = 0
    refused: Mapping[str, int] = {}
    window_seconds: int = 600
    stuck_seconds: float = 0.0
    ended: int | None = None
    next_close_by: Literal["clock", "pings"] = "clock"


class WorkerReport(msgspec.Struct, frozen=True):
    """A whole report.

    >>> from udp_stream.testing import a_report
    >>> decode_report(encode_report(a_report("one"))) == a_report("one")
    True
    """

    about: About
    work: Work
    schema: Literal["udp-stream/worker/1"] = "udp-stream/worker/1"


encode_report = msgspec.json.Encoder().encode
_DECODER = msgspec.json.Decoder(WorkerReport)


def decode_report(payload: bytes) -> WorkerReport | None:
    """Undo `encode_report`; None for what is no report, as that of a later version.

    >>> decode_report(b"{}") is None
    True
    """
    try:
        return _DECODER.decode(payload)
    except msgspec.DecodeError:
        return None
