"""Published releases, facts of a run, and observers of them: a summary in numbers, and lines for a
run that goes on.

A release's bytes are what the ledger recorded, the same for every reader. A sink takes the releases
of a slot together. It may get a slot again, with the same bytes, after a crash or after another
sink failed: it goes by `release_id`.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from math import nan
from typing import Annotated, Final, Literal, NamedTuple, get_args

import numpy as np

from udp_stream.base.units import REPEATS_SHARE, counted
from udp_stream.pings.decode import Reason
from udp_stream.release.pipeline import RecordedSlot
from udp_stream.release.record import Release, ResultStatus, Smoothed, Status, UnitDoubt
from udp_stream.windows.grid import Grid
from udp_stream.windows.slots import ReadResult
from udp_stream.windows.tables import SlotCounts, SlotGrid


class PublishedRelease:
    """The bytes of a single release and its record.

    >>> from udp_stream.testing import released_slot
    >>> first, _ = [PublishedRelease(payload) for payload in released_slot().payloads.values()]
    >>> first.record.release_id, first.payload[:13]
    ('8742d98b6ffffff-1641009600-3600', b'{"schema":"ud')
    """

    def __init__(self, payload: bytes) -> None:
        self.payload = payload

    @cached_property
    def record(self) -> Release:
        return Release.decode(self.payload)


ReleaseSink = Callable[[Sequence[PublishedRelease]], None]
"""Takes the releases of a single slot, by cell; none if the slot has no HATs. What it raises stops
the run."""

ReleaseReader = Iterator[PublishedRelease]
"""Gives releases back, with their bytes: of a topic (`streams/topics.py`)."""


class Metric(NamedTuple):
    """The series of Prometheus that a field of a fact makes: its latest value, what all facts add
    up to ("sum"), or a count that only grows ("total"). A mapping has a series for each of
    `values`, under `label`."""

    name: str
    text: str
    kind: Literal["latest", "sum", "total"] = "latest"
    label: str = ""
    values: tuple[str, ...] = ()
    initially: float = 0.0


# A fact is a public value: counts, times of slots, statuses, names of policies and budget periods.
# It never holds a plate, a cell or a speed. Observers get facts of every step as it happens;
# `cli/report.py` makes words of them. Before refusals are written or a slot is released:
# `BatchRead`. Of a slot: `SlotCounted`; `SlotRecorded`, then a `HatRecorded` for each HAT, before
# readers have it; `SlotPublished`; `SlotSmoothed`, in a runtime of a single machine. Of a moment:
# `QueryRecorded` for each query, before readers have it; `QueriesPublished`. `Backlog` comes about
# once a second in a run that goes on, with `SourceStatus`. On Kafka a slot is a shard's part of it.
# What is done again after a crash is reported again. Fields with a `Metric` are metrics, too
# (`cli/metrics.py`).


class BatchRead(NamedTuple):
    """Messages read, the pings in them that were accepted, and those refused, by reason in order of
    appearance.

    `newest_ms` is the latest time of an accepted ping, Unix ms; None if none was accepted.
    `unpaired`: pings of the slots that closed, left out as no speed can be derived for them
    (`windows/movement.py`).

    >>> BatchRead(messages=3, pings=2, refused={Reason.NOT_JSON: 1}).pings
    2
    """

    messages: int
    pings: Annotated[int, Metric("pings", "Pings accepted.", "sum")]
    refused: Annotated[
        Mapping[Reason, int],
        Metric("pings_refused", "Pings refused.", "sum", "reason", tuple(map(str, Reason))),
    ]
    newest_ms: int | None = None
    unpaired: int = 0


class SlotCounted(NamedTuple):
    """A closed slot, and the repeats that counting dropped: on Kafka those across source
    partitions.

    >>> SlotCounted(start_ms=0, repeats=3).repeats
    3
    """

    start_ms: int
    repeats: int


class SlotRecorded(NamedTuple):
    """A slot in the ledger: its pings, repeats included, and how many HATs this run recorded;
    others were before.

    >>> SlotRecorded(start_ms=0, pings=400, made=2).made
    2
    """

    start_ms: int
    pings: int
    made: int


class HatRecorded(NamedTuple):
    """The facts of a record of the slot: its status, samples, and the policy, period and epsilon
    that it was made under.

    `delta` is what the epsilon holds with, 0 under pure accounting. `mean_error_kmh` is the
    expected absolute error of its mean; None if it has no mean.

    >>> HatRecorded("withheld_budget", 12, "5eed", "1d", 10.0, 0.0, mean_error_kmh=None).status
    'withheld_budget'
    """

    status: Status
    samples: int
    policy: str
    period: str
    period_epsilon: float
    delta: float
    mean_error_kmh: float | None


class SlotPublished(NamedTuple):
    """Readers have this slot; how many HATs of each status.

    >>> SlotPublished(0, {"released": 2, "withheld_few_plates": 1}).hats["released"]
    2
    """

    start_ms: int
    hats: Annotated[
        Mapping[Status, int],
        Metric("hats", "HATs published.", "sum", "status", get_args(Status)),
    ]


class SlotSmoothed(NamedTuple):
    """Readers have estimates of a slot's HATs with so many samples; the sums, over these, of what
    the estimates and the guesses by counts beside them are expected to err by, in km/h.

    >>> SlotSmoothed(0, samples=400, error=1200.0, guess_error=1300.0).samples
    400
    """

    start_ms: int
    samples: int
    error: float
    guess_error: float


@dataclass(slots=True)
class SlotRow:
    """How a slot went: its buses, HATs, those released, what is left of the budget; `error` is the
    sum over `pings` of expected errors, in km/h. Buses and what is left are None where they are
    secret.

    >>> SlotRow(buses=40, hats=9, measured=3, pings=200, error=500.0).error / 200
    2.5
    """

    buses: int | None = None
    hats: int = 0
    measured: int = 0
    left: float | None = None
    pings: int = 0
    error: float = 0.0


class QueryRecorded(NamedTuple):
    """The answer of a standing query at a moment (Unix ms), by its status; `made` if this run
    recorded it.

    >>> QueryRecorded("near-the-station", 900_000, "answered", made=True).status
    'answered'
    """

    name: str
    moment_ms: int
    status: ResultStatus
    made: bool


class QueriesPublished(NamedTuple):
    """How many answers of this moment readers have.

    >>> QueriesPublished(900_000, answers=3).answers
    3
    """

    moment_ms: int
    answers: int


class SlotsDropped(NamedTuple):
    """A shard is no longer ours: what is counted and not published is its next owner's, who counts
    it again.

    >>> SlotsDropped() == SlotsDropped()
    True
    """


class Backlog(NamedTuple):
    """Open slots and the pings in them, messages that are not read yet, and the partitions that
    they come from.

    `still_s` is how long nothing was done though there was work, as far as is known; 0 if something
    was. The topic of pings has `raised` partitions more than it may have, and the ledger has been
    away for `ledger_away_s`. `clock_ms` is what the log's clock shows, the furthest of ours; None
    before the first ping. The deployment has `of_partitions`.

    >>> Backlog(slots=1, pings=400, unread=0, partitions=8).still_s
    0.0
    """

    slots: Annotated[int, Metric("open_slots", "Slots that are open.")]
    pings: Annotated[int, Metric("open_pings", "Pings in open slots.")]
    unread: Annotated[int, Metric("unread_messages", "Messages not read yet.")]
    partitions: Annotated[int, Metric("partitions", "Partitions read.")]
    still_s: float = 0.0
    raised: Annotated[
        int, Metric("raised_partitions", "Partitions of pings beyond the wanted number.")
    ] = 0
    ledger_away_s: Annotated[
        float, Metric("ledger_away_seconds", "Since the ledger answered last.")
    ] = 0.0
    clock_ms: int | None = None
    of_partitions: Annotated[
        int, Metric("deployment_partitions", "Partitions that workers share.")
    ] = 1


class SourceStatus(NamedTuple):
    """Where pings come from: the source of a run, the broker of a worker. Seconds since its last
    good answer, failed tries so far, and pings that were too old to be read. Away: it does not
    answer now, or has not answered yet. Its certificate ends at `certificate_s`, Unix; None without
    a certificate.

    >>> SourceStatus(silent_s=12.0, failed=0, is_away=False).stale
    0
    """

    silent_s: float
    failed: Annotated[int, Metric("source_failures", "Failed polls and connections.", "total")]
    is_away: bool
    stale: Annotated[
        int, Metric("pings_stale", "Pings of a source that stands still.", "total")
    ] = 0
    certificate_s: float | None = None


class DiskStatus(NamedTuple):
    """Bytes of the ledger's file and of the journal, 0 without a file; and those that are free
    where they are.

    >>> DiskStatus(ledger=4096, journal=0, free=10**9).free
    1000000000
    """

    ledger: Annotated[int, Metric("ledger_bytes", "The ledger's file; 0: it is no file.")]
    journal: Annotated[int, Metric("journal_bytes", "The journal of a run.")]
    free: Annotated[
        int,
        Metric(
            "disk_free_bytes",
            "Free beside ledger, key and journal; NaN: not known yet.",
            initially=nan,
        ),
    ]


RunEvent = (
    BatchRead
    | SlotCounted
    | SlotRecorded
    | HatRecorded
    | SlotPublished
    | SlotSmoothed
    | QueryRecorded
    | QueriesPublished
    | SlotsDropped
    | Backlog
    | SourceStatus
    | DiskStatus
)

Observer = Callable[[RunEvent], None]
"""Gets each fact as it happens, in the thread of the runtime, which waits for it. What it raises
stops the run."""


def report_to(observers: Sequence[Observer]) -> Observer:
    """An observer that gives each fact to all of these, in order."""

    def report(event: RunEvent) -> None:
        for observe in observers:
            observe(event)

    return report


def batch_read(read: ReadResult) -> BatchRead:
    """The fact of what was read."""
    refused = Counter(message.refusal.reason for message in read.refused)
    unpaired = sum(slot.unpaired for slot in read.closed)
    return BatchRead(read.messages, read.pings, dict(refused), read.newest_ms, unpaired)


def hat_recorded(record: Release, samples: int) -> HatRecorded:
    """The fact of a record, of a HAT with this number of samples: the record may keep it back."""
    return HatRecorded(
        record.status,
        samples,
        record.policy,
        record.privacy.period,
        record.privacy.period_epsilon,
        record.privacy.delta or 0.0,
        None if record.mean is None else record.mean.expected_abs_error_kmh,
    )


def report_recorded(
    report: Observer,
    counts: SlotCounts,
    recorded: RecordedSlot,
    releases: Sequence[PublishedRelease],
    grid: Grid,
) -> None:
    """Report a slot that the ledger holds, then each of its HATs, by cell."""
    pings = int(counts.count.sum()) + counts.repeats
    report(SlotRecorded(counts.start_ms, pings, len(recorded.made)))
    of_cell = _samples_by_cell(counts, grid)
    for release in releases:
        report(hat_recorded(release.record, of_cell.get(release.record.hat.cell, 0)))


def slot_published(start_ms: int, releases: Sequence[PublishedRelease]) -> SlotPublished:
    """The fact of a slot whose releases readers have."""
    return SlotPublished(start_ms, dict(Counter(release.record.status for release in releases)))


def _samples_by_cell(counts: SlotCounts, grid: Grid) -> dict[str, int]:
    until = np.append(0, np.cumsum(counts.count))
    samples = np.diff(until[counts.hat_rows]).tolist()
    return dict(zip(map(grid.id_of, counts.cells.tolist()), samples, strict=True))


def slot_smoothed(counts: SlotCounts, estimates: Iterable[Smoothed], grid: Grid) -> SlotSmoothed:
    """The fact of a slot's estimates: of its own HATs alone, not of cells without pings."""
    of_cell = _samples_by_cell(counts, grid)
    found = [
        (of_cell[estimate.hat.cell], estimate)
        for estimate in estimates
        if estimate.hat.cell in of_cell
    ]
    return SlotSmoothed(
        counts.start_ms,
        sum(pings for pings, _ in found),
        sum(pings * estimate.expected_abs_error_kmh for pings, estimate in found),
        sum(pings * estimate.guess.expected_abs_error_kmh for pings, estimate in found),
    )


