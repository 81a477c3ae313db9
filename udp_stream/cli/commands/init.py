"""`init`: a recording of any form in, a commented configuration out. Nothing is charged or
released.

The mapping comes from names and formats (`pings.found`), the zone and the box from the positions,
the unit of speed from how far buses move: a verdict for the operator, who may see the pings. U is
never taken from recorded speeds.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from math import ceil, floor
from tempfile import TemporaryDirectory
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
from msgspec import Raw

from udp_stream.base.errors import UsageError
from udp_stream.base.files import draft_of, link_first
from udp_stream.base.logs import counted
from udp_stream.base.units import KMH_PER_UNIT
from udp_stream.cli.commands.config import config
from udp_stream.cli.evidence import (
    ALL_ZERO,
    MESSAGES_MIN,
    NEAR_MIN,
    Look,
    findings,
    is_sea,
    look_at_files,
    middle_of,
    share_near,
    zone_of,
)
from udp_stream.cli.outputs import require_place
from udp_stream.cli.preflight import is_on_disk, named, require_files
from udp_stream.cli.progress import ReadingProgress, console
from udp_stream.pings.advice import (
    ELSEWHERE,
    LABEL,
    LABEL_PLATE,
    SERVER_ERROR,
    is_server_error,
    no_pings,
    other_feed,
)
from udp_stream.pings.decode import Box, PingRules, Reason, Refusal
from udp_stream.pings.found import (
    BY_VALUE,
    Record,
    flat,
    found_mapping,
    has_speeds,
    is_shown,
)
from udp_stream.pings.json import (
    ENVELOPES,
    PLAIN,
    Fault,
    FeedForm,
    exchanged,
    mapped_form,
    records_within,
    unwrap,
    with_plates,
    without_speeds,
)
from udp_stream.pings.mapping import (
    ANY_KEY,
    FIELDS,
    MESSAGE_TIME,
    PRESETS,
    FeedMapping,
    Path,
    Preset,
    dotted,
)
from udp_stream.pings.repairs import Value, numbers_of, of_packed, unit_of_name
from udp_stream.pings.snapshots import UNIT
from udp_stream.pings.texts import UNREADABLE, as_written, finite, from_xml, trim, value_of
from udp_stream.pings.time_forms import TimeForm
from udp_stream.pings.times import ISO, OF_A_DAY
from udp_stream.pings.unread import unread_fields, without_spring
from udp_stream.settings import Settings, load
from udp_stream.sources.files import FileSource, as_far_as_whole, require_readable
from udp_stream.sources.recordings import is_gtfs_file

SAMPLE_BYTES = 2**23
RECORDS_MAX = 5_000
"""Bytes of a file's messages that are looked at, or records."""

_TRIED = 500
_READ_MAX = 200_000
"""Messages on which each form is tried; messages of all files that are read with the form that was
found."""

_BOX_MARGIN = 0.05
"""Degrees from the last ping to the edge of the box, which is rounded outward to tenths: at least
five kilometres."""

_STEPS_MAX = 6
_FIELDS_MIN = 5
_ENVELOPES_MAX = 8
_ELEMENTS_MAX = 50
"""Steps of the path of an array of records, of which SIRI's has five; fields of a ping; arrays that
are tried; elements that are looked into."""

_WIDE = PingRules(max_kmh=1000, reject_above_kmh=2000)  # speeds in any unit, as they are


class Sample(NamedTuple):
    """Records; their container, as a `PingFormat` has it; the path of their array in a message;
    what a message has beside it; and for each record what the objects around it have."""

    records: list[Record]
    container: str
    envelope: Path
    beside: list[Record]
    around: list[Record]

    @property
    def form(self) -> str:
        """For people."""
        return f"CSV with {self.container!r}" if _is_csv(self.container) else self.container


def _is_csv(container: str) -> bool:
    return container not in ("JSON", "XML")


