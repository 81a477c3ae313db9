"""Warnings about a feed: most of it is refused, it lies in another zone, its plates are no
vehicles', it stands still.

A file is looked at before it is charged, and may be refused; a live feed while it goes on, with a
line in the log.

What decides is public: how many pings are refused and why, where and when plates pinged. A ping
that is refused for its speed alone counts as read. So neighbours agree on whether a run begins, and
on which pings of a live source go on. Two warnings are verdicts on raw speeds: another unit than
configured; plates that report a speed and stand. They change nothing, and are for operators
(docs/privacy-model.md). Where whole plates are hidden, all of them change nothing.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from udp_stream.cli.progress import console
from udp_stream.errors import ConfigError, UdpStreamError, UsageError
from udp_stream.logs import INFO, LOG_AGAIN_S, WARNING, Trouble, counted, log_message
from udp_stream.pings.advice import OF_A_SPEED, OF_THE_CLOCK, advise, lacks_value
from udp_stream.pings.data_quality import (
    QualityWarning,
    UnitEvidence,
    plate_warning,
    repeat_warning,
    unit_evidence,
)
from udp_stream.pings.decode import (
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
from udp_stream.release.events import duration_in_words
from udp_stream.settings import Settings
from udp_stream.settings.limits import seconds_of
from udp_stream.sources.files import as_far_as_whole
from udp_stream.sources.recordings import Source, open_sources, scheme_of
from udp_stream.units import QUANTA_PER_KMH
from udp_stream.windows.clocks import AgreementClock, WindowRules, are_rolled_over
from udp_stream.windows.slots import ReadResult
from udp_stream.windows.tables import SlotPings

SAMPLED_MESSAGES = 4096
SAMPLE_MAX = 200
JOINED_MESSAGES = 200_000
JOINED_BYTES = 2**28
"""Messages of a file; refused messages that are kept; messages and bytes in which pairs of pings
are looked for."""

PLACED_PINGS = 20
"""Pings of a live feed that are read before its zone is doubted."""

DOUBT_AGAIN_S = 86_400.0
"""A doubt is said again once it was absent for so long: nights have too few pings to tell."""

FUTURE_S = 60.0
"""A ping that is further ahead of our clock does not count for a source's age."""


def zone_of(lon: float, lat: float) -> str:
    """The IANA zone of a place."""
    from tzfpy import get_tz  # 3 MB of boundaries: only where it is asked

    return (str(get_tz(lon, lat)) if abs(lon) <= 180 and abs(lat) <= 90 else "") or "Etc/UTC"


def is_sea(zone: str) -> bool:
    """Whether a zone is of no land where buses go."""
    return zone.startswith(("Etc/", "Antarctica/"))


def middle_of(
    plate: NDArray[np.integer], lon: NDArray[np.float64], lat: NDArray[np.float64]
) -> tuple[float, float]:
    """Where most plates are: the median of their medians, so that no plate counts by how often it
    sends."""
    starts = np.flatnonzero(np.diff(np.sort(plate).astype(np.int64), prepend=-1))
    places = starts + np.diff(np.append(starts, plate.size)) // 2
    east, north = (float(np.median(one[np.lexsort((one, plate))][places])) for one in (lon, lat))
    return east, north


def warnings_of(pings: Pings, settings: Settings, plate_field: str = "source.plate") -> list[str]:
    """Sentences about a zone and a plate that are likely wrong, and about plates whose clocks have
    rolled over."""
    if not len(pings):
        return []
    found = (
        _zone_warning(pings, settings.hat.timezone),
        plate_warning(pings, plate_field),
        rollover_warning(pings),
    )
    repeats = repeat_warning(pings, settings.form.mapping.zone)
    return [sentence for sentence in (*found, repeats) if sentence is not None]


