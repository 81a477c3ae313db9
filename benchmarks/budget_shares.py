"""How many more releases a plate's budget buys when it is charged its own share: from a feed's counts alone.

`python -m benchmarks.budget_shares FEED:U:ZONE ...`, feeds as for `replay`. For each plate, its HATs divided by the sum
of its charges in units of epsilon; printed are the median plate, the 10th and the 90th percentile.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np

from udp_stream.adapters.settings import load
from udp_stream.adapters.sources import read_messages
from udp_stream.hats import cells_of
from udp_stream.pings import PingDecoder
from udp_stream.plan import plan_hat, terms_of
from udp_stream.slots import SlotCounts, SlotPings, tabulate
from udp_stream.units import NANO

WAYS = {
    "baseline": "release.mean=baseline",
    "array-averaging, best-fit": "release.mean=array-averaging",
    "array-averaging, wrap-around": "release.grouping=wrap-around",
    "levy": "release.mean=levy",
    "optimal": "release.mean=optimal",
    "auto": "release.mean=auto",
    "variance": "release.variance_epsilon=1",
    "cdf": "release.cdf_epsilon=1",
}
MIN_PLATES = 10


def slots(path: str, flags: tuple[str, ...]) -> Iterator[SlotCounts]:
    """The counts of each slot of a feed, plates numbered alike in all of them."""
    settings = load(None, flags, {})
    messages = [message for batch in read_messages(path) for message in batch]
    pings, _ = PingDecoder(settings.ping_rules).decode(messages)
    cells = cells_of(pings.lat, pings.lon, 7)
    starts, ends = settings.calendar.slots.place(pings.time_ms)
    names, plate = np.unique(np.asarray(pings.plates)[pings.plate], return_inverse=True)
    for start in np.unique(starts):
        here = starts == start
        columns = SlotPings(
            int(start),
            int(ends[here][0]),
            tuple(b"%06d" % i for i in range(names.size)),
            plate[here].astype(np.uint32),
            (pings.time_ms[here] - start).astype(np.uint32),
            cells[here],
            np.zeros(int(here.sum()), dtype=np.int32),
        )
        yield tabulate(columns)[0]


def times_more(hats: list[tuple[np.ndarray, np.ndarray]], flags: tuple[str, ...], way: str) -> np.ndarray:
    """For each plate: HATs over charges, at epsilon 1 for one statistic."""
    policy = load(None, (*flags, WAYS[way]), {}).policy
    nanos = {"variance": (0, NANO, 0), "cdf": (0, 0, NANO)}.get(way, (NANO, 0, 0))
    visits, paid = np.zeros((2, 1 + max(int(plates.max()) for plates, _ in hats)))
    for plates, counts in hats:
        visits[plates] += 1
        paid[plates] += plan_hat(counts, terms_of(policy, *nanos), policy).charges / NANO
    there = visits > 0
    ratios: np.ndarray = visits[there] / paid[there]
    return ratios


def main() -> None:
    print(f"{'feed':<40}{'':<30}{'HATs':>6}{'median':>9}{'p10':>7}{'p90':>7}")
    for argument in sys.argv[1:]:
        path, speed, zone = argument.rsplit(":", 2)
        flags = ("hat.slot=1h", "hat.resolution=7", f"speed.max_kmh={speed}", f"hat.timezone={zone}")
        hats = [
            (slot.plate[slot.rows(hat)], slot.count[slot.rows(hat)])
            for slot in slots(path, flags)
            for hat in np.flatnonzero(np.diff(slot.hat_rows) >= MIN_PLATES).tolist()
        ]
        for way in WAYS:
            low, middle, high = np.quantile(times_more(hats, flags, way), (0.1, 0.5, 0.9))
            print(f"{path.rpartition('/')[2]:<40}{way:<30}{len(hats):>6}{middle:>8.2f}x{low:>6.2f}x{high:>6.2f}x")


if __name__ == "__main__":
    main()
