"""The dashboard as its own process, over HTTP: what it serves, what it refuses, and what clients
may do to it."""

import csv
import gzip
import io
import json
import re
import resource
import select
import signal
import socket
import sqlite3
import subprocess
import sys
from contextlib import ExitStack, closing
from functools import partial
from html.parser import HTMLParser
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote, urlencode, urlsplit

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from tests.board import (
    cells,
    crowded,
    dashboard,
    estimate,
    forked,
    get,
    hat,
    memory_mb,
    release,
    slots_of,
    wait_for,
    write,
)
from tests.forms import long_rows
from tests.terminal import on_terminal
from tests.timetables import files_of, zipped
from tests.verbs import run_verb
from udp_stream.base.errors import ConfigError, DependencyUnavailable, UsageError
from udp_stream.dashboard.server import STATIC, Dashboard, serving
from udp_stream.dashboard.slots import KINDS, Slots
from udp_stream.export_formats import columns, flat
from udp_stream.release.record import Release, Smoothed
from udp_stream.windows.grid import HEXAGONS

ROOT = Path(__file__).parents[2]
CELLS = sorted(cells(5))
HOURS = 3
RELEASES = {hour: [release(cell, hour) for cell in CELLS] for hour in range(HOURS)}
ESTIMATES = {hour: [estimate(cell, hour) for cell in CELLS] for hour in range(HOURS)}
PATHS = ("/", "/privacy", "/v1/slots", "/v1/releases", "/v1/estimates", "/v1/outlines", "/v1/places", "/v1/stream",
         "/v1/privacy", "/v1/withdrawals", "/schema/release.schema.json", "/schema/smoothed.schema.json",
         "/schema/withdrawal.schema.json", "/healthz", "/readyz", "/metrics")  # fmt: skip


def start_of(hour, offset="+00:00"):
    return hat(CELLS[0], hour, offset)["slot_start"]


def text(lines):
    return b"".join(line + b"\n" for line in lines)


forked_board = partial(dashboard, begin=forked)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dashboard")
    write(folder / "releases.ndjson", [line for lines in RELEASES.values() for line in lines])
    write(folder / "estimates.ndjson", [line for lines in ESTIMATES.values() for line in lines])
    write(folder / "pings.ndjson", [b'{"license_plate":"GJ05ZZ0001","speed":12.0}'])
    names = ("releases.ndjson", "estimates.ndjson", "pings.ndjson", "later.ndjson")
    with forked_board(*names, cwd=folder) as (address, process):
        yield address, process


@pytest.fixture(scope="module")
def address(served):
    return served[0]


def test_records_are_byte_for_byte_as_published_packed_or_not_and_sent_once(address):
    for kind, published in (("releases", RELEASES), ("estimates", ESTIMATES)):
        url = f"{address}/v1/{kind}?slot={quote(start_of(1))}"
        status, headers, plain = get(url)
        assert (
            status == 200
            and plain == text(published[1])
            and headers["Content-Type"] == "application/x-ndjson"
        )
        _, of_packed, packed = get(url, **{"Accept-Encoding": "br, gzip"})
        assert of_packed["Content-Encoding"] == "gzip" and gzip.decompress(packed) == plain
        assert of_packed["ETag"] == headers["ETag"] and "Accept-Encoding" in of_packed["Vary"]
        assert "Content-Encoding" not in get(url, **{"Accept-Encoding": "gzip;q=0"})[1]
        status, headers, body = get(url, **{"If-None-Match": f'"other", {headers["ETag"]}'})
        assert (status, body) == (304, b"") and headers["ETag"] == of_packed["ETag"]
        assert get(url, **{"If-None-Match": '"other"'})[0] == 200
        status, headers, body = get(url, method="HEAD")
        assert status == 200 and body == b"" and int(headers["Content-Length"]) == len(plain)


def test_a_slot_is_found_by_any_offset_and_the_newest_by_its_name_or_none(address):
    asked = [
        quote(start_of(6, "+05:00")),
        start_of(6, "+05:00"),
        quote(start_of(1)),
        start_of(1)[:19] + "Z",
    ]
    found = {get(f"{address}/v1/releases?slot={one}")[2] for one in asked}
    assert found == {text(RELEASES[1])}
    assert (
        get(f"{address}/v1/estimates")[2]
        == get(f"{address}/v1/estimates?slot=latest")[2]
        == text(ESTIMATES[2])
    )
    assert get(f"{address}/v1/releases?slot={quote(start_of(9))}")[0] == 404


