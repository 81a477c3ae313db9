"""The live runtime of one machine, without Kafka: a source in, releases out, a ledger, and a journal of what arrived.

The journal is the log, as a partition of a topic is on Kafka, and the same reader reads it, by times of arrival, with
ticks while nothing comes (`windows/source.py`). Messages are acknowledged to their source once the journal has
them. A checkpoint says from where on the journal is still needed. Killed at any moment and started again, it reads on
from there: slots that close a second time come out of the ledger as they were, and are not written a second time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np

from udp_stream.errors import DependencyUnavailable
from udp_stream.files import draft_of, sync_directory
from udp_stream.ledger.past import caveats
from udp_stream.ledger.port import Entropy, Ledger
from udp_stream.ledgers.opening import note_policy
from udp_stream.release.charge import ReleaseContext, with_forecaster
from udp_stream.release.facts import (
    Observer,
    PublishedRelease,
    SlotCounted,
    batch_read,
    report_recorded,
    report_to,
    slot_published,
)
from udp_stream.release.forecaster import encode_smoothed
from udp_stream.release.query_road import query_set, report_answers, report_published
from udp_stream.release.road import RecordedSlot, release_slot
from udp_stream.settings import Settings
from udp_stream.sources.journal import Arrived, Journal
from udp_stream.units import parse_duration
from udp_stream.windows.positions import Moment
from udp_stream.windows.slots import LogPlaces
from udp_stream.windows.source import Look, ReadingRules, Refused, SourceCheckpoint, SourceReader
from udp_stream.windows.tables import SlotPings, tabulate

CHECKPOINT: Final = "checkpoint"
"""The file of it, in the journal's folder."""

CHECKPOINT_S: Final = 5.0
"""Between two checkpoints: as much is read again after a crash."""

Write = Callable[[Sequence[bytes]], None]
"""Has written these lines, in order, when it returns."""


class Outputs(NamedTuple):
    """Where a run writes. `written` are the ids of releases and answers that readers have already.

    `queries` takes results of standing queries; without it none is asked, and none is charged for.
    """

    release: Write
    smoothed: Write | None = None
    rejected: Callable[[Refused], None] | None = None
    written: frozenset[str] = frozenset()
    queries: Write | None = None


