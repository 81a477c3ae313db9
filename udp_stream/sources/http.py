"""Addresses that are polled: GTFS-realtime, JSON or XML by HTTP, within limits of time, bytes and
redirects.

aiohttp checks certificates, names, and that a body is as long as was promised. The time for an
answer is for all of it: a server that sends a byte a second is given up. Redirects are followed
here, by a rule of ours:

**The token goes to the address that was named, and to no other scheme, host or port.** A redirect
elsewhere is followed without it, and is not followed at all from https to http, or where the server
has put the token into the new address.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import SplitResult, unquote, unquote_plus, urljoin, urlsplit

from udp_stream.base.errors import ConfigError, UsageError, needs
from udp_stream.base.files import secret_of, tls_context
from udp_stream.base.logs import Trouble, WarningText, counted
from udp_stream.base.units import parse_duration
from udp_stream.base.version import __version__
from udp_stream.pings.advice import is_page, no_pings
from udp_stream.pings.snapshots import (
    FORGOTTEN_S,
    FROM_ID,
    FROM_LICENSE_PLATE,
    MOVED,
    OTHER_FEEDS,
    STANDING,
    RepeatFilter,
    gtfs_formats,
)
from udp_stream.pings.texts import trim
from udp_stream.release.events import duration_in_words
from udp_stream.settings import Settings
from udp_stream.settings.sections import LiveSection
from udp_stream.sources.certificates import note_shown
from udp_stream.sources.files import GTFS_ENDS, GzipError, inflated
from udp_stream.sources.live import ConnectedSource, SourceFailure, failure_of
from udp_stream.sources.recordings import (
    SNAPSHOT_BYTES_MAX,
    VEHICLES_MAX,
    MessageSink,
    moved_share,
    require_gtfs,
    sentences,
)

if TYPE_CHECKING:
    from aiohttp import ClientResponse

REDIRECTS_MAX = 5
_REDIRECTS = {301, 302, 303, 307, 308}
_LATER = {408, 425, 429}
_SAID = {
    404: ": nothing is there; ask its publisher for the feed's address, and start again with it",
    429: ": it was asked too often; a longer live.every asks less",
}
_BLOCK_BYTES = _HEADER_MAX = 2**16
SOFTWARE = f"udp-stream/{__version__}"

_ACCEPT = "application/x-protobuf, application/json;q=0.9, */*;q=0.5"


class HttpAnswer(NamedTuple):
    """A server's answer. `body` is None if it is unchanged since the answer that had the
    validators."""

    body: bytes | None
    content_type: str
    validators: dict[str, str]


class HttpGet:
    """Gets an address, again and again. UsageError for an address that cannot be asked, ConfigError
    for a bad token file. An answer has at most `max_bytes`, decompressed."""

    def __init__(
        self, address: str, live: LiveSection, max_bytes: int = SNAPSHOT_BYTES_MAX
    ) -> None:
        with needs("HTTP client", "sources"):
            import aiohttp  # noqa: F401 (so that its absence is said before anything else)
        self._parts = _checked(address)
        self._live = live
        self._max_bytes = max_bytes
        self._timeout_s = parse_duration(live.timeout)
        self._tls = tls_context("live", live.ca_file)
        self.certificate_s = math.inf
        note_shown(self._tls, partial(setattr, self, "certificate_s"))
        self._is_stopped = False
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None] | None = None
        _ = self._token()  # a bad file is to be an error at the start, not at the first poll

    @property
    def name(self) -> str:
        """The address for people: without its query, which may hold a key."""
        return f"{self._parts.scheme}://{self._parts.netloc}{self._parts.path}"

    def get(self, validators: dict[str, str]) -> HttpAnswer:
        """The answer of the address; `validators` are those of an earlier answer. Failed if there
        is no good answer."""
        from aiohttp import ClientError

        try:
            return asyncio.run(self._answered(validators))
        except (ClientError, OSError, ValueError, asyncio.CancelledError) as error:
            raise self._failure(error) from None  # its text may quote the server, or the address

    def stop(self) -> None:
        """End a call that is going on, and those to come, with Failed. For another thread than that
        of `get`."""
        self._is_stopped = True
        match self._running:
            case loop, asyncio.Task() as task:
                with suppress(RuntimeError):  # it has ended meanwhile
                    loop.call_soon_threadsafe(task.cancel)

    def _token(self) -> str:
        """Read for each call: tokens of the exchange expire, and are renewed by a program that
        writes the file."""
        return secret_of("live.token_file", self._live.token_file) if self._live.token_file else ""

    async def _answered(self, validators: dict[str, str]) -> HttpAnswer:
        from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector
        from yarl import URL

        self._running = asyncio.get_running_loop(), asyncio.current_task()
        if self._is_stopped:  # before there was a task that `stop` could cancel
            raise SourceFailure("was stopped")
        try:
            token = self._token()
        except ConfigError as error:  # while it is being renewed, perhaps
            raise SourceFailure(f"was not asked: {error}") from None
        address = self._parts.geturl()
        headers = {
            "Accept": _ACCEPT,
            "Accept-Encoding": "gzip",
            "User-Agent": SOFTWARE,
            **validators,
        }
        async with (
            asyncio.timeout(self._timeout_s),
            ClientSession(
                connector=TCPConnector(ssl=self._tls, force_close=True), timeout=ClientTimeout(), headers=headers,
                cookie_jar=DummyCookieJar(), auto_decompress=False, max_line_size=_HEADER_MAX,
                max_field_size=_HEADER_MAX,
            ) as session,
        ):  # fmt: skip
            for _ in range(REDIRECTS_MAX + 1):
                is_ours = token and _origin(urlsplit(address)) == _origin(self._parts)
                own = {self._live.token_header: token} if is_ours else {}
                async with session.get(
                    URL(address, encoded=True), headers=own, allow_redirects=False
                ) as response:
                    if response.status not in _REDIRECTS or not (
                        location := response.headers.get("Location")
                    ):
                        return await self._judged(response)
                try:
                    target = urljoin(address, location)
                    parts = _checked(target)
                except (ValueError, UsageError):
                    raise SourceFailure("redirects to what is no address", is_final=True) from None
                if urlsplit(address).scheme == "https" and parts.scheme != "https":
                    raise SourceFailure("redirects from https to http: not followed", is_final=True)
                elsewhere = _origin(parts) != _origin(self._parts)
                if token and elsewhere and _carries(target, token):
                    raise SourceFailure(
                        "redirects to another host with the token in the address: not followed",
                        is_final=True,
                    )
                address = target
        raise SourceFailure(f"redirects more than {REDIRECTS_MAX} times", is_final=True)

    async def _judged(self, response: ClientResponse) -> HttpAnswer:
        status = response.status
        headers = response.headers
        kind = headers.get("Content-Type", "").partition(";")[0].strip().lower()
        pairs = (
            ("If-None-Match", headers.get("ETag")),
            ("If-Modified-Since", headers.get("Last-Modified")),
        )
        validators = {name: value for name, value in pairs if value}
        if status == 304:
            return HttpAnswer(None, kind, {})
        if status == 204:
            return HttpAnswer(b"", kind, validators)
        if status == 200:
            if headers.get("Content-Encoding", "identity").strip().lower() not in (
                "identity",
                "gzip",
                "x-gzip",
            ):
                raise SourceFailure("answers in an encoding that was not asked for", is_final=True)
            return HttpAnswer(await self._body(response), kind, validators)
        if status in (401, 403):
            renew = "does not accept the token: put a new one into live.token_file, which is read for each poll"
            said = renew if self._live.token_file else "asks for a token (live.token_file)"
            raise SourceFailure(f"answers {status}: it {said}", is_final=True)
        is_passing = status >= 500 or status in _LATER
        said = _SAID.get(status, "")
        raise SourceFailure(
            f"answers {status}{said}",
            is_final=not is_passing,
            wait_s=_seconds(headers.get("Retry-After")),
        )

    async def _body(self, response: ClientResponse) -> bytes:
        packed = bytearray()
        body = bytearray()
        async for block in response.content.iter_chunked(_BLOCK_BYTES):
            packed += block
            self._require_size(packed)
        for block in inflated(iter([bytes(packed)])):
            body += block
            self._require_size(body)
        return bytes(body)

    def _require_size(self, body: bytearray) -> None:
        if len(body) > self._max_bytes:
            raise SourceFailure(f"answers with more than {self._max_bytes:,} bytes")

    def _failure(self, error: BaseException) -> SourceFailure:
        """The meaning of an error, in words that hold nothing of the server's and nothing of the
        address."""
        if self._is_stopped:
            return SourceFailure("was stopped")
        if isinstance(error, GzipError):
            return SourceFailure(f"answers with gzip data that {error}")
        if isinstance(error, TimeoutError):
            return SourceFailure(
                f"gave no whole answer within {self._timeout_s:g} s (live.timeout)"
            )
        return failure_of(error, "cut the answer short")


def _checked(address: str) -> SplitResult:
    """The parts of an address. UsageError, without the address, if it cannot be asked or has a
    password in it."""
    try:
        parts = urlsplit(address)
        host = parts.hostname or ""
        _ = parts.port, host.encode("idna")
    except (ValueError, UnicodeError):
        host = ""
        parts = urlsplit("")
    if (
        not host
        or parts.scheme not in ("http", "https")
        or not address.isascii()
        or not address.isprintable()
    ):
        raise UsageError(
            "expected http:// or https:// with a host, all of it printable ASCII, got something else"
        )
    if " " in address:
        raise UsageError("expected an address without spaces: write %20")
    if "@" in parts.netloc:
        raise UsageError(
            "expected an address without a password, which other users could see: use live.token_file"
        )
    return parts


def _carries(address: str, token: str) -> bool:
    """Whether the token is in an address, however it is percent-encoded there: a gateway hands the
    whole address that was asked to its login page."""
    while token not in address and token not in unquote_plus(address):
        if (decoded := unquote(address)) == address:
            return False
        address = decoded
    return True


def _origin(parts: SplitResult) -> tuple[str, str | None, int]:
    return parts.scheme, parts.hostname, parts.port or {"https": 443}.get(parts.scheme, 80)


def _seconds(retry_after: str | None) -> float | None:
    if retry_after is None:
        return None
    try:
        return max(0.0, float(int(retry_after)))
    except OverflowError:  # digits beyond floating point
        return math.inf
    except ValueError:
        with suppress(ValueError, OverflowError, OSError):
            return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    return None


UNCHANGED_S = 300.0
"""As long as a server is believed that nothing has changed (`ETag`, `Last-Modified`); then it is
asked without them."""

LOG_S = 60.0
"""Between two lines of what was polled."""

GTFS = "gtfs-rt"
PLAIN_JSON = "json"  # which XML is read as


class PolledSource(ConnectedSource):
    """An address that is polled. A poll is a snapshot of the fleet: its new pings are a frame, as
    messages in the contract's form. Errors as of `HttpGet`, and of GTFS-realtime as soon as the
    format is known."""

    def __init__(
        self,
        name: str,
        settings: Settings,
        log_message: MessageSink,
        _folder: Path | None = None,
        max_bytes: int = SNAPSHOT_BYTES_MAX,
    ) -> None:
        self._get = HttpGet(name, settings.live, max_bytes)
        self._every_s = parse_duration(settings.live.every)
        super().__init__(self._get.name, settings, log_message, first_pause_s=self._every_s)
        self._settings = settings
        self.format = settings.form.format  # pings are handed on as the feed's JSON has them
        self._kind, self._why = _known(settings.live.format, self.name)
        self._is_named = bool(self._kind)
        self._require_unit()
        self._reader: RepeatFilter | None = None
        self._due_s = 0.0
        self._validators = dict[str, str]()
        self._changed_s = self._said_s = time.monotonic()
        self._tally: Counter[str] = Counter()
        self._plates_said: set[str] = set()
        self._lack = Trouble()

    def open(self) -> None:
        pass

    def read(self) -> Sequence[tuple[None, bytes]]:
        self._log_tally()
        self.stopped.wait(max(0.0, self._due_s - time.monotonic()))
        self._began_s = time.monotonic()
        self._due_s = 0.0
        is_fresh = self._began_s - self._changed_s < UNCHANGED_S
        # Else what is forgotten would be handed on again with the next change, whoever makes it.
        is_fresh &= self._began_s // FORGOTTEN_S == self._changed_s // FORGOTTEN_S
        self._answer = self._get.get(self._validators if is_fresh else {})
        if self._get.certificate_s < math.inf:
            self.contact.certificate_s = self._get.certificate_s
        self._tally["polls"] += 1
        if self._answer.body is not None:
            return [(None, self._answer.body)]
        self._tally["unchanged"] += 1
        self._due_s = self._began_s + self._every_s
        return []

    def acknowledge(self, ids: Sequence[None]) -> None:
        """Nothing is acknowledged to a server that is polled."""

    def take(self, message: bytes) -> list[bytes]:
        frame = self._read(message) if message.strip() else []
        if not message.strip():
            self._look_for_vehicles(Counter())
        # Kept only of an answer that could be read: another must be sent again.
        self._validators, self._changed_s = self._answer.validators, time.monotonic()
        self._due_s = self._began_s + self._every_s
        return frame

    def stop(self, wait: bool = True) -> None:
        super().stop(wait)
        self._get.stop()

    def _read(self, body: bytes) -> list[bytes]:
        """The new pings of an answer. Failed if it cannot be read."""
        if is_page(trim(body)):
            page = (
                "a page for people (HTML) and no feed: open the address in a browser, it says why"
            )
            raise SourceFailure(f"answers with {page}", is_final=True)
        if not self._is_named and not (self._reader is not None and self._reader.counts["read"]):
            # Until an answer had a ping, the last may have been an error, in another format.
            kind, why = _seen(self._answer.content_type, body)
            if kind != self._kind:
                self._kind = kind
                self._why = why
                self._reader = None
        if self._reader is None:
            self._require_unit()
            read = gtfs_formats(self._settings.form)[0] if self._kind == GTFS else self.format
            self._reader = RepeatFilter(read, SNAPSHOT_BYTES_MAX, VEHICLES_MAX)
            title = "GTFS-realtime" if self._kind == GTFS else "JSON"
            self.log_message(f"{self.name}: {title} {self._why}, polled every {self._every_s:g} s")
        reader = self._reader
        before = self._reader.counts.copy()
        frame = reader.take(body, time.monotonic())
        if reader.unreadable:
            what = "GTFS-realtime message" if self._kind == GTFS else "JSON of pings"
            held = no_pings(body, self._kind == GTFS) or "JSON of another kind"
            raise SourceFailure(f"answers with what is no {what} ({reader.unreadable}): {held}")
        found = Counter({name: count - before[name] for name, count in reader.counts.items()})
        self._tally.update({name: found[name] for name in ("read", "repeats", "refused")})
        fields = {
            field for field in (FROM_LICENSE_PLATE, FROM_ID, STANDING) if reader.counts[field]
        }
        fields |= {MOVED} if moved_share(reader.counts) else set()
        if fields != self._plates_said:
            self._plates_said = fields
            for sentence in sentences(reader.counts):
                self.log_message(f"{self.name}: {sentence}")
        self._look_for_vehicles(found)
        return frame

    def _look_for_vehicles(self, found: Counter[str]) -> None:
        """Say while answers have no ping, with what they have in its place, and when they have
        pings again."""
        if found["read"]:
            if self._lack.is_on:
                past = duration_in_words(self._lack.end())
                self.log_message(
                    f"{self.name} answers with vehicles again, after {past} without any"
                )
            return
        others = [counted(found[what], what) for what in OTHER_FEEDS.values() if found[what]]
        if others:
            what = "name the address of its vehicle positions"
        elif found["refused"]:
            what = "`doctor FILE` of a saved answer says what is wrong"
            others = ["what is refused"]
        else:
            what = "at night it may be right; else ask its publisher"
        if self._lack.is_due(what):
            has = f"{' and '.join(others) or 'nothing'} and no vehicle"
            lasts = (
                f" for {duration_in_words(self._lack.lasted_s)}" if self._lack.lasted_s >= 1 else ""
            )
            self.log_message(WarningText(f"{self.name} answers with {has}{lasts}: {what}"))

    def _require_unit(self) -> None:
        if self._kind == GTFS:
            require_gtfs(
                self._settings, f"{self.name}, GTFS-realtime {self._why}", self.log_message
            )

    def _log_tally(self) -> None:
        if time.monotonic() - self._said_s < LOG_S:
            return
        tally, self._tally, self._said_s = self._tally, Counter(), time.monotonic()
        new = tally["read"] + tally["refused"] - tally["repeats"]
        answers = f"{counted(tally['polls'], 'answer')} in the last minute, {tally['unchanged']:,} unchanged"
        repeats = counted(tally["repeats"], "repeat")
        self.log_message(
            f"{self.name}: {answers}; {counted(new, 'new ping')}, {repeats}, {tally['refused']:,} refused"
        )


def _known(setting: str, name: str) -> tuple[str, str]:
    if setting != "auto":
        return setting, "by live.format"
    if name.lower().removesuffix(".gz").endswith(GTFS_ENDS):
        return GTFS, "by its name"
    return "", ""


def _seen(content_type: str, body: bytes) -> tuple[str, str]:
    """The format of an answer, and by what. Failed if it is neither."""
    if "protobuf" in content_type:
        return GTFS, "by its content type"
    if content_type.endswith(("/json", "+json")):
        return PLAIN_JSON, "by its content type"
    if trim(body)[:1] in (b"{", b"[", b'"', b"<") and "html" not in content_type:
        return PLAIN_JSON, "by its content"
    # In protobuf this byte begins the first field, which is the header of every GTFS-realtime
    # message.
    if body.startswith(b"\n") and not content_type.startswith("text/"):
        return GTFS, "by its content"
    found = no_pings(body, is_gtfs=True)
    raise SourceFailure(
        f"answers with neither GTFS-realtime nor JSON nor XML: {found}", is_final=True
    )
