"""The road of standing queries at a moment: charge, draw, record, round by round; then each answer, once.

1. The plates of a round and their charges follow from earlier rounds' noisy values (`Elimination.due`).
2. *Charge* the plates of the round. The ledger keeps the terms of the first round: all that the query depends on, a
   digest of the moment's plates, and how much of its savings each may spend. Savings follow from balances, which later
   charges change: a run that finds other terms there goes on under those.
3. *Draw* for the plates that were charged, and *record* the round with its decisions. The first record of a round wins,
   and every run goes on from it. It holds noisy values and public facts alone, and is never published.
4. After the last round the answer is *recorded* under the query's id, then *published* once the high-water mark is
   raised.

A crash between any two calls loses nothing and repeats nothing. If the log then tells of other plates at the moment
(more files were given), the rounds cannot go on: the answer is withheld, for good.

Privacy: the unit is one plate; neighbours are inputs in which its positions differ, by at most d in the plane at any
moment. A round is private by its charge (`queries/elimination.py`), and charges are admitted against the plate's budget
of the period. So all rounds and answers of a period together cost a plate at most that budget, times d or d squared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from functools import partial
from hashlib import blake2b

import msgspec

from udp_stream.errors import PrivacyRefused
from udp_stream.ledger.port import Admission, Ledger, Mark
from udp_stream.mechanisms.noise import Integers
from udp_stream.planning.policy import PositionPeriods
from udp_stream.queries.elimination import Due, State
from udp_stream.queries.standing import StandingQuery
from udp_stream.release.charge import NO_ROWS, ReleaseContext, charge_once, require_one_promise, terms_from
from udp_stream.release.facts import Observer, QueryRecorded
from udp_stream.release.query_record import (
    QueryResult,
    ResultStatus,
    decode_result,
    decode_round,
    encode_result,
    encode_round,
    query_id,
    result_of,
    round_id,
)
from udp_stream.release.road import draw_once, witness
from udp_stream.windows.positions import Moment, MomentRules
from udp_stream.windows.tables import SlotGrid


@dataclass(frozen=True)
class QueryContext:
    """What every moment is answered with: the budget periods of positions, and what releases are made with."""

    periods: PositionPeriods
    release: ReleaseContext


@dataclass(frozen=True)
class Answered:
    """A recorded answer of a query; `made` if this run recorded it."""

    name: str
    release_id: str
    payload: bytes
    made: bool

    @property
    def status(self) -> ResultStatus:
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
    >>> found = record_moment([a_query()], a_moment(), a_query_context(), MemoryLedger())
    >>> [answer.name for answer in found.answers]
    ['in-the-middle']
    """

    answers: tuple[Answered, ...]
    rounds: tuple[str, ...]
    mark: Mark

    def published(self, ledger: Ledger) -> None:
        ledger.published([*(answer.release_id for answer in self.answers), *self.rounds])


def answer_moment(
    queries: Sequence[StandingQuery],
    moment: Moment,
    context: QueryContext,
    ledger: Ledger,
    publish: Callable[[Sequence[Answered]], None],
) -> list[Answered]:
    """Answer these queries at a moment: `publish` has handed the answers to their readers when it returns."""
    found = record_moment(queries, moment, context, ledger)
    publish(found.answers)
    found.published(ledger)
    return list(found.answers)


def record_moment(
    queries: Sequence[StandingQuery], moment: Moment, context: QueryContext, ledger: Ledger
) -> AnsweredMoment:
    """The same up to publishing: charge, draw and record what is not recorded, and raise the ledger's mark.

    PrivacyRefused if the budget period overlaps another one of positions in which plates were charged, or if speeds and
    positions have one budget that they could exceed.
    """
    found = tuple(_answered(query, moment, context, ledger) for query in queries)
    rounds = [round_id(query.name, moment.time_ms, number + 1) for query in queries for number in range(query.rounds)]
    mark = ledger.mark(witness({answer.release_id: answer.payload for answer in found}))
    return AnsweredMoment(found, tuple(rounds), mark)


