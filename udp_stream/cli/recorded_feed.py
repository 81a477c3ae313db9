"""A recorded feed as HATs with their speeds, for experiments: all in memory, nothing charged, nothing released."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from udp_stream.adapters.files.sources import Progress, read_messages
from udp_stream.adapters.settings import Settings
from udp_stream.errors import UsageError
from udp_stream.experiments.base import DataSet, Hat
from udp_stream.mechanisms.grouping import SamplesPerPlate
from udp_stream.pings.decoder import PingDecoder, Pings
from udp_stream.planning.worst_case import Occupancy
from udp_stream.windows.grid import cells_of
from udp_stream.windows.slot_tables import SlotCounts, SlotPings, SlotValues, tabulate


def read_feed(path: str, settings: Settings, progress: Progress | None = None) -> DataSet:
    """All HATs of a file, by slot and cell, and the occupancy of its busiest slot.

    Lateness does not matter here: the whole file is looked at. Raises UsageError if no ping in it is accepted.
    """
    messages = [message for batch in read_messages(path, progress=progress) for message in batch]
    pings, _ = PingDecoder(settings.ping_rules).decode(messages)
    if not len(pings):
        raise UsageError(f"{path}: expected pings, and none was accepted")
    tables = [tabulate(columns) for columns in _slots(pings, settings)]
    hats = tuple(hat for counts, values in tables for hat in _hats(counts, values))
    busiest = max((counts for counts, _ in tables), key=lambda counts: int(counts.count.sum()))
    who = Occupancy(busiest.hat_rows, busiest.plate, busiest.count, len(busiest.plates))
    name = Path(path).name.removesuffix(".gz").rpartition(".")[0] or path
    return DataSet(name, True, settings.policy.range, hats, who)


def _slots(pings: Pings, settings: Settings) -> Sequence[SlotPings]:
    """The pings slot by slot; plates keep the order of their names, so that runs are alike."""
    cells = cells_of(pings.lat, pings.lon, settings.hat.resolution)
    starts, ends = settings.calendar.slots.place(pings.time_ms)
    names, of_plate = np.unique(np.asarray(pings.plates), return_inverse=True)
    plate = of_plate[pings.plate].astype(np.uint32)
    hashes = tuple(b"%08d" % i for i in range(names.size))
    found = []
    for start in np.unique(starts):
        here = np.flatnonzero(starts == start)
        found.append(
            SlotPings(
                start_ms=int(start),
                end_ms=int(ends[here[0]]),
                plates=hashes,
                plate=plate[here],
                time=(pings.time_ms[here] - start).astype(np.uint32),
                cell=cells[here],
                speed=pings.speed[here],
            )
        )
    return found


def _hats(counts: SlotCounts, values: SlotValues) -> list[Hat]:
    rows = [counts.rows(hat) for hat in range(counts.cells.size)]
    return [Hat(SamplesPerPlate(counts.count[some]), values.of_rows(some)) for some in rows]
