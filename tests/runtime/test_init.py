"""A feed in any form through `init` and `replay`, with no hand edit: the HATs and counts of the
plain form."""

import json
from datetime import UTC, datetime

import pytest
from google.transit.gtfs_realtime_pb2 import FeedMessage

from benchmarks.feed_forms import FORMS, UNITS, recorded
from tests import way_in
from tests.forms import long_but, soaked
from tests.gtfs import START_S, snapshot, vehicle
from tests.runtime.harness import FEEDS, fleet_log
from tests.runtime.test_cli import run
from udp_stream.cli.commands.init import find_feed
from udp_stream.settings import load

PINGS = recorded(fleet_log(buses=20, hours=0.5, clean=True))

SHORT = "gtfs.json", "semicolons.csv", "siri.xml", "kmh.bin"
"""`tests/unit/test_feed_files.py` has many more forms, without the whole program."""

OTHERS = [name for name in [*FORMS][1:] if name not in SHORT]
LONG, SOAKED = [*SHORT, *OTHERS[::2]], OTHERS[1::2]

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


@pytest.mark.parametrize("name", [*long_but(SHORT, LONG), *soaked(SOAKED)])
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


@pytest.mark.parametrize("verb", ["init", "plan", "doctor"])
@pytest.mark.parametrize("name", ["gone.csv", "gone.ndjson", "gone.pb", "."])
def test_a_file_that_cannot_be_read_is_a_usage_error(verb, name, tmp_path):
    done = run(verb, name, cwd=tmp_path)
    assert done.returncode == 2 and b"cannot be read" in done.stderr + done.stdout


def test_a_configuration_that_is_there_is_not_overwritten(tmp_path):
    (tmp_path / "feed.ndjson").write_bytes(FORMS["plain.ndjson"](PINGS))
    (tmp_path / "city.toml").write_text("mine")
    done = run("init", "feed.ndjson", "--out", "city.toml", cwd=tmp_path)
    assert done.returncode == 2 and b"is there already" in done.stderr
    assert (tmp_path / "city.toml").read_text() == "mine"


def halves(folder, name="semicolons.csv"):
    whole, names = FORMS[name](PINGS), []
    (folder / f"whole-{name}").write_bytes(whole)
    for at, some in enumerate((PINGS[: len(PINGS) // 2], PINGS[len(PINGS) // 2 :])):
        (folder / f"{at}-{name}").write_bytes(FORMS[name](some))
        names.append(str(folder / f"{at}-{name}"))
    return str(folder / f"whole-{name}"), names


def test_several_files_are_one_recording_to_init(tmp_path):
    whole, both = halves(tmp_path)
    one, two, first = find_feed([whole]), find_feed(both), find_feed(both[:1])
    assert two == one and first.pings < one.pings and first.hours != one.hours
    done = run("init", *both, "--out", "city.toml", cwd=tmp_path)
    assert (
        done.returncode == 0
        and f"udp-stream replay {both[0]} {both[1]} --config city.toml" in done.stderr.decode()
    )
    assert "0-semicolons.csv and 1 more" in (tmp_path / "city.toml").read_text()


def poll(at):
    time_s = START_S + 60 * at
    return snapshot(
        *(
            vehicle(f"GJ05ZZ{bus:04}", time_s=time_s, lon=72.8 + bus / 100 + at / 1000, lat=21.1)
            for bus in range(10)
        ),
        header_s=time_s,
    )


def test_polls_of_gtfs_realtime_are_counted_together(tmp_path):
    names = []
    for at in (2, 0, 1):
        (tmp_path / f"{at}.pb").write_bytes(poll(at))
        names.append(f"{at}.pb")
    done = run("init", *names, cwd=tmp_path)
    assert b"30 pings read" in done.stderr, done.stderr
    assert b"30 pings of 10 plates" in done.stdout
    done = run("plan", *names, "--set", "speed.unit=mps", cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.startswith(b"30 pings of 10 plates"), done.stderr


@pytest.mark.parametrize("verb", ["init", "plan", "doctor"])
@pytest.mark.parametrize(
    "address", ["https://example.org/v.pb?token=secret", "amqps://me:secret@example.org/"]
)
def test_an_address_is_answered_with_what_to_do_and_not_shown(verb, address, tmp_path):
    done = run(verb, address, cwd=tmp_path)
    said = done.stderr.decode()
    assert (
        done.returncode == 2
        and "`run` reads the address" in said
        and "secret" not in said
        and "example" not in said
    )
    assert done.stdout == b""


DELHI = FEEDS / "gtfsrt" / "delhi-otd-2025-09-11.pb"


def in_the_contract_s_form(message):
    for told in (one.vehicle for one in message.entity if one.HasField("vehicle")):
        at, plate = told.position, told.vehicle.license_plate or told.vehicle.id
        if at.HasField("speed") and told.timestamp:
            when = datetime.fromtimestamp(told.timestamp, UTC).isoformat()
            where = {"type": "Point", "coordinates": [at.longitude, at.latitude]}
            ping = {
                "license_plate": plate,
                "observationDateTime": when,
                "location": where,
                "speed": at.speed,
            }
            yield json.dumps(ping)


@pytest.mark.long
@pytest.mark.skipif(not DELHI.exists(), reason="the recorded feeds are not at hand")
def test_delhi_s_poll_gives_the_hats_of_the_same_pings_in_the_contract_s_form(tmp_path):
    found = way_in.recording(tmp_path, DELHI.name, DELHI.read_bytes())
    lines = in_the_contract_s_form(FeedMessage.FromString(DELHI.read_bytes()))
    (tmp_path / "plain.ndjson").write_text("\n".join(lines))
    plain = way_in.hats_of(
        way_in.verb(tmp_path, "replay", "plain.ndjson", "--config", "city.toml", "--trial")
    )
    assert found == plain and len(plain) > 200
