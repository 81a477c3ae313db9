"""Records: their types and bytes. The text below a field is its description in the JSON Schemas of
`docs/`."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from math import hypot
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from udp_stream.base.arrays import NO_INTEGERS, Integers
from udp_stream.base.errors import PrivacyRefused
from udp_stream.base.units import NANO, QUANTA_PER_KMH
from udp_stream.ledger.filters import epsilon_within
from udp_stream.ledger.ids import CELL_ID, HAT, id_of
from udp_stream.mechanisms.around import FORECAST_CLIP
from udp_stream.mechanisms.base import NonNegative, Part, Positive, Share
from udp_stream.mechanisms.cdf import Cdf
from udp_stream.mechanisms.means import Mean
from udp_stream.mechanisms.noise import MEASURES
from udp_stream.mechanisms.statistics import STATISTICS
from udp_stream.mechanisms.variance import Variance
from udp_stream.planning.plan import HatPlan, Terms
from udp_stream.planning.policy import Policy, SpeedFrom, over_time, year_nano
from udp_stream.planning.promise import ACCOUNTINGS, NEIGHBOURS, accounting_of
from udp_stream.queries.elimination import How
from udp_stream.queries.standing import Kind, Position
from udp_stream.windows.grid import Grid


class Record(Part, frozen=True):
    """A record: whatever is recorded under an id, or follows from records. Its bytes are JSON on
    one line, fields in the order of the type."""

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """The record of some bytes; raises msgspec.DecodeError if they are none, or lack its
        schema."""
        record: Self = _decoder_of(cls).decode(payload)
        return record

    @classmethod
    def of_ledger(cls, id_: str, payload: bytes) -> Self:
        """The record that a ledger holds under an id; PrivacyRefused for other bytes."""
        try:
            return cls.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise PrivacyRefused(
                f"{id_}: expected its record in the ledger, got other bytes"
            ) from error


class _Never(Part, frozen=True, tag_field="schema", tag=""):
    never: Annotated[int, msgspec.Meta(ge=1, le=0)]


@cache
def _decoder_of(kind: type[Record]) -> msgspec.json.Decoder[Any]:
    """Alone, a type with a schema would be decoded without it; beside another it is not."""
    return msgspec.json.Decoder(kind | _Never if kind.__struct_config__.tag else kind)


def schema_of(kind: type[Record]) -> str:
    """Name and version of the form of a published record."""
    return str(kind.__struct_config__.tag)


def described(kind: type[Record]) -> dict[str, Any]:
    """The JSON Schema (2020-12) of a published record. A type is described by its docstring,
    without the example there, a field by the text below it; KeyError for a field without."""
    schema = msgspec.json.schema(kind)
    parts = {part.__name__: part for part in _kinds_of(Part)}
    for title, definition in schema["$defs"].items():
        definition["description"] = _paragraphs(definition["description"])
        words = {"schema": "Name and version of this form."} | _texts_of(parts[title])
        for field, property_ in definition["properties"].items():
            property_["description"] = words[field]
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": schema_of(kind),
        **schema,
    }
    # Defaults as JSON has them.
    plain: dict[str, Any] = _without_names(msgspec.json.decode(msgspec.json.encode(whole)))
    return plain


def _without_names(part: Any) -> Any:
    """A part of a schema without the names of keys that objects may have: msgspec tells them from
    0.23 on."""
    if isinstance(part, list):
        return [_without_names(one) for one in part]
    if isinstance(part, dict):
        return {key: _without_names(one) for key, one in part.items() if key != "propertyNames"}
    return part


def _kinds_of(kind: type[Part]) -> Iterator[type[Part]]:
    for one in kind.__subclasses__():
        yield one
        yield from _kinds_of(one)


def _texts_of(kind: type[Part]) -> dict[str, str]:
    """The text below each field, in the source."""
    (source,) = ast.parse(inspect.getsource(kind)).body
    return {
        ast.unparse(field.target): _paragraphs(ast.literal_eval(text.value))
        for field, text in pairwise(ast.iter_child_nodes(source))
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


def _paragraphs(text: str) -> str:
    """A docstring, up to its example, a line for each paragraph."""
    plain = inspect.cleandoc(text).partition("\n\n>>> ")[0]
    return "\n\n".join(" ".join(lines.split()) for lines in plain.split("\n\n"))


# The release record: the types from which its JSON, its JSON Schema and its documentation come.
#
# Everything in a record is public: counts (under swap-values), settings, and noisy values. Rounding
# (means to 0.001 km/h, variances to 0.001 km2/h2, shares to 0.000001) happens after the noise.

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


class Hat(Part, frozen=True, kw_only=True):
    """A cell and a timeslot; `center` is [lon, lat], the slot's ends carry the zone's offset. H3's
    cells alone have a `resolution`, zones alone a `name`.

    >>> from udp_stream.windows.grid import HEXAGONS
    >>> hat = Hat.of(0x8742D98B6FFFFFF, HEXAGONS, "2022-01-01T04:00:00+00:00", "2022-01-01T05:00:00+00:00")
    >>> hat.cell, hat.resolution, hat.center
    ('8742d98b6ffffff', 7, (72.84719, 21.178259))
    """

    cell: Annotated[str, msgspec.Meta(pattern=f"^{CELL_ID}$")]
    """Id of the cell; of an H3 cell 15 hexadecimal digits."""
    resolution: Annotated[int, msgspec.Meta(ge=0, le=15)] | UnsetType = UNSET
    """Resolution of an H3 cell, 0 to 15; left out of other cells."""
    center: tuple[float, float]
    """Longitude and latitude of the cell's centre, degrees."""
    slot_start: str
    """Start of the slot, ISO 8601 with the zone's offset."""
    slot_end: str
    """End of the slot, which the slot does not contain."""
    name: str | UnsetType = UNSET
    """Name of a zone; left out of other cells, and of zones that have none."""
    heading: Literal["NE", "SW", "N", "E", "S", "W"] | UnsetType = UNSET
    """Where plates headed, if cells are split by it: the id of the cell ends with it, too."""

    @classmethod
    def of(cls, cell: int, grid: Grid, slot_start: str, slot_end: str) -> Hat:
        return cls(
            cell=grid.id_of(cell),
            center=grid.center_of(cell),
            slot_start=slot_start,
            slot_end=slot_end,
            **grid.fields_of(cell),
        )


