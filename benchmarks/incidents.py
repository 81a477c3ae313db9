"""Does the map show what happens? Speeds in the ten busiest cells times a factor, for two hours, on
the real road.

*Shown*: the share of the change that estimates of the same slots show. *Held*: of HATs, by their 95
% interval. *Released*: with a release of their own. *Marked*: with `news` above a half; *drawn*:
these, but guesses of the page.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.forecast_days import OURS, Day, joined, run
from udp_stream.forecast.model import Coefficients
from udp_stream.settings import load

WINDOWS = (8, 10), (12, 14), (16, 18), (20, 22)
FACTORS = 0.4, 0.7, 1.6
BUSIEST = 10


@dataclass(frozen=True, slots=True)
class Incident:
    """What one run says of the HATs of one incident: arrays, one line a HAT; speeds in km/h."""

    plates: NDArray[np.int64]
    change: NDArray[np.float64]
    shown: NDArray[np.float64]
    held: NDArray[np.bool_]
    released: NDArray[np.bool_]
    news: NDArray[np.float64]
    drawn: NDArray[np.bool_]


class Figures(NamedTuple):
    """Of several incidents: shares shown, held, released, marked as news, and so on the page; and
    how many HATs."""

    shown: float
    held: float
    released: float
    marked: float
    drawn: float
    hats: int


def busiest(day: Day) -> NDArray[np.uint64]:
    names, at = np.unique(
        np.concatenate([counts.cells for counts, _ in day.slots]), return_inverse=True
    )
    cells: NDArray[np.uint64] = names[
        np.argsort(-np.bincount(at, weights=day.pings), kind="stable")[:BUSIEST]
    ]
    return cells


def with_incident(
    day: Day, cells: NDArray[np.uint64], window: tuple[int, int], factor: float
) -> Day:
    """The day up to the end of the window, with other speeds there; speeds stay in [0, U]."""
    most = load(None, day.feed.flags, {}).policy.max_speed
    first = 0
    slots = []
    for counts, values in day.slots:
        hour = day.hour[first]
        first += counts.cells.size
        if hour >= window[1]:
            break
        if hour >= window[0]:
            hit = np.repeat(np.isin(counts.cells, cells), np.diff(values.starts[counts.hat_rows]))
            speed = np.where(hit, np.minimum(np.rint(values.speed * factor), most), values.speed)
            slots.append((counts, replace(values, speed=speed.astype(values.speed.dtype))))
        else:
            slots.append((counts, values))
    return joined(day.feed, tuple(slots))


def incidents(
    day: Day, seed: int, prior: Coefficients | None, flags: Sequence[str], window: tuple[int, int]
) -> list[Incident]:
    if not ((day.hour >= window[0]) & (day.hour < window[1])).any():
        return []
    cells = busiest(day)
    usual = with_incident(day, cells, window, 1.0)
    before = run([usual], seed, prior, (*OURS, *flags))[0]
    hit = (usual.hour >= window[0]) & np.isin(
        np.concatenate([counts.cells for counts, _ in usual.slots]), cells
    )
    found = []
    for factor in FACTORS:
        other = with_incident(day, cells, window, factor)
        after = run([other], seed, prior, (*OURS, *flags))[0]
        held = (after.low <= other.truth) & (other.truth <= after.high)
        columns = (
            other.truth - usual.truth,
            after.value - before.value,
            held,
            after.measured,
            after.news,
            after.drawn,
        )
        found.append(Incident(usual.plates[hit], *(column[hit] for column in columns)))
    return found


def shown_of(found: Sequence[Incident], plates_min: int) -> Figures:
    """Of the HATs of so many plates, of which there is one."""
    columns = [np.concatenate(column) for column in zip(*map(astuple, found), strict=True)]
    _, change, shown, held, released, news, drawn = (
        column[columns[0] >= plates_min] for column in columns
    )
    marked = news > 0.5
    shares = (float(column.mean()) for column in (held, released, marked, marked & drawn))
    return Figures(float(shown.sum() / change.sum()), *shares, change.size)
