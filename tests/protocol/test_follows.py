"""Where plans follow from releases: every order of what two workers can do ends, and no slot is
planned too early."""

import random

import pytest

from tests.forms import changed, long_but, long_rows
from tests.protocol.explore import Violation, World, explore, walk
from udp_stream.shuffle.protocol import LearnSlot, PlannerState, PlanSlot, ShardProtocol


class Following(World):
    """The planner plans a slot once all earlier ones are released, and learns each of them: said in
    `published`."""

    follows = True

    def plan(self, actor, state, fault):
        step = self.locals.objects[actor.local].next()
        assert isinstance(step, PlanSlot)
        self.require_recorded(state.ledger, step.start)
        return super().plan(actor, state, fault)

    def successors(self, state):
        self.without = frozenset() if state.faults else frozenset({"_next", "checkpoint"})
        for i, actor in enumerate(state.actors):
            if self.kind(i, actor, state) == "LearnSlot":
                yield self._learn(i, actor, state)
                yield from self._faults(state, state.owners[i % 2])
                return
        yield from super().successors(state)

    def _learn(self, i, actor, state):
        """Estimates and checkpoint are one transaction."""
        step = self.locals.objects[actor.local].next()
        assert isinstance(step, LearnSlot)
        self.require_recorded(state.ledger, step.end_ms)
        to = self.checkpoints.number(self.locals.fresh(actor.local).publishing(step))
        after = self._local(actor, "learnt", lambda protocol: protocol.learnt(step))
        published = self._published(state.published, (self.learnt(step.start),))
        return self._with(changed(self._committed(state, i, (to,)), published=published), i, after)


@pytest.mark.parametrize("whole_batches", long_but([True], [True, False]))
def test_without_a_fault_every_order_ends_in_four_releases_and_two_slots_learnt(whole_batches):
    assert explore(Following(whole_batches=whole_batches), faults=0).ends >= 1


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_with_a_fault_anywhere_every_order_ends_the_same():
    assert explore(Following(), faults=1).ends > 100


SEEDS = range(30)
FEW = (0, 1, 2, 3, 26, 27)
"""Among them those that find an owner of before who is not fenced."""


@pytest.mark.parametrize(
    ("whole_batches", "seeds"),
    long_rows([(True, FEW)], [(True, FEW), (True, SEEDS), (False, SEEDS)]),
)
def test_with_up_to_three_faults_random_orders_end_the_same(whole_batches, seeds):
    world = Following(whole_batches=whole_batches)
    assert [walk(world, 3, random.Random(seed)) for seed in seeds].count(3) > len(seeds) // 14


def as_soon_as_it_is_sent(self):
    """A planner that waits for no shard."""
    slot = self._planned
    return LearnSlot(slot.start, slot.end_ms) if slot and slot.is_sent else None


def without_released(self, send=ShardProtocol._send):
    """A shard that says nothing of what it released."""
    self._released_sent_ms = max(self._released_sent_ms, self._pings.clear_ms)
    return send(self)


@pytest.mark.parametrize(
    ("owner", "name", "wrong", "told"),
    [
        (PlannerState, "slot_to_learn", as_soon_as_it_is_sent, "is not recorded, and what follows"),
        (ShardProtocol, "_send", without_released, None),
    ],
)
def test_a_planner_that_does_not_wait_and_one_that_waits_for_ever_are_found(
    planted, owner, name, wrong, told
):
    planted(owner, **{name: wrong})
    with pytest.raises(Violation, match=told):
        explore(Following(), faults=0)
