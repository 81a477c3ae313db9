"""Feeds as they are, once more: each kind by small inputs of its own, with what `init` says and
what is read then."""

import gzip
import json
import re
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from google.transit.gtfs_realtime_pb2 import FeedMessage

from udp_stream.cli.commands.init import EXCHANGED, city_file, find_feed
from udp_stream.cli.evidence import TABLE, Look, findings
from udp_stream.cli.preflight import LiveFeedCheck, look_by
from udp_stream.cli.report import troubles
from udp_stream.errors import ConfigError, UsageError
from udp_stream.pings.advice import ELSEWHERE, SERVER_ERROR, no_pings
from udp_stream.pings.decode import PingDecoder, PingRules
from udp_stream.pings.json import PLAIN, exchanged, mapped_form, single_ping
from udp_stream.pings.mapping import FeedMapping
from udp_stream.pings.snapshots import GTFS_REALTIME, RepeatFilter
from udp_stream.release.events import RunLog, SlotCounted, SlotPublished, SlotRecorded, Summary
from udp_stream.settings import load
from udp_stream.sources.recordings import GtfsFiles, open_sources, sentences
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


def csv(some, joint=","):
    return "\n".join([joint.join(some[0]), *(joint.join(map(str, one.values())) for one in some)])


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


# Where a field stands, and how a value is written: all of it is read.


def in_two(date, clock):
    return lambda bus, time, *rest: (
        {"fecha": time.strftime(date), "hora": time.strftime(clock)}
        | {name: value for name, value in plain(bus, time, *rest).items() if name != "time"}
    )


def with_time(write):
    return lambda bus, time, *rest: plain(bus, time, *rest) | {"time": write(time)}


def by_bus(make=plain, drop=()):
    held = {}
    for one in fixes():
        made = make(*one)
        held.setdefault(made["vehicle"], []).append(
            {k: v for k, v in made.items() if k not in (*drop, "vehicle")}
        )
    return held


def half(time):
    return f"{time:%d/%m/%Y %I:%M:%S}\u202f{'a. m.' if time.hour < 12 else 'p. m.'}"


def own_names(bus, time, lon, lat, speed):
    return {
        "rendszam": f"SIT{bus:03}",
        "ido": time.isoformat(),
        "szel": round(lat + 3.7e-5, 6),
        "hossz": lon,
        "seb": speed + bus % 7 / 10,
    }


def unnamed(*order):
    return [
        [
            (f"SIT{one[0]:03}", int(one[1].timestamp()), one[2], one[3] + 3.7e-5, one[4])[at]
            for at in order
        ]
        for one in fixes()
    ]


