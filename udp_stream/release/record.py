"""Records: their types, ids and bytes, and what each of their fields is, for the JSON Schemas in
`docs/`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from math import hypot
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from udp_stream.ledger.filters import epsilon_within
from udp_stream.ledger.ids import CELL_ID
from udp_stream.mechanisms.around import FORECAST_CLIP
from udp_stream.mechanisms.base import EMPTY_PLATES, NonNegative, Positive, Share
from udp_stream.mechanisms.cdf import Cdf
from udp_stream.mechanisms.means import Mean
from udp_stream.mechanisms.noise import MEASURES, Integers
from udp_stream.mechanisms.statistics import STATISTICS
from udp_stream.mechanisms.variance import Variance
from udp_stream.planning.plan import HatPlan, Terms
from udp_stream.planning.policy import Policy, SpeedFrom
from udp_stream.planning.promise import ACCOUNTINGS, NEIGHBOURS, accounting_of
from udp_stream.queries.elimination import How
from udp_stream.queries.standing import Kind, Position
from udp_stream.units import QUANTA_PER_KMH
from udp_stream.windows.grid import Grid

WORDS: Final[dict[str, dict[str, str]]] = {
    "Release": {
        "schema": "name and version of this form",
        "release_id": "cell, start of the slot in Unix seconds, and its length in seconds; one record has it, ever",
        "status": "released, or why nothing was: too few plates, too little budget left, nothing to be learnt, "
        "or a HAT that its plan lacks",
        "hat": "where and when",
        "mean": "mean speed of the HAT's samples; null if there is none",
        "variance": "variance of the samples' speeds; null if it was not asked for or is withheld",
        "cdf": "shares of samples at or below each edge; null if it was not asked for or is withheld",
        "counts": "public counts of the HAT; left out where the settings say so",
        "privacy": "what the record cost, and the budget",
        "policy": "hash of the settings that change what is promised or computed",
        "software": "what made the record",
        "trial": "true if other runs draw this HAT again: the ledger was for one run only",
        "forecast": "what was forecast of the mean before it was taken; null if nothing was",
        "others": "statistics without a field of their own, by name; left out where there are none",
        "noised": "add-remove: the noised sums of the cell, which are all that its plates tell; else left out",
    },
    "Hat": {
        "cell": "id of the cell; of an H3 cell 15 hexadecimal digits",
        "resolution": "resolution of an H3 cell, 0 to 15; left out of other cells",
        "center": "longitude and latitude of the cell's centre, degrees",
        "slot_start": "start of the slot, ISO 8601 with the zone's offset",
        "slot_end": "end of the slot, which the slot does not contain",
    },
    "Counts": {
        "plates": "plates in the HAT",
        "samples": "their samples, repeats counted once",
        "admitted_plates": "plates whose budget sufficed",
        "used_samples": "samples that the mean used",
    },
    "Privacy": {
        "unit": "what is protected: all samples of a license plate",
        "neighbours": "inputs that must look alike: the same but for the speeds of one plate (swap-values), or but for "
        "all pings of one plate (add-remove)",
        "epsilon": "most that this record cost an admitted plate; add-remove: that all records of the period cost one",
        "accounting": "how losses add up: pure, approximate or zcdp",
        "period": "what a budget is for: a length of time, or lifetime",
        "period_epsilon": "budget of a plate and period",
        "caveats": "what happened to the ledger by which a plate may have lost more than is said here",
        "rho": "the cost in concentrated differential privacy; absent under pure accounting",
        "period_rho": "the budget in it; absent under pure accounting",
        "delta": "what each epsilon holds with; absent under pure accounting",
        "speeds": "movement: derived from positions; neighbours differ in one plate's positions, each within its cell",
        "holds_for": "slot: the cost holds for all records of the slot together, as plates share clips among them; "
        "period: for all records of the period together",
        "swap_epsilon": "add-remove: what it is between inputs that differ in one plate's speeds alone, as a change is "
        "a removal and an addition: the epsilon of four times period_rho",
    },
    "Noised": {
        "residual": "sum over plates of weight times (mean speed - forecast_kmh), km/h, with noise",
        "weight": "sum over plates of weights, with noise: a whole slot in the cell is 5, a plate has at most 2.5; "
        "left out where plates are told",
        "plates": "number of plates, with noise; left out where it is not asked for",
        "sd": "standard deviation of the noise on residual, km/h; on weight or plates it is a fifth of it",
        "forecast_kmh": "what was forecast of the cell's speed before any ping of the slot was looked at, km/h",
    },
    "Forecast": {
        "value_kmh": "forecast of the mean, km/h",
        "deviation_kmh": "its standard deviation, km/h, with what may have happened",
        "rest_kmh": "the part of that which releases of other HATs cannot lower where nothing happened, km/h",
        "prior": "what it reads of the counts: a relative speed and six features, standardised",
        "measured_kmh": "what the release says of the mean, km/h; it may lie beyond [0, max_kmh]",
        "measured_deviation_kmh": "the standard deviation of that, km/h",
        "clip": "how plates were clipped around their forecasts; null if they were not",
    },
    "Clip": {
        "half_width": "of a plate's interval, in standard deviations of plates",
        "hats": "among about how many HATs of the slot a plate shares its clip",
        "gain": "the share of the HAT's difference from its forecast that passes on average",
        "scatter_kmh": "standard deviation of plates around the HAT's mean, by the model of speeds, km/h",
    },
    "QueryResult": {
        "schema": "name and version of this form",
        "release_id": "query, its name, and the moment in Unix seconds; one record has it, ever",
        "status": "answered, or withheld: the moment's plates were others when its rounds began",
        "query": "what was asked, and when",
        "answer": "what was found; null if it is withheld",
        "plates": "public counts; null if it is withheld, and where the settings leave counts out",
        "privacy": "what the answer cost, and the budget, by distance",
        "policy": "hash of all that the query was asked under",
        "software": "what made the record",
        "trial": "true if other runs ask again: the ledger was for one run only",
    },
    "QueryRequest": {
        "name": "the query's name in the configuration",
        "kind": "range: how many plates in a region; density: around a place; nearest: how far the nearest are; "
        "threshold: whether the share of plates in a region is below one",
        "every": "how often it is asked",
        "moment": "when, ISO 8601 with the zone's offset",
        "age_s": "oldest position that counts, seconds before the moment",
        "box": "west, south, east, north of the region, degrees; null if it is no box",
        "polygon": "corners of the region, longitude and latitude; null if it is no polygon",
        "cells": "H3 cells of the region; null if it has none",
        "place": "longitude and latitude; null for a region",
        "k": "how many of the nearest; null for other kinds",
        "bandwidth_m": "bandwidth of the density, metres; null for other kinds",
        "rounds": "most rounds in which a plate is asked",
        "privatisation": "what gets noise: a plate's distance from what is asked, or its position (point)",
        "share": "of a threshold: the share that is asked about",
        "edge_m": "of a threshold: width of the region's edge, metres, in which a plate counts by how far inside it is",
    },
    "QueryAnswer": {
        "value": "the count; a density, as a share; of a threshold the share of plates inside; null for the nearest",
        "low": "the truth is at least this",
        "high": "the truth is at most this",
        "distances_m": "of the nearest that were found, the least first, metres: Algorithm 8 names the plates, "
        "which are not told here",
        "radii_m": "how far each distance is off at most, metres",
        "excess_m": "how much farther away the s-th nearest of those found may be than that of all, for every s, "
        "metres; null if a plate gave nothing",
        "probability": "with which the bounds hold, over the noise",
        "below": "of a threshold: whether the share is below the one asked about; null if no plate took part",
        "sure": "of a threshold: whether the bounds say so, or the value alone",
    },
    "QueryPlates": {
        "asked": "plates with a position at the moment",
        "gave_nothing": "those of them that had too little budget for a first round",
        "rounds": "rounds in which plates were asked",
    },
    "GeoPrivacy": {
        "unit": "what is protected: where a license plate is",
        "neighbours": "inputs that must look alike: the same but for the position of one plate",
        "accounting": "how losses add up: pure (epsilon) or zcdp (rho)",
        "per": "distance that amounts are for: epsilon per km, rho per km2",
        "distances": "those of the plane around queries.center, at most 1.01 times those on the ground",
        "charged": "most that a plate was charged for this answer",
        "moment": "most that one could have been charged",
        "period": "what a budget is for: a length of time, or lifetime",
        "period_budget": "budget of a plate and period, for all queries",
        "caveats": "what happened to the ledger by which a plate may have lost more than is said here",
        "period_within_1km": "what the period's rho implies of inputs at most 1 km apart; absent of an epsilon",
    },
    "Within": {
        "epsilon_per_km": "epsilon per km, with this delta (Adaptive Privacy Budgeting, equation 10)",
        "delta": "that of the configuration",
    },
    "Smoothed": {
        "schema": "name and version of this form",
        "hat": "where and when",
        "value_kmh": "estimate of the HAT's mean speed from releases and counts, km/h",
        "interval95_kmh": "from and to, km/h: 95 % of true means lie in such an interval, where the model holds",
        "expected_abs_error_kmh": "expected distance from the HAT's true mean, km/h",
        "guess": "what could be said without a release of this cell",
        "cdf": "share of the HAT's samples at or below each edge; null where `cdf_withheld` says why",
        "quantiles_kmh": "by share: the speed that so many of the HAT's samples are at or below, km/h",
        "quantiles_interval95_kmh": "from and to, km/h: where the band comes to the share",
        "share_below_kmh": "by speed, km/h: the share of the HAT's samples at or below it",
        "share_below_interval95": "from and to: the band there",
        "expected_sup_error": "expected largest distance of the CDF from the HAT's true one, at whole km/h",
        "cdf_withheld": "off: none are asked for; city_untold: too few plates so far to ask the city for its own",
        "release_id": "that of the HAT's release; null for a cell without pings in the slot",
        "news": "probability that the HAT is not as usual: that something happened there",
        "software": "what made the estimate",
        "trial": "true if other runs draw the releases behind it again: the ledger was for one run only",
        "traffic": "add-remove: hours that buses spent in the HAT; else left out",
        "plates": "add-remove, where plates are told: how many were in the HAT; else left out",
    },
    "Traffic": {
        "bus_hours": "estimate, from noised sums: time of all plates, each at most half of the slot",
        "interval95": "from and to: 95 % of true sums lie in such an interval, where the model holds",
    },
    "Plates": {
        "value": "estimate, from noised sums",
        "interval95": "from and to: 95 % of true numbers lie in such an interval, where the model holds",
    },
    "SmoothedCdf": {
        "edges_kmh": "upper ends of the bins, km/h; the first is that of exact zeros",
        "values": "the city's shares, tilted to the HAT's mean; never falls, and ends in 1",
        "band": "lower ends, then upper ends, at each edge: 95 % of true shares lie between, where the model holds",
        "guess": "the same shares of the whole city, as far as it was told",
    },
    "Withdrawal": {
        "schema": "name and version of this form",
        "release_id": "withdrawn, a colon and the id of the withdrawn record; one withdrawal has it, ever",
        "withdraws": "the release_id of the record that is withdrawn: its bytes stay, and its budget is spent",
        "hat": "where and when",
        "reason": "what a person said: why the record is not to be used",
        "withdrawn_at": "when, ISO 8601",
        "software": "what made the withdrawal",
    },
    "Guess": {
        "constant_kmh": "the baseline guess, one value for the city: the mean of the slot's estimates, km/h",
        "counts_kmh": "what the HAT's counts say, km/h",
        "expected_abs_error_kmh": "expected distance of `counts_kmh` from the HAT's true mean, by the estimate, km/h",
    },
}
"""By type and field. Those of statistics are with their mechanisms."""


def described(kind: type[msgspec.Struct], name: str) -> dict[str, Any]:
    """The JSON Schema (2020-12) of a record type, with words for each of its fields. KeyError for a
    field without.

    A type is described by its docstring, without the example there.
    """
    schema = msgspec.json.schema(kind)
    for title, definition in schema["$defs"].items():
        if "description" in definition:
            text = inspect.cleandoc(definition["description"]).partition("\n\n>>> ")[0]
            paragraphs = [" ".join(lines.split()) for lines in text.split("\n\n")]
            definition["description"] = "\n\n".join(paragraphs)
        for field, property_ in definition["properties"].items():
            property_["description"] = property_.pop("description", None) or WORDS[title][field]
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": name, **schema}
    plain: dict[str, Any] = msgspec.json.decode(
        msgspec.json.encode(whole)
    )  # defaults as JSON has them
    return plain


# The release record: the types from which its JSON, its JSON Schema and its documentation come.
#
# Everything in a record is public: counts (under swap-values), settings, and noisy values. Rounding
# (means to 0.001 km/h, variances to 0.001 km2/h2, shares to 0.000001) happens after the noise.

SCHEMA: Final = "udp-stream/release/1"

Finite = Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Status = Literal[
    "released",
    "withheld_few_plates",
    "withheld_budget",
    "withheld_uninformative",
    "withheld_unplanned",
    "withheld_partial",
    "withheld_unit",
]


class Hat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A cell and a timeslot; `center` is [lon, lat], the slot's ends carry the zone's offset. H3's
    cells alone have a `resolution`.

    >>> from udp_stream.windows.grid import HEXAGONS
    >>> hat = Hat.of(0x8742D98B6FFFFFF, HEXAGONS, "2022-01-01T04:00:00+00:00", "2022-01-01T05:00:00+00:00")
    >>> hat.cell, hat.resolution, hat.center
    ('8742d98b6ffffff', 7, (72.84719, 21.178259))
    """

    cell: Annotated[str, msgspec.Meta(pattern=f"^{CELL_ID}$")]
    resolution: Annotated[int, msgspec.Meta(ge=0, le=15)] | UnsetType = UNSET
    center: tuple[float, float]
    slot_start: str
    slot_end: str

    @classmethod
    def of(cls, cell: int, grid: Grid, slot_start: str, slot_end: str) -> Hat:
        return cls(
            cell=grid.id_of(cell),
            center=grid.center_of(cell),
            slot_start=slot_start,
            slot_end=slot_end,
            **grid.fields_of(cell),
        )


