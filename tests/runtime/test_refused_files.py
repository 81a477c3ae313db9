"""Files and settings that a verb refuses, or reads as far as they go: its status, and the place
that it names."""

import gzip
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.gtfs import START_S, snapshot, vehicle
from tests.runtime.harness import fleet_log
from tests.verbs import run_verb
from udp_stream.base.errors import UsageError
from udp_stream.cli import evidence
from udp_stream.cli import main as cli
from udp_stream.cli.commands.doctor import _look_at_files, _pings_of_files, _speeds
from udp_stream.ledgers.opening import look_at
from udp_stream.settings import LedgerSection, Settings

LOG = b"\n".join(fleet_log(buses=10, hours=0.3, clean=True)) + b"\n"


@pytest.fixture
def here(tmp_path):
    (tmp_path / "pings.ndjson").write_bytes(LOG)
    return tmp_path


def run_in(folder, *arguments, stdin=None):
    return run_verb(arguments, cwd=folder, stdin=stdin, env={**os.environ, "NO_COLOR": "1"})


def udp_stream(folder, *arguments, stdin=None):
    done = run_in(folder, *arguments, stdin=stdin)
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
    assert status == 2 and name in err
    assert all(form in err for form in ("ndjson", "csv", "geojson", "parquet", "gz"))
    assert sorted(path.name for path in here.iterdir()) == ["pings.ndjson"]


