"""The protocol of a source partition: what to send, when a tick is wanted, and when a commit is safe. It does no I/O.

| step | when | what is sent |
| --- | --- | --- |
| `Reject` | messages were refused | these messages, to their own topic |
| `Send` | the time through which all slots are closed has moved | to each shard: its chunks, end markers, that time |
| `Send` | the same of moments, where positions are asked | their chunks to a shard; to each shard that time |

A checkpoint may be committed only while neither is left to do: what was read before it would not be read again. What is
sent twice, after a crash, is the same chunks under the same digest, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from udp_stream.planning.policy import PositionPeriods
from udp_stream.shuffle.wire import (
    PingChunk,
    PingsEnd,
    PositionChunk,
    PositionsEnd,
    cut_moment,
    cut_pings,
    shard_of_period,
)
from udp_stream.windows.positions import Moment
from udp_stream.windows.slots import LogPlaces, ReadResult, Refused, SourceCheckpoint, SourceReader
from udp_stream.windows.tables import SlotPings

ToShard = PingChunk | PingsEnd | PositionChunk | PositionsEnd
"""What a source sends; each names the shard that it is for."""


@dataclass(frozen=True, slots=True)
class Reject:
    """Send these refused messages to their topic, in order."""

    refused: Sequence[Refused]


@dataclass(frozen=True, slots=True)
class Send:
    """Send these messages, each to its own shard's partition; per shard in this order.

    They hold all slots that were closed when this step was made, `slots` of them, and say so through `through_ms`; and
    all `moments` that were due, through `moments_ms`.
    """

    messages: Sequence[ToShard]
    slots: int
    through_ms: int
    moments: int = 0
    moments_ms: int | None = None


class SourceProtocol:
    """One source partition, while it is ours. Do what `next` says until it says nothing, after each `read`.

    >>> from udp_stream.pings.json import JSON
    >>> import numpy as np
    >>> from datetime import UTC
    >>> from udp_stream.pings.decode import PingDecoder, PingRules
    >>> from udp_stream.windows.slots import WindowRules
    >>> from udp_stream.windows.tables import SlotGrid
    >>> from udp_stream.windows.slots import ReadingRules
    >>> decoder = PingDecoder(PingRules(max_kmh=65, reject_above_kmh=200), JSON)
    >>> rules = ReadingRules(decoder, WindowRules(), SlotGrid(3600, UTC), 7, lambda plate: plate.encode())
    >>> protocol = SourceProtocol(0, shards=2, reader=SourceReader(rules, SourceCheckpoint(40)))
    >>> eight_ms = 8 * 3_600_000
    >>> places = LogPlaces(np.array([40, 41]), np.full(2, eight_ms), np.array([False, True]))
    >>> _ = protocol.read([b"junk", b""], places)
    >>> while (step := protocol.next()) is not None:
    ...     print(type(step).__name__, protocol.may_commit)
    ...     protocol.done(step)
    Reject False
    Send False
    >>> protocol.may_commit, protocol.checkpoint().offset, protocol.wants_tick(eight_ms)
    (True, 42, False)
    """

    def __init__(
        self,
        source: int,
        shards: int,
        reader: SourceReader,
        periods: PositionPeriods | None = None,
        asked: str = "",
        asked_before: str | None = None,
    ) -> None:
        """Nothing is left to do before the first message is read. A reader of moments needs the `periods` of positions:
        the moments of one go to one shard.

        `asked` is the digest of the queries that moments are sent for, `asked_before` that of the checkpoint's. Where
        they differ, the moments of these queries were not sent, and pings that they need are not read again: the shards
        are told so, up to where all is read.
        """
        self.reader = reader
        self._source = source
        self._shards = shards
        self._refused: list[Refused] = []
        self._closed: list[SlotPings] = []
        self._moments: list[Moment] = []
        self._periods = periods
        self._asked = asked
        self._asked_before = asked if asked_before is None or not asked else asked_before
        self._lost_ms = None if self._asked_before == asked else reader.moments_lost_ms
        self._announced: tuple[int | None, int | None] = None, None
        self._has_ticked = False
        self._step: Reject | Send | None = None

    def read(self, messages: Sequence[bytes], places: LogPlaces) -> ReadResult:
        """Read the next messages of the partition, in order, with their places."""
        result = self.reader.read(messages, places)
        self._refused += result.refused
        self._closed += result.closed
        self._moments += result.moments
        self._has_ticked = False
        # A step that was handed out stays as it is: `done` removes just what it holds.
        self._step = self._step or self._due()
        return result

    def next(self) -> Reject | Send | None:
        """What is to be done now; the same step until `done` says that it was."""
        return self._step

    def done(self, step: Reject | Send) -> None:
        """The broker has taken what this step sends."""
        if isinstance(step, Reject):
            # By number, not all: more may have been read while the broker took these.
            del self._refused[: len(step.refused)]
        else:
            del self._closed[: step.slots]
            del self._moments[: step.moments]
            self._announced = step.through_ms, step.moments_ms
            if step.moments_ms is not None:
                self._asked_before, self._lost_ms = self._asked, None
        self._step = self._due()

    def _due(self) -> Reject | Send | None:
        if self._refused:
            return Reject(tuple(self._refused))
        through, moments_ms = self.reader.through_ms, self.reader.moments_ms
        if through is None or (through, moments_ms) == self._announced:
            return None
        messages: list[ToShard] = []
        if through != self._announced[0]:
            # Markers behind the chunks, and one for every shard, also without chunks: a shard waits for all sources.
            messages += [chunk for slot in self._closed for chunk in cut_pings(slot, self._source, self._shards)]
            messages += [PingsEnd(self._source, shard, through) for shard in range(self._shards)]
        if moments_ms is not None and moments_ms != self._announced[1]:
            messages += self._positions(moments_ms)
        return Send(messages, len(self._closed), through, len(self._moments), moments_ms)

    def _positions(self, through_ms: int) -> list[ToShard]:
        """The moments that are due, each for the shard of its period; and to every shard how far we are."""
        shards, lost_ms = range(self._shards), self._lost_ms
        messages: list[ToShard] = []
        if lost_ms is not None:
            # Without `asked`: a marker for no query, so shards skip the moments up to it.
            messages += [PositionsEnd(self._source, shard, lost_ms) for shard in shards]
        for moment in self._moments:
            start_ms = 0 if self._periods is None else self._periods.start_of(moment.time_ms)
            shard = shard_of_period(start_ms, self._shards)
            messages += cut_moment(moment, self._source, shard, self._asked)
        return [*messages, *(PositionsEnd(self._source, shard, through_ms, asked=self._asked) for shard in shards)]

    @property
    def asked(self) -> str:
        """The digest of the queries that moments up to the checkpoint were sent for, as far as shards know."""
        return self._asked_before

    @property
    def may_commit(self) -> bool:
        """Whether everything that follows from what was read has been sent."""
        return self._step is None

    def checkpoint(self) -> SourceCheckpoint:
        """Where to resume after a crash; commit it only while `may_commit`."""
        return self.reader.checkpoint()

    def wants_tick(self, wall_ms: int) -> bool:
        """Whether a tick record appended at this time would close a slot. One is enough until something is read."""
        return self.may_commit and not self._has_ticked and self.reader.tick_would_close(wall_ms)

    def ticked(self) -> None:
        """A tick record is about to be appended."""
        self._has_ticked = True
