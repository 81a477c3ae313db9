"""What `plan` says of a configuration: what is bought, for how long it lasts, and only what was
measured."""

import re

import pytest

from udp_stream.cli import main as cli

pytestmark = pytest.mark.usefixtures("streams_stay")


def said(capsys, *arguments):
    """All that `plan` prints, on one line."""
    status = cli.main(["plan", *arguments])
    printed = capsys.readouterr()
    return status, " ".join((printed.out + printed.err).split())


def sets(*flags):
    return [part for flag in flags for part in ("--set", flag)]


PAPERS = (
    "budget.accounting=pure",
    "hat.resolution=6",
    "hat.slot=6h",
    "release.mean=baseline",
    "release.min_plates=10",
)
"""Means without forecasts, under budgets that are spread over a period's HATs."""


def test_a_fixed_epsilon_of_more_than_an_even_share_is_planned_where_plates_pay_part_of_it(capsys):
    status, text = said(capsys, "--plates", "40", *sets(*PAPERS, "release.cdf_epsilon=1"))
    assert status == 0 and "CDF rms error" in text
    status, text = said(capsys, "--plates", "40", *sets(*PAPERS, "release.cdf_epsilon=5"))
    assert status == 3
    assert (
        "automatic epsilon would be below 0.001 if the budget of epsilon 10 is spread over 12 HATs"
        in text
    )


def test_means_around_forecasts_are_planned_at_a_share_of_the_budget(capsys):
    status, text = said(capsys, *sets("budget.accounting=pure"))
    assert status == 0 and "one part in 36" in text
    assert re.search(r" 40 0\.278 forecast-clip [\d.]+ [\d.]+ 65\.00 42 ", text)
    assert "each plate's mean speed clipped to what is forecast for it" in text
    half = said(capsys, *sets("budget.accounting=pure", "budget.epsilon=5"))[1]
    assert re.search(r" 40 0\.139 forecast-clip ", half)
