"""The embedded runtime: from frames of messages to releases in a single process, without services.

* `EmbeddedRuntime` reads a recording, by times of its pings. At its end every open slot closes;
  where whole plates are hidden, every slot of a public span of time.
* `LiveRuntime` reads a journal of what arrived, by times of arrival, as Kafka's workers read a
  partition. A checkpoint says from where on the journal is still needed.

After a kill, a run on the same log and ledger gives recorded releases as the same bytes, and does
the rest once.
"""

from __future__ import annotations

import base64
import logging
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from udp_stream.base.errors import ConfigError, DataLoss
from udp_stream.base.files import bytes_of, write_whole
from udp_stream.base.logs import INFO, WARNING, log_message
from udp_stream.base.units import parse_duration
from udp_stream.ledger.port import Entropy, Ledger, LedgerView
from udp_stream.ledger.rules import archived_s, caveats
from udp_stream.ledgers.opening import ledger_place
from udp_stream.pings.decode import PingFormat, Reason, Refusal
from udp_stream.pings.json import JSON
from udp_stream.planning.policy import note_policy
from udp_stream.release.charge import ReleaseContext
from udp_stream.release.events import (
    Backlog,
    DiskStatus,
    Observer,
    PublishedRelease,
    QueriesPublished,
    ReleaseSink,
    RunEvent,
    RunLog,
    SlotCounted,
    Summary,
    batch_read,
    duration_in_words,
    report_recorded,
    report_to,
    slot_published,
    slot_smoothed,
)
from udp_stream.release.pipeline import RecordedSlot
from udp_stream.release.plate_day import PlateEntries
from udp_stream.release.promise import promise_of, release_slot
from udp_stream.release.query_pipeline import QueryContext, QuerySet, report_answers
from udp_stream.release.record import Smoothed, UnitDoubt
from udp_stream.release.withdrawal import unpublished_withdrawals, withdrawals_of
from udp_stream.settings import LedgerSection, Settings, is_file
from udp_stream.sources.journal import Journal, JournalFrame, journal_size
from udp_stream.windows.clocks import NEVER, LogPlaces, SpanClock, SteadyClock
from udp_stream.windows.positions import LatestPositions, Moment
from udp_stream.windows.slots import (
    FeedCheck,
    ReadResult,
    SourceCheckpoint,
    SourceReader,
    Span,
    Windows,
)
from udp_stream.windows.tables import SlotCounts, SlotGrid, SlotPings, tabulate

CHECKPOINT = "checkpoint"
DAY = "plate-day"

CHECKPOINT_S = 5.0
"""Seconds between two checkpoints: so much is read again after a crash."""

Write = Callable[[Sequence[bytes]], None]
"""Writer of lines: it has written these, in order, when it returns."""

Reject = Callable[[bytes, Refusal], None]
Smooth = Callable[[Sequence[Smoothed]], None]


class Outputs(NamedTuple):
    """Where a live run writes; `written` are the ids of releases and answers that readers have
    already, `estimated` the cells and slots of their estimates.

    Without `queries` no standing query is asked, and none is charged for.
    """

    release: Write
    smoothed: Write | None = None
    rejected: Reject | None = None
    written: frozenset[str] = frozenset()
    queries: Write | None = None
    estimated: frozenset[tuple[str, str]] = frozenset()