class LiveRuntime:
    """One journal through one ledger. `start` reads what the journal has; then `take` and `tick` go on."""

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
        clock: Callable[[], float] = time.time,
        look: Look = lambda _messages, _read: None,
    ) -> None:
        """Nothing is read or written before `start`. `clock` gives Unix seconds: the time of arrival."""
        self._settings, self._ledger, self._journal, self._outputs = settings, ledger, journal, outputs
        self._clock, self._look = clock, look
        self._idle_ms = round(parse_duration(settings.kafka.idle_timeout) * 1000)
        context = ReleaseContext(
            settings.policy, settings.calendar, entropy, software, caveats=caveats(ledger.meta()),
            before_charge=self._note_policy, derive_key=hash_plate,
        )  # fmt: skip
        is_forecasting = settings.policy.forecasts or outputs.smoothed is not None
        self._context = with_forecaster(context) if is_forecasting else context
        self._noted = False
        self._report = report_to(*observers)
        self._due = frozenset(release_id for release_id, _ in ledger.unpublished())
        self._place = journal.folder / CHECKPOINT
        checkpoint = _read_checkpoint(self._place, journal.first_offset)
        asked = () if outputs.queries is None else settings.standing_queries
        self._queries = query_set(asked, settings.zone, settings.position_periods, context)
        rules = ReadingRules(
            settings.decoder,
            settings.window_rules,
            settings.calendar.slots,
            settings.policy.resolution,
            hash_plate,
            None if self._queries is None else self._queries.moments,
        )
        self._reader = SourceReader(rules, checkpoint)
        self._kept = checkpoint
        self._kept_s = self._active_s = clock()

    def start(self) -> None:
        """Read what the journal has and no checkpoint is behind."""
        for arrived in self._journal.frames(self._reader.next_offset):
            self._read(arrived)
        self._keep()

    @property
    def reader(self) -> SourceReader:
        """Of the journal: for its open slots, in counts."""
        return self._reader

    def take(self, messages: list[bytes]) -> None:
        """Messages that came now. The journal has them when this returns, and the slots that they close are out."""
        arrived = self._journal.append(messages, self._arrival_ms())
        # Synced before it is read: no release may rest on pings that a crash can take away.
        self._journal.sync()
        self._read(arrived)
        self._keep_if_due()

    def tick(self) -> None:
        """Nothing has come now. Once no ping was accepted for `kafka.idle_timeout`, time goes on without pings, so that
        slots close at night."""
        now_ms = self._arrival_ms()
        if now_ms - self._active_s * 1000 >= self._idle_ms and self._reader.tick_would_close(now_ms):
            self.close_what_is_over()
        self._keep_if_due()

    def close_what_is_over(self) -> None:
        """The source has ended, or is silent: close the slots that are over by the clock on the wall."""
        arrived = self._journal.append([], self._arrival_ms())
        self._journal.sync()
        self._read(arrived)

    def stop(self) -> None:
        """Keep how far we are. Open slots stay in the journal."""
        self._keep()

    def _arrival_ms(self) -> int:
        return round(self._clock() * 1000)

    def _read(self, arrived: Arrived) -> None:
        # A tick takes one offset of the journal, so the reader gets one message for it.
        messages = arrived.messages or [b""]
        count = len(messages)
        places = LogPlaces(
            np.arange(arrived.offset, arrived.offset + count),
            np.full(count, arrived.arrival_ms),
            np.full(count, not arrived.messages),
        )
        result = self._reader.read(messages, places)
        if result.pings:
            self._active_s = self._clock()
        self._look(messages, result)
        refusals = [one.refusal for one in result.refused]
        self._report(batch_read(result.messages, result.pings, refusals, result.newest_ms))
        if self._outputs.rejected is not None:
            for refused in result.refused:
                self._outputs.rejected(refused)
        for slot in result.closed:
            self._release(slot)
        for moment in result.moments:
            self._answer(moment)

    def _answer(self, moment: Moment) -> None:
        """Answer what is asked at a moment; an answer that an earlier run has written is not written again."""
        found = None if self._queries is None else self._queries.record(moment, self._ledger)
        if found is None or self._outputs.queries is None:
            return
        report_answers(self._report, moment.time_ms, found.answers)
        new = [one for one in found.answers if one.made or one.release_id in self._due]
        self._outputs.queries([one.payload for one in new if one.release_id not in self._outputs.written])
        found.published(self._ledger)
        report_published(self._report, moment.time_ms, found.answers)

    def _release(self, slot: SlotPings) -> None:
        counts, values = tabulate(slot)
        self._report(SlotCounted(slot.start_ms, counts.repeats))

        def publish(recorded: RecordedSlot) -> None:
            releases = [PublishedRelease(payload) for payload in recorded.payloads.values()]
            report_recorded(self._report, counts, recorded, releases)
            new = (recorded.made | self._due) - self._outputs.written
            self._outputs.release([payload for name, payload in recorded.payloads.items() if name in new])
            self._report(slot_published(slot.start_ms, releases))

        out = release_slot(counts, values, self._context, self._ledger, publish)
        if self._outputs.smoothed is not None:
            estimates = self._context.smoothed((slot.start_ms, slot.end_ms), self._ledger)
            is_new = bool(out.made | (self._due & frozenset(out.payloads)))
            self._outputs.smoothed([encode_smoothed(estimate) for estimate in estimates] if is_new else [])

    def _note_policy(self) -> None:
        if not self._noted:
            note_policy(self._ledger, self._settings.policy)
            self._noted = True

    def _keep_if_due(self) -> None:
        if self._clock() - self._kept_s >= CHECKPOINT_S:
            self._keep()

    def _keep(self) -> None:
        """Say on disk from where on the journal is needed, then drop what is before."""
        self._kept_s = self._clock()
        if (checkpoint := self._reader.checkpoint()) == self._kept:
            return
        with draft_of(self._place) as draft:
            with draft.open("wb") as file:
                file.write(msgspec.json.encode(checkpoint))
                file.flush()
                # Synced before it is renamed: after a power cut either file is whole.
                os.fsync(file.fileno())
            draft.rename(self._place)
        sync_directory(self._place.parent)
        self._kept = checkpoint
        # Last: an older checkpoint that came back after a power cut would still need these frames.
        self._journal.drop_before(checkpoint.offset)


def _read_checkpoint(file: Path, first_offset: int) -> SourceCheckpoint:
    """Where to read on; from the journal's beginning if nothing was kept yet.

    DependencyUnavailable if the journal begins behind it: pings that are still needed are gone.
    """
    try:
        checkpoint = msgspec.json.decode(file.read_bytes(), type=SourceCheckpoint)
    except FileNotFoundError:
        return SourceCheckpoint(first_offset)
    if first_offset > checkpoint.offset:
        raise DependencyUnavailable(
            f"{file}: the journal is still needed from offset {checkpoint.offset} on, and begins at {first_offset}: "
            "files of it were removed"
        )
    return checkpoint
