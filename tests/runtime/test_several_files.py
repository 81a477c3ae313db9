"""`init` and `plan` of several files, and what they say of an address or a pipe in their place."""

import pytest

from benchmarks.feed_forms import FORMS, recorded
from tests.gtfs import START_S, snapshot, vehicle
from tests.runtime.harness import fleet_log
from tests.runtime.test_cli import run
from udp_stream.cli.commands.init import find_feed

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
    assert two == one and first.pings < one.pings and first.hours != one.hours
    done = run("init", *both, "--out", "city.toml", cwd=tmp_path)
    assert done.returncode == 0 and f"udp-stream replay {both[0]} {both[1]} --config city.toml" in done.stderr.decode()
    assert "0-semicolons.csv and 1 more" in (tmp_path / "city.toml").read_text()


def poll(at):
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
    done = run("plan", *names, "--set", "speed.unit=mps", cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.startswith(b"30 pings of 10 plates"), done.stderr


@pytest.mark.parametrize("verb", ["init", "plan", "doctor"])
@pytest.mark.parametrize("address", ["https://example.org/v.pb?token=secret", "amqps://me:secret@example.org/"])
def test_an_address_is_answered_with_what_to_do_and_not_shown(verb, address, tmp_path):
    done = run(verb, address, cwd=tmp_path)
    said = done.stderr.decode()
    assert done.returncode == 2 and "`run` reads the address" in said and "secret" not in said and "example" not in said
    assert done.stdout == b""
