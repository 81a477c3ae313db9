"""Refusals in words, and what is said of data that hold no ping: the field, the form found there,
and what would help.

Of values their kind alone is shown.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress

from udp_stream.pings.decode import EARTH, Box, Reason, Refusal
from udp_stream.pings.found import Record, Records, flat, shown_names
from udp_stream.pings.json import FeedForm
from udp_stream.pings.mapping import dotted, json_path
from udp_stream.pings.repairs import (
    WANTED,
    form_of,
    found_and_wanted,
    is_missing,
    numbers_of,
    repair_of,
)
from udp_stream.pings.texts import UNREADABLE, delimited, frame_of, trim, value_of
from udp_stream.pings.time_forms import found_time_form

TRACKER = (
    "a tracker's own lines (H02, NMEA or alike), which are not read: convert them with a decoder such as Traccar's, "
    "and take its JSON or CSV"
)
_MAGIC = (
    (b"PK\x03\x04", "a zip archive or a spreadsheet: unpack it, or save it as CSV"),
    (b"PAR1", "Parquet"),
    (b"BZh", "data compressed by bzip2: `bzip2 -dc FILE > NEW`"),
    (b"\xfd7zXZ\0", "data compressed by xz: `xz -dc FILE > NEW`"),
    (b"\x28\xb5\x2f\xfd", "data compressed by Zstandard: `zstd -dc FILE > NEW`"),
    *((start, TRACKER) for start in (b"*", b"$G", b"$$", b"+RESP:", b"imei:")),
)
_UTF16 = re.compile(rb"\xff\xfe|\xfe\xff|(?:[\x09-\x7e]\0){2}|(?:\0[\x09-\x7e]){2}")

KIND_BYTES = 4  # tell most kinds


def other_kind(start: bytes) -> str | None:
    """The kind of data that begin so; None for what may be text in UTF-8."""
    kinds = (kind for magic, kind in _MAGIC if start.startswith(magic))
    if not _UTF16.match(start):
        return next(kinds, None)
    coding = (
        "UTF-16"
        if start[:2] in (b"\xff\xfe", b"\xfe\xff")
        else "UTF-16LE"
        if start[1:2] == b"\0"
        else "UTF-16BE"
    )
    return f"text in UTF-16: `iconv -f {coding} -t UTF-8 FILE > NEW`"


def odd_text(line: bytes) -> str | None:
    """The kind of a line that is not UTF-8."""
    try:
        line.decode()
    except UnicodeDecodeError:
        return "text that is not UTF-8"
    return None


_PAGE_BYTES = 1000
"""In which a page has its first element."""

_TEXT_FORM = re.compile(rb"(?:header|entity)\s*(?::\s*)?\{")

SERVER_ERROR = (
    "an error of the server, and no feed: is the address right, and the key (token) valid?"
)
_ERROR = re.compile(r"error|fault|exception|denied|unauthori[sz]ed|forbidden", re.IGNORECASE)
_OTHER_FEEDS = {
    "trip updates": re.compile(r"(^|\.)trip_?Update(\.|$)", re.IGNORECASE),
    "alerts": re.compile(r"(^|\.)(alert\.|PtSituationElement|SituationExchange)", re.IGNORECASE),
    "timetables": re.compile(
        r"EstimatedTimetable|StopMonitoring|StopTimetable|MonitoredStopVisit|timeToStation|expectedArrival|stop_lat$"
    ),
}
"""Patterns of names by which other kinds of feeds are known."""

ELSEWHERE = "another address of the provider has the vehicle positions"


def is_server_error(record: Record) -> bool:
    """Whether the few names of a message are those of an error."""
    names = [dotted(path) for path in record]
    told = {"message", "detail", "status", "code", "statuscode", "title"} & {
        name.lower() for name in names
    }
    return 0 < len(names) <= 8 and (any(_ERROR.search(name) for name in names) or len(told) > 1)


def other_feed(records: Records) -> str:
    """The kind of another feed that these records are of; else ""."""
    names = {dotted(path) for record in records for path in record}
    return next((kind for kind, look in _OTHER_FEEDS.items() if any(map(look.search, names))), "")


def is_page(text: bytes) -> bool:
    """Whether this is a page of HTML, without white space before it."""
    start = text[:_PAGE_BYTES].lower()
    return start.startswith(b"<") and (b"<html" in start or b"<!doctype html" in start)


def no_pings(text: bytes, is_gtfs: bool = False) -> str | None:
    """The kind of a file, a line or a message in which no ping was found, and what to ask for; None
    for an object of JSON. `is_gtfs`: it should be GTFS-realtime."""
    if is_gtfs and delimited(text) is not None:
        return "several messages, each behind its length: `init` and `replay` read them from a file in .pb"
    text = text.lstrip()
    if is_page(text):
        return "a page for people (HTML) with no ping: open its address in a browser"
    if text.startswith(b"<"):
        return "XML in which no ping is found"
    if _TEXT_FORM.match(text):
        return "the text form of GTFS-realtime: ask for the binary form"
    if (kind := other_kind(text)) is not None:
        return kind
    if (schema := frame_of(text)) is not None:
        return f"a Schema Registry frame (schema {schema}) with no JSON in it"
    if any(byte < ord("\t") for byte in text[:200]):
        return (
            "data that are no whole message"
            if is_gtfs
            else "binary: GTFS-realtime has a name in .pb"
        )
    if (kind := odd_text(text.partition(b"\n")[0])) is not None:
        return kind
    try:
        value = value_of(text)
    except UNREADABLE as error:
        if "trailing" in str(error):
            return "several values of JSON: write each on a line of its own (`jq -c .`)"
        return (
            "JSON that is not whole"
            if text[:1] in (b"{", b"[", b'"')
            else "text, neither JSON nor CSV"
        )
    if is_server_error(flat(value) or {}):
        return SERVER_ERROR
    if is_gtfs:
        return "JSON: give it a name in .json, or ask for the binary form"
    held = value[0] if isinstance(value, list) and value else value
    return None if isinstance(held, dict | list | str) and held else "JSON that is no object"


# Refusals in words: the field, the form found there, and the form wanted. Of values their kind
# alone is shown.

SENTENCES_MAX = 4  # kinds of refusals that are explained

OF_A_SPEED = (Reason.SPEED_NOT_FINITE, Reason.SPEED_NEGATIVE, Reason.SPEED_ABOVE_LIMIT)
"""Reasons that look at the value of a speed: docs/pings.md."""

OF_A_VALUE = (
    Reason.WRONG_TYPE,
    Reason.SPEED_NOT_FINITE,
    Reason.EMPTY_PLATE,
    Reason.PLACEHOLDER_PLATE,
)
"""Reasons that a missing value has, where a word or null stands for it."""

OF_A_PLACE = (Reason.OUTSIDE_BOX, Reason.COORDINATES_OUT_OF_RANGE)
"""Reasons of pings that would lie elsewhere with longitude and latitude exchanged."""

_SCALED = 10_000  # no degrees

LABEL = "vehicle.vehicle.label"
"""The name of a label that was not asked for, in what is kept of a refused entity of GTFS-realtime."""

LABEL_PLATE = f'source.plate = "{LABEL}" takes it, if it is the vehicle\'s; some feeds have a destination there'
"""Advice where only a label names the vehicle."""

_OF_GTFS = {
    "$.license_plate": "vehicle.vehicle.id, license_plate and label are unset: nothing names the vehicle",
    "$.observationDateTime": "vehicle.timestamp and header.timestamp are unset: nothing says when it was",
    "$.location": "vehicle.position is unset",
    "$.speed": 'vehicle.position.speed is unset: speed.from = "movement" derives speeds from positions',
}
"""By the path of what a ping of GTFS-realtime lacks, what the entity lacks."""

_NAMES_OF_GTFS = {
    "$.license_plate": "vehicle.vehicle",
    "$.observationDateTime": "vehicle.timestamp",
    "$.location": "vehicle.position",
    "$.speed": "vehicle.position.speed",
}

OF_THE_CLOCK = (Reason.LATE, Reason.SLOT_FULL, Reason.TIME_IN_FUTURE, Reason.TIME_ROLLED_OVER)
"""Reasons that lie in the log's clock, and not in a message."""


