"""What `init` finds in feeds whose fields mislead: the plate, exchanged positions, dates, and what it says of them."""

import argparse
import json
import re
from datetime import datetime, timedelta, timezone

import pytest

from tests.forms import long_but
from udp_stream.adapters.settings import Settings
from udp_stream.cli.city_file import city_file
from udp_stream.cli.commands.init import init
from udp_stream.cli.found_feed import find_feed
from udp_stream.errors import UsageError

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
    return feed, city_file(feed, path)


def message_id(at):
    return f"message-{at}"


@pytest.mark.parametrize("ids", [message_id, lambda _: "surat/feed"])
def test_an_id_of_each_message_or_of_all_of_them_is_no_plate_while_another_field_may_be(ids, tmp_path):
    feed, text = found(tmp_path, bus=..., vehicle=ids, deviceId=lambda made, _: f"d{int(made['lat'] * 1000) % 7}")
    assert feed.keys["plate"] == "deviceId" and feed.plates == 7
    assert "pings of" not in text.partition("\n\n")[2]


def test_a_plate_that_is_another_in_each_ping_is_to_be_checked(tmp_path):
    feed, text = found(tmp_path, bus=..., id=message_id)
    assert feed.keys["plate"] == "id"
    assert "# CHECK: 600 pings of 600 plates: is source.plate the vehicle's, and not the message's" in text


def test_a_word_for_a_missing_plate_is_to_be_checked_and_is_not_shown(tmp_path):
    buses = [f"GJ05BX{1000 + at}" for at in range(30)]
    feed, text = found(tmp_path, bus=..., vehicle=lambda at: buses[at % 30] if at % 3 else "XXXXX")
    assert "# CHECK: one plate has 200 of 600 pings, the median plate has 20: is it a word for a missing" in text
    assert "XXXXX" not in text and feed.shared


def test_a_route_for_a_plate_is_to_be_checked(tmp_path):
    """Three buses of a route ping in one second, kilometres apart."""
    _, text = found(tmp_path, bus=..., vehicle=lambda at: f"line {at // 3 % 3}",
                    lat=lambda made, _: 21.1 + int(made["lat"] * 1000) % 3 / 10)  # fmt: skip
    assert "pings are 5 km or more from another of the same plate and second: is source.plate the vehicle's" in text
    assert not re.search(r"line \d", text)


def test_buses_of_which_some_ping_far_more_are_nothing_to_check(tmp_path):
    feed, _ = found(tmp_path, bus=..., vehicle=lambda at: f"b{at % 30 if at % 7 else at % 9}")
    assert feed.plates == 30 and not feed.shared


HALF = [
    ({"bus": lambda made, _: made["bus"] if made["speed"] % 2 else None},
     "300 of 600 pings are refused as wrong_type at $.bus: nothing (null), where a text is needed"),
    ({"speed": lambda made, _: made["speed"] if made["speed"] % 2 else ...},
     "300 of 600 pings are refused as missing_field at $.speed: no speed; found bus, lat, lon, timestamp"),
    ({"speed": lambda made, _: made["speed"] if made["speed"] % 2 else -1},
     "300 of 600 pings are refused as speed_negative at $.speed"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "sentence"), HALF, ids=["plate", "no speed", "speed"])
def test_refusals_that_are_more_than_a_feeds_own_faults_are_to_be_checked(changes, sentence, tmp_path, capsys):
    feed, text = found(tmp_path, **changes)
    assert feed.refused == 300 and f"\n# CHECK: {sentence}\n" in text and not leaks(text)
    init(argparse.Namespace(files=[str(tmp_path / "feed.ndjson")], out="-"), Settings())
    said = " ".join(capsys.readouterr().err.split())
    assert f"300 refused, most as {sentence.partition(' as ')[2].partition(':')[0]} warning: {sentence}" in said
    assert "2 lines of the configuration say CHECK or NOT KNOWN" in said  # and the unit, which is not known


def leaks(text):
    return any(plate in text for plate in PLATES)


def test_a_feeds_own_faults_are_counted_and_nothing_to_check(tmp_path):
    feed, text = found(tmp_path, bus=lambda made, _: "" if made["lat"] == 21.1 else made["bus"])
    assert feed.refused == 7 and feed.commonest == "empty_plate at $.bus" and "empty_plate" not in text


def test_a_snapshot_has_each_vehicle_once(tmp_path):
    feed, text = found(tmp_path, bus=..., id=message_id, timestamp=lambda _, time: time.replace(second=0).isoformat(),
                       count=60)  # fmt: skip
    assert feed.keys["plate"] == "id" and "CHECK: 60" not in text


