"""What `init` finds in a recording: its form, the zone and the unit, the place, and how dense it is.

Nothing is charged or released. Of speeds it looks at one thing: in which unit they fit the movement. That verdict is
for the operator, who may see the pings; no number that was measured on speeds leaves this file, and U is never taken
from them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import islice
from math import ceil, floor
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from udp_stream.adapters.files.endings import as_far_as_whole
from udp_stream.adapters.files.gtfs_files import is_gtfs_file
from udp_stream.adapters.files.sample import RECORDS_MAX, FileSample, read_sample
from udp_stream.adapters.schemes import open_sources
from udp_stream.adapters.settings import Settings
from udp_stream.cli.first_look import OF_A_SPEED
from udp_stream.cli.found_refusals import commonest, refused_kinds, why_none
from udp_stream.cli.found_unit import FoundUnit, SaidUnit, found_unit
from udp_stream.cli.named_recordings import named, require_rereadable, require_savable
from udp_stream.cli.plan_of_feed import from_future
from udp_stream.cli.wrong_zone import MONTH_FIRST, is_sea, land_if_exchanged, zone_of, zone_offset_minutes
from udp_stream.errors import UsageError
from udp_stream.pings.decode import PingDecoder, PingRules, Pings, Refusal
from udp_stream.pings.found_fields import BY_KEYS, are_by_key, common_paths, dotted, shown_names
from udp_stream.pings.found_mapping import FoundMapping, found_mapping
from udp_stream.pings.found_nothing import missing_fields, reasons
from udp_stream.pings.found_plate import shared_plate_warning
from udp_stream.pings.found_times import found_time_form, offset_minutes
from udp_stream.pings.json import FIELDS, PLAIN, FeedForm, FeedMapping, mapped_form
from udp_stream.pings.presets import PRESETS
from udp_stream.pings.times import ISO, read_numbers
from udp_stream.windows.slots import AgreementClock

_FRAMES = 50
"""Frames of 4,096 messages that are read with what was found."""

_SAMPLED = 20
"""Files whose records are looked at."""

_TRIED = 500
"""Messages that each form is tried on."""

_READ_MIN = 0.5
"""Of the sample, what a form must read to be taken."""

_NEAR_DEGREES = 1.0
"""From the middle of the positions: what lies farther is a stray fix, and no part of the box."""

_BOX_MARGIN = 0.05
"""Degrees: the box is rounded outward to tenths, at least five kilometres behind the last position."""

_WIDE = PingRules(max_kmh=1000, reject_above_kmh=2000)
"""Speeds in any unit, as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFeed:
    """`preset`, or `keys` of `[source]` that differ from the contract's form; neither where the feed is in that form.

    `box`: west, south, east, north. `offsets`: what times say, in minutes, the commonest first. `plates` and `pings`:
    of the part that was read; `every_s`: the median time between two pings of a plate. `middle`: the median longitude
    and latitude. `exchanged`: these two stand under each other's name. `day_or_month`: times do not tell which of them
    comes first. `unnamed`: fields that only their values told. `shared`: a sentence if one plate seems to stand for
    several vehicles. `damage`: one if the recording ends before its end. `commonest`: of which kind most refusals are;
    `refused_kinds`: a sentence for each kind of them that is worth one.
    """

    preset: str
    keys: dict[str, str]
    delimiter: str | None
    zone: str
    offsets: tuple[int, ...]
    speed: FoundUnit
    box: tuple[float, float, float, float]
    exchanged: bool
    day_or_month: bool
    unnamed: tuple[str, ...]
    shared: str
    damage: str
    plates: int
    pings: int
    refused: int
    commonest: str
    refused_kinds: tuple[str, ...]
    every_s: float
    first_ms: int
    last_ms: int
    middle: tuple[float, float]

    @property
    def unit(self) -> str:
        """Of its speeds, as far as it could be told."""
        return self.speed.unit


def find_feed(paths: Sequence[str]) -> FoundFeed:
    """Read the beginning of a recording, or of several of one form. UsageError if it holds no pings that are known
    here, with what was found."""
    require_savable(paths)
    require_rereadable(paths)
    if len({is_gtfs_file(path) for path in paths}) > 1:
        raise UsageError(f"{named(paths)}: expected files of one kind, got GTFS-realtime (.pb) and others")
    if is_gtfs_file(paths[0]):
        return _found(paths, "", {}, PLAIN, None, SaidUnit("mps", "specification"))
    sample, path = _joined([read_sample(path) for path in paths[:_SAMPLED]]), named(paths)
    if _reads(paths, PLAIN):
        feed = _found(paths, "", {}, PLAIN, sample, None)
        return _exchanged_back(paths, feed, sample, PLAIN.mapping)
    for name, preset in PRESETS.items():
        if sample.delimiter is None and preset.unit is not None and _reads(paths, mapped_form(preset.mapping)):
            of_preset = SaidUnit(preset.unit, "specification")
            feed = _found(paths, name, {}, mapped_form(preset.mapping), sample, of_preset)
            feed = feed if feed.unit == preset.unit else replace(feed, preset="", keys=_keys(preset.mapping))
            return _exchanged_back(paths, feed, sample, preset.mapping)
    found = found_mapping(sample.records)
    if isinstance(found, list):
        fields = shown_names(common_paths(sample.records))
        said = f"{path}: found no field for {', '.join(found)} among {fields or 'its fields'}"
        if are_by_key(sample.records):
            raise UsageError(f"{said}: {BY_KEYS}")
        if why := reasons(found, sample.records):
            raise UsageError(f"{said}. {'. '.join(why)}. Or write [source] by hand (docs/feeds.md)")
        raise UsageError(f"{said}. {missing_fields(found)}")
    feed = _mapped(paths, sample, found, None if found.unit is None else SaidUnit(found.unit, "name"))
    return feed if found.exchanged else _exchanged_back(paths, feed, sample, found.mapping)


