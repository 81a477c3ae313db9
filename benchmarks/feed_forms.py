"""One recording in the forms that feeds of cities have: what `init` has to find out. `way_in` runs them.

Positions are rounded to what GTFS-realtime's 32 bits hold, so that all forms have the same pings.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

import numpy as np
from google.transit.gtfs_realtime_pb2 import FeedMessage

Ping = dict[str, Any]
"""In the contract's form, decoded; times in whole seconds."""

MPH, MPS = 1.609344, 3.6
FLAT = ("vehicle", "when_date", "speed", "latitude", "longitude")
POLL_S = 300
"""A poll has the pings of so long, and those of the poll before again, as servers repeat what they have."""


def recorded(messages: Sequence[bytes]) -> list[Ping]:
    """Single pings of the contract's form, by their times, each once."""
    pings = {}
    for message in messages:
        ping = json.loads(message)
        place = [float(np.float32(value)) for value in ping["location"]["coordinates"]]
        pings[ping["license_plate"], ping["observationDateTime"]] = ping | {
            "location": {"type": "Point", "coordinates": place}
        }
    return sorted(pings.values(), key=lambda ping: (moment(ping), ping["license_plate"]))


def moment(ping: Ping) -> datetime:
    return datetime.fromisoformat(ping["observationDateTime"])


def epoch_s(ping: Ping) -> int:
    return int(moment(ping).timestamp())


def local(ping: Ping, pattern: str) -> str:
    return moment(ping).strftime(pattern)


def coordinates(ping: Ping) -> list[float]:
    found: list[float] = ping["location"]["coordinates"]
    return found


def lines(pings: Sequence[Ping], make: Callable[[Ping], object]) -> bytes:
    return "\n".join(json.dumps(make(one)) for one in pings).encode()


def table(
    pings: Sequence[Ping],
    delimiter: str,
    header: Sequence[str],
    row: Callable[[Ping], Sequence[object]],
    *,
    decimal_comma: bool = False,
) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter)
    writer.writerow(header)
    for one in pings:
        cells = [str(cell) for cell in row(one)]
        writer.writerow([cell.replace(".", ",") if decimal_comma and at > 1 else cell for at, cell in enumerate(cells)])
    return out.getvalue().encode()


def nested(ping: Ping) -> Ping:
    """An entity of GTFS-realtime as JSON, as protobuf's own mapping writes it."""
    lon, lat = coordinates(ping)
    return {
        "id": ping["trip_id"],
        "vehicle": {
            "trip": {"tripId": ping["trip_id"]},
            "vehicle": {"id": ping["license_plate"]},
            "timestamp": str(epoch_s(ping)),
            "position": {"latitude": lat, "longitude": lon, "speed": ping["speed"] / MPS},
        },
    }


def flat(ping: Ping, **changes: object) -> Ping:
    lon, lat = coordinates(ping)
    made = {
        "bus_id": ping["license_plate"],
        "timestamp": epoch_s(ping),
        "lon": lon,
        "lat": lat,
        "speed": ping["speed"],
        "route": ping["route_id"],
    }
    return made | changes


def feature(ping: Ping) -> Ping:
    named = {"plate": ping["license_plate"], "time": ping["observationDateTime"], "speed": ping["speed"]}
    return {"type": "Feature", "geometry": ping["location"], "properties": named}


def exchange_feature(ping: Ping) -> Ping:
    """With the exchange's names."""
    names = "license_plate", "observationDateTime", "speed"
    return {"type": "Feature", "geometry": ping["location"], "properties": {name: ping[name] for name in names}}


def resource(ping: Ping) -> Ping:
    """Of the MBTA's API: JSON:API."""
    lon, lat = coordinates(ping)
    at, speed = ping["observationDateTime"], ping["speed"] / MPS
    attributes = {"updated_at": at, "longitude": lon, "latitude": lat, "speed": speed}
    return {"type": "vehicle", "id": ping["license_plate"], "attributes": attributes}


def high_frequency(pings: Sequence[Ping]) -> bytes:
    """Of Helsinki's MQTT, the payloads."""
    numbers = numbered(pings)

    def payload(ping: Ping) -> Ping:
        lon, lat = coordinates(ping)
        place = {"long": lon, "lat": lat, "spd": ping["speed"] / MPS}
        return {"VP": {"veh": numbers[ping["license_plate"]], "tst": ping["observationDateTime"], **place}}

    return lines(pings, payload)


def integers(pings: Sequence[Ping]) -> bytes:
    numbers = numbered(pings)
    return lines(pings, lambda one: flat(one, bus_id=numbers[one["license_plate"]]))


def rio(ping: Ping) -> Ping:
    lon, lat = (str(value).replace(".", ",") for value in coordinates(ping))
    times = {"datahora": str(epoch_s(ping) * 1000)}
    return {
        "ordem": ping["license_plate"],
        "longitude": lon,
        "latitude": lat,
        **times,
        "velocidade": str(ping["speed"]),
    }


def numbered(pings: Sequence[Ping]) -> dict[str, int]:
    """A number for each plate."""
    return {plate: 1000 + at for at, plate in enumerate(sorted({ping["license_plate"] for ping in pings}))}