class _Runtime:
    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        entropy: Entropy,
        hash_plate: Callable[[str], bytes],
        software: str,
        report: Observer,
        publish: ReleaseSink,
        smooth: Smooth | None,
        reject: Reject | None,
        answer: Write | None,
        trial: bool = False,
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._report = report
        self._publish = publish
        self._smooth = smooth
        self._reject = reject
        self._publish_answers = answer
        context = ReleaseContext(
            settings.policy, settings.calendar, entropy, software, caveats=caveats(ledger.meta()), trial=trial,
            before_charge=self._note_policy, derive_key=hash_plate, judges_unit=settings.judges_unit,
            domain=settings.domain,
        )  # fmt: skip
        self._promise = promise_of(settings.policy)
        is_forecasting = self._promise.learns(settings.policy) or smooth is not None
        self._context = self._promise.with_forecaster(context) if is_forecasting else context
        self._queries: QuerySet | None = None
        if answer is not None and (asked := settings.standing_queries):
            self._queries = QuerySet(
                asked, settings.zone, QueryContext(settings.position_periods, self._context)
            )
        self._noted = False
        self._due: frozenset[str] | None = None
        self._written = frozenset[str]()
        self._estimated = frozenset[tuple[str, str]]()

    def doubt(self) -> UnitDoubt | None:
        """The releases that give evidence of another unit of speed, if some do."""
        return self._context.doubt

    def _pass_on(self, read: ReadResult) -> None:
        self._report(batch_read(read))
        if self._reject is not None:
            for refused in read.refused:
                self._reject(refused.original, refused.refusal)
        for slot in read.closed:
            self._release(slot)
        for moment in read.moments:
            self._answer(moment)

    def _release(self, slot: SlotPings) -> None:
        """Charge, draw, record and mark the slot's HATs, publish them and their estimates; then
        they count as out."""
        counts, values = tabulate(slot)
        self._report(SlotCounted(slot.start_ms, counts.repeats))
        # Before the mark is raised.
        withdrawn = {} if self._due is None else unpublished_withdrawals(self._ledger)

        def publish(recorded: RecordedSlot) -> None:
            releases = {
                name: PublishedRelease(payload) for name, payload in recorded.payloads.items()
            }
            report_recorded(
                self._report, counts, recorded, list(releases.values()), self._context.policy.grid
            )
            new = [name for name in releases if self._is_due(name, name in recorded.made)]
            if self._due is None:  # a file that is written from its start has each behind its slot
                before = [name for name in releases if name not in recorded.made]
                withdrawn.update(withdrawals_of(self._ledger, before))
            published = releases | {
                name: PublishedRelease(payload) for name, payload in withdrawn.items()
            }
            self._publish(
                [published[name] for name in (*new, *withdrawn) if name not in self._written]
            )
            self._report(slot_published(slot.start_ms, list(releases.values())))
            if self._smooth is not None:
                meta = None if recorded.seen is None else recorded.seen.meta
                estimates = self._context.smoothed(counts.slot, self._ledger, meta)
                is_due = self._due is None or bool(new)
                lacking = [
                    one
                    for one in estimates
                    if (one.hat.cell, one.hat.slot_start) not in self._estimated
                ]
                self._smooth(lacking if is_due else [])
                self._report(slot_smoothed(counts, estimates, self._context.policy.grid))

        recorded = release_slot(counts, values, self._context, self._ledger, publish)
        self._released(counts, recorded.seen)
        if withdrawn:
            self._ledger.published(list(withdrawn))

    def _released(self, counts: SlotCounts, seen: LedgerView | None) -> None:
        """A slot is out; `seen` is the ledger after its charges, if at hand."""

    def _answer(self, moment: Moment, every_s: int | None = None) -> None:
        """Answer the queries of a moment, or those asked `every_s` alone."""
        found = (
            None if self._queries is None else self._queries.record(moment, self._ledger, every_s)
        )
        if found is None or self._publish_answers is None:
            return
        report_answers(self._report, moment.time_ms, found.answers)
        new = [one for one in found.answers if self._is_due(one.release_id, one.made)]
        self._publish_answers([one.payload for one in new if one.release_id not in self._written])
        found.published(self._ledger)
        self._report(QueriesPublished(moment.time_ms, len(found.answers)))

    def _is_due(self, release_id: str, made: bool) -> bool:
        """Whether readers may lack a record: all of them where a file is written from its start
        (`_due` is None); else those that this run has `made`, or that an earlier run recorded and
        did not publish."""
        return self._due is None or made or release_id in self._due

    def _note_policy(self) -> None:
        if not self._noted:
            note_policy(self._ledger, self._settings.policy)
            self._noted = True


