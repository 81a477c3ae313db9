"""The door: one private statistic in three lines. It costs what it says, and errs as its noise
says."""

import statistics
import subprocess
import sys

import numpy as np
import pytest

import udp_stream
from udp_stream import private_cdf, private_mean, private_variance
from udp_stream.mechanisms.means import MECHANISMS

RNG = np.random.default_rng(5)
SPEEDS = {f"bus {i}": RNG.uniform(0, 50, RNG.integers(5, 60)).tolist() for i in range(80)}
ALL = np.concatenate([np.array(one) for one in SPEEDS.values()])


@pytest.mark.parametrize("mechanism", ["auto", *MECHANISMS])
def test_a_mean_is_near_the_truth_and_charges_no_plate_more_than_epsilon(mechanism):
    means = [private_mean(SPEEDS, epsilon=4.0, max_kmh=65, mechanism=mechanism) for _ in range(30)]
    assert len({one.value_kmh for one in means}) > 20  # fresh noise each time
    assert abs(statistics.median(one.value_kmh for one in means) - ALL.mean()) < 2.5
    for one in means:
        assert one.charges.keys() == SPEEDS.keys() and 0 < max(one.charges.values()) <= 4.0
        assert one.interval95_kmh[0] <= one.value_kmh <= one.interval95_kmh[1]
        assert mechanism in ("auto", one.mechanism)


def test_less_epsilon_is_more_noise_as_much_as_it_should_be():
    def spread(epsilon):
        values = [
            private_mean(SPEEDS, epsilon=epsilon, max_kmh=65, mechanism="baseline").value_kmh
            for _ in range(400)
        ]
        return statistics.mean(abs(value - ALL.mean()) for value in values)

    assert 3.0 < spread(1.0) / spread(4.0) < 5.2


def test_a_variance_and_a_cdf_are_near_the_truth():
    variances = [private_variance(SPEEDS, epsilon=8.0, max_kmh=65).value_kmh2 for _ in range(40)]
    assert abs(statistics.median(variances) - ALL.var()) < 60
    cdf = private_cdf(SPEEDS, epsilon=20.0, max_kmh=65, bins=[0, 10, 20, 30, 40, 50, 65])
    truth = [np.mean(edge >= ALL) for edge in cdf.edges_kmh]
    assert np.abs(np.array(cdf.values) - truth).max() < 0.15 and cdf.values[-1] == 1
    assert max(cdf.charges.values()) <= 20.0


def test_the_order_of_the_table_and_speeds_above_the_range_change_no_charge():
    turned = dict(reversed([*SPEEDS.items()]))
    faster = {plate: [speed * 10 for speed in speeds] for plate, speeds in SPEEDS.items()}
    charges = private_mean(SPEEDS, epsilon=1.0, max_kmh=65).charges
    assert private_mean(turned, epsilon=1.0, max_kmh=65).charges == charges
    assert private_mean(faster, epsilon=1.0, max_kmh=65).charges == charges
    assert private_mean(faster, epsilon=1.0, max_kmh=65).value_kmh <= 65


@pytest.mark.parametrize(
    ("speeds", "settings", "said"),
    [
        ({}, {}, "expected at least one plate"),
        ({"a": []}, {}, "speeds of plate 0"),
        ({"a": [1.0], "b": [float("nan")]}, {}, "speeds of plate 1"),
        ({"a": [-3.5]}, {}, "expected finite and >= 0"),
        ({"a": [1.0]}, {"epsilon": 0}, "expected 1e-06 to 1000"),
        ({"a": [1.0]}, {"max_kmh": 0}, "expected 1 to 1000"),
        ({"a": [1.0]}, {"mechanism": "mean"}, "expected one of auto"),
        ({"a": [1.0]}, {"grouping": "none"}, "expected one of best-fit"),
    ],
)
def test_what_is_wrong_is_named_and_no_speed_is_told(speeds, settings, said):
    with pytest.raises(ValueError, match=said) as raised:
        private_mean(speeds, **({"epsilon": 1.0, "max_kmh": 65} | settings))
    assert "3.5" not in str(raised.value)


@pytest.mark.parametrize(
    "wrong", ["31.4 km/h", b"31.4x", [31.4], 10**400, {"kmh": 31.4}, 31.4 + 0j]
)
def test_what_is_no_number_is_not_quoted_either(wrong):
    with pytest.raises(ValueError, match="speeds of plate 0") as raised:
        private_mean({"a": [20.0, wrong]}, epsilon=1.0, max_kmh=65)
    assert "31" not in str(raised.value) and raised.value.__suppress_context__


def test_importing_the_package_loads_nothing_of_it():
    program = "import sys, udp_stream; print([name for name in sys.modules if name.startswith('udp_stream.')])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "['udp_stream.base', 'udp_stream.base.version']\n"
    with pytest.raises(AttributeError, match="no attribute 'private_median'"):
        _ = udp_stream.private_median
