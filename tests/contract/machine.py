"""One machine for every ledger: it charges, records, publishes, withdraws, archives, dies at any request, comes back,
goes back in time and has rivals, and always answers as a model of lists does (`model.py`)."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.contract import earlier_ledger
from tests.contract.model import (
    HOUR_S,
    START,
    Ask,
    Held,
    Model,
    Refused,
    periods_of,
    span_at,
    spans_near,
)
from tests.failing import Died
from udp_stream.base.errors import PrivacyRefused, UsageError
from udp_stream.ledger.port import Admission, Entry
from udp_stream.ledgers.archive import archive, open_archive

PLATES = earlier_ledger.PLATES
HOURS = 0, 0, 1, 22, 28
FORMS = (
    "{c:015x}-{t}-3600", "{c:015x}-{t}-3600", "{c:015x}-{t}-3600", "city:{t}-3600", "clips:{t}-3600",
    "withdrawn:{c:015x}-{t}-3600", "query:{c}:{e}", "round:{c}:{e}:1", "untimed {c} {t}",
)  # fmt: skip
KINDS = "left", "more", "one", "half", "all", "three"


def id_at(hour: int, cell: int, form: str) -> str:
    start = START + hour * HOUR_S
    return form.format(c=cell, t=start, e=start + HOUR_S)


ENDS = {
    id_at(hour, cell, form): float((hour + 1) * HOUR_S)
    for hour in HOURS
    for cell in range(3, 99)
    for form in FORMS[:-1]
} | {
    f"{cell:015x}-{START + hour * HOUR_S}-3600": (hour + 1) * HOUR_S
    for cell in range(20, 23)
    for hour in range(3)
}
CHARGES = st.dictionaries(st.sampled_from(PLATES), st.sampled_from(KINDS), max_size=4)
MOST = st.none() | st.fixed_dictionaries(
    {plate: st.sampled_from([0, 4, 9, 2**50]) for plate in PLATES}
)


def ids_of(hour: int) -> st.SearchStrategy[str]:
    return st.builds(id_at, st.just(hour), st.integers(3, 6), st.sampled_from(FORMS))


def calls(most: int) -> st.SearchStrategy[Any]:
    """A period, a budget, and HATs of an hour in it that ask for kinds of amounts; often the same few periods."""

    def of_hour(hour: int) -> st.SearchStrategy[Any]:
        asked = st.tuples(ids_of(hour), CHARGES, st.integers(0, 3), st.binary(max_size=3), MOST)
        period = st.sampled_from(periods_of(hour)) | st.sampled_from(periods_of(hour)[:3])
        budget = st.sampled_from([10, 10, 10, 5, 0, 2**53 - 1])
        return st.tuples(period, budget, st.lists(asked, max_size=most))

    return st.sampled_from(HOURS).flatmap(of_hour)


RELEASES = st.lists(
    st.tuples(st.sampled_from(HOURS).flatmap(ids_of), st.binary(max_size=3)), max_size=4
)
MOMENTS = st.none() | st.integers(0, 11)
"""Before and behind each request: at which of these something happens."""


class Watched:
    """A ledger that tells before and behind each request to its store."""

    at_request: Callable[[], None] = staticmethod(lambda: None)

    def _read(self, asked: Any) -> Any:
        return self._told(super()._read, asked)  # type: ignore[misc]

    def _commit(self, change: Any) -> Any:
        return self._told(super()._commit, change)  # type: ignore[misc]

    def _told(self, call: Callable[[Any], Any], asked: Any) -> Any:
        happens, self.at_request = self.at_request, lambda: None  # a request has none inside
        happens()
        found = call(asked)
        happens()
        self.at_request = happens
        return found


@contextmanager
def at_moment(ledger: Any, moment: int | None, happens: Callable[[], None]) -> Iterator[None]:
    """Something happens at the n-th moment of what is asked inside."""
    left = iter(range(99))
    ledger.at_request = lambda: happens() if next(left) == moment else None
    try:
        yield
    finally:
        ledger.at_request = lambda: None


def die() -> None:
    raise Died


def asked_of(asked: Ask) -> Admission:
    members = np.array([PLATES.index(plate) for plate in asked.charges], np.int64)
    charges = np.array(list(asked.charges.values()), np.int64)
    most = (
        None
        if asked.most is None
        else np.array([asked.most[one] for one in asked.charges], np.int64)
    )
    return Admission(asked.release_id, members, charges, asked.least, asked.terms, most)


CHANGING = "archived", "admitted", "epoch:3", "ledger_id"
"""What a ledger of an earlier version knows of itself, beside notes."""

Call = tuple[str, int, list[Ask]] | list[tuple[str, bytes]]
"""What is asked: to admit HATs, or to record payloads."""


def answer(ledger: Any, call: Call) -> object:
    """What a ledger answers, in plain values."""
    if isinstance(call, list):
        return ledger.record(call)
    period, budget, asked = call
    verdicts = ledger.admit(period, budget, PLATES, [asked_of(one) for one in asked])
    return [(one.charged.tolist(), one.terms) for one in verdicts]


def plain(one: Entry) -> Held:
    charged = dict(zip(one.plates, one.charged.tolist(), strict=True))
    return Held(
        one.release_id, one.period, one.budget, charged, one.terms, one.payload, one.published
    )


class LedgerMachine(RuleBasedStateMachine):
    """Subclasses say where the ledger is: `opened`, which gives one that is `Watched`."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.here = Path(self.folder.name)
        self.model, self.looked, self.archives = Model(ENDS), periods_of(0)[0], 0
        self.handles: list[Any] = []

    def opened(self) -> Any:
        raise NotImplementedError

    def begin(self, older: int) -> None:
        """Put an older ledger there: 1 of an earlier version, 2 of one before."""

    def reopen(self) -> None:
        """Two processes have it open; the second is a rival, and may become the first."""
        self.close()
        self.handles = [self.opened() for _ in range(2)]

    def close(self) -> None:
        for one in self.handles:
            one.close()
        self.handles = []

    @property
    def ledger(self) -> Any:
        return self.handles[0]

    @initialize(older=st.integers(0, 2))
    def first(self, older: int) -> None:
        self.begin(older)
        self.reopen()
        self.ask(("lifetime", 0, [Ask("first", {})]))  # so that an archive leaves something
        self.ask([("first", b"")])

    def priced(self, period: str, budget: int, asked: list[Any]) -> Call:
        """With amounts in place of their kinds, as an adversary has them who knows what is left."""
        self.looked, priced = period, []
        for name, kinds, least, terms, most in asked:
            charges = {}
            for plate, kind in kinds.items():
                left = max(0, budget - self.model.spent(period, plate))
                amounts = {
                    "left": left,
                    "more": left + 1,
                    "half": left // 2,
                    "all": budget,
                    "three": 3,
                }
                charges[plate] = min(max(1, amounts.get(kind, 1)), 2**53 - 1)
            priced.append(Ask(name, charges, least, terms, most))
        return period, budget, priced

    def expected(self, model: Model, call: Call) -> object:
        """What the model answers; batch by batch, as those before one that is refused are kept."""
        if isinstance(call, list):
            model.require_admitted(call)
            batches = self.ledger.releases.cut(call, (len(payload) for _, payload in call))
            return [payload for batch in batches for payload in model.record(batch)]
        period, budget, asked = call
        batches = self.ledger.hats.cut(asked, (len(one.charges) for one in asked))
        return [verdict for batch in batches for verdict in model.admit(period, budget, batch)]

    def ask(self, call: Call, moment: int | None = None) -> None:
        self.agree(
            lambda: answer(self.ledger, call), lambda: self.expected(self.model, call), moment
        )

    def agree(
        self, ask: Callable[[], object], expected: Callable[[], object], moment: int | None
    ) -> None:
        """The ledger answers as the model, also if the process dies at a moment, and asks again after a restart."""
        if moment is not None:
            with at_moment(self.ledger, moment, die), suppress(Died, PrivacyRefused, UsageError):
                ask()
            self.reopen()
            assert self.ledger.verify() == []
        try:
            wanted = expected()
        except Refused:
            with pytest.raises((PrivacyRefused, UsageError)):
                ask()
        else:
            assert ask() == wanted

    @rule(call=calls(4), moment=MOMENTS)
    def admit(self, call: Any, moment: int | None) -> None:
        self.ask(self.priced(*call), moment)

    @rule(call=calls(3))
    def admit_again(self, call: Any) -> None:
        period, budget, asked = call
        known = list(self.model.held)[-len(asked) :] if asked else []
        again = [(name, *one[1:]) for name, one in zip(known, asked, strict=False)]
        self.ask(self.priced(period, budget, again))

    def fresh(self) -> str:
        return id_at(22, 10 + self.model.counts["admitted"], FORMS[0])

    @precondition(lambda self: self.model.balances())
    @rule(which=st.integers(0, 99), charges=CHARGES)
    def charge_more(self, which: int, charges: Any) -> None:
        """As an adversary who knows what is left of a budget that was charged before."""
        periods = sorted({period for period, _ in self.model.balances()})
        hat = self.fresh(), charges, 0, b"", None
        self.ask(self.priced(periods[which % len(periods)], 10, [hat]))

    @rule(releases=RELEASES, other=RELEASES, moment=MOMENTS)
    def record(self, releases: Any, other: Any, moment: int | None) -> None:
        """Of what is admitted, and now and then of something that perhaps is not."""
        ids = list(self.model.held)
        known = [(ids[len(payload) * 7 % len(ids)], payload) for _, payload in releases]
        self.ask([*known, *other[:1]], moment)

    @precondition(lambda self: self.model.waiting())
    @rule(first=st.integers(0, 9), many=st.integers(1, 3))
    def publish(self, first: int, many: int) -> None:
        ids = [name for name, _ in self.model.waiting()]
        chosen = ids[first % len(ids) :][:many]
        mark = self.ledger.mark(chosen[0])
        assert (mark.admitted, mark.recorded) == (
            self.model.counts["admitted"],
            self.model.counts["recorded"],
        )
        self.ledger.published([*chosen, "unknown"])
        self.model.published(chosen)

    @rule(
        name=st.sampled_from(["policy:1", "policy:5eed", "key_fingerprint"]),
        text=st.text(max_size=2),
    )
    def note(self, name: str, text: str) -> None:
        first = self.model.notes.setdefault(name, text)
        assert self.ledger.note(name, text) == first
        if name == "key_fingerprint" and text != first:
            with pytest.raises(PrivacyRefused):
                self.ledger.bind(text)

    @rule(hour=st.sampled_from([1, 2, 5]))
    def close_times(self, hour: int) -> None:
        self.model.closed = max(self.model.closed, hour * HOUR_S)
        assert self.ledger.close_before(START + hour * HOUR_S) == START + self.model.closed

    @rule(hour=st.sampled_from([5, 25, 25, 47, 169]), moment=MOMENTS)
    def archive(self, hour: int, moment: int | None) -> None:
        self.archives += 1
        path, moved = self.here / f"archive-{self.archives}", []
        newest = self.fresh()  # what is newest is moved, too
        self.ask((periods_of(0)[0], 10, [Ask(newest, {PLATES[0]: 1})]))
        self.ask([(newest, b"")])
        self.ledger.published([newest])
        self.model.published([newest])

        def expected() -> object:
            moved.extend(self.model.archive(hour * HOUR_S))
            return len(moved)

        self.agree(
            lambda: archive(self.ledger, START + hour * HOUR_S, path).entries, expected, moment
        )
        self.ask((periods_of(0)[0], 10, [Ask(newest, {PLATES[0]: 1})]))
        if path.exists():
            with open_archive(path) as copy:
                assert list(map(plain, copy.entries())) == moved and copy.verify() == []

    @rule(restarts=st.booleans())
    def other_process(self, restarts: bool) -> None:
        self.handles.reverse()
        if restarts:
            self.reopen()

    @invariant()
    def agrees(self) -> None:
        if not self.handles:
            return
        ledger, model, sums = self.ledger, self.model, self.model.balances()
        assert list(map(plain, ledger.entries())) == list(model.held.values())
        assert list(ledger.newest()) == [*reversed(model.held)]
        assert list(ledger.unpublished()) == model.waiting()
        periods = sorted({period for period, _ in sums})
        assert ledger.periods() == periods
        assert ledger.periods(self.looked, self.looked) == [
            one for one in periods if one == self.looked
        ]
        ids = [*model.held, "unknown", *(one.release_id for one in model.moved)]
        view = ledger.view(self.looked, PLATES, ids)
        assert view.payloads == tuple(
            model.held[name].payload if name in model.held else None for name in ids
        )
        assert view.balance.charged.tolist() == [
            model.spent(self.looked, plate) for plate in PLATES
        ]
        assert {"ledger_id", *model.notes.items()} <= {"ledger_id", *view.meta.items()}
        assert {one for one in periods if one == self.looked} <= {*view.periods} <= {*periods}
        progress = view.progress
        assert Counter(admitted=progress.admitted, recorded=progress.recorded) == model.counts
        assert (progress.oldest, progress.newest) == (
            next(iter(model.held)),
            next(reversed(model.held)),
        )
        for period in {*periods, self.looked}:
            balance = ledger.balances(period, PLATES)
            found = zip(balance.charged.tolist(), balance.charges.tolist(), strict=True)
            assert [*found] == [sums.get((period, plate), (0, 0)) for plate in PLATES]

    def teardown(self) -> None:
        try:
            if self.handles:
                self.agrees_to_the_end()
        finally:
            self.close()
            self.folder.cleanup()

    def agrees_to_the_end(self) -> None:
        assert self.ledger.verify() == []
        sums = self.model.balances()
        for plate in PLATES:
            ours = {period: nano for (period, who), (nano, _) in sums.items() if who == plate}
            assert self.ledger.charged_by_period(plate) == ours
            for period in ours:
                assert self.model.spent(period, plate) <= self.model.largest_budget(period)


