"""The records of a standing query at a moment: of each round, and of the answer that follows from them.

A result is published. A round's record never is: it stays in the ledger, for a run to go on from. Both hold noisy
values and public facts alone. Plates that were asked stand there as indices among the moment's plates, never as plates.
"""

from __future__ import annotations

from math import ceil
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from udp_stream.errors import PrivacyRefused
from udp_stream.mechanisms.base import NonNegative, Positive
from udp_stream.mechanisms.noise import MEASURES
from udp_stream.queries.elimination import BETA, How, Round
from udp_stream.queries.kinds import Found
from udp_stream.queries.standing import Kind, Position, StandingQuery
from udp_stream.release.charge import ReleaseContext
from udp_stream.release.record import Count
from udp_stream.units import NANO, duration_name
from udp_stream.windows.positions import Moment

SCHEMA: Final = "udp-stream/query/1"

Finite = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
ResultStatus = Literal["answered", "withheld_other_plates"]


class QueryRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was asked; places are (longitude, latitude) in degrees.

    A range count and a threshold have a `box`, a `polygon` or `cells`; a density and the nearest have a `place`.
    `share` and `edge_m` are a threshold's, and absent for other kinds.
    """

    name: str
    kind: Kind
    every: str
    moment: str
    age_s: Positive
    box: tuple[float, float, float, float] | None
    polygon: tuple[Position, ...] | None
    cells: tuple[str, ...] | None
    place: Position | None
    k: Count | None
    bandwidth_m: Positive | None
    rounds: Count
    privatisation: How
    share: Annotated[float, msgspec.Meta(gt=0, lt=1)] | UnsetType = UNSET
    edge_m: Positive | UnsetType = UNSET


class QueryAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer; with probability `probability` over the noise all of its bounds hold.

    The nearest have distances and an excess, the other kinds a value with bounds; of them a threshold alone has `below`
    and `sure`. Noise may have put the nearest in another order. A plate that no round asked has no distance.
    """

    value: Finite | None
    low: Finite | None
    high: Finite | None
    distances_m: tuple[NonNegative, ...]
    radii_m: tuple[NonNegative, ...]
    excess_m: NonNegative | None
    probability: Annotated[float, msgspec.Meta(gt=0, lt=1)]
    below: bool | UnsetType | None = UNSET
    sure: bool | UnsetType = UNSET


class QueryPlates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Public counts: plates with a position at the moment, and those of them that gave nothing, for want of budget."""

    asked: Count
    gave_nothing: Count
    rounds: Count


class GeoPrivacy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The most that a plate was charged for this answer, the most it could be, and its budget for a period.

    In epsilon per kilometre ("pure"), or in rho per square kilometre ("zcdp"): two inputs whose one plate stands d
    kilometres apart are told apart by at most epsilon d, or rho d^2. Distances are those of the plane around
    `queries.center`: at most 1.01 times those on the ground, wherever on earth. These are no losses of speeds. They are
    added to them only where both have one budget, in its units (`queries.share`).
    """

    unit: Literal["license_plate"]
    neighbours: Literal["positions"]
    accounting: Annotated[str, msgspec.Meta(extra_json_schema={"enum": sorted(MEASURES)})]
    per: Literal["km", "km2"]
    distances: Literal["plane"]
    charged: NonNegative
    moment: Positive
    period: str
    period_budget: Positive
    caveats: tuple[str, ...]


class QueryResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The only answer there will ever be under its `release_id`: a query and a moment.

    `answer` is null where the plates of the moment were others when its rounds began: nothing can go on from these.

    >>> from udp_stream.testing import a_result
    >>> result = a_result()
    >>> result.release_id, result.query.moment, result.plates.asked
    ('query:in-the-middle:1641011400', '2022-01-01T04:30:00+00:00', 8)
    >>> result.answer.low <= result.answer.value <= result.answer.high, result.answer.probability
    (True, 0.95)
    >>> 0 < result.privacy.charged <= result.privacy.moment, result.privacy.moment, result.privacy.per
    (True, 20.0, 'km2')
    """

    schema: Literal["udp-stream/query/1"]
    release_id: str
    status: ResultStatus
    query: QueryRequest
    answer: QueryAnswer | None
    plates: QueryPlates | None
    privacy: GeoPrivacy
    policy: str
    software: str
    trial: bool


class _RoundRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Indices of plates, their noisy values, and their status after the round."""

    plates: list[int]
    values: list[list[int]]
    decided: list[int]