@pytest.mark.parametrize("verb", [("plan",), ("replay", "--dry-run")])
def test_of_a_damaged_file_what_came_before_is_planned_and_the_damage_said(
    verb, here, capsys, monkeypatch
):
    monkeypatch.chdir(here)
    packed = gzip.compress(LOG)
    (here / "cut.ndjson.gz").write_bytes(packed[: len(packed) // 2])
    assert cli.main([verb[0], "cut.ndjson.gz", *verb[1:], "--set", "hat.slot=15m"]) == 0
    out, err = capsys.readouterr()
    assert "warning: cut.ndjson.gz:" in err and "of 10 plates" in out


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
    assert (
        hats[0] and hats[0] == hats[1][: len(hats[0])]
    )  # slots that were open stay so, as with damaged gzip


def replay(folder, *arguments, verb="replay", stdin=None):
    return run_in(folder, verb, *arguments, "--set", "ledger.url=city.ledger", stdin=stdin)


def left(folder):
    return sorted(path.name for path in folder.iterdir())


CSV = b"license_plate,observationDateTime,speed,location.coordinates\n"
FAULTS = {
    "no-speed.csv": (CSV.replace(b",speed", b""), "speed"),
    "empty.csv": (b"", "expected pings, and "),
    "empty.ndjson": (b"", "expected pings, and "),
    "blank.json": (b"\n \n", "expected pings, and "),
    "header.csv": (CSV, "expected pings, and "),
    "cut.json.gz": (b"\x1f\x8b\x08\x00\x00\x00", "cut.json.gz"),
}


@pytest.mark.parametrize("verb", ["replay", "run"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_file_of_which_nothing_can_be_read_is_refused_and_nothing_is_made(name, verb, tmp_path):
    content, word = FAULTS[name]
    (tmp_path / name).write_bytes(content)
    done = replay(tmp_path, name, verb=verb)
    assert done.returncode == 2 and word in done.stderr.decode(), done.stderr
    assert left(tmp_path) == [name]


def test_an_empty_file_among_others_is_no_fault(tmp_path):
    (tmp_path / "night.ndjson").write_bytes(b"")
    (tmp_path / "day.ndjson").write_bytes(b"\n".join(fleet_log(buses=10, hours=0.3, clean=True)))
    done = replay(tmp_path, "night.ndjson", "day.ndjson", "--out", "out")
    assert done.returncode == 0 and (tmp_path / "out").stat().st_size > 0, done.stderr


@pytest.mark.parametrize("content", [b"", b"notes, and no ledger\n"])
@pytest.mark.parametrize("verb", ["doctor", "replay"])
def test_no_key_is_made_beside_a_file_that_is_no_ledger(verb, content, tmp_path):
    (tmp_path / "pings.ndjson").write_bytes(b"\n".join(fleet_log(buses=10, hours=0.3, clean=True)))
    (tmp_path / "city.ledger").write_bytes(content)
    done = replay(tmp_path, "pings.ndjson", verb=verb)
    assert done.returncode == 5 and b"expected a ledger at" in done.stdout + done.stderr
    assert left(tmp_path) == ["city.ledger", "pings.ndjson"]


def test_doctor_and_status_refuse_a_ledger_without_its_id_and_make_none(tmp_path):
    (tmp_path / "pings.ndjson").write_bytes(b"\n".join(fleet_log(buses=10, hours=0.3, clean=True)))
    assert replay(tmp_path, "pings.ndjson", "--out", "out").returncode == 0
    (tmp_path / "city.ledger.key.ledger-id").unlink()
    before = left(tmp_path)
    for _ in range(2):
        doctor = replay(tmp_path, "pings.ndjson", verb="doctor")
        assert (
            doctor.returncode == 5
            and b"FAIL  ledger: " in doctor.stdout
            and left(tmp_path) == before
        )
    view = look_at(LedgerSection(url=f"{tmp_path}/city.ledger"))
    assert view.status == 5 and view.holdings is None and left(tmp_path) == before


def spelled(count, **changed):
    for message in fleet_log(buses=10, hours=0.3, clean=True)[:count]:
        ping = json.loads(message)
        yield json.dumps(ping | {name: change(ping) for name, change in changed.items()}).encode()


def epochs(count):
    return b"\n".join(spelled(count, observationDateTime=lambda _: 1_706_159_153)) + b"\n"


MEND = "found epoch_s, wanted source.time_format"


@pytest.mark.parametrize(
    "verb", [("run", "--ledger", "city.ledger"), ("feed", "--bootstrap", "127.0.0.1:1")]
)
@pytest.mark.parametrize("content", ["epochs", "binary"])
def test_a_file_that_is_not_read_is_refused_before_anything_is_made_or_sent(
    tmp_path, verb, content
):
    data = {"epochs": epochs(300), "binary": bytes(range(256)) * 40}[content]
    (tmp_path / "pings").write_bytes(data)
    verb, *flags = verb
    done = run_in(tmp_path, verb, "pings", *flags)
    assert done.returncode == 2 and b"of its beginning refused" in done.stderr
    if content == "epochs":
        assert MEND in done.stderr.decode().replace(chr(92), "")
    assert [path.name for path in tmp_path.iterdir()] == ["pings"]


def test_a_pipe_that_is_not_read_ends_a_run_with_status_2_and_the_mend(tmp_path):
    done = run_in(tmp_path, "run", "-", "--ledger", "l", stdin=epochs(300))
    said = [json.loads(line) for line in done.stderr.splitlines() if line.startswith(b"{")]
    refused = [entry for entry in said if entry["event"] == "refused"]
    assert len(refused) == 1 and MEND in refused[0]["message"] and refused[0]["level"] == "warning"
    assert done.returncode == 2 and b"no ping was accepted" in done.stderr.splitlines()[-1]
    plates = {json.loads(line)["license_plate"].encode() for line in epochs(300).splitlines()}
    assert not any(plate in done.stderr for plate in plates)


@pytest.mark.parametrize("is_add_remove", [False, True])
def test_a_run_of_a_recording_of_which_all_is_late_ends_with_2_and_names_replay(
    is_add_remove, tmp_path
):
    """Its slots are out already; or, where whole plates are hidden, over by the wall."""
    (tmp_path / "day.ndjson").write_bytes(b"\n".join(fleet_log(buses=20, hours=0.3, clean=True)))
    domain = Path(__file__).parents[1] / "domain.cells"
    mode = (
        "privacy.neighbours=add-remove",
        f"hat.domain={domain}",
        "pings.interval=10s",
        "hat.resolution=7",
    )
    flags = [
        word
        for key in ("hat.timezone=Asia/Kolkata", *(mode if is_add_remove else ()))
        for word in ("--set", key)
    ]
    words = ("run", "day.ndjson", "--ledger", "l", "--out", "out", "--rejected", "rejected", *flags)
    done = [run_in(tmp_path, *words) for _ in range(2)]
    assert [one.returncode for one in done] == [2 if is_add_remove else 0, 2], done[0].stderr
    last = json.loads(done[1].stderr.splitlines()[-1])
    assert last["event"] == "failed" and "replay" in last["message"]
    rejected = [
        json.loads(line)["reason"] for line in (tmp_path / "rejected").read_bytes().splitlines()
    ]
    assert set(rejected) == {"late"}


BOX = ("--set", "pings.box=[72.0, 20.5, 74.0, 22.5]", "--set", "speed.unit=mps")
VERBS = [
    ("replay", "--trial", "--out", "out"),
    ("replay", "--dry-run"),
    ("plan",),
    ("run", "--ledger", "city.ledger"),
]


def swapped(count):
    def exchange(ping):
        return {"type": "Point", "coordinates": ping["location"]["coordinates"][::-1]}

    return b"\n".join(spelled(count, location=exchange)) + b"\n"


@pytest.mark.parametrize("verb", VERBS)
def test_swapped_coordinates_are_named_with_the_keys_that_read_them(tmp_path, verb):
    (tmp_path / "pings.ndjson").write_bytes(swapped(300))
    verb, *flags = verb
    done = run_in(tmp_path, verb, "pings.ndjson", *flags, *BOX)
    said = done.stderr.decode().replace("\\", "")
    assert done.returncode == 2 and "outside_box" in said
    assert 'source.longitude = "location.coordinates.1"' in said
    assert 'source.latitude = "location.coordinates.0"' in said
    assert [path.name for path in tmp_path.iterdir()] == ["pings.ndjson"]


@pytest.mark.parametrize("verb", VERBS[::3])
def test_swapped_coordinates_of_gtfs_realtime_are_named_with_the_key_that_reads_them(
    tmp_path, verb
):
    buses = [vehicle(plate=f"GJ05ZZ{at:04}", lon=21.25, lat=72.5) for at in range(40)]
    (tmp_path / "polled.pb").write_bytes(snapshot(*buses))
    verb, *flags = verb
    done = run_in(tmp_path, verb, "polled.pb", *flags, *BOX)
    said = " ".join(done.stderr.decode().split())
    assert done.returncode == 2 and "outside_box" in said
    assert "longitude and latitude" in said and "source.exchanged = true" in said
    done = run_in(tmp_path, verb, "polled.pb", *flags, *BOX, "--set", "source.exchanged=true")
    assert done.returncode == 0 and b"outside_box" not in done.stderr, done.stderr


def test_swapped_coordinates_of_a_pipe_are_named_too(tmp_path):
    done = run_in(tmp_path, "run", "-", "--ledger", "l", *BOX, stdin=swapped(300))
    said = [json.loads(line) for line in done.stderr.splitlines() if line.startswith(b"{")]
    (refused,) = [entry for entry in said if entry["event"] == "refused"]
    assert 'source.longitude = "location.coordinates.1"' in refused["message"]


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
def test_polls_that_stand_together_are_one_recording_whose_speeds_are_compared(
    speed, status, words, tmp_path
):
    files = [poll(tmp_path, at, speed) for at in range(15)]
    got, said = doctor(tmp_path, *files, "--set", "speed.unit=mps")
    assert got == status and said["speeds"].startswith(words)
    assert said["pings"].startswith("ok    pings of 00.pb and")


def pings(folder, count, every):
    times = [
        datetime(2024, 1, 8, 4, 30, tzinfo=UTC) + timedelta(seconds=at * every)
        for at in range(count)
    ]
    rows = [
        {"license_plate": f"m{at}", "observationDateTime": f"{times[at]:%Y-%m-%dT%H:%M:%SZ}",
         "location": {"type": "Point", "coordinates": [72.8, 21.1]}, "speed": 12} for at in range(count)
    ]  # fmt: skip
    (folder / "feed.ndjson").write_text("\n".join(map(json.dumps, rows)))


def test_the_unit_of_a_long_file_is_that_of_its_beginning_and_the_rest_is_not_held(
    tmp_path, limits
):
    log = fleet_log(buses=60, hours=0.5, clean=True)
    (tmp_path / "week.gz").write_bytes(gzip.compress(b"\n".join(log))[:-9])
    assert len(log) > 2 * 4096
    settings = Settings()

    def look():
        return _look_at_files([f"{tmp_path}/week.gz"], settings)

    with pytest.raises(UsageError, match="end too early"):
        _pings_of_files(look, [f"{tmp_path}/week.gz"], settings)
    assert _speeds(look, settings).startswith("kmh: pings move about as")
    limits(evidence, JOINED_BYTES=100)
    assert look().messages < len(log) and not look().is_whole
    assert _speeds(look, settings).startswith("kmh: pings move about as")
