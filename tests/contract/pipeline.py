"""The road over a store that dies at each call, or has a rival before each: memory, SQLite, Redis."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import cache
from itertools import product

import pytest

from tests.city_question import MeanSpeed
from tests.contract.checks import LedgerFactory
from tests.failing import Died, RivalledLedger
from tests.unit.test_flow import a_context, run, slot
from udp_stream.ledger.ids import CITY, CLIPS, kind_of
from udp_stream.ledger.port import Entry, Ledger
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.release.charge import ReleaseContext, with_forecaster
from udp_stream.release.record import Release

_CITY = "release.mean=forecast-clip", "release.cdf_epsilon=0"

EPSILONS = {
    "fixed": (),
    "automatic": ("release.mean_epsilon=auto", "release.cdf=tree", "release.cdf_epsilon=auto"),
    "scarce": ("budget.epsilon=0.75",),
    "around": ("release.mean=forecast-clip", "release.cdf_epsilon=0"),
    "in rho": (
        "release.mean=forecast-clip",
        "release.cdf_epsilon=0",
        "budget.accounting=approximate",
    ),
    "apart in rho": ("release.mean=levy", "release.cdf_epsilon=0", "budget.accounting=approximate"),
    "city": (*_CITY, "budget.epsilon=80"),
    "dearer city": (*_CITY, "budget.epsilon=90"),
    "city in rho": (*_CITY, "budget.epsilon=40", "budget.accounting=approximate"),
}
ADMITS = {"in rho": 2, "city": 2, "dearer city": 2, "city in rho": 3}
"""How often it asks the ledger to charge, or to remember; 1 for the others."""

CHARGES_OR_TELLS = "admit", "record", "(publish)"
"""Calls that a death at may do the most harm."""

Opening = Callable[[], LedgerFactory]
"""A new ledger each time, as a function that opens it again and again."""


def dies_at_every_call(
    new_ledger: Opening, kind: str = "fixed", calls: Collection[str] = ()
) -> None:
    """Whatever call a process dies at, the next one loses and repeats nothing. With `calls`, at
    those alone."""
    points = [n for n, name in enumerate(_calls(kind)) if not calls or name in calls]
    for dies_at, answered in product(points, (False, True)):
        opened, seen, told = new_ledger(), dict[str, bytes](), set[bytes]()
        for attempt, at in enumerate((dies_at, dies_at, None)):
            with opened() as ledger:
                try:
                    found = run(ledger, context_of(kind, attempt), _slot(), at, answered=answered)
                except Died as death:
                    found = death.args[0]
            for id_, payload in found:
                assert seen.setdefault(id_, payload) == payload, (dies_at, answered)
            with opened() as ledger:
                told |= {one.payload for one in _answers(ledger) if one.payload is not None}
        with opened() as ledger:
            require_whole(ledger, seen)
        assert len(told) == ("city" in kind), (dies_at, answered)


def dies_at_every_call_around_forecasts(new_ledger: Opening) -> None:
    dies_at_every_call(new_ledger, "around")


def dies_at_every_call_in_rho(new_ledger: Opening) -> None:
    """The same where plates share clips among their HATs, whose norms the ledger remembers."""
    dies_at_every_call(new_ledger, "in rho")


def dies_at_every_call_of_a_city(new_ledger: Opening) -> None:
    """The same where the city is asked first: its answer is drawn once, and charged once to each
    plate."""
    for kind in ("city", "city in rho"):
        dies_at_every_call(new_ledger, kind)


def dies_as_it_charges_or_tells(new_ledger: Opening) -> None:
    for kind in ("around", "in rho", "city in rho"):
        dies_at_every_call(new_ledger, kind, CHARGES_OR_TELLS)


def rival_at_every_call(new_ledger: Opening) -> None:
    """Whatever call a rival gets in before, with other bits and another policy's epsilons: both
    publish the same."""
    for kind, rivals in [("fixed", "automatic"), ("automatic", "fixed"), ("scarce", "scarce")]:
        _rival_at_every_call(new_ledger, kind, rivals)


def rival_at_every_call_around_forecasts(new_ledger: Opening) -> None:
    """A rival with other bits, and one that clips around nothing: whoever is first, its plan is
    both's."""
    for kind, rivals in [("around", "around"), ("around", "fixed"), ("fixed", "around")]:
        _rival_at_every_call(new_ledger, kind, rivals)


