"""Is the configured zone that of the place where plates pinged? Positions are public, so every run may ask."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from udp_stream.pings.json import FeedMapping
from udp_stream.pings.time_offsets import SaidOffset

Floats = NDArray[np.float64]

_PLAIN = FeedMapping()

MONTH_FIRST = frozenset(
    f"{area}/{city}"
    for area, cities in {
        "America": (
            "New_York Chicago Denver Phoenix Los_Angeles Anchorage Detroit Boise Juneau Puerto_Rico Menominee "
            "Nome Sitka Adak Yakutat Metlakatla Kentucky/Louisville Kentucky/Monticello Indiana/Vincennes "
            "Indiana/Indianapolis Indiana/Winamac Indiana/Marengo Indiana/Petersburg Indiana/Vevay "
            "Indiana/Tell_City Indiana/Knox North_Dakota/Center North_Dakota/New_Salem North_Dakota/Beulah"
        ),
        "Pacific": "Honolulu Guam",
        "Asia": "Manila",
    }.items()
    for city in cities.split()
)
"""Zones of the countries that write the month before the day."""


def zone_of(lon: float, lat: float) -> str:
    """The IANA zone of a place.

    >>> zone_of(72.83, 21.19)
    'Asia/Kolkata'
    """
    from tzfpy import get_tz  # 3 MB of boundaries: only where it is asked

    return str(get_tz(lon, lat)) or "UTC"


def zone_offset_minutes(zone: str, at_ms: int) -> int:
    """How far a zone is ahead of UTC at a time.

    >>> zone_offset_minutes("Asia/Kolkata", 1706159153000)
    330
    """
    moment = datetime.fromtimestamp(at_ms / 1000, ZoneInfo(zone))
    return (moment.utcoffset() or timedelta(0)) // timedelta(minutes=1)


def is_sea(zone: str) -> bool:
    """Whether a zone is none of any land: no city has it.

    >>> is_sea(zone_of(21.19, 72.83)), is_sea("Asia/Kolkata")
    (True, False)
    """
    return zone.startswith("Etc/")


def on_land(lon: float, lat: float) -> bool:
    """Whether a place lies in the zone of some land.

    >>> on_land(72.83, 21.19), on_land(21.19, 72.83)
    (True, False)
    """
    return not is_sea(zone_of(lon, lat))


def land_if_exchanged(lon: float, lat: float) -> str | None:
    """The zone of the place whose longitude and latitude these are the other way round; None if there is no land.

    >>> land_if_exchanged(21.19, 72.83), land_if_exchanged(72.83, 21.19), land_if_exchanged(-97.74, 30.27)
    ('Asia/Kolkata', None, None)
    """
    if abs(lon) > 90:
        return None
    zone = zone_of(lat, lon)
    return None if is_sea(zone) else zone


def wrong_zone(
    time_ms: NDArray[np.int64], lon: Floats, lat: Floats, zone: str, mapping: FeedMapping = _PLAIN
) -> str | None:
    """A sentence if clocks in this zone do not show the hour of the place where these pings lie; None if they do.

    If they lie in this zone's own land the other way round, it says that longitude and latitude look exchanged;
    `mapping` is where the feed has them.

    >>> wrong_zone(np.array([1706159153000]), np.array([-97.74]), np.array([30.27]), "Asia/Kolkata")[:92]
    'hat.timezone is Asia/Kolkata (UTC+05:30), and the pings lie in America/Chicago (UTC-06:00 th'
    """
    middle_ms, x, y = int(np.median(time_ms)), float(np.median(lon)), float(np.median(lat))
    place, exchanged = zone_of(x, y), land_if_exchanged(x, y)
    mend = f'[source] longitude = "{mapping.latitude}" and latitude = "{mapping.longitude}"'
    ours, theirs = (zone_offset_minutes(one, middle_ms) for one in (zone, place))
    if is_sea(place):
        if exchanged is not None and zone_offset_minutes(exchanged, middle_ms) == ours:
            return f"the pings lie at sea: longitude and latitude look exchanged: {mend}"
        hint = f". If longitude and latitude are exchanged, it is {exchanged}: {mend}" if exchanged else ""
        return f"hat.timezone is {zone}, and the pings lie at sea{hint}"
    if ours == theirs:
        return None
    if exchanged == zone:
        return f"the pings lie in {place}: longitude and latitude look exchanged: {mend}"
    return (
        f"hat.timezone is {zone} ({_text(ours)}), and the pings lie in {place} ({_text(theirs)} then): slots would be "
        f"cut, and budgets renewed, by another city's clock. Set hat.timezone = {place!r}"
    )


def wrong_offset(said: Sequence[SaidOffset], zone: str) -> str | None:
    """A sentence if most times say another offset than UTC's or this zone's; None if they do not, or say nothing.

    The offset may be right, as that of a server elsewhere: the sentence asks.

    >>> wrong_offset([SaidOffset(330, 1706159153000)], "America/Chicago")[:85]
    'times say UTC+05:30, and hat.timezone is America/Chicago (UTC-06:00 then): is the off'
    >>> wrong_offset([SaidOffset(330, 1706159153000)], "Asia/Kolkata"), wrong_offset([], "Asia/Kolkata")
    (None, None)
    """
    if not said:
        return None
    ((theirs, _),) = Counter(one.minutes for one in said).most_common(1)
    at_ms = next(one.at_ms for one in said if one.minutes == theirs)
    if theirs in (0, ours := zone_offset_minutes(zone, at_ms)):
        return None
    hours, minutes = divmod(abs(theirs - ours), 60)
    return (
        f"times say {_text(theirs)}, and hat.timezone is {zone} ({_text(ours)} then): is the offset right? If they are "
        f"times of the place's own clock, slots are {hours}:{minutes:02} h wrong (docs/feeds.md)"
    )


def _text(minutes: int) -> str:
    sign, hours = "-" if minutes < 0 else "+", abs(minutes) // 60
    return f"UTC{sign}{hours:02}:{abs(minutes) % 60:02}"
