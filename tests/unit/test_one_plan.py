"""One plan per HAT and slot: what was chosen is in the terms, for shards, retries and later
versions."""

import dataclasses
from itertools import pairwise

import msgspec
import numpy as np
import pytest

from streams.wire import cut_plan, decode_message, encode_message, merge_plan
from tests.failing import Died
from tests.unit.test_flow import START, a_context, run
from tests.unit.test_planner import city, opened, planned
from udp_stream.base.units import NANO
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.mechanisms import cdf as cdfs
from udp_stream.mechanisms import statistics
from udp_stream.mechanisms import variance as variances
from udp_stream.mechanisms.base import Choice, StatisticTerms
from udp_stream.mechanisms.means import MECHANISMS
from udp_stream.mechanisms.noise import MEASURES, Cost
from udp_stream.mechanisms.statistics import STATISTICS
from udp_stream.planning import plan as hat_plan
from udp_stream.planning.plan import Terms, plan_hat, terms_of
from udp_stream.planning.slot import PlannedSlot
from udp_stream.release.charge import plan_slot
from udp_stream.release.pipeline import record_slot

ALL = (
    "release.mean_epsilon=0.5",
    "release.variance_epsilon=0.25",
    "release.cdf=tree",
    "release.cdf_epsilon=0.5",
)
AUTO = (
    "release.mean_epsilon=auto",
    "release.variance_epsilon=0.001",
    "release.cdf=tree",
    "release.cdf_epsilon=auto",
)
MEANS = (
    *("auto", "baseline", "array-averaging", "levy", "fixed-quantile", "eps-quantile", "optimal"),
    "array-averaging,release.cap=worst-case",
)


def travelled(plan):
    """The plan as another process has it."""
    chunks = [decode_message(encode_message(chunk)) for chunk in cut_plan(plan, 0, chunk_bytes=100)]
    return merge_plan(chunks)


def released(contents, plan, context, ledger):
    counts, values = contents
    slot = PlannedSlot(counts, plan, context.policy)
    return record_slot(slot, values, context, ledger).payloads