def _zone_warning(pings: Pings, zone: str) -> str | None:
    place = zone_of(*middle_of(pings.plate, pings.lon, pings.lat))
    if is_sea(place):
        return "the pings lie at sea or in Antarctica: are longitude and latitude exchanged (source.exchanged)?"
    middle = datetime.fromtimestamp(int(np.median(pings.time_ms)) / 1000, UTC)
    if (
        middle.astimezone(ZoneInfo(place)).utcoffset()
        == middle.astimezone(ZoneInfo(zone)).utcoffset()
    ):
        return None
    return f"hat.timezone is {zone!r}, and the pings lie in {place!r}: slots would go by another city's clock"


def rollover_warning(pings: Pings) -> QualityWarning | None:
    """A sentence if some plates are 1,024 weeks behind the others."""
    if not len(pings):
        return None
    clock = AgreementClock(WindowRules())
    clock.advance(pings)
    rolled = are_rolled_over(pings.time_ms, clock.watermark_ms or 0)
    if not rolled.any():
        return None
    plates = counted(np.unique(pings.plate[rolled]).size, "plate")
    return QualityWarning(
        f"{plates} of {len(pings.plates):,}: their times are 7,168 days off, 1,024 weeks, as of a GPS receiver whose "
        f"weeks begin again; such pings are refused ({Reason.TIME_ROLLED_OVER})"
    )


STILL_S = 100
STILL_PINGS = 4
STILL_KMH = 5
"""A plate stands still if it sends so many pings, over so long, from a place that is the same to
the last digit, and reports in each that it goes faster. A bus in a jam does not."""


def still_warning(pings: Pings) -> QualityWarning | None:
    """A sentence if some plates report a speed and do not move, by raw speeds."""
    if not len(pings):
        return None
    order = np.argsort(pings.plate, kind="stable")
    starts = np.flatnonzero(np.diff(pings.plate[order].astype(np.int64), prepend=-1))
    columns = [column[order] for column in (pings.lat, pings.lon, pings.time_ms, pings.speed)]
    north, east, apart_ms, _ = (
        np.maximum.reduceat(one, starts) - np.minimum.reduceat(one, starts) for one in columns
    )
    slowest = np.minimum.reduceat(columns[3], starts)
    still = (
        (north == 0)
        & (east == 0)
        & (apart_ms >= STILL_S * 1000)
        & (slowest > STILL_KMH * QUANTA_PER_KMH)
    )
    still &= np.diff(np.append(starts, order.size)) >= STILL_PINGS
    return (
        QualityWarning(f"{counted(int(still.sum()), 'plate')} {STANDING}") if still.any() else None
    )


def speed_warnings(pings: Pings, settings: Settings) -> list[str]:
    """Sentences about raw speeds, read up to `speed.reject_above_kmh`; none where speeds are
    derived."""
    if settings.speed.from_ == "movement":
        return []
    evidence = unit_evidence(pings, settings.ping_rules.unit)
    fault = evidence.fault
    found = (
        _odd_unit(evidence, settings),
        None if fault is None else QualityWarning(fault),
        still_warning(pings),
    )
    return [sentence for sentence in found if sentence is not None]


def _odd_unit(evidence: UnitEvidence, settings: Settings) -> str | None:
    configured = settings.ping_rules.unit
    if evidence.unit in (None, configured) or settings.speed.unit_checked:
        return None
    return f"speed.unit is {configured!r}, and pings move about as fast as they report in {evidence.named}"


def stop_or_warn(
    error: UdpStreamError, settings: Settings, warn: Callable[[str], None] | None = None
) -> None:
    """Raise it. Where whole plates are hidden, warn: no ping may decide whether others are read."""
    if not settings.window_rules.in_processing_time:
        raise error
    (warn or print_warning)(str(error))


