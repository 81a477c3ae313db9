"""The dashboard over HTTP: released records, notices of what is new, and the page. Nothing is asked of a client.

A slot is packed once, and every client gets the same bytes, with an ETag. A stream carries notices alone: which slot
has which version. A client fetches what it has not, so nothing is queued for it. It has a cursor: the number of the
last change that it was told. A reconnect, or a restart of the server, needs no more than `/v1/slots`.

A client that does not read is dropped after `WRITE_S`. What the kernel keeps for it is `SEND_BYTES` at most.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import threading
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import hdrs, web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from udp_stream.board.slots import KINDS, Kind, Packed, Slot, Slots, milliseconds_of, of_cell, packed
from udp_stream.errors import DependencyUnavailable
from udp_stream.forms import in_form
from udp_stream.release.forecaster import SCHEMA as SMOOTHED
from udp_stream.release.record import SCHEMA as RELEASE
from udp_stream.release.record import described

STREAMS_MAX: Final = 2_000
ACCEPTED, BACKLOG = 64, 4_096
"""Connections that are taken in one turn of the loop, and that may wait for theirs: all clients fetch a slot at once,
and one that finds the queue full would try again a second later."""

COMMENT_S: Final = 15.0
"""Between two lines of a stream on which nothing happens: proxies close silent ones."""

WRITE_S: Final = 10.0
"""A client that takes nothing of an answer, and no notice, for as long is dropped."""

UNPACKED_BYTES: Final = "unpacked bytes"
"""Of an answer whose body is packed, for a client that does not take it so."""

GZIP_WINDOW: Final = 31
"""For zlib: the largest window, in gzip's form."""

SEND_BYTES: Final = 256 * 1024
"""So much is sent at a time, and so much the kernel keeps for a connection; Linux takes it twice."""

ANSWERS_MAX: Final = 32
"""Answers that are kept, of those that are not packed with the slot: of one cell, or in another form."""

WORKING_MAX: Final = 2
"""Of these, so many are made at once."""

STATIC: Final = Path(__file__).parent / "static"

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
    "Server": "udp-stream",
}
FORMS: Final = {
    "ndjson": "application/x-ndjson",
    "csv": "text/csv; charset=utf-8",
    "geojson": "application/geo+json",
}
SUFFIXES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
"""Files of the page."""