def _exchanged_back(paths: Sequence[str], feed: FoundFeed, sample: FileSample, mapping: FeedMapping) -> FoundFeed:
    """The same feed, or with longitude and latitude exchanged if the place is then one that its times can be of."""
    times = [record.get(mapping.steps["time"]) for record in sample.records]
    form = found_time_form([time for time in times if time is not None])
    if form is None or not _looks_exchanged(feed):
        return feed
    other = replace(mapping, longitude=mapping.latitude, latitude=mapping.longitude)
    return _mapped(paths, sample, FoundMapping(other, form, None, exchanged=True), feed.speed.said)


def _looks_exchanged(feed: FoundFeed) -> bool:
    """Whether the positions lie at sea, or where clocks differ from the feed's, and not so the other way round."""
    lon, lat = feed.middle
    other = land_if_exchanged(lon, lat)
    if other is None:
        return False
    said = next((minutes for minutes in feed.offsets[:1] if minutes), None)  # Z says nothing of a place
    here, there = (zone_offset_minutes(zone, feed.first_ms) for zone in (feed.zone, other))
    if is_sea(feed.zone):
        return said is None or said == there
    return said is not None and said == there != here


def _mapped(paths: Sequence[str], sample: FileSample, found: FoundMapping, said: SaidUnit | None) -> FoundFeed:
    """By a mapping that was found; confirmed by reading with it."""
    records = "" if sample.envelope in ((), ("results",), ("features",)) else dotted(sample.envelope)
    mapping = replace(found.mapping, records=records, delimiter=sample.delimiter or "")
    place = zone_of(*_middle_of(sample, mapping))
    if found.times.month_first and place in MONTH_FIRST:
        mapping = replace(mapping, time_format=found.times.month_first)
    keys = _keys(mapping)
    zone = None if found.times.has_offset else place
    if zone is not None:
        keys["time_zone"] = zone
    form = mapped_form(replace(mapping, zone=None if zone is None else ZoneInfo(zone)))
    if not _reads(paths, form):
        raise UsageError(
            f"{named(paths)}: most of it is refused with the paths that look likely "
            f"({shown_names(mapping.steps.values())}): write [source] by hand (docs/feeds.md)"
        )
    feed = _found(paths, "", keys, form, sample, said)
    return replace(feed, exchanged=found.exchanged, day_or_month=bool(found.times.month_first), unnamed=found.unnamed)


def _keys(mapping: FeedMapping) -> dict[str, str]:
    """All paths, and the format of times and the records where they are not the contract's."""
    keys = {name: getattr(mapping, name) for name in (*FIELDS, "records") if getattr(mapping, name)}
    return keys | ({} if mapping.time_format == ISO else {"time_format": mapping.time_format})


def _require_one_form(paths: Sequence[str], form: FeedForm) -> None:
    """UsageError that names a file of which this form reads nothing: it would be left out without a word."""
    for path in paths if len(paths) > 1 else ():
        try:
            pings, refusals, *_ = _read([path], form, 1, _TRIED, skipped=())
            is_other = bool(refusals) and not len(pings)
        except UsageError:
            is_other = True
        if is_other:
            raise UsageError(f"{path}: not in the form of the others: give `init` files of one form")


def _reads(paths: Sequence[str], form: FeedForm) -> bool:
    """Whether the form reads most of the beginning."""
    pings, refusals, *_ = _read(paths, form, 1, _TRIED)
    of_a_speed = sum(one.reason in OF_A_SPEED for one in refusals)  # read, and its field is right
    read, tried = len(pings) + of_a_speed, len(pings) + len(refusals)
    return read > 0 and read >= _READ_MIN * tried


class _Read(NamedTuple):
    """`form`: with the format that the files have."""

    pings: Pings
    refusals: Sequence[Refusal]
    messages: Sequence[bytes]
    form: FeedForm


