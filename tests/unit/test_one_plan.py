"""One plan per HAT and slot: what is searched for once is in the terms, for shards, retries and later versions."""

import dataclasses
from collections import Counter
from itertools import pairwise

import msgspec
import numpy as np
import pytest

from tests.unit.test_flow import CELLS, START, a_context, run
from tests.unit.test_planner import CHOP, city, planned, uneven_city
from udp_stream.ledger.memory import MemoryLedger
from udp_stream.mechanisms import statistics
from udp_stream.mechanisms.cdfs import mechanism as cdfs
from udp_stream.mechanisms.grouping import SamplesPerPlate
from udp_stream.mechanisms.means import MECHANISMS
from udp_stream.mechanisms.means import automatic as automatic_mean
from udp_stream.mechanisms.noise import pure
from udp_stream.mechanisms.statistic_terms import Choice, StatisticTerms
from udp_stream.planning import hat_plan, slot_terms
from udp_stream.planning.hat_plan import plan_hat
from udp_stream.planning.slot_plan import cut_plan, merge_plan
from udp_stream.planning.terms import Terms
from udp_stream.release import charge, draw
from udp_stream.release.charge import plan_slot
from udp_stream.release.draw import record_slot
from udp_stream.shuffle.wire import decode_message, encode_message
from udp_stream.testing import Died
from udp_stream.units import NANO

ALL = ("release.mean_epsilon=0.5", "release.variance_epsilon=0.25", "release.cdf_epsilon=0.5")
AUTO = ("release.mean_epsilon=auto", "release.variance_epsilon=0.001", "release.cdf_epsilon=auto")
MEANS = ("auto", "baseline", "array-averaging", "levy", "fixed-quantile", "eps-quantile", "optimal")


class Searches:
    """How often each HAT, known by its counts, was planned, and its mean, variance and CDF were searched for."""

    def __init__(self, monkeypatch):
        self.plans, self.means, self.variances, self.cdfs = Counter(), Counter(), Counter(), Counter()
        self._spy(monkeypatch, hat_plan, "plan_hat", self.plans, lambda by_plate: by_plate)
        self._spy(monkeypatch, charge, "plan_hat", self.plans, lambda by_plate: by_plate)
        self._spy(monkeypatch, draw, "plan_hat", self.plans, lambda by_plate: by_plate)
        self._spy(monkeypatch, statistics, "plan_automatic", self.means, lambda counts: counts.by_plate)
        self._spy(monkeypatch, statistics, "plan_variance", self.variances, lambda counts: counts.by_plate)
        self._spy(monkeypatch, cdfs, "_best_choice", self.cdfs, lambda counts: counts.by_plate)

    @staticmethod
    def _spy(monkeypatch, module, name, seen, key):
        real = getattr(module, name)

        def spy(first, *others):
            seen[key(first).tobytes()] += 1
            return real(first, *others)

        monkeypatch.setattr(module, name, spy)


def travelled(plan):
    """The plan as another process has it."""
    chunks = [decode_message(encode_message(chunk)) for chunk in cut_plan(plan, 0, chunk_bytes=100)]
    return merge_plan(chunks)


def released(contents, plan, context, ledger):
    return record_slot(*contents, plan, context, ledger).payloads


@pytest.mark.parametrize("where", ["embedded", "one process", "two processes"])
@pytest.mark.parametrize("flags", [ALL, AUTO, (*AUTO, "release.mean_epsilon=0.02")])
def test_a_hat_is_planned_once_and_searched_for_once(flags, where, monkeypatch):
    """A shard in another process makes the plan from its terms, and searches for nothing."""
    contents, context, ledger = city(1), a_context(*flags), MemoryLedger()
    searches = Searches(monkeypatch)
    plan = plan_slot(contents[0], context, ledger)
    assert set(searches.plans.values()) == {1} and len(searches.plans) == 3
    if where != "embedded":
        sent = travelled(plan)
        assert sent.priced is None and sent.terms == plan.terms
        plan = sent.with_priced(plan) if where == "one process" else sent
    searched = [dict(found) for found in (searches.means, searches.variances, searches.cdfs)]
    payloads = released(contents, plan, context, ledger)
    assert len(payloads) == 3
    assert set(searches.plans.values()) == {2 if where == "two processes" else 1}
    assert searched == [searches.means, searches.variances, searches.cdfs]
    assert max(searches.variances.values()) == 1
    if flags != AUTO:  # an automatic epsilon is found at another one, from which on a CDF's cap may differ
        assert max(searches.means.values()) == 1
    if flags == ALL:
        assert max(searches.cdfs.values()) == 1


