"""What `init` finds in feeds of many forms: mapping, times, plate, zone, unit, box; and what it asks to be checked."""

import json
import re
from datetime import datetime, timedelta, timezone

import pytest

from benchmarks.feed_forms import recorded
from tests.runtime.harness import fleet_log
from udp_stream.cli.found_feed import city_file, find_feed
from udp_stream.errors import UsageError
from udp_stream.pings.found import unit_of_name
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


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"bus": ..., "id": message_id}, "message"),
        ({"bus": ..., "vehicle": lambda at: f"v{at % 30}" if at % 3 else "XXXXX"}, "missing plate"),
        ({"bus": ..., "vehicle": lambda at: f"line {at // 3 % 3}",
          "lat": lambda made, _: 21.1 + int(made["lat"] * 1000) % 3 / 10}, "route"),
    ],
)  # fmt: skip
def test_a_plate_that_is_no_vehicle_s_is_to_be_checked_and_not_shown(changes, word, tmp_path):
    _, (said,) = found(tmp_path, **changes)
    assert word in said and "XXXXX" not in said and not re.search(r"line \d", said)


def test_a_poll_has_each_vehicle_once(tmp_path):
    feed, said = found(
        tmp_path, bus=..., id=message_id, timestamp=lambda _, time: time.replace(second=0).isoformat(), count=60
    )
    assert feed.keys["plate"] == "id" and said == []


def test_refusals_that_are_more_than_a_feed_s_own_faults_are_to_be_checked(tmp_path):
    feed, (said,) = found(tmp_path, speed=lambda made, _: made["speed"] if made["speed"] % 2 else ...)
    assert feed.refused == 300 and said.startswith("300 of 600 pings are refused: missing_field at $.speed")
    assert found(tmp_path, bus=lambda made, _: "" if made["lat"] == 21.1 else made["bus"])[1] == []


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


def test_a_feed_at_sea_is_to_be_checked(tmp_path):
    _, said = found(tmp_path, lon=-30.5, lat=lambda made, _: made["lat"] - 60, timestamp=1641011400)
    assert any("sea" in one for one in said)


@pytest.mark.parametrize(("zone", "lon", "lat"), [CITIES[0], CITIES[1], ("America/Chicago", -97.74, 30.27)])
def test_positions_under_each_other_s_name_are_exchanged_back(zone, lon, lat, tmp_path):
    feed, said = found(tmp_path, lat=lambda made, _: made["lon"] - 72.8 + lon, timestamp=1641011400,
                       lon=lambda made, _: lat + (made["lat"] - 21.1))  # fmt: skip
    assert (feed.keys["longitude"], feed.keys["latitude"], feed.zone) == ("lat", "lon", zone)
    assert any("each other" in one for one in said) and feed.box[0] < lon < feed.box[2]


