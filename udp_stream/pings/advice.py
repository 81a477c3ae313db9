"""Refusals in words: for each of the commonest kinds the field, the form that was found there, and the form wanted.

Nothing that is protected is shown: of values their kind alone, and names as `found.is_shown` allows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from udp_stream.pings.decode import Reason, Refusal
from udp_stream.pings.found import WANTED, Record, Value, dotted, flat, found_time_form, kind_of, shown_names
from udp_stream.pings.json import FIELDS, UNREADABLE, FeedForm, json_path, trim
from udp_stream.pings.other_kinds import no_pings

SENTENCES_MAX = 4
"""Kinds of refusals that are explained, the commonest first."""

OF_A_SPEED = (Reason.SPEED_NOT_FINITE, Reason.SPEED_NEGATIVE, Reason.SPEED_ABOVE_LIMIT)
"""Reasons that look at the value of a speed: docs/pings.md."""

OF_THE_CLOCK = (Reason.LATE, Reason.SLOT_FULL, Reason.TIME_IN_FUTURE)
"""Reasons that are not in a message."""


@dataclass(frozen=True, slots=True)
class Refused:
    """One refusal and the bytes of what was refused.

    >>> Refused(Refusal(0, -1, Reason.NOT_JSON, "$"), b"junk").refusal.path
    '$'
    """

    refusal: Refusal
    original: bytes


def advise(refused: Sequence[Refused], form: FeedForm) -> list[str]:
    """A sentence for each of the commonest kinds of refusals of a sample."""
    kinds = Counter((one.refusal.reason, one.refusal.path) for one in refused)
    sentences = []
    for (reason, path), _ in kinds.most_common(SENTENCES_MAX):
        pieces = [one.original for one in refused if (one.refusal.reason, one.refusal.path) == (reason, path)]
        said = _said(reason, path, pieces, form)
        sentences.append(f"{reason} at {path}: {said}" if said else f"{reason} at {path}")
    return sentences


def _said(reason: Reason, path: str, pieces: Sequence[bytes], form: FeedForm) -> str | None:
    """What was found, and what is wanted."""
    records = [record for piece in pieces if (record := _record_of(piece)) is not None]
    field = _field_at(path, form)
    if reason in (Reason.NOT_JSON, Reason.NOT_GTFS_REALTIME) or not records:
        found = no_pings(pieces[0])
        return None if found is None else f"found {found}"
    if reason == Reason.MISSING_FIELD:
        common = Counter(one for record in records for one in record)
        names = shown_names(sorted((one for one, count in common.items() if 2 * count >= len(records)), key=dotted))
        name = path.removeprefix("$.") if field is None else dotted(form.mapping.steps[field])
        return f"found {names or 'no name that may be shown'}, wanted {name} (`udp-stream init FILE` writes [source])"
    if field is None:
        return None
    values = [record[form.mapping.steps[field]] for record in records if form.mapping.steps[field] in record]
    if field == "time":
        return f"found {_time_found(values)}, wanted {_time_wanted(reason, form)}"
    if reason == Reason.OUTSIDE_BOX:
        return "wanted pings.box = [west, south, east, north] around the feed"
    if reason in (Reason.EMPTY_PLATE, Reason.PLACEHOLDER_PLATE):
        return "wanted the vehicle's: pings without a plate protect none"
    if reason in OF_A_SPEED:
        return "wanted speed.unit as the feed has it: `udp-stream doctor FILE` compares it with how far pings move"
    return f"found {kind_of(values)}, wanted {WANTED[field]}"


def _record_of(piece: bytes) -> Record | None:
    try:
        return flat(msgspec.json.decode(trim(piece)))
    except UNREADABLE:
        return None


def _field_at(path: str, form: FeedForm) -> str | None:
    """The field whose path a refusal's path is, or leads to."""
    for field in FIELDS if path != "$" else ():
        ours = json_path(form.mapping.steps[field])
        if ours == path or ours.startswith((f"{path}.", f"{path}[")):
            return field
    return None


def _time_found(values: Sequence[Value]) -> str:
    form = found_time_form(values)
    return kind_of(values) if form is None else form.time_format + ("" if form.has_offset else " without an offset")


def _time_wanted(reason: Reason, form: FeedForm) -> str:
    if reason == Reason.NO_UTC_OFFSET:
        return 'an offset, or source.time_zone = "Area/City" of the feed\'s clock'
    return f'source.time_format = "{form.mapping.time_format}"'
