"""Every numeric key at extreme values: refused by name before anything is charged, or the whole
road works."""

import os
from itertools import product

import msgspec
import numpy as np
import pytest

from streams.kafka import REQUEST_BYTES_MAX
from streams.worker import BINS_MAX, require_records_fit
from tests.forms import PURE_ENV, long_rows
from tests.runtime.harness import CONFIG
from tests.unit.test_keys import runs
from udp_stream.base.errors import ConfigError
from udp_stream.base.units import NANO, QUANTA_PER_KMH
from udp_stream.mechanisms.base import Range, SamplesPerPlate
from udp_stream.mechanisms.cdf import SHARE_MIN, best_tree, level_budgets, plan_cdf
from udp_stream.mechanisms.means import MECHANISMS
from udp_stream.mechanisms.noise import DRAWABLE_NANO_MIN, DiscreteLaplace, lattice_of, pure
from udp_stream.mechanisms.statistics import STATISTICS, priced
from udp_stream.mechanisms.variance import plan_variance, variance_query
from udp_stream.planning.plan import plan_hat, terms_of
from udp_stream.planning.policy import EPSILON_NANO_MAX, FIXED_NANO_MIN
from udp_stream.release.pipeline import estimate_hats
from udp_stream.settings import load
from udp_stream.windows.tables import PINGS_MAX


@pytest.mark.parametrize(
    ("epsilon", "grouping"),
    long_rows(
        [("1e-6", "best-fit"), ("1000", "wrap-around")],
        product(["1e-6", "1000"], ["best-fit", "wrap-around"]),
    ),
)
@pytest.mark.parametrize("mean", ["auto", *MECHANISMS])
def test_the_least_and_the_largest_epsilon_work_with_every_mechanism(
    mean, grouping, epsilon, tmp_path
):
    flags = [
        f"release.{name}={epsilon}" for name in ("mean_epsilon", "variance_epsilon", "cdf_epsilon")
    ]
    for speed in ("1", "1000"):
        speeds = f"speed.max_kmh={speed}", "speed.reject_above_kmh=2000"
        mechanism = f"release.mean={mean}", f"release.grouping={grouping}"
        runs(tmp_path / speed, [*CONFIG, "budget.epsilon=1e6", *flags, *mechanism, *speeds])


@pytest.mark.parametrize("bins", [2, 3, 17, 200, 1729, 4095, 4096, 65000, 65536])
def test_the_least_epsilon_leaves_every_level_of_a_tree_noise_that_can_be_drawn(bins):
    """Four levels get 0.24 of epsilon each, at least; of a tree that was asked for, 0.04."""
    assert min(level_budgets(best_tree(bins), FIXED_NANO_MIN)) >= 0.24 * FIXED_NANO_MIN
    assert SHARE_MIN[1] * FIXED_NANO_MIN > DRAWABLE_NANO_MIN


@pytest.mark.parametrize("branching", ["[2, 2, 2, 2, 2, 2]", "[64]", "[2, 40]", "[40, 2]"])
@pytest.mark.parametrize(
    ("cdf", "accounting"), [("1e-6", "pure"), ("1000", "pure"), ("0.001", "approximate")]
)
def test_a_tree_that_was_asked_for_works_at_the_least_and_the_largest_epsilon(
    tmp_path, branching, cdf, accounting
):
    flags = (
        f"release.branching={branching}",
        f"release.cdf_epsilon={cdf}",
        f"budget.accounting={accounting}",
    )
    runs(tmp_path / "run", [*CONFIG, "budget.epsilon=2000", *flags])


@pytest.mark.parametrize("max_kmh", ["65.0001", "65.3", "64.9999"])
def test_edges_end_where_the_settings_say_that_speeds_are_clamped(tmp_path, max_kmh):
    """Speeds are multiples of 1/4096 km/h, and so is the largest in plans: these numbers are not."""
    flags = (
        f"speed.max_kmh={max_kmh}",
        "release.cdf_epsilon=0.5",
        f"release.bins=[0, 30, {max_kmh}]",
    )
    runs(tmp_path / "run", [*CONFIG, *flags])


