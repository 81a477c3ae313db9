"""Mutated messages of a queue on a real broker: each is handed on, acknowledged once it is kept, and none is lost."""

import random
from collections import Counter

import pytest

from tests.integration.test_amqp_source import password, queue, reading, source
from tests.mutations import facts, pieces

__all__ = ["password", "queue"]


@pytest.mark.parametrize("count", [1_000, pytest.param(100_000, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def test_of_mutated_messages_each_ping_is_handed_on_or_refused_for_its_reason(count, queue, password):
    messages = [piece for piece in pieces(random.Random(4711), range(count)) if piece]
    expected = facts(messages)
    queue.publish(*messages, b"LAST")
    handed_on = Counter()
    with reading(source(queue, password, prefetch=500)) as handover:
        while not (frames := handover.take()) or b"LAST" not in frames[-1]:
            for frame in frames:
                handed_on += facts(frame)
            handover.kept()
        for frame in frames:
            handed_on += facts(frame)
        handover.kept()
    queue.wait_for(0)
    del handed_on["not_json", "$", b"LAST"]
    assert set(handed_on) == set(expected) and len(expected) > count / 2
    assert sum(len(one) == 3 for one in expected) > count / 20
