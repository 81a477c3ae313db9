"""What a sample of a feed shows: its kind, the paths of its fields, the unit of its speeds, why it is refused.

Findings are proposals for a person to check. Only the kind of values leaves this file, names that can be no plate, and
the unit of speeds.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC
from functools import cache
from math import inf, isinf, isnan, log, nan
from typing import Any
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from udp_stream.pings.decode import YEAR_2000_MS, YEAR_2100_MS, Box, Pings, Reason, Refusal
from udp_stream.pings.json import FeedForm
from udp_stream.pings.mapping import (
    FIELDS,
    SECONDS_AGO,
    FeedMapping,
    Path,
    common,
    dotted,
    first_element,
    json_path,
    steps_of,
)
from udp_stream.pings.texts import UNREADABLE, frame_of, trim, value_of
from udp_stream.pings.times import EPOCHS, ISO, NO_OFFSET, NO_TIME, TimeValue, as_float, number_of, read_times
from udp_stream.units import KMH_PER_UNIT, QUANTA_PER_KMH

_MAGIC = (
    (b"PK\x03\x04", "a zip archive or a spreadsheet"),
    (b"PAR1", "Parquet"),
    (b"BZh", "data compressed by bzip2"),
    (b"\xfd7zXZ\0", "data compressed by xz"),
    (b"\x28\xb5\x2f\xfd", "data compressed by Zstandard"),
)
_UTF16 = re.compile(rb"\xff\xfe|\xfe\xff|(?:[\x09-\x7e]\0){2}|(?:\0[\x09-\x7e]){2}")

KIND_BYTES = 4  # tell most kinds


def other_kind(start: bytes) -> str | None:
    """The kind of data that begin so; None for what may be text in UTF-8."""
    kinds = (kind for magic, kind in _MAGIC if start.startswith(magic))
    return next(kinds, "text in UTF-16" if _UTF16.match(start) else None)


def odd_text(line: bytes) -> str | None:
    """The kind of a line that is not UTF-8."""
    try:
        line.decode()
    except UnicodeDecodeError:
        return "text that is not UTF-8"
    return None


def no_pings(text: bytes) -> str | None:
    """The kind of a file, a line or a message in which no ping was found; None for an object of JSON."""
    text = text.lstrip()
    if text.startswith(b"<"):
        return "XML or HTML in which no ping is found"
    if (kind := other_kind(text)) is not None:
        return kind
    if (schema := frame_of(text)) is not None:
        return f"a Schema Registry frame (schema {schema}) with no JSON in it"
    if any(byte < ord("\t") for byte in text[:200]):
        return "binary: GTFS-realtime has a name in .pb"
    if (kind := odd_text(text.partition(b"\n")[0])) is not None:
        return kind
    try:
        value = value_of(text)
    except UNREADABLE as error:
        if "trailing" in str(error):
            return "several values of JSON: write each on a line of its own (`jq -c .`)"
        return "JSON that is not whole" if text[:1] in (b"{", b"[", b'"') else "text, neither JSON nor CSV"
    held = value[0] if isinstance(value, list) and value else value
    return None if isinstance(held, dict | list | str) and held else "JSON that is no object"


# Where an unknown feed has the fields of a ping: told from a sample of its records, by names and by formats.

Value = str | int | float | bool | None

Record = Mapping[Path, Value]
"""A record, flat: the values at its paths."""

SHARE_MIN = 0.9
"""Of a path's values, how many must be what the field is."""

_DEPTH_MAX, _ELEMENTS_MAX, _FIELDS_MAX, NAMES_MAX = 8, 16, 200, 12
_TIMES_MAX = 200  # times that are looked at
_WORD = re.compile(r"[^\W\d][\w ./()°%-]{0,39}")
"""A name that may be shown if it has one digit at most, and then a small letter: else it may be a plate."""


def flat(value: object, elements: int = _ELEMENTS_MAX) -> Record | None:
    """An object or array of JSON as a flat record, with so many elements of each array; None for anything else."""
    found: dict[Path, Value] = {}
    if not isinstance(value, dict | list):
        return None
    _flatten(value, (), found, elements)
    return found


