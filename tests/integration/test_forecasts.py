"""Means around forecasts on a real broker: plans follow from releases, and every worker comes to the same ones."""

import random
import time

import pytest

from tests.integration.deployment import agree, worker
from tests.runtime.harness import fleet_log
from udp_stream.release import record as release

FORECASTS = {"mean": "forecast-clip", "epsilon": "1.0", "cdf": "0", "budget": "9.0", "partitions": 8}


IN_RHO = {"accounting": "approximate", "epsilon": '"auto"'}
CITY_SUMS = {"city": "on", "budget": "40.0"}


@pytest.mark.parametrize(
    ("shards", "workers", "settings"),
    [
        pytest.param(1, 1, {}, marks=pytest.mark.long),
        (3, 2, {}),
        (3, 2, CITY_SUMS),
        pytest.param(4, 4, {}, marks=pytest.mark.long),
        pytest.param(1, 1, IN_RHO, marks=pytest.mark.long),
        pytest.param(2, 2, IN_RHO, marks=pytest.mark.long),
        pytest.param(4, 4, IN_RHO, marks=pytest.mark.long),
        pytest.param(1, 1, CITY_SUMS, marks=pytest.mark.long),
        pytest.param(3, 2, CITY_SUMS | IN_RHO | {"budget": "20.0"}, marks=pytest.mark.long),
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
        here.wait_for_smoothed(len(estimates), *running)
    assert sorted(here.smoothed()) == sorted(estimates)
    require_city_sums(here, settings)


def require_city_sums(here, settings):
    """The stream has asked the city in the slots in which the embedded runtime did, and was told the same."""
    with here.ledger() as (ledger, _), here.embedded_ledger() as (embedded, _):
        told, expected = city_sums(ledger), city_sums(embedded)
    assert told == expected and None not in told.values()
    assert len(told) >= 2 if settings.get("city") else not told


def city_sums(ledger):
    return {one.release_id: one.payload for one in ledger.entries() if release.kind_of(one.release_id) == release.CITY}


def require_forecasts(payloads):
    """Some releases are around forecasts that follow from other releases."""
    made = [one for one in map(release.decode, payloads.values()) if one.mean is not None]
    assert sum(one.mean.mechanism == "forecast-clip" for one in made) > 10
    assert len({one.hat.slot_start for one in made}) > 3


@pytest.mark.long
@pytest.mark.parametrize(
    "settings",
    [{}, IN_RHO, CITY_SUMS],
    ids=["pure", "in rho, with shared clips", "city sums"],
)
def test_killed_at_any_moment_and_in_the_middle_of_the_day_plans_and_estimates_are_the_same(
    city, redis_server, settings
):
    """On a ledger with fences, over two shards, with two workers that come and go."""
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
            here.wait_for_smoothed(len(estimates), last)
    assert sorted(here.smoothed()) == sorted(estimates)
    require_city_sums(here, settings)
