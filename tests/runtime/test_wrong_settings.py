"""A feed that is not read as it is set: every verb says so, with the likely mend, and ends with a status that tells."""

import json
import os

import pytest

from tests.gtfs import snapshot, vehicle
from tests.runtime.harness import fleet_log
from tests.verbs import run_verb


def udp_stream(folder, *arguments, stdin=None):
    return run_verb(arguments, cwd=folder, stdin=stdin, env={**os.environ, "NO_COLOR": "1"})


def spelled(count, **changed):
    for message in fleet_log(buses=10, hours=0.3, clean=True)[:count]:
        ping = json.loads(message)
        yield json.dumps(ping | {name: change(ping) for name, change in changed.items()}).encode()


def epochs(count):
    return b"\n".join(spelled(count, observationDateTime=lambda _: 1_706_159_153)) + b"\n"


MEND = "found epoch_s, wanted source.time_format"


@pytest.mark.parametrize("verb", [("run", "--ledger", "city.ledger"), ("feed", "--bootstrap", "127.0.0.1:1")])
@pytest.mark.parametrize("content", ["epochs", "binary"])
def test_a_file_that_is_not_read_is_refused_before_anything_is_made_or_sent(tmp_path, verb, content):
    data = {"epochs": epochs(300), "binary": bytes(range(256)) * 40}[content]
    (tmp_path / "pings").write_bytes(data)
    verb, *flags = verb
    done = udp_stream(tmp_path, verb, "pings", *flags)
    assert done.returncode == 2 and b"of its beginning refused" in done.stderr
    if content == "epochs":
        assert MEND in done.stderr.decode().replace(chr(92), "")
    assert [path.name for path in tmp_path.iterdir()] == ["pings"]


def test_a_pipe_that_is_not_read_ends_a_run_with_status_2_and_the_mend(tmp_path):
    done = udp_stream(tmp_path, "run", "-", "--ledger", "l", stdin=epochs(300))
    said = [json.loads(line) for line in done.stderr.splitlines() if line.startswith(b"{")]
    refused = [entry for entry in said if entry["event"] == "refused"]
    assert len(refused) == 1 and MEND in refused[0]["message"] and refused[0]["level"] == "warning"
    assert done.returncode == 2 and b"no ping was accepted" in done.stderr.splitlines()[-1]
    plates = {json.loads(line)["license_plate"].encode() for line in epochs(300).splitlines()}
    assert not any(plate in done.stderr for plate in plates)


BOX = ("--set", "pings.box=[72.0, 20.5, 74.0, 22.5]", "--set", "speed.unit=mps")
VERBS = [("replay", "--trial", "--out", "out"), ("replay", "--dry-run"), ("plan",), ("run", "--ledger", "city.ledger")]


def swapped(count):
    def exchange(ping):
        return {"type": "Point", "coordinates": ping["location"]["coordinates"][::-1]}

    return b"\n".join(spelled(count, location=exchange)) + b"\n"


@pytest.mark.parametrize("verb", VERBS)
def test_swapped_coordinates_are_named_with_the_keys_that_read_them(tmp_path, verb):
    (tmp_path / "pings.ndjson").write_bytes(swapped(300))
    verb, *flags = verb
    done = udp_stream(tmp_path, verb, "pings.ndjson", *flags, *BOX)
    said = done.stderr.decode().replace("\\", "")
    assert done.returncode == 2 and "outside_box" in said
    assert 'source.longitude = "location.coordinates.1"' in said
    assert 'source.latitude = "location.coordinates.0"' in said
    assert [path.name for path in tmp_path.iterdir()] == ["pings.ndjson"]


@pytest.mark.parametrize("verb", VERBS)
def test_swapped_coordinates_of_gtfs_realtime_have_no_keys(tmp_path, verb):
    buses = [vehicle(plate=f"GJ05ZZ{at:04}", lon=21.25, lat=72.5) for at in range(40)]
    (tmp_path / "polled.pb").write_bytes(snapshot(*buses))
    verb, *flags = verb
    done = udp_stream(tmp_path, verb, "polled.pb", *flags, *BOX)
    said = " ".join(done.stderr.decode().split())
    assert done.returncode == 2 and "outside_box" in said
    assert "longitude and latitude" in said and "GTFS-realtime" in said and "source." not in said


def test_swapped_coordinates_of_a_pipe_are_named_too(tmp_path):
    done = udp_stream(tmp_path, "run", "-", "--ledger", "l", *BOX, stdin=swapped(300))
    said = [json.loads(line) for line in done.stderr.splitlines() if line.startswith(b"{")]
    (refused,) = [entry for entry in said if entry["event"] == "refused"]
    assert 'source.longitude = "location.coordinates.1"' in refused["message"]
