"""`plan FILE`: both neighbour relations side by side, at the same budget and where they protect
speeds alike.

The rows are rehearsals (`release/rehearsal.py`) at the configured resolution and slot. "add-remove"
needs a domain and an interval of pings. Where the settings have none they are taken from the file,
for the plan alone: its reader may read the feed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from math import inf
from tempfile import NamedTemporaryFile
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace
from rich.console import Console

from udp_stream.base.errors import ConfigError
from udp_stream.base.units import NANO
from udp_stream.cli.plan_of_feed import SAMPLE_PINGS, FeedPlan, Positions, Row, row_of, verdict
from udp_stream.cli.progress import stepwise
from udp_stream.cli.report import print_rows
from udp_stream.ledger.port import Entropy
from udp_stream.planning.policy import year_nano
from udp_stream.planning.promise import ACCOUNTINGS, OF_A_SWAP, epsilon_text
from udp_stream.settings import Settings
from udp_stream.settings.rules import check
from udp_stream.settings.sections import (
    BudgetSection,
    PingsSection,
    PrivacySection,
    ReleaseSection,
)

STANDARD = (10.0, "1d"), (1.0, "1d"), (10.0, "30d")
"""Epsilons and periods at which both are shown, beside the configured."""

NOTHING = 0.9
"""The part of the baseline guess's error from which on estimates buy next to nothing."""


class PromiseCost(NamedTuple):
    """A relation at a budget: its epsilon for a period, an even day of it and any 365 days, and the
    epsilon at which swap-values would protect speeds as much."""

    neighbours: str
    period: str
    epsilon: float
    of_day: float
    of_year: float
    of_speeds: float
    row: Row

    @classmethod
    def of(cls, asked: Settings, row: Row) -> PromiseCost:
        policy = asked.policy
        nano = policy.budget_nano
        implied = partial(policy.accounted.measure.implied_epsilon, delta=policy.delta)
        return cls(
            neighbours=policy.neighbours,
            period=policy.period,
            epsilon=implied(nano),
            of_day=implied(policy.day_nano),
            of_year=implied(year_nano(policy.period, nano)),
            of_speeds=implied(nano if policy.relation.public_counts else OF_A_SWAP * nano),
            row=row,
        )

    @property
    def amount(self) -> str:
        return f"epsilon {_short(self.epsilon)} per {self.period}"

    @property
    def verdict(self) -> str:
        """Under add-remove there are no counts to guess from."""
        if self.neighbours == "swap-values":
            return verdict(self.row)
        return (
            "buys next to nothing"
            if self.over_guess >= NOTHING
            else "better than the baseline guess"
        )

    @property
    def over_guess(self) -> float:
        expected = self.row.expected
        return expected.error / expected.constant if expected.constant else inf


class PromiseComparison(NamedTuple):
    """Both, or why "add-remove" is left out; what was taken from the file for it."""

    promises: list[PromiseCost]
    delta: float
    left_out: str = ""
    cells: int = 0
    interval: str = ""


