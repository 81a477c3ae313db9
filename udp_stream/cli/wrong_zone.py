"""Is the configured zone that of the place where plates pinged? Positions are public, so every run may ask."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


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


def wrong_zone(time_ms: NDArray[np.int64], lon: Floats, lat: Floats, zone: str) -> str | None:
    """A sentence if clocks in this zone do not show the hour of the place where these pings lie; None if they do.

    >>> wrong_zone(np.array([1706159153000]), np.array([-97.74]), np.array([30.27]), "Asia/Kolkata")[:92]
    'hat.timezone is Asia/Kolkata (UTC+05:30), and the pings lie in America/Chicago (UTC-06:00 th'
    """
    middle_ms = int(np.median(time_ms))
    place = zone_of(float(np.median(lon)), float(np.median(lat)))
    ours, theirs = (zone_offset_minutes(one, middle_ms) for one in (zone, place))
    if ours == theirs:
        return None
    return (
        f"hat.timezone is {zone} ({_text(ours)}), and the pings lie in {place} ({_text(theirs)} then): slots would be "
        f"cut, and budgets renewed, by another city's clock. Set hat.timezone = {place!r}"
    )


def _text(minutes: int) -> str:
    sign, hours = "-" if minutes < 0 else "+", abs(minutes) // 60
    return f"UTC{sign}{hours:02}:{abs(minutes) % 60:02}"
