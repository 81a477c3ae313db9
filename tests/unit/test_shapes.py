"""The city's shape and HATs' CDFs: what is asked, when, and that all of it follows from what is
public."""

import datetime as dt

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from tests.forms import PURE_ENV
from udp_stream.base.errors import ConfigError
from udp_stream.base.units import NANO
from udp_stream.forecast import shape
from udp_stream.forecast.shape import Answer, CityMemory, SpreadMemory, family, hat_shapes
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.mechanisms.around import FORECAST_CLIP
from udp_stream.release.charge import ReleaseContext, plan_slot, with_forecaster
from udp_stream.release.city import (
    ASKS_PER_DAY,
    CityKnowledge,
    CityTree,
    ShapeQuestion,
    ask_nano,
    city_bins,
    hat_cdfs,
)
from udp_stream.release.forecaster import MEAN_ABS_PER_SD, Forecaster, LedgerHistory, with_cdfs
from udp_stream.release.promise import release_slot
from udp_stream.release.record import Release
from udp_stream.settings import load
from udp_stream.testing import SeededEntropy, a_context, two_hats
from udp_stream.windows.tables import SlotCounts

EDGES = city_bins(115 * 4096).edges_kmh[1:]
DAY = dt.date(2024, 1, 8)
POLICY = load(None, ("speed.max_kmh=115",), PURE_ENV).policy
TRUE = np.array([0.3, 0.05, 0.03, 0.04, 0.05, 0.07, 0.08, 0.1, 0.1, 0.1, 0.06, 0.02])


