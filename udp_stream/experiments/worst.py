"""Worst cases, from counts alone: `worst-case`, and `chop-user` further below.

`worst-case`: E(m), its best m, and the limits of epsilon of the slides, beside the optimum with a public fill.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from udp_stream.experiments.base import (
    HEAVY_HATS,
    ITMS_MAX_KMH,
    NOT_STATED,
    Curve,
    DataSet,
    Experiment,
    Figure,
    Hat,
    Job,
    Outcome,
    Panel,
    Setup,
    Table,
    Verdict,
    curve,
    heavy_hitter_city,
    slug,
)
from udp_stream.experiments.means import BUSIEST, choices, data_sets, falls
from udp_stream.mechanisms.base import SamplesPerPlate
from udp_stream.mechanisms.means import Baseline, Optimal
from udp_stream.mechanisms.noise import pure
from udp_stream.planning.suppression import (
    Nanos,
    Occupancy,
    Suppression,
    chop_user,
    epsilon_limits,
    hat_error,
    suppress_to,
)
from udp_stream.units import NANO, QUANTA_PER_KMH

SWEEP = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0)
"""Epsilons: the best m moves below 1 only."""

DRAWN = (0.02, 0.1, 0.5, 2.0)
"""Epsilons whose E(m) is drawn."""

PROPERTIES = "slides, properties of m(epsilon)"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstRow:
    """The least worst-case error of one HAT, or of several, weighed by pings; the baseline guess is always U/2."""

    data: str
    hats: str
    epsilon: float
    best_m: int
    worst_error_kmh: float
    baseline_worst_kmh: float
    optimal_m: int
    optimal_worst_kmh: float
    constant_worst_kmh: float
    share_of_pings: float
    hat_count: int


@dataclass(frozen=True, slots=True)
class CurveRow:
    """E(m) at one count m of the busiest HAT."""

    data: str
    epsilon: float
    m: int
    worst_error_kmh: float
    constant_worst_kmh: float
    share_of_pings: float


def jobs(setup: Setup) -> list[Job]:
    """Each epsilon on the busiest HAT and, of feeds, on all HATs with enough plates; E(m) at some."""
    work: list[Job] = []
    for data in data_sets(setup):
        work += [partial(_rows, setup, data, epsilon) for epsilon in SWEEP]
        work += [partial(_curve_rows, data, epsilon) for epsilon in DRAWN]
    return work


def _rows(setup: Setup, data: DataSet, epsilon: float) -> list[WorstRow]:
    return [_row(data, label, hats, epsilon) for label, hats in choices(setup, data)]


def _row(data: DataSet, label: str, hats: Sequence[Hat], epsilon: float) -> WorstRow:
    """Least E(m) at its largest best m, without a cap, and of the optimum with a fill; caps of the median HAT."""
    cost, width, found = pure(round(epsilon * NANO)), data.range.width, []
    for counts in (hat.counts for hat in hats):
        errors = counts.errors_at_every_count(NANO / cost.nano)
        baseline, optimal = (rule.plan(counts, cost, data.range, "best-fit") for rule in (Baseline(), Optimal()))
        ours = optimal.cap, optimal.error_bound / width
        papers = counts.worst_case_cap(NANO / cost.nano), float(errors.min())
        found.append((*papers, baseline.error_bound / width, *ours))
    weights, most = [hat.counts.total for hat in hats], width / QUANTA_PER_KMH
    caps, capped, plain, filled_caps, ours_filled = zip(*found, strict=True)
    worst, uncapped, filled = (float(np.average(some, weights=weights)) * most for some in (capped, plain, ours_filled))
    best, best_filled = (int(np.median(some)) for some in (caps, filled_caps))
    return WorstRow(
        data=data.name,
        hats=label,
        epsilon=epsilon,
        best_m=best,
        worst_error_kmh=worst,
        baseline_worst_kmh=uncapped,
        optimal_m=best_filled,
        optimal_worst_kmh=filled,
        constant_worst_kmh=most / 2,
        share_of_pings=data.share(hats),
        hat_count=len(hats),
    )


def _curve_rows(data: DataSet, epsilon: float) -> list[CurveRow]:
    """E(m) at each count of the busiest HAT, ascending."""
    counts, most = data.busiest.counts, data.range.width / QUANTA_PER_KMH
    errors = counts.errors_at_every_count(NANO / round(epsilon * NANO)) * most
    by_count, share = dict(zip(counts.descending.tolist(), errors.tolist(), strict=True)), data.share([data.busiest])
    return [CurveRow(data.name, epsilon, m, error, most / 2, share) for m, error in sorted(by_count.items())]


def conclude(setup: Setup, rows: Sequence[WorstRow | CurveRow]) -> Outcome:
    """Figures like the slides', and their properties tried."""
    points = [row for row in rows if isinstance(row, WorstRow)]
    curves = [row for row in rows if isinstance(row, CurveRow)]
    figures, verdicts = [], []
    for data in data_sets(setup):
        here = [row for row in points if (row.data, row.hats) == (data.name, BUSIEST)]
        everywhere = [row for row in points if row.data == data.name and row.hats != BUSIEST]
        counts = data.busiest.counts
        panels = [
            _e_of_m([row for row in curves if row.data == data.name]),
            _best_m(counts, here),
            _least_errors(here[0].hats, here),
        ]
        if everywhere:
            share = f"{everywhere[0].share_of_pings:.0%} of pings"
            panels.append(_least_errors(f"{everywhere[0].hats} ({share})", everywhere))
        title = f"{data.name}; busiest HAT: {counts.plates} plates, {counts.total:,} samples"
        figures.append(Figure(f"worst-case-{slug(data.name)}", title, tuple(panels)))
        verdicts += [
            *_property_verdicts(data.name, counts),
            *(_improvement(some) for some in (here, everywhere) if some),
        ]
    tables = Table("worst-case", tuple(points)), Table("worst-case-of-m", tuple(curves))
    return Outcome(tables, tuple(figures), tuple(verdicts))