def rival_at_every_call_in_rho(new_ledger: Opening) -> None:
    for kind, rivals in [
        ("in rho", "in rho"),
        ("in rho", "apart in rho"),
        ("apart in rho", "in rho"),
    ]:
        _rival_at_every_call(new_ledger, kind, rivals)


def rival_at_every_call_of_a_city(new_ledger: Opening) -> None:
    """A rival that asks the same city with other bits, one that asks none, and one whose sums cost
    more."""
    for kind, rivals in [
        ("city", "city"),
        ("city", "around"),
        ("around", "city"),
        ("city", "dearer city"),
    ]:
        _rival_at_every_call(new_ledger, kind, rivals)


def _rival_at_every_call(new_ledger: Opening, kind: str, rivals: str) -> None:
    for call in range(len(_calls(kind)) - 1):  # publishing is none of the ledger's
        opened, won, told = new_ledger(), list[tuple[str, bytes]](), set[bytes | None]()
        with opened() as theirs, opened() as ledger:

            def rival(theirs: Ledger = theirs, won=won, told=told) -> None:
                won.extend(run(theirs, context_of(rivals, 8), _slot()))
                told.update(one.payload for one in _answers(theirs))

            ours = run(RivalledLedger(ledger, call, rival), context_of(kind, 7), _slot())
            assert won == ours, (kind, rivals, call)
            told.update(one.payload for one in _answers(ledger))
            assert len(told - {None}) <= 1, (kind, rivals, call)
            require_whole(ledger, dict(ours))


@cache
def _calls(kind: str) -> list[str]:
    made = list[str]()
    run(MemoryLedger(), context_of(kind, 0), _slot(), log=made)
    assert len(made) >= 7
    assert made.count("admit") == ADMITS.get(kind, 1)
    return made


def context_of(kind: str, seed: int) -> ReleaseContext:
    made = a_context(*EPSILONS[kind], seed=seed)
    if "city" in kind:
        made = replace(made, city=MeanSpeed())
    return with_forecaster(made) if made.policy.forecasts else made


@cache
def _slot():
    return slot()


def require_whole(ledger: Ledger, published: dict[str, bytes]) -> None:
    """One payload per HAT and answer, all published; each plate charged once, as the record says,
    within budget."""
    assert len(published) == 3
    assert ledger.verify() == [] and list(ledger.unpublished()) == []
    for entry in ledger.entries():
        if kind_of(entry.release_id) != "hat":
            continue
        record = Release.decode(published[entry.release_id])
        assert entry.payload == published[entry.release_id]
        paid = Counter(
            {p: c for p, c in zip(entry.plates, entry.charged.tolist(), strict=True) if c}
        )
        assert len(paid) == record.counts.admitted_plates
        assert max(paid.values(), default=0) == _nano_of(record)
    shares = any(
        Release.decode(payload).privacy.holds_for == "slot" for payload in published.values()
    )
    assert [entry.plates for entry in ledger.entries() if kind_of(entry.release_id) == CLIPS] == [
        ()
    ] * shares
    for city in _answers(ledger):
        assert city.payload is not None and city.published
        assert sorted(city.plates) == sorted(_slot()[0].plates) and city.charged.min() > 0
    assert len(_answers(ledger)) <= 1
    (period,) = {entry.period for entry in ledger.entries()}
    for plate, charged in zip(
        _slot()[0].plates, ledger.balances(period, _slot()[0].plates).charged, strict=True
    ):
        assert charged == sum(_paid(ledger, plate))


def _answers(ledger: Ledger) -> list[Entry]:
    return [entry for entry in ledger.entries() if kind_of(entry.release_id) == CITY]


def _nano_of(record: Release) -> int:
    said = record.privacy
    return round((said.epsilon if said.rho is None else said.rho) * 1e9)


def _paid(ledger: Ledger, plate: bytes) -> Iterator[int]:
    for entry in ledger.entries():
        yield from (
            c for p, c in zip(entry.plates, entry.charged.tolist(), strict=True) if p == plate
        )


CHECKS = [
    pytest.param(check, id=check.__name__)
    for check in (*(dies_at_every_call, rival_at_every_call), dies_as_it_charges_or_tells)
]

MORE_CHECKS = [
    pytest.param(check, id=check.__name__)
    for check in (
        *(dies_at_every_call_around_forecasts, rival_at_every_call_around_forecasts),
        *(dies_at_every_call_in_rho, rival_at_every_call_in_rho),
        *(dies_at_every_call_of_a_city, rival_at_every_call_of_a_city),
    )
]
