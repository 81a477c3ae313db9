"""`plan`: what to expect of a configuration. Nothing is charged, and errors are of invented speeds.

With files: resolutions and slots side by side, from their counts (`cli/plan_of_feed.py`). Without: a row for each of
some typical sizes of HATs.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from udp_stream.cli.report import beside_guess, print_whole, printer
from udp_stream.errors import ConfigError, UsageError
from udp_stream.logs import counted
from udp_stream.mechanisms.noise import MEASURES, Cost
from udp_stream.mechanisms.statistics import SCATTER, spread
from udp_stream.planning.plan import HatPlan, HatPlans, Terms, automatic_nano, plan_hat, terms_at
from udp_stream.planning.policy import Policy
from udp_stream.planning.promise import epsilon_text
from udp_stream.planning.slot import PRICES_PER_BUDGET, is_too_little, terms_of_typical
from udp_stream.release.road import estimate_hats
from udp_stream.settings import Settings
from udp_stream.testing import SeededEntropy, seeded_bits
from udp_stream.units import NANO, QUANTA_PER_KMH, amount_text
from udp_stream.windows.tables import PINGS_MAX

TYPICAL_PLATES = (5, 10, 20, 40, 80, 160)
SPREAD = 0.6
"""Log-standard deviation of the pings per plate in a typical HAT (lognormal; measured on a busy Surat cell)."""

HATS_PER_PERIOD = 12
"""HATs that a typical plate visits in a period."""

TRIALS = 300
"""Of a projected mean: its expected error is then known to about 7 %."""


@dataclass(frozen=True, slots=True)
class Bought:
    """What one HAT of a kind gets, if it is `served`: smaller ones than `min_plates` are withheld."""

    plates: int
    served: bool
    plan: HatPlan
    releases_per_plate: int
    mean_error_kmh: float


def plan(arguments: argparse.Namespace, settings: Settings) -> None:
    """Print a table and what it says. UsageError for options that belong to the other table, and for more pings than a
    slot may have."""
    plates, pings_per_plate = arguments.plates, arguments.pings_per_plate
    if arguments.files:
        if plates or pings_per_plate:
            raise UsageError("--plates, --pings-per-plate: expected no FILE beside them, whose plates and pings count")
        from udp_stream.cli.plan_of_feed import plan_of_feed, print_feed

        print_feed(plan_of_feed(arguments.files, settings, SeededEntropy("plan")), settings)
        return
    pings_per_plate = pings_per_plate or 40
    if (plates or max(TYPICAL_PLATES)) * pings_per_plate > PINGS_MAX:
        raise UsageError(f"expected --plates times --pings-per-plate <= {PINGS_MAX}, the most pings of a slot")
    sizes = (plates,) if plates else TYPICAL_PLATES
    _print([buy(settings.policy, size, pings_per_plate) for size in sizes], settings.policy)


def _print(bought: list[Bought], policy: Policy) -> None:
    """A row for each size of HAT."""
    out, table = printer(width=160), Table(box=None, pad_edge=False)
    rows = [_cells(one, policy) for one in bought]
    for name, _ in rows[0]:
        table.add_column(name, justify="right", min_width=15 if name == "mechanism" else None, overflow="fold")
    for row in rows:
        table.add_row(*(cell for _, cell in row))
    out.print(_head(policy))
    print_whole(out, table)
    for note in _notes(policy, [one for one in bought if one.served]):
        out.print(note)


def _notes(policy: Policy, served: list[Bought]) -> list[str]:
    """What must be known to read the table."""
    notes = [
        f"releases: of how many such HATs the median plate's budget of a period pays. HATs of fewer than "
        f"{policy.min_plates} plates are withheld without a charge."
    ]
    if any((one.plan.mean or one.plan.around) is not None for one in served):
        notes.append(
            f"Expected error in km/h: {beside_guess(policy.resolution)}. A mean that errs more buys nothing that "
            "counts do not tell."
        )
    if any(one.plan.mean is not None and one.plan.mean.moves is None for one in served):
        notes.append(
            "noise and error bound: if the private interval is all of [0, U]; expected error: by simulation, with the "
            "interval found."
        )
    for one in served:
        if (mean := one.plan.mean or one.plan.around) is not None:
            notes.append(f"{counted(one.plates, 'plate')}: {mean.mechanism}, {one.plan.why}.")
    notes.append(
        "These sizes are typical. `udp-stream plan FILE` counts your city's, and compares resolutions and slots."
    )
    return notes


def terms_for(policy: Policy, part: float | None = None) -> Terms:
    """The epsilons of a HAT when a plate's budget is spread over `HATS_PER_PERIOD` HATs; fixed ones unchanged.

    `part` is the share of a HAT's epsilon that a plate is usually charged; None while that is not known.
    Raises ConfigError if an automatic epsilon is too small for any HAT once it is.
    """
    if not policy.automatic:
        return terms_at(0, policy)
    each = automatic_nano(int(policy.budget_nano / HATS_PER_PERIOD / (part or 1)), policy)
    least = policy.accounted.measure.least_nano
    if part is not None and each < least:
        raise _too_little(policy, f"if the budget of {policy.amount} is spread over {counted(HATS_PER_PERIOD, 'HAT')}")
    return terms_at(max(each, least), policy)


def _too_little(policy: Policy, where: str) -> ConfigError:
    key, measure = policy.accounted.key, policy.accounted.measure
    return ConfigError(f"{key}: an automatic {measure.unit} would be below {measure.least_nano / NANO:g} {where}")


def typical_counts(plates: int, pings_per_plate: int) -> NDArray[np.int64]:
    """Counts spread like a busy cell's, the same every time."""
    normal = NormalDist()
    spread = np.exp([SPREAD * normal.inv_cdf((i + 0.5) / plates) for i in range(plates)])
    counts: NDArray[np.int64] = np.maximum(1, np.round(pings_per_plate * spread / spread.mean())).astype(np.int64)
    return counts


