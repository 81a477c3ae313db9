"""What an experiment found, as files: CSV tables, figures, and the verdicts in words."""

from __future__ import annotations

import csv
from dataclasses import astuple, fields
from pathlib import Path

from udp_stream.adapters.plots import SUFFIXES, draw
from udp_stream.errors import UsageError
from udp_stream.experiments.base import Outcome, Table


def make_folder(folder: Path) -> None:
    """Raises UsageError if it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: expected a folder that can be made ({error.strerror})") from error


def write_outcome(outcome: Outcome, name: str, folder: Path) -> list[Path]:
    """Everything under the experiment's names; returns the files in the order written."""
    written = []
    for table in outcome.tables:
        written.append(folder / f"{table.name}.csv")
        write_table(table, written[-1])
    for figure in outcome.figures:
        for suffix in SUFFIXES:
            written.append(folder / f"{figure.name}{suffix}")
            draw(figure, written[-1])
    written.append(folder / f"{name}.txt")
    written[-1].write_text("".join(f"{verdict}\n" for verdict in outcome.verdicts), encoding="utf-8")
    return written


def write_table(table: Table, path: Path) -> None:
    """CSV with a header; numbers with six digits, so that bytes do not depend on the last bit of a sum."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.name for field in fields(table.rows[0])] if table.rows else [])
        for row in table.rows:
            writer.writerow([f"{value:.6g}" if isinstance(value, float) else value for value in astuple(row)])
