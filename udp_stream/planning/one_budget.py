"""One budget for a plate's speeds and positions: what it counts them in, and what charges of both come to in it.

`ledger/components.py` has the theory. A speed counts as one where it is swapped, positions where they are `unit_m`
metres apart. So an epsilon per kilometre counts times the unit in kilometres, and a rho per square kilometre times its
square.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal

import msgspec

from udp_stream.ledger.components import Measured, component_charge_nano
from udp_stream.mechanisms.noise import Measure
from udp_stream.planning.periods import (
    IN_RHO,
    POSITIONS,
    Loss,
    measure_of,
    most_in,
    name_in,
    of_positions,
    overlapping,
)

NOTE = "one budget: "
"""Before the name of a period, in the note by which a ledger remembers that both kinds had one budget in it."""


class OneBudget(msgspec.Struct, frozen=True):
    """The whole of a budget, the part of it that positions have, nano-units of one measure; and its unit in metres.

    >>> one = OneBudget("pure", 10 * 10**9, 2 * 10**9, Decimal(500))
    >>> one.nano_of("positions lifetime", 4 * 10**9), one.part_nano("lifetime"), str(one.whole)
    (2000000000, 8000000000, 'epsilon 10')
    """

    measure: Measure
    whole_nano: int
    positions_nano: int
    unit_m: Decimal

    @property
    def whole(self) -> Loss:
        """What a plate can lose of both kinds together."""
        return Loss(self.whole_nano) if self.measure == "pure" else Loss(rho_nano=self.whole_nano)

    @property
    def said(self) -> str:
        """In which unit both kinds are counted.

        >>> OneBudget("pure", 10, 2, Decimal("500.0")).said
        '500 m count as much as a speed does'
        """
        return f"{self.unit_m.normalize():f} m count as much as a speed does"

    def part_nano(self, name: str) -> int:
        """What the kind of this period has of the whole."""
        return self.positions_nano if of_positions(name) else self.whole_nano - self.positions_nano

    def nano_of(self, name: str, nano: int) -> int:
        """What an amount of this period's balances counts, rounded up.

        >>> OneBudget("zcdp", 2 * 10**9, 10**9, Decimal(500)).nano_of("positions lifetime in rho", 4 * 10**9)
        1000000000
        """
        if not of_positions(name):
            return nano
        counted: Measured = "epsilon" if measure_of(name) == "pure" else "rho"
        return component_charge_nano(nano, counted, self.unit_m / 1000, counted)

    def most_in(self, budgets: Mapping[str, int], period: str) -> Loss:
        """The most that a plate can lose of both kinds by its pings in a period: under these budgets of periods that
        share time with it, and the parts that both kinds have.

        >>> one = OneBudget("pure", 10 * 10**9, 2 * 10**9, Decimal(500))
        >>> str(one.most_in({"lifetime": 8 * 10**9}, "lifetime"))
        'epsilon 10'
        >>> str(one.most_in({"positions lifetime": 4000 * 10**9}, "lifetime"))
        'epsilon 2008'
        """
        amounts = {name: self.nano_of(name, nano) for name, nano in budgets.items()}
        time = name_in(self.measure, time_of(period).removesuffix(IN_RHO))
        for name in (time, f"{POSITIONS}{time}"):
            amounts[name] = max(self.part_nano(name), amounts.get(name, 0))
        return most_in(amounts, period, amounts)


def of_same_time(period: str, known: Iterable[str]) -> tuple[str, ...]:
    """The known periods of either kind that share time with this one, itself among them, sorted.

    >>> of_same_time("lifetime", ["lifetime", "positions 1d from 2024-01-08T00:00:00+05:30"])
    ('lifetime', 'positions 1d from 2024-01-08T00:00:00+05:30')
    >>> monday = "1d from 2024-01-08T00:00:00+05:30"
    >>> of_same_time(f"positions {monday}", [monday, "1d from 2024-01-09T00:00:00+05:30"])
    ('1d from 2024-01-08T00:00:00+05:30',)
    """
    names = set(known)
    ours, times = time_of(period), {name: time_of(name) for name in names}
    shared = {ours, *overlapping(ours, times.values())}
    return tuple(sorted(name for name in names if times[name] in shared))


def time_of(period: str) -> str:
    """The name of a period without the kind of data that is counted in it.

    >>> time_of("positions lifetime in rho"), time_of("lifetime in rho")
    ('lifetime in rho', 'lifetime in rho')
    """
    return period.removeprefix(POSITIONS)


def noted(meta: Mapping[str, str]) -> dict[str, OneBudget]:
    """The one budget of each period for which a ledger remembers one, by the name of its time.

    >>> one = OneBudget("pure", 10 * 10**9, 2 * 10**9, Decimal(500))
    >>> noted({f"{NOTE}lifetime": note_of(one), "ledger_id": "5eed"}) == {"lifetime": one}
    True
    """
    return {
        name.removeprefix(NOTE): msgspec.json.decode(text, type=OneBudget)
        for name, text in sorted(meta.items())
        if name.startswith(NOTE)
    }


def note_of(one: OneBudget) -> str:
    """The text of the note.

    >>> note_of(OneBudget("pure", 10, 2, Decimal(500)))
    '{"measure":"pure","whole_nano":10,"positions_nano":2,"unit_m":"500"}'
    """
    return msgspec.json.encode(one).decode()