def require_unit(
    messages: Sequence[bytes],
    ping_format: PingFormat,
    settings: Settings,
    name: str,
    warn: Callable[[str], None] | None = None,
) -> bool:
    """ConfigError if pings move as they report in another known unit; else whether movement can
    tell of any."""
    pings, _ = PingDecoder(unclamped(settings), ping_format).decode(messages)
    evidence = unit_evidence(pings, settings.ping_rules.unit)
    odd = _odd_unit(evidence, settings)
    if odd is not None:
        text = f"{name}: {odd}{_nothing_charged(settings)}. Set speed.unit to the feed's, or "
        stop_or_warn(
            ConfigError(text + "speed.unit_checked = true if a person has found it right"),
            settings,
            warn,
        )
    return evidence.unit is not None


def _nothing_charged(settings: Settings) -> str:
    return (
        ""
        if settings.window_rules.in_processing_time
        else "; nothing of this was charged or released"
    )


def require_unit_of_files(names: Sequence[str], settings: Settings) -> None:
    """ConfigError, before anything is charged, if the beginning of a file is in another unit than
    `speed.unit`."""
    if not settings.judges_unit:
        return
    seen = 0
    on_disk = [name for name in names if is_on_disk(name)]
    for name, source in open_sources(on_disk, settings.speed.unit, form=settings.form):
        first = list[bytes]()
        with (
            closing(source),
            suppress(UsageError),
        ):  # the run says what is damaged, after what comes before it
            first = next(joined(as_far_as_whole(source.messages(), lambda _: None)), [])
        require_unit(first, source.format, settings, name)
        seen += len(first)
        if seen >= JOINED_MESSAGES:
            return


def unclamped(settings: Settings) -> PingRules:
    """Rules without the clamp: clamped speeds would be in no unit."""
    return replace(settings.ping_rules, max_kmh=settings.ping_rules.reject_above_kmh)


def print_warning(sentence: str) -> None:
    """For people, beside a summary."""
    console().print(f"warning: {sentence}", markup=False, soft_wrap=True)


def require_readable_pings(
    names: Sequence[str], settings: Settings, warn: Callable[[str], None] = print_warning
) -> None:
    """UsageError if of the beginning of a file more is refused than accepted, or if no file has a
    ping. Polls of GTFS-realtime that stand together count as a file. Names that are no file on disk
    are left alone."""
    on_disk = [name for name in names if is_on_disk(name)]
    has_some = False
    said = list[str]()
    for name, source in open_sources(
        on_disk, settings.speed.unit, log_message=said.append, form=settings.form
    ):
        first = list[bytes]()
        is_whole = False
        with closing(source):
            try:
                for messages in source.messages():
                    first += messages
                    if len(first) >= SAMPLED_MESSAGES:
                        break
                else:
                    is_whole = True
            except UsageError:
                if not first:  # else the run says it, after what comes before the damage
                    raise
        has_some = has_some or bool(first)
        _look_at_beginning(name, first, source.format, settings, warn, is_whole)
    for sentence in (one for one in said if isinstance(one, QualityWarning) and has_some):
        warn(sentence)
    if not has_some and names and len(on_disk) == len(names):
        why = "".join(f": {one}" for one in said if isinstance(one, QualityWarning))
        stop_or_warn(
            UsageError(f"{', '.join(names[:3])}: expected pings, and found none{why}"),
            settings,
            warn,
        )


def checked_messages(
    source: Source, name: str, settings: Settings, *, charges: bool = True
) -> Iterator[list[bytes]]:
    """The messages of a source; of a pipe, UsageError in place of the first if more of it is
    refused than accepted, and ConfigError if it is to be charged and in another unit. Files on disk
    were looked at before, and the first message of a live source says too little."""
    frames = source.messages()
    for first in frames:
        if not is_on_disk(name) and scheme_of(name) is None:
            shown = "standard input" if name == "-" else name
            _look_at_beginning(shown, first, source.format, settings, print_warning, False)
            if charges and settings.judges_unit:
                require_unit(first, source.format, settings, shown)
        yield first
        break
    yield from frames


