"""Slots follow the wall clock, daylight saving changes included; every instant lies in exactly one
slot."""

import datetime as dt
import itertools
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.forms import long_but
from udp_stream.windows.grid import HEXAGONS, Hexagons
from udp_stream.windows.tables import SlotGrid


def slots_of_day(zone, day, seconds):
    """The distinct slots over a local day and a bit, as wall-clock texts, with their real lengths
    in minutes."""
    start = dt.datetime.combine(day, dt.time(), ZoneInfo(zone)).timestamp()
    times = np.arange(start * 1000, (start + 26 * 3600) * 1000, 60_000).astype(np.int64)
    grid = SlotGrid(seconds, ZoneInfo(zone))
    starts, ends = grid.place(times)
    assert np.all(starts <= times) and np.all(times < ends)
    pairs = sorted(set(zip(starts.tolist(), ends.tolist(), strict=True)))
    assert all(one[1] == two[0] for one, two in itertools.pairwise(pairs))  # no gap, no overlap
    return [(grid.iso(a)[11:16], (b - a) // 60_000) for a, b in pairs]


@pytest.mark.parametrize(("month", "day", "hours"), [(11, 6, (0, 1, 1, 2)), (3, 13, (0, 1, 3, 4))])
def test_hours_happen_twice_where_the_clock_is_set_back_and_not_at_all_where_it_is_set_forward(
    month, day, hours
):
    found = slots_of_day("America/Chicago", dt.date(2016, month, day), 3600)
    assert found[:4] == [(f"{hour:02}:00", 60) for hour in hours]


@pytest.mark.parametrize(
    ("day", "night"), [(dt.date(2016, 11, 6), 7 * 60), (dt.date(2016, 3, 13), 5 * 60)]
)
def test_longer_slots_grow_and_shrink_with_the_change(day, night):
    found = slots_of_day("America/Chicago", day, 6 * 3600)
    assert found[:4] == [("00:00", night), ("06:00", 360), ("12:00", 360), ("18:00", 360)]


def test_a_day_that_begins_with_a_gap_begins_when_its_clock_does():
    """Santiago skips midnight: 2023-09-03 begins at 01:00."""
    found = slots_of_day("America/Santiago", dt.date(2023, 9, 3), 86_400)
    assert found[0] == ("01:00", 23 * 60)


def test_slots_of_several_days_tile_the_calendar():
    grid = SlotGrid(7 * 86_400, ZoneInfo("Europe/Berlin"))
    times = np.arange(1_600_000_000_000, 1_605_000_000_000, 3_600_000, dtype=np.int64)
    starts, ends = grid.place(times)
    assert np.all((starts <= times) & (times < ends))
    assert set(np.unique(ends - starts).tolist()) <= {
        7 * 86_400_000 + h * 3_600_000 for h in (-1, 0, 1)
    }


@pytest.mark.parametrize("seconds", [0, 7, 5000, 86_400 + 3600])
def test_a_length_that_does_not_tile_days_is_refused(seconds):
    with pytest.raises(ValueError, match="divides a day"):
        SlotGrid(seconds, dt.UTC)


@pytest.mark.parametrize("examples", long_but([8], [8, 30]))
def test_any_mixture_of_times_is_placed_like_each_alone(examples):
    @settings(max_examples=examples)
    @given(
        st.lists(st.integers(0, 4_000_000_000_000), min_size=1, max_size=30),
        st.sampled_from([60, 900, 3600, 5400, 21_600, 86_400, 3 * 86_400]),
        st.sampled_from(
            ["UTC", "Asia/Kolkata", "America/Chicago", "Australia/Lord_Howe", "America/Santiago"]
        ),
    )
    def check(times, seconds, zone):
        grid = SlotGrid(seconds, ZoneInfo(zone))
        starts, ends = grid.place(np.array(times))
        for time, start, end in zip(times, starts.tolist(), ends.tolist(), strict=True):
            assert start <= time < end
            one_start, one_end = SlotGrid(seconds, ZoneInfo(zone)).place(np.array([time]))
            assert (one_start[0], one_end[0]) == (start, end)

    check()


def test_cells_are_h3s_and_their_centres_lie_in_them():
    cell = int(Hexagons(7).cells_of(np.array([21.17]), np.array([72.83]))[0])
    lon, lat = HEXAGONS.center_of(cell)
    assert HEXAGONS.id_of(cell).startswith("87") and len(HEXAGONS.id_of(cell)) == 15
    assert int(Hexagons(7).cells_of(np.array([lat]), np.array([lon]))[0]) == cell
