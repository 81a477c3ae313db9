"""Every field of a policy is known by its configuration key, with the value as a user writes it."""

import pytest
from msgspec.structs import replace

from tests.forms import PURE_ENV
from udp_stream.ledgers.opening import other_policies
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.mechanisms.statistics import priced
from udp_stream.planning.policy import note_policy, written
from udp_stream.settings import load


def policy(*flags):
    return load(None, flags, PURE_ENV).policy


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


def said(theirs, ours):
    ledger = MemoryLedger()
    note_policy(ledger, theirs)
    return other_policies(ledger, ours)[theirs.fingerprint()]
