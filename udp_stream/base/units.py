"""Units: integer money, durations, and the lattice on which speeds live.

Money is integers: budgets and charges are nano-epsilon, charges rounded up and allowances down.
Speeds are integers too: multiples of `KMH_QUANTUM`, a power of two, so that sums are exact, do not
depend on the order of addition, and can carry discrete noise.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from math import prod

NANO = 10**9

QUANTA_PER_KMH = 4096
"""Speeds are whole numbers of 1/4096 km/h: far finer than any sensor, far below any noise."""

KMH_QUANTUM = 1 / QUANTA_PER_KMH

KMH_PER_UNIT = {"kmh": 1.0, "mps": 3.6, "mph": 1.609344, "knots": 1.852}


def factor_in_words(units: Sequence[str], configured: str) -> str:
    """A unit that may be any of these, by how many times it is the configured unit.

    >>> factor_in_words(["mph", "knots"], "kmh"), factor_in_words([], "kmh")
    ('another unit, by a factor of about 1.7', 'another unit')
    """
    factors = [KMH_PER_UNIT[unit] / KMH_PER_UNIT[configured] for unit in units]
    if not factors:
        return "another unit"
    return f"another unit, by a factor of about {prod(factors) ** (1 / len(factors)):.2g}"


_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([smhdw])")


def nano_charge(amount: float | Decimal) -> int:
    """Nano-units of a charge, rounded up; the decimal digits a user typed are taken at their word.

    >>> nano_charge(0.1), nano_charge(Decimal("0.0000000001"))
    (100000000, 1)
    """
    return int((Decimal(str(amount)) * NANO).to_integral_value(ROUND_CEILING))


def nano_allowance(amount: float | Decimal) -> int:
    """Nano-units of a budget, rounded down."""
    return int((Decimal(str(amount)) * NANO).to_integral_value(ROUND_FLOOR))


def amount_text(nano: int) -> str:
    """Nano-units in units, exactly."""
    return plain(Decimal(nano) / NANO)


def plain(number: float | Decimal) -> str:
    """In digits, without an exponent and without zeros at the end."""
    text = format(Decimal(str(number)), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def parse_duration(text: str) -> float:
    """Seconds of a duration such as `90s`, `2m`, `1h`, `1d` or `2w`, inf if too long for any;
    ValueError with the rule.

    >>> parse_duration("1h"), parse_duration("1.5m")
    (3600.0, 90.0)
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"expected a number and s, m, h, d or w, such as 90s, 2m, 1.5h, 1d or 1w, got {text!r}"
        )
    return float(match[1]) * _SECONDS[match[2]]


def duration_name(seconds: int) -> str:
    """The spelling of a duration in whole seconds, in records and in the ledger."""
    unit, size = next(
        (unit, size)
        for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))
        if seconds % size == 0
    )
    return f"{seconds // size}{unit}"


REPEATS_SHARE = 1 / 20
"""Share of pings: if more are repeats, it is said."""


def counted(number: int, noun: str, plural: str = "") -> str:
    """The number and what it counts.

    >>> counted(1, "HAT"), counted(5000, "HAT"), counted(0, "entry", "entries")
    ('1 HAT', '5,000 HATs', '0 entries')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
