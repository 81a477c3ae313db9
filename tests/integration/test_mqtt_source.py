"""Topics of a real MQTT broker, and connections that are cut: nothing lost, nothing twice."""

import json
import time
from contextlib import closing, contextmanager

import h3
import pytest
import trustme

from benchmarks.feed_forms import FORMS, recorded
from lab.process import free_ports
from tests import one_plate, way_in
from tests.chaos.proxy import Proxy
from tests.forms import long_but, soaked
from tests.gtfs import snapshot, vehicle
from tests.integration.mqtt_brokers import MOSQUITTO, PASSWORD, USER, connected, mqtt, password_file
from tests.runtime.harness import fleet_log
from tests.runtime.test_wall_runs import Machine
from udp_stream.base.errors import ConfigError, DependencyUnavailable, UsageError
from udp_stream.embedded.runtime import LiveRuntime, Outputs
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.pings.decode import PingDecoder, PingRules
from udp_stream.settings import Settings, load
from udp_stream.settings.sections import KafkaSection, LiveSection, SpeedSection
from udp_stream.sources.brokers import TopicSource, kept_seed
from udp_stream.sources.journal import Journal
from udp_stream.sources.live import Handover
from udp_stream.sources.opening import live_source
from udp_stream.testing import SeededEntropy

SECONDS_MAX = 30
needs_mosquitto = pytest.mark.skipif(
    MOSQUITTO is None, reason="needs mosquitto, of Debian's packages"
)
"""What amqtt does not do: it never sends again what was not acknowledged."""


class Dead(Exception):
    """What the keeper of messages ends with."""


@pytest.fixture(scope="module")
def broker():
    with mqtt() as running:
        yield running


@pytest.fixture
def topic(request):
    return f"/hfp/v2/{request.node.name.replace('[', '-').replace(']', '')}"


def ping(number):
    time_ = f"2024-01-08T10:{number // 60 % 60:02}:{number % 60:02}+05:30"
    place = {"type": "Point", "coordinates": [72.5, 21.25]}
    fields = {
        "license_plate": f"BUS{number}",
        "observationDateTime": time_,
        "location": place,
        "speed": 47.25,
    }
    return json.dumps(fields | {"vehicle_label": "P61"}).encode()


def pings(*numbers):
    return [ping(number) for number in range(*numbers)]


def source(port, topic, said=None, scheme="mqtt", seed="one", **options):
    live = LiveSection(topics=(f"{topic}/#",), timeout="5s", **options)
    log_message = ([] if said is None else said).append
    settings = Settings(live=live, kafka=KafkaSection(prefix=seed), speed=SpeedSection(unit="mps"))
    return TopicSource(f"{scheme}://127.0.0.1:{port}", settings, log_message)


def first_of(live):
    with closing(live):
        next(live.messages())


def plates(messages):
    return [json.loads(message)["license_plate"] for message in messages]


def taken(handover, count, seconds=SECONDS_MAX):
    found, deadline = [], time.monotonic() + seconds
    while len(found) < count:
        assert time.monotonic() < deadline, plates(found)
        found += [one for frame in handover.take() for one in frame]
    return found


def nothing_more(handover, seconds=1.0):
    time.sleep(seconds)
    return not [one for frame in handover.take(0) for one in frame]


@contextmanager
def reading(live, said=None):
    said = [] if said is None else said
    live.log_message = live._retries.log_message = said.append
    with Handover(live) as handover:
        deadline = time.monotonic() + SECONDS_MAX
        while not any("reading" in one for one in said):
            assert time.monotonic() < deadline, said
            time.sleep(0.01)
        yield handover


def test_messages_come_in_order_as_single_pings_far_more_than_a_broker_sends_at_once(broker, topic):
    with reading(source(broker.port, topic)) as handover:
        broker.publish(
            f"{topic}/1", b"[" + ping(0) + b", " + ping(1) + b"]", b"junk", *pings(2, 300)
        )
        found = []
        while len(found) < 301:
            found += taken(handover, 1)
            handover.kept()
        assert found[2] == b"junk" and plates(found[:2] + found[3:]) == [
            f"BUS{number}" for number in range(300)
        ]
        assert sorted(json.loads(found[0])) == [
            "license_plate",
            "location",
            "observationDateTime",
            "speed",
        ]


