"""The CDF of the whole city: every order ends with one answer a slot, of the whole slot, recorded
before its HATs."""

import random

import pytest

from tests.forms import long_rows
from tests.protocol.explore import FLAGS, Violation, explore, walk
from tests.protocol.test_follows import Following
from udp_stream.forecast.shape import CityShape, family
from udp_stream.ledger.ids import CITY, Id, kind_of
from udp_stream.mechanisms.around import PlateNorms
from udp_stream.release.charge import ForecastPlanner, ReleaseContext
from udp_stream.release.city import CityKnowledge, CityRecord, city_bins
from udp_stream.release.forecaster import Forecaster
from udp_stream.settings import load
from udp_stream.shuffle.protocol import PlannerState, QueryCity, ReleaseSlot
from udp_stream.shuffle.wire import cut_counts, cut_norms
from udp_stream.testing import SLOT_END, SeededEntropy, two_hats

PURE = (*FLAGS, "release.mean=forecast-clip", "release.cdf_epsilon=0.2")
IN_RHO = (*PURE, "budget.accounting=approximate")


class Eager(CityShape):
    """A shape that two plates are enough to be asked for: the product asks 75, which no exploration
    can hold."""

    def is_informative(self, variance, plates):  # noqa: ARG002
        return True


class Anew:
    """A forecaster that has no memory but the ledger, as every branch has one of its own."""

    def __init__(self, settings, policy):
        self._settings, self._policy = settings, policy

    def saw(self, counts):
        """Nothing is to be learnt later."""

    def keep_week(self, slot, period, history, ledger):
        """Nothing is learnt by day."""

    def forecast(self, counts, history):
        made = Forecaster(self._settings.calendar.slots, self._policy.max_speed, "explored")
        return made.forecast(counts, history)

    def city(self, start_ms, history):  # noqa: ARG002
        """Nothing was told, so every slot is asked."""
        return CityKnowledge(
            Eager(*family(city_bins(self._policy.max_speed).edges_kmh[1:])), asked=0
        )


class Cities(Following):
    """Two plates, each with a HAT on either shard."""

    flags = PURE
    off_after_a_fault = False

    def __init__(self, *args, **kwargs):
        self.sums, self.is_one_history = {}, True
        super().__init__(*args, **kwargs)

    def begin(self, faults):
        self.sums.clear()
        return super().begin(faults)

    def context(self, settings, seed):
        cdf = "tree" if seed and self.off_after_a_fault else "auto"
        flags = (*self.flags, f"release.cdf={cdf}", f"release.mean_epsilon={0.3 + seed / 10}")
        policy = load(None, flags, {}).policy
        anew = Anew(settings, policy)
        return ReleaseContext(policy, settings.calendar, SeededEntropy(seed), "explored",
                              planner=ForecastPlanner(anew), forecaster=anew)  # fmt: skip

    def ask_city(self, actor, state, fault):
        step = self.locals.fresh(actor.local).next()
        assert isinstance(step, QueryCity)
        known = (
            self.sums.setdefault(step.plan.start_ms, step.sums)
            if self.is_one_history
            else step.sums
        )
        if known != step.sums:
            raise Violation(f"two sums of one slot: {known} and {step.sums}")
        return super().ask_city(actor, state, fault)

    def record(self, actor, state, fault):
        step = self.locals.fresh(actor.local).next()
        assert isinstance(step, ReleaseSlot)
        if step.plan.city is not None and not self.off_after_a_fault:
            ledger = self.ledgers.objects[state.ledger]
            if not any(
                one.payload
                for one in self.of_city(ledger)
                if Id.of(one.release_id).slot[0] * 1000 == step.start
            ):
                raise Violation("a HAT is drawn, and what the city told is not recorded")
        return super().record(actor, state, fault)

    def of_city(self, ledger):
        return [entry for entry in ledger.entries() if kind_of(entry.release_id) == CITY]

    def require_done(self, state):
        ledger = self.ledgers.objects[state.ledger]
        learnt = [one for one in state.published if one[0].startswith("learnt")]
        if len(learnt) != self.slots or len(state.published) != 3 * self.slots:
            raise Violation(
                f"expected two HATs of each slot, and {self.slots} slots learnt, got {state.published}"
            )
        asked, hats = (
            self.of_city(ledger),
            [one for one in ledger.entries() if kind_of(one.release_id) == "hat"],
        )
        if ledger.verify() or len(hats) != 2 * self.slots:
            raise Violation(f"expected two HATs of each slot, got {hats}")
        if self.off_after_a_fault:
            return
        if len(asked) != self.slots or any(
            one.charged.min() == 0 or len(one.plates) != 2 for one in asked
        ):
            raise Violation(
                f"expected two plates to be charged for each slot's question, got {asked}"
            )
        told = [
            CityRecord.of_ledger(one.release_id, one.payload)
            for one in asked
            if one.payload and one.published
        ]
        if len(told) != self.slots or any(one.plates != 2 for one in told):
            raise Violation(f"expected an answer of two plates for each slot, got {told}")


