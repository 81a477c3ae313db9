"""Losses as the fields of a privacy statement: in epsilon, in rho, or in both, where the accounting was changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from udp_stream.ledger.conversion import epsilon_of
from udp_stream.mechanisms.noise import Measure
from udp_stream.planning.periods import Loss, loss_in, measure_of, name_in
from udp_stream.planning.policy import Policy
from udp_stream.units import NANO

NOISE: dict[Measure, str] = {"pure": "discrete Laplace", "zcdp": "discrete Gaussian"}

RHO_TO_EPSILON = (
    "; a rho, of zero-concentrated differential privacy, is an epsilon with delta by arXiv 2004.00010, Corollary 13, "
    "and adds to a pure epsilon beside it"
)
"""Behind what is said of epsilon alone."""


def unit_of(period: str) -> str:
    """What losses of a period are counted in.

    >>> unit_of("lifetime"), unit_of("lifetime in rho")
    ('epsilon', 'rho')
    """
    return "epsilon" if measure_of(period) == "pure" else "rho"


def measures_in(periods: Collection[str], policy: Policy) -> set[Measure]:
    """In what the losses of these periods are counted; the policy's measure where there are none.

    >>> from udp_stream.adapters.settings import Settings
    >>> sorted(measures_in(["lifetime", "lifetime in rho"], Settings().policy))
    ['pure', 'zcdp']
    """
    return {measure_of(period) for period in periods} or {policy.measure}


def variant_of(periods: Collection[str], policy: Policy) -> str:
    """What is promised by charges in these periods, in the registry's words; by the policy where there are none.

    >>> from udp_stream.adapters.settings import Settings
    >>> variant_of([], Settings().policy), variant_of(["lifetime", "lifetime in rho"], Settings().policy)
    ('Pure DP', 'Approximate DP')
    """
    measures = measures_in(periods, policy)
    if measures == {"pure"}:
        return "Pure DP"
    return "zCDP" if measures == {"zcdp"} and policy.accounting == "zcdp" else "Approximate DP"


def most_of(sums: Mapping[str, Loss], policy: Policy) -> dict[str, float]:
    """The most of any period; of a rho what it is with the policy's delta, which adds to a pure epsilon beside it.

    >>> from udp_stream.adapters.settings import Settings
    >>> most_of({"lifetime": Loss(3 * NANO), "lifetime in rho": Loss(rho_nano=NANO)}, Settings().policy)
    {'epsilon': 7.766217, 'delta': 1e-06, 'rho': 1.0}
    """
    losses = list(sums.values()) or [loss_in(name_in(policy.measure, ""), policy.budget_nano)]
    if not any(loss.rho_nano for loss in losses):
        return {"epsilon": max(losses).epsilon_nano / NANO}

    def epsilon(loss: Loss) -> float:
        return loss.epsilon_nano / NANO + epsilon_of(loss.rho_nano, policy.delta)

    most = max(losses, key=epsilon)
    alone = {} if most.epsilon_nano else {"rho": most.rho_nano / NANO}
    return {"epsilon": epsilon(most), "delta": policy.delta, **alone}


def with_overlapping(loss: Loss) -> dict[str, float]:
    """What a plate can lose by its pings in a period, those of periods that overlap it included.

    >>> with_overlapping(Loss(NANO, 2 * NANO))
    {'epsilon_guaranteed_with_overlapping': 1.0, 'rho_guaranteed_with_overlapping': 2.0}
    """
    amounts = {"epsilon": loss.epsilon_nano, "rho": loss.rho_nano}
    return {f"{unit}_guaranteed_with_overlapping": nano / NANO for unit, nano in amounts.items() if nano}
