"""The mapping of a feed, told from a sample of its records: names first, then what the values can be.

It is a guess for a person to check, or for a reader of the sample to confirm: nothing here is charged or released. No
value leaves this file but in a path, and paths are shown only as `found_fields` allows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from unicodedata import normalize

from udp_stream.pings.found_fields import Record, Value, dotted, is_shown, leads_through_words, values_by_path
from udp_stream.pings.found_plate import Candidate, likeliest_plate
from udp_stream.pings.found_times import TimeForm, found_time_form
from udp_stream.pings.json import FIELDS, FeedMapping, Path
from udp_stream.pings.times import number_of

_NUMBERS_MIN = 0.9
"""Of a path's values, how many must be what the field is."""

_TIMES_MAX = 200
"""Times that are looked at."""

_YEAR_MS = 366 * 86_400_000
"""No recording is longer: whole numbers that are not times, read as times, are of many years."""

_CITY_DEGREES = 2.0
"""What most coordinates of a city's buses lie within."""

_POLAR = 66
"""Degrees: no city with buses lies farther from the equator, so such a latitude is a longitude."""

Names = tuple[str, ...]

_PLATES: Names = (
    *("licenseplate", "licenceplate", "platenumber", "plate", "registrationnumber", "registration", "regno"),
    *("vehicleregistration", "vehicleid", "vehiclevehicleid", "busid", "vehiclenumber", "busnumber", "vehicleno"),
    *("busno", "vehicleref", "vehiclecode", "vehicle", "bus", "ordem", "veh", "unitid", "fleetnumber", "vehiclelabel"),
    *("kennzeichen", "fahrzeugnummer", "fahrzeugid", "fahrzeug", "wagennummer", "wagen"),
    *("immatriculation", "plaque", "vehicule", "matricula", "patente", "placa", "vehiculo", "veiculo", "prefixo"),
    *("label", "deviceid", "device", "trackerid", "imei", "id", "0"),
)
_TIMES: Names = (
    *("observationdatetime", "observedat", "recordedattime", "recordedat", "gpstime", "gpstimestamp", "fixtime"),
    *("timestamp", "datetime", "locationtime", "lastlocationupdatetime", "positiontime", "time", "tst", "datahora"),
    *("zeitstempel", "zeitpunkt", "datumzeit", "zeit", "uhrzeit", "horodatage", "dateheure", "fechahora", "fecha"),
    *("hora", "heure", "datum", "ts", "date", "updatedat", "lastupdated", "lastupdate", "t", "1"),
)
_LONGITUDES: Names = (
    *("longitude", "lon", "lng", "long", "coordinates0", "x", "geolon", "geolng"),
    *("longitud", "laengengrad", "langengrad", "laenge", "lange"),
)
_LATITUDES: Names = ("latitude", "lat", "coordinates1", "y", "geolat", "latitud", "breitengrad", "breite")
_SPEEDS: Names = (
    *("speed", "speedkmh", "speedkmhr", "speedkph", "speedmps", "speedms", "speedmph", "velocity", "vehiclespeed"),
    *("gpsspeed", "velocidade", "spd", "geschwindigkeit", "vitesse", "velocidad", "tempo", "v", "kmh", "vkmh", "mph"),
)
_NEVER = re.compile(r"limit|arriv|depart|schedul|predict|delay|\bserv|receiv|creat|envio|\b(max|start|end|sent)\b")
_NO_PLATE = re.compile(r"trip|route|stop|\bline|driver|block|direction|shape|agency")
"""Words that no name of the field has; searched in names whose words stand apart."""
_UNITS = (
    *(("kmh", r"km/?_?-?h|kph|kmhr|kmph"), ("mph", r"mph|mi/?h"), ("knots", r"knot|(\b|_|speed|velocity)(kn|kts?)$")),
    *(("fps", r"fps|f(ee)?t/?s|feet"), ("cms", r"cm/?p?_?s"), ("mps", r"m/s|mps|meterspersecond|_ms$")),
)
"""Units that names say; those that are not in `KMH_PER_UNIT` are named, and not known."""


@dataclass(frozen=True, slots=True)
class FoundMapping:
    """What was found: the mapping, what its times are, and the unit that the name of the speed says, if any.

    `exchanged`: longitude and latitude stand under each other's name. `unnamed`: fields whose paths only their values
    told.

    >>> rows = [{("id",): "A1", ("t",): 1706159153, ("lon",): 21.1, ("lat",): 72.8, ("speed",): 7}]
    >>> found_mapping(rows).exchanged, found_mapping(rows).mapping.longitude
    (True, 'lat')
    """

    mapping: FeedMapping
    times: TimeForm
    unit: str | None
    exchanged: bool
    unnamed: tuple[str, ...] = ()


