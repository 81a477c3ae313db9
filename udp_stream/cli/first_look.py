"""What is looked at beside a run: is a feed mostly refused, does it lie in the zone that is configured, are its plates
vehicles'? Before a file is charged, once as a refusal; while a live feed goes on, once as a line of the log.

All of it is public: how many pings are refused and why, and where and when plates pinged. No value of a speed decides:
a ping that is refused for its speed alone counts as one that is read. Whether a run begins is so
the same for neighbours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np

from udp_stream.cli.report import console
from udp_stream.errors import UsageError
from udp_stream.logs import WARNING, counted, say
from udp_stream.pings.decode import PingDecoder, PingFormat, Pings, originals
from udp_stream.pings.found import OF_A_SPEED, OF_THE_CLOCK, Refused, advise, plate_warning, without_other_events
from udp_stream.pings.json import FeedForm
from udp_stream.settings import Settings
from udp_stream.sources.recordings import Source, open_sources, scheme_of
from udp_stream.windows.slots import ReadResult

LOOKED_AT, SAMPLE_MAX, JOINED_MESSAGES, JOINED_BYTES = 4096, 200, 200_000, 2**28
"""Messages of a file; refused messages that are kept; messages and bytes that pairs of pings are looked for in."""


def zone_of(lon: float, lat: float) -> str:
    """The IANA zone of a place.

    >>> zone_of(72.83, 21.19), zone_of(30.27, -97.74)
    ('Asia/Kolkata', 'Etc/UTC')
    """
    from tzfpy import get_tz  # 3 MB of boundaries: only where it is asked

    return (str(get_tz(lon, lat)) if abs(lon) <= 180 and abs(lat) <= 90 else "") or "Etc/UTC"


def is_sea(zone: str) -> bool:
    """Whether a zone is none of any land: no city has it.

    >>> is_sea(zone_of(21.19, 72.83)), is_sea("Asia/Kolkata")
    (True, False)
    """
    return zone.startswith("Etc/")


def zone_warning(pings: Pings, zone: str) -> str | None:
    """A sentence if clocks in this zone do not show the hour of the place where these pings lie; None if they do."""
    place = zone_of(float(np.median(pings.lon)), float(np.median(pings.lat)))
    if is_sea(place):
        return "the pings lie at sea: are longitude and latitude exchanged in [source]?"
    middle = datetime.fromtimestamp(int(np.median(pings.time_ms)) / 1000, UTC)
    if middle.astimezone(ZoneInfo(place)).utcoffset() == middle.astimezone(ZoneInfo(zone)).utcoffset():
        return None
    return f"hat.timezone is {zone!r}, and the pings lie in {place!r}: slots would go by another city's clock"


def warnings_of(pings: Pings, settings: Settings, plate_field: str = "source.plate") -> list[str]:
    """What is likely to be set wrongly: the zone, the plate."""
    found = (zone_warning(pings, settings.hat.timezone), plate_warning(pings, plate_field)) if len(pings) else ()
    return [sentence for sentence in found if sentence is not None]


def print_warning(sentence: str) -> None:
    """For people, beside a summary."""
    console().print(f"warning: {sentence}", markup=False, soft_wrap=True)


def require_readable_pings(
    names: Sequence[str], settings: Settings, warn: Callable[[str], None] = print_warning
) -> None:
    """UsageError if of the beginning of a file more is refused than accepted, if nothing can be read of it, or if none
    has a ping; of GTFS-realtime files that stand together, of all of them. What is no file on disk is left alone."""
    on_disk, has_some = [name for name in names if is_on_disk(name)], False
    for name, source in open_sources(on_disk, settings.speed.unit, form=settings.form):
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
                if not first:  # else the run says it, after what comes before the damage
                    raise
        has_some = has_some or bool(first)
        _require_mostly_read(name, first, source.format, settings, warn, is_whole)
    if not has_some and names and len(on_disk) == len(names):
        raise UsageError(f"{', '.join(names[:3])}: expected pings, and found none")


def looked_at(source: Source, name: str, settings: Settings) -> Iterator[list[bytes]]:
    """The messages of a source; UsageError in place of the first of them, if more of it is refused than accepted.

    Files on disk were looked at before, and the first message of a live source says too little.
    """
    frames = source.messages()
    for first in frames:
        if not is_on_disk(name) and scheme_of(name) is None:
            shown = "standard input" if name == "-" else name
            _require_mostly_read(shown, first, source.format, settings, print_warning, False)
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


def _require_mostly_read(
    name: str,
    messages: Sequence[bytes],
    ping_format: PingFormat,
    settings: Settings,
    warn: Callable[[str], None],
    is_whole: bool,
) -> None:
    pings, refusals = PingDecoder(settings.ping_rules, ping_format).decode(messages)
    faults = [one for one in refusals if one.reason not in OF_A_SPEED]
    read = len(pings) + len(refusals) - len(faults)
    pieces = map(Refused, faults, originals(messages, faults, ping_format))
    refused = without_other_events(list(pieces), settings.form)
    if len(refused) <= read:
        for sentence in warnings_of(pings, settings, "source.plate" if ping_format.is_json else "vehicle.id"):
            warn(sentence if is_whole or not ping_format.is_json else str(sentence))
        return
    said = advise(refused[:SAMPLE_MAX], FeedForm(settings.form.mapping, ping_format))
    raise UsageError(
        f"{name}: {len(refused):,} of {counted(read + len(refused), 'ping')} of its beginning refused; nothing was "
        "charged or released" + "".join(f"\n  {sentence}" for sentence in said)
    )


def _warn(text: str, event: str, figures: Mapping[str, object]) -> None:
    say(text, event, figures, WARNING)


class FeedWatch:
    """Says once, in the log, that of a feed that goes on more is refused than accepted, and what would help.

    >>> from udp_stream.settings import Settings
    >>> from udp_stream.pings.decode import Reason, Refusal
    >>> from udp_stream.windows.slots import Refused as ReadRefused
    >>> watch = FeedWatch(Settings(), lambda text, event, _: print(f"{event}: {text}"))
    >>> page = b"<html>"
    >>> watch.look([page], ReadResult([], [ReadRefused(0, Refusal(0, -1, Reason.NOT_JSON, "$"), page)], 1, 0))
    >>> watch.end()
    refused: 1 of 1 ping refused: not_json at $: found XML or HTML
    >>> watch.accepted_nothing
    True
    """

    REFUSALS_MIN = 10
    """Before something is said."""

    def __init__(self, settings: Settings, warn: Callable[[str, str, Mapping[str, object]], None] = _warn) -> None:
        """Nothing was read yet."""
        self._settings, self._warn = settings, warn
        self._sample: list[Refused] = []
        self._refused: Counter[str] = Counter()
        self._accepted, self._is_said = 0, False

    def look(self, _messages: Sequence[bytes], read: ReadResult) -> None:
        """Look at what became of a batch of messages; those that were read before are not in `read`."""
        faults = [one for one in read.refused if one.refusal.reason not in (*OF_A_SPEED, *OF_THE_CLOCK)]
        self._accepted += read.pings + len(read.refused) - len(faults)
        refused = [Refused(one.refusal, one.original) for one in faults]
        refused = without_other_events(refused, self._settings.form)
        self._refused.update(str(one.refusal.reason) for one in refused)
        self._sample += refused[: SAMPLE_MAX - len(self._sample)]
        self._judge(self.REFUSALS_MIN)

    def end(self) -> None:
        """Nothing comes any more: say also what rests on few pings."""
        self._judge(1)

    @property
    def accepted_nothing(self) -> bool:
        """Whether something was refused, and all of it, for what its messages are."""
        return self._accepted == 0 and self._refused.total() > 0

    def _judge(self, least: int) -> None:
        refused = self._refused.total()
        if self._is_said or refused < least or refused <= self._accepted:
            return
        self._is_said = True
        said = "; ".join(advise(self._sample, self._settings.form))
        text = f"{refused:,} of {counted(refused + self._accepted, 'ping')} refused: {said}"
        self._warn(text, "refused", {"refused": dict(self._refused), "accepted": self._accepted})


def named(files: Sequence[str]) -> str:
    """The first of the files, and how many more there are.

    >>> named(["1.pb"]), named(["1.pb", "2.pb", "3.pb"])
    ('1.pb', '1.pb and 2 more')
    """
    return files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"


def require_files(names: Sequence[str], *, twice: bool = False) -> None:
    """UsageError for an address, which may hold a token and is not shown; where files are read twice, also for standard
    input, a pipe or a device.

    >>> require_files(["https://example.org/VehiclePositions.pb"])
    Traceback (most recent call last):
    udp_stream.errors.UsageError: expected files, got an address of https://: save some of what it sends, such as ...
    """
    save = "save some of what it sends, such as 1.pb, 1.json or sample.ndjson, and name that"
    for name in names:
        if (scheme := scheme_of(name)) is not None:
            raise UsageError(f"expected files, got an address of {scheme}://: {save}. `run` reads the address")
        path = Path(name)
        if twice and (name == "-" or (path.exists() and not (path.is_file() or path.is_dir()))):
            raise UsageError(f"expected files, which can be read twice, got {name}: {save}")
