"""Smoothed estimates: what releases and counts together say of every HAT. Post-processing: it costs no budget.

A release that was measured is off by its noise; its forecast is off by what the HAT has of its own. The estimate weighs
both. A HAT that was not measured gets its forecast, after the slot's other releases; so does every cell that was
observed before. This is what people should read.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from udp_stream.forecast.model import PER_HAT, Memory, Observed, SlotPrior
from udp_stream.mechanisms.forecast_clip import NAME
from udp_stream.mechanisms.speed_spread import at_speed, mean_variance
from udp_stream.release.field_words import described
from udp_stream.release.intervals import ends, of_few_pings, plates_differ
from udp_stream.release.record import Hat, NonNegative, Release
from udp_stream.windows.tables import cell_center, cell_name

SCHEMA: Final = "udp-stream/smoothed/1"

Floats = NDArray[np.float64]

_MEAN_ABS = 0.798
"""E|x| of a normal variable, in standard deviations."""

_PER_NOISE = 1.2533
"""A standard deviation in expected absolute errors, of the same."""


class Guess(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be said without any release of this cell: by the baseline guess, and by the HAT's counts.

    Its error is what the guess by counts is likely to err by, as far as the estimate tells: by its own distance from
    the estimate, and by what that is likely to err by.

    >>> Guess(constant_kmh=18.0, counts_kmh=16.5, expected_abs_error_kmh=4.1).counts_kmh
    16.5
    """

    constant_kmh: NonNegative
    counts_kmh: NonNegative
    expected_abs_error_kmh: NonNegative


