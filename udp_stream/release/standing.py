"""The standing queries of one log: which are due when the clock has moved, and their answers, moment by moment.

Queries that are asked equally often share their moments. Moments are answered in the order of their times, the queries
of a moment in that of the configuration, those that are asked more often first.

`StandingQueries` keeps the positions of one log itself, and answers as it reads: the embedded runtime. `QuerySet`
answers moments that others have brought together: on Kafka, and in the live runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import tzinfo
from hashlib import blake2b

import msgspec
import numpy as np
from numpy.typing import NDArray

from udp_stream.ledger.port import Ledger
from udp_stream.pings.decode import Pings
from udp_stream.planning.periods import PositionPeriods
from udp_stream.queries.standing import StandingQuery
from udp_stream.release.charge import ReleaseContext
from udp_stream.release.facts import Observer, QueriesPublished, QueryRecorded
from udp_stream.release.query_results import ResultContext
from udp_stream.release.query_road import Answered, AnsweredMoment, QueryContext, answer_moment, record_moment
from udp_stream.windows.latest import LatestPositions, Moment
from udp_stream.windows.moments import MomentRules
from udp_stream.windows.tables import SlotGrid

ResultSink = Callable[[Sequence[bytes]], None]
"""Takes the results of one moment; it may be given them again, with the same bytes."""

NOTE = "query:"
"""Before a query's fingerprint: the name of the note that says what it stands for."""


def query_context(periods: PositionPeriods, context: ReleaseContext) -> QueryContext:
    """What moments are answered with, beside the releases of this context.

    >>> from udp_stream.testing import a_context, a_query_context
    >>> query_context(a_query_context().periods, a_context()).results.software
    'udp-stream example'
    """
    results = ResultContext(
        context.software,
        context.calendar.slots.iso,
        context.caveats,
        context.trial,
        counts_shown=context.policy.counts_released != "none",
    )
    return QueryContext(periods, context.entropy, results)


def asked_digest(queries: Sequence[StandingQuery], zone: tzinfo) -> str:
    """The same for workers that ask the same at the same moments: 16 hexadecimal digits; nothing where none is asked.

    >>> from datetime import UTC
    >>> from udp_stream.testing import a_query
    >>> len(asked_digest([a_query()], UTC)), asked_digest([], UTC)
    (16, '')
    """
    asked = (str(zone), *(query.fingerprint() for query in queries))
    return blake2b(" ".join(asked).encode(), digest_size=8).hexdigest() if queries else ""


class QuerySet:
    """The queries of a deployment, and what their moments are answered with.

    >>> from datetime import UTC
    >>> from udp_stream.ledger.memory import MemoryLedger
    >>> from udp_stream.testing import a_moment, a_query, a_query_context
    >>> queries = QuerySet([a_query()], UTC, a_query_context())
    >>> [one.status for one in queries.record(a_moment(), MemoryLedger()).answers]
    ['answered']
    """

    def __init__(self, queries: Sequence[StandingQuery], zone: tzinfo, context: QueryContext) -> None:
        """At least one query; ValueError for none. `digest` is that of `asked_digest`."""
        if not queries:
            raise ValueError("expected at least one query, got none")
        self._context = context
        self.digest = asked_digest(queries, zone)
        self._queries = _by_every(queries)
        self._grids = {every_s: SlotGrid(every_s, zone) for every_s in self._queries}
        self._age_ms = _age_ms(queries)

    @property
    def periods(self) -> PositionPeriods:
        """The budget periods of positions."""
        return self._context.periods

    @property
    def moments(self) -> MomentRules:
        """When positions are asked, and how old they may be."""
        return MomentRules(tuple(self._grids.values()), self._age_ms)

    def due(self, time_ms: int) -> list[StandingQuery]:
        """The queries that are asked at this moment, Unix ms, in the order in which they are answered."""
        asked = (every_s for every_s, grid in sorted(self._grids.items()) if _is_boundary(grid, time_ms))
        return [query for every_s in asked for query in self._queries[every_s]]

    def record(self, moment: Moment, ledger: Ledger) -> AnsweredMoment | None:
        """Charge, draw and record what is due at a moment; None where no query is."""
        if not (due := self.due(moment.time_ms)):
            return None
        note_queries(due, ledger)
        return record_moment(due, moment, self._context, ledger)


def query_set(
    queries: Sequence[StandingQuery], zone: tzinfo, periods: PositionPeriods, context: ReleaseContext
) -> QuerySet | None:
    """The queries that a deployment asks beside its releases; None for none.

    >>> from datetime import UTC
    >>> from udp_stream.testing import a_context, a_query, a_query_context
    >>> query_set([a_query()], UTC, a_query_context().periods, a_context()).moments.age_ms
    600000
    """
    return QuerySet(queries, zone, query_context(periods, context)) if queries else None


def note_queries(queries: Sequence[StandingQuery], ledger: Ledger) -> None:
    """Before anything is charged: what the queries' fingerprints stand for.

    >>> from udp_stream.ledger.memory import MemoryLedger
    >>> from udp_stream.testing import a_query
    >>> note_queries([a_query()], ledger := MemoryLedger())
    >>> f"{NOTE}{a_query().fingerprint()}" in ledger.meta()
    True
    """
    for query in queries:
        ledger.note(f"{NOTE}{query.fingerprint()}", msgspec.json.encode(query).decode())


def report_answers(report: Observer, moment_ms: int, answers: Sequence[Answered]) -> None:
    """The facts of a moment's answers, before they are published.

    >>> report_answers(print, 900_000, [])
    """
    for one in answers:
        report(QueryRecorded(one.name, moment_ms, one.status, one.made))


def report_published(report: Observer, moment_ms: int, answers: Sequence[Answered]) -> None:
    """The fact that readers have a moment's answers.

    >>> report_published(print, 900_000, [])
    QueriesPublished(moment_ms=900000, answers=0)
    """
    report(QueriesPublished(moment_ms, len(answers)))


def _by_every(queries: Sequence[StandingQuery]) -> dict[int, list[StandingQuery]]:
    found: dict[int, list[StandingQuery]] = {}
    for query in queries:
        found.setdefault(query.every_s, []).append(query)
    return found


def _age_ms(queries: Sequence[StandingQuery]) -> int:
    return round(1000 * max((query.age_s for query in queries), default=0))


def _is_boundary(grid: SlotGrid, time_ms: int) -> bool:
    return int(grid.place(np.array([time_ms]))[0][0]) == time_ms


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
        self._queries, age_ms = _by_every(queries), _age_ms(queries)
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
                report_answers(self._report, moment.time_ms, answered)
                self._publish([one.payload for one in answered])
                report_published(self._report, moment.time_ms, answered)

            answer_moment(self._queries[every], moment, self._context, self._ledger, publish)

    def _note(self) -> None:
        if not self._noted:
            note_queries([query for queries in self._queries.values() for query in queries], self._ledger)
            self._noted = True