PARTIAL: Final = "less than half of their slot was read"


@dataclass(slots=True)
class Tally:
    """The figures that people read of a run, of a slot, or since a line of the log, with their
    words. A fact adds to those that have the names of its fields.

    `unpaired` pings have no speed or heading by movement, `stale` pings were too old to be read,
    `held` pings lie in slots not yet released.

    >>> tally = Tally()
    >>> for refused in ({Reason.LATE: 1}, {}):
    ...     tally.add(BatchRead(messages=3, pings=2, refused=refused))
    >>> tally.words()
    {'hats': '0 HATs, 0 released', 'pings': '4 pings', 'refused': '1 refused (1 late)'}
    """

    hats: Counter[str] = field(default_factory=Counter)
    pings: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    repeats: int = 0
    unpaired: int = 0
    stale: int = 0
    held: int = 0

    def add(self, counts: BatchRead | SlotCounted | SlotRecorded | SlotPublished | Tally) -> None:
        """Add the figures of a fact, or of another tally."""
        for figure in fields(Tally):
            value = getattr(counts, figure.name, 0)
            if isinstance(value, Mapping):
                getattr(self, figure.name).update(value)
            elif value:
                setattr(self, figure.name, getattr(self, figure.name) + value)

    def words(self) -> dict[str, str]:
        """Each figure in words, but for those that tell nothing. The summary, the line of a slot
        and the last line of a run show all of these."""
        refused = f"{self.refused.total():,} refused"
        if self.refused:
            reasons = (f"{count:,} {reason}" for reason, count in self.refused.most_common())
            refused += f" ({', '.join(reasons)})"
        words = {
            "hats": f"{counted(self.hats.total(), 'HAT')}, {self.hats['released']:,} released",
            "pings": counted(self.pings, "ping"),
            "refused": refused,
        }
        if partial := self.hats["withheld_partial"]:
            words["hats"] += f", {partial:,} withheld at no charge, as {PARTIAL}"
        if self.repeats > REPEATS_SHARE * self.pings:
            share = f"{self.repeats:,} of {counted(self.pings, 'ping')} ({self.repeats / self.pings:.0%})"
            words["repeats"] = f"{share} share plate and time with another and count once"
        if self.unpaired:
            words["unpaired"] = f"{self.unpaired:,} without a speed or heading by movement"
        if self.stale:
            words["stale"] = f"{self.stale:,} too old to be read"
        if self.held:
            words["held"] = f"{self.held:,} accepted pings wait in slots that were not released"
        return words

    def figures(self) -> dict[str, object]:
        """The figures that have words."""
        return {name: getattr(self, name) for name in self.words()}