def plan_of_promises(plan: FeedPlan, settings: Settings, entropy: Entropy) -> PromiseComparison:
    """Rehearse swap-values at the budget, and add-remove at the same and at a quarter of its rho;
    both at standard budgets."""
    positions = plan.positions
    plain = _swap_values(settings)
    here = settings.grid, settings.hat.slot
    known = next((row for row in plan.rows if (row.grid, row.slot) == here), None)
    policy = plain.policy
    delta = policy.delta or settings.budget.delta
    nano_of = ACCOUNTINGS["approximate"].nano
    in_rho = policy.accounted.measure.name == "zcdp"
    budget = policy.budget_nano if in_rho else nano_of(policy.budget_nano / NANO, delta)
    period = settings.budget.period
    standard = [(nano_of(epsilon, delta), length) for epsilon, length in STANDARD]
    budgets = dict.fromkeys([(budget, period), (budget // OF_A_SWAP, period), *standard])
    swaps = [plain]
    if in_rho:
        others = [one for one in standard if one != (budget, period)]
        swaps += [replace(plain, budget=_budget(settings, nano, period)) for nano, period in others]
    try:
        with _add_remove(positions, settings) as (hidden, cells, interval):
            asked = [
                replace(hidden, budget=_budget(settings, nano, period)) for nano, period in budgets
            ]
            ours = asked[0] if settings.privacy.neighbours == "add-remove" else plain
            found = []
            for one in stepwise("rehearsing both promises", [*swaps, *asked]):
                check(one)
                row = known if one is ours else None
                row = row or row_of(positions, one, entropy, SAMPLE_PINGS)
                found.append(PromiseCost.of(one, row))
    except ConfigError as error:
        return PromiseComparison([], delta, str(error))
    return PromiseComparison(found, delta, "", cells, interval)


def _swap_values(settings: Settings) -> Settings:
    """The same settings, as far as "swap-values" reads them."""
    if settings.privacy.neighbours == "swap-values":
        return settings
    release = replace(settings.release, plates=False)
    hat = replace(settings.hat, domain="")
    pings = replace(settings.pings, interval="")
    return replace(settings, privacy=PrivacySection(), hat=hat, pings=pings, release=release)


@contextmanager
def _add_remove(positions: Positions, settings: Settings) -> Iterator[tuple[Settings, int, str]]:
    """Settings of "add-remove", how many cells were taken from the file (0: none), and the interval
    that was."""
    if settings.privacy.neighbours == "add-remove":
        yield settings, 0, ""
        return
    here = settings.hat
    # The median time between pings of a plate, in whole seconds.
    order = np.lexsort((positions.time_ms, positions.plate))
    plate = positions.plate[order]
    time_ms = positions.time_ms[order]
    between = np.diff(time_ms)[(np.diff(plate) == 0) & (np.diff(time_ms) > 0)]
    interval = f"{max(1, round(float(np.median(between)) / 1000)) if between.size else 1}s"
    grid = settings.grid
    domain = {*grid.domain.tolist()}
    is_listed = bool(domain)
    if not is_listed:
        own = np.unique(positions.cells(grid)).tolist()
        domain = {*own, *(cell for cell_of_file in own for cell in grid.beside(cell_of_file))}
    with NamedTemporaryFile("w", suffix=".cells") as file:
        file.writelines(f"{grid.id_of(cell)}\n" for cell in sorted(domain))
        file.flush()
        hat = here if is_listed else replace(here, domain=file.name)
        hidden = Settings(
            hat=hat, speed=settings.speed, pings=PingsSection(box=settings.pings.box, interval=interval),
            source=settings.source, privacy=PrivacySection(neighbours="add-remove"), release=ReleaseSection(),
        )  # fmt: skip
        yield hidden, 0 if is_listed else len(domain), interval


def _budget(settings: Settings, rho_nano: int, period: str) -> BudgetSection:
    rho = rho_nano / NANO
    return BudgetSection(accounting="zcdp", rho=rho, delta=settings.budget.delta, period=period)


def print_promises(plan: PromiseComparison, settings: Settings, out: Console) -> None:
    """The table, and what its rows promise."""
    out.print(f"\nWhat may be hidden, at {settings.grid} and {settings.hat.slot}:")
    if plan.left_out:
        out.print(f"Not compared: {plan.left_out}.")
        return
    print_rows(out, [_cells(cost) for cost in plan.promises])
    same, alike, *_ = (cost for cost in plan.promises if cost.neighbours == "add-remove")
    out.print(
        "swap-values: where each plate was, when, and how many pings it sent is public, and counts tell speeds. "
        "add-remove hides that, too, in every cell of a public domain.\n"
        f"speeds as: the epsilon at which swap-values would hide speeds as well. At the same epsilon add-remove hides "
        f"them less: {_short(same.epsilon)} as {_short(same.of_speeds)} would. As well as {_short(same.epsilon)} it "
        f"hides them at {_short(alike.epsilon)}. Epsilons hold with delta {plan.delta:g}.\n"
        "of a day, of a year: an even day of a longer period, which is what is rehearsed; all periods that any 365 days "
        "touch. In rho they add up, so epsilons grow by less."
    )
    for cost in plan.promises:
        if cost.neighbours == "add-remove" and cost.over_guess >= NOTHING:
            out.print(
                f"At {cost.amount} add-remove buys next to nothing here: its estimates err by "
                f"{cost.over_guess:.0%} of what the baseline guess errs by."
            )
    if plan.cells:
        out.print(
            f"For this plan alone, add-remove has the {plan.cells:,} cells of the file's pings and beside them as its "
            f"domain, pings.interval = {plan.interval!r} by the file, and defaults elsewhere. To release, set "
            "hat.domain to a list that does not follow from pings, and pings.interval."
        )


def _cells(cost: PromiseCost) -> list[tuple[str, str]]:
    expected = cost.row.expected
    return [
        ("neighbours", cost.neighbours),
        ("epsilon", _short(cost.epsilon)),
        ("per", cost.period),
        ("of a day", _short(cost.of_day)),
        ("of a year", _short(cost.of_year)),
        ("speeds as", _short(cost.of_speeds)),
        ("expected error", f"{expected.error:.2f}"),
        ("baseline guess", f"{expected.constant:.2f}"),
        ("verdict", cost.verdict),
    ]


def _short(epsilon: float) -> str:
    """Two decimals are enough to plan with."""
    return epsilon_text(round(epsilon, 2))
