"""What follows from workers' reports: which of them are alive, whether their settings agree, and what is wrong.

| state | when |
| --- | --- |
| alive | the latest report is no older than three of its intervals |
| silent | it is older: the worker was killed, is paused, or cannot reach the broker |
| stuck | alive, and nothing was done for a quarter of `kafka.stuck_timeout` though there was work |
| ended | it has ended with an error, and has said so; of a live run also: it was stopped |

A worker that is stopped politely takes its report away. Silent and ended workers are remembered for a day if they have
a name for ever (`--instance`), because they are missed until they are back; others for ten minutes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from udp_stream.release.run_log import duration_in_words
from udp_stream.release.worker_report import WorkerReport

SILENT_AFTER: Final = 3
"""Intervals without a report: one may be lost with its broker, and one be late."""

REMEMBERED_S: Final = 86_400.0
NAMELESS_REMEMBERED_S: Final = 600.0

OURS: Final = "this configuration"


class State(StrEnum):
    """How a worker is, by its latest report.

    >>> State.SILENT.value
    'silent'
    """

    ALIVE = "alive"
    STUCK = "stuck"
    SILENT = "silent"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Seen:
    """A worker's latest report, and how many seconds old it is by the clock of the broker (of a run: its own).

    >>> from udp_stream.testing import a_report
    >>> [Seen(a_report("one"), age_s).state.value for age_s in (3.0, 30.1)]
    ['alive', 'silent']
    """

    report: WorkerReport
    age_s: float

    @property
    def name(self) -> str:
        """Of the worker."""
        return self.report.about.instance

    @property
    def state(self) -> State:
        """How it is."""
        if self.report.work.ended is not None:
            return State.ENDED
        if self.age_s > SILENT_AFTER * self.report.about.every_seconds:
            return State.SILENT
        return State.STUCK if self.report.work.stuck_seconds else State.ALIVE

    @property
    def is_running(self) -> bool:
        """Whether it runs, as far as can be told."""
        return self.state in (State.ALIVE, State.STUCK)

    @property
    def is_remembered(self) -> bool:
        """Whether it is still to be shown."""
        kept_s = REMEMBERED_S if self.report.about.is_named else NAMELESS_REMEMBERED_S
        return self.is_running or self.age_s <= kept_s


@dataclass(frozen=True, slots=True)
class Agreement:
    """Whether the settings of several are the same; None if that cannot be told.

    `differing` has each key that is not the same, with its values and who has them.

    >>> Agreement(True, {}).holds, str(Agreement(True, {}))
    (True, '')
    """

    holds: bool | None
    differing: Mapping[str, Mapping[str, tuple[str, ...]]]

    def __str__(self) -> str:
        """The keys that differ, in one clause.

        >>> print(Agreement(False, {"budget.epsilon": {"10": ("one", "two"), "5": ("three",)}}))
        budget.epsilon is 10 (one, two) and 5 (three)
        """
        return "; ".join(
            f"{key} is " + " and ".join(f"{value} ({', '.join(names)})" for value, names in values.items())
            for key, values in self.differing.items()
        )


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings of one worker, or of a configuration: `WorkerReport`'s digest, keys behind it, and further keys.

    >>> Rules("5eed", {"budget.epsilon": "10"}, {"kafka.disorder": "1m"}).rules
    {'kafka.disorder': '1m'}
    """

    policy: str
    settings: Mapping[str, str]
    rules: Mapping[str, str]


def agreement(workers: Iterable[Seen], ours: Rules | None = None) -> Agreement:
    """Whether all running workers have the same settings, and the same as ours, if given.

    Alone there is nothing to compare; of workers that do not run it cannot be told. Where the digests are equal, keys
    that have no effect may differ.

    >>> from udp_stream.testing import a_report
    >>> one, two = (Seen(a_report(name, epsilon), 1.0) for name, epsilon in (("one", "10"), ("two", "5")))
    >>> print(agreement([one, two]))
    budget.epsilon is 10 (one) and 5 (two)
    >>> agreement([one]).holds, agreement([one, one]).holds, agreement([]).holds
    (True, True, None)
    """
    found = {seen.name: _rules_of(seen) for seen in workers if seen.is_running}
    if not found:
        return Agreement(None, {})
    if ours is not None:
        found[OURS] = ours
    differing = _differing({name: one.rules for name, one in found.items()})
    if len({one.policy for one in found.values()}) > 1:
        by_key = _differing({name: one.settings for name, one in found.items()})
        digests = _differing({name: {"policy": one.policy} for name, one in found.items()})
        differing = {**(by_key or digests), **differing}
    return Agreement(not differing, differing)


