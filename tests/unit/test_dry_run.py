"""`replay --dry-run`: what is likely to be set wrongly is said before anything is charged."""

import json
import re
from datetime import datetime

import pytest

from udp_stream.cli import main as cli
from udp_stream.release import rehearsal
from udp_stream.sources.fleet import IST, Fleet, Imperfections

pytestmark = pytest.mark.usefixtures("streams_stay", "few_rehearsals")


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    start = datetime(2024, 1, 8, 9, 0, tzinfo=IST)
    fleet = Fleet(seed=3, buses=40, start=start, hours=0.5, imperfections=Imperfections.none())
    file = tmp_path_factory.mktemp("log") / "pings.ndjson"
    file.write_bytes(b"\n".join(message for batch in fleet.messages() for message in batch) + b"\n")
    return file


def dry(capsys, log, *flags):
    sets = [word for flag in flags for word in ("--set", flag)]
    status = cli.main(["replay", str(log), "--dry-run", *sets])
    printed = capsys.readouterr()
    return status, " ".join(printed.out.split()), " ".join(printed.err.split())


def test_a_feed_that_is_set_rightly_has_no_warning_and_nothing_is_left_behind(
    capsys, log, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    status, out, err = dry(capsys, log)
    assert status == 0 and "warning" not in out and "pings of 40 plates, " in out
    assert re.search(
        r"expected error baseline guess .* verdict 7 1h [\d,]+ \d+ \d+ \d+% [\d.]+ [\d.]+ [\d.]+ ",
        out,
    )
    assert "nothing was charged" in err and "keep it to yourself" in err
    assert list(tmp_path.iterdir()) == []


def test_errors_of_plan_and_of_a_dry_run_are_near_each_other_and_it_is_said_why_they_differ(
    capsys, log, limits
):
    limits(rehearsal, PAIRS_MAX=8)
    _, out, _ = dry(capsys, log)
    assert cli.main(["plan", str(log)]) == 0
    row = r" 7 1h (?:[\d,]+ ){3}\d+% ([\d.]+) ([\d.]+) "
    texts = out, " ".join(capsys.readouterr().out.split())
    ours, theirs = (tuple(map(float, re.search(row, text).groups())) for text in texts)
    assert ours[0] == pytest.approx(theirs[0], rel=0.15) and ours[1] == theirs[1]
    assert "`plan`" in out and "noise" in out


@pytest.mark.parametrize(
    "verb", [["replay", "--dry-run"], ["replay", "--trial", "--out", "out"], ["plan"]]
)
def test_a_plate_that_all_nameless_buses_share_is_warned_of_and_not_named(
    capsys, log, tmp_path, monkeypatch, verb
):
    monkeypatch.chdir(tmp_path)
    pings = [json.loads(line) for line in log.read_bytes().splitlines()[:2000]]
    lines = [
        json.dumps(ping | ({} if at % 4 else {"license_plate": "XXXXX"}))
        for at, ping in enumerate(pings)
    ]
    (tmp_path / "some.ndjson").write_text("\n".join(lines))
    assert cli.main([verb[0], "some.ndjson", *verb[1:], "--set", "hat.resolution=5"]) == 0
    printed = " ".join(" ".join(capsys.readouterr()).split())
    assert printed.count(", and 500 are of one: is it a word for a missing plate") == 1
    assert "XXXXX" not in printed


def test_no_plate_is_shown_and_outputs_are_refused(capsys, log, tmp_path):
    first = json.loads(log.read_bytes().splitlines()[0])
    first = first[0] if isinstance(first, list) else first
    _, out, err = dry(capsys, log)
    assert first["license_plate"] not in out + err
    for name in ("--out", "--smoothed", "--rejected"):
        assert cli.main(["replay", str(log), "--dry-run", name, str(tmp_path / "x")]) == 2
        assert f"--dry-run writes nothing: leave {name} out" in " ".join(
            capsys.readouterr().err.split()
        )


def test_a_ping_from_the_future_is_refused_as_in_a_replay(capsys, log, tmp_path):
    first = json.loads(log.read_bytes().splitlines()[0])
    first = first[0] if isinstance(first, list) else first
    odd = tmp_path / "odd.ndjson"
    odd.write_bytes(
        log.read_bytes()
        + b"\n"
        + json.dumps(first | {"observationDateTime": "2068-01-08T06:00:00Z"}).encode()
    )
    _, out, err = dry(capsys, odd)
    assert "2068" not in out and "time_in_future" in out + err
