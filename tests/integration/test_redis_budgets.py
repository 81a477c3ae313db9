"""No sequence of charges ends above a budget in Redis: adaptive or adversarial, from a hundred writers."""

from functools import partial
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.contract.budgets import Adversary, greedy_crowd
from udp_stream.ledgers.redis import open_redis_ledger


def opener(url):
    return partial(open_redis_ledger, url, prefix=f"{{udp-{uuid4()}}}")


@pytest.mark.parametrize(
    ("writers", "examples", "steps"), [(8, 3, 10), pytest.param(100, 10, 20, marks=pytest.mark.soak)]
)
def test_no_sequence_of_charges_exceeds_a_budget_and_all_that_fits_is_charged(redis_url, writers, examples, steps):
    class InRedis(Adversary):
        def __init__(self):
            super().__init__()
            self.writers, self.open = writers, opener(redis_url)

        def opened(self):
            return self.open()

    asked = settings(
        max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(InRedis, settings=asked)


def test_a_hundred_greedy_writers_at_once_spend_each_budget_and_no_more(redis_url):
    greedy_crowd(opener(redis_url))
