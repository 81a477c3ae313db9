"""`make bench`: replay, memory, a slot of 3,000 HATs, noise, grouping; each beside its peer over
the same bytes."""

import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from datetime import date, datetime
from itertools import islice
from pathlib import Path

import h3.api.basic_int as h3
import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks.words import words
from udp_stream.base.units import NANO
from udp_stream.embedded.runtime import EmbeddedRuntime, release_sink
from udp_stream.forecast.add_remove import AddRemoveMemory
from udp_stream.ledgers.keys import OsEntropy
from udp_stream.ledgers.opening import ledger_and_keys
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.mechanisms.base import SamplesPerPlate, best_fit
from udp_stream.mechanisms.cdf import cdf_values_of_many, node_counts, plan_cdf
from udp_stream.mechanisms.noise import pure
from udp_stream.mechanisms.samplers import discrete_gaussian, discrete_laplace
from udp_stream.pings.decode import PingDecoder
from udp_stream.pings.json import JSON, mapped_form
from udp_stream.pings.mapping import FeedMapping
from udp_stream.planning.plan import plan_hat, terms_at
from udp_stream.release.charge import ReleaseContext
from udp_stream.release.pipeline import estimate_hats
from udp_stream.release.promise import release_slot
from udp_stream.settings import LedgerSection, load
from udp_stream.sources.files import formed_messages, read_messages
from udp_stream.sources.fleet import IST, Fleet
from udp_stream.windows.clocks import Frame
from udp_stream.windows.slots import Windows
from udp_stream.windows.tables import SlotPings, tabulate


class Location(msgspec.Struct, gc=False):
    coordinates: tuple[float, float]


class Ping(msgspec.Struct, gc=False):
    license_plate: str
    observationDateTime: datetime  # noqa: N815
    location: Location
    speed: float


SLOT_HATS = 3000
SLOT_PLATES = 60
SLOT_PINGS = 40
PAPERS = ("release.mean=array-averaging", "release.min_plates=10")
"""Means without forecasts: what versions before them computed, so that they can be compared."""


def best_of(runs: int, work: Callable[[], object]) -> float:
    times = []
    for _ in range(runs):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def best_in_turn(
    runs: int, names: Iterable[str], work: Callable[[str], object]
) -> dict[str, float]:
    """The least of each, taken in turn: a slow stretch of the machine is then one of all."""
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(runs):
        for name, each in times.items():
            start = time.process_time()
            work(name)
            each.append(time.process_time() - start)
    return {name: min(each) for name, each in times.items()}


def say(name: str, figure: str, beside: str = "") -> None:
    print(f"{name:<40}{figure:<34}{beside}", flush=True)


def held_bytes(windows: Windows) -> int:
    return sum(chunk.nbytes for slot in windows._open.values() for chunk in slot.chunks)


def bench_replay(path: Path, pings: int) -> None:
    def decode_only() -> None:
        decode = msgspec.json.Decoder(Ping).decode
        for messages in read_messages(str(path)):
            for message in messages:
                try:
                    decode(message)
                except msgspec.MsgspecError:
                    continue

    def replay(flags: tuple[str, ...] = ()) -> None:
        settings = load(None, ("hat.slot=1h", "hat.resolution=7", *flags), {})
        place = LedgerSection(url=str(path.parent / f"ledger{time.monotonic_ns()}"))
        with ledger_and_keys(place) as (ledger, keys), (path.parent / "out").open("wb") as out:
            write = release_sink(lambda lines: out.writelines(line + b"\n" for line in lines))
            runtime = EmbeddedRuntime(
                settings, ledger, OsEntropy(), keys.hash_plate, "bench", write
            )
            runtime.run(read_messages(str(path)))

    alone = best_of(2, decode_only)
    whole = best_of(3, lambda: replay(PAPERS))
    with_cdf = best_of(
        2, lambda: replay((*PAPERS, "release.cdf_epsilon=0.2", "release.mean_epsilon=0.2"))
    )
    around = best_of(2, replay)
    size = path.stat().st_size / pings
    say(
        "replay, Array-Averaging",
        f"{pings / whole:,.0f} pings/s",
        f"{alone / whole:.2f} x decode-only ({pings / alone:,.0f}/s, {size:.0f} B)",
    )
    say(
        "the same, and CDFs",
        f"{pings / with_cdf:,.0f} pings/s",
        f"{alone / with_cdf:.2f} x decode-only",
    )
    say(
        "replay, the default mean",
        f"{pings / around:,.0f} pings/s",
        f"{alone / around:.2f} x decode-only",
    )


