"""An address that is polled, as a source: GTFS-realtime, or JSON.

Every poll is a snapshot of the fleet. What it has that the polls before had not is a frame, as messages of single pings
in the contract's form (`unrepeated`). A poll that fails gives nothing and is said; the next one is due after a pause
that grows. What the server calls unchanged (`ETag`, `Last-Modified`) is not sent again, but a server that calls it
unchanged for five minutes is asked without that.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from udp_stream.adapters.files.gtfs_files import VEHICLES_MAX, sentences
from udp_stream.adapters.live.http_get import BYTES_MAX, Answer, HttpGet
from udp_stream.adapters.live.retries import Retries
from udp_stream.adapters.live.source import Failed
from udp_stream.adapters.text import counted
from udp_stream.errors import ConfigError
from udp_stream.pings.decode import PingFormat
from udp_stream.pings.gtfs_realtime import FROM_ID, FROM_LICENSE_PLATE, GTFS_REALTIME, UNIT
from udp_stream.pings.json import JSON, trim
from udp_stream.pings.unrepeated import Unrepeated

UNCHANGED_S = 300.0
"""As long as a server is believed that nothing has changed."""

SAY_S = 60.0
"""Between two lines of what was polled."""

GTFS, PLAIN_JSON = "gtfs-rt", "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PollOptions:
    """`format`: "gtfs-rt", "json", or "auto" to see. `json` reads messages of JSON; `unit` is what speeds are in."""

    every_s: float
    format: str
    unit: str
    max_bytes: int = BYTES_MAX
    json: PingFormat = JSON


class PolledSource:
    """Polls until it is stopped."""

    def __init__(
        self,
        get: HttpGet,
        options: PollOptions,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        fraction: Callable[[], float] = random.random,
    ) -> None:
        """Nothing is asked yet. `say` is given sentences for people, without a plate, a speed or a token.

        ConfigError for an address that is known to be of another unit, or to be GTFS-realtime beside a `json` of a
        feed's own.
        """
        self._get, self._options, self._say, self._clock = get, options, say, clock
        self.format = options.json
        self._retries = Retries(get.name, options.every_s, say, clock, fraction)
        self._stopped = threading.Event()
        self._format, self._why = _known(options.format, get.name)
        self._is_named = bool(self._format)
        self._require_unit()
        self._unrepeated: Unrepeated | None = None
        self._validators: dict[str, str] = {}
        self._changed_s = clock()
        self._tally: Counter[str] = Counter()
        self._said_s = clock()
        self._plates_said: set[str] = set()

    @property
    def unit(self) -> str | None:
        """Metres a second of what is known to be GTFS-realtime."""
        return UNIT if self._format == GTFS else None

    def messages(self) -> Iterator[list[bytes]]:
        """A frame for each poll that has something new.

        DependencyUnavailable if the first answers say that the address or the token is wrong, ConfigError if its speeds
        are in another unit than `speed.unit`.
        """
        while not self._stopped.is_set():
            began_s = self._clock()
            try:
                frame = self._poll()
            except Failed as failure:
                if self._stopped.is_set():  # then it was our stop that ended the call
                    return
                pause_s = self._retries.failed(failure)
            else:
                self._retries.worked()
                if frame:
                    yield frame
                pause_s = began_s + self._options.every_s - self._clock()
            self._say_tally()
            self._stopped.wait(max(0.0, pause_s))

    def kept(self, frames: int) -> None:
        """Nothing is acknowledged to a server that is polled."""

    def stop(self, wait: bool = True) -> None:  # noqa: ARG002 (there is nothing to wait for)
        """Poll no more, and give up on an answer that has not come."""
        self._stopped.set()
        self._get.stop()

    def close(self) -> None:
        """No connection is kept between polls."""

    def _poll(self) -> list[bytes]:
        is_fresh = self._clock() - self._changed_s < UNCHANGED_S
        answer = self._get.get(self._validators if is_fresh else {})
        self._tally["polls"] += 1
        if answer.body is None:
            self._tally["unchanged"] += 1
            return []
        frame = self._read(answer, answer.body) if answer.body.strip() else []
        # Kept only of an answer that could be read: one that could not must be sent again.
        self._validators, self._changed_s = answer.validators, self._clock()
        return frame

    def _read(self, answer: Answer, body: bytes) -> list[bytes]:
        """What is new in an answer. Failed if it is none of a feed."""
        if not self._is_named and not self._has_read:
            self._look(answer, body)
        reader = self._reader()
        before = reader.counts.copy()
        frame = reader.take(body)
        if reader.unreadable:
            what = "GTFS-realtime message" if self._format == GTFS else "JSON of pings"
            raise Failed(f"answers with what is no {what} ({reader.unreadable})")
        self._tally.update({name: reader.counts[name] - before[name] for name in ("read", "repeats", "refused")})
        self._say_fields(reader.counts)
        return frame

    @property
    def _has_read(self) -> bool:
        """Whether any answer had a ping: until then the last one may have been an error's, in another form."""
        return self._unrepeated is not None and self._unrepeated.counts["read"] > 0

    def _look(self, answer: Answer, body: bytes) -> None:
        """See what the answers are; what the ones before were, by which nothing was read, does not count."""
        format_, why = _seen(answer.content_type, body)
        if format_ != self._format:
            self._format, self._why, self._unrepeated = format_, why, None

    def _reader(self) -> Unrepeated:
        if self._unrepeated is None:
            self._require_unit()
            read = GTFS_REALTIME if self._format == GTFS else self._options.json
            self._unrepeated = Unrepeated(read, self._options.max_bytes, VEHICLES_MAX)
            title = "GTFS-realtime" if self._format == GTFS else "JSON"
            self._say(f"{self._get.name}: {title} {self._why}, polled every {self._options.every_s:g} s")
        return self._unrepeated

    def _require_unit(self) -> None:
        if self._format == GTFS and self._options.json is not JSON:
            raise ConfigError(
                f"source: expected no keys for {self._get.name}, which is GTFS-realtime {self._why}: its pings go on "
                "in the contract's form, and workers would read all messages by [source]"
            )
        if self.unit not in (None, self._options.unit):
            raise ConfigError(
                f"expected speed.unit = {self.unit!r} for {self._get.name}, which is GTFS-realtime {self._why}, "
                f"got {self._options.unit!r}"
            )

    def _say_fields(self, counts: Counter[str]) -> None:
        """Which field plates are from, when a field comes up for the first time."""
        fields = {field for field in (FROM_LICENSE_PLATE, FROM_ID) if counts[field]}
        if fields != self._plates_said:
            self._plates_said = fields
            for sentence in sentences(counts):
                self._say(f"{self._get.name}: {sentence}")

    def _say_tally(self) -> None:
        if self._clock() - self._said_s < SAY_S:
            return
        tally, self._tally, self._said_s = self._tally, Counter(), self._clock()
        new = tally["read"] + tally["refused"] - tally["repeats"]
        answers = f"{counted(tally['polls'], 'answer')} in the last minute, {tally['unchanged']:,} unchanged"
        repeats = counted(tally["repeats"], "repeat")
        self._say(f"{self._get.name}: {answers}; {counted(new, 'new ping')}, {repeats}, {tally['refused']:,} refused")


def _known(setting: str, name: str) -> tuple[str, str]:
    """The format as far as it is known before any answer, and by what."""
    if setting != "auto":
        return setting, "by live.format"
    if name.lower().removesuffix(".gz").endswith(".pb"):
        return GTFS, "by its name"
    return "", ""


def _seen(content_type: str, body: bytes) -> tuple[str, str]:
    """The format of an answer, and by what. Failed if it is neither.

    >>> _seen("application/x-protobuf", b"..."), _seen("", b' {"results": []}')
    (('gtfs-rt', 'by its content type'), ('json', 'by its content'))
    """
    if "protobuf" in content_type:
        return GTFS, "by its content type"
    if content_type.endswith(("/json", "+json")):
        return PLAIN_JSON, "by its content type"
    start = trim(body)[:1]
    if start in (b"{", b"[", b'"') and "html" not in content_type:
        return PLAIN_JSON, "by its content"
    # In protobuf this byte begins the first field, which is the header of every GTFS-realtime message.
    if body.startswith(b"\n") and not content_type.startswith("text/"):
        return GTFS, "by its content"
    raise Failed("answers with neither GTFS-realtime nor JSON", is_final=True)
