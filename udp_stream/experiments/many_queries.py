"""`multi-query` and `threshold`: savings handed on over many queries, and a count beside a share.

*Adaptive Privacy Budgeting* (Liang and Yi), Section 7.2 (Figure 6) and Appendix C (Figure 9), in kind. Figure 6: m
range counts at m moments of a recorded feed, 3 km wide. BM gives each B/m. PM eliminates (log-c10), and hands on by
their Algorithm 3 what plates did not spend. A plate that is absent from a moment does not spend, either, so "BM handed
on" hands on without eliminating: what it gains is absence's, and what PM gains on top is elimination's. Figure 9: is a
count below q N, for counts about 5.5 % of N = 10000.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from udp_stream.experiments.base import (
    Experiment,
    Figure,
    Integers,
    Job,
    Outcome,
    Panel,
    Positions,
    Setup,
    Table,
    Verdict,
    curve,
    slug,
)
from udp_stream.experiments.savings import (
    SPLITS,
    SURE,
    BesideRow,
    Once,
    PreparedNoise,
    SavingsRow,
    beside,
    beside_baseline,
    error_and_saved,
    no_worse,
    row_of,
)
from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.noise import Cost, concentrated
from udp_stream.queries.elimination import How, Terms
from udp_stream.queries.kinds import RangeCount, Threshold
from udp_stream.queries.plane import Rectangle, positions_inside, rho_per_square_metre
from udp_stream.units import NANO

Asked = tuple[Integers, Integers, tuple[float, float]]
"""Plates, where they are, and the middle of the square."""

RAMP_FROM = 0.75
"""Of Algorithm 3: the share of its savings that a plate may spend at first."""

SOURCE = "Adaptive Privacy Budgeting"
WIDTH = 3000.0
QUERIES = (7, 14, 28, 56)
BUDGETS = (1e-5, 1e-4, 1e-3)
QUERIES_THEIRS, BUDGET_THEIRS = 56, 1e-4
"""7 x 8 queries, and 1e-4 per square metre."""

BM, HANDED_ON, PM = "BM", "BM handed on", "PM"
"""Even parts; Algorithm 3 without elimination; and with it."""

MULTI_MOST, THRESHOLD_MOST = 50, 500
SPLIT = "log-c10"

PEOPLE, SHARE = 10_000, 0.055
"""Households, and how many of them have the property: 10,000 dollars a year or less, about as in the 2023 census."""

COUNTS = "counts about 5.5 %"
LIMITS = (0.03, 0.05, 0.06, 0.1)
COUNT_RHOS = (1e-5, 1e-4, 1e-3, 1e-2)


@dataclass(frozen=True, slots=True)
class MultiRow:
    """Several queries under one budget for all of them: errors, each the mean over a repetition's queries.

    `less_by` is how much less it errs than BM on the same moments and places, pair by pair; `less_spread` is the
    standard deviation of that mean difference. Both are 0 for BM itself. `less_than_handed_on` and its spread are the
    same beside "BM handed on".
    """

    data: str
    queries: int
    budget: float
    privatisation: str
    method: str
    repetitions: int
    error_mean: float
    error_25: float
    error_75: float
    error_spread: float
    left_mean: float
    less_by: float = 0.0
    less_spread: float = 0.0
    less_than_handed_on: float = 0.0
    less_than_handed_on_spread: float = 0.0


def allowance(left: float, query: int, queries: int, budget: float) -> float:
    """Algorithm 3's amount for the query of this number, from 1, for a plate with so much left."""
    ramp = 1.0 if queries == 1 else RAMP_FROM + (1 - RAMP_FROM) * (query - 1) / (queries - 1)
    return ramp * (left - (queries - query + 1) / queries * budget) + budget / queries


def _multi_jobs(setup: Setup) -> list[Job]:
    settings = [(m, BUDGET_THEIRS) for m in QUERIES] + [(QUERIES_THEIRS, B) for B in BUDGETS if B != BUDGET_THEIRS]
    hows: tuple[How, ...] = ("point", "distance")
    return [
        partial(_multi_rows, setup, feed, m, B, how) for feed in setup.positions for m, B in settings for how in hows
    ]


def _multi_rows(setup: Setup, feed: Positions, queries: int, budget: float, how: How) -> list[MultiRow]:
    times, rng = min(setup.repetitions, MULTI_MOST), setup.rng(f"multi/{feed.name}/{queries}")
    runs: dict[str, list[tuple[float, float]]] = {BM: [], HANDED_ON: [], PM: []}
    for i in range(times):
        asked = [(moment, *feed.at(moment)) for moment in sorted(feed.moments(queries, rng))]
        places = [feed.place_near_a_plate(where, rng) for _, _, where in asked]
        for method, found in runs.items():
            day = [(plates, where, place) for (_, plates, where), place in zip(asked, places, strict=True)]
            bits = setup.bits(f"multi/{feed.name}/{queries}/{budget}/{how}/{method}/{i}")
            found.append(_a_day(day, rho_per_square_metre(budget), how, method, bits))
    rows = []
    for method, found in runs.items():
        row = row_of(feed.name, "multi-query", queries, budget, how, method, found)
        of, less = (feed.name, "multi-query", queries, budget, SPLIT), list[float]()
        for base in (BM, HANDED_ON):
            pair = beside(of, (method, found), (base, runs[base]))
            less += pair.less_by, pair.spread
        errors = row.error_mean, row.error_25, row.error_75, row.error_spread
        rows.append(MultiRow(feed.name, queries, budget, how, method, times, *errors, row.saved_mean, *less))
    return rows


