"""Bins: edges, their rules, and which bin a speed is in."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from udp_stream.base.units import QUANTA_PER_KMH
from udp_stream.mechanisms.cdf import Bins, bins_from_edges, equal_bins


def bin_by_definition(bins: Bins, speed_quanta: int) -> int:
    """The bin (e_j, e_{j+1}] in rational arithmetic; 0 is in the first."""
    for j, right in enumerate(bins.edges_kmh[1:]):
        if speed_quanta <= right * QUANTA_PER_KMH:
            return j
    return bins.count - 1


@st.composite
def any_bins(draw):
    cuts = draw(
        st.lists(st.floats(0.01, 64.9), min_size=1, max_size=12, unique_by=lambda x: round(x, 2))
    )
    return bins_from_edges((*[0.0] * draw(st.integers(1, 2)), *sorted(cuts), 65.0), 65.0)


@given(any_bins(), st.lists(st.integers(0, 65 * QUANTA_PER_KMH), max_size=30))
def test_every_speed_is_in_the_bin_of_the_definition(bins, speeds):
    edges = [
        math.floor(edge * QUANTA_PER_KMH) + shift for edge in bins.edges_kmh for shift in (0, 1)
    ]
    speeds = np.array(
        speeds + [edge for edge in edges if edge <= 65 * QUANTA_PER_KMH], dtype=np.int64
    )
    assert bins.bin_of(speeds).tolist() == [bin_by_definition(bins, s) for s in speeds.tolist()]


def test_edges_belong_to_the_bin_on_their_left_and_zero_to_the_first():
    bins = equal_bins(4, 64.0)
    quanta = np.array([0, 16 * 4096, 16 * 4096 + 1, 64 * 4096])
    assert bins.bin_of(quanta).tolist() == [0, 0, 1, 3]


def test_exact_zeros_have_a_bin_of_their_own_and_nothing_else_is_in_it():
    bins = equal_bins(4, 64.0, zeros_apart=True)
    assert bins.count == 5
    assert bins.bin_of(np.array([0, 1, 16 * 4096])).tolist() == [0, 1, 1]


def test_speeds_in_kmh_are_refused():
    with pytest.raises(ValueError, match="integer quanta"):
        equal_bins(4, 64.0).bin_of(np.array([1.5]))


@pytest.mark.parametrize("count", [2, 3, 7, 13, 49, 65, 1000, 4096])
@pytest.mark.parametrize("max_kmh", [65.0, 115.0, 104.6, 1.0])
def test_equal_bins_end_at_exactly_max_kmh(count, max_kmh):
    bins = equal_bins(count, max_kmh)
    assert (bins.count, bins.edges_kmh[0], bins.max_kmh) == (count, 0.0, max_kmh)
    assert np.allclose(np.diff(bins.edges_kmh), max_kmh / count)


def test_edges_may_end_at_a_largest_speed_that_is_no_whole_number_of_quanta():
    """Plans have U in quanta, rounded down: edges that end where the settings do end there, too."""
    in_quanta = math.floor(65.3 * QUANTA_PER_KMH) / QUANTA_PER_KMH
    assert bins_from_edges((0, 30, 65.3), in_quanta).edges_kmh == (0.0, 30.0, 65.3)
    assert bins_from_edges((0, 30, 65.3), in_quanta) == bins_from_edges((0, 30, 65.3), 65.3)
    for other in (65.3 - 1 / QUANTA_PER_KMH, 65.3 + 1 / QUANTA_PER_KMH):
        with pytest.raises(ValueError, match=r"end at max_kmh = 65\.3"):
            bins_from_edges((0, 30, other), 65.3)