def _answered(query: StandingQuery, moment: Moment, context: QueryContext, ledger: Ledger) -> Answered:
    id_ = query_id(query.name, moment.time_ms)

    def draw(_: object) -> list[bytes]:
        rounds = _Rounds(query, moment, context, ledger)
        payload = encode_result(rounds.result(id_))
        # It charges nobody: a ledger records only what was admitted.
        nobody = Admission(id_, NO_ROWS, NO_ROWS, 0, b"")
        ledger.admit(rounds.period, context.periods.budget_nano, moment.plates, [nobody])
        return [payload]

    drawn = draw_once(ledger, [id_], draw)
    return Answered(query.name, id_, drawn.payloads[0], made=bool(drawn.made))


class _RoundTerms(msgspec.Struct, frozen=True, omit_defaults=True):
    """A round's terms: the query, a digest of the plates, and how much of its savings each may spend."""

    query: StandingQuery
    plates: str
    handed_on: tuple[int, ...] = ()


class _Rounds:
    """The rounds of one query at one moment: those that a ledger has, and on from there."""

    def __init__(self, query: StandingQuery, moment: Moment, context: QueryContext, ledger: Ledger) -> None:
        self._moment, self._context, self._ledger = moment, context, ledger
        self.period, handed_on = context.periods.name_at(moment.time_ms), tuple[int, ...]()
        if query.ramp:
            gone_ms = moment.time_ms - context.periods.start_of(moment.time_ms)
            handed_on = query.handed_on(ledger.balances(self.period, moment.plates).charged, gone_ms)
        # Hashes of one length: joined, they can be read in one way only.
        self._digest = blake2b(b"".join(moment.plates), digest_size=16).hexdigest()
        terms = _RoundTerms(query, self._digest, handed_on)
        self._take(terms, msgspec.json.encode(terms))

    def _take(self, terms: _RoundTerms, written: bytes) -> None:
        self._terms, self._written, self._query = terms, written, terms.query
        # Where the moment holds other plates now, savings of the terms are not theirs, and nobody is asked.
        self._is_ours = terms.plates == self._digest
        self._asked = self._query.asked(len(self._moment.plates), terms.handed_on if self._is_ours else ())

    def result(self, id_: str) -> QueryResult:
        charged, periods = NO_ROWS, self._context.periods
        if (due := self._asked.due(self._asked.pie.begin())) is not None:
            checked = self.period, periods.budget_nano, periods, self._ledger, self._moment.plates
            require_one_promise(*checked)
            charged = self._charge(1, due)
            require_one_promise(*checked)  # of two runs that begin at once, at least one sees the other before it draws
        of_result = id_, self._query, self._moment, self._context.release
        if not self._is_ours:
            most = int(self._query.budgets(1, self._terms.handed_on).max())
            return result_of(*of_result, charged_nano=most, most_nano=most)
        self._asked = asked = self._asked.among(charged)
        state = self._last_state(charged)
        most = int(asked.budgeting.budgets_nano.max(initial=self._query.budget_nano))
        return result_of(*of_result, asked.charged(state), most, asked.found(state), state.rounds)

    def _last_state(self, first: Integers) -> State:
        pie, positions = self._asked.pie, self._asked.plane.quanta(self._moment.lat, self._moment.lon)
        state = pie.begin()
        while (due := self._asked.due(state)) is not None:
            id_ = self._round_id(state.rounds + 1)
            drawn = draw_once(self._ledger, [id_], partial(self._draw, state, due, first, positions))
            found = decode_round(drawn.payloads[0], pie.privatised.dimensions, id_)
            try:
                state = pie.advance(state, found)
            except ValueError as error:
                raise PrivacyRefused(
                    f"{id_}: the ledger's record of the round is of plates that it did not ask"
                ) from error
        return state

    def _draw(self, state: State, due: Due, first: Integers, positions: Integers, _: object) -> list[bytes]:
        """Charge a round, unless it is the first, and draw it: its record."""
        pie, number = self._asked.pie, state.rounds + 1
        charged = first if number == 1 else self._charge(number, due)
        ((_, bits),) = self._context.release.entropy.streams([self._round_id(number)])
        found = pie.draw(state, *self._asked.members(due, charged, positions), bits)
        return [encode_round(pie.settled(state, found))]

    def _charge(self, number: int, due: Due) -> Integers:
        """What each plate of the round is charged, in its first admission, 0 for those that had too little left."""
        # Remembered terms may have another budget than the settings: the lower one keeps both promises.
        budget = min(self._context.periods.budget_nano, self._query.period_budget_nano)
        asked = self._admission(number, due, budget)

        def on_terms(_: int, remembered: bytes) -> Admission:
            if number > 1:  # they follow from the first round's: `charge_once` refuses others
                return asked
            # With the very bytes: written anew by this version they could differ, and would be other terms.
            self._take(terms_from(remembered, asked.release_id, _RoundTerms), remembered)
            # Where the moment holds other plates now, indices among them say nothing: nobody is charged.
            return self._admission(1, self._asked.due(self._asked.pie.begin()) if self._is_ours else None, budget)

        (found,) = charge_once(self._ledger, self.period, budget, self._moment.plates, [asked], on_terms)
        return found.charged

    def _admission(self, number: int, due: Due | None, budget: int) -> Admission:
        id_ = self._round_id(number)
        if due is None:
            return Admission(id_, NO_ROWS, NO_ROWS, 0, self._written)
        # Savings of all plates are written once: a later round names the terms by a digest.
        is_long = number > 1 and self._terms.handed_on
        written = blake2b(self._written, digest_size=16).hexdigest().encode() if is_long else self._written
        return Admission(id_, due.plates, due.charges, 0, written, self._asked.allowances(due, number, budget))

    def _round_id(self, number: int) -> str:
        return round_id(self._query.name, self._moment.time_ms, number)


