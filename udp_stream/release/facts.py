"""Facts of a run, and observers of them: what both runtimes report while they work.

A fact is a value that is public: counts, times of slots, statuses, names of policies and budget periods. It never holds
a plate, a cell or a speed. The words that people read are made of facts elsewhere (`cli/report.py`).

An observer gets facts, of every step as it happens; a sink (`delivery.py`) gets the releases themselves.

| fact | when |
| --- | --- |
| `BatchRead` | messages were decoded and placed; before refusals are written or a slot is released |
| `SlotCounted` | a closed slot was counted |
| `SlotRecorded`, then a `HatRecorded` for each HAT | the ledger holds the slot; before readers have it |
| `SlotPublished` | readers have it |
| `SlotSmoothed` | readers have its smoothed estimates, where the embedded runtime writes them |
| `QueryRecorded`, for each query of a moment | the ledger holds its answer; before readers have it |
| `QueriesPublished` | readers have the moment's answers |

On Kafka a slot is a shard's part of it. What is done again after a crash is reported again: a message that was read
twice, or a slot, which then has no HAT that was made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from udp_stream.pings.decode import Reason, Refusal
from udp_stream.release.delivery import PublishedRelease
from udp_stream.release.draw import RecordedSlot
from udp_stream.release.query_record import ResultStatus
from udp_stream.release.record import Release, Status
from udp_stream.release.smoothed import Smoothed
from udp_stream.windows.tables import SlotCounts, cell_name


@dataclass(frozen=True, slots=True)
class BatchRead:
    """Messages read, the pings in them that were accepted, and those refused, by reason in order of appearance.

    `newest_ms` is the latest time of an accepted ping, Unix ms; None if none was accepted.

    >>> BatchRead(messages=3, pings=2, refused={Reason.NOT_JSON: 1}).pings
    2
    """

    messages: int
    pings: int
    refused: Mapping[Reason, int]
    newest_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SlotCounted:
    """A closed slot, and the repeats that counting dropped.

    On Kafka these are the repeats across source partitions: each partition has dropped its own before.

    >>> SlotCounted(start_ms=0, repeats=3).repeats
    3
    """

    start_ms: int
    repeats: int


@dataclass(frozen=True, slots=True)
class SlotRecorded:
    """A slot in the ledger: its pings, repeats included, and how many HATs this run recorded; others were before.

    >>> SlotRecorded(start_ms=0, pings=400, made=2).made
    2
    """

    start_ms: int
    pings: int
    made: int


@dataclass(frozen=True, slots=True)
class HatRecorded:
    """What one record of the slot says: its status, samples, and the policy, period and epsilon that it was made under.

    `delta` is what the epsilon holds with, 0 under pure accounting. `mean_error_kmh` is the expected absolute error
    of its mean; None if it has no mean.

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


@dataclass(frozen=True, slots=True)
class SlotPublished:
    """Readers have this slot; how many HATs of each status.

    >>> SlotPublished(0, {"released": 2, "withheld_few_plates": 1}).hats["released"]
    2
    """

    start_ms: int
    hats: Mapping[Status, int]


@dataclass(frozen=True, slots=True)
class SlotSmoothed:
    """Readers have estimates of a slot's HATs with so many samples; the sums, over these, of what the estimates and the
    guesses by counts beside them are expected to err by, in km/h.

    >>> SlotSmoothed(0, samples=400, error=1200.0, guess_error=1300.0).samples
    400
    """

    start_ms: int
    samples: int
    error: float
    guess_error: float


@dataclass(frozen=True, slots=True)
class QueryRecorded:
    """The answer of a standing query at a moment (Unix ms), by its status; `made` if this run recorded it.

    >>> QueryRecorded("near-the-station", 900_000, "answered", made=True).status
    'answered'
    """

    name: str
    moment_ms: int
    status: ResultStatus
    made: bool


