"""A recording in many forms through `init`, `plan FILE`, and `replay` or `run`, as the tests of feeds take it.

Nothing is edited by hand between the verbs; each ends in the HATs of its releases with their counts. Live sources are
real servers on this machine.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchmarks.feed_forms import FORMS, Ping, polls, snapshot, vehicles
from udp_stream.release.record import decode

SECONDS_MAX = 120
KILLED_AFTER_S = 1.0
IDLE = "--set", "kafka.idle_timeout=2s"
"""So that a live run closes its last slots two seconds after the last ping, and not a minute."""

Hats = set[tuple[str, str, int, int]]
"""Cell, start of the slot, plates, samples."""


@contextmanager
def begun(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A verb as a process of its own; its output and errors are files of the folder. It is killed if it goes on."""
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        command = [sys.executable, "-m", "udp_stream", *arguments]
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            process.wait()


def ended(process: subprocess.Popen[bytes], folder: Path) -> bytes:
    """Wait for it, and give its output. RuntimeError with what it said, unless its status is 0."""
    if status := process.wait():
        raise RuntimeError(f"status {status}: {(folder / 'stderr').read_text()}")
    return (folder / "stdout").read_bytes()


def verb(folder: Path, *arguments: str) -> bytes:
    with begun(folder, *arguments) as process:
        return ended(process, folder)


def hats_of(records: bytes) -> Hats:
    decoded = [decode(line) for line in records.splitlines()]
    return {(one.hat.cell, one.hat.slot_start, one.counts.plates, one.counts.samples) for one in decoded if one.counts}


def look_at(folder: Path, sample: Path) -> None:
    verb(folder, "init", str(sample), "--out", "city.toml")
    verb(folder, "plan", str(sample), "--config", "city.toml")


def recording(folder: Path, name: str, content: bytes, *flags: str) -> Hats:
    (folder / name).write_bytes(content)
    look_at(folder, folder / name)
    return hats_of(verb(folder, "replay", name, "--config", "city.toml", "--trial", *flags))


def live(
    folder: Path,
    address: str,
    sample: Path,
    pings: int,
    *flags: str,
    is_over: Callable[[], bool] = lambda: True,
    kills: int = 0,
    goes_on: Callable[[Path], None] = lambda _: None,
) -> Hats:
    """A live source through `run`, configured by `init` from a sample of it, until all of its pings are in records.
    `goes_on` is called again and again, with the folder; the run is killed, and begun again, as often as said."""
    look_at(folder, sample)
    old = "--set", "live.max_age=36500d"  # its times are those of the recording
    options = "--config", "city.toml", "--ledger", "city.ledger", "--out", "out.ndjson", *IDLE, *old, *flags
    deadline, hats = time.monotonic() + SECONDS_MAX, Hats()
    for _ in range(kills):
        with begun(folder, "run", address, *options):
            goes_on(folder)
            time.sleep(KILLED_AFTER_S)
    with begun(folder, "run", address, *options) as process:
        goes_on(folder)
        while sum(samples for *_, samples in hats) < pings or not is_over():
            if time.monotonic() > deadline or process.poll() is not None:
                raise RuntimeError((folder / "stderr").read_text())
            time.sleep(0.1)
            out = folder / "out.ndjson"
            hats = hats_of(out.read_bytes().rpartition(b"\n")[0]) if out.exists() else Hats()
        process.send_signal(signal.SIGTERM)
        ended(process, folder)
        return hats


@contextmanager
def answering(answers: Sequence[bytes], kind: str) -> Iterator[str]:
    """The address of a server that gives these one after the other, and the last one again and again."""
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/vehicles"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def polled_gtfs(folder: Path, pings: Sequence[Ping], *flags: str) -> Hats:
    """GTFS-realtime, polled each second; the sample for `init` is the largest poll."""
    return _polled(folder, list(polls(pings, snapshot)), "application/x-protobuf", len(pings), *flags)


def polled_json(folder: Path, pings: Sequence[Ping], *flags: str) -> Hats:
    return _polled(folder, list(polls(pings, vehicles)), "application/json", len(pings), *flags)


def _polled(folder: Path, answers: list[bytes], kind: str, pings: int, *flags: str) -> Hats:
    # A saved poll of GTFS-realtime is known by the end of its name.
    sample = folder / ("sample.pb" if "protobuf" in kind else "sample.json")
    sample.write_bytes(max(answers, key=len))
    with answering(answers, kind) as address:
        return live(folder, address, sample, pings, "--every", "1s", *flags)


