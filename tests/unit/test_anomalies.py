"""As usual, or something happened: posteriors beside brute force, what a clip lets through beside
simulated plates."""

from functools import cache

import numpy as np
import pytest

from udp_stream.forecast import anomalies as module
from udp_stream.forecast.anomalies import (
    GOES_ON,
    GOES_ON_BY,
    HAPPENS,
    NOT_CLIPPED,
    NOTHING,
    SPREAD_POWER,
    SPREAD_SLOWEST_KMH,
    Carryover,
    ReleaseClip,
    happened_variance,
    measured,
    mixed,
    unmeasured,
)
from udp_stream.mechanisms.widths import HALF_WIDTHS, PEAKED, response

MAX_KMH = 65.0
PLATES = 20_000


def differences(rng, plates, shape=()):
    """Of plates around their HAT, of deviation one, more peaked than a normal variable."""
    peaked = rng.laplace(0, np.sqrt(0.5), (plates, *shape))
    return np.where(
        rng.random((plates, *shape)) < PEAKED, peaked, rng.normal(size=(plates, *shape))
    )


def passed(rng, half_width, hats, off, spread, others, plates=PLATES):
    """What the mean of many plates moves by, each clipped HAT by HAT, or scaled into a ball with
    other HATs."""
    own = off + spread * differences(rng, plates)
    if hats == 1:
        return np.clip(own, -half_width, half_width).mean()
    rest = np.sqrt(1 + others**2) * rng.normal(size=(plates, hats - 1))
    length = np.sqrt(own**2 + (rest**2).sum(axis=1))
    return (own * np.minimum(1, half_width * np.sqrt(hats) / length)).mean()


@pytest.mark.parametrize("hats", [1, 3, 5])
@pytest.mark.parametrize("half_width", [HALF_WIDTHS[0], 1.5, HALF_WIDTHS[-1]])
def test_a_clip_lets_through_what_simulated_plates_show(half_width, hats):
    rng = np.random.default_rng(hats)
    for others in (0.0, 0.5, 1.0):
        for spread in (0.5, 1.0, 1.6):
            offs = np.array([[-6.0, -2.0, -0.5, 0.0, 0.8, 1.5, 4.0, 40.0]])
            spreads, widths = np.full(offs.shape, spread), np.array([half_width])
            found = response(widths, np.array([hats]), offs, spreads, np.array([others]))[0]
            seen = np.array(
                [passed(rng, half_width, hats, off, spread, others) for off in offs[0].tolist()]
            )
            # Normal and peaked plates share a ball, and the larger of two estimates is taken for
            # peaked ones.
            near = 0.02 if hats == 1 else 0.06
            assert np.abs(found[:-1] - seen[:-1]).max() < near * half_width + 0.01, (others, spread)
            assert (np.diff(found[:-1]) > -1e-9).all() and found[3] == 0
    assert found[-1] <= half_width * np.sqrt(hats) + 1e-9


@cache
def shown(clipped, hats_off):
    """The speeds of a grid, and what is released of each by plates that are clipped one by one."""
    step, rng = 0.25, np.random.default_rng(5)
    grid = np.arange(step / 2, MAX_KMH, step)
    if not clipped.half_width:
        return grid, grid
    lowest = lambda kmh: np.maximum(kmh, SPREAD_SLOWEST_KMH)  # noqa: E731
    spreads = (lowest(grid) / lowest(clipped.centre)) ** SPREAD_POWER
    offs = (grid - clipped.centre) / clipped.scatter
    let = [
        passed(rng, clipped.half_width, clipped.hats, off, spread, hats_off)
        for off, spread in zip(offs.tolist(), spreads.tolist(), strict=True)
    ]
    return grid, clipped.centre + clipped.scatter * np.array(let) / clipped.gain


def brute_force(mean, variance, carried, value, noise, clipped, hats_off):
    """Probability of news, and mean of either case: each speed's likelihood."""
    grid, released = shown(clipped, hats_off)
    seen = np.exp(-((value - released) ** 2) / (2 * noise))
    normal = lambda at, var: np.exp(-((grid - at) ** 2) / (2 * var)) / np.sqrt(var)  # noqa: E731
    wide = variance + float(happened_variance(np.array([mean]))[0])
    usual = (1 - HAPPENS) * (1 - carried.probability) * normal(mean, variance) * seen
    anomaly = HAPPENS * (1 - carried.probability) * normal(mean, wide)
    anomaly = (anomaly + carried.probability * normal(mean + carried.off, wide)) * seen
    return (
        anomaly.sum() / (anomaly + usual).sum(),
        grid @ usual / usual.sum(),
        grid @ anomaly / anomaly.sum(),
    )


CLIPS = {
    "no clip": NOT_CLIPPED,
    "a clip HAT by HAT": ReleaseClip(20.0, 0.75, 1, 0.5, 8.0),
    "a wide one": ReleaseClip(22.0, 2.0, 1, 0.9, 8.0),
    "a ball": ReleaseClip(20.0, 0.75, 5, 0.65, 8.0),
}


@pytest.mark.parametrize(
    "carried", [NOTHING, Carryover(0.4, -9.0)], ids=["nothing carried", "carried"]
)
@pytest.mark.parametrize("clipped", CLIPS.values(), ids=CLIPS)
@pytest.mark.parametrize("value", [21.0, 13.0, 4.0, 36.0])
def test_the_posterior_is_that_of_brute_force(value, clipped, carried):
    given = 20.0, 9.0
    found = measured(
        *map(np.array, ([20.0], [9.0])),
        [carried],
        np.array([value]),
        np.array([4.0]),
        [clipped],
        MAX_KMH,
    )
    others = np.sqrt(9.0) / clipped.scatter
    anomaly, usual_mean, anomaly_mean = brute_force(*given, carried, value, 4.0, clipped, others)
    assert found.anomaly[0] == pytest.approx(anomaly, abs=0.05)
    assert found.usual_mean[0] == pytest.approx(usual_mean, abs=0.35)
    assert found.anomaly_mean[0] == pytest.approx(anomaly_mean, abs=0.8)


