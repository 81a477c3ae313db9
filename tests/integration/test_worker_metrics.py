"""`worker --metrics` on a real broker: the same series, and the figures of what it has released."""

import json
from collections import Counter

from tests.forked import forked_to_log
from tests.prometheus import series_once, told_apart
from udp_stream.trial.process import free_ports


def test_a_worker_shows_what_it_has_read_and_released(city):
    messages, (port,) = told_apart(buses=40, hours=1.5), free_ports(1)
    here = city(messages)
    expected, _ = here.embedded()
    here.feed([*messages, *[b"?"] * 30])  # before a tick tells the time of today: behind it the log is late
    words = ["worker", "--config", here.config, "--metrics", f"127.0.0.1:{port}"]
    process = forked_to_log("tests.forked", words, here.folder / "one.err", here.folder)
    try:
        here.wait_for(expected, process)
        found = series_once(port, lambda found: found.by("hats_total", "status").total() == len(expected), process)
        idle = series_once(port, lambda found: not found["open_slots"] and not found["unread_messages"], process)
        process.terminate()
        assert process.wait(15) == 0
    finally:
        process.kill()
        process.wait()
    records = list(here.releases().values())
    assert found.by("hats_total", "status") == Counter(json.loads(record)["status"] for record in records)
    assert found["pings_total"] == len(messages) and found.by("pings_refused_total", "reason") == {"not_json": 30}
    assert found["release_seconds_count"] == len({json.loads(record)["hat"]["slot_start"] for record in records})
    assert idle["partitions"] == 5 and idle["open_pings"] == idle["closing_seconds"] == 0 <= idle["stuck_seconds"] < 60
    assert found.labels()["policy"] == {json.loads(records[0])["policy"]}
    assert found.secrets(messages, records) == idle.secrets(messages, records) == set()