def _a_day(day: Sequence[Asked], cost: Cost, how: How, method: str, bits: Bits) -> tuple[float, float]:
    """The mean error over these queries, and the share of all plates' budgets that is left after them."""
    seen = np.unique(np.concatenate([plates for plates, _, _ in day]))
    left, errors, m = np.full(seen.size, float(cost.nano)), [], len(day)
    for number, (plates, where, place) in enumerate(day, 1):
        at = np.searchsorted(seen, plates)
        even = np.full(plates.size, cost.nano / m)
        amounts = even if method == BM else np.array([allowance(one, number, m, cost.nano) for one in left[at]])
        budgets = np.maximum(np.minimum(amounts, left[at]), 1.0).astype(np.int64)
        terms = Terms("zcdp", budgets, how, SPLITS[SPLIT])
        terms = terms if method == PM else terms.baseline()
        query = RangeCount(Rectangle(*place, WIDTH, WIDTH))
        pie, truth = query.elimination(terms), positions_inside(query.region, where)
        state = pie.run(where, bits)
        errors.append(abs(query.answer(terms, pie, state).value - truth) / max(1, truth))
        left[at] -= state.charged
    return float(np.mean(errors)), float(left.mean() / cost.nano)


def _multi_conclude(setup: Setup, rows: Sequence[MultiRow]) -> Outcome:
    del setup
    figures, verdicts = [], []
    for data in dict.fromkeys(row.data for row in rows):
        some = [row for row in rows if row.data == data]
        panels = (
            _multi_panel("number of queries", "queries", [row for row in some if row.budget == BUDGET_THEIRS]),
            _multi_panel("budget", "budget", [row for row in some if row.queries == QUERIES_THEIRS]),
        )
        figures.append(
            Figure(f"multi-query-{slug(data)}", f"{data}: mean error of m range counts, {WIDTH:g} m wide", panels)
        )
        verdicts += multi_verdicts(some, data)
    return Outcome((Table("multi-query", tuple(rows)),) if rows else (), tuple(figures), tuple(verdicts))


def _multi_panel(title: str, of: str, rows: Sequence[MultiRow]) -> Panel:
    curves = []
    for how in ("point", "distance"):
        for method in (BM, HANDED_ON, PM):
            some = sorted(
                (r for r in rows if (r.privatisation, r.method) == (how, method)), key=lambda r: getattr(r, of)
            )
            curves.append(curve(f"{method}, {how}", some, of, "error_mean"))
    return Panel(title, of, "mean relative error", tuple(curves), log_x=True)


@dataclass(frozen=True, slots=True)
class _Gain:
    """How much less PM errs than a base, mean over both kinds of noise; three standard errors; share of its error."""

    less_by: float
    margin: float
    share: float

    def __str__(self) -> str:
        return f"{self.less_by:.3f} ± {self.margin:.3f} ({self.share:.0%})"


def _gain(rows: Sequence[MultiRow], queries: int, budget: float, base: str) -> _Gain:
    some = [row for row in rows if (row.queries, row.budget) == (queries, budget)]
    gains = [
        (row.less_by, row.less_spread) if base == BM else (row.less_than_handed_on, row.less_than_handed_on_spread)
        for row in some
        if row.method == PM
    ]
    less, spread = map(float, np.mean(gains, axis=0))
    error = float(np.mean([row.error_mean for row in some if row.method == base]))
    return _Gain(less, SURE * spread, less / error if error else 0.0)


def multi_verdicts(rows: Sequence[MultiRow], data: str) -> list[Verdict]:
    """What Figure 6 says, where differences are beyond three standard errors; then the same of elimination alone."""
    return [*_beside(rows, data, BM, ""), *_beside(rows, data, HANDED_ON, ", by elimination alone")]


def _beside(rows: Sequence[MultiRow], data: str, base: str, alone: str) -> Iterator[Verdict]:
    """Of PM beside this base."""
    by_m = {m: _gain(rows, m, BUDGET_THEIRS, base) for m in QUERIES}
    by_budget = {B: _gain(rows, QUERIES_THEIRS, B, base) for B in BUDGETS}
    source = f"{SOURCE}, Fig. 6"
    yield Verdict(
        f"handed-on savings lower the error of m queries{alone}", source,
        all(gain.less_by > gain.margin for gain in by_m.values()), f"{data}: {_less_by(by_m, 'm = ', base)}",
        _why_no_less(by_m),
    )  # fmt: skip
    yield Verdict(
        f"the more queries, the larger the gap{alone}", source, _grows([(g.less_by, g.margin) for g in by_m.values()]),
        f"{data}: {_less_by(by_m, 'm = ', base)}", "the difference is no more than chance may make",
    )  # fmt: skip
    yield Verdict(
        f"the larger the budget, the larger the gain{alone}", source,
        _grows([(g.share, g.margin * g.share / g.less_by if g.less_by else 1.0) for g in by_budget.values()]),
        f"{data}: {_less_by(by_budget, '', base)}",
        "where the budget is large, both err by little, and what is left of it is chance",
    )  # fmt: skip