def read_samples(path: str, progress: ReadingProgress | None = None) -> list[Sample]:
    """The beginning of a file, by each array that may have the records, the longest first.
    UsageError if it cannot be read, or is neither JSON, XML nor CSV."""
    messages = list[bytes]()
    source = FileSource(path, progress.of(path) if progress else None, form=None)
    with progress or nullcontext(), closing(source):
        for some in as_far_as_whole(source.messages(), lambda _: None):
            messages += map(_unwrapped, source.format.as_json(some))
            if len(messages) >= RECORDS_MAX or sum(map(len, messages)) >= SAMPLE_BYTES:
                break
    container = source.format.container
    values = [_decoded(message) for message in messages[:_TRIED]]
    samples = []
    for envelope in [()] if _is_csv(container) else _envelopes(values, container == "XML"):
        pieces = (piece for message in messages for piece in _pieces(message, envelope))
        flats = ((flat(_decoded(text)), outer) for text, outer in pieces)
        if both := list(
            islice(((record, outer) for record, outer in flats if record), RECORDS_MAX)
        ):
            records = [record for record, _ in both]
            around = [outer for _, outer in both]
            outside = [flat(value, elements=0) or {} for value in values] if envelope else []
            beside = [
                {path: one[path] for path in one if path[: len(envelope)] != envelope}
                for one in outside
            ]
            samples.append(Sample(records, container, envelope, list(filter(None, beside)), around))
    if not samples:
        text = (
            messages[0] if messages and _decoded(messages[0]) is not None else b"\n".join(messages)
        )
        found = no_pings(text) or "JSON without a record in it" if messages else "an empty file"
        raise UsageError(f"{path}: expected pings in JSON, XML or CSV, found {found}")
    return samples


def samples_of(paths: Sequence[str], progress: ReadingProgress | None = None) -> list[Sample]:
    """Samples of the largest of these, which others are in the form of; none of GTFS-realtime, or
    of what cannot be read twice. `progress` is shown meanwhile."""
    if is_gtfs_file(paths[0]) or not all(map(is_on_disk, paths)):
        return []
    return read_samples(max(paths, key=os.path.getsize), progress)


def with_unread(look: Look, samples: Sequence[Sample]) -> Look:
    """The look with what its form does not read."""
    mapping = look.form.mapping
    alike = [one for one in samples if one.envelope == mapping.record_steps] or samples
    if not alike or not len(look.pings):
        return look
    return replace(
        look,
        unread=unread_fields(alike[0].records, alike[0].around, mapping),
        spring=without_spring(alike[0].records, mapping),
        doubts=_doubts(alike[0], look),
    )


def _doubts(sample: Sample, look: Look) -> list[str]:
    """Doubts about the mapping of a look, if it is the one that is found in the sample."""
    ours = look.form.mapping
    day = OF_A_DAY.match(ours.time_format)
    try:
        found, times, doubts = found_mapping(*_parts(sample), day[1] if day else "")
    except ValueError:
        return []
    both = [{path for name, path in one.leaves if name != "speed"} for one in (found, ours)]
    if both[0] != both[1]:
        return []
    zone = ours.zone or ZoneInfo(zone_of(*look.middle))
    first = datetime.fromtimestamp(_ends_s(look)[0], zone)
    is_exchanged = found.longitude == ours.latitude and not any(BY_VALUE in one for one in doubts)
    quality_warnings = {
        EXCHANGED: is_exchanged,
        f"day and month could be exchanged; this reads the first ping as of {first:%Y-%m-%d}": times.is_ambiguous,
        "a path leads to one element of an array; the others are not read": ours.one_element,
        "the plate is a label; some feeds have a destination there: is it the vehicle's?": (
            ours.steps["plate"][-1] == "label"
        ),
    }
    return [*doubts, *(sentence for sentence, is_due in quality_warnings.items() if is_due)]


def _parts(sample: Sample) -> tuple[list[Record], list[Record], list[Record], str]:
    return sample.records, sample.beside, sample.around, sample.container


