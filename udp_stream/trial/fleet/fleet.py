"""A synthetic bus fleet: pings of a made-up city, as the exchange would deliver them, faults and all.

The real feed of Surat has no licence, so demonstrations and benchmarks run on this one. Only published statistics of
the real feed went into it (one half hour, 2022-01-01 10:10-10:41, 208 plates): 29 % zero speeds, median 15, 99th
percentile 49 and maximum 62 km/h, whole km/h in 98.8 % of pings, 10 s the commonest interval, 45 % of neighbours out of
order, about 60 cells of H3 resolution 7. Places, routes, stops, trips and plates are invented.

Plates are `GJ05ZZ0001` and on, then `GJ05ZY0001`: the district is real, the series from `ZA` to `ZZ` is meant to look
made up. Any likeness to a registered vehicle is chance.

A fleet is a function of its arguments: the same arguments give the same bytes, on every platform (see `fleet_routes`).
What goes wrong on the way (`Imperfections`) is drawn apart from what the buses do: `columns()` is the same with and
without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import BinaryIO, Literal

import numpy as np

from udp_stream.errors import UsageError
from udp_stream.trial.fleet.faults import DELIVERY, Imperfections, send, spoil
from udp_stream.trial.fleet.messages import IST, IST_OFFSET_S, MOST_BUSES, Encoder, plate
from udp_stream.trial.fleet.motion import DAY_S, FIRST_TRIP, Records, draw_day
from udp_stream.trial.fleet.routes import City, Floats, Ints, bell, draw_city

__all__ = ["IST", "Fleet", "FleetColumns", "Imperfections", "write_ndjson"]

TRIPS_A_DAY_MAX = 100
"""A bus makes fewer: the shortest route and layover take a quarter of an hour together."""

_CITY, _FLEET, _FAULTS, _DAYS = range(4)  # which generator a seed is spread into


@dataclass(frozen=True)
class FleetColumns:
    """What the buses did, by time; one entry per ping, as written in its message."""

    plate: Ints  # index into `Fleet.plates`
    time_ms: Ints  # UTC, whole seconds
    lat: Floats
    lon: Floats
    speed_kmh: Floats


@dataclass(frozen=True)
class Fleet:
    """A fleet of `buses` on about 60 routes, from `start` for `hours`, each bus pinging about every `ping_seconds`.

    Service runs from 05:30 to 22:30 local (+05:30) with two hours of ramp at either end; outside of it there is
    silence. `fields` is "minimal" (what the platform reads, and route and trip) or "exchange" (all 13 fields of the
    exchange; `trip_delay` and `last_stop_arrival_time` are null as often as there).

    >>> fleet = Fleet(buses=3, start=datetime(2024, 1, 8, 10, 0, tzinfo=IST), hours=0.1)
    >>> fleet.plates
    ('GJ05ZZ0001', 'GJ05ZZ0002', 'GJ05ZZ0003')
    >>> next(fleet.messages())[0][:28]
    b'{"license_plate":"GJ05ZZ0003'
    """

    seed: int = 1
    buses: int = 400
    start: datetime = datetime(2024, 1, 8, 5, 0, tzinfo=IST)
    hours: float = 18
    ping_seconds: float = 10
    imperfections: Imperfections = field(default_factory=Imperfections)
    fields: Literal["minimal", "exchange"] = "minimal"

    def __post_init__(self) -> None:
        """Refuse what cannot be driven."""
        if self.seed < 0:
            raise UsageError(f"expected seed >= 0, got {self.seed}")
        if not 1 <= self.buses <= MOST_BUSES:
            raise UsageError(f"expected 1 <= buses <= {MOST_BUSES}, got {self.buses}")
        if self.start.tzinfo is None:
            raise UsageError(f"expected a start with an offset, such as +05:30, got {self.start.isoformat()}")
        if not (math.isfinite(self.hours) and self.hours > 0):
            raise UsageError(f"expected hours > 0, got {self.hours}")
        if not 1 <= self.ping_seconds <= 3600:
            raise UsageError(f"expected 1 <= ping_seconds <= 3600, got {self.ping_seconds}")
        if self.fields not in ("minimal", "exchange"):
            raise UsageError(f"expected fields minimal or exchange, got {self.fields}")

    @property
    def plates(self) -> tuple[str, ...]:
        """The plate of every bus."""
        return tuple(plate(bus) for bus in range(self.buses))

    def messages(self, batch: int = 4096) -> Iterator[list[bytes]]:
        """JSON messages in the order of delivery, `batch` at a time (the last list may be shorter).

        Holds at most ten minutes of pings and those that are still on their way, never the run.
        """
        for _, messages in self.deliveries(batch):
            yield messages

    def deliveries(self, batch: int = 4096, shift_s: int = 0) -> Iterator[tuple[Floats, list[bytes]]]:
        """The same, each list with the times at which its messages arrive: Unix time in seconds, ascending.

        Everything is `shift_s` seconds later than it was: the same day of the fleet at another time of the world's.
        """
        if batch < 1:
            raise UsageError(f"expected batch >= 1, got {batch}")
        encode = Encoder(self._city().names, self.plates, exchange=self.fields == "exchange").encode
        kept = np.empty(0, DELIVERY)
        for arrived in self._deliveries():
            arrived["ping"]["second"] += shift_s
            arrived["arrives"] += shift_s
            kept = np.concatenate([kept, arrived])
            whole = len(kept) - len(kept) % batch
            for at in range(0, whole, batch):
                yield _sent(encode, kept[at : at + batch])
            kept = kept[whole:]
        if len(kept):
            yield _sent(encode, kept)

    def chunks(self) -> Iterator[FleetColumns]:
        """What the buses did, at most ten minutes at a time, before anything went wrong on the way."""
        for _, pings in self._pings():
            yield _columns(pings)

    def columns(self) -> FleetColumns:
        """The same for the whole run at once: 40 bytes a ping, so mind the memory of long runs."""
        return _columns(np.concatenate([pings for _, pings in self._pings()]))

    def _rng(self, *key: int) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence(self.seed, spawn_key=key)))

    def _city(self) -> City:
        return draw_city(self._rng(_CITY))

    def _pings(self) -> Iterator[tuple[int, Records]]:
        """(end of chunk, its pings by time), with `second` counted from the epoch in local time."""
        city, rng = self._city(), self._rng(_FLEET)
        route = np.searchsorted(city.popularity, rng.random(self.buses), side="right")
        driver = 1.0 + 0.05 * bell(rng, self.buses)
        start = math.floor(self.start.timestamp()) + IST_OFFSET_S
        end = start + math.ceil(self.hours * 3600)
        trips = FIRST_TRIP
        for day in range(start // DAY_S, -(-end // DAY_S)):
            midnight, day_rng = day * DAY_S, self._rng(_DAYS, day)
            first, last = max(start - midnight, 0), min(end - midnight, DAY_S)
            for chunk_end, pings in draw_day(day_rng, city, route, driver, first, last, self.ping_seconds, trips):
                pings["second"] += midnight
                yield midnight + chunk_end, pings
            trips += TRIPS_A_DAY_MAX * self.buses

    def _deliveries(self) -> Iterator[Records]:
        """Pings with their flaws in the order in which they arrive, those that came in one chunk at a time."""
        rng, waiting = self._rng(_FAULTS), np.empty(0, DELIVERY)
        for chunk_end, pings in self._pings():
            waiting = np.concatenate([waiting, send(rng, self.imperfections, pings)])
            waiting = waiting[np.argsort(waiting["arrives"], kind="stable")]  # stable: the same on every platform
            here = int(np.searchsorted(waiting["arrives"], chunk_end))
            yield waiting[:here]
            waiting = waiting[here:]
        yield waiting


def _sent(encode: Callable[[Records], list[bytes]], sent: Records) -> tuple[Floats, list[bytes]]:
    return sent["arrives"] - IST_OFFSET_S, spoil(encode(sent["ping"]), sent)


def _columns(pings: Records) -> FleetColumns:
    return FleetColumns(
        plate=pings["bus"].astype(np.int64),
        time_ms=(pings["second"] - IST_OFFSET_S) * 1000,
        lat=pings["lat_e6"] / 1e6,
        lon=pings["lon_e6"] / 1e6,
        speed_kmh=pings["tenths"] / 10,
    )


def write_ndjson(fleet: Fleet, file: BinaryIO) -> int:
    """Write a fleet's messages to an open binary file, one a line; answers how many."""
    count = 0
    for batch in fleet.messages():
        file.write(b"\n".join(batch) + b"\n")
        count += len(batch)
    return count