def test_a_cell_has_a_history_and_a_part_in_each_slot(address):
    history = get(f"{address}/v1/releases?cell={CELLS[3]}")[2]
    assert history == text(RELEASES[hour][3] for hour in range(HOURS))
    assert get(f"{address}/v1/releases?cell={CELLS[3]}&slot=latest")[2] == text([RELEASES[2][3]])
    assert get(f"{address}/v1/releases?cell={'8' * 15}")[::2] == (200, b"")


@pytest.mark.parametrize(
    ("kind", "of", "published"),
    [("releases", Release, RELEASES), ("estimates", Smoothed, ESTIMATES)],
)
def test_csv_and_geojson_have_every_field_and_a_name_to_be_saved_under(
    address, kind, of, published
):
    records, names = (
        [flat(json.loads(line)) for line in published[0]],
        [name for name, _ in columns(of)],
    )
    _, headers, body = get(f"{address}/v1/{kind}?form=csv&slot={quote(start_of(0))}")
    rows = list(csv.DictReader(io.StringIO(body.decode())))
    assert list(rows[0]) == names and [row["hat.cell"] for row in rows] == CELLS
    assert (
        headers["Content-Disposition"] == f'attachment; filename="{kind}-2024-01-08T06-00-00.csv"'
    )
    _, headers, body = get(f"{address}/v1/{kind}?form=geojson&cell={CELLS[0]}")
    features = json.loads(body)["features"]
    assert len(features) == HOURS and headers["Content-Disposition"].endswith(
        f'filename="{kind}-{CELLS[0]}.geojson"'
    )
    assert features[0]["properties"] == {name: records[0].get(name) for name in names}
    assert headers["Content-Type"] == "application/geo+json"


def test_slots_outlines_and_privacy_say_what_is_there(address):
    slots = slots_of(address)
    assert json.loads(get(f"{address}/v1/slots")[2]).keys() == {"slots"}
    assert [slot["slot_start"] for slot in slots] == [start_of(hour) for hour in range(HOURS)]
    assert all(slot["hats"] == {"released": 5} and slot["estimates"] == 5 for slot in slots)
    assert len({slot["version"] for slot in slots}) == HOURS
    assert sorted(json.loads(get(f"{address}/v1/outlines")[2])) == CELLS
    privacy = json.loads(get(f"{address}/v1/privacy")[2])
    newest = json.loads(RELEASES[2][0])["privacy"]
    assert privacy.keys() == {"statement", "newest_release", "year_epsilon", "spent"}
    assert privacy["statement"] is None and privacy["newest_release"] == newest
    share = min(1.0, HOURS * len(CELLS) * newest["epsilon"] / newest["period_epsilon"])
    assert privacy["spent"] == {"day": start_of(0)[:10], "share": pytest.approx(share)}


def test_the_schemas_are_those_of_the_documentation_and_records_keep_them(address):
    for name, lines in (("release", RELEASES[0]), ("smoothed", ESTIMATES[0])):
        schema = json.loads(get(f"{address}/schema/{name}.schema.json")[2])
        assert schema == json.loads((ROOT / "docs" / f"{name}.schema.json").read_text("utf-8"))
        for line in lines:
            jsonschema.validate(json.loads(line), schema, jsonschema.Draft202012Validator)


@pytest.mark.parametrize("path", [*PATHS, "/no/such", "/static/no.js"])
def test_every_answer_has_our_headers_and_no_other_method_is_answered(address, path):
    for method in ("HEAD",) if path == "/v1/stream" else ("GET", "HEAD"):
        status, headers, _ = get(address + path, method=method)
        assert status == (404 if "no" in path else 200)
        assert headers["Content-Security-Policy"].startswith("default-src 'self'")
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert (headers["Access-Control-Allow-Origin"] == "*") == path.startswith(
            ("/v1", "/schema")
        )
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"):
        status, headers, _ = get(address + path, method=method)
        assert status == (404 if "no" in path else 405)
        assert "no" in path or headers["Allow"] == "GET,HEAD"


