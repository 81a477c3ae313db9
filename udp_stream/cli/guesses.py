"""Guesses that need no release: what releases are judged by, and what they erred by on recorded feeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Ranges = Mapping[int, tuple[float, float]]
"""By H3 resolution: least and most over Surat's half hour and five days of Austin, slots of 1 and 6 hours
(`docs/measurements.md`)."""


@dataclass(frozen=True, slots=True)
class Guess:
    """What anyone can guess of a statistic: the constant, one value of the whole city for every HAT; for means also
    constant + counts, a line in what records say of each HAT's counts.

    `errs` is the constant's error and `counts_err` that of constant + counts, weighed by pings, over the HATs of at
    least 10 plates. The better of both is the guess to beat: a release that errs more buys nothing.
    """

    name: str
    unit: str
    errs: Ranges
    counts_err: Ranges | None = None

    def range_at(self, resolution: int) -> tuple[float, float]:
        """Least and most of the constant at the nearest resolution that was measured."""
        return self.errs[nearest_measured(resolution)]

    def counts_at(self, resolution: int) -> tuple[float, float]:
        """The same of constant + counts; the constant's where counts were not measured."""
        return (self.counts_err or self.errs)[nearest_measured(resolution)]

    def to_beat(self, resolution: int) -> tuple[float, float]:
        """The same of the better guess.

        >>> ONE_MEAN.to_beat(7), ONE_MEAN.to_beat(6)
        ((2.1, 3.3), (1.4, 3.2))
        """
        (low, high), (counts_low, counts_high) = self.range_at(resolution), self.counts_at(resolution)
        return min(low, counts_low), min(high, counts_high)

    def verdict(self, resolution: int, least: float, most: float, advice: str) -> str:
        """A mean error's likely least and most, beside those of both guesses; `advice` where it is worse.

        Where the guesses were not measured there is no verdict.

        >>> ONE_MEAN.verdict(7, 3.0, 3.0, "").partition(": ")[2]
        'these releases are about as good as a guess.'
        """
        (low, high), (counts_low, counts_high) = self.range_at(resolution), self.counts_at(resolution)
        better, worse = self.to_beat(resolution)
        measured = nearest_measured(resolution)
        known = resolution == measured
        where = "this resolution on the feeds we measured" if known else f"resolution {measured}"
        guesses = (
            f"The guess to beat, constant + counts (a line in each HAT's pings per plate), errs by {counts_low} to "
            f"{counts_high}{self.unit} at {where}, the constant alone ({self.name}) by {low} to {high}"
        )
        if not known:
            return f"{guesses}; it is the nearest that we measured."
        if most < better:
            return f"{guesses}: these releases are better than both guesses."
        if least <= worse:
            return f"{guesses}: these releases are about as good as a guess."
        than = "the constant" if least > high else "constant + counts"
        return f"{guesses}: these releases are worse than {than}, so they buy nothing that counts do not tell. {advice}"


COUNTS_ERR: Ranges = {4: (0.1, 1.7), 5: (0.7, 2.1), 6: (1.6, 3.2), 7: (2.1, 3.3), 8: (3.4, 5.9), 9: (4.2, 8.1)}
"""Mean absolute errors of constant + counts, in km/h."""

ONE_MEAN = Guess(
    "one city-wide mean for every HAT",
    " km/h",
    {4: (0.3, 1.8), 5: (0.7, 2.5), 6: (1.4, 3.4), 7: (3.2, 5.3), 8: (5.4, 7.6), 9: (6.9, 10.4)},
    COUNTS_ERR,
)
"""Mean absolute errors."""

MEASURED_AROUND = (
    "On the days of Austin that we measured (H3 7, one hour, epsilon 10) estimates around forecasts erred by 0.43 to "
    "0.62 of what the constant (one city-wide mean for every HAT) erred by. The guess to beat, constant + counts (a "
    "line in each HAT's pings per plate), erred by 0.66 to 0.70 of it."
)
"""Said of a mean around a forecast: what the model expects of it is not where the model is wrong (measurements.md)."""


def is_hopeful(guess: Guess, error: float, resolution: int, *, around_forecasts: bool) -> bool:
    """Whether an expected error is the model's hope and no verdict: of a mean around a forecast, unless it is worse
    than the constant even so. Then `said_around` is to be said."""
    return around_forecasts and guess is ONE_MEAN and error <= guess.range_at(resolution)[1]


def said_around(error: float, resolution: int) -> str:
    """What was measured; before it, where a mean by itself is expected to err more than the guess to beat, that this is
    so: its estimate weighs it with its forecast.

    >>> said_around(4.9, 7).partition(": ")[0]
    'By itself such a mean is worse than constant + counts, which errs by 2.1 to 3.3 km/h'
    """
    low, high = ONE_MEAN.to_beat(resolution)
    if error <= high:
        return MEASURED_AROUND
    alone = f"By itself such a mean is worse than constant + counts, which errs by {low} to {high} km/h"
    return f"{alone}: read the smoothed estimates (`--smoothed` of `replay` and `run`). {MEASURED_AROUND}"


ONE_VARIANCE = Guess(
    "one city-wide variance",
    " (km/h)^2",
    {4: (4, 30), 5: (7, 92), 6: (16, 83), 7: (42, 99), 8: (50, 112), 9: (30, 104)},
)
"""Mean absolute errors."""

ONE_CDF = Guess(
    "one city-wide CDF",
    "",
    {4: (0.016, 0.041), 5: (0.024, 0.046), 6: (0.042, 0.062), 7: (0.075, 0.093), 8: (0.108, 0.173), 9: (0.134, 0.196)},
)
"""Root mean square errors of a share, over the edges of 20 equal bins of [0, U] and exact zeros."""

SERVED_SHARES = {4: (0.97, 1.0), 5: (0.94, 1.0), 6: (0.86, 0.99), 7: (0.62, 0.95), 8: (0.17, 0.88), 9: (0.03, 0.73)}
"""Which share of all pings lay in those HATs: what a release of all of them serves."""


def nearest_measured(resolution: int) -> int:
    """The resolution whose figures are taken."""
    return min(max(resolution, min(SERVED_SHARES)), max(SERVED_SHARES))


def guess_column(name: str, errs: Ranges, resolution: int) -> tuple[str, str]:
    """The name of a column of `plan`, and what the guess errs by at the nearest resolution that was measured.

    >>> guess_column("+ counts", COUNTS_ERR, 7), guess_column("+ counts", COUNTS_ERR, 12)
    (('+ counts', '2.1-3.3'), ('+ counts at 9', '4.2-8.1'))
    """
    measured = nearest_measured(resolution)
    return name if resolution == measured else f"{name} at {measured}", "{}-{}".format(*errs[measured])
