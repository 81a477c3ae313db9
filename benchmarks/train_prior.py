"""Train the counts prior: `python -m benchmarks.train_prior FILE:U:ZONE ... > udp_stream/forecast/coefficients.py`.

Slots are of one hour; H3 6, 7 and 8 apart. Of a file only the coefficients of a ridge regression are printed: give days
with a licence that allows it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from textwrap import wrap

import numpy as np
from numpy.typing import NDArray

from benchmarks.feeds import Feed, feed_of
from benchmarks.words import words
from udp_stream.forecast.model import CLIP, Coefficients, expanded, features_of
from udp_stream.mechanisms.widths import plate_variance
from udp_stream.units import QUANTA_PER_KMH

Floats = NDArray[np.float64]
RIDGE = 300.0
TRAINED = 6, 7, 8


def rows_of(feed: Feed) -> tuple[Floats, Floats, Floats, Floats]:
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


def written(by_resolution: Mapping[int, Coefficients], names: Sequence[str]) -> Iterator[str]:
    yield '"""The coefficients of the counts prior, made by `python -m benchmarks.train_prior`: numbers only.'
    yield ""
    yield "Trained on (CapMetrics, MIT licence):"
    yield from names
    yield '"""'
    yield ""
    yield "# fmt: off"
    yield "BY_RESOLUTION = {"
    for resolution, coefficients in by_resolution.items():
        yield f"    {resolution}: {{"
        for field in fields(coefficients):
            values = ", ".join(f"{value:.5g}" for value in getattr(coefficients, field.name).tolist())
            yield from wrap(f'"{field.name}": ({values}),', 120, initial_indent=" " * 8, subsequent_indent=" " * 12)
        yield "    },"
    yield "}"


def main() -> None:
    arguments = words(__doc__, "FILE:U:ZONE", "+")
    by_resolution, names = {}, []
    for resolution in TRAINED:
        feeds = [feed_of(argument, f"hat.resolution={resolution}") for argument in arguments]
        by_resolution[resolution], names = trained(feeds), [feed.name for feed in feeds]
    print("\n".join(written(by_resolution, names)))


if __name__ == "__main__":
    main()
