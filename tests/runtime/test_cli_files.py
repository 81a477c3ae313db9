"""What the command line reads and writes: nothing that is needed is overwritten, nothing is lost without a word."""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from tests.forked import Forked
from tests.forms import long_but
from tests.runtime.harness import fleet_log
from tests.runtime.test_cli import FLAGS, UDP_STREAM, run
from udp_stream.cli.demo_picture import BAR_STEPS
from udp_stream.release import record as release


@pytest.fixture(scope="module")
def made_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made-once")
    (folder / "pings.ndjson").write_bytes(b"\n".join(fleet_log(hours=0.6)) + b"\n")
    (folder / "city.toml").write_text("[hat]\nslot = '15m'\nresolution = 7\n[release]\nmin_plates = 4\n")
    assert replay(folder, "--out", "whole").returncode == 0
    return folder


@pytest.fixture
def city(made_once, tmp_path):
    """A folder with a log, a configuration, and the ledger and releases of a run over them."""
    return shutil.copytree(made_once, tmp_path, dirs_exist_ok=True)


def replay(folder, *arguments, files=("pings.ndjson",), **options):
    return run("replay", *files, "--config", "city.toml", "--ledger", "l", *arguments, cwd=folder, **options)


def in_shell(folder, redirections, *arguments):
    """The command line as a shell starts it, with redirections."""
    return subprocess.run(
        ["/bin/sh", "-c", f'"$@" {redirections}', "sh", *UDP_STREAM, *arguments], cwd=folder, capture_output=True,
        timeout=40, env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def words(text):
    return " ".join(text.decode().split())


@pytest.mark.parametrize(
    ("flag", "name", "what"),
    [
        ("--out", "./l", "the ledger l"),
        ("--out", "link", "the ledger l"),
        ("--rejected", "hard", "the ledger l"),
        ("--rejected", "l-wal", "the log of the ledger"),
        ("--out", "l.key", "the plates' key l.key"),
        ("--rejected", "l.key.ledger-id", "the id of the ledger"),
        ("--rejected", "city.toml", "the configuration city.toml"),
        ("--out", "pings.ndjson", "the input pings.ndjson"),
        ("--smoothed", "l", "the ledger l"),
    ],
)
def test_an_output_is_no_file_that_the_run_needs(flag, name, what, city):
    (city / "link").symlink_to("l")
    (city / "hard").hardlink_to(city / "l")
    before = contents(city)
    done = replay(city, flag, name)
    assert (done.returncode, done.stdout) == (2, b"")
    assert f"{flag} {name}: expected a file of its own, got {what}" in words(done.stderr)
    assert contents(city) == before


@pytest.mark.parametrize("name", ["l", "l-wal", "l.key"])
def test_no_ledger_and_no_key_is_overwritten_even_of_another_run(name, city):
    """Nor one that is in use: its log may hold all that is not in its file yet."""
    (city / "l-wal").write_bytes(b"\x37\x7f\x06\x82" + bytes(40))
    before = contents(city)
    done = replay(city, "--ledger", "other", "--out", name)
    assert done.returncode == 2 and f"--out {name}: expected a file that may be overwritten" in words(done.stderr)
    assert contents(city) == before
    demo = run("demo", "--headless", "--slots", "1", "--out", name, cwd=city)
    assert demo.returncode == 2 and contents(city) == before


def test_files_that_are_not_there_yet_are_kept_apart_too(city):
    before = contents(city)
    assert b"got the ledger new" in replay(city, "--ledger", "new", "--out", "new").stderr
    assert b"got the plates' key new.key" in replay(city, "--ledger", "new", "--out", "new.key").stderr
    assert b"got that of --out both" in replay(city, "--out", "both", "--rejected", "./both").stderr
    assert b"got that of --out both" in replay(city, "--out", "both", "--smoothed", "./both").stderr
    assert contents(city) == before


def test_what_the_shell_opened_is_compared_as_well(city):
    before = contents(city)
    done = in_shell(city, "< pings.ndjson", "replay", "-", "--out", "pings.ndjson")
    assert done.returncode == 2 and b"got the input" in done.stderr
    done = in_shell(city, ">> pings.ndjson", "replay", "pings.ndjson")
    assert done.returncode == 2 and b"--out -" in done.stderr
    assert contents(city) == before


@pytest.mark.parametrize("name", ["-", "/dev/stdout", "/dev/fd/1"])
def test_raw_pings_do_not_go_where_releases_go(name, city):
    done = replay(city, "--rejected", name)
    assert (done.returncode, done.stdout) == (2, b"")
    apart = replay(city, "--rejected", name, "--out", "again")
    assert apart.returncode == 0 and b'"reason"' in apart.stdout and b"release" not in apart.stdout
    assert (city / "again").read_bytes() == (city / "whole").read_bytes()


def test_smoothed_estimates_are_the_same_in_a_second_run_and_on_standard_output(city):
    first, again = (replay(city, "--out", name, "--smoothed", "estimates") for name in ("one", "two"))
    assert (first.returncode, again.returncode) == (0, 0)
    estimates = (city / "estimates").read_bytes()
    apart = replay(city, "--out", "three", "--smoothed", "-")
    assert apart.returncode == 0 and apart.stdout == estimates
    assert len(estimates.splitlines()) >= len((city / "one").read_bytes().splitlines()) > 0
    assert b'"udp-stream/smoothed/1"' in estimates


def test_the_null_device_may_take_both(city):
    assert replay(city, "--out", os.devnull, "--rejected", os.devnull).returncode == 0


def test_statements_keep_away_from_what_is_needed(city):
    (city / "worst-case.txt").write_bytes((city / "pings.ndjson").read_bytes())
    before = contents(city)
    flags = ("--data", "worst-case.txt", "--repetitions", "5", "--out", ".")
    done = run("reproduce", "worst-case", *flags, cwd=city)
    assert done.returncode == 2 and b"got the input worst-case.txt" in done.stderr
    assert contents(city) == before


def test_raw_pings_are_written_where_only_their_owner_can_read_them(city):
    (city / "whole").chmod(0o644)
    before = os.umask(0o022)
    try:
        assert replay(city, "--out", "new", "--rejected", "no").returncode == 0
        assert replay(city, "--out", "new", "--rejected", "whole").returncode == 0
    finally:
        os.umask(before)
    assert {name: (city / name).stat().st_mode & 0o777 for name in ("new", "no", "whole")} == {
        "new": 0o644,
        "no": 0o600,
        "whole": 0o644,  # it was there, as its owner wants it
    }


@pytest.mark.parametrize("missing", ["nowhere.ndjson", "nowhere.gz", "."])
def test_inputs_are_checked_before_outputs_are_opened(missing, city):
    before = contents(city)
    done = replay(city, "--out", "whole", files=("pings.ndjson", missing))
    assert done.returncode == 2 and f"{missing} cannot be read" in words(done.stderr)
    assert contents(city) == before


@pytest.mark.parametrize(("name", "why"), [("nowhere/x", "No such file"), (".", "Is a directory")])
@pytest.mark.parametrize("command", [("demo", "--headless", "--out"), ("replay", "p", "--out")])
def test_where_nothing_can_be_written_is_told_at_once(command, name, why, tmp_path):
    (tmp_path / "p").write_bytes(b"")
    done = run(*command, name, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, b"")
    assert f"{name}: cannot be written ({why}" in words(done.stderr)
    assert not (tmp_path / "udp-stream.ledger").exists()


def test_a_named_pipe_as_input_is_left_for_reading(city):
    os.mkfifo(city / "pipe")
    done = in_shell(city, "& cat pings.ndjson > pipe; wait", "replay", "pipe", "--config", "city.toml", "--ledger", "l")
    assert done.stdout == (city / "whole").read_bytes(), done.stderr


def test_a_log_cut_short_is_summed_up_and_the_whole_one_goes_on_from_there(city):
    """What is charged in two runs is what is charged in one."""
    lines = fleet_log()
    (city / "cut.gz").write_bytes(gzip.compress(b"\n".join(lines))[:-60_000])
    (city / "long.ndjson").write_bytes(b"\n".join(lines))
    cut = replay(city, "--ledger", "l2", files=("cut.gz",))
    said = words(cut.stderr)
    assert cut.returncode == 2 and "cut.gz:" in said
    assert "accepted" in said and "refused: " in said and "released" in said
    assert "accepted pings wait" in said and "on the same ledger" in said
    records = [release.decode(line) for line in cut.stdout.splitlines()]
    held = int(said.partition(" accepted pings wait")[0].rpartition(" ")[2].replace(",", ""))
    taken = int(said.partition("pings ")[2].partition(" accepted")[0].replace(",", ""))
    repeats = int(said.partition(" accepted, ")[2].partition(" of")[0].replace(",", ""))
    assert 0 < held < taken and sum(record.counts.samples for record in records) + repeats == taken - held
    whole = replay(city, "--ledger", "l2", files=("long.ndjson",))
    assert whole.returncode == 0 and b"wait in slots" not in whole.stderr
    assert cut.stdout and set(cut.stdout.splitlines()) < set(whole.stdout.splitlines())
    assert run("ledger", "verify", "--ledger", "l2", cwd=city).returncode == 0
    ids = [release.decode(line).release_id for line in whole.stdout.splitlines()]
    once = replay(city, "--ledger", "l3", files=("long.ndjson",)).stdout.splitlines()
    assert sorted(ids) == sorted(release.decode(line).release_id for line in once)


def test_a_trial_that_is_cut_short_does_not_send_people_back_to_a_ledger_that_is_gone(city):
    (city / "cut.gz").write_bytes(gzip.compress(b"\n".join(fleet_log()))[:-60_000])
    cut = run("replay", "cut.gz", "--trial", "--config", "city.toml", cwd=city)
    said = words(cut.stderr)
    assert cut.returncode == 2 and "accepted pings wait" in said
    assert "same ledger" not in said and "run draws every HAT again" in said


COMMANDS = ("ledger", "verify", "--ledger", "l"), ("plan",), ("ledger", "export", "--ledger", "l")


@pytest.mark.parametrize("commands", long_but([COMMANDS[:1]], [COMMANDS[:1], COMMANDS]), ids=len)
def test_a_closed_stream_of_data_is_an_error_and_a_closed_stderr_is_none(city, commands):
    flags = ("--config", "city.toml", "--ledger", "l")
    done = in_shell(city, "<&-", "replay", "-", *flags)
    assert (done.returncode, done.stderr) == (2, b"udp-stream: standard input cannot be read: Bad file descriptor\n")
    done = in_shell(city, ">&-", "replay", "pings.ndjson", "--config", "city.toml", "--ledger", "never")
    assert done.returncode == 2 and b"Bad file descriptor" in done.stderr
    for command in commands:
        done = in_shell(city, ">&-", *command)
        assert done.returncode == 4 and done.stderr.endswith(b"udp-stream: standard output: Bad file descriptor\n")
    done = in_shell(city, "2>&-", "replay", "pings.ndjson", *flags)
    assert (done.returncode, done.stdout) == (0, (city / "whole").read_bytes())
    done = in_shell(city, "2>&-", "replay", "nowhere", *flags)
    assert (done.returncode, done.stdout) == (2, b"")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_what_is_told_is_there_at_once_also_where_python_does_not_buffer(tmp_path, unbuffered):
    """Whoever starts a worker reads in its log that it serves; containers set PYTHONUNBUFFERED."""
    program = (
        "import sys; from pathlib import Path; from udp_stream.cli.stdio import use_standard_streams;"
        "use_standard_streams(); print('serving', file=sys.stderr); sys.exit(Path('log').read_text() != 'serving\\n')"
    )
    with (tmp_path / "log").open("ab") as log:
        done = subprocess.run(
            [sys.executable, "-c", program],
            stderr=log,
            cwd=tmp_path,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    assert done.returncode == 0


def test_with_every_stream_closed_files_are_written_all_the_same(city):
    """The numbers of closed streams are free: no file may get them, and with them what is printed."""
    before = contents(city)
    flags = ("--config", "city.toml", "--ledger", "l", "--out", "again")
    assert in_shell(city, "<&- >&- 2>&-", "replay", "pings.ndjson", *flags).returncode == 0
    after = contents(city)
    assert after.pop("again") == before["whole"]
    assert {name: after[name] for name in before} == before


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no full device here")  # noqa: PTH110
def test_a_full_disk_is_told_with_the_file_that_it_was(city):
    for flags in (("--out", "/dev/full"), ("--out", "o", "--rejected", "/dev/full")):
        done = replay(city, *flags)
        assert done.returncode == 4 and b"No space left on device" in done.stderr
        assert b"Traceback" not in done.stderr and b"accepted" in done.stderr
    for redirection, status in ((">/dev/full", 2), ("2>/dev/full", 0)):
        done = in_shell(city, redirection, "replay", "pings.ndjson", "--config", "city.toml", "--ledger", "l")
        assert done.returncode == status
    done = in_shell(city, ">/dev/full", "ledger", "export", "--ledger", "l")
    assert done.returncode == 4 and done.stderr.endswith(b"udp-stream: standard output: No space left on device\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no full device here")  # noqa: PTH110
def test_what_was_recorded_and_not_written_is_told_and_comes_out_of_a_second_run(city):
    """Also where the reader of a pipe has gone away."""
    for redirection, flags in (("", ("--out", "/dev/full")), ("| true", ())):
        command = "replay", "pings.ndjson", "--config", "city.toml", "--ledger", "l2", *flags
        said = words(in_shell(city, redirection, *command).stderr)
        assert "Some records" in said
        found = re.search(r"pings ([\d,]+) accepted.* HATs (\d+) in 1 slot .* ([\d,]+) accepted pings wait", said)
        taken, recorded, held = (int(number.replace(",", "")) for number in found.groups())
        assert recorded > 0 and 0 < held < taken
        assert f"{recorded} entries" in words(run("ledger", "verify", "--ledger", "l2", cwd=city).stdout)
    whole = replay(city, "--ledger", "l2")
    records = len(whole.stdout.splitlines())
    assert whole.returncode == 0 and b"not in the output" not in whole.stderr and records > recorded
    assert f"{records} entries" in words(run("ledger", "verify", "--ledger", "l2", cwd=city).stdout)


@pytest.mark.parametrize(
    ("verb", "status"),
    [
        (("plan",), 0),
        (("config", "show"), 0),
        (("--help",), 0),
        (("--version",), 0),
        (("ledger", "show", "GJ05ZZ0001", "--ledger", "l"), 0),
        (("ledger", "export", "--ledger", "l"), 0),
        (("ledger", "verify", "--ledger", "l"), 141),
        (("config", "check"), 141),
        (("doctor", "pings.ndjson", "--ledger", "l"), 141),
        (("init", "pings.ndjson"), 141),
        (("replay", "pings.ndjson", "--config", "city.toml"), 141),
        (("run", "pings.ndjson", "--config", "city.toml", "--ledger", "l4"), 141),
        (("demo", "--headless", "--slots", "1", "--buses", "20"), 141),
    ],
)
def test_a_reader_that_has_gone_away_is_no_alarm(city, verb, status):
    """What only prints has done what it was asked for; what releases or judges says by its status that it has not."""
    read, write = os.pipe()
    os.close(read)
    with (city / "said").open("w+b") as err, Path(os.devnull).open("rb") as nothing:
        process = Forked("tests.forked", verb, [nothing.fileno(), write, err.fileno()], city)
        os.close(write)
        ended = process.wait(40)
        err.seek(0)
        said = err.read()
    assert ended == status, said
    assert b"closed" not in said and b"Traceback" not in said and b"roken" not in said


def test_a_named_pipe_without_a_reader_is_a_dependency_that_failed(city):
    """It was named as the place of the records: nobody asked for their beginning alone."""
    os.mkfifo(city / "pipe")
    reader = subprocess.Popen(["head", "-c", "1", "pipe"], cwd=city, stdout=subprocess.DEVNULL)
    done = replay(city, "--out", "pipe", "--ledger", "l5")
    assert (reader.wait(20), done.returncode) == (0, 4)
    assert done.stderr.splitlines()[-1] == b"udp-stream: pipe: its reader has closed it"


def test_a_directory_is_no_ledger(city):
    done = replay(city, "--ledger", ".")
    assert done.returncode == 4 and b"got a directory" in done.stderr


@pytest.mark.parametrize("name", ["empty.csv", "empty.ndjson", "empty.json", "blank.csv"])
def test_an_empty_file_is_no_success_and_says_so(name, city):
    (city / name).write_bytes(b"\n \n" if name == "blank.csv" else b"")
    done = replay(city, files=(name,))
    assert (done.returncode, done.stdout) == (2, b"")
    assert f"{name}: expected pings, and found none" in words(done.stderr)


def test_when_nothing_is_accepted_the_commonest_reason_is_told(city):
    done = replay(city, "--set", "pings.box=[0, 0, 1, 1]")
    assert (done.returncode, done.stdout) == (2, b"") and "outside_box at $.location.coordinates" in words(done.stderr)
    assert "wanted pings.box" in words(done.stderr) and not (city / "no.ledger").exists()
    pings = [json.loads(line) for line in fleet_log(hours=0.6, clean=True)[:20]]
    (city / "pretty.ndjson").write_text(json.dumps(pings, indent=1))
    done = replay(city, files=("pretty.ndjson",))
    said = words(done.stderr)
    assert done.returncode == 2 and "not_json at $" in said and "end in .ndjson" in said
    (city / "pretty.ndjson").rename(city / "pretty.json")
    assert "pings 20 accepted" in words(replay(city, files=("pretty.json",)).stderr)


def test_a_feed_that_is_mostly_refused_charges_nothing_whichever_file_it_is_and_says_what_would_help(city, tmp_path):
    """Before the first file's slots are charged; a pipe when its turn comes."""
    pings = [json.loads(line) for line in fleet_log(hours=0.6, clean=True)]
    for one in pings:
        moment = datetime.fromisoformat(one["observationDateTime"])
        one["observationDateTime"] = int(moment.timestamp())
    (city / "epoch.ndjson").write_text("\n".join(map(json.dumps, pings)))
    done = replay(city, "--rejected", "no", "--ledger", "fresh", files=("pings.ndjson", "epoch.ndjson"))
    assert (done.returncode, done.stdout) == (2, b"") and not (city / "fresh").exists()
    said = done.stderr.decode()
    assert "found epoch_s" in said and "Traceback" not in said
    assert not [one for one in pings if one["license_plate"] in said]
    piped = run("replay", "-", "--trial", cwd=city, stdin=(city / "epoch.ndjson").read_bytes())
    assert (piped.returncode, piped.stdout) == (2, b"") and b"of its beginning refused" in piped.stderr
    mended = replay(city, "--set", "source.time_format=epoch_s", "--ledger", "other", files=("epoch.ndjson",))
    assert mended.returncode == 0 and f"{len(pings):,} accepted" in words(mended.stderr)


def test_speeds_do_not_decide_whether_a_run_begins_and_nothing_accepted_is_status_2(city):
    """Each ping is refused for its speed: the run begins, and ends with the reason."""
    pings = [json.loads(line) | {"speed": 500} for line in fleet_log(hours=0.6, clean=True)[:50]]
    (city / "fast.ndjson").write_text("\n".join(map(json.dumps, pings)))
    done = replay(city, "--rejected", "no", "--ledger", "fresh", files=("fast.ndjson",))
    assert done.returncode == 2 and "speed_above_limit at $.speed" in words(done.stderr) and b"500" not in done.stderr
    assert len((city / "no").read_text().splitlines()) == 50


def test_the_plate_to_show_is_the_plate_that_pings_name(city):
    plate = json.loads(fleet_log(clean=True)[0])["license_plate"]
    plain, padded = (run("ledger", "show", text, "--ledger", "l", cwd=city) for text in (plate, f"  {plate}\t"))
    assert plain.stdout == padded.stdout and b"charged" in plain.stdout
    unknown = run("ledger", "show", "NOSUCH", "--ledger", "l", cwd=city)
    assert (unknown.returncode, unknown.stdout) == (0, b"")
    assert (
        b"no charge is recorded for this plate, so it has its whole budget: epsilon 10 per 1d. "
        b"Spelling and case matter\n" in unknown.stderr
    )


def test_the_demos_picture_reaches_to_the_highest_speed(tmp_path):
    flags = ("--slots", "1", "--buses", "60", "--set", "hat.slot=1h", "--set", "speed.max_kmh=20")
    done = run("demo", "--headless", *flags, "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = done.stdout.decode().splitlines()
    assert sum(row.endswith("0 to 20 km/h") for row in rows) == 1
    means = {one.hat.cell: one.mean for one in map(release.decode, (tmp_path / "out").read_bytes().splitlines())}
    drawn = [row for row in rows if "|" in row]
    assert drawn
    for row in drawn:
        assert row.split("|")[1].index("●") == round(means[row.split()[0]].value_kmh / 20 * BAR_STEPS)
    records = run("demo", "--headless", *flags, "--out", "-", cwd=tmp_path).stdout.splitlines()
    assert records and all(release.decode(line) for line in records)


def test_refused_rows_and_messages_in_strings_are_kept_as_the_docs_say(tmp_path):
    """A row as the ping that was read from it, a line that is no row as it is, a string whole."""
    head, bad = b"license_plate,observationDateTime,speed,location.coordinates\n", b'A1,,5,"[72.5, 21.2]"\n'
    good = bad.replace(b",,", b",2024-01-08T09:00:05+05:30,") * 9  # what is mostly refused would not be read
    (tmp_path / "f.csv").write_bytes(head + bad + b"no row\n" + good)
    text = json.dumps('[{"speed": 1}, {"speed": 2}]')
    lines = [text, '[{"speed": 3}, {"speed": 4}]', *map(bytes.decode, fleet_log(hours=0.6, clean=True)[:9])]
    (tmp_path / "f.ndjson").write_text("\n".join(lines))
    done = run("replay", "f.csv", "f.ndjson", *FLAGS, "--out", "o", "--rejected", "no", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    kept = [json.loads(line)["message"] for line in (tmp_path / "no").read_text().splitlines()]
    ping = '{"license_plate":"A1","location":{"coordinates":[72.5, 21.2]},"speed":5}'
    assert kept == [ping, "no row", text, text, '{"speed": 3}', '{"speed": 4}']


def test_replay_writes_the_forms_that_suffixes_name(tmp_path):
    log = tmp_path / "pings.ndjson"
    log.write_bytes(b"\n".join(fleet_log(hours=0.6)) + b"\n")
    outputs = ("--out", "out.geojson", "--smoothed", "estimates.csv.gz", "--ledger", "l")
    done = run("replay", log, *FLAGS, *outputs, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    features = json.loads((tmp_path / "out.geojson").read_text())["features"]
    again = run("replay", log, *FLAGS, "--ledger", "l", cwd=tmp_path)
    records = [json.loads(line) for line in again.stdout.splitlines()]
    ids = [feature["properties"]["release_id"] for feature in features]
    assert ids == [record["release_id"] for record in records] and len(ids) > 20
    with gzip.open(tmp_path / "estimates.csv.gz", "rt") as file:
        assert file.readline().startswith("schema,hat.cell,") and sum(1 for _ in file) >= len(ids)
    refused = run("replay", log, *FLAGS, "--out", "out.parquet.gz", cwd=tmp_path)
    assert refused.returncode == 2 and b"expected .parquet without .gz" in refused.stderr
    assert not (tmp_path / "out.parquet.gz").exists()
