"""Files and settings that a verb refuses, or reads as far as they go: its status, and the place that it names."""

import gzip
import json
import os

import pytest

from tests.runtime.harness import fleet_log
from tests.verbs import run_verb

LOG = b"\n".join(fleet_log(buses=10, hours=0.3, clean=True)) + b"\n"


@pytest.fixture
def here(tmp_path):
    (tmp_path / "pings.ndjson").write_bytes(LOG)
    return tmp_path


def udp_stream(folder, *arguments, stdin=None):
    done = run_verb(arguments, cwd=folder, stdin=stdin, env={**os.environ, "NO_COLOR": "1"})
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("[hat]\nslot = '1h'\n\n[nosuch]\na = 1\n", "unknown section [nosuch]"),
        ("[hat]\nslto = '1h'\n", "unknown key hat.slto"),
        ("[speed]\n\nmax_kmh = -1\n", "speed.max_kmh:"),
    ],
)
def test_a_fault_of_the_configuration_is_named_in_every_verb(toml, said, here):
    (here / "city.toml").write_text(toml)
    for words in (("replay", "pings.ndjson", "--trial"), ("plan",), ("config",)):
        status, out, err = udp_stream(here, *words, "--config", "city.toml")
        assert status == 3 and said in out + err


@pytest.mark.parametrize("verb", ["verify", "export"])
def test_a_file_of_another_kind_is_no_ledger(verb, here):
    status, _, err = udp_stream(here, "ledger", verb, "--ledger", "pings.ndjson")
    assert status == 2 and "pings.ndjson:" in err and "key" not in err


@pytest.mark.parametrize("name", ["a.xlsx", "a.XLSX", "a.zip", "a.sqlite", "a.tsv.gz"])
def test_a_known_form_that_is_not_written_is_refused(name, here):
    status, _, err = udp_stream(here, "replay", "pings.ndjson", "--ledger", "l", "--out", name)
    assert status == 2 and ".geojson or .parquet" in err
    assert sorted(path.name for path in here.iterdir()) == ["pings.ndjson"]


@pytest.mark.parametrize("verb", [("plan",), ("replay", "--dry-run")])
def test_of_a_damaged_file_what_came_before_is_planned_and_the_damage_said(verb, here):
    packed = gzip.compress(LOG)
    (here / "cut.ndjson.gz").write_bytes(packed[: len(packed) // 2])
    status, out, err = udp_stream(here, verb[0], "cut.ndjson.gz", *verb[1:], "--set", "hat.slot=15m")
    assert status == 0 and "warning: cut.ndjson.gz:" in err
    assert "of 10 plates" in out


def test_a_document_that_ends_too_early_is_released_as_far_as_it_goes_with_status_2(here):
    lines = LOG.splitlines()
    text = b'{"results": [' + b",\n".join(lines)
    (here / "cut.json").write_bytes(text)
    words = ("--trial", "--set", "hat.slot=15m", "--set", "release.min_plates=2")
    status, out, err = udp_stream(here, "replay", "cut.json", *words)
    assert status == 2 and "cut.json:" in err
    (here / "before.ndjson").write_bytes(b"\n".join(lines))
    _, expected, _ = udp_stream(here, "replay", "before.ndjson", *words)
    hats = [[json.loads(line)["counts"] for line in text.splitlines()] for text in (out, expected)]
    assert hats[0] and hats[0] == hats[1][: len(hats[0])]  # slots that were open stay so, as with damaged gzip
