"""Verdicts of the experiments on queries: a difference counts where chance does not make it; noise drawn ahead."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from tests.unit.test_experiments_positions import setup_of
from udp_stream.experiments.catalogue import ON_POSITIONS
from udp_stream.experiments.many_queries import BM, BUDGETS, HANDED_ON, PM, QUERIES, MultiRow, _a_day, multi_verdicts
from udp_stream.experiments.savings import (
    HOWS,
    RHO_SMALL,
    SPLITS,
    UNSHIFTED,
    BesideRow,
    Kind,
    PreparedNoise,
    SavingsRow,
    beats,
    beside,
    biases,
    row_of,
    shift_verdicts,
)
from udp_stream.queries.plane import rho_per_square_metre
from udp_stream.testing import seeded_bits


def pair(first_error, second_error, first="distance", second="point", rho=1e-4, split="BM", spread=0.01):
    off = second_error - first_error
    return BesideRow("town", "x", 1000.0, rho, split, first, second, 100, first_error, second_error, off, spread)


@pytest.mark.parametrize(
    ("errors", "agrees", "why"),
    [
        ([(0.1, 0.2), (0.1, 0.11)], True, ""),
        ([(0.1, 0.11), (0.1, 0.09)], False, "chance may make"),
        ([(0.1, 0.2), (0.2, 0.1)], False, "depends on the parameter"),
    ],
)
def test_one_way_beats_another_where_they_differ_by_more_than_chance(errors, agrees, why):
    kind = Kind("savings-knn", "k", (1.0,), dict, "Fig. 5", 300)
    pairs = [pair(*one) for one in errors]
    found = beats(kind, [*pairs, pair(9.0, 0.1, split="c4")], "town")  # of the baselines alone
    assert found.agrees == agrees and why in ("" if agrees else str(found))
    assert found.statement == "noise on distances errs less"


def test_of_range_counts_the_smallest_of_the_papers_budgets_is_judged():
    kind = Kind("savings-range", "width, m", (1000.0,), dict, "Fig. 3", 504, is_shifted=True)
    assert beats(kind, [pair(0.1, 0.2, rho=1e-5), pair(0.2, 0.1, rho=1e-3)], "town").agrees
    assert not beats(kind, [pair(0.2, 0.1, rho=1e-5), pair(0.1, 0.2, rho=1e-3)], "town").agrees


def shift_rows(shifted, zero):
    return [
        pair(shifted(rho), zero(rho), second=UNSHIFTED, rho=rho, split=split)
        for rho in (RHO_SMALL, 1e-4) for split in SPLITS
    ]  # fmt: skip


def test_the_shifted_threshold_is_judged_where_the_budget_is_small_and_for_harm_everywhere():
    good = shift_verdicts(shift_rows(lambda rho: 0.1, lambda rho: 0.9 if rho == RHO_SMALL else 0.1), "town")
    assert [one.agrees for one in good] == [True, True] and "1e-06: 0.1 against 0.9" in good[0].seen
    alike = shift_verdicts(shift_rows(lambda rho: 0.1, lambda rho: 0.11), "town")
    assert [one.agrees for one in alike] == [False, True]
    harm = shift_verdicts(shift_rows(lambda rho: 0.1 if rho == RHO_SMALL else 0.3, lambda rho: 0.2), "town")
    assert [one.agrees for one in harm] == [True, False] and "c64 1000 at rho 0.0001" in harm[1].seen


def test_ways_are_compared_pair_by_pair():
    """Errors that go up and down together differ by more than chance, however far they go."""
    ours = [(error, 0.0) for error in (0.1, 5.0, 0.2, 9.0)]
    asked = "town", "savings-range", 1000.0, 1e-6, "BM"
    row = beside(asked, ("distance", ours), (UNSHIFTED, [(error + 0.1, 0.0) for error, _ in ours]))
    assert row.less_by == pytest.approx(0.1) and row.spread < 1e-9 and row.repetitions == 4 and row.is_less
    assert not row.is_more and beside(asked, ("point", ours), ("distance", ours[::-1])).less_by == pytest.approx(0)


def test_range_counts_by_distance_are_counted_by_both_thresholds_on_the_same_rounds(monkeypatch):
    monkeypatch.setattr("udp_stream.experiments.savings.DRAWN_AT_ONCE", 1000)
    setup = setup_of(repetitions=3)
    small, larger = (job() for job in ON_POSITIONS["savings-range"].jobs(setup)[:2])
    for job, rho in ((small, RHO_SMALL), (larger, 1e-5)):
        rows, pairs = ([row for row in job if isinstance(row, kind)] for kind in (SavingsRow, BesideRow))
        assert {(row.rho, row.privatisation) for row in rows} == {(rho, how) for how in (*HOWS, UNSHIFTED)}
        shifts = [row for row in pairs if row.second == UNSHIFTED]
        assert [row.split for row in shifts] == list(SPLITS) and any(row.less_by for row in shifts)
        assert [row.split for row in pairs if row.second == "point"] == list(SPLITS)
        both = [[row for row in rows if row.split == split and row.privatisation != "point"] for split in SPLITS]
        assert all(one.saved_mean == two.saved_mean for one, two in both)
        assert any(one.error_mean != two.error_mean for one, two in both)


def test_elimination_is_set_beside_its_baseline_pair_by_pair(monkeypatch):
    monkeypatch.setattr("udp_stream.experiments.savings.DRAWN_AT_ONCE", 1000)
    setup = setup_of(repetitions=3)
    for name, hows in (("savings-kde", HOWS), ("threshold", ("count",))):
        found = ON_POSITIONS[name].jobs(setup)[0]()
        pairs = [row for row in found if isinstance(row, BesideRow) and row.second.startswith("BM, ")]
        assert [(row.split, row.second) for row in pairs] == [
            (s, f"BM, {how}") for s in list(SPLITS)[1:] for how in hows
        ]
        of = {(row.split, row.privatisation): row for row in found if isinstance(row, SavingsRow)}
        for row in pairs:
            how = row.second.removeprefix("BM, ")
            assert row.first_error == of[row.split, how].error_mean and row.second_error == of["BM", how].error_mean
            assert row.first_saved == of[row.split, how].saved_mean


def bias_rows(point, distance):
    rows = [row_of("town", "savings-kde", 500.0, 1e-4, "point", "BM", [(off, 0.0) for off in point])]
    rows.append(row_of("town", "savings-kde", 500.0, 1e-4, "point", "c4", [(9.0, 0.5)]))  # of the baselines alone
    return [*rows, row_of("town", "savings-kde", 500.0, 1e-4, "distance", "BM", [(off, 0.0) for off in distance])]


@pytest.mark.parametrize(
    ("point", "distance", "agrees"),
    [
        ([-0.1, -0.11], [0.2, 0.21], True),
        ([-0.3, -0.31], [0.2, 0.21], False),  # positions have the larger bias
        ([0.1, 0.11], [0.2, 0.21], False),
        ([-0.1, 0.3], [0.2, 0.21], False),  # by chance
        ([-0.1, -0.11], [-0.2, -0.21], False),
    ],
)
def test_biases_are_those_of_the_figure_by_their_signs_beyond_chance_and_by_size(point, distance, agrees):
    assert biases(bias_rows(point, distance), "x", "town").agrees == agrees


def test_a_bias_is_the_mean_error_with_its_sign():
    row = bias_rows([-0.1, 0.3], [0.0])[0]
    assert (row.bias, row.error_mean) == (pytest.approx(0.1), pytest.approx(0.2))
    assert row.bias_spread == pytest.approx(0.2 / np.sqrt(2)) and row.error_spread == pytest.approx(0.1 / np.sqrt(2))


def many_rows(less, spread, alone=lambda m: 0.0):
    """Rows of which PM errs less than BM by `less(m)`, and than BM handed on by `alone(m)`."""
    row = MultiRow("town", 0, 0.0, "point", BM, 50, 0.5, 0.4, 0.6, 0.01, 0.0)
    for m, budget in {*((m, 1e-4) for m in QUERIES), *((max(QUERIES), budget) for budget in BUDGETS)}:
        at = dataclasses.replace(row, queries=m, budget=budget)
        gains = less(m), spread, alone(m), spread
        yield from (at, dataclasses.replace(at, method=HANDED_ON, less_by=less(m) - alone(m), less_spread=spread))
        yield MultiRow(*dataclasses.astuple(at)[:4], PM, *dataclasses.astuple(at)[5:11], *gains)


def agreeing(rows):
    return [one.agrees for one in multi_verdicts([*rows], "town")]


def test_gains_over_many_queries_count_beyond_chance():
    """By how much PM errs less is taken pair by pair; of budgets it is the share of BM's error that counts."""
    found = {
        spread: multi_verdicts([*many_rows(lambda m: 0.1 if m == 7 else 0.3, spread)], "town")
        for spread in (0.001, 0.2)
    }
    assert [one.agrees for one in found[0.001]] == [True, True, False, False, False, False]
    assert not any(one.agrees for one in found[0.2])
    assert "0.100 ± 0.003" in found[0.001][0].seen
    assert agreeing(many_rows(lambda m: 0.3 if m == 7 else 0.1, 0.001)) == [True, *[False] * 5]


