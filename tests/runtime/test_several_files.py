"""`init` and `plan` of several files, and what they say of an address or a pipe in their place."""

import json
import os
import re

import pytest

from benchmarks.feed_forms import FORMS, recorded
from tests.gtfs import START_S, snapshot, vehicle
from tests.runtime.harness import fleet_log
from tests.runtime.test_cli import run
from udp_stream.cli.found_feed import find_feed
from udp_stream.errors import UsageError

PINGS = recorded(fleet_log(buses=20, hours=0.5, clean=True))


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
    assert two == one and first.pings < one.pings and first.last_ms < one.last_ms
    done = run("init", *both, "--out", "city.toml", cwd=tmp_path)
    assert done.returncode == 0 and f"udp-stream replay {both[0]} {both[1]} --config city.toml" in done.stderr.decode()
    assert "0-semicolons.csv and 1 more" in (tmp_path / "city.toml").read_text()


def test_plan_counts_several_files_together(tmp_path):
    whole, both = halves(tmp_path, "plain.ndjson")
    planned = [
        json.loads(run("plan", *names, "--json", "--set", "hat.slot=15m", cwd=tmp_path).stdout)
        for names in ([whole], both)
    ]
    assert planned[0] == planned[1] and planned[0]["pings"] == len(PINGS)


def poll(at):
    """Ten buses, each a little further each minute."""
    time_s = START_S + 60 * at
    return snapshot(
        *(vehicle(f"GJ05ZZ{bus:04}", time_s=time_s, lon=72.8 + bus / 100 + at / 1000, lat=21.1) for bus in range(10)),
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
    done = run("plan", *names, "--set", "speed.unit=mps", "--json", cwd=tmp_path)
    assert done.returncode == 0 and json.loads(done.stdout)["pings"] == 30, done.stderr


def test_files_of_two_kinds_are_not_one_recording(tmp_path):
    (tmp_path / "1.pb").write_bytes(poll(1))
    (tmp_path / "a.ndjson").write_bytes(FORMS["plain.ndjson"](PINGS))
    done = run("init", "a.ndjson", "1.pb", cwd=tmp_path)
    assert done.returncode == 2 and b"expected files of one kind" in done.stderr


@pytest.mark.parametrize("verb", ["init", "plan", "doctor"])
@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("https://example.org/v.pb?token=secret", r"`curl -o 1\.pb ADDRESS`, .*then name 1\.pb 2\.pb. `run` reads"),
        ("http://me:secret@example.org/v", r"`curl -o 1\.json ADDRESS`"),
        ("amqps://me:secret@example.org/", r"its messages, one a line, as sample\.ndjson"),
    ],
)
def test_an_address_is_answered_with_what_to_do_and_not_shown(verb, address, words, tmp_path):
    done = run(verb, address, cwd=tmp_path)
    said = done.stderr.decode()
    assert done.returncode == 2 and re.search(words, said) and "secret" not in said and "example" not in said
    assert done.stdout == b""


def test_init_does_not_read_a_pipe(tmp_path):
    """Not by any name: of a shell's `<(command)` the second look found nothing, and that at a named one waited."""
    os.mkfifo(tmp_path / "pipe")
    for name in ("-", "pipe", "/dev/stdin"):
        done = run("init", name, cwd=tmp_path, stdin=b"{}")
        said = f"expected files, which can be read twice, got {name}: save some of it"
        assert done.returncode == 2 and said in done.stderr.decode()


def test_a_file_in_another_form_than_the_others_is_named_and_not_left_out(tmp_path):
    names = "license_plate,observationDateTime,longitude,latitude,speed"
    rows = [
        f"GJ05ZZ{at:04},2024-01-08T10:00:{at:02}+05:30,72.{83 + at % 5},21.{19 + at % 3},{20 + at}" for at in range(40)
    ]
    (tmp_path / "a.csv").write_text("\n".join([names, *rows]) + "\n")
    (tmp_path / "b.csv").write_text("\n".join([names, *rows]).replace(",", ";") + "\n")
    (tmp_path / "c.csv").write_text("\n".join([names.replace("speed", "tempo"), *rows]) + "\n")
    alike = [str(tmp_path / "a.csv"), str(tmp_path / "a.csv")]
    assert find_feed(alike).pings == 80
    for other in ("b.csv", "c.csv"):
        with pytest.raises(UsageError, match=rf"{other}: (not in the form of|expected a CSV header with speed)"):
            find_feed([*alike, str(tmp_path / other)])
