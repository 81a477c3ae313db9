"""`python -m benchmarks.chop_user_speed`: time and memory of suppression on 10^4 HATs, 10^5 plates and 10^6 pairs.

CHOP-USER, and beside it suppression to a fixed number of HATs per plate.

Shapes differ in how many HATs a plate visits: all about ten, geometric, and two Pareto tails (of index 1.5 and 1.1,
where some plates are in thousands of HATs, as no bus is in one slot). Process time; memory is by how much the peak of
the process grows beyond what the city itself takes. The aim is 10 s and 1 GB on one core.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from functools import partial
from itertools import product

import numpy as np

from benchmarks.words import words
from udp_stream.planning.suppression import Occupancy, Suppression, chop_user, suppress_to
from udp_stream.units import NANO

HATS, PLATES, PAIRS = 10_000, 100_000, 1_000_000
SHAPES = ("equal", "geometric", "pareto 1.5", "pareto 1.1")
EPSILONS = (0.1, 1.0)
HATS_MAX = 5
RULES = {"chop-user": chop_user, f"to {HATS_MAX} HATs": partial(suppress_to, hats_max=HATS_MAX)}


def city(shape: str, seed: int = 0) -> Occupancy:
    """Visits by shape, HATs drawn evenly, geometric counts of about ten."""
    rng = np.random.default_rng(seed)
    hats = np.repeat(np.arange(PLATES), visits(shape, rng))
    pairs = np.unique(rng.integers(0, HATS, hats.size) * PLATES + hats)
    hat, plate = np.divmod(pairs, PLATES)
    _, hat = np.unique(hat, return_inverse=True)
    starts = np.searchsorted(hat, np.arange(int(hat[-1]) + 2))
    return Occupancy(starts, plate, rng.geometric(0.1, plate.size), PLATES)


def visits(shape: str, rng: np.random.Generator) -> np.ndarray:
    """How many HATs each plate draws."""
    mean = PAIRS / PLATES
    if shape == "equal":
        return np.full(PLATES, int(mean))
    if shape == "geometric":
        return rng.geometric(1 / mean, PLATES)
    tail = np.floor(rng.pareto(float(shape.removeprefix("pareto ")), PLATES) + 1)
    return np.clip(np.round(tail * mean / tail.mean()), 1, HATS).astype(int)


def run(shape: str, epsilon: float, rule: str) -> None:
    """One line: what was done, how long it took, and how much memory."""
    occupancy = city(shape)
    before = peak_mb()
    started = time.process_time()
    chopped: Suppression = RULES[rule](occupancy, round(epsilon * NANO))
    took = time.process_time() - started
    hats = f"K {chopped.hats_before} to {chopped.hats_after}"
    what = f"{shape:<12}{epsilon:>5g}  {rule:<12}{occupancy.plate.size:>10,} pairs"
    print(f"{what}  {hats:<16}{took:>6.1f} s{peak_mb() - before:>6.0f} MB")


def peak_mb() -> float:
    """The most that this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Every shape, epsilon and rule in a process of its own, so that peaks are its own."""
    if len(sys.argv) == 4:
        run(sys.argv[1], float(sys.argv[2]), sys.argv[3])
        return
    words(__doc__)
    for rule, shape, epsilon in product(RULES, SHAPES, EPSILONS):
        subprocess.run([sys.executable, "-m", "benchmarks.chop_user_speed", shape, str(epsilon), rule], check=True)


if __name__ == "__main__":
    main()
