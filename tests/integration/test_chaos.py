"""Chaos over real services, and faults that its checks must find. `make chaos` does the same at
length."""

import asyncio
import random
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from itertools import count

import pytest

from streams.kafka import records_of
from streams.topics import topics_of
from tests.chaos.adversary import Adversary
from tests.chaos.checks import violations
from tests.chaos.city import AMPLE, FORECASTS, IN_RHO, SHARED_CLIPS, Profile, build, ground
from tests.chaos.run import play, synthetic_day
from tests.chaos.store import store
from tests.chaos.strangers import END_S, Strangers
from tests.runtime.harness import fleet_log
from udp_stream.ledgers.opening import ledger_and_keys

SETTLED_S = 25.0
SECONDS_MAX = 60
FED_S, GUEST_S = 30.0, 3.0
FAUST_COMMITS_S = 3.5
"""Its interval, 2.8 s, and some."""

SOUND = (None, "slow_parts")
ONE_SHARD = Profile("one shard, ample budget", 1, 1000.0)
DATABASES = count()
"""Of the Redis that all share, one for each city."""


def planted(fault):
    return pytest.param(fault, marks=pytest.mark.long)


NONE_PLANTED = pytest.param(None, marks=pytest.mark.long)
"""Where a morning of chaos does the same in short, among all else."""


@pytest.fixture(scope="module")
def on():
    with ground() as made:
        yield made


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("profile", "buses", "hours", "seconds", "kills"),
    [
        (FORECASTS, 25, 3, 12, 2),
        pytest.param(AMPLE, 40, 18, 60, 5, marks=pytest.mark.soak),
        pytest.param(FORECASTS, 30, 14, 60, 5, marks=pytest.mark.soak),
        pytest.param(IN_RHO, 25, 4, 12, 2, marks=pytest.mark.soak),
        pytest.param(SHARED_CLIPS, 25, 4, 12, 2, marks=pytest.mark.long),
        pytest.param(FORECASTS, 110, 3, 12, 2, marks=pytest.mark.long),
    ],
    ids=[
        "a morning", "a day", "a day, forecast", "a morning, in rho", "a morning, clips shared in rho",
        "a morning, the city asked",
    ],
)  # fmt: skip
def test_a_day_of_chaos_violates_nothing(on, tmp_path, profile, buses, hours, seconds, kills):
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    day = synthetic_day(seed, buses, hours=hours)
    done = play(
        on,
        tmp_path,
        day,
        profile,
        seed=seed,
        seconds=seconds,
        database=next(DATABASES),
        kills=kills,
    )
    print(done.told())
    assert done.violations == []
    assert done.kills >= kills and done.before_quiet > done.hats / 4  # else it proves little
    assert any(name.startswith("stranger") for name in done.done) and done.done["ledger copied"]


@pytest.fixture
def scene(on, tmp_path):
    """Makes a city whose workers have a fault, or none, and somebody to do them harm."""
    with ExitStack() as stack:

        def make(fault, places=2, profile=ONE_SHARD, log=None):
            kept = (
                on.store
                if not profile.replicas
                else stack.enter_context(store(on.proxy, profile.replicas))
            )
            city = build(replace(on, store=kept), tmp_path, log or fleet_log(clean=True), profile, places=places,
                         session_s=3, fault=fault, database=next(DATABASES))  # fmt: skip
            workers, strangers = (
                stack.enter_context(city.workers()),
                stack.enter_context(Strangers(city, fault)),
            )
            return city, workers, Adversary(city, workers, strangers, random.Random(0), places)

        yield make


def seen_in_the_end(city, workers, expected, strangers=()):
    """The violations, once all is done, or nothing more happens: a sound worker gets the time of a
    busy machine."""
    settled_s = SECONDS_MAX if city.fault in SOUND else SETTLED_S
    done, since = city.done(), time.monotonic()
    while not expected.keys() <= done and time.monotonic() < since + settled_s:
        time.sleep(0.5)
        if (now := city.done()) != done:
            done, since = now, time.monotonic()
    seen = city.collect(expected, strangers)
    return workers.end() + violations(seen, strictly_once=city.settings.kafka.transactions)


def until(holds):
    deadline = time.monotonic() + SECONDS_MAX
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def published(city):
    records = asyncio.run(records_of(city.settings.kafka, topics_of(city.settings.kafka).release))
    return {dict(record.headers)["ce_id"].decode() for record in records}


def known(city):
    with ledger_and_keys(city.settings.ledger, accept_older=True) as (ledger, _):
        return {entry.release_id for entry in ledger.entries()}


def settled(city):
    seen = known(city)
    time.sleep(2)
    return seen == known(city) == published(city)


def ambush(adversary, call, answered):
    deadline = time.monotonic() + SECONDS_MAX
    while (caught := adversary.ambush(call, answered)) is None:
        assert time.monotonic() < deadline
    return caught


@pytest.mark.parametrize("fault", [NONE_PLANTED, planted("last_writer_wins")])
def test_a_worker_that_returns_from_the_dead_records_nothing(scene, fault):
    city, workers, adversary = scene(fault)
    city.tell_time()
    city.feed(0)
    for place in city.places:
        workers.want(place, True)
    caught = ambush(adversary, "record", answered=False)
    workers.pause(caught.victim)
    before = city.done()
    until(lambda: city.done() - before)
    caught.go_on()
    workers.resume(caught.victim)
    found = seen_in_the_end(city, workers, city.expected())
    assert found == [] if fault is None else any(one.startswith("payloads") for one in found), found


