"""What experiments report: rows of tables, figures as data, and findings on the claims of `claims.toml`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal, TypeVar

from udp_stream.experiments.data import Setup


class ResultRow(SimpleNamespace):
    """A row of a table: its attributes are the columns, in order."""


R = TypeVar("R", bound=ResultRow)

Job = Callable[[], Sequence[ResultRow]]


def where(rows: Iterable[R], **columns: object) -> list[R]:
    """The rows that have these values in these columns."""
    return [row for row in rows if all(getattr(row, name) == value for name, value in columns.items())]


def of_kind(kind: type[R], rows: Iterable[ResultRow]) -> list[R]:
    """The rows of one table."""
    return [row for row in rows if isinstance(row, kind)]


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a panel. A `guess` is the baseline guess; `marks` are points without a line."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    kind: Literal["curve", "guess", "marks"] = "curve"


def curve(name: str, rows: Sequence[ResultRow], x: str, y: str, kind: Literal["curve", "guess"] = "curve") -> Curve:
    """The line of two columns."""
    xs, ys = (tuple(float(getattr(row, column)) for row in rows) for column in (x, y))
    return Curve(name, xs, ys, kind)


@dataclass(frozen=True, slots=True)
class Panel:
    """Axes with their units, and curves. Logarithmic only where every value is positive."""

    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """Panels side by side, one file each of PNG and SVG."""

    name: str
    title: str
    panels: Sequence[Panel]


class Finding:
    """Whether our numbers agree with a claim of `claims.toml`, and the values that its texts name."""

    def __init__(self, claim: str, agrees: object, **values: Any) -> None:
        self.claim, self.agrees, self.values = claim, bool(agrees), values

    @staticmethod
    def but(lead: str, cases: Sequence[str], separator: str = "; ") -> str:
        """Cases in which a claim does not hold, behind the words that lead to them; nothing where there are none."""
        return f"{lead}{separator.join(cases)}" if cases else ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an experiment found: rows by the names of their tables, figures and findings."""

    tables: Mapping[str, Sequence[ResultRow]]
    figures: Sequence[Figure]
    findings: Sequence[Finding]


@dataclass(frozen=True, slots=True)
class Experiment:
    """A named experiment: work in pieces, then what follows from all rows."""

    name: str
    about: str
    jobs: Callable[[Setup], list[Job]]
    conclude: Callable[[Setup, Sequence[Any]], Outcome]
