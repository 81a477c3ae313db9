"""`worst-case` and `chop-user`: worst-case errors and loss under composition, both from counts
alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np

from lab.data import BUSIEST, ITMS_MAX_KMH, DataSet, Setup, all_hats, choices, data_sets, weights_of
from lab.results import (
    Curve,
    Figure,
    Finding,
    Findings,
    Found,
    Panel,
    Points,
    Results,
    Row,
    Rows,
    Tables,
    about,
    but,
)
from udp_stream.base.units import NANO
from udp_stream.mechanisms.base import SamplesPerPlate
from udp_stream.mechanisms.means import Baseline, OptimalCappedSum
from udp_stream.mechanisms.noise import pure
from udp_stream.planning.suppression import (
    HatErrors,
    Nanos,
    Occupancy,
    Suppression,
    chop_user,
    suppress_to,
)

SWEEP = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0)
"""The best m moves below 1 only."""

DRAWN = (0.02, 0.1, 0.5, 2.0)
"""Epsilons of these at which E(m) is drawn."""

GUESS = {"baseline guess (U/2)": "constant_worst_kmh"}


def worst_points(setup: Setup) -> Points:
    """Points: each epsilon, for each data set."""
    return product(data_sets(setup), SWEEP)


def worst_rows(setup: Setup, data: DataSet, epsilon: float) -> Found:
    """The least worst-case error of a HAT, or of several, weighed by pings; the baseline guess is
    always U/2. At some epsilons E(m) at each count m of the busiest HAT, too."""
    cost = pure(round(epsilon * NANO))
    guess = data.max_kmh / 2
    for label, hats in choices(setup, data):
        found = []
        for hat in hats:
            baseline, optimal = (
                rule.plan(hat.counts, cost, data.range, "best-fit")
                for rule in (Baseline(), OptimalCappedSum())
            )
            caps = hat.counts.worst_case_cap(NANO / cost.nano), optimal.cap
            least = hat.counts.errors_at_every_count(NANO / cost.nano).min() * data.range.width
            found.append((*caps, least, baseline.error_bound, optimal.error_bound))
        caps, filled_caps, *bounds = np.array(found, np.float64).T
        worst, uncapped, filled = (
            np.array(bounds) @ weights_of(hats) / data.range.width * data.max_kmh
        )
        yield Row(
            data=data.name, hats=label, epsilon=epsilon, best_m=int(np.median(caps)), worst_error=worst,
            baseline_worst_kmh=uncapped, optimal_m=int(np.median(filled_caps)), optimal_worst_kmh=filled,
            constant_worst_kmh=guess, share_of_pings=data.share(hats), hat_count=len(hats),
        )  # fmt: skip
    if epsilon in DRAWN:
        counts = data.busiest.counts
        errors = counts.errors_at_every_count(NANO / cost.nano) * data.max_kmh
        same = {"constant_worst_kmh": guess, "share_of_pings": data.share([data.busiest])}
        for m, error in sorted(
            dict(zip(counts.descending.tolist(), errors.tolist(), strict=True)).items()
        ):
            yield Row("-of-m", data=data.name, epsilon=epsilon, m=m, worst_error=error, **same)


def worst_conclude(setup: Setup, tables: Tables) -> Results:
    """Figures like the slides', and their properties tried."""
    for data in data_sets(setup):
        counts = data.busiest.counts
        of_m = tables["-of-m"].where(data=data.name)
        of_hats = tables[""].where(data=data.name).by("hats")
        yield Figure(
            f"worst-case-{data.name}",
            f"{data.name}; busiest HAT: {counts.plates} plates, {counts.total:,} samples",
            [
                _e_of_m(of_m),
                _best_m(counts, of_hats[BUSIEST]),
                *(_least(hats, rows) for hats, rows in of_hats.items()),
            ],
        )
        yield from about(_on_properties(data), data=data)
        for rows in of_hats.values():
            ratios = {row.epsilon: row.optimal_worst_kmh / row.worst_error for row in rows}
            some = ", ".join(
                f"{ratios[epsilon]:.2f} at {epsilon:g}" for epsilon in (0.1, 0.5, 1.0, 2.0)
            )
            held = next(
                (row.epsilon for row in rows if row.optimal_worst_kmh <= row.constant_worst_kmh),
                None,
            )
            since = (
                "it does not beat up to epsilon 2"
                if held is None
                else f"the fill beats from epsilon {held:g}"
            )
            yield Finding(
                "fill-is-lower",
                max(ratios.values()) <= 1 + 1e-9,
                row=rows[0],
                ratios=some,
                since=since,
            )


