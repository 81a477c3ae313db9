"""A feed in any form through `init` and `replay`, with no hand edit: the HATs and counts of the plain form."""

import json
import tomllib

import pytest

from benchmarks import way_in
from benchmarks.feed_forms import FORMS, UNITS, flat, recorded
from tests.forms import long_but
from tests.runtime.harness import fleet_log
from tests.runtime.test_cli import run
from udp_stream.settings import load

PINGS = recorded(fleet_log(buses=20, hours=0.5, clean=True))

SHORT = "gtfs.json", "pattern.ndjson", "exchanged.ndjson", "geojson.json", "semicolons.csv", "contract_seconds.ndjson"
"""In the suite; the others in the long tests."""


FLAGS = "--set", "hat.slot=15m", "--set", "release.min_plates=2"


def hats(folder, name):
    """What `init` and `replay` make of a file: each HAT with its counts."""
    made = run("init", name, "--out", "city.toml", cwd=folder)
    assert made.returncode == 0, made.stderr
    done = run("replay", name, "--config", "city.toml", "--trial", *FLAGS, cwd=folder)
    assert done.returncode == 0, done.stderr
    found = way_in.hats_of(done.stdout)
    assert len(found) == len(done.stdout.splitlines())
    return found


def test_the_command_that_it_ends_with_is_one_for_a_shell(tmp_path):
    (tmp_path / "my pings.ndjson").write_bytes(FORMS["plain.ndjson"](PINGS))
    made = run("init", "my pings.ndjson", "--out", "my city.toml", cwd=tmp_path)
    assert made.stderr.rstrip().endswith(b"replay 'my pings.ndjson' --config 'my city.toml' --trial")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    (folder / "plain.ndjson").write_bytes(FORMS["plain.ndjson"](PINGS))
    found = hats(folder, "plain.ndjson")
    assert len(found) > 20
    return found


@pytest.mark.parametrize(
    "name", [name if name in SHORT else pytest.param(name, marks=pytest.mark.long) for name in list(FORMS)[1:]]
)
def test_a_feed_in_any_form_gives_the_hats_and_counts_of_the_plain_form(name, plain, tmp_path):
    (tmp_path / name).write_bytes(FORMS[name](PINGS))
    assert hats(tmp_path, name) == plain
    written = load(tmp_path / "city.toml", (), {})
    assert written.speed.unit == UNITS.get(name, "kmh") and written.hat.timezone == "Asia/Kolkata"
    assert written.speed.max_kmh == 65 and written.budget.epsilon == 10


LIVE = way_in.polled_gtfs, way_in.polled_json, way_in.piped


@pytest.mark.parametrize("through", long_but(LIVE[:1], LIVE), ids=lambda way: way.__name__)
def test_a_live_feed_gives_the_hats_and_counts_of_the_plain_form(through, plain, tmp_path):
    """`init` of one poll, `plan` of it, `run` of the address: a real server, whose polls repeat what they had."""
    found = through(tmp_path, PINGS, *FLAGS)
    assert found.hats == plain and all(seconds > 0 for seconds in found.seconds)


def test_what_is_not_known_says_so_and_has_a_public_choice(tmp_path):
    """Too few pairs to tell the unit; a time in UTC; nothing of the speeds is in the file."""
    some = [flat(one, speed=61.4321, timestamp=one["observationDateTime"]) for one in PINGS[:40]]
    (tmp_path / "few.ndjson").write_text("\n".join(map(json.dumps, some)))
    done = run("init", "few.ndjson", cwd=tmp_path)
    text = done.stdout.decode()
    assert "# NOT KNOWN: the recording has too few pairs" in text and b"NOT KNOWN" in done.stderr
    assert b"2024-01-08 09:00 to 2024-01-08 09:00" in done.stderr and b"zone Asia/Kolkata" in done.stderr
    assert "CHECK:" not in text
    assert "61.4" not in text and tomllib.loads(text)["speed"]["max_kmh"] == 65
    assert "e^10 is 22,026" in text and "Never take it from recorded speeds" in text


def test_an_offset_that_is_not_the_places_is_to_be_checked(tmp_path):
    far = [flat(one, timestamp=one["observationDateTime"].replace("+05:30", "+01:00")) for one in PINGS[:400]]
    (tmp_path / "far.ndjson").write_text("\n".join(map(json.dumps, far)))
    text = run("init", "far.ndjson", cwd=tmp_path).stdout.decode()
    assert "# CHECK: the feed's times say +1 h from UTC, and the place has +5.5 h." in text


WRONG = [
    (b"", "found an empty file"),
    (b"hello\nworld\n", "found text, neither JSON nor CSV"),
    (b'{"bus": 1, "lat": 1.5, "lon": 2.5}', "speed: found no such name, wanted a number"),
    (b"[1, 2]", "found JSON that is no object"),
    (b'{"id": 1', "found JSON that is not whole"),
]


@pytest.mark.parametrize(("content", "words"), WRONG, ids=str)
def test_a_sample_that_cannot_serve_is_a_usage_error_that_says_what_was_found(content, words, tmp_path):
    (tmp_path / "feed").write_bytes(content)
    done = run("init", "feed", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, b"") and words in done.stderr.decode()
    assert b"Traceback" not in done.stderr


def test_a_configuration_in_a_folder_that_is_not_there_is_refused_before_anything_is_read(tmp_path):
    done = run("init", "feed.ndjson", "--out", "none/city.toml", cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.endswith(
        b"none/city.toml: cannot be written (No such file or directory)\n"
    )


def test_a_configuration_that_is_there_is_not_overwritten(tmp_path):
    (tmp_path / "feed.ndjson").write_bytes(FORMS["plain.ndjson"](PINGS))
    (tmp_path / "city.toml").write_text("mine")
    done = run("init", "feed.ndjson", "--out", "city.toml", cwd=tmp_path)
    assert done.returncode == 2 and b"is there already" in done.stderr
    assert (tmp_path / "city.toml").read_text() == "mine"


def test_the_fleet_of_the_demo_is_in_the_contracts_form_and_no_mapping_is_read(tmp_path):
    done = run("demo", "--headless", "--slots", "1", "--set", "source.plate=bus", cwd=tmp_path)
    assert done.returncode == 3 and b"source: expected no keys for demo" in done.stderr


def test_plan_reads_a_feed_by_its_mapping_and_says_what_would_help_without_it(tmp_path):
    (tmp_path / "feed.ndjson").write_bytes(FORMS["local.ndjson"](PINGS))
    assert run("init", "feed.ndjson", "--out", "city.toml", cwd=tmp_path).returncode == 0
    planned = run("plan", "feed.ndjson", "--config", "city.toml", cwd=tmp_path)
    assert planned.returncode == 0 and b"start here" in planned.stdout, planned.stderr
    blind = run("plan", "feed.ndjson", cwd=tmp_path)
    assert blind.returncode == 2 and b"found bus_id, " in blind.stderr
