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
    status, out, _ = udp_stream(folder, "doctor", *words, "--set", "ledger.url=l")
    return status, {line.split()[1]: line for line in out.splitlines()}


def poll(folder, at, speed=5.0):
    time_s = START_S + 10 * at
    buses = [vehicle(f"GJ05ZZ{bus:04}", time_s=time_s, lon=72.8, lat=21.1 + bus / 50 + 50 * at * METRE, speed=speed)
             for bus in range(10)]  # fmt: skip
    (folder / f"{at:02}.pb").write_bytes(snapshot(*buses, header_s=time_s))
    return f"{at:02}.pb"


@pytest.mark.parametrize(
    ("speed", "status", "words"),
    [
        (5.0, 0, "ok    speeds of 00.pb and"),
        (18.0, 3, "FAIL  speeds of 00.pb and"),
        (50.0, 3, "FAIL  speeds of 00.pb and"),
    ],
)
def test_polls_that_stand_together_are_one_recording_whose_speeds_are_compared(speed, status, words, tmp_path):
    files = [poll(tmp_path, at, speed) for at in range(15)]
    got, said = doctor(tmp_path, *files, "--set", "speed.unit=mps")
    assert got == status and said["speeds"].startswith(words)
    assert said["pings"].startswith("ok    pings of 00.pb and")


def pings(folder, count, every):
    times = [datetime(2024, 1, 8, 4, 30, tzinfo=UTC) + timedelta(seconds=at * every) for at in range(count)]
    rows = [
        {"license_plate": f"m{at}", "observationDateTime": f"{times[at]:%Y-%m-%dT%H:%M:%SZ}",
         "location": {"type": "Point", "coordinates": [72.8, 21.1]}, "speed": 12} for at in range(count)
    ]  # fmt: skip
    (folder / "feed.ndjson").write_text("\n".join(map(json.dumps, rows)))


@pytest.mark.parametrize("limit", ["JOINED_MESSAGES", "JOINED_BYTES"])
def test_the_unit_of_a_long_file_is_that_of_its_beginning_and_the_rest_is_not_held(limit, tmp_path, monkeypatch):
    log = fleet_log(buses=60, hours=0.5, clean=True)
    (tmp_path / "week.gz").write_bytes(gzip.compress(b"\n".join(log))[:-9])
    assert len(log) > 2 * 4096
    with pytest.raises(UsageError, match="end too early"):
        _unit_of_files([f"{tmp_path}/week.gz"], Settings())
    monkeypatch.setattr(first_look, limit, 100)
    assert _unit_of_files([f"{tmp_path}/week.gz"], Settings()).startswith("kmh: pings move about as")
