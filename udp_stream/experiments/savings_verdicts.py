"""Figures and verdicts of `savings-range`, `savings-kde` and `savings-knn`, from their rows alone.

Errors of two methods differ where they are more than three standard errors of their difference apart. Rows of one feed
share their moments and places, so the standard error of a mean over rows is taken as if they moved together.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from udp_stream.experiments.base import Curve, Figure, Outcome, Panel, Setup, Table, Verdict
from udp_stream.experiments.savings_rows import HOWS, SOURCE, SPLITS, UNSHIFTED, Kind, SavingsRow

SURE = 3.0
"""Standard errors beyond which a difference is no chance."""


def conclude(kind: Kind, setup: Setup, rows: Sequence[SavingsRow]) -> Outcome:
    """The table, a figure for each feed (for range counts a second one, in kind of Figure 8), and the verdicts."""
    del setup
    figures, verdicts = list[Figure](), list[Verdict]()
    for data in dict.fromkeys(row.data for row in rows):
        of_data = [row for row in rows if row.data == data]
        both = [row for row in of_data if row.privatisation != UNSHIFTED]
        slug = "".join(c if c.isalnum() else "-" for c in data)
        panels = [_panel(both, value, what) for what in ("error_mean", "saved_mean") for value in kind.values]
        title = f"{kind.name}, {data}: {kind.parameter} {', '.join(f'{value:g}' for value in kind.values)}"
        figures.append(Figure(f"{kind.name}-{slug}", title, tuple(panels)))
        verdicts += _judged(kind, data, both)
        if kind.is_shifted:
            title = f"range counts, {data}: the shifted threshold beside 0, {kind.parameter}"
            shifts = tuple(_shift_panel(of_data, value) for value in kind.values)
            figures.append(Figure(f"shifted-threshold-{slug}", title, shifts))
            verdicts += shift_verdicts(of_data, data)
    return Outcome((Table(kind.name, tuple(rows)),) if rows else (), tuple(figures), tuple(verdicts))


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


def _shift_panel(rows: Sequence[SavingsRow], value: float) -> Panel:
    curves = []
    for split in SPLITS:
        for way, name in (("distance", "shifted"), (UNSHIFTED, "0")):
            some = [row for row in rows if (row.parameter, row.privatisation, row.split) == (value, way, split)]
            curves.append(Curve(f"{split}, {name}", tuple(r.rho for r in some), tuple(r.error_mean for r in some)))
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


def shift_verdicts(rows: Sequence[SavingsRow], data: str) -> list[Verdict]:
    """Figure 8: the shifted threshold against 0, for the smallest budget, and for all others that it harms in none."""
    source, rhos = "Adaptive Privacy Budgeting, Appendix B, Fig. 8", sorted({row.rho for row in rows})
    pairs = {
        (row.parameter, row.rho, row.split): [row] for row in rows if row.privatisation == "distance"
    }  # fmt: skip
    for row in rows:
        if row.privatisation == UNSHIFTED:
            pairs[row.parameter, row.rho, row.split].append(row)
    off = {
        key: (zero.error_mean - shifted.error_mean, SURE * float(np.hypot(zero.error_spread, shifted.error_spread)))
        for key, (shifted, zero) in pairs.items()
    }
    small = {key: one for key, one in off.items() if key[1] == rhos[0]}
    less = sum(one[0] > one[1] for one in small.values())
    harmed = [f"{split} {width:g} at rho {rho:g}" for (width, rho, split), one in off.items() if one[0] < -one[1]]
    means = ", ".join(
        f"{rho:g}: {_mean(rows, 'error_mean', rho=rho, privatisation='distance'):.3g} against "
        f"{_mean(rows, 'error_mean', rho=rho, privatisation=UNSHIFTED):.3g}"
        for rho in rhos
    )
    return [
        Verdict(
            "a shifted threshold errs much less where the budget is small", source, 2 * less > len(small),
            f"{data}, rho {rhos[0]:g}: beyond chance in {less} of {len(small)} rows; over all rows {means}",
        ),
        Verdict(
            "a shifted threshold errs no more than 0 at any budget", source, not harmed,
            f"{data}: {len(off) - len(harmed)} of {len(off)} rows"
            + (f"; worse: {', '.join(harmed[:4])}" if harmed else ""),
            "it is made for plates that are spread evenly around the edge, and places near a plate are not",
        ),
    ]  # fmt: skip
