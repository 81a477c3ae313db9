"""Metrics: labels of closed lists, whatever is read; times that grow by themselves; a port that is
spelt out."""

import json
import re
import socket
import struct
import threading
import time
from argparse import ArgumentTypeError
from collections import Counter
from math import isnan
from pathlib import Path
from typing import get_args
from zoneinfo import ZoneInfo

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest

from lab.process import free_ports
from tests.prometheus import Series, text_at
from udp_stream.base.errors import DependencyUnavailable
from udp_stream.cli import metrics as metrics_module
from udp_stream.cli.metrics import Metrics
from udp_stream.cli.parsers import listening
from udp_stream.dashboard.server import Dashboard, _Series
from udp_stream.dashboard.slots import Slots
from udp_stream.pings.decode import PingDecoder, PingRules, Reason
from udp_stream.pings.json import JSON
from udp_stream.release.events import (
    Backlog,
    BatchRead,
    DiskStatus,
    SlotCounted,
    SlotPublished,
    SlotsDropped,
    SourceStatus,
)
from udp_stream.release.record import Status

ROOT = Path(__file__).parents[2]
POLICY = "0d6992491d5ca62e"
NAME = re.compile(r"\budp_stream_\w+")
CLOSED = {
    "software": {"udp-stream test"},
    "policy": {POLICY},
    "reason": set(map(str, Reason)),
    "status": set(get_args(Status)),
    "le": {*(str(seconds) for seconds in metrics_module.SECONDS), "+Inf"},
}


class Clock:
    now_s = 100.0

    def __call__(self):
        return self.now_s


def series(metrics):
    return Series(generate_latest(metrics.registry).decode())


def fresh(clock=None):
    return Metrics("udp-stream test", POLICY, clock=clock or Clock())


def names():
    """Names as rules and dashboards use them: counters with `_total`, the information with `_info`."""
    of_kind = {"counter": "_total", "info": "_info"}
    return {family.name + of_kind.get(family.type, "") for family in fresh().registry.collect()}


def test_every_series_is_of_the_parser_s_kind_and_has_no_time_of_its_making():
    found = series(fresh())
    kinds = {name.removeprefix("udp_stream_"): kind for name, kind in found.kinds.items()}
    assert {name for name, kind in kinds.items() if kind == "counter"} == {
        "pings", "pings_refused", "pings_stale", "hats", "source_failures",
    }  # fmt: skip
    assert (
        kinds["release_seconds"] == "histogram"
        and kinds["info"] == "gauge"
        and len(kinds) == len(names()) == 27
    )
    assert not [sample.name for sample in found.samples if sample.name.endswith("_created")]
    assert found.labels() == CLOSED


def test_rules_and_the_manual_name_just_what_there_is():
    (group,) = yaml.safe_load((ROOT / "deploy" / "alerts.yaml").read_text())["groups"]
    alerts = [rule for rule in group["rules"] if "alert" in rule]
    of_dashboard = {family.name for family in _Series(Dashboard(Slots(48))).collect()}
    texts = [
        rule["expr"] + rule.get("annotations", {}).get("summary", "") for rule in group["rules"]
    ]
    assert {name for text in texts for name in NAME.findall(text)} <= names() | of_dashboard
    assert len({rule["alert"] for rule in alerts}) == len(alerts) == 23
    made = {rule["record"] for rule in group["rules"] if "record" in rule}
    assert {name for text in texts for name in re.findall(r"udp_stream:\w+", text)} == made
    _, _, section = (ROOT / "docs" / "operations.md").read_text().partition("### Metrics\n")
    rows = [
        line.split("|")[1]
        for line in section.partition("\n### ")[0].splitlines()
        if line.startswith("| `udp_")
    ]
    assert {name for row in rows for name in NAME.findall(row)} == names()


def test_a_unit_is_in_doubt_as_long_as_slots_are_withheld_for_it():
    metrics, found = fresh(), []
    for hats in (
        {"released": 2},
        {"withheld_unit": 3},
        {"withheld_unit": 1},
        {"withheld_few_plates": 1},
    ):
        metrics.observe(SlotPublished(0, hats))
        found.append(metrics.registry.get_sample_value("udp_stream_unit_in_doubt"))
    assert found == [0, 1, 1, 0]


def hostile_pings():
    """Pings of which any field may be anything, whole messages that are none, and words that would
    end a label."""
    anything = (
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(max_size=9)
        | st.just('"} 1\nsecret 1')
    )
    good = {"license_plate": "GJ05ZZ0001", "observationDateTime": "2024-01-08T10:00:05+05:30", "speed": 23.5,
            "location": {"type": "Point", "coordinates": [72.83, 21.19]}}  # fmt: skip
    changed = st.dictionaries(st.sampled_from(list(good)), anything, max_size=2)
    pings = changed.map(lambda fields: json.dumps(good | fields).encode())
    return st.lists(pings | st.binary(max_size=20), max_size=20)


@given(hostile_pings())
def test_no_message_makes_a_label(messages):
    metrics, rules = fresh(), PingRules(max_kmh=65, reject_above_kmh=200)
    pings, refusals = PingDecoder(rules, JSON).decode(messages)
    refused = Counter(one.reason for one in refusals)
    metrics.observe(BatchRead(len(messages), len(pings), refused, None))
    found = series(metrics)
    assert found.labels() == CLOSED and len(found.samples) == len(series(fresh()).samples)
    assert found["pings_total"] == len(pings) and found.by(
        "pings_refused_total", "reason"
    ).total() == len(refusals)
    assert "secret" not in found.text and "GJ05" not in found.text


