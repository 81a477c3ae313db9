"""What an experiment found, as files: CSV tables, figures, and the verdicts in words."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import astuple, fields
from functools import partial
from pathlib import Path

from udp_stream.cli.outputs import FileRole, named, require_distinct
from udp_stream.cli.plots import SUFFIXES, draw
from udp_stream.errors import UsageError
from udp_stream.experiments.base import Outcome, Table


def make_folder(folder: Path) -> None:
    """Raises UsageError if it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: expected a folder that can be made ({error.strerror})") from error


def write_outcome(outcome: Outcome, name: str, folder: Path, used: Sequence[FileRole] = ()) -> list[Path]:
    """Everything under the experiment's names; returns the files in the order written.

    Raises UsageError, before any is written, if one of them is a file that the run uses otherwise.
    """
    writers: dict[Path, Callable[[Path], object]] = {}
    for table in outcome.tables:
        writers[folder / f"{table.name}.csv"] = partial(write_table, table)
    for figure in outcome.figures:
        writers |= {folder / f"{figure.name}{suffix}": partial(draw, figure) for suffix in SUFFIXES}
    verdicts = "".join(f"{verdict}\n" for verdict in outcome.verdicts)
    writers[folder / f"{name}.txt"] = lambda path: path.write_text(verdicts, encoding="utf-8")
    require_distinct([("--out", path) for path in writers], used)
    for path, write in writers.items():
        with named(path):
            write(path)
    return list(writers)


def write_table(table: Table, path: Path) -> None:
    """CSV with a header; numbers with six digits, so that bytes do not depend on the last bit of a sum."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.name for field in fields(table.rows[0])] if table.rows else [])
        for row in table.rows:
            writer.writerow([f"{value:.6g}" if isinstance(value, float) else value for value in astuple(row)])
