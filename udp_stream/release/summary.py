"""The summary of a run: an observer that turns facts into numbers. `cli/report.py` turns these into words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from udp_stream.release.facts import (
    BatchRead,
    Fact,
    HatRecorded,
    QueriesPublished,
    QueryRecorded,
    SlotCounted,
    SlotPublished,
    SlotRecorded,
    SlotSmoothed,
)


@dataclass(slots=True)
class Summary:
    """What a run did, in numbers that are public: no plate, no speed.

    `held` pings lie in slots not yet released. `promises` counts the records by the policy they were made under, its
    period and that period's epsilon and delta; `made` of them were recorded by this run. `unwritten` is true from when
    records stand in the ledger until all of them are in the output.

    `answers` counts those of standing queries by the query and their status; `answers_made` were recorded by this run.

    `estimated` samples lie in HATs with a smoothed estimate that this run wrote; `estimate_error` and `guess_error` are
    sums, over these, of what the estimates and the guesses by counts beside them are expected to err by.

    `policy` is the run's own, by its fingerprint: means count only if they were made under it (all if it is ""), as an
    error that is expected under other settings says nothing of these. `others` tells how these differ from those of
    other policies, by fingerprint. `trial`: the run has a ledger of its own, which is gone behind it.

    >>> summary = Summary()
    >>> for fact in (BatchRead(3, 2, {}), SlotCounted(0, repeats=1), SlotRecorded(0, pings=2, made=1)):
    ...     summary.observe(fact)
    >>> summary.pings, summary.repeats, summary.made, summary.held
    (2, 1, 1, 0)
    """

    policy: str = ""
    others: Mapping[str, str] = field(default_factory=dict)
    trial: bool = False

    messages: int = 0
    pings: int = 0
    repeats: int = 0
    slots: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    hats: Counter[str] = field(default_factory=Counter)
    promises: Counter[tuple[str, str, float, float]] = field(default_factory=Counter)
    made: int = 0
    held: int = 0
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

    def observe(self, fact: Fact) -> None:
        """Count a fact."""
        match fact:
            case BatchRead():
                self._read(fact)
            case SlotCounted():
                self.repeats += fact.repeats
            case SlotRecorded():
                self.slots += 1
                self.made += fact.made
                self.held -= fact.pings
                self.unwritten = True
            case HatRecorded():
                self._recorded(fact)
            case SlotPublished():
                self.unwritten = False
            case SlotSmoothed():
                self.estimated += fact.samples
                self.estimate_error += fact.error
                self.guess_error += fact.guess_error
            case QueryRecorded():
                self.answers[fact.name, fact.status] += 1
                self.answers_made += fact.made
                self.unwritten = True
            case QueriesPublished():
                self.unwritten = False

    def share(self, pings: int) -> float:
        """How many pings, of all that were accepted and are no repeats.

        >>> Summary(pings=5, repeats=1).share(3)
        0.75
        """
        return pings / max(1, self.pings - self.repeats)

    def _read(self, batch: BatchRead) -> None:
        self.messages += batch.messages
        self.pings += batch.pings
        self.held += batch.pings
        self.refused.update({str(reason): count for reason, count in batch.refused.items()})

    def _recorded(self, hat: HatRecorded) -> None:
        """Errors are weighed by pings, as the baseline guess's are."""
        self.hats[hat.status] += 1
        self.promises[hat.policy, hat.period, hat.period_epsilon, hat.delta] += 1
        if hat.status == "released":
            self.pings_released += hat.samples
        if hat.mean_error_kmh is not None and self.policy in ("", hat.policy):
            self.means += 1
            self.pings_of_means += hat.samples
            self.expected_error += hat.mean_error_kmh * hat.samples
