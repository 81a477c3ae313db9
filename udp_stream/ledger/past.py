"""A ledger's past: the high-water mark that shows when a ledger went back in time, and what was forgotten for good.

A backup that is older than the ledger, a volume's snapshot, a write-ahead log that was removed: each leaves a ledger
that is sound in itself and has forgotten its last charges and records. It would charge plates too little and draw
published HATs a second time. Nothing in the ledger can show it, so a mark is kept apart from it: how many HATs it had
admitted and recorded when something was last published from it, and the digest of a record that it held by then.

1. The mark is raised after records are kept and before they are published. So whatever a reader has seen, some mark
   knows.
2. A ledger is *behind* a mark if it holds fewer HATs, or another record or none where the mark names one. The record
   shows a ledger that went back and has come as far again since.
3. A ledger that is behind is refused, until a person accepts in words what is forgotten. The ledger remembers that for
   ever, as a note, and so do its records and its statement. Each acceptance begins a new *era*. A mark of an earlier
   era is forgiven up to what was accepted. One that the ledger is not behind needs no forgiving, whatever its era:
   where several machines keep marks, each acceptance is of one of them.

Marks are public: they tell counts, and name a record that is published.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from udp_stream.errors import PrivacyRefused
from udp_stream.ledger.port import Ledger, Mark, Progress

VOLATILE = "volatile"
"""The note of when a ledger was first used in a store that may lose charges."""

_FORGOTTEN = "forgotten:"


class Forgotten(msgspec.Struct, frozen=True):
    """What a person has accepted: in which words, when, and the mark that the ledger was behind.

    >>> Forgotten("two HATs are forgotten", "2026-11-22", Mark("5eed", 0, 8, 6)).mark.admitted
    8
    """

    words: str
    at: str
    mark: Mark


def digest_of(payload: bytes) -> bytes:
    """16 bytes that tell a record from any other draw of its HAT."""
    return blake2b(payload, digest_size=16).digest()


def forgotten(meta: Mapping[str, str]) -> list[Forgotten]:
    """What was accepted on this ledger, oldest first, from what it knows of itself; as many eras have ended.

    >>> note = '{"words": "two HATs are forgotten", "at": "2026-11-22", "mark": ["5eed", 0, 8, 6]}'
    >>> [one.words for one in forgotten({"ledger_id": "5eed", "forgotten:0": note})]
    ['two HATs are forgotten']
    """
    found: list[Forgotten] = []
    while (text := meta.get(f"{_FORGOTTEN}{len(found)}")) is not None:
        found.append(msgspec.json.decode(text, type=Forgotten))
    return found


def forget(ledger: Ledger, what: Forgotten) -> bool:
    """Note for ever what was accepted: an era ends. False if another acceptance came first."""
    name, text = f"{_FORGOTTEN}{len(forgotten(ledger.meta()))}", msgspec.json.encode(what).decode()
    return ledger.note(name, text) == text


def caveats(meta: Mapping[str, str]) -> tuple[str, ...]:
    """Why a plate may have lost more than the ledger knows: a sentence for each reason, for records and statements.

    >>> caveats({"ledger_id": "5eed"}), caveats({"volatile": "2026-11-22"})
    ((), ('charges may have been lost since 2026-11-22 (--allow-volatile-ledger)',))
    """
    found = [one.words for one in forgotten(meta)]
    if since := meta.get(VOLATILE):
        found.append(f"charges may have been lost since {since} (--allow-volatile-ledger)")
    return tuple(found)


class Seen(NamedTuple):
    """What there is to see of a ledger: what it knows of itself, how far it is, and the digests of some records.

    >>> seen = Seen({"ledger_id": "5eed"}, Progress(8, 6, "first", "last"), {"last": b"digest"})
    >>> seen.mark("last")
    Mark(ledger_id='5eed', era=0, admitted=8, recorded=6, release_id='last', digest=b'digest')
    """

    meta: Mapping[str, str]
    progress: Progress
    digests: Mapping[str, bytes]

    def mark(self, release_id: str = "") -> Mark:
        """How far the ledger was; `release_id` is among those that were looked at."""
        digest = self.digests.get(release_id, b"")
        progress, era = self.progress, len(forgotten(self.meta))
        name = release_id if digest else ""
        return Mark(self.meta["ledger_id"], era, progress.admitted, progress.recorded, name, digest)


def see(ledger: Ledger, *release_ids: str) -> Seen:
    """Look at the ledger, and at these records; an empty id names none."""
    named = [one for one in dict.fromkeys(release_ids) if one]
    payloads = zip(named, ledger.recorded(named), strict=True)
    digests = {name: digest_of(payload) for name, payload in payloads if payload is not None}
    return Seen(ledger.meta(), ledger.progress(), digests)


def behind(seen: Seen, mark: Mark) -> str | None:
    """In which way the ledger is behind the mark: a part of a sentence, or None if it is not.

    The mark's record was looked at.
    """
    now = seen.mark(mark.release_id)
    if now.era < mark.era:
        return "it does not remember what was accepted as forgotten"
    if any(one.mark.era == mark.era and one.mark.at_least(mark) for one in forgotten(seen.meta)):
        return None
    if now.admitted < mark.admitted or now.recorded < mark.recorded:
        if now.era > mark.era:
            return f"it has held {_told(mark)}, more than was accepted as forgotten"
        return f"it holds {_told(now)}, and has held {_told(mark)}"
    if now.digest != mark.digest:
        return f"its record of {mark.release_id} is gone or another one"
    return None


def require_not_behind(seen: Seen, mark: Mark, place: object) -> None:
    """Raise PrivacyRefused if the ledger at this place is behind the mark, or another one.

    >>> seen = Seen({"ledger_id": "5eed"}, Progress(8, 6, "first", "last"), {})
    >>> require_not_behind(seen, Mark("0dd5", 0, 8, 6), "/data/ledger")
    Traceback (most recent call last):
    udp_stream.errors.PrivacyRefused: expected the ledger 0dd5 at /data/ledger, got 5eed
    """
    if (now := seen.meta["ledger_id"]) != mark.ledger_id:
        raise PrivacyRefused(f"expected the ledger {mark.ledger_id} at {place}, got {now}")
    if (how := behind(seen, mark)) is not None:
        raise PrivacyRefused(
            f"the ledger at {place} went back in time: {how}. It is an older copy, or has lost its last writes. "
            "Continuing would charge plates too little and draw published HATs again. Restore the newest copy. If "
            "there is none, `udp-stream ledger accept-older` says what is forgotten and how to accept it"
        )


def _told(mark: Mark) -> str:
    """What the mark counts."""
    return f"{mark.admitted:,} charged and {mark.recorded:,} recorded HATs"
