"""Days under add-remove neighbours, in integers: charges, shortened vectors and noise of
`mechanisms/add_remove.py`, the map of `forecast/add_remove.py`. Every slot of a day is closed, with
or without pings, as by the wall clock.

Domains are circles around a city's centre.
"""

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import cos as cosine
from math import hypot, radians, sqrt
from typing import NamedTuple

import h3
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from benchmarks.forecast_days import DRAWN_KMH, Day
from benchmarks.incidents import Incident, busiest, with_incident
from udp_stream.base.units import NANO, QUANTA_PER_KMH
from udp_stream.forecast.add_remove import STAY, AddRemoveEstimates, AddRemoveMemory
from udp_stream.forecast.shape import CityShape, SpreadMemory, family, hat_shapes
from udp_stream.ledger.filters import rho_nano_of
from udp_stream.mechanisms.add_remove import (
    Entries,
    PlateQuery,
    PlateRows,
    allowances,
    entries,
    noised,
    of_day,
    shortened,
)
from udp_stream.mechanisms.cdf import city_bins
from udp_stream.planning.add_remove import AddRemoveRules
from udp_stream.release.add_remove import rows_in
from udp_stream.release.forecaster import MEAN_ABS_PER_SD
from udp_stream.release.sums import NoisedSums, SumsQuery
from udp_stream.settings import load
from udp_stream.testing import SeededEntropy

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

DOMAINS = {"austin": (30.27, -97.74, 26.0), "surat": (21.19, 72.83, 20.0)}
"""Latitude, longitude, km around: by the first word of a feed's name."""

FULL = {
    "austin-capmetro-2015": 30, "austin-capmetro-2016-11": 14, "austin-capmetro-2016-03": 30,
    "austin-capmetro-2017": 30, "surat": 360,
}  # fmt: skip
"""Pings of a whole hour, by how a feed's name begins."""

DELTA = 1e-6
SLOTS = 24


def domain(name: str, resolution: int) -> NDArray[np.uint64]:
    """The public cells of a feed, ascending."""
    lat, lon, km = DOMAINS[name.partition("-")[0]]
    around = int(km / (h3.average_hexagon_edge_length(resolution, unit="km") * sqrt(3))) + 2
    degree = 111.2
    found = []
    for cell in h3.grid_disk(h3.latlng_to_cell(lat, lon, resolution), around):
        north, east = h3.cell_to_latlng(cell)
        if hypot((east - lon) * cosine(radians(lat)), north - lat) * degree <= km:
            found.append(int(cell, 16))
    return np.array(sorted(found), np.uint64)


class Slot(NamedTuple):
    """Secret rows of one slot, and which HATs of the day they are of: cells of the domain, or -1."""

    date: dt.date
    hour: int
    rows: PlateRows
    names: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class AddRemoveRun:
    """Of each HAT of a day, in the order of `Day`; outside of the domain the day's constant, and
    nan. `traffic` is the true one, in bus-hours or plates; `told` its estimate. `cdf` has shares up to
    each km/h with both ends of their band, shape (3, HATs, speeds)."""

    inside: NDArray[np.bool_]
    value: Floats
    low: Floats
    high: Floats
    expected: Floats
    guess: Floats
    news: Floats
    told: Floats
    told_low: Floats
    told_high: Floats
    traffic: Floats
    cdf: Floats

    @property
    def drawn(self) -> NDArray[np.bool_]:
        """What the page draws as more than a guess."""
        return self.inside & (np.round(self.high - self.low, 3) <= DRAWN_KMH)


def slots_of(day: Day, cells: NDArray[np.uint64]) -> Iterator[Slot]:
    """The day's slots that have pings."""
    settings = load(None, day.feed.flags, {})
    for counts, values in day.slots:
        when = dt.datetime.fromisoformat(settings.calendar.slots.iso(counts.start_ms))
        rows = rows_in(cells, counts, values, settings.policy.max_speed)
        yield Slot(when.date(), when.hour, rows, counts.plates)


