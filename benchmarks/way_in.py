"""`python -m benchmarks.way_in [FILE] [POLL.pb ...]`: one recording in many forms through `init`, `plan FILE`, and
`replay` or `run`; and recorded polls of GTFS-realtime, each beside the same pings as lines of the contract's form.

Nothing is edited by hand between the verbs. For each form: are the HATs and their counts those of the plain form, and
the seconds of processor time that each verb took, user and system, of a process of its own. They are no minutes of a
person. Without FILE (the contract's form) a synthetic fleet's half hour; live sources are real servers on this machine.
"""

from __future__ import annotations

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
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from benchmarks.feed_forms import FORMS, TITLES, Ping, polls, recorded, snapshot, vehicles
from benchmarks.words import words
from udp_stream.pings.decode import PingDecoder
from udp_stream.pings.json import JSON
from udp_stream.release.record import decode
from udp_stream.settings import load
from udp_stream.sources.files import read_messages
from udp_stream.trial.fleet import IST, Fleet, Imperfections

SECONDS_MAX = 120
IDLE = "--set", "kafka.idle_timeout=2s"
"""So that a live run closes its last slots two seconds after the last ping, and not a minute."""

Hats = set[tuple[str, str, int, int]]
"""Cell, start of the slot, plates, samples."""


class Ended(NamedTuple):
    """A verb that has ended with status 0: its output, and its processor time."""

    out: bytes
    cpu_s: float


class WayIn(NamedTuple):
    """What came of a form, and the processor time of its three verbs."""

    hats: Hats
    seconds: tuple[float, float, float]


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


def ended(process: subprocess.Popen[bytes], folder: Path) -> Ended:
    """Wait for it. RuntimeError with what it said, unless its status is 0."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"status {process.returncode}: {(folder / 'stderr').read_text()}")
    return Ended((folder / "stdout").read_bytes(), usage.ru_utime + usage.ru_stime)


def verb(folder: Path, *arguments: str) -> Ended:
    with begun(folder, *arguments) as process:
        return ended(process, folder)


def hats_of(records: bytes) -> Hats:
    decoded = [decode(line) for line in records.splitlines()]
    return {(one.hat.cell, one.hat.slot_start, one.counts.plates, one.counts.samples) for one in decoded if one.counts}


def looked_at(folder: Path, sample: Path) -> tuple[float, float]:
    """`init` and `plan FILE` of a recording, with what they took."""
    made = verb(folder, "init", str(sample), "--out", "city.toml")
    return made.cpu_s, verb(folder, "plan", str(sample), "--config", "city.toml").cpu_s


def recording(folder: Path, name: str, content: bytes, *flags: str) -> WayIn:
    """A file through all three verbs."""
    (folder / name).write_bytes(content)
    before = looked_at(folder, folder / name)
    done = verb(folder, "replay", name, "--config", "city.toml", "--trial", *flags)
    return WayIn(hats_of(done.out), (*before, done.cpu_s))


def live(
    folder: Path, address: str, sample: Path, pings: int, *flags: str, is_over: Callable[[], bool] = lambda: True
) -> WayIn:
    """A live source through `run`, configured by `init` from a sample of it, until all of its pings are in records."""
    before = looked_at(folder, sample)
    options = "--config", "city.toml", "--ledger", "city.ledger", "--out", "out.ndjson", *IDLE, *flags
    deadline, hats = time.monotonic() + SECONDS_MAX, Hats()
    with begun(folder, "run", address, *options) as process:
        while sum(samples for *_, samples in hats) < pings or not is_over():
            if time.monotonic() > deadline or process.poll() is not None:
                raise RuntimeError((folder / "stderr").read_text())
            time.sleep(0.1)
            out = folder / "out.ndjson"
            hats = hats_of(out.read_bytes().rpartition(b"\n")[0]) if out.exists() else Hats()
        process.send_signal(signal.SIGTERM)
        return WayIn(hats, (*before, ended(process, folder).cpu_s))


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


def polled_gtfs(folder: Path, pings: Sequence[Ping], *flags: str) -> WayIn:
    """GTFS-realtime, polled each second; the sample for `init` is the largest poll."""
    found = list(polls(pings, snapshot))
    (folder / "sample.pb").write_bytes(max(found, key=len))
    with answering(found, "application/x-protobuf") as address:
        return live(folder, address, folder / "sample.pb", len(pings), "--every", "1s", *flags)


def polled_json(folder: Path, pings: Sequence[Ping], *flags: str) -> WayIn:
    """The same of JSON in a feed's own form."""
    found = list(polls(pings, vehicles))
    (folder / "sample.json").write_bytes(max(found, key=len))
    with answering(found, "application/json") as address:
        return live(folder, address, folder / "sample.json", len(pings), "--every", "1s", *flags)


