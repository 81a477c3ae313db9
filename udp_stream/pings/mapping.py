"""Feed mapping: where the messages of a feed have the fields of a ping, and how they write times. A pure value.

A path has dots between keys, and numbers that index arrays: `vehicle.position.latitude`, `coordinates.0`. The spelling
of refusals, `$.coordinates[0]`, is read too. A key with a dot, a quote, a backslash or a control character in it cannot
be reached.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Final

from udp_stream.pings.formats import FieldPaths
from udp_stream.pings.times import EPOCHS, ISO

FIELDS: Final = ("plate", "time", "longitude", "latitude", "speed")
"""The fields of a ping, in the order in which they are read and refused."""

Path = tuple[str | int, ...]
"""Keys of objects, and indices of arrays."""

INDEX_MAX = 1000
"""No ping lies in an array as long as this: a larger index is a slip."""

_PATH_CHARS_MAX = 400
_STEPS_MAX = 16
_NO_KEY = re.compile(r'["\\\x00-\x1f\x7f\ud800-\udfff]')
"""Signs of keys that the quick reader of JSON, and a file of TOML, cannot have as they are."""

_ZONED = datetime(2013, 11, 12, 13, 14, 15, tzinfo=timezone(timedelta(hours=5, minutes=30)))
"""A moment whose parts all differ, so that a pattern that leaves one out is noticed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedMapping:
    """Where fields are. ValueError names the field, the value and the rule that it breaks.

    `records`: the path of the array of pings in a message; "" finds one ping, an array, `results` or GeoJSON's
    `features`. `time_format`: `iso`, `epoch_s`, `epoch_ms`, `epoch_us`, or a pattern of `strptime`. `zone`: of times
    without an offset, None refuses them. `delimiter`: of CSV, "" finds it.

    >>> mapping = FeedMapping(plate="vehicle.id", longitude="lon", latitude="lat", time_format="epoch_s")
    >>> mapping.paths.plate, mapping.steps["speed"]
    ('$.vehicle.id', ('speed',))
    >>> FeedMapping(plate="speed")
    Traceback (most recent call last):
    ValueError: speed: expected a path of its own, got 'speed', which is that of plate
    """

    plate: str = "license_plate"
    time: str = "observationDateTime"
    longitude: str = "location.coordinates.0"
    latitude: str = "location.coordinates.1"
    speed: str = "speed"
    records: str = ""
    time_format: str = ISO
    zone: tzinfo | None = None
    delimiter: str = ""

    def __post_init__(self) -> None:
        """Hold every path, and the format of times, to its rule."""
        check_time_format(self.time_format)
        if self.records:
            steps_of(self.records, "records")
        _check_together(self.steps)

    @property
    def steps(self) -> dict[str, Path]:
        """The path of each field."""
        return {name: steps_of(getattr(self, name), name) for name in FIELDS}

    @property
    def record_steps(self) -> Path:
        """The path of the array of pings; empty if it is to be found."""
        return steps_of(self.records, "records") if self.records else ()

    @property
    def paths(self) -> FieldPaths:
        """What refusals name."""
        steps = self.steps
        lon, lat = steps["longitude"], steps["latitude"]
        common = lon[: next((at for at, (a, b) in enumerate(zip(lon, lat, strict=False)) if a != b), 0)]
        return FieldPaths(
            *(json_path(steps["plate"]), json_path(steps["time"]), json_path(common)),
            *(json_path(lon), json_path(lat), json_path(steps["speed"])),
        )

    @property
    def one_element(self) -> dict[str, tuple[str, int]]:
        """Fields whose path leads through one element of an array, with the path and that element's index.

        >>> FeedMapping(plate="vehicles.0.id").one_element
        {'plate': ('vehicles.0.id', 0)}
        """
        through = {name: first_element(steps) for name, steps in self.steps.items()}
        return {name: (getattr(self, name), at) for name, at in through.items() if at is not None}

    @property
    def reads_offsets(self) -> bool:
        """Whether a time may say how far it is from UTC."""
        return self.time_format == ISO or self.time_format in EPOCHS or "%z" in self.time_format


