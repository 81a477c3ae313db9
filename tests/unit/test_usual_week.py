"""The usual week: exact mathematics on tiny cities, what it learns over days, and from what alone it
follows."""

import datetime as dt

import numpy as np
import pytest

from benchmarks.weeks import DAYS, add_remove, recorded
from tests.runtime.harness import FEEDS
from udp_stream.forecast.add_remove import AddRemoveMemory
from udp_stream.forecast.anomalies import NOT_CLIPPED
from udp_stream.forecast.model import PER_HAT, Memory, ReleasedHats, SlotPrior
from udp_stream.forecast.usual_week import (
    HAT_FEATURES,
    Arrow,
    Design,
    HatWeek,
    course,
    design,
    kind_of_day,
)

MONDAY, CELLS = dt.date(2024, 1, 8), 60


def dense(arrow_mean, covariance, own_sd, cells):
    """Mean and covariance of globals and of all cells' states, as a single normal variable."""
    size = arrow_mean.size + cells * own_sd.size
    mean, joint = np.zeros(size), np.zeros((size, size))
    mean[: arrow_mean.size] = arrow_mean
    joint[: arrow_mean.size, : arrow_mean.size] = covariance
    joint[arrow_mean.size :, arrow_mean.size :] = np.diag(np.tile(own_sd**2, cells))
    return mean, joint


def test_an_arrow_is_the_normal_variable_that_it_stands_for():
    rng = np.random.default_rng(1)
    globals_, cells, states = 3, 4, 2
    first = (
        rng.normal(size=globals_),
        np.diag(rng.uniform(1, 4, globals_)),
        rng.uniform(1, 3, states),
    )
    arrow, (mean, joint) = Arrow(*first), dense(*first, cells)
    arrow.grow(cells)
    for _ in range(6):
        at = rng.permutation(cells)[:3]
        design = Design(rng.normal(size=(3, states)), rng.normal(size=(3, globals_)))
        value, variance = rng.normal(size=3), rng.uniform(0.5, 2, 3)
        rows = np.zeros((3, mean.size))
        rows[:, :globals_] = design.shared
        for row, cell in enumerate(at):
            rows[row, globals_ + states * cell :][:states] = design.own[row]
        spread = rows @ joint @ rows.T + np.diag(variance)
        gain = joint @ rows.T @ np.linalg.inv(spread)
        off = value - rows @ mean
        likelihood = arrow.update(at, design, value, variance)
        assert likelihood == pytest.approx(
            -0.5 * (off @ np.linalg.solve(spread, off) + np.linalg.slogdet(spread)[1])
        )
        mean, joint = mean + gain @ off, joint - gain @ rows @ joint
        found = arrow.predict(at, design)
        assert found[0] == pytest.approx(rows @ mean)
        assert found[1] == pytest.approx(np.diag(rows @ joint @ rows.T))
    everywhere = Design(rng.normal(size=(cells, states)), rng.normal(size=(cells, globals_)))
    before = arrow.predict(np.arange(cells), everywhere)
    share = np.full(cells, 1 / cells)
    over = arrow.mean_over(share, np.arange(arrow.cells), everywhere)
    assert over.mean == pytest.approx(float(share @ before[0]))
    arrow.observe_mean(over.loadings, 1.0, 0.1 + over.own)
    after = arrow.predict(np.arange(cells), everywhere)
    assert share @ after[0] > share @ before[0] and (after[1] <= before[1] + 1e-9).all()


def test_what_is_renewed_is_as_before_any_release():
    arrow = Arrow(np.zeros(2), np.eye(2), np.array([1.0, 2.0]))
    arrow.grow(3)
    rng, cells = np.random.default_rng(2), np.arange(3)
    arrow.update(
        cells, Design(rng.normal(size=(3, 2)), rng.normal(size=(3, 2))), np.ones(3), np.ones(3)
    )
    arrow.renew_cells(1, 0.0, 4.0)
    arrow.renew_global(1, 0.0, 1.0)
    only = Design(np.tile([0.0, 1.0], (3, 1)), np.tile([0.0, 1.0], (3, 1)))
    mean, variance = arrow.predict(cells, only)
    assert mean == pytest.approx(np.zeros(3)) and variance == pytest.approx(np.full(3, 5.0))


def test_courses_are_of_one_size_and_come_again_after_a_day():
    assert all(course(hour) @ course(hour) == pytest.approx(1) for hour in (0.0, 7.5, 18.25))
    assert course(3.0) == pytest.approx(course(27.0))
    assert course(8.0) @ course(9.0) > 0.8 > 0.2 > course(8.0) @ course(13.0)


