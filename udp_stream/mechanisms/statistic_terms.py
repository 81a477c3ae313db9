"""What a statistic of a HAT is asked for, and what the search for its plan decided: small, public, stored and sent.

With the HAT's counts and the range of speeds they fix the plan, so that it can be built from them without searching.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from udp_stream.mechanisms.clip_width import USUAL, ClipWidth
from udp_stream.mechanisms.grouping import SamplesPerPlate
from udp_stream.mechanisms.noise import Cost, Measure
from udp_stream.units import QUANTA_PER_KMH

Grouping = Literal["best-fit", "wrap-around"]

CompareAt = Literal["epsilon", "charge"]

STEPS_PER_KMH = 64
"""Forecasts are kept in steps of 1/64 km/h, two bytes each: far finer than they are right."""


class Choice(msgspec.Struct, frozen=True, omit_defaults=True):
    """The mechanism that was chosen, and the most samples that a plate gives; of a CDF its bins too.

    `bins` is a number of equal bins, next to one of exact zeros if `zeros_apart`; 0 where edges are configured, which
    belong to the range of speeds, or where there are none.

    >>> Choice("tree", cap=9, bins=65, zeros_apart=True).bins
    65
    """

    mechanism: str
    cap: int
    bins: int = 0
    zeros_apart: bool = False

    def cap_among(self, counts: SamplesPerPlate) -> int:
        """The cap for these counts.

        It was chosen for them. Counts are read again, though, and the largest may be smaller by now; then each plate
        gives all that it has.

        >>> import numpy as np
        >>> Choice("optimal", cap=9).cap_among(SamplesPerPlate(np.array([4, 2])))
        4
        """
        return max(1, min(self.cap, counts.largest))


class AroundForecast(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a mean is taken around: the forecast of the HAT and of each plate that is offered, in steps of 1/64 km/h.

    `plates` has two bytes for each, little-endian; `half_width`, `gain`, `hidden` and `ball` are a `ClipWidth`. It is
    made from public values, and kept with the terms: a retry, or a shard, clips around the same.

    >>> AroundForecast.of(18.0, np.array([17.5, 20.0])).plates_quanta.tolist()
    [71680, 81920]
    """

    hat: int
    plates: bytes
    half_width: float = USUAL.half_width
    gain: float = USUAL.gain
    hidden: float = USUAL.hidden
    ball: bool = False

    @staticmethod
    def of(hat_kmh: float, plates_kmh: NDArray[np.float64], width: ClipWidth = USUAL) -> AroundForecast:
        """Rounded to steps; speeds are in [0, 1023] km/h."""
        steps = np.rint(plates_kmh * STEPS_PER_KMH).astype("<u2")
        return AroundForecast(round(hat_kmh * STEPS_PER_KMH), steps.tobytes(), *width)

    @property
    def hat_quanta(self) -> int:
        """The HAT's forecast, in quanta."""
        return self.hat * (QUANTA_PER_KMH // STEPS_PER_KMH)

    @property
    def width(self) -> ClipWidth:
        """How widely plates are clipped."""
        return ClipWidth(self.half_width, self.gain, self.hidden, self.ball)

    @property
    def plates_count(self) -> int:
        """How many plates it is a forecast of."""
        return len(self.plates) // 2

    @property
    def plates_quanta(self) -> NDArray[np.int64]:
        """The plates', in quanta."""
        return np.frombuffer(self.plates, "<u2").astype(np.int64) * (QUANTA_PER_KMH // STEPS_PER_KMH)

    def among(self, chosen: NDArray[np.bool_]) -> AroundForecast:
        """The same for some of the plates."""
        return msgspec.structs.replace(self, plates=np.frombuffer(self.plates, "<u2")[chosen].tobytes())


class StatisticTerms(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a statistic may cost, and how it is to be taken: as configured, and what was chosen by that.

    `epsilon_nano` are nano-units of `measure`, which the ledger keeps. `mechanism` may be "auto"; `compare_at` is what
    "auto" holds equal between mechanisms. Without a `choice` a plan has to search for it. `around` is what a mean
    around a forecast is taken around.

    >>> StatisticTerms("mean", 10**9, choice=Choice("baseline", 12)).at(2 * 10**9)
    StatisticTerms(statistic='mean', epsilon_nano=2000000000, mechanism='auto', grouping='best-fit', \
compare_at='epsilon', measure='pure', choice=None, around=None)
    """

    statistic: str
    epsilon_nano: int
    mechanism: str = "auto"
    grouping: Grouping = "best-fit"
    compare_at: CompareAt = "epsilon"
    measure: Measure = "pure"
    choice: Choice | None = None
    around: AroundForecast | None = None

    @property
    def cost(self) -> Cost:
        """The most that a plate may lose to it.

        >>> StatisticTerms("mean", 10**9).cost
        Cost(measure='pure', nano=1000000000)
        """
        return Cost(self.measure, self.epsilon_nano)

    def at(self, epsilon_nano: int) -> StatisticTerms:
        """The same at another epsilon. What is best there is another question: the choice is open again."""
        return msgspec.structs.replace(self, epsilon_nano=epsilon_nano, choice=None)

    def chosen(self, choice: Choice) -> StatisticTerms:
        """The same, with what was decided, unless that was decided before."""
        return self if self.choice is not None else msgspec.structs.replace(self, choice=choice)