@pytest.mark.parametrize(
    ("epsilon_nano", "grouping"),
    long_rows(
        [(FIXED_NANO_MIN, "best-fit"), (EPSILON_NANO_MAX, "wrap-around")],
        product([FIXED_NANO_MIN, EPSILON_NANO_MAX], ["best-fit", "wrap-around"]),
    ),
)
@pytest.mark.parametrize("mean", ["auto", *MECHANISMS])
def test_whoever_is_halted_the_rest_can_have_its_noise(mean, grouping, epsilon_nano):
    """Counts as unequal as they come: what the small ones paid still is enough for noise once the
    largest is gone."""
    policy = load(None, [f"release.mean={mean}", f"release.grouping={grouping}"], PURE_ENV).policy
    counts = np.array([1, 1, 2, 3, 70, 5_000, 1_000_000])
    plan = plan_hat(counts, terms_of(policy, dict.fromkeys(priced(), epsilon_nano)), policy)
    for largest in range(1, counts.size + 1):
        final = plan.subset(np.arange(counts.size) < largest)
        (estimate,) = estimate_hats(
            [final], [np.zeros(int(counts[:largest].sum()), np.int64)], os.urandom
        )
        assert list(estimate) == priced()


def test_so_many_samples_of_one_plate_enter_a_cdf_that_its_noise_can_be_drawn():
    plan = plan_cdf(SamplesPerPlate(np.full(10, 10**6)), pure(FIXED_NANO_MIN), 65.0, "auto")
    assert plan.cap == min(plan.budgets_nano) // DRAWABLE_NANO_MIN and plan.kept == 10 * plan.cap


@pytest.mark.parametrize(
    "flags",
    [
        ("release.bins=32769",),
        ("release.bins=auto", "release.branching=[182, 182]"),
        (f"release.bins={[0, *np.linspace(0, 65, 32_770).tolist()]}",),
    ],
    ids=["a number", "a tree", "edges"],
)
def test_a_worker_refuses_cdfs_whose_records_no_broker_takes(flags):
    """Their plates would be charged first."""
    with pytest.raises(ConfigError, match="at most 32768 bins on Kafka, got 3"):
        require_records_fit(load(None, ["release.cdf_epsilon=1", *flags], PURE_ENV).policy)
    require_records_fit(load(None, ["release.cdf_epsilon=0", *flags], PURE_ENV).policy)


@pytest.mark.parametrize("max_kmh", [65.0, 104.6, 1000.0])
def test_the_largest_cdf_that_a_worker_takes_fits_into_a_record(max_kmh):
    require_records_fit(
        load(None, ["release.cdf_epsilon=1", f"release.bins={BINS_MAX}"], PURE_ENV).policy
    )
    plan = plan_cdf(SamplesPerPlate(np.full(10, 10)), pure(NANO), max_kmh, BINS_MAX)
    values = np.linspace(1 / 3, 1, BINS_MAX + 1).tolist()
    assert (
        len(msgspec.json.encode(STATISTICS["cdf"].record(plan, values))) < REQUEST_BYTES_MAX - 2**16
    )


@pytest.mark.parametrize("pairs", [PINGS_MAX - 1, 2**40, PINGS_MAX**2 // 4])
@pytest.mark.parametrize("kmh", [1, 65, 1000])
def test_a_variance_of_the_largest_slot_fits_on_its_lattice(kmh, pairs):
    """Half of the samples at either end of the scale, at the largest epsilon: 63 bits hold that and
    its noise."""
    square = (kmh * QUANTA_PER_KMH) ** 2
    lattice = lattice_of(square * pairs, pure(EPSILON_NANO_MAX))
    assert lattice.project(square * PINGS_MAX**2 // 4) + 64 * lattice.t < 2**63


def test_a_variance_of_many_fast_samples_is_exact():
    speed, count = 1000 * QUANTA_PER_KMH, 2**20
    plan = plan_variance(
        SamplesPerPlate(np.array([count, count])), pure(NANO), Range(0, speed), cap=count
    )
    asked = variance_query(plan, np.repeat([0, speed], count))
    assert asked.statistic == speed**2 * count**2


@pytest.mark.parametrize("noise", [1e3, 1e9, 1e12, 1e14])
def test_an_expected_error_is_never_below_zero_or_above_half_of_the_scale(noise):
    assert 0 < DiscreteLaplace().clamped_error(noise, 0.0, 1000) <= 500.1
    assert DiscreteLaplace().clamped_error(1e12, 0.0, 1000) == pytest.approx(500, rel=1e-5)
