"""The road from a closed slot to published releases, driven by hand: what it asks for, and what
survives."""

import dataclasses
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import msgspec
import numpy as np
import pytest

from tests.failing import Died, DyingLedger
from udp_stream.base.errors import PrivacyRefused
from udp_stream.base.units import NANO
from udp_stream.ledger.port import Admission
from udp_stream.ledgers.archive import archive
from udp_stream.ledgers.sqlite import MemoryLedger, open_sqlite_ledger
from udp_stream.mechanisms.cdf import node_counts
from udp_stream.mechanisms.means import MECHANISMS
from udp_stream.mechanisms.noise import lattice_of
from udp_stream.mechanisms.statistics import STATISTICS
from udp_stream.mechanisms.variance import variance_query
from udp_stream.planning.slot import PlannedSlot, SlotPlan
from udp_stream.release import pipeline
from udp_stream.release import pipeline as draw
from udp_stream.release.charge import (
    CountsPlanner,
    ForecastPlanner,
    ReleaseContext,
    SlotToPlan,
    budget_left,
    plan_slot,
)
from udp_stream.release.promise import release_slot
from udp_stream.release.record import Release
from udp_stream.settings import load
from udp_stream.testing import SeededEntropy
from udp_stream.windows.tables import SlotPings, tabulate

FIXED = (
    "budget.accounting=pure", "release.mean_epsilon=0.5", "release.cdf=tree", "release.cdf_epsilon=0.25",
    "release.min_plates=3", "hat.slot=1h", "hat.resolution=7",
)  # fmt: skip
START = 1_641_011_400_000  # 2022-01-01T10:00 in Kolkata
CELLS = (609161983530369023, 609162003226820607, 609162003243597823)


def a_context(*flags, seed=1, entropy=None):
    settings = load(None, (*FIXED, *flags), {})
    return ReleaseContext(
        settings.policy, settings.calendar, entropy or SeededEntropy(seed), "udp-stream test"
    )


