"""Feeds that stand still, in part or altogether: said before anything is charged, and not made into
pings."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from tests.gtfs import START_S, snapshot, vehicle
from tests.runtime.harness import fleet_log
from udp_stream.cli.evidence import Look as Evidence
from udp_stream.cli.evidence import findings
from udp_stream.cli.main import main
from udp_stream.cli.preflight import LiveFeedCheck, look_by
from udp_stream.pings.data_quality import QualityWarning
from udp_stream.pings.decode import PingDecoder
from udp_stream.pings.json import JSON, PLAIN, without_speeds
from udp_stream.settings import load
from udp_stream.sources.recordings import GtfsFiles
from udp_stream.windows.clocks import Frame, LogPlaces
from udp_stream.windows.grid import Hexagons
from udp_stream.windows.slots import ReadingRules, SourceCheckpoint, SourceReader, Windows

ADD_REMOVE = (
    *("privacy.neighbours=add-remove", f"hat.domain={Path(__file__).parents[1] / 'domain.cells'}"),
    *("pings.interval=10s", "hat.resolution=7"),
)
WEEKS_1024_S = 1024 * 7 * 86_400
BUSES, STILL, POLLS, EVERY_S = 40, 25, 12, 10


def polls(folder, fields):
    """Polls of a fleet of which the first 25 stand where they stood; `fields` of a bus and poll
    over these."""
    names = []
    for at in range(POLLS):
        header_s = START_S + EVERY_S * at
        some = []
        for bus in range(BUSES):
            moved = 0 if bus < STILL else at * 0.001
            given = {
                "time_s": None,
                "lat": 21.25 + moved,
                "lon": 72.5 + bus / 100,
                "speed": 10.0,
            } | fields(bus, at)
            some.append(vehicle(number=f"B{bus}", **given))
        (path := folder / f"{at:02}.pb").write_bytes(snapshot(*some, header_s=header_s))
        names.append(str(path))
    return names


def read(names, form=PLAIN):
    said = []
    return sum(map(len, GtfsFiles(names, log_message=said.append, form=form).messages())), [
        str(one) for one in said if isinstance(one, QualityWarning)
    ]


def said(pings, reason):
    """The sentence of this reason."""
    found = findings(Evidence(pings=pings, form=PLAIN))
    return "".join(one.sentence for one in found if one.row.reason == reason)


def test_a_fix_without_a_time_counts_once_and_who_stands_at_speed_is_said(tmp_path):
    pings, said = read(polls(tmp_path, lambda bus, at: {}))
    assert pings == STILL + (BUSES - STILL) * POLLS
    assert said == ["GTFS-realtime: 25 plates report a speed above 5 km/h and do not move"]


def test_no_speed_decides_which_fixes_count(tmp_path):
    """A standing bus whose speed is told anew in each poll has as many pings; and one that stands
    at 0 is no fault."""
    assert (
        read(polls(tmp_path, lambda bus, at: {"speed": 5.0 + at}))[0]
        == STILL + (BUSES - STILL) * POLLS
    )
    assert read(polls(tmp_path, lambda bus, at: {"speed": 0.0}))[1] == []


def test_where_speeds_are_derived_no_place_decides_which_fixes_count(tmp_path):
    names = polls(tmp_path, lambda bus, at: {"speed": None})
    assert read(names, without_speeds(PLAIN)) == (BUSES * POLLS, [])


def test_fixes_with_times_of_their_own_count_and_who_stands_is_said(tmp_path):
    names = polls(tmp_path, lambda bus, at: {"time_s": START_S + EVERY_S * at})
    assert read(names) == (BUSES * POLLS, [])
    pings, _ = PingDecoder(load(None, ["speed.unit=mps"], {}).ping_rules, JSON).decode(
        [one for some in GtfsFiles(names).messages() for one in some]
    )
    assert said(pings, "still") == "25 of 40 plates report a speed above 5 km/h and do not move"
    slow = replace(pings, speed=np.where(pings.plate % 2, pings.speed, 0))
    assert said(slow, "still").startswith("12 of 40 plates")
    assert not said(replace(pings, lat=pings.lat + pings.time_ms % 7 * 1e-6), "still")


def test_times_that_stand_far_before_their_messages_are_said(tmp_path):
    old = START_S - 93 * 86_400
    pings, said = read(polls(tmp_path, lambda bus, at: {"time_s": old, "lat": 21.25 + at * 0.001}))
    assert pings == BUSES and len(said) == 1 and "480 of 480 pings are over 10 min older" in said[0]
    parked = polls(
        tmp_path, lambda bus, at: {"time_s": old if bus < STILL else START_S + EVERY_S * at}
    )
    assert read(parked)[1] == [], "buses that do not send at night are no fault"


def message(plate, time_s, lat=21.25, lon=72.8, speed=20.0):
    time = datetime.fromtimestamp(time_s, UTC).isoformat()
    place = {"coordinates": [lon, lat]}
    return json.dumps(
        {"license_plate": plate, "observationDateTime": time, "speed": speed, "location": place}
    ).encode()


def rolled_over(buses=20, wrong=2):
    """Of some buses the clocks are 1,024 weeks behind; they come first."""
    return [
        message(
            f"B{bus}", START_S + at - (WEEKS_1024_S if bus < wrong else 0), lon=72.8 + bus / 1000
        )
        for at in range(0, 600, 10)
        for bus in range(buses)
    ]


def test_clocks_that_rolled_over_are_refused_and_said():
    settings = load(None, (), {})
    pings, _ = settings.decoder.decode(rolled_over())
    assert said(pings, "rolled over").startswith("2 of 20 plates")
    start, end = settings.calendar.slots.place(pings.time_ms)
    windows = Windows(settings.window_rules, str.encode)
    closed, refused = windows.push(
        Frame(pings, Hexagons(7).cells_of(pings.lat, pings.lon), start, end)
    )
    assert closed == [] and [one.reason.value for one in refused] == ["time_rolled_over"] * 120
    assert [slot.start_ms for slot in windows.flush()] == [START_S * 1000]
    assert not said(settings.decoder.decode(rolled_over(wrong=0))[0], "rolled over")


def test_a_recording_of_then_is_read_and_an_arrival_of_now_is_not():
    """By the log's clock: a file of 2004 is of 2004, and what arrives today with times of 2004 is
    wrong, from the first message on."""
    settings = load(None, (), {})
    pings, _ = settings.decoder.decode(
        [message("B1", START_S - WEEKS_1024_S), message("B2", START_S - WEEKS_1024_S)]
    )
    start, end = settings.calendar.slots.place(pings.time_ms)
    frame = Frame(pings, Hexagons(7).cells_of(pings.lat, pings.lon), start, end)
    assert Windows(settings.window_rules, str.encode).push(frame)[1] == []
    rules = ReadingRules(
        settings.decoder, settings.window_rules, settings.calendar.slots, str.encode
    )
    reader = SourceReader(rules, SourceCheckpoint(0))
    now = LogPlaces(np.array([0]), np.array([(START_S + 5) * 1000]), np.array([False]))
    assert [one.refusal.reason.value for one in reader.read(rolled_over()[:1], now).refused] == [
        "time_rolled_over"
    ]


class Look:
    def __init__(self, source="http://feed/vehicles.pb", *flags):
        self.now_s, self.said = float(START_S), []
        self.settings = load(None, flags, {})
        self.steady_s = 77.0
        clocks = {"clock": lambda: self.now_s, "steady": lambda: self.steady_s}
        self.look = LiveFeedCheck(
            source, self.settings, lambda *words: self.said.append(words[:3]), **clocks
        )
        self.fresh = self.look.fresh

    def passes(self, seconds, jump_s=0):
        self.now_s += seconds + jump_s
        self.steady_s += seconds


@pytest.mark.parametrize(
    ("age_s", "is_read"), [(0, True), (599, True), (601, False), (93 * 86_400, False)]
)
def test_a_live_source_that_is_stale_is_not_read(age_s, is_read):
    here = Look()
    some = [message("B1", START_S - age_s), b"junk", message("B2", START_S - age_s - 5)]
    assert here.fresh(some) == (some if is_read else [b"junk"])
    assert here.look.stale == (0 if is_read else 2) and [event for _, event, _ in here.said] == [
        "stale"
    ] * (not is_read)
    assert not any("B1" in text for text, _, _ in here.said)


def test_one_fresh_ping_makes_a_source_fresh_and_one_from_the_future_does_not():
    here = Look("amqps://me:hush@host/queue", "live.max_age=1m")
    old = [message("B1", START_S - 100)]
    assert here.fresh(old) == [] and here.fresh([message("B2", START_S + 10**6)]) == []
    assert here.fresh([message("B3", START_S)]) != [] and here.fresh(old) == old, (
        "others send seldom"
    )
    here.passes(120)
    assert here.fresh(old) == []
    assert [event for _, event, _ in here.said] == ["stale", "fresh", "stale"]
    assert not any("hush" in text for text, _, _ in here.said)


@pytest.mark.parametrize("jump_s", [3600, 86_400])
def test_how_long_a_source_was_stale_is_told_by_the_steady_clock(jump_s):
    here = Look()
    here.fresh([message("B1", START_S)])
    here.passes(1200, jump_s=jump_s)
    here.fresh([message("B1", here.now_s - 700)])
    here.passes(180, jump_s=-jump_s)
    here.fresh([message("B1", here.now_s)])
    assert [event for _, event, _ in here.said] == ["stale", "fresh"]
    assert "after 3 min" in here.said[-1][0]


@pytest.mark.parametrize("source", ["-", "monday.ndjson", "polls.pb"])
def test_a_recording_or_a_pipe_has_no_age(source):
    here = Look(source)
    old = [message("B1", START_S - 10**7)]
    assert here.fresh(old) == old and here.said == []


def test_a_feed_that_changes_its_unit_while_it_goes_on_is_said_and_again_while_it_lasts():
    here = Look("-")
    log = list(fleet_log(buses=40, hours=1.5, clean=True))
    slow = [
        json.dumps(ping | {"speed": ping["speed"] / 3.6}).encode() for ping in map(json.loads, log)
    ]
    half = len(log) // 2
    for some, times in (
        (log[:half], 0),
        (log[half:], 0),
        (slow[:half], 1),
        (slow[half:], 1),
        (slow[:half], 2),
    ):
        here.fresh(some)
        here.passes(LiveFeedCheck.SAMPLE_S)
        here.fresh([])
        odd = [text for text, event, _ in here.said if event == "odd"]
        assert len(odd) == times and all("mps" in text for text in odd), here.said
    (briefly := Look("-")).fresh(slow)
    assert briefly.said == []
    briefly.look.end()
    assert [event for _, event, _ in briefly.said] == ["odd"]


@pytest.mark.parametrize("factor", [0.4, 0], ids=["in no unit", "all 0"])
@pytest.mark.parametrize("flags", [(), ADD_REMOVE], ids=["swap-values", "add-remove"])
def test_a_doubt_is_said_once_and_again_when_it_had_been_gone_for_a_day(factor, flags):
    here = Look("-", *flags)
    log = list(fleet_log(buses=40, hours=0.1, clean=True))
    odd = [
        json.dumps(ping | {"speed": ping["speed"] * factor}).encode()
        for ping in map(json.loads, log)
    ]
    day = round(86_400 / LiveFeedCheck.SAMPLE_S)
    by_night = [odd, log] * 4 + [log] * (day // 2) + [odd] * 4
    for looks, times in ((by_night, 1), ([odd] * day, 1), ([log] * day, 1), ([odd] * 4, 2)):
        for some in looks:
            here.fresh(some if some is odd else [])
            here.passes(LiveFeedCheck.SAMPLE_S)
            here.fresh([])
        assert len([event for _, event, _ in here.said if event == "odd"]) == times, here.said


def test_a_feed_whose_speeds_are_all_zero_is_said_to_have_none(tmp_path, capsys):
    log = list(fleet_log(buses=40, hours=0.5, clean=True))
    zeros = [json.dumps(ping | {"speed": 0}).encode() for ping in map(json.loads, log)]
    (here := Look("-")).fresh(zeros)
    here.look.end()
    assert [event for _, event, _ in here.said] == ["odd"] and "every speed is 0" in here.said[0][0]
    (file := tmp_path / "zeros.ndjson").write_bytes(b"\n".join(zeros))
    assert main(["doctor", str(file), "--set", f"ledger.url=sqlite:{tmp_path / 'a.ledger'}"]) == 3
    assert "every speed is 0" in capsys.readouterr().out


def test_a_fleet_in_order_is_nothing_odd_and_derived_speeds_are_not_looked_at():
    log = fleet_log(buses=40, hours=1.5, clean=True)
    checked = ["speed.unit=mps", "speed.unit_checked=true"], False
    derived = ["speed.unit=mps", "speed.from=movement"], False
    for flags, wrong in (([], False), (["speed.unit=mps"], True), derived, checked):
        settings = load(None, flags, {})
        found = findings(look_by(settings, log, settings.form.format))
        assert any(one.row.section == "speed" for one in found) == wrong