def lacks_value(refusal: Refusal, original: bytes) -> bool:
    """Whether a ping is refused because null, or a word for it, stands where a value would: no
    reason to stop."""
    if refusal.reason not in OF_A_VALUE:
        return False
    with suppress(*UNREADABLE):
        values = [
            value
            for path, value in (flat(value_of(trim(original))) or {}).items()
            if json_path(path) == refusal.path
        ]
        return bool(values) and is_missing(values[0])
    return False


def advise(
    refused: Sequence[tuple[Refusal, bytes]], form: FeedForm, box: Box | None = None
) -> list[str]:
    """A sentence for each of the commonest kinds of refusals of a sample; `box` is `pings.box`."""
    kinds: defaultdict[tuple[Reason, str], list[bytes]] = defaultdict(list)
    for refusal, original in refused:
        kinds[refusal.reason, refusal.path].append(original)
    commonest = sorted(kinds.items(), key=lambda kind: -len(kind[1]))[:SENTENCES_MAX]
    said = (
        (reason, path, _said(reason, path, pieces, form, box))
        for (reason, path), pieces in commonest
    )
    return [
        f"{reason} at {_name_of(path, form)}{f': {words}' if words else ''}"
        for reason, path, words in said
    ]


def _name_of(path: str, form: FeedForm) -> str:
    """The path of a field as the feed has it."""
    names = {} if form.format.is_json else _NAMES_OF_GTFS
    return next((name for ours, name in names.items() if path.startswith(ours)), path)


