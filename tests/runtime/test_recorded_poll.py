"""Recorded polls of GTFS-realtime from `init` to releases, without a hand edit."""

import pytest

from benchmarks import way_in
from tests.runtime.harness import FEEDS

DELHI, MOBILITY = (
    FEEDS / "gtfsrt" / f"{name}.pb" for name in ("delhi-otd-2025-09-11", "mobilitydata-vehicle_position")
)


@pytest.mark.long
@pytest.mark.skipif(not DELHI.exists(), reason="the recorded feeds are not at hand")
def test_delhi_s_poll_gives_the_hats_of_the_same_pings_in_the_contract_s_form(tmp_path):
    found, plain = way_in.recorded_poll(tmp_path, DELHI)
    assert found == plain and len(plain) > 200