def piped(folder: Path, pings: Sequence[Ping], *flags: str) -> WayIn:
    """A file through `run`: what another program prints comes as it does."""
    (folder / "feed.csv").write_bytes(FORMS["semicolons.csv"](pings))
    before = looked_at(folder, folder / "feed.csv")
    options = "--config", "city.toml", "--ledger", "city.ledger"
    done = verb(folder, "run", "feed.csv", *options, *flags)
    return WayIn(hats_of(done.out), (*before, done.cpu_s))


def queued(folder: Path, pings: Sequence[Ping], port: int, *flags: str) -> WayIn:
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


def recorded_poll(folder: Path, file: Path) -> tuple[WayIn, Hats]:
    """A poll that was recorded, and the HATs of its vehicles in the contract's form, read by another decoder."""
    from google.transit.gtfs_realtime_pb2 import FeedMessage

    found = recording(folder, file.name, file.read_bytes())
    lines = map(json.dumps, _contract(FeedMessage.FromString(file.read_bytes())))
    (folder / "plain.ndjson").write_text("\n".join(lines))
    return found, hats_of(verb(folder, "replay", "plain.ndjson", "--config", "city.toml", "--trial").out)


def _contract(message: Any) -> Iterator[Ping]:
    for vehicle in (one.vehicle for one in message.entity if one.HasField("vehicle")):
        at, plate = vehicle.position, vehicle.vehicle.license_plate or vehicle.vehicle.id
        if at.HasField("speed") and vehicle.timestamp:
            when = datetime.fromtimestamp(vehicle.timestamp, UTC).isoformat()
            where = {"type": "Point", "coordinates": [at.longitude, at.latitude]}
            yield {"license_plate": plate, "observationDateTime": when, "location": where, "speed": at.speed}


def pings_of(files: Sequence[str]) -> list[Ping]:
    """Those of recordings in the contract's form that are accepted; without a file, a fleet's."""
    if files:
        messages = [message for file in files for some in read_messages(file) for message in some]
    else:
        faults = Imperfections.none()
        fleet = Fleet(seed=1, buses=100, start=datetime(2024, 1, 8, 9, tzinfo=IST), hours=0.5, imperfections=faults)
        messages = [message for some in fleet.messages() for message in some]
    pings, _ = PingDecoder(load(None, (), {}).ping_rules, JSON).decode(messages)
    return recorded([messages[row] for row in sorted(set(pings.message.tolist()))])


def row(title: str, verbs: str, found: WayIn, plain: Hats) -> str:
    """A row of the table."""
    same = "same" if found.hats == plain else f"{len(found.hats ^ plain)} DIFFER"
    seconds = " | ".join(f"{each:.1f}" for each in (*found.seconds, sum(found.seconds)))
    return f"| {title} | {verbs} | {len(found.hats)} | {same} | {seconds} |"


def main(files: Sequence[str]) -> None:
    from tests.integration.amqp_brokers import amqp

    recorded_polls = [Path(file).resolve() for file in files if file.endswith(".pb")]
    pings = pings_of([file for file in files if not file.endswith(".pb")])
    print(f"{len(pings):,} pings of {len({ping['license_plate'] for ping in pings})} plates; seconds of processor time")
    print("| feed | verb | HATs | beside the plain form | `init` | `plan FILE` | the verb | in all |")
    print("| --- | --- | ---: | --- | ---: | ---: | ---: | ---: |", flush=True)
    plain = Hats()
    with TemporaryDirectory(prefix="way-in-") as place:
        for at, (name, form) in enumerate(FORMS.items()):
            (folder := Path(place, str(at))).mkdir()
            found = recording(folder, name, form(pings))
            plain = plain or found.hats
            print(row(TITLES[name], "`replay`", found, plain), flush=True)
        for through in (piped, polled_json, polled_gtfs):
            (folder := Path(place, through.__name__)).mkdir()
            print(row(TITLES[through.__name__], "`run`", through(folder, pings), plain), flush=True)
        (folder := Path(place, "queue")).mkdir()
        with amqp() as broker:
            print(row(TITLES["queued"], "`run`", queued(folder, pings, broker.port), plain), flush=True)
        for file in recorded_polls:
            (folder := Path(place, file.stem)).mkdir()
            try:
                print(row(file.name, "`replay`", *recorded_poll(folder, file)), flush=True)
            except RuntimeError as refused:  # one without a ping, say
                print(f"{file.name}: {refused}".strip(), flush=True)


if __name__ == "__main__":
    main(words(__doc__, "FILE", "*"))
