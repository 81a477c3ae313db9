"""`auto`: the least expected error for what plates pay, from counts alone, with a worst case that
is allowed."""

from math import hypot

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.forms import PURE_ENV
from udp_stream.base.units import NANO
from udp_stream.mechanisms.base import PublicSettings, Range, SamplesPerPlate
from udp_stream.mechanisms.means import ArrayAveraging, Baseline, OptimalCappedSum
from udp_stream.mechanisms.noise import pure
from udp_stream.mechanisms.statistics import (
    AS_GOOD,
    CAPS_TRIED,
    MeanStatistic,
    averaging_caps,
    plan_automatic,
    spread,
)
from udp_stream.planning.plan import plan_hat, terms_of
from udp_stream.settings import load

U = 65 * 4096

hat_counts = st.lists(st.integers(1, 60), min_size=1, max_size=40)
epsilons = st.sampled_from([0.05, 0.3, 1.0, 4.0, 20.0])
groupings = st.sampled_from(["best-fit", "wrap-around"])


def mean_share(plan):
    return plan.plate_sensitivities.mean() / plan.sensitivity


@settings(max_examples=60)
@given(hat_counts, epsilons, groupings)
def test_auto_takes_the_least_charge_within_three_percent_of_the_least_expected_error(
    counts, epsilon, grouping
):
    hat, nano = SamplesPerPlate(np.array(counts)), round(epsilon * NANO)
    candidates = [
        mechanism.plan(hat, pure(nano), Range(0, U), grouping)
        for mechanism in (Baseline(), OptimalCappedSum())
    ]
    allowed = max(U / 2, candidates[1].error_bound) * (1 + 1e-9)
    caps = averaging_caps(hat, pure(nano), grouping, allowed / U)
    candidates += [
        ArrayAveraging().plan(hat, pure(nano), Range(0, U), grouping, cap) for cap in caps
    ]
    candidates = [plan for plan in candidates if plan.error_bound <= allowed]
    errors = [hypot(plan.noise_bound, spread(plan)) for plan in candidates]
    chosen = plan_automatic(hat, pure(nano), Range(0, U), grouping, "epsilon")
    assert hypot(chosen.noise_bound, spread(chosen)) <= AS_GOOD * min(errors)
    as_good = [
        plan
        for plan, error in zip(candidates, errors, strict=True)
        if error <= AS_GOOD * min(errors)
    ]
    assert mean_share(chosen) == pytest.approx(min(map(mean_share, as_good)))


@settings(max_examples=200)
@given(hat_counts, epsilons, groupings)
def test_the_worst_case_of_auto_is_within_that_of_guessing_wherever_the_optimum_is(
    counts, epsilon, grouping
):
    """U/2 is the worst error of the guess U/2; Optimal's is the least of capped sums with a fill."""
    hat, nano = SamplesPerPlate(np.array(counts)), round(epsilon * NANO)
    taken = plan_automatic(hat, pure(nano), Range(0, U), grouping, "epsilon")
    assert taken.error_bound <= max(
        U / 2, OptimalCappedSum().plan(hat, pure(nano), Range(0, U), grouping).error_bound
    ) * (1 + 1e-9)


