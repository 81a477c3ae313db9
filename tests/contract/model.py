"""A ledger as lists and dictionaries, without a line of the product: what was asked, in its order, and what follows
from it. Times are seconds since `START`."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from math import inf
from typing import NamedTuple

HOUR_S = 3600
START = 1_704_758_400
DAYS = [datetime(2024, 1, 9 + day, tzinfo=UTC) for day in range(3)]
INDIA = timezone(timedelta(hours=5, minutes=30))


class Period(NamedTuple):
    """Whose budget it is a part of, when it begins and ends, and how long windows are: 0 of a calendar's."""

    account: str
    start: float
    end: float
    window: int = 0

    def over_at(self) -> float:
        """The time from which on nothing of it is charged or looked at; a clock may make a day shorter by an hour."""
        return self.end + self.window + self.end - self.start if self.window else self.end - HOUR_S


PERIODS: dict[str, Period] = {}
"""By their names; an unknown name is of no time."""


def span_at(
    start_s: int, seconds: int, hours: int = 3, unit: str = "", zone: timezone = UTC
) -> str:
    """The name of a rolling budget's span."""
    ends = (
        datetime.fromtimestamp(START + at, zone).isoformat() for at in (start_s, start_s + seconds)
    )
    name = f"rolling {hours}h from {' to '.join(ends)}{unit}"
    PERIODS[name] = Period(f"{hours}h{unit}", start_s, start_s + seconds, hours * HOUR_S)
    return name


def day_at(number: int, days: int = 1, before: str = "", unit: str = "") -> str:
    """The name of a calendar's period of so many days."""
    name = f"{before}{days}d from {DAYS[number].isoformat()}{unit}"
    PERIODS[name] = Period(name, number * 24 * HOUR_S, (number + days) * 24 * HOUR_S)
    return name


def periods_of(hour: int) -> list[str]:
    """Periods that an hour is charged to: of days, and rolling, whose spans differ in zone, length and unit."""
    day, start = hour // 24, hour * HOUR_S
    unit = " in rho"
    often = [day_at(day), day_at(0), day_at(0, 7), span_at(start, HOUR_S)]
    days = [
        day_at(day, unit=unit),
        day_at(day, before="positions ", unit=unit),
        day_at(0, 30),
        "lifetime",
    ]
    odd = [span_at(start + 900, 900, zone=INDIA), span_at(start, 4 * HOUR_S, 2)]
    return [*often, *days, *odd, span_at(start, HOUR_S, unit=unit), span_at(start, 3 * HOUR_S)]


for _hour in range(30):
    periods_of(_hour)


def spans_near(name: str) -> list[str]:
    """Those that share a window with a span."""
    ours = PERIODS.get(name)
    if ours is None or not ours.window:
        return []
    near = [(other, one) for other, one in PERIODS.items() if one.account == ours.account]
    return [other for other, one in near if -ours.window < one.start - ours.start < ours.window]


class Ask(NamedTuple):
    """A HAT asks to charge plates; `most` are allowances."""

    release_id: str
    charges: Mapping[bytes, int]
    least: int = 0
    terms: bytes = b""
    most: Mapping[bytes, int] | None = None


@dataclass
class Held:
    """What is remembered of an id."""

    release_id: str
    period: str
    budget: int
    charged: dict[bytes, int]
    terms: bytes
    payload: bytes | None = None
    published: bool = False


class Refused(Exception):
    """The ledger refuses it, too."""


