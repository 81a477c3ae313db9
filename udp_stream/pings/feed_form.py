"""The form of a feed: its mapping, and the format that reads its messages by it. What every source of JSON is given."""

from __future__ import annotations

from dataclasses import dataclass

from udp_stream.pings.formats import PingFormat
from udp_stream.pings.json_reader import JSON
from udp_stream.pings.mapped_json import mapped_format
from udp_stream.pings.mapping import FeedMapping


@dataclass(frozen=True, slots=True)
class FeedForm:
    """How messages spell pings.

    >>> PLAIN.format is JSON, mapped_form(FeedMapping(plate="bus")).format.paths.plate
    (True, '$.bus')
    """

    mapping: FeedMapping
    format: PingFormat

    @property
    def is_plain(self) -> bool:
        """Whether it is the contract's own form, read strictly."""
        return self.format is JSON


PLAIN = FeedForm(FeedMapping(), JSON)
"""The contract's own form."""


def mapped_form(mapping: FeedMapping) -> FeedForm:
    """Read by this mapping, and leniently, whatever it says.

    >>> mapped_form(FeedMapping()).is_plain
    False
    """
    return FeedForm(mapping, mapped_format(mapping))
