"""Figures and verdicts of `savings-range`, `savings-kde` and `savings-knn`, from their rows alone.

Errors of two methods differ where they are more than three standard errors of their difference apart. Rows of one feed
share their moments and places, so the standard error of a mean over rows is taken as if they moved together.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from udp_stream.experiments.base import Curve, Figure, Outcome, Panel, Setup, Table, Verdict
from udp_stream.experiments.savings_rows import HOWS, SOURCE, SPLITS, UNSHIFTED, Kind, SavingsRow, ShiftRow

SURE = 3.0
"""Standard errors beyond which a difference is no chance."""


def conclude(kind: Kind, setup: Setup, found: Sequence[SavingsRow | ShiftRow]) -> Outcome:
    """The table, a figure for each feed, the verdicts; for range counts Figure 8 in kind, and its table, too."""
    del setup
    rows = [row for row in found if isinstance(row, SavingsRow)]
    shifts = [row for row in found if isinstance(row, ShiftRow)]
    figures, verdicts = list[Figure](), list[Verdict]()
    for data in dict.fromkeys(row.data for row in rows):
        of_data = [row for row in rows if row.data == data and row.privatisation != UNSHIFTED]
        slug = "".join(c if c.isalnum() else "-" for c in data)
        panels = [_panel(of_data, value, what) for what in ("error_mean", "saved_mean") for value in kind.values]
        title = f"{kind.name}, {data}: {kind.parameter} {', '.join(f'{value:g}' for value in kind.values)}"
        figures.append(Figure(f"{kind.name}-{slug}", title, tuple(panels)))
        verdicts += _judged(kind, data, of_data)
        if some := [row for row in shifts if row.data == data]:
            title = f"range counts, {data}: the shifted threshold beside 0, {kind.parameter}"
            beside = tuple(_shift_panel(some, value) for value in kind.values)
            figures.append(Figure(f"shifted-threshold-{slug}", title, beside))
            verdicts += shift_verdicts(some, data)
    tables = [Table(kind.name, tuple(rows))] if rows else []
    tables += [Table("shifted-threshold", tuple(shifts))] if shifts else []
    return Outcome(tuple(tables), tuple(figures), tuple(verdicts))


def _panel(rows: Sequence[SavingsRow], value: float, what: str) -> Panel:
    curves = []
    for how in HOWS:
        for split in SPLITS if what == "error_mean" else list(SPLITS)[1:]:
            some = [row for row in rows if (row.parameter, row.privatisation, row.split) == (value, how, split)]
            if some:
                xs, ys = tuple(row.rho for row in some), tuple(float(getattr(row, what)) for row in some)
                curves.append(Curve(f"{split}, {how}", xs, ys))
    label = "mean error" if what == "error_mean" else "share of the budget left"
    return Panel(f"{value:g}", "rho", label, tuple(curves), log_x=True)


def _shift_panel(rows: Sequence[ShiftRow], value: float) -> Panel:
    curves = []
    for split in SPLITS:
        some = [row for row in rows if (row.parameter, row.split) == (value, split)]
        rhos = tuple(row.rho for row in some)
        curves.append(Curve(f"{split}, shifted", rhos, tuple(row.shifted_error for row in some)))
        curves.append(Curve(f"{split}, 0", rhos, tuple(row.zero_error for row in some)))
    return Panel(f"{value:g}", "rho", "mean error", tuple(curves), log_x=True)


def _judged(kind: Kind, data: str, rows: Sequence[SavingsRow]) -> list[Verdict]:
    source = f"{SOURCE}, {kind.figure}"
    found = [_larger_c(rows, source, data), _grows(rows, source, data), no_worse(rows, f"{SOURCE}, Remark 6", data)]
    found.append(_by_parameter(kind, rows, source, data))
    rhos = sorted({row.rho for row in rows if row.privatisation == "point"})
    if kind.is_shifted:  # theirs is about small budgets
        rhos = rhos[:1]
    better, worse = ("point", "distance") if kind.name == "savings-kde" else ("distance", "point")
    found.append(beats([row for row in rows if row.rho in rhos], better, worse, source, data))
    return found


def _mean(rows: Sequence[SavingsRow], what: str, **given: object) -> float:
    some = [getattr(row, what) for row in rows if all(getattr(row, key) == value for key, value in given.items())]
    return float(np.mean(some))


def _larger_c(rows: Sequence[SavingsRow], source: str, data: str) -> Verdict:
    saved = {split: _mean(rows, "saved_mean", split=split, privatisation="distance") for split in list(SPLITS)[1:]}
    seen = ", ".join(f"{split} {share:.2f}" for split, share in saved.items())
    agrees = saved["c64"] > saved["c4"]
    why = "at the smallest budgets no round decides anything, and nothing is saved by any split"
    return Verdict("more rounds save more", source, agrees, f"{data}, noise on distances: {seen}", why)


def _grows(rows: Sequence[SavingsRow], source: str, data: str) -> Verdict:
    rhos = sorted({row.rho for row in rows})
    saved = [_mean(rows, "saved_mean", split="c64", rho=rho) for rho in rhos]
    agrees = all(a <= b + 0.02 for a, b in pairwise(saved)) and saved[-1] > saved[0]
    seen = ", ".join(f"{rho:g}: {share:.2f}" for rho, share in zip(rhos, saved, strict=True))
    return Verdict("savings grow with rho", source, agrees, f"{data}, c64: {seen}")


def no_worse(rows: Sequence[SavingsRow], source: str, data: str) -> Verdict:
    """Remark 6: the errors of elimination where it lets go of a quarter, beside the baseline's.

    >>> from udp_stream.experiments.savings_rows import row_of
    >>> runs = {"BM": [(0.1, 0.0)], "c4": [(0.3, 0.5)]}
    >>> rows = [row_of("town", "savings-knn", 5.0, 1e-4, "point", split, once) for split, once in runs.items()]
    >>> no_worse(rows, "theirs", "town").seen
    'town: 0 of 1; worse: c4 point 5 at rho 0.0001'
    """
    bases = {(row.parameter, row.rho, row.privatisation): row for row in rows if row.split == "BM"}
    worse, compared = [], 0
    for row in rows:
        if row.split == "BM" or row.saved_mean < 0.25:
            continue
        base, compared = bases[row.parameter, row.rho, row.privatisation], compared + 1
        margin = SURE * float(np.hypot(row.error_spread, base.error_spread)) + 1e-3
        if row.error_mean > base.error_mean + margin:
            worse.append(f"{row.split} {row.privatisation} {row.parameter:g} at rho {row.rho:g}")
    why = "radii for one plate in all rounds cost more than the baseline's single one where few plates leave early"
    seen = f"{data}: {compared - len(worse)} of {compared}" + (f"; worse: {', '.join(worse[:4])}" if worse else "")
    return Verdict("PM errs no more than BM where a quarter is saved", source, not worse, seen, why)


def _by_parameter(kind: Kind, rows: Sequence[SavingsRow], source: str, data: str) -> Verdict:
    saved = [_mean(rows, "saved_mean", split="c64", parameter=value) for value in kind.values]
    spread = max(saved) - min(saved)
    seen = f"{data}, c64: {', '.join(f'{v:g}: {s:.2f}' for v, s in zip(kind.values, saved, strict=True))}"
    if kind.is_shifted:
        return Verdict("savings are alike over widths", source, spread < 0.1, seen)
    return Verdict(f"savings depend on the {kind.parameter}, less of it saves more", source, saved[0] > saved[-1], seen)


def beats(rows: Sequence[SavingsRow], better: str, worse: str, source: str, data: str, split: str = "BM") -> Verdict:
    """Whether one way errs less than the other by more than chance, under a split, over all of these rows.

    >>> from udp_stream.experiments.savings_rows import row_of
    >>> runs = {"point": [(0.1, 0.0), (0.3, 0.0)], "distance": [(0.1, 0.0), (0.2, 0.0)]}
    >>> rows = [row_of("town", "savings-knn", 5.0, 1e-4, how, "BM", once) for how, once in runs.items()]
    >>> print(beats(rows, "distance", "point", "theirs", "town"))
    DIFFERS noise on distances errs less (theirs). Seen: town, BM: 0.15 against 0.2, three standard errors are 0.24. \
