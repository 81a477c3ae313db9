"""A first look at what will be read: a feed that is mostly refused stops the run before anything is charged, and says
what would help.

No value of a speed decides: a ping that is refused for its speed alone counts as one that is read. So whether a run
begins is the same for neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np

from udp_stream.adapters.schemes import Source, open_sources, scheme_of
from udp_stream.adapters.settings import Settings
from udp_stream.adapters.text import counted
from udp_stream.cli.report import console
from udp_stream.cli.wrong_zone import on_land, wrong_offset, wrong_zone
from udp_stream.errors import UsageError
from udp_stream.pings.advice import Refused, advise
from udp_stream.pings.decode import PingDecoder, PingFormat, Pings, Reason, Refusal, originals
from udp_stream.pings.found_plate import VEHICLE_ID, may_be_one_poll, plate_warning, shared_plate_warning
from udp_stream.pings.json import FeedForm
from udp_stream.pings.time_offsets import SaidOffset, said_offsets
from udp_stream.release.summary import Summary

OF_A_SPEED = (Reason.SPEED_NOT_FINITE, Reason.SPEED_NEGATIVE, Reason.SPEED_ABOVE_LIMIT)
"""Reasons that look at the value of a speed: docs/pings.md."""

OF_THE_CLOCK = (Reason.LATE, Reason.SLOT_FULL, Reason.TIME_IN_FUTURE)
"""Reasons that are not in a message."""

LOOKED_AT = 4096
"""Messages of a file, or somewhat more."""

JOINED_MESSAGES, JOINED_BYTES = 200_000, 2**28
"""Of a frame that pairs of pings are looked for in."""

SAMPLE_MAX = 200
"""Refused messages that are kept for advice."""

SHARE_WORTH_ADVICE = 0.05
"""Of all pings: fewer refusals of one kind are faults of the feed, and no wrong setting."""


class Doubt(str):
    """A sentence that asks: what it is about may be right, which cannot be told from here."""

    __slots__ = ()


Warn = Callable[[str], None]
"""Takes a sentence about a setting that is likely wrong."""


def print_warning(sentence: str) -> None:
    """For people, beside a summary."""
    console().print(f"warning: {sentence}", markup=False, soft_wrap=True)


def require_readable_pings(names: Sequence[str], settings: Settings, warn: Warn = print_warning) -> None:
    """UsageError if of the beginning of a file more is refused than accepted, if nothing can be read of it, or if none
    has a ping; of GTFS-realtime files that stand together, of all of them. What is no file on disk is left alone."""
    on_disk, has_some = [name for name in names if is_on_disk(name)], False
    for name, source in open_sources(on_disk, settings.speed.unit, form=settings.source.form):
        first: list[bytes] = []
        is_whole = False
        with closing(source):
            try:
                for messages in source.messages():
                    first += messages
                    if len(first) >= LOOKED_AT:
                        break
                else:
                    is_whole = True
            except UsageError:
                if not first:
                    raise
                # the run says it, after what comes before the damage
        has_some = has_some or bool(first)
        _require_mostly_read(name, first, source.format, settings, warn, is_whole=is_whole)
    if not has_some and names and len(on_disk) == len(names):
        has_none = "the file has none" if len(names) == 1 else "the files have none"
        raise UsageError(f"{', '.join(names[:3])}: expected pings, and {has_none}")


def looked_at(source: Source, name: str, settings: Settings) -> Iterator[list[bytes]]:
    """The messages of a source; UsageError in place of the first of them, if more of it is refused than accepted.

    Files on disk were looked at before, and the first message of a live source says too little.
    """
    frames = source.messages()
    for first in frames:
        if not is_on_disk(name) and scheme_of(name) is None:
            shown = "standard input" if name == "-" else name
            _require_mostly_read(shown, first, source.format, settings, print_warning)
        yield first
        break
    yield from frames


def joined(frames: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
    """Larger frames: pairs of one plate's pings are looked for within one, and the first one says which unit they are
    in. They have a size, as a recording may be larger than the memory.

    >>> list(joined(iter([[b"1"], [b"2", b"3"]])))
    [[b'1', b'2', b'3']]
    """
    held: list[bytes] = []
    size = 0
    for frame in frames:
        held += frame
        size += sum(map(len, frame))
        if len(held) >= JOINED_MESSAGES or size >= JOINED_BYTES:
            yield held
            held, size = [], 0
    if held:
        yield held


def is_on_disk(name: str) -> bool:
    """Whether a name is a file that can be read twice.

    >>> is_on_disk("-"), is_on_disk(__file__)
    (False, True)
    """
    return name != "-" and scheme_of(name) is None and Path(name).is_file()


class _Looked(NamedTuple):
    """Where plates are from; and whether what was looked at may be all of one poll."""

    plate_field: str
    may_be_poll: bool


def _require_mostly_read(
    name: str,
    messages: Sequence[bytes],
    ping_format: PingFormat,
    settings: Settings,
    warn: Warn,
    *,
    is_whole: bool = False,
) -> None:
    pings, refusals = PingDecoder(settings.ping_rules, ping_format).decode(messages)
    refused = [one for one in refusals if one.reason not in OF_A_SPEED]
    read = len(pings) + len(refusals) - len(refused)
    if len(refused) <= read:
        offsets = said_offsets(messages, pings, settings.source.mapping, ping_format)
        looked = _Looked(VEHICLE_ID, True) if not ping_format.is_json else _Looked("source.plate", is_whole)
        for sentence in _warnings(pings, offsets, settings, looked) if len(pings) else ():
            warn(sentence)
        return
    reason = max(Reason, key=lambda reason: sum(one.reason == reason for one in refused))
    commonest = sum(one.reason == reason for one in refused)
    sample = refused[:SAMPLE_MAX]
    pieces = originals(messages, sample, ping_format)
    advice = advise(
        [Refused(refusal, piece) for refusal, piece in zip(sample, pieces, strict=True)],
        FeedForm(settings.source.mapping, ping_format),
        settings.pings.box,
        on_land,
    )
    accepted = "No ping was" if not read else f"Only {counted(read, 'ping')} {'was' if read == 1 else 'were'}"
    raise UsageError(
        f"{name}: {accepted} accepted of its beginning: {commonest:,} of {read + len(refused):,} pings "
        f"were refused as {reason}. Nothing of it was charged or released.{_lines(advice)}"
    )


def _warnings(pings: Pings, offsets: Sequence[SaidOffset], settings: Settings, looked: _Looked) -> Iterator[str]:
    """From what is public: places, times, and how many plates there are."""
    zone = settings.hat.timezone
    if sentence := wrong_zone(pings.time_ms, pings.lon, pings.lat, zone, settings.source.mapping):
        yield sentence
    elif sentence := wrong_offset(offsets, zone):
        yield Doubt(sentence)
    if sentence := plate_warning(len(pings), len(pings.plates), int(np.ptp(pings.time_ms)), looked.plate_field):
        yield Doubt(sentence) if looked.may_be_poll and may_be_one_poll(pings.time_ms) else sentence
    if sentence := shared_plate_warning(pings.plate, pings.time_ms, pings.lon, pings.lat):
        yield sentence


def _lines(advice: Sequence[str]) -> str:
    return "".join(f"\n  {sentence}" for sentence in advice)


class RefusedSample:
    """Keeps the first refused messages of a run for advice, and hands all of them on."""

    def __init__(self, reject: Callable[[bytes, Refusal], None] | None) -> None:
        """`reject` is where refused messages go, if anywhere."""
        self._reject = reject
        self._kept: list[Refused] = []

    def __call__(self, message: bytes, refusal: Refusal) -> None:
        """Take the next refused message."""
        if len(self._kept) < SAMPLE_MAX and refusal.reason not in OF_THE_CLOCK:
            self._kept.append(Refused(refusal, message))
        if self._reject is not None:
            self._reject(message, refusal)

    def advice(self, summary: Summary, settings: Settings) -> list[str]:
        """What would help against the kinds of refusals that are more than a feed's own faults."""
        least = SHARE_WORTH_ADVICE * (summary.pings + summary.refused.total())
        many = [one for one in self._kept if summary.refused[one.refusal.reason] > least]
        return [f"refused: {sentence}" for sentence in advise(many, settings.source.form, settings.pings.box, on_land)]

    def print_advice(self, summary: Summary, settings: Settings) -> None:
        """The same, for people."""
        for sentence in self.advice(summary, settings):
            console().print(sentence, markup=False, soft_wrap=True)
