"""A dashboard of its own process, and a crowd that watches it: `python -m tests.board ADDRESS
CLIENTS FILE LINES`."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from hashlib import sha256
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

import msgspec

from tests.forked import Forked

START = datetime(2024, 1, 8, 6, tzinfo=UTC)
WAIT_S = 30
ROOT = Path(__file__).parents[1]


def cells(number):
    import numpy as np

    from udp_stream.windows.grid import HEXAGONS, Hexagons

    found = Hexagons(7).cells_of(21.0 + 0.03 * np.arange(number), np.full(number, 72.8))
    return [HEXAGONS.id_of(int(cell)) for cell in found]


def hat(cell, hour, offset="+00:00"):
    start = START + timedelta(hours=hour)
    ends = [f"{(start + timedelta(hours=more)).isoformat()[:19]}{offset}" for more in (0, 1)]
    return {
        "cell": cell,
        "resolution": 7,
        "center": [72.8, 21.1],
        "slot_start": ends[0],
        "slot_end": ends[1],
    }


def withdrawal(cell, hour=0, reason="speeds were in mph"):
    """A withdrawal of that release."""
    one = json.loads(release(cell, hour))
    fields = {
        "hat": one["hat"],
        "reason": reason,
        "withdrawn_at": "2024-01-09T00:00:00+00:00",
        "software": "test",
    }
    ids = {"release_id": f"withdrawn:{one['release_id']}", "withdraws": one["release_id"]}
    return msgspec.json.encode({"schema": "udp-stream/withdrawal/1"} | ids | fields)


@cache
def template():
    from udp_stream.testing import released_slot

    return next(iter(released_slot().payloads.values()))


def release(cell, hour=0, **fields):
    start_s = int((START + timedelta(hours=hour)).timestamp())
    # Of a policy's hash every record has another one here, so that they pack as real records with
    # their figures do.
    own = sha256(f"{cell}{hour}".encode()).hexdigest()
    ours = {"hat": hat(cell, hour), "release_id": f"{cell}-{start_s}-3600", "policy": own}
    return msgspec.json.encode(msgspec.json.decode(template()) | ours | fields)


def estimate(cell, hour=0, kmh=17.9, **fields):
    found = {
        "schema": "udp-stream/smoothed/1", "hat": hat(cell, hour), "value_kmh": kmh, "interval95_kmh": [13.0, 22.8],
        "expected_abs_error_kmh": 2.0, "cdf": None, "release_id": None, "news": 0.1, "software": "udp-stream test",
        "guess": {"constant_kmh": 18.4, "counts_kmh": 16.9, "expected_abs_error_kmh": 2.9}, "cdf_withheld": "off",
    }  # fmt: skip
    return msgspec.json.encode(found | fields)


def write(file, lines, mode="ab"):
    with Path(file).open(mode) as out:
        out.write(b"".join(line + b"\n" for line in lines))


ANYWHERE = "--set", "dashboard.listen=127.0.0.1:0"


def program(*arguments, cwd, **started):
    """A dashboard as a program, and what it says."""
    command = [sys.executable, "-m", "udp_stream", "dashboard", *map(str, arguments)]
    running = subprocess.Popen(command, cwd=cwd, stderr=subprocess.PIPE, text=True, **started)
    return running, running.stderr


def forked(*arguments, cwd):
    """The same from a process that has imported it, which takes less time, and more memory."""
    reads, writes = os.pipe()
    with Path(os.devnull).open("r+b") as nothing, os.fdopen(writes, "wb") as said:
        streams = [nothing.fileno(), nothing.fileno(), said.fileno()]
        running = Forked("tests.forked", ["dashboard", *arguments], streams, Path(cwd))
    return running, os.fdopen(reads)


@contextmanager
def dashboard(*arguments, cwd, begin=program, **started):
    running, says = begin(*arguments, *ANYWHERE, cwd=cwd, **started)
    try:
        running.said = []
        for line in says:
            running.said.append(line)
            if found := re.search(r"http://\S+(?=/)", line):
                break
        else:
            raise AssertionError(f"no address: {running.said}")
        wait_for(lambda: get(f"{found[0]}/readyz")[0] == 200)
        yield found[0], running
    finally:
        running.terminate()
        killer = threading.Timer(WAIT_S, running.kill)
        killer.start()
        with says:  # not `communicate`, which leaves out what is in its buffer
            running.said += says.readlines()
        running.wait()
        killer.cancel()
        assert killer.finished.is_set() and running.returncode != -signal.SIGKILL


def get(url, method="GET", **headers):
    try:
        with urlopen(Request(url, method=method, headers=headers), timeout=WAIT_S) as answer:
            return answer.status, answer.headers, answer.read()
    except HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


def wait_for(holds):
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def slots_of(address):
    return json.loads(get(f"{address}/v1/slots")[2])["slots"]


async def asked(address, path, connection, until):
    loop, place, got = asyncio.get_running_loop(), urlsplit(address), b""
    connection.setblocking(False)
    await loop.sock_connect(connection, (place.hostname, place.port))
    head = f"GET {path} HTTP/1.1\r\nHost: {place.netloc}\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n"
    await loop.sock_sendall(connection, head.encode())
    while until not in got:
        got += (more := await loop.sock_recv(connection, 4096))
        assert more, "the connection has ended"
    assert b" 200 " in got.splitlines()[0]
    return got


def memory_mb(process, what="VmRSS"):
    return (
        int(re.search(rf"{what}:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text())[1])
        / 1024
    )


def crowded(folder, clients, hats):
    """A slot of so many HATs goes to so many clients: when they had it, how large it is, and the
    server's memory."""
    many = cells(hats)
    write(folder / "r", [make(cell, 0) for make in (release, estimate) for cell in many])
    write(folder / "new", [release(cell, 1) for cell in many])
    with dashboard("r", cwd=folder) as (address, process):
        before = memory_mb(process)
        command = [
            sys.executable,
            "-m",
            "tests.board",
            address,
            str(clients),
            folder / "r",
            folder / "new",
        ]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        (packed,) = {len(get(f"{address}/v1/releases", **{"Accept-Encoding": "gzip"})[2])}
        memory = {"before_mb": before, "peak_mb": memory_mb(process, "VmHWM")}
        return json.loads(done.stdout) | memory | {"packed": packed}


