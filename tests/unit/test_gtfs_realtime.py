"""GTFS-realtime: what a ping is there, what is refused and why, and polls of one feed as one
recording."""

import json
import random
import tomllib
from pathlib import Path

import pytest

from tests.gtfs import START_S, snapshot, vehicle
from udp_stream.cli import main as cli
from udp_stream.pings.decode import PingDecoder, PingRules
from udp_stream.pings.json import JSON, json_messages
from udp_stream.pings.snapshots import FORGOTTEN_S, GTFS_REALTIME, REMEMBERED, SINGLE, RepeatFilter
from udp_stream.sources.recordings import GtfsFiles, sentences

RULES = PingRules(unit="mps", max_kmh=65, reject_above_kmh=200)


def decoded(*messages, rules=RULES):
    return PingDecoder(rules, GTFS_REALTIME).decode(messages)


def refused(*vehicles, **header):
    return [
        (one.position, one.reason.value, one.path)
        for one in decoded(snapshot(*vehicles, **header))[1]
    ]


def test_a_vehicle_is_a_ping_and_its_speed_is_in_metres_a_second():
    assert decoded(snapshot(vehicle("B2", speed=0.0)))[0].speed.tolist() == [0]
    pings, refusals = decoded(snapshot(vehicle("A1", "7"), vehicle("", "B2", lon=72.25)))
    assert (
        pings.plates == ("A1", "B2")
        and pings.time_ms.tolist() == [START_S * 1000] * 2
        and not refusals
    )
    assert pings.speed.tolist() == [18 * 4096] * 2 and (pings.lon[1], pings.lat[1]) == (
        72.25,
        21.25,
    )
    assert pings.position.tolist() == [0, 1]


FAULTS = tomllib.loads((Path(__file__).parents[1] / "feeds" / "gtfs_faults.toml").read_text())


@pytest.mark.parametrize(("fields", "reason", "path"), FAULTS["faults"], ids=str)
def test_what_is_no_ping_is_refused_by_name_and_costs_its_message_nothing_else(
    fields, reason, path
):
    given = {name: None if value == "unset" else value for name, value in fields.items()}
    faulty = vehicle(**{"plate": "A1", **given})
    assert refused(vehicle("B2"), faulty, vehicle("C3")) == [(1, reason, path)]
    assert decoded(snapshot(vehicle("B2"), faulty, vehicle("C3")))[0].plates == ("B2", "C3")


@pytest.mark.parametrize("word", ["", " ", "N/A", "null", " - "])
def test_a_word_for_a_missing_license_plate_leaves_the_id(word):
    feed = snapshot(vehicle(word, number="7"), vehicle("A1", number="8"))
    batch = GTFS_REALTIME.read([feed], 10**6, 100)
    assert [ping.license_plate for ping in batch.pings] == ["7", "A1"] and not batch.refusals
    assert (
        batch.notes["plate from vehicle.id"],
        batch.notes["plate from vehicle.license_plate"],
    ) == (1, 1)


def test_deleted_entities_and_those_without_a_vehicle_are_no_pings_and_the_note_says_so():
    feed = snapshot(vehicle("A1", deleted=True), vehicle(trip_update=True), vehicle("B2"))
    batch = GTFS_REALTIME.read([feed], 10**6, 100)
    assert [ping.license_plate for ping in batch.pings] == ["B2"] and not batch.refusals
    assert batch.notes["entity without a vehicle"] == 2
    assert "vehicle positions" in list(sentences(RepeatFilter(JSON, 0, 0).counts | batch.notes))[1]


WHOLE = snapshot(vehicle("A1"), vehicle("B2"))


@pytest.mark.parametrize(
    "junk", [b"", b"<html>503</html>", b'{"results": []}', b"Not found", WHOLE[:-1], WHOLE[25:]]
)
def test_bytes_that_are_no_message_are_refused_whole(junk):
    pings, refusals = decoded(WHOLE, junk, WHOLE)
    assert len(pings) == 4
    assert [(one.message, one.position, one.reason.value) for one in refusals] == [
        (1, -1, "not_gtfs_realtime")
    ]