def test_messages_may_be_of_gtfs_realtime(broker, topic):
    live = source(broker.port, topic, format="gtfs-rt")
    with reading(live) as handover:
        broker.publish(
            f"{topic}/1",
            *[snapshot(vehicle(number=f"BUS{at}", speed=5.0)) for at in range(3)],
            ping(7),
        )
        found = taken(handover, 4)
        handover.kept()
    pings, refusals = PingDecoder(
        PingRules(max_kmh=65, reject_above_kmh=200, unit="mps"), live.format
    ).decode(found)
    assert pings.plates == ("BUS0", "BUS1", "BUS2") and set(pings.speed.tolist()) == {18 * 4096}
    assert [one.reason.value for one in refusals] == ["not_gtfs_realtime"]
    with pytest.raises(ConfigError, match=r"speed\.unit"):
        live_source(
            f"mqtt://127.0.0.1:{broker.port}",
            load(None, ["live.format=gtfs-rt", 'live.topics=["a"]'], {}),
            print,
        )


@needs_mosquitto
def test_what_was_not_kept_comes_again_and_what_comes_while_nobody_reads_comes_later(broker, topic):
    with pytest.raises(Dead), reading(source(broker.port, topic)) as handover:
        broker.publish(f"{topic}/1", *pings(4))
        assert len(taken(handover, 4)) == 4
        handover.kept()
        broker.publish(f"{topic}/1", *pings(4, 8))
        assert len(taken(handover, 4)) == 4
        time.sleep(0.5)
        raise Dead
    broker.publish(f"{topic}/1", *pings(8, 12))
    with reading(source(broker.port, topic)) as handover:
        assert plates(taken(handover, 8)) == [f"BUS{number}" for number in range(4, 12)]
        handover.kept()
    with reading(source(broker.port, topic)) as handover:
        assert nothing_more(handover)


def test_another_session_has_messages_of_its_own(broker, topic):
    with (
        reading(source(broker.port, topic)) as one,
        reading(source(broker.port, topic, seed="two")) as two,
    ):
        broker.publish(f"{topic}/1", *pings(3))
        assert plates(taken(one, 3)) == plates(taken(two, 3)) == ["BUS0", "BUS1", "BUS2"]
        one.kept()
        two.kept()


def test_stopping_acknowledges_what_is_kept_meanwhile(broker, topic):
    with reading(source(broker.port, topic)) as handover:
        broker.publish(f"{topic}/1", *pings(10))
        assert len(taken(handover, 10)) == 10
        handover.stop()
        handover.kept()
        while not handover.ended:
            handover.take()
            handover.kept()
    with reading(source(broker.port, topic)) as handover:
        assert nothing_more(handover)


@needs_mosquitto
@pytest.mark.parametrize("kept", [True, False])
def test_a_connection_that_is_cut_loses_nothing_and_hands_nothing_on_twice(broker, topic, kept):
    said = []
    with Proxy() as proxy:
        link = proxy.link(broker.port)
        with reading(source(link.port, topic), said) as handover:
            found = []
            for start in range(0, 16, 4):
                broker.publish(f"{topic}/1", *pings(start, start + 4))
                found += taken(handover, start + 4 - len(found))
                if kept:
                    handover.kept()
                link.cut()
            handover.kept()
            broker.publish(f"{topic}/1", ping(16))
            found += taken(handover, 1)
            handover.kept()
            assert nothing_more(handover)
    assert plates(found) == [f"BUS{number}" for number in range(17)]
    text = "\n".join(said)
    assert "works again, after" in text
    assert not [one for one in ("BUS", "47.25", PASSWORD, topic) if one in text], text


def test_a_broker_that_is_away_for_a_while_is_asked_again(topic):
    said = []
    with mqtt() as own, reading(source(own.port, topic), said) as handover:
        own.publish(f"{topic}/1", *pings(2))
        assert len(taken(handover, 2)) == 2
        handover.kept()
        time.sleep(0.5)
        own.stop()
        deadline = time.monotonic() + SECONDS_MAX
        while not any("refuses connections" in one for one in said):
            assert time.monotonic() < deadline, said
            time.sleep(0.05)
        own.restart()
        while sum("reading" in one for one in said) < 2:
            assert time.monotonic() < deadline, said
            time.sleep(0.05)
        own.publish(f"{topic}/1", *pings(2, 4))
        assert plates(taken(handover, 2)) == ["BUS2", "BUS3"]
        handover.kept()


