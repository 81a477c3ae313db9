"""The whole deployment of docker-compose.yml, from its images, as a user starts it."""

import json
import os
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen
from uuid import uuid4

import pytest

from lab.process import free_ports

ROOT = Path(__file__).parents[2]
UP_SECONDS = 300
RELEASE_SECONDS = 200
CONFIG = """\
[hat]
slot = "1m"
grace = "5s"
[budget]
period = "1h"
[release]
mean_epsilon = 0.5
"""


class Deployment:
    def __init__(self, folder):
        self.name = f"udp-stream-test-{uuid4().hex[:8]}"
        (folder / "trial.toml").write_text(CONFIG)
        (folder / "trial.toml").chmod(0o644)
        kafka_port, self.dashboard_port = free_ports(2)
        self.environment = os.environ | {
            "UDP_STREAM_CONFIG": str(folder / "trial.toml"),
            "UDP_STREAM_KAFKA_PORT": str(kafka_port),
            "UDP_STREAM_DASHBOARD_PORT": str(self.dashboard_port),
            "UDP_STREAM_FLEET": "200",
            "UDP_STREAM_FLEET_AGO": "4m",
        }

    def run(self, *words, seconds):
        command = [
            "docker",
            "compose",
            "--project-name",
            self.name,
            "--project-directory",
            ROOT,
            *words,
        ]
        return subprocess.run(
            command, env=self.environment, capture_output=True, timeout=seconds, check=False
        )

    def compose(self, *words, seconds=60):
        done = self.run(*words, seconds=seconds)
        assert done.returncode == 0, f"{words}: {done.stderr.decode()[-1500:]}\n{self.logs()}"
        return done.stdout

    def logs(self):
        services = ("worker", "dashboard", "feed", "topics", "redis", "kafka")
        told = [
            self.run("logs", "--timestamps", "--tail", "40", one, seconds=60).stdout
            for one in services
        ]
        return "\n".join(text.decode(errors="replace")[-6000:] for text in told)

    def program(self, *words):
        return self.compose("exec", "-T", "worker", *words)

    def releases(self):
        told = self.program("udp-stream", "releases", "--config", "/etc/udp-stream.toml")
        return [json.loads(line) for line in told.splitlines()]

    def wait_for_releases(self, slots):
        deadline = time.monotonic() + RELEASE_SECONDS
        while True:
            found = self.releases()
            if (
                len({one["hat"]["slot_start"] for one in found if one["status"] == "released"})
                >= slots
            ):
                return found
            assert time.monotonic() < deadline, f"{len(found)} records; {self.logs()}"
            time.sleep(1)


@contextmanager
def deployment(folder):
    deployed = Deployment(folder)
    try:
        yield deployed
    finally:
        deployed.compose("down", "--volumes", "--timeout", "5", seconds=120)


@pytest.mark.containers
@pytest.mark.timeout(900)
def test_up_waits_until_all_serve_and_workers_share_one_ledger_and_one_key(tmp_path):
    with deployment(tmp_path) as deployed:
        deployed.compose("up", "--wait", "--scale", "worker=2", seconds=UP_SECONDS)
        states = [
            json.loads(line) for line in deployed.compose("ps", "--format", "json").splitlines()
        ]
        assert sorted(state["Service"] for state in states) == [
            "dashboard", "feed", "kafka", "redis", "worker", "worker",
        ]  # fmt: skip
        assert {state["Health"] for state in states} == {"healthy"}
        assert (
            deployed.program("stat", "--format", "%a %U", "/var/lib/udp-stream/plates.key")
            == b"600 udp-stream\n"
        )
        found = deployed.wait_for_releases(2)
        shown = json.load(
            urlopen(f"http://127.0.0.1:{deployed.dashboard_port}/v1/slots", timeout=10)
        )["slots"]
        assert {one["hat"]["slot_start"] for one in found} <= {slot["slot_start"] for slot in shown}
        assert len({one["release_id"] for one in found}) == len({json.dumps(one) for one in found})
        assert all(one["mean"]["epsilon"] == 0.5 for one in found if one["status"] == "released")
        deployed.program("udp-stream", "ledger", "verify", "--config", "/etc/udp-stream.toml")
        deployed.program("udp-stream", "doctor", "--config", "/etc/udp-stream.toml")
        # Who comes back finds the ledger, the key and the log as they were.
        deployed.compose("down", "--timeout", "5", seconds=120)
        deployed.compose("up", "--wait", "--scale", "feed=0", seconds=UP_SECONDS)
        again = {one["release_id"]: one for one in deployed.releases()}
        assert all(again[one["release_id"]] == one for one in found)
        deployed.program("udp-stream", "ledger", "verify", "--config", "/etc/udp-stream.toml")
