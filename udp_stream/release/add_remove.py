"""The road of a closed slot under "add-remove": charge, draw once for all cells, record, mark,
publish, inform.

1. **Charge.** Every plate is asked the same (`SumsQuery`: the domain, forecasts, the noise). It
   pays the squares of its own vector, at most what it may spend in the slot. The ledger keeps the
   first question and the first charges.
2. **Draw.** Each vector is shortened to its charge: a plate that was charged nothing gives nothing.
   So a run that finishes the slot of one that died, also from other pings, gives away no more than
   was charged. The noised sums are recorded under one id, `presence:START-SECONDS`, the first ones
   win, and no reader waits for them.
3. **Record.** Each cell of the domain has a record that follows from the sums. Then mark, publish,
   inform, as ever.

With a day's last slot plates are charged for their whole day, too, and its sums are drawn, in the
same way, under `presence-day:START-SECONDS`: before the slot's mark, which knows them. What plates
did in earlier slots is kept for that (`release/plate_day.py`).

Charges, factors, balances and who was admitted are secret, and stay in the ledger. Ids, their
number and order follow from the domain and the slot: they are the same with any plate, without it,
and without pings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np

from udp_stream.base.arrays import Cells, Floats, Integers
from udp_stream.base.errors import UdpStreamError
from udp_stream.base.units import QUANTA_PER_KMH
from udp_stream.ledger.ids import DAY_SUMS, HAT, NOISED_SUMS, id_of
from udp_stream.ledger.port import Admission, Ledger
from udp_stream.ledger.rules import budget_balances
from udp_stream.mechanisms.add_remove import (
    Entries,
    PlateQuery,
    PlateRows,
    allowances,
    entries,
    noised,
    of_day,
    shortened,
)
from udp_stream.mechanisms.cdf import city_bins
from udp_stream.mechanisms.noise import MEASURES
from udp_stream.planning.add_remove import AddRemoveRules
from udp_stream.planning.policy import SlotInPeriod, over_time
from udp_stream.planning.promise import OF_A_SWAP, accounting_of
from udp_stream.planning.slot import SlotPlan
from udp_stream.release.charge import (
    ReleaseContext,
    another_relation,
    note_requested,
    require_one_promise,
    require_relation,
    require_unmoved,
    terms_from,
)
from udp_stream.release.forecaster import AddRemoveForecaster, LedgerHistory, Slot
from udp_stream.release.pipeline import RecordedSlot, draw_once, record_hats
from udp_stream.release.plate_day import PlateDay, PlateEntries
from udp_stream.release.record import Hat, Noised, Privacy, Release, hat_ids
from udp_stream.release.sums import NoisedSums, SumsQuery
from udp_stream.windows.grid import Grid
from udp_stream.windows.tables import SlotCounts, SlotValues

MEASURE = "zcdp"
"""Noise is Gaussian; other accountings are refused with the setting."""

NOTHING = Entries(*np.zeros((4, 0), np.int64))


def with_sums_forecaster(context: ReleaseContext) -> ReleaseContext:
    """The same with a new forecaster of the domain's cells."""
    rules = AddRemoveRules.of(context.policy, context.domain)
    slots = context.calendar.slots
    forecaster = AddRemoveForecaster(slots, rules, context.software, context.trial)
    return replace(context, forecaster=forecaster, plate_day=PlateDay())


def plan_sums(counts: SlotCounts, context: ReleaseContext, ledger: Ledger) -> SlotPlan:  # noqa: ARG001
    """An empty plan: charges are secret. The forecaster sees the slot."""
    if context.forecaster is not None:
        context.forecaster.saw(counts)
    return SlotPlan.empty(counts)


def record_add_remove_slot(
    counts: SlotCounts, values: SlotValues, context: ReleaseContext, ledger: Ledger
) -> RecordedSlot:
    """Charge the slot's plates, draw its sums, and record each cell, as far as that is not done
    yet.

    PrivacyRefused, before a charge and again before a draw, if the budget period overlaps others.
    """
    slot = SumsSlot(counts, values, context, ledger)
    slot.forecaster.saw(counts)
    ids = _ids_of(slot.rules.cells, counts, context.policy.grid)
    require_relation("add-remove", ids, ledger.recorded(ids))
    sums = slot.sums_once()
    day = slot.kept_for_day()
    if day is not None and counts.end_ms >= day[1]:
        slot.draw_day_once(day)
    ids = _ids_of(sums.asked.domain, counts, context.policy.grid)

    def derive(todo: Sequence[int]) -> list[bytes]:
        free = [Admission.of_nobody(ids[i]) for i in todo]
        verdicts = ledger.admit(slot.in_period.period, context.policy.budget_nano, (), free)
        for one, verdict in zip(free, verdicts, strict=True):
            if verdict.terms:
                raise another_relation(one.release_id)
        return records_of(sums, counts.slot, context, todo)

    return record_hats(ids, derive, "add-remove", ledger)


def _ids_of(domain: Cells, counts: SlotCounts, grid: Grid) -> list[str]:
    """The id of each cell's release, with pings or without."""
    return hat_ids(domain.tolist(), counts.slot, grid)


