"""The road of "add-remove" by hand: what it charges, what its records say, and what follows from
its sums alone."""

import dataclasses
from collections import Counter
from datetime import datetime
from itertools import product
from math import ceil

import msgspec
import numpy as np
import pytest

from tests.contract.add_remove import CELLS, DOMAIN, FLAGS, HOUR, context_of, empty, run
from tests.failing import DyingLedger
from tests.unit.test_flow import START, a_context, slot
from udp_stream.base.errors import PrivacyRefused, UdpStreamError
from udp_stream.cli.report import utility_sentences
from udp_stream.ledger.ids import DAY_SUMS, NOISED_SUMS, Id, end_of, id_of, kind_of
from udp_stream.ledger.port import Admission
from udp_stream.ledgers.archive import archive, open_archive, periods_of, whole_periods
from udp_stream.ledgers.opening import Holdings, ledger_sentence, progress_of
from udp_stream.ledgers.sqlite import MemoryLedger, open_sqlite_ledger
from udp_stream.ledgers.statement import disagreement, statement
from udp_stream.mechanisms.add_remove import entries
from udp_stream.planning.slot import PlannedSlot, SlotPlan
from udp_stream.release import charge
from udp_stream.release.add_remove import record_add_remove_slot, rows_in
from udp_stream.release.charge import plan_slot, require_one_promise
from udp_stream.release.events import Summary
from udp_stream.release.forecaster import AddRemoveForecaster, LedgerHistory
from udp_stream.release.pipeline import record_slot
from udp_stream.release.promise import PROMISES, release_slot
from udp_stream.release.record import Release, Smoothed
from udp_stream.release.sums import NoisedSums
from udp_stream.release.withdrawal import withdraw
from udp_stream.settings import load
from udp_stream.testing import SeededEntropy, released_slot

DAY = 24 * HOUR
MIDNIGHT = START - 10 * HOUR


def sums_entry(ledger, start=START):
    (entry,) = (
        one for one in ledger.entries() if one.release_id == id_of(NOISED_SUMS, start, start + HOUR)
    )
    return entry


def charges(entry):
    return {
        plate: nano
        for plate, nano in zip(entry.plates, entry.charged.tolist(), strict=True)
        if nano
    }


def test_each_plate_is_charged_what_its_own_vector_costs_or_its_share_of_what_it_has_left():
    ledger, context, spent = (
        MemoryLedger(),
        context_of(),
        dict.fromkeys((f"hash{i:04}".encode() for i in range(12)), 0),
    )
    budget, was_cut, was_whole = context.policy.budget_nano, 0, 0
    for hour in range(10, 24):  # of a day of 24
        contents = slot(hour, pings=200 if hour % 2 else 3000, start=MIDNIGHT + hour * HOUR)
        run(ledger, context, contents)
        entry = sums_entry(ledger, MIDNIGHT + hour * HOUR)
        asked = NoisedSums.of_ledger("sums", entry.payload).asked
        prices = entries(rows_in(asked.domain, *contents), asked.query).charges(
            len(contents[0].plates), asked.query
        )
        for plate, price in zip(contents[0].plates, prices.tolist(), strict=True):
            share = min(1.0, 1.5 / min(24 - hour, 12)) * (budget - spent[plate])
            charged = charges(entry).get(plate, 0)
            assert charged == pytest.approx(min(price, share), abs=3)
            spent[plate] += charged
            was_cut, was_whole = was_cut + (charged < price), was_whole + (0 < charged == price)
    assert was_cut > 10 and was_whole > 10 and 0.5 * budget < max(spent.values()) <= budget
    assert ledger.verify() == []


