"""A made-up city's buses in a form of their own, for docs/tutorial.md: a file of one morning, or a live address.

    python examples/my_city.py > monday.csv
    python examples/my_city.py --serve 8765 --speedup 300     # http://127.0.0.1:8765/buses.json

Buses and streets are invented (`udp_stream.sources.fleet`): nothing here is anybody's data.
"""

import argparse
import json
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, HTTPServer

from udp_stream.sources.fleet import Fleet

IST = timezone(timedelta(hours=5, minutes=30))
MORNING = datetime(2024, 1, 8, 7, tzinfo=IST)


FIELDS = "bus", "gps_time", "lng", "lat", "velocity"
WINDOW = timedelta(minutes=10)
"""What an answer of the address covers: polls repeat each other, as those of real feeds do."""

Ping = tuple[str, str, float, float, float]


def pings(fleet: Fleet) -> Iterator[tuple[datetime, Ping]]:
    """By time: when, and bus, local time without an offset, longitude, latitude, km/h."""
    plates = fleet.plates
    for chunk in fleet.chunks():
        columns = chunk.plate, chunk.time_ms, chunk.lon, chunk.lat, chunk.speed_kmh
        for plate, time_ms, lon, lat, kmh in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            moment = datetime.fromtimestamp(time_ms / 1000, IST)
            yield (
                moment,
                (
                    plates[plate],
                    f"{moment:%Y-%m-%d %H:%M:%S}",
                    round(lon, 6),
                    round(lat, 6),
                    round(kmh),
                ),
            )


def print_csv(fleet: Fleet) -> None:
    """Semicolons, and names of its own."""
    print(";".join(FIELDS))
    for _, ping in pings(fleet):
        print(*ping, sep=";")


def serve(fleet: Fleet, port: int, speedup: float) -> None:
    """The pings of the last minutes as a JSON array; the city's clock runs `speedup` times as fast, from the first
    question on."""
    began, coming, recent = list[float](), pings(fleet), deque[tuple[datetime, Ping]]()
    waiting = [next(coming)]

    class Buses(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            began[:] = began or [time.monotonic()]
            now = fleet.start + timedelta(seconds=(time.monotonic() - began[0]) * speedup)
            while waiting and waiting[0][0] <= now:
                recent.append(waiting.pop())
                waiting.extend(ping for ping in [next(coming, None)] if ping)
            while recent and waiting and recent[0][0] < now - WINDOW:
                recent.popleft()
            body = json.dumps([dict(zip(FIELDS, ping, strict=True)) for _, ping in recent]).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(BrokenPipeError):  # who asked has gone
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    HTTPServer(("127.0.0.1", port), Buses).serve_forever()


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--buses", type=int, default=200)
    parser.add_argument("--hours", type=float, default=3)
    parser.add_argument("--serve", type=int, metavar="PORT")
    parser.add_argument("--speedup", type=float, default=60)
    asked = parser.parse_args()
    fleet = Fleet(seed=7, buses=asked.buses, start=MORNING, hours=asked.hours)
    if asked.serve is None:
        print_csv(fleet)
    else:
        serve(fleet, asked.serve, asked.speedup)


if __name__ == "__main__":
    main()
