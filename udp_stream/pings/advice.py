"""Refusals that help: for each kind of refusal the path, what was found there, and the likely mend.

Nothing that is protected is shown: never a speed, never a plate, and no text that may be one. A time is shown where it
is a time; of everything else the kind. Names of fields are shown as `found_fields` allows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median

from udp_stream.pings.decode import Reason, Refusal
from udp_stream.pings.found_fields import (
    BY_KEYS,
    Record,
    Value,
    are_by_key,
    common_paths,
    dotted,
    is_shown,
    record_of,
    shown_names,
)
from udp_stream.pings.found_mapping import likely_paths
from udp_stream.pings.found_times import found_time_form
from udp_stream.pings.json import FIELDS, FeedForm, FeedMapping, Path, json_path, mapped_format
from udp_stream.pings.other_kinds import no_pings
from udp_stream.pings.presets import PRESETS
from udp_stream.pings.times import ISO, number_of

SENTENCES_MAX = 4
"""Kinds of refusals that are explained, the commonest first."""

_PIECE_BYTES_MAX, _PINGS_MAX = 2**20, 10_000
_INIT = "or let `udp-stream init FILE` find the paths"
_EPOCH_WORDS = {"epoch_s": "epoch seconds", "epoch_ms": "epoch milliseconds", "epoch_us": "epoch microseconds"}


Box = tuple[float, float, float, float]
"""West, south, east, north."""

OnLand = Callable[[float, float], bool]
"""Whether a longitude and a latitude lie on land."""


@dataclass(frozen=True, slots=True)
class Refused:
    """One refusal and the bytes of what was refused.

    >>> Refused(Refusal(0, -1, Reason.NOT_JSON, "$"), b"junk").refusal.path
    '$'
    """

    refusal: Refusal
    original: bytes


def advise(
    refused: Sequence[Refused], form: FeedForm, box: Box | None = None, on_land: OnLand | None = None
) -> list[str]:
    """A sentence for each of the commonest kinds of refusals of a sample, where something can be said. `on_land` tells
    whether it is the box that has longitudes and latitudes exchanged, or the pings.

    >>> from udp_stream.pings.json import PLAIN
    >>> text = b'{"license_plate": "A1", "observationDateTime": 1706159153}'
    >>> advise([Refused(Refusal(0, -1, Reason.WRONG_TYPE, "$.observationDateTime"), text)], PLAIN)
    ['$.observationDateTime: 1706159153 looks like epoch seconds: [source] time_format = "epoch_s"']
    """
    kinds = Counter((one.refusal.reason, one.refusal.path) for one in refused)
    sentences = []
    for (reason, path), _ in kinds.most_common():
        pieces = [one.original for one in refused if (one.refusal.reason, one.refusal.path) == (reason, path)]
        sentence = _sentence(reason, path, _Sample.of(pieces, form, box, on_land))
        if sentence is not None and sentence not in sentences:
            sentences.append(sentence)
    return sentences[:SENTENCES_MAX]


@dataclass(frozen=True, slots=True)
class _Sample:
    """Refused pieces of one kind, as they are and as records, and how they were read."""

    pieces: Sequence[bytes]
    records: Sequence[Record]
    form: FeedForm
    box: Box | None
    on_land: OnLand | None

    @classmethod
    def of(cls, pieces: Sequence[bytes], form: FeedForm, box: Box | None, on_land: OnLand | None) -> _Sample:
        records = [record for piece in pieces if (record := record_of(piece)) is not None]
        return cls(pieces, records, form, box, on_land)

    @property
    def mapping(self) -> FeedMapping:
        return self.form.mapping

    def values(self, field: str) -> list[Value]:
        """The values at the path of a field."""
        path = self.mapping.steps[field]
        return [record[path] for record in self.records if path in record]


def _sentence(reason: Reason, path: str, sample: _Sample) -> str | None:
    field = _field_at(path, sample.mapping)
    match reason:
        case Reason.NOT_JSON:
            return _not_json(sample)
        case Reason.NOT_GTFS_REALTIME:
            return _not_gtfs_realtime(sample)
        case Reason.MISSING_FIELD:
            return _missing(field, path, sample)
        case Reason.WRONG_TYPE | Reason.TIME_OUT_OF_RANGE | Reason.NO_UTC_OFFSET if field == "time":
            return _time(path, sample)
        case Reason.WRONG_TYPE:
            return _wrong_type(field, path, sample)
        case Reason.COORDINATES_OUT_OF_RANGE | Reason.OUTSIDE_BOX:
            return _coordinates(path, sample)
        case Reason.PLACEHOLDER_PLATE:
            return (
                f"{path}: a word for a missing plate: has another field the vehicle? Pings without a plate protect none"
            )
        case Reason.SPEED_ABOVE_LIMIT:
            return f"{path}: above speed.reject_above_kmh: is speed.unit right? `udp-stream doctor FILE` compares"
        case _:
            return None


def _field_at(path: str, mapping: FeedMapping) -> str | None:
    """The field whose path a refusal's path is, or leads to."""
    if path == "$":
        return None
    for field in FIELDS:
        ours = json_path(mapping.steps[field])
        if ours == path or ours.startswith((f"{path}.", f"{path}[")):
            return field
    return None


