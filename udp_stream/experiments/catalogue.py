"""Every experiment, by the name it is asked for."""

from __future__ import annotations

from udp_stream.experiments import chop, mean_itms, scaling, variance, worst
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
