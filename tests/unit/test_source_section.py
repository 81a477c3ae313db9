"""`[source]`: presets, and what a stranger gets wrong."""

import tomllib
from pathlib import Path

import pytest

from udp_stream.pings.mapping import FIELDS, PRESETS
from udp_stream.settings import load


def settings(*flags, environment=None):
    return load(None, tuple(f"source.{flag}" if "." not in flag.partition("=")[0] else flag for flag in flags),
                environment or {})  # fmt: skip


EXAMPLES = tomllib.loads((Path(__file__).parents[1] / "feeds" / "presets.toml").read_text())


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_reads_a_message_of_its_feed(name):
    preset = PRESETS[name]
    zone = () if preset.mapping.reads_offsets else ("time_zone=UTC",)
    decoder = settings(f"preset={name}", f"speed.unit={preset.unit or 'kmh'}", *zone).decoder
    pings, refusals = decoder.decode([EXAMPLES[name].encode()])
    assert not refusals and pings.time_ms.tolist() == [1641012035000]
    assert pings.plates == ("12/A1" if name == "hfp" else "A1",)
    kmh = 20 * 1.609344 if name == "bustime" else 45
    assert (pings.lon[0], pings.lat[0], pings.speed[0]) == (72.5, 21.25, round(kmh * 4096))
    assert set(preset.keys) <= {*FIELDS, "records", "time_format", "message_time"}
