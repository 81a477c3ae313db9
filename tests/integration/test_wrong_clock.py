"""A worker whose clock is a day off, on a broker whose clock is right."""

import time
from datetime import UTC, datetime

import msgspec

from streams.processors import ERROR, TICK
from tests.integration.deployment import worker

DAY = 86_400
MARK = b"the last one"


def pings_of_now(number=20):
    at, point = (
        datetime.now(UTC).isoformat(timespec="milliseconds"),
        {"type": "Point", "coordinates": [72.83, 21.17]},
    )
    ping = {"observationDateTime": at, "speed": 20, "location": point}
    return [
        msgspec.json.encode({"license_plate": f"GJ05ZZ{one:04}"} | ping) for one in range(number)
    ]


def read_all(here, marks, process):
    """Until as many marks are refused: all before them is read. Why everything else is."""

    def refused():
        return here.read(here.topics.rejected)

    wait_for(lambda: sum(one.value == MARK for one in refused()) >= marks, process)
    return [dict(one.headers)[f"{ERROR}.reason"] for one in refused() if one.value != MARK]


def ticks(here):
    return [
        one for one in here.read(here.topics.pings) if any(name == TICK for name, _ in one.headers)
    ]


def wait_for(what, process):
    deadline_s = time.monotonic() + 60
    while not what():
        assert process.poll() is None and time.monotonic() < deadline_s
        time.sleep(0.1)


def test_a_worker_a_day_ahead_tells_no_log_so_and_one_that_is_a_day_behind_sets_it_back_if_asked(
    city,
):
    here = city([], partitions=1)
    here.disorder_ms = 0
    here.set_idle("1s")
    with worker(here, "ahead", wrong_s=DAY) as ahead:
        here.feed(pings_of_now())
        wait_for(lambda: ticks(here), ahead)
        told = len(ticks(here))
        here.feed([*pings_of_now(), MARK])
        assert read_all(here, 1, ahead) == []
    assert all(int(one.value) > one.timestamp + (DAY - 60) * 1000 for one in ticks(here)[:told])
    # To it the log is a day ahead; the pings are ahead of it, and of no log.
    with worker(here, "behind", wrong_s=-DAY) as behind:
        here.feed([*pings_of_now(), MARK])
        assert read_all(here, 2, behind) == []
        wait_for(
            lambda: "start once with --reset-clock" in (here.folder / "behind.err").read_text(),
            behind,
        )
    with worker(here, "asked", wrong_s=-DAY, resets="--reset-clock") as asked:
        here.feed([*pings_of_now(), MARK])
        assert read_all(here, 3, asked) == []
    assert "is set back" in (here.folder / "asked.err").read_text()
    with here.ledger() as (ledger, _):
        assert ledger.verify() == []
