"""`ledger show`, `ledger verify`, `ledger export`: look into a ledger without changing it. `ledger accept-older`: go on
with one that went back in time."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from udp_stream.adapters.ledgers.opening import ledger_and_keys, mark_beside, replace_mark_of
from udp_stream.adapters.ledgers.overlaps import days_of, overlaps_on, said
from udp_stream.adapters.ledgers.plate_keys import PlateKeys
from udp_stream.adapters.ledgers.stated_losses import in_windows
from udp_stream.adapters.ledgers.statement import disagreement, statement
from udp_stream.adapters.ledgers.which_ledger import say_ledger, slot_start
from udp_stream.adapters.settings import Settings
from udp_stream.adapters.text import counted
from udp_stream.errors import PrivacyRefused
from udp_stream.ledger.budgets import largest_budgets
from udp_stream.ledger.conversion import epsilon_of
from udp_stream.ledger.past import Forgotten, behind, forget, see
from udp_stream.ledger.port import Ledger, Mark
from udp_stream.ledger.rolling import span_of
from udp_stream.pings.decoder import plate_name
from udp_stream.planning.periods import amount_text, measure_of, most_in, of_positions, sum_of
from udp_stream.planning.policy import Policy, epsilon_text
from udp_stream.planning.position_periods import amount_by_distance
from udp_stream.units import NANO


def show(arguments: argparse.Namespace, settings: Settings) -> None:
    """What a plate was charged and has left, one period a line, oldest first; of a rolling budget a line for each span
    and one for its windows; then a sum for each day on which its periods overlap."""
    policy = settings.policy
    with _open(arguments, settings) as (ledger, keys):
        charged = ledger.charged_by_period(keys.key_of(plate_name(arguments.plate)))
        days = days_of([period for period in charged if not of_positions(period)], settings.zone)
        budgets = largest_budgets(ledger, {period for one in days for period in one.periods}) if days else {}
    if not charged:
        print(
            f"no charge is recorded for this plate, so it has its whole budget: {policy.promise}. Spelling and case "
            "matter",
            file=sys.stderr,
        )
    positions = {period: nano for period, nano in charged.items() if of_positions(period)}
    charged = {period: nano for period, nano in charged.items() if period not in positions}
    for period, nano in sorted(charged.items()):
        if measure_of(period) != policy.measure:
            print(f'{period}\tcharged {nano / NANO:.9f}\tbudget.accounting is now "{policy.accounting}"')
        elif span_of(period) is None:
            print(f"{period}\tcharged {nano / NANO:.9f}\t{_left(nano, policy)}")
        else:
            print(f"{period}\tcharged {nano / NANO:.9f}")
    for account, (latest, worst) in in_windows(charged).items():
        if measure_of(account) == policy.measure:
            print(
                f"{account}\tcharged {latest / NANO:.9f} in the latest window\t{_left(latest, policy)}"
                f"\tat most {worst / NANO:.9f} in any window"
            )
    for one in days:
        in_all, most = sum_of(charged, one.periods), most_in(budgets, "", one.periods)
        together = ", ".join(one.periods)
        if most.rho_nano:
            print(f"{one}\tcharged {in_all} in all\tof at most {most} in all\tin {together}")
            continue
        epsilon, budget = f"{in_all.epsilon_nano / NANO:.9f}", amount_text(most.epsilon_nano)
        print(f"{one}\tcharged {epsilon} in all\tof at most {budget} in all\tin {together}")
    for period, nano in sorted(positions.items()):
        print(f"{period}\tcharged {_of_positions(period, nano, settings)}")


def _of_positions(period: str, nano: int, settings: Settings) -> str:
    """What a plate's positions cost it, by distance, and what is left; never part of a sum with speeds."""
    measure, periods = measure_of(period), settings.position_periods
    charged = amount_by_distance(measure, nano)
    if not periods.budget_nano or measure != periods.measure:
        return f"{charged}\tby queries that [queries] does not ask now"
    left = amount_by_distance(measure, max(0, periods.budget_nano - nano))
    return f"{charged}\tleft {left}\tof {amount_by_distance(measure, periods.budget_nano)}"


def _left(nano: int, policy: Policy) -> str:
    """What is left of the budget and, of a rho, which epsilon is spent."""
    left, budget = max(0, policy.budget_nano - nano), f"{policy.budget_nano / NANO:.10g}"
    spent = f"{epsilon_text(epsilon_of(nano, policy.delta))} with delta {policy.delta:g}"
    return f"left {left / NANO:.9f}\tof {budget}" + (f"\tepsilon {spent}" if policy.measure == "zcdp" else "")


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


def accept_older(arguments: argparse.Namespace, settings: Settings) -> None:
    """Say what an older ledger has forgotten; with the very words, remember that for ever and let it be used.

    Raises PrivacyRefused while the words were not given, and nothing is changed then.
    """
    with ledger_and_keys(
        settings.ledger, must_exist=True, allow_volatile=arguments.allow_volatile_ledger, accept_older=True
    ) as (ledger, _):
        say_ledger(settings.ledger, ledger, settings)
        kept = mark_beside(settings.ledger) or see(ledger).mark()
        words = _forgotten_words(ledger, kept, settings)
        if arguments.saying != words:
            raise PrivacyRefused(
                f"{_why_older(ledger, kept)}. The forgotten charges give plates that budget again, and the forgotten "
                "HATs are drawn a second time: a plate can lose up to its budget once more in these periods. Restore a "
                "newer copy if there is one. To continue with this one, stop every worker and run this command again "
                f"with --saying {shlex.quote(words)}"
            )
        if not forget(ledger, Forgotten(words, datetime.now(UTC).isoformat(timespec="seconds"), kept)):
            raise PrivacyRefused(
                "another command has just accepted something on this ledger: run this one again to see what"
            )
        replace_mark_of(settings.ledger, ledger)
    print(f"accepted; the ledger keeps these words for ever: {words}")


def _forgotten_words(ledger: Ledger, kept: Mark, settings: Settings) -> str:
    """What is forgotten: what the mark counts beyond the ledger; unknown where the mark has been set back as well."""
    progress = ledger.progress()
    missing = kept.admitted - progress.admitted
    number = counted(missing, "HAT") if missing > 0 else "an unknown number of HATs"
    since = slot_start(progress.newest, settings.calendar.slots) or progress.newest or "its beginning"
    return f"charges of {number} since {since} are forgotten"


def _why_older(ledger: Ledger, kept: Mark) -> str:
    how = behind(see(ledger, kept.release_id), kept)
    return f"the ledger went back in time: {how}" if how else "the ledger is not behind its high-water mark"


@contextmanager
def _open(arguments: argparse.Namespace, settings: Settings) -> Iterator[tuple[Ledger, PlateKeys]]:
    """The ledger that is there, named on stderr."""
    allow_volatile = arguments.allow_volatile_ledger
    with ledger_and_keys(settings.ledger, must_exist=True, allow_volatile=allow_volatile) as (ledger, keys):
        say_ledger(settings.ledger, ledger, settings)
        yield ledger, keys
