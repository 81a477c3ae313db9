"""How much counts alone tell of speeds: pings per plate in a HAT are dwell time, and dwell time is 1 / speed.

`python -m benchmarks.dwell FILE:U:ZONE ...`, at H3 7, 1 h, no noise: over all HATs, weighed by pings, the mean absolute
error of one city-wide mean, that of a line a + b log(samples / plates) with the two numbers that fit the same file
best, and their ratio. docs/privacy-model.md quotes it.
"""

from __future__ import annotations

import argparse

import numpy as np

from benchmarks.feeds import Feed, feed_of
from udp_stream.units import QUANTA_PER_KMH


def errors_of(feed: Feed) -> tuple[float, float]:
    """The errors of the baseline guess and of the line, km/h."""
    hats = []
    for counts, values in feed.slots():
        for rows in map(counts.rows, range(counts.cells.size)):
            speeds = values.of_rows(rows)
            hats.append((speeds.mean() / QUANTA_PER_KMH, speeds.size, rows.stop - rows.start))
    truth, samples, plates = np.array(hats).T
    weight, dwell = samples / samples.sum(), np.log(samples / plates)
    mean, centred = weight @ truth, dwell - weight @ dwell
    slope = (weight * centred) @ truth / (weight @ centred**2)
    return float(weight @ abs(truth - mean)), float(weight @ abs(truth - mean - slope * centred))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("feeds", nargs="+", metavar="FILE:U:ZONE")
    for name in parser.parse_args().feeds:
        feed = feed_of(name)
        constant, line = errors_of(feed)
        print(f"{feed.name}: baseline guess {constant:.2f} km/h, line {line:.2f} km/h, ratio {line / constant:.2f}")


if __name__ == "__main__":
    main()
