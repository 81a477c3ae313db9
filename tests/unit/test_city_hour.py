"""The city's hour: when it is asked, what it costs, what its answer says, and what is made of that."""

import dataclasses
import datetime as dt
from functools import cache
from math import ceil

import h3.api.basic_int as h3
import msgspec
import numpy as np
import pytest

from tests.city_question import MeanSpeed
from tests.contract.add_remove import context_of
from tests.failing import Died
from tests.forms import long_but
from tests.unit.test_flow import run, slot
from udp_stream.base.errors import PrivacyRefused
from udp_stream.ledger.ids import CITY, CITY_HOUR, HAT, id_of, kind_of
from udp_stream.ledger.port import Admission
from udp_stream.ledgers.archive import archive, open_archive
from udp_stream.ledgers.opening import Holdings
from udp_stream.ledgers.sqlite import MemoryLedger, open_sqlite_ledger
from udp_stream.ledgers.statement import statement
from udp_stream.release import charge
from udp_stream.release.charge import ReleaseContext, plan_slot, with_forecaster
from udp_stream.release.city import (
    FULL_PINGS,
    WHOLE,
    CityHour,
    hour_answer,
    hour_residuals,
)
from udp_stream.release.promise import promise_of, release_slot
from udp_stream.release.record import Release
from udp_stream.release.rehearsal import AveragePrior, RehearsedCity
from udp_stream.release.withdrawal import withdraw
from udp_stream.settings import load
from udp_stream.testing import SeededEntropy, seeded_bits
from udp_stream.windows.tables import SlotPings, SlotValues, tabulate

HOUR_MS = 3_600_000
RHO = ("budget.accounting=approximate",)
PURE = ("budget.accounting=pure", "budget.epsilon=100")
FLAGS = ("hat.slot=1h", "hat.resolution=7", "release.min_plates=3", "release.mean=forecast-clip")
BOTH = pytest.mark.parametrize("flags", [RHO, PURE], ids=["rho", "pure"])
CELLS = np.sort(np.array(h3.grid_disk(h3.latlng_to_cell(21.17, 72.83, 7), 3), np.uint64))
PLATES, SLOTS = 160, 10


@cache
def settings_of(*flags):
    return load(None, (*FLAGS, *flags), {})


def context(*flags, seed=1, **fields):
    settings = settings_of(*flags)
    made = ReleaseContext(
        settings.policy, settings.calendar, SeededEntropy(seed), "udp-stream test", **fields
    )
    return with_forecaster(made)


SUNDAY = int(dt.datetime(2024, 1, 7, tzinfo=settings_of().calendar.slots.zone).timestamp() * 1000)


@cache
def counts_of(number, plates=PLATES):
    """Each plate has four cells, and is in two to four of them in a slot; of a day of ten slots,
    from six o'clock."""
    rng = np.random.default_rng([3, number])
    homes = np.random.default_rng(5).integers(0, CELLS.size, (plates, 4))
    visits = [
        (plate, cell, int(rng.integers(3, 40)))
        for plate in range(plates)
        for cell in rng.permutation(homes[plate])[: rng.integers(2, 5)]
    ]
    plate, cell, pings = map(np.array, zip(*visits, strict=True))
    day, hour = divmod(number, SLOTS)
    start = SUNDAY + (24 * day + 6 + hour) * HOUR_MS
    many = int(pings.sum())
    names = tuple(b"hash%04d" % i for i in range(plates))
    nothing = np.zeros(many, np.int32)
    times = np.arange(many, dtype=np.uint32)
    drawn = plate.repeat(pings).astype(np.uint32), times, CELLS[cell.repeat(pings)], nothing
    return tabulate(SlotPings(start, start + HOUR_MS, names, *drawn))[0]