def _flatten(value: object, path: Path, found: dict[Path, Value], elements: int) -> None:
    if len(path) > _DEPTH_MAX or len(found) >= _FIELDS_MAX:
        return
    inner = enumerate(value[:elements]) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
    for key, held in inner:
        _flatten(held, (*path, key if isinstance(value, list) else str(key)), found, elements)
    if path and isinstance(value, str | int | float | None):
        found[path] = value


def values_by_path(records: Sequence[Record]) -> dict[Path, list[Value]]:
    """The values of every path that at least half of the records have; without nulls, and what no path can name."""
    found: defaultdict[Path, list[Value]] = defaultdict(list)
    for record in records:
        for path, value in record.items():
            if value is not None:
                found[path].append(value)
    return {path: values for path, values in found.items() if 2 * len(values) >= len(records) and _has_name(path)}


def _has_name(path: Path) -> bool:
    """Whether `[source]` can name it."""
    try:
        return steps_of(dotted(path)) == path
    except ValueError:
        return False


def is_shown(path: Path) -> bool:
    """Whether a path may be shown: no key of it may be a plate."""
    keys = [step for step in path if isinstance(step, str)]
    return all(_WORD.fullmatch(key) and sum(map(str.isdigit, key)) <= any(map(str.islower, key)) for key in keys)


