"""Recorded polls of a GTFS-realtime address: `.pb` files, a message each, and `.pb.gz`.

Several files are a single recording, in the order of the times in their headers; in the order in
which they were named if a header has no time. A ping that several polls have is handed on once
(`RepeatFilter`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import groupby
from pathlib import Path
from typing import Protocol

from udp_stream.base.errors import ConfigError, UsageError
from udp_stream.base.logs import counted
from udp_stream.base.units import REPEATS_SHARE
from udp_stream.pings import snapshots
from udp_stream.pings.advice import ELSEWHERE
from udp_stream.pings.data_quality import QualityWarning
from udp_stream.pings.decode import PingFormat
from udp_stream.pings.json import PLAIN, FeedForm
from udp_stream.pings.snapshots import (
    GTFS_REALTIME,
    HEADER_TAG,
    MOVED,
    OTHER_FEEDS,
    UNIT,
    RepeatFilter,
    gtfs_formats,
    header_time,
)
from udp_stream.pings.texts import delimited
from udp_stream.settings import Settings
from udp_stream.sources.files import GTFS_ENDS, FileSource, OnProgress, blocks_of, whole
from udp_stream.sources.rows import Frames

SNAPSHOT_BYTES_MAX = 64 * 2**20
"""Bytes of an answer or a message, after decompression: 600,000 vehicles; Delhi has 1,715 buses."""

VEHICLES_MAX = 100_000
"""Vehicles of a message: ten times the largest fleets of buses."""


def is_gtfs_file(name: str) -> bool:
    """Whether a file is GTFS-realtime, by the end of its name; a `.bin` by its first byte."""
    named = name.lower().removesuffix(".gz")
    if not named.endswith(".bin"):
        return named.endswith(GTFS_ENDS)
    with suppress(UsageError):  # raised again by the reader of other files
        return _head(name).startswith(HEADER_TAG) or header_time(_head(name)) is not None
    return False


def _head(name: str) -> bytes:
    """The first bytes of a file, decompressed. UsageError if it cannot be read."""
    with closing(blocks_of(name)) as blocks:
        return next(blocks, b"")


class GtfsFiles:
    """GTFS-realtime files as a source: a frame is what a poll had that was new."""

    def __init__(
        self,
        names: Sequence[str],
        progress_of: Callable[[str], OnProgress | None] = lambda _: None,
        log_message: Callable[[str], None] = lambda _: None,
        form: FeedForm = PLAIN,
    ) -> None:
        """Reads the headers alone. UsageError for a file that cannot be read."""
        named = [(header_time(_head(name)), name, progress_of(name)) for name in names]
        if all(time_s is not None for time_s, _, _ in named):
            named.sort(key=lambda each: each[0] or 0)
        self._files = [(name, progress) for _, name, progress in named]
        messages, self.format = gtfs_formats(form)
        self._unrepeated = RepeatFilter(messages, SNAPSHOT_BYTES_MAX, VEHICLES_MAX)
        self._log_message = log_message
        if [name for name, _ in self._files] != list(names):
            log_message(
                f"{counted(len(names), 'GTFS-realtime file')}: read in the order of the times in their headers"
            )

    def messages(self) -> Frames:
        for name, progress in self._files:
            data = _read(name)
            for message in (
                None if header_time(data) and data.startswith(HEADER_TAG) else delimited(data)
            ) or [data]:
                frame = self._unrepeated.take(message)
                if reason := self._unrepeated.unreadable:
                    self._log_message(f"{name}: refused whole as {reason}")
                if frame:
                    yield frame
            if progress is not None:
                size = Path(name).stat().st_size
                progress(size, size)
        self.close()

    def close(self) -> None:
        some = self._unrepeated.counts
        self._unrepeated.counts = Counter()
        for sentence in sentences(some):
            self._log_message(type(sentence)(f"GTFS-realtime: {sentence}"))


def sentences(counts: Counter[str]) -> Iterator[str]:
    """Sentences for people on how pings were read, from the counts of a `RepeatFilter`."""
    plates = counts[snapshots.FROM_LICENSE_PLATE]
    ids = counts[snapshots.FROM_ID]
    if plates and ids:
        yield (
            f"{_have(plates)} from vehicle.license_plate and {_have(ids)} from vehicle.id: a "
            "vehicle that is reported under both counts as two plates, with a budget each"
        )
    elif plates:
        yield f"{_have(plates)} from vehicle.license_plate"
    elif ids:
        yield f"{_have(ids)} from vehicle.id, as vehicle.license_plate is not set"
    if milliseconds := counts[snapshots.TIME_IN_MS]:
        what = f"{counted(milliseconds, 'ping')} {'has' if milliseconds == 1 else 'have'} a time"
        yield QualityWarning(
            f"{what} (vehicle.timestamp) in milliseconds, where the specification has seconds"
        )
    if late := counts[snapshots.TIME_OF_HEADER]:
        yield f"{counted(late, 'ping')} {'has' if late == 1 else 'have'} no time but that of the message's header"
    if standing := counts[snapshots.STANDING]:
        yield QualityWarning(f"{counted(standing, 'plate')} {snapshots.STANDING}")
    moved = moved_share(counts)
    if counts[snapshots.OLD] > OLD_SHARE * counts["read"]:
        are_old = f"{counts[snapshots.OLD]:,} of {counted(counts['read'], 'ping')} are over {snapshots.OLD_S // 60} min older"
        why = "the feed's times stand still, or are of another clock"
        yield QualityWarning(
            f"{are_old} than their message's header: {why}{moved and f'; {moved}'}"
        )
    elif moved:
        yield QualityWarning(f"{moved}: {TOO_COARSE}")
    others = counts[snapshots.NO_VEHICLE]
    if others and not counts["read"] + counts["refused"]:
        kinds = (
            " and ".join(f"{what}s" for what in OTHER_FEEDS.values() if counts[what])
            or "of another kind"
        )
        yield QualityWarning(
            f"{counted(others, 'entity', 'entities')}, none with a vehicle: {kinds}: {ELSEWHERE}"
        )
    elif others:
        entities = "1 entity is" if others == 1 else f"{others:,} entities are"
        yield f"{entities} no vehicle positions, and skipped: is this the feed of vehicle positions?"


TOO_COARSE = "the feed's times are coarser than its pings"


def moved_share(counts: Counter[str]) -> str:
    """A clause if many pings are left out that are more than repeats; else ""."""
    if counts[MOVED] <= REPEATS_SHARE * counts["read"]:
        return ""
    share = f"{counts[MOVED]:,} of {counted(counts['read'], 'ping')} ({counts[MOVED] / counts['read']:.0%})"
    return f"{share} share plate and time with another, lie elsewhere, and are left out"


OLD_SHARE = 0.9
"""At night most buses do not send, and feeds keep their last fixes: nearly all must be old before
it is said."""


def _have(count: int) -> str:
    return f"{counted(count, 'ping')} {'has its plate' if count == 1 else 'have their plates'}"


def _read(name: str) -> bytes:
    """The message in a file. UsageError if the file cannot be read, is damaged, or holds more than
    a message may."""
    rule = f"expected one GTFS-realtime message of at most {SNAPSHOT_BYTES_MAX:,} bytes"
    return whole(name, blocks_of(name), SNAPSHOT_BYTES_MAX, rule)


# Recorded sources by name: a path, or `-` for standard input.
#
# A scheme has two characters or more before `://`: `a:b.ndjson` and `C:/pings.csv` are paths. The
# name alone decides: so a file cannot stand in for a live source. A file whose name looks like a
# scheme is reached as `./mqtt://...`.

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+)://", re.IGNORECASE)


class Source(Protocol):
    """Where pings come from. `format`: how the messages of its last frame spell pings."""

    @property
    def format(self) -> PingFormat: ...

    def messages(self) -> Frames:
        """The messages in order, in frames: the clock observes a frame at once. Ask once.
        UsageError or DependencyUnavailable if the source fails, behind its last frame."""

    def close(self) -> None:
        """Let go of files and connections, wherever `messages` is. Safe to repeat."""


MessageSink = Callable[[str], None]
"""Takes a sentence for people, about something that pings do not show."""


def open_source(
    name: str,
    unit: str | None,
    progress: OnProgress | None = None,
    log_message: MessageSink = lambda _: None,
    *,
    form: FeedForm = PLAIN,
) -> Source:
    """The source of a name, of which nothing is read yet. `unit` is `speed.unit`; `form` that of
    the feed (`[source]`).

    UsageError for a scheme, or a file that cannot be read. ConfigError for GTFS-realtime without a
    unit.
    """
    ((_, source),) = open_sources([name], unit, lambda _: progress, log_message, form=form)
    return source


def open_sources(
    names: Sequence[str],
    unit: str | None,
    progress_of: Callable[[str], OnProgress | None] = lambda _: None,
    log_message: MessageSink = lambda _: None,
    *,
    form: FeedForm = PLAIN,
) -> Iterator[tuple[str, Source]]:
    """The sources of these names, in order, each with its name. GTFS-realtime files that stand
    together are a single source, under the first name. Errors as of `open_source`."""
    for some in together(names):
        name = some[0]
        if (scheme := scheme_of(name)) is not None:
            raise UsageError(  # without the rest of the name, which may hold a password
                f"expected a file, or - for standard input, got a name that begins with {scheme}://. Give a file by "
                "its path; where its name begins so, as ./NAME. `run` and `feed` read live sources"
            )
        if not is_gtfs_file(name):
            yield name, FileSource(name, progress_of(name), form)
            continue
        source = GtfsFiles(some, progress_of, log_message, form)
        if form.mapping.speed:
            require_unit(unit, name, log_message)
        yield name, source


def together(names: Sequence[str]) -> Iterator[list[str]]:
    """The names of each recording: GTFS-realtime files that stand together are polls of one."""
    for is_gtfs, group in groupby(names, is_gtfs_file):
        some = list(group)
        yield from [some] if is_gtfs else [[name] for name in some]


def require_unit(unit: str | None, what: str, log_message: MessageSink) -> None:
    """ConfigError if no unit is set for GTFS-realtime; a unit that is not the specification's is
    said."""
    if unit is None:
        raise ConfigError(
            f"expected speed.unit = {UNIT!r} for {what}, as the specification of GTFS-realtime has it, or the unit "
            "that the feed has in truth (`init` finds it, `doctor` checks it); got none"
        )
    if unit != UNIT:
        log_message(
            f"{what} is GTFS-realtime, in {UNIT} by its specification; its speeds are read in {unit} (speed.unit)"
        )


def require_gtfs(settings: Settings, what: str, log_message: MessageSink) -> None:
    """ConfigError for GTFS-realtime if no unit is set, or beside a form of a feed's own."""
    require_one_form(settings.form, [GTFS_REALTIME], what)
    require_unit(settings.speed.unit if settings.form.mapping.speed else UNIT, what, log_message)


def require_one_form(
    form: FeedForm, formats: Iterable[PingFormat], what: str = "GTFS-realtime"
) -> None:
    """ConfigError for GTFS-realtime beside a form of a feed's own: its pings go on in the
    contract's form."""
    if not form.is_plain and not all(one.is_json for one in formats):
        raise ConfigError(
            f'source: expected no keys but plate = "vehicle.vehicle.label" or id for {what}: its pings go on in the '
            "contract's form, and all messages would be read by [source]"
        )


def scheme_of(name: str) -> str | None:
    """The scheme of a name, in lower case; None for a path and for standard input."""
    match = _SCHEME.match(name)
    return match[1].lower() if match else None
