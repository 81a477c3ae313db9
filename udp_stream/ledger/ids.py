"""Ids of what a ledger keeps: made of what an entry is about, and of nothing else, so no setting
can change them."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

NEVER_ENDS: Final = 2**53
"""The end of an id that tells no time."""

CELL_ID: Final = "[a-z0-9](?:[a-z0-9-]{0,41}[a-z0-9])?"
"""The id of a cell in records, and in the ids of HATs: at most 40 characters and a heading."""

HAT: Final = "hat"
WITHDRAWN: Final = "withdrawn"
CITY: Final = "city"
CITY_HOUR: Final = "city-hour"
CLIPS: Final = "clips"
NOISED_SUMS: Final = "presence"
DAY_SUMS: Final = "presence-day"
USUAL_WEEK: Final = "usual-week"
QUERY: Final = "query"
ROUND: Final = "round"

FORMS: Final = {
    HAT: "{key}-{start}-{seconds}",
    WITHDRAWN: "withdrawn:{key}-{start}-{seconds}",
    CITY: "city:{start}-{seconds}",
    CITY_HOUR: "city-hour:{start}-{seconds}",
    CLIPS: "clips:{start}-{seconds}",
    NOISED_SUMS: "presence:{start}-{seconds}",
    DAY_SUMS: "presence-day:{start}-{seconds}",
    USUAL_WEEK: "usual-week:{key}-{start}-{seconds}",
    QUERY: "query:{key}:{start}",
    ROUND: "round:{key}:{start}:{number}",
}
"""Ids by kind: a HAT's release; the public mark on it; the answer of a slot's whole city on its
distribution; that on its mean, before the HATs; the clips
that a slot's plates share, under which nothing is charged or released; the noised sums of a slot
under "add-remove", and those of a day; the usual week that a day begins with, as so many
withdrawals leave it; a query's answer; one of its rounds, counted from 1. Ledgers
keep ids for ever: a form is never changed."""

UNPUBLISHED_KINDS: Final = CITY, CITY_HOUR, NOISED_SUMS, DAY_SUMS, USUAL_WEEK
"""Kinds of what is recorded and waits for no reader."""

_PATTERNS: Final = {
    kind: re.compile(
        form.format(
            key=f"(?P<key>{CELL_ID if 'seconds' in form else '.*'})",
            start="(?P<start>-?[0-9]{1,12})",
            seconds="(?P<seconds>[0-9]{1,9})",
            number="(?P<number>[0-9]+)",
        ),
        re.DOTALL,
    )
    for kind, form in FORMS.items()
}


class Id(NamedTuple):
    """The parts of an id: its kind, its cell or query, and its slot or moment in Unix seconds.

    >>> Id.of("8742d98b6ffffff-1641009600-3600")
    Id(kind='hat', key='8742d98b6ffffff', start=1641009600, seconds=3600)
    >>> Id.of("round:stop 3:1641009600:2").slot
    (1641009600, 1641009600)
    """

    kind: str
    key: str
    start: int
    seconds: int

    @property
    def slot(self) -> tuple[int, int]:
        """Start and end, Unix seconds; both are the moment of a query."""
        return self.start, self.start + self.seconds

    @classmethod
    def of(cls, text: str) -> Id:
        """The parts of these words; ValueError if no kind has such ids."""
        kind = kind_of(text)
        match = _PATTERNS[kind].fullmatch(text) if kind in _PATTERNS else None
        if match is None:
            raise ValueError(f"expected CELL-START-SECONDS or another id of a ledger, got {text!r}")
        parts = match.groupdict()
        return cls(kind, parts.get("key", ""), int(parts["start"]), int(parts.get("seconds", 0)))


def id_of(kind: str, start_ms: int, end_ms: int = 0, key: str = "", number: int = 0) -> str:
    """The id of a slot's entry, or of a moment's; `key` is its cell or query.

    >>> id_of(HAT, 1641009600_000, 1641013200_000, "8742d98b6ffffff")
    '8742d98b6ffffff-1641009600-3600'
    >>> id_of(QUERY, 1641009600_000, key="stop 3")
    'query:stop 3:1641009600'
    """
    return FORMS[kind].format(
        key=key, start=start_ms // 1000, seconds=(end_ms - start_ms) // 1000, number=number
    )


def kind_of(text: str) -> str:
    """The kind of an id: a HAT, or what stands before its first colon."""
    kind, colon, _ = text.partition(":")
    return kind if colon else HAT


def end_of(text: str) -> int:
    """The end of the slot that an id is of, or its moment, in Unix seconds; `NEVER_ENDS` of another
    text.

    >>> end_of("city:1641009600-3600"), end_of("query:stop 3:1641009600"), end_of("hat") == NEVER_ENDS
    (1641013200, 1641009600, True)
    """
    try:
        return Id.of(text).slot[1]
    except ValueError:
        return NEVER_ENDS


def closes_at(text: str) -> int:
    """The time that, once archived, closes an id: its end; of a withdrawal, which charges and draws
    nothing, none.

    >>> id_ = "8742d98b6ffffff-1641009600-3600"
    >>> closes_at(id_) == end_of(id_) == end_of(f"withdrawn:{id_}"), closes_at(f"withdrawn:{id_}") == NEVER_ENDS
    (True, True)
    """
    return NEVER_ENDS if kind_of(text) == WITHDRAWN else end_of(text)
