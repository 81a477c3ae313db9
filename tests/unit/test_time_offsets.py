"""The offsets that times say, out of each form in which pings come."""

import json
from zoneinfo import ZoneInfo

import pytest

from tests.gtfs import snapshot, vehicle
from udp_stream.pings.decode import PingDecoder, PingRules
from udp_stream.pings.gtfs_realtime import GTFS_REALTIME
from udp_stream.pings.json import JSON, PLAIN, FeedMapping, mapped_form
from udp_stream.pings.time_offsets import LOOKED_AT, said_offsets

AT_MS = 1706159153000
TIME = "2024-01-25T10:35:53+05:30"


def offsets(messages, form, ping_format=None):
    ping_format = ping_format or form.format
    pings, refusals = PingDecoder(PingRules(max_kmh=65, reject_above_kmh=200), ping_format).decode(messages)
    assert len(pings) or refusals
    return said_offsets(messages, pings, form.mapping, ping_format)


def ping(time=TIME):
    return {"license_plate": "A1", "observationDateTime": time, "speed": 12.5,
            "location": {"type": "Point", "coordinates": [72.8, 21.1]}}  # fmt: skip


def dumps(value):
    return json.dumps(value).encode()


PLAIN_FORMS = {
    "a ping": [dumps(ping())] * 3,
    "an array": [dumps([ping()] * 3)],
    "a string": [dumps(json.dumps(ping()))] * 3,
    "an array in a string": [dumps(json.dumps([ping()] * 3))],
    "an array and a ping": [dumps([ping(), ping()]), b"\xef\xbb\xbf " + dumps(ping())],
    "refused ones between": [b"junk", dumps([{}, ping(), 7, ping()]), b"[]", dumps(ping())],
}


@pytest.mark.parametrize("messages", PLAIN_FORMS.values(), ids=PLAIN_FORMS)
@pytest.mark.parametrize("form", [PLAIN, mapped_form(FeedMapping())], ids=["contract", "mapped"])
def test_every_spelling_of_messages_says_its_offsets(messages, form):
    assert offsets(messages, form) == [(330, AT_MS)] * 3


def test_a_path_of_its_own_and_records():
    form = mapped_form(FeedMapping(plate="id", time="at.time", longitude="x", latitude="y", speed="v", records="buses"))
    bus = {"id": 7, "at": {"time": TIME, "made": "2024-01-25T10:35:53-03:00"}, "x": 72.8, "y": 21.1, "v": 12.5}
    assert offsets([dumps({"buses": [bus, bus]}), dumps(bus)], form) == [(330, AT_MS)] * 3


@pytest.mark.parametrize(
    ("time_format", "time", "minutes"),
    [
        ("%d/%m/%Y %H:%M:%S%z", "25/01/2024 10:35:53+0530", [330]),
        ("iso", "2024-01-25T05:05:53Z", [0]),
        ("epoch_s", AT_MS // 1000, []),
        ("%Y-%m-%dT%H:%M:%S+05:30", TIME, []),  # read as text, and so not
    ],
)
def test_only_an_offset_that_is_read_is_said(time_format, time, minutes):
    form = mapped_form(FeedMapping(time_format=time_format, zone=ZoneInfo("Asia/Kolkata")))
    assert [one.minutes for one in offsets([dumps(ping(time))], form)] == minutes


def test_gtfs_realtime_counts_from_1970_and_says_none():
    assert offsets([snapshot(vehicle("A1"))], PLAIN, GTFS_REALTIME) == []


def test_of_a_long_batch_times_from_all_over_it_are_looked_at():
    later = "2024-01-25T10:35:53+01:00"
    found = offsets([dumps(ping())] * 3000 + [dumps([ping(later)] * 1000)], PLAIN)
    assert len(found) == LOOKED_AT and 40 <= sum(one.minutes == 60 for one in found) <= 60
    assert said_offsets([], PingDecoder(PingRules(max_kmh=65, reject_above_kmh=200), JSON).decode([])[0],
                        PLAIN.mapping, PLAIN.format) == []  # fmt: skip
