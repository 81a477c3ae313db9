"""The messages of a pipe as they come, read by the rules of `sources` with one difference.

A first line that is JSON by itself is not held back until another one shows that there are lines. Pings of an array in
it are a message each, as if it were the whole document.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from udp_stream.adapters.files.beginnings import from_header, text_of
from udp_stream.adapters.files.csv_rows import csv_batches, looks_like_csv
from udp_stream.adapters.files.sources import (
    _document,
    _inflate,
    _is_cut_short,
    _lines,
)
from udp_stream.pings.json import PLAIN, FeedForm


def prompt_messages(path: str, blocks: Iterator[bytes], form: FeedForm = PLAIN) -> Iterator[list[bytes]]:
    """The messages of these blocks, each as soon as its line is whole; one JSON document over many lines at its end.
    `form` is that of the feed (`[source]`).

    UsageError as `read_messages` raises it.

    >>> list(prompt_messages("-", iter([b'{"speed": 1}\\n{"spe', b'ed": 2}'])))
    [[b'{"speed": 1}'], [b'{"speed": 2}']]
    """
    blocks = from_header(text_of(path, _inflate(path, blocks)))
    first, newline, rest = b"".join(_to_first_line(blocks)).lstrip().partition(b"\n")
    if looks_like_csv(first, form.mapping):
        yield from csv_batches(path, _lines(itertools.chain([first + newline], [rest], blocks)), form.mapping)
    elif _is_cut_short(first):
        yield from _document(path, itertools.chain([first + newline], [rest], blocks), form.format)
    else:
        yield from _document(path, iter([first]), form.format) if first else ()
        yield from _lines(itertools.chain([rest], blocks))


def _to_first_line(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Blocks up to the end of the first line that is not blank."""
    is_begun = False
    for block in blocks:
        yield block
        text = block if is_begun else block.lstrip()
        is_begun = is_begun or bool(text)
        if b"\n" in text:
            return
