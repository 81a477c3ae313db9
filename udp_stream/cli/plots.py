"""Figures to PNG and SVG by matplotlib, which comes with the extra `[plots]`; no window, no display.

Colours are Okabe and Ito's, which colour-blind readers can tell apart; each series also has a marker of its own, and
WrapAround a broken line. The same figure gives the same SVG bytes.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from udp_stream.errors import PackageMissing, UsageError
from udp_stream.experiments.base import Curve, Figure, Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442", "#555555")
MARKERS = "osD^vPX*"

FIXED_STYLES = {
    name: i
    for i, name in enumerate(("array-averaging", "levy", "fixed-quantile", "eps-quantile", "baseline", "optimal"))
}
"""The mechanisms look alike in every figure."""

SUFFIXES = (".png", ".svg")


def require_plots(path: Path | None = None) -> None:
    """Raises PackageMissing unless matplotlib is installed, UsageError if a plot cannot have this name."""
    if path is not None and path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{path}: expected a name that ends in .png or .svg")
    if find_spec("matplotlib") is None:
        raise PackageMissing("matplotlib to plot with", "plots")


def draw(figure: Figure, path: Path) -> None:
    """Write one figure, as PNG or SVG by the file's name; raises as `require_plots` does."""
    require_plots(path)
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    settings: dict[Any, Any] = {
        "svg.hashsalt": "udp-stream",  # without one, ids in the SVG are random
        "svg.fonttype": "none",
        "font.size": 9,
        "font.sans-serif": ["DejaVu Sans"],
    }
    with rc_context(settings):
        width = max(5.2, 4.4 * len(figure.panels))
        canvas = Canvas(figsize=(width, 5.2), layout="constrained")
        FigureCanvasAgg(canvas)
        for axes, panel in zip(canvas.subplots(1, len(figure.panels), squeeze=False)[0], figure.panels, strict=True):
            _draw_panel(axes, panel)
        canvas.suptitle(figure.title, fontsize=10)
        dateless = {"Date": None} if path.suffix.lower() == ".svg" else {"Software": None}
        canvas.savefig(path, dpi=130, metadata=dateless)


def _draw_panel(axes: Axes, panel: Panel) -> None:
    styles: dict[str, int] = {}
    for curve in panel.curves:
        _draw_curve(axes, curve, styles)
    axes.set_title(panel.title, fontsize=9)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    if panel.log_x:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
    if panel.log_y:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(_few_minor_labels(axes))
    axes.grid(visible=True, alpha=0.25, linewidth=0.5)
    axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, frameon=False)


def _few_minor_labels(axes: Axes) -> Any:
    """Labels between powers of ten only where the axis spans less than about two of them."""
    from matplotlib.ticker import NullFormatter, StrMethodFormatter

    low, high = axes.get_ylim()
    return StrMethodFormatter("{x:g}") if high < 15 * low else NullFormatter()


def _draw_curve(axes: Axes, curve: Curve, styles: dict[str, int]) -> None:
    if curve.kind == "guess":
        axes.plot(curve.x, curve.y, color="black", linestyle=(0, (6, 3)), linewidth=1.6, label=curve.name)
        return
    if curve.kind == "marks":
        axes.plot(curve.x, curve.y, color="black", linestyle="none", marker="*", markersize=9, label=curve.name)
        return
    base, _, variant = curve.name.partition(",")
    style = FIXED_STYLES.get(base, len(styles) if base not in FIXED_STYLES else 0)
    style = styles.setdefault(base, style) % len(COLOURS)
    axes.plot(
        curve.x,
        curve.y,
        color=COLOURS[style],
        marker=MARKERS[style],
        markersize=4,
        linewidth=1.3,
        linestyle="--" if variant else "-",
        markerfacecolor="white" if variant else COLOURS[style],
        markevery=max(1, len(curve.x) // 20),
        label=curve.name,
    )