Why: the difference is no more than chance may make
    """
    some = [row for row in rows if row.split == split]
    errors = [_mean(some, "error_mean", privatisation=how) for how in (better, worse)]
    spreads = [_mean(some, "error_spread", privatisation=how) for how in (better, worse)]
    margin = SURE * float(np.hypot(spreads[0], spreads[1]))
    seen = f"{data}, {split}: {errors[0]:.3g} against {errors[1]:.3g}, three standard errors are {margin:.2g}"
    off = errors[1] - errors[0]
    why = "the other errs less" if off < -margin else "the difference is no more than chance may make"
    return Verdict(_STATEMENTS[better], source, off > margin, seen, why)


_STATEMENTS = {
    "point": "noise on positions errs less",
    "distance": "noise on distances errs less",
}


def shift_verdicts(rows: Sequence[ShiftRow], data: str) -> list[Verdict]:
    """Figure 8: by how much the shifted threshold errs less than 0, at the smallest budget; and whether it harms any.

    >>> from udp_stream.experiments.savings_rows import shift_of
    >>> row = shift_of("town", 1000.0, 1e-6, "BM", [(0.1, 0.0), (0.2, 0.0)], [(0.3, 0.0), (0.5, 0.0)])
    >>> [verdict.agrees for verdict in shift_verdicts([row], "town")]
    [True, True]
    """
    source, rhos = "Adaptive Privacy Budgeting, Appendix B, Fig. 8", sorted({row.rho for row in rows})
    small = [row for row in rows if row.rho == rhos[0]]
    less = sum(row.less_by > SURE * row.spread for row in small)
    harmed = [f"{row.split} {row.parameter:g} at rho {row.rho:g}" for row in rows if row.less_by < -SURE * row.spread]
    means = [
        (rho, [float(np.mean([getattr(row, error) for row in rows if row.rho == rho])) for error in _BOTH])
        for rho in rhos
    ]
    seen = ", ".join(f"{rho:g}: {shifted:.3g} against {zero:.3g}" for rho, (shifted, zero) in means)
    return [
        Verdict(
            "a shifted threshold errs less than 0 where the budget is small", source, 2 * less > len(small),
            f"{data}, rho {rhos[0]:g}: beyond three standard errors in {less} of {len(small)} rows; means {seen}",
            "where the region is much wider than the noise, as many plates are taken in as left out by either",
        ),
        Verdict(
            "a shifted threshold errs no more than 0 at any budget", source, not harmed,
            f"{data}: {len(rows) - len(harmed)} of {len(rows)} rows"
            + (f"; worse: {', '.join(harmed[:4])}" if harmed else ""),
            "it is made for plates that are spread evenly around the edge, and places near a plate are not",
        ),
    ]  # fmt: skip


_BOTH = "shifted_error", "zero_error"
