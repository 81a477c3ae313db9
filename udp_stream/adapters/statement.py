"""The privacy statement of a deployment, in the fields of OpenDP's Deployments Registry (tiers 1 to 3)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from udp_stream import __version__
from udp_stream.adapters.settings import Settings
from udp_stream.ports import Entry, Ledger
from udp_stream.units import NANO

CHARGES = {
    "individual": "each plate its own share of the noise's sensitivity, which its number of pings tells",
    "uniform": "each admitted plate the release's whole epsilon",
}


@dataclass(slots=True)
class _Spent:
    """What one period's plates were charged, and for how many releases."""

    nano: Counter[bytes] = field(default_factory=Counter)
    releases: Counter[bytes] = field(default_factory=Counter)
    largest_charge: int = 0

    def take(self, entry: Entry) -> None:
        charged = {plate: nano for plate, nano in zip(entry.plates, entry.charged.tolist(), strict=True) if nano}
        self.nano.update(charged)
        self.releases.update(charged.keys())
        self.largest_charge = max(self.largest_charge, *charged.values(), 0)

    def facts(self) -> dict[str, float | int]:
        """The loss of the plate that lost most, and beside it eps max_l G_l, which knows no shares."""
        most = max(self.releases.values(), default=0)
        return {
            "plates_charged": len(self.nano),
            "epsilon_max_over_plates": max(self.nano.values(), default=0) / NANO,
            "epsilon_max_of_a_release": self.largest_charge / NANO,
            "releases_max_over_plates": most,
            "epsilon_bound_by_composition": self.largest_charge * most / NANO,
        }


def statement(settings: Settings, ledger: Ledger) -> dict[str, Any]:
    """What is promised, what was spent, and what is not protected; no plate, keyed or not, is in it."""
    policy = settings.policy
    periods: dict[str, _Spent] = {}
    recorded = 0
    for entry in ledger.entries():
        recorded += entry.payload is not None
        periods.setdefault(entry.period, _Spent()).take(entry)
    return {
        "basic": {
            "name": "Speeds of buses by H3 cell and timeslot",
            "description": "Means and cumulative distributions of bus speeds, released once per cell and timeslot.",
            "data_product_type": "Summary statistics",
            "data_product_sector": "Government",
            "intended_use": "Publishing what a live bus feed says of a city's traffic, without a driver's conduct.",
        },
        "privacy": {
            "dp_variant": {"variant_name": "Pure DP"},
            "privacy_loss": {
                "privacy_unit": f"one license plate, for each period of {policy.period}",
                "privacy_parameters": {"epsilon": policy.budget_nano / NANO},
                "periods": [{"period": period, **spent.facts()} for period, spent in sorted(periods.items())],
            },
            "deployment_model": {
                "model_name": "Central",
                "release_type": "Many releases",
                "release_type_details": (
                    f"One release per cell and slot of {settings.hat.slot}, ever. A ledger charges each plate before "
                    f"anything is drawn; at its budget a plate is left out until the next period of {policy.period}."
                ),
                "data_source_type": "Dynamic",
                "access_type": "Non-interactive",
            },
        },
        "details": {
            "privacy_unit_details": {
                "adjacency": "swap-values: the same plates with the same number of pings in every cell and slot, one "
                "plate's speeds differing anywhere",
            },
            "unprotected_quantities": [
                "that a plate was in a cell in a slot, and how many pings it sent there",
                "numbers of plates and samples, refusals by reason, which cells exist",
            ],
            "accounting": {
                "charges": CHARGES[policy.accounting_detail],
                "composition": "basic, per plate: the sum of what it was charged; never more than the bound of arXiv "
                "2405.06261, the most that a release cost anybody times the most releases that one plate is in",
                "post_processing": "clamping to [0, U], monotone CDFs, rounding to 0.001 km/h",
            },
            "implementation": {
                "mechanisms": "discrete Laplace and exponential mechanism, exact integer arithmetic (arXiv 2004.00010)",
                "randomness": "operating system",
                "floating_point": "noise is added to integers; the set of outputs does not depend on the data",
                "software": f"udp-stream {__version__}",
                "policy": policy.fingerprint(),
            },
        },
        "releases_recorded": recorded,
    }