class EmbeddedRuntime(_Runtime):
    """A recording through a ledger. Events go to `summary`, and to the observers beside it."""

    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        entropy: Entropy,
        hash_plate: Callable[[str], bytes],
        software: str,
        publish: ReleaseSink,
        reject: Reject | None = None,
        others: Mapping[str, str] | None = None,
        trial: bool = False,
        observers: Sequence[Observer] = (),
        smooth: Smooth | None = None,
        answer: Write | None = None,
        slots: Sequence[Span] = (),
    ) -> None:
        """Build the runtime. Without `answer`, no standing query is asked or charged for. `others`:
        what `other_policies` tells of the ledger. `trial`: the ledger is of this run only. `slots`:
        where whole plates are hidden, those that close at the end, with or without pings;
        ConfigError if none is given there."""
        self.summary = Summary(
            policy=settings.policy.fingerprint(), others=others or {}, trial=trial
        )
        report = report_to((self.summary.observe, *observers))
        super().__init__(
            settings,
            ledger,
            entropy,
            hash_plate,
            software,
            report,
            publish,
            smooth,
            reject,
            answer,
            trial,
        )
        self._rules = settings.reading_rules(hash_plate, archived_s=archived_s(ledger.meta()))
        if self._rules.windows.in_processing_time and not slots:
            raise ConfigError(
                'privacy.neighbours: "add-remove" needs a span of time: `replay` with --from and --until'
            )
        self._windows = Windows(
            self._rules.windows, hash_plate, SpanClock(slots) if slots else None
        )
        self._latest = dict[int, LatestPositions]()
        if self._queries is not None:
            rules = self._rules.windows
            age_ms = self._queries.moments.age_ms
            archived_ms = rules.archived_ms
            self._latest = {
                every_s: LatestPositions(
                    grid,
                    age_ms,
                    rules.grace_ms,
                    hash_plate,
                    None if archived_ms == NEVER else grid.start_of(archived_ms),
                )
                for every_s, grid in self._queries.grids.items()
            }

    def run(self, frames: Iterable[list[bytes]]) -> Summary:
        for messages in frames:
            self.push(messages, self._settings.form.format)
        self.finish()
        return self.summary

    def push(self, messages: list[bytes], ping_format: PingFormat = JSON) -> None:
        """Decode and place a frame of messages of this format, and release the slots that it
        closes."""
        rules = replace(self._rules, decoder=replace(self._rules.decoder, format=ping_format))
        result, frame, unplaced = rules.read(messages, self._windows)
        self._pass_on(result)
        refused = [one.row for one in unplaced if one.reason != Reason.SLOT_FULL]
        rows = np.delete(np.arange(len(frame.pings)), refused)
        watermark_ms = self._windows.watermark_ms
        self._ask(
            {
                every: latest.push(frame.pings, rows, watermark_ms)
                for every, latest in self._latest.items()
            }
        )

    def _released(self, counts: SlotCounts, seen: LedgerView | None) -> None:
        self.summary.doubt = self.doubt()
        left = self._promise.budget_left(counts, self._context, self._ledger, seen)
        if left is None:  # how many plates there are is secret, too
            return
        self.summary.spent(counts.start_ms, int(np.unique(counts.plate).size), left)

    def finish(self) -> None:
        if closed := self._windows.flush():
            self._pass_on(ReadResult(closed, [], 0, 0))
        self._ask({every: latest.flush() for every, latest in self._latest.items()})

    def _ask(self, due: Mapping[int, list[Moment]]) -> None:
        """Answer `due` in the order of time; at the same moment, queries that are asked more often
        come first."""
        moments = [(moment, every_s) for every_s, found in due.items() for moment in found]
        for moment, every_s in sorted(moments, key=lambda one: (one[0].time_ms, one[1])):
            self._answer(moment, every_s)


