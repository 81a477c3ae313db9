"""What ends a worker is told by its kind and place, with the status that says whose fault it was; never by its text."""

import pytest
from aiokafka.errors import KafkaConnectionError

from streams.worker import _ours
from udp_stream.errors import PrivacyRefused


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
    told = _ours(raised(error))
    assert told.exit_status == status
    assert str(told).startswith(f"the worker stopped: {type(error).__name__} at test_worker.py:")
    assert "GJ05" not in str(told)


def test_an_error_of_ours_is_told_as_it_is():
    error = PrivacyRefused("expected a ledger, got none")
    assert _ours(error) is error