def _missing(field: str | None, path: str, sample: _Sample) -> str | None:
    if (preset := _fitting_preset(sample)) is not None:
        return f'no {path.removeprefix("$.")}; this looks like {PRESETS[preset].title}: [source] preset = "{preset}"'
    if field is None or not sample.records:
        return None
    likely = likely_paths(field, sample.records)
    name = dotted(sample.mapping.steps[field])
    records = _array_of_objects(sample.records)
    if likely and (records is None or likely[0][: len(records)] != records):
        return f'no {name}; found {shown_names(likely)}: [source] {field} = "{dotted(likely[0])}", {_INIT}'
    if records is not None and _are_arrays(sample.records, records):
        return (
            f'no {name}; found an array of arrays: [source] records = "{dotted(records)}", and the place of each value '
            'in one of them: plate = "0", time = "1", and so on (docs/feeds.md)'
        )
    if records is not None:
        return f'no {name}; found an array of objects: [source] records = "{dotted(records)}", {_INIT}'
    found = shown_names(common_paths(sample.records))
    clauses = [f"no {name}", *([f"found {found}"] if found else []), *([BY_KEYS] if are_by_key(sample.records) else [])]
    return "; ".join(clauses)


def _fitting_preset(sample: _Sample) -> str | None:
    """The preset by which most of the pieces would be read."""
    for name, preset in PRESETS.items():
        if preset.keys and sample.form.is_plain:
            batch = mapped_format(preset.mapping).read(sample.pieces, _PIECE_BYTES_MAX, _PINGS_MAX)
            if len(batch.message) > len(batch.refusals):
                return name
    return None


def _array_of_objects(records: Sequence[Record]) -> Path | None:
    """Where most of the records have an array whose elements are objects; of several such, the one with most in it."""
    every = [[head for path in record if (head := _array_head(path)) is not None] for record in records]
    size, heads = Counter(chain.from_iterable(every)), Counter(head for some in every for head in set(some))
    path, count = max(heads.items(), key=lambda one: (one[1], size[one[0]]), default=((), 0))
    return path if path and 2 * count >= len(records) and is_shown(path) else None


def _are_arrays(records: Sequence[Record], path: Path) -> bool:
    """Whether most of what lies below the elements of an array is an element itself."""
    below = [steps[len(path) + 1] for record in records for steps in record if steps[: len(path)] == path]
    return 2 * sum(isinstance(step, int) for step in below) > len(below)


def _array_head(path: Path) -> Path | None:
    places = (at for at, step in enumerate(path) if at and isinstance(step, int) and at + 1 < len(path))
    return next((path[:at] for at in places), None)


def _time(path: str, sample: _Sample) -> str | None:
    values = sample.values("time")
    form = found_time_form(values) if values else None
    mapping = sample.mapping
    if form is None:
        return f"{path}: {_kinds(values)}, which is no time that is known here" if values else None
    example = next(value for value in values if found_time_form([value]) is not None)  # a time, and nothing else
    if form.time_format == mapping.time_format or (form.time_format == ISO and mapping.time_format == ISO):
        if form.has_offset or mapping.zone is not None:
            return None
        return f'{path}: {example} has no offset: [source] time_zone = "Area/City", the zone of the feed\'s clock'
    looks = _EPOCH_WORDS.get(form.time_format, "ISO 8601" if form.time_format == ISO else form.time_format)
    looks += f", or {form.month_first}" if form.month_first else ""
    mend = f'[source] time_format = "{form.time_format}"'
    zone = "" if form.has_offset or mapping.zone is not None else ' and time_zone = "Area/City"'
    return f"{path}: {example} looks like {looks}: {mend}{zone}"


