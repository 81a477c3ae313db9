"""Budgets of a week and a month hold, whatever crashes."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.contract.periods import CHECKS, never_above_its_part
from tests.contract.test_pipeline import in_memory
from udp_stream.planning.policy import BudgetCalendar, SlotInPeriod


@pytest.mark.parametrize("road", CHECKS)
def test_no_plate_is_charged_above_its_part_of_a_longer_period(road: str, tmp_path: Path):
    never_above_its_part(in_memory(tmp_path), road)


@pytest.mark.parametrize("road", ["swap-values", "add-remove"])
def test_a_pace_that_forgets_the_day_is_found(road: str, tmp_path: Path, planted):
    placed = BudgetCalendar.slot_in_period

    def at_the_end(calendar: BudgetCalendar, start_ms: int) -> SlotInPeriod:
        return replace(placed(calendar, start_ms), day=6)

    planted(BudgetCalendar, slot_in_period=at_the_end)
    with pytest.raises(AssertionError):
        never_above_its_part(in_memory(tmp_path), road, schedules=1)
