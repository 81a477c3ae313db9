"""What a run that goes on says of settings that are likely wrong: each sentence once, while it works.

It looks at what is public: how many pings are refused and why, and where and when plates pinged. No value of a speed
decides whether something is said: a ping that is refused for its speed alone counts as one that is accepted, and so
does one that is refused by the clock.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from udp_stream.adapters.logs import WARNING, say
from udp_stream.adapters.settings import Settings
from udp_stream.adapters.text import counted
from udp_stream.cli.first_look import OF_A_SPEED, OF_THE_CLOCK, SAMPLE_MAX
from udp_stream.cli.wrong_unit import wrong_unit
from udp_stream.cli.wrong_zone import on_land, wrong_offset, wrong_zone
from udp_stream.pings.advice import Refused, advise
from udp_stream.pings.decode import Pings
from udp_stream.pings.found_plate import plate_warning, shared_plate_warning
from udp_stream.pings.time_offsets import SaidOffset, said_offsets
from udp_stream.windows.source import ReadResult

LEAST: Final = 10
"""Refusals before the end, at least: the first message of a feed says too little."""

WINDOW: Final = 4096
"""Pings after which those before count half: a feed that changes after months is noticed."""

SAMPLE_BYTES: Final = 4 * 2**20
"""Of refused messages that are kept for advice, in all; the newest."""

ZONE_PINGS: Final = 100
"""Accepted pings whose places, and times with an offset, tell the zone."""

PLATE_PINGS: Final = 4096
"""Pings, at least, that tell whether the plate is a vehicle's."""

PLATE_MS: Final = 600_000
"""Between the newest pings of the first and of the last batch: a vehicle pings more than once in ten minutes. Times
within one batch say less: in a poll they may be hours old."""

PLATE_PINGS_MAX: Final = 2**16
"""Pings whose plates are kept for that."""

Say = Callable[[str, str, Mapping[str, object]], None]
"""Takes a warning: its text, its event and its figures."""


def _warn(text: str, event: str, figures: Mapping[str, object]) -> None:
    say(text, event, figures, WARNING)