def mapping_of(keys: Mapping[str, str], zone: tzinfo | None = None, delimiter: str = "") -> FeedMapping:
    """The mapping of these keys of `[source]`; others have the values of the contract's form.

    >>> mapping_of({"plate": "bus"}).plate, mapping_of({}).speed
    ('bus', 'speed')
    """
    plain = FeedMapping()
    return FeedMapping(
        plate=keys.get("plate", plain.plate),
        time=keys.get("time", plain.time),
        longitude=keys.get("longitude", plain.longitude),
        latitude=keys.get("latitude", plain.latitude),
        speed=keys.get("speed", plain.speed),
        records=keys.get("records", plain.records),
        time_format=keys.get("time_format", plain.time_format),
        zone=zone,
        delimiter=delimiter,
    )


def steps_of(path: str, name: str = "path") -> Path:
    """A path taken apart. ValueError, with the name of what has it, if it is none.

    >>> steps_of("$.data[0].vehicle id")
    ('data', 0, 'vehicle id')
    """
    text = re.sub(r"\[([0-9]+)\]", r".\1", path.removeprefix("$")).removeprefix(".")
    steps = text.split(".")
    if len(path) > _PATH_CHARS_MAX or len(steps) > _STEPS_MAX or not all(step.strip() for step in steps):
        rule = "expected a path such as vehicle.position.latitude or coordinates.0"
        raise ValueError(f"{name}: {rule}, got {path[:80]!r}")
    if _NO_KEY.search(path):
        rule = "expected keys without quotes, backslashes and control characters"
        raise ValueError(f"{name}: {rule}, got {path[:80]!r}")
    taken = tuple(int(step) if step.isdecimal() and step.isascii() and len(step) < 9 else step for step in steps)
    highest = max((step for step in taken if isinstance(step, int)), default=0)
    if highest >= INDEX_MAX:
        raise ValueError(f"{name}: expected indices of arrays below {INDEX_MAX}, got {highest}")
    return taken


def _check_together(steps: dict[str, Path]) -> None:
    """Paths that cannot hold in one ping: two the same, one inside another, a key beside an index."""
    names = list(steps)
    for at, name in enumerate(names):
        for other in names[:at]:
            ours, theirs = steps[name], steps[other]
            alike = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
            text = ".".join(map(str, ours))
            if alike is None and len(ours) == len(theirs):
                raise ValueError(f"{name}: expected a path of its own, got {text!r}, which is that of {other}")
            if alike is None:
                raise ValueError(f"{name}: expected a path beside {other}'s, got {text!r}: one lies inside the other")
            if isinstance(ours[alike], int) != isinstance(theirs[alike], int):
                raise ValueError(f"{name}: got {text!r}: of one value it makes an array, and {other}'s path an object")


def first_element(path: Path) -> int | None:
    """The first index on the way of a path; None if there is none but a last one, as of coordinates.

    >>> first_element(("vehicles", 0, "id")), first_element(("coordinates", 1))
    (0, None)
    """
    return next((step for step in path[:-1] if isinstance(step, int)), None)


def json_path(steps: Path) -> str:
    """As refusals write it.

    >>> json_path(("data", 0, "id")), json_path(())
    ('$.data[0].id', '$')
    """
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)


def check_time_format(time_format: str) -> None:
    """ValueError if it is no format of times: a pattern must have the date and the time of day.

    >>> check_time_format("%d.%m.%Y %H:%M:%S")
    >>> check_time_format("%H:%M")
    Traceback (most recent call last):
    ValueError: time_format: expected a pattern with the date, hour and minute, got '%H:%M'
    """
    if time_format == ISO or time_format in EPOCHS:
        return
    if "%" not in time_format:
        known = ", ".join([ISO, *EPOCHS])
        raise ValueError(f"time_format: expected {known}, or a pattern such as %d/%m/%Y %H:%M:%S, got {time_format!r}")
    if "%Z" in time_format:
        raise ValueError(f"time_format: expected %z, as names of zones (%Z) are ambiguous, got {time_format!r}")
    try:
        read = datetime.strptime(_ZONED.strftime(time_format), time_format)
    except (ValueError, re.error) as error:
        raise ValueError(f"time_format: expected a pattern of strptime, got {time_format!r} ({error})") from error
    if read.replace(second=15, microsecond=0, tzinfo=None) != _ZONED.replace(tzinfo=None):
        raise ValueError(f"time_format: expected a pattern with the date, hour and minute, got {time_format!r}")
