"""The records of a slot under "add-remove": the question to every plate, and the noised sums
of their answers.

Both are public: the question follows from settings and earlier sums, and nothing of a plate is in
it. Records of cells, forecasts and estimates follow from them alone, whatever the settings are by
then.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np

from udp_stream.base.arrays import Cells, Floats, Integers
from udp_stream.base.units import QUANTA_PER_KMH
from udp_stream.mechanisms.add_remove import (
    CITY_WEIGHT,
    DAY_WEIGHT,
    GAIN,
    SPREAD,
    WEIGHT,
    PlateQuery,
)
from udp_stream.release.record import Record


class SumsQuery(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    tag="presence.1",
    tag_field="v",
    dict=True,
    omit_defaults=True,
):
    """The terms of a slot's one admission: the domain, the query of every plate (`PlateQuery`), and
    the promise to it.

    `cells` and `forecast` are columns of 8 bytes, little-endian. A ledger keeps terms for ever, and
    refuses other versions: change the tag with the fields. `city` and `spread` are left out
    where they are 0, so that an earlier version reads such terms, and refuses others. Terms of a day have for each cell
    the mean of the forecasts that its residuals are taken around.

    >>> cells, forecast = np.array([0x8742D98B6FFFFFF], np.uint64), np.array([18 * 4096])
    >>> asked = SumsQuery.of(cells, PlateQuery(forecast, full=360, sigma=104_401), "1d", 10**9)
    >>> asked.query.forecast.tolist(), asked.domain.tolist() == cells.tolist()
    ([73728], True)
    """

    cells: bytes
    forecast: bytes
    full: int
    sigma: int
    plates: bool
    period: str
    budget_nano: int
    city: int = 0
    spread: int = 0
    max_speed: int = 0

    @classmethod
    def of(cls, cells: Cells, query: PlateQuery, period: str, budget_nano: int) -> SumsQuery:
        forecast = query.forecast.astype("<i8").tobytes()
        return cls(
            cells.astype("<u8").tobytes(),
            forecast,
            query.full,
            query.sigma,
            query.plates,
            period,
            budget_nano,
            query.city,
            query.spread,
            query.max_speed,
        )

    @cached_property
    def domain(self) -> Cells:
        return np.frombuffer(self.cells, "<u8").astype(np.uint64)

    @cached_property
    def query(self) -> PlateQuery:
        forecast = np.frombuffer(self.forecast, "<i8").astype(np.int64)
        return PlateQuery(
            forecast, self.full, self.sigma, self.plates, self.city, self.spread, self.max_speed
        )

    @property
    def forecast_kmh(self) -> Floats:
        return self.query.forecast / QUANTA_PER_KMH


class NoisedSums(Record, frozen=True):
    """The only draw of a slot, or of a day: sums of residuals and of weights (or plates) of each
    cell, with noise, in quanta; behind them those of the city, and of bins of speed, where these were
    asked.

    >>> asked = SumsQuery.of(np.array([5], np.uint64), PlateQuery(np.array([0]), 360, 104_401), "1d", 10**9)
    >>> sums = NoisedSums.of(asked, np.array([[-4096], [3 * 5 * 4096]]))
    >>> NoisedSums.decode(sums.encode()).kmh.tolist(), sums.amounts.tolist()
    ([[-1.0], [15.0]], [3.0])
    """

    asked: SumsQuery
    residual: tuple[int, ...]
    weight: tuple[int, ...]

    @classmethod
    def of(cls, asked: SumsQuery, sums: Integers) -> NoisedSums:
        return cls(asked, *map(tuple, sums.tolist()))

    @property
    def kmh(self) -> Floats:
        """Sums of the cells, km/h, shape (2, cells)."""
        return self._columns[:, : self.asked.domain.size] / QUANTA_PER_KMH

    @property
    def amounts(self) -> Floats:
        """The sums of weights, or the numbers of plates."""
        return self._columns[1, : self.asked.domain.size] / WEIGHT

    @property
    def sigma_kmh(self) -> float:
        return self.asked.sigma / QUANTA_PER_KMH

    @property
    def city(self) -> WeighedSums | None:
        """Sums of the whole city, where it was asked."""
        if not self.asked.city:
            return None
        return self._weighed(
            self._columns[:, self.asked.domain.size], self.asked.city / GAIN, CITY_WEIGHT
        )

    @property
    def spread(self) -> SpreadSums | None:
        """Time of the whole city at the speeds of each bin, where it was asked."""
        if not self.asked.spread:
            return None
        query = self.asked.query
        unit = SPREAD * query.spread / GAIN
        slots = self._columns[:, query.cells :].T.ravel()[: query.bins] / unit
        return SpreadSums(slots, (query.sigma / unit) ** 2)

    @property
    def day(self) -> WeighedSums:
        """Sums of the cells over a day."""
        return self._weighed(self._columns, 1.0, DAY_WEIGHT)

    @property
    def _columns(self) -> Integers:
        return np.array([self.residual, self.weight])

    def _weighed(self, sums: Integers, gain: float, weight: tuple[int, int]) -> WeighedSums:
        part, whole = weight
        units = gain * np.array([QUANTA_PER_KMH, WEIGHT * part / whole])
        return WeighedSums((sums.T / units).T, (self.asked.sigma / units) ** 2)


class WeighedSums(NamedTuple):
    """Noised sums of residuals in km/h and of weights, and the variances of their noise."""

    sums: Floats
    noise: Floats


class SpreadSums(NamedTuple):
    """Noised sums of plates' time in bins of speed, in whole slots of a plate, and the variance of their
    noise."""

    slots: Floats
    noise: float
