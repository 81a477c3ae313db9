"""`plan FILE` shows the file's time under each budget schedule, from counts alone."""

import json
import re

import numpy as np
import pytest

from benchmarks.forecast_days import day_of_fleet
from tests.unit.test_plan_feed import _streams_stay, pings, plan, written  # noqa: F401 (fixtures)
from udp_stream.adapters.settings import load
from udp_stream.cli.plan_of_schedules import schedules_for, under_schedule
from udp_stream.ledger.conversion import epsilon_of
from udp_stream.testing import SeededEntropy
from udp_stream.trial.fleet import Fleet

FLAGS = ("release.mean=baseline", "release.min_plates=3", "hat.slot=1h", "hat.resolution=6")


@pytest.fixture(scope="module")
def slots():
    """Two hours of few buses: what a schedule does is counted, not how well."""
    fleet = Fleet(seed=5, buses=25, hours=2.0)
    return [counts for counts, _ in day_of_fleet("fleet", fleet.columns(), *FLAGS[2:]).slots]


def settings_of(*flags):
    return load(None, (*FLAGS, "hat.timezone=Asia/Kolkata", *flags), {})


def found(slots, *flags):
    return under_schedule(slots, settings_of(*flags), SeededEntropy(1))


def test_every_schedule_has_a_row_and_weights_follow_the_files_pings(slots):
    named = schedules_for(slots, settings_of())
    assert list(named) == ["spread", "uniform", "ramp", "weights by pings"]
    weights, gone = np.array(named["weights by pings"]), [
        settings_of().calendar.slot_in_period(counts.start_ms).slots_gone for counts in slots
    ]  # fmt: skip
    assert weights.size == 24 and weights.sum() == pytest.approx(1, abs=1e-4)
    pings_of = np.array([counts.count.sum() for counts in slots])
    assert weights[gone] == pytest.approx(pings_of / pings_of.sum(), abs=1e-5) and set(np.flatnonzero(weights)) == {
        *gone
    }
    asked = str([1.0] * 24)
    assert schedules_for(slots, settings_of(f"budget.schedule={asked}"))["weights"] == (1.0,) * 24
    assert list(schedules_for(slots, settings_of("budget.period=rolling 1d"))) == ["spread", "uniform"]


def test_weights_on_an_hour_spend_there_what_even_weights_keep(slots):
    """All of a day's weight on the file's hours buys several times the epsilon, and a plate runs out of its part."""
    named = schedules_for(slots, settings_of())
    by_pings, even = (
        found(slots, f"budget.schedule={list(weights)}") for weights in (named["weights by pings"], [1] * 24)
    )
    assert by_pings.least > 3 * even.most > 0 and by_pings.error_kmh < even.error_kmh
    assert by_pings.refused > even.refused == 0 and 0.5 < by_pings.served < even.served


def test_a_plate_without_enough_left_is_a_refusal_and_a_budget_too_small_serves_nothing(slots):
    enough, fixed = found(slots), found(slots, "release.cdf_epsilon=9.7", "release.mean_epsilon=auto")
    assert enough.refused == 0 and enough.slots == len(slots) and enough.error_kmh > 0
    assert fixed.refused > 0 and fixed.served < enough.served


def test_plan_prints_the_table_beside_the_resolutions_or_why_there_is_none(capsys, tmp_path, pings, monkeypatch):  # noqa: F811
    monkeypatch.setattr("udp_stream.cli.plan_of_feed._candidates", lambda settings: iter([settings]))
    file = written(tmp_path / "a.ndjson", pings)
    status, out, _ = plan(capsys, file, "--set", "release.mean=baseline")
    assert status == 0 and "Under each budget.schedule, at H3" in out
    for name in ("spread", "uniform", "ramp", "weights by pings"):
        assert re.search(rf"^{name} +[\d.]+ +[\d.]+ +\d+ of \d+ +\d+% +[\d.]+$", out, re.M), out
    served = "--set", "release.mean=baseline", "--set", "hat.resolution=5"
    facts = json.loads(plan(capsys, file, "--json", *served)[1])["schedules"]
    assert list(facts) == ["spread", "uniform", "ramp", "weights by pings"]
    assert all(0 < row["least"] <= row["most"] and 0 < row["served"] <= 1 for row in facts.values())
    assert json.loads(plan(capsys, file, "--json")[1])["schedules"] == {}
    assert "means around forecasts have a pace of their own" in " ".join(plan(capsys, file)[1].split())
    fixed = plan(capsys, file, "--set", "release.mean=baseline", "--set", "release.mean_epsilon=1")[1]
    assert "every epsilon is fixed" in " ".join(fixed.split()) and "weights by pings" not in fixed


def test_charges_are_told_in_the_unit_of_the_budget(slots):
    """Parts of rho 1.539 are less than parts of epsilon 10."""
    pure, in_rho = found(slots), found(slots, "budget.accounting=approximate")
    assert (pure.unit, in_rho.unit) == ("epsilon", "rho")
    assert 0 < in_rho.least <= in_rho.most < pure.least
    assert (pure.least_epsilon, pure.most_epsilon) == (pure.least, pure.most)
    assert in_rho.most_epsilon == epsilon_of(round(in_rho.most * 1e9), 1e-6) > in_rho.least_epsilon / 2 > 0
