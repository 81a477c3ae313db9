"""What the summary of a run says: what was charged, written and served, and what would help."""

import re

import pytest

from udp_stream.adapters.embedded import Summary
from udp_stream.adapters.report import print_summary
from udp_stream.adapters.settings import load

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
    assert "2 HATs were withheld because too few of their plates had budget left: lower the fixed epsilons" in text
    assert 'or use "auto"' in text and "budget left" not in said(summary)
    summary.hats["withheld_budget"] = 1
    assert "1 HAT was withheld because too few of its plates had budget left" in said(summary, *FIXED)


def test_no_verdict_is_without_the_share_of_pings_that_it_is_about(said):
    summary = Summary(pings=110, repeats=10, means=1, pings_of_means=13, expected_error=13 * 0.5)
    text = said(summary)
    assert "weighed by pings; 13% of pings lie in HATs that got one. One city-wide mean" in text
    assert "these releases tell more than that guess." in text
    summary.expected_error = 13 * 50
    assert "less than that guess. `udp-stream plan` shows what would help." in said(summary)
    text = said(summary, "hat.resolution=12")
    assert "at resolution 9, the nearest that we measured." in text and "that guess" not in text


def test_one_is_no_plural(said):
    summary = Summary(pings=1, slots=1, held=1)
    summary.hats["released"] = 1
    summary.refused["late"] = 1
    text = said(summary)
    assert "HATs 1 in 1 slot " in text and "1 accepted ping waits in slots" in text
    assert "1 ping came after its slot had closed" in text and not re.search(r"\b1 \w+s\b(?! in)", text)
