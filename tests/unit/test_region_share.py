"""Is the share of plates in a region below q? Sensitivity by brute force, noise, decisions, and who
takes part."""

from itertools import product

import numpy as np
import pytest
from scipy import stats

from tests.forms import long_rows
from udp_stream.mechanisms.noise import concentrated, pure
from udp_stream.queries import elimination
from udp_stream.queries.elimination import QueryBudget, RoundParts, Split
from udp_stream.queries.kinds import RegionShare
from udp_stream.queries.plane import QUANTA_PER_METRE, PlanarPolygon, Rectangle
from udp_stream.testing import seeded_bits

SQUARE = Rectangle(0, 0, 1000, 1000)
TRIANGLE = PlanarPolygon([np.array([[0.0, 0.0], [1.0, 0.0], [0.3, 0.8]])])


RHO = concentrated(20 * 10**9)


def terms_of(cost=RHO, rounds=4, beta=0.05):
    return QueryBudget(cost.measure, np.array([cost.nano]), "distance", Split.even(rounds), beta)


def run(query, terms, where, seed, plates=None, unknown=0):
    """The answer about `where`, of so many plates in all."""
    plates = len(where) + unknown if plates is None else plates
    pie, bits = query.elimination(terms, plates, unknown), seeded_bits(seed)
    state = pie.begin()
    while (due := pie.due(state)) is not None:
        state = pie.advance(state, pie.draw(state, due.plates, where, bits))
    return query.answer(terms, pie, state, plates, unknown), state


@pytest.mark.parametrize("region", [Rectangle(0, 0, 0.5, 0.375), TRIANGLE])
@pytest.mark.parametrize("edge", [1, 0.3])
@pytest.mark.parametrize("cost", [concentrated(10**9), pure(2 * 10**7)])
def test_no_move_of_one_plate_changes_the_sum_by_more_than_its_noise_is_made_for(
    region, edge, cost
):
    """From every place of a small lattice to every other, beside two plates that stay. And some
    move nearly does."""
    kind = RegionShare(region, 0.5, edge).elimination(terms_of(cost), 3).privatised
    places = np.array([*product(range(-24, 25, 3), repeat=2), *product(range(4), repeat=2)])
    stay = np.array([[1, 2], [30, -7]])
    sums = np.array([int(kind.values(np.vstack([stay, place]))[0, 0]) for place in places])
    apart = np.hypot(*(places[:, None] - places[None]).transpose(2, 0, 1))
    moved = np.abs(sums[:, None] - sums[None])
    per_quantum = kind.sensitivity / (1000 * QUANTA_PER_METRE)
    assert (moved <= per_quantum * apart + 1e-9).all()
    most = (moved / np.maximum(apart, 1)).max()
    assert most > 0.9 * per_quantum - 2  # the noise is not made for more than there is


COSTS = RHO, pure(8 * 10**9)


@pytest.mark.parametrize(
    ("cost", "shrinks"),
    long_rows([(COSTS[0], True), (COSTS[1], False)], product(COSTS, (False, True))),
)
def test_the_sums_noise_has_its_scale_and_one_30_percent_off_is_caught(cost, shrinks, planted):
    if shrinks:
        honest = elimination.Tariff.parts

        def parts(self, round_, plates):
            whole = honest(self, round_, plates)
            return RoundParts(whole.charge, whole.t * 7 // 10, whole.s)

        planted(elimination.Tariff, parts=parts)
    where = np.array([[0, 0], [8100, 0], [160_000, 0]])
    pie = RegionShare(SQUARE, 0.5, 500).elimination(terms_of(cost, rounds=1), 3)
    truth, bits, state = int(pie.privatised.values(where)[0, 0]), seeded_bits("scale"), pie.begin()
    drawn = np.array(
        [int(pie.draw(state, np.array([0]), where, bits).values[0, 0]) for _ in range(1000)]
    )
    units = cost.nano / 1e9
    scale = pie.privatised.sensitivity / (np.sqrt(2 * units) if cost.measure == "zcdp" else units)
    law = stats.norm(0, scale) if cost.measure == "zcdp" else stats.laplace(0, scale)
    assert (stats.kstest(drawn - truth, law.cdf).pvalue > 1e-3) is not shrinks


CROWD = np.repeat([[0, 0], [160_000, 0]], [30, 70], axis=0)


@pytest.mark.parametrize(
    ("share", "below"), [(0.2, False), (0.28, False), (0.32, True), (0.6, True)]
)
def test_what_is_sure_is_true_as_often_as_promised_and_bounds_hold(share, below):
    """Noise of 1.6 plates beside a count of 30; a limit that is near takes more rounds than one
    that is far."""
    query, terms = RegionShare(SQUARE, share, 100), terms_of(rounds=8, beta=0.2)
    found = [run(query, terms, CROWD, f"{share} {i}") for i in range(60)]
    wrong = [one.sure and one.below is not below for one, _ in found]
    outside = [not one.low <= 0.3 <= one.high for one, _ in found]
    assert sum(wrong) <= sum(outside) <= 60 * 0.2
    rounds = np.mean([state.rounds for _, state in found])
    assert rounds < 2 if share == 0.6 else rounds > 3
    if abs(share - 0.3) > 0.05:
        assert all(one.sure and one.below is below for one, _ in found)


def test_plates_that_do_not_take_part_may_be_on_either_side():
    """With 30 of 100 unknown, the share of all is surely below 0.7, surely not below 0.2, and
    between them unsure."""
    where = np.repeat([[0, 0], [160_000, 0]], [30, 40], axis=0)
    for share, sure, below in (
        (0.7, True, True),
        (0.2, True, False),
        (0.45, False, True),
        (0.4, False, False),
    ):
        one, state = run(RegionShare(SQUARE, share, 500), terms_of(), where, "some", unknown=30)
        assert (one.sure, one.below) == (sure, below) and one.low < 0.3 and one.high > 0.6
        assert state.rounds == (4 if not sure else 1) and abs(one.value - 30 / 70) < 0.05


@pytest.mark.parametrize(("share", "edge"), [(0, 500), (1, 500), (0.5, 0)])
def test_what_there_is_no_question_of_is_refused(share, edge):
    with pytest.raises(ValueError, match="0 < share < 1 and an edge"):
        RegionShare(SQUARE, share, edge)
