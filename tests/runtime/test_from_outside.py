"""What a stranger adds without a change of the package: each goes through `replay` to a record, and
is charged."""

import asyncio
import csv
import json
import random
import re
from collections import Counter
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from random import Random

import msgspec
import numpy as np
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
from udp_stream.base.units import NANO, QUANTA_PER_KMH
from udp_stream.cli import main as cli
from udp_stream.dashboard.places import Places
from udp_stream.dashboard.server import Dashboard, serving
from udp_stream.dashboard.slots import Slots
from udp_stream.ledger.ids import HAT, id_of
from udp_stream.ledger.port import Admission
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.mechanisms.base import (
    Choice,
    PublicSettings,
    Query,
    Range,
    SamplesPerPlate,
    Statistic,
    StatisticTerms,
    epsilon_stated,
    first_samples,
)
from udp_stream.mechanisms.noise import MEASURES, Cost, counts_scale, noise_of
from udp_stream.mechanisms.statistics import STATISTICS
from udp_stream.planning.promise import ACCOUNTINGS, NEIGHBOURS
from udp_stream.planning.slot import SlotPlan
from udp_stream.release.pipeline import record_hats
from udp_stream.release.promise import PROMISES, Promise
from udp_stream.release.record import (
    Hat,
    Noised,
    Privacy,
    Release,
)
from udp_stream.settings import known_keys, load
from udp_stream.settings.grids import GRIDS
from udp_stream.windows.grid import Grid


@pytest.fixture
def toy_measure(registered):
    toy = replace(MEASURES["pure"], name="toy", ending=" in toys")
    registered(MEASURES, "toy", toy)
    registered(ACCOUNTINGS, "toys", replace(ACCOUNTINGS["pure"], measure=toy, variant="Toy DP"))


BINS = 20
"""Of the histogram that a median is read off."""


@dataclass(frozen=True)
class MedianPlan:
    """Each plate gives its first `cap` samples; the noise of a bin is for twice as many."""

    counts: SamplesPerPlate
    range: Range
    cost: Cost
    cap: int

    @property
    def choice(self):
        return Choice("noisy-histogram", self.cap)

    @property
    def noise(self):
        return noise_of(self.cost)

    @property
    def given(self):
        return np.minimum(self.counts.by_plate, self.cap)

    @property
    def charges(self):
        return self.noise.charges(self.given, self.cap, self.cost)


class MedianRecord(msgspec.Struct):
    value_kmh: float
    epsilon: float


