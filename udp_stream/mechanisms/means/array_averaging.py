"""Array-Averaging: the mean of the array means (arXiv 2401.15906, Section III-C).

BestFit. A plate's samples lie in one array, whose mean stays in [0, U]: the sum of the K-bar array means moves by at
most U. (The means are floored to whole quanta, which keeps them in 0..U.)

WrapAround. All K arrays are full, so the mean of their means is the mean of all their samples: sum / (K m). A plate
has at most m samples there, in one array or two: the sum moves by at most U m, the mean by U / K. The papers charge
2U/K, twice what is needed, because they bound the two arrays one by one.

Plate by plate. Under BestFit, n of the w samples of an array move its sum by at most U n, hence the floor of its mean
by at most ceil(U n / w); under WrapAround, n samples among those used move the sum by at most U n.

Plates that the ledger halts. Arrays stay as they are, and each mean is still over the positions that were filled when
charges were fixed (w), whichever plates are left in them: packing anew could put a plate that paid for n of 40 samples
alone into an array of n. An array then counts by the part of it that is left, and the divisor is the sum of these
parts.

Bias. The estimate weighs each sample of array i by 1 / (K-bar w_i) and dropped ones by 0, the sample mean weighs all
by 1/M. The worst case over samples in [0, U] is U times the total variation between the two weightings: for BestFit
U sum_i max(0, 1/K-bar - w_i / M), for WrapAround U (1 - K m / M); with u_i of the w_i left and divisor D the former
becomes U sum_i u_i max(0, 1 / (w_i D) - 1/M).
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.grouping import (
    Arrays,
    SamplesPerPlate,
    best_fit,
    first_samples,
    wrap_around_given,
)
from udp_stream.mechanisms.means.base import Grouping, Integers, MeanPlan, MeanQuery, array_means, narrowed
from udp_stream.mechanisms.noise import Cost
from udp_stream.mechanisms.range import Range


class ArrayAveraging:
    """Mean of array means; the cap is the median of the counts unless another is given.

    >>> counts = SamplesPerPlate(np.array([4, 2, 2]))
    >>> plan = ArrayAveraging().plan_with_cap(counts, Cost("pure", 10**9), Range(0, 100), "best-fit", cap=4)
    >>> plan.divisor, plan.sensitivity, plan.charges.tolist()  # two plates share the second array, and its charge
    (2, 100, [1000000000, 500000000, 500000000])
    """

    name = "array-averaging"

    def plan(self, counts: SamplesPerPlate, cost: Cost, range: Range, grouping: Grouping) -> MeanPlan:
        """The papers' cap: the median, at most a factor two from the least possible noise (their Lemma III.2)."""
        return self.plan_with_cap(counts, cost, range, grouping, counts.median)

    def plan_with_cap(
        self, counts: SamplesPerPlate, cost: Cost, range: Range, grouping: Grouping, cap: int
    ) -> MeanPlan:
        """Array-Averaging with arrays of length `cap`, 1 <= cap <= the largest count."""
        if not 1 <= cap <= counts.largest:
            raise ValueError(f"expected 1 <= cap <= {counts.largest}, got {cap}")
        arrays, width = None, range.width
        if grouping == "best-fit":
            arrays, given = best_fit(counts, cap), np.minimum(counts.by_plate, cap)
            # the floor of a mean moves by at most the ceiling of what the mean moves by
            moves = -(-width * given // arrays.filled.take(arrays.of_plate))
            divisor, sensitivity = arrays.count, width
            excess = float(np.add.reduce(np.maximum(0.0, 1 / arrays.count - arrays.filled / counts.total)))
        else:
            given = wrap_around_given(counts, cap)
            moves = width * given
            divisor, sensitivity = int(given.sum()), width * cap
            excess = 1 - divisor / counts.total
        return MeanPlan(
            mechanism=self.name,
            grouping=grouping,
            counts=counts,
            range=range,
            cost=cost,
            noise_cost=cost,
            cap=cap,
            given=given,
            moves=moves,
            divisor=divisor,
            sensitivity=sensitivity,
            bias_bound=width * excess,
            arrays=arrays,
        )

    def at(self, plan: MeanPlan, cost: Cost) -> MeanPlan:
        """The median, hence the arrays, do not depend on the cost."""
        return replace(plan, cost=cost, noise_cost=cost)

    def for_admitted(self, plan: MeanPlan, admitted: NDArray[np.bool_]) -> MeanPlan:
        """The arrays as they were, without the plates that were halted."""
        total, given = int(plan.counts.by_plate[admitted].sum()), plan.given[admitted]
        if plan.arrays is None:
            return _poured_for_admitted(plan, admitted, total, int(given.sum()))
        arrays = Arrays(plan.cap, plan.arrays.of_plate[admitted], plan.arrays.filled)
        left = np.bincount(arrays.of_plate, weights=given, minlength=arrays.count)
        divisor = float((left / arrays.filled).sum())
        excess = float((left * np.maximum(0.0, 1 / (arrays.filled * divisor) - 1 / total)).sum())
        return narrowed(plan, admitted, arrays=arrays, divisor=divisor, bias_bound=plan.range.width * excess)

    def query(self, plan: MeanPlan, samples: Integers, bits: Bits) -> MeanQuery:  # noqa: ARG002
        """The sum of the array means (BestFit) or of all samples in full arrays (WrapAround)."""
        if plan.grouping == "best-fit":
            return MeanQuery(int(array_means(plan, samples).sum()), plan.sensitivity)
        used = plan.range.above_low(samples[first_samples(plan.counts, plan.given)])
        return MeanQuery(int(used.sum()) + plan.fill, plan.sensitivity)


def _poured_for_admitted(plan: MeanPlan, admitted: NDArray[np.bool_], total: int, used: int) -> MeanPlan:
    """Under WrapAround. Those left may have given nothing, all of it lying beyond the full arrays: then the middle."""
    if used:
        return narrowed(plan, admitted, divisor=used, bias_bound=plan.range.width * (1 - used / total))
    return narrowed(plan, admitted, divisor=1, bias_bound=float(plan.range.width), fill=plan.range.width // 2)
