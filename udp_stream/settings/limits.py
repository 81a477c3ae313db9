"""Tables of the configuration; bounds of single keys: epsilons and durations."""

from __future__ import annotations

from math import sqrt
from typing import Annotated

import msgspec

from udp_stream.base.errors import ConfigError
from udp_stream.base.units import NANO, duration_name, parse_duration
from udp_stream.ledger.rules import ROLLING
from udp_stream.mechanisms.noise import RHO_NANO_MIN
from udp_stream.planning.policy import EPSILON_NANO_MAX, FIXED_NANO_MIN


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of the configuration, or all of it: its keys, with their defaults."""


EPSILON_MIN = FIXED_NANO_MIN / NANO
EPSILON_MAX = EPSILON_NANO_MAX / NANO

Budget = Annotated[float, msgspec.Meta(ge=EPSILON_MIN, le=1e6)]
"""Up to 1e15 nano-epsilon: a ledger's amounts lie below 2**53."""
Epsilon = Annotated[float, msgspec.Meta(ge=0, le=EPSILON_MAX)]

EPSILON_RULE = f"0, {EPSILON_MIN:g} to {EPSILON_MAX:g}, or auto"

RHO_MIN = RHO_NANO_MIN / NANO
CONCENTRATED = sqrt(2 * RHO_MIN), sqrt(2 * EPSILON_NANO_MAX / NANO), "0, 0.001 to 44, or auto"
"""The least and the most of an epsilon that is counted in rho, half of its square, and the rule in
words."""

DURATIONS = {
    "hat.slot": ("1m", "31d"),
    "hat.grace": ("0s", "31d"),
    "pings.interval": ("1s", "36m"),
    "budget.period": ("1m", "36500d"),
    "live.every": ("1s", "1d"),
    "live.timeout": ("1s", "10m"),
    "live.max_age": ("10s", "36500d"),
    "queries.period": ("1m", "36500d"),
    "queries.age": ("1s", "31d"),
    "kafka.retention": ("1m", "36500d"),
    "kafka.idle_timeout": ("0.1s", "31d"),
}
"""The shortest and the longest. Milliseconds of a slot have 32 bits (49 days), years of a calendar
four digits."""


def milliseconds(duration: str) -> int:
    """Milliseconds of a duration, rounded."""
    return round(parse_duration(duration) * 1000)


def whole_seconds(name: str, duration: str) -> int:
    """Seconds of a slot or period, within `DURATIONS`: a length that divides a day or is whole
    days."""
    rule = f"a duration{' or lifetime' if name == 'queries.period' else ''}, as only budget.period may be rolling"
    require(not duration.startswith(ROLLING), name, rule, repr(duration))
    seconds = seconds_of(name, duration)
    whole = int(seconds)
    if seconds != whole or (86_400 % whole and whole % 86_400):
        raise ConfigError(
            f"{name}: expected at least 1m that divides a day, or whole days, got {duration!r}"
        )
    return whole


def budget_period(period: str) -> tuple[str, int | None]:
    """The name of a budget period as records have it, and its seconds (None: a lifetime);
    ConfigError if it is none."""
    name = "budget.period"
    if period == "lifetime":
        return period, None
    if not period.startswith(ROLLING):
        seconds = whole_seconds(name, period)
        return duration_name(seconds), seconds
    exact = seconds_of(name, period.removeprefix(ROLLING))
    require(exact == int(exact), name, "whole seconds", repr(period))
    return f"{ROLLING}{duration_name(int(exact))}", int(exact)


def seconds_of(name: str, duration: str) -> float:
    """Seconds of a duration. ConfigError if it is none, or not within `DURATIONS`."""
    try:
        seconds = parse_duration(duration)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error
    least, most = DURATIONS[name]
    require(
        parse_duration(least) <= seconds <= parse_duration(most),
        name,
        f"{least} to {most}",
        duration,
    )
    return seconds


def require(holds: bool, key: str, rule: str, value: object) -> None:
    """ConfigError, with the key, the rule and the value, unless it holds."""
    if not holds:
        raise ConfigError(f"{key}: expected {rule}, got {value}")


def require_box(name: str, box: tuple[float, float, float, float]) -> None:
    """ConfigError unless the box is [west, south, east, north] in degrees, on earth."""
    west, south, east, north = box
    on_earth = -180 <= west < east <= 180 and -90 <= south < north <= 90
    rule = (
        "[west, south, east, north] with -180 <= west < east <= 180 and -90 <= south < north <= 90"
    )
    require(on_earth, name, rule, list(box))
