"""`mean = "auto"`: the mechanism and cap of least expected error for what its plates pay. Counts only.

**At equal epsilon**, where it is configured. Candidates are Baseline, Optimal, and Array-Averaging with a few caps
among the counts, those of least expected error by formulas that need no packing. Their worst cases come first: a
guess of U/2 is off by at most U/2, so no plan is taken that promises less (where Optimal promises less, none that
promises less than Optimal). Then errors are compared as they are at that epsilon: hypot(noise, spread), the spread as
in `accuracy`. An error of 3 % more than the least is as good to a reader, so of these the one whose plates pay least is
taken: what they do not pay here serves other HATs.

**At equal charge**, where epsilon is automatic: a planner then gives more epsilon where plates pay less of it, so that
they spend the same. A plate with a share w_l of the mean's weights moves it by U w_l and pays epsilon w_l / max w. The
shares add up to 1, so the mean charge of L plates is epsilon / (L max w), and with a mean charge of c the noise
U max w / epsilon is U / (L c): *the same for every grouping and cap*. So the one without bias wins, which is Baseline:
also in the worst case, wherever that noise is at most U/2 (docs/mechanisms/auto.md has the proofs).
Optimal's shares add up to less than 1: less noise, for a bias by its fill that counts cannot tell. It is not weighed.

Levy and the quantile mechanisms are not weighed: they charge every plate in full, spend half of epsilon on an interval,
and counts cannot say what that interval will save. On the recorded feeds they err more than Array-Averaging on each.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from udp_stream.mechanisms.grouping import SamplesPerPlate
from udp_stream.mechanisms.means import accuracy
from udp_stream.mechanisms.means.array_averaging import ArrayAveraging
from udp_stream.mechanisms.means.base import Grouping, MeanPlan
from udp_stream.mechanisms.means.baseline import Baseline
from udp_stream.mechanisms.means.optimal import Optimal
from udp_stream.mechanisms.noise import Cost, expected_noise, noise_of
from udp_stream.mechanisms.range import Range
from udp_stream.mechanisms.statistic_terms import CompareAt

Integers = NDArray[np.int64]

AS_GOOD = 1.03
"""Errors within this factor are as good: far below what a feed of hundreds of HATs could tell apart."""

CAPS_TRIED = 4
"""On the recorded feeds the best of four is within 3 % of the best of all counts in 99 of 100 HATs."""

_ROUGH = 1.03
"""One of the caps may be beyond what is allowed by so much: packing may show that it is not."""

EXACT = 1 + 1e-9
"""Worst cases that are equal but for rounding are equal."""


def plan_automatic(
    counts: SamplesPerPlate, cost: Cost, range: Range, grouping: Grouping, compare_at: CompareAt
) -> MeanPlan:
    """The candidate of least charge among those of least expected error whose worst case is allowed; deterministic.

    >>> counts = SamplesPerPlate(np.array([40, 4, 4, 4]))
    >>> asked = Cost("pure", 10**9), Range(0, 1000), "best-fit"
    >>> [plan_automatic(counts, *asked, compare_at).mechanism for compare_at in ("epsilon", "charge")]
    ['optimal', 'baseline']
    """
    asked = cost, range, grouping
    baseline = Baseline().plan(counts, *asked)
    if compare_at == "charge":
        return baseline
    optimal = Optimal().plan(counts, *asked)
    allowed = EXACT * max(range.width / 2, optimal.error_bound)
    plans = [baseline, optimal]
    for cap in averaging_caps(counts, cost, grouping, allowed / range.width):
        plans.append(ArrayAveraging().plan_with_cap(counts, *asked, cap))
    noise, sizes = noise_of(cost), [plan.noise_bound for plan in plans]
    errors = [
        (noise.error(size, accuracy.spread(plan)), plan)
        for plan, size in zip(plans, sizes, strict=True)
        if plan.bias_bound + size <= allowed
    ]
    good = AS_GOOD * min(error for error, _ in errors)
    return min((plan for error, plan in errors if error <= good), key=_mean_share)


def _mean_share(plan: MeanPlan) -> float:
    """Which part of the cost a plate is charged, on average over the HAT's plates; 1 where each pays all."""
    if plan.moves is None:
        return 1.0
    if plan.noise.power == 1:
        return int(np.add.reduce(plan.moves)) / plan.moves.size / plan.sensitivity
    return float(((plan.moves / plan.sensitivity) ** plan.noise.power).mean())


def averaging_caps(counts: SamplesPerPlate, cost: Cost, grouping: Grouping, allowed: float) -> list[int]:
    """The few counts that are likely the best caps for Array-Averaging, best first; O(L log L).

    All but one have a worst case of at most `allowed`, a share of U, and that one hardly more. By formulas for arrays
    that are all equally full: K = floor(G/m) under WrapAround; under BestFit at least ceil(G/m) and the number of
    plates too large to share.

    >>> averaging_caps(SamplesPerPlate(np.array([30, 6, 6, 5, 5, 4])), Cost("pure", 10**9), "best-fit", allowed=1.0)
    [6, 5, 4, 30]
    """
    caps, total = counts.descending[::-1], counts.total
    kept, squares, products = _sums_at_every_count(caps)
    arrays = kept // caps
    if grouping == "best-fit":
        arrays = np.maximum(-(-kept // caps), counts.plates - (2 * caps).searchsorted(caps, side="right"))
    between = squares / kept**2 - (2 / total) * (products / kept) + int(squares[-1]) / total**2
    within = 1 / kept - 1 / total
    scattered = accuracy.VARIANCE * (accuracy.BETWEEN * between + (1 - accuracy.BETWEEN) * within)
    noise = expected_noise(1, cost) / arrays
    used = kept if grouping == "best-fit" else arrays * caps
    once = np.empty(caps.size, dtype=bool)
    once[0] = True
    np.not_equal(caps[1:], caps[:-1], out=once[1:])
    worst = 1 - used / total + noise
    candidates = (once & (worst <= _ROUGH * allowed)).nonzero()[0]
    # Stable: of caps that are equally good the same one comes first on every machine.
    best = candidates[(noise**2 + scattered)[candidates].argsort(kind="stable")]
    surely = best[worst[best] <= allowed][: CAPS_TRIED - 1].tolist()
    perhaps = [at for at in best[:CAPS_TRIED].tolist() if at not in surely][:1]
    return [int(caps[at]) for at in surely + perhaps]


def _sums_at_every_count(ascending: Integers) -> tuple[Integers, Integers, Integers]:
    """For the cap m at each of the counts, the sums over all plates of G_l, G_l^2 and G_l m_l, G_l = min(m_l, m)."""
    plates = ascending.size
    sums, squares = ascending.cumsum(), ascending * ascending
    above = np.arange(plates - 1, -1, -1)
    upto = squares.cumsum()
    return sums + above * ascending, upto + above * squares, upto + ascending * (sums[-1] - sums)
