"""Refusals in words: the field, the form found, the form wanted; and nothing that is protected."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from udp_stream.pings.advice import advise
from udp_stream.pings.decode import PingDecoder, PingRules, originals
from udp_stream.pings.found import is_shown
from udp_stream.pings.json import PLAIN, exchanged, mapped_form
from udp_stream.pings.mapping import FeedMapping
from udp_stream.pings.snapshots import SINGLE, gtfs_formats

GOOD = {"license_plate": "GJ05BX1916", "observationDateTime": "2024-01-25T10:35:53+05:30", "speed": 23.5,
        "location": {"type": "Point", "coordinates": [72.83, 21.19]}}  # fmt: skip
RULES = PingRules(max_kmh=65, reject_above_kmh=200, box=(72.5, 21.0, 73.0, 21.5))


def said_of(*messages, form=PLAIN, rules=RULES):
    _, refusals = PingDecoder(rules, form.format).decode(messages)
    pieces = originals(messages, refusals, form.format)
    return advise(list(zip(refusals, pieces, strict=True)), form, rules.box)


SAID = tomllib.loads((Path(__file__).parents[1] / "feeds" / "advice.toml").read_text())["said"]


@pytest.mark.parametrize(("change", "field", "found", "wanted"), SAID, ids=str)
def test_each_kind_names_the_field_what_was_found_and_what_is_wanted(change, field, found, wanted):
    (said,) = said_of(json.dumps(GOOD | json.loads(change)).encode())
    assert f" at {field}" in said and found in said and wanted in said
    assert "GJ05" not in said and "23.5" not in said and "10:35" not in said and "fast" not in said


def test_of_a_missing_field_the_names_that_are_there_are_shown_but_none_that_may_be_a_plate():
    feed = {"bus": 1, "GJ05BX1916": {"t": 1}, "AB12": 2, "pos": {"lon": 72.8}}
    (said,) = said_of(json.dumps(feed).encode())
    assert "missing_field at $.license_plate: found bus, pos.lon, wanted license_plate" in said
    assert not is_shown(("AB12",)) and not is_shown(("GJ05BX1916", "t")) and is_shown(("speed2",))


SWAPPED = GOOD | {"location": {"type": "Point", "coordinates": [21.19, 72.83]}}
FLAT = FeedMapping(
    plate="bus", time="t", longitude="x", latitude="y", speed="v", time_format="epoch_s"
)
AUSTIN = replace(RULES, box=(-98.0, 30.0, -97.0, 31.0))


@pytest.mark.parametrize(
    ("form", "ping", "rules", "repair"),
    [
        (PLAIN, SWAPPED, RULES, FeedMapping(longitude="location.coordinates.1", latitude="location.coordinates.0")),
        (mapped_form(FLAT), {"bus": 7, "t": 1706159153, "x": "21,19", "y": "72,83", "v": 5}, RULES,
         replace(FLAT, longitude="y", latitude="x")),
        (mapped_form(FLAT), {"bus": 7, "t": 1706159153, "x": 30.2, "y": -97.7, "v": 5}, AUSTIN,
         replace(FLAT, longitude="y", latitude="x")),
        (mapped_form(FLAT), {"bus": 7, "t": 1706159153, "x": 30.2, "y": -97.7, "v": 5}, replace(RULES, box=None),
         replace(FLAT, longitude="y", latitude="x")),
    ],
)  # fmt: skip
def test_coordinates_that_are_swapped_are_named_with_the_keys_that_read_them(
    form, ping, rules, repair
):
    (said,) = said_of(json.dumps(ping).encode(), form=form, rules=rules)
    for key in ("longitude", "latitude"):
        assert f'source.{key} = "{getattr(repair, key)}"' in said
    assert "21" not in said and "97" not in said.replace(str(rules.box and list(rules.box)), "")
    pings, refused = PingDecoder(rules, mapped_form(repair).format).decode(
        [json.dumps(ping).encode()]
    )
    assert len(pings) == 1 and not refused


def test_swapped_coordinates_of_gtfs_realtime_have_a_key_that_reads_them():
    form = replace(PLAIN, format=SINGLE)
    (said,) = said_of(json.dumps(SWAPPED).encode(), form=form)
    assert "longitude and latitude" in said and "source.exchanged = true reads the feed" in said
    read = gtfs_formats(exchanged(PLAIN))[1]
    pings, refused = PingDecoder(RULES, read).decode([json.dumps(SWAPPED).encode()])
    assert len(pings) == 1 and not refused
    (said,) = said_of(json.dumps(GOOD).encode(), form=replace(exchanged(PLAIN), format=read))
    assert "source.exchanged = false" in said or "pings.box" in said


@pytest.mark.parametrize("place", [(72.0, 21.19), (21.19, 71.0)])
def test_a_place_outside_of_the_box_either_way_is_not_called_swapped(place):
    far = GOOD | {"location": {"type": "Point", "coordinates": place}}
    (said,) = said_of(json.dumps(far).encode())
    assert "pings.box" in said and "longitude and latitude" not in said
