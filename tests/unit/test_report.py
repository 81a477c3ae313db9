"""What the summary of a run says: what was charged, written and served, and what would help."""

import json
from collections import Counter
from dataclasses import fields

import pytest

from udp_stream.cli.report import print_json_summary, print_summary
from udp_stream.release.events import HatRecorded, SlotRecorded, SlotSmoothed, Summary, Tally
from udp_stream.settings import load


@pytest.fixture
def said(capsys):
    """The summary of a run, on one line."""

    def printed(summary, *flags):
        print_summary(summary, load(None, flags, {}))
        return " ".join(capsys.readouterr().err.split())

    return printed


PAPERS = ("release.mean=baseline",)


OURS = load(None, (), {}).policy.fingerprint()


def test_only_means_under_these_settings_are_weighed_against_the_guess(said):
    """An error that was expected of metres per second taken for km/h tells nothing."""
    summary = Summary(policy=OURS, pings=100, means=1, pings_of_means=13, expected_error=13 * 0.5)
    assert "0.5 km/h" in said(summary)
    summary.promises["old", "1d", 10.0, 0.0] = 5
    assert "under these settings" in said(summary) and "0.5 km/h" in said(summary)
    summary.means = 0
    assert "expected error" not in said(summary) and "guess" not in said(summary)


def test_for_programs_the_summary_has_the_numbers_of_the_text_on_one_line(said, capsys):
    summary = Summary(messages=130, pings=110, repeats=10, slots=3, held=4, made=7, answers_made=2, unwritten=True,
                      pings_released=60, means=2, pings_of_means=13, expected_error=13 * 2.5)  # fmt: skip
    summary.hats.update({"released": 6, "withheld_few_plates": 5})
    summary.refused.update({"late": 8, "not_json": 2})
    summary.answers.update(
        {("north", "answered"): 3, ("north", "withheld_budget"): 1, ("south", "answered"): 2}
    )
    summary.promises["old", "1d", 5.0, 0.0] = 5
    text = said(summary, *PAPERS)
    print_json_summary(summary, load(None, PAPERS, {}), ["of a source"])
    (line,) = capsys.readouterr().err.splitlines()
    found = json.loads(line)
    told = {"accepted": 110, "repeats": 10, "held": 4, "refused": {"late": 8, "not_json": 2}}
    assert found["pings"].items() >= told.items()
    assert found["hats"] == {"released": 6, "withheld_few_plates": 5} and found["slots"] == 3
    assert found["queries"] == {
        "north": {"answered": 3, "withheld_budget": 1},
        "south": {"answered": 2},
    }
    assert (found["released_share"], found["mean_share"], found["expected_error_kmh"]) == (
        0.6,
        0.13,
        2.5,
    )
    assert (
        found["new"] == {"hats": 7, "answers": 2}
        and found["unwritten"]
        and found["messages"] == 130
    )
    for words in ("110 accepted, 10 of", "8 refused: late", "11 in 3 slots", "6 released", "north: 3 answered",
                  "60% of pings lie in released", "13% of pings lie in HATs with",
                  "under these settings", "2.5 km/h of a released mean", "docs/measurements.md"):  # fmt: skip
        assert words in text
    assert found["said"][0] == "of a source" and found["said"][1].startswith(
        "warning: 5 of 5 records"
    )
    assert all(" ".join(sentence.split()) in text for sentence in found["said"][1:])


def test_each_figure_has_words_and_is_told_to_people_and_programs(said, capsys):
    names = [figure.name for figure in fields(Tally)]
    summary = Summary(**{name: 70 + at for at, name in enumerate(names)})
    summary.hats = Counter({"released": 6})
    summary.refused = Counter({"late": 8})
    assert summary.words().keys() == summary.figures().keys() == {*names}
    text = said(summary)
    print_json_summary(summary, load(None, (), {}))
    found = json.loads(capsys.readouterr().err)["pings"]
    assert found.keys() == {"accepted", *names} - {"hats", "pings"}
    for name in found.keys() - {"accepted", "refused"}:
        assert found[name] == getattr(summary, name)
        assert str(found[name]) in summary.words()[name] and summary.words()[name] in text


def test_the_day_by_hour_says_where_the_budget_went(said, capsys):
    """Two slots of one local hour are one row of the text; programs get each slot."""
    summary, start_ms = Summary(policy=OURS), 1_704_680_100_000  # 07:45 at +05:30
    for at, (buses, left, released) in enumerate([(40, 0.9, 3), (50, 0.7, 1), (60, 0.6, 2)]):
        slot = start_ms + 900_000 * at
        summary.observe(SlotRecorded(slot, pings=100, made=5))
        for number in range(5):
            is_released = number < released
            error, status = (2.0, "released") if is_released else (None, "withheld_budget")
            summary.observe(HatRecorded(status, 20, OURS, "1d", 10.0, 0.0, error))
        summary.observe(SlotSmoothed(slot, samples=100, error=150.0 + at * 100, guess_error=300.0))
        summary.spent(slot, buses, left)
    text = said(summary)
    assert "07:00 40 5 3 1.5 90%" in text and "08:00 55 5 2 3.0 65%" in text
    print_json_summary(summary, load(None, (), {}))
    found = json.loads(capsys.readouterr().err)["by_slot"]
    assert [one["budget_left"] for one in found.values()] == [0.9, 0.7, 0.6]
    assert found["2024-01-08T07:45:00+05:30"] == {
        "buses": 40, "hats": 5, "measured": 3, "budget_left": 0.9, "expected_error_kmh": 1.5,
    }  # fmt: skip


def test_nothing_read_is_no_error_to_expect_and_no_division(capsys):
    print_json_summary(Summary(), load(None, (), {}))
    found = json.loads(capsys.readouterr().err)
    assert (
        found["expected_error_kmh"] is None and found["released_share"] == found["mean_share"] == 0
    )
