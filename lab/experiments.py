"""The papers' figures and tables, computed with the project's own mechanisms: arrays in, tables and findings out.

The output is not private: it has true means and errors of the input. An experiment has `jobs` and `conclude` (tables,
figures, findings). The papers' claims and the words for findings are in `claims.toml`.
"""

from __future__ import annotations

from lab import means, queries, trees, worst
from lab.results import Experiment

_ALL = *means.EXPERIMENTS, *worst.EXPERIMENTS, trees.EXPERIMENT

EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in _ALL}
ON_POSITIONS: dict[str, Experiment] = {experiment.name: experiment for experiment in queries.EXPERIMENTS}
"""They take long, so they run only if they are named."""

NEED_POSITIONS = frozenset({"multi-query"})
"""They have no drawn data, so they need a feed."""
