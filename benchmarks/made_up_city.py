"""A made-up city whose usual speeds are known: lines over H3 cells, days that differ, drivers, a
ping a minute."""

from collections.abc import Iterator
from dataclasses import dataclass

import h3
import numpy as np
from numpy.typing import NDArray

from udp_stream.base.units import QUANTA_PER_KMH
from udp_stream.settings import load
from udp_stream.windows.slots import slots_of
from udp_stream.windows.tables import SlotCounts, SlotValues

Floats = NDArray[np.float64]

CENTRE = (21.19, 72.83)
RESOLUTION = 7
RADIUS = 4
CELL_KM = 2.3
LINES = 24
LINE_CELLS = (6, 12)
OPENS_H = 6
CLOSES_H = 22
DAY_MS = 86_400_000
HOUR_MS = 3_600_000
MONDAY_MS = 1_704_652_200_000
"""2024-01-08 00:00 at +05:30."""

FLOW = np.array(
    [1.25, 1.05, 0.8, 0.8, 0.9, 1.0, 1.0, 0.95, 0.95, 0.95, 0.9, 0.75, 0.68, 0.75, 0.95, 1.15]
)
"""By hour, from the opening, on the speed of a crowded cell."""

DAY_SD = 0.05
CELL_DAY_SD = 0.06
HAT_SD = 0.07
DRIVER_SD = 0.1
"""Of logarithms: a day's effect on the city, on a cell, on a HAT; and that of a driver, who is
another every day."""

STANDING = 0.28
MOVING_SHAPE = 8.0
"""The share of pings of buses that stand, as in Surat's feed, and the gamma shape of the others'
speeds."""

LAYOVER_MIN = 2, 8
"""Minutes that a bus stands at the end of its line."""

WEEKEND = 1.0, 1.12, 1.18
"""Factors of weekday, Saturday, Sunday where crowded."""


@dataclass
class MadeUpCity:
    """The same seed gives the same lines, buses and usual speeds; `day` draws what happens on a
    day.

    `changed` cells have other speeds from a day on: {cell number: (first day, factor)}.
    """

    seed: int
    buses: int = 300

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        centre = h3.latlng_to_cell(*CENTRE, RESOLUTION)
        disk = sorted(h3.grid_disk(centre, RADIUS))
        self.cells = np.array([int(cell, 16) for cell in disk], dtype=np.uint64)
        at = {cell: number for number, cell in enumerate(disk)}
        self.lines = [self._line(rng, disk, at) for _ in range(LINES)]
        far = np.array([h3.grid_distance(centre, cell) for cell in disk]) / RADIUS
        self.base = (15 + 13 * far) * np.exp(0.2 * rng.normal(size=len(disk)))
        self.crowded = np.clip(1.1 - 0.7 * far + 0.15 * rng.normal(size=len(disk)), 0.1, 1.2)
        self.line_of = np.sort(rng.integers(LINES, size=self.buses))
        self.changed: dict[int, tuple[int, float]] = {}

    def _line(
        self, rng: np.random.Generator, disk: list[str], at: dict[str, int]
    ) -> NDArray[np.int64]:
        least, most = LINE_CELLS
        while True:
            ends = rng.choice(len(disk), 2, replace=False)
            way = [one for one in h3.grid_path_cells(disk[ends[0]], disk[ends[1]]) if one in at]
            if least <= len(way) <= most:
                return np.array([at[one] for one in way])

    def usual(self, day: int) -> Floats:
        """(cells, hours) of that day's class, in km/h, but for what is particular to the day;
        buses' means are its."""
        kind = max(0, day % 7 - 4)
        crowd = self.crowded[:, None] ** np.ones(FLOW.size)
        found: Floats = self.base[:, None] * (1 + crowd * (FLOW * WEEKEND[kind] - 1))
        for cell, (first, factor) in self.changed.items():
            if day >= first:
                found[cell] *= factor
        return np.maximum(found, 4.0)

    def slots(self, day: int, draw: int = 0, hours: tuple[int, int] = (OPENS_H, CLOSES_H)) -> Iterator[
        tuple[SlotCounts, SlotValues]
    ]:  # fmt: skip
        """Pings of a day, by slots of an hour; another `draw` is another day of the same date."""
        rng = np.random.default_rng([self.seed, day, draw])
        cells = self.cells.size
        hours_n = FLOW.size
        effect = DAY_SD * rng.normal() + CELL_DAY_SD * rng.normal(size=(cells, 1)) + HAT_SD * rng.normal(
            size=(cells, hours_n))  # fmt: skip
        speed = self.usual(day) * np.exp(effect)
        driver = np.exp(DRIVER_SD * rng.normal(size=self.buses))
        longest = max(map(len, self.lines))
        ways = np.array(
            [np.pad(line, (0, longest - len(line)), mode="edge") for line in self.lines]
        )[self.line_of]
        length = np.array([len(line) for line in self.lines])[self.line_of] * CELL_KM
        km = rng.random(self.buses) * length
        way = np.where(rng.random(self.buses) < 0.5, 1.0, -1.0)
        begins = OPENS_H * 60 + rng.integers(0, 90, self.buses)
        ends = CLOSES_H * 60 - rng.integers(0, 90, self.buses)
        stands_to = np.zeros(self.buses, dtype=np.int64)
        phase = rng.integers(0, 60_000, self.buses)
        rows = []
        for minute in range(OPENS_H * 60, CLOSES_H * 60):
            here = ways[
                np.arange(self.buses), np.minimum((km / CELL_KM).astype(np.int64), longest - 1)
            ]
            kmh = speed[here, minute // 60 - OPENS_H] * driver
            out = np.flatnonzero((begins <= minute) & (minute < ends))
            moving = rng.gamma(MOVING_SHAPE, kmh[out] / MOVING_SHAPE / (1 - STANDING))
            drives = minute >= stands_to
            said = np.minimum(moving * (rng.random(out.size) >= STANDING) * drives[out], 64.9)
            rows.append(
                (
                    out,
                    self.cells[here[out]],
                    MONDAY_MS + day * DAY_MS + minute * 60_000 + phase[out],
                    said,
                )
            )
            km = km + np.where((begins <= minute) & (minute < ends) & drives, way * kmh / 60, 0.0)
            is_end = (km >= length) | (km <= 0)
            way = np.where(km >= length, -1.0, np.where(km <= 0, 1.0, way))
            stands_to = np.where(
                is_end, minute + 1 + rng.integers(*LAYOVER_MIN, self.buses), stands_to
            )
            km = np.clip(km, 1e-6, length - 1e-6)
        bus, cell, time_ms, said = (np.concatenate(column) for column in zip(*rows, strict=True))
        first, last = (MONDAY_MS + day * DAY_MS + hour * HOUR_MS for hour in hours)
        kept = (first <= time_ms) & (time_ms < last)
        plates = [f"bus{number}".encode().ljust(32) for number in range(self.buses)]
        speeds = np.rint(said[kept] * QUANTA_PER_KMH).astype(np.int64)
        grid = load(None, ("hat.timezone=Asia/Kolkata",), {}).calendar.slots
        yield from slots_of(plates, bus[kept], time_ms[kept], cell[kept], speeds, grid)