def _rules_of(seen: Seen) -> Rules:
    about = seen.report.about
    return Rules(about.policy, about.settings, about.rules)


def _differing(of: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, tuple[str, ...]]]:
    """The keys that do not have one value, with who has which."""
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for key in dict.fromkeys(key for keys in of.values() for key in keys):
        values: dict[str, tuple[str, ...]] = {}
        for name, keys in of.items():
            value = keys.get(key, "unset")
            values[value] = (*values.get(value, ()), name)
        if len(values) > 1:
            found[key] = values
    return found


class GroupPartition(NamedTuple):
    """A partition: where it begins and ends, and from where on a worker that takes it over reads; None if nothing is
    committed, which is from its beginning on.

    `topic` is the topic's name without prefix.

    >>> GroupPartition("bus.pings.v1", 0, first=100, end=1200, committed=900).behind
    300
    """

    topic: str
    partition: int
    first: int
    end: int
    committed: int | None

    @property
    def behind(self) -> int:
        """How many messages there are from there on: unread ones, and those of open slots."""
        return max(0, self.end - (self.first if self.committed is None else self.committed))


class Group(NamedTuple):
    """The partitions of pings and of chunks, in order, and how many members the group has.

    >>> Group((GroupPartition("bus.pings.v1", 0, first=100, end=1200, committed=None),), members=1).partitions[0].behind
    1100
    """

    partitions: tuple[GroupPartition, ...]
    members: int


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that is not as it should be: the exit status that it stands for, and a sentence.

    >>> Trouble(4, "no worker runs").status
    4
    """

    status: int
    text: str


def troubles(workers: Sequence[Seen], group: Group | None = None) -> list[Trouble]:
    """What the reports show to be wrong; on Kafka, of `group`: all of its partitions need a worker.

    >>> from udp_stream.testing import a_report
    >>> for trouble in troubles([Seen(a_report("one"), 95.0)]): print(trouble.text)
    one has been silent for 2 min
    no worker runs
    """
    found = [trouble for seen in workers if (trouble := _of_worker(seen)) is not None]
    running = [seen for seen in workers if seen.is_running]
    if not running:
        # Members that do not report are of a version without reports, or none gets through.
        dark = [] if group is None else _of_group(running, group)
        return [*found, *(dark or [Trouble(4, "no worker runs")])]
    agreed = agreement(running)
    if agreed.holds is False:
        found.append(Trouble(3, f"the workers' settings differ: {agreed}"))
    return [*found, *([] if group is None else _of_group(running, group))]


def _of_group(running: Sequence[Seen], group: Group) -> list[Trouble]:
    found = []
    held = {(one.topic, one.partition) for seen in running for one in seen.report.work.partitions}
    missing = [one for one in group.partitions if one[:2] not in held]
    if running and missing:
        names = ", ".join(f"{one.topic}[{one.partition}]" for one in missing)
        found.append(Trouble(4, f"no worker reads {names}"))
    if group.members > len(running):
        reporting = f"only {len(running)} of them report" if running else "none of them reports"
        found.append(Trouble(4, f"the group has {group.members} members, and {reporting}"))
    return found


def _of_worker(seen: Seen) -> Trouble | None:
    work = seen.report.work
    match seen.state:
        case State.ENDED if work.ended:
            return Trouble(work.ended, f"{seen.name} ended with status {work.ended}: its log says why")
        case State.SILENT:
            return Trouble(4, f"{seen.name} has been silent for {duration_in_words(seen.age_s)}")
        case State.STUCK:
            return Trouble(
                4, f"{seen.name} has done nothing for {duration_in_words(work.stuck_seconds)}, with work to do"
            )
    return None
