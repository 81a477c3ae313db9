"""The unit of speeds, where names tell it: no speed is looked at."""

import json

import pytest

from tests.runtime.harness import fleet_log
from udp_stream.adapters.logs import end_log
from udp_stream.adapters.schemes import open_sources
from udp_stream.adapters.settings import load
from udp_stream.cli import main as cli
from udp_stream.cli.wrong_unit import unchecked_unit, wrong_unit
from udp_stream.pings.found_mapping import unit_of_name


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("source.speed=speed_ms", "speed.unit=kmh"), "source.speed = 'speed_ms' names 'mps': one of the two is wrong"),
        (("source.speed=speed_ms", "speed.unit=mps"), None),
        (("source.speed=a.speed_kmh.value", "speed.unit=mps"), None),  # the last step names no unit
        (("source.speed=speedMph",), "source.speed = 'speedMph' names 'mph'"),
        (
            ("source.speed=gps.speed_kn",),
            "names 'knots': one of the two is wrong: `udp-stream doctor FILE` compares them",
        ),
        (("source.preset=mbta", "speed.unit=mps"), None),  # another one is refused: status 3
        (("source.preset=geojson", "speed.unit=mph"), None),
        (("speed.unit=mps",), None),
    ],
)
def test_a_name_that_says_another_unit_is_told(flags, said):
    found = wrong_unit(load(None, flags, {}))
    assert (found is None) == (said is None) and (said or "") in (found or "")


def test_a_name_is_no_proof_so_no_unit_is_recommended():
    assert "set " not in (wrong_unit(load(None, ("source.speed=speed_mph", "speed.unit=kmh"), {})) or "")


@pytest.mark.parametrize(
    ("names", "unit"),
    [
        (("speed_knots", "speedKnots", "speed_kn", "speedKn", "kts", "velocity_kt", "sog_kt"), "knots"),
        (("speed_fps", "speed_ft/s", "feet_per_second"), "fps"),
        (("speed_cms", "speed_cmps", "cm/s"), "cms"),
        (("unknown", "track", "speed", "speed_of_kn1ght", "docket"), None),
    ],
)
def test_names_of_units_that_are_not_known_are_units(names, unit):
    assert {name: unit_of_name(name) for name in names} == dict.fromkeys(names, unit)


def test_names():
    assert [unit_of_name(name) for name in ("speed_kmh", "a.mph", "velocity_ms", "speed")] == [
        "kmh",
        "mph",
        "mps",
        None,
    ]


@pytest.fixture
def city(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    messages = fleet_log(buses=10, hours=0.3, clean=True)
    (tmp_path / "plain.ndjson").write_bytes(b"\n".join(messages))
    pings = [json.loads(message) for message in messages]
    renamed = [json.dumps(ping | {"speed_kmh": ping.pop("speed")}) for ping in pings]
    (tmp_path / "named.ndjson").write_text("\n".join(renamed))
    return tmp_path


MAPPED = ("--set", "source.speed=speed_kmh")
FLAGS = ("--trial", "--out", "/dev/null", "--set", "hat.slot=15m")


def words(capsys):
    return " ".join(capsys.readouterr().err.split())


def test_a_replay_says_what_it_did_not_check_and_what_does(city, capsys):
    assert cli.main(["replay", "plain.ndjson", *FLAGS, "--set", "speed.unit=mph"]) == 0
    assert "speed.unit = 'mph' was not checked: `udp-stream doctor plain.ndjson`" in words(capsys)
    assert cli.main(["replay", "plain.ndjson", *FLAGS, "--set", "speed.unit=mph", "--json"]) == 0
    said = json.loads(capsys.readouterr().err.splitlines()[-1])["said"]
    assert any("was not checked" in sentence for sentence in said)


def test_where_the_name_says_the_unit_it_is_checked(city, capsys):
    assert cli.main(["replay", "named.ndjson", *FLAGS, *MAPPED, "--set", "speed.unit=mps"]) == 0
    said = words(capsys)
    assert (
        "warning: speed.unit is 'mps', and source.speed = 'speed_kmh' names 'kmh'" in said and "not checked" not in said
    )
    assert cli.main(["replay", "named.ndjson", *FLAGS, *MAPPED, "--set", "speed.unit=kmh"]) == 0
    assert "speed.unit" not in words(capsys)


def test_a_live_run_says_it_once(city, capsys):
    ours = ("run", "named.ndjson", "--ledger", "l", "--out", "out", *FLAGS[3:], *MAPPED, "--set", "speed.unit=mps")
    try:
        assert cli.main([*ours]) == 0
    finally:
        end_log()
    entries = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    (said,) = [entry for entry in entries if entry["event"] == "unit"]
    assert "names 'kmh'" in said["message"] and said["level"] == "warning"


def test_a_source_with_a_unit_of_its_own_needs_no_doctor(tmp_path):
    (tmp_path / "poll.pb").write_bytes(b"")
    names = [str(tmp_path / "poll.pb")]
    assert unchecked_unit(load(None, ("speed.unit=mps",), {}), open_sources(names, "mps")) is None