def _ends_s(look: Look) -> list[float]:
    """Seconds since 1970 of the first and the last ping, without the few whose clocks are wrong."""
    ends = np.quantile(look.pings.time_ms, (0.001, 0.999), method="nearest")
    return [float(end) / 1000 for end in ends]


def _unwrapped(message: bytes) -> bytes:
    """JSON without the string that it may be in."""
    text = trim(from_xml(trim(message)))
    try:
        return trim(unwrap(text)) if text.startswith(b'"') else text
    except Fault:
        return text


def _pieces(message: bytes, envelope: Path) -> Iterator[tuple[bytes | Raw, Record]]:
    """The records of a message, as a mapping with this path has them, and what the objects around
    them have."""
    with suppress(*UNREADABLE, ValueError, Fault):
        if not envelope:
            pieces = _BARE.split(message)
            yield from ((piece, {}) for piece in ([message] if pieces is None else pieces))
            return
        for records, around in records_within(Raw(finite(trim(message))), envelope):
            outer = dict[Path, Value]()
            for one in reversed(around):  # the inner stands over the outer
                outer |= flat(value_of(as_written(bytes(one.text))), elements=0) or {}
            yield from (
                (as_written(piece), outer) for piece in with_plates(records, around, [(ANY_KEY,)])
            )


_BARE = mapped_form(FeedMapping()).format


def _decoded(text: bytes | Raw) -> object:
    """A value of JSON, also of JSON in a string; None for other text."""
    try:
        value = value_of(bytes(text))
        return value_of(value.encode()) if isinstance(value, str) else value
    except UNREADABLE:
        return None


def _envelopes(values: Sequence[object], is_xml: bool) -> list[Path]:
    """The paths of what may be records, the likeliest first: arrays of objects or arrays, also
    within the elements of others, a string with JSON, objects under keys that may be plates, in XML
    also a single element. () if messages are pings themselves, or have none."""
    most: Counter[Path] = Counter()
    inner = set[Path]()  # of arrays in arrays
    for value in values:
        held = value if isinstance(value, list) else [value]
        own = (
            sum(not isinstance(one, list) for one in value.values())
            if isinstance(value, dict)
            else 0
        )
        for one in held[:_ELEMENTS_MAX]:
            for count, path, is_inner in _arrays(one, (), is_xml) if isinstance(one, dict) else ():
                most[path] += (
                    count if own < _FIELDS_MIN or count >= own or path[-1] == ANY_KEY else 0
                )
                inner |= {path} if is_inner or isinstance(value, list) else set()
    for path in [
        path for path in most if 0 in path
    ]:  # of a single element now, of several at other times
        if (whole := tuple(step for step in path if step != 0)) in most:
            most[whole] += most.pop(path)
    # Of two that are as long, the outer array.
    ranked = sorted(
        +most,
        key=lambda path: (
            path in inner,
            path[-1] not in ENVELOPES or len(path) > 1,
            -most[path],
            len(path),
        ),
    )
    bare: list[Path] = (
        [()] if not ranked or any(isinstance(value, list) for value in values) else []
    )
    return bare + ranked[:_ENVELOPES_MAX]


