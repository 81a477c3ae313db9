"""Every experiment, by the name it is asked for."""

from __future__ import annotations

from udp_stream.experiments import chop, many_queries, savings, variance, worst
from udp_stream.experiments import means as mean_itms
from udp_stream.experiments import means as scaling
from udp_stream.experiments.base import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        mean_itms.EXPERIMENT,
        scaling.SAMPLE_SCALING,
        scaling.USER_SCALING,
        variance.EXPERIMENT,
        chop.EXPERIMENT,
        worst.EXPERIMENT,
    )
}
"""Those on speeds and counts."""

ON_POSITIONS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        savings.SAVINGS_RANGE,
        savings.SAVINGS_KDE,
        savings.SAVINGS_KNN,
        many_queries.MULTI_QUERY,
        many_queries.THRESHOLD,
    )
}
"""Those on queries: they take long, so they run where they are named."""

NEED_POSITIONS = frozenset(ON_POSITIONS) - {savings.SAVINGS_KNN.name, many_queries.THRESHOLD.name}
"""The others also have data that are drawn."""
