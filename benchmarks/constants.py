"""The guesses: how far one city-wide mean, variance and CDF are off, at H3 4 to 9 and slots of 1 and 6 hours.

`python -m benchmarks.constants FILE:U:ZONE ...`. One guess for every HAT of a feed, from all of its accepted pings:
their mean; the HATs' variances, weighed by pings; their CDF. For means also constant + counts (`+ counts`): the line in
log(samples / plates) that fits all HATs' means best, by pings. Errors over the HATs of at least 10 plates, weighed by
pings: mean absolute ones of mean (km/h) and variance ((km/h)^2), root mean square ones of CDF values (shares) at 0 and
the ends of `EQUAL_BINS` equal bins of [0, U]; served: the share of all pings in these HATs.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from benchmarks.feeds import Feed, feed_of
from benchmarks.words import words
from udp_stream.mechanisms.cdfs.bins import zero_and_equal_bins
from udp_stream.release.rehearsal import line_on_counts
from udp_stream.units import QUANTA_PER_KMH

MIN_PLATES, EQUAL_BINS = 10, 20
RESOLUTIONS, SLOTS = range(4, 10), ("1h", "6h")


@dataclass(frozen=True, slots=True)
class Guess:
    """The errors of the guesses, and the share of pings in the HATs that they are over."""

    mean_kmh: float
    counts_kmh: float
    variance_kmh2: float
    cdf_rms: float
    served: float


def guess_of(feed: Feed) -> Guess:
    """Over the feed's HATs of at least `MIN_PLATES` plates; the guesses are from all of them."""
    bins = zero_and_equal_bins(EQUAL_BINS, feed.policy().max_speed / QUANTA_PER_KMH)
    found, sizes = [], []
    for counts, values in feed.slots():
        for hat, plates in enumerate(np.diff(counts.hat_rows).tolist()):
            speeds = values.of_rows(counts.rows(hat))
            below = np.cumsum(np.bincount(bins.bin_of(speeds), minlength=bins.count)) / speeds.size
            found.append((speeds.size, speeds.mean() / QUANTA_PER_KMH, speeds.var() / QUANTA_PER_KMH**2, *below))
            sizes.append(plates)
    return _errors(np.array(found), np.array(sizes))


def _errors(hats: NDArray[np.float64], plates: NDArray[np.int64]) -> Guess:
    """Columns: pings, mean, variance, CDF values; a row for each HAT, with its plates."""
    large = plates >= MIN_PLATES
    city = np.average(hats[:, 1:], axis=0, weights=hats[:, 0])
    off, pings = hats[large, 1:] - city, hats[large, 0]
    mean, variance = np.average(np.abs(off[:, :2]), axis=0, weights=pings)
    squared = np.average((off[:, 2:] ** 2).mean(axis=1), weights=pings)
    line = np.abs(line_on_counts(hats[:, 1], hats[:, 0], plates.astype(np.float64)) - hats[:, 1])
    counts = np.average(line[large], weights=pings)
    served = pings.sum() / hats[:, 0].sum()
    return Guess(float(mean), float(counts), float(variance), float(np.sqrt(squared)), float(served))


def main() -> None:
    arguments = words(__doc__, "FILE:U:ZONE", "+")
    print(f"{'':<34}{'H3, slot':>10}{'mean':>8}{'+ counts':>10}{'variance':>10}{'CDF rms':>9}{'served':>8}")
    for argument, resolution, slot in product(arguments, RESOLUTIONS, SLOTS):
        feed = feed_of(argument, f"hat.resolution={resolution}", f"hat.slot={slot}")
        guess = guess_of(feed)
        print(
            f"{feed.name:<34}{f'{resolution}, {slot}':>10}{guess.mean_kmh:>8.2f}{guess.counts_kmh:>10.2f}"
            f"{guess.variance_kmh2:>10.1f}{guess.cdf_rms:>9.3f}{guess.served:>8.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
