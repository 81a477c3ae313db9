"""Snapshots of a fleet to messages of single pings, each ping once.

A feed that is polled answers with the last ping of every vehicle, again and again until the vehicle sends another.
Downstream a plate and a time count once in any case. But a bus that was parked an hour ago would be refused as late in
every poll, and every repeat would be stored. So what one of the last snapshots had is left out here.

A ping that is repeated is one of the same plate and time: of several the first is handed on. Speeds and places are not
compared, so that no speed decides what is handed on.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from operator import itemgetter
from typing import Any

import msgspec

from udp_stream.pings.decode import NOT_IN_ARRAY, PingFormat, Reason, Refusal, WireBatch, WirePing, originals
from udp_stream.pings.json import trim, unwrap, with_infinite

REMEMBERED = 8
"""Snapshots. Servers behind one address answer with snapshots of different age, so the last one would be too few."""

PIECE_BYTES_MAX = 2**16
"""What is longer is shortened, and then refused: a ping has some 150 bytes, and a record of Kafka at most 1 MiB."""

_ELEMENTS_MAX, _TEXT_MAX = 8, 200
"""Kept of each array and text of an answer that is refused whole: enough to see what it is."""

_encode_lines = msgspec.json.Encoder().encode_lines

_Key = tuple[str, str] | str | bytes


class Unrepeated:
    """Give it the snapshots in the order of their times.

    `counts`: how many pings were `read`, were `repeats`, or were `refused` by the format; and the notes of the format.
    `unreadable`: why nothing of the last snapshot could be read, None if its pings could. It is handed on even so.

    >>> from udp_stream.pings.json import JSON
    >>> once = Unrepeated(JSON, max_bytes=1000, max_pings=10)
    >>> ping = b'{"license_plate":"A1","observationDateTime":"now","speed":5,"location":{"coordinates":[72.5,21.25]}}'
    >>> once.take(b"[" + ping + b", 7]")  # doctest: +ELLIPSIS
    [b'{"license_plate":"A1",...,"location":{"coordinates":[72.5,21.25],"type":"Point"},"speed":5.0}', b'7']
    >>> once.take(b"[7, " + ping.replace(b"5", b"6", 1) + b"]"), once.counts["repeats"]
    ([], 2)
    """

    def __init__(self, ping_format: PingFormat, max_bytes: int, max_pings: int, remembered: int = REMEMBERED) -> None:
        """`max_bytes` and `max_pings` of a snapshot: a larger one is refused. `remembered`: snapshots, 1 or more."""
        self._format = ping_format
        self._max_bytes = max_bytes
        self._max_pings = max_pings
        self._remembered = remembered
        self._taken = 0
        self._seen: dict[_Key, int] = {}  # in which snapshot last
        self.counts: Counter[str] = Counter()
        self.unreadable: Reason | None = None

    def take(self, snapshot: bytes) -> list[bytes]:
        """A JSON message for each ping that is new, in order; pieces that are no ping as they are, for the reader to
        refuse. A ping keeps the fields of the contract and no others; one of a feed's own form stays as it is."""
        batch = self._format.read([snapshot], self._max_bytes, self._max_pings)
        pieces = zip(batch.refusals, originals([snapshot], batch.refusals, self._format), strict=True)
        refused = [
            (refusal.position, self._alone(self._shortened(piece, refusal), refusal)) for refusal, piece in pieces
        ]
        self.counts["read"] += batch.message.size
        self.counts["refused"] += len(refused)
        self.counts.update(batch.notes)
        self.unreadable = next((one.reason for one in batch.refusals if _is_of_all(one)), None)
        positions, new = self._new_pings(snapshot, batch)
        if refused:
            both = [*zip(positions, new, strict=True), *self._new_pieces(refused)]
            new = [message for _, message in sorted(both, key=itemgetter(0))]
        self._taken += 1
        self._forget()
        return new

    def _new_pings(self, snapshot: bytes, batch: WireBatch) -> tuple[list[int], list[bytes]]:
        """Where those stand in the snapshot that are new, and their messages."""
        new = self._new(_keys(batch))
        self.counts["repeats"] += batch.message.size - len(new)
        if not new:
            return [], []
        positions = batch.position[new].tolist()
        if batch.pings:
            # In one go, and cut at the ends of lines: in JSON's texts an end of a line is `\\n`.
            messages = with_infinite(_encode_lines(_chosen(batch.pings, new))).split(b"\n")[:-1]
        else:
            places = [Refusal(0, position, Reason.WRONG_TYPE, "$") for position in positions]
            text = trim(snapshot)
            text = unwrap(text) if text.startswith(b'"') else text
            messages = list(originals([text], places, self._format))
        if max(map(len, messages)) > PIECE_BYTES_MAX:
            messages = [message[:PIECE_BYTES_MAX] for message in messages]
        return positions, messages

    def _shortened(self, piece: bytes, refusal: Refusal) -> bytes:
        """A refused piece that is too long, with the beginnings of its arrays: refused for the same reason, so that a
        person can be shown the right one. Where that does not do, its first bytes."""
        if len(piece) <= PIECE_BYTES_MAX:
            return piece
        try:
            short = json.dumps(_beginnings(json.loads(piece)), ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            return piece[:PIECE_BYTES_MAX]
        again = self._format.read([short], self._max_bytes, self._max_pings).refusals
        is_same = [(one.reason, one.path) for one in again] == [(refusal.reason, refusal.path)]
        return short if is_same and len(short) <= PIECE_BYTES_MAX else piece[:PIECE_BYTES_MAX]

    def _alone(self, piece: bytes, refusal: Refusal) -> bytes:
        """A refused piece as a message that is refused once, too, and for the same reason: in an array, where it holds
        pings or an array, or is a text, which would be opened as a message."""
        boxed = b"[" + piece + b"]"
        alone, within = (self._format.read([one], self._max_bytes, self._max_pings) for one in (piece, boxed))
        if alone.message.size or len(alone.refusals) != 1:
            return boxed
        is_same, is_same_within = (
            [one.reason for one in batch.refusals] == [refusal.reason] for batch in (alone, within)
        )
        return boxed if is_same_within and not is_same else piece

    def _new(self, keys: Sequence[_Key]) -> list[int]:
        """Those that none of the last snapshots had; from now on one has."""
        seen, taken, new = self._seen, self._taken, []
        for at, key in enumerate(keys):
            if key not in seen:
                new.append(at)
            seen[key] = taken
        return new

    def _new_pieces(self, pieces: Sequence[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        new = self._new([blake2b(piece, digest_size=16).digest() for _, piece in pieces])
        self.counts["repeats"] += len(pieces) - len(new)
        return [pieces[at] for at in new]

    def _forget(self) -> None:
        """Drop what the last snapshots did not have; not at every one, as that would cost more than the reading."""
        if self._taken % self._remembered == 0:
            oldest = self._taken - self._remembered
            self._seen = {key: taken for key, taken in self._seen.items() if taken >= oldest}


def _beginnings(value: Any) -> Any:
    """The same with short arrays and texts."""
    if isinstance(value, dict):
        return {name: _beginnings(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_beginnings(one) for one in value[:_ELEMENTS_MAX]]
    return value[:_TEXT_MAX] if isinstance(value, str) else value


def _keys(batch: WireBatch) -> Sequence[_Key]:
    """What says which ping each is. A time in milliseconds has no blank, so a text of both is as good as a pair."""
    if batch.columns is None:
        return [(ping.license_plate, ping.observationDateTime) for ping in batch.pings]
    rows = zip(batch.columns.time_ms.tolist(), batch.columns.plates, strict=True)
    return [f"{time_ms} {plate}" for time_ms, plate in rows]


def _chosen(pings: Sequence[WirePing], places: Sequence[int]) -> list[WirePing]:
    every = list(pings)
    return every if len(places) == len(every) else [every[at] for at in places]


def _is_of_all(refusal: Refusal) -> bool:
    """Whether a snapshot could not be opened: it is no message, is too large, or its array of pings is none."""
    return refusal.position == NOT_IN_ARRAY and refusal.path in ("$", "$.results")
