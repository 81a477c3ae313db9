"""A queue on a real broker of AMQP 0-9-1, and a connection that is cut: nothing lost, nothing
twice."""

import json
import random
import time
from collections import Counter
from contextlib import contextmanager

import pytest
import trustme

from benchmarks.feed_forms import FORMS, recorded
from tests import one_plate, way_in
from tests.chaos.proxy import Proxy
from tests.integration.amqp_brokers import PASSWORD, USER, connected
from tests.mutations import facts, pieces
from tests.runtime.harness import fleet_log
from udp_stream.base.errors import DependencyUnavailable, UsageError
from udp_stream.settings import Settings
from udp_stream.settings.sections import LiveSection
from udp_stream.sources.brokers import QueueSource
from udp_stream.sources.live import Handover

SECONDS_MAX = 20


class Dead(Exception):
    """What the keeper of messages ends with."""


class Queue:
    def __init__(self, broker, name):
        self.name, self.port, self.broker = name, broker.port, broker
        self.connection = connected(broker.port)
        self.channel = self.connection.channel()
        self.channel.queue_declare(name, durable=True)

    def publish(self, *messages):
        for message in messages:
            self.channel.basic_publish("", self.name, message)

    def waiting(self):
        """Messages that are not acknowledged, those on their way too."""
        return self.broker.unacknowledged(self.name)

    def wait_for(self, count):
        deadline = time.monotonic() + SECONDS_MAX
        while (waiting := self.waiting()) != count:
            assert time.monotonic() < deadline, waiting
            time.sleep(0.02)


@pytest.fixture
def queue(amqp_broker, request):
    made = Queue(amqp_broker, f"user-{request.node.name}")
    yield made
    made.channel.queue_delete(made.name)
    made.connection.close()


def ping(number, plate=None):
    time_ = f"2024-01-08T10:{number // 60 % 60:02}:{number % 60:02}+05:30"
    place = {"type": "Point", "coordinates": [72.5, 21.25]}
    fields = {
        "license_plate": plate or f"BUS{number}",
        "observationDateTime": time_,
        "location": place,
        "speed": 47.25,
    }
    return json.dumps(fields | {"vehicle_label": "P61"}).encode()


@pytest.fixture
def password(tmp_path):
    (tmp_path / "password").touch(mode=0o600)
    (tmp_path / "password").write_text(PASSWORD + "\n")
    return str(tmp_path / "password")


def source(where, password, said=None, port=None, scheme="amqp", prefetch=10, ca_file=""):
    live = LiveSection(
        queue=where.name, username=USER, password_file=password, timeout="5s", ca_file=ca_file
    )
    name, log_message = (
        f"{scheme}://127.0.0.1:{port or where.port}/",
        ([] if said is None else said).append,
    )
    return QueueSource(name, Settings(live=live), log_message, prefetch=prefetch)


def plates(messages):
    return [json.loads(message)["license_plate"] for message in messages]


def taken(handover, count):
    found, deadline = [], time.monotonic() + SECONDS_MAX
    while len(found) < count:
        assert time.monotonic() < deadline, found
        found += [one for frame in handover.take() for one in frame]
    return found


@contextmanager
def reading(live):
    with Handover(live) as handover:
        yield handover


def test_messages_come_in_order_as_single_pings_and_never_more_than_the_prefetch(queue, password):
    queue.publish(
        b"[" + ping(0) + b", " + ping(1) + b"]",
        ping(2),
        json.dumps(ping(3).decode()).encode(),
        b"?",
        b"[]",
    )
    queue.publish(*(ping(number) for number in range(4, 40)))
    with reading(source(queue, password)) as handover:
        first = taken(handover, 10)
        time.sleep(0.3)
        assert handover.take(0) == [] and queue.waiting() == 41
        assert plates(first[:4]) == ["BUS0", "BUS1", "BUS2", "BUS3"] and first[4] == b"?"
        assert sorted(json.loads(first[0])) == [
            "license_plate",
            "location",
            "observationDateTime",
            "speed",
        ]
        handover.kept()
        rest = []
        while len(rest) < 31:
            rest += taken(handover, 1)
            handover.kept()
        assert plates(first[5:] + rest) == [f"BUS{number}" for number in range(4, 40)]
    queue.wait_for(0)


def test_what_was_kept_is_acknowledged_and_what_was_not_comes_again(queue, password):
    queue.publish(*(ping(number) for number in range(4)))
    with pytest.raises(Dead), reading(source(queue, password)) as handover:
        assert len(taken(handover, 4)) == 4
        handover.kept()
        queue.publish(*(ping(number) for number in range(4, 8)))
        assert len(taken(handover, 4)) == 4
        queue.wait_for(4)
        raise Dead
    with reading(source(queue, password)) as handover:
        assert plates(taken(handover, 4)) == [f"BUS{number}" for number in range(4, 8)]
        handover.kept()
    queue.wait_for(0)


def test_a_reader_that_dies_before_it_has_kept_anything_loses_nothing(queue, password):
    queue.publish(*(ping(number) for number in range(5)))
    with pytest.raises(Dead), reading(source(queue, password)) as handover:
        assert len(taken(handover, 5)) == 5
        raise Dead
    time.sleep(0.5)
    assert queue.waiting() == 5
    with reading(source(queue, password)) as handover:
        assert len(taken(handover, 5)) == 5
        handover.kept()
    queue.wait_for(0)


