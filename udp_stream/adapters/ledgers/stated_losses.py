"""Losses as the fields of a privacy statement: in epsilon, in rho, or in both, where the accounting was changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from udp_stream.ledger.conversion import epsilon_of_both
from udp_stream.ledger.port import Entry
from udp_stream.ledger.rolling import ROLLING, RollingSums, span_of
from udp_stream.mechanisms.noise import Measure
from udp_stream.planning.periods import IN_RHO, Loss, length_of, loss_in, measure_of, name_in, together
from udp_stream.planning.policy import Policy
from udp_stream.units import NANO

NOISE: dict[Measure, str] = {"pure": "discrete Laplace", "zcdp": "discrete Gaussian"}

RHO_TO_EPSILON = (
    "; a rho, of zero-concentrated differential privacy, is an epsilon with delta by arXiv 2004.00010, Corollary 13, "
    "and adds to a pure epsilon beside it, unless half the square of that, added to the rho, says less"
)
"""Behind what is said of epsilon alone."""


IN_A_ROW = (
    "; of a rolling period every stretch of its length counts, wherever it begins, with the releases of all slots that "
    "it touches"
)
"""Behind what is said of periods."""


def unit_of(period: str) -> str:
    """What losses of a period are counted in.

    >>> unit_of("lifetime"), unit_of("lifetime in rho")
    ('epsilon', 'rho')
    """
    return "epsilon" if measure_of(period) == "pure" else "rho"


def measures_in(periods: Collection[str], policy: Policy) -> set[Measure]:
    """In what the losses of these periods are counted; the policy's measure where there are none.

    >>> from udp_stream.adapters.settings import Settings
    >>> sorted(measures_in(["lifetime", "lifetime in rho"], Settings().policy))
    ['pure', 'zcdp']
    """
    return {measure_of(period) for period in periods} or {policy.measure}


def variant_of(periods: Collection[str], policy: Policy) -> str:
    """What is promised by charges in these periods, in the registry's words; by the policy where there are none.

    >>> from udp_stream.adapters.settings import Settings
    >>> variant_of([], Settings().policy), variant_of(["lifetime", "lifetime in rho"], Settings().policy)
    ('Pure DP', 'Approximate DP')
    """
    measures = measures_in(periods, policy)
    if measures == {"pure"}:
        return "Pure DP"
    return "zCDP" if measures == {"zcdp"} and policy.accounting == "zcdp" else "Approximate DP"


def most_of(sums: Mapping[str, Loss], policy: Policy) -> dict[str, float]:
    """The most of any period; of a rho what it is with the policy's delta, and of both kinds what they are together.

    >>> from udp_stream.adapters.settings import Settings
    >>> most_of({"lifetime": Loss(3 * NANO), "lifetime in rho": Loss(rho_nano=NANO)}, Settings().policy)
    {'epsilon': 7.766217, 'delta': 1e-06, 'rho': 1.0}
    """
    losses = list(sums.values()) or [loss_in(name_in(policy.measure, ""), policy.budget_nano)]
    if not any(loss.rho_nano for loss in losses):
        return {"epsilon": max(losses).epsilon_nano / NANO}

    def epsilon(loss: Loss) -> float:
        return epsilon_of_both(loss.epsilon_nano, loss.rho_nano, policy.delta)

    most = max(losses, key=epsilon)
    alone = {} if most.epsilon_nano else {"rho": most.rho_nano / NANO}
    return {"epsilon": epsilon(most), "delta": policy.delta, **alone}


def with_overlapping(loss: Loss) -> dict[str, float]:
    """What a plate can lose by its pings in a period, those of periods that overlap it included.

    >>> with_overlapping(Loss(NANO, 2 * NANO))
    {'epsilon_guaranteed_with_overlapping': 1.0, 'rho_guaranteed_with_overlapping': 2.0}
    """
    amounts = {"epsilon": loss.epsilon_nano, "rho": loss.rho_nano}
    return {f"{unit}_guaranteed_with_overlapping": nano / NANO for unit, nano in amounts.items() if nano}


@dataclass(slots=True)
class InWindows:
    """What plates lost of a rolling budget, charge after charge: nano-units and releases, the most in any window."""

    nano: RollingSums = field(default_factory=RollingSums)
    releases: RollingSums = field(default_factory=RollingSums)

    def take(self, period: str, charged: Mapping[bytes, int]) -> tuple[dict[bytes, int], dict[bytes, int]]:
        """With these charges in a span: each plate's most in a window that touches it, of both."""
        plates = list(charged)
        nano = self.nano.charge(period, plates, list(charged.values()))
        releases = self.releases.charge(period, plates, [1] * len(plates))
        return dict(zip(plates, nano, strict=True)), dict(zip(plates, releases, strict=True))


