"""The planner of a whole slot: suppression in the terms, planners that read history, and plans that
stay."""

import dataclasses
from itertools import product

import numpy as np
import pytest
from msgspec.structs import replace

from tests.forms import long_but, long_rows
from tests.unit.test_flow import CELLS, FIXED, START, a_context, run
from tests.unit.test_suppression import bias_of_variance, move_of_variance
from udp_stream.base.errors import PrivacyRefused
from udp_stream.base.units import NANO, QUANTA_PER_KMH
from udp_stream.ledger.port import Admission, Balance
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.mechanisms.base import SamplesPerPlate
from udp_stream.mechanisms.means import ArrayAveraging
from udp_stream.planning.plan import HatPlans, Terms, plan_hat
from udp_stream.planning.policy import Policy, SlotInPeriod
from udp_stream.planning.slot import (
    PlannedSlot,
    SlotPlan,
    contribution_mask,
    row_digests,
    terms_from_counts,
    worst_cases,
)
from udp_stream.planning.suppression import Nanos, Occupancy, chop_user, suppress_to
from udp_stream.release.charge import CountsPlanner, plan_slot
from udp_stream.release.pipeline import record_slot
from udp_stream.release.record import Release, hat_ids
from udp_stream.settings import load
from udp_stream.windows.grid import HEXAGONS
from udp_stream.windows.tables import SlotCounts, SlotPings, tabulate

HOUR = 3_600_000
CHOP = ("release.suppression=chop-user", "release.min_plates=3")
BASELINE = "release.mean=baseline"
AUTO = ("release.mean_epsilon=auto", "release.cdf_epsilon=0")


def recorded_of(counts, values, plan, context, ledger):
    return record_slot(PlannedSlot(counts, plan, context.policy), values, context, ledger)


class PlannedBy:
    """A planner of one function."""

    def __init__(self, plan):
        self.plan = plan


def city(seed=0, plates=30, start=START, pings=1500):
    """Three HATs: plates of few home cells, and some that go everywhere."""
    rng = np.random.default_rng(seed)
    plate = rng.integers(0, plates, pings).astype(np.uint32)
    roams = rng.random(plates) < 0.4
    cell = np.where(roams[plate], rng.integers(0, 3, pings), plate % 3)
    return tabulate(
        SlotPings(
            start, start + HOUR, tuple(f"hash{i:04}".encode() for i in range(plates)), plate,
            np.arange(pings, dtype=np.uint32), np.array(CELLS, dtype=np.uint64)[cell],
            rng.integers(0, 65 * 4096 + 1, pings).astype(np.int32),
        )
    )  # fmt: skip


def nothing_spent(counts):
    none = np.zeros(len(counts.plates), np.int64)
    return Balance(none, none)


def planned(counts, *flags):
    policy = load(None, (*FIXED, *flags), {}).policy
    return terms_from_counts(
        counts, nothing_spent(counts), SlotInPeriod("May", 3, 8), policy
    ), policy


@pytest.mark.parametrize("seed", range(6))
def test_suppression_goes_over_the_hats_that_are_large_enough_and_leaves_them_so(seed):
    """The terms' bits are CHOP-USER's answer at the mean's epsilon, HAT by HAT, where its E is the
    mechanism's own."""
    counts, _ = city(seed)
    minimum = int(np.sort(np.diff(counts.hat_rows))[0]) + 1  # the smallest HAT is too small
    terms, policy = planned(counts, *CHOP, BASELINE, f"release.min_plates={minimum}")
    large = np.flatnonzero(np.diff(counts.hat_rows) >= minimum)
    rows = np.concatenate([np.arange(counts.hat_rows[h], counts.hat_rows[h + 1]) for h in large])
    sizes = np.append(0, np.cumsum(np.diff(counts.hat_rows)[large]))
    expected = chop_user(
        Occupancy(sizes, counts.plate[rows], counts.count[rows], len(counts.plates)),
        Nanos(500_000_000),
        minimum,
    )
    found = np.concatenate([terms[h].contributing_rows(np.diff(counts.hat_rows)[h]) for h in large])
    assert found.tolist() == expected.keep.tolist()
    assert all(
        terms[h].contributing_rows(np.diff(counts.hat_rows)[h]).sum() >= minimum for h in large
    )
    assert {t.withheld for h, t in enumerate(terms) if h not in large} <= {"few_plates"}
    assert replace(opened(terms[large[0]]), kept=b"") == replace(
        planned(counts, BASELINE)[0][large[0]], kept=b""
    )
    assert policy.suppression == "chop-user"


