"""What a ping must be to be accepted: the unit of its speed, the range of its values, the size of its message."""

from __future__ import annotations

import math
from dataclasses import dataclass

from udp_stream.units import KMH_PER_UNIT, KMH_QUANTUM, QUANTA_PER_KMH

_YEAR_2000_MS = 946_684_800_000
_YEAR_2100_MS = 4_102_444_800_000
_MAX_QUANTA = 2**31 - 1  # speeds are kept in columns of 32 bits, signed

PLACEHOLDERS = frozenset({"null", "none", "n/a", "na", "nan", "unknown", "undefined"})
"""Words, in small letters, that stand where a plate is missing. All vehicles without one would share a budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PingRules:
    """What is accepted. A pure value; ValueError names the field, the value and the rule that it breaks.

    `unit`: of the source's speeds. `max_kmh`: faster pings are clamped to it. `reject_above_kmh`: faster ones are
    refused, this speed itself is not. `box`: west, south, east, north in degrees, edges included; it cannot cross the
    antimeridian. Times are accepted from `earliest_ms` up to but not `latest_ms`, Unix milliseconds.

    `max_pings_per_message`: twice the 5,000 that the exchange's API gives in one answer. `max_message_bytes`: 8 MiB
    holds that many pings of 800 bytes (the exchange's have about 490).

    >>> PingRules(max_kmh=65, reject_above_kmh=200).max_quanta
    266240
    >>> PingRules(max_kmh=65, reject_above_kmh=50)
    Traceback (most recent call last):
    ValueError: expected reject_above_kmh to be finite and >= max_kmh (65), got 50
    """

    unit: str = "kmh"
    max_kmh: float
    reject_above_kmh: float
    box: tuple[float, float, float, float] | None = None
    earliest_ms: int = _YEAR_2000_MS
    latest_ms: int = _YEAR_2100_MS
    max_message_bytes: int = 8 * 2**20
    max_pings_per_message: int = 10_000

    def __post_init__(self) -> None:
        """Hold every field to its rule."""
        _expect(self.unit in KMH_PER_UNIT, "unit", self.unit, f"to be one of {', '.join(KMH_PER_UNIT)}")
        highest = _MAX_QUANTA // QUANTA_PER_KMH
        _expect(KMH_QUANTUM <= self.max_kmh <= highest, "max_kmh", self.max_kmh, f"in [{KMH_QUANTUM}, {highest}]")
        _expect(
            self.max_kmh <= self.reject_above_kmh < math.inf,
            *("reject_above_kmh", self.reject_above_kmh, f"to be finite and >= max_kmh ({self.max_kmh})"),
        )
        if self.box is not None:
            rule = "to be west, south, east, north with -180 <= west < east <= 180 and -90 <= south < north <= 90"
            _expect(len(self.box) == 4, "box", self.box, rule)
            west, south, east, north = self.box
            _expect(-180 <= west < east <= 180 and -90 <= south < north <= 90, "box", self.box, rule)
        _expect(self.earliest_ms < self.latest_ms, "earliest_ms", self.earliest_ms, f"< latest_ms ({self.latest_ms})")
        _expect(self.max_message_bytes >= 1, "max_message_bytes", self.max_message_bytes, ">= 1")
        _expect(self.max_pings_per_message >= 1, "max_pings_per_message", self.max_pings_per_message, ">= 1")

    @property
    def max_quanta(self) -> int:
        """The highest speed that a ping may have, in quanta: `max_kmh` rounded down."""
        return math.floor(self.max_kmh * QUANTA_PER_KMH)


def _expect(holds: bool, name: str, value: object, rule: str) -> None:
    if not holds:
        raise ValueError(f"expected {name} {rule}, got {value!r}")
