"""The dashboard over HTTP: released records, notices of what is new, and the page. Nothing is asked
of a client.

A slot is packed once, and every client gets the same bytes, with an ETag. A stream carries the
versions of slots alone, and a client fetches those that it lacks. After a reconnect it needs only
`/v1/slots`.

aiohttp reads requests and writes heads. Bodies go straight to the socket, as aiohttp's transport
would copy them. A stream leaves aiohttp: it is a socket without a task. A client that reads nothing
for `WRITE_S`, or does not take the whole of a notice, is dropped.
"""

from __future__ import annotations

import asyncio
import os
import re
import resource
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlencode

import msgspec
from aiohttp import hdrs, web
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from udp_stream.base.errors import DependencyUnavailable
from udp_stream.base.logs import WARNING, counted, log_message
from udp_stream.dashboard.branding import POLICY, Branding
from udp_stream.dashboard.history import DamagedHistory, TimeRange, reading
from udp_stream.dashboard.places import Places, collection
from udp_stream.dashboard.slots import KINDS, Slots, milliseconds_of, of_cell
from udp_stream.dashboard.snapshot import CompressedText, Kind, Slot, compressed
from udp_stream.export_formats import LINES, TEXTS, PlaceOf
from udp_stream.release.record import described, schema_of
from udp_stream.release.typical import CLASSES, DAYS_MAX, TypicalHour
from udp_stream.windows.grid import Grid

STREAMS_MAX = 2_000
# Of this process, where the system allows it; often it has 1,024 until it asks.
FILES_MAX = 3 * STREAMS_MAX

ACCEPTED = 8
BACKLOG = 4_096
"""Connections that are accepted in a turn of the loop, and that may wait: all clients fetch a new
slot at once."""

IDLE_S = 15.0
COMMENT_S = 15.0
WRITE_S = 10.0
"""Timeout in seconds of a write to a connection; between two lines of an idle stream, as proxies
close silent ones; to take `SEND_BYTES` in, but for those that the kernel keeps."""

SEND_BYTES = 256 * 1024
NOTICE_BYTES = 8 * 1024
UNPACK_BYTES = 16 * 1024
KEPT_BYTES = 128 * 1024  # what the kernel keeps of an answer; Linux takes it twice
ANSWERS_MAX = 32  # answers of a cell that are kept, and as many in another form

STATIC = Path(__file__).parent / "static"

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
    "Server": "udp-stream",
}
OPEN = {"Access-Control-Allow-Origin": "*", "Access-Control-Expose-Headers": "ETag"}

STREAMED = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no",
                   "Connection": "close"}  # fmt: skip
SUFFIXES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

SPAN = "from", "to"
RECORDS = "slot", "cell", "form", *SPAN
TYPICAL = "cell", "day", "form"
RECORDS_MAX = 100_000  # of an answer
AT_ONCE = 100  # slots of an answer that waits for no other
BULK_MAX = 8
AGAIN_S = 10  # answers of all cells in many slots that are made at a time; seconds until another
CHILD_NICE = 10

_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_GZIP = re.compile(r"\bgzip\b(?!\s*;\s*q=0(\.0*)?\s*(,|$))")

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Lane:
    """Answers that are not packed with a slot, made beside the loop in threads that no other lane
    waits for. The latest of kept slots are kept. At most `most` requests are in it, from asking to
    having all: then 503."""

    def __init__(self, threads: int, most: int) -> None:
        self._threads = ThreadPoolExecutor(threads)
        self._free = most
        self.long = asyncio.Lock()
        self.kept = lru_cache(maxsize=ANSWERS_MAX)(_made)

    def __enter__(self) -> None:
        if not self._free:
            again = {hdrs.RETRY_AFTER: str(AGAIN_S)}
            raise web.HTTPServiceUnavailable(
                text=f"at most {BULK_MAX} whole histories at a time\n", headers=again
            )
        self._free -= 1

    def __exit__(self, *_: object) -> None:
        self._free += 1

    async def make(self, make: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, make, *arguments)


