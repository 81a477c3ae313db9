"""The settings behind a policy's fingerprint, as configuration keys: what a ledger notes, and what a warning names.

A record says by a fingerprint under which settings it was made, and a fingerprint cannot be read back. So a ledger
notes the keys and values of every policy before anything is charged under it. Older ledgers note none: there the
fingerprints are named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from math import sqrt
from typing import Any

import msgspec

from udp_stream.ledger.conversion import epsilon_of
from udp_stream.ledger.port import Ledger
from udp_stream.ledger.rolling import ROLLING
from udp_stream.planning.periods import amount_text
from udp_stream.planning.policy import Policy, epsilon_text
from udp_stream.release.record import decode
from udp_stream.units import NANO, QUANTA_PER_KMH, duration_name

NOTE = "policy:"
"""Before a fingerprint: the name of the note."""

BUDGET = ("budget.epsilon", "budget.rho", "budget.delta", "budget.period", "budget.accounting")
"""What a plate can lose, and in which time."""

NAMED_MAX = 3
"""Other policies that one warning names."""


def written(policy: Policy) -> dict[str, str]:
    """Every configuration key that the policy comes from, with its value as a user writes it.

    `neighbours` has no key: there is one relation. `budget.period` stands for two fields. `[source]` has keys where a
    feed has a form of its own.
    """
    return {
        "hat.resolution": _plain(policy.resolution),
        "hat.slot": duration_name(policy.slot_seconds),
        "hat.timezone": policy.timezone,
        "hat.grace": _duration(policy.grace_ms),
        "speed.max_kmh": _kmh(policy.max_speed),
        "speed.unit": policy.unit,
        "speed.reject_above_kmh": _plain(policy.reject_above_kmh),
        "pings.box": "none" if policy.box is None else _list(policy.box),
        **_budget(policy),
        "budget.period": _period(policy),
        "budget.accounting": policy.accounting,
        "release.mean": policy.mean,
        "release.grouping": policy.grouping,
        "release.mean_epsilon": _epsilon(policy.mean_nano, policy),
        "release.variance_epsilon": _epsilon(policy.variance_nano, policy),
        "release.cdf_epsilon": _epsilon(policy.cdf_nano, policy),
        "release.bins": _list(policy.bins) if isinstance(policy.bins, tuple) else str(policy.bins),
        "release.min_plates": _plain(policy.min_plates),
        "release.suppression": policy.suppression,
        "release.hats_max": _plain(policy.hats_max),
        "release.counts": policy.counts_released,
        "budget.schedule": policy.schedule,
        "neighbours": policy.neighbours,
        **{f"source.{key}": value for key, value in policy.source},
    }


def note_policy(ledger: Ledger, policy: Policy) -> None:
    """Remember in the ledger what the policy's fingerprint stands for; the first note of it stands."""
    ledger.note(f"{NOTE}{policy.fingerprint()}", msgspec.json.encode(written(policy)).decode())


def other_policies(ledger: Ledger, policy: Policy) -> dict[str, str]:
    """How our settings differ from each other policy that the ledger was charged under, by its fingerprint.

    Noted policies are known, and of older ledgers those of the first and the latest HAT. The latest HAT's comes first.
    """
    noted = {name.removeprefix(NOTE): text for name, text in sorted(ledger.meta().items()) if name.startswith(NOTE)}
    found = dict.fromkeys([*_of_ends(ledger), *noted])
    found.pop(policy.fingerprint(), None)
    return {fingerprint: _difference(fingerprint, noted.get(fingerprint), policy) for fingerprint in found}


def other_budgets(meta: Mapping[str, str], policy: Policy) -> list[str]:
    """How our budget differs from those that a ledger notes, if it notes some and none of them is ours.

    >>> from msgspec.structs import replace
    >>> from udp_stream.adapters.settings import Settings
    >>> from udp_stream.ledger.memory import MemoryLedger
    >>> ledger, ours = MemoryLedger(), Settings().policy
    >>> note_policy(ledger, replace(ours, budget_nano=3 * NANO))
    >>> other_budgets(ledger.meta(), ours)
    ['budget.epsilon 3 -> 10']
    """
    ours = _of_budget(written(policy))
    notes = [_noted(text) for name, text in sorted(meta.items()) if name.startswith(NOTE)]
    theirs = [_of_budget(keys) for keys in notes if keys]
    return [] if ours in theirs else list(dict.fromkeys(_changes(one, ours) for one in theirs))


