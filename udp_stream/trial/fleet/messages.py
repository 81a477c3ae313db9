"""From columns of a made-up fleet to the JSON of its messages, fast.

Whatever repeats is written once and looked up, so that a message costs two additions of bytes.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import numpy as np

from udp_stream.trial.fleet.motion import DAY_S, UNKNOWN, Records

IST = timezone(timedelta(hours=5, minutes=30))
IST_OFFSET_S = 19_800
PLATES_PER_SERIES = 9999
MOST_BUSES = 26 * PLATES_PER_SERIES
RESOURCE_ID = "synthetic.invalid/udp-stream/fleet"
"""`.invalid` is a name that RFC 2606 keeps from ever being someone's."""

_HEAD = (
    b'{"license_plate":"GJ05ZZ0001","observationDateTime":"2024-01-08T05:30:00+05:30",'
    b'"location":{"type":"Point","coordinates":[72.000000,21.000000]},'
)
_PLATE, _TIME, _LON, _LAT = (_HEAD.index(text) for text in (b"GJ05", b"2024", b"000000,", b"000000]"))
_HEAD_PARTS = np.dtype(
    {
        "names": ["plate", "date", "minute", "second", "lon", "lon_rest", "lat", "lat_rest"],
        "formats": ["S10", "S10", "S5", "S2", "S3", "S3", "S3", "S3"],
        "offsets": [_PLATE, _TIME, _TIME + 11, _TIME + 17, _LON, _LON + 3, _LAT, _LAT + 3],
        "itemsize": len(_HEAD),
    }
)
"""The whole degrees never change: see `fleet_routes.EDGE_KM`."""
_SPEED_CODES = 1000
"""Speeds are looked up by their tenths of km/h, and this much more where a decimal is written."""
TEXTS_PER_BUS = 16
"""Texts remembered at most, 5 kB a bus; then all are forgotten. More would only push live ones out of the cache."""
STOP_BITS = 20


def plate(bus: int) -> str:
    """The made-up plate of bus 0, 1, ...: series ZZ first, then ZY down to ZA.

    >>> plate(0), plate(9998), plate(9999)
    ('GJ05ZZ0001', 'GJ05ZZ9999', 'GJ05ZY0001')
    """
    series, number = divmod(bus, PLATES_PER_SERIES)
    return f"GJ05Z{chr(ord('Z') - series)}{number + 1:04d}"


class Encoder:
    """Turns `PING` records into messages; remembers the texts that repeat.

    A message is a head of fixed width (plate, time, place), filled in column by column; a middle that changes only
    when the bus reaches a stop, remembered by trip and stop; and a tail with the speed.
    """

    def __init__(self, routes: tuple[str, ...], plates: tuple[str, ...], exchange: bool) -> None:
        """`routes` without their direction's letter, `plates` by bus; `exchange` writes all 13 fields."""
        self._plates = np.array([plate.encode() for plate in plates])
        self._minutes = np.array([f"{minute // 60:02d}:{minute % 60:02d}".encode() for minute in range(1440)])
        self._digits2 = np.array([f"{number:02d}".encode() for number in range(60)])
        self._digits3 = np.array([f"{number:03d}".encode() for number in range(1000)])
        self._routes = routes
        self._middle = self._exchange_middle if exchange else self._minimal_middle
        self._stop_mask = (1 << STOP_BITS) - 1 if exchange else 0
        self._texts: dict[int, bytes] = {}
        self._trips: dict[int, str] = {}
        self._tails = [f',"speed":{tenths // 10}}}'.encode() for tenths in range(_SPEED_CODES)]
        self._tails += [f',"speed":{tenths // 10}.{tenths % 10}}}'.encode() for tenths in range(_SPEED_CODES)]

    def encode(self, pings: Records) -> list[bytes]:
        """One message for each ping: no spaces, coordinates with six decimals, times to the second at +05:30."""
        codes = (pings["tenths"] + _SPEED_CODES * pings["as_float"]).tolist()
        tails = map(self._tails.__getitem__, codes)
        return list(map(b"".join, zip(self._heads(pings), self._middles(pings), tails, strict=True)))

    def _heads(self, pings: Records) -> list[bytes]:
        heads = np.frombuffer(_HEAD * len(pings), np.uint8).copy().view(_HEAD_PARTS)
        days, index = np.unique(pings["second"] // DAY_S, return_inverse=True)
        heads["plate"] = self._plates.take(pings["bus"])
        heads["date"] = np.array([_iso(day * DAY_S)[:10].encode() for day in days.tolist()])[index]
        heads["minute"] = self._minutes.take(pings["second"] // 60 % 1440)
        heads["second"] = self._digits2.take(pings["second"] % 60)
        for name in ("lon", "lat"):
            digits = pings[f"{name}_e6"] % 1_000_000
            heads[name] = self._digits3.take(digits // 1000)
            heads[f"{name}_rest"] = self._digits3.take(digits % 1000)
        texts: list[bytes] = heads.view(f"S{len(_HEAD)}").tolist()
        return texts

    def _middles(self, pings: Records) -> list[bytes]:
        progress = pings["progress"]
        keys = ((progress["trip"].astype(np.int64) << STOP_BITS) | (progress["stop"] & self._stop_mask)).tolist()
        if len(self._texts) > TEXTS_PER_BUS * len(self._plates):
            self._texts.clear()
        for key, at in {key: at for at, key in enumerate(keys) if key not in self._texts}.items():
            self._texts[key] = self._middle(pings[at]).encode()
        return list(map(self._texts.__getitem__, keys))

    def _minimal_middle(self, ping: np.void) -> str:
        route, direction, trip, *_ = ping["progress"].item()
        return f'"route_id":"{self._routes[route]}{"U" if direction > 0 else "D"}","trip_id":"{trip}"'

    def _exchange_middle(self, ping: np.void) -> str:
        _, _, trip, _, stop, delay, arrival = ping["progress"].item()
        if len(self._trips) > TEXTS_PER_BUS * len(self._plates):
            self._trips.clear()
        if trip not in self._trips:
            self._trips[trip] = self._exchange_trip(ping)
        return (
            f'{self._trips[trip]},"trip_delay":{"null" if delay == UNKNOWN else delay},"last_stop_id":"{stop}",'
            f'"last_stop_arrival_time":{"null" if arrival == UNKNOWN else _clock(arrival)}'
        )

    def _exchange_trip(self, ping: np.void) -> str:
        """What stays the same for a whole trip."""
        _, direction, _, trip_start, *_ = ping["progress"].item()
        started = int(ping["second"]) // DAY_S * DAY_S + trip_start
        return (
            f'"id":"{RESOURCE_ID}","vehicle_label":"Z{ping["bus"] + 1:02d}",{self._minimal_middle(ping)},'
            f'"trip_direction":"{"UP" if direction > 0 else "DN"}","actual_trip_start_time":"{_iso(started)}"'
        )


def _iso(second: int) -> str:
    """A local second since the epoch as ISO-8601."""
    return datetime.fromtimestamp(second - IST_OFFSET_S, IST).isoformat()


def _clock(second: int) -> str:
    """A second of the day as a JSON string, HH:MM:SS."""
    return f'"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"'
