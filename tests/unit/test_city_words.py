"""What is said of city sums: in the statement, a ledger's sentence, the summary, notes and refusals."""

import json

import numpy as np
import pytest
from msgspec.structs import replace

from streams.publishing import settle
from tests.unit.test_flow import FIXED, a_context, run, slot
from udp_stream.adapters.ledgers.ledger_view import Holdings
from udp_stream.adapters.ledgers.policy_keys import note_policy, other_policies, written
from udp_stream.adapters.ledgers.statement import disagreement, statement
from udp_stream.adapters.ledgers.which_ledger import ledger_sentence
from udp_stream.adapters.settings import faults_in, load
from udp_stream.cli.charged_plate import lines_of_plate
from udp_stream.cli.commands.ledger import _forgotten_words
from udp_stream.cli.main import main
from udp_stream.cli.report import worth
from udp_stream.errors import ConfigError
from udp_stream.ledger.memory import MemoryLedger
from udp_stream.ledger.past import see
from udp_stream.ledger.port import Admission
from udp_stream.release.charge import plan_slot
from udp_stream.release.context import with_forecaster
from udp_stream.release.history import LedgerHistory
from udp_stream.release.record import CITY, decode, kind_of
from udp_stream.release.summary import Summary
from udp_stream.testing import Died, SeededEntropy
from udp_stream.units import NANO

AROUND = ("release.mean=forecast-clip", "release.cdf_epsilon=0")
PURE = (*AROUND, "forecast.city=on", "budget.epsilon=80")
IN_RHO = (*AROUND, "forecast.city=on", "budget.epsilon=40", "budget.accounting=approximate")
HOUR_MS = 3_600_000
ONE = np.array([0])


def released(flags, slots=1):
    """The settings, and the ledger of so many slots in which a city was asked."""
    settings, ledger = load(None, (*FIXED, *flags), {}), MemoryLedger()
    context = with_forecaster(a_context(*flags))
    for number in range(slots):
        run(ledger, context, slot(seed=number, start=1_641_011_400_000 + number * HOUR_MS))
    assert sum(kind_of(entry.release_id) == CITY for entry in ledger.entries()) == slots
    return settings, ledger


def city_entries(ledger):
    return [entry for entry in ledger.entries() if kind_of(entry.release_id) == CITY]


@pytest.mark.parametrize(("flags", "unit"), [(PURE, "epsilon"), (IN_RHO, "rho")])
def test_the_statement_says_what_city_sums_are_and_what_they_have_cost(flags, unit):
    settings, ledger = released(flags, slots=2)
    found = statement(settings, ledger)
    stated, (period,) = found["city_sums"], found["privacy"]["privacy_loss"]["periods"]
    assert "two noisy sums over all plates" in stated["what"] and "not published" in stated["use"]
    charged = [dict(zip(one.plates, one.charged.tolist(), strict=True)) for one in city_entries(ledger)]
    of_plates = {plate: sum(one.get(plate, 0) for one in charged) for one in charged for plate in one}
    assert stated["periods"] == [
        {
            "period": period["period"],
            "slots_charged": 2,
            "slots_recorded": 2,
            "plates_charged": 12,
            f"{unit}_max_of_a_slot": max(max(one.values()) for one in charged) / NANO,
            f"{unit}_max_over_plates": max(of_plates.values()) / NANO,
        }
    ]
    balances = ledger.balances(city_entries(ledger)[0].period, slot()[0].plates)
    assert period[f"{unit}_max_over_plates"] == balances.charged.max() / NANO, "part of the whole loss"
    assert found["hats_recorded"] == 6 and disagreement(settings, found) is None


def test_a_statement_without_city_sums_does_not_name_them():
    ledger = MemoryLedger()
    run(ledger, with_forecaster(a_context(*AROUND)), slot())
    assert "city_sums" not in statement(load(None, AROUND, {}), ledger)


def test_the_statement_tells_sums_that_were_charged_and_never_drawn_and_those_that_few_could_pay():
    """A worker died between the charge and the draw, and the setting is off since."""
    ledger = MemoryLedger()
    for name, needed, start in (("charged", 0, 0), ("too few", 2, 3600)):
        ledger.admit(name, 9 * NANO, [b"a"], [Admission(f"city:{start}-3600", ONE, ONE + 5, needed, b"")])
    found = statement(load(None, AROUND, {}), ledger)
    slots = [(one["slots_charged"], one["slots_recorded"]) for one in found["city_sums"]["periods"]]
    assert slots == [(1, 0), (0, 0)]
    loss = found["privacy"]["privacy_loss"]
    assert [one["plates_charged"] for one in loss["periods"]] == [1, 0]
    assert loss["charged_under"] == [
        {"epsilon": 9.0, "period": name, "hats_charged": 0} for name in ("charged", "too few")
    ], "a budget that only city sums were charged under is a promise, too"