def _why_no_less(by_m: Mapping[int, _Gain]) -> str:
    """Where PM errs more, and where it may be chance that it does not."""
    more = [str(m) for m, gain in by_m.items() if gain.less_by < -gain.margin]
    unsure = [str(m) for m, gain in by_m.items() if abs(gain.less_by) <= gain.margin]
    reasons = [
        f"at m = {', '.join(more)} rounds of elimination cost more accuracy than savings buy" if more else "",
        f"at m = {', '.join(unsure)} the difference is no more than chance may make" if unsure else "",
    ]
    return "; ".join(filter(None, reasons))


def _grows(gains: Sequence[tuple[float, float]]) -> bool:
    """Whether the last gain is larger than the first by more than chance; each with its margin."""
    first, *_, last = gains
    return last[0] - first[0] > float(np.hypot(first[1], last[1]))


def _less_by(gains: Mapping[int, _Gain] | Mapping[float, _Gain], name: str, base: str) -> str:
    said = ", ".join(f"{gain} at {name}{key:g}" for key, gain in gains.items())
    return f"less by {said} (three standard errors; of the error of {base})"


def _threshold_jobs(setup: Setup) -> list[Job]:
    return [partial(_threshold_rows, setup, share, rho) for share in LIMITS for rho in COUNT_RHOS]


def _threshold_rows(setup: Setup, share: float, rho: float) -> list[SavingsRow | BesideRow]:
    rng = setup.rng(f"threshold/{share}")
    counts = rng.binomial(PEOPLE, SHARE, min(setup.repetitions, THRESHOLD_MOST)).tolist()
    query = Threshold(share, PEOPLE)
    asked, rows, base = (COUNTS, "threshold", share, rho), list[SavingsRow | BesideRow](), list[Once]()
    for split, shape in SPLITS.items():
        bits, noise, runs = setup.bits(f"threshold/{share}/{rho}/{split}"), PreparedNoise(len(counts)), list[Once]()
        terms = Terms.alike(concentrated(round(rho * NANO)), 1, "point", shape)
        terms = terms.baseline() if split == "BM" else terms
        for count in counts:
            pie = query.elimination(terms)
            state = pie.run(np.array([[count]]), bits, noise)
            is_below, _ = query.answer(terms, pie, state)
            runs.append((float(is_below) - float(count < query.limit), terms.saved(state)))
        rows.append(row_of(*asked, "count", split, runs))
        base = base or runs
        if split != "BM":
            rows.append(beside_baseline((*asked, split), "count", runs, base))
    return rows


def _threshold_conclude(setup: Setup, found: Sequence[SavingsRow | BesideRow]) -> Outcome:
    del setup
    rows = [row for row in found if isinstance(row, SavingsRow)]
    pairs = [row for row in found if isinstance(row, BesideRow)]
    panels = [_threshold_panel(rows, q, what) for what in ("error_mean", "saved_mean") for q in LIMITS]
    saved = {rho: [r.saved_mean for r in rows if r.rho == rho and r.split == "c64"] for rho in COUNT_RHOS}
    means = [float(np.mean(one)) for one in saved.values()]
    source = f"{SOURCE}, Fig. 9"
    verdicts = (
        no_worse(pairs, source, COUNTS),
        Verdict(
            "savings are large where rho is large enough", source, means[-1] > 0.5 and means[-1] > means[0],
            f"c64: {', '.join(f'{rho:g}: {share:.2f}' for rho, share in zip(COUNT_RHOS, means, strict=True))}",
        ),
    )  # fmt: skip
    figure = Figure("threshold", f"is a count of {PEOPLE:,} below q of them: wrong answers, budget left", tuple(panels))
    return Outcome((Table("threshold", tuple(rows)), Table("threshold-pairs", tuple(pairs))), (figure,), verdicts)


def _threshold_panel(rows: Sequence[SavingsRow], share: float, what: str) -> Panel:
    of = [(split, {"parameter": share, "split": split}) for split in SPLITS]
    return error_and_saved(rows, f"q = {share:g}", what, of, "share of wrong answers")


EXPERIMENTS = (
    Experiment("multi-query", "what savings buy over many queries, by Algorithm 3", _multi_jobs, _multi_conclude),
    Experiment(
        *("threshold", "what a threshold query by elimination leaves of a budget"),
        *(_threshold_jobs, _threshold_conclude),
    ),
)
