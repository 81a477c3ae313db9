"""Guesses that need no release, and what they erred by on recorded feeds: what releases are judged by.

*Constant* is one value of the whole city for every HAT; *constant + counts* a line in each HAT's pings per plate. By H3
resolution, least and most over Surat's half hour and five days of Austin, slots of 1 and 6 hours, HATs of at least 10
plates (`docs/measurements.md`). A release that errs more buys nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

Ranges = Mapping[int, tuple[float, float]]
"""Least and most, by H3 resolution."""

MEAN_CONSTANT: Ranges = {4: (0.3, 1.8), 5: (0.7, 2.5), 6: (1.4, 3.4), 7: (3.2, 5.3), 8: (5.4, 7.6), 9: (6.9, 10.4)}
MEAN_COUNTS: Ranges = {4: (0.1, 1.7), 5: (0.7, 2.1), 6: (1.6, 3.2), 7: (2.1, 3.3), 8: (3.4, 5.9), 9: (4.2, 8.1)}
"""Mean absolute errors, km/h."""

VARIANCE_CONSTANT: Ranges = {4: (4, 30), 5: (7, 92), 6: (16, 83), 7: (42, 99), 8: (50, 112), 9: (30, 104)}
"""Mean absolute errors, (km/h)^2."""

CDF_CONSTANT: Ranges = {
    4: (0.016, 0.041),
    5: (0.024, 0.046),
    6: (0.042, 0.062),
    7: (0.075, 0.093),
    8: (0.108, 0.173),
    9: (0.134, 0.196),
}
"""Root mean square errors of a share, over the edges of 20 equal bins of [0, U] and exact zeros."""


def nearest_measured(resolution: int) -> int:
    """The resolution whose figures are taken."""
    return min(max(resolution, min(MEAN_COUNTS)), max(MEAN_COUNTS))


def beside_guess(error_kmh: float, resolution: int) -> str:
    """A sentence about an expected error of means.

    >>> beside_guess(3.4, 7)
    'A guess by counts, which needs no release, errs by 2.1 to 3.3 km/h at H3 7 on the feeds we measured: less.'
    """
    measured = nearest_measured(resolution)
    least, most = MEAN_COUNTS[measured]
    guess = f"A guess by counts, which needs no release, errs by {least} to {most} km/h at H3 {measured}"
    less = ": less" if error_kmh > most and resolution == measured else ""
    return f"{guess} on the feeds we measured{less}."


def guess_column(name: str, errs: Ranges, resolution: int) -> tuple[str, str]:
    """The name of a column of `plan`, and what the guess errs by at the nearest resolution that was measured.

    >>> guess_column("+ counts", MEAN_COUNTS, 7), guess_column("+ counts", MEAN_COUNTS, 12)
    (('+ counts', '2.1-3.3'), ('+ counts at 9', '4.2-8.1'))
    """
    measured = nearest_measured(resolution)
    return name if resolution == measured else f"{name} at {measured}", "{}-{}".format(*errs[measured])
