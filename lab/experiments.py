"""The table of the papers' experiments, computed with the project's own mechanisms: arrays in,
tables and findings out.

A row: its name, what it is about, its points (data sets, mechanisms, a sweep), the rows of a point,
and what follows from all rows: figures, and findings on the claims of `claims.toml`. Tables have
true means and errors of the input: they are not private.
"""

from __future__ import annotations

from functools import partial
from itertools import product

from lab import means, queries, trees, worst
from lab.results import Experiment

SCALING = {"samples": "ten times the samples of every plate", "users": "ten times the plates"}
SAVINGS = {
    queries.RANGE: "a range count",
    queries.KDE: "a density",
    queries.KNN: "a query of the nearest",
}

_ALL = (
    Experiment(
        "mean-itms",
        "errors of the mean mechanisms on recorded pings",
        means.itms_points,
        means.errors_of,
        means.itms_conclude,
    ),
    *(
        Experiment(
            f"{what[:-1]}-scaling",
            f"{about}, Gaussian speeds",
            partial(means.scaling_points, what),
            means.errors_of,
            partial(means.scaling_conclude, what),
        )
        for what, about in SCALING.items()
    ),
    Experiment(
        "variance",
        "errors of the variance, and the theorems on it",
        means.variance_points,
        means.errors_of,
        means.variance_conclude,
    ),
    Experiment(
        "chop-user",
        "loss under composition before and after suppression",
        worst.chop_points,
        worst.chop_rows,
        worst.chop_conclude,
    ),
    Experiment(
        "worst-case",
        "E(m), the best cap, and the optimum with a public fill",
        worst.worst_points,
        worst.worst_rows,
        worst.worst_conclude,
    ),
    Experiment(
        "cdf-trees",
        "tree-based CDFs: the theorems, and least squares beside them",
        trees.tree_points,
        trees.rows_of,
        trees.tree_conclude,
    ),
)
EXPERIMENTS = {experiment.name: experiment for experiment in _ALL}

_ON_POSITIONS = (
    *(
        Experiment(
            trial.name,
            f"what {what} by elimination leaves of a budget",
            partial(queries.savings_points, trial),
            partial(queries.savings_rows, trial),
            partial(queries.savings_conclude, trial),
        )
        for trial, what in SAVINGS.items()
    ),
    Experiment(
        "multi-query",
        "what savings buy over many queries, by Algorithm 3",
        queries.multi_points,
        queries.multi_rows,
        queries.multi_conclude,
    ),
    Experiment(
        "threshold",
        "what a threshold query by elimination leaves of a budget",
        lambda _: product(queries.THRESHOLD.values, queries.COUNT_RHOS),
        queries.threshold_rows,
        queries.threshold_conclude,
    ),
)
ON_POSITIONS = {experiment.name: experiment for experiment in _ON_POSITIONS}
"""Experiments that take long: they run only if they are named."""

NEED_POSITIONS = frozenset({"multi-query"})
"""Experiments without drawn data: they need a feed."""
