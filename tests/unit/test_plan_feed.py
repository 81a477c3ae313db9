"""`plan FILE`: rows from a file's counts; its speeds are not read, and nothing is charged."""

import json
import math
import re
from datetime import datetime

import numpy as np
import pytest

from udp_stream.cli import main as cli
from udp_stream.cli import plan_of_feed, plan_of_promises
from udp_stream.cli.plan_of_feed import Positions, Row, sample_of, start_of
from udp_stream.release import rehearsal
from udp_stream.release.rehearsal import RehearsalResult
from udp_stream.settings import load
from udp_stream.sources.fleet import IST, Fleet
from udp_stream.testing import SeededEntropy
from udp_stream.windows.grid import Hexagons

pytestmark = pytest.mark.usefixtures("streams_stay")


@pytest.fixture(autouse=True)
def _few_rows(limits):
    limits(plan_of_feed, SLOTS=("1h", "3h"))  # a rehearsal takes its time
    limits(rehearsal, PAIRS_MAX=2)


@pytest.fixture(scope="module")
def pings():
    fleet = Fleet(seed=3, buses=20, start=datetime(2024, 1, 8, 9, 0, tzinfo=IST), hours=0.9)
    sent = [
        json.loads(message) for batch in fleet.messages() for message in batch if is_json(message)
    ]
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
    rows = re.findall(
        r"^ *([678]) +(1h|3h) +([\d,]+) +(\d+) +(\d+) +(\d+)% +([\d.]+) +([\d.]+) +([\d.]+) ",
        out,
        re.M,
    )
    assert status == 0 and [row[:2] for row in rows] == [
        (h3, slot) for h3 in "678" for slot in ("1h", "3h")
    ]
    assert len(re.findall("<- start here$", out, re.M)) == 1
    (start,) = re.findall(r"Start with hat.resolution = (\d) and hat.slot = '(\w+)'", out)
    (marked,) = [line.split()[:2] for line in out.splitlines() if line.endswith("<- start here")]
    assert tuple(marked) == start
    assert list(tmp_path.iterdir()) == [tmp_path / "a.ndjson"]  # no ledger, no key


def test_other_speeds_at_the_same_places_and_times_print_the_same_bytes(
    capsys, tmp_path, pings, limits
):
    limits(plan_of_feed, SLOTS=())
    fast = [
        {**ping, "speed": 64.0} if isinstance(ping.get("speed"), int | float) else ping
        for ping in pings
    ]
    odd = [
        ping
        for ping in pings
        if not isinstance(ping.get("speed"), int | float) or not 0 <= ping["speed"] <= 200
    ]
    kept = [ping for ping in fast if ping not in odd]
    slow = [{**ping, "speed": 0.0} for ping in kept]
    file = written(tmp_path / "a.ndjson", kept)
    first = plan(capsys, file)
    written(file, slow)
    assert plan(capsys, file) == first and first[0] == 0


def test_a_file_without_an_accepted_ping_is_refused(capsys, tmp_path):
    file = written(tmp_path / "a.ndjson", [{"license_plate": "A1"}])
    status, out, err = plan(capsys, file)
    assert status == 2 and out == "" and "of its beginning refused" in " ".join(err.split())


def row(resolution, slot, error, constant=4.0, counts=3.0, served=0.5):
    return Row(
        Hexagons(resolution), slot, 10, 10, 10, RehearsalResult(error, constant, counts, served)
    )


def test_the_row_to_start_with_is_the_finest_that_is_clearly_better_than_both_guesses():
    coarse, fine, finest = row(6, "6h", 1.0), row(7, "1h", 2.0), row(8, "30m", 2.9)
    assert start_of([coarse, fine, finest])[0] is fine
    assert start_of([coarse, finest])[0] is coarse
    best, why = start_of([row(8, "1h", 2.95), finest])
    assert best is finest and why.startswith("none errs by at most 80%")
    assert start_of([coarse, row(7, "1h", 2.0, served=0.49)])[0] is coarse


