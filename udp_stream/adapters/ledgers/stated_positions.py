"""What a ledger's entries say of positions, for the privacy statement: apart from speeds, and never added to them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgspec

from udp_stream.errors import PrivacyRefused
from udp_stream.ledger.port import Entry
from udp_stream.planning.periods import measure_of
from udp_stream.release.query_record import QueryResult, decode_result
from udp_stream.release.record import kind_of
from udp_stream.units import NANO


@dataclass(slots=True)
class _Spent:
    """What one period's plates were charged in rounds, and under which budgets these were admitted."""

    nano: Counter[bytes] = field(default_factory=Counter)
    budgets: set[int] = field(default_factory=set)
    rounds: int = 0

    def take(self, entry: Entry) -> None:
        self.nano.update(
            {plate: nano for plate, nano in zip(entry.plates, entry.charged.tolist(), strict=True) if nano}
        )
        self.budgets.add(entry.budget)
        self.rounds += kind_of(entry.release_id) == "round"


@dataclass(slots=True)
class StatedPositions:
    """Rounds and results of standing queries, by budget period.

    >>> StatedPositions().stated()
    {}
    """

    periods: dict[str, _Spent] = field(default_factory=dict)
    results: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)

    def take(self, entry: Entry) -> None:
        """Count an entry of a period of positions. PrivacyRefused for a result that cannot be read."""
        self.periods.setdefault(entry.period, _Spent()).take(entry)
        if entry.payload is not None and kind_of(entry.release_id) == "query":
            made = _result(entry.release_id, entry.payload)
            self.results[made.query.name, made.status, made.policy, made.software] += 1

    def stated(self) -> dict[str, Any]:
        """The field `positions` of a statement; nothing where no query was asked."""
        if not self.periods:
            return {}
        return {
            "positions": {
                "privacy_unit": "one license plate, with its positions at all moments of a period",
                "adjacency": "positions: the same plates at every moment; one plate's positions differ, each by "
                "at most a distance d in the plane of the configuration",
                "dp_variant": "metric privacy in the local model, of thresholds in the central one: e^(epsilon d), or "
                "Renyi divergence a rho d^2 of every order a > 1 (Adaptive Privacy Budgeting, Liang and Yi)",
                "unprotected_quantities": [
                    "which plates sent pings, when, how many of them, and who was asked in a round",
                    "what releases of speeds tell: their counts are of plates by cell and slot, and not protected",
                ],
                "composition": "basic, per plate: the sum of what it was charged in rounds; apart from losses of "
                "speeds, which are of another kind, and never added to them",
                "periods": [_stated(period, spent) for period, spent in sorted(self.periods.items())],
                "results": [
                    {"query": name, "status": status, "policy": policy, "software": software, "results": count}
                    for (name, status, policy, software), count in sorted(self.results.items())
                ],
            }
        }


def _stated(period: str, spent: _Spent) -> dict[str, Any]:
    unit = "epsilon_per_km" if measure_of(period) == "pure" else "rho_per_square_km"
    return {
        "period": period,
        f"{unit}_guaranteed": max(spent.budgets) / NANO,
        f"{unit}_of_budgets": [budget / NANO for budget in sorted(spent.budgets)],
        f"{unit}_max_over_plates": max(spent.nano.values(), default=0) / NANO,
        "plates_charged": len(spent.nano),
        "rounds": spent.rounds,
    }


def _result(release_id: str, payload: bytes) -> QueryResult:
    try:
        return decode_result(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PrivacyRefused(f"{release_id}: expected a query's result in the ledger, got other bytes") from error
