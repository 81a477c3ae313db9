"""Recorded polls of GTFS-realtime from `init` to releases, without a hand edit."""

import json
from datetime import UTC, datetime

import pytest
from google.transit.gtfs_realtime_pb2 import FeedMessage

from tests import way_in
from tests.runtime.harness import FEEDS

DELHI = FEEDS / "gtfsrt" / "delhi-otd-2025-09-11.pb"


def in_the_contract_s_form(message):
    for vehicle in (one.vehicle for one in message.entity if one.HasField("vehicle")):
        at, plate = vehicle.position, vehicle.vehicle.license_plate or vehicle.vehicle.id
        if at.HasField("speed") and vehicle.timestamp:
            when = datetime.fromtimestamp(vehicle.timestamp, UTC).isoformat()
            where = {"type": "Point", "coordinates": [at.longitude, at.latitude]}
            ping = {"license_plate": plate, "observationDateTime": when, "location": where, "speed": at.speed}
            yield json.dumps(ping)


@pytest.mark.long
@pytest.mark.skipif(not DELHI.exists(), reason="the recorded feeds are not at hand")
def test_delhi_s_poll_gives_the_hats_of_the_same_pings_in_the_contract_s_form(tmp_path):
    found = way_in.recording(tmp_path, DELHI.name, DELHI.read_bytes())
    lines = in_the_contract_s_form(FeedMessage.FromString(DELHI.read_bytes()))
    (tmp_path / "plain.ndjson").write_text("\n".join(lines))
    plain = way_in.hats_of(way_in.verb(tmp_path, "replay", "plain.ndjson", "--config", "city.toml", "--trial"))
    assert found == plain and len(plain) > 200
