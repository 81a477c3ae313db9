"""What `init` finds in feeds of many forms: mapping, times, plate, zone, unit, box; and what it asks to be checked."""

import json
from datetime import datetime, timedelta, timezone

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
    made |= {name: value(made, time) if callable(value) else value for name, value in changes.items()}
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
def test_an_id_of_each_message_or_of_all_of_them_is_no_plate_while_another_field_may_be(ids, tmp_path):
    feed, said = found(tmp_path, bus=..., vehicle=ids, deviceId=lambda made, _: f"d{int(made['lat'] * 1000) % 7}")
    assert feed.keys["plate"] == "deviceId" and feed.plates == 7 and said == []


CITIES = [
    ("Asia/Kolkata", 72.8, 21.1), ("Europe/Berlin", 13.4, 52.5), ("Europe/Madrid", -0.4, 39.5),
    ("America/Sao_Paulo", -46.6, -23.5),
]  # fmt: skip


@pytest.mark.parametrize(("zone", "lon", "lat"), CITIES)
def test_zone_and_box_are_those_of_the_positions(zone, lon, lat, tmp_path):
    changes = {"lon": lambda made, _: made["lon"] - 72.8 + lon, "lat": lambda made, _: made["lat"] - 21.1 + lat}
    feed, _ = found(tmp_path, **changes, timestamp=lambda _, time: int(time.timestamp()))
    west, south, east, north = feed.box
    assert feed.zone == zone and feed.keys["time_format"] == "epoch_s"
    assert lon - 0.2 < west < lon < lon + 0.076 < east < lon + 0.3
    assert lat - 0.2 < south < lat < lat + 0.09 < north < lat + 0.3


def test_stray_fixes_do_not_widen_the_box_and_two_cities_are_refused(tmp_path):
    feed, _ = found(tmp_path, lon=lambda made, _: made["lon"] - 30 if made["lat"] == 21.1 else made["lon"])
    assert feed.box[0] > 72 and feed.zone == "Asia/Kolkata"
    with pytest.raises(UsageError, match="far apart"):
        found(tmp_path, lon=lambda made, _: made["lon"] if made["speed"] % 2 else made["lon"] - 170)


@pytest.mark.parametrize(
    ("pattern", "time_format", "zone"),
    [
        ("%Y%m%dT%H%M%SZ", "%Y%m%dT%H%M%S%z", False),
        ("%d/%m/%Y %H:%M:%S +0530", "%d/%m/%Y %H:%M:%S %z", False),
        ("%H:%M:%S %d-%m-%Y", "%H:%M:%S %d-%m-%Y", True),
        ("%I:%M:%S %p, %d-%m-%Y", "%I:%M:%S %p, %d-%m-%Y", True),
        ("%Y-%m-%d %H:%M:%S", None, True),
    ],
)
def test_times_of_many_forms_are_read(pattern, time_format, zone, tmp_path):
    feed, _ = found(tmp_path, timestamp=lambda _, time: f"{time:{pattern}}")
    assert feed.keys.get("time_format") == time_format and ("time_zone" in feed.keys) is zone
    assert feed.pings == 600 and feed.refused == 0


def test_a_speed_of_minus_one_is_not_known_and_a_value_below_a_name_is_the_field(tmp_path):
    assert found(tmp_path, speed=lambda made, _: made["speed"] if made["speed"] % 3 == 0 else -1)[0].plates == 9
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