def test_the_limits_of_messages_hold():
    few = PingRules(unit="mps", max_kmh=65, reject_above_kmh=200, max_pings_per_message=1)
    small = PingRules(
        unit="mps", max_kmh=65, reject_above_kmh=200, max_message_bytes=len(WHOLE) - 1
    )
    assert [one.reason.value for one in decoded(WHOLE, rules=few)[1]] == ["too_many_pings"]
    assert [one.reason.value for one in decoded(WHOLE, rules=small)[1]] == ["oversized_message"]


POINT = '"location": {"type": "Point", "coordinates": [72.5, 21.25]}'
PING = f'{{"license_plate": "A%d", "observationDateTime": "2024-01-08T10:00:05+05:30", {POINT}, "speed": %d}}'
FEED = snapshot(
    *(vehicle(f"A{bus}", f"{bus}", speed=bus) for bus in range(4)),
    vehicle("", "", None, speed=None),
)
ENVELOPE = ('{"results": [' + ", ".join(PING % (bus, bus) for bus in range(4)) + "]}").encode()


def mutated(whole, count):
    seeded = random.Random(5)
    for _ in range(count):
        data = bytearray(whole)
        for _ in range(seeded.choice((1, 1, 2, 5))):
            at = seeded.randrange(len(data))
            match seeded.randrange(3):
                case 0:
                    data[at] = seeded.randrange(256)
                case 1:
                    del data[at : at + seeded.choice((1, 3))]
                case _:
                    data[at:at] = data[at : at + 9]
        yield bytes(data)


@pytest.mark.parametrize(
    "count", [1500, pytest.param(100_000, marks=[pytest.mark.soak, pytest.mark.timeout(900)])]
)
@pytest.mark.parametrize(
    ("form", "single", "whole"),
    [(GTFS_REALTIME, SINGLE, FEED), (JSON, JSON, ENVELOPE)],
    ids=["gtfs", "json"],
)
def test_mutated_messages_raise_nothing_and_no_ping_of_theirs_is_lost(form, single, whole, count):
    for data in mutated(whole, count):
        batch = form.read([data], 10**6, 100)
        found = len(batch.pings) + len(batch.refusals)
        at_large = [one for one in batch.refusals if one.position == -1]
        assert not at_large or not batch.pings
        if form is GTFS_REALTIME and not at_large:
            assert found + batch.notes.get("entity without a vehicle", 0) == len(form.split(data))
        once = RepeatFilter(form, 10**6, 100)
        handed_on = once.take(data)
        pings, refusals = PingDecoder(RULES, single).decode(handed_on)
        assert len(pings) + len(refusals) == len(handed_on) == found - once.counts["repeats"]


def test_what_goes_on_as_json_is_refused_for_the_same_reason():
    faults = [
        vehicle("A"), vehicle(), vehicle("B", speed=None), vehicle("C", lat=None), vehicle("D", lon=None, lat=None),
    ]  # fmt: skip
    feed = snapshot(*faults, header_s=None)
    read = PingDecoder(RULES, JSON).decode(RepeatFilter(GTFS_REALTIME, 10**6, 99).take(feed))
    assert read[0].plates == ("A",)
    assert [(one.reason, one.path) for one in read[1]] == [
        (one.reason, one.path) for one in decoded(feed)[1]
    ]


def test_what_several_polls_have_is_handed_on_once_in_its_order():
    once = RepeatFilter(GTFS_REALTIME, 10**6, 100)
    plates = lambda messages: [json.loads(one).get("license_plate") for one in messages]  # noqa: E731
    assert plates(once.take(snapshot(vehicle("A1"), vehicle(speed=None), vehicle("B2")))) == [
        "A1",
        None,
        "B2",
    ]
    later = snapshot(
        vehicle("A1", speed=9.0, lon=72.0), vehicle("B2", time_s=START_S + 1), vehicle(speed=None)
    )
    assert plates(once.take(later)) == ["B2"] and once.counts["repeats"] == 2
    assert once.take(snapshot(vehicle("A1"), vehicle("A1"))) == []


