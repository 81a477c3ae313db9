"""The automatic choice of bins: least proxy, from public quantities, cheap."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cdf_oracles import proxy_error
from udp_stream.base.units import NANO
from udp_stream.mechanisms.cdf import LADDER, auto_bins, equal_bins
from udp_stream.mechanisms.noise import pure


@given(st.integers(1, 10**7), st.integers(1, 1000), st.integers(10**5, 10**11))
def test_the_choice_minimises_the_proxy_over_the_ladder(n, cap, nano):
    bins = auto_bins(n, cap, pure(nano), 65.0)
    noise = 2 * cap / (n * (nano / NANO))
    assert bins.count - 1 in LADDER
    best = min(proxy_error(count, noise) for count in LADDER)
    assert proxy_error(bins.count - 1, noise) <= best * (1 + 1e-9)


def test_the_choice_is_bins_of_exact_zeros_and_of_equal_width():
    bins = auto_bins(1000, 4, pure(NANO), 65.0)
    assert bins == equal_bins(bins.count - 1, 65.0, zeros_apart=True)


def test_the_proxy_is_resolution_plus_the_papers_noise():
    """4 equal bins and zeros: a histogram of 5, whose prefix k has 8 k (5 - k) / 5: 8 on average
    over the 4."""
    assert proxy_error(4, 2 * 0.01) == pytest.approx(1 / 8 + 0.01 * math.sqrt(8))
