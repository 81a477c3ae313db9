"""`worst-case` and `chop-user`: worst-case errors and loss under composition, both from counts alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from lab.data import (
    BUSIEST,
    ITMS_MAX_KMH,
    Curve,
    DataSet,
    Experiment,
    Figure,
    Finding,
    HatSamples,
    Job,
    Outcome,
    Panel,
    ResultRow,
    Setup,
    all_hats,
    choices,
    curve,
    data_sets,
    of_kind,
    where,
)
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
from udp_stream.units import NANO

SWEEP = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0)
"""The best m moves below 1 only."""

DRAWN = (0.02, 0.1, 0.5, 2.0)


class WorstRow(ResultRow):
    """The least worst-case error of one HAT, or of several, weighed by pings; the baseline guess is always U/2."""


class CurveRow(ResultRow):
    """E(m) at one count m of the busiest HAT."""


def jobs(setup: Setup) -> list[Job]:
    """Each epsilon on the busiest HAT and, of feeds, all HATs with enough plates; E(m) at some."""
    work: list[Job] = []
    for data in data_sets(setup):
        work += [partial(_rows, setup, data, epsilon) for epsilon in SWEEP]
        work += [partial(_curve_rows, data, epsilon) for epsilon in DRAWN]
    return work


def _rows(setup: Setup, data: DataSet, epsilon: float) -> list[WorstRow]:
    return [_row(data, label, hats, epsilon) for label, hats in choices(setup, data)]


def _row(data: DataSet, label: str, hats: Sequence[HatSamples], epsilon: float) -> WorstRow:
    cost, found = pure(round(epsilon * NANO)), []
    for counts in (hat.counts for hat in hats):
        baseline, optimal = (rule.plan(counts, cost, data.range, "best-fit") for rule in (Baseline(), Optimal()))
        papers = counts.worst_case_cap(NANO / cost.nano), counts.errors_at_every_count(NANO / cost.nano).min()
        bounds = (plan.error_bound / data.range.width for plan in (baseline, optimal))
        found.append((*papers, *bounds, optimal.cap))
    caps, *errors, filled_caps = zip(*found, strict=True)
    weights = [hat.counts.total for hat in hats]
    worst, uncapped, filled = (float(np.average(some, weights=weights)) * data.max_kmh for some in errors)
    return WorstRow(
        data=data.name, hats=label, epsilon=epsilon, best_m=int(np.median(caps)), worst_error=worst,
        baseline_worst_kmh=uncapped, optimal_m=int(np.median(filled_caps)), optimal_worst_kmh=filled,
        constant_worst_kmh=data.max_kmh / 2, share_of_pings=data.share(hats), hat_count=len(hats),
    )  # fmt: skip


def _curve_rows(data: DataSet, epsilon: float) -> list[CurveRow]:
    counts, most, share = data.busiest.counts, data.max_kmh, data.share([data.busiest])
    errors = counts.errors_at_every_count(NANO / round(epsilon * NANO)) * most
    by_count = sorted(dict(zip(counts.descending.tolist(), errors.tolist(), strict=True)).items())
    same = {"constant_worst_kmh": most / 2, "share_of_pings": share}
    return [CurveRow(data=data.name, epsilon=epsilon, m=m, worst_error=error, **same) for m, error in by_count]


def conclude(setup: Setup, rows: Sequence[ResultRow]) -> Outcome:
    """Figures like the slides', and their properties tried."""
    points, curves = of_kind(WorstRow, rows), of_kind(CurveRow, rows)
    figures, findings = [], list[Finding]()
    for data in data_sets(setup):
        of_data, counts = where(points, data=data.name), data.busiest.counts
        here, everywhere = where(of_data, hats=BUSIEST), [row for row in of_data if row.hats != BUSIEST]
        panels = [_e_of_m(where(curves, data=data.name)), _best_m(counts, here), _least_errors(BUSIEST, here)]
        if everywhere:
            share = f"{everywhere[0].share_of_pings:.0%} of pings"
            panels.append(_least_errors(f"{everywhere[0].hats} ({share})", everywhere))
        title = f"{data.name}; busiest HAT: {counts.plates} plates, {counts.total:,} samples"
        figures.append(Figure(f"worst-case-{data.name}", title, panels))
        findings += [*_on_properties(data), *(_fill_is_lower(some) for some in (here, everywhere) if some)]
    return Outcome({"worst-case": points, "worst-case-of-m": curves}, figures, findings)


