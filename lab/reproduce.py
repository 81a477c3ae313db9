"""`reproduce`: the papers' figures and tables, and their files.

Nothing is charged or released. Files are CSV tables, findings in words, and figures by matplotlib
(the extra `[plots]`), in Okabe and Ito's colours, which colour-blind readers can tell apart. A
figure always has the same bytes.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib.util import find_spec
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from lab.data import DataSet, HatSamples, Setup, Trajectories
from lab.experiments import EXPERIMENTS, NEED_POSITIONS, ON_POSITIONS
from lab.papers import read_papers_data, sorted_out
from lab.results import Curve, Experiment, Figure, Finding, Outcome, Row
from udp_stream.base.errors import PackageMissing, UsageError
from udp_stream.base.files import named
from udp_stream.cli.outputs import FileRole, require_distinct, used_files
from udp_stream.cli.progress import ReadingProgress, console, printer, stepwise
from udp_stream.export_formats import as_text, csv_line
from udp_stream.mechanisms.base import SamplesPerPlate
from udp_stream.pings.decode import PingDecoder
from udp_stream.planning.suppression import Occupancy
from udp_stream.queries.plane import Plane
from udp_stream.settings import Settings, load
from udp_stream.sources.files import FileSource, OnProgress, require_readable
from udp_stream.testing import seeded_bits
from udp_stream.windows.slots import slots_of
from udp_stream.windows.tables import SlotCounts

LAB = Path(__file__).parent


@cache
def claims() -> dict[str, dict[str, str]]:
    """Claims of the papers: texts, by name."""
    return tomllib.loads((LAB / "claims.toml").read_text(encoding="utf-8"))


def sentence(finding: Finding) -> str:
    """A claim, whether our numbers agree, what they are, and why they differ where they do."""
    claim = {
        name: text.format_map(finding.values) for name, text in claims()[finding.claim].items()
    }
    why = f" Why: {claim['why']}" if claim.get("why") and not finding.agrees else ""
    head = "AGREES " if finding.agrees else "DIFFERS"
    return f"{head} {claim['statement']} ({claim['source']}). Seen: {claim['seen']}.{why}"


def write_outcome(
    outcome: Outcome, name: str, folder: Path, used: Sequence[FileRole] = ()
) -> list[Path]:
    """All files of an outcome, in the order written. UsageError, before that, for a file that the
    run uses."""
    writers = dict[Path, Callable[[Path], object]]()
    for table, rows in outcome.tables.items():
        writers[folder / f"{table}.csv"] = partial(write_table, rows)
    for figure in outcome.figures:
        writers |= {
            folder / f"{slug(figure.name)}{suffix}": partial(draw, figure) for suffix in SUFFIXES
        }
    sentences = "".join(f"{sentence(finding)}\n" for finding in outcome.findings)
    writers[folder / f"{name}.txt"] = lambda path: path.write_text(sentences, encoding="utf-8")
    require_distinct([("--out", path) for path in writers], used)
    for path, write in writers.items():
        with named(path):
            write(path)
    return list(writers)


def write_table(rows: Sequence[Row], path: Path) -> None:
    """Write a CSV with a header; numbers with six digits, so that bytes do not depend on the last
    bit of a sum."""
    with path.open("wb") as file:
        file.write(csv_line(list(vars(rows[0]))))
        for row in rows:
            cells = [
                f"{value:.6g}" if isinstance(value, float) else as_text(value)
                for value in vars(row).values()
            ]
            file.write(csv_line(cells))


def slug(name: str) -> str:
    """A name that can be a file's."""
    return "-".join("".join(c if c.isalnum() else " " for c in name).split())


COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442", "#555555")
MARKERS = "osD^vPX*"
SUFFIXES = (".png", ".svg")
FIXED_STYLES = {
    "array-averaging": 0,
    "levy": 1,
    "fixed-quantile": 2,
    "eps-quantile": 3,
    "baseline": 4,
    "optimal": 5,
}