@pytest.mark.parametrize("plates", [False, True])
def test_a_record_follows_from_the_sums(plates):
    ledger, context = MemoryLedger(), context_of(f"release.plates={str(plates).lower()}")
    published = run(ledger, context, slot())
    sums = NoisedSums.of_ledger("sums", sums_entry(ledger).payload)
    records = [Release.decode(payload) for payload in published.values()]
    assert [int(one.hat.cell, 16) for one in records] == sorted(sums.asked.domain.tolist()) and len(
        records
    ) == CELLS
    for at, record in enumerate(records):
        assert (record.status, record.mean, record.variance, record.cdf, record.counts) == (
            "released",
            *[None] * 4,
        )
        noised, privacy = record.noised, record.privacy
        amount = noised.plates if plates else noised.weight
        assert noised.residual == pytest.approx(sums.residual[at] / 4096, abs=1e-3)
        assert amount == pytest.approx(sums.weight[at] / 4096 / 5, abs=1e-3)
        assert (noised.weight is None, noised.plates is None) == (plates, not plates)
        assert noised.forecast_kmh == 18.0 and noised.sd == pytest.approx(
            context.forecaster.rules.first_sigma / 4096, abs=1e-3
        )
        assert (privacy.neighbours, privacy.holds_for, privacy.period) == (
            "add-remove",
            "period",
            "1d",
        )
        assert (
            privacy.epsilon == privacy.period_epsilon == 10.0 and privacy.rho == privacy.period_rho
        )
        assert 23.4 < privacy.swap_epsilon < 23.5
        assert Release.encode(record) == published[record.release_id]


def test_records_of_swap_values_are_as_they_were():
    (payload, *_) = released_slot().payloads.values()
    assert (
        b"noised" not in payload
        and b"swap_epsilon" not in payload
        and Release.encode(Release.decode(payload)) == payload
    )


def test_a_slot_without_pings_makes_the_same_calls_and_as_many_records():
    logs, found = [], []
    for contents in (slot(), slot(1, pings=3000), empty()):
        logs.append([])
        found.append(run(MemoryLedger(), context_of(), contents, log=logs[-1]))
    # A period in which somebody was charged is known not to be archived.
    logs = [[name for name in log if name != "meta"] for log in logs]
    assert logs[0] == logs[1] == logs[2] and logs[0].count("admit") == 2
    assert list(found[0]) == list(found[1]) == list(found[2])
    assert (
        len({tuple(sorted(msgspec.json.decode(one))) for of in found for one in of.values()}) == 1
    )


def test_a_slot_that_is_recorded_charges_and_draws_nothing_and_gives_the_same_bytes():
    ledger, log = MemoryLedger(), []
    first = run(ledger, context_of(seed=1), slot())
    before = list(ledger.entries())
    assert run(ledger, context_of(seed=2), slot(1, pings=3000), log=log) == first
    assert "admit" not in log and len(before) == len(list(ledger.entries()))


def learnt(ledger, context, hours, since=MIDNIGHT):
    """Estimates by slot, made one after another by one worker."""
    found = {}
    for hour in hours:
        start = since + hour * HOUR
        contents = (
            empty(start) if hour % 24 < 5 else slot(hour, pings=600 + 100 * (hour % 7), start=start)
        )
        record_add_remove_slot(*contents, context, ledger)
        found[start] = [
            Smoothed.encode(one) for one in context.smoothed((start, start + HOUR), ledger)
        ]
    return found


def test_a_worker_that_takes_over_comes_to_the_same_forecasts_and_estimates():
    """At any hour of three days: its state follows from the ledger's last days alone."""
    ledger, context, history = MemoryLedger(), context_of(), None
    found = learnt(ledger, context, range(72))
    history = LedgerHistory(ledger)
    assert all(len(of) == CELLS for of in found.values())
    for hour in (1, 23, 24, 25, 40, 47, 48, 60, 71):
        start = MIDNIGHT + hour * HOUR
        again = PROMISES["add-remove"].with_forecaster(context)
        asked = history.sums((start, start + HOUR)).asked
        other = (
            PROMISES["add-remove"]
            .with_forecaster(context)
            .forecaster.forecast((start, start + HOUR), history)
        )
        assert np.array_equal(np.rint(other * 4096).astype(np.int64), asked.query.forecast)
        assert [
            Smoothed.encode(one) for one in again.smoothed((start, start + HOUR), ledger)
        ] == found[start]
    forecasts = {history.sums((start, start + HOUR)).asked.forecast for start in found}
    assert len(forecasts) > 60