READ = {
    "names of its own": lines(rows(own_names)),
    "no names": lines(unnamed(0, 1, 3, 2, 4)[12 * n :][:12] for n in range(POLLS)),
    "no names, longitude first": json.dumps({"positions": unnamed(0, 1, 2, 3, 4)}),
    "Mongo's": lines(
        rows(with_time(lambda time: {"$date": {"$numberLong": str(round(time.timestamp() * 1000))}}))
    ),
    "comma of a second": csv(rows(with_time(lambda time: f"{time:%Y-%m-%d %H:%M:%S},250")), ";"),
    "a month's name": csv(rows(with_time(lambda time: f"{time:%d-%b-%Y %H:%M:%S}"))),
    "ctime": csv(rows(with_time(lambda time: f"{time:%a %b %d %H:%M:%S %Y}"))),
    "outside": lines({"device": bus, "points": some} for bus, some in by_bus().items()),
    "outside, nested": lines({"meta": {"device": {"id": bus}}, "a": {"b": some}} for bus, some in by_bus().items()),
    "arrays around": json.dumps([{"idObj": bus, "trajetoria": some} for bus, some in by_bus().items()]),
    "arrays in an array": json.dumps({"l": [{"c": line, "cl": 0, "vs": rows(plain)[line::4]} for line in range(4)]}),
    "outside, within arrays": json.dumps({"routes": [
        {"id": 1, "vehicles": [{"plate": bus, "points": some} for bus, some in list(by_bus().items())[at::2]]}
        for at in range(2)]}),
    "keyed": lines({"buses": {one["vehicle"]: one for one in rows(plain)[12 * n :][:12]}} for n in range(8)),
    "keyed, no plate": lines({bus: {k: v for k, v in one.items() if k != "vehicle"} for bus, one in poll} for poll in (
        [(f"SIT{bus:03}", some[n]) for bus, some in enumerate(by_bus().values())] for n in range(POLLS))),
    "keyed arrays": json.dumps({"data": by_bus()}),
    "nested GeoJSON": lines(
        {"type": "Feature", "geometry": {"coordinates": [one["lon"], one["lat"]]}, "properties": {
            "trip": {"id": "x1", "vehicle_registration_number": 1000 + int(one["vehicle"][3:])},
            "last": {"timestamp": one["time"], "speed": one["speed"]}}} for one in rows(plain)
    ),
    "a name of its own": lines({"codigo" if k == "vehicle" else k: v for k, v in one.items()} for one in rows(plain)),
    ".NET": lines(rows(with_time(lambda time: f"/Date({time.timestamp() * 1000:.0f}+1030)/"))),
    ".NET, no offset": lines(rows(with_time(lambda time: f"/Date({time.timestamp() * 1000:.0f})/"))),
    "a. m.": csv(rows(with_time(half))),
    "pm": csv(rows(with_time(lambda time: f"{time:%m/%d/%Y %I:%M:%S}pm"))),
    "two fields": csv(rows(in_two("%d/%m/%Y", "%H:%M:%S"))),
    "two fields, ISO": lines(rows(in_two("%Y-%m-%d", "%H:%M:%S"))),
    "two fields, midnight": lines(rows(in_two("%Y-%m-%dT00:00:00", "%H:%M:%S"))),
    "two fields, halves": csv(rows(in_two("%d.%m.%Y", "%I:%M:%S a. m.")), ";"),
    "two fields, numbers": lines(
        one | {"fecha": int(one["fecha"]), "hora": int(one["hora"])} for one in rows(in_two("%Y%m%d", "%H%M%S"))
    ),
    "words": lines(
        one | {"speed": (one["speed"], "N/A", "NaN", "-", "null")[min(at % 9, 4)]} if at % 9 < 5 else one
        for at, one in enumerate(rows(plain, polls=POLLS))
    ),
    "sequence": "\x1e" + "\n\x1e".join(map(json.dumps, rows(plain))) + "\n",
    "sequence, laid out": "\x1e" + "\n\x1e".join(json.dumps(one, indent=1) for one in rows(plain)) + "\n",
    "decimal commas": csv([one | {k: str(one[k]).replace(".", ",") for k in ("lon", "lat", "speed")}
                           for one in rows(plain)], ";"),
}  # fmt: skip


@pytest.mark.parametrize("kind", READ)
def test_each_form_is_read_with_what_init_writes(kind, tmp_path):
    feed, said, read = found(tmp_path, READ[kind], "feed.csv" if "\n" in READ[kind] and READ[kind][0] not in "{[\x1e"
                             else "feed.json")  # fmt: skip
    words = sum(at % 9 in (1, 2, 3, 4) for at in range(ALL[0])) if kind == "words" else 0
    assert read == (ALL[0] - words, BUSES), said
    assert (feed.pings, feed.plates) == read and "SIT0" not in city_file(feed, "x")
    assert ("is it the vehicle's" in said) == (
        kind in ("names of its own", "a name of its own", "arrays around")
    )
    assert ("which is which" in said) == (
        kind in ("names of its own", "no names", "no names, longitude first")
    )
    assert feed.box[0] < -74.1 < feed.box[2] and EXCHANGED not in said
    assert ("are refused" in said) == (kind == "words")


def test_a_number_that_varies_within_a_vehicle_is_no_plate_and_a_line_is_none(tmp_path):
    def made(bus, time, lon, lat, speed):
        odometer = int(time.timestamp()) % 100_000 * 100 + bus
        return {
            "id": odometer,
            "linha": bus % 3,
            "ts": time.isoformat(),
            "lon": lon,
            "lat": lat,
            "speed": speed,
        }

    with pytest.raises(UsageError, match="plate: found"):
        found(tmp_path, lines(rows(made)))
    feed, said, _ = found(tmp_path, lines(one | {"chapa": one["id"] % 100} for one in rows(made)))
    assert feed.keys["plate"] == "chapa" and "chapa" in said and feed.plates == BUSES


