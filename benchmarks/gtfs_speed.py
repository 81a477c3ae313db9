"""`python -m benchmarks.gtfs_speed`: vehicles of GTFS-realtime messages a second, on one core, best of ten runs.

A message of 1,715 vehicles, as Delhi's; or the messages of files that are named.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from google.transit.gtfs_realtime_pb2 import FeedMessage

from benchmarks.words import words
from udp_stream.pings.decoder import PingDecoder, PingRules
from udp_stream.pings.gtfs_realtime import GTFS_REALTIME, SINGLE, UNIT
from udp_stream.pings.unrepeated import Unrepeated

VEHICLES, START_S = 1715, 1_704_688_200
RULES = PingRules(unit=UNIT, max_kmh=65, reject_above_kmh=200, max_pings_per_message=10**6, max_message_bytes=10**8)


def message() -> bytes:
    feed = FeedMessage()
    feed.header.gtfs_realtime_version, feed.header.timestamp = "2.0", START_S
    for bus in range(VEHICLES):
        entity = feed.entity.add(id=f"DL1PC{bus:04}")
        entity.vehicle.trip.trip_id, entity.vehicle.trip.route_id = f"{bus}_10_40", str(bus % 300)
        entity.vehicle.vehicle.id = entity.vehicle.vehicle.label = f"DL1PC{bus:04}"
        entity.vehicle.timestamp = START_S - bus % 60
        entity.vehicle.position.longitude, entity.vehicle.position.latitude = 77 + bus / 10_000, 28.5
        entity.vehicle.position.speed = bus % 20
    return feed.SerializeToString()


def rate(vehicles: int, work: Callable[[], object]) -> str:
    times = []
    for _ in range(10):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return f"{vehicles / min(times):,.0f}/s"


def main(files: list[str]) -> None:
    messages = [Path(file).read_bytes() for file in files] or [message()] * 10
    decoder, single = PingDecoder(RULES, GTFS_REALTIME), PingDecoder(RULES, SINGLE)
    vehicles = sum(len(FeedMessage.FromString(one).entity) for one in messages)
    print("opened by protobuf alone     ", rate(vehicles, lambda: [FeedMessage.FromString(one) for one in messages]))
    print("decoded to columns           ", rate(vehicles, lambda: decoder.decode(messages)))

    def polled(again: bool) -> None:
        for one in messages:
            once = Unrepeated(GTFS_REALTIME, RULES.max_message_bytes, RULES.max_pings_per_message)
            single.decode(once.take(one))
            if again:
                single.decode(once.take(one))

    print("each ping new, to columns    ", rate(vehicles, lambda: polled(again=False)))
    print("every second poll all repeats", rate(2 * vehicles, lambda: polled(again=True)))


if __name__ == "__main__":
    main(words(__doc__, "FILE", "*"))
