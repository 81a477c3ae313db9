"""How many more releases a plate's budget buys when it is charged its own share: from a feed's counts alone.

`python -m benchmarks.budget_shares FEED:U:ZONE ...`, feeds as for `replay`. For each plate, its HATs divided by the sum
of its charges in units of epsilon; printed are the median plate, the 10th and the 90th percentile. A plate all of whose
samples are left out is charged next to nothing: "free".
"""

from __future__ import annotations

import numpy as np

from benchmarks.feeds import Feed, feed_of
from benchmarks.words import words
from udp_stream.planning.hat_plan import plan_hat
from udp_stream.planning.terms import terms_of
from udp_stream.units import NANO

FIXED, AUTOMATIC = "release.mean_epsilon=1", "release.mean_epsilon=auto"

WAYS = {
    "baseline": (FIXED, "release.mean=baseline"),
    "array-averaging, best-fit": (FIXED, "release.mean=array-averaging"),
    "array-averaging, wrap-around": (FIXED, "release.mean=array-averaging", "release.grouping=wrap-around"),
    "levy": (FIXED, "release.mean=levy"),
    "optimal": (FIXED, "release.mean=optimal"),
    "auto": (FIXED, "release.mean=auto"),
    "auto, epsilon automatic": (AUTOMATIC, "release.mean=auto"),
    "variance": ("release.variance_epsilon=1",),
    "cdf": ("release.cdf_epsilon=1",),
}
MIN_PLATES = 2, 10
"""Of HATs that are counted: all of which there is something to release, and those that are released by default."""


def times_more(feed: Feed, hats: list[tuple[np.ndarray, np.ndarray]], way: str) -> np.ndarray:
    """For each plate: HATs over charges, at epsilon 1 for one statistic."""
    policy = feed.policy(*WAYS[way])
    nanos = {"variance": (0, NANO, 0), "cdf": (0, 0, NANO)}.get(way, (NANO, 0, 0))
    visits, charged = np.zeros((2, 1 + max(int(plates.max()) for plates, _ in hats)))
    for plates, counts in hats:
        visits[plates] += 1
        charged[plates] += plan_hat(counts, terms_of(policy, *nanos), policy).charges / NANO
    there = visits > 0
    ratios: np.ndarray = visits[there] / charged[there]
    return ratios


def main() -> None:
    arguments = words(__doc__, "FILE:U:ZONE", "+")
    print(f"{'feed':<30}{'HATs of':>12}{'':<32}{'HATs':>6}{'median':>9}{'p10':>7}{'p90':>7}")
    for argument in arguments:
        feed = feed_of(argument)
        slots = [slot for slot, _ in feed.slots()]
        for least in MIN_PLATES:
            hats = [
                (slot.plate[slot.rows(hat)], slot.count[slot.rows(hat)])
                for slot in slots
                for hat in np.flatnonzero(np.diff(slot.hat_rows) >= least).tolist()
            ]
            for way in WAYS:
                low, middle, high = np.quantile(times_more(feed, hats, way), (0.1, 0.5, 0.9))
                row = f"{feed.name:<30}{least:>4} plates   {way:<30}{len(hats):>6}"
                print(f"{row}{_times(middle, 9)}{_times(low, 7)}{_times(high, 7)}", flush=True)


def _times(ratio: float, width: int) -> str:
    return f"{'free':>{width}}" if ratio > 1e6 else f"{ratio:>{width - 1}.2f}x"


if __name__ == "__main__":
    main()