def test_fine_numbers_that_are_no_places_of_one_city_are_none(tmp_path):
    def made(bus, time, lon, lat, speed):
        turned = (time.timestamp() * 7.91937 + bus * 31.7) % 170
        return {
            "vehicle": f"SIT{bus:03}",
            "time": time.isoformat(),
            "kurs": turned,
            "druck": lat + 3.7e-5,
            "speed": speed,
        }

    with pytest.raises(UsageError) as raised:
        found(tmp_path, lines(rows(made)))
    assert "longitude: found no such name" in str(raised.value) and "kurs, druck" in str(
        raised.value
    )


def test_places_without_names_are_east_of_90_degrees_where_they_are(tmp_path):
    feed, said, read = found(tmp_path, lines(rows(own_names, at=(105.8, 21.0))))
    assert read == ALL and "which is which" in said
    assert (feed.keys["longitude"], feed.keys["latitude"]) == ("hossz", "szel")


def test_what_lacks_a_name_is_said_of_arrays_and_of_places_in_one_column(tmp_path):
    polls = [
        {"time": 1709550000 + 15 * n, "states": unnamed(0, 2, 3)[12 * n :][:12]}
        for n in range(POLLS)
    ]
    with pytest.raises(UsageError, match=r"\n  time: found a number at 1, wanted a date"):
        found(tmp_path, lines(polls))
    places = [{"vehicle": one["vehicle"], "time": one["time"], "at": f"{one['lat']:.5f} {one['lon']:.5f}"}
              for one in rows(plain)]  # fmt: skip
    with pytest.raises(
        UsageError, match="longitude: found two numbers in one text at at, wanted a column for each"
    ):
        found(tmp_path, csv(places), "feed.csv")


def test_places_that_have_names_are_not_looked_for_among_other_fine_numbers(tmp_path):
    noise = [{"a": 20.12345 + at % 7 / 1000, "b": 30.12345 + at % 5 / 1000} for at in range(ALL[0])]
    with pytest.raises(UsageError, match="degrees times 1e7"):
        found(tmp_path, lines(one | more for one, more in zip(scaled(7), noise, strict=True)))


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


def test_a_time_of_two_fields_needs_a_pattern_or_iso():
    with pytest.raises(ValueError, match="time: expected one path"):
        FeedMapping(time=("d", "h"), time_format="epoch_s")


@pytest.mark.parametrize("word", ["NaN", "null", "-", "N/A", "n/a", "None", ""])
@pytest.mark.parametrize("name", ["vehicle", "time", "lon", "speed"])
def test_a_word_for_a_missing_value_is_counted_and_no_reason_to_stop(name, word, tmp_path):
    settings = load(None, (), {})
    names = {
        "plate": "vehicle",
        "time": "time",
        "longitude": "lon",
        "latitude": "lat",
        "speed": "speed",
    }
    form = mapped_form(FeedMapping(**names))
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


# A command that is told works when it is pasted.


def scaled(power):
    return [
        one | {name: round(one[name] * 10**power) for name in ("lon", "lat")} for one in rows(plain)
    ]


MENDS = {
    "km/h": (lines(one | {"speed": f"{one['speed']} km/h"} for one in rows(plain)), "feed.json"),
    "mph": (csv([one | {"speed": f"{one['speed']}mph"} for one in rows(plain)]), "feed.csv"),
    "degrees": (csv([one | {"lat": f"{one['lat']}°", "lon": f"{one['lon']}°"} for one in rows(plain)]), "a.csv"),
    "1e7": (lines(scaled(7)), "feed.json"),
    "1e6 in CSV": (csv(scaled(6), ";"), "feed.csv"),
    "1e7, nested": (json.dumps({"vs": [
        {k: v for k, v in one.items() if k not in ("lon", "lat")} | {"pos": {"lat": one["lat"], "lon": one["lon"]}}
        for one in scaled(7)]}), "feed.json"),
    "zone's name": (lines(rows(with_time(lambda time: f"{time:%Y-%m-%d %H:%M:%S} COT"))), "feed.json"),
    "Java's date": (csv(rows(with_time(lambda time: f"{time:%a %b %d %H:%M:%S} COT {time:%Y}"))), "feed.csv"),
    "UTC's name": (csv(rows(with_time(lambda time: f"{time:%d/%m/%Y %H:%M:%S}.5 UTC"))), "feed.csv"),
    "plates with .0": (
        lines(one | {"vehicle": 1000.0 + at % BUSES} for at, one in enumerate(rows(plain))), "feed.json"),
    "sides": (lines(one | {"lat": f"{one['lat'] + 3.7e-5:.6f}N", "lon": f"{-one['lon'] + 1e-6:.6f}W"}
                    for one in rows(plain)), "feed.json"),
    "sides behind degrees": (csv([one | {"lat": f"{one['lat'] + 3.7e-5:.6f}° N", "lon": f"{-one['lon'] + 1e-6:.6f}° W"}
                                  for one in rows(plain)], ";"), "feed.csv"),
    "both in a text": (lines(
        {"vehicle": one["vehicle"], "time": one["time"], "at": f"{one['lat'] + 3.7e-5:.6f}, {one['lon'] - 1e-6:.6f}",
         "speed": one["speed"]} for one in rows(plain)), "feed.json"),
    "UTF-16": (csv(rows(plain)).encode("utf-16"), "feed.csv"),
    "UTF-16, packed": (gzip.compress(csv(rows(plain)).encode("utf-16")), "feed.csv.gz"),
    "1e6, tabs, packed": (gzip.compress(csv(scaled(6), "\t").encode()), "feed.csv.gz"),
    "UTF-16, no mark": (csv(rows(plain)).encode("utf-16-be"), "feed.csv"),
}  # fmt: skip