@pytest.mark.parametrize("depth", [0.0, 9.0])
def test_how_much_a_city_slows_in_rush_hours_is_learnt_from_a_day(depth):
    rng, cells, week = np.random.default_rng(4), np.arange(30), HatWeek()
    features = np.zeros((cells.size, HAT_FEATURES))
    usual = rng.normal(18, 2, cells.size)
    for hour in [6, 7, 9, *range(12, 22)]:  # nothing is told of 8
        slower = depth * np.exp(-(((hour - 8) / 1.5) ** 2))
        value = usual - slower + rng.normal(0, 2, cells.size)
        week.add(0, hour, cells, value, np.full(cells.size, 4.0), features)
    week.night(MONDAY)
    beliefs = week.beliefs()
    at = design(course(8.0), 0, features, np.ones(cells.size))
    off = beliefs.predict(cells, at)[0] - usual + depth
    assert abs(off.mean()) < (0.3 if depth == 0 else 0.35 * depth)
    night = design(course(2.0), 0, features[:1], np.ones(1))
    deviation = beliefs.predict(np.array([-1]), night)[1] ** 0.5
    assert (deviation > 4.5) == (depth > 0), (
        "nobody told of nights: they may be as unlike as hours are"
    )


def a_memory(sigma=60.0, cells=CELLS):
    return AddRemoveMemory(np.arange(cells, dtype=np.uint64), sigma, 30, 1.0, 115.0)


class City:
    """Cells with usual speeds, slow at rush hours, and traffic; `changed` have other speeds from a
    day on."""

    def __init__(self, seed, sigma=60.0):
        self.rng = np.random.default_rng(seed)
        self.traffic = self.rng.gamma(0.5, 12.0, CELLS)
        hours = np.arange(24)
        rush = -7 * np.exp(-(((hours - 8) / 1.5) ** 2)) - 6 * np.exp(-(((hours - 18) / 1.5) ** 2))
        self.usual = self.rng.normal(22, 6, CELLS)[None] + rush[:, None]
        self.sigma = sigma

    def sums(self, hour, forecast, factor=1.0):
        """Noised sums of a slot; the day's own cell x day sums grow beside."""
        off = factor * self.usual[hour] - forecast
        exact = np.array([self.traffic * off, 5 * self.traffic])
        return exact + self.rng.normal(0, self.sigma, exact.shape)

    def day(self, memory, date, factor=1.0):
        for hour in range(6, 22):
            forecast = memory.forecast(date, float(hour))
            yield memory.learn(date, float(hour), self.sums(hour, forecast, factor), forecast)

    def off(self, forecast, hour):
        return float(np.average(np.abs(forecast - self.usual[hour]), weights=self.traffic))


def weekdays(many):
    days = (MONDAY + dt.timedelta(day) for day in range(2 * many))
    return [day for day in days if kind_of_day(day) == 0][:many]


def test_weeks_teach_rush_hours_and_cells_before_the_day_begins():
    city, memory, errors = City(3), a_memory(), []
    for date in weekdays(11):
        morning = memory.morning(date)
        errors.append(np.mean([city.off(morning[hour], hour) for hour in (8, 13, 18)]))
        for _ in city.day(memory, date):
            pass
    assert errors[10] < 0.7 * errors[1] < 0.7 * errors[0] and errors[10] < 1.6


def test_an_own_release_of_the_day_and_of_the_city_teach_more():
    errors = []
    for more in (False, True):
        city, memory = City(4, sigma=200.0), a_memory(200.0)
        for date in weekdays(6):
            morning = memory.morning(date)
            for hour, _ in enumerate(city.day(memory, date), 6):
                if more:
                    off = city.traffic @ (city.usual[hour] - memory.forecast(date, float(hour)))
                    memory.learn_city(
                        date, hour, np.array([off, city.traffic.sum()]), np.full(2, 25.0)
                    )
            if more:
                off = (city.usual - morning)[6:22].sum(axis=0)
                sums = np.array([city.traffic * off, 16 * city.traffic])
                memory.learn_day(date, sums, np.full(2, 400.0), memory.over_service(date))
        errors.append(city.off(memory.morning(weekdays(7)[6])[12], 12))
    assert errors[1] < 0.7 * errors[0]