class LiveRuntime(_Runtime):
    """A journal through a ledger. `start` reads what the journal has; then `take` and `tick` go
    on."""

    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        entropy: Entropy,
        hash_plate: Callable[[str], bytes],
        software: str,
        journal: Journal,
        outputs: Outputs,
        observers: Sequence[Observer] = (),
        clock: SteadyClock | None = None,
        check: FeedCheck = lambda _messages, _read: None,
    ) -> None:
        """Build the runtime; `clock` gives the time of arrival."""
        smooth = None if outputs.smoothed is None else smoothed_sink(outputs.smoothed)
        super().__init__(
            settings, ledger, entropy, hash_plate, software, report_to(observers), release_sink(outputs.release),
            smooth, outputs.rejected, outputs.queries,
        )  # fmt: skip
        self._due = frozenset(release_id for release_id, _ in ledger.unpublished())
        self._written = outputs.written
        self._estimated = outputs.estimated
        self._journal = journal
        self._check = check
        self._clock = clock or settings.arrival_clock()
        self._idle_s = parse_duration(settings.kafka.idle_timeout)
        self._place = journal.folder / CHECKPOINT
        self._kept = _read_checkpoint(self._place, journal.first_offset)
        self._place_of_day = journal.folder / DAY
        self._plate_day = self._context.plate_day
        if self._plate_day is not None:
            self._plate_day.kept = _read_day(self._place_of_day)
            self._kept_day = self._plate_day.kept
        moments = None if self._queries is None else self._queries.moments
        self._rules = settings.reading_rules(hash_plate, moments, archived_s(ledger.meta()))
        self.reader = SourceReader(self._rules, self._kept)
        self._kept_s = self._active_s = self._clock.monotonic_s
        self._gap: tuple[int, int] | None = None
        self._is_ahead = False

    def start(self, resets_clock: bool = False) -> None:
        """Read what the journal has. `resets_clock`: if the log's clock is ahead of ours, it goes
        back. What is recorded and charged stays."""
        for arrived in self._journal.frames(self.reader.next_offset):
            self._read(arrived)
        if (last_ms := self._journal.last_ms) is not None:
            self._gap = last_ms, self._arrival_ms()  # said with the next frame
        if self._look_at_clock(resets_clock) and resets_clock:
            self._write([], self._arrival_ms(), resets=True)
        if self.reader.is_in_processing_time and self.reader.watermark_ms is None:
            self.close_what_is_over()  # the log's first tick: slots begin with it
        self._keep()
        self._report_waiting()

    def take(self, messages: list[bytes]) -> None:
        """The journal has the messages when this returns, and the slots that they close are out."""
        if self._clock.is_in_doubt:
            self._clock.hear(self._rules.decoder.decode(messages)[0].time_ms)
        read = self._write(messages, self._arrival_ms())
        if read.newest_ms is not None:
            self._clock.hear(np.array([read.newest_ms]))
        self._keep_if_due()
        self._report_waiting()

    def tick(self) -> None:
        """Let time go on without pings once none was accepted for `kafka.idle_timeout`: slots close
        at night. Where whole plates are hidden, time goes on whatever comes."""
        is_silent = (
            self.reader.is_in_processing_time
            or self._clock.monotonic_s - self._active_s >= self._idle_s
        )
        now_ms = self._tick_ms()  # before it is asked how long the clock has been so
        if (
            is_silent
            and self._clock.has_lasted(self._idle_s)
            and self.reader.tick_would_close(now_ms)
        ):
            self.close_what_is_over()
        self._keep_if_due()
        self._report_waiting()

    def close_what_is_over(self) -> None:
        """The source has ended, or is silent: close the slots that are over by the clock."""
        self._write([], self._tick_ms())

    def stop(self) -> None:
        self._keep()

    def _write(self, messages: list[bytes], arrival_ms: int, resets: bool = False) -> ReadResult:
        arrived = self._journal.append(messages, arrival_ms, self._gap, resets)
        self._gap = None
        # Synced before it is read: no release may rest on pings that a crash can take away.
        self._journal.sync()
        return self._read(arrived)

    def _look_at_clock(self, resets: bool = False) -> bool:
        """Whether the log's clock is ahead of ours; it is said when it becomes so."""
        was_ahead = self._is_ahead
        ahead_s = self.reader.ahead_ms(self._clock.now_ms()) / 1000
        self._is_ahead = ahead_s > 0
        if self._is_ahead and not was_ahead:
            log_clock_ahead(ahead_s, resets)
        return self._is_ahead

    def _arrival_ms(self) -> int:
        return self._clock.now_ms()

    def _tick_ms(self) -> int:
        return round(self._clock.tick_s() * 1000)

    def _read(self, arrived: JournalFrame) -> ReadResult:
        if arrived.resets:
            # Slots that were open begin later than now: nothing is lost with them.
            self.reader = SourceReader(
                self._rules, SourceCheckpoint(arrived.offset, rejected_through=arrived.offset)
            )
        messages = arrived.messages or [b""]  # a tick takes an offset of the journal
        count = len(messages)
        if arrived.gap is not None:
            self.reader.not_read(arrived.gap)
        offset = np.arange(count) + arrived.offset
        arrival_ms = np.full(count, arrived.arrival_ms)
        places = LogPlaces(offset, arrival_ms, np.full(count, not arrived.messages))
        result = self.reader.read(messages, places)
        if result.pings:
            self._active_s = self._clock.monotonic_s
        self._check(messages, result)
        self._pass_on(result)
        return result

    def _report_waiting(self) -> None:
        unread = self._journal.next_offset - self.reader.next_offset
        clock_ms = self.reader.clock_ms
        self._report(
            Backlog(
                len(self.reader.open_slots), self.reader.open_pings, unread, 1, clock_ms=clock_ms
            )
        )

    def _keep_if_due(self) -> None:
        if self._clock.monotonic_s - self._kept_s >= CHECKPOINT_S:
            self._keep()
            self._look_at_clock()

    def _keep(self) -> None:
        """Record on disk from where on the journal is needed, then drop what is before."""
        self._kept_s = self._clock.monotonic_s
        if (checkpoint := self.reader.checkpoint()) == self._kept:
            return
        # The day first: behind a checkpoint no slot before it is read again.
        if self._plate_day is not None and self._plate_day.kept is not self._kept_day:
            self._kept_day = self._plate_day.kept
            write_whole(self._place_of_day, msgspec.msgpack.encode(self._kept_day))
        write_whole(self._place, msgspec.json.encode(checkpoint))
        self._kept = checkpoint
        # Last: an older checkpoint that came back after a power cut would still need these frames.
        self._journal.drop_before(checkpoint.offset)


