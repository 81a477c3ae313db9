"""A rehearsal foretells errors from counts alone: it reads no speed, and what it says follows
budget and counts."""

import numpy as np
import pytest

from benchmarks.forecast_days import day_of_fleet, run
from benchmarks.guesses import constant_and_counts
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.release.charge import ReleaseContext
from udp_stream.release.rehearsal import rehearse
from udp_stream.settings import load
from udp_stream.sources.fleet import Fleet
from udp_stream.testing import SeededEntropy


def expected_of(day, *flags):
    settings = load(None, (*day.feed.flags, *flags), {})
    context = ReleaseContext(settings.policy, settings.calendar, SeededEntropy("plan"), "benchmark")
    return rehearse([counts for counts, _ in day.slots], context, MemoryLedger)


def measured_of(day, seeds, *flags):
    """The error, mean over seeds; and that of the better guess."""
    values = [run([day], seed, None, flags)[0].value for seed in range(seeds)]
    off = np.mean([np.average(np.abs(value - day.truth), weights=day.pings) for value in values])
    guesses = np.full(day.truth.size, day.constant), constant_and_counts(day)
    return float(off), min(
        float(np.average(np.abs(guess - day.truth), weights=day.pings)) for guess in guesses
    )


@pytest.fixture(scope="module")
def day():
    fleet = Fleet(seed=5, buses=120, hours=3.0)
    return day_of_fleet("fleet", fleet.columns(), "hat.resolution=7", "hat.slot=1h")


def test_the_expected_error_is_near_the_measured_one_and_so_is_what_the_better_guess_leaves(day):
    expected, (error, guess) = expected_of(day), measured_of(day, 2)
    assert expected.error == pytest.approx(error, rel=0.5)
    assert expected.over_guess == pytest.approx(error / guess, abs=0.3)


def test_a_rehearsal_without_forecasts_counts_withheld_hats_with_the_constant(day):
    nothing = expected_of(
        day, "release.mean=array-averaging", "release.mean_epsilon=1", "release.min_plates=100000"
    )
    assert nothing.served == 0 and nothing.error == nothing.constant