def _e_of_m(rows: Rows) -> Panel:
    each = rows.by("epsilon")
    curves = [
        some.curve(f"epsilon {epsilon:.3g}", "m", "worst_error") for epsilon, some in each.items()
    ]
    least = Rows(min(some, key=lambda row: float(row.worst_error)) for some in each.values())
    ends = Rows([min(rows, key=lambda row: int(row.m)), max(rows, key=lambda row: int(row.m))])
    curves.append(Curve("best m", least.column("m"), least.column("worst_error"), "marks"))
    return Panel(
        "E(m)",
        "cap m, samples",
        "worst-case error, km/h",
        [*curves, *ends.curves("m", GUESS)],
        "xy",
    )


def _best_m(counts: SamplesPerPlate, rows: Rows) -> Panel:
    limits = epsilon_limits(counts)
    curves = rows.curves("epsilon", {"papers' rule": "best_m", "public fill": "optimal_m"})
    if np.isfinite(limits[0]) and limits[0] > 0:
        ends = float(counts.descending[-1]), float(counts.largest)
        curves.append(Curve("eps_min, eps_max (exact)", limits, ends, "marks"))
    return Panel("best cap", "epsilon per mean", "cap m, samples", curves, "xy")


def _least(label: str, rows: Rows) -> Panel:
    errors = {
        "baseline": "baseline_worst_kmh",
        "papers' rule": "worst_error",
        "public fill": "optimal_worst_kmh",
    }
    title = label if label == BUSIEST else f"{label} ({rows[0].share_of_pings:.0%} of pings)"
    return Panel(
        title,
        "epsilon per mean",
        "least worst-case error, km/h",
        rows.curves("epsilon", errors | GUESS),
        "xy",
    )


def epsilon_limits(counts: SamplesPerPlate) -> tuple[float, float]:
    """Limits (eps_min, eps_max): m_min is a best cap exactly for eps <= eps_min, m_max exactly for
    eps >= eps_max.

    E(m_min) <= E(m) means eps <= M (m/G(m) - 1/L) / (G(m) - L m_min), and E(m_max) <= E(m) means
    eps >= M (m_max/M - m/G(m)) / (M - G(m)); both limits are reached at a count, as E is concave
    between two of them. (inf, 0) if all counts are equal. 1 / (L (L - 1)) <= eps_min and eps_max <=
    1: from eps = 1 on, capping never helps.
    """
    if counts.largest == int(counts.descending[-1]):
        return np.inf, 0.0
    caps, at = np.unique(counts.descending, return_index=True)
    kept = counts.kept_at_every_count[at]
    least = counts.total * (caps[1:] / kept[1:] - 1 / counts.plates) / (kept[1:] - kept[0])
    most = (
        counts.total
        * (caps[-1] / counts.total - caps[:-1] / kept[:-1])
        / (counts.total - kept[:-1])
    )
    return float(least.min()), float(most.max())


def _best_caps(counts: SamplesPerPlate, epsilon: float) -> list[int]:
    """All best m among *all* caps 1..m_max (up to rounding), from the formula itself."""
    caps = np.arange(1, counts.largest + 1)
    up_to = np.cumsum(np.bincount(counts.by_plate))
    kept = np.cumsum(counts.plates - up_to[:-1])
    errors = 1 - kept / counts.total + caps / (epsilon * kept)
    errors[: int(counts.descending[-1]) - 1] = np.inf  # the papers' m lies in [m_min, m_max]
    return (np.flatnonzero(errors <= errors.min() * (1 + 1e-12)) + 1).tolist()


