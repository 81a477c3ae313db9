"""The worst case of a HAT's mean over all speeds, by cap: what `plan` prints and draws below its tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from udp_stream.adapters.text import counted
from udp_stream.cli.outputs import named
from udp_stream.cli.plots import draw
from udp_stream.experiments.base import Figure
from udp_stream.experiments.worst import best_m, curve_rows, e_of_m, least_errors, printed_limits, worst_of, worst_row
from udp_stream.mechanisms.grouping import SamplesPerPlate
from udp_stream.mechanisms.range import Range
from udp_stream.planning.worst_case import epsilon_limits
from udp_stream.units import QUANTA_PER_KMH


def print_worst_case(out: Console, counts: SamplesPerPlate, speeds: Range, epsilon: float, plot: Path | None) -> None:
    """E(m) of one typical HAT at the epsilon of its mean, as a table, in words, and, if `plot` names a file, drawn."""
    about = f"a typical HAT of {counted(counts.plates, 'plate')} and {counted(counts.total, 'ping')}"
    out.print(f"\nWorst case over all speeds, {about}, at epsilon {epsilon:.4g}; every plate gives at most m pings:")
    out.print(_table_of_e(counts, speeds, epsilon))
    out.print(_worst_case_in_words(counts, speeds, epsilon))
    if plot is not None:
        with named(plot):
            draw(_worst_case_figure(about, counts, speeds, epsilon), plot)


def _table_of_e(counts: SamplesPerPlate, speeds: Range, epsilon: float) -> Table:
    rows = curve_rows("", counts, speeds, epsilon, share=1.0)
    best = min(rows, key=lambda row: row.worst_error_kmh)
    shown = {round(i * (len(rows) - 1) / 6) for i in range(7)} | {rows.index(best)}
    table = Table(box=None, pad_edge=False)
    for name in ("m", "pings kept", "worst bias km/h", "noise km/h", "E(m) km/h", ""):
        table.add_column(name, justify="right" if name else "left")
    for at in sorted(shown):
        row, kept = rows[at], counts.kept(rows[at].m)
        noise = speeds.width / QUANTA_PER_KMH * row.m / (kept * epsilon)
        figures = f"{max(0.0, row.worst_error_kmh - noise):.2f}", f"{noise:.2f}", f"{row.worst_error_kmh:.2f}"
        table.add_row(str(row.m), f"{kept / counts.total:.0%}", *figures, "least" if row is best else "")
    return table


def _worst_case_in_words(counts: SamplesPerPlate, speeds: Range, epsilon: float) -> str:
    sweep = [epsilon * factor for factor in (0.01, 0.1, 0.3, 1, 3, 10)]
    caps = ", ".join(f"{worst_of(counts, one, speeds).best_m} at {one:.3g}" for one in sweep)
    (low, high), printed = epsilon_limits(counts), "{:.3g} and {:.3g}".format(*printed_limits(counts))
    here = worst_row("", "", [counts], speeds, epsilon, share=1.0)
    limits = (
        "All counts are equal: any m but theirs is worse."
        if high == 0
        else f"m = {int(counts.descending[-1])} is best up to epsilon {low:.3g}, m = {counts.largest} from "
        f"{high:.3g} on (the slides' sufficient limits: {printed})."
    )
    return (
        f"The best m never falls as epsilon grows: {caps}. {limits} With dropped pings filled by U/2 instead, m = "
        f"{here.optimal_m} has {here.optimal_worst_kmh:.2f} km/h; "
        f"the baseline guess U/2 has {here.constant_worst_kmh:g}."
    )


def _worst_case_figure(about: str, counts: SamplesPerPlate, speeds: Range, epsilon: float) -> Figure:
    drawn = [row for factor in (0.1, 0.3, 1, 3) for row in curve_rows("", counts, speeds, epsilon * factor, share=1.0)]
    grid = np.geomspace(epsilon / 100, epsilon * 10, 31).tolist()
    rows = [worst_row("", "", [counts], speeds, one, share=1.0) for one in grid]
    panels = e_of_m(drawn), best_m(counts, rows), least_errors("least worst-case error", rows)
    return Figure("plan", f"{about}; epsilon {epsilon:.4g} per mean", panels)
