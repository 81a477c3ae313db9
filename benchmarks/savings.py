"""`python -m benchmarks.savings [--repeats N] FILE:LATITUDE:LONGITUDE ...`: errors and savings on recorded positions.

Each repeat takes a moment of the day, each plate's latest position in the quarter of an hour before it, and a place
within 1.4 km of one of them. Then, at several budgets per square metre (*Adaptive Privacy Budgeting*, Liang and Yi,
Figures 3 to 5 in kind): a count in a square of 3 km, relative to the truth; a density of 500 m, in parts of the truth;
the 5 nearest, by the sum of their distances. For noise on positions (0) and on distances (1): the baseline's error, and
for c4, c64 and log-c10 the error and the share of the budget that is left; medians, with the 25th and 75th percentile.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from udp_stream.adapters.files.sources import read_messages
from udp_stream.adapters.settings import load
from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.noise.base import Integers
from udp_stream.pings.decoder import PingDecoder
from udp_stream.queries.density import Density
from udp_stream.queries.nearest import Nearest
from udp_stream.queries.plane import QUANTA_PER_METRE, Plane, rho_per_square_metre
from udp_stream.queries.range_count import RangeCount
from udp_stream.queries.regions import Rectangle, positions_inside
from udp_stream.queries.splits import Split
from udp_stream.queries.terms import How, Terms
from udp_stream.testing import seeded_bits

RHOS = 1e-5, 1e-4, 1e-3
SPLITS = {"c4": Split.even(4), "c64": Split.even(64), "log-c10": Split.doubling(10)}
FRESH_MS = 900_000

Asked = Callable[[Terms, Bits], tuple[float, float]]
"""A query under terms: its error, and what it left."""


def moments(argument: str, repeats: int) -> list[Integers]:
    """The positions of all plates at so many moments, in sixteenths of a metre."""
    path, latitude, longitude = argument.rsplit(":", 2)
    messages = [message for batch in read_messages(path) for message in batch]
    pings, _ = PingDecoder(load(None, (), {}).ping_rules).decode(messages)
    plane, rng, found = Plane(float(latitude), float(longitude)), np.random.default_rng(1), []
    where = plane.quanta(pings.lat, pings.lon)
    for moment in rng.choice(pings.time_ms, repeats):
        fresh = np.flatnonzero((pings.time_ms <= moment) & (pings.time_ms > moment - FRESH_MS))
        order = fresh[np.argsort(pings.time_ms[fresh], kind="stable")][::-1]
        _, latest = np.unique(pings.plate[order], return_index=True)
        found.append(where[order[latest]])
    return found


def count_at(where: Integers, place: NDArray[np.float64]) -> Asked:
    query = RangeCount(Rectangle(*place, 3000, 3000))
    truth = positions_inside(query.region, where)

    def asked(terms: Terms, bits: Bits) -> tuple[float, float]:
        pie = query.elimination(terms)
        state = pie.run(where, bits)
        return abs(query.answer(terms, pie, state).value - truth) / max(1, truth), terms.saved(state)

    return asked


def density_at(where: Integers, place: NDArray[np.float64]) -> Asked:
    query = Density(*place, bandwidth=500)
    truth = max(query.truth(where), 1 / where.shape[0])

    def asked(terms: Terms, bits: Bits) -> tuple[float, float]:
        pie = query.elimination(terms)
        state = pie.run(where, bits)
        return abs(query.answer(terms, pie, state).value - truth) / truth, terms.saved(state)

    return asked


def nearest_to(where: Integers, place: NDArray[np.float64]) -> Asked:
    query = Nearest.to_stop(5, *place)
    distance = query.distance(where.astype(np.float64))
    truth = float(distance[query.truth(where)].sum())

    def asked(terms: Terms, bits: Bits) -> tuple[float, float]:
        pie = query.elimination(terms)
        state = pie.run(where, bits)
        return float(distance[query.answer(terms, pie, state).plates].sum()) / truth - 1, terms.saved(state)

    return asked


QUERIES = {"count": count_at, "density": density_at, "nearest": nearest_to}


def quartiles(values: list[float]) -> str:
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    return f"{middle:6.3f} ({low:.3f}-{high:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("feeds", nargs="+", metavar="FILE:LATITUDE:LONGITUDE")
    parser.add_argument("--repeats", type=int, default=100)
    asked = parser.parse_args()
    hows: tuple[How, ...] = ("point", "distance")
    for feed in asked.feeds:
        rng = np.random.default_rng(2)
        city = [where for where in moments(feed, 2 * asked.repeats) if len(where) >= 10][: asked.repeats]
        places = [rng.choice(where) / QUANTA_PER_METRE + rng.uniform(-1000, 1000, 2) for where in city]
        print(
            f"{feed}: {np.mean([len(where) for where in city]):.0f} plates on average, {len(city)} moments", flush=True
        )
        for name, query in QUERIES.items():
            for rho in RHOS:
                for method, how in enumerate(hows):
                    line = f"{name:<8} rho {rho:g} method {method}"
                    for label, split in ({"BM": Split.even(1)} | SPLITS).items():
                        runs = []
                        for i, (where, place) in enumerate(zip(city, places, strict=True)):
                            terms = Terms.alike(rho_per_square_metre(rho), len(where), how, split)
                            terms = terms.baseline() if label == "BM" else terms
                            runs.append(query(where, place)(terms, seeded_bits(f"{name}/{rho}/{how}/{label}/{i}")))
                        errors, left = zip(*runs, strict=True)
                        line += f" | {label} {quartiles(list(errors))}"
                        line += "" if label == "BM" else f" left {quartiles(list(left))}"
                    print(line, flush=True)


if __name__ == "__main__":
    main()
