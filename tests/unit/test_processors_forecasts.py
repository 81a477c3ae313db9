"""Plans that follow from releases: the planner waits for what it planned, and for nothing that will
never come."""

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from faust.types import TP

from streams.wire import FactorChunk, NormChunk, PingChunk, decode_message
from tests.forms import PURE_ENV
from tests.protocol.broker import (
    TOPICS,
    Worker,
    charges,
    lives,
    outcome,
    smoothed,
)
from tests.protocol.embedded import embedded
from tests.unit.test_processors_planner import (
    CITY,
    cells_of,
    city,
    parts_logs,
    settings_of,
    small_chunks,  # noqa: F401 (a fixture: workers die between the chunks of a slot)
    sources_alone,
)
from udp_stream.base.errors import PrivacyRefused
from udp_stream.ledger.ids import CITY_HOUR, Id, kind_of
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.release import city as release_city
from udp_stream.release.city import CityHour
from udp_stream.release.forecaster import Forecaster, LedgerHistory
from udp_stream.release.record import Release, Smoothed, Withdrawal
from udp_stream.release.withdrawal import unpublished_withdrawals, withdraw
from udp_stream.settings import load

SETTINGS = settings_of("forecasts")


def slots_of(estimates):
    return {msgspec.json.decode(one)["hat"]["slot_start"] for one in estimates}


def require_same(broker, ledger, once):
    expected = embedded(broker, SETTINGS)
    assert outcome(broker)[0] == expected.releases
    assert charges(ledger) == charges(expected.ledger)
    assert list(dict.fromkeys(smoothed(broker))) == expected.smoothed
    assert not once or len(smoothed(broker)) == len(expected.smoothed)


class TwoWorkers:
    """All parts of a city are written. One worker has the planner and a shard of its own, another
    has their shard."""

    def __init__(self, settings=SETTINGS):
        self.settings = settings
        self.broker, self.ledger = city(), MemoryLedger()
        self.planning, self.mine, self.theirs = (TP(TOPICS.parts.name, shard) for shard in range(3))

    async def start(self, thread):
        await sources_alone(Worker(self.broker, self.ledger, thread, self.settings))
        self.planner, self.other = (
            Worker(self.broker, self.ledger, thread, self.settings, once=True) for _ in range(2)
        )
        await self.planner.parts.assign({self.planning, self.mine})
        await self.other.parts.assign({self.theirs})
        self.at = dict.fromkeys(parts_logs(self.broker), 0)

    async def planner_reads(self):
        await self._reads(self.planner, self.planning, self.mine)

    async def other_reads(self):
        await self._reads(self.other, self.theirs)

    async def _reads(self, worker, *tps):
        """What there is in these logs."""
        while todo := [tp for tp in tps if self.at[tp] < len(self.broker.logs[tp])]:
            batch = self.broker.logs[todo[0]][self.at[todo[0]] :]
            self.at[todo[0]] += len(batch)
            await worker.parts.process(batch)

    def planned(self):
        return len({entry.release_id.split("-")[1] for entry in self.ledger.entries()})

    def smoothed(self):
        return smoothed(self.broker)


def run(work):
    with ThreadPoolExecutor(1) as thread:
        return asyncio.run(work(thread))


def test_the_planner_waits_for_shards_of_other_workers_and_hinders_nobody():
    two = TwoWorkers()

    async def work(thread):
        await two.start(thread)
        await two.planner_reads()
        assert not two.planned()  # it has not heard the counts of the other shard
        await two.other_reads()
        await two.planner_reads()
        assert two.planned() == 1 and not two.smoothed()
        await two.planner_reads()
        assert two.planned() == 1  # whatever comes
        await two.other_reads()
        await two.planner_reads()
        assert two.planned() == 2 and two.smoothed()
        for _ in range(9):
            await two.other_reads()
            await two.planner_reads()

    run(work)
    require_same(two.broker, two.ledger, once=True)


def test_who_takes_a_shard_over_says_at_once_what_is_released_there():
    """Its last owner may have died before it could; and no message may come for a while."""
    two = TwoWorkers()

    async def work(thread):
        await two.start(thread)
        for _ in range(9):
            await two.other_reads()
            await two.planner_reads()
        before = len(two.broker.logs[two.planning])
        await two.other.parts.assign({two.theirs})
        assert len(two.broker.logs[two.planning]) == before + 1

    run(work)