@dataclass(frozen=True, slots=True)
class QueriesPublished:
    """How many answers of this moment readers have.

    >>> QueriesPublished(900_000, answers=3).answers
    3
    """

    moment_ms: int
    answers: int


Fact = (
    BatchRead
    | SlotCounted
    | SlotRecorded
    | HatRecorded
    | SlotPublished
    | SlotSmoothed
    | QueryRecorded
    | QueriesPublished
)

Observer = Callable[[Fact], None]
"""Gets each fact as it happens, in the thread of the runtime, which waits for it. What it raises stops the run."""


def report_to(*observers: Observer) -> Observer:
    """One observer that gives each fact to all of these, in order.

    >>> seen = []
    >>> report_to(seen.append, lambda fact: seen.append(fact.repeats))(SlotCounted(0, 3))
    >>> seen
    [SlotCounted(start_ms=0, repeats=3), 3]
    """

    def report(fact: Fact) -> None:
        for observe in observers:
            observe(fact)

    return report


def batch_read(messages: int, pings: int, refusals: Iterable[Refusal], newest_ms: int | None) -> BatchRead:
    """The fact of a batch.

    >>> batch_read(3, 2, [Refusal(1, -1, Reason.NOT_JSON, "$")], 1_641_012_035_000).refused[Reason.NOT_JSON]
    1
    """
    return BatchRead(messages, pings, dict(Counter(refusal.reason for refusal in refusals)), newest_ms)


def hat_recorded(record: Release, samples: int) -> HatRecorded:
    """The fact of a record, of a HAT with this number of samples: the record may keep it back.

    >>> from udp_stream.testing import released_slot
    >>> from udp_stream.release.record import decode
    >>> hat_recorded(decode(next(iter(released_slot().payloads.values()))), samples=9).status
    'released'
    """
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
    report: Observer, counts: SlotCounts, recorded: RecordedSlot, releases: Sequence[PublishedRelease]
) -> None:
    """Report a slot that the ledger holds, then each of its HATs, by cell.

    >>> from udp_stream.testing import released_slot, two_hats
    >>> seen = []
    >>> report_recorded(seen.append, two_hats()[0], released_slot(), [])
    >>> type(seen[0]).__name__
    'SlotRecorded'
    """
    pings = int(counts.count.sum()) + counts.repeats
    report(SlotRecorded(counts.start_ms, pings, len(recorded.made)))
    until = np.append(0, np.cumsum(counts.count)).tolist()
    samples = (until[hat.rows.stop] - until[hat.rows.start] for hat in recorded.hats)
    for release, of_hat in zip(releases, samples, strict=False):
        report(hat_recorded(release.record, of_hat))


def slot_published(start_ms: int, releases: Sequence[PublishedRelease]) -> SlotPublished:
    """The fact of a slot whose releases readers have.

    >>> slot_published(0, [])
    SlotPublished(start_ms=0, hats={})
    """
    return SlotPublished(start_ms, dict(Counter(release.record.status for release in releases)))


def slot_smoothed(counts: SlotCounts, estimates: Iterable[Smoothed]) -> SlotSmoothed:
    """The fact of a slot's estimates: of its own HATs alone, not of cells without pings.

    >>> from udp_stream.testing import two_hats
    >>> slot_smoothed(two_hats()[0], [])
    SlotSmoothed(start_ms=1641009600000, samples=0, error=0, guess_error=0)
    """
    samples = np.add.reduceat(counts.count, counts.hat_rows[:-1]).tolist() if counts.cells.size else []
    of_cell = dict(zip(map(cell_name, counts.cells.tolist()), samples, strict=True))
    found = [(of_cell[one.hat.cell], one) for one in estimates if one.hat.cell in of_cell]
    return SlotSmoothed(
        counts.start_ms,
        sum(pings for pings, _ in found),
        sum(pings * one.expected_abs_error_kmh for pings, one in found),
        sum(pings * one.guess.expected_abs_error_kmh for pings, one in found),
    )
