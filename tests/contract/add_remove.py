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
from udp_stream.errors import PrivacyRefused
from udp_stream.ledger.ids import NOISED_SUMS, kind_of
from udp_stream.ledger.port import Ledger
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.mechanisms import add_remove as mechanism
from udp_stream.release import add_remove
from udp_stream.release.charge import ReleaseContext
from udp_stream.release.promise import PROMISES, release_slot
from udp_stream.settings import load
from udp_stream.testing import SeededEntropy, a_moment
from udp_stream.windows.positions import Moment
from udp_stream.windows.tables import SlotCounts, SlotPings, SlotValues, tabulate

DOMAIN = Path(__file__).parents[1] / "domain.cells"
CELLS = 6
HOUR = 3_600_000
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
def watched(contents: Callable[[], Tables]) -> Iterator[Counter[bytes]]:
    """The most that a draw gave away of each plate, in nano-rho."""
    most = Counter[bytes]()

    def noised(vectors, cells, query, bits):
        plates = contents()[0].plates
        for plate, nano in zip(plates, vectors.charges(len(plates), query).tolist(), strict=True):
            most[plate] = max(most[plate], nano)
        return mechanism.noised(vectors, cells, query, bits)

    with patch.object(add_remove, "noised", noised):
        yield most


def dies_at_every_call(new_ledger: Opening, flags: tuple[str, ...] = ()) -> None:
    """Whatever call a process dies at, the next one, which has other pings, another forecast and
    other bits, loses and repeats nothing, and gives away no more than was charged."""
    for dies_at, answered in product(range(len(_calls())), (False, True)):
        opened, seen, told, current = new_ledger(), dict[str, bytes](), set[bytes](), list[Tables]()
        with watched(lambda current=current: current[0]) as gave:
            for attempt, at in enumerate((dies_at, dies_at, None)):
                current[:] = [_slots()[attempt]]
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
                    told |= sums_of(ledger)
        assert len(told) == 1, (dies_at, answered)
        with opened() as ledger:
            require_whole(ledger, seen, gave)


def dies_at_every_call_with_plates(new_ledger: Opening) -> None:
    dies_at_every_call(new_ledger, ("release.plates=true",))


def rival_at_every_call(new_ledger: Opening) -> None:
    """Whatever call a rival gets in before, with other bits, pings and forecast: both publish the
    same."""
    for call in range(len(_calls()) - 1):  # publishing is none of the ledger's
        opened, won, told, current = new_ledger(), dict[str, bytes](), set[bytes](), [_slots()[0]]
        with (
            opened() as theirs,
            opened() as ledger,
            watched(lambda current=current: current[0]) as gave,
        ):

            def rival(theirs: Ledger = theirs, won=won, told=told, current=current) -> None:
                current[0] = _slots()[1]
                other = context_of(seed=8)
                _learn_another_day(other)
                won.update(run(theirs, other, current[0]))
                current[0] = _slots()[0]
                told.update(sums_of(theirs))

            ours = run(RivalledLedger(ledger, call, rival), context_of(seed=7), _slots()[0])
            assert won == ours and told == sums_of(ledger), call
            require_whole(ledger, ours, gave)


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


def sums_of(ledger: Ledger) -> set[bytes]:
    return {
        one.payload
        for one in ledger.entries()
        if one.payload is not None and kind_of(one.release_id) == NOISED_SUMS
    }


def require_whole(ledger: Ledger, published: dict[str, bytes], gave: Counter[bytes]) -> None:
    """One payload per cell, all published; one charge of each plate, which pays for every draw that
    there was."""
    assert len(published) == CELLS
    assert ledger.verify() == [] and list(ledger.unpublished()) == []
    (charged,) = [one for one in ledger.entries() if kind_of(one.release_id) == NOISED_SUMS]
    paid = dict(zip(charged.plates, charged.charged.tolist(), strict=True))
    assert any(paid.values()) and {plate for plate, nano in gave.items() if nano} <= paid.keys()
    assert all(nano <= paid.get(plate, 0) for plate, nano in gave.items())
    assert sum(gave.values()) > sum(paid.values()) / 2  # a retry has not less to spend
    for entry in ledger.entries():
        if kind_of(entry.release_id) == "hat":
            assert not entry.plates and entry.payload == published[entry.release_id]
    plates = list(paid)
    assert ledger.balances(charged.period, plates).charged.tolist() == list(paid.values())


@cache
def _calls() -> list[str]:
    made = list[str]()
    run(MemoryLedger(), context_of(), _slots()[0], log=made)
    assert made.count("admit") == 2 and made.count("record") == 2
    return made


@cache
def _slots() -> list[Tables]:
    """The same slot as three processes have it: pings that came late or not at all change who was
    where."""
    return [slot(seed, plates, pings=3000) for seed, plates in ((0, 12), (1, 14), (0, 12))]


CHECKS = [
    pytest.param(check, id=f"presence_{check.__name__}")
    for check in (
        dies_at_every_call,
        dies_at_every_call_with_plates,
        rival_at_every_call,
        rival_of_another_period_at_every_call,
    )
]
