"""Of a rolling budget, what the script that admits gets of the windows: which spans lie near, and in which windows.

The spans are looked up first and handed to the script with their balances' keys. It goes on only if it finds the very
same spans listed; else another caller has charged in a new one meanwhile, and the caller looks again.
"""

from __future__ import annotations

from dataclasses import dataclass

from udp_stream.adapters.ledgers.redis.packing import decoded, encoded
from udp_stream.adapters.ledgers.redis.session import Session
from udp_stream.ledger.rolling import names_around, windows_around


@dataclass(frozen=True, slots=True)
class NearSpans:
    """The bounds and what was listed between them, but for the span itself; those that share a window with it, and for
    each window which of these it has. All empty in a calendar's period.

    >>> NO_SPANS.arguments()
    ('', '', '', '', '')
    """

    first: str = ""
    last: str = ""
    listed: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    windows: str = ""

    def arguments(self) -> tuple[str, ...]:
        """The last arguments of the script."""
        return self.first, self.last, "\n".join(self.listed), "\n".join(self.others), self.windows


NO_SPANS = NearSpans()


def windows_of(session: Session, period: str) -> NearSpans:
    """What is there now; nothing is asked for a calendar's period."""
    if (bounds := names_around(period)) is None:
        return NO_SPANS
    (found,) = session.exchange(("ZRANGEBYLEX", session.key("spans"), *(b"[" + encoded(end) for end in bounds)))
    listed = tuple(name for name in map(decoded, found) if name != period)
    windows = windows_around(period, listed)
    inside = "".join("1" if is_in else "0" for is_in in windows.inside.ravel().tolist())
    return NearSpans(*bounds, listed, windows.others, inside)