PROMISE = re.compile(
    r"^ *(swap-values|add-remove) +([\d.]+) +(\d+d) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+) +(\S.*?) *$",
    re.M,
)
DAY, WEAK_MONTH = ("1d", "10", "735.11"), ("30d", "1.49", "54.51")
STRONG_DAY = "1d", "1", "29.81"


def test_both_promises_are_compared_at_the_same_budget_and_where_speeds_are_hidden_alike(
    capsys, tmp_path, pings, limits
):
    """And at 10 a day, 1 a day, 10 a month, with what an even day and a year add up to."""
    limits(plan_of_feed, SLOTS=())
    limits(rehearsal, PAIRS_MAX=8)
    status, out, _ = plan(capsys, written(tmp_path / "a.ndjson", pings))
    rows = PROMISE.findall(out)
    assert status == 0
    assert [row[:6] for row in rows] == [
        ("swap-values", "10", *DAY, "10"),
        ("swap-values", "1", *STRONG_DAY, "1"),
        ("swap-values", "10", *WEAK_MONTH, "10"),
        ("add-remove", "10", *DAY, "23.47"),
        ("add-remove", "4.51", "1d", "4.51", "226.26", "10"),
        ("add-remove", "1", *STRONG_DAY, "2.11"),
        ("add-remove", "10", *WEAK_MONTH, "23.47"),
    ]
    errors = [float(row[6]) for row in rows]
    assert errors[3] < errors[4] < errors[6] < errors[5] and rows[5][8] == "buys next to nothing"
    assert len({row[7] for row in rows}) == 1, "one guess beside all"
    (table,) = re.findall(r"^ *7 +1h .*?% +([\d.]+) ", out, re.M)
    assert float(table) == errors[0]
    assert "At epsilon 1 per 1d add-remove buys next to nothing" in " ".join(out.split())
    assert "pings.interval = '10s'" in " ".join(out.split())
    assert list(tmp_path.iterdir()) == [tmp_path / "a.ndjson"]


def test_a_configuration_that_hides_plates_is_planned_with_its_own_domain(
    capsys, tmp_path, pings, limits
):
    limits(plan_of_feed, SLOTS=())
    file, box = (
        written(tmp_path / "a.ndjson", pings),
        [[72.7, 21.0], [73.0, 21.0], [73.0, 21.4], [72.7, 21.4]],
    )
    domain = tmp_path / "city.geojson"
    domain.write_text(json.dumps({"type": "Polygon", "coordinates": [[*box, box[0]]]}))
    asked = {
        "privacy.neighbours": "add-remove",
        "hat.domain": domain,
        "pings.interval": "10s",
        "hat.resolution": 6,
    }
    flags = [part for key, value in asked.items() for part in ("--set", f"{key}={value}")]
    status, out, _ = plan(capsys, file, *flags)
    rows = PROMISE.findall(out)
    assert (
        status == 0
        and [row[1] for row in rows] == ["10", "1", "10", "10", "4.51", "1", "10"]
        and "this plan alone" not in " ".join(out.split())
    )
    (table,) = re.findall(r"^ *6 +1h .*?% +([\d.]+) ", out, re.M)
    assert table == rows[3][6]
    assert plan(capsys, *flags)[0] == 2  # no typical HAT has such sums


@pytest.mark.long
def test_a_month_is_planned_as_an_even_day_wherever_in_it_the_file_lies(
    capsys, tmp_path, pings, limits
):
    """Of the 24th day of its period, by which 24 days' parts might be spent, as of any other."""
    limits(plan_of_feed, SLOTS=())
    limits(plan_of_promises, STANDARD=())
    file = written(tmp_path / "a.ndjson", pings[::3])

    def errors(*flags):
        words = [
            word for flag in ("privacy.neighbours=swap-values", *flags) for word in ("--set", flag)
        ]
        return re.findall(r"^ *[678] +1h .*?% +([\d.]+) ", plan(capsys, file, *words)[1], re.M)

    day = f"budget.rho={1_539_278_763 // 30 / 1e9}", "budget.accounting=zcdp"
    of_month = errors("budget.period=30d")
    assert of_month == errors(*day) and of_month != errors()
    pure = "budget.accounting=pure", "budget.epsilon=15"
    assert errors(*pure, "budget.period=30d") == errors(pure[0], "budget.epsilon=0.5")


