"""Feeds as they are, the last nine that were found: what `init` reads, proposes or names of each,
and that `doctor` and `replay --dry-run` say the same of the same pings."""

import io
import json
import os
import re
import subprocess
from contextlib import closing, redirect_stdout
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import cos, radians
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from tests.forms import long_but
from tests.gtfs import snapshot, vehicle
from tests.http_server import ok, serving
from tests.unit.test_feeds_once_more import found
from udp_stream.cli import main as cli
from udp_stream.cli.commands.init import city_file, find_feed
from udp_stream.errors import ConfigError, UsageError
from udp_stream.settings import Settings, load
from udp_stream.settings.sections import LiveSection, SourceSection
from udp_stream.sources.http import PolledSource
from udp_stream.sources.recordings import open_sources
from udp_stream.units import KMH_PER_UNIT

START = datetime(2024, 3, 5, 10, 30, tzinfo=UTC)
BUSES = 40
POLLS = 30
EVERY_S = 15
FIELDS = "plate", "time", "lat", "lon", "speed"


def fleet(start=START, at=(-70.65, -33.45), polls=POLLS):
    """Buses that go east and west at 18 to 44 km/h."""
    draw = np.random.default_rng(5)
    km = 111.195 * cos(radians(at[1]))
    lon = at[0] + draw.uniform(-0.06, 0.06, BUSES)
    lat = at[1] + draw.uniform(-0.04, 0.04, BUSES)
    speed = draw.uniform(18, 44, BUSES)
    for poll in range(polls):
        for bus in range(BUSES):
            time = start + timedelta(seconds=EVERY_S * poll + bus % 7)
            yield dict(
                zip(FIELDS, (f"SIT{bus:03}", time, lat[bus], lon[bus], speed[bus]), strict=True)
            )
        speed = np.clip(speed + draw.normal(0, 1.0, BUSES), 12, 44)
        lon = lon + np.where(np.arange(BUSES) % 2, 1, -1) * speed * EVERY_S / 3600 / km


def table(rows, names=FIELDS, joint=","):
    return "\n".join([joint.join(names), *(joint.join(map(str, row)) for row in rows)])


def plain(one):
    return (
        one["plate"],
        one["time"].isoformat(),
        f"{one['lat']:.6f}",
        f"{one['lon']:.6f}",
        f"{one['speed']:.1f}",
    )


ALL = BUSES * POLLS, BUSES


def test_a_column_that_moves_with_the_positions_is_named_with_the_line_that_reads_it(tmp_path):
    rows = [
        (one["plate"], "501", f"{one['time']:%d-%m-%Y %H:%M:%S}", f"{one['lat']:.6f}".replace(".", ","),
         f"{one['lon']:.6f}".replace(".", ","), f"{one['speed']:.1f}".replace(".", ","), at % 2)
        for at, one in enumerate(fleet())
    ]  # fmt: skip
    names = "PATENTE", "RECORRIDO", "FECHA_HORA_GPS", "LATITUD", "LONGITUD", "VEL_INST", "IGNICION"
    feed, said, read = found(tmp_path, "\ufeff" + table(rows, names, ";"), "feed.csv")
    assert read == ALL and not feed.unit
    assert 'source.speed = "VEL_INST" and speed.unit = "kmh"' in said and "IGNICION" not in said
    # The line that is told reads it.
    text = (tmp_path / "city.toml").read_text()
    text = text.replace('from = "movement"', 'unit = "kmh"')
    text = text.replace('speed = ""', 'speed = "VEL_INST"')
    (tmp_path / "city.toml").write_text(text)
    pings, speeds, said, _ = checks_of(tmp_path, "feed.csv")
    assert speeds == "ok" and "VEL_INST" not in said
    # What `init` doubts of its mapping, `doctor` cannot tell.
    assert pings == "unknown" and "day and month could be exchanged" in said


def checks_of(folder, name, *more):
    """The words of `doctor` on pings and speeds, and what it says of these."""
    words = ["doctor", str(folder / name), "--config", str(folder / "city.toml")]
    with redirect_stdout(io.StringIO()) as said:
        cli.main([*words, "--set", f"ledger.url={folder}/l"])
    both = [
        line for line in said.getvalue().splitlines() if re.match(r"\w+ +(pings|speeds) of", line)
    ]
    return [line.split()[0] for line in both] + both


def test_other_columns_that_look_like_fields_are_named_and_no_check(tmp_path):
    rows = [(f"34 {one['plate']}", *plain(one), one["time"].isoformat()) for one in fleet()]
    names = "Plaka", "KapiNo", "Saat", "Enlem", "Boylam", "Hiz", "gps_time"
    feed, said, read = found(tmp_path, table(rows, names), "feed.csv")
    assert read == ALL and feed.unit == "kmh" and "CHECK" not in said
    assert "KapiNo" in feed.unread["plate"] or "Plaka" in feed.unread["plate"]
    assert "Saat" in feed.unread["time"] or "gps_time" in feed.unread["time"]


