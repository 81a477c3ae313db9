"""The budget periods of standing queries: what a plate may lose of its positions, apart from what it may of its speeds.

A moment belongs to the period that the stretch of time before it lies in: midnight's answer is of the day that ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite

import numpy as np

from udp_stream.mechanisms.noise import Measure
from udp_stream.planning.one_budget import OneBudget
from udp_stream.planning.periods import POSITIONS, amount_text, name_in, overlapping, period_of
from udp_stream.windows.tables import SlotGrid


@dataclass(frozen=True)
class PositionPeriods:
    """Periods of one length in a zone, or one for a lifetime; and each plate's budget for one, in nano-units.

    Where it is a part of one budget, `whole` says that in words.
    `within` are sums of both kinds known to be within it.

    >>> from datetime import UTC
    >>> periods = PositionPeriods("zcdp", 100 * 10**9, "1d", SlotGrid(86_400, UTC))
    >>> [periods.name_at(moment) for moment in (86_400_000, 86_400_001)]
    ['positions 1d from 1970-01-01T00:00:00+00:00 in rho', 'positions 1d from 1970-01-02T00:00:00+00:00 in rho']
    >>> periods.promise
    'rho 100 per square km, per 1d'
    """

    measure: Measure
    budget_nano: int
    length: str
    grid: SlotGrid | None
    one_budget: OneBudget | None = None
    whole: str = ""
    within: set[tuple[str, ...]] = field(default_factory=set, compare=False)

    @property
    def promise(self) -> str:
        """What a plate's positions are promised, in words; and what with its speeds, if both have one budget."""
        amount = amount_by_distance(self.measure, self.budget_nano)
        own = f"{amount}, per {self.length}"
        return own if self.one_budget is None else f"{own}; with its speeds {self.whole}, where {self.one_budget.said}"

    @property
    def kind(self) -> str:
        """What this budget is to that of speeds, in words."""
        return "a share of its one budget" if self.one_budget else "a budget of its own, apart from that of speeds"

    def name_at(self, moment_ms: int) -> str:
        """The name of the period of a moment, Unix ms."""
        if self.grid is None:
            return name_in(self.measure, f"{POSITIONS}lifetime")
        return name_in(self.measure, f"{POSITIONS}{self.length} from {self.grid.iso(self.start_of(moment_ms))}")

    def start_of(self, moment_ms: int) -> int:
        """The start of the period of a moment, Unix ms; 0 of a lifetime.

        >>> PositionPeriods("zcdp", 10**9, "lifetime", None).start_of(86_400_000)
        0
        """
        return 0 if self.grid is None else int(self.grid.place(np.array([moment_ms - 1]))[0][0])

    def overlapping(self, period: str, known: Sequence[str]) -> tuple[str, ...]:
        """The known periods of positions that overlap this one of ours, and are not ours themselves."""
        return tuple(name for name in overlapping(period, known) if not self._is_ours(name))

    def _is_ours(self, name: str) -> bool:
        start = period_of(name).start
        # One ms later: the moment at a period's very start belongs to the period before.
        return isfinite(start) and self.name_at(round(start * 1000) + 1) == name


def amount_by_distance(measure: Measure, nano: int) -> str:
    """An amount of a plate's positions, with the distance that it is for.

    >>> amount_by_distance("pure", 10**10), amount_by_distance("zcdp", 5 * 10**8)
    ('epsilon 10 per km', 'rho 0.5 per square km')
    """
    return f"epsilon {amount_text(nano)} per km" if measure == "pure" else f"rho {amount_text(nano)} per square km"
