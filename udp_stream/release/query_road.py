"""The road of a standing query at a moment: charge, draw, record, round by round; then its answer, once.

1. Who is asked in a round, and what each is charged, follows from earlier rounds' noisy values (`Elimination.due`).
2. *Charge* the plates of the round. The ledger keeps the terms of the first round: all that the query depends on, a
   digest of the moment's plates, and what each is given of its savings. Those follow from balances, which later charges
   change, so that a retry must not look again: a run that finds other terms there goes on under those.
3. *Draw* for the plates that were charged, and record the round with what it decides. The first record of a round
   wins, and every run goes on from it. It holds noisy values and public facts alone, and is never published.
4. After the last round the answer is *recorded* under the query's id, then *published* once the high-water mark is
   raised.

A crash between any two calls loses nothing and repeats nothing: the next run finds charges, rounds and answers as they
are, and comes to the same bytes. If the log then tells of other plates at the moment (more files were given), the
rounds cannot go on: the answer is withheld, for good.

Privacy: the unit is one plate; neighbours are inputs in which its positions differ, by at most d in the plane at any
moment. A round is private by its charge (`queries/elimination.py`), and charges are admitted against the plate's budget
of the period. So what all rounds and answers of a period tell is within that budget, times d or d squared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from hashlib import blake2b

import msgspec
import numpy as np

from udp_stream.errors import PrivacyRefused
from udp_stream.ledger.port import Admission, Ledger, Mark
from udp_stream.mechanisms.noise import Integers
from udp_stream.planning.policy import PositionPeriods
from udp_stream.queries.elimination import Due, State
from udp_stream.queries.standing import Asked, AskedTogether, StandingQuery
from udp_stream.release.charge import ReleaseContext, charge_once, require_no_overlap, require_one_budget
from udp_stream.release.facts import Observer, QueriesPublished, QueryRecorded
from udp_stream.release.query_record import (
    QueryResult,
    ResultStatus,
    answered,
    decode_result,
    decode_round,
    encode_result,
    encode_round,
    query_id,
    round_id,
    withheld,
)
from udp_stream.release.road import draw_once
from udp_stream.windows.positions import Moment, MomentRules
from udp_stream.windows.tables import SlotGrid

_NO_PLATES = np.array([], np.int64)


@dataclass(frozen=True)
class QueryContext:
    """What every moment is answered with: the budget periods of positions, and what releases are made with.

    >>> from udp_stream.testing import a_query_context
    >>> a_query_context().periods.promise
    'rho 200 per square km, per 1d'
    """

    periods: PositionPeriods
    release: ReleaseContext


@dataclass(frozen=True)
class Answered:
    """A recorded answer of a query; `made` if this run recorded it.

    >>> Answered("stop", "query:stop:7", b"{}", made=False).release_id
    'query:stop:7'
    """

    name: str
    release_id: str
    payload: bytes
    made: bool

    @property
    def status(self) -> ResultStatus:
        """What its record says of it; PrivacyRefused if the ledger holds other bytes."""
        try:
            return decode_result(self.payload).status
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise PrivacyRefused(
                f"{self.release_id}: expected a query's result in the ledger, got other bytes"
            ) from error


@dataclass(frozen=True)
class AnsweredMoment:
    """The recorded answers of a moment, the ids of all rounds that they may have, and the ledger's mark.

    >>> from udp_stream.ledgers.sqlite import MemoryLedger
    >>> from udp_stream.testing import a_moment, a_query, a_query_context
    >>> [one.name for one in record_moment([a_query()], a_moment(), a_query_context(), MemoryLedger()).answers]
    ['in-the-middle']
    """

    answers: tuple[Answered, ...]
    rounds: tuple[str, ...]
    mark: Mark

    def published(self, ledger: Ledger) -> None:
        """Inform the ledger: readers have the answers, and rounds are never published."""
        ledger.published([*(one.release_id for one in self.answers), *self.rounds])


class _Terms(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the ledger remembers of a round: the query, whom the moment holds, and what they are given of savings."""

    query: StandingQuery
    plates: str
    handed_on: tuple[int, ...] = ()


