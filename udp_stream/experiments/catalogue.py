"""Every experiment, by the name it is asked for."""

from __future__ import annotations

from udp_stream.experiments import means, queries, trees, variance, worst
from udp_stream.experiments.findings import Experiment

_ALL = *means.EXPERIMENTS, variance.EXPERIMENT, worst.CHOP_USER, worst.WORST_CASE, trees.EXPERIMENT

EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in _ALL}

ON_POSITIONS: dict[str, Experiment] = {experiment.name: experiment for experiment in queries.EXPERIMENTS}
"""They take long, so they run only if they are named."""

NEED_POSITIONS = frozenset({"multi-query"})
"""They have no drawn data, so they need a feed."""
