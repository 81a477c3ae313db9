"""Means of one HAT, user-level eps-DP: one file per mechanism, each with its sensitivity, cost and estimate.

Every mechanism is an integer statistic (in speed quanta), plus discrete Laplace noise, divided by a public number. The
plan side sees counts only; the estimate side sees a plan, the samples and bits.
"""

from udp_stream.mechanisms.means.accuracy import NOBODY, accuracy_of, spread
from udp_stream.mechanisms.means.array_averaging import ArrayAveraging
from udp_stream.mechanisms.means.automatic import plan_automatic
from udp_stream.mechanisms.means.base import MeanMechanism, MeanPlan, MeanQuery
from udp_stream.mechanisms.means.baseline import Baseline
from udp_stream.mechanisms.means.levy import Levy
from udp_stream.mechanisms.means.optimal import Optimal
from udp_stream.mechanisms.means.quantiles import EpsQuantile, FixedQuantile

__all__ = [
    "MECHANISMS",
    "NOBODY",
    "ArrayAveraging",
    "Baseline",
    "EpsQuantile",
    "FixedQuantile",
    "Levy",
    "MeanMechanism",
    "MeanPlan",
    "MeanQuery",
    "Optimal",
    "accuracy_of",
    "plan_automatic",
    "spread",
]

MECHANISMS: dict[str, MeanMechanism] = {
    mechanism.name: mechanism
    for mechanism in (Baseline(), ArrayAveraging(), Levy(), FixedQuantile(), EpsQuantile(), Optimal())
}
"""By the names of the configuration."""
