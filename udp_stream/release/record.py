"""The release record: the types from which its JSON, its JSON Schema and its documentation come.

Everything in a record is public: counts (under swap-values), settings, and noisy values. Rounding (means to 0.001
km/h, variances to 0.001 km2/h2, shares to 0.000001) happens after the noise.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

import msgspec

from udp_stream.planning.policy import Accounting
from udp_stream.release.field_words import described

SCHEMA: Final = "udp-stream/release/1"

Finite = Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]
NonNegative = Annotated[float, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Status = Literal["released", "withheld_few_plates", "withheld_budget", "withheld_uninformative", "withheld_unplanned"]


class Hat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An H3 cell and a timeslot; `center` is [lon, lat], the slot's ends carry the zone's offset.

    >>> hat = Hat("8742d98b6ffffff", 7, (72.83, 21.17), "2022-01-01T04:00:00+00:00", "2022-01-01T05:00:00+00:00")
    >>> hat.resolution, hat.center
    (7, (72.83, 21.17))
    """

    cell: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{15}$")]
    resolution: Annotated[int, msgspec.Meta(ge=0, le=15)]
    center: tuple[float, float]
    slot_start: str
    slot_end: str


class Mean(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The mean speed of the HAT's samples.

    `scale_kmh` is the noise's expected size. `expected_abs_error_kmh` and `interval95_kmh` count the noise, what
    grouping, capping, filling, projecting and leaving out plates that were not admitted are likely to bias the mean by
    (at speeds spread evenly over [0, max_kmh]), and that means lie in [0, max_kmh]. `bias_bound_kmh` is the most that
    all this can bias the mean if speeds were chosen against it. Where losses are counted in rho, `epsilon` is that of
    pure noise that would cost as much (rho is half of its square), here and in the other statistics.

    >>> from udp_stream.testing import released_slot
    >>> mean = decode(released_slot().hats[0].payload).mean
    >>> mean.interval95_kmh[0] <= mean.value_kmh <= mean.interval95_kmh[1], mean.epsilon
    (True, 0.5)
    """

    value_kmh: NonNegative
    mechanism: str
    grouping: Literal["best-fit", "wrap-around"] | None
    epsilon: Positive
    scale_kmh: NonNegative
    expected_abs_error_kmh: NonNegative
    interval95_kmh: tuple[NonNegative, NonNegative]
    bias_bound_kmh: NonNegative


class Variance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The variance of the HAT's samples, divided by their number.

    `expected_abs_error_kmh2` is the noise's expected size, `bias_bound_kmh2` the most that capping, and leaving out
    plates that were not admitted, can bias the variance if speeds were chosen against it.

    >>> variance = Variance(81.0, "levy", epsilon=0.5, scale_kmh2=4.0, expected_abs_error_kmh2=4.0, bias_bound_kmh2=9.5)
    >>> variance.value_kmh2, variance.mechanism
    (81.0, 'levy')
    """

    value_kmh2: NonNegative
    mechanism: str
    epsilon: Positive
    scale_kmh2: NonNegative
    expected_abs_error_kmh2: NonNegative
    bias_bound_kmh2: NonNegative


class Cdf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The share of the admitted plates' samples at or below each edge.

    A first edge that is given twice gives exact zeros a bin of their own. `budgets` are the tree levels' parts of
    `epsilon`, or of the CDF's rho where losses are counted in rho; `expected_rms_error` is the noise of a value
    before it is made monotone, in shares.

    >>> from udp_stream.testing import released_slot
    >>> cdf = decode(released_slot().hats[0].payload).cdf
    >>> len(cdf.values) == len(cdf.edges_kmh), cdf.values[-1], list(cdf.values) == sorted(cdf.values)
    (True, 1.0, True)
    """

    edges_kmh: tuple[NonNegative, ...]
    values: tuple[Share, ...]
    epsilon: Positive
    branching: tuple[int, ...]
    budgets: tuple[Positive, ...]
    expected_rms_error: NonNegative


class Forecast(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was forecast of the mean before it was taken: from counts and earlier releases, so it costs nothing.

    `deviation_kmh` is its standard deviation, `rest_kmh` the part of that which releases of other HATs cannot lower.
    `prior` is what the forecast reads of the counts: a relative speed and six features, standardised. `measured_kmh` is
    what the release says, with its own standard deviation; it may lie beyond [0, max_kmh]. Smoothed estimates follow
    from these and nothing else.

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
    `caveats`, where there are any: what happened to the ledger by which a plate may have lost more than it says.
    Under "zcdp" and "approximate" accounting losses are counted in the `rho` of concentrated differential privacy, and
    each epsilon holds with `delta`: losses add up in rho, their epsilons do not. `holds_for` "slot": a plate's HATs of
    the slot share one clip. What it was charged for them holds for their records together; this record alone may cost
    it up to that sum.

    >>> from udp_stream.testing import released_slot
    >>> privacy = decode(released_slot().hats[0].payload).privacy
    >>> privacy.neighbours, privacy.epsilon <= privacy.period_epsilon, privacy.holds_for
    ('swap-values', True, 'record')
    """

    unit: Literal["license_plate"]
    neighbours: Literal["swap-values"]
    epsilon: NonNegative
    accounting: Accounting
    period: str
    period_epsilon: Positive
    caveats: tuple[str, ...] = ()
    rho: NonNegative | None = None
    period_rho: Positive | None = None
    delta: Positive | None = None
    holds_for: Literal["record", "slot"] = "record"


class Release(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One HAT's record: the only one there will ever be under its `release_id`.

    `counts` is left out where the settings say so (`release.counts`). Scales, errors and forecasts tell of them all the
    same.
    `trial` is there, and true, if the record was made on a ledger of one run only: other runs draw the HAT again.

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

    @property
    def plates(self) -> int:
        """How many plates the HAT has; 0 where it says none."""
        return 0 if self.counts is None else self.counts.plates

    @property
    def samples(self) -> int:
        """How many samples it has; 0 where it says none."""
        return 0 if self.counts is None else self.counts.samples


_ID = re.compile(r"(?:[0-9a-f]{15}-|clips:|city:)(-?[0-9]+)-([0-9]+)")
_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Release)


def encode(release: Release) -> bytes:
    """The record's bytes: JSON on one line, fields in the order of the types.

    >>> from udp_stream.testing import released_slot
    >>> encode(decode(released_slot().hats[0].payload))[:31]
    b'{"schema":"udp-stream/release/1'
    """
    return _ENCODER.encode(release)


def decode(payload: bytes) -> Release:
    """The record of some bytes; raises msgspec.ValidationError if they are not one.

    >>> from udp_stream.testing import released_slot
    >>> record = decode(released_slot().hats[0].payload)
    >>> record.status, record.counts.plates, record.privacy.epsilon, record.hat.slot_start
    ('released', 4, 0.75, '2022-01-01T04:00:00+00:00')
    """
    return _DECODER.decode(payload)


def json_schema() -> dict[str, Any]:
    """The record's JSON Schema (2020-12), as published in `docs/`.

    >>> sorted(json_schema()["$defs"])
    ['Cdf', 'Counts', 'Forecast', 'Hat', 'Mean', 'Privacy', 'Release', 'Variance']
    """
    return described(Release, SCHEMA)


def release_id(cell: str, start_ms: int, end_ms: int) -> str:
    """The id of a HAT's only release: made of what the HAT is, and of nothing else, so that no setting can change it.

    >>> release_id("87608c4d2ffffff", 1_641_011_400_000, 1_641_015_000_000)
    '87608c4d2ffffff-1641011400-3600'
    """
    return f"{cell}-{start_ms // 1000}-{(end_ms - start_ms) // 1000}"


CLIPS = "clips"
"""The kind of what a ledger remembers of a slot whose plates share clips: nothing is charged or released under it."""


def kind_of(release_id: str) -> str:
    """What is released under an id: a HAT, or what stands before its first colon.

    >>> kind_of("87608c4d2ffffff-1641011400-3600"), kind_of("query:near-the-station:1641011400")
    ('hat', 'query')
    """
    kind, colon, _ = release_id.partition(":")
    return kind if colon else "hat"


def clips_id(start_s: int, seconds: int) -> str:
    """The id of what a ledger remembers of the clips that plates share in a slot.

    >>> clips_id(1641011400, 3600), slot_of(clips_id(1641011400, 3600))
    ('clips:1641011400-3600', (1641011400, 1641015000))
    """
    return f"{CLIPS}:{start_s}-{seconds}"


CITY = "city"


def city_id(start_ms: int, end_ms: int) -> str:
    """The id of what a slot's plates tell of the whole city, which is recorded, and not released.

    >>> city_id(1_641_011_400_000, 1_641_015_000_000)
    'city:1641011400-3600'
    """
    return f"{CITY}:{start_ms // 1000}-{(end_ms - start_ms) // 1000}"


def slot_of(release_id: str) -> tuple[int, int]:
    """When the slot of an id starts and ends, in Unix seconds; ValueError if it is of no HAT or slot.

    >>> slot_of("87608c4d2ffffff-1641011400-3600")
    (1641011400, 1641015000)
    """
    if (match := _ID.fullmatch(release_id)) is None:
        raise ValueError(f"expected CELL-START-SECONDS, got {release_id!r}")
    return int(match[1]), int(match[1]) + int(match[2])
