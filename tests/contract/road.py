"""The road over a store that fails: its process dies at each call, or a rival gets in before each call.

Each check takes a function that opens the same ledger anew, and a context for a seed. It runs over every store:
`test_road.py` in memory and SQLite, `tests/integration/test_redis_ledger.py` in Redis.
"""

from collections.abc import Callable, Iterator
from functools import cache

import pytest

from tests.unit.test_flow import START, a_context, run, slot
from udp_stream.ledger.port import Ledger, LedgerFactory
from udp_stream.release.record import decode
from udp_stream.testing import Died, RivalledLedger

EPSILONS = {
    "fixed": (),
    "automatic": ("release.mean_epsilon=auto", "release.cdf_epsilon=auto"),
    "scarce": ("budget.epsilon=0.75",),
}
CALLS = 10
"""Of a whole slot, with its publishing in the place where it comes."""

Opening = Callable[[], LedgerFactory]
"""A new ledger each time, as a function that opens it again and again."""


def dies_at_every_call(new_ledger: Opening) -> None:
    """Whatever call a process dies at, before it or behind it: the next one loses nothing and repeats nothing."""
    for dies_at, answered in [(n, answered) for n in range(CALLS) for answered in (False, True)]:
        opened, seen = new_ledger(), dict[str, bytes]()
        for attempt, at in enumerate((dies_at, dies_at, None)):
            with opened() as ledger:
                try:
                    found = run(ledger, a_context(seed=attempt), _slot(), at, answered=answered)
                except Died as death:
                    found = death.args[0]
            for id_, payload in found:
                assert seen.setdefault(id_, payload) == payload, (dies_at, answered)
        with opened() as ledger:
            require_whole(ledger, seen)


def rival_at_every_call(new_ledger: Opening) -> None:
    """Whatever call a rival gets in before, with other bits and another policy's epsilons: both publish the same."""
    for kind, rivals in [("fixed", "automatic"), ("automatic", "fixed"), ("scarce", "scarce")]:
        for call in range(CALLS):
            opened, won = new_ledger(), list[tuple[str, bytes]]()
            with opened() as theirs, opened() as ledger:

                def rival(theirs: Ledger = theirs, rivals: str = rivals, won: list[tuple[str, bytes]] = won) -> None:
                    won.extend(run(theirs, a_context(*EPSILONS[rivals], seed=8), _slot()))

                ours = run(RivalledLedger(ledger, call, rival), a_context(*EPSILONS[kind], seed=7), _slot())
                assert won == ([] if call == CALLS - 1 else ours), (kind, call)
                require_whole(ledger, dict(ours))


@cache
def _slot():
    return slot()


def require_whole(ledger: Ledger, published: dict[str, bytes]) -> None:
    """One payload per HAT, all of them published; each plate charged once, as the record says, within its budget."""
    assert len(published) == 3
    assert ledger.verify() == [] and list(ledger.unpublished()) == []
    for entry in ledger.entries():
        record = decode(published[entry.release_id])
        assert entry.payload == published[entry.release_id]
        assert max(entry.charged.tolist(), default=0) == round(record.privacy.epsilon * 1e9)
        assert int((entry.charged > 0).sum()) == record.counts.admitted_plates
    period = a_context().calendar.slot_in_period(START).period
    for plate, charged in zip(_slot()[0].plates, ledger.balances(period, _slot()[0].plates).charged, strict=True):
        assert charged == sum(_paid(ledger, plate))


def _paid(ledger: Ledger, plate: bytes) -> Iterator[int]:
    for entry in ledger.entries():
        yield from (c for p, c in zip(entry.plates, entry.charged.tolist(), strict=True) if p == plate)


CHECKS = [pytest.param(check, id=check.__name__) for check in (dies_at_every_call, rival_at_every_call)]
