"""Concentrated accounting from one end to the other: settings, plans, noise, ledger, records,
statement, refusals."""

import argparse
import dataclasses
import json

import msgspec
import pytest

from tests.forms import PURE_ENV, long_but
from tests.runtime.harness import fleet_log, frames_of
from tests.unit.test_conversion import epsilon_nano_of
from udp_stream.base.errors import PrivacyRefused
from udp_stream.base.units import NANO
from udp_stream.cli.commands.ledger import show
from udp_stream.embedded.runtime import EmbeddedRuntime
from udp_stream.ledger.filters import epsilon_of, rho_nano_of
from udp_stream.ledger.rules import largest_budgets
from udp_stream.ledgers.opening import ledger_and_keys
from udp_stream.ledgers.sqlite import MemoryLedger, open_sqlite_ledger
from udp_stream.ledgers.statement import disagreement, statement
from udp_stream.release.charge import plan_slot
from udp_stream.release.promise import release_slot
from udp_stream.release.record import Release
from udp_stream.settings import load
from udp_stream.testing import SeededEntropy, a_context, two_hats

HATS = ("hat.slot=1h", "hat.resolution=7", "release.min_plates=3")
PURE = HATS
APPROXIMATE = (*HATS, "budget.accounting=approximate")
ZCDP = (*HATS, "budget.accounting=zcdp", "budget.rho=1.2", "budget.delta=1e-9")
ALL = (
    "release.mean_epsilon=0.4",
    "release.variance_epsilon=0.2",
    "release.cdf=tree",
    "release.cdf_epsilon=0.3",
)
KEY = str.encode
PURE_POLICY = a_context().policy
RHO_POLICY = msgspec.structs.replace(
    PURE_POLICY, accounting="approximate", budget_nano=rho_nano_of(10 * NANO, 1e-6),
    prices={"mean": NANO // 8, "cdf": NANO // 32},
)  # fmt: skip


def run(ledger, flags, seed="a"):
    found = []
    take = lambda releases: found.extend(Release.decode(one.payload) for one in releases)  # noqa: E731
    EmbeddedRuntime(
        load(None, flags, PURE_ENV), ledger, SeededEntropy(seed), KEY, "udp-stream test", take
    ).run(frames_of(LOG))
    return found


LOG = fleet_log(buses=60, clean=True)


@pytest.fixture
def ledger(tmp_path):
    with open_sqlite_ledger(tmp_path / "ledger") as opened:
        yield opened


FLAGS = APPROXIMATE, ZCDP, (*APPROXIMATE, *ALL), (*APPROXIMATE, *ALL, "release.mean=levy")


@pytest.mark.parametrize("flags", long_but(FLAGS[1:3], FLAGS))
def test_records_and_ledger_agree_in_rho_and_no_plate_exceeds_it(ledger, flags):
    records, settings = run(ledger, flags), load(None, flags, PURE_ENV)
    budget, delta = settings.policy.budget_nano, settings.budget.delta
    made = [one for one in records if one.status == "released"]
    assert len(made) > 8 and ledger.verify() == []
    assert all(period.endswith(" in rho") for period in ledger.periods())
    assert set(largest_budgets(ledger, ledger.periods()).values()) == {budget}
    entries = {entry.release_id: entry.charged for entry in ledger.entries()}
    for one in records:
        rho = int(entries[one.release_id].max()) if entries[one.release_id].any() else 0
        assert (
            one.privacy.rho == pytest.approx(rho / NANO) and one.privacy.period_rho == budget / NANO
        )
        assert one.privacy.epsilon == epsilon_of(rho, delta) and one.privacy.delta == delta
        assert one.privacy.accounting == settings.budget.accounting
    plates = {plate for entry in ledger.entries() for plate in entry.plates}
    spent = [sum(ledger.charged_by_period(plate).values()) for plate in plates]
    assert 0 < max(spent) <= budget


def test_approximate_promises_the_epsilon_that_was_asked_for_and_fixed_epsilons_cost_half_their_squares(
    ledger,
):
    records = run(ledger, (*APPROXIMATE, "release.mean=baseline", "release.mean_epsilon=0.5"))
    made = [one for one in records if one.status == "released"]
    assert {one.privacy.period_epsilon for one in records} == {10.0}
    assert {one.privacy.period_rho for one in records} == {rho_nano_of(10 * NANO, 1e-6) / NANO}
    whole = [one for one in made if one.counts.plates == one.counts.admitted_plates]
    assert {one.mean.epsilon for one in whole} == {0.5} and {one.privacy.rho for one in whole} == {
        0.125
    }


def test_pure_and_concentrated_periods_are_other_balances_and_refused_on_one_ledger(ledger):
    morning, rest = LOG[: len(LOG) // 2], LOG

    def go(messages, flags):
        EmbeddedRuntime(
            load(None, flags, PURE_ENV),
            ledger,
            SeededEntropy("b"),
            KEY,
            "udp-stream test",
            lambda _: None,
        ).run(frames_of(messages))

    go(morning, PURE)
    before = ledger.progress()
    with pytest.raises(PrivacyRefused, match="use another ledger"):
        go(rest, APPROXIMATE)
    assert ledger.progress() == before and ledger.verify() == []


@pytest.mark.parametrize(
    ("flags", "variant", "stated"),
    [
        (PURE, "Pure DP", {"epsilon": 10.0}),
        (APPROXIMATE, "Approximate DP", {"epsilon": 10.0, "delta": 1e-6, "rho": 1.539278763}),
        (ZCDP, "zCDP", {"epsilon": epsilon_of(1_200_000_000, 1e-9), "delta": 1e-9, "rho": 1.2}),
    ],
)
def test_the_statement_is_in_both_units(ledger, flags, variant, stated):
    run(ledger, flags)
    settings = load(None, flags, PURE_ENV)
    said = statement(settings, ledger)
    assert said["privacy"]["dp_variant"]["variant_name"] == variant
    assert said["privacy"]["privacy_loss"]["privacy_parameters"] == stated
    unit = "epsilon" if variant == "Pure DP" else "rho"
    (period,) = said["privacy"]["privacy_loss"]["periods"]
    assert period[f"{unit}_max_over_plates"] <= period[f"{unit}_guaranteed"] == stated[unit]
    noise = "discrete Laplace" if variant == "Pure DP" else "discrete Gaussian"
    assert said["details"]["implementation"]["mechanisms"].startswith(noise)
    assert disagreement(settings, said) is None
    assert "rho" in disagreement(
        load(None, ZCDP if flags is not ZCDP else APPROXIMATE, PURE_ENV), said
    )
    assert json.loads(json.dumps(said)) == said


def test_a_hat_that_was_charged_under_another_accounting_is_released_as_it_was_charged():
    contents, ledger = two_hats(), MemoryLedger()
    before, after = (
        dataclasses.replace(a_context(), policy=one) for one in (PURE_POLICY, RHO_POLICY)
    )
    plan_slot(contents[0], before, ledger)
    slot = release_slot(*contents, after, ledger, lambda _: None)
    records = [Release.decode(payload) for payload in slot.payloads.values()]
    made = records[0].privacy
    assert (made.accounting, made.epsilon, made.rho, made.period_epsilon) == (
        "pure",
        0.75,
        None,
        10.0,
    )
    assert set(ledger.periods()) == {"1d from 2022-01-01T00:00:00+00:00"} and ledger.verify() == []
    other = release_slot(*two_hats(), after, MemoryLedger(), lambda _: None)
    assert Release.decode(next(iter(other.payloads.values()))).privacy.accounting == "approximate"


def test_show_says_which_epsilon_was_spent_and_what_rho_is_left(tmp_path, capsys):
    flags = (*APPROXIMATE, f"ledger.url={tmp_path / 'city.ledger'}")
    settings = load(None, flags, PURE_ENV)
    plate = json.loads(LOG[0])["license_plate"]
    with ledger_and_keys(settings.ledger) as (ledger, keys):
        found = []
        EmbeddedRuntime(
            settings, ledger, SeededEntropy("a"), keys.hash_plate, "udp-stream test", found.extend
        ).run(frames_of(LOG))
        ((_, nano),) = ledger.charged_by_period(keys.hash_plate(plate)).items()
    asked = argparse.Namespace(plate=plate)
    show(asked, settings)
    (line,) = capsys.readouterr().out.splitlines()
    period, charged, left, _, epsilon = line.split("\t")
    assert period.endswith(" in rho") and 0 < nano <= settings.policy.budget_nano
    assert float(charged.split()[1]) + float(left.split()[1]) == pytest.approx(
        settings.policy.budget_nano / NANO
    )
    amount, words = epsilon.removeprefix("epsilon ").split(" ", 1)
    exact = epsilon_nano_of(nano, 1e-6) / NANO
    assert words == "with delta 1e-06" and exact <= float(amount) <= exact + 3e-6 <= 10.000003