def test_a_slot_takes_from_its_first_part_s_count_to_its_last_part_s_publication():
    clock = Clock()
    metrics = fresh(clock)
    metrics.observe(SlotCounted(0, repeats=0))
    clock.now_s += 2
    metrics.observe(SlotCounted(0, repeats=0))
    metrics.observe(SlotCounted(3_600_000, repeats=0))
    metrics.observe(SlotPublished(0, {"released": 3}))
    clock.now_s += 5
    assert series(metrics)["closing_seconds"] == 7 and series(metrics)["release_seconds_count"] == 0
    metrics.observe(SlotPublished(0, {"released": 1, "withheld_budget": 2}))
    found = series(metrics)
    assert found["release_seconds_sum"] == 7 and found["closing_seconds"] == 5
    assert found.by("hats_total", "status") == {"released": 4, "withheld_budget": 2}


def test_a_slot_that_another_worker_has_is_not_waited_for():
    clock = Clock()
    metrics = fresh(clock)
    metrics.observe(SlotCounted(0, repeats=0))
    clock.now_s += 600
    metrics.observe(SlotsDropped())
    assert series(metrics)["closing_seconds"] == 0
    metrics.observe(SlotPublished(0, {"released": 1}))  # it was under way
    found = series(metrics)
    assert found["release_seconds_count"] == 0 and found.by("hats_total", "status") == {
        "released": 1
    }


def test_a_runtime_that_says_nothing_any_more_is_stuck():
    clock = Clock()
    metrics = fresh(clock)
    metrics.observe(Backlog(slots=2, pings=400, unread=7, partitions=8, still_s=15.0))
    assert series(metrics)["stuck_seconds"] == 15
    clock.now_s += 40
    found = series(metrics)
    assert found["stuck_seconds"] == 55
    assert [
        found[name] for name in ("open_slots", "open_pings", "unread_messages", "partitions")
    ] == [2, 400, 7, 8]


def test_what_is_told_is_shown():
    now_s, certificate_s = time.time(), 2_000_000_000.0
    metrics = Metrics(
        "udp-stream test", POLICY, ZoneInfo("Asia/Kolkata"), Clock(), certificate_s=certificate_s
    )
    assert (
        series(metrics)["clock_ahead_seconds"] == 0
        and series(metrics)["source_silent_seconds"] == 0
    )
    metrics.observe(Backlog(1, 4, 0, 3, clock_ms=round((now_s + 3600) * 1000), of_partitions=5))
    assert isnan(series(metrics)["disk_free_bytes"])
    metrics.observe(DiskStatus(ledger=4096, journal=77, free=10**9))
    metrics.observe(SourceStatus(9.0, 4, is_away=True, stale=6, certificate_s=certificate_s + 1))
    metrics.observe(SourceStatus(1.5, 5, is_away=False, stale=6, certificate_s=certificate_s - 1))
    found = series(metrics)
    assert 3590 < found["clock_ahead_seconds"] <= 3601 and found["zone_offset_seconds"] == 19_800
    assert [found[f"{name}_bytes"] for name in ("ledger", "journal", "disk_free")] == [
        4096,
        77,
        10**9,
    ]
    assert found["source_failures_total"] == 5 and found["pings_stale_total"] == 6
    assert (
        found["source_silent_seconds"] == 1.5
        and found["certificate_end_timestamp_seconds"] == certificate_s - 1
    )
    assert (found["partitions"], found["deployment_partitions"]) == (3, 5)
    assert now_s - 1 < found["started_timestamp_seconds"] < now_s + 60


@pytest.mark.parametrize(
    "text", ["127.0.0.1:9464", "0.0.0.0:1", "node-1.example.org:65535", "[::1]:9464"]
)
def test_a_host_and_its_port_are_read(text):
    host, port = listening(text)
    assert text in (f"{host}:{port}", f"[{host}]:{port}")


@pytest.mark.parametrize(
    "text",
    ["9464", ":9464", "localhost", "localhost:", "localhost:0", "localhost:65536", "localhost:http", "::1:9464",
     "http://localhost:9464", "localhost:9464/metrics", "localhost 9464", "*:9464", ""],
)  # fmt: skip
def test_any_other_spelling_is_refused_with_what_is_expected(text):
    with pytest.raises(ArgumentTypeError, match=r"expected HOST:PORT.*1 to 65535"):
        listening(text)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b"])
def test_a_host_that_is_not_ours_is_named(host):
    with pytest.raises(DependencyUnavailable, match=re.escape(host)), fresh().served(host, 9464):
        pytest.fail("it listens")


def test_clients_that_leave_or_say_nothing_cost_no_thread_and_no_line(capfd, limits):
    limits(metrics_module, CLIENT_S=0.2)
    (port,) = free_ports(1)
    before = threading.active_count()
    with fresh().served("127.0.0.1", port):
        with socket.create_connection(("127.0.0.1", port)) as silent:
            assert silent.recv(1) == b""  # dropped
        with socket.create_connection(("127.0.0.1", port)) as gone:
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
            gone.sendall(b"GET /met")
        assert Series(text_at(port))["pings_total"] == 0
    for thread in threading.enumerate():
        if "process_request" in thread.name:
            thread.join(5)
    assert threading.active_count() == before and capfd.readouterr().err == ""
