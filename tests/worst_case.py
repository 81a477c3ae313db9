"""The papers' worst-case rule for caps, written plainly; it has no setting, as Optimal improves on it."""

import numpy as np

from udp_stream.mechanisms.base import SamplesPerPlate
from udp_stream.units import NANO


def worst_case_cap(counts: SamplesPerPlate, epsilon_nano: int) -> int:
    """The count m of least E(m) = 1 - sum G_l / M + m / (eps sum G_l) (arXiv 2405.06261)."""
    return int(counts.descending[int(np.argmin(counts.errors_at_every_count(NANO / epsilon_nano)))])
