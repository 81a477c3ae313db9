"""What a plate may spend on a HAT, from budgets and counts.

`auto` spreads what is left of a plate's budget over the HATs that it is likely still to visit in the period, so that
the evening is served like the morning. Only counts and balances are read; the ledger holds every plate to its budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from math import ceil, isfinite
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from udp_stream.ledger.filters import epsilon_of
from udp_stream.ledger.rolling import ROLLING, span_name
from udp_stream.mechanisms.noise import Measure
from udp_stream.mechanisms.statistic import BinsAsked, PublicSettings, Range
from udp_stream.planning.periods import DAY_S, OneBudget, amount_text, name_in, overlapping, period_of
from udp_stream.units import NANO, duration_name
from udp_stream.windows.tables import SlotGrid

Integers = NDArray[np.int64]
Schedule = Literal["spread", "uniform"]

EPSILON_NANO_MIN = 1_000_000
"""Below 0.001 a statistic says nothing at any HAT size seen so far; then the HAT is withheld and no plate pays."""

RHO_NANO_MIN = 500
"""The same in rho: half of the square of 0.001. Parts of it still have noise at any counts and U."""

FIXED_NANO_MIN = 1000
"""A configured epsilon's smallest parts (0.29 of it for a level of a CDF's tree, half for what projects) still exceed
`noise.laplace.DRAWABLE_NANO_MIN`, and an eighth, a private quantile's, is above 0: noise can be drawn at any counts
and U."""

EPSILON_NANO_MAX = 1000 * NANO
"""Of one statistic of a HAT: with 2**28 samples, the most that a slot may hold, a variance on its noise's lattice is at
most 2**26 * 2**27 * 1000, which fits in 63 bits with room for the noise (`noise.lattice_of`, `variance`)."""


def least_nano(measure: Measure) -> int:
    """The least that an automatic epsilon may cost."""
    return EPSILON_NANO_MIN if measure == "pure" else RHO_NANO_MIN


def expected_visits(now: Integers, before: Integers, slots_gone: int, slots_left: int) -> NDArray[np.float64]:
    """HATs that each plate is likely to visit from this slot on, in the period.

    `now` counts the plate's HATs in this slot, `before` those it was charged for earlier in the period; `slots_gone`
    and `slots_left` count whole slots before and after this one. A plate goes on at its pace: that of this slot, or
    its mean pace over the period so far if that was faster.
    """
    pace = np.maximum(now, before / max(1, slots_gone))
    visits: NDArray[np.float64] = now + pace * slots_left
    return visits


def fair_shares(budget_nano: int, spent: Integers, visits: NDArray[np.float64]) -> Integers:
    """Nano-units that each plate can spend per HAT if it is to last for `visits` HATs (at least one each)."""
    left = np.maximum(0, budget_nano - spent)
    shares: Integers = np.floor(left / np.maximum(1.0, visits)).astype(np.int64)
    return shares


def hat_epsilon(shares: Integers) -> int:
    """One epsilon for all plates of a HAT, from what each can spend: the lower quartile.

    Taking the least share would let the busiest plate starve everybody's statistic; taking the median would run half
    of the plates down. A plate below the quartile spends ahead of its pace and is given less later: its shares
    follow what it has left. Only the ledger says who is out.
    """
    ordered = np.sort(shares)
    return int(ordered[ordered.size // 4])


class PeriodSoFar(NamedTuple):
    """Of each plate: nano-units and HATs that it was charged so far, and HATs in this slot. Of the slot: its place.

    Where budgets roll (`rolls`), what it was charged is the most in any window that touches the slot, and `visits` are
    all of a window.

    >>> PeriodSoFar(np.array([40]), np.array([4]), np.array([2]), slots_gone=2, slots_left=3).visits.tolist()
    [8.0]
    """

    charged: Integers
    charges: Integers
    now: Integers
    slots_gone: int
    slots_left: int
    rolls: bool = False

    @property
    def visits(self) -> NDArray[np.float64]:
        """HATs that each plate is likely to visit from this slot on, at least one."""
        expected = expected_visits(self.now, self.charges, self.slots_gone, self.slots_left)
        return np.maximum(1.0, expected)


def shares_of(schedule: Schedule, budget_nano: int, at: PeriodSoFar) -> Integers:
    """What each plate may spend on each of its HATs in this slot, in nano-units; never more than it has left.

    "spread": what is left, over the HATs that the plate is likely still to visit. "uniform": an even part of the budget
    for every HAT of the period, whatever was saved. A rolling budget has no end to save for: what is spent comes back a
    window's length later. There both are an even part for each HAT that the plate is likely to visit in a window.
    """
    if schedule == "spread" and not at.rolls:
        return fair_shares(budget_nano, at.charged, at.visits)
    even = budget_nano / (at.visits if at.rolls else at.charges + at.visits)
    shares: Integers = np.clip(np.floor(even).astype(np.int64), 0, np.maximum(0, budget_nano - at.charged))
    return shares


# The settings that change privacy, or what is computed: one frozen value, with a hash that every release carries.

Mean = Literal[
    "auto", "baseline", "array-averaging", "levy", "fixed-quantile", "eps-quantile", "optimal", "forecast-clip"
]
Grouping = Literal["best-fit", "wrap-around"]
Accounting = Literal["pure", "zcdp", "approximate"]
Suppression = Literal["off", "chop-user"]
CountsReleased = Literal["all", "none"]


class Policy(msgspec.Struct, frozen=True, dict=True):
    """What a deployment promises and how it computes. Epsilons are nano-units; None means "auto"; speeds in quanta.

    Under "zcdp" and "approximate" accounting budget and epsilons are nano-rho: what they are in rho. `delta` is what a
    rho is then converted with; "approximate" promises (epsilon, delta) and "zcdp" rho, and both count alike.

    `slot_seconds` and `period_seconds` are wall-clock lengths in `timezone` (`period_seconds` None: one budget for a
    lifetime); of a rolling period, such as "rolling 1d", they are those of its windows, on any clock. `bins` is "auto",
    a number of equal bins, or edges in km/h. What follows from the settings is resolved once.
    `suppression`: whether plates leave some of their HATs altogether, so that each is in fewer; `hats_max`: in how many
    of a slot a plate stays then (0: in as many as CHOP-USER leaves).
    `counts_released`: whether records carry counts. `schedule`: how an automatic epsilon of the papers' mechanisms is
    spread over a period. `source`: where a feed of its own form has the fields of a ping, by keys of `[source]`.

    >>> from udp_stream.settings import Settings
    >>> policy = Settings().policy
    >>> policy.neighbours, policy.public.bins, len(policy.fingerprint())
    ('swap-values', 'auto', 16)
    """

    resolution: int
    slot_seconds: int
    timezone: str
    grace_ms: int
    max_speed: int
    unit: str
    reject_above_kmh: float
    box: tuple[float, float, float, float] | None
    budget_nano: int
    period: str
    period_seconds: int | None
    mean: Mean
    grouping: Grouping
    mean_nano: int | None
    variance_nano: int
    cdf_nano: int | None
    bins: BinsAsked
    min_plates: int
    neighbours: Literal["swap-values"] = "swap-values"
    accounting: Accounting = "pure"
    delta: float = 1e-6
    suppression: Suppression = "off"
    hats_max: int = 0
    counts_released: CountsReleased = "all"
    schedule: Schedule = "spread"
    source: tuple[tuple[str, str], ...] = ()

    @cached_property
    def measure(self) -> Measure:
        """In what losses are counted."""
        return "pure" if self.accounting == "pure" else "zcdp"

    @cached_property
    def rolls(self) -> bool:
        """Whether the budget holds for every stretch of the period's length, wherever it begins."""
        return self.period.startswith(ROLLING)

    @cached_property
    def amount(self) -> str:
        """The budget of a plate and period, in words."""
        return amount_in_words(self.measure, self.budget_nano, self.delta, self.accounting)

    @cached_property
    def promise(self) -> str:
        """What a plate is promised, in words."""
        return f"{self.amount} per {self.period}"

    @cached_property
    def forecasts(self) -> bool:
        """Whether means are taken around forecasts, where that errs less."""
        asked = self.mean == "forecast-clip" or (self.mean == "auto" and self.suppression == "off")
        return asked and self.mean_nano != 0

    @cached_property
    def in_balls(self) -> bool:
        """Whether a plate's HATs of a slot share one clip around their forecasts."""
        return self.forecasts and self.measure == "zcdp"

    @cached_property
    def public(self) -> PublicSettings:
        """What statistics go by beside counts and terms."""
        return PublicSettings(self.range, self.bins)

    @cached_property
    def range(self) -> Range:
        """The public range of a speed, in quanta."""
        return Range(0, self.max_speed)

    def fingerprint(self) -> str:
        """The same for equal policies, 16 hexadecimal digits; releases carry it as `policy`.

        Settings that have no effect are left out, so that a version that knows more of them gives the same.
        """
        settings = msgspec.to_builtins(self)
        if self.counts_released == "all":
            del settings["counts_released"]
        if self.accounting == "pure":
            del settings["delta"]
        if self.schedule == "spread":
            del settings["schedule"]
        if not self.source:
            del settings["source"]
        return blake2b(msgspec.json.encode(settings, order="sorted"), digest_size=8).hexdigest()