def draw(figure: Figure, path: Path) -> None:
    """Write a figure, as PNG or SVG by the file's name."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Canvas
    from matplotlib.ticker import NullFormatter, StrMethodFormatter

    with rc_context(fname=LAB / "figures.mplstyle"):
        canvas = Canvas(figsize=(max(5.2, 4.4 * len(figure.panels)), 5.2))
        for axes, panel in zip(
            canvas.subplots(1, len(figure.panels), squeeze=False)[0], figure.panels, strict=True
        ):
            styles = dict[str, int]()
            for curve in panel.curves:
                axes.plot(curve.x, curve.y, label=curve.name, **_looks(curve, styles))
            axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
            for name in panel.log:
                axes.set(**{f"{name}scale": "log"})
                getattr(axes, f"{name}axis").set_major_formatter("{x:g}")
            if "y" in panel.log:
                low, high = axes.get_ylim()
                # Labels between powers of ten only where the axis spans less than about two of
                # them.
                axes.yaxis.set_minor_formatter(
                    StrMethodFormatter("{x:g}") if high < 15 * low else NullFormatter()
                )
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
        canvas.suptitle(figure.title)
        canvas.savefig(
            path, metadata={"Date": None} if path.suffix == ".svg" else {"Software": None}
        )


def _looks(curve: Curve, styles: dict[str, int]) -> dict[str, Any]:
    if curve.kind == "guess":
        return {"color": "black", "linestyle": (0, (6, 3)), "linewidth": 1.6}
    if curve.kind == "marks":
        return {"color": "black", "linestyle": "none", "marker": "*", "markersize": 9}
    base, _, variant = curve.name.partition(",")
    style = styles.setdefault(base, FIXED_STYLES.get(base, len(styles))) % len(COLOURS)
    line = {"linestyle": "--", "markerfacecolor": "white"} if variant else {}
    return {
        "color": COLOURS[style],
        "marker": MARKERS[style],
        "markevery": max(1, len(curve.x) // 20),
        **line,
    }


def read_feed(
    path: str, name: str, settings: Settings, progress: OnProgress | None = None
) -> DataSet:
    """All HATs of a file, also of late pings, their occupancy, and where plates were. UsageError
    without a ping."""
    messages = list[bytes]()
    source = FileSource(path, progress, settings.form)
    for some in source.messages():
        messages += some
    pings, _ = PingDecoder(settings.ping_rules, source.format).decode(messages)
    if not len(pings):
        raise UsageError(f"{path}: expected pings, and none was accepted")
    # By name, so that runs are alike.
    names, of_plate = np.unique(np.asarray(pings.plates), return_inverse=True)
    plates = of_plate[pings.plate].astype(np.int64)
    hashes = [b"%08d" % i for i in range(names.size)]
    cells = settings.grid.cells_of(pings.lat, pings.lon)
    rules = settings.movement_rules
    moving = (pings.lat, pings.lon, rules, settings.grid)
    tables = list(
        slots_of(hashes, plates, pings.time_ms, cells, pings.speed, settings.calendar.slots, moving)
    )
    hats = tuple(
        HatSamples(SamplesPerPlate(counts.count[rows]), values.samples_of(rows))
        for counts, values in tables
        for rows in counts.each_rows()
    )
    busiest = max((counts for counts, _ in tables), key=lambda counts: int(counts.count.sum()))
    plane = Plane(round(float(np.median(pings.lat)), 2), round(float(np.median(pings.lon)), 2))
    positions = Trajectories(name, plates, pings.time_ms, plane.quanta(pings.lat, pings.lon))
    return DataSet(
        name, True, settings.policy.range, hats, _occupancy([busiest]), positions=positions,
        whole=_occupancy([counts for counts, _ in tables]),
    )  # fmt: skip


def _occupancy(slots: Sequence[SlotCounts]) -> Occupancy:
    """Occupancy of these slots together. A slot numbers its own plates; their names are their
    numbers in the feed."""
    plates = np.concatenate(
        [np.array(slot.plates, "S8").astype(np.int64)[slot.plate] for slot in slots]
    )
    sizes = np.concatenate([np.diff(slot.hat_rows) for slot in slots])
    count = np.concatenate([slot.count for slot in slots])
    return Occupancy(np.append(0, np.cumsum(sizes)), plates, count, int(plates.max()) + 1)


HATS = ("hat.resolution=7", "hat.slot=1h")
SEED = 1
"""The papers' HATs, unless `--set` or a feed's own keys say otherwise. The seed of drawn data and
noise."""


def reproduce(arguments: argparse.Namespace, settings: Settings) -> None:
    """Run what is asked for; figures, tables and findings to the folder, the findings to stdout."""
    if find_spec("matplotlib") is None:
        raise PackageMissing("matplotlib to plot with", "plots")
    known = EXPERIMENTS | ON_POSITIONS
    names = arguments.names or list(EXPERIMENTS)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"expected one of {', '.join(known)}, got {unknown[0]!r}")
    has_positions = arguments.data or arguments.theirs or arguments.full
    asks = [name for name in names if name in NEED_POSITIONS]
    if asks and not has_positions:
        raise UsageError(
            f"{asks[0]} is about recorded positions: name a feed with --data, or T-Drive with --theirs"
        )
    # FILE[,section.key=value...]
    feeds = [re.split(r",(?=[a-z_]+\.[a-z_]+=)", text) for text in arguments.data]
    files = [path for path, *_ in feeds]
    require_readable(files)
    theirs = [
        read_papers_data(Path(path), np.random.default_rng(SEED)) for path in arguments.theirs
    ]
    moving, still, images = sorted_out(theirs)
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{arguments.out}: expected a folder that can be made ({error.strerror})"
        ) from error
    data = list[DataSet]()
    with ReadingProgress(files) as progress:
        for (path, *keys), name in zip(feeds, names_of(files), strict=True):
            own = load(arguments.config, [*HATS, *arguments.set, *keys])
            data.append(read_feed(path, name, own, progress.of(path)))
    setup = Setup(
        data=tuple(data),
        repetitions=arguments.repetitions,
        min_plates=settings.release.min_plates,
        seed=SEED,
        bits=lambda name: seeded_bits(
            f"reproduce/{SEED}/{name}"
        ),  # reproducible, and therefore not private
        moving=moving,
        still=still,
        images=images,
        full=arguments.full,
    )
    used = used_files(arguments, settings, [*files, *arguments.theirs])
    for name in names:
        outcome = known[name].run(setup, partial(stepwise, name))
        written = write_outcome(outcome, name, arguments.out, used)
        _tell(known[name], outcome)
        console().print(f"{len(written)} files: {', '.join(map(str, written))}", highlight=False)
    if data:
        console().print(
            "These are true means of the feeds and errors against them: not private, for your eyes."
        )


def names_of(files: Sequence[str]) -> list[str]:
    """Names of feeds by their files: the second of a name gets a number behind it.

    >>> names_of(["monday/day.csv.gz", "tuesday/day.csv", "day-2.csv"])
    ['day', 'day-2', 'day-2-2']
    """
    found = list[str]()
    for file in files:
        stem = Path(file).name.removesuffix(".gz").rpartition(".")[0] or file
        numbers = (f"{stem}-{number}" for number in count(2))
        found.append(next(name for name in chain([stem], numbers) if name not in found))
    return found


def _tell(experiment: Experiment, outcome: Outcome) -> None:
    agreeing = sum(finding.agrees for finding in outcome.findings)
    out = printer(width=120)
    out.print(
        f"{experiment.name}: {experiment.about}. {agreeing} of {len(outcome.findings)} statements agree."
    )
    table = Table(box=None, show_header=False, pad_edge=False)
    for finding in outcome.findings:
        table.add_row("agrees" if finding.agrees else "differs", sentence(finding)[8:])
    out.print(table, markup=False)