@cache
def city_of(number, slots=SLOTS):
    """An invented city (`release/rehearsal.py`), whose speeds follow from counts as forecasts have
    it, and from much else."""
    every = [counts_of(at) for at in range(slots)]
    made = context()
    usual = AveragePrior.from_counts(every, made)
    invented = RehearsedCity(number, usual, made.policy.grid)
    return [(counts, invented.speeds(counts, made.policy.max_speed)) for counts in every]


def times(contents, factors):
    """The same with the speeds of some slots so many times as large."""
    for number, (counts, values) in enumerate(contents):
        speed = np.rint(values.speed * factors.get(number, 1.0)).astype(np.int64)
        yield counts, dataclasses.replace(values, speed=speed)


def hours_of(ledger):
    return [entry for entry in ledger.entries() if kind_of(entry.release_id) == CITY_HOUR]


def told_by(ledger):
    return [CityHour.decode(entry.payload) for entry in hours_of(ledger) if entry.payload]


# When it is asked.


def is_asked(counts, given, ledger=None):
    """Whether a slot is; where not, its HATs are planned at once."""
    ledger = MemoryLedger() if ledger is None else ledger
    plan = plan_slot(counts, given, ledger, asks=True)
    assert plan.is_question == bool(hours_of(ledger))
    if plan.is_question:
        assert not plan.charged.any() and {one.withheld for one in plan.terms} == {"unplanned"}
        assert {kind_of(entry.release_id) for entry in ledger.entries()} == {CITY_HOUR}
    else:
        assert HAT in {kind_of(entry.release_id) for entry in ledger.entries()}
        assert "unplanned" not in {one.withheld for one in plan.terms}
    return plan.is_question


@BOTH
def test_it_is_asked_of_a_city_before_its_hats_and_not_where_nobody_asks_for_it(flags):
    counts = counts_of(0)
    assert is_asked(counts, context(*flags))
    ledger = MemoryLedger()
    assert not plan_slot(counts, context(*flags), ledger, asks=False).is_question
    assert hours_of(ledger) == []


def test_the_caller_is_called_before_the_question_is_charged():
    """It notes the settings that plates are charged under."""
    log = []
    given = dataclasses.replace(context(*RHO), before_charge=lambda: log.append("(before)"))
    run(MemoryLedger(), given, city_of(0)[0], log=log)
    first, *_ = (at for at, call in enumerate(log) if call == "admit")
    assert "(before)" in log[:first]


def test_no_answer_is_drawn_once_another_run_has_charged_a_period_that_overlaps():
    """It began at once, and each looked before the other had charged."""
    counts, values = city_of(0)[0]
    ledger = MemoryLedger()

    def charge_elsewhere():
        other = context(*RHO, "budget.period=7d")
        period = other.calendar.slot_in_period(counts.start_ms).period
        one = np.ones(1, np.int64)
        ledger.admit(period, 9, counts.plates, [Admission("charged", 0 * one, one, 1, b"{}")])

    given = dataclasses.replace(context(*RHO), before_charge=charge_elsewhere)
    with pytest.raises(PrivacyRefused, match="7d"):
        release_slot(counts, values, given, ledger, lambda _: None)
    assert len(hours_of(ledger)) == 1 and not any(entry.payload for entry in ledger.entries())


def test_a_few_plates_are_no_city_whatever_they_can_pay():
    much = ("budget.accounting=pure", "budget.epsilon=1000")
    asked = [is_asked(counts_of(0, plates), context(*much)) for plates in (19, 20)]
    assert asked == [False, True]


FIXED = ("release.mean_epsilon=0.5", "release.cdf=off")
"""Prices that no automatic one replaces: those need a day."""


