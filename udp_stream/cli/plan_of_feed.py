"""`plan FILE` and `replay --dry-run`: the likely errors of releases of a file. Nothing is charged
or written.

Both print rows of a single table. A row is a rehearsal (`release/rehearsal.py`): invented speeds on
the file's counts, released on a ledger that is forgotten. The file's speeds decide on refusals and
warnings alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from udp_stream.base.arrays import Flags, Floats, Integers
from udp_stream.base.errors import ConfigError, UsageError
from udp_stream.base.logs import counted
from udp_stream.base.units import NANO, duration_name
from udp_stream.cli import evidence
from udp_stream.cli.commands.init import samples_of, with_unread
from udp_stream.cli.evidence import TABLE, findings, joined
from udp_stream.cli.preflight import (
    JOINED_MESSAGES,
    checked_messages,
    look_by,
    named,
    print_warning,
    require_files,
    require_fit_files,
)
from udp_stream.cli.progress import ReadingProgress, console, printer, stepwise
from udp_stream.cli.report import SOFTWARE, print_hours, print_rows
from udp_stream.ledger.port import Entropy
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.pings.data_quality import QualityWarning
from udp_stream.pings.decode import Pings, Reason
from udp_stream.planning.policy import DAY_S
from udp_stream.release.charge import ReleaseContext
from udp_stream.release.rehearsal import RehearsalResult, rehearse
from udp_stream.settings import Settings
from udp_stream.settings.limits import seconds_of
from udp_stream.settings.rules import check
from udp_stream.sources.files import as_far_as_whole
from udp_stream.sources.recordings import open_sources
from udp_stream.windows.clocks import AgreementClock, Frame
from udp_stream.windows.grid import NOWHERE, Grid
from udp_stream.windows.slots import slots_of
from udp_stream.windows.tables import SlotCounts

SLOTS = "30m", "1h", "3h", "6h"
"""Slots that are compared with the configured slot, at the configured resolution and its
neighbours."""

WORTH = 0.8
"""The largest part of the better guess's error in a row to start with."""

SERVED = 0.5
"""The least share of pings in HATs with a mean in a row to start with."""

LONGER = 1.25
"""A slot so many times as long as the file is not judged."""

HATS_MIN = 5
"""Fewer HATs are not judged: a guess for all errs next to nothing."""

ABOUT = 0.95, 1.05

SAMPLE_PINGS = 200_000
SAMPLE_HATS = 10_000
"""Limits beyond which a sample is rehearsed: whole slots that hold at least as many pings, or HATs."""


@dataclass(frozen=True, slots=True)
class Positions:
    """Where and when plates pinged; `plate` numbers them."""

    plate: Integers
    plates: int
    time_ms: Integers
    lat: Floats
    lon: Floats
    by_grid: dict[Grid, NDArray[np.uint64]] = field(default_factory=dict)

    def cells(self, grid: Grid) -> NDArray[np.uint64]:
        """The cell of each ping, computed once."""
        if grid not in self.by_grid:
            self.by_grid[grid] = grid.cells_of(self.lat, self.lon)
        return self.by_grid[grid]


class Row(NamedTuple):
    """A grid and a slot. Half of the pings lie in HATs of at least `plates`; the median plate
    visits `visits` HATs; `is_longer`: the slot is longer than the file; `rehearsed`: share of
    pings, 1 without a sample."""

    grid: Grid
    slot: str
    hats: int
    plates: int
    visits: int
    expected: RehearsalResult
    is_longer: bool = False
    rehearsed: float = 1.0

    @property
    def fineness(self) -> float:
        return float(seconds_of("hat.slot", self.slot) / 7.0**self.grid.fineness)


class FeedPlan(NamedTuple):
    """All rows, why some are left out, and of which pings."""

    rows: list[Row]
    left_out: Mapping[str, str]
    positions: Positions


def plan_of_feed(files: Sequence[str], settings: Settings, entropy: Entropy) -> FeedPlan:
    """Rehearse every grid and slot; ConfigError if none can be. `entropy` is for the noise of
    rehearsals."""
    require_files(files)
    require_fit_files(files, settings, warn=lambda _: None)
    public = [row for row in TABLE if row.section != "speed"]
    positions, _, odd = _read(files, settings, public)
    for sentence in odd:
        print_warning(sentence)
    rows = []
    left_out = {}
    for candidate in stepwise("rehearsing", list(_candidates(settings))):
        try:
            check(candidate)
            rows.append(row_of(positions, candidate, entropy, SAMPLE_PINGS))
        except ConfigError as error:
            left_out[f"{candidate.grid}, {candidate.hat.slot}"] = str(error)
    if not rows:
        raise ConfigError(next(iter(left_out.values())))
    return FeedPlan(rows, left_out, positions)


