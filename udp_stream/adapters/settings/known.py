"""The keys that there are, and the nearest of them to one that there is not."""

from __future__ import annotations

import difflib
from functools import cache
from typing import Final

from msgspec.structs import fields

from udp_stream.adapters.settings.query_sections import QuerySection
from udp_stream.adapters.settings.sections import Settings

PREFIX: Final = "UDP_STREAM_"

QUERY: Final = "query"
"""The one table that there may be several of."""

CLIENT: Final = "client"
"""The one key that is a table: options that go to a client as they are."""


@cache
def known_keys() -> tuple[str, ...]:
    """Every `section.key` there is; those of [[query]] are `query_keys`."""
    sections = [section for section in fields(Settings) if section.name != QUERY]
    return tuple(f"{section.name}.{field.name}" for section in sections for field in fields(section.type))


@cache
def query_keys() -> tuple[str, ...]:
    """Every `query.key` there is, of each table [[query]]."""
    return tuple(f"{QUERY}.{field.name}" for field in fields(QuerySection))


def variable_of(key: str) -> str:
    """The environment variable of a key.

    >>> variable_of("hat.slot")
    'UDP_STREAM_HAT__SLOT'
    """
    return PREFIX + key.replace(".", "__").upper()


def nearest(name: str) -> str:
    """'; did you mean ...?' for the nearest section or key, by its whole name or its last part.

    >>> nearest("hat.resolutoin"), nearest("budget.slot")
    ('; did you mean hat.resolution?', '; did you mean hat.slot?')
    """
    known = known_keys()
    if "." not in name:
        sections = {key.partition(".")[0]: f"[{key.partition('.')[0]}]" for key in known}
        meant = {key.rpartition(".")[2]: key for key in reversed(known)} | sections
        found = difflib.get_close_matches(name, meant, n=1)
        return f"; did you mean {meant[found[0]]}?" if found else f"; known are {', '.join(sorted(sections.values()))}"
    last = name.rpartition(".")[2]
    same = [key for key in known if key.rpartition(".")[2] == last]
    return f"; did you mean {(same or difflib.get_close_matches(name, known, n=1, cutoff=0.0))[0]}?"
