"""docs/glossary.md: one row for each word that records, tables and pages use without saying what it
means."""

import json
import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
ROWS = re.findall(
    r"^\| (?!word |---)([^|]+?) \| [^|]+ \|", (DOCS / "glossary.md").read_text("utf-8"), re.M
)


def test_a_word_has_one_row_and_none_that_a_reader_meets_is_missing():
    assert len(ROWS) == len(set(ROWS)) > 20
    assert {"HAT", "U", "rho", "clip", "served", "policy"} <= set(ROWS)


def test_a_field_that_bounds_a_bias_says_whom_it_is_for():
    schema = json.loads((DOCS / "release.schema.json").read_text("utf-8"))["$defs"]
    for kind, unit in ("Mean", "kmh"), ("Variance", "kmh2"):
        assert "readers" in schema[kind]["properties"][f"bias_bound_{unit}"]["description"]
