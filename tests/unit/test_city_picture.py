"""The picture of a city's hour: what is drawn is what was measured."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import h3.api.basic_int as h3
import numpy as np
import pytest

from benchmarks.city_picture import SEED, Hour, hour_of, lines_of, svg
from benchmarks.forecast_days import Day, Run, day_of_fleet, run
from udp_stream.trial.fleet import Fleet

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


def test_errors_are_means_by_pings() -> None:
    assert errors(svg(by_hand(), "")) == [0, (2 + 0 + 2 * 5) / 4, (10 + 0 + 2 * 20) / 4, (0 + 4 + 2 * 59) / 4]
    figures = [[float(one) for one in re.findall(r"\d+\.\d\d", line)] for line in lines_of(by_hand())]
    assert figures == [[0.25], [3.0, 2.0, 3.33], [12.5, 10.0, 13.33], [30.5, 0.0, 40.67]]


@pytest.fixture(scope="module")
def day() -> Day:
    return day_of_fleet("tiny", Fleet(buses=20, hours=3).columns())


@pytest.fixture(scope="module")
def said(day: Day) -> Run:
    return run([day], SEED, None, ())[0]


def test_a_day_that_is_run_again_is_the_same_bytes(day: Day, said: Run) -> None:
    hour = int(day.hour[-1])
    again = run([day], SEED, None, ())[0]
    assert svg(hour_of(day, again, hour), "x") == svg(hour_of(day, said, hour), "x")
