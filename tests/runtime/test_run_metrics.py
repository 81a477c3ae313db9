"""`run --metrics`: what Prometheus reads while a run goes on is what the run says of itself at its
end."""

import json
import os
import socket
import sys
import time
from collections import Counter
from contextlib import contextmanager
from datetime import datetime
from subprocess import run as started

import pytest

from lab.process import free_ports
from tests.forked import Forked
from tests.prometheus import Series, series_once, told_apart
from tests.verbs import run_verb
from udp_stream.base.version import __version__

FLAGS = ("--set", "hat.slot=15m", "--set", "release.min_plates=2", "--set", "kafka.idle_timeout=1s")
JUNK = [
    b"?",
    b"[]",
    b'{"license_plate": "GJ05ZZ0001"}',
    b'{"speed": "\\n# TYPE secret counter"}',
    b'"\xff"',
] * 20


@contextmanager
def piped(folder, *words):
    reads, feeds = os.pipe()
    with (folder / "log").open("wb") as log, os.fdopen(feeds, "wb") as pipe:
        process = Forked(
            "tests.forked",
            ["run", "-", *words, *FLAGS],
            [reads, log.fileno(), log.fileno()],
            folder,
        )
        os.close(reads)
        try:
            yield process, pipe
        finally:
            process.kill()
            process.wait()


def send(pipe, messages):
    pipe.write(b"\n".join(messages) + b"\n")
    pipe.flush()


def test_counters_are_the_summary_s_and_nothing_of_the_feed_is_in_them(tmp_path):
    messages, (port,) = told_apart(buses=15, hours=0.6), free_ports(1)
    half, began_s = len(messages) // 2, time.time()
    words = ("--ledger", "l", "--out", "out.ndjson", "--metrics", f"127.0.0.1:{port}")
    with piped(tmp_path, *words) as (process, pipe):
        empty = series_once(port, lambda found: found["partitions"], process)
        assert (
            empty["pings_total"]
            == empty["newest_ping_timestamp_seconds"]
            == empty["release_seconds_count"]
            == 0
        )
        send(pipe, [*messages[:half], *JUNK])
        under_way = series_once(
            port, lambda found: found["pings_total"] == half and found["open_pings"], process
        )
        assert under_way["open_slots"] in (1, 2) and 0 < under_way["open_pings"] <= half
        send(pipe, messages[half:])
        found = series_once(
            port, lambda found: found["pings_total"] > half and not found["open_slots"], process
        )
        pipe.close()
        assert process.wait(30) == 0
    log = [json.loads(line) for line in (tmp_path / "log").read_bytes().splitlines()]
    (ended,) = [entry for entry in log if entry["event"] == "ended"]
    assert found["pings_total"] == ended["pings"] == len(messages) and found["open_pings"] == 0
    newest = max(datetime.fromisoformat(json.loads(one)["observationDateTime"]) for one in messages)
    assert found["newest_ping_timestamp_seconds"] == newest.timestamp()
    refused = found.by("pings_refused_total", "reason")
    assert (
        refused == ended["refused"]
        and refused.total() >= 60
        and {"not_json", "missing_field"} <= refused.keys()
    )
    records = (tmp_path / "out.ndjson").read_bytes().splitlines()
    decoded = [json.loads(line) for line in records]
    hats = found.by("hats_total", "status")
    assert (
        hats == ended["hats"] == Counter(one["status"] for one in decoded) and hats["released"] > 0
    )
    assert found["release_seconds_count"] == len({one["hat"]["slot_start"] for one in decoded})
    assert began_s - 1 < found["published_timestamp_seconds"] < time.time() + 1
    assert (
        0 <= found["stuck_seconds"] < 30
        and found["closing_seconds"] == found["unread_messages"] == 0
    )
    labels = found.labels()
    assert labels["software"] == {f"udp-stream {__version__}"} and labels["policy"] == {
        decoded[0]["policy"]
    }
    for each in (under_way, found):
        assert each.secrets(messages, records) == set() and "secret" not in each.text
    for secret in (
        json.loads(messages[7])["license_plate"],
        decoded[0]["hat"]["cell"],
    ):  # it would have been found
        assert Series(f'a{{b="{secret}"}} 1\n').secrets(messages, records) == {secret}
    speed = json.loads(messages[7])["speed"]
    assert speed in Series(f"a {speed}\n").secrets(messages, records)


def worker_words(port):
    return [
        "worker",
        "--set",
        "ledger.url=l",
        "--set",
        "kafka.bootstrap=127.0.0.1:9",
        "--metrics",
        f"127.0.0.1:{port}",
    ]


def run_words(port):
    return [
        "run",
        "-",
        "--ledger",
        "l",
        "--out",
        "out.ndjson",
        "--metrics",
        f"127.0.0.1:{port}",
        *FLAGS,
    ]


@pytest.mark.parametrize("words", [run_words, worker_words])
def test_a_port_that_is_taken_ends_it_before_anything_is_made(words, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_verb(
            words(port), cwd=tmp_path, stdin=b"\n".join(told_apart(buses=15, hours=0.6))
        )
    said = done.stderr.decode()
    assert done.returncode == 4 and f"127.0.0.1, port {port}" in said and "in use" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [run_words, worker_words])
def test_without_the_package_the_extra_is_named_and_nothing_is_made(words, tmp_path):
    program = "import sys; sys.modules['prometheus_client'] = None; from udp_stream.cli.main import main; main()"
    program = program.replace("main()", "sys.exit(main())")
    done = started(
        [sys.executable, "-c", program, *words(9464)], cwd=tmp_path, input=b"", capture_output=True
    )
    assert done.returncode == 4 and b"'.[metrics]'" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [run_words, worker_words])
def test_a_port_alone_is_refused(words, tmp_path):
    arguments = [
        one.removeprefix("127.0.0.1:") if one.endswith(":9464") else one for one in words(9464)
    ]
    done = run_verb(arguments, cwd=tmp_path, stdin=b"")
    assert (
        done.returncode == 2
        and b"expected HOST:PORT" in done.stderr
        and list(tmp_path.iterdir()) == []
    )
