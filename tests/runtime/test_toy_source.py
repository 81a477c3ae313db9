"""A source from outside of the package: a class with three methods, and a row in the table of
schemes."""

import ast
import json
import re
from pathlib import Path
from typing import ClassVar

import pytest

from tests.runtime.harness import fleet_log
from udp_stream.base.errors import UsageError
from udp_stream.cli.main import main
from udp_stream.settings import Settings
from udp_stream.sources.live import ConnectedSource, SourceFailure
from udp_stream.sources.opening import LIVE, live_source

ROOT = Path(__file__).parents[2]
FLAGS = [
    *(
        "--set",
        "hat.slot=15m",
        "--set",
        "release.mean_epsilon=0.4",
        "--set",
        "release.min_plates=4",
    ),
    *("--set", "live.max_age=36500d"),
]


class ToySource(ConnectedSource):
    acknowledged: ClassVar[list[int]] = []

    def __init__(self, name, settings, log_message, _folder):
        super().__init__(name, settings, log_message, first_pause_s=0.01)
        self.waiting = dict(enumerate(fleet_log(buses=25, hours=0.6, clean=True)))
        self.reads = 0

    def open(self):
        self.left = list(self.waiting.items())

    def read(self):
        self.reads += 1
        if self.reads == 3:
            raise SourceFailure("hiccups")
        if not self.waiting:
            self.stop()
        self.stopped.wait(0 if self.left else 0.01)
        some, self.left = self.left[:300], self.left[300:]
        return some

    def acknowledge(self, ids):
        self.acknowledged.extend(ids)
        for number in ids:
            del self.waiting[number]


def test_a_source_from_outside_goes_through_run_to_released_records(
    tmp_path, monkeypatch, registered, capsys
):
    registered(LIVE, "toy", ToySource)
    monkeypatch.chdir(tmp_path)
    assert (
        main(["run", "toy://city", *FLAGS, "--ledger", "city.ledger", "--out", "out.ndjson"]) == 0
    )
    records = [json.loads(line) for line in Path("out.ndjson").read_text().splitlines()]
    assert "released" in {record["status"] for record in records}
    said = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert any("hiccups; tried again" in entry["message"] for entry in said)
    messages = fleet_log(buses=25, hours=0.6, clean=True)
    assert next(entry["pings"] for entry in said if entry.get("event") == "ended") == len(messages)
    assert sorted(ToySource.acknowledged) == list(range(len(messages)))


def test_a_scheme_that_is_not_in_the_table_is_refused_with_those_that_are():
    with pytest.raises(UsageError, match=r"mqtts://; got toy://") as refused:
        live_source("toy://me:secret@city", Settings(), print)
    assert "secret" not in str(refused.value)


def names_of(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield node.module
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.mark.parametrize(
    ("module", "scheme", "key"), [("brokers", "mqtts", "topics"), ("brokers", "amqps", "queue")]
)
def test_the_files_that_a_source_touches_are_those_that_the_architecture_names(module, scheme, key):
    text = (ROOT / "docs/architecture.md").read_text()
    (row,) = re.findall(r"^\| a source \|.*$", text, re.MULTILINE)
    named = {ROOT / "udp_stream" / path for path in re.findall(r"`([a-z]+/[a-z_]+\.py)`", row)}
    assert all(path.is_file() for path in named)
    assert (ROOT / re.search(r"`(tests/[a-z_/]+\.py)`", row)[1]) == Path(__file__)
    own = ROOT / f"udp_stream/sources/{module}.py"
    files = [
        file for package in ("udp_stream", "streams") for file in (ROOT / package).rglob("*.py")
    ]
    touched = {
        file for file in files if {f"udp_stream.sources.{module}", scheme} & {*names_of(file)}
    } - {own}
    settings = (ROOT / "udp_stream/settings").iterdir()
    touched |= {file for file in settings if file.is_file() and f"    {key}: " in file.read_text()}
    assert touched == named
