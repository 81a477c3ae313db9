"""Releases on their way to readers, and back from them: the bytes of a record, and the record that they hold.

The bytes are the release: they are what the ledger recorded, and every reader gets the same ones. The record
is decoded from them once, when it is first asked for, however many sinks look at it.

A sink gets the releases themselves; an observer (`facts.py`) gets facts of the run, and no release.

A sink takes the releases of a slot together. It may be given a slot again, with the same bytes, after a crash
or after another sink failed: so it goes by `release_id`, and not by how often something came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from udp_stream.release.record import Release, decode


class PublishedRelease:
    """The bytes of one release and its record.

    >>> from udp_stream.testing import released_slot
    >>> first, _ = [PublishedRelease(payload) for payload in released_slot().payloads.values()]
    >>> first.record.release_id, first.payload[:13]
    ('8742d98b6ffffff-1641009600-3600', b'{"schema":"ud')
    """

    __slots__ = ("_record", "payload")

    def __init__(self, payload: bytes) -> None:
        """Nothing is decoded yet."""
        self.payload = payload
        self._record: Release | None = None

    @property
    def record(self) -> Release:
        """What the bytes say; raises msgspec.ValidationError or DecodeError if they are no release."""
        if self._record is None:
            self._record = decode(self.payload)
        return self._record


ReleaseSink = Callable[[Sequence[PublishedRelease]], None]
"""Takes the releases of one slot, by cell; none if the slot has no HATs. What it raises stops the run."""

ReleaseReader = Iterator[PublishedRelease]
"""Gives releases back, with their bytes: of a topic (`streams/releases.py`) or of a file (`releases_of`)."""


def fan_out(*sinks: ReleaseSink) -> ReleaseSink:
    """One sink that gives a slot to all of these, in order; where one raises, those behind it do not get it.

    >>> seen = []
    >>> both = fan_out(lambda slot: seen.append(len(slot)), lambda slot: seen.extend(one.payload for one in slot))
    >>> both([PublishedRelease(b"{}")])
    >>> seen
    [1, b'{}']
    """

    def publish(releases: Sequence[PublishedRelease]) -> None:
        for sink in sinks:
            sink(releases)

    return publish


def releases_of(lines: Iterable[bytes]) -> ReleaseReader:
    """The releases of a file as `replay --out` writes it, one a line; a last line that was cut short is none.

    >>> [release.payload for release in releases_of([b'{"schema": 1}\\n', b'{"sch'])]
    [b'{"schema": 1}']
    """
    for line in lines:
        if line.endswith(b"\n"):
            yield PublishedRelease(line[:-1])