class Clip(Part, frozen=True):
    """How a HAT's plates were clipped around their forecasts: what a release can show of a HAT that
    is far off.

    >>> Clip(half_width=0.75, hats=5, gain=0.6, scatter_kmh=8.0).hats
    5
    """

    half_width: Positive
    """Half the width of a plate's interval, in standard deviations of plates."""
    hats: Count
    """Among about how many HATs of the slot a plate shares its clip."""
    gain: Positive
    """The share of the HAT's difference from its forecast that passes on average."""
    scatter_kmh: NonNegative
    """Standard deviation of plates around the HAT's mean, by the model of speeds, km/h."""


class Forecast(Part, frozen=True):
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
    """Forecast of the mean, km/h."""
    deviation_kmh: NonNegative
    """Its standard deviation, km/h, with what may have happened."""
    rest_kmh: NonNegative
    """The part of that which releases of other HATs cannot lower where nothing happened, km/h."""
    prior: tuple[Finite, ...]
    """Values that it reads of the counts: a relative speed and six features, standardised."""
    measured_kmh: Finite | None
    """The mean by the release, km/h; it may lie beyond [0, max_kmh]."""
    measured_deviation_kmh: NonNegative | None
    """The standard deviation of that, km/h."""
    clip: Clip | None = None
    """How plates were clipped around their forecasts; null if they were not."""


class Counts(Part, frozen=True):
    """Public counts: in the HAT, admitted by the ledger, and used by the mean.

    >>> Counts(plates=12, samples=240, admitted_plates=11, used_samples=198).admitted_plates
    11
    """

    plates: Count
    """Plates in the HAT."""
    samples: Count
    """Their samples, repeats counted once."""
    admitted_plates: Count
    """Plates whose budget sufficed."""
    used_samples: Count
    """Samples that the mean used."""


