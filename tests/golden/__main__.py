"""Writes the golden outputs anew: `python -m tests.golden`."""

from pathlib import Path
from tempfile import TemporaryDirectory

from tests.golden.outputs import (
    BUDGETS,
    CONFIGURATIONS,
    OUTPUTS,
    QUERIES,
    WHOLE,
    of_embedded,
    of_queries,
    told,
    told_results,
    whole,
    write,
)  # fmt: skip

if __name__ == "__main__":
    runs, answers = {}, {}
    for name in CONFIGURATIONS:
        with TemporaryDirectory() as folder:
            runs[name] = of_embedded(Path(folder), Path(folder) / "ledger", name)
    for name in BUDGETS:
        with TemporaryDirectory() as folder:
            answers[name] = of_queries(Path(folder), name)
    write(OUTPUTS, {name: told(run) for name, run in runs.items()})
    write(QUERIES, {name: told_results(run) for name, run in answers.items()})
    write(WHOLE, whole(runs, answers))
