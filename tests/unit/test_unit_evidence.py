"""Evidence of another unit of speed: by chance as rare as is said, whatever an ordinary city does."""

import numpy as np
import pytest

from tests.forms import long_but
from udp_stream.forecast.anomalies import (
    ENOUGH,
    HAPPENS,
    NOT_CLIPPED,
    OF_A_SLOT,
    ORDINARY,
    Evidence,
    happened_variance,
)
from udp_stream.forecast.model import (
    KNOWN_VARIANCE,
    PER_HAT,
    HatPredictions,
    ReleasedHats,
    SlotPrior,
    evidence_of,
)

HATS, NOISE, VARIANCE, KMH = 6, 36.0, 4.0, 20.0


def of_slot(factor, rng, variance=VARIANCE):
    """HATs whose speeds are so many times those forecast, as the model has it: each with its own
    rest and news."""
    usual = HatPredictions(np.full(HATS, KMH), np.full(HATS, variance), slope=12.6, skew=0.0)
    news = rng.random(HATS) < HAPPENS
    own = factor**2 * (variance + 1.0) + news * happened_variance(factor * usual.mean)
    truth = np.clip(rng.normal(factor * usual.mean, np.sqrt(own)), 0.5, 64.5)
    prior = SlotPrior(np.zeros(0), np.zeros(HATS), np.zeros((HATS, PER_HAT)))
    value, cells = rng.normal(truth, np.sqrt(NOISE)), np.arange(HATS).astype(np.uint64)
    noise, rest = np.full(HATS, NOISE), np.ones(HATS)
    return evidence_of(
        usual, ReleasedHats(cells, prior, value, noise, rest, [NOT_CLIPPED] * HATS), 65.0
    )


@pytest.mark.parametrize("factor", long_but(ORDINARY[::3], ORDINARY))
def test_the_odds_of_an_ordinary_slot_are_at_most_even_on_average(factor):
    rng = np.random.default_rng(5)
    odds = np.exp([of_slot(factor, rng) for _ in range(900)])
    assert (odds.mean(axis=0) < 1 + 2 * odds.std(axis=0) / 30).all() and odds.mean(
        axis=0
    ).max() < 1.2
    assert (
        2 * 24 * np.exp(-ENOUGH) < 1e-4
    )  # hence Ville's inequality: of a day of slots, and two kinds of units


@pytest.mark.parametrize(("factor", "which"), [(1 / 3.6, 0), (3.0, 1)])
def test_another_unit_is_told_in_two_slots_and_never_in_one(factor, which):
    rng, found = np.random.default_rng(6), Evidence()
    for number in range(20):
        found = found.more(of_slot(factor, rng))
        assert number or (not found.is_enough and found[which] <= OF_A_SLOT)
    assert found.is_enough and found[1 - which] == 0


def test_nothing_is_said_of_a_city_whose_speed_is_not_known():
    assert of_slot(1 / 3.6, np.random.default_rng(7), KNOWN_VARIANCE + 0.1) == (0.0, 0.0)
