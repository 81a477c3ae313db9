"""Feeds that are known by name: where they have the fields of a ping, and in which unit their speeds are.

Each is read from its specification or from recorded messages; docs/feeds.md has the addresses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from udp_stream.pings.json import FeedMapping, mapping_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """The keys of `[source]` that a feed needs, and the unit of its speeds; None where the feed does not say.

    >>> PRESETS["gtfs-rt"].keys["records"], PRESETS["gtfs-rt"].unit
    ('entity', 'mps')
    """

    title: str
    keys: dict[str, str]
    unit: str | None
    origin: str

    @property
    def mapping(self) -> FeedMapping:
        """Where the feed has the fields of a ping."""
        return mapping_of(self.keys)


PRESETS: Final = {
    "iudx": Preset(
        title="India's data exchange, TransitManagement; also numbers as text and integer plates",
        keys={},
        unit="kmh",
        origin="iudx-resource-server docs/openapi.yaml; unit by displacement (docs/pings.md)",
    ),
    "geojson": Preset(
        title="GeoJSON features with the exchange's names as properties",
        keys={
            "plate": "properties.license_plate",
            "time": "properties.observationDateTime",
            "longitude": "geometry.coordinates.0",
            "latitude": "geometry.coordinates.1",
            "speed": "properties.speed",
        },
        unit=None,
        origin="RFC 7946, sections 3.2 and 3.3",
    ),
    "gtfs-rt": Preset(
        title="GTFS-realtime VehiclePositions as JSON, names in camelCase or with underscores",
        keys={
            "plate": "vehicle.vehicle.id",
            "time": "vehicle.timestamp",
            "time_format": "epoch_s",
            "longitude": "vehicle.position.longitude",
            "latitude": "vehicle.position.latitude",
            "speed": "vehicle.position.speed",
            "records": "entity",
        },
        unit="mps",
        origin="google/transit gtfs-realtime.proto, JSON by protobuf's own mapping",
    ),
    "capmetro": Preset(
        title="CSV of CapMetrics' recordings of Austin's buses, from 2016 on",
        keys={"plate": "vehicle_id", "time": "timestamp", "longitude": "longitude", "latitude": "latitude"},
        unit="mps",
        origin="scascketta/CapMetrics, data/vehicle_positions/2017-03-21.csv",
    ),
    "mbta": Preset(
        title="MBTA's V3 API, /vehicles (JSON:API)",
        keys={
            "plate": "id",
            "time": "attributes.updated_at",
            "longitude": "attributes.longitude",
            "latitude": "attributes.latitude",
            "speed": "attributes.speed",
            "records": "data",
        },
        unit="mps",
        origin="api-v3.mbta.com, resource Vehicle",
    ),
    "hfp": Preset(
        title="HSL's high-frequency positions (Digitransit), the payload of event VP",
        keys={
            "plate": "VP.veh",
            "time": "VP.tst",
            "longitude": "VP.long",
            "latitude": "VP.lat",
            "speed": "VP.spd",
        },
        unit="mps",
        origin="digitransit.fi, high-frequency positioning; HSLdevcom/transitdata-common protos/hfp.proto",
    ),
    "rio-sppo": Preset(
        title="Rio de Janeiro's buses (SPPO): text throughout, decimal commas",
        keys={
            "plate": "ordem",
            "time": "datahora",
            "time_format": "epoch_ms",
            "longitude": "longitude",
            "latitude": "latitude",
            "speed": "velocidade",
        },
        unit="kmh",
        origin="dados.mobilidade.rio/gps/sppo, as its readers describe it",
    ),
}
"""By the name that `source.preset` has. Keys that a preset leaves out have the values of the contract's form."""

WITHOUT_SPEED: Final = {
    "wmata": "BusPositions of WMATA's JSON API has no speeds; its GTFS-realtime feed has: gtfs-rt",
    "nextbus": "times are seconds before a time that the message has once (secsSinceReport), which no path reaches",
    "umo": "times are seconds before a time that the message has once (secsSinceReport), which no path reaches",
    "tfl": "TfL's unified API has arrivals and no positions of buses",
}
"""Feeds that someone may ask for by name, and why there can be no preset."""
