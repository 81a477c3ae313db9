"""The road of standing queries at a moment: charge, draw, record, round by round; then each answer,
once.

1. The plates of a round and their charges follow from earlier rounds' noisy values
   (`Elimination.due`).
2. *Charge* the plates of the round. The ledger keeps the terms of the first round: all that the
   query depends on, a digest of the moment's plates, and how much of its savings each may spend.
   Savings follow from balances, which later charges change: a run that finds other terms there goes
   on under those.
3. *Draw* for the plates that were charged, and *record* the round with its decisions. The first
   record of a round wins, and every run goes on from it. It holds noisy values and public facts
   alone, and is never published.
4. After the last round the answer is *recorded* under the query's id, then *published* once the
   high-water mark is raised.

A crash between any two calls loses nothing and repeats nothing. If the log then tells of other
plates at the moment (more files were given), the rounds cannot go on: the answer is withheld, for
good.

Privacy: the unit is one plate; neighbours are inputs in which its positions differ, by at most d in
the plane at any moment. A round is private by its charge (`queries/elimination.py`), and charges
are admitted against the plate's budget of the period. So all rounds and answers of a period
together cost a plate at most that budget, times d or d squared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import tzinfo
from functools import partial
from hashlib import blake2b
from math import ceil
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
from msgspec import UNSET

from udp_stream.base.arrays import NO_INTEGERS, Integers
from udp_stream.base.errors import PrivacyRefused
from udp_stream.base.units import NANO, duration_name
from udp_stream.ledger.ids import QUERY, ROUND, id_of
from udp_stream.ledger.port import Admission, Ledger, Mark
from udp_stream.mechanisms.noise import MEASURES
from udp_stream.planning.policy import PositionPeriods
from udp_stream.queries.elimination import BETA, NextRound, Round, State
from udp_stream.queries.kinds import BoundedAnswer
from udp_stream.queries.standing import StandingQuery
from udp_stream.release.charge import (
    ReleaseContext,
    charge_once,
    note_requested,
    require_one_promise,
    terms_from,
)
from udp_stream.release.events import Observer, QueryRecorded
from udp_stream.release.pipeline import draw_once, witness
from udp_stream.release.record import (
    GeoPrivacy,
    QueryAnswer,
    QueryPlates,
    QueryRequest,
    QueryResult,
    Record,
    ResultStatus,
    within_1km,
)
from udp_stream.windows.positions import Moment, MomentRules
from udp_stream.windows.tables import SlotGrid

Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Int8: TypeAlias = Annotated[int, msgspec.Meta(ge=-128, le=127)]


@dataclass(frozen=True)
class QueryContext:
    """The context of every answer: the budget periods of positions, and what releases are
    made with."""

    periods: PositionPeriods
    release: ReleaseContext


class RecordedAnswer(NamedTuple):
    """A recorded answer of a query; `made` if this run recorded it."""

    name: str
    release_id: str
    payload: bytes
    made: bool

    @property
    def status(self) -> ResultStatus:
        return QueryResult.of_ledger(self.release_id, self.payload).status


class RecordedMoment(NamedTuple):
    """The recorded answers of a moment, the ids of all rounds that they may have, and the ledger's
    mark.

    >>> from udp_stream.ledgers.sqlite import MemoryLedger
    >>> from udp_stream.testing import a_moment, a_query, a_query_context
    >>> found = record_moment([a_query()], a_moment(), a_query_context(), MemoryLedger())
    >>> [answer.name for answer in found.answers]
    ['in-the-middle']
    """

    answers: tuple[RecordedAnswer, ...]
    rounds: tuple[str, ...]
    mark: Mark

    def published(self, ledger: Ledger) -> None:
        ledger.published([*(answer.release_id for answer in self.answers), *self.rounds])


def record_moment(
    queries: Sequence[StandingQuery], moment: Moment, context: QueryContext, ledger: Ledger
) -> RecordedMoment:
    """Answer these queries at a moment: charge, draw and record what is not recorded, and raise the
    ledger's mark.

    PrivacyRefused if the budget period overlaps another of positions in which plates were
    charged, or if speeds and positions have a joint budget that they could exceed.
    """
    found = tuple(_answered(query, moment, context, ledger) for query in queries)
    rounds = [
        id_of(ROUND, moment.time_ms, key=query.name, number=number + 1)
        for query in queries
        for number in range(query.rounds)
    ]
    mark = ledger.mark(witness({answer.release_id: answer.payload for answer in found}))
    return RecordedMoment(found, tuple(rounds), mark)


def _answered(
    query: StandingQuery, moment: Moment, context: QueryContext, ledger: Ledger
) -> RecordedAnswer:
    id_ = id_of(QUERY, moment.time_ms, key=query.name)

    def draw(_: object) -> list[bytes]:
        rounds = _Rounds(query, moment, context, ledger)
        payload = rounds.result(id_).encode()
        nobody = Admission.of_nobody(id_)
        ledger.admit(rounds.period, context.periods.budget_nano, moment.plates, [nobody])
        return [payload]

    drawn = draw_once(ledger, [id_], draw)
    return RecordedAnswer(query.name, id_, drawn.payloads[0], made=bool(drawn.made))


class _RoundTerms(msgspec.Struct, frozen=True, omit_defaults=True):
    """A round's terms: the query, a digest of the plates, and how much of its savings each may
    spend."""

    query: StandingQuery
    plates: str
    handed_on: tuple[int, ...] = ()


class _Rounds:
    """The rounds of one query at a single moment: those that a ledger has, and on from there."""

    def __init__(
        self, query: StandingQuery, moment: Moment, context: QueryContext, ledger: Ledger
    ) -> None:
        self._moment = moment
        self._context = context
        self._ledger = ledger
        self.period = context.periods.name_at(moment.time_ms)
        handed_on = tuple[int, ...]()
        if query.ramp:
            gone_ms = moment.time_ms - context.periods.start_of(moment.time_ms)
            handed_on = query.handed_on(
                ledger.balances(self.period, moment.plates).charged, gone_ms
            )
        # Hashes of equal length: joined, they can be read in a single way only.
        self._digest = blake2b(b"".join(moment.plates), digest_size=16).hexdigest()
        terms = _RoundTerms(query, self._digest, handed_on)
        self._take(terms, msgspec.json.encode(terms))

    def _take(self, terms: _RoundTerms, written: bytes) -> None:
        self._terms = terms
        self._written = written
        self._query = terms.query
        # Where the moment holds other plates now, savings of the terms are not theirs, and nobody
        # is asked.
        self._is_ours = terms.plates == self._digest
        self._asked = self._query.asked(
            len(self._moment.plates), terms.handed_on if self._is_ours else ()
        )

    def result(self, id_: str) -> QueryResult:
        charged = NO_INTEGERS
        periods = self._context.periods
        check = partial(
            require_one_promise,
            self.period,
            periods.budget_nano,
            periods,
            self._ledger,
            self._moment.plates,
        )
        check()
        if (due := self._asked.due(self._asked.pie.begin())) is not None:
            charged = self._charge(1, due)
        if not charged.any():
            note_requested(self.period, self._ledger)
        check()  # of two runs that begin at once, at least one sees the other before it draws
        context = self._context.release
        if not self._is_ours:
            most = int(self._query.budgets(1, self._terms.handed_on).max())
            return result_of(id_, self._query, self._moment, context, most, most)
        self._asked = asked = self._asked.among(charged)
        state = self._last_state(charged)
        most = int(asked.budgeting.budgets_nano.max(initial=self._query.budget_nano))
        return result_of(
            id_, self._query, self._moment, context, asked.charged(state), most, asked.found(state), state.rounds
        )  # fmt: skip

    def _last_state(self, first: Integers) -> State:
        pie = self._asked.pie
        positions = self._asked.plane.quanta(self._moment.lat, self._moment.lon)
        state = pie.begin()
        while (due := self._asked.due(state)) is not None:
            id_ = self._round_id(state.rounds + 1)
            drawn = draw_once(
                self._ledger, [id_], partial(self._draw, state, due, first, positions)
            )
            found = decode_round(drawn.payloads[0], pie.privatised.dimensions, id_)
            try:
                state = pie.advance(state, found)
            except ValueError as error:
                raise PrivacyRefused(
                    f"{id_}: the ledger's record of the round is of plates that it did not ask"
                ) from error
        return state

    def _draw(
        self, state: State, due: NextRound, first: Integers, positions: Integers, _: object
    ) -> list[bytes]:
        """Charge a round, unless it is the first, and draw it: its record."""
        pie = self._asked.pie
        number = state.rounds + 1
        charged = first if number == 1 else self._charge(number, due)
        ((_, bits),) = self._context.release.entropy.streams([self._round_id(number)])
        found = pie.draw(state, *self._asked.members(due, charged, positions), bits)
        return [encode_round(pie.settled(state, found))]

    def _charge(self, number: int, due: NextRound) -> Integers:
        """Charge of each plate of the round, in its first admission, 0 for those that had too
        little left."""
        # Remembered terms may have another budget than the settings: the lower one keeps both
        # promises.
        budget = min(self._context.periods.budget_nano, self._query.period_budget_nano)
        asked = self._admission(number, due, budget)

        def on_terms(_: int, remembered: bytes) -> Admission:
            if number > 1:  # they follow from the first round's: `charge_once` refuses others
                return asked
            # With the very bytes: written anew by this version they could differ, and would be
            # other terms.
            self._take(terms_from(remembered, asked.release_id, _RoundTerms), remembered)
            # Where the moment holds other plates now, indices among them say nothing: nobody is
            # charged.
            return self._admission(
                1, self._asked.due(self._asked.pie.begin()) if self._is_ours else None, budget
            )

        (found,) = charge_once(
            self._ledger, self.period, budget, self._moment.plates, [asked], on_terms
        )
        return found.charged

    def _admission(self, number: int, due: NextRound | None, budget: int) -> Admission:
        id_ = self._round_id(number)
        if due is None:
            return Admission.of_nobody(id_, self._written)
        # Savings of all plates are written once: a later round names the terms by a digest.
        is_long = number > 1 and self._terms.handed_on
        written = (
            blake2b(self._written, digest_size=16).hexdigest().encode()
            if is_long
            else self._written
        )
        return Admission(
            id_, due.plates, due.charges, 0, written, self._asked.allowances(due, number, budget)
        )

    def _round_id(self, number: int) -> str:
        return id_of(ROUND, self._moment.time_ms, key=self._query.name, number=number)


class _RoundRecord(Record, frozen=True, array_like=True):
    """Indices of plates, their noisy values, and their status after the round."""

    plates: list[Int64]
    values: list[list[Int64]]
    decided: list[Int8]


def encode_round(found: Round) -> bytes:
    """A settled round, as the ledger keeps it."""
    if found.decided is None:
        raise ValueError("expected a round with its decisions")
    record = _RoundRecord(found.plates.tolist(), found.values.tolist(), found.decided.tolist())
    return record.encode()


def decode_round(payload: bytes, dimensions: int, id_: str) -> Round:
    """The round that `encode_round` wrote; PrivacyRefused for anything else, as there is no going
    on from it."""
    record = _RoundRecord.of_ledger(id_, payload)
    # `reshape` would also take rows of another length, and cut them elsewhere.
    fits = all(len(row) == dimensions for row in record.values)
    if not fits or not len(record.plates) == len(record.values) == len(record.decided):
        raise PrivacyRefused(f"{id_}: expected a row of {dimensions} numbers for each plate")
    values = np.array(record.values, np.int64).reshape(-1, dimensions)
    return Round(np.array(record.plates, np.int64), values, np.array(record.decided, np.int8))


# The result of a query, from its last state.


def result_of(
    id_: str,
    query: StandingQuery,
    moment: Moment,
    context: ReleaseContext,
    charged_nano: int,
    most_nano: int,
    found: BoundedAnswer | None = None,
    rounds: int = 0,
) -> QueryResult:
    """The most that a plate was charged, the most that it could be, and the answer: none where
    rounds began with other plates. Lengths are to 0.1 m, densities to nine digits; all of it after
    the noise."""
    counts = None if found is None else QueryPlates(len(moment.plates), found.unknown, rounds)
    return QueryResult(
        release_id=id_,
        status="withheld_other_plates" if found is None else "answered",
        query=_request(query, context.calendar.slots.iso(moment.time_ms)),
        answer=None if found is None else answer_record(found),
        plates=counts if context.policy.shows_counts else None,
        privacy=GeoPrivacy(
            unit="license_plate",
            neighbours="positions",
            accounting=query.measure,
            per="km" if MEASURES[query.measure].noise.power == 1 else "km2",
            distances="plane",
            charged=charged_nano / NANO,
            moment=most_nano / NANO,
            period=query.period,
            period_budget=query.period_budget_nano / NANO,
            caveats=context.caveats,
            period_within_1km=within_1km(
                query.measure, query.period_budget_nano, context.policy.delta
            ),
        ),
        policy=query.fingerprint(),
        software=context.software,
        trial=context.trial,
    )


def _request(query: StandingQuery, moment: str) -> QueryRequest:
    own: dict[str, Any] = {
        "moment": moment,
        "every": duration_name(query.every_s),
        "k": query.k if query.kind == "nearest" else None,
        "bandwidth_m": query.bandwidth_m if query.kind == "density" else None,
    }
    same = {
        name: getattr(query, name) for name in QueryRequest.__struct_fields__ if name not in own
    }
    return QueryRequest(**own, **same)


def answer_record(found: BoundedAnswer) -> QueryAnswer:
    """An answer as its record has it; without the plates."""
    value, low, high = (
        None if number is None else round(number, 9)
        for number in (found.value, found.low, found.high)
    )
    return QueryAnswer(
        value=value,
        low=low,
        high=high,
        distances_m=tuple(round(metres, 1) for metres in found.distances_m),
        # Rounded up, as a bound must not shrink by rounding. A radius is 0.1 more, and not 0.05, as
        # the distance in its middle may have moved by 0.05.
        radii_m=tuple(round(metres + 0.1, 1) for metres in found.radii_m),
        excess_m=None if found.excess_m is None else ceil(found.excess_m * 10) / 10,
        probability=1 - BETA,
        below=UNSET if found.sure is None else found.below,
        sure=UNSET if found.sure is None else found.sure,
    )


# Queries with the same interval share their moments. Moments are answered in the order of their
# times, the queries of a moment in that of the configuration, the shortest interval first.

QUERY_NOTE = "query:"
"""The ledger's note of a query is named by this and the query's fingerprint, and holds the query."""


def query_digest(queries: Sequence[StandingQuery], zone: tzinfo) -> str:
    """The same for workers that ask the same at the same moments: 16 hexadecimal digits; "" where
    none is asked."""
    asked = (str(zone), *(query.fingerprint() for query in queries))
    return blake2b(" ".join(asked).encode(), digest_size=8).hexdigest() if queries else ""


class QuerySet:
    """The standing queries of a deployment, at least one. `moments` says when positions are asked,
    and how old they may be; `grids` are by the queries' intervals in seconds.

    >>> from datetime import UTC
    >>> from udp_stream.ledgers.sqlite import MemoryLedger
    >>> from udp_stream.testing import a_moment, a_query, a_query_context
    >>> queries = QuerySet([a_query()], UTC, a_query_context())
    >>> [answer.status for answer in queries.record(a_moment(), MemoryLedger()).answers]
    ['answered']
    """

    def __init__(
        self, queries: Sequence[StandingQuery], zone: tzinfo, context: QueryContext
    ) -> None:
        if not queries:
            raise ValueError("expected at least one query, got none")
        self._context = context
        self.periods = context.periods
        self.digest = query_digest(queries, zone)
        self._queries: dict[int, list[StandingQuery]] = {}
        for query in queries:
            self._queries.setdefault(query.every_s, []).append(query)
        self.grids = {every_s: SlotGrid(every_s, zone) for every_s in sorted(self._queries)}
        age_ms = round(1000 * max(query.age_s for query in queries))
        self.moments = MomentRules(tuple(self.grids.values()), age_ms)

    def record(
        self, moment: Moment, ledger: Ledger, every_s: int | None = None
    ) -> RecordedMoment | None:
        """Note, charge, draw and record the due queries of a moment (or of one interval); None for
        no query."""
        at_ms = moment.time_ms
        asked = [every_s] if every_s else self.grids
        due = [
            query
            for s in asked
            if self.grids[s].start_of(at_ms) == at_ms
            for query in self._queries[s]
        ]
        if not due:
            return None
        for query in due:
            ledger.note(f"{QUERY_NOTE}{query.fingerprint()}", msgspec.json.encode(query).decode())
        return record_moment(due, moment, self._context, ledger)


def report_answers(report: Observer, moment_ms: int, answers: Sequence[RecordedAnswer]) -> None:
    """The facts of a moment's answers, before they are published."""
    for answer in answers:
        report(QueryRecorded(answer.name, moment_ms, answer.status, answer.made))