class SumsSlot(NamedTuple):
    """A closed slot whose plates are asked for sums, with what that takes. Secret."""

    counts: SlotCounts
    values: SlotValues
    context: ReleaseContext
    ledger: Ledger

    @property
    def forecaster(self) -> AddRemoveForecaster:
        forecaster = self.context.forecaster
        if not isinstance(forecaster, AddRemoveForecaster):
            raise UdpStreamError("expected a context of add-remove, with its forecaster")
        return forecaster

    @property
    def rules(self) -> AddRemoveRules:
        return self.forecaster.rules

    @property
    def history(self) -> LedgerHistory:
        return LedgerHistory(self.ledger, self.context.policy.grid)

    @property
    def in_period(self) -> SlotInPeriod:
        return self.context.calendar.slot_in_period(self.counts.start_ms)

    def rows(self, domain: Cells, max_speed: int = 0) -> PlateRows:
        """As `rows_in`, of speeds up to that of the policy."""
        clamped = self.values.clamped(self.context.policy.max_speed)
        return rows_in(domain, self.counts, clamped, max_speed)

    def sums_once(self) -> NoisedSums:
        """The noised sums of the slot as the ledger holds them."""
        slot = self.counts.slot
        name = id_of(NOISED_SUMS, *slot)

        def draw(_: object) -> list[bytes]:
            rules = self.rules
            history = self.history
            forecast = _quanta(self.forecaster.forecast(slot, history))
            is_first = self.forecaster.is_first(slot, history)
            in_period = self.in_period
            self.forecaster.keep_week(slot, in_period.period, history, self.ledger)
            _, slots_left = in_period.of_day
            for_day = 0 if is_first else rules.day_nano
            asked = PlatesAsked(
                self.counts.plates,
                lambda of: entries(self.rows(of.domain, of.max_speed), of.query),
                lambda left: allowances(left - for_day, slots_left + 1, rules.active),
            )
            return [_drawn(name, rules.query(forecast, is_first=is_first), asked, self)]

        (payload,) = draw_once(self.ledger, [name], draw).payloads
        self.ledger.published([name])
        return NoisedSums.of_ledger(name, payload)

    def kept_for_day(self) -> Slot | None:
        """Keep the slot's entries for the sums of its day, which is returned; none where there are
        no such sums, as on the first day that is learnt."""
        rules = self.rules
        slot = self.counts.slot
        history = self.history
        kept = self.context.plate_day
        if not rules.day_sigma or self.forecaster.is_first(slot, history) or kept is None:
            return None
        # A day's sums are paid in the period of all of its pings.
        day = self.forecaster.midnights(slot)
        if self.context.calendar.slot_in_period(day[0]).period != self.in_period.period:
            return None
        forecast = _quanta(self.forecaster.morning(slot, history))
        vectors = entries(self.rows(rules.cells), PlateQuery(forecast, rules.full, rules.day_sigma))
        of = f"{rules.digest} {rules.full}"
        kept.add(day, of, slot[0], self.counts.plates, vectors, rules.cells.size)
        # Entries of a later day are of other pings, and maybe of another budget.
        return day if kept.kept.day == day else None

    def draw_day_once(self, day: Slot) -> None:
        """Draw the noised sums of the day whose last slot this is, if the ledger has none."""
        name = id_of(DAY_SUMS, *day)

        def draw(_: object) -> list[bytes]:
            rules = self.rules
            mean = _quanta(self.forecaster.over_service(self.counts.slot))
            held = self.context.plate_day
            kept = PlateEntries() if held is None else held.kept

            def vectors_of(asked: SumsQuery) -> Entries:
                is_ours = np.array_equal(asked.domain, rules.cells)
                return of_day(kept.vectors if is_ours else NOTHING, max(1, rules.cells.size))

            asked = PlatesAsked(kept.plates, vectors_of, lambda left: left)
            return [_drawn(name, PlateQuery(mean, rules.full, rules.day_sigma), asked, self)]

        draw_once(self.ledger, [name], draw)
        self.ledger.published([name])


def _quanta(kmh: Floats) -> Integers:
    return np.maximum(np.rint(kmh * QUANTA_PER_KMH).astype(np.int64), 0)


class PlatesAsked(NamedTuple):
    """The plates that answer a query: their vectors, and the most that each may be charged of what
    it may still spend by the end of the day. Secret."""

    plates: Sequence[bytes]
    vectors: Callable[[SumsQuery], Entries]
    allowed: Callable[[Integers], Integers]


def _drawn(name: str, query: PlateQuery, plates: PlatesAsked, slot: SumsSlot) -> bytes:
    """Charge, then draw: the record of the noised sums."""
    policy = slot.context.policy
    first = SumsQuery.of(slot.rules.cells, query, policy.period, policy.budget_nano)
    asked, vectors = _charge(name, first, plates, slot)
    ((_, bits),) = slot.context.entropy.streams([name])
    sums = noised(vectors, asked.query.columns, asked.query, bits)
    return NoisedSums.of(asked, sums).encode()


