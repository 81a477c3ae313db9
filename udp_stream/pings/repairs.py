"""The kinds of a feed's values, and commands that mend what no setting reads: from FILE to NEW.

Of a value its kind or form is shown.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from udp_stream.base.units import KMH_PER_UNIT
from udp_stream.pings.decode import PLACEHOLDERS
from udp_stream.pings.mapping import Path, dotted
from udp_stream.pings.times import number_of

Value = str | int | float | bool | None

SHARE_MIN = 0.9
"""The share of a path's values that must be what the field is."""

_FORM_CHARS = 40

GOOD_FORMS = {
    "time": "0000-00-00T00:00:00Z",
    "longitude": "-00.000000",
    "latitude": "-00.000000",
    "speed": "00.0",
}
"""A form that passes."""

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


def found_and_wanted(field: str, path: Path, values: Sequence[Value], where: str = "") -> str:
    """The form of a field's values, and where they are, beside a form that passes; what mends
    them."""
    form = form_of(values)
    is_shown = form.endswith('"') and field in GOOD_FORMS
    such = f' such as "{GOOD_FORMS[field]}"' if is_shown else ""
    return f"found {form}{where}, wanted {WANTED[field]}{such}{repair_of(field, path, values)}"


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


class Repair(NamedTuple):
    """A mend of the values of some fields of which nearly all have the `pattern`: in the command,
    from FILE to NEW, `{0}` is what its group has, and `{key}` the last name of the values' path.
    `effect`: of the command; without a command, the advice."""

    fields: str
    pattern: str
    command: str
    effect: str


_SIDE = r"([0-9]+\.[0-9]{{3,}}) ?(°)? ?"
REPAIRS = (
    Repair(
        "plate",
        r"#[0-9]+\.0()",
        """jq -c 'walk(if type == "object" and has("{key}") then .["{key}"] |= floor else . end)'""",
        "makes them whole",
    ),
    Repair(
        "time",
        r".*:[0-9][0-9.]* ?(UTC|GMT)",
        r"sed -E 's/(:[0-9.]+) ?{0}/\1Z/'",
        "has the offset that it means",
    ),
    Repair(
        "time",
        r".*:[0-9][0-9.]* ?([A-Z]{3,4})(?: [0-9]{4})?",
        r"sed -E 's/(:[0-9.]+) ?{0}/\1/'",
        "leaves the zone out: the clock of the place is read then",
    ),
    Repair(
        "longitude latitude speed",
        r"(?i)[+-]?[0-9]+(?:[.,][0-9]+)?\s*(°|k[a-z]*/?h[a-z]*|mi?/?p?h|kn|knots?|kts?|c?m/?p?s|f(?:ee)?t/?s|fps)",
        r"sed -E 's|([0-9]) *{0}|\1|g'",
        "leaves the unit out",
    ),
    Repair(
        "longitude latitude",
        r"[0-9]+\.[0-9]{3,} ?°? ?([NSEW])",
        rf"sed -E 's/{_SIDE}[NE]/\1/g; s/{_SIDE}[SW]/-\1/g'",
        "makes signs of N, S, E and W",
    ),
    Repair(
        "longitude latitude",
        r"#?-?[0-9]{2,3}[0-5][0-9]\.[0-9]{3,}()",
        "",
        "degrees and minutes in one number (ddmm.mmmm)? Degrees are the whole hundreds, and the rest over 60",
    ),
    Repair(
        "longitude latitude",
        r"-?[0-9]{1,3}(?:[., ][0-9]{3}){2,}()",
        "",
        "formatted by a spreadsheet? Export the column as text",
    ),
    Repair(
        "time",
        r"[0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:[.,][0-9]+)?)?()",
        "",
        'a time of day without a date? source.time_format = "2024-03-05 %H:%M:%S" reads it as of that day, and "today '
        '%H:%M:%S" as it comes',
    ),
)


def repair_of(field: str, path: Path, values: Sequence[Value]) -> str:
    """The mend of a field's values, in a clause behind a colon; "" if nothing is known."""
    texts = [value.strip() if isinstance(value, str) else f"#{value}" for value in values]
    key = next((step for step in reversed(path) if isinstance(step, str)), "")
    for repair in REPAIRS:
        found = [match[1] for text in texts if (match := re.fullmatch(repair.pattern, text))]
        if field not in repair.fields or not found or len(found) < SHARE_MIN * len(texts):
            continue
        group = Counter(found).most_common(1)[0][0]
        unit = unit_of_name(group) if field == "speed" else None
        then = f', then speed.unit = "{unit}"' if unit in KMH_PER_UNIT else ""
        command = repair.command and f"`{repair.command.format(group, key=key)} FILE > NEW` "
        return f": {command}{repair.effect}{then}"
    return ""


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


def of_packed(said: str, path: str) -> str:
    """The same sentence, whose commands unpack the file first if it is gzip."""
    return (
        re.sub("`([^`]*) FILE > NEW`", r"`gzip -dc FILE | \1 > NEW`", said)
        if path.endswith(".gz")
        else said
    )


_DIVISORS = {
    10**5: "times 1e5",
    10**6: "times 1e6",
    10**7: "times 1e7",
    3600: "in seconds",
    60: "in minutes",
}


def divisors_of(numbers: Sequence[Sequence[float]]) -> list[int]:
    """The numbers that longitudes and latitudes, which are no degrees, may be divided by, the
    likeliest first: whole numbers by a power of ten."""
    most = [max(map(abs, some), default=0) for some in numbers]
    if len(most) < 2 or max(most) <= 180:
        return []
    found = [one for one in _DIVISORS if most[0] <= 180 * one and most[1] <= 90 * one]
    is_whole = not any(number % 1 for some in numbers for number in some)
    return found if is_whole else [one for one in found if one <= 3600]


def divided(paths: Sequence[Path], container: str, divisor: int) -> str:
    """A clause on degrees times a number, with the command that divides them."""
    said = f"found numbers as of degrees {_DIVISORS[divisor]}"
    if container == "XML":
        return f"{said}: divide them by {divisor}"
    keys = list(
        dict.fromkeys(next(str(s) for s in reversed(path) if isinstance(s, str)) for path in paths)
    )
    if container != "JSON":
        columns = " || ".join(f'$i == "{key}"' for key in keys)
        repair = (
            f"awk -F'{container}' -v OFS='{container}' -v CONVFMT=%.7f -v OFMT=%.7f 'NR == 1 {{"
        )
        repair += f"for (i = 1; i <= NF; i++) if ({columns}) c[i]}} NR > 1 {{for (i in c) $i /= {divisor}}} 1'"
    else:
        half = f'if type == "array" then map(tonumber / {divisor}) else tonumber / {divisor} end'
        each = " | ".join(f'if has("{key}") then .["{key}"] |= ({half}) else . end' for key in keys)
        repair = f"jq -c 'walk(if type == \"object\" then {each} else . end)'"
    return f"{said}: `{repair} FILE > NEW` divides them"