def test_a_memory_follows_from_noised_sums_whether_they_were_estimated_or_not():
    """A worker that starts later reads all sums, and estimates the last days alone."""
    city, early, late = City(5), a_memory(), a_memory()
    dates = weekdays(7)
    for number, date in enumerate(dates):
        for hour in range(6, 22):
            forecast = early.forecast(date, float(hour))
            assert number < 5 or np.array_equal(forecast, late.forecast(date, float(hour)))
            sums = city.sums(hour, forecast)
            early.learn(date, float(hour), sums, forecast)
            (late.learn if number >= 5 else late.remember)(date, float(hour), sums, forecast)
    assert np.array_equal(early.week.totals.kept, late.week.totals.kept)


def test_a_weekend_has_hours_of_its_own():
    city, memory = City(6), a_memory()
    for number in range(14):
        date = MONDAY + dt.timedelta(number)
        for _ in city.day(memory, date, 1.25 if kind_of_day(date) else 1.0):
            pass
    work, weekend = (memory.morning(MONDAY + dt.timedelta(day)) for day in (18, 19))
    busy = np.argsort(city.traffic)[-20:]
    apart = (weekend - work)[10:16][:, busy].mean() / work[10:16][:, busy].mean()
    assert 0.1 < apart < 0.4


def test_road_works_are_learnt_in_days():
    city, memory = City(7, sigma=25.0), a_memory(25.0)
    dates = weekdays(16)
    for date in dates[:12]:
        for _ in city.day(memory, date):
            pass
    assert not memory.week.changed.any()
    street = int(np.where(city.usual.mean(axis=0) > 20, city.traffic, 0.0).argmax())
    city.usual[:, street] *= 0.6
    for date in dates[12:]:
        for _ in city.day(memory, date):
            pass
    off = memory.morning(dates[-1] + dt.timedelta(1))[6:22, street] - city.usual[6:22, street]
    assert memory.week.changed[street] and abs(off.mean()) < 2.0
    assert np.count_nonzero(memory.week.changed) == 1


@pytest.mark.long
@pytest.mark.skipif(not FEEDS.is_dir(), reason="recorded days are not part of the program")
def test_a_recorded_day_after_the_others_errs_by_less_than_a_first_day():
    days = recorded(FEEDS)
    name = next(iter(DAYS))
    after, first = (add_remove(days, name, 10.0, weeks) for weeks in (2, 0))
    assert after[0] < 0.95 * first[0] and after[1] < first[1] and after[4] >= 0.9


class Hats:
    """Cells of such usual speeds under "swap-values": releases are noisy by 0.7 km/h."""

    cells = np.arange(20, dtype=np.uint64)
    prior = SlotPrior(np.zeros(0), np.zeros(20), np.zeros((20, PER_HAT)))
    usual = np.linspace(14, 26, 20)

    def __init__(self):
        self.memory, self.rng = Memory(), np.random.default_rng(1)

    def news(self, date, hour, factor):
        value, half = self.usual * factor + self.rng.normal(0, 0.7, 20), np.full(20, 0.5)
        seen = ReleasedHats(self.cells, self.prior, value, half, half, [NOT_CLIPPED] * 20)
        found = self.memory.learn(date, seen, 65.0, hour + 0.5)
        return self.memory.news(date, self.cells, self.prior, hour + 0.5, found, half)


class Sums:
    """The same under "add-remove", of much traffic."""

    def __init__(self):
        self.memory, self.rng = a_memory(cells=20), np.random.default_rng(1)

    def news(self, date, hour, factor):
        forecast = self.memory.forecast(date, float(hour))
        exact = 30 * np.array([Hats.usual * factor - forecast, np.full(20, 5.0)])
        seen = exact + self.rng.normal(0, 20, exact.shape)
        return self.memory.learn(date, float(hour), seen, forecast).news


@pytest.mark.parametrize("city", [Hats, Sums])
def test_news_is_what_is_not_as_usual_by_the_week_whatever_the_day_was_so_far(city):
    told = city()
    for days in range(3):
        ordinary = [told.news(MONDAY + dt.timedelta(days), hour, 1.0) for hour in range(7, 19)]
    assert np.max(ordinary) < 0.5
    today = MONDAY + dt.timedelta(3)
    slow = [told.news(today, hour, 0.6) for hour in range(7, 13)]
    assert (slow[-1] > 0.5).mean() >= 0.9, "the day knows that it is slow; the week does not"
    assert told.news(today, 13, 1.0).max() < 0.5, "the day did not expect it, the week does"
