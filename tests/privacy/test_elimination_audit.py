"""What a plate's position loses to whole runs of elimination stays below its charges, and smaller
noise is caught.

Positions x and x', d apart, are given to many plates. A plate's decision depends on its own noise
and on public numbers: it shows in which round it left, and what it gave until then.
"""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from udp_stream.mechanisms.noise import pure
from udp_stream.queries import elimination
from udp_stream.queries.elimination import (
    BandRule,
    QueryBudget,
    RoundParts,
    Split,
)
from udp_stream.queries.plane import QUANTA_PER_METRE, Rectangle, rho_per_square_metre
from udp_stream.testing import seeded_bits

MOSTLY_DISTANCE = ["distance", pytest.param("point", marks=pytest.mark.long)]

SQUARE = Rectangle(0, 0, 1000, 1000)
EAST = np.array([[700 * QUANTA_PER_METRE, 0]])
"""200 m outside of the square's edge; x' is farther out."""

FAR_EAST = np.array([[1950 * QUANTA_PER_METRE, 0]])
"""About half of the plates leave in the first of two rounds."""


RUNS = {"distance": 200_000, "point": 300_000}
"""Of each position. In the plane few noisy values lie in the one direction in which a plate shows
all that it may."""

NOTICED = 85
"""Per cent of its size to which noise is shrunk in a fault that the audit has to find."""