@pytest.mark.parametrize("kind", MENDS)
def test_a_command_that_is_told_makes_the_feed_readable_when_it_is_pasted(kind, tmp_path):
    content, name = MENDS[kind]
    with pytest.raises(UsageError) as raised:
        found(tmp_path, content, name)
    said = str(raised.value)
    command = re.search("`([^`]*)`", said)[1]
    assert "36" not in said.replace(str(tmp_path), "") and "FILE" in command, said
    new = tmp_path / f"new.{name.removesuffix('.gz').rpartition('.')[2]}"
    command = command.replace("FILE", str(tmp_path / name)) + (
        "" if "> NEW" in command else " > NEW"
    )
    subprocess.run(command.replace("NEW", str(new)), shell=True, check=True)
    feed, _, read = found(tmp_path, new.read_bytes(), new.name)
    assert read == ALL and -74.3 <= feed.box[0] < -74.1 < feed.box[2] and 4.4 < feed.box[1] < 4.7
    assert ("time_zone" in feed.keys) == (kind in ("zone's name", "Java's date"))
    if "speed.unit" in said:
        assert f'speed.unit = "{ {"km/h": "kmh"}.get(kind, kind) }"' in said


# Pings that are lost in silence.


def read_of(some, form=None, **more):
    names = {
        "plate": "vehicle",
        "time": "time",
        "longitude": "lon",
        "latitude": "lat",
        "speed": "speed",
        **more,
    }
    form = form or mapped_form(FeedMapping(**names))
    return PingDecoder(WIDE, form.format).decode([json.dumps(one).encode() for one in some])[0]


def repeats_in(some):
    said = [one.sentence for one in findings(Look(pings=read_of(some), form=PLAIN))]
    return " ".join(one for one in said if "pings" in one)


def test_times_in_whole_minutes_are_said_by_all_verbs(tmp_path):
    some = rows(with_time(lambda time: f"{time:%Y-%m-%dT%H:%M}:00Z"))
    feed, said, _ = found(tmp_path, lines(some))
    assert (
        "times are whole minutes: 72 of 96 pings share plate and time with another and count once"
        in said
    )
    assert "too few pairs" not in said and feed.refused == 0
    settings = load(tmp_path / "city.toml", (), {})
    messages = [json.dumps(one).encode() for one in some]
    found_of = findings(look_by(settings, messages, settings.form.format))
    assert any("whole minutes" in one.sentence for one in found_of)
    heard = []
    look = LiveFeedCheck("feed.ndjson", settings, tell=lambda text, *_: heard.append(text))
    look.fresh(messages)
    look.end()
    assert any("whole minutes" in one for one in heard)
    assert any("72 of 96 pings (75%)" in one for one in troubles(Summary(pings=96, repeats=72)))
    assert not any("share" in one for one in troubles(Summary(pings=96, repeats=4)))
    log = RunLog(SlotGrid(3600, ZoneInfo("UTC")), grace_ms=0)
    for event in (SlotCounted(0, 72), SlotRecorded(0, 96, 1), SlotPublished(0, {"released": 1})):
        log.observe(event, 1.0)
    assert any(line.figures.get("repeats") == 72 for line in log.lines(100.0))


