"""`python -m benchmarks.region_share [--repeats N] FILE:LATITUDE:LONGITUDE`: thresholds on a day's positions.

Each repeat takes a moment of the day and a square of 3 km near a plate, as `benchmarks.savings` does, and asks whether
the share of plates in it is below q: by one noisy sum of all plates a round (64 even rounds; an edge of 500 m), and by
a range count of the same budget, where each plate has noise of its own. Of each: how often the answer is wrong, by the
square's sharp edge, and the median share of the budget that is left; of the threshold also how often it is sure, and
how often it is wrong then, by its own edge.
"""

from __future__ import annotations

import argparse

import numpy as np

from benchmarks.savings import moments
from udp_stream.mechanisms.noise.base import Integers
from udp_stream.queries.asked import AskedTogether
from udp_stream.queries.plane import QUANTA_PER_METRE, Plane, rho_per_square_metre
from udp_stream.queries.range_count import RangeCount
from udp_stream.queries.region_share import RegionShare
from udp_stream.queries.regions import Rectangle, positions_inside
from udp_stream.queries.splits import Split
from udp_stream.queries.terms import Terms
from udp_stream.testing import seeded_bits

RHOS = 1e-7, 1e-6
SHARES = 0.02, 0.05, 0.1, 0.2
EDGE_M = 500.0


Outcome = tuple[bool, float, bool, bool]


def threshold(region: Rectangle, where: Integers, share: float, rho: float, seed: str) -> Outcome:
    """Whether the answer is wrong, what it left, whether it is sure, and wrong by its own edge."""
    query, terms = RegionShare(region, share, EDGE_M), Terms.alike(rho_per_square_metre(rho), 1, split=Split.even(64))
    asked = AskedTogether.over(Plane(0, 0), terms, query, len(where))
    state, bits = asked.pie.begin(), seeded_bits(seed)
    while (due := asked.pie.due(state)) is not None:
        state = asked.pie.advance(state, asked.pie.draw(state, due.plates, where, bits))
    found = asked.found(state)
    below = positions_inside(region, where) < share * len(where)
    wrong = found.below != (query.truth(where) < share)
    return found.below != below, terms.saved(state), bool(found.sure), bool(found.sure) and wrong


def count(region: Rectangle, where: Integers, share: float, rho: float, seed: str) -> tuple[bool, float]:
    """The same of a range count: whether the answer is wrong, and what it left."""
    query, terms = RangeCount(region), Terms.alike(rho_per_square_metre(rho), len(where))
    pie = query.elimination(terms)
    state = pie.run(where, seeded_bits(seed))
    limit = share * len(where)
    below = query.answer(terms, pie, state).value < limit
    return below != (positions_inside(region, where) < limit), terms.saved(state)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("feed", metavar="FILE:LATITUDE:LONGITUDE")
    parser.add_argument("--repeats", type=int, default=100)
    given = parser.parse_args()
    rng = np.random.default_rng(2)
    city = [where for where in moments(given.feed, 2 * given.repeats) if len(where) >= 10][: given.repeats]
    regions = [
        Rectangle(*(rng.choice(where) / QUANTA_PER_METRE + rng.uniform(-1000, 1000, 2)), 3000, 3000) for where in city
    ]
    print(f"{given.feed}: {np.mean([len(where) for where in city]):.0f} plates on average, {len(city)} moments")
    for rho in RHOS:
        for share in SHARES:
            seeds = [f"{rho}/{share}/{i}" for i in range(len(city))]
            asked = list(zip(regions, city, seeds, strict=True))
            found = np.array([threshold(region, where, share, rho, seed) for region, where, seed in asked], float)
            counted = np.array([count(region, where, share, rho, seed) for region, where, seed in asked], float)
            wrong, left, sure, surely_wrong = found.T
            line = f"rho {rho:g} share {share:<4} | threshold wrong {wrong.mean():.3f}, left {np.median(left):.2f}, "
            line += f"sure {sure.mean():.2f}, wrong though sure {surely_wrong.mean():.3f} | count wrong "
            print(f"{line}{counted[:, 0].mean():.3f}, left {np.median(counted[:, 1]):.2f}", flush=True)


if __name__ == "__main__":
    main()
