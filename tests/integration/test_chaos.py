"""Chaos over real services: nothing is lost, drawn twice or charged twice, whatever dies; and the checks that say so
have teeth. `make chaos` does the same at length."""

import random
import time
from contextlib import ExitStack
from itertools import count

import pytest

from tests.chaos.adversary import Adversary
from tests.chaos.checks import violations
from tests.chaos.city import AMPLE, Profile, build, ground
from tests.chaos.run import play, synthetic_day
from tests.runtime.harness import fleet_log

SECONDS = 60
SETTLED_S = 12.0
SECONDS_MAX = 60
FAUST_COMMITS_S = 3.5
"""Its interval, 2.8 s, and some."""

ONE_SHARD = Profile("one shard, ample budget", 1, 1000.0)
DATABASES = count(1)
"""Of the Redis that all share, one for each city."""


@pytest.fixture(scope="module")
def on():
    with ground() as made:
        yield made


@pytest.mark.timeout(600)
def test_a_day_of_chaos_violates_nothing(on, tmp_path):
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    done = play(on, tmp_path, synthetic_day(seed, buses=40), AMPLE, seed=seed, seconds=SECONDS)
    print(done.told())
    assert done.violations == []
    assert done.kills >= 5 and done.before_quiet > done.hats / 4  # else it proves little


@pytest.fixture
def scene(on, tmp_path):
    """Makes a city whose workers have a fault, or none, and somebody to do them harm."""
    with ExitStack() as stack:

        def make(fault, places=2):
            city = build(on, tmp_path, fleet_log(clean=True), ONE_SHARD, places=places, session_s=3, fault=fault,
                         database=next(DATABASES))  # fmt: skip
            workers = stack.enter_context(city.workers())
            return city, workers, Adversary(city, workers, random.Random(0), places)

        yield make


def seen_in_the_end(city, workers, expected):
    """The violations, once all is done, or nothing more happens."""
    done, since = city.done(), time.monotonic()
    while not expected.keys() <= done and time.monotonic() < since + SETTLED_S:
        time.sleep(0.5)
        if city.done() != done:
            done, since = city.done(), time.monotonic()
    return workers.end() + violations(city.collect(expected), strictly_once=city.settings.kafka.transactions)


def until(holds):
    deadline = time.monotonic() + SECONDS_MAX
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def ambush(adversary, call, answered):
    deadline = time.monotonic() + SECONDS_MAX
    while (caught := adversary.ambush(call, answered)) is None:
        assert time.monotonic() < deadline
    return caught


@pytest.mark.parametrize("fault", [None, "last_writer_wins"])
def test_a_worker_that_returns_from_the_dead_records_nothing(scene, fault):
    """Paused with its record on the way, replaced, and let go on: only the ledger stands in its way."""
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
    """Killed before it hears that it has charged: the next one asks again."""
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


@pytest.mark.parametrize("fault", [None, "commits_what_is_read", "acks_of_faust"])
def test_a_worker_that_dies_over_an_open_slot_loses_nothing(scene, fault):
    """Killed after a commit that a slot's close brought, when the next slot's first pings are read."""
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


@pytest.mark.parametrize("silent", ["broker", "redis"])
def test_a_worker_that_nobody_answers_ends(on, scene, silent):
    """Its connections stay, and nothing comes through them: it does not wait for ever, it ends to be started again."""
    city, workers, adversary = scene(None, places=1)
    city.flags["kafka.stuck_timeout"] = "5s"
    city.tell_time()
    city.feed(0)
    workers.want(city.places[0], True)
    caught = ambush(adversary, "admit", answered=True)
    if silent == "broker":
        on.broker_link.stall(SECONDS_MAX)
        caught.go_on()
    until(lambda: any("status 4: nothing was done for" in how for how in workers.endings))
    on.broker_link.stall(0)
    caught.lose()
    until(lambda: city.expected().keys() <= city.done())
