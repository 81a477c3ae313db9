"""Train the counts prior: `python -m benchmarks.train_prior FILE:U:ZONE ... > udp_stream/forecast/coefficients.py`.

Give days with a licence that allows it. At H3 6, 7 and 8 and slots of one hour; each plate in a HAT weighs by how
precisely its pings tell its mean. Nothing of a file is printed but the
coefficients of a ridge regression over all of it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.feeds import Feed, feed_of
from udp_stream.forecast.features import features_of
from udp_stream.forecast.prior import CLIP, Coefficients, expanded
from udp_stream.mechanisms.speed_spread import plate_variance
from udp_stream.units import QUANTA_PER_KMH

Floats = NDArray[np.float64]
RIDGE = 300.0


def rows_of(feed: Feed) -> tuple[Floats, Floats, Floats, Floats]:
    """Columns, relative speed and weight of each plate in a HAT; features of each HAT."""
    by_row, by_hat, speeds, pings = [], [], [], []
    for counts, values in feed.slots():
        features = features_of(counts)
        by_row.append(expanded(features.by_row))
        by_hat.append(features.by_hat)
        speeds.append(np.add.reduceat(values.speed, values.starts[:-1]) / counts.count / QUANTA_PER_KMH)
        pings.append(counts.count)
    speed, count = np.concatenate(speeds), np.concatenate(pings)
    weight = 1 / plate_variance(count)
    relative = speed / np.average(speed, weights=count) - 1
    return np.vstack(by_row), relative, weight * (weight.size / weight.sum()), np.vstack(by_hat)


def trained(feeds: Sequence[Feed]) -> Coefficients:
    """The coefficients that fit these feeds."""
    parts = [rows_of(feed) for feed in feeds]
    columns, relative, weight, by_hat = (np.concatenate([part[at] for part in parts]) for at in range(4))
    centre = np.average(columns, axis=0, weights=weight)
    scale = np.sqrt(np.average((columns - centre) ** 2, axis=0, weights=weight))
    standard = np.clip((columns - centre) / scale, -CLIP, CLIP)
    standard -= np.average(standard, axis=0, weights=weight)
    target = relative - np.average(relative, weights=weight)
    gram = (standard * weight[:, None]).T @ standard + RIDGE * np.eye(scale.size)
    slope = np.linalg.solve(gram, (standard * weight[:, None]).T @ target)
    return Coefficients(centre, scale, slope, by_hat.mean(axis=0), by_hat.std(axis=0))


def written(coefficients: Coefficients, names: Sequence[str]) -> Iterator[str]:
    """The Python file, line by line."""
    yield '"""The coefficients of the counts prior, made by `python -m benchmarks.train_prior`: numbers only.'
    yield ""
    yield "Trained on (CapMetrics, MIT licence):"
    yield from names
    yield '"""'
    columns = (coefficients.centre, coefficients.scale, coefficients.slope, coefficients.hat_centre)
    for name, values in zip(("CENTRE", "SCALE", "COEFFICIENTS", "HAT_CENTRE"), columns, strict=True):
        yield from _column(name, values)
    yield from _column("HAT_SCALE", coefficients.hat_scale)


def _column(name: str, values: Floats) -> Iterator[str]:
    yield ""
    yield f"{name} = ("
    yield from (f"    {value:.5g}," for value in values.tolist())
    yield ")"


def main() -> None:
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    feeds = [feed_of(argument) for argument in sys.argv[1:]]
    print("\n".join(written(trained(feeds), [feed.name for feed in feeds])))


if __name__ == "__main__":
    main()
