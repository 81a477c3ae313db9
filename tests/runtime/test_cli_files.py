"""What the command line reads and writes: nothing that is needed is overwritten, nothing is lost
without a word."""

import gzip
import json
import os
import re
import shutil
import subprocess
from datetime import datetime

import pytest

from tests.runtime.harness import fleet_log
from tests.runtime.test_cli import UDP_STREAM, run
from udp_stream.release import record as release


@pytest.fixture(scope="module")
def made_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made-once")
    (folder / "pings.ndjson").write_bytes(b"\n".join(fleet_log(hours=0.6)) + b"\n")
    (folder / "city.toml").write_text(
        "[hat]\nslot = '15m'\nresolution = 7\n[budget]\naccounting = 'pure'\n[release]\nmin_plates = 4\n"
    )
    assert replay(folder, "--out", "whole").returncode == 0
    return folder


@pytest.fixture
def city(made_once, tmp_path):
    return shutil.copytree(made_once, tmp_path, dirs_exist_ok=True)


def replay(folder, *arguments, files=("pings.ndjson",), **options):
    return run(
        "replay",
        *files,
        "--config",
        "city.toml",
        "--ledger",
        "l",
        *arguments,
        cwd=folder,
        **options,
    )


def in_shell(folder, redirections, *arguments):
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
    (city / "l-wal").write_bytes(b"\x37\x7f\x06\x82" + bytes(40))
    before = contents(city)
    done = replay(city, "--ledger", "other", "--out", name)
    assert (
        done.returncode == 2
        and f"--out {name}: expected a file that may be overwritten" in words(done.stderr)
    )
    assert contents(city) == before
    demo = run("demo", "--headless", "--slots", "1", "--out", name, cwd=city)
    assert demo.returncode == 2 and contents(city) == before


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
    first, again = (
        replay(city, "--out", name, "--smoothed", "estimates") for name in ("one", "two")
    )
    assert (first.returncode, again.returncode) == (0, 0)
    estimates = (city / "estimates").read_bytes()
    apart = replay(city, "--out", "three", "--smoothed", "-")
    assert apart.returncode == 0 and apart.stdout == estimates
    assert len(estimates.splitlines()) >= len((city / "one").read_bytes().splitlines()) > 0
    assert b'"udp-stream/smoothed/1"' in estimates


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


def test_a_log_cut_short_is_summed_up_and_the_whole_one_goes_on_from_there(city):
    lines = fleet_log()
    (city / "cut.gz").write_bytes(gzip.compress(b"\n".join(lines))[:-60_000])
    (city / "long.ndjson").write_bytes(b"\n".join(lines))
    cut = replay(city, "--ledger", "l2", files=("cut.gz",))
    said = words(cut.stderr)
    assert cut.returncode == 2 and "cut.gz:" in said
    assert "accepted" in said and "refused: " in said and "released" in said
    assert "accepted pings wait" in said and "on the same ledger" in said
    records = [release.Release.decode(line) for line in cut.stdout.splitlines()]
    held = int(said.partition(" accepted pings wait")[0].rpartition(" ")[2].replace(",", ""))
    taken = int(said.partition("pings ")[2].partition(" accepted")[0].replace(",", ""))
    repeats = int(said.partition(" accepted, ")[2].partition(" of")[0].replace(",", ""))
    assert (
        0 < held < taken
        and sum(record.counts.samples for record in records) + repeats == taken - held
    )
    whole = replay(city, "--ledger", "l2", files=("long.ndjson",))
    assert whole.returncode == 0 and b"wait in slots" not in whole.stderr
    assert cut.stdout and set(cut.stdout.splitlines()) < set(whole.stdout.splitlines())
    assert run("ledger", "verify", "--ledger", "l2", cwd=city).returncode == 0
    ids = [release.Release.decode(line).release_id for line in whole.stdout.splitlines()]
    once = replay(city, "--ledger", "l3", files=("long.ndjson",)).stdout.splitlines()
    assert sorted(ids) == sorted(release.Release.decode(line).release_id for line in once)


def test_with_every_stream_closed_files_are_written_all_the_same(city):
    before = contents(city)
    flags = ("--config", "city.toml", "--ledger", "l", "--out", "again")
    assert in_shell(city, "<&- >&- 2>&-", "replay", "pings.ndjson", *flags).returncode == 0
    after = contents(city)
    assert after.pop("again") == before["whole"]
    assert {name: after[name] for name in before} == before


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no full device here")  # noqa: PTH110
def test_what_was_recorded_and_not_written_is_told_and_comes_out_of_a_second_run(city):
    for redirection, flags in (("", ("--out", "/dev/full")), ("| true", ())):
        command = "replay", "pings.ndjson", "--config", "city.toml", "--ledger", "l2", *flags
        said = words(in_shell(city, redirection, *command).stderr)
        assert "Some records" in said
        found = re.search(
            r"pings ([\d,]+) accepted.* HATs (\d+) in 1 slot .* ([\d,]+) accepted pings wait", said
        )
        taken, recorded, held = (int(number.replace(",", "")) for number in found.groups())
        assert recorded > 0 and 0 < held < taken
        assert f"{recorded} entries" in words(
            run("ledger", "verify", "--ledger", "l2", cwd=city).stdout
        )
    whole = replay(city, "--ledger", "l2")
    records = len(whole.stdout.splitlines())
    assert whole.returncode == 0 and b"not in the output" not in whole.stderr and records > recorded
    assert f"{records} entries" in words(run("ledger", "verify", "--ledger", "l2", cwd=city).stdout)


def test_a_feed_that_is_mostly_refused_charges_nothing_whichever_file_it_is_and_says_what_would_help(
    city, tmp_path
):
    pings = [json.loads(line) for line in fleet_log(hours=0.6, clean=True)]
    for one in pings:
        moment = datetime.fromisoformat(one["observationDateTime"])
        one["observationDateTime"] = int(moment.timestamp())
    (city / "epoch.ndjson").write_text("\n".join(map(json.dumps, pings)))
    done = replay(
        city, "--rejected", "no", "--ledger", "fresh", files=("pings.ndjson", "epoch.ndjson")
    )
    assert (done.returncode, done.stdout) == (2, b"") and not (city / "fresh").exists()
    said = done.stderr.decode()
    assert "found epoch_s" in said and "Traceback" not in said
    assert not [one for one in pings if one["license_plate"] in said]
    piped = run("replay", "-", "--trial", cwd=city, stdin=(city / "epoch.ndjson").read_bytes())
    assert (piped.returncode, piped.stdout) == (
        2,
        b"",
    ) and b"of its beginning refused" in piped.stderr
    mended = replay(
        city, "--set", "source.time_format=epoch_s", "--ledger", "other", files=("epoch.ndjson",)
    )
    assert mended.returncode == 0 and f"{len(pings):,} accepted" in words(mended.stderr)


def test_speeds_do_not_decide_whether_a_run_begins_and_nothing_accepted_is_status_2(city):
    pings = [json.loads(line) | {"speed": 500} for line in fleet_log(hours=0.6, clean=True)[:50]]
    (city / "fast.ndjson").write_text("\n".join(map(json.dumps, pings)))
    done = replay(city, "--rejected", "no", "--ledger", "fresh", files=("fast.ndjson",))
    said = done.stderr.replace(str(city).encode(), b"")  # whose name has a number, too
    assert done.returncode == 2 and "speed_above_limit" in words(said) and b"500" not in said
    assert len((city / "no").read_text().splitlines()) == 50
