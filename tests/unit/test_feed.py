"""Where `feed` puts a ping, and with which others: decided by plates, numbers and what is not a
speed."""

import sys
import time
from concurrent.futures import Future
from types import ModuleType

import msgspec
import pytest

import streams.feed as feeding
from streams.feed import Feed, Pace, partition_of
from udp_stream.cli import main as cli
from udp_stream.cli.commands.kafka import send_live
from udp_stream.cli.preflight import LiveFeedCheck
from udp_stream.pings.json import JSON, mapped_form
from udp_stream.pings.mapping import FeedMapping
from udp_stream.settings import load
from udp_stream.settings.sections import KafkaSection

PARTITIONS = 4
SPEEDS = ("7", "42.123456789012345", "-0.0", "1.7976931348623157e+308")


class MessageSizeTooLargeError(Exception):
    """As the client names it."""


class Producer:
    """Remembers what it is given; refuses what is larger than its limit, as the client does."""

    limit, sent = 2**20, []

    def __init__(self, **_options):
        self.records = Producer.sent = []

    def send(self, topic, value, key=None, partition=None):  # noqa: ARG002 (the client's signature)
        sending = Future()
        sending.add_callback = lambda call: sending.exception() or call(None)
        sending.add_errback = lambda call: sending.exception() and call(sending.exception())
        if len(value) > self.limit:
            sending.set_exception(MessageSizeTooLargeError())
        else:
            sending.set_result(None)
            self.records.append((partition, key, value))
        return sending

    def flush(self):
        pass

    def close(self):
        pass


@pytest.fixture(autouse=True)
def kafka(monkeypatch):
    Producer.limit, Producer.sent = 2**20, []
    client, errors = ModuleType("kafka"), ModuleType("kafka.errors")
    client.KafkaProducer, client.errors, errors.KafkaError = (
        Producer,
        errors,
        MessageSizeTooLargeError,
    )
    monkeypatch.setitem(sys.modules, "kafka", client)
    monkeypatch.setitem(sys.modules, "kafka.errors", errors)
    monkeypatch.setattr(feeding, "partitions_of", lambda bootstrap, topic: PARTITIONS)


def sent(messages, batch=1, limit=2**20, **more):
    Producer.limit = limit
    with Feed(KafkaSection(bootstrap="nowhere"), "pings", batch, Pace(), **more) as feed:
        feed.send(messages)
    return Producer.sent


def a_ping(plate, speed="20", second=0, note=""):
    return (
        f'{{"license_plate": "{plate}", "observationDateTime": "2024-01-08T10:00:{second:02}+05:30", '
        f'"speed": {speed}, "note": "{note}"}}'
    ).encode()


def shape(records):
    """Where each record went, and which pings are in it, without their speeds."""

    def pings(value):
        found = msgspec.json.decode(value)
        return [
            (ping["license_plate"], ping["observationDateTime"])
            for ping in found
            if isinstance(ping, dict)
        ]

    return [
        (partition, pings(value if value.startswith(b"[") else b"[" + value + b"]"))
        for partition, _, value in records
    ]


@pytest.mark.parametrize("speed", SPEEDS)
def test_arrays_are_cut_by_number_whatever_the_digits_of_speeds(speed):
    """Three pings of 300 kB are 8 bytes below 900,000 with speeds of one digit."""
    note = "x" * (300_000 - len(a_ping("A")) - 2)
    swapped = sent([a_ping("A", speed, second, note) for second in range(6)], batch=3)
    first = sent([a_ping("A", "7", second, note) for second in range(6)], batch=3)
    assert shape(swapped) == shape(first)
    assert [len(pings) for _, pings in shape(swapped)] == [3, 3]


@pytest.mark.parametrize("wrap", [b"[%s]", b'{"results": [%s]}', b'"%s"'])
def test_the_partition_of_what_is_no_single_ping_follows_from_its_number_alone(wrap):
    def log(speed):
        ping = a_ping("A", speed)
        return [
            wrap % (ping.replace(b'"', b'\\"') if wrap.startswith(b'"') else ping),
            a_ping("B", speed),
        ] * 9

    where = [
        [partition for partition, _, _ in sent(log(speed))]
        for speed in ("1", "2", "3.5", "44", "5", "6.25")
    ]
    assert where.count(where[0]) == len(where)
    assert where[0][::2] == [number % PARTITIONS for number in range(9)]


def test_where_speeds_are_by_movement_arrays_stay_together_and_single_pings_stay_where_their_plates_are():
    log = [
        b"[%s]" % a_ping("A", "1", 1), a_ping("B", "1", 1), b"[%s,%s]" % (a_ping("A", "1", 2), a_ping("C", "1", 2)),
    ] * 3  # fmt: skip
    where = [partition for partition, _, _ in sent(log, deals=False)]
    assert where == [0, partition_of("B", PARTITIONS), 0] * 3