class Privacy(Part, frozen=True, omit_defaults=True):
    """The most that this record cost an admitted plate, and the budget of a plate and period.

    A plate is charged its own share of the noise's sensitivity. Counts are not protected.
    `caveats`, where there are any: what happened to the ledger by which a plate may have lost more
    than it says. Under "zcdp" and "approximate" accounting losses are counted in the `rho` of
    concentrated differential privacy, and each epsilon holds with `delta`: losses add up in rho,
    their epsilons do not. `holds_for` "slot": a plate's HATs of the slot share a clip. What it
    was charged for them holds for their records together; this record alone may cost it up to that
    sum. `speeds` "movement": they were derived from positions (`windows/movement.py`). Under
    "add-remove" what a plate is charged is secret: `epsilon` and `rho` are those of all records of
    a period together (`holds_for` "period"), and `swap_epsilon` is what it can lose by its speeds
    alone.

    >>> from udp_stream.testing import released_slot
    >>> privacy = Release.decode(next(iter(released_slot().payloads.values()))).privacy
    >>> privacy.neighbours, privacy.epsilon <= privacy.period_epsilon, privacy.holds_for
    ('swap-values', True, 'record')
    """

    unit: Literal["license_plate"]
    """The unit that is protected: all samples of a license plate."""
    neighbours: Annotated[str, msgspec.Meta(extra_json_schema={"enum": sorted(NEIGHBOURS)})]
    """Inputs that must look alike: the same but for the speeds of a single plate (swap-values), or
    but for all its pings (add-remove)."""
    epsilon: NonNegative
    """Most that this record cost an admitted plate; add-remove: most that all records of the period
    cost a plate."""
    accounting: Annotated[str, msgspec.Meta(extra_json_schema={"enum": sorted(ACCOUNTINGS)})]
    """How losses add up: pure, approximate or zcdp."""
    period: str
    """The time that a budget is for: a length, or lifetime."""
    period_epsilon: Positive
    """Budget of a plate and period."""
    caveats: tuple[str, ...] = ()
    """Events of the ledger by which a plate may have lost more than is said here."""
    rho: NonNegative | None = None
    """The cost in concentrated differential privacy; absent under pure accounting."""
    period_rho: Positive | None = None
    """The budget in it; absent under pure accounting."""
    delta: Positive | None = None
    """The delta of each epsilon; absent under pure accounting."""
    holds_for: Literal["record", "slot", "period"] = "record"
    """`slot`: the cost holds for all records of the slot together, as plates share clips among
    them; `period`: for all records of the period together."""
    speeds: SpeedFrom = "field"
    """`movement`: derived from positions; neighbours differ in a single plate's positions, each
    within its cell."""
    swap_epsilon: Positive | None = None
    """`add-remove`: the epsilon between inputs that differ in a single plate's speeds alone. A
    change is a removal and an addition, so it is that of four times period_rho."""
    day_epsilon: Positive | None = None
    """The epsilon of an even day's part of the budget. A day may spend what earlier days left, so it
    is no bound; absent where a period has at most a day."""
    year_epsilon: Positive | None = None
    """The most that any 365 days add up to, in the measure of the budget; absent where a period has
    at most a day."""

    @property
    def of_a_year(self) -> float:
        """The most that any 365 days add up to, as an epsilon: also of older records."""
        measure = "pure" if self.period_rho is None else "zcdp"
        budget = self.period_epsilon if self.period_rho is None else self.period_rho
        nano = year_nano(self.period, round(budget * NANO))
        return MEASURES[measure].implied_epsilon(nano, self.delta or 0.0)

    def __post_init__(self) -> None:
        if self.neighbours not in NEIGHBOURS or self.accounting not in ACCOUNTINGS:
            raise ValueError(
                f"expected a known promise, got {self.neighbours!r} and {self.accounting!r}"
            )


class Noised(Part, frozen=True, omit_defaults=True):
    """The sums of a cell's plates under "add-remove": sums with noise, and the forecast that
    residuals are around.

    >>> Noised(residual=-12.5, sd=25.488, forecast_kmh=18.0, weight=3.1).weight
    3.1
    """

    residual: Finite
    """Sum over plates of weight times (mean speed - forecast_kmh), km/h, with noise."""
    sd: Positive
    """Standard deviation of the noise on residual, km/h; on weight or plates it is a fifth of
    it."""
    forecast_kmh: NonNegative
    """Forecast of the cell's speed from before any ping of the slot was looked at, km/h."""
    weight: Finite | None = None
    """Sum over plates of weights, with noise: a whole slot in the cell is 5, a plate has at most
    2.5; left out where plates are told."""
    plates: Finite | None = None
    """Number of plates, with noise; left out where it is not asked for."""