async def watch(address, slot_start, connected, buffer):
    loop = asyncio.get_running_loop()
    with socket.socket() as stream, socket.socket() as answer:
        got = await asked(address, "/v1/stream", stream, b"\n\n")
        connected.release()
        while slot_start.encode() not in got:
            got = got[-len(slot_start) :] + (more := await loop.sock_recv(stream, 4096))
            assert more, "the stream has ended"
        got = await asked(address, f"/v1/releases?slot={quote(slot_start)}", answer, b"\r\n\r\n")
        size = len(got.partition(b"\r\n\r\n")[2])
        while more := await loop.sock_recv_into(answer, buffer):
            size += more
        return time.monotonic(), size


async def crowd(address, clients, file, lines):
    slot_start = json.loads(lines[0])["hat"]["slot_start"]
    connected, watching, buffer = asyncio.Semaphore(0), [], bytearray(2**18)
    for _ in range(clients):
        watching.append(asyncio.create_task(watch(address, slot_start, connected, buffer)))
        await connected.acquire()
    written_s, before_s = time.monotonic(), without_core_s()
    write(file, lines)
    found = await asyncio.gather(*watching)
    seconds = sorted(at - written_s for at, _ in found)
    told = {
        "clients": len(found),
        "bytes": sorted({size for _, size in found}),
        "without": without_core_s() - before_s,
    }
    return told | {f"p{share}": seconds[len(seconds) * share // 100] for share in (50, 99)}


def without_core_s():
    """How long this process could have gone on, and another program had the core; 0 where the
    kernel does not say."""
    file = Path("/proc/self/schedstat")
    return int(file.read_text().split()[1]) / 1e9 if file.exists() else 0.0


def main():
    address, clients, file, lines = sys.argv[1:]
    told = asyncio.run(crowd(address, int(clients), file, Path(lines).read_bytes().splitlines()))
    print(json.dumps(told))


if __name__ == "__main__":
    main()
