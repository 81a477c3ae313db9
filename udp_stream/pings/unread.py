"""Fields of records that a mapping does not read, and that look like a field of a ping."""

from __future__ import annotations

import re
from collections import defaultdict
from datetime import UTC
from math import isnan

from udp_stream.pings.data_quality import unit_evidence, zone_without_spring
from udp_stream.pings.found import Records, is_like, is_shown, is_vehicles, values_by_path
from udp_stream.pings.mapping import FeedMapping, dotted
from udp_stream.pings.repairs import Value, numbers_of
from udp_stream.pings.times import NO_TIME, joined_times, read_times
from udp_stream.pings.tracks import as_pings, follow, track_of

_KMH_MAX = 150
_SPEED = re.compile(
    r"(?<![a-z])(?:vel|h[iı]z)|speed|spd|geschw|vitesse|km.?h|mph|knot", re.IGNORECASE
)
_KINDS = {"time": "time", "longitude": "place", "latitude": "place", "plate": "plate"}


def times_in(records: Records, mapping: FeedMapping) -> list[Value]:
    """The times of records, as they are read."""
    columns = [[record.get(path) for record in records] for path in mapping.times]
    if not columns[1:]:
        return columns[0]
    texts = [["" if one is None else str(one) for one in some] for some in columns]
    return list(joined_times(texts, mapping.time_format))


def without_spring(records: Records, mapping: FeedMapping) -> str:
    """As `zone_without_spring`, of these records."""
    if mapping.zone is None:
        return ""
    values = ["" if one is None or one is True else one for one in times_in(records, mapping)]
    time_ms, status = read_times(values, mapping.time_format, UTC)
    return zone_without_spring(time_ms[status != NO_TIME], mapping.zone)


def unread_fields(records: Records, around: Records, mapping: FeedMapping) -> dict[str, str]:
    """The fields that look like a speed, a plate, a time or a place, under which of these, with the
    line that reads them. A speed is known by how far pings move, else by its name; a plate by how
    its pings follow each other."""
    track = track_of(records, mapping.steps, times_in(records, mapping), mapping.time_format)
    plate = mapping.steps["plate"]
    plates = [{**outer, **record}.get(plate) for record, outer in zip(records, around, strict=True)]
    taken = {path for _, path in mapping.leaves}
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path, values in values_by_path(records).items():
        name = dotted(path)
        if path in taken or not is_shown(path) or track is None:
            continue
        column = [record.get(path) for record in records]
        numbers = numbers_of(values)
        if (
            len(numbers) == len(values)
            and max(numbers) > min(numbers) >= 0
            and max(numbers) <= _KMH_MAX
        ):
            evidence = unit_evidence(as_pings(track, plates, column), "kmh")
            if evidence.unit:
                found["speed"].append(f'source.speed = "{name}" and speed.unit = "{evidence.unit}"')
                continue
            if isnan(evidence.ratio) and _SPEED.search(name):
                found["speed"].append(f'source.speed = "{name}"')
                continue
        for field, kind in _KINDS.items():
            if is_like(field, path, values) or (
                field == "plate" and is_vehicles(path, values) and follow(column, track)
            ):
                found[kind].append(f'source.{field} = "{name}"')
                break
    return {kind: " or ".join(lines) for kind, lines in found.items()}
