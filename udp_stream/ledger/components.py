"""One budget over data of different kinds, such as the speeds and the positions of one plate.

*Adaptive Privacy Budgeting* (Liang and Yi), Section 5. All that is known of a plate is a point of a product of spaces,
each with a metric of its own. Two such points are as far apart as the components in which they are farthest:

    dist(x, y) = max over l of dist_l(x_l, y_l)

**Theorem 5.1, Corollary 5.1.** An algorithm that reads one component alone costs the same in the product, under this
distance, as it does in its component: its epsilon per unit of distance, or its rho per unit squared. So its charge may
be computed where it belongs, and charges of all components add up in one filter.

**Units.** "Per unit of distance" has to mean the same in all of them. A component's *unit* says how far in its own
metric two inputs are that count as one apart: 1 where a value is swapped or not (the speeds here), 500 for positions in
metres that are to be hidden within 500 m. A mechanism that costs epsilon per metre costs 500 epsilon per such unit, and
one of rho per square metre 500^2 rho. What is promised: two inputs are told apart by at most e^(B d), where d is the
largest distance of any component in its units.

**Remark 4.** Components need not be known before they are asked about. Data that change are new components: the
position in the next slot is another one than that in this slot. So a *kind* of data, with one unit for ever, stands for
as many components as there will be.

**Across measures.** A mechanism of epsilon per unit is one of epsilon^2 / 2 in rho per unit squared: at each distance d
it is (epsilon d)-DP between the two, hence (epsilon d)^2 / 2 zero-concentrated (arXiv 1605.02065, Proposition 3.3).

Amounts are nano-units, charges rounded up; units are exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from math import ceil, floor
from typing import Literal

from udp_stream.ledger.conversion import rho_nano_of_pure
from udp_stream.ledger.filters import Filter

Unit = Decimal | int
Measured = Literal["epsilon", "rho"]


def product_distance(distances: Mapping[str, Unit], units: Mapping[str, Unit]) -> Fraction:
    """How far apart two inputs are whose components have these distances, each in its own metric.

    KeyError for a component without a unit; ValueError for a distance below 0 or a unit that is not above 0.

    >>> product_distance({"speeds": 1, "positions": 1250}, {"speeds": 1, "positions": 500})
    Fraction(5, 2)
    """
    apart = [_exact("distance", distances[name], 0) / _unit(name, units[name]) for name in distances]
    return max(apart, default=Fraction(0))


def component_charge_nano(cost_nano: int, measure: Measured, unit: Unit, charged_in: Measured) -> int:
    """What a mechanism on one component costs of a budget over all of them (Theorem 5.1, Corollary 5.1), rounded up.

    `cost_nano` is per unit of the component's own metric, squared for a rho; `unit` is how far there is one apart.
    ValueError for a cost in rho under a budget in epsilon: no epsilon follows from a rho without a delta.

    >>> component_charge_nano(2_000_000, "epsilon", 500, "epsilon")  # 0.002 a metre
    1000000000
    >>> component_charge_nano(4_000, "rho", 500, "rho"), component_charge_nano(2_000_000, "epsilon", 500, "rho")
    (1000000000, 500000000)
    """
    if cost_nano < 0:
        raise ValueError(f"expected cost_nano >= 0, got {cost_nano}")
    scale = _unit("a component", unit)
    if measure == "rho":
        if charged_in == "epsilon":
            raise ValueError("expected a cost in epsilon under a budget in epsilon, got one in rho")
        return ceil(cost_nano * scale * scale)
    epsilon_nano = ceil(cost_nano * scale)
    return epsilon_nano if charged_in == "epsilon" else rho_nano_of_pure(epsilon_nano)


def component_limit_nano(limit_nano: int, measure: Measured, unit: Unit) -> int:
    """The most that a mechanism on one component may cost in its own metric, for a charge of at most `limit_nano`.

    Of a limit in the same measure, rounded down: `component_charge_nano` of it is within the limit.

    >>> component_limit_nano(10**9, "epsilon", 500), component_limit_nano(10**9, "rho", 500)
    (2000000, 4000)
    """
    if limit_nano < 0:
        raise ValueError(f"expected limit_nano >= 0, got {limit_nano}")
    scale = _unit("a component", unit)
    return floor(limit_nano / (scale * scale if measure == "rho" else scale))


@dataclass(frozen=True, slots=True)
class SharedBudget:
    """One filter over components of different kinds, and the unit of each kind that was asked about so far.

    >>> budget = SharedBudget(Filter.pure(10 * 10**9)).knowing("speeds", 1).knowing("positions", 500)
    >>> speeds = budget.charge_nano("speeds", 10**9, "epsilon")
    >>> positions = budget.charge_nano("positions", 18 * 10**6, "epsilon")  # 0.018 a metre
    >>> speeds + positions, budget.filter.admits(speeds, positions), budget.filter.admits(speeds + 1, positions)
    (10000000000, True, False)
    """

    filter: Filter
    units: tuple[tuple[str, Unit], ...] = ()

    def knowing(self, kind: str, unit: Unit) -> SharedBudget:
        """The same once this kind of data is asked about (Remark 4).

        ValueError if it is known with another unit: charges that were made would then mean something else.
        """
        _unit(kind, unit)
        known = dict(self.units)
        if known.get(kind, unit) != unit:
            raise ValueError(f"expected the unit {known[kind]} that {kind} had when it was first charged, got {unit}")
        return self if kind in known else replace(self, units=(*self.units, (kind, unit)))

    def charge_nano(self, kind: str, cost_nano: int, measure: Measured) -> int:
        """What a mechanism that reads one component of this kind, and no other, is charged.

        `cost_nano` is in the kind's own metric. ValueError for a kind that is not known.
        """
        if kind not in (known := dict(self.units)):
            raise ValueError(f"expected a kind of data with a unit ({', '.join(known) or 'none yet'}), got {kind}")
        return component_charge_nano(cost_nano, measure, known[kind], self.filter.unit)

    def distance(self, distances: Mapping[str, Unit]) -> Fraction:
        """How far apart two inputs are, in units of the promise: at most e^(B d) tells them apart under a pure one.

        >>> SharedBudget(Filter.pure(1)).knowing("positions", 500).distance({"positions": 250})
        Fraction(1, 2)
        """
        return product_distance(distances, dict(self.units))


def _unit(name: str, unit: Unit) -> Fraction:
    exact = _exact(f"unit of {name}", unit, 0)
    if exact == 0:
        raise ValueError(f"expected a unit of {name} above 0, got {unit}")
    return exact


def _exact(name: str, amount: Unit, least: int) -> Fraction:
    """By its digits; ValueError for what is no finite number, or below the least."""
    if not Decimal(amount).is_finite() or amount < least:
        raise ValueError(f"expected a finite {name} of at least {least}, got {amount}")
    return Fraction(amount)
