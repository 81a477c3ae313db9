"""Forecasts and smoothed estimates from earlier releases: public, so plans may follow from them."""

from __future__ import annotations

import datetime as dt
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import partial
from typing import Any

import msgspec
import numpy as np

from udp_stream.base.arrays import Floats, Integers
from udp_stream.base.units import QUANTA_PER_KMH
from udp_stream.forecast.add_remove import STAY, AddRemoveEstimates, AddRemoveMemory
from udp_stream.forecast.anomalies import (
    NOT_CLIPPED,
    NOTHING,
    Evidence,
    PosteriorMixture,
    ReleaseClip,
    happened_variance,
    likely_unit,
    unmeasured,
)
from udp_stream.forecast.model import (
    DAYS,
    PER_HAT,
    CityTold,
    Memory,
    ReleasedHats,
    SlotForecast,
    SlotPrior,
    evidence_of,
    forecast_slot,
)
from udp_stream.forecast.shape import Answer, CityMemory, CityShape, SpreadMemory
from udp_stream.forecast.usual_week import packed
from udp_stream.ledger.ids import (
    CITY,
    CITY_HOUR,
    DAY_SUMS,
    HAT,
    NOISED_SUMS,
    USUAL_WEEK,
    WITHDRAWN,
    Id,
    id_of,
    kind_of,
)
from udp_stream.ledger.port import Admission, Ledger
from udp_stream.ledger.rules import archived_s
from udp_stream.mechanisms.cdf import city_bins
from udp_stream.mechanisms.widths import at_speed, mean_variance
from udp_stream.planning.add_remove import AddRemoveRules
from udp_stream.planning.slot import SD_PER_MEAN_ABS
from udp_stream.release.city import CityHour, CityKnowledge, CityRecord, HourKnowledge, hat_cdfs
from udp_stream.release.record import (
    Guess,
    Hat,
    Plates,
    Record,
    Release,
    Smoothed,
    Traffic,
    UnitDoubt,
    hat_ids,
)
from udp_stream.release.sums import NoisedSums, SumsQuery
from udp_stream.release.withdrawal import NOTE, noted, withdrawal_id, withdrawals_of
from udp_stream.windows.grid import HEXAGONS, Grid
from udp_stream.windows.tables import SlotCounts, SlotGrid

HOUR_MS = 3_600_000

Slot = tuple[int, int]
"""Start and end, Unix ms."""


def _hours(slot: Slot) -> float:
    return (slot[1] - slot[0]) / HOUR_MS


SLACK_MS = 86_400_000
"""How much later than a slot an earlier one may have been charged for: a day."""


class KeptWeek(Record, frozen=True, tag_field="schema", tag="udp-stream/usual-week/1"):
    """The usual week with which a day begins: a cache of what earlier records tell.

    `cells` are in the order of the sums; `of` tells how they are to be read; `spread` has the sums
    of the city's time in each bin of speed, under "add-remove".
    """

    of: str
    cells: tuple[int, ...]
    sums: bytes
    spread: tuple[float, ...] = ()


class LedgerHistory:
    """The releases that a ledger holds: public, so plans and forecasts may follow from them.

    >>> from udp_stream.ledgers.sqlite import MemoryLedger
    >>> LedgerHistory(MemoryLedger()).withdrawn((0, 3_600_000), [0x87608C4D2FFFFFF])
    set()
    """

    def __init__(
        self, ledger: Ledger, grid: Grid = HEXAGONS, meta: Mapping[str, str] | None = None
    ) -> None:
        """`meta`, where it is at hand, is what the ledger knows of itself."""
        self._ledger = ledger
        self.grid = grid
        self._meta = meta

    def releases_and_city(
        self, slot: Slot, cells: Sequence[int], *, city: bool
    ) -> tuple[list[Release | None], Answer | None, CityTold | None]:
        """The releases of these HATs and, if asked for, what their slot told of the whole city's
        distribution; and what it told of its mean before the HATs."""
        names = id_of(CITY, *slot), id_of(CITY_HOUR, *slot)
        ids = hat_ids(cells, slot, self.grid)
        *payloads, answer, told = self._ledger.recorded([*ids, *names])
        found = [None if payload is None else Release.decode(payload) for payload in payloads]
        return (
            found,
            CityRecord.of_ledger(names[0], answer).answer if city and answer is not None else None,
            None if told is None else CityHour.of_ledger(names[1], told).told,
        )

    def withdrawals(self) -> int:
        """How often a person has withdrawn HATs."""
        return sum(name.startswith(NOTE) for name in self._facts())

    def _facts(self) -> Mapping[str, str]:
        return self._ledger.meta() if self._meta is None else self._meta

    def weeks(self, until_ms: int, withdrawals: int) -> Iterator[tuple[int, KeptWeek]]:
        """The usual weeks that are kept, each with the start of its day: the newest first, none of
        a later day. Those that HATs are in which were withdrawn since are passed over."""
        sound_ms: int | None = None
        for id_, (start, _) in self._since(0, USUAL_WEEK):
            if start > until_ms:
                continue
            if Id.of(id_).key != str(withdrawals):
                sound_ms = self._untouched() if sound_ms is None else sound_ms
                if start > sound_ms:
                    continue
            (payload,) = self._ledger.recorded([id_])
            with suppress(msgspec.DecodeError, UnicodeDecodeError):
                yield start, KeptWeek.decode(payload or b"")

    def closed_ms(self) -> int:
        """The time up to which the ledger is archived, Unix ms; 0 if it is not."""
        return 1000 * (archived_s(self._facts()) or 0)

    def _untouched(self) -> int:
        """The start of the earliest HAT that was withdrawn; 0 where an archive has some."""
        starts = [slot[0] for _, slot in self._since(0, WITHDRAWN)]
        is_whole = len(starts) == sum(note.hats for note in noted(self._facts()))
        return min(starts, default=0) if is_whole else 0

    def withdrawn(self, slot: Slot, cells: Sequence[int]) -> set[int]:
        """Which of these HATs are withdrawn."""
        ids = dict(zip(hat_ids(cells, slot, self.grid), cells, strict=True))
        found = withdrawals_of(self._ledger, list(ids))
        return {cell for id_, cell in ids.items() if withdrawal_id(id_) in found}

    def slots_since(self, start_ms: int) -> dict[Slot, list[int]]:
        """From the newest charge back, until slots are a day older than asked for. Ids of no HAT
        are passed over."""
        slots: dict[Slot, list[int]] = {}
        for id_, slot in self._since(start_ms, "hat"):
            with suppress(ValueError):  # of another grid
                cell = self.grid.cell_of(Id.of(id_).key)
                slots.setdefault(slot, []).append(cell)
        return slots

    def sums(self, slot: Slot, kind: str = NOISED_SUMS) -> NoisedSums | None:
        """The noised sums of a slot under "add-remove", or of a day."""
        name = id_of(kind, *slot)
        (payload,) = self._ledger.recorded([name])
        return None if payload is None else NoisedSums.of_ledger(name, payload)

    def sums_since(self, start_ms: int) -> list[Slot]:
        """The slots of such sums, as `slots_since`."""
        return [slot for _, slot in self._since(start_ms, NOISED_SUMS)]

    def _since(self, start_ms: int, kind: str) -> Iterator[tuple[str, Slot]]:
        for id_ in self._ledger.newest():
            if kind_of(id_) != kind:
                continue
            try:
                start, end = (1000 * seconds for seconds in Id.of(id_).slot)
            except ValueError:
                continue
            if start < start_ms - SLACK_MS:
                return
            if start >= start_ms:
                yield id_, (start, end)