class Release(
    Record,
    frozen=True,
    tag_field="schema",
    tag="udp-stream/release/1",
    omit_defaults=True,
    kw_only=True,
):
    """A HAT's record: the only one there will ever be under its `release_id`.

    `counts` is left out where the settings say so (`release.counts`). Scales, errors and forecasts
    tell of them all the same. `trial` is there, and true, if the record was made on a ledger of one
    run only: other runs draw the HAT again.

    >>> from udp_stream.testing import released_slot
    >>> record = Release.decode(next(iter(released_slot().payloads.values())))
    >>> record.release_id.startswith(record.hat.cell), record.plates, record.status
    (True, 4, 'released')
    """

    release_id: str
    """Cell, start of the slot in Unix seconds, and its length in seconds; only this record ever has
    it."""
    status: Status
    """Released, or why nothing was: too few plates, too little budget left, nothing to be learnt,
    or a HAT that its plan lacks."""
    hat: Hat
    """Where and when."""
    mean: Mean | None
    """Mean speed of the HAT's samples; null if there is none."""
    variance: Variance | None
    """Variance of the samples' speeds; null if it was not asked for or is withheld."""
    cdf: Cdf | None
    """Shares of samples at or below each edge; null if it was not asked for or is withheld."""
    counts: Counts | None = None
    """Public counts of the HAT; left out where the settings say so."""
    privacy: Privacy
    """Cost of the record, and the budget."""
    policy: str
    """Hash of the settings that change what is promised or computed."""
    software: str
    """The version that made the record."""
    trial: bool = False
    """True if other runs draw this HAT again: the ledger was for a single run."""
    forecast: Forecast | None = None
    """Forecast of the mean from before it was taken; null if there is none."""
    others: dict[str, Any] = msgspec.field(default_factory=dict)
    """Statistics without a field of their own, by name; left out where there are none."""
    noised: Noised | None = None
    """`add-remove`: the noised sums of the cell, which are all that its plates tell; else left
    out."""

    @property
    def plates(self) -> int:
        return 0 if self.counts is None else self.counts.plates

    @property
    def samples(self) -> int:
        return 0 if self.counts is None else self.counts.samples


_OWN = "mean", "variance", "cdf"
"""The fields of statistics."""

Estimate = Mapping[str, Any]
"""The estimate of a HAT: for each statistic the result of its `values`."""


def hat_ids(cells: Iterable[int], slot: tuple[int, int], grid: Grid) -> list[str]:
    """The ids of the releases of these cells' HATs in a slot (start and end, Unix ms).

    >>> from udp_stream.windows.grid import HEXAGONS
    >>> hat_ids([0x8742D98B6FFFFFF], (1641009600_000, 1641013200_000), HEXAGONS)
    ['8742d98b6ffffff-1641009600-3600']
    """
    return [id_of(HAT, *slot, cell) for cell in map(grid.id_of, cells)]


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
    plan: HatPlan | None, estimate: Estimate | None, left_out: Integers = NO_INTEGERS
) -> dict[str, Any]:
    """The fields of a release that its statistics fill: null for those that were not asked for, and
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
        **over_time(terms.measure, terms.period, terms.budget_nano, policy.delta),
        holds_for="slot" if terms.is_jointly_clipped and charge_nano else "record",
        speeds=policy.speed_from,
    )


# Estimates of HATs, from releases and counts alone.

AtShare: TypeAlias = Literal["0.1", "0.5", "0.9"]
AtKmh: TypeAlias = Literal["5", "10"]


class Guess(Part, frozen=True):
    """A guess without any release of this cell: by the baseline guess, and by the HAT's
    counts.

    Its error is what the guess by counts is likely to err by, as far as the estimate tells: by its
    own distance from the estimate, and by what that is likely to err by.

    >>> Guess(constant_kmh=18.0, counts_kmh=16.5, expected_abs_error_kmh=4.1).counts_kmh
    16.5
    """

    constant_kmh: NonNegative
    """The baseline guess, a single value for the city: the mean of the slot's estimates, km/h."""
    counts_kmh: NonNegative
    """Guess by the HAT's counts, km/h."""
    expected_abs_error_kmh: NonNegative
    """Expected distance of `counts_kmh` from the HAT's true mean, by the estimate, km/h."""


class Traffic(Part, frozen=True):
    """Hours that buses spent in a HAT, each at most half of its slot.

    >>> Traffic(bus_hours=3.2, interval95=(2.1, 4.6)).bus_hours
    3.2
    """

    bus_hours: NonNegative
    """Estimate, from noised sums: time of all plates, each at most half of the slot."""
    interval95: tuple[NonNegative, NonNegative]
    """From and to: 95 % of true sums lie in such an interval, where the model holds."""