class Median(Statistic):
    """The median, off a noisy histogram: a plate that gives n samples moves at most 2 n in it."""

    name = of = "median"
    plural = "medians"

    def __init__(self, epsilon):
        self.epsilon = epsilon

    def plan(self, counts, asked, public):
        cap = counts.median if asked.choice is None else asked.choice.cap_among(counts)
        return MedianPlan(counts, public.range, asked.cost, cap)

    def subset(self, plan, admitted):
        given = plan.given[admitted]
        cost = plan.noise.within(given, int(given.max()), plan.charges[admitted], plan.cost)
        counts = SamplesPerPlate(plan.counts.by_plate[admitted])
        return replace(plan, counts=counts, cost=cost, cap=int(given.max()))

    def query(self, plan, samples, bits):  # noqa: ARG002
        kept = plan.range.above_low(samples[first_samples(plan.counts, plan.cap)])
        t, s = counts_scale(plan.cap, plan.cost)
        counted = np.bincount(kept * BINS // (plan.range.width + 1), minlength=BINS)
        return Query(counted, np.full(BINS, t), np.full(BINS, s))

    def values(self, plans, queries, noisy):  # noqa: ARG002
        upto = (np.cumsum(one) / plan.given.sum() for plan, one in zip(plans, noisy, strict=True))
        halves = (int(np.argmax(np.append(one[:-1] >= 0.5, True))) for one in upto)
        return [
            plan.range.width / BINS * (at + 0.5) for plan, at in zip(plans, halves, strict=True)
        ]

    def record(self, plan, value, left_out):  # noqa: ARG002
        return MedianRecord(round(value / QUANTA_PER_KMH, 3), epsilon_stated(plan.cost))

    def columns(self, plan, bits):  # noqa: ARG002
        return [("median bins", str(BINS))]


@pytest.fixture
def median(registered):
    return lambda epsilon: registered(STATISTICS, "median", Median(epsilon))


def replayed(folder, *flags):
    (folder / "day.ndjson").write_bytes(b"\n".join(fleet_log(clean=True)))
    given = [
        word
        for flag in (*flags, f"ledger.url={folder}/city.ledger", "hat.slot=15m")
        for word in ("--set", flag)
    ]
    assert (
        cli.main(
            ["replay", str(folder / "day.ndjson"), "--out", str(folder / "out.ndjson"), *given]
        )
        == 0
    )
    return [
        Release.decode(line) for line in (folder / "out.ndjson").read_bytes().splitlines()
    ], given


def test_a_measure(tmp_path, toy_measure, capsys):
    records, given = replayed(tmp_path, "budget.accounting=toys", "budget.epsilon=8")
    released = [one for one in records if one.status == "released"]
    assert released and {one.privacy.accounting for one in records} == {"toys"}
    with ledger_at(tmp_path / "city.ledger") as (ledger, _):
        assert (
            all(period.endswith(" in toys") for period in ledger.periods())
            and ledger.verify() == []
        )
        assert max(entry.charged.max(initial=0) for entry in ledger.entries()) > 0
    capsys.readouterr()
    assert cli.main(["ledger", "export", *given]) == 0
    privacy = json.loads(capsys.readouterr().out)["privacy"]
    assert privacy["dp_variant"]["variant_name"] == "Toy DP"
    assert 0 < privacy["privacy_loss"]["periods"][0]["epsilon_max_over_plates"] <= 8


FIXED = ("budget.accounting=pure", "budget.epsilon=12", "release.mean=baseline", "release.mean_epsilon=0.5",
         "release.cdf=off")  # fmt: skip


def test_a_statistic(tmp_path, median, capsys):
    keys = known_keys()
    median(0.25)
    records, given = replayed(tmp_path, *FIXED)
    released = [one for one in records if one.status == "released"]
    assert len(released) > 10 and {one.others["median"]["epsilon"] for one in released} == {0.25}
    assert all(
        0 <= one.others["median"]["value_kmh"] <= 65 and one.mean.epsilon == 0.5 for one in released
    )
    assert {one.privacy.epsilon for one in released} == {0.75}
    assert all(one.others == {} for one in records if one.status != "released")
    with ledger_at(tmp_path / "city.ledger") as (ledger, _):
        charged = [
            int(entry.charged.max(initial=0)) for entry in ledger.entries() if entry.charged.any()
        ]
        assert max(charged) == 3 * NANO // 4 and ledger.verify() == []
        (note,) = (
            json.loads(text) for name, text in ledger.meta().items() if name.startswith("policy:")
        )
        assert note["release.median_epsilon"] == "0.25"
    capsys.readouterr()
    assert cli.main(["ledger", "export", *given]) == 0
    exported = capsys.readouterr().out
    assert (
        "Means, variances, cumulative distributions and medians"
        in json.loads(exported)["basic"]["description"]
    )
    assert cli.main(["plan", *given]) == 0 and "median bins" in capsys.readouterr().out
    assert known_keys() == keys


def test_a_statistic_costs_what_a_mean_around_a_forecast_does(tmp_path, median):
    median("auto")
    records, _ = replayed(tmp_path, "budget.epsilon=12")
    whole = [
        one
        for one in records
        if one.status == "released" and one.counts.admitted_plates == one.counts.plates
    ]
    assert {one.mean.mechanism for one in whole} >= {"forecast-clip"}
    assert all(one.others["median"]["epsilon"] == one.mean.epsilon for one in whole)
    assert max(one.mean.epsilon for one in whole) > 1.9 * min(one.mean.epsilon for one in whole)


def test_the_median_keeps_to_its_price():
    asked, public, speeds = (
        StatisticTerms("median", NANO),
        PublicSettings(Range(0, 65 * QUANTA_PER_KMH)),
        (0, 99_000),
    )
    plan = Median(1.0).plan(SamplesPerPlate(np.array([3, 1, 2])), asked, public)
    for final in (plan, Median(1.0).subset(plan, np.array([True, True, False]))):
        ends, paid = np.cumsum(final.counts.by_plate).tolist(), final.charges.tolist()
        for samples in map(np.array, product(speeds, repeat=ends[-1])):
            for start, end, charge in zip([0, *ends], ends, paid, strict=False):
                other = samples.copy()
                other[start:end] = speeds[1]
                one, two = (Median(1.0).query(final, each, None) for each in (samples, other))
                assert (np.abs(one.integers - two.integers) * one.s / one.t).sum() <= charge / NANO


TOWN = "85608c4ffffffff"
"""A public cell, under which the number of cells is released."""


def record_cells(slot, values, context, ledger, factors):
    """How many cells the plates are in, each plate in the first of its own: who swaps it moves the
    number by at most 1, and pays epsilon 1."""
    counts = slot.counts
    ends = counts.start_ms, counts.end_ms
    id_, everyone = id_of(HAT, *ends, TOWN), np.arange(len(counts.plates))
    policy, iso = context.policy, context.calendar.slots.iso
    period = context.calendar.slot_in_period(counts.start_ms).period
    context.before_charge()
    asked = Admission(id_, everyone, np.full(everyone.size, NANO), 1, b"cells")
    (verdict,) = ledger.admit(period, policy.budget_nano, counts.plates, [asked])

    def draw(_):
        _, first = np.unique(counts.plate, return_index=True)
        cell = np.repeat(np.arange(counts.cells.size), np.diff(counts.hat_rows))
        number = np.unique(cell[first][verdict.admitted]).size
        ((_, bits),) = context.entropy.streams([id_])
        noise = MEASURES["pure"].noise.draw(bits, np.ones(1, np.int64))
        told = Noised(residual=0.0, sd=2**0.5, forecast_kmh=0.0, weight=float(number + noise[0]))
        losses = MEASURES["pure"].privacy(NANO, policy.budget_nano, policy.delta)
        promise = {"unit": "license_plate", "neighbours": "swap-places", "accounting": "pure"}
        return [
            Release.encode(
                Release(
                    release_id=id_, status="released", mean=None, variance=None, cdf=None, noised=told,
                    hat=Hat.of(int(TOWN, 16), policy.grid, *map(iso, ends)), privacy=Privacy(period=period, **promise, **losses),
                    policy=policy.fingerprint(), software=context.software, trial=context.trial,
                )
            )
        ]  # fmt: skip

    return record_hats([id_], draw, "swap-places", ledger)


@pytest.fixture
def toy_promise(registered):
    """Who was there is public, where and how fast is not; nothing is told but a number of cells."""
    relation = replace(
        NEIGHBOURS["swap-values"],
        name="swap-places",
        alike="the same plates with as many pings in every slot",
        differing=dict.fromkeys(("field", "movement"), "cells and speeds differing anywhere"),
        public=("that a plate was there in a slot, and how many pings it sent",),
        public_counts=False,
        protected="where each plate was, and how fast",
        kinds="noised numbers of cells",
        ending=" of places",
    )
    promise = Promise(
        learns=lambda _: False,
        with_forecaster=lambda context: context,
        plan=lambda counts, *_: SlotPlan.empty(counts),
        record=record_cells,
    )
    registered(NEIGHBOURS, "swap-places", relation)
    registered(PROMISES, "swap-places", promise)


PLACES = ("privacy.neighbours=swap-places", "budget.accounting=pure", "budget.epsilon=8")


def test_a_promise_in_one_process(tmp_path, toy_promise, capsys):
    records, given = replayed(tmp_path, *PLACES)
    told = capsys.readouterr().err
    assert "Protected: where each plate was, and how fast, at epsilon 8" in told
    assert len(records) == len({one.release_id for one in records}) > 4
    assert {(one.hat.cell, one.privacy.neighbours, one.counts) for one in records} == {
        (TOWN, "swap-places", None)
    }
    assert all(-20 < one.noised.weight < 40 for one in records)
    with ledger_at(tmp_path / "city.ledger") as (ledger, _):
        entries = list(ledger.entries())
        assert {entry.period.rpartition(" of ")[2] for entry in entries} == {"places"}
        assert {nano for entry in entries for nano in entry.charged.tolist()} == {NANO}
        assert {entry.release_id for entry in entries} == {one.release_id for one in records}
        assert ledger.verify() == [] and not list(ledger.unpublished())
    assert cli.main(["ledger", "export", *given]) == 0
    exported = json.loads(capsys.readouterr().out)
    assert "Noised numbers of cells" in exported["basic"]["description"]
    assert "swap-places" in json.dumps(exported)


def test_a_promise_on_kafka(toy_promise):
    flags = "hat.slot=1h", "hat.timezone=UTC", "kafka.partitions=2", "kafka.shards=1"
    settings = load(None, (*flags, *PLACES), {})
    whole = filled()
    assert asyncio.run(lives(whole, Random(0), settings=settings)) == 0
    releases, _ = outcome(whole)
    records = [Release.decode(one) for one in releases.values()]
    assert len(records) == 4 and {one.hat.cell for one in records} == {TOWN}
    dying, ledger = filled(Random("die")), MemoryLedger()
    assert asyncio.run(lives(dying, Random(1), ledger, settings)) > 3
    assert outcome(dying)[0] == releases
    assert {nano for entry in ledger.entries() for nano in entry.charged.tolist()} == {NANO}


@dataclass(frozen=True)
class Squares(Grid):
    """Squares of so many hundredths of a degree, numbered from the south-west."""

    kind = "squares"
    hundredths: int

    @property
    def size(self):
        return str(self.hundredths)

    @property
    def keys(self):
        return {"resolution": self.hundredths}

    @property
    def fineness(self):
        return 7.3

    def cells_of(self, lat, lon):
        rows, columns = (
            np.floor((place + 180) * 100 / self.hundredths).astype(np.uint64)
            for place in (lat, lon)
        )
        return rows << np.uint64(20) | columns

    def id_of(self, cell):
        return f"row-{cell >> 20}-{cell % 2**20}"

    def cell_of(self, id_):
        if (found := re.fullmatch("row-([0-9]+)-([0-9]+)", id_)) is None:
            raise ValueError(f"expected a square, got {id_!r}")
        return int(found[1]) << 20 | int(found[2])

    def _corner(self, cell):
        side = self.hundredths / 100
        return cell % 2**20 * side - 180, (cell >> 20) * side - 180, side

    def center_of(self, cell):
        west, south, side = self._corner(cell)
        return round(west + side / 2, 6), round(south + side / 2, 6)

    def rings_of(self, cell):
        west, south, side = self._corner(cell)
        around = ((0, 0), (1, 0), (1, 1), (0, 1), (0, 0))
        return [[(round(west + x * side, 6), round(south + y * side, 6)) for x, y in around]]

    def beside(self, cell):
        return cell - (1 << 20), cell - 1, cell + 1, cell + (1 << 20)

    def touched(self, rings, most):
        (west, south), (east, north) = np.min(rings[0], axis=0), np.max(rings[0], axis=0)
        lat, lon = np.mgrid[
            south : north : self.hundredths / 200, west : east : self.hundredths / 200
        ]
        found = set(self.cells_of(lat.ravel(), lon.ravel()).tolist())
        return found if len(found) <= most else None


@pytest.fixture
def squares(registered):
    registered(GRIDS, "resolution", lambda hat: Squares(hat.resolution))
    return Squares(2)


SURAT = {
    "type": "Polygon",
    "coordinates": [[[72.7, 21.1], [72.95, 21.1], [72.95, 21.3], [72.7, 21.3], [72.7, 21.1]]],
}
SPAN = ("--from", "2024-01-08T09:00:00+05:30", "--until", "2024-01-08T10:30:00+05:30")
OF_PROMISE = {
    "swap-values": (),
    "add-remove": ("privacy.neighbours=add-remove", "hat.domain=domain.json", "pings.interval=10s"),
}


@pytest.mark.parametrize("promise", OF_PROMISE)
def test_a_grid(promise, tmp_path, monkeypatch, squares):
    monkeypatch.chdir(tmp_path)
    Path("day.ndjson").write_bytes(b"\n".join(fleet_log(clean=True)))
    Path("domain.json").write_text(json.dumps(SURAT))
    flags = ["hat.resolution=2", "hat.slot=15m", *OF_PROMISE[promise]]
    given = [word for flag in flags for word in ("--set", flag)]
    span = SPAN if promise == "add-remove" else ()
    forms = {".ndjson": ".geojson", ".csv": ".ndjson", ".geojson": ".csv"}
    for at, (suffix, other) in enumerate(forms.items()):
        out = ["--out", f"out{suffix}", "--smoothed", f"estimates{other}"]
        ledger = ["--set", f"ledger.url={at}.ledger"]
        assert cli.main(["replay", "day.ndjson", *span, *out, *given, *ledger]) == 0
    records = [Release.decode(line) for line in Path("out.ndjson").read_bytes().splitlines()]
    cells = {one.hat.cell for one in records}
    assert len(cells) > 5 and sum(one.status == "released" for one in records) > 10
    for hat in (one.hat for one in records):
        assert hat.resolution is msgspec.UNSET and hat.center == squares.center_of(
            squares.cell_of(hat.cell)
        )
    pings = [json.loads(line)["location"]["coordinates"] for line in fleet_log(clean=True)]
    lon, lat = np.array(pings).T
    true = set(map(squares.id_of, np.unique(squares.cells_of(lat, lon)).tolist()))
    assert cells == true if promise == "swap-values" else cells >= true
    ids = {one.release_id for one in records}
    assert all(re.fullmatch(f"({'|'.join(cells)})-[0-9]+-900", id_) for id_ in ids)

    for name in ("out", "estimates"):
        lines = [json.loads(line) for line in Path(f"{name}.ndjson").read_bytes().splitlines()]
        hats = {(one["hat"]["cell"], one["hat"]["slot_start"]) for one in lines}
        features = json.loads(Path(f"{name}.geojson").read_bytes())["features"]
        assert {squares.cell_of(one["properties"]["hat.cell"]) for one in features} == {
            squares.cell_of(cell) for cell, _ in hats
        }
        for one in features:
            ring = squares.rings_of(squares.cell_of(one["properties"]["hat.cell"]))
            assert one["geometry"] == {
                "type": "Polygon",
                "coordinates": json.loads(json.dumps(ring)),
            }
        with Path(f"{name}.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert {(row["hat.cell"], row["hat.slot_start"]) for row in rows} == hats
        assert {row["hat.resolution"] for row in rows} == {""}

    with ledger_at("0.ledger") as (ledger, _):
        (note,) = (
            json.loads(text) for name, text in ledger.meta().items() if name.startswith("policy:")
        )
        assert note["hat.resolution"] == "2" and ledger.verify() == []
        assert ids <= {entry.release_id for entry in ledger.entries()}
    again = ["records", "1.ledger", "--smoothed", "--out", "again.ndjson"]
    assert cli.main([*again, *given]) == 0
    assert Path("again.ndjson").read_bytes() == Path("estimates.ndjson").read_bytes()

    stop = Stop("Main St", 21.17, 72.83, False, Counter({"7": 90.0}))
    places = Places(Network([stop], []), squares)
    board = Dashboard(Slots(48, grid=squares), places=places)
    for name in ("out", "estimates"):
        assert not board.slots.take(Path(f"{name}.ndjson").read_bytes().splitlines())
    board.announce(board.slots.show())
    with serving(board, "127.0.0.1:0") as page:
        outlines = json.loads(get(f"{page}v1/outlines")[2])
        assert {cell: squares.rings_of(squares.cell_of(cell)) for cell in cells} == {
            cell: [[tuple(corner) for corner in ring] for ring in rings]
            for cell, rings in outlines.items()
        }
        (cell, *_) = cells
        found = get(f"{page}v1/releases?cell={cell}")[2].splitlines()
        assert {Release.decode(line).hat.cell for line in found} == {cell}
        assert get(f"{page}v1/releases?cell=Row+1")[0] == 400
    here = squares.id_of(int(squares.cells_of(np.array([stop.lat]), np.array([stop.lon]))[0]))
    assert places.name_of(here) == "Main St"
    east = squares.id_of(squares.cell_of(here) + 1)
    assert places.name_of(east) == "East of Main St"


def test_a_worker_releases_over_a_grid_what_the_embedded_road_does(squares):
    settings = load(None, (*FLAGS, "hat.resolution=2"), {})
    broker, ledger = filled(), MemoryLedger()
    assert asyncio.run(lives(broker, random.Random(0), ledger, settings)) == 0
    releases, _ = outcome(broker)
    assert len(releases) == 4 and {Release.decode(one).hat.cell for one in releases.values()} == {
        squares.id_of(int(squares.cells_of(np.array([21.1]), np.array([72.8]))[0]))
    }
    died, again = filled(random.Random("die")), MemoryLedger()
    assert asyncio.run(lives(died, random.Random(1), again, settings)) > 3
    assert outcome(died)[0] == releases


def test_where_to_add_names_the_files():
    root = Path(__file__).parents[2]
    (row,) = re.findall(
        r"^\| a statistic \|(.*)$", (root / "docs" / "architecture.md").read_text(), re.M
    )
    *named, test = re.findall(r"`([a-z_/]+\.py)`", row)
    assert (root / test).samefile(__file__) and len(named) == 3
    held = {file: (root / "udp_stream" / file).read_text() for file in named}
    assert all("variance" in text.lower() for text in held.values()), "where the variance was added"
