"""`ledger show`, `ledger verify`, `ledger export`: look into a ledger without changing it. `ledger accept-older`: go on
with one that went back in time."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from udp_stream.cli.charged_plate import lines_of_plate
from udp_stream.errors import PrivacyRefused
from udp_stream.ledger.past import Forgotten, behind, forget, see
from udp_stream.ledger.port import Ledger, Mark
from udp_stream.ledgers.keys import PlateKeys
from udp_stream.ledgers.opening import (
    counted_charges,
    has_mark,
    ledger_and_keys,
    mark_beside,
    named,
    other_budgets,
    replace_mark_of,
    say_ledger,
    slot_start,
)
from udp_stream.ledgers.statement import disagreement, statement
from udp_stream.logs import WARNING, counted, say
from udp_stream.pings.decode import plate_name
from udp_stream.settings import Settings


def show(arguments: argparse.Namespace, settings: Settings) -> None:
    """What a plate was charged and has left, one period a line, oldest first; of a rolling budget a line for each span
    and one for its windows."""
    with _open(arguments, settings) as (ledger, keys):
        lines = lines_of_plate(ledger, keys.hash_plate(plate_name(arguments.plate)), settings)
        others = other_budgets(ledger.meta(), settings.policy)
    if others:  # as where --config was forgotten
        text = f"the ledger was charged under another budget ({named(others)}): what is left follows the configuration"
        say(text, "ledger", level=WARNING)
    if arguments.json:
        print(json.dumps({"promise": settings.policy.promise, "charges": [line.facts for line in lines]}, indent=2))
        return
    if not lines:
        whole = f"it has its whole budget: {settings.policy.promise}"
        say(f"no charge is recorded for this plate, so {whole}. Spelling and case matter")
    for line in lines:
        print(line.text)


def verify(arguments: argparse.Namespace, settings: Settings) -> None:
    """Recompute every balance; any discrepancy is a refusal to go on (exit status 5)."""
    with _open(arguments, settings) as (ledger, _):
        found = ledger.verify()
        entries = sum(1 for _ in ledger.entries())
    if arguments.json:
        told = {"entries": entries, "discrepancies": [str(one) for one in found]}
        print(json.dumps(told, indent=2), flush=True)
    else:
        for discrepancy in found:
            print(discrepancy)
    if found:
        raise PrivacyRefused(f"the ledger contradicts itself in {counted(len(found), 'place')}")
    if arguments.json:
        return
    print(f"{counted(entries, 'entry', 'entries')}: every balance is the sum of its charges, none is over its budget")


def export(arguments: argparse.Namespace, settings: Settings) -> None:
    """The statement as JSON on stdout; on stderr, where the configuration is not what the ledger was charged under."""
    with _open(arguments, settings) as (ledger, _):
        stated = statement(settings, ledger)
    if difference := disagreement(settings, stated):
        say(difference, level=WARNING)
    print(json.dumps(stated, indent=2, ensure_ascii=False))


def accept_older(arguments: argparse.Namespace, settings: Settings) -> None:
    """Say what an older ledger has forgotten; with the very words, remember that for ever and let it be used.

    Raises PrivacyRefused while the words were not given, and nothing is changed then.
    """
    with ledger_and_keys(
        settings.ledger, must_exist=True, allow_volatile=arguments.allow_volatile_ledger, accept_older=True
    ) as (ledger, _):
        say_ledger(settings.ledger, ledger, settings)
        knows = has_mark(settings.ledger)
        kept = mark_beside(settings.ledger) or see(ledger).mark()
        words = _forgotten_words(ledger, kept, settings)
        if arguments.saying != words:
            why = _why_older(ledger, kept if knows else None)
            raise PrivacyRefused(
                f"{why}. The forgotten charges give plates that budget again, and the forgotten "
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
    number = counted_charges(missing, ledger.meta()) if missing > 0 else "an unknown number of HATs"
    since = slot_start(progress.newest, settings.calendar.slots) or progress.newest or "its beginning"
    return f"charges of {number} since {since} are forgotten"


def _why_older(ledger: Ledger, kept: Mark | None) -> str:
    if kept is None:
        return "the ledger's high-water mark is gone: it may be an older copy"
    how = behind(see(ledger, kept.release_id), kept)
    return f"the ledger went back in time: {how}" if how else "the ledger is not behind its high-water mark"


@contextmanager
def _open(arguments: argparse.Namespace, settings: Settings) -> Iterator[tuple[Ledger, PlateKeys]]:
    """The ledger that is there, named on stderr."""
    allow_volatile = arguments.allow_volatile_ledger
    with ledger_and_keys(settings.ledger, must_exist=True, allow_volatile=allow_volatile) as (ledger, keys):
        say_ledger(settings.ledger, ledger, settings)
        yield ledger, keys
