"""`doctor`: is everything reachable and safely configured? Changes nothing.

A check ends with `ok`, `FAIL`, or `unknown` if it could not be made. The verdict on raw speeds has
no noise, and is for the operator, who may see the pings.
"""

from __future__ import annotations

import argparse
import shlex
import stat
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from udp_stream.base.errors import (
    ConfigError,
    DependencyUnavailable,
    PrivacyRefused,
    UdpStreamError,
    UsageError,
    needs,
)
from udp_stream.base.gtfs import read_network
from udp_stream.base.logs import counted, trouble_of
from udp_stream.cli.commands.init import samples_of, with_unread
from udp_stream.cli.evidence import REFUSED, Finding, Look, configured, findings, look_at_files
from udp_stream.cli.preflight import (
    JOINED_MESSAGES,
    is_on_disk,
    look_by,
    named,
    require_files,
)
from udp_stream.cli.progress import ReadingProgress, busy
from udp_stream.ledgers.opening import inspect_ledger, is_here, ledger_place, ledger_there
from udp_stream.pings.data_quality import PAIRS_MIN, SPARSE_PAIRS_MIN, QualityWarning
from udp_stream.release.events import duration_in_words
from udp_stream.settings import Settings, is_file
from udp_stream.settings.limits import seconds_of
from udp_stream.settings.rules import has_password
from udp_stream.sources.recordings import is_gtfs_file, together

LATEST = 5_000
NO_RELEASE = "a verdict on raw speeds, not a release"


class InconclusiveCheck(str):
    """The sentence of a check that could not be made."""

    __slots__ = ()


def doctor(arguments: argparse.Namespace, settings: Settings) -> None:
    """Run every check, a line each; in the end raise the first failure, so that the exit status
    tells its kind."""
    require_files(arguments.files)
    checks: list[tuple[str, Callable[[], str]]] = [
        ("configuration", lambda: f"valid, policy {settings.policy.fingerprint()}"),
        (
            "ledger",
            lambda: _ledger(settings, for_workers=not (arguments.files or _is_embedded(settings))),
        ),
    ]
    if arguments.gtfs:
        checks.append(("timetable", partial(_timetable, arguments.gtfs)))
    of_files = list[tuple[str, Callable[[], str]]]()  # with a bar of their own
    if arguments.files:
        for files in together(arguments.files):
            look = cache(partial(_look_at_files, files, settings))
            of_files += [
                (f"pings of {named(files)}", partial(_pings_of_files, look, files, settings)),
                (f"speeds of {named(files)}", partial(_speeds, look, settings)),
            ]
    elif (why_not := _why_no_broker(settings)) is not None:
        checks.append(("broker", partial(_no_broker, why_not, settings)))
    else:
        latest = cache(lambda: _latest(settings))
        look = cache(lambda: _look_at_topic(latest(), settings))
        checks += [
            ("topics", lambda: _topics(settings)),
            ("deployment", lambda: _deployment(settings)),
            ("workers", lambda: _workers(settings)),
            ("pings of the topic", lambda: _pings_of_topic(look(), latest(), settings)),
            ("speeds of the topic", partial(_speeds, look, settings)),
        ]
    found = [_failure(name, check, busy(f"checking the {name}")) for name, check in checks]
    found += [_failure(name, check, nullcontext()) for name, check in of_files]
    if failures := [*filter(None, found)]:
        kinds = (ConfigError, DependencyUnavailable, PrivacyRefused, UsageError)
        first = next((kind for kind in kinds if isinstance(failures[0], kind)), UdpStreamError)
        raise first(f"{len(failures)} of {len(found)} checks failed")


def _is_embedded(settings: Settings) -> bool:
    return not settings.kafka.is_set and is_file(settings.ledger.place)


def _why_no_broker(settings: Settings) -> UdpStreamError | None:
    try:
        with needs("Kafka client", "kafka"):
            from streams.topics import require_reachable
        require_reachable(settings.kafka)
    except UdpStreamError as error:  # also a file of certificates that cannot be used
        return error
    return None


