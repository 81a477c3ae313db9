"""Means around forecasts on a real broker: plans follow from releases, and every worker comes to
the same ones."""

import random
import signal
import time

import pytest

from tests.forms import long_but, long_rows, soaked_rows
from tests.integration.deployment import agree, worker
from tests.integration.seeded_worker import UNDERPAID
from tests.runtime.harness import fleet_log
from udp_stream.ledger.ids import CITY, CITY_HOUR, kind_of
from udp_stream.release import record as release

FORECASTS = {
    "mean": "forecast-clip",
    "epsilon": "1.0",
    "cdf": "0",
    "budget": "9.0",
    "partitions": 8,
}


IN_RHO = {"accounting": "approximate", "epsilon": '"auto"'}


@pytest.mark.parametrize(
    ("shards", "workers", "settings"),
    [
        (3, 2, {}),
        pytest.param(4, 4, {}, marks=pytest.mark.soak),
        pytest.param(2, 2, IN_RHO, marks=pytest.mark.long),
    ],
)
def test_both_runtimes_release_and_estimate_the_same(city, shards, workers, settings):
    here = city(fleet_log(clean=True), shards=shards, **FORECASTS | settings)
    here.feed()
    _, _, estimates = here.embedded_smoothed()
    with agree(here) as (stack, expected):
        require_forecasts(expected)
        running = [stack.enter_context(worker(here, f"worker{i}")) for i in range(workers)]
        here.wait_for(expected, *running)
        here.wait_for_number(here.topics.smoothed, len(estimates), *running)
    assert sorted(here.smoothed()) == sorted(estimates)


@pytest.mark.parametrize(
    ("transactions", "point"),
    [
        *long_rows([], [("true", "estimates made"), ("false", "estimates published")]),
        *soaked_rows([("true", "estimates published"), ("false", "estimates made")]),
    ],
)
def test_no_estimate_is_lost_with_the_worker_that_has_it(point, transactions, city):
    here = city(fleet_log(clean=True), shards=2, transactions=transactions, **FORECASTS)
    here.feed()
    _, _, estimates = here.embedded_smoothed()
    with agree(here) as (stack, expected):
        with worker(here, stop=f"SIGKILL@{point}@2") as process:
            assert process.wait(60) == -signal.SIGKILL
        last = stack.enter_context(worker(here))
        here.wait_for(expected, last)
        here.wait_for_number(here.topics.smoothed, len(estimates), last)
    assert sorted(here.smoothed()) == sorted(estimates)


def require_forecasts(payloads):
    made = [one for one in map(release.Release.decode, payloads.values()) if one.mean is not None]
    assert sum(one.mean.mechanism == "forecast-clip" for one in made) > 10
    assert len({one.hat.slot_start for one in made}) > 3


@pytest.fixture
def asking(city):
    here = city(
        fleet_log(buses=200, hours=0.5, clean=True),
        shards=2,
        **FORECASTS | IN_RHO | {"budget": "40.0"},
    )
    text = here.config.read_text()
    for old, new in {
        'cdf = "tree"\ncdf_epsilon = 0\n': 'cdf = "auto"\n',
        "resolution = 7": "resolution = 8",
    }.items():
        text = text.replace(old, new)
    here.config.write_text(text)
    here.feed()
    return here


@pytest.mark.parametrize(
    "point",
    long_but(
        ("hour charged", "city charged"),
        ["hour charged", "hour recorded", "city charged", "city recorded"],
    ),
)
def test_killed_once_the_city_has_paid_it_plans_what_an_undisturbed_run_plans(asking, point):
    with agree(asking) as (stack, expected):
        prices = {
            one.mean.epsilon
            for one in map(release.Release.decode, expected.values())
            if one.mean is not None
        }
        assert len(prices) > 1, "some HATs are offered at a part of the price"
        with worker(asking, stop=f"SIGKILL@{point}@1") as process:
            assert process.wait(60) == -signal.SIGKILL
        recorded = {
            "hour charged": set(),
            "hour recorded": {CITY_HOUR},
            "city charged": {CITY_HOUR},
            "city recorded": {CITY_HOUR, CITY},
        }
        with asking.ledger() as (ledger, _):
            kinds = {kind_of(entry.release_id) for entry in ledger.entries() if entry.payload}
        assert kinds == recorded[point]
        asking.wait_for(expected, stack.enter_context(worker(asking)))


def test_a_worker_that_charges_too_little_for_the_city_s_answer_ends_with_status_5_and_draws_nothing(
    asking,
):
    with worker(asking, stop=UNDERPAID) as process:
        assert process.wait(60) == 5
    assert asking.releases() == {}
    with asking.ledger() as (ledger, _):
        payloads = {kind_of(entry.release_id): entry.payload for entry in ledger.entries()}
    assert payloads.keys() == {CITY_HOUR, CITY} and payloads[CITY] is None


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="pure", marks=pytest.mark.soak),
        pytest.param(IN_RHO, id="in rho, with shared clips", marks=pytest.mark.long),
    ],
)
def test_killed_at_any_moment_and_in_the_middle_of_the_day_plans_and_estimates_are_the_same(
    city, redis_server, settings
):
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    here = city(fleet_log(clean=True), shards=2, ledger=redis_server.url, **FORECASTS | settings)
    half = len(here.messages) // 2
    _, _, estimates = here.embedded_smoothed()
    with agree(here) as (_, expected):
        here.set_idle("1h")
        here.feed(here.messages[:half])
        for kill in range(4):
            with worker(here, "one") as one, worker(here, "two") as other:
                if kill == 2:
                    here.feed(here.messages[half:])
                time.sleep(dice.uniform(0.8, 3))
                for process in (one, other)[: dice.randint(1, 2)]:
                    process.kill()
                    process.wait()
        here.set_idle("1s")
        with worker(here) as last:
            here.wait_for(expected, last)
            here.wait_for_number(here.topics.smoothed, len(estimates), last)
    assert sorted(here.smoothed()) == sorted(estimates)
