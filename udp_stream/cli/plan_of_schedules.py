"""`plan FILE`: the file's time under each budget schedule, from its counts alone. No speed is read.

Under each schedule the file's slots are planned and charged by the real road, on a ledger that is forgotten; the error
is that of a rehearsal (`release/rehearsal.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import msgspec
import numpy as np
from rich.table import Table

from udp_stream.adapters.settings import Settings
from udp_stream.adapters.settings.rules import check
from udp_stream.cli.progress import StepProgress
from udp_stream.cli.report import SOFTWARE, print_whole, printer
from udp_stream.errors import ConfigError
from udp_stream.ledger.conversion import epsilon_of
from udp_stream.ledger.memory import MemoryLedger
from udp_stream.ledger.port import Entropy
from udp_stream.planning.policy import Policy
from udp_stream.planning.schedules import Schedule
from udp_stream.release.charge import plan_slot
from udp_stream.release.context import ReleaseContext
from udp_stream.release.rehearsal import rehearse
from udp_stream.units import NANO
from udp_stream.windows.tables import SlotCounts


@dataclass(frozen=True, slots=True)
class Scheduled:
    """What a schedule makes of some slots: the median charge of a HAT in the slot where that is least, and most.

    `unit` is that of the charges, epsilon or rho. Of a rho the two are also told as epsilons, with `budget.delta`.

    `refused` slots have a HAT with a plate that could not pay; `served` is the share of pings in HATs that are charged.
    """

    least: float
    most: float
    refused: int
    slots: int
    served: float
    error_kmh: float
    unit: str
    least_epsilon: float
    most_epsilon: float


@dataclass(frozen=True, slots=True)
class SchedulesPlan:
    """What each schedule makes of the slots, or why it is left out, by name; none where no schedule applies."""

    found: Mapping[str, Scheduled | str]
    why_none: str = ""


def plan_schedules(slots: Sequence[SlotCounts], settings: Settings, entropy: Entropy) -> SchedulesPlan:
    """Every schedule that the period allows, for the configured resolution and slot."""
    policy, found = settings.policy, dict[str, Scheduled | str]()
    if policy.forecasts:
        return SchedulesPlan(found, "none applies: means around forecasts have a pace of their own")
    if None not in (policy.mean_nano, policy.cdf_nano):
        return SchedulesPlan(found, "none applies: every epsilon is fixed")
    named = schedules_for(slots, settings)
    with StepProgress("schedules", len(named)) as progress:
        for name in progress.each(list(named)):
            try:
                found[name] = under_schedule(slots, _with(settings, named[name]), entropy)
            except ConfigError as error:
                found[name] = str(error)
    return SchedulesPlan(found)


def facts_of_schedules(plan: SchedulesPlan) -> dict[str, object]:
    """The same as JSON."""
    return {name: {"left_out": one} if isinstance(one, str) else asdict(one) for name, one in plan.found.items()}


def print_schedules(plan: SchedulesPlan, settings: Settings) -> None:
    """The table; a sentence where no schedule applies."""
    out = printer(width=160)
    if plan.why_none:
        out.print(f"budget.schedule: {plan.why_none}.")
        return
    table = Table(box=None, pad_edge=False)
    in_rho = settings.policy.measure != "pure"
    unit, as_epsilon = ("rho", ("as epsilon, least", "most")) if in_rho else ("epsilon", ())
    for name in (
        "schedule",
        f"{unit}, least",
        "most",
        *as_epsilon,
        "slots that refuse a plate",
        "served",
        "expected error",
    ):
        table.add_column(name, justify="left" if name == "schedule" else "right")
    for name, one in plan.found.items():
        if isinstance(one, str):
            table.add_row(name, f"left out: {one}")
            continue
        amounts = [one.least, one.most, *([one.least_epsilon, one.most_epsilon] if in_rho else [])]
        shown = *(f"{amount:.3g}" for amount in amounts), f"{one.refused} of {one.slots}"
        table.add_row(name, *shown, f"{one.served:.0%}", f"{one.error_kmh:.2f}")
    out.print(f"\nUnder each budget.schedule, at H3 {settings.hat.resolution} and {settings.hat.slot}:")
    print_whole(out, table)
    out.print(
        f"{unit}: the charge of the median HAT, in the slot where it is least and where it is most"
        f"{f'; as epsilon with delta {settings.policy.delta:g}' if in_rho else ''}. slots that refuse a plate: a "
        "plate's budget of the period is gone. served, expected error: as above."
    )


def schedules_for(slots: Sequence[SlotCounts], settings: Settings) -> dict[str, Schedule]:
    """Those that the period allows, by name: weights are the configured ones, or each slot's share of these pings."""
    policy = settings.policy
    if policy.rolls:
        return {"spread": "spread", "uniform": "uniform"}
    if isinstance(policy.schedule, tuple):
        weights: dict[str, Schedule] = {"weights": policy.schedule}
    else:
        pings = np.zeros(round((policy.period_seconds or 0) / policy.slot_seconds))
        for counts in slots:
            pings[settings.calendar.slot_in_period(counts.start_ms).slots_gone % pings.size] += counts.count.sum()
        weights = {"weights by pings": tuple((pings / pings.sum()).round(6).tolist())}
    return {"spread": "spread", "uniform": "uniform", "ramp": "ramp", **weights}


def under_schedule(slots: Sequence[SlotCounts], settings: Settings, entropy: Entropy) -> Scheduled:
    """Plan, charge and rehearse. ConfigError if the schedule does not fit."""
    check(settings)
    ledger, policy = MemoryLedger(), settings.policy
    context = ReleaseContext(policy, settings.calendar, entropy, SOFTWARE)
    charges, refused, charged_pings = list[float](), 0, 0
    for counts in slots:
        plan, medians, is_refused = plan_slot(counts, context, ledger), list[float](), False
        for hat, terms in enumerate(plan.terms):
            charged = plan.charged_rows(hat)
            if terms.withheld or not charged.any():
                is_refused |= terms.withheld in ("", "budget")
                continue
            is_refused |= bool((terms.of_kept(charged) == 0).any())
            medians.append(terms.charge_nano / NANO)
            charged_pings += int(counts.count[counts.rows(hat)].sum())
        refused += is_refused
        charges += [float(np.median(medians))] if medians else []
    pings = sum(int(counts.count.sum()) for counts in slots)
    error = rehearse(slots, ReleaseContext(policy, settings.calendar, entropy, SOFTWARE)).error
    ends = (min(charges), max(charges)) if charges else (0.0, 0.0)
    unit, epsilons = "epsilon", ends
    if policy.measure != "pure":
        unit, epsilons = "rho", (_epsilon(ends[0], policy), _epsilon(ends[1], policy))
    return Scheduled(*ends, refused, len(slots), charged_pings / max(1, pings), error, unit, *epsilons)


def _epsilon(rho: float, policy: Policy) -> float:
    return epsilon_of(round(rho * NANO), policy.delta) if rho else 0.0


def _with(settings: Settings, schedule: Schedule) -> Settings:
    replace = msgspec.structs.replace
    return replace(settings, budget=replace(settings.budget, schedule=schedule))