def bench_forms(path: Path) -> None:
    rules = load(None, (), {}).ping_rules
    plain = [message for some in islice(read_messages(str(path)), 25) for message in some]
    pings = [ping for ping in map(_read_ping, plain) if ping is not None]
    mapped = mapped_form(
        FeedMapping(plate="bus.id", time="at", time_format="epoch_s", longitude="x", latitude="y")
    )
    of_form = [_mapped(ping) for ping in pings]
    texts = [_mapped_text(ping) for ping in pings]
    csv = path.with_name("pings.csv")
    csv.write_text("\n".join(["plate;time;x;y;speed", *map(_row, pings)]))
    table = mapped_form(
        FeedMapping(plate="plate", time="time", time_format="epoch_s", longitude="x", latitude="y")
    )
    forms = {
        "contract": (JSON, plain),
        "mapped": (mapped.format, of_form),
        "text": (mapped.format, texts),
    }

    def decode(name: str) -> None:
        if name == "table":
            for ping_format, batch in formed_messages(str(csv), form=table):
                PingDecoder(rules, ping_format).decode(batch)
            return
        ping_format, messages = forms[name]
        decoder = PingDecoder(rules, ping_format)
        for at in range(0, len(messages), 4096):
            decoder.decode(messages[at : at + 4096])

    took = best_in_turn(10, [*forms, "table"], decode)
    contract = took["contract"] / len(plain)
    say("decoding, the contract's form", f"{1 / contract:,.0f} pings/s")
    for name, title in (
        ("mapped", "decoding, mapped"),
        ("text", "decoding, mapped, all text"),
        ("table", "CSV, semicolons and commas"),
    ):
        each = took[name] / len(pings)
        say(title, f"{1 / each:,.0f} pings/s", f"{contract / each:.2f} x the contract's form")


def _read_ping(message: bytes) -> Ping | None:
    try:
        return msgspec.json.decode(message, type=Ping)
    except msgspec.MsgspecError:
        return None


def _mapped(ping: Ping) -> bytes:
    lon, lat = ping.location.coordinates
    at = int(ping.observationDateTime.timestamp())
    made = {"bus": {"id": ping.license_plate}, "at": at, "x": lon, "y": lat, "speed": ping.speed}
    return msgspec.json.encode(made)


def _mapped_text(ping: Ping) -> bytes:
    lon, lat = ping.location.coordinates
    at = str(int(ping.observationDateTime.timestamp()))
    made = {
        "bus": {"id": ping.license_plate},
        "at": at,
        "x": str(lon),
        "y": str(lat),
        "speed": str(ping.speed),
    }
    return msgspec.json.encode(made)


def _row(ping: Ping) -> str:
    lon, lat = ping.location.coordinates
    at = int(ping.observationDateTime.timestamp())
    return f"{ping.license_plate};{at};{lon};{lat};{ping.speed}".replace(".", ",")


def bench_open_pings(path: Path) -> None:
    """Memory of open slots, by the process's own size once decoding has made the room that it
    needs."""
    settings = load(None, (), {})
    decoder = PingDecoder(settings.ping_rules, JSON)
    calendar = settings.calendar

    def open_windows(frames: int | None) -> Windows:
        windows = Windows(settings.window_rules, str.encode)
        for messages in islice(read_messages(str(path)), frames):
            pings, _ = decoder.decode(messages)
            start, end = calendar.slots.place(pings.time_ms)
            windows.push(Frame(pings, np.zeros(len(pings), np.uint64), start, end))
        return windows

    open_windows(20)
    base = resident()
    windows = open_windows(None)
    say(
        "memory per open ping",
        f"{held_bytes(windows) / windows.open_pings:.1f} B held",
        f"{(resident() - base) / windows.open_pings:.1f} B of resident growth, {windows.open_pings:,} open",
    )


def resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def bench_slot() -> None:
    flags = (
        "release.mean=auto",
        "release.bins=65",
        "release.mean_epsilon=0.5",
        "release.cdf_epsilon=0.5",
    )
    policy = load(None, (*flags, "release.cdf=tree"), {}).policy
    rng = np.random.default_rng(1)
    counts = np.maximum(1, rng.poisson(SLOT_PINGS, (SLOT_HATS, SLOT_PLATES)))
    samples = [rng.integers(0, policy.max_speed + 1, int(row.sum())) for row in counts]
    terms = terms_at(0, policy)
    plans = []
    planning = best_of(3, lambda: plans.append([plan_hat(row, terms, policy) for row in counts]))
    estimating = best_of(3, lambda: estimate_hats(plans[0], samples, os.urandom))
    each = (planning + estimating) / SLOT_HATS * 1e3
    say(
        "a 60-plate HAT",
        f"{each:.3f} ms",
        f"plan {planning / SLOT_HATS * 1e3:.3f}, estimate {estimating / SLOT_HATS * 1e3:.3f}; "
        "peers: 21 ms to 3.7 s for a mean",
    )
    columns = SlotPings(
        0,
        3_600_000,
        tuple(b"%06d" % i for i in range(10_000)),
        rng.integers(0, 10_000, 2_000_000).astype(np.uint32),
        rng.integers(0, 3_600_000, 2_000_000).astype(np.uint32),
        rng.integers(0, 3000, 2_000_000).astype(np.uint64),
        rng.integers(0, 200_000, 2_000_000).astype(np.int32),
    )
    say(
        "closing a slot",
        f"{best_of(2, lambda: tabulate(columns)) / 2:.3f} us per ping",
        "sort, repeats, counts",
    )


def bench_add_remove_map() -> None:
    """A slot of the map under add-remove neighbours: forecast, and learn from noised sums."""

    def slots(cells: int) -> None:
        memory = AddRemoveMemory(np.arange(cells, dtype=np.uint64), 25.0, 30, 1.0, 115.0)
        rng = np.random.default_rng(cells)
        for hour in range(6):
            weight = rng.gamma(0.3, 20.0, cells)
            sums = np.array([weight * rng.normal(0, 6, cells), 5 * weight]) + rng.normal(
                0, 25, (2, cells)
            )
            memory.learn(date(2024, 1, 8), hour, sums, memory.forecast(date(2024, 1, 8), hour))

    few, many = (best_of(3, lambda cells=cells: slots(cells)) / 6 for cells in (60, 600))
    say(
        "the map of 600 cells, a slot",
        f"{many * 1e3:.1f} ms",
        f"{many / few:.1f} x the time of 60 cells",
    )


