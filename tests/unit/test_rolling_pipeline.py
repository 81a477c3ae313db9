"""The road under a rolling budget: no window over it, whatever is charged late, twice, or by
another configuration."""

from datetime import datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from tests.contract.checks import worst_window
from tests.forms import PURE_ENV
from tests.unit.test_flow import MORNING, START, a_context, run, slot
from udp_stream.base.errors import PrivacyRefused
from udp_stream.base.units import NANO
from udp_stream.ledger.rules import budget_balances, span_of
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.planning.policy import (
    SPANS_PER_WINDOW,
    PeriodSoFar,
    most_in,
    shares_of,
    span_seconds,
)
from udp_stream.release.record import Release
from udp_stream.settings import load

HOUR_MS = 3_600_000
ROLLING = ("budget.period=rolling 4h", "budget.epsilon=2", "release.mean=baseline")
BUDGET = 2 * NANO
WHOLE = ("release.mean=levy", "release.mean_epsilon=0.75", "release.cdf_epsilon=0")
"""Every plate pays for all of it: its ranks count arrays."""


def worst(ledger, plate, window_s=4 * 3600):
    """The most of a plate in any window, by the spans' own times."""
    found = {}
    for name, nano in ledger.charged_by_period(plate).items():
        span = span_of(name)
        key = int(span.start), int(span.end)
        found[key] = found.get(key, 0) + nano
    return worst_window(found, window_s)


def rolling(*flags):
    """With these flags; a budget in rho has no epsilon."""
    in_rho = "budget.accounting=zcdp" in flags
    return *(flag for flag in ROLLING if not (in_rho and flag.startswith("budget.epsilon"))), *flags


def hours(ledger, numbers, *flags, seed=1):
    statuses = {}
    for number in numbers:
        published = run(
            ledger,
            a_context(*rolling(*flags), seed=seed),
            slot(number, start=START + number * HOUR_MS),
        )
        statuses[number] = [Release.decode(payload).status for _, payload in published]
    return statuses


@pytest.mark.parametrize(
    "order", [range(14), range(13, -1, -1), np.random.default_rng(5).permutation(14).tolist()]
)
def test_no_window_is_over_the_budget_in_whatever_order_slots_are_charged(order):
    ledger = MemoryLedger()
    hours(ledger, order)
    plates = slot()[0].plates
    most = [worst(ledger, plate) for plate in plates]
    assert max(most) <= BUDGET < max(most) + NANO, "no window is over it, and it is used"
    assert ledger.verify() == [] and all(
        name.startswith("rolling 4h from ") for name in ledger.periods()
    )


def test_what_has_left_the_window_is_there_again_and_the_promise_is_in_the_record():
    """Of a budget for two HATs of an hour, hours 0 and 1 take all; a window of four hours touches
    five of them."""
    ledger = MemoryLedger()
    statuses = hours(ledger, range(8), *WHOLE)
    released = [number for number, of_hour in statuses.items() if "released" in of_hour]
    assert released == [0, 1, 5, 6]
    (payload, *_) = ledger.recorded([next(iter(ledger.entries())).release_id])
    privacy = Release.decode(payload).privacy
    assert (privacy.period, privacy.period_epsilon) == ("rolling 4h", 2.0)


OTHER_SETTINGS = {
    "another zone": ("hat.timezone=UTC",),
    "other slots": ("hat.slot=30m",),
    "a zone with the same hours": ("hat.timezone=Asia/Colombo",),
}