@dataclass(slots=True)
class Spent:
    """What one period's plates were charged, under which budgets, for how many releases, from which slot to which.

    Of a rolling budget it is the most in any window. `promised` has the largest budget of each period, or span, that
    was charged. A release whose id tells no slot may lie anywhere in time.

    >>> Spent(budgets={10 * NANO, 5 * NANO}).guaranteed / NANO
    10.0
    """

    nano: Counter[bytes] = field(default_factory=Counter)
    releases: Counter[bytes] = field(default_factory=Counter)
    largest_charge: int = 0
    budgets: set[int] = field(default_factory=set)
    promised: dict[str, int] = field(default_factory=dict)
    windows: InWindows = field(default_factory=InWindows)
    start: float = inf
    end: float = -inf

    def take(self, entry: Entry, start: float, end: float) -> None:
        """Count an entry of the period, of a slot from `start` to `end` (Unix seconds, or infinite)."""
        charged = {plate: nano for plate, nano in zip(entry.plates, entry.charged.tolist(), strict=True) if nano}
        if span_of(entry.period) is None:
            self.nano.update(charged)
            self.releases.update(charged.keys())
        else:
            nano, releases = self.windows.take(entry.period, charged)
            # `|=` of counters keeps the larger number: the most in any window.
            self.nano |= nano
            self.releases |= releases
        if charged:
            self.promised[entry.period] = max(entry.budget, self.promised.get(entry.period, 0))
        # The 0 is for an entry that charged nobody: `max` fails on one number alone.
        self.largest_charge = max(self.largest_charge, *charged.values(), 0)
        self.budgets.add(entry.budget)
        self.start, self.end = min(self.start, start), max(self.end, end)

    @property
    def guaranteed(self) -> int:
        """No plate's total exceeds it."""
        return max(self.budgets)

    def facts(self, unit: str) -> dict[str, Any]:
        """The loss of the plate that lost most, and beside it eps max_l G_l, which knows no shares and no budget.

        `unit` is what losses of the period are counted in: epsilon or rho.
        """
        most = max(self.releases.values(), default=0)
        composed = self.largest_charge * most
        smaller = f"{unit}_bound_by_composition" if composed < self.guaranteed else f"{unit}_guaranteed"
        return {
            f"{unit}_of_budgets": [budget / NANO for budget in sorted(self.budgets)],
            "plates_charged": len(self.nano),
            f"{unit}_max_over_plates": max(self.nano.values(), default=0) / NANO,
            f"{unit}_max_of_a_release": self.largest_charge / NANO,
            "releases_max_over_plates": most,
            f"{unit}_bound_by_composition": composed / NANO,
            "smaller_bound": smaller,
        }


def account_of(period: str) -> str:
    """The name under which losses of a period are stated: of the spans of a rolling budget one for all.

    >>> account_of("rolling 1d from 2024-01-08T06:00:00+05:30 to 2024-01-08T07:00:00+05:30"), account_of("lifetime")
    ('rolling 1d', 'lifetime')
    """
    return period if span_of(period) is None else length_of(period)


def in_windows(charged: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Of each rolling budget, what a plate was charged in the latest window that holds a charge, and the most in any.

    >>> hours = [f"rolling 1h from 2024-01-08T0{h}:00:00+05:30 to 2024-01-08T0{h + 1}:00:00+05:30" for h in (1, 2, 5)]
    >>> in_windows({"lifetime": 3} | dict(zip(hours, (4, 5, 6))))
    {'rolling 1h': (6, 9)}
    """
    sums, found = RollingSums(), dict[str, tuple[int, int]]()
    spans = [(span.start, name) for name in charged if (span := span_of(name)) is not None]
    for _, name in sorted(spans):
        (latest,) = sums.charge(name, [b""], [charged[name]])
        most = max(latest, found.get(account_of(name), (0, 0))[1])
        found[account_of(name)] = latest, most
    return found


def with_others(budgets: Mapping[str, int]) -> dict[str, Loss]:
    """Of each period, or rolling budget, the most with those that overlap it; `budgets` are by period and span.

    >>> [str(loss) for loss in with_others({"lifetime": 3 * NANO, "1d from 2024-01-08T00:00:00+05:30": NANO}).values()]
    ['epsilon 4', 'epsilon 4']
    """
    most: dict[str, Loss] = {}
    for period, loss in together(budgets).items():
        name = account_of(period)
        most[name] = max(loss, most.get(name, Loss()))
    return most


def stretches_in_words(lengths: Collection[str]) -> str:
    """For which stretches of time a budget is promised.

    >>> stretches_in_words(["1d"]), stretches_in_words(["rolling 1d"])
    ('for each period of 1d', 'for any 1d in a row, wherever it begins')
    """
    plain = sorted({length.removesuffix(IN_RHO) for length in lengths})
    rolling = ", ".join(one.removeprefix(ROLLING) for one in plain if one.startswith(ROLLING))
    calendars = ", ".join(one for one in plain if not one.startswith(ROLLING))
    words = [f"for each period of {calendars}"] if calendars else []
    words += [f"for any {rolling} in a row, wherever it begins"] if rolling else []
    return " and ".join(words)
