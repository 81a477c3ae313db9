"""What a worker reports of itself, and what follows from reports: alive, silent, stuck, in agreement or not."""

import json
import re
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from streams.asked import require_asked_alike
from tests.runtime.harness import fleet_log, frames_of
from tests.unit.test_query_settings import BUDGET, NEAREST
from udp_stream.adapters.settings import load
from udp_stream.adapters.work_reports import RunReports, about_us, recent_work, rules_of, run_seen
from udp_stream.cli.status_page import FOR_OPERATORS, Status
from udp_stream.errors import ConfigError
from udp_stream.pings.decode import Reason
from udp_stream.release.facts import BatchRead, SlotPublished
from udp_stream.release.recent_work import RecentWork
from udp_stream.release.standing import asked_digest
from udp_stream.release.worker_health import Group, GroupPartition, Seen, State, agreement, troubles
from udp_stream.release.worker_report import (
    SLOTS_MAX,
    LastRelease,
    OpenSlotReport,
    PartitionReport,
    decode_report,
    encode_report,
)
from udp_stream.testing import a_report
from udp_stream.windows.slots import LogPlaces, OpenSlot
from udp_stream.windows.source import ReadingRules, SourceCheckpoint, SourceReader
from udp_stream.windows.tables import SlotGrid

NOW_S = 1_704_706_200.0  # 2024-01-08 15:00 in Surat
HOUR_MS = 3_600_000


@pytest.fixture
def recent():
    return RecentWork(SlotGrid(3600, ZoneInfo("Asia/Kolkata")), grace_ms=120_000, stuck_after_s=30.0)


def seen(name, age_s=1.0, epsilon="10", named=True, **work):
    report = a_report(name, epsilon)
    return Seen(replace(report, about=replace(report.about, is_named=named), work=replace(report.work, **work)), age_s)


def read(messages, settings, batch=500):
    """A reader of this log, which comes in at the times of its pings."""
    rules = ReadingRules(
        settings.decoder, settings.window_rules, settings.calendar.slots, settings.policy.resolution, str.encode
    )
    reader, offset = SourceReader(rules, SourceCheckpoint(0)), 0
    for frame in frames_of(messages, batch):
        times, _ = settings.decoder.decode(frame)
        at = np.full(len(frame), int(times.time_ms.max()) if len(times) else 0)
        reader.read(frame, LogPlaces(np.arange(offset, offset + len(frame)), at, np.zeros(len(frame), bool)))
        offset += len(frame)
        yield reader


def test_open_slots_are_counted_as_they_grow_and_no_cell_is_looked_for_twice():
    settings = load(None, ("hat.slot=15m", "hat.resolution=12"), {})  # nearly a cell for each ping: one missed shows
    for reader in read(fleet_log(clean=True), settings):
        now = reader.open_slots()
        assert sum(slot.pings for slot in now) == reader.open_pings
        for open_slot, slot in zip(now, sorted(reader._windows._open.items()), strict=True):
            columns = slot[1].columns(str.encode)
            assert open_slot == (columns.start_ms, columns.end_ms, columns.plate.size, frozenset(columns.cell.tolist()))
    assert any(slot.pings for slot in now)


def test_a_cell_of_two_partitions_is_one_hat_and_the_oldest_slots_are_listed(recent):
    slots = [OpenSlot(0, HOUR_MS, 3, frozenset({7, 8})), OpenSlot(0, HOUR_MS, 2, frozenset({8, 9}))]
    work = recent.work(NOW_S, slots)
    assert [(slot.pings, slot.hats) for slot in work.open_slots] == [(5, 3)]
    many = [OpenSlot(hour * HOUR_MS, (hour + 1) * HOUR_MS, 1, frozenset({7})) for hour in range(100)]
    work = recent.work(NOW_S, reversed(many))
    assert len(work.open_slots) == SLOTS_MAX and work.open_pings == 100
    assert work.open_slots[0].slot_start == "1970-01-01T05:30:00+05:30"


