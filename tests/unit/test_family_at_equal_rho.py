"""Where losses are counted in rho, Gaussian noise errs less than Laplace noise that costs as much,
for every statistic.

So `auto` has no family to choose there. An epsilon of Laplace noise costs epsilon^2 / 2 in rho.
"""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from udp_stream.base.units import NANO
from udp_stream.ledger.filters import rho_nano_of_pure
from udp_stream.mechanisms.around import ForecastClip, plan_around
from udp_stream.mechanisms.base import Range, SamplesPerPlate
from udp_stream.mechanisms.cdf import plan_cdf
from udp_stream.mechanisms.means import MECHANISMS
from udp_stream.mechanisms.noise import (
    Cost,
    expected_noise,
    expected_noise_of_counts,
    noise_of,
    pure,
)
from udp_stream.mechanisms.variance import plan_variance

SPEEDS = Range(0, 65 * 4096)
LESS = np.sqrt(2 / np.pi)  # E|N(0, 1)|, where Laplace noise of scale 1 has E|x| = 1
COUNTS = st.lists(st.integers(1, 300), min_size=2, max_size=60).map(
    lambda some: SamplesPerPlate(np.array(some))
)
EPSILONS = st.floats(0.01, 20).map(lambda epsilon: round(epsilon * NANO))


def both(epsilon_nano):
    return pure(epsilon_nano), Cost("zcdp", rho_nano_of_pure(epsilon_nano))


def plan_of(statistic, counts, cost):
    """By one cap, whatever the noise is."""
    cap = (
        max(1, counts.largest // 2)
        if statistic in ("array-averaging", "variance")
        else counts.largest
    )
    if statistic == "variance":
        return plan_variance(counts, cost, SPEEDS, cap)
    if statistic == "forecast-clip":
        return plan_around(
            counts, ForecastClip(18 * 4096, np.full(counts.plates, 18 * 4096)), cost, SPEEDS
        )
    return MECHANISMS[statistic].plan(counts, cost, SPEEDS, "best-fit", cap)


@settings(max_examples=25, deadline=None)
@pytest.mark.parametrize(
    "statistic", ["baseline", "array-averaging", "optimal", "levy", "variance", "forecast-clip"]
)
@given(counts=COUNTS, epsilon_nano=EPSILONS)
def test_gaussian_noise_is_a_fifth_smaller_and_no_plate_pays_more(statistic, counts, epsilon_nano):
    laplace, gaussian = (plan_of(statistic, counts, cost) for cost in both(epsilon_nano))
    assert (laplace.noise.name, gaussian.noise.name) == ("discrete-laplace", "discrete-gaussian")
    assert gaussian.noise_bound <= laplace.noise_bound * LESS * (1 + 1e-6)
    in_rho = np.array([rho_nano_of_pure(charge) for charge in laplace.charges.tolist()])
    assert (gaussian.charges <= in_rho + 2).all()


@settings(max_examples=15, deadline=None)
@given(counts=COUNTS, epsilon_nano=st.floats(0.05, 20).map(lambda epsilon: round(epsilon * NANO)))
@example(counts=SamplesPerPlate(np.array([1, 1, 1, 1, 1, 6, 8])), epsilon_nano=NANO)
def test_a_cdf_with_gaussian_noise_errs_less(counts, epsilon_nano):
    """At one cap: of its own choice less noise would have a higher one, which drops fewer samples."""
    pure_epsilon, rho = both(epsilon_nano)
    laplace = plan_cdf(counts, pure_epsilon, 65.0, 32)
    gaussian = plan_cdf(counts, rho, 65.0, 32, laplace.choice)
    assert gaussian.cap == laplace.cap and gaussian.rms_error < laplace.rms_error


@given(EPSILONS, st.integers(1, 10**6))
def test_so_it_is_for_one_number_and_for_counts(epsilon_nano, sensitivity):
    laplace, gaussian = both(epsilon_nano)
    assert expected_noise(sensitivity, gaussian) <= LESS * expected_noise(sensitivity, laplace) * (
        1 + 1e-6
    )
    assert expected_noise_of_counts(gaussian) < 0.6 * expected_noise_of_counts(laplace)


def test_a_private_choice_has_twice_the_epsilon():
    laplace, gaussian = both(NANO)
    assert noise_of(gaussian).choice_epsilon_nano(gaussian) == 2 * noise_of(
        laplace
    ).choice_epsilon_nano(laplace)
