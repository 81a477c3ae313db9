"""`plan FILE`: rows from a file's counts; its speeds are not read, and nothing is charged."""

import json
import re
from dataclasses import replace
from datetime import datetime

import pytest

from udp_stream.cli import main as cli
from udp_stream.cli import plan_of_feed
from udp_stream.cli.plan_of_feed import Row, start_of, verdict
from udp_stream.release.rehearsal import Rehearsed
from udp_stream.trial.fleet import IST, Fleet, Imperfections


@pytest.fixture(autouse=True)
def _streams_stay(monkeypatch):
    """The command line lets go of standard streams when it ends; here it ends often."""
    monkeypatch.setattr(cli, "use_standard_streams", lambda: None)
    monkeypatch.setattr(cli, "let_go_of_stdout", lambda: None)
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    monkeypatch.setattr(plan_of_feed, "SLOTS", ("1h", "3h"))  # a rehearsal takes its time


@pytest.fixture(scope="module")
def pings():
    fleet = Fleet(seed=3, buses=30, start=datetime(2024, 1, 8, 9, 0, tzinfo=IST), hours=1.0)
    sent = [json.loads(message) for batch in fleet.messages() for message in batch if is_json(message)]
    return [ping for ping in sent if isinstance(ping, dict)]


def is_json(message):
    try:
        return json.loads(message) is not None
    except ValueError:
        return False


def plan(capsys, *arguments):
    status = cli.main(["plan", *map(str, arguments)])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def written(path, pings):
    path.write_text("".join(json.dumps(ping) + "\n" for ping in pings))
    return path


def test_a_row_for_each_resolution_and_slot_and_one_to_start_with(capsys, tmp_path, pings):
    status, out, _ = plan(capsys, written(tmp_path / "a.ndjson", pings))
    rows = re.findall(r"^ *([678]) +(1h|3h) +([\d,]+) +(\d+) +(\d+) +(\d+)% +([\d.]+) +([\d.]+) +([\d.]+) ", out, re.M)
    assert status == 0 and [row[:2] for row in rows] == [(h3, slot) for h3 in "678" for slot in ("1h", "3h")]
    assert len(re.findall("<- start here$", out, re.M)) == 1
    (start,) = re.findall(r"Start with hat.resolution = (\d) and hat.slot = '(\w+)'", out)
    (marked,) = [line.split()[:2] for line in out.splitlines() if line.endswith("<- start here")]
    assert tuple(marked) == start
    assert list(tmp_path.iterdir()) == [tmp_path / "a.ndjson"]  # no ledger, no key


def test_other_speeds_at_the_same_places_and_times_print_the_same_bytes(capsys, tmp_path, pings):
    fast = [{**ping, "speed": 64.0} if isinstance(ping.get("speed"), int | float) else ping for ping in pings]
    odd = [ping for ping in pings if not isinstance(ping.get("speed"), int | float) or not 0 <= ping["speed"] <= 200]
    kept = [ping for ping in fast if ping not in odd]
    slow = [{**ping, "speed": 0.0} for ping in kept]
    file = written(tmp_path / "a.ndjson", kept)
    first = plan(capsys, file)
    written(file, slow)
    assert plan(capsys, file) == first and first[0] == 0


def test_rows_that_the_configuration_does_not_allow_are_named_with_the_rule(capsys, tmp_path, pings):
    status, out, _ = plan(capsys, written(tmp_path / "a.ndjson", pings), "--set", "budget.period=1h")
    assert status == 0 and " 3h " not in out.split("Left out")[0]
    assert "Left out: H3 6, 3h: budget.period: expected a multiple of hat.slot (3h)" in " ".join(out.split())


def test_a_file_without_an_accepted_ping_is_refused(capsys, tmp_path):
    file = written(tmp_path / "a.ndjson", [{"license_plate": "A1"}])
    status, out, err = plan(capsys, file)
    assert status == 2 and out == "" and "of its beginning refused" in " ".join(err.split())


def row(resolution, slot, error, constant=4.0, counts=3.0, served=0.5):
    return Row(resolution, slot, 10, 10, 10, Rehearsed(error, constant, counts, served))