def test_estimates_have_traffic_and_a_release_for_every_cell():
    ledger = MemoryLedger()
    for plates in (False, True):
        context = context_of(f"release.plates={str(plates).lower()}")
        record_add_remove_slot(
            *slot(plates, pings=3000, start=START + plates * HOUR), context, ledger
        )
        of_slot = START + plates * HOUR, START + (1 + plates) * HOUR
        for one in context.smoothed(of_slot, ledger):
            low, high = one.interval95_kmh
            assert low <= one.value_kmh <= high <= 65 and Id.of(one.release_id).slot == tuple(
                ms // 1000 for ms in of_slot
            )
            assert (one.cdf, one.cdf_withheld, one.plates is None) == (
                None,
                "off" if plates else "city_untold",
                not plates,
            )
            amount = one.plates if plates else one.traffic
            assert (
                amount.interval95[0]
                <= (amount.value if plates else amount.bus_hours)
                <= amount.interval95[1]
            )


@pytest.mark.parametrize("flags", [(), ("release.cdf=off",)])
def test_from_the_second_day_on_estimates_have_the_city_s_cdf_tilted_to_their_mean(flags):
    ledger, context, found = MemoryLedger(), context_of(*flags), []
    for hour in (10, 34, 35, 36):
        contents = slot(hour, 400, pings=40_000, start=MIDNIGHT + hour * HOUR)
        record_add_remove_slot(*contents, context, ledger)
        slots = contents[0].start_ms, contents[0].end_ms
        found.append(context.smoothed(slots, ledger))
        payload = sums_entry(ledger, slots[0]).payload
        # Terms of earlier versions are of such bytes.
        assert (b"spread" in payload) == (NoisedSums.of_ledger("", payload).spread is not None)
        assert (b"spread" in payload) == (hour > 10 and not flags)
    again = PROMISES["add-remove"].with_forecaster(context)
    assert again.smoothed(slots, ledger) == found[-1] and len(found[-1]) == CELLS
    assert {one.cdf for one in found[0]} == {None}
    true = np.array([np.mean(contents[1].speed <= kmh * 4096) for kmh in (10, 20, 45)])
    for one in found[-1]:
        if flags:
            assert (one.cdf, one.cdf_withheld) == (None, "off")
            continue
        assert one.cdf.values[-1] == 1 and list(one.cdf.values) == sorted(one.cdf.values)
        low, high = one.cdf.band
        assert all(a <= b <= c for a, b, c in zip(low, one.cdf.values, high, strict=True))
        at = [one.cdf.edges_kmh.index(kmh) for kmh in (10, 20, 45)]
        assert np.array(one.cdf.guess)[at] == pytest.approx(true, abs=0.12)
        assert 0 < one.expected_sup_error < 0.5 and one.cdf_withheld is None
    if not flags:
        slow, *_, fast = sorted(found[-1], key=lambda one: one.value_kmh)
        assert slow.share_below_kmh["10"] > fast.share_below_kmh["10"]


def test_nothing_is_learnt_of_a_slot_of_which_a_hat_is_withdrawn():
    ledger, context = MemoryLedger(), context_of()
    learnt(ledger, context, range(8, 12))
    expected = MemoryLedger()
    learnt(expected, context_of(), (8, 9))
    other = MIDNIGHT + 12 * HOUR, MIDNIGHT + 13 * HOUR
    before = context.forecaster.forecast(other, LedgerHistory(ledger))
    wrong = [
        id_
        for id_ in ledger.newest()
        if kind_of(id_) == "hat" and Id.of(id_).slot[0] * 1000 >= MIDNIGHT + 10 * HOUR
    ]
    withdraw(ledger, [wrong[0], wrong[-1]], "unit was mph", "2022-01-02T09:00:00+00:00", "test")
    after = context.forecaster.forecast(other, LedgerHistory(ledger))
    never = (
        PROMISES["add-remove"]
        .with_forecaster(context)
        .forecaster.forecast(other, LedgerHistory(expected))
    )
    assert np.array_equal(after, never) and not np.array_equal(after, before)