def _on_properties(data: DataSet) -> Findings:
    counts = data.busiest.counts
    grid = np.geomspace(1e-4, 10, 400).tolist()
    best = [_best_caps(counts, epsilon) for epsilon in grid]
    values = set(counts.by_plate.tolist())
    among = {"epsilons": len(grid), "first": grid[0], "last": grid[-1], "caps": counts.largest}
    yield Finding("best-cap-is-a-count", all(values & set(caps) for caps in best), **among)
    largest = [max(caps) for caps in best]
    yield Finding("best-cap-rises", largest == sorted(largest), first=largest[0], last=largest[-1])
    smallest = float(counts.descending[-1])
    printed = (
        smallest / (counts.plates * counts.total),
        (counts.total / (counts.plates * smallest)) ** 2,
    )
    exact = epsilon_limits(counts)
    below, above = (_best_caps(counts, epsilon) for epsilon in printed)
    agrees = smallest in below and counts.largest in above
    yield Finding("limits-hold", agrees, printed=printed, exact=exact)
    if exact[1] <= 0:
        yield Finding("limits-of-equal-counts", False)
        return
    agrees = printed[0] >= 0.5 * exact[0] and printed[1] <= 2 * exact[1]
    yield Finding(
        "limits-are-tight", agrees, small=exact[0] / printed[0], big=printed[1] / exact[1]
    )


# `chop-user` (slides, results I and II).

CHOP_SWEEP = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0)
"""The slides' gains are at small epsilons."""

CHOP = "chop-user"
CHOP_BOTH = "chop-user, mean and variance"
"""Names of the two cases: a mean at all of a HAT's epsilon; mean and variance at half of it each,
as the slides print it."""

SUPPRESS_TO = "suppress-to"
LARGEST = "each plate's largest"
"""The least worst error found for a number of HATs per plate; and each plate in the HATs where it
has most samples."""

FIXED_EPSILON = 0.5

HEAVY = "one heavy hitter"
HEAVY_HATS = 12
"""The slides' synthetic city: a loss of 12 epsilon before, from a single heavy hitter."""


def heavy_hitter_city(rng: np.random.Generator) -> Occupancy:
    """A city with a plate in all twelve HATs, each other plate in 1 to 3; HATs of 8 to 60 plates,
    geometric counts: these figures are ours, as the slides give none."""
    rows = {(hat, 0) for hat in range(HEAVY_HATS)}
    plate = 1
    for hat, size in enumerate(np.linspace(8, 60, HEAVY_HATS).astype(int).tolist()):
        for _ in range(size):
            others = rng.choice(HEAVY_HATS, int(rng.integers(0, 3)), replace=False).tolist()
            rows.update((place, plate) for place in {hat, *others})
            plate += 1
    hats, plates = np.array(sorted(rows)).T  # a set has no order, and searchsorted needs an order
    starts = np.searchsorted(hats, np.arange(HEAVY_HATS + 1))
    return Occupancy(starts, plates, 1 + rng.geometric(1 / 20, hats.size), plate)


class Scenario(NamedTuple):
    """A scenario: which plate is where, U in km/h, and all pings of the slot, also in HATs that are
    left out. `is_one`: it is a single slot."""

    name: str
    occupancy: Occupancy
    max_kmh: float
    pings: int
    is_one: bool = True


