"""Smoothed estimates of the embedded runtime follow from the ledger: whoever runs, from wherever it
starts."""

import io
import json
import random

import pytest

from tests.failing import Died, DyingLedger
from tests.forms import PURE_ENV, long_but
from tests.runtime.harness import fleet_log, frames_of, smoothed_writer
from udp_stream.embedded.runtime import EmbeddedRuntime
from udp_stream.forecast import shape
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.settings import load
from udp_stream.testing import SeededEntropy

FLAGS = ("hat.slot=2h", "hat.resolution=7", "release.mean=forecast-clip", "release.cdf_epsilon=0",
         "release.mean_epsilon=2", "budget.epsilon=12", "release.min_plates=2")  # fmt: skip
QUARTERS = (*FLAGS[1:], "hat.slot=15m")


@pytest.fixture(autouse=True)
def few_plates_are_a_city(limits):
    limits(shape, PLATES_MIN=1.0, NOISE_MAX=99.0)


def run(ledger, messages, flags=FLAGS):
    out, smoothed = io.BytesIO(), io.BytesIO()

    def publish(releases):
        out.write(b"".join(one.payload + b"\n" for one in releases))

    runtime = EmbeddedRuntime(
        load(None, flags, PURE_ENV), ledger, SeededEntropy(3), str.encode, "test", publish,
        smooth=smoothed_writer(smoothed),
    )  # fmt: skip
    try:
        runtime.run(frames_of(messages, 2000))
    except Died:
        return out.getvalue(), smoothed.getvalue(), False
    return out.getvalue(), smoothed.getvalue(), True


def before(messages, time):
    return [one for one in messages if json.loads(one)["observationDateTime"] < time]


def test_there_is_one_for_each_hat_and_each_cell_known_and_its_fields_are_those_of_the_contract():
    out, smoothed, _ = run(MemoryLedger(), fleet_log(clean=True, buses=20), QUARTERS)
    releases, estimates = (
        [json.loads(line) for line in some.splitlines()] for some in (out, smoothed)
    )
    by_slot = {}
    for one in estimates:
        by_slot.setdefault(one["hat"]["slot_start"], []).append(one)
        shapes = {"cdf_withheld"} if one["cdf"] is None else {
            "quantiles_kmh", "quantiles_interval95_kmh", "share_below_kmh", "share_below_interval95",
            "expected_sup_error",
        }  # fmt: skip
        assert set(one) - shapes == {
            "schema", "hat", "value_kmh", "interval95_kmh", "expected_abs_error_kmh", "guess", "release_id", "news",
            "software", "cdf",
        }  # fmt: skip
        assert one.get("cdf_withheld", "city_untold") == "city_untold"
        assert one["interval95_kmh"][0] <= one["value_kmh"] <= one["interval95_kmh"][1]
    known = set()
    for slot, some in by_slot.items():
        here = [one for one in releases if one["hat"]["slot_start"] == slot]
        assert [one["release_id"] for one in some if one["release_id"]] == [
            one["release_id"] for one in here
        ]
        known |= {one["hat"]["cell"] for one in here if one["mean"]}
        assert known <= {one["hat"]["cell"] for one in some}
    assert len(by_slot) == 6 and any(one["release_id"] is None for one in estimates)
    assert all(one["cdf"] for one in estimates)  # the first slot was asked, before any of its HATs


@pytest.mark.parametrize("answered", long_but([True], [False, True]))
def test_killed_at_any_call_of_the_ledger_the_next_run_writes_the_same_bytes(answered):
    messages, watched = fleet_log(clean=True, buses=20), DyingLedger(MemoryLedger())
    whole = run(watched, messages, QUARTERS)
    assert whole[2]
    dice = random.Random(answered)
    for at in dice.sample(range(len(watched.calls)), 5):
        ledger = MemoryLedger()
        died = run(DyingLedger(ledger, at, answered=answered), messages, QUARTERS)
        assert not died[2] and whole[1].startswith(died[1])
        assert (
            run(DyingLedger(ledger, dice.randrange(at + 5, at + 25)), messages, QUARTERS)[1]
            in whole[1]
        )
        assert run(ledger, messages, QUARTERS) == whole
        assert run(ledger, messages, QUARTERS) == whole  # all of it is recorded


def test_started_anew_on_any_day_at_any_hour_it_goes_on_as_if_it_had_never_stopped():
    messages = fleet_log(clean=True, buses=8, hours=54)
    out, smoothed, _ = run(MemoryLedger(), messages)
    assert (
        len(
            {
                json.loads(line)["mean"]["value_kmh"]
                for line in out.splitlines()
                if b'"released"' in line
            }
        )
        > 20
    )
    ledger, parts, done = MemoryLedger(), [], []
    for until in ("2024-01-08T12", "2024-01-09T00", "2024-01-09T06", "2024-01-10T08", "9"):
        part = before(messages, until)
        parts.append(run(ledger, part[len(done) :]))
        done = part
    assert b"".join(one[0] for one in parts) == out
    assert b"".join(one[1] for one in parts) == smoothed
    again = run(ledger, messages[len(before(messages, "2024-01-09T22")) :])[
        1
    ]  # begins with a slot that ends a day
    assert smoothed.endswith(again) and b"T22:00:00+05:30" in again.splitlines()[0]


def test_a_run_over_a_part_of_the_log_knows_what_the_ledger_holds():
    messages, ledger = fleet_log(clean=True, buses=20), MemoryLedger()
    _, whole, _ = run(ledger, messages, QUARTERS)
    plates = sorted({json.loads(one)["license_plate"] for one in messages})[::2]
    some, estimates, _ = run(
        ledger, [m for m in messages if json.loads(m)["license_plate"] in plates], QUARTERS
    )
    assert estimates == whole and len(some.splitlines()) < 0.95 * whole.count(b'-900"')