def test_a_slot_is_finished_in_the_domain_and_with_the_noise_that_it_was_charged_with(tmp_path):
    """Of another domain's sums the next forecast learns nothing."""
    (tmp_path / "cells").write_text("".join(DOMAIN.read_text().splitlines(keepends=True)[:4]))

    def smaller():
        settings = load(None, (*FLAGS, f"hat.domain={tmp_path / 'cells'}", "budget.epsilon=8"), {})
        return PROMISES["add-remove"].with_forecaster(
            dataclasses.replace(
                context_of(),
                policy=settings.policy,
                calendar=settings.calendar,
                domain=settings.domain,
            )
        )

    ledger = MemoryLedger()

    class Dies(SeededEntropy):
        def streams(self, release_ids):
            raise InterruptedError(release_ids)

    with pytest.raises(InterruptedError):
        run(ledger, dataclasses.replace(context_of(), entropy=Dies(1)), slot())
    charged = charges(sums_entry(ledger))
    context = smaller()
    found = run(ledger, context, slot())
    assert len(found) == CELLS and charged == charges(sums_entry(ledger))
    assert {Release.decode(one).privacy.period_epsilon for one in found.values()} == {10.0}
    assert context.smoothed((START, START + HOUR), ledger) == []
    assert len(run(ledger, context, slot(1, start=START + HOUR))) == 3
    assert len(context.smoothed((START + HOUR, START + 2 * HOUR), ledger)) == 3


def test_a_plan_charges_nothing():
    ledger, counts = MemoryLedger(), slot()[0]
    plan = PROMISES["add-remove"].plan(counts, context_of(), ledger, True)
    assert plan.cells.size == 0 and not list(ledger.entries())
    with pytest.raises(PrivacyRefused, match="swap-values"):
        plan_slot(counts, context_of(), ledger)
    assert not list(ledger.entries())


def test_charges_of_the_other_promise_at_the_same_time_are_refused():
    ledger, context = MemoryLedger(), context_of()
    one, period = (
        np.array([0]),
        context.calendar.slot_in_period(START).period.replace(" of whole plates", ""),
    )
    ledger.admit(
        period,
        10**9,
        [b"hash0001"],
        [Admission("8742d98b6ffffff-1641000000-3600", one, one + 5, 1, b"")],
    )
    with pytest.raises(PrivacyRefused, match=r"privacy\.neighbours"):
        run(ledger, context, slot())
    assert not any(kind_of(entry.release_id) == NOISED_SUMS for entry in ledger.entries())


@pytest.mark.parametrize("notes", [True, False])
def test_a_hat_that_died_before_its_record_is_not_finished_under_another_promise(notes, planted):
    """Also on a ledger of an older version, which noted nothing where nobody was charged."""
    if not notes:
        planted(charge, note_requested=lambda *_: None)
    roads = {
        name: lambda ledger, sets=sets: release_slot(
            *slot(), a_context(*sets), ledger, lambda _: None
        )
        for name, sets in {"swap-values": ("release.min_plates=1000",), "charged": ()}.items()
    }
    hidden = {"add-remove": lambda ledger: run(ledger, context_of(), empty())}
    for first, second in (
        *product(roads.items(), hidden.items()),
        *product(hidden.items(), roads.items()),
    ):
        ledger = MemoryLedger()
        dying = DyingLedger(ledger)
        dying.record = lambda releases, ledger=ledger: [
            ledger.record([one])[0] if kind_of(one[0]) == NOISED_SUMS else 1 / 0 for one in releases
        ]
        with pytest.raises(ZeroDivisionError):
            first[1](dying)
        before = [entry.release_id for entry in ledger.entries()]
        with pytest.raises(PrivacyRefused, match=r"privacy\.neighbours") as refused:
            second[1](ledger)
        assert "another version" not in str(refused.value)
        assert not any(
            entry.payload for entry in ledger.entries() if kind_of(entry.release_id) == "hat"
        )
        assert notes is False or [entry.release_id for entry in ledger.entries()] == before