def shown_names(paths: Iterable[Path]) -> str:
    """The paths that may be shown, in a clause; of the elements of an array, the first."""
    names = [dotted(path) for path in paths if is_shown(path) and not first_element(path)]
    more = len(names) - NAMES_MAX
    return ", ".join(names[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")


_DATES = (
    *("%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%Y-%m-%d", "%Y%m%d", "%Y.%m.%d"),
    *("%d/%m/%y", "%m/%d/%y", "%d.%m.%y", "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%b %d %Y", "%a, %d %b %Y"),
)
_CLOCKS = ("%H:%M:%S", "%H:%M:%S.%f", "%H:%M", "%I:%M:%S %p", "%I:%M %p", "%H%M%S", "%H.%M.%S")
_COUNT_MIN = 1e8
"""Seconds since 1970: what is less is no time of our days."""


@dataclass(frozen=True, slots=True)
class TimeForm:
    """A format that reads nearly all of a sample. `has_offset`: times say how far they are from UTC. `span_ms`: of the
    whole sample. `is_ambiguous`: with day and month exchanged the format reads them over the same span."""

    time_format: str
    has_offset: bool
    span_ms: int
    is_ambiguous: bool = False


def found_time_form(values: Sequence[Value]) -> TimeForm | None:
    """The format of these times; None if they are no times. Of several patterns the shortest span decides, as a
    recording is of few days; then the day is first."""
    values = values[:: -(-len(values) // _TIMES_MAX) or 1]  # from all over the sample
    times: list[TimeValue] = [value for value in values if isinstance(value, str | int | float) and value is not True]
    least, texts = SHARE_MIN * len(times), [value for value in times if isinstance(value, str)]
    if not times or len(times) < SHARE_MIN * len(values):
        return None
    numbers = [number_of(value) if isinstance(value, str) else as_float(value) for value in times]
    is_count = sum(number is not None and number > _COUNT_MIN for number in numbers) >= least
    is_text = len(texts) >= least
    for one in (*(EPOCHS if is_count else ()), *((ISO,) if is_text else ())):
        if form := _form(times, one):
            return form
    forms = [form for one in (_patterns(texts[0]) if is_text else ()) if (form := _form(times, one))]
    if not forms:
        return None
    best = min(forms, key=lambda form: form.span_ms)
    exchanged = re.sub("%d(.)%m", r"%m\1%d", best.time_format)
    same = {form.time_format for form in forms if form.span_ms == best.span_ms} - {best.time_format}
    return replace(best, is_ambiguous=exchanged in same)


def _form(times: Sequence[TimeValue], time_format: str) -> TimeForm | None:
    time_ms, status = read_times(times, time_format, UTC)
    good = (status != NO_TIME) & (time_ms >= YEAR_2000_MS) & (time_ms < YEAR_2100_MS)
    if good.sum() < SHARE_MIN * len(times):
        return None
    says = time_format in EPOCHS or (read_times(times, time_format, None)[1][good] != NO_OFFSET).mean() >= SHARE_MIN
    return TimeForm(time_format, bool(says), int(np.ptp(time_ms[good])))


def _patterns(example: str) -> Iterator[str]:
    """Patterns that the example's look allows; what looks like an offset may be a year."""
    offset = re.search(r"( ?)(?:Z|[+-][0-9]{2}:?[0-9]{2})$", example)
    readings = [(f"{offset[1]}%z", example[: offset.start()])] if offset else []
    for tail, rest in readings if example.endswith("Z") else [("", example), *readings]:
        yield from (f"{pattern}{tail}" for pattern in _patterns_by_look()[_look(rest)])


@cache
def _patterns_by_look() -> Mapping[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    dates_first = [f"{day}{joint}{clock}" for day in _DATES for joint in (" ", "T", ", ", "", "-") for clock in _CLOCKS]
    clocks_first = [f"{clock}{joint}{day}" for day in _DATES for joint in (" ", ", ") for clock in _CLOCKS]
    for pattern in dates_first + clocks_first:
        found[_look(re.sub("%.", "0", re.sub("%[bBap]", "a", pattern)))].append(pattern)
    return found


def _look(text: str) -> str:
    """A text with a 0 for each run of digits, and an a for each run of letters."""
    return re.sub(r"[^\W0-9_]+", "a", re.sub("[0-9]+", "0", text))


PINGS_JUDGED_MIN, PLATES_PER_PING, SNAPSHOT_MS, POLL_MS = 50, 0.9, 60_000, 180_000
"""Fewer pings say nothing of a plate; more plates for each ping look like ids of messages, unless all are of a minute.
They may be a poll's if the middle half of the times lies within three (43 s in one of 1,708 of Delhi's buses)."""

SHARE_OF_ONE_PLATE, TIMES_MEDIAN = 0.1, 10
"""One of ten plates or more with a tenth of all pings and ten times the median's is a word for a missing plate (the
busiest bus of five recorded days had 3.4 times the median's)."""


class Doubt(str):
    """A warning of something that may be right: a single poll looks so, too."""

    __slots__ = ()


def plate_warning(pings: Pings, field: str = "source.plate") -> str | None:
    """A sentence if the plate looks like a message's id, or a word for a missing plate. With an id of each message in
    the plate's place, the promise for a vehicle is void."""
    plate, time_ms = pings.plate.astype(np.int64), pings.time_ms
    if plate.size < PINGS_JUDGED_MIN:
        return None
    of_each = np.bincount(plate)
    of_each = of_each[of_each > 0]
    quarter, three = np.quantile(time_ms, (0.25, 0.75))
    what = f"{plate.size:,} pings of {of_each.size:,} plates"
    if of_each.size > PLATES_PER_PING * plate.size and np.ptp(time_ms) > SNAPSHOT_MS:
        sentence = f"{what}: is {field} the vehicle's, and not the message's? (One poll alone looks so, too.)"
        return Doubt(sentence) if three - quarter <= POLL_MS else sentence
    most, median = int(of_each.max()), float(np.median(of_each))
    if of_each.size >= 10 and most >= max(SHARE_OF_ONE_PLATE * plate.size, TIMES_MEDIAN * median):
        return f"{what}, and {most:,} are of one: is it a word for a missing plate? Who shares a plate shares a budget"
    return None


_NAMES = {
    "plate": (
        "licenseplate licenceplate platenumber plate registrationnumber registration regno vehicleregistration "
        "vehicleid vehiclevehicleid busid vehiclenumber busnumber vehicleno busno vid vehicleref vehiclecode "
        "vehicle bus ordem veh unitid fleetnumber vehiclelabel kennzeichen fahrzeugnummer fahrzeugid fahrzeug "
        "wagennummer wagen immatriculation plaque vehicule matricula patente placa vehiculo veiculo prefixo label "
        "deviceid device trackerid imei id 0"
    ),
    "time": (
        "observationdatetime observedat recordedattime recordedat gpstime gpstimestamp fixtime timestamp tmstmp "
        "datetime locationtime lastlocationupdatetime positiontime time tst datahora zeitstempel zeitpunkt "
        "datumzeit zeit uhrzeit horodatage dateheure fechahora fecha hora heure datum ts date updatedat lastupdated "
        "lastupdate t 1"
    ),
    "longitude": ("longitude lon lng long coordinates0 x geolon geolng longitud laengengrad langengrad laenge lange"),
    "latitude": "latitude lat coordinates1 y geolat latitud breitengrad breite",
    "speed": (
        "speed speedkmh speedkmhr speedkph speedmps speedms speedmph velocity vehiclespeed gpsspeed velocidade spd "
        "geschwindigkeit vitesse velocidad tempo v kmh vkmh kph kmph mph knots"
    ),
    "ago": "secssincereport secondssincereport secondsago secsago ageinseconds",
    "operator": "oper operator operatorref operatorid operatorcode agency agencyid",
}
"""Of fields, and of what else is looked for: the likeliest first."""

_OTHERS = r"limit|arriv|depart|schedul|predict|delay|\bserv|receiv|creat|envio|\b(max|start|end|sent)\b"
_NEVER = {
    "plate": re.compile(r"trip|route|stop|\bline|driver|block|direction|shape|agency"),
    "time": re.compile(_OTHERS),
    "speed": re.compile(_OTHERS),
}
"""Words that no name of the field has."""

_UNITS = (
    *(("kmh", r"km/?_?-?h|kph|kmhr|kmph"), ("mph", r"mph|mi/?h"), ("knots", r"knot|(\b|_|speed|velocity)(kn|kts?)$")),
    *(("fps", r"fps|f(ee)?t/?s|feet"), ("cms", r"cm/?p?_?s"), ("mps", r"m/s|mps|meterspersecond|_ms$")),
)
"""Units that names say; not all of them are in `KMH_PER_UNIT`."""


def unit_of_name(name: str) -> str | None:
    """The unit that the name of a field of speeds says, by the last step of its path."""
    last = name.rpartition(".")[2].lower()
    return next((unit for unit, words in _UNITS if re.search(words, last)), None)


def found_mapping(records: Sequence[Record], beside: Sequence[Record] = ()) -> tuple[FeedMapping, TimeForm]:
    """The mapping of these records, and the form of their times. `beside`: what messages have beside their records,
    such as a time. Without a name of a speed, `speed` is "". ValueError with a clause for each field without a path."""
    values = values_by_path(records)
    paths: dict[str, Path] = {}
    for field in ("longitude", "latitude", "speed", "time"):  # the plate last: much can be one
        fitting = [path for path in _ranked(values, field, paths) if _fits(field, values[path])]
        if fitting:
            paths[field] = fitting[0]
    form = found_time_form(values[paths["time"]]) if "time" in paths else None
    more: dict[str, Any] = {}
    if form is None and (found := _message_time(values_by_path(beside))) is not None:
        path, form = found
        more = {"message_time": dotted(path)}
        ago = [one for one in _ranked(values, "ago", paths) if _numbers(values[one])]
        paths["time"] = ago[0] if ago else path
        form = replace(form, time_format=SECONDS_AGO) if ago else form
    plates = [path for path in _ranked(values, "plate", paths) if _fits("plate", values[path])]
    # A plate's own name, and not only a longer one, such as the vehicle's type.
    plates = [path for path in plates if (_rank(path, "plate") or 0) < len(_NAMES["plate"].split())] or plates
    vehicles = [path for path in plates if _may_be_vehicles(values[path], values.get(paths.get("time", ()), ()), form)]
    if plates:
        paths["plate"] = (vehicles or plates)[0]
        more |= _operator(records, values, paths)
    if "speed" not in paths and not _ranked(values, "speed", paths):
        more["speed"] = ""
    if form is None or len({*paths, *more} & set(FIELDS)) < len(FIELDS):
        missing = [_instead(field, values) for field in FIELDS if field not in {*paths, *more}]
        names = [] if paths else [f"the names are {shown_names(values) or 'none that may be shown'}"]
        raise ValueError("".join(f"\n  {clause}" for clause in missing + names))
    keys: dict[str, Any] = {field: dotted(path) for field, path in paths.items()} | more
    return FeedMapping(**keys, time_format=form.time_format, zone=None), form


def _message_time(values: Mapping[Path, list[Value]]) -> tuple[Path, TimeForm] | None:
    own = [path for path in _ranked(values, "time", {}) if first_element(path) is None]  # no element's of an array
    forms = ((path, found_time_form(values[path])) for path in own)
    return next(((path, form) for path, form in forms if form is not None), None)


def _operator(
    records: Sequence[Record], values: Mapping[Path, list[Value]], paths: Mapping[str, Path]
) -> dict[str, tuple[str, str]]:
    """A plate of the operator and its vehicle, where two operators have one number at one time. Elsewhere a vehicle
    that goes for two operators would have two budgets."""
    plate, time = paths["plate"], paths.get("time", ())
    for path in _ranked(values, "operator", paths):
        both = {(one.get(time), one.get(plate), one[path]) for one in records if one.get(plate) and path in one}
        if len({key[:2] for key in both}) < len(both):
            return {"plate": (dotted(path), dotted(plate))}
    return {}


WANTED: Mapping[str, str] = {
    "plate": "text or a whole number, of the vehicle",
    "time": "a date and time of day in one field",
    "longitude": "degrees",
    "latitude": "degrees",
    "speed": "a number, 0 or more",
}
"""What each field of a ping must be."""


def _instead(field: str, values: Mapping[Path, list[Value]]) -> str:
    path = next((one for one in _ranked(values, field, {}) if is_shown(one)), None)
    ago = [one for one in _ranked(values, "ago", {}) if field == "time" and path is None]
    if ago:
        return f"time: found seconds at {dotted(ago[0])}, and no time of the message that they count back from"
    found = "no such name" if path is None else f"{kind_of(values[path])} at {dotted(path)}"
    return f"{field}: found {found}, wanted {WANTED[field]}"


def kind_of(values: Sequence[Value]) -> str:
    """The kind of most values; never a value."""
    names: dict[type, str] = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}
    kinds = Counter(names.get(type(value), "nothing (null)") for value in values)
    return kinds.most_common(1)[0][0] if kinds else "an object or an array"


def _ranked(values: Mapping[Path, list[Value]], field: str, taken: Mapping[str, Path]) -> list[Path]:
    """Paths with a name of the field, the likeliest first, then those nearer the longitude. No path leads through a key
    that may be a plate."""
    place = taken.get("longitude", ())
    open_paths = (path for path in values if path not in taken.values() and is_shown(path[:-1]))
    ranks = {path: rank for path in open_paths if (rank := _rank(path, field)) is not None}
    return sorted(ranks, key=lambda path: (ranks[path], -len(common((path, place))), len(path)))


def _rank(path: Path, field: str) -> int | None:
    """How likely a path is the field's, by its last keys, the least first; None if it is not."""
    names, never = _NAMES[field].split(), _NEVER.get(field)
    steps = path[:-1] if len(path) > 1 and path[-1] == "value" else path  # as NGSI has it
    words = [re.sub(r"[^a-z0-9]", "", normalize("NFKD", str(step).lower())) for step in steps]
    if never is not None and never.search(" ".join(re.findall("[A-Z]?[a-z]+|[A-Z]+", dotted(path))).lower()):
        return None
    endings = {words[-1], "".join(words[-2:]), "".join(words[-3:]), "".join(words)}
    ranks = [at for at, name in enumerate(names) if name in endings]
    longer = (len(names) + at for at, name in enumerate(names) if len(name) > 3 and name in words[-1])
    return min(ranks or longer, default=None)


def _numbers(values: Sequence[Value]) -> list[float]:
    found = [number_of(value) if isinstance(value, str) else value for value in values if not isinstance(value, bool)]
    return [float(number) for number in found if number is not None and abs(number) < 1e300]


def _fits(field: str, values: Sequence[Value]) -> bool:
    numbers = _numbers(values)
    match field:
        case "time":
            return found_time_form(values) is not None
        case "plate":
            texts = sum(isinstance(value, str) and 0 < len(value.strip()) <= 64 for value in values)
            good = texts + sum(type(value) is int for value in values)
        case "speed":  # feeds write -1 for a speed that they do not know; not all of them are that
            good = sum(0 <= number < 1000 for number in numbers)
            good += sum(value in (-1, "-1") for value in values) if good else 0
        case _:
            good = sum(abs(number) <= 180 for number in numbers) if any(number % 1 for number in numbers) else 0
    return good >= max(1, SHARE_MIN * len(values))


def _may_be_vehicles(plates: Sequence[Value], times: Sequence[Value], form: TimeForm | None) -> bool:
    """Whether these are neither ids of messages, all different, nor the id of a feed, the same in all messages."""
    if len(plates) < PINGS_JUDGED_MIN or form is None:
        return True
    if len(set(plates)) == 1:  # the pings of a vehicle differ in their times, those of many vehicles do not
        return len(set(times)) > PLATES_PER_PING * len(times)
    return form.span_ms <= SNAPSHOT_MS or len(set(plates)) <= PLATES_PER_PING * len(plates)


# The unit of speeds: between two pings of a bus that goes at an even speed, the distance over the time is that speed.
#
# In the wrong unit the two differ by the ratio of the units: 3.6, 1.6, 2.2, or its inverse. A unit is told only if the
# two agree in it. On 100 pairs the logarithm of the ratio is -0.05 to 0.07 in 98 of 100 draws. Feet a second, the
# nearest unit that is none of ours, lies 0.09 above km/h. Below there is none as near, and sparse pings cut corners.
#
# Buses that send once or twice a minute stop between two pings. There the distance of all pairs is set against the mean
# of the speeds at both ends. On 500 pairs of Austin's and Surat's buses the logarithm is -0.18 to 0.12. Mph and knots,
# 0.14 apart, may both fit: the nearest to the middle is the likeliest (right in 94 of 100 draws), and what is
# configured, or said by the feed, is not doubted.
#
# This looks at speeds without noise. Only the unit may be shown: the ratio, or the number of pairs, would tell one
# plate's speeds to a reader who knows all others.

PAIRS_MIN, SPARSE_PAIRS_MIN = 100, 500
"""With fewer pairs of pings 4 to 30 s apart they are looked for farther apart; with fewer of those nothing is said."""

FITS_NONE = "by how far buses go, speeds fit no unit that is known (scaled? places that stand still?)"
ALL_ZERO = 'every speed is 0, and buses move: the feed has no speeds (speed.from = "movement" derives them)'
"""The faults of evidence."""

_SECONDS = (4, 30)  # apart: closer is measurement noise, further is another road
_MOVING_KMH = 5
_EVEN = 0.3  # of their mean: speeds that differ more say too little of the speed between (by 0.19 in Austin in 2015)
_BELOW, _ABOVE = 0.12, 0.08  # of the ratio's logarithm
_SPARSE_SECONDS = (30, 130)  # Austin's buses send every 120 s
_SPARSE_BELOW, _SPARSE_ABOVE, _JUMP_KMH = 0.25, 0.15, 200
_METRES_PER_DEGREE = 111_195


@dataclass(frozen=True, slots=True)
class UnitEvidence:
    """What `pairs` pairs of pings say: distance over time is `ratio` times the reported speed (median, by distance; of
    pings far apart of all together). `unit`: of those that fit the configured unit, or the nearest; None if none fits,
    or, with ratio nan, if there are too few pairs. `pairs` and `ratio` must not be shown."""

    pairs: int
    ratio: float
    unit: str | None
    fits: tuple[str, ...] = ()

    @property
    def fault(self) -> str | None:
        """A clause if there are pairs enough, and they fit no unit that is known here."""
        if self.unit is not None or isnan(self.ratio):
            return None
        return ALL_ZERO if isinf(self.ratio) else FITS_NONE


def unit_evidence(pings: Pings, configured: str) -> UnitEvidence:
    """The unit in which speeds that were read in the `configured` unit fit the movement. Pairs 4 to 30 s apart count
    with both speeds above 5 km/h and near each other; if they are too few, all pairs 30 to 130 s apart."""
    order = np.lexsort((pings.time_ms, pings.plate))
    plate, speed = pings.plate[order], pings.speed[order] / QUANTA_PER_KMH
    seconds = np.diff(pings.time_ms[order]) / 1000
    lat, lon = pings.lat[order], pings.lon[order]
    east = np.diff(lon) * np.cos(np.radians(lat[:-1]))
    km = np.hypot(np.diff(lat), east) * _METRES_PER_DEGREE / 1000
    of_one = plate[1:] == plate[:-1]
    near = of_one & (seconds >= _SECONDS[0]) & (seconds <= _SPARSE_SECONDS[1]) & (km * 3600 <= _JUMP_KMH * seconds)
    if near.sum() >= PAIRS_MIN and not speed.any() and km[near].sum() * 3600 > _MOVING_KMH * seconds[near].sum():
        return UnitEvidence(int(near.sum()), inf, None)
    fits = of_one & (seconds >= _SECONDS[0]) & (seconds <= _SECONDS[1])
    reported = (speed[1:] + speed[:-1]) / 2
    fits &= (np.minimum(speed[1:], speed[:-1]) > _MOVING_KMH) & (km > 0)
    fits &= np.abs(np.diff(speed)) <= _EVEN * reported
    pairs = int(fits.sum())
    if pairs >= PAIRS_MIN:
        said_km = (seconds * reported)[fits] / 3600
        return _evidence(pairs, _median(km[fits] / said_km, said_km), configured, _BELOW, _ABOVE)
    sparse = near & (seconds >= _SPARSE_SECONDS[0])
    said = float((seconds * reported)[sparse].sum()) / 3600
    if (count := int(sparse.sum())) < SPARSE_PAIRS_MIN or said == 0 or not (gone := float(km[sparse].sum())):
        return UnitEvidence(pairs, nan, None)
    return _evidence(count, gone / said, configured, _SPARSE_BELOW, _SPARSE_ABOVE)


def _evidence(pairs: int, ratio: float, configured: str, below: float, above: float) -> UnitEvidence:
    middle, half = (above - below) / 2, (above + below) / 2
    units = KMH_PER_UNIT.items()
    off = {unit: abs(log(ratio * KMH_PER_UNIT[configured] / kmh) - middle) for unit, kmh in units}
    fits = tuple(sorted((unit for unit in off if off[unit] <= half), key=off.__getitem__))
    return UnitEvidence(pairs, ratio, configured if configured in fits else next(iter(fits), None), fits)


def _median(values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    """Half of the weight lies below it."""
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])


# Refusals in words: the field, the form found there, and the form wanted. Of values their kind alone is shown.

SENTENCES_MAX = 4  # kinds of refusals that are explained

OF_A_SPEED = (Reason.SPEED_NOT_FINITE, Reason.SPEED_NEGATIVE, Reason.SPEED_ABOVE_LIMIT)
"""Reasons that look at the value of a speed: docs/pings.md."""

OF_A_PLACE = (Reason.OUTSIDE_BOX, Reason.COORDINATES_OUT_OF_RANGE)
"""Reasons of pings that would lie elsewhere with longitude and latitude exchanged."""

LABEL = "vehicle.vehicle.label"
"""The name of a label that was not asked for, in what is kept of a refused entity of GTFS-realtime."""

LABEL_PLATE = f'source.plate = "{LABEL}" takes it, if it is the vehicle\'s; some feeds have a destination there'
"""Advice where only a label names the vehicle."""

OF_THE_CLOCK = (Reason.LATE, Reason.SLOT_FULL, Reason.TIME_IN_FUTURE, Reason.TIME_ROLLED_OVER)
"""Reasons that lie in the log's clock, and not in a message."""

EARTH: Box = -180.0, -90.0, 180.0, 90.0


def advise(refused: Sequence[tuple[Refusal, bytes]], form: FeedForm, box: Box | None = None) -> list[str]:
    """A sentence for each of the commonest kinds of refusals of a sample; `box` is `pings.box`."""
    kinds: defaultdict[tuple[Reason, str], list[bytes]] = defaultdict(list)
    for refusal, original in refused:
        kinds[refusal.reason, refusal.path].append(original)
    commonest = sorted(kinds.items(), key=lambda kind: -len(kind[1]))[:SENTENCES_MAX]
    said = ((reason, path, _said(reason, path, pieces, form, box)) for (reason, path), pieces in commonest)
    return [f"{reason} at {path}{f': {words}' if words else ''}" for reason, path, words in said]


def _said(reason: Reason, path: str, pieces: Sequence[bytes], form: FeedForm, box: Box | None) -> str | None:
    records: list[Record] = []
    for piece in pieces:
        with suppress(*UNREADABLE):
            records += filter(None, [flat(value_of(trim(piece)))])
    field = _field_at(path, form)
    if reason in (Reason.NOT_JSON, Reason.NOT_GTFS_REALTIME) or not records:
        found = no_pings(pieces[0])
        return None if found is None else f"found {found}"
    if reason == Reason.MISSING_FIELD:
        if any((LABEL,) in record for record in records):
            return f"vehicle.vehicle.id is unset; {LABEL} is set: {LABEL_PLATE}"
        paths = Counter(one for record in records for one in record)
        names = shown_names(sorted((one for one, count in paths.items() if 2 * count >= len(records)), key=dotted))
        name = path.removeprefix("$.") if field is None else dotted(form.mapping.steps[field])
        return f"found {names or 'no name that may be shown'}, wanted {name} (`udp-stream init FILE` writes [source])"
    if reason in OF_A_PLACE and _look_exchanged(records, form, box or EARTH):
        return _exchanged(form, box)
    if reason == Reason.OUTSIDE_BOX:
        return "wanted pings.box = [west, south, east, north] around the feed"
    if field is None:
        return None
    values = [record[form.mapping.steps[field]] for record in records if form.mapping.steps[field] in record]
    if field == "time":
        found = kind_of(values)
        if (times := found_time_form(values)) is not None:
            found = times.time_format + ("" if times.has_offset else " without an offset")
        if reason == Reason.NO_UTC_OFFSET:
            return f'found {found}, wanted an offset, or source.time_zone = "Area/City" of the feed\'s clock'
        return f'found {found}, wanted source.time_format = "{form.mapping.time_format}"'
    if reason in (Reason.EMPTY_PLATE, Reason.PLACEHOLDER_PLATE):
        return "wanted the vehicle's: pings without a plate protect none"
    if reason == Reason.SPEED_NOT_FINITE:
        return f"found NaN or Infinity, wanted {WANTED[field]}"
    if reason in OF_A_SPEED:
        return "wanted speed.unit as the feed has it: `udp-stream doctor FILE` compares it with how far pings move"
    return f"found {kind_of(values)}, wanted {WANTED[field]}"


def _look_exchanged(records: Sequence[Record], form: FeedForm, box: Box) -> bool:
    """Whether most of these pings lie in the box with longitude and latitude exchanged."""
    (west, south, east, north), steps = box, form.mapping.steps
    places = [_numbers([record.get(steps[field]) for field in ("latitude", "longitude")]) for record in records]
    inside = [place for place in places if len(place) == 2 and west <= place[0] <= east and south <= place[1] <= north]
    return 2 * len(inside) > len(records)


def _exchanged(form: FeedForm, box: Box | None) -> str:
    """The keys that read such a feed. Polled GTFS-realtime comes in the plain form."""
    what = "longitude and latitude look exchanged"
    what += "" if box is None else ", of the feed or of pings.box (west, south, east, north)"
    unreadable = "GTFS-realtime has no paths to exchange: such a feed cannot be read as it is"
    if not form.format.is_json:
        return f"{what}. {unreadable}"
    keys = f'source.longitude = "{form.mapping.latitude}" and source.latitude = "{form.mapping.longitude}"'
    return f"{what}: {keys} read the feed" + (f". {unreadable}" if form.is_plain else "")


def _field_at(path: str, form: FeedForm) -> str | None:
    """The field whose path a refusal's path is, or leads to."""
    for field, steps in form.mapping.steps.items() if path != "$" else ():
        ours = json_path(steps)
        if ours == path or ours.startswith((f"{path}.", f"{path}[")):
            return field
    return None