def numbered(numbers: dict[str, int], pings: Pings, kept: Flags) -> Integers:
    """The number of each kept ping's plate; a new plate gets the next number."""
    there, place = np.unique(pings.plate[kept], return_inverse=True)
    ours = [numbers.setdefault(pings.plates[at], len(numbers)) for at in there.tolist()]
    return np.array(ours, dtype=np.int64)[place]


def row_of(
    positions: Positions,
    settings: Settings,
    entropy: Entropy,
    sample_pings: float = inf,
    stepwise: Callable[[Sequence[int]], Iterable[int]] = iter,
) -> Row:
    """Tabulate, and rehearse all slots or a sample that holds so many pings; ConfigError if no HAT
    could be charged so little. `stepwise` iterates over rehearsed cities."""
    settings = even_day(settings)
    slots = list(_slots(positions, settings))
    is_sampled = positions.time_ms.size > sample_pings
    chosen = sample_of(slots, settings, sample_pings) if is_sampled else slots
    samples = np.concatenate(
        [np.add.reduceat(counts.count, counts.hat_rows[:-1]) for counts in slots]
    )
    plates = np.concatenate([np.diff(counts.hat_rows) for counts in slots])
    visits = np.bincount(
        np.concatenate([counts.plate for counts in slots]), minlength=positions.plates
    )
    order = np.argsort(-plates, kind="stable")
    half = order[int(np.searchsorted(np.cumsum(samples[order]), samples.sum() / 2))]
    context = ReleaseContext(
        settings.policy, settings.calendar, entropy, SOFTWARE, domain=settings.domain
    )
    expected = rehearse(slots, context, MemoryLedger, chosen if is_sampled else None, stepwise)
    first, last = np.quantile(
        positions.time_ms, (0.001, 0.999)
    )  # without the few whose clocks are wrong
    is_longer = seconds_of("hat.slot", settings.hat.slot) > LONGER * float(last - first) / 1000
    rehearsed = sum(int(counts.count.sum()) for counts in chosen) / int(samples.sum())
    return Row(
        settings.grid,
        settings.hat.slot,
        int(plates.size),
        int(plates[half]),
        int(np.median(visits)),
        expected,
        is_longer,
        rehearsed,
    )


def even_day(settings: Settings) -> Settings:
    """The settings with an even day's part of the budget of several days: where in its period a
    file's day lies says nothing of other days."""
    budget = settings.budget
    days = settings.policy.days
    if days == 1:
        return settings
    replace = msgspec.structs.replace
    nano = budget.nano // days
    measure = budget.accounted.measure
    day = (
        replace(budget, epsilon=nano / NANO)
        if measure.name == "pure"
        else replace(budget, accounting="zcdp", epsilon=None, rho=nano / NANO)
    )
    length = duration_name(max(DAY_S, settings.policy.slot_seconds))
    return replace(settings, budget=replace(day, period=length))


def sample_of(
    slots: Sequence[SlotCounts], settings: Settings, pings: float
) -> Sequence[SlotCounts]:
    """Slots, in their order, that hold at least so many pings, or `SAMPLE_HATS`: of budget periods
    that are drawn, the same every time. A period is taken from its first slot on, as later slots
    depend on what earlier slots have spent and told."""
    hats = SAMPLE_HATS
    periods = dict[str, list[SlotCounts]]()
    for counts in slots:
        periods.setdefault(settings.calendar.slot_in_period(counts.start_ms).period, []).append(
            counts
        )
    chosen = list[SlotCounts]()
    for number in np.random.default_rng(0).permutation(len(periods)).tolist():
        for counts in list(periods.values())[number]:
            if pings > 0 and hats > 0:
                chosen.append(counts)
                pings -= int(counts.count.sum())
                hats -= counts.cells.size
    return sorted(chosen, key=lambda counts: counts.start_ms)


def _slots(positions: Positions, settings: Settings) -> Iterator[SlotCounts]:
    cells = positions.cells(settings.grid)
    inside = cells != NOWHERE
    plates = [b"%032d" % number for number in range(positions.plates)]
    unread = np.zeros(np.count_nonzero(inside), dtype=np.int32)
    rules = settings.movement_rules
    where = positions.lat[inside], positions.lon[inside]
    moving = (*where, rules, settings.grid)
    plate = positions.plate[inside]
    time_ms = positions.time_ms[inside]
    grid = settings.calendar.slots
    found = slots_of(plates, plate, time_ms, cells[inside], unread, grid, moving)
    return (counts for counts, _ in found)


