"""What the summary of a run says: what was charged, written and served, and what would help."""

import json

import pytest

from udp_stream.cli.report import print_json_summary, print_summary
from udp_stream.release.facts import Summary
from udp_stream.settings import load

FIXED = ("release.mean_epsilon=1",)


@pytest.fixture
def said(capsys):
    """The summary of a run, on one line."""

    def printed(summary, *flags):
        print_summary(summary, load(None, flags, {}))
        return " ".join(capsys.readouterr().err.split())

    return printed


def test_hats_whose_plates_could_not_pay_are_told_where_epsilons_are_fixed(said):
    summary = Summary(pings=10)
    assert "budget left" not in said(summary, *FIXED)
    summary.hats["withheld_budget"] = 2
    text = said(summary, *FIXED)
    assert "2 HATs were withheld" in text and '"auto"' in text
    assert "budget left" not in said(summary)


PAPERS = ("release.mean=baseline",)


@pytest.mark.parametrize(("resolution", "error", "is_less"), [(7, 3.3, False), (7, 3.4, True), (6, 3.3, True)])
def test_an_expected_error_stands_beside_the_guess_to_beat_and_its_share_of_pings(said, resolution, error, is_less):
    summary = Summary(pings=110, repeats=10, means=1, pings_of_means=13, expected_error=13 * error)
    text = said(summary, *PAPERS, f"hat.resolution={resolution}")
    assert "13% of pings" in text and {7: "2.1 to 3.3", 6: "1.6 to 3.2"}[resolution] in text
    assert (": less." in text) is is_less


OURS = load(None, (), {}).policy.fingerprint()


def test_records_from_before_under_other_settings_are_the_first_line(said):
    summary = Summary(policy=OURS, others={"old": "speed.unit kmh -> mps", "older": "hat.grace 1m -> 2m"}, made=27)
    summary.promises.update({(OURS, "1d", 10.0, 0.0): 30, ("old", "1d", 10.0, 0.0): 81, ("old", "1d", 5.0, 0.0): 9})
    text = said(summary)
    assert text.startswith("warning: 90 of 120 records") and "(speed.unit kmh -> mps)" in text
    summary.promises.update({("older", "1d", 10.0, 0.0): 100, ("unknown", "1d", 10.0, 0.0): 1})
    text = said(summary)
    assert "191 of 221 records" in text
    assert f"(hat.grace 1m -> 2m; speed.unit kmh -> mps; policy unknown -> {OURS})" in text


def test_values_of_settings_are_no_markup(said):
    summary = Summary(policy=OURS, others={"old": "release.bins auto -> [b]"}, made=1)
    summary.promises.update({("old", "1d", 10.0, 0.0): 1})
    assert "(release.bins auto -> [b])" in said(summary)


def test_where_nothing_stands_from_other_settings_there_is_no_warning(said):
    summary = Summary(policy=OURS, others={"old": "speed.unit kmh -> mps"})
    summary.promises[OURS, "1d", 10.0, 0.0] = 5
    assert "warning" not in said(summary)


def test_only_means_under_these_settings_are_weighed_against_the_guess(said):
    """An error that was expected of metres per second taken for km/h tells nothing."""
    summary = Summary(policy=OURS, pings=100, means=1, pings_of_means=13, expected_error=13 * 0.5)
    assert "0.5 km/h" in said(summary)
    summary.promises["old", "1d", 10.0, 0.0] = 5
    assert "under these settings: 0.5 km/h" in said(summary)
    summary.means = 0
    assert "expected error" not in said(summary) and "guess" not in said(summary)


def test_of_smoothed_estimates_it_says_what_they_add_to_a_guess_by_counts(said, capsys):
    summary = Summary(policy=OURS, pings=10, estimated=10, estimate_error=25.0, guess_error=31.0)
    text = said(summary)
    assert "2.5 km/h" in text and "3.1 km/h" in text and "adds little" not in text
    summary.guess_error = 26.0
    assert "adds little" in said(summary)
    print_json_summary(summary, load(None, (), {}))
    assert json.loads(capsys.readouterr().err)["estimates"] == {"expected_error_kmh": 2.5, "counts_error_kmh": 2.6}
    summary.promises["old", "1d", 10.0, 0.0] = 5  # an error that was expected under other settings tells nothing
    assert "smoothed" not in said(summary) and "smoothed" not in said(Summary(pings=10))


def test_an_epsilon_that_holds_with_delta_says_so(said):
    summary = Summary(pings=10)
    summary.promises["old", "1d", 10.0, 1e-6] = 5
    assert "epsilon 10 with delta 1e-06 per 1d" in said(summary)
    assert "delta 1e-06 (rho 1.539278763)" in said(summary, "budget.accounting=approximate")


def test_for_programs_the_summary_has_the_numbers_of_the_text_on_one_line(said, capsys):
    summary = Summary(messages=130, pings=110, repeats=10, slots=3, held=4, made=7, answers_made=2, unwritten=True,
                      pings_released=60, means=2, pings_of_means=13, expected_error=13 * 2.5)  # fmt: skip
    summary.hats.update({"released": 6, "withheld_few_plates": 5})
    summary.refused.update({"late": 8, "not_json": 2})
    summary.answers.update({("north", "answered"): 3, ("north", "withheld_budget"): 1, ("south", "answered"): 2})
    summary.promises["old", "1d", 5.0, 0.0] = 5
    text = said(summary, *PAPERS)
    print_json_summary(summary, load(None, PAPERS, {}), ["of a source"])
    (line,) = capsys.readouterr().err.splitlines()
    found = json.loads(line)
    assert found["pings"] == {"accepted": 110, "repeats": 10, "held": 4, "refused": {"late": 8, "not_json": 2}}
    assert found["hats"] == {"released": 6, "withheld_few_plates": 5} and found["slots"] == 3
    assert found["queries"] == {"north": {"answered": 3, "withheld_budget": 1}, "south": {"answered": 2}}
    assert (found["released_share"], found["mean_share"], found["expected_error_kmh"]) == (0.6, 0.13, 2.5)
    assert found["new"] == {"hats": 7, "answers": 2} and found["unwritten"] and found["messages"] == 130
    for words in ("110 accepted, 10 of", "8 refused: late", "11 in 3 slots", "6 released", "north: 3 answered",
                  "60% of pings lie in released", "13% of pings lie in HATs with",
                  "mean under these settings: 2.5 km/h"):  # fmt: skip
        assert words in text
    assert found["said"][0] == "of a source" and found["said"][1].startswith("warning: 5 of 5 records")
    assert all(" ".join(sentence.split()) in text for sentence in found["said"][1:])


def test_nothing_read_is_no_error_to_expect_and_no_division(capsys):
    print_json_summary(Summary(), load(None, (), {}))
    found = json.loads(capsys.readouterr().err)
    assert found["expected_error_kmh"] is None and found["released_share"] == found["mean_share"] == 0
