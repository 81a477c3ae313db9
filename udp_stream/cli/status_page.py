"""What `status` prints: a page for people, and the same as JSON for programs. Counts and public settings alone."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import msgspec

from udp_stream.adapters.ledgers.ledger_view import LedgerView
from udp_stream.adapters.text import counted
from udp_stream.release.run_log import duration_in_words
from udp_stream.release.worker_health import Agreement, Group, Seen, State, Trouble
from udp_stream.release.worker_report import LastRelease, PartitionReport, Work

FOR_OPERATORS = "for operators only: exact counts, no releases"


@dataclass(frozen=True, slots=True)
class Status:
    """Everything that is known of a deployment now. `agreed` is of the workers, `with_ours` of them and this
    configuration. `journal` is what a live run has on disk; of a deployment on Kafka there is a `group`."""

    name: str
    workers: Sequence[Seen]
    agreed: Agreement
    with_ours: Agreement
    troubles: Sequence[Trouble]
    ledger: LedgerView | None
    zone: dt.tzinfo
    group: Group | None = None
    journal: str = ""

    @property
    def exit_status(self) -> int:
        """The highest of what is wrong: 5 before 4 before 3; 0 if all is well."""
        return max((trouble.status for trouble in self.troubles), default=0)

    def with_trouble(self, trouble: Trouble) -> Status:
        """With one more."""
        return replace(self, troubles=(*self.troubles, trouble))

    def lines(self) -> list[str]:
        """The page."""
        found = [f"{self.name} ({FOR_OPERATORS})"]
        for seen in self.workers:
            found += [self._head(seen), *(f"  {line}" for line in self._body(seen))]
        found.append(self._settings())
        if self.group is not None:
            behind = sum(one.behind for one in self.group.partitions)
            members = counted(self.group.members, "member")
            found.append(f"group: {members}; {counted(behind, 'message')} after its commits, with those of open slots")
        found += [f"journal: {self.journal}"] if self.journal else []
        found += [f"ledger: {self.ledger}"] if self.ledger is not None else []
        return found + [f"trouble: {trouble.text}" for trouble in self.troubles]

    def as_json(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "schema": "udp-stream/status/1",
            "name": self.name,
            "note": FOR_OPERATORS,
            "workers": [
                {"state": str(seen.state), "seconds_ago": round(seen.age_s, 1), **msgspec.to_builtins(seen.report)}
                for seen in self.workers
            ],
            "settings_agree": self.agreed.holds,
            "settings_differing": self.agreed.differing,
            "settings_agree_with_this_configuration": self.with_ours.holds,
            "group": None if self.group is None else _group_json(self.group),
            "journal": self.journal or None,
            "ledger": None if self.ledger is None else _ledger_json(self.ledger),
            "troubles": [{"status": trouble.status, "text": trouble.text} for trouble in self.troubles],
            "status": self.exit_status,
        }

    def _head(self, seen: Seen) -> str:
        about, ago = seen.report.about, duration_in_words(seen.age_s)
        state = {
            State.ALIVE: f"alive, {ago} ago",
            State.STUCK: f"stuck for {duration_in_words(seen.report.work.stuck_seconds)}, {ago} ago",
            State.SILENT: f"silent for {ago}, since {self._at(seen.report.work.reported_at, '%H:%M:%S %Z')}",
            State.ENDED: f"stopped {ago} ago"
            if not seen.report.work.ended
            else f"ended with status {seen.report.work.ended} {ago} ago",
        }[seen.state]
        since = self._at(about.started_at, "%Y-%m-%d %H:%M %Z")
        return f"{about.runtime} {about.instance}: {state}; {about.software}, policy {about.policy}, begun {since}"

    def _body(self, seen: Seen) -> list[str]:
        work = seen.report.work
        found = [self._partitions(work)] if work.partitions else []
        refused = ""
        if work.refused:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in work.refused.items())
            refused = f" ({reasons})"
        found.append(
            f"in {duration_in_words(work.window_seconds)}: {counted(work.pings, 'ping')}, "
            f"{sum(work.refused.values()):,} refused{refused}"
        )
        for slot in work.open_slots:
            span = self._span(slot.slot_start, slot.slot_end)
            found.append(f"open: {span}, {counted(slot.pings, 'ping')} in {counted(slot.hats, 'HAT')}")
        if not work.open_slots:
            found.append("open: no slot")
        found += [
            f"closing: the slot of {self._at(slot.slot_start)}, {slot.state}, for {duration_in_words(slot.seconds)}"
            for slot in work.closing
        ]
        if seen.is_running:
            found.append(f"next slot closes {self._closes(work)}")
        return [*found, self._last(work.last_release)]

    def _closes(self, work: Work) -> str:
        if work.next_close_by == "pings":
            return f"when pings reach {self._at(work.next_close)}"
        return f"at {self._at(work.next_close, '%H:%M %Z')}"

    def _partitions(self, work: Work) -> str:
        unread = [one.unread for one in work.partitions]
        lag = "unknown lag" if None in unread else f"{counted(sum(one or 0 for one in unread), 'message')} unread"
        newest = ""
        if work.newest_ping is not None:
            age_s = _when(work.reported_at).timestamp() - _when(work.newest_ping).timestamp()
            newest = f"; the newest ping was {duration_in_words(max(0.0, age_s))} old"
        return f"reads {', '.join(_ranges(work.partitions))}; {lag}{newest}"

    def _last(self, last: LastRelease | None) -> str:
        if last is None:
            return "last slot out: none since it began"
        hats, released = sum(last.hats.values()), last.hats.get("released", 0)
        return (
            f"last slot out: that of {self._at(last.slot_start)}, {counted(hats, 'HAT')}, {released:,} released, at "
            f"{self._at(last.out_at, '%H:%M:%S %Z')}"
        )

    def _settings(self) -> str:
        if self.agreed.holds is None:
            return "settings: cannot tell, no running worker reports"
        if not self.agreed.holds:
            return f"settings: the workers' differ: {self.agreed}"
        running = sum(seen.is_running for seen in self.workers)
        alone = f"the {running} running workers agree" if running > 1 else "one worker runs"
        ours = "the same as in this configuration" if self.with_ours.holds else f"this configuration has {self._ours()}"
        return f"settings: {alone}; {ours}"

    def _ours(self) -> str:
        return f"others: {self.with_ours}"

    def _at(self, text: str, form: str = "%Y-%m-%d %H:%M %Z") -> str:
        return f"{_when(text).astimezone(self.zone):{form}}"

    def _span(self, start: str, end: str) -> str:
        days = {_when(text).astimezone(self.zone).date() for text in (start, end)}
        end_form = "%H:%M %Z" if len(days) == 1 else "%Y-%m-%d %H:%M %Z"
        return f"{self._at(start, '%Y-%m-%d %H:%M')}-{self._at(end, end_form)}"


def _when(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text)


def _ranges(partitions: Sequence[PartitionReport]) -> list[str]:
    """Each topic with its partitions, those in a row as one range."""
    found = []
    for topic, of_topic in groupby(partitions, key=lambda one: one.topic):
        numbers = [one.partition for one in of_topic]
        runs = groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
        spans = [[number for _, number in run] for _, run in runs]
        found.append(f"{topic}[{', '.join(_range(span) for span in spans)}]")
    return found


def _range(numbers: Sequence[int]) -> str:
    return f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"


def _group_json(group: Group) -> Mapping[str, Any]:
    partitions = [{**one._asdict(), "behind": one.behind} for one in group.partitions]
    return {"members": group.members, "partitions": partitions}


def _ledger_json(ledger: LedgerView) -> Mapping[str, Any]:
    holdings = None if ledger.holdings is None else ledger.holdings._asdict()
    return {**ledger._asdict(), "holdings": holdings}
