"""Days under add-remove neighbours, in integers: charges, shortened vectors and noise of
`mechanisms/add_remove.py`, the map of `forecast/add_remove.py`. Every slot of a day is closed, with
or without pings, as by the wall clock.

Domains are circles around a city's centre.
"""

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, hypot, radians, sqrt
from math import cos as cosine
from typing import NamedTuple

import h3
import numpy as np
from numpy.typing import NDArray

from benchmarks.forecast_days import DRAWN_KMH, Day
from benchmarks.incidents import Incident, busiest, with_incident
from udp_stream.forecast.add_remove import AddRemoveEstimates, AddRemoveMemory
from udp_stream.ledger.filters import rho_nano_of
from udp_stream.mechanisms.add_remove import (
    PlateQuery,
    PlateRows,
    allowances,
    entries,
    noised,
    shortened,
)
from udp_stream.settings import load
from udp_stream.testing import SeededEntropy
from udp_stream.units import NANO, QUANTA_PER_KMH

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
ACTIVE = 12
SCALE = 2000
SCALE_WITH_PLATES = 5000
"""(km/h)^2 that the noise of a day of hours is made for."""


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


def sigma_of(rho_nano: int, plates: bool = False) -> int:
    """Quanta, rounded up: for an hour's slots and a day's rho."""
    return ceil(
        sqrt((SCALE_WITH_PLATES if plates else SCALE) * NANO / (2 * rho_nano)) * QUANTA_PER_KMH
    )


class Slot(NamedTuple):
    """Secret rows of one slot, and which HATs of the day they are of: cells of the domain, or -1."""

    date: dt.date
    hour: int
    rows: PlateRows
    names: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class AddRemoveRun:
    """Of each HAT of a day, in the order of `Day`; outside of the domain the day's constant, and
    nan. `traffic` is the true one, in bus-hours or plates; `told` its estimate."""

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

    @property
    def drawn(self) -> NDArray[np.bool_]:
        """What the page draws as more than a guess."""
        return self.inside & (np.round(self.high - self.low, 3) <= DRAWN_KMH)


def slots_of(day: Day, cells: NDArray[np.uint64]) -> Iterator[Slot]:
    """The day's slots that have pings."""
    grid = load(None, day.feed.flags, {}).calendar.slots
    for counts, values in day.slots:
        when = dt.datetime.fromisoformat(grid.iso(counts.start_ms))
        hat = np.repeat(np.arange(counts.cells.size), np.diff(counts.hat_rows))
        at = numbers(counts.cells, cells)[hat]
        sums = (
            np.add.reduceat(values.speed, values.starts[:-1]) if counts.plate.size else values.speed
        )
        rows = PlateRows(*(column[at >= 0] for column in (counts.plate, at, counts.count, sums)))
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
    sigma = sigma_of(rho, plates)
    most = load(None, days[0].feed.flags, {}).policy.max_speed / QUANTA_PER_KMH
    memory = AddRemoveMemory(cells, sigma / QUANTA_PER_KMH, full, 1.0, most, plates)
    runs = []
    for day in days:
        slots = {(slot.date, slot.hour): slot for slot in slots_of(day, cells)}
        estimates: dict[tuple[dt.date, int], AddRemoveEstimates] = {}
        balances: dict[tuple[dt.date, bytes], int] = {}
        for date in sorted({date for date, _ in slots}):
            for hour in range(SLOTS):
                nothing = Slot(
                    date, hour, PlateRows(*(np.zeros(0, np.int64) for _ in range(4))), ()
                )
                slot = slots.get((date, hour), nothing)
                forecast = memory.forecast(date, float(hour))
                query = PlateQuery(
                    np.rint(forecast * QUANTA_PER_KMH).astype(np.int64), full, sigma, plates
                )
                vectors = entries(slot.rows, query)
                left = np.array(
                    [balances.get((date, plate), rho) for plate in slot.names], np.int64
                )
                wanted = vectors.charges(left.size, query)
                charged = np.minimum(wanted, allowances(left, SLOTS - hour, ACTIVE))
                for plate, have in zip(slot.names, (left - charged).tolist(), strict=True):
                    balances[date, plate] = have
                (_, bits), *_ = SeededEntropy(seed).streams([f"{date}-{hour}"])
                sums = noised(shortened(vectors, charged, query), cells.size, query, bits)
                estimates[date, hour] = memory.learn(
                    date, float(hour), sums / QUANTA_PER_KMH, forecast
                )
        runs.append(_run_of(day, cells, estimates, plates, full))
    return runs


def _run_of(
    day: Day,
    cells: NDArray[np.uint64],
    estimates: dict[tuple[dt.date, int], AddRemoveEstimates],
    plates: bool,
    full: int,
) -> AddRemoveRun:
    columns = list[Floats]()
    for (counts, _), slot in zip(day.slots, slots_of(day, cells), strict=True):
        one = estimates[slot.date, slot.hour]
        at = numbers(counts.cells, cells)
        each = np.ones(counts.plate.size) if plates else np.minimum(counts.count / full, 0.5)
        found = np.array(
            [
                one.value, one.low, one.high, one.expected_abs_error, one.guess, one.anomaly,
                one.traffic, one.traffic_low, one.traffic_high,
            ]
        )[:, at]  # fmt: skip
        found[:, at < 0] = np.nan
        found[0, at < 0] = day.constant
        columns.append(np.vstack([found, np.add.reduceat(each, counts.hat_rows[:-1]), at >= 0]))
    *found_of, inside = np.hstack(columns)
    return AddRemoveRun(inside > 0, *found_of)


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