_CELL: Final = re.compile("[0-9a-f]{15}")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Board:
    """What is served: slots, and the statement of privacy, if one is named.

    The thread that feeds the slots calls `announce`; all else belongs to the thread of the server's loop.
    """

    slots: Slots
    statement: Callable[[], bytes | None] = lambda: None
    is_ready: bool = False
    streams: int = 0
    loop: asyncio.AbstractEventLoop | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _ended: bool = False
    _answers: dict[tuple[object, ...], Packed] = field(default_factory=dict)
    _working: asyncio.Semaphore = field(default_factory=partial(asyncio.Semaphore, WORKING_MAX))

    def announce(self, changed: bool) -> None:
        """All that is there has been read; if a slot has changed, those who wait for that are woken."""
        self.is_ready = True
        if changed and self.loop is not None:
            self.loop.call_soon_threadsafe(self.wake)

    def wake(self) -> None:
        """Every stream looks for what it has to tell, and says that there is nothing if so."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def end(self, _: web.Application) -> None:
        """Streams end."""
        self._ended = True
        self.wake()

    async def page(self, request: web.Request) -> web.StreamResponse:
        """The page, or a file of it."""
        _parameters(request)
        file = STATIC / request.match_info.get("file", "index.html")
        if file.suffix not in SUFFIXES or not file.is_file():
            raise web.HTTPNotFound(text="no such file\n")
        return _answer(request, _file(file, file.stat().st_mtime_ns), SUFFIXES[file.suffix])

    async def listing(self, request: web.Request) -> web.StreamResponse:
        """The slots that are kept."""
        _parameters(request)
        return _answer(request, self.slots.shown.listing, "application/json")

    async def outlines(self, request: web.Request) -> web.StreamResponse:
        """By cell, its rings."""
        _parameters(request)
        return _answer(request, self.slots.shown.outlines, "application/json")

    async def privacy(self, request: web.Request) -> web.StreamResponse:
        """The statement, or what the newest records say."""
        _parameters(request)
        statement, privacy = self.statement(), self.slots.shown.privacy
        found = msgspec.Raw(statement) if statement is not None else None
        body = msgspec.json.encode({"statement": found, "newest_release": privacy}) + b"\n"
        return _answer(request, packed(body), "application/json")

    async def records(self, kind: Kind, request: web.Request) -> web.StreamResponse:
        """Records of a slot, of a cell, or of a cell in a slot."""
        asked = _parameters(request, "slot", "cell", "form")
        form, cell = asked.get("form", "ndjson"), asked.get("cell")
        if form not in FORMS:
            raise _refused(f"form: expected {', '.join(FORMS)}")
        if cell is not None and _CELL.fullmatch(cell) is None:
            raise _refused("cell: expected an H3 cell, 15 hexadecimal digits")
        slots: tuple[Slot, ...] = self.slots.shown.slots
        name = cell or ""
        if "slot" in asked or cell is None:
            slot = self._slot(asked.get("slot", "latest"))
            slots, name = (slot,), re.sub("[^0-9T]+", "-", slot.start[:19]) + f"-{name}" * bool(name)
        if form == "ndjson" and cell is None:
            answer = slots[0].parts[kind]
        else:
            answer = await self._made(kind, tuple(slot.parts[kind] for slot in slots), cell, form)
        way = "inline" if form == "ndjson" else "attachment"
        file = f'{way}; filename="{kind}-{name}.{form}"'
        return _answer(request, answer, FORMS[form], {hdrs.CONTENT_DISPOSITION: file})

    def _slot(self, name: str) -> Slot:
        shown = self.slots.shown
        if name == "latest":
            if not shown.slots:
                raise web.HTTPNotFound(text="no slot is there yet\n")
            return shown.slots[-1]
        try:
            start_ms = milliseconds_of(name.replace(" ", "+"))  # a plus sign in an address is a space
        except (ValueError, OverflowError):
            raise _refused("slot: expected latest, or a time with its offset, as slot_start in /v1/slots") from None
        if (slot := shown.slot_at(start_ms)) is None:
            raise web.HTTPNotFound(text="no slot that starts then is kept: /v1/slots lists those that are\n")
        return slot

    async def _made(self, kind: Kind, parts: tuple[Packed, ...], cell: str | None, form: str) -> Packed:
        """Of these parts, in another form or of one cell; kept for whoever asks next."""
        key = (kind, tuple(part.digest for part in parts), cell, form)
        async with self._working:
            answer = self._answers.pop(key, None)
            if answer is None:
                answer = await asyncio.to_thread(_make, KINDS[kind], parts, cell, form)
            self._answers[key] = answer
            while len(self._answers) > ANSWERS_MAX:
                del self._answers[next(iter(self._answers))]
        return answer

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Notices, until the client or the server goes away; the newest slot's at once."""
        _parameters(request)
        headers = {hdrs.CONTENT_TYPE: "text/event-stream", "X-Accel-Buffering": "no", hdrs.CACHE_CONTROL: "no-store"}
        if request.method == hdrs.METH_HEAD:
            return web.Response(headers=headers)
        if self.streams >= STREAMS_MAX:
            raise web.HTTPServiceUnavailable(text=f"at most {STREAMS_MAX} streams at a time\n")
        response = web.StreamResponse(headers=headers | HEADERS | {hdrs.CACHE_CONTROL: "no-store"} | _cors(request))
        self.streams += 1
        try:
            await response.prepare(request)
            await self._notify(request, response)
        except TimeoutError:
            _drop(request)
        finally:
            self.streams -= 1
        return response

    async def _notify(self, request: web.Request, response: web.StreamResponse) -> None:
        slots = self.slots.shown.slots
        told = slots[-1].change - 1 if slots else 0
        text = b"retry: 2000\n\n"
        while not self._ended:
            changed, shown = self._changed, self.slots.shown
            text += b"".join(_notice(slot) for slot in shown.slots if slot.change > told)
            told = shown.change
            transport = request.transport
            if transport is None or transport.get_write_buffer_size():  # it has not taken the last notice
                raise TimeoutError
            async with asyncio.timeout(WRITE_S):
                await response.write(text or b": nothing new\n\n")
            text = b""
            await changed.wait()

    async def healthy(self, _: web.Request) -> web.StreamResponse:
        """The process answers."""
        return web.Response(text="ok\n")

    async def ready(self, _: web.Request) -> web.StreamResponse:
        """Whether the source was read to its end once."""
        if not self.is_ready:
            raise web.HTTPServiceUnavailable(text="the records are being read\n")
        return web.Response(text="ok\n")


