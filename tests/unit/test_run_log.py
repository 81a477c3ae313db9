"""What a worker says while it works: a line for each slot, and few lines otherwise."""

from zoneinfo import ZoneInfo

import pytest

from udp_stream.logs import end_log
from udp_stream.pings.decode import Reason
from udp_stream.release.facts import BatchRead, RunLog, SlotCounted, SlotPublished, SlotRecorded
from udp_stream.windows.tables import SlotGrid

MIDNIGHT_S = 1_704_652_200  # 2024-01-08 in Surat
HOUR_S = 3600


@pytest.fixture
def grid():
    return SlotGrid(HOUR_S, ZoneInfo("Asia/Kolkata"))


@pytest.fixture(autouse=True)
def _no_log_is_left():
    yield
    end_log()


def slot_out(log, start_s, now_s, parts=1, pings=100):
    for _ in range(parts):
        log.observe(SlotCounted(start_s * 1000, 0), now_s)
    for part in range(parts):
        log.observe(SlotRecorded(start_s * 1000, pings, 2), now_s + part)
        log.observe(SlotPublished(start_s * 1000, {"released": 1, "withheld_few_plates": 1}), now_s + part)


def day(grid, pings_at, refused_at=lambda now_s: {}, slots=True):
    """The lines of a day, asked for once a second; `pings_at` says how many came in each second."""
    log, said = RunLog(grid, 120_000), []
    for now_s in range(MIDNIGHT_S, MIDNIGHT_S + 24 * HOUR_S):
        pings, refused = pings_at(now_s), refused_at(now_s)
        if pings or refused:
            log.observe(BatchRead(1, pings, refused, now_s * 1000 - 500 if pings else None), now_s)
        if slots and now_s % HOUR_S == (MIDNIGHT_S + 120) % HOUR_S and now_s > MIDNIGHT_S + HOUR_S:
            slot_out(log, now_s - 120 - HOUR_S, now_s)
        said += log.lines(now_s)
    return said


def test_a_slot_of_several_parts_is_one_line_once_all_of_them_are_out(grid):
    log = RunLog(grid, 120_000)
    log.lines(MIDNIGHT_S)
    slot_out(log, MIDNIGHT_S, MIDNIGHT_S + HOUR_S, parts=3, pings=1000)
    log.observe(SlotCounted((MIDNIGHT_S + HOUR_S) * 1000, 0), MIDNIGHT_S + 2 * HOUR_S)  # not out yet
    (line,) = [line for line in log.lines(MIDNIGHT_S + 2 * HOUR_S) if line.event == "slot"]
    assert "6 HATs, 3 released, 3,000 pings, 0 refused" in line.text and "2.0 s" in line.text
    assert line.figures == {
        "slot_start": "2024-01-08T00:00:00+05:30", "hats": {"released": 3, "withheld_few_plates": 3}, "pings": 3000,
        "refused": {}, "seconds": 2.0,
    }  # fmt: skip
    (last,) = log.lines(MIDNIGHT_S + 2 * HOUR_S, at_the_end=True)
    assert last.text.endswith("1 of its parts not yet")


@pytest.mark.parametrize(
    ("pings_at", "refused_at", "slots", "least"),
    [
        pytest.param(
            lambda now_s: 40 if 5 <= (now_s - MIDNIGHT_S) / HOUR_S < 23 else 0,
            lambda now_s: {},
            True,
            24,
            marks=pytest.mark.long,
        ),
        (lambda now_s: 0, lambda now_s: {Reason.WRONG_TYPE: 40}, False, 24),
        (lambda now_s: 40 if (now_s - MIDNIGHT_S) // HOUR_S not in (9, 10) else 0, lambda now_s: {}, True, 24),
    ],
    ids=["a day with its night", "all pings refused", "the broker away for two hours"],
)
def test_a_day_has_fewer_than_200_lines_and_is_never_silent_for_long(grid, pings_at, refused_at, slots, least):
    said = day(grid, pings_at, refused_at, slots)
    assert least <= len(said) < 200
    if slots:
        assert sum(line.event == "slot" for line in said) >= 22