def test_the_row_to_start_with_is_the_finest_that_is_clearly_better_than_both_guesses():
    coarse, fine, finest = row(6, "6h", 1.0), row(7, "1h", 2.0), row(8, "30m", 2.9)
    assert start_of([coarse, fine, finest])[0] is fine
    assert start_of([coarse, finest])[0] is coarse
    best, why = start_of([row(8, "1h", 2.95), finest])
    assert best is finest and why.startswith("none errs by at most 80%")
    assert start_of([coarse, row(7, "1h", 2.0, served=0.49)])[0] is coarse


@pytest.mark.parametrize(
    ("error", "said"),
    [(2.8, "better than both guesses"), (2.9, "about as good as a guess"), (4.1, "about as good as a guess"),
     (4.3, "worse than the baseline guess")],
)  # fmt: skip
def test_verdicts_are_beside_the_better_guess(error, said):
    assert verdict(row(7, "1h", error)) == said


@pytest.fixture(scope="module")
def hour():
    """Of a fleet by day, without faults."""
    start = datetime(2024, 1, 8, 9, 0, tzinfo=IST)
    fleet = Fleet(seed=3, buses=30, start=start, hours=1.0, imperfections=Imperfections.none())
    return [json.loads(message) for batch in fleet.messages() for message in batch]


def test_a_slot_that_is_longer_than_the_file_has_no_verdict_and_is_not_started_with(capsys, tmp_path, hour):
    file = written(tmp_path / "a.ndjson", hour)
    status, out, _ = plan(capsys, file)
    lines = [line for line in out.splitlines() if re.match(r" *[678] +[13]h ", line)]
    assert status == 0 and len(lines) == 6
    for line in lines:
        assert ("the file is shorter than this slot" in line) == (" 3h " in line), line
        assert not (" 3h " in line and ("guess" in line or "start here" in line))
    found = json.loads(plan(capsys, file, "--json")[1])
    assert {row["verdict"] for row in found["rows"] if row["slot"] == "3h"} == {"the file is shorter than this slot"}


def test_a_row_of_five_hats_is_judged():
    enough = replace(row(8, "30m", 1.0), hats=5)
    assert verdict(enough) == "better than both guesses" and start_of([enough])[0] is enough


def test_where_no_row_can_be_judged_none_is_recommended():
    longer, tiny = replace(row(7, "1h", 2.0), is_longer=True), replace(row(8, "30m", 1.0), hats=4)
    assert verdict(longer) == "the file is shorter than this slot" and verdict(tiny) == "too few HATs to compare"
    start, why = start_of([longer, tiny])
    assert start is None and why.startswith("no row can be judged: the file is too short")


@pytest.mark.parametrize("many", [1, 40], ids=["one ping", "one depot"])
def test_a_file_of_one_hat_is_planned_without_a_recommendation(capsys, tmp_path, hour, many):
    """With one HAT the guess of one number errs nowhere."""
    here = [{**ping, "location": hour[0]["location"]} for ping in hour[:many]]
    file = written(tmp_path / "a.ndjson", here)
    status, out, _ = plan(capsys, file)
    assert status == 0 and "start here" not in out and "Start here: no row can be judged" in out
    found = json.loads(plan(capsys, file, "--json")[1])
    assert set(found["start"]) == {"why"}
    assert {one["verdict"] for one in found["rows"]} <= {
        "too few HATs to compare",
        "the file is shorter than this slot",
    }


def test_a_ping_from_the_future_makes_no_slot_of_its_own_as_in_a_replay(capsys, tmp_path, hour):
    future = [hour[at] | {"observationDateTime": "2068-01-08T06:00:00+05:30"} for at in (1, 2)]
    _, clean, _ = plan(capsys, written(tmp_path / "a.ndjson", hour), "--json")
    _, found, _ = plan(capsys, written(tmp_path / "b.ndjson", [*hour, *future]), "--json")
    assert json.loads(found) == json.loads(clean) and "2068" not in found
