"""Facts of a run: both runtimes report the same ones of the same log, and none holds a plate or a
speed."""

import random
from collections import Counter
from types import NoneType
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from tests.protocol.broker import (
    FLAGS,
    TOPICS,
    Broker,
    Worker,
)
from tests.unit.test_ledger_identity import in_a_thread
from udp_stream.embedded.runtime import EmbeddedRuntime
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.pings.decode import Reason
from udp_stream.release.events import (
    BatchRead,
    HatRecorded,
    RunEvent,
    SlotCounted,
    SlotPublished,
    SlotRecorded,
    SlotsDropped,
)
from udp_stream.settings import load
from udp_stream.testing import SeededEntropy

START = 1_704_067_200_000
HOUR = 3_600_000
PLATES = [f"GJ05AB{number:04}" for number in range(4)]
MINUTES = range(0, 190, 2)
SETTINGS = load(None, (*FLAGS, "release.variance_epsilon=0.5"), {})


def ping(plate, minute):
    hour, minute = divmod(minute, 60)
    return (
        b'{"license_plate": "%s", "observationDateTime": "2024-01-01T%02d:%02d:00Z", "speed": 37.25, "location": '
        b'{"type": "Point", "coordinates": [72.8, 21.1]}}' % (plate.encode(), hour, minute)
    )


def log():
    """(minute, source, message): three hours in order of time. The last plate is in the first two
    only.

    Half an hour in, both sources say the same of the first plate. Some messages are junk.
    """
    content = random.Random(5)
    for minute in MINUTES:
        for number, plate in enumerate(PLATES if minute < 120 else PLATES[:3]):
            yield minute, number // 2, ping(plate, minute)
        if minute == 30:
            yield minute, 1, ping(PLATES[0], minute)
        if content.random() < 0.1:
            yield minute, 0, content.choice([b"?", b"{}"])


def of_embedded(ledger, *observers, sink=lambda _: None, settings=SETTINGS):
    runtime = EmbeddedRuntime(
        settings,
        ledger,
        SeededEntropy(1),
        lambda plate: plate.encode(),
        "test",
        sink,
        observers=observers,
    )
    runtime.run([[message] for _, _, message in log()])
    return runtime.summary


def filled_broker():
    broker = Broker()
    for minute, source, message in log():
        broker.now_ms = START + minute * 60_000
        broker.append(TOPICS.pings.name, source, message)
    broker.now_ms = START + 5 * HOUR
    return broker


def of_processors(broker, ledger, *observers, once=False):
    async def run(thread):
        worker = Worker(broker, ledger, thread, SETTINGS, once, observers=observers)
        await worker.run(random.Random(0))

    in_a_thread(run)


def read_in_all(facts):
    """One fact for all that was read: how a log is cut into batches is the runtime's own affair."""
    batches = [event for event in facts if isinstance(event, BatchRead)]
    refused = sum((Counter(one.refused) for one in batches), Counter())
    return BatchRead(
        sum(one.messages for one in batches), sum(one.pings for one in batches), dict(refused)
    )


def of_slots(facts):
    return [event for event in facts if not isinstance(event, BatchRead)]


def test_a_toy_observer_sees_the_same_facts_on_both_roads():
    embedded, processors = [], []
    of_embedded(MemoryLedger(), embedded.append)
    of_processors(filled_broker(), MemoryLedger(), processors.append)
    assert read_in_all(embedded) == read_in_all(processors)
    # A slot is counted when it closes, and several may close before the first is released.
    counted_first = [sorted(of_slots(facts), key=lambda event: isinstance(event, SlotCounted), reverse=True)
                for facts in (embedded, processors)]  # fmt: skip
    assert counted_first[0] == counted_first[1]
    kinds = [type(event) for event in of_slots(embedded)]
    assert kinds == [SlotCounted, SlotRecorded, HatRecorded, SlotPublished] * 4


def test_a_worker_says_that_its_shards_went_to_others():
    facts = []

    async def run(thread):
        worker = Worker(filled_broker(), MemoryLedger(), thread, SETTINGS, observers=[facts.append])
        await worker.assign()
        assert facts == []
        worker.parts.revoke()

    in_a_thread(run)
    assert set(facts) == {SlotsDropped()}


def test_a_slot_that_readers_do_not_get_is_recorded_and_not_published():
    facts = []

    def full(_releases):
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        of_embedded(MemoryLedger(), facts.append, sink=full)
    assert [type(event) for event in of_slots(facts)] == [SlotCounted, SlotRecorded, HatRecorded]


NAMES = {"HatRecorded.policy", "HatRecorded.period", "QueryRecorded.name"}
"""Fields of text: a policy's fingerprint, budget periods, and a query's name in the configuration."""

PUBLIC_NUMBERS = {
    "HatRecorded.period_epsilon", "HatRecorded.delta", "HatRecorded.mean_error_kmh", "SlotSmoothed.error",
    "SlotSmoothed.guess_error", "Backlog.still_s", "Backlog.ledger_away_s", "SourceStatus.silent_s",
    "SourceStatus.certificate_s",
}  # fmt: skip
"""Fields with fractions: known from settings and counts before noise is drawn, made of releases and
counts alone, or a clock's."""


def leaves(hint):
    if get_origin(hint) is Literal:
        return {Literal}
    parts = [one for one in get_args(hint) if one is not ...]
    return set().union(*map(leaves, parts)) if parts else {hint}


def test_by_its_types_a_fact_holds_no_plate_and_no_speed():
    kinds = get_args(RunEvent)
    assert all(issubclass(kind, tuple) for kind in kinds) and len(kinds) == 12
    free = {"text": set(), "fractions": set()}
    for kind in kinds:
        hints = get_type_hints(kind)
        for name in kind._fields:
            found = leaves(hints[name])
            assert found <= {int, float, str, bool, NoneType, Reason, Literal}, (
                f"{kind.__name__}.{name}: {found}"
            )
            if str in found:
                free["text"].add(f"{kind.__name__}.{name}")
            if float in found:
                free["fractions"].add(f"{kind.__name__}.{name}")
    assert free == {"text": NAMES, "fractions": PUBLIC_NUMBERS}


def test_nothing_of_a_plate_is_in_the_facts_of_a_run():
    facts = []
    of_embedded(MemoryLedger(), facts.append)
    of_processors(filled_broker(), MemoryLedger(), facts.append)
    told = repr(facts)
    assert facts and not [word for word in (*PLATES, "GJ05", "37.25") if word in told]
