"""The road of "add-remove" over a store that dies at each call, or has a rival before each: memory,
SQLite, Redis."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import permutations, product
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from tests.contract.pipeline import Opening
from tests.contract.queries import ask
from tests.failing import Died, DyingLedger, RivalledLedger
from tests.unit.test_flow import START, a_context, slot
from udp_stream.base.errors import PrivacyRefused
from udp_stream.ledger.ids import DAY_SUMS, NOISED_SUMS, USUAL_WEEK, id_of, kind_of
from udp_stream.ledger.port import Entry, Ledger
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.mechanisms import add_remove as mechanism
from udp_stream.release import add_remove
from udp_stream.release.charge import ReleaseContext
from udp_stream.release.promise import PROMISES, release_slot
from udp_stream.release.sums import NoisedSums
from udp_stream.settings import load
from udp_stream.testing import SeededEntropy, a_moment
from udp_stream.windows.positions import Moment
from udp_stream.windows.tables import SlotCounts, SlotPings, SlotValues, tabulate

DOMAIN = Path(__file__).parents[1] / "domain.cells"
CELLS = 6
HOUR = 3_600_000
DAY = 24 * HOUR
LAST = START + 13 * HOUR
"""The last slot of the day."""
FLAGS = (
    "privacy.neighbours=add-remove", f"hat.domain={DOMAIN}", "pings.interval=10s", "hat.resolution=7", "hat.slot=1h",
)  # fmt: skip

Tables = tuple[SlotCounts, SlotValues]
Given = Callable[[], dict[bytes, list[int]]]


def context_of(*flags: str, seed: int = 1) -> ReleaseContext:
    settings = load(None, (*FLAGS, *flags), {})
    given = settings.policy, settings.calendar, SeededEntropy(seed), "udp-stream test"
    return PROMISES["add-remove"].with_forecaster(ReleaseContext(*given, domain=settings.domain))


def empty(start: int = START) -> Tables:
    counts, values = slot(start=start)
    nothing = SlotPings(
        counts.start_ms,
        counts.end_ms,
        (),
        *(values.speed[:0].astype(t) for t in ("u4", "u4", "u8", "i4")),
    )
    return tabulate(nothing)


def run(
    ledger: Ledger,
    context: ReleaseContext,
    contents: Tables,
    dies_at: int | None = None,
    log: list[str] | None = None,
    answered: bool = False,
) -> dict[str, bytes]:
    """Drive the road over a ledger that may die at its n-th call; what was published, also of one
    that died."""
    dying, published = DyingLedger(ledger, dies_at, answered=answered), dict[str, bytes]()
    dying.calls = [] if log is None else log

    def publish(recorded) -> None:
        is_last = len(dying.calls) == dies_at
        if is_last and not answered:
            raise Died("before publishing")
        dying.calls.append("(publish)")
        published.update(recorded.payloads)
        if is_last:
            raise Died("after publishing")

    try:
        release_slot(*contents, context, dying, publish)
    except Died:
        raise Died(published) from None
    return published


@contextmanager
def watched(contents: Callable[[], Tables]) -> Iterator[Counter[tuple[int, bytes]]]:
    """The most that a draw gave away of each plate, in nano-rho, by the noise that tells a slot's
    draw from a day's."""
    most = Counter[tuple[int, bytes]]()

    def noised(vectors, cells, query, bits):
        plates = contents()[0].plates
        for plate, nano in zip(plates, vectors.charges(len(plates), query).tolist(), strict=True):
            most[query.sigma, plate] = max(most[query.sigma, plate], nano)
        return mechanism.noised(vectors, cells, query, bits)

    with patch.object(add_remove, "noised", noised):
        yield most