def snapshot(pings: Sequence[Ping]) -> bytes:
    """One message of GTFS-realtime."""
    feed = FeedMessage()
    feed.header.gtfs_realtime_version, feed.header.timestamp = "2.0", max(map(epoch_s, pings))
    for place, ping in enumerate(pings):
        lon, lat = coordinates(ping)
        entity = feed.entity.add(id=str(place))
        entity.vehicle.vehicle.id, entity.vehicle.timestamp = ping["license_plate"], epoch_s(ping)
        entity.vehicle.position.longitude, entity.vehicle.position.latitude = lon, lat
        entity.vehicle.position.speed = ping["speed"] / MPS
    message: bytes = feed.SerializeToString()
    return message


def polls(pings: Sequence[Ping], form: Callable[[Sequence[Ping]], bytes]) -> Iterator[bytes]:
    """What a polled address answers, one poll after the other."""
    first, last = epoch_s(pings[0]), epoch_s(pings[-1])
    for start in range(first, last + 1, POLL_S):
        some = [ping for ping in pings if start - POLL_S <= epoch_s(ping) < start + POLL_S]
        if some:
            yield form(some)


def vehicles(pings: Sequence[Ping]) -> bytes:
    """A JSON answer of a feed's own form."""
    return json.dumps({"data": {"vehicles": [flat(one) for one in pings]}}).encode()


FORMS: dict[str, Callable[[Sequence[Ping]], bytes]] = {
    "plain.ndjson": lambda pings: lines(pings, lambda one: one),
    "array.json": lambda pings: json.dumps(pings, indent=1).encode(),
    "envelope.json.gz": lambda pings: gzip.compress(json.dumps({"title": "x", "results": pings}).encode()),
    "strings.ndjson": lambda pings: lines(pings, lambda one: json.dumps(one)),
    "gtfs.json": lambda pings: json.dumps(
        {"header": {"timestamp": 1}, "entity": [nested(one) for one in pings]}
    ).encode(),
    "snapshots.ndjson": lambda pings: b"\n".join(vehicles(pings[at : at + 50]) for at in range(0, len(pings), 50)),
    "vehicles.json": vehicles,
    "milliseconds.ndjson": lambda pings: lines(pings, lambda one: flat(one, timestamp=epoch_s(one) * 1000)),
    "microseconds.ndjson": lambda pings: lines(pings, lambda one: flat(one, timestamp=epoch_s(one) * 10**6)),
    "local.ndjson": lambda pings: lines(pings, lambda one: flat(one, timestamp=local(one, "%Y-%m-%d %H:%M:%S"))),
    "pattern.ndjson": lambda pings: lines(pings, lambda one: flat(one, timestamp=local(one, "%d/%m/%Y %I:%M:%S %p"))),
    "integers.ndjson": integers,
    "texts.ndjson": lambda pings: lines(
        pings, lambda one: {key: str(value).replace(".", ",") for key, value in flat(one).items()}
    ),
    "mph.ndjson": lambda pings: lines(pings, lambda one: flat(one, speed=one["speed"] / MPH)),
    "exchanged.ndjson": lambda pings: lines(
        pings, lambda one: flat(one, lon=coordinates(one)[1], lat=coordinates(one)[0])
    ),
    "geojson.json": lambda pings: json.dumps(
        {"type": "FeatureCollection", "features": [feature(one) for one in pings]}
    ).encode(),
    "mbta.json": lambda pings: json.dumps({"data": [resource(one) for one in pings]}).encode(),
    "hfp.ndjson": high_frequency,
    "rio.json": lambda pings: json.dumps([rio(one) for one in pings]).encode(),
    "semicolons.csv": lambda pings: table(
        pings,
        ";",
        FLAT,
        lambda one: [
            one["license_plate"], local(one, "%d.%m.%Y %H:%M:%S"), one["speed"], *coordinates(one)[::-1],
        ],
        decimal_comma=True,
    ),
    "tabs.tsv": lambda pings: table(
        pings, "\t", FLAT, lambda one: [one["license_plate"], epoch_s(one), one["speed"], *coordinates(one)[::-1]]
    ),
    "bars.txt": lambda pings: table(
        pings,
        "|",
        ["license_plate", "observationDateTime", "speed", "location.coordinates"],
        lambda one: [one["license_plate"], one["observationDateTime"], one["speed"], json.dumps(coordinates(one))],
    ),
    "gtfs.pb": snapshot,
    "contract_seconds.ndjson": lambda pings: lines(pings, lambda one: one | {"observationDateTime": epoch_s(one)}),
    "contract_local.ndjson": lambda pings: lines(
        pings, lambda one: one | {"observationDateTime": local(one, "%Y-%m-%dT%H:%M:%S")}
    ),
    "contract_exchanged.ndjson": lambda pings: lines(
        pings, lambda one: one | {"location": {"type": "Point", "coordinates": coordinates(one)[::-1]}}
    ),
    "exchange.geojson": lambda pings: json.dumps(
        {"type": "FeatureCollection", "features": [exchange_feature(one) for one in pings]}
    ).encode(),
}  # fmt: skip
"""A file's name, and what is in it."""

UNITS = {"gtfs.json": "mps", "mph.ndjson": "mph", "mbta.json": "mps", "hfp.ndjson": "mps", "gtfs.pb": "mps"}
"""Of speeds, where they are not in km/h."""
