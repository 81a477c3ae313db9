"""Consistency: pooling reaches the trellis's optimum; what comes out is a CDF."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from lab.trees import consistent_counts_l1
from tests.trellis import absolute, hamming, squared, trellis
from udp_stream.mechanisms.cdf import NOISY_MAX, consistent_counts

ROWS = st.integers(1, 12).flatmap(lambda k: st.lists(st.integers(-30, 60), min_size=k, max_size=k))


def l2(values, noisy):
    return ((values - noisy) ** 2).sum(axis=-1)


def l1(values, noisy):
    return np.abs(values - noisy).sum(axis=-1)


def assert_consistent(values, total):
    assert (np.diff(values, axis=-1) >= 0).all()
    assert (values >= 0).all() and (values <= np.asarray(total)[..., None]).all()
    assert (values[..., -1] == total).all()


def small_cases():
    """Random rows of all small lengths, with little and with much noise; seeded."""
    rng = np.random.default_rng(20)
    for bins in (1, 2, 3, 5, 8):
        for total in (0, 1, 4, 11):
            for spread in (1, 3, 10):
                yield total, rng.integers(-spread, total + spread + 1, size=(60, bins))


@pytest.mark.parametrize(
    ("project", "metric", "cost"),
    [(consistent_counts, l2, squared), (consistent_counts_l1, l1, absolute)],
)
def test_pooling_costs_no_more_than_the_trellis_on_thousands_of_cases(project, metric, cost):
    for total, noisy in small_cases():
        values = project(noisy, total)
        assert_consistent(values, np.full(len(noisy), total))
        best = np.array([trellis(row, total, cost) for row in noisy])
        assert (metric(values, noisy) == metric(best, noisy)).all()


@pytest.mark.parametrize("cost", [squared, absolute, hamming])
def test_the_trellis_finds_the_optimum_of_all_sequences(cost):
    rng = np.random.default_rng(21)
    for total, bins in itertools.product((0, 1, 3), (1, 2, 3, 4)):
        every = np.array(
            [
                (*v, total)
                for v in itertools.combinations_with_replacement(range(total + 1), bins - 1)
            ]
        )
        for noisy in rng.integers(-2, total + 3, size=(20, bins)):
            costs = sum(cost(every[:, i], noisy[i]) for i in range(bins))
            best = trellis(noisy, total, cost)
            assert_consistent(best, total)
            assert sum(cost(best[i : i + 1], noisy[i]) for i in range(bins)) == costs.min()


@given(ROWS, st.integers(0, 40))
def test_consistent_counts_are_integers_that_rise_from_0_to_the_total_and_stay_when_projected_again(
    row, total
):
    noisy = np.array(row)
    for project in (consistent_counts, consistent_counts_l1):
        values = project(noisy, total)
        assert values.dtype == np.int64 and values.shape == noisy.shape
        assert_consistent(values, total)
        assert (project(values, total) == values).all()


@given(ROWS)
def test_before_clipping_it_is_the_real_isotonic_regression_rounded(row):
    noisy, low = np.array(row), 1000  # so far up that nothing is clipped
    values = consistent_counts(np.append(noisy + low, 5000), 5000)[:-1] - low
    real = isotonic_regression(noisy.astype(float)).x
    assert (np.abs(values - real) <= 0.5 + 1e-9).all()


def test_blocks_that_move_far_are_pooled_to_the_end():
    """Each round pools one more entry of the ramp: it takes hundreds of them. The next row is left
    alone."""
    ramp = np.arange(600) * 10
    tents = np.stack(
        [
            np.append(ramp, ramp[::-1]),
            np.arange(1200),
            np.append(ramp[::-1], ramp),
            np.append(ramp, ramp),
        ]
    )
    values = (
        consistent_counts(np.hstack((tents + 1000, np.full((4, 1), 10_000))), 10_000)[:, :-1] - 1000
    )
    real = np.stack([isotonic_regression(row.astype(float)).x for row in tents])
    assert (np.abs(values - real) <= 0.5 + 1e-9).all()
    assert (values[1] == tents[1]).all() and len(set(values[0].tolist())) < 400


def test_all_rows_at_once_come_out_as_one_by_one():
    rng = np.random.default_rng(22)
    noisy = np.cumsum(rng.integers(0, 4, size=(3, 40, 17)), axis=-1) + rng.integers(
        -20, 20, size=(3, 40, 17)
    )
    totals = rng.integers(0, 60, size=(3, 40))
    for project in (consistent_counts, consistent_counts_l1):
        values = project(noisy, totals)
        assert_consistent(values, totals)
        for i, j in np.ndindex(3, 40):
            assert (project(noisy[i, j], int(totals[i, j])) == values[i, j]).all()


def test_noise_near_the_clamp_does_not_overflow():
    noisy = np.tile(np.array([[2**62], [-(2**62)]]), (1, 4096))
    values = consistent_counts(noisy, 7)
    assert values[0].tolist() == [7] * 4096
    assert values[1].tolist() == [0] * 4095 + [7]
    mixed = consistent_counts(np.array([NOISY_MAX, -NOISY_MAX, 4, 7]), 7)
    assert mixed.tolist() == [0, 0, 4, 7]


@pytest.mark.parametrize("project", [consistent_counts, consistent_counts_l1])
def test_no_rows_and_one_bin_take_the_same_road(project):
    assert project(np.zeros((0, 5), dtype=np.int64), 3).shape == (0, 5)
    assert project(np.array([[9], [-9]]), np.array([3, 4])).tolist() == [[3], [4]]


@pytest.mark.parametrize(
    ("noisy", "total", "rule"),
    [
        (np.array([0.5, 1.0]), 1, "integer"), (np.array([0, 1]), 1.0, "integer"),
        (np.zeros((2, 0), dtype=np.int64), 1, "at least one bin"), (np.int64(3), 1, "at least one bin"),
        (np.array([0, 1]), -1, "total >= 0"),
    ],
)  # fmt: skip
def test_what_is_not_counts_is_refused(noisy, total, rule):
    for project in (consistent_counts, consistent_counts_l1):
        with pytest.raises(ValueError, match=rule):
            project(noisy, total)


# -- shares
# ------------------------------------------------------------------------------------------------------------


@given(ROWS, st.integers(1, 40))
def test_shares_are_a_cdf(row, total):
    cdf = consistent_counts(np.array(row), total) / total
    assert (np.diff(cdf) >= 0).all() and cdf[0] >= 0 and cdf[-1] == 1.0
