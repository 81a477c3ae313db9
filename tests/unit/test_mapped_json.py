"""Messages in a feed's own form: the same columns as the contract's form, lenient fields, refusals
by their paths."""

import json
from datetime import datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from udp_stream.pings.decode import PingDecoder, PingRules, originals
from udp_stream.pings.json import mapped_form, single_ping
from udp_stream.pings.mapping import FIELDS, FeedMapping
from udp_stream.pings.times import NO_TIME, READ, read_times

RULES = PingRules(max_kmh=65, reject_above_kmh=200, max_pings_per_message=4, max_message_bytes=4000)
NESTED = FeedMapping(
    plate="vehicle.vehicle.id", time="vehicle.timestamp", longitude="vehicle.position.longitude", records="entity",
    latitude="vehicle.position.latitude", speed="vehicle.position.speed", time_format="epoch_s",
)  # fmt: skip
IST = ZoneInfo("Asia/Kolkata")
SECONDS = 1641012035


def nested(plate="A1", time=SECONDS, lon=72.5, lat=21.25, speed=12.5):
    position = {"longitude": lon, "latitude": lat, "speed": speed}
    return {
        "id": "7",
        "vehicle": {"vehicle": {"id": plate}, "timestamp": time, "position": position},
    }


def decode(mapping, *messages):
    raw = [
        message if isinstance(message, bytes) else json.dumps(message).encode()
        for message in messages
    ]
    return PingDecoder(RULES, mapped_form(mapping).format).decode(raw)


def rows(pings):
    return [
        (pings.plates[plate], *others)
        for plate, *others in zip(*(getattr(pings, name).tolist() for name in
                                    ("plate", "time_ms", "lon", "lat", "speed", "message", "position")), strict=True)
    ]  # fmt: skip


ONE = ("A1", SECONDS * 1000, 72.5, 21.25, 51200)


@pytest.mark.parametrize("envelope", ["results", "features"])
def test_without_a_path_results_and_features_are_found_but_not_in_a_ping(envelope):
    mapping = FeedMapping(plate="bus", longitude="x", latitude="y", time="t")
    ping = {"bus": "A1", "t": "2022-01-01T10:10:35+05:30", "x": 72.5, "y": 21.25, "speed": 12.5}
    pings, refusals = decode(mapping, {envelope: [ping, {}]}, ping | {envelope: [7]})
    assert rows(pings) == [(*ONE, 0, 0), (*ONE, 1, -1)]
    assert [(one.position, one.reason, one.path) for one in refusals] == [
        (1, "missing_field", "$.bus")
    ]


TIMES = [
    ("epoch_s", SECONDS, None), ("epoch_ms", SECONDS * 1000, None), ("epoch_us", str(SECONDS * 10**6), None),
    ("iso", "2022-01-01T10:10:35+05:30", None), ("iso", "2022-01-01T10:10:35", IST),
    ("iso", "2022-01-01 10:10:35.000", IST), ("iso", "2022-01-01T04:40:35Z", IST),
    ("%d/%m/%Y %H:%M:%S", "01/01/2022 10:10:35", IST), ("%d/%m/%Y %H:%M:%S", "1/1/2022 10:10:35", IST),
    ("%Y%m%d%H%M%S", "20220101101035", IST), ("%d %b %Y %I:%M:%S %p", "01 Jan 2022 10:10:35 AM", IST),
    ("%Y-%m-%d %H:%M:%S%z", "2022-01-01 04:40:35+0000", None), ("%d.%m.%y %H:%M:%S", "01.01.22 10:10:35", IST),
]  # fmt: skip


@pytest.mark.parametrize(("form", "value", "zone"), TIMES, ids=str)
@pytest.mark.parametrize("count", [1, 300])
def test_every_format_of_times_gives_the_same_moment(form, value, zone, count):
    times, status = read_times([value] * count, form, zone)
    assert set(times.tolist()) == {SECONDS * 1000} and set(status.tolist()) == {READ}


def test_local_times_follow_the_zone_through_its_changes():
    """Python's own arithmetic is the oracle; of an hour that comes twice the first is meant."""
    zone = ZoneInfo("America/Chicago")
    texts = [f"2024-{day}T{hour:02}:{minute:02}:10" for day in ("03-10", "07-01", "11-03") for hour in range(24)
             for minute in (0, 59)]  # fmt: skip
    expected = [
        int(datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()) * 1000 for text in texts
    ]
    assert read_times(texts, "iso", zone)[0].tolist() == expected
    mixed = [texts[0], "2024-03-10T06:00:10Z", "no time"]
    assert read_times(mixed, "iso", zone)[1].tolist() == [READ, READ, NO_TIME]
    assert read_times(mixed[:2][::-1], "iso", zone)[0].tolist() == [expected[0]] * 2