def _candidates(settings: Settings) -> Iterator[Settings]:
    replace = msgspec.structs.replace
    slots = sorted({*SLOTS, settings.hat.slot}, key=lambda slot: seconds_of("hat.slot", slot))
    for keys in settings.grid.alternatives():
        for slot in slots:
            yield replace(settings, hat=replace(settings.hat, **keys, slot=slot))


def start_of(rows: list[Row]) -> tuple[Row | None, str]:
    """The row to start with, and why; none if the file is too short for every row."""
    rows = [row for row in rows if not row.is_longer and row.hats >= HATS_MIN]
    if not rows:
        return (
            None,
            "no row can be judged: the file is too short. Record some hours, and plan again",
        )
    finest = sorted(rows, key=lambda row: row.fineness)
    for row in finest:
        if row.expected.over_guess <= WORTH and row.expected.served >= SERVED:
            why = f"with at least {SERVED:.0%} of pings in HATs with a mean"
            return (
                row,
                f"the finest that errs by at most {WORTH:.0%} of what the better guess errs by, {why}",
            )
    best = min(rows, key=lambda row: row.expected.over_guess)
    nearest = "with enough pings in HATs with a mean, and this one comes nearest"
    return best, f"none errs by at most {WORTH:.0%} of what the better guess errs by, {nearest}"


def verdict(row: Row) -> str:
    """Whether the release is worth its cost: the guesses are free."""
    expected = row.expected
    if row.is_longer:
        return "the file is shorter than this slot"
    if row.hats < HATS_MIN:
        return "too few HATs to compare"
    if expected.error > expected.constant * ABOUT[1]:
        return "worse than the baseline guess"
    if expected.over_guess < ABOUT[0]:
        return "better than both guesses"
    return "about as good as a guess"


def _print_rows(
    rows: Sequence[Row], positions: Positions, settings: Settings, start: Row | None = None
) -> Console:
    out = printer(width=160)
    grid = settings.calendar.slots
    first, last = (
        grid.iso(int(time)) for time in (positions.time_ms.min(), positions.time_ms.max())
    )
    out.print(
        f"{counted(positions.time_ms.size, 'ping')} of {counted(positions.plates, 'plate')}, {first} to {last}; "
        f"{settings.policy.amount} per plate and {settings.policy.period}. Errors in km/h."
    )
    kinds = {row.grid.kind for row in rows}
    sizes = " or ".join(sorted(kinds)), "slot", "HATs", "plates/HAT", "HATs/plate", "served"
    names = (*sizes, "expected error", "baseline guess", "+ counts", "verdict")
    cells = []
    for row in rows:
        expected = row.expected
        errors = (f"{error:.2f}" for error in (expected.error, expected.constant, expected.counts))
        sizes = (
            row.grid.size if len(kinds) == 1 else str(row.grid),
            row.slot,
            f"{row.hats:,}",
            str(row.plates),
            str(row.visits),
            f"{expected.served:.0%}",
        )
        mark = verdict(row) + ("  <- start here" if row is start else "")
        cells.append(list(zip(names, (*sizes, *errors, mark), strict=True)))
    print_rows(out, cells)
    return out