def joined(frames: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
    """Larger frames, in which pairs of a plate's pings are looked for; a recording may be larger
    than the memory."""
    held = list[bytes]()
    size = 0
    for frame in frames:
        held += frame
        size += sum(map(len, frame))
        if len(held) >= JOINED_MESSAGES or size >= JOINED_BYTES:
            yield held
            held = []
            size = 0
    if held:
        yield held


def is_on_disk(name: str) -> bool:
    """Whether a name is a file, which can be read twice."""
    return name != "-" and scheme_of(name) is None and Path(name).is_file()


def require_mostly_read(
    messages: Sequence[bytes], ping_format: PingFormat, settings: Settings, what: str
) -> Pings:
    """The accepted pings. UsageError with advice if more are refused."""
    pings, refusals = PingDecoder(settings.ping_rules, ping_format).decode(messages)
    refusals = [one for one in refusals if one.reason != Reason.OTHER_EVENT]
    faults = [one for one in refusals if one.reason not in OF_A_SPEED]
    read = len(pings) + len(refusals) - len(faults)
    if len(faults) > read:
        pieces = ping_format.as_json([*originals(messages, faults, ping_format)])
        every = list(zip(faults, pieces, strict=True))
        sample = [one for one in every if not (len(pings) and lacks_value(*one))]
        faults = [fault for fault, _ in sample]
        read = read + len(every) - len(sample)
    if len(faults) > read:
        form = settings.form
        if not ping_format.is_json:
            form = FeedForm(form.mapping, ping_format)
        said = advise(sample[:SAMPLE_MAX], form, settings.pings.box)
        text = f"{len(faults):,} of {counted(read + len(faults), 'ping')} {what}"
        raise UsageError(text + "".join(f"\n  {sentence}" for sentence in said))
    return pings


def _look_at_beginning(
    name: str,
    messages: Sequence[bytes],
    ping_format: PingFormat,
    settings: Settings,
    warn: Callable[[str], None],
    is_whole: bool,
) -> None:
    try:
        what = f"of its beginning refused{_nothing_charged(settings)}"
        pings = require_mostly_read(messages, ping_format, settings, what)
    except UsageError as error:
        stop_or_warn(UsageError(f"{name}: {error}"), settings, warn)
        return
    for sentence in warnings_of(
        pings, settings, "source.plate" if ping_format.is_json else "vehicle.id"
    ):
        warn(sentence if is_whole or not ping_format.is_json else str(sentence))


def _warn(text: str, event: str, figures: Mapping[str, object]) -> None:
    log_message(text, event, figures, WARNING)


class RefusalWatch:
    """Says once, in the log, that more of a live feed is refused than accepted, with advice. Before
    the first slot closes: ConfigError if its pings are in another unit than `speed.unit`.
    Partitions of a topic close it in turn, and the first may have one bus: it looks at each, until
    movement can tell."""

    REFUSALS_MIN = 10
    BEGINNING = 20_000
    """Before something is said; messages whose unit is looked at."""

    def __init__(
        self, settings: Settings, warn: Callable[[str, str, Mapping[str, object]], None] = _warn
    ) -> None:
        self._settings = settings
        self._warn = warn
        self._sample = list[tuple[Refusal, bytes]]()
        self._refused = Counter[str]()
        self._accepted = 0
        self._is_said = False
        self._beginning: list[bytes] | None = [] if settings.judges_unit else None
        self._first_ms: int | None = None  # the slot that closed first

    def check(self, messages: Sequence[bytes], read: ReadResult) -> None:
        """Count the pings and refusals of a batch."""
        if self._beginning is not None:
            self._beginning += messages
            if self._is_judged(self._beginning, read.closed):
                self._beginning = None
        every = [one for one in read.refused if one.refusal.reason != Reason.OTHER_EVENT]
        faults = [one for one in every if one.refusal.reason not in (*OF_A_SPEED, *OF_THE_CLOCK)]
        self._accepted += read.pings + len(every) - len(faults)
        self._refused.update(str(one.refusal.reason) for one in faults)
        self._sample += [
            (one.refusal, one.original) for one in faults[: SAMPLE_MAX - len(self._sample)]
        ]
        self._judge(self.REFUSALS_MIN)

    def _is_judged(self, beginning: list[bytes], closed: Sequence[SlotPings]) -> bool:
        """Whether the unit is looked at no more: movement has told, there are pings enough, or a
        slot may be out."""
        if not closed and len(beginning) < self.BEGINNING:
            return False
        closes_ms = min((slot.start_ms for slot in closed), default=0)
        self._first_ms = closes_ms if self._first_ms is None else self._first_ms
        if closes_ms > self._first_ms:
            return True
        warn = lambda text: self._warn(text, "unit", {})  # noqa: E731
        told = require_unit(beginning, self._settings.form.format, self._settings, "the feed", warn)
        return told or len(beginning) >= self.BEGINNING

    def end(self) -> None:
        """The feed has ended: say it also of few pings."""
        self._judge(1)

    @property
    def accepted_nothing(self) -> bool:
        """Whether all pings were refused, for reasons that lie in the messages."""
        return self._accepted == 0 and self._refused.total() > 0

    def _judge(self, least: int) -> None:
        refused = self._refused.total()
        if self._is_said or refused < least or refused <= self._accepted:
            return
        self._is_said = True
        said = "; ".join(advise(self._sample, self._settings.form, self._settings.pings.box))
        text = f"{refused:,} of {counted(refused + self._accepted, 'ping')} refused: {said}"
        self._warn(text, "refused", {"refused": dict(self._refused), "accepted": self._accepted})


def source_name(name: str) -> str:
    """A path, or an address without what may be secret: user, password, path, query.

    >>> source_name("amqps://me:secret@broker:5671/vhost?key=1")
    'amqps://broker:5671'
    """
    if scheme_of(name) is None:
        return name
    scheme, _, rest = name.partition("://")
    return f"{scheme}://{rest.partition('/')[0].partition('?')[0].rpartition('@')[2]}"


def max_age_s(source: str, settings: Settings) -> float:
    """`live.max_age`; recordings and pipes have no age."""
    return seconds_of("live.max_age", settings.live.max_age) if scheme_of(source) else math.inf


class LiveFeedCheck:
    """Looks at the age of a feed, and at its pings, some minutes of them at a time. Recordings and
    pipes have no age.

    While the newest ping is more than `live.max_age` old, pings of a live source are not handed on:
    they would close slots, and be charged for, as if they were of now. Other messages are handed
    on, to be refused. Where whole plates are hidden, all are handed on, since no ping closes a
    slot, and each is late by itself.
    """

    SAMPLE = 20_000
    SAMPLE_S = 600.0
    """Messages, or seconds, that are looked at together."""

    def __init__(
        self,
        source: str,
        settings: Settings,
        tell: Callable[[str, str, Mapping[str, object], int], None] = log_message,
        clock: Callable[[], float] = time.time,
        hear: Callable[[NDArray[np.int64]], None] = lambda _: None,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """`hear` is told the times of all pings, before the clock is asked. Durations are of the
        `steady` clock."""
        self._name = source_name(source)
        self._settings = settings
        self._log_message = tell
        self._clock = clock
        self._hear = hear
        self._steady = steady
        self._decoder = replace(settings.decoder, rules=unclamped(settings))
        self._max_age_s = max_age_s(source, settings)
        self._drops = not settings.window_rules.in_processing_time
        self._newest_ms = -math.inf
        self._began_s = steady()
        self._old = Trouble(steady)
        self._held = list[bytes]()
        self._held_s = steady()
        self._odd = dict[str, float]()
        self._is_placed = False
        self._place_at = 1
        self.stale = 0

    def fresh(self, messages: list[bytes]) -> list[bytes]:
        """The messages that go on."""
        self._held += messages
        if not self._is_placed and len(self._held) >= self._place_at:
            self._place_at = 2 * len(
                self._held
            )  # so that a message is decoded twice, and not each time
            self._place(self._decoder.decode(self._held)[0])
        if len(self._held) >= self.SAMPLE or self._steady() - self._held_s >= self.SAMPLE_S:
            self.end()
        if self._max_age_s == math.inf:
            return messages
        pings, _ = self._decoder.decode(messages)
        self._hear(pings.time_ms)
        now_s = self._clock()
        times = pings.time_ms[pings.time_ms <= (now_s + FUTURE_S) * 1000]
        self._newest_ms = max(self._newest_ms, times.max(initial=-(2**62)))
        age_s = now_s - self._newest_ms / 1000
        if age_s <= self._max_age_s:
            if self._old.is_on:
                text = f"{self._name}: fresh again, after {duration_in_words(self._old.end())}"
                self._log_message(text, "fresh", {"stale": self.stale}, INFO)
            return messages
        self.stale += len(pings) if self._drops else 0
        # A server that answers the same again and again, or nothing, hands on no messages.
        if len(pings) or min(age_s, self._steady() - self._began_s) > self._max_age_s:
            self._warn_of_age(age_s, bool(len(pings)))
        whole = set(pings.message.tolist()) if self._drops else ()
        return [message for at, message in enumerate(messages) if at not in whole]

    def _warn_of_age(self, age_s: float, are_pings: bool) -> None:
        if not self._old.is_due(""):
            return
        age = f"its newest ping is {duration_in_words(age_s)} old"
        if age_s == math.inf:
            age = "its pings are ahead of the clock" if are_pings else "it has sent no ping"
        limit = f"live.max_age is {self._settings.live.max_age}"
        unread = f"; {counted(self.stale, 'ping')} not read" if self._drops else ""
        text = f"{self._name}: {age} ({limit}){unread}: does it stand still?"
        figures = {"stale": self.stale, "age_s": None if age_s == math.inf else round(age_s)}
        self._log_message(text, "stale", figures, WARNING)

    def _place(self, pings: Pings, least: int = PLACED_PINGS) -> None:
        """Warn at once of another zone: slots go by it."""
        if len(pings) < least:
            return
        self._is_placed = True
        if (sentence := _zone_warning(pings, self._settings.hat.timezone)) is not None:
            self._log_message(f"{self._name}: {sentence}", "odd", {}, WARNING)

    def end(self) -> None:
        """Look at the pings since the last look. Warn once of a doubt, and of another unit again
        while it lasts."""
        pings, _ = self._decoder.decode(self._held)
        self._held, self._held_s, self._place_at = [], self._steady(), 1
        if not self._is_placed:
            self._place(pings, least=1)
        rolled = rollover_warning(pings)
        repeats = repeat_warning(pings, self._settings.form.mapping.zone)
        odd = [*filter(None, (rolled, repeats)), *speed_warnings(pings, self._settings)]
        for sentence in odd:
            kind = re.sub("[0-9,]+", "", sentence)  # as many again are nothing new
            is_doubt = isinstance(sentence, QualityWarning)
            is_due = self._held_s - self._odd.get(kind, -math.inf) >= (
                DOUBT_AGAIN_S if is_doubt else LOG_AGAIN_S
            )
            if is_due:
                self._log_message(f"{self._name}: {sentence}", "odd", {}, WARNING)
            if is_due or is_doubt:
                self._odd[kind] = self._held_s


def named(files: Sequence[str]) -> str:
    """The first of the files, and how many more there are."""
    return files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"


def require_files(names: Sequence[str], *, twice: bool = False) -> None:
    """UsageError for an address, which may hold a token and is not shown; where files are read
    twice, also for standard input, a pipe or a device."""
    save = "save some of what it sends, such as 1.pb, 1.json or sample.ndjson, and name that"
    for name in names:
        if (scheme := scheme_of(name)) is not None:
            raise UsageError(
                f"expected files, got an address of {scheme}://: {save}. `run` reads the address"
            )
        path = Path(name)
        if twice and (name == "-" or (path.exists() and not (path.is_file() or path.is_dir()))):
            raise UsageError(f"expected files, which can be read twice, got {name}: {save}")