def _e_of_m(rows: Sequence[CurveRow]) -> Panel:
    curves, least = [], []
    for epsilon in sorted({row.epsilon for row in rows}):
        some = where(rows, epsilon=epsilon)
        curves.append(curve(f"epsilon {epsilon:.3g}", some, "m", "worst_error"))
        least.append(min(some, key=lambda row: float(row.worst_error)))
    xs, ys = tuple(float(row.m) for row in least), tuple(row.worst_error for row in least)
    ends = [min(rows, key=lambda row: int(row.m)), max(rows, key=lambda row: int(row.m))]
    curves += Curve("best m", xs, ys, "marks"), curve("baseline guess (U/2)", ends, "m", "constant_worst_kmh", "guess")
    return Panel("E(m)", "cap m, samples", "worst-case error, km/h", curves, log_x=True, log_y=True)


def _best_m(counts: SamplesPerPlate, rows: Sequence[WorstRow]) -> Panel:
    least, most = epsilon_limits(counts)
    curves = [curve("papers' rule", rows, "epsilon", "best_m"), curve("public fill", rows, "epsilon", "optimal_m")]
    if np.isfinite(least) and least > 0:
        ends = float(counts.descending[-1]), float(counts.largest)
        curves.append(Curve("eps_min, eps_max (exact)", (least, most), ends, "marks"))
    return Panel("best cap", "epsilon per mean", "cap m, samples", curves, log_x=True, log_y=True)


def _least_errors(title: str, rows: Sequence[WorstRow]) -> Panel:
    curves = (
        curve("baseline", rows, "epsilon", "baseline_worst_kmh"),
        curve("papers' rule", rows, "epsilon", "worst_error"),
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
    errors[: int(counts.descending[-1]) - 1] = np.inf  # the papers' m lies in [m_min, m_max]
    return (np.flatnonzero(errors <= errors.min() * (1 + 1e-12)) + 1).tolist()


def _on_properties(data: DataSet) -> Iterator[Finding]:
    counts, grid = data.busiest.counts, np.geomspace(1e-4, 10, 400).tolist()
    best, values = [_best_caps(counts, epsilon) for epsilon in grid], set(counts.by_plate.tolist())
    among = {"epsilons": len(grid), "first": grid[0], "last": grid[-1], "caps": counts.largest}
    yield Finding("best-cap-is-a-count", all(values & set(caps) for caps in best), data=data, **among)
    largest = [max(caps) for caps in best]
    yield Finding("best-cap-rises", largest == sorted(largest), data=data, first=largest[0], last=largest[-1])
    smallest = float(counts.descending[-1])
    printed = smallest / (counts.plates * counts.total), (counts.total / (counts.plates * smallest)) ** 2
    exact, (below, above) = epsilon_limits(counts), (_best_caps(counts, epsilon) for epsilon in printed)
    agrees = smallest in below and counts.largest in above
    yield Finding("limits-hold", agrees, data=data, printed=printed, exact=exact)
    if exact[1] <= 0:
        yield Finding("limits-of-equal-counts", False, data=data)
        return
    agrees = printed[0] >= 0.5 * exact[0] and printed[1] <= 2 * exact[1]
    yield Finding("limits-are-tight", agrees, data=data, small=exact[0] / printed[0], big=printed[1] / exact[1])


def _fill_is_lower(rows: Sequence[WorstRow]) -> Finding:
    ratios = {row.epsilon: row.optimal_worst_kmh / row.worst_error for row in rows}
    some = ", ".join(f"{ratios[epsilon]:.2f} at {epsilon:g}" for epsilon in (0.1, 0.5, 1.0, 2.0))
    held = next((row.epsilon for row in rows if row.optimal_worst_kmh <= row.constant_worst_kmh), None)
    since = "it does not beat up to epsilon 2" if held is None else f"the fill beats from epsilon {held:g}"
    agrees = all(ratio <= 1 + 1e-9 for ratio in ratios.values())
    return Finding("fill-is-lower", agrees, row=rows[0], ratios=some, since=since)


WORST_CASE = Experiment("worst-case", "E(m), the best cap, and the optimum with a public fill", jobs, conclude)


# `chop-user` (slides, results I and II).

CHOP_SWEEP = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0)
"""The slides' gains are at small epsilons."""