def test_nothing_is_learnt_from_an_older_copy_of_the_ledger():
    """It lacks what was released: estimates would be left out, and the checkpoint would be behind
    their slot."""
    two = TwoWorkers()

    async def work(thread):
        await two.start(thread)
        await two.other_reads()
        older = MemoryLedger(two.ledger.meta()["ledger_id"])  # from before anything was charged
        await two.planner_reads()
        await two.other_reads()
        before = two.broker.offsets[two.planning]
        two.planner.parts._assignments[0].ledger = older
        with pytest.raises(PrivacyRefused, match="went back in time"):
            await two.planner_reads()
        assert not two.smoothed() and two.broker.offsets[two.planning] == before

    run(work)
    asyncio.run(lives(two.broker, random.Random(1), two.ledger, SETTINGS, True))
    require_same(two.broker, two.ledger, once=True)


def test_no_factors_follow_from_an_older_copy_of_the_ledger():
    """Other norms may be remembered in the newest: a plate's factors would be of two sorts."""
    shared = (
        "release.mean=forecast-clip",
        "budget.accounting=approximate",
        "release.cdf=tree",
        "budget.epsilon=40",
    )
    two = TwoWorkers(load(None, (*CITY, *shared), PURE_ENV))

    async def work(thread):
        await two.start(thread)
        await two.other_reads()
        while len(slots_sent(two.broker, NormChunk)) < 2:
            await two.planner_reads()
            await two.other_reads()
        two.planner.parts._assignments[0].ledger = MemoryLedger(two.ledger.meta()["ledger_id"])
        with pytest.raises(PrivacyRefused, match="went back in time"):
            await two.planner_reads()
        assert slots_sent(two.broker, FactorChunk) < slots_sent(two.broker, NormChunk)

    run(work)


def slots_sent(broker, kind):
    """Of these slots shards have sent norms to the planner, or it has sent them factors."""
    messages = [decode_message(one.value) for log in parts_logs(broker).values() for one in log]
    return {one.slot_start for one in messages if isinstance(one, kind)}


def lose_first_slot(broker, ledger, numbers):
    """Its chunks are deleted in these shards, behind their counts, and they go on with
    `accept_loss`; the start of the slot."""
    parts = [TP(TOPICS.parts.name, shard) for shard in range(3)]
    lost = {parts[number] for number in numbers}

    async def work(thread):
        await sources_alone(Worker(broker, ledger, thread, SETTINGS))
        one = Worker(broker, ledger, thread, SETTINGS)
        await one.parts.assign(lost)
        for pings in [list(broker.logs[tp]) for tp in sorted(lost)]:
            await one.parts.process(pings)
        slot = decode_message(broker.logs[parts[0]][0].value).slot_start
        for tp in sorted(lost):
            log = [(m.offset, decode_message(m.value)) for m in broker.logs[tp]]
            chunks = [(offset, one) for offset, one in log if isinstance(one, PingChunk)]
            gone = max(offset for offset, one in chunks if one.slot_start == slot)
            assert chunks[0][0] < gone < chunks[-1][0]
            ends = [m for m in broker.logs[parts[0]] if b"counts-end" in m.value]
            assert any(decode_message(m.value).shard == tp.partition for m in ends)
            broker.begins[tp] = gone + 1
        rest, again = (
            Worker(broker, ledger, thread, SETTINGS, accept_loss=loss) for loss in (False, True)
        )
        await again.parts.assign(lost)
        await rest.parts.assign(set(parts) - lost)
        at = {tp: broker.begins[tp] for tp in parts}
        for _ in range(20):
            for tp in parts:
                if batch := broker.logs[tp][at[tp] :]:
                    at[tp] += len(batch)
                    await (again if tp in lost else rest).parts.process(batch)
        return slot

    return run(work)


def test_what_a_shard_lost_is_not_waited_for():
    """It goes on, and so does the planner elsewhere."""
    broker, ledger = city(), MemoryLedger()
    lost = lose_first_slot(broker, ledger, {1})
    expected = embedded(broker, SETTINGS)
    missing = expected.releases.keys() - outcome(broker)[0].keys()
    assert missing and {int(id_.split(b"-")[1]) * 1000 for id_ in missing} == {lost}
    assert slots_of(smoothed(broker)) == slots_of(expected.smoothed)


@pytest.fixture
def asked_early(limits):
    """Ten plates are enough to ask the city's hour, however little it can tell."""
    limits(release_city, HOUR_PLATES_MIN=2, HOUR_DEVIATION_MAX=1e6)


@pytest.mark.usefixtures("asked_early")
def test_of_a_shard_that_is_lost_plates_take_no_part_in_the_city_s_hour():
    """They are charged, and the answer is that of the others: less sure."""
    broker, ledger = city(), MemoryLedger()
    first = lose_first_slot(broker, ledger, {2})
    ours, theirs = (hours_of(one) for one in (ledger, embedded(broker, SETTINGS).ledger))
    assert ours.keys() == theirs.keys() and len(ours) > 2 and first == min(ours)
    assert ours[first].usual_deviation_kmh > 1.05 * theirs[first].usual_deviation_kmh
    assert ours[first].plates < theirs[first].plates
    assert ledger.verify() == []


