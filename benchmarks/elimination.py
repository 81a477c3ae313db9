"""`python -m benchmarks.elimination [--plates N] [--rounds C]`: whole runs of elimination, in processor seconds.

10^5 plates over 50 km, a budget of 1e-4 per square metre in even parts. One row for each query, with noise on positions
and on distances: the time of a run, the noisy values drawn in it, and the share of all budgets that is left. Below: the
same with nobody leaving, which draws for every plate in every round.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import numpy as np

from udp_stream.adapters.entropy import OsEntropy
from udp_stream.queries.density import Density
from udp_stream.queries.elimination import Everyone
from udp_stream.queries.nearest import Nearest
from udp_stream.queries.plane import rho_per_square_metre
from udp_stream.queries.range_count import RangeCount
from udp_stream.queries.regions import Polygon, Rectangle
from udp_stream.queries.splits import Split
from udp_stream.queries.terms import How, Terms


def queries() -> dict[str, RangeCount | Density | Nearest]:
    """One of each kind."""
    angles = np.linspace(0, 2 * np.pi, 40, endpoint=False)
    ring = np.column_stack((np.cos(angles), np.sin(angles))) * np.where(np.arange(40) % 2, 3000, 2000)[:, None]
    return {
        "count, rectangle": RangeCount(Rectangle(0, 0, 4000, 4000)),
        "count, polygon of 40": RangeCount(Polygon([ring])),
        "density, 500 m": Density(0, 0, 500),
        "nearest 10": Nearest.to_stop(10, 0, 0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plates", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=100)
    asked = parser.parse_args()
    n, split = asked.plates, Split.even(asked.rounds)
    where = np.rint(np.random.default_rng(1).uniform(-25_000, 25_000, (n, 2)) * 16).astype(np.int64)
    _, bits = next(OsEntropy().streams(["benchmark"]))
    hows: tuple[How, ...] = ("distance", "point")
    for name, query in queries().items():
        for how in hows:
            terms = Terms.alike(rho_per_square_metre(1e-4), n, how, split)
            start = time.process_time()
            state = query.elimination(terms).run(where, bits)
            took = time.process_time() - start
            print(
                f"{name:<24}{how:<10}{took:6.2f} s  {int(state.asked.sum()):>11,} values  "
                f"{state.rounds} rounds  {terms.saved(state):.3f} left",
                flush=True,
            )
    for how in hows:
        terms = Terms.alike(rho_per_square_metre(1e-4), n, how, split)
        everyone = replace(RangeCount(Rectangle(0, 0, 4000, 4000)).elimination(terms), rule=Everyone())
        start = time.process_time()
        everyone.run(where, bits)
        took = time.process_time() - start
        print(f"{'nobody leaves':<24}{how:<10}{took:6.2f} s  {n * asked.rounds:>11,} values")


if __name__ == "__main__":
    main()