def test_refusals_are_those_of_the_last_ten_minutes_and_a_release_of_several_shards_is_one(recent):
    recent.observe(BatchRead(9, 5, {Reason.LATE: 3}, 7_000), NOW_S)
    recent.observe(BatchRead(9, 5, {Reason.LATE: 1, Reason.NOT_JSON: 2}, 6_000), NOW_S + 300)
    work = recent.work(NOW_S + 300)
    assert (work.pings, work.refused) == (10, {"late": 4, "not_json": 2})
    assert work.newest_ping == "1970-01-01T05:30:07+05:30"
    assert recent.work(NOW_S + 601).refused == {"late": 1, "not_json": 2}
    assert recent.work(NOW_S + 901).refused == {} and recent.work(NOW_S + 901).pings == 0
    for hour, released in ((0, 9), (1, 2), (1, 3)):
        recent.observe(SlotPublished(hour * HOUR_MS, {"released": released, "withheld_budget": 1}), NOW_S + hour)
    last = recent.work(NOW_S + 901).last_release
    assert last == LastRelease(
        "1970-01-01T06:30:00+05:30", {"released": 5, "withheld_budget": 2}, "2024-01-08T15:00:01+05:30"
    )


def test_a_closed_slot_that_does_not_move_on_is_stuck_and_one_of_many_that_do_is_not(recent):
    for second in range(100):  # a backlog: one slot a second, the last of them waits for all others
        closing = {(0, hour): "counted" for hour in range(second, 200)}
        assert recent.work(NOW_S + second, closing=closing).stuck_seconds == 0
    work = recent.work(NOW_S + 130, closing=closing)
    assert work.stuck_seconds == 31.0 and {slot.seconds for slot in work.closing} == {130.0}
    assert recent.work(NOW_S + 131).stuck_seconds == 0  # none is closing any more


@pytest.mark.parametrize(
    ("worker", "state", "status", "said"),
    [
        (seen("one", 30.0), State.ALIVE, 0, ""),
        (seen("one", 30.2), State.SILENT, 4, "one has been silent for 30 s"),
        (seen("one", stuck_seconds=45.0), State.STUCK, 4, "one has done nothing for 45 s"),
        (seen("one", 40.0, stuck_seconds=45.0), State.SILENT, 4, "silent"),
        (seen("one", 9000.0, ended=5), State.ENDED, 5, "one ended with status 5"),
        (seen("one", 9000.0, ended=0), State.ENDED, 4, "no worker runs"),
    ],
)
def test_each_state_has_its_rule_and_its_status(worker, state, status, said):
    wrong = troubles([worker])
    assert worker.state == state and max((one.status for one in wrong), default=0) == status
    assert said in "; ".join(one.text for one in wrong)


def test_one_that_cannot_come_back_under_its_name_is_soon_forgotten():
    ages = 599.0, 601.0, 86_399.0, 86_401.0
    assert [seen("one", age_s, named=True).is_remembered for age_s in ages] == [True, True, True, False]
    assert [seen("one", age_s, named=False).is_remembered for age_s in ages] == [True, False, False, False]


def test_keys_that_differ_are_named_with_their_values_and_whose_they_are():
    workers = [seen("one"), seen("two"), seen("three", epsilon="5"), seen("silent", 99.0, epsilon="7")]
    found = agreement(workers)
    assert found.holds is False and str(found) == "budget.epsilon is 10 (one, two) and 5 (three)"
    assert agreement(workers[:2]).holds is True and agreement(workers[3:]).holds is None
    (trouble,) = [one for one in troubles(workers) if one.status == 3]
    assert trouble.text == "the workers' settings differ: budget.epsilon is 10 (one, two) and 5 (three)"


def of_settings(*flags, name="one"):
    about = about_us(load(None, flags, {}), "worker", name, "udp-stream test", "5eed")
    return Seen(replace(a_report(name), about=about), 1.0)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("budget.epsilon=5",), "budget.epsilon is 5 (one) and 10 (this configuration)"),
        (("kafka.disorder=2m",), "kafka.disorder is 2m (one) and 1m (this configuration)"),
        (("kafka.transactions=false",), "kafka.transactions is false (one) and true (this configuration)"),
        (("source.plate=bus",), "source.plate is bus (one) and unset (this configuration)"),
        (("release.mean=levy", "forecast.counts=off"), "release.mean is levy (one) and auto (this configuration)"),
        (("kafka.idle_timeout=9m", "ledger.url=elsewhere"), ""),
    ],
)
def test_what_decides_releases_is_compared_and_the_rest_is_not(flags, said):
    found = agreement([of_settings(*flags)], rules_of(load(None, (), {})))
    assert found.holds is (said == "") and said in str(found)


def test_standing_queries_are_compared_by_a_digest_as_they_name_places(tmp_path):
    """Of three and of four nearest plates at a stop: the place is not in the report."""
    digests = set()
    for k in (3, 4):
        config = tmp_path / "city.toml"
        config.write_text(BUDGET + NEAREST.replace("k = 3", f"k = {k}"))
        settings = load(config, (), {})
        about = about_us(settings, "worker", "one", "udp-stream test", "5eed")
        assert b"97.74" not in encode_report(replace(a_report("one"), about=about))
        digests.add(about.rules["queries, query (digest)"])
    assert len(digests) == 2 and "queries, query (digest)" not in rules_of(load(None, (), {})).rules


