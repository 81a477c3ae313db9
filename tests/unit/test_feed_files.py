"""Feeds as files, from the table `tests/feeds/found.toml`: what `init` finds is what is in them, by
every road; what is wrong is named, by every verb the same, and a command that is told mends it."""

import gzip
import json
import re
import subprocess
import tomllib
from datetime import datetime, timedelta, timezone
from itertools import chain
from math import cos, radians
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from tests.gtfs import snapshot, vehicle
from tests.verbs import run_verb
from udp_stream.base.errors import UsageError
from udp_stream.base.units import KMH_PER_UNIT
from udp_stream.cli.commands.init import city_file, find_feed
from udp_stream.cli.evidence import findings
from udp_stream.cli.preflight import look_by
from udp_stream.pings.decode import PingDecoder
from udp_stream.pings.snapshots import RepeatFilter
from udp_stream.settings import load
from udp_stream.sources.recordings import open_sources

pytestmark = pytest.mark.usefixtures("few_rehearsals")

TABLE = tomllib.loads((Path(__file__).parents[1] / "feeds" / "found.toml").read_text())
ZONES = {
    -74: "America/Bogota", 105: "Asia/Bangkok", 5: "Europe/Amsterdam", 34: "Asia/Jerusalem", 27: "Europe/Istanbul",
    -97: "America/Chicago",
    0: "Africa/Accra", -70: "America/Santiago", 24: "Europe/Helsinki", -72: "America/New_York",
}  # fmt: skip