def answer_moment(
    queries: Sequence[StandingQuery],
    moment: Moment,
    context: QueryContext,
    ledger: Ledger,
    publish: Callable[[Sequence[Answered]], None],
) -> list[Answered]:
    """Answer these queries at a moment: `publish` has handed the answers to their readers when it returns.

    PrivacyRefused if the budget period overlaps another one of positions in which plates were charged, or if speeds and
    positions have one budget that they could exceed.
    """
    found = record_moment(queries, moment, context, ledger)
    publish(found.answers)
    found.published(ledger)
    return list(found.answers)


def record_moment(
    queries: Sequence[StandingQuery], moment: Moment, context: QueryContext, ledger: Ledger
) -> AnsweredMoment:
    """The same up to publishing: charge, draw and record what is not recorded, and raise the ledger's mark."""
    found = tuple(_answered(query, moment, context, ledger) for query in queries)
    # The longest has noise in it, if any has: it tells this ledger from any other.
    witness = max(found, key=lambda one: len(one.payload))
    rounds = tuple(id_ for query in queries for id_ in _round_ids(query, moment))
    return AnsweredMoment(found, rounds, ledger.mark(witness.release_id))


def _answered(query: StandingQuery, moment: Moment, context: QueryContext, ledger: Ledger) -> Answered:
    id_ = query_id(query.name, moment.time_ms)
    (payload,) = ledger.recorded([id_])
    if payload is not None:
        return Answered(query.name, id_, payload, made=False)
    period = context.periods.name_at(moment.time_ms)
    ours = encode_result(_Rounds(query, moment, period, context, ledger).result(id_))
    budget, nobody = context.periods.budget_nano, Admission(id_, _NO_PLATES, _NO_PLATES, 0, b"")
    # It charges nobody: a ledger records only what was admitted.
    ledger.admit(period, budget, moment.plates, [nobody])
    (stands,) = ledger.record([(id_, ours)])
    return Answered(query.name, id_, stands, made=stands == ours)


