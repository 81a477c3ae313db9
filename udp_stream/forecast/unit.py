"""Whether the releases of a slot are of speeds in another unit: off by a factor that no weather
has, all of them.

Post-processing of releases and forecasts, so it costs nothing (docs/operations.md, "A unit in
doubt"). Clips saturate, and parked buses stay at 0 in any unit. So a factor is what the clips show
of it, which is nearer to 1: of a unit that makes speeds 3.6 times as large, 1.5 to 2.5.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from udp_stream.arrays import Floats
from udp_stream.forecast.anomalies import log_likelihoods
from udp_stream.forecast.model import HatPredictions, ReleasedHats
from udp_stream.units import KMH_PER_UNIT, factor_in_words

ORDINARY: Final = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25)
"""Ratios of a city's speeds to their forecasts that any day may have, storms and empty roads
included."""

SLOWER = (0.25, 1 / 3.6, 0.35)
FASTER = (1.5, 1.7, 2.0, 3.0)
"""Speeds of m/s in place of km/h, and of km/h in place of m/s, as clips show them."""

ENOUGH: Final = 13.1
"""Evidence that a verdict takes: the log of how much likelier another unit has made the releases.
By chance it is reached in n slots with a probability of at most 2 n exp(-13.1), where noise is as
recorded (Ville's inequality): in a day below 1e-4."""

OF_A_SLOT: Final = ENOUGH / 2
"""Most evidence that a slot counts for: an hour's storm or strike, however strange, is no
verdict."""

KNOWN_VARIANCE: Final = 9.0
"""Largest variance of the best known HAT, km2/h2, at which the city's usual speed counts as known;
else nothing is said."""


class Evidence(NamedTuple):
    """Log-likelihood ratios for a unit that makes speeds slower, and for a unit that makes them
    faster.

    >>> Evidence(5.0, 0.0).more((9.0, -1.0)), Evidence(7.0, 0.0).more((9.0, -1.0)).is_enough
    (Evidence(slower=11.55, faster=0.0), True)
    """

    slower: float = 0.0
    faster: float = 0.0

    def more(self, of_slot: tuple[float, float]) -> Evidence:
        """Evidence with that of the next slot; never below 0, as a unit may change at any time
        (CUSUM)."""
        return Evidence(
            *(max(0.0, old + min(new, OF_A_SLOT)) for old, new in zip(self, of_slot, strict=True))
        )

    @property
    def is_any(self) -> bool:
        return max(self) > 0

    @property
    def is_enough(self) -> bool:
        return max(self) >= ENOUGH


class UnitDoubt(NamedTuple):
    """Releases that may be of speeds in another unit, of slots that start from `since` until
    `until` (ISO 8601). `configured` is the unit that was set, `likely` the other unit in words.

    >>> UnitDoubt("2024-01-08T12:00:00+05:30", "2024-01-08T15:00:00+05:30", 40, "kmh", "'mps'").released
    40
    """

    since: str
    until: str
    released: int
    configured: str
    likely: str


def likely_unit(evidence: Evidence, configured: str) -> str:
    """The other unit in words: by name where it is the only unit that no ordinary day explains.

    >>> likely_unit(Evidence(slower=20.0), "kmh"), likely_unit(Evidence(faster=20.0), "mph")
    ("'mps'", "'kmh'")
    >>> likely_unit(Evidence(faster=20.0), "mps")
    'another unit, by a factor of about 0.4'
    """
    factors = {unit: KMH_PER_UNIT[configured] / kmh for unit, kmh in KMH_PER_UNIT.items()}
    if evidence.faster > evidence.slower:
        fits = [unit for unit, factor in factors.items() if factor > max(ORDINARY)]
    else:
        fits = [unit for unit, factor in factors.items() if factor < min(ORDINARY)]
    return repr(fits[0]) if len(fits) == 1 else factor_in_words(fits, configured)


def evidence_of(usual: HatPredictions, seen: ReleasedHats, max_kmh: float) -> tuple[float, float]:
    """How much likelier slower and faster units make a slot's releases than any ordinary factor
    does, as logarithms."""
    if not seen.value.size or usual.variance.min() > KNOWN_VARIANCE:
        return 0.0, 0.0
    factors = (*ORDINARY, *SLOWER, *FASTER)
    mean = np.clip(usual.mean, 1.0, max_kmh)
    value = seen.value - usual.skew * seen.is_clipped
    variance = usual.variance + seen.unexplained
    logs = log_likelihoods(factors, mean, variance, value, seen.noise, seen.clipped, max_kmh)
    ends = np.cumsum([len(ORDINARY), len(SLOWER)])
    ordinary, slower, faster = np.split(logs, ends)
    return _mean_likelihood(slower) - float(ordinary.max()), _mean_likelihood(faster) - float(
        ordinary.max()
    )


def _mean_likelihood(logs: Floats) -> float:
    largest = logs.max()
    return float(largest + np.log(np.exp(logs - largest).mean()))