def test_of_a_rolling_budget_the_statement_has_the_most_in_any_window():
    settings, ledger = released((*PURE, "budget.period=rolling 1h"), slots=2)
    (period,) = statement(settings, ledger)["city_sums"]["periods"]
    assert period["period"] == "rolling 1h" and period["slots_charged"] == 2
    most = max(int(entry.charged.max()) for entry in city_entries(ledger))
    assert most / NANO < period["epsilon_max_over_plates"] <= 2 * period["epsilon_max_of_a_slot"]


def test_a_plate_s_charges_in_ledger_show_include_city_sums():
    settings, ledger = released(PURE)
    (plate, *_) = slot()[0].plates
    (line,) = lines_of_plate(ledger, plate, settings)
    paid = [
        nano
        for entry in ledger.entries()
        for hashed, nano in zip(entry.plates, entry.charged.tolist(), strict=True)
        if hashed == plate
    ]
    assert len(paid) >= 2 and line.facts["charged"] == sum(paid) / NANO


def test_a_ledger_s_sentence_names_city_sums_and_its_slots_are_those_of_hats():
    settings, ledger = released(PURE, slots=2)
    progress = ledger.progress()
    assert progress.oldest is not None and kind_of(progress.oldest) == CITY, "they are charged first"
    note_policy(ledger, settings.policy)
    said = ledger_sentence("city.ledger", ledger.meta(), progress, settings.calendar.slots)
    assert said == (
        "ledger city.ledger: 8 HATs and city sums, the first of the slot 2022-01-01T10:00:00+05:30, "
        "the latest of 2022-01-01T11:00:00+05:30"
    )


def test_what_an_older_ledger_has_forgotten_is_told_with_city_sums():
    settings, ledger = released(PURE)
    note_policy(ledger, settings.policy)
    kept = replace(see(ledger).mark(), admitted=ledger.progress().admitted + 5)
    words = _forgotten_words(ledger, kept, settings)
    assert words == "charges of 5 HATs and city sums since 2022-01-01T10:00:00+05:30 are forgotten"


def test_doctor_counts_no_city_sums_among_what_readers_wait_for():
    """Killed before they are marked, and off since: nobody marks them, and nobody waits."""
    contents, ledger, calls = slot(), MemoryLedger(), []
    run(MemoryLedger(), with_forecaster(a_context(*PURE)), contents, log=calls)
    with pytest.raises(Died):
        run(ledger, with_forecaster(a_context(*PURE)), contents, calls.index("record"), answered=True)
    run(ledger, with_forecaster(a_context(*PURE, "forecast.city=off")), contents)
    assert len(list(ledger.unpublished())) == 1 and Holdings.of(ledger).unpublished == 0
    ledger.admit("May", NANO, [b"a"], [Admission("a hat", ONE, ONE + 5, 0, b"")])
    ledger.record([("a hat", b"{}")])
    assert Holdings.of(ledger).unpublished == 1


def test_settings_with_city_sums_are_others_and_show_in_their_key():
    plain, on = (load(None, flags, {}).policy for flags in ((), ("forecast.city=on",)))
    assert plain.fingerprint() != on.fingerprint()
    assert "forecast.city" not in written(plain) and written(on)["forecast.city"] == "on"
    for theirs, ours, said in ((plain, on, "off -> on"), (on, plain, "on -> off")):
        ledger = MemoryLedger()
        note_policy(ledger, theirs)
        assert other_policies(ledger, ours) == {theirs.fingerprint(): f"forecast.city {said}"}


@pytest.mark.parametrize(
    ("flags", "most"),
    [(("budget.epsilon=5",), "epsilon 0.15"), (("budget.accounting=zcdp", "budget.rho=1"), "rho 0.03")],
)
def test_the_summary_says_what_the_setting_does_and_the_most_that_it_costs(flags, most):
    on, off = (load(None, (*flags, *more), {}) for more in (("forecast.city=on",), ()))
    (said,) = set(worth(Summary(), on)) - set(worth(Summary(), off))
    assert said.startswith(
        'forecast.city is "on": in some slots a plate also pays for two noisy sums over the whole city'
    )
    assert f"at most {most} a slot, of the same budget" in said and "`udp-stream ledger export`" in said


