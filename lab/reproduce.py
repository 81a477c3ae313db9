"""`reproduce`: the papers' figures and tables, and their files.

Nothing is charged or released. Files are CSV tables, findings in words, and figures by matplotlib (the extra
`[plots]`), in Okabe and Ito's colours, which colour-blind readers can tell apart. A figure always has the same bytes.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from lab.data import DataSet, HatSamples, Setup, Trajectories
from lab.experiments import EXPERIMENTS, NEED_POSITIONS, ON_POSITIONS
from lab.papers import read_papers_data, sorted_out
from lab.results import Curve, Experiment, Figure, Finding, Outcome, Panel, Row
from udp_stream.cli.outputs import FileRole, require_distinct, used_files
from udp_stream.cli.report import ReadingProgress, console, printer, stepwise
from udp_stream.errors import PackageMissing, UsageError
from udp_stream.files import named
from udp_stream.forms import as_text, csv_line
from udp_stream.mechanisms.base import SamplesPerPlate
from udp_stream.planning.suppression import Occupancy
from udp_stream.queries.plane import Plane
from udp_stream.settings import Settings, load
from udp_stream.sources.files import OnProgress, read_messages, require_readable
from udp_stream.testing import seeded_bits
from udp_stream.windows.slots import slots_of
from udp_stream.windows.tables import SlotCounts, cells_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@cache
def claims() -> dict[str, dict[str, str]]:
    """What the papers claim: texts, by name."""
    return tomllib.loads(resources.files("lab").joinpath("claims.toml").read_text(encoding="utf-8"))


def sentence(finding: Finding) -> str:
    """A claim, whether our numbers agree, what they are, and why they differ where they do."""
    claim = {name: text.format_map(finding.values) for name, text in claims()[finding.claim].items()}
    why = f" Why: {claim['why']}" if claim.get("why") and not finding.agrees else ""
    head = "AGREES " if finding.agrees else "DIFFERS"
    return f"{head} {claim['statement']} ({claim['source']}). Seen: {claim['seen']}.{why}"


def make_folder(folder: Path) -> None:
    """Raises UsageError if it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: expected a folder that can be made ({error.strerror})") from error


def write_outcome(outcome: Outcome, name: str, folder: Path, used: Sequence[FileRole] = ()) -> list[Path]:
    """All files of an outcome, in the order written. UsageError, before that, for a file that the run uses."""
    writers: dict[Path, Callable[[Path], object]] = {}
    for table, rows in outcome.tables.items():
        writers[folder / f"{table}.csv"] = partial(write_table, rows)
    for figure in outcome.figures:
        writers |= {folder / f"{slug(figure.name)}{suffix}": partial(draw, figure) for suffix in SUFFIXES}
    sentences = "".join(f"{sentence(finding)}\n" for finding in outcome.findings)
    writers[folder / f"{name}.txt"] = lambda path: path.write_text(sentences, encoding="utf-8")
    require_distinct([("--out", path) for path in writers], used)
    for path, write in writers.items():
        with named(path):
            write(path)
    return list(writers)


def write_table(rows: Sequence[Row], path: Path) -> None:
    """CSV with a header; numbers with six digits, so that bytes do not depend on the last bit of a sum."""
    with path.open("wb") as file:
        file.write(csv_line(list(vars(rows[0]))))
        for row in rows:
            cells = [f"{value:.6g}" if isinstance(value, float) else as_text(value) for value in vars(row).values()]
            file.write(csv_line(cells))


def slug(name: str) -> str:
    """A name that can be a file's."""
    return "-".join("".join(c if c.isalnum() else " " for c in name).split())


COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442", "#555555")
MARKERS, SUFFIXES = "osD^vPX*", (".png", ".svg")
FIXED_STYLES = {"array-averaging": 0, "levy": 1, "fixed-quantile": 2, "eps-quantile": 3, "baseline": 4, "optimal": 5}


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

    settings: dict[Any, Any] = {"svg.fonttype": "none", "font.size": 9, "font.sans-serif": ["DejaVu Sans"]}
    with rc_context(settings | {"svg.hashsalt": "udp-stream"}):  # without one, ids in the SVG are random
        width = max(5.2, 4.4 * len(figure.panels))
        canvas = Canvas(figsize=(width, 5.2), layout="constrained")
        FigureCanvasAgg(canvas)
        for axes, panel in zip(canvas.subplots(1, len(figure.panels), squeeze=False)[0], figure.panels, strict=True):
            _draw_panel(axes, panel)
        canvas.suptitle(figure.title, fontsize=10)
        dateless = {"Date": None} if path.suffix.lower() == ".svg" else {"Software": None}
        canvas.savefig(path, dpi=130, metadata=dateless)


def _draw_panel(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import NullFormatter, StrMethodFormatter

    styles: dict[str, int] = {}
    for curve in panel.curves:
        _draw_curve(axes, curve, styles)
    axes.set_title(panel.title, fontsize=9)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    if "x" in panel.log:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
    if "y" in panel.log:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        low, high = axes.get_ylim()
        # Labels between powers of ten only where the axis spans less than about two of them.
        axes.yaxis.set_minor_formatter(StrMethodFormatter("{x:g}") if high < 15 * low else NullFormatter())
    axes.grid(visible=True, alpha=0.25, linewidth=0.5)
    axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, frameon=False)