@pytest.mark.parametrize(
    ("flags", "is_enough"),
    [
        (RHO, True),
        ((*RHO, "budget.epsilon=3"), False),
        ((*RHO, "budget.period=7d"), False),
        (("budget.accounting=pure",), False),
        ((*PURE, *FIXED), True),
        ((*PURE, *FIXED, "budget.period=lifetime"), False),
        ((*RHO, *FIXED, "budget.period=lifetime"), False),
        (("budget.accounting=pure", "budget.epsilon=0.01"), False),
    ],
    ids=str,
)
def test_a_budget_that_lets_noise_drown_an_answer_is_not_charged_for_it(flags, is_enough):
    assert is_asked(counts_of(0), context(*flags)) == is_enough


def test_a_longer_period_pays_for_a_day_s_part_of_it():
    costs = []
    for flags in (PURE, (*PURE, "budget.period=2d", "budget.epsilon=200")):
        is_asked(counts_of(0), context(*flags), ledger := MemoryLedger())
        costs.append(max(hours_of(ledger)[0].charged.tolist()))
    assert costs[0] == costs[1] == 100 * 10**9 * 48 // 1000 // 24


def test_a_partial_slot_is_not_asked():
    assert not is_asked(dataclasses.replace(counts_of(0), partial=True), context(*RHO))


@pytest.mark.parametrize("mean", ["baseline", "optimal"])
def test_without_forecasts_nothing_is_asked(mean):
    assert not is_asked(counts_of(0), context(*RHO, f"release.mean={mean}"))


def test_where_a_question_of_one_s_own_is_asked_the_hour_is_not():
    ledger = MemoryLedger()
    run(ledger, context(*RHO, city=MeanSpeed()), city_of(0)[0])
    assert hours_of(ledger) == [] and CITY in {kind_of(one.release_id) for one in ledger.entries()}


def test_under_add_remove_nothing_is_asked():
    given, ledger = context_of("budget.epsilon=1000"), MemoryLedger()
    counts, values = slot(plates=60, pings=6000)
    assert not promise_of(given.policy).plan(counts, given, ledger, True).is_question
    run(ledger, given, (counts, values))
    assert hours_of(ledger) == []


def spend(ledger, counts, given, plates):
    """Leave these plates with too little for anything."""
    budget = given.policy.budget_nano
    period = given.calendar.slot_in_period(counts.start_ms).period
    members = np.array(plates)
    charges = np.full(members.size, budget - 10)
    ledger.admit(period, budget, counts.plates, [Admission("before", members, charges, 0, b"")])


