"""Means around forecasts on a real broker: plans follow from releases, and every worker comes to the same ones."""

import random
import time

import pytest

from tests.integration.deployment import agree, worker
from tests.runtime.harness import fleet_log
from udp_stream.release import record as release

FORECASTS = {"mean": "forecast-clip", "epsilon": "1.0", "cdf": "0", "budget": "9.0", "partitions": 8}


IN_RHO = {"accounting": "approximate", "epsilon": '"auto"'}


@pytest.mark.parametrize(
    ("shards", "workers", "settings"),
    [(3, 2, {}), pytest.param(4, 4, {}, marks=pytest.mark.long), pytest.param(2, 2, IN_RHO, marks=pytest.mark.long)],
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


def require_forecasts(payloads):
    """Some releases are around forecasts that follow from other releases."""
    made = [one for one in map(release.decode, payloads.values()) if one.mean is not None]
    assert sum(one.mean.mechanism == "forecast-clip" for one in made) > 10
    assert len({one.hat.slot_start for one in made}) > 3


@pytest.mark.long
@pytest.mark.parametrize("settings", [{}, IN_RHO], ids=["pure", "in rho, with shared clips"])
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