def test_autumns_hour_is_told_from_other_causes_and_few_repeats_are_not_said(tmp_path):
    begin = datetime(2024, 10, 26, 23, 30, tzinfo=UTC)
    shown = [
        (begin + timedelta(minutes=at)).astimezone(ZoneInfo("Europe/Helsinki")) for at in range(120)
    ]
    some = [
        {"vehicle": f"HEL{bus}", "time": f"{time:%Y-%m-%d %H:%M:%S}", "lon": 24.9 + at / 1e3, "lat": 60.2, "speed": 5}
        for at, time in enumerate(shown) for bus in range(3)
    ]  # fmt: skip
    _, said, _ = found(tmp_path, csv(some), "feed.csv")
    assert "autumn's doubled hour without offsets: 90 of 360 pings count as repeats" in said
    good = rows(plain)
    assert not repeats_in(good) and not repeats_in([*good, good[0]])
    assert "same again" in repeats_in(good * 2)
    shared = [
        one | {"vehicle": "B1", "lat": one["lat"] + at % 7 / 20} for at, one in enumerate(good)
    ]
    assert "several vehicles" in repeats_in(shared)
    tens = rows(with_time(lambda time: (time - timedelta(seconds=time.second % 20)).isoformat()))
    assert "multiples of 20 s" in repeats_in(tens)


def poll(some, header_s=None, swap=False):
    feed = FeedMessage()
    feed.header.gtfs_realtime_version = "2.0"
    feed.header.timestamp = header_s or max(
        (int(time.timestamp()) for _, time, *_ in some), default=1
    )
    for bus, time, lon, lat, speed in some:
        vehicle = feed.entity.add(id=str(bus)).vehicle
        vehicle.vehicle.id, vehicle.timestamp = f"SIT{bus:03}", int(time.timestamp())
        vehicle.position.longitude, vehicle.position.latitude = (lat, lon) if swap else (lon, lat)
        vehicle.position.speed = speed / 3.6
    return feed.SerializeToString()


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


def others(kind):
    feed = FeedMessage()
    feed.header.gtfs_realtime_version, feed.header.timestamp = "2.0", 1709550000
    for at in range(40):
        entity = feed.entity.add(id=str(at))
        getattr(entity, kind).SetInParent()
        if kind == "trip_update":
            entity.trip_update.trip.trip_id = "x"
    return feed.SerializeToString()


def varint(number):
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