class Smoothed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The estimate of one HAT's mean speed, from releases and counts alone.

    `release_id` is that of the HAT's release; null for a cell without pings in the slot.
    `trial` is there, and true, if it follows from releases that were made on a ledger of one run only.

    >>> hat = Hat("8742d98b6ffffff", 7, (72.83, 21.17), "2022-01-01T04:00:00+00:00", "2022-01-01T05:00:00+00:00")
    >>> one = Smoothed(SCHEMA, hat, 17.9, (13.0, 22.8), 2.0, Guess(18.4, 16.9, 2.9), None, "udp-stream 1.0")
    >>> one.interval95_kmh[0] < one.value_kmh < one.interval95_kmh[1]
    True
    """

    schema: Literal["udp-stream/smoothed/1"]
    hat: Hat
    value_kmh: NonNegative
    interval95_kmh: tuple[NonNegative, NonNegative]
    expected_abs_error_kmh: Annotated[float, msgspec.Meta(ge=0)]
    guess: Guess
    release_id: str | None
    software: str
    trial: bool = False


_ENCODER = msgspec.json.Encoder()


def encode_smoothed(estimate: Smoothed) -> bytes:
    """The record's bytes: JSON on one line.

    >>> hat = Hat("8742d98b6ffffff", 7, (72.83, 21.17), "2022-01-01T04:00:00+00:00", "2022-01-01T05:00:00+00:00")
    >>> one = Smoothed(SCHEMA, hat, 17.9, (13.0, 22.8), 2.0, Guess(18.4, 16.9, 2.9), None, "udp-stream 1.0")
    >>> encode_smoothed(one)[:57]
    b'{"schema":"udp-stream/smoothed/1","hat":{"cell":"8742d98b'
    """
    return _ENCODER.encode(estimate)


def smoothed_schema() -> dict[str, Any]:
    """The estimate's JSON Schema (2020-12), as published in `docs/`.

    >>> sorted(smoothed_schema()["$defs"])
    ['Guess', 'Hat', 'Smoothed']
    """
    return described(Smoothed, SCHEMA)


def smooth_slot(
    records: Sequence[Release],
    memory: Memory,
    day: dt.date,
    max_kmh: float,
    software: str,
) -> list[Smoothed]:
    """Learn the releases of one slot (all of its HATs, at least one), then estimate each HAT and each cell seen before.

    HATs first, in the order of their records, then the other cells, by cell. A record without counts
    is taken for one of a single plate and ping, so its interval is wide.

    >>> from udp_stream.release.record import decode
    >>> from udp_stream.testing import released_slot
    >>> records = [decode(payload) for payload in released_slot().payloads.values()]
    >>> estimates = smooth_slot(records, Memory(), dt.date(2022, 1, 1), max_kmh=65.0, software="udp-stream 1.0")
    >>> [record.status for record in records], [one.release_id == of.release_id for one, of in zip(estimates, records)]
    (['released', 'withheld_few_plates'], [True, True])
    """
    cells = np.array([int(record.hat.cell, 16) for record in records], dtype=np.uint64)
    prior, rest = prior_of_records(records), rest_of_records(records)
    measured = np.array([at for at, record in enumerate(records) if record.mean is not None], dtype=np.int64)
    value, noise, is_clipped = _measured([record for record in records if record.mean is not None])
    if measured.size:
        chosen = SlotPrior(prior.by_row, prior.by_hat[measured], prior.features[measured])
        memory.learn(day, Observed(cells[measured], chosen, value, noise + rest[measured], is_clipped))
    here = memory.predict(day, cells, prior)
    gain, mean = np.zeros(len(records)), here.mean.copy()
    gain[measured] = rest[measured] / (rest[measured] + noise)
    mean[measured] += gain[measured] * (value - here.skew * is_clipped - here.mean[measured])
    variance = here.variance * (1 - gain) ** 2 + rest * (1 - gain)
    plates = np.array([max(1, record.plates) for record in records])
    samples = np.array([max(1, record.samples) for record in records])
    taken = of_few_pings(variance + plates_differ(plates, gain), samples)
    low, high = ends(mean, taken, prior.features)
    guess = memory.guess(day, prior)
    constant = float(np.average(mean, weights=samples))
    slot = _Slot(records[0].hat, constant, max_kmh, software, records[0].trial)
    named = [(record.hat, record.release_id) for record in records]
    estimates = slot.estimates(named, mean, (low, high), variance, guess.mean)
    return estimates + _elsewhere(sorted(set(memory.cells(day)) - set(cells.tolist())), memory, day, slot)


def _elsewhere(cells: Sequence[int], memory: Memory, day: dt.date, slot: _Slot) -> list[Smoothed]:
    """Cells that were observed before and have no pings in the slot."""
    prior = SlotPrior(np.zeros(0), np.zeros(len(cells)), np.zeros((len(cells), PER_HAT)))
    there, guess = memory.predict(day, np.array(cells, dtype=np.uint64), prior), memory.guess(day, prior)
    rest = float(mean_variance(np.array([1]), np.array([0]), 1)[0])
    one_plate = plates_differ(np.ones(1, dtype=np.int64), np.zeros(1))
    variance = there.variance + rest
    low, high = ends(there.mean, variance + one_plate, prior.features)
    hats = [msgspec.structs.replace(slot.hat, cell=cell_name(cell), center=cell_center(cell)) for cell in cells]
    return slot.estimates([(hat, None) for hat in hats], there.mean, (low, high), variance, guess.mean)


class _Slot(msgspec.Struct, frozen=True):
    """What the estimates of a slot say alike; `hat` is any of its HATs."""

    hat: Hat
    constant: float
    max_kmh: float
    software: str
    trial: bool

    def estimates(
        self,
        named: Sequence[tuple[Hat, str | None]],
        mean: Floats,
        ends95: tuple[Floats, Floats],
        variance: Floats,
        by_counts: Floats,
    ) -> list[Smoothed]:
        """Of HATs and the ids of their releases; `by_counts` is what their counts and the city alone say."""
        off = (at_speed(mean) * np.sqrt(variance)).tolist()
        kmh, low, high, counts = (map(self._clip, one.tolist()) for one in (mean, *ends95, by_counts))
        constant = self._clip(self.constant)
        return [
            Smoothed(
                SCHEMA, hat, value, interval, round(_MEAN_ABS * apart, 3),
                Guess(constant, guess, round(_mean_distance(abs(guess - value), apart), 3)), release_id, self.software,
                self.trial,
            )
            for (hat, release_id), value, interval, apart, guess in zip(
                named, kmh, zip(low, high, strict=True), off, counts, strict=True
            )
        ]  # fmt: skip

    def _clip(self, kmh: float) -> float:
        return round(min(max(kmh, 0.0), self.max_kmh), 3)


def _mean_distance(apart: float, off: float) -> float:
    """E|x| of a normal variable around `apart` with the deviation `off`: how far a truth is from a guess that is so far
    from the estimate.

    >>> _mean_distance(0.0, 1.0), round(_mean_distance(3.0, 1.0), 3), _mean_distance(3.0, 0.0)
    (0.798, 3.001, 3.0)
    """
    if not off:
        return apart
    ratio = apart / off
    return _MEAN_ABS * off * math.exp(-(ratio**2) / 2) + apart * math.erf(ratio / math.sqrt(2))


def prior_of_records(records: Sequence[Release]) -> SlotPrior:
    """What the records' forecasts read of counts; 0 for records that have none.

    >>> from udp_stream.release.record import decode
    >>> from udp_stream.testing import released_slot
    >>> records = [decode(payload) for payload in released_slot().payloads.values()]
    >>> prior_of_records(records).by_hat.tolist()  # nothing was forecast of these
    [0.0, 0.0]
    """
    priors = np.zeros((len(records), 1 + PER_HAT))
    for at, record in enumerate(records):
        if record.forecast is not None and len(record.forecast.prior) == 1 + PER_HAT:
            priors[at] = record.forecast.prior
    return SlotPrior(np.zeros(0), priors[:, 0], priors[:, 1:])


def rest_of_records(records: Sequence[Release]) -> Floats:
    """Variance of each HAT's rest; from its counts where the record has no forecast: as if all plates sent alike.

    >>> from udp_stream.release.record import decode
    >>> from udp_stream.testing import released_slot
    >>> records = [decode(payload) for payload in released_slot().payloads.values()]
    >>> rest_of_records(records).round(1).tolist()  # six pings of four plates; one of one
    [60.5, 239.0]
    """
    return np.array([_rest(record) for record in records])


def _rest(record: Release) -> float:
    if record.forecast is not None:
        return record.forecast.rest_kmh**2
    plates, samples = max(1, record.plates), max(1, record.samples)
    pings = np.full(plates, max(1, samples // plates))
    return float(mean_variance(pings, np.zeros(plates, dtype=np.int64), 1)[0])


def _measured(records: Sequence[Release]) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Values, variances, and whether a narrow clip took them."""
    found = [_value_of(record) for record in records]
    values, variances = (np.array([one[which] for one in found]) for which in (0, 1))
    return (
        values,
        variances,
        np.array([record.mean is not None and record.mean.mechanism == NAME for record in records]),
    )


def _value_of(record: Release) -> tuple[float, float]:
    forecast, mean = record.forecast, record.mean
    if forecast is not None and forecast.measured_kmh is not None and forecast.measured_deviation_kmh is not None:
        return forecast.measured_kmh, forecast.measured_deviation_kmh**2
    if mean is None:
        raise ValueError("expected a release with a mean")
    return mean.value_kmh, (_PER_NOISE * mean.expected_abs_error_kmh) ** 2
