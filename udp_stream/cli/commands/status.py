"""`status`: what a deployment is doing, from its consumer group or a live run's journal, and its
ledger.

It changes nothing. It shows counts of messages and HATs, times and public settings; no plate,
speed, position or cell.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

from udp_stream.base.errors import (
    ConfigError,
    DependencyUnavailable,
    PrivacyRefused,
    UdpStreamError,
    UsageError,
    needs,
)
from udp_stream.base.files import ALIVE, SILENT_S
from udp_stream.base.logs import counted
from udp_stream.ledgers.opening import LedgerView, ledger_place, look_at, slot_start
from udp_stream.release.events import duration_in_words
from udp_stream.settings import Settings, is_file
from udp_stream.sources.journal import JOURNAL_BYTES_MAX, journal_size
from udp_stream.windows.tables import SlotGrid

FOR_OPERATORS = "for operators only: exact counts, no releases"
LATEST = 20
ERRORS: Final[dict[int, type[UdpStreamError]]] = {
    3: ConfigError,
    4: DependencyUnavailable,
    5: PrivacyRefused,
}


@dataclass
class Status:
    """Lines for people, the same as facts for programs, and what is wrong with its exit status."""

    lines: list[str]
    facts: dict[str, Any]
    troubles: list[tuple[int, str]] = field(default_factory=list)

    @property
    def exit_status(self) -> int:
        return max((status for status, _ in self.troubles), default=0)


def status(arguments: argparse.Namespace, settings: Settings) -> None:
    """Print the page. Raises what is wrong, by the highest status; UsageError for a journal that is
    not there."""
    folder = _journal(arguments, settings)
    ledger = look_at(settings.ledger) if settings.ledger.url else None
    try:
        found = _of_kafka(settings) if folder is None else _of_run(folder, ledger, settings)
    except DependencyUnavailable as error:
        beside = _beside(settings)
        if arguments.bootstrap is not None or beside is None:
            raise
        if settings.kafka.is_set or ledger is None or ledger.holdings is None:
            raise DependencyUnavailable(
                f"{error}; and no live run has its journal in {beside}"
            ) from error
        why = f"no live run has its journal in {beside}; {error}"
        name = f"ledger {ledger_place(settings.ledger.url)}"
        found = _of_ledger(name, [why], None, ledger, settings)
    if ledger is not None:
        found.lines.append(f"ledger: {ledger}")
        holdings = None if ledger.holdings is None else ledger.holdings._asdict()
        found.facts["ledger"] = {**ledger._asdict(), "holdings": holdings}
        if ledger.status:
            found.troubles.append((ledger.status, f"the ledger: {ledger.said}"))
    if arguments.json:
        facts = {"schema": "udp-stream/status/2", "note": FOR_OPERATORS, **found.facts}
        facts["troubles"] = [{"status": status, "text": text} for status, text in found.troubles]
        print(
            json.dumps(facts | {"status": found.exit_status}, ensure_ascii=False, indent=2),
            flush=True,
        )
    else:
        print(
            "\n".join([*found.lines, *(f"trouble: {text}" for _, text in found.troubles)]),
            flush=True,
        )
    if found.exit_status:
        raise ERRORS[found.exit_status]("; ".join(text for _, text in found.troubles))


def _journal(arguments: argparse.Namespace, settings: Settings) -> Path | None:
    if arguments.journal is not None:
        named: Path = arguments.journal
        if not named.is_dir():
            raise UsageError(f"--journal: expected the folder of a run's journal, got {named}")
        return named
    beside = _beside(settings)
    return (
        beside if arguments.bootstrap is None and beside is not None and beside.is_dir() else None
    )


def _beside(settings: Settings) -> Path | None:
    if not settings.ledger.url or not is_file(settings.ledger.url):
        return None
    return Path(f"{ledger_place(settings.ledger.url)}.journal")


def _of_kafka(settings: Settings) -> Status:
    with needs("Kafka client", "kafka"):
        from streams.topics import Rules, group_of
    kafka = settings.kafka
    ours = Rules.of(settings)
    group = group_of(settings.kafka)
    name = f"workers of group {kafka.group} at {kafka.bootstrap}"
    found = Status([f"{name} ({FOR_OPERATORS})"], {"name": name, "run": None})
    for member in group.members:
        reads = (
            f"reads {', '.join(_ranges(member.partitions))}"
            if member.partitions
            else "reads nothing yet"
        )
        found.lines.append(
            f"worker {member.name}: {member.rules or 'not of this version'}; {reads}"
        )
    different = {member.rules for member in group.members}
    agree = len(different) == 1 and None not in different if different else None
    alike = different == {ours} if different else None
    if agree is False:
        which = " and ".join(sorted(str(rules or "another version") for rules in different))
        found.troubles.append((3, f"the workers' settings differ: {which}"))
    words = "as configured here" if alike else f"not all as configured here: {ours}"
    found.lines.append(f"settings: {'no worker to compare with' if alike is None else words}")
    behind = sum(partition.behind for partition in group.partitions)
    members = counted(len(group.members), "member")
    found.lines.append(
        f"group: {members}; {counted(behind, 'message')} after its commits, with those of open slots"
    )
    if not group.members:
        found.troubles.append((4, "no worker runs"))
    elif group.unread:
        found.troubles.append(
            (4, f"no worker reads {', '.join(_ranges(one[:2] for one in group.unread))}")
        )
    last = _last_slot(settings)
    found.lines.append(
        "last slot out: " + (f"{last['slot_start']}, at {last['out_at']}" if last else "none yet")
    )
    late = _late(settings)
    if late:
        of_last = f"{late['pings']} of the last {late['of']} refused pings"
        found.lines.append(
            f"late: {of_last}, the newest at {late['last_at']}: their slots had closed"
        )
    found.facts |= {
        "workers": [{"name": member.name, **(member.rules._asdict() if member.rules else {}), "partitions": member.partitions}
                    for member in group.members],
        "settings_agree": agree,
        "settings_agree_with_this_configuration": alike,
        "partitions": [{**partition._asdict(), "behind": partition.behind} for partition in group.partitions],
        "last_slot": last,
        "late": late,
    }  # fmt: skip
    return found


def _late(settings: Settings) -> dict[str, Any] | None:
    """Late pings among the last refused pings."""
    from streams.kafka import read_topic
    from streams.processors import is_late
    from streams.topics import topics_of

    records = read_topic(settings.kafka, topics_of(settings.kafka).rejected, LATEST)
    times = [record.timestamp for record in records if is_late(record.headers)]
    if not times:
        return None
    last_at = dt.datetime.fromtimestamp(max(times) // 1000, settings.zone).isoformat()
    return {"pings": len(times), "of": len(records), "last_at": last_at}


def _last_slot(settings: Settings) -> dict[str, str] | None:
    from streams.kafka import read_topic
    from streams.topics import topics_of

    records = read_topic(settings.kafka, topics_of(settings.kafka).release, LATEST)
    starts = [
        (json.loads(record.value)["hat"]["slot_start"], record.timestamp) for record in records
    ]
    if not starts:
        return None
    start, out_ms = max(starts, key=lambda start: (dt.datetime.fromisoformat(start[0]), start[1]))
    return {
        "slot_start": start,
        "out_at": dt.datetime.fromtimestamp(out_ms // 1000, settings.zone).isoformat(),
    }


def _of_run(folder: Path, ledger: LedgerView | None, settings: Settings) -> Status:
    name = f"run with the journal {folder}"
    state, age_s = _run_state(folder)
    size = journal_size(folder)
    ago = (
        ""
        if age_s is None
        else f" for {duration_in_words(age_s)}"
        if state == "silent"
        else f", {age_s:.0f} s ago"
    )
    most = "" if settings.window_rules.in_processing_time else f" of at most {JOURNAL_BYTES_MAX:,}"
    journal = f"journal: {size:,}{most} bytes, in {folder}"
    run = {"state": state, "seconds_ago": age_s, "journal_bytes": size}
    found = _of_ledger(name, [f"run: {state}{ago}", journal], run, ledger, settings)
    if state != "alive":
        found.troubles.append(
            (4, f"the run has been silent{ago}: its log says why" if age_s else "no run goes on")
        )
    return found


def _of_ledger(
    name: str,
    lines: Iterable[str],
    run: dict[str, Any] | None,
    ledger: LedgerView | None,
    settings: Settings,
) -> Status:
    """Without Kafka: these lines, and the newest slot that is charged, in the ledger's zone."""
    newest = None
    if ledger is not None and ledger.holdings is not None:
        slots = settings.calendar.slots
        if ledger.holdings.zone is not None:
            slots = SlotGrid(slots.seconds, ZoneInfo(ledger.holdings.zone))
        newest = slot_start(ledger.holdings.newest, slots)
    last_slot = newest and {"slot_start": newest}
    return Status(
        [f"{name} ({FOR_OPERATORS})", *lines, f"last slot charged: {newest or 'none yet'}"],
        {"name": name, "run": run, "workers": [], "last_slot": last_slot},
    )


def _run_state(folder: Path) -> tuple[str, float | None]:
    """`alive` or `silent`, with the age of its last sign of life in seconds; `stopped` if it ended
    in good order."""
    try:
        age_s = round(max(0.0, time.time() - (folder / ALIVE).stat().st_mtime), 1)
    except FileNotFoundError:
        return "stopped", None
    return ("silent" if age_s > SILENT_S else "alive"), age_s


def _ranges(partitions: Iterable[tuple[str, int]]) -> list[str]:
    """Each topic with its partitions, numbers in a row as a range.

    >>> _ranges([("bus.pings.v1", 0), ("bus.pings.v1", 1), ("bus.pings.v1", 3)])
    ['bus.pings.v1[0-1, 3]']
    """
    found = dict[str, list[str]]()
    for (topic, _), run in groupby(
        enumerate(partitions), key=lambda numbered: (numbered[1][0], numbered[1][1] - numbered[0])
    ):
        first, *_, last = [number for _, (_, number) in run] * 2
        found.setdefault(topic, []).append(f"{first}-{last}" if first != last else f"{first}")
    return [f"{topic}[{', '.join(ranges)}]" for topic, ranges in found.items()]