def _draw_curve(axes: Axes, curve: Curve, styles: dict[str, int]) -> None:
    looks: dict[str, Any] = {
        "guess": {"color": "black", "linestyle": (0, (6, 3)), "linewidth": 1.6},
        "marks": {"color": "black", "linestyle": "none", "marker": "*", "markersize": 9},
    }.get(curve.kind, {})
    base, _, variant = curve.name.partition(",")
    if not looks:
        style = styles.setdefault(base, FIXED_STYLES.get(base, len(styles))) % len(COLOURS)
        colour = COLOURS[style]
        looks = {"color": colour, "marker": MARKERS[style], "markersize": 4, "linewidth": 1.3}
        looks |= {"linestyle": "--" if variant else "-", "markerfacecolor": "white" if variant else colour}
        looks |= {"markevery": max(1, len(curve.x) // 20)}
    axes.plot(curve.x, curve.y, label=curve.name, **looks)


def read_feed(path: str, settings: Settings, progress: OnProgress | None = None) -> DataSet:
    """All HATs of a file, also of late pings, their occupancy, and where plates were. UsageError without a ping."""
    form = settings.form
    messages = [message for batch in read_messages(path, progress=progress, form=form) for message in batch]
    pings, _ = settings.decoder.decode(messages)
    if not len(pings):
        raise UsageError(f"{path}: expected pings, and none was accepted")
    names, of_plate = np.unique(np.asarray(pings.plates), return_inverse=True)  # by name, so that runs are alike
    cells, hashes = cells_of(pings.lat, pings.lon, settings.hat.resolution), [b"%08d" % i for i in range(names.size)]
    grid = settings.calendar.slots
    moving = None if (rules := settings.movement_rules) is None else (pings.lat, pings.lon, rules)
    tables = list(slots_of(hashes, of_plate[pings.plate], pings.time_ms, cells, pings.speed, grid, moving))
    hats = tuple(
        HatSamples(SamplesPerPlate(counts.count[rows]), values.samples_of(rows))
        for counts, values in tables
        for rows in counts.each_rows()
    )
    busiest = max((counts for counts, _ in tables), key=lambda counts: int(counts.count.sum()))
    who = Occupancy(busiest.hat_rows, busiest.plate, busiest.count, len(busiest.plates))
    name = Path(path).name.removesuffix(".gz").rpartition(".")[0] or path
    plane = Plane(round(float(np.median(pings.lat)), 2), round(float(np.median(pings.lon)), 2))
    where = plane.quanta(pings.lat, pings.lon)
    positions = Trajectories(name, of_plate[pings.plate].astype(np.int64), pings.time_ms, where)
    return DataSet(name, True, settings.policy.range, hats, who, positions=positions, whole=_whole(tables))


def _whole(tables: Sequence[tuple[SlotCounts, object]]) -> Occupancy:
    """Of all slots together. A slot numbers its own plates; their names are their numbers in the feed."""
    counts = [one for one, _ in tables]
    plates = np.concatenate([np.array(one.plates, "S8").astype(np.int64)[one.plate] for one in counts])
    sizes = np.concatenate([np.diff(one.hat_rows) for one in counts])
    count = np.concatenate([one.count for one in counts])
    return Occupancy(np.append(0, np.cumsum(sizes)), plates, count, int(plates.max()) + 1)


HATS, SEED = ("hat.resolution=7", "hat.slot=1h"), 1
"""The papers' HATs, unless `--set` or a feed's own keys say otherwise. The seed of drawn data and noise."""


def reproduce(arguments: argparse.Namespace, settings: Settings) -> None:
    """Run what is asked for; figures, tables and findings to the folder, the findings to stdout."""
    require_plots()
    names = arguments.names or list(EXPERIMENTS)
    known = EXPERIMENTS | ON_POSITIONS
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f"expected one of {', '.join(known)}, got {unknown[0]!r}")
    has_positions = arguments.data or arguments.theirs or arguments.full
    if not has_positions and (asks := [name for name in names if name in NEED_POSITIONS]):
        raise UsageError(f"{asks[0]} is about recorded positions: name a feed with --data, or T-Drive with --theirs")
    # FILE[,section.key=value...]
    split = (re.split(r",(?=[a-z_]+\.[a-z_]+=)", text) for text in arguments.data)
    feeds = [(path, keys) for path, *keys in split]
    require_readable(path for path, _ in feeds)
    moving, still, images = sorted_out(
        [read_papers_data(Path(path), np.random.default_rng(SEED)) for path in arguments.theirs]
    )
    make_folder(arguments.out)
    setup = Setup(
        data=_feeds(arguments, feeds),
        repetitions=arguments.repetitions,
        min_plates=settings.release.min_plates,
        seed=SEED,
        bits=lambda name: seeded_bits(f"reproduce/{SEED}/{name}"),  # reproducible, and therefore not private
        moving=moving,
        still=still,
        images=images,
        full=arguments.full,
    )
    used = used_files(arguments, settings, [*(path for path, _ in feeds), *arguments.theirs])
    for name in names:
        outcome = known[name].run(setup, partial(stepwise, name))
        files = write_outcome(outcome, name, arguments.out, used)
        _tell(known[name], outcome)
        console().print(f"{len(files)} files: {', '.join(str(file) for file in files)}", highlight=False)
    if setup.data:
        console().print("These are true means of the feeds and errors against them: not private, for your eyes.")


def _feeds(arguments: argparse.Namespace, asked: Sequence[tuple[str, Sequence[str]]]) -> tuple[DataSet, ...]:
    with ReadingProgress([path for path, _ in asked]) as progress:
        flags = [*HATS, *arguments.set]
        loaded = ((path, load(arguments.config, [*flags, *keys])) for path, keys in asked)
        return named_apart(read_feed(path, settings, progress.of(path)) for path, settings in loaded)


def named_apart(feeds: Iterable[DataSet]) -> tuple[DataSet, ...]:
    """Feeds by different names: the second of a name gets a number behind it.

    >>> from udp_stream.mechanisms.base import Range
    >>> [feed.name for feed in named_apart([DataSet("day", True, Range(0, 1), ())] * 3)]
    ['day', 'day-2', 'day-3']
    """
    found: dict[str, DataSet] = {}
    for feed in feeds:
        name, number = feed.name, 1
        while name in found:
            number += 1
            name = f"{feed.name}-{number}"
        where = None if feed.positions is None else replace(feed.positions, name=name)
        found[name] = replace(feed, name=name, positions=where)
    return tuple(found.values())


def _tell(experiment: Experiment, outcome: Outcome) -> None:
    agreeing = sum(finding.agrees for finding in outcome.findings)
    out = printer(width=120)
    out.print(f"{experiment.name}: {experiment.about}. {agreeing} of {len(outcome.findings)} statements agree.")
    table = Table(box=None, show_header=False, pad_edge=False)
    for finding in outcome.findings:
        table.add_row("agrees" if finding.agrees else "differs", sentence(finding)[8:])
    out.print(table, markup=False)
