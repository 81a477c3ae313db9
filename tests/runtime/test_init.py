"""A feed in any form through `init` and `replay`, with no hand edit: the HATs and counts of the plain form."""

import csv
import gzip
import io
import json
import tomllib
from datetime import datetime

import pytest

from tests.runtime.harness import fleet_log
from tests.runtime.test_cli import run
from udp_stream.adapters.settings import load
from udp_stream.release import record as release

PINGS = [json.loads(line) for line in fleet_log(buses=20, hours=0.5, clean=True)]
MPH = 1.609344


def moment(ping):
    return datetime.fromisoformat(ping["observationDateTime"])


def local(ping, pattern):
    return moment(ping).strftime(pattern)


def coordinates(ping):
    return ping["location"]["coordinates"]


def lines(make):
    return "\n".join(json.dumps(make(one)) for one in PINGS).encode()


def table(delimiter, header, row, comma=False):
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter)
    writer.writerow(header)
    for one in PINGS:
        cells = [str(cell) for cell in row(one)]
        writer.writerow([cell.replace(".", ",") if comma and at > 1 else cell for at, cell in enumerate(cells)])
    return out.getvalue().encode()


def nested(ping):
    lon, lat = coordinates(ping)
    return {"id": ping["trip_id"], "vehicle": {
        "trip": {"tripId": ping["trip_id"]}, "vehicle": {"id": ping["license_plate"]},
        "timestamp": str(int(moment(ping).timestamp())),
        "position": {"latitude": lat, "longitude": lon, "speed": ping["speed"] / 3.6}}}  # fmt: skip


def flat(ping, **changes):
    lon, lat = coordinates(ping)
    made = {"bus_id": ping["license_plate"], "timestamp": int(moment(ping).timestamp()), "lon": lon, "lat": lat,
            "speed": ping["speed"], "route": ping["route_id"]} | changes  # fmt: skip
    return {name: value for name, value in made.items() if value is not ...}


def feature(ping):
    return {"type": "Feature", "geometry": ping["location"], "properties": {
        "plate": ping["license_plate"], "time": ping["observationDateTime"], "speed": ping["speed"]}}  # fmt: skip


FLAT = ["vehicle", "when_date", "speed", "latitude", "longitude"]

FORMS = {
    "plain.ndjson": lambda: lines(lambda one: one),
    "array.json": lambda: json.dumps(PINGS, indent=1).encode(),
    "envelope.json.gz": lambda: gzip.compress(json.dumps({"title": "x", "results": PINGS}).encode()),
    "strings.ndjson": lambda: lines(lambda one: json.dumps(one)),
    "gtfs.json": lambda: json.dumps({"header": {"timestamp": 1}, "entity": [nested(one) for one in PINGS]}).encode(),
    "snapshots.ndjson": lambda: b"\n".join(
        json.dumps({"data": {"vehicles": [flat(one) for one in PINGS[at : at + 50]]}}).encode()
        for at in range(0, len(PINGS), 50)),
    "milliseconds.ndjson": lambda: lines(lambda one: flat(one, timestamp=int(moment(one).timestamp()) * 1000)),
    "microseconds.ndjson": lambda: lines(lambda one: flat(one, timestamp=int(moment(one).timestamp()) * 10**6)),
    "local.ndjson": lambda: lines(lambda one: flat(one, timestamp=local(one, "%Y-%m-%d %H:%M:%S"))),
    "pattern.ndjson": lambda: lines(lambda one: flat(one, timestamp=local(one, "%d/%m/%Y %I:%M:%S %p"))),
    "integers.ndjson": lambda: lines(lambda one: flat(one, bus_id=int(one["license_plate"][-4:]))),
    "texts.ndjson": lambda: lines(lambda one: {
        key: str(value).replace(".", ",") for key, value in flat(one).items()}),
    "mph.ndjson": lambda: lines(lambda one: flat(one, speed=one["speed"] / MPH)),
    "exchanged.ndjson": lambda: lines(lambda one: flat(one, lon=coordinates(one)[1], lat=coordinates(one)[0])),
    "geojson.json": lambda: json.dumps(
        {"type": "FeatureCollection", "features": [feature(one) for one in PINGS]}).encode(),
    "semicolons.csv": lambda: table(
        ";", FLAT, lambda one: [one["license_plate"], local(one, "%d.%m.%Y %H:%M:%S"), one["speed"],
                                *coordinates(one)[::-1]], comma=True),
    "tabs.tsv": lambda: table(
        "\t", FLAT, lambda one: [one["license_plate"], int(moment(one).timestamp()), one["speed"],
                                 *coordinates(one)[::-1]]),
    "bars.txt": lambda: table(
        "|", ["license_plate", "observationDateTime", "speed", "location.coordinates"],
        lambda one: [one["license_plate"], one["observationDateTime"], one["speed"], json.dumps(coordinates(one))]),
}  # fmt: skip

SHORT = "gtfs.json", "pattern.ndjson", "exchanged.ndjson", "geojson.json", "semicolons.csv"
"""In the suite; the others in the long tests."""