def _arrays(
    value: dict[str, object], path: Path, is_xml: bool, inner: bool = False
) -> Iterator[tuple[int, Path, bool]]:
    """How many records each path leads to, and whether it leads through the elements of an array."""
    if len(path) >= _STEPS_MAX:
        return
    held = [
        one for key, one in value.items() if isinstance(one, dict | list) and not is_shown((key,))
    ]
    if (held and 2 * len(held) >= len(value)) or _are_alike([*value.values()]):
        yield len(value), (*path, ANY_KEY), inner
        for each in [*value.values()][:_ELEMENTS_MAX]:
            yield from (
                _arrays(each, (*path, ANY_KEY), is_xml, inner) if isinstance(each, dict) else ()
            )
    for key, one in value.items():
        here = (*path, key)
        if not is_shown((key,)):  # it may be a plate
            continue
        if isinstance(one, str) and one.startswith(("{", "[")) and (read := _decoded(one.encode())):
            yield len(read) if isinstance(read, list) else 1, here, inner
        elif isinstance(one, dict):
            if is_xml and sum(isinstance(text, str) for text in one.values()) >= _FIELDS_MIN:
                yield 1, here, inner
            yield from _arrays(one, here, is_xml, inner)
        elif isinstance(one, list) and one and isinstance(one[0], dict | list):
            yield len(one), here, inner
            is_single = len(one) == 1
            for each in one[:_ELEMENTS_MAX]:
                if isinstance(each, dict):
                    yield from _arrays(
                        each, (*here, 0) if is_single else here, is_xml, inner or not is_single
                    )


def _are_alike(values: Sequence[object]) -> bool:
    """Whether these are objects with the same names."""
    names = {frozenset(value) for value in values if isinstance(value, dict)}
    return (
        len(values) > 2
        and all(isinstance(value, dict) for value in values)
        and len(names) == 1
        and len(names.pop()) > 3
    )


Keys = dict[str, str | bool | tuple[str, ...]]
"""Keys of `[source]`."""


class FoundFeed(NamedTuple):
    """`preset` with the `keys` of `[source]` beside it, or `keys` that differ from the contract's
    form.

    `form`: for people. `unit_by`: "movement", "specification", "name", or "" if it is not known;
    `unit_why`: why movement does not say it. `hours`: of the first and the last ping, by the clock
    of the zone. `checks`: sentences by the section of the configuration. `pings`, `plates` and
    `others` (messages of other events) are of the part that was read.
    """

    preset: str
    keys: Keys
    form: str
    zone: str
    unit: str
    unit_by: str
    unit_why: str
    box: Box
    pings: int
    plates: int
    refused: int
    others: int
    hours: str
    unread: Mapping[str, str]
    checks: dict[str, list[str]]


def find_feed(paths: Sequence[str]) -> FoundFeed:
    """The feed of recordings in one form, by their beginnings. UsageError, with what was found,
    without known pings."""
    require_files(paths, twice=True)
    if len({is_gtfs_file(path) for path in paths}) > 1:
        raise UsageError(
            f"{named(paths)}: expected files of one kind, got GTFS-realtime (.pb) and others"
        )
    if is_gtfs_file(paths[0]):
        return _found_gtfs(paths)
    require_readable(paths)
    samples = samples_of(paths, ReadingProgress(paths))
    has_plain = _has_fields(samples, PLAIN.mapping)
    if has_plain and _reads(paths, PLAIN):
        return _found(paths, PLAIN, samples, None, "")
    for name, preset in PRESETS.items():
        if (
            not _is_csv(samples[0].container)
            and preset.unit is not None
            and _has_fields(samples, preset.mapping)
            and (form := _preset_form(paths, preset))
        ):
            feed = _found(paths, form, samples, preset.unit, "specification")
            zone: Keys = {} if preset.mapping.reads_offsets else {"time_zone": feed.zone}
            if feed.unit == preset.unit:
                return feed._replace(preset=name, keys=zone)
            return feed._replace(keys=_keys(preset.mapping) | zone)  # a preset sets the unit, too
    if has_plain and _reads(paths, silent := without_speeds(PLAIN)):
        look = _read(paths, PLAIN)
        if _lacks_speeds(look.refused):
            return _found(paths, silent, samples, None, "rare" if len(look.pings) else "")
    day = f"{datetime.fromtimestamp(pathlib.Path(paths[0]).stat().st_mtime, UTC):%Y-%m-%d}"
    sample, mapping, times = _mapped(samples, named(paths), day)
    records = (
        "" if sample.envelope in ((), ("results",), ("features",)) else dotted(sample.envelope)
    )
    mapping = replace(mapping, records=records)
    lon, lat = _middle_of_sample(sample, mapping)
    is_exchanged = is_sea(zone_of(lon, lat)) and not is_sea(zone_of(lat, lon))
    if is_exchanged:
        mapping, lon, lat = (
            replace(mapping, longitude=mapping.latitude, latitude=mapping.longitude),
            lat,
            lon,
        )
    place = zone_of(lon, lat)
    keys = _keys(mapping) | ({} if times.has_offset else {"time_zone": place})
    form = mapped_form(replace(mapping, zone=None if times.has_offset else ZoneInfo(place)))
    unit = unit_of_name(mapping.speed)
    lack = "rare" if has_speeds(sample.records) else "unnamed"
    by = lack if not mapping.speed else "name" if unit else ""
    return _found(paths, form, samples, unit, by)._replace(keys=keys)


