"""The width of a clip: gains and misfits beside simulated HATs, the choice beside all plans, and
what it is worth."""

import numpy as np
import pytest

from udp_stream.mechanisms import widths as module
from udp_stream.mechanisms.around import AROUND, ForecastClip, plan_around
from udp_stream.mechanisms.base import NoisyValue, Range, SamplesPerPlate
from udp_stream.mechanisms.noise import concentrated, pure
from udp_stream.mechanisms.widths import (
    DEVIATION_MAX,
    HALF_WIDTHS,
    UNEVEN,
    ClipWidth,
    clip_width,
    clip_widths,
    plate_variance,
)

KMH = 4096
SPEEDS = Range(0, 120 * KMH)
COST = pure(833_333_333)


@pytest.mark.parametrize("half_width", HALF_WIDTHS)
@pytest.mark.parametrize("off", [0.25, 1.0, 2.5])
def test_gain_and_misfit_are_those_of_simulated_hats(half_width, off, limits):
    """Each of 2,000 HATs is off by its own difference, and has 400 plates: what the model says of
    normal ones."""
    limits(module, PEAKED=0.0)
    rng = np.random.default_rng(11)
    differs = rng.normal(0, off, 2000)
    seen = np.clip(differs[:, None] + rng.normal(0, 1, (2000, 400)), -half_width, half_width).mean(
        axis=1
    )
    gain, misfit = module.passed_at(half_width, off)
    slope = (seen @ differs) / (differs @ differs)
    assert gain == pytest.approx(slope, rel=0.08)
    left = np.sqrt(np.mean((seen - slope * differs) ** 2) / gain**2)
    sampled = 1 / 20 / gain  # of 400 plates' scatter, at most
    assert misfit - 0.03 < left < np.hypot(misfit, sampled) + 0.03


@pytest.mark.parametrize("measured_in", [pure, concentrated], ids=["pure", "in rho"])
def test_each_hat_of_a_slot_has_the_width_that_it_has_alone(measured_in):
    rng = np.random.default_rng(3)
    sizes = rng.integers(1, 60, 300)
    first, pings = np.cumsum(sizes) - sizes, rng.integers(1, 200, sizes.sum())
    off, shared = rng.gamma(2, 2, 300), rng.uniform(0.3, 14, 300)
    counts = np.split(pings, first[1:])
    costs = [
        measured_in(int(nano)) for nano in rng.choice([20_000_000, 60_000_000, 900_000_000], 300)
    ]
    in_boxes = [clip_width(*hat) for hat in zip(counts, off.tolist(), costs, strict=True)]
    alone, none = (
        zip(counts, off[:, None], costs, shared[:, None], strict=True),
        np.zeros(1, dtype=np.int64),
    )
    (has_joint_clips,) = zip(
        *(clip_widths(hat, none, far, [cost], hats) for hat, far, cost, hats in alone), strict=True
    )
    assert clip_widths(pings, first, off, costs) == in_boxes and len(set(in_boxes)) > 200
    assert (
        clip_widths(pings, first, off, costs, shared) == list(has_joint_clips)
        and len(set(has_joint_clips)) > 200
    )


@pytest.mark.parametrize("cost", [COST, concentrated(50_000_000)], ids=["pure", "in rho"])
@pytest.mark.parametrize(("plates", "pings"), [(3, 2), (12, 30), (90, 120)])
@pytest.mark.parametrize("deviation", [1.0, 3.0, 6.0])
def test_the_width_is_the_one_whose_plan_errs_least(cost, plates, pings, deviation):
    """Each width planned in full, in integers: the choice reads the noise off no plan."""
    by_plate = np.full(plates, pings)
    scatter = float(np.sqrt(plate_variance(by_plate))[0])
    errors = []
    for half_width in HALF_WIDTHS:
        gain, misfit = module.passed_at(half_width, round(min(deviation / scatter, 4) * 16) / 16)
        around = ForecastClip(60 * KMH, np.full(plates, 60 * KMH), ClipWidth(half_width, gain))
        noise = (
            plan_around(
                SamplesPerPlate(by_plate), around, cost, Range(0, 1000 * KMH)
            ).noise_deviation
            / KMH
        )
        errors.append(noise**2 + (scatter * misfit) ** 2 + (UNEVEN * deviation * (1 - gain)) ** 2)
    chosen = clip_width(by_plate, deviation, cost)
    assert clip_width(by_plate, 99.0, cost) == clip_width(by_plate, DEVIATION_MAX, cost)
    assert errors[HALF_WIDTHS.index(chosen.half_width)] <= 1.01 * min(errors)


def test_what_a_clip_hides_is_in_the_interval_of_a_release_and_in_its_expected_error_but_no_noise_of_the_filter():
    plans = [
        plan_around(
            SamplesPerPlate(np.full(50, 40)),
            ForecastClip(30 * KMH, np.full(50, 30 * KMH), ClipWidth(1.0, 0.7, hidden)),
            COST,
            SPEEDS,
        )
        for hidden in (0.0, 3.0)
    ]
    one, other = (AROUND.record(plan, NoisyValue(30.0 * KMH, plan.noise_bound)) for plan in plans)
    widths = [low_high[1] - low_high[0] for low_high in (one.interval95_kmh, other.interval95_kmh)]
    assert (
        widths[1] > 1.5 * widths[0]
        and other.expected_abs_error_kmh > 1.5 * one.expected_abs_error_kmh
    )
    assert one.scale_kmh == other.scale_kmh
    assert (
        plans[0].noise_deviation == plans[1].noise_deviation and plans[0].spread == plans[1].spread
    )
