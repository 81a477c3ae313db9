"""The watchdog ends a worker that is stuck, and no other."""

import asyncio
from types import SimpleNamespace

import pytest
from faust.types import TP

from streams.kafka import Offsets
from streams.worker import Watchdog
from udp_stream.base.errors import DependencyUnavailable

HERE = TP("pings", 0)


class World:
    """A clock that checking moves on, what is read, and what the broker says."""

    def __init__(self):
        self.now, self.read, self.answer, self.done = 0.0, {HERE: 0}, False, 0

    async def idle(self, positions):
        assert positions == self.read
        if isinstance(self.answer, BaseException):
            raise self.answer
        if self.answer is None:
            await asyncio.Event().wait()
        return self.answer

    def checks(self, times, each=lambda world: None):
        async def check():
            watchdog = Watchdog(
                lambda: self.read, self.idle, 10.0, lambda: self.now, lambda: self.done
            )
            for _ in range(times):
                await watchdog.check(0.0)
                await asyncio.sleep(0)
                self.now += 1.0
                each(self)

        asyncio.run(check())


@pytest.mark.parametrize(
    "answer", [False, None, OSError("gone")], ids=["behind", "no answer", "an error"]
)
def test_nothing_done_for_too_long_is_stuck(answer):
    world = World()
    world.answer = answer
    world.checks(10)
    with pytest.raises(DependencyUnavailable, match="no progress for 10 s"):
        world.checks(14)


def test_a_log_that_ends_before_what_was_read_of_it_is_said_at_once():
    """Its reader would wait for ever, or skip what comes: the broker says that there is nothing to
    read."""

    async def call_thread(what, *arguments):
        return await what(*arguments)

    async def position(_tp):
        return 3

    async def end_offsets(tps):
        return dict.fromkeys(tps, 3)

    consumer = SimpleNamespace(position=position, end_offsets=end_offsets)
    thread = SimpleNamespace(_consumer=consumer, call_thread=call_thread)
    world = World()
    world.read = {HERE: 5}
    world.idle = lambda positions: Offsets(app_of(thread)).all_read(positions)
    with pytest.raises(DependencyUnavailable, match=r"pings\[0\] ends at offset 3"):
        world.checks(2)


def app_of(thread):
    faust = SimpleNamespace(_thread=thread, assignment=lambda: {HERE}, _read_offset={})
    return SimpleNamespace(consumer=faust, rebalancing=False, consumer_generation_id=1)


def test_who_has_nothing_to_do_is_not_stuck():
    world = World()
    world.answer = True
    world.checks(50)
    assert world.now == 50


def test_who_does_its_steps_is_not_stuck_while_nothing_is_read():
    def do_one_now_and_then(world):
        world.done += world.now % 8 == 0

    world = World()
    world.checks(50, do_one_now_and_then)
    assert world.now == 50 and world.done == 6
