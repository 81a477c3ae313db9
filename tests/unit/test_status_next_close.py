"""`status` tells when the next slot closes as the log does: by the clock on the wall, or by old pings' times."""

import msgspec

from tests.unit.test_worker_reports import NOW_S, a_page, seen
from udp_stream.adapters.settings import load
from udp_stream.adapters.work_reports import recent_work
from udp_stream.release.facts import BatchRead
from udp_stream.release.run_log import RunLog
from udp_stream.release.worker_report import decode_report, encode_report
from udp_stream.testing import a_report


def test_while_old_pings_come_status_tells_the_next_close_by_their_times_as_the_log_does():
    """A recording of the day before is put into Kafka: the slot closes when its pings get there."""
    settings = load(None, ("hat.timezone=Asia/Kolkata", "hat.slot=1h", "hat.grace=2m", "kafka.disorder=1m"), {})
    recent, log = recent_work(settings), RunLog(settings.calendar.slots, 120_000, 60_000)
    closes = lambda now_s: (recent.work(now_s).next_close, recent.work(now_s).next_close_by)  # noqa: E731
    day_before = BatchRead(50, 50, {}, int(NOW_S - 86_400 + 600) * 1000)
    for observer in (recent, log):
        observer.observe(day_before, NOW_S)
    assert closes(NOW_S) == ("2024-01-07T16:03:00+05:30", "pings")
    assert closes(NOW_S)[0] == log.lines(NOW_S)[0].figures["next_close"]
    page = a_page(workers=[seen("one", next_close=closes(NOW_S)[0], next_close_by="pings")])
    assert "  next slot closes when pings reach 2024-01-07 16:03 IST" in page.lines()
    assert closes(NOW_S + 1200) == ("2024-01-08T16:02:00+05:30", "clock")  # none came for long
    recent.observe(day_before, NOW_S + 1200)
    assert closes(NOW_S + 1200)[1] == "pings"
    recent.observe(BatchRead(0, 0, {}), NOW_S + 1260)  # a tick: the clock on the wall moves the log now
    assert closes(NOW_S + 1260) == ("2024-01-08T16:02:00+05:30", "clock")
    assert (
        "  next slot closes at 16:02 IST" in a_page(workers=[seen("one", next_close=closes(NOW_S + 1260)[0])]).lines()
    )


def test_a_report_of_an_earlier_version_is_read_as_by_the_clock():
    report = msgspec.json.decode(encode_report(a_report("one")))
    del report["work"]["next_close_by"]
    assert decode_report(msgspec.json.encode(report)) == a_report("one")
