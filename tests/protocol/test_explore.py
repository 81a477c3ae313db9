"""The protocols of sources, shards and planner, in every order; and faults that are planted in them
are found."""

import random
from itertools import product

import pytest

from tests.forms import long_but, long_rows, soaked
from tests.protocol.explore import Planted, Violation, World, explore, walk


@pytest.mark.parametrize("whole_batches", long_but([True], [True, False]))
def test_without_a_fault_every_order_ends_in_four_releases(whole_batches):
    found = explore(World(whole_batches=whole_batches), faults=0)
    assert found.states > 2000 and found.ends > 1


@pytest.mark.timeout(900)
@pytest.mark.parametrize("once", [*long_but([], [True]), *soaked([False])])
def test_with_a_fault_anywhere_every_order_ends_the_same(once):
    found = explore(World(once=once), faults=1)
    assert found.states > 300_000 and found.ends > 300


def walks(world, faults, seeds):
    return [walk(world, faults, random.Random(seed)) for seed in seeds]


@pytest.mark.parametrize(
    ("whole_batches", "once", "walked"),
    long_rows([(True, True, 5)], [(True, True, 5), *product([True, False], [True, False], [15])]),
)
def test_with_up_to_three_faults_random_orders_end_the_same(once, whole_batches, walked):
    faults = walks(World(once, whole_batches), 3, range(walked))
    assert faults.count(3) > walked // 7


PLANTED = {
    "commits too early": Planted(commits_too_early=True),
    "plan not remembered": Planted(forgets_plans=True),
    "fence ignored": Planted(ignores_fences=True),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults_are_found(name):
    with pytest.raises(Violation):
        walks(World(planted=PLANTED[name]), 3, range(200))