def _e_of_m(rows: Sequence[CurveRow]) -> Panel:
    """E(m), a curve for each epsilon, with its least value marked, and the baseline guess across."""
    curves, least = [], []
    for epsilon in sorted({row.epsilon for row in rows}):
        some = [row for row in rows if row.epsilon == epsilon]
        curves.append(curve(f"epsilon {epsilon:.3g}", some, "m", "worst_error_kmh"))
        least.append(min(some, key=lambda row: row.worst_error_kmh))
    xs, ys = tuple(float(row.m) for row in least), tuple(row.worst_error_kmh for row in least)
    ends = [min(rows, key=lambda row: row.m), max(rows, key=lambda row: row.m)]
    curves += Curve("best m", xs, ys, "marks"), curve("baseline guess (U/2)", ends, "m", "constant_worst_kmh", "guess")
    return Panel("E(m)", "cap m, samples", "worst-case error, km/h", tuple(curves), log_x=True, log_y=True)


def _best_m(counts: SamplesPerPlate, rows: Sequence[WorstRow]) -> Panel:
    """The best caps over epsilon, with the exact limits beyond which they stay."""
    least, most = epsilon_limits(counts)
    curves = [curve("papers' rule", rows, "epsilon", "best_m"), curve("public fill", rows, "epsilon", "optimal_m")]
    if np.isfinite(least) and least > 0:
        ends = float(counts.descending[-1]), float(counts.largest)
        curves.append(Curve("eps_min, eps_max (exact)", (least, most), ends, "marks"))
    return Panel("best cap", "epsilon per mean", "cap m, samples", tuple(curves), log_x=True, log_y=True)


def _least_errors(title: str, rows: Sequence[WorstRow]) -> Panel:
    """The least worst-case error over epsilon: no cap, the papers' rule, a public fill, the baseline guess."""
    curves = (
        curve("baseline", rows, "epsilon", "baseline_worst_kmh"),
        curve("papers' rule", rows, "epsilon", "worst_error_kmh"),
        curve("public fill", rows, "epsilon", "optimal_worst_kmh"),
        curve("baseline guess (U/2)", rows, "epsilon", "constant_worst_kmh", "guess"),
    )
    return Panel(title, "epsilon per mean", "least worst-case error, km/h", curves, log_x=True, log_y=True)


def _best_caps(counts: SamplesPerPlate, epsilon: float) -> list[int]:
    """All best m among *all* caps 1..m_max (up to rounding), from the formula itself."""
    caps = np.arange(1, counts.largest + 1)
    up_to = np.cumsum(np.bincount(counts.by_plate))
    kept = np.cumsum(counts.plates - up_to[:-1])
    errors = 1 - kept / counts.total + caps / (epsilon * kept)
    smallest = int(counts.descending[-1])
    errors[: smallest - 1] = np.inf  # the papers' m lies in [m_min, m_max]
    return (np.flatnonzero(errors <= errors.min() * (1 + 1e-12)) + 1).tolist()


