"""The picture of a city's hour: what is drawn is what was measured."""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree

import h3.api.basic_int as h3
import numpy as np
import pytest

from benchmarks.city_picture import SEED, Hour, hour_of, lines_of, svg
from benchmarks.forecast_days import Day, Run, day_of_fleet, run
from benchmarks.guesses import constant_and_counts
from udp_stream.trial.fleet import Fleet

PANELS = (
    "Truth", "Private estimate", "Half width of its 95 % interval", "The baseline guess", "Baseline guess + counts"
)  # fmt: skip
SVG = "{http://www.w3.org/2000/svg}"


def by_hand() -> Hour:
    """Three cells in a row, with two pings in the last one."""
    cell = h3.latlng_to_cell(30.27, -97.74, 7)
    cells = tuple(sorted(h3.grid_disk(cell, 1))[:3])
    return Hour(
        day="2016-11-24",
        start="08:00",
        end="09:00",
        cells=cells,
        pings=np.array([1.0, 1.0, 2.0]),
        truth=np.array([10.0, 20.0, 40.0]),
        estimate=np.array([12.0, 20.0, 45.0]),
        low=np.array([11.0, 10.0, 35.0]),
        high=np.array([13.0, 30.0, 55.0]),
        measured=np.array([True, False, False]),
        constant=20.0,
        counts=np.array([10.0, 24.0, 99.0]),
    )


def texts(drawn: str) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(drawn).iter(f"{SVG}text")]


def errors(drawn: str) -> list[float]:
    """Of truth, estimate, constant, and constant + counts."""
    return [float(found) for text in texts(drawn) for found in re.findall(r"^Error: ([\d.]+) km/h$", text)]


def panels(drawn: str) -> Iterator[list[ElementTree.Element]]:
    for group in ElementTree.fromstring(drawn).iter(f"{SVG}g"):
        yield list(group.iter(f"{SVG}polygon"))


def fills(polygons: list[ElementTree.Element]) -> list[str]:
    return sorted(str(each.get("fill")) for each in polygons)


def test_a_picture_says_the_hour_its_panels_its_legend_and_whose_data_they_are() -> None:
    drawn = svg(by_hand(), "Buses & <Co>")
    said = texts(drawn)
    assert any("2016-11-24, 08:00 to 09:00" in text for text in said) and "Buses & <Co>" in said
    assert [text for text in said if text in PANELS] == list(PANELS)
    assert {"Legend", "Speed, km/h", "0 to 5", "45 to 50", "50 and more", "40 and more", "measured"} <= set(said)


def test_errors_are_means_by_pings() -> None:
    assert errors(svg(by_hand(), "")) == [0, (2 + 0 + 2 * 5) / 4, (10 + 0 + 2 * 20) / 4, (0 + 4 + 2 * 59) / 4]
    figures = [[float(one) for one in re.findall(r"\d+\.\d\d", line)] for line in lines_of(by_hand())]
    assert figures == [[0.25], [3.0, 2.0, 3.33], [12.5, 10.0, 13.33], [30.5, 0.0, 40.67]]


def test_a_colour_is_that_of_the_speeds_class_and_what_was_measured_is_outlined() -> None:
    truth, estimate, half, constant, counts = panels(svg(by_hand(), ""))
    assert fills(truth) == sorted(["#414487", "#2a788e", "#7ad151"])  # 10 to 15, 20 to 25, 40 to 45
    assert fills(half) == sorted(["#f7f7f7", "#bdbdbd", "#bdbdbd"])  # ± 1, ± 10, ± 10
    assert fills(constant) == ["#2a788e"] * 3
    assert fills(counts) == sorted(["#414487", "#2a788e", "#fde725"])  # 99 km/h: the last class is open
    outlined = [[each.get("stroke") for each in panel] for panel in (truth, estimate)]
    assert outlined == [[None] * 3, [None, None, "#000"]]  # last, so that no neighbour is drawn over it
    assert estimate[-1].get("fill") == "#414487"
    said = texts(svg(by_hand(), ""))
    assert "Outlined: measured (1 of 3)" in said and "The truth is within: 2 of 3" in said


def test_north_is_up_and_hexagons_stay_in_their_panel() -> None:
    hour = by_hand()
    north = int(np.argmax([h3.cell_to_latlng(cell)[0] for cell in hour.cells]))
    truth = next(panels(svg(hour, "")))
    points = [
        np.array([[float(number) for number in point.split(",")] for point in str(each.get("points")).split()])
        for each in truth
    ]
    assert north == int(np.argmin([corners[:, 1].mean() for corners in points]))
    corners = np.concatenate(points)
    assert corners.min() >= 0 and np.all(corners.max(axis=0) <= [273, 360])


@pytest.fixture(scope="module")
def day() -> Day:
    return day_of_fleet("tiny", Fleet(buses=20, hours=3).columns())


@pytest.fixture(scope="module")
def said(day: Day) -> Run:
    return run([day], SEED, None, ())[0]


def test_a_day_is_drawn_from_what_its_run_said_of_the_hour(day: Day, said: Run) -> None:
    hour = int(day.hour[-1])
    here = day.hour == hour
    drawn = svg(hour_of(day, said, hour), "")
    assert [len(each) for each in panels(drawn)] == [int(here.sum())] * len(PANELS)
    estimates = day.truth, said.value, np.full(day.truth.size, day.constant), constant_and_counts(day)
    off = [
        sum(pings * abs(one - true) for pings, one, true in zip(*columns, strict=True)) / day.pings[here].sum()
        for columns in ((day.pings[here], estimate[here], day.truth[here]) for estimate in estimates)
    ]
    assert errors(drawn) == pytest.approx(off, abs=0.0051)
    assert sum(each.get("stroke") == "#000" for each in list(panels(drawn))[1]) == said.measured[here].sum() > 0


def test_a_day_that_is_run_again_is_the_same_bytes(day: Day, said: Run) -> None:
    hour = int(day.hour[-1])
    again = run([day], SEED, None, ())[0]
    assert svg(hour_of(day, again, hour), "x") == svg(hour_of(day, said, hour), "x")


def test_an_hour_without_pings_is_refused(day: Day, said: Run) -> None:
    with pytest.raises(ValueError, match=r"expected an hour with pings, one of .*, got 1"):
        hour_of(day, said, 1)