EXCHANGED = "longitude and latitude stand under each other's name, by where they lie"


def _mapped(samples: Sequence[Sample], what: str, day: str) -> tuple[Sample, FeedMapping, TimeForm]:
    """The likeliest sample, its mapping, the form of its times, which are of this `day` where they
    have no date. Vehicles have times of
    their own, stops have none. UsageError with what is missing in the sample that lacks the
    least."""
    found = []
    faults = list[str]()
    for sample in samples:
        try:
            mapping, times, _ = found_mapping(*_parts(sample), day)
            found.append((sample, mapping, times))
        except ValueError as error:
            faults.append(str(error))
    if not found:
        records: list[Record] = [dict.fromkeys([sample.envelope]) for sample in samples]
        records += [record for sample in samples for record in [*sample.records, *sample.beside]]
        other = other_feed(records)
        is_error = all(is_server_error(one) for one in samples[0].records)
        why = f"\n  {other}: {ELSEWHERE}" if other else f"\n  {SERVER_ERROR}" if is_error else ""
        raise UsageError(
            of_packed(
                f"{what}: no ping is known in it (docs/feeds.md):{why}{min(faults, key=len)}", what
            )
        )
    return max(
        found, key=lambda one: (not one[1].one_element, not one[1].message_time, bool(one[1].speed))
    )


def _found_gtfs(paths: Sequence[str]) -> FoundFeed:
    """The feed of GTFS-realtime files, with labels as plates if nothing else names the vehicles."""
    look = _read(paths, PLAIN)
    is_labelled = any(f'"{LABEL}"'.encode() in original for _, original in look.refused)
    form = replace(PLAIN, gtfs_plate=("label",)) if is_labelled else PLAIN
    look = _read(paths, form)
    if not _is_read(look) and _lacks_speeds(look.refused):
        form = without_speeds(form)
    keys: Keys = {"plate": LABEL} if is_labelled else {}
    if is_exchanged := not _reads(paths, form) and _reads(paths, exchanged(form)):
        form = exchanged(form)
        keys = keys | {"exchanged": True}
    by = "specification" if form.mapping.speed else "rare" if len(look.pings) else ""
    feed = _found(paths, form, [], UNIT, by)._replace(keys=keys)
    if is_labelled:
        feed.checks["source"].append(f"vehicle.vehicle.id is unset; {LABEL} is set: {LABEL_PLATE}")
    feed.checks["source"] += [EXCHANGED] * is_exchanged
    return feed


def _lacks_speeds(refused: Sequence[tuple[Refusal, bytes]]) -> bool:
    """Whether most of these lack a speed, which is the last field that is asked for."""
    of_speed = (Reason.MISSING_FIELD, PLAIN.mapping.paths.speed)
    return 2 * sum((refusal.reason, refusal.path) == of_speed for refusal, _ in refused) > len(
        refused
    )


