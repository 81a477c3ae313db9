"""A private statistic of speeds at hand: for a notebook, without a ledger.

Privacy unit: license plate. Neighbours: swap-values, so who is in the table, and with how many
speeds, is public. Guaranteed: a plate loses at most what it is charged, and no plate more than
`epsilon`, to *this call* (arXiv 2401.15906 and 2405.06261 for means and variances, 2409.18573 for
CDFs). Nothing remembers the call: losses of calls over the same plates add up; a promise over time
needs a ledger (`udp-stream replay`). Bits come from the operating system, so two calls give two
answers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from msgspec.structs import replace

from udp_stream.base.arrays import Integers
from udp_stream.base.units import NANO, QUANTA_PER_KMH, nano_allowance
from udp_stream.mechanisms.cdf import bins_from_edges, equal_bins
from udp_stream.planning.plan import plan_hat, terms_of
from udp_stream.planning.policy import Grouping, Policy
from udp_stream.release.pipeline import estimate_hats
from udp_stream.release.record import statistics
from udp_stream.settings import EPSILON_MAX, EPSILON_MIN, Settings

Speeds = Mapping[str, Sequence[float]]
"""Speeds in km/h by plate, each plate's in the order of time; one or more plates, each with a
speed."""

Mechanism = Literal[
    "auto", "baseline", "array-averaging", "levy", "fixed-quantile", "eps-quantile", "optimal"
]
"""The mechanisms that need nothing but the speeds; "forecast-clip" needs a forecast, so earlier
releases."""


@dataclass(frozen=True, slots=True)
class PrivateMean:
    """A mean in km/h, its 95 % interval (noise and likely bias), and epsilon by plate."""

    value_kmh: float
    interval95_kmh: tuple[float, float]
    mechanism: str
    charges: dict[str, float]


@dataclass(frozen=True, slots=True)
class PrivateVariance:
    """A variance in (km/h)^2, divided by the number of samples, and epsilon by plate."""

    value_kmh2: float
    expected_abs_error_kmh2: float
    mechanism: str
    charges: dict[str, float]


@dataclass(frozen=True, slots=True)
class PrivateCdf:
    """The share of speeds at or below each edge (km/h), non-decreasing, the last 1; the error as a
    share."""

    edges_kmh: tuple[float, ...]
    values: tuple[float, ...]
    expected_rms_error: float
    branching: tuple[int, ...]
    charges: dict[str, float]


def private_mean(
    speeds: Speeds,
    *,
    epsilon: float,
    max_kmh: float,
    mechanism: Mechanism = "auto",
    grouping: Grouping = "best-fit",
) -> PrivateMean:
    """Release the mean of all speeds, user-level epsilon-DP (arXiv 2401.15906).

    Args:
        speeds: Speeds in km/h by plate, each plate's in the order of time.
        epsilon: The most that any plate loses to this call, from 1e-6 to 1000.
        max_kmh: U: faster speeds count as U. It has to be chosen without looking at the speeds.
        mechanism: The mechanism; "auto" takes that of least expected error for these counts.
        grouping: How plates fill arrays, where the mechanism averages arrays.

    Returns:
        The mean in km/h with its 95 % interval, the mechanism, and what each plate lost.

    Raises:
        ValueError: For an empty table, a plate without a speed, a speed that is negative or no
            number, or an argument out of its range.

    >>> speeds = {f"bus {i}": [20.0 + i % 5] * 40 for i in range(50)}
    >>> mean = private_mean(speeds, epsilon=1.0, max_kmh=65)
    >>> 0 <= mean.value_kmh <= 65, max(mean.charges.values()) <= 1.0, len(mean.charges)
    (True, True, 50)
    """
    _require(
        mechanism in get_args(Mechanism),
        "mechanism",
        f"one of {', '.join(get_args(Mechanism))}",
        mechanism,
    )
    _require(
        grouping in get_args(Grouping),
        "grouping",
        f"one of {', '.join(get_args(Grouping))}",
        grouping,
    )
    policy = replace(_policy(max_kmh), mean=mechanism, grouping=grouping)
    mean, charges = _released(speeds, policy, "mean", epsilon)
    return PrivateMean(mean.value_kmh, mean.interval95_kmh, mean.mechanism, charges)


def private_variance(speeds: Speeds, *, epsilon: float, max_kmh: float) -> PrivateVariance:
    """Release the variance of all speeds, user-level epsilon-DP (arXiv 2405.06261).

    Args:
        speeds: Speeds in km/h by plate, each plate's in the order of time.
        epsilon: The most that any plate loses to this call.
        max_kmh: U: faster speeds count as U. It has to be chosen without looking at the speeds.

    Returns:
        The variance in (km/h)^2 with its expected error, the mechanism, and what each plate lost.

    Raises:
        ValueError: As `private_mean`.

    >>> speeds = {f"bus {i}": [20.0 + i % 5] * 40 for i in range(50)}
    >>> private_variance(speeds, epsilon=1.0, max_kmh=65).value_kmh2 >= 0
    True
    """
    variance, charges = _released(speeds, _policy(max_kmh), "variance", epsilon)
    return PrivateVariance(
        variance.value_kmh2, variance.expected_abs_error_kmh2, variance.mechanism, charges
    )


def private_cdf(
    speeds: Speeds,
    *,
    epsilon: float,
    max_kmh: float,
    bins: Literal["auto"] | int | Sequence[float] = "auto",
) -> PrivateCdf:
    """Release the CDF of all speeds, user-level epsilon-DP (arXiv 2409.18573).

    Args:
        speeds: Speeds in km/h by plate, each plate's in the order of time.
        epsilon: The most that any plate loses to this call.
        max_kmh: U: faster speeds count as U. It has to be chosen without looking at the speeds.
        bins: A number of equal bins, or edges in km/h from 0 to U; a first edge that is given twice
            gives exact zeros a bin of their own. "auto" goes by counts and epsilon.

    Returns:
        Edges in km/h and the share of speeds at or below each, non-decreasing up to 1; the expected
        error as a share, the tree's branching, and what each plate lost.

    Raises:
        ValueError: As `private_mean`, and for bins that are not valid.

    >>> speeds = {f"bus {i}": [20.0 + i % 5] * 40 for i in range(50)}
    >>> cdf = private_cdf(speeds, epsilon=2.0, max_kmh=65, bins=13)
    >>> len(cdf.values) == len(cdf.edges_kmh), cdf.values[-1], list(cdf.values) == sorted(cdf.values)
    (True, 1.0, True)
    """
    policy = _policy(max_kmh)
    if isinstance(bins, (int, np.integer)):
        bins = int(bins)
        _ = equal_bins(bins, max_kmh)
    elif not isinstance(bins, str):
        bins = tuple(map(float, bins))
        _ = bins_from_edges(bins, max_kmh)
    else:
        _require(bins == "auto", "bins", "auto, a number of bins, or edges in km/h", bins)
    cdf, charges = _released(speeds, replace(policy, bins=bins), "cdf", epsilon)
    return PrivateCdf(cdf.edges_kmh, cdf.values, cdf.expected_rms_error, cdf.branching, charges)


def _policy(max_kmh: float) -> Policy:
    """The defaults, with this U, under pure accounting: a call's noise is fixed by its epsilon,
    never by a budget."""
    _require(1 <= max_kmh <= 1000, "max_kmh", "1 to 1000", max_kmh)
    return replace(
        Settings().policy,
        accounting="pure",
        delta=0.0,
        max_speed=int(max_kmh * QUANTA_PER_KMH),
        prices={},
    )


def _released(
    speeds: Speeds, policy: Policy, statistic: str, epsilon: float
) -> tuple[Any, dict[str, float]]:
    """The record of a statistic, and what each plate lost; in the order of names, which tells
    nothing."""
    _require(
        EPSILON_MIN <= epsilon <= EPSILON_MAX,
        "epsilon",
        f"{EPSILON_MIN:g} to {EPSILON_MAX:g}",
        epsilon,
    )
    terms = terms_of(policy, {statistic: nano_allowance(epsilon)})
    plates = sorted(speeds)
    samples = [
        _quanta(speeds[plate], number, policy.max_speed) for number, plate in enumerate(plates)
    ]
    _require(bool(samples), "speeds", "at least one plate", "none")
    plan = plan_hat(np.array([of_plate.size for of_plate in samples], np.int64), terms, policy)
    (estimate,) = estimate_hats([plan], [np.concatenate(samples)], os.urandom)
    charges = dict(zip(plates, (plan.charges / NANO).tolist(), strict=True))
    return statistics(plan, estimate)[statistic], charges


def _quanta(speeds: Sequence[float], number: int, largest: int) -> Integers:
    """A plate's speeds on the lattice; a plate that is wrong is named by its place, a speed by
    nothing."""
    where = f"speeds of plate {number} (by name)"
    try:
        kmh = np.asarray(speeds, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        # `from None`: numpy's text quotes the speed, and a traceback would show it.
        raise ValueError(f"{where}: expected a list of numbers, got something else") from None
    _require(kmh.ndim == 1 and kmh.size > 0, where, "a list of at least one", f"shape {kmh.shape}")
    _require(
        bool(np.all(np.isfinite(kmh)) and np.all(kmh >= 0)), where, "finite and >= 0", "another"
    )
    return np.minimum(np.rint(kmh * QUANTA_PER_KMH), largest).astype(np.int64)


def _require(holds: bool, name: str, rule: str, got: object) -> None:
    if not holds:
        raise ValueError(f"{name}: expected {rule}, got {got}")
