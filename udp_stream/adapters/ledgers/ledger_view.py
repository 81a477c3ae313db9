"""A ledger as an operator sees it: where it is, whether it can be used, and how much it holds. Nothing is charged."""

from __future__ import annotations

from typing import NamedTuple

from udp_stream.adapters.ledgers.opening import inspect_ledger, is_here, ledger_and_keys, ledger_place
from udp_stream.adapters.settings import LedgerSection, is_file
from udp_stream.adapters.text import counted
from udp_stream.errors import DependencyUnavailable, PrivacyRefused
from udp_stream.ledger.past import caveats
from udp_stream.ledger.port import Ledger
from udp_stream.release.record import CITY, kind_of


class Holdings(NamedTuple):
    """What a ledger holds: HATs charged and recorded (with rounds of queries), budget periods, since when what was
    promised is in doubt, and the newest admission's id.

    >>> from udp_stream.ledger.memory import MemoryLedger
    >>> Holdings.of(MemoryLedger())
    Holdings(charged=0, recorded=0, unpublished=0, periods=0, caveats=(), newest=None)
    """

    charged: int
    recorded: int
    unpublished: int
    periods: int
    caveats: tuple[str, ...]
    newest: str | None = None

    @classmethod
    def of(cls, ledger: Ledger) -> Holdings:
        """Of an open ledger; some round trips, however much it holds. No reader waits for what the city was asked."""
        progress = ledger.progress()
        unpublished = sum(kind_of(release_id) != CITY for release_id, _ in ledger.unpublished())
        doubts = caveats(ledger.meta())
        return cls(progress.admitted, progress.recorded, unpublished, len(ledger.periods()), doubts, progress.newest)


class LedgerView(NamedTuple):
    """One ledger. `holdings` is None where this machine cannot tell, or it is refused. `status` is 0, or why it cannot
    be used: 4 for a ledger out of reach, 5 for one that is refused, as a Redis that could lose writes is.

    >>> print(LedgerView("sqlite", "/data/city.ledger", "opens", Holdings(118, 118, 0, 1, ())))
    sqlite at /data/city.ledger: opens; 118 HATs charged, 118 recorded, 0 not published yet, in 1 period
    """

    kind: str
    place: str
    said: str
    holdings: Holdings | None = None
    status: int = 0

    def __str__(self) -> str:
        """A line."""
        if self.holdings is None:
            return f"{self.kind} at {self.place}: {self.said}"
        charged, recorded, unpublished, periods, doubts, _ = self.holdings
        holds = (
            f"{counted(charged, 'HAT')} charged, {recorded:,} recorded, {unpublished:,} not published yet, in "
            f"{counted(periods, 'period')}"
        )
        return f"{self.kind} at {self.place}: {'; '.join([self.said, holds, *doubts])}"


def look_at(asked: LedgerSection) -> LedgerView:
    """What can be said of a ledger from this machine; nothing is made. ConfigError for what is no ledger's URL.

    Its entries are counted where this machine has used it before, or has its file, and so has its key.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     look_at(LedgerSection(url=f"{folder}/city.ledger")).said
    'is not made yet'
    """
    kind, place = "sqlite" if is_file(asked.place) else "redis", ledger_place(asked.place)
    try:
        if not is_here(asked):
            said = inspect_ledger(asked)
            return LedgerView(kind, place, "is not made yet" if said.endswith("at first use") else said)
        with ledger_and_keys(asked, only_look=True) as (ledger, _):
            said = "opens" if kind == "sqlite" else "answers, and keeps every write that it has answered"
            return LedgerView(kind, place, said, Holdings.of(ledger))
    except (DependencyUnavailable, PrivacyRefused) as error:
        return LedgerView(kind, place, str(error), status=error.exit_status)