def keep(week: KeptWeek, day: Slot, period: str, withdrawals: int, ledger: Ledger) -> None:
    """Keep the usual week that a day begins with: the first is kept for ever, or until its day is
    archived."""
    name = id_of(USUAL_WEEK, *day, str(withdrawals))
    ledger.admit(period, 0, (), [Admission.of_nobody(name)])
    ledger.record([(name, week.encode())])
    ledger.published([name])


# 95 % intervals around smoothed estimates: public constants, fixed before any ping. The outlook's
# variances lack four things: parked buses and open roads make tails heavier than normal, but not of
# the fewest pings, as speeds have bounds; plates of one HAT differ by more than their pings tell,
# and by something common; and where a HAT's neighbours are crossed quickly, some buses drive faster
# than a narrow clip shows (docs/mechanisms/forecast.md).


TAIL = 1.1
"""Deviations within which 95 % of HATs are, where nothing happened; below `NORMAL_TAIL`, as plates
differ by less than `PLATES_DIFFER` in most."""

NORMAL_TAIL = 1.96
"""The same of a normal variable."""

ANOMALY_WIDER = 2.0
"""Speeds seldom follow the model: its variance counts three times in intervals, and less the more
of it a release tells."""

FEW_PINGS = 0.3
"""By how much that is too wide for a HAT of a single ping; for one of n pings, by an n-th."""

PLATES_DIFFER = 100.0
"""km2/h2, what the mean of one plate is off by beside what its pings tell; a HAT of n plates has an
n-th of it."""

PLATES_ALIKE = 7.0
"""The same, of what more plates do not make less: clips hide what the fastest and the slowest
plates are off by, of each HAT another part, and later forecasts learn it with the releases."""

OPEN_ROADS = 0.4
"""How much farther the upper end is, as a power of e, for each standard deviation that the pings
per plate in the neighbouring HATs are fewer than usual; less where a release tells of news."""

NEIGHBOURS_DWELL = 4
"""The feature of a HAT that says how long plates are in the neighbouring HATs
(`forecast/model.py`)."""


def plates_differ(plates: Integers, gain: Floats) -> Floats:
    """Variance of HATs' means because plates differ, in km2/h2; a HAT's own release takes away
    `gain` of what plates differ by one by one."""
    return (1 - gain) * PLATES_DIFFER / np.maximum(plates, 1) + PLATES_ALIKE


def of_few_pings(variance: Floats, pings: Integers) -> Floats:
    """Factor on the variance of HATs of so many pings, in intervals: less for the fewest."""
    return (1 - FEW_PINGS / np.maximum(pings, 1)) ** 2 * variance


def ends(
    posterior: PosteriorMixture, more: Floats, pings: Integers, features: Floats
) -> tuple[Floats, Floats]:
    """Both ends of 95 % intervals of HATs of so many pings, in km/h, which the caller cuts to [0,
    U]. `more` is what plates differ by, in km2/h2 at the speed `MEASURED_AT`; `features` has six
    standardised for each HAT."""
    of_news = happened_variance(posterior.usual_mean)
    untold = np.minimum(posterior.anomaly_variance / of_news, 1.0)
    anomaly = (1 + ANOMALY_WIDER * untold) * posterior.anomaly_variance
    variances = np.array([posterior.usual_variance, anomaly]) + more
    speeds = at_speed(np.array([posterior.usual_mean, posterior.anomaly_mean]))
    deviations = TAIL / NORMAL_TAIL * speeds * np.sqrt(of_few_pings(variances, pings))
    median = posterior.median
    low, high = posterior.ends(deviations)
    quicker = untold * np.maximum(-features[:, NEIGHBOURS_DWELL], 0.0)
    return np.minimum(low, median), median + np.exp(OPEN_ROADS * quicker) * np.maximum(
        high - median, 0.0
    )