def buy(policy: Policy, plates: int, pings_per_plate: int) -> Bought:
    """Plan a typical HAT.

    An automatic epsilon follows what plates are charged, as in a slot's plan: twice, from all of epsilon on. Of a HAT
    that is withheld nothing is charged.
    """
    counts, served = typical_counts(plates, pings_per_plate), plates >= policy.min_plates
    if policy.forecasts:
        if is_too_little(policy):
            raise _too_little(policy, f"if the budget of {policy.amount} pays for {PRICES_PER_BUDGET} HATs")
        plans = HatPlans(policy.public)
        bought = plans.plan_hat(counts, terms_of_typical(counts, policy, plans))
    else:
        bought = plan_hat(counts, terms_for(policy), policy)
        if served and policy.automatic:
            part = float(bought.charges.mean()) / bought.terms.charge_nano
            bought = plan_hat(counts, terms_for(policy, part), policy)
    releases = policy.budget_nano // int(np.median(bought.charges))
    return Bought(plates, served, bought, releases, _mean_error_kmh(bought))


def _mean_error_kmh(plan: HatPlan) -> float:
    """Noise, and the bias that is likely.

    What projection does depends on the interval that speeds will choose: there it is the mean error of trials, always
    the same ones, at speeds that scatter as `means.accuracy` takes it, around means anywhere in [0, U] alike.
    """
    if plan.around is not None:
        return plan.around.expected_error / QUANTA_PER_KMH
    mean = plan.mean
    if mean is None:
        return float("nan")
    if mean.moves is not None:
        return mean.noise.clamped_error(mean.noise_bound, spread(mean), mean.range.width) / QUANTA_PER_KMH
    rng, counts = np.random.default_rng(0), mean.counts.by_plate
    samples = []
    for truth in rng.uniform(0, mean.range.width, TRIALS):
        part = np.sqrt(SCATTER * truth * (mean.range.width - truth) / 3 / 2)
        speeds = truth + part * (
            np.repeat(rng.standard_normal(counts.size), counts) + rng.standard_normal(counts.sum())
        )
        samples.append(np.clip(np.round(speeds), 0, mean.range.width).astype(np.int64))
    alone = replace(plan, statistics={"mean": mean})
    estimates = estimate_hats([alone] * TRIALS, samples, seeded_bits("plan"))
    errors = [
        abs(mean.released(estimate.mean) - speeds.mean())
        for estimate, speeds in zip(estimates, samples, strict=True)
        if estimate.mean is not None
    ]
    return float(np.mean(errors)) / QUANTA_PER_KMH


def _head(policy: Policy) -> str:
    automatic = policy.automatic > 0
    if automatic and policy.forecasts:
        how = f"of which the plate that moves a mean most pays one part in {PRICES_PER_BUDGET}"
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
    return (
        f"{policy.amount} per plate and {policy.period}, {how}; U = {policy.max_speed / QUANTA_PER_KMH:g} km/h. {what}"
    )


def _charge_cells(cost: Cost, delta: float) -> list[tuple[str, str]]:
    measure = MEASURES[cost.measure]
    if measure.unit == "epsilon":
        return [("epsilon", f"{cost.nano / NANO:.3g}")]
    # Both were rounded up, and fewer digits could be less.
    implied = epsilon_text(measure.implied_epsilon(cost.nano, delta))
    return [(measure.unit, amount_text(cost.nano)), (f"epsilon, delta {delta:g}", implied)]


def _cells(one: Bought, policy: Policy) -> list[tuple[str, str]]:
    """Columns and their contents, of the statistics that are released; of a HAT that is withheld only that."""
    mean, variance, cdf = one.plan.mean or one.plan.around, one.plan.variance, one.plan.cdf
    cells = [("plates", str(one.plates)), *_charge_cells(one.plan.terms.cost, policy.delta)]
    if mean is not None:
        cells += [
            ("mechanism", mean.mechanism),
            ("noise km/h", f"{mean.noise_bound / QUANTA_PER_KMH:.2f}"),
            ("expected error", f"{one.mean_error_kmh:.2f}"),
            ("error bound", f"{min(mean.error_bound, mean.range.width) / QUANTA_PER_KMH:.2f}"),
        ]
    if variance is not None:
        cells.append(("variance noise", f"{variance.noise_bound / QUANTA_PER_KMH**2:.1f}"))
    if cdf is not None:
        cells += [("CDF bins", str(cdf.bins.count)), ("CDF rms error", f"{cdf.rms_error:.3f}")]
    cells.append(("releases", str(one.releases_per_plate)))
    if one.served:
        return cells
    return [cells[0], (cells[1][0], "withheld"), *((name, "") for name, _ in cells[2:])]
