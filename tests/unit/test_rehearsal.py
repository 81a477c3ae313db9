"""A rehearsal foretells errors from counts alone: it reads no speed, and what it says follows
budget and counts."""

import numpy as np
import pytest

from benchmarks import made_up_city
from benchmarks.feeds import feed_of
from benchmarks.forecast_days import day_of_fleet, joined, run
from benchmarks.guesses import constant_and_counts
from benchmarks.made_up_city import MadeUpCity
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.release.charge import ReleaseContext
from udp_stream.release.rehearsal import rehearse
from udp_stream.settings import load
from udp_stream.sources.fleet import Fleet
from udp_stream.testing import SeededSlots


def expected_of(day, *flags):
    settings = load(None, (*day.feed.flags, *flags), {})
    context = ReleaseContext(settings.policy, settings.calendar, SeededSlots("plan"), "benchmark")
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


@pytest.mark.long
def test_days_of_a_regular_city_are_expected_to_err_as_they_do_also_the_later_days(limits):
    """Its speeds are the same every day, hour by hour; noise is another in each invented city."""
    limits(made_up_city, CELL_DAY_SD=0.02, HAT_SD=0.02, DRIVER_SD=0.02)
    city = MadeUpCity(3, buses=60)
    feed = feed_of("city:65:Asia/Kolkata")
    days = [joined(feed, tuple(city.slots(day, hours=(6, 11)))) for day in range(3)]
    rows = expected_of(joined(feed, sum((day.slots for day in days), ()))).by_slot
    runs = [run(days, seed, None, ()) for seed in range(2)]
    for at, day in enumerate(days):
        here = [rows[counts.start_ms] for counts, _ in day.slots]
        said = sum(row.error for row in here) / sum(row.pings for row in here)
        off = np.mean([np.abs(found[at].value - day.truth) for found in runs], axis=0)
        assert said == pytest.approx(np.average(off, weights=day.pings), rel=0.3)


def test_two_rehearsals_of_a_release_have_different_noise():
    entropy = SeededSlots("plan")
    drawn = [bits(16) for _ in range(2) for _, bits in entropy.streams(["a"])]
    assert drawn[0] != drawn[1]