@pytest.mark.parametrize(
    "query",
    ["sloot=latest", "slot=latest&slot=latest", "slot=yesterday", "slot=2024-01-08T06:00:00", "slot=", "cell=",
     "cell=8", f"cell={'8' * 16}", "form=xml", "form=", "form=CSV", "cell=../../etc"],
)  # fmt: skip
def test_a_parameter_that_is_none_is_refused_in_a_sentence(address, query):
    status, headers, body = get(f"{address}/v1/releases?{query}")
    assert (
        status == 400 and headers["Content-Type"].startswith("text/plain") and b"expected" in body
    )
    for path in ("/v1/slots", "/v1/outlines", "/v1/places", "/v1/privacy", "/v1/stream", "/"):
        assert get(f"{address}{path}?{query or 'x'}")[0] == 400


ASKED = st.sampled_from(["slot", "cell", "form", "Slot", "callback", ""]) | st.text(max_size=5)
ANSWERED = st.sampled_from(["latest", start_of(0), CELLS[0], "csv", "geojson", "9999-12-31T23:59:59-23:59",
                            "0001-01-01T00:00:00+23:59"]) | st.text(max_size=20)  # fmt: skip


@settings(max_examples=150)
@given(path=st.sampled_from(["/v1/releases", "/v1/estimates", "/v1/slots", "/static/" , "/schema/"]),
       query=st.lists(st.tuples(ASKED, ANSWERED), max_size=3), end=st.text(max_size=8))  # fmt: skip
def test_no_address_is_a_fault(address, path, query, end):
    place = path + (
        quote(end.encode("utf-8", "surrogatepass"))
        if path.count("/") > 1 and path.endswith("/")
        else ""
    )
    encoded = urlencode(
        [
            (name.encode("utf-8", "replace"), value.encode("utf-8", "replace"))
            for name, value in query
        ]
    )
    assert get(f"{address}{place}?{encoded}")[0] in (200, 400, 404)


@pytest.mark.parametrize(
    "path", ["/static/../server.py", "/static/..%2fserver.py", "/static//etc/hosts", "/static/"]
)
def test_no_file_is_served_but_those_of_the_page(address, path):
    with closing(HTTPConnection(urlsplit(address).netloc, timeout=10)) as connection:
        connection.request("GET", path)  # as it is: urllib would not send some of them
        assert connection.getresponse().status == 404


def test_the_page_and_what_it_loads_are_served(address):
    page = get(f"{address}/")[2].decode()
    loaded = re.findall(r'(?:src|href)="/?(static/[^"]+)"', page)
    assert loaded and all(get(f"{address}/{file}")[0] == 200 for file in loaded)
    for file in STATIC.rglob("*.js"):
        status, headers, body = get(f"{address}/static/{file.relative_to(STATIC)}")
        assert (
            status == 200
            and headers["Content-Type"].startswith("text/javascript")
            and body == file.read_bytes()
        )


def test_metrics_are_what_prometheus_reads_and_hold_nothing_of_the_records(address):
    status, headers, body = get(f"{address}/metrics")
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    assert status == 200 and headers["Content-Type"].startswith("text/plain")
    values = {
        sample.name: sample.value for family in families.values() for sample in family.samples
    }
    name = "udp_stream_dashboard"
    assert values == {
        f"{name}_clients": 0, f"{name}_slots": HOURS, f"{name}_records_refused_total": 1,
        f"{name}_newest_slot_timestamp_seconds": 1_704_704_400,
    }  # fmt: skip
    assert families[f"{name}_records_refused"].type == "counter"
    assert not any(sample.labels for family in families.values() for sample in family.samples)
    assert all(cell.encode() not in body for cell in CELLS) and b"GJ05" not in body


class Stream:
    def __init__(self, address):
        self._socket = socket.create_connection(urlsplit(address).netloc.split(":"), timeout=20)
        self._socket.sendall(b"GET /v1/stream HTTP/1.1\r\nHost: x\r\n\r\n")
        self._lines = self._socket.makefile("rb")

    def notice(self):
        for line in self._lines:
            if line.startswith(b"data:"):
                return json.loads(line[5:])
        return None

    def close(self):
        self._lines.close()
        self._socket.close()


