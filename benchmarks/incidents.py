"""Does the map show what happens? Speeds in the ten busiest cells times a factor, for two hours, on the real road.

*Shown*: the share of the change that the estimates of the same slots show, beside the same run without it. *Held*: the
share of these HATs whose 95 % interval holds the truth. *Released*: the share with a release of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.forecast_days import OURS, Day, joined, run
from udp_stream.forecast.model import Coefficients
from udp_stream.settings import load

WINDOWS = (8, 10), (12, 14), (16, 18), (20, 22)
FACTORS = 0.4, 0.7, 1.6
BUSIEST = 10
"""Cells, by the pings of the day."""


@dataclass(frozen=True, slots=True)
class Incident:
    """What one run says of the HATs of one incident: arrays, one line a HAT."""

    plates: NDArray[np.int64]
    truth: NDArray[np.float64]
    change: NDArray[np.float64]
    shown: NDArray[np.float64]
    held: NDArray[np.bool_]
    measured: NDArray[np.bool_]
    news: NDArray[np.float64]


def busiest(day: Day) -> NDArray[np.uint64]:
    """The cells with the most pings of the day."""
    cells = np.concatenate([counts.cells for counts, _ in day.slots])
    names, at = np.unique(cells, return_inverse=True)
    return names[np.argsort(-np.bincount(at, weights=day.pings), kind="stable")[:BUSIEST]]


def with_incident(day: Day, cells: NDArray[np.uint64], window: tuple[int, int], factor: float) -> Day:
    """The day up to the end of the window, with other speeds there; speeds stay in [0, U]."""
    most, first, slots = load(None, day.feed.flags, {}).policy.max_speed, 0, []
    for counts, values in day.slots:
        hour = day.hour[first]
        first += counts.cells.size
        if hour >= window[1]:
            break
        if hour >= window[0]:
            hit = np.repeat(np.isin(counts.cells, cells), np.diff(values.starts[counts.hat_rows]))
            speed = np.where(hit, np.minimum(np.rint(values.speed * factor), most), values.speed)
            values = replace(values, speed=speed.astype(values.speed.dtype))
        slots.append((counts, values))
    return joined(day.feed, tuple(slots))


def incidents(
    day: Day,
    seed: int,
    prior: Coefficients | None,
    flags: Sequence[str],
    window: tuple[int, int],
    factors: Sequence[float],
) -> list[Incident]:
    """One run for each factor, and one without."""
    cells = busiest(day)
    here = with_incident(day, cells, window, 1.0)
    if not len(here.slots) or not (here.hour >= window[0]).any():
        return []
    before = run([here], seed, prior, (*OURS, *flags))[0]
    chosen = (here.hour >= window[0]) & np.isin(np.concatenate([counts.cells for counts, _ in here.slots]), cells)
    found = []
    for factor in factors:
        other = with_incident(day, cells, window, factor)
        after = run([other], seed, prior, (*OURS, *flags))[0]
        columns = (
            here.plates,
            other.truth,
            other.truth - here.truth,
            after.value - before.value,
            (after.low <= other.truth) & (other.truth <= after.high),
            after.measured,
            after.news,
        )
        found.append(Incident(*(column[chosen] for column in columns)))
    return found


def summary(found: Sequence[Incident], plates_min: int) -> tuple[float, float, float, float, int]:
    """Shown, held, released, news above a half, and how many HATs, of those of so many plates."""
    q = [one.plates >= plates_min for one in found]
    change = np.concatenate([one.change[at] for one, at in zip(found, q, strict=True)])
    shown = np.concatenate([one.shown[at] for one, at in zip(found, q, strict=True)])
    held = np.concatenate([one.held[at] for one, at in zip(found, q, strict=True)])
    measured = np.concatenate([one.measured[at] for one, at in zip(found, q, strict=True)])
    news = np.concatenate([one.news[at] for one, at in zip(found, q, strict=True)])
    if not change.size:
        return (np.nan,) * 4 + (0,)
    return shown.sum() / change.sum(), held.mean(), measured.mean(), (news > 0.5).mean(), change.size