@pytest.mark.parametrize("city", ["on", "off"])
def test_a_plan_says_so_too(city, capsys):
    flags = "--set", f"forecast.city={city}", "--set", "budget.epsilon=5"
    assert main(["plan", "--plates", "20", *flags]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert ("at most epsilon 0.15 a slot, of the same budget" in said) == (city == "on")
    assert main(["plan", "--plates", "20", "--json", *flags]) == 0
    told = json.loads(capsys.readouterr().out)["city_sums"]
    assert told is None if city == "off" else "at most epsilon 0.15 a slot" in told


def test_the_most_that_is_said_is_what_the_plate_that_moves_most_pays():
    settings, ledger = released(PURE)
    (entry,) = city_entries(ledger)
    assert 0.95 * 2.4 < entry.charged.max() / NANO <= 2.4
    assert any("at most epsilon 2.4 a slot" in one for one in worth(Summary(), settings))


def test_history_passes_over_city_sums_and_tells_them_by_slot():
    _, ledger = released(PURE)
    history, (entry,) = LedgerHistory(ledger), city_entries(ledger)
    ((slot_ms, cells),) = history.slots_since(0).items()
    assert len(cells) == 3 and history.city(*slot_ms).plates == np.count_nonzero(entry.charged)
    assert history.city(slot_ms[1], slot_ms[1] + HOUR_MS) is None


def test_a_worker_that_takes_over_leaves_city_sums_that_are_not_marked_yet():
    """The planner that asks again finds them recorded, and marks them. Sums have no cell that tells a shard."""
    ledger = MemoryLedger()
    ledger.admit("May", NANO, [b"a"], [Admission("city:0-3600", ONE, ONE + 5, 0, b"")])
    ledger.record([("city:0-3600", b"{}")])
    settle(ledger, 0, 1, released_ms=10**13)
    assert [name for name, _ in ledger.unpublished()] == ["city:0-3600"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ("release.mean=optimal",),
            '"off" where no mean is taken around a forecast, or where release.counts is not "all"',
        ),
        (("release.suppression=chop-user",), '"off" where no mean is taken around a forecast, or where'),
        (("release.counts=released", "forecast.counts=off"), "release.counts is not \"all\", got 'on'"),
        (
            ("budget.epsilon=0.000003", "release.mean_epsilon=0.000001"),
            '"off" where the budget is below epsilon 0.0000032: a part of it has to pay for noise',
        ),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name_and_rule(flags, said):
    with pytest.raises(ConfigError) as refused:
        load(None, ("forecast.city=on", *flags), {})
    assert str(refused.value).startswith("forecast.city: expected ") and said in str(refused.value)
    load(None, flags, {})


@pytest.mark.parametrize("other", ["forecast.city=on", "release.clip=ball"])
def test_beside_a_slot_that_cannot_be_read_rules_of_the_policy_are_checked_without_it(other):
    """As `config check` does: each fault once, and none that follows from another."""
    flags = ("hat.slot=7h", "release.mean=optimal", other)
    found = [fault.message for fault in faults_in(None, flags, {})]
    assert [one.partition(":")[0] for one in found] == ["hat.slot", other.partition("=")[0]]


def test_with_the_least_budget_nothing_is_asked_and_nothing_fails():
    flags = (*AROUND, "forecast.city=on", "budget.epsilon=0.0000032", "release.mean_epsilon=0.000001")
    ledger = MemoryLedger()
    found = run(ledger, with_forecaster(a_context(*flags)), slot())
    assert city_entries(ledger) == [] and len([decode(payload) for _, payload in found]) == 3


class NoNewSums(SeededEntropy):
    """Has no bits for a city."""

    def streams(self, release_ids):
        assert not any(kind_of(name) == CITY for name in release_ids)
        return super().streams(release_ids)


@pytest.mark.parametrize("dies_at", ["record", "published"])
def test_a_replay_after_a_crash_draws_no_sums_anew(dies_at):
    """Killed when they are recorded, or marked: the next run finds them, and marks them if nobody has."""
    contents, ledger, calls = slot(), MemoryLedger(), []
    run(MemoryLedger(), with_forecaster(a_context(*PURE)), contents, log=calls)
    with pytest.raises(Died):
        run(ledger, with_forecaster(a_context(*PURE)), contents, calls.index(dies_at), answered=True)
    (before,) = city_entries(ledger)
    assert before.payload is not None and not ledger.recorded(["8742d98b6ffffff-1641011400-3600"])[0]
    run(ledger, with_forecaster(a_context(*PURE, entropy=NoNewSums(7))), contents)
    (after,) = city_entries(ledger)
    assert after.payload == before.payload and after.charged.tolist() == before.charged.tolist()
    assert ledger.verify() == [] and list(ledger.unpublished()) == []


def test_sums_that_were_charged_under_other_settings_are_not_drawn_under_these():
    """What the earlier charge allows is not known any more: less noise could cost more than was charged."""
    contents, ledger = slot(), MemoryLedger()
    plan = plan_slot(contents[0], with_forecaster(a_context(*PURE)), ledger)
    run(ledger, with_forecaster(a_context(*PURE, "budget.epsilon=90", entropy=NoNewSums(7))), contents)
    (entry,) = city_entries(ledger)
    assert plan.city is not None and entry.payload is None and entry.budget == 80 * NANO
    assert entry.charged.max() <= 0.03 * 80 * NANO and ledger.verify() == []