def test_a_worker_is_refused_beside_running_ones_with_other_queries_alone(tmp_path):
    """Not beside itself before it was killed, nor beside those that are silent; and one without queries is refused."""
    (config := tmp_path / "city.toml").write_text(BUDGET + NEAREST)
    about = about_us(settings := load(config, (), {}), "worker", "one", "udp-stream test", "5eed")
    asks, ours = replace(a_report("one"), about=about), asked_digest(settings.standing_queries, settings.zone)
    for asked, name, age_s in ((ours, "two", 1.0), ("", "one", 1.0), ("", None, 95.0)):
        require_asked_alike(asked, name, [Seen(asks, age_s)])
    for asked, name in (("", "two"), ("", None), ("5eed", "two")):
        with pytest.raises(ConfigError, match=r"the worker one asks other .* counts as running for 30 s"):
            require_asked_alike(asked, name, [seen("two"), Seen(asks, 1.0)][asked == "5eed" :])


def test_of_versions_that_name_the_same_keys_the_digests_still_differ():
    other = replace(a_report("two"), about=replace(a_report("two").about, policy="cafe"))
    found = agreement([seen("one"), Seen(other, 1.0)])
    assert found.holds is False and "policy is" in str(found) and "cafe (two)" in str(found)


def test_a_partition_without_a_worker_and_a_member_that_does_not_report_are_trouble():
    pings = [GroupPartition("bus.pings.v1", number, 0, 10, 4) for number in (0, 1)]
    held = PartitionReport("bus.pings.v1", 0, 10, 0)
    worker = seen("one", partitions=(held,))
    assert [one.text for one in troubles([worker], Group(tuple(pings), 1))] == ["no worker reads bus.pings.v1[1]"]
    (trouble,) = troubles([worker], Group((pings[0],), 2))
    assert trouble.text == "the group has 2 members, and only 1 of them report"
    assert troubles([worker], Group((pings[0],), 1)) == []
    assert [one.text for one in troubles([], Group(tuple(pings), 2))] == [
        "the group has 2 members, and none of them reports"
    ]
    assert [one.text for one in troubles([], Group(tuple(pings), 0))] == ["no worker runs"]