# Queries with one interval share their moments. Moments are answered in the order of their times, the queries of a
# moment in that of the configuration, the shortest interval first.

QUERY_NOTE = "query:"
"""The ledger's note of a query is named by this and the query's fingerprint, and holds the query."""


def asked_digest(queries: Sequence[StandingQuery], zone: tzinfo) -> str:
    """The same for workers that ask the same at the same moments: 16 hexadecimal digits; "" where none is asked."""
    asked = (str(zone), *(query.fingerprint() for query in queries))
    return blake2b(" ".join(asked).encode(), digest_size=8).hexdigest() if queries else ""


class QuerySet:
    """The standing queries of a deployment, at least one. `moments` says when positions are asked, and how old they may
    be; `grids` are by the queries' intervals in seconds.

    >>> from datetime import UTC
    >>> from udp_stream.ledgers.sqlite import MemoryLedger
    >>> from udp_stream.testing import a_moment, a_query, a_query_context
    >>> queries = QuerySet([a_query()], UTC, a_query_context())
    >>> [answer.status for answer in queries.record(a_moment(), MemoryLedger()).answers]
    ['answered']
    """

    def __init__(self, queries: Sequence[StandingQuery], zone: tzinfo, context: QueryContext) -> None:
        if not queries:
            raise ValueError("expected at least one query, got none")
        self._context, self.periods, self.digest = context, context.periods, asked_digest(queries, zone)
        self._queries: dict[int, list[StandingQuery]] = {}
        for query in queries:
            self._queries.setdefault(query.every_s, []).append(query)
        self.grids = {every_s: SlotGrid(every_s, zone) for every_s in sorted(self._queries)}
        age_ms = round(1000 * max(query.age_s for query in queries))
        self.moments = MomentRules(tuple(self.grids.values()), age_ms)

    def record(self, moment: Moment, ledger: Ledger, every_s: int | None = None) -> AnsweredMoment | None:
        """Note, charge, draw and record the due queries of a moment (or of one interval); None for no query."""
        at_ms, asked = moment.time_ms, [every_s] if every_s else self.grids
        due = [query for s in asked if self.grids[s].start_of(at_ms) == at_ms for query in self._queries[s]]
        if not due:
            return None
        for query in due:
            ledger.note(f"{QUERY_NOTE}{query.fingerprint()}", msgspec.json.encode(query).decode())
        return record_moment(due, moment, self._context, ledger)


def report_answers(report: Observer, moment_ms: int, answers: Sequence[Answered]) -> None:
    """The facts of a moment's answers, before they are published."""
    for answer in answers:
        report(QueryRecorded(answer.name, moment_ms, answer.status, answer.made))
