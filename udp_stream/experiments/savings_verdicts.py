"""Figures and verdicts of `savings-range`, `savings-kde` and `savings-knn`, from their rows alone.

Errors of two methods differ where their mean difference is more than three standard errors. Of two ways that answered
the same questions, differences are taken pair by pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from udp_stream.experiments.base import Curve, Figure, Outcome, Panel, Setup, Table, Verdict
from udp_stream.experiments.savings_rows import HOWS, SOURCE, SPLITS, SURE, UNSHIFTED, BesideRow, Kind, SavingsRow

QUARTER = 0.25
"""Remark 6: bounds of elimination are no wider than the baseline's where this share of the plates leaves. We select by
the share of the budget that is saved, which is stricter: a plate saves less than all of its budget."""


def conclude(kind: Kind, setup: Setup, found: Sequence[SavingsRow | BesideRow]) -> Outcome:
    """Tables of errors and of pairs, a figure for each feed (for range counts Figure 8, too), and the verdicts."""
    del setup
    rows = [row for row in found if isinstance(row, SavingsRow)]
    pairs = [row for row in found if isinstance(row, BesideRow)]
    figures, verdicts = list[Figure](), list[Verdict]()
    for data in dict.fromkeys(row.data for row in rows):
        of_data = [row for row in rows if row.data == data and row.privatisation != UNSHIFTED]
        ours, slug = [row for row in pairs if row.data == data], "".join(c if c.isalnum() else "-" for c in data)
        panels = [_panel(of_data, value, what) for what in ("error_mean", "saved_mean") for value in kind.values]
        title = f"{kind.name}, {data}: {kind.parameter} {', '.join(f'{value:g}' for value in kind.values)}"
        figures.append(Figure(f"{kind.name}-{slug}", title, tuple(panels)))
        verdicts += _judged(kind, data, of_data)
        verdicts.append(no_worse(ours, f"{SOURCE}, Remark 6", data))
        verdicts.append(beats(kind, [row for row in ours if row.second != UNSHIFTED], data))
        if kind.better == "point":
            verdicts.append(biases(of_data, f"{SOURCE}, {kind.figure}", data))
        if some := [row for row in ours if row.second == UNSHIFTED]:
            title = f"range counts, {data}: the shifted threshold beside 0, {kind.parameter}"
            both = tuple(_shift_panel(some, value) for value in kind.values)
            figures.append(Figure(f"shifted-threshold-{slug}", title, both))
            verdicts += shift_verdicts(some, data)
    tables = [Table(kind.name, tuple(rows)), Table(f"{kind.name}-pairs", tuple(pairs))] if rows else []
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


def _shift_panel(rows: Sequence[BesideRow], value: float) -> Panel:
    curves = []
    for split in SPLITS:
        some = [row for row in rows if (row.parameter, row.split) == (value, split)]
        rhos = tuple(row.rho for row in some)
        curves.append(Curve(f"{split}, shifted", rhos, tuple(row.first_error for row in some)))
        curves.append(Curve(f"{split}, 0", rhos, tuple(row.second_error for row in some)))
    return Panel(f"{value:g}", "rho", "mean error", tuple(curves), log_x=True)


def _judged(kind: Kind, data: str, rows: Sequence[SavingsRow]) -> list[Verdict]:
    source = f"{SOURCE}, {kind.figure}"
    return [_larger_c(rows, source, data), _grows(rows, source, data), _by_parameter(kind, rows, source, data)]


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


def no_worse(pairs: Sequence[BesideRow], source: str, data: str) -> Verdict:
    """Remark 6: elimination beside its baseline, pair by pair, where it lets go of a quarter.

    >>> from udp_stream.experiments.savings_rows import beside_baseline
    >>> asked, base = ("town", "savings-knn", 5.0, 1e-4, "c4"), [(0.1, 0.0), (0.2, 0.0)]
    >>> pairs = [beside_baseline(asked, "point", [(0.3, saved), (0.4, saved)], base) for saved in (0.1, 0.5)]
    >>> no_worse(pairs, "theirs", "town").seen
    'town: 0 of 1, which are 50% of all 2; worse: c4 point 5 at rho 0.0001'
    """
    found = [row for row in pairs if row.second.startswith("BM, ")]
    some = [row for row in found if row.first_saved >= QUARTER]
    worse = [
        f"{row.split} {row.second.removeprefix('BM, ')} {row.parameter:g} at rho {row.rho:g}"
        for row in some
        if row.is_more
    ]
    why = "radii for one plate in all rounds cost more than the baseline's single one where few plates leave early"
    selected = (
        f"{len(some) - len(worse)} of {len(some)}, which are {len(some) / max(1, len(found)):.0%} of all {len(found)}"
    )
    seen = f"{data}: {selected}" + (f"; worse: {', '.join(worse[:4])}" if worse else "")
    return Verdict("PM errs no more than BM where a quarter of the budget is saved", source, not worse, seen, why)


def biases(rows: Sequence[SavingsRow], source: str, data: str) -> Verdict:
    """Figure 4's reason: the bias of the baseline's densities with noise on positions, and on distances.

    >>> from udp_stream.experiments.savings_rows import row_of
    >>> runs = {"point": [(-0.1, 0.0), (-0.2, 0.0)], "distance": [(0.3, 0.0), (0.4, 0.0)]}
    >>> rows = [row_of("town", "savings-kde", 500.0, 1e-4, how, "BM", off) for how, off in runs.items()]
    >>> biases(rows, "theirs", "town").seen
    'town, BM: positions -0.15, beyond chance 1 below 0 and 0 above; distances 0.35, 0 below and 1 above; of 1 each'
    """
    point, distance = ([r for r in rows if (r.split, r.privatisation) == ("BM", how)] for how in HOWS)
    means = [float(np.mean([row.bias for row in some])) for some in (point, distance)]
    (p_low, p_high), (d_low, d_high) = (
        [sum(sign * row.bias > SURE * row.bias_spread for row in some) for sign in (-1, 1)]
        for some in (point, distance)
    )
    agrees = p_low > 0 and d_high > 0 and not (p_high or d_low) and abs(means[0]) < abs(means[1])
    seen = f"positions {means[0]:.3g}, beyond chance {p_low} below 0 and {p_high} above; "
    seen += f"distances {means[1]:.3g}, {d_low} below and {d_high} above; of {len(point)} each"
    why = "noise that is narrower than the kernel moves plates near the place out of it more than others into it"
    statement = "noise on positions biases densities downwards, noise on distances upwards and more"
    return Verdict(statement, source, agrees, f"{data}, BM: {seen}", why)


def _by_parameter(kind: Kind, rows: Sequence[SavingsRow], source: str, data: str) -> Verdict:
    saved = [_mean(rows, "saved_mean", split="c64", parameter=value) for value in kind.values]
    spread = max(saved) - min(saved)
    seen = f"{data}, c64: {', '.join(f'{v:g}: {s:.2f}' for v, s in zip(kind.values, saved, strict=True))}"
    if kind.is_shifted:
        return Verdict("savings are alike over widths", source, spread < 0.1, seen)
    return Verdict(f"savings depend on the {kind.parameter}, less of it saves more", source, saved[0] > saved[-1], seen)


def beats(kind: Kind, pairs: Sequence[BesideRow], data: str) -> Verdict:
    """Whether the baseline errs less one way than the other where they differ by more than chance; of range counts,
    for the smallest budget.

    >>> from udp_stream.experiments.savings_rows import beside
    >>> asked, kind = ("town", "savings-knn", 5.0, 1e-4, "BM"), Kind("savings-knn", "k", (5.0,), dict, "Fig. 5", 300)
    >>> one = beside(asked, ("distance", [(0.1, 0.0), (0.2, 0.0)]), ("point", [(0.1, 0.0), (0.3, 0.0)]))
    >>> found = beats(kind, [one], "town")
    >>> found.agrees, found.seen
    (False, 'town, BM: beyond chance in 0 of 1 rows, the other in 0; means 0.15 against 0.2')
    """
    some = [row for row in pairs if row.split == "BM"]
    if kind.is_shifted:  # theirs is about small budgets
        some = [row for row in some if row.rho == min(one.rho for one in some)]
    less, more = sum(row.is_less for row in some), sum(row.is_more for row in some)
    means = [float(np.mean([getattr(row, error) for row in some])) for error in _BOTH]
    seen = f"{data}, BM: beyond chance in {less} of {len(some)} rows, the other in {more}; "
    why = "it depends on the parameter and the budget" if more else "the differences are no more than chance may make"
    statement = f"noise on {'positions' if kind.better == 'point' else 'distances'} errs less"
    of_both = f"means {means[0]:.3g} against {means[1]:.3g}"
    return Verdict(statement, f"{SOURCE}, {kind.figure}", less > 0 and not more, seen + of_both, why)


def shift_verdicts(pairs: Sequence[BesideRow], data: str) -> list[Verdict]:
    """Figure 8: by how much the shifted threshold errs less than 0, at the smallest budget; and whether it harms any.

    >>> from udp_stream.experiments.savings_rows import beside
    >>> asked = "town", "savings-range", 1000.0, 1e-6, "BM"
    >>> row = beside(asked, ("distance", [(0.1, 0.0), (0.2, 0.0)]), (UNSHIFTED, [(0.3, 0.0), (0.4, 0.0)]))
    >>> [verdict.agrees for verdict in shift_verdicts([row], "town")]
    [True, True]
    """
    source, rhos = "Adaptive Privacy Budgeting, Appendix B, Fig. 8", sorted({row.rho for row in pairs})
    small = [row for row in pairs if row.rho == rhos[0]]
    less = sum(row.is_less for row in small)
    harmed = [f"{row.split} {row.parameter:g} at rho {row.rho:g}" for row in pairs if row.is_more]
    means = [
        (rho, [float(np.mean([getattr(row, error) for row in pairs if row.rho == rho])) for error in _BOTH])
        for rho in rhos
    ]
    seen = ", ".join(f"{rho:g}: {shifted:.3g} against {zero:.3g}" for rho, (shifted, zero) in means)
    return [
        Verdict(
            "a shifted threshold errs less than 0 where the budget is small", source, 2 * less > len(small),
            f"{data}, rho {rhos[0]:g}: beyond chance in {less} of {len(small)} rows; means {seen}",
            "where the region is much wider than the noise, as many plates are taken in as left out by either",
        ),
        Verdict(
            "a shifted threshold errs no more than 0 at any budget", source, not harmed,
            f"{data}: {len(pairs) - len(harmed)} of {len(pairs)} rows"
            + (f"; worse: {', '.join(harmed[:4])}" if harmed else ""),
            "it is made for plates that are spread evenly around the edge, and places near a plate are not",
        ),
    ]  # fmt: skip


_BOTH = "first_error", "second_error"