def print_feed(plan: FeedPlan, settings: Settings) -> Console:
    """The table, the row to start with, and the meaning of its figures; gives where they were
    printed."""
    kind = settings.grid.kind
    start, why = start_of([row for row in plan.rows if row.grid.kind == kind])
    out = _print_rows(plan.rows, plan.positions, settings, start)
    advice = "here"
    if start:
        keys = (start.grid.keys | {"slot": start.slot}).items()
        advice = f"with {' and '.join(f'hat.{key} = {value!r}' for key, value in keys)}"
    out.print(
        f"Start {advice}: {why}.\n"
        "plates/HAT: half of the pings lie in HATs of at least this many plates. HATs/plate: of the median plate, in "
        "this file. served: the share of pings in HATs with a mean.\n"
        "expected error: of the best estimate of each HAT's mean speed, withheld HATs too, weighed by pings. It was "
        "measured on invented speeds, not on the file's, and nothing was charged. On the feeds that we measured, nine "
        "rows of ten were within 30 %. Invented workdays have rush hours around 8 and 18, which slow cities by 23 to "
        "47 %.\n"
        "baseline guess, + counts: errors of two guesses that need no release: the city's mean for every HAT, and a "
        "line in its pings per plate, both the best there are."
    )
    most, least = (choose(row.rehearsed for row in plan.rows) for choose in (max, min))
    if least < 1:
        out.print(
            f"A sample: the file has more than {SAMPLE_PINGS:,} pings, and rows rehearse {least:.0%} to {most:.0%} of "
            "them, in whole slots from the beginning of periods on. Served and expected errors are of the sample."
        )
    if settings.policy.days > 1:
        out.print(
            f"Rows rehearse an even day: one of {settings.policy.days} of {settings.policy.promise}."
        )
    if start is not None:
        print_hours(out, start.expected.by_slot, settings.calendar.slots)
    for text in settings.grid.warnings():
        out.print(text)
    for name, reason in plan.left_out.items():
        out.print(f"Left out: {name}: {reason}.")
    return out


def dry_run(names: Sequence[str], settings: Settings, entropy: Entropy) -> None:
    """`replay --dry-run`: read the files, warn, and tell what to expect. The output is not private.

    UsageError if no ping is accepted.
    """
    require_fit_files(names, settings, warn=lambda _: None)
    positions, refused, odd = _read(names, settings)
    row = row_of(positions, settings, entropy, stepwise=partial(stepwise, "rehearsing"))
    out = _print_rows([row], positions, settings)
    print_hours(out, row.expected.by_slot, settings.calendar.slots)
    for reason, count in (+refused).most_common():
        out.print(f"{count:,} refused: {reason}")
    for sentence in odd:
        out.print(f"warning: {sentence}", markup=False, soft_wrap=True)
    out.print(
        "expected error: as `plan` FILE tells it, but for the noise, which is new in each dry run and the same in each "
        "plan, and for the slots, of which `plan` may rehearse a sample. So the two differ by some 5 %."
    )
    said = "Dry run: nothing was charged, drawn or written. It looked at speeds without noise, so keep it to yourself."
    console().print(said)


def _read(
    names: Sequence[str], settings: Settings, rows: Iterable[evidence.Row] = TABLE
) -> tuple[Positions, Counter[str], list[str]]:
    """Positions, refusals by reason, and what these rows tell of the beginning of each source.
    UsageError if no ping is accepted."""
    numbers = dict[str, int]()
    columns = list[tuple[NDArray[np.generic], ...]]()
    refused: Counter[str] = Counter()
    progress = ReadingProgress(names)
    clock = AgreementClock(settings.window_rules)  # a single log and clock
    said = list[str]()
    odd = list[str]()
    with ExitStack() as stack:
        opened = open_sources(
            names, settings.speed.unit, progress.of, said.append, form=settings.form
        )
        sources = [(name, stack.enter_context(closing(source))) for name, source in opened]
        stack.enter_context(progress)
        for name, source in sources:
            frames = checked_messages(source, name, settings, charges=False)
            for at, messages in enumerate(
                joined(as_far_as_whole(frames, print_warning), JOINED_MESSAGES)
            ):
                look = look_by(settings, messages, source.format)
                if at == 0:
                    odd += [
                        sentence
                        for _, sentence in findings(with_unread(look, samples_of([name])), rows)
                    ]
                pings = look.pings
                refused[str(Reason.OTHER_EVENT)] += look.others
                refused.update(str(refusal.reason) for refusal, _ in look.refused)
                if not len(pings):
                    continue
                seen = clock.observe(
                    Frame(
                        pings, np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.int64)
                    )
                )
                refused[str(Reason.TIME_IN_FUTURE)] += int(seen.ahead.sum())
                refused[str(Reason.TIME_ROLLED_OVER)] += int(seen.rolled_over.sum())
                kept = ~(seen.ahead | seen.rolled_over)
                where = (column[kept] for column in (pings.time_ms, pings.lat, pings.lon))
                columns.append((numbered(numbers, pings, kept), *where))
    if not columns:
        raise UsageError(
            f"{named(names)}: no ping was accepted. `udp-stream replay --trial` says why"
        )
    odd += [sentence for sentence in said if isinstance(sentence, QualityWarning)]
    plate, time_ms, lat, lon = (np.concatenate(column) for column in zip(*columns, strict=True))
    return Positions(plate, len(numbers), time_ms, lat, lon), refused, [*dict.fromkeys(odd)]
