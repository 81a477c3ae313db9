"""Privacy filters: which sums of charges keep a promise, as pure arithmetic.

A filter answers before a mechanism runs, from its charge and those before it, whether the promise still holds with it
(Rogers, Roth, Ullman and Vadhan, NIPS 2016; for many users and for metrics: *Adaptive Privacy Budgeting*, Liang and
Yi, Section 4.2). All that are here depend on the *sum* of the charges alone, and admit what keeps it within a limit. So
the limit is computed once, the sum is a number, any ledger can store it, and a charge costs as much after a million
others as it did at first. A charge that is refused leaves the sum as it was, and a smaller one may still fit (their
Remark 2).

* Of a promise of epsilon, charges in epsilon: the limit is epsilon (equation 7).
* Of rho, zero-concentrated, charges in rho: it is rho (equation 7, Theorem 4.4).
* Of (epsilon, delta) for swapped values, charges in rho: `conversion.rho_nano_of`, tighter than equation 10.
* Of (epsilon, delta) per unit of distance, charges in rho per unit squared: `metric_rho_nano` (equation 10, Theorem
  4.5).

**Metric privacy.** There epsilon is per unit of a distance, such as a metre: two inputs at distance d are told apart by
at most e^(epsilon d), and rho is per unit squared. With a delta that holds only up to some distance, the *reach*.
Equation 10 admits a sum r if for some s > 1

    max(g(s) sqrt(r), s reach r) <= epsilon,      g(s) = s / (s - 1) 2 sqrt(log(2 / ((s + 1) delta)))

which needs (s + 1) delta < 2. g falls and s reach r rises in s, so the least maximum is where they cross. *Any* s gives
an epsilon that holds, so the crossing may be searched for in any way, and only the value at what was found has to be
rounded against us.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Literal

from udp_stream.ledger.conversion import last_nano, rho_nano_of
from udp_stream.units import NANO

_DIGITS = Context(prec=50)

_ERROR = Decimal("1e-35")
"""Added to an epsilon, as a share of it: far more than what rounding can take from it."""

_HALVINGS = 100
"""The crossing is then known to 10^-20."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Charges of a unit, and the most that they may sum to, in nano-units.

    >>> day = Filter.approximate(10 * NANO, 1e-6)
    >>> day.limit_nano, day.admits(1_539_000_000, 278_763), day.admits(1_539_000_000, 278_764)
    (1539278763, True, False)
    """

    unit: Literal["epsilon", "rho"]
    limit_nano: int

    @classmethod
    def pure(cls, epsilon_nano: int) -> Filter:
        """For a promise of epsilon, of mechanisms that are charged epsilon; also per unit of distance.

        >>> Filter.pure(10 * NANO)
        Filter(unit='epsilon', limit_nano=10000000000)
        """
        return cls("epsilon", epsilon_nano)

    @classmethod
    def concentrated(cls, rho_nano: int) -> Filter:
        """For a promise of rho; also per unit of distance squared.

        >>> Filter.concentrated(NANO)
        Filter(unit='rho', limit_nano=1000000000)
        """
        return cls("rho", rho_nano)

    @classmethod
    def approximate(cls, epsilon_nano: int, delta: float) -> Filter:
        """For a promise of (epsilon, delta), of mechanisms that are charged rho.

        >>> Filter.approximate(NANO, 1e-6)
        Filter(unit='rho', limit_nano=24355970)
        """
        return cls("rho", rho_nano_of(epsilon_nano, delta))

    @classmethod
    def metric(cls, epsilon_nano: int, delta: float, reach: Decimal | int) -> Filter:
        """For (epsilon, delta) per unit of distance, for inputs up to `reach` apart: equation 10.

        >>> Filter.metric(NANO // 100, 1e-6, 1000)  # a hundredth per metre, up to a kilometre
        Filter(unit='rho', limit_nano=1463)
        """
        return cls("rho", metric_rho_nano(epsilon_nano, delta, reach))

    def admits(self, charged_nano: int, charge_nano: int) -> bool:
        """Whether the promise holds with this charge, after charges of this sum."""
        return charged_nano + charge_nano <= self.limit_nano

    def left_nano(self, charged_nano: int) -> int:
        """The largest charge that still fits.

        >>> Filter.pure(10).left_nano(8), Filter.pure(10).left_nano(12)
        (2, 0)
        """
        return max(0, self.limit_nano - charged_nano)


def metric_epsilon_nano(rho_nano: int, delta: float, reach: Decimal | int) -> int:
    """What charges of this sum have cost so far, rounded up: the odometer of `metric_rho_nano`.

    >>> metric_epsilon_nano(1463, 1e-6, 1000)
    9998702
    """
    return _ceiling(_DIGITS.multiply(_metric_epsilon(rho_nano, delta, reach), NANO))


def metric_rho_nano(epsilon_nano: int, delta: float, reach: Decimal | int) -> int:
    """The largest sum of rho, in nano-units, that equation 10 admits; may be 0.

    >>> metric_rho_nano(10 * NANO, 1e-6, 1)
    1463324569
    """
    allowed = _DIGITS.divide(epsilon_nano, NANO)
    return last_nano(lambda rho_nano: _metric_epsilon(rho_nano, delta, reach) <= allowed)


def _metric_epsilon(rho_nano: int, delta: float, reach: Decimal | int) -> Decimal:
    """An epsilon that holds, by equation 10; the least there is, but for the error."""
    allowed, far = Decimal(str(delta)), Decimal(reach)
    if not 0 < allowed < 1 or not 0 < far < Decimal("Infinity") or rho_nano < 0:
        raise ValueError(f"expected 0 < delta < 1, a finite reach > 0 and rho >= 0, got {delta}, {reach}, {rho_nano}")
    if rho_nano == 0:
        return Decimal(0)
    calc = _DIGITS  # never the operators: they round to the digits that the process has set
    rho = calc.divide(rho_nano, NANO)
    root = calc.sqrt(rho)

    def sides(s: Decimal) -> tuple[Decimal, Decimal]:
        log = calc.ln(calc.divide(2, calc.multiply(calc.add(s, 1), allowed)))
        falling = calc.multiply(calc.divide(s, calc.subtract(s, 1)), calc.multiply(2, calc.sqrt(log)))
        return calc.multiply(falling, root), calc.multiply(s, calc.multiply(far, rho))

    low, high = Decimal(1), calc.subtract(calc.divide(2, allowed), 1)  # g is infinite at one end, 0 at the other
    for _ in range(_HALVINGS):
        middle = calc.divide(calc.add(low, high), 2)
        falls, rises = sides(middle)
        low, high = (middle, high) if falls > rises else (low, middle)
    return calc.multiply(max(sides(middle)), calc.add(1, _ERROR))


def _ceiling(amount: Decimal) -> int:
    whole = int(amount)
    return whole + (whole != amount)
