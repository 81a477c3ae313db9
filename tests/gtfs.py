"""GTFS-realtime messages as servers send them."""

from google.transit.gtfs_realtime_pb2 import FeedMessage

START_S = 1_704_688_200
"""2024-01-08T10:00:00+05:30."""


def vehicle(plate="", number="", time_s=START_S, lon=72.5, lat=21.25, speed=5.0, **more):
    """What `snapshot` makes an entity of; None leaves a field unset."""
    return {
        "plate": plate,
        "number": number,
        "time_s": time_s,
        "lon": lon,
        "lat": lat,
        "speed": speed,
        **more,
    }


def snapshot(*vehicles, header_s=START_S):
    feed = FeedMessage()
    feed.header.gtfs_realtime_version = "2.0"
    if header_s is not None:
        feed.header.timestamp = header_s
    for place, fields in enumerate(vehicles):
        entity = feed.entity.add(id=str(place))
        if fields.get("deleted"):
            entity.is_deleted = True
        if fields.get("trip_update"):
            entity.trip_update.trip.trip_id = "1"
            continue
        if fields.get("alert"):
            entity.alert.url.translation.add(text="1")
            continue
        if fields["plate"]:
            entity.vehicle.vehicle.license_plate = fields["plate"]
        if fields["number"]:
            entity.vehicle.vehicle.id = fields["number"]
        if fields.get("label"):
            entity.vehicle.vehicle.label = fields["label"]
        if fields["time_s"] is not None:
            entity.vehicle.timestamp = fields["time_s"]
        for name, value in (
            ("longitude", fields["lon"]),
            ("latitude", fields["lat"]),
            ("speed", fields["speed"]),
        ):
            if value is not None:
                setattr(entity.vehicle.position, name, value)
    return feed.SerializePartialToString()


GTFS_CASES = {
    "04-frozen": "25 plates report a speed above 5 km/h and do not move",
    "15-stale-times": "480 of 480 pings are over 10 min older than their message's header",
}
"""Polls that were found to be wrong, and what has to be said of them."""