@dataclass
class Dashboard:
    """Slots; the statement of privacy and places, if there are any; and how the page looks. The
    thread that feeds the slots calls `announce`; all else belongs to the thread of the server's
    loop."""

    slots: Slots
    statement: Callable[[], bytes | None] = lambda: None
    places: Places | None = None
    branding: Branding = field(default_factory=Branding)
    is_ready: bool = False
    holidays: Sequence[str] = ()
    typical: tuple[bytes, ...] | None = None
    _typical_days: tuple[str, str] = "", ""
    _typical_lock: threading.Lock = field(default_factory=threading.Lock)
    streams: set[socket.socket] = field(default_factory=set)
    loop: asyncio.AbstractEventLoop | None = None
    _notified_change: int = 0
    _placed: tuple[str, CompressedText] = ("", collection())  # of outlines with this digest
    _is_elsewhere: bool = False
    _of_cells: _Lane = field(default_factory=lambda: _Lane(2, FILES_MAX))
    _of_slots: _Lane = field(default_factory=lambda: _Lane(1, FILES_MAX))
    _bulk: _Lane = field(default_factory=lambda: _Lane(1, BULK_MAX))

    def announce(self, changed: bool) -> None:
        if self.places is not None:
            self._place(self.places)
        self.is_ready = True
        self.make_typical()
        if changed and self.loop is not None:
            self.loop.call_soon_threadsafe(self.tell)

    def _place(self, places: Places) -> None:
        outlines = self.slots.shown.outlines
        if outlines.digest == self._placed[0]:
            return
        cells = msgspec.json.decode(outlines.opened().read(), type=dict[str, msgspec.Raw])
        text, named = places.geojson(cells)
        if cells and not named and not self._is_elsewhere:
            self._is_elsewhere = True  # said once
            where = f"no stop is in one of {counted(len(cells), 'cell')}, or beside it"
            log_message(
                f"the timetable is not of this city: {where}; the page has no names",
                "no_names",
                level=WARNING,
            )
        self._placed = outlines.digest, text

    def tell(self) -> None:
        """Send every stream notices of what has changed since the last, or a line that says
        nothing."""
        shown = self.slots.shown
        text = b"".join(
            _notice(slot) for slot in shown.slots if slot.change > self._notified_change
        )
        self._notified_change = shown.change
        for stream in tuple(self.streams):
            self._log_message(stream, text or b": nothing new\n\n")

    def _log_message(self, stream: socket.socket, text: bytes) -> None:
        with suppress(OSError):  # it is gone, or takes nothing
            if stream.send(text) == len(text):
                return
        _forget(stream)
        self.leave(stream)

    def leave(self, stream: socket.socket) -> None:
        """End a stream: its client has closed it, or says what nobody asked for."""
        asyncio.get_running_loop().remove_reader(stream)
        self.streams.discard(stream)
        stream.close()

    async def end(self, _: web.Application) -> None:
        for stream in tuple(self.streams):
            self.leave(stream)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        _parameters(request)
        if request.method == hdrs.METH_HEAD:
            return web.Response(headers=STREAMED)
        if len(self.streams) >= STREAMS_MAX:
            raise web.HTTPServiceUnavailable(text=f"at most {STREAMS_MAX} streams at a time\n")
        if request.transport is not None:
            stream = request.transport.get_extra_info("socket").dup()
            request.transport.abort()  # of aiohttp's way to the client; the connection stays
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, NOTICE_BYTES)
            self.streams.add(stream)
            asyncio.get_running_loop().add_reader(stream, self.leave, stream)
            lines = [f"{name}: {value}\r\n" for name, value in (HEADERS | OPEN | STREAMED).items()]
            head = f"HTTP/1.1 200 OK\r\n{''.join(lines)}\r\nretry: 2000\n\n".encode()
            self._log_message(stream, head + b"".join(map(_notice, self.slots.shown.slots[-1:])))
        return web.Response()  # for nobody: there is no way to the client any more

    async def shown(self, name: str, request: web.Request) -> web.StreamResponse:
        return await _answer(request, getattr(self.slots.shown, name), "application/json")

    async def places_of(self, request: web.Request) -> web.StreamResponse:
        return await _answer(request, self._placed[1], TEXTS["geojson"].media_type)

    def make_typical(self) -> None:
        """Make the typical week anew where there are other days, in a thread of its own; with a
        single day there is none."""
        if not self.slots.shown.slots:
            return
        first, last = days = self.slots.days()
        if first == last or days == self._typical_days:
            return
        self._typical_days = days
        threading.Thread(target=self._make_typical, daemon=True).start()

    def _make_typical(self) -> None:
        with self._typical_lock:  # the last that was begun stands
            self._made_typical()

    def _made_typical(self) -> None:
        """Make the typical week in a process of its own: it takes minutes and memory that readers
        need."""
        slots = self.slots.shown.slots
        slot_ms = milliseconds_of(slots[-1].end) - slots[-1].start_ms
        given = msgspec.json.encode(self.holidays).decode()
        command = [
            sys.executable,
            "-m",
            "udp_stream",
            "--quiet",
            "typical",
            "-",
            "--set",
            f"dashboard.holidays={given}",
        ]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            os.setpriority(os.PRIO_PROCESS, child.pid, CHILD_NICE)
            if child.stdin is None or child.stdout is None:
                return
            with suppress(OSError), closing(child.stdin):
                child.stdin.writelines(self.slots.lines_of_newest(DAYS_MAX * 86_400_000 // slot_ms))
            rows = [msgspec.json.decode(line, type=TypicalHour) for line in child.stdout]
        if child.returncode == 0:
            places = self.places
            named = (replace(row, place=places and places.name_of(row.cell)) for row in rows)
            self.typical = tuple(msgspec.json.encode(row) + b"\n" for row in named)

    async def usual(self, request: web.Request) -> web.StreamResponse:
        """The typical week, of a cell or a class of days."""
        asked = _parameters(request, TYPICAL)
        day = asked.get("day")
        cell, form = self._cell_and_form(asked)
        if day is not None and day not in CLASSES:
            raise _refused(f"day: expected {', '.join(CLASSES)}")
        if self.typical is None:
            raise web.HTTPServiceUnavailable(text="the typical week is being made\n")
        lane = self._of_slots if cell is None else self._of_cells
        text = await lane.make(_of_week, self.typical, cell, day, form, self.slots.grid)
        more: dict[str, str] = {hdrs.CONTENT_DISPOSITION: f'inline; filename="typical.{form}"'}
        return await _answer(request, text, TEXTS[form].media_type, more, TYPICAL)

    async def privacy(self, request: web.Request) -> web.StreamResponse:
        statement = self.statement()
        privacy = self.slots.shown.privacy
        found = msgspec.Raw(statement) if statement is not None else None
        spent = await self._of_cells.make(self.slots.spent)
        year = None if privacy is None else privacy.of_a_year
        told = {"statement": found, "newest_release": privacy, "year_epsilon": year, "spent": spent}
        body = msgspec.json.encode(told) + b"\n"
        return await _answer(request, compressed([body]), "application/json")

    async def listing(self, request: web.Request) -> web.StreamResponse:
        """The slots that are kept; with a span, those of the span."""
        asked = _parameters(request, SPAN)
        if not asked:
            return await self.shown("listing", request)
        found = await asyncio.to_thread(self.slots.listed_in, _span(asked), RECORDS_MAX)
        return await _answer(request, found, "application/json", known=SPAN)

    async def _of_span(
        self,
        kind: Kind,
        asked: Mapping[str, str],
        cell: str | None,
        form: str,
        request: web.Request,
    ) -> web.StreamResponse:
        """Records of a span, whole slots up to `RECORDS_MAX`; a link names the next page."""
        span = _span(asked)
        lane = self._bulk if cell is None else self._of_cells
        with lane:
            found = await lane.make(self.slots.slots_in, span, kind)
            taken = 0
            number = 0
            for _, lines in found:
                number += lines if cell is None else min(lines, 1)
                if taken and number > RECORDS_MAX:
                    break
                taken += 1
            async with lane.long if taken > AT_ONCE else nullcontext():
                body = await lane.make(
                    self._joined, kind, [start for start, _ in found[:taken]], cell, form
                )
            more: dict[str, str] = {
                hdrs.CONTENT_DISPOSITION: f'attachment; filename="{kind}.{form}"'
            }
            if taken < len(found):
                place = dict(asked) | {"from": iso_of(found[taken][0])}
                more[hdrs.LINK] = f'<{request.path}?{urlencode(place)}>; rel="next"'
            return await _answer(request, body, TEXTS[form].media_type, more, RECORDS)

    def _joined(
        self, kind: Kind, starts: Sequence[int], cell: str | None, form: str
    ) -> CompressedText:
        try:
            with reading():
                return _made(
                    kind,
                    self.slots.parts_of(kind, starts),
                    cell,
                    form,
                    self.slots.grid,
                    self._place_of,
                )
        except DamagedHistory as error:
            self.slots.lose(error)
            raise web.HTTPServiceUnavailable(
                text="the history is damaged: what it had is not kept any more\n"
            ) from error

    @property
    def _place_of(self) -> PlaceOf | None:
        return self.places.name_of if self.places else None

    def _cell_and_form(self, asked: Mapping[str, str]) -> tuple[str | None, str]:
        cell = asked.get("cell")
        form = asked.get("form", LINES)
        if form not in TEXTS:
            raise _refused(f"form: expected {', '.join(TEXTS)}")
        if cell is not None and re.fullmatch(self.slots.grid.id_form, cell) is None:
            raise _refused("cell: expected the id of a cell, as records have it")
        return cell, form

    async def records(self, kind: Kind, request: web.Request) -> web.StreamResponse:
        asked = _parameters(request, RECORDS)
        cell, form = self._cell_and_form(asked)
        if asked.keys() & set(SPAN):
            if "slot" in asked:
                raise _refused("slot: expected no from and no to beside it")
            return await self._of_span(kind, asked, cell, form, request)
        slots = self.slots.shown.slots
        name = cell or ""
        if "slot" in asked or cell is None:
            slot = await self._slot(asked.get("slot", "latest"))
            slots = (slot,)
            name = re.sub("[^0-9T]+", "-", slot.start[:19]) + f"-{name}" * bool(name)
        parts = tuple(slot.parts[kind] for slot in slots)
        if form == LINES and cell is None:
            (answer,) = parts
        else:
            lane = self._of_slots if cell is None else self._of_cells
            answer = await lane.make(
                lane.kept, kind, parts, cell, form, self.slots.grid, self._place_of
            )
        way = "inline" if form == LINES else "attachment"
        file = f'{way}; filename="{"synthetic-" * self.slots.is_synthetic}{kind}-{name}.{form}"'
        return await _answer(
            request, answer, TEXTS[form].media_type, {hdrs.CONTENT_DISPOSITION: file}, RECORDS
        )

    async def _slot(self, name: str) -> Slot:
        shown = self.slots.shown
        if name == "latest":
            if not shown.slots:
                raise web.HTTPNotFound(text="no slot is there yet\n")
            return shown.slots[-1]
        try:
            # A plus sign in an address is a space.
            start_ms = milliseconds_of(name.replace(" ", "+"))
        except (ValueError, OverflowError):
            raise _refused(
                "slot: expected latest, or a time with its offset, as slot_start in /v1/slots"
            ) from None
        slot = shown.slot_at(start_ms) or await asyncio.to_thread(self.slots.slot_at, start_ms)
        if slot is None:
            raise web.HTTPNotFound(
                text="no slot that starts then is kept: /v1/slots lists those that are\n"
            )
        return slot

    async def ready(self, _: web.Request) -> web.StreamResponse:
        if not self.is_ready:
            raise web.HTTPServiceUnavailable(text="the records are being read\n")
        return web.Response(text="ok\n")


def _notice(slot: Slot) -> bytes:
    return b"event: slot\ndata: %s\n\n" % msgspec.json.encode(
        {"slot_start": slot.start, "version": slot.version}
    )


def _span(asked: Mapping[str, str]) -> TimeRange:
    """Range of time of `from` and `to`: a local day, or a time with its offset."""
    ends = list[str | int | None]()
    for name in SPAN:
        text = asked.get(name, "").replace(" ", "+")
        try:
            ends.append(
                None if not text else text if _DAY.fullmatch(text) else milliseconds_of(text)
            )
        except (ValueError, OverflowError):
            raise _refused(
                f"{name}: expected a day such as 2024-01-08, or a time with its offset"
            ) from None
    since, until = ends
    return TimeRange(since, until)


def iso_of(time_ms: int) -> str:
    """A time that `from` takes."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat()


def _made(
    kind: Kind,
    parts: Iterable[CompressedText],
    cell: str | None,
    form: str,
    grid: Grid,
    place_of: PlaceOf | None,
) -> CompressedText:
    lines = (
        line for part in parts for line in (part.opened() if cell is None else of_cell(part, cell))
    )
    return compressed(TEXTS[form].pieces(lines, KINDS[kind], grid, place_of))


def _of_week(
    rows: Iterable[bytes], cell: str | None, day: str | None, form: str, grid: Grid
) -> CompressedText:
    parts = [
        f'"{name}":"{value}"'.encode() for name, value in (("cell", cell), ("day", day)) if value
    ]
    found = (row for row in rows if all(part in row for part in parts))
    return compressed(TEXTS[form].pieces(found, TypicalHour, grid, None))


def _parameters(request: web.Request, known: Sequence[str] = ()) -> Mapping[str, str]:
    """The parameters of the address; 400 for others, and for a parameter that is given twice."""
    for name in request.query:
        if name not in known:
            rule = f"expected {', '.join(known)}" if known else "this address takes none"
            raise _refused(f"unknown parameter {name[:40]!r}: {rule}")
        if len(request.query.getall(name)) > 1:
            raise _refused(f"{name}: expected it once")
    return request.query


def _refused(sentence: str) -> web.HTTPBadRequest:
    return web.HTTPBadRequest(text=f"{sentence}\n")


async def _answer(
    request: web.Request,
    text: CompressedText,
    kind: str,
    more: Mapping[str, str] | None = None,
    known: Sequence[str] = (),
) -> web.StreamResponse:
    _parameters(request, known)
    tag = f'"{text.digest}"'
    headers = {
        hdrs.ETAG: f"W/{tag}",
        hdrs.VARY: "Accept-Encoding",
        hdrs.CONTENT_TYPE: kind,
        **(more or {}),
    }
    has = request.headers.get(hdrs.IF_NONE_MATCH, "")
    if has == "*" or tag in [known_tag.strip().removeprefix("W/") for known_tag in has.split(",")]:
        return web.Response(status=304, headers=headers)
    is_packed = _GZIP.search(request.headers.get(hdrs.ACCEPT_ENCODING, "")) is not None
    answer = web.StreamResponse(
        headers=headers | ({hdrs.CONTENT_ENCODING: "gzip"} if is_packed else {})
    )
    answer.content_length = len(text.body) if is_packed else text.size
    await answer.prepare(request)
    if request.method != hdrs.METH_HEAD:
        await _send(request, _pieces(text, is_packed))
    return answer


def _pieces(text: CompressedText, is_packed: bool) -> Iterator[bytes | memoryview]:
    if is_packed:
        body = memoryview(text.body)
        yield from (body[at : at + SEND_BYTES] for at in range(0, len(body), SEND_BYTES))
    else:
        with text.opened() as file:
            yield from iter(partial(file.read, UNPACK_BYTES), b"")


async def _send(request: web.Request, pieces: Iterable[bytes | memoryview]) -> None:
    """Send each piece to the client's socket, behind the head; a client that does not take a piece
    in time is dropped."""
    transport = request.transport
    if transport is None:
        return
    try:
        if transport.get_write_buffer_size():
            raise TimeoutError  # it has not even taken the head
        with transport.get_extra_info("socket").dup() as connection:
            for piece in pieces:
                async with asyncio.timeout(WRITE_S):
                    await asyncio.get_running_loop().sock_sendall(connection, piece)
                await asyncio.sleep(0)  # a client that takes all at once is not alone
    except OSError:  # a TimeoutError is an OSError
        with suppress(OSError):
            _forget(transport.get_extra_info("socket"))
        transport.abort()


def _forget(connection: socket.socket) -> None:
    """Let the kernel forget, once the connection is closed, what was to be sent: it would wait for
    the client for minutes."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def _head(request: web.Request, response: web.StreamResponse) -> None:
    is_open = request.path.startswith(("/v1/", "/schema/"))
    for name, value in (HEADERS | (OPEN if is_open else {})).items():
        response.headers.setdefault(name, value)
    response.headers["Server"] = HEADERS["Server"]


class _Series(Collector):
    """The dashboard's own figures, at the moment of asking. They have no labels."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard

    def collect(self) -> Iterator[Metric]:
        slots = self._dashboard.slots.shown.slots
        name = "udp_stream_dashboard"
        newest_s = max((milliseconds_of(slot.end) for slot in slots), default=0) / 1000
        yield GaugeMetricFamily(
            f"{name}_clients", "Streams of notices that are open.", len(self._dashboard.streams)
        )
        yield GaugeMetricFamily(f"{name}_slots", "Slots that are kept.", len(slots))
        yield GaugeMetricFamily(
            f"{name}_newest_slot_timestamp_seconds", "End of the newest slot.", newest_s
        )
        yield CounterMetricFamily(
            f"{name}_records_refused", "Lines that were no record.", self._dashboard.slots.refused
        )


def application(dashboard: Dashboard) -> web.Application:
    """The routes."""
    registry = CollectorRegistry()
    registry.register(_Series(dashboard))

    async def metrics(_: web.Request) -> web.StreamResponse:
        return web.Response(
            body=generate_latest(registry), headers={hdrs.CONTENT_TYPE: CONTENT_TYPE_LATEST}
        )

    async def healthy(_: web.Request) -> web.StreamResponse:
        return web.Response(text="ok\n")

    routes: dict[str, Handler] = {
        "/v1/slots": dashboard.listing, "/v1/outlines": partial(dashboard.shown, "outlines"),
        "/v1/places": dashboard.places_of, "/v1/privacy": dashboard.privacy, "/v1/typical": dashboard.usual,
        "/v1/stream": dashboard.stream, "/healthz": healthy, "/readyz": dashboard.ready, "/metrics": metrics,
    }  # fmt: skip
    routes |= {f"/v1/{kind}": partial(dashboard.records, kind) for kind in KINDS}
    for of in KINDS.values():
        name = schema_of(of).split("/")[1]
        text = msgspec.json.format(msgspec.json.encode(described(of)), indent=2) + b"\n"
        routes[f"/schema/{name}.schema.json"] = _fixed(text, "application/schema+json")
    for file in STATIC.rglob("*"):
        if file.suffix in SUFFIXES:
            routes[f"/static/{file.relative_to(STATIC).as_posix()}"] = _fixed(
                file.read_bytes(), SUFFIXES[file.suffix]
            )
    policy = {"Content-Security-Policy": dashboard.branding.policy}
    for path, name in (("/", "index.html"), ("/privacy", "privacy.html")):
        page = compressed([dashboard.branding.page((STATIC / name).read_bytes())])
        routes[path] = partial(_answer, text=page, kind=SUFFIXES[".html"], more=policy)
        del routes[f"/static/{name}"]
    app = web.Application()
    app.on_response_prepare.append(_head)
    app.on_shutdown.append(dashboard.end)
    app.add_routes([web.get(path, handler) for path, handler in routes.items()])
    return app


def _fixed(body: bytes, kind: str) -> Handler:
    return partial(_answer, text=compressed([body]), kind=kind)


def listening(address: str) -> socket.socket:
    """A socket at HOST:PORT. DependencyUnavailable if the address is taken, or not this machine's."""
    host, _, port = address.rpartition(":")
    try:
        family, *_, place = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM
        )[0]
        found = socket.create_server(place[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise DependencyUnavailable(
            f"dashboard.listen: {address}: {why}: is another dashboard there?"
        ) from error
    found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KEPT_BYTES)  # connections inherit it
    if hasattr(
        socket, "TCP_DEFER_ACCEPT"
    ):  # Linux: a connection is none before something is asked on it
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 1)
    return found


def address_of(listener: socket.socket) -> str:
    """URL to open in a browser."""
    host, port, *_ = listener.getsockname()
    host = {"0.0.0.0": "localhost", "::": "localhost"}.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


@contextmanager
def serving(dashboard: Dashboard, address: str) -> Iterator[str]:
    """Serve at HOST:PORT in a thread of its own while the block runs; gives what to open in a
    browser."""
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # macOS has bounds that it does not tell
        wanted = FILES_MAX if most == resource.RLIM_INFINITY else min(FILES_MAX, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(files, wanted), most))
    with closing(listening(address)) as listener, closing(asyncio.new_event_loop()) as loop:
        dashboard.loop, stop = loop, asyncio.Event()
        thread = threading.Thread(
            target=loop.run_until_complete, args=(_serve(dashboard, listener, stop),), daemon=True
        )
        thread.start()
        try:
            yield address_of(listener)
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join()


async def _serve(dashboard: Dashboard, listener: socket.socket, stop: asyncio.Event) -> None:
    runner = web.AppRunner(
        application(dashboard),
        access_log=None,
        handle_signals=False,
        shutdown_timeout=1.0,
        keepalive_timeout=IDLE_S,
    )
    await runner.setup()
    try:
        await web.SockSite(runner, listener, backlog=ACCEPTED).start()
        listener.listen(BACKLOG)
        while not stop.is_set():
            dashboard.tell()
            with suppress(TimeoutError):
                async with asyncio.timeout(COMMENT_S):
                    await stop.wait()
    finally:
        await runner.cleanup()
