"""Experiments and what they find: rows of tables, figures as data, findings on the claims of
`claims.toml`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from lab.data import Setup
from udp_stream.base.arrays import Floats


class Row(SimpleNamespace):
    """A row of a table: its attributes are the columns, in order. `beside`: which table beside the
    main one."""

    __slots__ = ("beside",)

    def __init__(self, beside: str = "", /, **columns: Any) -> None:
        super().__init__(**columns)
        self.beside = beside


class Curve(NamedTuple):
    """A line of a panel. A `guess` is the baseline guess; `marks` are points without a line."""

    name: str
    x: Floats | Sequence[float]
    y: Floats | Sequence[float]
    kind: Literal["curve", "guess", "marks"] = "curve"


class Rows(list[Row]):
    """Rows of a table.

    >>> rows = Rows(Row(cap=cap, error_kmh=cap / 2, constant_kmh=9.0) for cap in (1, 2))
    >>> rows.where(cap=2).column("error_kmh").tolist(), rows.mean("error_kmh")
    ([1.0], 0.75)
    >>> rows.curve("guess", "cap", "constant_kmh")
    Curve(name='guess', x=array([1., 2.]), y=array([9., 9.]), kind='guess')
    """

    def where(self, **columns: object) -> Rows:
        """The rows that have these values in these columns."""
        return Rows(
            row
            for row in self
            if all(getattr(row, name) == value for name, value in columns.items())
        )

    def by(self, name: str) -> dict[Any, Rows]:
        """The rows of each value of a column, in the order in which the values come."""
        found = defaultdict[Any, Rows](Rows)
        for row in self:
            found[getattr(row, name)].append(row)
        return found

    def column(self, name: str) -> Floats:
        return np.array([getattr(row, name) for row in self], np.float64)

    def mean(self, name: str, **columns: object) -> float:
        """The mean of a column over the rows that have these values."""
        return float(self.where(**columns).column(name).mean())

    def curve(self, name: str, x: str, y: str) -> Curve:
        """The line of two columns, by its name in the legend; a column `constant_...` is the
        guess's."""
        return Curve(name, self.column(x), self.column(y), "guess" if "constant_" in y else "curve")

    def curves(self, x: str, columns: Mapping[str, str]) -> list[Curve]:
        """A line for each of these columns, by its name in the legend."""
        return [self.curve(name, x, y) for name, y in columns.items()]


class Panel(NamedTuple):
    """Axes with their units, and curves. `log`: the logarithmic axes, where every value is
    positive."""

    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]
    log: Literal["", "x", "y", "xy"] = ""


class Figure(NamedTuple):
    """Panels side by side, a file each of PNG and SVG."""

    name: str
    title: str
    panels: Sequence[Panel]


class Finding:
    """Whether our numbers agree with a claim of `claims.toml`, and the values that its texts name."""

    def __init__(self, claim: str, agrees: object, **values: Any) -> None:
        self.claim = claim
        self.agrees = bool(agrees)
        self.values = values


def but(lead: str, cases: Sequence[str], separator: str = "; ") -> str:
    """Cases in which a claim does not hold, behind the words that lead to them; nothing where there
    are none."""
    return f"{lead}{separator.join(cases)}" if cases else ""


Findings: TypeAlias = Iterable[Finding]
Points: TypeAlias = Iterable[tuple[Any, ...]]
Found: TypeAlias = Iterable[Row]
Tables: TypeAlias = Mapping[str, Rows]
Results: TypeAlias = Iterable[Figure | Finding]


def about(findings: Findings, **values: Any) -> Results:
    """Findings that have these values in common."""
    for finding in findings:
        finding.values |= values
        yield finding


class Outcome(NamedTuple):
    """Outcome of an experiment: rows by the names of their tables, figures and findings."""

    tables: Tables
    figures: Sequence[Figure]
    findings: Sequence[Finding]


class Experiment(NamedTuple):
    """A named experiment: `points` are its data, mechanisms and sweep; `measure(setup, *point)`
    makes the rows of a point; `conclude` sees all tables, the main table as ""."""

    name: str
    about: str
    points: Callable[[Setup], Points]
    measure: Callable[..., Found]
    conclude: Callable[[Setup, Tables], Results]

    def run(self, setup: Setup, each: Callable[[list[Any]], Points] = iter) -> Outcome:
        """Do all of its work; `each` may show how far it is."""
        tables = defaultdict[str, Rows](Rows)
        for point in each(list(self.points(setup))):
            for row in self.measure(setup, *point):
                tables[row.beside].append(row)
        found = list(self.conclude(setup, tables))
        figures = [result for result in found if isinstance(result, Figure)]
        findings = [result for result in found if isinstance(result, Finding)]
        return Outcome(
            {f"{self.name}{beside}": rows for beside, rows in tables.items() if rows},
            figures,
            findings,
        )
