"""Snapshots of a feed that is in a form of its own: its pings stay as they are, and count once."""

import json

import pytest

from udp_stream.pings.advice import advise
from udp_stream.pings.decode import PingDecoder, PingRules, Reason
from udp_stream.pings.json import JSON, FeedForm, mapped_form
from udp_stream.pings.mapping import FeedMapping
from udp_stream.pings.snapshots import PIECE_BYTES_MAX, Unrepeated

MAPPED = mapped_form(FeedMapping(plate="id", time="t", time_format="epoch_s", longitude="x", latitude="y", speed="v",
                                 records="buses")).format  # fmt: skip


def a_bus(plate, second, speed="20"):
    return f'{{"id": {plate}, "t": {1_704_688_200 + second}, "x": "72,8", "y": 21.1, "v": {speed}, "other": 1}}'


def test_pings_of_a_feeds_own_form_stay_as_they_are_and_count_once():
    once = Unrepeated(MAPPED, max_bytes=10**5, max_pings=100)
    first, second, third = a_bus(7, 0), a_bus('"B 2"', 0), a_bus(7, 30)
    broken = '{"id": 9}'
    body = f'{{"buses": [{first}, {broken}, {second}]}}'.encode()
    assert once.take(body) == [first.encode(), broken.encode(), second.encode()]
    assert once.take(f'{{"buses": [{second}, {third}, {a_bus(7, 0, 55)}, {broken}]}}'.encode()) == [third.encode()]
    assert once.counts == {"read": 5, "refused": 2, "repeats": 3}
    again = MAPPED.read([third.encode()], 10**5, 10)
    assert again.columns.plates == ["7"] and not again.refusals


@pytest.mark.parametrize("count", [400, 4000])
@pytest.mark.parametrize("form", ["features", "deep", "mapped"])
def test_a_large_answer_that_is_refused_whole_is_shortened_and_refused_for_the_same_reason(form, count):
    """And what would help can still be told."""
    point = {"type": "Point", "coordinates": [72.8, 21.1]}
    ping = {"license_plate": "A1", "observationDateTime": "2024-01-08T10:00:00Z", "speed": 20, "note": "x" * 300}
    features = [{"type": "Feature", "geometry": point, "properties": ping | {"n": at}} for at in range(count)]
    answer, reads = {
        "features": ({"type": "FeatureCollection", "features": features}, JSON),
        "deep": ({"a": {"b": [{"c": features}]}}, JSON),
        "mapped": ({"type": "FeatureCollection", "features": features}, MAPPED),
    }[form]
    body = json.dumps(answer).encode()
    (piece,) = Unrepeated(reads, max_bytes=10**7, max_pings=10_000).take(body)
    whole, short = (reads.read([one], 10**7, 10_000).refusals for one in (body, piece))
    assert len(piece) <= PIECE_BYTES_MAX < len(body) and short == whole and whole[0].reason != Reason.NOT_JSON
    plain = FeedForm(FeedMapping(), JSON)
    if form == "features":
        assert "found features.0.geometry.coordinates.0" in advise([(short[0], piece)], plain)[0]


@pytest.mark.parametrize("where", ["speed", "longitude", "latitude", "both"])
def test_numbers_that_are_too_large_for_json_are_refused_for_their_values_as_a_message_too(where):
    """The encoder would write them as null, and the reader call that a wrong type."""
    lon, lat = ("1e999" if where in (name, "both") else "21.5" for name in ("longitude", "latitude"))
    speed = "1e999" if where == "speed" else "5"
    text = (
        '[{"license_plate":"null \\"speed\\":null","observationDateTime":"2024-01-08T09:00:00+05:30",'
        f'"speed":{speed},"location":{{"coordinates":[{lon},{lat}]}}}}]'
    ).encode()
    decoder = PingDecoder(PingRules(max_kmh=65, reject_above_kmh=200), JSON)
    (directly,), (alone,) = decoder.decode([text])[1], decoder.decode(Unrepeated(JSON, 10**6, 10).take(text))[1]
    assert (alone.reason, alone.path) == (directly.reason, directly.path)
    assert alone.reason in ("speed_not_finite", "coordinates_out_of_range")


@pytest.mark.parametrize("piece", ['"junk"', '"x1e999"', "7", "null", '{"a":1}', '"[1]"'])
def test_a_piece_of_an_array_is_refused_for_the_same_reason_as_a_message(piece):
    decoder = PingDecoder(PingRules(max_kmh=65, reject_above_kmh=200), JSON)
    text = f"[{piece}]".encode()
    (directly,), (alone,) = decoder.decode([text])[1], decoder.decode(Unrepeated(JSON, 10**6, 10).take(text))[1]
    assert alone.reason == directly.reason
