"""A kind of record is its type: bytes, schema and descriptions follow from it."""

import pytest

from udp_stream.base.errors import PrivacyRefused
from udp_stream.mechanisms.base import Part
from udp_stream.release.record import Record, described, schema_of


class Lane(Part, frozen=True):
    """A lane of a road.

    >>> Lane(2).number
    2
    """

    number: int
    """Counted from the kerb."""


class Toll(Record, frozen=True, tag_field="schema", tag="udp-stream/toll/1"):
    """A toll."""

    lane: Lane
    """Where it
    was paid."""
    paid: int = 0
    """In cents."""


class Silent(Record, frozen=True, tag_field="schema", tag="udp-stream/silent/1"):
    """A record with a field that nobody describes."""

    paid: int


def test_a_records_schema_and_bytes_follow_from_its_type():
    schema = described(Toll)
    assert schema["$id"] == schema_of(Toll) == "udp-stream/toll/1"
    toll, lane = schema["$defs"]["Toll"], schema["$defs"]["Lane"]
    assert toll["properties"]["lane"]["description"] == "Where it was paid."
    assert lane["description"] == "A lane of a road."
    assert lane["properties"]["number"]["description"] == "Counted from the kerb."
    assert toll["required"] == ["schema", "lane"] and not toll["additionalProperties"]
    one = Toll(Lane(2), 350)
    assert one.encode() == b'{"schema":"udp-stream/toll/1","lane":{"number":2},"paid":350}'
    assert Toll.decode(one.encode()) == one


def test_a_field_without_a_text_is_found():
    with pytest.raises(KeyError, match="paid"):
        described(Silent)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        b"{}",
        b'{"schema":"udp-stream/silent/1","lane":{"number":2}}',
        b'{"lane":{"number":2}}',
        b'{"schema":"","never":1}',
        b'{"schema":"udp-stream/toll/1","lane":{"number":2},"more":1}',
    ],
)
def test_other_bytes_of_a_ledger_are_refused_under_their_id(payload):
    with pytest.raises(PrivacyRefused, match="toll:1"):
        Toll.of_ledger("toll:1", payload)