def _of_budget(keys: Mapping[str, str]) -> dict[str, str]:
    return {key: keys[key] for key in BUDGET if key in keys}


def difference(others: Mapping[str, str], fingerprint: str, policy: Policy) -> str:
    """How our settings differ from that policy: what `other_policies` told of it, else both fingerprints."""
    return others.get(fingerprint) or _difference(fingerprint, None, policy)


def named(differences: Sequence[str]) -> str:
    """The first few, in one clause.

    >>> named(["speed.unit kmh -> mps", "hat.slot 6h -> 1h", "hat.slot 6h -> 2h", "hat.slot 6h -> 3h"])
    'speed.unit kmh -> mps; hat.slot 6h -> 1h; hat.slot 6h -> 2h; and 1 more'
    """
    more = len(differences) - NAMED_MAX
    return "; ".join([*differences[:NAMED_MAX], *([f"and {more} more"] if more > 0 else [])])


def _of_ends(ledger: Ledger) -> list[str]:
    """The policies of the latest and of the first HAT, where they are recorded."""
    progress = ledger.progress()
    ids = [release_id for release_id in (progress.newest, progress.oldest) if release_id is not None]
    found = []
    for payload in ledger.recorded(ids):
        try:
            found += [] if payload is None else [decode(payload).policy]
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue  # no record of ours: `ledger export` and `ledger verify` say so
    return found


def _difference(fingerprint: str, note: str | None, policy: Policy) -> str:
    theirs = _noted(note)
    changes = _changes(theirs, written(policy)) if theirs else ""
    return changes or f"policy {fingerprint} -> {policy.fingerprint()}"


def _changes(theirs: Mapping[str, str], ours: Mapping[str, str]) -> str:
    """Each key that differs, with both values."""
    keys = [key for key in [*ours, *sorted(theirs.keys() - ours.keys())] if theirs.get(key) != ours.get(key)]
    return ", ".join(f"{key} {_value(theirs, key)} -> {_value(ours, key)}" for key in keys)


def _value(keys: Mapping[str, str], key: str) -> str:
    """What a policy has of a key. Without a mapping, a feed is in the contract's form."""
    return keys.get(key) or ("unset" if key.startswith("source.") else "unknown")


def _noted(note: str | None) -> dict[str, str]:
    """What a note says; nothing where there is none that we can read."""
    try:
        return {} if note is None else msgspec.json.decode(note, type=dict[str, str])
    except msgspec.DecodeError:
        return {}


def _plain(number: float | Decimal) -> str:
    """In digits, without an exponent and without zeros at the end."""
    text = format(Decimal(str(number)), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _budget(policy: Policy) -> dict[str, str]:
    """By the keys that are read under its accounting."""
    match policy.accounting:
        case "pure":
            return {"budget.epsilon": amount_text(policy.budget_nano)}
        case "zcdp":
            return {"budget.rho": amount_text(policy.budget_nano), "budget.delta": f"{policy.delta:g}"}
        case "approximate":
            epsilon = epsilon_text(epsilon_of(policy.budget_nano, policy.delta))
            return {"budget.epsilon": epsilon, "budget.delta": f"{policy.delta:g}"}


def _period(policy: Policy) -> str:
    if policy.period_seconds is None:
        return policy.period
    return f"{ROLLING if policy.rolls else ''}{duration_name(policy.period_seconds)}"


def _epsilon(nano: int | None, policy: Policy) -> str:
    if nano is None:
        return "auto"
    return amount_text(nano) if policy.measure == "pure" else f"{sqrt(2 * nano / NANO):.9g}"


def _kmh(quanta: int) -> str:
    """The shortest number of km/h that is rounded down to these quanta."""
    exact = Decimal(quanta) / QUANTA_PER_KMH
    rounded = (exact.quantize(Decimal(1).scaleb(-digits), ROUND_CEILING) for digits in range(12))
    return _plain(next(kmh for kmh in rounded if int(float(kmh) * QUANTA_PER_KMH) == quanta))


def _duration(milliseconds: int) -> str:
    if milliseconds % 1000:
        return f"{_plain(Decimal(milliseconds) / 1000)}s"
    return duration_name(milliseconds // 1000) if milliseconds else "0s"


def _list(numbers: Sequence[Any]) -> str:
    return f"[{', '.join(_plain(number) for number in numbers)}]"
