"""Public parameters of "add-remove", fixed before any ping: the domain, a whole slot's pings, the
scale of the noise."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import isqrt

from udp_stream.base.arrays import Cells, Integers
from udp_stream.base.units import NANO, QUANTA_PER_KMH
from udp_stream.mechanisms.add_remove import GAIN, PlateQuery
from udp_stream.mechanisms.samplers import SCALE_MAX
from udp_stream.planning.policy import Policy

SCALE_KMH2 = 2000
"""Assumed sum of squares of a plate's day of 24 slots, (km/h)^2: the budget then lasts for most
plates."""

SCALE_PLATES_KMH2 = 5000
"""The same where numbers of plates are asked."""

CITY_KMH2 = 9000
SPREAD_KMH2 = 500
DAY_KMH2 = 10_000
"""The same of a plate's sums over the city, of its time in bins of speed, and of its sums over the
day."""

PARTS = (
    (24_355_970, 4000, 1000, 0),
    (88_152_688, 2500, 500, 0),
    (311_064_954, 2500, 500, 500),
    (1_539_278_756, 1000, 300, 500),
)
"""Nano-rho of a day (epsilon 1, 2, 4 and 10 at a delta of 1e-6), and of 10,000 parts of it those of
cell x day, of city x hour, and of the city's spread of speeds in an hour.
Below epsilon 2 a CDF would err by more than the city's own."""

WHOLE = 10_000
DAY_S = 86_400


@dataclass(frozen=True, eq=False)
class AddRemoveRules:
    """Public settings of "add-remove". `cells` is the domain, ascending, `digest` its hash; `full`
    the pings of a plate that stays for a whole slot; `sigma` of the noise in quanta; `active` the
    slots of a day over which a balance is spent. `first_sigma` holds before a day has been learnt:
    then cells and slots get the whole budget. Else the city has entries of the gain `city`, its bins
    of speed those of the gain `spread`, and sums of a day noise of `day_sigma`, for which `day_nano`
    of each plate are kept. These are 0 where numbers of plates are asked, or a day's noise cannot be
    drawn; `spread`, where no CDF is asked, or the budget is too weak for it; those of the day, where
    no whole days make the period.

    >>> import numpy as np
    >>> from msgspec.structs import replace
    >>> from udp_stream.settings import Settings
    >>> policy = replace(Settings().policy, neighbours="add-remove", interval_ms=10_000)
    >>> rules = AddRemoveRules.of(policy, np.array([0x87608C4D2FFFFFF], dtype=np.uint64))
    >>> rules.full, rules.active, [round(one / QUANTA_PER_KMH, 1) for one in (rules.first_sigma, rules.sigma, rules.day_sigma)]
    (360, 12, [25.5, 28.1, 180.2])
    """

    cells: Cells
    full: int
    sigma: int
    active: int
    plates: bool
    slot_hours: float
    max_kmh: float
    digest: str
    first_sigma: int = 0
    city: int = 0
    spread: int = 0
    day_sigma: int = 0
    day_nano: int = 0

    @classmethod
    def of(cls, policy: Policy, cells: Cells) -> AddRemoveRules:
        """Rules of a policy under "add-remove"; slots divide its period, and pings are at most a
        tenth of a slot apart."""
        period_s = policy.period_seconds or policy.slot_seconds
        slots = period_s // policy.slot_seconds
        budget = policy.budget_nano
        of_day, of_city, of_spread = parts_of(budget * DAY_S // period_s)
        day_nano = budget * of_day // WHOLE // policy.days
        day_sigma = _sigma(DAY_KMH2 * (slots // policy.days) ** 2, 24**2 * max(day_nano, 1))
        if policy.plates or day_sigma > SCALE_MAX:
            of_day = of_city = of_spread = 0
        if not policy.shapes:
            of_spread = 0
        if period_s % DAY_S:
            of_day = 0
        rest = WHOLE - of_day - of_city - of_spread
        return cls(
            cells=cells,
            full=policy.slot_seconds * 1000 // policy.interval_ms,
            sigma=sigma_of(budget * rest // WHOLE, slots, plates=policy.plates),
            first_sigma=sigma_of(budget, slots, plates=policy.plates),
            city=isqrt(GAIN**2 * SCALE_KMH2 * of_city // (CITY_KMH2 * rest)),
            spread=isqrt(GAIN**2 * SCALE_KMH2 * of_spread // (SPREAD_KMH2 * rest)),
            active=-(-slots // (2 * policy.days)),
            plates=policy.plates,
            slot_hours=policy.slot_seconds / 3600,
            max_kmh=policy.max_speed / QUANTA_PER_KMH,
            digest=policy.domain,
            day_sigma=day_sigma if of_day else 0,
            day_nano=day_nano if of_day else 0,
        )

    def query(self, forecast: Integers, *, is_first: bool) -> PlateQuery:
        """The question of a slot; `is_first` before a day has been learnt."""
        if is_first:
            return PlateQuery(forecast, self.full, self.first_sigma, self.plates)
        max_speed = int(self.max_kmh * QUANTA_PER_KMH) if self.spread else 0
        return PlateQuery(
            forecast, self.full, self.sigma, self.plates, self.city, self.spread, max_speed
        )


def parts_of(day_nano: int) -> tuple[int, int, int]:
    """Parts of a day's nano-rho, of `WHOLE` in all: those of cell x day, of city x hour, and of the
    spread of speeds.

    >>> parts_of(1_000_000), parts_of(1_539_278_763), parts_of(900_000_000)
    ((4000, 1000, 0), (1000, 300, 500), (1780, 404, 500))
    """
    if day_nano <= PARTS[0][0]:
        return PARTS[0][1:]
    for (low, *before), (high, *after) in pairwise(PARTS):
        if day_nano < high:
            day, city, spread = (
                (one * (high - day_nano) + other * (day_nano - low)) // (high - low)
                for one, other in zip(before, after, strict=True)
            )
            return day, city, spread
    return PARTS[-1][1:]


def sigma_of(rho_nano: int, slots: int, *, plates: bool) -> int:
    """The deviation of the noise in quanta, rounded up: squares of the scale, for these slots, cost
    the whole rho.

    >>> sigma_of(1_539_278_763, 24, plates=False), sigma_of(10**9, 48, plates=True)
    (104401, 289631)
    """
    scale = SCALE_PLATES_KMH2 if plates else SCALE_KMH2
    return _sigma(scale * slots, 24 * max(rho_nano, 1))


def _sigma(kmh2: int, rho_nano: int) -> int:
    squares = kmh2 * QUANTA_PER_KMH**2 * NANO
    return isqrt((squares - 1) // (2 * rho_nano)) + 1
