"""A TCP proxy with faults: connections are cut, delayed, stalled, or held at a request of one's
choice."""

import asyncio
import re
import ssl
import threading
from contextlib import suppress
from dataclasses import dataclass, field

HOST = "127.0.0.1"
CHUNK = 2**16


class Trap:
    """Holds the first request that matches `needle`, before it goes on (`answered` False), or its
    answer (True)."""

    def __init__(self, needle: bytes, answered: bool) -> None:
        self.needle = needle
        self.answered = answered
        self.caught = threading.Event()
        self.link: Link | None = None
        self._connection: _Connection | None = None
        self._sprung = False
        self._opened = asyncio.Event()

    async def look_at(self, connection: "_Connection", data: bytes, answer: bool) -> None:
        """Wait here, if this is what is to be held."""
        if not answer and self._connection is None and re.search(self.needle, data):
            self._connection, self.link = connection, connection.link
        if answer and self._connection is connection and b"NOSCRIPT" in data and not self._sprung:
            self._connection = self.link = None  # Redis did not know the script: it is asked again
        if self._connection is connection and answer == self.answered and not self._sprung:
            self._sprung = True
            self.caught.set()
            await self._opened.wait()

    def open(self) -> None:
        self._sprung = True
        self._opened.set()
        if self.link is None:
            self._connection = None

    def drop(self) -> None:
        if self._connection is not None:
            self._connection.cut()
        self.open()


@dataclass(eq=False)
class _Connection:
    link: "Link"
    writers: tuple[asyncio.StreamWriter, asyncio.StreamWriter]

    async def pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: bool
    ) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                if self.link.trap is not None:
                    await self.link.trap.look_at(self, data, answer)
                pause = max(self.link.delay_s, self.link.stalled_until - loop.time())
                if pause > 0:
                    await asyncio.sleep(pause)
                if self.writers[0].transport.is_closing():
                    break
                writer.write(data)
                await writer.drain()
        self.cut()

    def cut(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


@dataclass(eq=False)
class Link:
    proxy: "Proxy"
    upstream: int
    port: int = 0
    delay_s: float = 0.0
    stalled_until: float = 0.0
    down: bool = False
    trap: Trap | None = None
    connections: set[_Connection] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.down:
            writer.transport.abort()
            return
        try:
            their_reader, their_writer = await asyncio.open_connection(HOST, self.upstream)
        except OSError:
            writer.transport.abort()
            return
        connection = _Connection(self, (writer, their_writer))
        self.connections.add(connection)
        try:
            await asyncio.gather(
                connection.pump(reader, their_writer, False),
                connection.pump(their_reader, writer, True),
            )
        finally:
            connection.cut()
            self.connections.discard(connection)

    def cut(self) -> None:
        self.proxy.call(self._cut)

    def set_down(self, down: bool) -> None:
        self.down = down
        if down:
            self.cut()

    def delay(self, seconds: float) -> None:
        self.delay_s = seconds

    def stall(self, seconds: float) -> None:
        self.stalled_until = self.proxy.loop.time() + seconds

    def _cut(self) -> None:
        for connection in list(self.connections):
            connection.cut()


class Proxy:
    """The thread of all links; use it as a context manager."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="proxy", daemon=True)
        self._servers: list[asyncio.Server] = []

    def __enter__(self) -> "Proxy":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()

    def call(self, what) -> None:
        self.loop.call_soon_threadsafe(what)

    def link(self, upstream: int, port: int = 0, tls=None) -> Link:
        """A new link to a port of this machine, on `port` or a free one. `tls`: with a certificate
        of `trustme`."""
        link = Link(self, upstream)
        context = None
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.configure_cert(context)

        async def listen() -> int:
            server = await asyncio.start_server(link.serve, HOST, port, ssl=context)
            self._servers.append(server)
            return server.sockets[0].getsockname()[1]

        link.port = asyncio.run_coroutine_threadsafe(listen(), self.loop).result(10)
        return link

    def set_trap(self, links: list[Link], needle: bytes, answered: bool) -> Trap:
        """One trap on several links: the first connection to come by is held."""
        trap = Trap(needle, answered)
        for link in links:
            link.trap = trap
        return trap

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        mine = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in mine:
            task.cancel()
        await asyncio.gather(*mine, return_exceptions=True)