@dataclass
class Model:
    """All that is remembered, oldest first, and in which order it was recorded."""

    ends: Mapping[str, float]
    held: dict[str, Held] = field(default_factory=dict)
    moved: list[Held] = field(default_factory=list)
    recorded: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    notes: dict[str, str] = field(default_factory=dict)
    closed: float = -inf

    def copy(self) -> "Model":
        return deepcopy(self)

    def spent(self, period: str, plate: bytes) -> int:
        """What a plate was charged of a period's budget: of a rolling one the most in any window that touches it."""
        ours = PERIODS.get(period, Period(period, -inf, inf))
        charges = []
        for held in self.held.values():
            other = PERIODS.get(held.period, Period(held.period, -inf, inf))
            if other.account == ours.account and held.charged.get(plate):
                charges.append((other, held.charged[plate]))
        if not ours.window:
            return sum(nano for _, nano in charges)
        begins = range(int(ours.start) - ours.window + 450, int(ours.end), 900)
        return max(
            sum(
                nano for one, nano in charges if one.start < at + one.window and at < one.end
            )
            for at in begins
        )  # fmt: skip

    def largest_budget(self, period: str) -> int:
        account = PERIODS[period].account if period in PERIODS else period
        ours = [
            one
            for one in self.held.values()
            if PERIODS.get(one.period, Period(one.period, 0, 0)).account == account
        ]
        return max(one.budget for one in ours)

    def balances(self) -> dict[tuple[str, bytes], tuple[int, int]]:
        """Amounts and numbers of charges, by period and plate."""
        found: dict[tuple[str, bytes], tuple[int, int]] = {}
        for held in self.held.values():
            for plate, nano in held.charged.items():
                if nano:
                    before = found.get((held.period, plate), (0, 0))
                    found[held.period, plate] = before[0] + nano, before[1] + 1
        return found

    def require_open(self, ids: Iterable[str]) -> None:
        if any(self.closes(name) <= self.closed for name in ids):
            raise Refused

    def closes(self, release_id: str) -> float:
        return inf if release_id.startswith("withdrawn:") else self.ends.get(release_id, inf)

    def admit(
        self, period: str, budget: int, asked: Sequence[Ask]
    ) -> list[tuple[list[int], bytes]]:
        self.require_open(one.release_id for one in asked if one.release_id not in self.held)
        return [self._admit(period, budget, one) for one in asked]

    def _admit(self, period: str, budget: int, asked: Ask) -> tuple[list[int], bytes]:
        name = asked.release_id
        if name not in self.held:
            charged = {}
            for plate, nano in asked.charges.items():
                limit = min(budget, (asked.most or {}).get(plate, budget))
                charged[plate] = nano if self.spent(period, plate) + nano <= limit else 0
            if sum(map(bool, charged.values())) < asked.least:
                charged = dict.fromkeys(charged, 0)
            self.held[name] = Held(name, period, budget, charged, asked.terms)
            self.counts["admitted"] += 1
        held = self.held[name]
        return [held.charged.get(plate, 0) for plate in asked.charges], held.terms

    def require_admitted(self, releases: Sequence[tuple[str, bytes]]) -> None:
        if any(name not in self.held for name, _ in releases):
            raise Refused

    def record(self, releases: Sequence[tuple[str, bytes]]) -> list[bytes]:
        self.require_open(name for name, _ in releases if self.held[name].payload is None)
        for name, payload in releases:
            if self.held[name].payload is None:
                self.held[name].payload = payload
                self.recorded.append(name)
                self.counts["recorded"] += 1
        return [self.held[name].payload or b"" for name, _ in releases]

    def published(self, ids: Iterable[str]) -> None:
        for name in ids:
            if name in self.held and self.held[name].payload is not None:
                self.held[name].published = True

    def waiting(self) -> list[tuple[str, bytes]]:
        found = [self.held[name] for name in self.recorded if name in self.held]
        return [(one.release_id, one.payload or b"") for one in found if not one.published]

    def archive(self, before: float) -> list[Held]:
        """What is moved: all of each period that is over by then, in which nothing is of a later time."""
        over = {period for period, _ in self.balances() if self._is_over(period, before)}
        if not over:
            raise Refused
        self.closed = max(self.closed, before)
        late = {
            one.period for one in self.held.values() if self.ends.get(one.release_id, inf) > before
        }
        moved = [
            one
            for one in self.held.values()
            if self._is_over(one.period, before) and one.period not in late
        ]
        for one in moved:
            del self.held[one.release_id]
        self.recorded = [name for name in self.recorded if name in self.held]
        self.moved += moved
        return moved

    def _is_over(self, period: str, before: float) -> bool:
        return period in PERIODS and PERIODS[period].over_at() <= before