def test_what_a_sender_asks_of_a_message_never_depends_on_the_speeds_value():
    known = [
        single_ping(json.dumps(nested(speed=speed)).encode(), NESTED)
        for speed in (1, "x", None, 10**30)
    ]
    assert {one.plate for one in known} == {"A1"} and [one.speed_bytes for one in known] == [
        1,
        3,
        4,
        31,
    ]
    absent = nested()
    del absent["vehicle"]["position"]["speed"], absent["vehicle"]["timestamp"]
    assert single_ping(json.dumps(absent).encode(), NESTED) == ("A1", "", 0)
    assert (
        single_ping(b"junk", NESTED) is None
        and single_ping(json.dumps(nested(plate=" ")).encode(), NESTED) is None
    )


VALUES = ["A1", 7, 7.5, "7", "7,5", " 7 ", "", None, True, [], {}, [1], "x", 10**30, -1, 300, 1e300, SECONDS,
          str(SECONDS), "2022-01-01T10:10:35Z", "\u0661", "1\n2", "1,2,3", "٣"]  # fmt: skip


def oracle(record):
    """The mapping as a few lines of plain Python: the ping's values, or None."""
    try:
        plate, time, lon, lat, speed = (record[field] for field in FIELDS)
    except (KeyError, TypeError):
        return None

    def number(value):
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return None
        if isinstance(value, str):
            text = value.strip(" \t\n\r").replace(",", ".", 1)
            head = text.lstrip("+-").replace(".", "", 1)
            return float(text) if head.isascii() and head.isdigit() else None
        return float(value)

    if isinstance(plate, bool) or not isinstance(plate, str | int):
        return None
    values = [number(one) for one in (time, lon, lat, speed)]
    if None in values:
        return None
    time, lon, lat, speed = values
    good = 1 <= len(str(plate).strip()) <= 64 and 946_684_800 <= time < 4_102_444_800
    good = (
        good and abs(lon) <= 180 and abs(lat) <= 90 and (lon, lat) != (0, 0) and 0 <= speed <= 200
    )
    return (
        (str(plate).strip(), int(time * 1000), lon, lat, round(min(speed, 65) * 4096))
        if good
        else None
    )


def mutated(rng):
    base = {"plate": "A1", "time": SECONDS, "longitude": 72.5, "latitude": 21.25, "speed": 12.5}
    for _ in range(int(rng.integers(0, 3))):
        field = str(rng.choice(FIELDS))
        if rng.random() < 0.2:
            base.pop(field, None)
        else:
            base[field] = VALUES[rng.integers(len(VALUES))]
    return base


@pytest.mark.parametrize("count", [2000, pytest.param(100_000, marks=pytest.mark.soak)])
def test_mutated_messages_give_what_a_plain_reading_gives_and_nothing_is_lost(count):
    rng = np.random.default_rng(5)
    mapping = FeedMapping(
        plate="plate",
        time="time",
        longitude="longitude",
        latitude="latitude",
        time_format="epoch_s",
    )
    decoder = PingDecoder(RULES, mapped_form(mapping).format)
    for first in range(0, count, 1000):
        records = [[mutated(rng) for _ in range(rng.integers(1, 4))] for _ in range(1000)]
        messages = [
            json.dumps(some if rng.random() < 0.5 or len(some) > 1 else some[0]).encode()
            for some in records
        ]
        cut = {
            at: int(rng.integers(0, len(messages[at])))
            for at in rng.choice(1000, 100, replace=False).tolist()
        }
        messages = [one[: cut[at]] if at in cut else one for at, one in enumerate(messages)]
        pings, refusals = decoder.decode(messages)
        expected = {}
        for at, some in enumerate(records):
            if at not in cut:
                single = messages[at].startswith(b"{")
                expected |= {
                    (at, -1 if single else place): oracle(one) for place, one in enumerate(some)
                }
        found = {tuple(row[5:]): tuple(row[:5]) for row in rows(pings)}
        assert found == {place: row for place, row in expected.items() if row is not None}, first
        refused = {(one.message, one.position) for one in refusals}
        assert refused >= {place for place, row in expected.items() if row is None}
        assert len(refused) == len(refusals) and not refused & found.keys()
        assert {place[0] for place in refused | found.keys()} == set(range(1000)) - {
            at for at in cut if messages[at] == b"[]"}  # fmt: skip
        assert len(list(originals(messages, refusals, decoder.format))) == len(refusals)
