"""Levy: array means projected to a private interval around their median (arXiv 2401.15906, Section III-D)."""

from __future__ import annotations

import math

import numpy as np

from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.grouping import wrap_around_count
from udp_stream.mechanisms.means._projected import Projected, interval_cost, touched
from udp_stream.mechanisms.means.base import Integers, MeanPlan
from udp_stream.mechanisms.noise.exponential import exponential_choices

GAMMA = 0.2
"""The probability with which the array means may miss the concentration radius; the paper's value."""


def concentration_radius(plan: MeanPlan) -> int:
    """tau = U sqrt(log(2K/gamma) / (2 m)) in quanta, rounded up, K as under WrapAround; public.

    >>> from udp_stream.mechanisms.grouping import SamplesPerPlate
    >>> from udp_stream.mechanisms.noise import Cost
    >>> from udp_stream.mechanisms.range import Range
    >>> plan = Levy().plan(SamplesPerPlate(np.full(20, 50)), Cost("pure", 10**9), Range(0, 1000), "best-fit")
    >>> concentration_radius(plan)
    231
    """
    count = wrap_around_count(plan.counts, plan.cap)
    return math.ceil(plan.range.width * math.sqrt(math.log(2 * count / GAMMA) / (2 * plan.cap)))


class Levy(Projected):
    """The median's bin costs eps/2 by the exponential mechanism, the projected mean eps/2.

    Bins of width tau over [0, U]; penalty of a bin: max(#means in bins to its left, #to its right), which one array
    moves by at most one; under WrapAround a plate moves two arrays.

    >>> import os
    >>> from udp_stream.mechanisms.grouping import SamplesPerPlate
    >>> from udp_stream.mechanisms.noise import Cost
    >>> from udp_stream.mechanisms.range import Range
    >>> plan = Levy().plan(SamplesPerPlate(np.full(20, 50)), Cost("pure", 10**11), Range(0, 1000), "best-fit")
    >>> Levy().query(plan, np.full(1000, 500), os.urandom).projected_to
    (231, 923)
    """

    name = "levy"

    def intervals(self, plan: MeanPlan, means: Integers, bits: Bits, draws: int) -> tuple[Integers, Integers]:
        """Private median bins, intervals of width 3 tau around their centres, clipped to [0, U]."""
        tau = concentration_radius(plan)
        # + 1, as both 0 and U are values.
        bins = -(-(plan.range.width + 1) // tau)
        occupancy = np.bincount(np.minimum(means // tau, bins - 1), minlength=bins)
        left = np.cumsum(occupancy) - occupancy
        penalties = np.maximum(left, means.size - left - occupancy).tolist()
        moved, cost = touched(plan.grouping), interval_cost(plan.cost)
        chosen = np.array(exponential_choices(bits, penalties, [1] * bins, means.size, moved, cost, draws))
        centre = chosen * tau + tau // 2
        low, high = np.maximum(0, centre - 3 * tau // 2), np.minimum(plan.range.width, centre + 3 * tau // 2)
        # the last bin may reach beyond U, so its centre less a radius may, too
        return np.minimum(low, plan.range.width), high
