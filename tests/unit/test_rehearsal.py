"""A rehearsal foretells errors from counts alone: it reads no speed, and what it says follows budget and counts."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from benchmarks.accuracy import DAYS
from benchmarks.forecast_days import day_of, day_of_fleet, run
from benchmarks.guesses import constant_and_counts
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.release.charge import ReleaseContext
from udp_stream.release.rehearsal import CITY_MEAN, CITY_OFF, City, Usual, cities_of, rehearse
from udp_stream.settings import load
from udp_stream.testing import SeededEntropy, a_context
from udp_stream.trial.fleet import Fleet
from udp_stream.units import QUANTA_PER_KMH

DATA = Path(__file__).parents[3] / "shared" / "data"


def expected_of(day, *flags):
    settings = load(None, (*day.feed.flags, *flags), {})
    context = ReleaseContext(settings.policy, settings.calendar, SeededEntropy("plan"), "benchmark")
    return rehearse([counts for counts, _ in day.slots], context, MemoryLedger)


def measured_of(day, seeds, *flags):
    """The error, mean over seeds; and that of the better guess."""
    values = [run([day], seed, None, flags)[0].value for seed in range(seeds)]
    off = np.mean([np.average(np.abs(value - day.truth), weights=day.pings) for value in values])
    guesses = np.full(day.truth.size, day.constant), constant_and_counts(day)
    return float(off), min(float(np.average(np.abs(guess - day.truth), weights=day.pings)) for guess in guesses)


@pytest.fixture(scope="module")
def day():
    fleet = Fleet(seed=5, buses=120, hours=3.0)
    return day_of_fleet("fleet", fleet.columns(), "hat.resolution=7", "hat.slot=1h")


def test_the_expected_error_is_near_the_measured_one_and_so_is_what_the_better_guess_leaves(day):
    expected, (error, guess) = expected_of(day), measured_of(day, 2)
    assert expected.error == pytest.approx(error, rel=0.5)
    assert expected.over_guess == pytest.approx(error / guess, abs=0.3)


@pytest.mark.parametrize(("name", "seeds"), [("austin-capmetro-2017-03-21", 2), ("surat-itms-2022-01-01", 10)])
def test_the_expected_error_is_within_30_percent_of_what_recorded_feeds_have(name, seeds):
    path = DATA / f"{name}.ndjson.gz"
    if not path.exists():
        pytest.skip("the recorded feeds are not beside the repository")
    day = day_of(f"{path}{DAYS[name]}", "hat.resolution=7", "hat.slot=1h")
    expected, (error, guess) = expected_of(day), measured_of(day, seeds)
    assert expected.error == pytest.approx(error, rel=0.3)
    assert expected.over_guess == pytest.approx(error / guess, abs=0.15)


def test_more_budget_errs_less_and_almost_none_errs_as_the_guess_does(day):
    errors = [expected_of(day, f"budget.epsilon={epsilon}") for epsilon in (0.05, 2, 10, 1000)]
    assert [one.error for one in errors] == sorted((one.error for one in errors), reverse=True)
    assert errors[0].served < 0.2 < errors[-1].served
    assert errors[0].over_guess > 0.85 > 0.6 > errors[-1].over_guess


def test_a_rehearsal_without_forecasts_counts_withheld_hats_with_the_constant(day):
    nothing = expected_of(day, "release.mean=array-averaging", "release.mean_epsilon=1", "release.min_plates=100000")
    assert nothing.served == 0 and nothing.error == nothing.constant


def test_the_same_counts_give_the_same_figures_whatever_the_budget_day_is_called(day):
    slots = [counts for counts, _ in day.slots][:3]
    context = a_context()
    assert rehearse(slots, context, MemoryLedger) == rehearse(slots, context, MemoryLedger)


def test_invented_speeds_lie_in_the_range_and_are_of_two_cities(day):
    counts = day.slots[2][0]
    slow, fast = (City(number, Usual.of([counts])).speeds(counts, 65 * QUANTA_PER_KMH) for number in (0, 1))
    for values in (slow, fast):
        assert values.speed.min() >= 0 and values.speed.max() <= 65 * QUANTA_PER_KMH
        assert np.diff(values.starts).tolist() == counts.count.tolist()
    assert 10 < slow.speed.mean() / QUANTA_PER_KMH < fast.speed.mean() / QUANTA_PER_KMH < 30


@pytest.mark.parametrize("power", [1, 2])
def test_an_invented_city_has_its_mean_speed_also_where_counts_tell_of_slow_hats_alone(day, power):
    """Where plates stay long, most pings are of long stays, and counts tell that these HATs are slow."""
    slots = [replace(counts, count=np.maximum(1, counts.count**power // 10 ** (power - 1))) for counts, _ in day.slots]
    usual, mean = Usual.of(slots), []
    assert power == 1 or usual.by_hat < -0.2
    for number in range(4):
        city = City(number, usual)
        mean.append(np.concatenate([city.speeds(counts, 115 * QUANTA_PER_KMH).speed for counts in slots]).mean())
    slow, fast = np.array(mean).reshape(2, 2).mean(axis=0) / QUANTA_PER_KMH
    assert (slow + fast) / 2 == pytest.approx(CITY_MEAN, abs=1.5)
    assert slow + CITY_OFF < fast


def test_more_cities_are_invented_where_hats_are_few(day):
    slots = [counts for counts, _ in day.slots]
    assert sum(counts.cells.size for counts in slots) > 100
    few, many = cities_of(slots[:1]), cities_of(slots * 10)
    assert (few, many) == (16, 4)


def test_a_range_of_speeds_that_is_narrower_than_cities_are_is_kept_to(day):
    context = a_context()
    policy = msgspec.structs.replace(context.policy, max_speed=12 * QUANTA_PER_KMH, cdf_nano=0)
    narrow = replace(context, policy=policy)
    expected = rehearse([day.slots[2][0]], narrow, MemoryLedger)
    assert 0 <= expected.error < 12
