"""A recorded feed as HATs with their speeds, for experiments: all in memory, nothing charged, nothing released."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from udp_stream.adapters.files.sources import Progress, read_messages
from udp_stream.adapters.settings import Settings
from udp_stream.errors import UsageError
from udp_stream.experiments.base import DataSet, Hat, Positions
from udp_stream.mechanisms.grouping import SamplesPerPlate
from udp_stream.planning.suppression import Occupancy
from udp_stream.queries.plane import Plane
from udp_stream.windows.slots import slots_of
from udp_stream.windows.tables import SlotCounts, SlotValues, cells_of


def read_feed(path: str, settings: Settings, progress: Progress | None = None) -> DataSet:
    """All HATs of a file, by slot and cell, the occupancy of its busiest slot, and where plates were.

    Lateness does not matter here: the whole file is looked at. Raises UsageError if no ping in it is accepted.
    """
    form = settings.source.form
    messages = [message for batch in read_messages(path, progress=progress, form=form) for message in batch]
    pings, _ = settings.decoder.decode(messages)
    if not len(pings):
        raise UsageError(f"{path}: expected pings, and none was accepted")
    names, of_plate = np.unique(np.asarray(pings.plates), return_inverse=True)  # by name, so that runs are alike
    cells, hashes = cells_of(pings.lat, pings.lon, settings.hat.resolution), [b"%08d" % i for i in range(names.size)]
    grid = settings.calendar.slots
    tables = list(slots_of(hashes, of_plate[pings.plate], pings.time_ms, cells, pings.speed, grid))
    hats = tuple(hat for counts, values in tables for hat in _hats(counts, values))
    busiest = max((counts for counts, _ in tables), key=lambda counts: int(counts.count.sum()))
    who = Occupancy(busiest.hat_rows, busiest.plate, busiest.count, len(busiest.plates))
    name = Path(path).name.removesuffix(".gz").rpartition(".")[0] or path
    plane = Plane(round(float(np.median(pings.lat)), 2), round(float(np.median(pings.lon)), 2))
    where = plane.quanta(pings.lat, pings.lon)
    positions = Positions(name, of_plate[pings.plate].astype(np.int64), pings.time_ms, where)
    return DataSet(name, True, settings.policy.range, hats, who, positions=positions)


def _hats(counts: SlotCounts, values: SlotValues) -> list[Hat]:
    return [Hat(SamplesPerPlate(counts.count[rows]), values.of_rows(rows)) for rows in counts.each_rows()]