def _read_day(file: Path) -> PlateEntries:
    """The entries of plates on the day under way; none if there is no such file."""
    with suppress(FileNotFoundError, msgspec.MsgspecError):
        return msgspec.msgpack.decode(file.read_bytes(), type=PlateEntries)
    return PlateEntries()


def _read_checkpoint(file: Path, first_offset: int) -> SourceCheckpoint:
    """Where to read on. Lost if the journal begins behind it: pings that are still needed are gone."""
    try:
        checkpoint = msgspec.json.decode(file.read_bytes(), type=SourceCheckpoint)
    except FileNotFoundError:
        return SourceCheckpoint(first_offset)
    if first_offset > checkpoint.offset:
        raise DataLoss(
            f"{file}: the journal is still needed from offset {checkpoint.offset} on, and begins at {first_offset}: "
            "files of it were removed"
        )
    return checkpoint


def disk_of(ledger: LedgerSection, journal: Path | None = None) -> Callable[[], DiskStatus]:
    """Probe of the ledger's file, with what is not yet in its main part, the journal, and the disks
    of both. Where the ledger is no file, at the disk of its key."""
    file = Path(ledger_place(ledger.place)) if is_file(ledger.place) else None
    folders = [
        file.parent if file else Path(ledger.key_file or ".").parent,
        *([journal] if journal else []),
    ]

    def measure() -> DiskStatus:
        parts = [file, Path(f"{file}-wal")] if file else []
        free = [shutil.disk_usage(folder).free for folder in folders if folder.exists()]
        kept = journal_size(journal) if journal else 0
        return DiskStatus(bytes_of(parts), kept, min(free, default=0))

    return measure