# Smoothed estimates: post-processing of releases and counts, which costs no budget. The estimate is
# the median of what releases and forecasts leave possible (`forecast/anomalies.py`). A HAT that was
# not measured gets its forecast, after the slot's other releases; so does every cell that was
# observed before. People should read this.

MEAN_ABS_PER_SD = 0.798
"""The expected size of a normal variable over its standard deviation: sqrt(2 / pi)."""


def smooth_slot(
    records: Sequence[Release],
    memory: Memory,
    day: dt.date,
    hours: float,
    hour: float,
    max_kmh: float,
    software: str,
    grid: Grid,
    is_asked: bool,
    told: CityTold | None = None,
) -> list[Smoothed]:
    """Learn the releases of one slot (all its HATs, at least one) of so many hours, in the middle
    of which it is `hour`; then estimate each HAT and cell seen, if that is asked. The city was
    `told` before them.

    HATs first, in the order of their records, then the other cells, by cell. A record without
    counts is taken for one of a single plate and ping, so its interval is wide.
    """
    released = released_hats(records, hours, grid)
    cells = np.array([grid.cell_of(record.hat.cell) for record in records], dtype=np.uint64)
    carried = memory.carried(day, cells)
    learnt = memory.learn(day, released, max_kmh, hour, told)
    if not is_asked:
        return []
    prior = prior_of_records(records)
    unexplained = unexplained_of_records(records)
    measured = np.flatnonzero([record.mean is not None for record in records])
    here = memory.predict(day, cells, prior, hour)
    found = unmeasured(here.mean, here.variance + unexplained, carried, max_kmh).with_some(
        measured, learnt
    )
    gain = np.zeros(len(records))
    gain[measured] = unexplained[measured] / (unexplained[measured] + released.noise)
    plates = np.array([max(1, record.plates) for record in records])
    samples = np.array([max(1, record.samples) for record in records])
    low, high = ends(found, plates_differ(plates, gain), samples, prior.features)
    guess = memory.guess(day, prior, hour)
    constant = float(np.average(found.median, weights=samples))
    slot = _SlotCommon(records[0].hat, constant, max_kmh, software, records[0].trial)
    named = [(record.hat, record.release_id) for record in records]
    news = memory.news(day, cells, prior, hour, found, unexplained)
    estimates = slot.estimates(named, found, (low, high), guess.mean, news)
    return estimates + _elsewhere(
        sorted(set(memory.cells(day)) - set(cells.tolist())), memory, day, hour, slot, grid
    )


def _elsewhere(
    cells: Sequence[int], memory: Memory, day: dt.date, hour: float, slot: _SlotCommon, grid: Grid
) -> list[Smoothed]:
    prior = SlotPrior(np.zeros(0), np.zeros(len(cells)), np.zeros((len(cells), PER_HAT)))
    at = np.array(cells, dtype=np.uint64)
    there = memory.predict(day, at, prior, hour)
    guess = memory.guess(day, prior, hour)
    unexplained = float(mean_variance(np.array([1]), np.array([0]), 1)[0])
    one_plate = plates_differ(np.ones(1, dtype=np.int64), np.zeros(1))
    found = unmeasured(
        there.mean, there.variance + unexplained, [NOTHING] * len(cells), slot.max_kmh
    )
    low, high = ends(found, one_plate, np.full(len(cells), 10**9), prior.features)
    hats = [Hat.of(cell, grid, slot.hat.slot_start, slot.hat.slot_end) for cell in cells]
    news = memory.news(day, at, prior, hour, found, np.full(at.size, unexplained))
    return slot.estimates([(hat, None) for hat in hats], found, (low, high), guess.mean, news)


def with_cdfs(
    estimates: Sequence[Smoothed], plates: Integers, city: CityShape | None
) -> list[Smoothed]:
    """The same estimates of a slot with each one's CDF: the city's, tilted to its mean. `plates`
    has about how many made each; 0 for a cell without pings."""
    if city is None:
        return [msgspec.structs.replace(one, cdf_withheld="city_untold") for one in estimates]
    said = np.array([(one.value_kmh, one.expected_abs_error_kmh) for one in estimates])
    cdfs = hat_cdfs(city, said[:, 0], said[:, 1] / MEAN_ABS_PER_SD, plates)
    return [
        msgspec.structs.replace(one, **cdf._asdict())
        for one, cdf in zip(estimates, cdfs, strict=True)
    ]