def _preset_form(paths: Sequence[str], preset: Preset) -> FeedForm | None:
    """The form in which a preset reads these files, by the clock of the place if times have no
    offset."""
    mapping = preset.mapping
    form = mapped_form(mapping if mapping.reads_offsets else replace(mapping, zone=UTC))
    if not _reads(paths, form):
        return None
    if mapping.reads_offsets:
        return form
    look = _read(paths[:1], form)
    return mapped_form(replace(mapping, zone=ZoneInfo(zone_of(*look.middle))))


def _middle_of_sample(sample: Sample, mapping: FeedMapping) -> tuple[float, float]:
    steps = mapping.steps
    names = list[str]()
    places = list[list[float]]()
    for record, around in zip(sample.records, sample.around, strict=True):
        if (
            len(
                place := numbers_of([record.get(steps["longitude"]), record.get(steps["latitude"])])
            )
            == 2
        ):
            names.append(str({**around, **record}.get(steps["plate"])))
            places.append(place)
    plates = np.unique(np.array(names), return_inverse=True)[1]
    lon, lat = np.array(places).T
    return middle_of(plates, lon, lat)


def _keys(mapping: FeedMapping) -> Keys:
    """All paths, and the format of times and the records if they are not the contract's."""
    names = (*FIELDS, "records", MESSAGE_TIME)
    keys: Keys = {
        name: getattr(mapping, name) for name in names if getattr(mapping, name) or name == "speed"
    }
    return keys | ({} if mapping.time_format == ISO else {"time_format": mapping.time_format})


def _has_fields(samples: Sequence[Sample], mapping: FeedMapping) -> bool:
    """Whether a record has every field of a mapping but the speed: else a file, which may be one
    document, is not read by it."""
    wanted = {path for name, path in mapping.leaves if name != "speed"}
    pairs = (pair for one in samples for pair in zip(one.records, one.around, strict=True))
    return any(wanted <= record.keys() | around.keys() for record, around in pairs)


def _reads(paths: Sequence[str], form: FeedForm) -> bool:
    """Whether the form reads most of the beginning, as positions on land."""
    with suppress(UsageError):  # a header without its columns
        look = _read(paths[:1], form)
        return _is_read(look) and not is_sea(zone_of(*look.middle))
    return False


def _read(paths: Sequence[str], form: FeedForm, most: int = MESSAGES_MIN) -> Look:
    return look_at_files(paths, form, UNIT, _WIDE, most)


def _is_read(look: Look) -> bool:
    return len(look.pings) > 0 and look.is_mostly_read


def _found(
    paths: Sequence[str], form: FeedForm, samples: Sequence[Sample], said: str | None, by: str
) -> FoundFeed:
    """The feed as a form reads it; GTFS-realtime has no samples. `said`: the unit, by its
    specification or a name."""
    look = with_unread(replace(_read(paths, form, _READ_MAX), told=said, by=by), samples)
    pings = look.pings
    found = findings(look)
    if ALL_ZERO in (one.row.reason for one in found):
        feed = _found(paths, without_speeds(form), samples, None, "")
        feed.checks["speed"] += [one.sentence for one in found if one.row.reason == ALL_ZERO]
        return feed
    every = len(pings) + len(look.refused)
    if not every:
        nothing = "no entity and no ping: save a sample while buses go"
        raise UsageError(
            f"{named(paths)}: {'; '.join([*look.damages, *look.said]).removeprefix('GTFS-realtime: ') or nothing}"
        )
    if not _is_read(look):
        read = f"{len(pings):,} of {counted(every, 'ping')} read"
        raise UsageError(f"{named(paths)}: {read}\n  {look.advice}")
    zone = zone_of(*look.middle)
    unit = ""
    unit_by = by or "derived"
    if form.mapping.speed:
        unit = look.likely_unit
        unit_by = "movement" if look.evidence.unit else by if said in KMH_PER_UNIT else ""
    hours = " to ".join(
        f"{datetime.fromtimestamp(end_s, ZoneInfo(zone)):%Y-%m-%d %H:%M}" for end_s in _ends_s(look)
    )
    checks: dict[str, list[str]] = {name: [] for name in ("file", "feed", "hat", "speed", "source")}
    for row, sentence in found:
        checks[row.section].append(sentence)
    return FoundFeed(
        preset="", keys={}, form=samples[0].form if samples else "GTFS-realtime", zone=zone, unit=unit,
        unit_by=unit_by, unit_why=_why(look), box=_box(named(paths), look), pings=len(pings),
        plates=len(pings.plates), refused=len(look.refused), others=look.others, hours=hours, unread=look.unread, checks=checks,
    )  # fmt: skip


