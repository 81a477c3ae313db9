"""How a worker stops. What ends it is told by its kind and place, with the status that says whose
fault it was; never by its text. What fails once it was asked to stop is a warning."""

import asyncio

import pytest
from aiokafka.errors import KafkaConnectionError

from streams.worker import StopReason, as_own_error
from udp_stream.base.errors import PrivacyRefused


def raised(error):
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


@pytest.mark.parametrize(
    ("error", "status"),
    [(ValueError("GJ05ZZ0001"), 1), (KafkaConnectionError("GJ05ZZ0001"), 4)],
    ids=["ours", "of the broker"],
)
def test_an_error_is_told_by_kind_and_place(error, status):
    told = as_own_error(raised(error))
    assert told.exit_status == status
    assert str(told).startswith(f"the worker stopped: {type(error).__name__} at test_stopping.py:")
    assert "GJ05" not in str(told)


def fails_with(error):
    async def work():
        raise error

    return work


def test_the_first_error_stops_the_worker_and_gives_its_status(capsys):
    first = PrivacyRefused("expected a ledger, got none")

    async def serve():
        stop = StopReason()
        await stop.guard(fails_with(first))
        await stop.last(fails_with(KafkaConnectionError()))
        await asyncio.wait_for(stop.wait(), 1)
        return stop

    stop = asyncio.run(serve())
    assert stop.error is first and stop.status == first.exit_status
    assert capsys.readouterr().err == ""