def test_rows_that_a_spreadsheet_has_broken_are_refused_and_named(tmp_path):
    rows = [plain(one) for one in fleet()]
    broken = [
        (*row[:2], "-334.465.210.000.000", "-706.834.020.000.000", row[4]) if at % 10 < 3 else row
        for at, row in enumerate(rows)
    ]
    feed, said, read = found(tmp_path, table(broken), "feed.csv")
    assert read[0] == 0.7 * len(rows) and feed.refused == 0.3 * len(rows)
    assert f"{feed.refused} of {len(rows):,} pings are refused" in said
    assert '"-000.000.000.000.000"' in said and '"-00.000000"' in said and "spreadsheet" in said
    assert "334" not in said
    word, _, line, _ = checks_of(tmp_path, "feed.csv")
    assert word == "unknown" and "spreadsheet" in line


@pytest.mark.parametrize("jitter_s", [0, 13])
def test_times_in_springs_hour_are_named_whether_or_not_they_repeat(jitter_s, tmp_path):
    start = datetime(2024, 3, 10, 1, 56)  # 02:00 does not exist in New York; 03:05 is an hour early
    some = [*fleet(start, (-72.6, 42.1)), *fleet(start + timedelta(minutes=64), (-72.6, 42.1))]
    rows = [
        (*plain(one)[:1], (one["time"] + timedelta(seconds=at * 7 % (jitter_s or 1))).isoformat(), *plain(one)[2:])
        for at, one in enumerate(some)
    ]  # fmt: skip
    _, said, _ = found(tmp_path, table(rows), "feed.csv")
    assert 'source.time_zone = "Etc/GMT+5"' in said and "several vehicles" not in said
    text = (tmp_path / "city.toml").read_text()
    word, _, line, _ = checks_of(tmp_path, "feed.csv")
    assert word == "unknown" and "Etc/GMT+5" in line
    (tmp_path / "city.toml").write_text(
        text.replace('time_zone = "America/New_York"', 'time_zone = "Etc/GMT+5"')
    )
    assert "leaves out" not in checks_of(tmp_path, "feed.csv")[2]


def of_service_day(time, day, written):
    hours = (time - datetime(day.year, day.month, day.day)) // timedelta(hours=1)
    return f"{day:{written}}".replace("HH", f"{hours:02}").replace("MMSS", f"{time:%M:%S}")


@pytest.mark.parametrize(
    "written", ["%Y-%m-%d HH:MMSS", "%Y-%m-%dTHH:MMSS", "%d/%m/%Y HH:MMSS", "HH:MMSS %d.%m.%Y"]
)
def test_hours_of_24_and_more_are_the_next_days(written, tmp_path):
    start = datetime(2024, 3, 15, 23, 56)
    rows = [
        (*plain(one)[:1], of_service_day(one["time"], start, written), *plain(one)[2:])
        for one in fleet(start, (34.8, 32.08))
    ]
    feed, said, read = found(tmp_path, table(rows), "feed.csv")
    assert read == ALL and feed.refused == 0 and feed.zone == "Asia/Jerusalem"
    assert feed.hours == "2024-03-15 23:56 to 2024-03-16 00:03" and "refused" not in said
    assert feed.unit == "kmh" and feed.unit_by == "movement"


@pytest.mark.parametrize("date", ["%Y-%m-%d", "%Y%m%d", "%d-%m-%Y"])
@pytest.mark.parametrize("start_s", [86_100, 0])
def test_a_date_and_the_seconds_of_its_day_are_a_time(date, start_s, tmp_path):
    day = datetime(2024, 3, 15)
    rows = [
        (one["plate"], f"{day:{date}}", round((one["time"] - day).total_seconds()), *plain(one)[2:])
        for one in fleet(day + timedelta(seconds=start_s), (5.1, 52.1))
    ]
    names = "vehiclenumber", "operatingday", "seconds", "latitude", "longitude", "speed_kmh"
    feed, _, read = found(tmp_path, table(rows, names), "feed.csv")
    assert read == ALL and feed.keys["time"] == ("operatingday", "seconds")
    first = datetime(2024, 3, 15) + timedelta(seconds=start_s)
    assert feed.hours.startswith(f"{first:%Y-%m-%d %H:%M}") and feed.unit_by == "movement"


def in_minutes(degrees):
    whole = int(abs(degrees))
    minutes = (abs(degrees) - whole) * 60
    return f"{'-' if degrees < 0 else ''}{whole + minutes / 100:.6f}"