def encode_result(result: QueryResult) -> bytes:
    """The result's bytes: JSON on one line."""
    return msgspec.json.encode(result)


def decode_result(payload: bytes) -> QueryResult:
    """The result of some bytes; raises msgspec.ValidationError if they are none."""
    return msgspec.json.decode(payload, type=QueryResult)


def encode_round(found: Round) -> bytes:
    """A settled round, as the ledger keeps it."""
    if found.decided is None:
        raise ValueError("expected a round with its decisions")
    return msgspec.json.encode(_RoundRecord(found.plates.tolist(), found.values.tolist(), found.decided.tolist()))


def decode_round(payload: bytes, dimensions: int, id_: str) -> Round:
    """What `encode_round` wrote; PrivacyRefused for anything else, as there is no going on from it."""
    try:
        record = msgspec.json.decode(payload, type=_RoundRecord)
        values = np.array(record.values, np.int64).reshape(-1, dimensions)
        plates, decided = np.array(record.plates, np.int64), np.array(record.decided, np.int8)
        # `reshape` would also take rows of another length, and cut them elsewhere.
        fits = all(len(row) == dimensions for row in record.values)
        if not fits or not len(record.plates) == len(record.values) == len(record.decided):
            raise ValueError("expected rows of one length, one for each plate")
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, OverflowError) as error:
        raise PrivacyRefused(f"{id_}: expected a round's record in the ledger, got other bytes") from error
    return Round(plates, values, decided)


def query_id(name: str, moment_ms: int) -> str:
    """The id of an answer: the query's name, and the moment in Unix seconds."""
    return f"query:{name}:{moment_ms // 1000}"


def round_id(name: str, moment_ms: int, number: int) -> str:
    """The id of one of its rounds, counted from 1: of a kind that is never published."""
    return f"round:{name}:{moment_ms // 1000}:{number}"


def moment_of(id_: str) -> int:
    """The moment of an answer's id or a round's, Unix ms. ValueError for another id."""
    parts = id_.split(":")
    if (parts[0], len(parts)) not in (("query", 3), ("round", 4)):
        raise ValueError(f"expected the id of a query's answer or round, got {id_}")
    return int(parts[2]) * 1000


# The result of a query, from its last state.


def result_of(
    id_: str,
    query: StandingQuery,
    moment: Moment,
    context: ReleaseContext,
    charged_nano: int,
    most_nano: int,
    found: Found | None = None,
    rounds: int = 0,
) -> QueryResult:
    """The most that a plate was charged, the most that it could be, and the answer: none where rounds began with other
    plates. Lengths are to 0.1 m, densities to nine digits; all of it after the noise."""
    counts = None if found is None else QueryPlates(len(moment.plates), found.unknown, rounds)
    return QueryResult(
        schema=SCHEMA,
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
    same = {name: getattr(query, name) for name in QueryRequest.__struct_fields__ if name not in own}
    return QueryRequest(**own, **same)


def answer_record(found: Found) -> QueryAnswer:
    """An answer as its record has it; without the plates."""
    value, low, high = (None if number is None else round(number, 9) for number in (found.value, found.low, found.high))
    return QueryAnswer(
        value=value,
        low=low,
        high=high,
        distances_m=tuple(round(metres, 1) for metres in found.distances_m),
        # Rounded up, as a bound must not shrink by rounding. A radius is 0.1 more, and not 0.05, as the distance in its
        # middle may have moved by 0.05.
        radii_m=tuple(round(metres + 0.1, 1) for metres in found.radii_m),
        excess_m=None if found.excess_m is None else ceil(found.excess_m * 10) / 10,
        probability=1 - BETA,
        below=UNSET if found.sure is None else found.below,
        sure=UNSET if found.sure is None else found.sure,
    )
