"""The worst-case optimum with a public fill (THEORY of this project; the papers' rule is arXiv 2405.06261's E(m)).

Every plate gives its first min(m_l, m) samples; the M - sum G_l that are dropped are replaced by a public constant c
instead of being renormalised away: (sum of kept + c * dropped) / M.

* Sensitivity of the sum: U max G_l = U m; plate l moves it by U G_l.
* Worst-case bias: max(c, U - c) (1 - sum G_l / M), reached when all dropped samples are at one end.
* So the worst-case error is E(m) = w (1 - sum G_l / M) + U m / (M eps), with w = max(c, U - c). Its slope at m is
  (-w #{l: m_l > m} + U / eps) / M: it falls while more than U / (w eps) plates exceed m, and rises after. The minimiser
  is therefore the k-th largest count, k = ceil(U / (w eps)); for c = U/2 that is the ceil(2/eps)-th largest.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from udp_stream.ledger.port import Bits
from udp_stream.mechanisms.grouping import SamplesPerPlate, within_cap
from udp_stream.mechanisms.means.base import Grouping, Integers, MeanPlan, MeanQuery, narrowed
from udp_stream.units import NANO


class Optimal:
    """Capped sum with a public fill. With fewer than k plates the constant alone would be better in the worst case.

    In that case the cap is the smallest count, so that every plate still has its say; the error bound, which the plan
    states, then exceeds `max(c, U - c)`.
    """

    name = "optimal"

    def plan(self, counts: SamplesPerPlate, epsilon_nano: int, max_speed: int, grouping: Grouping) -> MeanPlan:  # noqa: ARG002
        """Fill with U/2, the constant whose worst error is least when nothing is known."""
        return self.plan_with_fill(counts, epsilon_nano, max_speed, fill=max_speed // 2)

    def plan_with_fill(self, counts: SamplesPerPlate, epsilon_nano: int, max_speed: int, fill: int) -> MeanPlan:
        """The cap of least worst-case error for this fill (0 <= fill <= U, public: a constant or an old release)."""
        k = -(-max_speed * NANO // (max(fill, max_speed - fill) * epsilon_nano))
        cap = int(counts.descending[min(k, counts.plates) - 1])
        return self._filled(counts, epsilon_nano, max_speed, fill, cap)

    def plan_with_cap(
        self,
        counts: SamplesPerPlate,
        epsilon_nano: int,
        max_speed: int,
        grouping: Grouping,  # noqa: ARG002
        cap: int,
    ) -> MeanPlan:
        """With this cap, and the fill U/2."""
        return self._filled(counts, epsilon_nano, max_speed, max_speed // 2, cap)

    def _filled(self, counts: SamplesPerPlate, epsilon_nano: int, max_speed: int, fill: int, cap: int) -> MeanPlan:
        given = np.minimum(counts.by_plate, cap)
        dropped = 1 - int(given.sum()) / counts.total
        return MeanPlan(
            mechanism=self.name,
            grouping=None,
            counts=counts,
            max_speed=max_speed,
            epsilon_nano=epsilon_nano,
            noise_epsilon_nano=epsilon_nano,
            cap=cap,
            given=given,
            moves=max_speed * given,
            divisor=counts.total,
            sensitivity=max_speed * cap,
            fill=fill,
            bias_bound=max(fill, max_speed - fill) * dropped,
        )

    def for_admitted(self, plan: MeanPlan, admitted: NDArray[np.bool_]) -> MeanPlan:
        """The same cap and fill: a smaller cap would drop samples for which the noise has been scaled already."""
        total = int(plan.counts.by_plate[admitted].sum())
        dropped = 1 - int(plan.given[admitted].sum()) / total
        return narrowed(
            plan,
            admitted,
            divisor=total,
            bias_bound=max(plan.fill, plan.max_speed - plan.fill) * dropped,
        )

    def query(self, plan: MeanPlan, samples: Integers, bits: Bits) -> MeanQuery:  # noqa: ARG002
        """The sum of the kept samples and the fill of the dropped ones."""
        kept = samples[within_cap(plan.counts, plan.cap)]
        return MeanQuery(int(kept.sum()) + plan.fill * (samples.size - kept.size), plan.sensitivity)