class Clip(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a HAT's plates were clipped around their forecasts: what a release can show of a HAT that
    is far off.

    >>> Clip(half_width=0.75, hats=5, gain=0.6, scatter_kmh=8.0).hats
    5
    """

    half_width: Positive
    hats: Count
    gain: Positive
    scatter_kmh: NonNegative


class Forecast(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The forecast of the mean before it was taken: from counts and earlier releases, so it
    costs nothing.

    `deviation_kmh` is its standard deviation, `rest_kmh` the part of that which releases of other
    HATs cannot lower. `prior` is what the forecast reads of the counts: a relative speed and six
    features, standardised. `measured_kmh` is what the release says, with its own standard
    deviation; it may lie beyond [0, max_kmh]. Smoothed estimates follow from these and nothing
    else.

    >>> forecast = Forecast(18.0, 3.5, 2.0, prior=(), measured_kmh=None, measured_deviation_kmh=None)
    >>> forecast.value_kmh, forecast.rest_kmh <= forecast.deviation_kmh
    (18.0, True)
    """

    value_kmh: NonNegative
    deviation_kmh: NonNegative
    rest_kmh: NonNegative
    prior: tuple[Finite, ...]
    measured_kmh: Finite | None
    measured_deviation_kmh: NonNegative | None
    clip: Clip | None = None


class Counts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Public counts: in the HAT, admitted by the ledger, and used by the mean.

    >>> Counts(plates=12, samples=240, admitted_plates=11, used_samples=198).admitted_plates
    11
    """

    plates: Count
    samples: Count
    admitted_plates: Count
    used_samples: Count


class Privacy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The most that this record cost an admitted plate, and the budget of a plate and period.

    A plate is charged its own share of the noise's sensitivity. Counts are not protected.
    `caveats`, where there are any: what happened to the ledger by which a plate may have lost more
    than it says. Under "zcdp" and "approximate" accounting losses are counted in the `rho` of
    concentrated differential privacy, and each epsilon holds with `delta`: losses add up in rho,
    their epsilons do not. `holds_for` "slot": a plate's HATs of the slot share one clip. What it
    was charged for them holds for their records together; this record alone may cost it up to that
    sum. `speeds` "movement": they were derived from positions (`windows/movement.py`). Under
    "add-remove" what a plate is charged is secret: `epsilon` and `rho` are those of all records of
    a period together (`holds_for` "period"), and `swap_epsilon` is what it can lose by its speeds
    alone.

    >>> from udp_stream.testing import released_slot
    >>> privacy = decode(released_slot().hats[0].payload).privacy
    >>> privacy.neighbours, privacy.epsilon <= privacy.period_epsilon, privacy.holds_for
    ('swap-values', True, 'record')
    """

    unit: Literal["license_plate"]
    neighbours: Annotated[str, msgspec.Meta(extra_json_schema={"enum": sorted(NEIGHBOURS)})]
    epsilon: NonNegative
    accounting: Annotated[str, msgspec.Meta(extra_json_schema={"enum": sorted(ACCOUNTINGS)})]
    period: str
    period_epsilon: Positive
    caveats: tuple[str, ...] = ()
    rho: NonNegative | None = None
    period_rho: Positive | None = None
    delta: Positive | None = None
    holds_for: Literal["record", "slot", "period"] = "record"
    speeds: SpeedFrom = "field"
    swap_epsilon: Positive | None = None

    def __post_init__(self) -> None:
        if self.neighbours not in NEIGHBOURS or self.accounting not in ACCOUNTINGS:
            raise ValueError(
                f"expected a known promise, got {self.neighbours!r} and {self.accounting!r}"
            )


class Noised(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The sums of a cell's plates under "add-remove": sums with noise, and the forecast that
    residuals are around.

    >>> Noised(residual=-12.5, sd=25.488, forecast_kmh=18.0, weight=3.1).weight
    3.1
    """

    residual: Finite
    sd: Positive
    forecast_kmh: NonNegative
    weight: Finite | None = None
    plates: Finite | None = None


class Release(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    """One HAT's record: the only one there will ever be under its `release_id`.

    `counts` is left out where the settings say so (`release.counts`). Scales, errors and forecasts
    tell of them all the same. `trial` is there, and true, if the record was made on a ledger of one
    run only: other runs draw the HAT again.

    >>> from udp_stream.testing import released_slot
    >>> record = decode(released_slot().hats[0].payload)
    >>> record.release_id.startswith(record.hat.cell), record.plates, record.status
    (True, 4, 'released')
    """

    schema: Literal["udp-stream/release/1"]
    release_id: str
    status: Status
    hat: Hat
    mean: Mean | None
    variance: Variance | None
    cdf: Cdf | None
    counts: Counts | None = None
    privacy: Privacy
    policy: str
    software: str
    trial: bool = False
    forecast: Forecast | None = None
    others: dict[str, Any] = {}
    noised: Noised | None = None

    @property
    def plates(self) -> int:
        return 0 if self.counts is None else self.counts.plates

    @property
    def samples(self) -> int:
        return 0 if self.counts is None else self.counts.samples


_OWN = "mean", "variance", "cdf"
"""The fields of statistics."""

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Release)


def encode(release: Release) -> bytes:
    """The record's bytes: JSON on one line, fields in the order of the types."""
    return _ENCODER.encode(release)


def decode(payload: bytes) -> Release:
    """The record of some bytes; raises msgspec.ValidationError if they are not one."""
    return _DECODER.decode(payload)


Estimate = Mapping[str, Any]
"""The estimate of a HAT: for each statistic the result of its `values`."""


def forecast_record(
    terms: Terms, plan: HatPlan | None, estimate: Estimate | None
) -> Forecast | None:
    """The forecast of the HAT, and the value measured around it; None where nothing was
    forecast."""
    forecast = terms.forecast
    if forecast is None:
        return None
    measured = deviation = clip = None
    if plan is not None and plan.around is not None and estimate is not None:
        measured = round(estimate[FORECAST_CLIP].value / QUANTA_PER_KMH, 3)
        deviation = round(
            hypot(plan.around.noise_deviation, plan.around.spread) / QUANTA_PER_KMH, 3
        )
        width = plan.around.around.width
        clip = Clip(
            width.half_width, width.hats, width.gain, round(plan.around.scatter / QUANTA_PER_KMH, 3)
        )
    return Forecast(
        forecast.value, forecast.deviation, forecast.rest, forecast.prior, measured, deviation, clip
    )


def statistics(
    plan: HatPlan | None, estimate: Estimate | None, left_out: Integers = EMPTY_PLATES
) -> dict[str, Any]:
    """The fields of a release that its statistics fill: null for one that was not asked for, and
    for all if the HAT is withheld. `left_out` are the counts of plates that are not in it.
    """
    found: dict[str, Any] = {}
    if plan is not None and estimate is not None:
        for name, value in estimate.items():
            found[STATISTICS[name].of] = STATISTICS[name].record(
                plan.statistics[name], value, left_out
            )
    own = {of: found.pop(of, None) for of in _OWN}
    return {**own, "others": found} if found else own


def privacy_record(
    policy: Policy, terms: Terms, charge_nano: int, caveats: tuple[str, ...] = ()
) -> Privacy:
    """The most that the release cost an admitted plate (0 if withheld), under the promise that it
    was charged under."""
    return Privacy(
        unit="license_plate",
        neighbours=policy.neighbours,
        accounting=accounting_of(terms.measure, policy.accounting),
        period=terms.period,
        caveats=caveats,
        **MEASURES[terms.measure].privacy(charge_nano, terms.budget_nano, policy.delta),
        holds_for="slot" if terms.is_jointly_clipped and charge_nano else "record",
        speeds=policy.speed_from,
    )


# Estimates of HATs, from releases and counts alone.

SMOOTHED_SCHEMA: Final = "udp-stream/smoothed/1"

AtShare: TypeAlias = Literal["0.1", "0.5", "0.9"]
AtKmh: TypeAlias = Literal["5", "10"]


class Guess(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A guess without any release of this cell: by the baseline guess, and by the HAT's
    counts.

    Its error is what the guess by counts is likely to err by, as far as the estimate tells: by its
    own distance from the estimate, and by what that is likely to err by.

    >>> Guess(constant_kmh=18.0, counts_kmh=16.5, expected_abs_error_kmh=4.1).counts_kmh
    16.5
    """

    constant_kmh: NonNegative
    counts_kmh: NonNegative
    expected_abs_error_kmh: NonNegative


class Traffic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Hours that buses spent in a HAT, each at most half of its slot.

    >>> Traffic(bus_hours=3.2, interval95=(2.1, 4.6)).bus_hours
    3.2
    """

    bus_hours: NonNegative
    interval95: tuple[NonNegative, NonNegative]


class Plates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many plates were in a HAT.

    >>> Plates(value=14.1, interval95=(8.9, 20.3)).value
    14.1
    """

    value: NonNegative
    interval95: tuple[NonNegative, NonNegative]


class SmoothedCdf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The share of a HAT's samples at or below each edge, a 95 % band (its lower ends, its upper
    ends), and the city's CDF as the guess.

    >>> SmoothedCdf((0.0, 65.0), (0.2, 1.0), ((0.1, 1.0), (0.3, 1.0)), (0.3, 1.0)).values[-1]
    1.0
    """

    edges_kmh: tuple[NonNegative, ...]
    values: tuple[Share, ...]
    band: tuple[tuple[Share, ...], tuple[Share, ...]]
    guess: tuple[Share, ...]


class Smoothed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The estimate of one HAT's mean speed, from releases and counts alone.

    `release_id` is that of the HAT's release; null for a cell without pings in the slot. `news` is
    the probability that the HAT is not as usual: maps mark it above a half. `cdf` is null before
    the city was told its own, and where no CDF is asked for: `cdf_withheld` says which. `trial` is
    there, and true, if it follows from releases that were made on a ledger of one run only. Under
    "add-remove" every cell of the domain has one in every slot, from noised sums alone, with
    `traffic` or, where they are asked for, `plates`.

    >>> from udp_stream.windows.grid import HEXAGONS
    >>> hat = Hat.of(0x8742D98B6FFFFFF, HEXAGONS, "2022-01-01T04:00:00+00:00", "2022-01-01T05:00:00+00:00")
    >>> one = Smoothed(SMOOTHED_SCHEMA, hat, 17.9, (13.0, 22.8), 2.0, Guess(18.4, 16.9, 2.9), None, None, 0.12, "udp-stream 1.0")
    >>> one.interval95_kmh[0] < one.value_kmh < one.interval95_kmh[1]
    True
    """

    schema: Literal["udp-stream/smoothed/1"]
    hat: Hat
    value_kmh: NonNegative
    interval95_kmh: tuple[NonNegative, NonNegative]
    expected_abs_error_kmh: Annotated[float, msgspec.Meta(ge=0)]
    guess: Guess
    cdf: SmoothedCdf | None
    release_id: str | None
    news: Share
    software: str
    trial: bool = False
    quantiles_kmh: Mapping[AtShare, NonNegative] | None = None
    quantiles_interval95_kmh: Mapping[AtShare, tuple[NonNegative, NonNegative]] | None = None
    share_below_kmh: Mapping[AtKmh, Share] | None = None
    share_below_interval95: Mapping[AtKmh, tuple[Share, Share]] | None = None
    expected_sup_error: NonNegative | None = None
    cdf_withheld: Literal["off", "city_untold"] | None = None
    traffic: Traffic | None = None
    plates: Plates | None = None


def encode_smoothed(estimate: Smoothed) -> bytes:
    """The record's bytes: JSON on one line."""
    return _ENCODER.encode(estimate)


# The record of a standing query's answer. Rounds have records too, which are never published: they
# stay in the ledger, for a run to go on from. Both hold noisy values and public facts alone. Plates
# that were asked stand there as indices among the moment's plates, never as plates.

QUERY_SCHEMA: Final = "udp-stream/query/1"

QueryValue = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
ResultStatus = Literal["answered", "withheld_other_plates"]


class QueryRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request; places are (longitude, latitude) in degrees.

    A range count and a threshold have a `box`, a `polygon` or `cells`; a density and the nearest
    have a `place`. `share` and `edge_m` are a threshold's, and absent for other kinds.
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

    The nearest have distances and an excess, the other kinds a value with bounds; of them a
    threshold alone has `below` and `sure`. Noise may have put the nearest in another order. A plate
    that no round asked has no distance.
    """

    value: QueryValue | None
    low: QueryValue | None
    high: QueryValue | None
    distances_m: tuple[NonNegative, ...]
    radii_m: tuple[NonNegative, ...]
    excess_m: NonNegative | None
    probability: Annotated[float, msgspec.Meta(gt=0, lt=1)]
    below: bool | UnsetType | None = UNSET
    sure: bool | UnsetType = UNSET


class QueryPlates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Public counts: plates with a position at the moment, and those of them that gave nothing, for
    want of budget."""

    asked: Count
    gave_nothing: Count
    rounds: Count


class Within(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The guarantee that a rho per square kilometre implies: (epsilon, delta, Lambda)-geo-privacy,
    of inputs at most Lambda apart.

    >>> within_1km("zcdp", 10**9, 1e-6)
    Within(epsilon_per_km=8.016993, delta=1e-06)
    """

    epsilon_per_km: NonNegative
    delta: Positive


def within_1km(measure: str, nano: int, delta: float) -> Within | UnsetType:
    """The guarantee of an amount by distance; an epsilon per kilometre is one already (*Adaptive
    Privacy Budgeting*, equation 10)."""
    if MEASURES[measure].noise.power == 1:
        return UNSET
    return Within(epsilon_within(nano, delta, 1.0), delta)


class GeoPrivacy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The most that a plate was charged for this answer, the most it could be, and its budget for a
    period.

    In epsilon per kilometre ("pure"), or in rho per square kilometre ("zcdp"): two inputs whose one
    plate stands d kilometres apart are told apart by at most epsilon d, or rho d^2. Distances are
    those of the plane around `queries.center`: at most 1.01 times those on the ground, wherever on
    earth. These are no losses of speeds. They are added to them only where both have one budget, in
    its units (`queries.share`).
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
    period_within_1km: Within | UnsetType = UNSET


class QueryResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The only answer there will ever be under its `release_id`: a query and a moment.

    `answer` is null where the plates of the moment were others when its rounds began: nothing can
    go on from these.

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


def encode_result(result: QueryResult) -> bytes:
    """The result's bytes: JSON on one line."""
    return msgspec.json.encode(result)


def decode_result(payload: bytes) -> QueryResult:
    """The result of some bytes; raises msgspec.ValidationError if they are none."""
    return msgspec.json.decode(payload, type=QueryResult)