@pytest.mark.parametrize("pings", [0, 600])
@pytest.mark.parametrize("flags", [("budget.period=7d",), None])
def test_another_promise_at_the_same_time_is_refused_with_and_without_plates(pings, flags):
    """Else the status would tell whether anybody was charged."""
    ledger, context = MemoryLedger(), context_of()
    run(ledger, context, slot(pings=pings) if pings else empty())
    if flags is not None:
        with pytest.raises(PrivacyRefused, match=r"budget\.period"):
            run(ledger, context_of(*flags), empty(START + HOUR))
        run(ledger, context, empty(START + HOUR))  # what was refused refuses nothing
    else:
        calendar = load(None, ("hat.slot=1h",), {}).calendar
        with pytest.raises(PrivacyRefused, match=r"privacy\.neighbours"):
            require_one_promise(calendar.slot_in_period(START).period, 10**9, calendar, ledger, ())


def test_sums_and_terms_of_another_version_are_refused_in_words():
    ledger, context = MemoryLedger(), context_of()
    period, nobody = context.calendar.slot_in_period(START).period, np.zeros(0, np.int64)
    name = id_of(NOISED_SUMS, START, START + HOUR)
    ledger.admit(period, 10**9, (), [Admission(name, nobody, nobody, 0, b'{"v":"presence.0"}')])
    with pytest.raises(PrivacyRefused, match="another version"):
        run(ledger, context, slot())
    ledger.record([(name, b"{}")])
    with pytest.raises(PrivacyRefused, match="expected its record"):
        run(ledger, context, slot())


def test_the_road_of_swap_values_refuses_plates_that_are_hidden():
    context, ledger, (counts, values) = context_of(), MemoryLedger(), slot()
    with pytest.raises(PrivacyRefused, match="swap-values"):
        empty = PlannedSlot(counts, SlotPlan.empty(counts), context.policy)
        record_slot(empty, values, context, ledger)
    assert not list(ledger.entries())


def test_the_road_without_its_forecaster_is_refused():
    context = dataclasses.replace(context_of(), forecaster=None)
    with pytest.raises(UdpStreamError, match="add-remove"):
        run(MemoryLedger(), context, slot())


def test_a_statement_has_no_figure_that_follows_from_pings():
    """Nor does it say in which periods somebody was charged."""
    texts = []
    settings = load(None, FLAGS, {})
    for pings in (0, 3000):
        ledger, context = MemoryLedger(), context_of()
        for hour in (0, 1, 30):
            start = START + hour * HOUR
            run(ledger, context, slot(hour, pings=pings, start=start) if pings else empty(start))
        texts.append(statement(settings, ledger))
    assert texts[0] == texts[1] and disagreement(settings, texts[1]) is None
    loss = texts[1]["privacy"]["privacy_loss"]
    assert len(loss["periods"]) == 2 and loss["charged_under"][0]["hats_charged"] == 3 * CELLS
    assert (
        loss["privacy_parameters"]["epsilon"] == 10.0
        and 23.4 < loss["swap_values"]["epsilon"] < 23.5
    )


def test_a_ledger_s_sentence_and_view_know_sums_that_wait_for_no_reader():
    ledger, context = MemoryLedger(), context_of()
    name = id_of(NOISED_SUMS, START, START + HOUR)
    assert end_of(name) == (START + HOUR) // 1000 and Id.of(name).slot == (
        START // 1000,
        end_of(name),
    )
    ledger.published = lambda ids: None
    recorded = record_add_remove_slot(*slot(), context, ledger)
    assert name in dict(ledger.unpublished()) and Holdings.of(ledger).unpublished == CELLS
    said = ledger_sentence("here", ledger.meta(), progress_of(ledger), context.calendar.slots)
    assert f"{CELLS + 1} HATs and slots, the first of the slot 2022-01-01T10:00:00+05:30" in said
    assert list(recorded.payloads) == sorted(recorded.payloads)


def test_a_summary_says_what_is_protected_and_for_whom_it_is():
    summary, settings = Summary(), load(None, FLAGS, {})
    (said,) = utility_sentences(summary, settings)
    assert (
        "all pings of each plate" in said
        and "Not for readers" in said
        and "Not protected" not in said
    )