def dies_at_every_call(
    new_ledger: Opening, flags: tuple[str, ...] = (), start: int = START
) -> None:
    """Whatever call a process dies at, the next one, which has other pings, another forecast and
    other bits, loses and repeats nothing, and gives away no more than was charged."""
    draws = 1 + (start == LAST)
    for dies_at, answered in product(range(len(_calls(start))), (False, True)):
        opened, seen, told, current = new_ledger(), dict[str, bytes](), set[bytes](), list[Tables]()
        with opened() as ledger:
            if start == LAST:
                _learn_the_day_before(ledger)
        with watched(lambda current=current: current[0]) as gave:
            for attempt, at in enumerate((dies_at, dies_at, None)):
                current[:] = [_slots(start)[attempt]]
                with opened() as ledger:
                    context = context_of(*flags, seed=attempt)
                    if attempt == 1:
                        _learn_another_day(context)
                    try:
                        found = run(ledger, context, current[0], at, answered=answered)
                    except Died as death:
                        found = death.args[0]
                for id_, payload in found.items():
                    assert seen.setdefault(id_, payload) == payload, (dies_at, answered)
                with opened() as ledger:
                    told |= sums_of(ledger, start)
        assert len(told) == draws, (dies_at, answered)
        with opened() as ledger:
            require_whole(ledger, seen, gave, start)


def dies_at_every_call_with_plates(new_ledger: Opening) -> None:
    dies_at_every_call(new_ledger, ("release.plates=true",))


def dies_at_every_call_at_a_day_s_end(new_ledger: Opening) -> None:
    dies_at_every_call(new_ledger, start=LAST)


def rival_at_every_call_at_a_day_s_end(new_ledger: Opening) -> None:
    rival_at_every_call(new_ledger, LAST)


def rival_at_every_call(new_ledger: Opening, start: int = START) -> None:
    """Whatever call a rival gets in before, with other bits, pings and forecast: both publish the
    same."""
    ours, theirs_slot, _ = _slots(start)
    for call in range(len(_calls(start)) - 1):  # publishing is none of the ledger's
        opened, won, told, current = new_ledger(), dict[str, bytes](), set[bytes](), [ours]
        with opened() as ledger:
            if start == LAST:
                _learn_the_day_before(ledger)
        with (
            opened() as theirs,
            opened() as ledger,
            watched(lambda current=current: current[0]) as gave,
        ):

            def rival(theirs: Ledger = theirs, won=won, told=told, current=current) -> None:
                current[0] = theirs_slot
                other = context_of(seed=8)
                if start != LAST:
                    _learn_another_day(other)
                won.update(run(theirs, other, current[0]))
                current[0] = ours
                told.update(sums_of(theirs, start))

            published = run(RivalledLedger(ledger, call, rival), context_of(seed=7), ours)
            assert won == published and told == sums_of(ledger, start), call
            require_whole(ledger, published, gave, start)


def _whole_plates(*flags: str, pings: int = 400) -> Callable[[Ledger, int], object]:
    def road(ledger: Ledger, start: int) -> object:
        return run(
            ledger, context_of(*flags), slot(start=start, pings=pings) if pings else empty(start)
        )

    return road


def _counts(*flags: str) -> Callable[[Ledger, int], object]:
    return lambda ledger, start: release_slot(
        *slot(start=start), a_context(*flags), ledger, lambda _: None
    )


def _answers(ledger: Ledger, _: int) -> object:
    """Of a moment without a plate: nobody is charged."""
    nowhere = np.zeros(0)
    return ask(ledger, moment=Moment(a_moment().time_ms, (), nowhere, nowhere))


_WEEK, _EMPTY_PLATES = ("budget.period=7d",), ("release.min_plates=1000",)
AT_ONE_TIME = [
    (_whole_plates(), _whole_plates(*_WEEK)),
    (_whole_plates(pings=0), _whole_plates(*_WEEK, pings=0)),
    *permutations((_whole_plates(pings=0), _counts()), 2),
    *permutations((_whole_plates(), _counts(*_EMPTY_PLATES)), 2),
    *permutations((_whole_plates(pings=0), _counts(*_EMPTY_PLATES)), 2),
    *permutations((_whole_plates(pings=0), _answers), 2),
]
"""Two runs whose budget periods overlap, whether they charge somebody or not."""


def rival_of_another_period_at_every_call(new_ledger: Opening) -> None:
    """Whatever call a run of an overlapping period gets in before, with another slot: one of them
    at most releases."""
    for number, (ours, theirs) in enumerate(AT_ONE_TIME):
        for call in range(40):
            opened, came = new_ledger(), list[bool]()
            with opened() as other, opened() as ledger:

                def rival(other: Ledger = other, came=came, theirs=theirs) -> None:
                    came.append(True)
                    with suppress(PrivacyRefused):
                        theirs(other, START + HOUR)

                with suppress(PrivacyRefused):
                    ours(RivalledLedger(ledger, call, rival), START)
                recorded = {entry.period for entry in ledger.entries() if entry.payload is not None}
                assert len(recorded) <= 1, (number, call, recorded)
            if not came:
                break
        assert call > 5


