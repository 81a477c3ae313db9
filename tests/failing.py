"""Ledgers that fail: their process dies, or a rival gets in between; and a threshold query."""

from collections.abc import Callable
from typing import Any

import msgspec

from udp_stream.ledger.port import Ledger
from udp_stream.queries.standing import StandingQuery
from udp_stream.testing import a_query


class Died(Exception):
    """The process ended here."""


class DyingLedger:
    """A ledger whose process dies before its n-th call, counted from 0, or just after it, before
    the answer arrives.

    `calls` has the names of the calls that were made. Without a number it never dies.

    >>> from udp_stream.ledgers.sqlite import MemoryLedger
    >>> ledger = DyingLedger(MemoryLedger(), dies_at=1)
    >>> ledger.recorded(["hat"])
    [None]
    >>> ledger.periods()
    Traceback (most recent call last):
        ...
    tests.failing.Died: before periods
    >>> ledger.calls
    ['recorded']
    """

    def __init__(
        self, ledger: Ledger, dies_at: int | None = None, *, answered: bool = False
    ) -> None:
        """With `answered` the ledger has done what the last call asks for."""
        self.calls: list[str] = []
        self._ledger = ledger
        self._dies_at = dies_at
        self._answered = answered

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._ledger, name)

        def watched(*arguments: Any) -> Any:
            is_last = len(self.calls) == self._dies_at
            if is_last and not self._answered:
                raise Died(f"before {name}")
            answer = call(*arguments)
            self.calls.append(name)
            if is_last:
                raise Died(f"after {name}")
            return answer

        return watched


class RivalledLedger:
    """A ledger that lets a rival in before its n-th call: whatever the rival does, it does in
    between."""

    def __init__(self, ledger: Ledger, call: int, rival: Callable[[], object]) -> None:
        """The rival works on the same ledger, by itself."""
        self._left = call
        self._ledger = ledger
        self._rival = rival

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._ledger, name)

        def rivalled(*arguments: Any) -> Any:
            self._left -= 1
            if self._left == -1:
                self._rival()
            return call(*arguments)

        return rivalled


def a_ramp() -> StandingQuery:
    return msgspec.structs.replace(a_query(), budget_nano=2 * 10**9, ramp=((900, 2 * 10**9),))


def a_threshold() -> StandingQuery:
    return msgspec.structs.replace(a_query(), kind="threshold", share=0.35, edge_m=500.0)