@pytest.mark.parametrize("kind", OTHER_SETTINGS)
def test_other_zones_and_slots_share_the_budget(kind):
    """A calendar's period has a budget of its own in each zone; a rolling one is told by time
    alone."""
    ledger = MemoryLedger()
    hours(ledger, range(2), *WHOLE)
    run(
        ledger,
        a_context(*ROLLING, *OTHER_SETTINGS[kind]),
        slot(7, start=START + HOUR_MS + HOUR_MS // 2),
    )
    hours(ledger, range(3, 9), *OTHER_SETTINGS[kind])
    assert (
        max(worst(ledger, plate) for plate in slot()[0].plates) <= BUDGET and ledger.verify() == []
    )


def test_a_rolling_budget_and_a_calendars_are_refused_together():
    """Also before and after a calendar's period, as long as some window touches both."""
    ledger = MemoryLedger()
    run(ledger, a_context("release.mean=baseline"), slot())
    rolling = ("budget.period=rolling 1d", "release.mean=baseline")
    tomorrow = slot(3, start=START + 30 * HOUR_MS)
    with pytest.raises(PrivacyRefused) as refused:
        run(ledger, a_context(*rolling), tomorrow)
    said = str(refused.value)
    assert f"shares windows of 1d with {MORNING}" in said and "1d after the end" in said
    assert "use another ledger" in said and ledger.periods() == [MORNING]
    assert run(
        ledger, a_context(*rolling), slot(5, start=START + 72 * HOUR_MS)
    )  # no window touches both
    with pytest.raises(PrivacyRefused, match="shares windows of 1d"):
        run(ledger, a_context("release.mean=baseline"), slot(4, start=START + 48 * HOUR_MS))


def test_a_window_of_another_length_or_unit_is_another_budget():
    ledger = MemoryLedger()
    hours(ledger, [0])
    for flags in (
        ("budget.period=rolling 8h",),
        ("budget.period=rolling 2h",),
        ("budget.accounting=zcdp", "budget.rho=1"),
    ):
        with pytest.raises(PrivacyRefused, match="shares windows of"):
            run(ledger, a_context(*rolling(*flags)), slot(2, start=START + HOUR_MS))


def test_concentrated_losses_roll_too():
    ledger = MemoryLedger()
    flags = ("budget.accounting=zcdp", "budget.rho=0.5")
    hours(ledger, range(9), *flags)
    assert all(name.endswith(" in rho") for name in ledger.periods())
    most = max(worst(ledger, plate) for plate in slot()[0].plates)
    assert NANO // 4 < most <= NANO // 2 and ledger.verify() == []


def test_an_automatic_epsilon_serves_every_hour_alike():
    """What comes back keeps it going: no hour is without, once the first window has passed."""
    ledger, auto = (
        MemoryLedger(),
        ("release.mean_epsilon=auto", "release.cdf_epsilon=0", "budget.period=rolling 6h"),
    )
    epsilons = {}
    for number in range(30):
        published = run(ledger, a_context(*ROLLING, *auto), slot(1, start=START + number * HOUR_MS))
        found = [Release.decode(payload).privacy.epsilon for _, payload in published]
        epsilons[number] = max(found)
    assert min(epsilons.values()) > 0 and max(epsilons.values()) < 1.5 * min(epsilons.values())
    plates = slot()[0].plates
    used = [worst(ledger, plate, 6 * 3600) / BUDGET for plate in plates]
    assert max(used) <= 1 and np.median(used) > 0.5, used


# The calendar.


def test_the_span_of_a_slot_holds_it_also_where_the_clock_changes():
    """Chicago's spring and autumn, in slots of four hours under windows of a week."""
    flags = ("hat.timezone=America/Chicago", "hat.slot=4h", "budget.period=rolling 1w")
    calendar = load(None, flags, PURE_ENV).calendar
    zone = ZoneInfo("America/Chicago")
    for day in (datetime(2022, 3, 13, tzinfo=zone), datetime(2022, 11, 6, tzinfo=zone)):
        start = round(day.timestamp()) * 1000
        for _ in range(6):
            (begin,), (end,) = calendar.slots.place(np.array([start]))
            in_period = calendar.slot_in_period(int(begin))
            span = span_of(in_period.period)
            assert span.start * 1000 <= begin and end <= span.end * 1000
            assert in_period.rolls and in_period.slots_gone == in_period.slots_left == 42
            start = int(end)


def test_an_even_part_is_for_the_plates_pace_over_a_window():
    at = PeriodSoFar(
        np.array([0, 0, 95]), np.array([0, 48, 0]), np.array([1, 1, 1]), 24, 24, rolls=True
    )
    assert (
        shares_of("spread", 100, at).tolist() == shares_of("uniform", 100, at).tolist() == [4, 2, 4]
    )


def test_the_planner_is_told_what_was_charged_in_the_window():
    ledger = MemoryLedger()
    hours(ledger, range(2))
    plates = slot()[0].plates
    period = a_context(*ROLLING).calendar.slot_in_period(START + 4 * HOUR_MS).period
    in_window = budget_balances(ledger, period, plates).charged.tolist()
    assert (
        in_window == [sum(ledger.charged_by_period(plate).values()) for plate in plates]
        and max(in_window) > 0
    )


def test_a_rolling_budget_counts_once_for_each_window_in_a_longer_period():
    """Three days of hours under 2 a day, beside 10 for a lifetime and beside 5 for two days."""
    calendar = load(None, ("budget.period=rolling 1d",), PURE_ENV).calendar
    spans = [calendar.slot_in_period(START + number * HOUR_MS).period for number in range(72)]
    days = "2d from 2021-12-31T00:00:00+05:30"
    budgets = dict.fromkeys(spans, 2 * NANO) | {"lifetime": 10 * NANO, days: 5 * NANO}
    assert str(most_in(budgets, "lifetime", spans)) == "epsilon 16"
    assert (
        str(most_in(budgets, days, spans)) == "epsilon 9"
        and str(most_in(budgets, spans[0], [days])) == "epsilon 7"
    )


@pytest.mark.parametrize("slot_s", [60, 900, 2400, 3600, 14_400, 86_400, 3 * 86_400])
@pytest.mark.parametrize(
    "window_s", [3600, 5 * 3600, 86_400, 7 * 86_400, 67 * 86_400, 36_500 * 86_400]
)
def test_spans_are_whole_slots_and_few(window_s, slot_s):
    if window_s < slot_s:
        return
    span = span_seconds(window_s, slot_s)
    assert span % slot_s == 0 and (86_400 % span == 0 or span % 86_400 == 0)
    assert window_s / span <= SPANS_PER_WINDOW and (
        span == slot_s or span <= max(window_s / 8, 2 * slot_s)
    )