def _printed_limits(counts: SamplesPerPlate) -> tuple[float, float]:
    """eps_min and eps_max as the slides print them."""
    smallest = float(counts.descending[-1])
    return smallest / (counts.plates * counts.total), (counts.total / (counts.plates * smallest)) ** 2


def _property_verdicts(name: str, counts: SamplesPerPlate) -> list[Verdict]:
    """The three properties of the slides, each tried over all caps; the limits as printed and exact."""
    grid = np.geomspace(1e-4, 10, 400).tolist()
    best = [_best_caps(counts, epsilon) for epsilon in grid]
    values = set(counts.by_plate.tolist())
    least, most = int(counts.descending[-1]), counts.largest
    printed_min, printed_max = _printed_limits(counts)
    exact_min, exact_max = epsilon_limits(counts)
    below = _best_caps(counts, printed_min)
    above = _best_caps(counts, printed_max)
    return [
        Verdict(
            f"{name}: a best m is one of the counts",
            PROPERTIES,
            all(values & set(caps) for caps in best),
            f"at each of {len(grid)} epsilons from {grid[0]:g} to {grid[-1]:g}, over all {counts.largest} caps",
        ),
        Verdict(
            f"{name}: the best m is non-decreasing in epsilon",
            PROPERTIES,
            falls([-max(caps) for caps in best]),
            f"from {max(best[0])} to {max(best[-1])} over the same epsilons",
        ),
        Verdict(
            f"{name}: m_min is best up to eps_min, and m_max from eps_max on",
            PROPERTIES,
            least in below and most in above,
            f"holds at eps_min = {printed_min:.3g} and eps_max = {printed_max:.3g}, as printed; the exact limits are "
            f"{exact_min:.3g} and {exact_max:.3g}",
        ),
        Verdict(
            f"{name}: these limits say when capping helps",
            PROPERTIES,
            printed_min >= 0.5 * exact_min and printed_max <= 2 * exact_max,
            f"eps_min {exact_min / printed_min:.3g} times too small, eps_max {printed_max / exact_max:.3g} too big",
            "they are sufficient, not necessary: from epsilon 1 on capping never lowers the worst case",
        )
        if exact_max > 0
        else Verdict(
            f"{name}: these limits say when capping helps", PROPERTIES, False, "all counts are equal: nothing to cap"
        ),
    ]


def _improvement(rows: Sequence[WorstRow]) -> Verdict:
    ratios = {row.epsilon: row.optimal_worst_kmh / row.worst_error_kmh for row in rows}
    held = [row for row in rows if row.optimal_worst_kmh <= row.constant_worst_kmh]
    asked = {epsilon: f"{ratios[epsilon]:.2f} at {epsilon:g}" for epsilon in (0.1, 0.5, 1.0, 2.0)}
    return Verdict(
        f"{rows[0].data}, {rows[0].hats}: the optimum with a public fill has the lower worst-case error",
        "ours, beside 2405.06261's E(m); docs/mechanisms/optimal.md",
        all(ratio <= 1 + 1e-9 for ratio in ratios.values()),
        f"times that of the papers' rule, by epsilon: {', '.join(asked.values())}; share of pings "
        f"{rows[0].share_of_pings:.0%}; the baseline guess U/2 has {rows[0].constant_worst_kmh:g} km/h, "
        + (
            f"which the fill beats from epsilon {held[0].epsilon:g}"
            if held
            else "which it does not beat up to epsilon 2"
        ),
    )


WORST_CASE = Experiment("worst-case", "E(m), the best cap, and the optimum with a public fill", jobs, conclude)


# `chop-user`: the loss of a slot's composition before and after suppression (slides, results I and II).

CHOP_SWEEP = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0)
"""Epsilons: the slides' gains are at small ones."""

CHOP, CHOP_BOTH = "chop-user", "chop-user, mean and variance"
"""For a mean at all of a HAT's epsilon; for mean and variance at half of it each, as the slides print it."""

SUPPRESS_TO, LARGEST = "suppress-to", "each plate's largest"
"""The least worst error that we find for a number of HATs per plate; and, to compare that with, every plate
in those of its HATs where it has most samples."""

FIXED_EPSILON = 0.5
"""At which worst-case errors are compared for fixed numbers of HATs per plate."""

HEAVY = "one heavy hitter"

