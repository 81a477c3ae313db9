"""A worker with seeded noise: main(CONFIG, SEED, INSTANCE, STOP, DISORDER_MS, WRONG_S, RESETS).

STOP is SIGNAL@POINT@N or UNDERPAID; its clock is WRONG_S ahead; RESETS is `--reset-clock` or empty.
"""

import functools
import inspect
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from aiokafka import AIOKafkaProducer

from streams import worker
from streams.kafka import Producer, TransactionalPublisher
from streams.processors import AtLeastOncePublisher
from streams.worker import Deployment, run_worker
from udp_stream.base.errors import UdpStreamError
from udp_stream.ledger.ids import kind_of
from udp_stream.ledgers.sqlite import SqliteLedger
from udp_stream.release.city import ShapeQuestion
from udp_stream.settings import load
from udp_stream.settings.sections import Settings
from udp_stream.testing import SeededEntropy

BEFORE, AFTER = False, True
UNDERPAID = "underpaid"

POINTS = {
    "recorded": [
        (TransactionalPublisher, "publish", BEFORE),
        (AtLeastOncePublisher, "publish", BEFORE),
    ],
    "written": [(AIOKafkaProducer, "send_offsets_to_transaction", BEFORE)],
    "written plainly": [(Producer, "write", AFTER)],
    "with offsets": [(AIOKafkaProducer, "commit_transaction", BEFORE)],
    "committed": [(AIOKafkaProducer, "commit_transaction", AFTER)],
    "estimates made": [
        (TransactionalPublisher, "publish", BEFORE),
        (AtLeastOncePublisher, "publish", BEFORE),
    ],
    "estimates published": [
        (TransactionalPublisher, "publish", AFTER),
        (AtLeastOncePublisher, "publish", AFTER),
    ],
    "answers recorded": [(TransactionalPublisher, "publish", BEFORE)],
    "answers published": [(TransactionalPublisher, "publish", AFTER)],
    "round charged": [(SqliteLedger, "admit", AFTER)],
    "round recorded": [(SqliteLedger, "record", AFTER)],
    "answer recorded": [(SqliteLedger, "record", AFTER)],
    "city charged": [(SqliteLedger, "admit", AFTER)],
    "city recorded": [(SqliteLedger, "record", AFTER)],
    "hour charged": [(SqliteLedger, "admit", AFTER)],
    "hour recorded": [(SqliteLedger, "record", AFTER)],
    "presence charged": [(SqliteLedger, "admit", AFTER)],
    "presence recorded": [(SqliteLedger, "record", AFTER)],
}
"""Where a publication may be stopped: the calls of the worker's own code, and before or after them."""


def of_releases(_self, messages=(), *_):
    if isinstance(messages, list):
        return bool(messages) and messages[0].topic.endswith("release.v1")
    return not inspect.isgenerator(messages)


def of_answers(_self, messages=(), *_):
    return bool(messages) and messages[0].topic.endswith("queries.v1")


def of_estimates(_self, messages=(), *_):
    return bool(messages) and messages[0].topic.endswith("smoothed.v1")


def of_ids(kind):
    def counts(_self, *arguments):
        asked = arguments[-1]
        return bool(asked) and kind == kind_of(getattr(asked[0], "release_id", None) or asked[0][0])

    return counts


COUNTED = {
    "estimates made": of_estimates, "estimates published": of_estimates,
    "answers recorded": of_answers, "answers published": of_answers, "round charged": of_ids("round"),
    "round recorded": of_ids("round"), "answer recorded": of_ids("query"), "city charged": of_ids("city"),
    "city recorded": of_ids("city"), "hour charged": of_ids("city-hour"), "hour recorded": of_ids("city-hour"),
    "presence charged": of_ids("presence"), "presence recorded": of_ids("presence"),
}  # fmt: skip
"""Which calls of a point count; else those about releases."""


def stop_at(number, point, nth):
    left = [nth]

    def reached():
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), number)

    for owner, name, after in POINTS[point]:
        stopped = stopping if inspect.iscoroutinefunction(getattr(owner, name)) else stopping_a_call
        setattr(
            owner,
            name,
            stopped(getattr(owner, name), reached, after, COUNTED.get(point, of_releases)),
        )


def stopping_a_call(call, reached, after, counted):
    @functools.wraps(call)
    def hooked(*arguments):
        counts = counted(*arguments)
        if counts and not after:
            reached()
        answer = call(*arguments)
        if counts and after:
            reached()
        return answer

    return hooked


def stopping(call, reached, after, counted):
    @functools.wraps(call)
    async def hooked(*arguments):
        counts = counted(*arguments)
        if counts and not after:
            reached()
        answer = await call(*arguments)
        if counts and after:
            reached()
        return answer

    return hooked


def slow_to_learn(init):
    """Producers that ask for their topics' partitions every five minutes, as by default."""

    @functools.wraps(init)
    def made(self, **options):
        init(self, **options | {"metadata_max_age_ms": 300_000})

    return made


def underpaid(ask):
    def asked(self, *given):
        plan = ask(self, *given)
        return plan and replace(plan, charged=np.ones_like(plan.charged))

    return asked


SESSION_S = 6.0


def main(config, seed, instance, stop="", disorder_ms="60000", wrong_s="0", resets=""):
    real = time.time
    time.time = lambda: real() + float(wrong_s)
    worker.SESSION_S = SESSION_S
    AIOKafkaProducer.__init__ = slow_to_learn(AIOKafkaProducer.__init__)
    rules = Settings.window_rules.fget
    Settings.window_rules = property(
        lambda settings: replace(rules(settings), disorder_ms=int(disorder_ms))
    )
    if stop == UNDERPAID:
        ShapeQuestion.ask = underpaid(ShapeQuestion.ask)
    elif stop:
        number, point, nth = stop.split("@")
        stop_at(signal.Signals[number], point, int(nth))
    try:
        settings, entropy = load(Path(config), (), {}), SeededEntropy(seed)
        run_worker(
            Deployment(
                settings,
                entropy,
                "udp-stream test",
                instance=instance,
                resets_clock=resets == "--reset-clock",
            )
        )
    except UdpStreamError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_status)