@pytest.mark.parametrize("flags", [ALL, AUTO, ("release.mean_epsilon=0.3", "release.cdf_epsilon=0")])
def test_under_suppression_a_hat_is_planned_once_and_its_mean_searched_for_at_most_twice(flags, monkeypatch):
    """Once with all of its plates, once with those that are left."""
    suppressed = 0
    for seed in range(6):
        with monkeypatch.context() as patch:
            counts, context = uneven_city(seed), a_context(*CHOP, *flags)
            counts = dataclasses.replace(counts, cells=np.array(sorted(range(12)), np.uint64) + np.uint64(min(CELLS)))
            searches = Searches(patch)
            plan = plan_slot(counts, context, MemoryLedger())
            kept = sum(bool(terms.kept) for terms in plan.terms)
            asked = sum(not terms.withheld for terms in plan.terms)
            assert set(searches.plans.values()) == {1} and len(searches.plans) == asked
            assert sum(searches.means.values()) <= 2 * asked or flags == AUTO
            suppressed += kept
    assert suppressed > 5


@pytest.mark.parametrize("grouping", ["best-fit", "wrap-around"])
@pytest.mark.parametrize("mean", MEANS)
def test_a_plan_on_chosen_terms_is_the_plan_that_chose_them(mean, grouping):
    flags = (f"release.mean={mean}", f"release.grouping={grouping}")
    dice = np.random.default_rng(4)
    for bins in ("auto", "16", "[0, 0, 10, 20, 65]"):
        context = a_context(*ALL, *flags, f"release.bins={bins}")
        for plates in (1, 2, 7, 40):
            counts = np.ceil(dice.pareto(0.8, plates) * 3 + 1).astype(np.int64)
            (terms,) = {t.open() for t in planned(city(1)[0], *ALL, *flags)[0]}
            first = plan_hat(counts, terms, context.policy)
            again = plan_hat(counts, first.terms, context.policy)
            assert all(one.choice is not None for one in first.terms.statistics) and again.terms == first.terms
            assert fields(again) == fields(first)


def fields(plan):
    """All of a plan, as text that compares."""
    with np.printoptions(threshold=10**6):
        named = [{f.name: getattr(one, f.name) for f in dataclasses.fields(one)} for one in plan.statistics.values()]
        counts = [one.pop("counts").by_plate.tolist() for one in named]
        return plan.terms, plan.by_plate.tolist(), plan.charges.tolist(), counts, str(named)


@pytest.mark.parametrize("where", ["a shard", "a retry"])
def test_a_version_that_would_choose_otherwise_keeps_to_what_was_priced(where, monkeypatch):
    """Caps, mechanisms and bins are in the terms: same bytes, same charges."""
    contents, context = city(3), a_context(*ALL)
    expected = run(MemoryLedger(), context, contents)
    ledger = MemoryLedger()
    plan = plan_slot(contents[0], context, ledger)
    monkeypatch.setattr(
        statistics, "plan_automatic", lambda counts, *asked: MECHANISMS["levy"].plan(counts, *asked[:3])
    )
    other = Choice("tree", 1, 3, True)
    monkeypatch.setattr(cdfs, "_best_choice", lambda *_: other)
    monkeypatch.setattr(statistics, "plan_variance", lambda c, e, u: statistics.plan_variance_with_cap(c, e, u, 1))
    assert plan_hat(contents[0].count, plan.terms[0].open(), context.policy).cdf.cap == 1  # it would
    if where == "a retry":
        again = plan_slot(contents[0], context, ledger)
        assert again.terms == plan.terms and again.charged.tolist() == plan.charged.tolist()
        plan = again
    found = [(id_, payload) for id_, _, payload in released(contents, travelled(plan), context, ledger)]
    assert found == expected
    assert ledger.verify() == []


