"""Findings of the experiments on queries: a difference counts where chance does not make it; noise
drawn ahead."""

import numpy as np
import pytest
from scipy import stats

from lab.queries import BM, HANDED_ON, PM, PreparedNoise, Trial, a_day, errs_less
from lab.results import Row, Rows
from udp_stream.queries.plane import rho_per_square_metre
from udp_stream.testing import seeded_bits


def pair(
    first_error, second_error, first="distance", second="point", rho=1e-4, split="BM", spread=0.01
):
    errors = {
        "first_error": first_error,
        "second_error": second_error,
        "less_by": second_error - first_error,
    }
    return Row("-pairs", rho=rho, split=split, first=first, second=second, spread=spread, **errors)


@pytest.mark.parametrize(
    ("errors", "agrees", "why"),
    [
        ([(0.1, 0.2), (0.1, 0.11)], True, ""),
        ([(0.1, 0.11), (0.1, 0.09)], False, "chance may make"),
        ([(0.1, 0.2), (0.2, 0.1)], False, "depends on the parameter"),
    ],
)
def test_one_way_beats_another_where_they_differ_by_more_than_chance(errors, agrees, why):
    trial = Trial("savings-knn", "k", (1.0,), dict, "Fig. 5", 300)
    pairs = [pair(*one) for one in errors]
    found = errs_less(trial, Rows([*pairs, pair(9.0, 0.1, split="c4")]))  # of the baselines alone
    assert found.agrees == agrees and why in ("" if agrees else found.values["reason"])
    assert found.values["better"] == "distances" and found.values["rows"] == 2


def test_without_elimination_only_plates_that_were_absent_hand_something_on():
    """Those of every moment spend it all; with even parts those that were absent keep theirs."""
    bits, cost, place = seeded_bits(1), rho_per_square_metre(1e-4), (0.0, 0.0)
    all_day = [(np.arange(20), np.arange(40).reshape(20, 2) * 900, place)] * 4
    half = [(plates[:10], where[:10], place) for plates, where, place in all_day]
    left = {(method, len(day[0][0])): a_day(day, cost, "distance", method, bits)[1]
            for day in (all_day, half[:1] + all_day[1:]) for method in (BM, HANDED_ON, PM)}  # fmt: skip
    assert left[BM, 20] < 1e-6 and left[HANDED_ON, 20] < 1e-6 < left[PM, 20]
    assert left[BM, 10] == pytest.approx(1 / 8) and left[HANDED_ON, 10] < 1e-6


def test_noise_that_is_drawn_ahead_is_drawn_once_and_distributed_as_if_it_were_not():
    noise, bits, sigma = PreparedNoise(2000), seeded_bits(1), 5
    asked = np.full(30, sigma), np.full(30, 1)
    drawn = np.concatenate([noise("zcdp", bits, *asked, 1)[:, 0] for _ in range(300)])
    assert drawn.size == 9000 and np.unique(drawn[:1980].reshape(66, 30), axis=0).shape[0] == 66
    values = np.arange(-25, 26)
    weights = np.exp(-(values**2) / (2 * sigma**2))
    inside = drawn[abs(drawn) <= 25]
    counts = np.array([(inside == value).sum() for value in values])
    assert stats.chisquare(counts, weights / weights.sum() * inside.size).pvalue > 1e-4
    wrong = np.exp(-(values**2) / (2 * (0.9 * sigma) ** 2))
    assert stats.chisquare(counts, wrong / wrong.sum() * inside.size).pvalue < 1e-9


@pytest.mark.parametrize(("t", "size"), [(np.array([5, 9]), 2), (np.full(900, 5), 900)])
def test_several_scales_and_large_calls_are_drawn_by_themselves(t, size):
    noise = PreparedNoise(1000)
    found = noise("zcdp", seeded_bits(1), t, np.ones_like(t), 2)
    assert found.shape == (size, 2) and not noise._ready
    assert (
        noise("zcdp", seeded_bits(1), np.full(3, 5), np.ones(3, np.int64), 2).shape == (3, 2)
        and noise._ready
    )
