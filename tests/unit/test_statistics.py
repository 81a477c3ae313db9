"""Another statistic, and another way of taking a CDF, are registered and go all the way: nothing
else is changed."""

import dataclasses
from dataclasses import dataclass

import msgspec
import numpy as np
import pytest

from streams.wire import cut_plan, merge_plan
from tests.unit.test_flow import a_context
from tests.unit.test_planner import PlannedBy, city, planned
from udp_stream.base.errors import PrivacyRefused
from udp_stream.base.units import NANO
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.mechanisms.base import Choice, Query, SamplesPerPlate, Statistic, StatisticTerms
from udp_stream.mechanisms.noise import Cost, charges_of, cost_within, lattice_of, noise_of
from udp_stream.mechanisms.statistics import STATISTICS
from udp_stream.planning.plan import Terms, plan_hat
from udp_stream.planning.slot import PlannedSlot
from udp_stream.release.charge import plan_slot
from udp_stream.release.pipeline import record_slot
from udp_stream.release.record import Release


@dataclass(frozen=True)
class StoppedPlan:
    """Each plate gives its first `cap` samples."""

    counts: SamplesPerPlate
    cost: Cost
    cap: int

    @property
    def choice(self):
        return Choice("stopped", self.cap)

    @property
    def given(self):
        return np.minimum(self.counts.by_plate, self.cap)

    @property
    def charges(self):
        return charges_of(self.given, int(self.given.max()), self.cost)

    @property
    def noise(self):
        return noise_of(self.cost)


class Still(msgspec.Struct):
    """What a record says of it."""

    share: float


class Stopped(Statistic):
    """The share of samples at speed zero."""

    name = of = "stopped"
    plural = "shares at rest"

    def plan(self, counts, asked, public):  # noqa: ARG002
        cap = counts.median if asked.choice is None else asked.choice.cap_among(counts)
        return StoppedPlan(counts, asked.cost, cap)

    def at(self, plan, asked, public):  # noqa: ARG002
        return dataclasses.replace(plan, cost=asked.cost)

    def subset(self, plan, admitted):
        final = StoppedPlan(SamplesPerPlate(plan.counts.by_plate[admitted]), plan.cost, plan.cap)
        most = int(final.given.max())
        return dataclasses.replace(
            final, cost=cost_within(final.given, most, plan.charges[admitted], plan.cost)
        )

    def query(self, plan, samples, bits):  # noqa: ARG002
        kept = samples[plan.counts.place_of_sample < plan.cap]
        return Query.of_one(int((kept == 0).sum()), lattice_of(int(plan.given.max()), plan.cost))

    def values(self, plans, queries, noisy):
        return [
            min(1.0, max(0.0, query.noisy_value(one) / int(plan.given.sum())))
            for plan, query, one in zip(plans, queries, noisy, strict=True)
        ]

    def record(self, plan, value, left_out):  # noqa: ARG002
        return Still(round(value, 6))


@pytest.fixture
def stopped(registered):
    registered(STATISTICS, "stopped", Stopped())
    return StatisticTerms("stopped", NANO // 4)


def with_it(terms, asked):
    return msgspec.structs.replace(terms, statistics=(*terms.statistics, asked))


def test_a_registered_statistic_is_charged_for_travels_and_leaves_the_others_records_as_they_were(
    stopped,
):
    contents, ledger, without = city(2), MemoryLedger(), MemoryLedger()
    counts = contents[0]
    terms = planned(counts)[0]
    context = dataclasses.replace(
        a_context(), planner=PlannedBy(lambda *_: [with_it(one, stopped) for one in terms])
    )
    plan, plain = plan_slot(counts, context, ledger), plan_slot(counts, a_context(), without)
    for hat, priced in enumerate(plan.priced):
        own = priced.statistics["stopped"].charges
        assert own.max() == NANO // 4
        assert (plan.charged_rows(hat) == plain.charged_rows(hat) + own).all()
    sent = merge_plan(list(cut_plan(plan, 0)))
    assert sent.terms == plan.terms and all(
        one.requested_terms("stopped").choice.cap for one in sent.terms
    )
    slot = PlannedSlot(counts, sent, context.policy)
    drawn = record_slot(slot, contents[1], context, ledger).payloads
    records = [Release.decode(payload) for payload in drawn.values()]
    assert all(one.status == "released" and one.mean and one.cdf for one in records)
    assert all(
        0 <= one.others["stopped"]["share"] <= 1 and one.others.keys() == {"stopped"}
        for one in records
    )
    assert {one.privacy.epsilon for one in records} == {
        max(t.charge_nano for t in plan.terms) / NANO
    }
    assert ledger.verify() == []


def test_terms_of_a_statistic_that_is_not_known_here_are_refused_by_its_name():
    with pytest.raises(PrivacyRefused, match="cdf, got 'stopped'"):
        plan_hat(np.array([1, 4]), Terms((StatisticTerms("stopped", NANO),)), a_context().policy)


def test_a_statistic_that_would_cost_a_plate_more_than_it_paid_is_refused(stopped, planted):
    policy, terms = a_context().policy, Terms((stopped,))
    plan = plan_hat(np.array([1, 4, 4]), terms, policy)
    planted(
        Stopped,
        subset=lambda _, p, a: StoppedPlan(SamplesPerPlate(p.counts.by_plate[a]), p.cost, p.cap),
    )
    with pytest.raises(PrivacyRefused, match="lose more to a statistic"):
        plan.subset(np.array([True, False, False]))
