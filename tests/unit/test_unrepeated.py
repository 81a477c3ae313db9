"""Snapshots of a feed that is in a form of its own: its pings stay as they are, and count once."""

import json
import random

import pytest

from tests.forms import long_but, soaked
from tests.gtfs import START_S, snapshot, vehicle
from udp_stream.pings.advice import advise
from udp_stream.pings.decode import PingDecoder, PingRules, Reason
from udp_stream.pings.json import JSON, FeedForm, mapped_form
from udp_stream.pings.mapping import FeedMapping
from udp_stream.pings.snapshots import FORGOTTEN_S, GTFS_REALTIME, PIECE_BYTES_MAX, RepeatFilter

MAPPED = mapped_form(FeedMapping(plate="id", time="t", time_format="epoch_s", longitude="x", latitude="y", speed="v",
                                 records="buses")).format  # fmt: skip


def a_bus(plate, second, speed="20"):
    return f'{{"id": {plate}, "t": {1_704_688_200 + second}, "x": "72,8", "y": 21.1, "v": {speed}, "other": 1}}'


def test_pings_of_a_feeds_own_form_stay_as_they_are_and_count_once():
    once = RepeatFilter(MAPPED, max_bytes=10**5, max_pings=100)
    first, second, third = a_bus(7, 0), a_bus('"B 2"', 0), a_bus(7, 30)
    broken = '{"id": 9}'
    body = f'{{"buses": [{first}, {broken}, {second}]}}'.encode()
    assert once.take(body) == [first.encode(), broken.encode(), second.encode()]
    assert once.take(f'{{"buses": [{second}, {third}, {a_bus(7, 0, 55)}, {broken}]}}'.encode()) == [
        third.encode()
    ]
    assert once.counts == {"read": 5, "refused": 2, "repeats": 3}
    again = MAPPED.read([third.encode()], 10**5, 10)
    assert again.columns.plates == ["7"] and not again.refusals


@pytest.mark.parametrize("count", [400, 4000])
@pytest.mark.parametrize("form", ["features", "deep", "mapped"])
def test_a_large_answer_that_is_refused_whole_is_shortened_and_refused_for_the_same_reason(
    form, count
):
    """And what would help can still be told."""
    point = {"type": "Point", "coordinates": [72.8, 21.1]}
    ping = {
        "license_plate": "A1",
        "observationDateTime": "2024-01-08T10:00:00Z",
        "speed": 20,
        "note": "x" * 300,
    }
    features = [
        {"type": "Feature", "geometry": point, "properties": ping | {"n": at}}
        for at in range(count)
    ]
    answer, reads = {
        "features": ({"type": "FeatureCollection", "features": features}, JSON),
        "deep": ({"a": {"b": [{"c": features}]}}, JSON),
        "mapped": ({"type": "FeatureCollection", "features": features}, MAPPED),
    }[form]
    body = json.dumps(answer).encode()
    (piece,) = RepeatFilter(reads, max_bytes=10**7, max_pings=10_000).take(body)
    whole, short = (reads.read([one], 10**7, 10_000).refusals for one in (body, piece))
    assert (
        len(piece) <= PIECE_BYTES_MAX < len(body)
        and short == whole
        and whole[0].reason != Reason.NOT_JSON
    )
    plain = FeedForm(FeedMapping(), JSON)
    if form == "features":
        assert "found features.0.geometry.coordinates.0" in advise([(short[0], piece)], plain)[0]


@pytest.mark.parametrize("piece", ['"junk"', '"x1e999"', "7", "null", '{"a":1}', '"[1]"'])
def test_a_piece_of_an_array_is_refused_for_the_same_reason_as_a_message(piece):
    decoder = PingDecoder(PingRules(max_kmh=65, reject_above_kmh=200), JSON)
    text = f"[{piece}]".encode()
    (directly,), (alone,) = (
        decoder.decode([text])[1],
        decoder.decode(RepeatFilter(JSON, 10**6, 10).take(text))[1],
    )
    assert alone.reason == directly.reason


def rows_of_json(rows):
    where = lambda lon: {"coordinates": [lon, 21.2]}  # noqa: E731
    time = lambda second: f"2024-01-08T10:{second // 60:02}:{second % 60:02}Z"  # noqa: E731
    return json.dumps(
        [{"license_plate": row[0], "observationDateTime": time(row[1]), "speed": 5, "location": where(row[2])}
         for row in rows]
    ).encode()  # fmt: skip


def rows_of_a_feed(rows):
    return f'{{"buses": [{", ".join(a_bus(json.dumps(plate), second) for plate, second, _ in rows)}]}}'.encode()


def rows_of_gtfs(rows):
    """Those of one plate without times of their own."""
    return snapshot(
        *(
            vehicle(plate, "", None if plate == "b" else START_S + at, lon)
            for plate, at, lon in rows
        )
    )


@pytest.mark.parametrize("step_s", [0, 700])
@pytest.mark.parametrize(("reads", "written"), [(JSON, rows_of_json), (MAPPED, rows_of_a_feed),
                                                (GTFS_REALTIME, rows_of_gtfs)])  # fmt: skip
@pytest.mark.parametrize("seed", [*long_but([0, 1], range(6)), *soaked(range(6, 20))])
def test_what_is_new_of_a_plate_follows_from_its_own_pings_and_the_wall(
    reads, written, seed, step_s
):
    """Another plate may be in each snapshot, or change it: one that stays as it is, is not taken."""
    dice, of_another = random.Random(f"{seed}"), random.Random(f"{seed} another")
    alone, beside = RepeatFilter(reads, 10**6, 1000), RepeatFilter(reads, 10**6, 1000)
    shown, found, crowded = [], [], []
    for at in range(300):
        last, now_s = shown, float(step_s * at)
        if dice.random() < 0.4:
            newest = max(0, at - dice.choice([0, 0, 0, 3, 80]))
            shown = [("a", max(0, newest - back), 72.5) for back in range(dice.randrange(4))]
            shown += [("b", max(0, newest - dice.randrange(3)), dice.choice([72.5, 72.6, 72.7]))]
        if at == 0 or shown != last or now_s // FORGOTTEN_S != (now_s - step_s) // FORGOTTEN_S:
            found.append(alone.take(written(shown), now_s))
            crowded.append([])
        crowd = [("c", of_another.randrange(at + 1), 72.5)] * of_another.choice([0, 1, 9])
        messages = beside.take(written([*crowd, *shown]), now_s)
        crowded[-1] += [one for one in messages if b'"c"' not in one]
    assert crowded == found
    assert 0 < alone.counts["repeats"] < alone.counts["read"] - 50