class CitiesInRho(Cities):
    """Norms and sums travel together."""

    flags = IN_RHO


class OffAfterAFault(Cities):
    """Whoever takes over asks nothing any more, and shards still hold plans that have them wait."""

    off_after_a_fault = True


@pytest.mark.parametrize("world", [Cities, CitiesInRho])
def test_without_a_fault_every_order_ends_with_one_answer_of_the_whole_slot(world):
    explored = world()
    assert explore(explored, faults=0).ends >= 1
    assert len(explored.sums) == 2 and all(
        len(sums) == 12 and sum(sums) > 0 for sums in explored.sums.values()
    )


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("world", [Cities, OffAfterAFault])
def test_with_a_fault_anywhere_every_order_of_a_slot_ends(world):
    explored = world(slots=1)
    explored.is_one_history = False
    assert explore(explored, faults=1).ends > 100


@pytest.mark.parametrize("world", [Cities, CitiesInRho, OffAfterAFault])
@pytest.mark.parametrize(
    ("whole_batches", "walked"), long_rows([(True, 4)], [(True, 4), (True, 12), (False, 6)])
)
def test_with_up_to_three_faults_random_orders_end(world, whole_batches, walked):
    explored = world(whole_batches=whole_batches)
    explored.is_one_history = False
    assert [walk(explored, 3, random.Random(seed)) for seed in range(walked)].count(3) > walked // 5


def at_once(self, answers=PlannerState.answers_without_factors):
    city = self._planned.city if self._planned else None
    if self._planned:
        self._planned.city = None
    found = list(answers(self))
    if self._planned and not found:
        self._planned.city = city
    return found


@pytest.mark.parametrize(
    "wrong", [{"answers_without_factors": at_once}, {"city_to_ask": lambda _: None}]
)
def test_a_planner_that_answers_before_it_records_and_one_that_never_answers_are_found(
    planted, wrong
):
    planted(PlannerState, **wrong)
    with pytest.raises(Violation):
        explore(Cities(), faults=0)


def test_a_shard_whose_plan_is_older_than_the_settings_is_answered_once():
    """It would wait for ever: the planner's own plan asks nothing, and waits for no norms."""
    planner = PlannerState(shards=1, start=None, follows=True)
    for offset, message in enumerate(cut_counts(two_hats()[0], shard=0)):
        planner.add(offset, message)
    start = planner.slot_to_plan().start
    planner.planned(start, SLOT_END, [0])
    (norms,) = cut_norms(PlateNorms.nobody(), start, SLOT_END, shard=0, city=(5, 7))
    planner.add(planner.counts.next_offset, norms)
    assert not list(planner.answers_without_factors()), "the plan is not on the broker yet"
    planner.sent()
    (answer,) = planner.answers_without_factors()
    assert (answer.shard, answer.factors) == (0, b"")
    planner.add(planner.counts.next_offset, norms)  # its next owner says it again
    assert not list(planner.answers_without_factors()) and planner.city_to_ask() is None
