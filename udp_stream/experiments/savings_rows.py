"""What `savings-range`, `savings-kde` and `savings-knn` share: queries, budgets, splits, and a row of their table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from udp_stream.experiments.base import Integers
from udp_stream.ledger.port import Bits
from udp_stream.queries.radial import Draw
from udp_stream.queries.splits import Split
from udp_stream.queries.terms import How, Terms

SOURCE = "Adaptive Privacy Budgeting, Section 7.1"
RHOS = (1e-5, 1e-4, 1e-3)
"""Per square metre."""

RHO_SMALL = 1e-6
"""Where noise is 707 m: what the paper says of small budgets is tried here, too, with range counts."""

SPLITS = {"BM": Split.even(1), "c4": Split.even(4), "c64": Split.even(64), "log-c10": Split.doubling(10)}
HOWS: tuple[How, ...] = ("point", "distance")
UNSHIFTED = "distance, threshold 0"
"""The same noisy distances, counted against 0 instead of the shifted threshold."""

SURE = 3.0
"""Standard errors beyond which a difference is no chance."""

Once = tuple[float, float]
"""How far an answer is off, with its sign, and the share of the budget that is left. An error is without the sign."""

Noisy = tuple[Bits, Draw]
"""Bits, and how noise is drawn from them."""

Ask = Callable[[Integers, tuple[float, float], float, Terms, Noisy], Mapping[str, Once]]
"""A query at a place, with its parameter: for each way to count what was drawn once."""


@dataclass(frozen=True, slots=True)
class SavingsRow:
    """One query, parameter, budget, method and split, over its repetitions. `bias` is the mean error with its sign.

    >>> row = row_of("town", "savings-knn", 5.0, 1e-4, "point", "c4", [(-0.1, 0.5), (0.3, 0.7)])
    >>> row.repetitions, row.error_mean, round(row.error_spread, 3), round(row.bias, 3), row.saved_mean
    (2, 0.2, 0.071, 0.1, 0.6)
    """

    data: str
    query: str
    parameter: float
    rho: float
    privatisation: str
    split: str
    repetitions: int
    error_mean: float
    error_25: float
    error_75: float
    error_spread: float
    saved_mean: float
    saved_25: float
    saved_75: float
    bias: float = 0.0
    bias_spread: float = 0.0


def row_of(
    data: str, query: str, parameter: float, rho: float, how: str, split: str, runs: Sequence[Once]
) -> SavingsRow:
    """The row of these runs; a spread is the standard deviation of a mean.

    >>> row_of("town", "savings-knn", 5.0, 1e-4, "point", "c4", [(0.1, 0.5)]).error_spread
    0.0
    """
    off, saved = np.array(runs).T
    errors, root = np.abs(off), np.sqrt(off.size)
    of_errors = errors.mean(), *np.quantile(errors, (0.25, 0.75)), errors.std() / root
    of_savings = saved.mean(), *np.quantile(saved, (0.25, 0.75))
    found = map(float, (*of_errors, *of_savings, off.mean(), off.std() / root))
    return SavingsRow(data, query, parameter, rho, how, split, len(runs), *found)


@dataclass(frozen=True, slots=True)
class BesideRow:
    """Two ways on the same moments and places: their errors, and by how much the first errs less, pair by pair.

    `spread` is the standard deviation of that mean difference; `first_saved` the share of the budget that the first
    leaves.

    >>> asked, point, distance = ("town", "savings-kde", 500.0, 1e-4, "BM"), [(0.1, 0.0)], [(0.3, 0.0)]
    >>> beside(asked, ("point", point), ("distance", distance)).is_less
    True
    """

    data: str
    query: str
    parameter: float
    rho: float
    split: str
    first: str
    second: str
    repetitions: int
    first_error: float
    second_error: float
    less_by: float
    spread: float
    first_saved: float = 0.0

    @property
    def is_less(self) -> bool:
        """The first errs less, by more than chance."""
        return self.less_by > SURE * self.spread

    @property
    def is_more(self) -> bool:
        """It errs more."""
        return self.less_by < -SURE * self.spread


Asked = tuple[str, str, float, float, str]
"""Data, query, parameter, rho and split."""


def beside(asked: Asked, first: tuple[str, Sequence[Once]], second: tuple[str, Sequence[Once]]) -> BesideRow:
    """The row of the runs of two ways, by their names.

    >>> asked = "town", "savings-kde", 500.0, 1e-4, "BM"
    >>> beside(asked, ("point", [(0.1, 0.0)]), ("distance", [(0.3, 0.0)])).spread
    0.0
    """
    ours, theirs = (np.array([abs(off) for off, _ in runs]) for _, runs in (first, second))
    less = theirs - ours
    spread, errors = float(less.std() / np.sqrt(less.size)), (float(ours.mean()), float(theirs.mean()))
    saved = float(np.mean([share for _, share in first[1]]))
    return BesideRow(*asked, first[0], second[0], less.size, *errors, float(less.mean()), spread, saved)


def beside_baseline(asked: Asked, how: str, ours: Sequence[Once], theirs: Sequence[Once]) -> BesideRow:
    """Elimination beside its baseline, with the same noise.

    >>> row = beside_baseline(("town", "savings-kde", 500.0, 1e-4, "c4"), "point", [(0.1, 0.6)], [(0.3, 0.0)])
    >>> row.first, row.second, row.first_saved
    ('PM, point', 'BM, point', 0.6)
    """
    return beside(asked, (f"PM, {how}", ours), (f"BM, {how}", theirs))


@dataclass(frozen=True)
class Kind:
    """A query with the parameter that it is tried with, and the figure it is of; `most` repetitions are the paper's.

    >>> Kind("savings-knn", "k", (1.0,), lambda *asked: {}, "Fig. 5", 300).rhos
    (1e-05, 0.0001, 0.001)
    """

    name: str
    parameter: str
    values: tuple[float, ...]
    ask: Ask
    figure: str
    most: int
    better: How = "distance"
    is_shifted: bool = False

    @property
    def worse(self) -> How:
        """The method that the paper says errs more: on distances, or on positions."""
        return "point" if self.better == "distance" else "distance"

    @property
    def rhos(self) -> tuple[float, ...]:
        """The budgets that it is tried with."""
        return (RHO_SMALL, *RHOS) if self.is_shifted else RHOS
