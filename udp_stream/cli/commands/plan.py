"""`plan`: the expected errors of a configuration, for typical HATs or (`cli/plan_of_feed.py`) for
files."""

from __future__ import annotations

import argparse
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from udp_stream.base.arrays import Integers
from udp_stream.base.errors import ConfigError, UsageError
from udp_stream.base.logs import counted
from udp_stream.base.units import NANO, QUANTA_PER_KMH, amount_text
from udp_stream.cli.progress import printer
from udp_stream.cli.report import beside_guess, print_rows
from udp_stream.mechanisms.means import MeanPlan
from udp_stream.mechanisms.noise import MEASURES, Cost
from udp_stream.mechanisms.statistics import STATISTICS
from udp_stream.planning.plan import HatPlan, HatPlans, Terms, automatic_nano, plan_hat, terms_at
from udp_stream.planning.policy import Policy
from udp_stream.planning.promise import epsilon_text
from udp_stream.planning.slot import PRICES_PER_BUDGET, is_too_little, terms_of_typical
from udp_stream.settings import Settings
from udp_stream.testing import SeededSlots, seeded_bits
from udp_stream.windows.tables import PINGS_MAX

TYPICAL_PLATES = (5, 10, 20, 40, 80, 160)
SPREAD = 0.6
"""Log-standard deviation of the pings per plate in a typical HAT (lognormal; measured on a busy
Surat cell)."""

HATS_PER_PERIOD = 12


class TypicalPlan(NamedTuple):
    """The plan of a typical HAT; a HAT below `min_plates` is not `served`."""

    plates: int
    served: bool
    plan: HatPlan
    releases_per_plate: int


def plan(arguments: argparse.Namespace, settings: Settings) -> None:
    """Print a table and notes. UsageError for options of the other table, or too many pings for a
    slot."""
    plates = arguments.plates
    pings_per_plate = arguments.pings_per_plate
    if arguments.files:
        if plates or pings_per_plate:
            raise UsageError(
                "--plates, --pings-per-plate: expected no FILE beside them, whose plates and pings count"
            )
        from udp_stream.cli.plan_of_feed import plan_of_feed, print_feed
        from udp_stream.cli.plan_of_promises import plan_of_promises, print_promises

        found = plan_of_feed(arguments.files, settings, SeededSlots("plan"))
        promises = plan_of_promises(found, settings, SeededSlots("plan"))
        print_promises(promises, settings, print_feed(found, settings))
        return
    if not settings.privacy.relation.public_counts:
        raise UsageError(
            f'plan: expected a FILE where privacy.neighbours is "{settings.privacy.neighbours}", whose counts are secret'
        )
    pings_per_plate = pings_per_plate or 40
    if (plates or max(TYPICAL_PLATES)) * pings_per_plate > PINGS_MAX:
        raise UsageError(
            f"expected --plates times --pings-per-plate <= {PINGS_MAX}, the most pings of a slot"
        )
    sizes = (plates,) if plates else TYPICAL_PLATES
    policy = settings.policy
    bought = [buy(policy, size, pings_per_plate) for size in sizes]
    out = printer(width=160)
    out.print(_head(policy))
    print_rows(out, [_cells(plan, policy) for plan in bought])
    for note in _notes(policy, [plan for plan in bought if plan.served]):
        out.print(note)


def _notes(policy: Policy, served: list[TypicalPlan]) -> list[str]:
    notes = [
        f"releases: of how many such HATs the median plate's budget of a period pays. HATs of fewer than "
        f"{policy.min_plates} plates are withheld without a charge."
    ]
    if any(typical.plan.mean is not None for typical in served):
        notes.append(
            f"Expected error in km/h: {beside_guess(policy.grid.fineness)}. A mean that errs more buys nothing that "
            "counts do not tell."
        )
    if any(
        isinstance(typical.plan.mean, MeanPlan) and typical.plan.mean.plate_sensitivities is None
        for typical in served
    ):
        notes.append(
            "noise and error bound: if the private interval is all of [0, U]; expected error: by simulation, with the "
            "interval found."
        )
    for typical in served:
        for asked, (name, of) in zip(
            typical.plan.terms.statistics, typical.plan.statistics.items(), strict=True
        ):
            if why := STATISTICS[name].why(of, asked):
                notes.append(f"{counted(typical.plates, 'plate')}: {of.choice.mechanism}, {why}.")
    sizes = "These sizes are typical. `udp-stream plan FILE` counts your city's, and compares resolutions and slots."
    return [*notes, sizes]


