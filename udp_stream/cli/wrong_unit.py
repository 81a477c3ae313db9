"""Is `speed.unit` that of the feed? Told from names alone, so every run may ask; `doctor` also looks at speeds."""

from __future__ import annotations

from collections.abc import Iterable

from udp_stream.adapters.schemes import Source
from udp_stream.adapters.settings import Settings
from udp_stream.pings.found_mapping import unit_of_name


def wrong_unit(settings: Settings) -> str | None:
    """A sentence if the name of the field says another unit than `speed.unit`; else None. (A preset's unit is a rule of
    the configuration.) Names lie: it does not say which of the two is right.

    >>> from udp_stream.adapters.settings import load
    >>> wrong_unit(load(None, ("source.speed=speed_mph", "speed.unit=kmh"), {}))  # doctest: +ELLIPSIS
    "speed.unit is 'kmh', and source.speed = 'speed_mph' names 'mph': one of the two is wrong: `udp-stream doctor..."
    """
    ours, field = settings.speed.unit, settings.source.mapping.speed
    theirs = unit_of_name(field)
    if theirs is None or theirs == ours:
        return None
    return (
        f"speed.unit is {ours!r}, and source.speed = {field!r} names {theirs!r}: one of the two is wrong: "
        "`udp-stream doctor FILE` compares them"
    )


def unchecked_unit(settings: Settings, sources: Iterable[tuple[str, Source]]) -> str | None:
    """A sentence if nothing but `speed.unit` says the unit of these sources, by their names; None if all say it.

    >>> from udp_stream.adapters.schemes import open_sources
    >>> unchecked_unit(Settings(), open_sources([__file__], "kmh"))  # doctest: +ELLIPSIS
    "speed.unit = 'kmh' was not checked: `udp-stream doctor ...wrong_unit.py` compares speeds with how far pings move"
    """
    open_to_doubt = [name for name, source in sources if source.unit is None]
    if not open_to_doubt or unit_of_name(settings.source.mapping.speed) or settings.source.unit is not None:
        return None
    return (
        f"speed.unit = {settings.speed.unit!r} was not checked: `udp-stream doctor {open_to_doubt[0]}` compares speeds "
        "with how far pings move"
    )
