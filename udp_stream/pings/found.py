"""Findings from a sample of a feed: where its fields stand, the form of its times, the unit of its
speeds, and doubts.

Findings are proposals for a person to check. Only the kind of values leaves this file, names that
can be no plate, and the unit of speeds.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from unicodedata import normalize

import numpy as np

from udp_stream.pings.data_quality import unit_evidence
from udp_stream.pings.mapping import (
    ANY_KEY,
    FIELDS,
    SECONDS_AGO,
    FeedMapping,
    Path,
    common,
    dotted,
    first_element,
    steps_of,
)
from udp_stream.pings.repairs import (
    SHARE_MIN,
    WANTED,
    Value,
    divided,
    divisors_of,
    found_and_wanted,
    is_missing,
    numbers_of,
    pair_in_text,
)
from udp_stream.pings.time_forms import TIMES_MAX, TimeForm, form_of_day, found_time_form, look_of
from udp_stream.pings.times import joined_times, plain_halves
from udp_stream.pings.tracks import (
    PINGS_JUDGED_MIN,
    PLATES_PER_PING,
    SNAPSHOT_MS,
    Track,
    as_pings,
    follow,
    track_of,
)

# Where an unknown feed has the fields of a ping: told from a sample of its records, by names and by
# formats.

Record = Mapping[Path, Value]
"""A record, flat: the values at its paths."""

Records = Sequence[Record]
Values = Mapping[Path, list[Value]]

_DEPTH_MAX = 8
_ELEMENTS_MAX = 16
_FIELDS_MAX = 200
NAMES_MAX = 12
_WORD = re.compile(r"\$?[^\W\d][\w ./()°%-]{0,39}")
"""A name that may be shown if it has one digit at most, and then a small letter: else it may be a
plate."""


def flat(value: object, elements: int = _ELEMENTS_MAX) -> Record | None:
    """An object or array of JSON as a flat record, with so many elements of each array; None for
    anything else."""
    found = dict[Path, Value]()
    if not isinstance(value, dict | list):
        return None
    _flatten(value, (), found, elements)
    return found


def _flatten(value: object, path: Path, found: dict[Path, Value], elements: int) -> None:
    if len(path) > _DEPTH_MAX or len(found) >= _FIELDS_MAX:
        return
    inner = (
        enumerate(value[:elements])
        if isinstance(value, list)
        else value.items()
        if isinstance(value, dict)
        else ()
    )
    for key, held in inner:
        _flatten(held, (*path, key if isinstance(value, list) else str(key)), found, elements)
    if path and isinstance(value, str | int | float | None):
        found[path] = value


def values_by_path(records: Records) -> dict[Path, list[Value]]:
    """The values, none of them missing, of every path that at least half of the records have and
    that has a name."""
    found: defaultdict[Path, list[Value]] = defaultdict(list)
    for record in records:
        for path, value in record.items():
            if not is_missing(value):
                found[path].append(value)
    return {
        path: values
        for path, values in found.items()
        if 2 * len(values) >= len(records) and _has_name(path)
    }


def _has_name(path: Path) -> bool:
    """Whether `[source]` can name it."""
    try:
        return steps_of(dotted(path)) == path
    except ValueError:
        return False


def is_shown(path: Path) -> bool:
    """Whether a path may be shown: no key of it may be a plate."""
    keys = [step for step in path if isinstance(step, str)]
    return all(
        _WORD.fullmatch(key) and sum(map(str.isdigit, key)) <= any(map(str.islower, key))
        for key in keys
    )


def shown_names(paths: Iterable[Path]) -> str:
    """The paths that may be shown, in a clause; of the elements of an array, the first."""
    names = [dotted(path) for path in paths if is_shown(path) and not first_element(path)]
    more = len(names) - NAMES_MAX
    return ", ".join(names[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")


_NAMES = {
    "plate": (
        "licenseplate licenceplate platenumber plate registrationnumber registration regno vehicleregistration "
        "vehicleid vehiclevehicleid busid vehiclenumber busnumber vehicleno busno vid vehicleref vehiclecode "
        "vehicle bus ordem veh unitid fleetnumber vehiclelabel kennzeichen fahrzeugnummer fahrzeugid fahrzeug plaka "
        "wagennummer wagen immatriculation plaque vehicule matricula patente placa vehiculo veiculo prefixo label "
        "deviceid device trackerid imei id 0"
    ),
    "time": (
        "observationdatetime observedat recordedattime recordedat gpstime gpstimestamp fixtime timestamp tmstmp "
        "datetime locationtime lastlocationupdatetime positiontime time tst datahora zeitstempel zeitpunkt "
        "datumzeit zeit uhrzeit horodatage dateheure fechahora fecha hora heure datum tarih saat ts date updatedat lastupdated "
        "lastupdate t 1"
    ),
    "longitude": (
        "longitude lon lng long coordinates0 x px geolon geolng longitud laengengrad langengrad laenge lange boylam"
    ),
    "latitude": "latitude lat coordinates1 y py geolat latitud breitengrad breite enlem",
    "speed": (
        "speed speedkmh speedkmhr speedkph speedmps speedms speedmph velocity vehiclespeed gpsspeed velocidade spd "
        "geschwindigkeit vitesse velocidad vel hiz tempo v kmh vkmh kph kmph mph knots"
    ),
    "ago": "secssincereport secondssincereport secondsago secsago ageinseconds",
    "operator": "oper operator operatorref operatorid operatorcode agency agencyid",
}
"""Names of fields, and of what else is looked for: the likeliest first."""

_OTHERS = (
    r"limit|arriv|depart|schedul|predict|delay|\bserv|receiv|creat|envio|\b(max|start|end|sent)\b"
)
_NEVER = {
    "plate": re.compile(
        r"trip|route|stop|\bline|driver|block|direction|shape|agency|hdg|heading|bearing|azimuth|course"
    ),
    "time": re.compile(_OTHERS),
    "speed": re.compile(_OTHERS),
}
"""Words that no name of the field has."""

_WORD_OF_TIME = re.compile(
    r"date|time|fecha|hora|datum|zeit|uhr|heure|day|dia|data|jour|clock|tag|ora\b|tid\b|klo|aika|pvm|saat|tarih"
)
_SECONDS_OF_DAY = re.compile(r"\b(sec|secs|second\w*|sek\w*|seg|segundo\w*)\b")
"""A date, a time of day, or its seconds, in a field of its own has such a name."""


def found_mapping(
    records: Records,
    beside: Records = (),
    around: Records = (),
    container: str = "JSON",
    day: str = "",
) -> tuple[FeedMapping, TimeForm, list[str]]:
    """The mapping of these records, the form of their times, and doubts. `beside`: what messages
    have beside their records, such as a time; `around`: of each record what the objects around it
    have, such as a plate; `container`: as a `PingFormat` has it; `day`: of times of day without a
    date. Without a name of a speed, `speed`
    is "". ValueError with a clause for each field without a path."""
    values = values_by_path(records)
    paths = dict[str, Path]()
    for field in ("longitude", "latitude", "speed", "time"):  # the plate last: much can be one
        ranked = _ranked(values, field, paths)
        fitting = [path for path in ranked if _fits(field, values[path])]
        fitting += [path for path in ranked if _fits(field, values[path], MOSTLY)]
        if not fitting and field == "time":  # by its form alone, if no other has it
            texts = [path for path in values if is_shown(path) and isinstance(values[path][0], str)]
            formed = [
                path
                for path in texts
                if _fits(field, values[path]) and not _NEVER[field].search(_words_of(path))
            ]
            fitting = formed if len(formed) == 1 else []
        if fitting:
            paths[field] = fitting[0]
    quality_warning = "" if {"longitude", "latitude"} & {*paths} else _places(values, paths)
    more = dict[str, Any]()
    times = [record.get(paths["time"]) for record in records] if "time" in paths else []
    form = found_time_form(values[paths["time"]]) if times else None
    is_date = form is not None and all(_DATE.fullmatch(str(one)) for one in values[paths["time"]])
    if (form is None or is_date) and (both := _two_times(values, paths, records)) is not None:
        (paths["time"], clock), times, form = both
        more = {"time": (dotted(paths["time"]), dotted(clock))}
    has_names = any(
        isinstance(path[0], str) for path in values
    )  # where it has none, nothing can be put in
    if form is None and has_names and (found := _message_time(values_by_path(beside))) is not None:
        path, form = found
        more = {"message_time": dotted(path)}
        ago = [one for one in _ranked(values, "ago", paths) if numbers_of(values[one])]
        paths["time"] = ago[0] if ago else path
        times = [record.get(paths["time"]) for record in records]
        form = form._replace(time_format=SECONDS_AGO) if ago else form
    of_day = ""
    if form is None and day and (clocks := _ranked(values, "time", paths)):
        form = form_of_day(values[clocks[0]], day)
        if form is not None:
            paths["time"] = clocks[0]
            times = [record.get(clocks[0]) for record in records]
            of_day = OF_NO_DAY.format(day)
    plate, of_plate = _plate(records, around, paths, times, form)
    if plate is not None:
        paths["plate"] = plate
        more |= _operator(records, values, paths)
    if "speed" not in paths and not _ranked(values, "speed", paths):
        more["speed"] = ""
    if form is None or len({*paths, *more} & set(FIELDS)) < len(FIELDS):
        scaled = _scaled(values, container, records, paths, times, form)
        missing = [
            _instead(field, values, container, scaled)
            for field in FIELDS
            if field not in {*paths, *more}
        ]
        names = [f"the names are {shown_names(values) or 'none that may be shown'}"]
        names = names if any(NO_NAME in clause for clause in missing) else []
        if cut := _texts_with_fields(values):
            missing = [cut]
            names = []
        raise ValueError("".join(f"\n  {clause}" for clause in missing + names))
    keys: dict[str, Any] = {field: dotted(path) for field, path in paths.items()} | more
    quality_warnings = [one for one in (quality_warning, of_plate, of_day) if one]
    return FeedMapping(**keys, time_format=form.time_format, zone=None), form, quality_warnings


_DATE = re.compile(
    r"[0-9]{1,4}[-/.][0-9]{1,2}[-/.][0-9]{1,4}|[0-9]{8}|[0-9]{4}-[0-9]{2}-[0-9]{2}[T ]00:00(:00(\.0+)?)?Z?"
)
_CLOCK = re.compile(
    r"[0-9]{1,2}[:.][0-9]{2}([:.][0-9]{2})?([.,][0-9]+)?( ?[ap]m)?(Z|[+-][0-9:]{4,6})?|[0-9]{1,6}",
    re.I,
)


def _two_times(
    values: Values, taken: Mapping[str, Path], records: Records
) -> tuple[tuple[Path, Path], list[Value], TimeForm] | None:
    """A date and a time of day in two fields, the times that they make, and the form of these."""

    def alike(path: Path, pattern: re.Pattern[str]) -> bool:
        return all(
            pattern.fullmatch(plain_halves(str(value)).strip())
            for value in values[path][:TIMES_MAX]
        )

    others = {path for field, path in taken.items() if field != "time"}
    words = {path: _words_of(path) for path in values if path not in others and is_shown(path)}
    open_paths = [
        one
        for one in words
        if not _NEVER["time"].search(words[one])
        and (_WORD_OF_TIME.search(words[one]) or _SECONDS_OF_DAY.search(words[one]))
    ]
    dates, clocks = (
        [path for path in open_paths if alike(path, pattern)] for pattern in (_DATE, _CLOCK)
    )
    for date, clock in ((date, clock) for date in dates for clock in clocks if date != clock):
        parts = [[str(record.get(path, "")) for record in records] for path in (date, clock)]
        if _SECONDS_OF_DAY.search(words[clock]):
            times: list[Value] = list(joined_times(parts, "%Y%m%d %H:%M:%S"))
            form = found_time_form(times)
            if form is not None:
                written = form.time_format if "%" in form.time_format else "%Y-%m-%d %H:%M:%S"
                return (date, clock), times, form._replace(time_format=written)
        for width in {
            0,
            4 if max(map(len, parts[1])) < 5 else 6,
        }:  # of digits that may lack their first zero
            parts[1] = [text.zfill(width) if text.isdecimal() else text for text in parts[1]]
            joined: list[Value] = list(joined_times(parts, ""))
            if (form := found_time_form(joined)) is not None:
                return (date, clock), joined, form
    return None


def _places(values: Values, paths: dict[str, Path]) -> str:
    """Put in the only two paths whose numbers are as fine as positions (ten metres), of a single
    city, where no path has such a name; and doubt which is which."""
    if any(_ranked(values, field, paths) for field in ("longitude", "latitude")):
        return ""
    numbers = {path: np.array(numbers_of(values[path])) for path in values if is_shown(path)}
    fine = [path for path in numbers if _fits("longitude", values[path])]
    fine = [path for path in fine if (np.abs(numbers[path] * 1e3 % 1 - 0.5) < 0.499).mean() > 0.5]
    if (
        len(fine) != 2
        or max(np.ptp(np.quantile(numbers[path], (0.1, 0.9))) for path in fine) > _CITY_DEGREES
    ):
        return ""
    paths["latitude"], paths["longitude"] = fine  # `init` looks whether that is at sea
    return f"longitude and latitude are {' and '.join(map(dotted, fine))}, {BY_VALUE}: is it so, and which is which?"


BY_VALUE = "by what they hold"
_CITY_DEGREES = 2.0


def _plate(
    records: Records,
    around: Records,
    paths: Mapping[str, Path],
    times: Sequence[Value],
    form: TimeForm | None,
) -> tuple[Path | None, str]:
    """The path of the plate, by its name and by how pings that have one value follow each other, or
    by the latter alone, which is a doubt. A number that varies within a vehicle is none."""
    own = values_by_path(records)
    keys = {path[0] for record in records for path in record}
    outer = {path: found for path, found in values_by_path(around).items() if path[0] not in keys}
    values = own | outer
    names = len(_NAMES["plate"].split())
    goes_on = dict[Path, bool | None]()
    track = track_of(records, paths, times, form.time_format) if form is not None else None
    for path in values:
        if path in paths.values() or not is_shown(path[:-1]) or not _fits("plate", values[path]):
            continue
        of_each = [record.get(path) for record in (records if path in own else around)]
        goes_on[path] = follow(of_each, track)
        for operator in (
            _ranked(own, "operator", paths) if goes_on[path] is False else ()
        ):  # may share numbers
            both = [
                f"{record.get(operator)}/{one}"
                for record, one in zip(records, of_each, strict=True)
            ]
            goes_on[path] = goes_on[path] or (None if follow(both, track) else False)
    named = [path for path in _ranked(values, "plate", paths) if path in goes_on]
    named.sort(key=lambda path: path not in own)
    named = [path for path in named if (_rank(path, "plate") or 0) < names] or named
    stamps = [time for time in times if time is not None]
    vehicles = [path for path in named if _may_be_vehicles(values[path], stamps, form)]
    if likely := [path for path in vehicles if goes_on[path] is not False]:
        return likely[0], ""
    never = _NEVER["plate"]
    by_track = [
        path
        for path, is_one in goes_on.items()
        if is_one and is_shown(path) and not never.search(_words_of(path))
    ]
    if by_track:
        by_track.sort(key=lambda path: len(set(values[path])))
        also = f" (or {shown_names(by_track[1:])})" if by_track[1:] else ""
        how = f"by how its pings follow each other{also}: is it the vehicle's?"
        return by_track[0], f"the plate is {dotted(by_track[0])}, {how}"
    texts = [
        path for path in vehicles or named if any(isinstance(value, str) for value in values[path])
    ]
    rest = texts if any(goes_on[path] is False for path in named) or not vehicles else vehicles
    return (rest[0] if rest else None), ""


def _message_time(values: Values) -> tuple[Path, TimeForm] | None:
    own = [
        path for path in _ranked(values, "time", {}) if first_element(path) is None
    ]  # no element's of an array
    forms = ((path, found_time_form(values[path])) for path in own)
    return next(((path, form) for path, form in forms if form is not None), None)


def _operator(
    records: Records, values: Values, paths: Mapping[str, Path]
) -> dict[str, tuple[str, str]]:
    """A plate of the operator and its vehicle, where two operators have one number at one time.
    Elsewhere a vehicle that goes for two operators would have two budgets."""
    plate = paths["plate"]
    time = paths.get("time", ())
    for path in _ranked(values, "operator", paths):
        both = {
            (one.get(time), one.get(plate), one[path])
            for one in records
            if one.get(plate) and path in one
        }
        if len({key[:2] for key in both}) < len(both):
            return {"plate": (dotted(path), dotted(plate))}
    return {}


def _moves_so(track: Track, plates: Sequence[Value], speeds: Sequence[Value], divisor: int) -> bool:
    """Whether places divided so fit the speeds, in any unit."""
    good, seconds, lon, lat = track
    pings = as_pings((good, seconds, lon / divisor, lat / divisor), plates, speeds)
    return unit_evidence(pings, "kmh").unit is not None


def _scaled(
    values: Values,
    container: str,
    records: Records,
    paths: Mapping[str, Path],
    times: Sequence[Value],
    form: TimeForm | None,
) -> str:
    """A clause on places that are degrees times a number: of several numbers, by how far pings
    move, whichever unit their speeds have."""
    ranked = {field: _ranked(values, field, {})[:1] for field in ("longitude", "latitude")}
    places = {field: some[0] for field, some in ranked.items() if some and is_shown(some[0])}
    divisors = divisors_of([numbers_of(values[path]) for path in places.values()])
    if not divisors:
        return ""
    if form is not None and {"plate", "speed"} <= {*paths}:
        track = track_of(records, {**paths, **places}, times, form.time_format)
        plates, speeds = ([one.get(paths[name]) for one in records] for name in ("plate", "speed"))
        fit = [one for one in divisors if track and _moves_so(track, plates, speeds, one)]
        divisors = fit + divisors
    return divided(list(places.values()), container, divisors[0])


def _texts_with_fields(values: Values) -> str:
    """A clause where texts hold fields with a mark between, with the command that makes lines."""
    for path, some in values.items():
        texts = [one for one in some if isinstance(one, str)]
        for mark in "|;\t":
            if not texts or min(text.count(mark) for text in texts) < len(FIELDS) - 1:
                continue
            looks = [look_of(cell) for cell in texts[0].split(mark)]
            again = [at for at, look in enumerate(looks) if at >= len(FIELDS) and look == looks[0]]
            of_each = again[0] if again else len(looks)
            array = dotted(path[:-1] if isinstance(path[-1], int) else path)
            command = f"jq -r '.. | strings | select(contains(\"{mark}\"))' FILE"
            if again:
                command += f" | sed -E 's/([^{mark}]*[{mark}]){{{of_each}}}/&\\n/g' | grep ."
            return (
                f"{array} holds texts with {mark!r} between {of_each} fields: `{command} > NEW` makes lines of them: "
                "write the names of the columns above these, in a file .csv, then `udp-stream init` it"
            )
    return ""


OF_NO_DAY = (
    "times of day have no date: source.time_format reads them as of {}: write the recording's day there, and split a "
    "recording at midnight; for a live feed write today"
)

MOSTLY = 0.5
"""The share of whole values from which a field is read, and the rest refused."""

NO_NAME = "no such name"


def _instead(field: str, values: Values, container: str, scaled: str) -> str:
    path = next((one for one in _ranked(values, field, {}) if is_shown(one)), None)
    ago = [one for one in _ranked(values, "ago", {}) if field == "time" and path is None]
    if ago:
        return f"time: found seconds at {dotted(ago[0])}, and no time of the message that they count back from"
    if scaled and field in ("longitude", "latitude"):
        return f"{field}: {scaled}"
    if (
        path is None
        and field in ("longitude", "latitude")
        and (pair := pair_in_text(values, container == "JSON"))
    ):
        return f"{field}: {pair}"
    if path is None:
        return f"{field}: found {NO_NAME}, wanted {WANTED[field]}"
    varies = field == "plate" and _fits(field, values[path])
    where = f" at {dotted(path)}{', which varies within a vehicle' if varies else ''}"
    return f"{field}: {found_and_wanted(field, path, values[path], where)}"


def has_speeds(records: Records) -> bool:
    """Whether some of them have a speed."""
    return any(
        not is_missing(one) and _rank(path, "speed") is not None
        for some in records
        for path, one in some.items()
    )


def _ranked(values: Values, field: str, taken: Mapping[str, Path]) -> list[Path]:
    """Paths with a name of the field, the likeliest first, then those nearer the longitude. No path
    leads through a key that may be a plate."""
    place = taken.get("longitude", ())
    open_paths = (path for path in values if path not in taken.values() and is_shown(path[:-1]))
    ranks = {path: rank for path in open_paths if (rank := _rank(path, field)) is not None}
    return sorted(ranks, key=lambda path: (ranks[path], -len(common((path, place))), len(path)))


def is_like(field: str, path: Path, values: Sequence[Value]) -> bool:
    """Whether name and values are those of a field."""
    return _rank(path, field) is not None and _fits(field, values)


def is_vehicles(path: Path, values: Sequence[Value]) -> bool:
    """Whether these may be plates, of several vehicles, by a path that names nothing else."""
    several = 1 < len(set(values)) <= PLATES_PER_PING * len(values)
    return several and _fits("plate", values) and not _NEVER["plate"].search(_words_of(path))


def _words_of(path: Path) -> str:
    """The words of a path's names, in small letters, apart."""
    return " ".join(re.findall("[A-Z]?[a-z]+|[A-Z]+", dotted(path))).lower()