def _read(
    paths: Sequence[str],
    form: FeedForm,
    frames: int,
    most: int | None = None,
    skipped: tuple[type[Exception], ...] = (UsageError,),
) -> _Read:
    """The pings of the first frames, or of their first messages, and what was refused; of damaged files, before it.

    Left out is a file whose header lacks the columns of this form; with nothing `skipped` it raises UsageError.
    """
    unit = "mps" if is_gtfs_file(paths[0]) else "kmh"
    messages: list[bytes] = []
    ping_format = form.format
    for _, source in open_sources(paths, unit, form=form):
        with closing(source), suppress(*skipped):
            ping_format = source.format
            whole = as_far_as_whole(source.messages(), lambda _: None)
            for some in islice(whole, max(1, frames // len(paths))):
                messages += some
    pings, refusals = PingDecoder(_WIDE, ping_format).decode(messages[:most])
    return _Read(pings, refusals, messages, FeedForm(form.mapping, ping_format))


def _found(
    paths: Sequence[str],
    preset: str,
    keys: dict[str, str],
    form: FeedForm,
    sample: FileSample | None,
    said: SaidUnit | None,
) -> FoundFeed:
    _require_one_form(paths, form)
    pings, refusals, messages, read_form = _read(paths, form, _FRAMES)
    if not len(pings):
        raise UsageError(f"{named(paths)}: no ping was read from it{why_none(refusals)}")
    lon, lat = float(np.median(pings.lon)), float(np.median(pings.lat))
    times = pings.time_ms[~from_future(AgreementClock(Settings().window_rules), pings)]
    return FoundFeed(
        preset=preset,
        keys=keys,
        delimiter=None if sample is None else sample.delimiter,
        zone=zone_of(lon, lat),
        offsets=() if sample is None else _offsets(sample, form.mapping),
        speed=found_unit(pings, said),
        box=_box(named(paths), pings.lon, pings.lat),
        exchanged=False,
        day_or_month=False,
        unnamed=(),
        shared=shared_plate_warning(pings.plate, pings.time_ms, pings.lon, pings.lat) or "",
        damage="" if sample is None else sample.damage,
        plates=len(pings.plates),
        pings=len(pings),
        refused=len(refusals),
        commonest=commonest(refusals),
        refused_kinds=refused_kinds(len(pings), refusals, messages, read_form),
        every_s=_every_s(pings),
        first_ms=int(times.min()),
        last_ms=int(times.max()),
        middle=(lon, lat),
    )


def _joined(samples: Sequence[FileSample]) -> FileSample:
    """One sample of several files, as many records of each; those of another form than the first one are left out."""
    same = [one for one in samples if (one.delimiter, one.envelope) == (samples[0].delimiter, samples[0].envelope)]
    each = RECORDS_MAX // len(same)
    records = [record for one in same for record in one.records[:each]]
    return replace(samples[0], records=records, damage="; ".join(one.damage for one in samples if one.damage))


def _offsets(sample: FileSample, mapping: FeedMapping) -> tuple[int, ...]:
    texts = [record.get(mapping.steps["time"]) for record in sample.records]
    said = (minutes for minutes in map(offset_minutes, texts) if minutes is not None)
    return tuple(minutes for minutes, _ in Counter(said).most_common())


def _middle_of(sample: FileSample, mapping: FeedMapping) -> tuple[float, float]:
    """Where the feed is, before its times can be read."""
    values = [[record.get(mapping.steps[name]) for record in sample.records] for name in ("longitude", "latitude")]
    columns = [
        read_numbers([value for value in column if isinstance(value, str | int | float)])[0] for column in values
    ]
    return float(np.nanmedian(columns[0])), float(np.nanmedian(columns[1]))


def _box(what: str, lon: NDArray[np.float64], lat: NDArray[np.float64]) -> tuple[float, float, float, float]:
    near = (np.abs(lon - np.median(lon)) <= _NEAR_DEGREES) & (np.abs(lat - np.median(lat)) <= _NEAR_DEGREES)
    if not near.any():
        raise UsageError(
            f"{what}: its positions lie far apart, and none near their middle: expected the sample of one city"
        )
    lon, lat = lon[near], lat[near]
    west, south = (_tenths(floor(10 * (float(one.min()) - _BOX_MARGIN))) for one in (lon, lat))
    east, north = (_tenths(ceil(10 * (float(one.max()) + _BOX_MARGIN))) for one in (lon, lat))
    return max(west, -180.0), max(south, -90.0), min(east, 180.0), min(north, 90.0)


def _tenths(number: int) -> float:
    return round(number / 10, 1)


def _every_s(pings: Pings) -> float:
    """The median time between two pings of a plate; 0 if no plate has two."""
    order = np.lexsort((pings.time_ms, pings.plate))
    apart = np.diff(pings.time_ms[order])[np.diff(pings.plate[order].astype(np.int64)) == 0]
    apart = apart[apart > 0]
    return float(np.median(apart)) / 1000 if apart.size else 0.0
