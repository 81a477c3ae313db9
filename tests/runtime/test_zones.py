"""Zones in place of hexagons, through whole programs: records, estimates, files, the page, a
worker."""

import asyncio
import csv
import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.board import get
from tests.protocol.broker import (
    FLAGS,
    lives,
    outcome,
)
from tests.runtime.harness import fleet_log, ledger_at
from tests.unit.test_processors import (
    filled,
)
from udp_stream.base.gtfs import Network, Stop
from udp_stream.cli import main as cli
from udp_stream.dashboard.places import Places
from udp_stream.dashboard.server import Dashboard, serving
from udp_stream.dashboard.slots import Slots
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.release.record import Release
from udp_stream.settings import load
from udp_stream.windows.grid import NOWHERE

SPAN = ("--from", "2024-01-08T09:00:00+05:30", "--until", "2024-01-08T10:30:00+05:30")
HEADINGS = ("NE", "SW")
OF_PROMISE = {
    "swap-values": ("release.cdf_epsilon=auto",),
    "add-remove": ("privacy.neighbours=add-remove", "pings.interval=10s"),
}


def square(west, south, side):
    east, north = west + side, south + side
    return [[[west, south], [east, south], [east, north], [west, north], [west, south]]]


@pytest.fixture
def city(tmp_path, monkeypatch):
    """Nine districts over the middle of the fleet's city, the last without a name, and its pings."""
    monkeypatch.chdir(tmp_path)
    log = fleet_log(clean=True)
    Path("day.ndjson").write_bytes(b"\n".join(log))
    lon, lat = np.array([json.loads(line)["location"]["coordinates"] for line in log]).T
    west, east = np.quantile(lon, [0.1, 0.9])
    side, south = (east - west) / 3, np.quantile(lat, 0.1)
    features = [
        {
            "type": "Feature",
            "properties": {"name": f"District {at}"} if at < 8 else {"id": 9},
            "geometry": {
                "type": "Polygon",
                "coordinates": square(west + at % 3 * side, south + at // 3 * side, side),
            },
        }
        for at in range(9)
    ]
    write(features)
    return features, lat, lon


def write(features):
    Path("zones.geojson").write_text(
        json.dumps({"type": "FeatureCollection", "features": features})
    )


def settings_of(*flags):
    return load(None, ("hat.zones=zones.geojson", *flags), {})


def replay(capsys, *flags, out="out.ndjson", ledger="city.ledger", status=0):
    given = ["hat.zones=zones.geojson", "hat.slot=15m", f"ledger.url={ledger}", *flags]
    words = [word for flag in given for word in ("--set", flag)]
    span = SPAN if "privacy.neighbours=add-remove" in flags else ()
    estimates = str(Path(f"estimates-{out}"))
    capsys.readouterr()
    assert (
        cli.main(["replay", "day.ndjson", *span, "--out", out, "--smoothed", estimates, *words])
        == status
    )
    return capsys.readouterr().err


@pytest.mark.parametrize("promise", OF_PROMISE)
def test_cells_by_heading_are_released_as_cells_are(city, promise, capsys):
    """Through files and the page; a zone's two outlines differ."""
    flags = ("hat.headings=2", *OF_PROMISE[promise])
    replay(capsys, *flags)
    grid = settings_of(*flags).grid
    records = [Release.decode(line) for line in Path("out.ndjson").read_bytes().splitlines()]
    hats = {one.hat.cell: (one.hat.name, one.hat.heading) for one in records}
    assert sum(one.status == "released" for one in records) > 15
    assert hats["district-1-ne"] == ("District 1", "NE")
    assert {heading for _, heading in hats.values()} == {*HEADINGS}
    assert {*hats} <= {grid.id_of(cell) for cell in grid.domain.tolist()} and len(hats) > 12
    assert promise == "swap-values" or len(hats) == grid.domain.size == 18
    with ledger_at("city.ledger") as (ledger, _):
        assert ledger.verify() == []
        assert {one.release_id for one in records} <= {one.release_id for one in ledger.entries()}

    words = [word for flag in ("hat.zones=zones.geojson", *flags) for word in ("--set", flag)]
    for name in ("out.csv", "out.parquet"):
        assert cli.main(["records", "city.ledger", "--out", name, *words]) == 0
    table = pq.read_table("out.parquet")
    assert {*table["hat.heading"].to_pylist()} == {*HEADINGS} and table.num_rows == len(records)
    withdrawn = ["ledger", "withdraw", records[0].release_id, "--reason", "a loop", *words]
    assert cli.main([*withdrawn, "--ledger", "city.ledger"]) == 0
    with Path("out.csv").open(newline="") as file:
        assert {(row["hat.cell"], row["hat.heading"]) for row in csv.DictReader(file)} == {
            (cell, heading) for cell, (_, heading) in hats.items()
        }
    board = Dashboard(Slots(48, grid=grid), places=Places(Network([], []), grid))
    for name in ("out.ndjson", "estimates-out.ndjson"):
        assert not board.slots.take(Path(name).read_bytes().splitlines())
    board.announce(board.slots.show())
    with serving(board, "127.0.0.1:0") as page:
        shown = json.loads(get(f"{page}v1/places")[2])["features"]
        assert {"District 0, NE-bound", "District 0, SW-bound"} <= {
            one["properties"].get("name") for one in shown
        }
        outlines = json.loads(get(f"{page}v1/outlines")[2])
        assert outlines["district-1-ne"] != outlines["district-1-sw"]
        found = get(f"{page}v1/releases?cell=district-1-sw")[2].splitlines()
        assert {Release.decode(line).hat.heading for line in found} == {"SW"}


@pytest.mark.parametrize("promise", OF_PROMISE)
def test_zones_are_released_as_hexagons_are(city, promise, capsys):
    _, lat, lon = city
    flags = OF_PROMISE[promise]
    said = replay(capsys, *flags)
    grid = settings_of().grid
    records = [Release.decode(line) for line in Path("out.ndjson").read_bytes().splitlines()]
    named = {one.hat.cell: one.hat.name for one in records}
    cells = grid.cells_of(lat, lon)
    visited = {grid.id_of(cell) for cell in np.unique(cells[cells != NOWHERE]).tolist()}
    outside = np.count_nonzero(cells == NOWHERE)
    assert outside > 100 and f"{outside:,} refused: outside_zones" in said
    assert {*named} == ({*grid.ids} if promise == "add-remove" else visited) and len(visited) > 6
    assert sum(one.status == "released" for one in records) > 15
    assert named["district-0"] == "District 0" and not isinstance(named["9"], str)
    assert {one.release_id.rsplit("-", 2)[0] for one in records} == {*named}
    with ledger_at("city.ledger") as (ledger, _):
        (note,) = (
            json.loads(text) for name, text in ledger.meta().items() if name.startswith("policy:")
        )
        assert note["hat.zones"] == grid.digest and "hat.resolution" not in note
        assert ledger.verify() == [] and {one.release_id for one in records} <= {
            entry.release_id for entry in ledger.entries()
        }

    replay(capsys, *flags, out="out.csv", ledger="two.ledger")
    with Path("out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {(row["hat.cell"], row["hat.name"]) for row in rows} == {
        (cell, name if isinstance(name, str) else "") for cell, name in named.items()
    }
    replay(capsys, *flags, out="out.geojson", ledger="three.ledger")
    for name in ("out.geojson", "estimates-out.geojson"):
        for one in json.loads(Path(name).read_bytes())["features"]:
            (ring,) = one["geometry"]["coordinates"]
            assert {tuple(corner) for corner in ring} == {
                corner
                for ring in grid.rings_of(grid.cell_of(one["properties"]["hat.cell"]))
                for corner in ring
            }

    stop_at = grid.center_of(grid.cell_of("9"))
    network = Network([Stop("Main St", stop_at[1], stop_at[0], False, Counter({"7": 90.0}))], [])
    places = Places(network, grid)
    assert places.name_of("9") == "Main St" and places.name_of("district-3") == "District 3"
    board = Dashboard(Slots(48, grid=grid), places=places)
    for name in ("out.ndjson", "estimates-out.ndjson"):
        assert not board.slots.take(Path(name).read_bytes().splitlines())
    board.announce(board.slots.show())
    with serving(board, "127.0.0.1:0") as page:
        shown = json.loads(get(f"{page}v1/places")[2])["features"]
        assert {"District 0", "Main St"} <= {one["properties"].get("name") for one in shown}
        assert {*json.loads(get(f"{page}v1/outlines")[2])} == {*named}
        found = get(f"{page}v1/releases?cell=district-1")[2].splitlines()
        assert {Release.decode(line).hat.cell for line in found} == {"district-1"}


def test_a_zone_that_moved_is_refused_before_it_is_charged(city, capsys):
    features, _, _ = city
    replay(capsys)
    before = Path("out.ndjson").read_bytes()
    Path("out.ndjson").unlink()
    features[0]["geometry"]["coordinates"] = square(0, 0, 1)
    write(features)
    lines = Path("day.ndjson").read_bytes().splitlines()
    Path("day.ndjson").write_bytes(b"\n".join(line.replace(b"T09:", b"T11:") for line in lines))
    assert "district-0 had another outline" in replay(capsys, status=5)
    with ledger_at("city.ledger") as (ledger, _):
        entries = {entry.release_id for entry in ledger.entries()}
    assert entries and entries <= {
        Release.decode(line).release_id for line in before.splitlines()
    } | {id_ for id_ in entries if not id_.startswith("district-")}


def test_overlapping_zones_are_named(city, capsys):
    features, _, _ = city
    write([*features, features[0] | {"properties": {"name": "Twice"}}])
    assert "twice (100%)" in replay(capsys)


WRONG = {
    "hat.resolution=8": r"hat\.resolution: expected 7 where hat\.zones has a file.*delete the line `resolution = 8`",
    "hat.zone_width=40": r"hat\.zone_width: expected",
    "hat.zones=": r"hat\.zone_name: expected none where hat\.zones has no file",
    "hat.zone_name=label": r"expected a name in label",
    "hat.domain=cells.txt": r"hat\.domain: expected none where",
}


@pytest.mark.parametrize("flag", WRONG)
def test_settings_that_do_not_fit(city, flag, capsys):
    import re

    more = ("hat.zone_name=name",) if flag == "hat.zones=" else ()
    said = replay(capsys, *more, flag, status=3)
    assert re.search(WRONG[flag], said)


def test_a_worker_releases_the_zones_that_one_process_does(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    geometry = {"type": "Polygon", "coordinates": square(72.7, 21.0, 0.2)}
    write([{"type": "Feature", "properties": {"name": "Harbour"}, "geometry": geometry}])
    settings = settings_of(*FLAGS)
    broker, ledger = filled(), MemoryLedger()
    assert asyncio.run(lives(broker, random.Random(0), ledger, settings)) == 0
    releases, _ = outcome(broker)
    assert len(releases) == 4
    assert {(one.hat.cell, one.hat.name) for one in map(Release.decode, releases.values())} == {
        ("harbour", "Harbour")
    }
    died, again = filled(random.Random("die")), MemoryLedger()
    assert asyncio.run(lives(died, random.Random(1), again, settings)) > 3
    assert outcome(died)[0] == releases


def test_a_plan_compares_zones_with_hexagons(city, capsys):
    lines = Path("day.ndjson").read_bytes().splitlines()
    Path("day.ndjson").write_bytes(b"\n".join(lines[: len(lines) // 4]))
    assert (
        cli.main(
            ["plan", "day.ndjson", "--set", "hat.zones=zones.geojson", "--set", "hat.slot=15m"]
        )
        == 0
    )
    said = capsys.readouterr().out
    assert all(name in said for name in ("zones 9", "H3 6", "H3 7", "H3 8", "H3 9"))
    assert "hat.zones = 'zones.geojson'" in said
