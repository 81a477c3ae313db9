"""Normal beliefs about a city, in O(cells): an arrow.

All cells share the *globals*. Given these, cells are independent; each has a few states of its own.
So the covariance is an arrow. It is kept as the globals' mean and covariance and, for each cell,
its states given the globals: `intercept + coupling . globals`, with a covariance of their own.
Updates are exact (a Kalman filter's).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from udp_stream.arrays import Floats, Integers

# Linear algebra on a single thread. The matrices of a slot are long and narrow: more threads hardly
# make them faster, but spin for a tenth of a second after each product, on cores that the ledger's
# server needs. And the last bit of a long sum would depend on the number of cores: forecasts of two
# workers would differ by it.

Work = TypeVar("Work", bound=Callable[..., object])

_BLAS = ThreadpoolController()


def on_one_thread(work: Work) -> Work:
    """Wrap `work`; BLAS has a single thread in the whole process while it runs."""
    limited: Work = _BLAS.wrap(limits=1, user_api="blas")(work)
    return limited


class Design(NamedTuple):
    """Columns of observations: on the cells' own states, and on the globals; a line for each.

    >>> Design(own=np.ones((5, 1)), shared=np.ones((5, 2))).of(np.array([0, 3])).shared.shape
    (2, 2)
    """

    own: Floats
    shared: Floats

    def of(self, rows: NDArray[Any]) -> Design:
        return Design(self.own[rows], self.shared[rows])


class Arrow:
    """Normal globals with this mean and covariance, and cells whose states have these standard
    deviations beside them.

    Cells are numbered by the caller, from 0.

    >>> arrow = Arrow(mean=np.array([18.0]), covariance=np.array([[25.0]]), own_sd=np.array([2.0]))
    >>> arrow.grow(1)
    >>> at, design = np.array([0]), Design(np.ones((1, 1)), np.ones((1, 1)))
    >>> before = arrow.predict(at, design)
    >>> _ = arrow.update(at, design, np.array([24.0]), np.array([29.0]))
    >>> after = arrow.predict(at, design)
    >>> before[0].tolist(), before[1].tolist(), after[0].round(3).tolist(), after[1].round(3).tolist()
    ([18.0], [29.0], [21.0], [14.5])
    """

    def __init__(self, mean: Floats, covariance: Floats, own_sd: Floats) -> None:
        self._first = np.diag(own_sd**2)
        self.mean = mean
        self._covariance: NDArray[Any] = covariance
        self._intercept = np.zeros((0, own_sd.size))
        self._coupling = np.zeros((0, own_sd.size, mean.size))
        self._variance = np.zeros((0, own_sd.size, own_sd.size))

    @property
    def cells(self) -> int:
        return len(self._intercept)

    def grow(self, more: int) -> None:
        """Add cells of which nothing is known."""
        states, globals_ = self._coupling.shape[1:]
        self._intercept = np.concatenate([self._intercept, np.zeros((more, states))])
        self._coupling = np.concatenate([self._coupling, np.zeros((more, states, globals_))])
        self._variance = np.concatenate([self._variance, np.tile(self._first, (more, 1, 1))])

    def predict(self, at: Integers, design: Design) -> tuple[Floats, Floats]:
        """Mean and variance of what is observed, without its rest, at cells (-1: never seen)."""
        given = self._given_globals(at, design)
        spread = np.einsum("ij,ij->i", given.border @ self._covariance, given.border)
        return given.intercept + given.border @ self.mean, given.variance + spread

    def update(self, at: Integers, design: Design, value: Floats, variance: Floats) -> float:
        """Condition on observations with noise of these variances, of distinct cells; gives the log
        of the values' likelihood."""
        given = self._given_globals(at, design)
        weight = 1 / (given.variance + variance)
        off = value - given.intercept - given.border @ self.mean
        weighed = given.border * weight[:, None]
        before = np.linalg.inv(self._covariance)
        precision = before + weighed.T @ given.border
        self._covariance = _symmetric(np.linalg.inv(precision))
        moved = self._covariance @ (weighed.T @ off)
        self.mean = self.mean + moved
        gain = given.covariance * weight[:, None]
        self._intercept[at] += gain * (value - given.intercept)[:, None]
        self._coupling[at] -= gain[:, :, None] * given.border[:, None, :]
        self._variance[at] -= gain[:, :, None] * given.covariance[:, None, :]
        misfit = float(off @ (off * weight) - moved @ precision @ moved)
        determinant = (
            np.linalg.slogdet(precision)[1] - np.linalg.slogdet(before)[1] - np.log(weight).sum()
        )
        return -0.5 * (misfit + float(determinant))

    def update_mean(self, share: Floats, design: Design, value: float, variance: float) -> None:
        """Condition the globals on a noisy mean over all cells, weighed by `share`."""
        given = self._given_globals(np.arange(self.cells), design)
        border = share @ given.border
        through = self._covariance @ border
        spread = float(border @ through + variance + share**2 @ given.variance)
        off = value - float(share @ given.intercept) - float(border @ self.mean)
        self.mean = self.mean + through * (off / spread)
        self._covariance = _symmetric(self._covariance - np.outer(through, through) / spread)

    def renew_cells(self, state: int, keep: float, variance: Floats | float) -> None:
        """Let a state of each cell decay to this part; so much comes anew that its variance tends
        to `variance`."""
        self._intercept[:, state] *= keep
        self._coupling[:, state] *= keep
        self._variance[:, state] *= keep
        self._variance[:, :, state] *= keep
        self._variance[:, state, state] += (1 - keep**2) * variance

    def renew_global(self, which: int, keep: float, variance: float) -> None:
        """The same of a global. What cells owe to the old global becomes their own."""
        others = np.arange(self.mean.size) != which % self.mean.size
        shared = self._covariance[others, which]
        slope = np.linalg.solve(self._covariance[np.ix_(others, others)], shared)
        own = float(self._covariance[which, which])
        coupled = self._coupling[:, :, which].copy()
        self._intercept += coupled * float(self.mean[which] - slope @ self.mean[others])
        self._coupling[:, :, others] += coupled[:, :, None] * slope
        rest = max(own - float(slope @ shared), 0.0)
        self._variance += coupled[:, :, None] * coupled[:, None, :] * rest
        self._coupling[:, :, which] = 0.0
        self._covariance[which] = 0.0
        self._covariance[:, which] = 0.0
        self._covariance[which, which] = keep**2 * own + (1 - keep**2) * variance
        self.mean[which] *= keep

    def _given_globals(self, at: Integers, design: Design) -> _GivenGlobals:
        known = at >= 0
        own = design.own
        if not known.any():
            covariance = own @ self._first
            return _GivenGlobals(
                np.zeros(at.size), design.shared, (covariance * own).sum(axis=1), covariance
            )
        intercept = np.where(known[:, None], self._intercept[at], 0.0)
        coupling = np.where(known[:, None, None], self._coupling[at], 0.0)
        variance = np.where(known[:, None, None], self._variance[at], self._first)
        covariance = np.einsum("ij,ijk->ik", own, variance)
        return _GivenGlobals(
            (own * intercept).sum(axis=1),
            design.shared + np.einsum("ij,ijk->ik", own, coupling),
            (covariance * own).sum(axis=1),
            covariance,
        )


class _GivenGlobals(NamedTuple):
    """The observation, given the globals: intercept, slopes on them, variance; and its covariance
    with the cell's states."""

    intercept: Floats
    border: Floats
    variance: Floats
    covariance: Floats


def _symmetric(matrix: NDArray[Any]) -> Floats:
    return np.asarray((matrix + matrix.T) / 2)
