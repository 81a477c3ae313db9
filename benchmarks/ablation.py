"""Parts of the design, taken out of the real code: settings, and names of modules that are given other values."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from udp_stream.forecast.bank import FilterBank
from udp_stream.forecast.memory import Memory
from udp_stream.forecast.prior import CountsRead
from udp_stream.forecast.slot import EDGE_KMH, SlotForecast, forecast_slot
from udp_stream.mechanisms import forecast_clip
from udp_stream.release import forecaster
from udp_stream.windows.slot_tables import SlotCounts

Changes = Sequence[tuple[object, str, object]]


def _alike(
    counts: SlotCounts, memory: Memory, day: dt.date, max_kmh: float, read: CountsRead = "plates"
) -> SlotForecast:
    """Each plate is forecast to drive as fast as its HAT."""
    forecast = forecast_slot(counts, memory, day, max_kmh, read)
    hat = np.repeat(np.arange(counts.cells.size), np.diff(counts.hat_rows))
    return replace(forecast, plates=np.clip(forecast.mean[hat], EDGE_KMH, max_kmh - EDGE_KMH))


def _forgets(self: FilterBank, seen: object) -> None:
    """No release is learnt from; a HAT's estimate still weighs its own."""


_WIDE: Changes = ((forecast_clip, "HALF_WIDTH", 1e3), (forecast_clip, "SHRINKAGE", 1.0))

ABLATION: dict[str, tuple[Sequence[str], Changes]] = {
    "nothing": ((), ()),
    "counts prior": (("forecast.counts=off",), ()),
    "counts per plate": (("forecast.counts=published",), ()),
    "forecast per plate": ((), ((forecaster, "forecast_slot", _alike),)),
    "narrow clip": ((), _WIDE),
    "gain": ((), ((forecast_clip, "SHRINKAGE", 1.0),)),
    "history": ((), ((FilterBank, "learn", _forgets),)),
}
"""What is taken out: settings, and (where, name, value). A wide clip cuts at 0 and U alone, and needs no gain."""
