"""The privacy statement of a deployment, in the fields of OpenDP's Deployments Registry (tiers 1 to 3).

Budgets and charges come from the ledger's entries: each has its budget, its period and its record. The configuration
counts only if nothing was charged or recorded yet.

A plate's total in a period is at most the largest budget of the period's entries, since each was admitted only while
the total stayed within its own. Periods of other lengths or zones are other balances, so the budgets of those that
overlap in time, as their names tell (`periods.py`), add up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import Any

import msgspec

from udp_stream.adapters.ledgers.stated_losses import (
    IN_A_ROW,
    NOISE,
    RHO_TO_EPSILON,
    Spent,
    account_of,
    measures_in,
    most_of,
    stretches_in_words,
    unit_of,
    variant_of,
    with_others,
    with_overlapping,
)
from udp_stream.adapters.ledgers.stated_positions import StatedPositions
from udp_stream.adapters.settings import Settings
from udp_stream.errors import PrivacyRefused
from udp_stream.ledger.past import caveats
from udp_stream.ledger.port import Entry, Ledger
from udp_stream.ledger.rolling import ROLLING
from udp_stream.planning.periods import IN_RHO, length_of, loss_in, name_in, of_positions
from udp_stream.release.record import CITY, CLIPS, Release, decode, kind_of, slot_of
from udp_stream.units import NANO, duration_name
from udp_stream.version import __version__
from udp_stream.windows.tables import SlotGrid

CHARGES = {
    "individual": "each plate its own share of the noise's sensitivity, which its number of pings tells",
    "uniform": "each admitted plate the release's whole epsilon",
}


class _Made(msgspec.Struct, frozen=True):
    """Under what a record says that it was made."""

    policy: str
    epsilon: float
    period: str
    accounting: str
    accounting_detail: str
    software: str


@dataclass(slots=True)
class _Account:
    """All that the entries of a ledger say.

    `under` counts the HATs with a charge, by length and budget of all periods that something was charged in.
    `made` and `released` count the records, all and those that are not withheld.
    """

    periods: dict[str, Spent] = field(default_factory=dict)
    positions: StatedPositions = field(default_factory=StatedPositions)
    under: Counter[tuple[str, int]] = field(default_factory=Counter)
    made: Counter[_Made] = field(default_factory=Counter)
    released: Counter[_Made] = field(default_factory=Counter)
    slots_s: set[int] = field(default_factory=set)

    def take(self, entry: Entry) -> None:
        if of_positions(entry.period):
            self.positions.take(entry)
            return
        start, end = _span(entry.release_id)
        if end < inf:
            self.slots_s.add(int(end - start))
        self.periods.setdefault(account_of(entry.period), Spent()).take(entry, start, end)
        if (kind := kind_of(entry.release_id)) in ("hat", CITY):
            # A question to the city adds 0: the budget it was charged under is listed, and it is no HAT.
            self.under[length_of(entry.period), entry.budget] += kind == "hat" and bool(entry.charged.any())
        if kind == "hat" and entry.payload is not None:
            record = _record(entry.release_id, entry.payload)
            made = _made(record)
            self.made[made] += 1
            self.released[made] += record.status == "released"


def statement(settings: Settings, ledger: Ledger) -> dict[str, Any]:
    """What is promised, what was charged, and what is not protected; no plate, keyed or not, is in it.

    Raises PrivacyRefused if the ledger holds a record that cannot be read.
    """
    policy = settings.policy
    account = _Account()
    for entry in ledger.entries():
        if kind_of(entry.release_id) != CLIPS:
            account.take(entry)
    lengths = {length for length, _ in account.under} or {policy.period}
    slots = ", ".join(duration_name(seconds) for seconds in sorted(account.slots_s)) or settings.hat.slot
    noise = ", ".join(NOISE[measure] for measure in sorted(measures_in(account.periods, policy)))
    details = {made.accounting_detail for made in account.made} or {policy.accounting_detail}
    return {
        "basic": {
            "name": "Speeds of buses by H3 cell and timeslot",
            "description": "Means, variances and cumulative distributions of bus speeds, each where it was asked for, "
            "released once per cell and timeslot.",
            "data_product_type": "Summary statistics",
            "data_product_sector": "Government",
            "intended_use": "Publishing what a live bus feed says of a city's traffic, without a driver's conduct.",
        },
        "privacy": {
            "dp_variant": {"variant_name": variant_of(account.periods, policy)},
            "privacy_loss": {**_privacy_loss(settings, account, lengths), "caveats": list(caveats(ledger.meta()))},
            "deployment_model": {
                "model_name": "Central",
                "release_type": "Many releases",
                "release_type_details": (
                    f"One release per cell and slot of {slots}, ever. A ledger charges each plate before anything is "
                    f"drawn; at its budget a plate is left out {_left_out(lengths)}."
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
                "charges": "; or ".join(CHARGES[detail] for detail in sorted(details)),
                "composition": "basic, per plate: the sum of what it was charged; never more than the bound of arXiv "
                "2405.06261, the largest charge of a release times the most releases that one plate is in",
                "post_processing": "intervals and expected errors of noisy means, clamping to [0, U] (variances to "
                "[0, U^2/4]), monotone CDFs, rounding: means to 0.001 km/h, variances to 0.001 km2/h2, CDF values to "
                "0.000001",
            },
            "implementation": {
                "mechanisms": f"{noise} and exponential mechanism, exact integer arithmetic (arXiv 2004.00010)",
                "randomness": "operating system",
                "floating_point": "noise is added to integers; the set of outputs does not depend on the data",
                "software": _joined(made.software for made in account.made) or f"udp-stream {__version__}",
                "policy": _joined(made.policy for made in account.made) or policy.fingerprint(),
                "policies": [
                    {
                        **msgspec.structs.asdict(made),
                        "hats_recorded": records,
                        "hats_released": account.released[made],
                    }
                    for made, records in sorted(account.made.items(), key=lambda one: msgspec.structs.astuple(one[0]))
                ],
            },
        },
        **account.positions.stated(ledger.meta(), account.periods.values()),
        "hats_recorded": account.made.total(),
        "hats_released": account.released.total(),
    }


def disagreement(settings: Settings, stated: dict[str, Any]) -> str | None:
    """A sentence naming both if the ledger was charged, or its records made, under other settings than these."""
    policy = settings.policy
    under = [
        (unit, one[unit], one["period"])
        for one in stated["privacy"]["privacy_loss"]["charged_under"]
        for unit in ("epsilon", "rho")
        if unit in one
    ]
    policies = {made["policy"] for made in stated["details"]["implementation"]["policies"]}
    ours = unit_of(name_in(policy.measure, policy.period)), policy.budget_nano / NANO, policy.period
    if {ours}.issuperset(under):
        if {policy.fingerprint()}.issuperset(policies):
            return None
        return (
            f"the configuration has policy {policy.fingerprint()}, the ledger's records were made under "
            f"{_joined(policies)}: same budget, other settings; the statement follows the ledger"
        )
    return (
        f"the configuration has {_budgets([ours])} (policy {policy.fingerprint()}), the ledger was charged under "
        f"{_budgets(under)} (policy {_joined(policies) or 'of no record yet'}): the statement follows the ledger"
    )


def _privacy_loss(settings: Settings, account: _Account, lengths: Collection[str]) -> dict[str, Any]:
    """The guarantee is what a plate can lose by its pings in one period, to all the releases that they are in.

    A period is the whole of it, as its name says, whichever slots of it were charged.
    """
    policy, slots = settings.policy, settings.calendar.slots
    periods = sorted(account.periods.items())
    units = " or ".join(sorted({unit_of(period) for period, _ in periods} or {unit_of(name_in(policy.measure, ""))}))
    sums = {period: loss_in(period, charged.guaranteed) for period, charged in periods}
    sums |= with_others({name: budget for _, charged in periods for name, budget in charged.promised.items()})
    rolls = any(length.startswith(ROLLING) for length in lengths)
    return {
        "privacy_unit": f"one license plate, {stretches_in_words(lengths)}, with all its pings in it",
        "privacy_parameters": most_of(sums, policy),
        "charged_under": [
            {unit_of(length): budget / NANO, "period": length.removesuffix(IN_RHO), "hats_charged": hats}
            for (length, budget), hats in sorted(account.under.items())
        ],
        "composition_over_periods": "a plate's loss in a period is at most the largest budget that any of its releases "
        f"was admitted under ({units}_guaranteed); losses in different periods add up, and epsilon is the most of any "
        f"period together with those that overlap it in time ({units}_guaranteed_with_overlapping)"
        f"{IN_A_ROW if rolls else ''}{RHO_TO_EPSILON if 'rho' in units else ''}",
        "periods": [
            {
                "period": period,
                "from": _iso(charged.start, period, slots),
                "until": _iso(charged.end, period, slots),
                f"{unit_of(period)}_guaranteed": charged.guaranteed / NANO,
                **with_overlapping(sums[period]),
                **charged.facts(unit_of(period)),
            }
            for period, charged in periods
        ],
    }


def _span(release_id: str) -> tuple[float, float]:
    try:
        return slot_of(release_id)
    except ValueError:
        return -inf, inf


def _record(release_id: str, payload: bytes) -> Release:
    try:
        return decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PrivacyRefused(f"{release_id}: expected a release record in the ledger, got other bytes") from error


def _made(record: Release) -> _Made:
    of, how = record.privacy, (record.privacy.accounting, record.privacy.accounting_detail)
    return _Made(record.policy, of.period_epsilon, of.period, *how, record.software)


def _iso(seconds: float, period: str, slots: SlotGrid) -> str | None:
    """The time at the period's own offset from UTC, which its name tells, else in the zone of the slots."""
    if abs(seconds) == inf:
        return None
    try:
        offset = datetime.fromisoformat(period.removesuffix(IN_RHO).partition(" from ")[2]).tzinfo
    except ValueError:
        return slots.iso(int(seconds) * 1000)
    return datetime.fromtimestamp(seconds, offset).isoformat(timespec="seconds")


def _left_out(lengths: Collection[str]) -> str:
    """For how long a plate is that has spent its budget."""
    plain = set(map(_plain, lengths))
    rolling = {length for length in plain if length.startswith(ROLLING)}
    ending = plain - rolling - {"lifetime"}
    words = [f"until the next period of {_joined(ending)}"] if ending else []
    words += ["while it is in a window"] if rolling else []
    words += ["for ever"] if "lifetime" in plain else []
    return " or ".join(words)


def _plain(length: str) -> str:
    return length.removesuffix(IN_RHO)


def _joined(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names)))


def _budgets(under: Iterable[tuple[str, float, str]]) -> str:
    return ", ".join(f"{unit} {amount:g} per {period}" for unit, amount, period in under)