def test_what_elimination_gains_is_told_from_what_absence_does():
    by_absence = agreeing(many_rows(lambda m: 0.1 + m / 1000, 0.001))
    by_elimination = agreeing(many_rows(lambda m: 0.1 + m / 1000, 0.001, alone=lambda m: 0.1 + m / 1000))
    assert by_absence == [True, True, False, False, False, False]
    assert by_elimination == [True, True, False, True, True, False]
    said = multi_verdicts([*many_rows(lambda m: 0.3, 0.001, alone=lambda m: 0.1)], "town")[3]
    assert said.agrees and "by elimination alone" in said.statement and "of the error of BM handed on" in said.seen


def test_many_queries_are_compared_on_the_same_moments_and_places():
    bm, handed_on, pm = ON_POSITIONS["multi-query"].jobs(setup_of(repetitions=3))[0]()
    assert (bm.method, handed_on.method, pm.method, bm.queries) == (BM, HANDED_ON, PM, min(QUERIES))
    assert pm.less_by == pytest.approx(bm.error_mean - pm.error_mean) and pm.less_spread > 0
    assert pm.less_than_handed_on == pytest.approx(handed_on.error_mean - pm.error_mean)
    assert handed_on.less_by == pytest.approx(bm.error_mean - handed_on.error_mean) and handed_on.less_spread > 0
    assert (bm.less_by, bm.less_spread, handed_on.less_than_handed_on) == (0, 0, 0)


def test_without_elimination_only_plates_that_were_absent_hand_something_on():
    """Those of every moment spend it all; with even parts those that were absent keep theirs."""
    bits, cost, place = seeded_bits(1), rho_per_square_metre(1e-4), (0.0, 0.0)
    all_day = [(np.arange(20), np.arange(40).reshape(20, 2) * 900, place)] * 4
    half = [(plates[:10], where[:10], place) for plates, where, place in all_day]
    left = {(method, len(day[0][0])): _a_day(day, cost, "distance", method, bits)[1]
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
    assert noise("zcdp", seeded_bits(1), np.full(3, 5), np.ones(3, np.int64), 2).shape == (3, 2) and noise._ready
