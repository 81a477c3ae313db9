"""`ledger show`, `ledger verify`, `ledger export`: look into a ledger without changing it."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import AbstractContextManager

from udp_stream.adapters.open_ledger import ledger_and_keys
from udp_stream.adapters.overlaps import days_of, largest_budgets, overlaps_on, said
from udp_stream.adapters.plate_keys import PlateKeys
from udp_stream.adapters.settings import Settings
from udp_stream.adapters.statement import disagreement, statement
from udp_stream.adapters.words import counted
from udp_stream.errors import PrivacyRefused
from udp_stream.periods import epsilon_text
from udp_stream.pings import plate_name
from udp_stream.ports import Ledger
from udp_stream.units import NANO


def show(arguments: argparse.Namespace, settings: Settings) -> None:
    """What a plate has spent and has left, one period a line, oldest first; then a sum for each day on which its
    periods overlap."""
    budget = settings.policy.budget_nano
    with _open(arguments, settings) as (ledger, keys):
        spent = ledger.spent(keys.key_of(plate_name(arguments.plate)))
        days = days_of(spent, settings.zone)
        budgets = largest_budgets(ledger, {period for one in days for period in one.periods}) if days else {}
    if not spent:
        print(
            f"no charge is recorded for this plate (spelling and case count); it has all of its {budget / NANO:g}",
            file=sys.stderr,
        )
    for period, nano in sorted(spent.items()):
        left = max(0, budget - nano)
        print(f"{period}\tspent {nano / NANO:.9f}\tleft {left / NANO:.9f}\tof {budget / NANO:g}")
    for one in days:
        in_all, most = (sum(amounts[period] for period in one.periods) for amounts in (spent, budgets))
        together = ", ".join(one.periods)
        print(f"{one}\tspent {in_all / NANO:.9f} in all\tof at most {epsilon_text(most)} in all\tin {together}")


def verify(arguments: argparse.Namespace, settings: Settings) -> None:
    """Recompute every balance; any discrepancy is a refusal to go on (exit status 5)."""
    with _open(arguments, settings) as (ledger, _):
        found = ledger.verify()
        entries = sum(1 for _ in ledger.entries())
        overlaps = overlaps_on(ledger)
    for discrepancy in found:
        print(discrepancy)
    if found:
        raise PrivacyRefused(f"the ledger contradicts itself in {counted(len(found), 'place')}")
    print(f"{counted(entries, 'entry', 'entries')}: every balance is the sum of its charges, none is over its budget")
    if overlaps:
        print(said(overlaps))


def export(arguments: argparse.Namespace, settings: Settings) -> None:
    """The statement as JSON on stdout; on stderr, where the configuration is not what the ledger was charged under."""
    with _open(arguments, settings) as (ledger, _):
        stated = statement(settings, ledger)
    if difference := disagreement(settings, stated):
        print(f"udp-stream: warning: {difference}", file=sys.stderr)
    print(json.dumps(stated, indent=2, ensure_ascii=False))


def _open(arguments: argparse.Namespace, settings: Settings) -> AbstractContextManager[tuple[Ledger, PlateKeys]]:
    return ledger_and_keys(settings.ledger, must_exist=True, allow_volatile=arguments.allow_volatile_ledger)