def _learn_another_day(context: ReleaseContext) -> None:
    """So that its forecasts are others: it has seen the hour before, on another ledger."""
    before, elsewhere = slot(3, pings=3000, start=START - HOUR), MemoryLedger()
    with patch.object(add_remove, "noised", mechanism.noised):
        add_remove.record_add_remove_slot(*before, context, elsewhere)
    slots = before[0].start_ms, before[0].end_ms
    assert len(context.smoothed(slots, elsewhere)) == CELLS


def _learn_the_day_before(ledger: Ledger) -> None:
    run(ledger, context_of(seed=9), slot(3, pings=3000, start=LAST - DAY)[:2])


def _entries(ledger: Ledger, start: int) -> list[Entry]:
    """Those of noised sums of the slot, and of its day."""
    ids = id_of(NOISED_SUMS, start, start + HOUR), id_of(DAY_SUMS, LAST + HOUR - DAY, LAST + HOUR)
    return [one for one in ledger.entries() if one.release_id in ids]


def sums_of(ledger: Ledger, start: int = START) -> set[bytes]:
    return {one.payload for one in _entries(ledger, start) if one.payload is not None}


def require_whole(
    ledger: Ledger,
    published: dict[str, bytes],
    gave: Counter[tuple[int, bytes]],
    start: int = START,
) -> None:
    """One payload per cell, all published; one charge of each plate, which pays for every draw that
    there was."""
    assert len(published) == CELLS
    assert ledger.verify() == []
    # No reader waits for a usual week, and a context that learnt elsewhere keeps none again.
    assert {kind_of(id_) for id_, _ in ledger.unpublished()} <= {USUAL_WEEK}
    charged = _entries(ledger, start)
    assert len(charged) == 1 + (start == LAST)
    paid = {
        (NoisedSums.decode(one.payload or b"").asked.sigma, plate): nano
        for one in charged
        for plate, nano in zip(one.plates, one.charged.tolist(), strict=True)
    }
    for one in charged:
        assert any(one.charged)
    assert {of for of, nano in gave.items() if nano} <= paid.keys()
    assert all(nano <= paid.get(of, 0) for of, nano in gave.items())
    assert sum(gave.values()) > sum(paid.values()) / 2  # a retry has not less to spend
    for entry in ledger.entries():
        if kind_of(entry.release_id) == "hat" and entry.release_id in published:
            assert not entry.plates and entry.payload == published[entry.release_id]
    total = Counter[bytes]()
    for (_, plate), nano in paid.items():
        total[plate] += nano
    balances = ledger.balances(charged[0].period, list(total)).charged.tolist()
    assert balances == list(total.values())
    assert max(balances) <= context_of().policy.budget_nano


@cache
def _calls(start: int = START) -> list[str]:
    made, ledger = list[str](), MemoryLedger()
    if start == LAST:
        _learn_the_day_before(ledger)
    run(ledger, context_of(), _slots(start)[0], log=made)
    draws = 1 + (start == LAST)
    weeks = int(start == LAST)  # the day begins with what the day before told
    assert made.count("admit") == made.count("record") == 1 + draws + weeks
    return made


@cache
def _slots(start: int = START) -> list[Tables]:
    """The same slot as three processes have it: pings that came late or not at all change who was
    where."""
    return [
        slot(seed, plates, pings=3000, start=start) for seed, plates in ((0, 12), (1, 14), (0, 12))
    ]


CHECKS = [
    pytest.param(check, id=f"presence_{check.__name__}", marks=marks)
    for check in (
        dies_at_every_call,
        dies_at_every_call_with_plates,
        dies_at_every_call_at_a_day_s_end,
        rival_at_every_call_at_a_day_s_end,
        rival_at_every_call,
        rival_of_another_period_at_every_call,
    )
    # A day's end has a slot's draw, too.
    for marks in [pytest.mark.soak if check in (dies_at_every_call, rival_at_every_call) else ()]
]
