"""Names of columns and keys: what `init` finds by them is what the reader reads, and what no path reaches is said."""

from datetime import datetime

import pytest

from tests.unit.test_found_feed import ping, written
from udp_stream.cli.found_feed import find_feed
from udp_stream.errors import UsageError
from udp_stream.pings.advice import Refused, advise
from udp_stream.pings.decode import Reason, Refusal
from udp_stream.pings.json import PLAIN

PINGS = [ping(at) for at in range(300)]


def table(folder, header, cells=lambda one: one.values()):
    rows = [",".join(map(str, cells(one))) for one in PINGS]
    (folder / "feed.csv").write_text("\n".join([header, *rows]) + "\n")
    return str(folder / "feed.csv")


@pytest.mark.parametrize(
    "header", ["$.bus,$.timestamp,$.lon,$.lat,$.speed", "bus,timestamp,pos[0].lon,pos[0].lat,speed"]
)
def test_columns_named_by_paths_in_any_spelling_are_read(header, tmp_path):
    feed = find_feed([table(tmp_path, header)])
    assert (feed.pings, feed.plates) == (300, 9)


def test_of_columns_of_one_name_the_first_is_looked_at_as_it_is_the_one_that_is_read(tmp_path):
    path = table(tmp_path, "bus,timestamp,lon,lat,speed,bus", lambda one: [*one.values(), "the feed's"])
    assert find_feed([path]).plates == 9
    path = table(tmp_path, "bus,timestamp,lon,lat,speed,speed", lambda one: [*list(one.values())[:4], "", 7])
    with pytest.raises(UsageError, match="found no field for speed among bus, lat"):
        find_feed([path])


@pytest.mark.parametrize(("key", "field"), [("vehicle.id", "plate"), ("pos.lat", "latitude"), ("gps.time", "time")])
def test_a_key_with_a_dot_is_named_as_one_that_no_path_reaches(key, field, tmp_path):
    old = {"plate": "bus", "latitude": "lat", "time": "timestamp"}[field]
    pings = [{key if name == old else name: value for name, value in one.items()} for one in PINGS]
    with pytest.raises(UsageError) as error:
        find_feed([written(tmp_path, pings)])
    renamed = f"rename it, to {key.replace('.', '_')} perhaps"
    assert f"found no field for {field}" in str(error.value)
    assert f"{key}: a key with a dot in it, which no path reaches: {renamed}" in str(error.value)


def test_a_path_within_an_object_is_taken_and_not_the_key_that_is_spelt_like_it(tmp_path):
    pings = [{"vehicle.id": "x", "vehicle": {"id": one["bus"]}, **one, "bus": None} for one in PINGS]
    assert find_feed([written(tmp_path, pings)]).keys["plate"] == "vehicle.id"


@pytest.mark.parametrize("key", ['vehicle "id"', "vehicle\\id", "vehicle\tid", "vehicle\x7fid"])
def test_a_key_with_a_sign_that_no_path_may_have_is_no_fault_of_ours(key, tmp_path):
    pings = [{key if name == "bus" else name: value for name, value in one.items()} for one in PINGS]
    with pytest.raises(UsageError, match="found no field for plate"):
        find_feed([written(tmp_path, pings)])


def test_keys_of_digits_are_said_to_be_places_in_arrays(tmp_path):
    pings = [{str(at): value for at, value in enumerate(one.values())} for one in PINGS]
    with pytest.raises(UsageError, match="keys of digits alone, which paths take for places in an array: rename them"):
        find_feed([written(tmp_path, pings)])


def test_no_key_that_cannot_be_reached_is_advised():
    one = Refused(Refusal(0, -1, Reason.MISSING_FIELD, "$.license_plate"), b'{"vehicle.id": "A1", "speed": 1}')
    assert advise([one], PLAIN) == ["no license_plate; found speed, vehicle.id"]


@pytest.mark.parametrize("pattern", ["%H:%M:%S %d-%m-%Y", "%H:%M:%S.%f %d-%m-%Y", "%I:%M:%S %p, %d-%m-%Y"])
def test_a_year_at_the_end_of_a_time_is_no_offset(pattern, tmp_path):
    """`-2024` looks like one."""
    pings = [one | {"timestamp": f"{datetime.fromisoformat(one['timestamp']):{pattern}}"} for one in PINGS]
    feed = find_feed([written(tmp_path, pings)])
    assert feed.keys["time_format"] == pattern and feed.keys["time_zone"] == "Asia/Kolkata" and feed.offsets == ()
    assert feed.first_ms == 1_641_011_400_000


@pytest.mark.parametrize(("lon", "pattern"), [(-97.74, "%H:%M:%S %m/%d/%Y"), (72.8, "%H:%M:%S %d/%m/%Y")])
def test_day_and_month_behind_the_time_of_day_go_by_the_place_too(lon, pattern, tmp_path):
    time = f"{datetime(2022, 4, 3, 10):{pattern}}"
    pings = [one | {"lon": lon + at / 10_000, "lat": 30.27, "timestamp": time} for at, one in enumerate(PINGS)]
    feed = find_feed([written(tmp_path, pings)])
    assert feed.keys["time_format"] == pattern and feed.day_or_month