class LastingMachine(LedgerMachine):
    """A ledger that outlives its processes. Subclasses say how to copy all of it, to put a copy in its place, to wipe
    it, and which calls a process that has it open is refused then."""

    def copy(self) -> Any:
        raise NotImplementedError

    def put(self, copy: Any) -> None:
        raise NotImplementedError

    def wipe(self, another: bool) -> None:
        raise NotImplementedError

    def is_there(self) -> bool:
        raise NotImplementedError

    def refused(self) -> list[Callable[[], object]]:
        raise NotImplementedError

    def learn_older(self) -> None:
        """What the ledger of an earlier version holds."""
        held, model = earlier_ledger.MADE["held"], self.model
        for name, period, budget, plates, charged, payload, published, terms in held["entries"]:
            amounts = dict(zip([plate.encode() for plate in plates], charged, strict=True))
            kept = None if payload is None else payload.encode()
            model.held[name] = Held(name, period, budget, amounts, terms.encode(), kept, published)
            model.recorded += [] if payload is None else [name]
        model.counts.update(admitted=held["progress"][0], recorded=held["progress"][1])
        _, meta = earlier_ledger.MADE["redis"]["meta"]
        model.closed = int(meta["archived"]) - START
        model.notes = {name: text for name, text in meta.items() if name not in CHANGING}

    @rule(more=st.sampled_from(["charged", "recorded", "recorded otherwise"]))
    def goes_back(self, more: str) -> None:
        """An older copy is refused if a reader has more of the ledger, or another record, than it holds."""
        name = f"{self.model.counts['admitted']}"
        charge: Call = ("lifetime", 0, [Ask(name, {})])
        if more != "charged":
            self.ask(charge)
        older = self.copy()
        self.ask(charge)
        self.ask([("first" if more == "charged" else name, b"drawn")])
        self.ledger.mark(name)
        now = self.copy()
        self.put(older)
        if more == "recorded otherwise":
            answer(self.ledger, [(name, b"drawn again")])
        for call in (self.ledger.compare, lambda: self.ledger.mark("first")):
            with pytest.raises(PrivacyRefused, match="went back in time"):
                call()
        self.put(now)

    @rule(another=st.booleans())
    def is_gone(self, another: bool) -> None:
        """A ledger that is wiped or another one is refused, by who has it open and who opens it."""
        now = self.copy()
        self.wipe(another)
        for call in (*self.refused(), self.opened):
            with pytest.raises(PrivacyRefused, match=r"expected the ledger|removed or replaced"):
                call()
        assert another or not self.is_there()
        self.put(now)


