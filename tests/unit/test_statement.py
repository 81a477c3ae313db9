"""The statement of a deployment: what was promised and charged, as the ledger's entries say,
whatever is configured."""

from io import BytesIO

import numpy as np
import pytest

from tests.forms import PURE_ENV
from tests.runtime.harness import embedded, fleet_log, frames_of
from udp_stream.base.errors import PrivacyRefused
from udp_stream.cli.report import protected
from udp_stream.ledger.port import Admission
from udp_stream.ledgers.opening import ledger_and_keys
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.ledgers.statement import disagreement, statement
from udp_stream.settings import LedgerSection, load

CELL, NINE_UTC, HOUR, DAY = "87608c4d2ffffff", 1_704_704_400, 3600, 86_400
MONDAY, TUESDAY = "1d from 2024-01-08T00:00:00+00:00", "1d from 2024-01-09T00:00:00+00:00"


def loss(ledger, *flags):
    return statement(load(None, flags, PURE_ENV), ledger)["privacy"]["privacy_loss"]


def charge(ledger, period, epsilon, start=NINE_UTC, cost=0.05, cell=CELL, seconds=HOUR):
    """One plate pays for one HAT under a budget."""
    nano, one = np.array([round(cost * 1e9)]), np.array([0])
    admission = Admission(f"{cell}-{start}-{seconds}", one, nano, 1, b"{}")
    ledger.admit(period, round(epsilon * 1e9), [b"a"], [admission])


def test_the_largest_loss_stands_beside_the_bound_of_composition():
    """Plate a is in three releases for small shares, plate b in two at full price; c is halted
    throughout."""
    ledger, plates = MemoryLedger(), [b"a", b"b", b"c"]
    for name, members, charges in (
        ("one", [0, 1], [200, 1000]),
        ("two", [0, 1, 2], [100, 1000, 9000]),
        ("three", [0], [400]),
    ):
        ledger.admit(
            "day", 5000, plates, [Admission(name, np.array(members), np.array(charges), 1, b"{}")]
        )
    assert loss(ledger)["periods"] == [
        {
            "period": "day",
            "epsilon_guaranteed": 5000 / 1e9,
            "epsilon_guaranteed_with_overlapping": 5000 / 1e9,
            "epsilon_of_budgets": [5000 / 1e9],
            "plates_charged": 2,
            "epsilon_max_over_plates": 2000 / 1e9,
            "epsilon_max_of_a_release": 1000 / 1e9,
            "releases_max_over_plates": 3,
            "epsilon_bound_by_composition": 3000 / 1e9,
        }
    ]


def test_a_hat_that_nobody_was_charged_for_is_not_counted_as_charged():
    ledger, nobody = MemoryLedger(), np.array([], dtype=np.int64)
    charge(ledger, MONDAY, 2)
    ledger.admit(MONDAY, 2 * 10**9, [], [Admission("withheld", nobody, nobody, 1, b"{}")])
    assert loss(ledger)["charged_under"] == [{"epsilon": 2.0, "period": "1d", "hats_charged": 1}]


def test_the_configuration_speaks_for_a_ledger_without_entries():
    text = loss(MemoryLedger(), "budget.epsilon=3")
    assert (
        text["privacy_parameters"] == {"epsilon": 3.0}
        and text["periods"] == text["charged_under"] == []
    )
    assert "a period of 1d;" in text["privacy_unit"]


@pytest.mark.parametrize("flags", [("budget.epsilon=0.1", "release.mean_epsilon=0.1"),
                                   ("budget.period=lifetime", "release.mean_epsilon=0.1")])  # fmt: skip
def test_another_configuration_changes_nothing_that_was_charged(flags):
    ledger = MemoryLedger()
    charge(ledger, MONDAY, 10, cost=4.1)
    assert loss(ledger, *flags) == loss(ledger)
    assert loss(ledger, *flags)["privacy_parameters"] == {"epsilon": 10.0}
    said = disagreement(load(None, flags, PURE_ENV), statement(load(None, flags, PURE_ENV), ledger))
    assert said is not None and "epsilon 10 per 1d" in said
    assert "epsilon 0.1 per 1d" in said or "epsilon 10 per lifetime" in said
    assert (
        disagreement(load(None, (), PURE_ENV), statement(load(None, (), PURE_ENV), ledger)) is None
    )


@pytest.mark.parametrize("order", [(10, 0.1, 2), (0.1, 2, 10)])
def test_of_several_budgets_in_a_period_the_largest_is_guaranteed_and_all_are_listed(order):
    ledger = MemoryLedger()
    for number, epsilon in enumerate(order):
        charge(ledger, MONDAY, epsilon, NINE_UTC + number * HOUR)
    charge(ledger, TUESDAY, 1, NINE_UTC + DAY)
    text = loss(ledger)
    monday, tuesday = text["periods"]
    assert monday["epsilon_of_budgets"] == [0.1, 2.0, 10.0] and monday["epsilon_guaranteed"] == 10.0
    assert tuesday["epsilon_guaranteed_with_overlapping"] == 1.0, "days do not overlap"
    assert text["privacy_parameters"] == {"epsilon": 10.0}
    assert text["charged_under"] == [
        {"epsilon": epsilon, "period": "1d", "hats_charged": 1} for epsilon in (0.1, 1.0, 2.0, 10.0)
    ]


