"""Each statement of elimination fails under louder noise: at how many times its scale says how wide
the bound is.

Plates stand where a statement is nearest to failing. `breaks` is the least of 1.25, 1.5, 1.75, ...
at which so many runs prove that it fails; a bound that was reached exactly would break at 1.25.
Others are wider: lambda is where 2 exp(-x^2 / 2) is beta, and noise is beyond it eight to twelve
times less often, on one side twice as seldom again; the rounds share beta0; an excess allows for
two plates that are off by a radius each.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from lab.queries import Threshold
from tests.simulation.test_elimination_lemmas import RHO, SPLITS, may_fail, ran
from tests.simulation.test_elimination_lemmas import pool as pool  # a fixture
from udp_stream.mechanisms.noise import concentrated
from udp_stream.queries.elimination import ABOVE, How, QueryBudget, Split
from udp_stream.queries.kinds import Density, Nearest, RangeCount
from udp_stream.queries.plane import Rectangle

BETA = 0.02
FOUR, DOUBLING, MANY = SPLITS["c4"], SPLITS["log-c10"], SPLITS["c64"]
TINY = RangeCount(Rectangle(0, 0, 2, 2))
"""Two metres wide, where noise is 71 m."""


def terms_of(plates: int, how: How, is_baseline: bool, split: Split) -> QueryBudget:
    terms = replace(QueryBudget.alike(RHO, plates, how, split), beta=BETA)
    return terms.baseline() if is_baseline else terms


def at_the_middle(plates):
    return np.zeros((plates, 2), np.int64)


def count_is_beyond_its_bounds(split, how, is_baseline, seed, factor):
    """Section 6.2 on Lemma 6.3: the noisy distances of six plates inside say which may be outside."""
    terms = terms_of(6, how, is_baseline, split)
    pie = TINY.elimination(terms)
    answer = TINY.answer(terms, pie, ran(pie, at_the_middle(6), seed, factor)[-1])
    return not answer.low <= 6 <= answer.high


def a_plate_inside_is_decided_outside(split, how, seed, factor):
    """Corollary 6.3, at beta0."""
    pie = TINY.elimination(terms_of(6, how, False, split))
    return bool((ran(pie, at_the_middle(6), seed, factor)[-1].status == ABOVE).any())


def density_is_beyond_its_bounds(split, how, is_baseline, seed, factor):
    """Section 6.3, of one plate that stands at the place."""
    query, terms = Density(0, 0, 300), terms_of(1, how, is_baseline, split)
    pie = query.elimination(terms)
    answer = query.answer(terms, pie, ran(pie, at_the_middle(1), seed, factor)[-1])
    return not answer.low <= 1 <= answer.high


def a_plate_at_the_place_counts_as_e_to_minus_18(split, how, seed, factor):
    """Corollary 6.4, at beta0."""
    pie = Density(0, 0, 1).elimination(terms_of(1, how, False, split))
    return bool(ran(pie, at_the_middle(1), seed, factor)[-1].status[0] == ABOVE)


CROWD = 400


def excess_is_larger(split, how, is_baseline, seed, factor, apart=2.01):
    """Lemmas 6.4 to 6.7: half of the plates stand at the stop, the others a little farther than the
    excess allows."""
    query = Nearest.to_stop(CROWD // 2, 0, 0)
    terms = terms_of(CROWD, how, is_baseline, split)
    pie = query.elimination(terms)
    where = at_the_middle(CROWD)
    radius = pie.radius(ran(pie, where, "radius")[-1], np.arange(CROWD), terms.beta1 / CROWD).max()
    where[CROWD // 2 :, 0] = np.ceil(apart * radius)
    found = query.answer(terms, pie, ran(pie, where, seed, factor)[-1])
    distance = query.distance(where.astype(float))
    return bool(
        (
            np.sort(distance[found.plates]) - np.sort(distance)[: CROWD // 2] > 16 * found.excess_m
        ).any()
    )


def the_nearest_is_let_go(split, how, seed, factor):
    """Corollary 6.5, on Lemma 5.3, at beta0: one of many that are all but as near."""
    query = Nearest.to_stop(1, 0, 0)
    where = np.column_stack(
        (np.where(np.arange(CROWD) < 1, 16_000, 16_001), np.zeros(CROWD))
    ).astype(np.int64)
    pie = query.elimination(terms_of(CROWD, how, False, split))
    return bool(ran(pie, where, seed, factor)[-1].status[0] == ABOVE)


def a_threshold_is_decided_wrongly(split, seed, factor):
    """Corollary C.1, at beta0: the count is one below the limit."""
    terms = replace(QueryBudget.alike(concentrated(2 * 10**5), 1, "point", split), beta=BETA)
    pie = Threshold(0.3, 10_000).elimination(terms)
    return bool(ran(pie, np.array([[2999]]), seed, factor)[-1].status[0] == ABOVE)


class Statement(NamedTuple):
    fails: Callable[..., bool]
    given: tuple[object, ...]
    beta: float
    breaks: float
    runs: int = 400
    split: Split = FOUR


PM, BM = False, True
STATEMENTS = (
    Statement(count_is_beyond_its_bounds, ("point", BM), BETA, 1.25),
    Statement(count_is_beyond_its_bounds, ("point", PM), BETA, 1.25),
    Statement(count_is_beyond_its_bounds, ("distance", BM), BETA, 1.75),
    Statement(count_is_beyond_its_bounds, ("distance", PM), BETA, 1.5),
    Statement(a_plate_inside_is_decided_outside, ("point",), BETA / 4, 1.25),
    Statement(a_plate_inside_is_decided_outside, ("distance",), BETA / 4, 1.5),
    Statement(density_is_beyond_its_bounds, ("point", BM), BETA, 1.25, 1500),
    Statement(density_is_beyond_its_bounds, ("point", PM), BETA, 1.5),
    Statement(density_is_beyond_its_bounds, ("distance", BM), BETA, 1.75),
    Statement(density_is_beyond_its_bounds, ("distance", PM), BETA, 1.75),
    Statement(a_plate_at_the_place_counts_as_e_to_minus_18, ("point",), BETA / 4, 1.5),
    Statement(a_plate_at_the_place_counts_as_e_to_minus_18, ("distance",), BETA / 4, 1.75),
    Statement(excess_is_larger, ("point", BM), BETA, 1.5, 40),  # Lemma 6.4
    Statement(excess_is_larger, ("distance", BM), BETA, 1.5, 150),  # Lemma 6.5
    Statement(excess_is_larger, ("point", PM), BETA, 1.5, 40),  # Lemma 6.6
    Statement(excess_is_larger, ("distance", PM), BETA, 1.75, 40),  # Lemma 6.7
    Statement(the_nearest_is_let_go, ("point",), BETA / 4, 2.25, 100),
    Statement(the_nearest_is_let_go, ("distance",), BETA / 4, 2.25, 100),
    Statement(a_threshold_is_decided_wrongly, (), BETA / 4, 2.0),
    Statement(count_is_beyond_its_bounds, ("point", PM), BETA, 1.25, 200, DOUBLING),
    Statement(excess_is_larger, ("distance", PM), BETA, 1.75, 40, DOUBLING),
    Statement(the_nearest_is_let_go, ("distance",), BETA / 4, 2.5, 50, DOUBLING),
    Statement(a_threshold_is_decided_wrongly, (), BETA / 4, 2.0, 200, DOUBLING),
    Statement(count_is_beyond_its_bounds, ("point", PM), BETA, 1.25, 200, MANY),
)


def named(value):
    if not isinstance(value, Statement):
        return None
    ways = "-".join({PM: "PM", BM: "BM"}.get(one, str(one)) for one in value.given)
    return f"{value.fails.__name__}-{ways}-{value.split.rounds}"


CHEAPEST = [STATEMENTS[i] for i in (0, 5, 8, 10, 12, 17, 18, 19)]
"""Of each kind of statement, and of parts that double, the one that takes the least time."""


@pytest.mark.parametrize(
    ("statement", "times"),
    [
        *(
            pytest.param(one, 1, marks=() if one in CHEAPEST else pytest.mark.long)
            for one in STATEMENTS
        ),
        *(pytest.param(one, 10, marks=pytest.mark.soak) for one in STATEMENTS),
    ],
    ids=named,
)
def test_a_statement_holds_with_its_noise_and_fails_with_louder_noise(statement, times):
    runs = statement.runs * times

    def may_be(factor):
        failed = 0
        for i in range(runs):
            failed += statement.fails(statement.split, *statement.given, f"{factor}/{i}", factor)
            if not may_fail(failed, runs, statement.beta):
                return False  # nor with any more
        return True

    assert may_be(1.0)
    assert not may_be(statement.breaks)


@pytest.mark.parametrize("how", ["point", "distance"])
def test_an_excess_allows_for_two_plates_that_are_off_by_a_radius_each(how):
    assert not any(excess_is_larger(FOUR, how, PM, seed, 1.0, apart=1.2) for seed in range(3))