def epsilon_text(epsilon: float) -> str:
    """An epsilon of six decimals with all of them: it was rounded up, and fewer digits could be less."""
    return f"{epsilon:.6f}".rstrip("0").rstrip(".")


def amount_in_words(measure: Measure, nano: int, delta: float, accounting: Accounting = "approximate") -> str:
    """An amount that a plate can lose, in words: what is promised first, then what it is in the other unit."""
    if measure == "pure":
        return f"epsilon {amount_text(nano)}"
    rho, epsilon = amount_text(nano), f"{epsilon_text(epsilon_of(nano, delta))} with delta {delta:g}"
    return f"rho {rho} (epsilon {epsilon})" if accounting == "zcdp" else f"epsilon {epsilon} (rho {rho})"


# The calendar of a deployment: its slots, its budget periods, and which periods of a ledger overlap them.

SPANS_PER_WINDOW = 24
"""Balances that the window of a rolling budget is cut into, where slots are no longer than that. A span counts as long
as a window touches any of it, so a window holds its pings back up to a 24th longer than it has to. Each span is another
look-up for every plate that is charged."""


@dataclass(frozen=True, slots=True)
class SlotInPeriod:
    """Where a slot lies in its budget period: the period's name, and whole slots before and after this one in it.

    Where budgets roll, the name is that of the slot's span, and the slots are those that share a window with this one.

    >>> SlotInPeriod("1d from 2024-01-08T00:00:00+05:30", slots_gone=6, slots_left=17).slots_left
    17
    """

    period: str
    slots_gone: int
    slots_left: int
    rolls: bool = False


