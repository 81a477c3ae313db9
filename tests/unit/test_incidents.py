"""A day of arrays down the real road: what estimates say where something happens, and where nothing
does."""

import datetime as dt

import h3.api.basic_int as h3
import numpy as np
import pytest

from benchmarks.accuracy import DAYS
from benchmarks.feeds import feed_of
from benchmarks.forecast_days import OURS, day_of, joined, run
from tests.forms import long_rows
from tests.runtime.harness import FEEDS
from udp_stream.settings import load
from udp_stream.windows.tables import SlotPings, tabulate

FEED = feed_of("arrays:65:Asia/Kolkata", "hat.slot=1h", "hat.resolution=7")
ZONE = load(None, FEED.flags, {}).calendar.slots.zone
MORNING = int(dt.datetime(2024, 1, 8, 6, tzinfo=ZONE).timestamp() * 1000)
HOUR = 3_600_000
CELLS = np.sort(np.array(h3.grid_disk(h3.latlng_to_cell(21.17, 72.83, 7), 2), np.uint64))
LARGE = 9
"""Which of them most plates visit every hour."""

HIT = 8, 9
PLATES, PINGS = 150, 20


def a_day(factor):
    """Fourteen hours; from the eighth on, for two, speeds in the large cell are multiplied."""
    rng, slots = np.random.default_rng(7), []
    usual = rng.normal(20, 3, CELLS.size)
    for hour in range(14):
        visits = [
            (plate, cell)
            for plate in range(PLATES)
            for cell in rng.choice(CELLS.size, 3, replace=False)
        ]
        visits += [(plate, LARGE) for plate in range(0, PLATES, 2)]
        visits = np.array(sorted(set(visits)))
        own = usual[visits[:, 1]] + rng.normal(0, 4, len(visits))
        speed = np.clip(np.repeat(own, PINGS) + rng.normal(0, 8, len(visits) * PINGS), 0, 65)
        plate, cell = np.repeat(visits, PINGS, axis=0).T
        if hour in HIT:
            speed = np.where(cell == LARGE, factor * speed, speed)
        start = MORNING + hour * HOUR
        pings = SlotPings(
            start, start + HOUR, tuple(b"hash%04d" % i for i in range(PLATES)), plate.astype(np.uint32),
            np.arange(plate.size, dtype=np.uint32), CELLS[cell], np.rint(speed * 4096).astype(np.int32),
        )  # fmt: skip
        slots.append(tabulate(pings))
    return joined(FEED, tuple(slots))


def of_large_cell(day):
    cells = np.concatenate([counts.cells for counts, _ in day.slots])
    return (cells == CELLS[LARGE]) & np.isin(day.hour, [6 + hour for hour in HIT])


@pytest.fixture(scope="module")
def without():
    day = a_day(1.0)
    return day, run([day], 1, None, (*OURS, "budget.accounting=approximate"))[0]


@pytest.mark.parametrize(
    ("factor", "is_held"), long_rows([(0.4, True)], [(0.4, True), (1.6, False)])
)
def test_estimates_show_what_happens_in_its_own_slot(without, factor, is_held):
    before, day = without[1], a_day(factor)
    after = run([day], 1, None, (*OURS, "budget.accounting=approximate"))[0]
    hit = of_large_cell(day)
    change = day.truth[hit] - without[0].truth[hit]
    assert hit.sum() == len(HIT) and after.measured[hit].all() and (day.plates[hit] > 60).all()
    assert ((after.value - before.value)[hit] / change > 0.5).all()
    assert (after.news[hit] > 0.5).all()
    # Of a speed-up a clip at its edge may hide more than intervals allow for.
    assert ((after.low <= day.truth) & (day.truth <= after.high))[hit].all() or not is_held


@pytest.mark.long
@pytest.mark.skipif(not FEEDS.is_dir(), reason="recorded days are not part of the program")
def test_smaller_cells_have_no_larger_share_of_false_marks():
    """Of the HATs that the page draws as measured, on four recorded days where nothing was made to
    happen."""
    names = [name for name in DAYS if name.startswith("austin") and not name.endswith("24")]
    shares = {}
    for resolution in (7, 9):
        days = [
            day_of(f"{FEEDS / name}.ndjson.gz{DAYS[name]}", f"hat.resolution={resolution}")
            for name in names
        ]
        runs = [run([day], 1, None, (*OURS, "budget.accounting=approximate"))[0] for day in days]
        drawn, news = (
            np.concatenate([getattr(one, of) for one in runs]) for of in ("drawn", "news")
        )
        assert drawn.sum() > 400
        shares[resolution] = (news[drawn] > 0.5).mean()
    assert shares[9] <= shares[7] < 0.01


def test_where_nothing_happens_next_to_nothing_is_marked(without):
    day, one = without
    assert (one.news > 0.5).mean() <= 0.03 and one.news.max() > 0
    assert ((one.low <= day.truth) & (day.truth <= one.high)).mean() > 0.93