@pytest.mark.parametrize("pings", [0, 600])
def test_days_that_are_over_are_archived_with_their_sums_with_and_without_plates(tmp_path, pings):
    """Up to a midnight that does not follow from whether somebody was charged."""
    with open_sqlite_ledger(tmp_path / "ledger") as ledger:
        for hour in range(10, 106, 12):
            start = MIDNIGHT + hour * HOUR
            record = slot(hour, pings=pings, start=start) if pings else empty(start)
            record_add_remove_slot(*record, context_of(), ledger).published(ledger)
        asked_s = (MIDNIGHT + 2 * DAY) // 1000
        assert whole_periods(asked_s + 3600, periods_of(ledger)) == asked_s
        done = archive(ledger, asked_s, tmp_path / "archive")
        assert (done.entries, done.periods) == (4 * (CELLS + 1) + 1, 2) and ledger.verify() == []
        with open_archive(done.path) as copy:
            assert sum(kind_of(entry.release_id) == NOISED_SUMS for entry in copy.entries()) == 4
        with pytest.raises(PrivacyRefused, match="archived"):
            run(ledger, context_of(), slot(start=START + HOUR))
        assert len(LedgerHistory(ledger).sums_since(0)) == 4


def test_the_forecast_is_of_the_day_and_hour_of_the_slot(monkeypatch):
    context, asked = context_of(), []
    monkeypatch.setattr(
        "udp_stream.forecast.add_remove.AddRemoveMemory.forecast",
        lambda _, *when: asked.append(when) or np.full(CELLS, 18.0),
    )
    run(MemoryLedger(), context, empty())
    (day, hours), zone = asked[0], context.calendar.slots.zone
    assert day == datetime.fromtimestamp(START / 1000, zone).date() and hours == 10.0
    assert isinstance(context.forecaster, AddRemoveForecaster) and ceil(hours) == 10


QUARTERS = "hat.slot=6h"


def quarters(*flags, days=2, ledger=None, skipped=()):
    """Days of four slots; the first is the first that is learnt."""
    ledger, context = ledger or MemoryLedger(), context_of(QUARTERS, *flags)
    for number in range(4 * days):
        start = MIDNIGHT + 6 * number * HOUR
        if number not in skipped:
            contents = of_six_hours(slot(number, pings=9000, start=start))
            record_add_remove_slot(*contents, context, ledger).published(ledger)
            context.smoothed((start, start + 6 * HOUR), ledger)
    return ledger, context


def of_six_hours(contents):
    counts, values = contents
    return dataclasses.replace(counts, end_ms=counts.start_ms + 6 * HOUR), values


def days_in(ledger):
    return [entry for entry in ledger.entries() if kind_of(entry.release_id) == DAY_SUMS]


@pytest.mark.parametrize(
    ("flags", "days", "expected"),
    [((), 1, 0), ((), 3, 2), (("budget.period=7d",), 3, 2), (("release.plates=true",), 2, 0),
     (("budget.period=12h",), 2, 0), (("budget.epsilon=1",), 2, 1)],
)  # fmt: skip
def test_days_that_are_over_have_sums_from_the_second_on_and_cost_at_most_what_is_left(
    flags, days, expected
):
    ledger, context = quarters(*flags, days=days)
    found, budget = days_in(ledger), context.policy.budget_nano
    assert len(found) == expected and ledger.verify() == []
    spent = {}
    for entry in ledger.entries():
        for plate, nano in zip(entry.plates, entry.charged.tolist(), strict=True):
            spent[entry.period, plate] = spent.get((entry.period, plate), 0) + nano
    assert max(spent.values()) <= budget
    for number, entry in enumerate(found, 2):
        sums = NoisedSums.decode(entry.payload)
        assert sums.asked.sigma == context.forecaster.rules.day_sigma and entry.published
        assert Id.of(entry.release_id).slot == tuple(
            (MIDNIGHT + at * DAY) // 1000 for at in (number - 1, number)
        )
        # The whole day of a plate: what slots do not spend is there for it.
        assert max(entry.charged) > context.forecaster.rules.day_nano / 4
        if "budget.period=7d" in flags:
            ends_s = Id.of(entry.release_id).slot[1]
            until = Counter()
            for one in ledger.entries():
                if one.period == entry.period and Id.of(one.release_id).slot[1] <= ends_s:
                    until.update(dict(zip(one.plates, one.charged.tolist(), strict=True)))
            # The period begins with the second day.
            assert max(until.values()) <= (number - 1) * budget // 7
    slots = [one for one in ledger.entries() if kind_of(one.release_id) == NOISED_SUMS]
    is_asked = [NoisedSums.decode(one.payload).asked.city > 0 for one in slots]
    assert is_asked == [False] * 4 + ["release.plates=true" not in flags] * (len(slots) - 4)