@pytest.mark.parametrize("grouping", ["best-fit", "wrap-around"])
@pytest.mark.parametrize("mean", MEANS)
def test_a_plan_at_another_epsilon_is_the_plan_that_there_would_be_without_the_first(
    mean, grouping
):
    flags = (*f"release.mean={mean}".split(","), f"release.grouping={grouping}")
    dice = np.random.default_rng(5)
    for automatic in (False, True):
        context = a_context(*(AUTO if automatic else ALL), *flags)
        for plates in (1, 2, 7, 40):
            counts = np.ceil(dice.pareto(0.8, plates) * 3 + 1).astype(np.int64)
            plans = hat_plan.HatPlans(context.policy.public)
            for nano in (NANO // 100, NANO, NANO, NANO // 7):
                terms = terms_of(context.policy, {"mean": nano, "variance": NANO // 4, "cdf": nano})
                expected = plan_hat(counts, terms, context.policy)
                assert fields(plans.plan_hat(counts, terms)) == fields(expected)
            chosen = plan_hat(counts, terms, context.policy).terms
            mean = msgspec.structs.replace(
                chosen.requested_terms("mean"),
                choice=Choice(chosen.requested_terms("mean").choice.mechanism, 1),
            )
            other = msgspec.structs.replace(chosen, statistics=(mean, *chosen.statistics[1:]))
            dear = terms_of(context.policy, {"mean": NANO, "variance": NANO // 4, "cdf": NANO})
            for terms in (other, dear):  # another cap was chosen before
                assert fields(plans.plan_hat(counts, terms)) == fields(
                    plan_hat(counts, terms, context.policy)
                )


@pytest.mark.parametrize("grouping", ["best-fit", "wrap-around"])
@pytest.mark.parametrize("mean", MEANS)
def test_a_plan_on_chosen_terms_is_the_plan_that_chose_them(mean, grouping):
    flags = (*f"release.mean={mean}".split(","), f"release.grouping={grouping}")
    dice = np.random.default_rng(4)
    for bins in ("auto", "16", "[0, 0, 10, 20, 65]"):
        context = a_context(*ALL, *flags, f"release.bins={bins}")
        for plates in (1, 2, 7, 40):
            counts = np.ceil(dice.pareto(0.8, plates) * 3 + 1).astype(np.int64)
            (terms,) = {opened(t) for t in planned(city(1)[0], *ALL, *flags)[0]}
            first = plan_hat(counts, terms, context.policy)
            again = plan_hat(counts, first.terms, context.policy)
            assert (
                all(one.choice is not None for one in first.terms.statistics)
                and again.terms == first.terms
            )
            assert fields(again) == fields(first)


def fields(plan):
    """All of a plan, as text that compares."""
    with np.printoptions(threshold=10**6):
        named = [
            {name: getattr(one, name) for name in type(one).__match_args__}
            for one in plan.statistics.values()
        ]
        counts = [one.pop("counts").by_plate.tolist() for one in named]
        return plan.terms, plan.by_plate.tolist(), plan.charges.tolist(), counts, str(named)


@pytest.mark.parametrize("where", ["a shard", "a retry"])
def test_a_version_that_would_choose_otherwise_keeps_to_what_was_priced(where, planted):
    """Caps, mechanisms and bins are in the terms: same bytes, same charges."""
    contents, context = city(3), a_context(*ALL)
    expected = run(MemoryLedger(), context, contents)
    ledger = MemoryLedger()
    plan = plan_slot(contents[0], context, ledger)
    planted(
        statistics,
        plan_automatic=lambda counts, *asked: MECHANISMS["levy"].plan(counts, *asked[:3]),
    )
    other = Choice("tree", 1, 3, True)
    planted(cdfs, _best_choice=lambda *_: other)
    searched = variances.plan_variance  # a cap of one, where none was chosen before
    planted(variances, plan_variance=lambda *of: searched(*of[:3], of[3] or 1))
    assert (
        plan_hat(contents[0].count, opened(plan.terms[0]), context.policy).statistics["cdf"].cap
        == 1
    )  # it would
    if where == "a retry":
        again = plan_slot(contents[0], context, ledger)
        assert again.terms == plan.terms and again.charged.tolist() == plan.charged.tolist()
        plan = again
    found = list(released(contents, travelled(plan), context, ledger).items())
    assert found == expected
    assert ledger.verify() == []


def test_a_retry_with_fewer_samples_caps_at_the_largest_count_and_admits_nobody_who_paid_less():
    """A log may be read again without some of its pings; a cap of then may be beyond all counts of
    now."""
    (counts, values), context, ledger = city(2), a_context(*ALL), MemoryLedger()
    with pytest.raises(Died):
        run(ledger, context, (counts, values), dies_at=2)
    before = {entry.release_id: entry.charged for entry in ledger.entries()}
    ones = dataclasses.replace(counts, count=np.ones_like(counts.count))
    starts = np.arange(ones.count.size + 1)
    few = dataclasses.replace(values, speed=values.speed[: ones.count.size], starts=starts)
    plan = plan_slot(ones, context, ledger)
    assert [terms.requested_terms("mean").choice.cap > 1 for terms in plan.terms] == [True] * 3
    for hat, priced in enumerate(plan.priced):
        assert priced.statistics["variance"].cap == priced.statistics["cdf"].cap == 1
        paid = plan.charged_rows(hat) >= priced.charges
        assert not paid.all()  # all lose the same now, and most had paid for less
    assert len(released((ones, few), plan, context, ledger)) == 3
    assert {entry.release_id: entry.charged.tolist() for entry in ledger.entries()} == {
        name: charged.tolist() for name, charged in before.items()
    }


def test_remembered_terms_that_leave_all_to_be_chosen_are_kept_as_they_are(planted):
    """So a version might have asked that chose later: what is chosen now is not what is remembered."""
    contents, context, ledger = city(1), a_context(*ALL), MemoryLedger()
    real = hat_plan.HatPlans.plan_hat
    planted(
        hat_plan.HatPlans,
        plan_hat=lambda *asked: dataclasses.replace(real(*asked), terms=asked[2]),
    )
    first = plan_slot(contents[0], context, ledger)
    planted(hat_plan.HatPlans, plan_hat=real)
    again = plan_slot(contents[0], context, ledger)
    assert again.terms == first.terms and first.terms[0].requested_terms("mean").choice is None
    assert again.charged.tolist() == first.charged.tolist()
    expected = run(MemoryLedger(), context, contents)
    assert list(released(contents, travelled(again), context, ledger).items()) == expected


def test_terms_are_remembered_as_they_are_and_small():
    plan = plan_slot(city(1)[0], a_context(*ALL), MemoryLedger())
    for terms in plan.terms:
        remembered = msgspec.json.encode(terms)
        assert msgspec.json.decode(remembered, type=Terms) == terms and len(remembered) < 600
        assert [one.choice.mechanism for one in terms.statistics][1:] == [
            "clipped-variance",
            "tree",
        ]
    assert plan.start_ms == START and all(a < b for a, b in pairwise(plan.cells.tolist()))


def test_terms_say_in_which_measure_they_are_and_a_plan_costs_that(monkeypatch, registered):
    """Kept by the ledger and sent to shards; no version takes an amount of one measure for that of
    another."""
    with monkeypatch.context() as known:
        known.setitem(MEASURES, "toy", toy := dataclasses.replace(MEASURES["pure"], name="toy"))
        with_measure = StatisticTerms("mean", NANO, mechanism="baseline", measure="toy")
        assert with_measure.cost == Cost("toy", NANO) and with_measure.at(5).cost == Cost("toy", 5)
        written = msgspec.json.encode(Terms((with_measure,)))
        assert b"measure" in written and msgspec.json.decode(written, type=Terms) == Terms(
            (with_measure,)
        )
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(written, type=Terms)
    registered(MEASURES, "toy", toy)
    policy = a_context().policy
    plan = plan_hat(np.array([3, 1]), Terms((with_measure,)), policy)
    assert (
        plan.mean.cost == Cost("toy", NANO) and plan.terms.requested_terms("mean").measure == "toy"
    )
    assert {one.measure for one in terms_of(policy, dict.fromkeys(STATISTICS, 1)).statistics} == {
        policy.accounting
    }
