"""Train the counts prior: `python -m benchmarks.train_prior FILE:U:ZONE ...` prints `SHIPPED` of
`forecast/model.py`.

Give days with a licence that allows it. Slots are of one hour; H3 6, 7 and 8 are trained apart, as
what a long stay in a HAT means depends on how large it is. Each plate in a HAT weighs by how
precisely its pings tell its mean. Nothing of a file is printed but the coefficients of a ridge
regression over all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from textwrap import wrap

import numpy as np
from numpy.typing import NDArray

from benchmarks.feeds import Feed, feed_of
from benchmarks.words import words
from udp_stream.base.units import QUANTA_PER_KMH
from udp_stream.forecast.model import CLIP, Coefficients, expanded, features_of
from udp_stream.mechanisms.widths import plate_variance

Floats = NDArray[np.float64]
RIDGE = 300.0
TRAINED = 6, 7, 8


def rows_of(feed: Feed) -> tuple[Floats, Floats, Floats, Floats]:
    """Columns, relative speed and weight of each plate in a HAT; features of each HAT."""
    by_row = []
    by_hat = []
    speeds = []
    pings = []
    grid = feed.policy().grid
    for counts, values in feed.slots():
        features = features_of(counts, grid)
        by_row.append(expanded(features.by_row))
        by_hat.append(features.by_hat)
        speeds.append(
            np.add.reduceat(values.speed, values.starts[:-1]) / counts.count / QUANTA_PER_KMH
        )
        pings.append(counts.count)
    speed = np.concatenate(speeds)
    count = np.concatenate(pings)
    weight = 1 / plate_variance(count)
    relative = speed / np.average(speed, weights=count) - 1
    return np.vstack(by_row), relative, weight * (weight.size / weight.sum()), np.vstack(by_hat)


def trained(feeds: Sequence[Feed]) -> Coefficients:
    """The coefficients that fit these feeds."""
    parts = [rows_of(feed) for feed in feeds]
    columns, relative, weight, by_hat = (
        np.concatenate([part[at] for part in parts]) for at in range(4)
    )
    centre = np.average(columns, axis=0, weights=weight)
    scale = np.sqrt(np.average((columns - centre) ** 2, axis=0, weights=weight))
    standard = np.clip((columns - centre) / scale, -CLIP, CLIP)
    standard -= np.average(standard, axis=0, weights=weight)
    target = relative - np.average(relative, weights=weight)
    gram = (standard * weight[:, None]).T @ standard + RIDGE * np.eye(scale.size)
    slope = np.linalg.solve(gram, (standard * weight[:, None]).T @ target)
    return Coefficients(centre, scale, slope, by_hat.mean(axis=0), by_hat.std(axis=0))


def written(by_resolution: Mapping[int, Coefficients], names: Sequence[str]) -> Iterator[str]:
    """The Python text, line by line."""
    yield "# fmt: off"
    yield "SHIPPED = {resolution: Coefficients(*map(np.array, columns)) for resolution, columns in {"
    for resolution, coefficients in by_resolution.items():
        columns = (getattr(coefficients, field.name).tolist() for field in fields(coefficients))
        texts = (f"({', '.join(f'{value:.5g}' for value in column)})" for column in columns)
        text = f"{resolution}: ({', '.join(texts)}),"
        yield from wrap(
            text, 120, initial_indent=" " * 4, subsequent_indent=" " * 8, break_on_hyphens=False
        )
    yield "}.items()}"
    yield "# fmt: on"
    yield f'"""By H3 resolution. Trained on {", ".join(names)}."""'


def main() -> None:
    arguments = words(__doc__, "FILE:U:ZONE", "+")
    by_resolution = {}
    names = []
    for resolution in TRAINED:
        feeds = [feed_of(argument, f"hat.resolution={resolution}") for argument in arguments]
        by_resolution[resolution] = trained(feeds)
        names = [feed.name for feed in feeds]
    print("\n".join(written(by_resolution, names)))


if __name__ == "__main__":
    main()
