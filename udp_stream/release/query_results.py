"""What is written of a query's answer: the rounds' outcome as a `QueryResult`, or that it is withheld."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from msgspec import UNSET

from udp_stream.queries.asked import Asked, AskedTogether, Found
from udp_stream.queries.elimination import State
from udp_stream.queries.standing import StandingQuery
from udp_stream.queries.terms import BETA
from udp_stream.release.query_record import SCHEMA, GeoPrivacy, Plates, Query, QueryAnswer, QueryResult, ResultStatus
from udp_stream.units import NANO, duration_name
from udp_stream.windows.latest import Moment


@dataclass(frozen=True)
class ResultContext:
    """What every result says beside its answer. `iso` writes a time (Unix ms); `counts_shown`: whether records state
    the number of plates.

    >>> ResultContext("udp-stream test", str).caveats
    ()
    """

    software: str
    iso: Callable[[int], str]
    caveats: tuple[str, ...] = ()
    trial: bool = False
    counts_shown: bool = True


def answered(
    id_: str,
    query: StandingQuery,
    asked: Asked | AskedTogether,
    state: State,
    moment: Moment,
    context: ResultContext,
) -> QueryResult:
    """The result of a run's last state. Lengths to 0.1 m, densities to nine digits; all of it after the noise.

    >>> import os
    >>> from udp_stream.testing import a_moment, a_query
    >>> query, moment = a_query(), a_moment()
    >>> asked = query.asked(len(moment.plates))
    >>> state = asked.pie.run(asked.plane.quanta(moment.lat, moment.lon), os.urandom)
    >>> result = answered("query:now", query, asked, state, moment, ResultContext("udp-stream test", str))
    >>> result.status, result.plates.asked, result.policy == query.fingerprint()
    ('answered', 8, True)
    """
    found = asked.found(state)
    charged = asked.charged(state)
    plates = Plates(len(moment.plates), found.unknown, state.rounds) if context.counts_shown else None
    return _result(id_, "answered", query, moment, _answer(found), plates, charged, context)


def withheld(id_: str, query: StandingQuery, moment: Moment, context: ResultContext) -> QueryResult:
    """The result where rounds began with other plates; what these were charged is at most the moment's amount.

    >>> from udp_stream.testing import a_moment, a_query
    >>> result = withheld("query:now", a_query(), a_moment(), ResultContext("udp-stream test", str))
    >>> result.status, result.answer, result.privacy.charged
    ('withheld_other_plates', None, 20.0)
    """
    return _result(id_, "withheld_other_plates", query, moment, None, None, query.budget_nano, context)


def _result(
    id_: str,
    status: ResultStatus,
    query: StandingQuery,
    moment: Moment,
    answer: QueryAnswer | None,
    plates: Plates | None,
    charged: int,
    context: ResultContext,
) -> QueryResult:
    return QueryResult(
        schema=SCHEMA,
        release_id=id_,
        status=status,
        query=_query(query, context.iso(moment.time_ms)),
        answer=answer,
        plates=plates,
        privacy=GeoPrivacy(
            unit="license_plate",
            neighbours="positions",
            accounting=query.measure,
            per="km" if query.measure == "pure" else "km2",
            charged=charged / NANO,
            moment=query.budget_nano / NANO,
            period=query.period,
            period_budget=query.period_budget_nano / NANO,
            caveats=context.caveats,
        ),
        policy=query.fingerprint(),
        software=context.software,
        trial=context.trial,
    )


def _query(query: StandingQuery, moment: str) -> Query:
    return Query(
        name=query.name,
        kind=query.kind,
        every=duration_name(query.every_s),
        moment=moment,
        age_s=query.age_s,
        box=query.box,
        polygon=query.polygon,
        cells=query.cells,
        place=query.place,
        k=query.k if query.kind == "nearest" else None,
        bandwidth_m=query.bandwidth_m if query.kind == "density" else None,
        rounds=query.rounds,
        privatisation=query.privatisation,
        share=query.share,
        edge_m=query.edge_m,
    )


def _answer(found: Found) -> QueryAnswer:
    return QueryAnswer(
        value=_digits(found.value),
        low=_digits(found.low),
        high=_digits(found.high),
        distances_m=tuple(round(one, 1) for one in found.distances_m),
        # Rounded up, as a bound must not shrink by rounding. A radius is 0.1 more, and not 0.05, as the distance in its
        # middle may have moved by 0.05.
        radii_m=tuple(round(one + 0.1, 1) for one in found.radii_m),
        excess_m=None if found.excess_m is None else ceil(found.excess_m * 10) / 10,
        probability=1 - BETA,
        below=UNSET if found.sure is None else found.below,
        sure=UNSET if found.sure is None else found.sure,
    )


def _digits(value: float | None) -> float | None:
    return None if value is None else round(value, 9)
