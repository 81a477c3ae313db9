"""`make bench`, of the dashboard's history: a cell's records while 50 clients fetch whole histories
beside 500 streams.

Milliseconds of wall time, the median, beside the same requests alone, in one run. The crowd is a
process of its own, and comes again when it is told to (`Retry-After`).
"""

import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from benchmarks.__main__ import say
from benchmarks.words import words
from tests.board import cells, dashboard, estimate, get, release, wait_for, write

CLIENTS = 50
STREAMS = 500
HOURS = 600
CELLS = 92
ASKED = 40
WHOLE = "from=2000-01-01&to=2100-01-01"


async def fetched(address: str, path: str) -> dict[str, str]:
    """The headers of an answer, whose body is read and thrown away."""
    place = urlsplit(address)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    head = f"GET {path} HTTP/1.1\r\nHost: {place.netloc}\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n"
    writer.write(head.encode())
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()[1:]
    while await reader.read(2**16):
        pass
    writer.close()
    return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}


async def client(address: str, kind: str) -> None:
    while True:
        headers = await fetched(address, f"/v1/{kind}?{WHOLE}")
        await asyncio.sleep(int(headers.get("retry-after", 0)))


async def crowd(address: str) -> None:
    streams = (fetched(address, "/v1/stream") for _ in range(STREAMS))
    clients = (client(address, kind) for kind in ("releases", "estimates") * (CLIENTS // 2))
    await asyncio.gather(*streams, *clients)


def took(address: str, query: str, asked: list[str]) -> float:
    """Of a cell after the other, so that no answer is kept from before."""
    seconds = []
    for cell in asked:
        path = f"/v1/estimates?cell={cell}{query}"
        start = time.perf_counter()
        status = get(address + path, **{"Accept-Encoding": "gzip"})[0]
        seconds.append(time.perf_counter() - start)
        if status != 200:
            raise AssertionError(f"{path}: {status}")
    return median(seconds) * 1000


def main() -> None:
    many = cells(CELLS)
    queries = {
        "a cell in the slots that are kept": "",
        "a cell's day in the history": "&from=2024-01-12&to=2024-01-13",
        "a cell's whole history": f"&{WHOLE}",
    }
    with tempfile.TemporaryDirectory(prefix="udp-stream-bench-") as name:
        folder = Path(name)
        for file, make in (("r", release), ("e", estimate)):
            write(folder / file, (make(cell, hour) for hour in range(HOURS) for cell in many))
        with dashboard("r", "e", "--set", "dashboard.history=h", cwd=folder) as (address, _):
            wait_for(lambda: get(f"{address}/v1/slots?{WHOLE}")[2].count(b"slot_start") == HOURS)
            alone = {what: took(address, query, many[:ASKED]) for what, query in queries.items()}
            running = subprocess.Popen([sys.executable, "-m", "benchmarks.bulk", address])
            try:
                wait_for(
                    lambda: (
                        f"udp_stream_dashboard_clients {STREAMS}.0".encode()
                        in get(f"{address}/metrics")[2]
                    )
                )
                beside = {
                    what: took(address, query, many[-ASKED:]) for what, query in queries.items()
                }
            finally:
                running.kill()
                running.wait()
    for what, before in alone.items():
        ratio = f"{beside[what] / before:.1f} x its time alone ({before:.1f} ms)"
        say(what, f"{beside[what]:.1f} ms", f"{ratio}, beside {CLIENTS} that fetch whole histories")


if __name__ == "__main__":
    if address := words(__doc__, "ADDRESS", "?"):
        asyncio.run(crowd(address[0]))
    else:
        main()