def shrunk(planted, percent=70):
    honest = elimination.Tariff.parts

    def parts(self, round_, plates):
        whole = honest(self, round_, plates)
        return RoundParts(whole.charge, whole.t * percent // 100, whole.s)

    planted(elimination.Tariff, parts=parts)


def on_its_own(pie, state, found):
    """The round, decided from each plate's own values alone: all plates share its part of beta0.

    The audits' bounds count plates as independent. After the first round all plates share the part
    anyhow. Later the plates that are left do, so a plate's interval would depend on how many are.
    """
    after = pie.advance(state, replace(found, decided=np.zeros(found.plates.size, np.int8)))
    estimate = pie.estimate(after, found.plates)
    radius = pie.radius(after, found.plates, pie.beta0 / (pie.split.rounds * pie.plates))
    return replace(found, decided=pie.rule.decide(estimate - radius, estimate + radius))


def run_at(terms, position, plates, seed, metres=0):
    """Each plate's values by round, nan where it had left, and how many rounds it was in."""
    pie = terms.elimination(SQUARE.signed_distance, BandRule(0.0, 0.0))
    where = np.repeat(position + np.array([[metres * QUANTA_PER_METRE, 0]]), plates, axis=0)
    state, shown, bits = (
        pie.begin(),
        np.full((plates, pie.split.rounds, pie.privatised.dimensions), np.nan),
        seeded_bits(seed),
    )
    while (due := pie.due(state)) is not None:
        found = pie.draw(state, due.plates, where[due.plates], bits)
        shown[found.plates, state.rounds] = found.values
        state = pie.advance(state, found if state.rounds == 0 else on_its_own(pie, state, found))
    unit = getattr(pie.privatised, "fine_bits", 0)
    return shown / 2.0**unit / QUANTA_PER_METRE, state


def odds_of(shown, position, metres, parts):
    """The log of how much likelier each plate's values are at x than at x', `metres` to the east,
    under epsilon."""
    shown, here = shown[..., :2], position / QUANTA_PER_METRE
    if shown.shape[2] == 1:  # the distance to the square's edge
        here = here[:, :1] - 500
    there = here + np.eye(here.shape[1])[0] * metres
    off = np.linalg.norm(shown - there, axis=2) - np.linalg.norm(shown - here, axis=2)
    return np.nansum(off * parts, axis=1)


def surely_above(mine, theirs, runs):
    """A lower bound of log(P(event | x) / P(event | x')), each end at 1 in a million."""
    least = stats.beta.ppf(1e-6, mine, runs - mine + 1) if mine else 0.0
    most = stats.beta.ppf(1 - 1e-6, theirs + 1, runs - theirs)
    return np.log(least / most) if least else -np.inf


def worst_excess(how, seed):
    """By the number of rounds: epsilon charged, and the most that an event's odds surely are
    (Neyman and Pearson)."""
    cost, apart, runs = pure(2 * 10**10), 100, RUNS[how]
    terms = replace(QueryBudget.alike(cost, runs, how, Split.even(2)), beta=0.9)
    shown = [run_at(terms, FAR_EAST, runs, seed + other, metres=apart * other) for other in (0, 1)]
    parts = np.array(terms.split.parts(cost.nano)) / 1e9 / 1000  # epsilon by round, per metre
    odds = [odds_of(values, FAR_EAST, apart, parts) for values, _ in shown]
    found = {}
    for sign in (1, -1):
        mine, theirs = odds[::sign]
        for left in (1, 2):
            here, there = (state.asked == left for _, state in shown[::sign])
            charged = float(parts[:left].sum()) * apart
            limits = (
                np.quantile(sign * mine[here], (0.0, 0.3, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95))
                if here.any()
                else ()
            )
            for cut in limits:
                counts = (sign * mine[here] >= cut).sum(), (sign * theirs[there] >= cut).sum()
                excess = surely_above(*counts, runs) - charged
                found[left] = charged, max(excess, found.get(left, (charged, -np.inf))[1])
    return found


@pytest.mark.parametrize("how", MOSTLY_DISTANCE)
def test_no_events_odds_are_above_what_its_rounds_were_charged_for(how):
    found = worst_excess(how, 1)
    assert sorted(found) == [1, 2]
    for charged, excess in found.values():
        assert charged * (1 - 100 / NOTICED) < excess <= 0.0


@pytest.mark.parametrize("how", MOSTLY_DISTANCE)
def test_noise_that_is_15_percent_too_small_is_caught(how, planted):
    shrunk(planted, NOTICED)
    assert max(excess for _, excess in worst_excess(how, 1).values()) > 0


def renyi_of_order_2(first, second, bins):
    """Between histograms of what two positions show: less than between what they show itself, by
    data processing."""
    edges = np.quantile(np.concatenate((first, second)), np.linspace(0, 1, bins + 1)[1:-1])
    p, q = (
        np.bincount(np.searchsorted(edges, x), minlength=bins) / x.size for x in (first, second)
    )
    return float(np.log((p**2 / q).sum()))


def concentrated_loss(how, seed, plates=50_000):
    """Of all rounds together, by each plate's likelihood ratio, in units of what it may be: 2 rho
    d^2."""
    rho, apart = rho_per_square_metre(2e-5), 100
    terms = replace(QueryBudget.alike(rho, plates, how, Split.doubling(3)), beta=0.9)
    charged = rho.nano / 1e15 * apart**2
    (mine, _), (theirs, _) = (
        run_at(terms, EAST, plates, seed),
        run_at(terms, EAST, plates, seed + 1, metres=apart),
    )
    weights = np.array(terms.split.parts(rho.nano), float)
    # the sum that a likelihood ratio of normal values depends on; a plate that has left gives no
    # more
    told = [
        np.nansum((shown[:, :, 0] - 700 - apart / 2) * weights, axis=1) for shown in (mine, theirs)
    ]
    return renyi_of_order_2(*told, bins=40) / (2 * charged)


@pytest.mark.parametrize("how", ["point", "distance"])
def test_concentrated_runs_lose_no_more_than_rho_and_nearly_that(how):
    assert 0.75 < concentrated_loss(how, 3) < 1.05


@pytest.mark.parametrize("how", MOSTLY_DISTANCE)
def test_concentrated_noise_that_is_30_percent_too_small_is_caught(how, planted):
    shrunk(planted)
    assert concentrated_loss(how, 3) > 1.3
