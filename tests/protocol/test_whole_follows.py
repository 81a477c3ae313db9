"""Every order where plans follow from releases, as means around forecasts have it: planned after
the last is learnt."""

from itertools import product

import pytest

from tests.forms import long_rows, soaked_rows
from tests.protocol.explore import Violation
from tests.protocol.test_follows import as_soon_as_it_is_sent, without_released
from tests.protocol.test_whole import AT_ONCE, ONE_SLOT, PLANTED
from tests.protocol.whole import Whole
from udp_stream.shuffle.protocol import PlannerState, PlanSlot, ShardProtocol

FEW = (2, 1, 1, 1, 2_000), (2, 2, 1, 1, 4_000)
MORE = (2, 2, 1, 2, 240_000), (1, 2, 2, 1, 85_000)
SOAKED = (2, 2, 2, 1, 640_000), (2, 1, 1, 3, 1_300_000), (1, 2, 1, 3, 2_400_000)
"""Sources, slots, reads, faults, states: 10 and 12 CPU s, and 38, 22 and 50."""

FOUND_BY_ONE = [name for name, (_, needed) in PLANTED.items() if needed == 1]


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("sources", "slots", "reads", "faults", "states"),
    [*long_rows(FEW, [*FEW, *MORE]), *soaked_rows(SOAKED)],
)
def test_with_faults_anywhere_every_order_ends_with_every_slot_learnt(
    sources, slots, reads, faults, states
):
    found = Whole(slots=slots, reads=reads, follows=True, sources=sources).explore(faults)
    assert len(found.ends) == 1 and sum(found.states) > states
    assert sum(name.startswith("learnt ") for (end,) in [found.ends] for name, _ in end) == slots


@pytest.mark.parametrize(
    ("slots", "name"),
    [
        *long_rows(
            [(1, name) for name in FOUND_BY_ONE],
            [*product([1], PLANTED), *product([2], FOUND_BY_ONE)],
        ),
        *soaked_rows((2, name) for name in PLANTED if name not in FOUND_BY_ONE),
    ],
)
def test_a_planted_fault_is_found_with_as_many_faults_as_it_needs_and_no_fewer(slots, name):
    planted, needed = PLANTED[name]
    Whole(slots=slots, reads=1, follows=True, planted=planted).explore(needed - 1)
    with pytest.raises(Violation):
        Whole(slots=slots, reads=1, follows=True, planted=planted).explore(needed)


def without_waiting(self):
    """A planner that plans the next slot before the releases of the one before are there."""
    for start in self.counts.due()[:1]:
        return PlanSlot(start, self.counts.collect(start))
    return None


def for_one_shard_alone(self, released=PlannerState.slot_to_learn):
    """It takes what the first shard says for what all say."""
    before, self._released_ms = self._released_ms, [self._released_ms[0]] * len(self._released_ms)
    found = released(self)
    self._released_ms = before
    return found


def before_it_is_learnt(
    self, released=None, learnt=None, answered=None, checkpoint=ShardProtocol._checkpoint
):
    """A planner whose checkpoint moves once plans are sent: who takes over does not know which slot
    to wait for."""
    slot = self._planner and self._planner._planned
    return checkpoint(self, released, slot.start if slot and slot.is_sent else learnt, answered)


NOT_RECORDED = "is not recorded, and what follows on it begins"
WRONG = {
    "plans without waiting": (PlannerState, "slot_to_plan", without_waiting, 0, NOT_RECORDED),
    "learns what is not released": (
        PlannerState,
        "slot_to_learn",
        as_soon_as_it_is_sent,
        0,
        NOT_RECORDED,
    ),
    "waits for one shard alone": (
        PlannerState,
        "slot_to_learn",
        for_one_shard_alone,
        0,
        NOT_RECORDED,
    ),
    "commits before it has learnt": (
        ShardProtocol,
        "_checkpoint",
        before_it_is_learnt,
        1,
        "slots to be learnt, got 1",
    ),
    "waits for ever": (ShardProtocol, "_send", without_released, 0, "slots to be learnt, got 0"),
}


@pytest.mark.parametrize("is_reduced", [True, False])
@pytest.mark.parametrize("name", WRONG)
def test_a_planner_that_does_not_wait_as_it_should_is_found(planted, name, is_reduced):
    owner, method, wrong, needed, told = WRONG[name]
    planted(owner, **{method: wrong})
    if needed:
        Whole(**AT_ONCE, follows=True, is_reduced=is_reduced).explore(needed - 1)
    with pytest.raises(Violation, match=told):
        Whole(**AT_ONCE, follows=True, is_reduced=is_reduced).explore(needed)


@pytest.mark.parametrize(("at", "faults"), [(ONE_SLOT, 0), (AT_ONCE, 0), (ONE_SLOT, 1)])
def test_without_reductions_the_ends_are_the_same_and_the_states_more(at, faults):
    reduced, plain = (
        Whole(**at, follows=True, is_reduced=one).explore(faults) for one in (True, False)
    )
    assert reduced.ends == plain.ends
    assert sum(plain.states) > (1 + 3 * faults) * sum(reduced.states)