CHOP, CHOP_BOTH = "chop-user", "chop-user, mean and variance"
"""For a mean at all of a HAT's epsilon; for mean and variance at half of it each, as the slides print it."""

SUPPRESS_TO, LARGEST = "suppress-to", "each plate's largest"
"""The least worst error found for a number of HATs per plate; and each plate in the HATs where it has most samples."""

FIXED_EPSILON = 0.5

HEAVY, HEAVY_HATS = "one heavy hitter", 12
"""The slides' synthetic city: a loss of 12 epsilon before, from a single heavy hitter."""


def heavy_hitter_city(rng: np.random.Generator) -> Occupancy:
    """One plate in all twelve HATs, each other one in one to three; HATs of 8 to 60 plates, geometric counts: these
    figures are ours, as the slides give none."""
    rows: set[tuple[int, int]] = {(hat, 0) for hat in range(HEAVY_HATS)}
    plate = 1
    for hat, size in enumerate(np.linspace(8, 60, HEAVY_HATS).astype(int).tolist()):
        for _ in range(size):
            others = rng.choice(HEAVY_HATS, int(rng.integers(0, 3)), replace=False).tolist()
            rows.update((place, plate) for place in {hat, *others})
            plate += 1
    hats, plates = np.array(sorted(rows)).T  # a set has no order, and searchsorted needs one
    starts = np.searchsorted(hats, np.arange(HEAVY_HATS + 1))
    return Occupancy(starts, plates, 1 + rng.geometric(1 / 20, hats.size), plate)


class ChopRow(ResultRow):
    """One outcome over a slot's HATs. `threshold`, `worst_error`: worst cases, of a mean in km/h; of mean and variance
    the sum of km/h and (km/h)^2, as the slides add them, which has no unit. Served: the share of the slot's pings in
    HATs that keep a plate."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Who is where, U in km/h, and all pings of the slot, also in HATs that are left out. `is_one`: it is one slot."""

    name: str
    occupancy: Occupancy
    max_kmh: float
    pings: int
    is_one: bool = True

    @property
    def sized(self) -> Occupancy:
        return replace(self.occupancy, max_kmh=self.max_kmh)


def _scenarios(setup: Setup) -> Iterator[Scenario]:
    """The heavy-hitter city; each feed's busiest slot, with all HATs and with those of enough plates; all its slots."""
    city = heavy_hitter_city(setup.rng("heavy-hitter"))
    yield Scenario(HEAVY, city, ITMS_MAX_KMH, int(city.count.sum()))
    for data in setup.data:
        for slots, who, is_one in (("", data.busiest_slot, True), ("all slots, ", data.whole, False)):
            if who is not None:
                size = data.max_kmh, int(who.count.sum()), is_one
                if is_one:
                    yield Scenario(f"{data.name}, all HATs", who, *size)
                if (enough := _of_at_least(who, setup.min_plates)).hats:
                    yield Scenario(f"{data.name}, {slots}{all_hats(setup)}", enough, *size)


def _of_at_least(occupancy: Occupancy, plates: int) -> Occupancy:
    sizes = np.diff(occupancy.hat_rows)
    rows = np.repeat(sizes >= plates, sizes)
    starts = np.append(0, np.cumsum(sizes[sizes >= plates]))
    return Occupancy(starts, occupancy.plate[rows], occupancy.count[rows], occupancy.plates)