def test_a_stream_tells_of_each_change_and_ends_with_the_server(tmp_path):
    write(tmp_path / "r", RELEASES[0] + RELEASES[1])
    with forked_board("r", cwd=tmp_path) as (address, process), ExitStack() as stack:
        stream = Stream(address)
        stack.callback(stream.close)
        assert stream.notice() == {
            name: slots_of(address)[1][name] for name in ("slot_start", "version")
        }
        wait_for(lambda: b"udp_stream_dashboard_clients 1.0" in get(f"{address}/metrics")[2])
        write(tmp_path / "r", RELEASES[2] + ESTIMATES[0])
        told = [stream.notice(), stream.notice()]
        assert [one["slot_start"] for one in told] == [start_of(0), start_of(2)]
        assert {one["version"] for one in told} <= {slot["version"] for slot in slots_of(address)}
        before = slots_of(address)
        process.send_signal(signal.SIGTERM)
        assert stream.notice() is None
        assert process.wait(10) == 0
    with forked_board("r", cwd=tmp_path) as (address, _):
        assert slots_of(address) == before


def test_streams_are_limited_and_the_board_is_ready_once_all_is_read(limits):
    limits("udp_stream.dashboard.server", STREAMS_MAX=2)
    board = Dashboard(Slots(48))
    with serving(board, "127.0.0.1:0") as page, ExitStack() as stack:
        address = page.rstrip("/")
        assert get(f"{address}/readyz")[0] == 503 and get(f"{address}/healthz")[0] == 200
        streams = [stack.enter_context(closing(Stream(address))) for _ in range(2)]
        wait_for(lambda: len(board.streams) == 2)
        status, headers, _ = get(f"{address}/v1/stream")
        assert status == 503 and headers["Access-Control-Allow-Origin"] == "*"
        board.slots.take(RELEASES[0])
        board.announce(board.slots.show())
        assert (
            get(f"{address}/readyz")[0] == 200
            and [one.notice()["slot_start"] for one in streams] == [start_of(0)] * 2
        )
        streams[0].close()
        wait_for(lambda: len(board.streams) < 2)
        stack.enter_context(closing(Stream(address)))
        wait_for(lambda: len(board.streams) == 2)


def test_a_file_may_come_later_and_be_written_anew(tmp_path):
    with forked_board("later.ndjson", cwd=tmp_path) as (address, process):
        assert slots_of(address) == [] and get(f"{address}/v1/releases")[0] == 404
        assert any("later.ndjson" in line for line in process.said)
        write(tmp_path / "new", RELEASES[0])
        (tmp_path / "new").rename(tmp_path / "later.ndjson")
        wait_for(lambda: len(slots_of(address)) == 1)
        write(tmp_path / "later.ndjson", RELEASES[0][:2] + RELEASES[1], "wb")
        wait_for(lambda: len(slots_of(address)) == 2)