def test_what_add_remove_refuses_is_said_where_both_would_be_compared(
    capsys, tmp_path, pings, limits
):
    limits(plan_of_feed, SLOTS=())
    status, out, _ = plan(capsys, written(tmp_path / "a.ndjson", pings), "--set", "hat.slot=12h")
    said = " ".join(out.split())
    assert (
        status == 0
        and not PROMISE.findall(out)
        and "Not compared: hat.slot: expected at most 6h" in said
    )


def test_of_a_large_file_whole_slots_are_rehearsed_and_sizes_and_guesses_are_of_all_pings(
    tmp_path, pings, limits
):
    limits(plan_of_feed, SLOTS=("30m", "1h"))
    limits(rehearsal, PAIRS_MAX=4)
    file = str(written(tmp_path / "a.ndjson", pings))
    whole = plan_of_feed.plan_of_feed([file], load(None), SeededEntropy("plan"))
    limits(plan_of_feed, SAMPLE_PINGS=1000)
    sample = plan_of_feed.plan_of_feed([file], load(None), SeededEntropy("plan"))
    assert {row.rehearsed for row in whole.rows} == {1.0}
    for ours, row in zip(sample.rows, whole.rows, strict=True):
        assert (ours.hats, ours.plates, ours.visits) == (row.hats, row.plates, row.visits)
        assert ours.expected.constant == pytest.approx(row.expected.constant, rel=0.01)
        assert ours.expected.counts == pytest.approx(row.expected.counts, rel=0.01)
        assert ours.expected.error == pytest.approx(row.expected.error, rel=0.3)
        assert (ours.rehearsed * len(pings) >= 1000 and ours.rehearsed < 1) == (row.slot == "30m")


def test_a_sample_begins_where_periods_do():
    """Ten days of a bus that pings each ten minutes: 144 a day, of which the last day of the sample
    has a part."""
    settings, minutes = load(None), np.arange(0, 14_400, 10)
    here = (np.full(minutes.size, 21.19), np.full(minutes.size, 72.83))
    positions = Positions(
        np.zeros(minutes.size, np.int64), 1, 1_704_067_200_000 + 60_000 * minutes, *here
    )
    slots = list(plan_of_feed._slots(positions, settings))
    chosen = sample_of(slots, settings, 500)
    assert chosen == sample_of(slots, settings, 500) == sorted(chosen, key=lambda one: one.start_ms)
    assert len(sample_of(slots, settings, math.inf)) == len(slots)
    days = {}
    for one in slots:
        days.setdefault(settings.calendar.slot_in_period(one.start_ms).period, []).append(
            one in chosen
        )
    taken = [day for day in days.values() if any(day)]
    assert (
        all(day == sorted(day, reverse=True) for day in taken)
        and sum(not all(day) for day in taken) <= 1
    )
    pings = [int(one.count.sum()) for one in chosen]
    assert 500 <= sum(pings) < 500 + max(pings) and 4 <= len(taken) <= 5


def test_a_sample_has_as_many_hats_as_are_enough(limits):
    """Ten hours of 30 buses, each in a cell of its own: 30 HATs in each slot."""
    limits(plan_of_feed, SAMPLE_HATS=100)
    settings = load(None)
    minutes = np.repeat(np.arange(0, 600, 10), 30)
    bus = np.tile(np.arange(30), 60)
    positions = Positions(
        bus, 30, 1_704_067_200_000 + 60_000 * minutes, 21.19 + bus / 10, np.full(bus.size, 72.83)
    )
    slots = list(plan_of_feed._slots(positions, settings))
    chosen = sample_of(slots, settings, 1000)
    assert sum(one.cells.size for one in chosen) == 120 and len(slots) > 4
