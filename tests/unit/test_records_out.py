"""Records in every form that a suffix names: the same records, the same fields."""

import csv
import gzip
import io
import json
import re
from itertools import pairwise
from pathlib import Path

import msgspec
import pyarrow.parquet
import pytest
from h3.api.basic_int import cell_to_boundary, latlng_to_cell

from tests.board import estimate
from udp_stream.export_formats import columns, flat, write_export
from udp_stream.release.record import Release, Smoothed
from udp_stream.testing import released_slot
from udp_stream.windows.grid import HEXAGONS

ESTIMATES = [
    estimate("87608c4d2ffffff"),
    estimate(
        "87608c4d2ffffff", 1, cdf_withheld=None, expected_sup_error=0.1,
        cdf={"edges_kmh": [0.0, 65.0], "values": [0.2, 1.0], "band": [[0.1, 1.0], [0.3, 1.0]], "guess": [0.3, 1.0]},
        quantiles_kmh={"0.1": 3.1, "0.5": 11.0, "0.9": 27.9}, quantiles_interval95_kmh={"0.5": [9.0, 12.0]},
        share_below_kmh={"5": 0.31, "10": 0.48}, share_below_interval95={"5": [0.2, 0.4], "10": [0.4, 0.6]},
    ),
]  # fmt: skip
PAYLOADS = list(released_slot().payloads.values())
RECORDS = [json.loads(payload) for payload in PAYLOADS]


@pytest.mark.parametrize("field", ["neighbours", "accounting"])
def test_a_record_of_a_promise_that_is_not_known_here_is_not_read(field):
    payload = json.loads(PAYLOADS[0])
    payload["privacy"][field] = "of-a-later-version"
    with pytest.raises(msgspec.ValidationError, match="of-a-later-version"):
        Release.decode(json.dumps(payload).encode())


def written(name, kind=Release, slots=(PAYLOADS[:1], [], PAYLOADS[1:])):
    out = io.BytesIO()
    write_export(
        name, [payload + b"\n" for payloads in slots for payload in payloads], out, kind, HEXAGONS
    )
    return out.getvalue()


@pytest.mark.parametrize("name", ["-", "a.ndjson", "a.jsonl", "a", "a.csv.old"])
def test_any_other_suffix_is_a_line_a_record_as_the_ledger_has_it(name):
    assert written(name) == b"".join(payload + b"\n" for payload in PAYLOADS)


@pytest.mark.parametrize("name", ["a.ndjson", "a.csv", "a.geojson"])
def test_packed_is_the_same_in_gzip_and_the_same_bytes_every_time(name):
    assert gzip.decompress(written(f"{name}.gz")) == written(name)
    assert written(f"{name}.gz") == written(f"{name}.gz")


def test_a_csv_has_a_column_for_each_field_and_nothing_that_a_record_lacks():
    header, *rows = csv.reader(io.StringIO(written("a.CSV").decode()))
    assert len(rows) == len(RECORDS) and len(set(header)) == len(header)
    for row, record in zip(rows, RECORDS, strict=True):
        expected = {
            name: value for name, value in flat(record).items() if value is not None and value != {}
        }
        given = {name: text for name, text in zip(header, row, strict=True) if text}
        assert given.keys() == expected.keys()
        assert all(
            json.loads(given[name]) == value
            for name, value in expected.items()
            if not isinstance(value, str)
        )
        assert all(
            given[name] == value for name, value in expected.items() if isinstance(value, str)
        )


@pytest.mark.parametrize(
    "text",
    [*(f"{sign}1+1" for sign in "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20"), "1\r=1+1", '1",=1+1', "1-1"],
)
def test_a_csv_has_no_text_that_a_spreadsheet_takes_for_a_formula_and_numbers_stay_numbers(text):
    """OWASP, "CSV Injection". Only CSV has no types."""
    record = RECORDS[0] | {"software": text, "hat": RECORDS[0]["hat"] | {"center": [-3.2, 21.1]}}
    record |= {"mean": RECORDS[0]["mean"] | {"value_kmh": -3.2}}
    line = json.dumps(record).encode()
    (row,) = csv.DictReader(io.StringIO(written("a.csv", slots=([line],)).decode(), newline=""))
    assert row["software"] == (text if text[0] == "1" else f"'{text}")
    assert (row["mean.value_kmh"], row["hat.center"]) == ("-3.2", "[-3.2,21.1]")
    (feature,) = json.loads(written("a.geojson", slots=([line],)))["features"]
    (typed,) = pyarrow.parquet.read_table(
        io.BytesIO(written("a.parquet", slots=([line],)))
    ).to_pylist()
    assert feature["properties"]["software"] == typed["software"] == text


