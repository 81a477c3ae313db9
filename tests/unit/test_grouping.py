"""Groupings against naive references, and the papers' statements about them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from udp_stream.units import NANO

counts_and_cap = st.lists(st.integers(1, 12), min_size=1, max_size=25).flatmap(
    lambda counts: st.tuples(st.just(counts), st.integers(min(counts), max(counts)))
)


def naive_best_fit(counts, cap):
    """The paper's text, O(L^2): users by non-increasing count, each into the fullest array with room, lowest index."""
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
    """Samples (user, place) poured one after another, in arrays of `cap`; the last one only if it is full."""
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
    assert [owners[i] for i in wrap_around_positions(hat, cap)] == [sample for array in arrays for sample in array]


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


@pytest.mark.parametrize("mechanism", ["array-averaging", "optimal", "levy", "baseline"])
def test_a_cap_that_was_chosen_for_larger_counts_is_the_largest_count_now(mechanism):
    """A retry may count fewer repeats: terms keep the cap, and each plate then gives all that it has."""
    asked = StatisticTerms("mean", NANO, mechanism, choice=Choice(mechanism, cap=9))
    plan = STATISTICS["mean"].plan(SamplesPerPlate(np.array([3, 1])), asked, PublicSettings(Range(0, 100)))
    assert plan.mechanism == mechanism and plan.cap == 3 and plan.used_samples <= 4
