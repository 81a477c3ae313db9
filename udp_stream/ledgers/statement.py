"""The privacy statement of a deployment, in the fields of OpenDP's Deployments Registry (tiers 1 to
3).

All but the words comes from the ledger's entries, or the configuration where nothing was charged
yet. A plate's total in a period is at most the largest budget of its entries. Budgets of periods
that overlap in time add up. Losses of positions are stated apart, and with those of speeds where
both had a joint budget (`planning/policy.py`).

Under "add-remove" charges are secret: of its periods the statement has budgets, and numbers of
records, which follow from slots and settings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import UNSET

from udp_stream.base.units import NANO
from udp_stream.base.version import __version__
from udp_stream.ledger.filters import Loss, epsilon_of, epsilon_of_both
from udp_stream.ledger.ids import CITY, CITY_HOUR, CLIPS, USUAL_WEEK, WITHDRAWN, kind_of
from udp_stream.ledger.port import Entry, Ledger
from udp_stream.ledger.rules import RollingSums, archived_s, caveats, iso_utc, span_of
from udp_stream.mechanisms.noise import Measure
from udp_stream.mechanisms.statistics import STATISTICS, priced
from udp_stream.planning import policy as names
from udp_stream.planning.policy import (
    OneBudget,
    Policy,
    loss_in,
    measure_of,
    noted,
    of_same_time,
    without_measure,
)
from udp_stream.planning.promise import (
    ACCOUNTINGS,
    NEIGHBOURS,
    OF_A_SWAP,
    NeighbourRelation,
    accounting_of,
)
from udp_stream.release.record import Release, within_1km
from udp_stream.release.withdrawal import noted as noted_withdrawals
from udp_stream.settings import Settings

_UNITS = "epsilon", "rho"
_MADE = "policy", "epsilon", "period", "software"
_Made = tuple[str, float, str, str]


@dataclass(slots=True)
class _PeriodSpending:
    """Charges of the plates of a period; of a rolling budget the most in any window. `promised`
    has the largest budget of each period or span that was charged; of whole plates, where that is
    secret, of each that was asked.
    """

    nano: Counter[bytes] = field(default_factory=Counter)
    releases: Counter[bytes] = field(default_factory=Counter)
    rolling: tuple[RollingSums, RollingSums] = field(
        default_factory=lambda: (RollingSums(), RollingSums())
    )
    largest_charge: int = 0
    budgets: set[int] = field(default_factory=set)
    promised: dict[str, int] = field(default_factory=dict)

    def take(self, entry: Entry) -> None:
        charged = {
            plate: nano
            for plate, nano in zip(entry.plates, entry.charged.tolist(), strict=True)
            if nano
        }
        plates = list(charged)
        amounts = list(charged.values())
        if span_of(entry.period) is None:
            self.nano.update(charged)
            self.releases.update(plates)
        else:
            nano, releases = self.rolling
            # `|=` of counters keeps the larger number: the most in any window.
            self.nano |= dict(zip(plates, nano.charge(entry.period, plates, amounts), strict=True))
            self.releases |= dict(
                zip(plates, releases.charge(entry.period, plates, [1] * len(plates)), strict=True)
            )
        if charged or names.ending_of(entry.period):
            self.promised[entry.period] = max(entry.budget, self.promised.get(entry.period, 0))
        self.largest_charge = max(self.largest_charge, *amounts, 0)
        self.budgets.add(entry.budget)

    def guaranteed(self, unit: str) -> dict[str, Any]:
        budgets = [budget / NANO for budget in sorted(self.budgets)]
        return {f"{unit}_guaranteed": max(budgets), f"{unit}_of_budgets": budgets}

    def stated(self, unit: str) -> dict[str, Any]:
        """The loss of the plate that lost most, and the bound eps max_l G_l, which knows no shares
        and no budget."""
        most = max(self.releases.values(), default=0)
        return {
            **self.guaranteed(unit),
            "plates_charged": len(self.nano),
            f"{unit}_max_over_plates": max(self.nano.values(), default=0) / NANO,
            f"{unit}_max_of_a_release": self.largest_charge / NANO,
            "releases_max_over_plates": most,
            f"{unit}_bound_by_composition": self.largest_charge * most / NANO,
        }


@dataclass(slots=True)
class _Account:
    """All that the entries of a ledger say. `under` counts the HATs with a charge, by length and
    budget of their periods; `made` and `released` the records, all and those that are not withheld;
    `city` the slots in which the city was asked for its CDF, and for its mean (hours)."""

    speeds: dict[str, _PeriodSpending] = field(default_factory=dict)
    positions: dict[str, _PeriodSpending] = field(default_factory=dict)
    under: Counter[tuple[str, int]] = field(default_factory=Counter)
    made: Counter[_Made] = field(default_factory=Counter)
    released: Counter[_Made] = field(default_factory=Counter)
    city: Counter[str] = field(default_factory=Counter)

    def take(self, entry: Entry) -> None:
        if names.is_of_positions(entry.period):
            self.positions.setdefault(entry.period, _PeriodSpending()).take(entry)
            return
        self.speeds.setdefault(_account_of(entry.period), _PeriodSpending()).take(entry)
        kind = kind_of(entry.release_id)
        if kind in ("hat", CITY, CITY_HOUR):
            # A question to the city adds 0: the budget it was charged under is listed, and it is no
            # HAT.
            is_charged = bool(names.ending_of(entry.period)) or bool(entry.charged.any())
            self.under[names.length_of(entry.period), entry.budget] += kind == "hat" and is_charged
        if kind in (CITY, CITY_HOUR):
            of = "slots" if kind == CITY else "hours"
            self.city[f"{of}_charged"] += bool(entry.charged.any())
            self.city[f"{of}_recorded"] += entry.payload is not None
        if kind == "hat" and entry.payload is not None:
            record = Release.of_ledger(entry.release_id, entry.payload)
            how = record.privacy
            made = record.policy, how.period_epsilon, how.period, record.software
            self.made[made] += 1
            self.released[made] += record.status == "released"


def statement(settings: Settings, ledger: Ledger) -> dict[str, Any]:
    """The promise, the charges, and the data that are not protected; no plate, keyed or not, is in
    it.

    Raises PrivacyRefused if the ledger holds a record that cannot be read.
    """
    policy = settings.policy
    account = _Account()
    meta = ledger.meta()
    closed = archived_s(meta)
    for entry in ledger.entries():
        if kind_of(entry.release_id) not in (CLIPS, USUAL_WEEK, WITHDRAWN):
            account.take(entry)
    measures = {measure_of(period) for period in account.speeds} or {policy.accounted.measure}
    endings = set(map(names.ending_of, account.speeds))
    relations = [one for one in NEIGHBOURS.values() if one.ending in endings] or [policy.relation]
    variants = [ACCOUNTINGS[accounting_of(one.name, policy.accounting)].variant for one in measures]
    return {
        "basic": {
            "name": "Speeds of buses by H3 cell and timeslot",
            "description": f"{_of_each(relations, _kinds)}, released once per cell and timeslot.",
            "data_product_type": "Summary statistics",
            "data_product_sector": "Government",
            "intended_use": "Publishing what a live bus feed says of a city's traffic, without a driver's conduct.",
        },
        "privacy": {
            "dp_variant": {"variant_name": variants[0] if len(variants) == 1 else "Approximate DP"},
            "privacy_loss": {**_privacy_loss(settings, account), "caveats": list(caveats(meta))},
            "deployment_model": {
                "model_name": "Central",
                "release_type": "Many releases",
                "release_type_details": "One release per cell and slot, ever. A ledger charges each plate before "
                "anything is drawn; at its budget a plate is left out until its period is over.",
                "data_source_type": "Dynamic",
                "access_type": "Non-interactive",
            },
        },
        "details": {
            "privacy_unit_details": {
                "adjacency": "; ".join(one.adjacency(policy.speed_from) for one in relations)
            },
            "unprotected_quantities": [quantity for one in relations for quantity in one.public],
            "accounting": {
                key: _of_each(relations, attrgetter(key)) for key in ("charges", "composition")
            },
            "implementation": {
                "mechanisms": f"{_joined(_noise_of(one) for one in measures)} and exponential mechanism, exact "
                "integer arithmetic (arXiv 2004.00010)",
                "randomness": "operating system",
                "floating_point": "noise is added to integers; the set of outputs does not depend on the data",
                "software": _joined(software for *_, software in account.made)
                or f"udp-stream {__version__}",
                "policy": _joined(made for made, *_ in account.made) or policy.fingerprint(),
                "policies": [
                    {
                        **dict(zip(_MADE, made, strict=True)),
                        "hats_recorded": n,
                        "hats_released": account.released[made],
                    }
                    for made, n in sorted(account.made.items())
                ],
            },
        },
        **({"positions": _positions(account, meta, policy.delta)} if account.positions else {}),
        **(
            {
                "city": {
                    "what": "in some slots (slots), noisy shares of all plates' speeds by bins: a CDF of the whole city; "
                    "in some (hours), the noisy mean of all plates around its forecast",
                    "use": "recorded in the ledger; smoothed estimates have the CDF, and each HAT's made of it; HATs are "
                    "planned around the mean",
                    "charges": "each plate its own share of the sensitivity, before the HATs of the slot; part of privacy_loss",
                    "slots_charged": account.city["slots_charged"],
                    "slots_recorded": account.city["slots_recorded"],
                    "hours_charged": account.city["hours_charged"],
                    "hours_recorded": account.city["hours_recorded"],
                }
            }
            if account.city
            else {}
        ),
        **({"archived": _archived(ledger, closed)} if closed is not None else {}),
        **(
            {"withdrawn": msgspec.to_builtins(withdrawals)}
            if (withdrawals := noted_withdrawals(meta))
            else {}
        ),
        "hats_recorded": account.made.total(),
        "hats_released": account.released.total(),
    }


def _archived(ledger: Ledger, closed: int) -> dict[str, Any]:
    """The part that the statement does not know: it is in the archives, which have statements of
    their own."""
    held = sum(1 for _ in ledger.newest())
    return {"before": iso_utc(closed), "entries_elsewhere": ledger.progress().admitted - held}


def disagreement(settings: Settings, stated: dict[str, Any]) -> str | None:
    """A sentence naming both if the ledger was charged, or its records made, under other settings
    than these."""
    policy = settings.policy
    loss = stated["privacy"]["privacy_loss"]
    amounts = [
        (one["period"], unit, one[unit])
        for one in loss["charged_under"]
        for unit in _UNITS
        if unit in one
    ]
    under = {f"{unit} {amount:g} per {period}" for period, unit, amount in amounts}
    policies = {made["policy"] for made in stated["details"]["implementation"]["policies"]}
    unit = _unit(names.name_in(policy.measure, policy.period))
    ours = f"{unit} {policy.budget_nano / NANO:g} per {policy.named_period}"
    if {ours}.issuperset(under) and {policy.fingerprint()}.issuperset(policies):
        return None
    return (
        f"the configuration has {ours} (policy {policy.fingerprint()}), the ledger was charged under {_joined(under)} "
        f"(policy {_joined(policies) or 'of no record yet'}): the statement follows the ledger"
    )


def _privacy_loss(settings: Settings, account: _Account) -> dict[str, Any]:
    """The most that a plate can lose by its pings in a whole period, to all releases, whichever
    slots were charged."""
    policy = settings.policy
    charged = {length: names.ending_of(length) for length, _ in account.under}
    lengths = {
        without_measure(length).removesuffix(ending) for length, ending in charged.items()
    } or {policy.period}
    sums = _with_overlapping(account)
    return {
        "privacy_unit": f"one license plate, with all its pings in a period of {_joined(lengths)}; of a rolling period "
        "any stretch of that length, wherever it begins",
        "privacy_parameters": _most_of(sums.values(), policy),
        **_between_speeds(account, policy.delta),
        "charged_under": [
            {_unit(length): budget / NANO, "period": without_measure(length), "hats_charged": hats}
            for (length, budget), hats in sorted(account.under.items())
        ],
        "over_time": [
            _over_time(length, budget, policy.delta) for length, budget in _under(account, policy)
        ],
        "composition_over_periods": "a plate's loss in a period is at most the largest budget that any of its releases "
        "was admitted under (guaranteed); budgets of periods that overlap in time add up (with_overlapping), and "
        "epsilon is the most of any period; a rho is an epsilon with delta by arXiv 2004.00010, Corollary 13",
        "periods": [
            {
                "period": period,
                **(spent.guaranteed if names.ending_of(period) else spent.stated)(_unit(period)),
                **{
                    f"{unit}_guaranteed_with_overlapping": n / NANO
                    for unit, n in _amounts(sums[period])
                    if n
                },
            }
            for period, spent in sorted(account.speeds.items())
        ],
    }


def _under(account: _Account, policy: Policy) -> list[tuple[str, int]]:
    """Lengths with their budgets, as they were charged, or as the configuration has them."""
    ours = names.name_in(policy.measure, policy.period), policy.budget_nano
    return sorted(account.under) or [ours]


def _over_time(length: str, budget: int, delta: float) -> dict[str, Any]:
    """Epsilons of an even day, a period, and all periods that 365 days touch, which add up in the
    measure of the budget."""
    measure = measure_of(length)
    plain = without_measure(length).removesuffix(names.ending_of(length))
    amounts = {
        "an_even_day": names.day_nano(plain, budget),
        "the_period": budget,
        "any_365_days": names.year_nano(plain, budget),
    }
    return {"period": plain} | {
        name: {
            measure.unit: nano / NANO,
            "epsilon": measure.implied_epsilon(nano, delta),
        }
        for name, nano in amounts.items()
    }


def _between_speeds(account: _Account, delta: float) -> dict[str, Any]:
    """The most that whole plates can lose by their speeds alone, as a change is a removal and an
    addition."""
    budgets = [
        nano
        for name, one in account.speeds.items()
        if names.ending_of(name)
        for nano in one.promised.values()
    ]
    return (
        {"swap_values": {"epsilon": epsilon_of(OF_A_SWAP * max(budgets), delta), "delta": delta}}
        if budgets
        else {}
    )


def _with_overlapping(account: _Account) -> dict[str, Loss]:
    """The most, for each period or rolling budget, with the periods that overlap it and were
    charged."""
    promised = {
        name: nano for spent in account.speeds.values() for name, nano in spent.promised.items()
    }
    most: dict[str, Loss] = {}
    for period, loss in names.together(promised).items():
        most[_account_of(period)] = max(loss, most.get(_account_of(period), Loss()))
    return {
        period: loss_in(period, max(spent.budgets)) for period, spent in account.speeds.items()
    } | most


def _most_of(losses: Collection[Loss], policy: Policy) -> dict[str, float]:
    """The most of any period; of a rho what it is with the policy's delta, and of both kinds what
    they are together."""
    losses = losses or [loss_in(names.name_in(policy.measure, ""), policy.budget_nano)]
    if not any(loss.rho_nano for loss in losses):
        return {"epsilon": max(losses).epsilon_nano / NANO}
    epsilon, most = max(
        (epsilon_of_both(one.epsilon_nano, one.rho_nano, policy.delta), one) for one in losses
    )
    return {"epsilon": epsilon, "delta": policy.delta} | (
        {} if most.epsilon_nano else {"rho": most.rho_nano / NANO}
    )


def _positions(account: _Account, meta: Mapping[str, str], delta: float) -> dict[str, Any]:
    shared = [_in_one_budget(time, one, account) for time, one in noted(meta).items()]
    return {
        "privacy_unit": "one license plate, with its positions at all moments of a period",
        "adjacency": "positions: the same pings are accepted, and the same plates are there at every moment; "
        "one plate's positions differ, each by at most a distance d in the plane of the configuration",
        "dp_variant": "metric privacy in the local model, of thresholds in the central one: e^(epsilon d), or "
        "Renyi divergence a rho d^2 of every order a > 1 (Adaptive Privacy Budgeting, Liang and Yi)",
        "unprotected_quantities": [
            "which plates sent pings, when, how many of them, and who was asked in a round"
        ],
        "composition": "basic, per plate; added to losses of speeds only where both had one budget (`one_budget`)",
        **({"one_budget": shared} if shared else {}),
        "periods": [
            {
                "period": period,
                **spent.stated(
                    f"{_unit(period)}_per_{measure_of(period).distance.replace(' ', '_')}"
                ),
                **_within_1km(measure_of(period), max(spent.budgets), delta),
            }
            for period, spent in sorted(account.positions.items())
        ],
    }


def _within_1km(measure: Measure, nano: int, delta: float) -> dict[str, Any]:
    """(epsilon, delta, 1 km)-geo-privacy of a period's rho (*Adaptive Privacy Budgeting*, equation
    10)."""
    found = within_1km(measure.name, nano, delta)
    return {} if found is UNSET else {"guaranteed_within_1km": msgspec.to_builtins(found)}


def _in_one_budget(time: str, one: OneBudget, account: _Account) -> dict[str, Any]:
    """Both kinds together, in the units of the joint budget that was promised for this time."""
    budgets = {name: max(spent.budgets) for name, spent in account.positions.items()}
    charged = {name: spent.nano for name, spent in account.positions.items()}
    for spent in account.speeds.values():
        budgets |= spent.promised
        # Of a rolling budget it is the most in any window: counted once, not for each span.
        charged |= dict.fromkeys(list(spent.promised)[:1], spent.nano)
    budgets = {name: budgets[name] for name in of_same_time(time, budgets)}
    plates: dict[bytes, Loss] = {}
    for name in budgets.keys() & charged.keys():
        for plate, nano in charged[name].items():
            plates[plate] = plates.get(plate, Loss()) + loss_in(name, one.nano_of(name, nano))
    return {
        "period": time,
        "unit_m": float(one.unit_m),
        "units": one.said,
        "promised": str(one.whole),
        "guaranteed": str(one.most_in(budgets, time)),
        "max_over_plates": str(max(plates.values(), default=Loss())),
    }


def _of_each(
    relations: Collection[NeighbourRelation], text: Callable[[NeighbourRelation], str]
) -> str:
    """The text of the relation; of several, as of different days, each with its name."""
    if len(relations) == 1:
        return "".join(map(text, relations))
    return "; ".join(f"{one.name}: {text(one)}" for one in relations)


def _kinds(relation: NeighbourRelation) -> str:
    *others, last = (STATISTICS[name].plural for name in priced())
    return relation.kinds.format(f"{', '.join(others)} and {last}").capitalize()


def _account_of(period: str) -> str:
    """The name under which losses of a period are stated: of the spans of a rolling budget one for
    all."""
    return period if span_of(period) is None else names.length_of(period)


def _amounts(loss: Loss) -> Iterable[tuple[str, int]]:
    return zip(_UNITS, (loss.epsilon_nano, loss.rho_nano), strict=True)


def _unit(period: str) -> str:
    return measure_of(period).unit


def _noise_of(measure: Measure) -> str:
    kind, _, family = measure.noise.name.partition("-")
    return f"{kind} {family.capitalize()}"


def _joined(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names)))
