"""`dashboard`: released records in a browser, from files that grow or from the topics of a
deployment.

It loads no ledger, no key and no reader of pings, so it has nothing to leak but what was released.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from udp_stream.base.errors import ConfigError, UsageError, needs
from udp_stream.base.gtfs import GtfsError, Network, read_network
from udp_stream.base.logs import WARNING, begin_log, counted, log_message
from udp_stream.cli.progress import ReadingProgress
from udp_stream.dashboard.branding import Branding
from udp_stream.dashboard.follow import Batch, GrowingFile, feed, growing
from udp_stream.dashboard.history import opened
from udp_stream.dashboard.places import Places
from udp_stream.dashboard.slots import Slots

if TYPE_CHECKING:
    from udp_stream.settings import Settings
    from udp_stream.windows.grid import Grid

OTHER_FORMS = ".gz", ".csv", ".geojson", ".parquet"


def dashboard(arguments: argparse.Namespace, settings: Settings) -> None:
    """Serve until stopped. DependencyUnavailable if the address is taken, or what it reads cannot
    be read."""
    with needs("web server", "dashboard"):
        from udp_stream.dashboard.server import Dashboard, serving
    begin_log()
    ours = settings.dashboard
    branding = Branding(ours.title, ours.note, ours.tiles, ours.tiles_credit)
    page = Dashboard(
        Slots(ours.slots, history=opened(ours.history, settings.grid), grid=settings.grid),
        Statement(ours.statement).read,
        _places(arguments.gtfs or ours.gtfs, settings.grid),
        branding,
        holidays=ours.holidays,
    )
    if not arguments.files:
        from streams.topics import require_reachable

        require_reachable(settings.kafka)
    with ExitStack() as stack:
        names = list(dict.fromkeys(arguments.files))
        progress = ReadingProgress(names)
        files = [stack.enter_context(closing(_growing(name, progress))) for name in names]
        address = stack.enter_context(serving(page, settings.dashboard.listen))
        where = (
            counted(len(files), "file") if files else f"the topics of {settings.kafka.bootstrap}"
        )
        log_message(f"the dashboard of {where} is at {address}", "live", {"address": address})
        batches = _with_bar(files, progress) if files else _of_topics(settings)
        feed(batches, page.slots, page.announce)


def _places(name: str, grid: Grid) -> Places | None:
    try:
        if name:
            return Places(read_network(name), grid)
        return Places(Network([], []), grid) if grid.domain.size else None
    except GtfsError as error:
        log_message(f"{error}; the page has no names", "no_names", level=WARNING)
        return None


def _growing(name: str, progress: ReadingProgress) -> GrowingFile:
    if name == "-" or name.lower().endswith(OTHER_FORMS):
        rule = "a file of plain lines of JSON, as `run --out` and `--smoothed` write, such as releases.ndjson"
        raise UsageError(f"{name}: expected {rule}")
    if not Path(name).exists():
        log_message(f"{name} is not there yet: waiting for it", "waiting")
    return GrowingFile(Path(name), progress.of(name))


def _with_bar(files: Sequence[GrowingFile], progress: ReadingProgress) -> Iterator[Batch]:
    """The lines of files, with a bar until all of them were read for the first time."""
    batches = growing(files)
    with progress:
        for batch in batches:
            yield batch
            if batch.at_end and all(file.is_begun for file in files):
                break
    yield from batches


def _of_topics(settings: Settings) -> Iterator[Batch]:
    from streams.topics import read_published

    kept_s = settings.policy.slot_seconds * (settings.dashboard.slots + 1)
    return map(Batch._make, read_published(settings.kafka, round((time.time() - kept_s) * 1000)))


class Statement:
    """The file of `dashboard.statement`, read at each request, as `ledger export` may replace it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._text = b""
        if name and self.read() is None:
            rule = "a file that `udp-stream ledger show` has written"
            raise ConfigError(
                f"dashboard.statement: expected {rule}, got {name}, which is none or cannot be read"
            )

    def read(self) -> bytes | None:
        """Its JSON; what it was before if it is none any more."""
        with suppress(OSError, msgspec.DecodeError):
            text = Path(self._name).read_bytes() if self._name else b""
            if {"basic", "privacy", "details"} <= msgspec.json.decode(
                text, type=dict[str, msgspec.Raw]
            ).keys():
                self._text = text
        return self._text or None
