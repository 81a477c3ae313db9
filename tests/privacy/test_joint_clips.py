"""One clip for all HATs of a plate in a slot: what its factors are, and noise. What a plate loses is
in `test_sensitivity.py`."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tests.privacy.sensitivity import norms, together
from udp_stream.base.units import NANO
from udp_stream.mechanisms import around as ball
from udp_stream.mechanisms.around import (
    FORECAST_CLIP,
    SQUARE_MAX,
    WHOLE,
    ForecastClip,
    clipped_sum,
    factor_of,
    norms_of,
    plan_around,
    room_and_rounding,
    shrunk_sum,
    sums,
)
from udp_stream.mechanisms.base import Range, SamplesPerPlate, StatisticTerms
from udp_stream.mechanisms.noise import concentrated, lattice_of, pure
from udp_stream.mechanisms.widths import HALF_WIDTHS, ClipWidth
from udp_stream.planning.plan import HatPlan, Terms
from udp_stream.release.pipeline import estimate_hats
from udp_stream.testing import seeded_bits
from udp_stream.windows.tables import PINGS_MAX

U = 65 * 4096
FULL = Range(0, U)
RHO = 64_000_000


def plan_of(counts, centres, rho_nano=RHO, width=0.5, speeds=FULL):
    around = ForecastClip(4, np.array(centres), ClipWidth(width, 0.5, ball=True))
    return plan_around(SamplesPerPlate(np.array(counts)), around, concentrated(rho_nano), speeds)


def test_a_plate_of_which_a_hat_is_missing_moves_nothing():
    """Counts that were read again had other rows: what was recorded of that HAT before may have
    taken all."""
    plans = [plan_of(counts, [U // 4, U // 2]) for counts in ((1, 2), (2, 2))]
    samples = [np.full(plan.counts.total, U) for plan in plans]
    part = norms(plans[:1], samples[:1])
    assert part.factors({b"a": 2, b"b": 1}) == {
        b"a": 0,
        b"b": norms(plans[:1], samples[:1]).factors({b"b": 1})[b"b"],
    }
    assert part.factors({b"a": 1, b"c": 1})[b"c"] == 0 and part.factors({}) == {}
    still = [
        shrunk_sum(plans[0], np.array([speed, 5, 5]), np.array([0, WHOLE])) for speed in (0, U)
    ]
    assert still[0] == still[1]


def test_a_step_that_the_lattice_adds_is_within_the_room():
    """Speeds at the edge of the ball: after rounding, two sums are up to a step of the lattice
    farther apart."""
    plan = plan_of((1, 1), [U // 2, U // 2], rho_nano=40)
    lattice = lattice_of(plan.sensitivity, plan.cost)
    room, rounding = (int(one[0]) for one in room_and_rounding(plan))

    def difference(speed):
        (norm, _) = norms_of(plan, np.array([speed, U // 2]))
        off = int(plan.weights[0]) * (speed - U // 2)
        return off * factor_of(room, rounding, int(norm)) / WHOLE / 2**lattice.shift

    farthest, most = sorted(range(U * 3 // 4, U, 19), key=difference)[-20:], 0
    for speed, other in itertools.product(farthest, (U // 2, U // 2 + 5, U // 2 + 10)):
        slow, fast = (
            together([plan], [np.array([one, other])]).integers[0] for one in (U - speed, speed)
        )
        most = max(most, int(fast - slow))
    assert lattice.shift and 0.97 * room < Fraction(most * 2**ball.BITS, lattice.t) ** 2 <= room


def test_speeds_that_change_places_among_hats_have_the_same_norm_and_other_checks():
    plans = [plan_of((1,), [U // 2])] * 2
    one, other = ([np.array([far]), np.array([near])] for far, near in ((0, U // 2), (U // 2, 0)))
    ours, swapped = norms(plans, one), norms(plans, other)
    assert (
        ours.norm.tolist() == swapped.norm.tolist()
        and ours.checks.tolist() != swapped.checks.tolist()
    )


def test_within_the_ball_nothing_is_scaled_and_one_hat_alone_is_clipped_as_by_a_box():
    plan = plan_of((4, 2), [20 * 4096, 30 * 4096])
    near = np.array([20, 21, 20, 20, 30, 29]) * 4096
    box = plan_around(
        SamplesPerPlate(np.array([4, 2])),
        ForecastClip(4, plan.around.plates, ClipWidth(0.5, 0.5)),
        plan.cost,
        FULL,
    )
    alone = norms([plan], [near]).factors({b"a": 1, b"b": 1})
    assert set(alone.values()) == {WHOLE}
    assert shrunk_sum(plan, near, np.array(list(alone.values()))) == clipped_sum(box, near)
    far = np.array([0, 0, 0, 0, 65, 65]) * 4096
    shrunk = shrunk_sum(
        plan, far, np.array(list(norms([plan], [far]).factors({b"a": 1, b"b": 1}).values()))
    )
    assert shrunk == pytest.approx(clipped_sum(box, far), abs=2e-5 * plan.sensitivity)


def test_noise_and_clip_have_the_claimed_size_and_30_percent_off_is_noticed_both_ways():
    plans = [plan_of((6, 4, 2), [20 * 4096] * 3), plan_of((3, 9, 1), [20 * 4096] * 3)]
    fast = [np.full(plan.counts.total, U) for plan in plans]
    whole = norms(plans, fast)
    factors = np.array(list(whole.factors(dict.fromkeys(whole.plates, 2)).values()))
    for plan, speeds in zip(plans, fast, strict=True):
        asked = StatisticTerms(
            FORECAST_CLIP, plan.cost.nano, FORECAST_CLIP, plan.choice, measure="zcdp"
        )
        hat = HatPlan(
            Terms((asked,), measure="zcdp"),
            plan.counts.by_plate,
            {FORECAST_CLIP: plan},
            plan.charges,
        )
        drawn = estimate_hats([hat] * 4000, [speeds] * 4000, seeded_bits("ball"), [factors] * 4000)
        off = np.array([one[FORECAST_CLIP].value for one in drawn]) - plan.value(
            shrunk_sum(plan, speeds, factors)
        )
        sigma = plan.sensitivity / np.sqrt(2 * RHO / NANO) / plan.divisor
        assert stats.kstest(off / sigma, "norm").pvalue > 1e-6
        assert stats.kstest(off / (0.7 * sigma), "norm").pvalue < 1e-6
        assert stats.kstest(off / (1.3 * sigma), "norm").pvalue < 1e-6


@pytest.mark.parametrize("made", [pure(NANO), concentrated(RHO)], ids=["pure", "without factors"])
def test_a_plan_without_gaussian_noise_and_one_without_factors_are_refused_by_name(made):
    around = ForecastClip(4, np.array([20 * 4096]), ClipWidth(0.5, 0.5, ball=True))
    plan = plan_around(SamplesPerPlate(np.array([2])), around, made, FULL)
    if made.measure == "pure":
        with pytest.raises(ValueError, match="expected a cost in rho"):
            shrunk_sum(plan, np.array([1, 2]), np.array([WHOLE]))
    with pytest.raises(ValueError, match="needs each plate's factor"):
        clipped_sum(plan, np.array([1, 2]))


@settings(max_examples=30)
@given(
    st.lists(
        st.one_of(st.integers(1, 40), st.integers(0, 25).map(lambda bits: 2**bits)),
        min_size=1,
        max_size=8,
    ),
    st.integers(4096, 4_096_000),
    st.one_of(st.integers(1, 1000), st.integers(1, 500_000 * NANO)),
    st.sampled_from((0.25, 0.5, *HALF_WIDTHS)),
    st.randoms(use_true_random=False),
)
def test_whatever_settings_allow_fits_in_64_bits(pings, most, rho_nano, width, chance):
    assert sum(pings) <= PINGS_MAX
    plan = plan_of(pings, [chance.randint(0, most) for _ in pings], rho_nano, width, Range(0, most))
    lattice = lattice_of(plan.sensitivity, plan.cost)
    speeds = [chance.choice([0, most, chance.randint(0, most)]) for _ in pings]
    shift, t = lattice.shift, lattice.t
    weights, pings_, low, high = (
        one.tolist() for one in (plan.weights, plan.counts.by_plate, plan.low, plan.high)
    )
    middle = [w * m * ((a + b) // 2) for w, m, a, b in zip(weights, pings_, low, high, strict=True)]
    off = [
        w * m * (x - f)
        for w, m, x, f in zip(weights, pings_, speeds, plan.around.plates.tolist(), strict=True)
    ]
    reach = min((t << shift) * ball.REACH, SQUARE_MAX)
    cut = [min(max(d - mid, -reach), reach) for d, mid in zip(off, middle, strict=True)]
    lengths = [-(-((abs(d) + (1 << shift) - 1 >> shift) << ball.BITS) // t) for d in cut]
    factors = [chance.choice([0, WHOLE, chance.randint(0, WHOLE)]) for _ in pings]
    scaled = [
        (abs(d) * f >> ball.BITS) * (1 if d > 0 else -1) for d, f in zip(cut, factors, strict=True)
    ]
    if sum(pings) < 10**5:
        samples = np.repeat(np.array(speeds), pings)
        assert norms_of(plan, samples).tolist() == [one**2 for one in lengths]
        assert shrunk_sum(plan, samples, np.array(factors)) == sum(scaled) + sum(middle)
    room, rounding = room_and_rounding(plan)
    steps = [lattice.steps(int(move)) for move in plan.plate_sensitivities]
    assert room.tolist() == [
        min((s << ball.BITS) // t, ball.REACH << ball.BITS) ** 2 for s in steps
    ]
    assert max(lengths) ** 2 < 2**63 and abs(sum(scaled)) < 2**63 and rounding.max() < 2**63
    for (r, b), norm in zip(
        zip(room.tolist(), rounding.tolist(), strict=True), lengths, strict=True
    ):
        factor = factor_of(r, b, norm**2)
        assert 0 <= factor <= WHOLE
        assert factor == 0 or (2 * factor * norm / WHOLE + b) ** 2 <= r * (
            1 + 1e-9
        )  # rounding is part of it


def test_sums_do_not_depend_on_how_hats_are_dealt_to_shards_also_where_they_are_too_large():
    rng = np.random.default_rng(8)
    rows = rng.integers(0, 5, 400)
    values = np.where(rng.random(400) < 0.02, SQUARE_MAX, rng.integers(0, 2**40, 400))
    whole = sums(rows, values, 5)
    for shards in (2, 4):
        parts = [sums(rows[i::shards], values[i::shards], 5) for i in range(shards)]
        assert (
            sums(np.tile(np.arange(5), shards), np.concatenate(parts), 5).tolist() == whole.tolist()
        )
    assert factor_of(room=SQUARE_MAX, rounding=0, norm=SQUARE_MAX) == 0
