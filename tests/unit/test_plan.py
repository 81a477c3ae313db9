"""What `plan` says of a configuration: what is bought, for how long it lasts, and only what was measured."""

import pytest

from udp_stream.adapters import cli


def said(capsys, *arguments):
    """All that `plan` prints, on one line."""
    status = cli.main(["plan", *arguments])
    printed = capsys.readouterr()
    return status, " ".join((printed.out + printed.err).split())


def sets(*flags):
    return [part for flag in flags for part in ("--set", flag)]


@pytest.fixture(autouse=True)
def _streams_stay(monkeypatch):
    """The command line lets go of standard streams when it ends; here it ends often."""
    monkeypatch.setattr(cli, "use_standard_streams", lambda: None)
    monkeypatch.setattr(cli, "let_go_of_stdout", lambda: None)
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)


def test_a_fixed_epsilon_of_more_than_an_even_share_is_planned_where_plates_pay_part_of_it(capsys):
    status, text = said(capsys, "--plates", "40", *sets("release.cdf_epsilon=1"))
    assert status == 0 and "CDF rms error" in text
    status, text = said(capsys, "--plates", "40", *sets("release.cdf_epsilon=5"))
    assert status == 3
    assert "automatic epsilon would be below 0.001 if the budget of 10 is spread over 12 HATs" in text
