"""Feeds that are known by name: where they have the fields of a ping, and in which unit their speeds are.

Each is read from its specification or from recorded messages; docs/feeds.md has the addresses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from udp_stream.pings.mapping import FIELDS, FeedMapping


@dataclass(frozen=True, slots=True)
class Preset:
    """The keys of `[source]` that a feed needs, and the unit of its speeds; None where the feed does not say.

    >>> PRESETS["gtfs-rt"].keys["records"], PRESETS["gtfs-rt"].unit
    ('entity', 'mps')
    """

    title: str
    unit: str | None
    keys: dict[str, Any]

    @property
    def mapping(self) -> FeedMapping:
        """Where the feed has the fields of a ping."""
        return FeedMapping(**self.keys, zone=None)


def _preset(title: str, unit: str | None, *paths: str | tuple[str, ...], **more: str) -> Preset:
    """Paths in the order of `FIELDS`, as many as are not those of the contract's form."""
    return Preset(title, unit, dict(zip(FIELDS, paths, strict=False)) | more)


PRESETS: Final = {
    # iudx-resource-server docs/openapi.yaml; unit by displacement (docs/pings.md)
    "iudx": _preset("India's data exchange, TransitManagement; also numbers as text and integer plates", "kmh"),
    # RFC 7946, sections 3.2 and 3.3
    "geojson": _preset(
        *("GeoJSON features with the exchange's names as properties", None),
        *("properties.license_plate", "properties.observationDateTime"),
        *("geometry.coordinates.0", "geometry.coordinates.1", "properties.speed"),
    ),
    # google/transit gtfs-realtime.proto, JSON by protobuf's own mapping
    "gtfs-rt": _preset(
        *("GTFS-realtime VehiclePositions as JSON, names in camelCase or with underscores", "mps"),
        *("vehicle.vehicle.id", "vehicle.timestamp"),
        *("vehicle.position.longitude", "vehicle.position.latitude", "vehicle.position.speed"),
        time_format="epoch_s",
        records="entity",
        message_time="header.timestamp",
    ),
    # scascketta/CapMetrics, data/vehicle_positions/2017-03-21.csv
    "capmetro": _preset(
        *("CSV of CapMetrics' recordings of Austin's buses, from 2016 on", "mps"),
        *("vehicle_id", "timestamp", "longitude", "latitude"),
    ),
    # api-v3.mbta.com, resource Vehicle
    "mbta": _preset(
        *("MBTA's V3 API, /vehicles (JSON:API)", "mps", "id", "attributes.updated_at"),
        *("attributes.longitude", "attributes.latitude", "attributes.speed"),
        records="data",
    ),
    # digitransit.fi, high-frequency positioning; HSLdevcom/transitdata-common protos/hfp.proto
    "hfp": _preset(
        *("HSL's high-frequency positions (Digitransit), the payload of event VP", "mps"),
        *(("VP.oper", "VP.veh"), "VP.tst", "VP.long", "VP.lat", "VP.spd"),
    ),
    # Clever Devices' Developer API Guide 3.0, getvehicles with tmres=s, as Chicago's CTA and others have it
    "bustime": _preset(
        *("Clever Devices' BusTime, getvehicles with tmres=s (Chicago's CTA and others)", "mph"),
        *("vid", "tmstmp", "lon", "lat", "spd"),
        time_format="%Y%m%d %H:%M:%S",
        records="bustime-response.vehicle",
    ),
    # Public XML feed, command vehicleLocations (NextBus, now Umo IQ), as its JSON has it
    "nextbus": _preset(
        *("NextBus and Umo, vehicleLocations as JSON", "kmh"),
        *("id", "secsSinceReport", "lon", "lat", "speedKmHr"),
        time_format="seconds_ago",
        records="vehicle",
        message_time="lastTime.time",
    ),
    # dados.mobilidade.rio/gps/sppo, as its readers describe it
    "rio-sppo": _preset(
        *("Rio de Janeiro's buses (SPPO): text throughout, decimal commas", "kmh"),
        *("ordem", "datahora", "longitude", "latitude", "velocidade"),
        time_format="epoch_ms",
    ),
}
"""By the name that `source.preset` has. Keys that a preset leaves out have the values of the contract's form."""

WITHOUT_SPEED: Final = {
    "wmata": "BusPositions of WMATA's JSON API has no speeds: `init` of a sample names its paths, with speed.from = "
    "'movement'; its GTFS-realtime feed has speeds: gtfs-rt",
    "umo": "it is nextbus",
    "tfl": "TfL's unified API has arrivals and no positions of buses",
}
"""Feeds that someone may ask for by name, and why there can be no preset."""
