"""One hour of a city as hexagons: `python -m benchmarks.city_picture FILE:U:ZONE OUT.svg [--hour 8] [--source TEXT]`.

A recorded day goes through the release road with the default settings, at seed 0. The counts prior is trained on the
Austin days of other years that lie beside the file. The panels show the same HATs: the truth, the smoothed estimate,
the half width of its 95 % interval, and two guesses (the errors of all are weighed by pings). The guesses are oracles:
the constant is the mean of all of the day's pings, and the line in the counts is fitted to the day's true means.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import h3.api.basic_int as h3
import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy import Feeds
from benchmarks.forecast_days import Day, Run, day_of, run
from benchmarks.guesses import constant_and_counts
from udp_stream.settings import load

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ring = tuple[tuple[float, float], ...]

SEED = 0
WIDTH, MARGIN = 900, 20
PANEL, CITY_HEIGHT, GAP = 273, 360, 20
HEADING, PANEL_TITLE, CAPTION = 62, 24, 54
"""Pixels. A panel is as wide as `PANEL`; title, city and caption are below each other."""

SPEEDS = tuple(range(0, 55, 5))
SPEED_COLOURS = (
    "#440154", "#482475", "#414487", "#355f8d", "#2a788e", "#21918c", "#22a884", "#44bf70", "#7ad151", "#bddf26",
    "#fde725",
)  # fmt: skip
"""Lower ends of the classes in km/h, the last one open; viridis in steps of a tenth, for all kinds of sight."""

WIDTHS = 0, 5, 10, 20, 30, 40
WIDTH_COLOURS = "#f7f7f7", "#d9d9d9", "#bdbdbd", "#969696", "#636363", "#252525"
"""The same for half widths of intervals: greys, so that nobody takes them for speeds."""


@dataclass(frozen=True, slots=True)
class Hour:
    """The HATs of one slot, in the order of `cells`; speeds in km/h. `measured` where a mean was released."""

    day: str
    start: str
    end: str
    cells: tuple[int, ...]
    pings: Floats
    truth: Floats
    estimate: Floats
    low: Floats
    high: Floats
    measured: Bools
    constant: float
    counts: Floats

    def error(self, estimate: Floats | float, chosen: Bools | None = None) -> float:
        """Mean of what an estimate is off by, weighed by pings, in km/h; over all HATs, or over those chosen."""
        weights = self.pings if chosen is None else self.pings * chosen
        return float(np.average(np.abs(estimate - self.truth), weights=weights))

    @property
    def held(self) -> int:
        """How many HATs have their truth within the interval."""
        return int(np.count_nonzero((self.low <= self.truth) & (self.truth <= self.high)))


@dataclass(frozen=True, slots=True)
class Panel:
    """One map of the city, with a colour for each cell, and a thick outline where chosen."""

    title: str
    caption: tuple[str, ...]
    colours: tuple[str, ...]
    outlined: Bools


def hour_of(day: Day, said: Run, hour: int) -> Hour:
    """The day's first slot that starts in this local hour.

    Raises ValueError where no slot with pings does.
    """
    zone, first = load(None, day.feed.flags, {}).calendar.slots, 0
    guess = constant_and_counts(day)
    for counts, _ in day.slots:
        rows = slice(first, first + counts.cells.size)
        first = rows.stop
        start = zone.iso(counts.start_ms)
        if int(start[11:13]) == hour:
            return Hour(
                day=start[:10],
                start=start[11:16],
                end=zone.iso(counts.end_ms)[11:16],
                cells=tuple(int(cell) for cell in counts.cells),
                pings=day.pings[rows].astype(np.float64),
                truth=day.truth[rows],
                estimate=said.value[rows],
                low=said.low[rows],
                high=said.high[rows],
                measured=said.measured[rows],
                constant=day.constant,
                counts=guess[rows],
            )
    raise ValueError(f"expected an hour with pings, one of {sorted(set(day.hour.tolist()))}, got {hour}")


def panels_of(hour: Hour) -> list[Panel]:
    """What is shown of an hour, in the order of reading."""
    nowhere, hats = np.zeros_like(hour.measured), len(hour.cells)
    half = (hour.high - hour.low) / 2

    def speeds(values: Floats) -> tuple[str, ...]:
        return _classed(values, SPEEDS, SPEED_COLOURS)

    def off(values: Floats | float) -> str:
        return f"Error: {hour.error(values):.2f} km/h"

    return [
        Panel(
            "Truth",
            (f"Means of {int(hour.pings.sum()):,} pings in {hats} hexagons", off(hour.truth)),
            speeds(hour.truth),
            nowhere,
        ),
        Panel(
            "Private estimate",
            (f"Outlined: measured ({np.count_nonzero(hour.measured)} of {hats})", off(hour.estimate)),
            speeds(hour.estimate),
            hour.measured,
        ),
        Panel(
            "Half width of its 95 % interval",
            (f"Half of them: at most ±{np.median(half):.0f} km/h", f"The truth is within: {hour.held} of {hats}"),
            _classed(half, WIDTHS, WIDTH_COLOURS),
            hour.measured,
        ),
        Panel(
            "The baseline guess",
            (f"The day’s mean, {hour.constant:.1f} km/h", off(hour.constant)),
            speeds(np.full(hats, hour.constant)),
            nowhere,
        ),
        Panel(
            "Baseline guess + counts",
            ("The day’s best line in log(pings / buses)", off(hour.counts)),
            speeds(hour.counts),
            nowhere,
        ),
    ]


def svg(hour: Hour, source: str) -> str:
    """The picture: five panels and a legend, three in a row."""
    rings = _fitted([h3.cell_to_boundary(cell) for cell in hour.cells], PANEL, CITY_HEIGHT)
    row = PANEL_TITLE + CITY_HEIGHT + CAPTION
    height = HEADING + 2 * row
    title = f"Mean speeds of buses, {hour.day}, {hour.start} to {hour.end}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        'font-size="13" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(MARGIN, 30, title, 'font-size="19" font-weight="bold"'),
        _text(MARGIN, 50, source, 'fill="#555"'),
    ]
    panels = panels_of(hour)
    for place, panel in enumerate(panels):
        parts += _panel(panel, rings, *_corner(place, row))
    parts += _legend(*_corner(len(panels), row))
    return "\n".join([*parts, "</svg>"]) + "\n"


def lines_of(hour: Hour) -> Iterator[str]:
    """The errors as text: of all HATs, of those with a released mean, and of the others."""
    share = hour.pings[hour.measured].sum() / hour.pings.sum()
    yield f"{len(hour.cells)} HATs; {np.count_nonzero(hour.measured)} measured, with {share:.2f} of the pings"
    named = ("private estimate", hour.estimate), ("constant", hour.constant), ("constant + counts", hour.counts)
    for name, values in named:
        parts = " / ".join(f"{hour.error(values, chosen):.2f}" for chosen in (hour.measured, ~hour.measured))
        yield f"{name}: error {hour.error(values):.2f} km/h; measured HATs / others {parts}"


def _corner(place: int, row: int) -> tuple[float, float]:
    return MARGIN + place % 3 * (PANEL + GAP), HEADING + place // 3 * row


def _classed(values: Floats, edges: Sequence[float], colours: Sequence[str]) -> tuple[str, ...]:
    """A colour for each value, that of the last class whose lower end is not above it."""
    found = np.searchsorted(edges, np.maximum(values, edges[0]), side="right") - 1
    return tuple(colours[at] for at in found)


def _fitted(boundaries: Sequence[Ring], width: float, height: float) -> list[Ring]:
    """Boundaries (latitude, longitude) as pixels, north up, in the middle of a box; degrees are as long as there."""
    points = [point for ring in boundaries for point in ring]
    south, north = min(lat for lat, _ in points), max(lat for lat, _ in points)
    west, east = min(lon for _, lon in points), max(lon for _, lon in points)
    narrow = math.cos(math.radians((south + north) / 2))
    scale = min(width / ((east - west) * narrow), height / (north - south))
    left, top = (width - (east - west) * narrow * scale) / 2, (height - (north - south) * scale) / 2
    return [
        tuple((left + (lon - west) * narrow * scale, top + (north - lat) * scale) for lat, lon in ring)
        for ring in boundaries
    ]


def _panel(panel: Panel, rings: Sequence[Ring], x: float, y: float) -> Iterator[str]:
    yield _text(x, y + 14, panel.title, 'font-size="15" font-weight="bold"')
    yield f'<g transform="translate({x:.0f} {y + PANEL_TITLE:.0f})" stroke="#888" stroke-width="0.5">'
    for at in np.argsort(panel.outlined, kind="stable"):  # outlines are drawn last: no neighbour covers them
        corners = " ".join(f"{across:.1f},{down:.1f}" for across, down in rings[at])
        line = ' stroke="#000" stroke-width="2"' if panel.outlined[at] else ""
        yield f'<polygon points="{corners}" fill="{panel.colours[at]}"{line}/>'
    yield "</g>"
    for number, line in enumerate(panel.caption):
        weight = ' font-weight="bold"' if line.startswith("Error") else ""
        yield _text(x, y + PANEL_TITLE + CITY_HEIGHT + 18 * (number + 1), line, weight)


def _legend(x: float, y: float) -> Iterator[str]:
    yield _text(x, y + 14, "Legend", 'font-size="15" font-weight="bold"')
    yield from _scale("Speed, km/h", SPEEDS, SPEED_COLOURS, x, y + 44)
    yield from _scale("Half width, km/h", WIDTHS, WIDTH_COLOURS, x + 140, y + 44)
    box = f'<rect x="{x + 141:.0f}" y="{y + 202:.0f}" width="24" height="16" fill="none" stroke="#000"'
    yield f'{box} stroke-width="2"/>'
    yield _text(x + 172, y + 215, "measured")
    explained = (
        "A hexagon is an H3 cell. Measured: its mean",
        "was released with noise. Others are inferred",
        "from counts and from what was released.",
        "Errors: means over hexagons, by pings.",
        "Both guesses know the day’s true means.",
    )
    for number, line in enumerate(explained):
        yield _text(x, y + 290 + 19 * number, line, 'font-size="12"')


def _scale(name: str, edges: Sequence[int], colours: Sequence[str], x: float, y: float) -> Iterator[str]:
    """The classes below each other, the fastest on top."""
    yield _text(x, y, name)
    for number, (low, colour) in enumerate(reversed(list(zip(edges, colours, strict=True)))):
        top = y + 10 + 19 * number
        above = "and more" if number == 0 else f"to {edges[len(edges) - number]}"
        yield f'<rect x="{x:.0f}" y="{top:.0f}" width="26" height="19" fill="{colour}" stroke="#888"/>'
        yield _text(x + 33, top + 14, f"{low} {above}")


def _text(x: float, y: float, words: str, how: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}"{" " * bool(how)}{how.strip()}>{escape(words)}</text>'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("feed", metavar="FILE:U:ZONE")
    parser.add_argument("out", type=Path, metavar="OUT.svg")
    parser.add_argument("--hour", type=int, default=8, help="of the zone's day (8)")
    parser.add_argument("--source", default="", metavar="TEXT", help="whose positions these are, and their licence")
    asked = parser.parse_args()
    day = day_of(asked.feed)
    feeds = Feeds(Path(day.feed.path).parent)
    if all(name.startswith(day.year) or not name.startswith("austin") for name in feeds.names):
        parser.error(f"expected days of Austin of other years than {day.year} beside {day.feed.path}, got none")
    (said,) = run([day], SEED, feeds.prior(day.year, 7), ())
    hour = hour_of(day, said, asked.hour)
    asked.out.write_text(svg(hour, asked.source), encoding="utf-8")
    print("\n".join(lines_of(hour)))


if __name__ == "__main__":
    main()
