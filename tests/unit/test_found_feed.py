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