class FeedWatch:
    """Give it what was read, batch after batch, and say at the end that it is the end.

    >>> from udp_stream.adapters.settings import Settings
    >>> from udp_stream.pings.decode import Reason, Refusal
    >>> from udp_stream.windows.source import Refused as ReadRefused
    >>> watch = FeedWatch(Settings(), lambda text, event, _: print(f"{event}: {text}"))
    >>> page = b"<html>"
    >>> watch.look([page], ReadResult([], [ReadRefused(0, Refusal(0, -1, Reason.NOT_JSON, "$"), page)], 1, 0))
    >>> watch.end()  # doctest: +ELLIPSIS
    refused: 1 of 1 ping was refused, most as not_json: not JSON, but XML or HTML, which is not read: convert it...
    >>> watch.accepted_nothing
    True
    """

    def __init__(self, settings: Settings, warn: Say = _warn) -> None:
        """Nothing was read yet."""
        self._settings, self._warn = settings, warn
        self._sample: deque[Refused] = deque()
        self.sample_bytes = 0
        self._refused: Counter[str] = Counter()
        self._accepted = 0
        self._total: Counter[bool] = Counter()  # by whether it was accepted
        self._is_mostly_refused = False
        self._told: set[tuple[str, ...]] = set()
        self._where: list[tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]] | None = []
        self._offsets: list[SaidOffset] = []
        self._plates: _Plates | None = _Plates()

    def look(self, messages: Sequence[bytes], read: ReadResult) -> None:
        """Look at what became of a batch of messages; those that were read before are not in `read`."""
        if not read.messages:
            return
        if not self._total and (sentence := wrong_unit(self._settings)) is not None:
            self._warn(sentence, "unit", {})
        refused = [one for one in read.refused if one.refusal.reason not in (*OF_A_SPEED, *OF_THE_CLOCK)]
        accepted = read.pings + len(read.refused) - len(refused)
        self._total.update({True: accepted, False: len(refused)})
        self._accepted += accepted
        self._refused.update(str(one.refusal.reason) for one in refused)
        for one in refused[-SAMPLE_MAX:]:
            self._keep(Refused(one.refusal, one.original))
        self._judge(LEAST)
        if self._accepted + self._refused.total() >= WINDOW:
            self._accepted //= 2
            self._refused = Counter({reason: count // 2 for reason, count in self._refused.items()})
        if read.pings and (self._where is not None or self._plates is not None):
            # Once more, for places, plates and what times say: a reader does not hand them on.
            self._look_at(messages, read.newest_ms or 0)

    def end(self) -> None:
        """Nothing comes any more: say also what rests on few pings."""
        self._judge(1)
        self._judge_zone(1)
        self._judge_plates()

    @property
    def accepted_nothing(self) -> bool:
        """Whether something was refused, and all of it, for what its messages are."""
        return self._total[False] > 0 and self._total[True] == 0

    def _look_at(self, messages: Sequence[bytes], newest_ms: int) -> None:
        decoder = self._settings.decoder
        pings, _ = decoder.decode(messages)
        if self._where is not None:
            self._where.append((pings.time_ms, pings.lon, pings.lat))
            self._offsets += said_offsets(messages, pings, self._settings.source.mapping, decoder.format)
            self._judge_zone(ZONE_PINGS)
        if self._plates is not None:
            self._plates.add(pings, newest_ms)
            if self._plates.are_enough:
                self._judge_plates()

    def _keep(self, refused: Refused) -> None:
        self._sample.append(refused)
        self.sample_bytes += len(refused.original)
        while len(self._sample) > SAMPLE_MAX or self.sample_bytes > SAMPLE_BYTES:
            self.sample_bytes -= len(self._sample.popleft().original)

    def _judge(self, least: int) -> None:
        """Say once when more is refused than accepted, and again only if that was over and other sentences help."""
        refused, was = self._refused.total(), self._is_mostly_refused
        if refused < least:
            return
        self._is_mostly_refused = refused > self._accepted
        if was or not self._is_mostly_refused:
            return
        (reason, _), *_ = self._refused.most_common(1)
        advice = advise(list(self._sample), self._settings.source.form, self._settings.pings.box, on_land)
        if (reason, *advice) in self._told:
            return
        self._told.add((reason, *advice))
        total = refused + self._accepted
        text = f"{refused:,} of {counted(total, 'ping')} {'was' if refused == 1 else 'were'} refused, most as {reason}"
        figures = {"refused": dict(self._refused), "accepted": self._accepted}
        self._warn(": ".join([text, "; ".join(advice)] if advice else [text]), "refused", figures)

    def _judge_zone(self, least: int) -> None:
        if self._where is None or sum(time_ms.size for time_ms, _, _ in self._where) < least:
            return
        time_ms, lon, lat = (np.concatenate(column) for column in zip(*self._where, strict=True))
        self._where = None
        zone = self._settings.hat.timezone
        sentence = wrong_zone(time_ms, lon, lat, zone, self._settings.source.mapping)
        if (sentence := sentence or wrong_offset(self._offsets, zone)) is not None:
            self._warn(sentence, "zone", {})
        self._offsets = []

    def _judge_plates(self) -> None:
        if self._plates is None:
            return
        sentence, self._plates = self._plates.warning(), None
        if sentence is not None:
            self._warn(sentence, "plate", {})


class _Plates:
    """The first pings of a feed: which is of which plate, when and where."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._plate, self._time_ms, self._lon, self._lat = array("q"), array("q"), array("d"), array("d")
        self._newest_ms: tuple[int, int] | None = None  # of the first batch, and of any

    def add(self, pings: Pings, newest_ms: int) -> None:
        """The pings of the next batch, and the newest time that counts; of a large one those that there is room for."""
        rows = slice(PLATE_PINGS_MAX - len(self._time_ms))
        ours = [self._numbers.setdefault(plate, len(self._numbers)) for plate in pings.plates]
        self._plate.extend(ours[number] for number in pings.plate[rows].tolist())
        self._time_ms.extend(pings.time_ms[rows].tolist())
        self._lon.extend(pings.lon[rows].tolist())
        self._lat.extend(pings.lat[rows].tolist())
        first_ms, last_ms = self._newest_ms or (newest_ms, newest_ms)
        self._newest_ms = first_ms, max(last_ms, newest_ms)

    @property
    def are_enough(self) -> bool:
        """Whether each vehicle had time for a second ping, or no more are kept."""
        pings, (first_ms, last_ms) = len(self._time_ms), self._newest_ms or (0, 0)
        return pings >= PLATE_PINGS_MAX or (pings >= PLATE_PINGS and last_ms - first_ms >= PLATE_MS)

    def warning(self) -> str | None:
        """What is wrong with the plate, if something is."""
        if not self._plate:
            return None
        plate, time_ms, lon, lat = map(np.array, (self._plate, self._time_ms, self._lon, self._lat))
        plates = int(np.unique(plate).size)
        return plate_warning(plate.size, plates, int(np.ptp(time_ms))) or shared_plate_warning(plate, time_ms, lon, lat)
