"""The dashboard beside a worker on Kafka: what is committed is shown as it comes, and after a
restart."""

import json
import threading
import time
from urllib.parse import quote

from streams.topics import read_published
from tests.board import dashboard, get, slots_of, wait_for
from tests.integration.deployment import worker
from tests.runtime.harness import fleet_log

WITHIN_S = 20.0
"""Whatever else the machine does: usually it takes less than one."""


def committed(city, seen, stop):
    """When each slot's estimates could first be read by a reader of committed records."""
    for topic, values, _ in read_published(city.settings.kafka, 0):
        if topic == city.topics.smoothed.name:
            for value in values:
                seen.setdefault(json.loads(value)["hat"]["slot_start"], time.monotonic())
        if stop.is_set():
            return


def all_of(address, kind):
    found = []
    for slot in slots_of(address):
        status, _, body = get(f"{address}/v1/{kind}?slot={quote(slot['slot_start'])}")
        assert status == 200
        found += body.splitlines()
    return found


def test_what_a_worker_commits_is_shown_as_it_comes_and_again_after_a_restart(city):
    here = city(fleet_log(clean=True), mean="forecast-clip", cdf="0", epsilon="2", budget="12")
    releases, _, estimates = here.embedded_smoothed()
    slots = {json.loads(line)["hat"]["slot_start"] for line in estimates}
    seen, shown, stop = {}, {}, threading.Event()
    with dashboard("--config", here.config, cwd=here.folder) as (address, process):
        assert slots_of(address) == []
        reader = threading.Thread(target=committed, args=(here, seen, stop))
        reader.start()
        try:
            here.feed()
            with worker(here, "one") as one:
                while len(shown) < len(slots):
                    for slot in slots_of(address):
                        if slot["estimates"]:
                            shown.setdefault(slot["slot_start"], time.monotonic())
                    assert one.poll() is None and process.poll() is None
                    time.sleep(0.05)
                here.wait_for_number(here.topics.smoothed, len(estimates), one)
                wait_for(lambda: len(all_of(address, "estimates")) == len(estimates))
        finally:
            stop.set()
            reader.join()
        assert seen.keys() == shown.keys() == slots
        assert max(shown[slot] - seen[slot] for slot in slots) < WITHIN_S
        assert sorted(all_of(address, "releases")) == sorted(here.releases().values())
        assert sorted(all_of(address, "estimates")) == sorted(here.smoothed())
        assert len(here.releases()) == len(releases)
        listed = slots_of(address)
    with dashboard("--config", here.config, cwd=here.folder) as (address, _):
        assert slots_of(address) == listed