class _Rounds:
    """The rounds of one query at one moment, as far as a ledger has them and on from there."""

    def __init__(
        self, query: StandingQuery, moment: Moment, period: str, context: QueryContext, ledger: Ledger
    ) -> None:
        self._moment, self._period, self._context, self._ledger = moment, period, context, ledger
        # Hashes of one length: joined, they can be read in one way only.
        self._digest = blake2b(b"".join(moment.plates), digest_size=16).hexdigest()
        self._take(_Terms(query, self._digest, self._handed_on(query)))

    def _handed_on(self, query: StandingQuery) -> tuple[int, ...]:
        if not query.ramp:
            return ()
        gone_ms = self._moment.time_ms - self._context.periods.start_of(self._moment.time_ms)
        return query.handed_on(self._ledger.balances(self._period, self._moment.plates).charged, gone_ms)

    def _take(self, terms: _Terms) -> None:
        self._terms, self._query = terms, terms.query
        self._written = msgspec.json.encode(terms)
        # Where the moment holds other plates now, their savings are not those of the terms, and nobody is asked.
        own = terms.handed_on if terms.plates == self._digest else ()
        self._ask(terms.query.asked(len(self._moment.plates), own))

    def _ask(self, asked: Asked | AskedTogether) -> None:
        self._asked, self._pie = asked, asked.pie

    def result(self, id_: str) -> QueryResult:
        """The answer's record, after all rounds that are due."""
        context = self._context.release
        charged = self._first()
        if self._terms.plates != self._digest:
            most = int(self._query.budgets(1, self._terms.handed_on).max())
            return withheld(id_, self._query, self._moment, context, most)
        self._ask(self._asked.among(charged))
        return answered(id_, self._query, self._asked, self._last_state(charged), self._moment, context)

    def _first(self) -> Integers:
        """Charge the first round, or learn on which terms it was charged before."""
        due = self._asked.due(self._pie.begin())
        if due is None:
            return _NO_PLATES
        self._require_one_promise()
        charged = self._charge(1, due)
        self._require_one_promise()  # of two runs that begin at once, at least one sees the other before it draws
        return charged

    def _last_state(self, first: Integers) -> State:
        state, ids = self._pie.begin(), _round_ids(self._query, self._moment)
        known = self._ledger.recorded(ids)
        positions = self._asked.plane.quanta(self._moment.lat, self._moment.lon)
        while (due := self._asked.due(state)) is not None:
            payload, id_ = known[state.rounds], ids[state.rounds]
            if payload is None:
                charged = first if state.rounds == 0 else self._charge(state.rounds + 1, due)
                members = self._asked.members(due, charged)
                payload = self._drawn(id_, state, members, self._asked.positions_of(members, positions))
            state = self._advanced(id_, state, payload)
        return state

    def _charge(self, number: int, due: Due) -> Integers:
        """What each plate of the round is charged, in its first admission, 0 for those that had too little left."""
        # Remembered terms may have another budget than the settings: the lower one keeps both promises.
        budget = min(self._context.periods.budget_nano, self._query.period_budget_nano)

        def on_terms(_: int, remembered: bytes) -> Admission:
            if number == 1:
                self._take(_terms_from(remembered, round_id(self._query.name, self._moment.time_ms, 1)))
                # The very bytes: written anew by this version they could differ, and would be other terms.
                self._written = remembered
            is_ours = self._terms.plates == self._digest
            again = self._asked.due(self._pie.begin()) if number == 1 else due
            # Where the moment holds other plates now, places among them say nothing: nobody is charged.
            return self._admission(number, again if is_ours else None, budget)

        asked = [self._admission(number, due, budget)]
        (found,) = charge_once(self._ledger, self._period, budget, self._moment.plates, asked, on_terms)
        return found.charged

    def _admission(self, number: int, due: Due | None, budget: int) -> Admission:
        id_ = round_id(self._query.name, self._moment.time_ms, number)
        if due is None:
            return Admission(id_, _NO_PLATES, _NO_PLATES, 0, self._written)
        most = self._asked.allowances(due, number, budget)
        # Savings of all plates are written once: a later round names the terms by a digest.
        is_long = number > 1 and self._terms.handed_on
        written = blake2b(self._written, digest_size=16).hexdigest().encode() if is_long else self._written
        return Admission(id_, due.plates, due.charges, 0, written, most)

    def _drawn(self, id_: str, state: State, members: Integers, positions: Integers) -> bytes:
        """The round's record as the ledger holds it; ours, if no other was there before."""

        def draw(todo: Sequence[int]) -> list[bytes]:
            ((_, bits),) = self._context.release.entropy.streams([id_ for _ in todo])
            return [encode_round(self._pie.settled(state, self._pie.draw(state, members, positions, bits)))]

        return draw_once(self._ledger, [id_], draw).payloads[0]

    def _advanced(self, id_: str, state: State, payload: bytes) -> State:
        found = decode_round(payload, self._pie.privatised.dimensions, id_)
        try:
            return self._pie.advance(state, found)
        except ValueError as error:
            raise PrivacyRefused(f"{id_}: the ledger's record of the round is of plates that it did not ask") from error

    def _require_one_promise(self) -> None:
        """PrivacyRefused if positions were charged in periods that overlap ours: their budgets would add up. Also where
        positions and speeds have one budget, and could come to more."""
        periods, known = self._context.periods, self._ledger.periods()
        asked = self._period, periods.budget_nano, self._moment.plates, known
        require_one_budget(*asked, periods.one_budget, self._ledger)
        others = periods.overlapping(self._period, known)
        require_no_overlap(self._period, others, "hat.timezone, queries.period and the measure of [queries]")


def _round_ids(query: StandingQuery, moment: Moment) -> list[str]:
    return [round_id(query.name, moment.time_ms, number) for number in range(1, query.rounds + 1)]