def release_sink(write: Write) -> ReleaseSink:
    """Sink that hands a slot's records on before they count; `write` has written them when it
    returns (`cli/outputs.py`)."""
    return lambda releases: write([release.payload for release in releases])


def smoothed_sink(write: Write) -> Smooth:
    """Sink that hands a slot's estimates on."""
    return lambda estimates: write([Smoothed.encode(estimate) for estimate in estimates])


def rejected_writer(write: Callable[[bytes], object]) -> Reject:
    """Writer of refused messages, a line each: reason, path, lag, the original bytes (base64 if not
    UTF-8)."""
    encoder = msgspec.json.Encoder()

    def reject(message: bytes, refusal: Refusal) -> None:
        line: dict[str, Any] = {"reason": str(refusal.reason), "path": refusal.path}
        if refusal.lag_ms is not None:
            line["lag_ms"] = refusal.lag_ms
        try:
            line["message"] = message.decode()
        except UnicodeDecodeError:
            line["message_base64"] = base64.b64encode(message).decode()
        write(encoder.encode(line) + b"\n")

    return reject


def log_clock_ahead(ahead_s: float, resets: bool = False) -> None:
    """The log's clock has closed slots that are not over by ours; `resets`: and now goes back."""
    slots = f"slots that end up to {duration_in_words(ahead_s)} ahead of this machine's clock"
    text = f"the log's clock had closed {slots}, and is set back" if resets else (
        f"the log's clock has closed {slots}: their pings are refused as late. If this machine's clock is right, stop, "
        "and start once with --reset-clock: what is charged and recorded stays"
    )  # fmt: skip
    log_message(text, "clock", {"ahead_s": round(ahead_s), "reset": resets}, logging.WARNING)


class RunLogger:
    """A `RunLog` with a clock and a voice: an observer of a run. `log_due` is to be called about
    once a second. `doubt` tells which releases are in doubt of their unit.

    >>> import sys
    >>> from datetime import UTC
    >>> from udp_stream.base.logs import begin_log, end_log
    >>> from udp_stream.release.events import BatchRead
    >>> begin_log(sys.stdout, as_json=False)
    >>> log = RunLogger(SlotGrid(3600, UTC), grace_ms=120_000)
    >>> log.observe(BatchRead(messages=3, pings=2, refused={}))
    >>> log.log_due()  # doctest: +ELLIPSIS
    udp-stream: 2 pings; next slot closes at ... UTC, in ...
    >>> end_log()
    """

    def __init__(self, slots: SlotGrid, grace_ms: int) -> None:
        self._log = RunLog(slots, grace_ms)
        self.doubt: Callable[[], UnitDoubt | None] = lambda: None

    def observe(self, event: RunEvent) -> None:
        self._log.observe(event, time.monotonic())

    def log_due(self, *, at_the_end: bool = False) -> None:
        now_s = time.monotonic()
        for line in self._log.lines(
            now_s, time.time() - now_s, self.doubt(), at_the_end=at_the_end
        ):
            log_message(line.text, line.event, line.figures, WARNING if line.warns else INFO)