@dataclass(slots=True)
class Summary(Tally):
    """The work of a run in public numbers: no plate, no speed.

    `promises` counts records by policy, period, and the period's epsilon and delta; this run
    recorded `made` of them. `unwritten`: the ledger has records that the output lacks. `answers`
    counts by query and status; `answers_made` are this run's. `estimated` samples lie in HATs with
    a smoothed estimate of this run; `estimate_error` and `guess_error` are sums over them of
    expected errors. `by_slot` is by start. Means count only if made under `policy`, a fingerprint
    ("": all). `others`: how the settings differ from other policies'. `trial`: the ledger is of
    this run only.

    >>> summary = Summary()
    >>> for event in (BatchRead(3, 2, {}), SlotCounted(0, repeats=1), SlotRecorded(0, pings=2, made=1)):
    ...     summary.observe(event)
    >>> summary.pings, summary.repeats, summary.made, summary.held
    (2, 1, 1, 0)
    """

    policy: str = ""
    others: Mapping[str, str] = field(default_factory=dict)
    trial: bool = False

    messages: int = 0
    slots: int = 0
    promises: Counter[tuple[str, str, float, float]] = field(default_factory=Counter)
    made: int = 0
    unwritten: bool = False
    pings_released: int = 0
    means: int = 0
    pings_of_means: int = 0
    expected_error: float = 0.0
    estimated: int = 0
    estimate_error: float = 0.0
    guess_error: float = 0.0
    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    answers_made: int = 0
    by_slot: dict[int, SlotRow] = field(default_factory=dict)
    doubt: UnitDoubt | None = None
    _recording_ms: int = 0

    def observe(self, event: RunEvent) -> None:
        match event:
            case BatchRead():
                self.add(event)
                self.messages += event.messages
                self.held += event.pings - event.unpaired
            case SlotCounted():
                self.add(event)
            case SlotRecorded():
                self.slots += 1
                self._recording_ms = event.start_ms
                self.made += event.made
                self.held -= event.pings
                self.unwritten = True
            case HatRecorded():
                self._recorded(event)
            case SlotPublished():
                self.unwritten = False
            case SlotSmoothed():
                row = self._row(event.start_ms)
                row.pings = event.samples
                row.error = event.error
                self.estimated += event.samples
                self.estimate_error += event.error
                self.guess_error += event.guess_error
            case QueryRecorded():
                self.answers[event.name, event.status] += 1
                self.answers_made += event.made
                self.unwritten = True
            case QueriesPublished():
                self.unwritten = False

    def share(self, pings: int) -> float:
        return pings / max(1, self.pings - self.repeats - self.unpaired)

    def spent(self, start_ms: int, buses: int, left: float) -> None:
        """A slot's buses, and the share of a period's budget that each has left, on average."""
        row = self._row(start_ms)
        row.buses = buses
        row.left = left

    def _row(self, start_ms: int) -> SlotRow:
        return self.by_slot.setdefault(start_ms, SlotRow())

    def _recorded(self, hat: HatRecorded) -> None:
        row = self._row(self._recording_ms)
        row.hats += 1
        row.measured += hat.status == "released"
        self.hats[hat.status] += 1
        self.promises[hat.policy, hat.period, hat.period_epsilon, hat.delta] += 1
        if hat.status == "released":
            self.pings_released += hat.samples
        if hat.mean_error_kmh is not None and self.policy in ("", hat.policy):
            self.means += 1
            self.pings_of_means += hat.samples
            self.expected_error += hat.mean_error_kmh * hat.samples


