"""Between the measures of a promise: zero-concentrated, approximate and pure differential privacy. Never in our favour.

**To (epsilon, delta).** A rho-zCDP mechanism is (epsilon, delta)-DP for every alpha > 1 with

    delta = exp((alpha - 1)(alpha rho - epsilon)) / (alpha - 1) * (1 - 1/alpha)^alpha

(Canonne, Kamath and Steinke, arXiv 2004.00010, Corollary 13). *Every* alpha gives a delta that holds, so the search for
the best one needs no proof; only the value at the one found must not be rounded in our favour. It is computed in 80
decimal digits, from operations that are each off by at most half a unit in the last place (`decimal` rounds ln and exp
correctly). With amounts up to `NANO_MAX` no intermediate value exceeds 10^41, so log delta is off by less than 10^-38,
and delta by less than the share of 10^-30 that is added to it.

log delta is convex in alpha: its second derivative is 2 rho + 1 / (alpha (alpha - 1)). So the best alpha is where the
first one, (2 alpha - 1) rho - epsilon + log(1 - 1/alpha), vanishes, and a double's error in alpha makes log delta
larger by about 10^-32 epsilon^2 / rho. So the answers are the extreme nano-units at which this conversion holds, in all
but cases that miss it by less than that.

**From pure.** An epsilon-DP mechanism is epsilon^2/2 - zCDP (Bun and Steinke, arXiv 1605.02065, Proposition 3.3).

Amounts are integers, in nano-units; a delta is taken by the digits in which it is written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from functools import lru_cache
from math import ceil, exp, log, log1p
from typing import Literal

from udp_stream.units import NANO

_DIGITS = Context(prec=80)

_ERROR = Decimal("1e-30")
"""Added to a delta, as a share of it: far more than what rounding can take from it."""

_LEAST_LOG = -1000
"""Smaller deltas are not told apart: no double is as small."""

_SHOWN = Context(prec=17, rounding=ROUND_CEILING)

NANO_MAX = 10**15
"""Largest epsilon and rho, in nano-units: a million, far above any that says anything."""


def delta_of(rho_nano: int, epsilon_nano: int) -> Decimal:
    """A delta, rounded up, such that rho-zCDP implies (epsilon, delta)-DP; at most 1.

    >>> float(delta_of(1_000_000_000, 5_000_000_000))
    0.002612034506620487
    """
    _check("rho_nano", rho_nano, 0)
    _check("epsilon_nano", epsilon_nano, 0)
    if rho_nano == 0:
        return Decimal(0)
    beyond = Decimal(_best_order(rho_nano / NANO, epsilon_nano / NANO))
    calc = _DIGITS  # never the operators: they round to the digits that the process has set
    rho, epsilon = calc.divide(rho_nano, NANO), calc.divide(epsilon_nano, NANO)
    alpha = calc.add(beyond, 1)
    # log delta = (alpha - 1) (alpha rho - epsilon + log(alpha - 1)) - alpha log(alpha)
    slope = calc.add(calc.subtract(calc.multiply(alpha, rho), epsilon), calc.ln(beyond))
    log_delta = calc.subtract(calc.multiply(beyond, slope), calc.multiply(alpha, calc.ln(alpha)))
    if log_delta >= 0:
        return Decimal(1)
    delta = calc.multiply(calc.exp(max(log_delta, Decimal(_LEAST_LOG))), calc.add(1, _ERROR))
    return min(Decimal(1), _SHOWN.plus(delta))


def _best_order(rho: float, epsilon: float) -> float:
    """alpha - 1 where log delta is least, about: by halving, on a logarithmic scale."""
    low, high = -40.0, 40.0
    for _ in range(64):
        middle = (low + high) / 2
        beyond = exp(middle)
        if (1 + 2 * beyond) * rho - epsilon - log1p(1 / beyond) < 0:
            low = middle
        else:
            high = middle
    return exp(low)


@lru_cache(maxsize=256)
def rho_nano_of(epsilon_nano: int, delta: float | Decimal | str) -> int:
    """The largest rho, in nano-units, that implies (epsilon, delta)-DP, rounded down; may be 0.

    >>> rho_nano_of(10_000_000_000, 1e-6)
    1539278763
    """
    _check("epsilon_nano", epsilon_nano, 0)
    allowed = _allowed(delta)
    return last_nano(lambda rho_nano: delta_of(rho_nano, epsilon_nano) <= allowed)


@lru_cache(maxsize=256)
def epsilon_nano_of(rho_nano: int, delta: float | Decimal | str) -> int:
    """The least epsilon, in nano-units, that rho-zCDP implies together with this delta, rounded up.

    >>> epsilon_nano_of(1_539_278_763, 1e-6)
    9999999997
    """
    _check("rho_nano", rho_nano, 0)
    allowed = _allowed(delta)
    # `last_nano` asks for a condition that holds at 0, and here it would not.
    if delta_of(rho_nano, 0) <= allowed:
        return 0
    return 1 + last_nano(lambda epsilon_nano: delta_of(rho_nano, epsilon_nano) > allowed)


@lru_cache(maxsize=4096)
def epsilon_of(rho_nano: int, delta: float) -> float:
    """About the same, for records: an epsilon that holds, rounded up to six decimals; quick.

    Any alpha gives an epsilon that holds, and one in double precision is off by far less than what is added.

    >>> epsilon_of(1_539_278_763, 1e-6), epsilon_of(0, 1e-6)
    (10.0, 0.0)
    """
    _check("rho_nano", rho_nano, 0)
    if rho_nano == 0:
        return 0.0
    rho, log_delta = rho_nano / NANO, log(float(_allowed(delta)))

    def epsilon(log_beyond: float) -> float:
        beyond = exp(log_beyond)
        return (1 + beyond) * rho - log1p(1 / beyond) - (log_delta + log1p(beyond)) / beyond

    low, high = -5.0, 40.0
    for _ in range(80):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, right) if epsilon(left) < epsilon(right) else (left, high)
    least = max(0.0, epsilon(low))
    return ceil((least * (1 + 1e-12) + 1e-9) * 1e6) / 1e6


def rho_nano_of_pure(epsilon_nano: int) -> int:
    """The rho, in nano-units, that an epsilon of pure differential privacy costs: half of its square, rounded up.

    >>> rho_nano_of_pure(1_000_000_000), rho_nano_of_pure(1)
    (500000000, 1)
    """
    _check("epsilon_nano", epsilon_nano, 0)
    # Rounded up in integers alone: a float would lose the last digits of a large square.
    return -(-epsilon_nano * epsilon_nano // (2 * NANO))


def epsilon_of_both(epsilon_nano: int, rho_nano: int, delta: float) -> float:
    """About an epsilon that holds with this delta for charges of both kinds together, the pure ones summing to epsilon.

    The lesser of two that hold: the rho as an epsilon, beside the pure one; or all of it in rho, where pure charges
    that sum to epsilon cost at most epsilon^2 / 2, and then as an epsilon. (Equation 10 of *Adaptive Privacy Budgeting*
    is a third. It is never less than the second, as this conversion is exact.)

    >>> epsilon_of_both(2_000_000_000, 1_000_000_000, 1e-6), epsilon_of_both(200_000_000, 1_000_000_000, 1e-6)
    (9.766217, 7.85605)
    """
    # An epsilon has six decimals: as a whole number of them it is exact, and the sum is rounded once.
    beside = (epsilon_nano + round(epsilon_of(rho_nano, delta) * 1e6) * 1000) / NANO
    together = rho_nano + rho_nano_of_pure(epsilon_nano)
    if not epsilon_nano or not rho_nano or together > NANO_MAX:
        return beside
    return min(beside, epsilon_of(together, delta))


def last_nano(holds: Callable[[int], bool]) -> int:
    """The last number for which this holds, which it does for 0 and, if for one, for all below it.

    ValueError where that is beyond `NANO_MAX`.

    >>> last_nano(lambda nano: nano * nano <= 1000)
    31
    """
    low, high = 0, 1
    while holds(high):
        low, high = high, 2 * high
        if high > NANO_MAX:
            raise ValueError(f"expected a promise below {NANO_MAX} nano-units")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _allowed(delta: float | Decimal | str) -> Decimal:
    """A delta by its digits; ValueError unless it is between 0 and 1, both left out."""
    allowed = Decimal(str(delta))
    if not (allowed.is_finite() and 0 < allowed < 1):
        raise ValueError(f"expected 0 < delta < 1, got {delta}")
    return allowed


def _check(name: str, nano: int, least: int) -> None:
    if not least <= nano <= NANO_MAX:
        raise ValueError(f"expected {least} <= {name} <= {NANO_MAX}, got {nano}")


# Privacy filters: which sums of charges keep a promise, as pure arithmetic.
#
# A filter answers before a mechanism runs, from its charge and those before it, whether the promise still holds with it
# (Rogers, Roth, Ullman and Vadhan, NIPS 2016; for many users and for metrics: *Adaptive Privacy Budgeting*, Liang and
# Yi, Section 4.2). All that are here depend on the *sum* of the charges alone, and admit what keeps it within a limit.
# So the limit is computed once, the sum is a number, any ledger can store it, and a charge costs as much after a
# million others as it did at first. A charge that is refused leaves the sum as it was, and a smaller one may still fit
# (their Remark 2).
#
# * Of a promise of epsilon, charges in epsilon: the limit is epsilon (equation 7).
# * Of rho, zero-concentrated, charges in rho: it is rho (equation 7, Theorem 4.4).
# * Of (epsilon, delta) for swapped values, charges in rho: `conversion.rho_nano_of`, tighter than equation 10.
# * Of (epsilon, delta) per unit of distance, charges in rho per unit squared: `metric_rho_nano` (equation 10, Theorem
#   4.5).
#
# **Metric privacy.** There epsilon is per unit of a distance, such as a metre: two inputs at distance d are told apart
# by at most e^(epsilon d), and rho is per unit squared. With a delta that holds only up to some distance, the *reach*.
# Equation 10 admits a sum r if for some s > 1
#
#     max(g(s) sqrt(r), s reach r) <= epsilon,      g(s) = s / (s - 1) 2 sqrt(log(2 / ((s + 1) delta)))
#
# which needs (s + 1) delta < 2. g falls and s reach r rises in s, so the least maximum is where they cross. *Any* s
# gives an epsilon that holds, so the crossing may be searched for in any way, and only the value at what was found has
# to be rounded against us.

_METRIC_DIGITS = Context(prec=50)

_METRIC_ERROR = Decimal("1e-35")
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
    return _ceiling(_METRIC_DIGITS.multiply(_metric_epsilon(rho_nano, delta, reach), NANO))


def metric_rho_nano(epsilon_nano: int, delta: float, reach: Decimal | int) -> int:
    """The largest sum of rho, in nano-units, that equation 10 admits; may be 0.

    >>> metric_rho_nano(10 * NANO, 1e-6, 1)
    1463324569
    """
    allowed = _METRIC_DIGITS.divide(epsilon_nano, NANO)
    return last_nano(lambda rho_nano: _metric_epsilon(rho_nano, delta, reach) <= allowed)


def _metric_epsilon(rho_nano: int, delta: float, reach: Decimal | int) -> Decimal:
    """An epsilon that holds, by equation 10; the least there is, but for the error."""
    allowed, far = Decimal(str(delta)), Decimal(reach)
    if not 0 < allowed < 1 or not 0 < far < Decimal("Infinity") or rho_nano < 0:
        raise ValueError(f"expected 0 < delta < 1, a finite reach > 0 and rho >= 0, got {delta}, {reach}, {rho_nano}")
    if rho_nano == 0:
        return Decimal(0)
    calc = _METRIC_DIGITS  # never the operators: they round to the digits that the process has set
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
    return calc.multiply(max(sides(middle)), calc.add(1, _METRIC_ERROR))


def _ceiling(amount: Decimal) -> int:
    whole = int(amount)
    return whole + (whole != amount)