def bench_pipeline() -> None:
    rng = np.random.default_rng(3)
    pings = SLOT_HATS * SLOT_PLATES * 2
    slot = SlotPings(
        0, 3_600_000, tuple(b"%06d" % i for i in range(6000)), (np.arange(pings) // 2 % 6000).astype(np.uint32),
        np.arange(pings).astype(np.uint32), np.repeat(h3_cells(SLOT_HATS), SLOT_PLATES * 2),
        rng.integers(0, 65 * 4096, pings).astype(np.int32),
    )  # fmt: skip
    counts, values = tabulate(slot)
    for name, flags in (
        ("means", ()),
        (
            "means and CDFs",
            ("release.cdf_epsilon=0.5", "release.mean_epsilon=0.5", "release.bins=65"),
        ),
    ):
        settings = load(None, ("budget.epsilon=100", *PAPERS, *flags), {})
        context = ReleaseContext(settings.policy, settings.calendar, OsEntropy(), "bench")
        road = best_of(
            3,
            lambda: release_slot(counts, values, context, MemoryLedger(), lambda _: None),  # noqa: B023
        )
        say(
            f"a closed slot, {name}",
            f"{road / SLOT_HATS * 1e3:.3f} ms a HAT",
            "plan, charge, draw, record",
        )


def h3_cells(number: int) -> NDArray[np.uint64]:
    disk = h3.grid_disk(h3.latlng_to_cell(21.17, 72.83, 7), int(number**0.5))
    return np.sort(np.array(disk, dtype=np.uint64))[:number]


def bench_noise() -> None:
    """Beside numpy's insecure floating-point noise, and OpenDP where it is installed."""
    n = 1_000_000
    t = np.full(n, 532_480)
    ours = best_of(3, lambda: discrete_laplace(os.urandom, t))
    numpy_s = best_of(3, lambda: np.random.default_rng().laplace(0, 1.0, n))
    say(
        "discrete Laplace, one call",
        f"{n / ours / 1e6:.2f} M draws/s",
        f"{numpy_s / ours:.3f} x numpy's insecure one",
    )
    gaussian = best_of(3, lambda: discrete_gaussian(os.urandom, t))
    normal_s = best_of(3, lambda: np.random.default_rng().normal(0, 1.0, n))
    say(
        "discrete Gaussian, one call",
        f"{n / gaussian / 1e6:.2f} M draws/s",
        f"{normal_s / gaussian:.3f} x numpy's normal",
    )
    try:
        import opendp.prelude as dp
    except ImportError:
        say("", "", "(OpenDP is not installed: pip install '.[bench]')")
        return
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l1_distance(T=int)
    measure = dp.m.make_laplace(*space, scale=532_480.0)
    zeros = [0] * 100_000
    theirs = best_of(3, lambda: measure(zeros)) * n / len(zeros)
    say("", "", f"{theirs / ours:.1f} x OpenDP's exact vector sampler ({n / theirs / 1e3:.0f} k/s)")


def bench_cdf() -> None:
    """A CDF of 10^6 speeds at epsilon 1, with exact noise; beside OpenDP's tree, from counts, where
    it is installed."""
    rng = np.random.default_rng(4)
    plates = SamplesPerPlate(np.ones(1_000_000, np.int64))
    speeds = rng.integers(0, 65 * 4096 + 1, 1_000_000)
    for bins, runs in ((1024, 20), (65536, 5)):
        plan = plan_cdf(plates, pure(NANO), 65.0, bins)
        leaves = np.bincount(plan.bins.bin_of(speeds), minlength=bins)
        found: list[list[float]] = []

        def ours() -> None:
            noisy = node_counts(plan, speeds) + plan.noise.draw(os.urandom, plan.t, plan.s)  # noqa: B023
            found.extend(cdf_values_of_many([plan], noisy[np.newaxis]))  # noqa: B023

        took = best_of(60, ours)
        errors = ((np.array(found)[:, 1:] * plan.kept - np.cumsum(leaves)) ** 2).sum(axis=1)
        beside = f"squared error {errors.mean():.3g}, by the formula {8 * plan.tree.squared_error:.3g} before pooling"
        say(f"a CDF of {bins:,} bins", f"{took * 1e3:.1f} ms for 10^6 speeds", beside)
        theirs = opendp_cdf(leaves, runs)
        say("", "", theirs or "(OpenDP is not installed: pip install '.[bench]')")


def opendp_cdf(leaves: NDArray[np.int64], runs: int) -> str:
    """With 2 in l1 a level below the root, as for us: its root is noisy, but costs nothing here."""
    try:
        import opendp.prelude as dp
    except ImportError:
        return ""
    dp.enable_features("contrib")
    b = dp.t.choose_branching_factor(size_guess=leaves.size)
    height = next(h for h in range(1, 64) if b**h >= leaves.size)
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l1_distance(T=int)
    tree = dp.t.make_b_ary_tree(*space, leaf_count=leaves.size, branching_factor=b)
    noise = dp.m.make_laplace(tree.output_domain, tree.output_metric, scale=2.0 * height)
    consistent = dp.t.make_consistent_b_ary_tree(branching_factor=b)
    counts = leaves.tolist()
    found = []
    took = best_of(
        runs, lambda: found.append(np.cumsum(consistent(noise(tree(counts))))[: leaves.size])
    )
    errors = ((np.array(found)[:, :-1] - np.cumsum(leaves)[:-1]) ** 2).sum(axis=1)
    return f"OpenDP's tree, branching {b}: squared error {errors.mean():.3g}; {took * 1e3:.0f} ms from counts"


def bench_grouping() -> None:
    rng = np.random.default_rng(2)
    few, many = (SamplesPerPlate(rng.integers(1, 400, users)) for users in (100_000, 1_000_000))
    seconds = [best_of(2, lambda hat=hat: best_fit(hat, hat.median)) for hat in (few, many)]
    say(
        "BestFit, 10^6 plates",
        f"{seconds[1]:.2f} s",
        f"{seconds[1] / seconds[0]:.1f} x the time of 10^5 plates",
    )


def main() -> None:
    print(
        f"Python {sys.version.split()[0]}, numpy {np.__version__}, one core; process time, best of several runs"
    )
    with tempfile.TemporaryDirectory(prefix="udp-stream-bench-") as name:
        path = Path(name) / "pings.ndjson"
        with path.open("wb") as file:
            pings = 0
            for batch in Fleet(
                buses=1000, start=datetime(2024, 1, 8, 8, tzinfo=IST), hours=3
            ).messages():
                file.write(b"\n".join(batch) + b"\n")
                pings += len(batch)
        bench_forms(path)
        bench_open_pings(path)
        bench_replay(path, pings)
    bench_slot()
    bench_add_remove_map()
    bench_pipeline()
    bench_noise()
    bench_cdf()
    bench_grouping()


if __name__ == "__main__":
    words(__doc__)
    main()