@lru_cache(maxsize=64)
def _file(file: Path, _mtime_ns: int) -> Packed:
    return packed(file.read_bytes())


def _notice(slot: Slot) -> bytes:
    return b"event: slot\ndata: %s\n\n" % msgspec.json.encode({"slot_start": slot.start, "version": slot.version})


def _make(kind: type[msgspec.Struct], parts: tuple[Packed, ...], cell: str | None, form: str) -> Packed:
    lines = [
        line for part in parts for line in (part.text.splitlines(True) if cell is None else of_cell(part.text, cell))
    ]
    return packed(b"".join(in_form(form, lines, kind)))


def _parameters(request: web.Request, *known: str) -> Mapping[str, str]:
    """The parameters of the address; 400 for others, and for one that is given twice."""
    for name in request.query:
        if name not in known:
            rule = f"expected {', '.join(known)}" if known else "this address takes none"
            raise _refused(f"unknown parameter {name[:40]!r}: {rule}")
        if len(request.query.getall(name)) > 1:
            raise _refused(f"{name}: expected it once")
    return request.query


def _refused(sentence: str) -> web.HTTPBadRequest:
    return web.HTTPBadRequest(text=f"{sentence}\n")


def _answer(
    request: web.Request, text: Packed, kind: str, headers: Mapping[str, str] | None = None
) -> web.StreamResponse:
    """The text, packed if the client takes it so, or 304 if it has it."""
    tag = f'W/"{text.digest}"'
    headers = {hdrs.ETAG: tag, hdrs.VARY: "Accept-Encoding", hdrs.CONTENT_TYPE: kind, **(headers or {})}
    has = request.headers.get(hdrs.IF_NONE_MATCH, "")
    if has == "*" or tag.removeprefix("W/") in [one.strip().removeprefix("W/") for one in has.split(",")]:
        return web.Response(status=304, headers=headers)
    if re.search(r"\bgzip\b(?!\s*;\s*q=0(\.0*)?\s*(,|$))", request.headers.get(hdrs.ACCEPT_ENCODING, "")):
        return web.Response(body=text.body, headers={**headers, hdrs.CONTENT_ENCODING: "gzip"})
    response = web.Response(body=text.body, headers=headers)
    response[UNPACKED_BYTES] = int.from_bytes(text.body[-4:], "little")  # as gzip's trailer has it
    return response


def _cors(request: web.Request) -> dict[str, str]:
    is_open = request.path.startswith(("/v1/", "/schema/"))
    return {"Access-Control-Allow-Origin": "*", "Access-Control-Expose-Headers": "ETag"} if is_open else {}


@web.middleware
async def _guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """GET and HEAD only; our headers on every answer; a client that does not take it in time is dropped."""
    try:
        if request.method not in (hdrs.METH_GET, hdrs.METH_HEAD):
            raise web.HTTPMethodNotAllowed(request.method, [hdrs.METH_GET, hdrs.METH_HEAD])
        response = await handler(request)
    except web.HTTPException as error:
        response = web.Response(status=error.status, text=error.text, headers={
            name: value for name, value in error.headers.items() if name == hdrs.ALLOW
        })  # fmt: skip
    if response.prepared:
        return response
    for name, value in {**HEADERS, **_cors(request)}.items():
        response.headers.setdefault(name, value)
    assert isinstance(response, web.Response)  # all handlers but the stream's make one
    try:
        return await _sent(request, response)
    except TimeoutError:
        _drop(request)
        return response


async def _sent(request: web.Request, response: web.Response) -> web.StreamResponse:
    """Piece by piece: the server holds two of them for a client, and never the whole answer, packed once for all."""
    body, size = response.body if isinstance(response.body, bytes) else b"", response.get(UNPACKED_BYTES)
    if size is None and len(body) <= SEND_BYTES:
        async with asyncio.timeout(WRITE_S):
            await response.prepare(request)
            await response.write_eof()
        return response
    sent = web.StreamResponse(status=response.status, headers=response.headers)
    sent.content_length = len(body) if size is None else size
    await sent.prepare(request)
    for piece in () if request.method == hdrs.METH_HEAD else _pieces(body, size is not None):
        async with asyncio.timeout(WRITE_S):
            await sent.write(piece)
    return sent


