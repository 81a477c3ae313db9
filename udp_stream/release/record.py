"""The release record: the types from which its JSON, its JSON Schema and its documentation come.

Everything in a record is public: counts (under swap-values), settings, and noisy values. Rounding (means to 0.001
km/h, variances to 0.001 km2/h2, shares to 0.000001) happens after the noise.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from udp_stream.mechanisms.cdfs.mechanism import CdfPlan
from udp_stream.mechanisms.means import NOBODY, MeanPlan, accuracy_of
from udp_stream.mechanisms.statistics import NoisyMean, NoisyVariance
from udp_stream.mechanisms.variance import VariancePlan, bias_among
from udp_stream.planning.hat_plan import HatPlan
from udp_stream.planning.policy import AccountingDetail, Policy
from udp_stream.planning.terms import Terms
from udp_stream.release.estimate import HatEstimate
from udp_stream.units import NANO, QUANTA_PER_KMH

SCHEMA: Final = "udp-stream/release/1"

Finite = Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]
NonNegative = Annotated[float, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Status = Literal["released", "withheld_few_plates", "withheld_budget", "withheld_unplanned"]


class Hat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An H3 cell and a timeslot; `center` is [lon, lat], the slot's ends carry the zone's offset."""

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
    all this can bias the mean if speeds were chosen against it.
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
    `epsilon`; `expected_rms_error` is the noise of a value before it is made monotone, in shares.
    """

    edges_kmh: tuple[NonNegative, ...]
    values: tuple[Share, ...]
    epsilon: Positive
    branching: tuple[int, ...]
    budgets: tuple[Positive, ...]
    expected_rms_error: NonNegative


class Counts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Public counts: in the HAT, admitted by the ledger, and used by the mean."""

    plates: Count
    samples: Count
    admitted_plates: Count
    used_samples: Count


class Privacy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The most that this record cost an admitted plate, and the budget of a plate and period.

    `accounting_detail`: "individual" charges a plate its own share, "uniform" each the same. Counts are not protected.
    `caveats`, where there are any: what happened to the ledger by which a plate may have lost more than it says.
    """

    unit: Literal["license_plate"]
    neighbours: Literal["swap-values"]
    epsilon: NonNegative
    accounting: Literal["pure"]
    accounting_detail: AccountingDetail
    period: str
    period_epsilon: Positive
    caveats: tuple[str, ...] = ()


class Release(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One HAT's record: the only one there will ever be under its `release_id`.

    `trial` is there, and true, if the record was made on a ledger of one run only: other runs draw the HAT again.
    """

    schema: Literal["udp-stream/release/1"]
    release_id: str
    status: Status
    hat: Hat
    mean: Mean | None
    variance: Variance | None
    cdf: Cdf | None
    counts: Counts
    privacy: Privacy
    policy: str
    software: str
    trial: bool = False