def chop_jobs(setup: Setup) -> list[Job]:
    """CHOP-USER at each epsilon; the least worst-case error for each number of HATs per plate."""
    work: list[Job] = []
    for case in _scenarios(setup):
        work += [partial(_chop, case, epsilon) for epsilon in CHOP_SWEEP]
        most = int(np.bincount(case.occupancy.plate).max()) if case.is_one else 0
        work += [partial(rule, case, hats) for rule in (_suppress, _keep_largest) for hats in range(1, most + 1)]
    return work


def _chop(case: Scenario, epsilon: float) -> list[ChopRow]:
    nano = round(epsilon * NANO)
    rules = (CHOP, Nanos(nano)), (CHOP_BOTH, Nanos(nano // 2, nano // 2))
    return [_chop_row(case, rule, epsilon, chop_user(case.sized, nanos)) for rule, nanos in rules]


def _suppress(case: Scenario, hats: int) -> list[ChopRow]:
    outcome = suppress_to(case.occupancy, Nanos(round(FIXED_EPSILON * NANO)), hats)
    return [_chop_row(case, SUPPRESS_TO, FIXED_EPSILON, outcome)]


def _keep_largest(case: Scenario, hats: int) -> list[ChopRow]:
    who, nano = case.occupancy, Nanos(round(FIXED_EPSILON * NANO))
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
    return [_chop_row(case, LARGEST, FIXED_EPSILON, outcome)]


def _chop_row(case: Scenario, rule: str, epsilon: float, outcome: Suppression) -> ChopRow:
    count, hat_of_row = case.occupancy.count, case.occupancy.hat_of_row()
    served = np.isin(hat_of_row, hat_of_row[outcome.keep])
    return ChopRow(
        data=case.name, rule=rule, epsilon=epsilon, hats_before=outcome.hats_before, hats_after=outcome.hats_after,
        loss_before=epsilon * outcome.hats_before, loss_after=epsilon * outcome.hats_after,
        threshold=outcome.threshold * case.max_kmh, worst_error=outcome.worst_error * case.max_kmh,
        constant_worst_kmh=case.max_kmh / 2,
        share_of_slots_pings_kept=float(count[outcome.keep].sum() / count.sum()),
        share_of_slots_pings_served=float(count[served].sum() / case.pings),
        hat_count=case.occupancy.hats, plates=int(np.unique(case.occupancy.plate).size),
    )  # fmt: skip


def chop_conclude(setup: Setup, rows: Sequence[ChopRow]) -> Outcome:
    """The loss over epsilon, the worst-case error beside the baseline guess's, and that over the number of HATs."""
    figures, findings = [], list[Finding]()
    for case in _scenarios(setup):
        of_rules = [where(rows, data=case.name, rule=rule) for rule in (CHOP, CHOP_BOTH, SUPPRESS_TO, LARGEST)]
        chopped, both, fixed, plain = of_rules
        panels = [_losses(chopped, both), _errors(chopped), *([_fixed_numbers(fixed, plain)] if case.is_one else [])]
        size = f"{case.occupancy.hats} HATs, {chopped[0].plates} plates"
        figures.append(Figure(f"chop-user-{case.name}", f"{case.name}: {size}", panels))
        if case.name == HEAVY:
            before = chopped[0].hats_before
            findings.append(Finding("heavy-hitter", before == HEAVY_HATS, hats=HEAVY_HATS, before=before))
        findings += [*_on_chopping(case, chopped), *([_on_numbers(case, fixed, plain)] if case.is_one else [])]
        findings += [_beside_the_guess(case, chopped), _of_both(case, both)]
    return Outcome({"chop-user": rows}, figures, findings)


def _losses(rows: Sequence[ChopRow], both: Sequence[ChopRow]) -> Panel:
    curves = (
        curve(f"before: {rows[0].hats_before} epsilon", rows, "epsilon", "loss_before"),
        curve("after: K epsilon", rows, "epsilon", "loss_after"),
        curve("after, mean and variance", both, "epsilon", "loss_after"),
    )
    return Panel("loss under composition", "epsilon per HAT", "epsilon of a plate", curves, log_x=True, log_y=True)


def _errors(rows: Sequence[ChopRow]) -> Panel:
    curves = (
        curve("threshold (before)", rows, "epsilon", "threshold"),
        curve("after", rows, "epsilon", "worst_error"),
        curve("baseline guess (U/2)", rows, "epsilon", "constant_worst_kmh", "guess"),
    )
    return Panel("worst HAT", "epsilon per HAT", "worst-case error, km/h", curves, log_x=True, log_y=True)


def _fixed_numbers(rows: Sequence[ChopRow], plain: Sequence[ChopRow]) -> Panel:
    finite, others = ([row for row in some if np.isfinite(row.worst_error)] for some in (rows, plain))
    curves = (
        curve("suppressed for the least worst error", finite, "hats_after", "worst_error"),
        curve("each plate where it has most", others, "hats_after", "worst_error"),
        curve("threshold (nothing suppressed)", finite, "hats_after", "threshold"),
        curve("baseline guess (U/2)", finite, "hats_after", "constant_worst_kmh", "guess"),
    )
    title = f"worst HAT at epsilon {FIXED_EPSILON:g}"
    return Panel(title, "HATs per plate, at most", "worst-case error, km/h", curves, log_y=True)


def _no_error_grows(rows: Sequence[ChopRow]) -> bool:
    return all(row.worst_error <= row.threshold * (1 + 1e-12) for row in rows)


def _after(rows: Sequence[ChopRow]) -> str:
    return ", ".join(f"{row.hats_after} at {row.epsilon:g}" for row in rows)


def _on_chopping(case: Scenario, rows: Sequence[ChopRow]) -> Iterator[Finding]:
    first, last = rows[0], rows[-1]
    share = float((np.diff(case.occupancy.hat_rows) == 1).mean())
    single = f"; {share:.0%} of the HATs have a single plate, which can never leave" if share else ""
    agrees = first.hats_after <= 0.75 * first.hats_before and first.hats_after <= last.hats_after
    yield Finding("chop-gains", agrees, name=case.name, first=first, after=_after(rows), single=single)
    yield Finding("chop-errors", _no_error_grows(rows), name=case.name, first=first, last=last)


def _on_numbers(case: Scenario, fixed: Sequence[ChopRow], plain: Sequence[ChopRow]) -> Finding:
    pairs = [(one.worst_error, other.worst_error) for one, other in zip(fixed, plain, strict=True)]
    higher = sum(one > other * (1 + 1e-9) for one, other in pairs)
    lower = [k for k, (one, other) in enumerate(pairs) if one < other * (1 - 1e-9)]
    at = "; at {} a plate {:.4g} against {:.4g} km/h".format(lower[0] + 1, *pairs[lower[0]]) if lower else ""
    reason = "ours is a descent, not a search" if higher else "the worst HAT is one that no choice improves"
    of_all = {"lower": len(lower), "higher": higher, "numbers": len(pairs), "at": at, "reason": reason}
    return Finding("chop-fixed", len(lower) > higher, name=case.name, epsilon=FIXED_EPSILON, **of_all)


def _beside_the_guess(case: Scenario, rows: Sequence[ChopRow]) -> Finding:
    useful = [row.epsilon for row in rows if row.worst_error < row.constant_worst_kmh]
    since = f"better from epsilon {min(useful):g} on" if useful else f"worse up to epsilon {rows[-1].epsilon:g}"
    return Finding("chop-guess", len(useful) == len(rows), name=case.name, row=rows[-1], since=since)


def _of_both(case: Scenario, rows: Sequence[ChopRow]) -> Finding:
    kept, first = _no_error_grows(rows), rows[0]
    values = {"first": first, "after": _after(rows), "but": "" if kept else "; an error grew"}
    return Finding("chop-both", kept and first.hats_after < first.hats_before, name=case.name, **values)


CHOP_USER = Experiment("chop-user", "loss under composition before and after suppression", chop_jobs, chop_conclude)