def _terms_from(remembered: bytes, id_: str) -> _Terms:
    try:
        return msgspec.json.decode(remembered, type=_Terms)
    except msgspec.DecodeError as error:
        raise PrivacyRefused(
            f"{id_} was charged by another version of udp-stream, on terms that this one cannot read, and its answer "
            "is not recorded yet: finish its moment with the version that charged it"
        ) from error


# The standing queries of one log: which are due when the clock has moved, and their answers, moment by moment.
#
# Queries that are asked equally often share their moments. Moments are answered in the order of their times, the
# queries of a moment in that of the configuration, those that are asked more often first.

ResultSink = Callable[[Sequence[bytes]], None]
"""Takes the results of one moment; it may be given them again, with the same bytes."""

NOTE = "query:"
"""Before a query's fingerprint: the name of the note that says what it stands for."""


def asked_digest(queries: Sequence[StandingQuery], zone: tzinfo) -> str:
    """The same for workers that ask the same at the same moments: 16 hexadecimal digits; "" where none is asked."""
    asked = (str(zone), *(query.fingerprint() for query in queries))
    return blake2b(" ".join(asked).encode(), digest_size=8).hexdigest() if queries else ""


class QuerySet:
    """The queries of a deployment, and what their moments are answered with.

    >>> from datetime import UTC
    >>> from udp_stream.ledgers.sqlite import MemoryLedger
    >>> from udp_stream.testing import a_moment, a_query, a_query_context
    >>> queries = QuerySet([a_query()], UTC, a_query_context())
    >>> [one.status for one in queries.record(a_moment(), MemoryLedger()).answers]
    ['answered']
    """

    def __init__(self, queries: Sequence[StandingQuery], zone: tzinfo, context: QueryContext) -> None:
        """At least one query; ValueError for none. `digest` is that of `asked_digest`."""
        if not queries:
            raise ValueError("expected at least one query, got none")
        self._context, self.digest = context, asked_digest(queries, zone)
        self._queries: dict[int, list[StandingQuery]] = {}
        for query in queries:
            self._queries.setdefault(query.every_s, []).append(query)
        self.grids = {every_s: SlotGrid(every_s, zone) for every_s in self._queries}
        age_ms = round(1000 * max(query.age_s for query in queries))
        self.moments = MomentRules(tuple(self.grids.values()), age_ms)
        """When positions are asked, and how old they may be."""

    @property
    def periods(self) -> PositionPeriods:
        """The budget periods of positions."""
        return self._context.periods

    def due(self, time_ms: int) -> list[StandingQuery]:
        """The queries that are asked at this moment, Unix ms, in the order in which they are answered."""
        at = np.array([time_ms])
        asked = (every_s for every_s, grid in sorted(self.grids.items()) if int(grid.place(at)[0][0]) == time_ms)
        return [query for every_s in asked for query in self._queries[every_s]]

    def record(self, moment: Moment, ledger: Ledger, every_s: int | None = None) -> AnsweredMoment | None:
        """Charge, draw and record what is due at a moment, or of it what is asked so often; None where no query is.

        Before anything is charged the ledger is told what the queries' fingerprints stand for.
        """
        if not (due := self.due(moment.time_ms) if every_s is None else self._queries[every_s]):
            return None
        for query in due:
            ledger.note(f"{NOTE}{query.fingerprint()}", msgspec.json.encode(query).decode())
        return record_moment(due, moment, self._context, ledger)


def query_set(
    queries: Sequence[StandingQuery], zone: tzinfo, periods: PositionPeriods, context: ReleaseContext
) -> QuerySet:
    """The queries that a deployment asks beside its releases: at least one."""
    return QuerySet(queries, zone, QueryContext(periods, context))


def report_answers(report: Observer, moment_ms: int, answers: Sequence[Answered]) -> None:
    """The facts of a moment's answers, before they are published."""
    for one in answers:
        report(QueryRecorded(one.name, moment_ms, one.status, one.made))


def report_published(report: Observer, moment_ms: int, answers: Sequence[Answered]) -> None:
    """The fact that readers have a moment's answers."""
    report(QueriesPublished(moment_ms, len(answers)))
