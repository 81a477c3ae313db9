"""`init`: a recording of any form in, a commented configuration out."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from udp_stream.adapters.files.atomic import draft_of, link_first
from udp_stream.adapters.files.gtfs_files import is_gtfs_file
from udp_stream.adapters.settings import Settings, load
from udp_stream.adapters.text import counted
from udp_stream.cli.city_file import city_file, hours_of
from udp_stream.cli.found_feed import FoundFeed, find_feed
from udp_stream.cli.named_recordings import named, typed
from udp_stream.cli.outputs import require_place
from udp_stream.cli.report import console
from udp_stream.errors import UsageError

_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}


def init(arguments: argparse.Namespace, settings: Settings) -> None:  # noqa: ARG001 (every verb has settings)
    """Find the feed, check that what is written can be read, write it; UsageError if the file is there already."""
    out = arguments.out
    if out != "-" and os.path.lexists(out):
        raise UsageError(f"{out} is there already: expected a new file for --out")
    if out != "-":
        require_place(Path(out))
    feed = find_feed(arguments.files)
    text = city_file(feed, named(arguments.files))
    with TemporaryDirectory() as folder:
        (check := Path(folder, "city.toml")).write_text(text, encoding="utf-8")
        load(check, (), {})
    if out == "-":
        sys.stdout.write(text)
    else:
        with draft_of(Path(out)) as draft:
            draft.write_text(text, encoding="utf-8")
            link_first(draft, Path(out))
    _tell(feed, arguments.files, out, len(re.findall("^#.*(?:CHECK|NOT KNOWN)", text, re.MULTILINE)))


def _tell(feed: FoundFeed, files: Sequence[str], out: str, checks: int) -> None:
    form = "JSON" if feed.delimiter is None else f"CSV separated by {_SEPARATORS[feed.delimiter]}"
    known = f", preset {feed.preset}" if feed.preset else ", fields by name" if feed.keys else ", the contract's form"
    if is_gtfs_file(files[0]):
        form, known = "GTFS-realtime", ""
    unit = f"unit {feed.unit}" if feed.speed.by else f"unit {feed.unit}, which is NOT KNOWN: set speed.unit"
    if feed.speed.fits_none:
        unit = f"unit {feed.unit}, by which buses do not go as fast as they report: CHECK it"
    print_ = console().print
    if feed.damage:
        print_(f"warning: {feed.damage}", markup=False, soft_wrap=True)
    most = f", most as {feed.commonest}" if feed.refused else ""
    read = f"{counted(feed.pings, 'ping')} read, {feed.refused:,} refused{most}"
    print_(f"{form}{known}; zone {feed.zone}; {unit}; {read}",
           markup=False, soft_wrap=True)  # fmt: skip
    for sentence in (feed.shared, *feed.refused_kinds):
        if sentence:
            print_(f"warning: {sentence}", markup=False, soft_wrap=True)
    print_(f"pings from {hours_of(feed)} by the clock of {feed.zone}", markup=False, soft_wrap=True)
    lines = f"{checks or 'no'} line{'s' * (checks > 1)} of {'the configuration' if out == '-' else out}"
    print_(f"{lines} say{'s' * (checks <= 1)} CHECK or NOT KNOWN", markup=False, soft_wrap=True)
    if out != "-":
        command = f"udp-stream replay {typed(files)} --config {shlex.quote(out)} --trial"
        print_(f"wrote {out}: look through it, set U and epsilon, then: {command}", markup=False, soft_wrap=True)
