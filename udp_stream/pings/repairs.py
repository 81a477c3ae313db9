"""The kinds of a feed's values, and commands that mend what no setting reads: from FILE to NEW.

Of a value its kind or form is shown.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from udp_stream.pings.decode import PLACEHOLDERS
from udp_stream.pings.mapping import Path, dotted
from udp_stream.pings.times import number_of
from udp_stream.units import KMH_PER_UNIT

Value = str | int | float | bool | None

SHARE_MIN = 0.9
"""The share of a path's values that must be what the field is."""

_FORM_CHARS = 40

WANTED: Mapping[str, str] = {
    "plate": "text or a whole number, of the vehicle",
    "time": "a date and a time of day",
    "longitude": "degrees",
    "latitude": "degrees",
    "speed": "a number, 0 or more",
}
"""The kind of value that each field of a ping must have."""


def is_missing(value: object) -> bool:
    """Whether a value, or a word in its place, says that there is none."""
    return value is None or (
        isinstance(value, str) and (not value.strip() or value.strip().lower() in PLACEHOLDERS)
    )


def kind_of(values: Sequence[Value]) -> str:
    """The kind of most values; never a value."""
    names: dict[type, str] = {
        str: "text",
        bool: "true or false",
        int: "a whole number",
        float: "a number",
    }
    kinds = Counter(names.get(type(value), "nothing (null)") for value in values)
    return kinds.most_common(1)[0][0] if kinds else "an object or an array"


def form_of(values: Sequence[Value]) -> str:
    """The kind of most values, and of texts the commonest form: 0 for each digit, and a for each
    run of letters."""
    kind = kind_of(values)
    texts = [value.strip() for value in values if isinstance(value, str)]
    if kind != "text" or not texts:
        return kind
    forms = Counter(re.sub(r"[^\W\d_]+", "a", re.sub(r"\d", "0", text)) for text in texts)
    return f'text such as "{forms.most_common(1)[0][0][:_FORM_CHARS]}"'


def numbers_of(values: Sequence[Value]) -> list[float]:
    """The numbers among values, also those in texts."""
    found = [
        number_of(value) if isinstance(value, str) else value
        for value in values
        if not isinstance(value, bool)
    ]
    return [float(number) for number in found if number is not None and abs(number) < 1e300]


_UNITS = (
    *(
        ("kmh", r"km/?_?-?h|kph|kmhr|kmph"),
        ("mph", r"mph|mi/?h"),
        ("knots", r"knot|(\b|_|speed|velocity)(kn|kts?)$"),
    ),
    *(
        ("fps", r"fps|f(ee)?t/?s|feet"),
        ("cms", r"cm/?p?_?s"),
        ("mps", r"m/s|mps|meterspersecond|_ms$"),
    ),
)
"""Units that names say; not all of them are in `KMH_PER_UNIT`."""


def unit_of_name(name: str) -> str | None:
    """The unit that the name of a field of speeds says, by the last step of its path."""
    last = name.rpartition(".")[2].lower()
    return next((unit for unit, words in _UNITS if re.search(words, last)), None)


_WITH_UNIT = re.compile(
    r"\s*[+-]?[0-9]+(?:[.,][0-9]+)?(\s*)([^\W\d_][^\W\d_/.]*(?:[/.][^\W\d_]+)?|°)\s*"
)


def repair_of(field: str, path: Path, values: Sequence[Value]) -> str:
    """The command that mends a field's values, in a clause behind a colon; "" if none is known."""
    match field:
        case "plate":
            return as_whole(values, path)
        case "time":
            return without_zone(values)
        case "longitude" | "latitude":
            return without_unit(values) or without_side(values)
    return without_unit(values)


def without_unit(values: Sequence[Value]) -> str:
    """The command that leaves out the unit behind numbers, if most of them have it; else ""."""
    units = Counter(
        found[2]
        for value in values
        if isinstance(value, str) and (found := _WITH_UNIT.fullmatch(value))
    )
    (unit, count) = units.most_common(1)[0] if units else ("", 0)
    if count < SHARE_MIN * len(values) or not (unit == "°" or unit_of_name(unit)):
        return ""
    then = (
        f', then speed.unit = "{unit_of_name(unit)}"' if unit_of_name(unit) in KMH_PER_UNIT else ""
    )
    return f": `sed -E 's|([0-9]) *{unit}|\\1|g' FILE > NEW` leaves the unit out{then}"


_WITH_SIDE = re.compile(r"\s*[0-9]+\.[0-9]{3,} ?°? ?[NSEW]\s*")