@pytest.mark.parametrize(
    ("place", "pattern", "days", "is_sure"),
    [((-97.74, 30.27), "%m/%d/%Y %H:%M:%S", 1, False), ((13.4, 52.5), "%d/%m/%Y %H:%M:%S", 1, False),
     ((-97.74, 30.27), "%d/%m/%Y %H:%M:%S", 3, True), ((13.4, 52.5), "%m/%d/%Y %H:%M:%S", 3, True),
     ((-97.74, 30.27), "%H:%M:%S %m/%d/%Y", 1, False)],
)  # fmt: skip
def test_day_and_month_go_by_the_place_where_times_do_not_tell(place, pattern, days, is_sure, tmp_path):
    begin = datetime(2022, 3, 4, 10)
    pings = [
        ping(at, lon=place[0] + (at % 77) / 1000, lat=place[1] + (at % 91) / 1000,
             timestamp=(begin + timedelta(seconds=at, days=at * days // 200)).strftime(pattern))
        for at in range(200)
    ]  # fmt: skip
    feed = find_feed([written(tmp_path, pings)])
    assert feed.keys["time_format"] == pattern and feed.keys["time_zone"] == feed.zone
    assert any("day and month" in one for one in checks(feed)) is not is_sure


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


@pytest.mark.parametrize(("offset", "doubts"), [("+05:30", 0), ("+01:00", 1), ("Z", 1)])
def test_times_of_another_offset_than_the_place_s_are_to_be_checked(offset, doubts, tmp_path):
    feed, said = found(tmp_path, timestamp=lambda _, time: time.strftime("%Y-%m-%dT%H:%M:%S") + offset)
    assert len(said) == doubts and feed.zone == "Asia/Kolkata"


HEADERS = [
    ("Kennzeichen", "Zeitstempel", "Laenge", "Breite", "Geschwindigkeit"),
    ("Fahrzeug", "Zeit", "L\u00e4ngengrad", "Breitengrad", "Tempo"),
    ("immatriculation", "horodatage", "longitude", "latitude", "vitesse"),
    ("matr\u00edcula", "fecha", "longitud", "latitud", "velocidad"),
    ("$.bus", "$.gps[0].time", "$.lon", "$.lat", "$.speed"),
]


@pytest.mark.parametrize("header", HEADERS, ids=lambda header: header[0])
def test_columns_in_other_languages_and_by_paths(header, tmp_path):
    rows = [";".join(header)]
    for at in range(300):
        one = ping(at)
        time = datetime.fromisoformat(one["timestamp"]).strftime("%d.%m.%Y %H:%M:%S")
        places = (str(one[name]).replace(".", ",") for name in ("lon", "lat", "speed"))
        rows.append(";".join([one["bus"], time, *places]))
    (tmp_path / "feed.csv").write_text("\n".join(rows), encoding="utf-8")
    feed = find_feed([str(tmp_path / "feed.csv")])
    names = [name.removeprefix("$.").replace("[0]", ".0") for name in header]
    assert [feed.keys[name] for name in ("plate", "time", "longitude", "latitude", "speed")] == names
    assert (feed.pings, feed.plates, feed.zone, feed.delimiter) == (300, 9, "Asia/Kolkata", ";")


def test_a_speed_of_minus_one_is_not_known_and_a_value_below_a_name_is_the_field(tmp_path):
    assert found(tmp_path, speed=lambda made, _: made["speed"] if made["speed"] % 3 == 0 else -1)[0].plates == 9
    feed, _ = found(tmp_path, speed=lambda made, _: {"value": made["speed"], "unit": "km/h"})
    assert feed.keys["speed"] == "speed.value"


UNFIT = [
    ({"speed": lambda made, _: f"{made['speed']} km/h"}, ["speed: found text at speed, wanted a number"]),
    ({"speed": ...}, ["speed: found no such name"]),
    ({"bus": lambda made, _: made["bus"] if made["speed"] % 3 == 0 else None}, ["plate: found no such name"]),
    ({"lat": lambda made, _: int(made["lat"] * 1e7), "lon": lambda made, _: int(made["lon"] * 1e7)},
     ["longitude: found a whole number at lon, wanted degrees", "latitude: found a whole number at lat"]),
    ({"timestamp": ..., "time": lambda _, time: f"{time:%H:%M:%S}"}, ["time: found text at time, wanted a date and"]),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "words"), UNFIT, ids=[str(at) for at in range(len(UNFIT))])
def test_what_a_feed_lacks_is_said_by_field_found_and_wanted(changes, words, tmp_path):
    with pytest.raises(UsageError) as raised:
        found(tmp_path, **changes)
    said = str(raised.value).splitlines()[1:]
    assert len(said) == len(words) and all(word in one for one, word in zip(said, words, strict=True))
    assert not re.search("GJ05|10:00|2022", "".join(said))


def test_a_key_that_no_path_can_name_is_no_field(tmp_path):
    for name in ("vehicle.id", "7", 'vehicle "id"'):
        pings = [{name if key == "bus" else key: value for key, value in ping(at).items()} for at in range(60)]
        with pytest.raises(UsageError, match="plate: found no such name"):
            find_feed([written(tmp_path, pings)])


def test_files_of_two_forms_are_refused(tmp_path):
    one = written(tmp_path, [ping(at) for at in range(60)])
    (tmp_path / "b.csv").write_text("bus,timestamp,lon,lat,speed\n" + ",".join(map(str, ping(0).values())) + "\n")
    with pytest.raises(UsageError, match=r"b\.csv: not in the form of"):
        find_feed([one, str(tmp_path / "b.csv")])


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
        ("speed_knots", 1, 60, ("kmh", "", 1)),
        ("speed", 1, 60, ("kmh", "", 0)),
    ],
)
def test_the_unit_is_that_of_the_movement_else_of_the_name(name, factor, count, unit, tmp_path):
    assert speeds(tmp_path, name, factor, count) == unit


def test_a_preset_whose_unit_the_movement_contradicts_is_a_mapping(tmp_path):
    rows = [
        {"entity": [{"id": str(at), "vehicle": {
            "vehicle": {"id": one["license_plate"]},
            "timestamp": int(datetime.fromisoformat(one["observationDateTime"]).timestamp()),
            "position": {"longitude": one["location"]["coordinates"][0],
                         "latitude": one["location"]["coordinates"][1], "speed": one["speed"] / factor}}}]}
        for factor in (1, 3.6) for at, one in enumerate(MOVING)
    ]  # fmt: skip
    feed = find_feed([written(tmp_path, rows[: len(MOVING)])])
    assert (feed.preset, feed.unit) == ("", "kmh") and feed.keys["records"] == "entity" and feed.checks["speed"]
    feed = find_feed([written(tmp_path, rows[len(MOVING) :])])
    assert (feed.preset, feed.unit, feed.unit_by) == ("gtfs-rt", "mps", "movement")


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("speed", None),
        ("v_kmh", "kmh"),
        ("speedMps", "mps"),
        ("velocity_kn", "knots"),
        ("known", None),
        ("token", None),
    ],
)
def test_units_that_names_say(name, unit):
    assert unit_of_name(name) == unit
