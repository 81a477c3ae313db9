"""What tests of whole programs share."""

import pytest


@pytest.fixture(autouse=True)
def _of_programs(few_rehearsals):
    """What a plan says of a feed is tested elsewhere."""