class Plates(Part, frozen=True):
    """How many plates were in a HAT.

    >>> Plates(value=14.1, interval95=(8.9, 20.3)).value
    14.1
    """

    value: NonNegative
    """Estimate, from noised sums."""
    interval95: tuple[NonNegative, NonNegative]
    """From and to: 95 % of true numbers lie in such an interval, where the model holds."""


class SmoothedCdf(Part, frozen=True):
    """The share of a HAT's samples at or below each edge, a 95 % band (its lower ends, its upper
    ends), and the city's CDF as the guess.

    >>> SmoothedCdf((0.0, 65.0), (0.2, 1.0), ((0.1, 1.0), (0.3, 1.0)), (0.3, 1.0)).values[-1]
    1.0
    """

    edges_kmh: tuple[NonNegative, ...]
    """Upper ends of the bins, km/h; the first is that of exact zeros."""
    values: tuple[Share, ...]
    """The city's shares, tilted to the HAT's mean; never falls, and ends in 1."""
    band: tuple[tuple[Share, ...], tuple[Share, ...]]
    """Lower ends, then upper ends, at each edge: 95 % of true shares lie between, where the model
    holds."""
    guess: tuple[Share, ...]
    """The same shares of the whole city, as far as it was told."""


class Smoothed(
    Record, frozen=True, tag_field="schema", tag="udp-stream/smoothed/1", omit_defaults=True
):
    """The estimate of a HAT's mean speed, from releases and counts alone.

    `release_id` is that of the HAT's release; null for a cell without pings in the slot. `news` is
    the probability that the HAT is not as usual: maps mark it above a half. `cdf` is null before
    the city was told its own, and where no CDF is asked for: `cdf_withheld` says which. `trial` is
    there, and true, if it follows from releases that were made on a ledger of a single run. Under
    "add-remove" every cell of the domain has one in every slot, from noised sums alone, with
    `traffic` or, where they are asked for, `plates`.

    >>> from udp_stream.windows.grid import HEXAGONS
    >>> hat = Hat.of(0x8742D98B6FFFFFF, HEXAGONS, "2022-01-01T04:00:00+00:00", "2022-01-01T05:00:00+00:00")
    >>> one = Smoothed(hat, 17.9, (13.0, 22.8), 2.0, Guess(18.4, 16.9, 2.9), None, None, 0.12, "udp-stream 1.0")
    >>> one.interval95_kmh[0] < one.value_kmh < one.interval95_kmh[1]
    True
    """

    hat: Hat
    """Where and when."""
    value_kmh: NonNegative
    """Estimate of the HAT's mean speed from releases and counts, km/h."""
    interval95_kmh: tuple[NonNegative, NonNegative]
    """From and to, km/h: 95 % of true means lie in such an interval, where the model holds."""
    expected_abs_error_kmh: Annotated[float, msgspec.Meta(ge=0)]
    """Expected distance from the HAT's true mean, km/h."""
    guess: Guess
    """Guess without a release of this cell."""
    cdf: SmoothedCdf | None
    """Share of the HAT's samples at or below each edge; null where `cdf_withheld` says why."""
    release_id: str | None
    """That of the HAT's release; null for a cell without pings in the slot."""
    news: Share
    """Probability that the HAT is not as usual: that its mean lies outside of what 95 % of such
    hours have by the usual week; on a first day, that something happened there. Where the interval
    holds two fifths of the value, or is wider than 20 km/h, an incident would not show here."""
    software: str
    """The version that made the estimate."""
    trial: bool = False
    """True if other runs draw the releases behind it again: the ledger was for a single run."""
    quantiles_kmh: Mapping[AtShare, NonNegative] | None = None
    """By share: the speed that so many of the HAT's samples are at or below, km/h."""
    quantiles_interval95_kmh: Mapping[AtShare, tuple[NonNegative, NonNegative]] | None = None
    """From and to, km/h: where the band comes to the share."""
    share_below_kmh: Mapping[AtKmh, Share] | None = None
    """By speed, km/h: the share of the HAT's samples at or below it."""
    share_below_interval95: Mapping[AtKmh, tuple[Share, Share]] | None = None
    """From and to: the band there."""
    expected_sup_error: NonNegative | None = None
    """Expected largest distance of the CDF from the HAT's true one, at whole km/h."""
    cdf_withheld: Literal["off", "city_untold"] | None = None
    """Off: none are asked for, or the budget is too weak; city_untold: too little is known so far of
    how the city's speeds spread."""
    traffic: Traffic | None = None
    """`add-remove`: hours that buses spent in the HAT; else left out."""
    plates: Plates | None = None
    """Add-remove, where plates are told: how many were in the HAT; else left out."""