def found_mapping(records: Sequence[Record]) -> FoundMapping | list[str]:
    """The mapping of these records, or the fields for which no path was found.

    >>> rows = [{("bus",): at % 3, ("t",): 1706159153 + at, ("pos", "lng"): 72.8, ("pos", "lat"): 21.1, ("kmh",): "7,5"}
    ...         for at in range(9)]
    >>> found = found_mapping(rows)
    >>> found.mapping.plate, found.mapping.longitude, found.mapping.time_format, found.unit
    ('bus', 'pos.lng', 'epoch_s', 'kmh')
    >>> found_mapping([{("bus",): 1}])
    ['time', 'longitude', 'latitude', 'speed']
    """
    values = values_by_path(records)
    paths: dict[str, Path] = {}
    for field in ("speed", "longitude", "latitude", "time"):
        if (path := _best(_without(values, paths), field)) is not None:
            paths[field] = path
    unnamed = _by_values(_without(values, paths), [field for field in _BY_VALUES if field not in paths])
    paths |= unnamed
    times = values[paths["time"]] if "time" in paths else []
    form = found_time_form(_some(times)) if times else None
    candidates = _plates_of(_without(values, paths))  # last: much can be one
    if (path := likeliest_plate(candidates, times, form.span_ms if form else 0)) is not None:
        paths["plate"] = path
    if form is None or len(paths) < len(FIELDS):
        return [field for field in FIELDS if field not in paths]
    exchanged = _are_exchanged(values[paths["longitude"]], values[paths["latitude"]])
    if exchanged:
        paths["longitude"], paths["latitude"] = paths["latitude"], paths["longitude"]
    named = (dotted(paths[field]) for field in FIELDS)
    plate, time, longitude, latitude, speed = named
    mapping = FeedMapping(
        plate=plate, time=time, longitude=longitude, latitude=latitude, speed=speed, time_format=form.time_format
    )
    return FoundMapping(mapping, form, _unit_of(paths["speed"]), exchanged, tuple(unnamed))


def _without(values: Mapping[Path, list[Value]], paths: Mapping[str, Path]) -> dict[Path, list[Value]]:
    return {path: found for path, found in values.items() if path not in paths.values()}


