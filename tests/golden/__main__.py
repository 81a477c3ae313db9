"""Writes the golden outputs anew: `python -m tests.golden`."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.golden.outputs import BUDGETS, CONFIGURATIONS, FILE, QUERIES_FILE, of_embedded, of_queries

if __name__ == "__main__":
    found = {}
    for name in CONFIGURATIONS:
        with TemporaryDirectory() as folder:
            found[name] = of_embedded(Path(folder), Path(folder) / "ledger", name)
            print(name, found[name])
    FILE.write_text(json.dumps(found, indent=1) + "\n")
    answers = {}
    for name in BUDGETS:
        with TemporaryDirectory() as folder:
            answers[name] = of_queries(Path(folder), name)
            print(name, answers[name])
    QUERIES_FILE.write_text(json.dumps(answers, indent=1) + "\n")
