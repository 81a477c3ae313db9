"""What Prometheus reads of a process, by Prometheus' own parser, and what must never be in it."""

import json
import re
import time
import urllib.error
import urllib.request
from collections import Counter
from contextlib import suppress

from prometheus_client.parser import text_string_to_metric_families

from tests.runtime.harness import fleet_log

PATIENCE_S = 60


def told_apart(**fleet):
    """The messages of a fleet. No speed is a number that could be a count, and no two are the same."""
    found = []
    for number, message in enumerate(fleet_log(clean=True, **fleet)):
        ping = json.loads(message)
        ping["speed"] = float(f"{int(ping['speed'])}.{10_000 + number}3")
        found.append(json.dumps(ping).encode())
    return found


def text_at(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return answer.read().decode()


def health(port, path):
    """Status and words of `/healthz` or `/readyz`."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def healthy_once(port, path, status, process):
    """Wait until it answers with this status."""
    deadline, found = time.monotonic() + 2 * PATIENCE_S, None
    while found is None or found[0] != status:
        assert process.poll() is None and time.monotonic() < deadline, found
        time.sleep(0.05)
        with suppress(OSError):  # it does not listen yet
            found = health(port, path)


class Series:
    def __init__(self, text):
        self.text = text
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.samples = [sample for family in self.families.values() for sample in family.samples]
        self.kinds = {name: family.type for name, family in self.families.items()}

    def __getitem__(self, name):
        (value,) = [one.value for one in self.samples if one.name == f"udp_stream_{name}"]
        return value

    def by(self, name, label):
        values = {
            one.labels[label]: one.value for one in self.samples if one.name == f"udp_stream_{name}"
        }
        return Counter({key: value for key, value in values.items() if value})

    def labels(self):
        found = {}
        for sample in self.samples:
            for label, value in sample.labels.items():
                found.setdefault(label, set()).add(value)
        return found

    def secrets(self, messages, records):
        pings, words = [json.loads(one) for one in messages], set(re.findall(r"[\w.]+", self.text))
        speeds = {ping["speed"] for ping in pings}
        places = {number for ping in pings for number in ping["location"]["coordinates"]}
        cells = {json.loads(record)["hat"]["cell"] for record in records}
        texts = (
            {ping["license_plate"] for ping in pings}
            | cells
            | {str(one) for one in speeds | places}
        )
        assert len(cells) > 3 and len(speeds) == len(pings) > 1000
        return (texts & words) | ({sample.value for sample in self.samples} & (speeds | places))


def series_once(port, holds, process):
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            found = Series(text_at(port))
        except OSError:  # it does not listen yet
            found = None
        if found is not None and holds(found):
            return found
        assert process.poll() is None and time.monotonic() < deadline, found and found.text
        time.sleep(0.1)