def terms_for(policy: Policy, part: float | None = None) -> Terms:
    """The epsilons of a HAT when a plate's budget is spread over `HATS_PER_PERIOD` HATs; fixed ones
    unchanged.

    `part` is the share of a HAT's epsilon that a plate is usually charged; None while unknown.
    ConfigError if an automatic epsilon is then too small for any HAT.
    """
    if not policy.automatic:
        return terms_at(0, policy)
    each = automatic_nano(int(policy.budget_nano / HATS_PER_PERIOD / (part or 1)), policy)
    least = policy.accounted.measure.least_nano
    if part is not None and each < least:
        raise _too_little(
            policy,
            f"if the budget of {policy.amount} is spread over {counted(HATS_PER_PERIOD, 'HAT')}",
        )
    return terms_at(max(each, least), policy)


def _too_little(policy: Policy, where: str) -> ConfigError:
    key = policy.accounted.key
    measure = policy.accounted.measure
    return ConfigError(
        f"{key}: an automatic {measure.unit} would be below {measure.least_nano / NANO:g} {where}"
    )


def typical_counts(plates: int, pings_per_plate: int) -> Integers:
    """Counts spread like a busy cell's, the same every time."""
    normal = NormalDist()
    spread = np.exp([SPREAD * normal.inv_cdf((i + 0.5) / plates) for i in range(plates)])
    return np.asarray(
        np.maximum(1, np.round(pings_per_plate * spread / spread.mean())).astype(np.int64)
    )


def buy(policy: Policy, plates: int, pings_per_plate: int) -> TypicalPlan:
    """Plan a typical HAT; an automatic epsilon follows its plates' charges, as in a slot's plan."""
    counts = typical_counts(plates, pings_per_plate)
    served = plates >= policy.min_plates
    if policy.forecasts:
        if is_too_little(policy):
            raise _too_little(
                policy, f"if the budget of {policy.amount} pays for {PRICES_PER_BUDGET} HATs"
            )
        plans = HatPlans(policy.public)
        bought = plans.plan_hat(counts, terms_of_typical(counts, policy, plans))
    else:
        bought = plan_hat(counts, terms_for(policy), policy)
        if served and policy.automatic:
            part = float(bought.charges.mean()) / bought.terms.charge_nano
            bought = plan_hat(counts, terms_for(policy, part), policy)
    releases = policy.budget_nano // int(np.median(bought.charges))
    return TypicalPlan(plates, served, bought, releases)


def _head(policy: Policy) -> str:
    automatic = policy.automatic > 0
    if automatic and policy.forecasts:
        how = f"of which the plate that moves a mean most usually pays one part in {PRICES_PER_BUDGET}"
    elif automatic:
        how = f"spread over {counted(HATS_PER_PERIOD, 'HAT')} a period"
    else:
        how = "fixed, for any number of HATs"
    largest = "the largest charge to a plate of the HAT"
    what = f"An epsilon is {largest}."
    if policy.accounted.has_delta:
        what = (
            f"A rho is {largest}, and charges in rho add up; the epsilon is what it alone is with delta "
            f"{policy.delta:g}, and such epsilons do not add up."
        )
    most = f"U = {policy.max_speed / QUANTA_PER_KMH:g} km/h"
    return f"{policy.amount} per plate and {policy.period}, {how}; {most}. {what}"


def _charge_cells(cost: Cost, delta: float) -> list[tuple[str, str]]:
    measure = MEASURES[cost.measure]
    if measure.unit == "epsilon":
        return [("epsilon", f"{cost.nano / NANO:.3g}")]
    # Both were rounded up, and fewer digits could be less.
    implied = epsilon_text(measure.implied_epsilon(cost.nano, delta))
    return [(measure.unit, amount_text(cost.nano)), (f"epsilon, delta {delta:g}", implied)]


def _cells(typical: TypicalPlan, policy: Policy) -> list[tuple[str, str]]:
    cells = [("plates", str(typical.plates)), *_charge_cells(typical.plan.terms.cost, policy.delta)]
    for name, of in typical.plan.statistics.items():
        cells += STATISTICS[name].columns(of, seeded_bits("plan"))
    cells.append(("releases", str(typical.releases_per_plate)))
    if typical.served:
        return cells
    return [cells[0], (cells[1][0], "withheld"), *((name, "") for name, _ in cells[2:])]