class _SlotCommon(msgspec.Struct, frozen=True):
    """The fields that all estimates of a slot share; `hat` is any of its HATs."""

    hat: Hat
    constant: float
    max_kmh: float
    software: str
    trial: bool

    def estimates(
        self,
        named: Sequence[tuple[Hat, str | None]],
        posterior: PosteriorMixture,
        ends95: tuple[Floats, Floats],
        by_counts: Floats,
        news: Floats,
    ) -> list[Smoothed]:
        values = posterior.median
        off = (at_speed(values) * np.sqrt(posterior.variance)).tolist()
        kmh, low, high, counts = (
            map(self._clip, one.tolist()) for one in (values, *ends95, by_counts)
        )
        constant = self._clip(self.constant)
        return [
            Smoothed(
                hat, value, interval, round(MEAN_ABS_PER_SD * apart, 3),
                Guess(constant, guess, round(_mean_distance(abs(guess - value), apart), 3)), None, release_id,
                round(is_news, 3), self.software, self.trial,
            )
            for (hat, release_id), value, interval, apart, guess, is_news in zip(
                named, kmh, zip(low, high, strict=True), off, counts, news.tolist(), strict=True
            )
        ]  # fmt: skip

    def _clip(self, kmh: float) -> float:
        return round(min(max(kmh, 0.0), self.max_kmh), 3)


def _mean_distance(apart: float, off: float) -> float:
    """E|x| of a normal variable around `apart` with deviation `off`: a truth's distance from a
    guess."""
    if not off:
        return apart
    ratio = apart / off
    return MEAN_ABS_PER_SD * off * math.exp(-(ratio**2) / 2) + apart * math.erf(
        ratio / math.sqrt(2)
    )


def released_hats(records: Sequence[Release], hours: float, grid: Grid) -> ReleasedHats:
    """The records with a mean, of a slot of so many hours."""
    chosen = [record for record in records if record.mean is not None]
    cells = np.array([grid.cell_of(record.hat.cell) for record in chosen], dtype=np.uint64)
    value, noise, clipped = _measured(chosen)
    return ReleasedHats(
        cells,
        prior_of_records(chosen),
        value,
        noise,
        unexplained_of_records(chosen),
        clipped,
        hours,
    )


def prior_of_records(records: Sequence[Release]) -> SlotPrior:
    """Values that the records' forecasts read of counts; 0 for records that have none."""
    priors = np.zeros((len(records), 1 + PER_HAT))
    for at, record in enumerate(records):
        if record.forecast is not None and len(record.forecast.prior) == 1 + PER_HAT:
            priors[at] = record.forecast.prior
    return SlotPrior(np.zeros(0), priors[:, 0], priors[:, 1:])


def unexplained_of_records(records: Sequence[Release]) -> Floats:
    """Variance of each HAT's rest; from its counts where the record has no forecast: as if all
    plates sent alike."""
    return np.array([unexplained_of(record) for record in records])


