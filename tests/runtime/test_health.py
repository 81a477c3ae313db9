"""`/healthz` and `/readyz` beside the metrics: of a whole `run` whose source goes away and comes
back, and of one that hangs."""

import json
import time
from contextlib import contextmanager

from lab.process import free_ports
from tests.forked import forked_to_log
from tests.http_server import ok, serving, status
from tests.prometheus import health, healthy_once, series_once
from udp_stream.cli.metrics import HANGS_S, Metrics
from udp_stream.release.events import Backlog, SourceStatus

FLAGS = (
    "--set",
    "live.every=1s",
    "--set",
    "live.max_age=1h",
    "--set",
    "hat.timezone=Asia/Kolkata",
    "--ledger",
    "l",
    "--out",
    "out.ndjson",
)
AWAY = "the source does not answer, or the broker\n"


def snapshot(age_s=0.0):
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - age_s))
    place = {"type": "Point", "coordinates": [72.83, 21.19]}
    bus = {"observationDateTime": at, "speed": 23.5, "location": place}
    return json.dumps(
        [bus | {"license_plate": f"GJ05ZZ000{number}"} for number in range(3)]
    ).encode()


@contextmanager
def live(folder, url, port):
    words = ["run", url, *FLAGS, "--metrics", f"127.0.0.1:{port}"]
    process = forked_to_log("tests.forked", words, folder / "log", folder)
    try:
        yield process
    finally:
        process.terminate()
        assert process.wait(30) == 0, (folder / "log").read_text()


def test_a_run_is_ready_while_its_source_answers_and_says_how_long_it_does_not(tmp_path):
    (port,) = free_ports(1)
    with serving(ok(snapshot())) as server, live(tmp_path, server.url, port) as process:
        healthy_once(port, "/readyz", 200, process)
        good = series_once(port, lambda found: found["pings_total"] == 3, process)
        assert good["source_failures_total"] == good["pings_stale_total"] == 0
        assert -120 < good["clock_ahead_seconds"] < 1 and good["zone_offset_seconds"] == 19_800
        assert good["deployment_partitions"] == 1 and good["certificate_end_timestamp_seconds"] == 0
        assert good["ledger_bytes"] == sum(
            file.stat().st_size for file in (tmp_path / "l", tmp_path / "l-wal")
        )
        assert good["journal_bytes"] > 0 and good["disk_free_bytes"] > 10**6
        server.script[:] = [status(503)]
        healthy_once(port, "/readyz", 503, process)
        assert health(port, "/readyz") == (503, AWAY)
        assert health(port, "/healthz") == (200, "ok\n")  # to start it again would help nobody
        away = series_once(port, lambda found: found["source_silent_seconds"] > 1.5, process)
        assert away["source_failures_total"] >= 1 and away["pings_total"] == 3
        server.script[:] = [ok(snapshot())]
        healthy_once(port, "/readyz", 200, process)
        back = series_once(port, lambda found: found["pings_total"] > 3, process)
        assert back["source_silent_seconds"] < away["source_silent_seconds"]
        assert back["source_failures_total"] >= away["source_failures_total"]


def test_a_run_whose_source_never_answered_is_not_ready(tmp_path):
    (port,) = free_ports(1)
    with serving(status(503)) as server, live(tmp_path, server.url, port) as process:
        healthy_once(port, "/readyz", 503, process)
        assert health(port, "/healthz") == (200, "ok\n")
        server.script[:] = [ok(snapshot(age_s=7200))]
        stale = series_once(port, lambda found: found["pings_stale_total"], process)
        assert stale["pings_stale_total"] == 3 and stale["pings_total"] == 0
        healthy_once(port, "/readyz", 200, process)


def test_a_process_that_starts_is_well_and_not_ready():
    (port,) = free_ports(1)
    metrics = Metrics("udp-stream test", policy="5eed")
    with metrics.served("127.0.0.1", port):
        assert health(port, "/healthz") == (200, "ok\n") and health(port, "/readyz") == (
            503,
            "it starts\n",
        )
        metrics.observe(Backlog(0, 0, 0, 1))
        metrics.observe(SourceStatus(0.0, 0, is_away=False))
        assert health(port, "/readyz") == (200, "ok\n")


def test_a_runtime_that_hangs_is_neither_ready_nor_well():
    (port,), now_s = free_ports(1), [100.0]
    metrics = Metrics("udp-stream test", policy="5eed", clock=lambda: now_s[0])
    metrics.observe(Backlog(0, 0, 0, 1))
    metrics.observe(SourceStatus(3.0, 0, is_away=False))
    with metrics.served("127.0.0.1", port):
        now_s[0] += HANGS_S
        assert health(port, "/healthz") == health(port, "/readyz") == (200, "ok\n")
        now_s[0] += 1
        assert (
            health(port, "/healthz")
            == health(port, "/readyz")
            == (503, "no sign of life for 121 s\n")
        )
        assert "udp_stream_source_silent_seconds 124.0\n" in health(port, "/metrics")[1]
