"""Recordings that a verb was given by name: what to say of them, and of an address in their place."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from udp_stream.adapters.files.gtfs_files import is_gtfs_file
from udp_stream.adapters.schemes import scheme_of
from udp_stream.errors import UsageError

_SHOWN_MAX = 3


def named(files: Sequence[str]) -> str:
    """The first of the files, and how many more there are.

    >>> named(["1.pb"]), named(["1.pb", "2.pb", "3.pb"])
    ('1.pb', '1.pb and 2 more')
    """
    return files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"


def typed(files: Sequence[str]) -> str:
    """The files as a shell takes them; of many, the first ones.

    >>> typed(["my city.csv"]), typed([f"{at}.pb" for at in range(9)])
    ("'my city.csv'", '0.pb 1.pb 2.pb ...')
    """
    shown = " ".join(map(shlex.quote, files[:_SHOWN_MAX]))
    return f"{shown} ..." if len(files) > _SHOWN_MAX else shown


def require_rereadable(names: Sequence[str]) -> None:
    """UsageError for standard input, a pipe or a device, of which a second look would find nothing, or wait for ever.

    >>> require_rereadable(["-"])
    Traceback (most recent call last):
    udp_stream.errors.UsageError: expected files, which can be read twice, got -: save some of it, such as sample.csv...
    """
    for name in names:
        path = Path(name)
        if name == "-" or (path.exists() and not (path.is_file() or path.is_dir())):
            save = "save some of it, such as sample.csv or sample.ndjson"
            raise UsageError(f"expected files, which can be read twice, got {name}: {save}")


def require_savable(names: Sequence[str]) -> None:
    """UsageError for an address, with what to do instead; the address itself, which may hold a token, is not shown.

    >>> require_savable(["https://example.org/VehiclePositions.pb"])
    Traceback (most recent call last):
    udp_stream.errors.UsageError: expected files, got an address of https://. Save some polls: `curl -o 1.pb ADDRESS`...
    """
    for name in names:
        if (scheme := scheme_of(name)) is None:
            continue
        if scheme in ("http", "https"):
            end = "pb" if is_gtfs_file(name.partition("?")[0]) else "json"
            one, two = f"1.{end}", f"2.{end}"
            save = f"some polls: `curl -o {one} ADDRESS`, a minute later `curl -o {two} ADDRESS`; then name {one} {two}"
        else:
            save = "some of its messages, one a line, as sample.ndjson; then name that"
        raise UsageError(f"expected files, got an address of {scheme}://. Save {save}. `run` reads the address")
