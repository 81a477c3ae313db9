"""What `init` finds in feeds whose fields mislead: the plate, exchanged positions, dates, and what it says of them."""

import json
from datetime import datetime, timedelta, timezone

import pytest

from udp_stream.cli.city_file import city_file
from udp_stream.cli.found_feed import find_feed

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
    feed = find_feed(path)
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
@pytest.mark.parametrize("form", ["contract", "flat"])
def test_positions_that_are_exchanged_are_exchanged_back(zone, lon, lat, offset, form, tmp_path):
    right, wrong = ([contract(at, *place, offset) for at in range(200)] for place in ((lon, lat), (lat, lon)))
    if form == "flat":
        right, wrong = (
            [{"bus": one["license_plate"], "t": one["observationDateTime"], "v": one["speed"],
              "x": one["location"]["coordinates"][0], "y": one["location"]["coordinates"][1]} for one in pings]
            for pings in (right, wrong)
        )  # fmt: skip
    feed = find_feed(written(tmp_path, right))
    assert not feed.exchanged and feed.zone == zone
    back = find_feed(path := written(tmp_path, wrong))
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
    feed = find_feed(written(tmp_path, [{"entity": entities}]))
    assert feed.exchanged and feed.keys["longitude"] == "vehicle.position.latitude" and feed.unit == "mps"
    assert feed.preset == "" and feed.keys["records"] == "entity" and feed.keys["time_format"] == "epoch_s"


def test_a_feed_at_sea_says_so(tmp_path):
    feed = find_feed(path := written(tmp_path, [contract(at, -30, -40) for at in range(200)]))
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
    feed = find_feed(path := written(tmp_path, pings))
    assert feed.keys["time_format"] == pattern
    assert (CHECK in city_file(feed, path)) is not is_sure
    assert is_sure or f"{CHECK}; this reads the first ping as of 2022-03-04" in city_file(feed, path)