def texts_in(value):
    """Every text in a message, with its place: of a name and of what it names."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield key
            yield from texts_in(one)
    elif isinstance(value, list):
        for one in value:
            yield from texts_in(one)
    else:
        yield str(value)


def test_a_report_of_a_whole_log_holds_no_plate_no_speed_no_position_and_no_cell():
    """Of a faulty log: whatever was in its messages, none of these is anywhere in the report or on the page."""
    settings = load(None, ("hat.slot=15m", "hat.resolution=7", "kafka.status_every=5s"), {})
    messages = fleet_log()
    recent = recent_work(settings)
    *_, reader = read(messages, settings)
    pings, refusals = settings.decoder.decode(messages)
    reasons = {refusal.reason: 1 for refusal in refusals}
    recent.observe(BatchRead(len(messages), len(pings), reasons, int(pings.time_ms.max())), NOW_S)
    recent.observe(SlotPublished(reader.open_slots()[0].start_ms, {"released": 3}), NOW_S)
    held = [PartitionReport("bus.pings.v1", 0, reader.next_offset, 4)]
    work = recent.work(NOW_S, reader.open_slots(), held, {(0, 0): "counted"})
    report = replace(a_report("one"), about=about_us(settings, "worker", "one", "udp-stream 0", "5eed"), work=work)
    payload = encode_report(report)
    assert decode_report(payload) == report and len(work.refused) >= 5 and work.open_slots
    page = Status("city", [Seen(report, 1.0)], agreement([]), agreement([]), [], None, settings.zone)
    shown = payload.decode() + "\n".join(page.lines()) + json.dumps(page.as_json())
    plates = set(pings.plates) | {plate for message in messages for plate in re.findall(r'"GJ\w+"', str(message))}
    cells = {f"{cell:x}" for slot in reader.open_slots() for cell in slot.cells}
    assert plates and cells and not [text for text in plates | cells if text.strip('"') in shown]
    box = {"pings.box"}  # public, a setting
    numbers = {text for text in texts_in(json.loads(payload)) if re.fullmatch(r"\d+\.\d{2,}", text)} - box
    assert numbers == set()  # speeds and positions have fractions; ages of seconds have one digit


def a_page(**given):
    open_slot = OpenSlotReport("2024-01-08T23:00:00+05:30", "2024-01-09T00:00:00+05:30", 1200, 13)
    partitions = [PartitionReport("bus.pings.v1", n, 5, 1) for n in (0, 1, 3)] + [
        PartitionReport("bus.parts.v1", 0, 5, 0)
    ]
    last = LastRelease("2024-01-08T22:00:00+05:30", {"released": 7, "withheld_budget": 6}, "2024-01-08T23:02:01+05:30")
    one = seen("one", partitions=tuple(partitions), open_slots=(open_slot,), open_pings=1200, last_release=last,
               refused={"late": 3}, pings=24000, newest_ping="2024-01-08T09:00:00+05:30")  # fmt: skip
    workers = given.pop("workers", [one, seen("two", 95.0, partitions=(PartitionReport("bus.pings.v1", 2, 5, None),))])
    return Status("city", workers, agreement(workers), agreement(workers), troubles(workers), None,
                  ZoneInfo("Asia/Kolkata"), **given)  # fmt: skip


def test_the_page_says_each_thing_once_in_words():
    lines = a_page(group=Group((GroupPartition("bus.pings.v1", 0, 0, 10, 4),), 2)).lines()
    assert lines[0] == f"city ({FOR_OPERATORS})"
    for said in (
        "reads bus.pings.v1[0-1, 3], bus.parts.v1[0]; 3 messages unread; the newest ping was 0 s old",
        "in 10 min: 24,000 pings, 3 refused (3 late)",
        "open: 2024-01-08 23:00-2024-01-09 00:00 IST, 1,200 pings in 13 HATs",
        "last slot out: that of 2024-01-08 22:00 IST, 13 HATs, 7 released, at 23:02:01 IST",
        "unknown lag",
        "group: 2 members; 6 messages after its commits, with those of open slots",
        "trouble: two has been silent for 2 min",
    ):
        assert sum(said in line for line in lines) == 1, (said, lines)
    assert any(line.startswith("worker two: silent for 2 min, since 09:00:00 IST") for line in lines)


def test_json_has_what_the_page_has_and_the_exit_status():
    page = a_page()
    found = json.loads(json.dumps(page.as_json()))
    assert found["schema"] == "udp-stream/status/1" and found["status"] == page.exit_status == 4
    assert [one["state"] for one in found["workers"]] == ["alive", "silent"]
    assert found["workers"][0]["work"]["open_slots"][0]["hats"] == 13 and found["settings_agree"] is True
    assert found["troubles"] == [{"status": 4, "text": "two has been silent for 2 min"}]


def test_of_several_troubles_the_highest_status_counts():
    statuses = [seen("one", ended=5), seen("two", epsilon="1"), seen("three"), seen("four", 99.0)]
    assert {one.status for one in troubles(statuses)} == {3, 4, 5} and a_page(workers=statuses).exit_status == 5
    assert a_page(workers=statuses[1:3]).exit_status == 3 and a_page(workers=statuses[1:2]).exit_status == 0


def test_a_run_keeps_its_report_for_its_owner_alone_and_one_that_cannot_be_read_is_none(tmp_path):
    settings = load(None, ("kafka.status_every=10s",), {})
    now = [NOW_S]
    about = about_us(settings, "run", "here", "udp-stream test", "5eed")
    reports = RunReports(about, recent_work(settings), tmp_path, lambda: now[0])
    *_, reader = read(fleet_log(clean=True)[:500], settings)
    assert run_seen(tmp_path, NOW_S) is None
    reports.report_due(reader)
    assert (tmp_path / "report").stat().st_mode & 0o777 == 0o600
    assert run_seen(tmp_path, NOW_S + 3).state == State.ALIVE
    assert run_seen(tmp_path, NOW_S + 31).state == State.SILENT
    now[0] += 9
    reports.report_due(reader)
    assert run_seen(tmp_path, NOW_S).report.work.reported_at.startswith("2024-01-08T15:00:00")
    now[0] += 1
    reports.report_due(reader)
    assert run_seen(tmp_path, NOW_S).report.work.reported_at.startswith("2024-01-08T15:00:10")
    reports.report(reader, ended=0)
    assert run_seen(tmp_path, NOW_S).state == State.ENDED
    (tmp_path / "report").write_bytes(msgspec.json.encode({"about": 1}))
    assert run_seen(tmp_path, NOW_S) is None