@settings(max_examples=60)
@given(hat_counts, epsilons, groupings, st.sampled_from([0.31415, 0.51234, 1.01234, 30.0]))
def test_the_caps_are_the_best_of_all_counts_by_formulas_written_plainly(
    counts, epsilon, grouping, allowed
):
    total = sum(counts)

    def judged(cap):
        kept = [min(count, cap) for count in counts]
        G = sum(kept)
        arrays = G // cap
        if grouping == "best-fit":
            arrays = max(-(-G // cap), sum(2 * g > cap for g in kept))
        used = G if grouping == "best-fit" else arrays * cap
        between = sum((g / G - m / total) ** 2 for g, m in zip(kept, counts, strict=True))
        error = hypot(1 / epsilon / arrays, ((between + 1 / G - 1 / total) / 24) ** 0.5)
        return error, 1 - used / total + 1 / epsilon / arrays

    caps = averaging_caps(
        SamplesPerPlate(np.array(counts)), pure(round(epsilon * NANO)), grouping, allowed
    )
    judgements = sorted(judged(cap) for cap in set(counts))
    surely = [error for error, worst in judgements if worst <= allowed][: CAPS_TRIED - 1]
    assert len(set(caps)) == len(caps) <= CAPS_TRIED
    assert [judged(cap)[0] for cap in caps[: len(surely)]] == pytest.approx(surely)
    for cap in caps[len(surely) :]:
        assert judged(cap)[1] <= 1.03 * allowed * (1 + 1e-9)


@settings(max_examples=60)
@given(hat_counts, st.integers(0, 39), groupings)
def test_at_equal_charge_every_grouping_and_cap_has_the_noise_of_the_plain_mean(
    counts, which, grouping
):
    """Noise times the mean share of epsilon that plates pay is U / (L eps): so Baseline, without
    bias, is taken."""
    hat = SamplesPerPlate(np.array(counts))
    averaging = ArrayAveraging().plan(
        hat, pure(NANO), Range(0, U), grouping, counts[which % len(counts)]
    )
    for plan in (averaging, Baseline().plan(hat, pure(NANO), Range(0, U), grouping)):
        assert plan.noise_bound * mean_share(plan) == pytest.approx(U / len(counts), rel=1e-3)
    assert plan_automatic(hat, pure(NANO), Range(0, U), grouping, "charge").mechanism == "baseline"


@settings(max_examples=60)
@given(hat_counts, st.integers(0, 39), epsilons, groupings, st.floats(2.0, 100.0))
def test_at_equal_charge_no_grouping_cap_or_fill_has_a_smaller_worst_case(
    counts, which, epsilon, grouping, times
):
    """Wherever the noise is at most U/2, the worst error of a constant: what `auto` takes is the
    worst-case optimum."""
    hat, nano = SamplesPerPlate(np.array(counts)), round(epsilon * NANO)
    charge = times / len(counts)
    others = (
        ArrayAveraging().plan(hat, pure(nano), Range(0, U), grouping, counts[which % len(counts)]),
        OptimalCappedSum().plan(hat, pure(nano), Range(0, U), grouping),
        OptimalCappedSum().plan_with_fill(hat, pure(nano), Range(0, U), fill=U // 5),
    )
    worst = [
        plan.noise_bound * epsilon * mean_share(plan) / charge + plan.bias_bound for plan in others
    ]
    taken = plan_automatic(hat, pure(nano), Range(0, U), grouping, "charge")
    ours = taken.noise_bound * epsilon * mean_share(taken) / charge
    assert taken.bias_bound == 0 and ours == pytest.approx(U / len(counts) / charge, rel=1e-3)
    assert ours <= min(worst) * (1 + 1e-3)


def test_an_automatic_epsilon_is_compared_at_equal_charge_and_a_fixed_one_at_equal_epsilon():
    counts = SamplesPerPlate(np.array([40, 9, 8, 8, 7, 7, 6, 5, 5, 4]))
    fixed, automatic = (
        terms_of(
            load(None, ("release.mean=auto", *flags), PURE_ENV).policy, {"mean": NANO}
        ).requested_terms("mean")
        for flags in (("release.mean_epsilon=1",), ("release.mean_epsilon=auto",))
    )
    plan_mean, public = MeanStatistic().plan, PublicSettings(Range(0, U))
    assert [terms.compare_at for terms in (fixed, automatic)] == ["epsilon", "charge"]
    assert [plan_mean(counts, terms, public).mechanism for terms in (fixed, automatic)] == [
        "array-averaging",
        "baseline",
    ]
    assert (
        plan_mean(counts, msgspec.structs.replace(automatic, mechanism="levy"), public).mechanism
        == "levy"
    )


def test_auto_is_a_function_of_counts_terms_and_settings():
    policy = load(None, ("release.mean=auto", "release.mean_epsilon=1"), PURE_ENV).policy
    terms = terms_of(policy, {"mean": NANO})
    counts = np.random.default_rng(5).integers(1, 50, 60)
    one, two = (plan_hat(counts.copy(), terms, policy) for _ in range(2))
    assert (one.mean.mechanism, one.mean.cap) == (two.mean.mechanism, two.mean.cap)
    np.testing.assert_array_equal(one.charges, two.charges)
    whys = [MeanStatistic().why(plan.mean, terms.requested_terms("mean")) for plan in (one, two)]
    assert whys[0] == whys[1] and "least expected error" in whys[0]
