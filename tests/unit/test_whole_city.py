"""What a slot's plates are asked of the whole city: of whom, once, before HATs, and what dies on
the way."""

import dataclasses

import numpy as np
import pytest

from streams.processors import settle
from tests.city_question import MeanSpeed, answered
from tests.failing import Died
from tests.unit.test_flow import FIXED, a_context, run, slot
from udp_stream.base.units import NANO
from udp_stream.ledger.ids import CITY, kind_of
from udp_stream.ledger.port import Admission
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.ledgers.statement import disagreement, statement
from udp_stream.release.charge import charge_city, plan_slot, with_forecaster
from udp_stream.release.pipeline import record_city
from udp_stream.settings import load
from udp_stream.testing import SeededEntropy

AROUND = ("release.mean=forecast-clip", "release.cdf=off")
PURE = (*AROUND, "budget.epsilon=80")
IN_RHO = (*AROUND, "budget.epsilon=40", "budget.accounting=approximate")
SETTINGS = load(None, (*FIXED, *PURE), {})
BUDGET = SETTINGS.policy.budget_nano
HOUR_MS = 3_600_000
ONE = np.array([0])


def context(*flags, question=MeanSpeed(), entropy=None, seed=1):  # noqa: B008 - frozen
    return with_forecaster(
        dataclasses.replace(a_context(*flags, entropy=entropy, seed=seed), city=question)
    )


def released(flags=PURE, slots=1):
    """The settings, and the ledger of so many slots in which a city was asked."""
    settings, ledger, given = load(None, (*FIXED, *flags), {}), MemoryLedger(), context(*flags)
    for number in range(slots):
        run(ledger, given, slot(seed=number, start=1_641_011_400_000 + number * HOUR_MS))
    assert len(answers(ledger)) == slots
    return settings, ledger


def answers(ledger):
    return [entry for entry in ledger.entries() if kind_of(entry.release_id) == CITY]


def asked(counts, question=MeanSpeed()):  # noqa: B008 - frozen
    return question.ask(counts, SETTINGS.policy)


def test_a_road_without_a_question_and_one_without_forecasts_ask_nothing():
    papers = dataclasses.replace(a_context("release.mean=baseline"), city=MeanSpeed())
    for given in (context(*PURE, question=None), papers):
        ledger, calls = MemoryLedger(), []
        run(ledger, given, slot(), log=calls)
        assert answers(ledger) == [] and calls.count("admit") == 1


@pytest.mark.parametrize("flags", [PURE, IN_RHO])
def test_it_is_charged_before_the_hats_and_answered_once(flags):
    _, ledger = released(flags)
    first, *hats = ledger.entries()
    assert kind_of(first.release_id) == CITY and all(
        kind_of(one.release_id) != CITY for one in hats
    )
    counts, values = slot()
    of_row = np.add.reduceat(values.speed.astype(float), values.starts[:-1])
    truth = (of_row / np.bincount(counts.plate, weights=counts.count)[counts.plate]).sum() / len(
        counts.plates
    )
    told = answered(first.payload)
    assert told.plates == len(counts.plates) and abs(told.quanta - truth) < 20 * 4096
    assert told.quanta != pytest.approx(truth), "with noise"


def test_whoever_cannot_pay_takes_no_part_and_is_not_charged():
    counts, _ = slot()
    found, ledger = asked(counts), MemoryLedger()
    poor = np.arange(0, len(counts.plates), 3)
    ledger.admit(
        "1d",
        BUDGET,
        counts.plates,
        [Admission("before", poor, np.full(poor.size, BUDGET - 10), 0, b"")],
    )
    plan = charge_city(found, MeanSpeed().charges, counts, "1d", SETTINGS.policy, ledger)
    takes_part = plan.weights > 0
    assert (
        not takes_part[np.isin(counts.plate, poor)].any()
        and takes_part[~np.isin(counts.plate, poor)].all()
    )
    (entry,) = answers(ledger)
    charged = dict(zip(entry.plates, entry.charged.tolist(), strict=True))
    assert {plate for plate, charge in charged.items() if charge == 0} == {
        counts.plates[i] for i in poor
    }
    assert plan.plates == len(counts.plates) - poor.size


