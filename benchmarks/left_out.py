"""Is `auto` made for the feeds that it is shown on? Choose its figures without a feed, and look at that feed.

`python -m benchmarks.left_out FILE:U:ZONE FILE:U:ZONE ...`, at least two; HATs as in `benchmarks.mean_errors`.

For every variant of the two figures of the reference speeds and of the tolerance, `auto`'s error on each feed over the
least of the single mechanisms'. Then, for each feed, the variant that is best on the others, and what it comes to here.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from benchmarks.feeds import feed_of
from benchmarks.mean_errors import WAYS, hats_of, row_of
from benchmarks.words import words
from udp_stream.mechanisms.means import accuracy, automatic

VARIANCES, BETWEEN, TOLERANCES = (0.04, 1 / 12, 0.25), (1 / 3, 1 / 2, 2 / 3, 1.0), (1.0, 1.03, 1.1)
REPEATS = 10
SINGLE = [way for way in WAYS if way not in ("auto", "papers' E(m)")]


def main() -> None:
    arguments = words(__doc__, "FILE:U:ZONE", "+")
    if len(arguments) < 2:
        raise SystemExit("expected at least two of FILE:U:ZONE, got one")
    feeds = [feed_of(argument) for argument in arguments]
    hats = [hats_of(feed) for feed in feeds]
    best = [
        min(row_of(feed, of_feed, way, 1.0, REPEATS).error for way in SINGLE)
        for feed, of_feed in zip(feeds, hats, strict=True)
    ]
    variants = list(product(VARIANCES, BETWEEN, TOLERANCES))
    ratios = np.zeros((len(variants), len(feeds)))
    print("variance, share between plates, tolerance: error over the least of the single mechanisms', by feed")
    for at, (accuracy.VARIANCE, accuracy.BETWEEN, automatic.AS_GOOD) in enumerate(variants):
        for number, (feed, of_feed) in enumerate(zip(feeds, hats, strict=True)):
            ratios[at, number] = row_of(feed, of_feed, "auto", 1.0, REPEATS).error / best[number]
        print(_figures(variants[at]), "  ", "  ".join(f"{ratio:.3f}" for ratio in ratios[at]), flush=True)
    for number, feed in enumerate(feeds):
        chosen = int(np.delete(ratios, number, axis=1).mean(axis=1).argmin())
        print(f"{feed.name}: chosen on the others {_figures(variants[chosen])}, here {ratios[chosen, number]:.3f}")


def _figures(variant: tuple[float, float, float]) -> str:
    return "  ".join(f"{figure:.3f}" for figure in variant)


if __name__ == "__main__":
    main()
