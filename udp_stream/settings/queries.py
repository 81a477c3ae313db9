"""`[queries]`, what a plate may lose of its positions; `[[query]]`, what is asked; and what the core makes of both."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from math import floor
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import UNSET

from udp_stream.errors import ConfigError
from udp_stream.logs import counted
from udp_stream.mechanisms.noise import MEASURES
from udp_stream.planning.policy import OneBudget
from udp_stream.queries.elimination import How
from udp_stream.queries.standing import Kind, Position, StandingQuery
from udp_stream.settings.limits import milliseconds, require, seconds_of, whole_seconds
from udp_stream.units import amount_text, duration_name, nano_allowance, parse_duration

Box = tuple[float, float, float, float]

_NAME = re.compile("[a-z0-9][a-z0-9-]{0,62}")

_REGIONS = "box", "polygon", "cells"

_AMOUNT_MAX = 1e6

ROUNDS: dict[str, int] = {"zcdp": 64, "pure": 4}
"""Even rounds. The paper's c64 under rho: they save most at the same error (`docs/mechanisms/elimination.md`). Its c4
under epsilon, which errs by the square root of the rounds more than one of all of it."""

EDGE_M = 500.0
"""Of a threshold's region: noise on its count is that of a plate's place in metres, divided by it."""

BANDWIDTH_M = 500.0
"""Of a density: of the scale at which a city's streets are crowded or empty."""

HOW: dict[Kind, How] = {"range": "distance", "density": "point", "nearest": "distance", "threshold": "distance"}
"""What gets noise, by what errs less: a density from noisy distances is biased upwards."""

_OF_ONE_KIND: dict[str, Kind] = {"k": "nearest", "share": "threshold"}
"""The keys that only one kind of query has."""


class PositionBudget(NamedTuple):
    """What a plate may lose of its positions in a period: nano-rho per square km, or nano-epsilon per km."""

    measure: str
    nano: int

    @property
    def amount(self) -> str:
        """In its unit, without it."""
        return amount_text(self.nano)


class QueriesSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The budget of a plate's positions: `rho` per square kilometre, or `epsilon` per kilometre, and its period.

    No default: how far apart two places may be that must look alike is for a person to choose. It is apart from
    `[budget]`, which is of speeds; or a `share` of that, where `unit_m` metres count as much as a speed does.
    """

    rho: Annotated[float, msgspec.Meta(ge=0, le=_AMOUNT_MAX)] = 0.0
    epsilon: Annotated[float, msgspec.Meta(ge=0, le=_AMOUNT_MAX)] = 0.0
    period: str = "1d"
    age: str = "10m"
    center: Position | None = None
    share: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    unit_m: Annotated[float, msgspec.Meta(gt=0, le=100_000)] | None = None
    schedule: Literal["even", "ramp"] = "even"

    def shared_nano(self, budget_nano: int) -> int:
        """Of a plate's one budget, what positions have of it, rounded down; 0 where they have one of their own."""
        return floor(budget_nano * Fraction(str(self.share)))

    def position_budget(self, measure: str, budget_nano: int) -> PositionBudget:
        """Their own; or of the one budget, which is in this measure, their share by its unit of distance."""
        if not self.share:
            return PositionBudget("pure" if self.epsilon else "zcdp", nano_allowance(self.epsilon or self.rho))
        one, most = self._one_budget(measure, budget_nano), nano_allowance(_AMOUNT_MAX)
        least_m = 1000 * (one.positions_nano / most) ** (1 / MEASURES[measure].noise.power)
        more = f"more than {_AMOUNT_MAX:,.0f} per {MEASURES[measure].distance}"
        rule = f"at least {1.005 * least_m:.3g}: below, positions have {more}"
        require(one.by_distance_nano <= most, "queries.unit_m", rule, self.unit_m)
        return PositionBudget(measure, one.by_distance_nano)

    def one_budget(self, measure: str, budget_nano: int) -> OneBudget | None:
        """What speeds and positions have together; None where positions have a budget of their own."""
        return self._one_budget(measure, budget_nano) if self.share else None

    def _one_budget(self, measure: str, budget_nano: int) -> OneBudget:
        return OneBudget(measure, budget_nano, self.shared_nano(budget_nano), Decimal(str(self.unit_m or 1)))

    @property
    def period_seconds(self) -> int | None:
        """Of the budget; None for a lifetime. ConfigError if it is no length of a period."""
        return None if self.period == "lifetime" else whole_seconds("queries.period", self.period)

    @property
    def period_name(self) -> str:
        """The length as records have it."""
        seconds = self.period_seconds
        return "lifetime" if seconds is None else duration_name(seconds)


