"""`[source]`: presets, and what a stranger gets wrong."""

import json

import pytest

from udp_stream.pings.mapping import FIELDS, PRESETS
from udp_stream.settings import load


def settings(*flags, environment=None):
    return load(None, tuple(f"source.{flag}" if "." not in flag.partition("=")[0] else flag for flag in flags),
                environment or {})  # fmt: skip


EXAMPLES = {
    "iudx": {"results": [{"license_plate": "A1", "observationDateTime": "2022-01-01T10:10:35+05:30", "speed": 45,
                          "location": {"type": "Point", "coordinates": [72.5, 21.25]}}]},
    "geojson": {"type": "FeatureCollection", "features": [
        {"type": "Feature", "geometry": {"type": "Point", "coordinates": [72.5, 21.25]},
         "properties": {"license_plate": "A1", "observationDateTime": "2022-01-01T04:40:35Z", "speed": 45}}]},
    "gtfs-rt": {"header": {"gtfsRealtimeVersion": "2.0"}, "entity": [{"id": "1", "vehicle": {
        "vehicle": {"id": "A1"}, "timestamp": "1641012035",
        "position": {"latitude": 21.25, "longitude": 72.5, "speed": 12.5}}}]},
    "capmetro": {"vehicle_id": "A1", "timestamp": "2021-12-31T22:40:35-06:00", "speed": "12.5", "latitude": "21.25",
                 "longitude": "72.5"},
    "mbta": {"data": [{"id": "A1", "type": "vehicle", "attributes": {
        "latitude": 21.25, "longitude": 72.5, "speed": 12.5, "updated_at": "2021-12-31T23:40:35-05:00"}}]},
    "bustime": {"bustime-response": {"vehicle": [
        {"vid": "A1", "tmstmp": "20220101 04:40:35", "lat": "21.25", "lon": "72.5", "spd": 20, "hdg": "40"}]}},
    "nextbus": {"lastTime": {"time": "1641012047000"}, "vehicle": {
        "id": "A1", "lat": "21.25", "lon": "72.5", "secsSinceReport": "12", "speedKmHr": "45"}},
    "hfp": {"VP": {"oper": 12, "veh": "A1", "tst": "2022-01-01T04:40:35.000Z", "spd": 12.5, "lat": 21.25,
                   "long": 72.5}},
    "rio-sppo": [{"ordem": "A1", "latitude": "21,25", "longitude": "72,5", "datahora": "1641012035000",
                  "velocidade": "45", "linha": "1"}],
}  # fmt: skip
"""A message of each, by its specification."""


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_reads_a_message_of_its_feed(name):
    preset = PRESETS[name]
    zone = () if preset.mapping.reads_offsets else ("time_zone=UTC",)
    decoder = settings(f"preset={name}", f"speed.unit={preset.unit or 'kmh'}", *zone).decoder
    pings, refusals = decoder.decode([json.dumps(EXAMPLES[name]).encode()])
    assert not refusals and pings.time_ms.tolist() == [1641012035000]
    assert pings.plates == ("12/A1" if name == "hfp" else "A1",)
    kmh = 20 * 1.609344 if name == "bustime" else 45
    assert (pings.lon[0], pings.lat[0], pings.speed[0]) == (72.5, 21.25, round(kmh * 4096))
    assert set(preset.keys) <= {*FIELDS, "records", "time_format", "message_time"}