def numbers(cells: NDArray[np.uint64], domain: NDArray[np.uint64]) -> Integers:
    """Their numbers in the domain; -1 outside."""
    at = np.minimum(np.searchsorted(domain, cells), domain.size - 1)
    return np.where(domain[at] == cells, at, -1)


def run_add_remove(
    days: Sequence[Day], seed: int, epsilon: float = 10.0, plates: bool = False
) -> list[AddRemoveRun]:
    """The days one after another, each with a balance of its own."""
    name = days[0].feed.name
    cells = domain(name, 7)
    rho = rho_nano_of(round(epsilon * NANO), DELTA)
    full = next(pings for known, pings in FULL.items() if name.startswith(known))
    policy = replace(
        load(None, days[0].feed.flags, {}).policy,
        neighbours="add-remove",
        interval_ms=3_600_000 // full,
        period_seconds=86_400,
        budget_nano=rho,
        plates=plates,
    )
    rules = AddRemoveRules.of(policy, cells)
    sigma = rules.sigma / QUANTA_PER_KMH
    memory = AddRemoveMemory(cells, sigma, full, 1.0, rules.max_kmh, plates)
    bins = city_bins(policy.max_speed)
    shapes = SpreadMemory(bins.edges_kmh[1:])
    nobody = PlateRows(*np.zeros((4, 0), np.int64), np.zeros((0, bins.count), np.int64))
    runs = []
    for day in days:
        slots = {(slot.date, slot.hour): slot for slot in slots_of(day, cells)}
        estimates: dict[tuple[dt.date, int], tuple[AddRemoveEstimates, CityShape, bool]] = {}
        for date in sorted({date for date, _ in slots}):
            entropy = SeededEntropy(seed)
            one = _DayOf(memory, shapes, rules, date, rho, entropy)
            for hour in range(SLOTS):
                nothing = Slot(date, hour, nobody, ())
                found = one.learn(slots.get((date, hour), nothing))
                told = shapes.told(date)
                estimates[date, hour] = found, told or family(bins.edges_kmh[1:]), told is not None
            one.close()
        runs.append(_run_of(day, cells, estimates, plates, full))
    return runs


class _DayOf:
    """A day of plates, each with its balance, as the runtimes have it: sums of slots with the city's,
    and from the second day on those of the whole day."""

    def __init__(
        self, memory: AddRemoveMemory, shapes: SpreadMemory, rules: AddRemoveRules, date: dt.date,
        rho: int, entropy: SeededEntropy,
    ) -> None:  # fmt: skip
        self._memory = memory
        self._shapes = shapes
        self._rules = rules
        self._date = date
        self._entropy = entropy
        self._rho = rho
        self._is_first = memory.is_first(date)
        self._for_day = 0 if self._is_first else rules.day_nano
        self._plates: dict[bytes, int] = {}
        self._left = np.zeros(0, np.int64)
        self._entries: list[Entries] = []

    def learn(self, slot: Slot) -> AddRemoveEstimates:
        rules, hours = self._rules, float(slot.hour)
        forecast = self._memory.forecast(self._date, hours)
        query = rules.query(_quanta(forecast), is_first=self._is_first)
        at = np.array([self._plates.setdefault(one, len(self._plates)) for one in slot.names], int)
        more = len(self._plates) - self._left.size
        self._left = np.append(self._left, np.full(more, self._rho))
        left = self._left[at]
        vectors = entries(slot.rows, query)
        allowed = allowances(left - self._for_day, SLOTS - slot.hour, rules.active)
        charged = np.minimum(vectors.charges(left.size, query), allowed)
        self._left[at] = left - charged
        if self._for_day:
            of_morning = self._memory.morning(self._date)[slot.hour]
            morning = PlateQuery(_quanta(of_morning), rules.full, rules.day_sigma)
            for_day = entries(slot.rows, morning)
            self._entries.append(for_day._replace(plate=at[for_day.plate]))
        sums = self._noised(vectors, charged, query, f"{self._date}-{slot.hour}")
        found = self._memory.learn(self._date, hours, sums.kmh, forecast, sums.sigma_kmh)
        if sums.city is not None:
            self._memory.learn_city(self._date, hours, *sums.city)
        if sums.spread is not None:
            self._shapes.learn(self._date, *sums.spread)
        return found

    def close(self) -> None:
        if not self._for_day:
            return
        mean = self._memory.over_service(self._date)
        query = PlateQuery(_quanta(mean), self._rules.full, self._rules.day_sigma)
        together = Entries(*(np.concatenate(column) for column in zip(*self._entries, strict=True)))
        vectors = of_day(together, self._rules.cells.size)
        charged = np.minimum(vectors.charges(self._left.size, query), self._left)
        sums = self._noised(vectors, charged, query, f"{self._date}")
        self._memory.learn_day(self._date, *sums.day, mean)

    def _noised(
        self, vectors: Entries, charged: Integers, query: PlateQuery, name: str
    ) -> NoisedSums:
        (_, bits), *_ = self._entropy.streams([name])
        sums = noised(shortened(vectors, charged, query), query.columns, query, bits)
        return NoisedSums.of(SumsQuery.of(self._rules.cells, query, "1d", self._rho), sums)


