"""Public parameters of "add-remove", fixed before any ping: the domain, a whole slot's pings, the
scale of the noise."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from udp_stream.planning.policy import Policy
from udp_stream.units import NANO, QUANTA_PER_KMH

SCALE_KMH2 = 2000
"""Assumed sum of squares of a plate's day of 24 slots, (km/h)^2: the budget then lasts for most
plates."""

SCALE_PLATES_KMH2 = 5000
"""The same where numbers of plates are asked."""


@dataclass(frozen=True, eq=False)
class AddRemoveRules:
    """Public settings of "add-remove". `cells` is the domain, ascending, `digest` its hash; `full`
    the pings of a plate that stays for a whole slot; `sigma` of the noise in quanta; `active` the
    slots of a day over which a balance is spent.

    >>> from msgspec.structs import replace
    >>> from udp_stream.settings import Settings
    >>> policy = replace(Settings().policy, neighbours="add-remove", interval_ms=10_000)
    >>> rules = AddRemoveRules.of(policy, np.array([0x87608C4D2FFFFFF], dtype=np.uint64))
    >>> rules.full, rules.active, round(rules.sigma / QUANTA_PER_KMH, 2)
    (360, 12, 25.49)
    """

    cells: NDArray[np.uint64]
    full: int
    sigma: int
    active: int
    plates: bool
    slot_hours: float
    max_kmh: float
    digest: str

    @classmethod
    def of(cls, policy: Policy, cells: NDArray[np.uint64]) -> AddRemoveRules:
        """Rules of a policy under "add-remove"; slots divide its period, and pings are at most a
        tenth of a slot apart."""
        slots = (policy.period_seconds or policy.slot_seconds) // policy.slot_seconds
        return cls(
            cells=cells,
            full=policy.slot_seconds * 1000 // policy.interval_ms,
            sigma=sigma_of(policy.budget_nano, slots, plates=policy.plates),
            active=-(-slots // (2 * policy.days)),
            plates=policy.plates,
            slot_hours=policy.slot_seconds / 3600,
            max_kmh=policy.max_speed / QUANTA_PER_KMH,
            digest=policy.domain,
        )


def sigma_of(rho_nano: int, slots: int, *, plates: bool) -> int:
    """The deviation of the noise in quanta, rounded up: squares of the scale, for these slots, cost
    the whole rho.

    >>> sigma_of(1_539_278_763, 24, plates=False), sigma_of(10**9, 48, plates=True)
    (104401, 289631)
    """
    scale = SCALE_PLATES_KMH2 if plates else SCALE_KMH2
    squares = scale * QUANTA_PER_KMH**2 * slots * NANO
    costs = 24 * 2 * rho_nano
    return isqrt((squares - 1) // costs) + 1
