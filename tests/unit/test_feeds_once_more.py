"""Feeds as they are, once more: each kind by small inputs of its own, with what `init` says and
what is read then."""

import json
import re
from datetime import UTC, datetime, timedelta
from itertools import chain
from zoneinfo import ZoneInfo

import pytest

from tests.gtfs import snapshot, vehicle
from tests.unit.test_feed_files import LENGTHS
from udp_stream.base.errors import UsageError
from udp_stream.cli.commands.init import city_file, find_feed
from udp_stream.cli.evidence import TABLE, Look, findings
from udp_stream.cli.preflight import LiveFeedCheck, look_by
from udp_stream.cli.report import troubles
from udp_stream.pings.advice import ELSEWHERE, no_pings
from udp_stream.pings.decode import PingDecoder, PingRules
from udp_stream.pings.json import PLAIN, mapped_form, single_ping
from udp_stream.pings.mapping import FeedMapping
from udp_stream.pings.snapshots import GTFS_REALTIME, RepeatFilter
from udp_stream.release.events import RunLog, SlotCounted, SlotPublished, SlotRecorded, Summary
from udp_stream.settings import load
from udp_stream.sources.recordings import open_sources, sentences
from udp_stream.windows.tables import SlotGrid

START = datetime(2024, 3, 4, 11, tzinfo=UTC)
BUSES, POLLS, EVERY_S = 12, 8, 15
WIDE = PingRules(max_kmh=1000, reject_above_kmh=2000)


def fixes(buses=BUSES, polls=POLLS, every_s=EVERY_S, at=(-74.1, 4.65)):
    """(number, time, lon, lat, km/h): buses that go 36 km/h east, each on a street of its own."""
    for poll in range(polls):
        for bus in range(buses):
            lon = at[0] + 0.00009 * every_s * poll * (1 if bus % 2 else -1)
            yield (
                bus,
                START + timedelta(seconds=every_s * poll + bus % 5),
                round(lon, 6),
                at[1] + 0.005 * bus,
                36.0,
            )


def rows(make, **given):
    return [make(*one) for one in fixes(**given)]


def plain(bus, time, lon, lat, speed):
    return {
        "vehicle": f"SIT{bus:03}",
        "time": time.isoformat(),
        "lon": lon,
        "lat": lat,
        "speed": speed,
    }


def lines(some):
    return "\n".join(json.dumps(one) for one in some)


def found(tmp_path, content, name="feed.ndjson"):
    """What `init` finds, its sentences, and the pings that are read with what it writes."""
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    feed = find_feed([str(path)])
    text = city_file(feed, name)
    (tmp_path / "city.toml").write_text(text)
    settings = load(tmp_path / "city.toml", (), {})
    read = [
        (list(chain(*source.messages())), source)  # whose format is known by then
        for _, source in open_sources([str(path)], settings.speed.unit, form=settings.form)
    ]
    pings = [PingDecoder(settings.ping_rules, by.format).decode(some)[0] for some, by in read]
    said = " | ".join(re.findall("^# (?:CHECK|NOT KNOWN).*", text, re.MULTILINE))
    return feed, said, (sum(map(len, pings)), len({plate for one in pings for plate in one.plates}))


ALL = BUSES * POLLS, BUSES
NAMES = {
    "plate": "vehicle",
    "time": "time",
    "longitude": "lon",
    "latitude": "lat",
    "speed": "speed",
}


def with_time(write):
    return lambda bus, time, *rest: plain(bus, time, *rest) | {"time": write(time)}


def test_a_plate_from_outside_is_only_taken_where_no_ping_has_one():
    names = {"time": "time", "longitude": "lon", "latitude": "lat", "records": "points"}
    form, one = mapped_form(FeedMapping(plate="device", **names)), rows(plain)[0]
    mixed = {"device": "FEED", "points": [one | {"device": "A1"}, one]}
    pings, refused = PingDecoder(WIDE, form.format).decode([json.dumps(mixed).encode()])
    assert pings.plates == ("A1",) and [(at.position, at.path) for at in refused] == [
        (1, "$.device")
    ]
    outside = json.dumps({"device": "B2", "points": [one, one]}).encode()
    pieces = form.format.split(outside)
    assert PingDecoder(WIDE, form.format).decode(list(map(bytes, pieces)))[0].plates == ("B2",)
    assert single_ping(bytes(pieces[0]), form.mapping).plate == "B2"
    none = [b'{"device": "B2", "points": []}', b'{"l": 1, "points": {}}']
    assert not len(PingDecoder(WIDE, form.format).decode(none)[0])


@pytest.mark.parametrize("word", ["NaN", "null", "-", "N/A", "n/a", "None", ""])
@pytest.mark.parametrize("name", ["vehicle", "time", "lon", "speed"])
def test_a_word_for_a_missing_value_is_counted_and_no_reason_to_stop(name, word, tmp_path):
    settings = load(None, (), {})
    form = mapped_form(FeedMapping(**NAMES))
    messages = [
        json.dumps(one | ({name: word} if at % 4 else {})).encode()
        for at, one in enumerate(rows(plain))
    ]
    look = look_by(settings, messages, form.format)
    assert len(look.pings) == ALL[0] // 4 and look.is_mostly_read
    wrong = [
        json.dumps(one | ({name: {"a": 1}} if at % 4 else {})).encode()
        for at, one in enumerate(rows(plain))
    ]
    (refused,) = findings(look_by(settings, wrong, form.format), TABLE[:1])
    assert refused.row.error is UsageError and "72 of 96" in refused.sentence