def test_a_damaged_history_is_set_aside_and_the_dashboard_goes_on(tmp_path):
    write(
        tmp_path / "r",
        [line for hour in range(40) for line in [release(cell, hour) for cell in CELLS]],
    )
    history, aside = tmp_path / "h", tmp_path / "h.damaged"
    flags = "r", "--set", "dashboard.history=h", "--set", "dashboard.slots=2"
    first = f"/v1/releases?slot={quote(start_of(0))}"
    with forked_board(*flags, cwd=tmp_path) as (address, _):
        before = get(address + first)
    with closing(sqlite3.connect(history)) as file:
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with history.open("r+b") as out:
        out.seek(history.stat().st_size // 2)
        out.write(b"\xa5" * 1000)
    with forked_board(*flags, cwd=tmp_path) as (address, process):
        assert get(address + first)[2] == before[2] and aside.exists()
    (said,) = [line for line in map(json.loads, process.said) if line["event"] == "damaged_history"]
    assert said["level"] == "warning" and "h.damaged" in said["message"]
    assert process.returncode == 0


def test_what_cannot_be_served_is_said_and_has_its_status(tmp_path):
    write(tmp_path / "r.ndjson", RELEASES[0])
    (tmp_path / "l").write_bytes(b"SQLite format 3\x00")
    free = ("--set", "dashboard.listen=127.0.0.1:0")
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        cases = [
            (("r.ndjson", "--set", f"dashboard.listen={taken}"), DependencyUnavailable, taken),
            (("r.ndjson", "--set", "dashboard.listen=no.such.host.invalid:80"), DependencyUnavailable, "invalid:80"),
            (("r.ndjson", "--set", "dashboard.listen=8321"), ConfigError, "dashboard.listen"),
            (("r.ndjson", "--set", "dashboard.slots=0"), ConfigError, "dashboard.slots"),
            (("r.ndjson", "--set", "dashboard.statement=l", *free), ConfigError, "dashboard.statement"),
            (("r.ndjson", "--set", "dashboard.statement=r.ndjson", *free), ConfigError, "dashboard.statement"),
            (("r.ndjson", "--set", "dashboard.statement=none", *free), ConfigError, "dashboard.statement"),
            (("r.csv", *free), UsageError, "r.csv"), (("r.ndjson.gz", *free), UsageError, "r.ndjson.gz"),
            (("-", *free), UsageError, "-"), ((str(tmp_path), *free), UsageError, str(tmp_path)),
            (("--set", "kafka.bootstrap=127.0.0.1:1", *free), DependencyUnavailable, "127.0.0.1:1"),
        ]  # fmt: skip
        for arguments, error, named in cases:
            done = run_verb(["dashboard", *arguments], cwd=tmp_path)
            assert (done.returncode, done.stdout) == (error.exit_status, b""), (
                arguments,
                done.stderr,
            )
            assert named in done.stderr.decode() and b"Traceback" not in done.stderr


def test_ctrl_c_is_an_interruption(tmp_path):
    with forked_board("r", cwd=tmp_path) as (_, process):
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130


def test_the_statement_of_a_ledger_is_served_as_it_is_now(tmp_path):
    def export(**changes):
        stated = {"basic": {}, "privacy": {}, "details": {}} | changes
        (tmp_path / "new").write_text(json.dumps(stated))
        (tmp_path / "new").rename(tmp_path / "statement.json")
        return stated

    def served():
        return json.loads(get(f"{address}/v1/privacy")[2])["statement"]

    first = export()
    with forked_board("r", "--set", "dashboard.statement=statement.json", cwd=tmp_path) as (
        address,
        _,
    ):
        assert served() == first
        second = export(hats_released=7)
        assert served() == second
        (tmp_path / "statement.json").write_text("half of")
        assert served() == second


# --- places ---


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    """The same records, and a timetable of two cells; the first has a name that is a formula, and
    markup."""
    folder = tmp_path_factory.mktemp("named")
    write(folder / "r.ndjson", [line for slot in RELEASES.values() for line in slot])
    write(folder / "e.ndjson", [line for slot in ESTIMATES.values() for line in slot])
    stops = [
        (str(at), name, *reversed(HEXAGONS.center_of(int(CELLS[at], 16))))
        for at, name in enumerate(NAMES)
    ]
    zipped(folder / "gtfs.zip", files_of(stops, [("7", "<i>7</i>", "")]))
    with forked_board("r.ndjson", "e.ndjson", "--gtfs", "gtfs.zip", cwd=folder) as (address, _):
        yield address


NAMES = ('=HYPERLINK("x")<b>', "Kadam / 2nd")


def test_places_are_cells_with_names_and_lines(named, address):
    status, headers, body = get(f"{named}/v1/places")
    assert (status, headers["Content-Type"]) == (200, "application/geo+json")
    assert headers["Access-Control-Allow-Origin"] == "*"
    assert get(f"{named}/v1/places", **{"If-None-Match": headers["ETag"]})[0] == 304
    features = json.loads(body)["features"]
    names = {
        one["properties"]["cell"]: one["properties"]
        for one in features
        if "cell" in one["properties"]
    }
    assert [names[cell]["name"] for cell in CELLS[:2]] == list(NAMES) and names[CELLS[0]][
        "routes"
    ] == ["<i>7</i>"]
    outlines = json.loads(get(f"{named}/v1/outlines")[2])
    cells = [one for one in features if "cell" in one["properties"]]
    assert all(
        one["geometry"]["coordinates"] == outlines[one["properties"]["cell"]] for one in cells
    )
    (line,) = [one for one in features if one["geometry"]["type"] == "MultiLineString"]
    assert line["properties"] == {"route": "<i>7</i>"} and len(line["geometry"]["coordinates"]) == 2
    assert json.loads(get(f"{address}/v1/places")[2]) == {
        "type": "FeatureCollection",
        "features": [],
    }


@pytest.mark.parametrize(("kind", "of"), [("releases", Release), ("estimates", Smoothed)])
def test_csv_and_geojson_have_a_last_column_with_the_place_and_lines_of_json_are_as_before(
    named, address, kind, of
):
    names = [name for name, _ in columns(of)]
    rows = list(csv.DictReader(io.StringIO(get(f"{named}/v1/{kind}?form=csv")[2].decode())))
    assert list(rows[0]) == [*names, "place"]
    assert [row["place"] for row in rows[:2]] == [f"'{NAMES[0]}", NAMES[1]]
    features = json.loads(get(f"{named}/v1/{kind}?form=geojson&cell={CELLS[1]}")[2])["features"]
    assert {feature["properties"]["place"] for feature in features} == {NAMES[1]}
    for query in ("", f"?cell={CELLS[0]}", f"?slot={quote(start_of(0))}"):
        assert get(f"{named}/v1/{kind}{query}")[2] == get(f"{address}/v1/{kind}{query}")[2]


@pytest.mark.parametrize("wrong", ["none", "no zip", "no stops", "another city"])
def test_a_timetable_that_is_wrong_is_said_and_the_page_is_without_names(wrong, tmp_path):
    write(tmp_path / "r.ndjson", RELEASES[0])
    path = tmp_path / "gtfs.zip"
    if wrong == "no zip":
        path.write_bytes(b"no zip")
    elif wrong != "none":
        zipped(
            path,
            files_of([] if wrong == "no stops" else [("a", "Elsewhere", 60.0, 20.0)], calls=None),
        )
    with forked_board("r.ndjson", "--set", f"dashboard.gtfs={path}", cwd=tmp_path) as (
        address,
        process,
    ):
        assert json.loads(get(f"{address}/v1/places")[2])["features"] == []
        assert get(f"{address}/v1/releases")[2] == text(RELEASES[0])
    (said,) = [json.loads(line) for line in process.said if "no names" in line]
    assert said["level"] == "warning" and said["event"] == "no_names"
    assert (str(path) if wrong != "another city" else "not of this city") in said["message"]


def test_the_owners_words_are_text_and_the_policy_allows_one_host_of_tiles_and_no_other(
    tmp_path, address
):
    words = {"title": '<b>Trams</b> & "buses"', "note": "a<script>", "tiles_credit": "© 'them'"}
    words["tiles"] = "https://tiles.example.org:8443/a&b/{z}/{x}/{y}.png?k=1"
    flags = [
        flag
        for name, said in words.items()
        for flag in ("--set", f"dashboard.{name}={json.dumps(said)}")
    ]
    assert "img-src" not in get(address)[1]["Content-Security-Policy"]
    with forked_board("r", *flags, cwd=tmp_path) as (own, _):
        _, headers, page = get(own)
        assert headers["Content-Security-Policy"] == (
            f"{get(address)[1]['Content-Security-Policy']}; img-src 'self' https://tiles.example.org:8443"
        )
    found = Words()
    found.feed(page.decode())
    assert (
        found.said["title"] == found.said["h1"] == words["title"]
        and found.said["note"] == words["note"]
    )
    assert (
        words["tiles_credit"] in found.said["tiles"]
        and "https://tiles.example.org:8443" in found.said["tiles"]
    )
    assert found.tiles == words["tiles"] and found.scripts == 2


class Words(HTMLParser):
    """What a browser reads of the page: texts by their element or id."""

    def __init__(self):
        super().__init__()
        self.said, self.tiles, self.scripts, self._at = {}, None, 0, None

    def handle_starttag(self, tag, attrs):
        self._at = dict(attrs).get("id", tag)
        self.scripts += tag == "script"
        if self._at == "map":
            self.tiles = dict(attrs).get("data-tiles")

    def handle_data(self, data):
        self.said[self._at] = self.said.get(self._at, "") + data.strip("\n ")


@pytest.mark.parametrize(
    ("key", "value"),
    [("title", "x" * 81), ("note", "two\nlines"), ("note", "\u202ex"), ("tiles_credit", "them"),
     ("tiles", "tiles.example.org/{z}/{x}/{y}"), ("tiles", "https://tiles.example.org/{z}/{x}"),
     ("tiles", "https://*/{z}/{x}/{y}"), ("tiles", "https://a.example b.example/{z}/{x}/{y}"),
     ("tiles", "https://a.example;script-src */{z}/{x}/{y}"), ("tiles", "https://a.example/{z}/{x}/{y}'\""),
     ("tiles", "https://a@b.example/{z}/{x}/{y}"), ("tiles", "javascript:alert(1)//{z}/{x}/{y}")],
)  # fmt: skip
def test_what_the_page_cannot_show_is_refused(key, value, tmp_path):
    arguments = [
        "dashboard",
        "r",
        "--set",
        f"dashboard.{key}={json.dumps(value)}",
        "--set",
        "dashboard.listen=no.invalid:1",
    ]
    done = run_verb(arguments, cwd=tmp_path)
    assert done.returncode == ConfigError.exit_status
    assert f"dashboard.{key}: expected" in done.stderr.decode()


ALIEN = ("udp_stream.ledgers", "udp_stream.sources", "udp_stream.embedded.runtime", "udp_stream.testing",
         "redis")  # fmt: skip
IMPORTED = "import udp_stream.dashboard.server, udp_stream.dashboard.follow, udp_stream.cli.commands.dashboard"
# As it runs, with its settings, from files and from topics: an address that is none ends it.
OF_FILES = "from udp_stream.cli.main import main; main(['dashboard', 'r', '--set', 'dashboard.listen=no.invalid:1'])"
OF_TOPICS = (
    "from udp_stream.cli.main import main; "
    "main(['dashboard', '--set', 'kafka.bootstrap=127.0.0.1:1', '--set', 'dashboard.listen=127.0.0.1:0'])"
)


@pytest.mark.parametrize(
    ("program", "alien"),
    [(IMPORTED, (*ALIEN, "udp_stream.pings")), (OF_FILES, ALIEN), (OF_TOPICS, ALIEN)],
    ids=["imported", "of files", "of topics"],
)
def test_no_ledger_no_key_and_no_ping_is_ever_loaded(tmp_path, program, alien):
    command = [sys.executable, "-c", f"{program}\nimport sys\nprint(*sys.modules)"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    loaded = done.stdout.split()
    assert "udp_stream.dashboard.server" in loaded, done.stderr
    assert not [
        name for name in loaded for one in alien if name == one or name.startswith(f"{one}.")
    ]


@pytest.mark.parametrize(
    ("clients", "hats", "more_mb"), long_rows([(50, 90, 10)], [(50, 90, 10), (1000, 3000, 12)])
)
def test_every_client_gets_notice_and_slot(clients, hats, more_mb, tmp_path):
    """How soon: `make bench`."""
    told = crowded(tmp_path, clients, hats)
    assert told["clients"] == clients and told["bytes"] == [told["packed"]]
    assert told["peak_mb"] < 100 and told["peak_mb"] - told["before_mb"] < more_mb, told


def test_clients_that_never_read_cost_nothing_that_grows_and_are_dropped(tmp_path):
    many = cells(5000)
    write(tmp_path / "r", [release(cell, 0) for cell in many])
    with dashboard("r", cwd=tmp_path) as (address, process), ExitStack() as stack:
        before = memory_mb(process)
        silent = []
        for path in ["/v1/stream"] * 20 + [f"/v1/releases?slot={quote(start_of(0))}"] * 200:
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", urlsplit(address).port))
            client.sendall(
                f"GET {path} HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n\r\n".encode()
            )
            silent.append(client)
        for hour in range(1, 20):
            write(tmp_path / "r", [release(many[0], hour)])
            wait_for(lambda: len(slots_of(address)) == hour + 1)  # noqa: B023
        gone = select.poll()
        for client in silent[20:]:
            gone.register(client, select.POLLHUP)
        wait_for(lambda: len(gone.poll(0)) == 200)
        assert memory_mb(process, "VmHWM") - before < 12


def test_a_cell_waits_for_no_slot_in_another_form(tmp_path):
    many, hours = cells(300), range(20)
    write(
        tmp_path / "r",
        [make(cell, hour) for make in (release, estimate) for hour in hours for cell in many],
    )
    with forked_board("r", cwd=tmp_path) as (address, _), ExitStack() as stack:
        answered = select.poll()
        for path in [
            f"/v1/{kind}?form=csv&slot={quote(start_of(hour))}" for kind in KINDS for hour in hours
        ]:
            client = stack.enter_context(
                socket.create_connection(("127.0.0.1", urlsplit(address).port))
            )
            client.sendall(
                f"GET {path} HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n\r\n".encode()
            )
            answered.register(client, select.POLLIN)
        assert get(f"{address}/v1/estimates?cell={many[7]}")[2] == text(
            estimate(many[7], hour) for hour in hours
        )
        assert len(answered.poll(0)) < len(KINDS) * len(hours) / 2


def test_a_stream_that_takes_no_notice_is_dropped(tmp_path):
    board = Dashboard(Slots(48))
    with serving(board, "127.0.0.1:0") as page, ExitStack() as stack:
        streams = [stack.enter_context(closing(Stream(page))) for _ in range(2)]
        wait_for(lambda: len(board.streams) == 2)
        for turn in range(10_000):  # until the kernel keeps no more for it
            board.slots.take([release(CELLS[0], 0, software=f"version {turn}")])
            board.announce(board.slots.show())
            assert streams[0].notice()
            if len(board.streams) < 2:
                break
        assert len(board.streams) == 1


def test_more_streams_are_open_than_the_files_that_a_process_has_at_first(tmp_path):
    def few():
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        )

    with dashboard("r", cwd=tmp_path, preexec_fn=few) as (address, _), ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(closing(Stream(address)))
        wait_for(lambda: b"udp_stream_dashboard_clients 100.0" in get(f"{address}/metrics")[2])


DEMO = ("demo", "--slots", "1", "--buses", "60")


def test_a_demo_on_a_terminal_opens_the_page_and_goes_on(tmp_path):
    opened = tmp_path / "opened"
    (tmp_path / "browser").write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    (tmp_path / "browser").chmod(0o755)
    command = ("-m", "udp_stream", *DEMO)
    with on_terminal(*command, cwd=tmp_path, BROWSER=str(tmp_path / "browser")) as (process, read):
        said = b""
        while not (found := re.search(rb"http://\S+(?=/)", said)) and (more := read()):
            said += more
        address = found[0].decode()
        wait_for(
            lambda: any(
                slot["hats"].get("released") and slot["estimates"] for slot in slots_of(address)
            )
        )
        wait_for(lambda: opened.exists() and opened.read_text().strip() == f"{address}/")
        assert json.loads(get(f"{address}/v1/slots")[2])["synthetic"] is True
        places = json.loads(get(f"{address}/v1/places")[2])["features"]
        assert {"name", "routes"} <= places[0]["properties"].keys() and "route" in places[-1][
            "properties"
        ]
        _, headers, _ = get(f"{address}/v1/estimates?form=csv")
        assert 'filename="synthetic-estimates-' in headers["Content-Disposition"]
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


WITHOUT = "import sys\nsys.modules['aiohttp'] = None\nfrom udp_stream.cli.main import main\nsys.exit(main(sys.argv[1:]))"


def test_without_its_packages_the_extra_is_named_and_a_demo_ends_without_a_page(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, "dashboard", "r"], cwd=tmp_path, capture_output=True
    )
    assert done.returncode == DependencyUnavailable.exit_status and b"[dashboard]" in done.stderr
    with on_terminal("-c", WITHOUT, *DEMO, cwd=tmp_path) as (process, read):
        said = b"".join(iter(read, b""))
        assert (
            process.wait(60) == 0
            and b"[dashboard]" in said
            and b"km/h" in said
            and b"http://" not in said
        )
