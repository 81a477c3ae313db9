"""Sources of pings, chosen by the scheme of their name.

A name with a scheme, such as `mqtt://broker/topic`, is given to the source that is registered for it in
`SOURCES`. Every other name is a path, or `-` for standard input. A scheme has two characters or more before
`://`: `a:b.ndjson`, `C:/pings.csv` and `file:pings` are paths. The name alone decides, and not which files
there are, so that a file cannot stand in for a live source. A file whose name looks like a scheme is reached
as `./mqtt://...`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Final, Protocol

from udp_stream.adapters.files.gtfs_files import GtfsFiles, is_gtfs_file
from udp_stream.adapters.files.sources import FileSource, Progress
from udp_stream.errors import ConfigError, UsageError
from udp_stream.pings.decode import PingFormat
from udp_stream.pings.json import PLAIN, FeedForm

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+)://", re.IGNORECASE)


class Source(Protocol):
    """Where pings come from. Making one reads nothing; UsageError for a name that cannot be read."""

    @property
    def unit(self) -> str | None:
        """The unit of its speeds (`kmh`, `mps`, `mph`); None if it may be any, and `speed.unit` says
        which."""
        ...

    @property
    def format(self) -> PingFormat:
        """How its messages spell pings."""
        ...

    def messages(self) -> Iterator[list[bytes]]:
        """Its messages, in order, in frames: the clock observes a frame at once. Ask once.

        It ends when the source does. UsageError or DependencyUnavailable if it fails, after what it gave.
        """
        ...

    def close(self) -> None:
        """Let go of files and connections, wherever `messages` is. Safe to repeat."""
        ...


Opener = Callable[[str, Progress | None], Source]
"""Makes a source from its whole name, and reports to the second argument how far it has read."""

SOURCES: Final[dict[str, Opener]] = {}
"""Sources by scheme, in lower case. Files have none."""


LIVE: Final = ("amqp", "amqps", "http", "https")
"""Schemes of sources that go on until they are stopped (`adapters/live`)."""

Say = Callable[[str], None]
"""Takes a sentence for people: what a source did that its pings do not show."""


def open_source(
    name: str,
    unit: str,
    progress: Progress | None = None,
    say: Say = lambda _: None,
    *,
    form: FeedForm = PLAIN,
) -> Source:
    """The source of a name; nothing is read yet. `unit` is what speeds are taken to be in (`speed.unit`).

    `form` is that of files of JSON and CSV (`[source]`); `say` is given sentences for people. UsageError: an unknown
    scheme, or a file that cannot be read. ConfigError: a source of another unit.

    >>> open_source("mqtt://me:secret@broker/buses", "kmh")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    udp_stream.errors.UsageError: expected a file, or - for standard input, got a name that begins with mqtt://. Give...
    """
    scheme = scheme_of(name)
    if scheme is None:
        if is_gtfs_file(name):
            return _in_unit(GtfsFiles([name], lambda _: progress, say), unit, name)
        return FileSource(name, progress, form)
    if scheme not in SOURCES:
        known = "".join(f"{one}://, " for one in sorted(SOURCES))
        live = (
            f" {scheme}:// goes on until it is stopped: `run` releases it, `feed` sends it to Kafka."
            if scheme in LIVE
            else ""
        )
        raise UsageError(  # without the rest of the name, which may hold a password
            f"expected {known}a file, or - for standard input, got a name that begins with {scheme}://. Give a "
            f"file by its path; where its name begins so, as ./NAME.{live}"
        )
    return _in_unit(SOURCES[scheme](name, progress), unit, f"{scheme}://")


def open_sources(
    names: Sequence[str],
    unit: str,
    progress_of: Callable[[str], Progress | None] = lambda _: None,
    say: Say = lambda _: None,
    *,
    form: FeedForm = PLAIN,
) -> Iterator[tuple[str, Source]]:
    """A source for each name, in order, with the name; GTFS-realtime files that stand together are one, under the first
    one's. Errors as of `open_source`."""
    for is_gtfs, group in groupby(names, is_gtfs_file):
        some = list(group)
        if is_gtfs and len(some) > 1:
            yield some[0], _in_unit(GtfsFiles(some, progress_of, say), unit, some[0])
        else:
            yield from ((name, open_source(name, unit, progress_of(name), say, form=form)) for name in some)


def _in_unit(source: Source, unit: str, what: str) -> Source:
    if source.unit not in (None, unit):
        source.close()
        raise ConfigError(
            f"expected speed.unit = {source.unit!r} for {what}, got {unit!r}: files of its kind have no other unit"
        )
    return source


def scheme_of(name: str) -> str | None:
    """The scheme of a name, in lower case; None for a path and for standard input.

    >>> scheme_of("MQTT://broker"), scheme_of("C://pings.csv"), scheme_of("2022-01-01T10:10.csv"), scheme_of("-")
    ('mqtt', None, None, None)
    """
    match = _SCHEME.match(name)
    return match[1].lower() if match else None