@pytest.mark.usefixtures("asked_early")
def test_where_every_shard_lost_a_slot_nothing_tells_its_city_and_the_next_is_planned():
    broker, ledger = city(), MemoryLedger()
    first = lose_first_slot(broker, ledger, {0, 1, 2})
    hours = hours_of(ledger)
    assert len(hours) > 2 and min(hours) == first
    assert [start for start, answer in hours.items() if answer is None] == [first]
    starts = {Id.of(id_.decode()).start * 1000 for id_ in outcome(broker)[0]}
    assert starts == hours.keys() - {first}
    assert ledger.verify() == []


def hours_of(ledger):
    """What cities told before their HATs, by the starts of their slots; None where nothing did."""
    return {
        1000 * Id.of(one.release_id).start: one.payload
        and CityHour.of_ledger(one.release_id, one.payload)
        for one in ledger.entries()
        if kind_of(one.release_id) == CITY_HOUR
    }


def test_withdrawals_are_published_once_by_their_shard_and_nothing_is_learnt_from_their_hats():
    """They come with the next slot of the shard, into the topic of releases alone; the planner
    forgets what it knew."""

    async def work(thread):
        worker = Worker(broker, ledger, thread, SETTINGS, once=True)
        await sources_alone(worker)
        await worker.parts.assign(set(parts))
        at = dict.fromkeys(parts, 0)
        while any(at[tp] < len(broker.logs[tp]) for tp in parts):
            for tp in parts:
                batch = broker.logs[tp][at[tp] : at[tp] + 1]
                at[tp] += len(batch)
                if batch:
                    await worker.parts.process(batch)
            if len(slots_of(smoothed(broker))) == 2 and not withdrawn:
                shown = Release.decode(next(iter(outcome(broker)[0].values())))
                withdrawn.extend(
                    id_ for id_ in ids_at(ledger, shown.hat.slot_start) if id_ not in withdrawn
                )
                before.extend(smoothed(broker))
                new = withdraw(
                    ledger, withdrawn, "a wrong unit", "2024-01-02T00:00:00+00:00", "test"
                )
                assert new == len(withdrawn)

    broker, ledger = city(), MemoryLedger()
    parts, withdrawn, before = [TP(TOPICS.parts.name, shard) for shard in range(3)], [], []
    run(work)
    marks = [
        (tp, one)
        for tp, log in broker.logs.items()
        for one in log
        if b"udp-stream/withdrawal/1" in one.value
    ]
    found = [Withdrawal.decode(one.value) for _, one in marks]
    assert sorted(one.withdraws for one in found) == sorted(withdrawn) and len(withdrawn) > 2
    assert {tp.topic for tp, _ in marks} == {TOPICS.release.name}
    assert not list(unpublished_withdrawals(ledger)) and ledger.verify() == []
    forecaster = Forecaster(
        SETTINGS.calendar.slots, SETTINGS.policy.max_speed, "test", SETTINGS.policy.shapes
    )
    history, later = LedgerHistory(ledger), smoothed(broker)[len(before) :]
    slots = sorted(
        {
            Id.of(entry.release_id).slot
            for entry in ledger.entries()
            if entry.release_id.startswith("8")
        }
    )
    estimates = [forecaster.smoothed((1000 * start, 1000 * end), history) for start, end in slots]
    anew = [Smoothed.encode(one) for of_slot in estimates for one in of_slot]
    assert len(later) > 10 and set(later) <= set(anew)
    assert not set(before[: len(withdrawn)]) & set(anew)


def test_a_withdrawal_is_published_by_the_worker_that_has_the_shard_of_its_hat():
    """Another would publish it beside it, and readers have it twice."""
    two = TwoWorkers()
    withdrawn = []

    def published():
        log = two.broker.logs[TP(TOPICS.release.name, 0)]
        return sum(b"udp-stream/withdrawal/1" in one.value for one in log)

    async def work(thread):
        await two.start(thread)
        for _ in range(9):
            before = published()
            await two.planner_reads()
            assert published() == before
            await two.other_reads()
            if two.smoothed() and not withdrawn:
                released = [Release.decode(one) for one in outcome(two.broker)[0].values()]
                cells = cells_of(two.broker, two.theirs.partition)
                hats = [one.release_id for one in released if one.hat.cell in cells]
                withdrawn.append(hats[0])
                when = "2024-01-02T00:00:00+00:00"
                assert withdraw(two.ledger, withdrawn, "a wrong unit", when, "test") == 1

    run(work)
    assert published() == 1


def ids_at(ledger, slot_start):
    payloads = [
        entry.payload
        for entry in ledger.entries()
        if entry.release_id.startswith("8") and entry.payload
    ]
    return [
        record.release_id
        for record in map(Release.decode, payloads)
        if record.hat.slot_start == slot_start
    ]
