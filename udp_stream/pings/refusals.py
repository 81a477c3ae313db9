"""Why a ping is not counted: a closed list of reasons, and the record of one refusal."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Reason(enum.StrEnum):
    """The closed list. Names are public: in `bus.pings.rejected.v1`, in metrics and in the docs.

    >>> Reason.ZERO_COORDINATES.value, Reason("late").describe
    ('zero_coordinates', 'It arrived after its slot had closed.')
    """

    NOT_JSON = "not_json"
    NOT_GTFS_REALTIME = "not_gtfs_realtime"
    MISSING_FIELD = "missing_field"
    WRONG_TYPE = "wrong_type"
    NO_UTC_OFFSET = "no_utc_offset"
    TIME_OUT_OF_RANGE = "time_out_of_range"
    TIME_IN_FUTURE = "time_in_future"  # open_slots.py: only the log's clock knows what is ahead of it
    COORDINATES_OUT_OF_RANGE = "coordinates_out_of_range"
    ZERO_COORDINATES = "zero_coordinates"
    OUTSIDE_BOX = "outside_box"
    SPEED_NOT_FINITE = "speed_not_finite"
    SPEED_NEGATIVE = "speed_negative"
    SPEED_ABOVE_LIMIT = "speed_above_limit"
    EMPTY_PLATE = "empty_plate"
    PLACEHOLDER_PLATE = "placeholder_plate"
    OVERSIZED_MESSAGE = "oversized_message"
    TOO_MANY_PINGS = "too_many_pings"
    LATE = "late"  # open_slots.py: the slot of the ping has closed; the refusal says by how much (lag_ms)
    SLOT_FULL = "slot_full"  # open_slots.py: an open slot holds as many pings as it may

    @property
    def describe(self) -> str:
        """One sentence for the docs and for who reads a rejected ping."""
        return _DESCRIPTIONS[self]


_DESCRIPTIONS = {
    Reason.NOT_JSON: "It is not JSON in UTF-8, or nested deeper than the interpreter can follow (about 1,000 levels).",
    Reason.NOT_GTFS_REALTIME: "It is no GTFS-realtime message, or not a whole one.",
    Reason.MISSING_FIELD: "A required field is absent.",
    Reason.WRONG_TYPE: "A field has another type or form than the contract says, or a plate has over 64 characters.",
    Reason.NO_UTC_OFFSET: "The time does not say how far it is from UTC, so it is not a moment.",
    Reason.TIME_OUT_OF_RANGE: "The time is before the earliest or not before the latest time accepted.",
    Reason.TIME_IN_FUTURE: "The time is ahead of the log's clock by more than clocks may differ.",
    Reason.COORDINATES_OUT_OF_RANGE: "The longitude is not in [-180, 180] or the latitude is not in [-90, 90].",
    Reason.ZERO_COORDINATES: "The position is (0, 0): a receiver without a fix.",
    Reason.OUTSIDE_BOX: "The position is outside the box of this deployment.",
    Reason.SPEED_NOT_FINITE: "The speed is too large to be a number.",
    Reason.SPEED_NEGATIVE: "The speed is below 0.",
    Reason.SPEED_ABOVE_LIMIT: "The speed is above what any bus can do (reject_above_kmh).",
    Reason.EMPTY_PLATE: "The license plate is empty or blank.",
    Reason.PLACEHOLDER_PLATE: "The license plate is a word for a missing one, such as null, none or unknown.",
    Reason.OVERSIZED_MESSAGE: "The message has more bytes than are accepted; nothing of it was read.",
    Reason.TOO_MANY_PINGS: "The message holds more pings than are accepted; none of them was counted.",
    Reason.LATE: "It arrived after its slot had closed.",
    Reason.SLOT_FULL: "Its slot already holds as many pings as it may.",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """One ping, or one whole message, that is not counted.

    `message` is its index in the batch; `position` is the ping's place in the message's array, or -1 if the message is
    the ping itself or is refused whole. `path` is a JSON path to the fault within the refused piece, such as
    `$.location.coordinates[1]`; it never holds content. `lag_ms`: how late, for `late`.

    >>> Refusal(message=3, position=-1, reason=Reason.LATE, path="$.observationDateTime", lag_ms=90_000).reason.value
    'late'
    """

    message: int
    position: int
    reason: Reason
    path: str
    lag_ms: int | None = None