CHOPPED = "slides, CHOP-USER; 2405.06261"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChopRow:
    """One outcome over a slot's HATs; errors are worst cases, the baseline guess is U/2. Of mean and variance an error
    is the sum of both as shares of U and U^2, times U.

    Kept: of the pings in these HATs. Served: the share of all of the slot's pings in those that keep a plate.
    """

    data: str
    rule: str
    epsilon: float
    hats_before: int
    hats_after: int
    loss_before: float
    loss_after: float
    threshold_kmh: float
    worst_error_kmh: float
    constant_worst_kmh: float
    share_of_slots_pings_kept: float
    share_of_slots_pings_served: float
    hat_count: int
    plates: int


@dataclass(frozen=True, slots=True)
class Slot:
    """Who is where, U in km/h, and all pings of the slot, those in HATs that are left out included. `is_one`: it is one
    slot, and not all that a recording has.
    """

    name: str
    occupancy: Occupancy
    max_kmh: float
    pings: int
    is_one: bool = True


def _slots(setup: Setup) -> list[Slot]:
    """The heavy-hitter city; of each feed its busiest slot, with all HATs and with those of enough plates; the latter
    of all slots together, as a plate's loss adds up over a day.
    """
    city = heavy_hitter_city(setup.rng("heavy-hitter"))
    found = [Slot(HEAVY, city, ITMS_MAX_KMH, int(city.count.sum()))]
    for data in setup.data:
        if data.busiest_slot is not None:
            most, pings = data.range.width / QUANTA_PER_KMH, int(data.busiest_slot.count.sum())
            found.append(Slot(f"{data.name}, all HATs", data.busiest_slot, most, pings))
            enough = _of_at_least(data.busiest_slot, setup.min_plates)
            if enough.hats:
                found.append(Slot(f"{data.name}, HATs of >= {setup.min_plates} plates", enough, most, pings))
        if data.whole is not None and (enough := _of_at_least(data.whole, setup.min_plates)).hats:
            most, pings = data.range.width / QUANTA_PER_KMH, int(data.whole.count.sum())
            name = f"{data.name}, all slots, HATs of >= {setup.min_plates} plates"
            found.append(Slot(name, enough, most, pings, is_one=False))
    return found


def _of_at_least(occupancy: Occupancy, plates: int) -> Occupancy:
    """The HATs with at least this many plates."""
    sizes = np.diff(occupancy.hat_rows)
    rows = np.repeat(sizes >= plates, sizes)
    starts = np.append(0, np.cumsum(sizes[sizes >= plates]))
    return Occupancy(starts, occupancy.plate[rows], occupancy.count[rows], occupancy.plates)


def chop_jobs(setup: Setup) -> list[Job]:
    """CHOP-USER at each epsilon; the least worst-case error for each number of HATs per plate."""
    work: list[Job] = []
    for slot in _slots(setup):
        work += [partial(_chop, slot, epsilon) for epsilon in CHOP_SWEEP]
        most = int(np.bincount(slot.occupancy.plate).max()) if slot.is_one else 0
        work += [partial(rule, slot, hats) for rule in (_suppress, _keep_largest) for hats in range(1, most + 1)]
    return work