QUIET_S: Final = 1.0
"""A slot's line comes so long after its last part: on Kafka its parts are released singly."""

MINUTE_S: Final = 60.0
"""Between two lines about what comes in, while it changes."""

STEADY_S: Final = 600.0
"""Between two such lines while nothing changes."""

BEHIND_S: Final = 600.0
"""From this lag on slots close by the times of pings, not by the clock on the wall: as of a
recording."""


def doubt_in_words(doubt: UnitDoubt | None) -> str:
    """Why slots are withheld for their unit, and what a person does about it and about the releases
    before.

    >>> doubt_in_words(None).partition(":")[0]
    'releases say that speeds are in another unit than speed.unit'
    """
    how = "slots are withheld, at no charge, until a person sets it, or speed.unit_checked = true if it is right"
    if doubt is None:
        return f"releases say that speeds are in another unit than speed.unit: {how}"
    why = f"releases since {doubt.since} look like speeds in {doubt.likely}, and speed.unit is {doubt.configured!r}"
    span = f"--from {doubt.since} --to {doubt.until} --reason 'wrong unit of speed'"
    out = f"{counted(doubt.released, 'release')} of them are out"
    return f"{why}: {how}. {out}: `udp-stream ledger withdraw {span}`, with its --ledger or --config, takes them back"


