"""The configuration that `init` writes: what was found, what could not be known with a public choice, and why."""

from __future__ import annotations

import json
from datetime import datetime
from zoneinfo import ZoneInfo

from udp_stream.adapters.text import counted
from udp_stream.cli.found_feed import FoundFeed
from udp_stream.cli.wrong_zone import is_sea, zone_offset_minutes
from udp_stream.pings.found_plate import plate_warning
from udp_stream.pings.json import mapping_of
from udp_stream.pings.presets import PRESETS

_UNIT_WORDS = {
    "movement": "By movement: buses go about as far as they report in it (a verdict on raw speeds, not a release)",
    "specification": "As the feed's specification has it; the recording has too few pairs of pings to check it",
    "name": "As the field's name says; the recording has too few pairs of pings to check it",
    "": "NOT KNOWN: the recording has too few pairs of pings 4 to 30 s apart. Check it: a wrong unit is not noticed",
}

_U = """\
# U: faster pings count as this speed, and noise grows with it. It is a choice that everyone may know: the speed limit
# of your buses, or the limiter in them. Never take it from recorded speeds: their maximum is what is protected.
# 65 is the limit of buses in India's towns (60 km/h) with its tolerance. Set yours."""

_EPSILON = """\
# What one plate may lose in a day, all releases together. A day's records can change the odds of any guess about the
# speeds of one bus by a factor of at most e^epsilon, whatever else the guesser knows: e^10 is 22,026, e^1 is 2.7. So 10
# is a weak promise by itself; with less, errors grow in proportion (`udp-stream plan`). What others use: Google's
# Community Mobility Reports 2.64 per person and day (arXiv 2004.04145); Wikimedia's page views rho 0.015 per device and
# day (arXiv 2308.16298); the US Census of 2020 17.14 per person, once (Census Bureau, settings of June 2021).
# There is no right value in your data: choose it, and say which it is."""


def city_file(feed: FoundFeed, path: str) -> str:
    """The text of the file, in TOML."""
    sections = [
        _head(feed, path),
        _hat(feed),
        _speed(feed),
        _pings(feed),
        _source(feed),
        f"[budget]\n{_EPSILON}\nepsilon = 10.0",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _head(feed: FoundFeed, path: str) -> str:
    every = f", one about every {feed.every_s:.0f} s" if feed.every_s else ""
    were = "was" if feed.pings == 1 else "were"
    return (
        f"# Made by `udp-stream init` from {json.dumps(path)} (pings from {hours_of(feed)}):\n"
        f"# {counted(feed.pings, 'ping')} of {counted(feed.plates, 'plate')} {were} read{every}. "
        f"Look through it: what is a guess says so. All keys: docs/configuration.md{_checks(feed)}"
    )


def hours_of(feed: FoundFeed) -> str:
    """The times of the first and the last ping, by the clock of the zone that was found."""
    first, last = _first_and_last(feed)
    return f"{first:%Y-%m-%d %H:%M} to {last:{'%H:%M' if first.date() == last.date() else '%Y-%m-%d %H:%M'}}"


def _first_and_last(feed: FoundFeed) -> tuple[datetime, datetime]:
    first, last = (datetime.fromtimestamp(ms / 1000, ZoneInfo(feed.zone)) for ms in (feed.first_ms, feed.last_ms))
    return first, last


def _checks(feed: FoundFeed) -> str:
    warning = plate_warning(feed.pings, feed.plates, feed.last_ms - feed.first_ms)
    return "".join(f"\n# CHECK: {one}" for one in (warning, feed.shared, *feed.refused_kinds) if one)


def _hat(feed: FoundFeed) -> str:
    lines = ["[hat]"]
    ours = zone_offset_minutes(feed.zone, feed.first_ms)
    if is_sea(feed.zone):
        lines.append("# CHECK: these positions lie at sea, so this is no city's zone. Are they of another form?")
    elif feed.offsets[:1] == (0,) and ours != 0:
        first, last = _first_and_last(feed)
        hours = f"{first:%H:%M} to {last:%H:%M}"
        lines += [
            "# The zone of the place.",
            f"# CHECK: the feed's times are marked as UTC. If they are, pings are from {hours} by this zone.",
            "# Do buses go then? Some feeds mark local times as UTC: docs/feeds.md.",
        ]
    elif not feed.offsets or feed.offsets[0] == 0:
        lines.append("# The zone of the place; the feed's times do not say one.")
    elif feed.offsets[0] == ours:
        lines.append("# The zone of the place; the feed's times have its offset.")
    else:
        lines.append(
            f"# CHECK: this is the zone of the place, {_hours(ours)} then; the feed's times say "
            f"{_hours(feed.offsets[0])}."
        )
    lines += [
        f"timezone = {_text(feed.zone)}",
        "# Cells of 5 km2 and an hour are what a city works with; `udp-stream plan` compares others.",
        "resolution = 7",
        'slot = "1h"',
    ]
    return "\n".join(lines)


def _hours(minutes: int) -> str:
    sign = "-" if minutes < 0 else "+"
    return f"{sign}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"


def _speed(feed: FoundFeed) -> str:
    words = [] if feed.speed.fits_none else [f"# {_UNIT_WORDS[feed.speed.by]}."]
    words += [f"# CHECK: {doubt}." for doubt in feed.speed.doubts]
    return "\n".join(["[speed]", *words, f"unit = {_text(feed.unit)}", _U, "max_kmh = 65.0"])


def _pings(feed: FoundFeed) -> str:
    box = ", ".join(f"{edge:g}" for edge in feed.box)
    return (
        "[pings]\n"
        "# West, south, east, north: around the recorded positions, rounded outward. Stray fixes are refused.\n"
        f"box = [{box}]"
    )


def _source(feed: FoundFeed) -> str:
    if feed.preset:
        return f"[source]\n# {PRESETS[feed.preset].title}.\npreset = {_text(feed.preset)}"
    if not feed.keys:
        return ""
    lines = ["[source]", "# Where a ping has its fields, by their names and by what they hold: check them."]
    if feed.exchanged:
        lines.append("# CHECK: longitude and latitude stand under each other's name in this feed, by their values.")
    if feed.unnamed:
        unnamed = " and the ".join(feed.unnamed)
        lines.append(f"# CHECK: no name says which path is the {unnamed}: known by values alone.")
    if feed.day_or_month:
        day = datetime.fromtimestamp(feed.first_ms / 1000, ZoneInfo(feed.zone)).date()
        lines.append(f"# CHECK: day and month could be exchanged; this reads the first ping as of {day}.")
    if "plate" in feed.keys:
        lines.append(
            "# The plate is what is protected: it must be the vehicle's, for good, and not a trip's or a driver's."
        )
    if mapping_of({name: value for name, value in feed.keys.items() if name != "time_zone"}).one_element:
        lines.append("# CHECK: a path leads to one element of an array; the others are not read.")
    lines += [f"{name} = {_text(value)}" for name, value in feed.keys.items()]
    if "time_zone" in feed.keys:
        lines.insert(
            -1, "# Times have no offset: this is the zone of the place. CHECK that they are local, and not UTC."
        )
    return "\n".join(lines)


def _text(value: str) -> str:
    """A string of TOML."""
    return json.dumps(value, ensure_ascii=False)
