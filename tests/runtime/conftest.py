"""What tests of whole programs share."""

import pytest


@pytest.fixture(autouse=True)
def _few_rehearsals(limits):
    """A plan compares no other slots, and makes few cities up: a rehearsal takes its time."""
    limits("udp_stream.cli.plan_of_feed", SLOTS=())
    limits("udp_stream.release.rehearsal", PAIRS_MAX=2)