@BOTH
def test_who_cannot_pay_takes_no_part_and_where_most_cannot_nobody_pays(flags):
    counts, values = city_of(0)[0]
    for poor, share in ((range(0, PLATES, 3), 0.3), (range(PLATES * 2 // 3), 0.6)):
        given, ledger = context(*flags), MemoryLedger()
        spend(ledger, counts, given, poor)
        published = run(ledger, given, (counts, values))
        assert len(published) == counts.cells.size
        (entry,) = hours_of(ledger)
        paid = {
            plate for plate, nano in zip(entry.plates, entry.charged.tolist(), strict=True) if nano
        }
        if share > 0.5:
            assert not paid and entry.payload is None
        else:
            assert paid == {plate for i, plate in enumerate(counts.plates) if i not in poor}
            assert CityHour.decode(entry.payload).plates == len(paid) == PLATES - len(poor)


@BOTH
def test_plates_pay_in_proportion_to_their_weights(flags):
    """In epsilon by the weight, in rho by its square. Few pings weigh in proportion, many all the
    same."""
    every = counts_of(0)
    few = every.plate % 3 == 0
    counts = dataclasses.replace(every, count=np.where(few, 1 + every.plate % 2, every.count))
    ledger = MemoryLedger()
    plan = plan_slot(counts, context(*flags), ledger, asks=True)
    assert plan.is_question
    pings = np.bincount(counts.plate, weights=counts.count)
    weight = np.minimum(pings, FULL_PINGS) / FULL_PINGS
    assert len(set(weight.tolist())) > 3
    (entry,) = hours_of(ledger)
    charged = dict(zip(entry.plates, entry.charged.tolist(), strict=True))
    paid = np.array([charged[plate] for plate in counts.plates]) / max(charged.values())
    assert paid == pytest.approx(weight ** (1 if flags is PURE else 2), rel=4e-3)
    assert plan.city.weights[0] == WHOLE * min(pings[counts.plate[0]], 10) // (
        10 * pings[counts.plate[0]]
    )
    budget = settings_of(*flags).policy.budget_nano
    assert max(charged.values()) == budget * 48 // 1000 // 24


@BOTH
def test_all_answers_of_a_day_cost_a_plate_a_twentieth_of_its_budget(flags):
    ledger, given = MemoryLedger(), context(*flags)
    for contents in city_of(0):
        run(ledger, given, contents)
    assert len(hours_of(ledger)) == SLOTS
    spent = sum(int(entry.charged.max()) for entry in hours_of(ledger))
    assert ceil(24 / SLOTS * spent / given.policy.budget_nano * 1000) in (48, 49)


# What an answer says.


def answers(flags, off, draws=300):
    """Answers of a city all plates of which are so far off, km/h, and 4 km/h each of its own."""
    counts = counts_of(0)
    plan = plan_slot(counts, context(*flags), MemoryLedger(), asks=True)
    starts = np.append(0, np.cumsum(counts.count))
    for number in range(draws):
        kmh = np.random.default_rng(number).normal(off, 4.0, PLATES)
        driven = plan.city.around + np.rint(4096 * kmh[counts.plate]).astype(np.int64)
        values = SlotValues(np.repeat(driven, counts.count), starts)
        residuals = hour_residuals(counts, values, plan.city.around)
        bits = seeded_bits(f"{number}")
        yield CityHour.decode(hour_answer(residuals, counts, plan.city, bits))


@BOTH
@pytest.mark.parametrize("off", [0, -4, -7, 5])
def test_an_answer_undoes_the_clip_and_its_intervals_are_honest(flags, off):
    found = list(answers(flags, off))
    told = np.array([one.offset_kmh for one in found])
    deviation = np.array([one.deviation_kmh for one in found])
    z = (told - off) / deviation
    # Half of the clip's room is 5 km/h: without undoing it -7 would be told as -5 at most.
    assert np.median(told) == pytest.approx(off, abs=0.7)
    assert (np.abs(z) < 1.645).mean() >= 0.9 and (np.abs(z) < 1.96).mean() >= 0.94
    assert 0.4 < np.sqrt((z**2).mean()) < 1.0, "no wider than is needed"
    assert np.median(deviation) < 4.0
    usual = {one.usual_deviation_kmh for one in found}
    assert len(usual) == 1 and min(usual) <= deviation.min() * 1.01


def test_an_offset_beyond_the_table_is_told_as_its_end_with_little_confidence():
    found = list(answers(PURE, -25, draws=50))
    at_end = [one for one in found if one.offset_kmh == -12.0]
    assert len(at_end) > 20 and max(one.offset_kmh for one in found) < -6
    assert min(one.deviation_kmh for one in at_end) > 8


# What is made of it.


def played(contents, flags=RHO, seed=1, ledger=None, restarts=False):
    """The errors of each slot's forecasts and estimates, in km/h, weighed by pings; records and
    estimates of each as bytes; and the ledger."""
    ledger = MemoryLedger() if ledger is None else ledger
    given = context(*flags, seed=seed)
    errors, told = [], []
    for counts, values in contents:
        given = with_forecaster(given) if restarts else given
        recorded = release_slot(counts, values, given, ledger, publish=lambda _: None)
        given = with_forecaster(given) if restarts else given
        estimates = given.smoothed(counts.slot, ledger)
        told.append([*recorded.payloads.values(), *map(msgspec.json.encode, estimates)])
        of_row = np.add.reduceat(values.speed.astype(float), values.starts[:-1])
        pings = np.add.reduceat(counts.count, counts.hat_rows[:-1])
        truth = np.add.reduceat(of_row, counts.hat_rows[:-1]) / pings / 4096
        releases = map(Release.decode, recorded.payloads.values())
        forecast = np.array([one.forecast.value_kmh for one in releases])
        by_id = {one.release_id: one.value_kmh for one in estimates}
        estimate = np.array([by_id[id_] for id_ in recorded.payloads])
        of_slot = [np.average(np.abs(one - truth), weights=pings) for one in (forecast, estimate)]
        errors.append(of_slot)
    return np.array(errors), told, ledger


SLOW = 6
"""The slot in which the city slows down."""


def beside(contents, seeds):
    """Errors with the question and without, over some draws, shape (2, slots, 2)."""
    found = []
    for asks in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            if not asks:
                patch.setattr(charge, "hour_plan", lambda *_: None)
            runs = [played(contents, seed=seed) for seed in seeds]
        assert all(len(told_by(ledger)) == len(contents) * asks for *_, ledger in runs)
        found.append(np.mean([errors for errors, *_ in runs], axis=0))
    return np.array(found)


@pytest.mark.parametrize("number", long_but([1], [0, 1]))
def test_a_city_that_slows_down_is_known_before_its_hats_and_the_next_slot_is_not_spoilt(number):
    contents = list(times(city_of(number), {SLOW: 0.6}))[: SLOW + 3]
    asked, unasked = beside(contents, seeds=range(1, 5))
    forecast, estimate = (asked / unasked)[SLOW]
    assert forecast < 0.8 and estimate < 0.75
    assert (asked[SLOW + 1] < 1.15 * unasked[SLOW + 1]).all()
    # The next but one, too.
    assert (asked[SLOW + 2] < 1.15 * unasked[SLOW + 2]).all()


@pytest.mark.parametrize("number", long_but([0], [0, 1]))
def test_an_ordinary_day_is_estimated_as_well_as_without_the_question(number):
    asked, unasked = beside(city_of(number), seeds=range(2))
    assert asked[:, 1].mean() < 1.03 * unasked[:, 1].mean()
    assert asked[:, 0].mean() < 1.03 * unasked[:, 0].mean()


@pytest.mark.parametrize("flags", [RHO, PURE], ids=["rho", "pure"])
def test_a_restart_comes_to_the_same_bytes_from_the_ledger_alone(flags):
    contents = list(times(city_of(1), {3: 0.6}))[:6]
    _, told, ledger = played(contents, flags)
    _, again, other = played(contents, flags, restarts=True)
    assert told == again and len(told_by(ledger)) == len(contents)
    assert [repr(one) for one in ledger.entries()] == [repr(one) for one in other.entries()]
    # So does one that died between answer and HATs of the slow slot.
    log, half = [], MemoryLedger()
    played(contents[:3], flags, ledger=(begun := MemoryLedger()))
    played(contents[:3], flags, ledger=half)
    run(begun, context(*flags), contents[3], log=log)
    with pytest.raises(Died):
        run(half, context(*flags), contents[3], log.index("published"), answered=True)
    assert len(told_by(half)) == 4 and len(hours_of(half)) == 4
    assert played(contents[3:], flags, ledger=half)[1] == told[3:]


class Deaf:
    """A ledger that does not know the answer of a slot."""

    def __init__(self, ledger, counts):
        self._ledger = ledger
        self._id = id_of(CITY_HOUR, *counts.slot)

    def __getattr__(self, name):
        return getattr(self._ledger, name)

    def recorded(self, ids):
        found = self._ledger.recorded(ids)
        return [None if id_ == self._id else one for id_, one in zip(ids, found, strict=True)]


def test_a_slot_of_which_a_hat_was_withdrawn_tells_nothing_of_its_city():
    contents = list(times(city_of(0), {4: 0.6}))[:6]
    *_, ledger = played(contents[:5])
    slow, then = contents[4][0], contents[5][0]
    deaf = Deaf(ledger, slow)

    def estimated(place, counts):
        return list(map(msgspec.json.encode, context(*RHO).smoothed(counts.slot, place)))

    def planned(place):
        """Forecasts of the slot behind it, by counts alone."""
        given = context(*RHO)
        history = charge.LedgerHistory(place, given.policy.grid)
        return given.forecaster.forecast(then, history).mean.tolist()

    assert estimated(ledger, slow) != estimated(deaf, slow) and planned(ledger) != planned(deaf)
    (id_, *_) = (
        entry.release_id
        for entry in ledger.entries()
        if kind_of(entry.release_id) == HAT and str(slow.start_ms // 1000) in entry.release_id
    )
    withdraw(ledger, [id_], "a test", "2024-01-07T12:00:00+05:30", "udp-stream test")
    assert estimated(ledger, slow) == estimated(deaf, slow) and planned(ledger) == planned(deaf)


# In the statement.


def test_the_statement_counts_hours_apart_from_cdfs():
    *_, ledger = played(city_of(0)[:3], PURE)
    kinds = [kind_of(one.release_id) for one in ledger.entries() if one.payload]
    assert kinds.count(CITY_HOUR) == 3 > kinds.count(CITY) > 0
    said = statement(settings_of(*PURE), ledger)["city"]
    assert said["slots_charged"] == said["slots_recorded"] == kinds.count(CITY)
    assert said["hours_charged"] == said["hours_recorded"] == 3
    loss = statement(settings_of(*PURE), ledger)["privacy"]["privacy_loss"]
    (period,) = loss["periods"]
    balances = ledger.balances(hours_of(ledger)[0].period, counts_of(0).plates)
    assert period["epsilon_max_over_plates"] == balances.charged.max() / 10**9


def test_one_that_was_charged_and_not_answered_is_counted_as_such():
    counts, values = city_of(0)[0]
    ledger, log = MemoryLedger(), []
    run(MemoryLedger(), context(*RHO), (counts, values), log=log)
    with pytest.raises(Died):
        run(ledger, context(*RHO), (counts, values), log.index("record"))
    said = statement(settings_of(*RHO), ledger)["city"]
    assert (said["hours_charged"], said["hours_recorded"]) == (1, 0)
    assert (said["slots_charged"], said["slots_recorded"]) == (0, 0)


# In the ledger, where a day is archived.


def test_no_reader_waits_for_an_answer_and_an_archive_takes_it_with_its_day(tmp_path):
    contents = [city_of(0, SLOTS + 1)[at] for at in (0, SLOTS)]
    (today, values), log = contents[1], []
    with open_sqlite_ledger(tmp_path / "ledger") as ledger:
        undisturbed = MemoryLedger()
        for place in (ledger, undisturbed):
            run(place, context(*RHO), contents[0])
        run(undisturbed, context(*RHO), contents[1], log=log)
        with pytest.raises(Died):  # it is recorded, and not marked as published
            run(ledger, context(*RHO), (today, values), log.index("record"), answered=True)
        waits = [id_ for id_, _ in ledger.unpublished()]
        assert waits == [id_of(CITY_HOUR, *today.slot)] and Holdings.of(ledger).unpublished == 0
        run(ledger, context(*RHO), (today, values))
        assert list(ledger.unpublished()) == [] and ledger.verify() == []
        hours = {entry.release_id: entry.payload for entry in hours_of(ledger)}
        midnight = (SUNDAY + 24 * HOUR_MS) // 1000
        archive(ledger, midnight, tmp_path / "archived")
        with open_archive(tmp_path / "archived") as archived:
            kept = [
                {one.release_id: one.payload for one in hours_of(at)} for at in (archived, ledger)
            ]
        assert [len(one) for one in kept] == [1, 1] and kept[0] | kept[1] == hours
        assert ledger.verify() == []