def _some(times: list[Value]) -> list[Value]:
    """From all over the sample: the first ones may all be of one second."""
    return times[:: -(-len(times) // _TIMES_MAX)]


def _plates_of(values: Mapping[Path, list[Value]]) -> list[Candidate]:
    paths = [path for path in _ranked(values, "plate") if _is_plate(values[path])]
    ranks = [_rank(path, _PLATES) for path in paths]
    return [
        Candidate(path, values[path], rank is not None and rank[0] < len(_PLATES))
        for path, rank in zip(paths, ranks, strict=True)
    ]


def likely_paths(field: str, records: Sequence[Record]) -> list[Path]:
    """The paths that may be a field, the likeliest first; for a sentence that says what was found instead.

    >>> likely_paths("plate", [{("vehicle", "id"): "A1", ("route",): 7, ("speed",): 1.0}])
    [('vehicle', 'id')]
    """
    values = values_by_path(records)
    return [path for path in _ranked(values, field) if is_shown(path) and _WANTED[field].fits(values[path])]


def named_paths(field: str, values: Mapping[Path, list[Value]]) -> list[Path]:
    """The paths that have one of the field's own names, the likeliest first, whatever their values are.

    >>> named_paths("time", {("time",): ["10:35"], ("timezone",): ["IST"]})
    [('time',)]
    """
    names = _WANTED[field].names
    ranks = {path: _rank(path, names) for path in _ranked(values, field)}
    return [path for path, rank in ranks.items() if rank is not None and rank[0] < len(names)]


def _best(values: Mapping[Path, list[Value]], field: str) -> Path | None:
    return next((path for path in _ranked(values, field) if _WANTED[field].fits(values[path])), None)


_BY_VALUES = ("time", "longitude", "latitude")
"""Fields that values can tell; a speed and a plate look like much else."""


def _by_values(values: Mapping[Path, list[Value]], fields: Sequence[str]) -> dict[str, Path]:
    """The fields that have one path only whose values are what they need, whatever its name; no field if two do."""
    found = {}
    if "time" in fields and len(times := [path for path in values if _is_only_a_time(path, values[path])]) == 1:
        found["time"] = times[0]
    degrees = unnamed_degrees(values)
    wanted = [field for field in fields if field != "time"]
    if len(degrees) != len(wanted):
        return found
    if len(wanted) == 2:  # the longitude is the one that no latitude of a city can be
        east = [_are_exchanged([0.0], values[path]) for path in degrees]
        if sum(east) != 1:
            return found
        degrees = degrees if east[0] else degrees[::-1]
    return found | dict(zip(wanted, degrees, strict=True))


def unnamed_degrees(values: Mapping[Path, list[Value]]) -> list[Path]:
    """The paths whose values are coordinates of one city by their look: fine degrees that lie near each other.

    >>> fine = [72.83441, 72.81209, 72.79333]
    >>> unnamed_degrees({("east",): fine, ("odo",): [1.5, 700.5, 9.5], ("speed",): [12.5, 7.25, 0.5]})
    [('east',)]
    """
    return [path for path, some in values.items() if leads_through_words(path) and _are_fine_degrees(some)]


def _is_only_a_time(path: Path, values: list[Value]) -> bool:
    form = None if _NEVER.search(_apart(path)) or not leads_through_words(path) else found_time_form(_some(values))
    return form is not None and form.span_ms <= _YEAR_MS


def _are_fine_degrees(values: list[Value]) -> bool:
    """Mostly with more than three decimals, which speeds do not have, and most within a city."""
    if not _is_degrees(values):
        return False
    numbers = sorted(_numbers(values))
    fine = sum(round(number, 3) != number for number in numbers)
    tenth = len(numbers) // 10
    return fine >= _NUMBERS_MIN / 2 * len(values) and numbers[-1 - tenth] - numbers[tenth] <= _CITY_DEGREES


def _ranked(values: Mapping[Path, list[Value]], field: str) -> list[Path]:
    wanted = _WANTED[field]
    paths = filter(leads_through_words, values)  # one through a key that may be a plate would read one vehicle
    ranked = [(rank, path) for path in paths if (rank := _rank(path, wanted.names, wanted.never)) is not None]
    return [path for _, path in sorted(ranked, key=lambda one: one[0])]


def _rank(path: Path, names: Names, never: re.Pattern[str] | None = None) -> tuple[int, int] | None:
    """How likely a path is one of these names, the least first: by its last keys, then by how deep it lies."""
    steps = path[:-1] if len(path) > 1 and path[-1] == "value" else path  # as NGSI has it
    words = [re.sub(r"[^a-z0-9]", "", normalize("NFKD", str(step).lower())) for step in steps]
    whole = "".join(words)
    if never is not None and never.search(_apart(path)):
        return None
    endings = {words[-1], "".join(words[-2:]), "".join(words[-3:]), whole}
    ranks = [at for at, name in enumerate(names) if name in endings]
    if not ranks:
        ranks = [len(names) + at for at, name in enumerate(names) if len(name) > 3 and name in words[-1]]
    return (min(ranks), len(path)) if ranks else None


def _apart(path: Path) -> str:
    """The words of a path."""
    return " ".join(re.findall("[A-Z]?[a-z]+|[A-Z]+", dotted(path))).lower()


def _numbers(values: Sequence[Value]) -> list[float]:
    """The values that are numbers, or texts of one."""
    found = [number_of(value) if isinstance(value, str) else value for value in values if not isinstance(value, bool)]
    return [float(number) for number in found if number is not None and abs(number) < 1e300]


def _is_degrees(values: list[Value]) -> bool:
    numbers = _numbers(values)
    within = sum(abs(number) <= 180 for number in numbers)
    return within >= _NUMBERS_MIN * len(values) and any(number % 1 for number in numbers)


def _is_speed(values: list[Value]) -> bool:
    """Feeds write -1 for a speed that they do not know; not all of them are that."""
    speeds = sum(0 <= number < 1000 for number in _numbers(values))
    return speeds > 0 and speeds + sum(value in (-1, "-1") for value in values) >= _NUMBERS_MIN * len(values)


def _is_plate(values: list[Value]) -> bool:
    """Texts or whole numbers, none of them blank."""
    good = sum(
        (isinstance(value, str) and 0 < len(value.strip()) <= 64) or (isinstance(value, int) and value is not True)
        for value in values
    )
    return good >= _NUMBERS_MIN * len(values)


def _are_exchanged(longitudes: Sequence[Value], latitudes: Sequence[Value]) -> bool:
    """Whether most of what is called latitude can be none of a city, while what is called longitude can."""
    lon, lat = _numbers(longitudes), _numbers(latitudes)
    too_far = sum(abs(number) > _POLAR for number in lat) > len(lat) / 2
    return too_far and sum(abs(number) <= _POLAR for number in lon) > len(lon) / 2


def unit_of_name(name: str) -> str | None:
    """The unit that the name of a field of speeds says, by the last step of its path; None if it says none.

    It may be one that `speed.unit` has not:

    >>> unit_of_name("position.speed_kmh"), unit_of_name("speed"), unit_of_name("speed_kn")
    ('kmh', None, 'knots')
    """
    return _unit_of((name.rpartition(".")[2],))


def _unit_of(path: Path) -> str | None:
    """The unit that a name says."""
    name = str(path[-1]).lower()
    return next((unit for unit, words in _UNITS if re.search(words, name)), None)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A field: names that it has, the likeliest first; what its values must be; words that no such name has."""

    names: Names
    fits: Callable[[list[Value]], bool]
    never: re.Pattern[str] | None = None


_WANTED = {
    "plate": _Wanted(_PLATES, _is_plate, _NO_PLATE),
    "time": _Wanted(_TIMES, lambda values: found_time_form(_some(values)) is not None, _NEVER),
    "longitude": _Wanted(_LONGITUDES, _is_degrees),
    "latitude": _Wanted(_LATITUDES, _is_degrees),
    "speed": _Wanted(_SPEEDS, _is_speed, _NEVER),
}