def _no_broker(why_not: UdpStreamError, settings: Settings) -> str:
    if not _is_embedded(settings):
        raise why_not
    return InconclusiveCheck(f"{why_not} (nothing of [kafka] is set: `replay` and `run` need none)")


def _ledger(settings: Settings, for_workers: bool) -> str:
    if for_workers:
        settings.ledger.require_named()
    said = f"{inspect_ledger(settings.ledger)}; {settings.policy.promise}"
    if has_password(settings.ledger.url):
        said += "; its password is in ledger.url, where others can read it: use ledger.client.password_file"
    file = Path(ledger_place(settings.ledger.place))
    if (
        is_file(settings.ledger.place)
        and file.exists()
        and file.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH)
    ):
        said += f"; others can read it, as after a copy: chmod 600 {shlex.quote(str(file))}"
    if not is_here(settings.ledger) and ledger_there(settings.ledger) is not None:
        return InconclusiveCheck(
            f"{said}; cannot tell before its first use on this machine: is this key its key"
        )
    return said


def _timetable(name: str) -> str:
    network = read_network(name)
    return f"{name}: {counted(len(network.stops), 'stop')}, {counted(len(network.lines), 'line')}"


def _failure(
    name: str, check: Callable[[], str], sign: AbstractContextManager[object]
) -> UdpStreamError | None:
    error: UdpStreamError | None = None
    try:
        with sign:
            said = check()
    except UdpStreamError as failed:
        said = str(failed)
        error = failed
    except OSError as failed:  # the folder of a file is closed to us, say: the other checks are made all the same
        said = trouble_of(failed)
        error = DependencyUnavailable(said)
    word = "FAIL" if error else "unknown" if isinstance(said, InconclusiveCheck) else "ok"
    print(f"{word:<5} {name}: {said}", flush=True)
    return error


def _topics(settings: Settings) -> str:
    with needs("Kafka client", "kafka"):
        from streams.topics import differences, require_rights
    found = differences(settings.kafka)
    if wrong := [sentence for sentence in found if not isinstance(sentence, QualityWarning)]:
        raise ConfigError("; ".join(wrong))
    require_rights(settings.kafka)
    return f"as they should be at {settings.kafka.bootstrap}"


def _deployment(settings: Settings) -> str:
    with needs("Kafka client", "kafka"):
        from streams.kafka import registered
        from streams.topics import topics_of
    claim = registered(settings.kafka, topics_of(settings.kafka).deployment)
    if claim is None:
        return InconclusiveCheck(
            "no worker has claimed a ledger yet: there is nothing to compare this configuration with"
        )
    settings.ledger.require_named()
    if (ours := ledger_there(settings.ledger)) != claim.ledger_id:
        ours = "one that is not made yet" if ours is None else ours
        raise PrivacyRefused(
            f"its workers work on the ledger {claim.ledger_id}, and this configuration has {ours}"
        )
    return f"its workers work on this ledger, {claim.ledger_id}"


def _workers(settings: Settings) -> str:
    with needs("Kafka client", "kafka"):
        from streams.topics import Rules, group_of
    ours = Rules.of(settings)
    members = group_of(settings.kafka).members
    if not members:
        return InconclusiveCheck(
            "none is in the group: cannot tell whether its settings are those of this configuration"
        )
    if others := [
        f"{member.name} has {member.rules or 'another version'}"
        for member in members
        if member.rules != ours
    ]:
        raise ConfigError(f"this configuration has {ours}; {'; '.join(others)}")
    return f"{counted(len(members), 'worker')} with the settings of this configuration, {ours}"


def _latest(settings: Settings) -> list[Any]:
    with needs("Kafka client", "kafka"):
        from streams.kafka import read_topic
        from streams.topics import topics_of
    return read_topic(settings.kafka, topics_of(settings.kafka).pings, LATEST)


