"""Linear algebra on one thread, whatever numpy's BLAS would take.

The matrices of a slot are long and nine or sixteen columns wide: more threads hardly make them faster. But they go on
spinning for a tenth of a second after each product, on cores that the ledger's server needs. And the last bit of a sum
over many thousand HATs would depend on how many cores a machine has: forecasts of two workers would differ by it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import ParamSpec, TypeVar

from threadpoolctl import ThreadpoolController

P = ParamSpec("P")
T = TypeVar("T")


def on_one_thread(work: Callable[P, T]) -> Callable[P, T]:
    """The same function, for whose time BLAS has one thread in the whole process; unless another thread of the process
    has set its limit before, which is then left alone (threadpoolctl).

    >>> import numpy as np
    >>> on_one_thread(np.dot)(np.ones(3), np.ones(3)).item()
    3.0
    """

    @wraps(work)
    def alone(*args: P.args, **kwargs: P.kwargs) -> T:
        with _controller().limit(limits=1, user_api="blas"):
            return work(*args, **kwargs)

    return alone


@cache
def _controller() -> ThreadpoolController:
    """Looks once through the libraries that are loaded: numpy's is by then."""
    return ThreadpoolController()