def test_a_retry_with_fewer_samples_caps_at_the_largest_count_and_admits_nobody_who_paid_less():
    """A log may be read again without some of its pings; a cap of then may be beyond all counts of now."""
    (counts, values), context, ledger = city(2), a_context(*ALL), MemoryLedger()
    with pytest.raises(Died):
        run(ledger, context, (counts, values), dies_at=5)
    before = {entry.release_id: entry.charged for entry in ledger.entries()}
    ones = dataclasses.replace(counts, count=np.ones_like(counts.count))
    starts = np.arange(ones.count.size + 1)
    few = dataclasses.replace(values, speed=values.speed[: ones.count.size], starts=starts)
    plan = plan_slot(ones, context, ledger)
    assert [terms.of("mean").choice.cap > 1 for terms in plan.terms] == [True] * 3
    for hat, priced in enumerate(plan.priced):
        assert priced.variance.cap == priced.cdf.cap == 1
        paid = plan.charged_rows(hat) >= priced.charges
        assert not paid.all()  # all lose the same now, and most had paid for less
    assert len(released((ones, few), plan, context, ledger)) == 3
    assert {entry.release_id: entry.charged.tolist() for entry in ledger.entries()} == {
        name: charged.tolist() for name, charged in before.items()
    }


def test_remembered_terms_that_leave_all_to_be_chosen_are_kept_as_they_are(monkeypatch):
    """So a version might have asked that chose later: what is chosen now is not what is remembered."""
    contents, context, ledger = city(1), a_context(*ALL), MemoryLedger()
    real = charge.plan_hat
    with monkeypatch.context() as patch:
        patch.setattr(charge, "plan_hat", lambda *asked: dataclasses.replace(real(*asked), terms=asked[1]))
        first = plan_slot(contents[0], context, ledger)
    again = plan_slot(contents[0], context, ledger)
    assert again.terms == first.terms and first.terms[0].of("mean").choice is None
    assert again.charged.tolist() == first.charged.tolist()
    expected = run(MemoryLedger(), context, contents)
    assert [(i, payload) for i, _, payload in released(contents, travelled(again), context, ledger)] == expected


def test_what_was_chosen_at_another_epsilon_is_open_again():
    terms = planned(city(1)[0], *AUTO)[0][0]
    chosen = terms.chosen("mean", Choice("baseline", 7))
    assert chosen.at("mean", NANO).of("mean").choice is None
    assert chosen.at("mean", NANO).of("variance") == terms.of("variance")
    asked = StatisticTerms("mean", 5, choice=Choice("optimal", 3))
    known = Terms((asked, StatisticTerms("cdf", 5, choice=Choice("tree", 2, 8))))
    same, moved = Terms((asked.at(5), StatisticTerms("cdf", 6))).as_chosen(known).statistics
    assert same == asked and moved == StatisticTerms("cdf", 6)
    wrapped = Terms((StatisticTerms("mean", 5, grouping="wrap-around"),))
    assert wrapped.as_chosen(known) == wrapped


def test_terms_are_remembered_as_they_are_and_small():
    plan = plan_slot(city(1)[0], a_context(*ALL), MemoryLedger())
    for terms in plan.terms:
        remembered = msgspec.json.encode(terms)
        assert msgspec.json.decode(remembered, type=Terms) == terms and len(remembered) < 600
        assert [one.choice.mechanism for one in terms.statistics][1:] == ["clipped-variance", "tree"]
    assert plan.start_ms == START and all(a < b for a, b in pairwise(plan.cells.tolist()))


def test_the_worst_cases_of_a_slot_plan_the_same_mean_once(monkeypatch):
    counts = uneven_city(3)
    terms, policy = planned(counts, "release.mean=auto", "release.mean_epsilon=1", "release.cdf_epsilon=0")
    searches, worst = Searches(monkeypatch), slot_terms.WorstCases(counts, policy)
    first, chosen = worst.of(terms)
    second, again = worst.of([t.open() for t in chosen])
    assert first.tolist() == second.tolist() and chosen == again
    assert sum(searches.means.values()) == len(terms)
    assert automatic_mean.plan_automatic(
        SamplesPerPlate(counts.count[counts.rows(0)]), pure(NANO), policy.range, "best-fit", "epsilon"
    ).choice == chosen[0].of("mean").choice  # fmt: skip