def test_pings_of_one_bus_have_one_plate(tmp_path):
    feed, _ = found(tmp_path, vehicle=lambda _: "GJ05BX1916", bus=..., deviceId=lambda made, _: made["speed"],
                    per_second=1)  # fmt: skip
    assert feed.keys["plate"] == "vehicle"


def contract(at, lon, lat, offset="+05:30"):
    one = ping(at, lon=lon + (at % 77) / 1000, lat=lat + (at % 91) / 1000)
    return {"license_plate": one["bus"], "observationDateTime": one["timestamp"].replace("+05:30", offset),
            "location": {"type": "Point", "coordinates": [one["lon"], one["lat"]]}, "speed": one["speed"]}  # fmt: skip


CITIES = [
    ("Asia/Kolkata", 72.8, 21.1, "+05:30"),
    ("Europe/Berlin", 13.4, 52.5, "+01:00"),
    ("Europe/Madrid", -0.4, 39.5, "+01:00"),
    ("America/Sao_Paulo", -46.6, -23.5, "-03:00"),
    ("America/Sao_Paulo", -46.6, -23.5, ""),
]


@pytest.mark.parametrize(("zone", "lon", "lat", "offset"), CITIES)
@pytest.mark.parametrize("form", long_but(["flat"], ["contract", "flat"]))
def test_positions_that_are_exchanged_are_exchanged_back(zone, lon, lat, offset, form, tmp_path):
    right, wrong = ([contract(at, *place, offset) for at in range(200)] for place in ((lon, lat), (lat, lon)))
    if form == "flat":
        right, wrong = (
            [{"bus": one["license_plate"], "t": one["observationDateTime"], "v": one["speed"],
              "x": one["location"]["coordinates"][0], "y": one["location"]["coordinates"][1]} for one in pings]
            for pings in (right, wrong)
        )  # fmt: skip
    feed = find_feed([written(tmp_path, right)])
    assert not feed.exchanged and feed.zone == zone
    back = find_feed([path := written(tmp_path, wrong)])
    names = ("location.coordinates.1", "location.coordinates.0") if form == "contract" else ("y", "x")
    assert back.exchanged and (back.keys["longitude"], back.keys["latitude"]) == names
    assert back.zone == zone and "CHECK: longitude and latitude stand under each other's name" in city_file(back, path)
    west, south, east, north = back.box
    assert west < lon < east and south < lat < north


def test_a_preset_whose_positions_are_exchanged_is_a_mapping(tmp_path):
    pings = [contract(at, 21.1, 72.8) for at in range(200)]
    entities = [{"id": str(at), "vehicle": {"vehicle": {"id": one["license_plate"]}, "position": {
        "longitude": one["location"]["coordinates"][0], "latitude": one["location"]["coordinates"][1], "speed": 5},
        "timestamp": 1641011400 + at}} for at, one in enumerate(pings)]  # fmt: skip
    feed = find_feed([written(tmp_path, [{"entity": entities}])])
    assert feed.exchanged and feed.keys["longitude"] == "vehicle.position.latitude" and feed.unit == "mps"
    assert feed.preset == "" and feed.keys["records"] == "entity" and feed.keys["time_format"] == "epoch_s"


def test_a_feed_at_sea_says_so(tmp_path):
    feed = find_feed([path := written(tmp_path, [contract(at, -30, -40) for at in range(200)])])
    assert not feed.exchanged and "# CHECK: these positions lie at sea" in city_file(feed, path)


AUSTIN, BERLIN = (-97.74, 30.27), (13.4, 52.5)
US, EUROPE = "%m/%d/%Y %H:%M:%S", "%d/%m/%Y %H:%M:%S"
CHECK = "# CHECK: day and month could be exchanged"


