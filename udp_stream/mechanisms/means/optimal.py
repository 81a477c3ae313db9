"""The worst-case optimum with a public fill (THEORY of this project; the papers' rule is arXiv 2405.06261's E(m)).

Every plate gives its first min(m_l, m) samples; the M - sum G_l that are dropped are replaced by a public constant c,
counted from the range's low end like the samples, instead of being renormalised away: (sum of kept + c * dropped) / M.

* Sensitivity of the sum: U max G_l = U m; plate l moves it by U G_l.
* Worst-case bias: max(c, U - c) (1 - sum G_l / M), reached when all dropped samples are at one end.
* So the worst-case error is E(m) = w (1 - sum G_l / M) + U m / (M eps), with w = max(c, U - c). Its slope at m is
  (-w #{l: m_l > m} + U / eps) / M: it falls while more than U / (w eps) plates exceed m, and rises after. The minimiser
  is therefore the k-th largest count, k = ceil(U / (w eps)); for c = U/2 that is the ceil(2/eps)-th largest. Under rho
  the expected size of noise for a sensitivity of one, 1 / sqrt(pi rho), stands for 1 / eps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.grouping import SamplesPerPlate, within_cap
from udp_stream.mechanisms.means.base import Grouping, Integers, MeanPlan, MeanQuery, narrowed
from udp_stream.mechanisms.noise import Cost, noise_of
from udp_stream.mechanisms.range import Range


class Optimal:
    """Capped sum with a public fill. With fewer than k plates the constant alone would be better in the worst case.

    In that case the cap is the smallest count, so that every plate still has its say; the error bound, which the plan
    states, then exceeds `max(c, U - c)`.

    >>> counts = SamplesPerPlate(np.array([9, 3, 3, 1]))
    >>> plan = Optimal().plan(counts, Cost("pure", 10**9), Range(0, 100), "best-fit")
    >>> plan.cap, plan.used_samples, plan.fill, plan.bias_bound  # the second largest count; 6 of 16 are filled by 50
    (3, 10, 50, 18.75)
    """

    name = "optimal"

    def plan(self, counts: SamplesPerPlate, cost: Cost, range: Range, grouping: Grouping) -> MeanPlan:  # noqa: ARG002
        """Fill with the middle of the range, the constant whose worst error is least when nothing is known."""
        return self.plan_with_fill(counts, cost, range, fill=range.low + range.width // 2)

    def plan_with_fill(self, counts: SamplesPerPlate, cost: Cost, range: Range, fill: int) -> MeanPlan:
        """The cap of least worst-case error for this fill (in the range, public: a constant or an old release)."""
        above, width = fill - range.low, range.width
        noise = noise_of(cost)
        over, under = noise.unit_scale(cost)
        # the noise's expected size for each of its scale: 1 for Laplace's
        size, by = noise.expected_abs(1.0).as_integer_ratio()
        # in integers: rounding must not decide which plate's count is the cap
        k = -(-width * over * size // (max(above, width - above) * under * by))
        cap = int(counts.descending[min(k, counts.plates) - 1])
        return self._filled(counts, cost, range, above, cap)

    def plan_with_cap(
        self,
        counts: SamplesPerPlate,
        cost: Cost,
        range: Range,
        grouping: Grouping,  # noqa: ARG002
        cap: int,
    ) -> MeanPlan:
        """With this cap, filled with the middle of the range too."""
        return self._filled(counts, cost, range, range.width // 2, cap)

    def _filled(self, counts: SamplesPerPlate, cost: Cost, range: Range, above: int, cap: int) -> MeanPlan:
        """With a fill that lies this far above the range's low end."""
        given, width = np.minimum(counts.by_plate, cap), range.width
        dropped = 1 - int(given.sum()) / counts.total
        return MeanPlan(
            mechanism=self.name,
            grouping=None,
            counts=counts,
            range=range,
            cost=cost,
            noise_cost=cost,
            cap=cap,
            given=given,
            moves=width * given,
            divisor=counts.total,
            sensitivity=width * cap,
            fill=above,
            bias_bound=max(above, width - above) * dropped,
        )

    def at(self, plan: MeanPlan, cost: Cost) -> MeanPlan:
        """With the cap that is best at it."""
        return self.plan(plan.counts, cost, plan.range, "best-fit")

    def for_admitted(self, plan: MeanPlan, admitted: NDArray[np.bool_]) -> MeanPlan:
        """The same cap and fill: a smaller cap would drop samples for which the noise has been scaled already."""
        total = int(plan.counts.by_plate[admitted].sum())
        dropped = 1 - int(plan.given[admitted].sum()) / total
        return narrowed(
            plan,
            admitted,
            divisor=total,
            bias_bound=max(plan.fill, plan.range.width - plan.fill) * dropped,
        )

    def query(self, plan: MeanPlan, samples: Integers, bits: Bits) -> MeanQuery:  # noqa: ARG002
        """The sum of the kept samples and the fill of the dropped ones."""
        kept = plan.range.above_low(samples[within_cap(plan.counts, plan.cap)])
        return MeanQuery(int(kept.sum()) + plan.fill * (samples.size - kept.size), plan.sensitivity)
