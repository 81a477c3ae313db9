"""A recording through `init`, `plan FILE`, and `replay` or `run`, with no hand edit between: the
HATs of its releases.

Live sources are real servers on this machine.
"""

import os
import signal
import time
from contextlib import contextmanager

from benchmarks.feed_forms import FORMS, polls, snapshot, vehicles
from tests.forked import forked_to_log
from tests.http_server import GTFS, ok, serving
from tests.verbs import run_verb
from udp_stream.release.record import Release

SECONDS_MAX = 120
KILLED_AFTER_S = 1.0
# The last slots close soon after the last ping, whose time is that of the recording.
LIVE = "--set", "kafka.idle_timeout=2s", "--set", "live.max_age=36500d", "--ledger", "city.ledger"


def verb(folder, *arguments):
    done = run_verb(arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def hats_of(records):
    """Cell, start of the slot, plates, samples."""
    decoded = [Release.decode(line) for line in records.splitlines()]
    return {
        (one.hat.cell, one.hat.slot_start, one.counts.plates, one.counts.samples)
        for one in decoded
        if one.counts
    }


def look_at(folder, name, content):
    (folder / name).write_bytes(content)
    verb(folder, "init", name, "--out", "city.toml")
    verb(folder, "plan", name, "--config", "city.toml")


def recording(folder, name, content, *flags):
    look_at(folder, name, content)
    return hats_of(verb(folder, "replay", name, "--config", "city.toml", "--trial", *flags))


@contextmanager
def running(folder, *arguments):
    (folder / "said").unlink(missing_ok=True)
    process = forked_to_log("tests.forked", arguments, folder / "said", folder)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def live(folder, address, pings, *flags, is_over=lambda: True, kills=0, goes_on=lambda: None):
    """A live source through `run`, killed so often, until so many pings are in records; each run
    `goes_on` first."""
    command = "run", address, "--config", "city.toml", "--out", "out.ndjson", *LIVE, *flags
    deadline, hats, out = time.monotonic() + SECONDS_MAX, set(), folder / "out.ndjson"
    for _ in range(kills):
        with running(folder, *command):
            goes_on()
            time.sleep(KILLED_AFTER_S)
    with running(folder, *command) as process:
        goes_on()
        while sum(samples for *_, samples in hats) < pings or not is_over():
            assert time.monotonic() < deadline and process.poll() is None, (
                folder / "said"
            ).read_text()
            time.sleep(0.1)
            hats = hats_of(out.read_bytes().rpartition(b"\n")[0]) if out.exists() else set()
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0, (folder / "said").read_text()
        return hats


def polled_gtfs(folder, pings, *flags):
    return _polled(folder, list(polls(pings, snapshot)), "sample.pb", GTFS, len(pings), *flags)


def polled_json(folder, pings, *flags):
    return _polled(
        folder, list(polls(pings, vehicles)), "sample.json", "application/json", len(pings), *flags
    )


def _polled(folder, answers, sample, kind, pings, *flags):
    look_at(folder, sample, max(answers, key=len))
    with serving(*(ok(body, kind) for body in answers)) as server:
        return live(folder, f"{server.url}/vehicles", pings, "--every", "1s", *flags)


def piped(folder, pings, *flags):
    """A file through `run`: what another program prints comes as it does."""
    look_at(folder, "feed.csv", FORMS["semicolons.csv"](pings))
    return hats_of(
        verb(folder, "run", "feed.csv", "--config", "city.toml", "--ledger", "city.ledger", *flags)
    )


def queued(folder, pings, port, *flags):
    """The exchange's queue on a broker of AMQP 0-9-1 at this port: its messages, single and in
    arrays."""
    import pika

    from tests.integration.amqp_brokers import PASSWORD, USER

    queue, messages = (
        f"way-in-{os.getpid()}-{folder.name}",
        FORMS["plain.ndjson"](pings).splitlines(),
    )
    look_at(folder, "sample.ndjson", b"\n".join(messages[len(messages) // 2 :]))
    (folder / "password").touch(mode=0o600)
    (folder / "password").write_text(PASSWORD)
    login = pika.PlainCredentials(USER, PASSWORD)
    connection = pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", port, credentials=login)
    )
    channel = connection.channel()
    channel.queue_declare(queue, durable=True)
    for at in range(0, len(messages), 20):
        some = messages[at : at + 20]
        for message in some if at % 40 else [b"[" + b",".join(some) + b"]"]:
            channel.basic_publish("", queue, message)
    keys = f"queue={queue}", f"username={USER}", f"password_file={folder}/password"
    flags += tuple(word for key in keys for word in ("--set", f"live.{key}"))

    def is_empty():
        return channel.queue_declare(queue, passive=True).method.message_count == 0

    try:
        return live(folder, f"amqp://127.0.0.1:{port}/", len(pings), *flags, is_over=is_empty)
    finally:
        channel.queue_delete(queue)
        connection.close()


def published(folder, pings, port, *flags, kills=0):
    """HSL's positions by MQTT, a part of them before each kill of the run, and a part while nobody
    reads."""
    from paho.mqtt.client import Client
    from paho.mqtt.enums import CallbackAPIVersion

    payloads = FORMS["hfp.ndjson"](pings).splitlines()
    look_at(folder, "sample.txt", FORMS["topics.txt"](pings))
    size = -(-len(payloads) // (2 * kills + 1))
    parts = [payloads[at : at + size] for at in range(0, len(payloads), size)]
    client = Client(CallbackAPIVersion.VERSION2)
    client.connect("127.0.0.1", port)
    client.loop_start()

    def publish():
        for payload in parts.pop(0) if parts else []:
            client.publish(
                "/hfp/v2/journey/ongoing/vp/bus/0012/01001", payload, 1
            ).wait_for_publish(SECONDS_MAX)

    def goes_on():
        if len(parts) < 2 * kills + 1:
            publish()  # before this run has connected again
        deadline = time.monotonic() + SECONDS_MAX
        while b"with QoS 1" not in (said := (folder / "said").read_bytes()):
            assert time.monotonic() < deadline, said
            time.sleep(0.05)
        publish()

    topics = "--set", 'live.topics=["/hfp/v2/journey/ongoing/vp/#"]'
    try:
        return live(
            folder,
            f"mqtt://127.0.0.1:{port}",
            len(pings),
            *topics,
            *flags,
            kills=kills,
            goes_on=goes_on,
        )
    finally:
        client.disconnect()
        client.loop_stop()
