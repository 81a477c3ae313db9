"""Topics and headers: data that other programs rely on; and the pace of a feed."""

import warnings
from contextlib import nullcontext
from importlib import import_module

import msgspec
import pytest

from streams import topics as made_of
from streams.feed import Pace
from streams.kafka import release_records
from streams.processors import is_tick, rejected_headers
from streams.topics import topics_of
from tests.runtime.harness import embedded, fleet_log, frames_of
from udp_stream.pings.decode import Reason, Refusal
from udp_stream.release.events import PublishedRelease
from udp_stream.settings.sections import KafkaSection


def test_names_and_settings_of_the_topics():
    topics = topics_of(KafkaSection(prefix="surat.", partitions=5, retention="3d"))
    assert [topic.name for topic in topics] == [
        "surat.bus.pings.v1", "surat.bus.parts.v1", "surat.bus.speed.release.v1", "surat.bus.speed.latest.v1",
        "surat.bus.speed.smoothed.v1", "surat.bus.queries.v1", "surat.bus.pings.rejected.v1",
        "surat.bus.deployment.v1",
    ]  # fmt: skip
    assert [topic.partitions for topic in topics] == [5, 1, 5, 5, 5, 5, 5, 1]
    assert (
        topics.deployment.settings
        == topics.smoothed.settings
        == topics.queries.settings
        == topics.release.settings
    )
    assert topics.pings.settings["message.timestamp.type"] == "LogAppendTime"
    assert topics.release.settings == {"cleanup.policy": "delete", "retention.ms": "-1"}
    assert topics.latest.settings == {"cleanup.policy": "compact"}
    for raw in (topics.pings, topics.parts, topics.rejected):
        assert (
            raw.settings["retention.ms"] == str(3 * 86_400_000)
            and raw.settings["cleanup.policy"] == "delete"
        )


@pytest.fixture
def answering(monkeypatch):
    """`answering(broker)`: its administration is what our clients are given."""
    return lambda broker: monkeypatch.setattr(made_of, "admin", lambda _: nullcontext(broker))


@pytest.mark.parametrize(("number", "is_raised"), [(30, True), (15, False), (None, False)])
def test_a_worker_without_rights_on_its_group_is_told_before_it_waits_to_be_taken_in(
    number, is_raised, answering
):
    """Its client asks for ever, and says nothing. A coordinator that is not there yet (15) is
    waited for."""

    class Answer(Exception):
        errno = number

    class Refusing:
        def list_group_offsets(self, asked):
            raise Answer(list(asked))

    answering(Refusing())
    with pytest.raises(Answer, match="udp-stream") if is_raised else nullcontext():
        without_warnings(made_of.require_rights)(KafkaSection())


@pytest.mark.parametrize("number", [14, 15], ids=["it loads the group", "there is none yet"])
def test_a_coordinator_that_is_not_ready_is_asked_again(number, answering):
    """As a broker says that is asked of its first group."""
    errors, refusals = without_warnings(import_module)("kafka.errors"), [1, 1]

    class Young:
        def list_topics(self):
            return [topic.name for topic in topics_of(KafkaSection())]

        def describe_topics(self, _):
            return []

        def list_partition_offsets(self, _):
            return {}

        def list_group_offsets(self, asked):
            if refusals:
                refusals.pop()
                raise errors.for_code(number)
            return asked

        def describe_groups(self, groups):
            return {group: {"members": []} for group in groups}

    answering(Young())
    assert without_warnings(made_of.group_of)(KafkaSection()) == ((), ())
    assert not refusals


def without_warnings(call):
    """kafka-python reads its schemas by a function that Python 3.11 and 3.12, alone, say is
    deprecated."""

    def quiet(*arguments):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return call(*arguments)

    return quiet


def test_releases_carry_cloudevents_attributes(tmp_path):
    with (tmp_path / "out").open("wb") as out, embedded(tmp_path / "ledger", out) as runtime:
        runtime.run(frames_of(fleet_log(clean=True, hours=0.3)))
    published = PublishedRelease((tmp_path / "out").read_bytes().splitlines()[0])
    topics, record = topics_of(KafkaSection()), published.record
    records = release_records(topics, [published])
    assert [one.topic for one in records] == [topics.release.name, topics.latest.name]
    assert {one.key for one in records} == {record.hat.cell.encode()}
    headers = dict(records[0].headers)
    assert (
        headers["ce_id"].decode() == record.release_id
        and headers["ce_time"].decode() == record.hat.slot_end
    )
    assert headers["ce_specversion"] == b"1.0" and headers["content-type"] == b"application/json"
    assert {"ce_type", "ce_source", "ce_subject", "ce_dataschema"} <= set(headers) and not is_tick(
        list(headers.items())
    )
    assert release_records(topics, [published]) == records


def test_a_refused_message_says_why_and_where_it_stood():
    headers = dict(
        rejected_headers(
            Refusal(3, 7, Reason.LATE, "$.observationDateTime", 90_000), "bus.pings.v1", 2, 55
        )
    )
    assert headers == {
        "udp-stream.errors.id": b"bus.pings.v1-2-55-7",
        "udp-stream.errors.reason": b"late",
        "udp-stream.errors.path": b"$.observationDateTime",
        "udp-stream.errors.topic": b"bus.pings.v1",
        "udp-stream.errors.partition": b"2",
        "udp-stream.errors.offset": b"55",
        "udp-stream.errors.lag_ms": b"90000",
    }


def a_ping(plate, time="2024-01-01T00:00:00Z"):
    return msgspec.json.encode({"license_plate": plate, "observationDateTime": time})


def test_the_pace_follows_the_rate_or_the_pings_own_times():
    assert Pace().due_s(1000, b"") == 0
    assert Pace(rate=20).due_s(30, b"") == 1.5
    pace = Pace(speedup=60)
    assert pace.due_s(0, b"not json") == 0
    at = [f"2024-01-01T00:{minute:02}:00Z" for minute in (10, 10, 11, 12, 13, 12, 14, 14, 14)]
    due = [pace.due_s(sent, a_ping("a", time)) for sent, time in enumerate(at)]
    assert due == [0, 0, 0, 0, 0, 1, 2, 2, 2]  # seconds: what four pings in a row have reached
    assert pace.due_s(9, a_ping("b", "no time")) == 2


@pytest.mark.parametrize("wrong", range(6))
def test_the_pace_does_not_wait_for_a_clock_that_is_decades_ahead(wrong):
    pace = Pace(speedup=1)
    times = [f"2024-01-01T00:00:{second:02}Z" for second in range(12)]
    times[wrong] = "2068-01-01T00:00:00Z"
    due = [pace.due_s(sent, a_ping("a", time)) for sent, time in enumerate(times)]
    assert max(due) <= 12 and due[-1] >= 7