class QuerySection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One standing query."""

    name: str
    kind: Kind
    every: str
    box: Box | None = None
    polygon: tuple[Position, ...] | None = None
    cells: tuple[str, ...] | None = None
    place: Position | None = None
    k: Annotated[int, msgspec.Meta(ge=1, le=1000)] | None = None
    budget: Annotated[float, msgspec.Meta(gt=0, le=_AMOUNT_MAX)] | Literal["auto"] = "auto"
    share: Annotated[float, msgspec.Meta(gt=0, lt=1)] | None = None


def standing_queries(
    section: QueriesSection, asked: Sequence[QuerySection], box: Box | None, budget: PositionBudget
) -> tuple[StandingQuery, ...]:
    """The queries as the core takes them; `box` is that of pings. ConfigError for one that cannot be asked."""
    if not asked:
        return ()
    _check_section(section)
    center = _center(section, box)
    names = [one.name for one in asked]
    for one in asked:
        require(bool(_NAME.fullmatch(one.name)), "query.name", "lower-case letters, digits and -", repr(one.name))
        require(names.count(one.name) == 1, "query.name", "another name for each query", f"{one.name!r} twice")
    queries = tuple(_standing(section, one, center, len(asked), budget) for one in asked)
    if section.schedule == "even":
        return queries
    fixed = next((_key(one, "budget") for one in asked if one.budget != "auto"), "")
    rule = '"auto" where queries.schedule is "ramp": what is handed on are savings of even parts'
    require(not fixed, fixed, rule, "an amount")
    ramp = tuple(sorted((query.every_s, query.budget_nano) for query in queries))
    return tuple(msgspec.structs.replace(query, ramp=ramp) for query in queries)


def _standing(
    section: QueriesSection, one: QuerySection, center: Position, queries: int, budget: PositionBudget
) -> StandingQuery:
    every_s = _every(section, one)
    _check_place(one)
    _check_kind(one)
    query = StandingQuery(
        name=one.name,
        kind=one.kind,
        center=center,
        box=one.box,
        polygon=one.polygon,
        cells=one.cells,
        place=one.place,
        k=1 if one.k is None else one.k,
        bandwidth_m=BANDWIDTH_M,
        every_s=every_s,
        age_s=milliseconds(section.age) / 1000,
        rounds=ROUNDS[budget.measure],
        privatisation=HOW[one.kind],
        measure=budget.measure,
        budget_nano=_budget(section, one, every_s, queries, budget),
        period=section.period_name,
        period_budget_nano=budget.nano,
        share=UNSET if one.share is None else one.share,
        edge_m=EDGE_M if one.kind == "threshold" else UNSET,
    )
    _try(query, one, section)
    return query


def _check_section(section: QueriesSection) -> None:
    given = [name for name in ("rho", "epsilon", "share") if getattr(section, name) > 0]
    rule = (
        "a budget for positions: one of queries.rho (per square km), queries.epsilon (per km) and queries.share (of "
        "[budget])"
    )
    require(len(given) == 1, "queries", rule, " and ".join(given) or "none")
    rule = "how many metres count as much as a speed does, where queries.share is given, and nowhere else"
    require((section.unit_m is not None) == (given == ["share"]), "queries.unit_m", rule, section.unit_m or "none")
    if section.period != "lifetime":
        seconds_of("queries.period", section.period)
    seconds_of("queries.age", section.age)


def _center(section: QueriesSection, box: Box | None) -> Position:
    """The middle of the plane in which distances are measured; one for all queries, so that their losses add up."""
    if (center := section.center) is None:
        rule = "[longitude, latitude] of the city's middle, or a pings.box, whose middle is taken"
        if box is None:
            raise ConfigError(f"queries.center: expected {rule}, got neither")
        center = ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
    fits = abs(center[0]) <= 180 and abs(center[1]) <= 80
    require(fits, "queries.center", "[longitude, latitude] within 180 and 80 degrees", list(center))
    return center


def _every(section: QueriesSection, one: QuerySection) -> int:
    key = _key(one, "every")
    try:
        seconds = parse_duration(one.every)
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from error
    whole = int(seconds) if seconds < float("inf") else 0
    fits = whole >= 1 and whole == seconds and 86_400 % whole == 0
    require(fits, key, "a whole number of seconds that divides a day", repr(one.every))
    period = section.period_seconds
    rule = f"a duration that divides queries.period ({section.period})"
    require(period is None or period % whole == 0, key, rule, repr(one.every))
    return whole


def _check_place(one: QuerySection) -> None:
    """A range count and a threshold have one region, the others a place, each on earth."""
    given = [name for name in _REGIONS if getattr(one, name) is not None]
    if one.kind in ("range", "threshold"):
        got = ", ".join(given) or "none"
        require(len(given) == 1, _key(one, "box"), f"one of box, polygon and cells for a {one.kind}", got)
        require(one.place is None, _key(one, "place"), f"none for a {one.kind}", list(one.place or ()))
    else:
        require(not given, _key(one, (given or ["box"])[0]), f"none where kind is {one.kind}", ", ".join(given))
        require(one.place is not None, _key(one, "place"), f"[longitude, latitude] for {one.kind}", "none")
    for place in (*([one.place] if one.place else ()), *(one.polygon or ())):
        fits = abs(place[0]) <= 180 and abs(place[1]) <= 90
        require(fits, _key(one, "place" if one.place else "polygon"), "[longitude, latitude] on earth", list(place))
    if (box := one.box) is not None:
        on_earth = -180 <= box[0] < box[2] <= 180 and -90 <= box[1] < box[3] <= 90
        rule = "[west, south, east, north] with west < east and south < north"
        require(on_earth, _key(one, "box"), rule, list(box))


def _check_kind(one: QuerySection) -> None:
    """A threshold has a share. Keys of one kind have no meaning in another."""
    if one.kind == "threshold":
        require(one.share is not None, _key(one, "share"), "a number above 0 and below 1 for a threshold", "none")
    for key, kind in _OF_ONE_KIND.items():
        got = getattr(one, key)
        require(got is None or one.kind == kind, _key(one, key), f"none where kind is {one.kind}", got)


def _budget(section: QueriesSection, one: QuerySection, every_s: int, queries: int, budget: PositionBudget) -> int:
    """The most that a plate is charged at a moment; "auto" is an even share of the period's, which then never ends."""
    if one.budget != "auto":
        nano = nano_allowance(one.budget)
        rule = f"at most the budget of a period ({budget.amount})"
        require(nano <= budget.nano, _key(one, "budget"), rule, one.budget)
        return nano
    if (period := section.period_seconds) is None:
        raise ConfigError(f'{_key(one, "budget")}: expected an amount where queries.period is "lifetime", got auto')
    return budget.nano * every_s // period // queries


