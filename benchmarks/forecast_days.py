"""Days of a feed through the real release road: pings are read once, each run draws on a ledger of
its own."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.feeds import Feed, feed_of, slots_of_city
from udp_stream.base.units import QUANTA_PER_KMH
from udp_stream.forecast.model import Coefficients, prior_of
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.release.charge import ForecastPlanner, ReleaseContext
from udp_stream.release.forecaster import Forecaster, LedgerHistory
from udp_stream.release.pipeline import RecordedSlot
from udp_stream.release.promise import release_slot
from udp_stream.release.record import Release, Smoothed
from udp_stream.settings import load
from udp_stream.sources.fleet import FleetColumns
from udp_stream.testing import SeededEntropy
from udp_stream.windows.tables import SlotCounts, SlotValues

Floats = NDArray[np.float64]

OURS = "release.mean=forecast-clip", "release.min_plates=2"
"""What is measured, unless flags say otherwise: all means around forecasts. Smaller HATs are
withheld anyway."""


DRAWN_KMH = 20.0


@dataclass(frozen=True, slots=True)
class Day:
    """A recording with its settings, tabulated, and the truth of each HAT in the order of slots and
    cells."""

    feed: Feed
    slots: tuple[tuple[SlotCounts, SlotValues], ...]
    truth: Floats
    pings: Floats
    plates: NDArray[np.int64]
    hour: NDArray[np.int64]

    @property
    def constant(self) -> float:
        return float(np.average(self.truth, weights=self.pings))

    @property
    def year(self) -> str:
        """By which days are left out: the name up to the year."""
        return self.feed.name[: len("austin-capmetro-2015")]

    def over_constant(self, estimate: Floats, plates_min: int = 1) -> float:
        """Error weighed by pings, over that of the constant."""
        chosen = self.plates >= plates_min
        off = (self.pings * np.abs(estimate - self.truth))[chosen].sum()
        beside: float = (self.pings * np.abs(self.constant - self.truth))[chosen].sum()
        return float(off / beside)


def day_of(argument: str, *flags: str) -> Day:
    feed = feed_of(argument, *flags)
    return joined(feed, tuple(feed.slots()))


def day_of_fleet(name: str, fleet: FleetColumns, *flags: str) -> Day:
    """What synthetic buses did, without what goes wrong on the way."""
    feed = feed_of(f"{name}:65:Asia/Kolkata", *flags)
    settings = load(None, feed.flags, {})
    names, plate = np.unique(fleet.plate, return_inverse=True)
    speed = np.rint(fleet.speed_kmh * QUANTA_PER_KMH).astype(np.int64)
    return joined(
        feed,
        tuple(slots_of_city(settings, names, plate, fleet.time_ms, fleet.lat, fleet.lon, speed)),
    )


def joined(feed: Feed, slots: tuple[tuple[SlotCounts, SlotValues], ...]) -> Day:
    zone = load(None, feed.flags, {}).calendar.slots
    truth = []
    pings = []
    plates = []
    hour = []
    for counts, values in slots:
        starts = values.starts[counts.hat_rows]
        sizes = np.diff(starts)
        truth.append(np.add.reduceat(values.speed, starts[:-1]) / sizes / QUANTA_PER_KMH)
        pings.append(sizes)
        plates.append(np.diff(counts.hat_rows))
        hour.append(np.full(sizes.size, int(zone.iso(counts.start_ms)[11:13])))
    return Day(feed, slots, *(np.concatenate(column) for column in (truth, pings, plates, hour)))


@dataclass(frozen=True, slots=True)
class Run:
    """What one run said of each HAT of a day, in the order of `Day`; `measured` where a mean was
    released."""

    value: Floats
    low: Floats
    high: Floats
    expected: Floats
    guess: Floats
    guess_expected: Floats
    measured: NDArray[np.bool_]
    mean_low: Floats
    mean_high: Floats
    news: Floats
    smoothed: tuple[Smoothed, ...]

    @property
    def drawn(self) -> NDArray[np.bool_]:
        """What the page draws as more than a guess (`board/static/words.js`): of no other HAT it
        claims news."""
        return self.measured & (np.round(self.high - self.low, 3) <= DRAWN_KMH)


def run(
    days: Sequence[Day], seed: int, prior: Coefficients | None = None, flags: Sequence[str] = OURS
) -> list[Run]:
    """The days one after another on one ledger, with smoothed estimates; by default with the
    shipped prior."""
    ledger = MemoryLedger()
    runs = []
    planner, reader = (_forecaster(days[0], flags) for _ in range(2))
    with changed(prior_of, __defaults__=(prior,)):
        for day in days:
            settings = load(None, (*day.feed.flags, *flags), {})
            entropy = SeededEntropy(seed)
            around = ForecastPlanner(planner)
            context = ReleaseContext(
                settings.policy,
                settings.calendar,
                entropy,
                "benchmark",
                planner=around,
                forecaster=planner,
            )
            rows = list[tuple[float, ...]]()
            records = list[Smoothed]()
            for counts, values in day.slots:
                out = release_slot(counts, values, context, ledger, lambda _: None)
                reader.saw(counts)
                found = reader.smoothed((counts.start_ms, counts.end_ms), LedgerHistory(ledger))
                rows += _rows(out, {each.release_id: each for each in found})
                records += [each for each in found if each.release_id is not None]
            runs.append(_run(np.array(rows), records))
    return runs


def run_without_forecasts(day: Day, seed: int, flags: Sequence[str]) -> Floats:
    """The released means of a day; the constant where a HAT is withheld."""
    settings = load(None, (*day.feed.flags, *flags), {})
    ledger = MemoryLedger()
    context = ReleaseContext(settings.policy, settings.calendar, SeededEntropy(seed), "benchmark")
    means = []
    for counts, values in day.slots:
        out = release_slot(counts, values, context, ledger, lambda _: None)
        means += [Release.decode(payload).mean for payload in out.payloads.values()]
    return np.array([day.constant if mean is None else mean.value_kmh for mean in means])


def _forecaster(day: Day, flags: Sequence[str]) -> Forecaster:
    settings = load(None, (*day.feed.flags, *flags), {})
    policy = settings.policy
    return Forecaster(settings.calendar.slots, policy.max_speed, "benchmark", policy.shapes)


def _rows(
    slot: RecordedSlot, smoothed: Mapping[str | None, Smoothed]
) -> Iterator[tuple[float, ...]]:
    for release_id, payload in slot.payloads.items():
        one = smoothed[release_id]
        mean = Release.decode(payload).mean
        ends = (np.nan, np.nan) if mean is None else mean.interval95_kmh
        said = one.value_kmh, *one.interval95_kmh, one.expected_abs_error_kmh
        yield (
            *said,
            one.guess.counts_kmh,
            one.guess.expected_abs_error_kmh,
            mean is not None,
            *ends,
            one.news,
        )


def _run(rows: Floats, records: Sequence[Smoothed]) -> Run:
    columns = list(rows.T)
    return Run(*columns[:6], columns[6] > 0, *columns[7:], tuple(records))


@contextmanager
def changed(where: ModuleType | object, **values: Any) -> Iterator[None]:
    before = {name: getattr(where, name) for name in values}
    try:
        for name, value in values.items():
            setattr(where, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(where, name, value)
