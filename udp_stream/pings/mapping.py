"""Mappings: the paths at which a feed has the fields of a ping, and the mappings of feeds that are
known by name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any, NamedTuple

from udp_stream.pings.decode import FieldPaths
from udp_stream.pings.times import EPOCHS, ISO, OF_A_DAY, TODAY, on_its_day

FIELDS = ("plate", "time", "longitude", "latitude", "speed")
"""The fields of a ping, in the order in which they are read and refused."""

Path = tuple[str | int, ...]
"""Keys of objects, and indices of arrays."""

SECONDS_AGO = "seconds_ago"
"""The time format that counts back from the message's time."""

MESSAGE_TIME = "message_time"
"""The key under which a ping that was cut out of a message has the message's time."""

ANY_KEY = "*"
"""The step of `records` that leads through all keys of an object, and the name under which a ping
has its key."""

INDEX_MAX = 1000
_PATH_CHARS_MAX = 400
_STEPS_MAX = 16  # a larger index is a slip
_NO_KEY = re.compile(r'["\\\x00-\x1f\x7f\ud800-\udfff]')
"""Characters that the quick reader of JSON, and a file of TOML, cannot have in a key as they are."""

_ZONED = datetime(2013, 11, 12, 13, 14, 15, tzinfo=timezone(timedelta(hours=5, minutes=30)))
"""A moment whose parts all differ, so that a pattern that leaves one out is noticed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedMapping:
    """The paths of the fields. ValueError names the field, the value and the rule that it breaks.

    `records`: the path of the array of pings in a message; "" finds one ping, an array, `results`
    or GeoJSON's `features`. `time_format`: `iso`, `epoch_s`, `epoch_ms`, `epoch_us`, a pattern of
    `strptime`, also of times of a day, or `seconds_ago`. `message_time`: the path of a message's time: an epoch, ISO, or in
    the pattern. `zone`: of times without an offset, None refuses them. `delimiter`: of CSV, ""
    finds it. `plate`: one path, or several whose values together name a vehicle. `time`: one path,
    or several whose texts together are a time, with a blank between. `speed` may be "": it is then
    not read.

    With `records` a plate may stand in an object around the array: where no ping of an array has
    its first key, it is looked for around it, from inside to outside. `records` may lead through
    arrays; `*` is any key of an object, and a ping has that key under the name `*`.

    >>> mapping = FeedMapping(plate="vehicle.id", longitude="lon", latitude="lat", time_format="epoch_s")
    >>> mapping.paths.plate, mapping.steps["speed"]
    ('$.vehicle.id', ('speed',))
    >>> FeedMapping(plate="speed")
    Traceback (most recent call last):
    ValueError: speed: expected a path of its own, got 'speed', which is that of plate
    """

    plate: str | tuple[str, ...] = "license_plate"
    time: str | tuple[str, ...] = "observationDateTime"
    longitude: str = "location.coordinates.0"
    latitude: str = "location.coordinates.1"
    speed: str = "speed"
    records: str = ""
    message_time: str = ""
    time_format: str = ISO
    zone: tzinfo | None = None
    delimiter: str = ""

    def __post_init__(self) -> None:
        check_time_format(self.time_format)
        if self.time_format == SECONDS_AGO and not self.message_time:
            raise ValueError(
                "message_time: expected the path of the time that seconds_ago count from, got none"
            )
        for name in ("records", "message_time"):
            if path := getattr(self, name):
                steps_of(path, name)
        for name, paths in (("plate", self.plates), ("time", self.times)):
            if not paths:
                raise ValueError(f"{name}: expected a path, or several, got none")
        if self.times[1:] and self.time_format in (SECONDS_AGO, *EPOCHS):
            raise ValueError(
                f"time: expected one path where time_format is {self.time_format}, got several"
            )
        _check_together(self.leaves)

    @property
    def plates(self) -> tuple[Path, ...]:
        paths = (self.plate,) if isinstance(self.plate, str) else self.plate
        return tuple(steps_of(path, "plate") for path in paths)

    @property
    def times(self) -> tuple[Path, ...]:
        paths = (self.time,) if isinstance(self.time, str) else self.time
        return tuple(steps_of(path, "time") for path in paths)

    @property
    def steps(self) -> dict[str, Path]:
        """The path of each field that is read; the first, if a plate or a time has several."""
        names = FIELDS[2:] if self.speed else FIELDS[2:-1]
        first = {"plate": self.plates[0], "time": self.times[0]}
        return first | {name: steps_of(getattr(self, name), name) for name in names}

    @property
    def leaves(self) -> tuple[tuple[str, Path], ...]:
        """Every path that is read of a ping, with its field."""
        more = (
            *(("time", path) for path in self.times[1:]),
            *(("plate", path) for path in self.plates[1:]),
        )
        return (*self.steps.items(), *more)

    @property
    def record_steps(self) -> Path:
        return steps_of(self.records, "records") if self.records else ()

    @property
    def message_steps(self) -> Path:
        return steps_of(self.message_time, "message_time") if self.message_time else ()

    @property
    def paths(self) -> FieldPaths:
        steps = self.steps
        lon = steps["longitude"]
        lat = steps["latitude"]
        plate = common(self.plates) or self.plates[0]
        speed = steps.get("speed", ("speed",))
        return FieldPaths(
            *map(json_path, (plate, steps["time"], common((lon, lat)), lon, lat, speed))
        )

    @property
    def one_element(self) -> dict[str, tuple[str, int]]:
        """Fields whose path leads through one element of an array, with the path and that element's
        index."""
        through = [(name, steps, first_element(steps)) for name, steps in self.leaves]
        return {name: (dotted(steps), at) for name, steps, at in through if at is not None}

    def dated(self, message: bytes, now_ms: int) -> bytes:
        """JSON of a live feed as it comes, whose times of day get the day on which they are."""
        if not self.time_format.startswith(f"{TODAY} ") or self.zone is None:
            return message
        zone = self.zone
        key = re.escape(f'"{self.times[0][-1]}"')
        # As they come: bytes that are no text stay as they are.
        text = re.sub(
            rf'({key}\s*:\s*")([0-9][^"\\]*)',
            lambda found: found[1] + on_its_day(found[2], self.time_format, zone, now_ms),
            message.decode("utf-8", "surrogateescape"),
        )
        return text.encode("utf-8", "surrogateescape")

    @property
    def reads_offsets(self) -> bool:
        """Whether a time may say how far it is from UTC."""
        return self.time_format in (ISO, SECONDS_AGO, *EPOCHS) or "%z" in self.time_format


def steps_of(path: str, name: str = "path") -> Path:
    """The steps of a path. ValueError, with the name of the field, if it is no path."""
    text = re.sub(r"\[([0-9]+)\]", r".\1", path.removeprefix("$")).removeprefix(".")
    steps = text.split(".")
    rule = "keys without quotes, backslashes and control characters" if _NO_KEY.search(path) else ""
    if (
        len(path) > _PATH_CHARS_MAX
        or len(steps) > _STEPS_MAX
        or not all(step.strip() for step in steps)
    ):
        rule = "a path such as vehicle.position.latitude or coordinates.0"
    if rule:
        raise ValueError(f"{name}: expected {rule}, got {path[:80]!r}")
    taken = tuple(
        int(step) if step.isdecimal() and step.isascii() and len(step) < 9 else step
        for step in steps
    )
    highest = max((step for step in taken if isinstance(step, int)), default=0)
    if highest >= INDEX_MAX:
        raise ValueError(f"{name}: expected indices of arrays below {INDEX_MAX}, got {highest}")
    return taken


def common(paths: Sequence[Path]) -> Path:
    """The first steps that all paths have."""
    first = min(paths, key=str)
    last = max(paths, key=str)
    alike = next(
        (at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b),
        min(len(first), len(last)),
    )
    return first[:alike]


def _check_together(leaves: Sequence[tuple[str, Path]]) -> None:
    """ValueError for equal paths, a path inside another, a key beside an index."""
    for at, (name, ours) in enumerate(leaves):
        for other, theirs in leaves[:at]:
            alike = len(common((ours, theirs)))
            text = dotted(ours)
            if ours == theirs:
                raise ValueError(
                    f"{name}: expected a path of its own, got {text!r}, which is that of {other}"
                )
            if alike in (len(ours), len(theirs)):
                raise ValueError(
                    f"{name}: expected a path beside {other}'s, got {text!r}: one lies inside the other"
                )
            if isinstance(ours[alike], int) != isinstance(theirs[alike], int):
                raise ValueError(
                    f"{name}: got {text!r}: of one value it makes an array, and {other}'s path an object"
                )


def first_element(path: Path) -> int | None:
    """The first index in a path, but for a last step, as coordinates have it; None without an
    index."""
    return next((step for step in path[:-1] if isinstance(step, int)), None)


def dotted(path: Path) -> str:
    """As `[source]` writes it."""
    return ".".join(map(str, path))


def json_path(steps: Path) -> str:
    """As refusals write it."""
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)


def check_time_format(time_format: str) -> None:
    """ValueError if it is no format of times: a pattern must have the time of day, and the date or
    a day."""
    if time_format in (ISO, SECONDS_AGO, *EPOCHS):
        return
    if "%" not in time_format:
        known = ", ".join([ISO, *EPOCHS, SECONDS_AGO])
        raise ValueError(
            f"time_format: expected {known}, or a pattern such as %d/%m/%Y %H:%M:%S, got {time_format!r}"
        )
    if "%Z" in time_format:
        raise ValueError(
            f"time_format: expected %z, as names of zones (%Z) are ambiguous, got {time_format!r}"
        )
    try:
        pattern = OF_A_DAY.sub("%Y-%m-%d ", time_format)
        read = datetime.strptime(_ZONED.strftime(pattern), pattern)
        day = OF_A_DAY.match(time_format)
        if day is not None and day[1] != TODAY:
            datetime.strptime(day[1], "%Y-%m-%d")
    except (ValueError, re.error) as error:
        raise ValueError(
            f"time_format: expected a pattern of strptime, got {time_format!r} ({error})"
        ) from error
    if read.replace(second=15, microsecond=0, tzinfo=None) != _ZONED.replace(tzinfo=None):
        raise ValueError(
            f"time_format: expected a pattern with the date (or 2024-03-05, or today), hour and minute, got {time_format!r}"
        )


class Preset(NamedTuple):
    """The keys of `[source]` that a feed needs, and the unit of its speeds, by its specification or
    recorded messages (docs/feeds.md); None where the feed does not say."""

    title: str
    unit: str | None
    keys: dict[str, Any]

    @property
    def mapping(self) -> FeedMapping:
        return FeedMapping(**self.keys, zone=None)


def _preset(title: str, unit: str | None, *paths: str | tuple[str, ...], **more: str) -> Preset:
    """Paths in the order of `FIELDS`, as many as are not those of the contract's form."""
    return Preset(title, unit, dict(zip(FIELDS, paths, strict=False)) | more)


PRESETS = {
    # iudx-resource-server docs/openapi.yaml; unit by displacement (docs/pings.md)
    "iudx": _preset(
        "India's data exchange, TransitManagement; also numbers as text and integer plates", "kmh"
    ),
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
    # Clever Devices' Developer API Guide 3.0, getvehicles with tmres=s, as Chicago's CTA and others
    # have it
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
"""By the name that `source.preset` has. Keys that a preset leaves out have the values of the
contract's form."""

WITHOUT_SPEED = {
    "wmata": "BusPositions of WMATA's JSON API has no speeds: `init` of a sample names its paths, with speed.from = "
    "'movement'; its GTFS-realtime feed has speeds: gtfs-rt",
    "umo": "it is nextbus",
    "tfl": "TfL's unified API has arrivals and no positions of buses",
}
"""Feeds that someone may ask for by name, and why there can be no preset."""
