"""Parts of the design, taken out of the real code: settings, and names of modules that are given other values."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.forecast_days import changed
from udp_stream.forecast.bank import FilterBank
from udp_stream.forecast.memory import Memory
from udp_stream.forecast.prior import CountsRead
from udp_stream.forecast.slot import EDGE_KMH, SlotForecast, forecast_slot
from udp_stream.mechanisms.clip_width import USUAL, ClipWidth, clip_widths
from udp_stream.mechanisms.noise import Cost
from udp_stream.planning import around
from udp_stream.release import forecaster
from udp_stream.windows.slot_tables import SlotCounts

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
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


def _wide(_pings: Integers, first: Integers, _off_kmh: Floats, _cost: Cost) -> list[ClipWidth]:
    """It cuts at 0 and U alone, and needs no gain."""
    return [ClipWidth(1e3, 1.0)] * first.size


def _one_width(_pings: Integers, first: Integers, _off_kmh: Floats, _cost: Cost) -> list[ClipWidth]:
    """The same in every HAT."""
    return [USUAL] * first.size


def _no_gain(pings: Integers, first: Integers, off_kmh: Floats, cost: Cost) -> list[ClipWidth]:
    """What is clipped is not divided by what passes."""
    return [one._replace(gain=1.0) for one in clip_widths(pings, first, off_kmh, cost)]


ABLATION: dict[str, tuple[Sequence[str], Changes]] = {
    "nothing": ((), ()),
    "counts prior": (("forecast.counts=off",), ()),
    "counts per plate": (("forecast.counts=published",), ()),
    "forecast per plate": ((), ((forecaster, "forecast_slot", _alike),)),
    "narrow clip": ((), ((around, "clip_widths", _wide),)),
    "width by HAT": ((), ((around, "clip_widths", _one_width),)),
    "gain": ((), ((around, "clip_widths", _no_gain),)),
    "history": ((), ((FilterBank, "learn", _forgets),)),
}
"""What is taken out: settings, and (where, name, value)."""


@contextmanager
def taken_out(changes: Changes) -> Iterator[None]:
    """All of them at once."""
    with ExitStack() as stack:
        for where, name, value in changes:
            stack.enter_context(changed(where, **{name: value}))
        yield