def test_where_next_to_nothing_happens_it_is_the_gaussian_formula(limits):
    limits(module, HAPPENS=1e-12)
    rng = np.random.default_rng(2)
    mean, variance, noise = rng.uniform(25, 40, 50), rng.uniform(1, 16, 50), rng.uniform(1, 30, 50)
    value = mean + np.clip(rng.normal(0, np.sqrt(variance + noise)), -9, 9)
    found = measured(mean, variance, [NOTHING] * 50, value, noise, [NOT_CLIPPED] * 50, MAX_KMH)
    gain = variance / (variance + noise)
    expected = mean + gain * (value - mean)
    assert found.anomaly.max() < 1e-6
    assert np.allclose(found.mean, expected, atol=1e-3) and np.allclose(
        found.median, expected, atol=1e-3
    )
    assert np.allclose(found.variance, variance * (1 - gain), rtol=0.03, atol=0.03)


@pytest.mark.parametrize("clipped", [NOT_CLIPPED, ReleaseClip(20.0, 0.75, 5, 0.5, 8.0)])
def test_a_release_that_neither_case_explains_leaves_finite_numbers(clipped):
    value = np.array([-4000.0, -80.0, 0.0, 140.0, 1e6])
    many = [
        np.full(5, 20.0),
        np.full(5, 0.5),
        [Carryover(0.999, -60.0)] * 5,
        value,
        np.full(5, 0.01),
    ]
    found = measured(*many, [clipped] * 5, MAX_KMH)
    for column in (found.anomaly, found.mean, found.variance, found.median):
        assert np.isfinite(column).all()
    assert ((found.anomaly >= 0) & (found.anomaly <= 1)).all() and (found.variance > 0).all()
    assert ((found.median >= 0) & (found.median <= MAX_KMH)).all() and found.anomaly[-1] > 0.9


@pytest.mark.parametrize(
    "carried", [NOTHING, Carryover(0.5, -6.0)], ids=["nothing carried", "carried"]
)
def test_without_a_release_it_is_the_mixture_of_draws_and_plans_have_its_moments(carried):
    rng, many = np.random.default_rng(6), 400_000
    mean, variance, one = np.array([30.0]), np.array([4.0]), [carried]
    wide = np.sqrt(variance[0] + happened_variance(mean)[0])
    goes_on = rng.random(many) < carried.probability
    is_anomaly = goes_on | (rng.random(many) < HAPPENS)
    draws = rng.normal(
        mean[0] + np.where(goes_on, carried.off, 0),
        np.where(is_anomaly, wide, np.sqrt(variance[0])),
    )
    planned = mixed(mean, variance, one)
    assert planned[0][0] == pytest.approx(draws.mean(), abs=0.1)
    assert planned[1][0] == pytest.approx(draws.var(), rel=0.02)
    inside, found = (draws > 0) & (draws < MAX_KMH), unmeasured(mean, variance, one, MAX_KMH)
    draws, is_anomaly = draws[inside], is_anomaly[inside]
    assert found.anomaly[0] == pytest.approx(is_anomaly.mean(), abs=0.005)
    assert found.mean[0] == pytest.approx(draws.mean(), abs=0.1)
    assert found.variance[0] == pytest.approx(draws.var(), rel=0.03)
    assert found.median[0] == pytest.approx(
        np.median(draws), abs=0.6
    )  # of two normal cases, cut nowhere


def test_quantiles_are_those_of_draws_from_the_mixture():
    one = measured(
        *map(np.array, ([22.0], [6.0])),
        [Carryover(0.3, -8.0)],
        np.array([15.0]),
        np.array([9.0]),
        [NOT_CLIPPED],
        MAX_KMH,
    )
    deviations, rng = (
        np.sqrt(np.array([one.usual_variance, one.anomaly_variance])),
        np.random.default_rng(4),
    )
    is_anomaly = rng.random(200_000) < one.anomaly[0]
    draws = np.where(is_anomaly, rng.normal(one.anomaly_mean[0], deviations[1, 0], 200_000),
                     rng.normal(one.usual_mean[0], deviations[0, 0], 200_000))  # fmt: skip
    for share in (0.025, 0.5, 0.975):
        assert one.quantile(share, deviations)[0] == pytest.approx(
            np.quantile(draws, share), abs=0.06
        )


def test_an_incident_lies_in_the_interval_where_no_release_would_tell_of_it():
    forecast = np.array([20.0]), np.array([4.0]), [NOTHING]
    told = measured(*forecast, np.array([20.0]), np.array([0.5]), [NOT_CLIPPED], MAX_KMH)
    for found, least in ((unmeasured(*forecast, MAX_KMH), 0.0), (told, 18.0)):
        deviations = np.sqrt(np.array([found.usual_variance, found.anomaly_variance]))
        low, high = found.ends(deviations)
        assert (low[0] <= 0.4 * found.median[0]) == (found is not told)
        assert low[0] >= least and high[0] == found.quantile(0.975, deviations)[0]


def test_news_goes_on_by_the_hour():
    later = Carryover(0.8, -10.0).later(2.0)
    assert later == pytest.approx((0.8 * GOES_ON**2, -10 * GOES_ON_BY**2))
    assert Carryover(0.8, -10.0).later(0.5).later(0.5) == pytest.approx(
        Carryover(0.8, -10.0).later(1.0)
    )
