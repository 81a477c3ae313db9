"""The sections `[queries]`, the budget of plates' positions, and `[[query]]`, a standing query:
keys, rules, values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from math import floor
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import UNSET

from udp_stream.base.errors import ConfigError
from udp_stream.base.logs import counted
from udp_stream.base.units import amount_text, duration_name, nano_allowance, parse_duration
from udp_stream.mechanisms.noise import MEASURES
from udp_stream.pings.decode import Box
from udp_stream.planning.policy import OneBudget
from udp_stream.queries.elimination import How
from udp_stream.queries.standing import Kind, Position, StandingQuery
from udp_stream.settings.limits import (
    Section,
    milliseconds,
    require,
    require_box,
    seconds_of,
    whole_seconds,
)

_NAME = re.compile("[a-z0-9][a-z0-9-]{0,62}")
_REGIONS = "box", "polygon", "cells"
_AMOUNT_MAX = 1e6

ROUNDS: dict[str, int] = {"zcdp": 64, "pure": 4}
"""Even rounds. The paper's c64 under rho: they save most at the same error
(`docs/mechanisms/elimination.md`). Its c4 under epsilon, where rounds err more, by the square root
of their number."""

EDGE_M = 500.0
"""The edge of a threshold's region: noise on its count is that on a plate's distance in metres,
divided by the edge."""

BANDWIDTH_M = 500.0

HOW: dict[Kind, How] = {
    "range": "distance",
    "density": "point",
    "nearest": "distance",
    "threshold": "distance",
}
"""The quantity that gets noise, by kind, where it errs less: a density from noisy distances is
biased upwards."""

KEYS: dict[Kind, tuple[str, ...]] = {
    "range": _REGIONS,
    "density": ("place",),
    "nearest": ("place", "k"),
    "threshold": (*_REGIONS, "share"),
}
"""Keys that a kind of query reads, beside those that all kinds read."""

_NEEDED = {
    "place": "[longitude, latitude]",
    "share": "a number above 0 and below 1",
}


class PositionBudget(NamedTuple):
    """The budget of a plate's positions in a period: nano-rho per square km, or nano-epsilon
    per km."""

    measure: str
    nano: int


class QueriesSection(Section, frozen=True, kw_only=True):
    """The budget of a plate's positions: `rho` per square kilometre, or `epsilon` per kilometre,
    and its period.

    Or it is a `share` of `[budget]`, where `unit_m` metres count as much as a speed does. There is
    no default.
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
        """The part of a plate's joint budget that positions have, rounded down; 0 if they have a
        budget of their own."""
        return floor(budget_nano * Fraction(str(self.share)))

    def position_budget(self, measure: str, budget_nano: int) -> PositionBudget:
        """Their own budget; or their share of the joint budget, which is in this measure, by its
        unit of distance."""
        shared = self.one_budget(measure, budget_nano)
        if shared is None:
            return PositionBudget(
                "pure" if self.epsilon else "zcdp", nano_allowance(self.epsilon or self.rho)
            )
        most = nano_allowance(_AMOUNT_MAX)
        least_m = 1000 * (shared.positions_nano / most) ** (1 / MEASURES[measure].noise.power)
        more = f"more than {_AMOUNT_MAX:,.0f} per {MEASURES[measure].distance}"
        rule = f"at least {1.005 * least_m:.3g}: below, positions have {more}"
        require(shared.by_distance_nano <= most, "queries.unit_m", rule, self.unit_m)
        return PositionBudget(measure, shared.by_distance_nano)

    def one_budget(self, measure: str, budget_nano: int) -> OneBudget | None:
        if not self.share:
            return None
        return OneBudget(
            measure, budget_nano, self.shared_nano(budget_nano), Decimal(str(self.unit_m or 1))
        )

    @property
    def period_seconds(self) -> int | None:
        """None for a lifetime. ConfigError if it is no length of a period."""
        return None if self.period == "lifetime" else whole_seconds("queries.period", self.period)

    @property
    def period_name(self) -> str:
        seconds = self.period_seconds
        return "lifetime" if seconds is None else duration_name(seconds)


class QuerySection(Section, frozen=True, kw_only=True):
    """A standing query."""

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

    def key(self, key: str) -> str:
        return f"query.{key} of {self.name}"


def standing_queries(
    section: QueriesSection, asked: Sequence[QuerySection], box: Box | None, budget: PositionBudget
) -> tuple[StandingQuery, ...]:
    """The queries as the core takes them; `box` is that of pings. ConfigError for a query that
    cannot be asked."""
    if not asked:
        return ()
    _check_section(section)
    center = _center(section, box)
    names = [query.name for query in asked]
    for name in names:
        is_named = bool(_NAME.fullmatch(name)) and names.count(name) == 1
        rule = "lower-case letters, digits and -, another name for each query"
        require(is_named, "query.name", rule, repr(name))
    queries = tuple(_standing(section, query, center, len(asked), budget) for query in asked)
    if section.schedule == "even":
        return queries
    rule = '"auto" where queries.schedule is "ramp": what is handed on are savings of even parts'
    for query in asked:
        require(query.budget == "auto", query.key("budget"), rule, "an amount")
    ramp = tuple(sorted((query.every_s, query.budget_nano) for query in queries))
    return tuple(msgspec.structs.replace(query, ramp=ramp) for query in queries)


