"""`python -m benchmarks.forecast_speed`: what a slot's forecast takes, for 2,000 and 20,000 cells, on one core.

Every HAT has ten plates and every plate ten HATs, around one centre; all HATs of the slot before were released. The
promise is 0.1 s and 1 s a slot for the forecast, for learning the releases, and for the estimates of all HATs. How
long the slot's plan takes around it stands beside that: it is by HATs and plates, as without forecasts.
"""

from __future__ import annotations

import datetime as dt
from math import ceil, sqrt

import h3.api.basic_int as h3
import numpy as np
from msgspec.structs import replace

from benchmarks.__main__ import best_of, say
from benchmarks.words import words
from udp_stream.adapters.settings import load
from udp_stream.forecast.bank import Observed
from udp_stream.forecast.features import features_of
from udp_stream.forecast.memory import Memory
from udp_stream.forecast.prior import prior_of
from udp_stream.forecast.slot import forecast_slot
from udp_stream.planning.around import terms_around
from udp_stream.planning.hat_plan import HatPlans, SlotInPeriod
from udp_stream.release.record import Forecast, Release, decode
from udp_stream.release.smoothed import smooth_slot
from udp_stream.testing import released_slot
from udp_stream.windows.grid import cell_name
from udp_stream.windows.slot_tables import SlotCounts

DAY = dt.date(2024, 1, 8)
PER_HAT = 10
RUNS = 5


def slot(hats: int) -> SlotCounts:
    """A disk of cells; plate i is in ten of them that follow each other."""
    rings = ceil(sqrt(hats / 3))
    cells = np.sort(np.array(h3.grid_disk(h3.latlng_to_cell(21.17, 72.83, 9), rings), np.uint64)[:hats])
    plate = np.sort((np.arange(hats)[:, None] + np.arange(PER_HAT)) % hats, axis=1).ravel()
    pings = np.random.default_rng(hats).integers(1, 60, plate.size)
    names = tuple(b"%08d" % name for name in range(hats))
    return SlotCounts(0, 3_600_000, names, cells, np.arange(0, plate.size + 1, PER_HAT), plate, pings, 0)


def records_of(counts: SlotCounts) -> list[Release]:
    """A record for each HAT, with a mean around a forecast."""
    forecast = Forecast(18.0, 5.0, 3.0, (0.1,) * 7, measured_kmh=20.0, measured_deviation_kmh=3.0)
    like = replace(decode(next(iter(released_slot().payloads.values()))), forecast=forecast)
    return [replace(like, hat=replace(like.hat, cell=cell_name(cell))) for cell in counts.cells.tolist()]


def bench(hats: int) -> None:
    """One slot: its parts, and what the promise is about."""
    counts, memory = slot(hats), Memory()
    prior, ones = prior_of(counts), np.ones(hats)
    seen = Observed(counts.cells, prior, 20 * ones, 9 * ones, ones > 0)
    memory.learn(DAY, seen)
    features = best_of(RUNS, lambda: features_of(counts))
    forecast = best_of(RUNS, lambda: forecast_slot(counts, memory, DAY, 65.0))
    learn = best_of(RUNS, lambda: memory.learn(DAY, seen))
    records = records_of(counts)
    smooth = best_of(2, lambda: smooth_slot(records, memory, DAY, 65.0, "bench"))
    policy = load(None, ("release.mean=forecast-clip", "release.min_plates=3"), {}).policy
    around, in_period = forecast_slot(counts, memory, DAY, 65.0), SlotInPeriod("May", 3, 20)
    plan = best_of(2, lambda: terms_around(counts, around, in_period, policy, HatPlans(policy.public)))
    say(
        f"{hats:,} cells",
        f"{forecast + smooth:.3f} s a slot",
        f"features {features:.3f}, forecast with them {forecast:.3f}, learning {learn:.3f}, "
        f"estimates with it {smooth:.3f}; plans {plan:.3f}",
    )


def main() -> None:
    for hats in (2_000, 20_000):
        bench(hats)


if __name__ == "__main__":
    words(__doc__)
    main()