def test_budgets_of_periods_that_overlap_in_time_add_up():
    """A lifetime is all of time, whichever slots were charged to it: Monday's pings may be among
    them."""
    ledger = MemoryLedger()
    charge(ledger, MONDAY, 10)
    charge(ledger, TUESDAY, 3, NINE_UTC + DAY)
    charge(ledger, "lifetime", 5, NINE_UTC + DAY, cell="87608c4d3ffffff")
    text = loss(ledger)
    together = {
        one["period"]: one["epsilon_guaranteed_with_overlapping"] for one in text["periods"]
    }
    assert together == {MONDAY: 15.0, TUESDAY: 8.0, "lifetime": 18.0}
    assert text["privacy_parameters"] == {"epsilon": 18.0}
    assert "a period of 1d, lifetime;" in text["privacy_unit"]


def test_a_period_in_which_nobody_was_charged_adds_nothing_to_others():
    ledger, nobody = MemoryLedger(), np.array([], dtype=np.int64)
    charge(ledger, MONDAY, 2)
    ledger.admit("lifetime", 3 * 10**9, [], [Admission("withheld", nobody, nobody, 1, b"{}")])
    assert [one["epsilon_guaranteed_with_overlapping"] for one in loss(ledger)["periods"]] == [
        2.0,
        3.0,
    ]


def test_a_period_of_unknown_times_may_overlap_any():
    ledger = MemoryLedger()
    charge(ledger, MONDAY, 2)
    charge(ledger, "day", 3, cell="somewhere")
    assert loss(ledger)["privacy_parameters"] == {"epsilon": 5.0}


@pytest.mark.parametrize("payload", [b'{"policy": 1}', b"", b'{"schema": "\xff"}'])
def test_a_record_that_cannot_be_read_is_refused_by_its_id(payload):
    ledger = MemoryLedger()
    charge(ledger, MONDAY, 2)
    ledger.record([(f"{CELL}-{NINE_UTC}-{HOUR}", payload)])
    with pytest.raises(PrivacyRefused, match=f"{CELL}-{NINE_UTC}-{HOUR}: expected its record"):
        loss(ledger)


RICH = (
    "budget.accounting=pure",
    "hat.slot=15m",
    "hat.resolution=7",
    "release.min_plates=4",
    "budget.epsilon=10",
)
POOR = (*RICH[:-1], "budget.epsilon=0.1")


def replayed(path, messages, flags):
    with embedded(path, BytesIO(), flags) as runtime:
        return runtime.run(frames_of(messages))


def test_records_that_stand_from_another_policy_are_told_with_its_epsilon(tmp_path):
    """Half of the log at epsilon 10, all of it at 0.1: the first half's records are what they were."""
    log, rich, poor = (
        fleet_log(hours=1.0, clean=True),
        load(None, RICH, PURE_ENV),
        load(None, POOR, PURE_ENV),
    )
    before = replayed(tmp_path / "l", log[: len(log) // 2], RICH).hats.total()
    summary = replayed(tmp_path / "l", log, POOR)
    after = summary.hats.total() - before
    assert before > 0 < after
    said = protected(summary, poor)
    assert f"at epsilon 0.1 per 1d in {after} of {before + after} records" in said
    assert f"are older, under other settings: {before} at epsilon 10 per 1d." in said
    with ledger_and_keys(LedgerSection(url=str(tmp_path / "l"))) as (ledger, _):
        text = statement(poor, ledger)
    assert text["privacy"]["privacy_loss"]["privacy_parameters"] == {"epsilon": 10.0}
    made = {one["policy"]: one for one in text["details"]["implementation"]["policies"]}
    assert set(made) == {rich.policy.fingerprint(), poor.policy.fingerprint()}
    assert [made[one.policy.fingerprint()]["hats_recorded"] for one in (rich, poor)] == [
        before,
        after,
    ]
    released = [made[one.policy.fingerprint()]["hats_released"] for one in (rich, poor)]
    assert 0 < released[0] < before and (text["hats_recorded"], text["hats_released"]) == (
        before + after,
        sum(released),
    )
    assert [made[one.policy.fingerprint()]["epsilon"] for one in (rich, poor)] == [10.0, 0.1]
    charges = text["details"]["accounting"]["charges"]
    assert "its own share" in charges
    said = disagreement(poor, text)
    assert said is not None and rich.policy.fingerprint() in said
