"""The mean around a forecast keeps its guarantee whatever was forecast: extremes. What plates lose is in
`test_sensitivity.py`, noise in `test_distributions.py`."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from udp_stream.base.units import NANO
from udp_stream.mechanisms.around import (
    AROUND,
    FORECAST_CLIP,
    WEIGHT_BITS,
    ForecastClip,
    clipped_sum,
    plan_around,
    plans_around,
)
from udp_stream.mechanisms.base import ForecastClipTerms, Range, SamplesPerPlate, StatisticTerms
from udp_stream.mechanisms.noise import SCALE_MAX, lattice_of, pure
from udp_stream.mechanisms.statistics import STATISTICS
from udp_stream.mechanisms.widths import HALF_WIDTHS, USUAL, ClipWidth
from udp_stream.settings import load
from udp_stream.testing import seeded_bits
from udp_stream.windows.tables import PINGS_MAX

U = 65 * 4096
FULL = Range(0, U)


def plan_of(counts, centres, range_, epsilon_nano=NANO, width=USUAL):
    around = ForecastClip(4, np.array(centres), width)
    return plan_around(SamplesPerPlate(np.array(counts)), around, pure(epsilon_nano), range_)


def test_each_hat_of_a_slot_has_the_plan_that_it_has_alone():
    rng = np.random.default_rng(1)
    sizes = rng.integers(1, 12, 40)
    counts = [SamplesPerPlate(rng.integers(1, 60, size)) for size in sizes]
    widths = [ClipWidth(float(half), 0.45) for half in rng.choice(HALF_WIDTHS, sizes.size)]
    arounds = [
        ForecastClip(int(rng.integers(0, 2 * U)), rng.integers(0, 2 * U, size), width)
        for size, width in zip(sizes, widths, strict=True)
    ]
    costs = [pure(int(one)) for one in rng.integers(NANO // 9, NANO, sizes.size)]
    together = plans_around(counts, arounds, costs, FULL)
    for of_hat, around, cost, plan in zip(counts, arounds, costs, together, strict=True):
        alone = plan_around(of_hat, around, cost, FULL)
        assert plan.cost == cost and plan.counts is of_hat
        assert (plan.around.hat, plan.around.width) == (alone.around.hat, around.width)
        assert (
            plan.around.plates.tolist()
            == alone.around.plates.tolist()
            == np.clip(around.plates, 0, U).tolist()
        )
        for column in ("weights", "low", "high", "plate_sensitivities", "charges"):
            assert getattr(plan, column).tolist() == getattr(alone, column).tolist()
        assert (
            plan.sensitivity == alone.sensitivity == plan.plate_sensitivities.max()
            and plan.weights.max() == 2**WEIGHT_BITS - 1
        )
    assert plans_around([], [], [], FULL) == []


@st.composite
def allowed(draw):
    """Counts up to 2**28 samples together, a largest speed from 1 to 1000 km/h, forecasts anywhere
    below it."""
    most = draw(st.one_of(st.just(4096), st.just(4_096_000), st.integers(4096, 4_096_000)))
    left, counts = PINGS_MAX, []
    for _ in range(draw(st.integers(1, 12))):
        count = min(
            left, draw(st.one_of(st.integers(1, 40), st.integers(0, 28).map(lambda bits: 2**bits)))
        )
        if count:
            counts.append(count)
            left -= count
    centre = st.one_of(st.just(0), st.just(most), st.integers(0, most))
    centres = draw(st.lists(centre, min_size=len(counts), max_size=len(counts)))
    epsilon_nano = draw(st.one_of(st.integers(32, 1000), st.integers(32, 1000 * NANO)))
    width = ClipWidth(draw(st.sampled_from(HALF_WIDTHS)), draw(st.floats(0.01, 1)))
    return plan_of(counts, centres, Range(0, most), epsilon_nano, width)


@given(allowed(), st.randoms(use_true_random=False))
def test_whatever_settings_allow_has_sums_that_fit_and_noise_that_can_be_drawn(plan, chance):
    pings, weights = plan.counts.by_plate.tolist(), plan.weights.tolist()
    low, high, centres = plan.low.tolist(), plan.high.tolist(), plan.around.plates.tolist()
    assert min(weights) >= 1 and max(weights) < 2**WEIGHT_BITS
    assert all(
        -centre <= down <= 0 <= up <= plan.range.high - centre
        for down, up, centre in zip(low, high, centres, strict=True)
    )
    moves = [w * m * (up - down) for w, m, up, down in zip(weights, pings, high, low, strict=True)]
    assert (
        min(moves) > 0
        and plan.plate_sensitivities.tolist() == moves
        and plan.sensitivity == max(moves)
    )
    furthest = sum(
        w * m * max(up, -down) for w, m, up, down in zip(weights, pings, high, low, strict=True)
    )
    assert furthest < 2**62 and max(pings) * plan.range.high < 2**62
    admitted = np.array([chance.random() < 0.6 for _ in pings])
    admitted[chance.randrange(admitted.size)] = True
    final = AROUND.subset(plan, admitted)
    for one in (plan, final):
        lattice = lattice_of(one.sensitivity, one.cost)
        assert lattice.t <= SCALE_MAX and one.charges.max() <= one.cost.nano
        noise = int(one.noise.draw(seeded_bits(chance.random()), np.array([lattice.t]))[0])
        assert np.isfinite(one.value((lattice.project(furthest) + noise) << lattice.shift))
        steps = lattice.steps(one.plate_sensitivities).tolist()
        assert all(
            Fraction(s, lattice.t) <= Fraction(c, NANO)
            for s, c in zip(steps, one.charges.tolist(), strict=True)
        )
    assert (final.charges <= plan.charges[admitted]).all()
    assert np.isfinite([one.expected_error for one in (plan, final)]).all()


def test_sums_fit_where_every_sample_of_a_slot_is_of_another_plate():
    """2**28 plates cannot be listed here: one of them moves the sum the most that any sample can."""
    alone = plan_of([1], [2_048_000], Range(0, 4_096_000), width=ClipWidth(HALF_WIDTHS[-1], 1.0))
    assert alone.weights[0] == 2**WEIGHT_BITS - 1 and alone.low[0] == -alone.high[0]
    assert PINGS_MAX * int(alone.plate_sensitivities[0]) < 2**62


@given(st.integers(4096, 4_096_000), st.floats(0, 1), st.integers(1, 40))
def test_a_forecast_that_terms_carry_stays_within_the_range(most, where, pings):
    edge = min(1.0, most / 4096 / 4)
    kmh = edge + where * (most / 4096 - 2 * edge)
    around = ForecastClipTerms.of(kmh, np.array([kmh]))
    plan = plan_of([pings], around.plates_quanta, Range(0, most))
    assert abs(plan.around.plates[0] / 4096 - kmh) <= 1 / 128 and plan.plate_sensitivities[0] > 0


@pytest.mark.parametrize("centres", [[5], [5, 5, 5], []])
def test_forecasts_of_another_number_of_plates_are_refused_by_name(centres):
    with pytest.raises(ValueError, match=f"a forecast for each of 2 plates, got {len(centres)}"):
        plan_of([2, 3], np.array(centres, dtype=np.int64), FULL)


@pytest.mark.parametrize("lower", [1, 20 * 4096, U - 1])
def test_forecasts_beyond_a_range_that_was_lowered_count_as_its_end(lower):
    beyond = plan_of([2, 3, 1], [-(2**40), lower + 1, 2**40], Range(0, lower))
    ends = plan_of([2, 3, 1], [0, lower, lower], Range(0, lower))
    assert beyond.around.plates.tolist() == [0, lower, lower]
    assert (
        beyond.plate_sensitivities.tolist() == ends.plate_sensitivities.tolist()
        and beyond.charges.tolist() == ends.charges.tolist()
    )


def test_terms_without_a_forecast_are_refused_by_name():
    policy = load(None, (), {}).policy
    with pytest.raises(ValueError, match="terms with a forecast"):
        STATISTICS[FORECAST_CLIP].plan(
            SamplesPerPlate(np.array([2])), StatisticTerms(FORECAST_CLIP, NANO), policy.public
        )


def test_what_is_released_is_the_forecast_where_nothing_differs_from_it():
    plan = plan_of([4, 2], [20 * 4096, 30 * 4096], FULL)
    assert (
        clipped_sum(plan, np.array([20, 20, 20, 20, 30, 30]) * 4096) == 0
        and plan.value(0) == plan.around.hat
    )
    assert (
        clipped_sum(plan, np.array([19, 20, 21, 20, 28, 32]) * 4096) == 0
    )  # its mean counts, not its single samples
