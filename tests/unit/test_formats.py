"""A format is bytes to pings: a toy one keeps every rule for values, and comes into topics as JSON."""

import math

import msgspec
import pytest

from tests.toys import TOY, toy
from udp_stream.pings.decode import PingDecoder, PingRules, originals
from udp_stream.pings.json import JSON, json_messages

RULES = PingRules(max_kmh=65, reject_above_kmh=200)
TIME = "2022-01-01T10:10:35+05:30"


def test_a_format_of_its_own_gives_the_columns_and_refusals_that_json_gives():
    lines = [toy("A1", TIME, 72.5, 21.25, 12.5), toy("B2", TIME, 72.5, 21.25, -1), b"junk", toy("", TIME, 0, 0, 5)]
    of_json = json_messages(lines, TOY, RULES)
    for messages in (lines, [b"|".join(lines)]):
        pings, refusals = PingDecoder(RULES, TOY).decode(messages)
        expected, same = PingDecoder(RULES, JSON).decode(of_json)
        assert pings.plates == expected.plates == ("A1",)
        for column in ("time_ms", "lat", "lon", "speed"):
            assert getattr(pings, column).tolist() == getattr(expected, column).tolist()
        assert [one.reason for one in refusals] == ["speed_negative", "not_json", "empty_plate"]
        assert [(one.reason, one.path) for one in refusals] == [(one.reason, one.path) for one in same]
        assert list(originals(messages, refusals, TOY)) == lines[1:]


@pytest.mark.parametrize("nothing", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_cannot_say_are_refused_by_name(nothing):
    """A format of floats has nan: none may get a speed, or a place, past the bounds."""
    lines = [toy("A1", TIME, 72.5, 21.25, nothing), toy("A1", TIME, nothing, 21, 5), toy("A1", TIME, 72, nothing, 5)]
    pings, refusals = PingDecoder(RULES, TOY).decode(lines)
    assert len(pings) == 0
    assert [(one.reason, one.path) for one in refusals] == [
        ("speed_not_finite", "$.speed"),
        ("coordinates_out_of_range", "$.location.coordinates[0]"),
        ("coordinates_out_of_range", "$.location.coordinates[1]"),
    ]


def test_messages_for_topics_are_json_one_ping_each_in_order_and_nothing_is_lost():
    first, second = toy("A1", TIME, 72.5, 21.25, 12.5), toy("B2", TIME, 72.5, 21.25, 300)
    made = json_messages([first + b"|junk|" + second, second], TOY, RULES)
    assert made[1] == b"junk"
    read = [msgspec.json.decode(one) for one in (made[0], made[2], made[3])]
    assert [one["license_plate"] for one in read] == ["A1", "B2", "B2"]
    assert read[0]["location"] == {"coordinates": [72.5, 21.25], "type": "Point"} and read[0]["speed"] == 12.5
    assert PingDecoder(RULES, JSON).decode(made)[0].message.tolist() == [0]
