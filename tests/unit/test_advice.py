"""Refusals in words: the field, the form found, the form wanted; and nothing that is protected."""

import json

import pytest

from udp_stream.pings.decode import PingDecoder, PingRules, originals
from udp_stream.pings.found import Refused, advise, is_shown
from udp_stream.pings.json import PLAIN

GOOD = {"license_plate": "GJ05BX1916", "observationDateTime": "2024-01-25T10:35:53+05:30", "speed": 23.5,
        "location": {"type": "Point", "coordinates": [72.83, 21.19]}}  # fmt: skip
RULES = PingRules(max_kmh=65, reject_above_kmh=200, box=(72.5, 21.0, 73.0, 21.5))


def said_of(*messages, form=PLAIN):
    _, refusals = PingDecoder(RULES, form.format).decode(messages)
    pieces = originals(messages, refusals, form.format)
    return advise([Refused(refusal, piece) for refusal, piece in zip(refusals, pieces, strict=True)], form)


@pytest.mark.parametrize(
    ("change", "field", "found", "wanted"),
    [
        ({"observationDateTime": 1706159153}, "$.observationDateTime", "epoch_s", '"iso"'),
        ({"observationDateTime": "25/01/2024 10:35"}, "$.observationDateTime", "%d/%m/%Y %H:%M", '"iso"'),
        ({"observationDateTime": "2024-01-25T10:35:53"}, "$.observationDateTime", "iso without an offset", "time_zone"),
        ({"license_plate": 7}, "$.license_plate", "a whole number", "text"),
        ({"speed": "fast"}, "$.speed", "text", "a number"),
        ({"speed": 900}, "$.speed", None, "speed.unit"),
        ({"location": {"type": "Point", "coordinates": [21.19, 72.83]}}, "$.location.coordinates", None, "pings.box"),
        ({"speed": None}, "$.speed", "nothing (null)", "a number"),
    ],
)
def test_each_kind_names_the_field_what_was_found_and_what_is_wanted(change, field, found, wanted):
    (said,) = said_of(json.dumps(GOOD | change).encode())
    assert f" at {field}" in said and (found is None or f"found {found}" in said) and wanted in said
    assert "GJ05" not in said and "23.5" not in said and "10:35" not in said and "fast" not in said


def test_of_a_missing_field_the_names_that_are_there_are_shown_but_none_that_may_be_a_plate():
    feed = {"bus": 1, "GJ05BX1916": {"t": 1}, "AB12": 2, "pos": {"lon": 72.8}}
    (said,) = said_of(json.dumps(feed).encode())
    assert "missing_field at $.license_plate: found bus, pos.lon, wanted license_plate" in said
    assert not is_shown(("AB12",)) and not is_shown(("GJ05BX1916", "t")) and is_shown(("speed2",))