def _chop(slot: Slot, epsilon: float) -> list[ChopRow]:
    nano = round(epsilon * NANO)
    rules = (CHOP, Nanos(nano)), (CHOP_BOTH, Nanos(nano // 2, nano // 2))
    return [_chop_row(slot, rule, epsilon, chop_user(slot.occupancy, nanos)) for rule, nanos in rules]


def _suppress(slot: Slot, hats: int) -> list[ChopRow]:
    outcome = suppress_to(slot.occupancy, Nanos(round(FIXED_EPSILON * NANO)), hats)
    return [_chop_row(slot, SUPPRESS_TO, FIXED_EPSILON, outcome)]


def _keep_largest(slot: Slot, hats: int) -> list[ChopRow]:
    who, nano = slot.occupancy, Nanos(round(FIXED_EPSILON * NANO))
    order = np.lexsort((np.arange(who.plate.size), -who.count, who.plate))
    firsts = np.searchsorted(who.plate[order], who.plate[order])
    keep = np.zeros(who.plate.size, dtype=bool)
    keep[order] = np.arange(order.size) - firsts < hats
    kept, starts = np.where(keep, who.count, 0), who.hat_rows[:-1]
    sums = np.add.reduceat(who.count, starts), np.add.reduceat(kept, starts), np.maximum.reduceat(kept, starts)
    of_hats = zip(*(column.tolist() for column in sums), strict=True)
    errors = [hat_error(total, left, largest, FIXED_EPSILON) for total, left, largest in of_hats]
    before, most = suppress_to(who, nano, int(np.bincount(who.plate).max())), int(np.bincount(who.plate[keep]).max())
    outcome = Suppression(keep, before.hats_before, most, before.threshold, np.array(errors))
    return [_chop_row(slot, LARGEST, FIXED_EPSILON, outcome)]


def _chop_row(slot: Slot, rule: str, epsilon: float, outcome: Suppression) -> ChopRow:
    count = slot.occupancy.count
    served = np.isin(slot.occupancy.hat_of_row(), slot.occupancy.hat_of_row()[outcome.keep])
    return ChopRow(
        data=slot.name,
        rule=rule,
        epsilon=epsilon,
        hats_before=outcome.hats_before,
        hats_after=outcome.hats_after,
        loss_before=epsilon * outcome.hats_before,
        loss_after=epsilon * outcome.hats_after,
        threshold_kmh=outcome.threshold * slot.max_kmh,
        worst_error_kmh=outcome.worst_error * slot.max_kmh,
        constant_worst_kmh=slot.max_kmh / 2,
        share_of_slots_pings_kept=float(count[outcome.keep].sum() / count.sum()),
        share_of_slots_pings_served=float(count[served].sum() / slot.pings),
        hat_count=slot.occupancy.hats,
        plates=int(np.unique(slot.occupancy.plate).size),
    )


def chop_conclude(setup: Setup, rows: Sequence[ChopRow]) -> Outcome:
    """The loss over epsilon, the worst-case error beside the baseline guess's, and that over the number of HATs."""
    figures, verdicts = [], []
    for slot in _slots(setup):
        chopped, both, fixed, plain = (
            [row for row in rows if (row.data, row.rule) == (slot.name, rule)]
            for rule in (CHOP, CHOP_BOTH, SUPPRESS_TO, LARGEST)
        )
        size = f"{slot.occupancy.hats} HATs, {chopped[0].plates} plates"
        panels = _loss(chopped, both), _errors(chopped), *([_fixed_numbers(fixed, plain)] if slot.is_one else [])
        figures.append(Figure(f"chop-user-{slug(slot.name)}", f"{slot.name}: {size}", panels))
        verdicts += [*_chop_verdicts(slot, chopped, fixed, plain), _of_both(slot, both)]
    return Outcome((Table("chop-user", tuple(rows)),), tuple(figures), tuple(verdicts))


def _loss(rows: Sequence[ChopRow], both: Sequence[ChopRow]) -> Panel:
    curves = (
        curve(f"before: {rows[0].hats_before} epsilon", rows, "epsilon", "loss_before"),
        curve("after: K epsilon", rows, "epsilon", "loss_after"),
        curve("after, mean and variance", both, "epsilon", "loss_after"),
    )
    return Panel("loss under composition", "epsilon per HAT", "epsilon of a plate", curves, log_x=True, log_y=True)


def _errors(rows: Sequence[ChopRow]) -> Panel:
    curves = (
        curve("threshold (before)", rows, "epsilon", "threshold_kmh"),
        curve("after", rows, "epsilon", "worst_error_kmh"),
        curve("baseline guess (U/2)", rows, "epsilon", "constant_worst_kmh", "guess"),
    )
    return Panel("worst HAT", "epsilon per HAT", "worst-case error, km/h", curves, log_x=True, log_y=True)


def _fixed_numbers(rows: Sequence[ChopRow], plain: Sequence[ChopRow]) -> Panel:
    finite, others = ([row for row in some if np.isfinite(row.worst_error_kmh)] for some in (rows, plain))
    curves = (
        curve("suppressed for the least worst error", finite, "hats_after", "worst_error_kmh"),
        curve("each plate where it has most", others, "hats_after", "worst_error_kmh"),
        curve("threshold (nothing suppressed)", finite, "hats_after", "threshold_kmh"),
        curve("baseline guess (U/2)", finite, "hats_after", "constant_worst_kmh", "guess"),
    )
    title = f"worst HAT at epsilon {FIXED_EPSILON:g}"
    return Panel(title, "HATs per plate, at most", "worst-case error, km/h", curves, log_y=True)


def _chop_verdicts(
    slot: Slot, chopped: Sequence[ChopRow], fixed: Sequence[ChopRow], plain: Sequence[ChopRow]
) -> list[Verdict]:
    verdicts = [
        _gains(slot, chopped),
        _no_worse(slot, chopped),
        *([_fixed(slot, fixed, plain)] if slot.is_one else []),
        _number_to_beat(slot, chopped),
    ]
    if slot.name == HEAVY:
        before = chopped[0].hats_before
        seen = f"{before} epsilon; the slides' data are not given: ours are drawn, and K depends on them"
        original = f"the original loss is {HEAVY_HATS} epsilon"
        verdicts.insert(0, Verdict(original, "slides, experimental results II", before == HEAVY_HATS, seen))
    return verdicts


def _gains(slot: Slot, chopped: Sequence[ChopRow]) -> Verdict:
    before, small, large = chopped[0].hats_before, chopped[0], chopped[-1]
    single = float((np.diff(slot.occupancy.hat_rows) == 1).mean())
    return Verdict(
        f"{slot.name}: clear gains in composition privacy loss for small epsilon",
        CHOPPED,
        small.hats_after <= 0.75 * before and small.hats_after <= large.hats_after,
        f"{before} HATs before; K by epsilon: {', '.join(f'{row.hats_after} at {row.epsilon:g}' for row in chopped)} "
        f"(clear: a quarter less at epsilon {small.epsilon:g})",
        "a plate that leaves a HAT causes a bias of its share, and the threshold leaves no room for that"
        + (f"; {single:.0%} of the HATs have a single plate, which can never leave" if single else ""),
    )


def _of_both(slot: Slot, both: Sequence[ChopRow]) -> Verdict:
    before, small = both[0].hats_before, both[0]
    kept = all(row.worst_error_kmh <= row.threshold_kmh * (1 + 1e-12) for row in both)
    return Verdict(
        f"{slot.name}: with mean and variance at half of epsilon each the loss falls, and no HAT's error grows",
        CHOPPED,
        kept and small.hats_after < before,
        f"{before} HATs before; K by epsilon: {', '.join(f'{row.hats_after} at {row.epsilon:g}' for row in both)}"
        + ("" if kept else "; an error grew"),
        "a plate that leaves a HAT causes a bias in both of its statistics",
    )


def _no_worse(slot: Slot, chopped: Sequence[ChopRow]) -> Verdict:
    ends = [
        f"at epsilon {row.epsilon:g} {row.worst_error_kmh:.4g} of {row.threshold_kmh:.4g} km/h"
        for row in (chopped[0], chopped[-1])
    ]
    return Verdict(
        f"{slot.name}: no HAT's worst-case error grows beyond the threshold",
        CHOPPED,
        all(row.worst_error_kmh <= row.threshold_kmh * (1 + 1e-12) for row in chopped),
        ", ".join(ends),
    )


def _fixed(slot: Slot, fixed: Sequence[ChopRow], plain: Sequence[ChopRow]) -> Verdict:
    pairs = [(one.worst_error_kmh, other.worst_error_kmh) for one, other in zip(fixed, plain, strict=True)]
    worse = sum(one > other * (1 + 1e-9) for one, other in pairs)
    better = [k + 1 for k, (one, other) in enumerate(pairs) if one < other * (1 - 1e-9)]
    at = (
        f"; at {better[0]} a plate {pairs[better[0] - 1][0]:.4g} against {pairs[better[0] - 1][1]:.4g} km/h"
        if better
        else ""
    )
    return Verdict(
        f"{slot.name}: for fixed numbers the worst-case error can be improved (our reading: HATs per plate)",
        "2405.06261, abstract",
        len(better) > worse,
        f"at epsilon {FIXED_EPSILON:g}, against keeping each plate where it has most samples: lower for "
        f"{len(better)} of {len(pairs)} numbers, higher for {worse}{at}",
        "ours is a descent, not a search" if worse else "the worst HAT is one that no choice improves",
    )


def _number_to_beat(slot: Slot, chopped: Sequence[ChopRow]) -> Verdict:
    useful = [row.epsilon for row in chopped if row.worst_error_kmh < row.constant_worst_kmh]
    return Verdict(
        f"{slot.name}: the worst-case error that is kept is below that of the baseline guess U/2",
        NOT_STATED,
        len(useful) == len(chopped),
        f"{chopped[0].constant_worst_kmh:.4g} km/h for the baseline guess; the worst HAT is "
        + (f"better from epsilon {min(useful):g} on" if useful else f"worse up to epsilon {chopped[-1].epsilon:g}")
        + f"; share of the slot's pings served {chopped[-1].share_of_slots_pings_served:.0%}",
        "where it is worse, the threshold itself is: it preserves an error beyond that of the baseline guess",
    )


CHOP_USER = Experiment("chop-user", "loss under composition before and after suppression", chop_jobs, chop_conclude)
