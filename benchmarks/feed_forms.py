"""One recording in the forms that feeds of cities have: what `init` has to find out. `way_in` runs
them.

Positions are rounded to what GTFS-realtime's 32 bits hold, so that all forms have the same pings.
"""

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

MPH = 1.609344
MPS = 3.6
KNOTS = 1.852
FLAT = ("vehicle", "when_date", "speed", "latitude", "longitude")
POLL_S = 300
"""A poll has the pings of so long, and those of the poll before again, as servers repeat what they
have."""


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
    pings: Sequence[Ping], delimiter: str, header: Sequence[str], row: Callable[[Ping], Sequence[object]], *,
    decimal_comma: bool = False,
) -> bytes:  # fmt: skip
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter)
    writer.writerow(header)
    for one in pings:
        cells = [str(cell) for cell in row(one)]
        writer.writerow(
            [
                cell.replace(".", ",") if decimal_comma and at > 1 else cell
                for at, cell in enumerate(cells)
            ]
        )
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
        "bus_id": ping["license_plate"], "timestamp": epoch_s(ping), "lon": lon, "lat": lat, "speed": ping["speed"],
        "route": ping["route_id"],
    }  # fmt: skip
    return made | changes


def feature(ping: Ping) -> Ping:
    named = {
        "plate": ping["license_plate"],
        "time": ping["observationDateTime"],
        "speed": ping["speed"],
    }
    return {"type": "Feature", "geometry": ping["location"], "properties": named}


def exchange_feature(ping: Ping) -> Ping:
    names = "license_plate", "observationDateTime", "speed"
    return {
        "type": "Feature",
        "geometry": ping["location"],
        "properties": {name: ping[name] for name in names},
    }


def resource(ping: Ping) -> Ping:
    lon, lat = coordinates(ping)
    at = ping["observationDateTime"]
    speed = ping["speed"] / MPS
    attributes = {"updated_at": at, "longitude": lon, "latitude": lat, "speed": speed}
    return {"type": "vehicle", "id": ping["license_plate"], "attributes": attributes}


def high_frequency(pings: Sequence[Ping]) -> bytes:
    numbers = numbered(pings)

    def payload(ping: Ping) -> Ping:
        lon, lat = coordinates(ping)
        place = {"long": lon, "lat": lat, "spd": ping["speed"] / MPS}
        vehicle = {"oper": 12, "veh": numbers[ping["license_plate"]]}
        return {"VP": {**vehicle, "tst": ping["observationDateTime"], **place}}

    return lines(pings, payload)


def with_topics(pings: Sequence[Ping]) -> bytes:
    """The same as `mosquitto_sub -v` prints it, with other events between."""
    printed = []
    for at, payload in enumerate(high_frequency(pings).splitlines()):
        printed.append(
            b"/hfp/v2/journey/ongoing/vp/bus/0012/01001/1055/1/Kamppi M/06:00/1130110/5/60;24/19 "
            + payload
        )
        if at % 5 == 0:
            other = payload.replace(b'"VP"', b'"DUE"', 1)
            printed.append(
                b"/hfp/v2/journey/ongoing/due/bus/0012/01001/1055/1/Kamppi M/06:00/1130110/5/60;24 "
                + other
            )
    return b"\n".join(printed)


def shared_numbers(pings: Sequence[Ping]) -> bytes:
    numbers = numbered(pings)

    def of_operator(ping: Ping) -> Ping:
        number = numbers[ping["license_plate"]]
        return flat(ping) | {
            "bus_id": None,
            "operator_id": number % 2,
            "vehicle_number": number // 2,
        }

    return lines(pings, of_operator)


def in_polls(pings: Sequence[Ping], message: Callable[[Sequence[Ping], int], object]) -> bytes:
    """A message on each line for each ten seconds, with the time of its last ping."""
    found: list[object] = []
    while pings:
        behind = next(
            (at for at, one in enumerate(pings) if epoch_s(one) >= epoch_s(pings[0]) + 10),
            len(pings),
        )
        found.append(message(pings[:behind], epoch_s(pings[behind - 1])))
        pings = pings[behind:]
    return "\n".join(map(json.dumps, found)).encode()


def nextbus(pings: Sequence[Ping], sent_s: int) -> Ping:
    vehicles = [
        {
            "id": one["license_plate"],
            **dict(zip(("lon", "lat"), map(str, coordinates(one)), strict=True)),
            "secsSinceReport": str(sent_s - epoch_s(one)),
            "speedKmHr": str(one["speed"]),
        }
        for one in pings
    ]
    return {
        "lastTime": {"time": str(sent_s * 1000)},
        "vehicle": vehicles if len(vehicles) > 1 else vehicles[0],
    }


def bustime(ping: Ping) -> Ping:
    lon, lat = map(str, coordinates(ping))
    speed = {"spd": ping["speed"] / MPH}
    return {
        "vid": ping["license_plate"],
        "tmstmp": local(ping, "%Y%m%d %H:%M:%S"),
        "lat": lat,
        "lon": lon,
        **speed,
    }


def activity(ping: Ping, value: Callable[[str], object]) -> Ping:
    lon, lat = coordinates(ping)
    journey = {
        "LineRef": value(str(ping["route_id"])),
        "VehicleLocation": {"Longitude": lon, "Latitude": lat},
        "Velocity": ping["speed"],
        "VehicleRef": value(ping["license_plate"]),
    }
    return {"RecordedAtTime": ping["observationDateTime"], "MonitoredVehicleJourney": journey}


