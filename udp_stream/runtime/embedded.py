"""The embedded runtime: the whole road in one process, on an embedded ledger. No services.

It drives the same core as the deployment on Kafka: frames of messages in, closed slots through `road.release_slot`, and
payloads out. Run it again on the same log and ledger, or kill it and run it again: what was recorded comes out as the
same bytes, the rest is done once.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, BinaryIO

import msgspec
import numpy as np

from udp_stream.ledger.past import caveats
from udp_stream.ledger.port import Entropy, Ledger
from udp_stream.ledgers.opening import note_policy
from udp_stream.pings.decode import PingDecoder, PingFormat, Reason, Refusal, originals
from udp_stream.pings.json import JSON
from udp_stream.release.charge import ReleaseContext, with_forecaster
from udp_stream.release.facts import (
    Observer,
    PublishedRelease,
    ReleaseSink,
    SlotCounted,
    Summary,
    batch_read,
    report_recorded,
    report_to,
    slot_published,
    slot_smoothed,
)
from udp_stream.release.forecaster import Smoothed, encode_smoothed
from udp_stream.release.query_road import ResultSink, StandingQueries, query_context
from udp_stream.release.road import RecordedSlot, release_slot
from udp_stream.settings import Settings
from udp_stream.windows.slots import Frame, Windows
from udp_stream.windows.source import newest_ms_of, refusal_of
from udp_stream.windows.tables import SlotPings, cells_of, tabulate


class Embedded:
    """One log through one ledger. `publish`, `reject` and `smooth` are where releases, refused messages and smoothed
    estimates go. Estimates of a slot follow on its releases.

    Facts go to `summary`, and to the observers beside it.
    """

    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        entropy: Entropy,
        hash_plate: Callable[[str], bytes],
        software: str,
        publish: ReleaseSink,
        reject: Callable[[bytes, Refusal], None] | None = None,
        others: Mapping[str, str] | None = None,
        trial: bool = False,
        observers: Sequence[Observer] = (),
        smooth: Callable[[Sequence[Smoothed]], None] | None = None,
        answer: ResultSink | None = None,
    ) -> None:
        """Nothing is read or written before `run`.

        `answer` is where results of standing queries go; without it none is asked, and none is charged for.

        `others` is what `other_policies` tells of the ledger; `trial` is true of a ledger of this run only.
        """
        self._policy = settings.policy
        self._ping_rules = settings.ping_rules
        self._windows = Windows(settings.window_rules, hash_plate)
        context = ReleaseContext(
            self._policy,
            settings.calendar,
            entropy,
            software,
            caveats=caveats(ledger.meta()),
            trial=trial,
            before_charge=self._note_policy,
            derive_key=hash_plate,
        )
        is_forecasting = self._policy.forecasts or smooth is not None
        self._context = with_forecaster(context) if is_forecasting else context
        self._smooth = smooth
        self._ledger = ledger
        self._reject = reject
        self._noted = False
        self.summary = Summary(policy=self._policy.fingerprint(), others=others or {}, trial=trial)
        self._report = report_to(self.summary.observe, *observers)
        self._publish = publish
        self._queries = self._standing(settings, ledger, hash_plate, answer)

    def run(self, frames: Iterable[list[bytes]]) -> Summary:
        """Read a log of JSON messages to its end and release every HAT in it."""
        for messages in frames:
            self.push(messages)
        self.finish()
        return self.summary

    def push(self, messages: list[bytes], ping_format: PingFormat = JSON) -> None:
        """One frame, whose messages are of this format: decode, place, and release the slots that it closes."""
        pings, refusals = PingDecoder(self._ping_rules, ping_format).decode(messages)
        start, end = self._context.calendar.slots.place(pings.time_ms)
        cell = cells_of(pings.lat, pings.lon, self._policy.resolution)
        closed, unplaced = self._windows.push(Frame(pings, cell, start, end))
        refusals += [refusal_of(pings, refused, ping_format.paths) for refused in unplaced]
        newest_ms = newest_ms_of(pings, unplaced)
        self._report(batch_read(len(messages), len(pings) - len(unplaced), refusals, newest_ms))
        self._refuse(messages, refusals, ping_format)
        for slot in closed:
            self._release(slot)
        if self._queries is not None:
            kept = np.ones(len(pings), bool)
            kept[[refused.row for refused in unplaced if refused.reason != Reason.SLOT_FULL]] = False
            self._queries.push(pings, np.flatnonzero(kept), self._windows.watermark_ms)

    def finish(self) -> None:
        """The log has ended: release what is still open."""
        for slot in self._windows.flush():
            self._release(slot)
        if self._queries is not None:
            self._queries.flush()

    def _release(self, slot: SlotPings) -> None:
        counts, values = tabulate(slot)
        self._report(SlotCounted(slot.start_ms, counts.repeats))

        def publish(recorded: RecordedSlot) -> None:
            releases = [PublishedRelease(payload) for payload in recorded.payloads.values()]
            report_recorded(self._report, counts, recorded, releases)
            self._publish(releases)
            self._report(slot_published(slot.start_ms, releases))

        release_slot(counts, values, self._context, self._ledger, publish)
        if self._smooth is not None:
            estimates = self._context.smoothed((slot.start_ms, slot.end_ms), self._ledger)
            self._smooth(estimates)
            self._report(slot_smoothed(counts, estimates))

    def _standing(
        self, settings: Settings, ledger: Ledger, hash_plate: Callable[[str], bytes], answer: ResultSink | None
    ) -> StandingQueries | None:
        """The queries of the configuration, if it has any and their results are wanted."""
        queries = settings.standing_queries
        if not queries or answer is None:
            return None
        return StandingQueries(
            queries,
            settings.zone,
            settings.window_rules.grace_ms,
            hash_plate,
            query_context(settings.position_periods, self._context),
            ledger,
            answer,
            self._report,
        )

    def _note_policy(self) -> None:
        """Once, before anything is charged under our settings."""
        if not self._noted:
            note_policy(self._ledger, self._policy)
            self._noted = True

    def _refuse(self, messages: list[bytes], refusals: list[Refusal], ping_format: PingFormat) -> None:
        if self._reject is not None:
            refusals.sort(key=lambda refusal: (refusal.message, refusal.position))
            for message, refusal in zip(originals(messages, refusals, ping_format), refusals, strict=True):
                self._reject(message, refusal)


def release_sink(write: Callable[[Sequence[bytes]], None]) -> ReleaseSink:
    """Hands a slot's records on before they count; `write` has written them when it returns (`records_out.py`)."""

    def publish(releases: Sequence[PublishedRelease]) -> None:
        write([release.payload for release in releases])

    return publish


