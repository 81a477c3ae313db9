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

RHO_OF_SHIFTS = 1e-6
"""Where noise is 707 m: the shifted threshold is about small budgets, so range counts are tried with this one, too."""

SPLITS = {"BM": Split.even(1), "c4": Split.even(4), "c64": Split.even(64), "log-c10": Split.doubling(10)}
HOWS: tuple[How, ...] = ("point", "distance")
UNSHIFTED = "distance, threshold 0"
"""The same noisy distances, counted against 0 instead of the shifted threshold."""

Once = tuple[float, float]
"""An error, and the share of the budget that is left."""

Noisy = tuple[Bits, Draw]
"""Bits, and how noise is drawn from them."""

Ask = Callable[[Integers, tuple[float, float], float, Terms, Noisy], Mapping[str, Once]]
"""A query at a place, with its parameter: for each way to count what was drawn once."""


@dataclass(frozen=True, slots=True)
class SavingsRow:
    """One query, parameter, budget, method and split, over its repetitions.

    >>> row = row_of("town", "savings-knn", 5.0, 1e-4, "point", "c4", [(0.1, 0.5), (0.3, 0.7)])
    >>> row.repetitions, row.error_mean, round(row.error_spread, 3), row.saved_mean
    (2, 0.2, 0.071, 0.6)
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


def row_of(
    data: str, query: str, parameter: float, rho: float, how: str, split: str, runs: Sequence[Once]
) -> SavingsRow:
    """The row of these runs; the spread is the mean error's standard deviation.

    >>> row_of("town", "savings-knn", 5.0, 1e-4, "point", "c4", [(0.1, 0.5)]).error_spread
    0.0
    """
    errors, saved = np.array(runs).T
    spread = float(errors.std() / np.sqrt(errors.size))
    quartiles = [*np.quantile(errors, (0.25, 0.75)), spread, saved.mean(), *np.quantile(saved, (0.25, 0.75))]
    return SavingsRow(data, query, parameter, rho, how, split, len(runs), float(errors.mean()), *map(float, quartiles))


@dataclass(frozen=True, slots=True)
class ShiftRow:
    """The same noisy distances counted by the shifted threshold and by 0: errors, and by how much the first errs less.

    `spread` is the standard deviation of that mean difference, over repetitions, pair by pair.

    >>> shift_of("town", 1000.0, 1e-6, "BM", [(0.1, 0.0), (0.2, 0.0)], [(0.3, 0.0), (0.4, 0.0)]).less_by.__round__(9)
    0.2
    """

    data: str
    parameter: float
    rho: float
    split: str
    repetitions: int
    shifted_error: float
    zero_error: float
    less_by: float
    spread: float


def shift_of(
    data: str, parameter: float, rho: float, split: str, shifted: Sequence[Once], zero: Sequence[Once]
) -> ShiftRow:
    """The row of these runs.

    >>> shift_of("town", 1000.0, 1e-6, "BM", [(0.1, 0.0)], [(0.3, 0.0)]).spread
    0.0
    """
    ours, theirs = (np.array([error for error, _ in runs]) for runs in (shifted, zero))
    off = theirs - ours
    spread = float(off.std() / np.sqrt(off.size))
    errors = float(ours.mean()), float(theirs.mean())
    return ShiftRow(data, parameter, rho, split, off.size, *errors, float(off.mean()), spread)


@dataclass(frozen=True)
class Kind:
    """A query with the parameter that it is tried with, and the figure it is of; `most` repetitions are the paper's.

    >>> Kind("savings-knn", "k", (1.0,), lambda *asked: {}, "Fig. 5", 300).rhos("distance")
    (1e-05, 0.0001, 0.001)
    """

    name: str
    parameter: str
    values: tuple[float, ...]
    ask: Ask
    figure: str
    most: int
    is_shifted: bool = False

    def rhos(self, how: How) -> tuple[float, ...]:
        """The budgets that it is tried with."""
        return (RHO_OF_SHIFTS, *RHOS) if self.is_shifted and how == "distance" else RHOS