def in_seconds(degrees):
    whole = int(abs(degrees))
    minutes = int((abs(degrees) - whole) * 60)
    seconds = ((abs(degrees) - whole) * 60 - minutes) * 60
    return f"{'-' if degrees < 0 else ''}{whole + minutes / 100 + seconds / 10_000:.8f}"


SCALES = {"degrees and minutes": in_minutes, "degrees, minutes and seconds": in_seconds}


@pytest.mark.parametrize("unit", long_but(["kmh", "mps"], KMH_PER_UNIT))
@pytest.mark.parametrize("scale", SCALES)
def test_positions_in_another_scale_are_named_whichever_unit_the_speed_has(scale, unit, tmp_path):
    write = SCALES[scale]
    rows = [
        (*plain(one)[:2], write(one["lat"]), write(one["lon"]), f"{one['speed'] / KMH_PER_UNIT[unit]:.1f}")
        for one in fleet()
    ]  # fmt: skip
    _, said, _ = found(tmp_path, table(rows), "feed.csv")
    assert f"{scale} written as decimals" in said and f"in {unit} fit" in said
    _, word, _, line = checks_of(tmp_path, "feed.csv")
    assert word == "FAIL" and scale in line


@pytest.mark.parametrize("at", [(-70.65, -33.45), (-0.19, 5.6)])
@pytest.mark.parametrize("factor", long_but([10**6, 3600], [10**5, 10**6, 10**7, 3600]))
@pytest.mark.parametrize("unit", ["kmh", "mph"])
def test_degrees_times_a_number_are_told_by_the_speeds_with_what_divides_them(
    at, factor, unit, tmp_path
):
    """In Accra degrees times 1e6 could be times 1e5 of another place."""
    write = str if factor == 3600 else round
    rows = [
        (*plain(one)[:2], write(factor * one["lat"]), write(factor * one["lon"]),
         f"{one['speed'] / KMH_PER_UNIT[unit]:.1f}") for one in fleet(at=at)
    ]  # fmt: skip
    with pytest.raises(UsageError) as raised:
        found(tmp_path, table(rows), "feed.csv")
    command = re.search("`([^`]*)`", str(raised.value))[1]
    assert pasted(command, tmp_path, "feed.csv", "new.csv") == ALL
    feed, _, _ = found(tmp_path, (tmp_path / "new.csv").read_bytes(), "new.csv")
    assert feed.box[0] < at[0] < feed.box[2] and feed.unit == unit


@pytest.mark.parametrize("at", [(-70.65, -33.45), (-70.35, -33.25)])
def test_a_city_whose_degrees_could_be_minutes_is_let_alone(at, tmp_path):
    """All fractions may be below 0.60 by chance."""
    feed, said, read = found(tmp_path, table(map(plain, fleet(at=at))), "feed.csv")
    assert read == ALL and feed.unit == "kmh" and "CHECK" not in said
    assert checks_of(tmp_path, "feed.csv")[:2] == ["ok", "ok"]


def clocks(written, at=(27.15, 38.42)):
    """Rows of Izmir's, whose `Saat` has no date."""
    return [
        {"Operator": "X", "KapiNo": one["plate"], "Saat": written(one["time"]), "Boylam": f"{one['lon']:.6f}",
         "Enlem": f"{one['lat']:.6f}", "Hiz": f"{one['speed']:.0f}", "Plaka": f"34 {one['plate']}"}
        for one in fleet(at=at)
    ]  # fmt: skip


@pytest.mark.parametrize("pattern", ["%H:%M:%S", "%I:%M:%S %p"])
def test_times_of_day_are_read_as_of_a_day_that_a_person_sets(pattern, tmp_path, capsys):
    """`init` takes the day of the file's last change, and says so, as do `doctor` and `plan`."""
    (tmp_path / "feed.json").write_text(json.dumps(clocks(lambda time: f"{time:{pattern}}")))
    os.utime(tmp_path / "feed.json", (0, START.timestamp() - 3 * 86_400))
    feed = find_feed([str(tmp_path / "feed.json")])
    assert (feed.pings, feed.plates, feed.hours[:10]) == (*ALL, "2024-03-02")
    assert feed.keys["time_format"] == f"2024-03-02 {pattern}" and feed.keys["plate"] == "Plaka"
    (tmp_path / "city.toml").write_text(city_file(feed, "feed.json"))
    (sentence,) = re.findall(
        "CHECK: (times of day have no date.*2024-03-02.*)[.]", city_file(feed, "x")
    )
    assert sentence in checks_of(tmp_path, "feed.json")[2]
    text = (tmp_path / "city.toml").read_text().replace("2024-03-02 %", "2024-03-05 %")
    (tmp_path / "city.toml").write_text(text)
    assert read_by(tmp_path, "feed.json", START.replace(tzinfo=None)) == ALL


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
    rows = clocks(lambda _: f"{now:%H:%M:%S}")
    with serving(ok(json.dumps(rows).encode(), "application/json")) as server:
        polled = PolledSource(f"{server.url}/buses", settings, [].append)
        messages = next(frame for frame in polled.messages() if frame)
        polled.stop()
    pings, refused = settings.decoder.decode(messages)
    assert {*pings.time_ms.tolist()} == {now.timestamp() * 1000} and not refused
    assert len(pings.plates) == BUSES
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


