"""`doctor FILE`: GTFS-realtime as any other form, and `unknown` for what one file cannot tell."""

import gzip
import json
from datetime import UTC, datetime, timedelta

import pytest

from tests.gtfs import START_S, snapshot, vehicle
from tests.runtime.harness import fleet_log
from tests.runtime.test_refused_files import udp_stream
from udp_stream.cli import first_look
from udp_stream.cli.commands.doctor import _unit_of_files
from udp_stream.errors import UsageError
from udp_stream.settings import Settings

METRE = 1 / 111_195


def doctor(folder, *words):
    status, out, _ = udp_stream(folder, "doctor", *words, "--ledger", "l")
    return status, {line.split()[1]: line for line in out.splitlines()}


def poll(folder, at, speed=5.0):
    """Ten buses that go 50 m north in ten seconds."""
    time_s = START_S + 10 * at
    buses = [vehicle(f"GJ05ZZ{bus:04}", time_s=time_s, lon=72.8, lat=21.1 + bus / 50 + 50 * at * METRE, speed=speed)
             for bus in range(10)]  # fmt: skip
    (folder / f"{at:02}.pb").write_bytes(snapshot(*buses, header_s=time_s))
    return f"{at:02}.pb"


@pytest.mark.parametrize("apart_s", [0, 3])
def test_one_poll_is_neither_well_nor_wrong(apart_s, tmp_path):
    """Each vehicle has one ping: whether its plate lasts cannot be told, nor the unit. A poll has no source.plate."""
    buses = [vehicle(number=f"bus-{at}", time_s=START_S - at * apart_s) for at in range(60)]
    (tmp_path / "1.pb").write_bytes(snapshot(*buses))
    status, said = doctor(tmp_path, "1.pb", "--set", "speed.unit=mps")
    assert status == 0 and said["pings"].startswith("unknown pings of 1.pb")
    assert said["speeds"].startswith("unknown speeds of 1.pb")
    assert "source.plate" not in said["pings"] and "one poll" in said["pings"].lower()


@pytest.mark.parametrize(
    ("speed", "status", "words"),
    [
        (5.0, 0, "ok    speeds of 00.pb and"),
        (18.0, 3, "FAIL  speeds of 00.pb and"),
        (
            50.0,
            3,
            "FAIL  speeds of 00.pb and",
        ),
    ],
)
def test_polls_that_stand_together_are_one_recording_whose_speeds_are_compared(speed, status, words, tmp_path):
    files = [poll(tmp_path, at, speed) for at in range(15)]
    got, said = doctor(tmp_path, *files, "--set", "speed.unit=mps")
    assert got == status and said["speeds"].startswith(words)
    assert said["pings"].startswith("ok    pings of 00.pb and")


def test_polls_in_another_unit_than_theirs_are_refused_as_by_every_verb(tmp_path):
    status, said = doctor(tmp_path, poll(tmp_path, 0))
    assert status == 3 and "speed.unit = 'mps'" in said["speeds"]


def pings(folder, count, every):
    """Pings of which each has a plate of its own, one every some seconds."""
    times = [datetime(2024, 1, 8, 4, 30, tzinfo=UTC) + timedelta(seconds=at * every) for at in range(count)]
    rows = [
        {"license_plate": f"m{at}", "observationDateTime": f"{times[at]:%Y-%m-%dT%H:%M:%SZ}",
         "location": {"type": "Point", "coordinates": [72.8, 21.1]}, "speed": 12} for at in range(count)
    ]  # fmt: skip
    (folder / "feed.ndjson").write_text("\n".join(map(json.dumps, rows)))


@pytest.mark.parametrize(("count", "every", "word", "status"), [(200, 1, "unknown", 0), (200, 9, "FAIL", 3),
                                                                (5000, 0.05, "FAIL", 3)])  # fmt: skip
def test_a_plate_in_each_ping_may_be_one_poll_s_if_all_of_the_file_is_of_some_minutes(
    count, every, word, status, tmp_path
):
    pings(tmp_path, count, every)
    got, said = doctor(tmp_path, "feed.ndjson")
    assert got == status and said["pings"].split()[0] == word and "is source.plate the vehicle's" in said["pings"]


@pytest.mark.parametrize("limit", ["JOINED_MESSAGES", "JOINED_BYTES"])
def test_the_unit_of_a_long_file_is_that_of_its_beginning_and_the_rest_is_not_held(limit, tmp_path, monkeypatch):
    """Else a recording of a week would have to fit into memory several times. The end of this one is damaged."""
    log = fleet_log(buses=60, hours=0.5, clean=True)
    (tmp_path / "week.gz").write_bytes(gzip.compress(b"\n".join(log))[:-9])
    assert len(log) > 2 * 4096
    with pytest.raises(UsageError, match="end too early"):
        _unit_of_files([f"{tmp_path}/week.gz"], Settings())
    monkeypatch.setattr(first_look, limit, 100)
    assert _unit_of_files([f"{tmp_path}/week.gz"], Settings()).startswith("kmh: pings move about as")


def test_a_file_that_the_system_refuses_fails_its_check_and_the_others_are_made(tmp_path):
    """It ended doctor with one bare line, and with --json nothing was printed."""
    (tmp_path / "a.ndjson").write_bytes(b"".join(line + b"\n" for line in fleet_log(clean=True)[:3000]))
    words = ("doctor", "a.ndjson", "--ledger", "l" * 300, "--set", "ledger.key_file=key")
    status, out, err = udp_stream(tmp_path, *words)
    assert status == 4 and err == "udp-stream: 1 of 4 checks failed\n"
    lines = [line.partition(":")[0] for line in out.splitlines()]
    assert lines == ["ok    configuration", "FAIL  ledger", "ok    pings of a.ndjson", "ok    speeds of a.ndjson"]
    status, out, _ = udp_stream(tmp_path, *words, "--json")
    assert status == 4 and json.loads(out)["checks"][1]["said"] == f"{'l' * 300}: File name too long"


def test_a_ledger_in_a_folder_that_is_not_there_says_to_create_the_folder(tmp_path):
    """It said that the key beside it cannot be read or made."""
    (tmp_path / "a.ndjson").write_bytes(b"".join(line + b"\n" for line in fleet_log(clean=True)[:300]))
    status, _, err = udp_stream(tmp_path, "replay", "a.ndjson", "--ledger", "new/city.ledger", "--out", "o.ndjson")
    said = f"udp-stream: expected the folder {tmp_path}/new for city.ledger.key: create it first\n"
    assert (status, err) == (4, said)