def test_where_whole_plates_are_hidden_no_plate_decides_on_which_partition_messages_of_others_are(
    tmp_path,
):
    """Pings of one plate and time count once in a partition: on two, in two cells, they may count
    twice."""
    (tmp_path / "cells").write_text("87608c4d2ffffff")
    hidden = "privacy.neighbours=add-remove", f"hat.domain={tmp_path}/cells", "pings.interval=10s"
    others = [
        b"[%s,%s]" % (a_ping("A", "1", second), a_ping("B", "1", second)) for second in range(20)
    ]
    crowd = [b"[%s]" % a_ping("C", "1", second) for second in range(20)]

    def where(crowds):
        mixed = [one for at, other in enumerate(others) for one in (other, *crowd[: crowds(at)])]
        (tmp_path / "log.ndjson").write_bytes(b"\n".join(mixed))
        sets = [word for key in hidden for word in ("--set", key)]
        assert (
            cli.main(["feed", str(tmp_path / "log.ndjson"), "--bootstrap", "nowhere:1", *sets]) == 0
        )
        return [record for record in Producer.sent if record[2] in others]

    assert len(alone := where(lambda _: 0)) == 20
    assert where(lambda at: at % 3) == alone


def test_a_plate_stays_on_one_partition_for_ever():
    """The numbers are those of the first version that sent pings: a log that is continued needs
    them."""
    plates = ["GJ05ZZ0001", "GJ05ZZ0002", " GJ05ZZ0001 ", "é", "A"]
    assert [partition for partition, _, _ in sent([a_ping(plate) for plate in plates])] == EXPECTED
    for speed in SPEEDS:
        assert [
            partition for partition, _, _ in sent([a_ping(plate, speed) for plate in plates])
        ] == EXPECTED


EXPECTED = [3, 1, 3, 1, 1]


MAPPED = mapped_form(FeedMapping(plate="v.id", time="v.t", time_format="epoch_s", longitude="v.x", latitude="v.y",
                                 speed="v.speed"))  # fmt: skip


def a_mapped_ping(plate, speed="20", second=0):
    return f'{{"v": {{"id": {plate}, "t": {1_704_688_200 + second}, "speed": {speed}}}}}'.encode()


@pytest.mark.parametrize("speed", [*SPEEDS, '"7,5"', "null", "[1]"])
def test_a_mapped_ping_goes_where_its_plate_goes_whatever_its_speed(speed):
    """An integer plate and its digits are one plate; arrays are cut by number alone."""
    plates = ["4711", '"4711"', '" 4711 "', '"B2"']
    with Feed(KafkaSection(bootstrap="nowhere"), "pings", 2, Pace(form=MAPPED), MAPPED) as feed:
        feed.send([a_mapped_ping(plate, speed, second) for second in range(2) for plate in plates])
    assert len(Producer.sent) == 4
    for partition, _, value in Producer.sent:
        ids = {str(one["v"]["id"]).strip() for one in msgspec.json.decode(value)}
        assert {partition_of(one, PARTITIONS) for one in ids} == {partition}


class Cut:
    """A live source that gives the next frame once the last one was taken."""

    unit, format = None, JSON

    def __init__(self, *frames):
        self.frames, self.kept_frames = frames, []

    def messages(self):
        for frame in self.frames:
            yield frame
            time.sleep(0.05)

    def kept(self, frames):
        self.kept_frames.append(frames)

    def stop(self, wait=True):
        """It ends by itself."""

    def close(self):
        """Nothing is open."""


@pytest.mark.parametrize("cuts", [[], [1], [2, 3], [1, 2, 3, 4, 5, 6]])
def test_arrays_of_a_live_source_do_not_end_where_its_frames_do(cuts):
    """A pipe's frames end by bytes, so by digits of speeds."""
    pings = [a_ping("A", second=second) for second in range(7)]
    source = Cut(*(pings[start:end] for start, end in zip([0, *cuts], [*cuts, 7], strict=True)))
    with Feed(KafkaSection(bootstrap="nowhere"), "pings", 3, Pace()) as feed:
        settings = load(None, (), {})
        send_live(source, feed, settings, lambda: None, LiveFeedCheck("-", settings))
    assert [len(found) for _, found in shape(Producer.sent)] == [3, 3, 1]
    assert source.kept_frames[-1] == len(cuts) + 1


@pytest.mark.parametrize("batch", [1, 3])
def test_records_have_no_key(batch):
    """Keys show up in tools and logs; anyone with a list of plates can undo an unkeyed hash of one."""
    records = sent(
        [a_ping("GJ05", second=second) for second in range(7)] + [b"[]", b"", b"?"], batch
    )
    assert len(records) == (10 if batch == 1 else 6)
    assert {key for _, key, _ in records} == {None}