TRIPS = {
    "header": {"timestamp": "1"},
    "entity": [{"id": "1", "tripUpdate": {"trip": {"tripId": "x"}}}],
}
OTHERS = {
    "alerts.pb": (others("alert"), f"40 entities, none with a vehicle: alerts: {ELSEWHERE}"),
    "trips.pb": (
        others("trip_update"),
        f"40 entities, none with a vehicle: trip updates: {ELSEWHERE}",
    ),
    "empty.pb": (poll([]), "no entity"),
    "text.pb": (b'header {\n  gtfs_realtime_version: "2.0"\n}\n', "ask for the binary form"),
    "text.txt": (b'header {\n  gtfs_realtime_version: "2.0"\n}\n', "ask for the binary form"),
    "page.pb": (b"<!DOCTYPE html>\n<html><body>x</body></html>", "a page for people"),
    "page.json": (b"\n<html lang='en'><body>x</body></html>", "a page for people"),
    "error.pb": (b'{"error": {"code": 403, "message": "no"}}', SERVER_ERROR),
    "error.json": (
        b'{"status": 401, "message": "Access denied due to invalid subscription key"}',
        SERVER_ERROR,
    ),
    "json.pb": (json.dumps(rows(plain)).encode(), "JSON: give it a name in .json"),
    "trips.json": (json.dumps(TRIPS).encode(), f"trip updates: {ELSEWHERE}"),
    "stops.csv": (
        b"stop_id,stop_name,stop_lat,stop_lon\na,A,4.6,-74.1\nb,B,4.7,-74.2\n",
        f"timetables: {ELSEWHERE}",
    ),
    "arrivals.json": (
        b'[{"vehicleId": "v1", "expectedArrival": "2024-03-04T11:00:00Z"}]',
        f"timetables: {ELSEWHERE}",
    ),
    "values.json": (b'["A1", 4.61, -74.11]\n["A2", 4.62, -74.12]\n', "JSON without a record in it"),
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
    if name.endswith((".pb", "page.json")):
        said = []
        messages = [
            one
            for some in GtfsFiles([str(tmp_path / name)], log_message=said.append).messages()
            for one in some
        ]
        assert words in " ".join(said) or messages or name == "empty.pb"


@pytest.mark.parametrize(
    "length", [varint, lambda n: n.to_bytes(4, "big"), lambda n: n.to_bytes(4, "little")]
)
@pytest.mark.parametrize("name", ["feed.pb", "feed.bin"])
def test_messages_behind_their_lengths_are_read(length, name, tmp_path):
    messages = [poll(some) for some in polled()]
    feed, _, read = found(tmp_path, b"".join(length(len(one)) + one for one in messages), name)
    assert read == ALL and feed.form == "GTFS-realtime"
    assert "behind its length" in no_pings(length(len(messages[0])) + messages[0], is_gtfs=True)


# Places that cannot be.


@pytest.mark.parametrize("at", [(-74.1, 4.65), (-97.7, 30.2), (24.9, 60.2)])
def test_places_that_are_exchanged_in_pb_are_told_before_zone_and_unit_and_read(at, tmp_path):
    content = b"".join(
        varint(len(one)) + one for one in (poll(some, swap=True) for some in polled(at=at))
    )
    feed, said, read = found(tmp_path, content, "feed.pb")
    assert EXCHANGED in said and feed.keys == {"exchanged": True} and read == ALL
    assert feed.box[0] < at[0] < feed.box[2] and feed.zone.startswith(("America/", "Europe/"))
    settings = load(tmp_path / "city.toml", (), {})
    assert settings.form.is_plain and dict(settings.source.written)["exchanged"] == "true"
    assert replace(settings.form).format.paths.longitude == "$.location.coordinates[1]"
    again, said, _ = found(
        tmp_path, b"".join(varint(len(one)) + one for one in map(poll, polled(at=at))), "good.pb"
    )
    assert EXCHANGED not in said and again.box == feed.box


def test_exchanged_is_a_key_of_any_form(tmp_path):
    one = rows(plain)[0]
    names = {"plate": "vehicle", "time": "time", "longitude": "lon", "latitude": "lat"}
    (tmp_path / "a.toml").write_text(
        "[source]\nexchanged = true\n" + "\n".join(f'{k} = "{v}"' for k, v in names.items())
    )
    form = load(tmp_path / "a.toml", (), {}).form
    assert read_of([one | {"lon": one["lat"], "lat": one["lon"]}], form).lon.tolist() == [
        one["lon"]
    ]
    point = {"license_plate": "A1", "observationDateTime": one["time"], "speed": 5,
             "location": {"type": "Point", "coordinates": [one["lat"], one["lon"]]}}  # fmt: skip
    pings = read_of([point, point | {"license_plate": "B2"}], exchanged(PLAIN))
    assert pings.lon.tolist() == [one["lon"]] * 2 and pings.lat.tolist() == [one["lat"]] * 2
    (tmp_path / "b.toml").write_text('[source]\nexchanged = "yes"\n')
    with pytest.raises(ConfigError, match="exchanged"):
        load(tmp_path / "b.toml", (), {})


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
    slow = [one | {"speed": one["speed"] * 7.7} for one in rows(plain, buses=40)]
    _, said, _ = found(tmp_path, lines(slow))
    assert "fit no unit" in said and "too few pairs" not in said
    coarse = rows(
        with_time(lambda time: (time - timedelta(seconds=time.second % 30)).isoformat()),
        buses=40,
        polls=20,
        every_s=10,
    )
    feed, said, _ = found(tmp_path, lines(coarse))
    assert feed.unit_by == "movement" and "multiples of 30 s" in said and "fit no unit" not in said
    _, said, _ = found(tmp_path, lines(rows(plain, polls=1)))
    assert "too few pairs" in said and "fit no unit" not in said
    _, said, _ = found(tmp_path, lines(one | {"speed": 0} for one in rows(plain, polls=1)))
    assert "no ping has a speed above 0" in said and "too few pairs" not in said


def test_a_value_that_is_not_read_is_shown_by_its_form_without_its_digits(tmp_path):
    some = rows(with_time(lambda time: f"{time:%Y}|{time:%j} {time:%H}h{time:%M}"))
    with pytest.raises(UsageError) as raised:
        found(tmp_path, lines(some))
    assert 'found text such as "0000|000 00a00" at time' in str(raised.value)
    assert not np.any(
        [word in str(raised.value) for word in ("2024", "11h")]
    ) and "in one field" not in str(raised.value)