def test_a_day_s_sums_are_learnt_with_its_last_slot_and_not_where_a_hat_was_withdrawn():
    ledger, context = quarters(days=3)
    history = LedgerHistory(ledger)
    (next_day,) = (MIDNIGHT + 3 * DAY,)
    slot_ = next_day, next_day + 6 * HOUR

    def morning():
        return PROMISES["add-remove"].with_forecaster(context).forecaster.forecast(slot_, history)

    known = morning()
    assert np.array_equal(context.forecaster.forecast(slot_, history), known)
    hat = next(
        one for one in ledger.newest()
        if kind_of(one) == "hat" and Id.of(one).slot[0] * 1000 == MIDNIGHT + 2 * DAY
    )  # fmt: skip
    withdraw(ledger, [hat], "unit was mph", "2022-01-05T09:00:00+00:00", "test")
    asked = []
    sums = history.sums

    def noted(slot, kind=NOISED_SUMS):
        asked.append((kind, slot[0]))
        return sums(slot, kind)

    history.sums = noted
    learnt = []
    again = PROMISES["add-remove"].with_forecaster(context)
    honest = again.forecaster._memory.learn_day
    again.forecaster._memory.learn_day = lambda day, *of: learnt.append(day) or honest(day, *of)
    again.forecaster._withdrawals = history.withdrawals()
    assert not np.array_equal(again.forecaster.forecast(slot_, history), known)
    assert len(learnt) == 1 and (DAY_SUMS, MIDNIGHT + 2 * DAY) in asked


def test_days_are_archived_and_stated_with_their_sums(tmp_path):
    with open_sqlite_ledger(tmp_path / "ledger") as ledger:
        _, context = quarters(days=3, ledger=ledger)

        def morning():
            anew = PROMISES["add-remove"].with_forecaster(context).forecaster
            start = MIDNIGHT + 3 * DAY
            slot_ = start, start + 6 * HOUR
            known = anew.forecast(slot_, LedgerHistory(ledger)).tolist()
            return known, anew._shapes.kept(anew._day(start))

        known = morning()
        settings = load(None, (*FLAGS, QUARTERS), {})
        assert disagreement(settings, statement(settings, ledger)) is None
        done = archive(ledger, (MIDNIGHT + 2 * DAY) // 1000, tmp_path / "archive")
        with open_archive(done.path) as copy:
            assert len(days_in(copy)) == 1
        assert len(days_in(ledger)) == 1 and ledger.verify() == []
        # The usual week of the archived days is kept.
        assert morning() == known and sum(known[1]) > 0


def test_a_day_that_is_read_again_behind_a_later_one_has_no_sums_of_the_later():
    """They would cost the plates of one period what those of another sent."""
    ledger, context = quarters(days=3, skipped=(7, 9, 10, 11))
    start = MIDNIGHT + 6 * 7 * HOUR
    contents = of_six_hours(slot(7, pings=9000, start=start))
    record_add_remove_slot(*contents, context, ledger)
    assert days_in(ledger) == []
    again = PROMISES["add-remove"].with_forecaster(context)
    record_add_remove_slot(*contents, again, ledger)
    (day,) = days_in(ledger)
    assert Id.of(day.release_id).slot[1] * 1000 == start + 6 * HOUR
