"""The examples in two languages, by the schemas alone. They need Node.js and npm: long tests."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest

from tests.integration.deployment import worker
from tests.runtime.harness import fleet_log

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def schema(name):
    return jsonschema.Draft202012Validator(
        json.loads((ROOT / "docs" / f"{name}.schema.json").read_text("utf-8"))
    )


def python(_folder, name):
    return [sys.executable, EXAMPLES / "python" / f"{name}.py"]


def node(folder, name):
    """Its package is fetched once, into a copy."""
    here = folder / "node"
    if not here.exists():
        shutil.copytree(EXAMPLES / "node", here, ignore=shutil.ignore_patterns("node_modules"))
        command = ["npm", "install", "--no-audit", "--no-fund", "--no-save"]
        done = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"npm install: is Node.js here? {done.stderr}"
    return ["node", here / f"{name}.mjs"]


@pytest.mark.long
@pytest.mark.parametrize("language", [python, node], ids=["python", "node"])
def test_pings_go_in_and_releases_come_out(city, tmp_path, language):
    messages = fleet_log(clean=True, hours=0.6)
    ping, release = schema("ping"), schema("release")
    for message in messages:
        ping.validate(json.loads(message))
    here = city(messages)
    bootstrap, topics = here.settings.kafka.bootstrap, here.topics
    send = [*language(tmp_path, "producer"), bootstrap, topics.pings.name]
    sent = subprocess.run(
        send, input=b"\n".join(messages) + b"\n", capture_output=True, timeout=100
    )
    assert (sent.returncode, sent.stderr.splitlines()[-1]) == (
        0,
        b"%d pings sent" % len(messages),
    ), sent.stderr
    records = here.read(topics.pings)
    of_plate = {(json.loads(record.value)["license_plate"], record.partition) for record in records}
    assert len(records) == len(messages) and {record.key for record in records} == {None}
    assert (
        len(of_plate)
        == len({plate for plate, _ in of_plate})
        > len({partition for _, partition in of_plate})
        > 1
    )

    here.set_idle("1s")
    with worker(here) as running:
        here.wait_for_number(here.topics.release, 50, running)
        expected = {name: json.loads(payload) for name, payload in here.releases().items()}
        for payload in expected.values():
            release.validate(payload)
        read = [*language(tmp_path, "consumer"), bootstrap, topics.release.name, "50"]
        read_out = subprocess.run(read, capture_output=True, text=True, timeout=100)
    assert read_out.returncode == 0, read_out.stderr
    lines = [line.split(" ") for line in read_out.stdout.splitlines()]
    everything = {name: json.loads(payload) for name, payload in here.releases().items()}
    assert len(lines) == len({line[0] for line in lines}) == 50
    for name, status, *mean in lines:
        ours = everything[name]
        assert status == ours["status"]
        expected_mean = ours["mean"] and [
            ours["mean"]["value_kmh"],
            *ours["mean"]["interval95_kmh"],
        ]
        assert [float(one) for one in mean] == (expected_mean or [])


@pytest.mark.long
@pytest.mark.parametrize("language", [python, node], ids=["python", "node"])
def test_a_few_pings_of_a_live_feed_do_not_wait_for_more(city, tmp_path, language):
    here = city([])
    messages = fleet_log(clean=True, hours=0.6)[:3]
    send = [*language(tmp_path, "producer"), here.settings.kafka.bootstrap, here.topics.pings.name]
    with subprocess.Popen(send, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as sending:
        sending.stdin.write(b"\n".join(messages) + b"\n")
        sending.stdin.flush()
        deadline = time.monotonic() + 20
        while len(here.read(here.topics.pings)) < 3 and time.monotonic() < deadline:
            time.sleep(0.5)
        came = len(here.read(here.topics.pings))
        assert came == 3 and sending.poll() is None
        _, said = sending.communicate(timeout=30)
    assert (sending.returncode, said) == (0, b"3 pings sent\n")
