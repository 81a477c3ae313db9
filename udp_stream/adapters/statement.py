"""The privacy statement of a deployment, in the fields of OpenDP's Deployments Registry (tiers 1 to 3)."""

from __future__ import annotations

from collections import Counter
from typing import Any

from udp_stream import __version__
from udp_stream.adapters.settings import Settings
from udp_stream.ports import Ledger
from udp_stream.units import NANO


def statement(settings: Settings, ledger: Ledger) -> dict[str, Any]:
    """What is promised, what was spent, and what is not protected; no plate, keyed or not, is in it."""
    policy = settings.policy
    losses: dict[str, Counter[bytes]] = {}
    recorded = 0
    for entry in ledger.entries():
        recorded += entry.payload is not None
        losses.setdefault(entry.period, Counter()).update(dict(zip(entry.plates, entry.charged.tolist(), strict=True)))
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
                "periods": [
                    {
                        "period": period,
                        "plates_charged": sum(charged > 0 for charged in plates.values()),
                        "epsilon_max_over_plates": max(plates.values(), default=0) / NANO,
                    }
                    for period, plates in sorted(losses.items())
                ],
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
                "composition": "basic, per plate: the sum of what it was charged (arXiv 2405.06261)",
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
