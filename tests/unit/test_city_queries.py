"""The experiment with queries on the whole city: it takes the real road, budgets hold, and answers are exact."""

from collections import Counter

import numpy as np
import pytest

from benchmarks import city_queries, forecast_days
from benchmarks.city_queries import FARTHEST, REACH_KMH, SHARES, Asking
from benchmarks.forecast_days import day_of_fleet
from udp_stream.forecast.arrow import ArrowFilter, design_of
from udp_stream.ledger.memory import MemoryLedger
from udp_stream.trial.fleet.fleet import Fleet


@pytest.fixture(scope="module")
def day():
    return day_of_fleet("fleet", Fleet(seed=5, buses=40, hours=3.0).columns(), "hat.resolution=6", "hat.slot=1h")


class Shipped:
    """Feeds with the shipped prior for every day."""

    def prior(self, _year, _resolution):
        return None


def asked(day, query, *flags, seed=3, **how):
    asking = Asking(query, seed, **{"is_free": True} | how)
    return asking, asking.run(day, Shipped(), 6, flags)


@pytest.mark.parametrize("flag", ["budget.accounting=pure", "budget.accounting=approximate"])
def test_a_query_is_charged_before_the_slots_releases_and_budgets_hold(day, flag, monkeypatch):
    ledgers = []

    class Kept(MemoryLedger):
        def __init__(self):
            super().__init__()
            ledgers.append(self)

    monkeypatch.setattr("benchmarks.forecast_days.MemoryLedger", Kept)
    monkeypatch.setitem(SHARES, "mean", 0.4)  # two slots can be paid for, and little else
    paid = asked(day, "mean", flag, is_free=False)[1]
    free = asked(day, "mean", flag)[1]
    of_paid, of_free = (list(ledger.entries()) for ledger in ledgers)
    queries = [entry for entry in of_paid if entry.release_id.startswith("city-")]
    assert queries and not any(entry.release_id.startswith("city-") for entry in of_free)
    budget = {entry.budget for entry in of_paid}.pop()
    spent = Counter()
    for entry in of_paid:
        spent.update(dict(zip(entry.plates, entry.charged.tolist(), strict=True)))
    charges = {charge for entry in queries for charge in entry.charged.tolist()}
    assert charges == {0, int(0.4 * budget)} and max(spent.values()) <= budget
    order = [entry.release_id.startswith("city-") for entry in of_paid]
    assert order[0] and order.count(True) == len(day.slots)
    assert paid.measured.sum() < free.measured.sum()


def by_hand(counts, values, forecast, query):
    """Plate by plate, ping by ping."""
    told = []
    for plate in np.unique(counts.plate):
        off, pings = 0.0, 0
        for row in np.flatnonzero(counts.plate == plate):
            mean = values.speed[values.starts[row] : values.starts[row + 1]].mean() / 4096
            apart = mean - forecast.plates[row]
            if query == "spread":
                apart = min(abs(apart) / np.sqrt(16 + 324 / counts.count[row]), FARTHEST)
            off, pings = off + apart * counts.count[row], pings + counts.count[row]
        told.append(np.clip(off / pings, -REACH_KMH, REACH_KMH))
    return np.mean(told)


@pytest.mark.parametrize("query", ["mean", "spread"])
def test_an_answer_without_noise_is_the_mean_over_plates(day, query):
    asking, _ = asked(day, query, has_noise=False)
    for counts, values in day.slots:
        answer = asking.answers[counts.start_ms]
        assert answer.value == pytest.approx(by_hand(counts, values, asking._forecasts[counts.start_ms], query))
        assert answer.plates == np.unique(counts.plate).size and answer.hats.sum() == pytest.approx(1)


@pytest.mark.parametrize(("flag", "share"), [("budget.accounting=pure", 2.0), ("budget.accounting=approximate", 0.5)])
def test_noise_is_that_of_one_plates_largest_move_at_what_it_pays(day, flag, share):
    exact = asked(day, "mean", flag, has_noise=False)[0].answers
    off, variance = [], []
    for seed in range(12):
        found = asked(day, "mean", flag, seed=seed)[0].answers
        off += [found[start].value - exact[start].value for start in found if start == min(exact)]
        variance.append(found[min(exact)].variance)
    assert len(set(variance)) == 1 and 0.3 < np.mean(np.square(off)) / variance[0] < 3
    plates, pays = exact[min(exact)].plates, SHARES["mean"] * (10 if share == 2.0 else 1.539278763)
    moves = 2 * REACH_KMH / plates
    assert variance[0] == pytest.approx(2 * (moves / pays) ** 2 if share == 2.0 else moves**2 / (2 * pays), rel=1e-6)


def test_filters_learn_the_number_as_one_release_of_the_whole_city():
    """A slot of one HAT: the mean query is then a noisy value of it, and other HATs move as by a release of that."""
    design, at, far = design_of(np.array([0.4]), np.ones((1, 6)), np.array([False])), np.array([-1]), np.array([-1])
    learnt, released = ArrowFilter(1.5, 0.5), ArrowFilter(1.5, 0.5)
    said = city_queries._learn_globals(learnt, at, design, np.ones(1), 25.0, 4.0)
    released.grow(1)
    assert said == pytest.approx(released.update(np.array([0]), design, np.array([25.0]), np.array([4.0])))
    other = design_of(np.array([-0.7]), np.zeros((1, 6)), np.array([False]))
    assert np.allclose(learnt.predict(far, other), released.predict(far, other))
    assert learnt.predict(far, other)[0][0] > ArrowFilter(1.5, 0.5).predict(far, other)[0][0]


def test_a_spread_widens_intervals_by_what_it_tells_and_by_less_the_noisier_it_is(day):
    (plain,) = forecast_days.run([day], 3)
    usual = asked(day, "spread", has_noise=False)[0].answers
    first = day.hour == day.hour.min()
    half = usual[min(usual)].value / 2
    _, wide = asked(day, "spread", has_noise=False, usual=half)
    inside = first & (plain.high < 60) & (wide.high < 60)
    ratio = (wide.high - wide.value)[inside] / (plain.high - plain.value)[inside]
    assert ratio == pytest.approx(np.full(ratio.size, 2.0), rel=0.02) and ratio.size > 3
    assert (wide.value == plain.value).all()
    noisy, _ = asked(day, "spread", usual=half)
    told = noisy.answers[min(usual)].value / half
    assert abs(noisy._widening(min(usual)) - 1) < 0.5 * abs(told - 1)


def test_a_tail_is_fitted_to_other_years_and_to_none_of_the_day_reported():
    """Of four tails the first holds 0.9 of the other year, the second all of it: half between them holds 0.95."""
    one, other = np.array([[0.9, 0.9], [1, 1], [1, 1], [1, 1]]), np.array([[0.2, 0.4], [0.4, 0.8], [1, 1], [1, 1]])
    shares = {"austin-2015-a": one, "austin-2016-b": other, "surat": np.zeros((4, 3))}
    found = city_queries._at_fitted_tail(shares, "austin-2016-b", "austin-2016")
    assert found == pytest.approx([0.3, 0.6])
    halved = shares | {"austin-2016-b": other / 2}
    assert city_queries._at_fitted_tail(halved, "austin-2016-b", "austin-2016") == pytest.approx([0.15, 0.3])