def _try(query: StandingQuery, one: QuerySection, section: QueriesSection) -> None:
    """ConfigError for a region that is none, and for a budget whose rounds are too small to draw noise for."""
    if query.budget_nano < query.rounds:
        raise ConfigError(_too_small(query, one, section))
    try:
        query.region_or_place()
    except ValueError as error:
        given = next((name for name in (*_REGIONS, "place") if getattr(one, name) is not None), "box")
        raise ConfigError(f"{_key(one, given)}: {error}") from error
    try:
        query.asked(plates=1)
    except ValueError as error:
        raise ConfigError(_too_small(query, one, section)) from error


def _too_small(query: StandingQuery, one: QuerySection, section: QueriesSection) -> str:
    measure = MEASURES[query.measure]
    if one.budget != "auto":
        remedy = "raise it"
    else:
        amount = f"queries.{measure.unit}"
        amount = "queries.share, lower queries.unit_m" if section.share else amount
        remedy = f"raise {amount}, or ask less often"
    return (
        f"{_key(one, 'budget')}: expected enough for {counted(query.rounds, 'round')}, "
        f"got {query.budget_nano / 1e9:g} ({measure.unit} per {measure.distance}) for a moment: {remedy}"
    )


def _key(one: QuerySection, key: str) -> str:
    return f"query.{key} of {one.name}"
