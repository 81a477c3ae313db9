"""What many tests share: which parameters run in the long suite alone (`make test-long`), and an
environment."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest

PURE_ENV = {"UDP_STREAM_BUDGET__ACCOUNTING": "pure"}
"""The environment of tests whose budgets are epsilons, unless their flags say otherwise."""


def changed(one, **fields):
    """A named tuple with other values of these fields."""
    return one._replace(**fields)


def long_but(short: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """All values; those that are not among the short ones are marked as long."""
    return [one if one in short else pytest.param(one, marks=pytest.mark.long) for one in values]


def long_rows(short: Collection[tuple[Any, ...]], rows: Iterable[tuple[Any, ...]]) -> list[Any]:
    """As `long_but`, of several parameters at once."""
    return [one if one in short else pytest.param(*one, marks=pytest.mark.long) for one in rows]


def soaked(values: Iterable[Any]) -> list[Any]:
    """All of these are for `make test-soak`."""
    return [pytest.param(one, marks=pytest.mark.soak) for one in values]


def soaked_rows(rows: Iterable[tuple[Any, ...]]) -> list[Any]:
    """As `soaked`, of several parameters at once."""
    return [pytest.param(*one, marks=pytest.mark.soak) for one in rows]
