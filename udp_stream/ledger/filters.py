"""Privacy filters, and conversions between the measures of a promise. Never rounded in our favour.

A filter answers before a mechanism runs, from its charge and those before it, whether the promise
still holds with it (Rogers, Roth, Ullman and Vadhan, NIPS 2016; for many users: *Adaptive Privacy
Budgeting*, Liang and Yi, Section 4.2). All filters here depend on the *sum* of the charges alone
and admit what keeps it within a limit. So the limit is computed once, any ledger can store the sum,
and a charge costs as much after a million others as it did at first. A refused charge leaves the
sum as it was, and a smaller one may still fit (their Remark 2).

* For a promise of epsilon, with charges in epsilon, the limit is epsilon (equation 7, Corollary
  4.1).
* For rho, zero-concentrated, with charges in rho, it is rho (equation 7, Theorem 4.4).
* For (epsilon, delta), with charges in rho, it is `rho_nano_of(epsilon, delta)`.

By distance (metric privacy) both are per unit of distance, or per unit squared. The limits are the
same.

**To (epsilon, delta).** A rho-zCDP mechanism is (epsilon, delta)-DP for every alpha > 1 with

    delta = exp((alpha - 1)(alpha rho - epsilon)) / (alpha - 1) * (1 - 1/alpha)^alpha

(Canonne, Kamath and Steinke, arXiv 2004.00010, Corollary 13). *Every* alpha gives a delta that
holds, so the search for the best one needs no proof; only the value that is found must not be
rounded in our favour. It is computed in 80 decimal digits, from operations that are each off by at
most half a unit in the last place (`decimal` rounds ln and exp correctly). With amounts up to
`NANO_MAX` no intermediate value exceeds 10^41, so log delta is off by less than 10^-38, and delta
by less than the share of 10^-30 that is added to it.

log delta is convex in alpha: its second derivative is 2 rho + 1 / (alpha (alpha - 1)). So the best
alpha is where the first one, (2 alpha - 1) rho - epsilon + log(1 - 1/alpha), vanishes, and a
double's error in alpha makes log delta larger by about 10^-32 epsilon^2 / rho. So the answers are
the extreme nano-units at which this conversion holds, in all but cases that miss it by less than
that.

**From pure.** An epsilon-DP mechanism is epsilon^2/2 - zCDP (Bun and Steinke, arXiv 1605.02065,
Proposition 3.3).

Amounts are integers, in nano-units; a delta is taken by the digits in which it is written.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from functools import lru_cache
from math import ceil, exp, log, log1p, sqrt

from udp_stream.base.units import NANO, amount_text

_DIGITS = Context(prec=80)

_ERROR = Decimal("1e-30")
"""Added to a delta, as a share of it: far more than what rounding can take from it."""

_LEAST_LOG = -1000
"""Smaller deltas are not told apart: no double is as small."""

_SHOWN = Context(prec=17, rounding=ROUND_CEILING)

NANO_MAX = 10**15
"""Largest epsilon and rho, in nano-units: a million, far above any that says anything."""


@dataclass(frozen=True, order=True, slots=True)
class Loss:
    """The most that a plate can lose: an epsilon and, beside it, a rho; nano-units of each.

    >>> together = Loss(10 * NANO) + Loss(rho_nano=NANO)
    >>> str(together), together.within(Loss(20 * NANO)), Loss(5).within(Loss(5))
    ('epsilon 10 and rho 1', False, True)
    """

    epsilon_nano: int = 0
    rho_nano: int = 0

    def __add__(self, other: Loss) -> Loss:
        return Loss(self.epsilon_nano + other.epsilon_nano, self.rho_nano + other.rho_nano)

    def within(self, other: Loss) -> bool:
        return self.epsilon_nano <= other.epsilon_nano and self.rho_nano <= other.rho_nano

    def __str__(self) -> str:
        parts = [f"rho {amount_text(self.rho_nano)}"] if self.rho_nano else []
        if self.epsilon_nano or not parts:
            parts.insert(0, f"epsilon {amount_text(self.epsilon_nano)}")
        return " and ".join(parts)


def delta_of(rho_nano: int, epsilon_nano: int) -> Decimal:
    """A delta, rounded up, such that rho-zCDP implies (epsilon, delta)-DP; at most 1."""
    _check("rho_nano", rho_nano, 0)
    _check("epsilon_nano", epsilon_nano, 0)
    if rho_nano == 0:
        return Decimal(0)
    beyond = Decimal(_best_order(rho_nano / NANO, epsilon_nano / NANO))
    calc = _DIGITS  # never the operators: they round to the digits that the process has set
    rho = calc.divide(rho_nano, NANO)
    epsilon = calc.divide(epsilon_nano, NANO)
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
    low = -40.0
    high = 40.0
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
    """The largest rho, in nano-units, that implies (epsilon, delta)-DP, rounded down; may be 0."""
    _check("epsilon_nano", epsilon_nano, 0)
    allowed = _allowed(delta)
    # At 0 delta is 0, and it grows with rho.
    amounts = range(NANO_MAX + 1)
    return bisect_left(amounts, True, key=lambda nano: delta_of(nano, epsilon_nano) > allowed) - 1


@lru_cache(maxsize=4096)
def epsilon_of(rho_nano: int, delta: float) -> float:
    """About the least epsilon that rho-zCDP implies together with this delta, for records and quick:
    an epsilon that holds, rounded up to six decimals."""
    _check("rho_nano", rho_nano, 0)
    if rho_nano == 0:
        return 0.0
    rho = rho_nano / NANO
    log_delta = log(float(_allowed(delta)))

    def epsilon(log_beyond: float) -> float:
        beyond = exp(log_beyond)
        return (1 + beyond) * rho - log1p(1 / beyond) - (log_delta + log1p(beyond)) / beyond

    low = -5.0
    high = 40.0
    for _ in range(80):
        left = low + (high - low) / 3
        right = high - (high - low) / 3
        low, high = (low, right) if epsilon(left) < epsilon(right) else (left, high)
    least = max(0.0, epsilon(low))
    return ceil((least * (1 + 1e-12) + 1e-9) * 1e6) / 1e6


def rho_nano_of_pure(epsilon_nano: int) -> int:
    """The rho, in nano-units, that an epsilon of pure differential privacy costs: half of its
    square, rounded up."""
    _check("epsilon_nano", epsilon_nano, 0)
    # Rounded up in integers alone: a float would lose the last digits of a large square.
    return -(-epsilon_nano * epsilon_nano // (2 * NANO))


def epsilon_of_both(epsilon_nano: int, rho_nano: int, delta: float) -> float:
    """About an epsilon that holds with this delta for charges of both kinds together, the pure ones
    summing to epsilon.

    The lesser of two that hold: the rho as an epsilon, beside the pure one; or all of it in rho,
    where pure charges that sum to epsilon cost at most epsilon^2 / 2, and then as an epsilon.
    (Equation 10 of *Adaptive Privacy Budgeting* is a third. It is never less than the second, as
    this conversion is exact.)
    """
    # An epsilon has six decimals: as a whole number of them it is exact, and the sum is rounded
    # once.
    beside = (epsilon_nano + round(epsilon_of(rho_nano, delta) * 1e6) * 1000) / NANO
    together = rho_nano + rho_nano_of_pure(epsilon_nano)
    if not epsilon_nano or not rho_nano or together > NANO_MAX:
        return beside
    return min(beside, epsilon_of(together, delta))


def epsilon_within(rho_nano: int, delta: float, most: float) -> float:
    """About the least epsilon per unit of distance that a rho per unit squared implies with this
    delta, of inputs up to `most` units apart; rounded up to six decimals.

    *Adaptive Privacy Budgeting*, equation 10 and Theorem 4.5: the least over s > 1 of max(g(s)
    sqrt(rho), s most rho), with g(s) = 2 s / (s - 1) sqrt(log(2 / ((s + 1) delta))). Every s with
    (s + 1) delta < 2 gives one that holds.
    """
    _check("rho_nano", rho_nano, 0)
    if not 0 < most < float("inf"):
        raise ValueError(f"expected a finite distance above 0, got {most}")
    rho = rho_nano / NANO
    small = float(_allowed(delta))

    def both(s: float) -> tuple[float, float]:
        return 2 * s / (s - 1) * sqrt(rho * log(2 / ((s + 1) * small))), s * most * rho

    low = 1.0
    high = 2 / small - 1  # the first falls in s, the second rises
    while high - low > 1e-12 * low:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        falling, rising = both(middle)
        low, high = (middle, high) if falling > rising else (low, middle)
    least = min(max(both(s)) for s in (low, high) if 1 < s < 2 / small - 1)
    return ceil((least * (1 + 1e-12)) * 1e6) / 1e6


def _allowed(delta: float | Decimal | str) -> Decimal:
    """A delta by its digits; ValueError unless it is between 0 and 1, both left out."""
    allowed = Decimal(str(delta))
    if not (allowed.is_finite() and 0 < allowed < 1):
        raise ValueError(f"expected 0 < delta < 1, got {delta}")
    return allowed


def _check(name: str, nano: int, least: int) -> None:
    if not least <= nano <= NANO_MAX:
        raise ValueError(f"expected {least} <= {name} <= {NANO_MAX}, got {nano}")
