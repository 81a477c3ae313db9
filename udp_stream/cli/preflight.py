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
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from udp_stream.base.arrays import Integers
from udp_stream.base.errors import ConfigError, UdpStreamError, UsageError
from udp_stream.base.logs import INFO, WARNING, Trouble, counted, log_message
from udp_stream.cli.evidence import (
    DOUBT_AGAIN_S,
    PLACES,
    REFUSED,
    TABLE,
    UNIT,
    Look,
    configured,
    findings,
    joined,
    look_at,
    unclamped,
)
from udp_stream.cli.progress import console
from udp_stream.pings.advice import OF_A_SPEED, OF_THE_CLOCK, advise
from udp_stream.pings.data_quality import QualityWarning
from udp_stream.pings.decode import PingFormat, Pings, Reason, Refusal, WireBatch, columns_of
from udp_stream.release.events import duration_in_words
from udp_stream.settings import Settings
from udp_stream.settings.limits import seconds_of
from udp_stream.sources.files import as_far_as_whole
from udp_stream.sources.recordings import MessageSink, Source, open_sources, scheme_of
from udp_stream.sources.rows import Frames
from udp_stream.windows.slots import ReadResult
from udp_stream.windows.tables import SlotPings

SAMPLED_MESSAGES = 4096
UNIT_MESSAGES = 20_000
JOINED_MESSAGES = 200_000
SAMPLE_MAX = 200
"""Messages of a file; messages in which pairs of pings are looked for first, and at most; refused
messages of a live feed that are kept."""

PLACED_PINGS = 20
"""Pings of a live feed that are read before its zone is doubted."""

FUTURE_S = 60.0
"""A ping that is further ahead of our clock does not count for a source's age."""


def stop_or_warn(
    error: UdpStreamError, settings: Settings, warn: MessageSink | None = None
) -> None:
    """Raise it. Where whole plates are hidden, warn: no ping may decide whether others are read."""
    if not settings.window_rules.in_processing_time:
        raise error
    (warn or print_warning)(str(error))


def require_unit(
    look: Look, settings: Settings, name: str, warn: MessageSink | None = None
) -> bool:
    """ConfigError if pings move as they report in another known unit; else whether movement can
    tell of any."""
    for _, sentence in findings(look, [UNIT]):
        text = f"{name}: {sentence}{_nothing_charged(settings)}. Set speed.unit to the feed's, or "
        stop_or_warn(
            ConfigError(text + "speed.unit_checked = true if a person has found it right"),
            settings,
            warn,
        )
    return look.evidence.unit is not None


def _nothing_charged(settings: Settings) -> str:
    return (
        ""
        if settings.window_rules.in_processing_time
        else "; nothing of this was charged or released"
    )


def print_warning(sentence: str) -> None:
    """For people, beside a summary."""
    console().print(f"warning: {sentence}", markup=False, soft_wrap=True)


class ReadBefore:
    """The batches that looks at files have read, for the run that reads the same files again: each
    is given once, for equal messages. It keeps `JOINED_MESSAGES` of them.

    >>> from udp_stream.pings.json import JSON
    >>> before = ReadBefore()
    >>> looked = before.looking(JSON).read([b"no ping"], 10, 10)
    >>> run = before.again(JSON)
    >>> first, second = (run.read([b"no ping"], 10, 10) for _ in range(2))
    >>> first.columns is None, second.columns is None
    (False, True)
    """

    def __init__(self) -> None:
        self._batches: dict[tuple[object, tuple[bytes, ...]], WireBatch] = {}

    def looking(self, ping_format: PingFormat) -> PingFormat:
        """The format of looks, each longer than the last: messages are read once."""

        def read(messages: Sequence[bytes], *limits: int) -> WireBatch:
            columns = []
            refusals = list[Refusal]()
            origins = []
            for first in range(0, max(1, len(messages)), SAMPLED_MESSAGES):
                some = tuple(messages[first : first + SAMPLED_MESSAGES])
                key = (ping_format.read, some)
                batch = self._batches.get(key) or ping_format.read(some, *limits)
                of_batch = batch.columns or columns_of(batch.pings)
                if len(self._batches) * SAMPLED_MESSAGES < JOINED_MESSAGES:
                    self._batches[key] = replace(batch, pings=(), columns=of_batch)
                columns.append(of_batch)
                origins.append((batch.message + first, batch.position))
                refusals += [replace(one, message=one.message + first) for one in batch.refusals]
            message, position = map(np.concatenate, zip(*origins, strict=True))
            return WireBatch((), message, position, refusals, columns[0].beside(*columns[1:]))

        return replace(ping_format, read=read)

    def again(self, ping_format: PingFormat) -> PingFormat:
        """The format of the run."""

        def read(messages: Sequence[bytes], *limits: int) -> WireBatch:
            known = self._batches.pop((ping_format.read, tuple(messages)), None)
            return known or ping_format.read(messages, *limits)

        return replace(ping_format, read=read) if self._batches else ping_format