# Pings that are lost in silence.


def read_of(some, form=None):
    form = form or mapped_form(FeedMapping(**NAMES))
    return PingDecoder(WIDE, form.format).decode([json.dumps(one).encode() for one in some])[0]


def repeats_in(some):
    said = [one.sentence for one in findings(Look(pings=read_of(some), form=PLAIN))]
    return " ".join(one for one in said if "pings" in one)


def test_repeats_are_said_as_they_come_and_at_the_end_and_few_are_not():
    some = rows(with_time(lambda time: f"{time:%Y-%m-%dT%H:%M}:00Z"))
    settings = load(None, [f"source.{name}={path}" for name, path in NAMES.items()], {})
    heard = []
    look = LiveFeedCheck("feed.ndjson", settings, tell=lambda text, *_: heard.append(text))
    look.fresh([json.dumps(one).encode() for one in some])
    look.end()
    assert any("whole minutes" in one for one in heard)
    assert any("72 of 96 pings (75%)" in one for one in troubles(Summary(pings=96, repeats=72)))
    assert not any("share" in one for one in troubles(Summary(pings=96, repeats=4)))
    log = RunLog(SlotGrid(3600, ZoneInfo("UTC")), grace_ms=0)
    for event in (SlotCounted(0, 72), SlotRecorded(0, 96, 1), SlotPublished(0, {"released": 1})):
        log.observe(event, 1.0)
    assert any(line.figures.get("repeats") == 72 for line in log.lines(100.0))
    good = rows(plain)
    assert not repeats_in([*good, good[0]])
    shared = [
        one | {"vehicle": "B1", "lat": one["lat"] + at % 7 / 20} for at, one in enumerate(good)
    ]
    assert "several vehicles" in repeats_in(shared)


def poll(some):
    buses = [
        vehicle("", f"SIT{bus:03}", int(time.timestamp()), lon, lat, speed / 3.6)
        for bus, time, lon, lat, speed in some
    ]
    return snapshot(*buses, header_s=1709550000)


def polled(**given):
    every = list(fixes(**given))
    return [every[at : at + BUSES] for at in range(0, len(every), BUSES)]


def test_polls_whose_times_stand_while_their_places_change_are_said():
    once = RepeatFilter(GTFS_REALTIME, 10**6, 1000)
    for some in polled():
        once.take(poll([(bus, START, *rest) for bus, _, *rest in some]))
    assert once.counts["read"] == ALL[0] and any(
        "lie elsewhere" in one for one in sentences(once.counts)
    )
    once = RepeatFilter(GTFS_REALTIME, 10**6, 1000)
    for some in [*polled(), polled()[-1]]:
        once.take(poll(some))
    assert once.counts["repeats"] == BUSES and not any(
        "elsewhere" in one for one in sentences(once.counts)
    )


# Another kind of message.


ALERTS = snapshot(*[vehicle(alert=True)] * 40)
TRIPS = snapshot(*[vehicle(trip_update=True)] * 40)
OTHERS = {
    "alerts.pb": (ALERTS, f"40 entities, none with a vehicle: alerts: {ELSEWHERE}"),
    "trips.pb": (TRIPS, f"40 entities, none with a vehicle: trip updates: {ELSEWHERE}"),
    "empty.pb": (poll([]), "no entity"),
    "cut.pb": (poll(polled()[0])[:-7], "data that are no whole message"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_another_kind_of_message_is_and_what_to_ask_for(name, tmp_path):
    content, words = OTHERS[name]
    with pytest.raises(UsageError) as raised:
        found(tmp_path, content, name)
    assert (
        words in str(raised.value)
        and "0 of 0" not in str(raised.value)
        and "a name in .pb" not in str(raised.value)
    )


@pytest.mark.parametrize("length", LENGTHS.values())
def test_a_length_before_a_message_is_named(length):
    message = poll(polled()[0])
    assert "behind its length" in no_pings(length(len(message)) + message, is_gtfs=True)


# Places that cannot be.


def test_a_stray_fleet_that_sends_more_than_all_others_makes_neither_zone_nor_box(tmp_path):
    depot = [one | {"vehicle": "TEST1"} for one in rows(plain, buses=1, polls=500, at=(13.4, 52.5))]
    feed, said, _ = found(tmp_path, lines([*rows(plain), *depot]))
    assert feed.zone == "America/Bogota" and feed.box[2] < -70 and "1 of 13 plates lie far" in said
    turned = [
        one | {"lon": one["lat"], "lat": one["lon"]} if one["vehicle"] < "SIT003" else one
        for one in rows(plain)
    ]
    feed, said, _ = found(tmp_path, lines(turned))
    assert (
        "3 of 12 plates lie far" in said
        and "of these are exchanged" in said
        and feed.zone == "America/Bogota"
    )


# Words.


def test_sentences_on_the_unit_say_what_is_so(tmp_path):
    coarse = rows(
        with_time(lambda time: (time - timedelta(seconds=time.second % 30)).isoformat()),
        buses=40,
        polls=20,
        every_s=10,
    )
    feed, said, _ = found(tmp_path, lines(coarse))
    assert feed.unit_by == "movement" and "multiples of 30 s" in said and "fit no unit" not in said
    _, said, _ = found(tmp_path, lines(one | {"speed": 0} for one in rows(plain, polls=1)))
    assert "no ping has a speed above 0" in said and "too few pairs" not in said