def _pieces(body: bytes, unpack: bool) -> Iterator[bytes]:
    if not unpack:
        yield from (body[at : at + SEND_BYTES] for at in range(0, len(body), SEND_BYTES))
        return
    unpacking = zlib.decompressobj(GZIP_WINDOW)
    while not unpacking.eof:
        yield unpacking.decompress(body, SEND_BYTES)
        body = unpacking.unconsumed_tail


def _drop(request: web.Request) -> None:
    """Close the connection, and let the kernel forget what was to be sent: it would wait for the client for minutes."""
    if request.transport is not None:
        connection = request.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        request.transport.abort()


class _Series(Collector):
    """The dashboard's own figures, at the moment of asking. They have no labels."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def collect(self) -> Iterator[Metric]:
        """Four series."""
        shown, name = self._board.slots.shown, "udp_stream_dashboard"
        newest_s = max((milliseconds_of(slot.end) for slot in shown.slots), default=0) / 1000
        yield GaugeMetricFamily(f"{name}_clients", "Streams of notices that are open.", self._board.streams)
        yield GaugeMetricFamily(f"{name}_slots", "Slots that are kept.", len(shown.slots))
        yield GaugeMetricFamily(f"{name}_newest_slot_timestamp_seconds", "End of the newest slot.", newest_s)
        yield CounterMetricFamily(f"{name}_records_refused", "Lines that were no record.", shown.refused)


def _text(body: bytes, kind: str) -> Handler:
    answer = packed(body)

    async def handler(request: web.Request) -> web.StreamResponse:
        return _answer(request, answer, kind)

    return handler


def application(board: Board) -> web.Application:
    """The routes."""
    registry = CollectorRegistry()
    registry.register(_Series(board))

    async def metrics(_: web.Request) -> web.StreamResponse:
        return web.Response(body=generate_latest(registry), headers={hdrs.CONTENT_TYPE: CONTENT_TYPE_LATEST})

    app = web.Application(middlewares=[_guard])
    app.on_shutdown.append(board.end)
    app.router.add_get("/", board.page)
    app.router.add_get("/v1/slots", board.listing)
    for kind in KINDS:
        app.router.add_get(f"/v1/{kind}", partial(board.records, kind))
    app.router.add_get("/v1/outlines", board.outlines)
    app.router.add_get("/v1/privacy", board.privacy)
    app.router.add_get("/v1/stream", board.stream)
    for name, of, schema in (("release", KINDS["releases"], RELEASE), ("smoothed", KINDS["estimates"], SMOOTHED)):
        text = msgspec.json.format(msgspec.json.encode(described(of, schema)), indent=2) + b"\n"
        app.router.add_get(f"/schema/{name}.schema.json", _text(text, "application/schema+json"))
    app.router.add_get("/healthz", board.healthy)
    app.router.add_get("/readyz", board.ready)
    app.router.add_get("/metrics", metrics)
    app.router.add_get(r"/static/{file:\w[\w-]*(?:/\w[\w-]*)*(?:\.\w+)+}", board.page)
    return app


def listening(address: str) -> socket.socket:
    """A socket at HOST:PORT. DependencyUnavailable if the address is taken, or not this machine's."""
    host, _, port = address.rpartition(":")
    try:
        family, *_, place = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        found = socket.create_server(place[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise DependencyUnavailable(f"dashboard.listen: {address}: {why}: is another dashboard there?") from error
    found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)  # connections inherit it
    return found


def address_of(listener: socket.socket) -> str:
    """What to open in a browser."""
    host, port, *_ = listener.getsockname()
    host = {"0.0.0.0": "localhost", "::": "localhost"}.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


@contextmanager
def serving(board: Board, address: str) -> Iterator[str]:
    """Serve at HOST:PORT in a thread of its own while the block runs; gives what to open in a browser.

    DependencyUnavailable if nothing can listen there.
    """
    with closing(listening(address)) as listener, closing(asyncio.new_event_loop()) as loop:
        board.loop, stop = loop, asyncio.Event()
        thread = threading.Thread(target=loop.run_until_complete, args=(_serve(board, listener, stop),), daemon=True)
        thread.start()
        try:
            yield address_of(listener)
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join()


async def _serve(board: Board, listener: socket.socket, stop: asyncio.Event) -> None:
    runner = web.AppRunner(application(board), access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.SockSite(runner, listener, backlog=ACCEPTED).start()
        listener.listen(BACKLOG)
        while not stop.is_set():
            board.wake()
            with suppress(TimeoutError):
                async with asyncio.timeout(COMMENT_S):
                    await stop.wait()
    finally:
        await runner.cleanup()