def smoothed_sink(write: Callable[[Sequence[bytes]], None]) -> Callable[[Sequence[Smoothed]], None]:
    """Hands a slot's estimates on."""

    def smooth(estimates: Sequence[Smoothed]) -> None:
        write([encode_smoothed(estimate) for estimate in estimates])

    return smooth


def record_writer(out: BinaryIO) -> ReleaseSink:
    """Writes one record a line, and hands a slot's records on to the operating system before they count."""
    return release_sink(partial(_lines, out))


def _lines(out: BinaryIO, payloads: Sequence[bytes]) -> None:
    out.write(b"".join(payload + b"\n" for payload in payloads))
    out.flush()


def rejected_writer(out: BinaryIO) -> Callable[[bytes, Refusal], None]:
    """Writes one refused message a line: reason, path, lag, the original bytes (base64 if not UTF-8)."""
    encoder = msgspec.json.Encoder()

    def reject(message: bytes, refusal: Refusal) -> None:
        line: dict[str, Any] = {"reason": str(refusal.reason), "path": refusal.path}
        if refusal.lag_ms is not None:
            line["lag_ms"] = refusal.lag_ms
        try:
            line["message"] = message.decode()
        except UnicodeDecodeError:
            line["message_base64"] = base64.b64encode(message).decode()
        out.write(encoder.encode(line) + b"\n")

    return reject