class RivalledMachine(LedgerMachine):
    """A store without transactions: others may write between any two requests of a call."""

    @rule(ours=calls(2) | RELEASES, theirs=calls(2) | RELEASES, moment=st.integers(0, 5))
    def rival(self, ours: Any, theirs: Any, moment: int) -> None:
        calls = [one if isinstance(one, list) else self.priced(*one) for one in (ours, theirs)]
        self.answers_in_one_of_two_orders(calls, moment)

    @rule(
        hour=st.integers(0, 29),
        near=st.integers(0, 99),
        kind=st.sampled_from(KINDS),
        moment=st.integers(0, 5),
    )
    def rival_in_the_same_window(self, hour: int, near: int, kind: str, moment: int) -> None:
        span = span_at(hour * HOUR_S, HOUR_S)
        spans, number = spans_near(span), self.model.counts["admitted"]
        asked = dict.fromkeys(PLATES, kind), 0, b"", None
        calls = [
            self.priced(one, 10, [(f"{number} {one}", *asked)])
            for one in (span, spans[near % len(spans)])
        ]
        self.answers_in_one_of_two_orders(calls, moment)

    def answers_in_one_of_two_orders(self, both: list[Call], moment: int) -> None:
        found: dict[int, object] = {}

        def come() -> None:
            found[1] = self.tried(partial(answer, self.handles[1], both[1]))

        with at_moment(self.ledger, moment, come):
            found[0] = self.tried(partial(answer, self.handles[0], both[0]))
        if 1 not in found:
            come()
        for order in ((0, 1), (1, 0)):
            model = self.model.copy()
            wanted = {at: self.tried(partial(self.expected, model, both[at])) for at in order}
            if wanted == found and [*map(plain, self.ledger.entries())] == [*model.held.values()]:
                self.model = model
                return
        raise AssertionError(f"{found} is the answer in neither order")

    @staticmethod
    def tried(call: Callable[[], object]) -> object:
        try:
            return call()
        except (PrivacyRefused, Refused):
            return "refused"
