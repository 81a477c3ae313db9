"""Strange days of the benchmark of questions to the whole city: their counts stay, and their truth is that of their
speeds."""

import dataclasses

import numpy as np
import pytest

from benchmarks.city_queries import STRANGE, measured, strange
from benchmarks.forecast_days import day_of_fleet
from udp_stream.planning import whole_city
from udp_stream.trial.fleet.fleet import Fleet


@pytest.fixture(scope="module")
def day():
    return day_of_fleet("fleet", Fleet(seed=5, buses=40, hours=3.0).columns(), "hat.resolution=6", "hat.slot=1h")


@pytest.mark.parametrize("what", STRANGE)
def test_a_strange_day_has_other_speeds_and_the_truth_of_them(what, day):
    made = strange(day, STRANGE[what], max_kmh=65.0)
    at = 0
    for (counts, values), (before, _) in zip(made.slots, day.slots, strict=True):
        assert counts is before and 0 <= values.speed.min() <= values.speed.max() <= 65 * 4096
        for hat in range(counts.cells.size):
            true = values.of_rows(counts.rows(hat)).mean() / 4096
            assert made.truth[at] == pytest.approx(true)
            at += 1
    share = STRANGE[what].keywords["share"]
    speed, true = (np.concatenate([values.speed for _, values in of.slots]) / 4096 for of in (made, day))
    if "fast" in STRANGE[what].keywords:
        assert abs((speed > 30).mean() - share) < 0.15
    else:  # beside the buses that stand anyway
        assert abs((speed == 0).mean() - share - (1 - share) * (true == 0).mean()) < 0.08
    assert np.array_equal(made.truth, strange(day, STRANGE[what], max_kmh=65.0).truth)


def test_what_is_asked_is_counted(day, monkeypatch):
    class Shipped:
        def prior(self, _year, _resolution):
            return None

    monkeypatch.setattr(whole_city, "NOISE_MAX_KMH", 99.0)  # of 40 buses
    few = dataclasses.replace(day, slots=day.slots[:2], truth=day.truth[: sum(c.cells.size for c, _ in day.slots[:2])])
    few = dataclasses.replace(few, pings=day.pings[: few.truth.size], plates=day.plates[: few.truth.size])
    off, on = (measured(few, Shipped(), 1, (f"forecast.city={city}",)).split() for city in ("off", "on"))
    assert off[-1] == "0.0" and on[-1] == "2.0" and len(on) == 3
