"""The table of evidence: what a look at a part of a feed tells, and what would help.

`init`, `plan`, `replay --dry-run`, `doctor` and the check of a live feed ask this table, so that
they say the same of the same pings. What most rows look at is public: how many pings are refused
and why, where and when plates pinged. Rows of the section `speed` are verdicts on raw speeds, for
operators (docs/privacy-model.md): no sentence of theirs has a figure of speeds or of pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from udp_stream.base.arrays import Flags, Floats
from udp_stream.base.errors import ConfigError, UdpStreamError, UsageError
from udp_stream.base.logs import LOG_AGAIN_S, counted
from udp_stream.base.units import KMH_PER_UNIT
from udp_stream.cli.progress import ReadingProgress
from udp_stream.pings.advice import OF_A_SPEED, advise, lacks_value
from udp_stream.pings.data_quality import (
    AUTUMN,
    COARSE,
    SAME_AGAIN,
    SHARED,
    SPRING,
    STEPS,
    Figures,
    QualityWarning,
    UnitEvidence,
    other_scale,
    plates_of_messages,
    repeats_of,
    shared_plate,
    still_plates,
    unit_evidence,
)
from udp_stream.pings.decode import (
    Box,
    PingDecoder,
    PingFormat,
    PingRules,
    Pings,
    Reason,
    Refusal,
    originals,
)
from udp_stream.pings.json import FeedForm
from udp_stream.pings.snapshots import STANDING
from udp_stream.pings.tracks import PINGS_JUDGED_MIN
from udp_stream.settings import Settings
from udp_stream.sources.files import as_far_as_whole
from udp_stream.sources.recordings import is_gtfs_file, open_sources
from udp_stream.sources.rows import Frames
from udp_stream.windows.clocks import AgreementClock, WindowRules, are_rolled_over

NEAR_DEGREES = 1.0
NEAR_MIN = 0.6
REFUSED_MAX = 0.05
ADVISED = 200
"""Stray fixes are farther than a degree from the middle, and most pings of a plate nearer. The
share of pings that may be refused, or lie elsewhere, without a word. Refusals that are explained."""

JOINED_BYTES = 2**28
MESSAGES_MIN = 500
"""Bytes that are looked at; messages of each of several sources."""

SETTING = "setting"
ALL_ZERO = "all zero"


@dataclass(frozen=True, kw_only=True)
class Look:
    """A part of a feed, as a form reads it.

    `pings` have the speeds as they are, read in `unit`. `refused`: refusals with their pieces.
    `messages`: how many there were, `others`: how many were of other events. `damages`, `said`:
    sentences of its source. `told`: the unit that a setting or the feed tells, `by`: SETTING,
    "name" or "specification". `zone`: `hat.timezone`, "" before it is set. `unread`: lines that read what
    looks like a field, under which of them. `spring`: the zone of times that are in the
    hour that spring leaves out. `doubts`: about the mapping, where it is the one that `init`
    proposes. `part`: of the feed; `is_whole`: the recording has no more.
    """

    pings: Pings
    form: FeedForm
    refused: Sequence[tuple[Refusal, bytes]] = ()
    messages: int = 0
    others: int = 0
    damages: Sequence[str] = ()
    said: Sequence[str] = ()
    unit: str = "kmh"
    told: str | None = None
    by: str = ""
    zone: str = ""
    box: Box | None = None
    unread: Mapping[str, str] = field(default_factory=dict)
    spring: str = ""
    doubts: Sequence[str] = ()
    part: str = "beginning"
    is_whole: bool = True

    @cached_property
    def evidence(self) -> UnitEvidence:
        return unit_evidence(self.pings, self.unit)

    @cached_property
    def repeats(self) -> dict[str, Figures]:
        return repeats_of(self.pings, self.form.mapping.zone)

    @cached_property
    def middle(self) -> tuple[float, float]:
        return middle_of(self.pings.plate, self.pings.lon, self.pings.lat)

    @property
    def plates(self) -> str:
        return counted(len(self.pings.plates), "plate")

    @property
    def likely_unit(self) -> str:
        """The unit by movement, else as it is told, else km/h."""
        known = self.told if self.told in KMH_PER_UNIT else None
        return known if known in self.evidence.fits else self.evidence.unit or known or "kmh"

    @cached_property
    def faults(self) -> Sequence[tuple[Refusal, bytes]]:
        """Refusals for more than a speed alone; beside pings that are read, also for more than a
        word in a value's place."""
        rest = [one for one in self.refused if one[0].reason not in OF_A_SPEED]
        if len(self.pings) and 2 * len(rest) > len(self.pings) + len(self.refused):
            rest = [one for one in rest if not lacks_value(*one)]
        return rest

    @property
    def is_mostly_read(self) -> bool:
        return 2 * len(self.faults) <= len(self.pings) + len(self.refused)

    def is_near(self, lon: Floats, lat: Floats) -> Flags:
        """Which places lie near the middle of the pings."""
        east, north = self.middle
        return (np.abs(lon - east) <= NEAR_DEGREES) & (np.abs(lat - north) <= NEAR_DEGREES)

    @property
    def advice(self) -> str:
        """Sentences on the commonest faults, by some from all over."""
        some = self.refused if self.is_mostly_read else self.faults
        said = advise(some[:: -(-len(some) // ADVISED) or 1], self.form, self.box)
        return ("; " if self.is_mostly_read else "\n  ").join(said)


def look_at(
    messages: Sequence[bytes], ping_format: PingFormat, form: FeedForm, rules: PingRules
) -> Look:
    """Decode messages without the clamp: clamped speeds would be in no unit."""
    pings, refusals = PingDecoder(unclamped(rules), ping_format).decode(messages)
    faults = [one for one in refusals if one.reason != Reason.OTHER_EVENT]
    pieces = ping_format.as_json([*originals(messages, faults, ping_format)])
    return Look(
        pings=pings,
        form=form if ping_format.is_json else replace(form, format=ping_format),
        refused=list(zip(faults, pieces, strict=True)),
        messages=len(messages),
        others=len(refusals) - len(faults),
        unit=rules.unit,
        box=rules.box,
    )


def look_at_files(
    paths: Sequence[str], form: FeedForm, unit: str | None, rules: PingRules, most: int
) -> Look:
    """A look at so many messages, as many of each source, with what their sources say, and a bar
    meanwhile. Polls of GTFS-realtime are a single source."""
    messages = list[bytes]()
    damages = list[str]()
    said = list[str]()
    ping_format = form.format
    each = most if is_gtfs_file(paths[0]) else max(MESSAGES_MIN, most // len(paths))
    is_whole = True
    with ReadingProgress(paths) as progress:
        for _, source in open_sources(paths, unit, progress.of, said.append, form=form):
            with closing(source):
                frames = as_far_as_whole(source.messages(), damages.append)
                some = next(joined(frames, each), [])
                is_whole &= next(frames, None) is None
                messages += some[:each]
                ping_format = source.format
        look = look_at(messages, ping_format, form, rules)
    doubts = [one for one in said if isinstance(one, QualityWarning)]
    return replace(look, damages=damages, said=doubts, is_whole=is_whole)


def joined(frames: Frames, messages_max: int) -> Frames:
    """Larger frames, in which pairs of a plate's pings are looked for; a recording may be larger
    than the memory."""
    held = list[bytes]()
    size = 0
    for frame in frames:
        held += frame
        size += sum(map(len, frame))
        if len(held) >= messages_max or size >= JOINED_BYTES:
            yield held
            held = []
            size = 0
    if held:
        yield held


def configured(look: Look, settings: Settings) -> Look:
    """The look of a feed that has a configuration."""
    unit = settings.ping_rules.unit
    told = unit if settings.judges_unit else None
    return replace(look, unit=unit, told=told, by=SETTING, zone=settings.hat.timezone)


def unclamped(rules: PingRules) -> PingRules:
    """Rules that leave speeds as they are."""
    return replace(rules, max_kmh=rules.reject_above_kmh)


# Places.


def zone_of(lon: float, lat: float) -> str:
    """The IANA zone of a place."""
    from tzfpy import get_tz  # 3 MB of boundaries: only where it is asked

    return (str(get_tz(lon, lat)) if abs(lon) <= 180 and abs(lat) <= 90 else "") or "Etc/UTC"


def is_sea(zone: str) -> bool:
    """Whether a zone is of no land where buses go."""
    return zone.startswith(("Etc/", "Antarctica/"))


def middle_of(plate: NDArray[np.integer], lon: Floats, lat: Floats) -> tuple[float, float]:
    """Where most plates are: the median of their medians, so that no plate counts by how often it
    sends."""
    starts = np.flatnonzero(np.diff(np.sort(plate).astype(np.int64), prepend=-1))
    places = starts + np.diff(np.append(starts, plate.size)) // 2
    east, north = (float(np.median(one[np.lexsort((one, plate))][places])) for one in (lon, lat))
    return east, north


# What rows look at: figures for their sentence, or None.


def _plate(look: Look, of_poll: bool) -> Figures | None:
    found = plates_of_messages(look.pings)
    if found is None or of_poll != (found[1] and (look.is_whole or not look.form.format.is_json)):
        return None
    return found[0] | {"field": "source.plate" if look.form.format.is_json else "vehicle.id"}


def _repeats(look: Look, cause: str) -> Figures | None:
    return look.repeats.get(cause)


def _place(look: Look) -> str:
    """The zone of the place, if its clocks differ from those of the zone that is set."""
    place = zone_of(*look.middle)
    middle = datetime.fromtimestamp(int(np.median(look.pings.time_ms)) / 1000, UTC)
    ours, theirs = (
        middle.astimezone(ZoneInfo(one)).utcoffset() for one in (look.zone or place, place)
    )
    return "" if ours == theirs or is_sea(place) else place


def _rolled_over(look: Look) -> int:
    clock = AgreementClock(WindowRules())
    clock.advance(look.pings)
    rolled = are_rolled_over(look.pings.time_ms, clock.watermark_ms or 0)
    return np.unique(look.pings.plate[rolled]).size


def _strays(look: Look) -> str:
    pings = look.pings
    near = look.is_near(pings.lon, pings.lat)
    away = int((share_near(pings.plate, near) < 1 - NEAR_MIN).sum())
    if not away and (~near).mean() <= REFUSED_MAX:
        return ""
    some = f"{away:,} of {look.plates}" if away else f"{(~near).sum():,} of {near.size:,} pings"
    is_turned = look.is_near(pings.lat[~near], pings.lon[~near]).mean() > NEAR_MIN
    turned = ": longitude and latitude of these are exchanged" if is_turned else ""
    return f"{some} lie far from the others, off pings.box{turned}"


def share_near(plate: NDArray[np.integer], near: Flags) -> Floats:
    """The share of each plate's pings that lie near."""
    return np.bincount(plate, near) / np.maximum(np.bincount(plate), 1)


def _refused(look: Look, is_mostly: bool) -> str:
    some = look.faults if is_mostly else look.refused
    every = len(look.pings) + len(look.refused)
    if is_mostly == look.is_mostly_read or len(some) <= REFUSED_MAX * every:
        return ""
    return f"{len(some):,} of {counted(every, 'ping')}"


def _is_told_otherwise(look: Look) -> bool:
    return look.told not in (None, look.likely_unit)


def _is_zero(look: Look) -> bool:
    is_zero = len(look.pings) >= PINGS_JUDGED_MIN and not look.pings.speed.any()
    return is_zero and not look.evidence.is_all_zero


class Row(NamedTuple):
    """The sentence is said, with what is `found`, where `evidence` finds something, or for each in a
    list. `section`: of
    the configuration. `error`: None if it may be right: a single poll looks so, too. `again_s`: of a feed
    that goes on, after how long it is said again, 0 if it is not said."""

    reason: str
    section: str
    evidence: Callable[[Look], object]
    sentence: str
    error: type[UdpStreamError] | None = None
    again_s: float = 0


DOUBT_AGAIN_S = 86_400.0
"""A doubt is said again once it was absent for so long: nights have too few pings to tell."""

REFUSED = Row(
    "mostly refused",
    "file",
    partial(_refused, is_mostly=True),
    "{found} of its {look.part} refused:\n  {look.advice}",
    UsageError,
)
PLACES = (
    Row(
        "sea",
        "hat",
        lambda look: is_sea(zone_of(*look.middle)),
        "the pings lie at sea or in Antarctica: are longitude and latitude exchanged (source.exchanged)?",
        ConfigError,
    ),
    Row(
        "zone",
        "hat",
        _place,
        "hat.timezone is {look.zone!r}, and the pings lie in {found!r}: slots would go by another city's clock",
        ConfigError,
    ),
)
UNIT = Row(
    "unit",
    "speed",
    lambda look: look.by == SETTING and _is_told_otherwise(look),
    "speed.unit is {look.told!r}, and pings move about as fast as they report in {look.evidence.named}",
    ConfigError,
    LOG_AGAIN_S,
)
_MESSAGES = (
    "{found[pings]:,} pings of {found[plates]:,} plates: is {found[field]} the vehicle's, and not the message's? "
    "(One poll alone looks so, too.)"
)
_SHARE = (
    "{found[repeats]:,} of {found[pings]:,} pings share plate and time with another and count once"
)
_REPEATS = {
    AUTUMN: "the recording holds autumn's doubled hour without offsets: {found[repeats]:,} of {found[pings]:,} pings count as "
    "repeats: have the feed send offsets, or UTC",
    SAME_AGAIN: f"{_SHARE}: they are the same again, as polls and resent messages have them",
    SHARED: f"{_SHARE}, and lie far from it: do several vehicles share a plate?",
    STEPS: f"times are {{found[steps]}}: {_SHARE}: have the feed send seconds",
    COARSE: f"{_SHARE}, and lie elsewhere: the feed's times are coarser than its pings",
}
TABLE = (
    REFUSED,
    Row("damaged", "file", lambda look: "; ".join(look.damages), "{found}", UsageError),
    Row("source", "file", lambda look: "; ".join(look.said), "{found}"),
    Row("plate", "feed", partial(_plate, of_poll=False), _MESSAGES, ConfigError),
    Row("poll", "feed", partial(_plate, of_poll=True), _MESSAGES),
    Row(
        "word",
        "feed",
        lambda look: shared_plate(look.pings),
        "{found[pings]:,} pings of {found[plates]:,} plates, and {found[most]:,} are of one: is it a word for a missing plate? "
        "Who shares a plate shares a budget",
        ConfigError,
    ),
    Row(
        "rolled over",
        "feed",
        _rolled_over,
        "{found:,} of {look.plates}: their times are 7,168 days off, 1,024 weeks, as of a GPS receiver whose weeks "
        f"begin again; such pings are refused ({Reason.TIME_ROLLED_OVER})",
        again_s=DOUBT_AGAIN_S,
    ),
    Row("strays", "feed", _strays, "{found}"),
    *(
        Row(cause, "feed", partial(_repeats, cause=cause), sentence, again_s=DOUBT_AGAIN_S)
        for cause, sentence in _REPEATS.items()
    ),
    Row(
        "refused",
        "file",
        partial(_refused, is_mostly=False),
        "{found} are refused: {look.advice}",
    ),
    *PLACES,
    Row(
        SPRING,
        "source",
        lambda look: look.repeats.get(SPRING, {}).get("zone") or look.spring,
        "times lie in the hour that spring's change leaves out: the feed's clock did not change: "
        'source.time_zone = "{found}" reads it',
        again_s=DOUBT_AGAIN_S,
    ),
    Row("mapping", "source", lambda look: look.doubts, "{found}"),
    Row(
        "unread speed",
        "source",
        lambda look: not look.form.mapping.speed and look.unread.get("speed"),
        "a field that is not read looks like a speed: {found}, without speed.from, reads it",
    ),
    UNIT,
    Row(
        "other unit",
        "speed",
        lambda look: look.by != SETTING and _is_told_otherwise(look),
        "the feed's {look.by} says {look.told}, not {look.likely_unit}: one of the two is wrong",
    ),
    Row(
        "scale",
        "speed",
        lambda look: other_scale(look.pings, look.unit),
        "positions look like {found[0]} written as decimals, and not like degrees: so read, speeds in {found[1]} fit how "
        "far buses go: convert the positions first",
        ConfigError,
    ),
    Row(
        "no unit",
        "speed",
        lambda look: look.evidence.fits_none,
        "by how far buses go, speeds fit no unit that is known (scaled? changed? places that stand still?): "
        "convert them first",
        ConfigError,
        DOUBT_AGAIN_S,
    ),
    Row(
        ALL_ZERO,
        "speed",
        lambda look: look.evidence.is_all_zero,
        'every speed is 0, and buses move: the feed has no speeds (speed.from = "movement" derives them)',
        ConfigError,
        DOUBT_AGAIN_S,
    ),
    Row(
        "changes",
        "speed",
        lambda look: look.evidence.unit and look.evidence.changes,
        "the unit changes on the way, or speeds are of several feeds",
    ),
    Row(
        "two units",
        "speed",
        lambda look: (
            look.told is None
            and look.by != SETTING
            and " and ".join(look.evidence.fits[1:] and look.evidence.fits)
        ),
        "{found} both fit how far buses go: which is it?",
    ),
    Row(
        "zero",
        "speed",
        _is_zero,
        "every speed is 0: if the buses move, the feed has no speeds, and speed.from is 'movement'",
    ),
    Row(
        "still",
        "speed",
        lambda look: still_plates(look.pings),
        f"{{found:,}} of {{look.plates}} {STANDING}",
        again_s=DOUBT_AGAIN_S,
    ),
)


class Finding(NamedTuple):
    """A row that finds something, and its sentence."""

    row: Row
    sentence: str


def findings(look: Look, rows: Iterable[Row] = TABLE) -> list[Finding]:
    """The findings of rows, in their order: without pings of the file alone, and nothing of raw speeds
    where they are not read."""
    left_out = set[str]()
    if not len(look.pings):
        left_out = {"feed", "hat", "speed"}
    elif not look.form.mapping.speed:
        left_out = {"speed"}
    both = ((row, row.section not in left_out and row.evidence(look)) for row in rows)
    return [
        Finding(row, row.sentence.format(look=look, found=one))
        for row, found in both
        for one in (found if isinstance(found, list) else [found])
        if one
    ]