def unexplained_of(record: Release) -> float:
    """Variance of the HAT's rest, in km2/h2."""
    if record.forecast is not None:
        return record.forecast.rest_kmh**2
    plates = max(1, record.plates)
    samples = max(1, record.samples)
    pings = np.full(plates, max(1, samples // plates))
    return float(mean_variance(pings, np.zeros(plates, dtype=np.int64), 1)[0])


def _measured(records: Sequence[Release]) -> tuple[Floats, Floats, list[ReleaseClip]]:
    found = [value_of(record) for record in records]
    values, variances = (np.array([one[which] for one in found]) for which in (0, 1))
    return values, variances, [clipped_of(record) for record in records]


def clipped_of(record: Release) -> ReleaseClip:
    """How the release was clipped."""
    forecast = record.forecast
    if forecast is None or (clip := forecast.clip) is None:
        return NOT_CLIPPED
    return ReleaseClip(forecast.value_kmh, clip.half_width, clip.hats, clip.gain, clip.scatter_kmh)


def value_of(record: Release) -> tuple[float, float]:
    """The mean that the release has, and the variance of its noise."""
    forecast = record.forecast
    mean = record.mean
    if (
        forecast is not None
        and forecast.measured_kmh is not None
        and forecast.measured_deviation_kmh is not None
    ):
        return forecast.measured_kmh, forecast.measured_deviation_kmh**2
    if mean is None:
        raise ValueError("expected a release with a mean")
    return mean.value_kmh, (SD_PER_MEAN_ABS * mean.expected_abs_error_kmh) ** 2


# The forecaster keeps nothing of its own: it follows from the releases of two days, in the order of
# their slots (`forecast/model.py`), so that after a crash, or on another worker, it comes to the
# same forecasts.


class SlotForecaster(ABC):
    """A learner, slot by slot, from the records of a ledger. Slots that are `due` were seen and not
    learnt yet."""

    doubt: UnitDoubt | None = None
    """The releases that give evidence of another unit, if some do."""

    def __init__(self, slots: SlotGrid, software: str) -> None:
        self._slots = slots
        self._software = software
        self._due: dict[Slot, set[int]] = {}
        self._learnt_ms: int | None = None
        self._withdrawals = 0
        self._kept_ms = 0

    def saw(self, counts: SlotCounts) -> None:
        """A slot that is planned now, or is recorded already: its releases are to be learnt."""
        # A slot that comes again after it was learnt must not be learnt twice.
        if self._learnt_ms is None or counts.start_ms > self._learnt_ms:
            self._due.setdefault(counts.slot, set()).update(counts.cells.tolist())

    def city(self, start_ms: int, history: LedgerHistory) -> CityKnowledge | None:  # noqa: ARG002
        """The city's shape as known before a slot, after all earlier ones; None if nobody
        wants to know."""
        return None

    def hour(self, counts: SlotCounts, history: LedgerHistory) -> HourKnowledge | None:  # noqa: ARG002
        """What the city's mean in a slot is asked around; None if nobody wants to know."""
        return None

    def in_doubt(self, start_ms: int, history: LedgerHistory, policy: str) -> bool:  # noqa: ARG002
        """Whether the releases before a slot, made under this policy, say that their speeds are in
        another unit."""
        return False

    def smoothed(self, slot: Slot, history: LedgerHistory) -> list[Smoothed]:
        return self._learn(history, slot[1], slot)

    def _learn(
        self, history: LedgerHistory, before_ms: int, asked: Slot | None = None
    ) -> list[Smoothed]:
        """Learn every slot that starts before this time and was not learnt yet; gives the smoothed
        estimates of the slot that is asked."""
        if (
            withdrawals := history.withdrawals()
        ) != self._withdrawals:  # what was learnt of these HATs is forgotten
            self._forget()
            self._learnt_ms = None
            self._withdrawals = withdrawals
        if self._learnt_ms is None:
            self._remember(history, before_ms)
        estimates = list[Smoothed]()
        for slot in sorted(slot for slot in self._due if slot[0] < before_ms):
            # Sorted, as a set has no order, and every worker has to come to the same forecasts.
            cells = sorted(self._due.pop(slot))
            estimates += self._learn_slot(slot, cells, history, slot == asked)
            self._learnt_ms = slot[0]
        return estimates

    def _remember(self, history: LedgerHistory, before_ms: int) -> None:
        """The ledger's slots, also later ones: a worker may read a log again. Of those before
        yesterday nothing is estimated."""
        # One ms before: the end of a day's last slot is midnight of the next day.
        midnight = dt.datetime.combine(self._day(before_ms - 1), dt.time(), self._slots.zone)
        since_ms = int((midnight - dt.timedelta(days=DAYS - 1)).timestamp() * 1000)
        begun_ms = self._recall(history, max(since_ms, history.closed_ms()))
        self._due = {slot: cells for slot, cells in self._due.items() if slot[0] >= begun_ms}
        for slot, cells in sorted(self._slots_since(history, begun_ms).items()):
            if slot[0] >= since_ms:
                self._due.setdefault(slot, set()).update(cells)
            else:
                self._due.pop(slot, None)
                self._remember_slot(slot, sorted(cells), history)
                self._learnt_ms = slot[0]

    def _recall(self, history: LedgerHistory, until_ms: int) -> int:
        """Begin with the latest usual week that was kept by then; gives the start of its day, 0 if
        there is none."""
        for start_ms, kept in history.weeks(until_ms, self._withdrawals):
            with suppress(ValueError):
                self._restore(kept, self._day(start_ms))
                return start_ms
        return 0

    def keep_week(self, slot: Slot, period: str, history: LedgerHistory, ledger: Ledger) -> None:
        """Keep the usual week with which the day of a slot begins, once: what it was made of may
        then be archived; it is, with the period of the slot. All earlier slots are recorded by now."""
        day = self.midnights(slot)
        if day[0] <= self._kept_ms:
            return
        self._learn(history, slot[0])
        kept = self._week(self._day(slot[0]))
        self._kept_ms = day[0]
        if kept is not None and any(kept.cells):
            keep(kept, day, period, self._withdrawals, ledger)

    def midnights(self, slot: Slot) -> tuple[int, int]:
        """Those around the start of a slot, Unix ms."""
        days = (self._day(slot[0]) + dt.timedelta(days) for days in (0, 1))
        first, last = (
            int(1000 * dt.datetime.combine(day, dt.time(), self._slots.zone).timestamp())
            for day in days
        )
        return first, last

    def _hour(self, slot: Slot) -> float:
        """The hour of the day, by its clocks, in the middle of a slot."""
        middle = dt.datetime.fromtimestamp(sum(slot) / 2000, self._slots.zone)
        return middle.hour + middle.minute / 60

    def _day(self, time_ms: int) -> dt.date:
        return dt.datetime.fromtimestamp(time_ms / 1000, self._slots.zone).date()

    @abstractmethod
    def _forget(self) -> None:
        """Begin anew."""

    @abstractmethod
    def _week(self, day: dt.date) -> KeptWeek | None:
        """The usual week with which a day begins; None where it is not to be kept."""

    @abstractmethod
    def _restore(self, kept: KeptWeek, day: dt.date) -> None:
        """Begin such a day with this; ValueError, with nothing changed, if it is of another form."""

    @abstractmethod
    def _slots_since(self, history: LedgerHistory, since_ms: int) -> Mapping[Slot, Collection[int]]:
        """The part of a ledger's past that is to be learnt."""

    @abstractmethod
    def _remember_slot(self, slot: Slot, cells: Sequence[int], history: LedgerHistory) -> None:
        """Learn a slot of a day before yesterday."""

    @abstractmethod
    def _learn_slot(
        self, slot: Slot, cells: Sequence[int], history: LedgerHistory, is_asked: bool
    ) -> list[Smoothed]:
        """Its estimates, if they are asked; none if it has no records."""


class Forecaster(SlotForecaster):
    """Forecasts and smoothed estimates of a deployment.

    >>> from udp_stream.ledgers.sqlite import MemoryLedger
    >>> from udp_stream.release.promise import release_slot
    >>> from udp_stream.testing import a_context, two_hats
    >>> (counts, values), context, ledger = two_hats(), a_context(), MemoryLedger()
    >>> forecaster = Forecaster(context.calendar.slots, context.policy.max_speed, "udp-stream 1.0")
    >>> forecaster.saw(counts)
    >>> _ = release_slot(counts, values, context, ledger, publish=lambda _: None)
    >>> estimates = forecaster.smoothed((counts.start_ms, counts.end_ms), LedgerHistory(ledger))
    >>> [estimate.hat.cell for estimate in estimates]  # that of the HAT which was withheld, too
    ['8742d98b6ffffff', '8742d9d4cffffff']
    """

    _policy: str
    _is_doubted: bool
    _evidence: Evidence
    _usual: tuple[Memory, CityMemory | None] | None
    """The state before there was evidence."""
    _usual_ms: int
    """The start of the first slot that it has not learnt, Unix ms."""

    def __init__(
        self,
        slots: SlotGrid,
        max_speed: int,
        software: str,
        shapes: bool = False,
        judges_unit: bool = False,
        unit: str = "kmh",
    ) -> None:
        super().__init__(slots, software)
        self._max_kmh = max_speed / QUANTA_PER_KMH
        self._judges_unit = judges_unit
        self._unit = unit
        self._new_shapes = (
            partial(CityMemory, city_bins(max_speed).edges_kmh[1:]) if shapes else lambda: None
        )
        self._forget()

    def _forget(self) -> None:
        self._memory, self._shapes = Memory(), self._new_shapes()
        self._forget_unit("")

    def forecast(
        self, counts: SlotCounts, history: LedgerHistory, told: CityTold | None = None
    ) -> SlotForecast:
        """The forecast of a slot, after all earlier ones, and around what the city was told of it.
        They must be recorded by now: what is not is never learnt."""
        self._learn(history, counts.start_ms)
        told = None if self._is_doubted else told
        return self._forecast(counts, history, 0.0 if told is None else _hours(counts.slot), told)

    def _forecast(
        self, counts: SlotCounts, history: LedgerHistory, passed: float, told: CityTold | None
    ) -> SlotForecast:
        day, over = self._when(counts.slot)
        hour = self._hour(counts.slot)
        return forecast_slot(
            counts, history.grid, self._memory, day, over, self._max_kmh, hour, passed, told
        )

    def hour(self, counts: SlotCounts, history: LedgerHistory) -> HourKnowledge | None:
        """What the city's mean in a slot is asked around; None while the unit is in doubt."""
        self._learn(history, counts.start_ms)
        if self._is_doubted:
            return None
        slot = counts.slot
        forecast = self._forecast(counts, history, _hours(slot), None)
        over = partial(
            self._memory.mean_over, self._day(slot[0]), counts.cells, forecast.prior,
            self._hour(slot), _hours(slot),
        )  # fmt: skip
        return HourKnowledge(forecast.plates, over)

    def city(self, start_ms: int, history: LedgerHistory) -> CityKnowledge | None:
        """The city's shape as known before a slot, after all earlier ones; None if nobody
        wants to know."""
        if self._shapes is None:
            return None
        self._learn(history, start_ms)
        day = self._day(start_ms)
        return CityKnowledge(
            self._shapes.shape(day), self._shapes.asked(day), self._shapes.plates(day)
        )

    def _week(self, day: dt.date) -> KeptWeek | None:
        # What a doubt leaves is not what the records tell.
        if self._is_doubted:
            return None
        cells, sums = self._memory.kept(day)
        return KeptWeek("", tuple(cells), sums)

    def _restore(self, kept: KeptWeek, day: dt.date) -> None:
        if kept.of:
            raise ValueError(f"expected sums of HATs, got {kept.of}")
        self._memory = Memory.of(day, kept.cells, kept.sums)

    def _slots_since(self, history: LedgerHistory, since_ms: int) -> Mapping[Slot, Collection[int]]:
        return history.slots_since(since_ms)

    def _remember_slot(self, slot: Slot, cells: Sequence[int], history: LedgerHistory) -> None:
        records, _, _ = self._records(slot, cells, history)
        released = released_hats(records, (slot[1] - slot[0]) / HOUR_MS, history.grid)
        self._memory.remember(self._day(slot[0]), released, self._hour(slot))

    def _records(
        self, slot: Slot, cells: Sequence[int], history: LedgerHistory
    ) -> tuple[list[Release], Answer | None, CityTold | None]:
        """Those that are to be learnt."""
        withdrawn = history.withdrawn(slot, cells) if self._withdrawals else set()
        found, answer, told = history.releases_and_city(
            slot,
            [cell for cell in cells if cell not in withdrawn],
            city=self._shapes is not None and not withdrawn,
        )
        known = [record for record in found if record is not None and record.noised is None]
        return known, answer, None if withdrawn else told

    def in_doubt(self, start_ms: int, history: LedgerHistory, policy: str) -> bool:
        self._learn(history, start_ms)
        return self._is_doubted and self._policy == policy

    def _learn_slot(
        self, slot: Slot, cells: Sequence[int], history: LedgerHistory, is_asked: bool
    ) -> list[Smoothed]:
        records, answer, told = self._records(slot, cells, history)
        if not records:
            return []
        if self._judges_unit and self._judge_unit(records, slot, history.grid):
            records = [msgspec.structs.replace(record, mean=None) for record in records]
        day, over = self._when(slot)
        for memory in (self._memory, *([] if self._usual is None else [self._usual[0]])):
            memory.count(day, over, sum(record.samples for record in records))
        hours = (slot[1] - slot[0]) / HOUR_MS
        estimates = smooth_slot(
            records,
            self._memory,
            day,
            hours,
            self._hour(slot),
            self._max_kmh,
            self._software,
            history.grid,
            is_asked,
            None if self._is_doubted else told,
        )
        if self._shapes is not None and answer is not None and not self._is_doubted:
            self._shapes.learn(day, answer)
        if self._shapes is None or not estimates:
            return [msgspec.structs.replace(one, cdf_withheld="off") for one in estimates]
        of_hats = {record.release_id: max(1, record.plates) for record in records}
        plates = np.array([of_hats.get(one.release_id or "", 0) for one in estimates])
        return with_cdfs(estimates, plates, self._shapes.told(day))

    def _judge_unit(self, records: Sequence[Release], slot: Slot, grid: Grid) -> bool:
        """Whether these releases are not to be learnt, as their unit is in doubt. With the verdict
        all is forgotten that was learnt since the first evidence. A doubt lasts until there are
        records under another policy."""
        if records[0].policy != self._policy:
            self._forget_unit(records[0].policy)
        if self._is_doubted:
            return True
        memory = self._memory if self._usual is None else self._usual[0]
        released = released_hats(records, _hours(slot), grid)
        day = self._day(slot[0])
        # A storm of an hour, of which the city told, is not the usual of all the hours behind it.
        since = slot[0] if self._usual is None else min(slot[0], self._usual_ms)
        passed = _hours((since, slot[1]))
        usual = memory.predict(day, released.cells, released.prior, self._hour(slot), passed)
        self._evidence = self._evidence.more(evidence_of(usual, released, self._max_kmh))
        is_withheld = any(record.status == "withheld_unit" for record in records)
        self._is_doubted = self._evidence.is_enough or is_withheld
        if not is_withheld:
            self.doubt = self._doubted(slot, sum(record.status == "released" for record in records))
        if self._is_doubted and self._usual is not None:
            self._memory, self._shapes = self._usual
        if self._is_doubted or not self._evidence.is_any:
            self._usual = None
        elif self._usual is None:
            self._usual = deepcopy((self._memory, self._shapes))
            self._usual_ms = slot[0]
        return self._is_doubted

    def _doubted(self, slot: Slot, released: int) -> UnitDoubt | None:
        if not self._evidence.is_any:
            return None
        likely = likely_unit(self._evidence, self._unit)
        since = self._slots.iso(slot[0])
        if self.doubt is not None:
            since = self.doubt.since
            released = released + self.doubt.released
        return UnitDoubt(since, self._slots.iso(slot[1]), released, self._unit, likely)

    def _forget_unit(self, policy: str) -> None:
        """There is no doubt of the unit of the releases of a policy, so far."""
        self.doubt = None
        self._policy = policy
        self._is_doubted = False
        self._evidence = Evidence()
        self._usual = None
        self._usual_ms = 0

    def _when(self, slot: Slot) -> tuple[dt.date, float]:
        """The day on which a slot starts, and the part of it that is over when the slot ends."""
        first, last = self.midnights(slot)
        return self._day(slot[0]), min(1.0, (slot[1] - first) / (last - first))


class AddRemoveForecaster(SlotForecaster):
    """The same under "add-remove": from noised sums alone, of every cell of the domain.

    Sums of another domain are passed over: a new domain begins anew. So is a slot of which a HAT
    was withdrawn: its cells are of one draw, and what made one wrong is in the others.

    >>> from datetime import UTC
    >>> from udp_stream.ledgers.sqlite import MemoryLedger
    >>> from udp_stream.testing import SLOT_END, SLOT_START, some_rules
    >>> forecaster = AddRemoveForecaster(SlotGrid(3600, UTC), some_rules(), "udp-stream 1.0")
    >>> forecaster.forecast((SLOT_START, SLOT_END), LedgerHistory(MemoryLedger())).tolist()
    [18.0, 18.0]
    """

    def __init__(
        self, slots: SlotGrid, rules: AddRemoveRules, software: str, trial: bool = False
    ) -> None:
        super().__init__(slots, software)
        self.rules = rules
        self._trial = trial
        self._forget()

    def forecast(self, slot: Slot, history: LedgerHistory) -> Floats:
        """Forecast speed of each cell, km/h, after all earlier slots, which must be recorded by
        now."""
        self._learn(history, slot[0])
        return self._memory.forecast(*self._when(slot))

    def is_first(self, slot: Slot, history: LedgerHistory) -> bool:
        """Whether the slot lies in the first day that is learnt: a function of earlier records."""
        self._learn(history, slot[0])
        return self._memory.is_first(self._day(slot[0]))

    def morning(self, slot: Slot, history: LedgerHistory) -> Floats:
        """Forecast speed of each cell in the slot from earlier days alone, km/h."""
        self._learn(history, slot[0])
        day, hours = self._when(slot)
        by_hour = self._memory.morning(day)
        return np.asarray(by_hour[min(int(hours), len(by_hour) - 1)])

    def over_service(self, slot: Slot) -> Floats:
        """The mean of these over the day of a slot, km/h."""
        return self._memory.over_service(self._day(slot[0]))

    def _forget(self) -> None:
        of = self.rules
        sigma = self.rules.sigma / QUANTA_PER_KMH
        self._memory = AddRemoveMemory(
            of.cells, sigma, of.full, of.slot_hours, of.max_kmh, of.plates
        )
        self._shapes = SpreadMemory(city_bins(int(of.max_kmh * QUANTA_PER_KMH)).edges_kmh[1:])

    def _week(self, day: dt.date) -> KeptWeek | None:
        cells = tuple(self.rules.cells.tolist()) if not self._memory.is_first(day) else ()
        spread = self._shapes.kept(day)
        return KeptWeek(self._of, cells, packed(self._memory.week.sums), spread)

    def _restore(self, kept: KeptWeek, day: dt.date) -> None:
        if (kept.of, kept.cells) != (self._of, tuple(self.rules.cells.tolist())):
            raise ValueError(f"expected sums of {self._of}, got {kept.of}")
        self._memory.begin(day, kept.sums)
        self._shapes.begin(day, kept.spread)

    @property
    def _of(self) -> str:
        """The meaning of numbers in sums."""
        return f"{self.rules.full} {'plates' if self.rules.plates else 'weights'}"

    def _slots_since(self, history: LedgerHistory, since_ms: int) -> Mapping[Slot, Collection[int]]:
        return dict.fromkeys(history.sums_since(since_ms), ())

    def _learn_slot(
        self,
        slot: Slot,
        cells: Sequence[int],  # noqa: ARG002
        history: LedgerHistory,
        is_asked: bool,
    ) -> list[Smoothed]:
        of = self.rules
        sums = self._sums(slot, history)
        if sums is None:
            return []
        day, hours = self._when(slot)
        found = self._memory.learn(day, hours, sums.kmh, sums.asked.forecast_kmh, sums.sigma_kmh)
        if sums.city is not None:
            self._memory.learn_city(day, hours, *sums.city)
        self._learn_spread(slot, sums)
        self._learn_day(slot, history)
        if not is_asked:
            return []
        start, end = (self._slots.iso(ms) for ms in slot)
        hats = [Hat.of(cell, history.grid, start, end) for cell in of.cells.tolist()]
        estimates = [
            Smoothed(
                hat, value, (low, high), off,
                Guess(constant, guess, round(_mean_distance(abs(guess - value), off / MEAN_ABS_PER_SD), 3)), None,
                id_of(HAT, *slot, hat.cell), news, self._software, self._trial,
                cdf_withheld=None if of.spread else "off", **amount,
            )
            for hat, value, low, high, off, guess, news, amount, constant in zip(
                hats, *(_rounded(one) for one in (
                    found.value, found.low, found.high, found.expected_abs_error, found.guess, found.news)),
                self._amounts(found), [round(found.constant, 3)] * len(hats), strict=True,
            )
        ]  # fmt: skip
        if not of.spread:
            return estimates
        plates = np.rint(found.traffic / (STAY * of.slot_hours)).astype(np.int64)
        return with_cdfs(estimates, plates, self._shapes.told(day))

    def _remember_slot(
        self,
        slot: Slot,
        cells: Sequence[int],  # noqa: ARG002
        history: LedgerHistory,
    ) -> None:
        sums = self._sums(slot, history)
        if sums is None:
            return
        day, hours = self._when(slot)
        self._memory.remember(day, hours, sums.kmh, sums.asked.forecast_kmh, sums.sigma_kmh)
        if sums.city is not None:
            self._memory.remember_city(day, hours, *sums.city)
        self._learn_spread(slot, sums)
        self._learn_day(slot, history)

    def _learn_spread(self, slot: Slot, sums: NoisedSums) -> None:
        if sums.spread is not None:
            self._shapes.learn(self._day(slot[0]), *sums.spread)

    def _learn_day(self, slot: Slot, history: LedgerHistory) -> None:
        """The sums of the day, with its last slot; not of a day of which a HAT was withdrawn."""
        day = self.midnights(slot)
        if slot[1] < day[1]:
            return
        sums = history.sums(day, DAY_SUMS)
        if sums is None or not self._is_ours(sums.asked):
            return
        length_ms = slot[1] - slot[0]
        slots = ((ms, ms + length_ms) for ms in range(day[0], day[1], length_ms))
        cells = self.rules.cells.tolist()
        if self._withdrawals and any(history.withdrawn(one, cells) for one in slots):
            return
        self._memory.learn_day(self._day(slot[0]), *sums.day, sums.asked.forecast_kmh)

    def _sums(self, slot: Slot, history: LedgerHistory) -> NoisedSums | None:
        """Those that are to be learnt."""
        sums = history.sums(slot)
        if sums is None or not self._is_ours(sums.asked):
            return None
        if self._withdrawals and history.withdrawn(slot, self.rules.cells.tolist()):
            return None
        return sums

    def _is_ours(self, asked: SumsQuery) -> bool:
        ours = self.rules
        same = (asked.full, asked.plates) == (ours.full, ours.plates)
        return same and np.array_equal(asked.domain, ours.cells)

    def _amounts(self, found: AddRemoveEstimates) -> list[dict[str, Any]]:
        columns = zip(
            *map(_rounded, (found.traffic, found.traffic_low, found.traffic_high)), strict=True
        )
        if self.rules.plates:
            return [{"plates": Plates(value, (low, high))} for value, low, high in columns]
        return [{"traffic": Traffic(value, (low, high))} for value, low, high in columns]

    def _when(self, slot: Slot) -> tuple[dt.date, float]:
        """The day on which a slot starts, and the hours of it that are gone then."""
        return self._day(slot[0]), (slot[0] - self.midnights(slot)[0]) / HOUR_MS


def _rounded(values: Floats) -> list[float]:
    found: list[float] = np.round(values, 3).tolist()
    return found
