"""What a worker says while it works: a line for each slot, and few lines otherwise."""

from zoneinfo import ZoneInfo

import pytest

from udp_stream.base.logs import end_log
from udp_stream.pings.decode import Reason
from udp_stream.release.events import (
    BatchRead,
    RunLog,
    SlotCounted,
    SlotPublished,
    SlotRecorded,
    SlotsDropped,
)
from udp_stream.release.record import UnitDoubt
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
        log.observe(
            SlotPublished(start_s * 1000, {"released": 1, "withheld_few_plates": 1}), now_s + part
        )


def test_a_slot_that_a_rebalance_took_is_said_as_far_as_it_is_out(grid):
    log = RunLog(grid, 120_000)
    log.lines(MIDNIGHT_S)
    now_s, later_ms = MIDNIGHT_S + 2 * HOUR_S, (MIDNIGHT_S + HOUR_S) * 1000
    slot_out(log, MIDNIGHT_S, now_s)
    for start_ms in (MIDNIGHT_S * 1000, later_ms):
        log.observe(SlotCounted(start_ms, 0), now_s)
    log.observe(SlotsDropped(), now_s)
    (line,) = [line for line in log.lines(now_s + 10) if line.event == "slot"]
    assert (
        line.figures["slot_start"] == "2024-01-08T00:00:00+05:30"
        and line.figures["hats"]["released"] == 1
    )
    slot_out(log, later_ms // 1000, now_s + 20)  # the shard is ours again
    (line,) = [line for line in log.lines(now_s + 30) if line.event == "slot"]
    assert line.figures["slot_start"] == "2024-01-08T01:00:00+05:30"


def test_a_slot_of_several_parts_is_one_line_once_all_of_them_are_out(grid):
    log = RunLog(grid, 120_000)
    log.lines(MIDNIGHT_S)
    slot_out(log, MIDNIGHT_S, MIDNIGHT_S + HOUR_S, parts=3, pings=1000)
    log.observe(
        SlotCounted((MIDNIGHT_S + HOUR_S) * 1000, 0), MIDNIGHT_S + 2 * HOUR_S
    )  # not out yet
    (line,) = [line for line in log.lines(MIDNIGHT_S + 2 * HOUR_S) if line.event == "slot"]
    assert "6 HATs, 3 released, 3,000 pings, 0 refused" in line.text and "2.0 s" in line.text
    assert line.figures == {
        "slot_start": "2024-01-08T00:00:00+05:30", "hats": {"released": 3, "withheld_few_plates": 3}, "pings": 3000,
        "refused": {}, "seconds": 2.0,
    }  # fmt: skip
    (last,) = log.lines(MIDNIGHT_S + 2 * HOUR_S, at_the_end=True)
    assert last.text.endswith("1 of its parts not yet")


def test_a_slot_s_line_has_its_own_pings_and_what_was_refused_since_the_line_before(grid):
    log = RunLog(grid, 120_000)
    log.lines(MIDNIGHT_S)
    log.observe(BatchRead(messages=9, pings=7, refused={Reason.LATE: 2}, unpaired=1), MIDNIGHT_S)
    slot_out(log, MIDNIGHT_S, MIDNIGHT_S + HOUR_S)
    slot_out(log, MIDNIGHT_S + HOUR_S, MIDNIGHT_S + HOUR_S)
    lines = [line.figures for line in log.lines(MIDNIGHT_S + 2 * HOUR_S) if line.event == "slot"]
    assert [line["pings"] for line in lines] == [100, 100]
    assert [line["refused"] for line in lines] == [{"late": 2}, {}]
    assert [line.get("unpaired") for line in lines] == [1, None]


def test_a_second_batch_of_old_pings_is_a_warning_and_then_no_more(grid):
    log = RunLog(grid, 120_000)
    log.lines(MIDNIGHT_S)
    log.observe(BatchRead(messages=900, pings=900, refused={}), MIDNIGHT_S)
    assert [line.event for line in log.lines(MIDNIGHT_S + 61)] == ["incoming"]
    log.observe(BatchRead(messages=500, pings=100, refused={Reason.LATE: 400}), MIDNIGHT_S + 70)
    warning, incoming = log.lines(MIDNIGHT_S + 122)
    assert warning.warns and (warning.event, warning.figures) == (
        "late",
        {"late": 400, "pings": 100},
    )
    assert not incoming.warns and incoming.event == "incoming"
    log.observe(BatchRead(messages=500, pings=400, refused={Reason.LATE: 100}), MIDNIGHT_S + 130)
    assert [line.event for line in log.lines(MIDNIGHT_S + 723)] == ["incoming"]


def test_a_slot_that_was_half_read_says_why_nothing_is_released(grid):
    log = RunLog(grid, 120_000)
    log.lines(MIDNIGHT_S)
    said = []
    for number, hats in enumerate(
        ({"withheld_partial": 7}, {"released": 7}, {"withheld_few_plates": 7})
    ):
        log.observe(
            SlotPublished((MIDNIGHT_S + number * HOUR_S) * 1000, hats), MIDNIGHT_S + 4 * HOUR_S
        )
    said = [line for line in log.lines(MIDNIGHT_S + 5 * HOUR_S) if line.event == "slot"]
    assert ["half" in line.text and "7 withheld" in line.text for line in said] == [
        True,
        False,
        False,
    ]


def test_durations_are_of_the_steady_clock_and_times_of_the_walls(grid):
    """The wall was an hour ahead, and is set right; then an hour behind."""
    log = RunLog(grid, 120_000)
    for steady_s, wrong_s in ((50.0, HOUR_S), (660.0, 0), (1270.0, -HOUR_S)):
        log.observe(
            BatchRead(messages=9, pings=9, refused={}, newest_ms=(MIDNIGHT_S + 10 * HOUR_S) * 1000),
            steady_s,
        )
        now_s = MIDNIGHT_S + steady_s
        slot_out(log, MIDNIGHT_S + round(steady_s) // 60 * HOUR_S, steady_s)
        found = log.lines(steady_s + 5, ahead_s=now_s + wrong_s - steady_s)
        assert not any(
            "-" in line.text.partition(" in ")[2] for line in found if line.event == "incoming"
        )
        assert [line.figures["seconds"] for line in found if line.event == "slot"] == [0.0]
    incoming = [line for line in found if line.event == "incoming"]
    assert "in 10 min" in incoming[0].text
    assert incoming[0].figures["next_close"].startswith("2024-01-08T00:02:00")


def test_slots_that_are_withheld_for_their_unit_are_a_warning_each(grid):
    log = RunLog(grid, 120_000)
    log.lines(MIDNIGHT_S)
    for number, hats in enumerate(({"released": 2}, {"withheld_unit": 2}, {"withheld_unit": 3})):
        start_s = MIDNIGHT_S + number * HOUR_S
        log.observe(SlotPublished(start_s * 1000, hats), start_s + HOUR_S)
        warned = [line for line in log.lines(start_s + HOUR_S + 10) if line.warns]
        assert [line.figures for line in warned] == [
            {"hats": count} for status, count in hats.items() if status == "withheld_unit"
        ]
        assert all("speed.unit" in line.text for line in warned)


def test_the_warning_of_a_unit_says_which_since_when_and_how_to_take_back_what_is_out(grid):
    log = RunLog(grid, 120_000)
    doubt = UnitDoubt("2024-01-08T12:00:00+05:30", "2024-01-08T15:00:00+05:30", 40, "kmh", "'mps'")
    for hats, warns in (({"released": 2}, False), ({"withheld_unit": 2}, True)):
        log.observe(SlotPublished(MIDNIGHT_S * 1000, hats), MIDNIGHT_S)
        warned = [line for line in log.lines(MIDNIGHT_S + 10, doubt=doubt) if line.warns]
        assert bool(warned) == warns
    assert all(
        word in warned[0].text
        for word in ("'mps'", f"--from {doubt.since} --to {doubt.until}", "40 releases")
    )
    assert warned[0].figures == {
        "hats": 2,
        "since": doubt.since,
        "until": doubt.until,
        "released": 40,
    }
