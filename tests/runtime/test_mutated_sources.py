"""Mutated answers of a real HTTP server through the polled source: no ping is lost, and what is refused is complete."""

from collections import Counter

import pytest

from tests.gtfs import START_S, snapshot, vehicle
from tests.http_server import GTFS, ok, serving
from tests.mutations import facts, gtfs_answers, json_answers, ping
from tests.unit.test_http_source import source
from udp_stream.pings.json import JSON
from udp_stream.pings.snapshots import GTFS_REALTIME

KINDS = {"json": (json_answers, JSON, "application/json", "kmh"), "gtfs": (gtfs_answers, GTFS_REALTIME, GTFS, "mps")}
LAST = {
    "json": f"[{ping(1).replace('GJ05ZZ0001-0', 'LAST')}]".encode(),
    "gtfs": snapshot(vehicle("LAST", time_s=START_S), header_s=START_S + 10**6),
}

COUNTS = 2_000, pytest.param(100_000, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])


def is_whole(found):
    unreadable = {("not_json", "$"), ("not_gtfs_realtime", "$")}
    return bool(found) and not (len(found) == 1 and next(iter(found))[:2] in unreadable)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("kind", KINDS)
def test_of_mutated_answers_each_ping_is_handed_on_or_refused_for_its_reason(kind, count):
    answers, ping_format, content_type, unit = KINDS[kind]
    bodies = list(answers(4711, count))
    expected = [facts([body], ping_format) for body in bodies]
    whole = [one for one in expected if is_whole(one)]
    handed_on, last = Counter(), LAST[kind]
    with serving(*(ok(body, content_type) for body in (*bodies, last))) as running:
        live = source(running.url, every_s=0.0, timeout_s=30, max_bytes=10**8, unit=unit)
        for frame in live.messages():
            handed_on += facts(frame)
            if "LAST" in str(frame):
                break
        live.stop()
    whole.append(facts([last], ping_format))
    lost = set().union(*whole) - set(handed_on)
    assert not lost and not set(handed_on) - set().union(*whole)
    assert len(whole) <= len(bodies) and sum(len(one) == 3 for one in handed_on) > count / 50