@pytest.mark.parametrize("pattern", ["2024-02-30 %H:%M", "2024-03-05 %H", "2024-03-05 %d %H:%M"])
def test_a_day_that_is_none_and_a_pattern_without_a_minute_are_refused(pattern):
    with pytest.raises(ConfigError, match=r"source\.time_format"):
        _ = SourceSection(time="t", time_zone="Etc/UTC", time_format=pattern).form


def pasted(command, folder, name, new, header=""):
    """The pings that are read after a command was pasted."""
    command = command.replace("FILE", str(folder / name)).replace("NEW", str(folder / new))
    subprocess.run(command, shell=True, check=True)
    return found(folder, header + (folder / new).read_text(), new)[2]


def test_an_array_of_texts_is_named_with_what_makes_lines_of_it(tmp_path):
    held = {}
    for one in fleet():
        time = f"{one['time']:%d-%m-%Y %H:%M:%S}"
        fix = [time, *plain(one)[:1], *plain(one)[2:], "2", "7", "T501", "I", "41", "501", "0", ""]
        held.setdefault(one["plate"], []).append("|".join(fix))
    texts = ["".join(some[at : at + 4]) for some in held.values() for at in range(0, POLLS, 4)]
    lines = [json.dumps({"fecha": "20240305073059", "posiciones": texts[at::6]}) for at in range(6)]
    with pytest.raises(UsageError) as raised:
        found(tmp_path, "\n".join(lines), "feed.ndjson")
    said = str(raised.value)
    assert "posiciones holds texts with '|' between 12 fields" in said and "SIT" not in said
    header = "time|vehicle|lat|lon|speed|a|b|c|d|e|f|g|\n"
    command = re.search("`([^`]*)`", said)[1]
    assert pasted(command, tmp_path, "feed.ndjson", "new.csv", header) == ALL


@pytest.mark.parametrize(
    "line",
    [
        "*HQ,8000000114,V1,103000,A,3328.7369,S,07041.0041,W,023.06,090,050324,FBFFFBFF#",
        "$GPRMC,103000,A,3328.7369,S,07041.0041,W,023.06,090,050324,,*1C",
        "imei:359587010124900,tracker,0809231929,13554900601,F,112909.397,A,2234.4669,N",
    ],
)
@pytest.mark.parametrize("name", ["lines.txt", "lines.csv"])
def test_a_trackers_own_lines_are_named_with_what_reads_them(line, name, tmp_path):
    with pytest.raises(UsageError) as raised:
        found(tmp_path, "\n".join([line] * 60), name)
    said = str(raised.value)
    assert "tracker's own lines" in said and "Traccar" in said and "header" not in said


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


def whole_minutes():
    return [
        (*plain(one)[:1], f"{one['time']:%Y-%m-%dT%H:%M}:00Z", *plain(one)[2:]) for one in fleet()
    ]


def late_repeats():
    """The first is behind more messages than `replay` looks at before it begins."""
    rows = [plain(one) for one in fleet(polls=120)]
    return [*rows[:4200], *(row for row in rows[4200:] for _ in range(5))]


def days_first():
    return [
        (*plain(one)[:1], f"{one['time']:%d/%m/%Y %H:%M:%S}", *plain(one)[2:]) for one in fleet()
    ]


@pytest.mark.parametrize(
    ("rows", "words", "verbs"),
    [
        (whole_minutes, "times are whole minutes", (["replay", "--dry-run"], ["plan"])),
        (late_repeats, "[0-9,]+ of [0-9,]+ pings share plate and time", ()),
        (days_first, "day and month could be exchanged", (["replay", "--dry-run"],)),
    ],
)
def test_what_is_said_of_one_file_is_one_judgement(rows, words, verbs, tmp_path, capsys):
    """`init`, `doctor`, `plan` and `replay --dry-run` have the same sentence, on the file as on its
    mapping."""
    _, said, _ = found(tmp_path, table(rows()), "feed.csv")
    (sentence,) = re.findall(rf"CHECK: ({words}[^|]*?)\.?(?: \||$)", said)
    assert sentence in checks_of(tmp_path, "feed.csv")[2]
    for verb in verbs:
        capsys.readouterr()
        words = [*verb, str(tmp_path / "feed.csv"), "--config", str(tmp_path / "city.toml")]
        assert cli.main(words) == 0
        assert sentence in " ".join("".join(capsys.readouterr()).split())