LAG_STEPS_S: Final = 10.0, 60.0, 600.0, 3600.0
"""Steps of a lag: within a step it has not changed."""


class LogMessage(NamedTuple):
    """A sentence, what kind of line it is, and its figures by name; a warning or not.

    >>> LogMessage("slot", "13 HATs, 7 released", {"hats": 13, "released": 7}).figures["hats"]
    13
    """

    event: str
    text: str
    figures: Mapping[str, object]
    warns: bool = False


@dataclass(slots=True)
class _ClosedSlot:
    """The facts of a closed slot so far."""

    first_s: float
    last_s: float
    due: int = 0
    counts: Tally = field(default_factory=Tally)


class RunLog:
    """Lines of a run: counts and times, a line for each closed slot. `now_s` is of a clock that
    never goes back; Unix time is `ahead_s` ahead of it.

    >>> from zoneinfo import ZoneInfo
    >>> log = RunLog(SlotGrid(3600, ZoneInfo("Asia/Kolkata")), grace_ms=120_000)
    >>> facts = SlotCounted(1_641_011_400_000, 0), SlotRecorded(1_641_011_400_000, pings=840, made=2)
    >>> for event in (*facts, SlotPublished(1_641_011_400_000, {"released": 1, "withheld_few_plates": 1})):
    ...     log.observe(event, 1_641_015_120.0)
    >>> for line in log.lines(1_641_015_121.5): print(line.text)
    2022-01-01 10:00-11:00 IST: 2 HATs, 1 released, 840 pings, 0 refused, out after 0.0 s
    no pings; next slot closes at 12:02 IST, in 60 min
    """

    def __init__(self, slots: SlotGrid, grace_ms: int) -> None:
        self._grid = slots
        self._grace_s = grace_ms / 1000
        self._newest_ms: int | None = None
        self._slots: dict[int, _ClosedSlot] = {}
        self._since_slot = Tally()
        self._came = Tally()
        self._said_s: float | None = None
        self._said: tuple[object, ...] = ()

    def observe(self, event: RunEvent, now_s: float) -> None:
        if isinstance(event, SlotCounted | SlotRecorded | SlotPublished):
            slot = self._slots.setdefault(event.start_ms, _ClosedSlot(now_s, now_s))
            slot.last_s = now_s
            slot.counts.add(event)
        match event:
            case BatchRead():
                self._came.add(event)
                self._since_slot.add(event._replace(pings=0))  # a slot has the pings of its own
                if event.newest_ms is not None:
                    self._newest_ms = max(event.newest_ms, self._newest_ms or event.newest_ms)
            case SlotCounted():
                slot.due += 1
            case SlotPublished():
                slot.due -= 1
            case SlotsDropped():  # of what is out by now the line is said; the next owner says the rest
                self._slots = {
                    start: slot
                    for start, slot in self._slots.items()
                    if slot.due <= 0 or slot.counts.hats
                }
                for slot in self._slots.values():
                    slot.due = 0

    def lines(
        self,
        now_s: float,
        ahead_s: float = 0.0,
        doubt: UnitDoubt | None = None,
        *,
        at_the_end: bool = False,
    ) -> list[LogMessage]:
        """Messages that are due now: about slots that are out, and about what comes in. Ask about
        once a second. `doubt` is said where slots are withheld for their unit."""
        out = [
            at
            for at, slot in self._slots.items()
            if slot.due <= 0 and now_s - slot.last_s >= QUIET_S
        ]
        slots = [(at, self._slots.pop(at)) for at in sorted(self._slots if at_the_end else out)]
        in_doubt = sum(slot.counts.hats["withheld_unit"] for _, slot in slots)
        lines = [self._slot_line(at, slot) for at, slot in slots]
        if in_doubt:
            figures: dict[str, object] = {"hats": in_doubt}
            if doubt is not None:
                figures |= {"since": doubt.since, "until": doubt.until, "released": doubt.released}
            lines.append(LogMessage("unit", doubt_in_words(doubt), figures, warns=True))
        return [*lines, *self._incoming(now_s, ahead_s, at_the_end)]

    def _slot_line(self, start_ms: int, slot: _ClosedSlot) -> LogMessage:
        start = self._wall(start_ms / 1000)
        end = self._wall(self._grid.end_of(start_ms) / 1000)
        counts = self._since_slot
        counts.add(slot.counts)
        self._since_slot = Tally()
        took_s = slot.last_s - slot.first_s
        until = f"{end:%H:%M}" if start.date() == end.date() else f"{end:%Y-%m-%d %H:%M}"
        parts = [*counts.words().values(), f"out after {took_s:.1f} s"]
        if slot.due > 0:
            parts.append(f"{slot.due} of its parts not yet")
        text = f"{start:%Y-%m-%d %H:%M}-{until} {end:%Z}: {', '.join(parts)}"
        figures = {"slot_start": start.isoformat()} | counts.figures()
        return LogMessage("slot", text, figures | {"seconds": round(took_s, 3)})

    def _incoming(self, now_s: float, ahead_s: float, at_the_end: bool) -> Iterator[LogMessage]:
        since_s = None if self._said_s is None else now_s - self._said_s
        unix_s = now_s + ahead_s
        lag_s = None if self._newest_ms is None else max(0.0, unix_s - self._newest_ms / 1000)
        came = self._came
        state = (
            came.pings > 0,
            frozenset(came.refused),
            sum((lag_s or 0) >= limit for limit in LAG_STEPS_S),
        )
        if since_s is not None:
            is_due = since_s >= (STEADY_S if state == self._said else MINUTE_S)
            if not (came.pings or came.refused if at_the_end else is_due):
                return
        if (late := came.refused["late"]) > came.pings:
            why = "their slots are closed (docs/operations.md, Outages, recorded pings)"
            text = f"{late:,} of the last {counted(late + came.pings, 'ping')} are late: {why}"
            yield LogMessage("late", text, {"late": late, "pings": came.pings}, warns=True)
        words = came.words()
        parts = [words["pings"] if came.pings else "no pings"]
        figures = {
            "pings": came.pings,
            "refused": came.refused,
            "lag_seconds": lag_s and round(lag_s, 1),
        }
        if since_s is not None:
            parts[0] += f" in {duration_in_words(since_s)}"
        if lag_s is not None:
            parts.append(f"the newest ping is {duration_in_words(lag_s)} old")
        if came.refused:
            parts.append(words["refused"])
        if not at_the_end and not (came.pings and (lag_s or 0) >= BEHIND_S):
            closes_s = (
                self._grid.end_of(round((unix_s - self._grace_s) * 1000)) / 1000 + self._grace_s
            )
            closes = self._wall(closes_s)
            wait = duration_in_words(closes_s - unix_s)
            parts.append(f"next slot closes at {closes:%H:%M %Z}, in {wait}")
            figures["next_close"] = closes.isoformat()
        self._said_s = now_s
        self._said = state
        self._came = Tally()
        yield LogMessage("incoming", "; ".join(parts), figures)

    def _wall(self, time_s: float) -> dt.datetime:
        return dt.datetime.fromtimestamp(time_s, self._grid.zone)


def duration_in_words(seconds: float) -> str:
    """As coarse as is useful: a day for 36 h and more."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