def test_it_goes_by_the_mean_or_by_all_that_a_hat_is_charged_or_by_the_median_of_auto():
    counts, _ = city(1)
    seen = []

    def epsilon_of(*flags):
        policy = load(None, (*FIXED, *CHOP, *flags), {}).policy
        terms, _ = planned(counts, *flags)
        epsilons = sorted(t.mean_nano or t.charge_nano for t in terms)
        seen.append(epsilons)
        kept = contribution_mask(counts, terms, policy)
        occupancy = Occupancy(counts.hat_rows, counts.plate, counts.count, len(counts.plates))
        assert (
            kept.tolist()
            == chop_user(occupancy, Nanos(epsilons[len(epsilons) // 2]), 3).keep.tolist()
        )
        return epsilons[len(epsilons) // 2]

    assert epsilon_of("release.mean_epsilon=0.7") == 700_000_000
    assert epsilon_of("release.mean_epsilon=0", "release.cdf_epsilon=0.4") == 400_000_000
    assert seen[-1] == [400_000_000] * 3
    assert epsilon_of(*AUTO) not in (700_000_000, 400_000_000)


@pytest.mark.parametrize("accounting", ["pure", "approximate"])
@pytest.mark.parametrize("epsilon", ["0.05", "0.5", "auto"])
def test_array_averaging_takes_the_cap_that_is_asked_for(epsilon, accounting):
    """That of least bound is searched at each HAT's epsilon, told in its terms, and kept where
    plates are halted."""
    counts, _ = city()
    flags = (
        f"release.mean_epsilon={epsilon}",
        f"budget.accounting={accounting}",
        "release.cdf_epsilon=0",
    )
    flags += ("release.mean=array-averaging",)
    (median, policy), (worst_case, other) = (
        planned(counts, *flags),
        planned(counts, *flags, "release.cap=worst-case"),
    )
    assert policy.fingerprint() != other.fingerprint()
    at_median, at_best = [], []
    for rows, one, ours in zip(counts.each_rows(), median, worst_case, strict=True):
        here = counts.count[rows]
        at_median.append(plan_hat(here, one, policy).mean.cap)
        plan = plan_hat(here, ours, other)
        asked = (
            SamplesPerPlate(here),
            ours.requested_terms("mean").cost,
            other.range,
            other.grouping,
        )
        errors = [
            ArrayAveraging().plan(*asked, cap).error_bound for cap in range(1, int(here.max()) + 1)
        ]
        assert errors[plan.mean.cap - 1] == pytest.approx(min(errors))
        assert plan.terms.requested_terms("mean").choice.cap == plan.mean.cap
        assert plan.subset(np.arange(here.size) > 2).mean.cap == plan.mean.cap
        at_best.append(plan.mean.cap)
    assert (
        at_median
        == [int(SamplesPerPlate(counts.count[rows]).median) for rows in counts.each_rows()]
        != at_best
    )


@pytest.mark.parametrize("hats_max", [1, 2])
def test_a_fixed_number_of_hats_holds_for_every_plate_and_small_hats_are_withheld(hats_max):
    counts, _ = city(2)
    assert np.bincount(counts.plate).max() == 3
    terms, policy = planned(counts, *CHOP, f"release.hats_max={hats_max}")
    occupancy = Occupancy(counts.hat_rows, counts.plate, counts.count, len(counts.plates))
    expected = suppress_to(occupancy, Nanos(500_000_000), hats_max, policy.min_plates).keep
    assert contribution_mask(counts, planned(counts)[0], policy).tolist() == expected.tolist()
    assert np.bincount(counts.plate[expected]).max() == hats_max
    for hat, of_hat in enumerate(terms):
        kept = expected[counts.rows(hat)]
        assert (of_hat.withheld == "few_plates") == (kept.sum() < policy.min_plates)
        assert of_hat.withheld or of_hat.contributing_rows(kept.size).tolist() == kept.tolist()


# --- the promise on the slot's worst case ---

MEANS = ("auto", "baseline", "array-averaging", "levy", "fixed-quantile", "eps-quantile", "optimal")


def worst_case(counts, terms, policy):
    """The largest over the released HATs of noise and bias of the plan, and of leaving plates out;
    in quanta."""
    found = []
    for hat, of_hat in enumerate(terms):
        if not of_hat.withheld:
            by_plate = counts.count[counts.rows(hat)]
            kept = by_plate[of_hat.contributing_rows(by_plate.size)]
            missed = policy.max_speed * (1 - int(kept.sum()) / int(by_plate.sum()))
            found.append(plan_hat(kept, of_hat, policy).mean.error_bound + missed)
    return max(found, default=0.0)


def hats_of_busiest(counts, terms):
    """K: the most released HATs that one plate is in."""
    released = np.repeat([not of_hat.withheld for of_hat in terms], np.diff(counts.hat_rows))
    kept = released & ~suppressed_rows(counts.hat_rows, terms)
    return int(np.bincount(counts.plate[kept], minlength=1).max())


def uneven_city(seed):
    """A dozen HATs of 4 to 14 plates, some in nearly all of them, with counts of a heavy tail."""
    rng = np.random.default_rng(seed)
    sizes, plates = rng.integers(4, 15, 12), 40
    odds = rng.pareto(1.0, plates) + 0.1
    plate = np.concatenate(
        [np.sort(rng.choice(plates, n, replace=False, p=odds / odds.sum())) for n in sizes]
    )
    names, count = (
        tuple(b"hash%04d" % i for i in range(plates)),
        np.ceil(rng.pareto(0.8, plate.size) * 3 + 1),
    )
    rows, cells = np.append(0, np.cumsum(sizes)), np.arange(12, dtype=np.uint64)
    return SlotCounts(
        START, START + HOUR, names, cells, rows, plate, np.minimum(count, 60).astype(np.int64), 0
    )


SHORT = ("auto", "auto"), ("array-averaging", "0.3"), ("levy", "1"), ("optimal", "1")


@pytest.mark.parametrize(
    ("mean", "epsilon"), long_rows(SHORT, product(MEANS, ("0.3", "1", "auto")))
)
def test_the_slots_worst_case_is_never_larger_with_suppression(mean, epsilon):
    """Nor is K, and no HAT is withheld for it."""
    flags = (
        f"release.mean={mean}",
        f"release.mean_epsilon={epsilon}",
        "release.cdf_epsilon=0",
        "release.min_plates=3",
    )
    fewer = 0
    for seed in range(25):
        counts = uneven_city(seed)
        without, policy = planned(counts, *flags)
        suppressed, _ = planned(counts, *flags, "release.suppression=chop-user")
        assert worst_case(counts, suppressed, policy) <= worst_case(counts, without, policy)
        assert [t.withheld for t in suppressed] == [t.withheld for t in without]
        assert hats_of_busiest(counts, suppressed) <= hats_of_busiest(counts, without)
        fewer += hats_of_busiest(counts, suppressed) < hats_of_busiest(counts, without)
    assert fewer >= 3  # it is not kept by suppressing nothing


def small_city(rng):
    """One to four HATs of three to seven plates of one to three samples, few plates in all."""
    sizes = rng.integers(3, 8, rng.integers(1, 5))
    plate = np.concatenate([np.sort(rng.choice(9, size, replace=False)) for size in sizes])
    rows, cells = np.append(0, np.cumsum(sizes)), np.arange(sizes.size, dtype=np.uint64)
    names, count = tuple(b"hash%d" % i for i in range(9)), rng.choice((1, 1, 2, 3), plate.size)
    return SlotCounts(START, START + HOUR, names, cells, rows, plate, count, 0)


def brute_force(counts, terms, policy):
    """The largest worst cases of a slot, by all speeds of 0 or U: of means, of variances, of their
    sums as shares."""
    found = [(0.0, 0.0, 0.0)]
    for hat, of_hat in enumerate(terms):
        if of_hat.withheld:
            continue
        by_plate = counts.count[counts.rows(hat)]
        kept, total = by_plate[of_hat.contributing_rows(by_plate.size)], int(by_plate.sum())
        plan = plan_hat(kept, of_hat, policy)
        given = np.minimum(kept, plan.statistics["variance"].cap)
        variance = bias_of_variance(total, int(given.sum())) + move_of_variance(
            int(given.sum()), int(given.max())
        ) * NANO / of_hat.nano_of("variance")
        mean = plan.mean.error_bound / policy.max_speed + 1 - kept.sum() / total
        found.append((mean, float(variance), mean + float(variance)))
    return np.max(found, axis=0)


@pytest.mark.parametrize("cities", long_but([200], [200, 1000]))
@pytest.mark.parametrize(
    ("mean", "epsilon"), [("baseline", "0.2"), ("baseline", "auto"), ("array-averaging", "0.5")]
)
def test_with_variances_no_worst_case_of_either_grows_nor_their_sum(mean, epsilon, cities):
    """On small cities, by brute force."""
    flags = (
        f"release.mean={mean}",
        f"release.mean_epsilon={epsilon}",
        f"release.variance_epsilon={epsilon}",
    )
    flags += ("release.cdf_epsilon=0", "release.min_plates=2")
    policy, chopped = (
        load(None, (*FIXED, *flags, f"release.suppression={rule}"), {}).policy
        for rule in ("off", "chop-user")
    )
    rng, fewer, place = np.random.default_rng(8), 0, SlotInPeriod("May", 3, 8)
    for _ in range(cities):
        counts = small_city(rng)
        without, suppressed = (
            terms_from_counts(counts, nothing_spent(counts), place, one)
            for one in (policy, chopped)
        )
        before, after = (brute_force(counts, terms, policy) for terms in (without, suppressed))
        assert (after <= before * (1 + 1e-9)).all()
        assert [t.withheld for t in suppressed] == [t.withheld for t in without]
        assert hats_of_busiest(counts, suppressed) <= hats_of_busiest(counts, without)
        fewer += hats_of_busiest(counts, suppressed) < hats_of_busiest(counts, without)
        assert all(one.mean_nano == one.nano_of("variance") for one in suppressed)
    assert fewer >= cities / 40


def test_it_goes_by_the_variance_too_where_one_is_released():
    flags = (
        *CHOP,
        "release.mean_epsilon=0.1",
        "release.variance_epsilon=0.1",
        "release.cdf_epsilon=0",
    )
    policy = load(None, (*FIXED, *flags), {}).policy
    of_both, of_means = [], []
    for seed in range(10):
        counts = uneven_city(seed)
        max_kmh = policy.range.width / QUANTA_PER_KMH
        occupancy = Occupancy(
            counts.hat_rows, counts.plate, counts.count, len(counts.plates), max_kmh
        )
        terms, _ = planned(counts, *flags)
        of_both.append(chop_user(occupancy, Nanos(NANO // 10, NANO // 10), 3).keep.tolist())
        of_means.append(chop_user(occupancy, Nanos(NANO // 10), 3).keep.tolist())
        assert contribution_mask(counts, terms, policy).tolist() == of_both[-1]
    assert of_both != of_means and not all(map(all, of_both))


def test_an_automatic_variance_has_half_of_a_hats_epsilon():
    """As the slides print it: noise of 2 Delta / epsilon for each of mean and variance."""
    counts, _ = city(1)
    halves = ("release.mean=baseline", *AUTO, "release.variance_epsilon=auto")
    means, _ = planned(counts, "release.mean=baseline", *AUTO)
    both, policy = planned(counts, *halves)
    for rows, mean, one in zip(counts.each_rows(), means, both, strict=True):
        assert one.mean_nano == one.nano_of("variance") and one.charge_nano == 2 * one.mean_nano
        assert 0.5 * mean.mean_nano < one.charge_nano <= 2 * mean.mean_nano
        plan = plan_hat(counts.count[rows], one, policy)
        assert plan.charges.max() <= one.charge_nano
    beside, _ = planned(counts, *halves, "release.mean_epsilon=0.1")
    assert all(one.mean_nano == 10**8 and one.nano_of("variance") > 0 for one in beside)


def test_a_hat_in_which_the_promise_would_break_gets_its_plates_back_and_the_others_stay_suppressed():
    flags = ("release.mean=array-averaging", "release.mean_epsilon=1", "release.min_plates=3")
    given_back = 0
    for seed in range(25):
        counts = uneven_city(seed)
        without, policy = planned(counts, *flags)
        chopped = contribution_mask(counts, without, load(None, (*FIXED, *flags, *CHOP), {}).policy)
        suppressed, _ = planned(counts, *flags, *CHOP)
        for hat, of_hat in enumerate(suppressed):
            rows = counts.rows(hat)
            packed = b"" if chopped[rows].all() else np.packbits(chopped[rows]).tobytes()
            breaks = worst_case(
                only_hat(counts, hat), [replace(without[hat], kept=packed)], policy
            ) > worst_case(counts, without, policy)
            assert of_hat.kept == (b"" if breaks else packed)
            given_back += breaks
    assert given_back > 5


def only_hat(counts, hat):
    rows, cells = counts.rows(hat), counts.cells[hat : hat + 1]
    hat_rows = np.array([0, rows.stop - rows.start])
    return dataclasses.replace(
        counts, cells=cells, hat_rows=hat_rows, plate=counts.plate[rows], count=counts.count[rows]
    )


def opened(terms):
    """The same with nothing chosen."""
    return replace(terms, statistics=tuple(one.at(one.epsilon_nano) for one in terms.statistics))


def suppressed_rows(hat_rows, terms):
    return np.concatenate(
        [~t.contributing_rows(n) for t, n in zip(terms, np.diff(hat_rows).tolist(), strict=True)]
    )


@pytest.mark.parametrize("flags", [(), AUTO, ("release.mean=auto",)])
def test_who_is_suppressed_pays_nothing_and_gives_nothing(flags):
    """The others' release is the one that there would be if the suppressed had never been there,
    but for counts."""
    context, (counts, values), ledger = a_context(*CHOP, *flags), city(2), MemoryLedger()
    plan = plan_slot(counts, context, ledger)
    gone = suppressed_rows(plan.hat_rows, plan.terms)
    assert 0 < gone.sum() < gone.size
    assert (plan.charged[gone] == 0).all() and (plan.charged[~gone] > 0).all()
    records = [
        Release.decode(payload)
        for payload in recorded_of(counts, values, plan, context, ledger).payloads.values()
    ]
    for hat, record in enumerate(records):
        rows = counts.rows(hat)
        assert record.status == "released"
        assert (
            record.counts.plates == rows.stop - rows.start
            and record.counts.samples == counts.count[rows].sum()
        )
        assert record.counts.admitted_plates == (~gone[rows]).sum()
        assert record.counts.used_samples <= counts.count[rows][~gone[rows]].sum()
    of_others = np.repeat(~gone, counts.count)
    kept_counts, starts = counts.subset(~gone), np.append(0, np.cumsum(counts.count[~gone]))
    other = MemoryLedger()
    alone = dataclasses.replace(
        context, planner=PlannedBy(lambda *_: [replace(t, kept=b"") for t in plan.terms])
    )
    kept_values = dataclasses.replace(values, speed=values.speed[of_others], starts=starts)
    again = [Release.decode(p) for _, p in run(other, alone, (kept_counts, kept_values))]
    assert [(drawn(r.mean), r.cdf, r.privacy) for r in again] == [
        (drawn(r.mean), r.cdf, r.privacy) for r in records
    ]
    for hat, (one, other_one) in enumerate(
        zip(records, again, strict=True)
    ):  # but it is off by more from all of them
        share = counts.count[counts.rows(hat)][gone[counts.rows(hat)]].sum() / one.counts.samples
        assert one.mean.bias_bound_kmh == pytest.approx(
            min(65, other_one.mean.bias_bound_kmh + 65 * share), abs=1e-3
        )
    assert other.verify() == ledger.verify() == []


def drawn(mean):
    """What of a mean's record follows from those who gave to it."""
    return mean.value_kmh, mean.mechanism, mean.grouping, mean.epsilon, mean.scale_kmh


def test_a_retry_keeps_to_the_first_suppression_and_admits_nobody_whom_the_first_verdict_did_not_charge():
    """By the retry balances have changed, and with them what CHOP-USER would do now."""
    context, (counts, values), ledger = a_context(*CHOP, *AUTO), city(4), MemoryLedger()
    first = plan_slot(counts, context, ledger)
    before = ledger.balances(context.calendar.slot_in_period(START).period, counts.plates)
    for epsilon in ("0.01", "2.0"):  # at these it would leave others out
        other = a_context(*CHOP, f"release.mean_epsilon={epsilon}")
        assert any(t.kept != s.kept for t, s in zip(planned(counts, *CHOP, f"release.mean_epsilon={epsilon}")[0],
                                                    first.terms, strict=True))  # fmt: skip
        again = plan_slot(counts, other, ledger)
        assert again.terms == first.terms and again.charged.tolist() == first.charged.tolist()
        later = ledger.balances(context.calendar.slot_in_period(START).period, counts.plates)
        assert later.charged.tolist() == before.charged.tolist()
    for hat, (_, payload) in enumerate(
        run(ledger, a_context(*CHOP, "release.mean_epsilon=2.0"), (counts, values))
    ):
        assert Release.decode(payload).counts.admitted_plates == (first.charged_rows(hat) > 0).sum()


@pytest.mark.parametrize("kept", [b"\xff", b"\x00" * 4, b"\xff" * 9])
def test_remembered_bits_that_do_not_fit_admit_nobody_who_did_not_pay(kept):
    """Another number of rows than remembered: nobody, or those alone whose charge covers what they
    lose now."""
    context, (counts, values) = a_context(), city(5)
    ledger = MemoryLedger()
    odd = dataclasses.replace(
        context, planner=PlannedBy(lambda *_: [replace(t, kept=kept) for t in planned(counts)[0]])
    )
    plan = plan_slot(counts, odd, ledger)
    records = [Release.decode(payload) for _, payload in run(ledger, context, (counts, values))]
    for hat, record in enumerate(records):
        assert record.counts.admitted_plates <= (plan.charged_rows(hat) > 0).sum()
        assert record.status == "withheld_budget" or kept == b"\xff"


# --- what a plan does not know ---


def test_hats_that_the_plan_does_not_know_are_withheld_and_say_so():
    context, (counts, values), ledger = a_context(), city(1), MemoryLedger()
    recorded = recorded_of(counts, values, SlotPlan.empty(counts), context, ledger)
    records = [Release.decode(payload) for payload in recorded.payloads.values()]
    assert {(r.status, r.counts.admitted_plates, r.mean, r.privacy.epsilon) for r in records} == {
        ("withheld_unplanned", 0, None, 0.0)
    }
    assert [Release.decode(p).status for _, p in run(ledger, context, (counts, values))] == [
        "withheld_unplanned"
    ] * 3
    assert not any(entry.charged.any() for entry in ledger.entries())


def test_a_plan_for_other_rows_admits_nobody_to_that_hat():
    """One plate more, one other, or one with another number of samples: charges might be another's."""
    context, (counts, values) = a_context(), city(1)
    plan = plan_slot(counts, context, MemoryLedger())
    count = counts.count.copy()
    count[0] += 1
    plates = (*counts.plates[:-1], b"hash9999")
    for other in (
        dataclasses.replace(counts, count=count),
        dataclasses.replace(counts, plates=plates),
    ):
        changed = [a != b for a, b in zip(row_digests(other), row_digests(counts), strict=True)]
        assert any(changed)
        ledger = MemoryLedger()
        plan_slot(counts, context, ledger)
        records = [
            Release.decode(payload)
            for payload in recorded_of(other, values, plan, context, ledger).payloads.values()
        ]
        assert [r.status == "withheld_unplanned" for r in records] == changed
        assert all(
            (r.counts.admitted_plates == 0) == new for r, new in zip(records, changed, strict=True)
        )


# --- other planners ---


def test_a_planner_that_leaves_hats_out_is_refused_before_anything_is_charged():
    ledger, context = (
        MemoryLedger(),
        dataclasses.replace(a_context(), planner=PlannedBy(lambda *_: [Terms()])),
    )
    with pytest.raises(PrivacyRefused, match="terms for each of 3 HATs"):
        plan_slot(city()[0], context, ledger)
    assert not list(ledger.entries())


def test_a_planner_is_given_releases_and_no_way_to_the_ledger():
    """Terms may follow from what is public; a planner that could charge or record would be one."""
    given = []

    def curious(slot, balances):
        given.extend(name for name in dir(slot.history) if not name.startswith("_"))
        given.extend(
            type(what) for what in (slot.counts, slot.in_period, slot.policy, slot.plans, balances)
        )
        return CountsPlanner().plan(slot, balances)

    plan_slot(
        city()[0], dataclasses.replace(a_context(), planner=PlannedBy(curious)), MemoryLedger()
    )
    public = [
        "closed_ms",
        "grid",
        "releases_and_city",
        "slots_since",
        "sums",
        "sums_since",
        "weeks",
        "withdrawals",
        "withdrawn",
    ]
    assert given == [*public, SlotCounts, SlotInPeriod, Policy, HatPlans, Balance]


def test_larger_hats_ask_first_over_the_whole_slot():
    """Where budgets run out they go to the statistics that say most."""
    context, (counts, _), ledger = (
        a_context("budget.epsilon=0.75", "release.min_plates=3"),
        city(7),
        MemoryLedger(),
    )
    plan_slot(counts, context, ledger)
    order = [entry.release_id for entry in ledger.entries()]
    sizes = dict(
        zip(
            hat_ids(counts.cells.tolist(), (counts.start_ms, counts.end_ms), HEXAGONS),
            np.diff(counts.hat_rows).tolist(),
            strict=True,
        )
    )
    assert [sizes[id_] for id_ in order] == sorted(sizes.values(), reverse=True)


def test_a_ledger_that_was_asked_before_by_a_shard_without_a_plan_stays_withheld():
    context, (counts, values), ledger = a_context(), city(1), MemoryLedger()
    recorded_of(counts, values, SlotPlan.empty(counts), context, ledger)
    spare = Admission("x", np.arange(2), np.full(2, 5), 0, b"{}")
    ledger.admit("May", 10, list(counts.plates), [spare])
    plan = plan_slot(counts, context, ledger)
    assert plan.cells.size == 0


def test_worst_cases_of_mean_and_variance_are_added_in_their_own_units():
    """U E + U^2 E_var of the slides: km/h and (km/h)^2, in which the variance outweighs the mean at
    U = 65."""
    flags = (
        *CHOP,
        "release.mean=baseline",
        "release.mean_epsilon=0.5",
        "release.variance_epsilon=0.5",
        "release.cdf_epsilon=0",
    )
    counts = uneven_city(1)
    terms, policy = planned(counts, *flags)
    mean, variance, *_, both = worst_cases(counts, terms, HatPlans(policy.public)).T
    released = np.array([not one.withheld for one in terms])
    assert released.any() and both == pytest.approx(
        mean / QUANTA_PER_KMH + variance / QUANTA_PER_KMH**2
    )
    assert (variance[released] / QUANTA_PER_KMH**2 > mean[released] / QUANTA_PER_KMH).all()