def without_side(values: Sequence[Value]) -> str:
    """The command that makes signs of N, S, E and W behind degrees, if most values have them; else
    ""."""
    if sum(
        isinstance(value, str) and bool(_WITH_SIDE.fullmatch(value)) for value in values
    ) < SHARE_MIN * len(values):
        return ""
    number = r"([0-9]+\.[0-9]{3,}) ?(°)? ?"
    return f": `sed -E 's/{number}[NE]/\\1/g; s/{number}[SW]/-\\1/g' FILE > NEW` makes signs of N, S, E and W"


_PAIR = re.compile(r"\s*-?[0-9]+\.[0-9]{3,} ?[,; ] ?-?[0-9]+\.[0-9]{3,}\s*")


def pair_in_text(values: Mapping[Path, Sequence[Value]], is_json: bool) -> str:
    """A clause where longitude and latitude stand in the same text, with the command that takes
    them apart; else ""."""
    for path, some in values.items():
        if sum(
            isinstance(value, str) and bool(_PAIR.fullmatch(value)) for value in some
        ) >= SHARE_MIN * len(some):
            number = r"(-?[0-9]+\.[0-9]{3,})"
            repair = f": `sed -E 's/\"{number} ?[,; ] ?{number}\"/[\\1, \\2]/g' FILE > NEW` makes an array of them"
            return f"found two numbers in one text at {dotted(path)}{repair if is_json else ', wanted a column for each'}"
    return ""


_ZONE = re.compile(r".*:[0-9][0-9.]* ?([A-Z]{3,4})($| [0-9]{4}$)")


def without_zone(values: Sequence[Value]) -> str:
    """The command that takes the zone's name out of times, if most of them have it; else ""."""
    zones = Counter(
        found.groups()
        for value in values
        if isinstance(value, str) and (found := _ZONE.match(value.strip()))
    )
    (zone, year), count = zones.most_common(1)[0] if zones else (("", ""), 0)
    if count < SHARE_MIN * len(values):
        return ""
    is_utc = zone in ("UTC", "GMT") and not year
    what = (
        "has the offset that it means"
        if is_utc
        else "leaves the zone out: the clock of the place is read then"
    )
    return f": `sed -E 's/(:[0-9.]+) ?{zone}/\\1{'Z' * is_utc}/' FILE > NEW` {what}"


def as_whole(values: Sequence[Value], path: Path) -> str:
    """The command that makes whole numbers of numbers such as 7.0; "" if they are not all such."""
    if not values or not all(isinstance(value, float) and value.is_integer() for value in values):
        return ""
    key = next(str(step) for step in reversed(path) if isinstance(step, str))
    each = f'if type == "object" and has("{key}") then .["{key}"] |= floor else . end'
    return f": `jq -c 'walk({each})' FILE > NEW` makes them whole"


def of_packed(said: str, path: str) -> str:
    """The same sentence, whose commands unpack the file first if it is gzip."""
    return (
        re.sub("`([^`]*) FILE > NEW`", r"`gzip -dc FILE | \1 > NEW`", said)
        if path.endswith(".gz")
        else said
    )


def scaled_degrees(places: Sequence[tuple[Path, Sequence[Value]]], container: str) -> str:
    """The command that divides longitudes and latitudes that are written as whole numbers; "" if
    they are no such."""
    most = [max(map(abs, numbers_of(values)), default=0) for _, values in places]
    if len(places) < 2 or any(number % 1 for _, values in places for number in numbers_of(values)):
        return ""
    power = next((k for k in (5, 6, 7) if most[0] <= 180 * 10**k and most[1] <= 90 * 10**k), 0)
    if not power or max(most) <= 180:
        return ""
    if container == "XML":
        return f"found whole numbers, as of degrees times 1e{power}: divide them"
    keys = list(
        dict.fromkeys(
            next(str(s) for s in reversed(path) if isinstance(s, str)) for path, _ in places
        )
    )
    if container != "JSON":
        columns = " || ".join(f'$i == "{key}"' for key in keys)
        repair = (
            f"awk -F'{container}' -v OFS='{container}' -v CONVFMT=%.7f -v OFMT=%.7f 'NR == 1 {{"
        )
        repair += f"for (i = 1; i <= NF; i++) if ({columns}) c[i]}} NR > 1 {{for (i in c) $i /= 1e{power}}} 1'"
    else:
        half = f'if type == "array" then map(tonumber / 1e{power}) else tonumber / 1e{power} end'
        each = " | ".join(f'if has("{key}") then .["{key}"] |= ({half}) else . end' for key in keys)
        repair = f"jq -c 'walk(if type == \"object\" then {each} else . end)'"
    return f"found whole numbers, as of degrees times 1e{power}: `{repair} FILE > NEW` divides them"
