"""Records that are deleted while a worker is behind stop it: a consumer alone would go on with what is left."""

import pytest
from faust.types import TP

from tests.unit.test_processors import TOPICS, filled, with_worker
from udp_stream.errors import DependencyUnavailable

PINGS, PARTS = TP(TOPICS.pings.name, 0), TP(TOPICS.parts.name, 0)


def read_with_a_gap(broker, log, accept_loss=False):
    """A worker that has read some of a log, and is then given what is behind the next ten records."""

    async def work(worker):
        of_log = worker.pings if log == PINGS else worker.parts
        if log == PARTS:
            for source in range(2):
                await worker.pings.process(broker.logs[TP(TOPICS.pings.name, source)])
        await of_log.process(broker.logs[log][:1])
        behind = broker.logs[log][4:]
        await of_log.process(behind)
        assert of_log.next_offsets()[log] == behind[-1].offset + 1

    with_worker(broker, work, accept_loss)


@pytest.mark.parametrize("log", [PINGS, PARTS])
def test_a_running_worker_stops_at_records_that_were_deleted_before_it_read_them(log):
    broker = filled()
    broker.first = first_of({log: 4})
    with pytest.raises(DependencyUnavailable, match=r"begins at offset 4, but is still needed from 1 on: .* deleted"):
        read_with_a_gap(broker, log)


@pytest.mark.parametrize("log", [PINGS, PARTS])
def test_a_loss_that_is_accepted_does_not_stop_it(log):
    broker = filled()
    broker.first = first_of({log: 4})
    read_with_a_gap(broker, log, accept_loss=True)


def test_a_gap_in_the_offsets_of_a_log_that_is_whole_does_not_stop_it():
    read_with_a_gap(filled(), PINGS)


def first_of(later):
    """`Broker.first`, for a log that is whole when it is assigned, and begins later when it is asked for again."""
    asked = []

    async def first(tps):
        asked.extend(tps)
        return {tp: later.get(tp, 0) if asked.count(tp) > 1 else 0 for tp in tps}

    return first