def test_where_most_cannot_pay_nobody_is_charged():
    counts, _ = slot()
    ledger = MemoryLedger()
    poor = np.arange(len(counts.plates) * 2 // 3)
    ledger.admit(
        "1d",
        BUDGET,
        counts.plates,
        [Admission("before", poor, np.full(poor.size, BUDGET - 10), 0, b"")],
    )
    assert (
        charge_city(asked(counts), MeanSpeed().charges, counts, "1d", SETTINGS.policy, ledger)
        is None
    )
    assert sum(int(entry.charged.sum()) for entry in answers(ledger)) == 0


@pytest.mark.parametrize("change", ["weights", "about", "charged"])
def test_a_charge_on_other_terms_is_never_drawn_for(change):
    """Another version charges, and dies: what that charge allows is not known any more."""
    counts, _ = slot()
    ledger, found = MemoryLedger(), asked(counts)
    assert (
        charge_city(found, MeanSpeed().charges, counts, "1d", SETTINGS.policy, ledger) is not None
    )
    other = {"weights": found.weights + 1, "about": b"another", "charged": found.charged + 1}
    moved = dataclasses.replace(found, **{change: other[change]})
    assert charge_city(moved, MeanSpeed().charges, counts, "1d", SETTINGS.policy, ledger) is None
    charges = [entry.charged.tolist() for entry in answers(ledger)]
    assert (
        charge_city(found, MeanSpeed().charges, counts, "1d", SETTINGS.policy, ledger) is not None
    )  # who charged can go on
    assert [entry.charged.tolist() for entry in answers(ledger)] == charges


def test_under_other_settings_the_same_slot_is_not_drawn():
    """Less noise could cost more than was charged."""
    contents, ledger = slot(), MemoryLedger()
    plan = plan_slot(contents[0], context(*PURE), ledger)
    run(ledger, context(*PURE, "budget.epsilon=90", entropy=NoNewAnswer(7)), contents)
    (entry,) = answers(ledger)
    assert plan.city is not None and entry.payload is None and entry.budget == 80 * NANO
    assert entry.charged.max() <= 0.0301 * 80 * NANO and ledger.verify() == []


class NoNewAnswer(SeededEntropy):
    """Has no bits for a city."""

    def streams(self, release_ids):
        assert not any(kind_of(name) == CITY for name in release_ids)
        return super().streams(release_ids)


@pytest.mark.parametrize("dies_at", ["record", "published"])
def test_a_replay_after_a_crash_draws_no_answer_anew(dies_at):
    """Killed when it is recorded, or marked: the next run finds it, and marks it if nobody has."""
    contents, ledger, calls = slot(), MemoryLedger(), []
    run(MemoryLedger(), context(*PURE), contents, log=calls)
    with pytest.raises(Died):
        run(ledger, context(*PURE), contents, calls.index(dies_at), answered=True)
    (before,) = answers(ledger)
    assert (
        before.payload is not None and not ledger.recorded(["8742d98b6ffffff-1641011400-3600"])[0]
    )
    run(ledger, context(*PURE, entropy=NoNewAnswer(7)), contents)
    (after,) = answers(ledger)
    assert after.payload == before.payload and after.charged.tolist() == before.charged.tolist()
    assert ledger.verify() == [] and list(ledger.unpublished()) == []


def test_a_worker_that_takes_over_leaves_an_answer_that_is_not_marked_yet():
    """The planner that asks again finds it recorded, and marks it. It has no cell that tells a
    shard."""
    ledger = MemoryLedger()
    ledger.admit("May", NANO, [b"a"], [Admission("city:0-3600", ONE, ONE + 5, 0, b"")])
    ledger.record([("city:0-3600", b"{}")])
    settle(ledger, 0, 1, released_ms=10**13)
    assert [name for name, _ in ledger.unpublished()] == ["city:0-3600"]


def test_the_statement_counts_what_it_cost_and_a_budget_that_only_it_was_charged_under():
    settings, ledger = released(slots=2)
    found = statement(settings, ledger)
    (period,) = found["privacy"]["privacy_loss"]["periods"]
    balances = ledger.balances(answers(ledger)[0].period, slot()[0].plates)
    assert period["epsilon_max_over_plates"] == balances.charged.max() / NANO, (
        "part of the whole loss"
    )
    assert found["hats_recorded"] == 6 and disagreement(settings, found) is None
    assert (found["city"]["slots_charged"], found["city"]["slots_recorded"]) == (2, 2)
    assert (found["city"]["hours_charged"], found["city"]["hours_recorded"]) == (0, 0)
    alone = MemoryLedger()
    alone.admit("charged", 9 * NANO, [b"a"], [Admission("city:0-3600", ONE, ONE + 5, 0, b"")])
    loss = statement(SETTINGS, alone)["privacy"]["privacy_loss"]
    assert loss["charged_under"] == [{"epsilon": 9.0, "period": "charged", "hats_charged": 0}]


def test_without_the_sums_of_a_shard_nothing_is_recorded():
    """Its settings have no question any more: the answer would be one of some plates."""
    counts, _ = slot()
    ledger = MemoryLedger()
    given = context(*PURE)
    plan = plan_slot(counts, given, ledger)
    record_city(given, (), plan, ledger)
    assert answers(ledger)[0].payload is None
    record_city(given, (7, 0), plan, ledger)
    assert answers(ledger)[0].payload is not None