def _why(look: Look) -> str:
    """Why movement does not say the unit."""
    if look.evidence.fits_none:
        return "how far buses go fits no unit"
    if look.repeats:
        return "too many pings share the time of another"
    return (
        "the recording has too few pairs of pings of one plate"
        if look.pings.speed.any()
        else "no ping has a speed above 0"
    )


def _box(what: str, look: Look) -> Box:
    """The box around the positions near the middle."""
    lon = look.pings.lon
    lat = look.pings.lat
    near = look.is_near(lon, lat)
    if share_near(look.pings.plate, near).mean() < NEAR_MIN:
        raise UsageError(f"{what}: its positions lie far apart: expected the sample of one city")
    west, south = (floor(10 * (float(one[near].min()) - _BOX_MARGIN)) / 10 for one in (lon, lat))
    east, north = (ceil(10 * (float(one[near].max()) + _BOX_MARGIN)) / 10 for one in (lon, lat))
    return max(west, -180.0), max(south, -90.0), min(east, 180.0), min(north, 90.0)


_UNIT_WORDS = {
    "movement": "By movement: buses go about as far as they report in it (a verdict on raw speeds, not a release)",
    "specification": "As the feed's specification has it; it is not checked: {}",
    "name": "As the field's name says; it is not checked: {}",
    "derived": "CHECK: the feed has no speeds. They are derived from positions (docs/privacy-model.md)",
    "unnamed": "CHECK: the feed has no speeds, by its names. They are derived from positions (docs/privacy-model.md)",
    "rare": "CHECK: most pings have no speed. Speeds are derived from positions (docs/privacy-model.md)",
    "": "NOT KNOWN: {}. Check it: a wrong unit is not noticed",
}
_FILE = """\
# Made by `udp-stream init` from {path}: {pings} of {plates}, {hours}.
# Look through it: what is doubtful says CHECK. All keys: docs/configuration.md{}

[hat]
# The zone of the place.{hat}
timezone = {zone}
# Cells of 5 km2 and an hour are what a city works with; `udp-stream plan` compares others.
resolution = 7
slot = "1h"

[speed]
# {unit_words}.{speed}
{unit}
# U: faster pings count as this speed, and noise grows with it. It is a choice that everyone may know: the speed limit
# of your buses, or the limiter in them. Never take it from recorded speeds: their maximum is what is protected.
# 65 is the limit of buses in India's towns (60 km/h) with its tolerance. Set yours.
max_kmh = 65.0

[pings]
# West, south, east, north: around the recorded positions, rounded outward. Stray fixes are refused.
box = {box}
{source_section}
[budget]
# What one plate may lose in a day, all releases together. A day's records can change the odds of any guess about the
# speeds of one bus by a factor of at most e^epsilon, whatever else the guesser knows: e^10 is 22,026, e^1 is 2.7. So 10
# is a weak promise by itself; with less, errors grow in proportion (`udp-stream plan`). What others use: Google's
# Community Mobility Reports 2.64 per person and day (arXiv 2004.04145); Wikimedia's page views rho 0.015 per device and
# day (arXiv 2308.16298); the US Census of 2020 17.14 per person, once (Census Bureau, settings of June 2021).
# There is no right value in your data: choose it, and say which it is.
epsilon = 10.0
"""