def span_seconds(window_seconds: int, slot_seconds: int) -> int:
    """How long a balance of a rolling budget is: whole slots, which divide a day or are whole days."""
    least = max(slot_seconds, ceil(window_seconds / SPANS_PER_WINDOW))
    if least <= DAY_S:
        some = range(slot_seconds * ceil(least / slot_seconds), DAY_S + 1, slot_seconds)
        return next(seconds for seconds in some if DAY_S % seconds == 0)
    whole = max(slot_seconds, DAY_S)
    return whole * ceil(least / whole)


class BudgetCalendar:
    """Slots and budget periods of a policy in its zone.

    `one_budget` is that of speeds and positions, where they share one.

    >>> from udp_stream.settings import Settings
    >>> calendar = Settings().calendar
    >>> noon = calendar.slot_in_period(1_704_715_200_000)
    >>> noon.period, noon.slots_gone + noon.slots_left + 1
    ('1d from 2024-01-08T00:00:00+05:30', 24)
    """

    def __init__(
        self,
        policy: Policy,
        slots: SlotGrid,
        periods: SlotGrid | None,
        one_budget: OneBudget | None = None,
    ) -> None:
        """`periods` is None where one budget is for a lifetime; of a rolling budget they are its spans."""
        self.slots = slots
        self.one_budget = one_budget
        self._policy = policy
        self._periods = periods

    def slot_in_period(self, start_ms: int) -> SlotInPeriod:
        """The budget period of the slot that starts at this time, and the slot's place in it.

        Slots and periods are cut on the wall clock, so that on the days when it changes some are an hour shorter or
        longer: their number is rounded.
        """
        measure = self._policy.measure
        if self._periods is None:
            return SlotInPeriod(name_in(measure, "lifetime"), 0, 0)
        if self._policy.rolls:
            return self._in_windows(start_ms, self._periods)
        first, last = (int(ends[0]) for ends in self._periods.place(np.array([start_ms])))
        slot_ms = self._policy.slot_seconds * 1000
        gone, left = round((start_ms - first) / slot_ms), max(0, round((last - start_ms) / slot_ms) - 1)
        return SlotInPeriod(name_in(measure, f"{self._policy.period} from {self._periods.iso(first)}"), gone, left)

    def _in_windows(self, start_ms: int, spans: SlotGrid) -> SlotInPeriod:
        """The span that holds a slot: spans are whole slots, also where clocks are changed."""
        policy, ends = self._policy, spans.place(np.array([start_ms]))
        times = [spans.iso(int(end[0])) for end in ends]
        length = duration_name(policy.period_seconds or 0)
        # In whole spans, as a window counts every span that it touches.
        within = ceil((policy.period_seconds or 0) / spans.seconds) * spans.seconds // policy.slot_seconds
        return SlotInPeriod(name_in(policy.measure, span_name(length, *times)), within, within, rolls=True)

    def overlapping(self, period: str, known: Sequence[str]) -> tuple[str, ...]:
        """The known periods that overlap this one of ours, and are not ours themselves."""
        return tuple(name for name in overlapping(period, known) if not self._is_ours(name))

    def _is_ours(self, name: str) -> bool:
        start = period_of(name).start
        return isfinite(start) and self.slot_in_period(round(start * 1000)).period == name
