"""Vehicles read as columns are those that protobuf reads one by one, whatever the bytes."""

import random

import numpy as np
import pytest
from google.transit.gtfs_realtime_pb2 import FeedMessage

from tests.gtfs import START_S, snapshot, vehicle
from udp_stream.pings import gtfs_columns
from udp_stream.pings.gtfs_realtime import GTFS_REALTIME
from udp_stream.pings.protobuf_columns import TEXT, VARINT, columns, padded, tag
from udp_stream.pings.unrepeated import Unrepeated


def outcome(message):
    """All that is known of a message's pings."""
    batch = GTFS_REALTIME.read([message], 10**7, 10**4)
    pings = [(ping.license_plate, ping.observationDateTime, ping.location, ping.speed) for ping in batch.pings]
    return repr(pings), batch.message.tolist(), batch.position.tolist(), batch.refusals, dict(batch.notes)


def one_by_one(message, monkeypatch):
    with monkeypatch.context() as here:
        here.setattr(gtfs_columns, "_FEWEST", 10**9)
        return outcome(message)


def as_columns(message, monkeypatch):
    with monkeypatch.context() as here:
        here.setattr(gtfs_columns, "_FEWEST", 0)
        return outcome(message)


ODD = [
    vehicle("A1", "7"),
    vehicle("", "8", speed=0.0, lon=0.0),
    vehicle(" ", "9"),
    vehicle("\x00A", "9"),
    vehicle("  ", "  "),
    vehicle(),
    vehicle("தமிழ்", "é"),
    vehicle("", "京A12345"),
    vehicle("A" * 300),
    vehicle("A2", speed=None),
    vehicle("A3", time_s=None),
    vehicle("A4", time_s=0),
    vehicle("A5", time_s=2**64 - 1),
    vehicle("A6", lon=None),
    vehicle("A7", lat=float("nan"), speed=float("inf")),
    vehicle("A8", deleted=True),
    vehicle(trip_update=True),
]


def city(size):
    """As servers send them: with trips, labels, an unset field here and there, and fields of their own."""
    feed = FeedMessage.FromString(
        snapshot(*(vehicle("", f"bus{bus}", START_S - bus, 72 + bus / 999) for bus in range(size)))
    )
    for bus, entity in enumerate(feed.entity):
        entity.vehicle.trip.trip_id = f"trip {bus}" * (bus % 12)
        entity.vehicle.current_status = bus % 3
        if bus % 5:
            entity.vehicle.stop_id, entity.vehicle.position.bearing = str(bus), bus
            entity.vehicle.position.odometer = bus * 1e3
        if bus % 7 == 0:
            entity.is_deleted = False
            entity.vehicle.vehicle.license_plate = f"GJ{bus}"
        entity.vehicle.occupancy_percentage = 200
    return feed


def test_nearly_all_vehicles_of_a_feed_are_read_as_columns():
    feed = city(200)
    found = gtfs_columns.vehicles_of(feed.SerializeToString(), 200)
    assert found.is_plain.all() and found.plated == 29
    assert found.seconds.tolist() == [entity.vehicle.timestamp for entity in feed.entity]
    assert found.plates[7] == "GJ7" and found.plates[8] == "bus8"


def test_columns_hold_what_protobuf_reads(monkeypatch):
    for message in (snapshot(*ODD), snapshot(*ODD, header_s=None), city(60).SerializeToString(), snapshot()):
        assert as_columns(message, monkeypatch) == one_by_one(message, monkeypatch)
    assert gtfs_columns.vehicles_of(snapshot(*ODD * 9), 9 * len(ODD)).is_plain.sum() == 9 * 8


@pytest.mark.parametrize(
    "more",
    [
        {"vehicle": {"position": {"longitude": 7.5}}},
        {"vehicle": {"timestamp": 9}},
        {"vehicle": {"vehicle": {"license_plate": "SECOND"}}},
        {"is_deleted": True},
        {"trip_update": {"trip": {}}},
    ],
    ids=str,
)
def test_what_is_given_twice_is_read_as_protobuf_reads_it(more, monkeypatch):
    """By the encoding, messages are merged, and the last number or text counts."""
    feed = city(3)
    data = feed.entity[1].SerializeToString() + type(feed.entity[1])(id="x", **more).SerializePartialToString()
    body = feed.header.SerializeToString()
    entities = [feed.entity[0].SerializeToString(), data, feed.entity[2].SerializeToString()]
    message = field(1, body) + b"".join(field(2, one) for one in entities)
    assert as_columns(message, monkeypatch) == one_by_one(message, monkeypatch)


def field(number, body):
    size = len(body)
    return bytes([tag(number, TEXT), size & 127 | 128, size >> 7]) + body


def test_unknown_fields_and_groups_are_passed_over_or_left_to_protobuf(monkeypatch):
    feed = city(4)
    group = bytes([tag(14, 3), tag(1, VARINT), 5, tag(14, 4)])
    far = bytes([0xC2, 0x3E, 2]) + b"ab"  # field 1000, where extensions are
    entities = [one.SerializeToString() for one in feed.entity]
    entities = [group + entities[0], far + entities[1], entities[2] + far, entities[3] + bytes([tag(3, VARINT), 1])]
    header = field(1, feed.header.SerializeToString())
    for end in (b"", far, group, field(9, b"abc")):
        message = header + b"".join(field(2, one) for one in entities) + end
        assert as_columns(message, monkeypatch) == one_by_one(message, monkeypatch)


@pytest.mark.parametrize("count", [400, pytest.param(100_000, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def test_mutated_messages_are_read_alike(count, monkeypatch):
    seeded = random.Random(7)
    whole = snapshot(*ODD[:9]) + city(8).SerializeToString()
    read = 0
    for _ in range(count):
        data = bytearray(whole)
        for _ in range(seeded.choice((1, 1, 2, 4))):
            at = seeded.randrange(len(data))
            match seeded.randrange(4):
                case 0:
                    data[at] = seeded.randrange(256)
                case 1:
                    data[at] ^= 1 << seeded.randrange(8)
                case 2:
                    del data[at]
                case _:
                    data[at:at] = data[at : at + 2]
        expected = one_by_one(bytes(data), monkeypatch)
        assert as_columns(bytes(data), monkeypatch) == expected, bytes(data).hex()
        read += bool(expected[1])
    assert read > count / 4


def test_a_message_that_leads_out_of_its_bytes_is_odd():
    for bad in (
        "0aff01",
        "08",
        "0880",
        "0d0000",
        "0affffffffffffffffff01",
        "0b",
        "06",
        "07",
        "80",
        "ffffffffffffffffffffff",
    ):
        data = bytes.fromhex(bad)
        _, odd = columns(padded(data), np.array([0]), np.array([len(data)]), [tag(1, TEXT)])
        assert odd.tolist() == [True], bad


def test_plates_with_ends_of_lines_go_on_one_message_each():
    feed = snapshot(*(vehicle(f"A\n{bus}\r\u2028", speed=bus % 9) for bus in range(150)))
    messages = Unrepeated(GTFS_REALTIME, 10**6, 999).take(feed)
    assert len(messages) == 150 and all(one.startswith(b"{") and one.endswith(b"}") for one in messages)