def city_file(feed: FoundFeed, path: str) -> str:
    """The configuration, in TOML."""
    checks = {
        name: "".join(f"\n# CHECK: {one}{'' if one.endswith(('?', '.)')) else '.'}" for one in some)
        for name, some in feed.checks.items()
    }
    preset: Keys = {"preset": feed.preset} if feed.preset else {}
    source = ""
    if keys := preset | feed.keys:
        about = [PRESETS[feed.preset].title] if feed.preset else [
            "Where a ping has its fields, by their names: check them",
            "The plate is what is protected: it must be the vehicle's, for good, and not a trip's or a driver's",
        ]  # fmt: skip
        if "time_zone" in keys:
            about.append(
                "CHECK: times have no offset. This reads them by the place's clock, not as UTC"
            )
        lines = [
            *(f"# {one}." for one in about),
            *(
                f"# Not read, and like a {kind}: {line}."
                for kind, line in feed.unread.items()
                if feed.unit or kind != "speed"
            ),
            *(f"{name} = {_toml(value)}" for name, value in keys.items()),
        ]
        source = "\n".join(["", f"[source]{checks['source']}", *lines, ""])
    unit = f"unit = {_toml(feed.unit)}" if feed.unit else 'from = "movement"'
    return _FILE.format(
        checks["file"] + checks["feed"], path=_toml(path),
        pings=counted(feed.pings, "ping"), plates=counted(feed.plates, "plate"),
        hours=feed.hours, hat=checks["hat"], zone=_toml(feed.zone),
        unit_words=_UNIT_WORDS[feed.unit_by].format(feed.unit_why),
        speed=checks["speed"], unit=unit, box=[float(f"{edge:g}") for edge in feed.box],
        source_section=source,
    )  # fmt: skip


def _toml(value: str | bool | tuple[str, ...]) -> str:
    return json.dumps(value, ensure_ascii=False)


def init(arguments: argparse.Namespace, settings: Settings) -> None:
    """Find the feed, check that what is written can be read, write it; without a recording, print
    the configuration in force. UsageError if the file is there already."""
    out = arguments.out
    if not arguments.files:
        if out != "-":
            raise UsageError(f"--out {out}: expected the FILE of a recording")
        config(arguments, settings)
        return
    if out != "-":
        if os.path.lexists(out):
            raise UsageError(f"{out} is there already: expected a new file for --out")
        require_place(pathlib.Path(out))
    feed = find_feed(arguments.files)
    text = city_file(feed, named(arguments.files))
    with TemporaryDirectory() as folder:
        (check := pathlib.Path(folder, "city.toml")).write_text(text, encoding="utf-8")
        load(check, (), {})
    if out == "-":
        sys.stdout.write(text)
    else:
        with draft_of(pathlib.Path(out)) as draft:
            draft.write_text(text, encoding="utf-8")
            link_first(draft, pathlib.Path(out))
    known = f", preset {feed.preset}" if feed.preset else ", fields by name" if feed.keys else ""
    read = f"{counted(feed.pings, 'ping')} read, {feed.refused:,} refused, {feed.hours}"
    read += f", {counted(feed.others, 'message')} of other events" if feed.others else ""
    unit = (
        f"unit {feed.unit}{'' if feed.unit_by else ' (NOT KNOWN)'}"
        if feed.unit
        else "speeds by movement"
    )
    _log_message(f"{feed.form}{known}; zone {feed.zone}; {unit}; {read}")
    for line in re.findall("^# (?:CHECK|NOT KNOWN|Not read).*", text, re.MULTILINE):
        _log_message(line.removeprefix("# "))
    if out != "-":
        some = " ".join(map(shlex.quote, arguments.files[:3])) + (
            " ..." if arguments.files[3:] else ""
        )
        command = f"udp-stream replay {some} --config {shlex.quote(out)} --trial"
        _log_message(f"wrote {out}: look through it, set U and epsilon, then: {command}")


def _log_message(sentence: str) -> None:
    console().print(sentence, markup=False, soft_wrap=True)
