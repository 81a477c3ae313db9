"""One clip for all HATs of a plate in a slot: no plate loses more than it was charged for all, by
brute force."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tests.forms import long_but
from tests.privacy.test_individual_charges import subsets
from udp_stream.mechanisms import around as ball
from udp_stream.mechanisms.around import (
    AROUND,
    FORECAST_CLIP,
    SQUARE_MAX,
    WHOLE,
    ForecastClip,
    PlateNorms,
    check_of,
    clipped_sum,
    factor_of,
    merged_norms,
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
from udp_stream.units import NANO
from udp_stream.windows.tables import PINGS_MAX

U = 65 * 4096
FULL = Range(0, U)
RHO = 64_000_000
SLOTS = [
    ((1,),),
    ((2, 1),),
    ((1,), (3,)),
    ((1, 2), (2, 1)),
    ((1,), (2,), (1,)),
    ((3, 1), (1, 1), (2, 5)),
    ((1,),) * 4,
]
"""HATs, in each of them the pings of the same plates."""


def plan_of(counts, centres, rho_nano=RHO, width=0.5, speeds=FULL):
    around = ForecastClip(4, np.array(centres), ClipWidth(width, 0.5, ball=True))
    return plan_around(SamplesPerPlate(np.array(counts)), around, concentrated(rho_nano), speeds)


def slot_of(counts, seed, rho_nano=RHO, width=None):
    rng = np.random.default_rng(seed)
    widths = [width or rng.choice((0.25, 0.5, *HALF_WIDTHS)) for _ in counts]
    return [
        plan_of(one, rng.integers(0, U + 1, len(one)), rho_nano, at)
        for one, at in zip(counts, widths, strict=True)
    ]


def norms(plans, samples):
    plates = tuple(bytes([97 + i]) for i in range(len(plans[0].counts.by_plate)))
    ones, of_hats = np.ones(len(plates), np.int64), []
    for cell, (plan, speeds) in enumerate(zip(plans, samples, strict=True)):
        columns = *room_and_rounding(plan), norms_of(plan, speeds)
        checks = [
            check_of(cell, *of_plate)
            for of_plate in zip(*(one.tolist() for one in columns), strict=True)
        ]
        of_hats.append(PlateNorms(plates, ones, *columns, np.array(checks)))
    return merged_norms(of_hats)


def released(plans, samples):
    whole = norms(plans, samples)
    factors = np.array(list(whole.factors(dict.fromkeys(whole.plates, len(plans))).values()))
    found = []
    for plan, speeds in zip(plans, samples, strict=True):
        found.append(
            lattice_of(plan.sensitivity, plan.cost).project(shrunk_sum(plan, speeds, factors))
        )
    return found


def loss(plans, one, other):
    scales = [lattice_of(plan.sensitivity, plan.cost).t for plan in plans]
    return sum(Fraction(a - b, t) ** 2 / 2 for a, b, t in zip(one, other, scales, strict=True))


def worst(plans, plate, rng, speeds=(0, 20 * 4096, U), others=1):
    """The most that any two speeds of the plate's HATs lose, each HAT with one of these for all of
    its pings there."""
    most = Fraction(0)
    for _ in range(others):
        rest = [rng.integers(0, U + 1, plan.counts.total) for plan in plans]
        outputs = []
        for chosen in itertools.product(speeds, repeat=len(plans)):
            samples = [each.copy() for each in rest]
            for plan, each, speed in zip(plans, samples, chosen, strict=True):
                start = int(plan.counts.by_plate[:plate].sum())
                each[start : start + int(plan.counts.by_plate[plate])] = speed
            outputs.append(released(plans, samples))
        most = max([most, *(loss(plans, a, b) for a, b in itertools.combinations(outputs, 2))])
    return most


@pytest.mark.parametrize("rho_nano", [RHO, 40])
@pytest.mark.parametrize("counts", long_but([*SLOTS[:5], SLOTS[6]], SLOTS), ids=str)
def test_no_plate_loses_more_than_it_was_charged_for_all_of_its_hats(counts, rho_nano):
    rng = np.random.default_rng(1)
    for seed in range(3):
        plans = slot_of(counts, seed, rho_nano)
        for plate in range(len(counts[0])):
            charged = sum(int(plan.charges[plate]) for plan in plans)
            assert worst(plans, plate, rng) <= Fraction(charged, NANO)


@pytest.mark.parametrize("counts", SLOTS, ids=str)
def test_a_plate_that_is_far_off_both_ways_loses_all_of_it(counts):
    """So the ball is not smaller than was paid for: to within what rounding takes."""
    plans = [plan_of(one, [U // 2] * len(one), width=0.25) for one in counts]
    charged = sum(int(plan.charges[0]) for plan in plans)
    assert (
        Fraction(9995, 10_000) * charged
        < worst(plans, 0, np.random.default_rng(2), (0, U)) * NANO
        <= charged
    )


def test_whoever_is_halted_the_others_lose_no_more_than_they_were_charged():
    priced, rng = slot_of(((3, 1, 2), (1, 1, 4)), 5), np.random.default_rng(3)
    for admitted in subsets(3):
        plans = [AROUND.subset(plan, admitted) for plan in priced]
        for plate, whole in enumerate(np.flatnonzero(admitted)):
            charged = sum(int(plan.charges[whole]) for plan in priced)
            assert worst(plans, plate, rng) <= Fraction(charged, NANO)


def test_a_plate_of_which_a_hat_is_missing_moves_nothing():
    """Counts that were read again had other rows: what was recorded of that HAT before may have
    taken all."""
    plans = slot_of(((1, 2), (2, 2)), 7)
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

    farthest, most = sorted(range(U * 3 // 4, U, 3), key=difference)[-20:], 0
    for speed, other in itertools.product(farthest, (U // 2, U // 2 + 5, U // 2 + 10)):
        (slow,), (fast,) = (
            released([plan], [np.array([one, other])]) for one in (U - speed, speed)
        )
        most = max(most, fast - slow)
    assert lattice.shift and 0.97 * room < Fraction(most * 2**ball.BITS, lattice.t) ** 2 <= room


def test_speeds_that_change_places_among_hats_have_the_same_norm_and_other_checks():
    plans = [plan_of((1,), [U // 2])] * 2
    one, other = ([np.array([far]), np.array([near])] for far, near in ((0, U // 2), (U // 2, 0)))
    ours, swapped = norms(plans, one), norms(plans, other)
    assert (
        ours.norm.tolist() == swapped.norm.tolist()
        and ours.checks.tolist() != swapped.checks.tolist()
    )
    low = [released(plans, one)[0], released(plans, other)[1]]
    high = [
        released(plans, [U - speed for speed in one])[0],
        released(plans, [U - speed for speed in other])[1],
    ]
    charged = sum(int(plan.charges[0]) for plan in plans)
    assert loss(plans, low, high) * NANO > 1.9 * charged


PLANTED = {
    "no plate is scaled": lambda *_: WHOLE,
    "a ball that is a tenth too large": lambda *of: factor_of(*of) * 11 // 10,
    "norms of one HAT of two": lambda room, rounding, norm: factor_of(room, rounding, norm // 2),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults_are_found(name, planted):
    planted(ball, factor_of=PLANTED[name])
    plans = [plan_of(one, [U // 2] * len(one)) for one in ((1, 2), (2, 1))]
    charged = sum(int(plan.charges[0]) for plan in plans)
    assert worst(plans, 0, np.random.default_rng(4), (0, U)) * NANO > charged


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
    slow, fast = ([np.full(plan.counts.total, speed) for plan in plans] for speed in (0, U))
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
    charged = sum(int(plan.charges.sum()) for plan in plans)
    together = float(loss(plans, released(plans, slow), released(plans, fast))) * NANO
    assert (
        0.9 * charged < together
    )  # all plates at once move at least as far as each alone, squares added
    of_each = [
        float(worst(plans, plate, np.random.default_rng(6), (0, U))) * NANO for plate in range(3)
    ]
    for plate, found in enumerate(of_each):
        of_plate = sum(int(plan.charges[plate]) for plan in plans)
        assert 0.7**2 * of_plate < 0.95 * of_plate < found <= of_plate < 1.3**2 * of_plate


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
