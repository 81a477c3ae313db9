"""Budgets of several days, paced day by day: whatever order slots come in, and whatever call a
process dies at, over memory, SQLite and Redis."""

from contextlib import suppress

import numpy as np
import pytest

from tests.contract import add_remove
from tests.contract.pipeline import Opening
from tests.failing import Died
from tests.unit import test_flow as flow
from tests.unit.test_flow import START, a_context, slot
from udp_stream.ledger.port import Ledger
from udp_stream.release.charge import ReleaseContext, with_forecaster

HOUR = 3_600_000
FIRST = START - 10 * HOUR - 6 * 24 * HOUR
"""Midnight of a period's first day, of seven and of thirty."""

AROUND = "release.mean=forecast-clip", "release.mean_epsilon=0.6", "release.cdf_epsilon=0"
WEEK = "budget.period=7d", "budget.epsilon=7"
MONTH = "budget.period=30d", "budget.epsilon=1", "pings.interval=60s"


def _swap_values(seed: int) -> ReleaseContext:
    return with_forecaster(a_context(*AROUND, *WEEK, seed=seed))


def _automatic(seed: int) -> ReleaseContext:
    shares = "release.mean=levy", "release.mean_epsilon=auto", "release.cdf_epsilon=0"
    return a_context(*shares, *WEEK, seed=seed)


def _add_remove(seed: int) -> ReleaseContext:
    return add_remove.context_of(*MONTH, seed=seed)


ROADS = {
    "swap-values": (_swap_values, flow.run, True),
    "automatic": (_automatic, flow.run, False),
    "add-remove": (_add_remove, add_remove.run, True),
}
"""Contexts by seed, how their pipeline is driven, and whether days are let out one by one."""


def never_above_its_part(new_ledger: Opening, road: str, schedules: int = 2) -> None:
    """No plate is charged above the period's budget, nor by the end of a day above the part of the
    days so far; what a day leaves is spent later."""
    context_of, run, by_day = ROADS[road]
    reached = 0.0
    for seed in range(schedules):
        rng = np.random.default_rng(seed)
        opened, newest = new_ledger(), 0
        days = np.sort(rng.choice(7, 3, replace=False)) if seed else np.arange(3)
        for number, day in enumerate(np.repeat(days, 4).tolist()):
            # Now and then a slot of an earlier day comes late.
            which = int(rng.integers(0, day + 1)) if rng.random() < 0.15 else day
            newest = max(newest, which)
            hour = 20 + number % 4 if rng.random() < 0.8 else int(rng.integers(0, 24))
            start = FIRST + (24 * which + hour) * HOUR
            for dies_at in (int(rng.integers(0, 12)), None):
                contents = slot(number, start=start, pings=900)
                answered = bool(rng.integers(2))
                with opened() as ledger, suppress(Died):
                    run(ledger, context_of(number), contents, dies_at, answered=answered)
                with opened() as ledger:
                    budget, spent, paced = _spent(ledger, context_of(0), contents[0].plates)
                    assert spent.max() <= budget, (seed, number)
                    part = budget * (newest + 1) // paced
                    assert not by_day or spent.max() <= part, (seed, number, newest)
                    reached = max(reached, spent.max() / part)
        with opened() as ledger:
            assert ledger.verify() == [] and len(ledger.periods()) == 1
    assert reached > 0.5 or not by_day, "budgets are put to the test"


def _spent(
    ledger: Ledger, context: ReleaseContext, plates: tuple[bytes, ...]
) -> tuple[int, np.ndarray, int]:
    found = [sum(ledger.charged_by_period(plate).values()) for plate in plates]
    policy = context.policy
    return policy.budget_nano, np.array(found), policy.days


CHECKS = [pytest.param(road, id=road.replace("-", "_")) for road in ROADS]