def piped(folder: Path, pings: Sequence[Ping], *flags: str) -> Hats:
    """A file through `run`: what another program prints comes as it does."""
    (folder / "feed.csv").write_bytes(FORMS["semicolons.csv"](pings))
    look_at(folder, folder / "feed.csv")
    return hats_of(verb(folder, "run", "feed.csv", "--config", "city.toml", "--ledger", "city.ledger", *flags))


def queued(folder: Path, pings: Sequence[Ping], port: int, *flags: str) -> Hats:
    """The exchange's queue on a broker of AMQP 0-9-1 at this port: its messages, single and in arrays."""
    import pika

    from tests.integration.amqp_brokers import PASSWORD, USER

    queue, messages = f"way-in-{os.getpid()}-{folder.name}", FORMS["plain.ndjson"](pings).splitlines()
    (folder / "sample.ndjson").write_bytes(b"\n".join(messages[len(messages) // 2 :]))
    (folder / "password").touch(mode=0o600)
    (folder / "password").write_text(PASSWORD)
    login = pika.PlainCredentials(USER, PASSWORD)
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, credentials=login))
    channel = connection.channel()
    channel.queue_declare(queue, durable=True)
    for at in range(0, len(messages), 20):
        some = messages[at : at + 20]
        for message in some if at % 40 else [b"[" + b",".join(some) + b"]"]:
            channel.basic_publish("", queue, message)
    keys = f"queue={queue}", f"username={USER}", f"password_file={folder}/password"
    of_queue = [word for key in keys for word in ("--set", f"live.{key}")]

    def is_empty() -> bool:
        return bool(channel.queue_declare(queue, passive=True).method.message_count == 0)

    try:
        sample = folder / "sample.ndjson"
        return live(folder, f"amqp://127.0.0.1:{port}/", sample, len(pings), *of_queue, *flags, is_over=is_empty)
    finally:
        channel.queue_delete(queue)
        connection.close()


def published(folder: Path, pings: Sequence[Ping], port: int, *flags: str, kills: int = 0) -> Hats:
    """HSL's positions on a broker of MQTT at this port, a part of them before each kill of the run, and a part while
    nobody reads."""
    from paho.mqtt.client import Client
    from paho.mqtt.enums import CallbackAPIVersion

    payloads = FORMS["hfp.ndjson"](pings).splitlines()
    (folder / "sample.txt").write_bytes(FORMS["topics.txt"](pings))
    size = -(-len(payloads) // (2 * kills + 1))
    parts = [payloads[at : at + size] for at in range(0, len(payloads), size)]
    client = Client(CallbackAPIVersion.VERSION2)
    client.connect("127.0.0.1", port)
    client.loop_start()

    def publish() -> None:
        for payload in parts.pop(0) if parts else []:
            client.publish("/hfp/v2/journey/ongoing/vp/bus/0012/01001", payload, 1).wait_for_publish(SECONDS_MAX)

    def goes_on(folder: Path) -> None:
        if len(parts) < 2 * kills + 1:
            publish()  # before this run has connected again
        deadline = time.monotonic() + SECONDS_MAX
        while b"with QoS 1" not in (folder / "stderr").read_bytes():
            if time.monotonic() > deadline:
                raise RuntimeError((folder / "stderr").read_text())
            time.sleep(0.05)
        publish()

    topics = "--set", 'live.topics=["/hfp/v2/journey/ongoing/vp/#"]'
    address = f"mqtt://127.0.0.1:{port}"
    try:
        sample = folder / "sample.txt"
        return live(folder, address, sample, len(pings), *topics, *flags, kills=kills, goes_on=goes_on)
    finally:
        client.disconnect()
        client.loop_stop()


def recorded_poll(folder: Path, file: Path) -> tuple[Hats, Hats]:
    """A poll that was recorded, and the HATs of its vehicles in the contract's form, read by another decoder."""
    from google.transit.gtfs_realtime_pb2 import FeedMessage

    found = recording(folder, file.name, file.read_bytes())
    lines = map(json.dumps, _contract(FeedMessage.FromString(file.read_bytes())))
    (folder / "plain.ndjson").write_text("\n".join(lines))
    return found, hats_of(verb(folder, "replay", "plain.ndjson", "--config", "city.toml", "--trial"))


def _contract(message: Any) -> Iterator[Ping]:
    for vehicle in (one.vehicle for one in message.entity if one.HasField("vehicle")):
        at, plate = vehicle.position, vehicle.vehicle.license_plate or vehicle.vehicle.id
        if at.HasField("speed") and vehicle.timestamp:
            when = datetime.fromtimestamp(vehicle.timestamp, UTC).isoformat()
            where = {"type": "Point", "coordinates": [at.longitude, at.latitude]}
            yield {"license_plate": plate, "observationDateTime": when, "location": where, "speed": at.speed}