def _charge(
    name: str, asked: SumsQuery, of: PlatesAsked, slot: SumsSlot
) -> tuple[SumsQuery, Entries]:
    """Charge the plates, or learn what they were charged: the first question, and the vectors that
    the charges pay for. Secret."""
    plates = of.plates
    context = slot.context
    ledger = slot.ledger
    in_period = slot.in_period
    period = in_period.period
    budget = context.policy.budget_nano
    check = partial(require_one_promise, period, budget, context.calendar, ledger, ())
    check()
    require_unmoved(period, context.policy.grid, ledger, ledger.meta())
    note_requested(period, ledger)
    context.before_charge()
    vectors = of.vectors(asked)
    charged = budget_balances(ledger, period, plates).charged
    left = budget * (in_period.day + 1) // context.policy.days - charged
    charges = np.minimum(vectors.charges(len(plates), asked.query), of.allowed(left))
    charges = np.maximum(charges, 0)
    payers = np.flatnonzero(charges)
    everyone = np.arange(len(plates))
    # A repeat, in the same call, tells what is remembered of every plate: of a slot that was
    # charged before, balances have these charges in them, and some plates may not be asked again.
    both = [
        Admission(name, payers, charges[payers], 0, msgspec.json.encode(asked)),
        Admission(name, everyone, np.ones_like(everyone), 0, b""),
    ]
    _, verdict = ledger.admit(period, budget, plates, both)
    check()  # of two runs that begin at once, at least one sees the other here, before anything is drawn
    first = terms_from(verdict.terms, name, SumsQuery)
    if first != asked:
        vectors = of.vectors(first)
    return first, shortened(vectors, verdict.charged, first.query)


def rows_in(domain: Cells, counts: SlotCounts, values: SlotValues, max_speed: int = 0) -> PlateRows:
    """The rows of a slot in the cells of the domain (ascending); others leave no trace. Bins are
    those of speeds up to `max_speed`, in quanta; 0 for none.

    >>> from udp_stream.testing import two_hats
    >>> counts, values = two_hats()
    >>> rows = rows_in(counts.cells[:1], counts, values)
    >>> rows.plate.tolist(), rows.pings.tolist(), (rows.speed // 4096).tolist()
    ([0, 1, 2, 3], [1, 2, 2, 1], [10, 50, 90, 60])
    """
    at = np.minimum(np.searchsorted(domain, counts.cells), max(domain.size - 1, 0))
    is_in = domain[at] == counts.cells if domain.size else np.zeros(counts.cells.size, bool)
    rows = np.diff(counts.hat_rows)
    cell = np.repeat(at, rows)
    inside = np.repeat(is_in, rows)
    total = np.append(0, np.cumsum(values.speed))
    speed = np.diff(total[values.starts])
    bins = _bins_of(values, max_speed)[inside] if max_speed else None
    return PlateRows(counts.plate[inside], cell[inside], counts.count[inside], speed[inside], bins)


def _bins_of(values: SlotValues, max_speed: int) -> Integers:
    """The samples of each row in each bin of speed."""
    bins = city_bins(max_speed)
    sizes = np.diff(values.starts)
    speed = values.speed[values.starts[0] : values.starts[-1]]
    found = np.zeros((sizes.size, bins.count), np.int64)
    np.add.at(found, (np.repeat(np.arange(sizes.size), sizes), bins.bin_of(speed)), 1)
    return found


def records_of(
    sums: NoisedSums,
    slot: Slot,
    context: ReleaseContext,
    numbers: Sequence[int],
) -> list[bytes]:
    """The records of the domain's cells with these numbers."""
    asked = sums.asked
    policy = context.policy
    iso = context.calendar.slots.iso
    measure = MEASURES[MEASURE]
    fingerprint = policy.fingerprint()
    start, end = (iso(ms) for ms in slot)
    privacy = Privacy(
        unit="license_plate",
        neighbours="add-remove",
        accounting=accounting_of(MEASURE, policy.accounting),
        period=asked.period,
        caveats=context.caveats,
        **measure.privacy(asked.budget_nano, asked.budget_nano, policy.delta),
        **over_time(MEASURE, asked.period, asked.budget_nano, policy.delta),
        holds_for="period",
        speeds=policy.speed_from,
        swap_epsilon=measure.implied_epsilon(OF_A_SWAP * asked.budget_nano, policy.delta),
    )
    residual = sums.kmh[0].tolist()
    amounts = sums.amounts.tolist()
    forecast = asked.forecast_kmh.tolist()
    which = "plates" if asked.plates else "weight"
    sd = round(asked.sigma / QUANTA_PER_KMH, 3)
    cells = asked.domain
    found = []
    for number in numbers:
        cell = int(cells[number])
        told = {which: round(amounts[number], 3)}
        hat = Hat.of(cell, policy.grid, start, end)
        record = Release(
            release_id=id_of(HAT, *slot, hat.cell),
            status="released",
            hat=hat,
            mean=None,
            variance=None,
            cdf=None,
            privacy=privacy,
            policy=fingerprint,
            software=context.software,
            trial=context.trial,
            noised=Noised(round(residual[number], 3), sd, round(forecast[number], 3), **told),
        )
        found.append(Release.encode(record))
    return found