_NO_PLATE = "wanted the vehicle's: pings without a plate protect none"
_IN_UNIT = "wanted speed.unit as the feed has it: `udp-stream doctor FILE` compares it with how far pings move"
_OF_REASONS = {
    Reason.OUTSIDE_BOX: "wanted pings.box = [west, south, east, north] around the feed",
    Reason.EMPTY_PLATE: _NO_PLATE,
    Reason.PLACEHOLDER_PLATE: _NO_PLATE,
    Reason.SPEED_NOT_FINITE: f"found NaN or Infinity, wanted {WANTED['speed']}",
    Reason.SPEED_NEGATIVE: _IN_UNIT,
    Reason.SPEED_ABOVE_LIMIT: _IN_UNIT,
}
"""Sentences that need no look at the values."""


def _said(
    reason: Reason, path: str, pieces: Sequence[bytes], form: FeedForm, box: Box | None
) -> str | None:
    records = list[Record]()
    for piece in pieces:
        with suppress(*UNREADABLE):
            records += filter(None, [flat(value_of(trim(piece)))])
    field = _field_at(path, form)
    if reason in (Reason.NOT_JSON, Reason.NOT_GTFS_REALTIME) or not records:
        found = no_pings(pieces[0].rstrip(b"\0"), reason == Reason.NOT_GTFS_REALTIME)
        return None if found is None else f"found {found}"
    if reason == Reason.MISSING_FIELD:
        if any((LABEL,) in record for record in records):
            return f"vehicle.vehicle.id is unset; {LABEL} is set: {LABEL_PLATE}"
        if not form.format.is_json and path in _OF_GTFS:
            return _OF_GTFS[path]
        if other := other_feed(records):
            return f"found {other}: {ELSEWHERE}"
        if all(map(is_server_error, records)):
            return f"found {SERVER_ERROR}"
        paths = Counter(one for record in records for one in record)
        names = shown_names(
            sorted((one for one, count in paths.items() if 2 * count >= len(records)), key=dotted)
        )
        name = path.removeprefix("$.") if field is None else dotted(form.mapping.steps[field])
        return f"found {names or 'no name that may be shown'}, wanted {name} (`udp-stream init FILE` writes [source])"
    if reason in OF_A_PLACE and _look_exchanged(records, form, box or EARTH):
        # Polled GTFS-realtime comes in the plain form, which has no paths of its own.
        what = "longitude and latitude look exchanged"
        what += "" if box is None else ", of the feed or of pings.box (west, south, east, north)"
        if not form.format.is_json or form.format.is_exchanged:
            return f"{what}: source.exchanged = {'false' if form.format.is_exchanged else 'true'} reads the feed"
        keys = f'source.longitude = "{form.mapping.latitude}" and source.latitude = "{form.mapping.longitude}"'
        return f"{what}: {keys} read the feed" + (
            ", or source.exchanged = true" if form.is_plain else ""
        )
    if field is None or reason in _OF_REASONS:
        return _OF_REASONS.get(reason)
    steps = form.mapping.steps[field]
    values = [record[steps] for record in records if steps in record]
    if field == "time":
        found = form_of(values)
        if (times := found_time_form(values)) is not None:
            found = times.time_format + ("" if times.has_offset else " without an offset")
        elif repair := repair_of(field, steps, values):
            return f"found {found}{repair}"
        if reason == Reason.NO_UTC_OFFSET:
            return f'found {found}, wanted an offset, or source.time_zone = "Area/City" of the feed\'s clock'
        return f'found {found}, wanted source.time_format = "{form.mapping.time_format}"'
    if values and all(map(is_missing, values)) and not all(value is None for value in values):
        return f"found a word for a missing value, wanted {WANTED[field]}"
    is_scaled = (
        reason == Reason.COORDINATES_OUT_OF_RANGE
        and min(map(abs, numbers_of(values)), default=0) > _SCALED
    )
    if is_scaled:
        said = "scaled? `udp-stream init FILE` says how to divide them"
        return f"found {form_of(values)}, wanted {WANTED[field]}: {said}"
    return found_and_wanted(field, steps, values)


def _look_exchanged(records: Records, form: FeedForm, box: Box) -> bool:
    """Whether most of these pings lie in the box with longitude and latitude exchanged."""
    (west, south, east, north) = box
    steps = form.mapping.steps
    fields = ("longitude", "latitude") if form.format.is_exchanged else ("latitude", "longitude")
    places = [numbers_of([record.get(steps[field]) for field in fields]) for record in records]
    inside = [
        place
        for place in places
        if len(place) == 2 and west <= place[0] <= east and south <= place[1] <= north
    ]
    return 2 * len(inside) > len(records)


def _field_at(path: str, form: FeedForm) -> str | None:
    """The field whose path a refusal's path is, or leads to."""
    for field, steps in form.mapping.steps.items() if path != "$" else ():
        ours = json_path(steps)
        if ours == path or ours.startswith((f"{path}.", f"{path}[")):
            return field
    return None
