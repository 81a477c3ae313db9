"""`records --typical`: the typical week of a city, from files of releases and estimates."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path

import msgspec
from msgspec.structs import replace

from udp_stream.base.errors import UsageError
from udp_stream.base.gtfs import read_network
from udp_stream.base.logs import WARNING, counted, log_message
from udp_stream.cli.outputs import records_out, require_distinct, used_files
from udp_stream.dashboard.places import Places
from udp_stream.dashboard.slots import LINE_BYTES_MAX, Record, read_record
from udp_stream.export_formats import require_format
from udp_stream.release.record import Release, Smoothed, Withdrawal
from udp_stream.release.typical import TypicalHour, Week
from udp_stream.settings import Settings


def typical(arguments: argparse.Namespace, settings: Settings) -> None:
    """Read all records, and write a row for each cell, class of day and hour. UsageError if there
    is no release, ConfigError for a timetable that cannot be read."""
    require_format(arguments.out)
    gtfs = arguments.gtfs or settings.dashboard.gtfs
    read = [*arguments.files, *([gtfs] if gtfs else [])]
    require_distinct([("--out", arguments.out)], used_files(arguments, settings, read))
    places = Places(read_network(gtfs), settings.grid) if gtfs else None
    files = [
        name for name in arguments.files if name != "-"
    ]  # on standard input withdrawals come before
    withdrawn = {record.withdraws for record in _records(files) if isinstance(record, Withdrawal)}
    week = Week()
    releases = 0
    refused = 0
    for record in _records(arguments.files):
        if record is None:
            refused += 1
        elif isinstance(record, Withdrawal):
            withdrawn.add(record.withdraws)
        elif isinstance(record, Smoothed) or record.release_id not in withdrawn:
            week.add(record)
            releases += isinstance(record, Release)
    if refused:
        log_message(
            f"{counted(refused, 'line')} are no records of this version", "refused", level=WARNING
        )
    if not releases:
        raise UsageError(
            f"{', '.join(arguments.files)}: expected releases, as `run --out` writes them, got none"
        )
    with records_out(arguments.out, TypicalHour, settings.grid) as write:
        rows = week.rows(settings.dashboard.holidays)
        write(
            [
                msgspec.json.encode(replace(row, place=places and places.name_of(row.cell)))
                for row in rows
            ]
        )


def _records(files: Iterable[str]) -> Iterator[Record | None]:
    return map(read_record, lines_of(files))


def lines_of(files: Iterable[str]) -> Iterator[bytes]:
    """The lines of files, `-` for standard input, without their ends; a longer line than any record
    in pieces. UsageError for a file that cannot be read."""
    for name in files:
        try:
            with nullcontext(sys.stdin.buffer) if name == "-" else Path(name).open("rb") as lines:
                while line := lines.readline(LINE_BYTES_MAX + 1):
                    yield line.rstrip(b"\n")
        except OSError as error:
            raise UsageError(f"{name}: cannot be read ({error.strerror})") from error