def slot(seed=0, plates=12, pings=400, start=START):
    """A slot with one full HAT, one half full, and one with a single plate."""
    rng = np.random.default_rng(seed)
    plate = rng.integers(0, plates, pings).astype(np.uint32)
    cell = np.where(plate < plates // 2, rng.integers(0, 2, pings), 0)
    cell[plate == plates - 1] = 2
    return tabulate(
        SlotPings(
            start, start + 3_600_000, tuple(f"hash{i:04}".encode() for i in range(plates)), plate,
            np.arange(pings, dtype=np.uint32), np.array(CELLS, dtype=np.uint64)[cell],
            rng.integers(0, 65 * 4096 + 1, pings).astype(np.int32),
        )
    )  # fmt: skip


def run(ledger, context, contents, dies_at=None, log=None, answered=False):
    """Drive the road over a ledger that may die at its n-th call. Returns what was published, in
    order."""
    dying, published = DyingLedger(ledger, dies_at, answered=answered), []
    if log is not None:
        dying.calls = log

    def publish(recorded):
        is_last = len(dying.calls) == dies_at
        if is_last and not answered:
            raise Died("before publishing")
        dying.calls.append("(publish)")
        published.extend(recorded.payloads.items())
        if is_last:
            raise Died("after publishing")

    try:
        release_slot(*contents, context, dying, publish)
    except Died:
        raise Died(published) from None
    return published


def test_charges_come_before_draws_and_only_what_is_recorded_is_published():
    log = []
    published = run(MemoryLedger(), a_context(), slot(), log=log)
    charging = ["view", "admit", "view"]
    assert log == [*charging, "record", "mark", "(publish)", "published"]
    assert len(published) == len({id_ for id_, _ in published}) == 3


def test_the_caller_is_called_before_each_admission_and_not_for_a_slot_that_is_recorded():
    """It notes the settings that plates are charged under: after a crash the ledger still says
    which these were."""
    ledger, contents, log = MemoryLedger(), slot(), []
    context = dataclasses.replace(a_context(), before_charge=lambda: log.append("(before)"))
    run(ledger, context, contents, log=log)
    assert log[:3] == ["view", "(before)", "admit"] and log.count("(before)") == 1
    run(ledger, context, contents, log=(again := []))
    assert "admit" not in again and log.count("(before)") == 1
    log.clear()  # now HATs that no plan has are admitted, as withheld, before they are recorded
    counts, values = slot(start=START + 3_600_000)
    dying = DyingLedger(ledger, None)
    dying.calls = log
    empty = PlannedSlot(counts, SlotPlan.empty(counts), context.policy)
    draw.record_slot(empty, values, context, dying)
    assert log == ["recorded", "(before)", "admit", "record", "mark"]


def test_every_hat_gets_one_record_with_its_public_counts():
    contents = slot()
    records = [Release.decode(payload) for _, payload in run(MemoryLedger(), a_context(), contents)]
    counts = contents[0]
    assert [record.status for record in records].count("released") == 2
    for hat, record in enumerate(records):
        rows = counts.rows(hat)
        assert record.counts.plates == rows.stop - rows.start
        assert record.counts.samples == int(counts.count[rows].sum())
        if record.status == "released":
            assert record.counts.admitted_plates == record.counts.plates
            assert record.mean is not None and 0 <= record.mean.value_kmh <= 65
            assert record.cdf is not None and record.cdf.values[-1] == 1
            assert record.privacy.epsilon == 0.75
        else:
            assert record.status == "withheld_few_plates"
            assert (record.mean, record.cdf, record.privacy.epsilon) == (None, None, 0)


def test_the_mark_names_a_record_with_noise_in_it_wherever_that_is_in_the_slot():
    """What is withheld is drawn alike by every ledger: it would not show one that went back and
    came as far again."""
    recorded = release_slot(*slot(), a_context(), MemoryLedger(), publish=lambda _: None)
    statuses = {id_: Release.decode(payload).status for id_, payload in recorded.payloads.items()}
    assert set(statuses.values()) == {"released", "withheld_few_plates"}
    orders = itertools.permutations(recorded.payloads.items())
    assert {statuses[pipeline.witness(dict(payloads))] for payloads in orders} == {"released"}
    assert statuses[recorded.mark.release_id] == "released"


def test_a_second_run_publishes_the_same_bytes_and_charges_nothing():
    ledger, contents, log = MemoryLedger(), slot(), []
    first = run(ledger, a_context(seed=1), contents)
    charged = [entry.charged.tolist() for entry in ledger.entries()]
    assert run(ledger, a_context(seed=2), contents, log=log) == first
    assert log == ["view", "mark", "(publish)", "published"]
    assert [entry.charged.tolist() for entry in ledger.entries()] == charged


def test_of_a_slot_that_is_recorded_in_part_the_rest_is_drawn_and_all_is_published():
    ledger, contents = MemoryLedger(), slot()
    with pytest.raises(Died):
        run(ledger, a_context(), contents, dies_at=3)  # all is charged
    middle = sorted(entry.release_id for entry in ledger.entries())[1]
    ledger.record([(middle, b"there before")])

    class Others(SeededEntropy):
        def streams(self, release_ids):
            assert middle not in release_ids
            return super().streams(release_ids)

    context = a_context(entropy=Others(2))
    recorded = release_slot(*contents, context, ledger, publish=lambda _: None)
    assert len(recorded.payloads) == 3 and recorded.payloads[middle] == b"there before"
    assert recorded.made == recorded.payloads.keys() - {middle}


def test_a_retry_plans_on_the_remembered_terms_not_on_what_is_left_by_then():
    """With "auto" the balances have changed by the retry; the charge that was made is the epsilon
    that is drawn for."""
    auto = ("release.mean_epsilon=auto", "release.cdf_epsilon=0")
    ledger, contents = MemoryLedger(), slot()
    with pytest.raises(Died):
        run(ledger, a_context(*auto), contents, dies_at=2)
    charged = {
        entry.release_id: max(entry.charged.tolist(), default=0) for entry in ledger.entries()
    }
    drained = contents[0].plates
    other = Admission("other", np.arange(len(drained)), np.full(len(drained), 10**9), 1, b"{}")
    ledger.admit(a_context(*auto).calendar.slot_in_period(START).period, 10**10, drained, [other])
    for id_, payload in run(ledger, a_context(*auto), contents):
        assert round(Release.decode(payload).privacy.epsilon * 1e9) == charged[id_]
    assert sum(charged.values()) > 0


def charged_of(ledger, context):
    return ledger.balances(context.calendar.slot_in_period(START).period, slot()[0].plates).charged


def test_plates_without_budget_are_left_out_and_then_hats_are_withheld():
    ledger, statuses, admitted = MemoryLedger(), [], []
    context = a_context("budget.epsilon=2.0")
    for hour in range(4):
        records = [
            Release.decode(p)
            for _, p in run(ledger, context, slot(seed=hour, start=START + hour * 3_600_000))
        ]
        statuses.append([record.status for record in records])
        admitted.append(max(record.counts.admitted_plates for record in records))
    assert "released" in statuses[0]
    assert statuses[3].count("released") == 0 and "withheld_budget" in statuses[3]
    assert admitted[0] == 11 and admitted[3] == 0
    assert charged_of(ledger, context).max() <= 2 * 10**9
    assert ledger.verify() == []


def test_a_hat_with_too_few_admitted_plates_charges_nobody():
    ledger = MemoryLedger()
    context = a_context("budget.epsilon=0.75")
    run(ledger, context, slot())
    before = charged_of(ledger, context)
    later = slot(seed=5, start=START + 3_600_000)
    records = [Release.decode(payload) for _, payload in run(ledger, context, later)]
    assert {record.status for record in records} == {"withheld_budget", "withheld_few_plates"}
    assert np.array_equal(before, charged_of(ledger, context))


def spoiled(ledger, context, plates, share):
    """Every other plate has only `share` of its budget left."""
    some = np.arange(0, len(plates), 2)
    charge = int(context.policy.budget_nano * (1 - share))
    period = context.calendar.slot_in_period(START).period
    ledger.admit(
        period,
        context.policy.budget_nano,
        plates,
        [Admission("x", some, np.full(some.size, charge), 1, b"{}")],
    )


def test_what_is_left_of_a_budget_is_of_the_slots_plates_on_average():
    ledger, context, (counts, _) = MemoryLedger(), a_context(), slot()
    spoiled(ledger, context, counts.plates, 0.4)
    period = context.calendar.slot_in_period(START).period
    balance = ledger.balances(period, counts.plates)
    assert budget_left(counts, balance, context.policy) == pytest.approx(0.7)


@pytest.mark.parametrize("grouping", ["best-fit", "wrap-around"])
@pytest.mark.parametrize("mean", ["baseline", "array-averaging", "optimal", "levy", "auto"])
def test_with_some_plates_halted_nobody_loses_more_than_the_ledger_charged(mean, grouping):
    """Exactly: what each admitted plate can move the drawn statistics by, at 0 against U, over the
    scales drawn."""
    flags = (
        f"release.mean={mean}", f"release.grouping={grouping}", "budget.epsilon=2.3", "release.variance_epsilon=0.3",
    )  # fmt: skip
    ledger, context, contents = MemoryLedger(), a_context(*flags), slot(seed=2)
    spoiled(ledger, context, contents[0].plates, 0.3)
    planned = PlannedSlot(contents[0], plan_slot(contents[0], context, ledger), context.policy)
    drawn = [hat.plan for hat in planned.hats if hat.plan is not None]
    records = [Release.decode(payload) for _, payload in run(ledger, context, contents)]
    charged = [entry.charged for entry in ledger.entries() if entry.release_id != "x"]
    released = [record for record in records if record.status == "released"]
    assert (
        any(record.counts.admitted_plates < record.counts.plates for record in released)
        and len(drawn) == 2
    )
    paid_by_id = {e.release_id: e.charged[e.charged > 0] for e in ledger.entries()}
    for plan, record in zip(drawn, released, strict=True):
        paid = paid_by_id[record.release_id]
        assert paid.size == plan.by_plate.size == record.counts.admitted_plates
        assert round(record.privacy.epsilon * NANO) == int(paid.max())
        for loss, charge in zip(losses(plan), paid.tolist(), strict=True):
            assert loss <= Fraction(charge, NANO)
    halted = [(charges == 0).any() and (charges > 0).any() for charges in charged]
    assert any(halted)


def losses(plan):
    """Each plate's loss to mean (in full where speeds choose an interval), variance and CDF, as
    exact fractions."""
    ends, cdf = np.cumsum(plan.by_plate), plan.statistics["cdf"]
    middle = np.full(int(plan.by_plate.sum()), 30 * 4096)
    for start, end in zip(ends - plan.by_plate, ends, strict=True):
        slow, fast = middle.copy(), middle.copy()
        slow[start:end], fast[start:end] = 0, 65 * 4096
        mean = Fraction(plan.mean.cost.nano, NANO)
        if plan.mean.plate_sensitivities is not None:
            mechanism = MECHANISMS[plan.mean.mechanism]
            ask = [mechanism.query(plan.mean, samples, None) for samples in (slow, fast)]
            lattice = lattice_of(ask[0].sensitivity, plan.mean.noise_cost)
            mean = Fraction(
                lattice.project(ask[1].statistic) - lattice.project(ask[0].statistic), lattice.t
            )
        ask = [
            variance_query(plan.statistics["variance"], samples) for samples in (slow, fast, middle)
        ]
        lattice = lattice_of(ask[0].sensitivity, plan.statistics["variance"].cost)
        lowest, *_, highest = sorted(lattice.project(one.statistic) for one in ask)
        variance = Fraction(highest - lowest, lattice.t)
        change = np.abs(node_counts(cdf, slow) - node_counts(cdf, fast))
        of_nodes = zip(change.tolist(), cdf.s.tolist(), cdf.t.tolist(), strict=True)
        yield mean + variance + sum(Fraction(moved * s, t) for moved, s, t in of_nodes)


def test_a_retry_under_other_settings_keeps_to_the_charges_that_were_made():
    """Mechanism and grouping decide on shares; a retry takes them from the terms and not from the
    policy."""
    ledger, contents = MemoryLedger(), slot()
    with pytest.raises(Died):
        run(ledger, a_context("release.mean=baseline"), contents, dies_at=2)
    flags = "release.mean=array-averaging", "budget.epsilon=3"
    records = [Release.decode(payload) for _, payload in run(ledger, a_context(*flags), contents)]
    assert {record.mean.mechanism for record in records if record.mean is not None} == {"baseline"}
    promised = {(one.privacy.period, one.privacy.period_epsilon) for one in records}
    assert promised == {("1d", 10.0)}
    assert {entry.budget for entry in ledger.entries()} == {10 * NANO}


def test_a_variance_is_released_with_its_noise_and_stays_null_when_not_asked_for():
    asked = [
        Release.decode(p)
        for _, p in run(MemoryLedger(), a_context("release.variance_epsilon=0.25"), slot())
    ]
    released = [record for record in asked if record.status == "released"]
    assert released and all(record.privacy.epsilon == 1.0 for record in released)
    for record in released:
        assert record.variance.mechanism == "clipped-variance" and record.variance.epsilon == 0.25
        assert 0 <= record.variance.value_kmh2 <= 65**2 / 4
        assert record.variance.expected_abs_error_kmh2 == record.variance.scale_kmh2 > 0
    assert all(record.variance is None for record in asked if record.status != "released")
    alone = a_context(
        "release.mean_epsilon=0",
        "release.cdf_epsilon=0",
        "release.variance_epsilon=200",
        "budget.epsilon=200",
    )
    contents = slot()
    for hat, record in enumerate(
        Release.decode(p) for _, p in run(MemoryLedger(), alone, contents)
    ):
        if record.status == "released":
            truth = (contents[1].samples_of(contents[0].rows(hat)) / 4096).var()
            assert (record.mean, record.cdf) == (None, None)
            assert record.variance.value_kmh2 == pytest.approx(
                truth, abs=20 * record.variance.scale_kmh2
            )
            assert record.variance.scale_kmh2 < 5


def test_a_new_period_brings_a_new_budget():
    ledger = MemoryLedger()
    context = a_context("budget.epsilon=0.75")
    run(ledger, context, slot())
    records = [
        Release.decode(p) for _, p in run(ledger, context, slot(start=START + 24 * 3_600_000))
    ]
    assert "released" in {record.status for record in records}


def test_the_planner_is_given_no_speed():
    """Law 3, by types: nothing that reaches `slot_terms` or `plan_hat` can hold one."""
    import inspect

    from udp_stream.planning import plan
    from udp_stream.planning import slot as planner

    of_statistics = [
        method for one in STATISTICS.values() for method in (one.plan, one.at, one.subset)
    ]
    of_slots = (
        plan.slot_terms,
        plan.HatPlans.plan_hat,
        plan.HatPlans.plan_statistic,
        planner.terms_from_counts,
    )
    functions = (*of_slots, plan.plan_hat, plan.HatPlan.subset, *of_statistics)
    for function in (*functions, CountsPlanner.plan, ForecastPlanner.plan, SlotToPlan, plan_slot):
        assert "SlotValues" not in str(inspect.signature(function))
    assert {field.name for field in dataclasses.fields(slot()[0])}.isdisjoint(
        {"speed", "values", "samples"}
    )


def test_everything_but_the_noisy_values_is_a_function_of_counts():
    counts, values = slot()
    other = dataclasses.replace(values, speed=65 * 4096 - values.speed)

    def public(contents):
        records = []
        for _, payload in run(MemoryLedger(), a_context(), contents):
            record = msgspec.json.decode(payload)
            for statistic in ("mean", "cdf"):
                for field in ("value_kmh", "interval95_kmh", "values"):
                    (record[statistic] or {}).pop(field, None)
            records.append(record)
        return records

    assert public((counts, values)) == public((counts, other))


@pytest.mark.parametrize(
    "mean", ["baseline", "array-averaging", "optimal", "levy", "fixed-quantile", "eps-quantile"]
)
def test_speeds_above_a_lowered_maximum_are_clamped_before_they_count(mean):
    """Parts of a slot may have been read under a higher `speed.max_kmh`: sensitivities hold up to
    today's."""
    counts, values = slot()
    context = a_context("speed.max_kmh=40", "release.variance_epsilon=0.5", f"release.mean={mean}")
    clamped = dataclasses.replace(values, speed=np.minimum(values.speed, 40 * 4096))
    assert (clamped.speed < values.speed).any()
    assert run(MemoryLedger(), context, (counts, values)) == run(
        MemoryLedger(), context, (counts, clamped)
    )


def test_plates_that_were_charged_less_than_their_part_costs_stay_out():
    """A ledger that lies, or a log that grew between a charge and its retry: nobody is drawn for
    who has not paid."""

    class Cheap(MemoryLedger):
        def admit(self, period, budget, plates, admissions):
            verdicts = super().admit(period, budget, plates, admissions)
            return [v._replace(charged=np.minimum(v.charged, 1)) for v in verdicts]

    records = [Release.decode(payload) for _, payload in run(Cheap(), a_context(), slot())]
    assert {record.status for record in records} == {"withheld_budget", "withheld_few_plates"}


def test_noise_in_tests_depends_on_the_seed_and_the_id_alone():
    whole = dict(run(MemoryLedger(), a_context(seed=3), slot()))
    assert whole == dict(run(MemoryLedger(), a_context(seed=3), slot()))
    assert whole != dict(run(MemoryLedger(), a_context(seed=4), slot()))


# Periods that overlap.

AFTERNOON = START + 3_600_000
UTC = ("hat.timezone=UTC",)
OVERLAPPING = {
    "another zone": (UTC, "1d from 2022-01-01T00:00:00+00:00"),
    "a longer period": (("budget.period=7d",), "7d from 2021-12-26T00:00:00+05:30"),
    "a lifetime": (("budget.period=lifetime", "budget.epsilon=12.5"), "lifetime"),
    "another measure": (
        ("budget.accounting=zcdp", "budget.rho=1"),
        "1d from 2022-01-01T00:00:00+05:30 in rho",
    ),
}
MORNING = "1d from 2022-01-01T00:00:00+05:30"


@pytest.mark.parametrize("kind", OVERLAPPING)
@pytest.mark.parametrize("start", [AFTERNOON, AFTERNOON + 3_600_000])
def test_a_period_that_overlaps_another_is_refused_before_anybody_is_charged(kind, start):
    """Also where its slots are others: a plate could lose both budgets by its pings of the day."""
    flags, period = OVERLAPPING[kind]
    ledger, log = MemoryLedger(), []
    run(ledger, a_context(), slot())
    before = [entry.release_id for entry in ledger.entries()]
    other_cells = "release.mean=baseline", *flags
    contents = slot(seed=3, start=start)
    with pytest.raises(PrivacyRefused) as refused:
        run(ledger, a_context(*other_cells), contents, log=log)
    assert log == ["view"]
    said = str(refused.value)
    assert f"{period} overlaps {MORNING}, in which" in said and "use another ledger" in said
    assert [entry.release_id for entry in ledger.entries()] == before
    run(ledger, a_context(), slot(seed=4, start=start))  # under its own calendar it goes on


def test_a_change_at_the_end_of_a_period_overlaps_nothing():
    ledger, night = MemoryLedger(), START + 14 * 3_600_000  # midnight
    run(ledger, a_context(), slot())
    run(ledger, a_context("budget.period=12h"), slot(start=night))
    run(ledger, a_context("hat.timezone=UTC"), slot(start=night + 48 * 3_600_000))
    assert len(ledger.periods()) == 3 and ledger.verify() == []


def test_a_rolling_budget_does_not_reach_back_over_what_is_archived(tmp_path):
    """Else the archived day's budget and its own could be spent within one window."""
    day, rolling = 24 * 3_600_000, "budget.period=rolling 2d"
    midnight = START + 14 * 3_600_000
    with open_sqlite_ledger(tmp_path / "ledger") as ledger:
        run(ledger, a_context(), slot())
        run(
            ledger, a_context("release.min_plates=1000"), slot(start=midnight + 5 * day)
        )  # it charges nobody
        archive(ledger, midnight // 1000, tmp_path / "archive")
        assert ledger.periods() == []
        for start in (midnight, midnight + 2 * day - 3_600_000):
            with pytest.raises(PrivacyRefused, match="archived"):
                run(ledger, a_context(rolling), slot(start=start))
        assert ledger.periods() == []
        assert run(ledger, a_context(rolling), slot(start=midnight + 2 * day))


class Turns:
    """A ledger of which each of two threads makes a call when it is its turn: `order` has a letter
    for each call."""

    def __init__(self, ledger, order):
        self.ledger, self.order, self.changed = ledger, list(order), threading.Condition()

    def of(self, name):
        turns = self

        class Waiting:
            def __getattr__(self, call):
                def waits(*arguments):
                    with turns.changed:
                        assert turns.changed.wait_for(
                            lambda: name not in turns.order or turns.order[0] == name, 30
                        )
                        try:
                            return getattr(turns.ledger, call)(*arguments)
                        finally:
                            del turns.order[:1]
                            turns.changed.notify_all()

                return waits

        return Waiting()

    def leave(self, name):
        with self.changed:
            self.order = [other for other in self.order if other != name]
            self.changed.notify_all()


LOOKED = "ab"
"""A view of each: both have looked before either has charged."""


@pytest.mark.parametrize("order", sorted(set(itertools.permutations("aabb"))), ids="".join)
def test_of_two_runs_that_begin_at_the_same_moment_in_two_zones_none_draws_unseen(order):
    """Each charges, and looks again. In any order, one of them is refused, or both."""
    ledger, refused = MemoryLedger(), set()
    turns = Turns(ledger, [*LOOKED, *order])

    def plan(name, flags, start):
        try:
            plan_slot(slot(start=start)[0], a_context(*flags), turns.of(name))
        except PrivacyRefused:
            refused.add(name)
        finally:
            turns.leave(name)

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(plan, "a", (), START), pool.submit(plan, "b", UTC, AFTERNOON)]:
            done.result()
    assert refused == ({"a", "b"} if order[0] != order[1] else {order[2]})
    assert {entry.period for entry in ledger.entries()} == set(ledger.periods()) and len(
        ledger.periods()
    ) == 2


@pytest.mark.parametrize(
    ("zone", "start"),
    [("America/Chicago", 1_647_086_400_000), ("Antarctica/Troll", 1_648_256_400_000)],
)
def test_slots_of_one_calendar_overlap_nothing_also_where_the_clock_changes(zone, start):
    ledger = MemoryLedger()
    for hour in range(0, 72, 4):
        run(ledger, a_context(f"hat.timezone={zone}"), slot(start=start + hour * 3_600_000))
    assert len({period[-6:] for period in ledger.periods()}) == 2
