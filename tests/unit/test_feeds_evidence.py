"""Feeds as they are, the last nine that were found: what `init` reads, proposes or names of each,
and that `doctor` and `replay --dry-run` say the same of the same pings."""

import io
import json
import os
import re
from contextlib import closing, redirect_stdout
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from tests.gtfs import snapshot, vehicle
from tests.http_server import ok, serving
from tests.unit.test_feed_files import TABLE, content_of
from udp_stream.base.errors import UsageError
from udp_stream.cli import main as cli
from udp_stream.cli.commands.init import city_file, find_feed
from udp_stream.settings import Settings, load
from udp_stream.settings.sections import LiveSection, SourceSection
from udp_stream.sources.http import PolledSource
from udp_stream.sources.recordings import open_sources

CASE = TABLE["apart"]["times of day"]
START = datetime(2024, 3, 5, 13, 30)
"""Of the feed, by its clock."""


def with_clocks(written):
    """The feed, whose `Saat` is written so."""
    return content_of(CASE | {"fields": CASE["fields"] | {"Saat": written}})


def checks_of(folder, name, *more):
    """The words of `doctor` on pings and speeds, and what it says of these."""
    words = ["doctor", str(folder / name), "--config", str(folder / "city.toml")]
    with redirect_stdout(io.StringIO()) as said:
        cli.main([*words, "--set", f"ledger.url={folder}/l"])
    both = [
        line for line in said.getvalue().splitlines() if re.match(r"\w+ +(pings|speeds) of", line)
    ]
    return [line.split()[0] for line in both] + both


@pytest.mark.parametrize("pattern", ["%H:%M:%S", "%I:%M:%S %p"])
def test_times_of_day_are_read_as_of_a_day_that_a_person_sets(pattern, tmp_path, capsys):
    """`init` takes the day of the file's last change, and says so, as do `doctor` and `plan`."""
    (tmp_path / "feed.json").write_bytes(with_clocks(f"{{local:{pattern}}}"))
    changed = START.replace(tzinfo=UTC) - timedelta(days=3)
    os.utime(tmp_path / "feed.json", (0, changed.timestamp()))
    feed = find_feed([str(tmp_path / "feed.json")])
    assert (feed.pings, feed.plates, feed.hours[:10]) == (160, 20, "2024-03-02")
    assert feed.keys["time_format"] == f"2024-03-02 {pattern}" and feed.keys["plate"] == "Plaka"
    (tmp_path / "city.toml").write_text(city_file(feed, "feed.json"))
    (sentence,) = re.findall(
        "CHECK: (times of day have no date.*2024-03-02.*)[.]", city_file(feed, "x")
    )
    assert sentence in checks_of(tmp_path, "feed.json")[2]
    text = (tmp_path / "city.toml").read_text().replace("2024-03-02 %", "2024-03-05 %")
    (tmp_path / "city.toml").write_text(text)
    assert read_by(tmp_path, "feed.json", START) == (160, 20)


def read_by(folder, name, first):
    """Pings and plates that the configuration in the folder reads, the first of which is of this
    time by the feed's clock."""
    settings = load(folder / "city.toml", (), {})
    ((_, source),) = open_sources([str(folder / name)], "kmh", form=settings.form)
    with closing(source):
        messages = [one for some in source.messages() for one in some]
    pings, _ = replace(settings.decoder, format=source.format).decode(messages)
    shown = datetime.fromtimestamp(pings.time_ms.min() / 1000, ZoneInfo(settings.source.time_zone))
    assert shown.replace(tzinfo=None) == first
    return len(pings), len(pings.plates)


def test_the_day_of_a_recording_is_no_other_mapping_to_a_ledger():
    keys = {"time": "t", "time_zone": "Etc/UTC"}
    one, other, whole = (
        SourceSection(**keys, time_format=f"{day} %H:%M").written
        for day in ("2024-03-05", "2024-03-06", "%Y-%m-%d")
    )
    assert one == other != whole


def test_times_of_day_of_a_live_feed_get_the_day_on_which_they_come():
    """As it comes, and not as it is read: what a journal or a topic holds has its day."""
    keys = {
        "time": "Saat",
        "longitude": "Boylam",
        "latitude": "Enlem",
        "speed": "Hiz",
        "plate": "Plaka",
    }
    source = SourceSection(**keys, time_format="today %H:%M:%S", time_zone="Europe/Istanbul")
    settings = Settings(source=source, live=LiveSection(every="0.01s"))
    zone = ZoneInfo("Europe/Istanbul")
    now = datetime.now(zone).replace(microsecond=0)
    content = with_clocks(f"{now:%H:%M:%S}")
    with serving(ok(content, "application/json")) as server:
        polled = PolledSource(f"{server.url}/buses", settings, [].append)
        messages = next(frame for frame in polled.messages() if frame)
        polled.stop()
    pings, refused = settings.decoder.decode(messages)
    assert {*pings.time_ms.tolist()} == {now.timestamp() * 1000} and not refused
    assert len(pings.plates) == 20
    midnight = datetime(2024, 3, 6, tzinfo=zone).timestamp()
    for clock, after_s, day in (
        ("23:59:58", 4, 5), ("00:00:10", -20, 6), ("00:00:01", 4, 6), ("23:00:00", 41_400, 5), ("24:00:01", 4, 5)
    ):  # fmt: skip
        now_ms = round((midnight + after_s) * 1000)
        said = source.mapping.dated(f'[{{"Saat": "{clock}"}}]'.encode(), now_ms)
        assert json.loads(said)[0]["Saat"] == f"2024-03-{day:02} {clock}"
    for other in (
        b'{"Saat": "0\xff:00"}',
        b'{"Saat": "2024-03-05 10:00:00"}',
        b"\x0a\x0b\xff",
        b'{"Saat": 7}',
    ):
        assert source.mapping.dated(other, round(midnight * 1000)) == other


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"time_s": 5}, "time_out_of_range at vehicle.timestamp"),
        ({"lon": 372.8}, "coordinates_out_of_range at vehicle.position"),
    ],
)
def test_a_refusal_of_gtfs_realtime_names_the_field_as_the_file_has_it(fields, name, tmp_path):
    given = {"time_s": 1_709_550_000, "lon": 72.8, "lat": 21.1, "speed": 5.0} | fields
    buses = [vehicle(f"GJ05ZZ{bus:04}", **given) for bus in range(30)]
    (tmp_path / "poll.pb").write_bytes(snapshot(*buses, header_s=1_709_550_000))
    with pytest.raises(UsageError) as raised:
        find_feed([str(tmp_path / "poll.pb")])
    assert name in str(raised.value) and "$." not in str(raised.value)