def test_a_worker_that_dies_of_its_charge_charges_once(scene):
    city, workers, adversary = scene("charges_again", places=1)
    city.tell_time()
    city.feed(0)
    workers.want(city.places[0], True)
    caught = ambush(adversary, "admit", answered=True)
    workers.kill(caught.victim)
    caught.lose()
    until(city.done)
    found = seen_in_the_end(city, workers, city.expected())
    assert any(one.startswith("ledger") for one in found), found


@pytest.mark.parametrize(
    "fault", [NONE_PLANTED, planted("commits_what_is_read"), planted("acks_of_faust")]
)
def test_a_worker_that_dies_over_an_open_slot_loses_nothing(scene, fault):
    city, workers, _ = scene(fault, places=1)
    (place,), half = city.places, len(city.messages) // 2
    workers.want(place, True)
    city.feed(0, city.messages[:half])
    until(city.done)
    time.sleep(FAUST_COMMITS_S)
    workers.kill(place)
    city.tell_time()
    city.feed(0, city.messages[half:])
    found = seen_in_the_end(city, workers, city.expected())
    assert found == [] if fault is None else any(one.startswith("counts") for one in found), found


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("slow_parts", marks=pytest.mark.long),
        pytest.param("keeps_what_waits", marks=pytest.mark.soak),
    ],
)
def test_a_rebalance_while_batches_wait_loses_nothing(scene, fault):
    """A guest comes and goes while each batch that closes a slot is slow. Busy machines find it too
    seldom: a soak."""
    city, workers, _ = scene(fault, profile=AMPLE, log=synthetic_day(0, 25, hours=3))
    host, guest = city.places
    workers.want(host, True)
    until(lambda: host.serving)
    feeding = threading.Thread(target=city.feed, args=(FED_S,))
    feeding.start()
    while feeding.is_alive():
        workers.want(guest, True)
        until(lambda: guest.serving)
        time.sleep(GUEST_S)
        workers.want(guest, False)
        until(lambda: not guest.alive)
    feeding.join()
    city.tell_time()
    for place in city.places:
        workers.kill(place)
        workers.want(place, True)
    found = seen_in_the_end(city, workers, city.expected())
    assert found == [] if fault in SOUND else any(one.startswith("counts") for one in found), found


@pytest.mark.parametrize("silent", ["broker", pytest.param("redis", marks=pytest.mark.long)])
def test_a_worker_that_nobody_answers_ends(on, scene, silent):
    city, workers, adversary = scene(None, places=1)
    city.stuck_s = 5.0
    city.tell_time()
    city.feed(0)
    workers.want(city.places[0], True)
    caught = ambush(adversary, "admit", answered=True)
    if silent == "broker":
        on.broker_link.stall(SECONDS_MAX)
        caught.go_on()
    until(lambda: any("status 4: no progress for" in how for how in workers.endings))
    on.broker_link.stall(0)
    caught.lose()
    until(lambda: city.expected().keys() <= city.done())


@pytest.mark.parametrize("fault", [None, planted("looks_at_no_mark")])
def test_a_worker_publishes_nothing_from_a_ledger_that_is_set_back(scene, tmp_path, fault):
    city, workers, _ = scene(fault, places=1)
    kept, third = city.ground.store, len(city.messages) // 3
    workers.want(city.places[0], True)
    city.feed(0, city.messages[:third])
    until(city.done)
    before = city.done()
    kept.copy_to(tmp_path / "older")
    city.feed(0, city.messages[third : 2 * third])
    until(lambda: city.done() - before)
    until(lambda: settled(city))  # else what is published next may be what the newest ledger knows
    workers.older, newest = True, known(city)
    kept.put_in_place(tmp_path / "older", aside=tmp_path / "newest")
    city.feed(0, city.messages[2 * third :])
    until(lambda: workers.refused or (fault and published(city) - newest))
    with workers.stopped():
        kept.put_in_place(tmp_path / "newest", aside=tmp_path / "set-back")
        workers.older = False
    city.tell_time()
    found = seen_in_the_end(city, workers, city.expected())
    assert found == [] if fault is None else any(one.startswith("ledger") for one in found), found


@pytest.mark.parametrize("fault", [NONE_PLANTED, planted("takes_any_ledger")])
def test_a_stranger_is_refused_while_others_work_and_as_they_start(scene, fault):
    city, workers, adversary = scene(fault, places=1)
    workers.want(city.places[0], True)
    until(workers.serving)
    workers.kill(city.places[0])
    adversary.strangers.on_another_ledger()
    if fault is None:
        adversary.strangers.with_another_key(made_before=True)
    came = adversary.strangers.seen(END_S if fault is None else SETTLED_S)
    city.feed(0)
    city.tell_time()  # not before: where a feed has to wait for a second, a tick makes its rest late
    workers.kill(city.places[0])
    found = seen_in_the_end(city, workers, city.expected(), came)
    if fault is None:
        assert found == [] and [one.status for one in came] == [5, 5]
    else:
        assert any(one.startswith("strangers") and "was serving" in one for one in found), found


def test_a_failover_in_the_middle_of_a_call_loses_nothing(scene):
    city, workers, adversary = scene(None, places=1, profile=replace(ONE_SHARD, replicas=1))
    city.tell_time()
    city.feed(0)
    workers.want(city.places[0], True)
    caught = ambush(adversary, "record", answered=False)
    assert adversary.fail_over()
    caught.lose()
    until(city.done)
    assert adversary.fail_over()
    assert seen_in_the_end(city, workers, city.expected()) == []