_ID = re.compile(r"[0-9a-f]{15}-(-?[0-9]+)-([0-9]+)")
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
    ['Cdf', 'Counts', 'Hat', 'Mean', 'Privacy', 'Release', 'Variance']
    """
    schema = msgspec.json.schema(Release)
    for definition in schema["$defs"].values():
        if "description" in definition:  # docstrings keep their indentation before Python 3.13
            definition["description"] = inspect.cleandoc(definition["description"])
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA, **schema}
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(whole))  # defaults as JSON has them
    return plain


def release_id(cell: str, start_ms: int, end_ms: int) -> str:
    """The id of a HAT's only release: made of what the HAT is, and of nothing else, so that no setting can change it.

    >>> release_id("87608c4d2ffffff", 1_641_011_400_000, 1_641_015_000_000)
    '87608c4d2ffffff-1641011400-3600'
    """
    return f"{cell}-{start_ms // 1000}-{(end_ms - start_ms) // 1000}"


def kind_of(release_id: str) -> str:
    """What is released under an id: a HAT, or what stands before its first colon.

    >>> kind_of("87608c4d2ffffff-1641011400-3600"), kind_of("query:near-the-station:1641011400")
    ('hat', 'query')
    """
    kind, colon, _ = release_id.partition(":")
    return kind if colon else "hat"


def slot_of(release_id: str) -> tuple[int, int]:
    """When the slot of an id starts and ends, in Unix seconds; raises ValueError if it is no id of ours.

    >>> slot_of("87608c4d2ffffff-1641011400-3600")
    (1641011400, 1641015000)
    """
    match = _ID.fullmatch(release_id)
    if match is None:
        raise ValueError(f"expected CELL-START-SECONDS, got {release_id!r}")
    return int(match[1]), int(match[1]) + int(match[2])


def mean_record(
    plan: MeanPlan,
    noisy: float,
    scale: float,
    left_out: NDArray[np.int64] = NOBODY,
    projected_to: tuple[int, int] | None = None,
) -> Mean:
    """A noisy mean, its scale and its private interval (quanta) as a record; `left_out` counts the other plates.

    >>> from udp_stream.testing import a_plan
    >>> mean = mean_record(a_plan().mean, noisy=-4096.0, scale=2 * 4096.0)  # quanta; no mean is below 0
    >>> mean.value_kmh, mean.scale_kmh, mean.bias_bound_kmh
    (0.0, 2.0, 0.0)
    """
    others = int(left_out.sum())
    bias = plan.bias_bound + plan.range.width * others / (plan.counts.total + others)
    error, low, high = accuracy_of(plan, noisy, scale, left_out, projected_to)
    return Mean(
        value_kmh=round(plan.released(noisy) / QUANTA_PER_KMH, 3),
        mechanism=plan.mechanism,
        grouping=plan.grouping,
        epsilon=plan.cost.nano / NANO,
        scale_kmh=round(scale / QUANTA_PER_KMH, 4),
        expected_abs_error_kmh=round(error / QUANTA_PER_KMH, 4),
        interval95_kmh=(round(low / QUANTA_PER_KMH, 3), round(high / QUANTA_PER_KMH, 3)),
        bias_bound_kmh=round(min(bias, plan.range.width) / QUANTA_PER_KMH, 4),
    )


def variance_record(plan: VariancePlan, value: float, scale: float, left_out: NDArray[np.int64] = NOBODY) -> Variance:
    """A variance and its noise scale (quanta^2) as a record; `left_out` are the counts of the HAT's other plates.

    >>> from udp_stream.testing import a_plan
    >>> variance_record(a_plan().variance, value=100.0 * 4096**2, scale=9.0 * 4096**2).value_kmh2
    100.0
    """
    among_all = bias_among(plan.counts.total + int(left_out.sum()), plan.kept, plan.range)
    value_kmh2, scale_kmh2, bias = (q / QUANTA_PER_KMH**2 for q in (value, scale, among_all))
    return Variance(
        value_kmh2=round(value_kmh2, 3),
        mechanism="clipped-variance",
        epsilon=plan.cost.nano / NANO,
        scale_kmh2=round(scale_kmh2, 4),
        expected_abs_error_kmh2=round(scale_kmh2, 4),
        bias_bound_kmh2=round(bias, 4),
    )


def cdf_record(plan: CdfPlan, values: list[float]) -> Cdf:
    """A CDF's values at its edges as a record.

    >>> from udp_stream.testing import a_plan
    >>> cdf_record(a_plan().cdf, [0.0, 0.25, 0.5, 1.0]).edges_kmh
    (0.0, 20.0, 40.0, 65.0)
    """
    return Cdf(
        edges_kmh=plan.bins.edges_kmh,
        values=tuple(round(value, 6) for value in values),
        epsilon=plan.cost.nano / NANO,
        branching=plan.tree.branching,
        budgets=tuple(budget / NANO for budget in plan.budgets_nano),
        expected_rms_error=round(plan.rms_error, 4),
    )


class StatisticRecords(NamedTuple):
    """The records of a HAT's statistics, in the fields that a release has for them; None for what was not asked.

    >>> StatisticRecords()
    StatisticRecords(mean=None, variance=None, cdf=None)
    """

    mean: Mean | None = None
    variance: Variance | None = None
    cdf: Cdf | None = None


def _mean(plan: MeanPlan, noisy: NoisyMean, left_out: NDArray[np.int64]) -> Mean:
    return mean_record(plan, noisy.value, noisy.scale, left_out, noisy.projected_to)


def _variance(plan: VariancePlan, noisy: NoisyVariance, left_out: NDArray[np.int64]) -> Variance:
    return variance_record(plan, noisy.value, noisy.scale, left_out)


def _cdf(plan: CdfPlan, values: list[float], left_out: NDArray[np.int64]) -> Cdf:  # noqa: ARG001
    return cdf_record(plan, values)


_RECORDS: dict[str, Callable[[Any, Any, NDArray[np.int64]], Mean | Variance | Cdf]] = {
    "mean": _mean,
    "variance": _variance,
    "cdf": _cdf,
}
"""`Any`: each is handed the plan and the value that its own statistic made."""


def statistics(
    plan: HatPlan | None, estimate: HatEstimate | None, left_out: NDArray[np.int64] = NOBODY
) -> StatisticRecords:
    """The records of what was estimated; nothing for a withheld HAT. `left_out` are the counts of plates not in it.

    >>> from udp_stream.testing import a_plan
    >>> found = statistics(a_plan(), HatEstimate({"mean": NoisyMean(4096.0, scale=4096.0, projected_to=None)}))
    >>> found.mean.value_kmh, found.variance, found.cdf
    (1.0, None, None)
    """
    if plan is None or estimate is None:
        return StatisticRecords()
    found: dict[str, Any] = {
        name: record(plan.statistics[name], estimate.values[name], left_out)
        for name, record in _RECORDS.items()
        if name in estimate.values
    }
    return StatisticRecords(**found)


def privacy_record(policy: Policy, terms: Terms, charge_nano: int, caveats: tuple[str, ...] = ()) -> Privacy:
    """The most that the release cost an admitted plate (0 if withheld), under the promise that it was charged under.

    >>> from udp_stream.testing import a_context
    >>> policy = a_context().policy
    >>> cost = privacy_record(policy, Terms().within(policy), charge_nano=750_000_000)
    >>> cost.epsilon, cost.period_epsilon, cost.period
    (0.75, 10.0, '1d')
    """
    return Privacy(
        unit="license_plate",
        neighbours=policy.neighbours,
        epsilon=charge_nano / NANO,
        accounting=policy.accounting,
        accounting_detail=terms.accounting_detail,
        period=terms.period,
        period_epsilon=terms.budget_nano / NANO,
        caveats=caveats,
    )
