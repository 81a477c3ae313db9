"""Which ledger a run is on, said on stderr before anything is charged; and the ledger of one run only.

A wrong ledger is a second budget for every plate. So each verb that opens one names it in full, says whether it is new,
and what it holds since when.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from udp_stream.adapters.ledgers.opening import ledger_place
from udp_stream.adapters.ledgers.policy_keys import named, note_policy, other_policies
from udp_stream.adapters.logs import WARNING, say
from udp_stream.adapters.settings import LedgerSection, Settings
from udp_stream.adapters.text import counted
from udp_stream.ledger.port import Ledger, Progress
from udp_stream.release.record import CLIPS, kind_of, slot_of
from udp_stream.release.standing import NOTE
from udp_stream.windows.tables import SlotGrid


def ledger_sentence(place: str, meta: Mapping[str, str], progress: Progress, slots: SlotGrid) -> str:
    """Which ledger it is, whether it is new (it holds nothing yet), and since when it holds what.

    >>> from datetime import timedelta, timezone
    >>> slots = SlotGrid(3600, timezone(timedelta(hours=5, minutes=30)))
    >>> held = Progress(118, 118, "87608c4d2ffffff-1704673800-3600", "87608c4d2ffffff-1704713400-3600")
    >>> print(ledger_sentence("/data/city.ledger", {"made": "2026-11-20T09:12:44Z"}, held, slots))
    ... # doctest: +NORMALIZE_WHITESPACE
    ledger /data/city.ledger, made 2026-11-20T09:12:44Z: 118 HATs, the first of the slot 2024-01-08T06:00:00+05:30,
    the latest of 2024-01-08T17:00:00+05:30
    >>> ledger_sentence("/data/city.ledger", {"made": "2026-11-20T09:12:44Z"}, Progress(0, 0, None, None), slots)
    'ledger /data/city.ledger, new'
    """
    if not progress.admitted:
        return f"ledger {place}, new"
    made = f", made {meta['made']}" if "made" in meta else ""
    first, latest = (slot_start(release_id, slots) for release_id in (progress.oldest, progress.newest))
    holds = [counted_charges(progress.admitted, meta, with_slots=kind_of(progress.newest or "") == CLIPS)]
    holds += [f"the first of the slot {first}"] if first else []
    holds += [f"the latest of {'' if first else 'the slot '}{latest}"] if latest else []
    return f"ledger {place}{made}: {', '.join(holds)}"


def counted_charges(number: int, meta: Mapping[str, str], *, with_slots: bool = False) -> str:
    """So many admissions in words: HATs, and what else a ledger of these notes has charged for or remembered.

    >>> counted_charges(1, {}), counted_charges(118, {}, with_slots=True)
    ('1 HAT', '118 HATs and slots')
    """
    others = ["slots"] * with_slots
    others += ["rounds of queries"] * any(name.startswith(NOTE) for name in meta)
    return f"{number:,} HATs and {' and '.join(others)}" if others else counted(number, "HAT")


def say_ledger(asked: LedgerSection, ledger: Ledger, settings: Settings) -> None:
    """Name an open ledger on stderr."""
    say(ledger_sentence(ledger_place(asked.place), ledger.meta(), ledger.progress(), settings.calendar.slots))


def begin_run(asked: LedgerSection, ledger: Ledger, settings: Settings) -> dict[str, str]:
    """Name the ledger of a run on stderr, and warn where it was charged under other settings than these.

    Returns how ours differ from each of them, by its fingerprint (`policy_keys.other_policies`).
    """
    say_ledger(asked, ledger, settings)
    others = other_policies(ledger, settings.policy)
    if others and ledger.progress().admitted:
        different = named(list(others.values()))
        text = f"the ledger holds HATs made under other settings ({different}): these HATs keep their records"
        say(text, "ledger", level=WARNING)
    return others


def begin_work(settings: Settings, ledger: Ledger) -> dict[str, str]:
    """As `begin_run`, for a worker; its settings are noted at once, because what comes will be charged under them."""
    others = begin_run(settings.ledger, ledger, settings)
    note_policy(ledger, settings.policy)
    return others


@contextmanager
def trial_ledger(settings: Settings) -> Iterator[LedgerSection]:
    """A ledger for one run, and a key of its own beside it: the configured key belongs to another ledger. Says so."""
    configured = settings.ledger.place
    is_used = settings.ledger.url or Path(ledger_place(configured)).exists()
    untouched = f" The configured ledger {ledger_place(configured)} is not touched." if is_used else ""
    with TemporaryDirectory(prefix="udp-stream-trial-") as folder:
        say(
            "trial: this ledger is for this run only and is deleted afterwards. Another run draws every HAT again, so "
            f'do not publish these records beside others; each says "trial": true.{untouched}'
        )
        yield LedgerSection(url=f"{folder}/trial.ledger")


def slot_start(release_id: str | None, slots: SlotGrid) -> str | None:
    """When the slot of an id starts; None for an id that tells none, or no time that there is."""
    try:
        return None if release_id is None else slots.iso(slot_of(release_id)[0] * 1000)
    except (ValueError, OverflowError, OSError):
        return None