def _rank(path: Path, field: str) -> int | None:
    """How likely a path is the field's, by its last keys, the least first; None if it is not."""
    names = _NAMES[field].split()
    never = _NEVER.get(field)
    if path[-1] == ANY_KEY:
        return len(names) - 1 if field == "plate" else None
    steps = path[:-1] if len(path) > 1 and path[-1] == "value" else path  # as NGSI has it
    words = [re.sub(r"[^a-z0-9]", "", normalize("NFKD", str(step).lower())) for step in steps]
    about = path[-1:] if field == "plate" and "vehicle" in words[-1] else path
    if never is not None and never.search(_words_of(about)):
        return None
    is_index = isinstance(steps[-1], int)  # of a record that is an array, or of coordinates
    endings = (
        {"".join(words)}
        if len(words) == 1
        else {"".join(words[-2:]), "".join(words[-3:]), "".join(words)}
    )
    endings |= set() if is_index else {words[-1]}
    ranks = [at for at, name in enumerate(names) if name in endings]
    longer = (
        len(names) + at for at, name in enumerate(names) if len(name) > 3 and name in words[-1]
    )
    return min(ranks or longer, default=None)


def _fits(field: str, values: Sequence[Value], share: float = SHARE_MIN) -> bool:
    numbers = numbers_of(values)
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
            good = (
                sum(abs(number) <= 180 for number in numbers)
                if any(number % 1 for number in numbers)
                else 0
            )
    return good >= max(1, share * len(values))


def _may_be_vehicles(
    plates: Sequence[Value], times: Sequence[Value], form: TimeForm | None
) -> bool:
    """Whether these are neither ids of messages, all different, nor the id of a feed, the same in
    all messages."""
    if len(plates) < PINGS_JUDGED_MIN or form is None:
        return True
    if (
        len(set(plates)) == 1
    ):  # the pings of a vehicle differ in their times, those of many vehicles do not
        return len(set(times)) > PLATES_PER_PING * len(times)
    return form.span_ms <= SNAPSHOT_MS or len(set(plates)) <= PLATES_PER_PING * len(plates)