def scenarios(setup: Setup) -> Iterator[Scenario]:
    """The heavy-hitter city; each feed's busiest slot, with all HATs and with those of enough
    plates; all its slots."""
    city = heavy_hitter_city(setup.rng("heavy-hitter"))
    yield Scenario(HEAVY, city, ITMS_MAX_KMH, int(city.count.sum()))
    for data in setup.data:
        for slots, who, is_one in (
            ("", data.busiest_slot, True),
            ("all slots, ", data.whole, False),
        ):
            if who is None:
                continue
            pings = int(who.count.sum())
            if is_one:
                yield Scenario(f"{data.name}, all HATs", who, data.max_kmh, pings, is_one)
            sizes = np.diff(who.hat_rows)
            enough = sizes >= setup.min_plates
            if enough.any():
                rows = np.repeat(enough, sizes)
                starts = np.append(0, np.cumsum(sizes[enough]))
                some = Occupancy(starts, who.plate[rows], who.count[rows], who.plates)
                name = f"{data.name}, {slots}{all_hats(setup)}"
                yield Scenario(name, some, data.max_kmh, pings, is_one)


def chop_points(setup: Setup) -> Points:
    """Points: CHOP-USER at each epsilon; the least worst-case error for each number of HATs per
    plate."""
    for case in scenarios(setup):
        yield from product([case], [CHOP], CHOP_SWEEP)
        if case.is_one:
            yield from product(
                [case],
                [SUPPRESS_TO, LARGEST],
                range(1, int(np.bincount(case.occupancy.plate).max()) + 1),
            )