def test_a_snapshot_that_is_older_than_the_last_hands_nothing_on_twice_and_what_is_long_gone_is_forgotten():
    """By a plate's own newer pings, whatever others send; and by the day."""
    once = RepeatFilter(GTFS_REALTIME, 10**6, 100)
    at = lambda second, plate="A1": snapshot(vehicle(plate, time_s=START_S + second))  # noqa: E731
    assert [len(once.take(one)) for one in (at(0), at(9), at(0), at(9))] == [1, 1, 0, 0]
    for later in range(3 * REMEMBERED):
        assert len(once.take(at(later, "B2"))) == 1
    assert once.take(at(0)) == [] == once.take(at(0), FORGOTTEN_S - 1)
    for later in range(10, 10 + 3 * REMEMBERED):
        once.take(at(later))
    assert (
        sum(len(own.pings) for own in once._plates.values()) <= 4 * REMEMBERED
        and len(once.take(at(0))) == 1
    )
    assert len(once.take(at(0), FORGOTTEN_S)) == 1 and list(once._plates) == ["A1"]


def write(path, data):
    path.write_bytes(data)
    return str(path)


@pytest.mark.parametrize("data", [b"<html>", b"", WHOLE[:-3]])
def test_a_file_that_is_no_message_is_refused_whole_named_and_costs_the_others_nothing(
    tmp_path, data
):
    names = [
        write(tmp_path / name, what)
        for name, what in (("a.pb", WHOLE), ("b.pb", data), ("c.pb", WHOLE))
    ]
    said = []
    frames = list(GtfsFiles(names, log_message=said.append).messages())
    pings, refusals = PingDecoder(RULES, SINGLE).decode([one for frame in frames for one in frame])
    assert len(pings) == 2 and [one.reason.value for one in refusals] == ["not_gtfs_realtime"]
    assert said[0] == f"{names[1]}: refused whole as not_gtfs_realtime"


def replayed(tmp_path, capsys, *names):
    out, no = tmp_path / "out", tmp_path / "no"
    words = [
        "replay",
        *names,
        "--set",
        "speed.unit=mps",
        "--set",
        "hat.resolution=5",
        "--out",
        str(out),
    ]
    status = cli.main([*words, "--ledger", str(tmp_path / "ledger"), "--rejected", str(no)])
    records = [json.loads(line) for line in out.read_bytes().splitlines()]
    return (
        status,
        records,
        [json.loads(line) for line in no.read_bytes().splitlines()],
        capsys.readouterr().err,
    )


def test_polls_go_through_replay_to_releases_and_a_parked_bus_is_not_refused_as_late(
    tmp_path, capsys
):
    names = []
    for minute in range(120):
        now = START_S + 60 * minute
        moving = [
            vehicle("", f"bus{bus}", now - bus, 72.5 + bus / 1000, speed=bus / 2)
            for bus in range(12)
        ]
        names.append(
            write(
                tmp_path / f"{minute}.pb",
                snapshot(*moving, vehicle("", "parked", START_S), header_s=now),
            )
        )
    status, records, rejected, said = replayed(tmp_path, capsys, *names)
    assert status == 0 and rejected == []
    assert sum(record["counts"]["samples"] for record in records) == 12 * 120 + 1
    assert "1,441 accepted" in said and "have their plates from vehicle.id" in said


@pytest.mark.parametrize("count", [1, 900])
@pytest.mark.parametrize(
    "shape", ["[%s]", '{"results": [%s]}', '{"entity": [], "of": [%s]}', "%.97s"]
)
def test_json_under_a_name_in_pb_is_refused_whole_and_no_ping_of_it_is_read_in_metres_a_second(
    shape, count, tmp_path
):
    """Of a long array the first eight were read, in another unit, and the others were lost."""
    pings = ", ".join(PING % (bus, bus) for bus in range(count))
    said, name = [], write(tmp_path / "poll.pb", (shape % pings).encode())
    (frame,) = GtfsFiles([name], log_message=said.append).messages()
    assert said[0] == f"{name}: refused whole as not_gtfs_realtime"
    for messages, form, reason in (
        (frame, SINGLE, "not_gtfs_realtime"),
        (json_messages(frame, SINGLE, RULES), JSON, "not_json"),  # as topics and journals have it
    ):
        read, refusals = PingDecoder(RULES, form).decode(messages)
        assert len(read) == 0 and [(one.reason.value, one.position) for one in refusals] == [
            (reason, -1)
        ]
