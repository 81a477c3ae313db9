"""`python -m benchmarks.picture FILE:U:ZONE docs/shapes.svg`: a slot's CDFs, for
`docs/mechanisms/shapes.md`.

The city's as it was told, and three HATs' beside the truth and the guess. Needs a feed that may be
published."""

from typing import Any

import numpy as np

from benchmarks.cdfs import DayShapes
from benchmarks.forecast_days import Day, Run, day_of, run
from benchmarks.words import words

PLATES_MIN = 30

BLUE = "#2166ac"
ORANGE = "#b35806"
GREY = "#777777"


def main(argument: str, target: str) -> None:
    day = day_of(argument)
    max_kmh = int(argument.split(":")[1])
    (ours,) = run([day], seed=0)
    draw(day, DayShapes.of(day, max_kmh), ours, target)


def draw(day: Day, shapes: DayShapes, ours: Run, target: str) -> None:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    large = day.plates >= PLATES_MIN
    here = np.flatnonzero(large & (day.hour == np.bincount(day.hour[large]).argmax()))
    by_speed = here[np.argsort([ours.smoothed[at].value_kmh for at in here])]
    chosen = by_speed[[0, by_speed.size // 2, -1]]
    settings: dict[Any, Any] = {
        "svg.hashsalt": "udp-stream",
        "svg.fonttype": "none",
        "font.size": 9,
    }
    with rc_context(settings):
        canvas = Figure(figsize=(11, 3.4), layout="constrained")
        city, *panels = canvas.subplots(1, 4, sharey=True)
        guess = ours.smoothed[chosen[0]].cdf
        if guess is None:
            raise ValueError("expected a slot in which the city is told")
        city.plot(shapes.kmh, shapes.city, color=ORANGE, label="truth, the whole day")
        city.plot(
            guess.edges_kmh,
            guess.guess,
            color=GREY,
            linestyle="--",
            marker=".",
            label="as told: the guess",
        )
        city.set_title("the city", fontsize=9)
        for axes, at in zip(panels, chosen, strict=True):
            one = ours.smoothed[at]
            if (cdf := one.cdf) is None or one.expected_sup_error is None:
                raise ValueError("expected a CDF of each HAT")
            axes.fill_between(
                cdf.edges_kmh, *cdf.band, color=BLUE, alpha=0.2, linewidth=0, label="95 % band"
            )
            axes.plot(cdf.edges_kmh, cdf.values, color=BLUE, marker=".", label="estimate")
            axes.plot(cdf.edges_kmh, cdf.guess, color=GREY, linestyle="--", label="the guess")
            axes.plot(shapes.kmh, shapes.truth[at], color=ORANGE, label="truth")
            off = [np.abs(np.interp(shapes.kmh, cdf.edges_kmh, some) - shapes.truth[at]).max()
                   for some in (cdf.values, cdf.guess)]  # fmt: skip
            axes.set_title(
                f"mean {one.value_kmh:.0f} km/h, truly {day.truth[at]:.0f}; {day.plates[at]} buses\n"
                f"off by {off[0]:.2f} (expected {one.expected_sup_error:.2f}), guess by {off[1]:.2f}", fontsize=8,
            )  # fmt: skip
        city.set_ylabel("share of pings at or below")
        for axes in (city, panels[0]):
            axes.legend(fontsize=7, loc="lower right", frameon=False)
        for axes in (city, *panels):
            axes.set_xlabel("km/h")
            axes.set_xlim(0, 70)
            axes.set_ylim(0, 1.02)
        canvas.savefig(
            target,
            dpi=110,
            metadata={"Date": None} if target.endswith(".svg") else {"Software": None},
        )


if __name__ == "__main__":
    main(*words(__doc__, "WORD", 2))
