"""What a ledger's entries say of positions, for the privacy statement; with speeds, where both had one budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from udp_stream.errors import PrivacyRefused
from udp_stream.ledger.port import Entry
from udp_stream.planning.one_budget import OneBudget, noted, of_same_time
from udp_stream.planning.periods import Loss, loss_in, measure_of
from udp_stream.release.query_record import QueryResult, decode_result
from udp_stream.release.record import kind_of
from udp_stream.units import NANO


class Speeds(Protocol):
    """A period of speeds: the largest budget of each name that it is charged under, what each plate was charged."""

    @property
    def promised(self) -> Mapping[str, int]:
        """Nano-units, by the names of periods and spans."""
        ...

    @property
    def nano(self) -> Mapping[bytes, int]:
        """Nano-units, by plate."""
        ...


TOGETHER_NEIGHBOURS = (
    "the same pings of a plate are accepted, in the same cells and slots; its speeds differ, and its positions within "
    "these cells"
)
APART = "apart from losses of speeds, which are of another kind, and never added to them"
TOGETHER = (
    "where speeds and positions had one budget, `one_budget` says what both come to in its units: the largest budgets "
    "that either was admitted under, and the most that a plate was charged"
)


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

    >>> StatedPositions().stated({}, [])
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

    def stated(self, meta: Mapping[str, str], speeds: Collection[Speeds]) -> dict[str, Any]:
        """The field `positions` of a statement; nothing where no query was asked.

        `meta` are the ledger's notes, which tell where both kinds had one budget; `speeds` are periods.
        """
        if not self.periods:
            return {}
        shared = [self._shared(time, one, speeds) for time, one in noted(meta).items()]
        return {
            "positions": {
                "privacy_unit": "one license plate, with its positions at all moments of a period",
                "adjacency": "positions: the same pings are accepted, and the same plates are there at every moment; "
                "one plate's positions differ, each by at most a distance d in the plane of the configuration",
                "dp_variant": "metric privacy in the local model, of thresholds in the central one: e^(epsilon d), or "
                "Renyi divergence a rho d^2 of every order a > 1 (Adaptive Privacy Budgeting, Liang and Yi)",
                "unprotected_quantities": [
                    "which plates sent pings, when, how many of them, and who was asked in a round",
                    "what releases of speeds tell: their counts are of plates by cell and slot, and not protected",
                ],
                "composition": "basic, per plate: the sum of what it was charged in rounds; "
                f"{TOGETHER if shared else APART}",
                **({"one_budget": shared} if shared else {}),
                "periods": [_stated(period, spent) for period, spent in sorted(self.periods.items())],
                "results": [
                    {"query": name, "status": status, "policy": policy, "software": software, "results": count}
                    for (name, status, policy, software), count in sorted(self.results.items())
                ],
            }
        }

    def _shared(self, time: str, one: OneBudget, speeds: Collection[Speeds]) -> dict[str, Any]:
        """Both kinds together, in the units of the one budget that was promised for this time."""
        budgets = {name: max(of.budgets) for name, of in self.periods.items()}
        charged: dict[str, Mapping[bytes, int]] = {name: of.nano for name, of in self.periods.items()}
        for of_speeds in speeds:
            budgets |= of_speeds.promised
            # of a rolling budget it is the most in any window: counted once, not for each span
            charged |= dict.fromkeys(list(of_speeds.promised)[:1], of_speeds.nano)
        names = of_same_time(time, budgets)
        in_all = one.most_in({name: budgets[name] for name in names}, time)
        plates: dict[bytes, Loss] = {}
        for name in names:
            for plate, spent in charged.get(name, {}).items():
                plates[plate] = plates.get(plate, Loss()) + loss_in(name, one.nano_of(name, spent))
        return {
            "period": time,
            "unit_m": float(one.unit_m),
            "neighbours": f"{TOGETHER_NEIGHBOURS}; {one.said}",
            "promised": str(one.whole),
            "guaranteed": str(in_all),
            "max_over_plates": str(max(plates.values(), default=Loss())),
        }


def _stated(period: str, spent: _Spent) -> dict[str, Any]:
    in_rho = measure_of(period) == "zcdp"
    unit = "rho_per_square_km" if in_rho else "epsilon_per_km"
    guaranteed, most = max(spent.budgets), max(spent.nano.values(), default=0)
    return {
        "period": period,
        f"{unit}_guaranteed": guaranteed / NANO,
        f"{unit}_of_budgets": [budget / NANO for budget in sorted(spent.budgets)],
        f"{unit}_max_over_plates": most / NANO,
        "plates_charged": len(spent.nano),
        "rounds": spent.rounds,
    }


def _result(release_id: str, payload: bytes) -> QueryResult:
    try:
        return decode_result(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PrivacyRefused(f"{release_id}: expected a query's result in the ledger, got other bytes") from error
