"""Continual, user-level differentially private statistics from live bus feeds.

The door for a notebook: a private statistic of speeds that are at hand, without a ledger
(`embedded/one_off.py`).

>>> from udp_stream import private_mean
>>> speeds = {"GJ05ZZ0001": [23.0, 25.5], "GJ05ZZ0002": [31.0, 30.0, 28.5]}
>>> 0 <= private_mean(speeds, epsilon=1.0, max_kmh=65).value_kmh <= 65
True

Everything else is imported from its own file: docs/architecture.md says which.
"""

from typing import TYPE_CHECKING, Any

from udp_stream.base.version import __version__

if TYPE_CHECKING:
    from udp_stream.embedded.one_off import private_cdf, private_mean, private_variance

__all__ = ["__version__", "private_cdf", "private_mean", "private_variance"]


def __getattr__(name: str) -> Any:
    """Public names of the package, imported when they are asked for: a verb that needs none of it
    starts as fast without."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from udp_stream.embedded import one_off

    return getattr(one_off, name)