def chop_rows(_setup: Setup, case: Scenario, rule: str, number: float) -> Found:
    """Outcomes over a slot's HATs, by epsilon, or by HATs per plate. `threshold`, `worst_error`:
    worst cases, of a mean in km/h; of mean and variance the sum of km/h and (km/h)^2, as the slides
    add them, which has no unit. Served: the share of the slot's pings in HATs that keep a plate."""
    who = case.occupancy
    epsilon = number if rule == CHOP else FIXED_EPSILON
    nano = round(epsilon * NANO)
    if rule == CHOP:
        sized = replace(who, max_kmh=case.max_kmh)
        outcomes = {
            CHOP: chop_user(sized, Nanos(nano)),
            CHOP_BOTH: chop_user(sized, Nanos(nano // 2, nano // 2)),
        }
    else:
        outcomes = {
            rule: (suppress_to if rule == SUPPRESS_TO else keep_largest)(
                who, Nanos(nano), int(number)
            )
        }
    hat_of_row = who.hat_of_row()
    for name, outcome in outcomes.items():
        served = np.isin(hat_of_row, hat_of_row[outcome.keep])
        yield Row(
            data=case.name, rule=name, epsilon=epsilon, hats_before=outcome.hats_before,
            hats_after=outcome.hats_after, loss_before=epsilon * outcome.hats_before,
            loss_after=epsilon * outcome.hats_after, threshold=outcome.threshold * case.max_kmh,
            worst_error=outcome.worst_error * case.max_kmh, constant_worst_kmh=case.max_kmh / 2,
            share_of_slots_pings_kept=who.count[outcome.keep].sum() / who.count.sum(),
            share_of_slots_pings_served=who.count[served].sum() / case.pings,
            hat_count=who.hats, plates=np.unique(who.plate).size,
        )  # fmt: skip


def keep_largest(who: Occupancy, nanos: Nanos, hats_max: int) -> Suppression:
    """Keep each plate in `hats_max` HATs, where it has most samples."""
    order = np.lexsort((-who.count, who.plate))
    firsts = np.searchsorted(who.plate[order], who.plate[order])
    keep = np.zeros(who.plate.size, dtype=bool)
    keep[order] = np.arange(order.size) - firsts < hats_max
    city = HatErrors(who, nanos)
    threshold = max(map(city.error, range(who.hats)))
    for row in np.flatnonzero(~keep).tolist():
        city.suppress(row)
    before, after = (int(np.bincount(plates).max()) for plates in (who.plate, who.plate[keep]))
    return Suppression(
        keep, before, after, threshold, np.array([city.error(hat) for hat in range(who.hats)])
    )


def chop_conclude(setup: Setup, tables: Tables) -> Results:
    """The loss over epsilon, the worst-case error beside the baseline guess's, and that over the
    number of HATs."""
    for case in scenarios(setup):
        chopped, both, *numbers = tables[""].where(data=case.name).by("rule").values()
        first = chopped[0]
        before = {
            f"before: {first.hats_before} epsilon": "loss_before",
            "after: K epsilon": "loss_after",
        }
        losses = [
            *chopped.curves("epsilon", before),
            *both.curves("epsilon", {"after, mean and variance": "loss_after"}),
        ]
        errors = chopped.curves(
            "epsilon", {"threshold (before)": "threshold", "after": "worst_error"} | GUESS
        )
        panels = [
            Panel("loss under composition", "epsilon per HAT", "epsilon of a plate", losses, "xy"),
            Panel("worst HAT", "epsilon per HAT", "worst-case error, km/h", errors, "xy"),
        ]
        if numbers:
            panels.append(_fixed_numbers(*numbers))
        size = f"{case.occupancy.hats} HATs, {first.plates} plates"
        yield Figure(f"chop-user-{case.name}", f"{case.name}: {size}", panels)
        yield from about(_on_chopping(case, chopped, both, numbers), name=case.name, first=first)


def _on_chopping(case: Scenario, chopped: Rows, both: Rows, numbers: Sequence[Rows]) -> Findings:
    first = chopped[0]
    last = chopped[-1]
    if case.name == HEAVY:
        yield Finding(
            "heavy-hitter",
            first.hats_before == HEAVY_HATS,
            hats=HEAVY_HATS,
            before=first.hats_before,
        )
    share = float((np.diff(case.occupancy.hat_rows) == 1).mean())
    single = (
        f"; {share:.0%} of the HATs have a single plate, which can never leave" if share else ""
    )
    agrees = first.hats_after <= 0.75 * first.hats_before and first.hats_after <= last.hats_after
    yield Finding("chop-gains", agrees, after=_after(chopped), single=single)
    yield Finding("chop-errors", _no_error_grows(chopped), last=last)
    if numbers:
        ours, theirs = (rows.column("worst_error") for rows in numbers)
        higher = int((ours > theirs * (1 + 1e-9)).sum())
        lower = np.flatnonzero(ours < theirs * (1 - 1e-9))
        at = [f"{k + 1} a plate {ours[k]:.4g} against {theirs[k]:.4g} km/h" for k in lower[:1]]
        reason = (
            "ours is a descent, not a search"
            if higher
            else "the worst HAT is one that no choice improves"
        )
        of_all = {
            "lower": lower.size,
            "higher": higher,
            "numbers": len(ours),
            "at": but("; at ", at),
            "reason": reason,
        }
        yield Finding("chop-fixed", lower.size > higher, epsilon=FIXED_EPSILON, **of_all)
    useful = [row.epsilon for row in chopped if row.worst_error < row.constant_worst_kmh]
    since = (
        f"better from epsilon {min(useful):g} on"
        if useful
        else f"worse up to epsilon {last.epsilon:g}"
    )
    yield Finding("chop-guess", len(useful) == len(chopped), row=last, since=since)
    kept = _no_error_grows(both)
    agrees = kept and both[0].hats_after < both[0].hats_before
    yield Finding("chop-both", agrees, after=_after(both), but="" if kept else "; an error grew")


def _fixed_numbers(fixed: Rows, plain: Rows) -> Panel:
    finite, others = (
        Rows(row for row in rows if np.isfinite(row.worst_error)) for rows in (fixed, plain)
    )
    curves = finite.curves("hats_after", {"suppressed for the least worst error": "worst_error"})
    curves += others.curves("hats_after", {"each plate where it has most": "worst_error"})
    curves += finite.curves("hats_after", {"threshold (nothing suppressed)": "threshold"} | GUESS)
    title = f"worst HAT at epsilon {FIXED_EPSILON:g}"
    return Panel(title, "HATs per plate, at most", "worst-case error, km/h", curves, "y")


def _no_error_grows(rows: Sequence[Row]) -> bool:
    return all(row.worst_error <= row.threshold * (1 + 1e-12) for row in rows)


def _after(rows: Sequence[Row]) -> str:
    return ", ".join(f"{row.hats_after} at {row.epsilon:g}" for row in rows)
