"""Which parameters of a test run in every suite, and which in the long one alone (`make test-long`)."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def long_but(short: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """All values; those that are not among the short ones are marked as long.

    >>> [getattr(one, "values", one) for one in long_but([1], [1, 2])]
    [1, (2,)]
    """
    return [one if one in short else pytest.param(one, marks=pytest.mark.long) for one in values]


def long_rows(short: Collection[tuple[Any, ...]], rows: Iterable[tuple[Any, ...]]) -> list[Any]:
    """As `long_but`, of several parameters at once.

    >>> [getattr(one, "values", one) for one in long_rows([(1, 2)], [(1, 2), (1, 3)])]
    [(1, 2), (1, 3)]
    """
    return [one if one in short else pytest.param(*one, marks=pytest.mark.long) for one in rows]
