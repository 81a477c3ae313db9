"""docs/glossary.md: a row, in the table of its area, for each word that a newcomer meets without
being told what it means."""

import json
import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "glossary.md").read_text("utf-8")
ROWS = re.findall(r"^\| (?!word |---)([^|]+?) \| [^|]+ \|", TEXT, re.M)
AREAS = re.findall(r"^## (.+)$", TEXT, re.M)


def test_a_word_has_one_row_and_none_that_a_reader_meets_is_missing():
    assert 110 <= len(ROWS) == len(set(ROWS)) <= 150
    assert {"HAT", "U", "rho", "clip", "served", "policy", "high-water mark", "shard"} <= set(ROWS)


def test_every_area_has_its_table():
    areas = {"Feed", "Time", "Promise", "Statistics", "Forecast", "Add-remove", "Ledger", "Kafka"}
    assert areas | {"Queries", "Operation"} == set(AREAS)
    assert all(
        len(re.findall(r"^\| (?!word |---)", part, re.M)) >= 5 for part in TEXT.split("\n## ")[1:]
    )


def test_a_field_that_bounds_a_bias_says_whom_it_is_for():
    schema = json.loads((DOCS / "release.schema.json").read_text("utf-8"))["$defs"]
    for kind, unit in ("Mean", "kmh"), ("Variance", "kmh2"):
        assert "readers" in schema[kind]["properties"][f"bias_bound_{unit}"]["description"]
