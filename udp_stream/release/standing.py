"""The standing queries of one log: which are due when the clock has moved, and their answers, moment by moment.

Queries that are asked equally often share their moments. Moments are answered in the order of their times, the queries
of a moment in that of the configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import tzinfo

import msgspec
import numpy as np
from numpy.typing import NDArray

from udp_stream.ledger.port import Ledger
from udp_stream.pings.decoder import Pings
from udp_stream.queries.standing import StandingQuery
from udp_stream.release.facts import Observer, QueriesPublished, QueryRecorded
from udp_stream.release.query_road import Answered, QueryContext, answer_moment
from udp_stream.windows.grid import SlotGrid
from udp_stream.windows.latest import LatestPositions, Moment

ResultSink = Callable[[Sequence[bytes]], None]
"""Takes the results of one moment; it may be given them again, with the same bytes."""

NOTE = "query:"
"""Before a query's fingerprint: the name of the note that says what it stands for."""


class StandingQueries:
    """The queries of one log through one ledger.

    >>> from datetime import UTC
    >>> from udp_stream.ledger.memory import MemoryLedger
    >>> from udp_stream.testing import a_query, a_query_context
    >>> queries = StandingQueries([a_query()], UTC, 0, str.encode, a_query_context(), MemoryLedger(), print, print)
    >>> queries.flush()
    """

    def __init__(
        self,
        queries: Sequence[StandingQuery],
        zone: tzinfo,
        grace_ms: int,
        hashed: Callable[[str], bytes],
        context: QueryContext,
        ledger: Ledger,
        publish: ResultSink,
        report: Observer,
    ) -> None:
        """`hashed` turns a plate into its keyed hash. Nothing is read or written before the first ping."""
        self._context, self._ledger, self._publish, self._report = context, ledger, publish, report
        self._queries: dict[int, list[StandingQuery]] = {}
        for query in queries:
            self._queries.setdefault(query.every_s, []).append(query)
        age_ms = round(1000 * max((query.age_s for query in queries), default=0))
        self._latest = {
            every_s: LatestPositions(SlotGrid(every_s, zone), age_ms, grace_ms, hashed) for every_s in self._queries
        }
        self._noted = False

    def push(self, pings: Pings, rows: NDArray[np.int64], watermark_ms: int | None) -> None:
        """Take in these rows of a frame, and answer what is due by the watermark behind it."""
        self._answer({every: latest.push(pings, rows, watermark_ms) for every, latest in self._latest.items()})

    def flush(self) -> None:
        """The log has ended: answer what is still open."""
        self._answer({every: latest.flush() for every, latest in self._latest.items()})

    def _answer(self, due: dict[int, list[Moment]]) -> None:
        moments = [(moment, every) for every, found in due.items() for moment in found]
        for moment, every in sorted(moments, key=lambda one: (one[0].time_ms, one[1])):
            self._note()

            def publish(answered: Sequence[Answered], moment: Moment = moment) -> None:
                for one in answered:
                    self._report(QueryRecorded(one.name, moment.time_ms, one.status, one.made))
                self._publish([one.payload for one in answered])
                self._report(QueriesPublished(moment.time_ms, len(answered)))

            answer_moment(self._queries[every], moment, self._context, self._ledger, publish)

    def _note(self) -> None:
        """Once, before anything is charged: what the queries' fingerprints stand for."""
        if not self._noted:
            for query in (query for queries in self._queries.values() for query in queries):
                self._ledger.note(f"{NOTE}{query.fingerprint()}", msgspec.json.encode(query).decode())
            self._noted = True
