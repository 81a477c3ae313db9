"""Feeds of cities that tell no speed: `init` proposes to derive it, and means are those worked out
by hand."""

import json
import math
import signal
import time
from collections import defaultdict
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import h3
import pytest

from tests.forked import forked_to_log
from tests.gtfs import GTFS_CASES, snapshot, vehicle
from tests.http_server import GTFS, ok, serving
from tests.verbs import run_verb
from udp_stream.release import record as release
from udp_stream.settings import load

MIDDLE = 52.23, 21.01
CET = timezone(timedelta(hours=1))
BEGIN = datetime(2024, 1, 8, 9, 0, tzinfo=CET)
EXACT = ("--set", "budget.accounting=pure", "--set", "release.mean_epsilon=1000", "--set", "budget.epsilon=100000",
         "--set", "release.mean=baseline", "--set", "release.min_plates=1")  # fmt: skip
"""So little noise that a mean is what it is."""


def fleet(buses=30, every_s=20, seconds=3000):
    """(plate, when, lat, lon): each bus goes round at a speed of its own, stops, and goes on."""
    rows = []
    for bus in range(buses):
        angle, radius_km = bus * 0.7, 1.0 + bus % 7
        for second in range(bus % every_s, seconds, every_s):
            kmh = 0 if (second // 60 + bus) % 5 == 0 else 12 + 3 * (bus % 8)
            angle += kmh * every_s / 3600 / radius_km
            lat = MIDDLE[0] + radius_km * math.sin(angle) / 111.2
            lon = MIDDLE[1] + radius_km * math.cos(angle) / 111.2 / math.cos(
                math.radians(MIDDLE[0])
            )
            rows.append(
                (str(1000 + bus), BEGIN + timedelta(seconds=second), round(lat, 6), round(lon, 6))
            )
    return sorted(rows, key=lambda row: row[1])


def by_hand(rows):
    """The mean of each cell: of every ping as far as the ping before, of a plate's first as far as
    the next."""
    speeds = defaultdict(list)
    for plate in {row[0] for row in rows}:
        own = [row for row in rows if row[0] == plate]
        for at, (_, when, lat, lon) in enumerate(own):
            _, other, *place = own[at - 1 if at else 1]
            km = h3.great_circle_distance((lat, lon), tuple(place))
            kmh = km * 3600 / abs((when - other).total_seconds())
            speeds[h3.latlng_to_cell(lat, lon, 7)].append(min(kmh, 65))
    return {cell: sum(some) / len(some) for cell, some in speeds.items()}


def warsaw(rows):
    found = defaultdict(list)
    for plate, when, lat, lon in rows:
        local = f"{when:%Y-%m-%d %H:%M:%S}"
        found[when.minute].append(
            {
                "Lines": "180",
                "Lon": lon,
                "VehicleNumber": plate,
                "Time": local,
                "Lat": lat,
                "Brigade": "3",
            }
        )
    return "\n".join(json.dumps({"result": some}) for some in found.values()).encode()


def activity(row):
    plate, when, lat, lon = row
    return {
        "RecordedAtTime": when.astimezone(UTC).isoformat(),
        "MonitoredVehicleJourney": {
            "LineRef": "7", "VehicleLocation": {"Longitude": lon, "Latitude": lat}, "VehicleRef": plate,
        },
    }  # fmt: skip


def siri(rows):
    """JSON, a minute's pings in each delivery, in the array of one element that SIRI has."""
    found = defaultdict(list)
    for row in rows:
        found[row[1].minute].append(activity(row))
    return "\n".join(
        json.dumps(
            {
                "Siri": {
                    "ServiceDelivery": {"VehicleMonitoringDelivery": [{"VehicleActivity": some}]}
                }
            }
        )
        for some in found.values()
    ).encode()


def polled(rows):
    return [
        snapshot(
            *(
                vehicle(number=plate, time_s=int(when.timestamp()), lat=lat, lon=lon, speed=None)
                for plate, when, lat, lon in rows
                if when.minute == minute
            ),
            header_s=int(BEGIN.timestamp()) + 60 * minute + 59,
        )
        for minute in sorted({row[1].minute for row in rows})
    ]


FORMS = {"warsaw.ndjson": warsaw, "siri.ndjson": siri}


def run(folder, *arguments):
    done = run_verb(list(arguments), cwd=folder)
    assert done.returncode == 0 and b"Traceback" not in done.stderr, done.stderr.decode()
    return done


@pytest.mark.parametrize("name", [*FORMS, "polls.pb"])
def test_means_by_movement_are_those_worked_out_by_hand(tmp_path, name):
    rows = fleet()
    if name in FORMS:
        files = [name]
        (tmp_path / name).write_bytes(FORMS[name](rows))
    else:
        polls = polled(rows)
        files = [f"{at:02}.pb" for at, _ in enumerate(polls)]
        for file, content in zip(files, polls, strict=True):
            (tmp_path / file).write_bytes(content)
    said = run(tmp_path, "init", *files, "--out", "city.toml").stderr.decode()
    assert (
        "CHECK: the feed has no speeds" in said
        and 'from = "movement"' in (tmp_path / "city.toml").read_text()
    )
    assert (
        b"warning"
        not in run(tmp_path, "replay", *files, "--config", "city.toml", "--dry-run").stdout
    )
    done = run(
        tmp_path,
        "replay",
        *files,
        "--config",
        "city.toml",
        "--trial",
        *EXACT,
        "--out",
        "out.ndjson",
    )
    records = [
        release.Release.decode(line) for line in (tmp_path / "out.ndjson").read_bytes().splitlines()
    ]
    expected = by_hand(rows)
    assert {one.hat.cell for one in records} == expected.keys() and len(expected) > 20, (
        done.stderr.decode()
    )
    assert sum(one.counts.samples for one in records) == len(rows)
    assert {one.privacy.speeds for one in records} == {"movement"}
    live = "run", files[0], "--config", "city.toml", "--ledger", "live", "--out", "live.ndjson"
    if len(files) == 1:
        run(tmp_path, *live, "--set", "kafka.idle_timeout=1s")
        again = [
            release.Release.decode(line)
            for line in (tmp_path / "live.ndjson").read_bytes().splitlines()
        ]
        assert {one.hat.cell: one.counts.samples for one in again} == {
            one.hat.cell: one.counts.samples for one in records
        }
    for one in records:
        assert one.mean.value_kmh == pytest.approx(expected[one.hat.cell], rel=0.03, abs=0.05), (
            one.hat.cell
        )


def test_a_plate_that_is_there_once_is_left_out_and_counted(tmp_path):
    rows = [*fleet(seconds=600), ("9999", BEGIN, *MIDDLE)]
    (tmp_path / "warsaw.ndjson").write_bytes(warsaw(sorted(rows, key=lambda row: row[1])))
    run(tmp_path, "init", "warsaw.ndjson", "--out", "city.toml")
    arguments = "replay", "warsaw.ndjson", "--config", "city.toml", "--trial", "--out", "out.ndjson"
    said = run(tmp_path, *arguments, "--rejected", "rejected").stderr.decode()
    assert "1 without a speed" in said and (tmp_path / "rejected").read_bytes() == b""
    records = [
        release.Release.decode(line) for line in (tmp_path / "out.ndjson").read_bytes().splitlines()
    ]
    assert sum(one.counts.samples for one in records) == len(rows) - 1
    (tmp_path / "alone.ndjson").write_bytes(warsaw(rows[-1:]))
    assert (
        b"1 without a speed" in run(tmp_path, *arguments[:1], "alone.ndjson", *arguments[2:]).stderr
    )


def test_presets_that_have_a_unit_need_none_where_speeds_are_derived():
    settings = load(None, ["source.preset=gtfs-rt", "speed.from=movement"], {})
    assert settings.form.mapping.speed == "" and settings.policy.speed_from == "movement"
    assert (
        settings.policy.fingerprint()
        != load(None, ["source.preset=gtfs-rt", "speed.unit=mps"], {}).policy.fingerprint()
    )


CASES = Path(__file__).parents[3] / "shared" / "cases"


@pytest.mark.skipif(not CASES.is_dir(), reason="the cases are not at hand")
def test_cases_that_were_found_read_as_they_say(tmp_path):
    xml = str(CASES / "siri-no-speed.xml")
    run(tmp_path, "init", xml, "--out", "siri.toml")
    run(tmp_path, "replay", xml, "--config", "siri.toml", "--trial", *EXACT, "--out", "siri.ndjson")
    records = [
        release.Release.decode(line)
        for line in (tmp_path / "siri.ndjson").read_bytes().splitlines()
    ]
    assert [one.counts.samples for one in records] == [2] and records[
        0
    ].mean.value_kmh == pytest.approx(35.4, abs=0.5)
    for case, sentence in GTFS_CASES.items():
        polls = sorted(map(str, CASES.glob(f"{case}-*.pb")))
        assert sentence in run(tmp_path, "init", *polls, "--out", f"{case}.toml").stderr.decode()
        for verb in (["replay", *polls, "--dry-run"], ["doctor", *polls]):
            done = run(tmp_path, *verb, "--config", f"{case}.toml")
            assert sentence in (done.stdout + done.stderr).decode(), (case, verb)
    rolled = str(CASES / "11-rollover.csv")
    assert b"6 of 150 plates" in run(tmp_path, "init", rolled, "--out", "rolled.toml").stderr
    assert (
        b"6 of 150 plates"
        in run(tmp_path, "replay", rolled, "--config", "rolled.toml", "--dry-run").stdout
    )
    run(tmp_path, "replay", rolled, "--config", "rolled.toml", "--trial", "--out", "rolled.ndjson")
    assert b"2006" not in (tmp_path / "rolled.ndjson").read_bytes()


def test_a_live_run_reads_nothing_of_a_feed_that_stands_still_and_charges_nobody(tmp_path):
    now_s = int(time.time())
    polls = [
        snapshot(*(vehicle(number=f"B{bus}", time_s=now_s - 93 * 86_400 + at, lat=21.25 + at / 1000)
                   for bus in range(20)), header_s=now_s + at)
        for at in range(50)
    ]  # fmt: skip
    with serving(*(ok(poll, GTFS) for poll in polls)) as server:
        given = ["run", f"{server.url}/v.pb", "--every", "1s", "--set", "speed.unit=mps", "--ledger", "l", "--out",
                 "out.ndjson"]  # fmt: skip
        said = tmp_path / "said"
        process = forked_to_log("tests.forked", given, said, tmp_path)
        try:
            deadline = time.monotonic() + 40
            while len(server.requests) < 4 or '"stale"' not in said.read_text():
                assert time.monotonic() < deadline and process.poll() is None, said.read_text()
                time.sleep(0.1)
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()
    told = said.read_text()
    assert "its newest ping is 93 d old" in told and "too old to be read" in told, told
    assert (tmp_path / "out.ndjson").read_bytes() == b""
    assert b"0 entries" in run(tmp_path, "ledger", "verify", "--ledger", "l").stdout