def require_fit_files(
    names: Sequence[str],
    settings: Settings,
    warn: MessageSink = print_warning,
    *,
    charges: bool = False,
) -> ReadBefore:
    """The frames that were read of files; UsageError if of the beginning of a file more is refused
    than accepted, or if no file has a ping. If the verb `charges`: ConfigError if a beginning is in
    another unit than `speed.unit`; it is looked at until movement can tell. Polls of GTFS-realtime
    that stand together count as a file. Names that are no file on disk are left alone."""
    on_disk = [name for name in names if is_on_disk(name)]
    before = ReadBefore()
    seen = 0
    said = list[str]()
    for name, source in open_sources(
        on_disk, settings.speed.unit, log_message=said.append, form=settings.form
    ):
        with closing(source):
            frames = as_far_as_whole(source.messages(), lambda _: None)  # the run says the damage
            looks = looks_at(source, frames, settings, before)
            look = next(looks)
            _require_read(look, name, settings, warn)
            if charges and settings.judges_unit and seen < JOINED_MESSAGES:
                for look in looks:
                    if require_unit(look, settings, name):
                        break
        seen += look.messages
    if seen:
        for sentence in (one for one in said if isinstance(one, QualityWarning)):
            warn(sentence)
    elif names and len(on_disk) == len(names):
        why = "".join(f": {one}" for one in said if isinstance(one, QualityWarning))
        stop_or_warn(
            UsageError(f"{', '.join(names[:3])}: expected pings, and found none{why}"),
            settings,
            warn,
        )
    return before


def looks_at(
    source: Source, frames: Frames, settings: Settings, before: ReadBefore
) -> Iterator[Look]:
    """A look at the beginning of a source, each longer than the last; the same again where it has
    no more."""
    held = list[bytes]()
    look = None
    for size in (SAMPLED_MESSAGES, UNIT_MESSAGES, JOINED_MESSAGES):
        more = next(joined(frames, size - len(held)), [])
        held += more
        if more or look is None:
            is_whole = len(held) < size
            look = look_by(settings, held, before.looking(source.format))
            look = replace(look, is_whole=is_whole)
        yield look


def look_by(settings: Settings, messages: Sequence[bytes], ping_format: PingFormat) -> Look:
    """A look at messages that a configuration reads."""
    return configured(look_at(messages, ping_format, settings.form, settings.ping_rules), settings)


def checked_messages(
    source: Source, name: str, settings: Settings, *, charges: bool = True
) -> Frames:
    """The messages of a source; of a pipe, UsageError in place of the first if more of it is
    refused than accepted, and ConfigError if it is to be charged and in another unit. Files on disk
    were looked at before, and the first message of a live source says too little."""
    frames = source.messages()
    for first in frames:
        if not is_on_disk(name) and scheme_of(name) is None:
            shown = "standard input" if name == "-" else name
            look = replace(look_by(settings, first, source.format), is_whole=False)
            _require_read(look, shown, settings, print_warning)
            if charges and settings.judges_unit:
                require_unit(look, settings, shown)
        yield first
        break
    yield from frames


def is_on_disk(name: str) -> bool:
    """Whether a name is a file, which can be read twice."""
    return name != "-" and scheme_of(name) is None and Path(name).is_file()


def _require_read(look: Look, name: str, settings: Settings, warn: MessageSink) -> None:
    for row, sentence in findings(look, [row for row in TABLE if row.section != "speed"]):
        if row is REFUSED:
            text = f"{name}: {sentence}{_nothing_charged(settings)}"
            stop_or_warn(UsageError(text), settings, warn)
            return
        warn(sentence)


def _warn(text: str, event: str, figures: Mapping[str, object]) -> None:
    log_message(text, event, figures, WARNING)


@dataclass
class RefusalWatch:
    """Says once, in the log, that more of a live feed is refused than accepted, with advice. Before
    the first slot closes: ConfigError if its pings are in another unit than `speed.unit`.
    Partitions of a topic close it in turn, and the first may have one bus: it looks at each, until
    movement can tell."""

    REFUSALS_MIN = 10
    BEGINNING = 20_000
    """Before something is said; messages whose unit is looked at."""

    settings: Settings
    warn: Callable[[str, str, Mapping[str, object]], None] = _warn

    def __post_init__(self) -> None:
        self._sample = list[tuple[Refusal, bytes]]()
        self._refused = Counter[str]()
        self._accepted = 0
        self._is_said = False
        self._beginning: list[bytes] | None = [] if self.settings.judges_unit else None
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
        warn = lambda text: self.warn(text, "unit", {})  # noqa: E731
        look = look_by(self.settings, beginning, self.settings.form.format)
        told = require_unit(look, self.settings, "the feed", warn)
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
        said = "; ".join(advise(self._sample, self.settings.form, self.settings.pings.box))
        text = f"{refused:,} of {counted(refused + self._accepted, 'ping')} refused: {said}"
        self.warn(text, "refused", {"refused": dict(self._refused), "accepted": self._accepted})


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
        hear: Callable[[Integers], None] = lambda _: None,
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
        self._decoder = replace(settings.decoder, rules=unclamped(settings.ping_rules))
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
        for _, sentence in findings(self._look(pings), PLACES):
            self._log_message(f"{self._name}: {sentence}", "odd", {}, WARNING)

    def _look(self, pings: Pings) -> Look:
        return configured(Look(pings=pings, form=self._settings.form), self._settings)

    def end(self) -> None:
        """Look at the pings since the last look. Warn once of a doubt, and of another unit again
        while it lasts."""
        pings, _ = self._decoder.decode(self._held)
        self._held, self._held_s, self._place_at = [], self._steady(), 1
        if not self._is_placed:
            self._place(pings, least=1)
        for row, sentence in findings(self._look(pings), [row for row in TABLE if row.again_s]):
            is_due = self._held_s - self._odd.get(row.reason, -math.inf) >= row.again_s
            if is_due:
                self._log_message(f"{self._name}: {sentence}", "odd", {}, WARNING)
            if is_due or row.again_s == DOUBT_AGAIN_S:
                self._odd[row.reason] = self._held_s


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
