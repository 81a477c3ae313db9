"""Plates that share clips among HATs of two shards: every order ends with the factors of the whole
slot on both."""

import random

import pytest

from tests.forms import long_rows
from tests.protocol.explore import FLAGS, Violation, explore, walk
from tests.protocol.test_follows import Following
from udp_stream.ledger.ids import CLIPS, kind_of
from udp_stream.mechanisms.around import WHOLE, PlateNorms
from udp_stream.planning.slot import terms_around
from udp_stream.release.charge import ReleaseContext
from udp_stream.release.forecaster import Forecaster
from udp_stream.settings import load
from udp_stream.shuffle import protocol as planner_module
from udp_stream.shuffle.protocol import PlannerState, ReleaseSlot, ShardProtocol
from udp_stream.testing import SeededEntropy


class Balls(Following):
    """Two plates, each with a HAT on either shard, far from their forecasts: both are scaled."""

    flags = (*FLAGS, "release.mean=forecast-clip", "budget.accounting=approximate", "release.cdf=tree",
             "release.cdf_epsilon=0.2", "budget.epsilon=40")  # fmt: skip
    speeds = 1, 64

    def __init__(self, *args, **kwargs):
        self.factors, self.is_one_history = {}, True
        super().__init__(*args, **kwargs)

    def begin(self, faults):
        self.factors.clear()
        return super().begin(faults)

    def context(self, settings, seed):
        policy = load(None, (*self.flags, f"release.mean_epsilon={0.3 + seed / 10}"), {}).policy

        class PlannerState:
            def plan(self, slot, balances):
                # No memory but the ledger.
                forecaster = Forecaster(settings.calendar.slots, policy.max_speed, "explored")
                forecast = forecaster.forecast(slot.counts, slot.history)
                return terms_around(
                    slot.counts, forecast, balances, slot.in_period, policy, slot.plans
                )

        return ReleaseContext(
            policy, settings.calendar, SeededEntropy(seed), "explored", planner=PlannerState()
        )

    def record(self, actor, state, fault):
        step = self.locals.fresh(actor.local).next()
        assert isinstance(step, ReleaseSlot)
        self.require_whole(step)
        return super().record(actor, state, fault)

    def require_whole(self, step):
        """The factors of the whole slot on both shards, along one way through: plans of other
        histories have others."""
        if not step.plan.has_joint_clips:
            if step.plan.cells.size:
                raise Violation("a plan without clips that HATs share")
            return
        if step.factors is None:
            raise Violation("a release without factors")
        factors = step.factors
        known = (
            self.factors.setdefault(step.start, dict(factors)) if self.is_one_history else factors
        )
        if known != factors:
            raise Violation(f"two factors of one slot: {known} and {factors}")
        if len(known) != 2 or not all(0 < factor < WHOLE for factor in known.values()):
            raise Violation(f"expected two plates to be scaled, got {known}")

    def require_done(self, state):
        """As in the other worlds, with charges in rho."""
        learnt = [one for one in state.published if one[0].startswith("learnt")]
        if len(learnt) != self.slots or len(state.published) != 3 * self.slots:
            raise Violation(
                f"expected two HATs of each slot, and {self.slots} slots learnt, got {state.published}"
            )
        ledger = self.ledgers.objects[state.ledger]
        entries = [entry for entry in ledger.entries() if kind_of(entry.release_id) == "hat"]
        clips = [entry for entry in ledger.entries() if kind_of(entry.release_id) == CLIPS]
        if len(clips) != self.slots or any(entry.plates for entry in clips):
            raise Violation(f"expected the norms of each slot to be remembered once, got {clips}")
        if (
            ledger.verify()
            or len(entries) != 2 * self.slots
            or any(len(entry.plates) != 2 for entry in entries)
        ):
            raise Violation(f"expected two plates to be charged for each HAT, got {entries}")


@pytest.mark.parametrize("whole_batches", [True, pytest.param(False, marks=pytest.mark.long)])
def test_without_a_fault_every_order_ends_with_the_factors_of_the_whole_slot(whole_batches):
    world = Balls(whole_batches=whole_batches)
    assert explore(world, faults=0).ends >= 1 and len(world.factors) == 2


@pytest.mark.long
@pytest.mark.timeout(900)
def test_with_a_fault_anywhere_every_order_of_a_slot_ends_the_same():
    world = Balls(slots=1)
    world.is_one_history = False
    assert explore(world, faults=1).ends > 100


@pytest.mark.parametrize(
    ("whole_batches", "walked"), long_rows([(True, 3)], [(True, 3), (True, 5), (False, 5)])
)
def test_with_up_to_three_faults_random_orders_end_the_same(whole_batches, walked):
    world = Balls(whole_batches=whole_batches)
    assert [walk(world, 3, random.Random(seed)) for seed in range(walked)].count(3) > walked // 5


def one_is_enough(self, all_norms=PlannerState._all_norms):
    """It takes a shard that has said nothing for one that has released the slot."""
    before, self._released_ms = self._released_ms, [2**62] * len(self._released_ms)
    found = all_norms(self) if self._planned and self._norms.get(self._planned.start) else None
    self._released_ms = before
    return found


def without_waiting(self):
    for start, slot in sorted(self._slots.items())[:1]:
        plan = self._plan_of(start)
        if plan is not None and slot.table is not None:
            return ReleaseSlot(start, *slot.table, plan)
    return None


def of_the_first(norms):
    return norms[0] if norms else PlateNorms.nobody()


@pytest.mark.parametrize(
    ("at", "name", "wrong"),
    [
        (PlannerState, "_all_norms", one_is_enough),
        (PlannerState, "norms_to_remember", lambda _: None),
        (ShardProtocol, "_measure", without_waiting),
        (planner_module, "merged_norms", of_the_first),
    ],
)
def test_a_planner_that_answers_too_early_or_forgets_and_a_shard_that_does_not_wait_are_found(
    planted, at, name, wrong
):
    planted(at, **{name: wrong})
    with pytest.raises(Violation):
        explore(Balls(), faults=0)


def test_norms_that_came_before_a_takeover_of_the_planner_are_not_lost(planted):
    """A planner that keeps norms only of slots that it has planned itself waits for ever after a
    fault."""

    def only_of_planned(self, offset, message, add=PlannerState.add):
        add(self, offset, message)
        if self._planned is None:
            self._norms.clear()

    planted(PlannerState, add=only_of_planned)
    world = Balls()
    with pytest.raises(Violation):
        for seed in range(100):
            walk(world, 3, random.Random(seed))
