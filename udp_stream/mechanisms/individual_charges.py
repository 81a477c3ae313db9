"""Individual accounting: a plate loses epsilon times its own sensitivity over the noise's, and is charged just that.

Privacy unit: license plate. Neighbours: swap-values. Assumed: an integer statistic that plate l alone moves by at most
`moves[l]` lattice units, and noise with odds of at most exp(epsilon / most) from one lattice step to the next, `most`
being the steps of the largest mover. Then swapping plate l's values changes no output's odds by more than
exp(epsilon * steps_l / most): its loss, in integers, rounded up, is its charge. Everything here reads counts only, so
charges are public and known before anything is drawn (sharper than arXiv 2405.06261, which charges everybody epsilon).

Charges are asked for on a plan for *all* plates of a HAT; the ledger halts some. What the others then lose must stay
within what they were charged, so the noise is made to cover it: scale >= max_l moves_l / charge_l. `epsilon_within`
says the same in terms of the largest loss: the epsilon at which every plate's share of it is within its charge.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from udp_stream.mechanisms.noise import DRAWABLE_NANO_MIN, laplace_lattice

Integers = NDArray[np.int64]


def share_charges(steps: NDArray[Any], most: int, epsilon_nano: int) -> Integers:
    """epsilon * step / most for each plate in nano-epsilon, rounded up; a plate that moves nothing loses nothing.

    `steps` are integers of 64 bits or Python's own.

    >>> share_charges(np.array([0, 1, 2, 3]), most=3, epsilon_nano=10**9).tolist()
    [0, 333333334, 666666667, 1000000000]
    """
    exact = steps if epsilon_nano * most < 2**62 else steps.astype(object)
    charges: Integers = (-(-epsilon_nano * exact // most)).astype(np.int64, copy=False)
    return charges


def epsilon_within(steps: NDArray[Any], most: int, charges: Integers, epsilon_nano: int) -> int:
    """The largest epsilon, up to `epsilon_nano`, at which nobody's share of it exceeds its charge.

    >>> epsilon_within(np.array([1, 3]), most=3, charges=np.array([300, 1000]), epsilon_nano=1000)
    900
    """
    pairs = zip(steps.tolist(), charges.tolist(), strict=True)
    affordable: list[int] = [charge * most // step for step, charge in pairs if step]
    return min([epsilon_nano, *affordable])


def laplace_charges(moves: NDArray[Any], sensitivity: int, epsilon_nano: int) -> Integers:
    """What each plate loses to a statistic with `laplace_lattice(sensitivity, epsilon_nano)` noise, with rounding.

    A plate that moves it at all is charged at least what noise can be drawn for, lest it be the largest that is left.

    >>> laplace_charges(np.array([0, 1, 10**8]), sensitivity=10**8, epsilon_nano=10**9).tolist()
    [0, 32, 1000000000]
    """
    lattice = laplace_lattice(sensitivity, epsilon_nano)
    charges = share_charges(lattice.steps(moves), lattice.steps(sensitivity), epsilon_nano)
    least = min(DRAWABLE_NANO_MIN, epsilon_nano)
    return np.where(charges > 0, np.maximum(charges, least), 0)


def laplace_epsilon_within(moves: NDArray[Any], sensitivity: int, charges: Integers, epsilon_nano: int) -> int:
    """`epsilon_within` for such noise: it ends because a lower epsilon only ever makes the lattice coarser.

    With `laplace_charges` it never falls below what noise can be drawn for; ValueError if other charges make it.
    """
    while True:
        lattice = laplace_lattice(sensitivity, epsilon_nano)
        within = epsilon_within(lattice.steps(moves), lattice.steps(sensitivity), charges, epsilon_nano)
        if within == epsilon_nano:
            return epsilon_nano
        epsilon_nano = within