UNITS = {"gtfs.json": "mps", "mph.ndjson": "mph"}


def hats(folder, name):
    """What `init` and `replay` make of a file: each HAT with its counts."""
    made = run("init", name, "--out", "city.toml", cwd=folder)
    assert made.returncode == 0, made.stderr
    flags = ("--set", "hat.slot=15m", "--set", "release.min_plates=2")
    done = run("replay", name, "--config", "city.toml", "--trial", *flags, cwd=folder)
    assert done.returncode == 0, done.stderr
    records = [release.decode(line) for line in done.stdout.splitlines()]
    return {(one.hat.cell, one.hat.slot_start, one.counts.plates, one.counts.samples) for one in records}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    (folder / "plain.ndjson").write_bytes(FORMS["plain.ndjson"]())
    found = hats(folder, "plain.ndjson")
    assert len(found) > 20
    return found


@pytest.mark.parametrize(
    "name", [name if name in SHORT else pytest.param(name, marks=pytest.mark.long) for name in list(FORMS)[1:]]
)
def test_a_feed_in_any_form_gives_the_hats_and_counts_of_the_plain_form(name, plain, tmp_path):
    (tmp_path / name).write_bytes(FORMS[name]())
    assert hats(tmp_path, name) == plain
    written = load(tmp_path / "city.toml", (), {})
    assert written.speed.unit == UNITS.get(name, "kmh") and written.hat.timezone == "Asia/Kolkata"
    assert written.speed.max_kmh == 65 and written.budget.epsilon == 10


def test_what_is_not_known_says_so_and_has_a_public_choice(tmp_path):
    """Too few pairs to tell the unit; a time in UTC; nothing of the speeds is in the file."""
    some = [flat(one, speed=61.4321, timestamp=one["observationDateTime"]) for one in PINGS[:40]]
    (tmp_path / "few.ndjson").write_text("\n".join(map(json.dumps, some)))
    done = run("init", "few.ndjson", cwd=tmp_path)
    text = done.stdout.decode()
    assert "# NOT KNOWN: the recording has too few pairs" in text and b"NOT KNOWN" in done.stderr
    assert "61.4" not in text and tomllib.loads(text)["speed"]["max_kmh"] == 65
    assert "e^10 is 22,026" in text and "Never take it from recorded speeds" in text


def test_an_offset_that_is_not_the_places_is_to_be_checked(tmp_path):
    far = [flat(one, timestamp=one["observationDateTime"].replace("+05:30", "+01:00")) for one in PINGS[:400]]
    (tmp_path / "far.ndjson").write_text("\n".join(map(json.dumps, far)))
    text = run("init", "far.ndjson", cwd=tmp_path).stdout.decode()
    assert "# CHECK: this is the zone of the place, +05:30 then; the feed's times say +01:00." in text


WRONG = [
    (b"", "expected a sample of pings, and it is empty"),
    (b"hello\nworld\n", "expected JSON or CSV with a header, and it is neither"),
    (b'{"bus": 1, "lat": 1.5, "lon": 2.5}', "found no field for time, speed among bus, lat, lon"),
    (b"[1, 2]", "found no object"),
    (b'{"id": 1', "found no object"),
]


@pytest.mark.parametrize(("content", "words"), WRONG, ids=str)
def test_a_sample_that_cannot_serve_is_a_usage_error_that_says_what_was_found(content, words, tmp_path):
    (tmp_path / "feed").write_bytes(content)
    done = run("init", "feed", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, b"") and words in done.stderr.decode()
    assert b"Traceback" not in done.stderr


def test_a_configuration_that_is_there_is_not_overwritten(tmp_path):
    (tmp_path / "feed.ndjson").write_bytes(FORMS["plain.ndjson"]())
    (tmp_path / "city.toml").write_text("mine")
    done = run("init", "feed.ndjson", "--out", "city.toml", cwd=tmp_path)
    assert done.returncode == 2 and b"is there already" in done.stderr
    assert (tmp_path / "city.toml").read_text() == "mine"


def test_the_fleet_of_the_demo_is_in_the_contracts_form_and_no_mapping_is_read(tmp_path):
    done = run("demo", "--headless", "--slots", "1", "--set", "source.plate=bus", cwd=tmp_path)
    assert done.returncode == 3 and b"source: expected no keys for demo" in done.stderr


def test_plan_reads_a_feed_by_its_mapping_and_says_what_would_help_without_it(tmp_path):
    (tmp_path / "feed.ndjson").write_bytes(FORMS["local.ndjson"]())
    assert run("init", "feed.ndjson", "--out", "city.toml", cwd=tmp_path).returncode == 0
    planned = run("plan", "feed.ndjson", "--config", "city.toml", cwd=tmp_path)
    assert planned.returncode == 0 and b"start here" in planned.stdout, planned.stderr
    blind = run("plan", "feed.ndjson", cwd=tmp_path)
    assert blind.returncode == 2 and b'found bus_id: [source] plate = "bus_id"' in blind.stderr
