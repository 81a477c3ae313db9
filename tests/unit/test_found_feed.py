"""What `init` finds in feeds of many forms: mapping, times, plate, zone, unit, box; and what it
asks to be checked."""

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest

from benchmarks.feed_forms import recorded
from tests.runtime.harness import fleet_log
from udp_stream.cli.commands.init import city_file, find_feed
from udp_stream.errors import UsageError
from udp_stream.settings import load

IST = timezone(timedelta(hours=5, minutes=30))
PLATES = [f"GJ05BX{1000 + at}" for at in range(9)]


def ping(at, per_second=3, **changes):
    """The `at`-th ping of nine buses that go about Surat."""
    time = datetime(2022, 1, 1, 10, tzinfo=IST) + timedelta(seconds=at // per_second)
    made = {"bus": PLATES[at % 9], "timestamp": time.isoformat(), "lon": 72.8 + (at % 77) / 1000,
            "lat": 21.1 + (at % 91) / 1000, "speed": at % 40}  # fmt: skip
    made |= {
        name: value(made, time) if callable(value) else value for name, value in changes.items()
    }
    return {name: value for name, value in made.items() if value is not ...}


def written(folder, pings, name="feed.ndjson"):
    (folder / name).write_text("\n".join(json.dumps(one) for one in pings))
    return str(folder / name)


def found(folder, count=600, **changes):
    path = written(folder, [ping(at, **{k: v(at) if k in ("id", "vehicle") else v for k, v in changes.items()})
                            for at in range(count)])  # fmt: skip
    feed = find_feed([path])
    (folder / "city.toml").write_text(city_file(feed, path))
    load(folder / "city.toml", (), {})
    return feed, checks(feed)


def checks(feed):
    return [sentence for some in feed.checks.values() for sentence in some]


def message_id(at):
    return f"message-{at}"


@pytest.mark.parametrize("ids", [message_id, lambda _: "surat/feed"])
def test_an_id_of_each_message_or_of_all_of_them_is_no_plate_while_another_field_may_be(
    ids, tmp_path
):
    feed, said = found(
        tmp_path, bus=..., vehicle=ids, deviceId=lambda made, _: f"d{int(made['lat'] * 1000) % 7}"
    )
    assert feed.keys["plate"] == "deviceId" and feed.plates == 7 and said == []


CITIES = [
    ("Asia/Kolkata", 72.8, 21.1), ("Europe/Berlin", 13.4, 52.5), ("Europe/Madrid", -0.4, 39.5),
    ("America/Sao_Paulo", -46.6, -23.5),
]  # fmt: skip


@pytest.mark.parametrize(("zone", "lon", "lat"), CITIES)
def test_zone_and_box_are_those_of_the_positions(zone, lon, lat, tmp_path):
    changes = {
        "lon": lambda made, _: made["lon"] - 72.8 + lon,
        "lat": lambda made, _: made["lat"] - 21.1 + lat,
    }
    feed, _ = found(tmp_path, **changes, timestamp=lambda _, time: int(time.timestamp()))
    west, south, east, north = feed.box
    assert feed.zone == zone and feed.keys["time_format"] == "epoch_s"
    assert lon - 0.2 < west < lon < lon + 0.076 < east < lon + 0.3
    assert lat - 0.2 < south < lat < lat + 0.09 < north < lat + 0.3


def test_stray_fixes_do_not_widen_the_box_and_two_cities_are_refused(tmp_path):
    feed, _ = found(
        tmp_path, lon=lambda made, _: made["lon"] - 30 if made["lat"] == 21.1 else made["lon"]
    )
    assert feed.box[0] > 72 and feed.zone == "Asia/Kolkata"
    with pytest.raises(UsageError, match="far apart"):
        found(tmp_path, lon=lambda made, _: made["lon"] if made["speed"] % 2 else made["lon"] - 170)


@pytest.mark.parametrize(
    ("pattern", "time_format", "zone"),
    [
        ("%Y%m%dT%H%M%SZ", "%Y%m%dT%H%M%S%z", False), ("%d/%m/%Y %H:%M:%S +0530", "%d/%m/%Y %H:%M:%S %z", False),
        ("%H:%M:%S %d-%m-%Y", "%H:%M:%S %d-%m-%Y", True), ("%I:%M:%S %p, %d-%m-%Y", "%I:%M:%S %p, %d-%m-%Y", True),
        ("%Y-%m-%d %H:%M:%S", None, True),
    ],
)  # fmt: skip
def test_times_of_many_forms_are_read(pattern, time_format, zone, tmp_path):
    feed, _ = found(tmp_path, timestamp=lambda _, time: f"{time:{pattern}}")
    assert feed.keys.get("time_format") == time_format and ("time_zone" in feed.keys) is zone
    assert feed.pings == 600 and feed.refused == 0


def test_a_speed_of_minus_one_is_not_known_and_a_value_below_a_name_is_the_field(tmp_path):
    assert (
        found(tmp_path, speed=lambda made, _: made["speed"] if made["speed"] % 3 == 0 else -1)[
            0
        ].plates
        == 9
    )
    feed, _ = found(tmp_path, speed=lambda made, _: {"value": made["speed"], "unit": "km/h"})
    assert feed.keys["speed"] == "speed.value"


MOVING = recorded(fleet_log(buses=60, hours=0.2, clean=True))


def speeds(folder, name, factor=1.0, count=None):
    rows = [
        {"bus": one["license_plate"], "timestamp": one["observationDateTime"], name: one["speed"] * factor,
         "lon": one["location"]["coordinates"][0], "lat": one["location"]["coordinates"][1]} for one in MOVING[:count]
    ]  # fmt: skip
    feed = find_feed([written(folder, rows)])
    return feed.unit, feed.unit_by, len(feed.checks["speed"])


@pytest.mark.parametrize(
    ("name", "factor", "count", "unit"),
    [
        ("speed", 1, None, ("kmh", "movement", 0)),
        ("speed_mph", 1 / 1.609344, None, ("mph", "movement", 0)),
        ("speed_ms", 1 / 3.6, None, ("mps", "movement", 0)),
        ("speed_mph", 1, None, ("kmh", "movement", 1)),  # the name says another
        ("speed", 10, None, ("kmh", "", 1)),  # none fits
        ("speed_mph", 1, 60, ("mph", "name", 0)),  # too few pairs
        ("speed_knots", 1, 60, ("knots", "name", 0)),
        ("speed_fps", 1, 60, ("kmh", "", 1)),
        ("speed", 1, 60, ("kmh", "", 0)),
    ],
)
def test_the_unit_is_that_of_the_movement_else_of_the_name(name, factor, count, unit, tmp_path):
    assert speeds(tmp_path, name, factor, count) == unit


# Forms in which public feeds come, written by hand from their documentation.


def polls(vehicles=60, count=3, zero=False):
    """(time, [(number, time, lon, lat, km/h)]): buses that go 60 m in each 10 s."""
    for poll in range(count):
        now = 1704688200 + 60 * poll
        yield (
            now,
            [
                (
                    1000 + at,
                    now - at // 2 % 30,
                    72.83 + 0.003 * at,
                    21.19 + 0.0005405 * 6 * poll,
                    0 if zero else 36.0,
                )
                for at in range(vehicles)
            ],
        )


def saved(folder, contents, name="poll-{}.json"):
    paths = [folder / name.format(at) for at, _ in enumerate(contents)]
    for path, content in zip(paths, contents, strict=True):
        path.write_text(content)
    return list(map(str, paths))


def iso(time_s):
    return datetime.fromtimestamp(time_s, UTC).isoformat()


def siri(now, vehicles):
    """Over many lines, as England's open data have it: no speeds, and operators that share numbers."""
    each = """
      <VehicleActivity>
        <RecordedAtTime>{}</RecordedAtTime><ItemIdentifier>{}</ItemIdentifier>
        <MonitoredVehicleJourney>
          <LineRef>1</LineRef><OperatorRef>{}</OperatorRef>
          <VehicleLocation><Longitude>{}</Longitude><Latitude>{}</Latitude></VehicleLocation>
          <VehicleRef>{}</VehicleRef>
        </MonitoredVehicleJourney>
      </VehicleActivity>"""
    inner = "".join(
        each.format(
            iso(time_s), f"{number}-{time_s}", "AB" if at % 2 else "CD", lon, lat, number // 2
        )
        for at, (number, time_s, lon, lat, _) in enumerate(vehicles)
    )
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<Siri xmlns="http://www.siri.org.uk/siri" version="2.0">
  <ServiceDelivery>
    <ResponseTimestamp>{iso(now)}</ResponseTimestamp>
    <VehicleMonitoringDelivery>{inner}
    </VehicleMonitoringDelivery>
  </ServiceDelivery>
</Siri>
"""


def test_xml_over_many_lines_is_one_document_whose_vehicles_may_be_one_or_none(tmp_path):
    some = list(polls())
    some[0] = (some[0][0], some[0][1][:1])
    feed = find_feed(saved(tmp_path, [siri(*one) for one in some], "{}.xml"))
    assert (feed.pings, feed.plates, feed.refused, feed.unit, feed.form) == (121, 60, 0, "", "XML")
    assert feed.keys["plate"] == (
        "MonitoredVehicleJourney.OperatorRef",
        "MonitoredVehicleJourney.VehicleRef",
    )
    one = find_feed(saved(tmp_path, [siri(some[0][0], some[0][1])], "one-{}.xml"))
    assert one.pings == 1 and one.keys["records"] == feed.keys["records"]


def test_vehicles_in_attributes_are_an_array_even_where_there_is_one_or_none(tmp_path):
    def nextbus(now, vehicles):
        each = '<vehicle id="{}" routeTag="N" lat="{}" lon="{}" secsSinceReport="{}" heading="1" speedKmHr="{}"/>\n'
        inner = "".join(
            each.format(number, lat, lon, now - at, speed)
            for number, at, lon, lat, speed in vehicles
        )
        return f'<?xml version="1.0" encoding="utf-8"?>\n<body copyright="X">\n{inner}<lastTime time="{now}000"/>\n</body>'

    some = [nextbus(now, vehicles[: (60, 1, 0)[at]]) for at, (now, vehicles) in enumerate(polls())]
    feed = find_feed(saved(tmp_path, some, "{}.xml"))
    assert (feed.pings, feed.plates, feed.refused) == (61, 60, 0)
    one = find_feed(saved(tmp_path, some[1:2], "one-{}.xml"))
    assert one.keys == feed.keys and feed.keys["records"] == "body.vehicle"


def test_of_several_arrays_the_one_whose_records_have_times_of_their_own_is_of_vehicles(tmp_path):
    def answer(now, vehicles):  # as OneBusAway's
        listed = [
            {"vehicleId": f"1_{number}", "lastLocationUpdateTime": at * 1000, "location": {"lat": lat, "lon": lon},
             "tripStatus": {"position": {"lat": lat + 1, "lon": lon}, "lastUpdateTime": (at - 900) * 1000}}
            for number, at, lon, lat, _ in vehicles
        ]  # fmt: skip
        stops = [
            {"id": f"1_{at}", "lat": 21.1 + at / 1e4, "lon": 72.8, "name": "x"} for at in range(300)
        ]
        return json.dumps(
            {"currentTime": now * 1000, "data": {"list": listed, "references": {"stops": stops}}}
        )

    feed = find_feed(saved(tmp_path, [answer(*one) for one in polls()]))
    assert (feed.keys["records"], feed.keys["plate"], feed.pings, feed.plates) == (
        "data.list",
        "vehicleId",
        180,
        60,
    )
    assert feed.keys["latitude"] == "location.lat" and feed.keys["time"] == "lastLocationUpdateTime"


def test_of_two_times_of_one_name_the_one_beside_the_place_is_the_pings(tmp_path):
    lines = [
        json.dumps({"tst": iso(now + 500), "payload": {"id": n, "tst": iso(at), "lat": lat, "lon": lon}})
        for now, vehicles in polls() for n, at, lon, lat, _ in vehicles
    ]  # fmt: skip
    (tmp_path / "log.txt").write_text("\n".join(lines))
    feed = find_feed([str(tmp_path / "log.txt")])
    assert feed.keys["time"] == "payload.tst" and feed.pings == 180


def test_no_path_leads_through_a_key_that_may_be_a_plate(tmp_path):
    by_id = {
        str(n): [{"bus": f"B{n}", "latitude": lat, "longitude": lon, "time": at, "speed": 1}]
        for n, at, lon, lat, _ in next(polls())[1]
    }
    feed = find_feed(saved(tmp_path, [json.dumps({"buses": by_id})]))
    assert (feed.keys["records"], feed.keys["plate"], feed.plates) == ("buses.*", "bus", 60)
    assert "1000" not in city_file(feed, "sample")


@pytest.mark.parametrize("zero", [True, False])
def test_speeds_that_are_all_zero_while_buses_move_are_derived(zero, tmp_path):
    rows = [
        f"{n},{at},{lon},{lat},{speed}"
        for _, some in polls(zero=zero)
        for n, at, lon, lat, speed in some
    ]
    (tmp_path / "avl.csv").write_text("\n".join(["bus,timestamp,lon,lat,speed", *rows]))
    feed = find_feed([str(tmp_path / "avl.csv")])
    (tmp_path / "city.toml").write_text(city_file(feed, "avl.csv"))
    settings = load(tmp_path / "city.toml", (), {})
    assert (settings.speed.from_, settings.source.speed) == (
        "movement" if zero else "field",
        "speed",
    )
    assert any("every speed is 0" in one for one in checks(feed)) == zero
    one_poll = [f"{row.rpartition(',')[0]},0" for row in rows[:60]]
    (tmp_path / "poll.csv").write_text("\n".join(["bus,timestamp,lon,lat,speed", *one_poll]))
    still = find_feed([str(tmp_path / "poll.csv")])  # it cannot tell, and says so
    assert still.unit and any("every speed is 0" in one for one in checks(still))


WORDS = {
    "several values": '{"bus": 1,\n"lat": 21.2}\n{"bus": 2,\n"lat": 21.3}\n',
    "secsSinceReport": json.dumps(
        [{"id": n, "lat": 21.5, "lon": 72.5, "secsSinceReport": 9, "kph": 3} for n in range(9)]
    ),
    "Error.message": '{"Error": {"code": "401", "message": "Access denied"}}',
    "binary": b"\n\r\n\x032.0\x18\xe8\xf0\xea\xac\x06\x12\x1e".decode("latin-1"),
    "no ping": "<!DOCTYPE html>\n<html><body>401</body></html>",
}


@pytest.mark.parametrize("word", WORDS)
def test_what_holds_no_ping_is_said(word, tmp_path):
    (tmp_path / "feed").write_bytes(WORDS[word].encode("latin-1"))
    with pytest.raises(UsageError, match=word):
        find_feed([str(tmp_path / "feed")])
