"""Every field of a policy is known by its configuration key, with the value as a user writes it."""

import pytest
from msgspec.structs import fields, replace

from tests.forms import PURE_ENV
from udp_stream.ledgers.opening import other_policies
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.mechanisms.statistics import priced
from udp_stream.planning.policy import Policy, note_policy, written
from udp_stream.settings import load
from udp_stream.settings.loading import accepted_keys
from udp_stream.windows.grid import Hexagons

KEYS = {
    "hat.resolution": "7",
    "hat.slot": "90m",
    "hat.timezone": "America/Chicago",
    "hat.grace": "2.5s",
    "speed.max_kmh": "65.5",
    "speed.unit": "mps",
    "speed.reject_above_kmh": "150.5",
    "speed.from": "movement",
    "pings.box": "[72.6, -21, 73, 21.35]",
    "budget.epsilon": "0.000001",
    "budget.period": "lifetime",
    "budget.accounting": "pure",
    "release.mean": "levy",
    "release.grouping": "wrap-around",
    "release.cap": "median",
    "release.levels": "best",
    "release.mean_epsilon": "0.000001",
    "release.variance_epsilon": "0",
    "release.cdf": "auto",
    "release.cdf_epsilon": "0",
    "release.bins": "[0, 0.5, 65.5]",
    "release.branching": "[2, 3]",
    "release.min_plates": "4",
    "release.suppression": "chop-user",
    "release.hats_max": "3",
    "release.counts": "none",
    "budget.schedule": "spread",
}
"""A value of each key, as `written` spells it."""

OTHER_VALUES = {
    "grid": Hexagons(9),
    "slot_seconds": 60,
    "timezone": "UTC",
    "grace_ms": 1,
    "max_speed": 4097,
    "unit": "mph",
    "reject_above_kmh": 299.0,
    "box": (1.0, 2.0, 3.0, 4.0),
    "budget_nano": 10**15,
    "period": "lifetime",
    "period_seconds": 7 * 86_400,
    "mean": "baseline",
    "grouping": "wrap-around",
    "cdf": "off",
    "bins": 12,
    "branching": (4, 4),
    "min_plates": 11,
    "neighbours": "others",
    "suppression": "chop-user",
    "hats_max": 5,
    "counts_released": "none",
    "schedule": "uniform",
    "cap": "worst-case",
    "levels": "even",
    "speed_from": "movement",
}
"""Of each field, one that the defaults do not have."""


NAMED_APART = ("accounting", "delta", "source", "prices", "domain", "interval_ms", "plates")
"""Several keys show them, or only where they have an effect: `test_presence_settings.py`,
`test_city_words.py`."""


def policy(*flags):
    return load(None, flags, PURE_ENV).policy


def test_written_values_read_as_the_same_policy():
    flags = [f"{key}={value}" for key, value in KEYS.items()]
    assert written(policy(*flags)) == KEYS | {"neighbours": "swap-values"}
    others = (
        "release.cdf_epsilon=auto",
        "release.variance_epsilon=auto",
        "hat.grace=0s",
        "budget.period=2w",
    )
    for ours in (policy(), policy(*others, "speed.max_kmh=115")):
        keys = written(ours)
        assert keys.keys() - {"neighbours"} <= set(accepted_keys())
        assert policy(*(f"{key}={keys[key]}" for key in KEYS if keys[key] != "none")) == ours


@pytest.mark.parametrize("name", [*priced(), "another"])
def test_every_price_is_a_key_and_of_the_fingerprint_and_one_that_is_not_asked_for_is_not(name):
    ours = policy()
    other = replace(ours, prices=ours.prices | {name: 1_000})
    assert (
        other.fingerprint()
        != ours.fingerprint()
        == replace(ours, prices=ours.prices | {"another": 0}).fingerprint()
    )
    changed = {
        key: value for key, value in written(other).items() if written(ours).get(key) != value
    }
    assert changed == {f"release.{name}_epsilon": "0.000001"} and f"release.{name}_epsilon" in said(
        ours, other
    )


def test_a_fingerprint_is_what_it_was_before_prices_had_names():
    """At the defaults, and with all three at prices of their own."""
    flags = (
        "release.mean_epsilon=0.4",
        "release.variance_epsilon=0.2",
        "release.cdf=tree",
        "release.cdf_epsilon=auto",
    )
    found = [load(None, some, {}).policy.fingerprint() for some in ((), flags)]
    assert found == ["79eff40534843c20", "4b1aee8c2ad69a43"]


@pytest.mark.parametrize(
    "name", [one.name for one in fields(Policy) if one.name not in NAMED_APART]
)
def test_every_field_shows_in_its_key(name):
    ours = policy()
    if name == "period":  # the name of a length, or of none
        ours = replace(ours, period_seconds=None, period="1d")
    other = replace(ours, **{name: OTHER_VALUES[name]})
    assert other != ours
    changed = [key for key, value in written(other).items() if written(ours)[key] != value]
    assert len(changed) == 1, f"{name} shows in {changed}"
    assert f"{changed[0]} {written(ours)[changed[0]]} -> {written(other)[changed[0]]}" in said(
        ours, other
    )


def test_a_mapping_is_of_the_policy_and_shows_in_its_keys():
    """Another path of the plate is another unit of privacy: records must tell."""
    plain, mapped = policy(), policy("source.plate=vehicle.id")
    lenient = policy("source.preset=iudx")
    assert len({one.fingerprint() for one in (plain, mapped, lenient)}) == 3
    assert not [key for key in written(plain) if key.startswith("source.")]
    assert (
        written(mapped)["source.plate"] == "vehicle.id"
        and written(mapped)["source.time_format"] == "iso"
    )
    assert "source.plate unset ->" in said(plain, mapped)
    assert said(mapped, lenient).endswith("source.plate vehicle.id -> license_plate")
    assert policy("source.delimiter=;") == plain
    epochs = "source.time_format=epoch_s", "source.time_zone=Asia/Kolkata"
    assert policy(*epochs) == policy(epochs[0]), "no zone is read there"


def test_a_budget_is_written_by_the_keys_that_its_accounting_reads():
    pure, approximate = (
        policy("budget.epsilon=3.3"),
        policy("budget.epsilon=3.333333", "budget.accounting=approximate"),
    )
    rho = policy(
        "budget.accounting=zcdp", "budget.rho=1.5", "release.mean_epsilon=0.5", "budget.delta=1e-9"
    )
    for ours in (pure, approximate, rho):
        keys = {
            key: value
            for key, value in written(ours).items()
            if key in accepted_keys() and value != "none"
        }
        assert policy(*(f"{key}={value}" for key, value in keys.items())) == ours
    assert "budget.accounting pure ->" in said(pure, approximate)
    assert "budget.epsilon 3.3 -> 3.333333" in said(pure, approximate)
    assert "budget.delta 1e-06 -> 1e-09" in said(
        approximate, rho
    ) and "budget.rho unknown -> 1.5" in said(pure, rho)
    assert len({one.fingerprint() for one in (pure, approximate, rho)}) == 3


def said(theirs, ours):
    ledger = MemoryLedger()
    note_policy(ledger, theirs)
    return other_policies(ledger, ours)[theirs.fingerprint()]
