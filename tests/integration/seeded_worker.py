"""A worker whose noise follows from a seed, for tests alone: main(CONFIG, SEED, INSTANCE, STOP).

STOP is SIGNAL@POINT@N: the worker sends itself the signal when it comes to that point of publishing for the Nth time.
"""

import functools
import inspect
import os
import signal
from pathlib import Path

from aiokafka import AIOKafkaProducer

from streams.producer import Producer
from streams.publishing import AtLeastOnce, StrictlyOnce
from streams.worker import Deployment, run_worker
from udp_stream.adapters.settings import load
from udp_stream.testing import SeededEntropy

BEFORE, AFTER = False, True

POINTS = {
    "recorded": [(StrictlyOnce, "publish", BEFORE), (AtLeastOnce, "publish", BEFORE)],
    "written": [(AIOKafkaProducer, "send_offsets_to_transaction", BEFORE)],
    "written plainly": [(Producer, "write", AFTER)],
    "with offsets": [(AIOKafkaProducer, "commit_transaction", BEFORE)],
    "committed": [(AIOKafkaProducer, "commit_transaction", AFTER)],
}
"""Where a publication may be stopped: the calls of the worker's own code, and before or after them."""


def of_releases(_self, messages=(), *_):
    """Whether a call is about releases: the producer writes chunks as well, from generators."""
    if isinstance(messages, list):
        return messages[0].topic.endswith("release.v1")
    return not inspect.isgenerator(messages)


def stop_at(number, point, nth):
    """Send ourselves a signal at the nth time that a point is reached."""
    left = [nth]

    def reached():
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), number)

    for owner, name, after in POINTS[point]:
        setattr(owner, name, stopping(getattr(owner, name), reached, after))


def stopping(call, reached, after):
    @functools.wraps(call)
    async def hooked(*arguments):
        counts = of_releases(*arguments)
        if counts and not after:
            reached()
        answer = await call(*arguments)
        if counts and after:
            reached()
        return answer

    return hooked


def main(config, seed, instance, stop=""):
    if stop:
        number, point, nth = stop.split("@")
        stop_at(signal.Signals[number], point, int(nth))
    run_worker(Deployment(load(Path(config), (), {}), SeededEntropy(seed), "udp-stream test", instance=instance))
