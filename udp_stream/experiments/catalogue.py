"""Every experiment, by the name it is asked for."""

from __future__ import annotations

from udp_stream.experiments import means, queries, trees, variance, worst
from udp_stream.experiments.findings import Experiment

_ALL = *means.EXPERIMENTS, variance.EXPERIMENT, worst.CHOP_USER, worst.WORST_CASE, trees.EXPERIMENT

EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in _ALL}
"""Experiments on speeds and counts, and on trees of counts: they need no data."""

ON_POSITIONS: dict[str, Experiment] = {experiment.name: experiment for experiment in queries.EXPERIMENTS}
"""Experiments on queries: they take long, so they run where they are named."""

NEED_POSITIONS = frozenset({"multi-query"})
"""Experiments on positions that have no drawn data, so that they need a feed."""