REASON_MAX: Final = 500


class Withdrawal(Record, frozen=True, tag_field="schema", tag="udp-stream/withdrawal/1"):
    """The public mark on a record, for ever.

    >>> from udp_stream.windows.grid import HEXAGONS
    >>> hat = Hat.of(0x8742D98B6FFFFFF, HEXAGONS, "2022-01-01T04:00:00+00:00", "2022-01-01T05:00:00+00:00")
    >>> id_ = "8742d98b6ffffff-1641009600-3600"
    >>> Withdrawal(f"withdrawn:{id_}", id_, hat, "unit was mph", "2022-01-02T09:00:00+00:00", "1.0").reason
    'unit was mph'
    """

    release_id: str
    """Withdrawn, a colon and the id of the withdrawn record; only this record ever has it."""
    withdraws: str
    """The release_id of the record that is withdrawn: its bytes stay, and its budget is spent."""
    hat: Hat
    """Where and when."""
    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=REASON_MAX)]
    """Words of a person: why the record is not to be used."""
    withdrawn_at: str
    """When, ISO 8601."""
    software: str
    """The version that made the withdrawal."""


# The record of a standing query's answer. Rounds have records too, which are never published: they
# stay in the ledger, for a run to go on from. Both hold noisy values and public facts alone. Plates
# that were asked stand there as indices among the moment's plates, never as plates.

QueryValue = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
ResultStatus = Literal["answered", "withheld_other_plates"]


class QueryRequest(Part, frozen=True):
    """A request; places are (longitude, latitude) in degrees.

    A range count and a threshold have a `box`, a `polygon` or `cells`; a density and the nearest
    have a `place`. `share` and `edge_m` are a threshold's, and absent for other kinds.
    """

    name: str
    """The query's name in the configuration."""
    kind: Kind
    """Range: how many plates in a region; density: around a place; nearest: how far the nearest
    are; threshold: whether the share of plates in a region is below a given share."""
    every: str
    """How often it is asked."""
    moment: str
    """When, ISO 8601 with the zone's offset."""
    age_s: Positive
    """Oldest position that counts, seconds before the moment."""
    box: tuple[float, float, float, float] | None
    """West, south, east, north of the region, degrees; null if it is no box."""
    polygon: tuple[Position, ...] | None
    """Corners of the region, longitude and latitude; null if it is no polygon."""
    cells: tuple[str, ...] | None
    """H3 cells of the region; null if it has none."""
    place: Position | None
    """Longitude and latitude; null for a region."""
    k: Count | None
    """How many of the nearest; null for other kinds."""
    bandwidth_m: Positive | None
    """Bandwidth of the density, metres; null for other kinds."""
    rounds: Count
    """Most rounds in which a plate is asked."""
    privatisation: How
    """The value that gets noise: a plate's distance from what is asked, or its position (point)."""
    share: Annotated[float, msgspec.Meta(gt=0, lt=1)] | UnsetType = UNSET
    """Threshold: the share that is asked about."""
    edge_m: Positive | UnsetType = UNSET
    """Threshold: width of the region's edge, metres, in which a plate counts by how far inside it
    is."""


class QueryAnswer(Part, frozen=True):
    """The answer; with probability `probability` over the noise all of its bounds hold.

    The nearest have distances and an excess, the other kinds a value with bounds; of them a
    threshold alone has `below` and `sure`. Noise may have put the nearest in another order. A plate
    that no round asked has no distance.
    """

    value: QueryValue | None
    """The count; a density, as a share; for a threshold the share of plates inside; null for the
    nearest."""
    low: QueryValue | None
    """The truth is at least this."""
    high: QueryValue | None
    """The truth is at most this."""
    distances_m: tuple[NonNegative, ...]
    """Distances of the nearest that were found, the least first, metres: Algorithm 8 names the
    plates, which are not told here."""
    radii_m: tuple[NonNegative, ...]
    """How far each distance is off at most, metres."""
    excess_m: NonNegative | None
    """How much farther away the s-th nearest of those found may be than that of all, for every s,
    metres; null if a plate gave nothing."""
    probability: Annotated[float, msgspec.Meta(gt=0, lt=1)]
    """Probability over the noise that the bounds hold."""
    below: bool | UnsetType | None = UNSET
    """Threshold: whether the share is below the given share; null if no plate took part."""
    sure: bool | UnsetType = UNSET
    """Threshold: whether the bounds say so, or the value alone."""