def slot_of(plates, pings=12, parked=0):
    """All plates in one HAT, and but for the parked ones in another."""
    plate = np.append(np.arange(plates), np.arange(parked, plates))
    count = np.append(np.where(np.arange(plates) < parked, pings, pings - pings // 2),
                      np.full(plates - parked, pings // 2))  # fmt: skip
    return SlotCounts(0, 3_600_000, tuple(b"%16d" % i for i in range(plates)), np.array([7, 8], np.uint64),
                      np.array([0, plates, plate.size]), plate, count, 0)  # fmt: skip


def asked(plates=200, policy=POLICY, times=0, city=family(EDGES), pings=12, before=0.0, parked=0):  # noqa: B008 - a frozen value
    return ShapeQuestion().ask(
        slot_of(plates, pings, parked), policy, CityKnowledge(city, times, before)
    )


def test_it_is_asked_twice_a_day_at_a_twentieth_of_the_budget_until_it_is_told():
    found = asked()
    assert found.plates == 200 and set(found.charged.tolist()) == {POLICY.budget_nano // 20}
    assert (
        asked(times=1, before=100.0) is not None and asked(times=ASKS_PER_DAY, before=100.0) is None
    )
    told = family(EDGES)
    for _ in range(4):
        told = told.after(Answer(TRUE, 1e-5, 500.0))
    assert told.deviations.max() <= shape.DEVIATION_MIN and asked(city=told) is None
    # At dawn few were out: an answer of many more is wanted, whatever those told.
    assert (
        asked(city=told, times=1, before=100.0) is not None
        and asked(city=told, times=1, before=140.0) is None
    )
    assert (
        ShapeQuestion().ask(slot_of(200), POLICY, None) is None
    )  # nobody knows what was asked before


def test_few_plates_and_little_budget_are_not_asked():
    assert asked(plates=70) is None and asked(plates=700, pings=1) is None
    # Buses that stand in one HAT for all of the slot, as in depots at night, are no city.
    assert asked(plates=700, parked=630) is None and asked(plates=700, parked=600).plates == 700
    assert asked(policy=replace(POLICY, budget_nano=NANO)) is None
    assert (
        asked(policy=replace(POLICY, period_seconds=None)) is None
    )  # of a lifetime no day has a part
    assert ask_nano(replace(POLICY, period_seconds=7 * 86_400)) == POLICY.budget_nano // 140
    assert (
        ask_nano(replace(POLICY, period_seconds=3_600))
        == ask_nano(POLICY)
        == POLICY.budget_nano // 20
    )


def test_what_was_told_is_remembered_for_two_days_and_fades():
    memory, answer = CityMemory(EDGES), Answer(TRUE, 1e-5, 500.0)
    memory.learn(DAY, answer)
    today = memory.told(DAY)
    assert np.abs(np.cumsum(today.mean) - np.cumsum(TRUE)).max() < 0.01
    next_day = memory.told(DAY + dt.timedelta(days=1))
    assert (next_day.deviations[:-1] > today.deviations[:-1]).all() and memory.asked(
        DAY + dt.timedelta(days=1)
    ) == 0
    assert memory.told(DAY + dt.timedelta(days=2)) is None
    memory.learn(DAY, Answer(np.array([0.5, 0.5]), 1e-5, 500.0))  # of another U
    assert memory.asked(DAY) == 0  # it forgot the first, which was of two days before


def test_a_slot_of_the_morning_is_not_taken_for_the_day_and_a_later_one_of_more_plates_counts_more():
    memory, morning = CityMemory(EDGES), np.roll(TRUE, 1)
    memory.learn(DAY, Answer(morning, 1e-6, 1_000.0))
    alone = memory.shape(DAY)
    assert alone.deviations.max() > 0.02  # however many plates told it
    assert memory.plates(DAY) == 1_000.0 and memory.plates(DAY + dt.timedelta(days=1)) == 0.0
    memory.learn(DAY, Answer(TRUE, 1e-6, 4_000.0))
    off = [
        np.abs(np.cumsum(memory.shape(DAY).mean) - np.cumsum(one)).max() for one in (TRUE, morning)
    ]
    assert off[0] < 0.4 * off[1]


def test_answers_count_by_their_noise():
    sharp, vague = (family(EDGES).after(Answer(TRUE, variance, 300.0)) for variance in (1e-4, 1e-1))
    off = [
        np.abs(np.cumsum(one.mean) - np.cumsum(TRUE)).max() for one in (sharp, vague, family(EDGES))
    ]
    assert off[0] < off[1] < off[2] and sharp.deviations.max() < vague.deviations.max()


@pytest.mark.parametrize("seed", range(3))
def test_a_tilted_cdf_has_the_mean_and_no_other_with_that_mean_is_nearer_to_the_citys(seed):
    rng, mean = np.random.default_rng(seed), np.array([2.0, 9.0, 21.0, 40.0])
    city = family(EDGES).after(Answer(rng.dirichlet(20 * TRUE), 1e-4, 200.0))
    found = hat_shapes(
        city, mean, np.full(4, 2.0), np.zeros(4, np.int64)
    )  # without pings there is nothing to correct
    shares = np.diff(found.cdf, axis=1, prepend=0.0)
    middles = np.append(0.0, (found.kmh[1:] + found.kmh[:-1]) / 2)
    assert shares @ middles == pytest.approx(mean, abs=0.01)
    cumulative = np.interp(found.kmh, EDGES, np.cumsum(city.mean))
    base = np.maximum(np.diff(cumulative, prepend=0.0), shape.SHARE_MIN)
    both = np.vstack([np.ones_like(middles), middles])
    for row in shares:
        for _ in range(20):  # moves that keep sum and mean
            move = rng.normal(size=row.size) * row
            move -= row * (np.linalg.solve(both * row @ both.T, both @ move) @ both)
            other = row + 0.5 * move / np.max(np.abs(move) / row)
            assert both @ other == pytest.approx(both @ row, abs=1e-6)
            assert np.sum(other * np.log(other / base)) >= np.sum(row * np.log(row / base)) - 1e-9


@pytest.mark.parametrize("seed", range(3))
def test_the_hats_of_a_slot_mix_to_the_city_as_tilts_alone_do_not_and_keep_their_means(seed):
    rng = np.random.default_rng(seed)
    city = family(EDGES).after(Answer(TRUE, 1e-4, 200.0))
    plates, deviation = rng.integers(20, 90, 12), np.full(12, 3.0)
    kmh = np.arange(EDGES[-1] + 1)
    cumulative, middles = np.interp(kmh, EDGES, np.cumsum(city.mean)), np.append(0.0, kmh[1:] - 0.5)
    mean = rng.normal(0.0, 6.0, 12)
    mean += np.diff(cumulative, prepend=0.0) @ middles - np.average(
        mean, weights=plates
    )  # as a city's HATs have it
    ours, alone = (
        hat_shapes(city, mean, deviation, some) for some in (plates, np.zeros(12, np.int64))
    )
    off = [np.abs(plates @ one.cdf / plates.sum() - cumulative).max() for one in (ours, alone)]
    assert off[0] < 0.9 * off[1]
    assert np.diff(ours.cdf, axis=1, prepend=0.0) @ middles == pytest.approx(mean, abs=0.01)
    # A slot of one HAT has no mixture to correct: what tilting does, tilting undoes.
    one = [hat_shapes(city, mean[:1], np.full(1, 0.01), np.array([n])).cdf for n in (0, 500)]
    assert one[0] == pytest.approx(one[1], abs=1e-4)


def test_cdfs_rise_to_one_inside_their_bands_and_quantiles_inside_their_intervals():
    city = family(EDGES).after(Answer(TRUE, 1e-3, 120.0))
    mean = np.array([0.0, 0.3, 11.0, 30.0, 80.0, 115.0])
    for one in hat_cdfs(city, mean, np.full(6, 3.0), np.array([1, 2, 5, 20, 80, 400])):
        assert (
            list(one.cdf.values) == sorted(one.cdf.values)
            and one.cdf.values[-1] == one.cdf.guess[-1] == 1.0
        )
        assert one.cdf.edges_kmh == EDGES and 0 < one.expected_sup_error <= 1
        low, high = one.cdf.band
        assert list(low) == sorted(low) and list(high) == sorted(high)
        assert all(a <= value <= b for a, value, b in zip(low, one.cdf.values, high, strict=True))
        for values, intervals, names in (
            (one.quantiles_kmh, one.quantiles_interval95_kmh, ["0.1", "0.5", "0.9"]),
            (one.share_below_kmh, one.share_below_interval95, ["5", "10"]),
        ):
            assert list(values) == list(intervals) == names and list(values.values()) == sorted(
                values.values()
            )
            assert all(intervals[name][0] <= values[name] <= intervals[name][1] for name in names)
    few, many = hat_cdfs(city, np.array([20.0, 20.0]), np.array([2.0, 2.0]), np.array([2, 200]))
    assert many.expected_sup_error < few.expected_sup_error


def test_a_deployment_says_why_there_is_no_cdf():

    (counts, values), context, ledger = two_hats(), a_context(), MemoryLedger()
    recorded = release_slot(counts, values, context, ledger, publish=lambda _: None)
    for shapes, why in ((False, "off"), (True, "city_untold")):
        forecaster = Forecaster(context.calendar.slots, context.policy.max_speed, "test", shapes)
        forecaster.saw(counts)
        estimates = forecaster.smoothed((counts.start_ms, counts.end_ms), LedgerHistory(ledger))
        assert all(
            one.cdf is None and one.cdf_withheld == why and not one.quantiles_kmh
            for one in estimates
        )
    # Told, it follows from the records and the city's answer alone.
    city = family(city_bins(context.policy.max_speed).edges_kmh[1:])
    plates = {name: Release.decode(payload).plates for name, payload in recorded.payloads.items()}
    said = np.array(
        [(one.value_kmh, one.expected_abs_error_kmh / MEAN_ABS_PER_SD) for one in estimates]
    )
    of_hats = np.array([plates[one.release_id] for one in estimates])
    alone = hat_cdfs(city, *said.T, of_hats)
    for one, again in zip(with_cdfs(estimates, of_hats, city), alone, strict=True):
        assert (one.cdf, one.quantiles_kmh, one.expected_sup_error) == (again.cdf, again.quantiles_kmh,
                                                                       again.expected_sup_error)  # fmt: skip


def test_the_usual_spread_is_learnt_from_sums_and_a_feed_that_changes_within_the_day():
    rng, memory = np.random.default_rng(2), SpreadMemory(EDGES)
    other = np.roll(TRUE, 1)  # hardly any bus stands
    other[0], other[1] = 0.02, 0.3
    found = []
    for number, shares in enumerate((TRUE, TRUE, TRUE, other)):
        day = DAY + dt.timedelta(number)
        found.append(memory.told(day))
        for _ in range(12):
            memory.learn(day, 40 * shares + rng.normal(scale=2, size=TRUE.size), noise=4.0)
        memory.learn(day, np.ones(5), noise=1.0)  # of another U
        found.append(memory.told(day))
    assert found[0] is None and all(found[1:])
    for told in found[1:-1]:
        off = np.cumsum(told.mean - TRUE)
        assert abs(off).max() < 0.05 and (abs(off) < 3 * np.maximum(told.deviations, 0.01)).all()
    assert abs(np.cumsum(found[-1].mean - other)).max() < 0.1
    weak = SpreadMemory(EDGES)
    for hour in range(12):
        weak.learn(DAY, 40 * TRUE + rng.normal(scale=400, size=TRUE.size), noise=400.0**2)
        assert weak.told(DAY) is None, hour


def test_settings_that_ask_for_what_cannot_be_are_refused():
    for flags in (["release.cdf=smoothed", "release.mean=levy"], ["release.cdf=both"]):
        with pytest.raises(ConfigError, match=r"release\.cdf"):
            load(None, flags, PURE_ENV)
    for mode, cdf_nano, shapes in (
        ("auto", NANO, True),
        ("tree", NANO, False),
        ("smoothed", 0, True),
        ("off", 0, False),
    ):
        policy = load(None, (f"release.cdf={mode}", "release.cdf_epsilon=1"), PURE_ENV).policy
        assert (policy.cdf_nano, policy.shapes) == (cdf_nano, shapes)


@pytest.mark.parametrize(
    ("flags", "is_automatic"),
    [
        ((), True),
        (("release.cdf=tree",), True),
        (("release.mean_epsilon=0.3",), False),
        (("release.mean=baseline",), False),
        (("release.mean_epsilon=0.3", "budget.period=lifetime"), False),
        (("release.cdf=smoothed",), False),
    ],
)
def test_trees_are_automatic_beside_automatic_means_around_forecasts(flags, is_automatic):
    assert load(None, flags, {}).policy.cdf_nano == (None if is_automatic else 0)


def test_where_no_hat_is_large_enough_for_a_tree_means_cost_what_they_cost_without():
    """The price of a mean is that of a mean alone: a HAT of 40 plates."""
    plate, cells = np.arange(40), np.array([0x8742D98B6FFFFFF], np.uint64)
    counts = SlotCounts(1_641_009_600_000, 1_641_013_200_000, tuple(b"%16d" % i for i in range(40)), cells,
                        np.array([0, 40]), plate, np.full(40, 10), 0)  # fmt: skip
    for environment in (PURE_ENV, {}):
        found = []
        for epsilon in ("auto", "0"):
            settings = load(None, (f"release.cdf_epsilon={epsilon}",), environment)
            context = with_forecaster(
                ReleaseContext(settings.policy, settings.calendar, SeededEntropy(1), "test")
            )
            plan = plan_slot(counts, context, MemoryLedger())
            (terms,) = plan.terms
            found.append(
                {one.statistic: one.epsilon_nano for one in terms.statistics if one.epsilon_nano}
            )
        assert found[0] == found[1] and list(found[0]) == [FORECAST_CLIP]


def test_a_large_hat_has_a_tree_of_its_own_where_that_errs_far_less():
    """Three HATs, of 600, 100 and 5 plates: a tree each, one each where it errs far less, none. At
    100 plates a tree errs a little less, too, but not its largest error, and later means would lack
    its budget."""
    cells = np.array([0x8742D98B0FFFFFF, 0x8742D98B6FFFFFF, 0x8742D9D4CFFFFFF], np.uint64)
    sizes = 600, 100, 5
    plate, count = np.concatenate([np.arange(size) for size in sizes]), np.full(sum(sizes), 10)
    counts = SlotCounts(1_641_009_600_000, 1_641_013_200_000, tuple(b"%16d" % i for i in range(600)), cells,
                        np.cumsum([0, *sizes]), plate, count, 0)  # fmt: skip
    wanted = {
        "tree": [True, True, True],
        "auto": [True, False, False],
        "smoothed": [False, False, False],
    }
    for mode, found in wanted.items():
        flags = (
            "release.mean=forecast-clip",
            "budget.epsilon=40",
            f"release.cdf={mode}",
            "release.cdf_epsilon=0.5",
        )
        settings = load(None, flags, PURE_ENV)
        context = with_forecaster(
            ReleaseContext(settings.policy, settings.calendar, SeededEntropy(1), "test")
        )
        plan = plan_slot(counts, context, MemoryLedger())
        assert [one.requested_terms("cdf") is not None for one in plan.terms] == found
        assert all(one.requested_terms(FORECAST_CLIP) for one in plan.terms)


def test_a_plan_says_what_noise_it_is_for():
    tree = msgspec.json.decode(asked().about, type=CityTree)
    assert tree.bins.edges_kmh[1:] == EDGES and tree.cost.nano == POLICY.budget_nano // 20