@needs_mosquitto
def test_a_session_outlives_a_broker_that_is_killed(topic):
    with mqtt("autosave_interval 1") as own:
        with pytest.raises(Dead), reading(source(own.port, topic)) as handover:
            own.publish(f"{topic}/1", *pings(3))
            assert len(taken(handover, 3)) == 3
            raise Dead
        own.publish(f"{topic}/1", *pings(3, 6))
        time.sleep(2.5)  # mosquitto writes its sessions each second
        own.kill()
        own.restart()
        with reading(source(own.port, topic)) as handover:
            assert plates(taken(handover, 6)) == [f"BUS{number}" for number in range(6)]
            handover.kept()


@needs_mosquitto
def test_a_wrong_password_ends_the_source_at_once_and_is_not_shown(tmp_path, topic):
    for name, text in (("right", PASSWORD), ("wrong", "another")):
        (tmp_path / name).touch(mode=0o600)
        (tmp_path / name).write_text(text + "\n")
    with mqtt("per_listener_settings false", f"password_file {password_file(tmp_path)}") as own:
        for options in ({}, {"username": USER, "password_file": str(tmp_path / "wrong")}):
            (own.program.folder / "broker.conf").write_text(
                (own.program.folder / "broker.conf")
                .read_text()
                .replace("anonymous true", "anonymous false")
            )
            own.restart()
            with pytest.raises(DependencyUnavailable, match="username and password") as refused:
                first_of(source(own.port, topic, **options))
            assert "another" not in str(refused.value)
        right = source(own.port, topic, username=USER, password_file=str(tmp_path / "right"))
        with reading(right) as handover:
            own.publish(f"{topic}/1", ping(0))
            assert plates(taken(handover, 1)) == ["BUS0"]
            handover.kept()


# paho leaves the socket of a handshake that failed to the garbage collector.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <ssl:pytest.PytestUnraisableExceptionWarning"
)
@needs_mosquitto
def test_a_certificate_is_checked_and_an_authority_of_ones_own_can_be_named(tmp_path, topic):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca")
    made = authority.issue_cert("127.0.0.1")
    made.private_key_pem.write_to_path(tmp_path / "key")
    made.cert_chain_pems[0].write_to_path(tmp_path / "crt")
    with mqtt() as plain:
        (port,) = free_ports(1)
        more = f"listener {port} 127.0.0.1\ncertfile {tmp_path}/crt\nkeyfile {tmp_path}/key\n"
        conf = plain.program.folder / "broker.conf"
        conf.write_text(conf.read_text() + more)
        plain.restart()
        with pytest.raises(DependencyUnavailable, match="certificate"):
            first_of(source(port, topic, scheme="mqtts"))
        with reading(source(port, topic, scheme="mqtts", ca_file=str(tmp_path / "ca"))) as handover:
            plain.publish(f"{topic}/1", *pings(200))
            found = []
            while len(found) < 200:
                found += taken(handover, 1)
                handover.kept()
            assert plates(found) == [f"BUS{number}" for number in range(200)]


@pytest.mark.timeout(300)
def test_a_topic_hands_on_the_same_of_others_whatever_one_plate_sends(broker, topic):
    found = []
    for name, is_crowded in (("alone", False), ("crowded", True)):
        with reading(source(broker.port, f"{topic}/{name}", seed=name)) as handover:
            client, messages = connected(broker.port), list[bytes]()
            sending = [
                client.publish(f"{topic}/{name}/1", one, 1) for one in one_plate.feed(is_crowded)
            ]
            deadline = time.monotonic() + SECONDS_MAX
            while not one_plate.has_ended(messages):
                assert time.monotonic() < deadline, len(messages)
                # Frames of repeats alone are empty, and are to be acknowledged all the same.
                messages += [one for frame in handover.take() for one in frame]
                handover.kept()
            sending[-1].wait_for_publish(SECONDS_MAX)
            client.disconnect()
            client.loop_stop()
            found.append(messages)
    alone, crowded = found
    assert one_plate.others(crowded) == alone and len(crowded) > len(alone) + one_plate.MESSAGES / 2


NINE_S = 1_704_684_600
"""2024-01-08 09:00 in India, when `one_plate.feed` begins."""