def test_a_geojson_is_a_collection_of_hexagons_around_their_centres():
    collection = json.loads(written("a.geojson"))
    assert collection["type"] == "FeatureCollection" and len(collection["features"]) == len(RECORDS)
    for feature, record in zip(collection["features"], RECORDS, strict=True):
        (ring,) = feature["geometry"]["coordinates"]
        assert len(ring) == 7 and ring[0] == ring[-1]
        middle = [sum(corner[axis] for corner in ring[1:]) / 6 for axis in (0, 1)]
        assert middle == pytest.approx(record["hat"]["center"], abs=1e-4)
        area = sum(a[0] * b[1] - b[0] * a[1] for a, b in pairwise(ring))
        assert area > 0  # counter-clockwise, as RFC 7946 asks
        fields = flat(record)
        assert feature["properties"] == {name: fields.get(name) for name, _ in columns(Release)}


@pytest.mark.parametrize("lat", [-16.8, 51.9, 68.5])
@pytest.mark.parametrize("resolution", [4, 7, 9])
def test_a_hexagon_on_the_180th_meridian_has_two_parts_and_none_around_the_globe(lat, resolution):
    """RFC 7946, section 3.1.9: Fiji, the Aleutians, Chukotka. One ring went around all of the
    earth."""
    cell = latlng_to_cell(lat, 180.0, resolution)
    record = RECORDS[0] | {"hat": RECORDS[0]["hat"] | {"cell": f"{cell:x}"}}
    (feature,) = json.loads(written("a.geojson", slots=([json.dumps(record).encode()],)))[
        "features"
    ]
    assert feature["geometry"]["type"] == "MultiPolygon"
    (west,), (east,) = feature["geometry"]["coordinates"]
    assert max(lon for lon, _ in west) == 180 and min(lon for lon, _ in east) == -180
    assert min(lon for lon, _ in west) > 178 and max(lon for lon, _ in east) < -178
    areas = [sum(a[0] * b[1] - b[0] * a[1] for a, b in pairwise(ring)) for ring in (west, east)]
    uncut = [(lon % 360, lat) for lat, lon in cell_to_boundary(cell)]
    area = sum(a[0] * b[1] - b[0] * a[1] for a, b in pairwise([*uncut, uncut[0]]))
    assert min(areas) > 0 and sum(areas) == pytest.approx(area, abs=1e-3)


def test_a_parquet_file_has_typed_columns_with_lists():
    table = pyarrow.parquet.read_table(io.BytesIO(written("a.parquet")))
    assert table.column_names == [name for name, _ in columns(Release)]
    for row, record in zip(table.to_pylist(), RECORDS, strict=True):
        flattened = flat(record)
        assert {name: value for name, value in row.items() if value is not None} == {
            name: value for name, value in flattened.items() if value is not None
        }
    assert str(table.schema.field("cdf.values").type) == "list<element: double>"
    assert str(table.schema.field("counts.plates").type) == "int64"


def test_an_estimate_has_a_column_for_each_name_in_it_in_every_form():
    """Shares and speeds are names there; a band is a list of two lists."""
    names = [name for name, _ in columns(Smoothed)]
    assert {
        "quantiles_kmh.0.1",
        "quantiles_interval95_kmh.0.5",
        "share_below_kmh.10",
        "cdf.band",
    } <= set(names)
    fields = [flat(json.loads(line)) for line in ESTIMATES]
    assert fields[1].keys() - {"schema"} <= set(names)
    text = {
        name: written(f"a{name}", Smoothed, [ESTIMATES])
        for name in (".csv", ".geojson", ".parquet")
    }
    of_csv = list(csv.DictReader(io.StringIO(text[".csv"].decode())))
    of_geojson = [feature["properties"] for feature in json.loads(text[".geojson"])["features"]]
    of_parquet = pyarrow.parquet.read_table(io.BytesIO(text[".parquet"])).to_pylist()
    for record, row, properties, typed in zip(fields, of_csv, of_geojson, of_parquet, strict=True):
        expected = {name: record.get(name) for name in names}
        assert list(row) == names and properties == typed == expected
        assert {name for name, value in row.items() if value} == {
            name for name in names if expected[name] is not None
        }
        assert all(
            json.loads(row[name]) == value
            for name, value in expected.items()
            if isinstance(value, list | float)
        )


def test_the_readmes_examples_are_a_record_and_an_estimate():
    """Left out are fields, and never more than their values."""
    text = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    release, smoothed = (
        json.loads(block) for block in re.findall("```json\n(.*?)```", text, re.DOTALL)
    )
    for record, kind in ((release, Release), (smoothed, Smoothed)):
        shown = {name for name in flat(record) if not name.endswith("...")}
        assert "hat.cell" in shown and shown <= {name for name, _ in columns(kind)}