def _wrong_type(field: str | None, path: str, sample: _Sample) -> str | None:
    if field is None:
        if path == "$" and sample.mapping.records and not sample.pieces[0].lstrip().startswith(b"{"):
            return '$: values without names: give the place of each: [source] plate = "0", time = "1", and so on'
        kind = no_pings(sample.pieces[0]) if path == "$" else None
        return f"$: {kind}" if kind else None
    values = sample.values(field)
    kinds = _kinds(values)
    if not values:
        return f"{path}: not what `{field}` needs, {_INIT}"
    if field == "plate" and all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return f'{path}: {kinds}: [source] plate = "{sample.mapping.plate}" reads whole numbers as plates'
    is_text = all(isinstance(value, str) and number_of(value) is not None for value in values)
    if field != "plate" and is_text and sample.form.is_plain:
        mend = f'[source] {field} = "{getattr(sample.mapping, field)}"'
        return f"{path}: {kinds} that is a number: {mend} reads numbers from text, with a point or a comma"
    return f"{path}: {kinds}, where {'a text' if field in ('plate', 'time') else 'a number'} is needed"


def _kinds(values: Sequence[Value]) -> str:
    """What kind most of the values are; never a value."""
    names: dict[type, str] = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}
    kinds = Counter(names.get(type(value), "nothing (null)") for value in values)
    return kinds.most_common(1)[0][0] if kinds else "an object or an array"


def _coordinates(path: str, sample: _Sample) -> str | None:
    """Whether they would do if exchanged: on the earth, and in the box where there is one."""
    pairs = list(zip(map(_degrees, sample.values("longitude")), map(_degrees, sample.values("latitude")), strict=False))
    west, south, east, north = sample.box or (-180.0, -90.0, 180.0, 90.0)
    exchanged = sum(
        west <= lat <= east and south <= lon <= north for lon, lat in pairs if lon is not None and lat is not None
    )
    if not pairs or exchanged < len(pairs) / 2:
        return f"{path}: outside of pings.box, not by an exchange: is the box right?" if sample.box else None
    if sample.box and sample.on_land and _is_box_at_sea(pairs, sample.box, sample.on_land):
        return f"{path}: pings.box looks exchanged, it is west, south, east, north: box = {[south, west, north, east]}"
    mapping = sample.mapping
    mend = f'[source] longitude = "{mapping.latitude}" and latitude = "{mapping.longitude}"'
    return f"{path}: longitude and latitude look exchanged: {mend}"


def _is_box_at_sea(pairs: Sequence[tuple[float | None, float | None]], box: Box, on_land: OnLand) -> bool:
    """Whether the middle of the pings lies on land, and that of the box does not."""
    west, south, east, north = box
    lon, lat = (median([one for one in column if one is not None]) for column in zip(*pairs, strict=True))
    return on_land(lon, lat) and not on_land((west + east) / 2, (south + north) / 2)


def _degrees(value: Value) -> float | None:
    if isinstance(value, str):
        return number_of(value)
    return float(value) if isinstance(value, int | float) else None


def _not_gtfs_realtime(sample: _Sample) -> str | None:
    """What a file is that has the name of one: an answer that was saved may be in another form, or an error."""
    start = sample.pieces[0].lstrip()[:1]
    if start == b"<":
        return "not GTFS-realtime, but XML or HTML: is it a page of the server, which wants a token perhaps?"
    if start and start in b'{["':
        return "not GTFS-realtime, but JSON: `udp-stream init` reads it under a name that ends in .json"
    return None


def _not_json(sample: _Sample) -> str | None:
    """What the first of it looks like."""
    kind = no_pings(sample.pieces[0])
    return f"not JSON, but {kind}" if kind else None