@pytest.mark.timeout(300)
def test_a_live_run_of_a_topic_counts_others_the_same_whatever_one_plate_sends(
    tmp_path, broker, topic
):
    """From the broker through the journal to slots and charges, a minute of the feed a turn."""
    (tmp_path / "cells").write_text("\n".join(h3.grid_disk(h3.latlng_to_cell(21.19, 72.83, 7), 8)))
    hidden = "privacy.neighbours=add-remove", f"hat.domain={tmp_path}/cells", "pings.interval=10s"
    settings = load(None, (*hidden, "hat.slot=15m", "hat.timezone=UTC"), {})
    plates = sorted({one_plate.plate_of(one) for one in one_plate.feed(False)})

    def counted(name, is_crowded):
        slots = {}

        def look(_messages, read):
            for slot in read.closed:
                rows = zip(
                    slot.plate.tolist(), slot.time.tolist(), slot.cell.tolist(), slot.speed.tolist(),
                    strict=True,
                )  # fmt: skip
                slots[slot.start_ms] = sorted((slot.plates[plate], *more) for plate, *more in rows)

        every = one_plate.feed(is_crowded)
        ours = [at for at, one in enumerate(every) if one_plate.plate_of(one) != one_plate.CROWD]
        ends = [*ours[:: -(-len(ours) // 16)][1:], len(every)]
        machine, ledger = Machine(), MemoryLedger()
        machine.now_s = NINE_S - 60
        with (
            Journal(tmp_path / name, "the ledger 5eed") as journal,
            reading(source(broker.port, f"{topic}/{name}", seed=name)) as handover,
        ):
            runtime = LiveRuntime(
                settings, ledger, SeededEntropy(1), hashed, "test", journal, Outputs(lambda _: None),
                clock=machine.clock(), check=look,
            )  # fmt: skip
            runtime.start()
            client, begin = connected(broker.port), 0
            for minute, end in enumerate(ends):
                mark = f"MARK{minute}"
                for one in [*every[begin:end], one_plate.end(mark)]:
                    client.publish(f"{topic}/{name}/1", one, 1)
                begin, messages = end, list[bytes]()
                deadline = time.monotonic() + 2 * SECONDS_MAX
                while not any(one_plate.plate_of(one) == mark for one in messages[-1:]):
                    assert time.monotonic() < deadline, len(messages)
                    messages += [one for frame in handover.take() for one in frame]
                    handover.kept()
                machine.now_s = NINE_S + 60 * (minute + 1)
                runtime.take(messages)
                runtime.tick()
            client.disconnect()
            client.loop_stop()
            machine.now_s += 1800
            runtime.tick()
        hashes = list(map(hashed, plates))
        charges = [ledger.balances(one, hashes).charges.tolist() for one in ledger.periods()]
        others = {
            at: [row for row in rows if row[0] != hashed(one_plate.CROWD)]
            for at, rows in slots.items()
        }
        return others, charges, sum(map(len, slots.values()))

    alone, crowded = counted("alone", False), counted("crowded", True)
    assert crowded[:2] == alone[:2] and sum(map(sum, alone[1])) > 0
    assert sum(map(len, alone[0].values())) > 1000 and crowded[2] > alone[2] + 50


def hashed(plate):
    return plate.ljust(16).encode()


FLAGS = "--set", "hat.slot=15m", "--set", "release.min_plates=2"


@needs_mosquitto
@pytest.mark.parametrize("kills", [1, *long_but([], [2]), *soaked([0])])
def test_a_run_of_topics_gives_the_hats_and_counts_of_a_file_however_often_it_is_killed(
    tmp_path, kills
):
    pings = recorded(fleet_log(buses=20, hours=0.5, clean=True))
    for name in ("file", "topics"):
        (tmp_path / name).mkdir()
    plain = way_in.recording(tmp_path / "file", "hfp.ndjson", FORMS["hfp.ndjson"](pings), *FLAGS)
    with mqtt() as own:  # it keeps what comes while nobody reads: of its own session alone
        assert way_in.published(tmp_path / "topics", pings, own.port, *FLAGS, kills=kills) == plain


def test_names_topics_and_logins_that_are_none_are_refused(tmp_path):
    log_message = [].append
    for name in ("mqtt://", "mqtt://me:secret@host", "mqtt://host/topic", "mqtt://host:port"):
        with pytest.raises(UsageError) as refused:
            TopicSource(name, Settings(live=LiveSection(topics=("a",))), log_message)
        assert "secret" not in str(refused.value)
    for topics in ((), ("",), ("a/#/b",), ("a#",), ("a/b+",)):
        with pytest.raises(ConfigError, match=r"live\.topics"):
            TopicSource("mqtt://host", Settings(live=LiveSection(topics=topics)), log_message)
    with pytest.raises(ConfigError, match=r"live\.username"):
        live = LiveSection(topics=("a",), password_file=str(tmp_path / "p"))
        TopicSource("mqtt://host", Settings(live=live), log_message)


def test_the_seed_of_a_session_is_kept_in_the_folder(tmp_path):
    seed = kept_seed(tmp_path)
    assert kept_seed(tmp_path) == seed and len(seed) == 32
