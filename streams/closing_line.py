"""The last line of a worker: an observer of what it read and published."""

from __future__ import annotations

from dataclasses import dataclass

from udp_stream.adapters.text import counted
from udp_stream.release.facts import BatchRead, Fact, QueriesPublished, SlotPublished


@dataclass(slots=True)
class ClosingLine:
    """What a worker did, for the line on stderr when it ends. A HAT counts once readers have it.

    >>> line = ClosingLine()
    >>> line.observe(BatchRead(3, 1200, {}))
    >>> line.observe(SlotPublished(0, {"released": 2, "withheld_budget": 1}))
    >>> print(line)
    1,200 pings read, 2 HATs released, 1 withheld
    >>> line.observe(QueriesPublished(900_000, answers=3))
    >>> print(line)
    1,200 pings read, 2 HATs released, 1 withheld, 3 queries answered
    """

    pings: int = 0
    released: int = 0
    withheld: int = 0
    answers: int = 0

    def observe(self, fact: Fact) -> None:
        """Count a fact; most are none of its business."""
        if isinstance(fact, BatchRead):
            self.pings += fact.pings
        elif isinstance(fact, SlotPublished):
            released = fact.hats.get("released", 0)
            self.released += released
            self.withheld += sum(fact.hats.values()) - released
        elif isinstance(fact, QueriesPublished):
            self.answers += fact.answers

    def __str__(self) -> str:
        """The line."""
        answers = f", {counted(self.answers, 'query', 'queries')} answered" if self.answers else ""
        read, released = counted(self.pings, "ping"), counted(self.released, "HAT")
        return f"{read} read, {released} released, {self.withheld:,} withheld{answers}"