def _standing(
    section: QueriesSection,
    asked: QuerySection,
    center: Position,
    queries: int,
    budget: PositionBudget,
) -> StandingQuery:
    every_s = _every(section, asked)
    _check_kind(asked)
    query = StandingQuery(
        name=asked.name,
        kind=asked.kind,
        center=center,
        box=asked.box,
        polygon=asked.polygon,
        cells=asked.cells,
        place=asked.place,
        k=1 if asked.k is None else asked.k,
        bandwidth_m=BANDWIDTH_M,
        every_s=every_s,
        age_s=milliseconds(section.age) / 1000,
        rounds=ROUNDS[budget.measure],
        privatisation=HOW[asked.kind],
        measure=budget.measure,
        budget_nano=_budget(section, asked, every_s, queries, budget),
        period=section.period_name,
        period_budget_nano=budget.nano,
        share=UNSET if asked.share is None else asked.share,
        edge_m=EDGE_M if asked.kind == "threshold" else UNSET,
    )
    try:
        query.region_or_place()
    except ValueError as error:
        given = next(
            (name for name in (*_REGIONS, "place") if getattr(asked, name) is not None), "box"
        )
        raise ConfigError(f"{asked.key(given)}: {error}") from error
    try:
        query.asked(plates=1)
    except ValueError as error:
        raise ConfigError(_too_small(query, asked, section)) from error
    return query


def _check_section(section: QueriesSection) -> None:
    given = [name for name in ("rho", "epsilon", "share") if getattr(section, name) > 0]
    amounts = (
        "queries.rho (per square km), queries.epsilon (per km) and queries.share (of [budget])"
    )
    rule = f"a budget for positions: one of {amounts}"
    require(len(given) == 1, "queries", rule, " and ".join(given) or "none")
    rule = "how many metres count as much as a speed does, where queries.share is given, and nowhere else"
    require(
        (section.unit_m is not None) == (given == ["share"]),
        "queries.unit_m",
        rule,
        section.unit_m or "none",
    )
    if section.period != "lifetime":
        seconds_of("queries.period", section.period)
    seconds_of("queries.age", section.age)


def _center(section: QueriesSection, box: Box | None) -> Position:
    """The middle of the plane; it is the same for all queries, so that their losses add up."""
    if (center := section.center) is None:
        rule = "[longitude, latitude] of the city's middle, or a pings.box, whose middle is taken"
        if box is None:
            raise ConfigError(f"queries.center: expected {rule}, got neither")
        center = ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
    fits = abs(center[0]) <= 180 and abs(center[1]) <= 80
    require(fits, "queries.center", "[longitude, latitude] within 180 and 80 degrees", list(center))
    return center


def _every(section: QueriesSection, asked: QuerySection) -> int:
    try:
        seconds = parse_duration(asked.every)
    except ValueError as error:
        raise ConfigError(f"{asked.key('every')}: {error}") from error
    whole = int(seconds) if seconds < float("inf") else 0
    divides = whole >= 1 and whole == seconds and 86_400 % whole == 0
    period = section.period_seconds
    fits = divides and (period is None or period % whole == 0)
    rule = f"a whole number of seconds that divides a day and queries.period ({section.period})"
    require(fits, asked.key("every"), rule, repr(asked.every))
    return whole


def _check_kind(asked: QuerySection) -> None:
    """ConfigError for a key of another kind, for a missing key, and for a place that is not on
    earth."""
    keys = KEYS[asked.kind]
    given = [key for key in (*_REGIONS, "place", "k", "share") if getattr(asked, key) is not None]
    for key in given:
        rule = f"none where kind is {asked.kind}"
        require(key in keys, asked.key(key), rule, getattr(asked, key))
    regions = [key for key in given if key in _REGIONS]
    if "box" in keys:
        rule = f"one of box, polygon and cells for a {asked.kind}"
        require(len(regions) == 1, asked.key("box"), rule, ", ".join(regions) or "none")
    for key, rule in _NEEDED.items():
        has_key = key not in keys or key in given
        require(has_key, asked.key(key), f"{rule} for a {asked.kind}", "none")
    for lon, lat in (*([asked.place] if asked.place else ()), *(asked.polygon or ())):
        fits = abs(lon) <= 180 and abs(lat) <= 90
        key = asked.key("place" if asked.place else "polygon")
        require(fits, key, "[longitude, latitude] on earth", [lon, lat])
    if asked.box is not None:
        require_box(asked.key("box"), asked.box)


def _budget(
    section: QueriesSection, asked: QuerySection, every_s: int, queries: int, budget: PositionBudget
) -> int:
    """The most that a plate is charged at a moment; "auto" is an even share of the period's, which
    then never ends."""
    if asked.budget != "auto":
        nano = nano_allowance(asked.budget)
        rule = f"at most the budget of a period ({amount_text(budget.nano)})"
        require(nano <= budget.nano, asked.key("budget"), rule, asked.budget)
        return nano
    if (period := section.period_seconds) is None:
        raise ConfigError(
            f'{asked.key("budget")}: expected an amount where queries.period is "lifetime", got auto'
        )
    return budget.nano * every_s // period // queries


def _too_small(query: StandingQuery, asked: QuerySection, section: QueriesSection) -> str:
    measure = MEASURES[query.measure]
    remedy = "raise it"
    if asked.budget == "auto":
        amount = (
            "queries.share, lower queries.unit_m" if section.share else f"queries.{measure.unit}"
        )
        remedy = f"raise {amount}, or ask less often"
    return (
        f"{asked.key('budget')}: expected enough for {counted(query.rounds, 'round')}, "
        f"got {query.budget_nano / 1e9:g} ({measure.unit} per {measure.distance}) for a moment: {remedy}"
    )