def _quanta(kmh: Floats) -> Integers:
    return np.rint(kmh * QUANTA_PER_KMH).astype(np.int64)


def _run_of(
    day: Day,
    cells: NDArray[np.uint64],
    estimates: dict[tuple[dt.date, int], tuple[AddRemoveEstimates, CityShape, bool]],
    plates: bool,
    full: int,
) -> AddRemoveRun:
    columns = list[Floats]()
    cdfs = list[Floats]()
    for (counts, _), slot in zip(day.slots, slots_of(day, cells), strict=True):
        one, city, is_told = estimates[slot.date, slot.hour]
        at = numbers(counts.cells, cells)
        each = np.ones(counts.plate.size) if plates else np.minimum(counts.count / full, 0.5)
        found = np.array(
            [
                one.value, one.low, one.high, one.expected_abs_error, one.guess, one.news,
                one.traffic, one.traffic_low, one.traffic_high,
            ]
        )[:, at]  # fmt: skip
        found[:, at < 0] = np.nan
        found[0, at < 0] = day.constant
        columns.append(np.vstack([found, np.add.reduceat(each, counts.hat_rows[:-1]), at >= 0]))
        cdf = np.full((3, at.size, int(city.edges_kmh[-1]) + 1), np.nan)
        if is_told:
            many = np.rint(one.traffic / STAY).astype(np.int64)
            shapes = hat_shapes(city, one.value, one.expected_abs_error / MEAN_ABS_PER_SD, many)
            cdf[:, at >= 0] = np.stack([shapes.cdf, shapes.low, shapes.high])[:, at[at >= 0]]
        cdfs.append(cdf)
    *found_of, inside = np.hstack(columns)
    return AddRemoveRun(inside > 0, *found_of, np.concatenate(cdfs, axis=1))


def add_remove_incidents(
    day: Day, seed: int, window: tuple[int, int], factors: Sequence[float], epsilon: float
) -> list[Incident]:
    """As `benchmarks/incidents.py` has them, one a factor; none where the recording has no such
    hours."""
    if not ((day.hour >= window[0]) & (day.hour < window[1])).any():
        return []
    cells = busiest(day)
    usual, *others = (with_incident(day, cells, window, by) for by in (1.0, *factors))
    before, *after = (run_add_remove([one], seed, epsilon)[0] for one in (usual, *others))
    hit = (usual.hour >= window[0]) & np.isin(
        np.concatenate([counts.cells for counts, _ in usual.slots]), cells
    )
    found = []
    for other, run in zip(others, after, strict=True):
        held = (run.low <= other.truth) & (other.truth <= run.high)
        change = other.truth - usual.truth
        shown = run.value - before.value
        columns = usual.plates, change, shown, held, run.inside, run.news, run.drawn
        found.append(Incident(*(column[hit] for column in columns)))
    return found