class QueryPlates(Part, frozen=True):
    """Public counts: plates with a position at the moment, and those of them that gave nothing, for
    want of budget."""

    asked: Count
    """Plates with a position at the moment."""
    gave_nothing: Count
    """Those that had too little budget for a first round."""
    rounds: Count
    """Rounds in which plates were asked."""


class Within(Part, frozen=True):
    """The guarantee that a rho per square kilometre implies: (epsilon, delta, Lambda)-geo-privacy,
    of inputs at most Lambda apart.

    >>> within_1km("zcdp", 10**9, 1e-6)
    Within(epsilon_per_km=8.016993, delta=1e-06)
    """

    epsilon_per_km: NonNegative
    """Epsilon per km, with this delta (Adaptive Privacy Budgeting, equation 10)."""
    delta: Positive
    """That of the configuration."""


def within_1km(measure: str, nano: int, delta: float) -> Within | UnsetType:
    """The guarantee of an amount by distance; an epsilon per kilometre is one already (*Adaptive
    Privacy Budgeting*, equation 10)."""
    if MEASURES[measure].noise.power == 1:
        return UNSET
    return Within(epsilon_within(nano, delta, 1.0), delta)


class GeoPrivacy(Part, frozen=True):
    """The most that a plate was charged for this answer, the most it could be, and its budget for a
    period.

    In epsilon per kilometre ("pure"), or in rho per square kilometre ("zcdp"): two inputs whose one
    plate stands d kilometres apart are told apart by at most epsilon d, or rho d^2. Distances are
    those of the plane around `queries.center`: at most 1.01 times those on the ground, wherever on
    earth. These are no losses of speeds. They are added to them only where both have a joint
    budget, in its units (`queries.share`).
    """

    unit: Literal["license_plate"]
    """The unit that is protected: where a license plate is."""
    neighbours: Literal["positions"]
    """Inputs that must look alike: the same but for the position of a single plate."""
    accounting: Annotated[str, msgspec.Meta(extra_json_schema={"enum": sorted(MEASURES)})]
    """How losses add up: pure (epsilon) or zcdp (rho)."""
    per: Literal["km", "km2"]
    """Distance that amounts are for: epsilon per km, rho per km2."""
    distances: Literal["plane"]
    """Those of the plane around queries.center, at most 1.01 times those on the ground."""
    charged: NonNegative
    """Most that a plate was charged for this answer."""
    moment: Positive
    """Most that a plate could have been charged."""
    period: str
    """The time that a budget is for: a length, or lifetime."""
    period_budget: Positive
    """Budget of a plate and period, for all queries."""
    caveats: tuple[str, ...]
    """Events of the ledger by which a plate may have lost more than is said here."""
    period_within_1km: Within | UnsetType = UNSET
    """The guarantee that the period's rho implies for inputs at most 1 km apart; absent of an
    epsilon."""


class QueryResult(Record, frozen=True, tag_field="schema", tag="udp-stream/query/1"):
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

    release_id: str
    """Query, its name, and the moment in Unix seconds; only this record ever has it."""
    status: ResultStatus
    """Answered, or withheld: the moment's plates were others when its rounds began."""
    query: QueryRequest
    """The question, and its moment."""
    answer: QueryAnswer | None
    """Null if it is withheld."""
    plates: QueryPlates | None
    """Public counts; null if it is withheld, and where the settings leave counts out."""
    privacy: GeoPrivacy
    """Cost of the answer, and the budget, by distance."""
    policy: str
    """Hash of all that the query was asked under."""
    software: str
    """The version that made the record."""
    trial: bool
    """True if other runs ask again: the ledger was for a single run."""


class UnitDoubt(NamedTuple):
    """Releases that may be of speeds in another unit, of slots that start from `since` until
    `until` (ISO 8601). `configured` is the unit that was set, `likely` the other unit in words.

    >>> UnitDoubt("2024-01-08T12:00:00+05:30", "2024-01-08T15:00:00+05:30", 40, "kmh", "'mps'").released
    40
    """

    since: str
    until: str
    released: int
    configured: str
    likely: str
