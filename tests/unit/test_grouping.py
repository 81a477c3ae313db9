"""Groupings against naive references, and the papers' statements about them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from udp_stream.base.units import NANO
from udp_stream.mechanisms.base import (
    Choice,
    PublicSettings,
    Range,
    SamplesPerPlate,
    StatisticTerms,
    best_fit,
    wrap_around_count,
    wrap_around_positions,
)
from udp_stream.mechanisms.means import levy_cap
from udp_stream.mechanisms.statistics import STATISTICS

counts_and_cap = st.lists(st.integers(1, 12), min_size=1, max_size=25).flatmap(
    lambda counts: st.tuples(st.just(counts), st.integers(min(counts), max(counts)))
)


def naive_best_fit(counts, cap):
    """The paper's text, O(L^2): users by non-increasing count, each into the fullest array with
    room, lowest index."""
    arrays = [0] * len(counts)
    of_plate = {}
    for user in sorted(range(len(counts)), key=lambda u: -counts[u]):
        size = min(counts[user], cap)
        fits = [i for i, filled in enumerate(arrays) if filled + size <= cap]
        best = max(fits, key=lambda i: (arrays[i], -i))
        arrays[best] += size
        of_plate[user] = best
    return [of_plate[u] for u in range(len(counts))], [filled for filled in arrays if filled]


def naive_wrap_around(counts, cap):
    """Samples (user, place) poured one after another, in arrays of `cap`; the last one only if it
    is full."""
    poured = [
        (user, place)
        for user in sorted(range(len(counts)), key=lambda u: -counts[u])
        for place in range(min(counts[user], cap))
    ]
    return [poured[i : i + cap] for i in range(0, len(poured) - cap + 1, cap)]


@given(counts_and_cap)
def test_best_fit_equals_the_papers_text(case):
    counts, cap = case
    arrays = best_fit(SamplesPerPlate(np.array(counts)), cap)
    of_plate, filled = naive_best_fit(counts, cap)
    assert arrays.of_plate.tolist() == of_plate
    assert arrays.filled.tolist() == filled


@given(counts_and_cap)
def test_wrap_around_equals_the_papers_text(case):
    counts, cap = case
    hat = SamplesPerPlate(np.array(counts))
    owners = [(user, place) for user, count in enumerate(counts) for place in range(count)]
    arrays = naive_wrap_around(counts, cap)
    assert wrap_around_count(hat, cap) == len(arrays) >= 1
    assert [owners[i] for i in wrap_around_positions(hat, cap)] == [
        sample for array in arrays for sample in array
    ]


@given(counts_and_cap)
def test_best_fit_never_makes_fewer_arrays_than_wrap_around(case):
    """K-bar >= K (arXiv 2401.15906, Section III-A); on their data 164 against 160."""
    counts, cap = case
    hat = SamplesPerPlate(np.array(counts))
    assert best_fit(hat, cap).count >= wrap_around_count(hat, cap)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_levys_cap_is_best_among_all_lengths_not_only_among_counts(counts):
    hat = SamplesPerPlate(np.array(counts))
    best = max(hat.kept(m) / m**0.5 for m in range(min(counts), max(counts) + 1))
    assert hat.kept(levy_cap(hat)) / levy_cap(hat) ** 0.5 == pytest.approx(best)


# The lemmas of arXiv 2401.15906 (IV of its early version), for BestFit. The papers state them of
# the proxy U m / sum min(m_l, m), or of K = floor(sum min(m_l, m) / m); BestFit has the noise U /
# K-bar.

scaling = st.integers(2, 5)


@given(counts_and_cap)
def test_lemma_iii_1_clipping_never_needs_more_noise_than_baseline(case):
    counts, cap = case
    hat = SamplesPerPlate(np.array(counts))
    best, proxy, baseline = (
        1 / best_fit(hat, cap).count,
        cap / hat.kept(cap),
        hat.largest / hat.total,
    )
    assert best <= proxy * (1 + 1e-12) and proxy <= baseline * (1 + 1e-12)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=40))
def test_lemma_iii_2_the_median_gains_at_least_half_of_what_any_cap_could(counts):
    hat = SamplesPerPlate(np.array(counts))
    most = max(best_fit(hat, cap).count for cap in range(min(counts), max(counts) + 1))
    assert 2 * best_fit(hat, hat.median).count >= hat.plates >= most
    assert 2 * hat.kept(hat.median) >= hat.median * hat.plates


@given(counts_and_cap, scaling)
def test_lemma_iv_1_more_samples_of_each_plate_fill_the_same_arrays_that_are_as_much_longer(
    case, times
):
    counts, cap = case
    hat, scaled = SamplesPerPlate(np.array(counts)), SamplesPerPlate(np.array(counts) * times)
    arrays, longer = best_fit(hat, cap), best_fit(scaled, cap * times)
    assert longer.of_plate.tolist() == arrays.of_plate.tolist()
    assert longer.filled.tolist() == [times * filled for filled in arrays.filled.tolist()]
    assert wrap_around_count(scaled, cap * times) == wrap_around_count(hat, cap)
    best = scaled.kept(levy_cap(scaled)) / levy_cap(scaled) ** 0.5
    assert scaled.kept(times * levy_cap(hat)) / (times * levy_cap(hat)) ** 0.5 == pytest.approx(
        best
    )


@given(counts_and_cap, scaling)
def test_lemma_iv_2_more_plates_fill_as_many_times_the_arrays(case, times):
    """BestFit packs anew, into no fewer arrays than WrapAround. Best fit in falling order has at
    most 11/9 of the fewest possible and 6/9: not many more than `times` its own.
    """
    counts, cap = case
    hat, scaled = SamplesPerPlate(np.array(counts)), SamplesPerPlate(np.repeat(counts, times))
    assert (
        times * wrap_around_count(hat, cap)
        <= wrap_around_count(scaled, cap)
        < times * (wrap_around_count(hat, cap) + 1)
    )
    packed = best_fit(scaled, cap).count
    assert (
        times * wrap_around_count(hat, cap)
        <= packed
        <= (11 * times * best_fit(hat, cap).count + 6) / 9
    )
    best = scaled.kept(levy_cap(scaled)) / levy_cap(scaled) ** 0.5
    assert scaled.kept(levy_cap(hat)) / levy_cap(hat) ** 0.5 == pytest.approx(best)


@pytest.mark.parametrize("mechanism", ["array-averaging", "optimal", "levy", "baseline"])
def test_a_cap_that_was_chosen_for_larger_counts_is_the_largest_count_now(mechanism):
    """A retry may count fewer repeats: terms keep the cap, and each plate then gives all that it
    has."""
    asked = StatisticTerms("mean", NANO, mechanism, choice=Choice(mechanism, cap=9))
    plan = STATISTICS["mean"].plan(
        SamplesPerPlate(np.array([3, 1])), asked, PublicSettings(Range(0, 100))
    )
    assert plan.mechanism == mechanism and plan.cap == 3 and plan.used_samples <= 4
