"""`init`: a recording of any form in, a commented configuration out."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from udp_stream.cli.first_look import named, typed
from udp_stream.cli.found_feed import city_file, find_feed
from udp_stream.cli.outputs import require_place
from udp_stream.cli.report import console
from udp_stream.errors import UsageError
from udp_stream.files import draft_of, link_first
from udp_stream.logs import counted
from udp_stream.settings import Settings, load
from udp_stream.sources.recordings import is_gtfs_file


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
    form = "JSON" if feed.delimiter is None else f"CSV with {feed.delimiter!r}"
    form = "GTFS-realtime" if is_gtfs_file(arguments.files[0]) else form
    known = f", preset {feed.preset}" if feed.preset else ", fields by name" if feed.keys else ""
    read = f"{counted(feed.pings, 'ping')} read, {feed.refused:,} refused, {feed.hours}"
    _say(f"{form}{known}; zone {feed.zone}; unit {feed.unit}{'' if feed.unit_by else ' (NOT KNOWN)'}; {read}")
    for line in re.findall("^# (?:CHECK|NOT KNOWN).*", text, re.MULTILINE):
        _say(line.removeprefix("# "))
    if out != "-":
        command = f"udp-stream replay {typed(arguments.files)} --config {shlex.quote(out)} --trial"
        _say(f"wrote {out}: look through it, set U and epsilon, then: {command}")


def _say(sentence: str) -> None:
    console().print(sentence, markup=False, soft_wrap=True)
