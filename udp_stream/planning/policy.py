"""The settings that change privacy, or what is computed: one frozen value, with a hash that every release carries."""

from __future__ import annotations

from functools import cache
from hashlib import blake2b
from typing import Literal

import msgspec

from udp_stream.ledger.conversion import epsilon_of
from udp_stream.ledger.rolling import ROLLING
from udp_stream.mechanisms.noise import Measure
from udp_stream.mechanisms.range import Range
from udp_stream.mechanisms.statistic import BinsAsked, PublicSettings
from udp_stream.planning.allowances import Schedule
from udp_stream.planning.periods import amount_text

Mean = Literal[
    "auto", "baseline", "array-averaging", "levy", "fixed-quantile", "eps-quantile", "optimal", "forecast-clip"
]
Grouping = Literal["best-fit", "wrap-around"]
Accounting = Literal["pure", "zcdp", "approximate"]
Suppression = Literal["off", "chop-user"]
CountsReleased = Literal["all", "none"]


class Policy(msgspec.Struct, frozen=True):
    """What a deployment promises and how it computes. Epsilons are nano-units; None means "auto"; speeds in quanta.

    Under "zcdp" and "approximate" accounting budget and epsilons are nano-rho: what they are in rho. `delta` is what a
    rho is then converted with; "approximate" promises (epsilon, delta) and "zcdp" rho, and both count alike.

    `slot_seconds` and `period_seconds` are wall-clock lengths in `timezone` (`period_seconds` None: one budget for a
    lifetime); of a rolling period, such as "rolling 1d", they are those of its windows, on any clock. `bins` is "auto",
    a number of equal bins, or edges in km/h.
    `suppression`: whether plates leave some of their HATs altogether, so that each is in fewer; `hats_max`: in how many
    of a slot a plate stays then (0: in as many as CHOP-USER leaves).
    `counts_released`: whether records carry counts. `schedule`: how an automatic epsilon of the papers' mechanisms is
    spread over a period. `source`: where a feed of its own form has the fields of a ping, by keys of `[source]`.

    >>> from udp_stream.adapters.settings import Settings
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

    @property
    def measure(self) -> Measure:
        """In what losses are counted."""
        return "pure" if self.accounting == "pure" else "zcdp"

    @property
    def rolls(self) -> bool:
        """Whether the budget holds for every stretch of the period's length, wherever it begins."""
        return self.period.startswith(ROLLING)

    @property
    def amount(self) -> str:
        """The budget of a plate and period, in words."""
        return amount_in_words(self.measure, self.budget_nano, self.delta, self.accounting)

    @property
    def promise(self) -> str:
        """What a plate is promised, in words.

        >>> from udp_stream.adapters.settings import Settings
        >>> from udp_stream.ledger.conversion import rho_nano_of
        >>> approximate = {"accounting": "approximate", "budget_nano": rho_nano_of(10**10, 1e-6)}
        >>> [msgspec.structs.replace(Settings().policy, **given).promise for given in ({}, approximate)]
        ['epsilon 10 per 1d', 'epsilon 10 with delta 1e-06 (rho 1.539278763) per 1d']
        """
        return f"{self.amount} per {self.period}"

    @property
    def forecasts(self) -> bool:
        """Whether means are taken around forecasts, where that errs less."""
        asked = self.mean == "forecast-clip" or (self.mean == "auto" and self.suppression == "off")
        return asked and self.mean_nano != 0

    @property
    def in_balls(self) -> bool:
        """Whether a plate's HATs of a slot share one clip around their forecasts."""
        return self.forecasts and self.measure == "zcdp"

    @property
    def public(self) -> PublicSettings:
        """What statistics go by beside counts and terms."""
        return PublicSettings(self.range, self.bins)

    @property
    def range(self) -> Range:
        """The public range of a speed, in quanta."""
        return _from_zero(self.max_speed)

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
    """An epsilon of six decimals with all of them: it was rounded up, and fewer digits could be less.

    >>> epsilon_text(10.0), epsilon_text(7.766217)
    ('10', '7.766217')
    """
    return f"{epsilon:.6f}".rstrip("0").rstrip(".")


def amount_in_words(measure: Measure, nano: int, delta: float, accounting: Accounting = "approximate") -> str:
    """An amount that a plate can lose, in words: what is promised first, then what it is in the other unit.

    >>> amount_in_words("pure", 10**10, 1e-6), amount_in_words("zcdp", 10**9, 1e-6, "zcdp")
    ('epsilon 10', 'rho 1 (epsilon 7.766217 with delta 1e-06)')
    """
    if measure == "pure":
        return f"epsilon {amount_text(nano)}"
    rho, epsilon = amount_text(nano), f"{epsilon_text(epsilon_of(nano, delta))} with delta {delta:g}"
    return f"rho {rho} (epsilon {epsilon})" if accounting == "zcdp" else f"epsilon {epsilon} (rho {rho})"


@cache
def _from_zero(high: int) -> Range:
    """The range up to U, made once: it is asked for with every HAT."""
    return Range(0, high)
