"""A feed in any form through `init` and `replay`, with no hand edit: the HATs and counts of the plain form."""

import pytest

from benchmarks.feed_forms import FORMS, UNITS, recorded
from tests import way_in
from tests.forms import long_but
from tests.runtime.harness import fleet_log
from tests.runtime.test_cli import run
from udp_stream.settings import load

PINGS = recorded(fleet_log(buses=20, hours=0.5, clean=True))

SHORT = "gtfs.json", "pattern.ndjson", "exchanged.ndjson", "geojson.json", "semicolons.csv", "contract_seconds.ndjson"
SHORT += "topics.txt", "nextbus.ndjson", "siri.xml", "kmh.bin"


FLAGS = "--set", "hat.slot=15m", "--set", "release.min_plates=2"


def hats(folder, name):
    way_in.verb(folder, "init", name, "--out", "city.toml")
    records = way_in.verb(folder, "replay", name, "--config", "city.toml", "--trial", *FLAGS)
    found = way_in.hats_of(records)
    assert len(found) == len(records.splitlines())
    return found


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    (folder / "plain.ndjson").write_bytes(FORMS["plain.ndjson"](PINGS))
    found = hats(folder, "plain.ndjson")
    assert len(found) > 20
    return found


@pytest.mark.parametrize("name", long_but(SHORT, [*FORMS][1:]))
def test_a_feed_in_any_form_gives_the_hats_and_counts_of_the_plain_form(name, plain, tmp_path):
    (tmp_path / name).write_bytes(FORMS[name](PINGS))
    assert hats(tmp_path, name) == plain
    written = load(tmp_path / "city.toml", (), {})
    assert written.speed.unit == UNITS.get(name, "kmh") and written.hat.timezone == "Asia/Kolkata"
    assert written.speed.max_kmh == 65 and written.budget.epsilon == 10


LIVE = way_in.polled_gtfs, way_in.polled_json, way_in.piped


@pytest.mark.parametrize("through", long_but(LIVE[:1], LIVE), ids=lambda way: way.__name__)
def test_a_live_feed_gives_the_hats_and_counts_of_the_plain_form(through, plain, tmp_path):
    assert through(tmp_path, PINGS, *FLAGS) == plain


WRONG = [
    (b"", "found an empty file"),
    (b"hello\nworld\n", "found text, neither JSON nor CSV"),
    (b'{"bus": 1, "lat": 1.5, "lon": 2.5}', "time: found no such name, wanted a date"),
    (b"[1, 2]", "found JSON that is no object"),
    (b'{"id": 1', "found JSON that is not whole"),
]


@pytest.mark.parametrize(("content", "words"), WRONG, ids=str)
def test_a_sample_that_cannot_serve_is_a_usage_error_that_says_what_was_found(content, words, tmp_path):
    (tmp_path / "feed").write_bytes(content)
    done = run("init", "feed", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, b"") and words in done.stderr.decode()
    assert b"Traceback" not in done.stderr


def test_a_configuration_that_is_there_is_not_overwritten(tmp_path):
    (tmp_path / "feed.ndjson").write_bytes(FORMS["plain.ndjson"](PINGS))
    (tmp_path / "city.toml").write_text("mine")
    done = run("init", "feed.ndjson", "--out", "city.toml", cwd=tmp_path)
    assert done.returncode == 2 and b"is there already" in done.stderr
    assert (tmp_path / "city.toml").read_text() == "mine"
