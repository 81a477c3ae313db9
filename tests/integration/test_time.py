"""The log is the clock: nothing is late after an outage, one wrong time moves nothing, and the
night ends its slots."""

import time
from datetime import datetime

import msgspec

from streams.processors import ERROR
from tests.integration.deployment import agree, worker
from udp_stream.release import record as release
from udp_stream.sources.fleet import IST, Fleet, Imperfections

SLOT_S = 900
IDLE_S = 1
DISORDER_S = 2
AHEAD_S = 30
"""Until the last slot may close: enough to have read everything else by then."""

SLACK_S = 10
"""For a busy machine: from the tick to the release."""


def two_hours_until(end_s):
    """What buses send from nine to eleven in the morning, as if in the two hours before; one ping
    is of 2068."""
    morning = datetime(2024, 1, 8, 9, tzinfo=IST)
    fleet = Fleet(seed=1, buses=40, start=morning, hours=2, imperfections=Imperfections.none())
    shift_s = end_s - int(morning.timestamp()) - 2 * 3600
    messages = [message for _, batch in fleet.deliveries(shift_s=shift_s) for message in batch]
    astray = msgspec.json.decode(messages[0]) | {"observationDateTime": "2068-01-01T00:00:00+05:30"}
    messages.insert(len(messages) // 3, msgspec.json.encode(astray))
    return messages


def test_two_hours_of_backlog_then_silence(city):
    """Workers die, and come back when all was sent: ticks must close what is open, in time and not
    before."""
    end_s = int(time.time()) // SLOT_S * SLOT_S
    grace_s = int(time.time()) + AHEAD_S - end_s
    here = city(two_hours_until(end_s), grace=f"{grace_s}s", partitions=8)
    here.disorder_ms = DISORDER_S * 1000
    closes_s, quarter = end_s + grace_s + DISORDER_S, len(here.messages) // 4
    with agree(here) as (stack, expected):
        here.set_idle("1h")  # a tick would tell today's time: the first quarter is of two hours ago
        here.feed(here.messages[:quarter])
        with worker(here, "before") as before:
            time.sleep(4)
            before.kill()
            before.wait()
        here.feed(here.messages[quarter:])
        here.set_idle(f"{IDLE_S}s")
        workers = [stack.enter_context(worker(here, name)) for name in ("one", "two")]
        last = {
            id_
            for id_, payload in expected.items()
            if end_of(payload) + grace_s > end_s - DISORDER_S
        }
        here.wait_for(expected.keys() - last, *workers)
        caught_up_s = time.time()
        here.wait_for(expected, *workers)
    written = {
        dict(one.headers)["ce_id"].decode(): one.timestamp / 1000
        for one in here.read(here.topics.release)
    }
    of_the_night = [written[id_] for id_, payload in expected.items() if end_of(payload) == end_s]
    assert min(of_the_night) >= closes_s
    assert max(of_the_night) <= max(closes_s, caught_up_s) + IDLE_S + SLACK_S
    refused = [
        (dict(one.headers)[f"{ERROR}.reason"], b"2068" in one.value)
        for one in here.read(here.topics.rejected)
    ]
    assert (
        set(refused) == {(b"time_in_future", True)} and len(refused) <= 2
    )  # twice if a rebalance comes behind it


def end_of(payload):
    return datetime.fromisoformat(release.Release.decode(payload).hat.slot_end).timestamp()