@pytest.mark.parametrize(
    ("place", "pattern", "days", "is_sure"),
    [(AUSTIN, US, 1, False), (BERLIN, EUROPE, 1, False), (AUSTIN, US, 3, True), (AUSTIN, EUROPE, 3, True),
     (BERLIN, US, 3, True)],
)  # fmt: skip
def test_day_and_month_go_by_the_place_where_times_do_not_tell(place, pattern, days, is_sure, tmp_path):
    begin = datetime(2022, 3, 4, 10)
    pings = [
        ping(at, lon=place[0] + (at % 77) / 1000, lat=place[1] + (at % 91) / 1000,
             timestamp=(begin + timedelta(seconds=at, days=at * days // 200)).strftime(pattern))
        for at in range(200)
    ]  # fmt: skip
    feed = find_feed([path := written(tmp_path, pings)])
    assert feed.keys["time_format"] == pattern
    assert (CHECK in city_file(feed, path)) is not is_sure
    assert is_sure or f"{CHECK}; this reads the first ping as of 2022-03-04" in city_file(feed, path)


HEADERS = [
    ("Kennzeichen", "Zeitstempel", "Laenge", "Breite", "Geschwindigkeit"),
    ("Fahrzeug", "Zeit", "L\u00e4ngengrad", "Breitengrad", "Tempo"),
    ("immatriculation", "horodatage", "longitude", "latitude", "vitesse"),
    ("matr\u00edcula", "fecha", "longitud", "latitud", "velocidad"),
    ("bus", "wann", "lon", "lat", "v"),
]


@pytest.mark.parametrize("header", HEADERS, ids=lambda header: header[0])
def test_columns_in_other_languages_and_a_time_that_only_its_values_tell(header, tmp_path):
    rows = [";".join(header)]
    for at in range(300):
        one = ping(at)
        time = datetime.fromisoformat(one["timestamp"]).strftime("%d.%m.%Y %H:%M:%S")
        places = (str(one[name]).replace(".", ",") for name in ("lon", "lat", "speed"))
        rows.append(";".join([one["bus"], time, *places]))
    (tmp_path / "feed.csv").write_text("\n".join(rows), encoding="utf-8")
    feed = find_feed([str(tmp_path / "feed.csv")])
    assert tuple(feed.keys[name] for name in ("plate", "time", "longitude", "latitude", "speed")) == header
    assert feed.pings == 300 and feed.zone == "Asia/Kolkata"


def test_of_two_columns_that_may_be_the_time_none_is_taken_without_a_name(tmp_path):
    with pytest.raises(UsageError, match="found no field for time among"):
        found(tmp_path, timestamp=..., wann=lambda _, time: time.isoformat(), auch=lambda _, time: time.isoformat())


def test_a_speed_of_minus_one_is_one_that_is_not_known(tmp_path):
    feed, _ = found(tmp_path, speed=lambda made, _: made["speed"] if made["speed"] % 3 == 0 else -1)
    assert feed.keys["speed"] == "speed" and feed.plates == 9
    with pytest.raises(UsageError, match="speed: no number that is a speed"):
        found(tmp_path, speed=-1)


def test_a_value_under_a_field_s_name_is_the_field(tmp_path):
    feed, _ = found(tmp_path, speed=lambda made, _: {"value": made["speed"], "unit": "km/h"})
    assert feed.keys["speed"] == "speed.value"


UNFIT = [
    ({"speed": lambda made, _: f"{made['speed']} km/h"},
     "found no field for speed among bus, lat, lon, speed, timestamp. "
     "speed: text with a number and more in it, such as its unit: leave the number alone"),
    ({"speed": "fast"}, "speed: text, where a number is needed"),
    ({"lat": lambda made, _: int(made["lat"] * 1e7), "lon": lambda made, _: int(made["lon"] * 1e7)},
     "found no field for longitude, latitude among bus, lat, lon, speed, timestamp. lon: numbers that are no degrees: "
     "divide them, by 1e7 perhaps. lat: numbers that are no degrees"),
    ({"timestamp": ..., "date": lambda _, time: f"{time:%Y-%m-%d}", "time": lambda _, time: f"{time:%H:%M:%S}"},
     "time: a time of day without its date: join the two. date: a date without a time of day"),
    ({"lat": ..., "lon": ..., "geom": lambda made, _: f"POINT({made['lon']} {made['lat']})"},
     "geom: a point as text (WKT): write longitude and latitude apart"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "words"), UNFIT, ids=[str(at) for at in range(len(UNFIT))])
def test_a_field_that_has_the_name_and_not_the_values_is_told_by_their_kind(changes, words, tmp_path):
    with pytest.raises(UsageError) as raised:
        found(tmp_path, **changes)
    said = str(raised.value).removeprefix(str(tmp_path))
    assert words in said and "GJ05" not in said and "10:00" not in said and "2022" not in said
    assert said.endswith("Or write [source] by hand (docs/feeds.md)")


LACKING = [
    ({"bus": ...}, "A ping needs a plate. If another field has it, write [source] by hand (docs/feeds.md); else the"),
    ({"speed": ...}, "A ping needs a speed. If another field has it"),
    ({"bus": lambda made, _: made["bus"] if made["speed"] % 3 == 0 else None},
     "bus: absent or null in more than half of the records."),
    ({"lat": ..., "latE7": 211775759, "lon": ..., "lonE7": 728344110},
     "A ping needs a longitude in degrees, a latitude in degrees. If other fields have them"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "words"), LACKING, ids=["plate", "speed", "rare", "degrees"])
def test_what_a_feed_lacks_is_said_and_not_only_to_write_it_by_hand(changes, words, tmp_path):
    with pytest.raises(UsageError) as raised:
        found(tmp_path, **changes)
    assert words in str(raised.value) and not leaks(str(raised.value))


def test_of_two_cities_in_one_file_the_name_is_said(tmp_path):
    with pytest.raises(UsageError, match=r"feed\.ndjson: its positions lie far apart, and none near their middle"):
        found(tmp_path, lon=lambda made, _: made["lon"] if made["speed"] % 2 else made["lon"] - 170)


def test_times_marked_as_utc_are_to_be_checked_with_the_hours_that_they_give(tmp_path):
    _, text = found(tmp_path, timestamp=lambda _, time: f"{time:%Y-%m-%dT%H:%M:%SZ}")
    assert "# CHECK: the feed's times are marked as UTC. If they are, pings are from 15:30 to 15:33 by this" in text
    assert "(pings from 2022-01-01 15:30 to 15:33)" in text


@pytest.mark.parametrize("pattern", ["%Y%m%dT%H%M%SZ", "%Y/%m/%d %H:%M:%SZ"])
def test_a_z_behind_times_of_another_form_is_utc_too(tmp_path, pattern):
    _, text = found(tmp_path, timestamp=lambda _, time: f"{time:{pattern}}")
    assert "(pings from 2022-01-01 15:30 to 15:33)" in text and "time_zone" not in text
    assert f'time_format = "{pattern.removesuffix("Z")}%z"' in text


@pytest.mark.parametrize(("between", "offset"), [(" ", "+0530"), ("", "+05:30"), (" ", "-07:00")])
def test_an_offset_behind_times_of_another_form_is_read_with_the_space_before_it(tmp_path, between, offset):
    _, text = found(tmp_path, timestamp=lambda _, time: f"{time:%d/%m/%Y %H:%M:%S}{between}{offset}")
    assert f'time_format = "%d/%m/%Y %H:%M:%S{between}%z"' in text and "time_zone" not in text


def two_columns(lon, lat):
    return {"lon": ..., "lat": ..., "osten": lambda made, _: made["lon"] + lon - 72.8 + 1e-5,
            "norden": lambda made, _: made["lat"] + lat - 21.1 + 1e-5}  # fmt: skip


def test_the_only_two_columns_of_degrees_are_longitude_and_latitude_where_one_can_be_no_latitude(tmp_path):
    feed, text = found(tmp_path, **two_columns(72.8, 21.1))
    assert (feed.keys["longitude"], feed.keys["latitude"]) == ("osten", "norden")
    assert "# CHECK: no name says which path is the longitude and the latitude: known by values alone." in text
    feed, _ = found(tmp_path, lon=..., osten=lambda made, _: made["lon"] + 1e-5)
    assert (feed.keys["longitude"], feed.keys["latitude"], feed.unnamed) == ("osten", "lat", ("longitude",))


def test_two_columns_of_degrees_that_may_be_either_are_named_and_not_guessed(tmp_path):
    with pytest.raises(UsageError, match="osten, norden: degrees, which do not say which of the two is the longitude"):
        found(tmp_path, **two_columns(13.4, 52.5))


def test_of_three_columns_that_may_be_degrees_none_is_taken(tmp_path):
    with pytest.raises(UsageError, match="found no field for longitude, latitude"):
        found(tmp_path, **two_columns(72.8, 21.1), third=lambda made, _: made["lat"] + 0.12345)


def test_numbers_that_would_be_times_of_many_years_are_no_times(tmp_path):
    with pytest.raises(UsageError, match="found no field for time"):
        found(tmp_path, timestamp=..., journey=lambda made, _: int(1e9 + 1e7 * made["speed"]))


def test_pings_without_a_known_speed_are_counted_as_refused(tmp_path):
    feed, _ = found(tmp_path, speed=lambda made, _: -1 if made["speed"] % 4 else 7.5)
    assert feed.refused == 450 and feed.pings == 150