@pytest.mark.parametrize("kept", [True, False])
def test_a_connection_that_is_cut_loses_nothing_and_hands_nothing_on_twice(queue, password, kept):
    said = []
    with Proxy() as proxy:
        link = proxy.link(queue.port)
        with reading(source(queue, password, said, port=link.port, prefetch=100)) as handover:
            found = []
            for start in range(0, 24, 6):
                queue.publish(*(ping(number) for number in range(start, start + 6)))
                found += taken(handover, start + 6 - len(found))
                if kept:
                    handover.kept()
                link.cut()
            handover.kept()
            queue.publish(ping(24))
            found += taken(handover, 1)
            handover.kept()
    assert plates(found) == [f"BUS{number}" for number in range(25)]
    queue.wait_for(0)
    text = "\n".join(said)
    assert "lost the connection" in text and "works again, after" in text
    assert not [one for one in ("BUS", "47.25", PASSWORD, queue.name) if one in text], text


def test_stopping_acknowledges_what_is_kept_meanwhile_and_gives_the_rest_back(queue, password):
    queue.publish(*(ping(number) for number in range(30)))
    with reading(source(queue, password)) as handover:
        found = taken(handover, 10)
        handover.stop()
        handover.kept()
        while not handover.ended:
            found += [one for frame in handover.take() for one in frame]
            handover.kept()
    assert 10 <= len(found) < 30
    queue.wait_for(30 - len(found))


def test_a_wrong_password_is_said_without_it(queue, tmp_path):
    (tmp_path / "wrong").touch(mode=0o600)
    (tmp_path / "wrong").write_text("another secret")
    with pytest.raises(DependencyUnavailable, match="username and password") as refused:
        next(source(queue, str(tmp_path / "wrong")).messages())
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("amqp://", "expected amqp://HOST:PORT/VHOST"),
        ("amqp://host:x/", "expected amqp://HOST:PORT/VHOST"),
        ("amqp://host/v?queue=x", "the queue in live.queue"),
        (f"amqp://me:{PASSWORD.replace(' ', '')}@host/", "without a password"),
    ],
)
def test_a_name_that_is_none_is_refused_without_what_may_be_secret(queue, password, name, words):
    live = LiveSection(queue="q", username="u", password_file=password)
    with pytest.raises(UsageError, match=words) as refused:
        QueueSource(name, Settings(live=live), print)
    assert "asecret" not in str(refused.value)


def test_tls_is_checked_against_an_authority_of_ones_own(queue, password, tmp_path):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca")
    queue.publish(ping(0))
    with Proxy() as proxy:
        link = proxy.link(queue.port, tls=authority.issue_cert("127.0.0.1"))
        live = source(queue, password, port=link.port, scheme="amqps", ca_file=str(tmp_path / "ca"))
        with reading(live) as handover:
            assert plates(taken(handover, 1)) == ["BUS0"]
            handover.kept()
        with pytest.raises(DependencyUnavailable, match="has a certificate that is not trusted"):
            next(source(queue, password, port=link.port, scheme="amqps").messages())
    queue.wait_for(0)


@pytest.mark.timeout(300)
def test_a_queue_hands_on_the_same_of_others_whatever_one_plate_sends(queue, password):
    found = []
    for is_crowded in (False, True):
        queue.publish(*one_plate.feed(is_crowded))
        messages = list[bytes]()
        with reading(source(queue, password, prefetch=1000)) as handover:
            while not one_plate.has_ended(messages):
                messages += taken(handover, 1)
                handover.kept()
        found.append(messages)
    alone, crowded = found
    assert one_plate.others(crowded) == alone and len(crowded) > len(alone) + one_plate.MESSAGES / 2


@pytest.mark.long
def test_a_queue_through_run_gives_the_hats_and_counts_of_the_plain_form(amqp_broker, tmp_path):
    pings, flags = recorded(fleet_log(buses=20, hours=0.5, clean=True)), ("--set", "hat.slot=15m")
    for name in ("file", "queue"):
        (tmp_path / name).mkdir()
    plain = way_in.recording(
        tmp_path / "file", "plain.ndjson", FORMS["plain.ndjson"](pings), *flags
    )
    found = way_in.queued(tmp_path / "queue", pings, amqp_broker.port, *flags)
    assert found == plain and len(plain) > 20


__all__ = ["password", "queue"]


@pytest.mark.parametrize(
    "count", [1_000, pytest.param(100_000, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])]
)
def test_of_mutated_messages_each_ping_is_handed_on_or_refused_for_its_reason(
    count, queue, password
):
    messages = [piece for piece in pieces(random.Random(4711), range(count)) if piece]
    expected = facts(messages)
    queue.publish(*messages, b"LAST")
    handed_on = Counter()
    with reading(source(queue, password, prefetch=500)) as handover:
        while not (frames := handover.take()) or b"LAST" not in frames[-1]:
            for frame in frames:
                handed_on += facts(frame)
            handover.kept()
        for frame in frames:
            handed_on += facts(frame)
        handover.kept()
    queue.wait_for(0)
    del handed_on["not_json", "$", b"LAST"]
    assert set(handed_on) == set(expected) and len(expected) > count / 2
    assert sum(len(one) == 3 for one in expected) > count / 20
