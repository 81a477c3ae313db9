"""What a ledger's entries say of city sums, for the privacy statement (`release/whole_city.py`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from udp_stream.adapters.ledgers.stated_losses import Spent, account_of, unit_of
from udp_stream.ledger.port import Entry
from udp_stream.units import NANO


@dataclass(slots=True)
class StatedCity:
    """Sums over the whole city, by budget period, or by rolling budget; `recorded` counts the slots with an answer.

    >>> StatedCity().stated()
    {}
    """

    periods: dict[str, Spent] = field(default_factory=dict)
    charged: dict[str, int] = field(default_factory=dict)
    recorded: dict[str, int] = field(default_factory=dict)

    def take(self, entry: Entry, start: float, end: float) -> None:
        """Count an entry of city sums, of a slot from `start` to `end` in Unix seconds."""
        name = account_of(entry.period)
        self.periods.setdefault(name, Spent()).take(entry, start, end)
        self.charged[name] = self.charged.get(name, 0) + bool(entry.charged.any())
        self.recorded[name] = self.recorded.get(name, 0) + (entry.payload is not None)

    def stated(self) -> dict[str, Any]:
        """The field `city_sums` of a statement; nothing where no sum was charged for."""
        if not self.periods:
            return {}
        return {
            "city_sums": {
                "what": "in some slots, two noisy sums over all plates: how far their speeds are off the "
                "forecasts, and how widely plates scatter around them",
                "use": "recorded in the ledger, and not published; forecasts learn from them, so later releases "
                "and smoothed estimates depend on them",
                "charges": "each plate its own share of both sums' sensitivities, before the HATs of the slot; "
                "these charges are part of privacy_loss, where the sums of a slot count as one release",
                "periods": [self._period(name, spent) for name, spent in sorted(self.periods.items())],
            }
        }

    def _period(self, name: str, spent: Spent) -> dict[str, Any]:
        unit = unit_of(name)
        return {
            "period": name,
            "slots_charged": self.charged[name],
            "slots_recorded": self.recorded[name],
            "plates_charged": len(spent.nano),
            f"{unit}_max_of_a_slot": spent.largest_charge / NANO,
            f"{unit}_max_over_plates": max(spent.nano.values(), default=0) / NANO,
        }