def fleet(
    start="2024-03-04T11:00:00+00:00", buses=20, polls=8, every_s=15, at=(-74.1, 4.65), slow=1
):
    """Pings by polls, and all that templates may want to know of them."""
    km = 111.195 * cos(radians(at[1]))
    zone = ZoneInfo(ZONES[int(at[0])])
    for poll in range(polls):
        for bus in range(buses):
            kmh = (18 + bus * 26 / buses) / slow
            time = datetime.fromisoformat(start) + timedelta(seconds=every_s * poll + bus % 5)
            east = (1 if bus % 2 else -1) * kmh * every_s * poll / 3600 / km
            lon = round(at[0] + 0.0031 * bus + east, 6)
            lat = round(at[1] + 0.0007 * bus + 3.7e-5, 6)
            n = poll * buses + bus
            local = time.astimezone(zone)
            yield {
                "bus": bus, "number": 1000 + bus, "poll": poll, "time": time, "local": local,
                "fixed": time.astimezone(timezone(timedelta(hours=-5))),
                "west": -lon, "n": n, "stray": lon - 30 * (n % 40 == 0), "minus": kmh if n % 3 else -1,
                "ten_s": time - timedelta(seconds=time.second % 20), "line": bus % 3, "turned": (n * 7.91937 + bus * 31.7) % 170,
                "apart": lon + n % 2 * 100,
                "day_s": round((local.replace(tzinfo=None) - datetime(2024, 3, 15)).total_seconds()),
                "epoch_s": round(time.timestamp()), "ms": round(time.timestamp() * 1000), "odd": n % 2,
                "lon": lon, "lat": lat, "kmh": kmh, "part": kmh * 0.4, "later": time + timedelta(minutes=8),
                "operator": "CA"[bus // 10 % 2],
                "half": bus % 10,
                "ago": round(1709550200 - time.timestamp()),
                "word": ("N/A", "NaN", "-", "null")[n % 4] if n % 8 < 4 else f"{kmh:.1f}",
                "broken": f"{lat * 1e14:,.0f}".replace(",", ".") if n % 2 else f"{lat:.6f}",
                **{unit: kmh / factor for unit, factor in KMH_PER_UNIT.items() if unit != "kmh"},
                **{f"minutes_{name}": in_minutes(value, 1) for name, value in (("lon", lon), ("lat", lat))},
                **{f"seconds_{name}": in_minutes(value, 2) for name, value in (("lon", lon), ("lat", lat))},
                **{f"{name}_e{power}": round(value * 10**power) for name, value in (("lon", lon), ("lat", lat))
                   for power in (5, 6, 7)},
                "lon_s": lon * 3600, "lat_s": lat * 3600,
            }  # fmt: skip


def in_minutes(degrees, places):
    """A value in degrees and minutes (1), or with seconds (2), written as decimals."""
    if not places:
        return degrees
    whole = int(degrees)
    return whole + in_minutes((degrees - whole) * 60, places - 1) / 100


def fixes_of(case):
    given = {"start": case["start"]} if "start" in case else {}
    return list(fleet(**given, **case.get("fleet", {})))


def content_of(case):
    """The bytes of a feed's file."""
    if "text" in case:
        return case["text"].encode()
    if case.get("kind") == "gtfs":
        return polls_of(case)
    fields = case.get("fields") or TABLE["plain"] | case.get("with", {})
    fields = {name: text for name, text in fields.items() if name not in case.get("drop", ())}
    kind = case.get("kind", "lines")
    groups = {}
    for fix in fixes_of(case):
        if "raw" in case:
            groups.setdefault(fix[case["group"]], []).append(case["raw"].format(**fix))
            continue
        cells = [text.format(**fix) for text in fields.values()]
        if case.get("commas"):
            cells = [re.sub(r"^(-?\d+)\.(\d+)$", r"\1,\2", cell) for cell in cells]
        if kind.startswith("csv"):
            row = kind[3:].join(cells)
        else:
            values = list(map(valued, cells))
            row = json.dumps(
                values if case.get("array") else dict(zip(fields, values, strict=True))
            )
        if case.get("key"):
            row = f'"SIT{fix["bus"]:03}": {row}'
        name = fix[case["group"]] if "group" in case else len(groups)
        groups.setdefault(name, []).append(row)
    first, times = case.get("again", (len(groups), 1))
    for name, rows in list(groups.items())[first:]:
        groups[name] = ["\n".join(rows * times)]
    wrap = case.get("wrap", "ROWS")
    texts = [
        wrap.replace("BUS", f"{name:03}").replace(
            "ROWS", ("" if "raw" in case else ", ").join(rows)
        )
        for name, rows in groups.items()
    ]
    if kind.startswith("csv"):
        texts = [kind[3:].join(fields), *texts]
    if kind == "sequence":
        texts = [f"\x1e{text}" for text in texts]
    joint = case.get("between", ",\n" if "outer" in case else "\n")
    text = case.get("head", "") + case.get("outer", "GROUPS").replace("GROUPS", joint.join(texts))
    content = text.encode(case.get("encoding", "utf-8"))
    return gzip.compress(content) if file_of(case).endswith(".gz") else content


def varint(number):
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


LENGTHS = {
    "varint": varint,
    "big": lambda number: number.to_bytes(4, "big"),
    "little": lambda number: number.to_bytes(4, "little"),
}


def polls_of(case):
    """Polls of GTFS-realtime, each behind its length."""
    polls = {}
    names = ("lat", "lon") if case.get("exchanged") else ("lon", "lat")
    for fix in fixes_of(case):
        place = [fix[name] for name in names]
        bus = vehicle("", f"SIT{fix['bus']:03}", fix["epoch_s"], *place, fix["mps"])
        polls.setdefault(fix["poll"], []).append(bus)
    messages = [snapshot(*buses, header_s=buses[-1]["time_s"]) for buses in polls.values()]
    return b"".join(LENGTHS[case["length"]](len(one)) + one for one in messages)


def valued(text):
    """A value of JSON if it reads so, else a text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def file_of(case):
    kinds = {"document": "json", "lines": "ndjson", "sequence": "json"}
    return case.get("file", f"feed.{kinds.get(case.get('kind', 'lines'), 'csv')}")


def rows_of(settings, ping_format, messages):
    """(plate, ms, longitude, latitude, km/h) of the pings of some messages, by time and plate."""
    pings, refusals = PingDecoder(settings.ping_rules, ping_format).decode(messages)
    names = [pings.plates[plate] for plate in pings.plate.tolist()]
    columns = pings.time_ms, pings.lon, pings.lat, pings.speed / 4096
    return sorted(zip(names, *(column.tolist() for column in columns), strict=True)), len(refusals)


@pytest.fixture
def placed(tmp_path):
    def make(case):
        path = tmp_path / file_of(case)
        path.write_bytes(content_of(case))
        return path

    return make


def found_in(path):
    """What `init` finds, what it asks to be checked, and the settings that it writes."""
    feed = find_feed([str(path)])
    text = city_file(feed, path.name)
    path.with_name("city.toml").write_text(text)
    said = re.findall("^# ((?:CHECK|NOT KNOWN).*)", text, re.MULTILINE)
    return feed, said, load(path.with_name("city.toml"), (), {})


@pytest.mark.parametrize("name", TABLE["feeds"])
def test_a_feed_is_found_read_and_judged_as_the_table_says(name, placed):
    case = TABLE["feeds"][name]
    path = placed(case)
    feed, said, settings = found_in(path)
    fixes = fixes_of(case)
    refused = case.get("refused", 0)
    count = round(len(fixes) * case.get("twice", 1)) - refused
    assert (feed.pings, feed.refused) == (count, refused), said
    assert {key: feed.keys.get(key) for key in case.get("keys", {})} == {
        key: tuple(value) if isinstance(value, list) else value for key, value in case.get("keys", {}).items()
    }  # fmt: skip
    checks = case.get("check", [])
    assert len(said) == len(checks), said
    assert all(any(re.search(words, one) for one in said) for words in checks), said
    assert not any(words in one for one in said for words in ("SIT", *case.get("calm", ())))
    at = fixes[0]
    assert feed.zone == ZONES[int(at["lon"])]
    if not case.get("unplaced"):
        west, south, east, north = feed.box
        assert west < at["lon"] < east < west + 1 and south < at["lat"] < north < south + 0.5
    for field, names in case.get("unread", {}).items():
        assert any(name in feed.unread[field] for name in names)
    assert (feed.unit, feed.unit_by) == (case.get("unit", "kmh"), case.get("unit_by", "movement"))
    ((_, source),) = open_sources([str(path)], settings.speed.unit, form=settings.form)
    messages = list(chain(*source.messages()))
    read = rows_of(settings, source.format, messages)
    outside = case.get("outside", 0)
    assert (len(read[0]), read[1]) == (count - outside, refused + outside)
    for road, some in by_other_roads(settings, source.format, messages, path):
        if road != "polled" or not case.get("repeats"):
            assert rows_of(settings, settings.form.format, some) == read, road
    if not case.get("elsewhere") and count == len(fixes) and not case.get("still"):
        assert agrees(read[0], expected_of(case, fixes), settings)
    judged = [one.sentence for one in findings(look_by(settings, messages, source.format))]
    words = case.get("judged", [])
    assert len(judged) == len(words), judged
    assert all(re.search(word, one) for word, one in zip(words, judged, strict=True)), judged
    for verb in case.get("verbs", ()):
        done = run_verb([*verb.split(), path.name, "--config", "city.toml"], cwd=path.parent)
        assert re.search(checks[0], " ".join((done.stdout + done.stderr).decode().split())), verb


def by_other_roads(settings, ping_format, messages, path):
    """Messages of a feed as a topic and as a source that repeats itself have them."""
    as_json = getattr(ping_format, "as_json", list)(messages)
    yield "a topic", as_json
    whole = (
        [path.read_bytes()]
        if path.suffix == ".json" and path.read_bytes()[:1] in b"[{"
        else as_json
    )
    yield "a topic, whole", whole
    once = RepeatFilter(settings.form.format, 10**7, 10**4)
    yield "polled", list(chain(*map(once.take, whole)))


def expected_of(case, fixes):
    plate = case.get("plate", TABLE["plain"]["vehicle"])
    rows = [(plate.format(**fix), fix["ms"], fix["lon"], fix["lat"], fix["kmh"]) for fix in fixes]
    return sorted(rows)


def agrees(rows, expected, settings):
    assert [row[:4] for row in rows] == [row[:4] for row in expected]
    if settings.speed.from_ == "field":
        assert np.allclose([row[4] for row in rows], [row[4] for row in expected], atol=0.1)
    return True


@pytest.mark.parametrize("name", TABLE["mends"])
def test_a_command_that_is_told_makes_a_feed_readable_when_it_is_pasted(name, placed):
    case = TABLE["mends"][name]
    path = placed(case)
    with pytest.raises(UsageError) as raised:
        find_feed([str(path)])
    said = str(raised.value)
    command = re.search("`([^`]*)`", said)[1]
    assert re.search(case.get("said", ""), said) and "SIT" not in said and "FILE" in command
    new = path.with_name(case.get("new", f"new.{path.name.removesuffix('.gz').rpartition('.')[2]}"))
    command = command.replace("FILE", str(path)).replace("NEW", str(new))
    if str(new) not in command:
        command += f" > {new}"
    subprocess.run(command, shell=True, check=True)
    new.write_bytes(case.get("header", "").encode() + new.read_bytes())
    feed, _, settings = found_in(new)
    assert feed.unit == case.get("unit", feed.unit)
    ((_, source),) = open_sources([str(new)], settings.speed.unit, form=settings.form)
    messages = list(chain(*source.messages()))
    read, refused = rows_of(settings, source.format, messages)
    rows = [(plate, ms, round(lon, 5), round(lat, 5), kmh) for plate, ms, lon, lat, kmh in read]
    expected = [
        (plate, ms, round(lon, 5), round(lat, 5), kmh)
        for plate, ms, lon, lat, kmh in expected_of(case, fixes_of(case))
    ]
    assert not refused and agrees(rows, expected, settings)


@pytest.mark.parametrize("name", TABLE["wrong"])
def test_what_is_no_feed_is_said_with_what_to_do(name, placed):
    case = TABLE["wrong"][name]
    with pytest.raises(UsageError) as raised:
        find_feed([str(placed(case))])
    said = str(raised.value)
    assert re.search(case["said"], said, re.DOTALL) and "0 of 0" not in said and "SIT" not in said
    assert not any(word in said for word in case.get("calm", ()))