def siri(pings: Sequence[Ping], sent_s: int) -> Ping:
    """SIRI-VM in JSON, as Finland's cities have it."""
    delivery = {"VehicleActivity": [activity(one, lambda text: {"value": text}) for one in pings]}
    return {
        "Siri": {
            "ServiceDelivery": {
                "ResponseTimestamp": sent_s,
                "VehicleMonitoringDelivery": [delivery],
            }
        }
    }


def siri_xml(pings: Sequence[Ping]) -> bytes:
    """SIRI-VM in XML, one answer."""

    def element(name: str, held: Any) -> str:
        inner = (
            "".join(element(key, one) for key, one in held.items())
            if isinstance(held, dict)
            else str(held)
        )
        return f"<{name}>{inner}</{name}>"

    held = "".join(element("VehicleActivity", activity(one, str)) for one in pings)
    delivery = f"<VehicleMonitoringDelivery>{held}</VehicleMonitoringDelivery>"
    siri = '<Siri xmlns="http://www.siri.org.uk/siri" version="2.0">'
    return f'<?xml version="1.0"?>\n{siri}<ServiceDelivery>{delivery}</ServiceDelivery></Siri>'.encode()


def connected(ping: Ping) -> Ping:
    """Of a connector of Kafka: JSON in a string within its envelope."""
    return {
        "schema": {"type": "struct"},
        "payload": {"value": json.dumps(flat(ping)), "timestamp": epoch_s(ping)},
    }


def with_nan(pings: Sequence[Ping]) -> bytes:
    return json.dumps([flat(one, delay=float("nan")) for one in pings]).encode()


def integers(pings: Sequence[Ping]) -> bytes:
    numbers = numbered(pings)
    return lines(pings, lambda one: flat(one, bus_id=numbers[one["license_plate"]]))


def rio(ping: Ping) -> Ping:
    lon, lat = (str(value).replace(".", ",") for value in coordinates(ping))
    times = {"datahora": str(epoch_s(ping) * 1000)}
    return {
        "ordem": ping["license_plate"], "longitude": lon, "latitude": lat, **times, "velocidade": str(ping["speed"]),
    }  # fmt: skip


def numbered(pings: Sequence[Ping]) -> dict[str, int]:
    return {
        plate: 1000 + at
        for at, plate in enumerate(sorted({ping["license_plate"] for ping in pings}))
    }


def snapshot(pings: Sequence[Ping]) -> bytes:
    return gtfs(pings)


def gtfs(pings: Sequence[Ping], name: str = "id", times: int = 1, unit: float = MPS) -> bytes:
    """The same as some agencies have it: vehicles under another name, times in milliseconds, speeds
    in another unit."""
    feed = FeedMessage()
    feed.header.gtfs_realtime_version, feed.header.timestamp = (
        "2.0",
        max(map(epoch_s, pings)) * times,
    )
    for place, ping in enumerate(pings):
        lon, lat = coordinates(ping)
        entity = feed.entity.add(id=str(place))
        setattr(entity.vehicle.vehicle, name, ping["license_plate"])
        entity.vehicle.timestamp = epoch_s(ping) * times
        entity.vehicle.position.longitude = lon
        entity.vehicle.position.latitude = lat
        entity.vehicle.position.speed = ping["speed"] / unit
    message: bytes = feed.SerializeToString()
    return message


def polls(pings: Sequence[Ping], form: Callable[[Sequence[Ping]], bytes]) -> Iterator[bytes]:
    first = epoch_s(pings[0])
    last = epoch_s(pings[-1])
    for start in range(first, last + 1, POLL_S):
        some = [ping for ping in pings if start - POLL_S <= epoch_s(ping) < start + POLL_S]
        if some:
            yield form(some)


def vehicles(pings: Sequence[Ping]) -> bytes:
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
    "label.pbf": lambda pings: gtfs(pings, name="label"),
    "milliseconds.pb": lambda pings: gtfs(pings, times=1000),
    "kmh.bin": lambda pings: gtfs(pings, unit=1.0),
    "topics.txt": with_topics,
    "operators.ndjson": shared_numbers,
    "nextbus.ndjson": lambda pings: in_polls(pings, nextbus),
    "bustime.json": lambda pings: json.dumps({"bustime-response": {"vehicle": list(map(bustime, pings))}}).encode(),
    "siri.ndjson": lambda pings: in_polls(pings, siri),
    "siri.xml": siri_xml,
    "connector.ndjson": lambda pings: lines(pings, connected),
    "knots.ndjson": lambda pings: lines(pings, lambda one: flat(one, speed=one["speed"] / KNOTS)),
    "nan.json": with_nan,
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

UNITS = {"gtfs.json": "mps", "mph.ndjson": "mph", "mbta.json": "mps", "hfp.ndjson": "mps", "gtfs.pb": "mps"} | {
    "label.pbf": "mps", "milliseconds.pb": "mps", "topics.txt": "mps", "bustime.json": "mph", "knots.ndjson": "knots",
}  # fmt: skip
"""Of speeds, where they are not in km/h."""