def _pings_of_topic(look: Look, records: Sequence[Any], settings: Settings) -> str:
    pings = look.pings
    _verdict(findings(look, [REFUSED]))
    if not len(pings):
        return InconclusiveCheck(
            "its latest were refused for their speeds alone, or are of other events"
            if records
            else "it has none"
        )
    partition = np.array([record.partition for record in records])[pings.message]
    of_each = np.unique(np.stack([pings.plate, partition]), axis=1)[0]
    if (several := int((np.bincount(of_each) > 1).sum())) and settings.speed.from_ == "movement":
        raise ConfigError(
            f"{counted(several, 'plate')} of {len(pings.plates):,} come by several partitions: speeds by movement need "
            "all pings of a plate in one. `feed` sees to it, where each message is one ping"
        )
    age_s = max(record.timestamp for record in records) / 1000 - float(pings.time_ms.max()) / 1000
    if age_s > seconds_of("live.max_age", settings.live.max_age):
        old = f"the newest was {duration_in_words(age_s)} old when the last one came"
        look = replace(look, said=[f"{old}: does the feed stand still?"])
    return _pings(look, settings)


def _look_at_topic(records: Sequence[Any], settings: Settings) -> Look:
    messages = [record.value or b"" for record in records]
    return replace(look_by(settings, messages, settings.form.format), part="latest")


def _look_at_files(files: Sequence[str], settings: Settings) -> Look:
    unit = settings.speed.unit
    look = look_at_files(files, settings.form, unit, settings.ping_rules, JOINED_MESSAGES)
    samples = samples_of(files, ReadingProgress(files)) if len(look.pings) else []
    return configured(with_unread(look, samples), settings)


def _pings_of_files(look_at: Callable[[], Look], files: Sequence[str], settings: Settings) -> str:
    look = look_at()
    if not look.messages:
        raise UsageError("; ".join(["expected pings, and found none", *look.said]))
    said = _pings(look, settings)
    if isinstance(said, InconclusiveCheck):
        return said
    if not all(map(is_on_disk, files)):
        return InconclusiveCheck("cannot tell: it is no file on disk")
    if len(files) == 1 and is_gtfs_file(files[0]):
        return InconclusiveCheck(
            "cannot tell whether its plates last: it is one poll. Name two, some minutes apart"
        )
    return said


def _pings(look: Look, settings: Settings) -> str:
    found = [one for one in findings(look) if one.row.section != "speed"]
    clock = settings.source.time_zone
    of_times = f"; their times without an offset are read by {clock}'s clock" if clock else ""
    said = f"they lie where clocks show {settings.hat.timezone}'s time{of_times}"
    return _verdict(found) or said


def _verdict(found: Sequence[Finding], note: str = "") -> str:
    """The table's findings, if none is a failure; "" if it tells nothing."""
    said = "; ".join(one.sentence for one in found) + note
    for error in filter(None, (one.row.error for one in found)):
        raise error(said)
    return InconclusiveCheck(f"cannot tell: {said}") if found else ""


def _speeds(look_at: Callable[[], Look], settings: Settings) -> str:
    if settings.speed.from_ == "movement":
        return "derived from positions: they have no unit"
    look = look_at()
    look = replace(look, told=look.unit)  # also where a person has found it right
    found = [one for one in findings(look) if one.row.section == "speed"]
    if said := _verdict(found, f" ({NO_RELEASE})"):
        return said
    if look.evidence.unit is None:
        return InconclusiveCheck(
            f"cannot tell: fewer than {PAIRS_MIN} pairs of pings 4 to 30 s apart report that they move evenly, and "
            f"fewer than {SPARSE_PAIRS_MIN} are 30 to 130 s apart ({NO_RELEASE})"
        )
    return f"{look.unit}: pings move about as fast as they report ({NO_RELEASE})"
